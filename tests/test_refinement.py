"""Draws around a mean field: right where the mean field is not, and honest where they are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma
from teams import hmm_demos, hmm_model, random_demos, rich_model
from test_emissions import _demos, _model

import btil
from btil.inference import refinement
from btil.inference.channels import laid_channels
from btil.inference.refinement import Drift, Snapshot, drift, sweeps_needed
from btil.inference.result import DirichletRows, FitResult, FunctionalRows, MatrixNormalChannel
from btil.messages.layout import lay_out
from btil.models.team import BoundModel, bind

# Six steps, two of them labelled: few enough for the exact posterior, and far from the mean field.
UNSURE = hmm_demos([0, 1, 1, 2, 0, 1], [0, -1, -1, 1, -1, -1])


def mean_field(model: Any = None, demos: Any = UNSURE, **options: Any) -> btil.TeamPosterior:
    model = hmm_model(1.0) if model is None else model
    return btil.fit(model, demos, dtype="float64", progress=False, **options)


def test_means_and_spreads_are_those_of_the_exact_posterior() -> None:
    coarse, number = mean_field(), 4000
    exact = btil.fit(hmm_model(1.0), UNSURE, "exact", progress=False)
    refined = coarse.refined(number, seed=1, progress=False)
    assert refined.converged, refined.reason
    narrow = []
    for site, rows in exact.result.rows.items():
        sd, own = rows.sd(), refined.result.rows[site]
        error = np.abs(own.mean() - rows.mean()) / (sd / np.sqrt(number))
        assert error.max() < 4.5
        # The standard error of a standard deviation is about sd / sqrt(2 N) or somewhat more.
        np.testing.assert_allclose(own.sd(), sd, rtol=6 / np.sqrt(2 * number))
        narrow.append(np.min(coarse.result.rows[site].sd() / sd))
    assert min(narrow) < 0.9  # what was to be mended


def test_two_agents_and_unequal_episodes() -> None:
    demos = random_demos(3, (4, 1, 3), labelled=0.5)
    coarse = mean_field(rich_model(), demos)
    exact = btil.fit(rich_model(), demos, "exact", progress=False)
    refined = coarse.refined(1000, progress=False)
    for site, rows in exact.result.rows.items():
        error = np.abs(refined.result.rows[site].mean() - rows.mean()) / rows.sd()
        assert error.max() < 5 / np.sqrt(1000)
    assert refined.result.log_likelihood.shape == (1, 1000, 3)
    expected = refined.log_likelihood(demos)
    assert np.all(np.abs(refined.result.log_likelihood[0].mean(0) - expected) < 2.0)


def test_rows_given_parameters() -> None:
    """Everything labelled: exact values by quadrature, the third row has no data at all."""
    demos = btil.Demonstrations(
        np.array([0, 0, 0, 0, 1]),
        np.array([0, 0, 1, 0, 1]),
        np.zeros(5, int),
        num_states=2,
        num_actions=2,
        num_latents=2,
    )
    model = btil.TeamModel(btil.HierarchicalDirichletCPT(parents=("state",)), btil.StaticCPT())
    refined = mean_field(model, demos).refined(3000, num_sweeps=20, progress=False)
    rows = refined.result.rows["policy_agent_0"].draws[0, :, :, :, 0]
    error = rows.std(0) / np.sqrt(len(rows))
    for (state, latent), value in {(0, 0): 0.612777, (1, 0): 0.444063, (0, 1): 0.5}.items():
        assert abs(rows[:, state, latent].mean() - value) < 4.5 * error[state, latent]
    strength = refined.result.parameters["policy_agent_0_strength"].draws
    assert strength.shape[:2] == (1, 3000)
    assert np.all(strength > 0)


def test_rows_that_are_functions() -> None:
    model = btil.TeamModel(btil.SoftmaxCPT(parents=("state",)), btil.DirichletCPT(1.0, parents=()))
    demos = btil.Demonstrations(
        np.array([0, 1, 1, 0, 1, 0]),
        np.array([0, 1, 1, 0, 0, 1]),
        np.array([0, 1, -1, 0, -1, 1]),
        num_states=2,
    )
    coarse = mean_field(model, demos)
    refined = coarse.refined(200, num_sweeps=10, progress=False)
    rows = refined.result.rows["policy_agent_0"].draws
    np.testing.assert_allclose(rows.sum(-1), 1, rtol=1e-6)
    assert rows.std(1).min() > 0
    apart = np.abs(rows[0].mean(0) - coarse.result.rows["policy_agent_0"].mean())
    assert np.all(apart < 0.3)


def test_the_method_is_the_two_in_one(tmp_path: Path) -> None:
    options = {"num_draws": 50, "num_sweeps": 4, "seed": 2}
    posterior = btil.fit(hmm_model(), UNSURE, "refined", progress=False, **options)
    by_hand = btil.fit(hmm_model(), UNSURE, seed=2, progress=False).refined(
        50, 4, seed=2, progress=False
    )
    rows, same = (p.result.rows["policy_agent_0"].draws for p in (posterior, by_hand))
    np.testing.assert_array_equal(rows, same)
    other = by_hand.sample(50)["policy_agent_0"]
    assert posterior.method == by_hand.method == "refined"
    posterior.save(tmp_path / "refined.nc")
    again = btil.load_posterior(tmp_path / "refined.nc")
    np.testing.assert_array_equal(again.sample(50)["policy_agent_0"], other)
    comparison = btil.compare(
        hmm_model(), UNSURE, ("exact", "refined"), progress=False,
        options={"refined": {"num_draws": 400}},
    )  # fmt: skip
    assert comparison.table.loc["refined", "converged"]
    assert abs(comparison.table.loc["refined", "sd_ratio"] - 1) < 0.1


def test_seeds() -> None:
    coarse = mean_field()
    first, same, other = (
        coarse.refined(20, 4, seed=seed, progress=False).result.rows["policy_agent_0"].draws
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.any(first == other)


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        ("exact", {}, "this posterior is of exact, and has draws or is exact"),
        ("mfvi", {"num_draws": 1}, "num_draws must be a whole number of at least 2"),
        ("mfvi", {"num_sweeps": 1}, "num_sweeps"),
        ("mfvi", {"seed": -1}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, options: dict[str, Any], told: str) -> None:
    posterior = btil.fit(hmm_model(), UNSURE, method, progress=False)
    with pytest.raises(ValueError, match=told):
        posterior.refined(**({"progress": False} | options))


def test_a_single_draw_is_refused_before_the_mean_field() -> None:
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 2, got 1"):
        btil.fit(hmm_model(), UNSURE, "refined", num_draws=1, progress=False)


def test_nothing_learned_is_refused() -> None:
    model = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT())
    with pytest.raises(ValueError, match="no table is learned"):
        btil.fit(model, hmm_demos([0, 1, 1], [0, -1, -1]), progress=False).refined(progress=False)


def snapshot(generator: np.random.Generator, shift: float, spread: float) -> Snapshot:
    rows = {"policy": 0.5 + shift + spread * generator.normal(size=(400, 30, 1, 2))}
    return Snapshot(rows, {}, generator.normal(-100 + 50 * shift, 1, (400, 3)))


def test_drift_is_told_from_chance() -> None:
    used = {"policy": np.arange(30) < 20}
    generator = np.random.default_rng(0)
    for _ in range(5):
        one, other = snapshot(generator, 0, 0.05), snapshot(generator, 0, 0.05)
        found = drift(one, other, used)
        assert found.settled
        assert abs(found.means - 1) < 0.5
    moved = drift(one, snapshot(generator, 0.01, 0.05), used)
    assert moved.means > 2
    assert not moved.settled
    wider = drift(one, snapshot(generator, 0, 0.06), used)
    assert wider.spreads == pytest.approx(np.log(1.2), abs=0.03)
    assert not wider.settled
    assert not Drift(1.0, 0.0, -5.0).settled


@pytest.mark.parametrize(
    ("rate", "number"), [(0.1, 8), (0.5, 8), (0.9, 38), (0.999, 400), (1.2, 400), (None, 38)]
)
def test_sweeps(rate: float | None, number: int) -> None:
    assert sweeps_needed(rate) == number


def test_nothing_that_varies_does_not_drift() -> None:
    demos = btil.Demonstrations([0, 0, 1, 0], [0, 0, 0, 0], num_latents=1, num_actions=1)
    refined = mean_field(btil.TeamModel(), demos).refined(num_draws=50, progress=False)
    assert refined.converged, refined.reason


def test_too_few_sweeps_are_told() -> None:
    """Few labels, weak rows: after two sweeps the draws still drift."""
    generator = np.random.default_rng(0)
    latents = np.repeat(generator.integers(0, 2, 40), 10)
    actions = np.where(generator.random(400) < 0.75, latents, 1 - latents)
    labels = np.where(np.arange(400) < 10, latents, -1)
    demos = btil.Demonstrations(np.zeros(400, int), actions, labels, num_latents=2)
    found = mean_field(hmm_model(1.0), demos).refined(1000, num_sweeps=2, progress=False)
    assert not found.converged
    assert "more sweeps are needed" in found.reason


def test_a_mean_field_that_did_not_converge_is_not_forgotten() -> None:
    coarse = mean_field(max_iterations=1)
    assert not coarse.converged
    found = coarse.refined(60, 4, progress=False)
    assert not found.converged
    assert "the mean field did not converge" in found.reason
    few = mean_field().refined(10, 8, progress=False)
    assert not few.converged
    assert "10 draws are too few to judge" in few.reason


class Drawn:
    """Stands for the chains: draws that do not depend on how they came about."""

    def __init__(self, bound: BoundModel, *_: Any) -> None:
        self.bound, self.generator = bound, np.random.default_rng(0)

    def after(self, number: int, line: Any) -> Snapshot:
        rows = {
            name: self.generator.dirichlet(np.ones(table.shape[-1]), (60, *table.shape[:-1]))
            for name, table in self.bound.learned.items()
        }
        return Snapshot(rows, {}, self.generator.normal(size=(60, 1)))


class Drifting(Drawn):
    """Those whose log likelihood rises all the time."""

    def after(self, number: int, line: Any) -> Snapshot:
        found = super().after(number, line)
        return found._replace(log_likelihood=found.log_likelihood + number)


@pytest.mark.parametrize(
    ("chains", "draws", "reached", "fault"),
    [
        (Drawn, 60, True, ""),
        (Drawn, 60, False, "the mean field did not converge: the cap"),
        (Drawn, 49, True, "49 draws are too few to judge"),
        (Drifting, 60, True, "more sweeps are needed"),
    ],
)
def test_draws_have_converged_if_nothing_is_at_fault(
    chains: type, draws: int, reached: bool, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "_Chains", chains)
    bound = bind(hmm_model(1.0), UNSURE)
    coarse = FitResult(rows={}, converged=reached, reason="the cap")
    found = refinement.refine(
        bound, coarse, seed=0, progress=False, dtype=np.dtype(np.float64), num_draws=draws,
        num_sweeps=8,
    )  # fmt: skip
    assert found.converged == (not fault)
    faults = ("the mean field did not", "are too few to judge", "more sweeps are needed")
    assert [one in found.reason for one in faults] == [one in fault for one in faults]
    assert fault in found.reason


def test_a_comparison_with_it_has_a_page(tmp_path: Path) -> None:
    """One chain of draws: there are no chains to draw side by side."""
    from btil.analysis import report

    comparison = btil.compare(
        hmm_model(1.0), UNSURE, ("mfvi", "refined", "gibbs"), progress=False,
        options={"refined": {"num_draws": 400}, "gibbs": {"num_chains": 1, "num_samples": 20}},
    )  # fmt: skip
    assert comparison.reference == "refined"
    assert not comparison.verdict.agreements["mfvi"].agrees
    assert any("num_chains of 4" in step for step in comparison.verdict.next_steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "PICTURES", [report._chains])
        comparison.report(tmp_path / "report")
    drawn = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert drawn == {"trace_gibbs", "forest_gibbs", "ess_gibbs"}
    with pytest.raises(ValueError, match="compares chains, and refined has one"):
        btil.analysis.plot_rank(comparison.posteriors["refined"])
    tree = comparison.posteriors["refined"].to_datatree(num_draws=10)
    assert "independent draws" in tree.posterior.attrs["draws"]


def test_coefficients_and_noise_are_watched_beside_rows_that_are_read() -> None:
    generator = np.random.default_rng(0)
    coefficients = generator.normal(size=(50, 2, 2, 3, 2))
    root = generator.normal(size=(50, 2, 2, 2, 2))
    covariance = root @ np.swapaxes(root, -1, -2)
    rows = generator.dirichlet(np.ones(3), (50, 4, 2))
    one = Snapshot({"policy": rows}, {}, np.zeros((50, 1)), {"ann": (coefficients, covariance)})
    found = one.numbers({"policy": np.array([True, False, False, True])})
    assert set(found) == {"policy", "ann/coefficients", "ann/noise"}
    np.testing.assert_array_equal(found["policy"], rows[:, [0, 3]].reshape(50, -1))
    np.testing.assert_array_equal(found["ann/coefficients"], coefficients.reshape(50, -1))
    sds = np.sqrt(covariance[..., [0, 1], [0, 1]])
    np.testing.assert_allclose(found["ann/noise"], np.log(sds).reshape(50, -1))


@pytest.mark.parametrize(("shift", "stretch"), [(0.05, 1.0), (-0.05, 1.0), (0.0, 1.2), (0.0, 0.8)])
def test_any_of_coefficients_noise_and_likelihood_may_drift(shift: float, stretch: float) -> None:
    """By independent draws: what is looked at is the size, whatever the sign."""
    generator = np.random.default_rng(1)

    def drawn(shift: float, stretch: float) -> Snapshot:
        coefficients = shift + 0.1 * stretch * generator.normal(size=(300, 5, 2, 1, 2))
        covariance = np.broadcast_to(np.eye(2), (300, 5, 2, 2, 2))
        return Snapshot(
            {}, {}, generator.normal(size=(300, 2)), {"ann": (coefficients, covariance)}
        )

    found = drift(drawn(0.0, 1.0), drawn(shift, stretch), {})
    assert not found.settled
    # Twice the variance of a mean is what chance explains of a difference.
    expected = 1 + 300 * shift**2 / 0.01 / (1 + stretch**2)
    assert found.means == pytest.approx(expected, rel=0.6 if shift == 0 else 0.2)
    assert found.spreads == pytest.approx(np.log(stretch), abs=0.04)


@pytest.mark.parametrize("moved", [-1.0, 1.0])
def test_the_move_of_the_likelihood_is_in_standard_errors(moved: float) -> None:
    generator = np.random.default_rng(2)
    first, second = generator.normal(size=(2, 400, 3))
    second += moved / 3
    one, other = (Snapshot({}, {}, values) for values in (first, second))
    found = drift(one, other, {}).log_likelihood
    difference = second.sum(1).mean() - first.sum(1).mean()
    error = np.sqrt(first.sum(1).var(ddof=1) / 400 + second.sum(1).var(ddof=1) / 400)
    assert found == pytest.approx(difference / error)
    assert np.sign(found) == np.sign(moved)


def test_chains_begin_at_geometric_means_of_rows_and_centres_of_columns() -> None:
    """Rows of contexts that are padding are left as they are."""
    bound = bind(_model(), _demos())
    layout, generator = lay_out(bound), np.random.default_rng(3)
    laid = laid_channels(bound, layout, np.dtype(np.float32))
    rows: dict[str, Any] = {
        name: DirichletRows(generator.uniform(0.3, 5, table.shape))
        for name, table in bound.learned.items()
    }
    rows["other"] = FunctionalRows(np.full((1, 1, 2), 0.5), np.zeros((1, 1, 2)))
    channels: dict[str, Any] = {}
    for channel in bound.channels.values():
        location, precision, scale, degrees = channel.prior()
        moved = location + generator.normal(size=location.shape)
        channels[channel.name] = MatrixNormalChannel(moved, precision, scale, degrees + 3.5)
    result = FitResult(rows=rows, converged=True, reason="", channels=channels)
    dtype = np.dtype(np.float32)
    states = refinement._first_states(bound, layout, laid, result, 0, 4, dtype)
    assert set(states.log_tables) == set(bound.learned)
    for name in bound.learned:
        w = rows[name].concentration
        found = np.asarray(states.log_tables[name])[:, : len(w)]
        expected = digamma(w) - digamma(w.sum(-1, keepdims=True))
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-4)
    for name, own in laid.items():
        posterior, contexts = channels[name], len(own.channel.contexts)
        coefficients, covariance = (
            np.asarray(part, np.float64)[:, :contexts] for part in states.channels[name]
        )
        # In the units of the data: every draw begins at M and Psi / nu.
        drawn = refinement.gibbs.in_units(own, coefficients[None], covariance[None])
        centre = posterior.scale / posterior.degrees[..., None, None]
        for found, expected in zip(drawn, (posterior.location, centre), strict=True):
            assert found.shape == (1, 4, *expected.shape)
            np.testing.assert_allclose(
                found, np.broadcast_to(expected, found.shape), rtol=1e-3, atol=1e-3
            )


def test_of_rows_given_by_parameters_the_logs_of_their_means_are_taken() -> None:
    mean = np.array([[[0.2, 0.8, 0.0]]])
    found = refinement._log_means(FunctionalRows(mean, np.zeros_like(mean)))
    np.testing.assert_allclose(np.exp(found), mean, atol=1e-30)
    assert np.isfinite(found).all()
