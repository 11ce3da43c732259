r"""How well models decode labelled episodes when they learn from unlabelled steps too.

Coordinate ascent of the mean field (`btil.inference.mean_field`): rows are Dirichlet(w), and

.. math:: w = u + \mathbb{E}_q[\text{counts}], \qquad
          q(x) \propto \prod_t \exp \mathbb{E}[\log T_t(x_{t-1}, x_t)]\,
                       \exp \mathbb{E}[\log \pi_t(a_t \mid x_t)],

once for each fold of the labelled episodes, whose labels are left out; actions stay. The factors of
the steps are looked up here, and the pair marginals added up here, so that one program serves all
models of a recording (`btil.messages.scaled.pair_marginals`), all folds and all members at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.special import digamma

from btil.demonstrations import Demonstrations
from btil.inference.starting import labelled_counts
from btil.messages.layout import Layout, lay_out, pad_rows
from btil.messages.scaled import pair_marginals
from btil.models.team import BoundModel
from btil.numerics.precision import precision
from btil.suggestion.held_out import MOST_FOLDS, in_order

# Mean change of a step's marginals in a sweep that is small enough for decoding; most sweeps.
_TOLERANCE = 2e-3
_MOST_SWEEPS = 60
# Cells of all pair marginals up to which unlabelled episodes are learned from.
_MOST_CELLS = 2_500_000
_TINY = 1e-300

Tables = Mapping[str, Float[np.ndarray, "folds _ ..."]]


class Steps(NamedTuple):
    """Where the steps of one agent look, and what adds up by that.

    Attributes:
        sites: Its policy, transition and initial table.
        cell: Of each place in the lanes the cell of the policy, as in `LaneIndex`.
        move: The row of the stacked moves, as in `LaneIndex`.
        by_cell: Adds up places by their cell.
        by_move: Adds up places by their move.
        unseen: Rows of moves over which an action is summed out, as in `LaneIndex`.
        possible: 0 for latents that a label excludes, else how probable an annotation is, in each
            fold's fit.
    """

    sites: tuple[str, str, str]
    cell: Int[np.ndarray, " places"]
    move: Int[np.ndarray, " places"]
    by_cell: sparse.csr_matrix
    by_move: sparse.csr_matrix
    unseen: Any
    possible: Float[np.ndarray, "folds places latents"]


class FoldFits:
    """Fits of many models to one recording, a fold of labels left out of each.

    Args:
        demos: The recording; at least two episodes have labels. Of a large one, only some of the
            unlabelled episodes are learned from.

    Attributes:
        demos: What is learned from.
        folds: The episodes of each fold.
    """

    def __init__(self, demos: Demonstrations) -> None:
        number = min(MOST_FOLDS, len(labelled_episodes(demos)))
        self.demos = demos = demos.select(_learned_from(demos))
        ordered = in_order(demos, labelled_episodes(demos))
        self.folds = [np.sort(ordered[fold::number]) for fold in range(number)]
        self._learned = [demos.without_labels(fold) for fold in self.folds]

    def errors(self, bound: BoundModel) -> Float[np.ndarray, " units"]:
        """Share of wrong steps of every agent in every labelled episode, by its fold's fit.

        A step is wrong where its most probable latent is another.

        Args:
            bound: A model on `self.demos`, whose learned tables have Dirichlet rows.

        Returns:
            Agent by agent, episode by episode of the folds; without episodes in which an agent has
            no labels.
        """
        demos, found = self.demos, []
        for position, marginal in enumerate(self.marginals(bound)):
            wrong = marginal.argmax(-1) != demos.latents[:, position]
            for fold, episodes in enumerate(self.folds):
                for episode in episodes:
                    begin = demos.episode_starts[episode]
                    rows = slice(begin, begin + demos.episode_lengths[episode])
                    known = demos.latents[rows, position] >= 0
                    if known.any():
                        found.append(wrong[fold, rows][known].mean())
        return np.array(found)

    def marginals(self, bound: BoundModel) -> list[Float[np.ndarray, "folds steps latents"]]:
        """P(x_t | whole episode) of every agent by every fit, rows at their expectations.

        Args:
            bound: A model on `self.demos`, whose learned tables have Dirichlet rows.
        """
        layout = lay_out(bound)
        steps = [self._steps(bound, layout, agent) for agent in self.demos.agents]
        prior = {
            name: pad_rows(table.cpt.concentration(table.contexts), layout.num_rows[name], 1.0)
            for name, table in bound.learned.items()
        }
        fixed = {}
        for name, table in bound.tables.items():
            if name not in prior:
                rows = pad_rows(table.prior_mean(), layout.num_rows[name], 1.0)
                fixed[name] = np.repeat(rows[None], len(self.folds), axis=0)
        of_labels = [
            labelled_counts(replace(bound, demos=demos), layout.num_rows) for demos in self._learned
        ]
        counts = {name: np.stack([one[name] for one in of_labels]) for name in prior}
        real = layout.lanes.ravel() >= 0
        before: list[np.ndarray] = []
        for _ in range(_MOST_SWEEPS):
            w = {name: prior[name] + counts[name] for name in prior}
            logs = {n: digamma(u) - digamma(u.sum(-1, keepdims=True)) for n, u in w.items()}
            tables = fixed | {name: np.exp(values) for name, values in logs.items()}
            pairs = _pairs(tables, steps, layout)
            counts = {name: np.zeros_like(values) for name, values in counts.items()}
            for one, pair in zip(steps, pairs, strict=True):
                _add(counts, tables, one, pair)
            marginals = [pair[:, real].sum(-2) for pair in pairs]
            changes = [
                float(np.abs(new - old).sum(-1).mean())
                for new, old in zip(marginals, before, strict=False)
            ]
            if changes and max(changes) < _TOLERANCE:
                break
            before = marginals
        w = {name: prior[name] + counts[name] for name in prior}
        means = fixed | {name: u / u.sum(-1, keepdims=True) for name, u in w.items()}
        place = np.empty(self.demos.num_steps, np.int64)
        place[layout.lanes.ravel()[real]] = np.flatnonzero(real)
        return [pair[:, place].sum(-2) for pair in _pairs(means, steps, layout)]

    def _steps(self, bound: BoundModel, layout: Layout, agent: str) -> Steps:
        position = self.demos.agents.index(agent)
        index, sites = layout.index[agent], layout.sites[agent]
        latents, actions = self.demos.num_latents[position], self.demos.num_actions[position]
        cell, move = np.asarray(index.policy).ravel(), np.asarray(index.transition).ravel()
        unseen = 0 if index.unseen is None else len(index.unseen.policy)
        num_moves = layout.num_rows[sites[1]] + layout.num_rows[sites[2]] + 1 + unseen
        places = layout.lanes.ravel()
        possible = np.ones((len(self.folds), len(places), latents))
        for fold, demos in enumerate(self._learned):
            label = np.where(places >= 0, demos.latents[places, position], -1)
            possible[fold, label >= 0] = np.eye(latents)[label[label >= 0]]
        if index.log_weights is not None:
            log_weights = np.asarray(index.log_weights).reshape(len(places), latents)
            possible *= np.exp(log_weights - log_weights.max(-1, keepdims=True))
        return Steps(
            sites=sites,
            cell=cell,
            move=move,
            by_cell=_adding(cell, layout.num_rows[sites[0]] * max(actions, 1) + 1),
            by_move=_adding(move, num_moves),
            unseen=index.unseen,
            possible=possible,
        )


def labelled_episodes(demos: Demonstrations) -> Int[np.ndarray, " k"]:
    """The episodes that have a label."""
    return np.flatnonzero(np.logical_or.reduceat((demos.latents >= 0).any(1), demos.episode_starts))


def worth_fitting(demos: Demonstrations) -> bool:
    """Whether there is time for fits; where there is not, the labelled steps are many."""
    labelled = labelled_episodes(demos)
    return int(demos.episode_lengths[labelled].sum()) * _cells(demos) <= 2 * _MOST_CELLS


def _cells(demos: Demonstrations) -> int:
    """Cells of pair marginals for each step."""
    folds = min(MOST_FOLDS, len(labelled_episodes(demos)))
    return folds * sum(latents**2 for latents in demos.num_latents)


def _learned_from(demos: Demonstrations) -> Bool[np.ndarray, " episodes"]:
    """The labelled episodes, and of the others as many as there is time for."""
    chosen = np.zeros(demos.num_episodes, bool)
    chosen[labelled_episodes(demos)] = True
    if not chosen.all():
        others = in_order(demos, np.flatnonzero(~chosen))
        steps = demos.episode_lengths[chosen].sum() + np.cumsum(demos.episode_lengths[others])
        chosen[others[steps * _cells(demos) <= _MOST_CELLS]] = True
    return chosen


def _adding(index: Int[np.ndarray, " places"], number: int) -> sparse.csr_matrix:
    ones = np.ones(len(index))
    return sparse.csr_matrix((ones, (index, np.arange(len(index)))), shape=(number, len(index)))


def _pairs(
    tables: Tables, steps: Sequence[Steps], layout: Layout
) -> list[Float[np.ndarray, "folds places latents latents"]]:
    """P(x_{t-1}, x_t | episode) of every agent; those of equally many latents at once."""
    found: dict[int, np.ndarray] = {}
    height, width = layout.lanes.shape
    sizes = [one.possible.shape[-1] for one in steps]
    for latents in set(sizes):
        alike = [k for k, size in enumerate(sizes) if size == latents]
        moves, likelihood = [], []
        for one in (steps[k] for k in alike):
            cells, rows = _stacked(tables, one)
            moves.append(rows[:, one.move].reshape(-1, height, width, latents, latents))
            seen = cells[:, one.cell] * one.possible
            likelihood.append(seen.reshape(-1, height, width, latents))
        stacked, said = (np.moveaxis(np.concatenate(parts), 1, 0) for parts in (moves, likelihood))
        with precision(np.float64):
            pair = pair_marginals(
                stacked.reshape(height, -1, latents, latents), said.reshape(height, -1, latents)
            )[1]
        apart = np.asarray(pair).reshape(height, len(alike), -1, width, latents, latents)
        for place, k in enumerate(alike):
            by_fold = np.moveaxis(apart[:, place], 1, 0)
            found[k] = by_fold.reshape(len(by_fold), -1, latents, latents)
    return [found[k] for k in range(len(steps))]


def _stacked(
    tables: Tables, one: Steps
) -> tuple[
    Float[np.ndarray, "folds cells latents"], Float[np.ndarray, "folds moves latents latents"]
]:
    """What `btil.messages.smoother.stacked_tables` says, as probabilities, of every fold."""
    policy, transition, initial = (tables[site] for site in one.sites)
    folds, latents = len(policy), policy.shape[2]
    cells = np.swapaxes(policy, 2, 3).reshape(folds, -1, latents)
    started = np.repeat(initial[:, :, None], latents, axis=2)
    rows = [transition, started, np.full((folds, 1, latents, latents), 1 / latents)]
    if one.unseen is not None:
        rows.append(_by_action(policy, transition, one).sum(-1))
    padding = np.ones((folds, 1, latents))
    return np.concatenate([cells, padding], axis=1), np.concatenate(rows, axis=1)


def _by_action(
    policy: Float[np.ndarray, "folds policy_rows latents actions"],
    transition: Float[np.ndarray, "folds transition_rows latents latents"],
    one: Steps,
) -> Float[np.ndarray, "folds moves latents latents actions"]:
    """pi(a | k) T_a(j | k) of moves whose action nobody saw, at [k, j, a]."""
    moves = np.moveaxis(transition[:, np.asarray(one.unseen.transition)], 2, -1)
    return policy[:, np.asarray(one.unseen.policy)][:, :, :, None] * moves


def _add(
    counts: Tables,
    tables: Tables,
    one: Steps,
    pairs: Float[np.ndarray, "folds places latents latents"],
) -> None:
    """Add an agent's expected uses to the counts of the tables that are learned."""
    folds, latents = len(pairs), pairs.shape[-1]
    policy, transition, initial = (tables[site] for site in one.sites)
    of_policy, of_transition, of_initial = (counts.get(site) for site in one.sites)
    cells = _added(one.by_cell, pairs.sum(-2))
    moves = _added(one.by_move, pairs)
    first, last = transition.shape[1], transition.shape[1] + initial.shape[1]
    if of_policy is not None:
        by_row = cells[:, :-1].reshape(folds, policy.shape[1], -1, latents)
        of_policy += np.swapaxes(by_row, 2, 3)
    if of_transition is not None:
        of_transition += moves[:, :first]
    if of_initial is not None:
        of_initial += moves[:, first:last].sum(2)
    if one.unseen is not None:
        shares = _by_action(policy, transition, one)
        shares = shares / np.maximum(shares.sum(-1, keepdims=True), _TINY)
        used = moves[:, last + 1 :, :, :, None] * shares
        fold = np.arange(folds)[:, None]
        if of_policy is not None:
            np.add.at(of_policy, (fold, np.asarray(one.unseen.policy)), used.sum(3))
        if of_transition is not None:
            rows = np.asarray(one.unseen.transition)
            np.add.at(of_transition, (fold[..., None], rows), np.moveaxis(used, -1, 2))


def _added(
    by: sparse.csr_matrix, values: Float[np.ndarray, "folds places ..."]
) -> Float[np.ndarray, "folds rows ..."]:
    """Values of places added up by where they look."""
    folds, places, *rest = values.shape
    sums = by @ np.moveaxis(values, 0, 1).reshape(places, -1)
    return np.moveaxis(sums.reshape(-1, folds, *rest), 0, 1)
