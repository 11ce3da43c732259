"""Behavioural cloning as the paper has it, and as well as it can be made.

`python benchmarks/cloning.py` clones 20 labelled episodes of Movers and Cleanup, in five draws of
the data, and prints the Jensen-Shannon divergence of the policies (weights: 200 episodes), the
decoding error on 100 others, and how the teams act: steps an episode, and episodes cut at 200.
`--quick` is a glance, on tiny maps.
"""

import argparse
import time
from typing import Any

import numpy as np

import btil
from btil.analysis import hamming_distance, policy_divergence, team_performance

VARIABLES: dict[str, Any] = {"inputs": "variables"}
VARIANTS: dict[str, dict[str, Any]] = {
    "a network per latent, the state (the paper)": {},
    "variables and latent": VARIABLES,
    "the same, 2000 updates": VARIABLES | {"num_iterations": 2000},
    "the same, weight decay 1": VARIABLES | {"num_iterations": 2000, "weight_decay": 1.0},
    "variables and latent, early stopping": VARIABLES
    | {"num_iterations": 5000, "held_out": 0.2, "weight_decay": 0.01},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    map, number, trials = ("tiny", 10, 1) if options.quick else ("paper", 100, options.trials)
    print("| domain | inputs | JS Alice | JS Rob | Hamming | steps | cut | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name in ("movers", "cleanup"):
        task = getattr(btil.domains, name)(map)
        draws = [task.simulate(3 * number, seed=100 + trial) for trial in range(trials)]
        for words, given in VARIANTS.items():
            changes = {"num_iterations": 50} if options.quick else {}
            rows = []
            for trial, demos in enumerate(draws):
                train = demos.select(np.arange(2 * number))
                begun = time.perf_counter()
                team = btil.imitation.learn(
                    task,
                    train.select(np.arange(number // 5)),
                    "behavioral-cloning",
                    seed=trial,
                    progress=False,
                    **given | changes,
                )
                seconds = time.perf_counter() - begun
                found = team_performance(task, btil.domains.play(task, team, number, seed=trial))
                test = demos.select(np.arange(2 * number, 3 * number))
                rows.append(
                    [
                        *policy_divergence(train, task.policies(), team.policies),
                        hamming_distance(test, team).mean(),
                        found.steps.value,
                        100 * found.cut.value,
                        seconds,
                    ]
                )
            one, two, error, steps, cut, seconds = np.mean(rows, axis=0)
            print(
                f"| {task.name} | {words} | {one:.3f} | {two:.3f} | {error:.3f} | {steps:.0f} "
                f"| {cut:.0f}% | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
