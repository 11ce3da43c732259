"""The one verb: options, types, seeds, and how often programs are compiled."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from teams import (
    chain_truth,
    hmm_demos,
    hmm_model,
    made_by_hand,
    random_demos,
    rich_model,
)

import btil
from btil.inference.memory import check_memory
from btil.inference.method import METHODS
from btil.inference.processes import Processes
from btil.inference.result import DrawnRows, FitResult
from btil.models.team import bind
from btil.posterior import fit as fitting
from btil.posterior.fit import check_given, fit_again, method_options

SHORT: dict[str, dict[str, int]] = {
    "mfvi": {},
    "exact": {},
    "gibbs": {"num_chains": 1, "num_warmup": 5, "num_samples": 5},
}

ROOT = Path(__file__).resolve().parent.parent
_COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **kwargs: _COMPILED.append(event)
)


def compilations(run: Callable[[], Any]) -> int:
    """How many programs XLA compiles during a call."""
    before = len(_COMPILED)
    run()
    return sum("backend_compile" in event for event in _COMPILED[before:])


# ------------------------------------------------------------------ options


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown method 'em'; there are mfvi, svi, nuts, gibbs"):
        btil.fit(hmm_model(), hmm_demos([0, 1]), method="em")


@pytest.mark.parametrize("method", METHODS)
def test_an_option_of_another_method_lists_those_there_are(method: str) -> None:
    with pytest.raises(TypeError, match=f"{method} has no option 'temperature'; it has ") as told:
        btil.fit(hmm_model(), hmm_demos([0, 1]), method=method, temperature=3)
    for option in method_options(method):
        assert option in str(told.value)


def test_options_are_called_the_same() -> None:
    for method in ("nuts", "gibbs"):
        assert {"num_chains", "num_warmup", "num_samples"} <= set(method_options(method))
    for method in ("mfvi", "svi"):
        assert "max_iterations" in method_options(method)
    assert {"num_restarts", "tolerance"} <= set(method_options("mfvi"))


@pytest.mark.parametrize("seed", [-1, 0.5, True, 2**32, "1"])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="seed"):
        btil.fit(hmm_model(), hmm_demos([0, 1]), seed=seed)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_single_or_double_precision(dtype: str) -> None:
    with pytest.raises(ValueError, match="dtype must be float32 or float64"):
        btil.fit(hmm_model(), hmm_demos([0, 1]), dtype=dtype, progress=False)


# ------------------------------------------------------------------ precision


def concentration_type(**options: Any) -> Any:
    posterior = btil.fit(hmm_model(), hmm_demos([0, 1, 1]), progress=False, **options)
    smoothed = posterior.smooth(posterior.demos)["agent_0"]
    assert smoothed.dtype == posterior.dtype
    assert posterior.elbo_trace.dtype == posterior.dtype
    return posterior.result.rows["policy_agent_0"].concentration.dtype


def test_precision_without_and_with_the_switch() -> None:
    assert not jax.config.read("jax_enable_x64")
    assert concentration_type() == np.float32
    assert concentration_type(dtype="float64") == np.float64
    assert concentration_type(dtype=np.float32) == np.float32
    assert not jax.config.read("jax_enable_x64")
    with jax.enable_x64(True):
        assert concentration_type() == np.float64
        assert concentration_type(dtype="float32") == np.float32
        assert jax.config.read("jax_enable_x64")
    assert not jax.config.read("jax_enable_x64")


def test_a_fit_of_other_data_is_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same method, model, options and precision; the seed is given."""
    demos, other = hmm_demos([0, 1, 1]), hmm_demos([1, 1, 0, 0])
    options = {"num_restarts": 2, "max_iterations": 3}
    first = btil.TeamPosterior(
        bound=bind(hmm_model(), demos), method="mfvi", seed=0, dtype=np.dtype("float64"),
        result=FitResult(rows={}, converged=True, reason="made by hand"), wall_time=1.0,
        options=options,
    )  # fmt: skip
    asked = []

    def fit(*given: Any, **more: Any) -> btil.TeamPosterior:
        asked.append((given, more))
        return first

    monkeypatch.setattr(fitting, "fit", fit)
    assert fit_again(first, other, seed=7, progress=False) is first
    (((model, data, method), more),) = asked
    assert (model, data, method) == (first.model, other, "mfvi")
    assert more == {"seed": 7, "progress": False, "dtype": np.dtype("float64"), **options}


