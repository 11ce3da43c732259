"""The team model: three tables per agent, and what they become on a set of demonstrations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.models.contexts import (
    data_column,
    expand_parents,
    match_rows,
    parent_columns,
    parent_sizes,
    parent_values,
    previous_values,
    unique_rows,
)
from btil.models.cpt import CPT, ROLES, Contexts, DirichletCPT, Shared, UniformCPT
from btil.models.emission import Channel, Emission, Trend, Units, bind_channel

Family = CPT | Shared

# Names of a table's axes; per agent they end in its name, "policy_context_alice".
ROLE_AXES = {
    "policy": ("policy_context", "latent", "action"),
    "transition": ("transition_context", "latent", "next_latent"),
    "initial": ("initial_context", "latent"),
}


@dataclass(frozen=True)
class TeamModel:
    r"""What we believe of a team before seeing it: for each agent three tables.

    The joint density of actions and latents given the states is (the paper, Section 3.2)

    .. math:: \prod_i b_{x_i}(x_i^0) \prod_t \pi_i(a_i^t \mid s^t, x_i^t)\,
              T_{x_i}(x_i^{t+1} \mid x_i^t, s^t, a^t, s^{t+1}).

    Args:
        policy: P(action | parents, latent); parents are state variables.
        transition: P(next latent | latent, parents); any parents.
        initial: P(latent at step 0 | parents); parents are state variables or none.
        emissions: Continuous columns that an agent's latent explains, beside its action or in its
            place: `NormalEmission` or `LinearNormalEmission` of a team of one, or a mapping
            {agent: family}; agents left out have none. A family whose columns are a mapping
            {agent: names} serves all agents. The density has a further factor
            p(columns | parents, latent) at every step.

    Each table is a CPT for all agents (every agent has a table of its own under it), `Shared(CPT)`
    for one common table, or a mapping {agent: CPT}. The defaults are those of the paper's Movers. A
    policy is None where an agent has no actions.

    Raises:
        ValueError: If a table has parents that its role cannot have.

    Example:
        >>> model = TeamModel(
        ...     policy=DirichletCPT(1.2, parents=("state",)),
        ...     transition=DirichletCPT(1.01, parents=("state", "actions")),
        ... )
    """

    policy: Family | Mapping[str, Any] | None = field(
        default_factory=lambda: DirichletCPT(1.2, parents=("state",))
    )
    transition: Family | Mapping[str, Family] = field(
        default_factory=lambda: DirichletCPT(1.01, parents=("state", "actions"))
    )
    initial: Family | Mapping[str, Family] = field(default_factory=UniformCPT)
    emissions: Emission | Mapping[str, Emission] | None = None

    def __post_init__(self) -> None:
        for role in ROLES:
            given = getattr(self, role)
            families = list(given.values()) if isinstance(given, Mapping) else [given]
            if role == "policy":
                families = [family for family in families if family is not None]
            for family in families:
                if not isinstance(family, CPT | Shared):
                    raise ValueError(
                        f"{role}: expected a CPT, Shared(CPT) or a mapping {{agent: CPT}}, "
                        f"got {family!r}"
                    )
                (family.cpt if isinstance(family, Shared) else family).validate(role)
            shared = [family for family in families if isinstance(family, Shared)]
            if any(family != shared[0] for family in shared):
                raise ValueError(f"{role}: one Shared table per role; give the agents the same one")
            if isinstance(given, Mapping):
                object.__setattr__(self, role, dict(given))
        self._check_emissions()

    def _check_emissions(self) -> None:
        given = self.emissions
        if isinstance(given, Mapping):
            families: list[Any] = list(given.values())
            object.__setattr__(self, "emissions", dict(given) or None)
        else:
            families = [] if given is None else [given]
        for family in families:
            if not isinstance(family, Emission):
                raise ValueError(
                    "emissions: expected NormalEmission, LinearNormalEmission or a mapping "
                    f"{{agent: family}}, got {family!r}"
                )
            family.validate()

    def __hash__(self) -> int:
        given = (getattr(self, name) for name in (*ROLES, "emissions"))
        return hash(tuple(frozenset(g.items()) if isinstance(g, Mapping) else g for g in given))

    def family(self, role: str, agent: str) -> Family:
        """The family of one agent's table.

        Raises:
            ValueError: If the role is given by a mapping in which the agent is missing.
        """
        given = getattr(self, role)
        if isinstance(given, Mapping):
            if agent not in given:
                raise ValueError(
                    f"{role}: no CPT for agent {agent!r}; the model has one for {', '.join(given)}"
                )
            given = given[agent]
        # Whoever has no actions takes the only one there is.
        return UniformCPT() if given is None else given

    def explains_actions(self, agent: str) -> bool:
        """Whether an agent has a policy."""
        given = self.policy
        return (given.get(agent) if isinstance(given, Mapping) else given) is not None

    def emission(self, agent: str) -> Emission | None:
        """The family of one agent's continuous columns; None where it has none."""
        if isinstance(self.emissions, Mapping):
            return self.emissions.get(agent)
        return self.emissions

    def resolved(
        self, demos: Demonstrations, trends: Mapping[str, Trend] | None = None
    ) -> "TeamModel":
        """The model as it is on some demonstrations.

        Its emissions have numbers for what they leave open, and agents without actions no policy.

        Args:
            demos: The demonstrations.
            trends: The regressions of the agents' columns, where `demos` are only some episodes
                of those that the numbers are taken from.

        Raises:
            ValueError: If a column is unknown, or explained by two agents, or an agent has actions
                and no policy.
        """
        model = self._without_idle_policies(demos)
        return model if self.emissions is None else model._with_numbers(demos, trends or {})

    def _without_idle_policies(self, demos: Demonstrations) -> "TeamModel":
        acting = {
            agent: number > 0 for agent, number in zip(demos.agents, demos.num_actions, strict=True)
        }
        if isinstance(self.policy, Mapping) and not set(self.policy) >= set(demos.agents):
            return self  # refused where the tables are bound
        for agent, acts in acting.items():
            if acts and not self.explains_actions(agent):
                raise ValueError(
                    f"policy: None for {agent}, whose actions are in the data; give a policy, or "
                    "leave its actions out (actions=None, or a mapping without it)"
                )
        if all(acts == self.explains_actions(agent) for agent, acts in acting.items()):
            return self
        given = self.policy
        policy = {
            agent: (given.get(agent) if isinstance(given, Mapping) else given) if acts else None
            for agent, acts in acting.items()
        }
        return replace(self, policy=policy if any(acting.values()) else None)

    def _with_numbers(self, demos: Demonstrations, trends: Mapping[str, Trend]) -> "TeamModel":
        if isinstance(self.emissions, Mapping):
            unknown = set(self.emissions) - set(demos.agents)
            if unknown:
                raise ValueError(
                    f"emissions: the model names {', '.join(sorted(unknown))}, but the agents are "
                    f"{', '.join(demos.agents)}"
                )
        families = {agent: self.emission(agent) for agent in demos.agents}
        owner: dict[str, str] = {}
        for agent, family in families.items():
            for column in () if family is None else family.columns_of(agent):
                if column in owner:
                    raise ValueError(
                        f"emissions: {column!r} is explained by {owner[column]} and by {agent}; "
                        "give each agent columns of its own: emissions={agent: family}, or one "
                        "family with columns={agent: names}"
                    )
                owner[column] = agent
        return replace(
            self,
            emissions={
                agent: family.resolved(demos, agent, trends.get(agent))
                for agent, family in families.items()
                if family is not None
            },
        )


