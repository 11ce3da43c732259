"""Jumps of the Gibbs sampler between the paths around which its chains were in the warmup.

That they leave the distribution of whole paths as it is stands in test_path_moves.py; here the
sampler finds the landmarks itself.
"""

from functools import partial

import jax
import numpy as np
import pytest
from test_checkpoint import Stopped, assert_same_bits, stop_after

import btil
from btil.inference import gibbs
from btil.messages.layout import lay_out
from btil.models.team import bind

pytestmark = [
    # Two steps of each place are little to learn from.
    pytest.mark.filterwarnings("ignore:the model cannot learn"),
    pytest.mark.usefixtures("few_moves"),
]

PLACES = 6


def two_stories():
    """Ann's mind lasts an episode; in half of the places nobody knows whether it is "a" or "c".

    A first use of "c" costs as much as 500 later ones save, so that chains keep to one story.
    """
    places = np.repeat(np.arange(PLACES), 2)
    labels = np.full(2 * PLACES, -1)
    labels[:2] = 0
    labels[-2:] = 1
    demos = btil.Demonstrations(
        {"place": places},
        (places >= PLACES // 2).astype(int),
        labels,
        episodes=np.repeat(np.arange(PLACES), 2),
        agents=("ann",),
        num_actions=2,
        latent_names=("a", "b", "c"),
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.05, parents=("place",)),
        transition=btil.DirichletCPT(np.where(np.eye(3), 1e4, 1e-3)),
        initial=btil.DirichletCPT(0.02),
    )
    return model, demos


def run(model, demos, **options):
    options = {"num_chains": 4, "num_warmup": 60, "num_samples": 60, "seed": 1} | options
    return btil.fit(model, demos, "gibbs", progress=False, dtype=np.float64, **options)


def test_jumps_keep_the_exact_posterior():
    model, demos = two_stories()
    chains = run(model, demos, num_warmup=100, num_samples=2000)
    exact = btil.fit(model, demos, "exact", progress=False, dtype=np.float64)
    assert chains.result.sample_stats["moves_jumps"].sum() > 100
    for name, rows in chains.result.rows.items():
        # Batches of 100 draws are nearly independent.
        batches = rows.draws.reshape(-1, 100, *rows.draws.shape[2:]).mean(1)
        error = batches.std(0, ddof=1) / np.sqrt(len(batches))
        off = np.abs(batches.mean(0) - exact.result.rows[name].mean())
        assert (off < 4.5 * error + 1e-6).all(), name
        assert error.max() < 0.01


def test_a_run_that_was_stopped_jumps_as_the_whole_one(tmp_path, monkeypatch):
    model, demos = two_stories()
    whole = run(model, demos)
    path = tmp_path / "run.checkpoint"
    for blocks in (1, 1):  # in the warmup, and at its end: landmarks have been noted
        with monkeypatch.context() as patch:
            stop_after(patch, blocks)
            with pytest.raises(Stopped):
                run(model, demos, checkpoint=path, resume=True)
    assert_same_bits(run(model, demos, checkpoint=path, resume=True), whole)
    jumps = whole.result.sample_stats["moves_jumps"].sum()
    assert jumps > 0
    assert (whole.draws_info["moves_jumps"] == jumps).all()


def test_chains_on_devices_jump_alike():
    model, demos = two_stories()
    one, two = (run(model, demos, devices=devices) for devices in (None, 2))
    jumps = one.result.sample_stats["moves_jumps"]
    np.testing.assert_array_equal(jumps, two.result.sample_stats["moves_jumps"])
    assert jumps.sum() > 0


def test_landmarks_are_what_chains_have_mostly(monkeypatch):
    """Each iteration of a call is counted once, and none after its end."""
    model, demos = two_stories()
    noted, laid = [], gibbs._laid_landmarks

    def noting(paths, *others):
        noted.append(list(paths))
        return laid(paths, *others)

    monkeypatch.setattr(gibbs, "_laid_landmarks", noting)
    run(model, demos, num_warmup=40, num_samples=1)
    assert len(noted) == 1 + 2  # none yet; after 25 iterations; after 40
    filled = [[np.abs(one).max() > 0 for one in landmarks] for landmarks in noted]
    assert filled == [[False] * 4, [False, True, False, False], [False, True, False, True]]
    for landmark in noted[-1][3]:
        path = landmark.reshape(-1)
        assert set(path.tolist()) <= {0, 1, 2}


