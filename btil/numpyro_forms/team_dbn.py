"""The team's dynamic Bayesian network as a NumPyro model, in two forms of one density."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro import distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.ops.indexing import Vindex

from btil.demonstrations import Demonstrations
from btil.demonstrations.data import refuse_gaps
from btil.messages.channels import log_evidence, patterns
from btil.messages.smoother import unseen_moves
from btil.models.emission import Normals, Units
from btil.models.parametric import given_concentration, given_log_rows
from btil.models.team import BoundModel, TeamModel, bind
from btil.numerics.matrix_normal import Hyper, log_kernel, transposed
from btil.numpyro_forms.latent_chain import LatentChain
from btil.numpyro_forms.model_data import (
    AgentSites,
    AgentSteps,
    ChannelSites,
    ModelData,
    Structure,
    model_data,
)

# Stands for log 0 in the enumerated form: exp of it is 0 exactly, yet sums over latents that are
# all excluded keep a finite gradient, where -inf would give NaN.
_EXCLUDED = -1e30


class _Label(dist.Delta):
    """A point mass whose log probability elsewhere is the finite stand-in for log 0."""

    def log_prob(self, value: Array) -> Array:
        return jnp.where(value == self.v, 0.0, _EXCLUDED)


def team_dbn(
    model: TeamModel, demos: Demonstrations, marginalize: str = "forward"
) -> Callable[[], None]:
    """The team's dynamic Bayesian network (the paper, Figure 3) as a NumPyro model.

    Sites: `policy_<agent>`, `transition_<agent>`, `initial_<agent>` with one row per visited
    context (learned tables only; a shared table is one site `policy`, ...), `action_<agent>`
    observed. Continuous columns have `emission_mean_<agent>` (or `emission_coefficients_<agent>`)
    and `emission_covariance_<agent>`, functions of sites in units in which columns are about 1
    (`emission_standardised_<agent>`, `emission_factor_<agent>`). Parameters of parametric families
    are sites `<table>_<parameter>`; rows that are a function of them are deterministic sites. Both
    forms have the same log density, labels and unequal lengths included.

    Args:
        model: The team model.
        demos: The demonstrations; their labels are observed.
        marginalize: "forward" sums the latents out in the likelihood (`LatentChain`), which is
            what NUTS and SVI want. "enumerate" spells the network out with `scan` and enumerated
            sites `latent_<agent>`, observed sites `label_<agent>`, and a plate `episode` at
            dim -1; evaluate it with `numpyro.contrib.funsor.log_density` under
            `enum(config_enumerate(model), first_available_dim=-2)`. Impossible data have log
            density -inf in the forward form, about -1e30 in this one. Where a given transition
            has zeros (`StaticCPT`, say) this form's values are right but its gradients NaN:
            funsor takes logarithms of products that are exactly zero.

    Returns:
        A model of no arguments.

    Raises:
        ValueError: If `marginalize` is neither, or the model does not fit the data.

    Example:
        >>> numpyro.infer.NUTS(team_dbn(model, demos))  # doctest: +SKIP
    """
    forms = {"forward": forward_model, "enumerate": enumerated_model}
    if marginalize not in forms:
        raise ValueError(f"marginalize must be one of {', '.join(forms)}, got {marginalize!r}")
    if marginalize == "enumerate":
        refuse_gaps(
            demos,
            "marginalize='enumerate' has no sites for them",
            "use marginalize='forward', which sums over them",
        )
    structure, data = model_data(bind(model, demos))
    return partial(forms[marginalize], structure, data)


class ChannelValues(NamedTuple):
    """Values of a channel's sites.

    Attributes:
        standardised: Coefficients in units in which columns are about 1.
        factor: Cholesky factors of the covariances in such units.
    """

    standardised: Float[Array, "contexts latents p d"]
    factor: Float[Array, "contexts latents d d"]


def sample_channels(structure: Structure, data: ModelData) -> dict[str, ChannelValues]:
    """Sample coefficients and covariances of all channels.

    They are sampled in units in which columns are about 1, and stand in those of the data as
    deterministic sites beside.
    """
    found = {}
    for sites in structure.channels:
        steps, units, _ = jax.tree.map(jnp.asarray, data.channels[sites.agent])
        found[sites.agent] = _sample_normals(sites, steps.prior)
        coefficients, covariance = in_units(units, found[sites.agent])
        if sites.normal:
            coefficients = coefficients[..., 0, :]
        numpyro.deterministic(sites.coefficients, coefficients)
        numpyro.deterministic(sites.covariance, covariance)
    return found


def _sample_normals(sites: ChannelSites, normals: Hyper) -> ChannelValues:
    """Sample the sites of a channel from matrix-normal inverse-Wishart densities."""
    of_factor = dist.InverseWishartCholesky(normals.degrees, scale_matrix=normals.scale)
    factor = jnp.asarray(numpyro.sample(sites.factor, of_factor.to_event(2)))
    rows = jnp.linalg.cholesky(jnp.linalg.inv(normals.precision))
    of_coefficients = dist.MatrixNormal(normals.location, rows, factor)
    standardised = numpyro.sample(sites.standardised, of_coefficients.to_event(2))
    return ChannelValues(jnp.asarray(standardised), factor)


def sample_channel_posteriors(bound: BoundModel, posteriors: Mapping[str, Any]) -> None:
    """Sample the sites of all channels from their posterior: for a guide.

    Args:
        bound: The model on its data.
        posteriors: Matrix-normal inverse-Wishart densities by the channels' names, in the units of
            the data.
    """
    for channel in bound.channels.values():
        inside = channel.units().inside(Normals(*posteriors[channel.name]))
        _sample_normals(ChannelSites.of(channel), Hyper(*map(jnp.asarray, inside)))


def in_units(
    units: Units, values: ChannelValues
) -> tuple[Float[Array, "contexts latents p d"], Float[Array, "contexts latents d d"]]:
    """Coefficients and covariances in the units of the data."""
    coefficients = units.trend + units.whitening @ values.standardised * units.spread
    factor = jnp.asarray(units.spread)[:, None] * values.factor
    return coefficients, factor @ transposed(factor)


def step_evidence(
    data: ModelData, agent: str, values: ChannelValues
) -> Float[Array, "episodes steps latents"]:
    """The log density of every step of a channel under each latent, in the units of the data."""
    steps, _, jacobian = jax.tree.map(jnp.asarray, data.channels[agent])
    covariance = values.factor @ transposed(values.factor)
    context = steps.data.context
    seen = patterns(steps.data, covariance.shape[1])
    kernel = log_kernel(values.standardised[context], covariance[context], seen)
    logs = jnp.transpose(log_evidence(kernel, steps.data), (2, 0, 1))
    return logs + jacobian[..., None]


def sample_log_tables(structure: Structure, data: ModelData) -> dict[str, Float[Array, "..."]]:
    """Sample every learned table; logs of all tables by site name."""
    tables = {name: jnp.asarray(rows) for name, rows in data.log_fixed.items()}
    parameters = {site: numpyro.sample(site, prior) for site, prior in structure.priors.items()}
    for name in structure.learned:
        prior = dist.Dirichlet(jnp.asarray(data.concentration[name]))
        rows = numpyro.sample(name, prior.to_event(prior.concentration.ndim - 1))
        tables[name] = _log_of_drawn(jnp.asarray(rows))
    for table in structure.parametric:
        inputs = jax.tree.map(jnp.asarray, data.inputs[table.name])
        if table.cpt.dirichlet_rows:
            concentration = given_concentration(table, parameters, inputs)
            prior = dist.Dirichlet(jnp.broadcast_to(concentration, table.shape))
            rows = numpyro.sample(table.name, prior.to_event(len(table.shape) - 1))
            tables[table.name] = _log_of_drawn(jnp.asarray(rows))
        else:
            logs = jnp.broadcast_to(given_log_rows(table, parameters, inputs), table.shape)
            numpyro.deterministic(table.name, jnp.exp(logs))
            tables[table.name] = logs
    return tables


def _log_of_drawn(rows: Float[Array, "*rows values"]) -> Float[Array, "*rows values"]:
    # A tiny probability can round to zero; its log must stay finite, and so its gradient.
    return jnp.log(jnp.maximum(rows, jnp.finfo(rows.dtype).tiny))


def latent_chain(
    sites: AgentSites,
    data: ModelData,
    tables: dict[str, Float[Array, "..."]],
    channels: Mapping[str, ChannelValues],
) -> LatentChain:
    """One agent's actions in all episodes, given the logs of all tables and its channel."""
    values = channels.get(sites.agent)
    steps = jax.tree.map(jnp.asarray, data.steps[sites.agent])
    log_initial, log_moves = _log_moves(sites, steps, tables)
    log_policy = tables[sites.policy][steps.policy]
    if steps.away is not None:
        log_policy = jnp.where(steps.away[..., None, None] > 0, 0.0, log_policy)
    log_likelihood = steps.log_weights
    if values is not None:
        said = step_evidence(data, sites.agent, values)
        log_likelihood = said if log_likelihood is None else log_likelihood + said
    return LatentChain(
        log_initial, log_moves, log_policy, steps.labels, jnp.asarray(data.lengths),
        log_likelihood,
    )  # fmt: skip


