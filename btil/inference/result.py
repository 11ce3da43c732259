"""What an inference method gives back, and the families of answers over table rows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.models.draws import dirichlet_draws
from btil.models.emission import Normals, channel_draws
from btil.models.monotone import composed

KEEP_ALL = "for every row's draws fit with keep_rows=None"


class Chance:
    """Random numbers for draws of several tables, and the choices that these make together.

    Attributes:
        generator: Where the numbers come from.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self._picked: dict[str | int, np.ndarray] = {}

    def pick(self, group: str | int, among: Any, num_draws: int) -> Int[np.ndarray, " draws"]:
        """Numbers below the length of `among`; the same for all that are of one group.

        Args:
            group: What they are picked from.
            among: Probabilities; or a number, to pick without replacement while there are enough.
            num_draws: How many.
        """
        if group not in self._picked:
            weighted = not isinstance(among, int)
            self._picked[group] = self.generator.choice(
                len(among) if weighted else among,
                num_draws,
                replace=weighted or num_draws > among,
                p=among if weighted else None,
            )
        return self._picked[group]


class DirichletRows(NamedTuple):
    """Independent Dirichlet rows (mean field).

    Attributes:
        concentration: (contexts, latents, values), or (contexts, latents) for an initial table.
    """

    concentration: Float[np.ndarray, "..."]

    def mean(self) -> Float[np.ndarray, "..."]:
        """E[row]."""
        return self.concentration / self.concentration.sum(-1, keepdims=True)

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation of every cell."""
        return np.sqrt(_dirichlet_variance(self.concentration))

    def mode(self) -> Float[np.ndarray, "..."]:
        """The densest row, (w - 1) / sum(w - 1); the mean where a w < 1 leaves no mode."""
        return dirichlet_mode(self.concentration)

    def draw(self, num_draws: int, chance: Chance) -> Float[np.ndarray, "draws ..."]:
        """Independent draws."""
        return self.sample(num_draws, chance.generator)

    def sample(
        self, num_draws: int, generator: np.random.Generator
    ) -> Float[np.ndarray, "draws ..."]:
        """Independent draws."""
        return dirichlet_draws(
            generator, np.broadcast_to(self.concentration, (num_draws, *self.concentration.shape))
        )


class MixtureRows(NamedTuple):
    """A finite mixture of Dirichlet rows (exact inference).

    Attributes:
        weights: Posterior probability of each component, (components,).
        concentration: Rows of each component, (components, contexts, ...).
        group: Tables with the same group share the component of a draw.
    """

    weights: Float[np.ndarray, " components"]
    concentration: Float[np.ndarray, "components ..."]
    group: str

    def mean(self) -> Float[np.ndarray, "..."]:
        """E[row]."""
        means = self.concentration / self.concentration.sum(-1, keepdims=True)
        return np.tensordot(self.weights, means, 1)

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation of every cell, between and within components."""
        within = np.tensordot(self.weights, _dirichlet_variance(self.concentration), 1)
        means = self.concentration / self.concentration.sum(-1, keepdims=True)
        # From one of them on, so that equal means are no distance apart.
        apart = means - means[0]
        apart = apart - np.tensordot(self.weights, apart, 1)
        return np.sqrt(within + np.tensordot(self.weights, apart**2, 1))

    def draw(self, num_draws: int, chance: Chance) -> Float[np.ndarray, "draws ..."]:
        """Draws, of the same components in all tables of the group."""
        chosen = chance.pick(self.group, self.weights / self.weights.sum(), num_draws)
        return dirichlet_draws(chance.generator, self.concentration[chosen])


