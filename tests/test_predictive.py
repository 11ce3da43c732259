"""Predictive checks: right models pass whatever the task does, models without memory do not."""

import dataclasses

import jax
import matplotlib.figure
import numpy as np
import pytest
from scipy import stats
from teams import random_demos, rich_model

import btil
from btil.analysis.latent_draws import draw_latents
from btil.analysis.predictive import (
    Play,
    PredictiveCheck,
    Statistic,
    _as_play,
    _bands,
    _one_step_ahead,
    _setting,
    posterior_predictive_check,
)
from btil.inference.processes import ALONE
from btil.inference.result import FitResult
from btil.messages.layout import lay_out
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior

POLICY = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])


def stays(lengths, num_episodes, generator):
    """Two mental states in turn, held for lengths that are drawn from a list; actions tell them."""
    latents, episodes = [], []
    for episode in range(num_episodes):
        path = []
        latent = int(generator.integers(2))
        while len(path) < 30:
            path += [latent] * int(generator.choice(lengths))
            latent = 1 - latent
        latents += path[:30]
        episodes += [episode] * 30
    latents = np.array(latents)
    actions = (generator.random((len(latents), 1)) > POLICY[latents].cumsum(1)).sum(1)
    return btil.Demonstrations(
        np.zeros(len(latents), int),
        actions,
        latents=latents,
        episodes=episodes,
        agents=("ann",),
        num_states=1,
        num_actions=3,
        num_latents=2,
    )


def markov_model():
    return btil.TeamModel(
        btil.DirichletCPT(1.0), btil.DirichletCPT(1.0), initial=btil.DirichletCPT(1.0)
    )


def checked(demos, **options):
    fitted = btil.fit(markov_model(), demos, progress=False)
    return posterior_predictive_check(fitted, **options)


def geometric(generator, mean=4):
    return generator.geometric(1 / mean, 500)


def test_stays_of_equal_length_are_no_markov_chain():
    generator = np.random.default_rng(0)
    found = checked(stays([4], 20, generator), num_draws=200)
    wrong = found.surprising()
    assert {"after 1 step", "after 2 to 3 steps", "after 4 to 7 steps"} <= set(wrong["statistic"])
    row = found.table.set_index("statistic").loc["after 1 step"]
    assert row["observed"] == 0
    assert row["place"] == 0
    # All else about them is right, the mean length of a stay too.
    assert set(wrong["group"]) == {"leaving"}
    assert len(found.table) > 2 * len(wrong)


@pytest.mark.parametrize("replicate", ["steps", "episodes"])
def test_geometric_stays_are(replicate):
    generator = np.random.default_rng(1)
    found = checked(stays(geometric(generator), 20, generator), replicate=replicate, num_draws=100)
    assert found.surprising().empty
    assert len(found.table) > 10


def test_hidden_stays_of_equal_length_are_found_too():
    generator = np.random.default_rng(2)
    demos = stays([4], 40, generator)
    found = checked(demos.without_labels(range(20, 40)), num_draws=200)
    assert found.share_labelled == 0.5
    assert "after 1 step" in set(found.surprising()["statistic"])
    ages = found.table[found.table["group"] == "leaving"]
    assert (ages["sd"] > 0).all()
    assert (found.table[found.table["group"] == "actions"]["sd"] == 0).all()
    assert any("50% of the steps are drawn" in note for note in found.notes())


def test_whole_episodes_tell_how_stays_scatter():
    generator = np.random.default_rng(3)
    found = checked(stays([4], 20, generator), replicate="episodes", num_draws=100)
    wrong = set(found.surprising()["statistic"])
    assert "standard deviation" in wrong
    spread = found.table[found.table["statistic"] == "standard deviation"].set_index("group")
    assert spread.loc["dwell", "observed"] < 1.0 < spread.loc["dwell", "low"]


# A task in which the next state is the action taken, and the mental state follows it.
ANSWERING = btil.TeamModel(
    policy=btil.KnownCPT(
        np.array([[[0.8, 0.2], [0.3, 0.7]], [[0.5, 0.5], [0.1, 0.9]]]), parents=("state",)
    ),
    transition=btil.KnownCPT(
        np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]]]), parents=("next_state",)
    ),
)


