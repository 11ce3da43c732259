"""Small cases 24, 27, 28, 30 and 31: extreme priors, names, JAX's checks, equality, arguments."""

import copy
import dataclasses
import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from teams import hmm_demos
from typer.testing import CliRunner

import btil
from btil.analysis import log_evidence
from btil.arguments import (
    check_count,
    check_index,
    check_number,
    check_seed,
    check_values,
    is_known,
    pairs_of,
)
from btil.cli import app
from btil.inference.result import DirichletRows, DrawnRows, FitResult, MixtureRows, MomentRows
from btil.models.team import bind
from btil.numerics import special

pytestmark = pytest.mark.usefixtures("few_moves")

# 24. Concentrations from 1e-8 to 1e17


def log_of(value: Fraction) -> float:
    """The logarithm, to all digits also near 1."""
    if abs(value - 1) < Fraction(1, 2):
        return math.log1p(float(value - 1))
    return math.log(value.numerator) - math.log(value.denominator)


def fractions_of(values: Any) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(np.asarray(values, np.float64))


class Urns:
    """An HMM of one task state by whole numbers: every path draws its rows from Polya urns.

    Moments of the policy's rows are summed up with the evidence.
    """

    def __init__(self, actions: Any, labels: Any, policy: Any, transition: Any, initial: Any):
        latents = range(len(initial))
        self.evidence = Fraction(0)
        self.first = fractions_of(np.zeros_like(policy))
        self.second = fractions_of(np.zeros_like(policy))
        for path in itertools.product(*[[x] if x >= 0 else latents for x in labels]):
            urns = [fractions_of(table) for table in (policy, transition, initial)]
            weight = Fraction(1)
            for step, (latent, action) in enumerate(zip(path, actions, strict=True)):
                arrival = urns[1][path[step - 1]] if step else urns[2]
                for urn, cell in ((arrival, latent), (urns[0][latent], action)):
                    weight *= urn[cell] / sum(urn)
                    urn[cell] += 1
            self.evidence += weight
            total = urns[0].sum(-1, keepdims=True)
            self.first += weight * urns[0] / total
            self.second += weight * urns[0] * (urns[0] + 1) / (total * (total + 1))

    @property
    def mean(self) -> np.ndarray:
        return self.first / self.evidence

    @property
    def sd(self) -> np.ndarray:
        variance = self.second / self.evidence - self.mean**2
        # Through logs: a float's square may be too small for a float.
        return np.vectorize(lambda x: math.exp(log_of(x) / 2) if x else 0.0)(variance)


def extreme_team(seed: int, labelled: float, least: float = -8.0) -> tuple[Any, ...]:
    """A model with concentrations of all sizes in every row, and a few steps of data."""
    generator = np.random.default_rng(seed)
    latents, values, steps = 2, 3, 5
    policy, transition, initial = (
        10.0 ** generator.uniform(least, 17, shape)
        for shape in ((latents, values), (latents, latents), (latents,))
    )
    actions = generator.integers(0, values, steps)
    labels = np.where(generator.random(steps) < labelled, generator.integers(0, 2, steps), -1)
    model = btil.TeamModel(*map(btil.DirichletCPT, (policy, transition, initial)))
    demos = hmm_demos(actions.tolist(), labels.tolist(), num_actions=values)
    return model, demos, Urns(actions, labels, policy, transition, initial)


def exact(model: btil.TeamModel, demos: btil.Demonstrations) -> btil.TeamPosterior:
    return btil.fit(model, demos, "exact", progress=False)


@pytest.mark.parametrize("seed", range(40))
def test_exact_is_right_whatever_the_concentrations(seed: int) -> None:
    model, demos, truth = extreme_team(seed, labelled=(0.0, 0.3, 1.0)[seed % 3])
    posterior = exact(model, demos)
    assert posterior.elbo == pytest.approx(log_of(truth.evidence), rel=1e-12, abs=1e-14)
    rows = posterior.result.rows["policy_agent_0"]
    np.testing.assert_allclose(rows.mean()[0], truth.mean.astype(float), rtol=1e-11)
    # Of weights that add up to 1 to sixteen digits, what is between components has eight.
    np.testing.assert_allclose(rows.sd()[0], truth.sd, rtol=1e-7, atol=1e-17)


