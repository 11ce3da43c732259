"""Every Python block of the README and of docs/ runs as it is printed, page by page, in order.

What takes long is done in little: few sweeps, draws and simulations, so that the blocks run and the
numbers mean nothing. Commands of a shell are looked at: they exist, and so do their options.
"""

import contextlib
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_pages
import typer
from little import do_little

import btil
from btil.cli import app

ROOT = Path(__file__).resolve().parents[1]
# What is made from the code as the site is built has no blocks of its own.
MADE = ROOT / "docs" / "reference" / "made"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != MADE),
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Pages that show what their blocks print are run whole, and what they show is compared.
WHOLE = [page.relative_to(ROOT).as_posix() for page in run_pages.pages()]
# A block that begins with its own file name is a script, and has a process of its own.
SCRIPT = re.compile(r"# (\w+\.py)\n")
# It does as little as the blocks beside it.
IN_LITTLE = """
import runpy, sys
import pytest
from little import do_little
do_little(sys.argv[2], pytest.MonkeyPatch())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
# A cluster of one machine, as Slurm would tell of it.
ONE_NODE = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "1",
}


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: one.start(1)].count("\n") + 1, one.group(1)) for one in found]


# ---------------------------------------------------------------------- Python


@pytest.fixture
def in_little(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything that takes long, wherever it is called from."""
    do_little(name, monkeypatch)


def run(page: Path, names: dict[str, Any]) -> None:
    """All blocks of a page, in one namespace; the page and the line stand in the traceback."""
    for line, source in blocks(page, "python"):
        script = SCRIPT.match(source)
        if script:
            Path(script.group(1)).write_text(source, encoding="utf-8")
            paths = map(str, (ROOT, ROOT / "tests", *filter(None, [os.environ.get("PYTHONPATH")])))
            surroundings = {**os.environ, **ONE_NODE, "PYTHONPATH": os.pathsep.join(paths)}
            surroundings.pop("XLA_FLAGS", None)
            name = page.relative_to(ROOT).as_posix()
            done = subprocess.run(
                [sys.executable, "-c", IN_LITTLE, script.group(1), name],
                env=surroundings,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{page.name}, line {line}: {done.stderr}"
        else:
            exec(compile("\n" * line + source, str(page), "exec"), names)


def files_it_reads(page: Path) -> Iterator[list[str]]:
    """Commands of the page that make what its blocks read, and are quick."""
    for _, source in blocks(page, "sh"):
        for words in commands(source):
            if words[:2] == ["btil", "simulate"] and "demos-movers.parquet" in words:
                yield words[1:]


# What is learned in little cannot be learned from so little: that much is said, and expected.
@pytest.mark.filterwarnings("ignore:the model cannot learn:btil.DataWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE])
def test_every_block_runs(
    name: str, in_little: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from typer.testing import CliRunner

    page = ROOT / name
    monkeypatch.chdir(tmp_path)
    for file in {"README.md": ("team",), "docs/reference/values.md": ("team", "train", "test")}.get(
        name, ()
    ):
        shown = (text for _, text in blocks(ROOT / "README.md", "text"))
        table = next(text for text in shown if text.startswith("episode,"))
        Path(f"{file}.csv").write_text(table, encoding="utf-8")
    for arguments in files_it_reads(page):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    names: dict[str, Any] = {}
    run(page, names)
    if name == "README.md":
        decoded, test = names["decoded"], names["test"]
        assert decoded.shape == (test.num_steps, 2)
        assert names["belief"].shape == (test.num_steps, 6)
        assert names["posterior"].policy("ann", states={"where": ["door", "hall"]}).shape == (
            2,
            2,
            2,
        )
        assert Path("team.nc").is_file()
        assert "converged" in capsys.readouterr().out
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.filterwarnings("ignore::btil.DataWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_pages_show_what_their_blocks_print(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    assert list(run_pages.run(ROOT / name))
    plt.close("all")


def test_what_a_page_shows_is_compared() -> None:
    """Words and numbers count; seconds and rounding do not; `...` stands for lines."""
    shown = "bound 12.50\n...\nin 0.3 s, to 1e-05\n"
    assert run_pages.matches(shown, "bound 12.51\na\nb\nin 7.9 s, to 3.1e-07\n")
    assert run_pages.matches(shown, "bound 12.50\nin 7.9 s, to 1e-05\n")
    assert not run_pages.matches(shown, "bound 12.70\nin 7.9 s, to 1e-05\n")
    assert not run_pages.matches(shown, "bounds 12.50\nin 7.9 s, to 1e-05\n")
    assert not run_pages.matches(shown, "bound 12.50\nin 7.9 s, to 1e-05\nmore\n")


def test_pages_have_blocks_and_no_other_python() -> None:
    """Indented blocks would be overlooked, and so would a language that is spelled otherwise."""
    assert sum(len(blocks(page, "python")) for page in PAGES) > 50
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^```(\S+)", text, flags=re.MULTILINE)) <= {
            *("python", "sh", "toml", "text", "bibtex", "yaml", "nginx", "output", "{toctree}")
        }
        rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert not re.search(r"^ {4}(import|from) ", rest, flags=re.MULTILINE)


# ---------------------------------------------------------------------- names


def dotted(page: Path) -> set[str]:
    return set(re.findall(r"\bbtil(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_after_import_btil(name: str) -> None:
    """Public at each step, not one that happens to be loaded; or a module by its full name."""
    missing = [one for one in dotted(ROOT / name) if not (public(one) or is_module(one))]
    assert not missing


def public(name: str) -> bool:
    place: Any = btil
    for part in name.split(".")[1:]:
        listed = getattr(place, "__all__", None)
        if inspect.ismodule(place) and listed is not None and part not in listed:
            return False
        if not hasattr(place, part):
            return False
        place = getattr(place, part)
    return True


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_modules_of_analysis_are_there_too() -> None:
    code = "import btil; print(btil.analysis.compare.compare_posteriors.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "compare_posteriors\n", done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_the_kind'"):
        btil.analysis.nothing_of_the_kind  # noqa: B018


# ---------------------------------------------------------------------- shell


def commands(source: str) -> Iterator[list[str]]:
    """The words of each command of a block, without comments."""
    for line in source.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removesuffix("&"), comments=True)
        if words:
            yield words


EVERY_COMMAND = [
    (page.relative_to(ROOT).as_posix(), words)
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    for _, source in blocks(page, "sh")
    for words in commands(source)
]


@pytest.mark.parametrize(
    ("page", "words"), [pytest.param(*one, id=" ".join(one[1])[:60]) for one in EVERY_COMMAND]
)
def test_every_command_is_there_with_its_options(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *rest = words
    if program == "btil":
        monkeypatch.chdir(tmp_path)
        command: Any = typer.main.get_command(app)
        while rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        with contextlib.suppress(typer.Exit):  # --version is answered at once
            command.make_context(words[1], list(rest))  # parses, and does nothing
    elif program == "make":
        target = next(word for word in rest if "=" not in word)
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    elif program == "python" and rest[0].startswith("benchmarks/"):
        assert (ROOT / rest[0]).is_file()
        source = (ROOT / rest[0]).read_text(encoding="utf-8")
        for option in (word for word in rest[1:] if word.startswith("--")):
            assert f'"{option}"' in source
    else:
        assert program in ("pip", "srun", "python", ".", ".venv/bin/python", ".venv/bin/ruff")


def test_there_are_commands() -> None:
    assert len(EVERY_COMMAND) > 30
