"""Predictive checks of recordings as they are: gaps, members who leave, columns of numbers."""

import numpy as np
import pytest
from test_emission_methods import _reading_actions, _with_gaps
from test_emissions import BLANK, _demos, _model
from test_recordings_inference import model as model_of_gaps
from test_recordings_inference import team as team_with_gaps

import btil
from btil.analysis.predictive import _as_play, _one_step_ahead, posterior_predictive_check
from btil.inference.result import DrawnChannel, DrawnRows, FitResult
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


@pytest.mark.covers("normal columns", "predictive check")
@pytest.mark.covers("members without actions", "predictive check")
@pytest.mark.covers("blank cells of columns", "predictive check")
@pytest.mark.parametrize("replicate", ["steps", "episodes"])
def test_statistics_of_columns_by_hand(replicate):
    demos = _demos(lengths=(4, 3), labelled=7, blank=BLANK)
    fitted = btil.fit(_model(), demos, progress=False)
    found = posterior_predictive_check(fitted, num_draws=8, replicate=replicate)
    table = found.table.set_index(["agent", "group", "given", "statistic"]).sort_index()
    x = demos.continuous["ann_x"]
    seen = np.isfinite(x)
    values = table.loc["ann", "columns", "ann_x"]["observed"]
    assert values["mean"] == pytest.approx(x[seen].mean())
    assert values["95% quantile"] == pytest.approx(np.quantile(x[seen], 0.95))
    changes = [x[t] - x[t - 1] for t in (1, 2, 3, 5, 6) if seen[t] and seen[t - 1]]
    assert values["change in a step, standard deviation"] == pytest.approx(np.std(changes))
    held = seen & (demos.latents[:, 0] == 1)
    assert values["mean in 1"] == pytest.approx(x[held].mean())
    assert ("bob", "actions") not in {(s.agent, s.group) for s in found.statistics}
    assert "ann_x: mean" in [one.words for one in found.statistics]


def sure_of_columns(labels):
    """Latents that take turns, and a column that is 1 in the one and 5 in the other, for sure."""
    demos = btil.Demonstrations(
        np.zeros(5, int), None, np.array(labels)[:, None], episodes=[0, 0, 0, 1, 1],
        agents=("ann",), num_latents=2, continuous={"x": np.array([2.0, 7.0, np.nan, 4.0, 3.0])},
    )  # fmt: skip
    model = btil.TeamModel(
        policy=None,
        transition=btil.DirichletCPT(1.0, parents=()),
        initial=btil.DirichletCPT(1.0),
        emissions=btil.NormalEmission(("x",)),
    )
    bound = bind(model.resolved(demos), demos)
    draws = {"transition": [[[0.0, 1.0], [1.0, 0.0]]], "initial": [[1.0, 0.0]]}
    rows = {f"{role}_ann": DrawnRows(np.tile(one, (1, 4, 1, 1, 1)[: 2 + np.ndim(one)]))
            for role, one in draws.items()}  # fmt: skip
    coefficients = np.tile(np.array([[[[1.0]], [[5.0]]]]), (1, 4, 1, 1, 1, 1))
    channel = DrawnChannel(coefficients, np.full_like(coefficients, 1e-20))
    result = FitResult(rows, True, "made by hand", channels={"emission_ann": channel})
    return TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)


