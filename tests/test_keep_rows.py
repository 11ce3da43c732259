"""Gibbs with moments of all rows and the draws of some, against the draws of all."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gibbs import sharing_team, unlike_team

import btil
from btil import analysis
from btil.analysis.compare import compare_posteriors
from btil.inference import gibbs
from btil.inference.chains import judge_chains, moments_split_rhat, rhat
from btil.inference.moments import Moments, add_draw, merged, no_draws, no_parts, part_lengths
from btil.inference.result import DrawnRows, MomentRows

# An odd number of draws, and more than one call of 25 to each half.
RUN = {"num_chains": 3, "num_warmup": 4, "num_samples": 61, "seed": 5, "progress": False}


def team_with_parameters() -> tuple[btil.TeamModel, btil.Demonstrations]:
    """A shared table, and rows that are a function of parameters."""
    model, demos = sharing_team()
    transition = {"ann": btil.StaticCPT(), "bob": btil.SoftmaxCPT()}
    return btil.TeamModel(model.policy, transition, model.initial), demos


def plain_split_rhat(draws: Any) -> Any:
    """ArviZ's, of the last draws if their number is odd; NaN for cells that never vary."""
    from arviz_stats.base import array_stats

    found = np.full(draws.shape[2:], np.nan)
    varying = ~(draws == draws[:1, :1]).all((0, 1))
    if draws.shape[1] >= 4 and varying.any():
        chosen = draws[:, draws.shape[1] % 2 :, varying].astype(np.float64)
        found[varying] = array_stats.rhat(chosen, chain_axis=0, draw_axis=1, method="split")
    return found


@pytest.fixture(scope="module", params=[unlike_team, team_with_parameters])
def pair(request: pytest.FixtureRequest) -> tuple[btil.TeamPosterior, btil.TeamPosterior]:
    """The same chains with all draws, and with those of one context of each table."""
    model, demos = request.param()
    return (
        btil.fit(model, demos, "gibbs", **RUN),
        btil.fit(model, demos, "gibbs", keep_rows=1, **RUN),
    )


