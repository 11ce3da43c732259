"""Work spread over devices and processes: the answer of one device, to rounding.

`conftest.py` lets the CPU count as four devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teams import hmm_model, random_demos, rich_model
from typer.testing import CliRunner

import btil
from btil.cli import app
from btil.inference.devices import (
    SPLIT,
    make_mesh,
    place_episodes,
    provide_devices,
    split_chains,
)

SHARED = btil.TeamModel(
    policy=btil.Shared(btil.DirichletCPT(0.7, parents=("x",))),
    transition=btil.Shared(btil.DirichletCPT(0.9, parents=("own_action",))),
)
# Fewer episodes than devices, as many, and more; unequal lengths.
LENGTHS = [(3, 1, 2), (4, 1, 2, 3), (5, 1, 4, 9, 2, 7, 3, 1, 1, 6)]


def team(lengths):
    return random_demos(seed=4, lengths=lengths, labelled=0.4)


@pytest.mark.covers("several devices", "mfvi")
@pytest.mark.parametrize(
    ("lengths", "devices"), [(LENGTHS[0], 4), (LENGTHS[1], 2), (LENGTHS[2], 3)]
)
def test_mean_field_on_several_devices(lengths, devices):
    demos = team(lengths)
    one, several = (
        btil.fit(rich_model(), demos, dtype=np.float64, progress=False, devices=number)
        for number in (None, devices)
    )
    np.testing.assert_allclose(several.elbo_trace, one.elbo_trace, rtol=1e-12)
    for name, rows in one.result.rows.items():
        np.testing.assert_allclose(
            several.result.rows[name].concentration, rows.concentration, rtol=1e-9
        )


def test_shared_tables_and_single_precision():
    demos = random_demos(num_latents=(2, 2), num_actions=(3, 3), lengths=LENGTHS[2], labelled=0.4)
    one, several = (
        btil.fit(SHARED, demos, dtype=np.float32, progress=False, devices=number)
        for number in (1, 4)
    )
    assert several.elbo == pytest.approx(one.elbo, rel=1e-5)
    for name, rows in one.result.rows.items():
        np.testing.assert_allclose(several.result.rows[name].mean(), rows.mean(), atol=2e-3)


@pytest.mark.covers("several devices", "nuts")
def test_chains_of_nuts_on_several_devices():
    options = {"num_warmup": 10, "num_samples": 6, "max_tree_depth": 3}
    one, several = (
        btil.fit(
            hmm_model(),
            random_demos(lengths=(3, 1), num_latents=(2,), num_actions=(3,)),
            "nuts",
            progress=False,
            devices=number,
            **options,
        )
        for number in (None, 2)
    )
    for name, rows in one.result.rows.items():
        np.testing.assert_allclose(several.result.rows[name].draws, rows.draws, rtol=1e-6)
    np.testing.assert_array_equal(
        several.result.sample_stats["num_steps"], one.result.sample_stats["num_steps"]
    )


@pytest.mark.covers("several devices", "svi")
def test_svi_on_several_devices():
    demos = random_demos(seed=4, lengths=LENGTHS[2], num_latents=(2,), num_actions=(3,))
    model = btil.TeamModel(btil.DirichletCPT(0.7, ("x",)), btil.DirichletCPT(0.9, ("y",)))
    one, several = (
        btil.fit(model, demos, "svi", progress=False, devices=n, max_iterations=9, dtype="float64")
        for n in (None, 3)
    )
    np.testing.assert_allclose(several.elbo_trace, one.elbo_trace, rtol=1e-9)
    np.testing.assert_allclose(several.elbo, one.elbo, rtol=1e-9)
    for name, rows in one.result.rows.items():
        np.testing.assert_allclose(several.result.rows[name].mean(), rows.mean(), rtol=1e-7)


@pytest.mark.covers("several devices", "gibbs")
@pytest.mark.parametrize("keep_rows", [None, 1])
def test_chains_of_gibbs_on_several_devices(keep_rows):
    demos = team(LENGTHS[0])
    one, several = (
        btil.fit(
            rich_model(),
            demos,
            "gibbs",
            progress=False,
            num_warmup=3,
            num_samples=6,
            dtype=np.float64,
            devices=number,
            keep_rows=keep_rows,
        )
        for number in (None, 2)
    )
    for name, rows in one.result.rows.items():
        np.testing.assert_allclose(several.result.rows[name].draws, rows.draws, rtol=1e-6)
        np.testing.assert_allclose(several.result.rows[name].mean(), rows.mean(), rtol=1e-6)


def test_a_fit_goes_on_on_another_number_of_devices(tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    demos = team(LENGTHS[2])
    options = {"dtype": np.float64, "progress": False, "tolerance": 1e-12, "max_iterations": 45}
    btil.fit(rich_model(), demos, devices=2, checkpoint=path, **options)
    again = btil.fit(rich_model(), demos, devices=3, checkpoint=path, resume=True, **options)
    one = btil.fit(rich_model(), demos, **options)
    assert again.elbo == pytest.approx(one.elbo, rel=1e-12)


@pytest.mark.parametrize("devices", [0, -1, 5, True])
def test_a_wrong_number_of_devices_is_refused(devices):
    with pytest.raises(ValueError, match="devices must be"):
        btil.fit(rich_model(), team((3, 1)), progress=False, devices=devices)


def test_chains_that_devices_cannot_share_are_refused():
    with pytest.raises(ValueError, match="num_chains must be a multiple of devices=3, got 4"):
        btil.fit(rich_model(), team((3, 1)), "nuts", progress=False, devices=3)


@pytest.mark.refuses("several devices", "exact", "refined", remedy="they run on one")
def test_methods_of_one_device():
    for method in ("exact", "refined"):
        with pytest.raises(TypeError, match=f"{method} has no option 'devices'; it has"):
            btil.fit(rich_model(), team((3, 1)), method, progress=False, devices=2)


def test_a_mesh_of_one_device_is_none():
    assert make_mesh(None) is None
    assert make_mesh(1) is None
    assert make_mesh(4).devices.tolist() == jax.devices()


def test_episodes_of_zeros_let_devices_have_equally_many():
    episodes = {"moves": np.arange(10.0).reshape(5, 2), "lengths": np.arange(1, 6)}
    for devices, number in ((2, 6), (4, 8)):
        laid = place_episodes(episodes, make_mesh(devices))
        for name, whole in episodes.items():
            found = np.asarray(laid[name])
            assert found.shape == (number, *whole.shape[1:])
            np.testing.assert_array_equal(found[:5], whole)
            assert not found[5:].any()
            assert len(laid[name].sharding.device_set) == devices
    assert place_episodes(episodes, None) is episodes
    even = place_episodes(np.ones((4, 3)), make_mesh(2))
    assert even.shape == (4, 3)


def test_every_device_runs_its_own_chains_with_all_that_is_common():
    def of_chains(chains, common):
        return jnp.cumsum(chains, axis=0) + common.sum()

    chains, common = np.arange(4.0), np.array([10.0, 20.0, 30.0])
    assert split_chains(of_chains, None, SPLIT) is of_chains
    found = split_chains(of_chains, make_mesh(2), SPLIT)(chains, common)
    np.testing.assert_array_equal(found, 60 + np.array([0, 1, 2, 5]))


def test_commands_provide_devices_where_that_is_open(monkeypatch):
    asked = []
    monkeypatch.setattr(jax.config, "update", lambda *given: asked.append(given))
    provide_devices(3)
    assert not asked  # the environment says how many
    monkeypatch.delenv("XLA_FLAGS")
    provide_devices(3)
    assert asked == [("jax_num_cpu_devices", 3)]
    with pytest.raises(ValueError, match="devices"):
        provide_devices(0)


def test_from_a_shell(tmp_path):
    table, out = tmp_path / "team.csv", tmp_path / "team.nc"
    demos = team(LENGTHS[2])
    btil.write_demonstrations(demos, table)
    done = CliRunner().invoke(
        app, ["fit", str(table), "--out", str(out), "--devices", "4", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    one = btil.fit(btil.TeamModel(), demos, progress=False)
    assert btil.load_posterior(out).elbo == pytest.approx(one.elbo, rel=1e-5)
