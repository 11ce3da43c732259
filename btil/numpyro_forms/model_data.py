"""What a bound model is to its NumPyro forms: a hashable structure, and arrays.

Nothing here needs NumPyro itself, which takes a quarter of a second to load.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int

from btil.messages.channels import ChannelSteps, lay_channel
from btil.messages.lanes import one_episode_per_lane, spread
from btil.messages.layout import UnseenRows, log_rows
from btil.models.emission import Channel, NormalEmission, Units, channel_sites
from btil.models.parametric import ParametricSite, all_priors, parametric_sites
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import Hyper

if TYPE_CHECKING:
    from numpyro import distributions as dist


class AgentSites(NamedTuple):
    """Names of an agent's tables."""

    agent: str
    policy: str
    transition: str
    initial: str


class ChannelSites(NamedTuple):
    """Names of the sites of an agent's continuous columns.

    Attributes:
        agent: The agent.
        factor: Cholesky factor of the covariance, in units in which columns are about 1.
        standardised: The coefficients in such units.
        coefficients: Deterministic: means or coefficients in the units of the data.
        covariance: Deterministic: the covariance.
        normal: Whether these are means: there is an intercept alone.
    """

    agent: str
    factor: str
    standardised: str
    coefficients: str
    covariance: str
    normal: bool

    @classmethod
    def of(cls, channel: Channel) -> "ChannelSites":
        """The names of a channel."""
        agent = channel.agent
        factor, standardised = f"emission_factor_{agent}", f"emission_standardised_{agent}"
        normal = isinstance(channel.family, NormalEmission)
        return cls(agent, factor, standardised, *channel_sites(channel), normal)


class Structure(NamedTuple):
    """What of a bound model is not data: hashable, so compiled programs can be kept by it.

    Attributes:
        agents: The agents' tables.
        learned: Sites of rows with a Dirichlet prior, in order.
        parametric: Tables whose rows depend on parameters.
        channels: Continuous columns, of the agents that have any.
    """

    agents: tuple[AgentSites, ...]
    learned: tuple[str, ...]
    parametric: tuple[ParametricSite, ...] = ()
    channels: tuple[ChannelSites, ...] = ()

    @property
    def channel_sites(self) -> tuple[str, ...]:
        """Sites of all channels."""
        return tuple(site for one in self.channels for site in (one.factor, one.standardised))

    @property
    def dirichlet_sites(self) -> tuple[str, ...]:
        """Sites of rows that are Dirichlet's, given the parameters if there are any."""
        given = (table.name for table in self.parametric if table.cpt.dirichlet_rows)
        return (*self.learned, *given)

    @property
    def functional(self) -> tuple[ParametricSite, ...]:
        """Tables whose rows are a function of the parameters."""
        return tuple(table for table in self.parametric if not table.cpt.dirichlet_rows)

    @property
    def priors(self) -> "dict[str, dist.Distribution]":
        """Priors of the parameters, by their sites."""
        return all_priors(self.parametric)


class AgentSteps(NamedTuple):
    """One agent's steps, episodes first; entries after an episode's end are padding.

    Attributes:
        policy: Policy row of each step, (episodes, steps).
        transition: Transition row from each step to the next, (episodes, steps - 1).
        initial: Initial row of each episode, (episodes,).
        actions: (episodes, steps); -1 where nobody saw it.
        labels: Known latent or -1, (episodes, steps).
        log_weights: Log of p(annotation | latent) up to a factor, (episodes, steps, latents);
            None without such.
        stays: Initial row where a stay begins, else -1, (episodes, steps): then it is not only the
            first steps that do; None where the agent never leaves.
        away: Where the agent is away, (episodes, steps); None where it never is.
        unseen: Moves over which an action is summed out; None without any.
    """

    policy: Any
    transition: Any
    initial: Any
    actions: Any
    labels: Any
    log_weights: Any = None
    stays: Any = None
    away: Any = None
    unseen: Any = None


class UnseenSteps(NamedTuple):
    """Moves over which an action is summed out.

    Attributes:
        move: Which of them leads from each step to the next, else -1, (episodes, steps - 1).
        rows: Their rows of the tables.
    """

    move: Any
    rows: UnseenRows


