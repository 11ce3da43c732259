"""Case 29 and its kind: an own NumPyro model is checked, compiled and saved as tables are.

And what a latent explains besides actions (`log_likelihood`), against sums over every latent path.
"""

import functools
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer.util import log_density

import btil
from btil.analysis.compare import compare_posteriors
from btil.identity import checksum, functions_reached, globals_read
from btil.inference import checkpoint
from btil.inference.collapsed import collapsed_data, given_rows
from btil.inference.result import DrawnParameters, FitResult
from btil.models.team import bind
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, rows_somewhere
from btil.numpyro_forms.tracing import traced_anew
from btil.posterior.numpyro_posterior import NumpyroPosterior, bind_model

SCHEDULE: dict[str, dict[str, Any]] = {
    "svi": {"max_iterations": 200, "num_samples": 50, "num_particles": 1},
    "nuts": {"num_chains": 2, "num_warmup": 20, "num_samples": 20, "max_tree_depth": 4},
}
BOTH = ["svi", "nuts"]
BEATS = np.array([[60.0, 90.0], [70.0, 75.0]])
"""Heart rate of each agent's latents."""


def demonstrations(seed: int = 0, lengths: tuple[int, ...] = (4, 1, 3)) -> btil.Demonstrations:
    """Two agents, a heart rate in beats a minute of each as a state variable, few labels."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    return btil.Demonstrations(
        states={
            "ann_beats": generator.integers(55, 95, steps),
            "bob_beats": generator.integers(55, 95, steps),
        },
        actions=generator.integers(0, 2, (steps, 2)),
        latents=np.where(generator.random((steps, 2)) < 0.2, generator.integers(0, 2), -1),
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        agents=("ann", "bob"),
        num_states={"ann_beats": 200, "bob_beats": 200},
        num_actions=2,
        num_latents=2,
    )


def hearts(data: Any, spread: float = 5.0) -> None:
    """What an agent does depends on what the other did; its heart on what it has in mind."""
    skill = numpyro.sample("skill", dist.Beta(2.0, 2.0))
    stay = numpyro.sample("stay", dist.Beta(2.0, 2.0))
    policy = jnp.log(jnp.array([[1.0, 0.0], [0.0, 1.0]]) * skill + (1 - skill) / 2)
    move = jnp.log(jnp.eye(2) * stay + (1 - stay) / 2)
    for agent, other, beats in zip(data.agents, data.agents[::-1], jnp.array(BEATS), strict=True):
        measured = data.states[f"{agent}_beats"][..., None]
        turned = jnp.where(data.actions[other][:, :-1, None, None] == 1, move[:, ::-1], move)
        density = dist.Normal(beats, spread).log_prob(measured)
        data.observe(agent, jnp.log(jnp.array([0.7, 0.3])), turned, policy, density)


def plain(data: Any) -> None:
    """The same without hearts."""

    class Deaf:
        def __getattr__(self, name: str) -> Any:
            return getattr(data, name)

        def observe(self, agent: str, *rows: Any) -> None:
            data.observe(agent, *rows[:3])

    hearts(Deaf())


def posterior_of(function: Callable[..., Any], demos: btil.Demonstrations) -> NumpyroPosterior:
    """Three made-up draws of skill and stay."""
    bound = bind_model(btil.NumpyroModel(function), demos)
    draws = {"skill": [0.3, 0.9, 0.5], "stay": [0.8, 0.2, 0.6]}
    parameters = {site: DrawnParameters(np.array([values])) for site, values in draws.items()}
    result = FitResult({}, True, "made up", parameters=parameters)
    return NumpyroPosterior(
        bound, "nuts", result, seed=0, dtype=np.dtype(np.float64), wall_time=1.0
    )


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Every compilation in the test."""
    seen: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if "backend_compile" in event:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


# ---------------------------------------------------------------------- the channel


