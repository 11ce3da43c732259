"""The methods of inference: what the rest of btil has to know of each.

To add one, write a module with a function

    fit(bound, *, seed, progress, dtype, checkpoint, <its options with defaults>) -> FitResult

and name it here: one line in `METHODS`, or from another package an entry point of the group
`btil.methods` whose object is a `Method`. Its options, their checks and their help are read off the
signature; `btil.fit`, `btil.compare`, calibration, reports and the shell know it then.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple

from btil.plugins import with_installed

ENTRY_POINTS = "btil.methods"


class Method(NamedTuple):
    """A method of inference.

    Attributes:
        module: Where its function `fit` is.
        words: What it is, in a line, for help texts.
        answer: What it gives: an "approximation" (a distribution of a chosen form; what it says of
            uncertainty is its own), "draws" that are independent, "chains" of draws from the
            posterior, or the "exact" posterior.
        bounds: Whether `elbo` is the log evidence or a bound of it.
        noisy: Whether that bound is an estimate.
        double: Whether it computes in float64 unless told otherwise.
        own_models: Whether it fits a `NumpyroModel`.
        preferred: What differences are measured against, the lowest first; None: never.
        free: Options that do not change the answer, so that a saved run may go on with others.
        reads_files: Whether it learns from a file batch by batch, by `batch_size`.
        channels: Whether it takes continuous columns (`TeamModel.emissions`).
    """

    module: str
    words: str
    answer: Literal["approximation", "draws", "chains", "exact"]
    bounds: bool = False
    noisy: bool = False
    double: bool = False
    own_models: bool = False
    preferred: int | None = None
    free: tuple[str, ...] = ()
    reads_files: bool = False
    channels: bool = False


METHODS: dict[str, Method] = {
    "mfvi": Method(
        "btil.inference.mfvi",
        "mean field, the paper's Algorithm 1",
        "approximation",
        bounds=True,
        free=("devices",),
        reads_files=True,
        channels=True,
    ),
    "svi": Method(
        "btil.inference.svi",
        "stochastic variational inference",
        "approximation",
        bounds=True,
        noisy=True,
        free=("devices",),
        own_models=True,
        channels=True,
    ),
    "nuts": Method(
        "btil.inference.nuts",
        "the no-U-turn sampler",
        "chains",
        double=True,
        own_models=True,
        preferred=1,
        channels=True,
    ),
    "gibbs": Method(
        "btil.inference.gibbs",
        "blocked Gibbs sampling",
        "chains",
        preferred=2,
        free=("devices",),
        channels=True,
    ),
    "refined": Method(
        "btil.inference.refinement",
        "mean field, then a few sweeps of Gibbs sampling on many draws",
        "draws",
        preferred=3,
        channels=True,
    ),
    "exact": Method(
        "btil.inference.exact",
        "sums over every latent sequence, of tiny data",
        "exact",
        bounds=True,
        double=True,
        preferred=0,
        channels=True,
    ),
}


def _known() -> dict[str, Method]:
    return with_installed(METHODS, ENTRY_POINTS)


def method_names() -> tuple[str, ...]:
    """All methods."""
    return tuple(_known())


def method_of(name: Any) -> Method:
    """What is known of a method.

    Raises:
        ValueError: If there is no such method.

    Example:
        >>> method_of("gibbs").answer
        'chains'
    """
    if not isinstance(name, str) or name not in method_names():
        raise ValueError(f"unknown method {name!r}; there are {', '.join(method_names())}")
    return _known()[name]


def fit_function(name: Any) -> Any:
    """The function `fit` of a method."""
    return import_module(method_of(name).module).fit


def methods_help() -> str:
    """All methods in a line, for help texts."""
    return "; ".join(f"{name}: {method_of(name).words}" for name in method_names()) + "."
