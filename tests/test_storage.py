"""Posteriors on disk: what is loaded answers as what was saved, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray
from teams import made_by_hand

import btil
from btil.inference.result import (
    ConditionalRows,
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    FunctionalRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
    MomentRows,
    NormalParameters,
)
from btil.models.team import bind, with_contexts
from btil.posterior.loading import check_answer

RNG = np.random.default_rng(5)
KNOWN = RNG.dirichlet(np.ones(3), size=(2, 2))


def demos(agents=("ann", "bob")) -> btil.Demonstrations:
    rng = np.random.default_rng(1)
    return btil.Demonstrations(
        states={"where": rng.integers(0, 2, 9), "held": rng.integers(0, 3, 9)},
        actions={agent: rng.integers(0, 3, 9) for agent in agents},
        latents={agent: rng.integers(-1, 2, 9) for agent in agents},
        episodes=np.repeat(["mon", "tue", "wed"], [4, 4, 1]),
        num_states={"where": 2, "held": 3},
        num_actions=3,
        num_latents=2,
        state_names={"where": ["door", "hall"]},
    )


MODELS = {
    "plain": btil.TeamModel(
        policy=btil.DirichletCPT([0.5, 1.0, 2.0], ("where",)),
        transition=btil.DirichletCPT(1.0, ("held", "actions", "next_where")),
        initial=btil.DirichletCPT(1.0),
    ),
    "known and static": btil.TeamModel(
        policy={"ann": btil.KnownCPT(KNOWN, ("where",)), "bob": btil.DirichletCPT(1.0)},
        transition={"ann": btil.DirichletCPT(1.0), "bob": btil.UniformCPT()},
    ),
    "shared": btil.TeamModel(
        policy=btil.Shared(
            btil.DirichletCPT(1.0, {"ann": ("where", "held"), "bob": ("where", "held")})
        ),
        transition=btil.Shared(btil.DirichletCPT(1.0, ("own_action",))),
    ),
}
shared = btil.Shared(btil.DirichletCPT(0.7))
MODELS["shared by mapping"] = btil.TeamModel(
    policy={"ann": shared, "bob": shared}, transition=btil.DirichletCPT(1.0)
)


def same(first: btil.TeamPosterior, second: btil.TeamPosterior) -> None:
    held_out = demos().without_labels().select([2, 0])
    assert second.demos == first.demos
    for agent in first.demos.agents:
        assert np.array_equal(first.smooth(held_out)[agent], second.smooth(held_out)[agent])
    assert np.array_equal(first.log_likelihood(held_out), second.log_likelihood(held_out))
    ours, theirs = first.sample(5, seed=2), second.sample(5, seed=2)
    assert set(ours) == set(theirs)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    for field in ("method", "converged", "reason", "elbo", "elbo_se", "seed", "wall_time"):
        assert getattr(first, field) == getattr(second, field)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name, tmp_path):
    posterior = btil.fit(MODELS[name], demos(), progress=False)
    path = tmp_path / "a team.nc"
    posterior.save(path)
    posterior.save(path)
    same(posterior, btil.load_posterior(path))
    assert [file.name for file in tmp_path.iterdir()] == ["a team.nc"]


@pytest.mark.parametrize(
    ("method", "options"),
    [("exact", {}), ("gibbs", {"num_warmup": 5, "num_samples": 8, "num_chains": 2})],
)
def test_mixtures_and_draws_come_back(method, options, tmp_path):
    posterior = btil.fit(MODELS["plain"], demos(), method, progress=False, **options)
    posterior.save(tmp_path / "team.nc")
    loaded = btil.load_posterior(tmp_path / "team.nc")
    same(posterior, loaded)
    if method == "gibbs":
        assert np.array_equal(posterior.result.log_likelihood, loaded.result.log_likelihood)
        assert posterior.draws_info.equals(loaded.draws_info)


def test_options_come_back_whatever_numbers_they_are(tmp_path):
    given = {"num_restarts": np.int64(2), "tolerance": np.float32(0.5), "guide": "AutoNormal"}
    posterior = made_by_hand(MODELS["plain"], demos())
    start = {"policy_ann": np.ones((2, 2, 3))}
    replace(posterior, options=given | {"start": start}).save(tmp_path / "team.nc")
    assert btil.load_posterior(tmp_path / "team.nc").options == given


def test_what_was_learned_in_contexts_that_few_episodes_lack_comes_back(tmp_path):
    """Of files larger than memory an excerpt is kept, with all contexts of tables and columns."""
    few = btil.Demonstrations(
        [0, 2, 0], {"ann": [0, 1, 1]}, num_states=4, num_latents=2, continuous={"x": [0.5, 1, 3]}
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, ("state",)),
        emissions=btil.NormalEmission(("x",), parents=("state",)),
    )
    contexts = {
        "policy_ann": np.arange(4)[:, None],
        "transition_ann": np.indices((4, 2)).reshape(2, -1).T,
        "initial_ann": np.zeros((1, 0), int),
        "emission_ann": np.array([[0], [2], [3]]),
    }
    bound = with_contexts(bind(model, few), contexts)
    generator = np.random.default_rng(0)
    rows = {
        site: DirichletRows(generator.uniform(1, 9, table.shape))
        for site, table in bound.learned.items()
    }
    normals = MatrixNormalChannel(*bound.channels["ann"].prior())
    normals = normals._replace(location=generator.normal(size=normals.location.shape))
    posterior = btil.TeamPosterior(
        bound=bound, method="mfvi", seed=0, dtype=np.dtype(np.float64), wall_time=1.0,
        result=FitResult(rows, True, "made by hand", channels={"emission_ann": normals}),
    )  # fmt: skip
    posterior.save(tmp_path / "team.nc")
    again = btil.load_posterior(tmp_path / "team.nc")
    assert again.bound.excerpt
    assert again.demos == few
    for site, table in bound.tables.items():
        np.testing.assert_array_equal(again.bound.tables[site].contexts.rows, contexts[site])
        assert again.bound.tables[site].shape == table.shape
    np.testing.assert_array_equal(again.bound.channels["ann"].visited, contexts["emission_ann"])
    # In contexts that these episodes do not have, too.
    np.testing.assert_array_equal(again.policy("ann"), posterior.policy("ann"))
    for state in range(4):
        for mine, theirs in zip(
            posterior.emission("ann", state), again.emission("ann", state), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


def test_a_function_needs_the_model(tmp_path):
    model = btil.TeamModel(
        policy=btil.KnownCPT(lambda contexts: KNOWN[contexts["where"]], ("where",)),
        transition=btil.DirichletCPT(1.0),
    )
    posterior = btil.fit(model, demos(), progress=False)
    posterior.save(tmp_path / "team.nc")
    with pytest.raises(ValueError, match=r"policy table is a KnownCPT .* pass the model"):
        btil.load_posterior(tmp_path / "team.nc")
    same(posterior, btil.load_posterior(tmp_path / "team.nc", model=model))
    with pytest.raises(ValueError, match="holds the tables"):
        btil.load_posterior(tmp_path / "team.nc", model=MODELS["shared"])


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.nc"
    path.write_bytes(b"not netCDF")
    with pytest.raises(ValueError, match=r"x\.nc is not a posterior saved by btil"):
        btil.load_posterior(path)
    xarray.Dataset({"a": ("b", [1, 2])}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"x\.nc is not a posterior saved by btil"):
        btil.load_posterior(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        btil.load_posterior(tmp_path / "none.nc")


@pytest.mark.parametrize("name", ["mydata.csv", "team", "team.zarr"])
def test_only_a_file_with_the_ending_of_a_posterior_is_written(name, tmp_path):
    posterior = btil.fit(MODELS["plain"], demos(), progress=False)
    path = tmp_path / name
    path.write_text("what took me a year")
    with pytest.raises(ValueError, match=rf"{name}: the ending must be \.nc"):
        posterior.save(path)
    assert path.read_text() == "what took me a year"


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    posterior = btil.fit(MODELS["plain"], demos(), progress=False)
    path = tmp_path / "team.nc"
    posterior.save(path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(xarray.Dataset, "to_netcdf", fail)
    with pytest.raises(OSError, match="no space left"):
        posterior.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------ every kind of answer


def with_columns() -> btil.TeamModel:
    """A regression, base rows that are learned, and a column of each member."""
    return btil.TeamModel(
        policy=btil.SoftmaxCPT(("where",)),
        transition=btil.HierarchicalDirichletCPT(4.0, parents=("held",)),
        initial=btil.DirichletCPT(1.0),
        emissions={
            "ann": btil.LinearNormalEmission(("ann_v", "ann_w"), ("bob_v",), ("where",)),
            "bob": btil.NormalEmission(("bob_v",)),
        },
    )


def tables_alone() -> btil.TeamModel:
    """The same with tables that have no parameters."""
    plain = {role: btil.DirichletCPT(1.0, p) for role, p in (
        ("policy", ("where",)), ("transition", ("held",)), ("initial", ()),
    )}  # fmt: skip
    return replace(with_columns(), **plain)


def measured() -> btil.Demonstrations:
    values = np.random.default_rng(2).normal(size=(3, 9))
    return demos().replace(continuous=dict(zip(("ann_v", "ann_w", "bob_v"), values, strict=True)))


def answers() -> dict[str, dict[str, Any]]:
    """Answers of some method each, which no method has given."""
    generator = np.random.default_rng(3)
    bound = bind(with_columns(), measured())
    shapes = {site: table.shape for site, table in bound.learned.items()}
    channels = {one.name: one for one in bound.channels.values()}

    def numbers(*shape: int) -> np.ndarray:
        return generator.uniform(1.0, 2.0, shape)

    def drawn(*lead: int, of: Any = shapes) -> dict[str, np.ndarray]:
        return {site: numbers(*lead, *shape) for site, shape in of.items()}

    agents = ("ann", "bob")
    bases = {f"transition_{a}_base": (2, 2) for a in agents}
    weights = {f"policy_{a}_bias": (2, 3) for a in agents}
    weights |= {f"policy_{a}_weights": (2, 2, 3) for a in agents}
    functions = [site for site in shapes if site.startswith("policy")]
    given = [site for site in shapes if site.startswith("transition")]
    normals = {name: MatrixNormalChannel(*one.prior()) for name, one in channels.items()}
    moments = {
        site: MomentRows(
            np.array([2, 3]), numbers(2, 2, *shape), numbers(2, 2, *shape), np.array([0]),
            numbers(2, 5, 1, *shape[1:]),
        )
        for site, shape in shapes.items()
    }  # fmt: skip
    group = sum(np.prod(weights[f"policy_ann_{kind}"]) for kind in ("bias", "weights"))
    return {
        "mean field": {
            "rows": {
                **{site: FunctionalRows(numbers(*shapes[site]), numbers(*shapes[site]))
                   for site in functions},
                **{site: ConditionalRows(*(numbers(*shapes[site]) for _ in range(4)))
                   for site in given},
                **{site: DirichletRows(numbers(*shapes[site]))
                   for site in shapes if site.startswith("initial")},
            },
            "parameters": {
                **{site: NormalParameters(numbers(2, 1), numbers(2, 1)) for site in bases},
                **{site: JointNormals(numbers(*shape), numbers(*shape, group), site[:10])
                   for site, shape in weights.items()},
            },
            "channels": normals,
            "elbo": -3.5, "elbo_standard_error": 0.25, "contraction_rate": 0.75,
            "elbo_trace": numbers(4), "restart_traces": (numbers(2), numbers(3)),
            "notes": {"settings": 3},
        },
        "exact": {
            "rows": {site: MixtureRows(numbers(4), values, "ann")
                     for site, values in drawn(4).items()},
            "channels": {
                name: MixtureChannel(
                    numbers(4), *(np.stack([part] * 4) for part in one.prior()), name
                )
                for name, one in channels.items()
            }
            | {
                "emission_ann": MixtureOfRegressions(
                    numbers(4), np.array([[1, 0], [0, 1]]), numbers(4, 2, 2, 2, 3),
                    numbers(4, 2, 2, 2, 3, 3), numbers(4, 2, 2, 2), numbers(4, 2, 2, 2), "ann",
                )
            },
        },
        "chains": {
            "rows": {site: DrawnRows(values) for site, values in drawn(2, 5).items()},
            "parameters": {site: DrawnParameters(values)
                           for site, values in drawn(2, 5, of=bases | weights).items()},
            "channels": {
                name: DrawnChannel(
                    numbers(2, 5, *one.shape), numbers(2, 5, *one.shape[:2], *[one.shape[3]] * 2)
                )
                for name, one in channels.items()
            },
            "sample_stats": {"diverging": generator.random((2, 5)) < 0.5},
            "log_likelihood": numbers(2, 5, 3),
        },
        "moments": {"rows": moments, "channels": normals},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["mean field", "exact", "chains", "moments"])
def test_every_kind_of_answer_comes_back(kind: str, tmp_path: Path) -> None:
    found = answers()[kind]
    model = with_columns() if "parameters" in found else tables_alone()
    posterior = made_by_hand(model, measured(), kind, **found, converged=False)
    posterior = replace(posterior, seed=7, wall_time=2.5, dtype=np.dtype(np.float32))
    posterior.save(tmp_path / "team.nc")
    again = btil.load_posterior(tmp_path / "team.nc")
    for field in ("method", "seed", "wall_time", "dtype", "model", "demos"):
        assert getattr(again, field) == getattr(posterior, field)
    ours, theirs = posterior.result._asdict(), again.result._asdict()
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def changed(kind: str, part: str, site: str, **fields: Any) -> dict[str, Any]:
    """An answer of a kind with other fields of one part of it."""
    found = answers()[kind]
    return found | {part: found[part] | {site: found[part][site]._replace(**fields)}}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (changed("chains", "rows", "policy_ann", draws=np.ones((2, 5, 1, 2, 3))),
         r"policy_ann has shape \(1, 2, 3\), in the model it has \(2, 2, 3\)"),
        (changed("exact", "rows", "initial_bob", concentration=np.ones((4, 2, 2))),
         r"initial_bob has shape \(2, 2\), in the model it has \(1, 2\)"),
        (changed("chains", "parameters", "policy_bob_bias", draws=np.ones((2, 5, 3, 2))),
         r"policy_bob_bias has shape \(3, 2\), in the model it has \(2, 3\)"),
        (changed("mean field", "parameters", "transition_ann_base", location=np.ones((2, 2)),
                 scale=np.ones((2, 2))),
         r"transition_ann_base has shape \(2, 2\), in the model it has \(2, 1\)"),
        (changed("mean field", "parameters", "transition_ann_base", scale=np.ones((2, 2))),
         "the normals of transition_ann_base do not fit each other"),
        (changed("mean field", "parameters", "policy_bob_bias", factor=np.ones((2, 3, 17))),
         "the normals of policy_bob_bias do not fit each other"),
        (changed("mean field", "parameters", "policy_bob_bias", group="another"),
         "the normals of policy_bob_.* do not fit each other"),
        (changed("mean field", "rows", "policy_ann", average=np.ones((2, 2, 4))),
         "the arrays of policy_ann do not fit each other"),
        (changed("mean field", "rows", "transition_bob", centre=np.ones((1, 2, 2))),
         "the arrays of transition_bob do not fit each other"),
        (answers()["chains"] | {"parameters": {}},
         r"policy_ann_bias has shape none, in the model it has \(2, 3\)"),
        (answers()["chains"] | {"sample_stats": {"diverging": np.ones(5)}},
         "a statistic of draws is"),
        (answers()["chains"] | {"log_likelihood": np.ones((2, 5))}, "the log likelihood is"),
        (answers()["chains"] | {"log_likelihood": np.ones((2, 5, 3), int)}, "log likelihood is"),
        (answers()["chains"] | {"elbo_trace": np.ones((2, 2))}, "a trace of bounds is"),
        (answers()["chains"] | {"restart_traces": (np.ones(2), np.ones((1, 2)))},
         "a trace of bounds is"),
        (answers()["mean field"] | {"channels": {}}, "it holds the channels none, the model has"),
        (changed("moments", "rows", "policy_ann", counts=np.array([2, 2])), "moments and draws"),
        (changed("moments", "rows", "policy_ann", counts=np.array([5, 0])), "moments and draws"),
        (changed("moments", "rows", "policy_ann", kept=np.array([2])), "moments and draws"),
        (changed("moments", "rows", "policy_ann", kept=np.array([-1])), "moments and draws"),
        (changed("moments", "rows", "policy_ann", kept=np.array([0.0])), "moments and draws"),
        (changed("moments", "rows", "policy_ann", squares=np.ones((2, 2, 2, 2, 2))),
         "the moments and draws of policy_ann do not fit each other"),
        (changed("moments", "rows", "policy_ann", draws=np.ones((2, 4, 1, 2, 3))),
         "the moments and draws of policy_ann do not fit each other"),
        (changed("mean field", "channels", "emission_ann", location=np.ones((2, 2, 2, 1))),
         r"emission_ann has shape \(2, 2, 2, 1\), in the model it has \(2, 2, 2, 2\)"),
        (changed("mean field", "channels", "emission_ann", precision=np.ones((2, 2, 3, 3))),
         "emission_ann has shape"),
        (changed("mean field", "channels", "emission_ann", scale=np.ones((2, 2, 1, 1))),
         "emission_ann has shape"),
        (changed("mean field", "channels", "emission_bob", degrees=np.ones((2, 2))),
         "emission_bob has shape"),
        (changed("exact", "channels", "emission_ann", order=np.array([[1, 1], [0, 1]])),
         "the order of the columns of emission_ann is none"),
        (changed("exact", "channels", "emission_ann", weights=np.ones(3)),
         "emission_ann has shape"),
        (changed("exact", "channels", "emission_ann", scale=np.ones((4, 2, 2, 1))),
         "emission_ann has shape"),
        (changed("exact", "channels", "emission_bob", weights=np.ones(3)),
         "emission_bob has shape"),
        (changed("chains", "channels", "emission_bob", covariance=np.ones((2, 4, 1, 2, 1, 1))),
         "emission_bob has shape"),
    ],
)  # fmt: skip
def test_answers_that_do_not_fit_the_model_are_refused(
    found: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file: writing thirty takes seconds."""
    bound = bind(tables_alone() if "parameters" not in found else with_columns(), measured())
    result = FitResult(converged=True, reason="made by hand", **found)
    with pytest.raises(ValueError, match=told):
        check_answer(bound, result)


def test_a_file_of_other_tables_or_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "team.nc"
    made_by_hand(MODELS["plain"], demos(), rows={}).save(path)
    told = r"team\.nc: it holds the tables none, the model learns initial_ann, initial_bob, policy"
    with pytest.raises(ValueError, match=told):
        btil.load_posterior(path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        btil.load_posterior(tmp_path)
