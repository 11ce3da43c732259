"""Nothing is lost: a stopped or killed run goes on to the bits of a run of one piece."""

import errno
import functools
import inspect
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pytest
from killed_runs import OPTIONS, run
from numpyro import distributions as dist
from teams import hmm_model, random_demos, rich_model
from typer.testing import CliRunner

import btil
from btil.cli import app
from btil.inference import checkpoint
from btil.models.team import bind

METHODS = tuple(OPTIONS)
# BTIL_KILLS=20 is for those who change how checkpoints are written: it takes a minute and a half.
KILLS = int(os.environ.get("BTIL_KILLS", "6"))


@pytest.fixture(scope="module")
def whole() -> dict[str, btil.TeamPosterior]:
    """Runs of one piece, made when they are asked for."""

    class Runs(dict):
        def __missing__(self, method):
            self[method] = run(method)
            return self[method]

    return Runs()


@pytest.fixture
def at_every_block(monkeypatch):
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_TIMES_A_WRITE", 0.0)


def assert_same_bits(posterior, expected):
    found, wanted = posterior.result, expected.result
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(left, right)


class Stopped(Exception):
    pass


def stop_after(monkeypatch, blocks):
    """Make the run stop when it has handed over its progress so many times."""
    offer, count = checkpoint.Checkpoint.offer, 0

    def stopping(self, **progress):
        nonlocal count
        offer(self, **progress)
        count += 1
        if count == blocks:
            raise Stopped

    monkeypatch.setattr(checkpoint.Checkpoint, "offer", stopping)


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_run_goes_on_to_the_same_bits(method, whole, tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    for blocks in (1,) if method == "exact" else (1, 2):
        with monkeypatch.context() as patch:
            stop_after(patch, blocks)
            with pytest.raises(Stopped) as stopped:
                run(method, checkpoint=path, resume=True)
            assert "resume=True" in stopped.value.__notes__[0]
    assert_same_bits(run(method, checkpoint=path, resume=True), whole[method])
    # The run has ended: nothing is left to be done.
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        assert_same_bits(run(method, checkpoint=path, resume=True), whole[method])


def test_nothing_is_written_more_often_than_it_pays(whole, tmp_path, monkeypatch):
    writes = []
    monkeypatch.setattr(
        checkpoint.Checkpoint,
        "write",
        lambda self, write=checkpoint.Checkpoint.write: (writes.append(1), write(self)),
    )
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 1000.0)
    posterior = run("gibbs", checkpoint=tmp_path / "run.checkpoint")
    assert len(writes) == 2  # the first block, and the end
    assert_same_bits(posterior, whole["gibbs"])


@pytest.mark.parametrize(("took", "wait"), [(0.01, 2.0), (5.0, 100.0)])
def test_writing_takes_a_twentieth_of_the_time_at_most(took, wait, tmp_path, monkeypatch):
    """The next one comes two seconds later, or twenty times what this one took."""
    now = [1000.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    real = np.savez

    def slow(*arguments, **arrays):
        now[0] += took
        real(*arguments, **arrays)

    monkeypatch.setattr(np, "savez", slow)
    own = checkpoint.Checkpoint(tmp_path / "run", {"method": "made up"})
    own.offer(number=np.array(1))

    def written():
        with np.load(tmp_path / "run") as archive:
            return int(archive["number:0"])

    end = now[0]
    for later, number, expected in ((0.99, 2, 1), (1.01, 3, 3)):
        now[0] = end + later * wait
        own.offer(number=np.array(number))
        assert written() == expected


def killed(method, path, blocks=None, seconds=0.0, write=None):
    """Run in a process of its own and kill it, some time after a block of work or in a write."""
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": f"{here}{os.pathsep}{here.parent}",
        # They read the programs of this process, and write none that might be cut.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
    }
    arguments = [sys.executable, here / "killed_runs.py", method, path]
    if write is not None:
        arguments.append(str(write))
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        if write is None:
            for _ in range(blocks):
                assert process.stdout.readline() == b"block\n", process.stderr.read()
            time.sleep(seconds)
            process.kill()
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, complaints.decode()


def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path):
    """Killed at random moments, some of them in the middle of writing."""
    generator = np.random.default_rng(0)
    kept = 0
    for method in ("nuts", "exact", "mfvi", "gibbs"):
        assert whole[method].converged is not None  # compiled, for all processes
    for number in range(KILLS):
        method = ("nuts", "exact", "mfvi", "gibbs")[number if number < 2 else 2 + number % 2]
        path = tmp_path / f"{method}.checkpoint"
        if number >= KILLS - 2:
            killed(method, path, write=int(generator.integers(2, 6)))
            assert path.exists()  # the write before, whole
        else:
            # A block takes some milliseconds, a write one or two.
            killed(method, path, int(generator.integers(1, 12)), generator.uniform(0, 0.02))
        if path.exists():
            kept += 1
            if number % 3:
                continue  # killed once more, from there
        assert_same_bits(run(method, checkpoint=path, resume=True), whole[method])
        path.unlink()
    assert kept > KILLS // 2


