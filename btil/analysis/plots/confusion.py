"""Decoded latents against true ones."""

from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.metrics import confusion_matrix, decoded_latents
from btil.analysis.plots.layout import make_axes
from btil.demonstrations import Demonstrations
from btil.figures import figure_style

if TYPE_CHECKING:
    import matplotlib.figure


def plot_confusion(
    demos: Demonstrations, decoded: Any, agent: str, ax: Any = None
) -> "matplotlib.figure.Figure":
    """Which latents are taken for which: the confusion matrix of decoded against true latents.

    Colours are shares of a row, i.e. of the steps with that label; the numbers are counts.

    Args:
        demos: Demonstrations with labels, the truth.
        decoded: A posterior, which decodes `demos` without a look at the labels; or whole numbers
            (steps, agents), e.g. `posterior.decode(demos)`.
        agent: Name of the agent.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: As `confusion_matrix`.
    """
    demos, decoded = decoded_latents(demos, decoded)
    counts = confusion_matrix(demos, decoded, agent)
    names = demos.value_names(f"latent_{agent}")
    totals = counts.sum(1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    with figure_style():
        side = max(2.4, 0.62 * len(names))
        figure, (axes,) = make_axes(ax, 1, 1, (side + 2.4, side + 1.1))
        image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
        for row, column in np.ndindex(*counts.shape):
            bright = shares[row, column] > 0.55
            axes.text(
                column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=8,
                color="black" if bright or not totals[row] else "white",
            )  # fmt: skip
        longest = max(map(len, names))
        axes.set_xticks(range(len(names)), names, rotation=40 if longest > 3 else 0,
                        ha="right" if longest > 3 else "center",
                        rotation_mode="anchor")  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        correct = f"{np.trace(counts) / counts.sum():.1%} correct" if counts.any() else "no labels"
        axes.set(
            xlabel="decoded",
            ylabel="true label",
            title=f"{agent}: {counts.sum():,} labelled steps, {correct}",
        )
        figure.colorbar(image, ax=axes, label="share of the true label's steps", shrink=0.8)
    return figure