def _log_moves(
    sites: AgentSites, steps: AgentSteps, tables: dict[str, Float[Array, "..."]]
) -> tuple[Float[Array, "episodes latents"], Float[Array, "episodes moves latents latents"]]:
    """Where an agent's latents begin, and how they move from each step to the next."""
    initial, transition = tables[sites.initial], tables[sites.transition]
    log_moves = transition[steps.transition]
    if steps.unseen is not None:
        policy = tables[sites.policy]
        summed = logsumexp(unseen_moves(policy, transition, steps.unseen.rows), axis=-1)
        chosen = summed[jnp.maximum(steps.unseen.move, 0)]
        log_moves = jnp.where((steps.unseen.move >= 0)[..., None, None], chosen, log_moves)
    if steps.stays is None:
        return initial[steps.initial], log_moves
    # A stay begins from the initial table wherever it is; while away nothing moves.
    nowhere = -math.log(initial.shape[-1])
    begun = jnp.where((steps.stays >= 0)[..., None], initial[jnp.maximum(steps.stays, 0)], nowhere)
    anew = (steps.stays >= 0) | (steps.away > 0)
    moves = jnp.where(anew[:, 1:, None, None], begun[:, 1:, None, :], log_moves)
    return begun[:, 0], moves


def forward_model(structure: Structure, data: ModelData) -> None:
    """The collapsed form: every agent's latents summed out by its forward pass."""
    tables = sample_log_tables(structure, data)
    channels = sample_channels(structure, data)
    for sites in structure.agents:
        with numpyro.plate("episode", len(data.lengths)):
            numpyro.sample(
                f"action_{sites.agent}",
                latent_chain(sites, data, tables, channels),
                obs=jnp.asarray(data.steps[sites.agent].actions),
            )


