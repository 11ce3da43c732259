r"""Continuous columns that a latent explains, beside an agent's action or in its place.

Given the latent and the context of a step its columns y are normal around a linear function of
covariates u (an intercept alone, in `NormalEmission`),

.. math:: y_t \mid x_t = k \sim N(B_k^T u_t, \Sigma_k), \qquad
          B_k \mid \Sigma_k \sim MN(M, \Lambda^{-1}, \Sigma_k), \qquad
          \Sigma_k \sim IW\big((\nu - d - 1)\,\mathrm{diag}(\text{noise}^2), \nu\big).

Priors are said in the units of the data. What is left open is taken from the demonstrations that
are learned from, latents aside (`resolved`), and stays what it is on others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_flag, check_number
from btil.demonstrations import Demonstrations
from btil.models.contexts import (
    expand_parents,
    known_after,
    match_rows,
    parent_columns,
    parent_values,
    unique_rows,
)
from btil.models.cpt import MadeOfArguments, Parents, check_parents

PREVIOUS = "previous_"
# Values whose squares, and sums of them, are numbers yet.
_LARGEST = 1e140
# How many steps the prior of the means or coefficients counts for.
_PSEUDO_STEPS = 0.01
# The least that a direction among the covariates counts, as a share of the one that counts most.
_RIDGE = 1e-10


class Normals(NamedTuple):
    """Matrix-normal inverse-Wishart densities on the host, in the units of the data.

    Attributes:
        location: M, expected coefficients, (..., p, d).
        precision: Lambda, (..., p, p).
        scale: Psi, (..., d, d).
        degrees: nu, (...).
    """

    location: Float[np.ndarray, "*batch p d"]
    precision: Float[np.ndarray, "*batch p p"]
    scale: Float[np.ndarray, "*batch d d"]
    degrees: Float[np.ndarray, "*batch"]


class Units(NamedTuple):
    r"""Other units in which numbers are near 1: :math:`u' = T^T u`, :math:`y' = (y - B^T u) / s`.

    Attributes:
        whitening: T; the covariates' second moments become those of independent ones.
        trend: B, the regression of all steps together.
        spread: s, the standard deviations that it leaves.
    """

    whitening: Float[np.ndarray, "p p"]
    trend: Float[np.ndarray, "p d"]
    spread: Float[np.ndarray, " d"]

    def inside(self, normals: Normals) -> Normals:
        """Densities in the units of the data, in these."""
        inverse = np.linalg.inv(self.whitening)
        return Normals(
            inverse @ (normals.location - self.trend) / self.spread,
            self.whitening.T @ normals.precision @ self.whitening,
            normals.scale / np.outer(self.spread, self.spread),
            normals.degrees,
        )

    def outside(self, normals: Normals) -> Normals:
        """Densities in these units, in those of the data."""
        inverse = np.linalg.inv(self.whitening)
        return Normals(
            self.coefficients(normals.location),
            inverse.T @ normals.precision @ inverse,
            self.covariance(normals.scale),
            normals.degrees,
        )

    def coefficients(self, inside: Float[np.ndarray, "*batch p d"]) -> np.ndarray:
        """Coefficients in these units, in those of the data."""
        return self.trend + self.whitening @ inside * self.spread

    def covariance(self, inside: Float[np.ndarray, "*batch d d"]) -> np.ndarray:
        """A covariance in these units, in those of the data."""
        return inside * np.outer(self.spread, self.spread)

    def steps(self, inputs: np.ndarray, values: np.ndarray) -> Float[np.ndarray, "steps pd"]:
        """(u', y') of steps."""
        residual = (values - inputs @ self.trend) / self.spread
        return np.concatenate([inputs @ self.whitening, residual], axis=1)


class Emission(MadeOfArguments):
    """A family of continuous channels: `NormalEmission` or `LinearNormalEmission`."""

    columns: Any
    covariates: Any = ()
    intercept: bool = True
    parents: Parents = ()
    location: Any = None
    pseudo_steps: Any = None
    precision: Any = None
    noise: Any = None
    degrees_of_freedom: Any = None

    def __init__(self, **given: Any) -> None:
        family = type(self).__name__
        given["columns"] = _names(given["columns"], f"{family}: columns", least=1)
        if "covariates" in given:
            given["covariates"] = _names(given["covariates"], f"{family}: covariates", least=0)
            given["intercept"] = check_flag(f"{family}: intercept", given["intercept"])
        given["parents"] = check_parents(given["parents"], family)
        for name in ("location", "precision", "noise"):
            if given.get(name) is not None:
                given[name] = _numbers(given[name], f"{family}: {name}", name == "noise")
        for name in ("pseudo_steps", "degrees_of_freedom"):
            if given.get(name) is not None:
                given[name] = check_number(f"{family}: {name}", given[name], above=0.0)
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if "covariates" in given:
            self._check_inputs()

    def _check_inputs(self) -> None:
        several = self.covariates if isinstance(self.covariates, Mapping) else {"": self.covariates}
        if not self.intercept and not all(several.values()):
            raise ValueError(f"{type(self).__name__}: without an intercept give a covariate")
        columns = self.columns if isinstance(self.columns, Mapping) else {"": self.columns}
        for agent, names in columns.items():
            for own in several.values() if agent not in several else [several[agent]]:
                both = sorted(set(names) & set(own))
                if both:
                    raise ValueError(
                        f"{type(self).__name__}: {both[0]!r} cannot be a covariate of itself; its "
                        f"value one step before is {PREVIOUS + both[0]!r}"
                    )

    def columns_of(self, agent: str) -> tuple[str, ...]:
        """The columns of one agent."""
        return self._own(self.columns, "columns", agent)

    def covariates_of(self, agent: str) -> tuple[str, ...]:
        """The covariates of one agent's columns."""
        return self._own(self.covariates, "covariates", agent)

    def parents_of(self, agent: str) -> tuple[str, ...]:
        """The discrete parents of one agent's channel, as written by the modeler."""
        return self._own(self.parents, "parents", agent)

    def input_names(self, agent: str) -> tuple[str, ...]:
        """What the coefficients multiply: the intercept, if any, and the covariates."""
        return (*(("intercept",) if self.intercept else ()), *self.covariates_of(agent))

    def exchangeable_latents(self, first: int, second: int) -> bool:
        """Whether swapping two latents leaves the prior of a resolved family as it is."""
        location, _, scale, _ = self.prior()
        d = scale.shape[-1]
        of_latents = [
            (location, location.ndim > 2),
            (scale, scale.shape != (d, d)),
        ]
        return all(np.array_equal(part[first], part[second]) for part, own in of_latents if own)

    def _own(self, given: Any, what: str, agent: str) -> tuple[str, ...]:
        if not isinstance(given, Mapping):
            return given
        if agent not in given:
            raise ValueError(
                f"{type(self).__name__}: {what} are given for {', '.join(given)}, but not for "
                f"agent {agent!r}"
            )
        return given[agent]

    def validate(self) -> None:
        """Refuse parents that a channel cannot have.

        Raises:
            ValueError: Naming the parent and what is allowed.
        """
        tables = self.parents.values() if isinstance(self.parents, Mapping) else [self.parents]
        for name in (name for names in tables for name in names):
            if known_after(name):
                raise ValueError(
                    f"emissions: {name!r} cannot be a parent; a channel may have 'state' or the "
                    "names of state variables as parents"
                )

    def prior(self) -> Normals:
        """The prior of a context, in the units of the data; of resolved families.

        Location and scale have a leading axis of latents where the latents' priors differ.
        """
        d = len(self.columns)
        degrees = float(self.degrees_of_freedom)
        noise = np.asarray(self.noise, np.float64)
        location = np.asarray(self.location, np.float64)
        precision = [[self.pseudo_steps]] if self.precision is None else self.precision
        return Normals(
            location if "covariates" in self._given() else location[..., None, :],
            np.asarray(precision, np.float64),
            noise[..., None] ** 2 * np.eye(d) * (degrees - d - 1),
            np.asarray(degrees),
        )

    def resolved(
        self, demos: Demonstrations, agent: str, trend: "Trend | None" = None
    ) -> "Emission":
        """The family of one agent, with numbers for all that was left open.

        Means and coefficients are expected to be what all steps together have (a regression),
        with a precision of `pseudo_steps` steps; the noise is what that leaves, divided by the
        d-th root of the number of latents, with d + 2 degrees of freedom (after Fraley and
        Raftery, 2007).

        Args:
            demos: The demonstrations.
            agent: The agent.
            trend: The regression of all steps, where `demos` are only some of them.

        Raises:
            ValueError: If a column is unknown or not continuous, or numbers do not fit.
        """
        family = type(self).__name__
        columns, names = self.columns_of(agent), self.input_names(agent)
        d, p = len(columns), len(names)
        seen = observed(self, demos, agent)
        units, num_steps = _trend(seen, self.intercept) if trend is None else trend
        latents = demos.num_latents[demos.agents.index(agent)]
        degrees = float(d + 2 if self.degrees_of_freedom is None else self.degrees_of_freedom)
        if degrees <= d + 1:
            raise ValueError(
                f"{family} of {agent}: degrees_of_freedom is {degrees:g}; allowed with {d} columns "
                f"are numbers above {d + 1}"
            )
        noise = self.noise
        if noise is None:
            if num_steps == 0:
                raise ValueError(
                    f"{family} of {agent}: no step has all it takes ({', '.join(columns)}; "
                    f"{', '.join(names)}), so give the prior: location, noise"
                )
            for column, scale in zip(columns, units.spread.tolist(), strict=True):
                if not scale > 0:
                    raise ValueError(
                        f"{family} of {agent}: {column} leaves no residual at any step (it is "
                        "constant, a function of the covariates, or of as few steps), so say how "
                        "large the noise is: noise=..., or leave it out: it says nothing about "
                        "the latent"
                    )
            noise = units.spread * latents ** (-1 / d)
        location = self.location
        if location is None:
            location = units.trend if "covariates" in self._given() else units.trend[0]
        precision = self.precision
        if precision is None:
            steps = _PSEUDO_STEPS if self.pseudo_steps is None else self.pseudo_steps
            root = np.linalg.inv(units.whitening)
            precision = steps * root.T @ root

        def in_shape(name: str, value: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
            if value is None:
                raise ValueError(
                    f"{family} of {agent}: {name} has shape {np.shape(getattr(self, name))}; "
                    f"expected one number, or {shape} ({', '.join(names)}; {', '.join(columns)})"
                )
            return value

        linear = "covariates" in self._given()
        location = in_shape(
            "location", _fitted(location, (p, d) if linear else (d,), latents), (p, d)
        )
        precision = in_shape("precision", _square(precision, p), (p, p))
        noise = in_shape("noise", _fitted(noise, (d,), latents), (d,))
        inside = units.whitening.T @ precision @ units.whitening
        if not np.all(np.linalg.eigvalsh(inside) > 0):
            raise ValueError(
                f"{family} of {agent}: the precision of the coefficients is not positive definite"
            )
        given = {name: getattr(self, name) for name in self._given()}
        given |= {
            "columns": columns,
            "parents": self.parents_of(agent),
            "location": location,
            "noise": noise,
            "degrees_of_freedom": degrees,
        }
        if "covariates" in given:
            given |= {"covariates": self.covariates_of(agent), "precision": precision}
        else:
            given["pseudo_steps"] = float(precision[0, 0])
        return type(self)(**given)


class NormalEmission(Emission):
    r"""Normal columns: a mean and a covariance per latent and context.

    .. math:: y \mid x = k \sim N(\mu_k, \Sigma_k), \qquad
              \mu_k \mid \Sigma_k \sim N(m, \Sigma_k / \kappa), \qquad
              \Sigma_k \sim IW((\nu - d - 1)\,\mathrm{diag}(\text{noise}^2), \nu)

    the conjugate normal inverse-Wishart prior. Blank cells (NaN) are summed out.

    Args:
        columns: Names of continuous columns; or a mapping {agent: names}.
        parents: Discrete parents, state variables; or a mapping {agent: names}.
        location: m, a number or one per column, or (latents, columns); None: the columns' means.
        pseudo_steps: kappa, how many steps m counts for; None: 0.01.
        noise: Standard deviations given the latent, a number or one per column, or (latents,
            columns); None: those of the columns, divided by the d-th root of the number of latents.
        degrees_of_freedom: nu, above d + 1; None: d + 2, which is weak.

    Example:
        >>> NormalEmission(("ann_x", "ann_y"))
        NormalEmission(columns=('ann_x', 'ann_y'), parents=(), location=None, pseudo_steps=None, noise=None, degrees_of_freedom=None)

    References:
        Fraley and Raftery (2007), Bayesian regularization for normal mixture estimation and
        model-based clustering, Journal of Classification 24.
    """  # noqa: E501

    def __init__(
        self,
        columns: Any,
        parents: Any = (),
        location: Any = None,
        pseudo_steps: Any = None,
        noise: Any = None,
        degrees_of_freedom: Any = None,
    ) -> None:
        super().__init__(
            columns=columns,
            parents=parents,
            location=location,
            pseudo_steps=pseudo_steps,
            noise=noise,
            degrees_of_freedom=degrees_of_freedom,
        )


class LinearNormalEmission(Emission):
    r"""Columns that are a linear function of covariates, and noise, per latent and context.

    .. math:: y \mid u, x = k \sim N(B_k^T u, \Sigma_k), \qquad
              B_k \mid \Sigma_k \sim MN(M, \Lambda^{-1}, \Sigma_k), \qquad
              \Sigma_k \sim IW((\nu - d - 1)\,\mathrm{diag}(\text{noise}^2), \nu)

    With `previous_<column>` of the columns themselves it is an autoregressive hidden Markov model;
    with positions as covariates of velocities it is motion towards a goal. A step without one of
    its covariates (an episode's first has no previous one) says nothing of its latent; blank cells
    of the columns are summed out.

    Args:
        columns: Names of continuous columns; or a mapping {agent: names}.
        covariates: Names of continuous columns of the same step, or `previous_<column>` of the
            step before; or a mapping {agent: names}.
        parents: Discrete parents, state variables; or a mapping {agent: names}.
        intercept: Whether the number 1 is a covariate too, the first one.
        location: M, (covariates, columns), or (latents, covariates, columns); None: the regression
            of all steps together.
        precision: Lambda, (covariates, covariates), or its diagonal; None: what `pseudo_steps`
            steps of the data would give.
        pseudo_steps: See there; None: 0.01.
        noise: Standard deviations given the latent, a number or one per column, or (latents,
            columns); None: those of the residuals of the regression, divided by the d-th root of
            the number of latents.
        degrees_of_freedom: nu, above d + 1; None: d + 2, which is weak.

    Example:
        >>> walk = LinearNormalEmission(("ann_vx", "ann_vy"), ("ann_x", "ann_y"))
    """

    def __init__(
        self,
        columns: Any,
        covariates: Any,
        parents: Any = (),
        intercept: bool = True,
        location: Any = None,
        precision: Any = None,
        pseudo_steps: Any = None,
        noise: Any = None,
        degrees_of_freedom: Any = None,
    ) -> None:
        super().__init__(
            columns=columns,
            covariates=covariates,
            parents=parents,
            intercept=intercept,
            location=location,
            precision=precision,
            pseudo_steps=pseudo_steps,
            noise=noise,
            degrees_of_freedom=degrees_of_freedom,
        )


# What files and model files know by name: by the class, and by the word of model files.
EMISSIONS: dict[str, type[Emission]] = {
    "NormalEmission": NormalEmission,
    "LinearNormalEmission": LinearNormalEmission,
}
WORDS = {"normal": "NormalEmission", "linear-normal": "LinearNormalEmission"}


class Observed(NamedTuple):
    """What the steps of one agent hold for its channel.

    Attributes:
        inputs: u, (steps, p); NaN where unknown.
        values: y, (steps, d); NaN where unknown.
        rows: The steps that say something: all of u and some of y is known.
    """

    inputs: Float[np.ndarray, "steps p"]
    values: Float[np.ndarray, "steps d"]
    rows: Int[np.ndarray, " some"]


def observed(family: Emission, demos: Demonstrations, agent: str) -> Observed:
    """The columns and covariates of an agent's channel.

    Raises:
        ValueError: If a name is no continuous column of the data.
    """
    continuous: Mapping[str, np.ndarray] = demos.continuous
    what = f"{type(family).__name__} of {agent}"
    values = [_column(continuous, name, what, demos) for name in family.columns_of(agent)]
    inputs = [np.ones(demos.num_steps)] if family.intercept else []
    for name in family.covariates_of(agent):
        if name in continuous or not name.startswith(PREVIOUS):
            inputs.append(_column(continuous, name, what, demos))
            continue
        before = np.roll(_column(continuous, name.removeprefix(PREVIOUS), what, demos), 1)
        # Nothing is before the first step of an episode, or of a stay.
        before[demos.episode_starts] = np.nan
        before[demos.stays[demos.agents.index(agent)]] = np.nan
        inputs.append(before)
    u, y = np.stack(inputs, axis=1), np.stack(values, axis=1)
    known = np.isfinite(u).all(1) & np.isfinite(y).any(1)
    known &= demos.present[:, demos.agents.index(agent)]
    return Observed(u, y, np.flatnonzero(known))


def _column(
    continuous: Mapping[str, np.ndarray], name: str, what: str, demos: Demonstrations
) -> Float[np.ndarray, " steps"]:
    if name in continuous:
        values = np.asarray(continuous[name], np.float64)
        if np.any(np.abs(values) > _LARGEST):
            raise ValueError(
                f"{what}: values of {name} are too large to have a variance, above {_LARGEST:g}; "
                "write the column in larger units"
            )
        return values
    remedy = f"declared continuous are {', '.join(continuous) or 'none'}"
    if name in demos.state_variables:
        remedy = (
            f"{name} is a state variable: declare it continuous (continuous=...) or make it a "
            "parent"
        )
    raise ValueError(f"{what}: there is no continuous column {name!r}; {remedy}")


class Trend(NamedTuple):
    """The regression of all steps together.

    Attributes:
        units: In which the numbers of these steps are near 1.
        num_steps: How many steps say something.
    """

    units: Units
    num_steps: int


def _trend(seen: Observed, intercept: bool) -> Trend:
    """That of some steps."""
    size = seen.inputs.shape[1], seen.values.shape[1]
    return trend_of(
        lambda: iter([(seen.inputs[seen.rows], seen.values[seen.rows])]), size, intercept
    )


# Work that comes to sums over some steps.
Sums = Callable[[], tuple[np.ndarray, ...]]


def _alone(work: Sums) -> tuple[np.ndarray, ...]:
    return work()


def trend_of(
    parts: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]],
    size: tuple[int, int],
    intercept: bool,
    of_all: Callable[[Sums], tuple[np.ndarray, ...]] = _alone,
) -> Trend:
    """The regression of steps that come part by part; they are gone through four times.

    Args:
        parts: Gives covariates (steps, p) and columns (steps, d) of the steps that say something,
            part by part, NaN for cells that nobody saw; the same ones whenever it is called.
        size: p and d.
        intercept: Whether the first covariate is the number 1.
        of_all: Adds up what processes, each with parts of its own, come to; by itself one is all.
    """
    p, d = size

    def totals() -> tuple[np.ndarray, ...]:
        number, total = 0, np.zeros(p)
        for u, _ in parts():
            number, total = number + len(u), total + u.sum(0)
        return np.array(number), total

    counted, total = of_all(totals)
    number = int(counted)
    if not number:
        return Trend(Units(np.eye(p), np.zeros((p, d)), np.ones(d)), 0)
    # Covariates far from 0 are nearly multiples of the intercept: from their means they are not.
    centre = total / number if intercept else np.zeros(p)
    if intercept:
        centre[0] = 0.0
    centring = np.eye(p)
    centring[0] -= centre

    def squares_of_inputs() -> tuple[np.ndarray, ...]:
        moments = np.zeros((p, p))
        for u, _ in parts():
            moments += (u - centre).T @ (u - centre)
        return (moments,)

    moments = of_all(squares_of_inputs)[0] / number
    sizes = np.sqrt(np.diag(moments))
    sizes = np.where(sizes > 0, sizes, 1.0)
    values, vectors = np.linalg.eigh(moments / np.outer(sizes, sizes))
    # Where two covariates are the same the units, and the prior made of them, stay proper.
    roots = np.sqrt(np.maximum(values, _RIDGE * values.max()))
    own = vectors / roots / sizes[:, None]

    def products() -> tuple[np.ndarray, ...]:
        gram, cross = np.zeros((d, p, p)), np.zeros((d, p))
        for u, y in parts():
            white, known = (u - centre) @ own, np.isfinite(y)
            for j in range(d):
                gram[j] += white[known[:, j]].T @ white[known[:, j]]
                cross[j] += y[known[:, j], j] @ white[known[:, j]]
        return gram, cross

    gram, cross = of_all(products)
    # Directions that hardly vary where a column was seen have no slope.
    slopes = np.stack(
        [np.linalg.pinv(g, 1e-12, True) @ c for g, c in zip(gram, cross, strict=True)]
    )

    def residuals() -> tuple[np.ndarray, ...]:
        many, squares, left = np.zeros(d), np.zeros(d), np.zeros(d)
        for u, y in parts():
            known = np.isfinite(y)
            residual = y - (u - centre) @ own @ slopes.T
            many += known.sum(0)
            squares += np.where(known, y**2, 0.0).sum(0)
            left += np.where(known, residual**2, 0.0).sum(0)
        return many, squares, left

    many, squares, left = of_all(residuals)
    spread = np.sqrt(np.divide(left, many, out=np.ones(d), where=many > 0))
    # What rounding leaves of a column that the covariates tell is no noise.
    little = 1e-10 * np.maximum(np.sqrt(squares / np.maximum(many, 1)), 1e-300)
    spread[spread < little] = 0.0
    whitening = centring @ own
    return Trend(Units(whitening, whitening @ slopes.T, spread), number)


