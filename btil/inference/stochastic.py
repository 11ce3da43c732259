r"""Stochastic mean-field variational inference: Algorithm 1 on a few episodes at a time.

Each iteration draws a batch of B of the M episodes, takes the local step of `mfvi` on it, and
moves the concentrations towards what the batch, were it all of the data, would make them:

.. math:: w \leftarrow (1 - \rho_t) w + \rho_t \Big( u + \frac{M}{B} n_{batch} \Big),
          \qquad \rho_t = (t + \tau)^{-\kappa},

a step along the natural gradient of the bound, without bias as every batch is a uniform draw of B
episodes. With :math:`\kappa \in (1/2, 1]` the steps satisfy Robbins' and Monro's conditions.

Rows that no step of the batch reads decay towards the prior, all by the same factor. So the
concentrations are kept as w = u + c m with one number c, and an iteration costs what the batch
costs, however many contexts there are.

Once the bound's estimate has settled, sweeps of Algorithm 1 over all episodes, batch by batch,
remove the noise that the last batches left; they give the exact bound, and tell convergence.

Devices split the lanes of a batch. Of several processes each keeps episodes of its own, and of
every batch looks at those that are among them: the batches are the same however many there are.
After each batch they tell each other what they counted in the rows that they read; after a sweep
they add up whole tables, once. The concentrations are everywhere.

Tables with parameters have counts that move in the same way. Before each batch, and each sweep, the
normals of the parameters are fitted to them from where they are (`parameters.fit_normals`); that
costs what the tables cost, however small the batch.

References:
    Hoffman, Blei, Wang, Paisley (2013), Stochastic variational inference; Robbins, Monro (1951),
    A stochastic approximation method.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.inference.ascents import End, drift, judge
from btil.inference.channel_batches import (
    ChannelRows,
    ChannelSource,
    contexts_read,
    divergence_of,
    labelled_rows,
    lay_batch,
    needed_room,
    normals_of,
    nothing,
    packed,
    size_of_blocks,
    sources_in_memory,
    unpacked,
)
from btil.inference.channels import is_doubtful_with
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.contraction import fisher_information, step_length, still_to_come
from btil.inference.devices import own_mesh, place, place_lanes, size_of, split_lanes
from btil.inference.mean_field import (
    Extremes,
    StepForm,
    counts_of_start,
    extremes,
    log_means,
    said,
    step_forms,
)
from btil.inference.parameters import (
    FRESH_POINTS,
    OWN_POINTS,
    Families,
    FamilyData,
    Normals,
    excess,
    family_data,
    first_normals,
    fit_normals,
    with_parameters,
)
from btil.inference.processes import ALONE, Processes, add_up, gather_bytes
from btil.inference.result import DirichletRows, FitResult, MatrixNormalChannel, RowsPosterior
from btil.inference.starting import (
    OpenUses,
    deal_out,
    is_symmetric,
    labelled_counts,
    num_contexts,
    open_uses,
)
from btil.messages import scaled as forward_backward
from btil.messages.channels import ChannelSteps, Room, expected_statistics
from btil.messages.lanes import pack_lanes, spread
from btil.messages.layout import LaneIndex, UnseenRows, lay_out, log_rows, pad_rows
from btil.models.contexts import match_rows, unique_rows
from btil.models.emission import Units
from btil.models.team import BoundModel, bind
from btil.numerics.matrix_normal import Statistics, updated
from btil.numerics.rounding import rounded_up
from btil.numerics.special import rows_divergence
from btil.progress import progress_line

# What is kept of an agent's step.
POLICY, ARRIVAL, ACTION, LABEL, SUMMED = range(COLUMNS := 5)
_DELAY = 10.0
_FORGETTING_RATE = 0.6
# Change of the bound, as a share of it, that ends the sweeps over everything.
_TOLERANCE = 1e-4
# Change of its estimate per epoch that ends the batches, and the fewest epochs to tell.
_SETTLED = 1e-3
_FEWEST_EPOCHS = 8
# Below it the common factor is multiplied into the counts: single precision would suffer.
_SMALLEST_SCALE = 1e-3
# Batches of which the shape of most batches is foreseen, and what is added to it.
_TRIAL_BATCHES = 32
_ALLOWANCE = 1.1
# Steps that a fit with channels is begun on, where a batch has fewer: enough to tell intents apart.
_SAMPLE_STEPS = 4000
# With parametric families: how often the bound may be evaluated to fit normals, before a batch.
_EVALUATIONS = 3
# No table has this name.
_LOG_EVIDENCE = "log evidence"

Sites = tuple[tuple[str, str, str], ...]
Steps = Int[np.ndarray, "steps columns agents"]
Chosen = Int[np.ndarray, " chosen"]
Weights = dict[str, Float[np.ndarray, "steps latents"]]
# (a model on some episodes, type, randomness, whether labels are where to begin) -> where
# coordinate ascent leads: counts of its learned tables, sums of its channels
# (`mfvi.channel_outline`).
Outline = Callable[
    [BoundModel, np.dtype, np.random.Generator, bool],
    tuple[dict[str, np.ndarray], dict[str, Statistics]],
]


class Data(NamedTuple):
    """Episodes to draw batches from, in memory or on disk.

    Attributes:
        bound: The model with the contexts of all episodes; its own episodes may be an excerpt.
        lengths: Steps of each episode.
        read: The steps of some episodes, one after the other: see `step_columns`.
        labelled: Counts of the labelled steps, of every learned table.
        uses: Per agent, how often its tables are read with a latent unlabelled.
        summed: Per agent, the transition rows over which moves with an action that nobody saw are
            summed, one for each action; moves with the same rows share them.
        weights: Log weights of the annotations of some episodes' steps, of the agents that have
            such, one episode after the other.
        extremes: Per agent, those of all its steps.
        own: The first episode that this process keeps, and the first that it does not any more.
            `read`, `weights` and `channels` give no others.
        processes: Who shares the work.
        channels: Agent to its continuous columns, where it has any.
        sample: With channels, the model on some episodes in memory, labelled ones among them.
    """

    bound: BoundModel
    lengths: Int[np.ndarray, " episodes"]
    read: Callable[[Chosen], Steps]
    labelled: dict[str, Float[np.ndarray, "..."]]
    uses: dict[str, OpenUses]
    summed: dict[str, Int[np.ndarray, "sums actions"]]
    weights: Callable[[Chosen], Weights]
    extremes: dict[str, Extremes]
    own: tuple[int, int]
    processes: Processes
    channels: dict[str, ChannelSource] = {}  # noqa: RUF012  # never mutated
    sample: BoundModel | None = None

    def own_of(self, chosen: Chosen) -> Int[np.ndarray, " own"]:
        """Those of some episodes that this process keeps."""
        first, end = self.own
        return chosen[(chosen >= first) & (chosen < end)]

    @property
    def log_jacobian(self) -> float:
        """What turns a bound in the units of the channels into one in the units of the data."""
        return sum((source.log_jacobian for source in self.channels.values()), 0.0)


class Shape(NamedTuple):
    """Sizes to which batches are padded, so that one program serves them.

    Attributes:
        length: Steps of a lane.
        lanes: Number of lanes.
        rows: Rows of every table, and contexts of every channel, that are read.
        sums: Per agent, moves that are summed over an action.
        rooms: Agent to the room of its channel's steps.
    """

    length: int
    lanes: int
    rows: dict[str, int]
    sums: tuple[int, ...]
    rooms: dict[str, Room] = {}  # noqa: RUF012  # never mutated


class Problem(NamedTuple):
    """What stays the same during a fit.

    Attributes:
        data: The episodes.
        sites: Per agent, the names of its policy, transition and initial tables.
        chains: How each agent's local step is taken.
        prior: u of every learned site; of tables with parameters the rows that are expected.
        start: What the first run's first state has on top of it.
        families: The tables with parameters.
        family_data: Their arrays; None without such.
        num_rows: Rows to which they are padded.
        log_fixed: Log rows of the other tables.
        shapes: The shape that most batches fit, and one that all do.
        batch_size: Episodes in a batch.
        delay: tau.
        forgetting_rate: kappa.
        seed: Orders the episodes of each epoch.
        dtype: Type of what is computed of a batch.
        mesh: The devices of this process, over which the lanes of a batch are split.
    """

    data: Data
    sites: Sites
    chains: tuple[StepForm, ...]
    prior: dict[str, Float[np.ndarray, "..."]]
    start: dict[str, Float[np.ndarray, "..."]]
    families: Families
    family_data: FamilyData | None
    num_rows: dict[str, int]
    log_fixed: dict[str, Float[np.ndarray, "..."]]
    shapes: tuple[Shape, ...]
    batch_size: int
    delay: float
    forgetting_rate: float
    seed: tuple[int, ...]
    dtype: np.dtype
    mesh: Mesh | None

    @property
    def batches(self) -> int:
        """Batches of an epoch; the episodes that are left over sit it out."""
        return len(self.data.lengths) // self.batch_size

    @property
    def weight(self) -> float:
        """How often a batch's counts count: M / B."""
        return len(self.data.lengths) / self.batch_size

    def size_of(self, bound: float) -> float:
        """What a bound is measured against: that of densities may be near 0 by chance."""
        steps = int(self.data.lengths.sum()) if self.data.channels else 0
        return max(abs(bound), float(steps))


