"""A run of every method that another process can kill: what tests and a benchmark share.

    python tests/killed_runs.py METHOD CHECKPOINT [WRITE]

fits over and over with a checkpoint that is written after every block of work, and goes on where
one lies; it prints a line for every block. With WRITE the process kills itself in the middle of
writing the checkpoint for the WRITE-th time.
"""

import os
import signal
import sys
from typing import Any

import numpy as np
from teams import hmm_model, random_demos, rich_model

import btil
from btil.inference import checkpoint
from btil.posterior import posterior

# Long enough for several blocks of work, whatever the method.
OPTIONS: dict[str, dict[str, Any]] = {
    "mfvi": {"num_restarts": 4, "tolerance": 1e-12, "max_iterations": 100, "dtype": np.float64},
    "svi": {"max_iterations": 400, "tolerance": 1e-9, "num_particles": 1},
    "nuts": {"num_chains": 2, "num_warmup": 15, "num_samples": 25, "max_tree_depth": 4},
    "gibbs": {"num_chains": 2, "num_warmup": 60, "num_samples": 210},
    "exact": {},
}


def run(method: str, **more: Any) -> posterior.TeamPosterior:
    """The fit of a method; `more` is `checkpoint` and `resume`."""
    # Gradients take long to compile: one agent is enough.
    alone = {"num_latents": (2,), "num_actions": (3,)} if method in ("svi", "nuts") else {}
    demos = random_demos(seed=4, labelled=0.4, **alone)
    model = hmm_model() if alone else rich_model()
    return btil.fit(model, demos, method, seed=3, progress=False, **OPTIONS[method], **more)


def die_while_writing(number: int) -> None:
    """Kill this process when a checkpoint has been written half for the `number`-th time."""
    whole = np.savez
    count = 0

    def half(handle: Any, **arrays: Any) -> None:
        nonlocal count
        count += 1
        whole(handle, **arrays)
        if count == number:
            handle.flush()
            os.ftruncate(handle.fileno(), handle.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.np.savez = half  # type: ignore[assignment]


def tell_of_blocks() -> None:
    """Print a line before a block's progress is saved: who kills by it may hit the writing."""
    offer = checkpoint.Checkpoint.offer

    def telling(self: checkpoint.Checkpoint, **progress: Any) -> None:
        print("block", flush=True)
        offer(self, **progress)

    checkpoint.Checkpoint.offer = telling  # type: ignore[method-assign]


if __name__ == "__main__":
    checkpoint.LEAST_SECONDS = checkpoint._TIMES_A_WRITE = 0.0
    tell_of_blocks()
    if len(sys.argv) > 3:
        die_while_writing(int(sys.argv[3]))
    while True:
        run(sys.argv[1], checkpoint=sys.argv[2], resume=True)
        os.remove(sys.argv[2])
