"""Make small slips of the kind a person makes, one at a time, and see whether the tests notice.

A slip that survives names a test that is missing. Each is made in a copy of the project's tracked
files, where the test files that concern it run until one of them fails; nothing here is changed.

    .venv/bin/python scripts/try_slips.py                      # all of them: half an hour
    .venv/bin/python scripts/try_slips.py --only gibbs         # whose file or slip has that text
    .venv/bin/python scripts/try_slips.py --fresh              # of the last fifty that were made
    .venv/bin/python scripts/try_slips.py --list
    .venv/bin/python scripts/try_slips.py --only cli -- -m "not slow"   # options of pytest

The exit code is 1 if a slip survived, could not be tried (the test that fails does so without it
too), or has become out of date: its old text must stand exactly once in its file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slips import FRESH, SLIPS, Slip

ROOT = Path(__file__).resolve().parent.parent
# A slip may well make a loop endless.
_LONGEST = 900.0


class Copy:
    """The project's tracked files in a folder of their own, where tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _tracked():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
        found = self._python("-c", "import btil; print(btil.__file__)").stdout.strip()
        if Path(found) != folder / "btil" / "__init__.py":
            raise SystemExit(f"the tests would run on {found}, not on the copy in {folder}")

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST,
        )

    def write(self, name: str, text: str) -> None:
        """Change a file; no bytecode of an older text of it is left."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def run(self, tests: Sequence[str], more: Sequence[str] = ()) -> tuple[str, str]:
        """Run tests until one fails: "passed", "failed" or "broken", and what was said."""
        flags = ("-x", "-q", "-p", "no:cacheprovider")
        try:
            done = self._python("-m", "pytest", *flags, *tests, *more)
        except subprocess.TimeoutExpired:
            return "failed", f"no end after {_LONGEST:.0f} seconds"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        told = lines[0] if lines else (done.stdout + done.stderr).strip().split("\n")[-1]
        # 0: all passed, 1: some failed, 2: stopped, as by a file that cannot be imported, 5: the
        # options leave no test. That Python finds no pytest is no test that fails.
        ended = {0: "passed", 5: "passed"} | ({1: "failed", 2: "failed"} if lines else {})
        return ended.get(done.returncode, "broken"), told


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def out_of_date(slip: Slip) -> str | None:
    """Why a slip cannot be made any more; None if it can."""
    missing = [name for name in slip.tests if not (ROOT / "tests" / name).is_file()]
    if missing:
        return f"there is no tests/{missing[0]}"
    if not (ROOT / slip.file).is_file():
        return "there is no such file"
    number = (ROOT / slip.file).read_text(encoding="utf-8").count(slip.old)
    return None if number == 1 else f"its old text is there {number} times"


def tried(copy: Copy, slips: Sequence[Slip], more: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Make each slip, run its tests and undo it: "caught", "SURVIVED" or "BROKEN", and why.

    A test that notices must pass without the slip.
    """
    sound: dict[str, bool] = {}
    for slip in slips:
        text = (ROOT / slip.file).read_text(encoding="utf-8")
        copy.write(slip.file, text.replace(slip.old, slip.new))
        ended, told = copy.run([f"tests/{name}" for name in slip.tests], more)
        copy.write(slip.file, text)
        if ended == "passed":
            yield "SURVIVED", told
        elif ended == "broken":
            yield "BROKEN", told
        else:
            # "FAILED tests/test_x.py::test_y[a] - what was wrong"
            kind, _, rest = told.partition(" ")
            test = rest.split(" - ")[0]
            if kind in ("FAILED", "ERROR") and test not in sound:
                sound[test] = copy.run([test])[0] == "passed"
            if sound.get(test, True):
                yield "caught", told
            else:
                yield "BROKEN", f"fails without the slip too: {test}"


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Do the tests notice small slips?")
    parser.add_argument("--only", metavar="TEXT", help="slips with this text in file or name")
    parser.add_argument("--fresh", action="store_true", help="the last fifty that were made")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("pytest", nargs="*", help="after --: more arguments of pytest")
    given = parser.parse_args()
    wanted = (given.only or "").lower()
    every = FRESH if given.fresh else SLIPS
    slips = [slip for slip in every if wanted in f"{slip.file}: {slip.what}".lower()]
    if not slips:
        raise SystemExit(f"no slip has the text {given.only!r}; --list shows all")
    old = [(slip, why) for slip in slips if (why := out_of_date(slip)) is not None]
    for slip, why in old:
        print(f"OUT OF DATE {slip.file}: {slip.what}: {why}")
    current = [slip for slip in slips if out_of_date(slip) is None]
    if given.list:
        for slip in current:
            print(f"{slip.file}: {slip.what} ({', '.join(slip.tests)})")
        return int(bool(old))
    counted = dict.fromkeys(("caught", "SURVIVED", "BROKEN"), 0)
    with tempfile.TemporaryDirectory(prefix="btil-slips-") as folder:
        copy = Copy(Path(folder).resolve())
        begun = time.perf_counter()
        for slip, (word, told) in zip(current, tried(copy, current, given.pytest), strict=True):
            counted[word] += 1
            seconds, begun = time.perf_counter() - begun, time.perf_counter()
            print(
                f"{word:8} {slip.file}: {slip.what} ({seconds:.0f} s)\n         {told}", flush=True
            )
    print(", ".join(f"{number} {word}" for word, number in counted.items()), end="")
    print(f", {len(old)} out of date" if old else "")
    return int(counted["caught"] < len(slips))


if __name__ == "__main__":
    sys.exit(main())
