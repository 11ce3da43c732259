"""How time and memory of the mean field grow with the data and the team.

`python benchmarks/growth.py` (some minutes) fits random teams whose sizes differ from a common
middle in one respect at a time: steps, episodes among which the same steps are divided, latents,
agents, visited contexts. Each point is a process of its own, for its memory. A table is printed and
a figure drawn (`--out`): time of one sweep (warm, of a call of 20; what a fit does beside, to see
where it has led, is left out), and the most memory that the process held. `--large` adds ten
million steps: some minutes and several GB more.

To grow linearly with steps, agents and contexts, and with the square of the latents.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sweep import sweeps
from timing import conditions, side_by_side

import btil
from btil.inference.ascents import SWEEPS_PER_CALL

MIDDLE = {"steps": 30_000, "episodes": 200, "latents": 5, "agents": 2, "states": 1000}
POINTS: dict[str, tuple[int, ...]] = {
    "steps": (1000, 10_000, 100_000, 1_000_000),
    "episodes": (2, 20, 200, 2000, 15_000),
    "latents": (2, 4, 8, 16, 32, 64),
    "agents": (1, 2, 4, 8),
    "states": (10, 100, 1000, 10_000),
}
# How the work grows in theory, as a power.
POWERS = {"steps": 1, "latents": 2, "agents": 1, "states": 1}
LABELS = {
    "steps": "steps",
    "episodes": "episodes",
    "latents": "latents",
    "agents": "agents",
    "states": "contexts",
}


def random_team(steps: int, episodes: int, latents: int, agents: int, states: int) -> Any:
    """Random states, actions and labels: what they are makes no difference to the time."""
    generator = np.random.default_rng(0)
    held = generator.integers(0, latents, (steps, agents))
    return btil.Demonstrations(
        states=generator.integers(0, states, steps),
        actions=generator.integers(0, 6, (steps, agents)),
        latents=np.where(generator.random((steps, 1)) < 0.1, held, -1),
        episodes=np.arange(steps) * episodes // steps,
        num_states=states,
        num_actions=6,
        num_latents=latents,
    )


def measure(sizes: dict[str, int], repeats: int = 3) -> dict[str, float]:
    """Seconds of a sweep and of the first fit, and the most memory in MB, in this process."""
    import resource

    demos = random_team(**sizes)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.2, parents=("state",)),
        transition=btil.DirichletCPT(1.1, parents=("state",)),
    )
    begun = time.perf_counter()
    btil.fit(model, demos, progress=False, max_iterations=1)
    first = time.perf_counter() - begun
    timing = side_by_side({"sweeps": (sweeps(model, demos), ())}, repeats)["sweeps"]
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return {
        "first": first,
        "sweep": timing.median / SWEEPS_PER_CALL,
        "processor": timing.processor / SWEEPS_PER_CALL,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
    }


def measure_apart(sizes: dict[str, int]) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--point", json.dumps(sizes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def plot(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Time above, memory below, one column a respect, both axes logarithmic."""
    from btil.figures import BLUE, VERMILION, figure_style, new_figure

    with figure_style():
        figure = new_figure(11, 4.6)
        axes = figure.subplots(2, len(found), sharey="row")
        for column, (respect, points) in zip(axes.T, found.items(), strict=True):
            sizes = np.array(list(points))
            work, memory = (
                np.array([point[key] for point in points.values()])
                for key in ("processor", "memory")
            )
            column[0].plot(sizes, 1000 * work, color=BLUE, marker="o", markersize=5)
            column[1].plot(sizes, memory, color=VERMILION, marker="s", markersize=5)
            if respect in POWERS:
                power = POWERS[respect]
                line = 1000 * work[-1] * (sizes / sizes[-1]) ** power
                column[0].plot(sizes, line, color="0.4", linestyle="--", zorder=1)
                column[0].set_title("dashed: " + ("linear" if power == 1 else "quadratic"))
            for ax in column:
                ax.set_xscale("log")
                ax.set_xticks(sizes, [short(size) for size in sizes], rotation=45)
                ax.minorticks_off()
                ax.grid(color="0.9")
                ax.set_axisbelow(True)
            column[1].set_xlabel(LABELS[respect])
        every = [
            1000 * point["processor"] for points in found.values() for point in points.values()
        ]
        axes[0, 0].set_yscale("log")
        axes[0, 0].set_ylim(0.6 * min(every), 1.6 * max(every))
        ticks = [10.0**k for k in range(-1, 6) if min(every) < 10.0**k < max(every)]
        axes[0, 0].set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes[1, 0].set_ylim(bottom=0)
        axes[0, 0].set_ylabel("one sweep, processor ms")
        axes[1, 0].set_ylabel("most memory, MB")
        figure.savefig(path)


def short(size: int) -> str:
    """Thousands as k, millions as M."""
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def main() -> None:
    """Print the table and draw the figure, or measure one point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("growth.png"))
    parser.add_argument("--large", action="store_true", help="ten million steps as well")
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point is not None:
        print(json.dumps(measure(options.point)))
        return
    print(", ".join(f"{name} {size:,}" for name, size in MIDDLE.items()), "unless varied")
    print(conditions())
    print(
        f"{'':34} {'sweep ms':>9} {'processor ms':>13} {'power':>6} {'memory MB':>10} "
        f"{'first fit s':>12}"
    )
    found: dict[str, dict[int, dict[str, float]]] = {}
    for respect, sizes in POINTS.items():
        found[respect] = {}
        before: tuple[int, float] | None = None
        for size in (*sizes, 10_000_000) if options.large and respect == "steps" else sizes:
            setting = MIDDLE | {respect: size}
            if respect == "steps":
                # Episodes keep their length.
                setting["episodes"] = size * MIDDLE["episodes"] // MIDDLE["steps"]
            point = found[respect][size] = measure_apart(setting)
            power = ""
            if before is not None:
                ratio = point["processor"] / before[1]
                power = f"{math.log(ratio) / math.log(size / before[0]):.2f}"
            before = (size, point["processor"])
            print(
                f"{respect:20} {size:13,} {1000 * point['sweep']:9.2f} "
                f"{1000 * point['processor']:13.2f} {power:>6} {point['memory']:10.0f} "
                f"{point['first']:12.2f}",
                flush=True,
            )
    plot(found, options.out)


if __name__ == "__main__":
    main()
