"""Effective samples per second: nuts beside NumPyro's on the enumerated form, gibbs beside nuts.

`python benchmarks/samplers.py` samples the same posterior by

- nuts, `btil.fit(..., "nuts")`: latents summed out, rows broken into sticks in logarithms,
  begun from the mean field;
- enumerated: NumPyro's NUTS on `btil.team_dbn(model, demos, marginalize="enumerate")`, the network
  spelled out with `scan` and enumerated latents, as one would write it without btil, driven as nuts
  is (its own `MCMC` would compile anew in every run);
- collapsed: the same on `btil.team_dbn(model, demos)`, latents summed out. It moves through the
  same space as enumerated does, so that between these two only the time of a gradient differs;
- gibbs, `btil.fit(..., "gibbs")`;

in double precision, with the same data, model, number of chains, warmup and draws (gibbs takes ten
times as many, as its draws are cheap). Each is run once to compile, then three times in turn with
seeds of their own; medians of those. The figure to look at is the least bulk effective sample size
(ArviZ) of all learned cells that vary, over the seconds of the run, warmup included, compiling
apart. The ratios at the end are of medians from the same process: on a busy machine they are
steadier than the seconds.

`--movers` samples 20 labelled episodes of Movers on the paper's map, by nuts and gibbs alone.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.infer import NUTS

import btil
from btil.inference.chains import ess
from btil.inference.checkpoint import NOWHERE
from btil.inference.collapsed import collapsed_data
from btil.inference.nuts import Begin, Schedule, kernel_programs, sample_chains
from btil.models.draws import prior_tables
from btil.models.simulate import simulate
from btil.models.team import bind
from btil.numerics.precision import precision
from btil.numpyro_forms.team_dbn import enumerated_model, forward_model

GIBBS_TIMES = 10
"""Draws of gibbs for one of nuts."""


class Found(NamedTuple):
    """What one run took and gave.

    Attributes:
        seconds: Wall time.
        least: Least bulk effective sample size of a cell.
        leapfrogs: Gradients taken in all; None for gibbs.
    """

    seconds: float
    least: float
    leapfrogs: int | None


def small_team(
    num_episodes: int, num_steps: int, num_latents: int
) -> tuple[btil.TeamModel, btil.Demonstrations]:
    """Two members of three actions, three places; half of the episodes labelled."""
    generator = np.random.default_rng(0)
    total = num_episodes * num_steps
    seen = btil.Demonstrations(
        {"place": generator.integers(0, 3, total)},
        np.zeros((total, 2), int),
        episodes=np.repeat(np.arange(num_episodes), num_steps),
        agents=("ann", "bob"),
        num_states={"place": 3},
        num_actions=3,
        num_latents=num_latents,
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.5, parents=("place",)),
        transition=btil.DirichletCPT(1.0 + 3.0 * np.eye(num_latents)),
        initial=btil.DirichletCPT(1.0),
    )
    made = simulate(model, seen, prior_tables(model, seen, generator), generator)
    return model, made.without_labels(range(num_episodes // 2, num_episodes))


def least_ess(draws: dict[str, Any]) -> float:
    """Of all cells that vary."""
    return float(min(np.nanmin(ess(np.asarray(d, np.float64), "bulk")) for d in draws.values()))


def by_btil(
    method: str, model: btil.TeamModel, demos: btil.Demonstrations, seed: int, **options: Any
) -> Found:
    """One fit."""
    posterior = btil.fit(
        model, demos, method, seed=seed, progress=False, dtype=np.float64, **options
    )
    steps = posterior.result.sample_stats.get("num_steps")
    return Found(
        posterior.wall_time,
        least_ess({site: rows.draws for site, rows in posterior.result.rows.items()}),
        None if steps is None else int(np.sum(steps)),
    )


def by_numpyro(
    form: Callable[..., None],
    model: btil.TeamModel,
    demos: btil.Demonstrations,
    num_chains: int,
    num_warmup: int,
    num_samples: int,
) -> Callable[[int], Found]:
    """NumPyro's NUTS on a form of the network, its rows broken into sticks: by the seed."""
    with precision(np.float64) as dtype:
        structure, data = collapsed_data(bind(model, demos), dtype)
        simplex = biject_to(constraints.simplex)

        def collect(states: Any, inputs: Any) -> tuple[dict[str, Any], Any]:
            rows = {name: simplex(states.z[name]) for name in structure.dirichlet_sites}
            return rows, -states.potential_energy[:, None]

        kernel = NUTS(partial(form, structure))
        programs = kernel_programs(kernel, num_warmup, collect)

    def run(seed: int) -> Found:
        with precision(np.float64):
            begun = time.perf_counter()
            chains = sample_chains(
                programs,
                Begin(jax.random.split(jax.random.key(seed), num_chains)),
                data,
                Schedule(num_warmup, num_samples, "sequential"),
                NOWHERE,
                False,
            )
            seconds = time.perf_counter() - begun
        return Found(seconds, least_ess(chains.draws), int(chains.statistics["num_steps"].sum()))

    return run


