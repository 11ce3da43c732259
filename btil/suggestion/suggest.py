"""`suggest_model`: a team model that the recording itself speaks for."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from btil.arguments import check_seed
from btil.demonstrations import Demonstrations
from btil.models.cpt import CPT, DirichletCPT, Shared, StickyDirichletCPT, UniformCPT
from btil.models.team import Family, TeamModel, bind, context_visits
from btil.suggestion.columns import Views, check_roles, refused, views
from btil.suggestion.scores import cpt_of
from btil.suggestion.search import (
    Found,
    Pool,
    can_share,
    columns_of,
    make_pool,
    search,
)
from btil.suggestion.told import Suggestion, Table

# A table is learned from an agent's own labels where there are so many.
_FEWEST_LABELS = 3
_INITIALS = (0.3, 1.0, 3.0)
# An initial distribution is learned where that brings so many nats.
_LEAST_OF_INITIAL = 1.0


class Choice(NamedTuple):
    """The tables of one role: who has which, and what they are.

    Attributes:
        found: What was found, by the agents that have the table.
        family: What the model has there.
        sharing: Why the agents share, or do not.
    """

    found: dict[tuple[str, ...], Found]
    family: dict[str, Family]
    sharing: str


def suggest_model(
    demos: Demonstrations,
    seed: int = 0,
    progress: bool = True,
    *,
    roles: Mapping[str, str] | None = None,
) -> Suggestion:
    r"""Find a good team model for a recording of which some steps are labelled.

    Of every policy and every transition it finds the parents: of the sets that greedy steps lead
    to, the one under which the labelled steps are most probable, rows integrated out,

    .. math:: \max_\alpha \sum_{c, x} \log \frac{B(\alpha + n_{cx})}{B(\alpha)},

    less 1 + log(number of candidates) nats for each parent. B is the multivariate beta function,
    n the counts of a context and latent, alpha a prior of a small grid. Agents share a table where
    that is more probable. No model is fitted for it.

    Columns are an agent's own where its name is a word of theirs (`ann_cell`, `cell-ann`), common
    where no agent's is. Constants, columns that hardly repeat a value, and those that tell which
    episodes or steps are labelled (a coder's notes) are refused, with the reason.

    Args:
        demos: The recording.
        seed: A non-negative integer. The answer is the same for every seed.
        progress: Whether to show a progress line on standard error.
        roles: What columns are, where names do not say it: {column: role}, a role being
            "common", "ignore", an agent's name, or the name that the column should have had
            (`{"x1": "ann_x", "x2": "bob_x"}`). A column named here is never refused.

    Returns:
        The model, what was tried, and what speaks against trusting it.

    Raises:
        ValueError: If `demos` are no demonstrations or a role is wrong.

    Example:
        >>> suggestion = btil.suggest_model(demos)  # doctest: +SKIP
        >>> posterior = btil.fit(suggestion.model, demos)  # doctest: +SKIP

    References:
        Heckerman, Geiger, Chickering (1995), Learning Bayesian networks: the combination of
        knowledge and statistical data (the score with fixed priors; greedy search).
    """
    if not isinstance(demos, Demonstrations):
        raise ValueError(f"demos must be Demonstrations, got {type(demos).__name__}")
    check_seed(seed, 2**32 - 1)
    roles = check_roles(roles, demos)
    unfit = refused(demos, roles)
    usable = [column for column in demos.state_variables if column not in unfit]
    seen = views(demos, usable, roles)
    labelled = {
        agent: int((demos.latents[:, k] >= 0).sum()) for k, agent in enumerate(demos.agents)
    }
    choices = {role: _choose(demos, seen, role, labelled) for role in ("policy", "transition")}
    model = TeamModel(
        policy=_family_of(choices["policy"].family),
        transition=_family_of(choices["transition"].family),
        initial=_initial(demos, choices["transition"].family, labelled),
    )
    return Suggestion(
        model=model,
        tables=tuple(_tables(demos, model, choices)),
        refused=unfit,
        sharing={role: choice.sharing for role, choice in choices.items()},
        labelled=labelled,
        warnings=tuple(_warnings(demos, usable, unfit, labelled, model)),
    )


def _choose(demos: Demonstrations, seen: Views, role: str, labelled: Mapping[str, int]) -> Choice:
    """The tables of one role: one for those who can share it, or one each."""
    able = [agent for agent in demos.agents if labelled[agent] >= _FEWEST_LABELS]
    apart: dict[tuple[str, ...], Found]
    apart = {(agent,): search(make_pool(demos, seen, role, (agent,))) for agent in able}
    team = tuple(sorted(demos.agents))
    reason = can_share(demos, team) if len(team) > 1 else "there is one agent"
    found = apart
    if reason is None and able:
        together = search(make_pool(demos, seen, role, team))
        separate = sum(one.objective for one in apart.values())
        more = together.objective - separate
        unlabelled = [agent for agent in team if agent not in able]
        if unlabelled:
            found, reason = {team: together}, f"{', '.join(unlabelled)} has no labels of its own"
        elif more > 0:
            found, reason = {team: together}, f"one table explains {more:.0f} nats more"
        else:
            reason = f"own tables explain {-more:.0f} nats more"
    family: dict[str, Family] = {}
    for agents, one in found.items():
        cpt = _cpt(demos, one)
        for agent in agents:
            family[agent] = Shared(cpt) if len(agents) > 1 else cpt
    for agent in demos.agents:
        if agent not in family:
            family[agent] = _without_labels(demos, seen, role, agent)
    return Choice(found, family, reason or "")


def _cpt(demos: Demonstrations, found: Found) -> CPT:
    pool, best = found.pool, found.best
    parents = {agent: columns_of(best, pool.names, agent) for agent in pool.agents}
    kept = None if best.kept is None else pool.names[best.kept]
    return cpt_of(best.prior, parents, kept)


def _without_labels(demos: Demonstrations, seen: Views, role: str, agent: str) -> CPT:
    """A table of an agent of whom no latent is known."""
    if role == "transition":
        return StickyDirichletCPT(0.3, stay=10.0)
    pool = make_pool(demos.without_labels(), seen, role, (agent,))
    return _cpt(demos, search(_of_all_steps(demos, seen, pool)))


def _of_all_steps(demos: Demonstrations, seen: Views, pool: Pool) -> Pool:
    """Reads of every step, as if there were one latent: what actions depend on whatever it is."""
    position = demos.agents.index(pool.agents[0])
    marked = np.full_like(demos.latents, -1)
    marked[:, position] = 0
    every = make_pool(demos.replace(latents=marked), seen, "policy", pool.agents)
    return every


def _family_of(family: Mapping[str, Family]) -> Family | dict[str, Family]:
    """One family where all agents have the same, else a mapping."""
    first, *others = family.values()
    if all(other == first for other in others) and (isinstance(first, Shared) or not others):
        return first
    return dict(family)


def _initial(
    demos: Demonstrations, transitions: Mapping[str, Family], labelled: Mapping[str, int]
) -> Family | dict[str, Family]:
    """Initial tables: learned where labelled first steps are more probable so."""
    from scipy.special import gammaln

    first = demos.latents[demos.episode_starts]
    groups = [
        [agent for agent in demos.agents if isinstance(transitions[agent], Shared)],
        *([agent] for agent in demos.agents if not isinstance(transitions[agent], Shared)),
    ]
    family: dict[str, Family] = {}
    for group in filter(None, groups):
        position = [demos.agents.index(agent) for agent in group]
        latents = demos.num_latents[position[0]]
        known = first[:, position]
        counts = np.bincount(known[known >= 0], minlength=latents)
        number = int(counts.sum())

        def evidence(u: float, counts: np.ndarray = counts, number: int = number) -> float:
            rows = gammaln(u + counts) - gammaln(u)
            whole = len(counts) * u
            return float(rows.sum() + gammaln(whole) - gammaln(whole + number))

        scores = [evidence(u) for u in _INITIALS]
        cpt: CPT = UniformCPT()
        if max(scores) > -number * np.log(latents) + _LEAST_OF_INITIAL:
            cpt = DirichletCPT(_INITIALS[int(np.argmax(scores))])
        for agent in group:
            family[agent] = Shared(cpt) if len(group) > 1 else cpt
    return _family_of({agent: family[agent] for agent in demos.agents})


def _tables(
    demos: Demonstrations, model: TeamModel, choices: Mapping[str, Choice]
) -> "list[Table]":
    bound = bind(model, demos)
    tables = []
    for role, choice in choices.items():
        for agents, found in choice.found.items():
            site = bound.table(role, agents[0])
            visits = context_visits(bound, site.name)
            tables.append(
                Table(
                    role=role,
                    agents=agents,
                    found=found,
                    contexts=len(visits),
                    steps=int(visits.sum()),
                )
            )
    return tables


def _warnings(
    demos: Demonstrations,
    usable: list[str],
    unfit: Mapping[str, str],
    labelled: Mapping[str, int],
    model: TeamModel,
) -> "list[str]":
    told = []
    none = [agent for agent, number in labelled.items() if number < _FEWEST_LABELS]
    if len(none) == len(demos.agents):
        told.append(
            "no labels: parents were chosen by actions alone, and the names of the latents are "
            "arbitrary; a few labelled episodes would say much more"
        )
    elif none:
        told.append(f"{', '.join(none)}: too few labels to choose tables by")
    if not usable:
        told.append("no column can be used: tables depend on nothing of the state")
    for agent, k in zip(demos.agents, range(demos.num_agents), strict=True):
        missing = [
            name
            for value, name in enumerate(demos.value_names(f"latent_{agent}"))
            if labelled[agent] and not (demos.latents[:, k] == value).any()
        ]
        if missing:
            told.append(f"{agent}: no step is labelled {', '.join(missing)}")
    return told