@pytest.mark.parametrize("replicate", ["steps", "episodes"])
def test_columns_are_replicated_with_the_latents_and_blank_where_they_were(replicate):
    """One step ahead the latents are as seen; whole episodes take turns from the first latent."""
    labels = [1, 1, 0, 0, 0]
    found = posterior_predictive_check(sure_of_columns(labels), num_draws=4, replicate=replicate)
    table = found.table.set_index(["group", "statistic"]).sort_index()
    observed, predicted = table.loc["columns", "observed"], table.loc["columns", "predicted"]
    # Seen: 2 and 7 in latent 1, then a blank in 0; 4 and 3 in latent 0.
    by_name = {
        "mean": 4.0,
        "standard deviation": np.std([2, 7, 4, 3]),
        "5% quantile": np.quantile([2, 7, 4, 3], 0.05),
        "95% quantile": np.quantile([2, 7, 4, 3], 0.95),
        "change in a step, standard deviation": np.std([5, -1]),
        "mean in 0": 3.5,
        "standard deviation in 0": 0.5,
        "mean in 1": 4.5,
        "standard deviation in 1": 2.5,
    }
    assert observed.to_dict() == pytest.approx(by_name)
    made = [5, 5, 1, 1] if replicate == "steps" else [1, 5, 1, 5]
    # From what was recorded before, or from what was made before.
    changes = [5 - 2, 1 - 4] if replicate == "steps" else [5 - 1, 5 - 1]
    by_name = {
        "mean": 3.0,
        "standard deviation": 2.0,
        "5% quantile": np.quantile(made, 0.05),
        "95% quantile": np.quantile(made, 0.95),
        "change in a step, standard deviation": np.std(changes),
        "mean in 0": 1.0,
        "standard deviation in 0": 0.0,
        "mean in 1": 5.0,
        "standard deviation in 1": 0.0,
    }
    assert predicted.to_dict() == pytest.approx(by_name, abs=1e-7)
    assert (table["sd"].dropna() == 0).all()
    if replicate == "steps":
        # After 1, 1 and 0 the next are 0, 0 and 1; both episodes begin with 0.
        assert table.loc[("mental states", "1"), "predicted"] == 1 / 5
        return
    # Seen: one switch, none; made: two and one, of one step held each.
    switches, dwell = table.loc["switches"], table.loc["dwell"]
    assert switches["observed"].to_dict() == {"mean": 0.5, "standard deviation": 0.5}
    assert switches["predicted"].to_dict() == {"mean": 1.5, "standard deviation": 0.5}
    assert dwell.loc["standard deviation", "predicted"] == 0
    assert np.isnan(dwell.loc["standard deviation", "observed"])  # of a single stay that ended