@pytest.mark.usefixtures("x64")
def test_paths_of_every_iteration_are_not_kept():
    """With hundreds of chains, as `refined` has them, they would be gigabytes."""
    model, demos = two_stories()
    bound = bind(model, demos)
    layout = lay_out(bound)
    problem, program = gibbs.prepare(bound, layout, np.dtype(np.float64), True)
    states = gibbs._start(bound, layout, (), {}, 0, 3, np.dtype(np.float64))
    keys = jax.random.split(jax.random.key(0), 3)
    for landmarks in (None, gibbs._laid_landmarks(gibbs._no_landmarks(problem, 3), bound, None)):
        laid = problem._replace(landmarks=landmarks)
        advance = partial(gibbs.advance, program=program, kept={})
        *_, (_, info) = jax.eval_shape(advance, keys, states, laid, 0, 1, 1)
        assert info.moved is not None
        assert info.paths is None


def two_kinds():
    """Ann and Bob share all tables; of episodes of the second kind nobody knows the mental state.

    All of these are explained by one of two states: a row of the initial table with concentrations
    as small as this has one cell.
    """
    kinds, steps = [0, 0, 1, 1, 1], 2
    labels = np.repeat([[0, 1], [1, 0], [-1, -1], [-1, -1], [-1, -1]], steps, 0)
    demos = btil.Demonstrations(
        {"kind": np.repeat(kinds, steps)},
        np.where(labels < 0, 1, labels),
        labels,
        episodes=np.repeat(np.arange(len(kinds)), steps),
        agents=("ann", "bob"),
        num_actions=2,
        latent_names=("wait", "go"),
    )
    model = btil.TeamModel(
        policy=btil.Shared(btil.DirichletCPT(0.5, parents=("kind",))),
        transition=btil.Shared(btil.DirichletCPT(np.where(np.eye(2), 1e4, 1e-3))),
        initial=btil.Shared(btil.DirichletCPT([0.04, 0.01], parents=("kind",))),
    )
    return model, demos


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_those_of_enumeration(seed):
    model, demos = two_kinds()
    exact = btil.fit(model, demos, "exact", progress=False, dtype=np.float64)
    rows = exact.result.rows["initial"]
    wait, go = np.moveaxis(rows.concentration[:, 1], -1, 0)
    truth = float(rows.weights[go > wait].sum())
    assert 0.15 < truth < 0.25
    posterior = run(model, demos, num_warmup=100, num_samples=1500, seed=seed)
    assert posterior.converged, posterior.reason
    large, small = btil.analysis.weigh_modes(posterior)
    assert large.weight + small.weight == 1
    assert 0 < small.weight_se < 0.03
    assert abs(small.weight - truth) < 3.5 * small.weight_se
    assert small.crossings > 100


@pytest.mark.parametrize("shared", [True, False])
def test_who_shares_tables_with_a_labelled_one_jumps_too(shared):
    """Latents that the other's labels name are told apart; of three two without label are not."""
    one = btil.DirichletCPT(0.05)
    model = btil.TeamModel(policy=btil.Shared(one) if shared else one)
    labels = [[0, -1], [1, -1], [-1, -1], [-1, -1]]
    demos = btil.Demonstrations(
        [0] * 4, [[0, 1]] * 4, labels, agents=("ann", "bob"), num_actions=2, num_latents=(4, 4)
    )
    paths = [np.zeros((1, 4, 6), np.int16)]  # three lanes of each
    kind = np.asarray(gibbs._laid_landmarks(paths, bind(model, demos), None).kind)
    np.testing.assert_array_equal(kind[:3], [[0, 1, 2, 2]] * 3)
    np.testing.assert_array_equal(kind[3:6], [[0, 1, 2, 2] if shared else [0] * 4] * 3)