# Few sizes: compiling is most of the time.
HMM = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
QUICK: dict[str, dict[str, Any]] = {
    "chib": {"num_warmup": 50, "num_samples": 200},
    "smc": {"num_temperatures": 30, "num_particles": 32},
}
# Where all is labelled no draw says anything else.
FEW: dict[str, dict[str, Any]] = {
    "chib": {"num_warmup": 2, "num_samples": 25},
    "smc": {"num_temperatures": 4, "num_particles": 8},
}


def softly_known(concentration: float) -> btil.TeamModel:
    return btil.TeamModel(
        policy=btil.KnownCPT([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]),
        transition=btil.DirichletCPT(concentration * np.array([[0.9, 0.1], [0.3, 0.7]])),
    )


@pytest.mark.parametrize("method", ["exact", "chib", "smc"])
def test_the_evidence_tends_to_that_of_the_known_table(method: str) -> None:
    demos = hmm_demos([0, 0, 2, 2, 1, 0, 2, 2])
    known = exact(
        btil.TeamModel(softly_known(1).policy, btil.KnownCPT([[0.9, 0.1], [0.3, 0.7]])), demos
    ).elbo
    assert known is not None
    for power in (10, 15, 17):
        model = softly_known(10.0**power)
        if method == "exact":
            found, error = exact(model, demos).elbo, 0.0
        else:
            one = log_evidence(model, demos, method, progress=False, **QUICK[method])
            found, error = one.value, one.se
            assert one.reliable
            assert error < 0.1 * 10 ** (-power / 2)
        # A prior of so many counts leaves about one part in as many.
        assert found == pytest.approx(known, abs=100 * 10.0**-power + 1e-13 + 4 * error)


@pytest.mark.parametrize("seed", range(6))
def test_chib_is_exact_where_every_step_is_labelled(seed: int) -> None:
    model, demos, truth = extreme_team(100 + seed, labelled=1.0)
    found = log_evidence(model, demos, "chib", progress=False, **FEW["chib"])
    assert found.value == pytest.approx(log_of(truth.evidence), rel=1e-12, abs=1e-12)
    assert found.se == 0


@pytest.mark.parametrize("method", ["chib", "smc"])
@pytest.mark.parametrize("seed", [3, 7, 8])
def test_estimates_with_mixed_concentrations(method: str, seed: int) -> None:
    model, demos, truth = extreme_team(300 + seed, labelled=0.3, least=-1.0)
    found = log_evidence(model, demos, method, progress=False, **QUICK[method])
    expected = log_of(truth.evidence)
    assert found.reliable
    assert abs(found.value - expected) < 5 * found.se + 1e-9 * abs(expected)


@pytest.mark.parametrize("method", ["chib", "smc"])
def test_estimates_say_so_where_cells_are_too_small_to_be_found(method: str) -> None:
    model = btil.TeamModel(btil.DirichletCPT(1e-8), btil.DirichletCPT(1.0))
    with pytest.raises(ValueError, match=r"policy_agent_0: unlabelled steps .* of 1e-08; below"):
        log_evidence(model, hmm_demos([0, 0, 1, 1], [0, -1, -1, 1]), method)
    # Cells that no unlabelled step reads do not matter.
    model, labelled, truth = extreme_team(100, labelled=1.0)
    found = log_evidence(model, labelled, method, progress=False, **FEW[method])
    assert abs(found.value - log_of(truth.evidence)) < 1e-9 + 5 * found.se


def test_particles_that_stay_where_they_are_are_told() -> None:
    """Half of this posterior, in which latents last, is never reached from the mean field."""
    demos = hmm_demos([0, 1, 1, 0, 0], [0, -1, -1, -1, 1], num_actions=3)
    model = btil.TeamModel(*map(btil.DirichletCPT, (1.0, 0.02, 1.0)))
    found = log_evidence(model, demos, "smc", progress=False, **QUICK["smc"])
    assert not found.reliable
    assert "transition_agent_0: unlabelled steps read cells" in " ".join(found.notes)
    chib = log_evidence(model, demos, "chib", progress=False, **QUICK["chib"])
    assert abs(chib.value - exact(model, demos).elbo) < 5 * chib.se


def test_draws_that_are_all_alike_leave_an_error() -> None:
    # All paths but one have a part of one in a million.
    policy = [[1e3, 1e-2, 1.0], [1e-2, 1e3, 1.0]]
    model = btil.TeamModel(*map(btil.DirichletCPT, (policy, 1.0, 1.0)))
    demos = hmm_demos([0, 0, 1, 1, 0], [-1] * 5, num_actions=3)
    found = log_evidence(model, demos, "chib", progress=False, **QUICK["chib"])
    assert found.se == pytest.approx(1 / 800)
    assert "counts are the same in all 800 draws" in " ".join(found.notes)
    assert abs(found.value - exact(model, demos).elbo) < found.se


