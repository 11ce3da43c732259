"""A sweep of the mean field beside hmmlearn's, on hmmlearn's own ground.

`python benchmarks/against_hmmlearn.py` (a minute): one agent, one task state, 400 episodes of 120
steps; the same start, priors and number of sweeps for `VariationalCategoricalHMM`, with either of
its two implementations, and for `btil.fit` in the same double precision (and in single, which is
btil's default). What fits take for more sweeps than one is divided by the sweeps. The bounds of all
sweeps are compared, and the largest relative difference is printed.
"""

import argparse
import logging
import statistics
from functools import partial
from typing import Any

import numpy as np
from timing import conditions, timed

import btil

PRIORS = {"initial": 0.9, "transition": 1.3, "policy": 0.6}
NAMES = {"initial": "startprob", "transition": "transmat", "policy": "emissionprob"}


def setting(
    episodes: int, steps: int, latents: int, values: int
) -> tuple[btil.Demonstrations, dict[str, np.ndarray]]:
    """Actions of a random hidden Markov model, and concentrations to start from."""
    generator = np.random.default_rng(0)
    move = generator.dirichlet(np.ones(latents), latents).cumsum(1)
    emit = generator.dirichlet(np.ones(values), latents).cumsum(1)
    latent = generator.integers(0, latents, episodes)
    actions = np.empty((episodes, steps), int)
    for t in range(steps):
        actions[:, t] = (generator.random((episodes, 1)) > emit[latent, :-1]).sum(1)
        latent = (generator.random((episodes, 1)) > move[latent, :-1]).sum(1)
    demos = btil.Demonstrations(
        states=np.zeros(actions.size, int),
        actions=actions.reshape(-1, 1),
        episodes=np.repeat(np.arange(episodes), steps),
        num_states=1,
        num_actions=values,
        num_latents=latents,
    )
    shapes = {
        "initial": (latents,),
        "transition": (latents, latents),
        "policy": (latents, values),
    }
    start = {role: PRIORS[role] + generator.uniform(0, 50, shape) for role, shape in shapes.items()}
    return demos, start


def hmmlearn_fit(
    demos: btil.Demonstrations,
    start: dict[str, np.ndarray],
    sweeps: int,
    implementation: str,
) -> np.ndarray:
    """The bounds of hmmlearn's sweeps."""
    from hmmlearn.vhmm import VariationalCategoricalHMM

    logging.getLogger("hmmlearn").setLevel(logging.CRITICAL)
    model = VariationalCategoricalHMM(
        n_components=len(start["initial"]),
        n_features=start["policy"].shape[1],
        n_iter=sweeps,
        tol=-np.inf,
        init_params="",
        implementation=implementation,
    )
    for role, name in NAMES.items():
        setattr(model, f"{name}_prior_", np.full(start[role].shape, PRIORS[role]))
        setattr(model, f"{name}_posterior_", start[role].copy())
    model.fit(demos.actions, demos.episode_lengths)
    return np.array(model.monitor_.history)


def btil_fit(
    demos: btil.Demonstrations, start: dict[str, np.ndarray], sweeps: int, dtype: Any
) -> np.ndarray:
    """The bounds of btil's sweeps."""
    model = btil.TeamModel(**{role: btil.DirichletCPT(u) for role, u in PRIORS.items()})
    fitted = btil.fit(
        model,
        demos,
        progress=False,
        dtype=dtype,
        start={f"{role}_agent_0": w[None] for role, w in start.items()},
        max_iterations=sweeps,
        tolerance=1e-300,
    )
    return np.asarray(fitted.elbo_trace)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latents", type=int, default=5)
    parser.add_argument("--values", type=int, default=6)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    demos, start = setting(400, 120, options.latents, options.values)
    print(f"400 episodes of 120 steps, {options.latents} latents; {conditions('hmmlearn')}")
    fits = {
        "hmmlearn, log (its default)": partial(hmmlearn_fit, demos, start, implementation="log"),
        "hmmlearn, scaling": partial(hmmlearn_fit, demos, start, implementation="scaling"),
        "btil, float64": partial(btil_fit, demos, start, dtype=np.float64),
        "btil, float32": partial(btil_fit, demos, start, dtype=np.float32),
    }
    bounds = {name: fit(sweeps=options.sweeps + 1) for name, fit in fits.items()}
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(options.repeats):
        for name, fit in fits.items():
            more, one = (timed(partial(fit, sweeps=n)) for n in (options.sweeps + 1, 1))
            seconds[name].append((more - one) / options.sweeps)
    reference = bounds["hmmlearn, log (its default)"]
    peer = statistics.median(seconds["hmmlearn, log (its default)"])
    print(f"{'':30} {'ms a sweep':>11} {'ratio':>7} {'largest difference of a bound':>30}")
    for name, values in seconds.items():
        median = statistics.median(values)
        length = min(len(reference), len(bounds[name]))
        difference = np.max(np.abs(bounds[name][:length] / reference[:length] - 1))
        print(f"{name:30} {1000 * median:11.2f} {peer / median:7.2f} {difference:30.1e}")


if __name__ == "__main__":
    main()
