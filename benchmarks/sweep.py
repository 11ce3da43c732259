"""One full sweep of the mean field, beside dynamax's smoother alone.

`python benchmarks/sweep.py` (a minute) fits 200 simulated Movers episodes, 20 of them labelled, and
takes the time of one sweep (messages, expected counts, digammas, the bound) of its ascent, warm: a
call of 20 sweeps over 20. What a fit does beside, to see where it has led, is left out. Beside it
stands dynamax's `hmm_smoother` under `vmap` on as many chains of the same lengths: the messages
alone. A sweep is to cost at most twice that.

Needs dynamax: see benchmarks/README.md.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from e_step import draw_chains, dynamax
from timing import conditions, timed

import btil
from btil.inference.ascents import SWEEPS_PER_CALL
from btil.inference.mfvi import Run
from btil.models.team import bind


def movers(num_episodes: int, num_labelled: int) -> btil.Demonstrations:
    """Simulated Movers on the paper's map, the later episodes without labels."""
    demos = btil.domains.movers().simulate(num_episodes, seed=0)
    return demos.without_labels(np.arange(num_labelled, num_episodes))


def sweeps(model: btil.TeamModel, demos: btil.Demonstrations) -> Callable[[], Any]:
    """A call of `SWEEPS_PER_CALL` sweeps over a data set in single precision; not compiled yet."""
    run = Run(bind(model, demos), np.dtype(np.float32), None, None, None)
    start, nothing = run.begin(run.known), jnp.asarray(-jnp.inf, jnp.float32)
    return partial(run.proceed, start, nothing, np.asarray(SWEEPS_PER_CALL, np.int32), False)


def measure(demos: btil.Demonstrations, repeats: int) -> tuple[float, float]:
    """Median seconds of a sweep, and of dynamax on the agents' chains, taken in turn."""
    btils = sweeps(btil.TeamModel(), demos)
    lengths = np.tile(demos.episode_lengths, demos.num_agents)
    chains = draw_chains(lengths, max(demos.num_latents))
    theirs = tuple(map(jnp.asarray, (chains.initial, chains.transition, np.log(chains.likelihood))))
    timed(btils)
    timed(dynamax, *theirs)
    ours, peer = [], []
    for _ in range(repeats):
        ours.append(timed(btils) / SWEEPS_PER_CALL)
        peer.append(statistics.median(timed(dynamax, *theirs) for _ in range(SWEEPS_PER_CALL)))
    return statistics.median(ours), statistics.median(peer)


def main() -> None:
    """Print the two times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--labelled", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    demos = movers(options.episodes, options.labelled)
    print(f"Movers, {demos.num_steps} steps, {demos.num_agents} agents; {conditions('dynamax')}")
    ours, peer = measure(demos, options.repeats)
    print(f"{'a full sweep of btil':40} {1000 * ours:8.2f} ms")
    print(f"{'hmm_smoother of dynamax alone':40} {1000 * peer:8.2f} ms")
    print(f"{'a sweep in units of the smoother':40} {ours / peer:8.2f}")


if __name__ == "__main__":
    main()