def rows_by_hand(
    demos: btil.Demonstrations, skill: Any, stay: Any
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Initial, transition and policy rows and the channel's densities, averaged over draws."""
    policy = np.mean([np.eye(2) * s + (1 - s) / 2 for s in np.atleast_1d(skill)], axis=0)
    move = np.mean([np.eye(2) * s + (1 - s) / 2 for s in np.atleast_1d(stay)], axis=0)
    rows = {}
    for i, agent in enumerate(demos.agents):
        away = (demos.state_variables[f"{agent}_beats"][:, None] - BEATS[i]) / 5.0
        density = np.exp(-(away**2) / 2) / (5.0 * np.sqrt(2 * np.pi))
        other = demos.actions[:, 1 - i]
        moves = np.where(other[:, None, None] == 1, move[:, ::-1], move)
        rows[agent] = (np.array([0.7, 0.3]), moves, policy, density)
    return rows


def by_enumeration(demos: btil.Demonstrations, skill: Any, stay: Any) -> dict[str, Any]:
    """Every question, answered by sums over every latent path of every episode and agent."""
    names = ("smooth", "filter", "predict_actions")
    answers: dict[str, Any] = {
        name: {a: np.zeros((demos.num_steps, 2)) for a in demos.agents} for name in names
    }
    answers["decode"] = np.zeros((demos.num_steps, 2), int)
    answers["log_likelihood"] = np.zeros(demos.num_episodes)
    rows = rows_by_hand(demos, skill, stay)
    for i, agent in enumerate(demos.agents):
        initial, moves, policy, density = rows[agent]
        for m, start in enumerate(demos.episode_starts):
            steps = range(start, start + demos.episode_lengths[m])
            for last in steps:
                weights = np.zeros(2)
                before = np.zeros(2)
                paths: dict[tuple[int, ...], float] = {}
                for path in itertools.product(range(2), repeat=last - start + 1):
                    weight = initial[path[0]]
                    for t, (now, latent) in enumerate(zip(steps, path, strict=False)):
                        if t > 0:
                            weight *= moves[now - 1, path[t - 1], latent]
                        if now == last:
                            before[latent] += weight
                        known = demos.latents[now, i]
                        weight *= policy[latent, demos.actions[now, i]] * density[now, latent]
                        weight *= known < 0 or known == latent
                    weights[path[-1]] += weight
                    paths[path] = weight
                answers["filter"][agent][last] = weights / weights.sum()
                answers["predict_actions"][agent][last] = before / before.sum() @ policy
            answers["decode"][steps, i] = max(paths, key=lambda one: paths[one])
            answers["log_likelihood"][m] += np.log(sum(paths.values()))
            for path, weight in paths.items():
                for now, latent in zip(steps, path, strict=True):
                    answers["smooth"][agent][now, latent] += weight / sum(paths.values())
    return answers


@pytest.fixture(scope="module")
def hearty() -> NumpyroPosterior:
    return posterior_of(hearts, demonstrations())


@pytest.mark.parametrize("seed", [0, 5])
def test_every_answer_takes_the_channel_as_sums_over_paths_do(
    hearty: NumpyroPosterior, seed: int
) -> None:
    draws, labelled = ([0.3, 0.9, 0.5], [0.8, 0.2, 0.6]), demonstrations(seed)
    demos = labelled.without_labels()
    expected = by_enumeration(demos, *draws)
    for name in ("smooth", "filter", "predict_actions"):
        found = getattr(hearty, name)(demos)
        for agent in demos.agents:
            np.testing.assert_allclose(found[agent], expected[name][agent], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(hearty.decode(demos), expected["decode"])
    total = by_enumeration(labelled, *draws)["log_likelihood"]
    np.testing.assert_allclose(hearty.log_likelihood(labelled), total, atol=1e-9)


def test_over_draws_beliefs_are_averaged(hearty: NumpyroPosterior) -> None:
    demos = demonstrations(5).without_labels()
    drawn = hearty.sample(2, seed=3)
    alone = [
        by_enumeration(demos, *pair) for pair in zip(drawn["skill"], drawn["stay"], strict=True)
    ]
    found = hearty.smooth(demos, num_draws=2, seed=3)
    for agent in demos.agents:
        expected = np.mean([one["smooth"][agent] for one in alone], axis=0)
        np.testing.assert_allclose(found[agent], expected, atol=1e-10)


def test_a_step_is_predicted_before_anything_of_it_is_seen(hearty: NumpyroPosterior) -> None:
    """The heart at a step says nothing of the action expected then; earlier hearts do."""
    demos = demonstrations(5).without_labels()
    beats = dict(demos.state_variables)
    beats["ann_beats"] = np.where(np.arange(demos.num_steps) == 2, 150, beats["ann_beats"])
    changed = demos.replace(states=beats)
    before, after = (hearty.predict_actions(one)["ann"] for one in (demos, changed))
    np.testing.assert_array_equal(before[:3], after[:3])
    assert np.abs(before[3] - after[3]).max() > 0.01
    assert np.abs(hearty.filter(demos)["ann"][2] - hearty.filter(changed)["ann"][2]).max() > 0.1


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_the_density_of_the_numpyro_model_has_the_channel() -> None:
    demos = demonstrations()
    bound = bind_model(btil.NumpyroModel(hearts), demos)
    expected = by_enumeration(demos, 0.3, 0.8)["log_likelihood"].sum()
    with jax.enable_x64(True):
        given = {"skill": jnp.array(0.3), "stay": jnp.array(0.8)}
        density = jax.jit(lambda values: log_density(hearts, (bound.data,), {}, values)[0])
        prior = np.log(6 * 0.3 * 0.7) + np.log(6 * 0.8 * 0.2)
        np.testing.assert_allclose(density(given) - prior, expected, rtol=1e-12)


def test_numbers_too_small_for_probabilities_do_no_harm() -> None:
    """Densities are logarithms throughout: a common factor of e^-5000 a step changes no belief."""

    def faint(data: Any) -> None:
        class Faint:
            def __getattr__(self, name: str) -> Any:
                return getattr(data, name)

            def observe(self, agent: str, *rows: Any) -> None:
                data.observe(agent, *rows[:3], rows[3] - 5000.0)

        hearts(Faint())

    demos = demonstrations().without_labels()
    one, other = (posterior_of(function, demos) for function in (hearts, faint))
    for name in ("smooth", "filter", "predict_actions"):
        for agent in demos.agents:
            np.testing.assert_allclose(
                getattr(one, name)(demos)[agent], getattr(other, name)(demos)[agent], atol=1e-9
            )
    np.testing.assert_array_equal(one.decode(demos), other.decode(demos))
    less = one.log_likelihood(demos) - other.log_likelihood(demos)
    np.testing.assert_allclose(less, 2 * 5000.0 * np.array(demos.episode_lengths))


def test_nothing_measured_is_a_likelihood_of_one() -> None:
    def blank(data: Any) -> None:
        class Blank:
            def __getattr__(self, name: str) -> Any:
                return getattr(data, name)

            def observe(self, agent: str, *rows: Any) -> None:
                data.observe(agent, *rows[:3], jnp.zeros(2))

        hearts(Blank())

    demos = demonstrations()
    one, other = (posterior_of(function, demos) for function in (plain, blank))
    np.testing.assert_allclose(one.log_likelihood(demos), other.log_likelihood(demos), rtol=1e-13)
    np.testing.assert_allclose(one.smooth(demos)["bob"], other.smooth(demos)["bob"], rtol=1e-13)


@pytest.mark.parametrize(
    ("log_likelihood", "message"),
    [
        (np.zeros(3), r"log_likelihood of ann has shape \(3,\).* \(episodes, steps, latents\)"),
        (
            np.array([0.0, np.nan]),
            "log_likelihood of ann is nan at episode 0, step 0, latent 1, at a point",
        ),
        (np.array([np.inf, 0.0]), "log_likelihood of ann is inf"),
        (np.full(2, -np.inf), "impossible under the model: episode 0, agent ann, step 0"),
    ],
)
def test_likelihoods_that_are_none(log_likelihood: Any, message: str) -> None:
    def wrong(data: Any) -> None:
        half = jnp.log(jnp.full((2, 2), 0.5))
        numpyro.sample("skill", dist.Beta(2.0, 2.0))
        for agent in data.agents:
            data.observe(agent, half[0], half, half, log_likelihood)

    with pytest.raises(ValueError, match=message):
        btil.fit(btil.NumpyroModel(wrong), demonstrations(), "svi", progress=False)


def test_likelihoods_of_more_and_of_less_are_not_compared(hearty: NumpyroPosterior) -> None:
    """A density of hearts and actions beside a probability of actions says nothing."""
    demos = demonstrations()
    assert hearty.bound.measured == ("ann", "bob")
    others = {"hearts": hearty, "plain": posterior_of(plain, demos)}
    held_out = demonstrations(5, lengths=(2,) * 10)
    with pytest.raises(ValueError, match=r"plain explains more .* of nobody, hearts of ann, bob"):
        btil.analysis.rank_models(others, held_out, "held_out", num_draws=100)
    found = compare_posteriors(others, demos, "plain", num_draws=20)
    assert any("hearts: log likelihoods are also of what" in note for note in found.notes)


# ---------------------------------------------------------------------- the tracker


@pytest.mark.parametrize("num_draws", [None, 2])
def test_the_tracker_says_what_the_batch_says(
    hearty: NumpyroPosterior, num_draws: int | None
) -> None:
    demos = demonstrations(5).without_labels()
    tracker = hearty.tracker(num_draws=num_draws, seed=3)
    filtered = hearty.filter(demos, num_draws=num_draws, seed=3)
    predicted = hearty.predict_actions(demos, num_draws=num_draws, seed=3)
    for row in range(demos.num_steps):
        state = {name: values[row] for name, values in demos.state_variables.items()}
        if row in demos.episode_starts:
            tracker.reset()
        ahead = tracker.predict(state)
        kept = tracker.state
        tracker.update(state, 1 - demos.actions[row])  # another course, taken back
        tracker.state = kept
        belief = tracker.update(state, demos.actions[row])
        assert belief.next_actions is None  # the heart of the next step is not known
        for agent in demos.agents:
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][row], atol=1e-12)
            np.testing.assert_allclose(ahead[agent], predicted[agent][row], atol=1e-12)
            np.testing.assert_allclose(belief.expected_actions[agent], ahead[agent], atol=1e-12)


