"""The project itself: its rooms, its imports, its pinned versions, its two scripts."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from rooms import circle, imports

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "btil").rglob("*.py"))

# What each room may import of btil besides itself. A module of the package's own folder that is
# not a room (a small shared helper) imports no room and may be imported by all.
ROOMS = {
    "demonstrations": set(),
    "numerics": set(),
    "models": {"demonstrations"},
    "messages": {"demonstrations", "models"},
    "numpyro_forms": {"demonstrations", "models", "messages"},
    "inference": {"demonstrations", "models", "messages", "numpyro_forms"},
    "posterior": {"demonstrations", "models", "messages", "numpyro_forms", "inference"},
    "domains": {"demonstrations", "models"},
    "recordings": {"demonstrations", "domains"},
    "imitation": {"demonstrations", "models", "messages", "inference", "posterior", "domains"},
    "analysis": {
        "demonstrations",
        "models",
        "messages",
        "numpyro_forms",
        "inference",
        "posterior",
        "domains",
        "imitation",
    },
    "suggestion": {
        "demonstrations",
        "models",
        "messages",
        "inference",
        "posterior",
        "analysis",
    },
    "study": {"demonstrations", "models", "posterior", "domains", "analysis"},
    "cli": {
        "demonstrations",
        "models",
        "inference",
        "posterior",
        "domains",
        "imitation",
        "analysis",
        "study",
        "suggestion",
    },
    "__main__": {"cli"},
}


def run_python(code: str) -> str:
    """Run code in a fresh interpreter, free of this session's import hook; its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_modules(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it, type-checking ones too."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from btil import models` imports btil.models; a name that is no module is harmless.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str:
    """`btil.models.cpt` -> `models`; `btil` itself -> an empty text."""
    return ([*module.split("."), ""])[1]


# btil/__init__.py is left out: it is the list of all rooms' public names.
@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path != ROOT / "btil" / "__init__.py"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_imports_run_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "btil").parts[0].removesuffix(".py")
    wanted = {room_of(name) for name in imported_modules(path) if name.split(".")[0] == "btil"}
    allowed = ROOMS.get(room, set()) | {room} | ({"numerics"} if room in ROOMS else set())
    forbidden = {other for other in wanted if other in ROOMS} - allowed
    assert not forbidden, f"{room} imports {sorted(forbidden)}"


def test_no_circle_between_files() -> None:
    """Imports inside functions count; those for annotations alone do not."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    graph = imports(ROOT / "btil")
    assert len(graph) == len(MODULES)
    assert "btil.inference.stochastic" in graph["btil.inference.mfvi"]  # inside a function
    found = circle(graph)
    assert not found, " -> ".join(found)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_pickled(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert not roots & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


# Calls that run what a text or a file says.
RUNNING = {"eval", "exec", "compile", "__import__", "read_pickle", "to_pickle", "system", "popen"}
RUNNING |= {"unsafe_load", "full_load", "extractall", "unpack_archive"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_is_read_is_run(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        owner, _, name = text.rpartition(".")
        assert text == "re.compile" or name not in RUNNING, f"{path.name}:{node.lineno}: {text}"
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in ("load", "read_array") and owner in ("np", "numpy", "np.lib.format"):
            assert given.get("allow_pickle") == "False", f"{path.name}:{node.lineno}: {text}"
        assert given.get("allow_pickle", "False") == "False"
        assert given.get("shell", "False") == "False"


def test_the_pages_scripts_run_no_text() -> None:
    scripts = sorted((ROOT / "btil").rglob("*.js"))
    assert scripts
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"\beval\(|new Function|document\.write|insertAdjacentHTML", text)


def test_import_is_light_and_leaves_global_state_alone() -> None:
    heavy = ["jax", "numpyro", "funsor", "equinox", "optax", "pettingzoo", "gymnasium"]
    heavy += ["matplotlib", "arviz", "pandas", "pyarrow", "xarray"]
    found = json.loads(
        run_python(f"""
import json, os, random, sys, warnings
import numpy
before = (numpy.random.get_state()[1].tolist(), random.getstate(), numpy.geterr(),
          dict(os.environ), list(warnings.filters))
import btil
after = (numpy.random.get_state()[1].tolist(), random.getstate(), numpy.geterr(),
         dict(os.environ), list(warnings.filters))
print(json.dumps({{
    "heavy": [name for name in {heavy!r} if name in sys.modules],
    "untouched": before == after,
}}))
""")
    )
    assert found["heavy"] == []
    assert found["untouched"]


def test_the_first_fit_of_a_process_leaves_global_generators_alone() -> None:
    """Importing JAX, which the first fit does, draws from NumPy's."""
    found = run_python("""
import random, sys
import numpy
import btil
assert "jax" not in sys.modules
def state():
    name, keys, *rest = numpy.random.get_state()
    return keys.tolist(), rest, random.getstate()
before = state()
demos = btil.Demonstrations([0, 1], [0, 1], num_latents=1)
model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
btil.fit(model, demos, progress=False)
assert "jax" in sys.modules
print(state() == before)
""")
    assert found.strip() == "True"


