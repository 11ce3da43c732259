"""The demo: what of the recordings it learns from, and what it believes before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from btil import Demonstrations
from btil.analysis import demo
from btil.analysis.demo import choose_labelled, demo_model, first_steps, run_demo
from btil.domains.overcooked import ACTIONS, INTENTS


def test_the_first_steps_of_every_episode_are_kept() -> None:
    demos = Demonstrations(
        {"x": [0, 1, 2, 3, 4, 5, 6, 7]},
        np.arange(16).reshape(8, 2),
        latents=np.arange(16).reshape(8, 2)[::-1],
        episodes=[0, 0, 0, 1, 2, 2, 2, 2],
        agents=("ann", "bob"),
        num_latents=16,
        num_actions=16,
    )
    few = first_steps(demos, 2)
    kept = [0, 1, 3, 4, 5]
    assert few.state_variables["x"].tolist() == kept
    np.testing.assert_array_equal(few.actions, demos.actions[kept])
    np.testing.assert_array_equal(few.latents, demos.latents[kept])
    assert few.episode_ids.tolist() == [0, 1, 2]
    assert few.episode_lengths.tolist() == [2, 1, 2]
    assert (few.num_actions, few.num_states) == (demos.num_actions, demos.num_states)
    assert first_steps(demos, 4) == demos


def test_a_share_of_the_episodes_is_labelled_at_least_one_in_order() -> None:
    for number, share, expected in ((8, 0.75, 6), (8, 0.01, 1), (5, 1.0, 5), (10, 0.34, 3)):
        chosen = choose_labelled(number, share, seed=3)
        assert len(set(chosen.tolist())) == expected
        assert chosen.tolist() == sorted(chosen)
        assert 0 <= chosen.min() <= chosen.max() < number
    several = {tuple(choose_labelled(20, 0.3, seed).tolist()) for seed in (0, 0, 1, 2)}
    assert len(several) == 3
    for share in (0.0, 1.2):
        with pytest.raises(ValueError, match="share must be a"):
            choose_labelled(8, share, 0)


def test_intents_keep_while_the_own_holding_keeps() -> None:
    model = demo_model()
    transition = model.transition.cpt.concentration_per_cell  # type: ignore[union-attr]
    assert transition.shape == (4, 4, len(INTENTS), len(INTENTS))
    for held, following, intent, then in np.ndindex(*transition.shape):
        expected = 0.5 if held != following else 20.0 if intent == then else 0.1
        assert transition[held, following, intent, then] == expected
    policy = model.policy.cpt.concentration_per_cell  # type: ignore[union-attr]
    assert policy.tolist() == [0.2 if action == "interact" else 1.0 for action in ACTIONS]


class Compared:
    """A comparison of which only its report is asked for."""

    asked: dict[str, Any]

    def report(self, directory: Path, command: str) -> Path:
        self.asked |= {"directory": directory, "command": command}
        return directory / "report.html"


def test_the_demo_learns_from_few_labels_and_is_tested_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Compared()

    def compare(model: Any, demos: Any, **given: Any) -> Compared:
        found.asked = given | {"model": model, "demos": demos}
        return found

    printed: list[Any] = []
    monkeypatch.setattr(demo, "compare", compare)
    monkeypatch.setattr(demo, "print_table", printed.append)
    said: list[str] = []
    page = run_demo(tmp_path / "out", progress=False, say=said.append)
    asked = found.asked
    assert page == tmp_path / "out" / "report.html"
    assert (asked["directory"], asked["command"]) == (tmp_path / "out", "btil demo")
    assert printed == [found]
    demos, test = asked["demos"], asked["test"]
    assert demos.episode_lengths.tolist() == [100] * 8
    assert not set(demos.episode_ids.tolist()) & set(test.episode_ids.tolist())
    labelled = [(demos.select([k]).latents >= 0).any() for k in range(8)]
    kept = choose_labelled(8, 0.75, 0)
    assert np.flatnonzero(labelled).tolist() == kept.tolist()
    assert (test.latents >= 0).any()
    assert (asked["methods"], asked["options"]) == (demo.METHODS, demo.OPTIONS)
    assert (asked["seed"], asked["progress"]) == (0, False)
    ids = ", ".join(map(str, demos.episode_ids[kept]))
    assert f"         labels of trials {ids} are kept" in said
    assert "  train: 8 trials, 800 steps, the first 100 of each;" in said
    assert "  gibbs   num_chains 4, num_warmup 300, num_samples 700" in said
    assert "  mfvi    default options" in said
