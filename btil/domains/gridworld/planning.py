r"""Value iteration on sparse problems, for all latents together, remembered on disk.

For latent x the values satisfy

.. math:: Q_x(s, a) = R_x(s, a) + \gamma \sum_{s'} P(s' | s, a) V_x(s'),
          \qquad V_x(s) = \max_a Q_x(s, a)

and the policy is the softmax of Q at a temperature (the paper, "Data of Multi-agent Teamwork").
"""

import hashlib
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.files import cache_folder, replacing

DISCOUNT = 0.95
TOLERANCE = 0.01
MAX_SWEEPS = 500


class PlanningProblem(NamedTuple):
    """A Markov decision problem that differs between latents by its rewards alone.

    Attributes:
        dynamics: P(s' | s, a), a SciPy CSR matrix of (states * actions) x states; the row of
            state s and action a is s * actions + a.
        rewards: R_x(s, a), minus infinity where the action is forbidden.
    """

    dynamics: Any
    rewards: Float[np.ndarray, "states actions latents"]


class Plan(NamedTuple):
    """The solution of a planning problem.

    Attributes:
        action_values: Q of the last sweep; minus infinity where forbidden.
        values: The values V from which that sweep started; minus infinity where every action is
            forbidden.
        num_sweeps: Sweeps done for each latent.
    """

    action_values: Float[np.ndarray, "states actions latents"]
    values: Float[np.ndarray, "states latents"]
    num_sweeps: Int[np.ndarray, " latents"]


def solve(problem: PlanningProblem) -> Plan:
    """Value iteration from zero, or the answer of an earlier run.

    Each latent is swept until the Euclidean norm of the change of its values is at most
    ``TOLERANCE``, or ``MAX_SWEEPS`` times. The values before the last sweep are kept in the
    folder ``BTIL_CACHE_DIR`` (by default ``btil`` in the user's cache folder) under the hash of
    everything they depend on; a damaged file is replaced.

    Args:
        problem: Dynamics and rewards.

    Returns:
        Q, V and the number of sweeps.
    """
    path = cache_folder() / f"values-{_fingerprint(problem)}.npz"
    shape = (problem.rewards.shape[0], problem.rewards.shape[2])
    known = _read(path, shape)
    if known is None:
        known = value_iteration(problem)
        _write(path, *known)
    values, num_sweeps = known
    return Plan(action_values(problem, values), values, num_sweeps)


def value_iteration(
    problem: PlanningProblem,
) -> tuple[Float[np.ndarray, "states latents"], Int[np.ndarray, " latents"]]:
    """Values before the last sweep, and the number of sweeps, of every latent."""
    num_states, num_actions, num_latents = problem.rewards.shape
    values = np.zeros((num_states, num_latents))
    num_sweeps = np.zeros(num_latents, np.int64)
    for latent in range(num_latents):
        # Forbidden actions never attain the maximum: only the rows of allowed ones are swept.
        rewards = problem.rewards[:, :, latent].reshape(-1)
        rows = np.flatnonzero(rewards > -np.inf)
        dynamics, rewards = problem.dynamics[rows], rewards[rows]
        states, first = np.unique(rows // num_actions, return_index=True)
        v = np.full(num_states, -np.inf)
        v[states] = 0.0
        while num_sweeps[latent] < MAX_SWEEPS:
            num_sweeps[latent] += 1
            q = rewards + DISCOUNT * (dynamics @ _finite(v))
            new = np.maximum.reduceat(q, first)
            values[:, latent] = v
            change = np.linalg.norm(new - v[states])
            v[states] = new
            if change <= TOLERANCE:
                break
    return values, num_sweeps


def action_values(
    problem: PlanningProblem, values: Float[np.ndarray, "states latents"]
) -> Float[np.ndarray, "states actions latents"]:
    """One sweep: Q from the values."""
    expected = problem.dynamics @ _finite(values)
    return problem.rewards + DISCOUNT * expected.reshape(problem.rewards.shape)


def softmax_policy(
    action_values: Float[np.ndarray, "states actions latents"], temperature: float
) -> Float[np.ndarray, "states latents actions"]:
    r"""The policy :math:`\pi(a | s, x) \propto \exp(Q_x(s, a) / \text{temperature})`.

    Minus infinity counts as the most negative finite number: a forbidden action is never taken
    where another is allowed, and where none is, all are alike.

    Args:
        action_values: Q.
        temperature: Positive; towards 0 the best action is taken, towards infinity any.
    """
    q = _finite(np.swapaxes(action_values, 1, 2))
    with np.errstate(over="ignore"):  # the most negative number, divided, is minus infinity
        weights = np.exp((q - q.max(-1, keepdims=True)) / temperature)
    return weights / weights.sum(-1, keepdims=True)


def _finite(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    # 0 * -inf would be NaN.
    return np.maximum(values, np.finfo(values.dtype).min)


def _fingerprint(problem: PlanningProblem) -> str:
    digest = hashlib.blake2b(digest_size=20)
    matrix = problem.dynamics
    digest.update(repr((DISCOUNT, TOLERANCE, MAX_SWEEPS, problem.rewards.shape)).encode())
    for array in (matrix.indptr, matrix.indices, matrix.data, problem.rewards):
        digest.update(str(array.dtype).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _read(path: Path, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        # Opened here: np.load leaves a file open that turns out to be no whole archive.
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            values, num_sweeps = file["values"], file["num_sweeps"]
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
    good = values.shape == shape and values.dtype == np.float64 and num_sweeps.shape == shape[1:]
    return (values, num_sweeps) if good and not np.isnan(values).any() else None


def _write(path: Path, values: np.ndarray, num_sweeps: np.ndarray) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, values=values, num_sweeps=num_sweeps)
    except OSError as error:
        warnings.warn(
            f"the plan could not be kept in {path.parent} ({error}); it will be worked out again "
            "next time. Set BTIL_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )
