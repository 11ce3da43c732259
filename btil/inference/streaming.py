"""Fits to files larger than memory: one pass finds what occurs, batches come from a scratch file.

The pass takes the file part by part. Contexts get numbers as they appear, and where each step
looks is written to a compact scratch file, 20 bytes per step and agent, from which the steps of
single episodes are read by their position. Weights of annotations have files of their own, and so
have continuous columns, which an earlier pass keeps: what a prior leaves open is taken from all of
them.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Int

from btil.demonstrations import Demonstrations, concatenate
from btil.demonstrations.stream import DemonstrationsFile
from btil.inference.channel_batches import ChannelRows, ChannelSource
from btil.inference.mean_field import Extremes, extremes
from btil.inference.starting import (
    OpenUses,
    agent_sites,
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
from btil.models.emission import Channel, Trend, groups_of, observed, trend_of
from btil.models.team import BoundModel, TeamModel, bind, renumbered, with_contexts

# Steps of which the columns are in memory at once.
_CHUNK = 1 << 16


class Streamed(NamedTuple):
    """What the pass over a file leaves.

    Attributes:
        data: The episodes, on disk.
        log_evidence: Sum of what `check` returned for the parts.
        checksum: Of the steps, in the order of the file.
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
) -> Iterator[Streamed]:
    """Make the episodes of a file ready to be drawn from, for as long as the block lasts.

    The scratch file is in the system's temporary folder (the environment variable TMPDIR names
    another). It has no name there, so that nothing is left of it, however the process ends.

    Args:
        model: The model.
        file: The file.
        check: Refuses a part that is impossible under the model; returns the log evidence where
            nothing is learned.
        batch_size: Episodes of a batch: with channels a fit is begun on so many at least.

    Raises:
        ValueError: If a part of the file is refused.
    """
    with ExitStack() as files:
        scratch = files.enter_context(tempfile.TemporaryFile())
        weights, channels = _ScratchWeights(files), _ScratchChannels(files)
        yield _pass(model, file, check, scratch, weights, channels, batch_size)