# ---------------------------------------------------------------------- what is refused


def small_run(path, **changes):
    arguments = {"method": "exact", "seed": 0, "model": rich_model(), "dtype": None} | changes
    demos = arguments.pop("demos", random_demos(lengths=(3, 1)))
    return btil.fit(
        arguments.pop("model"), demos, progress=False, checkpoint=path, resume=True, **arguments
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "mfvi"}, "method: exact there, mfvi here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"max_sequences": 10_000}, "max_sequences: 1000000 there, 10000 here"),
        ({"model": hmm_model()}, "model: "),
        ({"model": btil.TeamModel(transition=btil.DirichletCPT(0.9))}, "model: "),
        ({"demos": random_demos(lengths=(1, 3))}, "demonstrations: "),
        ({"demos": random_demos(lengths=(3, 1)).without_labels()}, "demonstrations: "),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(changes, named, tmp_path):
    path = tmp_path / "run.checkpoint"
    small_run(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="checkpoint of another run") as refused:
        small_run(path, **changes)
    assert named in str(refused.value)
    assert path.read_bytes() == before


def policy_over(parent, family=btil.DirichletCPT):
    return btil.TeamModel(family(0.7, parents=(parent,)), btil.DirichletCPT(0.9))


def with_transition(cpt):
    return btil.TeamModel(btil.DirichletCPT(0.7), cpt)


def softmax_of(power):
    return btil.SoftmaxCPT(
        parents=("x",), features=lambda contexts: contexts["x"][:, None] ** power
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Both are seen to be 0 and 1, so that nothing but the name tells them apart.
        (policy_over("x"), policy_over("y")),
        (
            policy_over("x", btil.HierarchicalDirichletCPT),
            policy_over("y", btil.HierarchicalDirichletCPT),
        ),
        (
            with_transition(btil.StickBreakingCPT(strength=5.0)),
            with_transition(btil.StickBreakingCPT(strength=500.0)),
        ),
        (btil.TeamModel(softmax_of(1)), btil.TeamModel(softmax_of(2))),
    ],
)
def test_models_that_look_alike_are_told_apart(one, other):
    demos = random_demos(lengths=(8, 5, 9), labelled=0.3, num_actions=(3, 3), num_states=(2, 2))
    runs = [
        checkpoint.describe_run(bind(model, demos), "mfvi", 0, np.dtype(np.float32), {})
        for model in (one, other)
    ]
    assert runs[0]["model"] != runs[1]["model"]
    again = checkpoint.describe_run(bind(one, demos), "mfvi", 0, np.dtype(np.float32), {})
    assert again == runs[0]


class Rate:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, data):
        return self.rate


def rate_of(rate):
    return lambda data: rate


def inside_itself(rate):
    """A list that holds itself."""
    found = [rate]
    found.append(found)
    return found


def kind_of(wrap, rate):
    """A class of the user's own, a method of which reads a number."""

    class Kind:
        method = wrap(lambda *_: rate)

    return Kind


def scaled(data, rate=1):
    return rate


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({"a": [1, 12]}, {"a": [1, 12]}, {"a": [11, 2]}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}),
        (["1"], ["1"], [1]),
        ([[1], [2]], [[1], [2]], [[1, 2]]),
        (np.arange(4.0), np.arange(4.0), np.arange(4.0).reshape(2, 2)),
        (np.int64(3), 3, 4),
        (rate_of(2), rate_of(2), rate_of(200)),
        (Rate(2), Rate(2), Rate(200)),
        (functools.partial(scaled, rate=2), functools.partial(scaled, rate=2), scaled),
        (dist.Gamma(2.0, 1.0), dist.Gamma(2.0, 1.0), dist.Gamma(2.0, 3.0)),
        (rate_of(np.arange(3)), rate_of(np.arange(3)), rate_of(np.arange(3) + 1)),
        (rate_of(rate_of(jax)), rate_of(rate_of(jax)), rate_of(rate_of(np))),
        (np.array([1, "a"], object), np.array([1, "a"], object), np.array([1, "b"], object)),
        (np.array([[1, 2]], object), np.array([[1, 2]], object), np.array([[1], [2]], object)),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (inspect.getdoc, inspect.getdoc, inspect.getfile),
        (itertools.count, itertools.count, itertools.cycle),
        ({1, "b"}, {"b", 1}, {1, "c"}),
        (inside_itself(1), inside_itself(1), inside_itself(2)),
        *(
            (kind_of(wrap, 2), kind_of(wrap, 2), kind_of(wrap, 3))
            for wrap in (staticmethod, classmethod, property)
        ),
    ],
)
def test_checksums_tell_apart_what_differs(one, same, other):
    assert checkpoint._digest(one) == checkpoint._digest(same)
    assert checkpoint._digest(one) != checkpoint._digest(other)