def measure(
    title: str, contenders: dict[str, Callable[[int], Found]], repeats: int, peers: list[Any]
) -> None:
    """Run all in turn, print a table of medians, and ratios of effective samples per second."""
    first = {name: run(0).seconds for name, run in contenders.items()}
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for seed in range(1, repeats + 1):
        for name, run in contenders.items():
            found[name].append(run(seed))
    rate = {}
    print(f"\n{title}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(
        "| sampler | compiling, s | run, s | ms per gradient | least bulk ESS | ESS per second |\n"
        "|---|---|---|---|---|---|"
    )
    for name, runs in found.items():
        seconds = float(np.median([one.seconds for one in runs]))
        rate[name] = float(np.median([one.least / one.seconds for one in runs]))
        gradients = [1e3 * one.seconds / one.leapfrogs for one in runs if one.leapfrogs]
        a_gradient = f"{np.median(gradients):.2f}" if gradients else ""
        least = np.median([one.least for one in runs])
        print(
            f"| {name} | {max(0.0, first[name] - seconds):.1f} | {seconds:.1f} | {a_gradient} | "
            f"{least:.0f} | {rate[name]:.3g} |",
            flush=True,
        )
    for one, other in peers:
        pairs = [
            (a.least / a.seconds) / (b.least / b.seconds)
            for a, b in zip(found[one], found[other], strict=True)
        ]
        spread = f"{min(pairs):.1f} to {max(pairs):.1f} in pairs of runs"
        print(f"\n{one} against {other}: {rate[one] / rate[other]:.1f} times ({spread})")


def main() -> None:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--movers", action="store_true", help="20 labelled episodes of Movers")
    parser.add_argument("--episodes", type=int, default=12, help="of the small team")
    parser.add_argument("--steps", type=int, default=20, help="of each episode of the small team")
    parser.add_argument("--latents", type=int, default=4, help="of each member of the small team")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--draws", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    run = {"num_chains": given.chains, "num_warmup": given.warmup, "num_samples": given.draws}
    longer = run | {"num_samples": GIBBS_TIMES * given.draws}
    if given.movers:
        model, demos = btil.TeamModel(), btil.domains.movers().simulate(20, seed=1)
        title = "Movers, 20 labelled episodes"
    else:
        model, demos = small_team(given.episodes, given.steps, given.latents)
        title = "Small team"
    cells = sum(int(np.prod(table.shape)) for table in bind(model, demos).learned.values())
    title += f": {demos.num_steps:,} steps, {cells:,} cells, {given.chains} chains of "
    title += (
        f"{given.warmup} + {given.draws} draws (gibbs {given.warmup} + {longer['num_samples']})"
    )
    contenders: dict[str, Callable[[int], Found]] = {
        "nuts": lambda seed: by_btil("nuts", model, demos, seed, **run),
        "gibbs": lambda seed: by_btil("gibbs", model, demos, seed, **longer),
    }
    peers = [("gibbs", "nuts")]
    if not given.movers:
        contenders["collapsed"] = by_numpyro(forward_model, model, demos, **run)
        contenders["enumerated"] = by_numpyro(enumerated_model, model, demos, **run)
        peers += [("nuts", "enumerated"), ("collapsed", "enumerated")]
    measure(title, contenders, given.repeats, peers)


if __name__ == "__main__":
    main()
