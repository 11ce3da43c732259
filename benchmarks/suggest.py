"""How good the models are that `btil.suggest_model` finds, and in how many seconds.

`python benchmarks/suggest.py` prints, for the carried kitchens (two trials labelled), simulated
Movers and Cleanup (10 of 50 episodes labelled) and a made three-person team, the decoding error on
held-out episodes of the default model, of hand-picked parents with plain priors, of the model found
and of the recommended one. Then, for made teams whose parents are known, in how many draws they are
found. `--quick` does a part of it. `--splits 3` labels other episodes too, and prints medians over
three choices of them, and the range of the found models.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from timing import conditions

import btil
from btil import DirichletCPT, Shared, TeamModel
from btil.analysis import hamming_distance
from btil.domains import overcooked

TOLERANCE = 1.0
LATENTS, ACTIONS = 3, 4
# State variables of each member of a made team, of the team, and their numbers of values.
OWN = {"cell": 4, "load": 2}
COMMON = {"phase": 3}
NOISE = {"light": 3, "noise": 4}
TRUE = {
    "policy": ("{own}_cell", "phase"),
    "transition": ("phase", "{own}_load"),
}


class Case(NamedTuple):
    """A data set: what to learn from, what to test on, models to compare with."""

    name: str
    train: btil.Demonstrations
    test: btil.Demonstrations
    plain: TeamModel
    recommended: TeamModel | None


def made_team(
    seed: int, num_episodes: int, agents: tuple[str, ...] = ("ann", "bob", "cy"), steps: int = 30
) -> btil.Demonstrations:
    """Episodes of a made team whose parents are `TRUE`; everything labelled."""
    generator = np.random.default_rng(seed)

    def course(values: int) -> np.ndarray:
        drawn = generator.integers(values, size=(num_episodes, steps))
        change = generator.random((num_episodes, steps)) < 0.4
        change[:, 0] = True
        last = np.maximum.accumulate(np.where(change, np.arange(steps), 0), axis=1)
        return np.take_along_axis(drawn, last, axis=1)

    states = {name: course(values) for name, values in (COMMON | NOISE).items()}
    actions, latents = {}, {}
    for agent in agents:
        states |= {f"{agent}_{name}": course(values) for name, values in OWN.items()}
        policy = generator.dirichlet(np.full(ACTIONS, 0.4), (4, 3, LATENTS))
        move = 0.85 * np.eye(LATENTS) + 0.15 / LATENTS
        moves = np.broadcast_to(move, (3, 2, LATENTS, LATENTS)).copy()
        moves[:, 1] = generator.dirichlet(np.full(LATENTS, 0.3), (3, LATENTS))
        latent = generator.integers(LATENTS, size=num_episodes)
        taken, held = np.zeros((2, num_episodes, steps), int)
        for t in range(steps):
            held[:, t] = latent
            rows = policy[states[f"{agent}_cell"][:, t], states["phase"][:, t], latent]
            taken[:, t] = (rows.cumsum(1) < generator.random((num_episodes, 1))).sum(1)
            rows = moves[states["phase"][:, t], states[f"{agent}_load"][:, t], latent]
            latent = (rows.cumsum(1) < generator.random((num_episodes, 1))).sum(1)
        actions[agent], latents[agent] = taken.ravel(), held.ravel()
    return btil.Demonstrations(
        {name: values.ravel() for name, values in states.items()},
        actions,
        latents,
        episodes=np.repeat(np.arange(num_episodes), steps),
        num_actions=ACTIONS,
        num_latents=LATENTS,
    )


def labelled(demos: btil.Demonstrations, number: int, split: int = 0) -> btil.Demonstrations:
    """Only the labels of some episodes: the first ones, or others for another split."""
    order = np.arange(demos.num_episodes)
    if split:
        order = np.random.default_rng(split).permutation(demos.num_episodes)
    return demos.without_labels(np.sort(order[number:]))


def plain(model: TeamModel) -> TeamModel:
    """The same parents with the default's concentrations."""

    def parents(table: object) -> DirichletCPT:
        assert isinstance(table, Shared)
        return table.cpt

    return TeamModel(
        policy=Shared(DirichletCPT(1.2, parents(model.policy).parents)),
        transition=Shared(DirichletCPT(1.01, parents(model.transition).parents)),
    )


