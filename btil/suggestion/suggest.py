"""`suggest_model`: a team model that the recording itself speaks for."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.words import listed
from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.naming import agents_but_for_capitals, word_of
from btil.models.cpt import CPT, DirichletCPT, Shared, StickyDirichletCPT, UniformCPT
from btil.models.emission import Emission
from btil.models.team import Family, TeamModel, bind, context_visits
from btil.progress import progress_line
from btil.suggestion.columns import NEXT, Views, acting_agents, check_roles, refused, views
from btil.suggestion.fold_fits import FoldFits, labelled_episodes, worth_fitting
from btil.suggestion.held_out import (
    Refined,
    Stretches,
    decoding_errors,
    emissions,
    majority_errors,
    moves,
    refine,
    refined_to,
    stretches,
)
from btil.suggestion.motion import proposals
from btil.suggestion.preferring import Option, other_policies, other_transitions, preferred
from btil.suggestion.refits import by_mean_field
from btil.suggestion.scores import Prior, cpt_of
from btil.suggestion.search import (
    MOST_PARENTS,
    Found,
    Parents,
    Pool,
    Scored,
    can_share,
    columns_of,
    found_to,
    make_pool,
    search,
)
from btil.suggestion.told import Suggestion, Table

# A table is learned from an agent's own labels where there are so many.
_FEWEST_LABELS = 3
_INITIALS = (0.3, 1.0, 3.0)
# An initial distribution is learned where that brings so many nats.
_LEAST_OF_INITIAL = 1.0
# At most so many fits are told of beforehand.
_MOST_FITS = 30
# Own tables that explain fewer nats more than a shared one are not clearly better.
_LEAST_MARGIN = 10.0
_NOTHING = Scored((), 0.0, Prior("flat", 1.0), None, 0)
# With emissions another policy has to err less by a tenth.
_SHARE_OF_FULLER = 0.9


class Choice(NamedTuple):
    """The tables of one role: who has which, and what they are.

    Attributes:
        found: What was found, by the agents that have the table.
        family: What the model has there.
        sharing: Why the agents share, or do not.
        refined: Of policies chosen by held-out labels, how.
        other: Where tables are not shared though they could be, the same with one table.
        margin: By how many nats it explains more than that one.
        fitted: Of tables chosen by fits, all that were fitted, the chosen one first.
    """

    found: dict[tuple[str, ...], Found]
    family: dict[str, Family | None]
    sharing: str
    refined: dict[tuple[str, ...], Refined]
    other: "Choice | None" = None
    margin: float = 0.0
    fitted: dict[tuple[str, ...], tuple[Option, ...]] = {}  # noqa: RUF012  # never mutated

    def best(self, agents: tuple[str, ...]) -> Scored:
        """The parents and the prior of some agents' table, and the score it was chosen by."""
        if agents not in self.refined:
            return self.found[agents].best
        one = self.refined[agents]
        return one.best._replace(score=one.log_conditional)


