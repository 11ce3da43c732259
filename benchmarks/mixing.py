"""Whether gibbs mixes on real teams, with and without moves that integrate the rows out.

`python benchmarks/mixing.py` samples the recommended model of Overcooked kitchens, some training
trials labelled, with default options of gibbs (four chains from dispersed starts), by plain sweeps
and with the moves of `btil/inference/path_moves.py`, and prints R-hat, the number of cells at 1.05
or above, the median effective sample size of all cells a second, and whether they converged.

`--kitchens`, `--labelled` and `--seeds` choose; one run takes one to two minutes.
"""

import argparse
import time
from unittest import mock

import numpy as np
from timing import conditions

import btil
from btil.domains.overcooked import LAYOUTS, load, recommended_model
from btil.inference import gibbs
from btil.inference.chains import ess, judge_chains
from btil.models.team import bind
from btil.numerics.precision import precision

FLOAT32 = np.dtype(np.float32)


def sample(kitchen: str, labelled: int, seed: int, collapsed: bool) -> tuple[float, str]:
    """Seconds, and what is to be told of the chains."""
    demos = load(kitchen)
    partly = demos.without_labels(range(labelled, demos.num_episodes))
    bound = bind(recommended_model(kitchen), partly)
    limit = gibbs.SMALL_CONCENTRATION if collapsed else 0.0
    before = time.perf_counter()
    with precision(FLOAT32), mock.patch.object(gibbs, "SMALL_CONCENTRATION", limit):
        found = gibbs.fit(bound, seed=seed, progress=False, dtype=FLOAT32)
    seconds = time.perf_counter() - before
    draws = {name: rows.draws for name, rows in found.rows.items()}
    verdict = judge_chains(draws, log_likelihood=found.log_likelihood)
    sizes = np.concatenate([ess(one).ravel() for one in draws.values()])
    return seconds, (
        f"{verdict.max_rhat:9.3f} {verdict.num_above:7d} "
        f"{np.nanmedian(sizes) / seconds:9.1f} {'yes' if found.converged else 'no':>10s}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kitchens", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--labelled", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    print(conditions(), f"btil {btil.__version__}\n")
    print(f"{'kitchen':24s} labelled seed sweeps    seconds     R-hat   above ESS/s med. converged")
    for kitchen in options.kitchens:
        for labelled in options.labelled:
            for seed in options.seeds:
                for collapsed in (False, True):
                    seconds, told = sample(kitchen, labelled, seed, collapsed)
                    kind = "with moves" if collapsed else "plain"
                    print(f"{kitchen:24s} {labelled:8d} {seed:4d} {kind:10s} {seconds:6.0f} {told}")


if __name__ == "__main__":
    main()