def test_small_cells_are_drawn_as_small_as_they_are() -> None:
    """A floor under the drawn logs would move the mean of the log, psi(u) - psi(U)."""
    import jax

    from btil.inference.gibbs import draw_log_tables

    with jax.enable_x64(True):
        concentration = jax.numpy.full((4000, 2), 1e-3)
        drawn = draw_log_tables(jax.random.key(0), {"rows": concentration})["rows"]
    logs = np.asarray(drawn).min(-1)
    # The smaller of two cells is U^(1/u) of its own; its log has mean about -1/u + ...
    assert np.isfinite(logs).all()
    assert abs(np.asarray(drawn)[:, 0].mean() / -500 - 1) < 5 * 2 / np.sqrt(4000)


@pytest.mark.parametrize("seed", range(3))
def test_spread_of_rows_that_are_nearly_certain(seed: int) -> None:
    generator = np.random.default_rng(seed)
    w = 10.0 ** generator.uniform(-8, 17, (2, 4))
    exactly = fractions_of(w)
    total = exactly.sum(-1, keepdims=True)
    variance = exactly * (total - exactly) / (total**2 * (total + 1))
    expected = np.exp(np.vectorize(log_of)(variance) / 2)
    np.testing.assert_allclose(DirichletRows(w).sd(), expected, rtol=1e-12)
    same = MixtureRows(np.array([0.25, 0.75]), np.stack([w, w]), "all")
    np.testing.assert_allclose(same.sd(), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_ratios_of_beta_functions(seed: int) -> None:
    import jax
    import jax.numpy as jnp

    generator = np.random.default_rng(seed)
    u = 10.0 ** generator.uniform(-8, 17, (3, 3))
    n = generator.integers(0, 40, (3, 3))
    expected = []
    for row, counts in zip(fractions_of(u), n.tolist(), strict=True):
        ratio = Fraction(1)
        for cell, count in zip(row, counts, strict=True):
            ratio *= math.prod((cell + k for k in range(count)), start=Fraction(1))
        ratio /= math.prod((sum(row) + k for k in range(sum(counts))), start=Fraction(1))
        expected.append(log_of(ratio))
    np.testing.assert_allclose(special.log_beta_ratio(u, n * 1.0), expected, rtol=1e-12)
    with jax.enable_x64(True):
        found = special.log_beta_ratio(jnp.asarray(u), jnp.asarray(n * 1.0))
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)


def test_stirling_remainder() -> None:
    x = np.concatenate([10.0 ** np.linspace(-8, 17, 100), [9.999999, 10.0]])
    assert np.all(np.diff(special.stirling_remainder(np.sort(x))) <= 0)
    large = x[x > 1e3]
    np.testing.assert_allclose(special.stirling_remainder(large), 1 / (12 * large), rtol=1e-6)
    seam = special.stirling_remainder(np.array([9.999999999, 10.0]))
    assert seam[0] == pytest.approx(seam[1], rel=1e-9)


def test_log_density_of_rows_close_to_a_certain_mean() -> None:
    """Against the chi-squared law of twice its fall below the peak, where log Gamma is noise."""
    from scipy import stats

    u = np.array([4e16, 5e16, 1e16])
    draws = DirichletRows(u).sample(2000, np.random.default_rng(0))
    peak = special.log_dirichlet(u, u / u.sum())
    falls = 2 * (peak - special.log_dirichlet(u, draws))
    assert stats.kstest(falls, stats.chi2(2).cdf).pvalue > 1e-3
    small = np.array([0.3, 2.0, 5.0])
    row = np.array([0.2, 0.5, 0.3])
    assert special.log_dirichlet(small, row) == pytest.approx(
        stats.dirichlet(small).logpdf(row), rel=1e-13
    )


@pytest.mark.parametrize(("method", "limit"), [("svi", 1e8), ("nuts", 1e13)])
def test_methods_that_lose_their_digits_refuse(method: str, limit: float) -> None:
    demos = hmm_demos([0, 0, 1, 1])
    for dtype, largest in (("float32", 1e5), ("float64", limit)):
        model = btil.TeamModel(btil.DirichletCPT(largest), btil.DirichletCPT(1.0))
        with pytest.raises(
            ValueError, match=rf"policy_agent_0: .* add up to .*{method} in {dtype}"
        ):
            btil.fit(model, demos, method, dtype=dtype, progress=False)


