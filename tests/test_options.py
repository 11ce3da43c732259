"""What a fit is asked for reaches those who do it; what they find is what it tells."""

from typing import Any

import jax
import numpy as np
import pytest
from teams import hmm_demos, hmm_model, random_demos, rich_model

from btil.inference import mfvi, nuts, refinement, stochastic, svi
from btil.inference.checkpoint import NOWHERE
from btil.inference.result import DrawnRows, FitResult
from btil.models.team import bind

FLOAT32 = np.dtype(np.float32)
DEMOS = hmm_demos([0, 0, 1, 1, 0], [0, -1, -1, 1, -1], num_actions=2)
FOUND = FitResult(rows={}, converged=True, reason="made up")


class Stop(Exception):
    """Far enough: the work itself is tried elsewhere."""


class Asked:
    """Stands for a function: notes what it is asked for, and gives something or stops."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append((arguments, options))
        if self.answer is None:
            raise Stop
        return self.answer

    @property
    def options(self) -> dict[str, Any]:
        """Those of the only call."""
        ((_, options),) = self.calls
        return options


def test_batches_are_learned_from_as_the_mean_field_is_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = bind(rich_model(), random_demos(lengths=(3, 1, 4), num_states=(3, 2)))
    asked = Asked(FOUND)
    monkeypatch.setattr(stochastic, "fit", asked)
    options: dict[str, Any] = {
        "seed": 7,
        "progress": False,
        "dtype": FLOAT32,
        "checkpoint": NOWHERE,
        "num_restarts": 3,
        "tolerance": 0.25,
        "max_iterations": 17,
        "start": {},
        "batch_size": 2,
        "delay": 4.0,
        "forgetting_rate": 0.75,
    }
    assert mfvi.fit(bound, **options) is FOUND
    assert {name: asked.options[name] for name in options} == options
    assert asked.options["outline"] is mfvi.channel_outline
    asked.calls.clear()
    with pytest.raises(ValueError, match="start"):  # three episodes at once are no batches
        mfvi.fit(bound, **(options | {"batch_size": 3}))
    assert not asked.calls


def test_every_run_by_batches_has_its_seed_and_the_highest_finite_bound_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = bind(rich_model(), random_demos(lengths=(3, 1, 4, 2), num_states=(3, 2)))
    ran: list[tuple[Any, ...]] = []
    levels = [-30.0, -20.0, np.nan, -25.0]

    def run(state: Any, problem: Any, tolerance: float, most: int) -> Any:
        ran.append((problem.seed, tolerance, most, problem.delay, problem.forgetting_rate))
        number = len(ran)
        counts = {name: np.full(u.shape, float(number)) for name, u in problem.prior.items()}
        level = levels[number - 1]
        yield state._replace(trace=np.array([level - 1])), False
        yield (
            state._replace(
                scale=0.5,
                counts=counts,
                trace=np.array([level - 1]),
                bounds=np.array([level, level]),
                lengths=np.array([1e-9, 1e-12]),
                iteration=4,
            ),
            True,
        )

    monkeypatch.setattr(stochastic, "_run", run)
    found = stochastic.fit(
        stochastic.in_memory(bound), seed=5, progress=False, dtype=FLOAT32, batch_size=2,
        num_restarts=4, tolerance=0.125, max_iterations=9, delay=3.0, forgetting_rate=0.7,
    )  # fmt: skip
    assert [one[0] for one in ran] == [(5, 0), (5, 1), (5, 2), (5, 3)]
    assert {one[1:] for one in ran} == {(0.125, 9, 3.0, 0.7)}
    assert found.elbo == -20.0
    assert found.converged
    np.testing.assert_array_equal(found.elbo_trace, [-21, -20, -20])
    assert len(found.restart_traces) == 4
    assert found.notes == {"iterations": 4, "epochs": 1, "sweeps": 2}
    for name, table in bound.learned.items():
        u = table.cpt.concentration(table.contexts)
        np.testing.assert_allclose(found.rows[name].concentration, u + 1.0, rtol=1e-6)
    assert found.contraction_rate == pytest.approx(np.sqrt(1e-3))


def test_restarts_of_the_mean_field_begin_elsewhere_with_seeds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = hmm_model(0.05)
    bound, runs = bind(model, DEMOS), []
    made = Asked()

    class Ascents:
        def __init__(self, **options: Any) -> None:
            made.calls.append(((), options))

        def run(self, first: Any, deal: Any, symmetric: bool, doubt: float, generator: Any) -> None:
            policy = np.asarray(first.concentration["policy_agent_0"])[:1]
            runs.append((policy, doubt, symmetric, generator.random()))

    monkeypatch.setattr(mfvi, "Ascents", Ascents)
    monkeypatch.setattr(mfvi.Run, "result", lambda self, ascents, most: FOUND)

    def fit(**options: Any) -> FitResult:
        runs.clear()
        return mfvi.fit(bound, progress=False, dtype=FLOAT32, **options)

    found = fit(seed=3, num_restarts=2, max_iterations=31)
    assert made.options["max_iterations"] == 31
    # Labels say where the first begins: doubt is of that alone.
    assert [one[1] for one in runs] == [0.97, np.inf]
    assert not np.array_equal(runs[0][0], runs[1][0])
    draws = {one[3] for one in runs}
    fit(seed=4, num_restarts=2)
    assert draws.isdisjoint(one[3] for one in runs)
    assert len(draws) == 2
    # Small concentrations may hide a higher optimum; who has looked is not told so.
    assert "num_restarts=4 looks for it" in found.reason
    assert fit(seed=3, num_restarts=4).reason == FOUND.reason
    assert len(runs) == 4


def test_a_refined_fit_hands_on_to_both_of_its_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(hmm_model(0.05), DEMOS)
    better = FOUND._replace(reason="refined")
    coarse, refined = Asked(FOUND), Asked(better)
    monkeypatch.setattr(mfvi, "fit", coarse)
    monkeypatch.setattr(refinement, "refine", refined)
    common: dict[str, Any] = {"seed": 9, "progress": False, "dtype": FLOAT32}
    of_first: dict[str, Any] = {"num_restarts": 3, "tolerance": 0.5, "max_iterations": 8}
    of_second: dict[str, Any] = {"num_draws": 12, "num_sweeps": 6}
    assert refinement.fit(bound, **common, **of_first, **of_second) is better
    assert coarse.options == common | of_first | {"checkpoint": NOWHERE}
    ((arguments, options),) = refined.calls
    assert arguments == (bound, FOUND)
    assert options == common | of_second
    coarse.calls.clear()
    refinement.fit(bound, **common)
    assert coarse.options["num_restarts"] == 4  # draws stay in the mode that is found


def test_options_of_svi_reach_its_programs_and_its_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(hmm_model(), DEMOS)
    made, climbed = [], Asked()
    real = svi._table_problem

    def problem(*arguments: Any) -> svi.Problem:
        made.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(svi, "_table_problem", problem)
    monkeypatch.setattr(svi, "ascend", climbed)
    with pytest.raises(Stop):
        svi.fit(
            bound, seed=6, progress=False, dtype=FLOAT32, max_iterations=77, tolerance=0.5,
            learning_rate=0.125, num_particles=3, num_samples=11,
        )  # fmt: skip
    ((_, settings, seed, dtype, num_samples, mesh),) = made
    assert settings == svi.Settings("dirichlet", 0.125, 3)
    assert (seed, dtype, num_samples, mesh) == (6, FLOAT32, 11, None)
    ((arguments, _),) = climbed.calls
    assert arguments[2:] == (0.5, 77, NOWHERE, False)


@pytest.mark.parametrize("guide", ["dirichlet", "AutoDelta", "AutoLaplaceApproximation"])
def test_svi_tells_the_bound_of_its_particles_and_of_a_point_its_density(
    guide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind(hmm_model(), DEMOS)
    estimates, asked = np.array([-3.0, -5.0, -4.0, -8.0]), []
    trace = np.linspace(-9, -6, 5)

    def collect(state: Any, key: Any, inputs: Any, number: int) -> int:
        asked.append(number)
        return number

    programs = svi.Programs(Asked(), Asked(), Asked(estimates), collect)
    kept = svi.Kept({"policy": DrawnRows(np.ones((1, 1, 1, 1, 1)))}, {}, np.zeros((1, 1, 2)))
    made = svi.Problem(guide, programs, None, lambda collected: kept)
    monkeypatch.setattr(svi, "_table_problem", lambda *_: made)
    verdict = svi.Verdict(True, True, "it settled")
    monkeypatch.setattr(svi, "ascend", lambda *_: ("state", trace, verdict))
    found = svi.fit(bound, seed=0, progress=False, dtype=FLOAT32, guide=guide, num_samples=13)
    assert (found.converged, found.reason) == (True, "it settled")
    assert asked == [1 if guide == "AutoDelta" else 13]
    assert found.rows is kept.rows
    assert found.notes["iterations"] == 5
    if guide == "AutoDelta":
        assert found.notes["log_joint"] == -6
        assert found.elbo is found.elbo_standard_error is found.elbo_trace is None
        return
    assert found.elbo == -5
    assert found.elbo_standard_error == pytest.approx(np.sqrt(14 / 3 / 4))
    # While it is fitted a Laplace approximation is a point: its trace is of no bound.
    assert (found.elbo_trace is None) == (guide != "dirichlet")
    assert len(found.restart_traces) == (guide == "dirichlet")


def test_options_of_nuts_reach_its_programs_and_its_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(hmm_model(), DEMOS)
    made, ran = Asked("programs"), Asked()
    monkeypatch.setattr(nuts, "make_programs", made)
    monkeypatch.setattr(nuts, "sample_chains", ran)
    options: dict[str, Any] = {"progress": False, "dtype": FLOAT32, "num_chains": 3}
    options |= {"num_warmup": 12, "num_samples": 34}

    def run(**more: Any) -> tuple[Any, ...]:
        made.calls.clear()
        ran.calls.clear()
        with pytest.raises(Stop):
            nuts.fit(bound, **(options | more))
        ((arguments, _),) = ran.calls
        return arguments

    programs, begin, _, schedule, *rest = run(
        seed=2, target_accept_prob=0.9, max_tree_depth=4, chain_method="vectorized"
    )
    ((_, settings, dtype, mesh),) = (one[0] for one in made.calls)
    assert settings == nuts.Settings(12, 0.9, 4)
    assert (programs, dtype, mesh) == ("programs", FLOAT32, None)
    assert schedule == nuts.Schedule(12, 34, "vectorized")
    assert rest == [NOWHERE, False, None]
    assert begin.keys.shape == (3,)
    again, other = run(seed=2)[1], run(seed=3)[1]
    assert run(seed=2)[3].chain_method == "sequential"
    for name, start in begin.positions.items():
        assert len(start) == 3
        np.testing.assert_array_equal(start, again.positions[name])
        assert not np.any(start == other.positions[name])
        assert len(np.unique(start.reshape(3, -1), axis=0)) == 3
    assert not np.any(jax.random.key_data(begin.keys) == jax.random.key_data(other.keys))


def test_nuts_tells_of_chains_what_they_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(hmm_model(), DEMOS.without_labels())
    generator, size = np.random.default_rng(0), (2, 40)
    draws = {
        name: generator.dirichlet(np.ones(table.shape[-1]), (*size, *table.shape[:-1]))
        for name, table in bound.learned.items()
    }
    statistics = {
        "diverging": np.arange(80).reshape(size) < 3,
        "num_steps": np.where(np.arange(80) % 8 == 0, 7, 5).reshape(size),
    }
    logs = generator.normal(size=(*size, 1))
    chains = nuts.Chains(draws, logs, statistics)
    monkeypatch.setattr(nuts, "make_programs", Asked("programs"))
    monkeypatch.setattr(nuts, "sample_chains", Asked(chains))
    found = nuts.fit(
        bound, seed=0, progress=False, dtype=FLOAT32, num_chains=2, num_warmup=1, num_samples=40,
        max_tree_depth=3,
    )  # fmt: skip
    assert found.notes["divergences"] == 3
    assert found.notes["draws_at_max_tree_depth"] == 10
    assert found.notes["contexts_drawn_exactly"] == 0
    assert found.log_likelihood is logs
    assert "3 divergent transitions" in found.reason
    for name, values in draws.items():
        np.testing.assert_array_equal(found.rows[name].draws, values)
    apart = chains._replace(draws=draws | {
        "policy_agent_0": draws["policy_agent_0"] * 0.2 + np.array([0.0, 0.8])[:, None, None,
                                                                               None, None]
    })  # fmt: skip
    monkeypatch.setattr(nuts, "sample_chains", Asked(apart))
    found = nuts.fit(
        bound, seed=0, progress=False, dtype=FLOAT32, num_chains=2, num_warmup=1, num_samples=40
    )
    assert not found.converged
    assert found.notes["cells_above_rhat_1.05"] == draws["policy_agent_0"][0, 0].size
