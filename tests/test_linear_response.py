"""Corrected standard deviations against derivatives of fits, and against exact answers."""

import numpy as np
import pytest
from scipy.special import polygamma

import btil
from btil.inference import linear_response
from btil.inference.result import DirichletRows
from btil.models.team import bind
from btil.numerics.special import trigamma

DEMOS = btil.Demonstrations(
    {"place": [0, 1, 1, 0, 1, 0, 0, 1, 1]},
    {"ann": [0, 1, 2, 0, 0, 2, 1, 1, 0], "bob": [1, 1, 0, 0, 1, 0, 1, 0, 0]},
    latents={"ann": [0, -1, 1, -1, 1, -1, 0, 0, -1], "bob": [2, -1, 0, 1, -1, -1, 1, 2, 0]},
    episodes=[0, 0, 0, 1, 1, 1, 1, 2, 2],
    num_latents={"ann": 2, "bob": 3},
)
SITE, ROW = "policy_ann", (1, 1)


def fit(added=(0.0, 0.0, 0.0), demos=DEMOS, **options):
    """The mean field, with pseudo-counts added to the prior of one row."""
    u = np.full((2, 2, 3), 0.8)
    u[ROW] += added
    model = btil.TeamModel(
        policy={
            "ann": btil.DirichletCPT(u, parents=("place",)),
            "bob": btil.DirichletCPT(0.8, parents=("place",)),
        },
        transition=btil.DirichletCPT(1.1),
        initial=btil.DirichletCPT(1.0),
    )
    exact = {"tolerance": 1e-12, "max_iterations": 5000, "dtype": "float64"}
    return btil.fit(model, demos, progress=False, **(exact | options))


def mean_of_row(added):
    w = fit(added).result.rows[SITE].concentration[ROW]
    return w / w.sum()


def test_is_what_derivatives_of_fits_say():
    """Pseudo-counts move the log joint density along log rows: their response is Cov(row, log row).

    That is c' + c' M V in the notation of the module, with the same M as in the variance of the
    row, c' M c.
    """
    posterior = fit()
    w = posterior.result.rows[SITE].concentration[ROW]
    mean = w / w.sum()
    c = (np.eye(3) - mean) / w.sum()
    step = 1e-4
    response = np.stack(
        [(mean_of_row(step * e) - mean_of_row(-step * e)) / (2 * step) for e in np.eye(3)]
    )
    information = np.diag(trigamma(w)) - trigamma(w.sum(keepdims=True))
    added = np.diag((response - c).T @ np.linalg.solve(information, c))
    found = posterior.sd(corrected=True)[SITE][ROW] ** 2 - posterior.sd()[SITE][ROW] ** 2
    assert found.min() > 1e-4
    np.testing.assert_allclose(found, added, rtol=1e-5)


@pytest.mark.parametrize("numbers", [[0, 1, 2], [1, -1, 0], [-1, 0, -1], [-1, -1, -1]])
def test_what_a_response_adds_to_a_row_is_a_sum_over_its_cells_in_use(numbers):
    """Cov(row_k, log row_j) M_jl V_lk, all of them written out; other rows have cells between."""
    concentration = np.array([1.5, 0.7, 3.0])
    total = concentration.sum()
    own = [j for j in range(3) if numbers[j] >= 0]
    middle = np.random.default_rng(0).random((4, 4))
    covariance = [
        [(float(j == k) - concentration[k] / total) / total for k in range(3)] for j in own
    ]
    information = [
        [polygamma(1, concentration[j]) * (j == i) - polygamma(1, total) for i in own] for j in own
    ]
    solved = np.linalg.solve(information, covariance) if own else np.zeros((0, 3))
    expected = [
        sum(
            covariance[j][k] * middle[numbers[own[j]], numbers[own[i]]] * solved[i][k]
            for j in range(len(own))
            for i in range(len(own))
        )
        for k in range(3)
    ]
    rows, places = np.stack([concentration, concentration]), np.array([[-1, 3, -1], numbers])
    found = linear_response._added(rows, places.astype(float), middle)
    np.testing.assert_allclose(found[1], expected, rtol=1e-10)