@pytest.mark.parametrize("value", [1e-31, 1e31, np.inf, np.nan, 0.0, -1.0])
def test_concentrations_that_no_method_can_compute_with_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="concentration must be positive and finite"):
        btil.DirichletCPT(value)
    if value > 1:
        model = btil.TeamModel(btil.DirichletCPT(1.0), btil.StickyDirichletCPT(1.0, stay=1e30 * 2))
        with pytest.raises(ValueError, match="transition_agent_0: concentration of Sticky"):
            btil.fit(model, hmm_demos([0, 0, 1]), progress=False)


# 30. Reprs make the object again, equal ones are equal

VALUES = np.log(
    [[[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]], where=[True, True, False], out=np.full((1, 2, 3), -np.inf)
)
FAMILIES: dict[str, Any] = {
    "dirichlet": lambda: btil.DirichletCPT(1.2),
    "dirichlet table": lambda: btil.DirichletCPT([[1.0, 2.5], [3.0, 4.0]], parents=("state",)),
    "dirichlet by agent": lambda: btil.DirichletCPT(2, {"ann": ("x",), "bob": ()}),
    "sticky": lambda: btil.StickyDirichletCPT(1.2, 3.0, ("x",)),
    "known": lambda: btil.KnownCPT([[0.5, 0.5], [1.0, 0.0]]),
    "known function": lambda: btil.KnownCPT(np.ones_like, ("state",)),
    "hierarchical": lambda: btil.HierarchicalDirichletCPT(None, 1.5, 1.0, {"ann": ("x",)}, True),
    "stick-breaking": lambda: btil.StickBreakingCPT(2.0, None, 1.0, ("x",)),
    "softmax": lambda: btil.SoftmaxCPT(("x", "y"), None, 0.5, 0.7),
    "softmax function": lambda: btil.SoftmaxCPT(("x", "y"), np.ones_like),
    "goals": lambda: btil.GoalConditionedCPT(VALUES, ("state",), 0.5),
    "static": btil.StaticCPT,
    "uniform": btil.UniformCPT,
    "shared": lambda: btil.Shared(btil.DirichletCPT(0.5, ("x",))),
    "team": lambda: btil.TeamModel(
        {"ann": btil.DirichletCPT(1.0), "bob": btil.KnownCPT([[0.5, 0.5]])}, btil.StaticCPT()
    ),
    "team with one table": lambda: btil.TeamModel(
        {name: btil.Shared(btil.DirichletCPT(1.0)) for name in ("ann", "bob")}
    ),
}
NAMES = {name: getattr(btil, name) for name in dir(btil)}


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_families_are_equal_and_their_repr_makes_them(name: str) -> None:
    one, other = FAMILIES[name](), FAMILIES[name]()
    assert one == other
    assert hash(one) == hash(other)
    if "function" not in name:
        assert eval(repr(one), dict(NAMES)) == one
    assert copy.deepcopy(one) == one


def test_different_families_differ() -> None:
    made = [make() for make in FAMILIES.values()]
    made += [btil.DirichletCPT(1.3), btil.DirichletCPT([1.2]), btil.DirichletCPT(1.2, ("state",))]
    made += [btil.KnownCPT(np.zeros_like, ("state",)), btil.StickyDirichletCPT(1.2, 3.1, ("x",))]
    made += [btil.Shared(btil.DirichletCPT(0.6, ("x",))), btil.NumpyroModel(print)]
    made += [btil.NumpyroModel(repr), btil.TeamModel(), None, "DirichletCPT"]
    assert [(i, j) for i, a in enumerate(made) for j, b in enumerate(made) if a == b] == [
        (i, i) for i in range(len(made))
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_families_can_be_replaced_or_are_no_dataclass(name: str) -> None:
    one = FAMILIES[name]()
    if dataclasses.is_dataclass(one):
        assert dataclasses.replace(one) == one
    with pytest.raises(AttributeError):
        one.parents = ("y",)


def test_a_large_table_is_not_written_out() -> None:
    assert "<500x2x3 numbers>" in repr(btil.KnownCPT(np.ones((500, 2, 3)) / 3, ("state",)))


def test_families_of_ones_own_compare_as_they_like() -> None:
    class Own(btil.CPT):
        def __init__(self, number: float) -> None:
            self.number = number

    class Doubled(btil.DirichletCPT):
        def __init__(self, half: float) -> None:
            super().__init__(2 * half)

    assert Own(1.0) != Own(1.0)
    assert Doubled(1.0) == Doubled(1.0)
    assert Doubled(1.0) != Doubled(2.0)
    assert "Doubled(" in repr(Doubled(1.0))


def test_an_equal_model_made_anew_compiles_nothing() -> None:
    import jax

    demos = hmm_demos([0, 0, 1, 1, 0])

    def fit() -> btil.TeamPosterior:
        model = btil.TeamModel(btil.SoftmaxCPT(), btil.DirichletCPT(1.0))
        return btil.fit(model, demos, "gibbs", progress=False, num_warmup=5, num_samples=5)

    first = fit()
    compiled: list[str] = []

    def note(event: str, *_: Any, **__: Any) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        second = fit()
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert [event for event in compiled if "compile" in event] == []
    np.testing.assert_array_equal(
        first.result.rows["policy_agent_0"].draws, second.result.rows["policy_agent_0"].draws
    )


# 31. Small arguments: one sentence, from one place


@pytest.mark.parametrize(
    ("bounds", "allowed", "refused", "told"),
    [
        ({"above": 0.0}, (1e-300, 1e300), (0, -1), "a positive number"),
        ({"least": 0.0, "most": 1.0}, (0, 1, np.float32(0.5)), (-1e-9, 1.001), "from 0 to 1"),
        ({"above": 0.5, "most": 1.0}, (0.51, 1.0), (0.5, 1.01), "above 0.5 and at most 1"),
        ({"above": 0.0, "below": 1.0}, (0.5,), (0, 1), "strictly between 0 and 1"),
        ({"least": 2.0}, (2, 3.5), (1.99,), "finite number of at least 2"),
        ({}, (-1e9, 0), (), "a finite number"),
    ],
)
def test_bounds_of_numbers_are_theirs_or_not(
    bounds: dict[str, float], allowed: Any, refused: Any, told: str
) -> None:
    for value in allowed:
        assert check_number("share", value, **bounds) == value
    for value in (*refused, math.nan, math.inf, True, np.bool_(True)):
        with pytest.raises(ValueError, match=f"share must be a.* {told.removeprefix('a ')}, got "):
            check_number("share", value, **bounds)


def test_every_number_that_people_give_is_checked() -> None:
    """In a process of its own: here the annotations are checked at every call, and speak first."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "error", here / "wrong_arguments.py"],
        cwd=here.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["fit", "--seed", "-1", "--out", "p.nc"],
            "seed must be an integer in 0..4294967295, got -1",
        ),
        (["fit", "--tolerance", "nan", "--out", "p.nc"], "tolerance must be a positive number"),
        (["fit", "--batch-size", "0", "--out", "p.nc"], "batch_size must be a whole number of at"),
        (
            ["fit", "--devices", "0", "--out", "p.nc"],
            "devices must be a whole number of at least 1",
        ),
        (["fit", "--method", "gibbs", "--num-chains", "0", "--out", "p.nc"], "num_chains must be"),
        (["fit", "--method", "gibbs", "--keep-rows", "-1", "--out", "p.nc"], "keep_rows must be"),
        (["compare", "--methods", "mfvi,gibbs", "--num-samples", "0", "--out", "c"], "num_samples"),
        (["calibrate", "--num-simulations", "0", "--out", "c"], "num_simulations must be a whole"),
        (["report", "--posterior", "p.nc", "--max-episodes", "-1", "--out", "r"], "max_episodes"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_the_shell_says_the_same(
    command: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    btil.write_demonstrations(hmm_demos([0, 0, 1, 1], [0, -1, -1, 1]), "team.csv")
    result = CliRunner().invoke(app, [command[0], "team.csv", *command[1:]])
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


# 27. No agent's tables are lost to another's name


def posterior_of(*agents: str, kind: str = "mfvi") -> btil.TeamPosterior:
    """Made by hand; each agent has latents and actions of its own number."""
    demos = btil.Demonstrations(
        np.zeros(4, int),
        np.zeros((4, len(agents)), int),
        agents=agents,
        num_latents=[2 + k for k in range(len(agents))],
        num_actions=[3 + k for k in range(len(agents))],
    )
    bound = bind(btil.TeamModel(*(btil.DirichletCPT(1.0) for _ in range(3))), demos)
    generator = np.random.default_rng(0)
    rows: dict[str, Any] = {}
    for site, table in bound.learned.items():
        if kind == "mfvi":
            rows[site] = DirichletRows(generator.uniform(1, 2, table.shape))
        else:
            drawn = generator.dirichlet(np.ones(table.shape[-1]), (2, 8, *table.shape[:-1]))
            rows[site] = DrawnRows(drawn)
            if kind == "moments":
                rows[site] = MomentRows(
                    np.array([4, 4]),
                    np.stack([drawn[:, :4].mean(1), drawn[:, 4:].mean(1)], 1),
                    np.ones((2, 2, *table.shape)),
                    np.zeros(0, int),
                    drawn[:, :, :0],
                )
    result = FitResult(rows, True, "made by hand")
    return btil.TeamPosterior(bound, kind, result, 0, np.dtype(np.float64), 1.0)


@pytest.mark.parametrize(
    "agents",
    [("p/q", "p_q"), ("p_q", "p/q"), ("a/b_c", "a_b/c", "a_b_c"), ("p/q", "p_q_2", "p_q")],
)
def test_agents_with_names_that_look_alike_keep_their_tables(agents: tuple[str, ...]) -> None:
    posterior = posterior_of(*agents)
    tree = posterior.to_datatree(num_draws=3)["posterior"].to_dataset()
    assert sorted(v.attrs["site"] for v in tree.data_vars.values()) == sorted(posterior.result.rows)
    for name, variable in tree.data_vars.items():
        site = variable.attrs["site"]
        assert variable.shape[2:] == posterior.bound.tables[site].shape
        assert name == site or "/" in site  # a name that need not change does not


@pytest.mark.parametrize("kind", ["mfvi", "chains", "moments"])
def test_an_agent_may_be_called_like_an_axis(kind: str) -> None:
    """An axis of x's policy is "policy_context_x"; so is the policy of an agent "context_x"."""
    posterior = posterior_of("x", "context_x", "x_mean", kind=kind)
    tree = posterior.to_datatree(num_draws=3)
    for name, table in posterior.bound.learned.items():
        group = tree["posterior"].to_dataset()
        assert group[name].attrs["site"] == name
        if kind == "moments":
            moments = tree["moments"].to_dataset().data_vars.values()
            own = [one.shape for one in moments if one.attrs["site"] == name]
            assert own == [(2, *table.shape), (2, *table.shape), table.shape]
        else:
            assert group[name].shape[2:] == table.shape
            np.testing.assert_allclose(group[name].sum(group[name].dims[-1]), 1.0)


def test_panels_that_are_titled_alike_are_all_drawn() -> None:
    posterior = posterior_of("p/q", "p∕q")
    rows = [(f"policy_{agent}", 0, 0) for agent in posterior.demos.agents]
    for site, _, _ in rows:
        posterior.result.rows[site].concentration[..., 0] = 20.0
    figure = btil.analysis.plot_prior_posterior(posterior, rows=rows, num_draws=50)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["P(0), policy of p∕q given 0", "P(0), policy of p∕q given 0 (2)"]


# 28. JAX's own checks: ranks and types are in conftest.py, for all tests; here NaN

CHECKED: dict[str, tuple[str, dict[str, Any]]] = {
    "mfvi": ("mfvi", {"max_iterations": 5}),
    "batches": ("mfvi", {"max_iterations": 3, "batch_size": 1}),
    "svi": ("svi", {"max_iterations": 5}),
    "AutoNormal": ("svi", {"max_iterations": 5, "guide": "AutoNormal", "num_samples": 3}),
    "nuts": ("nuts", {"num_chains": 1, "num_warmup": 3, "num_samples": 3, "max_tree_depth": 2}),
    "gibbs": ("gibbs", {"num_chains": 1, "num_warmup": 3, "num_samples": 3}),
    "exact": ("exact", {}),
}


@pytest.mark.parametrize("name", CHECKED)
def test_no_program_gives_a_nan(name: str) -> None:
    import jax

    method, options = CHECKED[name]
    demos = hmm_demos([0, 0, 1, 1, 0], [0, -1, -1, 1, -1], episodes=[0, 0, 0, 0, 1])
    with jax.debug_nans(True):
        posterior = btil.fit(HMM, demos, method, progress=False, **options)
        posterior.log_likelihood(demos)
        posterior.decode(demos)
        for belief in (posterior.smooth, posterior.filter, posterior.predict_actions):
            assert np.isfinite(belief(demos, num_draws=2)["agent_0"]).all()
        tracker = posterior.tracker()
        tracker.predict({"state": 0})
        tracker.update({"state": 0}, [1])


def test_checks_of_ranks_and_types_are_on() -> None:
    import jax
    import jax.numpy as jnp

    from btil.numerics.promotion import promotion_allowed

    def meet() -> Any:
        return jax.jit(lambda x, y: x + y)(jnp.ones((2, 2)), jnp.ones(2, int))

    with pytest.raises((ValueError, TypeError)):
        meet()
    with promotion_allowed():
        assert meet().shape == (2, 2)
    with pytest.raises((ValueError, TypeError)):
        meet()


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ({}, "finite number"),
        ({"above": 0.0}, "positive number"),
        ({"above": 0.5}, "finite number above 0.5"),
        ({"least": 0.0}, "finite number of at least 0"),
        ({"most": 2.5}, "finite number at most 2.5"),
        ({"below": 3.0}, "finite number below 3"),
        ({"least": 0.0, "most": 1.0}, "number from 0 to 1"),
        ({"above": 0.0, "below": 1.0}, "number strictly between 0 and 1"),
        ({"above": 0.0, "most": 1.0}, "finite number above 0 and at most 1"),
        ({"above": 0.5, "most": 1.0}, "finite number above 0.5 and at most 1"),
        ({"least": 0.0, "below": 1.0}, "finite number of at least 0 and below 1"),
    ],
)
def test_bounds_are_told_in_words(bounds: dict[str, float], told: str) -> None:
    for wrong in ("1", True, float("nan"), float("inf"), 10**400, None):
        with pytest.raises(ValueError, match=f"^share must be a {told}, got "):
            check_number("share", wrong, **bounds)