def answering_play(generator, num_steps=60):
    """The state answers the action: a rollout of a task, by the model above."""
    policy, transition = (
        np.asarray(getattr(ANSWERING, r).table_or_function) for r in ("policy", "transition")
    )
    state, latent = 0, int(generator.integers(2))
    states, actions, latents = [], [], []
    for _ in range(num_steps):
        action = int(generator.random() < policy[state, latent, 1])
        states.append(state)
        actions.append(action)
        latents.append(latent)
        state = action
        latent = int(generator.random() < transition[state, latent, 1])
    return btil.Demonstrations(
        states, actions, latents=latents, num_states=2, num_actions=2, num_latents=2
    )


def checked_play(seed, num_steps, num_draws, replicate="steps"):
    demos = answering_play(np.random.default_rng(seed), num_steps)
    fitted = btil.fit(ANSWERING, demos, progress=False)
    return posterior_predictive_check(fitted, num_draws=num_draws, seed=seed, replicate=replicate)


def test_one_step_ahead_a_right_model_is_right_whatever_the_task_does():
    found = checked_play(0, 2000, 100)
    assert len(found.table) > 12
    assert found.surprising().empty
    # Whole episodes assume that the states would have been the same: they find fault.
    whole = checked_play(0, 2000, 8, "episodes")
    assert {"actions", "switches"} <= set(whole.surprising()["group"])


def test_places_under_the_right_model_are_uniform():
    tables = [checked_play(seed, 60, 30).table for seed in range(60)]
    values = np.array([table["place"] for table in tables])
    for column, group in zip(values.T, tables[0]["group"], strict=True):
        if group != "leaving":  # few steps at high ages: places of many ties
            assert stats.kstest(column, "uniform").pvalue > 1e-3


def test_statistics_by_hand():
    demos = btil.Demonstrations(
        {"x": [0, 0, 1, 0, 1, 1]},
        [[0, 1], [1, 1], [1, 0], [0, 0], [0, 1], [1, 1]],
        latents=[[0, 0], [0, 1], [1, 1], [1, 1], [1, 0], [0, 0]],
        episodes=[0, 0, 0, 1, 1, 1],
        agents=("ann", "bob"),
        num_latents=2,
        action_names=("go", "stay"),
    )
    model = btil.TeamModel(policy=btil.DirichletCPT(1.0, parents=("x",)))
    fitted = btil.fit(model, demos, progress=False)
    table = posterior_predictive_check(fitted, num_draws=20, num_contexts=1).table
    actions = table.set_index(["agent", "statistic", "given"])["observed"]
    assert actions["ann", "go", ""] == pytest.approx(3 / 6)
    assert actions["ann", "stay", "x=0"] == pytest.approx(1 / 3)
    assert actions["bob", "stay", ""] == pytest.approx(4 / 6)
    table = table.set_index(["agent", "group", "statistic"])["observed"]
    assert table["ann", "mental states", "1"] == pytest.approx(3 / 6)
    # ann: 0 0 1 and 1 1 0, so two steps held in 0 and one departure; likewise in 1.
    assert table["ann", "dwell", "steps in 0"] == 2
    assert table["ann", "dwell", "steps in 1"] == 2
    # Held for one step at steps 1 of both episodes, for two at steps 2.
    assert table["ann", "leaving", "after 1 step"] == 0
    assert table["ann", "leaving", "after 2 to 3 steps"] == 1
    # bob: 0 1 1 and 1 0 0.
    assert table["bob", "dwell", "steps in 0"] == 2
    assert table["bob", "leaving", "after 1 step"] == 2 / 4
    assert ("bob", "leaving", "after 2 to 3 steps") not in table.dropna().index
    assert table["bob", "switches", "mean"] == 1
    assert table["team", "alignment", "all have the same in mind"] == pytest.approx(4 / 6)


