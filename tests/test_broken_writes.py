"""Writing that fails or is interrupted: told by name, the old file stays, nothing else is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import btil
from btil.analysis.output import staged_page
from btil.cli import app
from btil.files import check_writable, replacing

# A child whose files may have so few bytes: the kernel refuses to write on, as on a full disk.
# Python would keep what it could write of a module that it compiles meanwhile.
FULL_DISK = """
import json, resource, sys
sys.dont_write_bytecode = True
from pathlib import Path
import numpy as np
import btil
from btil.analysis.decoding import decoded_table, write_table
from btil.analysis.output import save_figure, staged_page
from btil.analysis.reproduction.records import write_record
from btil.domains.gridworld import pictures
from btil.figures import new_figure
from btil.inference.result import DirichletRows, FitResult
from btil.models.team import bind
from btil.study.export import _write_csv

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
demos = btil.Demonstrations(
    rng.integers(0, 99, 5000), rng.integers(0, 99, (5000, 2)), num_latents=2, num_states=99
)
bound = bind(btil.TeamModel(), demos)
rows = {s: DirichletRows(rng.gamma(1.0, 1.0, t.shape)) for s, t in bound.learned.items()}
result = FitResult(rows, True, "made by hand")
posterior = btil.TeamPosterior(bound, "mfvi", result, 0, np.dtype(float), 1.0)
table = decoded_table(demos, np.zeros((5000, 2), int))
figure = new_figure(8, 8)
figure.add_subplot().plot(rng.random(9000))
task = btil.domains.movers(map="tiny")
played = task.simulate(1, seed=0)

def page(path):
    with staged_page(path.parent, path.name, ".list") as staging:
        (staging / path.name).write_text("x" * 99_999)

writers = {
    "demos.csv": lambda path: btil.write_demonstrations(demos, path),
    "demos.parquet": lambda path: btil.write_demonstrations(demos, path),
    "demos.npz": lambda path: btil.write_demonstrations(demos, path),
    "posterior.nc": posterior.save,
    "table.csv": lambda path: write_table(table, path),
    "table.parquet": lambda path: write_table(table, path),
    "table.npz": lambda path: write_table(table, path),
    "figure.svg": lambda path: save_figure(figure, path.with_suffix("")),
    "page.html": page,
    "record.json": lambda path: write_record(path, "x", {}, {"x": list(range(9999))}),
    "film.gif": lambda path: pictures.animate_episode(task, played, 0, path),
    "answers.csv": lambda path: _write_csv(path, ("x",), ([k] for k in range(99_999))),
}
told = {}
for name, write in writers.items():
    path = folder / name
    path.write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
    try:
        write(path)
    except Exception as error:
        told[name] = [type(error).__name__, getattr(error, "filename", None), str(error)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK, str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, json.loads(done.stdout)


WRITERS = [line.split('"')[1] for line in FULL_DISK.splitlines() if line.startswith('    "')]


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_told_by_the_name_of_the_file(full_disk, name):
    folder, told = full_disk
    kind, filename, text = told[name]
    # What is staged for a page may be many files: its folder is named.
    expected = folder if name == "page.html" else folder / name
    assert (kind, filename) == ("OSError", str(expected))
    assert "File too large" in text
    assert (folder / name).read_text() == "old"


def test_a_full_disk_leaves_nothing_else_behind(full_disk):
    folder, told = full_disk
    assert sorted(told) == sorted(WRITERS)
    assert sorted(file.name for file in folder.iterdir()) == sorted(WRITERS)


def fail_in(opened, error):
    """Write what there is to write, and then no more."""
    with opened as new:
        (new / "page.html" if new.is_dir() else new).write_text("new")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, MemoryError])
def test_an_interruption_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(error):
        fail_in(replacing(path), error)
    with pytest.raises(error):
        fail_in(staged_page(tmp_path, path.name, ".list"), error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_about_other_files_are_left_as_they_are(tmp_path):
    path = tmp_path / "table.csv"
    with pytest.raises(FileNotFoundError) as told, replacing(path):
        (tmp_path / "source.csv").read_text()
    assert told.value.filename == str(tmp_path / "source.csv")


def test_libraries_that_tell_the_hidden_name_tell_the_real_one(tmp_path):
    path = tmp_path / "table.csv"
    with (
        pytest.raises(OSError, match=r"table\.csv: cannot fill .*table\.csv$"),
        replacing(path) as new,
    ):
        raise OSError(f"cannot fill {new}")


def test_contents_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(os.fstat(descriptor).st_size))
    rename = Path.replace

    def renamed(self, target):
        done.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", renamed)
    with replacing(tmp_path / "table.csv") as temporary:
        temporary.write_text("four")
    assert done[:2] == [4, "renamed"]


DEMOS = btil.Demonstrations([0, 1], [0, 1], num_latents=2)
NOWHERE = {
    "a folder": ("there.csv", IsADirectoryError),
    "no folder": ("none/table.csv", FileNotFoundError),
    "a file for a folder": ("file/table.csv", NotADirectoryError),
    "a long name": (f"{'x' * 300}.csv", OSError),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_places_that_cannot_be_written_are_named(case, tmp_path):
    name, kind = NOWHERE[case]
    (tmp_path / "there.csv").mkdir()
    (tmp_path / "file").write_text("old")
    path = tmp_path / name
    with pytest.raises(kind) as told:
        btil.write_demonstrations(DEMOS, path)
    assert told.value.filename == str(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "there.csv"]
    with pytest.raises(OSError, match=name.split("/")[-1]):
        check_writable(path, (".csv",))
    result = CliRunner().invoke(
        app, ["simulate", "movers", "--num-episodes", "1", "--out", str(path)]
    )
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert str(path) in result.stderr


def test_a_page_moves_nothing_where_a_folder_has_a_name_of_its_files(tmp_path):
    (tmp_path / "page.html").mkdir()
    (tmp_path / "table.csv").write_text("old")

    def publish():
        with staged_page(tmp_path, "page.html", ".list") as staging:
            for name in ("page.html", "table.csv"):
                (staging / name).write_text("new")

    with pytest.raises(IsADirectoryError, match=r"page\.html"):
        publish()
    assert (tmp_path / "table.csv").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["page.html", "table.csv"]


def test_long_work_that_is_interrupted_says_what_is_kept(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("btil.analysis.reproduction.reproduce", interrupt)
    out = tmp_path / "results"
    result = CliRunner().invoke(app, ["reproduce", "table1", "--quick", "--out", str(out)])
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == (
        f"interrupted; what is complete is kept in {out}; the same command goes on from there\n"
    )
