"""How long one waits for the first answer of a new process, and what memory it takes.

`python benchmarks/cold_start.py` (a minute) starts a new Python several times and prints medians of

- `import btil`;
- the first `btil.fit` of 200 simulated Movers episodes, 20 of them labelled, to convergence: the
  libraries that load with it, compilation and sweeps;
- a second such fit in the same process;
- the most memory that the process held by then.

To be under 3 seconds and 700 MB, import and first fit together.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sweep import movers
from timing import conditions

import btil

_CHILD = """
import json, resource, sys, time
begin = time.perf_counter(); used = time.process_time()
import btil
imported = time.perf_counter()
demos = btil.read_demonstrations(sys.argv[1])
seconds = []
processor = []
for _ in range(2):
    start = time.perf_counter(); used = time.process_time()
    posterior = btil.fit(btil.TeamModel(), demos, progress=False)
    seconds.append(time.perf_counter() - start)
    processor.append(time.process_time() - used)
scale = 2**20 if sys.platform == "darwin" else 2**10
print(json.dumps({
    "import btil, s": imported - begin,
    "first fit, s": seconds[0],
    "first fit, processor s": processor[0],
    "second fit, s": seconds[1],
    "second fit, processor s": processor[1],
    "sweeps": len(posterior.elbo_trace),
    "most memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale,
}))
"""


def start_once(path: Path) -> dict[str, float]:
    """What a new process measures of itself."""
    command = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--labelled", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    demos = movers(options.episodes, options.labelled)
    print(f"Movers, {demos.num_steps} steps; {conditions()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "movers.npz"
        btil.write_demonstrations(demos, path)
        found = [start_once(path) for _ in range(options.repeats)]
    for name in found[0]:
        print(f"{name:28} {statistics.median(one[name] for one in found):8.2f}")


if __name__ == "__main__":
    main()