@dataclass(frozen=True, eq=False)
class Table:
    """A CPT bound to the contexts that a set of demonstrations visits.

    Attributes:
        name: The NumPyro site, e.g. "policy_alice", or "policy" where agents share it.
        cpt: The family.
        agents: The agents that use it.
        contexts: The visited contexts in lexicographic order, and the shape of the rows.
    """

    name: str
    cpt: CPT
    agents: tuple[str, ...]
    contexts: Contexts

    @property
    def learned(self) -> bool:
        """Whether the table has rows to learn, and so a site."""
        return self.cpt.learned and len(self.contexts.rows) > 0

    @property
    def parametric(self) -> bool:
        """Whether the rows depend on parameters with priors of their own."""
        return self.cpt.parametric

    @cached_property
    def reads(self) -> str:
        """A checksum of the family and of all that its functions read, when first asked for."""
        from btil.identity import checksum

        return checksum(self.cpt)

    @property
    def shape(self) -> tuple[int, ...]:
        """(contexts, latents, values), or (contexts, latents) for an initial table."""
        return self.contexts.shape

    def prior_mean(self) -> Float[np.ndarray, "..."]:
        """E[rows] before any data: the Dirichlet's mean, or the given rows.

        Of a parametric family: the mean rows at the centre of its parameters' space.
        """
        if not self.cpt.learned:
            return self.cpt.probabilities(self.contexts)
        if self.parametric:
            from btil.models.parametric import central_rows

            return central_rows(self)
        concentration = self.cpt.concentration(self.contexts)
        return concentration / concentration.sum(-1, keepdims=True)


