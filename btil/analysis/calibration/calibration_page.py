"""A calibration as a folder: one page for a browser, its figures and its tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from btil.analysis.calibration.ranks import PROBABILITY
from btil.analysis.output import (
    html,
    html_list,
    html_page,
    html_paragraph,
    html_table,
    staged_page,
    written_figure,
)
from btil.analysis.report import prepare_directory

if TYPE_CHECKING:
    from btil.analysis.calibration.calibrating import Calibration


PAGE = "calibration.html"
_LIST = "calibration-files.txt"

_RANKS = (
    "Where truths lie among posterior draws: distribution functions less those of uniform ranks. "
    "Solid: one quantity of each simulation, which stays in the grey band if the posterior is "
    "right. Dotted: all quantities. Up on the left and down on the right: too narrow. Above zero "
    "throughout: the posterior's values are too high. Of latents, below zero is too sure."
)
_LATENTS = (
    "Are steps said to be 80% sure right 80% of the time? Below the diagonal is too sure. Bars are "
    "95% intervals; hollow marks are under the point estimate, filled ones averaged over draws. "
    "Underneath: how many steps are how sure."
)
_COLUMNS = """\
“Error / sd” is how large errors of the posterior mean are over how large the posterior says they
are: 1 if it is right, 2 if they are twice as large. “Spread” is that of the truths’ ranks over that
of uniform ones, from 0 to 3, above 1 where the posterior is too narrow. Then the share of truths
in central intervals. After ± stands a standard error. Of latents the quantity is whether the most
probable one is wrong. A verdict asks whether the solid line of the figure stays in its band, and
whether mean and spread of all ranks are right."""


def write_page(calibration: "Calibration", directory: Any, command: str | None = None) -> Path:
    """Write `calibration.html`, `figures/`, `table.csv`, `latents.csv` and `fits.csv` to a folder.

    Args:
        calibration: What to tell.
        directory: The folder; made if it is not there. Files of an earlier page are replaced.
        command: The shell command, to be told in the page.

    Returns:
        Path of the page.

    Raises:
        OSError: If the folder cannot be written to.
    """
    directory = prepare_directory(directory)
    with staged_page(directory, PAGE, _LIST) as staging:
        (staging / "figures").mkdir()
        header, rows = calibration.written_table(PROBABILITY)
        body = html_list(calibration.notes(), "notes")
        body += html_table(header, rows) + html_paragraph(_COLUMNS)
        # ECDFs of fewer than two simulations have no band.
        if calibration.num_simulations > 1:
            figure = calibration.plot_ecdf_pit()
            body += written_figure(figure, staging / "figures" / "ecdf", _RANKS)
        if calibration.averaged.steps.sum() > 0:
            figure = calibration.plot_latents()
            body += written_figure(figure, staging / "figures" / "latents", _LATENTS)
        if command is not None:
            body += html("again", command)
        calibration.table().to_csv(staging / "table.csv")
        calibration.latent_table().to_csv(staging / "latents.csv", index=False)
        calibration.fits.to_csv(staging / "fits.csv")
        title = f"Is the posterior of {calibration.method} right?"
        lead = (
            "Truths drawn from the prior, data made from them, posteriors fitted to the data: a "
            "right posterior gives every truth a uniform rank among its draws."
        )
        (staging / PAGE).write_text(html_page(title, lead, body), encoding="utf-8")
    return directory / PAGE
