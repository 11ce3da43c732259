"""The contraction rate against a full Jacobian, and ends of plain fits (case 23)."""

from typing import Any

import numpy as np
import pytest
from convergence import almost_symmetric, made_recording
from scipy.special import polygamma
from teams import hmm_demos, hmm_model, random_demos, rich_model
from test_mfvi import concentrations, direct_sweep, fit

import btil
from btil.inference.ascents import End, judge
from btil.inference.contraction import fisher_information, spectrum, step_length, still_to_come
from btil.inference.stochastic import Data, Problem, State, _end, end_of
from btil.numerics.special import trigamma


def jacobian(bound: Any, w: dict[str, np.ndarray]) -> np.ndarray:
    """Derivative of the direct sweep over all sequences, cell by cell, by central differences."""
    flat = np.concatenate([values.ravel() for values in w.values()])
    ends = np.cumsum([values.size for values in w.values()])[:-1]

    def sweep(point: np.ndarray) -> np.ndarray:
        parts = np.split(point, ends)
        rows = {n: p.reshape(v.shape) for (n, v), p in zip(w.items(), parts, strict=True)}
        updated = direct_sweep(bound, rows)[1]
        return np.concatenate([updated[name].ravel() for name in w])

    columns = []
    for cell in range(len(flat)):
        step = np.zeros_like(flat)
        step[cell] = 1e-5 * flat[cell]
        columns.append((sweep(flat + step) - sweep(flat - step)) / (2 * step[cell]))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("model", "demos"),
    [
        (rich_model(), random_demos(4, (3, 1, 2), labelled=0.3)),
        (hmm_model(0.6), hmm_demos([0, 1, 1, 2, 0], [0, -1, -1, 1, -1])),
    ],
    ids=["two agents", "one agent"],
)
def test_rate_is_the_largest_eigenvalue_of_the_jacobian(
    model: btil.TeamModel, demos: btil.Demonstrations, dtype: str
) -> None:
    posterior = fit(model, demos, dtype=dtype)
    w = {n: rows.astype(np.float64) for n, rows in concentrations(posterior).items()}
    values = np.linalg.eigvals(jacobian(posterior.bound, w))
    assert np.abs(values.imag).max() < 1e-4  # self-adjoint in the inner product of the information
    largest = values.real.max()
    assert 0.05 < largest < 1
    tolerance = 2e-3 if dtype == "float64" else 1e-2
    assert posterior.contraction_rate == pytest.approx(
        largest, abs=tolerance * (1 - largest) + 1e-3
    )


