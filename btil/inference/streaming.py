"""Fits to files larger than memory: one pass finds what occurs, batches come from a scratch file.

The pass takes the file part by part. Contexts get numbers as they appear, and where each step
looks is written to a compact scratch file, 20 bytes per step and agent, from which the steps of
single episodes are read by their position. Weights of annotations have files of their own.

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
from btil.inference.mean_field import Extremes, extremes
from btil.inference.processes import ALONE, Processes, add_up, gather, gather_bytes
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
    Steps,
    Weights,
    arrivals,
    step_columns,
    summed_rows,
)
from btil.messages.layout import log_rows
from btil.models.contexts import match_rows, unique_rows
from btil.models.team import BoundModel, TeamModel, bind, renumbered, with_contexts

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
        processes: Who shares the work.

    Raises:
        ValueError: If a part of the file is refused.
        RuntimeError: If another process refused its part.
    """
    with ExitStack() as files:
        scratch = files.enter_context(tempfile.TemporaryFile())
        weights = _ScratchWeights(files)
        yield _agreed(model, file, check, scratch, weights, processes)


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


class _Excerpt:
    """The first episode, and those in which an agent's latent is labelled for the first time.

    They tell what all labels tell about which latents have a name.
    """

    def __init__(self, file: DemonstrationsFile) -> None:
        self.labelled = [np.zeros(size, bool) for size in file.num_latents]
        self.parts: list[Demonstrations] = []

    def look_at(self, part: Demonstrations) -> None:
        """Keep what the part has of them."""
        chosen = set() if self.parts else {0}
        for seen, labels in zip(self.labelled, part.latents.T, strict=True):
            latents, rows = np.unique(labels, return_index=True)
            new = (latents >= 0) & ~seen[latents]
            seen[latents[new]] = True
            episodes = np.searchsorted(part.episode_starts, rows[new], side="right") - 1
            chosen.update(episodes.tolist())
        if chosen:
            self.parts.append(part.select(sorted(chosen)))


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
    excerpt: list[Demonstrations]
    log_evidence: float


def _pass(
    model: TeamModel,
    file: DemonstrationsFile,
    check: Callable[[BoundModel], float],
    scratch: IO[bytes],
    weights: _ScratchWeights,
) -> _Found:
    """Pass over a file or a part of one, which may have no episodes."""
    first = bind(model, file.first)
    contexts = {name: table.contexts.rows[:0] for name, table in first.tables.items()}
    labelled: dict[str, np.ndarray] = {}
    uses = dict.fromkeys(file.agents, OpenUses(None, None, None))
    summed = {agent: rows[:0] for agent, rows in summed_rows(first).items()}
    of_steps = dict.fromkeys(file.agents, Extremes())
    lengths: list[np.ndarray] = []
    digests: list[bytes] = []
    excerpt = _Excerpt(file)
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
                        uses[agent], found_uses, agent_sites(bound, agent), strict=True
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
        excerpt.parts,
        log_evidence,
    )


def _digests(part: Demonstrations) -> bytes:
    """A checksum of every episode: however a file is cut into parts, its episodes have the same."""
    columns = [*part.state_variables.values(), *part.actions.T, *part.latents.T, *part.present.T]
    rows = np.stack([column.astype(np.int64) for column in columns], axis=1)
    weights = [np.ascontiguousarray(given) for given in part.latent_weights.values()]
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
    processes: Processes,
) -> Streamed:
    """The pass over a file, and what processes tell each other afterwards."""
    several = processes.number > 1
    passed: list[_Found] = []

    def lengths_of_own() -> Int[np.ndarray, " episodes"]:
        own = file.shard(*processes) if several else file
        passed.append(_pass(model, own, check, scratch, weights))
        return passed[0].lengths

    of_all = gather(processes, lengths_of_own)
    (found,), lengths = passed, np.concatenate(of_all)
    begin = int(sum(len(one) for one in of_all[: processes.own]))
    # Rows of a site are in lexicographic order, not in that of appearance.
    ordered, ranks = {}, {}
    for name, rows in found.contexts.items():
        of_each = gather(processes, partial(found.contexts.__getitem__, name))
        before = sum(len(one) for one in of_each[: processes.own])
        ordered[name], places = unique_rows(np.concatenate(of_each))
        ranks[name] = places[before : before + len(rows)]
    parts = found.excerpt
    if several:
        shown = gather_bytes(processes, lambda: _written(found.excerpt))
        excerpt = _Excerpt(file)
        for one in shown:
            for part in _read(one):
                excerpt.look_at(part)
        parts = excerpt.parts
    bound = with_contexts(bind(model, concatenate(parts)), ordered)
    of_agents = {agent: agent_sites(bound, agent) for agent in bound.demos.agents}

    def ranked(like: np.ndarray, counts: np.ndarray | None, name: str) -> np.ndarray:
        nothing = np.zeros(like.shape, like.dtype)
        return nothing if counts is None else _added(nothing, counts, ranks[name])

    def counts_of_own() -> dict[str, np.ndarray]:
        sizes = num_contexts(bound)
        counts = {
            f"labelled {name}": ranked(like, found.labelled.get(name), name)
            for name, like in labelled_counts(bound, sizes).items()
        }
        for agent, of_excerpt in open_uses(bound, sizes).items():
            own = zip(of_excerpt, found.uses[agent], of_agents[agent], strict=True)
            for place, (like, n, name) in enumerate(own):
                if like is not None:
                    counts[f"uses {place} {agent}"] = ranked(like, n, name)
        return counts | {"log evidence": np.array(found.log_evidence)}

    sums = add_up(processes, counts_of_own)
    ends = np.array([[one.sums, one.log_weight] for one in found.extremes.values()])
    of_steps = np.stack(gather(processes, lambda: ends[None]))[:, 0]
    own_sum = _positioned(found.digests, begin)
    checksum = np.sum(gather(processes, lambda: own_sum), axis=0, dtype=np.uint64)
    if several:
        _refuse_twice(file.shard(*processes), found, processes)
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
    )
    return Streamed(data, float(sums["log evidence"]), checksum.tobytes().hex())


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