def test_one_step_ahead_everything_comes_from_what_was_before_it():
    """Tables that leave no choice: each reads the state, and what its own agent held."""
    turn = np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]], float)  # x, latent before: the next
    acts = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, 1, 0]]], float)
    model = btil.TeamModel(
        policy=btil.KnownCPT(acts, parents=("x",)),
        transition=btil.KnownCPT(turn, parents=("x",)),
        initial=btil.KnownCPT(np.array([[0, 1], [1, 0]], float), parents=("x",)),
    )
    demos = btil.Demonstrations(
        {"x": [0, 1, 0, 1, 1, 0]},
        np.zeros((6, 2), int),
        episodes=[0, 0, 0, 1, 1, 1],
        agents=("ann", "bob"),
        num_actions=3,
        num_latents=2,
    )
    bound = bind(model, demos)
    rows = {name: table.prior_mean() for name, table in bound.tables.items()}
    held = np.array([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]])
    seen = _as_play(bound, held, demos.actions)
    again = _one_step_ahead(bound, rows, seen, np.random.default_rng(0))
    # ann held 0 1 0 and 1 0 1: from x = 0 and 0 to 1, from x = 1 and 1 to 0, ...
    assert again.latents.T.tolist() == [[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert again.actions.T.tolist() == [[0, 1, 0, 1, 2, 1], [1, 1, 0, 2, 1, 1]]
    np.testing.assert_array_equal(again.before, seen.before)
    np.testing.assert_array_equal(again.age, seen.age)


def test_the_table_says_what_draws_say():
    generator = np.random.default_rng(0)
    observed, replicated = generator.normal(size=(2, 300, 4))
    observed[:, 1] = np.quantile(replicated[:, 1], [0.996])
    observed[:, 2] = np.quantile(replicated[:, 2], [0.004])
    observed[:, 3] = np.quantile(replicated[:, 3], [0.985])
    replicated[:5, 0] = np.nan
    statistics = (
        Statistic("actions", "ann", "go", "x=1"),
        Statistic("dwell", "bob", "steps in 0"),
        Statistic("columns", "bob", "mean", "pulse"),
        Statistic("dwell", "ann", "steps in 1"),
    )
    blocks = np.arange(300) // 15
    check = PredictiveCheck(statistics, observed, replicated, "episodes", 0.25, blocks)
    table = check.table
    assert table[["group", "agent", "statistic", "given"]].to_numpy().tolist() == [
        list(one) for one in statistics
    ]
    np.testing.assert_allclose(table["observed"], observed.mean(0))
    np.testing.assert_allclose(table["sd"], [observed[:, 0].std(), 0, 0, 0], atol=1e-12)
    known = replicated[5:, 0]
    np.testing.assert_allclose(table["predicted"], [known.mean(), *replicated[:, 1:].mean(0)])
    low, high = np.quantile(known, [0.055, 0.945])
    np.testing.assert_allclose(table.loc[0, ["low", "high"]].astype(float), [low, high])
    assert table.loc[0, "place"] == pytest.approx((known < observed[5:, 0]).mean())
    assert table["surprising"].tolist() == [False, True, True, False]
    assert check.surprising().index.tolist() == [1, 2]
    assert repr(check) == "PredictiveCheck(4 statistics, 2 of them surprising)"
    # Blocks of draws that are left out together.
    below = (replicated[:, 3] < observed[:, 3]).reshape(20, 15).sum(1)
    without = (below.sum() - below) / 285
    assert table.loc[3, "place_error"] == pytest.approx(np.sqrt(19 * without.var()))
    drawn, labels, _ = check.notes()
    assert drawn.startswith("300 posterior draws; what was seen is replicated from the start of")
    assert labels.startswith("Mental states of 75% of the steps are drawn from the posterior")
    told = dataclasses.replace(check, share_labelled=1.0, replicate="steps").notes()
    assert "one step ahead of what was seen" in told[0]
    assert told[1] == "Mental states are the labels."
    tree = check.to_datatree()
    assert list(tree["realized"].data_vars) == ["actions", "dwell", "columns"]
    names = ["bob: steps in 0", "ann: steps in 1"]
    for group, values in (("posterior_predictive", replicated), ("realized", observed)):
        dwell = tree[group]["dwell"]
        assert dwell.dims == ("chain", "draw", "dwell_statistic")
        np.testing.assert_array_equal(dwell[0], values[:, [1, 3]])
        assert dwell.coords["dwell_statistic"].values.tolist() == names
    np.testing.assert_allclose(tree["observed_data"]["dwell"], observed[:, [1, 3]].mean(0))
    shown = check.summary_table()
    assert [list(column.cells)[1].plain for column in shown.columns][:2] == [
        "bob, dwell", "steps in 0",
    ]  # fmt: skip
    assert [cell.plain for cell in shown.columns[-1].cells] == ["", "*", "*", ""]
    assert [one.words for one in statistics[:3]] == ["go, given x=1", "steps in 0", "pulse: mean"]


def test_the_contexts_that_are_told_are_the_most_frequent():
    """bob acts at x = 1 four times of five; ann and bob have the same in mind or not."""

    def setting(number=1, **changes):
        arguments = {
            "states": {"x": [0, 1, 1, 0, 1, 1, 2]},
            "actions": [[0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [1, 0], [1, -1]],
            "latents": [[0, 1], [1, 0], *[[-1, -1]] * 5],
            "episodes": [0, 0, 1, 1, 1, 2, 2],
            "agents": ("ann", "bob"),
            "num_latents": 2,
            "missing": "allow",
        } | changes
        model = btil.TeamModel(policy=btil.DirichletCPT(1.0, parents=("x",)))
        bound = bind(model, btil.Demonstrations(**arguments))
        result = FitResult({}, True, "made by hand")
        posterior = TeamPosterior(bound, "mfvi", result, 0, np.dtype(float), 0.0)
        return _setting(posterior, [bound, bound], number, ALONE)

    found = setting()
    assert found.contexts == {agent: [("", None), ("x=1", (1,))] for agent in ("ann", "bob")}
    assert (found.longest, found.comparable) == (3, True)
    assert [words for words, _ in setting(5).contexts["ann"]] == ["", "x=1", "x=0", "x=2"]
    assert [words for words, _ in setting(5).contexts["bob"]] == ["", "x=1", "x=0"]
    # Mental states of other names, or that nothing distinguishes, are not compared.
    assert not setting(latent_names={"bob": ("in", "out")}).comparable
    assert not setting(latents=[[0, -1], [1, -1], *[[-1, -1]] * 5]).comparable


def test_latents_are_drawn_where_there_is_no_label_and_nobody_is_away():
    """Actions that tell latents for sure; two in three steps are labelled."""
    generator = np.random.default_rng(0)
    actions = generator.integers(2, size=(200, 2))
    there = np.ones((200, 2), bool)
    there[50:60, 1] = False
    known = there & (np.arange(200) % 3 > 0)[:, None]
    demos = btil.Demonstrations(
        np.zeros(200, int), actions, latents=np.where(known, actions, -1), present=there,
        agents=("ann", "bob"), num_latents=2, num_actions=2,
    )  # fmt: skip
    model = btil.TeamModel(policy=btil.KnownCPT(np.eye(2)), transition=btil.UniformCPT())
    posterior = btil.fit(model, demos, progress=False)
    bound, layout = posterior.bound, lay_out(posterior.bound, coarse=True)
    rows = {name: table.prior_mean() for name, table in bound.tables.items()}
    found = draw_latents(posterior, bound, layout, rows, jax.random.key(0))
    np.testing.assert_array_equal(found, np.where(there, actions, -1))


def test_ages_are_told_in_bands_up_to_the_longest_episode():
    assert _bands(1) == []
    assert _bands(3) == [(1, 2), (2, 4)]
    assert _bands(9) == [(1, 2), (2, 4), (4, 8), (8, 10)]
    assert _bands(100)[-2:] == [(16, 32), (32, 101)]


def test_ages_begin_anew_with_every_episode():
    demos = random_demos(lengths=(4, 1, 3), num_latents=(2,), num_actions=(2,))
    latents = np.array([[1, 1, 1, 0, 0, 0, 0, 1]]).T
    play = _as_play(bind(rich_model(), demos), latents, demos.actions)
    assert play.before[:, 0].tolist() == [-1, 1, 1, 1, -1, -1, 0, 0]
    assert play.age[:, 0].tolist() == [0, 1, 2, 3, 0, 0, 1, 2]
    assert isinstance(play, Play)


def test_minds_are_drawn_independently_of_each_other():
    """Of two who do the same, in tables that say next to nothing, each has a mind of its own."""
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.5, 0.5], [0.49, 0.51]]), transition=btil.UniformCPT()
    )
    actions = np.tile(np.arange(200)[:, None] % 2, (1, 2))
    demos = btil.Demonstrations(np.zeros(200, int), actions, num_latents=2)
    table = posterior_predictive_check(btil.fit(model, demos, progress=False), num_draws=2).table
    (agree,) = table.loc[table["group"] == "alignment", "observed"]
    # Of 400 steps: the standard error is 0.025.
    assert abs(agree - 0.5) < 0.1