@pytest.mark.parametrize("labelled", [0, 4])
@pytest.mark.parametrize("family", ["hierarchical", "stick-breaking", "softmax"])
def test_rate_of_tables_with_parameters(
    family: str, labelled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the steps of a long ascent, in which every sweep fits the normals to the end."""
    monkeypatch.setattr("btil.inference.parameters._LARGE_GAIN", 0.0)
    policy: Any = btil.DirichletCPT(1.0)
    transition: Any = btil.DirichletCPT(1.0)
    if family == "softmax":
        policy = btil.SoftmaxCPT()
    elif family == "hierarchical":
        policy = transition = btil.HierarchicalDirichletCPT()
    else:
        transition = btil.StickBreakingCPT(2.0)
    model = btil.TeamModel(policy, transition, btil.DirichletCPT(np.array([1.01, 1.0])))
    posterior = fit(model, made_recording(20, 10, labelled, 0), tolerance=1e-11)
    gains = np.diff(posterior.elbo_trace)
    late = np.flatnonzero((gains[:-1] > 1e-9) & (gains[:-1] < 1e-6))
    # The bound is quadratic at its maximum.
    observed = np.median(np.sqrt(gains[late + 1] / gains[late]))
    assert posterior.contraction_rate == pytest.approx(observed, abs=0.03)
    assert posterior.converged


@pytest.mark.parametrize("family", ["hierarchical", "softmax"])
def test_a_saddle_of_tables_with_parameters_is_left(family: str) -> None:
    table = btil.SoftmaxCPT() if family == "softmax" else btil.HierarchicalDirichletCPT()
    model = btil.TeamModel(table, btil.DirichletCPT(1.0), btil.DirichletCPT(np.array([1.001, 1.0])))
    demos = made_recording(60, 20, 0, 0)
    posterior = btil.fit(model, demos, progress=False)
    best = btil.fit(model, demos, num_restarts=5, seed=1, progress=False)
    assert posterior.converged, posterior.reason
    assert posterior.contraction_rate < 1
    assert best.elbo - posterior.elbo < 1


def test_nothing_to_contract() -> None:
    labelled = fit(hmm_model(), hmm_demos([0, 1, 0], [0, 1, 1]))
    assert labelled.contraction_rate == pytest.approx(0, abs=1e-6)
    assert labelled.converged
    assert len(labelled.elbo_trace) <= 2
    assert (
        fit(hmm_model(), hmm_demos([0, 1, 0], [0, 1, 1]), method="exact").contraction_rate is None
    )


def test_trigamma() -> None:
    x = np.concatenate([10.0 ** np.linspace(-8, 17, 300), np.linspace(0.01, 40, 300)])
    np.testing.assert_allclose(trigamma(x), polygamma(1, x), rtol=3e-15)


def test_spectrum_of_a_known_map() -> None:
    """A linear map with chosen eigenvalues, symmetric in the inner product of the information."""
    generator = np.random.default_rng(0)
    rows = generator.uniform(0.5, 4, (3, 4))
    information = fisher_information([rows])
    matrix = np.stack([information(column) for column in np.eye(12)], axis=1)
    np.testing.assert_allclose(
        matrix[:4, :4],
        np.diag(polygamma(1, rows[0])) - polygamma(1, rows[0].sum()),
        rtol=1e-12,
    )
    root = np.linalg.cholesky(matrix)
    orthogonal, _ = np.linalg.qr(generator.standard_normal((12, 12)))
    for largest in (0.3, 0.97, 1.0005, 1.2):
        values = np.array([largest, *np.linspace(0.25, 0, 11)])
        symmetric = orthogonal * values @ orthogonal.T
        derivative = np.linalg.solve(root.T, symmetric @ root.T)
        point = rows.ravel()

        def sweeps(points: list[np.ndarray]) -> list[np.ndarray]:
            return [point + derivative @ (one - point) for one in points]  # noqa: B023

        found = spectrum(
            sweeps, point, information, generator.standard_normal(12), np.dtype(np.float64)
        )
        assert found.rate == pytest.approx(largest, abs=1e-3)
        assert (found.growth is not None) == (largest > 1.002)
        if found.growth is not None:
            image = derivative @ found.growth
            np.testing.assert_allclose(
                image, largest * found.growth, atol=0.05 * np.abs(image).max()
            )
        # What is still to come of the quadratic with this Hessian.
        residual = derivative @ rows.ravel() * 1e-3
        exact = 0.5 * residual @ matrix @ np.linalg.solve(np.eye(12) - derivative, residual)
        bounded = still_to_come(step_length(residual, information), found.rate)
        assert bounded == np.inf if found.rate >= 1 else exact <= bounded * 1.001


def test_what_is_still_to_come_is_a_bound() -> None:
    """A fit that is cut short says at most how much a longer one gains."""
    model, demos = rich_model(), random_demos(4, (5, 4, 6), labelled=0.4)
    full = fit(model, demos, tolerance=1e-12, max_iterations=5000)
    assert full.converged
    for tolerance in (1e-1, 1e-3):
        short = fit(model, demos, tolerance=tolerance)
        assert short.converged
        if full.elbo - short.elbo > 1:  # another optimum
            continue
        assert full.elbo - short.elbo < 2 * tolerance


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("known initial", 0), ("unequal initial", 0), ("one cell", 0), ("symmetric", 2)],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_plain_fit_near_a_saddle_ends_at_the_optimum(kind: str, labels: int, seed: int) -> None:
    model, demos = almost_symmetric(kind), made_recording(60, 20, labels, seed)
    posterior = btil.fit(model, demos, progress=False)
    best = btil.fit(model, demos, num_restarts=20, seed=1, progress=False)
    assert posterior.converged, posterior.reason
    assert posterior.contraction_rate < 1
    assert best.elbo - posterior.elbo < 1


def test_a_start_on_a_saddle_that_no_symmetry_shows_is_left() -> None:
    """The saddle itself, a little moved: the bound stands still there, sweep after sweep."""
    model, demos = almost_symmetric("symmetric"), made_recording(60, 20, 0, 3)
    site = "policy_agent_0"
    plain = fit(model, demos)
    start = {
        "policy_agent_0": np.tile(
            plain.result.rows[site].concentration.mean(1, keepdims=True), (2, 1)
        ),
        "transition_agent_0": np.full((1, 2, 2), 286.0),
        "initial_agent_0": np.full((1, 2), 31.0),
    }
    start[site][0, 0, 0] *= 1 + 1e-7
    posterior = fit(model, demos, start=start)
    assert posterior.elbo == pytest.approx(plain.elbo, abs=1e-2)
    assert posterior.converged


def test_single_precision_leaves_a_saddle_where_cells_are_not_used() -> None:
    """Of 1.2 it has 1.2 + 5e-8: that is no count, and no direction is measured against it."""
    generator = np.random.default_rng(0)
    changes = generator.random(180) < 0.1
    changes[::15] = generator.random(12) < 0.5
    latents, states = np.cumsum(changes) % 2, generator.integers(4, size=180)
    actions = (states + np.where(generator.random(180) < 0.9, latents, 1 - latents)) % 4
    model = btil.TeamModel(btil.DirichletCPT(1.2, ("state",)), btil.DirichletCPT(1.01))
    demos = btil.Demonstrations(
        states, actions[:, None], episodes=np.arange(180) // 15, num_latents=2, num_actions=4
    )
    site = "policy_agent_0"
    plain = fit(model, demos, dtype="float64")
    shares = plain.result.rows[site].concentration - 1.2
    assert (shares == 0).any()
    start = {
        site: 1.2 + np.tile(shares.mean(1, keepdims=True), (2, 1)),
        "transition_agent_0": np.full((1, 2, 2), 42.0),
    }
    start[site] *= 1 + 1e-4 * generator.standard_normal(start[site].shape)
    posterior = fit(model, demos, start=start, dtype="float32")
    assert posterior.elbo == pytest.approx(plain.elbo, abs=0.01)


@pytest.mark.parametrize(
    ("end", "cap", "converged", "told"),
    [
        (End(0.9, 1e-5), 100, True, "an optimum: at most 1e-05 < 0.0001"),
        (End(0.999, 1e-3), 3, False, "cap of 3 sweeps was reached, and up to 0.001 may still"),
        (End(1.02, np.inf), 3, False, "cap of 3 sweeps was reached, and the bound still grows"),
        (End(1.02, np.inf), 100, False, "led less than 0.0001 higher, or were too many, and the"),
        (End(), 100, True, "changed by"),
    ],
)
def test_verdicts(end: End, cap: int, converged: bool, told: str) -> None:
    verdict = judge(np.array([-10, -9, -8.99999]), 1e-4, cap, np.float64, end)
    assert verdict.converged is converged
    assert told in verdict.reason


def test_the_rate_is_saved(tmp_path: Any) -> None:
    posterior = fit(hmm_model(), hmm_demos([0, 1, 1, 0], [0, -1, -1, 1]))
    posterior.save(tmp_path / "team.nc")
    assert btil.load_posterior(tmp_path / "team.nc").contraction_rate == posterior.contraction_rate


def test_the_end_of_a_run_by_batches_follows_from_its_last_steps() -> None:
    """Their lengths are squares: of a rate of 1/2 each is a quarter of the one before."""
    assert end_of(np.array([80.0, 8.0, 2.0])) == End(0.5, 4.0)
    assert end_of(np.array([8.0, 2.0])) == End(0.5, 4.0)
    assert end_of(np.array([2.0, 8.0])) == End(2.0, np.inf)
    assert end_of(np.array([8.0, 0.0])) == End(0.0, 0.0)
    assert end_of(np.array([8.0, 0.0, 0.0])) == End(0.0, 0.0)
    for unknown in ([2.0], [8.0, np.nan], [np.nan, 2.0]):
        assert end_of(np.array(unknown)) == End()


@pytest.mark.parametrize(
    ("bounds", "end"),
    [
        # Gains of 12, 4 and 4/3 and so on: they fall by the square of the rate, and add up to 2.
        ([-90.0, -20.0, -8.0, -4.0], End(3**-0.5, 2.0)),
        ([-20.0, -8.0], End()),
        ([-20.0, np.nan, -4.0], End()),
        ([-20.0, -16.0, -4.0], End()),
        ([-20.0, -8.0, -9.0], End(0.0, 1.0)),
        ([-9.0, -8.0, -9.0], End()),
    ],
)
def test_with_columns_it_follows_from_the_last_gains(bounds: list[float], end: End) -> None:
    channels: Any = {"ann": None}
    data = Data._make([None] * len(Data._fields))._replace(channels=channels)
    problem = Problem._make([None] * len(Problem._fields))._replace(data=data)
    state = State._make([None] * len(State._fields))._replace(bounds=np.array(bounds))
    found = _end(state, problem)
    assert found.rate == pytest.approx(end.rate, nan_ok=True)
    assert found.to_come == pytest.approx(end.to_come, nan_ok=True)
