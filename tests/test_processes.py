"""Processes that learn together: the answer of one, whatever each of them has."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from side_by_side import all_at_once
from teams import hmm_model, random_demos, rich_model
from test_emission_batches import model as of_columns
from test_emission_batches import team as with_columns
from together import BATCHES, LENGTHS, OPTIONS, mesh_model, model, run_together
from typer.testing import CliRunner

import btil
from btil.cli import app
from btil.inference import processes, stochastic
from btil.inference.processes import ALONE, Processes
from btil.models.team import bind


def team(**options: Any) -> btil.Demonstrations:
    return random_demos(lengths=LENGTHS, labelled=0.3, seed=2, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The team in files of many row groups, and whole."""
    folder = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 4)
        (folder / "days").mkdir()
        for name, chosen in (("a", [0, 1, 2]), ("b", [3]), ("c", range(4, 12))):
            part = team().select(list(chosen))
            btil.write_demonstrations(part, folder / "days" / f"{name}.parquet")
        btil.write_demonstrations(team(), folder / "one.parquet")
        btil.write_demonstrations(team(), folder / "all.npz")
        yield folder


@pytest.fixture(scope="module")
def two(folder: Path) -> Path:
    """What two processes of two devices each have learned; starting them takes longest."""
    btil.write_demonstrations(meshed_team(), folder / "mesh.npz")
    for status, told in run_together(2, "fits mesh", folder, devices=2):
        assert status == 0, told
    return folder


class Three(NamedTuple):
    """What three processes have done: where their files are, and what each printed."""

    folder: Path
    told: list[str]


@pytest.fixture(scope="module")
def three(folder: Path) -> Three:
    few = team().select([3, 5, 9])
    btil.write_demonstrations(few.select([0, 1]), folder / "few.parquet")
    btil.write_demonstrations(with_columns(), folder / "columns.parquet")
    columns = {"x": [0, 1], "y": [1, 0], "action_ann": [0, 1], "action_bob": [1, 1]}
    columns |= {"latent_ann": [0, 1], "latent_bob": [0, 2]}
    cases = {"broken": ({}, {"x": [0, 77]}, {}), "twice": ({}, {}, {"episode": [0, 0]})}
    for name, changes in cases.items():
        (folder / name).mkdir()
        for number, changed in enumerate(changes):
            table = {"episode": [number, number], **columns, **changed}
            parquet.write_table(pa.table(table), folder / name / f"{number}.parquet")
    done = run_together(3, "few columns refused", folder)
    for status, told in done:
        assert status == 0, told
    return Three(folder, [told for _, told in done])


def meshed_team() -> btil.Demonstrations:
    return random_demos(seed=4, lengths=(5, 1, 4, 9, 2, 7, 3, 1, 1, 6), labelled=0.4)


def same_rows(found: btil.TeamPosterior, expected: btil.TeamPosterior, rtol: float) -> None:
    np.testing.assert_allclose(found.elbo_trace, expected.elbo_trace, rtol=rtol)
    assert set(found.result.rows) == set(expected.result.rows)
    for name, rows in expected.result.rows.items():
        np.testing.assert_allclose(
            found.result.rows[name].concentration, rows.concentration, rtol=rtol
        )


@pytest.mark.covers("several devices", "batches")
@pytest.mark.parametrize("devices", [2, 3])
def test_batches_on_several_devices(devices) -> None:
    one, several = (btil.fit(model(), team(), devices=number, **BATCHES) for number in (1, devices))
    same_rows(several, one, 1e-9)


def test_batches_of_families_on_several_devices() -> None:
    family = btil.TeamModel(policy=btil.HierarchicalDirichletCPT(parents=("x",)))
    one, several = (
        btil.fit(family, team(), devices=number, **{**BATCHES, "max_iterations": 3})
        for number in (1, 2)
    )
    np.testing.assert_allclose(several.elbo_trace, one.elbo_trace, rtol=1e-9)
    for site, normals in one.result.parameters.items():
        np.testing.assert_allclose(several.result.parameters[site].location, normals.location,
                                   rtol=1e-6, atol=1e-9)  # fmt: skip


def test_the_answer_is_that_of_one_process(two) -> None:
    one = btil.fit(model(), btil.open_demonstrations(two / "one.parquet"), **BATCHES)
    whole = btil.fit(model(), team(), **OPTIONS)
    for name, expected in (("folder", one), ("file", one), ("memory", one), ("whole", whole)):
        first, second = (btil.load_posterior(two / f"{name}-{k}.nc") for k in (0, 1))
        same_rows(first, expected, 1e-8)
        same_rows(second, first, 0.0)
        assert second.demos == first.demos
        assert first.demos == (team() if name == "memory" else expected.demos)