def test_numpys_numbers_are_the_same_options():
    assert checkpoint._told(np.int64(3)) == checkpoint._told(3)
    assert checkpoint._told(np.float64(1e-9)) == checkpoint._told(1e-9)


def test_of_another_method_only_that_is_told(tmp_path):
    path = tmp_path / "run.checkpoint"
    small_run(path)
    with pytest.raises(ValueError, match=r"another run \(method: exact there, mfvi here\)$"):
        small_run(path, method="mfvi")


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "run.checkpoint", tmp_path / "link"
    link.symlink_to(target)
    expected = small_run(link)
    assert link.is_symlink()
    assert target.is_file()
    assert_same_bits(small_run(link), expected)


def test_two_runs_do_not_begin_one_file(tmp_path):
    path = tmp_path / "run.checkpoint"
    first, second = (checkpoint.Checkpoint(path, {}, resume=True) for _ in range(2))
    first.offer(done=1)
    with pytest.raises(FileExistsError, match="another run"):
        second.offer(done=2)
    assert int(checkpoint.Checkpoint(path, {}, resume=True).saved.array("done")) == 1


def test_a_disk_full_at_the_end_does_not_lose_the_answer(whole, tmp_path, monkeypatch):
    save, count = np.savez, 0

    def full(handle, **arrays):
        nonlocal count
        count += 1
        if count > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(handle, **arrays)

    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.warns(UserWarning, match="could not be written"):
        posterior = run("gibbs", checkpoint=tmp_path / "run.checkpoint")
    assert_same_bits(posterior, whole["gibbs"])


def test_damage_is_refused_wherever_it_is(tmp_path):
    path = tmp_path / "run.checkpoint"
    expected = small_run(path)
    good = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = believed = 0
    for number in range(150):
        damaged = bytearray(good)
        if number % 3 == 0:
            del damaged[generator.integers(len(good)) :]
        elif number % 3 == 1:
            damaged[generator.integers(len(good))] ^= 1 << generator.integers(8)
        else:
            damaged[generator.integers(len(good)) :] = generator.bytes(50)
        path.write_bytes(damaged)
        try:
            # A bit that says when the archive was made may be any.
            found = small_run(path)
        except ValueError as error:
            refused += "is not a checkpoint of btil, or is damaged" in str(error)
        else:
            assert_same_bits(found, expected)
            believed += 1
    assert refused + believed == 150
    assert refused > 100


@pytest.mark.parametrize("foreign", ["text", "empty", "posterior", "demonstrations", "arrays"])
def test_foreign_files_are_refused(foreign, tmp_path):
    path = tmp_path / f"run.{'npz' if foreign == 'demonstrations' else 'nc'}"
    if foreign == "posterior":
        small_run(tmp_path / "other").save(path)
    elif foreign == "demonstrations":
        btil.write_demonstrations(random_demos(), path)
    elif foreign == "arrays":
        with path.open("wb") as handle:
            np.savez(handle, run=np.array([object()], object))
    else:
        path.write_text("state,action\n" if foreign == "text" else "")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is not a checkpoint of btil, or is damaged"):
        small_run(path)
    assert path.read_bytes() == before


def test_an_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "run.checkpoint"
    path.write_text("a day of work")
    with pytest.raises(FileExistsError, match="resume=True"):
        btil.fit(hmm_model(), random_demos(), "exact", progress=False, checkpoint=path)
    assert path.read_text() == "a day of work"


def test_resuming_needs_a_place():
    with pytest.raises(ValueError, match="checkpoint=PATH"):
        btil.fit(hmm_model(), random_demos(), progress=False, resume=True)


def test_from_a_shell(tmp_path):
    table, out, path = (str(tmp_path / name) for name in ("t.csv", "t.nc", "t.checkpoint"))
    btil.write_demonstrations(random_demos(), table)

    def shell(*more):
        return CliRunner().invoke(app, ["fit", table, "--out", out, "--quiet", *more])

    assert shell("--checkpoint", path).exit_code == 0
    again = shell("--checkpoint", path)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    assert shell("--checkpoint", path, "--resume").exit_code == 0
    assert "two files" in shell("--checkpoint", out).stderr
    assert "--checkpoint FILE" in shell("--resume").stderr


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        small_run(tmp_path / "none" / "run.checkpoint")
    with pytest.raises(IsADirectoryError):
        small_run(tmp_path)


