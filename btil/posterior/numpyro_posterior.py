"""The posterior of a NumPyro model of the modeler's own.

Message passing is that of every other model: once the parameters are known, the function says the
rows of every step, and a "table" is then simply those, one row a step.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from btil.demonstrations import Demonstrations
from btil.inference.result import Chance, DrawnParameters
from btil.models.team import BoundModel, TeamModel, bind
from btil.numerics.precision import precision
from btil.numpyro_forms.numpyro_model import (
    BoundNumpyroModel,
    EpisodeData,
    NumpyroModel,
    PaddedRows,
    bind_numpyro_model,
    rows_given,
)
from btil.numpyro_forms.tracing import Program, Trace, trace
from btil.posterior.beliefs import Posterior
from btil.posterior.posterior import TeamPosterior

if TYPE_CHECKING:
    from btil.posterior.numpyro_tracker import NumpyroTracker

# Draws over which rows are averaged at most; of more, so many evenly spaced ones are taken.
_MOST_DRAWS = 500

Draws = Mapping[str, Float[Any, "draws ..."]]


@partial(jax.jit, static_argnames=("program", "num_draws"))
def _mean_rows(
    program: Program, constants: list[Any], data: EpisodeData, draws: Draws, num_draws: int
) -> dict[str, PaddedRows]:
    """Every agent's rows, and likelihoods of what was measured, averaged over draws."""

    def rows(draw: Any) -> dict[str, PaddedRows]:
        return program(constants, draw, data)

    def add(total: Any, draw: Any) -> tuple[Any, None]:
        new = rows(draw)
        summed = {agent: _sum(total[agent], new[agent]) for agent in new}
        return summed, None

    first, rest = (jax.tree.map(lambda x, at=at: x[at], draws) for at in (0, slice(1, None)))
    total, _ = jax.lax.scan(add, rows(first), rest, length=num_draws - 1)
    return {agent: _share(one, num_draws) for agent, one in total.items()}


def _sum(one: PaddedRows, other: PaddedRows) -> PaddedRows:
    """Probabilities and likelihoods of two draws, added."""
    policy, transition, initial = (a + b for a, b in zip(one[:3], other[:3], strict=True))
    logs = one.log_likelihood
    summed = logs if logs is None else jnp.logaddexp(logs, other.log_likelihood)
    return PaddedRows(policy, transition, initial, summed)


def _share(total: PaddedRows, number: int) -> PaddedRows:
    """A sum divided by the number of what was added."""
    policy, transition, initial = (values / number for values in total[:3])
    logs = total.log_likelihood
    return PaddedRows(
        policy, transition, initial, logs if logs is None else logs - math.log(number)
    )


class HasNoTables(ValueError, AttributeError):
    """A posterior without tables was asked for them."""


