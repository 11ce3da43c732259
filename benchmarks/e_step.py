"""Smoothing and pair marginals of many chains, beside dynamax.

`python benchmarks/e_step.py` (a minute) draws chains whose transitions differ at every step, as a
team's do, and times the local step of the mean field, from probabilities to log evidence, marginals
and pair marginals, against `hmm_smoother` of dynamax under `vmap` on the same chains in the same
type. The third line of each block is the form that btil takes where tables have zeros or extremely
small entries, the last its log evidence without marginals. The evidence of all is compared before
anything is timed.

Chains of unequal lengths are padded to the longest for dynamax, which knows no other way; btil lays
them end to end.

Needs dynamax: see benchmarks/README.md.
"""

import argparse
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import HEADER, conditions, row, side_by_side

from btil.messages.lanes import pack_lanes
from btil.messages.scaled import forward_backward
from btil.messages.smoother import Potentials, filter_lanes, smooth


class Chains(NamedTuple):
    """Hidden Markov chains, padded to the longest.

    Attributes:
        initial: (chains, latents).
        transition: From each step to the next, (chains, steps - 1, latents, latents).
        likelihood: (chains, steps, latents).
        lengths: (chains,).
    """

    initial: np.ndarray
    transition: np.ndarray
    likelihood: np.ndarray
    lengths: np.ndarray


def draw_chains(lengths: np.ndarray, latents: int, seed: int = 0) -> Chains:
    """Random chains; padding is a step that says nothing."""
    generator = np.random.default_rng(seed)
    chains, steps = len(lengths), int(lengths.max())
    likelihood = generator.dirichlet(np.ones(latents), (chains, steps))
    likelihood[np.arange(steps) >= lengths[:, None]] = 1.0
    return Chains(
        generator.dirichlet(np.ones(latents), chains).astype(np.float32),
        generator.dirichlet(np.ones(latents), (chains, steps - 1, latents)).astype(np.float32),
        likelihood.astype(np.float32),
        lengths,
    )


def in_lanes(chains: Chains) -> tuple[Any, Any, Any]:
    """Moves, likelihoods and first steps laid into lanes, as btil does once before a fit."""
    latents = chains.initial.shape[1]
    real = np.arange(chains.likelihood.shape[1]) < chains.lengths[:, None]
    first = np.broadcast_to(chains.initial[:, None, None], (len(real), 1, latents, latents))
    moves = np.concatenate([first, chains.transition], axis=1)[real]
    start = np.zeros(real.shape, bool)
    start[:, 0] = True
    lanes = pack_lanes(chains.lengths)

    def lay(values: np.ndarray, fill: Any) -> Any:
        padding = (lanes < 0).reshape(lanes.shape + (1,) * (values.ndim - 1))
        return jnp.asarray(np.moveaxis(np.where(padding, fill, values[lanes]), 1, -1))

    return (
        lay(moves, np.float32(1 / latents)),
        lay(chains.likelihood[real], np.float32(1)),
        lay(start[real], True),
    )


@jax.jit
def ours(moves: Any, likelihood: Any) -> tuple[Any, Any, Any]:
    """Log evidence, marginals and pair marginals by scaled messages."""
    messages = forward_backward(moves, likelihood)
    pair = messages.previous[:, :, None] * moves * messages.future[:, None]
    return jnp.sum(jnp.log(messages.normalizer)), messages.predicted * messages.future, pair


@jax.jit
def ours_in_logs(log_moves: Any, log_likelihood: Any, start: Any) -> tuple[Any, Any, Any]:
    """The same by logarithms."""
    filtered = filter_lanes(Potentials(log_moves, log_likelihood, start))
    return jnp.sum(filtered.log_normalizer), *smooth(filtered, start)


@jax.jit
def evidence_in_logs(log_moves: Any, log_likelihood: Any, start: Any) -> tuple[Any]:
    """The log evidence alone: what a density costs without its gradient."""
    return (jnp.sum(filter_lanes(Potentials(log_moves, log_likelihood, start)).log_normalizer),)


@jax.jit
def dynamax(initial: Any, transition: Any, log_likelihood: Any) -> tuple[Any, Any, Any]:
    """The same by dynamax."""
    from dynamax.hidden_markov_model import hmm_smoother

    found = jax.vmap(hmm_smoother)(initial, transition, log_likelihood)
    return jnp.sum(found.marginal_loglik), found.smoothed_probs, found.trans_probs


def measure(lengths: np.ndarray, latents: int, repeats: int) -> list[str]:
    """A block of the table."""
    chains = draw_chains(lengths, latents)
    moves, likelihood, start = in_lanes(chains)
    theirs = tuple(map(jnp.asarray, (chains.initial, chains.transition, np.log(chains.likelihood))))
    logs = (jnp.log(moves), jnp.log(likelihood), start)
    programs = {
        "dynamax hmm_smoother": (dynamax, theirs),
        "btil, scaled": (ours, (moves, likelihood)),
        "btil, logarithms": (ours_in_logs, logs),
        "btil, logarithms, evidence alone": (evidence_in_logs, logs),
    }
    evidence = [float(function(*given)[0]) for function, given in programs.values()]
    np.testing.assert_allclose(evidence, evidence[0], rtol=1e-5)
    jax.clear_caches()
    timings = side_by_side(programs, repeats)
    peer = timings["dynamax hmm_smoother"]
    return [row(f"  {name}", timing, peer) for name, timing in timings.items()]


SETTINGS = {
    "400 chains of 120 steps": np.full(400, 120),
    "200 chains of 40 to 200 steps": np.random.default_rng(1).integers(40, 201, 200),
    "20 chains of 5,000 steps": np.full(20, 5000),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latents", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    print(f"{options.latents} latents, float32; {conditions('dynamax')}\n{HEADER}")
    for title, lengths in SETTINGS.items():
        print(title)
        print("\n".join(measure(lengths, options.latents, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
