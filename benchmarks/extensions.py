"""Do families beyond the plain Dirichlet pay? Held-out answers on two kinds of data.

`python benchmarks/extensions.py overcooked` fits each model by mean field to the human training
trials of every kitchen, one in ten of them labelled and the rest not, and decodes the test trials.
`python benchmarks/extensions.py movers` learns from 20 simulated episodes of Movers, and is tested
on 100 others. Both print the tables of docs/tutorials/extending.md.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float

import btil
from btil import (
    CPT,
    DirichletCPT,
    GoalConditionedCPT,
    HierarchicalDirichletCPT,
    Shared,
    StickyDirichletCPT,
    TeamModel,
)
from btil.analysis import hamming_distance
from btil.domains.gridworld.task import GridTask
from btil.domains.overcooked import LAYOUTS, load, recommended_model

SHARE_LABELLED = 0.1
TOLERANCE = 1.0
"""Change of the bound per sweep that ends a fit: of bounds near -20,000, enough for decoding."""


def kitchen_models(layout: str) -> dict[str, TeamModel]:
    """One family changed at a time; parents are those of the recommended model.

    That model itself, with priors made for this data, and with a policy that has none of it.
    """
    recommended = recommended_model(layout)
    situation, move = recommended.policy.cpt.parents, recommended.transition.cpt.parents

    def team(policy: CPT, transition: CPT) -> TeamModel:
        return TeamModel(Shared(policy), Shared(transition), Shared(DirichletCPT(1.0)))

    plain, moves = DirichletCPT(1.0, situation), DirichletCPT(1.0, move)
    alike = HierarchicalDirichletCPT(None, parents=situation)
    alike_moves = HierarchicalDirichletCPT(None, parents=move)
    return {
        "plain": team(plain, moves),
        "sticky transition, 5": team(plain, StickyDirichletCPT(1.0, 5.0, move)),
        "sticky transition, 50": team(plain, StickyDirichletCPT(1.0, 50.0, move)),
        "hierarchical policy": team(alike, moves),
        "hierarchical transition": team(plain, alike_moves),
        "hierarchical both": team(alike, alike_moves),
        "recommended": recommended,
        "recommended, hierarchical policy": replace(recommended, policy=Shared(alike)),
    }


def held_out(posterior: btil.TeamPosterior, test: btil.Demonstrations) -> tuple[float, float]:
    """Decoding error, mean of the agents, and log likelihood of the actions per step."""
    error = hamming_distance(test, posterior).mean()
    per_step = posterior.log_likelihood(test.without_labels()).sum() / test.num_steps
    return float(error), float(per_step)


def kitchen_rows(layouts: tuple[str, ...], num_choices: int) -> Iterator[tuple[str, str, list]]:
    """Per kitchen and model: errors and log likelihoods of every choice of labelled trials."""
    for layout in layouts:
        train, test = load(layout, "train"), load(layout, "test")
        size = round(SHARE_LABELLED * train.num_episodes)
        starts = np.arange(num_choices) * train.num_episodes // num_choices
        for name, model in kitchen_models(layout).items():
            results = []
            for start in starts:
                labelled = np.arange(start, start + size) % train.num_episodes
                others = np.setdiff1d(np.arange(train.num_episodes), labelled)
                begun = time.perf_counter()
                posterior = btil.fit(
                    model, train.without_labels(others), progress=False, tolerance=TOLERANCE
                )
                results.append((*held_out(posterior, test), time.perf_counter() - begun))
            yield layout, name, results


def movers_models(task: GridTask) -> dict[str, TeamModel]:
    """The policy as a table of states, of what matters in them, and as a planner's values.

    How minds move is learned alike in all three, from what matters.
    """
    recommended = task.recommended_model()
    variables = tuple(task.state_sizes)
    planned: Mapping[str, CPT] = {
        agent: GoalConditionedCPT(planner_values(task, agent), variables) for agent in task.agents
    }
    return {
        "table by state": replace(recommended, policy=DirichletCPT(1.2, variables)),
        "recommended table": recommended,
        "goal-conditioned": replace(recommended, policy=planned),
    }


def planner_values(
    task: GridTask, agent: str
) -> Callable[[Mapping[str, np.ndarray]], Float[np.ndarray, "contexts latents actions"]]:
    """Log policies at temperature 1, which are values: looked up by the task's variables."""
    with np.errstate(divide="ignore"):  # What a planner never does it forbids.
        values = np.log(task.policies()[agent])

    def look_up(contexts: Mapping[str, np.ndarray]) -> Float[np.ndarray, "k latents actions"]:
        return values[task.encode(np.stack([contexts[name] for name in task.state_sizes], axis=1))]

    return look_up


def movers_rows(num_trials: int) -> Iterator[tuple[str, str, list]]:
    """Per number of labelled episodes and model, a result for each trial."""
    task = btil.domains.movers()
    models = movers_models(task)
    for num_labelled in (20, 5, 0):
        for name, model in models.items():
            results = []
            for trial in range(num_trials):
                demos = task.add_derived_variables(task.simulate(120, seed=trial))
                train, test = demos.select(range(20)), demos.select(range(20, 120))
                begun = time.perf_counter()
                posterior = btil.fit(
                    model, train.without_labels(range(num_labelled, 20)), progress=False
                )
                results.append((*held_out(posterior, test), time.perf_counter() - begun))
            yield f"{num_labelled} of 20", name, results


def print_table(first: str, rows: Iterator[tuple[str, str, list]]) -> None:
    """A Markdown table, each line as soon as it is known; mean ± standard error."""
    print(f"| {first} | model | decoding error | log likelihood a step | seconds |")
    print("|---|---|---:|---:|---:|")
    for setting, name, results in rows:
        values = np.array(results)
        errors = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else [np.nan] * 3
        error, likelihood, seconds = values.mean(0)
        print(
            f"| {setting} | {name} | {error:.3f} ± {errors[0]:.3f} | "
            f"{likelihood:.3f} ± {errors[1]:.3f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("overcooked", "movers"))
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, choices=LAYOUTS)
    parser.add_argument("--repetitions", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.data == "overcooked":
        rows = kitchen_rows(tuple(arguments.layouts), arguments.repetitions)
        print_table("kitchen", rows)
    else:
        print_table("labelled", movers_rows(arguments.repetitions))


if __name__ == "__main__":
    main()
