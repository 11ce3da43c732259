"""How well intents of held-out Overcooked trials are decoded, by share of labelled trials.

`python benchmarks/overcooked_decoding.py` fits the recommended model of every kitchen by mean
field to the training trials, some labelled and the rest not, decodes the test trials and prints
the table of docs/explanation/overcooked.md. `--cross-validate` leaves the test trials alone and
prints the table by which the model was chosen: one training quarter labelled, one held out.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.optimize import linear_sum_assignment

import btil
from btil import DirichletCPT, Shared, TeamModel
from btil.analysis import confusion_matrix, hamming_distance, majority_class_error
from btil.domains.overcooked import LAYOUTS, PLAYERS, load, recommended_model

RESTARTS = 5
TOLERANCE = 1.0
"""Change of the bound per sweep that ends a fit: of bounds near -20,000, enough for decoding."""


def fit(
    model: TeamModel, demos: btil.Demonstrations, labelled: np.ndarray, num_restarts: int = 1
) -> btil.TeamPosterior:
    """Fits the model with the labels of some episodes only."""
    unlabelled = np.setdiff1d(np.arange(demos.num_episodes), labelled)
    return btil.fit(
        model,
        demos.without_labels(unlabelled),
        progress=False,
        tolerance=TOLERANCE,
        num_restarts=num_restarts,
    )


def error(demos: btil.Demonstrations, decoded: Any) -> float:
    """Hamming distance of a path, or of what a posterior decodes; mean of both players."""
    return float(hamming_distance(demos, decoded).mean())


def renaming(
    demos: btil.Demonstrations, path: Int[np.ndarray, "steps agents"]
) -> Int[np.ndarray, " latents"]:
    """The label that each decoded latent agrees with best, one to one (Hungarian method).

    One renaming for both players, whose tables are shared.
    """
    counts = sum(confusion_matrix(demos, path, agent) for agent in demos.agents)
    labels, latents = linear_sum_assignment(counts, maximize=True)
    names = np.empty(len(labels), np.int64)
    names[latents] = labels
    return names


def consecutive(num_episodes: int, size: int) -> list[np.ndarray]:
    """Four choices of `size` consecutive episodes, one from the start of each quarter."""
    starts = np.arange(4) * num_episodes // 4
    return [np.arange(start, start + size) % num_episodes for start in starts]


def test_row(layout: str) -> list[str]:
    """One row of the table."""
    train, test = load(layout, "train"), load(layout, "test")
    model, episodes = recommended_model(layout), train.num_episodes
    row = [layout, f"{majority_class_error(train, test).mean():.3f}"]
    row += [f"{error(test, fit(model, train, np.arange(episodes))):.3f}"]
    for share in (4, 10):
        errors = [
            error(test, fit(model, train, labelled))
            for labelled in consecutive(episodes, round(episodes / share))
        ]
        row += [f"{errors[0]:.3f}", f"{np.mean(errors):.3f}", f"{max(errors):.3f}"]
    posterior = fit(model, train, np.arange(0), RESTARTS)
    names = renaming(train, posterior.decode(train))
    return [*row, f"{error(test, names[posterior.decode(test)]):.3f}"]


def candidates() -> dict[str, TeamModel]:
    """What was tried, each with one change more than the one before."""
    recommended = recommended_model(LAYOUTS[0])
    place = {p: (f"{p}_position", f"{p}_heading", f"{p}_held") for p in PLAYERS}
    with_affordance = {p: (*names, f"{p}_affordance") for p, names in place.items()}
    situation = recommended.policy.cpt.parents
    move = recommended.transition.cpt.parents
    plain_move = DirichletCPT(0.1, parents=move)
    start = DirichletCPT(1.0)

    def shared(policy: DirichletCPT, transition: DirichletCPT) -> TeamModel:
        return TeamModel(Shared(policy), Shared(transition), Shared(start))

    return {
        "place; own tables": TeamModel(DirichletCPT(0.5, parents=place), plain_move, start),
        "shared tables": shared(DirichletCPT(0.5, parents=place), plain_move),
        "intents keep": shared(DirichletCPT(0.5, parents=place), recommended.transition.cpt),
        "and affordance": shared(
            DirichletCPT(0.5, parents=with_affordance), recommended.transition.cpt
        ),
        "situation": shared(DirichletCPT(1.0, parents=situation), recommended.transition.cpt),
        "recommended": recommended,
    }


def validation_row(layout: str) -> list[str]:
    """Mean and worst error of four folds within the training trials, per candidate."""
    train = load(layout, "train")
    quarters = np.array_split(np.arange(train.num_episodes), 4)
    row = [layout]
    for model in candidates().values():
        errors = []
        for k, held_out in enumerate(quarters):
            # The quarter after the one held out is labelled.
            rest = np.concatenate([quarters[(k + j) % 4] for j in (1, 2, 3)])
            labelled = np.flatnonzero(np.isin(np.sort(rest), quarters[(k + 1) % 4]))
            posterior = fit(model, train.select(np.sort(rest)), labelled)
            kept = train.select(held_out)
            errors.append(error(kept, posterior))
        row.append(f"{np.mean(errors):.3f} ({max(errors):.3f})")
    return row


def print_table(header: list[str], row_of: Callable[[str], list[str]]) -> None:
    """Prints a Markdown table, a row as soon as it is there."""
    begun = time.perf_counter()
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for layout in LAYOUTS:
        print("| " + " | ".join(row_of(layout)) + " |", flush=True)
    print(f"\n{time.perf_counter() - begun:.0f} s")


def main() -> None:
    """Prints the table that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cross-validate", action="store_true", help="compare models within the training trials"
    )
    if parser.parse_args().cross_validate:
        print_table(["kitchen", *candidates()], validation_row)
        return
    quarter, tenth = ([f"{share}, first", "mean of 4", "worst of 4"] for share in ("25%", "10%"))
    print_table(["kitchen", "majority", "100%", *quarter, *tenth, "0%"], test_row)


if __name__ == "__main__":
    main()
