"""`btil.suggest_model`: parents found, columns refused, one answer however data are ordered."""

import itertools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suggest as benchmark
from html_pages import Links
from scipy.special import gammaln
from typer.testing import CliRunner

import btil
from btil import Demonstrations, StickyDirichletCPT, TeamModel, suggest_model
from btil.cli import app
from btil.demonstrations import naming
from btil.models.description import model_from_description
from btil.models.team import bind
from btil.suggestion import columns, held_out, scores, search
from btil.suggestion.preferring import Option
from btil.suggestion.scores import Prior, Reads
from btil.suggestion.search import Scored
from btil.suggestion.suggest import _of_all_steps
from btil.suggestion.told import Table

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def team() -> Demonstrations:
    """24 episodes of three people whose parents are known, 8 of them labelled."""
    return benchmark.labelled(benchmark.made_team(1, 24), 8)


@pytest.fixture(scope="module")
def found(team: Demonstrations) -> btil.Suggestion:
    return suggest_model(team, **QUIET)


def parents(suggestion: btil.Suggestion) -> dict[tuple[str, str], set[str]]:
    """By role and agent the columns that its table reads."""
    return {
        (table.role, agent): {table.found.pool.names[f][agent] for f in table.best.parents}
        for table in suggestion.tables
        for agent in table.agents
    }


def with_states(demos: Demonstrations, more: dict[str, Any]) -> Demonstrations:
    """The demonstrations with further state variables."""
    states = {
        name: np.array(demos.value_names(name), object)[values]
        if name in demos.state_names
        else values
        for name, values in demos.state_variables.items()
    }
    sizes = {"num_actions": demos.num_actions, "num_latents": demos.num_latents}
    return Demonstrations(
        states | more,
        dict(zip(demos.agents, demos.actions.T, strict=True)),
        dict(zip(demos.agents, demos.latents.T, strict=True)),
        demos.episodes,
        **sizes,
    )


# ---------------------------------------------------------------------- what is found


def test_the_true_parents_are_found(found: btil.Suggestion) -> None:
    expected = {
        (role, agent): {name.replace("{own}", agent) for name in names}
        for role, names in benchmark.TRUE.items()
        for agent in ("ann", "bob", "cy")
    }
    assert parents(found) == expected
    # Each member has tables of its own: they were drawn apart.
    assert all(len(table.agents) == 1 for table in found.tables)
    assert not found.refused
    for errors in found.errors.values():
        assert errors["found"] < 0.6 * min(errors["default"], errors["majority"])


def test_what_is_found_decodes_episodes_never_seen(
    team: Demonstrations, found: btil.Suggestion
) -> None:
    truth = benchmark.made_team(1, 24).select(range(8, 24))
    posterior = btil.fit(found.model, team, progress=False, tolerance=1.0, max_iterations=30)
    errors = btil.analysis.hamming_distance(truth, posterior)
    assert (errors < 0.6 * btil.analysis.majority_class_error(truth, truth)).all()


def shuffled(demos: Demonstrations) -> Demonstrations:
    """The same with columns, agents and episodes in another order."""
    demos = demos.select(np.random.default_rng(3).permutation(demos.num_episodes))
    agents = demos.agents[::-1]
    return Demonstrations(
        dict(reversed(demos.state_variables.items())),
        {agent: demos.actions[:, demos.agents.index(agent)] for agent in agents},
        {agent: demos.latents[:, demos.agents.index(agent)] for agent in agents},
        np.repeat(np.arange(demos.num_episodes), demos.episode_lengths),
        num_actions=4,
        num_latents=3,
    )


def test_order_and_seed_change_nothing(team: Demonstrations, found: btil.Suggestion) -> None:
    other = suggest_model(shuffled(team), seed=7, **QUIET)
    assert parents(other) == parents(found)
    for role in ("policy", "transition", "initial"):
        assert getattr(other.model, role) == getattr(found.model, role)


def test_columns_of_noise_change_nothing(team: Demonstrations, found: btil.Suggestion) -> None:
    generator = np.random.default_rng(0)
    noise = {f"extra_{k}": generator.integers(2 + k % 4, size=team.num_steps) for k in range(14)}
    assert parents(suggest_model(with_states(team, noise), **QUIET)) == parents(found)


def test_a_proxy_is_dropped_once_the_causes_are_there() -> None:
    """The proxy says most alone, and nothing beside the two columns that it was made of."""
    generator = np.random.default_rng(0)
    a, b = generator.integers(3, size=(2, 600))
    sum_of_both = (a + b) % 3
    proxy = np.where(generator.random(600) < 0.8, sum_of_both, generator.integers(3, size=600))
    actions = np.where(generator.random(600) < 0.95, sum_of_both, generator.integers(3, size=600))
    demos = Demonstrations(
        {"a": a, "b": b, "proxy": proxy}, actions, np.zeros(600, int), np.repeat(range(6), 100)
    )
    seen = columns.views(demos, ["a", "b", "proxy"], {})
    found = search.search(search.make_pool(demos, seen, "policy", ("agent_0",)))
    assert [one.what for one in found.path] == ["none", "+ proxy", "+ a + b", "- proxy"]
    assert found.best.parents == ("a", "b")
    assert set(found.brought) == {"a", "b"}
    assert min(found.brought.values()) > 100


