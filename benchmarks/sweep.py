"""One full sweep of the mean field, beside dynamax's smoother alone.

`python benchmarks/sweep.py` (a minute) fits 200 simulated Movers episodes, 20 of them labelled, and
takes the time of one sweep (messages, expected counts, digammas, the bound) of a warm fit: what
`btil.fit` takes for 41 sweeps less what it takes for one, over 40. Beside it stands dynamax's
`hmm_smoother` under `vmap` on as many chains of the same lengths: the messages alone. A sweep is to
cost at most twice that.

Needs dynamax: see benchmarks/README.md.
"""

import argparse
import statistics

import jax.numpy as jnp
import numpy as np
from e_step import draw_chains, dynamax
from timing import conditions, timed

import btil


def movers(num_episodes: int, num_labelled: int) -> btil.Demonstrations:
    """Simulated Movers on the paper's map, the later episodes without labels."""
    demos = btil.domains.movers().simulate(num_episodes, seed=0)
    return demos.without_labels(np.arange(num_labelled, num_episodes))


def measure(demos: btil.Demonstrations, repeats: int, sweeps: int = 40) -> tuple[float, float]:
    """Median seconds of a sweep, and of dynamax on the agents' chains, taken in turn."""

    def fit(sweeps: int) -> None:
        btil.fit(btil.TeamModel(), demos, progress=False, max_iterations=sweeps, tolerance=1e-300)

    lengths = np.tile(demos.episode_lengths, demos.num_agents)
    chains = draw_chains(lengths, max(demos.num_latents))
    theirs = tuple(map(jnp.asarray, (chains.initial, chains.transition, np.log(chains.likelihood))))
    timed(fit, 1)
    timed(dynamax, *theirs)
    ours, peer = [], []
    for _ in range(repeats):
        ours.append((timed(fit, sweeps + 1) - timed(fit, 1)) / sweeps)
        peer.append(statistics.median(timed(dynamax, *theirs) for _ in range(sweeps)))
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
