"""What a posterior says of files larger than memory: part by part, by one process or several.

Tables are written as they grow, and appear whole or not at all. Several processes of
`jax.distributed` take a part of the files each, and tell each other sums at the end.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.decoding import decoded_table
from btil.analysis.held_out import METRICS
from btil.analysis.metrics import hamming_distance
from btil.arguments import check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.stream import DemonstrationsFile
from btil.files import check_writable, replacing
from btil.inference.processes import ALONE, Processes, add_up, gather, present_processes
from btil.posterior.beliefs import Posterior
from btil.progress import progress_line

if TYPE_CHECKING:
    import pandas as pd


class FileScores(NamedTuple):
    """What was found in files.

    Attributes:
        num_episodes: Episodes.
        num_steps: Their steps.
        agents: The agents.
        share_labelled: Share of the steps that are labelled, per agent.
        metrics: Means over the episodes with labels of the agent, by metric and agent; NaN where
            there are none.
        log_likelihood: Sum over episodes of log p(actions, labels | states); NaN where it was not
            asked for.
    """

    num_episodes: int
    num_steps: int
    agents: tuple[str, ...]
    share_labelled: Float[np.ndarray, " agents"]
    metrics: dict[str, Float[np.ndarray, " agents"]]
    log_likelihood: float


def decode_file(
    posterior: Posterior,
    file: DemonstrationsFile,
    out: str | os.PathLike[str],
    *,
    smooth: bool = False,
    use_labels: bool = False,
    distributed: bool = False,
    progress: bool = True,
) -> FileScores:
    """Decode files part by part, and write a row per step to a Parquet table.

    Memory is that of a part, whatever the size of the files.

    Args:
        posterior: The posterior.
        file: What `open_demonstrations` opened.
        out: A `.parquet` file; with `distributed` a folder, in which every process writes a file.
        smooth: Whether to write the probability of every latent as well.
        use_labels: As in `posterior.decode`; no error is counted then.
        distributed: Whether the processes of `jax.distributed` each take a part of the files.
        progress: Whether to show a progress line.

    Returns:
        How well labelled steps are decoded, `metrics["viterbi_error"]`.

    Raises:
        ValueError: If a part does not fit the posterior, or the ending is another one.
        OSError: If the table cannot be written.

    Example:
        >>> days = btil.open_demonstrations("days")  # doctest: +SKIP
        >>> btil.analysis.decode_file(posterior, days, "decoded.parquet")  # doctest: +SKIP
    """

    def rows(part: Demonstrations) -> tuple["pd.DataFrame", dict[str, np.ndarray], float]:
        decoded = posterior.decode(part, use_labels)
        believed = posterior.smooth(part, use_labels) if smooth else None
        # Where labels were used there is nothing to be compared.
        truth = part.without_labels() if use_labels else part
        errors = {"viterbi_error": hamming_distance(truth, decoded)}
        return decoded_table(part, decoded, believed), errors, np.nan

    return _passed(posterior, file, out, rows, distributed, progress, "decode")


def score_file(
    posterior: Posterior,
    file: DemonstrationsFile,
    out: str | os.PathLike[str] | None = None,
    *,
    distributed: bool = False,
    progress: bool = True,
) -> FileScores:
    """Score a posterior on held-out files part by part, and write a row per episode.

    Args:
        posterior: The posterior, which has not seen them.
        file: What `open_demonstrations` opened.
        out: A `.parquet` file for the table of episodes, `episode`, `steps` and `log_likelihood`,
            log p(actions, labels | states); with `distributed` a folder. None: no table.
        distributed: As in `decode_file`.
        progress: Whether to show a progress line.

    Returns:
        Every metric of held-out episodes that `btil.compare` has, and the log likelihood.

    Raises:
        ValueError: As `decode_file`.
        OSError: As `decode_file`.

    Example:
        >>> scores = btil.analysis.score_file(posterior, days)  # doctest: +SKIP
        >>> scores.log_likelihood / scores.num_steps  # doctest: +SKIP
    """
    import pandas as pd

    def rows(part: Demonstrations) -> tuple[pd.DataFrame, dict[str, np.ndarray], float]:
        logs = posterior.log_likelihood(part)
        table = pd.DataFrame(
            {"episode": part.episode_ids, "steps": part.episode_lengths, "log_likelihood": logs}
        )
        found = {name: metric.function(part, posterior) for name, metric in METRICS.items()}
        return table, found, float(logs.sum())

    return _passed(posterior, file, out, rows, distributed, progress, "score")


def _passed(
    posterior: Posterior,
    file: DemonstrationsFile,
    out: str | os.PathLike[str] | None,
    rows: Callable[[Demonstrations], tuple["pd.DataFrame", dict[str, np.ndarray], float]],
    distributed: bool,
    progress: bool,
    description: str,
) -> FileScores:
    """Pass over files; write tables, and add up what is found."""
    check_values({"progress": progress})
    if not isinstance(file, DemonstrationsFile):
        raise ValueError(
            "file must be what open_demonstrations opened, got "
            f"{type(file).__name__}; posteriors take demonstrations in memory themselves"
        )
    processes = present_processes() if distributed else ALONE
    own = file.shard(*processes) if processes.number > 1 else file
    agents = len(file.agents)

    sums: dict[str, np.ndarray] = {
        name: np.zeros(()) for name in ("episodes", "steps", "log_likelihood")
    }
    sums["labelled"] = np.zeros(agents)

    def pass_over(stack: ExitStack) -> np.ndarray:
        write = stack.enter_context(_growing(out, distributed, processes))
        line = stack.enter_context(progress_line(own.num_steps, description, progress))
        for part in own:
            part = posterior.conformed(part)
            table, found, log_likelihood = rows(part)
            write(table)
            _add_part(sums, part, found, log_likelihood)
            line.update(part.num_steps)
        if not sums["steps"]:  # a process without episodes writes a table without rows
            table, found, _ = rows(posterior.conformed(file.first))
            write(table.iloc[:0])
            for name in found:
                sums[f"sum {name}"] = sums[f"of {name}"] = np.zeros(agents)
        return np.zeros(0)

    with ExitStack() as stack:
        # Tables of all processes appear, or none.
        gather(processes, lambda: pass_over(stack))
    totals = add_up(processes, lambda: sums)
    return _scores(totals, file.agents)


def _add_part(
    sums: dict[str, np.ndarray],
    part: Demonstrations,
    found: Mapping[str, np.ndarray],
    log_likelihood: float,
) -> None:
    """Add what was found in a part: metrics by how many episodes they are a mean over."""
    labelled = part.latents >= 0
    in_episodes = np.add.reduceat(labelled, part.episode_starts, axis=0, dtype=np.int64)
    weights = (in_episodes > 0).sum(0)
    sums["episodes"] += part.num_episodes
    sums["steps"] += part.num_steps
    sums["log_likelihood"] += log_likelihood
    sums["labelled"] += labelled.sum(0)
    for name, values in found.items():
        counted = np.where(np.isnan(values), 0, weights)
        weighted = counted * np.nan_to_num(values)
        for key, more in ((f"sum {name}", weighted), (f"of {name}", counted)):
            sums[key] = sums.get(key, np.zeros(len(weights))) + more


def _scores(totals: Mapping[str, np.ndarray], agents: tuple[str, ...]) -> FileScores:
    steps = int(totals["steps"])
    names = [name.removeprefix("of ") for name in totals if name.startswith("of ")]
    with np.errstate(invalid="ignore"):
        metrics = {name: totals[f"sum {name}"] / totals[f"of {name}"] for name in names}
    return FileScores(
        int(totals["episodes"]),
        steps,
        agents,
        totals["labelled"] / steps,
        metrics,
        float(totals["log_likelihood"]),
    )


@contextmanager
def _growing(
    out: str | os.PathLike[str] | None, distributed: bool, processes: Processes
) -> Iterator[Callable[["pd.DataFrame"], Any]]:
    """A Parquet table that grows row group by row group; it appears if the block succeeds."""
    import pyarrow as pa
    from pyarrow import parquet

    if out is None:
        yield lambda table: None
        return
    path = Path(out)
    if distributed:
        path.mkdir(exist_ok=True)
        path = path / f"part-{processes.own:05d}-of-{processes.number:05d}.parquet"
    check_writable(path, (".parquet",))
    writer: parquet.ParquetWriter | None = None
    with replacing(path) as temporary:

        def write(table: "pd.DataFrame") -> None:
            nonlocal writer
            if writer is None:
                rows = pa.Table.from_pandas(table, preserve_index=False)
                writer = parquet.ParquetWriter(temporary, rows.schema)
            writer.write_table(pa.Table.from_pandas(table, writer.schema, preserve_index=False))

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()
