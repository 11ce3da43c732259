r"""Exact inference for tiny data: sums over every latent sequence.

Given the latents the rows' posterior is Dirichlet, and the evidence of a sequence is

.. math:: p(a, x) = \prod_{rows} \frac{B(u + n(a, x))}{B(u)}
          \prod_t p_{fixed}(a_t, x_t \mid x_{t-1}),

with n the counts along the sequence and B the multivariate beta function. Each ratio is multiplied
up as it comes about, draw by draw as from a Polya urn: its factors are probabilities, so nothing
cancels, however large or small the concentrations. The posterior of the rows is the mixture of
these Dirichlets, weighted by the evidence. Sequences of equal counts are one component: they are
merged while they grow, step by step, so that few are ever held.

Continuous channels are integrated out too, once a sequence is complete: which latent each of its
steps had is kept beside the counts, so that no two sequences are taken together then. Blank cells
have a closed form where they are monotone (`btil.models.monotone`).

Agents are independent of each other unless they share a learned table; those that do form a
group, whose sequences are summed over jointly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import logsumexp

from btil.inference.checkpoint import NOWHERE, Checkpoint, Saved
from btil.inference.result import (
    FitResult,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
)
from btil.inference.starting import coupled_agents
from btil.messages.layout import lay_out, log_rows, pad_rows
from btil.messages.smoother import filter_lanes, potentials
from btil.models.emission import Channel, Normals, Units, groups_of
from btil.models.monotone import column_order, inputs_of, regressions_of, units_of
from btil.models.team import BoundModel, Table
from btil.numerics.matrix_normal import Hyper, Statistics, log_marginal, updated
from btil.numerics.precision import on_device, precision

# Sequences whose channels are integrated out at a time.
_AT_ONCE = 4096


class Sequences(NamedTuple):
    """Latent sequences up to some step, those of equal future and counts taken together.

    Attributes:
        latent: The latent at the last step.
        counts: Uses of each cell of the group's learned tables; of an agent with a continuous
            channel also one more than the latent of each of its steps.
        log_weight: Log of their summed probability: given rows as they are, rows to learn
            integrated out.
    """

    latent: Int[np.ndarray, " sequences"]
    counts: Int[np.ndarray, "sequences cells"]
    log_weight: Float[np.ndarray, " sequences"]


def count_sequences(bound: BoundModel, group: tuple[str, ...]) -> int:
    """Number of latent sequences of a group: K at each unlabelled step, multiplied.

    Times the number of actions where one is summed out.
    """
    demos = bound.demos
    count = 1
    for agent in group:
        position = demos.agents.index(agent)
        unknown = int(np.sum((demos.latents[:, position] < 0) & demos.present[:, position]))
        count *= demos.num_latents[position] ** unknown
        unseen = bound.rows[agent].unseen
        count *= demos.num_actions[position] ** (0 if unseen is None else len(unseen.step))
    return count


def merge(sequences: Sequences) -> Sequences:
    """Take sequences of equal latent and counts together."""
    # Whole numbers that tell sequences apart, as few as hold all cells.
    words = []
    word = np.zeros(len(sequences.latent), np.int64)
    width = 1
    for column in (sequences.latent, *sequences.counts.T):
        size = int(column.max()) + 1
        if width * size > np.iinfo(np.int64).max:
            words.append(word)
            word = np.zeros_like(word)
            width = 1
        if size > 1:
            word = word * size + column
            width *= size
    words.append(word)
    order = np.lexsort(words)
    differs = np.ones(len(order), bool)
    differs[1:] = np.any([np.diff(word[order]) != 0 for word in words], axis=0)
    starts = np.flatnonzero(differs)
    kept = order[starts]
    log_weight = np.logaddexp.reduceat(sequences.log_weight[order], starts)
    return Sequences(sequences.latent[kept], sequences.counts[kept], log_weight)


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    max_sequences: int = 1_000_000,
) -> FitResult:
    """The posterior and the log evidence, to rounding, always in float64.

    Memory grows with the number of distinct counts times the number of cells to learn.

    Args:
        bound: The model on its data.
        seed: Not used: nothing is random.
        progress: Not used: what would take long is refused.
        dtype: Not used.
        checkpoint: Where the answer for each group of agents is saved.
        max_sequences: Most latent sequences, added up over independent groups of agents.

    Returns:
        Mixtures of Dirichlet rows; `elbo` is the log evidence, fixed tables included.

    Raises:
        ValueError: If there are more sequences, or the data are impossible under fixed tables.
    """
    del seed, progress, dtype
    for name, table in bound.learned.items():
        if table.parametric:
            raise ValueError(
                f"{name}: exact inference needs Dirichlet rows that depend on nothing else, not a "
                f"{type(table.cpt).__name__}; use mfvi, svi, nuts or gibbs"
            )
    for channel in bound.channels.values():
        _orders(channel)
    if bound.channels and checkpoint.path is not None:
        raise ValueError("checkpoint: exact does not take it for models with emissions")
    groups = coupled_agents(bound)
    total = sum(count_sequences(bound, group) for group in groups)
    if total > max_sequences:
        size = f"{total:,}" if total < 10**15 else f"about 10^{power_of_ten(total)}"
        raise ValueError(
            f"exact inference would sum over {size} latent sequences, more than "
            f"max_sequences={max_sequences:,}; label more steps, give fewer episodes, or use "
            "method 'gibbs'"
        )
    rows: dict[str, Any] = {}
    log_evidence = 0.0
    answers: list[tuple[dict[str, Any], float]] = []
    if checkpoint.saved is not None:
        answers = _saved_answers(checkpoint.saved, bound, groups)
    for group in groups[len(answers) :]:
        answers.append(fit_group(bound, group))
        checkpoint.offer(
            answers=[
                (by_group, {name: one[:2] for name, one in group_rows.items()})
                for group_rows, by_group in answers
            ]
        )
    for group_rows, group_evidence in answers:
        rows |= group_rows
        log_evidence += group_evidence
    idle = [agent for agent in bound.demos.agents if all(agent not in group for group in groups)]
    log_evidence += known_log_evidence(bound, idle)
    return FitResult(
        rows={name: rows[name] for name in bound.learned},
        converged=True,
        reason="exact",
        elbo=log_evidence,
        notes={"num_sequences": total},
        channels={one.name: rows[one.name] for one in bound.channels.values()},
    )


def power_of_ten(count: int) -> int:
    """Power of ten of a positive integer, however large."""
    return int((count.bit_length() - 1) * np.log10(2))


def learned_by(bound: BoundModel, group: tuple[str, ...]) -> dict[str, Table]:
    """The learned tables of a group of agents."""
    return {name: table for name, table in bound.learned.items() if table.agents[0] in group}


def _label(group: tuple[str, ...]) -> str:
    return "+".join(group)


def _saved_answers(
    saved: Saved, bound: BoundModel, groups: list[tuple[str, ...]]
) -> list[tuple[dict[str, MixtureRows], float]]:
    """Rows and log evidence of the groups that a checkpoint holds: the first ones."""
    answers = []
    leaves = iter(saved.arrays("answers"))
    for group, evidence in zip(groups, leaves, strict=False):
        rows = {
            name: MixtureRows(next(leaves), next(leaves), _label(group))
            for name in sorted(learned_by(bound, group))
        }
        answers.append((rows, float(evidence)))
    return answers


def fit_group(bound: BoundModel, group: tuple[str, ...]) -> tuple[dict[str, Any], float]:
    """Posterior of a group's learned tables and channels, and its log evidence.

    Raises:
        ValueError: If the data are impossible under the fixed tables.
    """
    tables = learned_by(bound, group)
    channels = {one.name: one for agent, one in bound.channels.items() if agent in group}
    sizes = [int(np.prod(table.shape)) for table in tables.values()]
    ends = np.cumsum([0, *sizes, *(bound.demos.num_steps for _ in channels)])
    offsets = dict(zip((*tables, *channels), ends[:-1].tolist(), strict=True))
    sequences = Sequences(
        np.zeros(1, np.int32), np.zeros((1, int(ends[-1])), np.int32), np.zeros(1)
    )
    for agent in group:
        sequences = walk(sequences, bound, agent, offsets)
    posteriors = {}
    for name, channel in channels.items():
        paths = sequences.counts[:, offsets[name] : offsets[name] + bound.demos.num_steps] - 1
        posteriors[name], logs = integrated(channel, paths)
        sequences = sequences._replace(log_weight=sequences.log_weight + logs)
    concentration = {}
    for name, table in tables.items():
        prior = table.cpt.concentration(table.contexts)
        counts = sequences.counts[:, offsets[name] : offsets[name] + prior.size]
        concentration[name] = prior + counts.reshape(-1, *table.shape)
    log_total = float(logsumexp(sequences.log_weight))
    weights = np.exp(sequences.log_weight - log_total)
    weights /= weights.sum()  # log_total is rounded
    rows: dict[str, Any] = {
        name: MixtureRows(weights, w, _label(group)) for name, w in concentration.items()
    }
    for name, posterior in posteriors.items():
        rows[name] = posterior(weights, _label(group))
    return rows, log_total


def _orders(channel: Channel) -> Int[np.ndarray, "contexts d"] | None:
    """The columns of each context in an order in which a blank is followed by blanks alone.

    None where no step has only some of its columns.

    Raises:
        ValueError: If there is no such order.
    """
    if channel.is_whole:
        return None
    groups = groups_of(channel)
    orders = []
    for row in range(len(channel.contexts)):
        seen = groups.seen[groups.context == row]
        order = column_order(seen)
        if order is None:
            columns = channel.family.columns_of(channel.agent)
            i, j = next(
                (i, j)
                for i in range(len(columns))
                for j in range(i)
                if (seen[:, i] > seen[:, j]).any() and (seen[:, j] > seen[:, i]).any()
            )
            raise ValueError(
                f"{channel.name}: steps with {columns[j]} but not {columns[i]} stand beside steps "
                f"with {columns[i]} but not {columns[j]}; the sum over such blank cells has no "
                "closed form, so exact inference needs columns of which one is blank wherever the "
                "other is; use gibbs or mfvi"
            )
        orders.append(order)
    return np.array(orders)


class _Terms(NamedTuple):
    """What a channel's steps add to regressions with conjugate priors.

    Attributes:
        prior: Of every regression and latent, in the units of the fit.
        regression: Which one each term belongs to.
        step: Of which step it is.
        products: a a^T, flat.
    """

    prior: Normals
    regression: Int[np.ndarray, " terms"]
    step: Int[np.ndarray, " terms"]
    products: Float[np.ndarray, "terms products"]


def _products(a: Float[np.ndarray, "steps pd"]) -> Float[np.ndarray, "steps products"]:
    return (a[:, :, None] * a[:, None]).reshape(len(a), -1)


def _whole_terms(channel: Channel, units: Units) -> _Terms:
    """One regression a context."""
    steps = channel.observed.rows
    a = units.steps(channel.observed.inputs[steps], channel.observed.values[steps])
    return _Terms(units.inside(channel.prior()), channel.row[steps], steps, _products(a))


def _ordered_terms(channel: Channel, units: Units, orders: Int[np.ndarray, "_ d"]) -> _Terms:
    """A regression for each column of each context: see `models.monotone`."""
    prior = units.inside(channel.prior())
    filled = np.where(channel.seen, channel.observed.values, 0.0)
    inputs = np.where(np.isfinite(channel.observed.inputs), channel.observed.inputs, 0.0)
    a = units.steps(inputs, filled)
    priors, regression, step, products = [], [], [], []
    for row, order in enumerate(orders):
        priors.append(regressions_of(Normals(*(part[row] for part in prior)), order))
        for j in range(len(order)):
            own = np.flatnonzero((channel.row == row) & channel.seen[:, order[j]])
            step.append(own)
            regression.append(np.full(len(own), row * len(order) + j))
            products.append(_products(inputs_of(a[own], order, j)))
    # (contexts, latents, columns, ...) -> (contexts * columns, latents, ...)
    stacked = [
        np.swapaxes(np.stack(parts), 1, 2).reshape(-1, channel.num_latents, *parts[0].shape[2:])
        for parts in zip(*priors, strict=True)
    ]
    location, precision, scale, degrees = stacked
    return _Terms(
        Normals(location[..., None], precision, scale[..., None, None], degrees),
        *(np.concatenate(parts) for parts in (regression, step, products)),
    )


def integrated(
    channel: Channel, paths: Int[np.ndarray, "sequences steps"]
) -> tuple[Callable[..., Any], Float[np.ndarray, " sequences"]]:
    """A channel's posterior and log marginal density under each of some latent paths.

    Returns:
        What makes the posterior of the paths' weights and the name of their group, and the log
        densities.
    """
    units, orders = channel.units(), _orders(channel)
    if orders is None:
        normals, logs = _integrated(_whole_terms(channel, units), paths)
        normals = units.outside(normals)
        return lambda weights, group: MixtureChannel(weights, *normals, group), logs + float(
            channel.log_jacobian(units).sum()
        )
    contexts, _, _, d = channel.shape
    normals, logs = _integrated(_ordered_terms(channel, units, orders), paths)
    outside = []
    for row, order in enumerate(orders):
        for j in range(d):
            own = Normals(*(part[:, row * d + j] for part in normals))
            outside.append(units_of(units, order, j).outside(own))
    location, precision, scale, degrees = (
        # (sequences, contexts, latents, columns, ...)
        np.swapaxes(
            np.stack(parts, axis=1).reshape(len(paths), contexts, d, *parts[0].shape[1:]), 2, 3
        )
        for parts in zip(*outside, strict=True)
    )
    parts = orders, location[..., 0], precision, scale[..., 0, 0], degrees
    return lambda weights, group: MixtureOfRegressions(weights, *parts, group), logs + float(
        channel.log_jacobian(units).sum()
    )


def _integrated(
    terms: _Terms, paths: Int[np.ndarray, "sequences steps"]
) -> tuple[Normals, Float[np.ndarray, " sequences"]]:
    """Posteriors and log marginal densities in the units of the fit."""
    regressions, latents = terms.prior.degrees.shape
    width = terms.products.shape[1]
    side = terms.prior.location.shape[-2] + terms.prior.location.shape[-1]
    found, logs = [], []
    size = min(_AT_ONCE, 1 << (len(paths) - 1).bit_length())
    with precision(np.float64) as dtype:
        hyper = Hyper(*(on_device(part, dtype) for part in terms.prior))
        for begin in range(0, len(paths), size):
            part = paths[begin : begin + size]
            # Whole blocks: one program serves them all.
            part = part[np.minimum(np.arange(size), len(part) - 1)]
            count = np.zeros((size, regressions, latents))
            outer = np.zeros((size, regressions, latents, width))
            for row in range(regressions):
                own = terms.regression == row
                for latent in range(latents):
                    chosen = (part[:, terms.step[own]] == latent).astype(np.float64)
                    count[:, row, latent] = chosen.sum(1)
                    outer[:, row, latent] = chosen @ terms.products[own]
            statistics = Statistics(
                on_device(count, dtype), on_device(outer.reshape(*count.shape, side, side), dtype)
            )
            number = min(size, len(paths) - begin)
            posterior, log_density = _integrate(hyper, statistics)
            found.append([np.asarray(values)[:number] for values in posterior])
            logs.append(np.asarray(log_density)[:number])
    return Normals(*(np.concatenate(parts) for parts in zip(*found, strict=True))), np.concatenate(
        logs
    )


@jax.jit
def _integrate(prior: Hyper, statistics: Statistics) -> tuple[Hyper, Float[Array, " sequences"]]:
    many = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (len(statistics.number), *leaf.shape)), prior
    )
    logs = log_marginal(many, statistics)
    return updated(many, statistics), jnp.sum(logs, axis=(1, 2))


def walk(sequences: Sequences, bound: BoundModel, agent: str, offsets: dict[str, int]) -> Sequences:
    """Extend sequences by all steps of one agent.

    Args:
        sequences: What the agents before it left.
        bound: The model on its data.
        agent: The agent.
        offsets: Where the cells of each learned table start among the counts.

    Returns:
        The sequences after the last step, of latent 0.

    Raises:
        ValueError: If no latent sequence could have produced the data.
    """
    demos, rows = bound.demos, bound.rows[agent]
    position = demos.agents.index(agent)
    tables = [bound.table(role, agent) for role in ("policy", "transition", "initial")]
    log_fixed = {t.name: None if t.learned else log_rows(t.prior_mean()) for t in tables}
    prior = {t.name: t.cpt.concentration(t.contexts) for t in tables if t.learned}

    def use(grown: Sequences, name: str, cell: tuple[Any, ...]) -> Sequences:
        known = log_fixed[name]
        if known is not None:
            return grown._replace(log_weight=grown.log_weight + known[cell])
        *row, value = np.broadcast_arrays(*cell)
        *rows_of_table, values = bound.tables[name].shape
        first = np.ravel_multi_index(row, rows_of_table) * values
        columns = offsets[name] + first[:, None] + np.arange(values)
        sequence = np.arange(len(grown.counts))
        urns = prior[name][tuple(row)] + grown.counts[sequence[:, None], columns]
        grown.counts[sequence, offsets[name] + first + value] += 1
        return grown._replace(log_weight=grown.log_weight + log_predictive(urns, value))

    def branch(some: Sequences, number: int) -> Sequences:
        return Sequences(*(np.repeat(part, number, axis=0) for part in some))

    policy, transition, initial = (table.name for table in tables)
    channel = bound.channels.get(agent)
    num_latents, num_actions = demos.num_latents[position], demos.num_actions[position]
    stay_of = dict(zip(demos.stays[position].tolist(), rows.initial.tolist(), strict=True))
    summed = {} if rows.unseen is None else {int(t): k for k, t in enumerate(rows.unseen.step)}
    for t in np.flatnonzero(demos.present[:, position]).tolist():
        if t in stay_of:  # nothing before it matters any more
            sequences = merge(sequences._replace(latent=np.zeros_like(sequences.latent)))
        label = demos.latents[t, position]
        options = np.arange(num_latents) if label < 0 else np.array([label])
        number = len(options)
        # Of one whose action at the step before is summed out, `latent` tells that action too.
        before = np.repeat(sequences.latent, number)
        latent = np.tile(options, len(sequences.latent)).astype(np.int32)
        grown = branch(sequences, number)._replace(latent=latent)
        if t in stay_of:
            grown = use(grown, initial, (stay_of[t], latent))
        elif t in summed:
            before, taken = np.divmod(before, num_actions)
            row = rows.unseen.transition[summed[t], taken]  # type: ignore[union-attr]
            grown = use(grown, transition, (row, before, latent))
        else:
            grown = use(grown, transition, (rows.transition[t], before, latent))
        if agent in demos.latent_weights:
            weights = log_rows(demos.latent_weights[agent][t])
            grown = grown._replace(log_weight=grown.log_weight + weights[latent])
        action = demos.actions[t, position]
        if t + 1 in summed:
            taken = np.tile(np.arange(num_actions), len(latent))
            latent = np.repeat(latent, num_actions)
            grown = use(branch(grown, num_actions), policy, (rows.policy[t], latent, taken))
            grown = grown._replace(latent=(latent * num_actions + taken).astype(np.int32))
            number *= num_actions
        elif action >= 0:
            grown = use(grown, policy, (rows.policy[t], latent, action))
        if channel is not None:
            grown.counts[:, offsets[channel.name] + t] = latent + 1
        possible = grown.log_weight > -np.inf
        if not possible.any():
            episode = int(np.searchsorted(demos.episode_starts, t, side="right") - 1)
            raise ValueError(
                f"episode {demos.episode_ids[episode]}, agent {agent}, step "
                f"{t - demos.episode_starts[episode]}: impossible under the model's fixed tables"
            )
        sequences = Sequences(*(part[possible] for part in grown))
        if number > 1:
            sequences = merge(sequences)
    return merge(sequences._replace(latent=np.zeros_like(sequences.latent)))


def log_predictive(
    urns: Float[np.ndarray, "sequences values"], drawn: Int[np.ndarray, " sequences"]
) -> Float[np.ndarray, " sequences"]:
    r"""Log probability of the next draw from Polya urns, :math:`\log(w_j / \sum_i w_i)`.

    Taken as :math:`-\log(1 + \sum_{i \ne j} w_i / w_j)`, it has all its digits near certainty too,
    however large or small the weights.

    Args:
        urns: Prior concentration plus uses so far, of the row that each sequence draws from.
        drawn: The cell that it draws.
    """
    others = urns.copy()
    at = np.arange(len(urns)), drawn
    others[at] = 0.0
    return -np.log1p(others.sum(-1) / urns[at])


def known_log_evidence(bound: BoundModel, agents: list[str]) -> float:
    """Log probability of the actions and labels of agents with nothing to learn."""
    if not agents:
        return 0.0
    layout = lay_out(bound)
    log_evidence = 0.0
    with precision(np.float64):
        for agent in agents:
            log_policy, log_transition, log_initial = (
                jnp.asarray(
                    pad_rows(log_rows(bound.tables[name].prior_mean()), layout.num_rows[name], 0.0)
                )
                for name in layout.sites[agent]
            )
            filtered = filter_lanes(
                potentials(log_policy, log_transition, log_initial, layout.index[agent])
            )
            evidence = np.asarray(filtered.log_normalizer)[layout.lanes >= 0]
            log_evidence += float(evidence.sum())
    return log_evidence
