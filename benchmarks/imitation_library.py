"""Behavioural cloning by the `imitation` library: run by `against_imitation.py`, in its own Python.

Takes a file with `shown` (steps, features), `actions` (steps,) and `asked` (rows, features), and
writes `probs` (rows, actions). No part of btil is imported, which that Python does not have.
"""

import sys

import gymnasium
import numpy as np
import torch
from imitation.algorithms import bc
from imitation.data.types import Transitions
from stable_baselines3.common.policies import ActorCriticPolicy

_EXAMPLES, _RATE, _WIDTHS = 128, 7e-4, [64, 128, 128]


def main(given: str, made: str, updates: int, seed: int) -> None:
    """Learn from one file, answer in another."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with np.load(given) as file:
        shown, actions, asked = file["shown"], file["actions"], file["asked"]
    infos = np.array([{}] * len(actions))
    observations = gymnasium.spaces.Box(0.0, 1.0, shown.shape[1:], np.float32)
    choices = gymnasium.spaces.Discrete(6)
    learner = bc.BC(
        observation_space=observations,
        action_space=choices,
        rng=np.random.default_rng(seed),
        demonstrations=Transitions(shown, actions, infos, shown, np.zeros(len(shown), bool)),
        batch_size=_EXAMPLES,
        optimizer_kwargs={"lr": _RATE},
        policy=ActorCriticPolicy(
            observations,
            choices,
            lr_schedule=lambda _: _RATE,
            net_arch=_WIDTHS,
            activation_fn=torch.nn.Tanh,
        ),
    )
    learner.train(n_batches=updates, progress_bar=False, log_interval=10**9)
    with torch.no_grad():
        parts = [
            learner.policy.get_distribution(torch.as_tensor(part)).distribution.probs.numpy()
            for part in np.array_split(asked, 1 + len(asked) // 50000)
        ]
    np.savez(made, probs=np.concatenate(parts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
