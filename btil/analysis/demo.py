"""The main job on carried recordings of real people: learn, compare, report.

The data are the trials of one Overcooked kitchen, a quarter of the training trials labelled. What
each method is given is chosen here so that the whole takes a few minutes on two cores.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from btil.analysis.compare import Comparison, compare
from btil.analysis.output import output_console
from btil.analysis.report import prepare_directory
from btil.arguments import check_values
from btil.demonstrations import Demonstrations
from btil.domains.overcooked import load, recommended_model

LAYOUT = "cramped_room"
SEED = 0
SHARE_LABELLED = 0.25
METHODS = ("mfvi", "svi", "gibbs", "nuts")
# NUTS is the slow one. It gets what fits into two minutes on two cores, half a minute of which is
# compilation: one trial with labels and one without, short trajectories and few draws. The others
# learn from all trials.
NUTS_TRIALS = (1, 1)
OPTIONS: dict[str, dict[str, Any]] = {
    "mfvi": {},
    # Long steps in single precision can make its gradients overflow.
    "svi": {
        "max_iterations": 300,
        "num_particles": 2,
        "learning_rate": 0.03,
        "dtype": "float64",
    },
    "gibbs": {"num_chains": 4, "num_warmup": 250, "num_samples": 250},
    "nuts": {"num_chains": 2, "num_warmup": 60, "num_samples": 70, "max_tree_depth": 5},
}


def run_demo(
    out: str | PathLike[str] = "btil-demo",
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Path:
    """Run the demo and write its report.

    Args:
        out: Folder of the report; made, or its last report replaced.
        progress: Whether to show progress lines.
        say: Called with each line that tells what is done.

    Returns:
        Path of the report's page.

    Raises:
        OSError: If the folder cannot be written to; before anything is computed.

    Example:
        >>> page = run_demo("btil-demo")  # doctest: +SKIP
    """
    directory = prepare_directory(out)
    say(f"Two people cook onion soup in the kitchen {LAYOUT}: recordings of real play (Carroll et")
    say("al., 2019). What did each of them want to do next?")
    train, test = load(LAYOUT, "train"), load(LAYOUT, "test")
    labelled = choose_labelled(train.num_episodes, SHARE_LABELLED, SEED)
    unlabelled = np.setdiff1d(np.arange(train.num_episodes), labelled)
    demos = train.without_labels(unlabelled)
    say(f"  train: {_size(demos)}; labels of {_trials(demos, labelled)} are kept")
    say(f"  test:  {_size(test)}; their labels are only used to count errors")
    few = np.concatenate([labelled[: NUTS_TRIALS[0]], unlabelled[: NUTS_TRIALS[1]]])
    few_demos = demos.select(np.sort(few))
    for name in METHODS:
        data = few_demos if name == "nuts" else demos
        given = ", ".join(f"{option} {value}" for option, value in OPTIONS[name].items())
        say(f"  {name:5} learns from {data.num_episodes} trials: {given or 'default options'}")
    comparison = compare(
        recommended_model(LAYOUT),
        demos,
        methods=METHODS,
        test=test,
        seed=SEED,
        progress=progress,
        options=OPTIONS,
        demos_by_method={"nuts": few_demos},
    )
    page = comparison.report(directory, command="btil demo")
    print_table(comparison)
    return page


def choose_labelled(num_episodes: int, share: float, seed: int) -> Int[np.ndarray, " labelled"]:
    """A random share of the episodes, at least one, in ascending order.

    Raises:
        ValueError: If the share is not above 0 and at most 1.

    Example:
        >>> len(choose_labelled(8, 0.25, seed=0))
        2
    """
    check_values({"num_episodes": num_episodes, "share": share, "seed": seed})
    number = max(1, round(share * num_episodes))
    return np.sort(np.random.default_rng(seed).choice(num_episodes, number, replace=False))


def print_table(comparison: Comparison) -> None:
    """The table of a comparison, and what to be careful with, on standard output."""
    from rich.text import Text

    console = output_console()
    console.print()
    for sentence in comparison.verdict.sentences:
        console.print(Text(sentence))
    console.print()
    console.print(comparison.summary_table())
    for note in comparison.notes:
        console.print(Text(f"- {note}"))


def _size(demos: Demonstrations) -> str:
    return f"{demos.num_episodes} trials, {demos.num_steps:,} steps"


def _trials(demos: Demonstrations, chosen: Int[np.ndarray, " chosen"]) -> str:
    ids = ", ".join(map(str, demos.episode_ids[chosen].tolist()))
    return f"{'trial' if len(chosen) == 1 else 'trials'} {ids}"