def suggest_model(
    demos: Demonstrations,
    seed: int = 0,
    progress: bool = True,
    *,
    roles: Any = None,
    refit: bool = True,
) -> Suggestion:
    r"""Find a good team model for a recording of which some steps are labelled.

    Of every policy and every transition it finds the parents: of the sets that greedy steps lead
    to, the one under which the labelled steps are most probable, rows integrated out,

    .. math:: \max_\alpha \sum_{c, x} \log \frac{B(\alpha + n_{cx})}{B(\alpha)},

    less 1 + log(number of candidates) nats for each parent. B is the multivariate beta function,
    n the counts of a context and latent, alpha a prior of a small grid. With two or more labelled
    episodes policies are then chosen by log p(labels | actions) of labelled episodes held out, for
    a parent that explains actions may tell nothing of the latents. Agents share a table where that
    is better. With two or more labelled episodes the closest tables are then compared by
    mean-field fits, which learn from the unlabelled episodes too: another table is taken where it
    errs clearly less in labelled episodes whose labels were left out.

    Continuous columns with an agent's name in theirs are given an emission: of those that the step
    before does not tell (velocities), given those that it tells (positions) and their own previous
    values, or fewer of these, where mean-field fits say so. Where fits decode better without them,
    columns of agents who act are left out. Agents without actions have no policy.

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
        refit: Whether mean-field fits may be made, a fraction of a second each; a few seconds with
            continuous columns.

    Returns:
        The model, what was tried, and what speaks against trusting it.

    Raises:
        ValueError: If `demos` are no demonstrations, a role is wrong, or a member has neither
            actions nor continuous columns of its own.

    Example:
        >>> suggestion = btil.suggest_model(demos)  # doctest: +SKIP
        >>> posterior = btil.fit(suggestion.model, demos)  # doctest: +SKIP

    References:
        Heckerman, Geiger, Chickering (1995), Learning Bayesian networks: the combination of
        knowledge and statistical data (the score with fixed priors; greedy search).
    """
    if not isinstance(demos, Demonstrations):
        raise ValueError(f"demos must be Demonstrations, got {type(demos).__name__}")
    acting, emitted = acting_agents(demos), proposals(demos)
    for agent in demos.agents:
        if agent not in acting and not any(agent in one for one in emitted):
            raise ValueError(
                "suggest_model looks at what members do and how they move: there are no actions of "
                f"{agent} and no continuous columns with its name in theirs; call them {agent}_..."
            )
    check_seed(seed, 2**32 - 1)
    check_values({"progress": progress})
    roles = check_roles(roles, demos)
    # The search counts actions by labels: a label beside an unseen action has nothing to count.
    acts = np.isin(demos.agents, acting)
    demos = demos.replace(latents=np.where(acts & (demos.actions < 0), -1, demos.latents))
    unfit = refused(demos, roles)
    usable = [column for column in demos.state_variables if column not in unfit]
    seen = views(demos, usable, roles)
    labelled = {
        agent: int((demos.latents[:, k] >= 0).sum()) for k, agent in enumerate(demos.agents)
    }
    transition = _choose(demos, seen, "transition", labelled, demos.agents)
    policy = Choice({}, dict.fromkeys(demos.agents), "nobody has actions", {})
    if acting:
        policy = _choose(demos, seen, "policy", labelled, acting, transition)
        policy.family.update(dict.fromkeys(set(demos.agents) - set(acting)))

    def model_of(
        policy: Choice, transition: Choice, emissions: Mapping[str, Emission] | None = None
    ) -> TeamModel:
        family = _family_of(policy.family) if acting else None
        initial = _initial(demos, transition.family, labelled)
        return TeamModel(family, _family_of(transition.family), initial, emissions or None)

    by_fits = refit and len(labelled_episodes(demos)) >= 2
    explained = _Explained(emitted[0] if emitted else {})
    if emitted and by_fits:
        policy, explained = _explained(demos, policy, transition, emitted, model_of, seed, progress)
    if by_fits and not explained.emission:
        policy, transition = _by_fits(demos, policy, transition, model_of, progress)
    choices = {"policy": policy, "transition": transition}
    model = model_of(policy, transition, explained.emission)
    errors = _errors(demos, seen, choices, labelled)
    if explained.emission:
        # Those of the tables alone are not this model's.
        errors = {
            agent: {**one, "found": explained.errors[agent]}
            for agent, one in errors.items()
            if agent in explained.errors
        }
    return Suggestion(
        model=model,
        tables=tuple(_tables(demos, model, choices)),
        errors=errors,
        refused={**unfit, **explained.left_out},
        unread=tuple(name for name in _unread(demos, model) if name not in explained.left_out),
        sharing={role: choice.sharing for role, choice in choices.items()},
        labelled=labelled,
        warnings=(
            *_warnings(demos, roles, usable, unfit, labelled, model),
            *explained.untested(),
        ),
    )


def _choose(
    demos: Demonstrations,
    seen: Views,
    role: str,
    labelled: Mapping[str, int],
    members: tuple[str, ...],
    transition: Choice | None = None,
) -> Choice:
    """The tables of one role: one for those who can share it, or one each.

    Policies are chosen by the labels that they tell with given transitions, where two or more
    episodes have labels.
    """
    able = [agent for agent in sorted(members) if labelled[agent] >= _FEWEST_LABELS]
    refined: dict[tuple[str, ...], Refined] = {}

    def find(agents: tuple[str, ...]) -> Found:
        found = search(make_pool(demos, seen, role, agents))
        of = None if transition is None else stretches(demos, agents)
        if transition is not None and of is not None:
            refined[agents] = refine(found, team_moves(demos, transition.found, of, agents), of)
        return found

    def objective(agents: tuple[str, ...], found: Found) -> float:
        return refined[agents].objective if agents in refined else found.objective

    def choice(found: dict[tuple[str, ...], Found], sharing: str) -> Choice:
        family: dict[str, Family | None] = {}
        for agents, one in found.items():
            best = refined[agents].best if agents in refined else one.best
            family |= _families(one.pool, best)
        for agent in members:
            if agent not in family:
                family[agent] = _without_labels(demos, seen, role, agent)
        kept = {agents: one for agents, one in refined.items() if agents in found}
        return Choice(found, family, sharing, kept)

    apart: dict[tuple[str, ...], Found] = {(agent,): find((agent,)) for agent in able}
    team = tuple(sorted(members))
    reason = can_share(demos, team) if len(team) > 1 else "there is one agent"
    if reason is not None or not able:
        return choice(apart, reason or "")
    together: dict[tuple[str, ...], Found] = {team: find(team)}
    separate = sum(objective(agents, one) for agents, one in apart.items())
    more = objective(team, together[team]) - separate
    unlabelled = [agent for agent in team if agent not in able]
    if unlabelled:
        return choice(together, f"{listed(unlabelled)} has no labels to choose by")
    if more > 0:
        return choice(together, f"one table explains {more:.1f} nats more")
    chosen = choice(apart, f"own tables explain {-more:.1f} nats more")
    return chosen._replace(other=choice(together, ""), margin=-more)


