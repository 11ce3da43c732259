"""How many programs each method compiles, and what that costs.

`python benchmarks/compilations.py` (three minutes) fits the recordings of `btil demo` by each
method, each in a new process without a cache of programs, and prints of its first fit

- the programs that XLA compiled, and seconds for tracing, for lowering and for compiling them;
- seconds of processor time, and of the wall clock;

and of a second one the same, which compiles nothing if all is well. Libraries are loaded before.

Name methods to have these alone. `compare` runs all of them in one process, as `btil demo` does: a
program that two methods share is compiled once there. `rows` is a default fit of five rows.
"""

import argparse
import json
import subprocess
import sys

from timing import conditions

METHODS = ("rows", "mfvi", "refined", "svi", "gibbs", "nuts", "compare")

_CHILD = """
import collections, json, sys, time, warnings
warnings.simplefilter("ignore")
begun = time.process_time()
import numpy as np
import btil
imported = time.process_time() - begun
from btil.analysis import demo

task = sys.argv[1]
train = btil.domains.overcooked.load(demo.LAYOUT, "train")
labelled = demo.choose_labelled(train.num_episodes, demo.SHARE_LABELLED, demo.SEED)
unlabelled = np.setdiff1d(np.arange(train.num_episodes), labelled)
train = demo.first_steps(train, demo.NUM_STEPS).without_labels(unlabelled)
test = btil.domains.overcooked.load(demo.LAYOUT, "test")
few = btil.Demonstrations([0, 0, 1, 1, 2], [0, 1, 1, 0, 1], num_latents=2)

def fit():
    if task == "rows":
        return btil.fit(btil.TeamModel(), few, progress=False)
    if task == "compare":
        return btil.compare(
            demo.demo_model(), train, methods=demo.METHODS, test=test, seed=demo.SEED,
            options=demo.OPTIONS, progress=False,
        )
    options = demo.OPTIONS.get(task, {})
    found = btil.fit(demo.demo_model(), train, "mfvi" if task == "refined" else task,
                     progress=False, **options)
    return found.refined(progress=False) if task == "refined" else found

import jax
names = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
seconds, programs = collections.Counter(), 0

def heard(event, duration, **_):
    global programs
    if event in names:
        seconds[names[event]] += duration
        programs += names[event] == "compiling"

jax.monitoring.register_event_duration_secs_listener(heard)
report = {"import": imported}
for turn in ("first", "second"):
    wall, used, before = time.perf_counter(), time.process_time(), programs
    fit()
    report[turn + ", wall"] = time.perf_counter() - wall
    report[turn] = time.process_time() - used
    report[turn + ", programs"] = programs - before
    if turn == "first":
        report |= seconds
print(json.dumps(report))
"""

_COLUMNS = {
    "programs": "first, programs",
    "tracing": "tracing",
    "lowering": "lowering",
    "compiling": "compiling",
    "first fit": "first",
    "wall": "first, wall",
    "second fit": "second",
    "wall ": "second, wall",
    "programs then": "second, programs",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", choices=METHODS, metavar="method")
    options = parser.parse_args()
    print(f"btil demo; {conditions('numpyro')}")
    print(f"{'':10}" + "".join(f"{name:>14}" for name in _COLUMNS))
    for method in options.methods or METHODS:
        command = [sys.executable, "-c", _CHILD, method]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        cells = (found.get(key, 0) for key in _COLUMNS.values())
        print(
            f"{method:10}"
            + "".join(f"{one:14d}" if isinstance(one, int) else f"{one:14.2f}" for one in cells),
            flush=True,
        )


if __name__ == "__main__":
    main()