def episode_log_likelihood(
    structure: Structure, data: ModelData, rows: Mapping[str, Float[Array, "..."]]
) -> Float[Array, " episodes"]:
    """log p(actions, labels | states, rows) of each episode, summed over agents.

    Args:
        structure: The model's structure.
        data: Its arrays.
        rows: The learned tables by their sites, and the sites of channels.
    """
    tables = {name: jnp.asarray(logs) for name, logs in data.log_fixed.items()}
    of_channels = structure.channel_sites
    tables |= {
        name: _log_of_drawn(values) for name, values in rows.items() if name not in of_channels
    }
    channels = {
        one.agent: ChannelValues(rows[one.standardised], rows[one.factor])
        for one in structure.channels
    }
    parts = [
        latent_chain(sites, data, tables, channels).log_prob(data.steps[sites.agent].actions)
        for sites in structure.agents
    ]
    return jnp.sum(jnp.stack(parts), axis=0)


def enumerated_model(structure: Structure, data: ModelData) -> None:
    """The network as a person would write it: step by step, latents enumerated."""
    tables = sample_log_tables(structure, data)
    channels = sample_channels(structure, data)
    lengths = jnp.asarray(data.lengths)
    episodes = len(lengths)
    num_steps = data.steps[structure.agents[0].agent].actions.shape[1]
    real = (jnp.arange(num_steps, dtype=lengths.dtype)[None] < lengths[:, None]).T

    def by_step(sites: AgentSites) -> tuple[Array, Array, Array, Array, Array]:
        steps = jax.tree.map(jnp.asarray, data.steps[sites.agent])
        log_initial = tables[sites.initial][steps.initial]
        latents = log_initial.shape[-1]
        # The initial distribution is the transition of step 0, from whatever went before.
        first = jnp.broadcast_to(log_initial[:, None, None], (episodes, 1, latents, latents))
        log_moves = jnp.concatenate([first, tables[sites.transition][steps.transition]], axis=1)
        log_policy = tables[sites.policy][steps.policy]
        evidence = jnp.zeros(log_policy.shape[:-1], log_policy.dtype)
        if sites.agent in channels:
            evidence = step_evidence(data, sites.agent, channels[sites.agent])
        return (
            jnp.swapaxes(jnp.maximum(log_moves, _EXCLUDED), 0, 1),
            jnp.swapaxes(jnp.maximum(log_policy, _EXCLUDED), 0, 1),
            steps.actions.T,
            steps.labels.T,
            jnp.swapaxes(evidence, 0, 1),
        )

    def step(previous: tuple[Array, ...], inputs: Any) -> tuple[tuple[Array, ...], None]:
        inside, agents = inputs
        latents = []
        with numpyro.plate("episode", episodes) as episode:
            for sites, before, (moves, policy, action, label, evidence) in zip(
                structure.agents, previous, agents, strict=True
            ):
                latent = numpyro.sample(
                    f"latent_{sites.agent}",
                    dist.Categorical(logits=Vindex(moves)[episode, before]),
                    infer={"enumerate": "parallel"},
                )
                # Only observations are masked: a masked latent would count log K per step.
                numpyro.sample(
                    f"label_{sites.agent}",
                    _Label(latent).mask(inside & (label >= 0)),
                    obs=label,
                )
                numpyro.sample(
                    f"action_{sites.agent}",
                    dist.Categorical(logits=Vindex(policy)[episode, latent]).mask(inside),
                    obs=action,
                )
                if sites.agent in channels:
                    # A density of what was seen, whatever is called so: 0 is.
                    said = Vindex(evidence)[episode, latent]
                    numpyro.sample(
                        f"emission_{sites.agent}",
                        dist.Delta(jnp.zeros_like(said), log_density=said).mask(inside),
                        obs=jnp.zeros(episodes, said.dtype),
                    )
                latents.append(latent)
        return tuple(latents), None

    start = tuple(jnp.zeros(episodes, int) for _ in structure.agents)
    scan(step, start, (real, tuple(by_step(sites) for sites in structure.agents)))
