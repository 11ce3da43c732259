r"""A mean field, made honest by a few sweeps of Gibbs sampling on many draws at once.

The mean field's q(rows) q(latents) leaves out how rows and latents depend on each other, so its
intervals are too narrow and its means a little off. A sweep of blocked Gibbs sampling
(`inference/gibbs.py`) leaves the posterior as it is and takes any other distribution towards it;
near q it contracts as fast as coordinate ascent does, by the contraction rate :math:`\rho`: after
K sweeps a share of about :math:`\rho^K` of the error is left. So every draw is a chain of its own
that begins with latent paths from q(latents), and is followed for K sweeps.

Chains begin in the mode that the mean field has found and stay there, unless sweeps cross between
modes: what is refined is that mode. Whether K was enough is looked at, not assumed: the draws after
K / 2 sweeps and after K must have the same means and spread.

References:
    Giordano, Broderick, Jordan (2018), Covariances, robustness, and variational Bayes (what the
    mean field leaves out, to first order); Hoffman, Sountsov (2022), Tuning-free generalized
    Hamiltonian Monte Carlo (many short chains side by side).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from btil.arguments import check_count
from btil.inference import gibbs, mfvi
from btil.inference.channels import LaidChannel, laid_channels, log_jacobian
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.parameters import Moving, first_moving
from btil.inference.result import (
    ConditionalRows,
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    FunctionalRows,
    MatrixNormalChannel,
    RowsPosterior,
    at_noise,
)
from btil.messages.layout import Layout, lay_out, pad_rows
from btil.models.emission import Normals
from btil.models.parametric import all_priors, constrain, parametric_sites
from btil.models.team import BoundModel, context_visits
from btil.numerics.precision import on_device
from btil.progress import progress_line

# What may be left of the mean field's error, and the fewest and most sweeps that are tried for it.
_SHARE_LEFT = 0.02
_FEWEST, _MOST = 8, 400
# Of fewer draws means and spreads are too uncertain to say whether they drift.
_TELLING = 50
# How often the sweeps may be doubled where draws still drift.
_DOUBLINGS = 3
# Means may differ by so much more than chance explains (1: chance alone), spreads by such a share.
_LARGEST_DRIFT, _LARGEST_SPREAD = 1.3, 0.05
# The total log likelihood may move by so many standard errors.
_LARGEST_MOVE = 3.5
# Cells of tables and of messages that are worked on at a time.
_CELLS = 2**27
# No iteration is one whose draws are averaged: moments are not asked for.
_NEVER = 2**30


class Snapshot(NamedTuple):
    """All draws after some sweeps.

    Attributes:
        rows: Every learned table, (draws, contexts, ...).
        parameters: Parameters of parametric families, (draws, ...).
        log_likelihood: Log likelihood of each episode, (draws, episodes).
        channels: Coefficients and covariances of continuous channels, in the units of the fit.
    """

    rows: dict[str, Float[np.ndarray, "draws ..."]]
    parameters: dict[str, Float[np.ndarray, "draws ..."]]
    log_likelihood: Float[np.ndarray, "draws episodes"]
    channels: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # noqa: RUF012  # never mutated

    def numbers(
        self, used: Mapping[str, np.ndarray]
    ) -> dict[str, Float[np.ndarray, "draws cells"]]:
        """What is watched: rows that the data read, coefficients, logs of standard deviations."""
        found = {name: self.rows[name][:, contexts] for name, contexts in used.items()}
        for name, (coefficients, covariance) in self.channels.items():
            found[f"{name}/coefficients"] = coefficients
            found[f"{name}/noise"] = 0.5 * np.log(np.diagonal(covariance, axis1=-2, axis2=-1))
        return {name: one.astype(np.float64).reshape(len(one), -1) for name, one in found.items()}


class Drift(NamedTuple):
    """How far draws have moved between two snapshots.

    Attributes:
        means: Mean square of the moves of the cells' means, in units of what chance explains.
        spreads: Median change of the cells' standard deviations, as a share.
        log_likelihood: Move of the mean of the total log likelihood, in standard errors.
    """

    means: float
    spreads: float
    log_likelihood: float

    @property
    def settled(self) -> bool:
        """Whether chance explains the moves."""
        return (
            self.means < _LARGEST_DRIFT
            and abs(self.spreads) < _LARGEST_SPREAD
            and abs(self.log_likelihood) < _LARGEST_MOVE
        )

    def __str__(self) -> str:
        return (
            f"means moved {self.means:.2f} times as much as by chance (allowed {_LARGEST_DRIFT}), "
            f"spreads by {self.spreads:.1%} ({_LARGEST_SPREAD:.0%}), the log likelihood by "
            f"{self.log_likelihood:.1f} standard errors ({_LARGEST_MOVE})"
        )


def drift(before: Snapshot, after: Snapshot, used: Mapping[str, np.ndarray]) -> Drift:
    """How far the draws have moved.

    The draws of a chain resemble those before, so that chance explains less than is allowed for
    here: moves are compared with those of independent draws.

    Args:
        before: The draws after fewer sweeps.
        after: The draws after more.
        used: Of every table the contexts that the data read.
    """
    moves, spreads = [np.zeros(0)], [np.zeros(0)]
    earlier, later = before.numbers(used), after.numbers(used)
    for one, other in ((values, later[name]) for name, values in earlier.items()):
        variances = one.var(0, ddof=1), other.var(0, ddof=1)
        varies = (variances[0] > 0) & (variances[1] > 0)
        apart = (other.mean(0) - one.mean(0))[varies]
        noise = (variances[0] + variances[1])[varies] / len(one)
        moves.append(apart**2 / noise)
        spreads.append(0.5 * np.log(variances[1][varies] / variances[0][varies]))
    first, second = (s.log_likelihood.sum(-1, dtype=np.float64) for s in (before, after))
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / len(first))
    moved, spread = np.concatenate(moves), np.concatenate(spreads)
    return Drift(
        float(np.mean(moved)) if len(moved) else 0.0,  # nothing varies
        float(np.median(spread)) if len(spread) else 0.0,
        float((second.mean() - first.mean()) / error) if error > 0 else 0.0,
    )


def sweeps_needed(rate: float | None) -> int:
    """Sweeps after which little of the mean field's error should be left.

    Args:
        rate: Its contraction rate; None where it is not known.

    Example:
        >>> sweeps_needed(0.9), sweeps_needed(0.3)
        (38, 8)
    """
    rate = 0.9 if rate is None else rate
    if rate >= 1:
        return _MOST
    sweeps = math.log(_SHARE_LEFT) / math.log(max(rate, 1e-3))
    return 2 * math.ceil(min(max(sweeps, _FEWEST), _MOST) / 2)


def is_mean_field(result: FitResult) -> bool:
    """Whether something was learned, and all rows are Dirichlet or given by normal parameters.

    Continuous channels are matrix-normal inverse-Wishart.
    """
    kinds = DirichletRows | ConditionalRows | FunctionalRows | MatrixNormalChannel
    learned = (*result.rows.values(), *result.channels.values())
    return bool(learned) and all(isinstance(one, kinds) for one in learned)


def refine(
    bound: BoundModel,
    result: FitResult,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    num_draws: int = 200,
    num_sweeps: int | None = None,
) -> FitResult:
    """Draws from the posterior around a mean field.

    Args:
        bound: The model on its data.
        result: What mean field has found for it (`is_mean_field`).
        seed: Seeds everything.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        num_draws: Number of draws, each of a chain of its own.
        num_sweeps: Sweeps of every chain. None: as many as the contraction rate asks for, doubled
            up to three times while the draws still drift.

    Returns:
        Draws of the learned rows and parameters as one chain, and each episode's log likelihood
        under each. `converged` says that the draws no longer drift, within the mode that was
        refined, that there are enough to tell, and that the mean field had converged.
    """
    layout = lay_out(bound)
    chains = _Chains(bound, layout, result, seed, num_draws, dtype)
    used = {name: context_visits(bound, name) > 0 for name in bound.learned}
    number = sweeps_needed(result.contraction_rate) if num_sweeps is None else num_sweeps
    doublings = _DOUBLINGS if num_sweeps is None else 0
    # Counted are sweeps of all draws, which may come in parts.
    with progress_line(number * 2**doublings * num_draws, "refined", progress) as line:
        before = chains.after(number // 2, line)
        after = chains.after(number, line)
        moved = drift(before, after, used)
        while not moved.settled and doublings:
            number, doublings = 2 * number, doublings - 1
            before, after = after, chains.after(number, line)
            moved = drift(before, after, used)
        line.total = line.n
        line.refresh()
    faults = [
        *([] if moved.settled else ["more sweeps are needed"]),
        *([] if num_draws >= _TELLING else [f"{num_draws} draws are too few to judge"]),
        *([] if result.converged else [f"the mean field did not converge: {result.reason}"]),
    ]
    reason = f"{num_draws} draws after {number} sweeps from the mean field: {moved}"
    return FitResult(
        rows={name: DrawnRows(after.rows[name][None]) for name in bound.learned},
        converged=not faults,
        reason="; ".join([reason, *faults]),
        sample_stats={"log_likelihood_total": after.log_likelihood.sum(-1, dtype=float)[None]},
        log_likelihood=after.log_likelihood[None],
        notes={"num_sweeps": number, "mean_field": result.reason},
        parameters={name: DrawnParameters(d[None]) for name, d in after.parameters.items()},
        channels={name: chains.in_units(name, *parts) for name, parts in after.channels.items()},
    )


class _Chains:
    """One chain per draw, some at a time as memory allows; how far they have come."""

    def __init__(
        self,
        bound: BoundModel,
        layout: Layout,
        result: FitResult,
        seed: int,
        num_draws: int,
        dtype: np.dtype,
    ) -> None:
        self._bound, self._dtype = bound, dtype
        self._channels = laid_channels(bound, layout, dtype)
        self._problem, self._program = gibbs.prepare(bound, layout, dtype, channels=self._channels)
        self._jacobian = np.add.reduceat(log_jacobian(bound), bound.demos.episode_starts)
        keys = jax.random.split(jax.random.key(seed), num_draws)
        at_once = max(1, min(num_draws, _CELLS // _cells(bound)))
        states = _first_states(bound, layout, self._channels, result, seed, num_draws, dtype)
        self._parts: list[tuple[Key[Array, " chains"], gibbs.State]] = [
            (keys[part], jax.tree.map(lambda leaf, part=part: leaf[part], states))
            for part in (slice(k, k + at_once) for k in range(0, num_draws, at_once))
        ]
        self._done = 0

    def after(self, number: int, line: Any) -> Snapshot:
        """The draws once so many sweeps are done; not of fewer than were asked for before."""
        found = []
        for k, (keys, states) in enumerate(self._parts):
            done = self._done
            while done < number:
                stop = min(number, done + gibbs.ITERATIONS_PER_CALL)
                states, _ = self._advance(keys, states, done, stop)
                line.update((stop - done) * len(keys))
                done = stop
            # What a sweep finds is told of the tables that it began with: one more is under way.
            following, log_likelihood = self._advance(keys, states, number, number + 1)
            found.append(self._snapshot(states, log_likelihood))
            self._parts[k] = keys, following
        self._done = number + 1
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found)

    def _advance(
        self, keys: Key[Array, " chains"], states: gibbs.State, first: int, stop: int
    ) -> tuple[gibbs.State, Float[Array, "iteration chains episodes"]]:
        states, _, _, (_, info) = gibbs.advance(
            keys,
            states,
            self._problem,
            np.asarray(first),
            np.asarray(stop),
            np.asarray(_NEVER),
            self._program,
            {},
        )
        return states, info.log_likelihood

    def _snapshot(self, states: gibbs.State, log_likelihood: Array) -> Snapshot:
        logs = gibbs.log_rows_of(states, self._problem, self._program.families)
        rows = {
            name: np.asarray(values)[:, : len(self._bound.tables[name].contexts.rows)]
            for name, values in gibbs.exponentials(logs).items()
        }
        parameters: dict[str, np.ndarray] = {}
        if states.moving is not None:
            priors = all_priors(self._program.families)
            given = jax.vmap(lambda values: constrain(priors, values))(states.moving.unconstrained)
            parameters = {name: np.asarray(values) for name, values in given.items()}
        number = self._bound.demos.num_episodes
        found = np.asarray(log_likelihood)[0, :, :number]
        channels = {}
        if self._channels:
            found = found.astype(np.float64) + self._jacobian
            for name, parts in states.channels.items():
                contexts = len(self._channels[name].channel.contexts)
                coefficients, covariance = (np.asarray(part)[:, :contexts] for part in parts)
                channels[name] = coefficients, covariance
        return Snapshot(rows, parameters, found, channels)

    def in_units(
        self,
        name: str,
        coefficients: Float[np.ndarray, "draws ..."],
        covariance: Float[np.ndarray, "draws ..."],
    ) -> DrawnChannel:
        """Draws of a channel, as one chain, in the units of the data."""
        return gibbs.in_units(self._channels[name], coefficients[None], covariance[None])


def _cells(bound: BoundModel) -> int:
    """Numbers that a chain holds at a time, of tables and of messages."""
    tables = sum(math.prod(table.shape) for table in bound.learned.values())
    demos = bound.demos
    channels = sum(
        latents * (p + d) * len(one.observed.rows)
        for one in bound.channels.values()
        for _, latents, p, d in [one.shape]
    )
    return 4 * tables + demos.num_steps * max(demos.num_latents) ** 2 + 2 * channels + 1


def _first_states(
    bound: BoundModel,
    layout: Layout,
    channels: Mapping[str, LaidChannel],
    result: FitResult,
    seed: int,
    num_draws: int,
    dtype: np.dtype,
) -> gibbs.State:
    """Tables from which paths are those of q(latents): geometric means of the rows.

    Of continuous channels the centre of q, from which paths are nearly those.
    """
    tables = {}
    for name, rows in result.rows.items():
        if isinstance(rows, FunctionalRows):
            continue
        padded = pad_rows(_log_means(rows), layout.num_rows[name], 0.0)
        tables[name] = on_device(np.broadcast_to(padded, (num_draws, *padded.shape)), dtype)
    points = {}
    for name, laid in channels.items():
        location, _, scale, degrees = laid.units.inside(Normals(*result.channels[name]))
        centre, covariance = (
            gibbs.with_padding(np.broadcast_to(part, (num_draws, *part.shape)), laid, dtype)
            for part in (location, scale / degrees[..., None, None])
        )
        points[name] = centre, covariance
    families = parametric_sites(bound)
    if not families:
        return gibbs.State(tables, channels=points)
    generator = np.random.default_rng([seed, 1])
    values = at_noise(result.parameters, lambda size: generator.standard_normal((num_draws, size)))
    step = jnp.full(num_draws, first_moving(families, generator, dtype).log_step, dtype)
    unconstrained = {name: jnp.asarray(one, dtype) for name, one in values.items()}
    return gibbs.State(tables, Moving(unconstrained, step), points)


def _log_means(rows: RowsPosterior) -> Float[np.ndarray, "..."]:
    if isinstance(rows, DirichletRows):
        w = np.asarray(rows.concentration, np.float64)
        return np.asarray(special.digamma(w) - special.digamma(w.sum(-1, keepdims=True)))
    return np.log(np.maximum(rows.mean(), np.finfo(np.float32).tiny))


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    num_draws: int = 200,
    num_sweeps: int | None = None,
    num_restarts: int | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
) -> FitResult:
    """Mean field, then draws around it: the two in one.

    Args:
        bound: The model on its data.
        seed: Seeds everything.
        progress: Whether to show progress lines.
        dtype: float32 or float64.
        checkpoint: Where the mean field's progress is saved; the sweeps after it are begun anew.
        num_draws: As in `refine`.
        num_sweeps: As in `refine`.
        num_restarts: Of the mean field, as in `btil.inference.mfvi.fit`; None: 4 where
            concentrations of policies are below 0.1, some steps have labels and others none, and
            there are no continuous columns and no tables with parameters; else 1.
            Draws stay in the mode of the mean field, so that it should be a high one.
        tolerance: Likewise.
        max_iterations: Likewise.

    Returns:
        As `refine`; `converged` only if the mean field has converged too.

    Raises:
        ValueError: If there are fewer than two draws.
    """
    check_count("num_draws", num_draws, 2)
    found = mfvi.fit(
        bound,
        seed=seed,
        progress=progress,
        dtype=dtype,
        checkpoint=checkpoint,
        num_restarts=mfvi.enough_restarts(bound) if num_restarts is None else num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    return refine(
        bound,
        found,
        seed=seed,
        progress=progress,
        dtype=dtype,
        num_draws=num_draws,
        num_sweeps=num_sweeps,
    )
