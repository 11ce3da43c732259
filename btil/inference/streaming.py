"""Fits to files larger than memory: one pass finds what occurs, batches come from a scratch file.

The pass takes the file part by part. Contexts get numbers as they appear, and where each step
looks is written to a compact scratch file, 20 bytes per step and agent, from which the steps of
single episodes are read by their position. Weights of annotations have files of their own, and so
have continuous columns, which an earlier pass keeps: what a prior leaves open is taken from all of
them.

Of several processes each passes over its own part of the files (`DemonstrationsFile.shard`) and
keeps its own episodes. Then they tell each other, once, which contexts there are.
"""

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from btil.demonstrations import Demonstrations, concatenate
from btil.demonstrations.row_groups import EPISODE, runs_of
from btil.demonstrations.stream import DemonstrationsFile
from btil.inference.channel_batches import ChannelRows, ChannelSource
from btil.inference.mean_field import Extremes, extremes
from btil.inference.processes import ALONE, Processes, add_up, gather, gather_bytes
from btil.inference.starting import (
    OpenUses,
    labelled_counts,
    num_contexts,
    open_uses,
)
from btil.inference.stochastic import (
    ARRIVAL,
    COLUMNS,
    POLICY,
    Data,
    Excerpt,
    Steps,
    Weights,
    arrivals,
    in_units,
    sampled_episodes,
    step_columns,
    summed_rows,
)
from btil.messages.layout import log_rows
from btil.models.contexts import match_rows, unique_rows
from btil.models.emission import Channel, Groups, Trend, groups_of, observed, trend_of
from btil.models.team import BoundModel, TeamModel, bind, renumbered, with_contexts

# Steps of which the columns are in memory at once.
_CHUNK = 1 << 16
# Bytes of a checksum of an episode.
_DIGEST = 16


class Streamed(NamedTuple):
    """What the pass over a file leaves.

    Attributes:
        data: The episodes, on disk.
        log_evidence: Sum of what `check` returned for the parts.
        checksum: Of the episodes, in the order of the file.
    """

    data: Data
    log_evidence: float
    checksum: str


@contextmanager
def streamed(
    model: TeamModel,
    file: DemonstrationsFile,
    check: Callable[[BoundModel], float],
    batch_size: int = 1,
    processes: Processes = ALONE,
) -> Iterator[Streamed]:
    """Make the episodes of a file ready to be drawn from, for as long as the block lasts.

    The scratch file is in the system's temporary folder (the environment variable TMPDIR names
    another). It has no name there, so that nothing is left of it, however the process ends.

    Args:
        model: The model.
        file: The whole file; each process takes its part.
        check: Refuses a part that is impossible under the model; returns the log evidence where
            nothing is learned.
        batch_size: Episodes of a batch: with channels a fit is begun on so many at least.
        processes: Who shares the work.

    Raises:
        ValueError: If a part of the file is refused.
        RuntimeError: If another process refused its part.
    """
    with ExitStack() as files:
        scratch = files.enter_context(tempfile.TemporaryFile())
        weights, channels = _ScratchWeights(files), _ScratchChannels(files, processes)
        yield _agreed(model, file, check, scratch, weights, channels, batch_size, processes)


class _ScratchWeights:
    """Log weights of annotations, a scratch file for every agent that has such.

    Args:
        files: Closes the files.
    """

    def __init__(self, files: ExitStack) -> None:
        self._files = files
        self._scratch: dict[str, IO[bytes]] = {}
        self._num_latents: dict[str, int] = {}

    def write(self, part: Demonstrations, before: int) -> None:
        """Add those of a part that follows on so many steps; others are 0."""
        for agent, latents in zip(part.agents, part.num_latents, strict=True):
            given = part.latent_weights.get(agent)
            if given is None and agent not in self._scratch:
                continue
            if agent not in self._scratch:
                own = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                np.zeros(before * latents).tofile(own)
                self._scratch[agent], self._num_latents[agent] = own, latents
            logs = np.zeros((part.num_steps, latents)) if given is None else log_rows(given)
            logs.tofile(self._scratch[agent])

    def reader(self, lengths: Int[np.ndarray, " episodes"]) -> Callable[[Any], Weights]:
        """Reads those of some episodes."""
        ends = np.cumsum(lengths)

        def read(chosen: Int[np.ndarray, " chosen"]) -> Weights:
            return {
                agent: _read_runs(scratch, np.float64, ends, lengths, chosen, latents).reshape(
                    -1, latents
                )
                for agent, scratch in self._scratch.items()
                for latents in (self._num_latents[agent],)
            }

        return read