class State(NamedTuple):
    """What the next iteration needs.

    Attributes:
        iteration: Batches seen.
        scale: c in w = u + c m.
        counts: m of every learned site; of every channel its sums (`channel_batches.packed`).
        log_evidence: Sum of log Z over the episodes seen in this epoch.
        steps: Their steps.
        trace: Estimates of the bound, one per finished epoch.
        bounds: The exact bound at each sweep over everything.
        lengths: The length of each such sweep's step (`contraction.step_length`).
        normals: From where the normals of parameters are fitted; None without such.
    """

    iteration: int
    scale: float
    counts: dict[str, Float[np.ndarray, "..."]]
    log_evidence: float
    steps: int
    trace: Float[np.ndarray, " epochs"]
    bounds: Float[np.ndarray, " sweeps"]
    lengths: Float[np.ndarray, " sweeps"]
    normals: Normals | None = None


class Batch(NamedTuple):
    """Some episodes laid out for message passing over the rows they read.

    Attributes:
        rows: Which rows of every table, and contexts of every channel, these are.
        shape: What they are padded to.
        steps: Per agent, where its steps look among them.
        num_steps: Number of steps.
        channels: The steps of every channel.
    """

    rows: dict[str, Int[np.ndarray, " read"]]
    shape: Shape
    steps: tuple[LaneIndex, ...]
    num_steps: int
    channels: dict[str, ChannelSteps] = {}  # noqa: RUF012  # never mutated


class Info(NamedTuple):
    """What a local step found.

    Attributes:
        counts: Expected uses of each cell of the learned rows that the batch reads, and sums of
            the channels.
        log_evidence: Sum of its episodes' log Z.
    """

    counts: dict[str, Float[Array, "..."]]
    log_evidence: Float[Array, ""]


# ---------------------------------------------------------------------- data and batches


def step_columns(bound: BoundModel, summed: Mapping[str, Int[np.ndarray, "sums actions"]]) -> Steps:
    """Where each step looks, as int32 (steps, `COLUMNS`, agents).

    The columns are the row of the policy table, -1 where the agent is away; the row by which the
    latent came about, of the transition table or, at the first step of a stay, -1 minus that of the
    initial table; the action, -1 where nobody saw it; the label or -1; where the latent came about
    by a move that is summed over an action, its place in `summed`, else -1.

    Args:
        bound: The model on some episodes.
        summed: As in `Data`, of these episodes at least.
    """
    demos = bound.demos
    columns = np.full((demos.num_steps, COLUMNS, demos.num_agents), -1, np.int32)
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        columns[:, POLICY, position] = rows.policy
        columns[:, ARRIVAL, position] = rows.transition
        columns[demos.stays[position], ARRIVAL, position] = -1 - rows.initial
        if rows.unseen is not None:
            place = match_rows(summed[agent], rows.unseen.transition)
            columns[rows.unseen.step, SUMMED, position] = place
    columns[:, ACTION] = demos.actions
    columns[:, LABEL] = demos.latents
    return columns


class Arrivals(NamedTuple):
    """How the latents of an agent came about, step by step.

    Attributes:
        there: Whether it is there at all.
        begins: By its initial table: the first steps of stays.
        moved: By a row of its transition.
        summed: By a move that is summed over an action.
    """

    there: Bool[np.ndarray, " steps"]
    begins: Bool[np.ndarray, " steps"]
    moved: Bool[np.ndarray, " steps"]
    summed: Bool[np.ndarray, " steps"]


def arrivals(columns: Steps, position: int) -> Arrivals:
    """Those of an agent, from what is kept of the steps."""
    there, summed = columns[:, POLICY, position] >= 0, columns[:, SUMMED, position] >= 0
    begins = columns[:, ARRIVAL, position] < 0
    return Arrivals(there, there & begins & ~summed, there & ~begins & ~summed, summed)


def summed_rows(bound: BoundModel) -> dict[str, Int[np.ndarray, "sums actions"]]:
    """Per agent, the distinct transition rows over which moves are summed."""
    found = {}
    for agent, number in zip(bound.demos.agents, bound.demos.num_actions, strict=True):
        unseen = bound.rows[agent].unseen
        nothing = np.zeros((0, max(number, 1)), np.int64)
        found[agent] = nothing if unseen is None else unique_rows(unseen.transition)[0]
    return found