def test_devices_of_two_processes_give_the_answer_of_one(two) -> None:
    one = btil.fit(mesh_model(), meshed_team(), dtype=np.float64, progress=False)
    first, second = (btil.load_posterior(two / f"mesh-{k}.nc") for k in (0, 1))
    for name, rows in one.result.rows.items():
        np.testing.assert_array_equal(
            first.result.rows[name].concentration, second.result.rows[name].concentration
        )
        np.testing.assert_allclose(
            first.result.rows[name].concentration, rows.concentration, rtol=1e-9
        )
    np.testing.assert_allclose(first.elbo_trace, one.elbo_trace, rtol=1e-12)
    assert (two / "mesh.checkpoint").exists()


def test_columns_of_several_processes_are_learned_as_by_one(three, monkeypatch) -> None:
    """What priors leave open, units, patterns of blanks and the start are agreed on."""
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 9)
    options = {**OPTIONS, "batch_size": 3, "max_iterations": 6}
    one = btil.fit(of_columns(), with_columns(), **options)
    for name in ("columns-file", "columns-memory"):
        first, *others = (btil.load_posterior(three.folder / f"{name}-{k}.nc") for k in range(3))
        same_rows(first, one, 1e-7)
        for agent, context in (("ann", 0), ("ann", 1), ("bob", 0)):
            for mine, theirs in zip(
                first.emission(agent, context), one.emission(agent, context), strict=True
            ):
                np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
        for other in others:
            same_rows(other, first, 0.0)


def test_more_processes_than_episodes(three) -> None:
    file = btil.open_demonstrations(three.folder / "few.parquet")
    assert sorted(file.shard(3, k).num_episodes for k in range(3)) == [0, 1, 1]
    one = btil.fit(hmm_model(), file, batch_size=1, max_iterations=9, **OPTIONS)
    for k in range(3):
        same_rows(btil.load_posterior(three.folder / f"few-{k}.nc"), one, 1e-8)


def test_what_one_process_finds_ends_all(three) -> None:
    for told in three.told:
        broken, twice = told.strip().splitlines()[-2:]
        assert "1.parquet: x: episode 1, step 1: 77 is not allowed" in broken
        assert broken.startswith(("ValueError: ", "RuntimeError: process 1 of 3 failed: "))
        assert twice.startswith("ValueError: ")
        assert "0.parquet: episode: 0 returns in " in twice


def test_a_process_that_dies_ends_the_others_and_the_run_goes_on(folder) -> None:
    begun = time.monotonic()
    (status, told), (killed, _) = run_together(2, "killed", folder)
    assert killed == -9
    assert status != 0
    assert "start all of them again, with resume=True" in told
    assert time.monotonic() - begun < 120  # it did not wait for the one that is gone
    data = btil.open_demonstrations(folder / "days")
    path = folder / "run.checkpoint"
    assert path.exists()
    again = btil.fit(model(), data, checkpoint=path, resume=True, **BATCHES)
    same_rows(again, btil.fit(model(), data, **BATCHES), 1e-8)


def test_the_shell_under_slurm(folder) -> None:
    out, decoded = folder / "team.nc", folder / "decoded"
    words = ["--policy-parents", "x", "--transition-parents", "y", "--batch-size", "5", "--quiet"]
    words += ["--max-iterations", "3", "--dtype", "float64"]
    command = ["fit", str(folder / "days"), "--out", str(out), "--distributed", "auto", *words]
    (status, told), (other, silent) = run_together(2, command, folder)
    assert (status, other) == (0, 0), told + silent
    assert f"saved      {out}" in told
    assert "saved" not in silent
    shared = btil.TeamModel(btil.DirichletCPT(1.2, ("x",)), btil.DirichletCPT(1.01, ("y",)))
    file = btil.open_demonstrations(folder / "days")
    options = {"batch_size": 5, "max_iterations": 3, "dtype": "float64", "progress": False}
    found = btil.load_posterior(out)
    same_rows(found, btil.fit(shared, file, **options), 1e-8)
    command = ["decode", str(out), str(folder / "days"), "--out", str(decoded)]
    (status, told), (other, silent) = run_together(2, [*command, "--distributed", "auto"], folder)
    assert (status, other) == (0, 0), told + silent
    assert f"saved {decoded} ({sum(LENGTHS)} steps)" in told
    rows = sum(parquet.read_table(part).num_rows for part in decoded.iterdir())
    assert rows == sum(LENGTHS)


