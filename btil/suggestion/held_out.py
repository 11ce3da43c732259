r"""How well tables tell mental states in labelled episodes that they were not learned from.

The labelled episodes are split into folds. Tables are learned from the labelled steps of all other
folds (their rows' posterior means, in closed form), and of the labels held out we ask

.. math:: \log p(x_{0:h} \mid a_{0:h}, s_{0:h})
          = \log p(x_{0:h}, a_{0:h} \mid s_{0:h}) - \log p(a_{0:h} \mid s_{0:h}),

the second by a forward pass over per-step arrays. Rows are gathered before it, so many policies go
through one pass in lock-step, and nothing is compiled.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.suggestion.scores import Prior
from btil.suggestion.search import MOST_PARENTS, Found, Parents, Pool, Scored, Search

MOST_FOLDS = 5
_TINY = 1e-300
_EQUAL = 1e-7
_SETS_AT_ONCE = 16
# Concentrations per cell of flat priors, and of an action that is rare beside others of 1.
_FLAT = (0.2, 1.2)
_RARE = 0.01


class Stretches(NamedTuple):
    """Labelled stretches of the agents of a pool, each a lane.

    Attributes:
        step: Index of each step among the pool's labelled policy reads, (length, lanes); -1: none.
        pair: Index of the move into each step among the transition reads; -1 at a lane's first.
        label: The latents, (length, lanes).
        fold: Of each lane.
        fold_of_step: Fold of each policy read.
        fold_of_pair: Fold of each transition read.
        episode: Of each lane.
        agent: Position of the agent of each lane.
        num_folds: Number of folds.
    """

    step: Int[np.ndarray, "length lanes"]
    pair: Int[np.ndarray, "length lanes"]
    label: Int[np.ndarray, "length lanes"]
    fold: Int[np.ndarray, " lanes"]
    fold_of_step: Int[np.ndarray, " reads"]
    fold_of_pair: Int[np.ndarray, " pairs"]
    episode: Int[np.ndarray, " lanes"]
    agent: Int[np.ndarray, " lanes"]
    num_folds: int


def stretches(demos: Demonstrations, agents: Sequence[str], fewest: int = 2) -> Stretches | None:
    """The labelled stretches of the agents; None where fewer than two episodes have labels.

    Args:
        demos: The demonstrations.
        agents: The agents.
        fewest: Of one episode everything is held out.
    """
    episode = np.repeat(np.arange(demos.num_episodes), demos.episode_lengths)
    position = [demos.agents.index(agent) for agent in agents]
    labelled = demos.latents[:, position] >= 0
    with_labels = np.unique(episode[labelled.any(axis=1)])
    if len(with_labels) < fewest:
        return None
    folds = min(MOST_FOLDS, len(with_labels))
    fold_of_episode = np.full(demos.num_episodes, -1)
    fold_of_episode[in_order(demos, with_labels)] = np.arange(len(with_labels)) % folds
    lanes: list[tuple[np.ndarray, np.ndarray, np.ndarray, int, int]] = []
    fold_of_step, fold_of_pair = [], []
    steps = pairs = 0
    for k, column in enumerate(position):
        known = labelled[:, k]
        rows = np.flatnonzero(known)
        follows = known & np.roll(known, 1)
        follows[demos.episode_starts] = False
        index = np.cumsum(known) - 1 + steps
        move = np.where(follows, np.cumsum(follows) - 1 + pairs, -1)
        for run in np.split(rows, np.flatnonzero(~follows[rows])[1:]):
            if len(run):
                labels = demos.latents[run, column]
                lanes.append((index[run], move[run], labels, int(episode[run[0]]), column))
        fold_of_step.append(fold_of_episode[episode[rows]])
        fold_of_pair.append(fold_of_episode[episode[np.flatnonzero(follows)]])
        steps, pairs = steps + len(rows), pairs + int(follows.sum())
    longest = max(len(lane[0]) for lane in lanes)
    padded = np.full((3, longest, len(lanes)), -1)
    for number, (index, move, labels, _, _) in enumerate(lanes):
        padded[:, : len(index), number] = index, move, labels
    of_lane = np.array([lane[3] for lane in lanes])
    return Stretches(
        step=padded[0],
        pair=padded[1],
        label=padded[2],
        fold=fold_of_episode[of_lane],
        fold_of_step=np.concatenate(fold_of_step),
        fold_of_pair=np.concatenate(fold_of_pair),
        episode=of_lane,
        agent=np.array([lane[4] for lane in lanes]),
        num_folds=folds,
    )


def in_order(demos: Demonstrations, episodes: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """Episodes in an order of their own, in which their place in the data plays no part."""

    def key(episode: int) -> tuple[int, bytes]:
        start = demos.episode_starts[episode]
        rows = slice(start, start + demos.episode_lengths[episode])
        agents = np.argsort(np.array(demos.agents, object))
        columns = [demos.state_variables[name][rows] for name in sorted(demos.state_variables)]
        columns += [demos.actions[rows, k] for k in agents]
        columns += [demos.latents[rows, k] for k in agents]
        return int(demos.episode_lengths[episode]), np.stack(columns).tobytes()

    return np.array(sorted(episodes, key=lambda episode: key(int(episode))))


def counts_of_others(
    pool: Pool, parents: Sequence[str], fold: Int[np.ndarray, " reads"], folds: int
) -> Float[np.ndarray, "reads latents values"]:
    """The counts in every read's context, of all latents, in all folds but its own."""
    reads = pool.reads
    context = np.zeros(len(reads.latent), np.int64)
    for name in parents:
        codes = pool.columns[name]
        context = np.unique(context * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    cells = (int(context.max(initial=0)) + 1, reads.num_latents, reads.num_values)
    flat = ((fold * cells[0] + context) * cells[1] + reads.latent) * cells[2] + reads.value
    counts = np.bincount(flat, minlength=folds * math.prod(cells)).reshape(folds, *cells)
    return (counts.sum(0) - counts)[fold, context].astype(float)


def emissions(
    pool: Pool, parents: Sequence[str], priors: Sequence[Prior], of: Stretches
) -> Float[np.ndarray, "priors length lanes latents"]:
    """P(action | latent) at each step of each lane under each prior; 1 beyond a lane's end."""
    others = counts_of_others(pool, parents, of.fold_of_step, of.num_folds)
    taken = np.take_along_axis(others, pool.reads.value[:, None, None], axis=2)[..., 0]
    u = np.array([prior.strength * np.array(prior.base) for prior in priors])
    rows = taken + u[:, pool.reads.value, None]
    rows = rows / (others.sum(-1) + u.sum(1)[:, None, None])
    return np.where((of.step >= 0)[None, ..., None], rows[:, of.step], 1.0)


def moves(
    pool: Pool, one: Scored, of: Stretches
) -> Float[np.ndarray, "length lanes latents latents"]:
    """P(latent | latent before) into each step of each lane."""
    latents = pool.reads.num_latents
    if not len(pool.reads.latent):
        return np.full((*of.step.shape, latents, latents), 1 / latents)
    rows = counts_of_others(pool, one.parents, of.fold_of_pair, of.num_folds)
    prior = one.prior
    stay = np.full(len(rows), prior.stay)
    if one.kept is not None:
        stay = np.where(pool.changes[one.kept] == 0, stay, 0.0)
    rows = rows + prior.strength + stay[:, None, None] * np.eye(latents)
    rows = rows / rows.sum(-1, keepdims=True)
    return np.where((of.pair >= 0)[..., None, None], rows[of.pair], np.eye(latents))


def log_conditionals(
    emission: Float[np.ndarray, "models length lanes latents"],
    move: Float[np.ndarray, "length lanes latents latents"],
    of: Stretches,
) -> Float[np.ndarray, " models"]:
    """Sum of log p(labels | actions) under each model, one set of moves serving all."""
    evidence = _forward(emission, move)[1]
    real = of.step >= 0
    label = np.where(real, of.label, 0)
    at = np.take_along_axis(emission, label[None, ..., None], axis=3)[..., 0]
    into = np.take_along_axis(move, np.roll(label, 1, axis=0)[..., None, None], axis=2)[..., 0, :]
    into = np.take_along_axis(into, label[..., None], axis=2)[..., 0]
    joint = np.where(real, np.log(np.maximum(at, _TINY)), 0.0).sum((1, 2))
    joint = joint + np.where(of.pair >= 0, np.log(np.maximum(into, _TINY)), 0.0).sum()
    return joint - of.step.shape[1] * np.log(emission.shape[-1]) - evidence.sum(1)


def _forward(
    emission: Float[np.ndarray, "models length lanes latents"],
    move: Float[np.ndarray, "length lanes latents latents"],
) -> tuple[Float[np.ndarray, "length models lanes latents"], Float[np.ndarray, "models lanes"]]:
    """Filtered beliefs, from uniform ones, and the log evidence of each lane."""
    models, length, lanes, latents = emission.shape
    belief = np.full((lanes, models, latents), 1 / latents)
    forward = np.empty((length, models, lanes, latents))
    totals = np.empty((length, lanes, models))
    for t in range(length):
        predicted = np.matmul(belief, move[t]) if t else belief
        belief = predicted * emission[:, t].swapaxes(0, 1)
        totals[t] = np.maximum(belief.sum(-1), _TINY)
        belief = belief / totals[t][..., None]
        forward[t] = belief.swapaxes(0, 1)
    return forward, np.log(totals).sum(0).T


def decoding_errors(
    emission: Float[np.ndarray, "length lanes latents"],
    move: Float[np.ndarray, "length lanes latents latents"],
    of: Stretches,
) -> dict[int, float]:
    """Share of held-out steps whose most probable latent is another, mean over episodes.

    By the position of each agent.
    """
    forward = _forward(emission[None], move)[0][:, 0]
    real = of.step >= 0
    future = np.ones(forward.shape[1:])
    wrong = np.zeros(real.shape, bool)
    for t in reversed(range(len(forward))):
        wrong[t] = (forward[t] * future).argmax(-1) != of.label[t]
        future = np.matmul(move[t], (emission[t] * future)[..., None])[..., 0]
        future = future / np.maximum(future.sum(-1, keepdims=True), _TINY)
    wrong &= real
    found: dict[int, list[float]] = {}
    for episode, agent in np.unique(np.stack([of.episode, of.agent]), axis=1).T:
        lane = (of.episode == episode) & (of.agent == agent)
        found.setdefault(int(agent), []).append(float(wrong[:, lane].sum() / real[:, lane].sum()))
    return {agent: float(np.mean(errors)) for agent, errors in found.items()}


class HeldOut:
    """log p(labels | actions) of sets of parents in held-out episodes, each computed once.

    Each set has several priors: the one of most evidence, flat ones, and those in which one action
    is rare (what a member does only where it serves what they have in mind).

    Args:
        pool: The labelled reads of a policy.
        move: P(latent | latent before), as `moves` has them.
        of: The stretches.
    """

    def __init__(
        self, pool: Pool, move: Float[np.ndarray, "length lanes latents latents"], of: Stretches
    ) -> None:
        self.pool, self.evidence = pool, Search(pool)
        self._move, self._of = move, of
        self.known: dict[Parents, tuple[float, Prior]] = {}

    def look(self, sets: Sequence[Parents]) -> None:
        """Compute those that are not known yet."""
        fresh = [one for one in dict.fromkeys(sets) if one not in self.known]
        usual = usual_priors(self.pool)
        for begin in range(0, len(fresh), _SETS_AT_ONCE):
            some = fresh[begin : begin + _SETS_AT_ONCE]
            priors = [[self.evidence.score(one).prior, *usual] for one in some]
            arrays = [
                emissions(self.pool, one, p, self._of) for one, p in zip(some, priors, strict=True)
            ]
            values = log_conditionals(np.concatenate(arrays), self._move, self._of)
            for one, p, value in zip(
                some, priors, values.reshape(len(some), len(priors[0])), strict=True
            ):
                best = int(np.flatnonzero(value >= value.max() - _EQUAL)[0])
                self.known[one] = (float(value[best]), p[best])

    def scored(self, parents: Parents) -> Scored:
        """The parents with their prior, and log p(labels | actions) for a score."""
        self.look([parents])
        value, prior = self.known[parents]
        return self.evidence.score(parents)._replace(score=value, prior=prior)


class Refined(NamedTuple):
    """A policy by the labels that it tells.

    Attributes:
        best: Parents and prior; its score is still the evidence in closed form.
        log_conditional: Of the labels held out.
        objective: That, less what each parent has to bring.
        others: (log conditional, parents, prior) of the best other sets, best first.
        brought: What is lost without each parent.
        scores: What all that was computed with.
    """

    best: Scored
    log_conditional: float
    objective: float
    others: tuple[tuple[float, Parents, Prior], ...]
    brought: dict[str, float]
    scores: HeldOut


def refine(
    found: Found, move: Float[np.ndarray, "length lanes latents latents"], of: Stretches
) -> Refined:
    """A policy search by log p(labels | actions) of held-out episodes, greedy again.

    It begins at the best of: no parents, each single one, and what the search by evidence passed or
    ended beside.

    Args:
        found: What the search by evidence ended with.
        move: P(latent | latent before), as `moves` has them.
        of: The stretches.
    """
    names = list(found.pool.columns)
    scores = HeldOut(found.pool, move, of)
    known = scores.known

    def objective(one: Parents) -> float:
        return known[one][0] - found.least * len(one)

    def best_of(sets: Sequence[Parents]) -> Parents:
        scores.look(sets)
        top = max(map(objective, sets))
        return next(one for one in sets if objective(one) >= top - _EQUAL)

    passed = [tried.scored.parents for tried in found.path]
    beside = [one.parents for one in found.runners_up]
    now = best_of([(), *((name,) for name in names), *passed, *beside])
    while True:
        added = [tuple(sorted((*now, name))) for name in names if name not in now]
        fewer = [tuple(other for other in now if other != name) for name in now]
        following = best_of([now, *fewer, *(added if len(now) < MOST_PARENTS else [])])
        if following == now:
            break
        now = following
    return refined_to(now, found, scores)


def refined_to(parents: Parents, found: Found, scores: HeldOut) -> Refined:
    """What is to be said of given parents by labels held out."""
    fewer = {name: tuple(other for other in parents if other != name) for name in parents}
    scores.look([parents, *fewer.values()])
    known = scores.known

    def objective(one: Parents) -> float:
        return known[one][0] - found.least * len(one)

    value, prior = known[parents]
    rest = sorted(
        (one for one in known if one != parents), key=lambda one: (-round(objective(one), 6), one)
    )
    return Refined(
        best=scores.evidence.score(parents)._replace(prior=prior),
        log_conditional=value,
        objective=objective(parents),
        others=tuple((known[one][0], one, known[one][1]) for one in rest[:5]),
        brought={name: value - known[without][0] for name, without in fewer.items()},
        scores=scores,
    )


def usual_priors(pool: Pool) -> list[Prior]:
    """Priors of a policy to try with any parents."""
    number = pool.reads.num_values
    flat = tuple([1 / number] * number)
    priors = [Prior("flat", u * number, 0.0, flat) for u in _FLAT]
    if number > 1:
        for action in range(number):
            cells = np.where(np.arange(number) == action, _RARE, 1.0)
            base = tuple((cells / cells.sum()).tolist())
            priors.append(Prior("rare", float(cells.sum()), 0.0, base))
    return priors


def majority_errors(pool: Pool, of: Stretches) -> dict[int, float]:
    """The same as `decoding_errors`, of whoever always says the latent most frequent elsewhere."""
    emission = np.ones((*of.step.shape, pool.reads.num_latents))
    counts = np.zeros((of.num_folds, pool.reads.num_latents))
    np.add.at(counts, (of.fold_of_step, pool.reads.latent), 1)
    emission = emission + (counts.sum(0) - counts)[of.fold]
    move = np.ones((*emission.shape, pool.reads.num_latents))
    return decoding_errors(emission, move, of)