class Excerpt:
    """The first episode, and those in which a label or weight tells latents apart as none before.

    They tell what all labels and annotations tell about which latents have a name.

    Args:
        num_latents: Of each agent.
        others: Further episodes, by their numbers.

    Attributes:
        parts: The episodes.
        numbers: Their numbers.
    """

    def __init__(self, num_latents: tuple[int, ...], others: Chosen | None = None) -> None:
        self._labelled = [np.zeros(size, bool) for size in num_latents]
        self._alike = [set(itertools.combinations(range(size), 2)) for size in num_latents]
        self._others = np.zeros(0, np.int64) if others is None else others
        self._passed = 0
        self.parts: list[Demonstrations] = []
        self.numbers: list[int] = []

    def look_at(self, part: Demonstrations) -> None:
        """Keep what the next part has of them."""
        chosen = set() if self.parts else {0}
        for seen, labels in zip(self._labelled, part.latents.T, strict=True):
            latents, rows = np.unique(labels, return_index=True)
            new = (latents >= 0) & ~seen[latents]
            seen[latents[new]] = True
            chosen.update(_episodes_of(part, rows[new]))
        for agent, alike in zip(part.agents, self._alike, strict=True):
            weights = part.latent_weights.get(agent)
            if weights is None:
                continue
            for pair in sorted(alike):
                apart = np.flatnonzero(np.not_equal(*weights[:, pair].T))
                if len(apart):
                    alike.remove(pair)
                    chosen.update(_episodes_of(part, apart[:1]))
        others = self._others - self._passed
        chosen.update(others[(others >= 0) & (others < part.num_episodes)].tolist())
        if chosen:
            self.parts.append(part.select(sorted(chosen)))
            self.numbers += [self._passed + one for one in sorted(chosen)]
        self._passed += part.num_episodes


def _episodes_of(demos: Demonstrations, steps: Int[np.ndarray, " steps"]) -> list[int]:
    return (np.searchsorted(demos.episode_starts, steps, side="right") - 1).tolist()