def test_a_tracker_is_told_labels(hearty: NumpyroPosterior) -> None:
    demos = demonstrations(5)
    labels = np.full(demos.latents.shape, -1)
    labels[1, 0] = 1
    demos = demos.replace(latents=labels)
    expected = by_enumeration(demos, [0.3, 0.9, 0.5], [0.8, 0.2, 0.6])["filter"]
    tracker = hearty.tracker()
    for row in range(demos.episode_lengths[0]):
        state = {name: values[row] for name, values in demos.state_variables.items()}
        belief = tracker.update(state, demos.actions[row], demos.latents[row])
        np.testing.assert_allclose(belief.latents["ann"], expected["ann"][row], atol=1e-10)


def test_a_tracker_outgrows_its_room(hearty: NumpyroPosterior) -> None:
    demos = demonstrations(1, lengths=(66,)).without_labels()
    tracker = hearty.tracker()
    for row in range(demos.num_steps):
        state = {name: values[row] for name, values in demos.state_variables.items()}
        belief = tracker.update(state, demos.actions[row])
    filtered = hearty.filter(demos)
    np.testing.assert_allclose(belief.latents["bob"], filtered["bob"][-1], atol=1e-12)


def test_what_a_tracker_of_a_function_cannot_do(hearty: NumpyroPosterior) -> None:
    tracker = hearty.tracker()
    state = {"ann_beats": 60, "bob_beats": 80}
    with pytest.raises(ValueError, match="actions: none for bob, but hearts may read any"):
        tracker.update(state, {"ann": 0, "bob": None})
    with pytest.raises(ValueError, match="no value for bob_beats"):
        tracker.update({"ann_beats": 60}, [0, 1])
    tracker.update(state, [0, 1])
    with pytest.raises(ValueError, match=r"states and actions of shapes \(2, 2\) and \(1, 2\)"):
        tracker.state = tracker.state._replace(states=np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="out of range"):
        tracker.state = tracker.state._replace(actions=np.array([[0, -1]]))

    def copying(data: Any) -> None:
        """Bob does at once what ann does."""
        half = jnp.log(jnp.full((2, 2), 0.5))
        numpyro.sample("skill", dist.Beta(2.0, 2.0))
        numpyro.sample("stay", dist.Beta(2.0, 2.0))
        data.observe("ann", half[0], half, half)
        same = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9]]))[data.actions["ann"]]
        data.observe("bob", half[0], half, same[:, :, None])

    demos = demonstrations().without_labels()
    posterior = posterior_of(copying, demos)
    tracker = posterior.tracker()
    first = {name: values[0] for name, values in demos.state_variables.items()}
    with pytest.raises(ValueError, match=r"agent bob, step 0: .* actions of the same step"):
        tracker.predict(first)
    expected = tracker.update(first, demos.actions[0]).expected_actions["bob"]
    np.testing.assert_allclose(expected, posterior.predict_actions(demos)["bob"][0])


