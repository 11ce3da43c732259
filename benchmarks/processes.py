"""Learning from a folder by 1, 2 and 4 processes on this machine: seconds, memory, bytes sent.

Run it with `python benchmarks/processes.py [steps]` (10 million). A folder of Parquet files is made
up: two agents with five intents in 200 states, a tenth of the episodes labelled. Each number of
processes passes over the files, takes one epoch of batches and two sweeps over everything. What
each process took is told, and at the end what the numbers say of larger data on many nodes.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import btil

_STATES, _ACTIONS, _LATENTS, _LENGTH = 200, 5, 5, 120
_EPISODES_PER_FILE = 4_000
_BATCH = 1_000


def made_up(num_steps: int) -> Iterator[btil.Demonstrations]:
    """Files of episodes: sticky intents, each with its own favourite action in every state."""
    generator = np.random.default_rng(0)
    favourite = generator.integers(0, _ACTIONS, (2, _STATES, _LATENTS))
    episodes = -(-num_steps // _LENGTH)
    for first in range(0, episodes, _EPISODES_PER_FILE):
        number = min(_EPISODES_PER_FILE, episodes - first)
        shape = (number, _LENGTH)
        states = generator.integers(0, _STATES, shape)
        actions, latents = [], []
        for own in favourite:
            change = generator.random(shape) < 0.05
            change[:, 0] = True
            drawn = generator.integers(0, _LATENTS, shape)
            last = np.maximum.accumulate(np.where(change, np.arange(_LENGTH), 0), axis=1)
            held = np.take_along_axis(drawn, last, axis=1)
            other = generator.integers(0, _ACTIONS, shape)
            latents.append(held.ravel())
            actions.append(
                np.where(generator.random(shape) < 0.7, own[states, held], other).ravel()
            )
        ids = np.repeat(np.arange(first, first + number), _LENGTH)
        labels = np.where((ids % 10 == 0)[:, None], np.stack(latents, 1), -1)
        yield btil.Demonstrations(
            states.ravel(),
            np.stack(actions, 1),
            latents=labels,
            episodes=ids,
            num_states=_STATES,
            num_actions=_ACTIONS,
            num_latents=_LATENTS,
        )


def one_of(address: str, number: int, own: int, folder: str) -> None:
    """Learn as one of several processes, and tell what it took as a line of JSON."""
    import jax

    if number > 1:
        jax.distributed.initialize(address, number, own)
    from btil.inference import processes, stochastic, streaming
    from btil.posterior.fit import fit

    took: dict[str, list[float]] = {}
    sent = {"batches": 0, "sweeps": 0, "contexts": 0}
    doing = ["contexts"]

    def timed(module: Any, name: str, does: str) -> None:
        function = getattr(module, name)

        def run(*given: Any, **options: Any) -> Any:
            begun, doing[0] = time.perf_counter(), does
            try:
                return function(*given, **options)
            finally:
                took.setdefault(name, []).append(time.perf_counter() - begun)
                doing[0] = "contexts"

        setattr(module, name, run)

    timed(streaming, "_pass", "contexts")
    timed(stochastic, "advance", "batches")
    timed(stochastic, "sweep", "sweeps")
    gathered, make = processes._all_gathered, jax.make_array_from_process_local_data

    def counted(values: np.ndarray) -> np.ndarray:
        sent[doing[0]] += values.nbytes
        return gathered(values)

    def counted_sum(sharding: Any, values: np.ndarray, shape: Any) -> Any:
        sent[doing[0]] += values.nbytes
        return make(sharding, values, shape)

    processes._all_gathered = counted
    jax.make_array_from_process_local_data = counted_sum
    file = btil.open_demonstrations(folder)
    model = btil.TeamModel()
    begun = time.perf_counter()
    devices = jax.device_count() if number > 1 else None
    fitted = fit(model, file, batch_size=_BATCH, max_iterations=1, progress=False, devices=devices)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(
        json.dumps(
            {
                "peak_mb": float(status.split("VmHWM:")[1].split()[0]) / 1e3,
                "pass_s": took["_pass"][0],
                "epoch_s": sum(took["advance"]),
                "sweep_s": took["sweep"][-1],
                "all_s": time.perf_counter() - begun,
                "sent_mb": {name: size / 1e6 for name, size in sent.items()},
                "batches": fitted.result.notes["iterations"],
                "cells": sum(int(np.prod(t.shape)) for t in fitted.bound.learned.values()),
                "bound": fitted.elbo,
            }
        ),
        flush=True,
    )


def run(number: int, folder: Path) -> list[dict[str, Any]]:
    """What each of so many processes took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, "--one", address, str(number)]
    started = [
        subprocess.Popen([*command, str(own), str(folder)], stdout=subprocess.PIPE, text=True)
        for own in range(number)
    ]
    told = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a process failed; what it said is above")
    return [json.loads(lines.strip().splitlines()[-1]) for lines in told]