def test_loading_every_public_name_leaves_jax_settings_alone() -> None:
    found = json.loads(
        run_python("""
import json
import jax, numpy
before = dict(jax.config.values), numpy.random.get_state()[1].tolist()
import btil
for name in dir(btil):
    getattr(btil, name)
after = dict(jax.config.values), numpy.random.get_state()[1].tolist()
print(json.dumps({"jax": before[0] == after[0], "numpy": before[1] == after[1]}))
""")
    )
    assert found == {"jax": True, "numpy": True}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_dependency_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {normalised(re.split(r"[^\w.-]", entry)[0]) for entry in required}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    loose = [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)]
    assert loose == []
    pinned = [normalised(pin.split("==")[0]) for pin in pins]
    assert len(pinned) == len(set(pinned))
    assert names - set(pinned) == set()
    assert not {"pip", "setuptools", "wheel", "btil"} & set(pinned)


def write_script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def pretend_python(path: Path, change: str = "pass") -> Path:
    """A Python that runs `change` before the code it is given with -c."""
    code = f"import sys; {change}; exec(sys.argv[2])"
    return write_script(path, f"exec '{sys.executable}' -c '{code}' \"$@\"")


@pytest.fixture
def find_python(tmp_path: Path):
    """Call scripts/find-python with a PATH and home of our own."""

    def call(*path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(ROOT / "scripts" / "find-python")],
            env={"PATH": ":".join(map(str, path)), "HOME": str(tmp_path), **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def assert_one_line_refusal(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("btil needs Python 3.12 or later")
    assert says in done.stderr


def test_missing_python_is_one_line(find_python, tmp_path: Path) -> None:
    assert_one_line_refusal(find_python(tmp_path / "nothing here"), "none was found")


def test_old_python_is_one_line_and_named(find_python, tmp_path: Path) -> None:
    pretend_python(tmp_path / "python3", "sys.version_info = (3, 11, 4)")
    assert_one_line_refusal(find_python(tmp_path), "is 3.11")


def test_python_without_ensurepip_is_one_line(find_python, tmp_path: Path) -> None:
    pretend_python(tmp_path / "python3", 'sys.modules["ensurepip"] = None')
    assert_one_line_refusal(find_python(tmp_path), "python3-venv")


def test_python_behind_a_refusing_shim_is_found(find_python, tmp_path: Path) -> None:
    shims, real = tmp_path / "shims", tmp_path / "real ones"
    write_script(shims / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    write_script(shims / "python3", "exit 127")
    pretend_python(real / "python3")
    done = find_python(shims, real)
    assert (done.returncode, done.stderr) == (0, "")
    base = getattr(sys, "_base_executable", sys.executable)
    assert os.path.samefile(done.stdout.strip(), base)


def test_named_python_comes_first(find_python, tmp_path: Path) -> None:
    pretend_python(tmp_path / "bin" / "python3.13", 'sys._base_executable = "/on/path"')
    named = pretend_python(tmp_path / "my python", 'sys._base_executable = "/named"')
    assert find_python(tmp_path / "bin", PYTHON=str(named)).stdout == "/named\n"
    assert find_python(tmp_path / "bin", PYTHON="/no/such/python").stdout == "/on/path\n"


def test_pyenv_versions_are_a_last_resort(find_python, tmp_path: Path) -> None:
    pretend_python(tmp_path / ".pyenv" / "versions" / "3.12.9" / "bin" / "python")
    done = find_python(tmp_path / "nothing here")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def checkout(tmp_path: Path):
    """`make setup` in a copy of the project, with a Python whose venv and pip only keep a log."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    root = tmp_path / "a checkout with spaces"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    log = tmp_path / "log"
    inner = f"""[ "$1" = -m ] && echo "$2" >>'{log}'
case "$*" in *"-m pip"*) [ ! -e '{tmp_path}/offline' ];; esac"""
    write_script(tmp_path / "inner", inner)
    outer = write_script(
        tmp_path / "python",
        f"""case "$*" in
-c*) echo "$0" ;;
*) echo "$2" >>'{log}'; rm -rf .venv; mkdir -p .venv/bin; cp '{tmp_path}/inner' .venv/bin/python ;;
esac""",
    )

    def setup(root: Path = root) -> tuple[int, list[str]]:
        log.write_text("")
        kept = {key: os.environ[key] for key in os.environ if not key.startswith("MAKE")}
        done = subprocess.run(
            ["make", "setup"],
            cwd=root,
            env={**kept, "PYTHON": str(outer)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, log.read_text().split()

    return root, setup


def test_second_run_does_not_set_up_again(checkout) -> None:
    _, setup = checkout
    assert setup() == (0, ["venv", "pip"])
    assert setup() == (0, [])


def test_changed_pins_are_installed_into_the_same_environment(checkout) -> None:
    root, setup = checkout
    setup()
    with (root / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert setup() == (0, ["pip"])
    assert setup() == (0, [])


def test_half_made_environment_is_made_anew(checkout, tmp_path: Path) -> None:
    root, setup = checkout
    (tmp_path / "offline").touch()
    assert setup() == (2, ["venv", "pip"])
    (tmp_path / "offline").unlink()
    assert setup() == (0, ["venv", "pip"])
    (root / ".venv" / "bin" / "python").unlink()
    assert setup() == (0, ["venv", "pip"])


def test_moved_environment_is_made_anew(checkout, tmp_path: Path) -> None:
    root, setup = checkout
    setup()
    moved = root.rename(tmp_path / "moved checkout")
    assert setup(moved) == (0, ["venv", "pip"])


def test_the_slow_tests_are_there() -> None:
    """What is listed as slow has its function: a name that was changed would make it quick."""
    functions = {
        f"{path.relative_to(ROOT / 'tests')}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    listed = (ROOT / "tests" / "slow_tests.txt").read_text(encoding="utf-8").splitlines()
    assert listed
    assert {name.split("[")[0] for name in listed} - functions == set()
