"""Debriefs: what they tell is counted right, said in plain words, and names are only text."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from html_pages import Links
from markupsafe import Markup
from matplotlib.figure import Figure
from typer.testing import CliRunner

import btil
from btil.analysis import debrief
from btil.analysis.debriefing import debrief_page as page_module
from btil.analysis.debriefing import findings, sections
from btil.analysis.debriefing.findings import Findings, certainty_of, find, unseen_labels
from btil.analysis.teamwork import Stretch, misaligned
from btil.cli import app
from btil.inference.result import DirichletRows, DrawnRows, FitResult
from btil.models.team import bind

HOSTILE = '<script>alert("bob")</script>'
MINDS = ("<b>help</b>", "wait & see")
ACTS = ("push", "pull </td>", "rest")
LENGTHS = (12, 9, 1, 14)
ALL = sum(LENGTHS)


def recordings(seed: int = 0, labelled: int = 22, **changes: object) -> btil.Demonstrations:
    """Ann and one with a hostile name: both act by what they have in mind; some steps labelled."""
    generator = np.random.default_rng(seed)
    steps = ALL
    latents = np.repeat(generator.integers(0, 2, (steps // 3 + 1, 2)), 3, axis=0)[:steps]
    actions = np.where(generator.random((steps, 2)) < 0.8, latents, 2)
    labels = latents.copy()
    labels[labelled:] = -1
    given: dict[str, object] = {
        "states": {"where": generator.integers(0, 2, steps)},
        "actions": actions,
        "latents": labels,
        "episodes": np.repeat(["mon", "tue", "<i>wed</i>", "thu"], LENGTHS),
        "agents": ("ann", HOSTILE),
        "num_states": {"where": 2},
        "num_actions": 3,
        "num_latents": 2,
        "state_names": {"where": ("hall", "<td>yard")},
        "action_names": {"ann": ACTS},
        "latent_names": MINDS,
    }
    return btil.Demonstrations(**(given | changes))


def posterior_of(
    demos: btil.Demonstrations, method: str = "mfvi", **model: object
) -> btil.TeamPosterior:
    """Rows made by hand: each mind mostly does its own action and mostly stays."""
    tables: dict[str, object] = {
        "policy": btil.DirichletCPT(1.0, parents=("where",)),
        "transition": btil.DirichletCPT(1.0, parents=("where", "actions", "next_where")),
    }
    bound = bind(btil.TeamModel(**(tables | model)), demos)
    rows = {}
    for site, table in bound.learned.items():
        values = np.random.default_rng(len(site)).gamma(5.0, 0.4, table.shape) + 0.2
        values[..., range(table.shape[-2]), range(table.shape[-2])] += 6.0
        rows[site] = DirichletRows(values)
        if method == "gibbs":
            rows[site] = DrawnRows(rows[site].sample(60, np.random.default_rng(0))[None])
    return btil.TeamPosterior(
        bound=bound,
        method=method,
        result=FitResult(rows=rows, converged=True, reason="made by hand"),
        seed=0,
        dtype=np.dtype(np.float64),
        wall_time=1.0,
    )


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    return posterior_of(recordings())


@pytest.fixture(scope="module")
def written(
    posterior: btil.TeamPosterior, tmp_path_factory: pytest.TempPathFactory
) -> page_module.Debrief:
    folder = tmp_path_factory.mktemp("debriefs") / "of a team"
    return debrief(
        posterior, posterior.demos, folder, max_episodes=2, command="btil report <x>",
        relearn=False, progress=False,
    )  # fmt: skip


# ------------------------------------------------------------------ what is counted


def runs_of(path: list[int]) -> list[tuple[int, int, int]]:
    """(value, first, last) of every run, one step after the other."""
    found: list[tuple[int, int, int]] = []
    for step, value in enumerate(path):
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1], step)
        else:
            found.append((value, step, step))
    return found


def episodes_of(demos: btil.Demonstrations) -> list[range]:
    ends = np.cumsum(demos.episode_lengths)
    return [range(e - n, e) for e, n in zip(ends, demos.episode_lengths, strict=True)]


def test_episodes_stretches_and_dwells_are_those_of_a_plain_loop(
    posterior: btil.TeamPosterior,
) -> None:
    demos = posterior.demos
    found = find(posterior, demos, use_labels=True)
    path = posterior.decode(demos, use_labels=True)
    np.testing.assert_array_equal(found.decoded, path)
    stretches = []
    for number, steps in enumerate(episodes_of(demos)):
        apart = [int(path[t, 0] != path[t, 1]) for t in steps]
        own = [(first, last) for value, first, last in runs_of(apart) if value]
        stretches += [(demos.episode_ids[number], first, last) for first, last in own]
        line = found.episodes.iloc[number]
        assert line["misaligned_steps"] == sum(apart)
        assert line["longest_stretch"] == max((b - a + 1 for a, b in own), default=0)
        for i, agent in enumerate(demos.agents):
            changes = sum(path[t, i] != path[t - 1, i] for t in steps[1:])
            assert line[f"changes_of_mind_{agent}"] == changes
            sure = [found.beliefs[agent][t].max() >= 0.9 for t in steps]
            assert line[f"share_sure_{agent}"] == pytest.approx(np.mean(sure))
    table = found.misalignments
    assert list(table[["episode", "from_step", "to_step"]].itertuples(index=False)) == stretches
    assert stretches
    differ = [
        np.mean([path[a, 0] != path[b, 1] for a in steps for b in steps])
        for steps in episodes_of(demos)
        for _ in steps
    ]
    assert found.by_chance == pytest.approx(np.mean(differ))
    for position, agent in enumerate(demos.agents):
        ended: dict[int, list[int]] = {0: [], 1: []}
        times = [0, 0]
        for steps in episodes_of(demos):
            for value, first, last in runs_of(path[steps, position].tolist()):
                times[value] += 1
                if last < len(steps) - 1:
                    ended[value].append(last - first + 1)
        own = found.dwells[found.dwells["agent"] == agent]
        assert own["times"].tolist() == times
        assert own["given_up"].tolist() == [len(ended[0]), len(ended[1])]
        assert own["longest"].tolist() == [max(ended[0], default=0), max(ended[1], default=0)]
        means = [sum(lengths) / len(lengths) if lengths else np.nan for lengths in ended.values()]
        np.testing.assert_allclose(own["mean_steps"], means)


@pytest.mark.parametrize("method", ["mfvi", "gibbs"])
def test_habits_are_averages_over_what_was_met(method: str) -> None:
    demos = recordings()
    posterior = posterior_of(demos, method)
    found = find(posterior, demos)
    beliefs = posterior.smooth(demos)["ann"]
    rows = posterior.policy("ann", states={"where": demos.state_variables["where"]})
    draws = posterior.sample(4000, seed=1)["policy_ann"]
    visited = posterior.contexts("ann", "policy")["where"].tolist()
    names = demos.value_names("where")
    context = [visited.index(names[value]) for value in demos.state_variables["where"]]
    for latent in (0, 1):
        line = found.habits[found.habits["agent"] == "ann"].iloc[latent]
        weight = beliefs[:, latent] / beliefs[:, latent].sum()
        expected = weight @ rows[:, latent]
        drawn = np.einsum("t,dta->da", weight, draws[:, context, latent])
        assert line["mind"] == MINDS[latent]
        assert line["steps"] == pytest.approx(beliefs[:, latent].sum())
        low, high = np.quantile(drawn, [0.055, 0.945], axis=0)
        for action, name in enumerate(ACTS):
            assert line[f"probability_{name}"] == pytest.approx(expected[action], abs=1e-6)
            # Quantiles of 400 draws, or of 60: their errors are some tenths of a half-width.
            width = high[action] - low[action]
            assert line[f"low_{name}"] == pytest.approx(low[action], abs=0.35 * width)
            assert line[f"high_{name}"] == pytest.approx(high[action], abs=0.35 * width)
        assert line["does"].startswith(f"{ACTS[expected.argmax()]} {expected.max():.0%} (")
        places = found.situations[
            (found.situations["agent"] == "ann") & (found.situations["mind"] == MINDS[latent])
        ]
        spent = {
            f"where: {names[place]}": beliefs[demos.state_variables["where"] == place, latent].sum()
            for place in (0, 1)
        }
        told = dict(zip(places["situation"], places["steps"], strict=True))
        assert told == pytest.approx(spent)
        assert places["steps"].is_monotonic_decreasing
    everyone = found.habits.set_index(["agent", "mind"])["share_of_steps"]
    for agent, belief in found.beliefs.items():
        assert everyone[agent].to_numpy() == pytest.approx(belief.mean(0))


def test_habits_are_of_the_situations_told_of_and_known_only_where_learned() -> None:
    """Learned in the yard alone, and then in both places; told of the other way round."""
    yard = recordings(states={"where": np.ones(ALL, int)})
    both = recordings()
    states = both.state_variables["where"]
    for training, demos in ((yard, both), (both, yard)):
        posterior = posterior_of(training)
        found = find(posterior, demos)
        weight = found.beliefs["ann"][:, 0]
        row = posterior.result.rows["policy_ann"].mean()[-1, 0]
        met = states == 1 if demos is both else np.ones(ALL, bool)
        line = found.habits.iloc[0]
        # What was never learned is left out of the average, and counts as a step nonetheless.
        assert line["steps"] == pytest.approx(weight.sum())
        assert [line[f"probability_{name}"] for name in ACTS] == pytest.approx(row)
        (place,) = found.situations[
            (found.situations["agent"] == "ann") & (found.situations["mind"] == MINDS[0])
        ].to_dict("records")
        assert place["situation"] == "where: <td>yard"
        assert place["steps"] == pytest.approx(weight[met].sum())
        unknown = found.experience[found.experience["experience"] == "hardly ever met"]
        assert unknown["share_of_steps"].tolist() == pytest.approx([1 - met.mean()] * 2)


def test_habits_that_are_given_are_told_as_they_are() -> None:
    demos = recordings()
    rows = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    given = btil.KnownCPT(rows)
    found = find(posterior_of(demos, policy=given), demos)
    for line, row in zip(found.habits.to_dict("records"), [*rows, *rows], strict=True):
        acts = demos.value_names(f"action_{line['agent']}")
        for kind in ("probability", "low", "high"):
            assert [line[f"{kind}_{name}"] for name in acts] == pytest.approx(row)
    # Nothing of it was learned.
    assert not len(found.experience)


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        ((0.1, 0.5, 0.3, 0.1), "b 50% (40–60%), c 30% (20–40%), a 10% (0–20%)"),
        ((0.051, 0.9, 0.049, 0.0), "b 90% (80–100%), a 5% (-5–15%)"),
    ],
)
def test_habits_tell_three_actions_that_are_not_rare(mean: tuple[float, ...], said: str) -> None:
    values = np.array(mean)
    estimate = findings._Estimate(values, values - 0.1, values + 0.1)
    assert findings._told(estimate, ("a", "b", "c", "d")) == said


def test_changes_tell_what_goes_with_them() -> None:
    # The mind changes exactly when the action before it was a push and one comes to the yard.
    steps = 40
    where = np.arange(steps) % 4 // 2
    actions = np.stack([(np.arange(steps) % 4 == 1).astype(int), np.zeros(steps, int)], 1)
    latents = np.stack([np.arange(steps) // 4 % 2, np.zeros(steps, int)], 1)
    latents[1:, 0] = (np.cumsum(np.arange(steps) % 4 == 1)[:-1]) % 2
    demos = btil.Demonstrations(
        {"ann_where": where}, actions, latents, agents=("ann", "bob"), num_latents=2, num_actions=2,
        state_names={"ann_where": ("hall", "yard")}, latent_names=("rest", "help"),
        action_names=("wait", "push"),
    )  # fmt: skip
    model = {
        "policy": btil.DirichletCPT(1.0),
        "transition": btil.DirichletCPT(1.0, parents=("action_ann", "next_ann_where")),
    }
    found = find(posterior_of(demos, **model), demos, use_labels=True)
    ann = found.changes[found.changes["agent"] == "ann"]
    assert ann["times"].tolist() == [5, 5]
    for text in ann["goes_with"]:
        assert "ann does “push” (100%; else 0%)" in text
        assert "where becomes “yard” (100%; else " in text
    assert not len(found.changes[found.changes["agent"] == "bob"])


def test_circumstances_of_changes_are_those_that_are_frequent_there_and_rare_otherwise() -> None:
    demos = btil.Demonstrations(
        {"ann_where": [0, 1], "joann_hand": [0, 1], "night": [0, 1]},
        [[0, 0], [1, 1]], [[0, 0]] * 2,
        agents=("ann", "joann"), num_latents=1, action_names=("wait", "push"),
        state_names={"ann_where": ("hall", "yard"), "joann_hand": ("free", "full")},
    )  # fmt: skip
    names = ("next_ann_where", "joann_hand", "action_joann", "previous_night", "night")
    switch = np.repeat([True, False], [10, 20])

    def said(*ones: tuple[int, int]) -> str:
        """How many of the 10 changes, and of the 20 other moves, have the second value."""
        values = np.stack(
            [np.r_[np.arange(10) < a, np.arange(20) < b].astype(int) for a, b in ones], axis=1
        )
        return findings._goes_with(demos, "ann", names[: len(ones)], values, switch, ~switch)

    never = (0, 0)
    assert said((8, 2)) == "where becomes “yard” (80%; else 10%)"
    # Of another agent, though its name ends alike.
    assert said(never, (8, 2)) == "joann hand is “full” (80%; else 10%)"
    assert said(never, never, (8, 2)) == "joann does “push” (80%; else 10%)"
    assert said(never, never, never, (8, 2)) == "night was “1” (80%; else 10%)"
    assert said(never, never, never, never, (8, 2)) == "night is “1” (80%; else 10%)"
    # A fifth more often at least, and at half of the changes.
    assert said((8, 11)) == "where becomes “yard” (80%; else 55%)"
    assert said((8, 13)) == ""
    mostly = np.repeat([0, 1, 2, 3], [4, 3, 3, 20])[:, None]
    assert findings._goes_with(demos, "ann", ("night",), mostly, switch, ~switch) == ""
    # The two that tell most.
    assert said((7, 2), (9, 2), (8, 2)) == (
        "joann hand is “full” (90%; else 10%), joann does “push” (80%; else 10%)"
    )
    assert findings._goes_with(demos, "ann", (), np.zeros((30, 0), int), switch, switch) == ""


def test_stretches_tell_whose_mind_went_where() -> None:
    demos = told([0] * 14, [0] * 6 + [1] * 8, 3)
    path = np.zeros((14, 2), int)
    path[6:, 0] = [1, 1, 0, 1, 2, 0, 0, 1]
    path[6:, 1] = [0, 2, 2, 2, 0, 1, 2, 2]
    stretches = (Stretch(1, 1, 3, 0.95), Stretch(1, 0, 7, 0.5))
    table = findings._misalignments(demos, path, stretches)
    first, second = table.to_dict("records")
    assert (first["episode"], first["from_step"], first["to_step"], first["steps"]) == (1, 1, 3, 3)
    assert first["mind_ann"] == "1, then 0, then 1"
    assert first["mind_bob"] == "2"
    assert (first["probability"], first["certainty"]) == (0.95, "sure")
    assert second["mind_ann"] == "1, then 0, then 1, then 2, … (2 more)"
    assert second["mind_bob"] == "0, then 2, then 0, then 1, … (1 more)"
    assert second["certainty"] == "unclear"
    assert list(findings._misalignments(demos, path, ())) == list(table)


def test_episodes_worth_a_look_have_most_steps_apart_or_else_most_steps(found: Findings) -> None:
    episodes = found.episodes.assign(misaligned_steps=[1, 4, 0, 4])
    apart = dataclasses.replace(found, episodes=episodes, incomparable=None)
    # Lengths are 12, 9, 1 and 14.
    assert apart.worth_a_look() == [3, 1, 0, 2]
    unknown = dataclasses.replace(apart, incomparable="they differ")
    assert unknown.worth_a_look() == [3, 0, 1, 2]


def told(minds: list[int], episodes: list[int], num_latents: int) -> btil.Demonstrations:
    """Ann and bob always do and want the same, and say so at every step."""
    both = np.stack([minds, minds], 1)
    return btil.Demonstrations(
        {"where": np.zeros(len(minds), int)}, np.zeros_like(both), both, episodes,
        agents=("ann", "bob"), num_states={"where": 1}, num_actions=3, num_latents=num_latents,
    )  # fmt: skip


def test_changes_of_mind_are_within_episodes_and_shares_of_the_changes_from_a_mind() -> None:
    # Every episode begins in another mind than the one before ended in.
    demos = told([0, 0, 1, 0, 2, 2, 1, 0], [0, 0, 0, 1, 1, 1, 2, 2], 3)
    found = find(posterior_of(demos), demos, use_labels=True)
    assert found.episodes["changes_of_mind_ann"].tolist() == [1, 1, 1]
    bob = found.changes[found.changes["agent"] == "bob"]
    # The most frequent first, of each mind.
    assert bob["from_mind"].tolist() == ["mind 0", "mind 0", "mind 1"]
    pairs = zip(
        bob["from_mind"], bob["to_mind"], bob["times"], bob["share_of_changes"], strict=True
    )
    assert set(pairs) == {
        ("mind 0", "mind 1", 1, 0.5), ("mind 0", "mind 2", 1, 0.5), ("mind 1", "mind 0", 1, 1.0)
    }  # fmt: skip


@pytest.mark.parametrize(("steps", "shared"), [(10, False), (9, False), (5, True), (4, True)])
def test_ten_steps_are_well_known_whoever_of_those_that_share_a_table_made_them(
    steps: int, shared: bool
) -> None:
    demos = told([0] * steps, [0] * steps, 2)
    policy = btil.DirichletCPT(1.0)
    made = posterior_of(demos, policy=btil.Shared(policy) if shared else policy)
    found = find(made, demos, use_labels=True).experience
    well_known = found[found["experience"] == "well known"]
    assert well_known["share_of_steps"].tolist() == [float(steps in (10, 5))] * 2


# ------------------------------------------------------------------ how sure


def test_sureness_has_its_least_probabilities() -> None:
    assert certainty_of([0.9, 0.899, 0.6, 0.599]).tolist() == [0, 1, 1, 2]


def test_labels_of_any_copy_of_an_episode_were_learned_from() -> None:
    whole = told([0, 1, 1, 0], [0] * 4, 2)
    first, second = (
        whole.replace(
            latents=np.where(np.array(shown)[:, None], whole.latents, -1), episodes=[n] * 4
        )
        for n, shown in enumerate(([True, True, False, False], [False, True, False, False]))
    )
    for pair in ([first, second], [second, first]):
        unseen = unseen_labels(btil.concatenate(pair), whole)
        assert unseen.tolist() == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]


def test_labels_are_new_where_they_were_not_learned_from() -> None:
    training = recordings(labelled=15)
    # The same episodes under other names and in another order, with more labels; and a new one.
    again = recordings(labelled=ALL, episodes=np.repeat([7, 8, 9, 10], LENGTHS))
    shuffled = btil.concatenate([again.select([3, 0, 1]), recordings(5, ALL).select([3])])
    unseen = unseen_labels(training, shuffled)
    expected = np.ones(14 + 12 + 9 + 14, bool)
    expected[14:29] = False  # 15 steps: the whole first episode and three of the second
    np.testing.assert_array_equal(unseen, np.stack([expected, expected], 1))


def test_episodes_that_differ_in_what_was_measured_are_others() -> None:
    """As many columns as states and actions; what only one of the two recordings has is no sign."""
    measured = {name: np.arange(ALL) + 0.5 for name in ("x", "y", "z")}
    training = recordings(labelled=ALL, continuous=measured)
    changed = measured | {"z": np.where(np.arange(ALL) == 14, 0.0, measured["z"])}
    unseen = unseen_labels(training, recordings(labelled=ALL, continuous=changed))
    second = np.isin(np.arange(ALL), range(12, 21))
    np.testing.assert_array_equal(unseen, np.stack([second, second], 1))
    more = recordings(labelled=ALL, continuous=changed | {"z": measured["z"], "w": measured["x"]})
    assert not unseen_labels(training, more).any()


@pytest.mark.parametrize("use_labels", [False, True])
def test_sureness_is_tested_on_labels_not_learned_from(use_labels: bool) -> None:
    posterior = posterior_of(recordings(labelled=12))
    demos = recordings(labelled=ALL)
    found = find(posterior, demos, use_labels=use_labels)
    hidden = recordings(labelled=12)
    beliefs = posterior.smooth(hidden, use_labels)[HOSTILE][12:]
    right = beliefs.argmax(1) == demos.latents[12:, 1]
    kinds = certainty_of(beliefs.max(1))
    for number, name in enumerate(("sure", "leaning", "unclear")):
        (line,) = found.certainty[
            (found.certainty["agent"] == HOSTILE) & (found.certainty["certainty"] == name)
        ].to_dict("records")
        assert line["tested_steps"] == (kinds == number).sum()
        if line["tested_steps"]:
            assert line["share_right"] == pytest.approx(right[kinds == number].mean())
            assert line["mean_probability"] == pytest.approx(beliefs.max(1)[kinds == number].mean())
    assert found.certainty["tested_steps"].sum() == 2 * (ALL - 12)
    # Nothing is left to be tested where all labels were learned from.
    assert find(posterior, hidden).certainty["tested_steps"].sum() == 0
    by_label = found.certainty[found.certainty["certainty"] == "labelled"]
    assert by_label["steps"].tolist() == [ALL * use_labels] * 2


def test_the_same_is_learned_again_without_half_of_the_labels(tmp_path: Path) -> None:
    demos = recordings(labelled=ALL)
    model = btil.TeamModel(btil.DirichletCPT(1.0, parents=("where",)), btil.DirichletCPT(1.0))
    posterior = btil.fit(model, demos, progress=False, max_iterations=30)
    found = debrief(posterior, demos, tmp_path, max_episodes=0, progress=False)
    # Of four labelled episodes the second and the fourth were hidden.
    assert found.findings.certainty["tested_steps"].sum() == 2 * (9 + 14)
    hidden = demos.without_labels([1, 3])
    judged = btil.fit(model, hidden, progress=False, max_iterations=30).smooth(hidden)["ann"]
    table = found.findings.certainty.set_index(["agent", "certainty"])
    steps = np.r_[12:21, 22:36]
    sure = judged[steps].max(1) >= 0.9
    assert table.loc[("ann", "sure"), "tested_steps"] == sure.sum()
    assert "every second labelled episode" in found.page.read_text(encoding="utf-8")
    (sentence,) = [one for one in found.summary if one.startswith("Tested on")]
    kinds = found.findings.certainty
    kinds = kinds[kinds["tested_steps"] > 0]
    counts = kinds["tested_steps"], kinds["share_right"] * kinds["tested_steps"]
    called = (kinds["certainty"] == "sure").to_numpy()
    number, right = counts[0].sum(), counts[1].sum()
    of_sure = counts[1][called].sum() / counts[0][called].sum()
    assert f"on {number} labelled steps" in sentence
    assert f"right at {right / number:.0%} of them" in sentence
    assert f"{counts[0][called].sum() / number:.0%} were called sure" in sentence
    assert f"of which {of_sure:.0%} were right" in sentence


def test_habits_are_told_only_where_data_are_behind_them() -> None:
    """The second mind was never met in the yard, and is held everywhere in what is told of."""
    demos = recordings(labelled=ALL)
    where = demos.state_variables["where"]
    model = btil.TeamModel(btil.DirichletCPT(1.0, parents=("where",)), btil.DirichletCPT(1.0))
    met = demos.replace(latents=np.where(where[:, None] == 1, 0, demos.latents))
    posterior = btil.fit(model, met, progress=False, max_iterations=30)
    found = find(posterior, demos.replace(latents=np.ones_like(demos.latents)), use_labels=True)
    told = found.situations[found.situations["agent"] == "ann"]
    assert set(told["mind"]) == {MINDS[1]}
    assert set(told["situation"]) == {"where: hall"}


# ------------------------------------------------------------------ who cannot be compared


def test_minds_that_cannot_be_compared_are_not(tmp_path: Path) -> None:
    posterior = posterior_of(recordings(labelled=0))
    found = find(posterior, posterior.demos)
    assert found.nameless == ("ann", HOSTILE)
    assert "which mental state is which" in str(found.incomparable)
    assert found.stretches == ()
    assert found.by_chance is None
    assert "misaligned_steps" not in found.episodes
    # Nor can labels tell whether mental states that nothing names are right.
    told = find(posterior, recordings(labelled=ALL), use_labels=False)
    assert told.certainty["tested_steps"].sum() == 0
    shared = {
        "policy": btil.Shared(btil.DirichletCPT(1.0)),
        "transition": btil.Shared(btil.DirichletCPT(1.0)),
    }
    assert find(posterior_of(recordings(labelled=0), **shared), recordings()).incomparable is None
    others = recordings(latent_names={"ann": MINDS, HOSTILE: ("a", "b")})
    different = find(posterior_of(others), others)
    assert "different kinds of things in mind" in str(different.incomparable)
    alone = btil.Demonstrations([0, 1], {"ann": [0, 1]}, {"ann": [0, 1]})
    model = {"policy": btil.DirichletCPT(1.0), "transition": btil.DirichletCPT(1.0)}
    single = posterior_of(alone, **model)
    assert find(single, alone).incomparable == "The team has only one member."
    made = debrief(single, alone, tmp_path, progress=False, relearn=False)
    assert "The team has only one member." in made.page.read_text(encoding="utf-8")


def test_in_a_task_minds_are_misaligned_where_the_task_says_so(
    posterior: btil.TeamPosterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = btil.domains.movers("tiny")
    asked: list[object] = []

    def apart(demos: btil.Demonstrations, path: np.ndarray, task: object) -> np.ndarray:
        asked.append(task)
        return np.arange(ALL) == 13

    def stretches(
        demos: btil.Demonstrations, path: np.ndarray, beliefs: object, task: object
    ) -> tuple[Stretch, ...]:
        asked.append(task)
        return (Stretch(1, 1, 1, 0.7),)

    monkeypatch.setattr(findings, "misaligned", apart)
    monkeypatch.setattr(findings, "misaligned_stretches", stretches)
    found = find(posterior, posterior.demos, task)
    assert asked == [task, task]
    assert found.episodes["misaligned_steps"].tolist() == [0, 1, 0, 0]
    assert found.episodes["longest_stretch"].tolist() == [0, 1, 0, 0]
    assert found.misalignments["certainty"].tolist() == ["leaning"]
    # The task knows what goes together: how often minds differ by chance says nothing.
    assert found.by_chance is None
    # Names may differ then, but of nobody must it be unknown which mental state is which.
    named = found.demos.replace(latent_names={"ann": MINDS, HOSTILE: ("a", "b")})
    assert findings._incomparable(posterior, named, (), task) is None
    assert findings._incomparable(posterior, named, (), None) is not None
    shared = posterior_of(recordings(), policy=btil.Shared(btil.DirichletCPT(1.0)))
    for of, nameless, where, comparable in (
        (posterior, (), None, True), (posterior, ("ann",), None, False),
        (shared, ("ann",), None, True), (shared, ("ann",), task, False),
    ):  # fmt: skip
        why = findings._incomparable(of, found.demos, nameless, where)
        assert (why is None) == comparable


def test_names_of_the_training_recordings_serve_others() -> None:
    posterior = posterior_of(recordings())
    found = find(posterior, recordings(1, 0, latent_names=None))
    assert found.demos.value_names("latent_ann") == MINDS
    assert set(found.habits["mind"]) == set(MINDS)
    assert any(text.startswith("where: hall") for text in found.situations["situation"])
    foreign = recordings(1, 0, state_names=None, action_names=None, latent_names=None)
    with pytest.raises(ValueError, match="state_names of where: the values here are numbers"):
        find(posterior, foreign)
    nameless = posterior_of(foreign)
    assert find(nameless, foreign).demos.value_names("latent_ann") == ("mind 0", "mind 1")


# ------------------------------------------------------------------ the page


def test_files_of_episodes_have_names_of_their_own() -> None:
    assert page_module._file_names(["mon", "a/b", "…", "a b", "../x"]) == [
        "mon", "a_b_2", "3", "a_b_4", "x"
    ]  # fmt: skip
    # Also where a name with its number is what another one is called.
    crossed = page_module._file_names(["a/b", "a b", "a_b_1"])
    assert len(set(crossed)) == 3


def test_what_is_learned_again_is_the_same_without_every_second_labelled_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[btil.Demonstrations, object]] = []

    def fit_again(
        posterior: btil.TeamPosterior, demos: btil.Demonstrations, *, seed: int, progress: bool
    ) -> btil.TeamPosterior:
        asked.append((demos, seed))
        return posterior

    monkeypatch.setattr(page_module, "fit_again", fit_again)
    demos = recordings(labelled=22)  # all but the last episode have some
    learned = dataclasses.replace(posterior_of(demos), seed=7)
    assert page_module._learn_again(learned, demos, False) is learned
    hidden, seed = asked.pop()
    assert seed == 7
    assert hidden == demos.without_labels([1])
    # No use: without labels here, with labels that are new, or where one episode has all of them.
    one = posterior_of(recordings(labelled=12))
    for posterior, told_of in (
        (learned, recordings(labelled=0)),
        (learned, recordings(labelled=23)),
        (one, recordings(labelled=12)),
    ):
        assert page_module._learn_again(posterior, told_of, False) is None
    assert not asked


@pytest.mark.parametrize("use_labels", [False, True])
def test_a_debrief_is_of_what_was_asked_for(
    use_labels: bool, posterior: btil.TeamPosterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[object, ...]] = []
    judges: list[object] = []
    judge = posterior_of(recordings(labelled=12))

    def pictures(of: object, found: object, episode: int, task: object, labels: bool) -> list[Any]:
        drawn.append((episode, task, labels))
        return [page_module._Picture("minds", Figure(), f"picture of {episode}")]

    def learn_again(of: object, demos: object, progress: bool) -> object:
        judges.append(of)
        return judge

    monkeypatch.setattr(page_module, "_pictures", pictures)
    monkeypatch.setattr(page_module, "_learn_again", learn_again)
    made = debrief(
        posterior, posterior.demos, tmp_path, max_episodes=2, use_labels=use_labels,
        command="btil report x", progress=False,
    )  # fmt: skip
    first, second = made.findings.worth_a_look()[:2]
    assert drawn == [(first, None, use_labels), (second, None, use_labels)]
    assert judges == [posterior]
    # Ten steps of each had labels that the judge had not seen.
    assert made.findings.certainty["tested_steps"].sum() == 2 * 10
    assert made.findings.used_labels == use_labels
    shown = plain(made.page.read_text(encoding="utf-8"))
    source = "what they did and what was labelled" if use_labels else "what they did"
    assert f"4 episodes, {ALL} steps. For every step: what each member" in shown
    assert f"most probably had in mind, concluded from {source}. " in shown
    assert f"What ann and {HOSTILE} had in mind" in shown
    assert "Made by: btil report x" in shown
    assert "everything was learned once more" in shown
    # The first one is open, the others behind their names.
    ids = made.findings.demos.episode_ids
    assert shown.index(f"picture of {first}") < shown.index(f"Episode {ids[second]} ")
    assert f"Episode {ids[first]} " not in shown
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == sorted(
        f"episode_{page_module._file_names(ids.tolist())[k]}_minds.{ending}"
        for k in (first, second)
        for ending in ("png", "svg")
    )
    debrief(posterior, posterior.demos, tmp_path, max_episodes=0, relearn=False, progress=False)
    assert (len(judges), len(drawn)) == (1, 2)


@pytest.mark.parametrize("use_labels", [False, True])
def test_pictures_are_of_the_episode_and_say_how_to_read_them(
    use_labels: bool,
    found: Findings,
    posterior: btil.TeamPosterior,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    def drawn(number: int) -> Figure:
        figure = Figure()
        figure.subplots(number)
        return figure

    def plot_timeline(posterior: object, demos: object, episode: int, **how: object) -> Figure:
        asked.append((episode, how))
        return drawn(2)

    def plot_alignment(
        posterior: object, demos: object, episode: int, task: object, **how: object
    ) -> Figure:
        asked.append((episode, task, how))
        return drawn(2)

    monkeypatch.setattr("btil.analysis.plots.plot_timeline", plot_timeline)
    monkeypatch.setattr("btil.analysis.plots.plot_alignment", plot_alignment)
    # Of the third episode a step is labelled, of the last one none.
    for episode, name, known in ((2, "<i>wed</i>", True), (3, "thu", False)):
        minds, alignment = page_module._pictures(posterior, found, episode, None, use_labels)
        labels = {"use_labels": use_labels}
        assert asked[-2:] == [(episode, {"kind": "bands"} | labels), (episode, None, labels)]
        titles = [axes.get_title(loc="left") for axes in minds.figure.axes]
        assert titles == [f"{agent}, episode {name}" for agent in found.demos.agents]
        assert (minds.kind, alignment.kind) == ("minds", "alignment")
        done = "were taken for true" if use_labels else "were not looked at"
        for caption in (minds.caption, alignment.caption):
            assert caption.startswith(f"Episode {name}")
            assert (done in caption) == known
        assert alignment.caption.count("minds were different") == 1
    apart = dataclasses.replace(found, incomparable="they differ")
    assert len(list(page_module._pictures(posterior, apart, 0, None, use_labels))) == 1
    # Many kinds of things in mind are told apart by their lanes.
    many = dataclasses.replace(found, demos=told([0, 1], [0, 0], 9))
    next(iter(page_module._pictures(posterior, many, 0, None, use_labels)))
    assert asked[-1] == (0, {"kind": "heatmap"} | labels)
    few = dataclasses.replace(found, demos=told([0, 1], [0, 0], 8))
    next(iter(page_module._pictures(posterior, few, 0, None, use_labels)))
    assert asked[-1] == (0, {"kind": "bands"} | labels)


def test_a_debrief_in_short_says_who_how_much_and_by_what(written: page_module.Debrief) -> None:
    demos = written.findings.demos
    of = f"{', '.join(demos.agents)}, {demos.num_episodes} episodes, {demos.num_steps} steps"
    assert repr(written) == f"Debrief({of}, learned by {written.method}: {written.page})"
    assert repr(written.findings) == f"Findings({of})"


def test_page_needs_nothing_from_outside(written: page_module.Debrief) -> None:
    text = written.page.read_text(encoding="utf-8")
    found = Links(text)
    assert not found.open
    assert not {"script", "link", "iframe", "object", "b", "i"} & set(found.elements)
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert not re.search(r"https?:|url\(|@import", text)
    # Two episodes: minds and alignment each.
    assert (
        sum(address.startswith("data:") for address in found.addresses) == 2 * 4
    )  # each for phones as well
    assert found.elements.count("details") == 2


def test_names_are_shown_as_they_are(written: page_module.Debrief) -> None:
    text = written.page.read_text(encoding="utf-8")
    shown = Links(text).text
    assert "<script" not in text
    for name in (HOSTILE, *MINDS, *ACTS, "where: <td>yard", "<i>wed</i>", "btil report <x>"):
        assert name in shown
    # In the figures they are drawn, not marked up.
    for drawing in (written.page.parent / "figures").glob("*.svg"):
        assert "<script" not in drawing.read_text(encoding="utf-8")


def test_page_says_what_was_found(written: page_module.Debrief) -> None:
    shown = Links(written.page.read_text(encoding="utf-8")).text
    assert all(sentence in shown for sentence in written.summary)
    for heading in ("Who had what in mind, and when", "Where minds were different",
                    "What each member tends to do", "How minds change"):  # fmt: skip
        assert heading in shown
    for line in written.findings.misalignments.to_dict("records")[:3]:
        assert line["mind_ann"] in shown
    assert "as all labels in these recordings were learned from" in " ".join(shown.split())


def test_tables_beside_the_page_are_whole(written: page_module.Debrief) -> None:
    folder = written.page.parent / "tables"
    names = {file.stem for file in folder.iterdir()}
    assert names == {"episodes", "misalignments", "habits", "situations", "dwells", "changes",
                     "certainty", "experience", "steps"}  # fmt: skip
    for name in names - {"steps"}:
        table = pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=[""])
        pd.testing.assert_frame_equal(
            table, getattr(written.findings, name), check_dtype=False, atol=1e-9
        )
    steps = pd.read_csv(folder / "steps.csv")
    assert len(steps) == ALL
    assert steps["decoded_ann"].tolist() == [MINDS[k] for k in written.findings.decoded[:, 0]]
    np.testing.assert_allclose(
        steps[f"probability_{HOSTILE}_{MINDS[1]}"], written.findings.beliefs[HOSTILE][:, 1]
    )


def test_second_debrief_replaces_the_first_and_nothing_else(
    posterior: btil.TeamPosterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "_pictures", lambda *arguments: iter(()))
    first = debrief(posterior, posterior.demos, tmp_path, progress=False, relearn=False)
    content = first.page.read_bytes()
    (tmp_path / "tables" / "mine.txt").write_text("mine")
    (tmp_path / "tables" / "steps.csv").write_text("damaged")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(page_module, "decoded_table", fail)
        with pytest.raises(OSError, match="disk full"):
            debrief(posterior, posterior.demos, tmp_path, progress=False, relearn=False)
    assert (tmp_path / "tables" / "steps.csv").read_text() == "damaged"
    debrief(posterior, posterior.demos, tmp_path, progress=False, relearn=False)
    assert first.page.read_bytes() == content
    assert (tmp_path / "tables" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "tables" / "steps.csv").read_text() != "damaged"
    with pytest.raises(ValueError, match="max_episodes must be a whole number of at least 0"):
        debrief(posterior, posterior.demos, tmp_path, max_episodes=-1)


def test_what_did_not_settle_is_said_first(tmp_path: Path) -> None:
    demos = recordings()
    unsettled = posterior_of(demos)
    result = unsettled.result._replace(converged=False, reason="cap reached")
    unsettled = dataclasses.replace(unsettled, result=result)
    made = debrief(unsettled, demos, tmp_path, max_episodes=0, progress=False, relearn=False)
    shown = Links(made.page.read_text(encoding="utf-8")).text
    assert shown.index("had not settled") < shown.index("ann mostly had in mind")


# ------------------------------------------------------------------ what is said


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (1.0, "100%"), (0.996, "over 99%"), (0.995, "over 99%"), (0.994, "99%"), (0.006, "1%"),
        (0.005, "under 1%"), (0.004, "under 1%"), (0.0, "0%"),
    ],
)  # fmt: skip
def test_shares_are_not_rounded_to_certainty(share: float, said: str) -> None:
    assert sections._percent(share) == said


def certainty(**lines: tuple[int, int, float]) -> pd.DataFrame:
    """How many steps are of each kind, on how many of these it was tested, and how often right."""
    kinds = ("labelled", "sure", "leaning", "unclear")
    numbers = [lines.get(kind, (0, 0, np.nan)) for kind in kinds]
    table = pd.DataFrame(numbers, columns=["steps", "tested_steps", "share_right"])
    return table.assign(agent="ann", certainty=kinds)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            (0, 30, 10, 10),
            "What a member had in mind is sure (a probability of 90% or more) at 60% of the steps.",
        ),
        (
            (50, 30, 10, 10),
            "What a member had in mind was labelled, and taken for true, at 50% of the steps; of "
            "the others it is sure (a probability of 90% or more) at 60%.",
        ),
        (
            (9, 0, 0, 0),
            "What members had in mind was labelled, and taken for true, at every step.",
        ),
    ],
)
def test_steps_are_sure_among_those_without_labels(steps: tuple[int, ...], said: str) -> None:
    kinds = ("labelled", "sure", "leaning", "unclear")
    table = certainty(**{k: (n, 0, np.nan) for k, n in zip(kinds, steps, strict=True)})
    assert sections._on_sureness(table) == said


def test_how_the_test_came_out_is_told_of_enough_steps() -> None:
    outcome = sections._outcome_of_test
    tested = outcome(certainty(sure=(40, 10, 0.9), leaning=(40, 8, 0.5), unclear=(9, 2, 0.5)))
    assert tested is not None
    assert tested.startswith("Tested on 20 labelled steps whose labels were not shown")
    assert tested.endswith(
        "was right at 70% of them; 50% were called sure, of which 90% were right."
    )
    assert outcome(certainty(sure=(40, 10, 0.9), leaning=(40, 9, 0.5))) is None
    unsure = outcome(certainty(leaning=(40, 20, 0.55)))
    assert unsure is not None
    assert unsure.endswith("was right at 55% of them; none was called sure.")


@pytest.fixture(scope="module")
def found(posterior: btil.TeamPosterior) -> Findings:
    return find(posterior, posterior.demos)


def plain(markup: object) -> str:
    return " ".join(Links(str(markup)).text.split())


def test_what_to_be_careful_with_is_said_where_it_is_so(
    posterior: btil.TeamPosterior, found: Findings
) -> None:
    def said(of: btil.TeamPosterior = posterior, **changes: object) -> str:
        changed = dataclasses.replace(found, **(quiet | changes))
        return plain(sections._warnings(sections.Told(of, changed, None, False)))

    def experience(share: float) -> pd.DataFrame:
        met = ("well known", "met a few times", "hardly ever met")
        shares = (0.9 - share, 0.1, share)
        return pd.DataFrame({"agent": "ann", "experience": met, "share_of_steps": shares})

    quiet = {
        "nameless": (),
        "experience": experience(0.2),
        "certainty": certainty(sure=(90, 20, 0.9), leaning=(40, 20, 0.1)),
    }
    assert said() == ""
    assert "21% of ann's steps were in situations that were hardly ever met" in said(
        experience=experience(0.21)
    )
    over = "fewer than 90% of the sure steps of ann were right"
    assert over in said(certainty=certainty(sure=(90, 20, 0.89)))
    assert over not in said(certainty=certainty(sure=(90, 19, 0.5)))
    assert "which mental state of ann and bob is which" in said(nameless=("ann", "bob"))
    # A mean field, draws around one, and chains.
    for chains, why in ((0, "still changing"), (1, "still changing"), (2, "do not agree")):
        stats = {"log_likelihood_total": np.zeros((chains, 10))} if chains else {}
        result = posterior.result._replace(converged=False, sample_stats=stats)
        assert why in said(dataclasses.replace(posterior, result=result))


def test_how_often_minds_disagree_is_said(found: Findings) -> None:
    stretches = (Stretch(0, 3, 3, 0.9), Stretch(3, 2, 6, 0.8), Stretch(1, 0, 3, 0.7))
    episodes = found.episodes.assign(misaligned_steps=[1, 4, 0, 4])
    apart = dataclasses.replace(
        found, stretches=stretches, episodes=episodes, by_chance=0.5, incomparable=None
    )
    longest = "the longest stretch lasted 5 steps (episode thu, from step 2)."
    assert sections._on_misalignment(apart, None) == (
        f"ann and {HOSTILE} had different things in mind at 25% of the steps (50% expected by "
        f"chance), which need not be bad: members may share the work; {longest}"
    )
    task = btil.domains.movers("tiny")
    unknown = dataclasses.replace(apart, by_chance=None)
    assert sections._on_misalignment(unknown, task) == (
        f"Minds were at cross purposes at 25% of the steps; {longest}"
    )
    never = dataclasses.replace(unknown, stretches=(), episodes=episodes.assign(misaligned_steps=0))
    assert sections._on_misalignment(never, None) == (
        f"ann and {HOSTILE} had different things in mind at 0% of the steps."
    )


def test_stretches_are_listed_from_the_longest_on(
    posterior: btil.TeamPosterior, found: Findings
) -> None:
    def said(**changes: object) -> str:
        changed = dataclasses.replace(found, **changes)
        return plain(sections._misaligned(sections.Told(posterior, changed, None, False), Markup()))

    table = pd.DataFrame(
        {
            "episode": ["mon", "tue", "thu"], "from_step": [3, 0, 2], "to_step": [3, 3, 6],
            "steps": [1, 4, 5], "mind_ann": "a", f"mind_{HOSTILE}": "b", "certainty": "sure",
            "probability": [0.9, 0.999, 0.95],
        }
    )  # fmt: skip
    three = said(misalignments=table, by_chance=0.5)
    assert "3 such stretches, of 3.3 steps on average, 5 at most; together 10 of 36 steps" in three
    assert "(28%). By chance 50% would be expected" in three
    # Cells without what is between them.
    assert "thu265absure (95%) tue034absure (over 99%) mon331absure (90%)" in three
    one = said(misalignments=table[:1], by_chance=None)
    assert "1 such stretch, of 1.0 steps on average" in one
    assert "By chance" not in one
    assert "There is no such step." in said(misalignments=table[:0])
    assert "This cannot be said. They differ." in said(incomparable="They differ.")


@pytest.mark.parametrize(
    ("transition", "never", "unasked"),
    [
        (btil.StaticCPT(), "It is assumed that this never changes within an episode.", False),
        (btil.DirichletCPT(1.0), "", True),
        (btil.DirichletCPT(1.0, parents=("where",)), "", False),
    ],
)
def test_what_changes_go_with_is_told_where_the_model_lets_them_depend_on_it(
    transition: object, never: str, unasked: bool
) -> None:
    minds = [0, 0, 1] if not never else [1, 1, 1]
    demos = told(minds, [0] * 3, 2)
    made = posterior_of(demos, transition=transition)
    changed = find(made, demos, use_labels=True)
    said = plain(sections._changes(sections.Told(made, changed, None, False)))
    assert ("It is assumed that this never changes within an episode." in said) == bool(never)
    assert ("What goes with these changes was not looked for" in said) == unasked
    assert "It never changed within an episode." not in said
    still = find(made, demos.replace(latents=np.ones_like(demos.latents)), use_labels=True)
    said = plain(sections._changes(sections.Told(made, still, None, False)))
    assert ("It never changed within an episode." in said) == (not never)
    assert "was not looked for" not in said


@pytest.mark.parametrize(
    ("tested", "again", "labelled", "said"),
    [
        (30, True, 1, "everything was learned once more"),
        (30, False, 1, "These labels were not used in learning."),
        (0, False, 1, "This could not be put to the test, as all labels"),
        (0, False, -1, "These recordings have no labels, so nothing here"),
    ],
)
def test_how_sureness_was_tested_is_said(
    posterior: btil.TeamPosterior,
    found: Findings,
    tested: int,
    again: bool,
    labelled: int,
    said: str,
) -> None:
    latents = np.full_like(found.demos.latents, -1)
    latents[0, 0] = labelled  # of one step alone
    demos = found.demos.replace(latents=latents)
    changed = dataclasses.replace(found, demos=demos)
    assert said in plain(sections._tested(sections.Told(posterior, changed, None, again), tested))


def cells_of(markup: object) -> list[list[str]]:
    """The lines of all tables, cell by cell, headings too."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", str(markup), re.DOTALL)
    return [
        [plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


def test_episodes_are_listed_as_they_are_worth_a_look(found: Findings) -> None:
    episodes = pd.DataFrame(
        {
            "episode": ["mon", "tue", "wed", "thu"], "steps": [1200, 9, 1, 14],
            "misaligned_steps": [3, 4, 0, 7], "longest_stretch": [2, 4, 0, 6],
            "changes_of_mind_ann": [1, 2, 3, 4], "share_sure_ann": [0.5, 0.25, 1.0, 0.75],
            f"changes_of_mind_{HOSTILE}": [5, 6, 7, 8], f"share_sure_{HOSTILE}": 0.125,
        }
    )  # fmt: skip
    apart = dataclasses.replace(found, episodes=episodes, incomparable=None)
    said = sections._episodes(apart, Markup("<i>drawn</i>"), 2)
    assert cells_of(said)[1:] == [
        ["thu", "14", "7 (50%)", "6", "4", "75%", "8", "12%"],
        ["tue", "9", "4 (44%)", "4", "2", "25%", "6", "12%"],
        ["mon", "1,200", "3 (0%)", "2", "1", "50%", "5", "12%"],
        ["wed", "1", "0 (0%)", "0", "3", "100%", "7", "12%"],
    ]
    assert "with most disagreement is shown; click for others. The table has all 4" in plain(said)
    assert "drawn" in plain(said)
    differ = dataclasses.replace(apart, incomparable="They differ.")
    said = sections._episodes(differ, Markup(), 1)
    assert [line[:3] for line in cells_of(said)[1:]] == [
        ["mon", "1,200", "1"], ["thu", "14", "4"], ["tue", "9", "2"], ["wed", "1", "3"]
    ]  # fmt: skip
    assert "The episode of most steps is shown. The table" in plain(said)
    assert "is shown" not in plain(sections._episodes(apart, Markup(), 0))


def test_habits_and_changes_are_told_member_by_member(
    posterior: btil.TeamPosterior, found: Findings
) -> None:
    habits = pd.DataFrame(
        {
            "agent": ["ann", "ann", HOSTILE], "mind": ["rest", "help", "rest"],
            "steps": [1.6, 1234.4, 20.0], "share_of_steps": [0.001, 0.999, 1.0],
            "does": ["", "push 80%", "wait 90%"],
        }
    )  # fmt: skip
    situations = pd.DataFrame(
        [("ann", "help", f"where: {k}", 40.0 - k, "push 80%") for k in range(31)],
        columns=["agent", "mind", "situation", "steps", "does"],
    )
    dwells = pd.DataFrame(
        {
            "agent": ["ann", "ann", HOSTILE], "mind": ["rest", "help", "rest"],
            "times": [3, 0, 2], "given_up": [2, 0, 0], "mean_steps": [2.25, np.nan, np.nan],
            "longest": [4, 0, 0],
        }
    )  # fmt: skip
    changes = pd.DataFrame(
        {
            "agent": "ann", "from_mind": ["rest", "rest"], "to_mind": ["help", "sing"],
            "times": [3, 1], "share_of_changes": [0.75, 0.25], "goes_with": ["night is “1”", ""],
        }
    )  # fmt: skip
    changed = dataclasses.replace(
        found, habits=habits, situations=situations, dwells=dwells, changes=changes
    )
    told = sections.Told(posterior, changed, None, False)
    said = sections._habits(told)
    lines = cells_of(said)
    # What is most in mind first, then thirty situations, then the other member.
    assert lines[1:3] == [
        ["help", "1,234 (over 99%)", "push 80%"], ["rest", "2 (under 1%)", "hardly ever held"]
    ]  # fmt: skip
    assert lines[4] == ["help", "where: 0", "40", "push 80%"]
    assert lines[33] == ["help", "where: 29", "11", "push 80%"]
    assert lines[35:] == [["rest", "20 (100%)", "wait 90%"]]
    assert "1 more line in tables/situations.csv" in plain(said)
    assert "Of measured columns" not in plain(said)
    lines = cells_of(sections._changes(told))
    assert lines[1:2] == [["rest", "3", "2.2", "4"]]
    assert lines[3:5] == [
        ["rest", "help", "3", "75%", "night is “1”"], ["rest", "sing", "1", "25%", "–"]
    ]  # fmt: skip
    # Never given up: it has no length.
    assert lines[6:] == [["rest", "2", "–", "–"]]


def test_how_sure_it_is_is_told_with_how_much_there_was_to_learn_from(
    posterior: btil.TeamPosterior, found: Findings
) -> None:
    table = pd.DataFrame(
        {
            "agent": "ann", "certainty": ["labelled", "sure", "leaning", "unclear"],
            "steps": [0, 1500, 2, 498], "share_of_steps": [0.0, 0.75, 0.001, 0.249],
            "tested_steps": [0, 40, 0, 10], "mean_probability": [np.nan, 0.998, np.nan, 0.5],
            "share_right": [np.nan, 0.9, np.nan, 0.3],
        }
    )  # fmt: skip
    experience = pd.DataFrame(
        {
            "agent": ["ann"] * 3, "share_of_steps": [0.5, 0.3, 0.2],
            "experience": ["well known", "met a few times", "hardly ever met"],
        }
    )  # fmt: skip
    changed = dataclasses.replace(found, certainty=table, experience=experience)

    def lines(**more: object) -> list[list[str]]:
        own = dataclasses.replace(changed, **more)
        return cells_of(sections._certainty(sections.Told(posterior, own, None, True)))

    assert lines()[1:] == [
        ["ann: sure", "1,500 (75%)", "40", "over 99%", "90%"],
        ["ann: leaning", "2 (under 1%)", "0", "–", "–"],
        ["ann: unclear", "498 (25%)", "10", "50%", "30%"],
        ["share of the steps", "well known", "met a few times", "hardly ever met"],
        ["ann", "50%", "30%", "20%"],
    ]
    untested = table.assign(tested_steps=0, steps=[7, 1500, 2, 498])
    assert lines(certainty=untested, experience=experience[:0])[1:] == [
        ["ann: labelled", "7 (0%)"], ["ann: sure", "1,500 (75%)"], ["ann: leaning", "2 (under 1%)"],
        ["ann: unclear", "498 (25%)"],
    ]  # fmt: skip
    settled = dataclasses.replace(posterior, result=posterior.result._replace(converged=False))
    for of, says in ((posterior, "Yes: its answers"), (settled, "No. See the warning")):
        assert says in plain(sections._certainty(sections.Told(of, changed, None, True)))


@pytest.mark.parametrize(
    ("method", "used", "task", "says"),
    [
        ("mfvi", False, None, ("learned by mfvi", "without its labels", "means unequal latents",
                               "of a mean field, too narrow")),
        ("gibbs", True, "movers", ("learned by gibbs", "labels conditioned on",
                                   "grid world's definition of suboptimal", "89% intervals; the")),
    ],
)  # fmt: skip
def test_the_technically_minded_are_told_how(
    method: str, used: bool, task: str | None, says: tuple[str, ...],
    posterior: btil.TeamPosterior, found: Findings,
) -> None:  # fmt: skip
    by = dataclasses.replace(posterior, method=method, seed=17)
    own = dataclasses.replace(found, used_labels=used)
    where = None if task is None else btil.domains.movers("tiny")
    said = plain(sections._technical(sections.Told(by, own, where, False), "btil report x"))
    shares = f"(seed 17) from 4 episodes, {ALL} steps, of which 61%, 61% are labelled (ann, "
    for text in (*says, shares, "Converged: made by hand.", "Made by: btil report x"):
        assert text in said
    assert "Made by" not in plain(sections._technical(sections.Told(by, own, where, False), None))


def test_the_most_important_is_told_first_and_shortly(
    posterior: btil.TeamPosterior, found: Findings
) -> None:
    habits = pd.DataFrame(
        {
            "agent": ["ann"] * 4 + [HOSTILE],
            "mind": ["a", "b", "c", "d", "e"],
            "share_of_steps": [0.1, 0.4, 0.2, 0.3, 1.0],
        }
    )
    own = dataclasses.replace(
        found, habits=habits, incomparable="They differ.",
        certainty=certainty(sure=(30, 20, 0.9), leaning=(70, 0, np.nan)),
    )  # fmt: skip
    told = sections.Told(posterior, own, None, False)
    assert sections.summary(told) == [
        "ann mostly had in mind: b (40%), d (30%), c (20%) of the steps.",
        f"{HOSTILE} mostly had in mind: e (100%) of the steps.",
        "What a member had in mind is sure (a probability of 90% or more) at 30% of the steps.",
        "61% of the steps are labelled. The labels were left aside here: the results come from "
        "all else that was recorded.",
        "Tested on 20 labelled steps whose labels were not shown: the most probable mental state "
        "was right at 90% of them; 100% were called sure, of which 90% were right.",
    ]
    used = sections.Told(posterior, dataclasses.replace(own, used_labels=True), None, False)
    assert len(sections.summary(used)) == 4
    result = posterior.result._replace(converged=False)
    unsettled = sections.Told(dataclasses.replace(posterior, result=result), own, None, False)
    assert sections.summary(unsettled)[-1].startswith("The learning behind this had not settled")
    assert sections.summary(unsettled)[:-1] == sections.summary(told)


def test_tables_that_go_on_in_a_file_say_so() -> None:
    assert plain(sections._more(15, 15, "changes")) == "As a file: tables/changes.csv."
    assert plain(sections._more(15, 16, "changes")) == "1 more line in tables/changes.csv."


# ------------------------------------------------------------------ from a shell


def run(*arguments: object) -> object:
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="btil")


def test_a_grid_world_from_a_shell(tmp_path: Path) -> None:
    table, out = tmp_path / "team.csv", tmp_path / "a debrief"
    task = btil.domains.movers("tiny")
    demos = task.simulate(3, seed=1)
    btil.write_demonstrations(demos, table)
    options = ("--task", "movers", "--map", "tiny", "--max-episodes", 0, "--out", out, "-q")
    first = run("report", table, "--no-relearn", *options)
    assert (first.exit_code, first.stderr) == (0, "")
    assert "- Minds were at cross purposes at " in first.stdout
    assert f"page       {out / 'debrief.html'}" in first.stdout
    fitted = btil.load_posterior(out / "posterior.nc")
    assert fitted.model == task.recommended_model() or "alice_held" in fitted.demos.num_states
    episodes = pd.read_csv(out / "tables" / "episodes.csv")
    expected = misaligned(demos, demos.latents, task)
    assert episodes["misaligned_steps"].sum() == expected.sum()
    again = run("report", table, "--posterior", out / "posterior.nc", "--no-relearn", *options)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout == first.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--posterior", "p.nc", "--method", "gibbs"), "has been learned already"),
        (("--posterior", "p.nc", "--shared"), "has been learned already"),
        (("--task", "chess"), "unknown domain 'chess'; there are movers, cleanup"),
        (
            ("--max-episodes", "-1", "--max-iterations", 3),
            "max_episodes must be a whole number of at least 0",
        ),
    ],
)
def test_report_refuses(options: tuple[object, ...], says: str, tmp_path: Path) -> None:
    table = tmp_path / "team.csv"
    btil.write_demonstrations(recordings(), table)
    refused = run("report", table, "--out", tmp_path / "out", *options)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert says in refused.stderr
