"""Run the pages whose blocks show what they print, as a reader would, and keep their pictures.

A page is run from top to bottom in an empty folder: Python blocks in one namespace, commands of
shell blocks one after the other. What is printed must be what the `output` block behind it shows,
where a line `...` stands for any lines. `make docs` runs them all, keeps the pictures that they
save, and writes each tutorial as a notebook with its outputs; `tests/test_docs.py` runs them too.
"""

import base64
import contextlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "figures" / "made"
NOTEBOOKS = DOCS / "_static" / "notebooks"
# A block that begins with its own file name is that file.
SCRIPT = re.compile(r"# (\w+\.py)\n")


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        language: Behind its fence.
        source: Its text.
        line: Of the page, where the text begins.
    """

    language: str
    source: str
    line: int


class Done(NamedTuple):
    """A block that was run.

    Attributes:
        block: The block.
        printed: What it wrote to standard output.
        pictures: Files of pictures that it saved.
    """

    block: Block
    printed: str
    pictures: tuple[Path, ...]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```([a-z]+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [
        Block(one.group(1), one.group(2), text[: one.start(2)].count("\n") + 1) for one in found
    ]


def shows_output(page: Path) -> bool:
    """Whether a page is one of those that are run whole: for its outputs or its pictures."""
    shows_pictures = f"figures/made/{page.stem}_" in page.read_text(encoding="utf-8")
    return shows_pictures or any(block.language == "output" for block in blocks(page))


def pages() -> list[Path]:
    """All of them."""
    return [page for page in sorted(DOCS.rglob("*.md")) if shows_output(page)]


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed: words exactly, numbers to half a percent.

    Seconds, and numbers of the size of rounding errors, may be any.
    """
    expected, found = lines_of(shown), lines_of(printed)

    def fits(i: int, j: int) -> bool:
        if i == len(expected):
            return j == len(found)
        if expected[i] == "...":
            return any(fits(i + 1, k) for k in range(j, len(found) + 1))
        return j < len(found) and alike(expected[i], found[j]) and fits(i + 1, j + 1)

    return fits(0, 0)


def lines_of(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    text = re.sub(r"\d+\.\d+ s\b|\b\d(\.\d+)?e-\d+", "_", text)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def alike(shown: str, printed: str) -> bool:
    """Whether two lines say the same."""
    parts = [re.split(r"(\d+\.\d+)", line) for line in (shown, printed)]
    return len(parts[0]) == len(parts[1]) and all(
        math.isclose(float(one), float(other), rel_tol=0.005, abs_tol=0.005)
        if i % 2
        else one == other
        for i, (one, other) in enumerate(zip(*parts, strict=True))
    )


def run_command(words: list[str]) -> str:
    """What a command of a page prints.

    Raises:
        RuntimeError: If it fails.
    """
    if words[0] == "btil":
        from typer.testing import CliRunner

        from btil.cli import app

        done = CliRunner().invoke(app, words[1:])
        if done.exit_code:
            raise RuntimeError(f"{shlex.join(words)}: {done.stderr}")
        return done.stdout
    program = [sys.executable if words[0] == "python" else words[0], *words[1:]]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def run(page: Path) -> Iterator[Done]:
    """Run a page in the working directory.

    Raises:
        AssertionError: If what is printed is not what the page shows.
    """
    names: dict[str, Any] = {}
    last: Done | None = None
    for block in blocks(page):
        if block.language == "output":
            assert last is not None, f"{page.name}, line {block.line}: output of nothing"
            assert matches(block.source, last.printed), (
                f"{page.name}, line {block.line}: the page shows\n{block.source}\n"
                f"and its code prints\n{last.printed}"
            )
            continue
        before = set(Path().glob("*.png"))
        if block.language == "python" and SCRIPT.match(block.source):
            Path(SCRIPT.match(block.source).group(1)).write_text(block.source, encoding="utf-8")
            last = Done(block, "", ())
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("\n" * (block.line - 1) + block.source, str(page), "exec"), names)
            last = Done(
                block, printed.getvalue(), tuple(sorted(set(Path().glob("*.png")) - before))
            )
        elif block.language == "sh":
            lines = block.source.replace("\\\n", " ").splitlines()
            commands = [shlex.split(line, comments=True) for line in lines]
            last = Done(block, "".join(run_command(words) for words in commands if words), ())
        else:
            continue
        yield last


def notebook(page: Path, done: dict[int, Done]) -> dict[str, Any]:
    """A page as a Jupyter notebook, with what its code prints and draws.

    Args:
        page: The page.
        done: {line of the block: the block as it was run}.
    """
    cells: list[dict[str, Any]] = []
    text = page.read_text(encoding="utf-8")
    words: list[str] = []

    def tell() -> None:
        if "".join(words).strip():
            cells.append(
                {"cell_type": "markdown", "metadata": {}, "source": "".join(words).strip("\n")}
            )
        words.clear()

    number = 1
    for part in re.split(r"(^```[^\n]*\n.*?^```$\n?)", text, flags=re.DOTALL | re.MULTILINE):
        begun = done.get(number + 1) if part.startswith("```") else None
        if begun is not None and begun.block.language == "python":
            tell()
            outputs: list[dict[str, Any]] = []
            if begun.printed:
                outputs.append({"output_type": "stream", "name": "stdout", "text": begun.printed})
            for picture in begun.pictures:
                data = base64.b64encode(picture.read_bytes()).decode()
                outputs.append(
                    {"output_type": "display_data", "metadata": {}, "data": {"image/png": data}}
                )
            cells.append(
                {
                    "cell_type": "code",
                    "metadata": {},
                    "execution_count": None,
                    "source": begun.block.source.rstrip("\n"),
                    "outputs": outputs,
                }
            )
        elif not part.startswith("```output"):
            words.append(part)
        number += part.count("\n")
    tell()
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "cells": cells,
    }


def main() -> None:
    """Run all pages; keep pictures and notebooks."""
    import btil

    warnings.simplefilter("ignore", btil.DataWarning)  # of data so small much is told
    PICTURES.mkdir(parents=True, exist_ok=True)
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    begun, number = time.perf_counter(), 0
    for page in pages():
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            done = {one.block.line: one for one in run(page)}
            for one in done.values():
                for picture in one.pictures:
                    (PICTURES / f"{page.stem}_{picture.name}").write_bytes(picture.read_bytes())
            if page.parent.name == "tutorials":
                path = NOTEBOOKS / f"{page.stem}.ipynb"
                path.write_text(json.dumps(notebook(page, done), indent=1), encoding="utf-8")
        number += len(done)
        print(
            f"{page.relative_to(DOCS)}: {len(done)} blocks, {time.perf_counter() - started:.0f} s"
        )
    print(f"{number} blocks of {len(pages())} pages ran in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    main()
