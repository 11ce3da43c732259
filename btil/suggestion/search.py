"""The search: parents added and dropped one by one, as long as labelled steps gain from it."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.naming import OTHER, OWN
from btil.models.contexts import parent_values
from btil.suggestion.columns import NEXT, Views, tells_action
from btil.suggestion.scores import (
    Grid,
    Prior,
    Reads,
    keeping_grid,
    log_marginals,
    policy_grid,
    transition_grid,
)

MOST_PARENTS = 6
# Pairs of columns are looked at together where no single one helps, if they are not too many.
_MOST_PAIRED = 40
# Scores that differ by less are equal: names decide then.
_EQUAL = 1e-7
# Cells of a prior that depends on a variable and its next value.
_MOST_KEPT = 16
Parents = tuple[str, ...]


class Pool(NamedTuple):
    """Labelled reads of one table in one role, by agents who would share it.

    Attributes:
        role: "policy" or "transition".
        agents: Who reads it.
        reads: Latents and values.
        columns: Codes of each candidate's values, {form: (reads,)}.
        names: Each candidate's column for each agent, {form: {agent: column}}.
        changes: Whether a variable is another one step later, {form: (reads,)}.
        plain: Priors whatever the parents.
        keeping: Priors by which a latent stays while a variable keeps its value; None: no role.
    """

    role: str
    agents: tuple[str, ...]
    reads: Reads
    columns: dict[str, Int[np.ndarray, " reads"]]
    names: dict[str, dict[str, str]]
    changes: dict[str, Int[np.ndarray, " reads"]]
    plain: Grid
    keeping: Grid | None


class Scored(NamedTuple):
    """A set of parents, with the prior under which labelled steps are most probable.

    Attributes:
        parents: The forms, sorted.
        score: The log evidence, in nats.
        prior: The prior.
        kept: The variable of a prior that keeps.
        contexts: Contexts that labelled steps visit.
    """

    parents: Parents
    score: float
    prior: Prior
    kept: str | None
    contexts: int


class Tried(NamedTuple):
    """A step of the search.

    Attributes:
        scored: The parents.
        what: What was done to come here: "none", "+ x", "- x".
        gain: What that brought.
    """

    scored: Scored
    what: str
    gain: float


class Found(NamedTuple):
    """What the search ended with.

    Attributes:
        pool: What it looked at.
        best: The parents.
        brought: What each parent brings: what is lost without it.
        path: The steps that led there.
        runners_up: The best other sets beside it, best first.
        least: The least gain of a step.
    """

    pool: Pool
    best: Scored
    brought: dict[str, float]
    path: tuple[Tried, ...]
    runners_up: tuple[Scored, ...]
    least: float

    @property
    def objective(self) -> float:
        """The score less what each parent has to bring at least."""
        return self.best.score - self.least * len(self.best.parents)


def make_pool(
    demos: Demonstrations,
    views: Views,
    role: str,
    agents: tuple[str, ...],
    everything: bool = False,
) -> Pool:
    """The labelled reads of the agents, and all that they could depend on.

    With `everything` a policy may also read what tells its action.
    """
    first = demos.agents.index(agents[0])
    starts = np.zeros(demos.num_steps, bool)
    starts[demos.episode_starts] = True
    steps, latents, values = [], [], []
    for agent in agents:
        position = demos.agents.index(agent)
        label = demos.latents[:, position]
        if role == "policy":
            rows = np.flatnonzero(label >= 0)
            value = demos.actions[rows, position]
        else:
            after = np.flatnonzero(~starts & (label >= 0) & (np.roll(label, 1) >= 0))
            rows, value = after - 1, label[after]
        steps.append(rows)
        latents.append(label[rows])
        values.append(value)
    num_latents = demos.num_latents[first]
    num_values = demos.num_actions[first] if role == "policy" else num_latents
    reads = Reads(np.concatenate(latents), np.concatenate(values), num_latents, num_values)
    columns, names, changes = {}, {}, {}
    for form, by_agent in _candidates(demos, views, role, agents, everything):
        parts = [
            _values(demos, by_agent[agent], rows) for agent, rows in zip(agents, steps, strict=True)
        ]
        codes = np.unique(np.concatenate(parts), return_inverse=True)[1]
        if len(codes) and codes.max() > 0:
            columns[form], names[form] = codes, by_agent
        of_states = [column for column in by_agent.values() if column in demos.state_variables]
        if role == "transition" and len(of_states) == len(agents):
            following = [
                _values(demos, f"next_{by_agent[agent]}", rows)
                for agent, rows in zip(agents, steps, strict=True)
            ]
            changed = (np.concatenate(parts) != np.concatenate(following)).astype(np.int64)
            sizes = [demos.num_states[column] for column in of_states]
            if changed.any() and not changed.all() and max(sizes) <= _MOST_KEPT:
                changes[form] = changed
    if role == "policy":
        taken = demos.actions[:, [demos.agents.index(agent) for agent in agents]]
        counts = np.bincount(taken[taken >= 0], minlength=num_values) + 1.0
        return Pool(
            role, agents, reads, columns, names, {}, policy_grid(counts / counts.sum()), None
        )
    plain, keeping = transition_grid(num_latents), keeping_grid(num_latents)
    return Pool(role, agents, reads, columns, names, changes, plain, keeping)


def _values(demos: Demonstrations, column: str, rows: Int[np.ndarray, " k"]) -> np.ndarray:
    states, actions = parent_values(demos)
    if column.startswith("action_") and column not in states:
        return actions[column.removeprefix("action_")][rows]
    if column in states:
        return states[column][rows]
    return states[column.removeprefix("next_")][rows + 1]


def _candidates(
    demos: Demonstrations, views: Views, role: str, agents: Sequence[str], everything: bool
) -> Iterator[tuple[str, dict[str, str]]]:
    """Forms that all the agents have, with the column of each, own ones first."""
    forms = set.intersection(*(set(views.states[agent]) for agent in agents))
    for form in sorted(forms, key=lambda form: (rank(form), form)):
        columns = {agent: views.states[agent][form] for agent in agents}
        if len(agents) > 1 and not _agree(demos, list(columns.values())):
            continue
        if role == "policy":
            if everything or not any(
                tells_action(demos, columns[agent], agent) for agent in agents
            ):
                yield form, columns
        else:
            yield form, columns
            yield NEXT + form, {agent: f"next_{column}" for agent, column in columns.items()}
    if role == "transition":
        for form in sorted(views.actions[agents[0]], key=lambda form: (rank(form), form)):
            columns = {agent: views.actions[agent][form] for agent in agents}
            if len(agents) == 1 or _agree(demos, list(columns.values())):
                yield form, columns


def rank(form: str) -> int:
    """Own columns first, then common ones, then others'."""
    if OWN in form:
        return 0
    return 2 if OTHER in form else 1