@dataclass(frozen=True, eq=False)
class UnseenMoves:
    """Moves out of steps at which nobody saw an action that the own transition reads.

    The action is summed out: with k, j the latents before and after, such a move has the factor
    sum_a pi(a | k) T_a(j | k), in place of the policy of its step and of one transition row.

    Attributes:
        step: The step that such a move leads to.
        policy: Row of the policy table of the step before it.
        transition: Row of the transition table for each action.
    """

    step: Int[np.ndarray, " moves"]
    policy: Int[np.ndarray, " moves"]
    transition: Int[np.ndarray, "moves actions"]


@dataclass(frozen=True, eq=False)
class AgentRows:
    """Where each step of one agent looks in its tables.

    Attributes:
        policy: Row of the policy table of each step; -1 where the agent is away.
        transition: Row of the transition table by which each step's latent came about; -1 at the
            first step of an episode or of a stay, while away, and after the steps of `unseen`.
        initial: Row of the initial table of each stay: of each episode, if the agent never leaves.
        unseen: Moves over which an action is summed out; None without any.
    """

    policy: Int[np.ndarray, " steps"]
    transition: Int[np.ndarray, " steps"]
    initial: Int[np.ndarray, " stays"]
    unseen: UnseenMoves | None = None

    def reads(self, role: str) -> Int[np.ndarray, " reads"]:
        """The row of every read of the agent's table in a role, unseen actions aside."""
        rows = getattr(self, role)
        return rows[rows >= 0]


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A team model on a set of demonstrations: visited contexts, and who looks where.

    Attributes:
        model: The model.
        demos: The demonstrations.
        tables: Site name to table, in the order policy, transition, initial.
        rows: Agent to its row indices.
        excerpt: Whether `demos` and `rows` are only some episodes of the data whose contexts the
            tables have: the others were too many for memory.
        measured: Agents of which the model explains more than actions and labels.
        channels: Agent to its continuous columns, where it has any.
    """

    model: TeamModel
    demos: Demonstrations
    tables: dict[str, Table]
    rows: dict[str, AgentRows]
    excerpt: bool = field(default=False, kw_only=True)
    measured: tuple[str, ...] = field(default=(), kw_only=True)
    channels: dict[str, Channel] = field(default_factory=dict, kw_only=True)
    # What `lay_out` and `on` have made already.
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def table(self, role: str, agent: str) -> Table:
        """The table that an agent uses in a role."""
        return self.tables[site_name(self.model, role, agent)]

    def sites(self, agent: str) -> tuple[str, str, str]:
        """Names of an agent's policy, transition and initial tables."""
        policy, transition, initial = (site_name(self.model, role, agent) for role in ROLES)
        return policy, transition, initial

    @property
    def learned(self) -> dict[str, Table]:
        """The tables that have something to learn: the sites of the NumPyro model."""
        return {name: table for name, table in self.tables.items() if table.learned}

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn."""
        return bool(self.learned or self.channels)

    @cached_property
    def unlabelled(self) -> "BoundModel":
        """The same, with no latent known: what is visited does not depend on labels."""
        hidden = self.demos.without_labels()
        return self if hidden is self.demos else replace(self, demos=hidden)

    def on(self, demos: Demonstrations) -> "BoundModel":
        """The model on other demonstrations of the same names and sizes.

        Those asked for last are kept, as questions about episodes come in series. Of functions of
        the model nothing is kept: they are called when rows are asked for.
        """
        for own in (self, self.kept.get("other")):
            if own is not None and demos is own.demos:
                return own
            if own is not None and demos is own.demos.without_labels():
                return own.unlabelled
        self.kept["other"] = bind(self.model, demos)
        return self.kept["other"]


def refuse_emissions(model: TeamModel, what: str, instead: str) -> None:
    """Refuse a model with continuous columns where these are not thought of.

    Args:
        model: The model; own NumPyro models have none.
        what: What does not take them.
        instead: What to do.

    Raises:
        ValueError: If the model has emissions.
    """
    if model.emissions is not None:
        raise ValueError(f"{what} does not take models with emissions; {instead}")


def refuse_without_actions(demos: Demonstrations, what: str, agent: str | None = None) -> None:
    """Refuse members without actions where actions are what is looked at.

    Args:
        demos: The demonstrations.
        what: What looks at them.
        agent: At whose; None: at everybody's.

    Raises:
        ValueError: If somebody has no actions.
    """
    sizes = zip(demos.agents, demos.num_actions, strict=True)
    idle = [name for name, size in sizes if not size and agent in (None, name)]
    if idle:
        raise ValueError(
            f"{what} looks at what members do, but there are no actions of {', '.join(idle)}; "
            "what columns do is drawn by plot_motion and plot_paths (docs/how-to/continuous.md)"
        )


def site_name(model: TeamModel, role: str, agent: str) -> str:
    """Name of the site of an agent's table: "policy_alice", or "policy" where it is shared."""
    return role if isinstance(model.family(role, agent), Shared) else f"{role}_{agent}"