class _ScratchWeights:
    """Log weights of annotations, a scratch file for every agent that has such.

    Args:
        files: Closes the files.
    """

    def __init__(self, files: ExitStack) -> None:
        self._files = files
        self._scratch: dict[str, IO[bytes]] = {}
        self._num_latents: dict[str, int] = {}

    def write(self, part: Demonstrations, before: int, checksum: Any) -> None:
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
            checksum.update(np.ascontiguousarray(logs).data)

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

    Args:
        files: Closes the files.
    """

    def __init__(self, files: ExitStack) -> None:
        self._files = files
        self._numbers: dict[str, IO[bytes]] = {}
        self._groups: dict[str, IO[bytes]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        # Contexts and patterns in order of appearance.
        self._known: dict[str, np.ndarray] = {}

    def trends(self, model: TeamModel, file: DemonstrationsFile) -> dict[str, Trend]:
        """One pass that keeps the columns of all agents; the regression of each one's."""
        found = {}
        families = {agent: model.emission(agent) for agent in file.agents}
        for part in file:
            for agent, family in families.items():
                if family is None:
                    continue
                if agent not in self._numbers:
                    own = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                    self._numbers[agent] = own
                seen = observed(family, part, agent)
                self._sizes[agent] = seen.inputs.shape[1], seen.values.shape[1]
                # A step that says nothing has no covariates either.
                inputs = np.full(seen.inputs.shape, np.nan)
                inputs[seen.rows] = seen.inputs[seen.rows]
                np.concatenate([inputs, seen.values], axis=1).tofile(self._numbers[agent])
        for agent, family in families.items():
            if family is not None:
                parts = partial(self._parts, agent)
                found[agent] = trend_of(parts, self._sizes[agent], family.intercept)
        return found

    def _parts(self, agent: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Covariates and columns of the steps that say something, from the first on."""
        scratch, (p, d) = self._numbers[agent], self._sizes[agent]
        scratch.seek(0)
        while len(numbers := np.fromfile(scratch, np.float64, _CHUNK * (p + d))):
            steps = numbers.reshape(-1, p + d)
            steps = steps[np.isfinite(steps[:, :p]).all(1)]
            yield steps[:, :p], steps[:, p:]

    def write(self, bound: BoundModel, checksum: Any) -> None:
        """Add the groups of a part."""
        for agent, channel in bound.channels.items():
            if agent not in self._groups:
                own = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                self._groups[agent] = own
            groups = groups_of(channel)
            keys = np.concatenate([channel.contexts[groups.context], groups.seen], axis=1)
            known = self._known.get(agent, keys[:0])
            number = match_rows(known, keys)
            new = number < 0
            number[new] = len(known) + np.arange(new.sum())
            self._known[agent] = np.concatenate([known, keys[new]])
            codes = np.append(number, -1)[groups.number].astype(np.int32)
            codes.tofile(self._groups[agent])
            said = groups.number >= 0
            checksum.update(np.ascontiguousarray(channel.observed.inputs[said]).data)
            checksum.update(np.ascontiguousarray(channel.observed.values[said]).data)
            checksum.update(codes.data)

    def contexts(self) -> dict[str, Int[np.ndarray, "contexts parents"]]:
        """The contexts of every channel, in lexicographic order."""
        return {
            f"emission_{agent}": unique_rows(keys[:, : keys.shape[1] - self._sizes[agent][1]])[0]
            for agent, keys in self._known.items()
        }

    def sources(
        self, bound: BoundModel, lengths: Int[np.ndarray, " episodes"]
    ) -> dict[str, ChannelSource]:
        """The channels, of which batches are read."""
        return {
            agent: self._source(bound.channels[agent], agent, lengths) for agent in self._groups
        }

    def _source(
        self, channel: Channel, agent: str, lengths: Int[np.ndarray, " episodes"]
    ) -> ChannelSource:
        p, d = self._sizes[agent]
        # In lexicographic order, as in memory.
        keys, rank = unique_rows(self._known[agent])
        ranks, ends = np.append(rank, -1), np.cumsum(lengths)
        numbers, groups = self._numbers[agent], self._groups[agent]
        cells = sum((np.isfinite(y).sum(0) for _, y in self._parts(agent)), np.zeros(d, np.int64))

        def read(chosen: Int[np.ndarray, " chosen"]) -> ChannelRows:
            codes = _read_runs(groups, np.int32, ends, lengths, chosen, 1)
            values = _read_runs(numbers, np.float64, ends, lengths, chosen, p + d)
            values = values.reshape(-1, p + d)
            return ChannelRows(ranks[codes], values[:, :p], values[:, p:])

        context = match_rows(channel.visited, keys[:, : keys.shape[1] - d])
        seen = keys[:, keys.shape[1] - d :].astype(np.float64)
        return ChannelSource(channel, channel.units(), context, seen, cells, read)


def _pass(
    model: TeamModel,
    file: DemonstrationsFile,
    check: Callable[[BoundModel], float],
    scratch: IO[bytes],
    weights: _ScratchWeights,
    channels: _ScratchChannels,
    batch_size: int,
) -> Streamed:
    trends: dict[str, Trend] = {}
    others = None
    if model.emissions is not None:
        trends = channels.trends(model, file)
        model = model.resolved(file.first, trends)
        others = sampled_episodes(file.num_episodes, file.num_steps, batch_size)
    summed: dict[str, np.ndarray] = {}
    of_steps = dict.fromkeys(file.agents, Extremes())
    contexts: dict[str, np.ndarray] = {}
    labelled: dict[str, np.ndarray] = {}
    uses: dict[str, OpenUses] = {}
    lengths: list[np.ndarray] = []
    excerpt = Excerpt(file.num_latents, others)
    log_evidence = 0.0
    checksum = hashlib.sha256()
    for part in file:
        bound = bind(model, part)
        log_evidence += check(bound)
        numbers = {}
        for name, table in bound.tables.items():
            known = contexts.get(name, table.contexts.rows[:0])
            found = match_rows(known, table.contexts.rows)
            new = found < 0
            found[new] = len(known) + np.arange(new.sum())
            numbers[name] = found
            contexts[name] = np.concatenate([known, table.contexts.rows[new]])
        sizes = num_contexts(bound)
        for name, counts in labelled_counts(bound, sizes).items():
            labelled[name] = _added(labelled.get(name), counts, numbers[name])
        for agent, found_uses in open_uses(bound, sizes).items():
            before = uses.get(agent, OpenUses(None, None, None))
            uses[agent] = OpenUses(
                *(
                    was if more is None else _added(was, more, numbers[name])
                    for was, more, name in zip(
                        before, found_uses, agent_sites(bound, agent), strict=True
                    )
                )
            )
        again = replace(bound, rows=renumbered(bound, numbers))
        for agent, rows in summed_rows(again).items():
            known = summed.get(agent, rows[:0])
            summed[agent] = np.concatenate([known, rows[match_rows(known, rows) < 0]])
            own, now = of_steps[agent], extremes(bound, agent)
            of_steps[agent] = Extremes(own.sums or now.sums, min(own.log_weight, now.log_weight))
        steps = step_columns(again, summed)
        checksum.update(steps.data)
        steps.tofile(scratch)
        weights.write(part, int(sum(one.sum() for one in lengths)), checksum)
        channels.write(bound, checksum)
        lengths.append(part.episode_lengths)
        excerpt.look_at(part)
    # Rows of a site are in lexicographic order, not in that of appearance.
    ordered, ranks = {}, {}
    for name, rows in contexts.items():
        ordered[name], ranks[name] = unique_rows(rows)
    units = {agent: trend.units for agent, trend in trends.items()}
    few = in_units(bind(model, concatenate(excerpt.parts)), units)
    bound = with_contexts(few, ordered | channels.contexts(), units)
    of_agents = {agent: agent_sites(bound, agent) for agent in bound.demos.agents}
    data = Data(
        bound=bound,
        lengths=np.concatenate(lengths),
        read=_reader(scratch, np.concatenate(lengths), list(of_agents.values()), ranks),
        labelled={name: _added(None, counts, ranks[name]) for name, counts in labelled.items()},
        uses={
            agent: OpenUses(
                *(
                    None if counts is None else _added(None, counts, ranks[name])
                    for counts, name in zip(uses[agent], names, strict=True)
                )
            )
            for agent, names in of_agents.items()
        },
        summed={
            agent: ranks[transition][rows] if len(rows) else rows
            for (agent, (_, transition, _)), rows in zip(
                of_agents.items(), summed.values(), strict=True
            )
        },
        weights=weights.reader(np.concatenate(lengths)),
        extremes=of_steps,
        channels=channels.sources(bound, np.concatenate(lengths)),
        sample=few if trends else None,
    )
    return Streamed(data, log_evidence, checksum.hexdigest())


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
