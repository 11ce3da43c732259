"""How good the mean field of tables with parameters is, and how long its first fit takes.

`python benchmarks/families.py` (some minutes on an idle machine) prints three tables; name some of
them to have these alone.

- `bounds`: rows that are a function of parameters. The bound of btil's q on made data, by many
  fresh points, beside the best that Adam finds with points drawn anew at every step, in an
  implementation of its own: of independent normals, and of joint ones as btil's are. Positive gaps
  are what btil is short of.
- `evidence`: rows that are Dirichlet given parameters. Bound and posterior of the strength beside
  the log evidence and posterior by quadrature over the parameters and sums over all latents.
- `cold`: seconds of the first fit in a new process, libraries and compilation included, and of a
  second one. To be under 10 seconds.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpyro import distributions as dist
from scipy import special, stats
from timing import conditions

import btil

SCALE = 1.5
"""Prior standard deviation of the regression's biases and weights."""


# ---------------------------------------------------------------------- bounds


class Setting(NamedTuple):
    """Made data: steps in episodes of equal length, sizes, and values of two parents."""

    steps: int
    length: int
    latents: int
    actions: int
    parents: tuple[int, ...]


SETTINGS = (
    Setting(60, 20, 3, 3, (3,)),
    Setting(300, 20, 3, 3, (3,)),
    Setting(500, 25, 3, 4, (4, 5)),
)


class Chains(NamedTuple):
    """The data as the other implementation reads them, episodes first.

    Attributes:
        features: Of every context: 1, and one number per value of each parent.
        context: The context of each step, (episodes, length).
        actions: Actions.
        labels: Known latents or -1.
    """

    features: Float[Array, "contexts features"]
    context: Any
    actions: Any
    labels: Any


def made_data(setting: Setting, seed: int = 0) -> btil.Demonstrations:
    """A member that acts by a softmax regression, half of its steps labelled."""
    generator = np.random.default_rng(seed)
    size = (setting.steps // setting.length, setting.length)
    parents = {f"x{k}": generator.integers(n, size=size) for k, n in enumerate(setting.parents)}
    weights = [
        generator.normal(0, SCALE, (setting.latents, n, setting.actions)) for n in setting.parents
    ]
    bias = generator.normal(0, SCALE, (setting.latents, setting.actions))
    latents, actions = np.zeros(size, int), np.zeros(size, int)
    for m, t in itertools.product(*map(range, size)):
        stays = t and generator.random() < 0.8
        latents[m, t] = latents[m, t - 1] if stays else generator.integers(setting.latents)
        scores = bias[latents[m, t]] + sum(
            one[latents[m, t], parents[f"x{k}"][m, t]] for k, one in enumerate(weights)
        )
        actions[m, t] = generator.choice(setting.actions, p=special.softmax(scores))
    known = np.where(generator.random(size) < 0.5, latents, -1)
    return btil.Demonstrations(
        {name: values.ravel() for name, values in parents.items()},
        {"ann": actions.ravel()},
        {"ann": known.ravel()},
        episodes=np.repeat(np.arange(size[0]), size[1]),
        num_states=dict(zip(parents, setting.parents, strict=True)),
        num_latents=setting.latents,
        num_actions=setting.actions,
    )


def chains_of(demos: btil.Demonstrations, length: int) -> Chains:
    """The data as arrays by episode."""
    columns = [np.ones((demos.num_steps, 1))]
    for name, values in demos.state_variables.items():
        columns.append(values[:, None] == np.arange(demos.num_states[name]))
    features, context = np.unique(np.concatenate(columns, 1), axis=0, return_inverse=True)
    return Chains(
        jnp.asarray(features),
        jnp.asarray(context.reshape(-1, length)),
        jnp.asarray(demos.actions.reshape(-1, length)),
        jnp.asarray(demos.latents.reshape(-1, length)),
    )


class Free(NamedTuple):
    """What Adam moves.

    Attributes:
        location: Means of bias and weights, (features, latents, actions) flattened.
        log_scale: Logs of the diagonal of their covariance's factor.
        below: What is below that diagonal; None for independent normals.
        log_concentration: Of the transition's Dirichlet rows.
    """

    location: Float[Array, " values"]
    log_scale: Float[Array, " values"]
    below: Float[Array, "values values"] | None
    log_concentration: Float[Array, "latents latents"]


@jax.jit
def bound_of(free: Free, points: Float[Array, "points values"], chains: Chains) -> Array:
    """The bound at given points: log normalisers of the chains less divergences."""
    w = jnp.exp(free.log_concentration)
    latents = len(w)
    scale = jnp.exp(free.log_scale)
    noise = points * scale
    if free.below is not None:
        noise = noise + points @ jnp.tril(free.below, -1).T
    weights = (free.location + noise).reshape(len(points), chains.features.shape[-1], latents, -1)
    scores = jnp.einsum("cf,pfka->pcka", chains.features, weights)
    logs = jax.nn.log_softmax(scores, axis=-1).mean(0)[chains.context]
    likelihood = jnp.take_along_axis(logs, chains.actions[..., None, None], -1)[..., 0]
    known = chains.labels[..., None]
    likelihood = jnp.where((known < 0) | (known == jnp.arange(latents)), likelihood, -jnp.inf)
    psi = jax.scipy.special.digamma
    moves = psi(w) - psi(w.sum(-1, keepdims=True))

    def step(before: Array, log_likelihood: Array) -> tuple[Array, None]:
        return jax.nn.logsumexp(before[..., None] + moves, axis=-2) + log_likelihood, None

    first = likelihood[:, 0] - jnp.log(latents)
    last, _ = jax.lax.scan(step, first, jnp.swapaxes(likelihood[:, 1:], 0, 1))
    of_rows = jnp.sum(dist.kl_divergence(dist.Dirichlet(w), dist.Dirichlet(jnp.ones_like(w))))
    below = 0.0 if free.below is None else jnp.sum(jnp.tril(free.below, -1) ** 2)
    squares = jnp.sum(free.location**2) + jnp.sum(scale**2) + below
    size = len(free.location)
    of_weights = (
        0.5 * squares / SCALE**2 - 0.5 * size + size * jnp.log(SCALE) - jnp.sum(free.log_scale)
    )
    return jnp.sum(jax.nn.logsumexp(last, axis=-1)) - of_rows - of_weights


def evaluated(free: Free, chains: Chains, repeats: int = 40) -> tuple[float, float]:
    """The bound by many fresh points, and its standard error."""
    values = []
    for seed in range(repeats):
        half = np.random.default_rng([seed, 7]).standard_normal((2048, len(free.location)))
        values.append(float(bound_of(free, jnp.asarray(np.concatenate([half, -half])), chains)))
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(repeats))