def likelihood_name(agent: str) -> str:
    """What else was measured of an agent is called so where it stands beside tables.

    It is a log likelihood of every step and latent.
    """
    return f"log_likelihood_{agent}"


def context_visits(bound: BoundModel, site: str) -> Int[np.ndarray, " contexts"]:
    """How often the demonstrations read each context of a table, all its agents together.

    Raises:
        ValueError: If there is no such site.
    """
    if site not in bound.tables:
        raise ValueError(f"unknown site {site!r}; the sites are {', '.join(bound.tables)}")
    table = bound.tables[site]
    reads = [bound.rows[agent].reads(table.contexts.role) for agent in table.agents]
    return np.bincount(np.concatenate(reads), minlength=len(table.contexts.rows))


def make_contexts(
    model: TeamModel,
    role: str,
    agent: str,
    demos: Demonstrations,
    rows: Int[np.ndarray, "k parents"] | None = None,
) -> Contexts:
    """An agent's contexts of a role; without `rows` none yet, only names, sizes and shapes.

    Raises:
        ValueError: If a parent is unknown.
    """
    family = model.family(role, agent)
    cpt = family.cpt if isinstance(family, Shared) else family
    try:
        parents = cpt.parents_of(agent)
    except ValueError as error:
        raise ValueError(f"{role}: {error}") from None
    names, groups = expand_parents(parents, agent, role, demos)
    position = demos.agents.index(agent)
    num_latents = demos.num_latents[position]
    return Contexts(
        role=role,
        owner=agent,
        parents=parents,
        names=names,
        sizes=parent_sizes(names, demos),
        groups=groups,
        rows=np.zeros((0, len(names)), np.int64) if rows is None else rows,
        num_latents=num_latents,
        # An agent without actions has a table of one, which nobody ever sees.
        num_values=max(demos.num_actions[position], 1) if role == "policy" else num_latents,
    )


def check_suits(model: TeamModel, demos: Demonstrations) -> None:
    """Refuse parents and concentrations that do not go with the data's names and sizes.

    Args:
        model: The model.
        demos: Any of the demonstrations: what occurs in them is not looked at.

    Raises:
        ValueError: As `bind`, or as the family has it, naming the role.
    """
    for role in ROLES:
        for agent in demos.agents:
            family = model.family(role, agent)
            cpt = family.cpt if isinstance(family, Shared) else family
            contexts = make_contexts(model, role, agent, demos)
            if cpt.learned and not cpt.parametric:
                cpt.concentration(contexts)


