"""Learning by batches of episodes: its bound and time beside the full batch, and its memory.

Run it with `python benchmarks/stochastic.py [steps]`. First simulated Movers (a quarter of the
episodes labelled) are learned in memory, all at once and by batches of several sizes; bounds are
compared. Then a Parquet file of so many steps (10 million) is simulated part by part and learned
from by row groups, in a process of its own whose peak memory is told beside what the file would
take as `Demonstrations`. 10^8 steps want an hour, and 5 GB of disk.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from timing import conditions

import btil
from btil.demonstrations import Demonstrations

_EPISODES_PER_PART = 1_000
_BATCH = 500
_SOME_STEPS = 200_000


def simulated_parts(num_steps: int) -> Iterator[Demonstrations]:
    """Movers with the variables that its recommended model reads, every fourth episode labelled."""
    task = btil.domains.movers()
    done = part = 0
    while done < num_steps:
        demos = task.add_derived_variables(task.simulate(_EPISODES_PER_PART, seed=part))
        demos = demos.without_labels(np.arange(_EPISODES_PER_PART) % 4 > 0)
        yield demos.replace(episodes=demos.episodes + part * _EPISODES_PER_PART)
        done += demos.num_steps
        part += 1


def peak_memory() -> float:
    """The most memory that this process has had, in MB (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.split("VmHWM:")[1].split()[0]) / 1e3


def compare_bounds() -> None:
    """Full batch and batches on the same episodes in memory; of two runs the second is timed."""
    demos = btil.concatenate(list(simulated_parts(_SOME_STEPS)))
    model = btil.domains.movers().recommended_model()
    print(f"{demos.num_episodes:,} episodes, {demos.num_steps:,} steps in memory")
    whole = None
    for batch in (None, 20, 100, 500):
        for _ in range(2):
            begun = time.perf_counter()
            fitted = btil.fit(model, demos, progress=False, batch_size=batch)
            seconds = time.perf_counter() - begun
        whole = fitted.elbo if whole is None else whole
        gap = (fitted.elbo - whole) / abs(whole)
        name = "full batch" if batch is None else f"batches of {batch}"
        passes = f"{len(fitted.elbo_trace)} passes"
        print(f"{name:16} bound {fitted.elbo:.1f} ({gap:+.4%}), {passes:10} {seconds:6.1f} s")


def fit_file(path: str) -> None:
    """Learn from a file; what it took, on standard output."""
    begun = time.perf_counter()
    file = btil.open_demonstrations(path)
    model = btil.domains.movers().recommended_model()
    before = peak_memory()
    fitted = btil.fit(model, file, batch_size=_BATCH, progress=False)
    peak = peak_memory()
    columns = len(file.num_states) + 2 * file.num_agents
    size = file.num_steps * columns * np.dtype(np.int64).itemsize
    rows = sum(table.shape[0] for table in fitted.bound.learned.values())
    print(
        f"{file.num_episodes:,} episodes, {file.num_steps:,} steps, {rows:,} contexts, file of "
        f"{Path(path).stat().st_size / 1e6:,.0f} MB, {size / 1e6:,.0f} MB as demonstrations\n"
        f"peak memory {peak:,.0f} MB ({before:,.0f} MB before the fit), "
        f"{time.perf_counter() - begun:,.0f} s\n"
        f"bound {fitted.elbo:.1f} after {fitted.result.notes}: {fitted.reason}"
    )


def main(num_steps: int) -> None:
    """Compare the bounds; then make the file, and learn from it in another process."""
    compare_bounds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "movers.parquet")
        begun = time.perf_counter()
        btil.write_demonstrations(simulated_parts(num_steps), path)
        print(f"simulated and written in {time.perf_counter() - begun:,.0f} s", flush=True)
        subprocess.run([sys.executable, __file__, "--fit", str(path)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--fit", metavar="FILE", help="only learn from a file that is there")
    chosen = parser.parse_args()
    if chosen.fit is not None:
        fit_file(chosen.fit)
    else:
        print(conditions("jax", "numpy", "pyarrow"))
        main(chosen.steps)