def sampled_episodes(num_episodes: int, num_steps: int, batch_size: int) -> Chosen:
    """Episodes that a fit with channels is begun on."""
    size = min(num_episodes, max(batch_size, -(-_SAMPLE_STEPS * num_episodes // num_steps)))
    return np.sort(np.random.default_rng(0).choice(num_episodes, size, replace=False))


def in_memory(bound: BoundModel, batch_size: int = 1, processes: Processes = ALONE) -> Data:
    """The episodes that a model is bound to; of several processes each keeps some of them.

    Args:
        bound: The model on them.
        batch_size: Episodes of a batch: with channels a fit is begun on so many at least.
        processes: Who shares the work.
    """
    demos, summed = bound.demos, summed_rows(bound)
    columns = step_columns(bound, summed)
    weights = {agent: log_rows(given) for agent, given in demos.latent_weights.items()}

    def rows_of(chosen: Chosen) -> Int[np.ndarray, " steps"]:
        lengths = demos.episode_lengths[chosen]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(demos.episode_starts[chosen], lengths) + within

    sizes = num_contexts(bound)
    return Data(
        bound,
        demos.episode_lengths,
        lambda chosen: columns[rows_of(chosen)],
        labelled_counts(bound, sizes),
        open_uses(bound, sizes),
        summed,
        lambda chosen: {agent: logs[rows_of(chosen)] for agent, logs in weights.items()},
        {agent: extremes(bound, agent) for agent in demos.agents},
        _share(demos.episode_lengths, processes),
        processes,
        sources_in_memory(bound, rows_of),
        _sample(bound, batch_size) if bound.channels else None,
    )


def _sample(bound: BoundModel, batch_size: int) -> BoundModel:
    demos = bound.demos
    chosen = sampled_episodes(demos.num_episodes, demos.num_steps, batch_size)
    excerpt = Excerpt(demos.num_latents, chosen)
    excerpt.look_at(demos)
    return in_units(
        bind(bound.model, excerpt.parts[0]),
        {agent: channel.units() for agent, channel in bound.channels.items()},
    )


def in_units(bound: BoundModel, units: Mapping[str, Units]) -> BoundModel:
    """The same, its channels measured in given units."""
    channels = {
        agent: replace(channel, own_units=units[agent]) for agent, channel in bound.channels.items()
    }
    return replace(bound, channels=channels)


def _share(lengths: Int[np.ndarray, " episodes"], processes: Processes) -> tuple[int, int]:
    """The episodes of a process: consecutive ones, of about as many steps as those of others."""
    middles = np.cumsum(lengths) - lengths / 2
    ends = lengths.sum() * np.array([processes.own, processes.own + 1]) / processes.number
    first, end = np.searchsorted(middles, ends).tolist()
    return first, end if processes.own + 1 < processes.number else len(lengths)


def _rows_read(columns: Steps, sites: Sites, data: Data) -> dict[str, list[Int[np.ndarray, " _"]]]:
    """Per table, the rows that are read, of one agent after the other.

    Of a transition the rows of moves come before those over which moves are summed.
    """
    reads: dict[str, list[np.ndarray]] = {}
    for position, ((policy, transition, initial), rows) in enumerate(
        zip(sites, data.summed.values(), strict=True)
    ):
        how, arrival = arrivals(columns, position), columns[:, ARRIVAL, position]
        sums = rows[columns[how.summed, SUMMED, position]].ravel()
        for name, part in (
            (policy, columns[how.there, POLICY, position]),
            (transition, arrival[how.moved]),
            (transition, sums),
            (initial, -1 - arrival[how.begins]),
        ):
            reads.setdefault(name, []).append(part)
    return reads


def _distinct(parts: list[Int[np.ndarray, " _"]], num_rows: int) -> Int[np.ndarray, " read"]:
    """The rows that are read, in order."""
    seen = np.zeros(num_rows, bool)
    for part in parts:
        seen[part] = True
    return np.flatnonzero(seen)


def lay_out_batch(
    columns: Steps,
    weights: Weights,
    lengths: Int[np.ndarray, " chosen"],
    problem: Problem,
    measured: Mapping[str, ChannelRows] | None = None,
) -> Batch:
    """Lay some episodes into lanes, their tables' rows numbered anew from 0."""
    measured = {} if measured is None else measured
    sources = problem.data.channels
    rows, codes = {}, {}
    for name, parts in _rows_read(columns, problem.sites, problem.data).items():
        num_rows = len(problem.data.bound.tables[name].contexts.rows)
        rows[name] = _distinct(parts, num_rows)
        # By a table of all rows: sorting what is read would take longer than the messages.
        numbers = np.empty(num_rows, np.int32)
        numbers[rows[name]] = np.arange(len(rows[name]))
        codes[name] = iter([numbers[part] for part in parts])
    for agent, found in measured.items():
        rows[sources[agent].channel.name] = contexts_read(sources[agent], found)
    sums = (columns[:, SUMMED] >= 0).sum(0)
    shape, lanes = _fitting_shape(lengths, rows, sums, measured, problem)
    steps = tuple(
        _lane_index(columns, weights, lanes, codes, problem, shape, position)
        for position in range(len(problem.sites))
    )
    channels = {
        source.channel.name: lay_batch(
            source,
            measured[agent],
            rows[source.channel.name],
            lanes,
            shape.rooms[agent],
            problem.dtype,
        )
        for agent, source in sources.items()
    }
    laid = place_lanes(steps, problem.mesh)
    return Batch(rows, shape, laid, len(columns), place(channels, problem.mesh))


def _fitting_shape(
    lengths: Int[np.ndarray, " chosen"],
    rows: Mapping[str, Int[np.ndarray, " read"]],
    sums: Int[np.ndarray, " agents"],
    measured: Mapping[str, ChannelRows],
    problem: Problem,
) -> tuple[Shape, Int[np.ndarray, "length lanes"]]:
    """The first shape that some episodes fit, and their lanes in it."""
    sources = problem.data.channels
    for shape in problem.shapes:
        if lengths.max() > shape.length:
            continue
        lanes = pack_lanes(lengths, shape.length)
        if (
            lanes.shape[1] <= shape.lanes
            and all(len(read) <= shape.rows[name] for name, read in rows.items())
            and all(sums <= shape.sums)
            and all(
                _fits(needed_room(sources[agent], found, shape.rooms[agent].size), shape, agent)
                for agent, found in measured.items()
            )
        ):
            break
    room = (0, shape.lanes - lanes.shape[1])
    return shape, np.pad(lanes, ((0, 0), room), constant_values=-1)


def _lane_index(
    columns: Steps,
    weights: Weights,
    lanes: Int[np.ndarray, "length lanes"],
    codes: Mapping[str, Iterator[Int[np.ndarray, " _"]]],
    problem: Problem,
    shape: Shape,
    position: int,
) -> LaneIndex:
    """Where the steps of an agent look; takes its numbers of rows, as `_rows_read` has them."""
    policy, transition, initial = problem.sites[position]
    num_policy, num_transition, num_initial = (
        shape.rows[name] for name in (policy, transition, initial)
    )
    demos = problem.data.bound.demos
    agent, actions = demos.agents[position], max(demos.num_actions[position], 1)
    how, padding = arrivals(columns, position), num_transition + num_initial
    of_policy = np.zeros(len(columns), np.int64)
    of_policy[how.there] = next(codes[policy])
    action = columns[:, ACTION, position]
    cells = np.where(how.there & (action >= 0), of_policy * actions + action, num_policy * actions)
    arrived = np.full(len(columns), padding)
    arrived[how.moved] = next(codes[transition])
    summed = next(codes[transition]).reshape(-1, actions)
    arrived[how.begins] = num_transition + next(codes[initial])
    arrived[how.summed] = padding + 1 + np.arange(len(summed))
    unseen = None
    if len(problem.data.summed[agent]):
        # What is added to them no step looks at.
        before = of_policy[np.flatnonzero(how.summed) - 1]
        room = (0, shape.sums[position] - len(summed))
        unseen = UnseenRows(
            jnp.asarray(np.pad(before, room), jnp.int32),
            jnp.asarray(np.pad(summed, (room, (0, 0))), jnp.int32),
        )
    logs = weights.get(agent)
    return LaneIndex(
        policy=jnp.asarray(spread(cells, lanes, num_policy * actions), jnp.int32),
        transition=jnp.asarray(spread(arrived, lanes, padding), jnp.int32),
        label=jnp.asarray(spread(columns[:, LABEL, position], lanes, -1), jnp.int32),
        start=jnp.asarray(spread(how.begins | ~how.there, lanes, True)),
        real=jnp.asarray(spread(how.there, lanes, False)),
        log_weights=None
        if logs is None
        else np.stack([spread(column, lanes, 0) for column in logs.T], axis=-1),
        unseen=unseen,
    )


def _fits(needed: Room, shape: Shape, agent: str) -> bool:
    return needed.blocks <= shape.rooms[agent].blocks and needed.groups <= shape.rooms[agent].groups


def _rooms(
    data: Data, trials: list[Int[np.ndarray, "..."]], most_steps: int
) -> tuple[dict[str, int], dict[str, Room], dict[str, int], dict[str, Room]]:
    """Contexts and rooms of the channels, in most batches and at most."""
    usual_rows, usual, most_rows, most = {}, {}, {}, {}
    for agent, source in data.channels.items():
        steps = [source.read(chosen) for chosen in trials]
        size = size_of_blocks(source, steps)
        name = source.channel.name
        groups = max(1, min(most_steps, len(source.context)))
        most[agent] = Room(size, most_steps // size + groups, groups)
        most_rows[name] = max(1, min(most_steps, len(source.channel.contexts)))
        rooms = [needed_room(source, rows, size) for rows in steps]
        read = max(len(contexts_read(source, rows)) for rows in steps)

        def roomy(numbers: Sequence[int], most: int) -> int:
            return min(most, rounded_up(int(np.ceil(_ALLOWANCE * max(1, *numbers))), 1))

        usual[agent] = Room(
            size,
            roomy([room.blocks for room in rooms], most[agent].blocks),
            roomy([room.groups for room in rooms], groups),
        )
        usual_rows[name] = roomy([read, 1], most_rows[name])
    return usual_rows, usual, most_rows, most


def _shapes(data: Data, sites: Sites, batch_size: int, devices: int) -> tuple[Shape, ...]:
    """The shape that most batches fit, as a few trial batches tell, and one that all do.

    Of batches as this process has them, with a number of lanes that its devices can share.
    """
    lengths = data.lengths
    generator = np.random.default_rng(0)
    everything = (
        np.sort(generator.choice(len(lengths), batch_size, replace=False))
        for _ in range(_TRIAL_BATCHES)
    )
    trials = [own for chosen in everything for own in (data.own_of(chosen),) if len(own)]
    if not trials:
        trials = [np.arange(*data.own)[:batch_size]]
    if not len(trials[0]):
        return ()  # no episode is its own
    own_lengths = lengths[slice(*data.own)]
    most_episodes = min(batch_size, len(own_lengths))

    def shared(lanes: int) -> int:
        return -(-rounded_up(lanes, 1, 8) // devices) * devices

    length = rounded_up(max(int(lengths[chosen].max()) for chosen in trials))
    lanes = max(pack_lanes(lengths[chosen], length).shape[1] for chosen in trials)
    contexts = num_contexts(data.bound)
    steps = [data.read(chosen) for chosen in trials]
    read = [
        {name: len(_distinct(parts, contexts[name])) for name, parts in reads.items()}
        for reads in (_rows_read(columns, sites, data) for columns in steps)
    ]
    sums = np.max([(columns[:, SUMMED] >= 0).sum(0) for columns in steps], axis=0)
    most_steps = int(np.partition(own_lengths, -most_episodes)[-most_episodes:].sum())
    tallest = rounded_up(int(own_lengths.max()))
    # A step may be summed over all actions.
    per_step = np.maximum([rows.shape[1] for rows in data.summed.values()], 1)
    users = {
        name: sum(int(k) for names, k in zip(sites, per_step, strict=True) if name in names)
        for name in contexts
    }
    any_sums = [len(rows) > 0 for rows in data.summed.values()]
    usual_rows, usual_rooms, most_rows, most_rooms = _rooms(data, trials, most_steps)
    # Any two lanes hold more than a lane's height: else the later one had not been begun.
    roomy = Shape(
        length=tallest,
        lanes=shared(min(most_episodes, 2 * most_steps // tallest + 1)),
        rows={name: max(1, min(most_steps * users[name], n)) for name, n in contexts.items()}
        | most_rows,
        sums=tuple(most_steps if some else 0 for some in any_sums),
        rooms=most_rooms,
    )
    usual = Shape(
        length=length,
        lanes=shared(int(np.ceil(_ALLOWANCE * lanes))),
        rows={
            name: min(most, rounded_up(int(np.ceil(_ALLOWANCE * max(n[name] for n in read))), 1))
            for name, most in roomy.rows.items()
            if name in contexts
        }
        | usual_rows,
        sums=tuple(
            min(most, rounded_up(int(np.ceil(_ALLOWANCE * max(n, 1))), 1))
            for n, most in zip(sums.tolist(), roomy.sums, strict=True)
        ),
        rooms=usual_rooms,
    )
    return usual, roomy


def make_problem(
    data: Data,
    batch_size: int,
    delay: float | None,
    forgetting_rate: float | None,
    seed: int,
    dtype: np.dtype,
    start: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
) -> Problem:
    """The arrays and settings of a fit."""
    bound = data.bound
    sites = tuple(bound.sites(agent) for agent in bound.demos.agents)
    plain = {
        name: table.cpt.concentration(table.contexts)
        for name, table in bound.learned.items()
        if not table.parametric
    }
    prior = {
        name: plain[name] if name in plain else table.prior_mean()
        for name, table in bound.learned.items()
    }
    known = data.labelled
    if start is not None:
        known = known | counts_of_start(start, bound, plain)
    families: Families = ()
    of_families, num_rows = None, {}
    if len(plain) < len(prior):
        layout = lay_out(bound)
        families, of_families = family_data(bound, layout, dtype, OWN_POINTS)
        num_rows = {family.name: layout.num_rows[family.name] for family in families}
    # No batch of longer episodes counts for more.
    longest = int(np.partition(data.lengths, -batch_size)[-batch_size:].sum())
    most = len(data.lengths) / batch_size * longest * len(sites)
    return Problem(
        data=data,
        sites=sites,
        chains=tuple(
            chain._replace(whole=data.channels[agent].whole) if chain.channel else chain
            for agent, chain in zip(
                bound.demos.agents,
                step_forms(bound, known, most, dtype, data.extremes),
                strict=True,
            )
        ),
        prior={name: u.astype(dtype) for name, u in prior.items()},
        start=known,
        families=families,
        family_data=of_families,
        num_rows=num_rows,
        log_fixed={
            name: log_rows(table.prior_mean()).astype(dtype)
            for name, table in bound.tables.items()
            if not table.learned
        },
        shapes=_shapes(data, sites, batch_size, size_of(mesh)),
        batch_size=batch_size,
        delay=_DELAY if delay is None else float(delay),
        forgetting_rate=_FORGETTING_RATE if forgetting_rate is None else float(forgetting_rate),
        seed=(seed, 0),
        dtype=dtype,
        mesh=mesh,
    )


def epoch_order(problem: Problem, epoch: int) -> Int[np.ndarray, " episodes"]:
    """A fresh order of the episodes; it depends on the seed and the epoch alone."""
    generator = np.random.default_rng([*problem.seed, epoch + 1])
    return generator.permutation(len(problem.data.lengths))


def _batches(problem: Problem, first: int, number: int) -> Iterator[Batch | None]:
    """The batches of some iterations, as far as this process has their episodes."""
    epoch, order = -1, np.zeros(0, np.int64)
    for iteration in range(first, first + number):
        if iteration // problem.batches != epoch:
            epoch = iteration // problem.batches
            order = epoch_order(problem, epoch)
        place = iteration % problem.batches * problem.batch_size
        yield batch_of(problem, np.sort(order[place : place + problem.batch_size]))


def batch_of(problem: Problem, chosen: Int[np.ndarray, " chosen"]) -> Batch | None:
    """The batch of some episodes; None where none of them is its own."""
    data = problem.data
    chosen = data.own_of(chosen)
    if not len(chosen):
        return None
    measured = {agent: source.read(chosen) for agent, source in data.channels.items()}
    return lay_out_batch(
        data.read(chosen), data.weights(chosen), data.lengths[chosen], problem, measured
    )


# ---------------------------------------------------------------------- the algorithm


@partial(jax.jit, static_argnames=("chains", "mesh"))
def local_step(
    concentration: dict[str, Float[Array, "..."]],
    log_fixed: dict[str, Float[Array, "..."]],
    steps: tuple[LaneIndex, ...],
    chains: tuple[StepForm, ...],
    sums: dict[str, Float[Array, "..."]],
    channels: dict[str, ChannelSteps],
    log_given: dict[str, Float[Array, "..."]],
    mesh: Mesh | None,
) -> Info:
    """Expected counts under the best q(latents) for given rows (the paper, Eqs. 7 and 8).

    Args:
        concentration: w of the learned rows.
        log_fixed: Log rows of the other tables.
        steps: Per agent, where its steps look.
        chains: Per agent, the names of its tables and the form of its messages.
        sums: What q(coefficients, covariances) of the channels has on top of the prior.
        channels: The steps of the channels.
        log_given: E[log row] of the tables with parameters.
        mesh: The devices over which lanes are split.
    """
    learned = log_given | log_means(concentration)
    tables = log_fixed | learned
    counts = {name: jnp.zeros_like(rows) for name, rows in learned.items()}
    log_evidence = jnp.zeros((), next(iter(tables.values())).dtype)
    for chain, index in zip(chains, steps, strict=True):
        policy, transition, initial = (tables[name] for name in chain.sites)
        if chain.channel:
            own = channels[chain.channel]
            hyper = updated(own.prior, unpacked(sums[chain.channel]))
            measured = split_lanes(
                partial(forward_backward.local_step_with_marginals, scaled=chain.scaled), mesh
            )
            uses, evidence, marginal = measured(
                policy, transition, initial, index, said(hyper, own)
            )
            counts[chain.channel] = packed(
                expected_statistics(marginal, own.data, hyper, chain.whole)
            )
        else:
            local = split_lanes(partial(forward_backward.local_step, scaled=chain.scaled), mesh)
            uses, evidence = local(policy, transition, initial, index)
        log_evidence = log_evidence + jnp.sum(evidence)
        for name, use in zip(chain.sites, uses, strict=True):
            if name in counts:
                counts[name] = counts[name] + use
    return Info(counts, log_evidence)


_fit_normals = jax.jit(fit_normals, static_argnames="families")


class Given(NamedTuple):
    """What the parameters' normals say of the tables with parameters.

    Attributes:
        log_means: E[log row].
        divergence: What the tables take from the bound.
    """

    log_means: dict[str, Float[np.ndarray, "..."]]
    divergence: float


NOTHING_GIVEN = Given({}, 0.0)


def with_normals(
    state: State, problem: Problem, data: FamilyData | None = None
) -> tuple[State, Given]:
    """The state with normals fitted to its counts, and what they say.

    Args:
        state: The state.
        problem: What stays the same.
        data: The points, and how long to fit; None: those of the problem.
    """
    if not problem.families:
        return state, NOTHING_GIVEN
    counts = {
        name: pad_rows(state.scale * state.counts[name], number, 0.0).astype(problem.dtype)
        for name, number in problem.num_rows.items()
    }
    data = problem.family_data if data is None else data
    assert state.normals is not None
    assert data is not None
    fitted = _fit_normals(problem.families, state.normals, data, counts)
    log_means = {name: np.asarray(rows) for name, rows in fitted.log_means.items()}
    return state._replace(normals=fitted.normals), Given(log_means, float(fitted.divergence))


def look(state: State, batch: Batch, problem: Problem, given: Given = NOTHING_GIVEN) -> Info:
    """`local_step` on a batch, given the rows that it reads at their present concentrations."""
    padded = batch.shape.rows
    concentration = {
        name: pad_rows(u[read] + state.scale * state.counts[name][read], padded[name], 1.0)
        for name, u in problem.prior.items()
        if name not in problem.num_rows
        for read in (batch.rows[name],)
    }
    log_given = {
        name: pad_rows(rows[batch.rows[name]], padded[name], 0.0)
        for name, rows in given.log_means.items()
    }
    log_fixed = {
        name: pad_rows(logs[batch.rows[name]], padded[name], 0.0)
        for name, logs in problem.log_fixed.items()
    }
    sums = {
        name: pad_rows(
            (state.scale * state.counts[name][batch.rows[name]]).astype(problem.dtype),
            padded[name],
            0.0,
        )
        for name in batch.channels
    }
    return local_step(
        concentration,
        log_fixed,
        batch.steps,
        problem.chains,
        sums,
        batch.channels,
        log_given,
        problem.mesh,
    )


class Told(NamedTuple):
    """What a process found in a batch.

    Attributes:
        rows: The rows of the learned tables, and the contexts of the channels, that it read.
        counts: Expected uses of their cells, and sums of the channels.
        log_evidence: Sum of its episodes' log Z.
        steps: Their steps.
    """

    rows: dict[str, Int[np.ndarray, " read"]]
    counts: dict[str, Float[np.ndarray, "..."]]
    log_evidence: float
    steps: int


def tell(
    batch: Batch | None, info: Info | None, problem: Problem, failure: Exception | None = None
) -> list[Told]:
    """What all processes found in a batch, in the same order everywhere.

    Raises:
        Exception: The failure, if there is one; in other processes its words.
    """
    empty = _no_counts(problem)

    def own() -> Told:
        if failure is not None:
            raise failure
        if batch is None or info is None:
            return Told(dict.fromkeys(empty, np.zeros(0, np.int64)), empty, 0.0, 0)
        rows = {name: batch.rows[name] for name in empty}
        counts = {name: np.asarray(info.counts[name])[: len(read)] for name, read in rows.items()}
        return Told(rows, counts, float(info.log_evidence), batch.num_steps)

    if problem.data.processes.number == 1:
        return [own()]
    parts = gather_bytes(problem.data.processes, lambda: _as_bytes(own()))
    return [_from_bytes(part, empty) for part in parts]


def _no_counts(problem: Problem) -> dict[str, Float[np.ndarray, "..."]]:
    """What a local step finds of every table and channel, of no rows."""
    sums = {
        source.channel.name: nothing(source, 0).astype(problem.dtype)
        for source in problem.data.channels.values()
    }
    return {name: u[:0] for name, u in problem.prior.items()} | sums


def _as_bytes(told: Told) -> bytes:
    head = np.array([told.steps, *(len(read) for read in told.rows.values())], np.int64)
    arrays = [head, np.array(told.log_evidence, np.float64)]
    for name, read in told.rows.items():
        arrays += [read.astype(np.int64), told.counts[name]]
    return b"".join(one.tobytes() for one in arrays)


def _from_bytes(part: bytes, like: Mapping[str, np.ndarray]) -> Told:
    place = 0

    def take(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        nonlocal place
        found = np.frombuffer(part, dtype, int(np.prod(shape)), place).reshape(shape)
        place += found.nbytes
        return found

    steps, *numbers = take(np.int64, (1 + len(like),)).tolist()
    log_evidence = float(take(np.float64, (1,))[0])
    rows, counts = {}, {}
    for number, (name, u) in zip(numbers, like.items(), strict=True):
        rows[name] = take(np.int64, (number,))
        counts[name] = take(u.dtype, (number, *u.shape[1:]))
    return Told(rows, counts, log_evidence, steps)


def move(state: State, told: list[Told], problem: Problem) -> State:
    """The global step. The counts of `state` are changed in place: it must cost the batch alone."""
    rate = (state.iteration + problem.delay) ** -problem.forgetting_rate
    scale = state.scale * (1.0 - rate)
    if scale < _SMALLEST_SCALE:
        for counts in state.counts.values():
            counts *= scale
        scale = 1.0
    for one in told:
        for name, found in one.counts.items():
            state.counts[name][one.rows[name]] += (rate * problem.weight / scale) * found
    return state._replace(
        iteration=state.iteration + 1,
        scale=scale,
        log_evidence=state.log_evidence + sum(one.log_evidence for one in told),
        steps=state.steps + sum(one.steps for one in told),
    )


def advance(state: State, problem: Problem, number: int) -> State:
    """So many iterations; `state` stays as it is."""
    state = state._replace(counts={name: m.copy() for name, m in state.counts.items()})
    quick = problem.family_data
    if quick is not None:
        quick = quick._replace(evaluations=jnp.asarray(_EVALUATIONS, jnp.int32))
    batches = _batches(problem, state.iteration, number)
    batch = next(batches, None)
    for left in reversed(range(number)):
        info = following = failure = None
        state, given = with_normals(state, problem, quick)
        try:
            info = None if batch is None else look(state, batch, problem, given)
            # It is being computed while the next batch is read and laid out.
            following = next(batches, None) if left else None
        except Exception as error:
            failure = error
        state = move(state, tell(batch, info, problem, failure), problem)
        batch = following
        if state.iteration % problem.batches == 0:
            # Per step log Z varies less than per episode.
            share = state.steps / int(problem.data.lengths.sum())
            state, given = with_normals(state, problem)
            bound = state.log_evidence / share - divergence(state, problem, given)
            (bound,) = _as_the_first_says(problem, bound)
            trace = np.append(state.trace, bound)
            state = state._replace(log_evidence=0.0, steps=0, trace=trace)
    return state


def concentrations(state: State, problem: Problem) -> dict[str, Float[np.ndarray, "..."]]:
    """w of every learned site."""
    return {name: u + state.scale * state.counts[name] for name, u in problem.prior.items()}


def divergence(state: State, problem: Problem, given: Given) -> float:
    """Sum of the KL divergences from the priors; on the host, in double precision."""
    total = given.divergence + sum(
        rows_divergence(w, problem.prior[name])
        for name, w in concentrations(state, problem).items()
        if name not in problem.num_rows
    )
    for source in problem.data.channels.values():
        total += divergence_of(source, state.scale * state.counts[source.channel.name])
    return total


def _as_the_first_says(problem: Problem, *values: float) -> list[float]:
    """Numbers that decide how a run goes on: where machines differ in a last digit, the first's."""
    processes = problem.data.processes
    own = np.array(values) if processes.own == 0 else np.zeros(len(values))
    return add_up(processes, lambda: {"": own})[""].tolist()


def _in_order(problem: Problem) -> Iterator[Batch]:
    """All episodes of this process, each once; as many at a time as it has in a batch."""
    everything = np.arange(*problem.data.own)
    at_once = -(-problem.batch_size // problem.data.processes.number)
    for first in range(0, len(everything), at_once):
        batch = batch_of(problem, everything[first : first + at_once])
        assert batch is not None
        yield batch


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, each when the next has been begun: devices compute while hosts prepare."""
    previous = next(items, None)
    for item in items:
        yield previous
        previous = item
    if previous is not None:
        yield previous


def sweep(state: State, problem: Problem) -> tuple[State, float]:
    """One sweep of Algorithm 1 over all episodes, batch by batch.

    Returns:
        The state of w = u + expected counts, and the exact bound of the state before.
    """
    state, given = with_normals(state, problem)
    sums = pass_over(state, problem, given)
    bound = float(sums.pop(_LOG_EVIDENCE)) - divergence(state, problem, given)
    rows = [w.astype(np.float64) for w in concentrations(state, problem).values()]
    residual = [
        (u + sums[name] - w).ravel()
        for (name, u), w in zip(problem.prior.items(), rows, strict=True)
    ]
    length = step_length(np.concatenate(residual), fisher_information(rows)) if residual else np.inf
    bound, length = _as_the_first_says(problem, bound, length)
    following = state._replace(
        counts={name: values.astype(state.counts[name].dtype) for name, values in sums.items()},
        scale=1.0,
        bounds=np.append(state.bounds, bound),
        lengths=np.append(state.lengths, length),
    )
    return following, bound


def pass_over(state: State, problem: Problem, given: Given) -> dict[str, np.ndarray]:
    """Expected counts of all episodes, and under the name `_LOG_EVIDENCE` the sum of log Z."""

    def sums_of_own() -> dict[str, np.ndarray]:
        # In double precision: a row may be read by very many batches.
        counts = {name: np.zeros(m.shape) for name, m in state.counts.items()}
        log_evidence = 0.0
        looked = ((batch, look(state, batch, problem, given)) for batch in _in_order(problem))
        for batch, info in _ahead(looked):
            log_evidence += float(info.log_evidence)
            for name, found in info.counts.items():
                read = batch.rows[name]
                counts[name][read] += np.asarray(found)[: len(read)]
        return counts | {_LOG_EVIDENCE: np.array(log_evidence)}

    return add_up(problem.data.processes, sums_of_own)


def end_of(lengths: Float[np.ndarray, " sweeps"]) -> End:
    """What kind of place the last sweeps led to, as far as their steps tell.

    The length of a step is a square, and falls by the contraction rate's square a sweep in the end.
    A full look (`ascents.Ascents`) would take tens of passes over the data.
    """
    if len(lengths) < 2 or not np.all(np.isfinite(lengths[-2:])):
        return End()
    if not lengths[-2] > 0:  # nothing moves
        return End(0.0, float(lengths[-1]))
    rate = float(np.sqrt(lengths[-1] / lengths[-2]))
    return End(rate, still_to_come(float(lengths[-1]), rate))


def _end(state: State, problem: Problem) -> End:
    """What kind of place the last sweeps led to.

    With channels the last gains of the bound tell it, which fall by the rate's square a sweep.
    """
    if not problem.data.channels:
        return end_of(state.lengths)
    gains = np.diff(state.bounds[-3:])
    if len(gains) < 2 or not np.all(np.isfinite(gains)):
        return End()
    if not gains[0] > gains[1] > 0:
        # It hardly moves, or not yet as it will in the end.
        return End(0.0, abs(float(gains[1]))) if abs(gains[1]) < abs(gains[0]) else End()
    ratio = float(gains[1] / gains[0])
    return End(ratio**0.5, float(gains[1]) * ratio / (1 - ratio))


def has_settled(trace: Float[np.ndarray, " epochs"], least: float = 0.0) -> bool:
    """Whether batches have done what they can: the bound's estimate hardly moves any more.

    The estimates are noisy, as each batch is seen under the concentrations of its time. Settled
    means that the drift per epoch and two standard errors are below a thousandth of the bound; a
    bound that is not finite will not get better either. A bound of less than `least` counts as
    that.
    """
    if not np.all(np.isfinite(trace)):
        return True
    if len(trace) < _FEWEST_EPOCHS:
        return False
    moved, error = drift(trace)
    height = abs(trace[-(len(trace) // 4) :].mean())
    return bool(abs(moved) + 2 * error < _SETTLED * max(height, least))


def fit(
    data: Data,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    batch_size: int,
    checkpoint: Checkpoint = NOWHERE,
    num_restarts: int = 1,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    start: Mapping[str, Any] | None = None,
    devices: int | None = None,
    delay: float | None = None,
    forgetting_rate: float | None = None,
    outline: Outline | None = None,
) -> FitResult:
    """Learn from more episodes than one iteration looks at; options as in `mfvi.fit`.

    Args:
        data: The episodes, in memory or on disk; more than `batch_size`.
        seed: Seeds the batches and the random starts.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        batch_size: Episodes of a batch.
        checkpoint: Where progress is saved.
        num_restarts: Number of runs; the one with the highest bound is kept.
        tolerance: What the exact bound may still gain, as a share of it; ends a run.
        max_iterations: Most epochs and sweeps of a run; the last two sweeps are made in any case.
        start: Concentrations to start the first run from.
        devices: Number of devices over which a batch is split; of several processes all devices.
        delay: tau; larger ones make the first steps smaller.
        forgetting_rate: kappa, the power by which steps become smaller.
        outline: With channels, where a run begins that labels do not tell.

    Returns:
        Dirichlet rows and their exact bound. `elbo_trace` has an estimate per epoch (log Z of
        every batch under the concentrations that it met, scaled to all steps, minus the divergence
        at the epoch's end), then the exact bound of each sweep over everything.

    Raises:
        ValueError: If there are not so many devices.
        RuntimeError: If another process failed or has ended.
    """
    mesh = own_mesh(devices)
    problem = make_problem(data, batch_size, delay, forgetting_rate, seed, dtype, start, mesh)
    allowed = _TOLERANCE if tolerance is None else float(tolerance)
    runs, going = _restored(checkpoint, problem)
    most = num_restarts * max_iterations
    with progress_line(most, "mfvi, epochs", progress, at_most=True) as line:
        for restart in range(len(runs), num_restarts):
            own = problem._replace(seed=(seed, restart))
            state = going or first_state(own, restart > 0, outline)
            going = None
            for now, finished in _run(state, own, allowed, max_iterations):
                line.update(1)
                line.set_postfix_str(f"bound {(*now.trace, *now.bounds)[-1]:.4f}")
                if finished:
                    runs = [*runs, now]
                    checkpoint.offer(runs=runs)
                else:
                    checkpoint.offer(runs=runs, state=now)
            line.total = line.n + (num_restarts - restart - 1) * max_iterations
            line.refresh()
    state = max(runs, key=lambda run: (np.isfinite(run.bounds[-1]), run.bounds[-1]))
    elbo = float(state.bounds[-1])
    end = _end(state, problem)
    # Two sweeps are made in any case.
    cap = max(max_iterations - len(state.trace), len(state.bounds))
    verdict = judge(state.bounds, allowed * problem.size_of(elbo), cap, dtype, end)
    shift = data.log_jacobian  # of densities in the units of the data
    rows: dict[str, RowsPosterior] = {
        name: DirichletRows(w)
        for name, w in concentrations(state, problem).items()
        if name not in problem.num_rows
    }
    result = FitResult(
        rows=rows,
        converged=verdict.converged,
        reason=f"{verdict.reason}, after {len(state.trace)} epochs of batches",
        elbo=elbo + shift,
        elbo_trace=np.concatenate([state.trace, state.bounds]) + shift,
        restart_traces=tuple(np.concatenate([run.trace, run.bounds]) + shift for run in runs),
        notes={
            "iterations": state.iteration,
            "epochs": len(state.trace),
            "sweeps": len(state.bounds),
        },
        contraction_rate=None if np.isnan(end.rate) else end.rate,
        channels={
            source.channel.name: MatrixNormalChannel(
                *normals_of(source, state.scale * state.counts[source.channel.name])
            )
            for source in data.channels.values()
        },
    )
    return _with_families(result, state, problem) if problem.families else result


def _with_families(result: FitResult, state: State, problem: Problem) -> FitResult:
    """The result with parameters, and with the bound at points that the fit has not seen.

    A pass over all episodes for each set of points.
    """
    bound, families = problem.data.bound, problem.families
    state, _ = with_normals(state, problem)
    bounds = []
    for number in FRESH_POINTS:
        fresh = family_data(bound, lay_out(bound), problem.dtype, number)[1]
        _, given = with_normals(state, problem, fresh)
        log_evidence = float(pass_over(state, problem, given)[_LOG_EVIDENCE])
        found = log_evidence - divergence(state, problem, given)
        bounds.append(found + excess(families, fresh) + problem.data.log_jacobian)
    counts = {name: state.scale * state.counts[name] for name in problem.num_rows}
    assert state.normals is not None
    return with_parameters(
        result, bound, families, state.normals, counts, _as_the_first_says(problem, *bounds)
    )


def first_state(problem: Problem, again: bool = False, outline: Outline | None = None) -> State:
    """Where a run starts: the labelled counts, or what a start has.

    The other steps are dealt out at random where that is symmetric in some latents, and `again`,
    in further runs. With channels a few episodes are fitted instead (`outline`), where there are
    few labels, and `again`.
    """
    data, bound = problem.data, problem.data.bound
    counts = data.labelled if again else problem.start
    if data.channels:
        sums, doubtful = _labelled_sums(problem)
        given = not again and problem.start is not data.labelled
        if outline is not None and (again or (doubtful and not given)):
            return _state(problem, *_outlined(problem, again, outline))
        return _state(problem, counts, sums)
    signature = {name: u + counts[name] for name, u in problem.prior.items()}
    if again or is_symmetric(bound, signature):
        others = deal_out(bound, data.uses, np.random.default_rng(problem.seed))
        counts = {name: counts[name] + others[name] for name in problem.prior}
    return _state(problem, counts, {})


def _state(
    problem: Problem, counts: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]
) -> State:
    """A state before any iteration."""
    of_tables = {name: counts[name].astype(u.dtype) for name, u in problem.prior.items()}
    return State(
        iteration=0,
        scale=1.0,
        counts={**of_tables, **sums},
        log_evidence=0.0,
        steps=0,
        trace=np.zeros(0),
        bounds=np.zeros(0),
        lengths=np.zeros(0),
        normals=first_normals(problem.families, problem.dtype) if problem.families else None,
    )


def _no_sums(problem: Problem) -> dict[str, np.ndarray]:
    return {source.channel.name: nothing(source) for source in problem.data.channels.values()}


def _labelled_sums(problem: Problem) -> tuple[dict[str, np.ndarray], bool]:
    """Sums of the channels over the labelled steps, and whether there are few of these."""
    data, demos = problem.data, problem.data.bound.demos
    number_labelled = "number labelled"  # no site has this name

    def sums_of_own() -> dict[str, np.ndarray]:
        found, labelled = _no_sums(problem), np.zeros(demos.num_agents)
        for batch in _in_order(problem):
            for position, chain in enumerate(problem.chains):
                label = batch.steps[position].label
                labelled[position] += np.sum(np.asarray(label) >= 0)
                if chain.channel:
                    contexts = batch.shape.rows[chain.channel]
                    own = labelled_rows(label, batch.channels[chain.channel], contexts, chain.whole)
                    read = batch.rows[chain.channel]
                    found[chain.channel][read] += np.asarray(own)[: len(read)]
        return found | {number_labelled: labelled}

    sums = add_up(data.processes, sums_of_own)
    labelled = sums.pop(number_labelled).astype(np.int64)
    return sums, is_doubtful_with(labelled, demos.num_latents)


def _outlined(
    problem: Problem, again: bool, outline: Outline
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Counts and sums where a fit to a sample leads, as if all episodes were like it."""
    data, sample = problem.data, problem.data.sample
    assert sample is not None
    share = int(data.lengths.sum()) / sample.demos.num_steps
    counts = {name: data.labelled[name].astype(np.float64) for name in problem.prior}
    sums = _no_sums(problem)

    def as_one_says() -> dict[str, np.ndarray]:
        if data.processes.own > 0:
            return {name: np.zeros_like(values) for name, values in (counts | sums).items()}
        generator = np.random.default_rng(problem.seed)
        few, few_sums = outline(sample, problem.dtype, generator, not again)
        for name, found in few.items():
            rows = sample.tables[name].contexts.rows
            counts[name][match_rows(data.bound.tables[name].contexts.rows, rows)] = share * found
        for agent, source in data.channels.items():
            own = sample.channels[agent]
            at = match_rows(source.channel.visited, own.visited)
            given = few_sums[own.name]
            numbers = Statistics(*(np.asarray(part, np.float64)[: len(at)] for part in given))
            sums[own.name][at] = share * np.asarray(packed(numbers))
        return counts | sums

    # Machines differ in a last digit: all begin where the first does.
    found = add_up(data.processes, as_one_says)
    return {name: found[name] for name in counts}, {name: found[name] for name in sums}


def _run(
    state: State, problem: Problem, tolerance: float, max_iterations: int
) -> Iterator[tuple[State, bool]]:
    """Epochs of batches until the estimate has settled, then sweeps until the bound has.

    Yields:
        The state after each, and whether it is the last one: that whose exact bound is known.
    """
    least = problem.size_of(0.0)
    # Two gains, and so three bounds, tell where a fit with channels ends.
    fewest = 3 if problem.data.channels else 2
    while not (
        len(state.bounds) or has_settled(state.trace, least) or len(state.trace) >= max_iterations
    ):
        state = advance(state, problem, problem.batches)
        yield state, False
    while True:
        following, bound = sweep(state, problem)
        if len(state.bounds):
            end = _end(following, problem)
            capped = len(state.trace) + len(following.bounds) >= max_iterations
            enough = len(following.bounds) >= fewest
            if capped or (enough and not end.to_come >= tolerance * problem.size_of(bound)):
                yield state._replace(bounds=following.bounds, lengths=following.lengths), True
                return
        state = following
        yield state, False


def _restored(checkpoint: Checkpoint, problem: Problem) -> tuple[list[State], State | None]:
    """The finished runs that a checkpoint holds, and the state of one that was going on."""
    saved = checkpoint.saved
    if saved is None:
        return [], None
    like, structure = jax.tree.flatten(_state(problem, problem.data.labelled, _no_sums(problem)))

    def states(name: str) -> list[State]:
        leaves, size = saved.arrays(name), len(like)
        made = (
            jax.tree.unflatten(structure, leaves[k : k + size]) for k in range(0, len(leaves), size)
        )
        return [
            state._replace(
                iteration=int(state.iteration),
                scale=float(state.scale),
                log_evidence=float(state.log_evidence),
                steps=int(state.steps),
            )
            for state in made
        ]

    return states("runs"), next(iter(states("state")), None)
