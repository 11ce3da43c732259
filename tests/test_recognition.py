"""Demonstrations know their task where they hold its names, its start and its steps; else not."""

import numpy as np
import pytest

import btil
from btil.analysis.compare import compare_posteriors
from btil.analysis.performance import team_performance
from btil.demonstrations import Demonstrations
from btil.domains import task_of
from btil.domains.gridworld.derived import task_states
from btil.inference.result import DirichletRows, FitResult
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


@pytest.fixture(scope="module")
def task():
    return btil.domains.cleanup("tiny")


@pytest.fixture(scope="module")
def demos(task):
    return task.simulate(5, seed=2)


@pytest.mark.parametrize("name", ["cleanup", "movers"])
@pytest.mark.parametrize("map", ["lesson", "rooms"])
def test_tasks_are_told_by_their_demonstrations(name, map):
    task = getattr(btil.domains, name)(map)
    # Nobody knows the way: planning it would take seconds.
    chance = np.full((task.num_states, task.num_latents, 6), 1 / 6)
    demos = task.simulate(2, seed=1, max_steps=20, policies=dict.fromkeys(task.agents, chance))
    assert task_of(demos) is task
    assert task_of(task.add_derived_variables(demos.without_labels())) is task


def test_task_states_alone_are_enough(task, demos):
    alone = Demonstrations(
        task_states(task, demos),
        demos.actions,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=task.num_states,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
    )
    assert task_of(alone) is task


def test_what_the_task_does_not_do_is_of_no_task(task, demos):
    variables = {name: np.array(values) for name, values in demos.state_variables.items()}
    moved = variables | {"alice_cell": variables["alice_cell"][::-1].copy()}
    assert task_of(demos.replace(states=moved)) is None
    acted = np.where(demos.actions < 5, demos.actions + 1, 0)
    assert task_of(demos.replace(actions=acted)) is None
    assert task_of(_begun_later(demos)) is None
    unseen = demos.actions.copy()
    unseen[1, 1] = -1
    assert task_of(demos.replace(actions=unseen, missing="allow")) is None
    fewer = demos.replace(actions=np.minimum(demos.actions, 4), num_actions=5, action_names=None)
    assert task_of(fewer) is None
    acts = task.action_names[::-1]
    assert task_of(demos.replace(action_names={"rob": acts})) is None
    names = {"item_0": ("away", "here", "there", "gone")}
    assert task_of(demos.replace(state_names=dict(demos.state_names) | names)) is None
    others = Demonstrations(
        variables,
        demos.actions,
        agents=("ann", "bob"),
        num_states=demos.num_states,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
        episodes=demos.episodes,
    )
    assert task_of(others) is None


def test_a_map_of_ones_own_is_not_taken_for_another():
    drawing = """
        0  . .
        G  # #
        AR 1 #
    """
    assert task_of(btil.domains.cleanup(drawing).simulate(5, seed=0)) is None


# ---------------------------------------------------------------------- comparisons


def learned(task, demos, share: float) -> TeamPosterior:
    """A posterior that no method has fitted: the true policies, mixed with chance."""
    wider = task.add_derived_variables(demos)
    true, state = task.policies(), tuple(task.state_sizes)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, parents=state),
        transition=task.true_model().transition,
        initial=task.true_model().initial,
    )
    bound = bind(model, wider)
    rows = {}
    for name, table in bound.learned.items():
        agent = name.removeprefix("policy_")
        states = task.encode(table.contexts.rows)
        rows[name] = DirichletRows(1e3 * (share * true[agent][states] + (1 - share) / 6))
    return TeamPosterior(
        bound,
        "mfvi",
        FitResult(rows, True, "made up"),
        seed=0,
        dtype=np.dtype(float),
        wall_time=1.0,
    )


def test_comparisons_tell_how_teams_act(task):
    demos = task.simulate(60, seed=2)
    posteriors = {"good": learned(task, demos, 1.0), "worse": learned(task, demos, 0.3)}
    found = compare_posteriors(posteriors, num_played=20, num_draws=20, seed=4)
    for name, posterior in posteriors.items():
        played = btil.domains.play(task, posterior, 20, seed=4)
        told = team_performance(task, played, num_resamples=500)
        row = found.table.loc[name]
        assert row["played_steps"] == told.steps.value
        assert row["played_cut"] == told.cut.value
        assert row["played_steps_se"] == pytest.approx(told.steps.error, rel=0.2)
    assert found.table["played_steps"]["good"] < found.table["played_steps"]["worse"]
    labels = [quantity.label for quantity in found.quantities()]
    assert "steps when it plays" in labels
    assert any(f"took {demos.episode_lengths.mean():.1f} steps" in note for note in found.notes)


def test_nobody_plays_unless_the_task_is_known(task, demos):
    posterior = learned(task, demos, 1.0)
    elsewhere = learned(task, _begun_later(demos), 1.0)
    for one, num_played in ((posterior, 0), (elsewhere, 20)):
        found = compare_posteriors({"one": one}, num_played=num_played, num_draws=20)
        assert not [column for column in found.table if column.startswith("played")]
        assert not [note for note in found.notes if "play" in note]
    with pytest.raises(ValueError, match="num_played must be a whole number of at least 0"):
        compare_posteriors({"one": posterior}, num_played=-1)


def _begun_later(demos):
    """Without the first step, which is where the task begins."""
    later = np.arange(demos.num_steps) >= 1
    return Demonstrations(
        {name: values[later] for name, values in demos.state_variables.items()},
        demos.actions[later],
        episodes=demos.episodes[later],
        agents=demos.agents,
        num_states=demos.num_states,
        num_actions=6,
        num_latents=4,
    )