def test_symmetric_members_share_a_table() -> None:
    """Both follow the same rules, each on its own column."""
    generator = np.random.default_rng(0)
    cell = generator.integers(3, size=(400, 2))
    latents = np.repeat(generator.integers(2, size=(40, 2)), 10, axis=0)
    actions = np.where(generator.random((400, 2)) < 0.9, (cell + latents) % 3, 0)
    demos = Demonstrations(
        {"cell-ann": cell[:, 0], "cell-bob": cell[:, 1], "other": generator.integers(3, size=400)},
        {"ann": actions[:, 0], "bob": actions[:, 1]},
        {"ann": latents[:, 0], "bob": latents[:, 1]},
        np.repeat(np.arange(40), 10),
    )
    suggestion = suggest_model(demos.without_labels(range(10, 40)), **QUIET)
    assert isinstance(suggestion.model.policy, btil.Shared)
    assert suggestion.model.policy.cpt.parents == {"ann": ("cell-ann",), "bob": ("cell-bob",)}
    assert isinstance(suggestion.model.transition, btil.Shared)
    assert "own" in suggestion.words()
    # One of them unlabelled: the other's labels serve both.
    one = demos.replace(latents={"ann": latents[:, 0]}, num_latents=2)
    suggestion = suggest_model(one, **QUIET)
    assert isinstance(suggestion.model.policy, btil.Shared)
    assert "bob has no labels" in suggestion.sharing["policy"]
    assert any(warning.startswith("bob: too few labels") for warning in suggestion.warnings)


def test_a_latent_that_keeps_until_its_event() -> None:
    generator = np.random.default_rng(1)
    held = np.repeat(generator.integers(2, size=200), 5)
    changed = np.diff(held, append=held[-1]) != 0
    latent = np.zeros(1000, int)
    for t in range(999):
        latent[t + 1] = generator.integers(3) if changed[t] else latent[t]
    actions = np.where(generator.random(1000) < 0.7, latent, generator.integers(3, size=1000))
    demos = Demonstrations({"held": held}, actions, latent, np.repeat(np.arange(10), 100))
    transition = suggest_model(demos, **QUIET).model.transition
    assert isinstance(transition, StickyDirichletCPT)
    assert transition.unless == "held"
    assert set(transition.parents) == {"held", "next_held"}
    assert transition.stay >= 10


# ---------------------------------------------------------------------- what is refused


def test_columns_that_tell_what_is_labelled_are_refused(team: Demonstrations) -> None:
    labelled = (team.latents >= 0).any(axis=1)
    latent = np.where(labelled, team.latents[:, 0] + 1, 0)
    generator = np.random.default_rng(0)
    sometimes = np.where(generator.random(team.num_steps) < 0.5, latent, 0)
    text = np.array(["none", "lift", "rest", "run"], object)[latent]
    bad = {
        "note": text,
        "sometimes": sometimes,
        "same": np.zeros(team.num_steps, int),
        "clock": np.arange(team.num_steps),
    }
    suggestion = suggest_model(with_states(team, bad), refit=False, **QUIET)
    assert set(suggestion.refused) == set(bad)
    assert "one value throughout" in suggestion.refused["same"]
    assert "hardly repeats" in suggestion.refused["clock"]
    assert "labelled" in suggestion.refused["note"]
    assert "labelled episodes" in suggestion.refused["sometimes"]
    read = set().union(*parents(suggestion).values())
    assert not read & set(bad)
    assert "refused note: " in str(suggestion)
    # Who names a column has it.
    kept = suggest_model(
        with_states(team, {"note": text}), roles={"note": "common"}, refit=False, **QUIET
    )
    assert not kept.refused


def test_notes_within_episodes_are_refused_too() -> None:
    generator = np.random.default_rng(0)
    latent = generator.integers(2, size=120)
    known = np.tile(np.arange(30) % 6 < 2, 4)
    demos = Demonstrations(
        {"x": generator.integers(3, size=120), "coder": np.where(known, latent + 1, 0)},
        generator.integers(3, size=120),
        np.where(known, latent, -1),
        np.repeat(np.arange(4), 30),
    )
    assert list(suggest_model(demos, **QUIET).refused) == ["coder"]


def test_an_action_by_another_name_is_no_parent_of_its_policy(team: Demonstrations) -> None:
    copy = np.array(["a", "b", "c", "d"], object)[team.actions[:, 0]]
    demos = with_states(team, {"ann_button": copy})
    assert columns.tells_action(demos, "ann_button", "ann")
    assert not columns.tells_action(demos, "ann_button", "bob")
    assert "ann_button" not in parents(suggest_model(demos, **QUIET))["policy", "ann"]


