"""Does what docs/how-to/large.md says of GPUs hold? A table of claims, in ten minutes.

Run it with `python benchmarks/on_gpu.py` where JAX finds a GPU. Without one it says so, and checks
what can be checked on a CPU. `--small` takes seconds: tiny sizes, whose times mean nothing.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from growth import random_team
from timing import conditions

import btil
from btil.inference.mean_field import ascend
from btil.inference.mfvi import Run
from btil.models.team import bind

# What the page says; bytes in single precision.
BYTES_OF_STEP = "8 K^2 + 21 K + 24"
BYTES_OF_CELL = 22  # of a sum of a row as well


class Size(NamedTuple):
    """A made-up team."""

    episodes: int
    steps: int
    latents: int
    contexts: int


SMALL = Size(episodes=8, steps=160, latents=3, contexts=6)
LARGE = Size(episodes=20_000, steps=2_000_000, latents=5, contexts=2_000)


class Claim(NamedTuple):
    """Something that is said, what it should come to, and what was found.

    Attributes:
        words: What is said.
        said: What it should come to.
        found: What was found.
        holds: Whether it holds; None where it cannot be told here.
    """

    words: str
    said: str
    found: str
    holds: bool | None


def team(size: Size) -> tuple[btil.TeamModel, btil.Demonstrations]:
    """A model, and a team of one agent that has such sizes."""
    demos = random_team(
        steps=size.steps,
        episodes=size.episodes,
        latents=size.latents,
        agents=1,
        states=size.contexts,
    )
    model = btil.TeamModel(btil.DirichletCPT(1.2, ("state",)), btil.DirichletCPT(1.1, ("state",)))
    return model, demos


def step_bytes(latents: int) -> int:
    """`BYTES_OF_STEP` for so many latents."""
    return 8 * latents**2 + 21 * latents + 24


def sweep_bytes(size: Size) -> tuple[float, int, int]:
    """Bytes of a sweep's program, as the compiler plans them; padded steps; cells and rows."""
    model, demos = team(size)
    run = Run(bind(model, demos), np.dtype(np.float32), None, None, None)
    zero = np.zeros((), np.float32)
    program = ascend.lower(
        run.begin(run.known), zero, run.problem, zero, zero, np.int32(1), run.sites
    ).compile()
    plan = program.memory_analysis()
    cells = sum(u.size + u[..., 0].size for u in run.prior.values())
    steps = int(np.prod(run.problem.steps[0].policy.shape))
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes, steps, cells


def memory_claims(small: bool) -> list[Claim]:
    """Bytes of a step and of a cell, by the compiler's plans for two sizes each."""
    base = SMALL if small else LARGE._replace(steps=200_000, episodes=2_000)
    more = base._replace(steps=4 * base.steps, episodes=4 * base.episodes)
    wide = base._replace(contexts=4 * base.contexts)
    bytes_of, steps, cells = sweep_bytes(base)
    more_bytes, more_steps, _ = sweep_bytes(more)
    wide_bytes, _, wide_cells = sweep_bytes(wide)
    of_step = (more_bytes - bytes_of) / (more_steps - steps)
    of_cell = (wide_bytes - bytes_of) / (wide_cells - cells)
    said = step_bytes(base.latents)
    return [
        Claim(
            f"a step in a lane takes {BYTES_OF_STEP} bytes",
            f"{said} at K = {base.latents}",
            f"{of_step:.0f}",
            0.7 * said < of_step < 1.5 * said,
        ),
        Claim(
            f"a cell of a table, or the sum of a row, takes {BYTES_OF_CELL} bytes at most",
            f"{BYTES_OF_CELL}",
            f"{of_cell:.0f}",
            of_cell < BYTES_OF_CELL,
        ),
    ]


def seconds(work: Callable[[], Any]) -> float:
    """Seconds of a second call: programs are compiled in the first."""
    work()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fits(small: bool, gpu: Any, cpu: Any) -> list[Claim]:
    """The same answers on both, and how long each takes."""
    claims = []
    for name, size, least in (
        ("small data: a GPU is no quicker", SMALL, None),
        ("two million steps: a GPU is 5 times as quick", SMALL if small else LARGE, 5.0),
    ):
        model, demos = team(size)
        options = {"progress": False, "max_iterations": 10, "dtype": "float32"}

        def work(
            model: Any = model, demos: Any = demos, options: Any = options
        ) -> btil.TeamPosterior:
            return btil.fit(model, demos, **options)

        found = {}
        for device in (cpu, gpu):
            if device is not None:
                with jax.default_device(device):
                    found[device.platform] = seconds(work), work().elbo
        (own, elbo), *others = found.values()
        if not others:
            claims.append(Claim(name, "", f"{own:.2f} s on the CPU, no GPU here", None))
            continue
        ((other, other_elbo),) = others
        ratio = own / other
        holds = ratio >= least if least is not None else ratio < 1.5
        claims.append(Claim(name, f"{least or 1:.0f}", f"{ratio:.1f} times", holds))
        gap = abs(other_elbo - elbo) / abs(elbo)
        claims.append(Claim("... with the same bound", "to 1e-5", f"{gap:.1e}", gap < 1e-5))
    return claims


def chains_claim(small: bool, gpu: Any) -> Claim:
    """Sixty-four chains of gibbs beside eight: lanes that a GPU has to spare."""
    model, demos = team(SMALL if small else SMALL._replace(episodes=200, steps=20_000))
    options = {"progress": False, "num_warmup": 4, "num_samples": 8 if small else 100}
    numbers = (2, 4) if small else (8, 64)
    took = [
        seconds(lambda n=n: btil.fit(model, demos, "gibbs", num_chains=n, **options))
        for n in numbers
    ]
    ratio = took[1] / took[0]
    words = f"gibbs: {numbers[1]} chains take less than twice as long as {numbers[0]}"
    return Claim(words, "< 2", f"{ratio:.1f} times", None if gpu is None or small else ratio < 2)


def devices_claim() -> Claim:
    """Batches on all devices: the answer of one."""
    number = len(jax.devices())
    words = "batches on all devices give the answer of one"
    if number == 1:
        return Claim(words, "to 1e-5", "one device here", None)
    model, demos = team(SMALL)
    bounds = [
        btil.fit(model, demos, batch_size=3, devices=n, progress=False, max_iterations=4).elbo
        for n in (1, number)
    ]
    assert bounds[0] is not None
    assert bounds[1] is not None
    gap = abs(bounds[1] - bounds[0]) / abs(bounds[0])
    return Claim(words, "to 1e-5", f"{gap:.1e} on {number}", gap < 1e-5)


def claims(small: bool) -> list[Claim]:
    """All of them."""
    gpus = [device for device in jax.devices() if device.platform != "cpu"]
    gpu = gpus[0] if gpus else None
    found = [*memory_claims(small), *fits(small, gpu, jax.devices("cpu")[0])]
    return [*found, chains_claim(small, gpu), devices_claim()]


def main(small: bool) -> bool:
    """Print the table; whether nothing is contradicted."""
    from rich.console import Console
    from rich.table import Table

    print(conditions("jaxlib"))
    table = Table()
    for heading in ("what is said", "said", "found", "holds"):
        table.add_column(heading, overflow="fold")
    found = claims(small)
    for claim in found:
        holds = {True: "yes", False: "NO", None: "not told here"}[claim.holds]
        table.add_row(claim.words, claim.said, claim.found, holds)
    Console().print(table)
    return all(claim.holds is not False for claim in found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    raise SystemExit(0 if main(parser.parse_args().small) else 1)
