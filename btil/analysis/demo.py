"""The main job on carried recordings of real people: learn, compare, report.

The data are the first steps of the trials of one Overcooked kitchen, most of them labelled; the
model and its priors are such that every method converges on them in seconds (NUTS in less than a
minute), so that the page answers what it asks. docs/tutorials/comparison.md tells of a harder case.
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
from btil.domains.overcooked import ACTIONS, INTENTS, PLAYERS, load
from btil.models.cpt import DirichletCPT, Shared
from btil.models.team import TeamModel

LAYOUT = "cramped_room"
SEED = 0
SHARE_LABELLED = 0.75
NUM_STEPS = 100
"""Steps of every trial that are learned from: what NUTS can do in the time."""
METHODS = ("mfvi", "refined", "svi", "gibbs", "nuts")
OPTIONS: dict[str, dict[str, Any]] = {
    "gibbs": {"num_chains": 4, "num_warmup": 300, "num_samples": 700},
    "nuts": {"num_chains": 2, "num_warmup": 100, "num_samples": 300},
}


def demo_model() -> TeamModel:
    """Where each player stands and looks, or what an interaction would do, and what he holds.

    The players share all tables. Intents keep while the own holding keeps.
    """
    policy = np.where(np.array(ACTIONS) == "interact", 0.2, 1.0)
    same_holding = np.eye(4, dtype=bool)[:, :, None, None]
    same_intent = np.eye(len(INTENTS), dtype=bool)
    transition = np.where(same_holding, np.where(same_intent, 20.0, 0.1), 0.5)
    held = {p: (f"{p}_held", f"next_{p}_held") for p in PLAYERS}
    situation = {p: (f"{p}_situation",) for p in PLAYERS}
    return TeamModel(
        policy=Shared(DirichletCPT(policy, parents=situation)),
        transition=Shared(DirichletCPT(transition, parents=held)),
        initial=Shared(DirichletCPT(1.0)),
    )


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
    check_values({"progress": progress})
    directory = prepare_directory(out)
    say(f"Two people cook onion soup in the kitchen {LAYOUT}: recordings of real play (Carroll et")
    say("al., 2019). What did each of them want to do next?")
    train, test = load(LAYOUT, "train"), load(LAYOUT, "test")
    labelled = choose_labelled(train.num_episodes, SHARE_LABELLED, SEED)
    unlabelled = np.setdiff1d(np.arange(train.num_episodes), labelled)
    demos = first_steps(train, NUM_STEPS).without_labels(unlabelled)
    say(f"  train: {_size(demos)}, the first {NUM_STEPS} of each;")
    say(f"         labels of {_trials(demos, labelled)} are kept")
    say(f"  test:  {_size(test)}; their labels are only used to count errors")
    for name in METHODS:
        given = ", ".join(f"{option} {value}" for option, value in OPTIONS.get(name, {}).items())
        say(f"  {name:7} {given or 'default options'}")
    comparison = compare(
        demo_model(),
        demos,
        methods=METHODS,
        test=test,
        seed=SEED,
        progress=progress,
        options=OPTIONS,
    )
    page = comparison.report(directory, command="btil demo")
    print_table(comparison)
    return page


def first_steps(demos: Demonstrations, number: int) -> Demonstrations:
    """The first steps of every episode.

    Args:
        demos: Demonstrations without continuous columns whose members are all there.
        number: How many steps of each.

    Example:
        >>> first_steps(Demonstrations([0, 1, 1], [0, 0, 1], num_latents=2), 2).num_steps
        2
    """
    rows = np.flatnonzero(demos.step_in_episode < number)
    return demos.replace(
        states={name: values[rows] for name, values in demos.state_variables.items()},
        actions=dict(zip(demos.agents, demos.actions[rows].T, strict=True)),
        latents=demos.latents[rows],
        episodes=demos.episodes[rows],
        present=None,
    )


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


def print_table(comparison: Comparison, every_row: bool = False) -> None:
    """The table of a comparison, and what to be careful with, on standard output."""
    from rich.text import Text

    console = output_console()
    console.print()
    for sentence in comparison.verdict.sentences:
        console.print(Text(sentence))
    console.print()
    console.print(comparison.summary_table(every_row))
    for note in comparison.notes:
        console.print(Text(f"- {note}"))


def _size(demos: Demonstrations) -> str:
    return f"{demos.num_episodes} trials, {demos.num_steps:,} steps"


def _trials(demos: Demonstrations, chosen: Int[np.ndarray, " chosen"]) -> str:
    ids = ", ".join(map(str, demos.episode_ids[chosen].tolist()))
    return f"{'trial' if len(chosen) == 1 else 'trials'} {ids}"