def test_whole_numbers_are_no_truth_values_and_no_floats() -> None:
    assert check_count("num", np.int8(2), 2) == 2
    assert check_index("episode", 0, 3) == 0
    assert check_index("episode", np.int64(2), 3) == 2
    assert check_seed(2**40) == 2**40
    assert check_seed(7, 7) == 7
    for wrong in (1, True, 2.0, "2", None):
        with pytest.raises(ValueError, match=r"^num must be a whole number of at least 2, got "):
            check_count("num", wrong, 2)
    for wrong in (3, -1, True, 1.0, "1"):
        with pytest.raises(ValueError, match=r"^episode: .*; allowed are whole numbers in 0\.\.2$"):
            check_index("episode", wrong, 3)
    for wrong, largest, told in (
        (-1, None, "a non-negative integer"), (True, None, "a non-negative integer"),
        (1.0, None, "a non-negative integer"), (8, 7, r"an integer in 0\.\.7"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^seed must be {told}, got "):
            check_seed(wrong, largest)


def test_arguments_are_looked_at_by_their_names() -> None:
    check_values({"num_chains": 1, "tolerance": 0.1, "seed": 0, "progress": np.True_, "other": []})
    check_values({"num_sweeps": None}, optional=["num_sweeps"])
    for wrong, told in (
        ({"num_sweeps": None}, "num_sweeps must be a whole number of at least 2"),
        ({"seed": -1}, "seed must be"),
        ({"tolerance": 0.0}, "tolerance must be a positive number"),
        ({"chain_method": "parallel"}, "chain_method must be one of vectorized, sequential, got"),
        ({"chain_method": ["vectorized"]}, "chain_method must be one of"),
        ({"progress": 1}, "progress must be True or False, got 1"),
        ({"resume": "no"}, "resume must be True or False"),
    ):
        with pytest.raises(ValueError, match=told):
            check_values(wrong)
    for name in ("seed", "num_chains", "tolerance", "reward", "resume"):
        assert is_known(name)
    assert not is_known("other")


def test_pairs_are_two_finite_numbers_each() -> None:
    np.testing.assert_array_equal(pairs_of([[1, 2], (3, 4.5)]), [[1, 2], [3, 4.5]])
    for wrong in ([1, 2], [[1, 2, 3]], [[1, np.nan]], [["a", "b"]], [[1, 2], [3]], None, []):
        assert pairs_of(wrong) is None
