"""The baselines of the paper's tables as the paper has them, and as well as they can be made.

`python benchmarks/baselines.py` lets behavioural cloning and MAGAIL learn from 20 labelled episodes
of Movers and Cleanup, in some draws of the data, and prints the Jensen-Shannon divergence of the
policies (weights: 200 episodes), the decoding error on 100 others, and how the teams act: steps an
episode, and episodes cut at 200. `--quick` is a glance, on tiny maps.
"""

import argparse
import time
from typing import Any

import numpy as np

import btil
from btil.analysis import hamming_distance, policy_divergence, team_performance

VARIABLES: dict[str, Any] = {"inputs": "variables"}
# What learns Movers too: more steps and updates per iteration, and policies that go on imitating.
CLONING_KEPT: dict[str, Any] = {
    "reward": "negative",
    "pretraining_iterations": 2000,
    "pretraining_batch_size": 128,
    "num_iterations": 100,
    "batch_size": 4096,
    "num_runs": 128,
    "num_epochs": 8,
    "discriminator_updates": 2,
    "first_discriminator_updates": 20,
    "first_iterations": 5,
    "discriminator_decay": 1.0,
    "value_iterations": 5,
    "cloning_weight": 1.0,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "BC, the paper's": ("behavioral-cloning", {}),
    "BC by variables": ("behavioral-cloning", VARIABLES),
    "BC by variables, 2000 updates": ("behavioral-cloning", VARIABLES | {"num_iterations": 2000}),
    "BC by variables, 2000 updates, weight decay 1": (
        "behavioral-cloning",
        VARIABLES | {"num_iterations": 2000, "weight_decay": 1.0},
    ),
    "BC by variables, early stopping": (
        "behavioral-cloning",
        VARIABLES | {"num_iterations": 5000, "held_out": 0.2, "weight_decay": 0.01},
    ),
    "MAGAIL, the paper's": ("magail", {}),
    "MAGAIL by variables, reward log D": (
        "magail",
        VARIABLES
        | {
            "reward": "negative",
            "pretraining_iterations": 500,
            "num_iterations": 200,
            "batch_size": 1024,
            "num_runs": 32,
            "discriminator_updates": 2,
            "first_discriminator_updates": 20,
            "first_iterations": 5,
            "discriminator_decay": 1.0,
        },
    ),
    "MAGAIL by variables, cloning kept": ("magail", VARIABLES | CLONING_KEPT),
    "PPO, the task's own reward": ("ppo", {"pretraining_iterations": 2000}),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[*VARIANTS], help="learners to run")
    parser.add_argument("--without", nargs="*", default=[], help="learners to leave out")
    options = parser.parse_args()
    map, number, trials = ("tiny", 10, 1) if options.quick else ("paper", 100, options.trials)
    print("| domain | learner | JS Alice | JS Rob | Hamming | steps | cut | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name in ("movers", "cleanup"):
        task = getattr(btil.domains, name)(map)
        draws = [task.simulate(3 * number, seed=100 + trial) for trial in range(trials)]
        for words, (method, given) in VARIANTS.items():
            if words in options.without or words not in options.only:
                continue
            changes = {"num_iterations": 50} if options.quick else {}
            rows = []
            for trial, demos in enumerate(draws):
                train = demos.select(np.arange(2 * number))
                begun = time.perf_counter()
                team = btil.imitation.learn(
                    task,
                    train.select(np.arange(number // 5)),
                    method,
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