@dataclass(frozen=True, eq=False)
class Channel:
    """A channel bound to demonstrations.

    Attributes:
        name: Its site, "emission_<agent>".
        agent: The agent.
        family: The resolved family.
        names: The expanded discrete parents.
        contexts: The visited contexts, in lexicographic order, one at least.
        row: Context of each step; -1 where the step says nothing.
        observed: What the steps hold.
        num_latents: Number of latents K.
        visits: Whether any step says something: else the context is one that nobody visited.
        own_units: Units of all steps, where those here are only some of them; None: of those here.
    """

    name: str
    agent: str
    family: Emission
    names: tuple[str, ...]
    contexts: Int[np.ndarray, "contexts parents"]
    row: Int[np.ndarray, " steps"]
    observed: Observed
    num_latents: int
    visits: bool = True
    own_units: Units | None = None

    @property
    def visited(self) -> Int[np.ndarray, "contexts parents"]:
        """The contexts in which steps say something."""
        return self.contexts if self.visits else self.contexts[:0]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Contexts, latents, inputs and columns."""
        p, d = self.observed.inputs.shape[1], self.observed.values.shape[1]
        return len(self.contexts), self.num_latents, p, d

    @property
    def seen(self) -> Bool[np.ndarray, "steps d"]:
        """Which cells were seen, of steps that say something."""
        return np.isfinite(self.observed.values) & (self.row >= 0)[:, None]

    @property
    def is_whole(self) -> bool:
        """Whether every step that says something was seen in all columns."""
        return bool(np.isfinite(self.observed.values[self.observed.rows]).all())

    def units(self) -> Units:
        """Units in which the numbers of these steps are near 1."""
        units = self.own_units or _trend(self.observed, self.family.intercept).units
        return units._replace(spread=np.where(units.spread > 0, units.spread, 1.0))

    def log_jacobian(self, units: Units) -> Float[np.ndarray, " steps"]:
        """What turns log densities in some units into those of the data, step by step."""
        return -(self.seen @ np.log(units.spread))

    def prior(self) -> Normals:
        """The prior of every context and latent, (contexts, latents, ...)."""
        contexts, latents, p, d = self.shape
        cores = ((p, d), (p, p), (d, d), ())
        return Normals(
            *(
                np.broadcast_to(part, (contexts, latents, *core)).copy()
                for part, core in zip(self.family.prior(), cores, strict=True)
            )
        )


def bind_channel(family: Emission, demos: Demonstrations, agent: str) -> Channel:
    """A resolved family on demonstrations.

    Raises:
        ValueError: If a parent is no state variable, or a column not there.
    """
    names, _ = expand_parents(family.parents_of(agent), agent, "emission", demos)
    others = [name for name in names if name not in demos.state_variables]
    if others:
        raise ValueError(
            f"emissions: {others[0]!r} cannot be a parent of the channel of {agent}; allowed are "
            "state variables of the same step"
        )
    seen = observed(family, demos, agent)
    values, _ = parent_values(demos)
    states = {name: column[seen.rows] for name, column in values.items()}
    contexts, codes = unique_rows(parent_columns(names, states, {}, {}, len(seen.rows)))
    row = np.full(demos.num_steps, -1, np.int64)
    row[seen.rows] = codes
    visits = len(contexts) > 0
    if not visits:
        contexts = np.zeros((1, len(names)), np.int64)
    return Channel(
        name=f"emission_{agent}",
        agent=agent,
        family=family,
        names=names,
        contexts=contexts,
        row=row,
        observed=seen,
        num_latents=demos.num_latents[demos.agents.index(agent)],
        visits=visits,
    )


def channel_log_density(
    normals: Normals,
    coefficients: Float[np.ndarray, "*batch p d"],
    covariance: Float[np.ndarray, "*batch d d"],
) -> Float[np.ndarray, "*batch"]:
    r"""Log matrix-normal inverse-Wishart densities.

    .. math:: \log MN(B; M, \Lambda^{-1}, \Sigma) + \log IW(\Sigma; \Psi, \nu)

    References:
        Gupta, Nagar (2000), Matrix variate distributions, 2.2 and 3.4.
    """
    from scipy.special import multigammaln

    location, precision, scale, degrees = normals
    p, d = location.shape[-2:]
    apart = coefficients - location
    inverse = np.linalg.inv(covariance)
    log_det = np.linalg.slogdet(covariance)[1]
    squares = np.einsum("...pi,...pq,...qj,...ij->...", apart, precision, apart, inverse)
    normal = -0.5 * (
        squares + p * log_det - d * np.linalg.slogdet(precision)[1] + p * d * np.log(2 * np.pi)
    )
    wishart = (
        0.5 * degrees * (np.linalg.slogdet(scale)[1] - d * np.log(2))
        - multigammaln(degrees / 2, d)
        - 0.5 * (degrees + d + 1) * log_det
        - 0.5 * np.einsum("...ij,...ji->...", scale, inverse)
    )
    return np.asarray(normal + wishart)


def channel_draws(
    generator: np.random.Generator, normals: Normals
) -> tuple[Float[np.ndarray, "*batch p d"], Float[np.ndarray, "*batch d d"]]:
    """Coefficients and covariances drawn from their densities.

    References:
        Bartlett (1933), On the theory of statistical regression.
    """
    location, precision, scale, degrees = normals
    d = scale.shape[-1]
    bartlett = np.tril(generator.standard_normal(scale.shape), -1)
    shapes = 0.5 * (degrees[..., None] - np.arange(d))
    bartlett[..., np.arange(d), np.arange(d)] = np.sqrt(2 * generator.gamma(shapes))
    factor = np.linalg.cholesky(scale) @ np.swapaxes(np.linalg.inv(bartlett), -1, -2)
    root = np.linalg.inv(np.linalg.cholesky(precision))
    noise = np.swapaxes(root, -1, -2) @ generator.standard_normal(location.shape)
    transposed = np.swapaxes(factor, -1, -2)
    return location + noise @ transposed, factor @ transposed


@dataclass(eq=False)
class DrawnChannelRows:
    """One draw of a channel's coefficients and covariances, for any contexts.

    Attributes:
        channel: The channel; which contexts it is bound to does not matter.
        generator: Draws from the prior what nobody has asked for yet.
        contexts: Contexts whose values are known.
        coefficients: Of these contexts, (contexts, latents, p, d).
        covariance: The same, (contexts, latents, d, d).
    """

    channel: "Channel"
    generator: np.random.Generator
    contexts: Int[np.ndarray, "contexts parents"]
    coefficients: Float[np.ndarray, "contexts latents p d"]
    covariance: Float[np.ndarray, "contexts latents d d"]

    @classmethod
    def of_prior(cls, channel: "Channel", generator: np.random.Generator) -> "DrawnChannelRows":
        """Nothing is known yet."""
        _, latents, p, d = channel.shape
        nothing = np.zeros((0, latents, p, d)), np.zeros((0, latents, d, d))
        return cls(channel, generator, channel.contexts[:0], *nothing)

    def rows(
        self, contexts: Int[np.ndarray, "k parents"]
    ) -> tuple[Float[np.ndarray, "k latents p d"], Float[np.ndarray, "k latents d d"]]:
        """Coefficients and covariances of any contexts."""
        found = match_rows(self.contexts, contexts)
        if (found < 0).any():
            new, _ = unique_rows(contexts[found < 0])
            prior = self.channel.prior()
            many = (np.broadcast_to(part[:1], (len(new), *part.shape[1:])) for part in prior)
            coefficients, covariance = channel_draws(self.generator, Normals(*many))
            self.contexts = np.concatenate([self.contexts, new])
            self.coefficients = np.concatenate([self.coefficients, coefficients])
            self.covariance = np.concatenate([self.covariance, covariance])
            found = match_rows(self.contexts, contexts)
        return self.coefficients[found], self.covariance[found]


def channel_sites(channel: Channel) -> tuple[str, str]:
    """Names of the draws of a channel: of its means or coefficients, and of its covariances."""
    kind = "mean" if isinstance(channel.family, NormalEmission) else "coefficients"
    return f"emission_{kind}_{channel.agent}", f"emission_covariance_{channel.agent}"


def matched(channel: Channel, contexts: Int[np.ndarray, "k parents"]) -> Int[np.ndarray, " k"]:
    """Which of a channel's contexts are asked for; -1 where it has no such."""
    return match_rows(channel.visited, contexts)


