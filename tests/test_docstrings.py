"""Examples in docstrings run, and give what they show."""

import doctest
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import arviz
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from little import do_little
from matplotlib import pyplot
from numpyro import distributions as dist

import btil
from btil.models.draws import prior_tables
from btil.models.team import bind

MODULES = [
    info.name
    for info in pkgutil.walk_packages(btil.__path__, "btil.")
    if not info.name.endswith("__main__")
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# Minutes of work, or files of other programs: other tests do these.
ELSEWHERE = {
    "btil.analysis.calibration.figures.plot_ecdf_pit",
    "btil.analysis.calibration.calibrating.Calibration.to_datatree",
    "btil.analysis.calibration.calibrating.calibrate",
    "btil.analysis.known_truth.read_truth",
    "btil.analysis.loaded_comparison.load_comparison",
    "btil.analysis.selection.rank_models",
    "btil.analysis.verdict.judge_comparison",
    "btil.models.parametric.parameter_axes",
    "btil.numpyro_forms.numpyro_model.EpisodeData.observe",
    "btil.recordings.intervals.read_intervals",
    "btil.recordings.overcooked_trials.from_overcooked_trials",
    "btil.study.settings.read_settings",
    "btil.domains.gridworld.task.GridTask.recommended_model",
    "btil.analysis.demo.run_demo",
    "btil.analysis.metrics.suboptimal_share",
    "btil.analysis.performance.team_performance",
    "btil.analysis.reproduction.reproducing.reproduce",
}


def examples(name: str, names: dict[str, Any]) -> list[doctest.DocTest]:
    """Those of a module."""
    module = importlib.import_module(name)
    return doctest.DocTestFinder(exclude_empty=True).find(module, globs=names | vars(module))


def is_sketch(example: doctest.Example) -> bool:
    """Whether it needs data that it does not make: it is run with those of `scene`."""
    return bool(example.options.get(doctest.SKIP))


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    told: list[str] = []
    for test in examples(name, {"btil": btil, "np": np}):
        if not all(map(is_sketch, test.examples)):
            done = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
            assert not done.failed, "".join(told)


def test_there_are_examples() -> None:
    found = [test for name in MODULES for test in examples(name, {})]
    assert sum(not all(map(is_sketch, test.examples)) for test in found) > 50
    assert sum(any(map(is_sketch, test.examples)) for test in found) > 50


# ---------------------------------------------------------------------- with data


class AnyOutput(doctest.OutputChecker):
    """Numbers of other data than the example's."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return True


def team(seed: int) -> btil.Demonstrations:
    """Two people who fetch or carry, at two places."""
    generator = np.random.default_rng(seed)
    minds = np.repeat(generator.integers(2, size=(12, 2)), 5, axis=0)
    places = generator.integers(2, size=60)
    slips = generator.random((60, 2)) < 0.1
    return btil.Demonstrations(
        {"place": places},
        {a: np.where(slips[:, k], 2, minds[:, k]) for k, a in enumerate(("ann", "bob"))},
        {a: np.where(np.arange(60) < 40, minds[:, k], -1) for k, a in enumerate(("ann", "bob"))},
        np.repeat(np.arange(12), 5),
        num_latents=2,
        num_actions=3,
    )


@pytest.fixture(scope="module")
def scene() -> dict[str, Any]:
    """What the examples take for granted."""
    demos, test = team(0), team(1)
    policy = btil.DirichletCPT(1.0, ("place",))
    model = btil.TeamModel(policy, btil.HierarchicalDirichletCPT())
    plain = btil.TeamModel(policy, btil.DirichletCPT(1.0))
    posterior = btil.fit(plain, demos, progress=False)
    few: dict[str, Any] = {"num_chains": 2, "num_warmup": 20, "num_samples": 30}
    gibbs = btil.fit(plain, demos, "gibbs", progress=False, **few)
    return {
        "btil": btil,
        "np": np,
        "jnp": jnp,
        "dist": dist,
        "numpyro": numpyro,
        "demos": demos,
        "test": test,
        "partly_labelled": demos,
        "model": plain,
        "posterior": posterior,
        "gibbs": gibbs,
        "two": gibbs,
        "three": btil.fit(model, demos, "gibbs", progress=False, **few),
        "nuts": gibbs,
        "mfvi": posterior,
        "arviz": arviz,
        "check": btil.analysis.posterior_predictive_check(posterior, num_draws=20),
        "generator": np.random.default_rng(0),
        "bound": bind(plain, demos),
        "rows": btil.analysis.posterior_means(posterior),
        "prior_tables": prior_tables,
        "state": {"place": 1},
        "next_state": {"place": 0},
        "actions": {"ann": 0, "bob": 1},
    }


def of_example(name: str, scene: dict[str, Any]) -> dict[str, Any]:
    """What an example means by these words instead."""
    if name.startswith(("btil.analysis.plots.chains", "btil.analysis.plots.diagnostics")):
        return {"posterior": scene["three"]}
    if name == "btil.numpyro_forms.numpyro_model.NumpyroModel":
        demos = scene["demos"]
        return {"demos": demos.replace(actions=np.minimum(demos.actions, 1), num_actions=2)}
    if name.startswith(
        ("btil.analysis.motion", "btil.analysis.plots.films", "btil.analysis.plots.paths")
    ):
        task = btil.domains.errands()
        demos = task.simulate(5)
        fitted = btil.fit(task.recommended_model(), demos, progress=False)
        return {"demos": demos, "posterior": fitted}
    if name.startswith(("btil.analysis.plots.timeline.plot_alignment", "btil.domains.playing")):
        task = btil.domains.movers("tiny")
        demos = task.add_derived_variables(task.simulate(5))
        fitted = btil.fit(task.recommended_model(), demos, progress=False)
        return {"demos": demos, "posterior": fitted, "task": task}
    return {}


def write_files(scene: dict[str, Any]) -> dict[str, Any]:
    """The files that examples read, in the present folder; two of them opened."""
    for file in ("train.csv", "test.csv", "new.csv", "team.parquet"):
        btil.write_demonstrations(scene["demos"], file)
    scene["posterior"].save("team.nc")
    Path("model.toml").write_text(btil.models.description.describe(scene["model"]))
    for site, demos in (("a", scene["demos"]), ("b", scene["test"])):
        Path(f"days/site={site}").mkdir(parents=True)
        ids = [f"{site}{episode}" for episode in demos.episodes]
        btil.write_demonstrations(demos.replace(episodes=ids), f"days/site={site}/1.parquet")
    file, days = (btil.open_demonstrations(path) for path in ("team.parquet", "days"))
    return {"file": file, "days": days}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_sketches_run(
    name: str, scene: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    do_little(name, monkeypatch)
    tests = [test for test in examples(name, {}) if any(map(is_sketch, test.examples))]
    tests = [test for test in tests if test.name not in ELSEWHERE]
    files = write_files(scene) if tests else {}
    told: list[str] = []
    for test in tests:
        test.globs = scene | files | of_example(test.name, scene) | test.globs
        for example in test.examples:
            example.options.pop(doctest.SKIP, None)
        runner = doctest.DocTestRunner(AnyOutput(), optionflags=FLAGS)
        done = runner.run(test, out=told.append)
        pyplot.close("all")  # ArviZ's figures
        assert not done.failed, "".join(told)
