"""The package as users of pip meet it: built, installed in a fresh environment, run elsewhere.

1. A source distribution is made of the working tree, unpacked, and a wheel built of what it holds.
2. The wheel is installed in an environment of its own, with the exact versions of constraints.txt.
3. Every command of `btil` is run in an empty folder.
4. Tests are run from the unpacked source distribution: all are collected, a few are run.

    python scripts/check_package.py                  # with Python 3.13, where it is installed
    python scripts/check_package.py --python 3.12
"""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What is run, in this order, in a folder with the README's table.
COMMANDS = """
btil --version
btil info team.csv
btil suggest team.csv --out model.toml
btil fit team.csv --out team.nc
btil decode team.nc team.csv --out decoded.csv
btil report team.csv --posterior team.nc --out debrief --max-episodes 1 --quiet
btil compare team.csv --methods mfvi,exact --out comparison --quiet
btil calibrate team.csv --method mfvi --num-simulations 2 --out calibration --quiet
btil simulate movers --map tiny --num-episodes 4 --out demos.parquet --quiet
btil report demos.parquet --task movers --map tiny --out movers --max-episodes 1 --no-relearn -q
btil play movers --map tiny --posterior movers/posterior.nc --num-episodes 2 --out played.parquet
btil reproduce suboptimality --quick --out glance --quiet
btil demo --help
btil collect --help
"""
# Quick, and of every room of the package.
TESTS = ("test_lanes.py", "test_cpt.py", "test_verdict.py", "test_binning.py", "test_contexts.py")


def run(*words: object, cwd: Path, **options: object) -> str:
    """Run a program; what it wrote is told if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def python_of(version: str) -> str:
    """A Python of this version, on the path or of pyenv; where there is none, that which runs this.

    Shims of pyenv refuse in a folder that asks for another version, so a candidate is tried.
    """
    installed = Path.home().glob(f".pyenv/versions/{version}*/bin/python")
    for candidate in (f"python{version}", *map(str, sorted(installed))):
        with contextlib.suppress(OSError):
            tell = (candidate, "-c", "import ensurepip, sys; print(sys.version)")
            done = subprocess.run(tell, capture_output=True, text=True, check=False)
            if done.stdout.startswith(f"{version}."):
                return candidate
    print(f"no Python {version} is installed; done with {sys.version.split()[0]}", flush=True)
    return sys.executable


def build(python: str, folder: Path) -> tuple[Path, Path]:
    """The unpacked source distribution, and a wheel made of it."""
    run(python, "-m", "venv", folder / "build", cwd=ROOT)
    builder = folder / "build" / "bin" / "python"
    run(builder, "-m", "pip", "install", "-q", "setuptools>=77", cwd=ROOT)
    make = (
        "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
    )
    run(builder, "-c", make, "build_sdist", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(builder, "-c", make, "build_wheel", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return source, wheel


def readme_of(wheel: Path) -> str:
    """What package indexes show."""
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return file.read(metadata).decode()


def commands_of(help_text: str) -> set[str]:
    """The commands that `btil --help` lists."""
    listed = help_text.partition("Commands:\n")[2]
    return set(re.findall(r"^  (\w+)", listed, flags=re.MULTILINE))


def main() -> None:
    """Build, install, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.13", help="the version to do it with")
    python = python_of(parser.parse_args().python)
    with tempfile.TemporaryDirectory() as name:
        folder, begun = Path(name), time.perf_counter()

        def say(what: str) -> None:
            print(f"{time.perf_counter() - begun:4.0f} s  {what}", flush=True)

        source, wheel = build(python, folder)
        say(f"built {wheel.name}")
        links = re.findall(r"\]\(([^)\s]+)\)", readme_of(wheel))
        if dead := [link for link in links if "://" not in link and not link.startswith("#")]:
            raise SystemExit(f"links of the README that lead nowhere outside: {', '.join(dead)}")
        run(python, "-m", "venv", folder / "use", cwd=folder)
        user = folder / "use" / "bin"
        install = ("-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
        run(user / "python", *install, f"{wheel}[test,study]", cwd=folder)
        say(f"installed with {run(user / 'python', '--version', cwd=folder).strip()}")

        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        readme = (source / "README.md").read_text(encoding="utf-8")
        table = re.search(r"```text\n(episode,.*?)```", readme, flags=re.DOTALL).group(1)
        (elsewhere / "team.csv").write_text(table, encoding="utf-8")
        commands = [shlex.split(line) for line in COMMANDS.strip().splitlines()]
        for words in commands:
            run(user / words[0], *words[1:], cwd=elsewhere)
        left_out = commands_of(run(user / "btil", "--help", cwd=elsewhere)) - {
            c[1] for c in commands
        }
        if left_out:
            raise SystemExit(f"no command here tries {', '.join(sorted(left_out))}")
        say(f"{len(commands)} commands ran outside the repository")

        pytest = (user / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
        collected = run(*pytest, "--collect-only", cwd=source).splitlines()[-1]
        say(f"the source distribution has its tests: {collected}")
        ran = run(*pytest, *(f"tests/{name}" for name in TESTS), cwd=source).splitlines()[-1]
        say(ran)


if __name__ == "__main__":
    main()