def test_the_same_seed_gives_the_same_bits():
    demos = random_demos(lengths=(6, 5), labelled=0.3)
    fitted = btil.fit(rich_model(), demos, progress=False, max_iterations=3)
    one, same, other = (
        posterior_predictive_check(fitted, num_draws=5, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.replicated, same.replicated)
    np.testing.assert_array_equal(one.observed, same.observed)
    assert not np.array_equal(one.replicated, other.replicated, equal_nan=True)
    # Agents of different latents have no alignment; labels stay what they are.
    assert "alignment" not in set(one.table["group"])


def test_figure_terminal_and_tree():
    generator = np.random.default_rng(0)
    found = checked(stays([4], 4, generator), num_draws=50)
    assert isinstance(found.plot(), matplotlib.figure.Figure)
    tree = found.to_datatree()
    dwell = tree["posterior_predictive"]["dwell"]
    assert dict(dwell.sizes) == {"chain": 1, "draw": 50, "dwell_statistic": 2}
    assert tree["observed_data"]["dwell"].coords["dwell_statistic"].values.tolist() == [
        "ann: steps in 0",
        "ann: steps in 1",
    ]
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(found.summary_table())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert any("ann, leaving" in line and "*" in line for line in lines)
    assert "surprising" in repr(found)


def test_places_count_ties_half_and_pass_over_what_is_not_there():
    check = PredictiveCheck(
        (Statistic("dwell", "ann", "a"), Statistic("dwell", "ann", "b")),
        np.array([[1.0, np.nan], [1.0, np.nan], [1.0, np.nan], [1.0, np.nan]]),
        np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [np.nan, 1.0]]),
        "steps",
        1.0,
        np.arange(4),
    )
    assert check.place[0] == pytest.approx(0.5)
    assert np.isnan(check.place[1])
    # Leaving out one draw after the other: 0.25, 0.5, 0.75 and 0.5.
    np.testing.assert_allclose(check.place_error, [np.sqrt(3 / 32), np.nan])
    assert not check.table["surprising"].any()


