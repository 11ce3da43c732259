"""Posteriors on disk: what is loaded answers as what was saved, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import xarray
from teams import made_by_hand

import btil
from btil.inference.result import DirichletRows, FitResult, MatrixNormalChannel
from btil.models.team import bind, with_contexts

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
