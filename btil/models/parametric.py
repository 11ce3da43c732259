"""Tables whose rows depend on parameters that have priors of their own.

A `ParametricCPT` names its parameters and their priors, and says what rows they make: either
Dirichlet rows around a concentration that depends on them, or rows that are a function of them.
Every method but `exact` takes such tables. What methods need of them beyond that (the parameters
in unconstrained space, their prior density there) is written here once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from btil.models.cpt import CONCENTRATIONS, CPT, Contexts
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up

# NumPyro takes a quarter of a second to load, and tables without parameters do without it.
if TYPE_CHECKING:
    from numpyro import distributions as dist

    from btil.models.team import BoundModel, Table

Values = Mapping[str, Any]

# Draws whose rows are evaluated side by side.
_DRAWS_TOGETHER = 64
_AXES = ("contexts", "latents", "values")


class ParametricCPT(CPT):
    r"""A family of tables whose rows depend on parameters :math:`\phi` with priors.

    A subclass writes `priors` and one of two:

    - `row_concentration`: rows are Dirichlet given the parameters,
      :math:`\theta_{c,x} \sim \mathrm{Dirichlet}(u_{c,x}(\phi))`;
    - `log_rows`: rows are a function of the parameters, :math:`\theta_{c,x} = f_{c,x}(\phi)`.

    Both are JAX functions of the parameters and of `inputs`, arrays with a row per context that are
    made on the host.

    Attributes:
        parents: Names of the parents, or a mapping {agent: names}.
        parameter_axes: {parameter: names of its axes}, of "latent", "next_latent", "action" or any
            other word; for labelled output, and to rename latents.
        shared_parameters: Whether the agents' tables have the parameters in common, though each
            has rows of its own.

    Example:
        >>> class NoisyTable(ParametricCPT):
        ...     '''The same rows in every context, mixed with uniform noise of unknown weight.'''
        ...
        ...     def priors(self, contexts):
        ...         from numpyro import distributions as dist
        ...
        ...         rows = dist.Dirichlet(jnp.ones(contexts.row_shape))
        ...         return {"noise": dist.Beta(1.0, 9.0), "table": rows}
        ...
        ...     def log_rows(self, parameters, inputs):
        ...         noise, table = parameters["noise"], parameters["table"]
        ...         return jnp.log((1 - noise) * table + noise / table.shape[-1])[None]
    """

    parametric: ClassVar[bool] = True
    parameter_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    shared_parameters: bool = False

    @property
    def learned(self) -> bool:
        """Always true."""
        return True

    @property
    def dirichlet_rows(self) -> bool:
        """Whether rows are Dirichlet given the parameters, not a function of them."""
        return type(self).row_concentration is not ParametricCPT.row_concentration

    def priors(self, contexts: Contexts) -> "Mapping[str, dist.Distribution]":
        """The priors of the parameters, {parameter: NumPyro distribution}.

        Args:
            contexts: Of these only names, sizes and shapes (`num_latents`, `num_values`, `sizes`,
                `row_shape`): the parameters do not depend on which contexts occur.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say the priors of its parameters"
        )

    def inputs(self, contexts: Contexts) -> Mapping[str, np.ndarray]:
        """What the rows of these contexts depend on besides the parameters.

        Returns:
            Arrays whose first axis is that of the contexts; none unless the family says so.
        """
        return {}

    def row_concentration(self, parameters: Values, inputs: Values) -> Float[Array, "..."]:
        """Dirichlet concentration of every row, broadcastable to (contexts, latents, values)."""
        raise NotImplementedError(f"rows of {type(self).__name__} are not Dirichlet's")

    def log_rows(self, parameters: Values, inputs: Values) -> Float[Array, "..."]:
        """Logs of the rows, broadcastable to (contexts, latents, values)."""
        raise NotImplementedError(
            f"{type(self).__name__} has neither row_concentration nor log_rows"
        )

    def exchangeable_latents(self, contexts: Contexts, first: int, second: int) -> bool:
        """Whether swapping two latents leaves the prior as it is; False unless a family knows."""
        return False

    def concentration(self, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Refused: there is none before the parameters are known."""
        raise NotImplementedError(
            f"the rows of {type(self).__name__} depend on parameters; see row_concentration"
        )

    def arguments(self) -> dict[str, Any] | None:
        """None unless a family says otherwise: a file cannot hold it."""
        return None


@dataclass(frozen=True)
class ParametricSite:
    """A parametric table as the NumPyro model has it: all of it that is not data, hashable.

    Attributes:
        name: Site of its rows, e.g. "transition_ann".
        cpt: The family.
        parameters: Its parameters, as pairs (name in the family, site), e.g.
            ("base", "transition_ann_base").
        shape: (contexts, latents, values), or (contexts, latents) for an initial table.
        kind: The contexts without their rows, as a plain tuple.
        reads: A checksum of the family and all that its functions read: the same object may come to
            compute something else, and programs of what it computed before are then not its.
    """

    name: str
    cpt: ParametricCPT
    parameters: tuple[tuple[str, str], ...]
    shape: tuple[int, ...]
    kind: tuple[Any, ...]
    reads: str

    @property
    def contexts(self) -> Contexts:
        """The contexts with no rows: names, sizes and shapes alone."""
        no_rows = np.zeros((0, len(self.kind[3])), np.int64)
        return Contexts._make((*self.kind[:6], no_rows, *self.kind[6:]))

    def priors(self) -> "dict[str, dist.Distribution]":
        """The priors of the parameters by their sites, each one event."""
        priors = self.cpt.priors(self.contexts)
        return {
            site: priors[parameter].to_event(len(priors[parameter].batch_shape))
            for parameter, site in self.parameters
        }

    def own(self, parameters: Values) -> dict[str, Any]:
        """Of the values of all sites those of this table, by their names in the family."""
        return {parameter: parameters[site] for parameter, site in self.parameters}


def parametric_site(table: "Table") -> ParametricSite:
    """The description of a table with a parametric family.

    Raises:
        ValueError: If the family has no parameters, or what it says of them are no priors of
            continuous parameters.
    """
    cpt, contexts = table.cpt, table.contexts
    assert isinstance(cpt, ParametricCPT)
    kind = (*contexts[:6], *contexts[7:])
    priors = cpt.priors(contexts._replace(rows=contexts.rows[:0]))
    _check_priors(f"{table.name}: priors of {type(cpt).__name__}", priors)
    parameters = tuple(priors)
    if not parameters:
        raise ValueError(f"{table.name}: {type(cpt).__name__} has no parameters")
    prefix = contexts.role if cpt.shared_parameters else table.name
    return ParametricSite(
        name=table.name,
        cpt=cpt,
        parameters=tuple((parameter, f"{prefix}_{parameter}") for parameter in parameters),
        shape=table.shape,
        kind=kind,
        reads=table.reads,
    )


def _check_priors(whose: str, priors: Any) -> None:
    """Refuse what are no priors of continuous parameters."""
    from numpyro import distributions as dist

    if not isinstance(priors, Mapping):
        raise ValueError(
            f"{whose}: a mapping {{parameter: NumPyro distribution}} expected, got "
            f"{type(priors).__name__}"
        )
    for name, prior in priors.items():
        if not isinstance(prior, dist.Distribution):
            raise ValueError(
                f"{whose}: a NumPyro distribution of {name} expected, got {type(prior).__name__}"
            )
        if prior.is_discrete:
            raise ValueError(
                f"{whose}: {name} is discrete ({type(prior).__name__}), but methods need "
                "parameters that vary continuously; sum it out, or make it part of the latent"
            )


def parametric_sites(bound: "BoundModel") -> tuple[ParametricSite, ...]:
    """The parametric tables that have rows to learn.

    Raises:
        ValueError: If a parameter's site has the name of a table, or differs in shape between
            agents that share it.
    """
    described = tuple(
        parametric_site(table) for table in bound.learned.values() if table.parametric
    )
    owners: dict[str, ParametricSite] = {}
    for table in described:
        for site, prior in table.priors().items():
            if site in bound.tables:
                raise ValueError(
                    f"{site} names a parameter as well as a table; give the agent or the parameter "
                    "another name"
                )
            other = owners.setdefault(site, table)
            if other is table:
                continue
            if not (other.cpt.shared_parameters and table.cpt.shared_parameters):
                raise ValueError(
                    f"{site} names a parameter of {other.name} as well as one of {table.name}; "
                    "give an agent or a parameter another name"
                )
            if not _same_prior(other.priors()[site], prior):
                raise ValueError(
                    f"{site}: {other.name} and {table.name} share this parameter, but differ in "
                    "its prior or shape; give agents of different sizes or priors no common one"
                )
    return described


def _same_prior(one: "dist.Distribution", other: "dist.Distribution") -> bool:
    """Whether two priors are the same family with the same numbers."""
    if type(one) is not type(other) or one.shape() != other.shape():
        return False
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


def parameter_axes(table: "Table | ParametricSite", parameter: str) -> tuple[str, ...]:
    """What the axes of a parameter are in the table that it is of; () where the family is silent.

    A family's "value" is an action in a policy, a next latent in a transition and a latent in an
    initial table, which has no other axis of latents.

    Example:
        >>> parameter_axes(bound.tables["transition_ann"], "base")  # doctest: +SKIP
        ('latent', 'next_latent')
    """
    cpt: Any = table.cpt
    axes: tuple[str, ...] = tuple(cpt.parameter_axes.get(parameter, ()))
    role = table.contexts.role
    if role == "initial" and "value" in axes:
        axes = tuple(axis for axis in axes if axis != "latent")
    value = {"policy": "action", "transition": "next_latent", "initial": "latent"}[role]
    return tuple(value if axis == "value" else axis for axis in axes)


def all_priors(tables: tuple[ParametricSite, ...]) -> "dict[str, dist.Distribution]":
    """The priors of all parameters by their sites; tables may have some in common."""
    priors: "dict[str, dist.Distribution]" = {}
    for table in tables:
        for site, prior in table.priors().items():
            priors.setdefault(site, prior)
    return priors


@promotion_allowed()
def constrain(priors: "Mapping[str, dist.Distribution]", unconstrained: Values) -> dict[str, Array]:
    """Parameters from unconstrained space to where their priors live."""
    return {site: _constrained(prior, unconstrained[site])[0] for site, prior in priors.items()}


def _constrained(
    prior: "dist.Distribution", unconstrained: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """A parameter where its prior lives, and the log Jacobian of its parts."""
    from numpyro import distributions as dist
    from numpyro.distributions.transforms import biject_to

    while isinstance(prior, dist.Independent):
        prior = prior.base_dist
    transform = biject_to(prior.support)

    def one(part: Float[Array, "..."]) -> tuple[Array, Array]:
        value = transform(part)
        return value, transform.log_abs_det_jacobian(part, value)

    # Part by part: the transforms themselves mix arrays of different rank.
    for _ in range(unconstrained.ndim - transform.domain.event_dim):
        one = jax.vmap(one)
    return one(unconstrained)


def unconstrained_shapes(priors: "Mapping[str, dist.Distribution]") -> dict[str, tuple[int, ...]]:
    """Shape of every parameter in unconstrained space."""
    # Not from a module within: ArviZ leaves a NumPyro that is loaded by its own attributes alone.
    from numpyro import distributions as dist

    return {
        site: tuple(dist.biject_to(prior.support).inverse_shape(prior.shape()))
        for site, prior in priors.items()
    }


@promotion_allowed()
def unconstrained_log_density(
    priors: "Mapping[str, dist.Distribution]", unconstrained: Values
) -> Float[Array, ""]:
    """Log prior density of all parameters in unconstrained space, Jacobian included."""
    parts = []
    for site, prior in priors.items():
        value, jacobian = _constrained(prior, unconstrained[site])
        parts.append(prior.log_prob(value) + jnp.sum(jacobian))
    return sum(parts[1:], parts[0]) if parts else jnp.zeros(())


def normal_of_unconstrained(
    prior: "dist.Distribution", location: Float[Array, "..."], scale: Float[Array, "..."]
) -> "dist.Distribution":
    """What a parameter is distributed like if its unconstrained values are independent normals."""
    from numpyro import distributions as dist
    from numpyro.distributions.transforms import biject_to

    normal = dist.Normal(location, scale).to_event(jnp.ndim(location))
    return dist.TransformedDistribution(normal, biject_to(prior.support))


def given_concentration(
    table: ParametricSite, parameters: Values, inputs: Values
) -> Float[Array, "..."]:
    """Concentrations of the table's rows, with all axes but not broadcast, `parameters` by sites.

    Kept above the smallest normal number: a parameter that rounds to zero leaves a density.
    """
    values = _with_axes(table, table.cpt.row_concentration(table.own(parameters), inputs))
    return jnp.maximum(values, jnp.finfo(values.dtype).tiny)


def _with_axes(table: ParametricSite, values: Float[Array, "..."]) -> Float[Array, "..."]:
    """All of a table's axes, those that are left out as ones of length 1."""
    return values.reshape((1,) * (len(table.shape) - values.ndim) + values.shape)


def given_log_rows(
    table: ParametricSite, parameters: Values, inputs: Values
) -> Float[Array, "..."]:
    """Logs of rows that are a function of the parameters, with all axes but not broadcast."""
    return _with_axes(table, table.cpt.log_rows(table.own(parameters), inputs))


def check_prior(table: "Table") -> None:
    """Refuse a learned table whose family gives no proper prior of its rows.

    Rows that are a function of parameters are looked at under the central ones.

    Raises:
        ValueError: Naming the table, the family, what it gave and what was expected.
    """
    family, shape = type(table.cpt).__name__, table.contexts.shape
    if table.parametric:
        site = parametric_site(table)
        kind = "row_concentration" if site.cpt.dirichlet_rows else "log_rows"
        with jax.enable_x64(True):
            given = {name: value[0] for name, value in _central(table).items()}
            inputs = dict(site.cpt.inputs(table.contexts))
            values = np.asarray(_said_of_rows(site, kind, given, inputs))
        broadcasts = values.ndim <= len(shape) and all(
            own in (1, wanted) for own, wanted in zip(values.shape[::-1], shape[::-1], strict=False)
        )
    else:
        kind = "concentration"
        values = np.asarray(table.cpt.concentration(table.contexts))
        broadcasts = values.shape == shape
    if not broadcasts:
        raise ValueError(
            f"{table.name}: {kind} of {family} has shape {values.shape}, expected {shape} "
            f"({', '.join(_AXES[: len(shape)])}){' or what broadcasts to it' * table.parametric}"
        )
    if kind != "log_rows":
        least, most = CONCENTRATIONS
        wrong = ~((values >= least) & (values <= most))
        allowed = f"positive finite numbers, {least:g} to {most:g}"
    else:
        sums = np.exp(np.broadcast_to(values, shape)).sum(-1)
        wrong, allowed = ~(np.abs(sums - 1) < 1e-5), "logs of rows that sum to 1"
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(
            f"{table.name}: {kind} of {family} at {at} is {values[at].tolist()}; allowed are "
            f"{allowed}"
        )


@partial(jax.jit, static_argnames=("table", "kind"))
def _said_of_rows(
    table: ParametricSite, kind: str, parameters: Values, inputs: Values
) -> Float[Array, "..."]:
    """What a method of the family says of rows, in whatever shape it does."""
    return getattr(table.cpt, kind)(table.own(parameters), inputs)


# What follows is asked for a table at a time, in double precision.


def central_rows(table: "Table") -> Float[np.ndarray, "..."]:
    """Rows under the central parameters (their mean, where they are Dirichlet's)."""
    return expected_rows(parametric_site(table), _central(table), table.contexts)


def central_concentration(table: "Table") -> Float[np.ndarray, "..."]:
    """Dirichlet prior of a learned table: given, or under the central parameters."""
    if not isinstance(table.cpt, ParametricCPT):
        return table.cpt.concentration(table.contexts)
    return expected_concentration(parametric_site(table), _central(table), table.contexts)


def _central(table: "Table") -> dict[str, np.ndarray]:
    """One draw: the origin of unconstrained space, a point that favours no latent."""
    with jax.enable_x64(True):
        values = _constrained_origin(parametric_site(table))
        return {site: np.asarray(value)[None] for site, value in values.items()}


@partial(jax.jit, static_argnames=("table",))
def _constrained_origin(table: ParametricSite) -> dict[str, Array]:
    priors = table.priors()
    shapes = unconstrained_shapes(priors)
    return constrain(priors, {site: jnp.zeros(shape) for site, shape in shapes.items()})


def expected_concentration(
    table: ParametricSite, draws: Values, contexts: Contexts
) -> Float[np.ndarray, "..."]:
    """Dirichlet concentration of the rows of any contexts, averaged over draws.

    Args:
        table: A table whose rows are Dirichlet given the parameters.
        draws: Parameters by their sites, (draws, ...); those of other tables do not matter.
        contexts: Any contexts of the table.
    """
    return _average(table, draws, contexts, normalized=False)


def expected_rows(
    table: ParametricSite, draws: Values, contexts: Contexts
) -> Float[np.ndarray, "..."]:
    """E[rows | parameters] of any contexts, averaged over draws; as `expected_concentration`."""
    rows = _average(table, draws, contexts, normalized=True)
    return rows / rows.sum(-1, keepdims=True)


def _average(
    table: ParametricSite, draws: Values, contexts: Contexts, normalized: bool
) -> Float[np.ndarray, "..."]:
    number = len(contexts.rows)
    if number == 0:
        return np.zeros(contexts.shape)
    # Padded, so that one program serves many numbers of contexts.
    index = np.minimum(np.arange(rounded_up(number)), number - 1)
    inputs = {
        name: np.asarray(values, np.float64)[index]
        for name, values in table.cpt.inputs(contexts).items()
    }
    given = {site: np.asarray(draws[site], np.float64) for _, site in table.parameters}
    with jax.enable_x64(True):
        mean = np.asarray(_mean_over_draws(table, given, inputs, normalized))
    return np.array(np.broadcast_to(mean[: number if len(mean) > 1 else 1], contexts.shape))


@partial(jax.jit, static_argnames=("table", "normalized"))
def _mean_over_draws(
    table: ParametricSite, draws: Values, inputs: Values, normalized: bool
) -> Float[Array, "..."]:
    def one(parameters: Values) -> Array:
        if not table.cpt.dirichlet_rows:
            return jnp.exp(given_log_rows(table, parameters, inputs))
        values = given_concentration(table, parameters, inputs)
        return values / jnp.sum(values, -1, keepdims=True) if normalized else values

    return mean_over_draws(one, draws)


def mean_over_draws(function: Callable[[Any], Any], draws: Values) -> Any:
    """Average of a function of the parameters over draws of them, some side by side."""
    number = len(next(iter(draws.values())))
    together = math.gcd(number, _DRAWS_TOGETHER)
    parts = jax.tree.map(lambda values: values.reshape(-1, together, *values.shape[1:]), draws)

    def add(total: Any, part: Values) -> tuple[Any, None]:
        found = jax.vmap(function)(part)
        return jax.tree.map(lambda t, values: t + jnp.sum(values, axis=0), total, found), None

    shapes = jax.eval_shape(function, jax.tree.map(lambda values: values[0], draws))
    zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda values: values / number, total)