def walks(steps, lag, generator):
    """Columns around the latent's mean; with a lag they keep some of what they were."""
    latents = np.repeat(generator.integers(2, size=steps // 10), 10)
    noise = generator.normal(size=steps)
    x = np.zeros(steps)
    for t in range(steps):
        x[t] = (lag * x[t - 1] if t % 50 else 0.0) + noise[t]
    return btil.Demonstrations(
        np.zeros(steps, int), None, latents, episodes=np.arange(steps) // 50, agents=("ann",),
        num_latents=2, continuous={"x": x + 3 * latents * (1 - lag)},
    )  # fmt: skip


@pytest.mark.covers("regressions on covariates", "predictive check")
def test_columns_that_keep_what_they_were_are_told_from_those_that_do_not():
    def surprising(lag, emission):
        demos = walks(500, lag, np.random.default_rng(1))
        model = btil.TeamModel(
            policy=None, transition=btil.DirichletCPT(1.0, parents=()), emissions=emission
        )
        fitted = btil.fit(model, demos, progress=False)
        found = posterior_predictive_check(fitted, num_draws=100).surprising()
        return set(found[found["group"] == "columns"]["statistic"])

    plain = btil.NormalEmission(("x",))
    regression = btil.LinearNormalEmission(("x",), ("previous_x",))
    assert "change in a step, standard deviation" in surprising(0.9, plain)
    assert not surprising(0.9, regression)
    assert not surprising(0.0, plain)


@pytest.mark.covers("unseen actions and states", "predictive check")
@pytest.mark.covers("members who come and go", "predictive check")
@pytest.mark.covers("unsure labels", "predictive check")
def test_moves_after_an_unseen_action_are_drawn_with_it_summed_out():
    demos = btil.concatenate([team_with_gaps()] * 400)
    bound = bind(model_of_gaps(), demos)
    generator = np.random.default_rng(0)
    rows = {
        name: generator.dirichlet(np.ones(table.shape[-1]), table.shape[:-1])
        for name, table in bound.tables.items()
    }
    latents = np.stack([generator.integers(k, size=demos.num_steps) for k in demos.num_latents], 1)
    seen = _as_play(bound, latents, demos.actions)
    again = _one_step_ahead(bound, rows, seen, generator)
    tried = 0
    for i, agent in enumerate(demos.agents):
        assert ((again.latents[:, i] >= 0) == demos.present[:, i]).all()
        assert ((again.actions[:, i] >= 0) == (demos.actions[:, i] >= 0)).all()
        unseen = bound.rows[agent].unseen
        if unseen is None:
            continue
        policy, transition = (
            rows[bound.table(role, agent).name] for role in ("policy", "transition")
        )
        moves = np.concatenate([unseen.policy[:, None], unseen.transition], axis=1)
        for move in np.unique(moves, axis=0):
            for held in range(demos.num_latents[i]):
                at = unseen.step[(moves == move).all(1)]
                at = at[seen.before[at, i] == held]
                expected = policy[move[0], held] @ transition[move[1:], held]
                share = np.bincount(again.latents[at, i], minlength=len(expected)) / len(at)
                error = np.sqrt(expected * (1 - expected) / len(at))
                assert np.all(np.abs(share - expected) < 4.5 * error + 1e-9)
                tried += 1
    assert tried > 2


@pytest.mark.covers("gaps beside columns", "predictive check")
def test_a_check_of_gaps_beside_columns():
    """Nobody counts while away, nor an action that nobody saw; latents follow the columns."""
    demos = _with_gaps(_demos(lengths=(4, 3), labelled=2))
    fitted = btil.fit(_reading_actions().resolved(demos), demos, progress=False)
    for replicate in ("steps", "episodes"):
        found = posterior_predictive_check(fitted, num_draws=6, replicate=replicate)
        table = found.table.set_index(["agent", "group", "given", "statistic"]).sort_index()
        shares = table.loc["ann", "actions", ""]["observed"]
        acted = demos.actions[demos.actions[:, 0] >= 0, 0]
        np.testing.assert_allclose(shares, np.bincount(acted, minlength=3) / 6)
        assert table.loc["bob", "mental states", ""]["observed"].sum() == pytest.approx(1.0)
        assert table.loc["bob", "mental states", ""]["predicted"].sum() == pytest.approx(1.0)


def test_latents_are_drawn_by_what_columns_say():
    """Columns that tell latents for sure: every draw has them, whatever actions say."""
    demos = walks(200, 0.0, np.random.default_rng(2))
    demos = demos.replace(continuous={"x": demos.continuous["x"] + 100 * demos.latents[:, 0]})
    fitted = btil.fit(
        btil.TeamModel(
            policy=None,
            transition=btil.DirichletCPT(1.0, parents=()),
            emissions=btil.NormalEmission(("x",)),
        ),
        demos,
        progress=False,
    )
    check = posterior_predictive_check(fitted, demos.without_labels(), num_draws=5)
    table = check.table.set_index(["group", "statistic"]).sort_index()
    share = demos.latents.mean()
    np.testing.assert_allclose(table.loc["mental states", "1"]["observed"], share)
    assert table.loc["mental states", "1"]["sd"] == 0


@pytest.mark.covers("files larger than memory", "predictive check")
def test_a_check_of_a_file_counts_columns_and_gaps_as_in_memory(tmp_path, monkeypatch):
    """With labels nothing that was seen is drawn: all but the quantiles adds up to the same."""
    monkeypatch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 4)
    demos = _with_gaps(_demos(lengths=(4, 3, 5), labelled=12, blank=BLANK))
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 4)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    fitted = btil.fit(_reading_actions().resolved(demos), demos, progress=False, max_iterations=9)
    whole, parts = (
        posterior_predictive_check(fitted, data, num_draws=30) for data in (demos, file)
    )
    added = [k for k, one in enumerate(whole.statistics) if "quantile" not in one.name]
    assert parts.statistics == tuple(whole.statistics[k] for k in added)
    assert len(added) < len(whole.statistics)
    np.testing.assert_allclose(parts.observed, whole.observed[:, added], rtol=1e-9)
    assert parts.share_labelled == whole.share_labelled
    # Replicates are drawn: means over draws agree within their errors.
    columns = [one.group == "columns" for one in parts.statistics]
    found, expected = parts.replicated[:, columns], whole.replicated[:, added][:, columns]
    known = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), known)
    found, expected = found[:, known.all(0)], expected[:, known.all(0)]
    error = np.sqrt((found.var(0) + expected.var(0)) / 30)
    assert np.all(np.abs(found.mean(0) - expected.mean(0)) < 5 * error)