def bind(model: TeamModel, demos: Demonstrations) -> BoundModel:
    """Find the contexts that the demonstrations visit, for every table of the model.

    Transition contexts are those of pairs of steps within an episode; nothing is asked of a
    table after the last step of an episode.

    Args:
        model: The model.
        demos: The demonstrations.

    Returns:
        The model bound to the demonstrations.

    Raises:
        ValueError: If an agent has no CPT, a parent is unknown, or agents that share a table
            differ in latents, actions or number of parents.
    """
    for role in ROLES:
        given = getattr(model, role)
        unknown = set(given) - set(demos.agents) if isinstance(given, Mapping) else set()
        if unknown:
            raise ValueError(
                f"{role}: the model names {', '.join(sorted(unknown))}, but the agents are "
                f"{', '.join(demos.agents)}"
            )
    model = model.resolved(demos)
    tables: dict[str, Table] = {}
    found: dict[tuple[str, str], Int[np.ndarray, " k"]] = {}
    reads = {agent: _reads(model, agent, demos) for agent in demos.agents}
    values = parent_values(demos)
    for role in ROLES:
        by_site: dict[str, list[str]] = {}
        for agent in demos.agents:
            by_site.setdefault(site_name(model, role, agent), []).append(agent)
        for site, agents in by_site.items():
            empty = [make_contexts(model, role, agent, demos) for agent in agents]
            _check_agreement(role, agents, empty, demos)
            columns = [
                role_columns(role, contexts.names, demos, values, reads[agent])
                for agent, contexts in zip(agents, empty, strict=True)
            ]
            rows, codes = unique_rows(np.concatenate(columns))
            family = model.family(role, agents[0])
            tables[site] = Table(
                name=site,
                cpt=family.cpt if isinstance(family, Shared) else family,
                agents=tuple(agents),
                contexts=empty[0]._replace(
                    rows=rows, sizes=tuple(np.max([c.sizes for c in empty], 0).tolist())
                ),
            )
            ends = np.cumsum([len(part) for part in columns])[:-1]
            for agent, part in zip(agents, np.split(codes, ends), strict=True):
                found[role, agent] = part
    all_rows = {}
    for agent, own in reads.items():
        policy, transition = (np.full(demos.num_steps, -1, np.int64) for _ in range(2))
        policy[own.acting] = found["policy", agent]
        seen, summed = np.split(found["transition", agent], [len(own.moved)])
        transition[own.moved] = seen
        unseen = None
        if len(own.summed):
            by_action = summed.reshape(len(own.summed), -1)
            unseen = UnseenMoves(own.summed, policy[own.summed - 1], by_action)
        all_rows[agent] = AgentRows(policy, transition, found["initial", agent], unseen)
    channels = {
        agent: bind_channel(emission, demos, agent)
        for agent in demos.agents
        if (emission := model.emission(agent)) is not None
    }
    return BoundModel(model, demos, tables, all_rows, measured=tuple(channels), channels=channels)


def renumbered(
    bound: BoundModel, numbers: Mapping[str, Int[np.ndarray, " contexts"]]
) -> dict[str, AgentRows]:
    """The agents' rows with other numbers of the contexts, {site: new number of each}."""
    rows = {}
    for agent, own in bound.rows.items():
        policy, transition, initial = (numbers[name] for name in bound.sites(agent))
        # The -1 of steps without a row looks up the last entry.
        unseen = own.unseen
        if unseen is not None:
            unseen = UnseenMoves(unseen.step, policy[unseen.policy], transition[unseen.transition])
        rows[agent] = AgentRows(
            np.append(policy, -1)[own.policy],
            np.append(transition, -1)[own.transition],
            initial[own.initial],
            unseen,
        )
    return rows


def with_contexts(
    bound: BoundModel,
    contexts: Mapping[str, Int[np.ndarray, "contexts parents"]],
    units: Mapping[str, Units] | None = None,
) -> BoundModel:
    """The same episodes, as an excerpt of data in which further contexts occur.

    Args:
        bound: The model on the episodes.
        contexts: All contexts of every table and channel, {site: rows in lexicographic order}.
        units: Units of the agents' channels; None: those of these episodes.
    """
    numbers = {
        name: match_rows(contexts[name], table.contexts.rows)
        for name, table in bound.tables.items()
    }
    tables = {
        name: replace(table, contexts=table.contexts._replace(rows=contexts[name]))
        for name, table in bound.tables.items()
    }
    channels = {
        agent: _with_rows(one, contexts[one.name], (units or {}).get(agent))
        for agent, one in bound.channels.items()
    }
    rows = renumbered(bound, numbers)
    return replace(bound, tables=tables, rows=rows, channels=channels, excerpt=True)


def _with_rows(
    channel: Channel, contexts: Int[np.ndarray, "contexts parents"], units: Units | None
) -> Channel:
    """A channel with further contexts; no rows are a channel that nobody says anything in."""
    visits = len(contexts) > 0
    number = np.append(match_rows(contexts, channel.visited), -1)
    return replace(
        channel,
        contexts=contexts if visits else channel.contexts,
        row=number[channel.row],
        visits=visits,
        own_units=units,
    )


