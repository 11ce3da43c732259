"""The scripts in examples/ run as they stand. Each takes `--quick`: the same with little data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(script: Path, tmp_path: Path) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # As people run them: ranks and types are checked in our code, not in theirs.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_NUMPY_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "--quick"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert EXAMPLES