def step_log_density(
    channel: Channel,
    coefficients: Float[np.ndarray, "contexts latents p d"],
    covariance: Float[np.ndarray, "contexts latents d d"],
) -> Float[np.ndarray, "steps latents"]:
    """log p(columns | latent) of every step, a density in the units of the data.

    Components that were not seen are summed out; 0 where a step says nothing.
    """
    found = np.zeros((len(channel.row), channel.num_latents))
    for context, seen, steps in by_pattern(channel):
        u = channel.observed.inputs[steps]
        y = channel.observed.values[steps][:, seen]
        for latent in range(channel.num_latents):
            factor = np.linalg.cholesky(covariance[context, latent][np.ix_(seen, seen)])
            residual = y - u @ coefficients[context, latent][:, seen]
            white = np.linalg.solve(factor, residual.T)
            log_det = 2 * np.log(np.diag(factor)).sum()
            found[steps, latent] = -0.5 * (
                (white**2).sum(0) + log_det + len(factor) * np.log(2 * np.pi)
            )
    return found


def step_inputs(
    channel: Channel, demos: Demonstrations
) -> tuple[Float[np.ndarray, "steps p"], Int[np.ndarray, "steps parents"]]:
    """u of every step, NaN where unknown or the agent is away, and the values of the parents."""
    there = demos.present[:, demos.agents.index(channel.agent)]
    values, _ = parent_values(demos)
    rows = parent_columns(channel.names, values, {}, {}, demos.num_steps)
    return np.where(there[:, None], channel.observed.inputs, np.nan), rows


