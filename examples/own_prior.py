"""A prior of one's own: mental states that follow each other in order.

Many tasks go through phases: look, fetch, assemble, leave. A transition table that knows so needs
far fewer labels. The class below only says the Dirichlet concentration of each row; since that is
conjugate, every method takes it. It is held against a plain table and a sticky one.

    python examples/own_prior.py
    python examples/own_prior.py --quick   # fewer recordings
"""

import argparse

import numpy as np

import btil
from btil.analysis import hamming_distance

PHASES = ["look", "fetch", "assemble", "leave"]
ACTIONS = 4


class OrderedCPT(btil.CPT):
    """Dirichlet rows that expect to stay, or to move on to the next latent, and little else."""

    learned = True

    def __init__(self, stay, advance, parents=()):
        self.stay, self.advance, self.parents = stay, advance, parents

    def concentration(self, contexts):
        order = np.arange(contexts.num_latents)
        ahead = order - order[:, None]
        row = np.select([ahead == 0, ahead == 1], [self.stay, self.advance], 0.05)
        return np.broadcast_to(row, contexts.shape)


def simulate(num_episodes, generator):
    """Two members who go through the phases at their own pace; actions hint at the phase."""
    policy = generator.dirichlet(np.full(ACTIONS, 0.3), size=(2, len(PHASES)))
    latents, actions, episodes = [], [], []
    for episode in range(num_episodes):
        phases = np.zeros(2, int)
        for _ in range(30):
            latents.append(phases.copy())
            actions.append([generator.choice(ACTIONS, p=policy[i, phases[i]]) for i in range(2)])
            episodes.append(episode)
            phases = np.minimum(phases + (generator.random(2) < 0.12), len(PHASES) - 1)
    return btil.Demonstrations(
        states=np.zeros(len(episodes), int),
        actions=np.array(actions),
        latents=np.array(latents),
        episodes=np.array(episodes),
        agents=("ann", "bob"),
        num_actions=ACTIONS,
        latent_names={"ann": PHASES, "bob": PHASES},
    )


def main():
    """Learn from recordings of which one is labelled, decode forty others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer recordings")
    num_train = 6 if parser.parse_args().quick else 30
    demos = simulate(num_train + 40, np.random.default_rng(0))
    train = demos.select(range(num_train)).without_labels(range(1, num_train))
    test = demos.select(range(num_train, num_train + 40))
    transitions = {
        "plain": btil.DirichletCPT(1.0),
        "sticky": btil.StickyDirichletCPT(1.0, stay=10.0),
        "ordered": OrderedCPT(stay=10.0, advance=2.0),
    }
    print(f"{'transition':12} error ann   bob   log likelihood a step")
    for name, transition in transitions.items():
        model = btil.TeamModel(btil.DirichletCPT(1.0), transition, btil.DirichletCPT(1.0))
        posterior = btil.fit(model, train, progress=False)
        ann, bob = hamming_distance(test, posterior)
        likelihood = posterior.log_likelihood(test.without_labels()).sum() / test.num_steps
        print(f"{name:12} {ann:9.3f} {bob:5.3f}   {likelihood:21.3f}")


if __name__ == "__main__":
    main()