class DrawnRows(NamedTuple):
    """Draws of rows (chains, or a guide's draws as one chain).

    Attributes:
        draws: (chain, draw, contexts, ...).
    """

    draws: Float[np.ndarray, "chain draw ..."]

    def mean(self) -> Float[np.ndarray, "..."]:
        """Average over chains and draws, in double precision."""
        return self.draws.mean((0, 1), dtype=np.float64)

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation over chains and draws."""
        return self.draws.std((0, 1), dtype=np.float64)

    def draw(self, num_draws: int, chance: Chance) -> Float[np.ndarray, "draws ..."]:
        """Some of the draws."""
        return _some(self.draws, num_draws, chance)


class MomentRows(NamedTuple):
    """Moments of every row over chains of draws, and the draws of some rows.

    Each chain is cut into parts: its halves, before them the first draw if their number is odd.

    Attributes:
        counts: Number of draws of each part.
        means: Mean of every cell within each part, (chain, part, contexts, ...), float64.
        squares: Sum of its squared deviations from that mean.
        kept: The contexts whose draws were kept, in ascending order.
        draws: Their draws, (chain, draw, kept, ...).
    """

    counts: Int[np.ndarray, " part"]
    means: Float[np.ndarray, "chain part ..."]
    squares: Float[np.ndarray, "chain part ..."]
    kept: Int[np.ndarray, " kept"]
    draws: Float[np.ndarray, "chain draw kept ..."]

    def chain_moments(
        self,
    ) -> tuple[Float[np.ndarray, "chain ..."], Float[np.ndarray, "chain ..."]]:
        """Mean and standard deviation of every cell over the draws of each chain."""
        return _pooled(self.counts, self.means, self.squares, 1)

    def mean(self) -> Float[np.ndarray, "..."]:
        """Average over all chains and draws."""
        return _pooled(self.counts, self.means, self.squares, (0, 1))[0]

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation over all chains and draws."""
        return _pooled(self.counts, self.means, self.squares, (0, 1))[1]

    def places(self, site: str, contexts: Any) -> Any:
        """Where some contexts are among those whose draws were kept.

        Args:
            site: What the table is called, for the error.
            contexts: Contexts, any array of them.

        Raises:
            ValueError: If the draws of one of them were not kept.
        """
        missing = np.setdiff1d(contexts, self.kept)
        if len(missing):
            raise ValueError(
                f"{site}: the draws of {len(self.kept)} of {self.means.shape[2]} contexts were "
                f"kept, those of context {missing[0]} were not; {KEEP_ALL}"
            )
        return np.searchsorted(self.kept, contexts)


def _pooled(
    counts: Int[np.ndarray, " part"],
    means: Float[np.ndarray, "chain part ..."],
    squares: Float[np.ndarray, "chain part ..."],
    axes: int | tuple[int, int],
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Mean and standard deviation of parts taken together."""
    along = (1, -1, *(1,) * (means.ndim - 2))
    weights = np.reshape(counts / counts.sum(), along) / (len(means) if axes == (0, 1) else 1)
    # From the first part on, so that what never varies comes out as such.
    begin = means[:1, :1] if axes == (0, 1) else means[:, :1]
    apart = means - begin
    mean = (weights * apart).sum(axes, keepdims=True)
    variance = (weights * (squares / np.reshape(counts, along) + (apart - mean) ** 2)).sum(axes)
    return (begin + mean).squeeze(axes), np.sqrt(variance)


class FunctionalRows(NamedTuple):
    """Rows that are a function of parameters whose posterior is normal.

    Draws of them are that function of draws of the parameters.

    Attributes:
        average: E[row].
        deviation: Standard deviation of every cell.
    """

    average: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]

    def mean(self) -> Float[np.ndarray, "..."]:
        """E[row]."""
        return self.average

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation of every cell."""
        return self.deviation


class ConditionalRows(NamedTuple):
    """Rows that are Dirichlet(u(parameters) + n) given the parameters, whose posterior is normal.

    Attributes:
        counts: n, (contexts, latents, values), or (contexts, latents) for an initial table.
        centre: u + n at the parameters' location.
        average: E[row], over the parameters too.
        deviation: Standard deviation of every cell, over the parameters too.
    """

    counts: Float[np.ndarray, "..."]
    centre: Float[np.ndarray, "..."]
    average: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]

    def mean(self) -> Float[np.ndarray, "..."]:
        """E[row]."""
        return self.average

    def sd(self) -> Float[np.ndarray, "..."]:
        """Standard deviation of every cell."""
        return self.deviation

    def mode(self) -> Float[np.ndarray, "..."]:
        """The densest row given the parameters at their location; the mean where there is none."""
        return dirichlet_mode(self.centre, self.average)


RowsPosterior = (
    DirichletRows | MixtureRows | DrawnRows | MomentRows | FunctionalRows | ConditionalRows
)


def check_keeps_all(what: str, options: Mapping[str, Any]) -> None:
    """Refuse options under which a method keeps the draws of some rows only.

    Raises:
        ValueError: If the draws of every row will be needed.
    """
    if options.get("keep_rows") is not None:
        raise ValueError(f"{what}: the draws of every row are needed; {KEEP_ALL}")