def _read_runs(
    scratch: IO[bytes],
    dtype: Any,
    ends: Int[np.ndarray, " episodes"],
    lengths: Int[np.ndarray, " episodes"],
    chosen: Int[np.ndarray, " chosen"],
    width: int,
) -> np.ndarray:
    """The numbers of some episodes, so many a step; those that follow each other in one go."""
    parts = []
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):
        first, end = int(ends[run[0]] - lengths[run[0]]), int(ends[run[-1]])
        scratch.seek(first * width * np.dtype(dtype).itemsize)
        parts.append(np.fromfile(scratch, dtype, (end - first) * width))
    return np.concatenate(parts)


class _ScratchChannels:
    """Columns and covariates of every agent's channel, and to which group each step belongs.

    Groups are numbered as they appear; then processes agree on them.

    Args:
        files: Closes the files.
        processes: Who shares the work; each has the steps of its own episodes.
    """

    def __init__(self, files: ExitStack, processes: Processes) -> None:
        self._files, self._processes = files, processes
        self._numbers: dict[str, IO[bytes]] = {}
        self._groups: dict[str, IO[bytes]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        # Contexts and patterns: in order of appearance, then those of all processes in
        # lexicographic order, as in memory, and where the former are among them.
        self._known: dict[str, np.ndarray] = {}
        self._keys: dict[str, np.ndarray] = {}
        self._ranks: dict[str, np.ndarray] = {}

    def trends(
        self, model: TeamModel, whole: DemonstrationsFile, own: DemonstrationsFile
    ) -> dict[str, Trend]:
        """One pass that keeps the columns of all agents; the regression of each one's.

        Args:
            model: The model, its priors as they were given.
            whole: The file.
            own: The part of this process.
        """
        families = {
            agent: family for agent in whole.agents if (family := model.emission(agent)) is not None
        }

        def keep() -> np.ndarray:
            for agent, family in families.items():
                seen = observed(family, whole.first, agent)
                self._sizes[agent] = seen.inputs.shape[1], seen.values.shape[1]
                self._numbers[agent] = self._file()
            for part in own:
                for agent, family in families.items():
                    seen = observed(family, part, agent)
                    # A step that says nothing has no covariates either.
                    inputs = np.full(seen.inputs.shape, np.nan)
                    inputs[seen.rows] = seen.inputs[seen.rows]
                    np.concatenate([inputs, seen.values], axis=1).tofile(self._numbers[agent])
            return np.zeros(0)

        gather(self._processes, keep)
        return {
            agent: trend_of(
                partial(self._parts, agent), self._sizes[agent], family.intercept, self._of_all
            )
            for agent, family in families.items()
        }

    def _file(self) -> IO[bytes]:
        return self._files.enter_context(tempfile.TemporaryFile())

    def _of_all(self, work: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """The sums over all processes of what each one's work comes to."""
        sums = add_up(self._processes, lambda: {str(k): one for k, one in enumerate(work())})
        return tuple(sums.values())

    def _parts(self, agent: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Covariates and columns of the steps that say something, from the first on."""
        scratch, (p, d) = self._numbers[agent], self._sizes[agent]
        scratch.seek(0)
        while len(numbers := np.fromfile(scratch, np.float64, _CHUNK * (p + d))):
            steps = numbers.reshape(-1, p + d)
            steps = steps[np.isfinite(steps[:, :p]).all(1)]
            yield steps[:, :p], steps[:, p:]

    def begin(self, bound: BoundModel) -> None:
        """No groups yet; of a model on some episodes."""
        for agent, channel in bound.channels.items():
            self._groups[agent] = self._file()
            self._known[agent] = _keys(channel, groups_of(channel))[:0]

    def write(self, bound: BoundModel) -> None:
        """Add the groups of a part."""
        for agent, channel in bound.channels.items():
            groups = groups_of(channel)
            keys, known = _keys(channel, groups), self._known[agent]
            number = match_rows(known, keys)
            new = number < 0
            number[new] = len(known) + np.arange(new.sum())
            self._known[agent] = np.concatenate([known, keys[new]])
            np.append(number, -1)[groups.number].astype(np.int32).tofile(self._groups[agent])

    def agree(self) -> None:
        """Number the groups of all processes."""
        for agent, known in self._known.items():
            of_each = gather(self._processes, partial(np.asarray, known))
            before = sum(len(one) for one in of_each[: self._processes.own])
            self._keys[agent], ranks = unique_rows(np.concatenate(of_each))
            self._ranks[agent] = ranks[before : before + len(known)]

    def contexts(self) -> dict[str, Int[np.ndarray, "contexts parents"]]:
        """The contexts of every channel, in lexicographic order."""
        return {
            f"emission_{agent}": unique_rows(keys[:, : keys.shape[1] - self._sizes[agent][1]])[0]
            for agent, keys in self._keys.items()
        }

    def sources(
        self, bound: BoundModel, lengths: Int[np.ndarray, " episodes"], begin: int
    ) -> dict[str, ChannelSource]:
        """The channels, of which batches are read.

        Args:
            bound: The model with the contexts of all episodes.
            lengths: Steps of this process's episodes.
            begin: The first of these.
        """
        return {
            agent: self._source(bound.channels[agent], agent, lengths, begin)
            for agent in self._groups
        }

    def _source(
        self, channel: Channel, agent: str, lengths: Int[np.ndarray, " episodes"], begin: int
    ) -> ChannelSource:
        p, d = self._sizes[agent]
        keys = self._keys[agent]
        ranks, ends = np.append(self._ranks[agent], -1), np.cumsum(lengths)
        numbers, groups = self._numbers[agent], self._groups[agent]

        def cells_of_own() -> tuple[np.ndarray, ...]:
            seen = (np.isfinite(y).sum(0) for _, y in self._parts(agent))
            return (sum(seen, np.zeros(d, np.int64)),)

        def read(chosen: Int[np.ndarray, " chosen"]) -> ChannelRows:
            own = chosen - begin
            codes = _read_runs(groups, np.int32, ends, lengths, own, 1)
            values = _read_runs(numbers, np.float64, ends, lengths, own, p + d)
            values = values.reshape(-1, p + d)
            return ChannelRows(ranks[codes], values[:, :p], values[:, p:])

        (cells,) = self._of_all(cells_of_own)
        context = match_rows(channel.visited, keys[:, : keys.shape[1] - d])
        seen = keys[:, keys.shape[1] - d :].astype(np.float64)
        return ChannelSource(channel, channel.units(), context, seen, cells.astype(np.int64), read)


def _keys(channel: Channel, groups: Groups) -> Int[np.ndarray, "groups key"]:
    """The context and the pattern of every group of steps."""
    return np.concatenate([channel.contexts[groups.context], groups.seen], axis=1)


class _Found(NamedTuple):
    """What a process finds in its own part of a file; contexts are numbered as they appear.

    Attributes:
        contexts: Those of every table.
        labelled: As in `Data`.
        uses: As in `Data`.
        summed: As in `Data`.
        extremes: As in `Data`.
        lengths: Steps of its episodes.
        digests: Checksums of its episodes, and of their ids before them.
        excerpt: Some of its episodes.
        log_evidence: As in `Streamed`.
    """

    contexts: dict[str, Int[np.ndarray, "contexts variables"]]
    labelled: dict[str, Float[np.ndarray, "..."]]
    uses: dict[str, OpenUses]
    summed: dict[str, Int[np.ndarray, "sums actions"]]
    extremes: dict[str, Extremes]
    lengths: Int[np.ndarray, " episodes"]
    digests: bytes
    excerpt: Excerpt
    log_evidence: float


def _pass(
    model: TeamModel,
    file: DemonstrationsFile,
    check: Callable[[BoundModel], float],
    scratch: IO[bytes],
    weights: _ScratchWeights,
    channels: _ScratchChannels,
    others: Int[np.ndarray, " some"] | None,
) -> _Found:
    """Pass over a file or a part of one, which may have no episodes; `others` are shown too."""
    first = bind(model, file.first)
    contexts = {name: table.contexts.rows[:0] for name, table in first.tables.items()}
    channels.begin(first)
    labelled: dict[str, np.ndarray] = {}
    uses = dict.fromkeys(file.agents, OpenUses(None, None, None))
    summed = {agent: rows[:0] for agent, rows in summed_rows(first).items()}
    of_steps = dict.fromkeys(file.agents, Extremes())
    lengths: list[np.ndarray] = []
    digests: list[bytes] = []
    excerpt = Excerpt(file.num_latents, others)
    log_evidence = 0.0
    for part in file:
        bound = bind(model, part)
        log_evidence += check(bound)
        numbers = {}
        for name, table in bound.tables.items():
            known = contexts[name]
            found = match_rows(known, table.contexts.rows)
            new = found < 0
            found[new] = len(known) + np.arange(new.sum())
            numbers[name] = found
            contexts[name] = np.concatenate([known, table.contexts.rows[new]])
        sizes = num_contexts(bound)
        for name, counts in labelled_counts(bound, sizes).items():
            labelled[name] = _added(labelled.get(name), counts, numbers[name])
        for agent, found_uses in open_uses(bound, sizes).items():
            uses[agent] = OpenUses(
                *(
                    was if more is None else _added(was, more, numbers[name])
                    for was, more, name in zip(
                        uses[agent], found_uses, bound.sites(agent), strict=True
                    )
                )
            )
        again = replace(bound, rows=renumbered(bound, numbers))
        for agent, rows in summed_rows(again).items():
            known = summed[agent]
            summed[agent] = np.concatenate([known, rows[match_rows(known, rows) < 0]])
            own, now = of_steps[agent], extremes(bound, agent)
            of_steps[agent] = Extremes(own.sums or now.sums, min(own.log_weight, now.log_weight))
        step_columns(again, summed).tofile(scratch)
        weights.write(part, int(sum(one.sum() for one in lengths)))
        channels.write(bound)
        lengths.append(part.episode_lengths)
        digests.append(_digests(part))
        excerpt.look_at(part)
    return _Found(
        contexts,
        labelled,
        uses,
        summed,
        of_steps,
        np.concatenate([np.zeros(0, np.int64), *lengths]),
        b"".join(digests),
        excerpt,
        log_evidence,
    )


def _digests(part: Demonstrations) -> bytes:
    """A checksum of every episode: however a file is cut into parts, its episodes have the same."""
    columns = [*part.state_variables.values(), *part.actions.T, *part.latents.T, *part.present.T]
    rows = np.stack([column.astype(np.int64) for column in columns], axis=1)
    numbers = [*part.latent_weights.values(), *part.continuous.values()]
    weights = [np.ascontiguousarray(given) for given in numbers]
    found = []
    ends = np.cumsum(part.episode_lengths).tolist()
    for name, first, end in zip(part.episode_ids.tolist(), [0, *ends], ends, strict=False):
        digest = hashlib.blake2b(rows[first:end].data, digest_size=_DIGEST)
        for given in weights:
            digest.update(given[first:end].data)
        found += [_digest_of_id(name), digest.digest()]
    return b"".join(found)


def _positioned(digests: bytes, begin: int) -> UInt[np.ndarray, "1 parts"]:
    """A sum of the checksums of episodes that tells their order, modulo 2^64.

    It adds up over processes, so that it does not depend on who has which episodes.
    """
    of_ids_and_episodes = np.frombuffer(digests, np.uint64).reshape(-1, 2, _DIGEST // 8)
    place = np.arange(begin, begin + len(of_ids_and_episodes), dtype=np.uint64)
    weights = 2 * place + 1
    return np.sum(of_ids_and_episodes[:, 1] * weights[:, None], axis=0, keepdims=True)


def _digest_of_id(name: Any) -> bytes:
    return hashlib.blake2b(repr(name).encode(), digest_size=_DIGEST).digest()


def _refuse_twice(own: DemonstrationsFile, found: _Found, processes: Processes) -> None:
    """Refuse an episode id that two processes have found.

    Raises:
        ValueError: Naming both files.
    """
    digests = np.concatenate(
        gather(processes, lambda: np.frombuffer(found.digests, f"S{_DIGEST}")[::2])
    )
    ids, counts = np.unique(digests, return_counts=True)
    if not np.any(counts > 1):
        return
    again = ids[np.argmax(counts > 1)]

    def place() -> bytes:
        for file, _, runs in runs_of(own.source, [EPISODE], own.reading):
            for one in runs.new_ids:
                if np.bytes_(_digest_of_id(one)) == again:
                    return f"{file.path}: episode: {one!r}".encode()
        return b""

    places = [one.decode() for one in gather_bytes(processes, place) if one]
    other = places[1].split(": episode: ")[0]
    raise ValueError(
        f"{places[0]} returns in {other}; the rows of an episode must be contiguous, and "
        "ids_by_file=True takes ids to count within their file only"
    )


def _agreed(
    model: TeamModel,
    file: DemonstrationsFile,
    check: Callable[[BoundModel], float],
    scratch: IO[bytes],
    weights: _ScratchWeights,
    channels: _ScratchChannels,
    batch_size: int,
    processes: Processes,
) -> Streamed:
    """The pass over a file, and what processes tell each other afterwards."""
    several = processes.number > 1
    own = file.shard(*processes) if several else file
    trends: dict[str, Trend] = {}
    sampled, before = None, 0
    if model.emissions is not None:
        trends = channels.trends(model, file, own)
        model = model.resolved(file.first, trends)
        sizes = gather(processes, lambda: np.array([[own.num_episodes, own.num_steps]]))
        before = int(sum(one[0, 0] for one in sizes[: processes.own]))
        episodes, steps = np.sum(sizes, axis=(0, 1)).tolist()
        sampled = sampled_episodes(episodes, steps, batch_size)
    passed: list[_Found] = []

    def lengths_of_own() -> Int[np.ndarray, " episodes"]:
        others = None if sampled is None else sampled - before
        passed.append(_pass(model, own, check, scratch, weights, channels, others))
        return passed[0].lengths

    of_all = gather(processes, lengths_of_own)
    (found,), lengths = passed, np.concatenate(of_all)
    begin = int(sum(len(one) for one in of_all[: processes.own]))
    ordered, ranks = _in_order(found.contexts, processes)
    channels.agree()
    parts = found.excerpt.parts
    if several:
        parts = _shown_by_all(file, found.excerpt, begin, sampled, processes)
    units = {agent: trend.units for agent, trend in trends.items()}
    few = in_units(bind(model, concatenate(parts)), units)
    bound = with_contexts(few, ordered | channels.contexts(), units)
    of_agents = {agent: bound.sites(agent) for agent in bound.demos.agents}
    sums = add_up(processes, partial(_counts_of_own, bound, found, ranks))
    ends = np.array([[one.sums, one.log_weight] for one in found.extremes.values()])
    of_steps = np.stack(gather(processes, lambda: ends[None]))[:, 0]
    own_sum = _positioned(found.digests, begin)
    checksum = np.sum(gather(processes, lambda: own_sum), axis=0, dtype=np.uint64)
    if several:
        _refuse_twice(own, found, processes)
    read_own = _reader(scratch, found.lengths, list(of_agents.values()), ranks)
    weights_of_own = weights.reader(found.lengths)
    data = Data(
        bound=bound,
        lengths=lengths,
        read=lambda chosen: read_own(chosen - begin),
        labelled={name: sums[f"labelled {name}"] for name in bound.learned},
        uses={
            agent: OpenUses(*(sums.get(f"uses {place} {agent}") for place in range(len(names))))
            for agent, names in of_agents.items()
        },
        summed={
            agent: ranks[transition][rows] if len(rows) else rows
            for (agent, (_, transition, _)), rows in zip(
                of_agents.items(), found.summed.values(), strict=True
            )
        },
        weights=lambda chosen: weights_of_own(chosen - begin),
        extremes={
            agent: Extremes(bool(sums_of.any()), float(least.min()))
            for agent, (sums_of, least) in zip(of_agents, of_steps.T.swapaxes(0, 1), strict=True)
        },
        own=(begin, begin + len(found.lengths)),
        processes=processes,
        channels=channels.sources(bound, found.lengths, begin),
        sample=few if trends else None,
    )
    return Streamed(data, float(sums["log evidence"]), checksum.tobytes().hex())


def _in_order(
    contexts: dict[str, Int[np.ndarray, "contexts variables"]], processes: Processes
) -> tuple[dict[str, Int[np.ndarray, "_ variables"]], dict[str, Int[np.ndarray, " contexts"]]]:
    """The contexts of all processes, in lexicographic order; where the own ones are among them."""
    ordered, ranks = {}, {}
    for name, rows in contexts.items():
        of_each = gather(processes, partial(contexts.__getitem__, name))
        first = sum(len(one) for one in of_each[: processes.own])
        ordered[name], places = unique_rows(np.concatenate(of_each))
        ranks[name] = places[first : first + len(rows)]
    return ordered, ranks


def _counts_of_own(
    bound: BoundModel, found: _Found, ranks: dict[str, Int[np.ndarray, " contexts"]]
) -> dict[str, np.ndarray]:
    """What a process has counted, its rows where all processes have them."""

    def ranked(like: np.ndarray, counts: np.ndarray | None, name: str) -> np.ndarray:
        nothing = np.zeros(like.shape, like.dtype)
        return nothing if counts is None else _added(nothing, counts, ranks[name])

    sizes = num_contexts(bound)
    counts = {
        f"labelled {name}": ranked(like, found.labelled.get(name), name)
        for name, like in labelled_counts(bound, sizes).items()
    }
    for agent, of_excerpt in open_uses(bound, sizes).items():
        uses = zip(of_excerpt, found.uses[agent], bound.sites(agent), strict=True)
        for place, (like, n, name) in enumerate(uses):
            if like is not None:
                counts[f"uses {place} {agent}"] = ranked(like, n, name)
    return counts | {"log evidence": np.array(found.log_evidence)}


def _shown_by_all(
    file: DemonstrationsFile,
    own: Excerpt,
    begin: int,
    sampled: Int[np.ndarray, " some"] | None,
    processes: Processes,
) -> list[Demonstrations]:
    """The excerpt of the whole file, of those of its parts.

    Args:
        file: The file.
        own: The excerpt of this process's part.
        begin: The first episode of this part.
        sampled: Episodes that are to be among them.
        processes: Who shares the work.
    """
    shown = gather_bytes(processes, lambda: _written(own.parts))
    numbers = gather(processes, lambda: begin + np.array(own.numbers, np.int64))
    others = np.zeros(0, np.int64) if sampled is None else sampled
    excerpt = Excerpt(file.num_latents, np.flatnonzero(np.isin(np.concatenate(numbers), others)))
    for one in shown:
        for part in _read(one):
            excerpt.look_at(part)
    return excerpt.parts


def _written(parts: list[Demonstrations]) -> bytes:
    """Demonstrations as bytes, none as no bytes."""
    from btil.demonstrations.formats import parquet

    with io.BytesIO() as handle:
        if parts:
            parquet.write(concatenate(parts), handle)
        return handle.getvalue()


def _read(written: bytes) -> list[Demonstrations]:
    from btil.demonstrations.formats import parquet
    from btil.demonstrations.tables import from_columns

    if not written:
        return []
    columns, record = parquet.read(io.BytesIO(written))
    return [from_columns(columns, record, {})[0]]


def _added(
    total: np.ndarray | None, counts: np.ndarray, numbers: Int[np.ndarray, " contexts"]
) -> np.ndarray:
    """Counts of some contexts added to those of more, which grow where numbers are new."""
    known = 0 if total is None else len(total)
    size = max(known, int(numbers.max(initial=-1)) + 1, len(counts) if total is None else 0)
    grown = np.zeros((size, *counts.shape[1:]), counts.dtype)
    if total is not None:
        grown[:known] = total
    grown[numbers[: len(counts)]] += counts
    return grown


def _reader(
    scratch: IO[bytes],
    lengths: Int[np.ndarray, " episodes"],
    sites: list[tuple[str, str, str]],
    ranks: dict[str, Int[np.ndarray, " contexts"]],
) -> Callable[[Int[np.ndarray, " chosen"]], Steps]:
    """Reads the steps of some episodes, with the final numbers of their contexts."""
    ends = np.cumsum(lengths)
    width = COLUMNS * len(sites)
    tables = {name: rank.astype(np.int32) for name, rank in ranks.items()}

    def read(chosen: Int[np.ndarray, " chosen"]) -> Steps:
        found = _read_runs(scratch, np.int32, ends, lengths, chosen, width)
        columns = found.reshape(-1, COLUMNS, len(sites))
        for position, (policy, transition, initial) in enumerate(sites):
            how, arrival = arrivals(columns, position), columns[:, ARRIVAL, position]
            arrival[how.begins] = -1 - tables[initial][-1 - arrival[how.begins]]
            arrival[how.moved] = tables[transition][arrival[how.moved]]
            of_policy = columns[:, POLICY, position]
            of_policy[how.there] = tables[policy][of_policy[how.there]]
        return columns

    return read
