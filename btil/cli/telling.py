"""What commands print, and how failures are told."""

import contextlib
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from btil.posterior.beliefs import Posterior


def refuse_failure(name: str, posterior: "Posterior") -> None:
    """Raise `ArithmeticError` if a fit did not give numbers."""
    import numpy as np

    means = [rows.mean() for rows in posterior.result.rows.values()]
    if posterior.elbo is not None:
        means.append(np.asarray(posterior.elbo))
    if not all(np.isfinite(values).all() for values in means):
        raise ArithmeticError(f"the {name} fit failed: {posterior.reason}")


def warn_unless_converged(name: str, posterior: "Posterior") -> None:
    """One line on standard error where a fit did not converge."""
    if not posterior.converged:
        typer.echo(f"warning: {name} did not converge: {posterior.reason}", err=True)


def summary(posterior: "Posterior") -> str:
    """What was learned, in a few lines."""
    learned = posterior.bound.learned
    lines = [
        f"method     {posterior.method}, seed {posterior.seed}, {posterior.dtype.name}, "
        f"{posterior.wall_time:.1f} s",
        f"converged  {'yes' if posterior.converged else 'NO'}: {posterior.reason}",
    ]
    if posterior.elbo is not None:
        error = "" if not posterior.elbo_se else f" (standard error {posterior.elbo_se:.2g})"
        lines.append(f"bound      {posterior.elbo:.4f}{error}")
    chains = posterior.draws_info
    for name, table in learned.items():
        text = f"learned    {name}: {' x '.join(map(str, table.shape))} cells"
        one: dict[Any, Any] = {} if chains is None else chains.loc[name].to_dict()
        if chains is not None and math.isfinite(one["max_rhat"]):
            text += (
                f"; largest R-hat of a cell {one['max_rhat']:.3f}, {one['rows_above']:,} of "
                f"{one['rows']:,} rows with a cell at 1.05 or more, least ESS "
                f"{one['min_ess_bulk']:.0f}"
            )
            if "max_split_rhat" in chains:
                text += f", largest split R-hat of rows without draws {one['max_split_rhat']:.3f}"
        lines.append(text)
    if not posterior.bound.learns:
        lines.append("learned    nothing: every table is given")
    lines += [
        f"learned    {one.name}: {' x '.join(map(str, one.shape[:2]))} normals of "
        f"{', '.join(one.family.columns_of(one.agent))}"
        for one in posterior.bound.channels.values()
    ]
    return "\n".join(lines)


def quoted(word: Any) -> str:
    """A word as a shell takes it."""
    return shlex.quote(str(word))


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Work that can be taken up again says so when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(
            f"what is complete is kept in {folder}; the same command goes on from there"
        )
        raise