@pytest.mark.parametrize("given", ["here", "host,2,0", "host:x,2,0", "host:1,2,2", "host:1,2"])
def test_how_processes_find_each_other(given, folder) -> None:
    command = ["fit", str(folder / "days"), "--out", str(folder / "p.nc"), "--distributed", given]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "--distributed" in done.output


# ---------------------------------------------------------------------- without other processes


@pytest.mark.parametrize("number", [1, 2, 5, 30])
def test_episodes_are_shared_out_once(number) -> None:
    lengths = np.array(LENGTHS)
    shares = [stochastic._share(lengths, Processes(number, own)) for own in range(number)]
    owned = [np.arange(*share) for share in shares]
    np.testing.assert_array_equal(np.concatenate(owned), np.arange(len(lengths)))
    if number == 2:
        assert abs(lengths[owned[0]].sum() - lengths.sum() / 2) <= lengths.max() / 2


def test_a_long_episode_belongs_where_its_middle_falls() -> None:
    lengths = np.array([5, 1, 1, 1])
    assert [stochastic._share(lengths, Processes(2, own)) for own in (0, 1)] == [(0, 1), (1, 4)]


def test_what_is_told_of_a_batch_survives_the_way() -> None:
    bound = bind(rich_model(), team())
    data = stochastic.in_memory(bound, processes=Processes(2, 1))
    problem = stochastic.make_problem(data, 5, None, None, 0, np.dtype(np.float32))
    batch = stochastic.batch_of(problem, np.array([1, 9, 11]))
    assert stochastic.batch_of(problem, np.array([0, 1])) is None
    info = stochastic.look(stochastic.first_state(problem), batch, problem)
    alone = problem._replace(data=data._replace(processes=ALONE))
    for given in ((batch, info), (None, None)):
        (told,) = stochastic.tell(*given, alone)
        again = stochastic._from_bytes(stochastic._as_bytes(told), problem.prior)
        assert (again.log_evidence, again.steps) == (told.log_evidence, told.steps)
        for name, counts in told.counts.items():
            np.testing.assert_array_equal(again.counts[name], counts)
            np.testing.assert_array_equal(again.rows[name], told.rows[name])


def test_other_errors_stay_as_they_are(monkeypatch) -> None:
    def raised(error: Exception) -> None:
        with processes.ending_with_others():
            raise error

    with pytest.raises(ValueError, match="Gloo"):
        raised(ValueError("Gloo AllGather failed"))
    monkeypatch.setattr("jax.process_count", lambda: 3)
    with pytest.raises(RuntimeError, match="another of the 3 processes has ended"):
        raised(ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"))
    with pytest.raises(ValueError, match="batch_size"):
        raised(ValueError("batch_size must be"))


def gathered(monkeypatch: pytest.MonkeyPatch, work: list[Any]) -> list[Any]:
    """What `gather` gives each of several processes, or what it raises."""
    return all_at_once(monkeypatch, len(work), lambda own: processes.gather(own, work[own.own]))


def test_what_processes_make_comes_whole_and_in_their_order(monkeypatch) -> None:
    made = [np.arange(3 * size, dtype=np.int16).reshape(size, 3) for size in (2, 0, 400)]
    for found in gathered(monkeypatch, [lambda one=one: one for one in made]):
        for one, other in zip(found, made, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_who_fails_raises_that_and_others_say_who_it_was(monkeypatch) -> None:
    def fails() -> np.ndarray:
        raise ValueError("no row 7")

    found = gathered(monkeypatch, [lambda: np.zeros(2), fails, lambda: np.ones(5)])
    assert isinstance(found[1], ValueError)
    for one in (found[0], found[2]):
        assert isinstance(one, RuntimeError)
        assert str(one) == "process 1 of 3 failed: no row 7"


def test_one_process_adds_up_nothing() -> None:
    made = {"a": np.arange(3.0), "b": np.ones((2, 2))}
    found = processes.add_up(ALONE, lambda: made)
    assert set(found) == {"a", "b"}
    for name, values in made.items():
        np.testing.assert_array_equal(found[name], values)
    assert processes.gather_bytes(ALONE, lambda: b"ab\0c") == [b"ab\0c"]
