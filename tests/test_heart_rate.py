"""The Gaussian channel of examples/heart_rate.py, against forward-backward in plain NumPy."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import btil
from btil.inference.result import DrawnParameters, FitResult
from btil.posterior.numpyro_posterior import bind_model, posterior_class


class ByHand(NamedTuple):
    """What is believed of one nurse."""

    smoothed: np.ndarray
    filtered: np.ndarray
    actions: np.ndarray
    path: np.ndarray
    log_likelihood: np.ndarray


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "heart_rate.py"
    spec = importlib.util.spec_from_file_location("heart_rate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def posterior(example: ModuleType) -> btil.TeamPosterior:
    """A posterior of a few made-up draws around the truth."""
    generator = np.random.default_rng(0)
    train = example.simulate(2, seed=1)
    bound = bind_model(btil.NumpyroModel(example.ward), train)

    def drawn(value: Any, spread: float) -> DrawnParameters:
        shape = (1, 6, *np.shape(value))
        return DrawnParameters(value + generator.normal(0, spread, shape))

    parameters = {
        "stay": drawn(0.9, 0.02),
        "policy": DrawnParameters(generator.dirichlet([5.0, 2.0, 2.0], (1, 6, 2))),
        "rise": drawn(0.9, 0.1),
        "spread": drawn(0.8, 0.05),
        "rest_ann": drawn(-0.8, 0.1),
        "rest_bob": drawn(0.8, 0.1),
    }
    result = FitResult({}, True, "made up", parameters=parameters)
    made = {"method": "nuts", "seed": 0, "dtype": np.dtype(np.float64), "wall_time": 1.0}
    return posterior_class(bound)(bound=bound, result=result, **made)


def by_hand(example: ModuleType, posterior: Any, demos: Any, nurse: str) -> ByHand:
    """Scaled forward and backward messages and Viterbi's path, an episode at a time."""
    draws = {site: one.draws[0] for site, one in posterior.result.parameters.items()}
    stay = draws["stay"].mean()
    move = np.array([[stay, 1 - stay], [1 - stay, stay]])
    policy = draws["policy"].mean(0)
    beats = demos.state_variables[f"beats_{nurse}"]
    centre = 70 + 10 * draws[f"rest_{nurse}"][:, None] + 15 * draws["rise"][:, None] * [0, 1]
    scale = 8 * draws["spread"][:, None]
    away = (beats[:, None, None] - centre) / scale
    density = (np.exp(-(away**2) / 2) / (scale * np.sqrt(2 * np.pi))).mean(1)
    density[beats == example.LOST] = 1.0
    position = demos.agents.index(nurse)
    deeds, labels = demos.actions[:, position], demos.latents[:, position]
    likelihood = policy[:, deeds].T * density
    likelihood *= (labels[:, None] < 0) | (labels[:, None] == np.arange(2))
    parts = []
    for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
        ell = likelihood[start : start + length]
        predicted, forward, scales = (np.zeros(ell.shape) for _ in range(3))
        for t in range(length):
            predicted[t] = forward[t - 1] @ move if t else [0.5, 0.5]
            scales[t] = (predicted[t] * ell[t]).sum()
            forward[t] = predicted[t] * ell[t] / scales[t]
        backward = np.ones(ell.shape)
        best, pointers = np.log([0.5, 0.5]) + np.log(ell[0]), []
        for t in range(1, length):
            at = length - 1 - t
            backward[at] = move @ (ell[at + 1] * backward[at + 1]) / scales[at + 1]
            scores = best[:, None] + np.log(move)
            pointers.append(scores.argmax(0))
            best = scores.max(0) + np.log(ell[t])
        path = [int(best.argmax())]
        for pointer in pointers[::-1]:
            path.append(int(pointer[path[-1]]))
        total = np.log(scales[:, 0]).sum()
        parts.append((forward * backward, forward, predicted @ policy, path[::-1], [total]))
    return ByHand(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def test_beliefs_are_those_of_a_forward_backward_pass(
    example: ModuleType, posterior: btil.TeamPosterior
) -> None:
    labelled = example.with_few_labels(example.simulate(3, seed=7), 0.1, seed=0)
    demos = labelled.without_labels()
    assert (demos.state_variables["beats_ann"] == example.LOST).any()
    smoothed, filtered = posterior.smooth(demos), posterior.filter(demos)
    predicted, decoded = posterior.predict_actions(demos), posterior.decode(demos)
    total = np.zeros(demos.num_episodes)
    for i, nurse in enumerate(demos.agents):
        hand = by_hand(example, posterior, demos, nurse)
        np.testing.assert_allclose(smoothed[nurse], hand.smoothed, atol=1e-10)
        np.testing.assert_allclose(filtered[nurse], hand.filtered, atol=1e-10)
        np.testing.assert_allclose(predicted[nurse], hand.actions, atol=1e-10)
        np.testing.assert_array_equal(decoded[:, i], hand.path)
        with np.errstate(divide="ignore"):  # labels exclude latents
            total += by_hand(example, posterior, labelled, nurse).log_likelihood
    np.testing.assert_allclose(posterior.log_likelihood(labelled), total, rtol=1e-12)


def test_followed_live_it_is_the_same(example: ModuleType, posterior: btil.TeamPosterior) -> None:
    shift = example.simulate(1, seed=9).without_labels()
    tracker = posterior.tracker()
    hands = {nurse: by_hand(example, posterior, shift, nurse) for nurse in shift.agents}
    for step in range(shift.num_steps):
        state = {name: values[step] for name, values in shift.state_variables.items()}
        belief = tracker.update(state, shift.actions[step])
        for nurse, hand in hands.items():
            np.testing.assert_allclose(belief.latents[nurse], hand.filtered[step], atol=1e-10)
            np.testing.assert_allclose(
                belief.expected_actions[nurse], hand.actions[step], atol=1e-10
            )
