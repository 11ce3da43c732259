"""A table family of one's own: who acts on a goal when attentive, and out of habit when not.

The goals and how they are pursued are known (a script, a planner), how attentive the agent is to
each goal and what its habit is are not. The class below is all that fitting, decoding, saving,
figures and comparing need. It is held against a plain table, on simulated recordings of known
truth.

    python examples/own_table_family.py
    python examples/own_table_family.py --quick   # mean field only
"""

import argparse

import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

import btil
from btil.analysis import hamming_distance

GOALS, ACTIONS, STATES = 3, 5, 40
ATTENTION = np.array([0.95, 0.6, 0.8])
HABIT = np.array([0.6, 0.1, 0.1, 0.1, 0.1])


class AttentiveCPT(btil.ParametricCPT):
    """Rows are attention * script + (1 - attention) * habit, attention depending on the latent."""

    parents = ("state",)
    parameter_axes = {"attention": ("latent",), "habit": ("value",)}  # noqa: RUF012

    def __init__(self, script):
        self.script = script  # (states, latents, actions)

    def priors(self, contexts):
        return {
            "attention": dist.Beta(4.0, jnp.ones(contexts.num_latents)),
            "habit": dist.Dirichlet(jnp.ones(contexts.num_values)),
        }

    def inputs(self, contexts):
        return {"script": self.script[contexts.rows[:, 0]]}

    def log_rows(self, parameters, inputs):
        attention = parameters["attention"][:, None]
        return jnp.log(attention * inputs["script"] + (1 - attention) * parameters["habit"])


def simulate(script, num_episodes, num_steps, generator):
    """Goals that are kept for about ten steps, states that come as they may."""
    states = generator.integers(STATES, size=(num_episodes, num_steps))
    goals, actions = np.zeros_like(states), np.zeros_like(states)
    for m in range(num_episodes):
        goal = generator.integers(GOALS)
        for t in range(num_steps):
            goal = generator.integers(GOALS) if generator.random() < 0.1 else goal
            attentive = generator.random() < ATTENTION[goal]
            row = script[states[m, t], goal] if attentive else HABIT
            goals[m, t], actions[m, t] = goal, generator.choice(ACTIONS, p=row)
    return btil.Demonstrations(
        states={"state": states.ravel()},
        actions={"ann": actions.ravel()},
        latents={"ann": goals.ravel()},
        episodes=np.repeat(np.arange(num_episodes), num_steps),
        num_states={"state": STATES},
        num_actions=ACTIONS,
        num_latents=GOALS,
        latent_names={"ann": ["fetch", "carry", "wait"]},
    )


def main():
    """Learn from eight recordings, two of them labelled; test on forty others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="mean field only")
    quick = parser.parse_args().quick
    generator = np.random.default_rng(0)
    script = generator.dirichlet(np.full(ACTIONS, 0.2), size=(STATES, GOALS))
    demos = simulate(script, 48, 40, generator)
    train = demos.select(range(8)).without_labels(range(2, 8))
    test = demos.select(range(8, 48))
    transition = btil.StickyDirichletCPT(1.0, stay=5.0)
    fits = {
        "plain table": (btil.TeamModel(btil.DirichletCPT(1.0, ("state",)), transition), "mfvi", {}),
        "attentive": (btil.TeamModel(AttentiveCPT(script), transition), "mfvi", {}),
    }
    if not quick:
        nuts = {"num_chains": 2, "num_warmup": 300, "num_samples": 300}
        fits["attentive, nuts"] = (fits["attentive"][0], "nuts", nuts)
    print(f"{'':16} decoding error   log likelihood a step")
    for name, (model, method, options) in fits.items():
        posterior = btil.fit(model, train, method, progress=False, **options)
        error = hamming_distance(test, posterior)[0]
        likelihood = posterior.log_likelihood(test.without_labels()).sum() / test.num_steps
        print(f"{name:16} {error:14.3f}   {likelihood:21.3f}")
        if "policy_ann_attention" in posterior.result.parameters:
            draws = posterior.sample(500)["policy_ann_attention"]
            low, high = np.quantile(draws, (0.055, 0.945), axis=0)
            for goal, truth in enumerate(ATTENTION):
                told = test.value_names("latent_ann")[goal]
                print(
                    f"    attention to {told:6} {low[goal]:.2f} to {high[goal]:.2f}, truth {truth}"
                )


if __name__ == "__main__":
    main()