def _families(pool: Pool, best: Scored) -> dict[str, Family | None]:
    """The table of each agent of a pool."""
    cpt = _cpt(pool, best)
    family: Family = Shared(cpt) if len(pool.agents) > 1 else cpt
    return dict.fromkeys(pool.agents, family)


def _by_fits(
    demos: Demonstrations,
    policy: Choice,
    transition: Choice,
    model_of: Callable[[Choice, Choice], TeamModel],
    progress: bool,
) -> tuple[Choice, Choice]:
    """The tables by how well fits decode: who shares them, then policies, then transitions."""
    now = {"policy": policy, "transition": transition}
    if not all(choice.found for choice in now.values()) or not worth_fitting(demos):
        return policy, transition
    fits = FoldFits(demos)
    known: dict[str, Option] = {}

    def options(role: str, choices: Sequence[Choice], agents: tuple[str, ...]) -> list[Option]:
        found = []
        for choice in choices:
            tables = {**now, role: choice}
            model = model_of(tables["policy"], tables["transition"])
            if repr(model) not in known:
                errors = fits.errors(bind(model, fits.demos))
                known[repr(model)] = Option(choice.best(agents), errors)
                line.update()
            found.append(known[repr(model)]._replace(scored=choice.best(agents)))
        return found

    with progress_line(_MOST_FITS, "suggest", progress, at_most=True) as line:
        for role in ("transition", "policy"):
            together = now[role].other
            if together is not None:
                both = [now[role], together]
                # Where scores say little, one table is simpler than several.
                if now[role].margin < _LEAST_MARGIN:
                    both.reverse()
                tried = [options(role, [one], next(iter(one.found)))[0] for one in both]
                chosen = preferred([one._replace(scored=_NOTHING) for one in tried], 0.0)
                if both[chosen] is together:
                    errors = (
                        f"{tried[chosen].error:.3f}, own tables by {tried[1 - chosen].error:.3f}"
                    )
                    now[role] = together._replace(sharing=f"in fits one table errs by {errors}")
        for role in ("policy", "transition"):
            for agents, found in now[role].found.items():
                choices = [now[role], *_others(role, now[role], agents)]
                tried = options(role, choices, agents)
                best = preferred(tried, found.least)
                rest = sorted((one for one in tried if one is not tried[best]), key=_by_error)
                fitted = {**now[role].fitted, agents: (tried[best], *rest)}
                now[role] = choices[best]._replace(fitted=fitted)
    return now["policy"], now["transition"]


def _by_error(one: Option) -> tuple[float, Parents]:
    return round(one.error, 9), one.scored.parents


def _others(role: str, choice: Choice, agents: tuple[str, ...]) -> list[Choice]:
    """The same choices with other tables of some agents, those that fits may tell to be better."""
    found, tables = choice.found[agents], len(choice.found)
    if role == "transition":
        return [_with_table(choice, agents, one) for one in other_transitions(found, tables)]
    if agents not in choice.refined:
        return []
    others = other_policies(found, choice.refined[agents], tables)
    return [_with_table(choice, agents, one) for one in others]


def _with_table(choice: Choice, agents: tuple[str, ...], table: Scored) -> Choice:
    """The same choices with another table of some agents."""
    found = choice.found[agents]
    if agents in choice.refined:
        one = refined_to(table.parents, found, choice.refined[agents].scores)
        family = choice.family | _families(found.pool, one.best)
        return choice._replace(family=family, refined={**choice.refined, agents: one})
    family = choice.family | _families(found.pool, table)
    return choice._replace(family=family, found={**choice.found, agents: found_to(table, found)})