class Groups(NamedTuple):
    """Steps by their context and by which columns were seen.

    Attributes:
        number: Group of each step; -1 where it says nothing.
        context: Context of each group.
        seen: Which columns were seen in each group.
    """

    number: Int[np.ndarray, " steps"]
    context: Int[np.ndarray, " groups"]
    seen: Bool[np.ndarray, "groups d"]


def groups_of(channel: Channel) -> Groups:
    """The groups of a channel's steps."""
    steps = channel.observed.rows
    number = np.full(len(channel.row), -1, np.int64)
    keys = np.concatenate([channel.row[steps, None], channel.seen[steps]], axis=1)
    groups, number[steps] = unique_rows(keys)
    return Groups(number, groups[:, 0], groups[:, 1:].astype(bool))


def steps_of_groups(number: Int[np.ndarray, " steps"], groups: int) -> list[np.ndarray]:
    """The steps of each group, in order."""
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number[number >= 0], minlength=groups))
    # Steps that say nothing come first.
    return np.split(order, len(number) - ends[-1:] + np.append(0, ends[:-1]))[1:] if groups else []


def by_pattern(
    channel: Channel,
) -> list[tuple[int, Bool[np.ndarray, " d"], Int[np.ndarray, " some"]]]:
    """The steps that say something, by their context and by which columns were seen."""
    groups = groups_of(channel)
    parts = steps_of_groups(groups.number, len(groups.context))
    return [
        (int(context), seen, part)
        for context, seen, part in zip(groups.context, groups.seen, parts, strict=True)
    ]


