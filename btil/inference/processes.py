"""Processes that work together, each on data of its own: what they tell each other.

They are those of `jax.distributed`, and it is `jax.experimental.multihost_utils` that carries what
is gathered. Every process calls the same functions in the same order. What a process does between
two of these calls is given to them as work: where it fails in one of them, all end with its words,
instead of waiting for one that does not come.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from btil.numerics.precision import precision
from btil.numerics.rounding import rounded_up

# What the libraries that carry messages say when a process is gone.
_GONE = ("gloo", "nccl", "coordination service", "heartbeat", "unavailable", "mpi_")


class Processes(NamedTuple):
    """How many processes work together, and which of them this one is, from 0."""

    number: int
    own: int


ALONE = Processes(1, 0)


def processes_of(devices: int | None) -> Processes:
    """Those that share the work on so many devices; without a number each works alone."""
    return ALONE if devices is None else present_processes()


def present_processes() -> Processes:
    """All that there are."""
    number = jax.process_count()
    return ALONE if number == 1 else Processes(number, jax.process_index())


@contextmanager
def ending_with_others() -> Iterator[None]:
    """Where a message cannot be carried because a process is gone, say so in a sentence.

    Raises:
        RuntimeError: In place of the error of the library that carries messages.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        text = str(error).lower()
        if jax.process_count() == 1 or not any(word in text for word in _GONE):
            raise
        raise RuntimeError(
            f"another of the {jax.process_count()} processes has ended, and so does this one; "
            "start all of them again, with resume=True where they keep a checkpoint"
        ) from error


def gather(processes: Processes, work: Callable[[], np.ndarray]) -> list[np.ndarray]:
    """What every process's work comes to, in the order of the processes.

    Args:
        processes: Who takes part.
        work: Gives an array; of all processes of the same type and, but for the first axis, shape.

    Raises:
        RuntimeError: If the work of another process failed, with its words.
    """
    if processes.number == 1:
        return [work()]
    failure: Exception | None = None
    values = np.zeros(0, np.uint8)
    try:
        values = np.ascontiguousarray(work())
        sent = np.frombuffer(values.tobytes(), np.uint8)
    except Exception as error:
        failure = error
        sent = np.frombuffer(f"{error}".encode(), np.uint8)
    # Sizes in two parts: whole numbers have 32 bits where JAX has no others.
    head = [failure is not None, len(values), sent.size >> 30, sent.size & (2**30 - 1)]
    heads = _all_gathered(np.array(head, np.int32)).astype(np.int64)
    sizes = [int((one[2] << 30) + one[3]) for one in heads]
    padded = np.zeros(rounded_up(max(sizes), 1024), np.uint8)
    padded[: sent.size] = sent
    found = [one[:size] for one, size in zip(_all_gathered(padded), sizes, strict=True)]
    if failure is not None:
        raise failure
    for number, (one, head_of_one) in enumerate(zip(found, heads, strict=True)):
        if head_of_one[0]:
            words = one.tobytes().decode(errors="replace")
            raise RuntimeError(f"process {number} of {processes.number} failed: {words}")
    return [
        np.frombuffer(one.tobytes(), values.dtype).reshape(int(rows), *values.shape[1:])
        for one, (_, rows, *_) in zip(found, heads, strict=True)
    ]


def gather_bytes(processes: Processes, work: Callable[[], bytes]) -> list[bytes]:
    """As `gather`, of bytes."""
    arrays = gather(processes, lambda: np.frombuffer(work(), np.uint8))
    return [one.tobytes() for one in arrays]


def _all_gathered(values: np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils

    with ending_with_others():
        return np.asarray(multihost_utils.process_allgather(values))


def add_up(
    processes: Processes, work: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Sums over the processes of arrays of numbers, in double precision: the same bits in all.

    Args:
        processes: Who takes part.
        work: Gives arrays by name, of the same names and shapes in all processes.

    Raises:
        RuntimeError: If the work of another process failed, with its words.
    """
    if processes.number == 1:
        return dict(work())
    own: dict[str, np.ndarray] = {}

    def made() -> np.ndarray:
        own.update({name: np.asarray(values, np.float64) for name, values in work().items()})
        return np.zeros(0)

    gather(processes, made)
    flat = np.concatenate([np.zeros(1), *(values.ravel() for values in own.values())])
    # As many programs as there are sizes, not as there are shapes.
    padded = np.pad(flat, (0, rounded_up(len(flat), 1024) - len(flat)))
    with precision(np.float64), ending_with_others():
        mesh, total = _sum_of(processes.number)
        rows = NamedSharding(mesh, PartitionSpec("processes"))
        shape = (processes.number, len(padded))
        laid = jax.make_array_from_process_local_data(rows, padded[None], shape)
        summed = np.asarray(total(laid).addressable_data(0))
    ends = np.cumsum([1, *(values.size for values in own.values())])
    parts = np.split(summed[: len(flat)], ends)[1:-1]
    return {
        name: part.reshape(values.shape)
        for (name, values), part in zip(own.items(), parts, strict=True)
    }


@lru_cache(maxsize=1)
def _sum_of(number: int) -> tuple[Mesh, Callable[[Any], Any]]:
    """A mesh with a row of devices for each process, and the sum over its rows."""
    devices = [
        next(device for device in jax.devices() if device.process_index == process)
        for process in range(number)
    ]
    mesh = Mesh(np.array(devices), ("processes",))
    copied = NamedSharding(mesh, PartitionSpec())
    return mesh, jax.jit(lambda values: jnp.sum(values, axis=0), out_shardings=copied)
