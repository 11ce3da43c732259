"""Whether a plain fit by mean field ends at the best optimum, says so, and what that costs.

`python benchmarks/convergence.py` (some minutes) prints

- of 60 made recordings of one agent with two latents, of three sizes and with 0 to 4 labelled
  steps, how many default fits end within 1 nat of the best of 20 restarts, how many say that they
  did not converge, and the worst that says it did;
- seconds and sweeps of default fits of recordings of real size.

`--plain` prints only seconds and bounds of default fits; it runs on older versions too.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from sweep import movers
from timing import conditions

import btil

SIZES = ((30, 10), (60, 20), (120, 30))
POLICY = np.array([[0.8, 0.15, 0.05], [0.1, 0.3, 0.6]])
TRANSITION = np.array([[0.88, 0.12], [0.2, 0.8]])
INITIAL = np.array([0.7, 0.3])


def made_recording(episodes: int, steps: int, labels: int, seed: int) -> btil.Demonstrations:
    """Episodes drawn from the tables above; the labels name the latents in turn."""
    generator = np.random.default_rng([seed, episodes, labels])
    latents = np.zeros((episodes, steps), int)
    for t in range(steps):
        rows = TRANSITION[latents[:, t - 1]] if t else np.tile(INITIAL, (episodes, 1))
        latents[:, t] = generator.random(episodes) > rows[:, 0]
    chosen = POLICY[latents.ravel()].cumsum(1)
    actions = (generator.random((episodes * steps, 1)) > chosen[:, :2]).sum(1)
    told = np.full(episodes * steps, -1)
    for number in range(labels):
        open_steps = np.flatnonzero((latents.ravel() == number % 2) & (told < 0))
        told[generator.choice(open_steps)] = number % 2
    return btil.Demonstrations(
        states=np.zeros(episodes * steps, int),
        actions=actions[:, None],
        latents=told[:, None],
        episodes=np.repeat(np.arange(episodes), steps),
        num_states=1,
        num_actions=3,
        num_latents=2,
    )


def almost_symmetric(kind: str) -> btil.TeamModel:
    """A model whose prior hardly tells the two latents apart, or not at all."""
    policy = np.ones((2, 3))
    initial: Any = btil.DirichletCPT(1.0)
    if kind == "known initial":
        initial = btil.KnownCPT(INITIAL)
    elif kind == "unequal initial":
        initial = btil.DirichletCPT(np.array([2.0, 1.0]))
    elif kind == "one cell":
        policy[0, 0] = 1.01
    return btil.TeamModel(btil.DirichletCPT(policy), btil.DirichletCPT(1.0), initial)


def made_cases() -> Iterator[tuple[str, btil.TeamModel, btil.Demonstrations]]:
    """60 recordings: three sizes, with 0 to 4 labels."""
    unlabelled = ("known initial", "unequal initial", "one cell", "symmetric")
    for episodes, steps in SIZES:
        for number in range(20):
            labels = max(0, number % 8 - 3)
            kind = "symmetric" if labels else unlabelled[number % 8]
            name = f"{episodes} x {steps}, {labels} labels, {kind}"
            yield name, almost_symmetric(kind), made_recording(episodes, steps, labels, number)


def real_cases() -> Iterator[tuple[str, btil.TeamModel, btil.Demonstrations]]:
    """Recordings of real size."""
    for layout in btil.domains.overcooked.LAYOUTS:
        demos = btil.domains.overcooked.load(layout, split="train")
        partly = demos.without_labels(range(2, demos.num_episodes))
        yield f"kitchen {layout}", btil.domains.overcooked.recommended_model(layout), partly
    task = btil.domains.movers()
    yield (
        "Movers, recommended",
        task.recommended_model(),
        task.add_derived_variables(movers(200, 20)),
    )
    yield "Movers, by state", btil.TeamModel(), movers(200, 20)


def timed_fit(model: btil.TeamModel, demos: btil.Demonstrations) -> tuple[Any, float]:
    """A default fit, compiled before, and its seconds (the least of three)."""
    seconds = []
    btil.fit(model, demos, progress=False)
    for _ in range(3):
        begun = time.perf_counter()
        posterior = btil.fit(model, demos, progress=False)
        seconds.append(time.perf_counter() - begun)
    return posterior, min(seconds)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    print(conditions())
    within = unconverged = 0
    worst, total = 0.0, 0.0
    for name, model, demos in made_cases():
        posterior, seconds = timed_fit(model, demos)
        total += seconds
        if options.plain:
            print(f"{name:42} {posterior.elbo:12.3f} {1e3 * seconds:8.1f} ms")
            continue
        best = btil.fit(model, demos, num_restarts=20, seed=1, progress=False)
        gap = best.elbo - posterior.elbo
        within += gap < 1
        unconverged += not posterior.converged
        worst = max(worst, gap if posterior.converged else 0.0)
        print(
            f"{name:42} {posterior.elbo:12.3f} {gap:8.3f} below the best, rate "
            f"{posterior.contraction_rate:.3f}, {1e3 * seconds:6.1f} ms"
            + ("" if posterior.converged else f"  NOT CONVERGED: {posterior.reason}")
        )
    if not options.plain:
        print(
            f"within 1 nat of the best of 20: {within} of 60; not converged: {unconverged}; worst "
            f"that says converged: {worst:.3f} below"
        )
    print(f"seconds of the 60 default fits: {total:.2f}")
    for name, model, demos in real_cases():
        posterior, seconds = timed_fit(model, demos)
        print(
            f"{name:28} {demos.num_steps:7} steps: {posterior.elbo:12.3f} {seconds:6.2f} s, "
            f"{len(posterior.elbo_trace)} sweeps kept, {posterior.reason}",
            flush=True,
        )


if __name__ == "__main__":
    main()