def _check_agreement(
    role: str, agents: list[str], contexts: list[Contexts], demos: Demonstrations
) -> None:
    shapes = {
        agent: (one.num_latents, one.num_values, len(one.names))
        for agent, one in zip(agents, contexts, strict=True)
    }
    if len(set(shapes.values())) > 1:
        described = "; ".join(
            f"{agent} has {latents} latents, {values} values a row, {parents} parents"
            for agent, (latents, values, parents) in shapes.items()
        )
        raise ValueError(f"{role}: a Shared table needs agents of equal sizes, but {described}")
    for agent, one in zip(agents[1:], contexts[1:], strict=True):
        pairs = [
            (data_column(name, demos.num_states) for name in names)
            for names in zip(contexts[0].names, one.names, strict=True)
        ]
        value = "action" if role == "policy" else "latent"
        for first, other in [
            *pairs,
            (f"latent_{agents[0]}", f"latent_{agent}"),
            (f"{value}_{agents[0]}", f"{value}_{agent}"),
        ]:
            _refuse_other_names(role, first, other, demos)


def _refuse_other_names(role: str, first: str, other: str, demos: Demonstrations) -> None:
    """Refuse to share a table whose values have names that come in another order for one agent."""
    names = dict(demos.state_names)
    names |= {f"action_{agent}": texts for agent, texts in demos.action_names.items()}
    names |= {f"latent_{agent}": texts for agent, texts in demos.latent_names.items()}
    one, two = names.get(first, ()), names.get(other, ())
    if all(a == b for a, b in zip(one, two, strict=False)):  # of fewer values the first ones
        return
    kind = first.partition("_")[0]
    kind = kind if kind in ("action", "latent") and first not in demos.num_states else "state"
    keys = [column.removeprefix(f"{kind}_") for column in (first, other)]
    union = sorted({*one, *two})
    raise ValueError(
        f"{role}: a Shared table counts values of {first} and {other} as the same, but they are "
        f"{_some(one)} and {_some(two)}, in this order; give both one list of names, as in "
        f"{kind}_names={{{keys[0]!r}: names, {keys[1]!r}: names}} with names = {union!r}, or do "
        "not share"
    )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


class _Reads(NamedTuple):
    """At which steps an agent's tables are read.

    Attributes:
        agent: The agent.
        acting: Steps at which it is there: its policy is read.
        begins: First steps of its stays: its initial table is read.
        moved: Steps that a row of its transition leads to.
        summed: Steps that a move leads to whose own action, a parent, nobody saw: rows for all
            actions are read.
        num_actions: Its actions.
    """

    agent: str
    acting: Int[np.ndarray, " acting"]
    begins: Int[np.ndarray, " stays"]
    moved: Int[np.ndarray, " moved"]
    summed: Int[np.ndarray, " summed"]
    num_actions: int


def _reads(model: TeamModel, agent: str, demos: Demonstrations) -> _Reads:
    position = demos.agents.index(agent)
    there = demos.present[:, position].copy()
    acting = np.flatnonzero(there)
    begins = demos.stays[position]
    there[begins] = False
    moved = np.flatnonzero(there)
    unseen = demos.actions[moved - 1, position] < 0
    if f"action_{agent}" not in make_contexts(model, "transition", agent, demos).names:
        unseen[:] = False
    num_actions = demos.num_actions[position]
    return _Reads(agent, acting, begins, moved[~unseen], moved[unseen], num_actions)


Columns = dict[str, Int[np.ndarray, " steps"]]


def role_columns(
    role: str,
    names: tuple[str, ...],
    demos: Demonstrations,
    values: tuple[Columns, Columns],
    reads: _Reads,
) -> Int[np.ndarray, "k parents"]:
    """Parent values wherever the table is read.

    A policy is read at each step, a transition at each step but an episode's last, an initial
    table at each episode's first: of the steps at which the agent is there. Behind the reads of a
    transition come those with every own action in place of one that nobody saw. `values` are those
    of `parent_values`.
    """
    states, actions = values
    if role == "transition":
        after = np.concatenate([reads.moved, np.repeat(reads.summed, reads.num_actions)])
        before = after - 1
    else:
        before = after = reads.acting if role == "policy" else reads.begins
    taken = {agent: values[before] for agent, values in actions.items()}
    if role == "transition" and len(reads.summed):
        every = np.tile(np.arange(reads.num_actions), len(reads.summed))
        taken[reads.agent][len(reads.moved) :] = every
    previous = {}
    if any(name.startswith("previous_") for name in names):
        previous = previous_values(
            names,
            {name: values[before - 1] for name, values in states.items()},
            {agent: values[before - 1] for agent, values in actions.items()},
            np.isin(before, demos.episode_starts),
        )
    return parent_columns(
        names,
        {name: values[before] for name, values in states.items()},
        taken,
        {name: values[after] for name, values in states.items()},
        len(before),
        previous,
    )