# ---------------------------------------------------------------------- case 29


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("svi", {"max_iterations": -3}, "max_iterations must be"),
        ("svi", {"num_particles": 0}, "num_particles must be"),
        ("svi", {"tolerance": -1}, "tolerance must be"),
        ("svi", {"num_samples": 2.7}, "num_samples must be"),
        ("svi", {"num_samples": -1}, "num_samples must be"),
        ("svi", {"learning_rate": -1}, "learning_rate must be"),
        ("svi", {"guide": "AutoNorml"}, "unknown guide 'AutoNorml'"),
        ("nuts", {"num_samples": 2.7}, "num_samples must be"),
        ("nuts", {"num_warmup": -1}, "num_warmup must be"),
        ("nuts", {"target_accept_prob": 1.5}, "target_accept_prob must be"),
        ("nuts", {"chain_method": "parallel"}, "chain_method must be"),
    ],
)
def test_bad_options_are_refused_as_with_tables(
    method: str, options: dict[str, Any], message: str
) -> None:
    refusals = []
    for model in (btil.NumpyroModel(hearts), btil.TeamModel()):
        with pytest.raises(ValueError, match=message) as refused:
            btil.fit(model, demonstrations(), method, progress=False, **options)
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]


STAY = np.array([0.9])
"""Arrays are arguments of what is compiled, so that other numbers cost the tests nothing."""


