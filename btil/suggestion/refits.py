"""Models by how well they decode when they learn from unlabelled episodes too."""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

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
) -> Float[np.ndarray, "models agents"]:
    """Decoding error of labelled episodes, by models fitted without the labels of their fold.

    The mean field is too sure of itself for log p(labels | actions) to be a fair judge. Labels are
    dropped, episodes are not: shapes stay, and a model is compiled once for all folds.

    Args:
        demos: The recording; at least two episodes have labels.
        models: The models.
        seed: Seeds the fits.
        progress: Whether to show a progress line.

    Returns:
        Of every agent the mean over its labelled episodes; NaN of an agent without labels.
    """
    labelled = np.logical_or.reduceat(demos.latents >= 0, demos.episode_starts)
    episodes = in_order(demos, np.flatnonzero(labelled.any(1)))
    folds = min(NUM_FOLDS, len(episodes))
    wrong = np.zeros((len(models), demos.num_agents))
    with progress_line(len(models) * folds, "suggest", progress) as line:
        for number, model in enumerate(models):
            for fold in range(folds):
                held = np.sort(episodes[fold::folds])
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
                wrong[number] += np.nan_to_num(errors) * labelled[held].sum(0)
                line.update()
    tested = labelled.sum(0)
    return np.where(tested > 0, wrong / np.maximum(tested, 1), np.nan)
