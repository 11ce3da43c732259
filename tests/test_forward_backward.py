"""Scaled messages: as good as logarithms wherever `scaling_suffices` says so."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teams import random_demos, rich_model
from test_emissions import _demos

import btil
from btil.inference import mfvi
from btil.inference.starting import labelled_counts
from btil.messages.layout import LaneIndex, lay_out
from btil.messages.scaled import (
    forward_backward,
    local_step,
    local_step_with_marginals,
    scaling_suffices,
)
from btil.models.team import bind
from btil.numerics.precision import precision

step = jax.jit(local_step, static_argnames="scaled")


def faint_tables(
    generator: np.random.Generator, depth: float, shapes: list[tuple[int, ...]]
) -> list[np.ndarray]:
    """Log tables with entries between 1 and exp(-depth), most of them close to either end."""
    logs = [-depth * np.round(generator.random(shape), 1) for shape in shapes]
    return [np.where(generator.random(table.shape) < 0.3, 0.0, table) for table in logs]


@pytest.mark.parametrize(("dtype", "depth"), [(np.float32, 28.0), (np.float64, 230.0)])
def test_faint_entries_and_labels_against_them_do_not_underflow(dtype: Any, depth: float) -> None:
    assert scaling_suffices(-depth, -depth, np.dtype(dtype))
    # Labels, drawn at random, say again and again what has become all but impossible.
    demos = random_demos(3, (3000, 40, 1, 1, 700), (4,), (3,), labelled=0.1)
    bound = bind(rich_model(), demos)
    layout = lay_out(bound)
    policy, transition, initial = (layout.num_rows[name] for name in layout.sites["ann"])
    generator = np.random.default_rng(0)
    logs = faint_tables(generator, depth, [(policy, 4, 3), (transition, 4, 4), (initial, 4)])
    with precision(dtype):
        tables = [jnp.asarray(table, dtype) for table in logs]
        found = step(*tables, lay_out(bound).index["ann"], scaled=True)
    with precision(np.float64):
        # What the tables are in single precision, in double.
        tables = [jnp.asarray(table.astype(dtype), np.float64) for table in logs]
        expected = step(*tables, lay_out(bound).index["ann"], scaled=False)
    tolerance = 5e-3 if dtype == np.float32 else 1e-9
    for values, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values, wanted, rtol=tolerance / 10, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_chains_do_not_drift(dtype: Any) -> None:
    length = 100_000
    move = np.array([[1 - 1e-12, 5e-13, 5e-13], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]])
    likelihood = np.random.default_rng(0).dirichlet(np.ones(3), length)[..., None]
    with precision(dtype):
        moves = np.tile(move[..., None], (length, 1, 1, 1))
        moves[0] = 1 / 3
        messages = jax.jit(forward_backward)(
            jnp.asarray(moves, dtype), jnp.asarray(likelihood, dtype)
        )
    normalizer, previous, predicted, future = (np.asarray(m, np.float64) for m in messages)
    assert np.isfinite(np.log(normalizer)).all()
    np.testing.assert_allclose((predicted * future).sum(1), 1, rtol=0, atol=1e-6)
    pair = previous[:, :, None] * moves * future[:, None]
    np.testing.assert_allclose(pair.sum((1, 2)), 1, rtol=0, atol=1e-5)


def test_an_impossible_step_has_evidence_zero_and_nothing_is_nan() -> None:
    moves = np.full((4, 2, 2, 2), 0.5, np.float32)
    likelihood = np.full((4, 2, 2), 0.5, np.float32)
    likelihood[2, :, 0] = 0
    messages = forward_backward(jnp.asarray(moves), jnp.asarray(likelihood))
    assert all(np.isfinite(message).all() for message in messages)
    assert messages.normalizer[2, 0] == 0
    np.testing.assert_allclose(messages.normalizer[:, 1], 0.5, rtol=1e-6)


def scaled(model: btil.TeamModel, dtype: Any = np.float32) -> bool:
    bound = bind(model, random_demos(0, (6, 4), (3,), (2,)))
    known = labelled_counts(bound, lay_out(bound).num_rows)
    (chain,) = mfvi.step_forms(bound, known, float(bound.demos.num_steps), np.dtype(dtype))
    return chain.scaled


def test_which_models_take_logarithms() -> None:
    assert scaled(btil.TeamModel())
    assert scaled(btil.TeamModel(initial=btil.KnownCPT([0.1, 0.2, 0.7])))
    assert not scaled(btil.TeamModel(initial=btil.KnownCPT([0.0, 0.3, 0.7])))
    assert scaled(btil.TeamModel(policy=btil.KnownCPT([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])))
    assert not scaled(btil.TeamModel(transition=btil.StaticCPT()))
    faint = btil.TeamModel(policy=btil.DirichletCPT(0.01, parents=("state",)))
    assert not scaled(faint)
    assert scaled(faint, np.float64)


def test_a_label_may_call_back_what_long_evidence_spoke_against() -> None:
    # The latent never moves, 1000 actions speak for latent 0 and then the label says 1.
    demos = btil.Demonstrations(
        states=np.zeros(1000, int),
        actions=np.zeros((1000, 1), int),
        latents=np.r_[np.full(999, -1), 1][:, None],
        num_latents=2,
        num_actions=2,
    )
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.9, 0.1], [0.5, 0.5]]),
        transition=btil.StaticCPT(),
        initial=btil.DirichletCPT(1.0),
    )
    fitted = btil.fit(model, demos, progress=False, dtype=np.float32)
    assert fitted.elbo == pytest.approx(1000 * np.log(0.5) + np.log(0.5), rel=1e-4)
    np.testing.assert_allclose(fitted.smooth(demos, use_labels=True)["agent_0"][:, 1], 1.0)


@pytest.mark.parametrize("num_initial", [1, 3])
def test_a_table_of_one_context_is_not_looked_up_for_every_step(num_initial: int) -> None:
    """Against the same table among others, with starts within lanes, padding and absence."""
    generator = np.random.default_rng(num_initial)
    length, lanes, latents, actions = 9, 4, 3, 2
    start = generator.random((length, lanes)) < 0.3
    start[0] = True
    real = np.ones((length, lanes), bool)
    real[-2:, 1:], real[3, 0] = False, False
    start |= ~real
    start[4, 0] = True
    initial = generator.integers(num_initial, size=(length, lanes))
    label = np.where(generator.random((length, lanes)) < 0.2, 1, -1)
    policy = np.where(real, generator.integers(2 * actions, size=(length, lanes)), 2 * actions)

    def index(num_transition: int) -> LaneIndex:
        begins = np.where(real, num_transition + initial, num_transition + num_initial)
        return LaneIndex(
            policy=jnp.asarray(policy),
            transition=jnp.asarray(np.where(start, begins, 0)),
            label=jnp.asarray(np.where(real, label, -1)),
            start=jnp.asarray(start),
            real=jnp.asarray(real),
        )

    def logs(*shape: int) -> Any:
        return jnp.asarray(np.log(generator.dirichlet(np.ones(shape[-1]), shape[:-1])) - 0.1)

    with precision(np.float64):
        tables = logs(2, latents, actions), logs(1, latents, latents), logs(num_initial, latents)
        others = jnp.concatenate([tables[1], logs(1, latents, latents)])
        counts, evidence = step(*tables, index(1), scaled=True)
        looked_up, expected = step(tables[0], others, tables[2], index(2), scaled=True)
    np.testing.assert_allclose(evidence, expected, rtol=1e-13)
    np.testing.assert_allclose(counts.policy, looked_up.policy, rtol=1e-12)
    np.testing.assert_allclose(counts.transition, looked_up.transition[:1], rtol=1e-12)
    np.testing.assert_allclose(counts.initial, looked_up.initial, rtol=1e-12)
    assert np.asarray(counts.initial).sum() == pytest.approx((start & real).sum())


@pytest.mark.parametrize("scaled", [False, True])
def test_columns_and_weights_are_said_together_of_every_step(scaled: bool, x64: None) -> None:
    """Beside labels and actions, against all paths: evidence, marginals and counts."""
    demos = _demos(lengths=(4, 3), labelled=0)
    labels = demos.latents.copy()
    labels[5] = 1
    weights = np.random.default_rng(1).uniform(0.05, 2.0, size=(7, 2))
    weights[labels[:, 0] >= 0] = 1.0
    demos = demos.replace(latents=labels, latent_weights={"ann": weights})
    model = btil.TeamModel(
        policy={"ann": btil.DirichletCPT(1.0, parents=("state",)), "bob": None},
        transition=btil.DirichletCPT(1.0, parents=("state",)),
    )
    bound = bind(model, demos)
    layout, rows = lay_out(bound), bound.rows["ann"]
    generator = np.random.default_rng(2)
    sizes = [layout.num_rows[name] for name in layout.sites["ann"]]
    shapes = [(sizes[0], 2, 3), (sizes[1], 2, 2), (sizes[2], 2)]
    # Not normalised, as expected logs are not.
    tables = [np.log(generator.dirichlet(np.ones(s[-1]), s[:-1])) - 0.1 for s in shapes]
    said = generator.normal(0, 3.0, size=(7, 2))
    inside = layout.lanes >= 0
    evidence = np.where(inside[..., None], said[layout.lanes], 0.0)

    found = jax.jit(local_step_with_marginals, static_argnames="scaled")(
        *map(jnp.asarray, tables),
        jax.tree.map(jnp.asarray, layout.index["ann"]),
        jnp.asarray(np.swapaxes(evidence, 1, 2)),
        scaled=scaled,
    )
    counts, of_lanes, marginal = (jax.tree.map(np.asarray, part) for part in found)
    expected = [np.zeros(shape) for shape in shapes]
    marginals, total = np.zeros((7, 2)), 0.0
    first = demos.episode_starts.tolist()
    for episode, steps in enumerate(([0, 1, 2, 3], [4, 5, 6])):
        logs, uses = [], []
        for path in itertools.product(range(2), repeat=len(steps)):
            if any(labels[t, 0] not in (-1, k) for t, k in zip(steps, path, strict=True)):
                continue
            own = [np.zeros(shape) for shape in shapes]
            log = tables[2][rows.initial[episode], path[0]]
            own[2][rows.initial[episode], path[0]] += 1
            for place, (t, k) in enumerate(zip(steps, path, strict=True)):
                action = demos.actions[t, 0]
                log += tables[0][rows.policy[t], k, action] + said[t, k]
                log += np.log(demos.latent_weights["ann"][t, k])
                own[0][rows.policy[t], k, action] += 1
                if t not in first:
                    log += tables[1][rows.transition[t], path[place - 1], k]
                    own[1][rows.transition[t], path[place - 1], k] += 1
            logs.append(log)
            uses.append((path, own))
        shift = np.logaddexp.reduce(logs)
        total += shift
        for log, (path, own) in zip(logs, uses, strict=True):
            for t, k in zip(steps, path, strict=True):
                marginals[t, k] += np.exp(log - shift)
            for whole, part in zip(expected, own, strict=True):
                whole += np.exp(log - shift) * part
    assert of_lanes.sum() == pytest.approx(total, rel=1e-10)
    laid = np.swapaxes(marginal, 1, 2)[inside]
    np.testing.assert_allclose(laid, marginals[layout.lanes[inside]], atol=1e-10)
    for one, other in zip(counts[:3], expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
