"""LatentChain against sums over every latent sequence."""

import itertools
import math

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("x64")


def brute_force(initial, transition, policy, actions, labels, length):
    """p(actions, labels) of one episode as a sum over latent sequences."""
    latents = len(initial)
    total = 0.0
    for path in itertools.product(range(latents), repeat=length):
        if any(0 <= label != x for label, x in zip(labels, path, strict=False)):
            continue
        probability = initial[path[0]]
        for t in range(length):
            probability *= policy[t, path[t], actions[t]]
        for t in range(length - 1):
            probability *= transition[t, path[t], path[t + 1]]
        total += probability
    return total


def random_chain(generator, episodes=3, steps=4, latents=3, actions=2):
    return (
        generator.dirichlet(np.ones(latents), episodes),
        generator.dirichlet(np.ones(latents), (episodes, steps - 1, latents)),
        generator.dirichlet(np.ones(actions), (episodes, steps, latents)),
        generator.integers(actions, size=(episodes, steps)),
    )


def log_prob(initial, transition, policy, actions, labels=None, lengths=None):
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    with np.errstate(divide="ignore"):
        logs = [jnp.asarray(np.log(p)) for p in (initial, transition, policy)]
    chain = LatentChain(
        *logs,
        None if labels is None else jnp.asarray(labels),
        None if lengths is None else jnp.asarray(lengths),
    )
    return np.asarray(chain.log_prob(jnp.asarray(actions)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("episodes", "steps", "latents"), [(3, 4, 3), (2, 4, 2), (2, 2, 2)])
def test_log_prob_is_the_sum_over_sequences(seed, episodes, steps, latents):
    generator = np.random.default_rng(seed)
    initial, transition, policy, actions = random_chain(generator, episodes, steps, latents)
    labels = np.where(
        generator.random((episodes, steps)) < 0.3,
        generator.integers(latents, size=(episodes, steps)),
        -1,
    )
    lengths = generator.integers(1, steps + 1, size=episodes)
    expected = [
        brute_force(initial[m], transition[m], policy[m], actions[m], labels[m], lengths[m])
        for m in range(episodes)
    ]
    got = log_prob(initial, transition, policy, actions, labels, lengths)
    np.testing.assert_allclose(got, np.log(expected), atol=1e-12)


def test_padding_may_hold_anything():
    generator = np.random.default_rng(0)
    initial, transition, policy, actions = random_chain(generator)
    lengths = np.array([4, 2, 1])
    expected = log_prob(initial, transition, policy, actions, None, lengths)
    for m, length in enumerate(lengths):
        policy[m, length:] = 0.0
        transition[m, length - 1 :] = 0.0
        actions[m, length:] = 99
    labels = np.full(actions.shape, -1)
    labels[2, 3] = 1
    got = log_prob(initial, transition, policy, actions, labels, lengths)
    np.testing.assert_array_equal(got, expected)


def test_one_step():
    got = log_prob(
        np.array([[0.25, 0.75]]),
        np.zeros((1, 0, 2, 2)),
        np.array([[[[0.5, 0.5], [0.2, 0.8]]]]),
        np.array([[1]]),
    )
    np.testing.assert_allclose(np.exp(got), [0.25 * 0.5 + 0.75 * 0.8], rtol=1e-14)


def impossible_chain():
    """Case: known policy with zeros, the second action is never taken."""
    initial = np.full((2, 2), 0.5)
    transition = np.full((2, 2, 2, 2), 0.5)
    policy = np.broadcast_to(np.array([[1.0, 0, 0], [0, 1.0, 0]]), (2, 3, 2, 3))
    return initial, transition, policy, np.array([[0, 2, 1], [0, 1, 1]])


def test_impossible_is_minus_infinity():
    got = log_prob(*impossible_chain())
    assert got[0] == -np.inf
    np.testing.assert_allclose(got[1], math.log(0.125), atol=1e-14)


def test_impossible_label_is_minus_infinity():
    initial, transition, policy, _ = impossible_chain()
    labels = np.array([[0, -1, -1], [-1, 0, -1]])
    actions = np.array([[0, 1, 1], [0, 1, 1]])
    got = log_prob(initial, transition, policy, actions, labels)
    np.testing.assert_allclose(got, [math.log(0.25 * 0.5), -np.inf], atol=1e-14)


def test_gradients_are_finite_next_to_zeros_and_right():
    import jax
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    initial, transition, policy, actions = impossible_chain()
    with np.errstate(divide="ignore"):
        logs = [jnp.asarray(np.log(p)) for p in (initial, transition, policy)]

    def possible_episode(logs):
        return LatentChain(*logs).log_prob(jnp.asarray(actions))[1]

    def both(logs):
        return jnp.sum(LatentChain(*logs).log_prob(jnp.asarray(actions)))

    for function in (possible_episode, both):
        for part in jax.grad(function)(logs):
            assert np.isfinite(part).all()
    # The gradient in log rows is the expected number of uses: here the path is 0 1 1.
    of_initial, of_transition, of_policy = jax.grad(possible_episode)(logs)
    np.testing.assert_allclose(of_initial[1], [1, 0], atol=1e-14)
    np.testing.assert_allclose(of_transition[1], [[[0, 1], [0, 0]], [[0, 0], [0, 1]]], atol=1e-14)
    np.testing.assert_allclose(of_policy[1, 1], [[0, 0, 0], [0, 1, 0]], atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_chain_with_extreme_probabilities(dtype):
    """100,000 steps; a latent that stays with probability 1 - 1e-12 (1 in single precision)."""
    import jax
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    steps = 100_000
    stay = 1 - 1e-12
    initial = np.array([[1.0, 0.0]])
    move = np.array([[stay, 1 - stay], [0.0, 1.0]])
    policy = np.array([[0.5, 0.5], [1e-12, 1 - 1e-12]])
    with np.errstate(divide="ignore"):
        chain = LatentChain(
            jnp.asarray(np.log(initial), dtype),
            jnp.broadcast_to(jnp.asarray(np.log(move), dtype), (1, steps - 1, 2, 2)),
            jnp.broadcast_to(jnp.asarray(np.log(policy), dtype), (1, steps, 2, 2)),
        )
    actions = np.zeros((1, steps), int)
    got = float(jax.jit(lambda a: chain.log_prob(a)[0])(jnp.asarray(actions)))
    # Leaving latent 0 makes the actions 1e12 times less likely: only the path that stays counts.
    exact = steps * math.log(0.5) + (steps - 1) * math.log1p(-1e-12)
    np.testing.assert_allclose(got, exact, rtol=1e-9 if dtype == np.float64 else 1e-4)


def test_sampling_is_refused():
    import jax
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    chain = LatentChain(jnp.zeros((1, 1)), jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 2, 1, 1)))
    with pytest.raises(NotImplementedError, match="later states depend on the sampled actions"):
        chain.sample(jax.random.key(0))