def test_moments_are_those_of_all_draws(pair: Any) -> None:
    full, few = pair
    assert list(full.result.rows) == list(few.result.rows)
    for site, rows in full.result.rows.items():
        moments = few.result.rows[site]
        assert isinstance(moments, MomentRows)
        assert moments.counts.tolist() == [1, 30, 30]
        np.testing.assert_array_equal(moments.draws, rows.draws[:, :, moments.kept])
        np.testing.assert_allclose(moments.mean(), rows.mean(), rtol=1e-6)
        np.testing.assert_allclose(moments.sd(), rows.sd(), rtol=1e-5, atol=1e-12)
        mean, sd = moments.chain_moments()
        np.testing.assert_allclose(mean, rows.draws.mean(1, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(sd, rows.draws.std(1, dtype=np.float64), rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(
            moments_split_rhat(moments), plain_split_rhat(rows.draws), rtol=1e-5
        )
    for site, parameter in full.result.parameters.items():
        np.testing.assert_array_equal(parameter.draws, few.result.parameters[site].draws)
    np.testing.assert_array_equal(full.result.log_likelihood, few.result.log_likelihood)


def test_each_cell_is_judged_by_what_is_known_of_it(pair: Any) -> None:
    """R-hat where there are draws, and elsewhere split R-hat, under its own name."""
    full, few = pair
    info = few.draws_info
    assert "max_split_rhat" not in full.draws_info
    assert info["constant_cells"].equals(full.draws_info["constant_cells"])
    assert (info["rows"] == full.draws_info["rows"]).all()
    num_above, largest = 0, []
    for site, rows in full.result.rows.items():
        kept = np.isin(np.arange(rows.draws.shape[2]), few.result.rows[site].kept)
        hats = rhat(rows.draws)
        largest.append(hats[kept].ravel())
        for column, one in (
            ("max_rhat", hats[kept]),
            ("max_split_rhat", plain_split_rhat(rows.draws[:, :, ~kept])),
        ):
            expected = np.nan if np.isnan(one).all() else np.nanmax(one)
            assert info.loc[site, column] == pytest.approx(expected, rel=1e-5, nan_ok=True)
        hats[~kept] = plain_split_rhat(rows.draws[:, :, ~kept])
        assert info.loc[site, "rows_above"] == (hats >= 1.05).any(-1).sum()
        num_above += (hats >= 1.05).sum()
    whole = {site: rows.draws for site, rows in full.result.rows.items()}
    one, other = judge_chains(whole), judge_chains(few.result.rows)
    assert (one.num_cells, one.num_constant) == (other.num_cells, other.num_constant)
    assert other.num_above == num_above
    assert other.max_rhat == np.nanmax(np.concatenate(largest))
    assert "largest split R-hat of rows without draws" in other.reason
    assert "split" not in one.reason


def test_what_is_asked_at_the_mean_is_the_same(pair: Any) -> None:
    full, few = pair
    demos = full.demos
    for name in ("smooth", "filter", "predict_actions"):
        one, other = (getattr(posterior, name)(demos) for posterior in pair)
        for agent in demos.agents:
            np.testing.assert_allclose(one[agent], other[agent], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(full.decode(demos), few.decode(demos))
    np.testing.assert_allclose(full.log_likelihood(demos), few.log_likelihood(demos), rtol=1e-5)
    states = {name: [0, 1] for name in demos.num_states}
    np.testing.assert_allclose(full.policy("ann", states), few.policy("ann", states), rtol=1e-6)
    # Of an action that nobody took before a step: by the parameters, where there are any.
    np.testing.assert_allclose(full.initial("bob", states), few.initial("bob", states), rtol=1e-6)
    assert "policy" in repr(few)


def needing_every_draw() -> dict[str, Callable[[btil.TeamPosterior], Any]]:
    return {
        "sample": lambda posterior: posterior.sample(3),
        "smooth": lambda posterior: posterior.smooth(posterior.demos, num_draws=3),
        "log_likelihood": lambda posterior: posterior.log_likelihood(posterior.demos, num_draws=3),
        "tracker": lambda posterior: posterior.tracker(num_draws=3),
        "compare": lambda posterior: compare_posteriors({"gibbs": posterior}),
        "evidence": lambda posterior: analysis.log_evidence(
            posterior.model, posterior.demos, "chib", posterior=posterior, progress=False
        ),
        "chains": lambda posterior: analysis.plot_trace(posterior),
        "prior": lambda posterior: analysis.plot_prior_posterior(posterior),
        "predictive": lambda posterior: analysis.posterior_predictive_check(posterior, num_draws=3),
    }


@pytest.fixture(scope="module")
def few() -> btil.TeamPosterior:
    model, demos = unlike_team()
    return btil.fit(model, demos, "gibbs", keep_rows=1, **RUN)


@pytest.mark.parametrize("question", needing_every_draw())
def test_what_needs_every_draw_says_how_to_have_it(few: btil.TeamPosterior, question: str) -> None:
    with pytest.raises(ValueError, match="keep_rows=None"):
        needing_every_draw()[question](few)


def test_compare_and_calibrate_refuse_before_they_fit() -> None:
    model, demos = unlike_team()
    options = {"gibbs": {"keep_rows": 1}}
    with pytest.raises(ValueError, match="keep_rows=None"):
        btil.compare(model, demos, ("gibbs",), options=options, progress=False)
    with pytest.raises(ValueError, match="keep_rows=None"):
        analysis.calibrate(model, demos, "gibbs", 2, keep_rows=1, progress=False)


def test_rows_that_were_kept_can_be_shown(few: btil.TeamPosterior) -> None:
    kept = few.result.rows["policy_ann"].kept
    assert analysis.plot_policy_rows(few, "ann", contexts=kept.tolist()).axes
    (missing,) = {0, 1} - set(kept.tolist())
    with pytest.raises(ValueError, match=f"policy_ann: .* context {missing} were not"):
        analysis.plot_policy_rows(few, "ann", contexts=[missing])


def test_those_most_read_are_kept(few: btil.TeamPosterior) -> None:
    # Of the lights of steps 0..5 = 0, 1, 1, 0, 1, 0 as many are on as off: the first stands.
    assert few.result.rows["policy_ann"].kept.tolist() == [0]
    # Bob's actions before a move are 1, 0 and 0: the last step of an episode leads nowhere.
    contexts = few.bound.tables["transition_ann"].contexts.rows[:, 0].tolist()
    assert [contexts[k] for k in few.result.rows["transition_ann"].kept] == [0]
    # Bob's next lights are 1, 1 and 0.
    contexts = few.bound.tables["transition_bob"].contexts.rows[:, 0].tolist()
    assert [contexts[k] for k in few.result.rows["transition_bob"].kept] == [1]


def test_rows_may_be_listed() -> None:
    model, demos = unlike_team()
    posterior = btil.fit(
        model, demos, "gibbs", keep_rows={"policy_ann": [1], "transition_dot": []}, **RUN
    )
    kept = {site: rows.kept.tolist() for site, rows in posterior.result.rows.items()}
    assert kept.pop("policy_ann") == [1]
    assert not any(kept.values())
    assert posterior.result.rows["initial_bob"].draws.shape == (3, 61, 0, 3)
    assert posterior.draws_info["max_rhat"].notna().sum() == 1
    # All tables but those of dot, whose one latent never changes.
    assert posterior.draws_info["max_split_rhat"].isna().sum() == 2
    tree = posterior.to_datatree()
    assert tree["posterior"]["policy_ann"].sizes["policy_context_ann"] == 1
    assert tree["moments"]["initial_bob_mean"].shape == (3, 1, 3)


@pytest.mark.parametrize(
    ("keep_rows", "message"),
    [
        (-1, "keep_rows must be a whole number of at least 0"),
        (True, "keep_rows must be a whole number"),
        ({"policy_eve": [0]}, "no learned table policy_eve; there are policy_ann"),
        ({"policy_bob": [0]}, "no learned table policy_bob"),
        ({"policy_ann": [2]}, "context of policy_ann: 2; allowed are whole numbers in 0..1"),
        ({"policy_ann": 0.5}, "context of policy_ann: 0.5"),
    ],
)
def test_what_is_no_choice_of_rows_is_refused(keep_rows: Any, message: str) -> None:
    model, demos = unlike_team()
    with pytest.raises(ValueError, match=message):
        btil.fit(model, demos, "gibbs", keep_rows=keep_rows, **RUN)


def test_saved_and_loaded(few: btil.TeamPosterior, tmp_path: Path) -> None:
    few.save(tmp_path / "few.nc")
    loaded = btil.load_posterior(tmp_path / "few.nc")
    assert loaded.options["keep_rows"] == 1
    for site, rows in few.result.rows.items():
        for one, other in zip(rows, loaded.result.rows[site], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    np.testing.assert_array_equal(few.decode(few.demos), loaded.decode(few.demos))


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: {"kept": rows.kept + 7},
        lambda rows: {"kept": np.array([0, 0])},
        lambda rows: {"counts": rows.counts[:2]},
        lambda rows: {"counts": rows.counts + 1},
        lambda rows: {"squares": rows.squares[:, :2]},
        lambda rows: {"draws": rows.draws[:, :, :0]},
    ],
)
def test_moments_that_do_not_fit_are_not_loaded(
    few: btil.TeamPosterior, tmp_path: Path, damage: Callable[[MomentRows], dict[str, Any]]
) -> None:
    rows = few.result.rows["policy_ann"]
    spoilt = {**few.result.rows, "policy_ann": rows._replace(**damage(rows))}
    dataclasses.replace(few, result=few.result._replace(rows=spoilt)).save(tmp_path / "few.nc")
    with pytest.raises(ValueError, match="moments and draws of policy_ann do not fit"):
        btil.load_posterior(tmp_path / "few.nc")


def test_the_tree_has_moments_and_the_draws_kept(few: btil.TeamPosterior) -> None:
    tree = few.to_datatree()
    drawn = tree["posterior"]["transition_bob"]
    rows = few.result.rows["transition_bob"]
    assert drawn["transition_context_bob"].values.tolist() == ["next_light=1"]
    np.testing.assert_array_equal(drawn, rows.draws)
    moments = tree["moments"]
    mean = moments["transition_bob_mean"].sel(transition_context_bob="next_light=0")
    np.testing.assert_array_equal(mean, rows.chain_moments()[0][:, 0])
    np.testing.assert_array_equal(moments["transition_bob_sd"], rows.chain_moments()[1])
    np.testing.assert_array_equal(moments["transition_bob_split_rhat"], moments_split_rhat(rows))


def test_renaming_latents_goes_with_moments() -> None:
    model, demos = unlike_team()
    model = btil.TeamModel(
        model.policy | {"ann": btil.DirichletCPT(1.0, parents=("light",))},
        model.transition,
        model.initial,
    )
    demos = demos.without_labels()
    full, few = (btil.fit(model, demos, "gibbs", keep_rows=k, **RUN) for k in (None, 1))
    swapped = [{"ann": own, "bob": [0, 1, 2], "dot": [0]} for own in ([0, 1], [1, 0], [1, 0])]
    full, few = (analysis.alignment.rename_latents(one, swapped) for one in (full, few))
    for site, rows in full.result.rows.items():
        assert isinstance(rows, DrawnRows)
        moments = few.result.rows[site]
        np.testing.assert_allclose(
            moments.chain_moments()[0], rows.draws.mean(1, dtype=np.float64), rtol=1e-6
        )
        np.testing.assert_array_equal(moments.draws, rows.draws[:, :, moments.kept])
    reference, own = (analysis.align(one, one) for one in (full, few))
    for site, rows in reference.result.rows.items():
        np.testing.assert_allclose(own.result.rows[site].mean(), rows.mean(), rtol=1e-6)
    (last,) = analysis.modes.only_chains(few, [2]).result.rows["policy_ann"].means
    np.testing.assert_array_equal(last, few.result.rows["policy_ann"].means[2])


@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    few: btil.TeamPosterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    advance, made = gibbs.advance, []

    def interrupted(*arguments: Any) -> Any:
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(1)
        return advance(*arguments)

    file = tmp_path / "run.npz"
    with monkeypatch.context() as patch:
        patch.setattr(gibbs, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            btil.fit(few.model, few.demos, "gibbs", keep_rows=1, checkpoint=file, **RUN)
    with pytest.raises(ValueError, match="keep_rows: 1 there, None here"):
        btil.fit(few.model, few.demos, "gibbs", checkpoint=file, resume=True, **RUN)
    resumed = btil.fit(
        few.model, few.demos, "gibbs", keep_rows=1, checkpoint=file, resume=True, **RUN
    )
    for site, rows in few.result.rows.items():
        for one, other in zip(rows, resumed.result.rows[site], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9])
def test_moments_of_any_number_of_tiny_and_large_values(number: int) -> None:
    generator = np.random.default_rng(number)
    # Spreads from far below what a square in single precision can hold, next to one and constant.
    draws = generator.uniform(size=(2, number, 4)) * [1e-30, 1e-3, 1.0, 0.0] + [0, 0.9, 0, 0.25]
    draws = draws.astype(np.float32)
    lengths = part_lengths(number).tolist()
    assert sum(lengths) == number
    whole = no_parts(2, len(lengths), (4,))
    for part, end in enumerate(np.cumsum(lengths)):
        count = 0
        while count < lengths[part]:
            added = min(3, lengths[part] - count)
            block = no_draws(jnp.zeros((2, 4), jnp.float32))
            for k in range(added):
                drawn = jnp.asarray(draws[:, end - lengths[part] + count + k])
                block = add_draw(block, drawn, jnp.asarray(k + 1))
            before = jax.tree.map(np.copy, whole)
            following = merged(whole, part, count, block, added)
            jax.tree.map(np.testing.assert_array_equal, before, whole)
            whole, count = following, count + added
    assert isinstance(whole, Moments)
    kept = np.arange(0)
    rows = MomentRows(np.array(lengths), whole.mean, whole.squares, kept, draws[:, :, kept])
    exact = draws.astype(np.float64)
    np.testing.assert_allclose(rows.mean(), exact.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(rows.sd(), exact.std((0, 1)), rtol=1e-3, atol=0)
    np.testing.assert_allclose(moments_split_rhat(rows), plain_split_rhat(draws), rtol=1e-3)
