"""A coach who watches a team as it plays: what has each member in mind, and do they agree?

Learns a team of Movers from recordings of which a few are labelled, then watches it play an episode
in its PettingZoo environment. After every step the coach's beliefs are printed, and when the minds
of the two have probably been misaligned for three steps running, a warning.

    python examples/live_coach.py           # 5 x 5 map, 200 recordings
    python examples/live_coach.py --quick   # the smallest map, few recordings
"""

import argparse

import numpy as np

import btil

PATIENCE = 3
"""Steps of misaligned minds before the coach speaks."""


def learn(task, num_episodes, num_labelled):
    """What the coach has learned from recordings."""
    demos = task.add_derived_variables(task.simulate(num_episodes, seed=1))
    partly = demos.without_labels(range(num_labelled, num_episodes))
    return btil.fit(task.recommended_model(), partly, progress=False)


def what_the_model_reads(task):
    """The derived variables of every task state, {variable: (states,)}.

    The recommended model reads who holds what and where items lie, not where everyone stands.
    """
    every = btil.Demonstrations(
        np.arange(task.num_states),
        np.zeros((task.num_states, 2), int),
        agents=task.agents,
        num_states=task.num_states,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
    )
    return task.add_derived_variables(every).state_variables


class Players:
    """The simulated team: acts by its true policies, and keeps its minds to itself."""

    def __init__(self, task, seed):
        self.task, self.policies = task, task.policies()
        self.generator = np.random.default_rng(seed)
        self.minds = {}

    def draw(self, probs):
        """One value of a distribution."""
        return int(self.generator.choice(len(probs), p=probs))

    def act(self, state):
        """A joint action; everybody knows what they want from the first step on."""
        for agent in self.task.agents:
            if agent not in self.minds:
                self.minds[agent] = self.draw(self.task.initial_latent_probs(agent, [state])[0])
        return {a: self.draw(self.policies[a][state, mind]) for a, mind in self.minds.items()}

    def see(self, state, next_state):
        """Minds change with what has happened."""
        for agent, mind in self.minds.items():
            moves = self.task.latent_transition(agent, [state], [next_state])[0]
            self.minds[agent] = self.draw(moves[mind])


def misaligned(task, state, latents):
    """P(the minds of the two are misaligned | the episode so far).

    Given what was seen the agents' minds are independent, so a pair's probability is a product.
    """
    alice, rob = (latents[agent] for agent in task.agents)
    pairs = np.stack(np.meshgrid(np.arange(len(alice)), np.arange(len(rob)), indexing="ij"), -1)
    apart = task.suboptimal(np.full(pairs[..., 0].size, state), pairs.reshape(-1, 2))
    return float(np.outer(alice, rob).ravel() @ apart)


def watch(task, posterior, seed, max_steps):
    """Play one episode and say what the coach thinks."""
    variables = what_the_model_reads(task)
    tracker = posterior.tracker()
    players = Players(task, seed)
    environment = task.to_parallel_env()
    observations, _ = environment.reset(seed=seed)
    apart_for = warnings = 0
    while environment.agents and tracker.num_steps < max_steps:
        state = int(observations[task.agents[0]])
        actions = players.act(state)
        observations, *_ = environment.step(actions)

        belief = tracker.update({name: v[state] for name, v in variables.items()}, actions)
        said = []
        for agent, probs in belief.latents.items():
            likely = int(probs.argmax())
            right = "" if likely == players.minds[agent] else " (wrong)"
            said.append(f"{agent}: {task.latent_names[likely]} {probs[likely]:.2f}{right}")
        apart = misaligned(task, state, belief.latents)
        print(f"{belief.step:3}  {'   '.join(f'{text:42}' for text in said)} apart {apart:.2f}")

        apart_for = apart_for + 1 if apart > 0.5 else 0
        if apart_for == PATIENCE:
            warnings += 1
            print(
                f"     Coach: your minds have been apart for {PATIENCE} steps. Talk to each other!"
            )
        if environment.agents:
            players.see(state, int(observations[task.agents[0]]))
    environment.close()
    print(f"{tracker.num_steps} steps, {warnings} warnings")


def main():
    """Learn, then watch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest map, few recordings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    task = btil.domains.movers(map="tiny" if options.quick else "lesson")
    num_episodes = 20 if options.quick else 200
    print(f"Learning from {num_episodes} episodes, a fifth of them labelled ...")
    posterior = learn(task, num_episodes, num_episodes // 5)
    print(posterior)
    watch(task, posterior, options.seed, max_steps=20 if options.quick else 200)


if __name__ == "__main__":
    main()