def test_options_are_looked_at_by_their_owner() -> None:
    check_given("mfvi", {"num_restarts": 2}, owner="learning")
    check_given("gibbs", {"dtype": "float64", "keep_rows": None}, owner="learning")
    with pytest.raises(ValueError, match="dtype must be float32 or float64"):
        check_given("mfvi", {"dtype": "float16"}, owner="learning")
    with pytest.raises(TypeError, match=r"learning has no option 'num_chains'; it has .*, dtype$"):
        check_given("mfvi", {"num_chains": 2}, owner="learning")
    with pytest.raises(TypeError, match="mfvi has no option 'dtype'"):
        check_given("mfvi", {"dtype": "float64"})
    with pytest.raises(ValueError, match="num_restarts must be"):
        check_given("mfvi", {"num_restarts": None})


def test_a_fit_is_of_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is that of all it took, from the reading on."""
    asked, demos = [], hmm_demos([0, 1, 1])

    def fit_bound(*given: Any, **more: Any) -> Any:
        asked.append((given, more))
        return made_by_hand(hmm_model(), demos)

    monkeypatch.setattr(fitting, "fit_bound", fit_bound)
    clock = iter([5.0, 12.5])
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: next(clock))
    found = btil.fit(
        hmm_model(), demos, "gibbs", seed=7, progress=False, dtype="float32", checkpoint="a",
        resume=True, num_chains=2,
    )  # fmt: skip
    assert found.wall_time == 7.5
    (((bound, method), more),) = asked
    assert (bound.model, bound.demos, method) == (hmm_model(), demos, "gibbs")
    assert more == {
        "seed": 7, "progress": False, "dtype": "float32", "checkpoint": "a", "resume": True,
        "num_chains": 2,
    }  # fmt: skip


def test_a_file_is_learned_from_by_batches_that_are_fewer_than_its_episodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    demos = hmm_demos([0, 1, 1, 0], episodes=[0, 1, 2, 3])
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    file = btil.open_demonstrations(tmp_path / "team.parquet")
    asked = []

    def batches(data: Any, **more: Any) -> Any:
        asked.append((data, more))
        raise InterruptedError

    def whole(bound: Any, *_: Any, **more: Any) -> Any:
        asked.append((bound, more))
        raise InterruptedError

    monkeypatch.setattr("btil.inference.stochastic.fit", batches)
    monkeypatch.setattr(fitting, "fit_bound", whole)
    given: Any = {"seed": 3, "progress": False, "checkpoint": tmp_path / "run", "num_restarts": 2}
    for size in (3, 4):
        with pytest.raises(InterruptedError):
            btil.fit(hmm_model(), file, batch_size=size, **given)
    (data, by_batches), (bound, at_once) = asked
    assert data.lengths.tolist() == [1, 1, 1, 1]
    saving = by_batches.pop("checkpoint")
    assert saving.path == tmp_path / "run"
    assert by_batches.pop("dtype") == np.float32
    by_batches.pop("outline")
    assert by_batches == {"seed": 3, "progress": False, "num_restarts": 2, "batch_size": 3}
    assert bound.demos == demos
    assert at_once["batch_size"] == 4
    # Several processes count each its own part.
    counted: list[Any] = []

    def gather(processes: Processes, work: Callable[[], Any]) -> list[Any]:
        counted.append((processes, work().tolist()))
        return [work(), np.array([3])]

    monkeypatch.setattr(fitting, "gather", gather)
    assert fitting._count_episodes(file, Processes(2, 1)) == counted[0][1][0] + 3
    assert counted[0][1] == [file.shard(2, 1).num_episodes]
    assert fitting._count_episodes(file, Processes(1, 0)) == 4


def test_single_precision_is_close_to_double() -> None:
    demos = random_demos(0, (6, 5, 4), labelled=0.5)
    double, single = (
        btil.fit(rich_model(), demos, dtype=dtype, progress=False, tolerance=1e-5)
        for dtype in ("float64", "float32")
    )
    assert single.elbo == pytest.approx(double.elbo, abs=1e-3)
    np.testing.assert_allclose(
        single.smooth(demos)["ann"], double.smooth(demos)["ann"], rtol=0, atol=0.02
    )


# ------------------------------------------------------------------ seeds


def bits(posterior: btil.TeamPosterior) -> bytes:
    draws = posterior.sample(3)
    return b"".join(np.ascontiguousarray(draws[name]).tobytes() for name in sorted(draws))


UNLABELLED = [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("method", SHORT)
def test_same_seed_same_bits(method: str) -> None:
    def run(seed: int) -> btil.TeamPosterior:
        demos = hmm_demos(UNLABELLED)
        return btil.fit(
            hmm_model(), demos, method=method, seed=seed, progress=False, **SHORT[method]
        )

    state = np.random.get_state()[1].copy()  # noqa: NPY002  # the generator to leave alone
    first = bits(run(3))
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    btil.fit(hmm_model(), hmm_demos([0, 1, 2], num_latents=3), seed=9, progress=False)
    np.random.seed(1)  # noqa: NPY002  # what a user's script may do
    assert bits(run(3)) == first
    if method != "exact":
        assert bits(run(4)) != first


def test_same_bits_in_a_fresh_process() -> None:
    code = (
        "import numpy as np, btil;"
        f"demos = btil.Demonstrations(np.zeros(11, int), {UNLABELLED}, num_latents=2);"
        "one = btil.DirichletCPT(1.0);"
        "model = btil.TeamModel(policy=one, transition=one, initial=one);"
        "posterior = btil.fit(model, demos, seed=3, progress=False);"
        "rows = posterior.result.rows['policy_agent_0'].concentration;"
        "print(rows.tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    posterior = btil.fit(hmm_model(), hmm_demos(UNLABELLED), seed=3, progress=False)
    here = posterior.result.rows["policy_agent_0"].concentration
    assert done.stdout.split() == [here.tobytes().hex()]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        (
            "gibbs",
            {"num_chains": 10**8},
            "num_chains=100,000,000 and num_samples=500: .*keep",
        ),
        ("gibbs", {"num_chains": 10**13, "keep_rows": 0}, "num_chains=10,000,000,000,000: "),
        ("gibbs", {"num_samples": 10**12}, "num_chains=4 and num_samples=1,000,000,000,000: "),
        (
            "nuts",
            {"num_samples": 10**12},
            "num_chains=4 and num_samples=1,000,000,000,000: ",
        ),
        ("refined", {"num_draws": 10**12}, "num_draws=1,000,000,000,000: "),
        ("svi", {"num_particles": 10**12}, "num_particles=1,000,000,000,000: "),
    ],
)
def test_what_no_memory_can_hold_is_refused_before_any_computing(
    method: str, options: dict[str, Any], says: str
) -> None:
    demos = hmm_demos([0, 1, 1])
    with pytest.raises(ValueError, match=f"^{says}") as refused:
        btil.fit(hmm_model(), demos, method, progress=False, **options)
    told = (
        r"would need at least [\d,]+ GiB of memory, but the machine has [\d,]+ GiB; ask for fewer"
    )
    assert re.search(told, str(refused.value))


def test_draws_that_no_memory_can_hold_are_refused() -> None:
    posterior = btil.fit(hmm_model(), hmm_demos([0, 1, 1]), progress=False)
    for ask in (posterior.sample, posterior.refined):
        with pytest.raises(ValueError, match=r"^num_draws=1,000,000,000,000: this would need"):
            ask(10**12)
    with pytest.raises(ValueError, match=r"^num_draws=1,000,000,000,000: this would need"):
        posterior.smooth(posterior.demos, num_draws=10**12)


def test_a_machine_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(f"unrecognized configuration name {name}")

    bound = bind(hmm_model(), hmm_demos([0, 1, 1]))
    check_memory(bound, {"num_samples": 100}, np.dtype(np.float32))
    monkeypatch.setattr("os.sysconf", unknown)
    check_memory(bound, {"num_samples": 10**20}, np.dtype(np.float32))


def test_one_chain_is_not_judged() -> None:
    posterior = btil.fit(
        hmm_model(), hmm_demos(UNLABELLED), method="gibbs", progress=False, **SHORT["gibbs"]
    )
    assert not posterior.converged
    assert "one chain cannot show convergence: R-hat compares chains" in posterior.reason
    assert "nan" not in posterior.reason


# ------------------------------------------------------------------ nothing to learn


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_learn_fits_at_once(method: str) -> None:
    generator = np.random.default_rng(0)
    model = btil.TeamModel(
        policy={
            "ann": btil.KnownCPT(generator.dirichlet(np.ones(3), (4, 2)), ("state",)),
            "bob": btil.UniformCPT(),
        },
        transition={
            "ann": btil.KnownCPT(generator.dirichlet(np.ones(2), 2)),
            "bob": btil.StaticCPT(),
        },
    )
    demos = random_demos(0, labelled=0.0)
    posterior = btil.fit(model, demos, method=method, progress=False, dtype="float64")
    assert posterior.converged
    assert "nothing to learn" in posterior.reason
    bound = bind(model, demos)
    rows = {name: table.prior_mean() for name, table in bound.tables.items()}
    truth = {agent: chain_truth(bound, agent, rows) for agent in demos.agents}
    evidence = sum(one.log_likelihood for one in truth.values())
    np.testing.assert_allclose(posterior.log_likelihood(demos), evidence, atol=1e-11)
    np.testing.assert_allclose(posterior.smooth(demos)["ann"], truth["ann"].smoothed, atol=1e-12)
    assert posterior.sample(2) == {}
    if method in ("mfvi", "svi", "exact"):
        assert posterior.elbo == pytest.approx(evidence.sum(), abs=1e-10)
    else:
        assert posterior.elbo is None


def test_one_step_episodes_have_no_transition_to_learn() -> None:
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0), transition=btil.DirichletCPT([[3.0, 1.0], [1.0, 1.0]])
    )
    demos = hmm_demos([0, 1, 1], [0, -1, 1], episodes=[0, 1, 2])
    posterior = btil.fit(model, demos, progress=False)
    assert set(posterior.result.rows) == {"policy_agent_0"}
    np.testing.assert_allclose(posterior.transition("agent_0"), [[[0.75, 0.25], [0.5, 0.5]]])
    # Longer episodes use the prior.
    np.testing.assert_allclose(
        posterior.filter(hmm_demos([0, 1], [0, -1]))["agent_0"].sum(1), 1, atol=1e-6
    )


# ------------------------------------------------------------------ compilation


def wandering_team(lengths: np.ndarray, seed: int) -> btil.Demonstrations:
    """Many contexts, of a number that depends on nothing but the lengths."""
    generator = np.random.default_rng(seed)
    steps = int(lengths.sum())
    return btil.Demonstrations(
        states=np.arange(steps) % 50,
        actions=generator.integers(0, 4, (steps, 2)),
        latents=np.where(
            generator.random((steps, 2)) < 0.3, generator.integers(0, 3, (steps, 2)), -1
        ),
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        num_states=50,
        num_actions=4,
        num_latents=3,
    )


@pytest.mark.filterwarnings("ignore:the model cannot learn from tables:btil.DataWarning")
def test_a_second_fit_of_equal_shapes_compiles_nothing() -> None:
    model = btil.TeamModel(transition=btil.DirichletCPT(1.01, ("state",)))
    first, second = (wandering_team(np.array([30, 20, 11]), seed) for seed in (0, 1))

    def everything(demos: btil.Demonstrations, seed: int) -> None:
        posterior = btil.fit(model, demos, seed=seed, progress=False, num_restarts=2)
        posterior.smooth(demos)
        posterior.filter(demos)
        posterior.decode(demos)
        posterior.log_likelihood(demos)
        posterior.predict_actions(demos)
        posterior.smooth(demos, num_draws=2)

    everything(first, 0)
    assert compilations(lambda: everything(second, 1)) == 0


@pytest.mark.filterwarnings("ignore:the model cannot learn from tables:btil.DataWarning")
def test_forty_lengths_compile_a_few_programs() -> None:
    lengths = np.arange(1, 41)
    demos = wandering_team(lengths, 0)
    model = btil.TeamModel()
    posteriors = []
    assert compilations(lambda: posteriors.append(btil.fit(model, demos, progress=False))) <= 20
    (posterior,) = posteriors

    def decode_one_by_one() -> None:
        for episode in range(len(lengths)):
            posterior.decode(demos.select([episode]))

    assert compilations(decode_one_by_one) <= 10
    assert compilations(decode_one_by_one) == 0
    assert compilations(lambda: [posterior.decode(demos) for _ in range(3)]) <= 5


def test_progress_false_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for method in SHORT:
        btil.fit(hmm_model(), hmm_demos([0, 1, 1]), method=method, progress=False, **SHORT[method])
    written = capfd.readouterr()
    assert written.out == ""
    assert written.err == ""


def test_progress_is_one_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    btil.fit(hmm_model(), hmm_demos([0, 1, 1]))
    written = capfd.readouterr()
    assert written.out == ""
    assert "mfvi" in written.err
    assert written.err.strip("\r\n").count("\n") == 0


# ------------------------------------------------------------------ what is handed on


@pytest.mark.parametrize(
    ("method", "given", "dtype"),
    [
        ("mfvi", None, np.float32), ("svi", None, np.float32), ("gibbs", None, np.float32),
        ("nuts", None, np.float64), ("exact", None, np.float64), ("nuts", "float32", np.float32),
        ("mfvi", "float64", np.float64),
    ],
)  # fmt: skip
def test_a_method_is_given_what_was_asked_for(
    method: str, given: str | None, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, result = [], FitResult(rows={}, converged=False, reason="made by hand", elbo=-1.5)

    def function(bound: Any, seed: Any, progress: Any, dtype: Any, checkpoint: Any,
                 num_things: int = 3) -> FitResult:  # fmt: skip
        asked.append((bound, seed, progress, dtype, num_things, jax.numpy.ones(1).dtype))
        return result

    monkeypatch.setattr(fitting, "fit_function", lambda name: asked.append(name) or function)
    bound = bind(hmm_model(), hmm_demos([0, 1, 1]))
    clock = iter([1.0, 4.5])
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: next(clock))
    found = fitting.fit_bound(bound, method, seed=7, progress=False, dtype=given, num_things=5)
    # Everything is computed in the type that was asked for.
    assert asked[-1] == (bound, 7, False, dtype, 5, dtype)
    assert set(asked[:-1]) == {method}
    assert isinstance(found, btil.TeamPosterior)
    assert (found.bound, found.method, found.result, found.seed) == (bound, method, result, 7)
    assert (found.dtype, found.wall_time) == (dtype, 3.5)
    assert found.options == {"num_things": 5}
    assert (found.elbo, found.converged, found.reason) == (-1.5, False, "made by hand")


def test_refined_draws_are_asked_for_as_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = [], FitResult(rows={}, converged=True, reason="settled")
    posterior = made_by_hand(hmm_model(), hmm_demos([0, 1, 1]))

    def refine(*given: Any, **more: Any) -> FitResult:
        asked.append((given, more))
        return answer

    monkeypatch.setattr("btil.inference.refinement.refine", refine)
    clock = iter([1.0, 4.5])
    monkeypatch.setattr("btil.posterior.posterior.time.perf_counter", lambda: next(clock))
    found = posterior.refined(20, num_sweeps=5, seed=7, progress=False)
    (((bound, result), more),) = asked
    assert (bound, result) == (posterior.bound, posterior.result)
    assert more == {
        "seed": 7, "progress": False, "dtype": np.float64, "num_draws": 20, "num_sweeps": 5,
    }  # fmt: skip
    assert (found.method, found.result, found.seed) == ("refined", answer, 7)
    assert found.wall_time == posterior.wall_time + 3.5
    assert found.options == {"num_draws": 20, "num_sweeps": 5}
    assert (found.bound, found.dtype) == (posterior.bound, posterior.dtype)
    for given, told in (
        ({"num_draws": 1}, "num_draws must be a whole number of at least 2"),
        ({"num_sweeps": 1}, "num_sweeps must be a whole number of at least 2"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(ValueError, match=told):
            posterior.refined(**given)
    chains = {
        site: DrawnRows(np.full((1, 2, *table.shape), 0.5))
        for site, table in posterior.bound.learned.items()
    }
    drawn = made_by_hand(hmm_model(), posterior.demos, "gibbs", rows=chains)
    with pytest.raises(ValueError, match="posterior is of gibbs, and has draws or is exact"):
        drawn.refined()
    nothing = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT())
    with pytest.raises(ValueError, match="of mfvi, and no table is learned"):
        made_by_hand(nothing, posterior.demos).refined()
    assert len(asked) == 1