class ChannelArrays(NamedTuple):
    """An agent's continuous columns.

    Attributes:
        steps: The steps, with episodes as lanes, and the prior of every context and latent.
        units: Of which the steps and the prior are.
        log_jacobian: What turns log densities into those of the data, (episodes, steps).
    """

    steps: ChannelSteps
    units: Units
    log_jacobian: Any


class ModelData(NamedTuple):
    """The arrays of a bound model.

    Attributes:
        concentration: Dirichlet prior of every learned site.
        inputs: What the rows of parametric tables depend on besides the parameters, by table.
        log_fixed: Log rows of every other table.
        steps: Per agent.
        lengths: Steps of each episode.
        channels: Per agent with continuous columns.
    """

    concentration: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    log_fixed: dict[str, Any]
    steps: dict[str, AgentSteps]
    lengths: Any
    channels: dict[str, ChannelArrays] = {}  # noqa: RUF012  # never mutated


def model_data(bound: BoundModel) -> tuple[Structure, ModelData]:
    """Split a bound model into its hashable structure and its (NumPy) arrays."""
    demos = bound.demos
    lanes = one_episode_per_lane(demos.episode_lengths)
    steps = {}
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        # Who has no actions takes the only one there is.
        taken = demos.actions[:, position] if demos.num_actions[position] else 0 * rows.policy
        steps[agent] = AgentSteps(
            policy=np.maximum(spread(rows.policy, lanes, 0), 0).T,
            transition=np.maximum(spread(rows.transition, lanes, 0), 0).T[:, 1:],
            initial=rows.initial,
            actions=spread(taken, lanes, 0).T,
            labels=spread(demos.latents[:, position], lanes, -1).T,
        )
        if agent in demos.latent_weights:
            logs = log_rows(demos.latent_weights[agent])
            by_latent = [spread(column, lanes, 0).T for column in logs.T]
            steps[agent] = steps[agent]._replace(log_weights=np.stack(by_latent, axis=-1))
        if not demos.present[:, position].all():
            begins = np.full(demos.num_steps, -1)
            begins[demos.stays[position]] = rows.initial
            steps[agent] = steps[agent]._replace(
                stays=spread(begins, lanes, -1).T,
                away=spread(~demos.present[:, position], lanes, False).T,
            )
        if rows.unseen is not None:
            moves = np.full(demos.num_steps, -1)
            moves[rows.unseen.step] = np.arange(len(rows.unseen.step))
            summed = UnseenRows(rows.unseen.policy, rows.unseen.transition)
            unseen = UnseenSteps(spread(moves, lanes, -1).T[:, 1:], summed)
            steps[agent] = steps[agent]._replace(unseen=unseen)
    concentration, inputs, log_fixed = {}, {}, {}
    parametric = parametric_sites(bound)
    for name, table in bound.tables.items():
        if not table.learned:
            log_fixed[name] = log_rows(table.prior_mean())
        elif not table.parametric:
            concentration[name] = table.cpt.concentration(table.contexts)
    for described in parametric:
        inputs[described.name] = dict(described.cpt.inputs(bound.tables[described.name].contexts))
    structure = Structure(
        agents=tuple(AgentSites(agent, *bound.sites(agent)) for agent in demos.agents),
        learned=tuple(concentration),
        parametric=parametric,
        channels=tuple(map(ChannelSites.of, bound.channels.values())),
    )
    lengths = np.asarray(demos.episode_lengths)
    channels = {agent: _arrays_of(one, lanes) for agent, one in bound.channels.items()}
    return structure, ModelData(concentration, inputs, log_fixed, steps, lengths, channels)


def _arrays_of(channel: Channel, lanes: Int[np.ndarray, "length episodes"]) -> ChannelArrays:
    units = channel.units()
    steps = lay_channel(channel, units, lanes)
    prior = Hyper(*(part[: len(channel.contexts)] for part in steps.prior))
    jacobian = spread(channel.log_jacobian(units), lanes, 0).T
    return ChannelArrays(steps._replace(prior=prior), units, jacobian)