def check_all_kept(rows: Mapping[str, RowsPosterior], what: str) -> None:
    """Refuse what needs the draws of every row where those of some only were kept.

    Raises:
        ValueError: Naming a table, and what to do.
    """
    for site, one in rows.items():
        if isinstance(one, MomentRows):
            raise ValueError(
                f"{what}: the draws of every row are needed, but of {site} those of "
                f"{len(one.kept)} of {one.means.shape[2]} contexts were kept; {KEEP_ALL}"
            )


class NormalParameters(NamedTuple):
    """Independent normals over the unconstrained values of a parameter (mean field).

    Attributes:
        location: Mean of every unconstrained value.
        scale: Standard deviation.
    """

    location: Float[np.ndarray, "..."]
    scale: Float[np.ndarray, "..."]


class JointNormals(NamedTuple):
    """A parameter whose unconstrained values are normal, together with those of others.

    They are m + C z, z standard normal and the same for all parameters of a group.

    Attributes:
        location: m.
        factor: C, the shape of m and a last axis for z, as many as the group has values.
        group: Names the group.
    """

    location: Float[np.ndarray, "..."]
    factor: Float[np.ndarray, "... values"]
    group: str

    @property
    def scale(self) -> Float[np.ndarray, "..."]:
        """Standard deviation of every unconstrained value."""
        return np.asarray(np.sqrt((self.factor**2).sum(-1)))


def at_noise(
    parameters: Mapping[str, "ParameterPosterior"],
    noise: Callable[[int], Float[np.ndarray, "draws values"]],
) -> dict[str, Float[np.ndarray, "draws ..."]]:
    """Unconstrained values of all parameters that are normal.

    Args:
        parameters: The parameters; those that are none are left out.
        noise: Standard normal values, (draws, so many), independent between those asked for
            at once; it is asked once for every group that is independent of the others.
    """
    values = {}
    independent = {n: one for n, one in parameters.items() if isinstance(one, NormalParameters)}
    if independent:
        ends = np.cumsum([one.location.size for one in independent.values()])
        parts = np.split(noise(int(ends[-1])), ends[:-1], axis=1)
        for (name, one), part in zip(independent.items(), parts, strict=True):
            values[name] = one.location + one.scale * part.reshape(-1, *one.location.shape)
    groups: dict[str, np.ndarray] = {}
    for name, parameter in parameters.items():
        if isinstance(parameter, JointNormals):
            if parameter.group not in groups:
                groups[parameter.group] = noise(parameter.factor.shape[-1])
            own = np.tensordot(groups[parameter.group], parameter.factor, (1, -1))
            values[name] = parameter.location + own
    return values


class DrawnParameters(NamedTuple):
    """Draws of a parameter (chains, or a guide's draws as one chain).

    Attributes:
        draws: (chain, draw, ...), where its prior lives.
    """

    draws: Float[np.ndarray, "chain draw ..."]

    def draw(self, num_draws: int, chance: Chance) -> Float[np.ndarray, "draws ..."]:
        """Some of the draws."""
        return _some(self.draws, num_draws, chance)


def _some(
    draws: Float[np.ndarray, "chain draw ..."], num_draws: int, chance: Chance
) -> Float[np.ndarray, "draws ..."]:
    flat = draws.reshape(-1, *draws.shape[2:])
    return flat[chance.pick(len(flat), len(flat), num_draws)]


class MatrixNormalChannel(NamedTuple):
    """Matrix-normal inverse-Wishart densities of a continuous channel, in the units of the data.

    Attributes:
        location: M, expected coefficients, (contexts, latents, inputs, columns).
        precision: Lambda, (contexts, latents, inputs, inputs).
        scale: Psi, (contexts, latents, columns, columns).
        degrees: nu, (contexts, latents).
    """

    location: Float[np.ndarray, "contexts latents p d"]
    precision: Float[np.ndarray, "contexts latents p p"]
    scale: Float[np.ndarray, "contexts latents d d"]
    degrees: Float[np.ndarray, "contexts latents"]

    def mean(self) -> "ChannelPoint":
        """E[coefficients] and E[covariance]."""
        d = self.scale.shape[-1]
        return ChannelPoint(self.location, self.scale / (self.degrees - d - 1)[..., None, None])

    def mode(self) -> "ChannelPoint":
        """The densest coefficients and covariance."""
        p, d = self.location.shape[-2:]
        return ChannelPoint(self.location, self.scale / (self.degrees + d + p + 1)[..., None, None])

    def draw(self, num_draws: int, chance: Chance) -> "ChannelPoint":
        """Independent draws, on a leading axis."""
        many = (np.broadcast_to(part, (num_draws, *part.shape)) for part in self)
        return matrix_normal_draws(chance.generator, *many)


