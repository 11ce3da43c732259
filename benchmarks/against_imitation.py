"""Behavioural cloning here and by the `imitation` library, on equal data, updates and widths.

`python benchmarks/against_imitation.py --python PATH` lets both learn from 20 labelled episodes of
Movers and Cleanup, in some draws of the data, and prints what `baselines.py` prints. Both read the
one-hot codes of all state variables and of the latent, one network per agent with hidden layers of
64, 128 and 128 and tanh; 128 examples per update, Adam with a learning rate of 7e-4.

The library wants another gymnasium than PettingZoo does, so that it cannot be installed beside this
package. PATH is the Python of an environment of its own:

    python3.12 -m venv /tmp/library && /tmp/library/bin/pip install imitation
    python benchmarks/against_imitation.py --python /tmp/library/bin/python
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import btil
from btil.analysis import hamming_distance, policy_divergence, team_performance
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import team_model

SCRIPT = Path(__file__).with_name("imitation_library.py")


def one_hot(task: GridTask, states: Any, latents: Any) -> np.ndarray:
    """Codes of all state variables and of the latent, side by side."""
    columns = np.concatenate([task.decode_states(states), np.asarray(latents)[:, None]], axis=1)
    sizes = (*task.state_sizes.values(), task.num_latents)
    codes = [
        np.eye(size, dtype=np.float32)[column]
        for column, size in zip(columns.T, sizes, strict=True)
    ]
    return np.concatenate(codes, axis=1)


def by_the_library(
    task: GridTask, demos: Demonstrations, python: str, updates: int, seed: int
) -> dict[str, np.ndarray]:
    """Policies of all agents, learned by the library in its own environment."""
    every = np.repeat(np.arange(task.num_states), task.num_latents)
    asked = one_hot(task, every, np.tile(np.arange(task.num_latents), task.num_states))
    policies = {}
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "given.npz"), Path(folder, "made.npz")
        for i, agent in enumerate(task.agents):
            shown = one_hot(task, task_states(task, demos), demos.latents[:, i])
            np.savez(given, shown=shown, actions=demos.actions[:, i], asked=asked)
            command = [python, str(SCRIPT), str(given), str(made), str(updates), str(seed)]
            subprocess.run(command, check=True)
            with np.load(made) as file:
                probs = file["probs"].astype(np.float64)
            shape = (task.num_states, task.num_latents, task.num_actions)
            policies[agent] = (probs / probs.sum(-1, keepdims=True)).reshape(shape)
    return policies


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="Python of the library's environment")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--updates", type=int, nargs="*", default=[500, 2000])
    options = parser.parse_args()
    print("| domain | updates | learner | JS Alice | JS Rob | Hamming | steps | cut |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    for name in ("movers", "cleanup"):
        task = getattr(btil.domains, name)("paper")
        draws = [task.simulate(300, seed=100 + trial) for trial in range(options.trials)]
        for updates in options.updates:
            rows: dict[str, list[list[float]]] = {"btil": [], "imitation": []}
            for trial, demos in enumerate(draws):
                train, test = demos.select(np.arange(200)), demos.select(np.arange(200, 300))
                shown = train.select(np.arange(20))
                given = {"inputs": "variables", "initialization": "orthogonal"}
                ours = btil.imitation.learn(
                    task,
                    shown,
                    "behavioral-cloning",
                    seed=trial,
                    progress=False,
                    num_iterations=updates,
                    **given,
                ).policies
                theirs = by_the_library(task, shown, options.python, updates, trial)
                for words, policies in (("btil", ours), ("imitation", theirs)):
                    team = btil.fit(team_model(task, policies, True), shown.without_labels())
                    played = btil.domains.play(task, policies, 100, seed=trial)
                    found = team_performance(task, played)
                    rows[words].append(
                        [
                            *policy_divergence(train, task.policies(), policies),
                            hamming_distance(test, team).mean(),
                            found.steps.value,
                            100 * found.cut.value,
                        ]
                    )
            for words, numbers in rows.items():
                one, two, error, steps, cut = np.mean(numbers, axis=0)
                print(
                    f"| {task.name} | {updates} | {words} | {one:.3f} | {two:.3f} | {error:.3f} "
                    f"| {steps:.0f} | {cut:.0f}% |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