def by_adam(start: Free, chains: Chains, iterations: int) -> Free:
    """The best q that Adam finds, with fresh points at each step and its last quarter averaged."""
    schedule = optax.exponential_decay(0.05, iterations, 0.01)
    optimizer = optax.adam(schedule)
    gradient = jax.grad(lambda free, points: -bound_of(free, points, chains))

    @jax.jit
    def run(start: Free) -> Free:
        def update(carry: Any, number: Array) -> tuple[Any, None]:
            free, state, total = carry
            half = jax.random.normal(
                jax.random.fold_in(jax.random.key(0), number), (128, len(free.location))
            )
            change, state = optimizer.update(gradient(free, jnp.concatenate([half, -half])), state)
            free = optax.apply_updates(free, change)
            late = number >= iterations - iterations // 4
            total = jax.tree.map(lambda s, one: s + jnp.where(late, one, 0.0), total, free)
            return (free, state, total), None

        begin = (start, optimizer.init(start), jax.tree.map(jnp.zeros_like, start))
        (_, _, total), _ = jax.lax.scan(update, begin, jnp.arange(iterations))
        return jax.tree.map(lambda values: values / (iterations // 4), total)

    return run(start)


def ours(posterior: btil.TeamPosterior) -> Free:
    """The q that btil found."""
    parameters = posterior.result.parameters
    parts = [parameters["policy_ann_bias"], parameters["policy_ann_weights"]]
    # Features first, as the other implementation has them.
    location = np.concatenate(
        [parts[0].location[None], np.swapaxes(parts[1].location, 0, 1)], axis=0
    )
    factor = np.concatenate([parts[0].factor[None], np.swapaxes(parts[1].factor, 0, 1)], axis=0)
    size = location.size
    rows = factor.reshape(size, size).astype(np.float64)
    lower = np.linalg.cholesky(rows @ rows.T)
    concentration = np.asarray(posterior.result.rows["transition_ann"].concentration[0])
    return Free(
        jnp.asarray(location.reshape(-1), float),
        jnp.asarray(np.log(np.diag(lower))),
        jnp.asarray(np.tril(lower, -1)),
        jnp.log(jnp.asarray(concentration, float)),
    )


def alone(free: Free) -> Free:
    """The independent normals that are nearest, of the same precisions."""
    assert free.below is not None
    lower = free.below + jnp.diag(jnp.exp(free.log_scale))
    precision = jnp.linalg.inv(lower @ lower.T)
    return free._replace(log_scale=-0.5 * jnp.log(jnp.diag(precision)), below=None)


def print_bounds(iterations: int) -> None:
    """One line for each made data set."""
    print(
        "steps | values | bound of q | as reported | end of trace | best independent, gap | "
        "best joint, gap | rows, change by seed | first fit, s | second, s"
    )
    for setting in SETTINGS:
        demos = made_data(setting)
        model = btil.TeamModel(
            btil.SoftmaxCPT(tuple(demos.num_states), weight_scale=SCALE, bias_scale=SCALE),
            btil.DirichletCPT(1.0),
        )
        seconds, posteriors = [], []
        for seed in (0, 1):
            begun = time.perf_counter()
            posteriors.append(btil.fit(model, demos, seed=seed, progress=False, dtype="float64"))
            seconds.append(time.perf_counter() - begun)
        posterior = posteriors[0]
        states = np.stack(np.unravel_index(np.arange(np.prod(setting.parents)), setting.parents), 1)
        change = max(
            np.abs(one.policy("ann", states) - posterior.policy("ann", states)).max()
            for one in posteriors
        )
        with jax.enable_x64(True):
            chains, found = chains_of(demos, setting.length), ours(posterior)
            bound, error = evaluated(found, chains)
            best = {}
            for name, near in (("independent", alone(found)), ("joint", found)):
                far = near._replace(
                    location=jnp.zeros_like(near.location),
                    log_scale=jnp.full_like(near.log_scale, -1.0),
                    below=None if near.below is None else jnp.zeros_like(near.below),
                )
                ends = [by_adam(start, chains, iterations) for start in (near, far)]
                best[name] = max(evaluated(end, chains) for end in ends)
        print(
            f"{setting.steps} | {found.location.size} | {bound:.3f} ± {error:.3f} | "
            f"{posterior.elbo:.3f} ± {posterior.elbo_se:.3f} | {posterior.elbo_trace[-1]:.3f} | "
            + " | ".join(f"{b:.3f} ± {e:.3f}, {b - bound:.3f}" for b, e in best.values())
            + f" | {change:.1e} | {seconds[0]:.1f} | {seconds[1]:.1f}",
            flush=True,
        )


# ---------------------------------------------------------------------- evidence


def log_beta(u: np.ndarray) -> Any:
    """Log of the multivariate beta function of rows."""
    return special.gammaln(u).sum(-1) - special.gammaln(u.sum(-1))


class Truth(NamedTuple):
    """By quadrature: the log evidence, mean and standard deviation of the log strength."""

    log_evidence: float
    mean: float
    sd: float


def by_quadrature(demos: btil.Demonstrations) -> Truth:
    """One member, two actions, hierarchical policy by state, transition Dirichlet(1)."""
    latents, states = demos.num_latents[0], demos.num_states["state"]
    log_strength = np.linspace(2 - 9, 2 + 9, 97)
    logit = np.linspace(-16, 16, 129)
    strength = np.exp(log_strength)[:, None, None, None]
    base = special.expit(logit)[:, None, None]
    u = strength * np.concatenate([base, 1 - base], -1)
    log_base = -np.logaddexp(0, logit) - np.logaddexp(0, -logit)
    known: dict[bytes, np.ndarray] = {}

    def of_latent(counts: np.ndarray) -> np.ndarray:
        """Log probability of a latent's actions at every strength."""
        key = counts.tobytes()
        if key not in known:
            gain = (log_beta(u + counts) - log_beta(u)).sum(-1) + log_base
            known[key] = special.logsumexp(gain, axis=1) + np.log(logit[1] - logit[0])
        return known[key]

    labels, actions = demos.latents[:, 0], demos.actions[:, 0]
    free = np.flatnonzero(labels < 0)
    terms = []
    for values in itertools.product(range(latents), repeat=len(free)):
        path = labels.copy()
        path[free] = values
        uses, moves = np.zeros((latents, states, 2)), np.zeros((latents, latents))
        np.add.at(uses, (path, demos.states, actions), 1)
        np.add.at(moves, (path[:-1], path[1:]), 1)
        of_moves = (log_beta(1 + moves) - log_beta(np.ones_like(moves))).sum() - np.log(latents)
        terms.append(sum(of_latent(own) for own in uses) + of_moves)
    joint = special.logsumexp(terms, axis=0) + stats.norm(2, 1.5).logpdf(log_strength)
    total = special.logsumexp(joint)
    shares = np.exp(joint - total)
    mean = float(shares @ log_strength)
    sd = float(np.sqrt(shares @ log_strength**2 - mean**2))
    return Truth(float(total + np.log(log_strength[1] - log_strength[0])), mean, sd)


def few_steps(steps: int, states: int, labelled: float, seed: int) -> btil.Demonstrations:
    """Mostly action 0 under latent 0, action 1 under latent 1."""
    generator = np.random.default_rng(seed)
    latents = generator.integers(2, size=steps)
    return btil.Demonstrations(
        generator.integers(states, size=steps),
        np.where(generator.random(steps) < 0.8, latents, 1 - latents)[:, None],
        np.where(np.arange(steps) < labelled * steps, latents, -1)[:, None],
        num_states=states,
        num_latents=2,
        num_actions=2,
    )


def print_evidence() -> None:
    """One line for each small data set."""
    print("steps | labelled | log evidence | bound | gap | log strength, exact | log strength, q")
    model = btil.TeamModel(
        btil.HierarchicalDirichletCPT(parents=("state",)), btil.DirichletCPT(1.0)
    )
    for steps, states, labelled, seed in [
        *((8, 2, 1.0, seed) for seed in range(3)),
        *((8, 2, 0.5, seed) for seed in range(3)),
        *((14, 3, 0.5, seed) for seed in range(3)),
    ]:
        demos = few_steps(steps, states, labelled, seed)
        truth = by_quadrature(demos)
        posterior = btil.fit(model, demos, progress=False, dtype="float64")
        strength = posterior.result.parameters["policy_agent_0_strength"]
        print(
            f"{steps} | {labelled:.0%} | {truth.log_evidence:.3f} | {posterior.elbo:.3f} ± "
            f"{posterior.elbo_se:.3f} | {truth.log_evidence - posterior.elbo:.3f} | "
            f"{truth.mean:.2f} ± {truth.sd:.2f} | {float(strength.location):.2f} ± "
            f"{float(strength.scale):.2f}",
            flush=True,
        )


# ---------------------------------------------------------------------- first fits

_CHILD = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
import btil
parents = ("x", "y")
model = {
    "plain": lambda: btil.TeamModel(btil.DirichletCPT(1.0, parents)),
    "hierarchical": lambda: btil.TeamModel(
        btil.HierarchicalDirichletCPT(parents=parents),
        btil.HierarchicalDirichletCPT(stay=2.0, parents=("x",)),
    ),
    "stick-breaking": lambda: btil.TeamModel(
        btil.DirichletCPT(1.0, parents),
        btil.StickBreakingCPT(1.0, stay=2.0),
        btil.StickBreakingCPT(1.0, strength=3.0),
    ),
    "softmax": lambda: btil.TeamModel(btil.SoftmaxCPT(parents), btil.SoftmaxCPT(("x",))),
    "one of each": lambda: btil.TeamModel(
        btil.SoftmaxCPT(parents),
        btil.HierarchicalDirichletCPT(stay=1.0, parents=("x",)),
        btil.StickBreakingCPT(1.0, strength=3.0),
    ),
}[sys.argv[1]]()
generator = np.random.default_rng(0)
steps = 200
latents = np.where(np.arange(steps) < 100, generator.integers(3, size=steps), -1)
demos = btil.Demonstrations(
    {"x": generator.integers(3, size=steps), "y": generator.integers(3, size=steps)},
    {"ann": generator.integers(3, size=steps)},
    {"ann": latents},
    episodes=np.repeat(np.arange(10), 20),
    num_latents=3,
)
seconds = [time.perf_counter() - begin]
processor = []
for seed in (0, 1):
    begin, used = time.perf_counter(), time.process_time()
    posterior = btil.fit(model, demos, seed=seed, progress=False)
    seconds.append(time.perf_counter() - begin)
    processor.append(time.process_time() - used)
print(json.dumps([*seconds, *processor, len(posterior.elbo_trace)]))
"""


def print_cold() -> None:
    """One line for each model, each in a process of its own."""
    print("model | first fit, s | processor, s | second fit, s | processor, s | sweeps")
    for name in ("plain", "hierarchical", "stick-breaking", "softmax", "one of each"):
        command = [sys.executable, "-c", _CHILD, name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        _, first, second, own, later, sweeps = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name} | {first:.1f} | {own:.1f} | {second:.2f} | {later:.2f} | {sweeps}", flush=True
        )


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = ("bounds", "evidence", "cold")
    parser.add_argument("tables", nargs="*", choices=[*tables, []], default=tables)
    parser.add_argument("--iterations", type=int, default=8000, help="of Adam")
    arguments = parser.parse_args()
    print(conditions("numpyro", "optax"))
    programs = {
        "bounds": partial(print_bounds, arguments.iterations),
        "evidence": print_evidence,
        "cold": print_cold,
    }
    for name in arguments.tables:
        print(f"\n{name}")
        programs[name]()


if __name__ == "__main__":
    main()