def test_cells_in_use_are_those_with_counts_and_their_responses_find_their_rows(monkeypatch):
    """A derivative that is given, with rows of padding and cells that nothing was counted in."""
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.8, parents=("place",)),
        transition=btil.DirichletCPT(1.1),
        initial=btil.DirichletCPT(1.0),
    )
    bound = bind(model, DEMOS)
    generator = np.random.default_rng(5)
    concentration, number = {}, 0
    for site, table in bound.learned.items():
        u = table.cpt.concentration(table.contexts)
        added = generator.uniform(0.5, 3, u.shape) * (generator.random(u.shape) < 0.7)
        concentration[site] = u + added
        number += int((added > 0).sum())
    derivative = 0.4 * generator.random((number, number)) / number

    def given(point, used, problem, sites):
        assert used.shape == (number,)
        # Its rows are the responses to one cell each.
        return derivative.T

    monkeypatch.setattr(linear_response, "_derivative", given)
    rows = {site: DirichletRows(w) for site, w in concentration.items()}
    found = linear_response.corrected_sds(bound, rows)
    middle = np.linalg.inv(np.eye(number) - derivative) - np.eye(number)
    begin = 0
    for site in sorted(bound.learned):
        w, table = concentration[site], bound.learned[site]
        u = table.cpt.concentration(table.contexts)
        assert found[site].shape == w.shape
        for place in np.ndindex(w.shape[:-1]):
            own = np.flatnonzero(w[place] > u[place])
            total, mean = w[place].sum(), w[place] / w[place].sum()
            variance = mean * (1 - mean) / (total + 1)
            if len(own):
                covariance = (np.eye(len(mean)) - mean)[own] / total
                information = np.diag(polygamma(1, w[place][own])) - polygamma(1, total)
                solved = np.linalg.solve(information, covariance)
                part = middle[begin : begin + len(own), begin : begin + len(own)]
                variance = variance + np.einsum("jk,jl,lk->k", covariance, part, solved)
            begin += len(own)
            np.testing.assert_allclose(found[site][place], np.sqrt(variance), rtol=1e-8)
    assert begin == number
    monkeypatch.setattr(linear_response, "MOST_CELLS", number - 1)
    with pytest.raises(ValueError, match=f"all cells in use, {number} here; at most {number - 1}"):
        linear_response.corrected_sds(bound, rows)


def test_deviations_come_nearer_to_the_exact_ones():
    """On 40 steps, of which 11 are not labelled."""
    generator = np.random.default_rng(1)
    stays = generator.random(40) < 0.8
    latents = np.cumsum(~stays) % 2
    actions = np.where(generator.random(40) < 0.75, latents, generator.integers(0, 3, 40))
    demos = btil.Demonstrations(
        np.zeros(40, int),
        {"ann": actions},
        latents={"ann": np.where(generator.random(40) < 0.75, latents, -1)},
        num_latents=2,
        num_actions=3,
    )
    flat = btil.DirichletCPT(1.0)
    model = btil.TeamModel(policy=flat, transition=flat, initial=flat)
    tight = {"tolerance": 1e-12, "dtype": "float64"}
    posterior = btil.fit(model, demos, progress=False, **tight)
    exact = btil.fit(model, demos, "exact", progress=False).sd()
    plain, corrected = posterior.sd(), posterior.sd(corrected=True)
    for site in ("policy_ann", "transition_ann"):
        off = [np.abs(np.log(one[site] / exact[site])).mean() for one in (plain, corrected)]
        assert off[1] < 0.5 * off[0], (site, off)


def test_nothing_is_added_where_all_is_labelled():
    labels = {agent: np.maximum(DEMOS.latents[:, i], 0) for i, agent in enumerate(DEMOS.agents)}
    posterior = fit(demos=DEMOS.replace(latents=labels))
    for site, corrected in posterior.sd(corrected=True).items():
        np.testing.assert_allclose(corrected, posterior.sd()[site], rtol=1e-9)


def test_cells_without_counts_are_not_solved_for_in_single_precision(monkeypatch):
    """0.8 is rounded there: that is no count."""
    double, single = fit(), fit(dtype="float32", tolerance=None, max_iterations=1000)
    used = sum(
        int(
            (double.result.rows[site].concentration > table.cpt.concentration(table.contexts)).sum()
        )
        for site, table in double.bound.learned.items()
    )
    monkeypatch.setattr("btil.inference.linear_response.MOST_CELLS", used)
    for site, corrected in single.sd(corrected=True).items():
        np.testing.assert_allclose(corrected, double.sd(corrected=True)[site], rtol=0.02)


def test_what_cannot_be_corrected_is_refused():
    slow = fit(demos=DEMOS.without_labels(), max_iterations=1)
    with pytest.raises(ValueError, match=r"contraction rate of at most 0.9.*refined"):
        slow.sd(corrected=True)
    chains = btil.fit(
        slow.model, DEMOS, "gibbs", progress=False, num_chains=2, num_warmup=5, num_samples=5
    )
    with pytest.raises(ValueError, match="this posterior is of gibbs"):
        chains.sd(corrected=True)
    assert chains.sd()[SITE].shape == (2, 2, 3)