class MixtureChannel(NamedTuple):
    """A finite mixture of the densities of `MatrixNormalChannel` (exact inference).

    Attributes:
        weights: Posterior probability of each component.
        location: M of each component, (components, contexts, latents, inputs, columns).
        precision: Lambda.
        scale: Psi.
        degrees: nu.
        group: Tables and channels with the same group share the component of a draw.
    """

    weights: Float[np.ndarray, " components"]
    location: Float[np.ndarray, "components contexts latents p d"]
    precision: Float[np.ndarray, "components contexts latents p p"]
    scale: Float[np.ndarray, "components contexts latents d d"]
    degrees: Float[np.ndarray, "components contexts latents"]
    group: str

    def mean(self) -> "ChannelPoint":
        """E[coefficients] and E[covariance]."""
        d = self.scale.shape[-1]
        covariance = self.scale / (self.degrees - d - 1)[..., None, None]
        return ChannelPoint(
            np.tensordot(self.weights, self.location, 1), np.tensordot(self.weights, covariance, 1)
        )

    def draw(self, num_draws: int, chance: Chance) -> "ChannelPoint":
        """Draws, of the same components in all tables and channels of the group."""
        chosen = chance.pick(self.group, self.weights / self.weights.sum(), num_draws)
        parts = (self.location, self.precision, self.scale, self.degrees)
        return matrix_normal_draws(chance.generator, *(part[chosen] for part in parts))


class MixtureOfRegressions(NamedTuple):
    """A finite mixture for channels with blank cells, a regression of each column (`exact`).

    Attributes:
        weights: Posterior probability of each component.
        order: Columns of each context, in the order of the regressions (`models.monotone`).
        location: Expected coefficients, (components, contexts, latents, columns, inputs); inputs
            are the covariates, then the columns before.
        precision: Their precision in units of the noise.
        scale: Psi of the noise.
        degrees: nu of the noise.
        group: Tables and channels with the same group share the component of a draw.
    """

    weights: Float[np.ndarray, " components"]
    order: Int[np.ndarray, "contexts d"]
    location: Float[np.ndarray, "components contexts latents d q"]
    precision: Float[np.ndarray, "components contexts latents d q q"]
    scale: Float[np.ndarray, "components contexts latents d"]
    degrees: Float[np.ndarray, "components contexts latents d"]
    group: str

    def mean(self) -> "ChannelPoint":
        """E[coefficients] and E[covariance]."""
        noise = self.scale / (self.degrees - 2)
        each = self._composed(self.location, noise, np.linalg.inv(self.precision))
        return ChannelPoint(*(np.tensordot(self.weights, part, 1) for part in each))

    def draw(self, num_draws: int, chance: Chance) -> "ChannelPoint":
        """Draws, of the same components in all tables and channels of the group."""
        chosen = chance.pick(self.group, self.weights / self.weights.sum(), num_draws)
        coefficients, noise = matrix_normal_draws(
            chance.generator,
            self.location[chosen][..., None],
            self.precision[chosen],
            self.scale[chosen][..., None, None],
            self.degrees[chosen],
        )
        return self._composed(coefficients[..., 0], noise[..., 0, 0])

    def _composed(
        self,
        coefficients: Float[np.ndarray, "some contexts latents d q"],
        noise: Float[np.ndarray, "some contexts latents d"],
        uncertain: Float[np.ndarray, "some contexts latents d q q"] | None = None,
    ) -> "ChannelPoint":
        """Of each context in the order of its columns."""
        parts = [
            composed(
                coefficients[:, row],
                noise[:, row],
                order,
                None if uncertain is None else uncertain[:, row],
            )
            for row, order in enumerate(self.order)
        ]
        return ChannelPoint(*(np.stack(part, axis=1) for part in zip(*parts, strict=True)))


class DrawnChannel(NamedTuple):
    """Draws of a channel's coefficients and covariances.

    Attributes:
        coefficients: (chain, draw, contexts, latents, inputs, columns).
        covariance: (chain, draw, contexts, latents, columns, columns).
    """

    coefficients: Float[np.ndarray, "chain draw contexts latents p d"]
    covariance: Float[np.ndarray, "chain draw contexts latents d d"]

    def mean(self) -> "ChannelPoint":
        """Averages over chains and draws."""
        return ChannelPoint(*(part.mean((0, 1), dtype=np.float64) for part in self))

    def draw(self, num_draws: int, chance: Chance) -> "ChannelPoint":
        """Some of the draws: the same of both."""
        return ChannelPoint(*(_some(part, num_draws, chance) for part in self))


