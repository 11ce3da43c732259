"""Lists the slow tests anew, from what a run of all of them took.

    python -m pytest -n 2 --dist loadfile --durations=0 --durations-min=0.1 > durations.txt
    python scripts/list_slow_tests.py durations.txt

`tests/slow_tests.txt` then names what took longer than `--seconds`: a test function, or one of its
cases. `make test` leaves these out, `make test-all` runs them too. Files stand in the order of what
they took: the longest begin first, so that all workers end together.
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow_tests.txt"
TIMED = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+tests/(\S+?::.*\S)")


def collected() -> list[str]:
    """The names of all cases, from the folder of the tests on."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]


def slow_names(report: str, seconds: float) -> list[str]:
    """What took longer: functions of which all cases did, and else the cases.

    Args:
        report: What pytest printed.
        seconds: How long a case may take, with what it sets up and takes down.
    """
    took: dict[str, float] = defaultdict(float)
    for line in report.splitlines():
        timed = TIMED.match(line)
        if timed:
            took[timed[2]] += float(timed[1])
    cases = defaultdict(list)
    for name in collected():
        cases[name.split("[")[0]].append(name)
    found: dict[str, list[str]] = defaultdict(list)
    for function, names in cases.items():
        slow = [name for name in names if took[name] > seconds]
        found[function.split("::")[0]] += [function] if len(slow) == len(names) else slow
    of_files: dict[str, float] = defaultdict(float)
    for name, time in took.items():
        of_files[name.split("::")[0]] += time
    return [name for file in sorted(found, key=lambda one: -of_files[one]) for name in found[file]]


def main() -> None:
    """Read the report, write the list."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    names = slow_names(arguments.report.read_text(encoding="utf-8"), arguments.seconds)
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{len(names)} names in {LIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