def test_a_disk_that_fills_up_does_not_end_a_run(whole, tmp_path, monkeypatch, at_every_block):
    path = tmp_path / "run.checkpoint"
    save, count = np.savez, 0

    def full(handle, **arrays):
        nonlocal count
        count += 1
        if 1 < count < 4:
            handle.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(handle, **arrays)

    monkeypatch.setattr(checkpoint.np, "savez", full)
    monkeypatch.setattr(checkpoint, "_SECONDS_TO_RETRY", 0.0)
    with pytest.warns(UserWarning, match=r"run.checkpoint could not be written .No space left"):
        posterior = run("gibbs", checkpoint=path)
    assert_same_bits(posterior, whole["gibbs"])
    assert [file.name for file in tmp_path.iterdir()] == ["run.checkpoint"]
    assert_same_bits(run("gibbs", checkpoint=path, resume=True), whole["gibbs"])


def test_a_disk_full_from_the_start_is_told_before_the_work(tmp_path, monkeypatch):
    def full(handle, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        run("gibbs", checkpoint=tmp_path / "run.checkpoint")
    assert not list(tmp_path.iterdir())


def test_interrupted_from_the_keyboard(whole, tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 1000.0)
    offer, count = checkpoint.Checkpoint.offer, 0

    def interrupted(self, **progress):
        nonlocal count
        offer(self, **progress)
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "offer", interrupted)
        with pytest.raises(KeyboardInterrupt) as error:
            run("gibbs", checkpoint=path)
    assert str(path) in error.value.__notes__[0]
    # What was done last is there, though it was not yet time to write it.
    with np.load(path) as archive:
        assert int(archive["iterations:0"]) > 60
    assert_same_bits(run("gibbs", checkpoint=path, resume=True), whole["gibbs"])


def test_a_run_under_other_versions_goes_on_with_a_warning(tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    expected = small_run(path)
    versions = checkpoint._versions()
    monkeypatch.setattr(checkpoint, "_versions", lambda: versions | {"jax": "99.0"})
    with pytest.warns(UserWarning, match=r"jax .*, now 99.0"):
        assert_same_bits(small_run(path), expected)


def test_an_own_model_goes_on_too(tmp_path, monkeypatch):
    def patience(data):
        stay = numpyro.sample("stay", dist.Beta(2, 2))
        skill = numpyro.sample("skill", dist.Beta(2, 2))
        move = stay * jnp.eye(2) + (1 - stay) / 2
        act = skill * jnp.eye(2) + (1 - skill) / 2
        for agent in data.agents:
            data.observe(agent, jnp.log(jnp.full(2, 0.5)), jnp.log(move), jnp.log(act))

    demos = random_demos(num_latents=(2,), num_actions=(2,))
    path = tmp_path / "run.checkpoint"

    def fit(**more):
        schedule = {"num_chains": 2, "num_warmup": 15, "num_samples": 15, "max_tree_depth": 3}
        model = btil.NumpyroModel(patience)
        return btil.fit(model, demos, "nuts", progress=False, **schedule, **more)

    expected = fit()
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            fit(checkpoint=path)
    assert_same_bits(fit(checkpoint=path, resume=True), expected)


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mfvi", {"num_restarts": 6, "tolerance": 1e-12, "max_iterations": 100}),
        ("gibbs", {"num_chains": 2, "num_warmup": 0, "num_samples": 700, "keep_rows": 1}),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_long_runs_do_not_grow_in_memory(method, options, tmp_path, monkeypatch, at_every_block):
    sizes = []
    offer = checkpoint.Checkpoint.offer

    def measured(self, **progress):
        offer(self, **progress)
        on_device = jax.live_arrays()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sizes.append((len(on_device), sum(array.nbytes for array in on_device), pages))

    monkeypatch.setattr(checkpoint.Checkpoint, "offer", measured)
    fit_options = {"progress": False, "checkpoint": tmp_path / "run"} | options
    btil.fit(rich_model(), random_demos(), method, **fit_options)
    assert len(sizes) > 25
    arrays, on_device, pages = np.array(sizes[5:]).T
    middle = len(arrays) // 2
    assert arrays[middle:].max() <= arrays[:middle].max()
    assert on_device[middle:].max() <= on_device[:middle].max()
    assert (pages[middle:].max() - pages[:middle].max()) * 4096 < 10e6