ChannelPosterior = MatrixNormalChannel | MixtureChannel | MixtureOfRegressions | DrawnChannel


class ChannelPoint(NamedTuple):
    """Coefficients and covariances of a channel, of each context and latent.

    Attributes:
        coefficients: (..., contexts, latents, inputs, columns); the first input is the intercept.
        covariance: (..., contexts, latents, columns, columns).
    """

    coefficients: Float[np.ndarray, "*draws contexts latents p d"]
    covariance: Float[np.ndarray, "*draws contexts latents d d"]


def matrix_normal_draws(
    generator: np.random.Generator,
    location: Float[np.ndarray, "*batch p d"],
    precision: Float[np.ndarray, "*batch p p"],
    scale: Float[np.ndarray, "*batch d d"],
    degrees: Float[np.ndarray, "*batch"],
) -> ChannelPoint:
    """Draws from matrix-normal inverse-Wishart densities, on the host."""
    normals = Normals(location, precision, scale, degrees)
    return ChannelPoint(*channel_draws(generator, normals))


# What has draws of its own; the other kinds are drawn given parameters.
Sampled = DirichletRows | MixtureRows | DrawnRows | DrawnParameters
ParameterPosterior = NormalParameters | JointNormals | DrawnParameters


class FitResult(NamedTuple):
    """What an inference method returns to `btil.fit`.

    Attributes:
        rows: Posterior of every learned site.
        converged: Whether the method's own criterion was met.
        reason: A sentence that says why it stopped.
        elbo: A lower bound of the log evidence, or the log evidence itself (exact), or None.
        elbo_standard_error: Monte Carlo error of `elbo` where it is an estimate.
        elbo_trace: The bound of each sweep of the run that was kept.
        restart_traces: Bounds of all runs, the kept one included.
        sample_stats: Per-draw statistics, (chain, draw), e.g. "diverging".
        log_likelihood: Log likelihood of each episode under each draw, (chain, draw, episode).
        notes: Method-specific numbers worth keeping (settings that were chosen, counts).
        parameters: Posterior of the parameters of parametric families, by their sites.
        contraction_rate: Of coordinate ascent the largest eigenvalue of a sweep's derivative.
        channels: Posterior of every continuous channel, by its site.
    """

    rows: Mapping[str, RowsPosterior]
    converged: bool
    reason: str
    elbo: float | None = None
    elbo_standard_error: float | None = None
    elbo_trace: Float[np.ndarray, " sweeps"] | None = None
    restart_traces: tuple[Float[np.ndarray, " sweeps"], ...] = ()
    sample_stats: dict[str, Any] = {}  # noqa: RUF012  # never mutated
    log_likelihood: Float[np.ndarray, "chain draw episode"] | None = None
    notes: dict[str, Any] = {}  # noqa: RUF012  # never mutated
    parameters: Mapping[str, ParameterPosterior] = {}  # never mutated
    contraction_rate: float | None = None
    channels: Mapping[str, ChannelPosterior] = {}  # never mutated


def _dirichlet_variance(concentration: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Variance of every cell of Dirichlet rows, without differences of nearly equal numbers."""
    w = np.asarray(concentration, np.float64)
    zeros = np.zeros_like(w[..., :1])
    before = np.concatenate([zeros, np.cumsum(w[..., :-1], -1)], -1)
    after = np.concatenate([np.cumsum(w[..., :0:-1], -1)[..., ::-1], zeros], -1)
    total = w.sum(-1, keepdims=True)
    return w / total * ((before + after) / total) / (total + 1)


def dirichlet_mode(
    concentration: Float[np.ndarray, "..."], mean: Float[np.ndarray, "..."] | None = None
) -> Float[np.ndarray, "..."]:
    """Mode of Dirichlet rows; a row without one (a w < 1, or all w = 1) gives its mean.

    Args:
        concentration: w.
        mean: The mean, where it is another than that of these Dirichlet rows.
    """
    excess = concentration - 1
    total = excess.sum(-1, keepdims=True)
    defined = (excess >= 0).all(-1, keepdims=True) & (total > 0)
    if mean is None:
        mean = concentration / concentration.sum(-1, keepdims=True)
    return np.where(defined, excess / np.where(defined, total, 1.0), mean)