def log_move() -> Any:
    return jnp.log(jnp.eye(2) * jnp.asarray(STAY) + (1 - jnp.asarray(STAY)) / 2)


def with_spread(spread: Any) -> Callable[[Any], None]:
    """A function that closes over a spread, and calls a helper that reads a global."""

    def heart(data: Any) -> None:
        skill = numpyro.sample("skill", dist.Beta(2.0, 2.0))
        density = dist.Normal(jnp.array(BEATS[0]), jnp.asarray(spread))
        data.observe(
            "ann",
            jnp.log(jnp.array([0.7, 0.3])),
            log_move(),
            jnp.log(jnp.eye(2) * skill + (1 - skill) / 2),
            density.log_prob(data.states["beats"][..., None]),
        )

    return heart


def ann_alone(seed: int = 0, lengths: tuple[int, ...] = (4, 1, 3)) -> btil.Demonstrations:
    both = demonstrations(seed, lengths)
    return btil.Demonstrations(
        states={"beats": both.state_variables["ann_beats"]},
        actions={"ann": both.actions[:, 0]},
        latents={"ann": both.latents[:, 0]},
        episodes=both.episodes,
        num_states=200,
        num_actions=2,
        num_latents=2,
    )


def fit(function: Callable[..., Any], method: str = "svi", **more: Any) -> btil.TeamPosterior:
    demos = more.pop("demos", ann_alone())
    options = SCHEDULE[method] | more
    return btil.fit(btil.NumpyroModel(function), demos, method, progress=False, **options)


