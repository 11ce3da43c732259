"""Sampling at the size of Movers with 200 episodes: what gibbs needs, and what nuts would.

`python benchmarks/large_gibbs.py` simulates 200 episodes of Movers on the paper's map, 20 of them
labelled (the paper's model: about 750,000 free parameters), and, each in a process of its own,

- draws 4 chains x 500 draws (after 500 of warmup) by gibbs with `keep_rows=50`: running moments of
  every cell, draws of the 50 contexts of each table that the data read most. Printed are wall time,
  the most memory the process had, and the R-hat reached: of all cells from the moments, of the
  total log likelihood from its draws;
- makes a few transitions of one chain of nuts with trees of limited depth: milliseconds per
  leapfrog (one gradient over all data), the depths seen after a short warmup, and from both the
  time that a full run of the same length would take; where trees reach the limit, at least.

Compiling is told apart. `--part gibbs` or `--part nuts` runs one of the two, `--episodes` fewer.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import btil
from btil.inference.chains import ess, moments_split_rhat, rhat
from btil.inference.collapsed import collapsed_data
from btil.inference.nuts import Begin, Inputs, OpenRows, Settings, make_programs
from btil.inference.result import MomentRows
from btil.models.team import bind
from btil.numerics.precision import precision

LABELLED = 20
CHAINS = 4


def movers(num_episodes: int) -> btil.Demonstrations:
    """Simulated episodes, the first of them labelled."""
    demos = btil.domains.movers().simulate(num_episodes, seed=1)
    return demos.without_labels(range(LABELLED, num_episodes))


def gibbs(demos: btil.Demonstrations, num_warmup: int, num_samples: int, keep_rows: int) -> None:
    """A run, and how far it came."""
    model = btil.TeamModel()
    options = {"num_chains": CHAINS, "keep_rows": keep_rows, "progress": False}
    first = btil.fit(model, demos, "gibbs", num_warmup=0, num_samples=2, **options)
    posterior = btil.fit(
        model, demos, "gibbs", num_warmup=num_warmup, num_samples=num_samples, seed=1, **options
    )
    rows = [one for one in posterior.result.rows.values() if isinstance(one, MomentRows)]
    hats = np.concatenate([moments_split_rhat(one).ravel() for one in rows])
    hats = hats[~np.isnan(hats)]
    kept = [
        rhat(np.asarray(one.draws, np.float64).reshape(CHAINS, num_samples, -1)) for one in rows
    ]
    total = posterior.result.sample_stats["log_likelihood_total"]
    seconds = posterior.wall_time
    cells = sum(int(np.prod(table.shape)) for table in posterior.bound.learned.values())
    whole = 4 * CHAINS * num_samples * cells / 1e9
    print(f"gibbs: {CHAINS} chains x ({num_warmup} + {num_samples}), keep_rows={keep_rows}")
    print(f"  cells                       {cells:,}")
    print(f"  wall time                   {seconds:.0f} s, {_load()}")
    print(f"  per iteration of all chains {1e3 * seconds / (num_warmup + num_samples):.0f} ms")
    print(f"  compiling                   about {first.wall_time:.0f} s, apart")
    print(f"  peak memory of the process  {_peak():.2f} GB (all draws would be {whole:.1f} GB)")
    print(f"  cells, split R-hat >= 1.05  {100 * np.mean(hats >= 1.05):.3f}% of {len(hats):,}")
    print(f"  quantiles of split R-hat    50% {np.median(hats):.4f}, "
          f"99% {np.quantile(hats, 0.99):.4f}, largest {hats.max():.3f}")  # fmt: skip
    print(f"  R-hat of rows kept          largest {max(np.nanmax(one) for one in kept):.3f}")
    print(f"  of the log likelihood       R-hat {float(rhat(total[..., None])[0]):.3f}, "
          f"bulk ESS {float(ess(total[..., None])[0]):.0f}")  # fmt: skip
    print(f"  verdict                     {posterior.reason}")


def nuts(demos: btil.Demonstrations, num_warmup: int, num_samples: int, depth: int) -> None:
    """Leapfrogs of one chain, and what a run would take."""
    few, after = 25, 5
    with precision(np.float64) as dtype:
        bound = bind(btil.TeamModel(), demos)
        structure, data = collapsed_data(bound, dtype)
        rows = {name: in_order(table.shape) for name, table in bound.learned.items()}
        inputs = Inputs(data, rows)
        programs = make_programs(structure, Settings(few, 0.8, depth), np.dtype(dtype))
        begun = time.perf_counter()
        states = programs.start(anywhere(rows), inputs)
        states, _ = programs.advance(states, inputs, jnp.asarray(1, jnp.int32))
        jax.block_until_ready(states)
        compiling = time.perf_counter() - begun
        each, steps = [], []
        for _ in range(few + after):
            before = time.perf_counter()
            states, _ = programs.advance(states, inputs, jnp.asarray(1, jnp.int32))
            steps.append(int(jax.block_until_ready(states).num_steps[0]))
            each.append((time.perf_counter() - before) / steps[-1])
    settled = steps[few:]
    a_leapfrog = float(np.median(each[few:]))
    hours = a_leapfrog * float(np.mean(settled)) * CHAINS * (num_warmup + num_samples) / 3600
    at_limit = sum(number >= 2**depth - 1 for number in settled)
    print(
        f"nuts: one chain, {few} transitions of warmup and {len(settled)} after, depth <= {depth}"
    )
    print(f"  compiling, first transition {compiling:.0f} s, apart")
    print(f"  per leapfrog                {1e3 * a_leapfrog:.1f} ms (median), {_load()}")
    print(f"  leapfrogs per transition    {np.mean(settled):.0f} after the warmup, "
          f"{at_limit} of {len(settled)} trees at the limit")  # fmt: skip
    print(f"  step size, acceptance       {float(states.adapt_state.step_size[0]):.3g}, "
          f"{float(states.mean_accept_prob[0]):.2f}")  # fmt: skip
    print(f"  peak memory of the process  {_peak():.2f} GB")
    print(f"  {CHAINS} x ({num_warmup} + {num_samples}) would take   {hours:.1f} hours"
          f"{' or more' if at_limit else ''}")  # fmt: skip


def in_order(shape: tuple[int, ...]) -> OpenRows:
    """All rows, their cells as they are numbered: a chain from a random start knows no better."""
    order = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    return OpenRows(jnp.arange(shape[0], dtype=jnp.int32), order, order, jnp.zeros(shape))


def anywhere(rows: dict[str, OpenRows]) -> Begin:
    """One chain from uniform positions in (-2, 2), with the identity as its metric."""
    generator = np.random.default_rng(0)
    shapes = {
        f"{name}/sticks": (1, *own.order.shape[:-1], own.order.shape[-1] - 1)
        for name, own in rows.items()
    }
    return Begin(
        jax.random.split(jax.random.key(0), 1),
        {name: jnp.asarray(generator.uniform(-2, 2, shape)) for name, shape in shapes.items()},
        {name: jnp.ones(shape) for name, shape in shapes.items()},
    )


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("gibbs", "nuts"))
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--keep-rows", type=int, default=50)
    parser.add_argument("--depth", type=int, default=5, help="of the trees of nuts, at most")
    given = parser.parse_args()
    if given.part is None:
        for part in ("gibbs", "nuts"):
            subprocess.run([sys.executable, __file__, "--part", part, *sys.argv[1:]], check=True)
        return
    demos = movers(given.episodes)
    if given.part == "gibbs":
        gibbs(demos, given.warmup, given.draws, given.keep_rows)
    else:
        nuts(demos, given.warmup, given.draws, given.depth)


if __name__ == "__main__":
    main()