@pytest.mark.parametrize("share_seen", [1.0, 0.5, 0.0])
def test_a_column_tells_the_actions_that_were_seen(share_seen: float) -> None:
    generator = np.random.default_rng(0)
    actions = generator.integers(3, size=200)
    seen = np.where(generator.random(200) < share_seen, actions, -1)
    demos = Demonstrations(
        {"button": 2 - actions, "nearly": np.where(generator.random(200) < 0.1, 0, actions)},
        {"ann": seen},
        num_actions=3,
        num_latents=2,
        missing="allow",
    )
    assert columns.tells_action(demos, "button", "ann") == (share_seen > 0)
    assert not columns.tells_action(demos, "nearly", "ann")


def test_honest_columns_are_rarely_refused() -> None:
    wrong = 0
    for seed in range(20):
        demos = benchmark.labelled(benchmark.made_team(seed, 8, steps=15), 2)
        wrong += len(columns.refused(demos, {}))
    assert wrong <= 2  # of 180 columns


# ---------------------------------------------------------------------- roles and names


@pytest.mark.parametrize(
    ("name", "agent", "form"),
    [
        ("ann_cell", "ann", "{own}_cell"),
        ("ann_cell", "bob", "{other}_cell"),
        ("cell.bob", "bob", "cell.{own}"),
        ("channel", "ann", "channel"),
        ("ann_to_bob", "bob", "{other}_to_{own}"),
        ("annex", "ann", "annex"),
    ],
)
def test_forms(name: str, agent: str, form: str) -> None:
    assert naming.form_of(name, agent, ("ann", "bob")) == form


def test_forms_of_three_and_of_names_in_names() -> None:
    agents = ("p_1", "p_10", "p")
    assert naming.form_of("p_10_x", "p_10", agents) == "{own}_x"
    assert naming.form_of("p_1_x", "p_10", agents) == "{other2}_x"
    assert naming.form_of("p_x", "p_10", agents) == "{other1}_x"


def test_forms_are_words_for_parents_and_explained_where_columns_are_called_otherwise() -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(3, size=(300, 2))
    minds = np.repeat(generator.integers(2, size=(10, 2)), 30, axis=0)
    other = generator.integers(3, size=(300, 2))
    actions = np.where(generator.random((300, 2)) < 0.8, (x + minds) % 3, other)
    demos = Demonstrations(
        {"x1": x[:, 0], "x2": x[:, 1]},
        {"ann": actions[:, 0], "bob": actions[:, 1]},
        minds,
        np.repeat(np.arange(10), 30),
        continuous={"temperature": generator.normal(size=300)},
    )
    roles = {"x1": "ann_x", "x2": "bob_x"}
    found = suggest_model(demos, roles=roles, refit=False, **QUIET)
    assert found.unread == ("temperature",)
    assert "measured columns that nothing reads: temperature; " in str(found)
    assert "policy of ann and bob: own_x\n    own_x is x1 of ann and x2 of bob\n" in str(found)
    assert "1 context in 580 steps" in str(found)
    called = demos.replace(
        states={"ann_x": x[:, 0], "bob_x": x[:, 1]}, num_states={"ann_x": 3, "bob_x": 3}
    )
    plain = suggest_model(called, refit=False, **QUIET)
    assert "own_x is" not in str(plain)
    # The words of the suggestion are parents of a model.
    by_words = TeamModel(btil.Shared(btil.DirichletCPT(1.0, ("own_x",))))
    found_by_names = bind(plain.model, called).rows["bob"].policy
    assert np.array_equal(bind(by_words, called).rows["bob"].policy, found_by_names)


def test_roles_name_what_names_do_not_say() -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(3, size=(300, 2))
    demos = Demonstrations(
        {"x1": x[:, 0], "x2": x[:, 1], "y": generator.integers(2, size=300)},
        {"ann": x[:, 0], "bob": x[:, 1]},
        np.repeat(generator.integers(2, size=(10, 2)), 30, axis=0),
        np.repeat(np.arange(10), 30),
    )
    seen = columns.views(demos, ["x1", "x2"], {"x1": "ann_x", "x2": "bob_x"})
    assert seen.states["ann"] == {"{other}_x": "x2", "{own}_x": "x1"}
    assert seen.states["bob"] == {"{other}_x": "x1", "{own}_x": "x2"}
    assert suggest_model(demos, roles={"y": "ignore"}, **QUIET).refused == {
        "y": "it is to be ignored"
    }
    for roles, message in [
        ({"z": "common"}, "no state variable 'z'"),
        ({"x1": "carl"}, "'carl'; allowed are"),
        ({"x1": 3}, "allowed are"),
        ({"x1": "ann_x", "x2": "ann_x"}, "more than one column would be called ann_x"),
        ("x1", "must be a mapping"),
    ]:
        with pytest.raises(ValueError, match=message):
            suggest_model(demos, roles=roles, **QUIET)


# ---------------------------------------------------------------------- scores