def on_paper(
    rates: dict[str, float], steps: float, nodes: int, cells: float, bandwidth: float
) -> dict[str, float]:
    """Seconds of a sweep, and what a node holds, by the model of docs/how-to/large.md.

    Args:
        rates: Seconds per step of a sweep, of one process.
        steps: Steps of all episodes.
        nodes: Processes, each on a machine of its own.
        cells: Cells of all learned tables.
        bandwidth: Bytes a second that a node sends and receives.
    """
    message = 2 * 8 * cells * (nodes - 1) / nodes  # all-reduce: each part there and back
    return {
        "compute_s": rates["sweep"] * steps / nodes,
        "message_s": message / bandwidth,
        "scratch_gb": 2 * 20 * steps / nodes / 1e9,
        "tables_gb": 6 * 8 * cells / 1e9,
    }


def main(num_steps: int, numbers: list[int], folder: Path) -> None:
    """Make the files, run, and print a table."""
    from timing import conditions

    print(conditions("jax", "numpy", "pyarrow"))
    begun = time.perf_counter()
    days = folder / "days"
    days.mkdir()
    for number, part in enumerate(made_up(num_steps)):
        btil.write_demonstrations(part, days / f"{number:06d}.parquet")
    size = sum(file.stat().st_size for file in days.iterdir()) / 1e6
    print(f"{num_steps:,} steps, {size:,.0f} MB, made in {time.perf_counter() - begun:,.0f} s")
    print("processes  pass s  epoch s  sweep s  all s  MB a process  MB sent: contexts, a batch, "
          "a sweep  bound", flush=True)  # fmt: skip
    rate = cells = 0.0
    for number in numbers:
        told = run(number, days)
        first = told[0]
        most = {name: max(one[name] for one in told) for name in ("pass_s", "epoch_s", "sweep_s")}
        if number == 1:
            rate, cells = most["sweep_s"] / num_steps, first["cells"]
        sent = first["sent_mb"]
        print(
            f"{number:9}  {most['pass_s']:6.1f}  {most['epoch_s']:7.1f}  {most['sweep_s']:7.1f}  "
            f"{max(one['all_s'] for one in told):5.0f}  "
            f"{max(one['peak_mb'] for one in told):12,.0f}  {sent['contexts']:17.1f}, "
            f"{sent['batches'] / first['batches']:7.2f}, {sent['sweeps'] / 2:7.2f}  "
            f"{first['bound']:.3f}",
            flush=True,
        )
    if rate:
        paper = on_paper({"sweep": rate}, 1e10, 64, cells, 1.25e9)
        print(
            f"on paper, 10^10 steps on 64 nodes at {1e9 * rate:.0f} ns a step and 10 Gbit/s: "
            + ", ".join(f"{name} {value:,.3g}" for name, value in paper.items())
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--one", nargs=4, metavar=("ADDRESS", "NUMBER", "OWN", "FOLDER"),
                        help="be one of the processes")  # fmt: skip
    chosen = parser.parse_args()
    if chosen.one is not None:
        address, number, own, name = chosen.one
        one_of(address, int(number), int(own), name)
    else:
        os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
        with tempfile.TemporaryDirectory() as made:
            main(chosen.steps, chosen.processes, Path(made))