def test_shapes_are_checked_and_known():
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    chain = LatentChain(jnp.zeros((3, 2)), jnp.zeros((3, 4, 2, 2)), jnp.zeros((3, 5, 2, 6)))
    assert (chain.batch_shape, chain.event_shape) == ((3,), (5,))
    shapes = [
        ((3, 3), (3, 4, 2, 2), r"log_initial has shape \(3, 3\), expected \(3, 2\)"),
        ((3, 2), (3, 5, 2, 2), r"log_transition has shape \(3, 5, 2, 2\), expected \(3, 4, 2, 2\)"),
    ]
    for initial, transition, message in shapes:
        # In a test run the annotated shapes may be refused first, by the type checker.
        with pytest.raises(Exception, match=f"{message}|[Tt]ype-check"):
            LatentChain(jnp.zeros(initial), jnp.zeros(transition), jnp.zeros((3, 5, 2, 6)))


def test_what_else_was_measured_counts_and_unseen_actions_do_not():
    """By enumeration; what is measured at padding counts nothing."""
    import jax.numpy as jnp

    from btil.numpyro_forms.latent_chain import LatentChain

    generator = np.random.default_rng(5)
    initial, transition, policy, _ = random_chain(generator, 2, 4, 2)
    measured = generator.uniform(0.1, 3.0, (2, 4, 2))
    lengths, labels = np.array([4, 2]), np.array([[-1, 1, -1, -1], [0, -1, -1, -1]])
    seen = np.array([[0, -1, 1, 1], [-1, 0, 0, 0]])
    chain = LatentChain(
        *(jnp.log(p) for p in (initial, transition, policy)), jnp.asarray(labels),
        jnp.asarray(lengths), jnp.log(measured),
    )  # fmt: skip
    found = np.asarray(chain.log_prob(jnp.asarray(seen)))
    # Where an action was seen its probability, elsewhere 1, both times what was measured.
    factors = np.stack([np.ones_like(policy[..., 0]), policy[..., 0], policy[..., 1]], axis=-1)
    given = factors * measured[..., None]
    for m in range(2):
        expected = brute_force(
            initial[m], transition[m], given[m], seen[m] + 1, labels[m], lengths[m]
        )
        assert found[m] == pytest.approx(np.log(expected), abs=1e-10)