def test_the_score_is_the_product_of_predictions() -> None:
    """One step after another: each is predicted from those before it, and the products multiply."""
    generator = np.random.default_rng(0)
    context, latent, value = (generator.integers(n, size=60) for n in (4, 3, 5))
    shares = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    grid = scores.policy_grid(shares)
    reads = Reads(latent, value, 3, 5)
    found = scores.log_marginals(context, reads, grid, value, np.zeros(60, int))
    for prior, score in zip(grid.priors, found, strict=True):
        seen = np.zeros((4, 3, 5))
        expected = 0.0
        for c, x, v in zip(context, latent, value, strict=True):
            row = seen[c, x] + prior.strength * np.array(prior.base)
            expected += np.log(row[v] / row.sum())
            seen[c, x, v] += 1
        assert score == pytest.approx(expected, abs=1e-9)


def test_the_score_of_a_transition_that_keeps() -> None:
    generator = np.random.default_rng(0)
    context, latent, value = (generator.integers(n, size=60) for n in (4, 3, 3))
    changed = (context >= 2).astype(np.int64)
    grid = scores.keeping_grid(3)
    stays = (latent == value).astype(np.int64)
    found = scores.log_marginals(
        context, Reads(latent, value, 3, 3), grid, 2 * changed + stays, changed
    )
    counts = np.zeros((4, 3, 3))
    np.add.at(counts, (context, latent, value), 1)
    for prior, score in zip(grid.priors, found, strict=True):
        u = np.full((4, 3, 3), prior.strength)
        u[:2] += prior.stay * np.eye(3)
        cells = (gammaln(u + counts) - gammaln(u)).sum()
        rows = (gammaln(u.sum(-1)) - gammaln((u + counts).sum(-1))).sum()
        assert score == pytest.approx(cells + rows, rel=1e-12)


def test_held_out_labels_by_enumeration() -> None:
    """log p(labels | actions) of every fold, by summing over every sequence of latents."""
    generator = np.random.default_rng(4)
    latent = generator.integers(2, size=12)
    demos = Demonstrations(
        {"x": generator.integers(2, size=12)},
        generator.integers(3, size=12),
        latent,
        np.repeat([0, 1, 2], [5, 4, 3]),
    )
    seen = columns.views(demos, ["x"], {})
    policy = search.make_pool(demos, seen, "policy", ("agent_0",))
    transition = search.make_pool(demos, seen, "transition", ("agent_0",))
    of = held_out.stretches(demos, ("agent_0",))
    assert of is not None
    prior = Prior("flat", 1.5, 0.0, (1 / 3,) * 3)
    moving = search.Scored(("x",), 0.0, Prior("sticky", 0.3, 1.0), None, 2)
    emission = held_out.emissions(policy, ("x",), [prior, prior._replace(strength=3.0)], of)
    move = held_out.moves(transition, moving, of)
    found = held_out.log_conditionals(emission, move, of)
    assert found[0] != found[1]
    x, actions = demos.state_variables["x"], demos.actions[:, 0]
    expected = 0.0
    episode = demos.episodes
    for held in range(3):
        u, v = np.full((2, 2, 3), 0.5), np.full((2, 2, 2), 0.3) + np.eye(2)
        for t in np.flatnonzero(episode != held):
            u[x[t], latent[t], actions[t]] += 1
            if t and episode[t - 1] == episode[t]:
                v[x[t - 1], latent[t - 1], latent[t]] += 1
        u, v = u / u.sum(-1, keepdims=True), v / v.sum(-1, keepdims=True)
        rows = np.flatnonzero(episode == held)
        joint = {}
        for path in itertools.product(range(2), repeat=len(rows)):
            p = 0.5
            for k, t in enumerate(rows):
                p *= u[x[t], path[k], actions[t]]
                p *= v[x[t - 1], path[k - 1], path[k]] if k else 1.0
            joint[path] = p
        expected += np.log(joint[tuple(latent[rows])] / sum(joint.values()))
    assert found[0] == pytest.approx(expected, abs=1e-10)