class _Explained(NamedTuple):
    """Continuous columns that are explained.

    Attributes:
        emission: By what, for each agent that has such columns.
        errors: Decoding errors of fits with it; empty where none were made.
        left_out: Columns without which fits decode better, and the errors.
    """

    emission: Mapping[str, Emission]
    errors: Mapping[str, float] = MappingProxyType({})
    left_out: Mapping[str, str] = MappingProxyType({})

    def untested(self) -> list[str]:
        """What is to be said where nobody knows whether the columns help."""
        if not self.emission or self.errors:
            return []
        columns = [name for agent, one in self.emission.items() for name in one.columns_of(agent)]
        return [
            f"whether {listed(columns)} help to tell mental states was not tested, which takes "
            "two labelled episodes and refit=True: fit without them too, and compare"
        ]


def _explained(
    demos: Demonstrations,
    policy: Choice,
    transition: Choice,
    emitted: Sequence[Mapping[str, Emission]],
    model_of: Callable[[Choice, Choice, Mapping[str, Emission]], TeamModel],
    seed: int,
    progress: bool,
) -> tuple[Choice, _Explained]:
    """The policy and the emissions under which fits decode best.

    A column may tell more of what members do than of what they have in mind (how fast somebody
    is who walks), and an emission that does not fit it can drown what actions say. So members who
    act can be without.
    """
    acting = acting_agents(demos)
    bare = {agent: one for agent, one in emitted[0].items() if agent not in acting}
    candidates = [(one, emitted[0]) for one in (policy, *_fuller(policy))]
    candidates += [(policy, one) for one in emitted[1:]]
    with_columns = len(candidates)
    if bare != emitted[0]:
        candidates.append((policy, bare))
    errors = by_mean_field(
        demos, [model_of(one, transition, other) for one, other in candidates], seed, progress
    )
    means = np.nanmean(errors, axis=1)
    rivals = means[:with_columns].copy()
    rivals[0] *= _SHARE_OF_FULLER
    best = int(np.argmin(rivals))
    left_out = {}
    if len(candidates) > with_columns and means[-1] < means[best]:
        reason = (
            f"fits err less in labels held out without it, {means[-1]:.3f}, than with it, "
            f"{means[best]:.3f}"
        )
        left_out = {
            name: reason
            for agent, one in emitted[0].items()
            if agent not in bare
            for name in one.columns_of(agent)
        }
        best = len(candidates) - 1
    told = dict(zip(demos.agents, errors[best].tolist(), strict=True))
    return candidates[best][0], _Explained(candidates[best][1], told, left_out)


def _fuller(policy: Choice) -> list[Choice]:
    """Policies that also read what explains the actions best.

    From the labelled steps alone these have too many contexts; unlabelled steps may fill them.
    """
    fuller = []
    for with_told in (True, False):
        choice = policy
        for agents, one in policy.refined.items():
            found = policy.found[agents].best
            told = one.best.parents if with_told else ()
            parents = tuple(sorted({*found.parents, *told}))
            if parents != one.best.parents and len(parents) <= MOST_PARENTS:
                choice = _with_table(choice, agents, found._replace(parents=parents))
        if choice is not policy:
            fuller.append(choice)
    return fuller


def team_moves(
    demos: Demonstrations,
    found: Mapping[tuple[str, ...], Found],
    of: Stretches,
    agents: tuple[str, ...],
) -> Float[np.ndarray, "length lanes latents latents"]:
    """P(latent | latent before) in the lanes of the agents, each by the transitions it has."""
    latents = demos.num_latents[demos.agents.index(agents[0])]
    move = np.broadcast_to(np.eye(latents), (*of.step.shape, latents, latents)).copy()
    for having, one in found.items():
        mine = [agent for agent in having if agent in agents]
        if not mine:
            continue
        own = stretches(demos, having, fewest=1)
        assert own is not None
        taken = moves(one.pool, one.best, own)
        for agent in mine:
            position = demos.agents.index(agent)
            length = min(len(taken), len(move))
            move[:length, of.agent == position] = taken[:length, own.agent == position]
    return move


