"""What slips in the code have shown to be missing: each test notices one that no other did.

`scripts/try_slips.py` makes them.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import btil
from btil.cli.learning import first_states
from btil.demonstrations.row_groups import File, together
from btil.domains.playing import _Part
from btil.inference.stochastic import Excerpt
from btil.messages.channels import ChannelData, sums_of_groups
from btil.study import episode as play
from btil.study.settings import Stage
from btil.study.teammate import rules_for
from btil.suggestion.held_out import Stretches, moves
from btil.suggestion.scores import Prior, Reads, transition_grid
from btil.suggestion.search import Pool, Scored


def test_latents_stay_more_where_the_variable_that_they_go_with_keeps_its_value() -> None:
    reads = Reads(np.array([0, 1]), np.array([0, 0]), num_latents=2, num_values=2)
    pool = Pool(
        role="transition",
        agents=("ann",),
        reads=reads,
        columns={"x": np.array([0, 0]), "next x": np.array([0, 1])},
        names={"x": {"ann": "x"}, "next x": {"ann": "next_x"}},
        changes={"x": np.array([0, 1])},
        plain=transition_grid(2),
        keeping=None,
    )
    kept = Scored(("next x", "x"), 0.0, Prior("keeps", strength=1.0, stay=8.0), "x", 2)
    one_fold = Stretches(
        step=np.array([[0], [1], [2]]),
        pair=np.array([[-1], [0], [1]]),
        label=np.array([[0], [0], [1]]),
        fold=np.array([0]),
        fold_of_step=np.zeros(3, int),
        fold_of_pair=np.zeros(2, int),
        episode=np.array([0]),
        agent=np.array([0]),
        num_folds=1,
    )
    # Nothing is counted in other folds: the prior alone speaks.
    _, keeps, changes = moves(pool, kept, one_fold)[:, 0]
    np.testing.assert_allclose(keeps, [[0.9, 0.1], [0.1, 0.9]])
    np.testing.assert_allclose(changes, 0.5)


def two_rows_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, episodes: str, place: str
) -> Path:
    """A file that is read by two rows; a letter or digit for each row."""
    monkeypatch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 2)
    path = folder / "team.parquet"
    rows = {"episode": list(episodes), "place": list(map(int, place))}
    table = pd.DataFrame(rows | {"action_ann": 0, "latent_ann": 0})
    table.insert(1, "step", table.groupby("episode").cumcount())
    table.to_parquet(path, row_group_size=2, index=False)
    return path


def test_filters_that_cut_an_episode_between_two_reads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_rows_at_a_time(tmp_path, monkeypatch, "aaaa", "0011")
    with pytest.raises(ValueError, match=r"row 2 .*: episode 'a' is kept in part"):
        btil.open_demonstrations(path, filters=[("place", "==", 0)]).read()


def test_an_episode_after_one_that_filters_left_out_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_rows_at_a_time(tmp_path, monkeypatch, "aabbbccc", "00111000")
    file = btil.open_demonstrations(path, filters=[("place", "==", 0)])
    assert file.num_episodes == 2
    demos = file.read()
    assert demos.episode_ids.tolist() == ["a", "c"]
    assert demos.episode_lengths.tolist() == [2, 3]


def test_small_files_are_read_together_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 4)
    rows = pa.table({"episode": [0, 0]})
    files = [File(Path(name), name, {}, (2,), 0, 1) for name in "abcde"]
    found = together(iter([(file, rows) for file in files]))
    assert [len(gathered) for gathered in found] == [2, 2, 1]
    # Tables of one file are read as they come.
    a, b, c, *_ = files
    found = together(iter([(a, rows), (a, rows), (b, rows), (c, pa.table({"episode": [0] * 9}))]))
    assert [[file.label for file, _ in gathered] for gathered in found] == [
        ["a"],
        ["a", "b"],
        ["c"],
    ]


class Undecided:
    """A learned member who may want either of two things, at first and next."""

    def initial(self, *_: object) -> np.ndarray:
        return np.array([[0.5, 0.5]])

    def transition(self, *_: object) -> np.ndarray:
        return np.array([[0.5, 0.5]])


def test_learned_members_change_their_minds_by_chances_of_their_own() -> None:
    stage = Stage(
        "session", domain="movers", map="tiny", temperature=0.3, select_every=5, max_steps=40
    )
    rules = rules_for(stage, "ai")._replace(members=(Undecided(), Undecided()))
    chance = np.zeros(play.NUM_CHANCES)
    episode = play.begin(rules_for(stage, "ai"), chance)._replace(latents=(0, 0))
    chance[3:5] = 0.2, 0.8
    after, _ = play.joint_step(rules, episode, (0, 0), chance, 1.0)
    assert after.latents == (0, 1)
    # At first, too.
    chance[:2] = 0.2, 0.8
    assert sorted(play.begin(rules, chance).latents) == [0, 1]
    # And what becomes of the task is decided by none of these.
    task = rules.task
    states = np.arange(task.num_states)
    branches, probs = task.transition(states, np.tile([0, 3], (len(states), 1)))
    state = int(np.argmax(probs[:, 1] == 0.5))
    led = []
    for chance[2] in (0.2, 0.8):
        after, _ = play.joint_step(rules, episode._replace(state=state), (0, 3), chance, 1.0)
        led.append(after.state)
    assert led == branches[state].tolist()
    assert led[0] != led[1]


class Repeats:
    """A learned member who does what the first of its teammates did at the step before."""

    agent = "rob"
    demos = btil.Demonstrations([0], {"rob": [0], "alice": [0]}, num_actions=2, num_latents=1)
    num_latents = 1
    variables = frozenset({"state"})

    def initial(self, states: Any, draw: Any) -> Any:
        raise NotImplementedError

    def policy(self, states: Any, latents: Any, draw: Any, previous: Any = None) -> Any:
        return np.eye(2)[previous[1][:, self.demos.agents.index("alice")]]

    def transition(
        self, states: Any, actions: Any, next_states: Any, latents: Any, draw: Any
    ) -> Any:
        raise NotImplementedError


def test_actions_of_the_step_before_are_told_in_the_order_that_was_learned() -> None:
    part = _Part([Repeats()], ["alice", "rob"], lambda states: {"state": states}, 1)
    nothing = np.zeros(2, int)
    # Alice's action first, as where they play.
    before = (nothing, np.array([[0, 1], [1, 0]]))
    rows = part.policy(nothing, nothing, nothing, before)
    np.testing.assert_array_equal(rows, np.eye(2))


def test_state_variables_take_no_more_lines_than_are_shown() -> None:
    states = [f"{16 * ' '}state {k}" for k in range(5)]
    shown = first_states(["steps           3", *states])
    assert shown == ["steps           3", *states[:2], f"{16 * ' '}... (--all shows all)"]
    few = ["steps           3", *states[:2]]
    assert first_states(few) == few


def test_padding_of_a_block_counts_for_no_context() -> None:
    data = ChannelData(
        values=np.array([[[1.0, 2.0], [0.0, 0.0]]]),
        real=np.array([[1.0, 0.0]]),
        group=np.zeros(1, np.int32),
        context=np.zeros(1, np.int32),
        seen=np.ones((1, 1)),
        place=np.zeros((1, 1), np.int32),
        source=np.zeros((1, 2), np.int32),
    )
    sums = sums_of_groups(jnp.array([[[0.25], [0.75]]]), data)
    np.testing.assert_array_equal(sums.number, [[0.25, 0.75]])
    np.testing.assert_array_equal(sums.outer[0, 0], 0.25 * np.array([[1, 2], [2, 4]]))


def test_further_episodes_of_an_excerpt_are_counted_from_the_first_part_on() -> None:
    part = btil.Demonstrations([0, 0, 0], [0, 1, 0], episodes=[0, 1, 2], num_latents=2)
    excerpt = Excerpt((2,), np.array([1, 5]))
    excerpt.look_at(part)
    excerpt.look_at(part)
    assert excerpt.numbers == [0, 1, 5]
