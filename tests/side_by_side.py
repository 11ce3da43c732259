"""Processes for which threads of one process stand: what they tell each other, on no network."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from btil.inference import processes, streaming
from btil.inference.processes import Processes


def all_at_once(
    patch: pytest.MonkeyPatch, number: int, work: Callable[[Processes], Any]
) -> list[Any]:
    """What work comes to in each of several processes, for which threads stand, or what it raises.

    Args:
        patch: What they tell each other is passed on here.
        number: How many there are.
        work: What each does, given which it is.
    """
    barrier, own = threading.Barrier(number, timeout=20), threading.local()
    given: list[Any] = [None] * number
    found: list[Any] = [None] * number

    def all_gathered(values: np.ndarray) -> np.ndarray:
        given[own.number] = values
        barrier.wait()
        together = np.stack(given)
        barrier.wait()
        return together

    def add_up(
        those: Processes, work: Callable[[], Mapping[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        summed = {}
        for name, values in work().items():
            of_all = processes.gather(those, partial(np.expand_dims, values, 0))
            summed[name] = np.asarray(np.sum(of_all, axis=(0, 1)))
        return summed

    def run(process: int) -> None:
        own.number = process
        try:
            found[process] = work(Processes(number, process))
        except Exception as error:
            found[process] = error

    patch.setattr(processes, "_all_gathered", all_gathered)
    patch.setattr(streaming, "add_up", add_up)
    threads = [threading.Thread(target=run, args=(process,)) for process in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