def log_likelihood_by_hand(demos: btil.Demonstrations, skill: float, spread: float) -> float:
    """By a forward pass over ann's chain, in plain NumPy."""
    policy = np.eye(2) * skill + (1 - skill) / 2
    move = np.eye(2) * STAY + (1 - STAY) / 2
    total = 0.0
    for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
        belief = np.array([0.7, 0.3])
        for step in range(start, start + length):
            away = (demos.states[step] - BEATS[0]) / spread
            belief = belief * policy[:, demos.actions[step, 0]]
            belief *= np.exp(-(away**2) / 2) / (spread * np.sqrt(2 * np.pi))
            if demos.latents[step, 0] >= 0:
                belief *= np.arange(2) == demos.latents[step, 0]
            total += np.log(belief.sum())
            belief = belief / belief.sum() @ move
    return total


@pytest.mark.parametrize("method", BOTH)
def test_a_second_fit_of_equal_shapes_compiles_nothing(
    method: str, compilations: list[str]
) -> None:
    """Neither with other data, nor with other numbers in an array that is closed over."""
    first = fit(with_spread(np.array([5.0])), method)
    first.smooth(first.demos)
    assert compilations
    compilations.clear()
    other = ann_alone(3)
    second = fit(with_spread(np.array([8.0])), method, demos=other, seed=1)
    second.smooth(other)
    assert compilations == []
    for posterior, spread in ((first, 5.0), (second, 8.0)):
        assert posterior.result.log_likelihood is not None
        skill = posterior.result.parameters["skill"]
        assert isinstance(skill, DrawnParameters)
        found = posterior.result.log_likelihood[0, 7].sum()
        expected = log_likelihood_by_hand(posterior.demos, float(skill.draws[0, 7]), spread)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_a_function_reads_is_read_anew(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global that a helper reads, and what is closed over."""
    here, demos = sys.modules[__name__], ann_alone()
    spread = np.array([9.0])

    def heart(data: Any) -> None:
        with_spread(spread)(data)

    def beliefs() -> np.ndarray:
        return fit(heart).smooth(demos.without_labels())["ann"]

    first = beliefs()
    compilations.clear()
    monkeypatch.setattr(here, "STAY", np.array([0.1]))
    turned = beliefs()
    assert compilations == []  # an array of other numbers is no other program
    assert np.abs(first - turned).max() > 0.1
    spread = np.array([40.0])
    assert np.abs(turned - beliefs()).max() > 0.1
    spread = np.array([9.0])
    monkeypatch.setattr(here, "STAY", np.array([0.9]))
    np.testing.assert_array_equal(beliefs(), first)


def test_a_posterior_keeps_to_the_function_it_was_fitted_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of episodes of other shapes it asks the function again, and says if that has changed."""
    demos, longer = ann_alone(), ann_alone(lengths=(6, 2))
    posterior = fit(with_spread(np.array([5.0])))
    before = posterior.smooth(demos)["ann"]
    unlabelled = posterior.filter(demos.without_labels())["ann"]
    posterior.smooth(longer)
    monkeypatch.setattr(sys.modules[__name__], "STAY", np.array([0.1]))
    np.testing.assert_array_equal(posterior.smooth(demos)["ann"], before)
    np.testing.assert_array_equal(posterior.filter(demos.without_labels())["ann"], unlabelled)
    with pytest.warns(UserWarning, match="heart computes something else than when"):
        posterior.smooth(longer)


def test_a_changed_function_is_told_of_where_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demos = demonstrations()
    posterior, own = posterior_of(hearts, demos), bind_model(btil.NumpyroModel(hearts), demos)
    longer = bind_model(btil.NumpyroModel(hearts), demonstrations(1, (6, 2)))
    assert isinstance(own, BoundNumpyroModel)
    assert isinstance(longer, BoundNumpyroModel)
    assert posterior.traced_rows(longer.data).identity != posterior.rows.identity
    monkeypatch.setattr(sys.modules[__name__], "BEATS", BEATS + 1)
    # Of the same shapes it is as it was.
    assert posterior.traced_rows(own.data) is posterior.rows
    with pytest.warns(UserWarning, match="hearts computes something else than when"):
        posterior.traced_rows(longer.data)


@pytest.mark.parametrize("method", BOTH)
def test_a_checkpoint_belongs_to_what_the_function_reads(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spread = tmp_path / "run.checkpoint", np.array([5.0])
    whole = fit(with_spread(spread), method, checkpoint=path)
    again = fit(with_spread(spread), method, checkpoint=path, resume=True)
    for site, one in whole.result.parameters.items():
        np.testing.assert_array_equal(one.draws, again.result.parameters[site].draws)
    with pytest.raises(ValueError, match=r"another run \(model: .*function: "):
        fit(with_spread(spread + 1), method, checkpoint=path, resume=True)
    monkeypatch.setattr(sys.modules[__name__], "STAY", np.array([0.8]))
    with pytest.raises(ValueError, match=r"another run \(model: .*function: "):
        fit(with_spread(spread), method, checkpoint=path, resume=True)


def test_a_checkpoint_sees_by_the_trace_what_python_hides(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    hidden = itertools.repeat(np.array([5.0]))

    def heart(data: Any) -> None:
        with_spread(next(hidden))(data)

    fit(heart, checkpoint=path)
    hidden = itertools.repeat(np.array([7.0]))
    with pytest.raises(ValueError, match=r"another run \(function: "):
        fit(heart, checkpoint=path, resume=True)


def test_under_another_jax_the_trace_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, heart = tmp_path / "run.checkpoint", with_spread(np.array([5.0]))
    fit(heart, checkpoint=path)
    described, versions = checkpoint.describe_run, checkpoint._versions()
    monkeypatch.setattr(
        "btil.posterior.fit.describe_run",
        lambda *given: described(*given) | {"function": "written in another way"},
    )
    with pytest.raises(ValueError, match=r"another run \(function: "):
        fit(heart, checkpoint=path, resume=True)
    monkeypatch.setattr(checkpoint, "_versions", lambda: versions | {"jax": "99.0"})
    with pytest.warns(UserWarning, match=r"jax .*, now 99.0"):
        fit(heart, checkpoint=path, resume=True)


# ---------------------------------------------------------------------- the guide


def test_the_models_of_the_guide_run_as_printed() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "tutorials" / "extending.md").read_text(
        encoding="utf-8"
    )
    own = guide[guide.index("## 3. A NumPyro model") : guide.index("## When your function is run")]
    blocks = re.findall(r"```python\n(.*?)```", own, flags=re.DOTALL)
    assert len(blocks) == 2
    demos = btil.Demonstrations(
        states={"team": [0, 0, 1], "beats": [60, 0, 90]},
        actions={"ann": [0, 1, 2], "bob": [2, 0, 0]},
        episodes=[0, 0, 1],
        num_actions=3,
        num_latents={"ann": 2, "bob": 2},
    )
    for block, parameters in zip(blocks, ({"skill", "tiring"}, {"rise", "policy"}), strict=True):
        names: dict[str, Any] = {}
        exec(compile(block, "extending.md", "exec"), names)
        bound = bind_model(names["model"], demos)
        assert isinstance(bound, BoundNumpyroModel)
        assert set(bound.parameters) == parameters
        for rows in rows_somewhere(bound).values():
            assert np.isfinite(rows).all()


# ---------------------------------------------------------------------- traces


RATE: Any = 2.0
SETTINGS: dict[str, Any] = {"shift": 1.0}


@jax.jit
def faster(x: Any) -> Any:
    return RATE * x


def shifted() -> Callable[..., Any]:
    settings = SETTINGS

    def step(carry: Any, x: Any) -> Any:
        return carry, settings["shift"] + x

    return step


STEP = shifted()


@pytest.mark.parametrize("make", [float, lambda rate: np.array([rate, 2.0])], ids=["one", "array"])
def test_functions_that_jax_remembers_are_read_anew(
    make: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Any) -> Any:
        return faster(jax.lax.scan(STEP, 0.0, x)[1])

    for rate, shift in ((2.0, 1.0), (3.0, 1.0), (3.0, 4.0), (2.0, 1.0)):
        now = make(rate)
        monkeypatch.setattr(sys.modules[__name__], "RATE", now)
        monkeypatch.setitem(SETTINGS, "shift", shift)
        found = traced_anew(function)(jnp.ones(2))
        np.testing.assert_allclose(found, now * (shift + np.ones(2)))


class Tilted(btil.ParametricCPT):
    """A family of the user's own that reads a global."""

    def priors(self, contexts: Any) -> Any:
        return {"tilt": dist.Normal(0.0, jnp.ones(contexts.num_values))}

    def log_rows(self, parameters: Any, inputs: Any) -> Any:
        return jax.nn.log_softmax(RATE * parameters["tilt"])[None, None]


def test_programs_of_a_family_of_ones_own_are_not_stale_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same object, bound again, once what it reads has changed."""
    model = btil.TeamModel(policy={"ann": Tilted()}, transition=btil.DirichletCPT())

    def rows() -> Any:
        structure, data = collapsed_data(bind(model, ann_alone()), np.dtype(np.float32))
        given = {"policy_ann_tilt": jnp.array([[0.0, 1.0]])}
        return structure, given_rows(structure.functional, data, given)["policy_ann"][0, 0, 0, 1]

    for rate in (2.0, 3.0):
        monkeypatch.setattr(sys.modules[__name__], "RATE", rate)
        (one, found), (same, _) = rows(), rows()
        assert one == same
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-rate)), rtol=1e-5)


def test_a_program_that_calls_the_host_is_its_own() -> None:
    """What it calls is not in its text."""

    def calling(factor: float) -> Callable[[Any], Any]:
        def host(x: Any) -> Any:
            return np.asarray(x) * np.float32(factor)

        shape = jax.ShapeDtypeStruct((), np.float32)
        return lambda x: jax.pure_callback(host, shape, x)

    found = [float(traced_anew(calling(factor))(jnp.array(1.0))) for factor in (2.0, 3.0)]
    assert found == [2.0, 3.0]


def test_functions_of_one_text_differ_by_what_they_hold() -> None:
    def closing(rate: float) -> Callable[[float], float]:
        return lambda x: rate * x

    by_default = [lambda x, rate=rate: rate * x for rate in (1.0, 2.0, 1.0)]
    by_name = [lambda x, *, rate=rate: rate * x for rate in (1.0, 2.0, 1.0)]
    closed = [closing(rate) for rate in (1.0, 2.0, 1.0)]
    partials = [functools.partial(closing(1.0), rate) for rate in (1.0, 2.0, 1.0)]
    for one, other, same in (by_default, by_name, closed, partials):
        assert checksum(one) != checksum(other)
        assert checksum(one) == checksum(same)


def test_what_a_function_is_made_of_is_seen() -> None:
    """Through partials, methods, classes, wrappers, defaults and modules of the user's own."""
    settings = types.ModuleType("settings_of_a_study")
    settings.__file__ = "settings_of_a_study.py"
    settings.rate, settings.other = 1.0, 1.0  # type: ignore[attr-defined]
    names: dict[str, Any] = {"settings": settings, "functools": functools, "jax": jax, "np": np}
    source = """
RATE, SHARE, UNUSED = 2.0, 0.5, 1.0
class Half:
    def __call__(self): return SHARE * settings.rate
def inner(): return RATE
@functools.wraps(inner)
def wrapped(): return inner()
def defaulted(half=Half(), *, more=inner): return half() + more()
def nested(): return [(lambda: wrapped())() for _ in range(2)]
"""
    sys.modules[settings.__name__] = settings
    exec(source, names)
    try:
        whole = [
            functools.partial(names["defaulted"]),
            {"a": [names["Half"]().__call__], "b": jax.jit(names["nested"])},
        ]
        seen = {f"{name}" for f in functions_reached(whole) for name in globals_read(f)}
        assert {"RATE", "SHARE", "settings.rate", "inner", "wrapped"} <= seen
        assert not {"UNUSED", "settings.other", "settings"} & seen

        def differs(change: Callable[[], Any]) -> bool:
            before = checksum(whole)
            change()
            return checksum(whole) != before

        assert differs(lambda: names.update(RATE=3.0))
        assert differs(lambda: names.update(SHARE=3.0))
        assert differs(lambda: setattr(settings, "rate", 3.0))
        assert not differs(lambda: names.update(UNUSED=3.0))
        assert not differs(lambda: setattr(settings, "other", 3.0))
    finally:
        del sys.modules[settings.__name__]