def test_places_differ_from_seed_to_seed_by_the_error_that_is_told():
    demos = random_demos(lengths=(6, 5))
    fitted = btil.fit(rich_model(), demos, progress=False)
    found = [
        posterior_predictive_check(fitted, num_draws=40, seed=seed, num_contexts=0)
        for seed in range(6)
    ]
    places, errors = (
        np.array([getattr(one, name) for one in found]) for name in ("place", "place_error")
    )
    # A statistic that a single draw has tells no error.
    inside = ((places > 0.05) & (places < 0.95) & np.isfinite(errors)).all(0)
    assert inside.sum() > 10
    ratio = places[:, inside].var(0, ddof=1).mean() / (errors[:, inside] ** 2).mean()
    assert 0.6 < np.sqrt(ratio) < 1.5
    row = found[0].table.iloc[0]
    assert row["place_error"] == errors[0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicate": "task"}, "'steps' or 'episodes', got 'task'"),
        ({"num_draws": 0}, "num_draws must be a whole number of at least 1"),
        ({"num_contexts": -1}, "num_contexts must be a whole number of at least 0"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message):
    demos = random_demos()
    fitted = btil.fit(rich_model(), demos, progress=False)
    with pytest.raises(ValueError, match=message):
        posterior_predictive_check(fitted, **options)


def test_models_without_tables_are_refused():
    demos = random_demos()
    fitted = btil.fit(rich_model(), demos, progress=False, max_iterations=2)
    own = dataclasses.replace(fitted.bound, model=btil.NumpyroModel(lambda data: None))
    with pytest.raises(ValueError, match="replicated from tables, which a NumpyroModel has not"):
        posterior_predictive_check(dataclasses.replace(fitted, bound=own))


def made_check():
    """Two agents and the team: 200 draws of what was seen, and of what is replicated."""
    statistics = (
        Statistic("actions", "ann", "push", "in the hall"),
        Statistic("actions", "ann", "pull", "in the hall"),
        Statistic("actions", "ann", "push", "in the yard"),
        Statistic("actions", "bob", "push"),
        Statistic("dwell", "bob", "steps in rest"),
        Statistic("columns", "bob", "mean", "speed"),
        Statistic("alignment", "team", "aligned"),
        Statistic("dwell", "ann", "steps in rest"),
    )
    generator = np.random.default_rng(0)
    centres = np.array([0.5, 0.2, 0.7, 0.4, 5.0, -3.0, 0.6, np.nan])
    observed = centres + 0.05 * generator.normal(size=(200, 8))
    observed[:, :4] = centres[:4]
    replicated = centres + 0.1 * generator.normal(size=(200, 8))
    replicated[:, 1] += 2.0  # what was seen lies below all that is replicated
    return PredictiveCheck(
        statistics, observed, replicated, "steps", 1.0, blocks=np.arange(200) // 20
    )


def test_figure_shows_each_statistic_where_it_was_seen_and_is_predicted():
    check = made_check()
    table = check.table
    assert table["surprising"].tolist() == [k == 1 for k in range(8)]
    figure = check.plot()
    shown = {axes.get_title(loc="left"): axes for axes in figure.axes}
    # What nothing was seen of is left out.
    lines = {
        "ann: actions, given in the hall": [0, 1], "ann: actions, given in the yard": [2],
        "bob: actions": [3], "bob: dwell": [4], "team: alignment": [6], "bob: speed": [5],
    }  # fmt: skip
    assert set(shown) == set(lines)
    for title, own in lines.items():
        axes = shown[title]
        rows = table.iloc[own]
        group = check.statistics[own[0]].group
        assert axes.get_xlabel() == check.units[group]
        words = [text.get_text() for text in axes.get_yticklabels()]
        assert words == rows["statistic"].tolist(), title
        ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
        np.testing.assert_allclose(ends, rows[["low", "high"]])
        assert [bar.get_y() + bar.get_height() / 2 for bar in axes.patches] == pytest.approx(
            range(len(own))
        )
        means = axes.collections[0].get_offsets()
        np.testing.assert_allclose(means, np.stack([rows["predicted"], range(len(own))], 1))
        for bars, surprising, marker in zip(axes.containers[1:], (False, True), "os", strict=True):
            chosen = rows["surprising"].to_numpy() == surprising
            dots, _, (spread,) = bars.lines
            assert dots.get_marker() == marker
            np.testing.assert_allclose(dots.get_xdata(orig=False), rows["observed"][chosen])
            np.testing.assert_array_equal(dots.get_ydata(orig=False), np.flatnonzero(chosen))
            segments = np.reshape([one[:, 0] for one in spread.get_segments()], (-1, 2))
            seen, sd = rows["observed"][chosen], rows["sd"][chosen]
            np.testing.assert_allclose(segments, np.stack([seen - sd, seen + sd], 1))
        # The first line above, everything within the panel.
        bottom, top = axes.get_ylim()
        assert top < 0 <= len(own) - 1 < bottom
        left, right = axes.get_xlim()
        assert left < min(rows["low"].min(), (rows["observed"] - rows["sd"]).min())
        assert right > max(rows["high"].max(), (rows["observed"] + rows["sd"]).max())
    labels = [text.get_text() for text in figure.legends[0].texts]
    assert labels == ["seen", "seen, surprising", "89% of the replicates", "their mean"]


def test_figure_has_a_column_for_each_agent_and_a_line_for_each_kind_and_context():
    check = made_check()
    places = {axes.get_title(loc="left"): axes.get_subplotspec() for axes in check.plot().axes}
    found = {title: (spec.rowspan.start, spec.colspan.start) for title, spec in places.items()}
    assert found == {
        "ann: actions, given in the hall": (0, 0), "bob: actions": (0, 1),
        "ann: actions, given in the yard": (1, 0), "bob: dwell": (2, 1),
        "team: alignment": (3, 0), "bob: speed": (4, 1),
    }  # fmt: skip
    # As high as the line with most statistics.
    grid = next(iter(places.values())).get_gridspec()
    assert grid.get_height_ratios() == [2.5, 1.5, 1.5, 1.5, 1.5]
    own = matplotlib.figure.Figure()
    axes = own.subplots(7, 1)
    assert check.plot(axes[:6]) is own
    assert not own.legends
    assert axes[3].get_title(loc="left") == "bob: dwell"
    with pytest.raises(ValueError, match="axes: 7 given, 6 are needed"):
        check.plot(axes)