def _agree(demos: Demonstrations, columns: list[str]) -> bool:
    """Whether an index means the same in all of the columns."""
    names = demos.state_names | {f"action_{a}": n for a, n in demos.action_names.items()}
    return len({names.get(column) for column in columns}) == 1


def can_share(demos: Demonstrations, agents: tuple[str, ...]) -> str | None:
    """Why agents cannot have one table; None: they can."""
    position = [demos.agents.index(agent) for agent in agents]
    for what, sizes, names in (
        ("mental states", demos.num_latents, demos.latent_names),
        ("actions", demos.num_actions, demos.action_names),
    ):
        if len({sizes[k] for k in position}) > 1 or len({names.get(a) for a in agents}) > 1:
            return f"their {what} are not the same"
    return None


class Search:
    """Scores of sets of parents, each computed once."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.known: dict[Parents, Scored] = {}

    def score(self, parents: Sequence[str]) -> Scored:
        """The best prior of a set of parents, whatever its order."""
        chosen = tuple(sorted(parents))
        if chosen not in self.known:
            self.known[chosen] = self._score(chosen)
        return self.known[chosen]

    def _score(self, parents: Parents) -> Scored:
        pool, reads = self.pool, self.pool.reads
        context = np.zeros(len(reads.latent), np.int64)
        for name in parents:
            codes = pool.columns[name]
            context = context * (int(codes.max()) + 1) + codes
            if context.max(initial=0) > 2**40:
                context = np.unique(context, return_inverse=True)[1]
        contexts = len(np.unique(context))
        nothing = np.zeros(len(context), np.int64)
        if pool.role == "policy":
            scores = log_marginals(context, reads, pool.plain, reads.value, nothing)
            best = _first_best(scores)
            return Scored(parents, float(scores[best]), pool.plain.priors[best], None, contexts)
        stays = (reads.latent == reads.value).astype(np.int64)
        scores = log_marginals(context, reads, pool.plain, stays, nothing)
        best = _first_best(scores)
        found = Scored(parents, float(scores[best]), pool.plain.priors[best], None, contexts)
        for name in parents:
            following = NEXT + name
            if pool.keeping is None or following not in parents or name not in pool.changes:
                continue
            changed = pool.changes[name]
            scores = log_marginals(context, reads, pool.keeping, 2 * changed + stays, changed)
            best = _first_best(scores)
            if scores[best] > found.score + 1.0:
                prior = pool.keeping.priors[best]
                found = Scored(parents, float(scores[best]), prior, name, contexts)
        return found


def _first_best(scores: Float[np.ndarray, " priors"]) -> int:
    return int(np.flatnonzero(scores >= scores.max() - _EQUAL)[0])


def search(pool: Pool) -> Found:
    """Greedy search from no parents: the best addition or removal, while it brings enough.

    A parent has to bring 1 + log(candidates) nats. For a transition a variable and its next value
    can come together; where nothing helps alone, columns are tried two by two.
    """
    scores = Search(pool)
    names = list(pool.columns)
    units: list[Parents] = [(name,) for name in names]
    units += [(name, NEXT + name) for name in names if NEXT + name in pool.columns]
    least = 1.0 + math.log(max(len(names), 1))
    now = scores.score(())
    path = [Tried(now, "none", 0.0)]
    while len(pool.reads.latent):
        moves: list[tuple[float, Scored, str]] = []
        for unit in units:
            added = [name for name in unit if name not in now.parents]
            if added and len(now.parents) + len(added) <= MOST_PARENTS:
                one = scores.score((*now.parents, *added))
                gain = one.score - now.score - least * len(added)
                moves.append((gain, one, "+ " + " + ".join(added)))
        for name in now.parents:
            one = scores.score([other for other in now.parents if other != name])
            moves.append((one.score - now.score + least, one, f"- {name}"))
        chosen = _best_move(moves)
        if chosen is None and len(names) <= _MOST_PAIRED and len(now.parents) + 2 <= MOST_PARENTS:
            free = [name for name in names if name not in now.parents]
            pairs = [
                (scores.score((*now.parents, *pair)), pair)
                for pair in itertools.combinations(free, 2)
            ]
            chosen = _best_move(
                (one.score - now.score - 2 * least, one, "+ " + " + ".join(pair))
                for one, pair in pairs
            )
        if chosen is None:
            break
        _, following, what = chosen
        path.append(Tried(following, what, following.score - now.score))
        now = following
    beside = [one for one in scores.known.values() if one.parents != now.parents]
    beside.sort(key=lambda one: (-round(one.score - least * len(one.parents), 6), one.parents))
    return found_to(now, Found(pool, now, {}, tuple(path), tuple(beside[:5]), least))


def found_to(best: Scored, found: Found) -> Found:
    """The same search, ended with given parents."""
    scores = Search(found.pool)
    brought = {
        name: best.score - scores.score([other for other in best.parents if other != name]).score
        for name in best.parents
    }
    return found._replace(best=best, brought=brought)


def _best_move(moves: Iterable[tuple[float, Scored, str]]) -> tuple[float, Scored, str] | None:
    """The move that gains most; of equal ones the first, as candidates are in an order of names."""
    best = None
    for move in moves:
        if move[0] > _EQUAL and (best is None or move[0] > best[0] + _EQUAL):
            best = move
    return best


def columns_of(found: Scored, names: Mapping[str, Mapping[str, str]], agent: str) -> Parents:
    """The parents of an agent's table, by the columns' names."""
    return tuple(names[form][agent] for form in found.parents)
