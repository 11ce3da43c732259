"""Continuous columns made state variables: cut at edges that the names of the values tell."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from btil.demonstrations.coding import listed
from btil.demonstrations.data import Demonstrations

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_BELOW = re.compile(rf"below ({_NUMBER})", re.IGNORECASE)
_FROM = re.compile(rf"({_NUMBER}) to ({_NUMBER})|({_NUMBER}) and above", re.IGNORECASE)


def bin(  # what it does, as users of pandas and NumPy know it
    demos: Demonstrations,
    column: str,
    edges: Any = None,
    quantiles: Any = None,
    like: Demonstrations | None = None,
    name: str | None = None,
) -> Demonstrations:
    r"""Cut a continuous column into a state variable, a parent that tables can have.

    Bin k holds :math:`e_k \le y < e_{k+1}`; the first and the last have no other end. The names of
    the bins tell the edges ("below 0.5", "0.5 to 2.0", "2.0 and above"), to all digits, so that
    they travel with files, models and posteriors; other recordings are cut alike with `like`.

    Args:
        demos: Demonstrations with the column; it stays.
        column: The continuous column.
        edges: Increasing numbers; there is one bin more than edges.
        quantiles: Or a number of bins that hold equally many of the values seen; or the
            probabilities of the edges, between 0 and 1.
        like: Or demonstrations that have the state variable already.
        name: What the state variable is called; None: "<column>_bin".

    Returns:
        The demonstrations with one state variable more. Where the column is blank nobody saw the
        state: -1, which `missing="allow"` has to allow.

    Raises:
        ValueError: If there is no such column, the edges are none, not exactly one of edges,
            quantiles and like is given, or a value is blank and may not be.

    Example:
        >>> demos = Demonstrations(
        ...     {}, [0, 1, 0], num_latents=2, continuous={"gap": [0.1, 0.7, 3.0]}
        ... )
        >>> near = bin(demos, "gap", edges=[0.5, 2])
        >>> near.state_variables["gap_bin"].tolist(), near.state_names["gap_bin"][0]
        ([0, 1, 2], 'below 0.5')
    """
    name = f"{column}_bin" if name is None else name
    values = demos.continuous.get(column)
    if values is None:
        raise ValueError(
            f"bin: there is no continuous column {column!r}; there are "
            f"{listed(tuple(demos.continuous)) or 'none'}"
        )
    if name in demos.state_variables:
        raise ValueError(f"bin: {name!r} is a state variable already; give another name=...")
    if "state" in demos.state_variables:
        raise ValueError(
            "bin: the state variable 'state' cannot be used together with others, as it "
            "means all of them; "
            "give it a name of its own: states={name: ...}"
        )
    given = [argument for argument in (edges, quantiles, like) if argument is not None]
    if len(given) != 1:
        raise ValueError("bin: give exactly one of edges, quantiles and like")
    if like is not None:
        cuts = bin_edges(like, name)
    elif edges is not None:
        cuts = _as_edges(edges)
    else:
        cuts = _at_quantiles(values, quantiles, column)
    blank = np.isnan(values)
    if blank.any() and demos.missing != "allow":
        row = int(np.argmax(blank))
        episode = int(np.searchsorted(demos.episode_starts, row, side="right")) - 1
        raise ValueError(
            f"bin: {column} is blank at episode {demos.episode_ids[episode]}, step "
            f"{row - int(demos.episode_starts[episode])}; a state that nobody saw needs "
            "missing='allow' of Demonstrations and the readers"
        )
    codes = np.where(blank, -1, np.searchsorted(cuts, values, side="right"))
    names = {**dict(demos.state_names), name: _bin_names(cuts)}
    return demos.replace(
        states={**demos.state_variables, name: codes},
        num_states={**demos.num_states, name: len(cuts) + 1},
        state_names=names,
    )


def bin_edges(demos: Demonstrations, variable: str) -> Float[np.ndarray, " edges"]:
    """The edges of a state variable that `bin` made, read off the names of its values.

    Args:
        demos: Demonstrations that have it.
        variable: The state variable.

    Raises:
        ValueError: If there is no such state variable, or `bin` did not make it.

    Example:
        >>> demos = Demonstrations({}, [0, 1], num_latents=2, continuous={"gap": [0.1, 0.7]})
        >>> bin_edges(bin(demos, "gap", edges=[0.5]), "gap_bin").tolist()
        [0.5]
    """
    names: Mapping[str, Sequence[str]] = demos.state_names
    if variable not in names:
        raise ValueError(
            f"bin: there is no state variable {variable!r} with names; there are "
            f"{listed(tuple(names)) or 'none'}"
        )
    first, *others = names[variable]
    below = _BELOW.fullmatch(first)
    found = [_FROM.fullmatch(text) for text in others]
    if below is None or not others or not all(found):
        raise ValueError(
            f"bin: {variable} has values {listed(names[variable])}, which are not bins"
        )
    return np.array([float(one.group(1) or one.group(3)) for one in found if one is not None])


def _bin_names(cuts: Float[np.ndarray, " edges"]) -> list[str]:
    texts = [repr(float(cut)) for cut in cuts]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
    return [f"below {texts[0]}", *between, f"{texts[-1]} and above"]


def _as_edges(edges: Any) -> Float[np.ndarray, " edges"]:
    try:
        cuts = np.atleast_1d(np.array(edges, np.float64))
    except (TypeError, ValueError):
        cuts = np.array([np.nan])
    if cuts.ndim != 1 or not len(cuts) or not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
        raise ValueError(f"bin: edges are {edges!r}; allowed are finite numbers that increase")
    return cuts


def _at_quantiles(
    values: Float[np.ndarray, " steps"], quantiles: Any, column: str
) -> Float[np.ndarray, " edges"]:
    whole = isinstance(quantiles, int | np.integer) and not isinstance(quantiles, bool)
    if whole and quantiles >= 2:
        at = np.arange(1, quantiles) / quantiles
    else:
        try:
            at = np.array([] if whole or isinstance(quantiles, bool) else quantiles, np.float64)
        except (TypeError, ValueError):
            at = np.array([])
    inside = at.ndim == 1 and len(at) > 0 and bool(((at > 0) & (at < 1)).all())
    if not inside or (np.diff(at) <= 0).any():
        raise ValueError(
            f"bin: quantiles are {quantiles!r}; allowed are a number of bins, 2 or more, or "
            "probabilities between 0 and 1 that increase"
        )
    seen = values[np.isfinite(values)]
    if not len(seen):
        raise ValueError(f"bin: no value of {column} was seen, so give edges")
    cuts = np.quantile(seen, at)
    if (np.diff(cuts) <= 0).any():
        raise ValueError(
            f"bin: {column} has too few different values for these quantiles: {cuts.tolist()} do "
            "not increase; give fewer, or edges"
        )
    return cuts