def cases(quick: bool, split: int = 0) -> Iterator[Case]:
    """The data sets, with a choice of the labelled episodes."""
    for layout in overcooked.LAYOUTS[: 1 if quick else None]:
        train = labelled(overcooked.load(layout, split="train"), 2, split)
        model = overcooked.recommended_model(layout)
        yield Case(layout, train, overcooked.load(layout, split="test"), plain(model), model)
    for name in ("movers", "cleanup"):
        task = getattr(btil.domains, name)()
        demos = task.add_derived_variables(task.simulate(70, seed=0))
        train = labelled(demos.select(range(50)), 10, split)
        model = task.recommended_model()
        yield Case(name, train, demos.select(range(50, 70)), plain(model), model)
        if quick:
            break
    demos = made_team(0, 70)
    by_agent = {
        role: {
            agent: tuple(name.replace("{own}", agent) for name in TRUE[role])
            for agent in demos.agents
        }
        for role in TRUE
    }
    true = TeamModel(
        policy=DirichletCPT(1.2, by_agent["policy"]),
        transition=DirichletCPT(1.01, by_agent["transition"]),
    )
    train = labelled(demos.select(range(50)), 10, split)
    yield Case("three people", train, demos.select(range(50, 70)), true, None)


def error(model: TeamModel | None, case: Case) -> float:
    """Mean decoding error of the members on the episodes held out."""
    if model is None:
        return float("nan")
    posterior = btil.fit(model, case.train, progress=False, tolerance=TOLERANCE)
    return float(hamming_distance(case.test, posterior).mean())


def recovered(number: int, seed: int) -> dict[str, float]:
    """Share of the members' tables with the true parents, by role."""
    demos = labelled(made_team(seed, number + 20), number)
    suggestion = btil.suggest_model(demos, progress=False)
    right: dict[str, list[bool]] = {role: [] for role in TRUE}
    for table in suggestion.tables:
        right[table.role] += [set(table.best.parents) == set(TRUE[table.role])] * len(table.agents)
    return {role: float(np.mean(values)) for role, values in right.items()}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="One kitchen, Movers, few draws.")
    parser.add_argument("--splits", type=int, default=1, help="Choices of labelled episodes.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", btil.DataWarning)
    print(conditions("numpyro"))
    print(
        f"{'data':24} default    plain    found  (range)        recommended  seconds  processor s"
    )
    every = [cases(arguments.quick, split) for split in range(arguments.splits)]
    for of_splits in zip(*every, strict=True):
        rows = []
        for case in of_splits:
            begun, used = time.perf_counter(), time.process_time()
            model = btil.suggest_model(case.train, progress=False).model
            seconds = time.perf_counter() - begun, time.process_time() - used
            models = (TeamModel(), case.plain, model, case.recommended)
            rows.append([*(error(one, case) for one in models), *seconds])
        middle, ours = np.median(rows, axis=0), np.array(rows)[:, 2]
        told = "".join(f"{value:9.3f}" for value in middle[:3])
        span = f"{ours.min():.3f} to {ours.max():.3f}"
        print(
            f"{of_splits[0].name:23}{told}  {span:15}{middle[3]:11.3f}{middle[4]:9.1f}"
            f"{middle[5]:13.1f}",
            flush=True,
        )
    draws = 3 if arguments.quick else 20
    print(f"\nmade teams of three, share of tables with the true parents in {draws} draws")
    print("labelled episodes    policies    transitions")
    for number in (5, 10, 20):
        found = [recovered(number, seed) for seed in range(draws)]
        shares = [np.mean([one[role] for one in found]) for role in TRUE]
        print(f"{number:17}{shares[0]:12.2f}{shares[1]:15.2f}", flush=True)


if __name__ == "__main__":
    main()