def test_tables_that_err_less_in_fits_are_taken(
    team: Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table at a time, given what was taken before; without fits the scores decide."""
    from btil.suggestion import suggest

    fitted: list[TeamModel] = []

    class Fits:
        def __init__(self, demos: Demonstrations) -> None:
            self.demos = demos

        def errors(self, bound: Any) -> np.ndarray:
            fitted.append(bound.model)
            policy, transition = bound.model.policy, bound.model.transition
            if isinstance(policy, btil.Shared) or isinstance(transition, btil.Shared):
                return np.full(24, 0.9)
            wrong = 0.1 * (policy["bob"].parents != ("phase",))
            wrong += 0.1 * (transition["cy"].parents != ("cy_load",))
            return np.full(24, 0.1 + wrong)

    monkeypatch.setattr(suggest, "FoldFits", Fits)
    suggestion = suggest_model(team, **QUIET)
    taken = parents(suggestion)
    expected = {
        (role, agent): {name.replace("{own}", agent) for name in names}
        for role, names in benchmark.TRUE.items()
        for agent in ("ann", "bob", "cy")
    }
    assert taken == expected | {("policy", "bob"): {"phase"}, ("transition", "cy"): {"cy_load"}}
    assert len(fitted) == len({repr(model) for model in fitted})
    table = next(one for one in suggestion.tables if one.title == "policy of bob")
    assert [option.error for option in table.fitted[:2]] == pytest.approx([0.2, 0.3])
    assert "by fits that learn from unlabelled steps too: mean decoding error 0.200" in str(
        suggestion
    )
    assert "decoding error 0.300)" in str(suggestion)
    frame = suggestion.table
    assert (
        frame[frame.chosen & (frame.agents == "bob") & (frame.role == "policy")].error.min() < 0.21
    )
    fitted.clear()
    assert parents(suggest_model(team, refit=False, **QUIET)) == expected
    assert not fitted


def test_members_share_where_fits_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own tables that explain a little more give way to a shared one that errs no more."""
    from btil.suggestion import suggest

    demos = called("ann", "bob", ("ann_cell", "bob_cell"))
    shared = suggest_model(demos, refit=False, **QUIET)
    assert isinstance(shared.model.policy, btil.Shared)
    wrong = {"own": 0.2, "shared": 0.2}

    class Fits:
        def __init__(self, demos: Demonstrations) -> None:
            self.demos = demos

        def errors(self, bound: Any) -> np.ndarray:
            kind = "shared" if isinstance(bound.model.policy, btil.Shared) else "own"
            return np.full(12, wrong[kind])

    chosen = suggest._choose

    def apart(*arguments: Any) -> Any:
        together = chosen(*arguments)
        found = {}
        for agent in demos.agents:
            one = chosen(*arguments[:4], (agent,), *arguments[5:])
            found |= one.found
            together.refined.update(one.refined)
        refined = {agents: together.refined[agents] for agents in found if together.refined}
        family = {a: suggest._families(f.pool, f.best)[a] for (a,), f in found.items()}
        return suggest.Choice(found, family, "", refined, together, margin)

    monkeypatch.setattr(suggest, "FoldFits", Fits)
    monkeypatch.setattr(suggest, "_choose", apart)
    margin = 3.0
    assert isinstance(suggest_model(demos, **QUIET).model.policy, btil.Shared)
    margin = 30.0
    assert not isinstance(suggest_model(demos, **QUIET).model.policy, btil.Shared)
    wrong["shared"] = 0.1
    found = suggest_model(demos, **QUIET)
    assert found.sharing["policy"] == "in fits one table errs by 0.100, own tables by 0.200"


def test_errors_of_fits_leave_labels_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every labelled episode is decoded once, by a fit that saw its actions and not its labels."""
    from btil.suggestion import refits

    demos = benchmark.labelled(benchmark.made_team(0, 9, ("a", "b"), steps=8), 7)
    latents = np.array(demos.latents)
    latents[demos.episodes == 6, 1] = -1  # nothing is known of b there
    demos = demos.replace(latents=latents)
    fits, tested = [], []

    def fit(model: Any, train: Demonstrations, **more: Any) -> Demonstrations:
        # Near enough to decode by, and no longer than that takes.
        settled = {"tolerance": 1.0, "max_iterations": 200}
        assert more == {"seed": 7, "progress": False, **settled}
        fits.append(train)
        return train

    def distance(held: Demonstrations, train: Demonstrations) -> np.ndarray:
        tested.extend(held.episode_ids.tolist())
        rows = np.isin(train.episodes, held.episode_ids)
        assert (train.latents[rows] == -1).all()
        assert (held.latents[:, 0] >= 0).all()
        of_b = np.unique(held.episodes[held.latents[:, 1] >= 0])
        return np.array([0.1, np.mean(of_b / 10) if len(of_b) else np.nan])

    monkeypatch.setattr(refits, "fit", fit)
    monkeypatch.setattr(refits, "hamming_distance", distance)
    errors = refits.by_mean_field(demos, [TeamModel(), TeamModel()], 7, False)
    # Folds have three or two episodes; means are of episodes.
    assert errors == pytest.approx(np.array([[0.1, 0.25], [0.1, 0.25]]))
    assert sorted(tested) == sorted([*range(7), *range(7)])
    assert all(train.num_episodes == 9 for train in fits)
    tested.clear()
    refits.by_mean_field(benchmark.labelled(demos, 2), [TeamModel()], 7, False)
    assert sorted(tested) == [0, 1]
    only_a = demos.replace(latents=np.where([True, False], latents, -1))
    assert np.isnan(refits.by_mean_field(only_a, [TeamModel()], 7, False)[0, 1])


def team_that_walks(seed: int, labelled: int) -> Demonstrations:
    """Members who go where they want to be, each want at a speed of its own, and stand still there.

    Speeds tell more of who walks than of what for.
    """
    generator = np.random.default_rng(seed)
    episodes, steps = 25, 25
    speeds, places, wants = np.array([1.4, 0.9, 0.5]), [], []
    acted, measured = [], []
    for _ in range(episodes):
        at, want = generator.integers(3, size=(2, 2))
        for _ in range(steps):
            there = at == want
            chance = np.where(there, [[0.7], [0.2], [0.1]], [[0.1], [0.3], [0.6]])
            action = (generator.random(2) > chance.cumsum(0)).sum(0)  # work, stand, walk
            mean = np.where(action == 2, speeds[want], 0.15)
            places.append(at)
            wants.append(want)
            acted.append(np.where(action == 0, want, 2 + action))
            measured.append(np.maximum(generator.normal(mean, 0.2), 0.0))
            target = np.where(generator.random(2) < 0.7, want, generator.integers(3, size=2))
            done = (action == 0) & there & (generator.random(2) < 0.35)
            at = np.where(action == 2, target, at)
            want = np.where(done, (want + generator.integers(1, 3, size=2)) % 3, want)
    place, action, speed = np.array(places), np.array(acted), np.array(measured)
    demos = Demonstrations(
        {"ann_at": place[:, 0], "bob_at": place[:, 1]},
        {"ann": action[:, 0], "bob": action[:, 1]},
        np.array(wants),
        np.repeat(np.arange(episodes), steps),
        continuous={"ann_speed": speed[:, 0], "bob_speed": speed[:, 1]},
    )
    return demos.without_labels(range(labelled, episodes))


def test_columns_without_which_fits_decode_better_are_left_out() -> None:
    """Two speeds beside three mental states: an emission makes the latents tell the speeds."""
    from btil.suggestion.refits import by_mean_field

    demos = team_that_walks(0, 5)
    found = suggest_model(demos, **QUIET)
    without = suggest_model(demos.replace(continuous={}), **QUIET)
    assert found.model == without.model
    assert not found.model.emissions
    assert found.errors == without.errors
    assert set(found.refused) == {"ann_speed", "bob_speed"}
    assert found.unread == ()
    assert "refused ann_speed: fits err less in labels held out without it, 0." in str(found)
    untested = suggest_model(demos, refit=False, **QUIET)
    assert set(untested.model.emissions) == {"ann", "bob"}
    assert any("ann_speed and bob_speed help to tell" in line for line in untested.warnings)
    assert untested.errors == {}
    with_speed, plain = by_mean_field(demos, [untested.model, without.model], 0, False)
    assert with_speed.mean() > plain.mean() + 0.1


def test_errors_told_are_of_the_model_with_its_emissions(monkeypatch: pytest.MonkeyPatch) -> None:
    from btil.suggestion import suggest

    demos = team_that_walks(0, 5)
    compared = []

    def by_mean_field(_: Any, models: Any, *__: Any) -> np.ndarray:
        compared.extend(models)
        errors = np.full((len(models), 2), 0.5)
        errors[1] = 0.3, 0.2
        return errors

    monkeypatch.setattr(suggest, "by_mean_field", by_mean_field)
    found = suggest_model(demos, **QUIET)
    assert found.model == compared[1]
    assert [found.errors[agent]["found"] for agent in ("ann", "bob")] == [0.3, 0.2]
    assert found.errors["ann"]["majority"] > 0.5
    assert not any("was not tested" in line for line in found.warnings)
    assert compared[-1].emissions is None
    # What is printed as Python is the same model, with its emissions.
    scope: dict[str, Any] = {}
    exec(found.python, scope)
    assert scope["model"] == found.model
    assert found.model.emissions
    assert model_from_description(tomllib.loads(found.toml)) == found.model


def test_the_better_of_with_and_without_columns_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them where that errs less; columns stay where it is the same."""
    from btil.suggestion import suggest

    demos, last = team_that_walks(0, 2), [0.2]
    monkeypatch.setattr(
        suggest, "_by_fits", lambda demos, policy, transition, *_: (policy, transition)
    )

    def by_mean_field(_: Any, models: Any, *__: Any) -> np.ndarray:
        return np.array([[0.3, 0.3]] * (len(models) - 1) + [[last[0], last[0]]])

    monkeypatch.setattr(suggest, "by_mean_field", by_mean_field)
    found = suggest_model(demos, **QUIET)
    assert found.model.emissions is None
    reason = "fits err less in labels held out without it, 0.200, than with it, 0.300"
    assert found.refused == {"ann_speed": reason, "bob_speed": reason}
    last[0] = 0.3
    found = suggest_model(demos, **QUIET)
    assert found.model.emissions
    assert found.refused == {}


# ---------------------------------------------------------------------- the family


def test_sticky_unless() -> None:
    states = {"held": [0, 0, 1, 1, 0], "x": [0, 1, 0, 1, 0]}
    demos = Demonstrations(states, [0, 1, 0, 1, 0], num_latents=2)
    cpt = StickyDirichletCPT(0.5, 8.0, ("held", "next_held"), unless="held")
    table = bind(TeamModel(transition=cpt), demos).table("transition", "agent_0")
    rows = table.contexts.rows
    for (before, after), u in zip(rows, cpt.concentration(table.contexts), strict=True):
        assert np.array_equal(u, 0.5 + (8.0 if before == after else 0.0) * np.eye(2))
    assert {tuple(row) for row in rows} == {(0, 0), (0, 1), (1, 1), (1, 0)}
    for unless, message in [("x", "'x' is not among the parents"), ({"bob": "held"}, "not for")]:
        wrong = StickyDirichletCPT(0.5, 8.0, ("held", "next_held"), unless)
        with pytest.raises(ValueError, match=message):
            wrong.concentration(table.contexts)
    with pytest.raises(ValueError, match="unless must be"):
        StickyDirichletCPT(unless=3)
    model = TeamModel(transition=StickyDirichletCPT(parents=(), unless={"a": "x", "b": "y"}))
    text = btil.models.description.describe(model)
    assert model_from_description(tomllib.loads(text)).transition == model.transition


# ---------------------------------------------------------------------- what a newcomer brings


def test_no_labels_at_all() -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(3, size=200)
    demos = Demonstrations(
        {"x": x, "y": generator.integers(3, size=200)},
        {"ann": (x + (generator.random(200) < 0.1)) % 3, "bob": generator.integers(2, size=200)},
        episodes=np.repeat(np.arange(10), 20),
        num_latents=[2, 3],
    )
    suggestion = suggest_model(demos, **QUIET)
    assert "no labels" in suggestion.warnings[0]
    assert suggestion.model.policy["ann"].parents == ("x",)
    assert suggestion.model.policy["bob"].parents == ()
    assert not suggestion.tables
    assert len(suggestion.table) == 0
    page = Links(str(suggestion.html())).text
    assert "There were no labels" in page
    assert "found by the labels" not in page
    bind(suggestion.model, demos)


def test_actions_that_nobody_saw_count_nowhere() -> None:
    """Of a member without labels; where its actions are unseen x is another than elsewhere."""
    generator = np.random.default_rng(0)
    x = np.repeat([0, 1], 60)
    seen = np.where(x == 0, -1, generator.integers(2, size=120))
    demos = Demonstrations(
        {"x": x},
        {"ann": generator.integers(3, size=120), "bob": seen},
        {"ann": np.repeat(generator.integers(2, size=6), 20)},
        np.repeat(range(6), 20),
        num_actions={"ann": 3, "bob": 2},
        num_latents=2,
        missing="allow",
    )
    policy = suggest_model(demos, refit=False, **QUIET).model.policy["bob"]
    assert policy.parents == ()
    seen_alone = columns.views(demos, ["x"], {})
    pool = search.make_pool(demos.without_labels(), seen_alone, "policy", ("bob",))
    every = _of_all_steps(demos, seen_alone, pool)
    assert every.reads.value.tolist() == seen[60:].tolist()
    assert set(every.reads.latent.tolist()) == {0}


@pytest.mark.parametrize("lengths", [[1] * 30, [12], [1, 5, 1, 7], [1]])
def test_odd_lengths_and_members_that_differ(lengths: list[int]) -> None:
    generator = np.random.default_rng(0)
    steps = sum(lengths)
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    demos = Demonstrations(
        {"x": generator.integers(3, size=steps), "same": np.zeros(steps, int)},
        {"a": generator.integers(2, size=steps), "b": generator.integers(4, size=steps)},
        {"a": np.zeros(steps, int), "b": generator.integers(3, size=steps)},
        episodes,
        num_actions=[2, 4],
        num_latents=[2, 3],
    )
    suggestion = suggest_model(demos, **QUIET)
    assert "same" in suggestion.refused
    assert model_from_description(tomllib.loads(suggestion.toml)) == suggestion.model
    bind(suggestion.model, demos)
    assert str(suggestion)
    if steps > 3:
        assert "no step is labelled 1" in str(suggestion.warnings)


def test_four_members_and_one_labelled_episode() -> None:
    demos = benchmark.made_team(0, 6, ("a", "b", "c", "d"), steps=20)
    suggestion = suggest_model(benchmark.labelled(demos, 1), **QUIET)
    assert suggestion.errors == {}
    assert any("labels in one episode only" in warning for warning in suggestion.warnings)
    assert {agent for _, agent in parents(suggestion)} == {"a", "b", "c", "d"}


def called(first: str, second: str, columns: tuple[str, str]) -> Demonstrations:
    """Two members who do what their columns say, under any names."""
    generator = np.random.default_rng(0)
    x = generator.integers(3, size=(120, 2))
    latents = np.repeat(generator.integers(2, size=(6, 2)), 20, axis=0)
    actions = (x + latents) % 3
    return Demonstrations(
        dict(zip(columns, x.T, strict=True)),
        {first: actions[:, 0], second: actions[:, 1]},
        latents,
        np.repeat(np.arange(6), 20),
        num_latents=2,
    )


def test_names_in_other_capitals_are_told() -> None:
    demos = called("Ann", "Bob", ("ann_cell", "Bob_cell"))
    (warning,) = suggest_model(demos, refit=False, **QUIET).warnings
    assert "the name of Ann is written with other capitals" in warning
    assert 'call it Ann_cell, or say roles={"ann_cell": "Ann_cell"}' in warning
    told = suggest_model(demos, refit=False, roles={"ann_cell": "Ann_cell"}, **QUIET)
    assert not told.warnings
    assert not suggest_model(called("ann", "bob", ("ann_cell", "bob_cell")), **QUIET).warnings
    measured = demos.replace(continuous={"BOB_v": np.random.default_rng(0).random(120)})
    warnings = suggest_model(measured, refit=False, **QUIET).warnings
    assert warnings[1].endswith("if it is theirs, call it Bob_v")


def test_members_called_own_or_other() -> None:
    """Words of a suggestion speak of "own" only where nobody is called so."""
    found = suggest_model(called("own", "bob", ("own_cell", "bob_cell")), refit=False, **QUIET)
    policy = found.tables[0]
    assert policy.agents == ("bob", "own")
    assert policy.parents_text(policy.best.parents) == "bob_cell/own_cell"
    assert policy.explanations() == ["bob_cell/own_cell is bob_cell of bob and own_cell of own"]


# ---------------------------------------------------------------------- what it says


def test_how_other_parents_compare_is_said() -> None:
    prior = Prior("plain", strength=1.0)
    fitted = Option(Scored(("x",), -3.0, prior, None, 2), np.array([0.25, 0.3]))
    table = Table("policy", ("ann",), None, None, 4, 20, fitted=(fitted,))
    assert table._difference(("y",), 2.34) == "2.3 nats less"
    assert table._difference(("y",), -1.26) == "1.3 nats more, too few for its size"
    assert table._difference(("x",), 2.34) == "2.3 nats less, decoding error 0.275"
    assert table._difference(("x",), -1.26) == "1.3 nats more, decoding error 0.275"


def test_words_table_toml_and_python(found: btil.Suggestion) -> None:
    text = str(found)
    for part in ("policy of ann", "nats", "labelled steps each", "next best", "sharing of the"):
        assert part in text
    assert "default model" in text
    assert model_from_description(tomllib.loads(found.toml)) == found.model
    names: dict[str, Any] = {}
    exec(found.python, names)
    assert names["model"] == found.model
    table = found.table
    assert table.chosen.sum() >= len(found.tables)
    chosen = table[table.chosen].groupby(["role", "agents"]).parents.nunique()
    assert (chosen == 1).all()
    assert len(chosen) == len(found.tables)
    page = Links(str(found.html()))
    assert not page.open
    assert page.elements.count("h3") == len(found.tables)
    for part in ("nats of held-out labels", "next best", "this model", found.toml):
        assert part in page.text
    for one in found.tables:
        assert f"{one.role.capitalize()} of {one.agents[0]}" in page.text
        assert one.parents_text(one.best.parents) in page.text


def test_the_shell(team: Demonstrations, found: btil.Suggestion, tmp_path: Path) -> None:
    runner = CliRunner()
    data, out = tmp_path / "team.csv", tmp_path / "model.toml"
    btil.write_demonstrations(team, data)
    done = runner.invoke(app, ["suggest", str(data), "--out", str(out), "--role", "phase=common"])
    assert done.exit_code == 0, done.output
    assert f"btil fit {data} --model {out}" in done.output
    assert btil.models.description.read_model(out) == found.model
    fitted = tmp_path / "team.nc"
    words = [
        "fit",
        str(data),
        "--out",
        str(fitted),
        "--model",
        "auto",
        "--role",
        "phase=common",
        "--max-iterations",
        "2",
        "-q",
    ]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "found      policy of ann: phase, ann_cell" in done.stdout
    assert btil.load_posterior(fitted).model == found.model
    for words, message in [
        (["suggest", str(data), "--role", "phase"], "COLUMN=ROLE"),
        (["fit", str(data), "--out", str(fitted), "--model", "auto", "--shared"], "leave out"),
        (["fit", str(data), "--out", str(fitted), "--role", "phase=common"], "--model auto"),
        (["fit", str(data), "--out", "x.nc", "--model", "auto", "--role", "y=ann"], "no state"),
    ]:
        done = runner.invoke(app, words)
        assert done.exit_code == 2
        assert message in done.output


def test_pages_tell_where_the_model_is_from(
    team: Demonstrations, found: btil.Suggestion, tmp_path: Path
) -> None:
    posterior = btil.fit(found.model, team, progress=False, max_iterations=3)
    written = btil.analysis.debrief(
        posterior, team, tmp_path, 1, relearn=False, progress=False, suggestion=found
    )
    page = Links(written.page.read_text(encoding="utf-8"))
    assert "How the model was found" in page.text
    assert found.toml in page.text


def test_a_plain_fit_points_to_it() -> None:
    generator = np.random.default_rng(0)
    demos = Demonstrations(
        {name: generator.integers(6, size=60) for name in "xyz"},
        generator.integers(2, size=60),
        num_latents=2,
    )
    with pytest.warns(btil.DataWarning, match=r"btil\.suggest_model"):
        btil.fit(TeamModel(), demos, progress=False, max_iterations=1)
