"""How the benchmarks measure: two programs in turn, warm, compile time apart."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
    """What a program took.

    Attributes:
        first: Seconds of the first call, compilation included.
        median: Median seconds of a later call.
        processor: Mean processor seconds of a later call, of all threads. Other people's work on
            the machine raises it little, where it may double the median.
    """

    first: float
    median: float
    processor: float


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds until the result is there."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def side_by_side(
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], repeats: int
) -> dict[str, Timing]:
    """Time programs in turn, so that what else the machine does strikes all alike.

    Args:
        programs: Functions and their arguments, by name.
        repeats: Calls of each after its first.

    Returns:
        Their timings.
    """
    first = {name: timed(function, *given) for name, (function, given) in programs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    processor = dict.fromkeys(programs, 0.0)
    for _ in range(repeats):
        for name, (function, given) in programs.items():
            begun = time.process_time()
            seconds[name].append(timed(function, *given))
            processor[name] += time.process_time() - begun
    return {
        name: Timing(first[name], statistics.median(seconds[name]), processor[name] / repeats)
        for name in programs
    }


HEADER = f"{'':44} {'first s':>8} {'median ms':>10} {'processor ms':>13} {'ratio':>7}"


def row(name: str, timing: Timing, peer: Timing) -> str:
    """One line of a table; the ratio is the peer's median over this one's."""
    return (
        f"{name:44} {timing.first:8.2f} {1000 * timing.median:10.2f} "
        f"{1000 * timing.processor:13.2f} {peer.median / timing.median:7.2f}"
    )


def conditions(*packages: str) -> str:
    """Machine, load and versions, for the head of a table."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpy", *packages))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores{load}, JAX on {jax.default_backend()}; "
        f"Python {platform.python_version()}, {versions}"
    )
