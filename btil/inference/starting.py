"""Where fits start: counts of the labelled steps, and others dealt to the latents at random."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.messages.layout import lay_out
from btil.models.parametric import central_concentration
from btil.models.team import BoundModel

# With a smaller concentration a cell that no count holds up is next to impossible: it is often
# drawn as next to nothing, and an ascent keeps to what it has seen first.
SMALL_CONCENTRATION = 0.1
# With so many labelled steps a latent, on average, they decide which optimum is meant.
ENOUGH_LABELS = 10
# With fewer they may not, where the ascent from them ends as slowly as this.
_SLOW = 0.97


class OpenUses(NamedTuple):
    """Reads of an agent's tables in which labels leave a latent open; None: nothing to learn.

    Attributes:
        policy: Per context and action.
        transition: Per context.
        initial: Per context.
    """

    policy: Float[np.ndarray, "policy_rows actions"] | None
    transition: Int[np.ndarray, " transition_rows"] | None
    initial: Int[np.ndarray, " initial_rows"] | None


def coupled_agents(bound: BoundModel) -> list[tuple[str, ...]]:
    """Groups of agents that share learned tables; agents with nothing to learn are left out."""
    groups: list[set[str]] = []
    together = [table.agents for table in bound.learned.values()]
    for agents in (*together, *((agent,) for agent in bound.channels)):
        joined = set(agents)
        apart = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined]
    order = bound.demos.agents
    ordered = [tuple(agent for agent in order if agent in group) for group in groups]
    return sorted(ordered, key=lambda group: order.index(group[0]))


def num_contexts(bound: BoundModel) -> dict[str, int]:
    """Visited contexts of every table."""
    return {name: len(table.contexts.rows) for name, table in bound.tables.items()}


def small_concentrations(bound: BoundModel) -> set[str]:
    """Learned tables of Dirichlet rows that have a concentration below `SMALL_CONCENTRATION`."""
    return {
        name
        for name, table in bound.learned.items()
        if table.cpt.dirichlet_rows
        and table.shape[-1] > 1
        and bool((central_concentration(table) < SMALL_CONCENTRATION).any())
    }


def known_latents(bound: BoundModel) -> Int[np.ndarray, "steps agents"]:
    """Latents that are known, -1 elsewhere: labels, and those of agents with one latent alone."""
    demos = bound.demos
    sole = (np.array(demos.num_latents) == 1) & demos.present
    return np.where(sole, 0, demos.latents)


def labelled_counts(
    bound: BoundModel, num_rows: Mapping[str, int]
) -> dict[str, Float[np.ndarray, "..."]]:
    """Uses of each cell of the learned tables that the labels alone determine.

    A policy cell counts where the step is labelled, a transition where both its ends are, an
    initial latent where the first step is. An only latent needs no label.

    Args:
        bound: The model on its data.
        num_rows: Rows of each table, as many as contexts or padded.
    """
    counts = {
        name: np.zeros((num_rows[name], *table.shape[1:])) for name, table in bound.learned.items()
    }
    demos, known_latent = bound.demos, known_latents(bound)
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        label = known_latent[:, position]
        policy, transition, initial = bound.sites(agent)
        if policy in counts:
            known = (label >= 0) & (demos.actions[:, position] >= 0)
            np.add.at(
                counts[policy],
                (rows.policy[known], label[known], demos.actions[known, position]),
                1,
            )
        if transition in counts:
            before = np.roll(label, 1)
            known = (rows.transition >= 0) & (label >= 0) & (before >= 0)
            np.add.at(counts[transition], (rows.transition[known], before[known], label[known]), 1)
        if initial in counts:
            first = label[demos.stays[position]]
            known = first >= 0
            np.add.at(counts[initial], (rows.initial[known], first[known]), 1)
    return counts


def open_uses(bound: BoundModel, num_rows: Mapping[str, int]) -> dict[str, OpenUses]:
    """Of each agent, how often it reads its learned tables with a latent not known."""
    demos, learned, known_latent = bound.demos, bound.learned, known_latents(bound)
    uses = {}
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        label = known_latent[:, position]
        policy, transition, initial = bound.sites(agent)
        unknown = (label < 0) & demos.present[:, position]
        by_action = by_pair = by_start = None
        if policy in learned:
            by_action = np.zeros((num_rows[policy], demos.num_actions[position]))
            open_cell = unknown & (demos.actions[:, position] >= 0)
            np.add.at(by_action, (rows.policy[open_cell], demos.actions[open_cell, position]), 1)
        if transition in learned:
            open_pair = (rows.transition >= 0) & (unknown | (np.roll(label, 1) < 0))
            by_pair = np.bincount(rows.transition[open_pair], minlength=num_rows[transition])
        if initial in learned:
            open_start = unknown[demos.stays[position]]
            by_start = np.bincount(rows.initial[open_start], minlength=num_rows[initial])
        uses[agent] = OpenUses(by_action, by_pair, by_start)
    return uses


def settled_contexts(bound: BoundModel) -> dict[str, Bool[np.ndarray, " contexts"]]:
    """Contexts of every learned table that no step reads with a latent or an action left open.

    Given the data, their rows depend on nothing else that is not known: where they are Dirichlet's
    a priori, they are Dirichlet's with the counts of the labelled steps.
    """
    sizes = num_contexts(bound)
    settled = {name: np.ones(sizes[name], bool) for name in bound.learned}
    for agent, uses in open_uses(bound, sizes).items():
        sites = bound.sites(agent)
        for site, reads in zip(sites, uses, strict=True):
            if reads is not None:
                settled[site] &= reads.reshape(len(reads), -1).sum(-1) == 0
        unseen = bound.rows[agent].unseen
        if unseen is not None:
            for site, rows in zip(sites, (unseen.policy, unseen.transition), strict=False):
                if site in settled:
                    settled[site][rows] = False
    return settled


def deal_out(
    bound: BoundModel, uses: Mapping[str, OpenUses], generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """Counts of every learned table: uses dealt out to the latents at random.

    Every context's observed actions are kept, only which latent took them is random: a start as
    far from symmetric as one draw of responsibilities makes it, at the scale of the data.
    """
    counts: dict[str, np.ndarray] = {}

    def add(site: str, dealt: np.ndarray) -> None:
        counts[site] = counts[site] + dealt if site in counts else dealt

    for agent, latents in zip(bound.demos.agents, bound.demos.num_latents, strict=True):
        policy, transition, initial = bound.sites(agent)
        by_action, by_pair, by_start = uses[agent]
        if by_action is not None:
            shares = generator.dirichlet(np.ones(latents), size=by_action.shape)
            add(policy, np.swapaxes(by_action[..., None] * shares, 1, 2))
        if by_pair is not None:
            shares = generator.dirichlet(np.ones(latents**2), size=len(by_pair))
            add(transition, by_pair[:, None, None] * shares.reshape(-1, latents, latents))
        if by_start is not None:
            shares = generator.dirichlet(np.ones(latents), len(by_start))
            add(initial, by_start[:, None] * shares)
    return counts


def random_counts(
    bound: BoundModel, num_rows: Mapping[str, int], generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """The unlabelled uses of each observed cell, dealt out to the latents at random."""
    return deal_out(bound, open_uses(bound, num_rows), generator)


def doubtful_rate(bound: BoundModel) -> float:
    """The contraction rate from which on the end that the labels led to is in doubt.

    Any rate where an agent has no label at all; one near 1 where it has few (the
    bound is flat there, and another optimum may lie higher); none where it has enough, or has
    nothing to learn. Labels of agents who share a policy are labels of each of them.
    """
    demos, doubt = bound.demos, np.inf
    labels = dict(zip(demos.agents, (demos.latents >= 0).sum(0).tolist(), strict=True))
    latents = dict(zip(demos.agents, demos.num_latents, strict=True))
    for agent in itertools.chain(*coupled_agents(bound)):
        policy = bound.table("policy", agent)
        labelled = sum(labels[one] for one in (policy.agents if policy.learned else (agent,)))
        if latents[agent] > 1 and labelled < ENOUGH_LABELS * latents[agent]:
            doubt = min(doubt, _SLOW if labelled else 0.0)
    return doubt


def is_symmetric(bound: BoundModel, start: Mapping[str, np.ndarray]) -> bool:
    """Whether some latents of an agent that has something to learn cannot be told apart.

    Coordinate ascent never leaves such a start: it is a saddle of the bound, not an answer.
    Latents are told apart by their policy rows and initial cells, by weights of annotations (its
    own, and of those with whom it learns tables), then by their moves to and from latents already
    told apart, until nothing changes (colour refinement). So swaps of two latents are found as well
    as cycles of several.
    """
    weights = bound.demos.latent_weights
    return any(
        _has_like_latents(bound, agent, start, [weights[one] for one in group if one in weights])
        for group in coupled_agents(bound)
        for agent in group
    )


def _has_like_latents(
    bound: BoundModel,
    agent: str,
    start: Mapping[str, np.ndarray],
    weights: list[Float[np.ndarray, "steps latents"]],
) -> bool:
    policy, transition, initial = (
        np.asarray(start[name] if name in start else bound.tables[name].prior_mean())
        for name in bound.sites(agent)
    )
    latents = range(initial.shape[-1])
    of_latents = [*np.swapaxes(policy, 0, 1)], [*initial.T], *([*one.T] for one in weights)
    kinds = _numbered(
        [tuple(one.tobytes() for one in parts) for parts in zip(*of_latents, strict=True)]
    )
    num_kinds = 0
    while num_kinds < len(set(kinds)) < len(latents):
        num_kinds = len(set(kinds))
        moves = [
            sorted(
                (kinds[y], transition[:, x, y].tobytes(), transition[:, y, x].tobytes())
                for y in latents
                if y != x
            )
            for x in latents
        ]
        kinds = _numbered([(kinds[x], transition[:, x, x].tobytes(), *moves[x]) for x in latents])
    return len(set(kinds)) < len(latents)


def _numbered(keys: list[Any]) -> list[int]:
    """A number per key, the same for equal keys."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def starting_counts(
    bound: BoundModel, generator: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Counts of the labelled steps, and the other steps' counts dealt to the latents at random.

    Both without the padding that the message passing wants.
    """
    padded = lay_out(bound).num_rows
    known = labelled_counts(bound, padded)
    dealt = random_counts(bound, padded, generator)
    sizes = num_contexts(bound)
    return (
        {name: counts[: sizes[name]] for name, counts in known.items()},
        {name: counts[: sizes[name]] for name, counts in dealt.items()},
    )


def starting_concentrations(
    bound: BoundModel, generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """Prior plus the counts of the labelled steps, of the tables with Dirichlet rows.

    Where that is symmetric in two latents, a saddle of the bound, the other steps are dealt to
    the latents at random and counted too. Of parametric families the prior is the one under the
    central parameters.
    """
    known, dealt = starting_counts(bound, generator)
    start = _with_prior(bound, known)
    if is_symmetric(bound, start):
        start = {name: values + dealt[name] for name, values in start.items()}
    return start


def labels_tell_apart(bound: BoundModel) -> bool:
    """Whether priors and labelled steps tell the latents of every agent apart."""
    return not is_symmetric(bound, _with_prior(bound, labelled_counts(bound, num_contexts(bound))))


def _with_prior(
    bound: BoundModel, counts: Mapping[str, Float[np.ndarray, "..."]]
) -> dict[str, Float[np.ndarray, "..."]]:
    """Counts and prior of the tables with Dirichlet rows."""
    return {
        name: central_concentration(table) + counts[name]
        for name, table in bound.learned.items()
        if table.cpt.dirichlet_rows
    }
