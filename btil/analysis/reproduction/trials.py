"""Running trials: each is saved as it ends, and what is there already is not run again."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btil.analysis.reproduction.experiments import SLOW_LEARNERS, Experiment, Outcome, Score
from btil.analysis.reproduction.records import read_record, write_record
from btil.analysis.reproduction.workspace import Workspace
from btil.progress import progress_line

_KIND = "trial"


class Trial(NamedTuple):
    """A finished trial.

    Attributes:
        experiment: What was run.
        number: Its number, from 1.
        seed: Of all that was drawn in it.
        outcome: What came out.
        seconds: How long it took, compilation and decoding included.
    """

    experiment: Experiment
    number: int
    seed: int
    outcome: Outcome
    seconds: float


def run_trials(
    experiments: Sequence[Experiment],
    num_trials: int,
    workspace: Workspace,
    progress: bool = True,
) -> list[Trial]:
    """Run the trials of experiments, but for those that lie in the folder already.

    All files that are there are looked at before anything is run. The learners that take minutes
    come last.

    Args:
        experiments: What to run; one that is given twice is run once.
        num_trials: Trials of each.
        workspace: Tasks, data, and the folder, in whose folder `trials` the results are saved.
        progress: Whether to show a progress line.

    Returns:
        The trials, in the order of the experiments.

    Raises:
        ValueError: If a file of a trial or of data is damaged, not ours, or was made with other
            settings; before anything is run.
    """
    # Now, not when the first trial is to be saved.
    (workspace.folder / "trials").mkdir(exist_ok=True)
    jobs = [(e, n) for e in dict.fromkeys(experiments) for n in range(1, num_trials + 1)]
    for experiment in dict.fromkeys(experiments):
        workspace.check_kept(experiment.domain)
    done = {
        job: load_trial(*job, workspace) for job in jobs if trial_path(*job, workspace).exists()
    }
    missing = sorted(
        (job for job in jobs if job not in done), key=lambda job: job[0].method in SLOW_LEARNERS
    )
    with progress_line(len(missing), "trials", progress and bool(missing)) as line:
        for experiment, number in missing:
            line.set_postfix_str(f"{experiment.name}, trial {number}")
            done[experiment, number] = _run(experiment, number, workspace, progress)
            line.update(1)
    return [done[job] for job in jobs]


def _run(experiment: Experiment, number: int, workspace: Workspace, progress: bool) -> Trial:
    # Made or read here, so that the time of the first trial is its own.
    settings = trial_settings(experiment, number, workspace)
    seed = trial_seed(workspace.seed, number)
    begun = time.perf_counter()
    outcome = experiment.run(workspace, number, seed, progress)
    trial = Trial(experiment, number, seed, outcome, time.perf_counter() - begun)
    path = trial_path(experiment, number, workspace)
    contents = {**outcome._asdict(), "seconds": round(trial.seconds, 3)}
    contents["scores"] = [score._asdict() for score in outcome.scores]
    write_record(path, _KIND, settings, contents)
    return load_trial(experiment, number, workspace)


def load_trial(experiment: Experiment, number: int, workspace: Workspace) -> Trial:
    """A trial that was saved.

    Raises:
        ValueError: If its file is damaged, not ours, or was made with other settings.
    """
    path = trial_path(experiment, number, workspace)
    contents = read_record(path, _KIND, trial_settings(experiment, number, workspace))
    outcome = Outcome(
        tuple(Score(**score) for score in contents["scores"]),
        contents["converged"],
        contents["reason"],
        contents["learning_curve"],
    )
    seed = trial_seed(workspace.seed, number)
    return Trial(experiment, number, seed, outcome, contents["seconds"])


def trial_path(experiment: Experiment, number: int, workspace: Workspace) -> Path:
    """Where a trial is saved."""
    return workspace.folder / "trials" / f"{experiment.name}-trial-{number}.json"


def trial_settings(experiment: Experiment, number: int, workspace: Workspace) -> dict[str, Any]:
    """All that a trial's result depends on."""
    from btil import __version__

    return {
        "btil": __version__,
        "experiment": experiment.settings(workspace),
        "seed": workspace.seed,
        "trial": number,
        "trial_seed": trial_seed(workspace.seed, number),
    }


def trial_seed(seed: int, number: int) -> int:
    """The seed of a trial: the same for all experiments, so that they are compared in pairs.

    Example:
        >>> trial_seed(0, 1) != trial_seed(0, 2)
        True
    """
    # 31 bits, which every generator takes.
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
