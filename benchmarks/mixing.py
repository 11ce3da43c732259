"""Whether gibbs mixes on real teams, with and without moves that integrate the rows out.

`python benchmarks/mixing.py` samples the recommended model of Overcooked kitchens and of simulated
Movers, some training episodes labelled, with default options of gibbs (four chains from dispersed
starts): by plain sweeps, with moves of `btil/inference/path_moves.py` but jumps, and with all. It
prints R-hat, the number of cells at 1.05 or above, the median effective sample size of all cells a
second, whether they converged, and how many groups the chains form that do not overlap. Where draws
are in several modes a line tells what these weigh.

`--teams`, `--labelled`, `--seeds` and `--moves` choose; one run takes one to two minutes.
"""

import argparse
import contextlib
import time
from unittest import mock

import numpy as np
from timing import conditions

import btil
from btil.analysis.modes import find_modes, only_chains, told_modes, weigh_modes
from btil.domains.overcooked import LAYOUTS, load, recommended_model
from btil.inference import gibbs, starting
from btil.inference.chains import ess, judge_chains

MOVES = ("plain", "but jumps", "all")
MOVERS_EPISODES = 50


def team(name: str, labelled: int) -> tuple[btil.TeamModel, btil.Demonstrations]:
    """The recommended model on episodes of which the first have labels."""
    if name == "movers":
        task = btil.domains.movers()
        demos = task.add_derived_variables(task.simulate(MOVERS_EPISODES, seed=0))
        model = task.recommended_model()
    else:
        demos, model = load(name), recommended_model(name)
    return model, demos.without_labels(range(labelled, demos.num_episodes))


def sample(
    model: btil.TeamModel, demos: btil.Demonstrations, seed: int, moves: str, draws: int
) -> str:
    """What is to be told of the chains."""
    with contextlib.ExitStack() as stack:
        if moves == "plain":
            stack.enter_context(mock.patch.object(starting, "SMALL_CONCENTRATION", 0.0))
        if moves == "but jumps":
            stack.enter_context(mock.patch.object(gibbs, "_no_landmarks", return_value=[]))
        before, worked = time.perf_counter(), time.process_time()
        found = btil.fit(
            model, demos, "gibbs", progress=False, seed=seed, num_warmup=draws, num_samples=draws
        )
        seconds, worked = time.perf_counter() - before, time.process_time() - worked
    # Latents that no label names may have other names in every chain.
    found = btil.analysis.align(found, only_chains(found, [0]))
    rows = {name: one.draws for name, one in found.result.rows.items()}
    verdict = judge_chains(rows, log_likelihood=found.result.log_likelihood)
    sizes = np.concatenate([ess(one).ravel() for one in rows.values()])
    modes = weigh_modes(found)
    return (
        f"{seconds:7.0f} {worked:10.0f} {verdict.max_rhat:8.3f} {verdict.num_above:6d} "
        f"{np.nanmedian(sizes) / worked:13.1f} {'yes' if found.converged else 'no':>9s} "
        f"{len(find_modes(found)):6d}"
    ) + (f"\n{told_modes(modes)}" if len(modes) > 1 else "")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*LAYOUTS, "movers"]
    parser.add_argument("--teams", nargs="+", choices=every, default=every)
    parser.add_argument("--labelled", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--moves", nargs="+", choices=MOVES, default=MOVES[1:])
    parser.add_argument("--draws", type=int, default=500, help="of each chain, after as many")
    options = parser.parse_args()
    print(conditions(), f"btil {btil.__version__}\n")
    print(
        f"{'team':24s} labelled seed moves     seconds  processor    R-hat  above  ESS/s (proc) "
        "converged groups"
    )
    for name in options.teams:
        for labelled in options.labelled:
            data = team(name, labelled)
            for seed in options.seeds:
                for moves in options.moves:
                    told = sample(*data, seed, moves, options.draws)
                    print(f"{name:24s} {labelled:8d} {seed:4d} {moves:10s} {told}", flush=True)


if __name__ == "__main__":
    main()
