"""How long a table of a million steps takes to read and check, beside pandas alone.

Run it with `python benchmarks/read_demonstrations.py [steps] [repeats]`. All readers run in turn
within each repeat, so that a busy machine slows them all; the table shows medians in seconds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from timing import conditions

from btil.demonstrations import Demonstrations, read_demonstrations, write_demonstrations


def made_up_demonstrations(num_steps: int) -> Demonstrations:
    """Two agents, two state variables, episodes of up to 1,000 steps, one label in four steps."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, (num_steps, 2))
    return Demonstrations(
        states={
            "place": random.integers(0, 40_000, num_steps),
            "door": random.integers(0, 2, num_steps),
        },
        actions=random.integers(0, 6, (num_steps, 2)),
        latents=np.where(random.random((num_steps, 2)) < 0.25, labels, -1),
        episodes=np.arange(num_steps) // 1_000,
        agents=["alice", "bob"],
        state_names={"door": ["open", "shut"]},
        action_names=["up", "down", "left", "right", "stay", "interact"],
        latent_names=["fetch", "carry", "wait", "help", "leave"],
    )


def seconds(call: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(num_steps: int = 1_000_000, repeats: int = 5) -> None:
    """Write the table in every format, read it in every way, print the medians."""
    demos = made_up_demonstrations(num_steps)
    with tempfile.TemporaryDirectory() as folder:
        paths = {ending: Path(folder, f"table{ending}") for ending in (".csv", ".parquet", ".npz")}
        for path in paths.values():
            write_demonstrations(demos, path)
        calls: dict[str, Callable[[], Any]] = {
            **{f"btil {e}": lambda p=p: read_demonstrations(p) for e, p in paths.items()},
            "pandas.read_csv": lambda: pd.read_csv(paths[".csv"], skiprows=1),
            "pandas.read_parquet": lambda: pd.read_parquet(paths[".parquet"]),
        }
        for call in calls.values():
            call()  # imports and the disk's cache count for nobody
        times = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                times[name].append(seconds(call))
        sizes = {f"btil {e}": f"{p.stat().st_size / 1e6:.1f} MB" for e, p in paths.items()}
    print(f"{num_steps:,} steps, medians of {repeats} runs")
    for name, values in times.items():
        print(f"{name:20} {statistics.median(values):7.3f} s  {sizes.get(name, '')}".rstrip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=int, nargs="?", default=1_000_000)
    parser.add_argument("repeats", type=int, nargs="?", default=5)
    chosen = parser.parse_args()
    print(conditions("numpy", "pandas", "pyarrow"))
    main(chosen.steps, chosen.repeats)