def _names(given: Any, what: str, least: int) -> Any:
    if isinstance(given, Mapping):
        return {str(agent): _names(names, what, least) for agent, names in given.items()}
    if isinstance(given, str):
        raise ValueError(f"{what} must be a tuple of names, such as ({given!r},); got {given!r}")
    try:
        names = tuple(given)
    except TypeError:
        raise ValueError(f"{what} must be a tuple of names, got {given!r}") from None
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what}: {name!r} is not a name of a column")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what}: {twice!r} is named more than once")
    if len(names) < least:
        raise ValueError(f"{what}: name a continuous column at least")
    return names


def _numbers(given: Any, what: str, positive: bool) -> Any:
    """Numbers as tuples in tuples, so that families of equal numbers are equal."""
    try:
        values = np.array(given, np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not np.isfinite(values).all() or (positive and not (values > 0).all()):
        kind = "positive finite" if positive else "finite"
        raise ValueError(f"{what} is {given!r}; allowed are {kind} numbers")
    return _nested(values.tolist())


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def _fitted(given: Any, shape: tuple[int, ...], latents: int) -> np.ndarray | None:
    """Numbers of a shape, of each latent or of all, or one for all; None where they are neither."""
    values = np.asarray(given, np.float64)
    if values.shape == (latents, *shape):
        return values
    return np.broadcast_to(values, shape).copy() if values.shape in ((), shape) else None


def _square(given: Any, size: int) -> np.ndarray | None:
    """A square matrix, from one, its diagonal, or one number for the diagonal."""
    values = np.asarray(given, np.float64)
    if values.shape == (size, size):
        return 0.5 * (values + values.T)
    return np.diag(np.broadcast_to(values, (size,))) if values.shape in ((), (size,)) else None
