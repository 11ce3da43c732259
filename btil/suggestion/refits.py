"""Models by how well they decode when they learn from unlabelled episodes too."""

import warnings
from collections.abc import Sequence

import numpy as np

from btil.analysis.metrics import hamming_distance
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import DataWarning
from btil.models.team import TeamModel
from btil.posterior.fit import fit
from btil.progress import progress_line
from btil.suggestion.held_out import in_order

NUM_FOLDS = 3
# Of fits: change of the bound per sweep that is small enough for decoding, and most sweeps.
_TOLERANCE = 1.0
_MOST_SWEEPS = 200


def by_mean_field(
    demos: Demonstrations, models: Sequence[TeamModel], seed: int, progress: bool
) -> list[float]:
    """Decoding error of labelled episodes, by models fitted without the labels of their fold.

    The mean field is too sure of itself for log p(labels | actions) to be a fair judge. Labels are
    dropped, episodes are not: shapes stay, and a model is compiled once for all folds.

    Args:
        demos: The recording.
        models: The models; of one alone nothing is asked.
        seed: Seeds the fits.
        progress: Whether to show a progress line.
    """
    if len(models) < 2:
        return [0.0] * len(models)
    labelled = np.logical_or.reduceat((demos.latents >= 0).any(1), demos.episode_starts)
    episodes = in_order(demos, np.flatnonzero(labelled))
    found = [0.0] * len(models)
    with progress_line(len(models) * NUM_FOLDS, "suggest", progress) as line:
        for number, model in enumerate(models):
            for fold in range(NUM_FOLDS):
                held = np.sort(episodes[fold::NUM_FOLDS])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DataWarning)
                    posterior = fit(
                        model,
                        demos.without_labels(held),
                        seed=seed,
                        progress=False,
                        tolerance=_TOLERANCE,
                        max_iterations=_MOST_SWEEPS,
                    )
                errors = hamming_distance(demos.select(held), posterior)
                found[number] += float(np.nanmean(errors)) * len(held) / len(episodes)
                line.update()
    return found