def _errors(
    demos: Demonstrations,
    seen: Views,
    choices: Mapping[str, Choice],
    labelled: Mapping[str, int],
) -> dict[str, dict[str, float]]:
    """Errors on labelled episodes held out: what was found, the default and the majority.

    Tables are learned from the labelled steps of the other folds alone. Of members with labels in
    one episode nothing is told.
    """
    errors: dict[str, dict[str, float]] = {}
    every = views(demos, list(demos.state_variables), {})
    for agents, found in choices["policy"].found.items():
        of = stretches(demos, agents)
        if of is None:
            continue
        refined = choices["policy"].refined[agents]
        move = team_moves(demos, choices["transition"].found, of, agents)
        emission = emissions(found.pool, refined.best.parents, [refined.best.prior], of)[0]
        for position, error in decoding_errors(emission, move, of).items():
            errors.setdefault(demos.agents[position], {})["found"] = error
    for agent in list(errors):
        of = stretches(demos, (agent,))
        if of is None:  # others, who share its table, have labels in a second episode
            del errors[agent]
            continue
        policy = make_pool(demos, every, "policy", (agent,), everything=True)
        transition = make_pool(demos, every, "transition", (agent,), everything=True)
        number = policy.reads.num_values
        flat = Prior("flat", 1.2 * number, 0.0, tuple([1 / number] * number))
        emission = emissions(policy, tuple(policy.columns), [flat], of)[0]
        now = tuple(name for name in transition.columns if not name.startswith(NEXT))
        plain = Scored(now, 0.0, Prior("sticky", 1.01), None, 0)
        move = moves(transition, plain, of)
        (errors[agent]["default"],) = decoding_errors(emission, move, of).values()
        (errors[agent]["majority"],) = majority_errors(policy, of).values()
    return errors


def _cpt(pool: Pool, best: Scored) -> CPT:
    parents = {agent: columns_of(best, pool.names, agent) for agent in pool.agents}
    kept = None if best.kept is None else pool.names[best.kept]
    return cpt_of(best.prior, parents, kept)


def _without_labels(demos: Demonstrations, seen: Views, role: str, agent: str) -> CPT:
    """A table of an agent of whom no latent is known."""
    if role == "transition":
        return StickyDirichletCPT(0.3, stay=10.0)
    pool = make_pool(demos.without_labels(), seen, role, (agent,))
    every = _of_all_steps(demos, seen, pool)
    return _cpt(every, search(every).best)


def _of_all_steps(demos: Demonstrations, seen: Views, pool: Pool) -> Pool:
    """Reads of every action, as if there were one latent: what it depends on whatever that is."""
    position = demos.agents.index(pool.agents[0])
    marked = np.full_like(demos.latents, -1)
    marked[demos.actions[:, position] >= 0, position] = 0
    return make_pool(demos.replace(latents=marked), seen, "policy", pool.agents)


def _family_of(family: Mapping[str, Family | None]) -> Any:
    """One family where all agents have the same, else a mapping."""
    first, *others = family.values()
    if all(other == first for other in others) and (isinstance(first, Shared) or not others):
        return first
    return dict(family)


def _initial(
    demos: Demonstrations, transitions: Mapping[str, Family | None], labelled: Mapping[str, int]
) -> Any:
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


def _unread(demos: Demonstrations, model: TeamModel) -> tuple[str, ...]:
    """Continuous columns that no emission explains or reads."""
    emissions = model.emissions
    read: set[str] = set()
    for agent, family in emissions.items() if isinstance(emissions, Mapping) else ():
        read |= {*family.columns_of(agent)}
        read |= {name.removeprefix("previous_") for name in family.covariates_of(agent)}
    return tuple(name for name in demos.continuous if name not in read)


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
                    refined=choice.refined.get(agents),
                    fitted=choice.fitted.get(agents, ()),
                    contexts=len(visits),
                    steps=int(visits.sum()),
                    actions=demos.value_names(f"action_{agents[0]}") if role == "policy" else (),
                )
            )
    return tables


def _names_in_capitals(demos: Demonstrations, roles: Mapping[str, str]) -> "list[str]":
    """Hints at columns that would be a member's if capitals were written alike."""
    told = []
    for column in (*demos.state_variables, *demos.continuous):
        agents = agents_but_for_capitals(column, demos.agents)
        if column in roles or not agents:
            continue
        name = column
        for agent in agents:
            name = re.sub(word_of(agent), agent, name, flags=re.IGNORECASE)
        remedy = f"call it {name}"
        if column in demos.state_variables:
            remedy += f', or say roles={{"{column}": "{name}"}} (in a shell --role {column}={name})'
        told.append(
            f"{column} is taken for a column of nobody: the name of {listed(agents)} is written "
            f"with other capitals; if it is theirs, {remedy}"
        )
    return told


def _warnings(
    demos: Demonstrations,
    roles: Mapping[str, str],
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
    known = (demos.latents >= 0).any(1)
    if known.any() and np.add.reduceat(known, demos.episode_starts).astype(bool).sum() == 1:
        told.append(
            "labels in one episode only: nothing is left to test the model on, so no decoding "
            "errors are reported; label a second one"
        )
    told += _names_in_capitals(demos, roles)
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
