"""Gaussian and autoregressive hidden Markov models, beside dynamax.

`python benchmarks/against_dynamax.py` (two minutes) draws 400 chains of 120 steps in 2, 6 and 10
dimensions, fits them by mean field, and

- gives dynamax's `GaussianHMM` and `LinearAutoregressiveHMM` the fitted parameters: the log
  likelihoods of all chains are to agree to 1e-6 of their size, in double precision;
- takes the time of one sweep (messages, expected sums, the posterior of means and covariances, the
  bound), and of one iteration of dynamax's EM: its E step under `vmap` and its M step, as
  `fit_em` compiles them. Both in single precision, on the same chains.

Needs dynamax: see benchmarks/README.md.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import GaussianHMM, LinearAutoregressiveHMM
from sweep import sweeps
from timing import conditions, timed

import btil
from btil.inference.ascents import SWEEPS_PER_CALL

_LATENTS = 3


def draw(
    chains: int, steps: int, dims: int, autoregressive: bool, seed: int = 0
) -> btil.Demonstrations:
    """Chains of a known model, a tenth of them labelled."""
    generator = np.random.default_rng(seed)
    means = generator.normal(0.0, 2.0, size=(_LATENTS, dims))
    pull = np.linalg.qr(generator.normal(size=(_LATENTS, dims, dims)))[0] * 0.7 * autoregressive
    transition = np.full((_LATENTS, _LATENTS), 0.05) + np.eye(_LATENTS) * (1 - 0.05 * _LATENTS)
    latent = np.empty((chains, steps), int)
    y = np.empty((chains, steps, dims))
    now = generator.integers(_LATENTS, size=chains)
    before = np.zeros((chains, dims))
    for t in range(steps):
        if t:
            draws = generator.random((chains, 1))
            now = (np.cumsum(transition[now], axis=1) <= draws).sum(1)
        before = means[now] + np.einsum("cd,cde->ce", before, pull[now])
        before = before + generator.normal(size=(chains, dims))
        latent[:, t], y[:, t] = now, before
    labels = np.where(np.arange(chains)[:, None] < chains // 10, latent, -1)
    return btil.Demonstrations(
        {},
        None,
        labels.reshape(-1, 1),
        episodes=np.repeat(np.arange(chains), steps),
        agents=("one",),
        num_latents=_LATENTS,
        continuous={f"y{j}": y[..., j].ravel() for j in range(dims)},
    )


def model_of(dims: int, autoregressive: bool) -> btil.TeamModel:
    """The model that both fit."""
    columns = tuple(f"y{j}" for j in range(dims))
    emission = (
        btil.LinearNormalEmission(columns, tuple(f"previous_{name}" for name in columns))
        if autoregressive
        else btil.NormalEmission(columns)
    )
    return btil.TeamModel(
        policy=None, transition=btil.DirichletCPT(1.1, parents=()), emissions=emission
    )


def theirs(posterior: Any, dims: int, autoregressive: bool) -> tuple[Any, Any]:
    """dynamax's model with the posterior's means as parameters."""
    initial, transition = posterior.initial("one")[0], posterior.transition("one")[0]
    coefficients, covariance = (part[0] for part in posterior.emission("one"))
    if not autoregressive:
        hmm = GaussianHMM(_LATENTS, dims)
        params, _ = hmm.initialize(
            initial_probs=jnp.asarray(initial),
            transition_matrix=jnp.asarray(transition),
            emission_means=jnp.asarray(coefficients[:, 0]),
            emission_covariances=jnp.asarray(covariance),
        )
        return hmm, params
    hmm = LinearAutoregressiveHMM(_LATENTS, dims, num_lags=1)
    params, _ = hmm.initialize(
        # A chain's first step has no step before it: theirs begins with the second.
        initial_probs=jnp.asarray(initial @ transition),
        transition_matrix=jnp.asarray(transition),
        emission_weights=jnp.asarray(np.swapaxes(coefficients[:, 1:], 1, 2)),
        emission_biases=jnp.asarray(coefficients[:, 0]),
        emission_covariances=jnp.asarray(covariance),
    )
    return hmm, params


def chains_of(demos: btil.Demonstrations, dims: int, autoregressive: bool) -> tuple[Any, Any]:
    """Emissions (chains, steps, dims), and inputs or None, as dynamax takes them."""
    y = np.stack([demos.continuous[f"y{j}"] for j in range(dims)], axis=1)
    y = y.reshape(demos.num_episodes, -1, dims)
    return (y[:, 1:], y[:, :-1]) if autoregressive else (y, None)


def compare_likelihoods(demos: btil.Demonstrations, dims: int, autoregressive: bool) -> float:
    """The largest difference of a chain's log likelihood, as a share of it."""
    with jax.enable_x64(True):
        posterior = btil.fit(model_of(dims, autoregressive), demos, progress=False, dtype="float64")
        ours = posterior.log_likelihood(demos.without_labels())
        hmm, params = theirs(posterior, dims, autoregressive)
        y, inputs = chains_of(demos, dims, autoregressive)
        if inputs is None:
            peer = jax.vmap(lambda one: hmm.marginal_log_prob(params, one))(jnp.asarray(y))
        else:
            peer = jax.vmap(lambda one, given: hmm.marginal_log_prob(params, one, given))(
                jnp.asarray(y), jnp.asarray(inputs)
            )
        peer = np.asarray(peer)
    return float(np.max(np.abs(ours - peer) / np.abs(peer)))


def measure(
    demos: btil.Demonstrations, dims: int, autoregressive: bool, repeats: int
) -> tuple[float, float]:
    """Median seconds of a sweep of btil, and of an iteration of dynamax's EM, taken in turn."""
    model = model_of(dims, autoregressive)
    btils = sweeps(model, demos)
    posterior = btil.fit(model, demos, progress=False)
    hmm, params = theirs(posterior, dims, autoregressive)
    y, inputs = (
        None if part is None else jnp.asarray(part, jnp.float32)
        for part in chains_of(demos, dims, autoregressive)
    )
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    _, properties = type(hmm)(_LATENTS, dims).initialize(jax.random.key(0))

    @jax.jit
    def em(params: Any, m_step_state: Any) -> Any:
        statistics, evidence = jax.vmap(partial(hmm.e_step, params))(y, inputs)
        params, m_step_state = hmm.m_step(params, properties, statistics, m_step_state)
        return params, m_step_state, evidence.sum()

    m_step_state = hmm.initialize_m_step_state(params, properties)

    def iteration() -> Any:
        return em(params, m_step_state)

    timed(btils)
    timed(iteration)
    ours, peer = [], []
    for _ in range(repeats):
        ours.append(timed(btils) / SWEEPS_PER_CALL)
        peer.append(statistics.median(timed(iteration) for _ in range(5)))
    return statistics.median(ours), statistics.median(peer)


def main() -> None:
    """Print differences and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=400)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{options.chains} chains of {options.steps} steps, {_LATENTS} latents; "
        f"{conditions('dynamax')}"
    )
    print("| model | dimensions | log likelihoods differ by | btil, ms | dynamax, ms | times |")
    print("|---|---|---|---|---|---|")
    for autoregressive in (False, True):
        name = "LinearAutoregressiveHMM" if autoregressive else "GaussianHMM"
        for dims in (2, 6, 10):
            demos = draw(options.chains, options.steps, dims, autoregressive)
            apart = compare_likelihoods(demos, dims, autoregressive)
            ours, peer = measure(demos, dims, autoregressive, options.repeats)
            print(
                f"| {name} | {dims} | {apart:.1e} | {1000 * ours:.1f} | {1000 * peer:.1f} "
                f"| {peer / ours:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