@dataclass(frozen=True, eq=False)
class NumpyroPosterior(Posterior):
    """What is believed of a team under a `NumpyroModel`.

    Beliefs about latents use the posterior mean of the rows of each step, averaged over draws of
    the parameters (500 at most), or are themselves averaged over draws (`num_draws`). There are no
    tables by context, and so no `policy`, `transition`, `initial` or `contexts`; draws of the
    parameters are in `sample` and `to_datatree`.

    Whatever else the function explains of a step (the `log_likelihood` of `EpisodeData.observe`)
    is looked at by `smooth`, `filter`, `decode`, `log_likelihood` (then a density of that too) and
    the tracker; by `predict_actions` at the steps before the one that is predicted.

    On episodes of the shapes that it was fitted to the function is taken as it was when the
    posterior was made. For others it is run again, as it is now; if it then computes other things
    than it did there is a warning.

    Attributes:
        rows: The function's rows under given parameters, as they were traced: (parameters, data)
            -> {agent: `PaddedRows`}.
    """

    bound: BoundNumpyroModel
    rows: Trace | None = None

    def __post_init__(self) -> None:
        if self.rows is None:
            object.__setattr__(self, "rows", self._trace_rows(self.bound.data))

    def __repr__(self) -> str:
        sites = ", ".join(
            f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in self.bound.parameters.items()
        )
        state = "converged" if self.converged else "not converged"
        name = self.bound.own_model.name
        return f"NumpyroPosterior({name}, {self.method}: {sites}; {state}: {self.reason})"

    def _trace_rows(self, data: EpisodeData) -> Trace:
        function = self.bound.own_model.function
        with precision(self.dtype) as dtype:
            shapes = {
                site: jax.ShapeDtypeStruct(shape, dtype)
                for site, shape in self.bound.parameters.items()
            }
            return trace(partial(rows_given, function), shapes, data, written=function)

    def traced_rows(self, data: EpisodeData) -> Trace:
        """The function's rows on some episodes, traced anew unless they have the shapes of ours."""
        assert self.rows is not None
        ours = self.bound.data
        if _shapes(data) == _shapes(ours):
            return self.rows
        if self._trace_rows(ours).identity != self.rows.identity:
            warnings.warn(
                f"{self.bound.own_model.name} computes something else than when this posterior was "
                "made: a global, or what it closes over, has changed. On other episodes the "
                "answer is that of the function as it is now; fit it again",
                stacklevel=2,
            )
        return self._trace_rows(data)

    def draws_of_parameters(
        self, estimate: str, num_draws: int | None, seed: int
    ) -> Iterator[Draws]:
        """Those over which rows are averaged, or `num_draws` times a single one."""
        if estimate != "mean":
            raise ValueError(f"a NumpyroModel has estimate 'mean' or num_draws, got {estimate!r}")
        if num_draws is not None:
            sampled = self.sample(num_draws, seed)
            for k in range(num_draws):
                yield {site: sampled[site][k : k + 1] for site in self.bound.parameters}
            return
        draws = {}
        for site in self.bound.parameters:
            given = self.result.parameters[site]
            assert isinstance(given, DrawnParameters)
            flat = given.draws.reshape(-1, *given.draws.shape[2:])
            chosen = np.linspace(0, len(flat) - 1, min(len(flat), _MOST_DRAWS)).round().astype(int)
            draws[site] = flat[chosen]
        yield draws

    def _tables(self, bound: BoundModel, estimate: str) -> dict[str, Any]:
        assert isinstance(bound, BoundNumpyroModel)
        (draws,) = self.draws_of_parameters(estimate, None, 0)
        return bound.step_rows(self.mean_rows(self.traced_rows(bound.data), bound.data, draws))

    def drawn_rows(self, bound: BoundModel, num_draws: int, seed: int) -> Iterator[dict[str, Any]]:
        """Posterior draws of rows; see `Posterior.drawn_rows`."""
        assert isinstance(bound, BoundNumpyroModel)
        rows = self.traced_rows(bound.data)
        for draws in self.draws_of_parameters("mean", num_draws, seed):
            yield bound.step_rows(self.mean_rows(rows, bound.data, draws))

    def mean_rows(self, rows: Trace, data: EpisodeData, draws: Draws) -> dict[str, PaddedRows]:
        """The agents' rows on some episodes, averaged over draws of the parameters."""
        number = len(next(iter(draws.values()))) if draws else 1
        with precision(self.dtype) as dtype:
            cast = {site: jnp.asarray(values, dtype) for site, values in draws.items()}
            return jax.device_get(_mean_rows(*rows, data, cast, number))

    def tracker(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> "NumpyroTracker":
        """Filtering as it happens: a `NumpyroTracker`, to be given each step of a live team.

        Args:
            estimate: "mean".
            num_draws: Average over so many posterior draws instead.
            seed: Seeds the draws.

        Raises:
            ValueError: If the function describes only the episodes it was fitted to.
        """
        from btil.posterior.numpyro_tracker import NumpyroTracker

        self.bound.refuse_tied()
        return NumpyroTracker(self, estimate, num_draws, seed)

    def _sample(self, num_draws: int, seed: int) -> dict[str, Float[np.ndarray, "draws ..."]]:
        chance = Chance(np.random.default_rng([seed, 0]))
        return {
            site: one.draw(num_draws, chance)
            for site, one in self.result.parameters.items()
            if isinstance(one, DrawnParameters)
        }

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(TeamPosterior, name):
            raise HasNoTables(
                f"{self.bound.own_model.name}: a NumpyroModel has no tables by context; ask its "
                "posterior to smooth, filter, predict_actions or decode episodes, or for draws of "
                "its parameters (sample, to_datatree)"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _shapes(data: EpisodeData) -> tuple[Any, list[tuple[int, ...]]]:
    """What a program depends on: sizes and shapes."""
    leaves, sizes = jax.tree.flatten(data)
    return sizes, [leaf.shape for leaf in leaves]


def bind_model(model: TeamModel, demos: Demonstrations) -> BoundModel:
    """A model of either sort on demonstrations."""
    if isinstance(model, NumpyroModel):
        return bind_numpyro_model(model, demos)
    return bind(model, demos)


def posterior_class(bound: BoundModel) -> type[Posterior]:
    """The kind of posterior that a model of either sort has."""
    return NumpyroPosterior if isinstance(bound, BoundNumpyroModel) else TeamPosterior
