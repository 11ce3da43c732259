"""A NumPyro model of the modeler's own: as tables it is what tables are; what it refuses."""

import dataclasses
import html
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pytest
from numpyro import distributions as dist
from numpyro.infer.util import log_density
from teams import hmm_demos, random_demos

import btil
from btil.analysis.compare import compare_posteriors
from btil.analysis.modes import find_modes, only_chains
from btil.inference.result import DrawnParameters, DrawnRows, FitResult
from btil.models.draws import dirichlet_draws
from btil.models.team import bind
from btil.numpyro_forms.latent_chain import LatentChain
from btil.numpyro_forms.numpyro_model import (
    bind_numpyro_model,
    computes,
    episode_data,
    rows_somewhere,
)
from btil.numpyro_forms.team_dbn import team_dbn
from btil.posterior.numpyro_posterior import NumpyroPosterior
from btil.posterior.posterior import TeamPosterior

HALF = np.log(np.full((2, 2), 0.5))
ACTIONS, LABELS = [0, 1, 1, 0, 1, 0, 0, 0, 1], [0, -1, 1, -1, -1, 1, -1, -1, 0]


def tables(data: Any) -> None:
    """Two agents' tables, written out."""
    for agent in data.agents:
        latents, actions = data.num_latents[agent], data.num_actions[agent]
        policy = _rows(f"policy_{agent}", 0.7, (data.num_states["x"], latents, actions))
        transition = _rows(f"transition_{agent}", 0.9, (data.num_actions["ann"], latents, latents))
        initial = _rows(f"initial_{agent}", 1.3, (1, latents))
        data.observe(
            agent,
            jnp.log(initial[0]),
            jnp.log(transition)[data.actions["ann"][:, :-1]],
            jnp.log(policy)[data.states["x"]],
        )


def _rows(site: str, concentration: float, shape: tuple[int, ...]) -> Any:
    prior = dist.Dirichlet(jnp.full(shape, concentration))
    return numpyro.sample(site, prior.to_event(len(shape) - 1))


def same_tables() -> btil.TeamModel:
    return btil.TeamModel(
        policy=btil.DirichletCPT(0.7, parents=("x",)),
        transition=btil.DirichletCPT(0.9, parents=("action_ann",)),
        initial=btil.DirichletCPT(1.3),
    )


def hmm(data: Any) -> None:
    """Two latents that say what is done."""
    policy = _rows("policy", 1.0, (2, 2))
    transition = _rows("transition", 1.0, (2, 2))
    numpyro.deterministic("stay", jnp.diagonal(transition))
    data.observe("agent_0", HALF[0], jnp.log(transition), jnp.log(policy))


def team() -> btil.Demonstrations:
    """Unequal lengths, one step, partial labels, agents of different sizes; all contexts occur."""
    return random_demos(seed=4, lengths=(6, 1, 9, 4))


class Pair(NamedTuple):
    own: NumpyroPosterior
    tables: TeamPosterior


@pytest.fixture(scope="module")
def pair() -> Pair:
    """The same six draws of the same tables, as an own model's and as a team model's posterior."""
    demos = team()
    bound = bind(same_tables(), demos)
    generator = np.random.default_rng(0)
    draws = {
        site: dirichlet_draws(generator, np.ones((2, 3, *table.shape)))
        for site, table in bound.learned.items()
    }
    rest: Any = {"converged": True, "reason": "made up"}
    common: Any = {"method": "nuts", "seed": 0, "dtype": np.dtype(np.float64), "wall_time": 1.0}
    rows = {site: DrawnRows(values) for site, values in draws.items()}
    parameters = {site: DrawnParameters(values) for site, values in draws.items()}
    own_bound = bind_numpyro_model(btil.NumpyroModel(tables), demos)
    assert own_bound.parameters == {site: table.shape for site, table in bound.learned.items()}
    return Pair(
        NumpyroPosterior(
            bound=own_bound, result=FitResult({}, parameters=parameters, **rest), **common
        ),
        TeamPosterior(bound=bound, result=FitResult(rows, **rest), **common),
    )


@pytest.fixture(scope="module")
def data() -> btil.Demonstrations:
    return hmm_demos(ACTIONS, LABELS, episodes=[0, 0, 0, 0, 1, 2, 2, 2, 2])


@pytest.fixture(scope="module")
def exact(data: btil.Demonstrations) -> TeamPosterior:
    model = btil.TeamModel(policy=btil.DirichletCPT(1.0), transition=btil.DirichletCPT(1.0))
    return btil.fit(model, data, "exact")


@pytest.fixture(scope="module")
def nuts(data: btil.Demonstrations) -> TeamPosterior:
    model = btil.NumpyroModel(hmm, axes={"transition": ("latent_agent_0", "next_latent_agent_0")})
    return btil.fit(model, data, "nuts", progress=False, num_chains=2, num_warmup=200)


@pytest.fixture(scope="module")
def svi(data: btil.Demonstrations) -> TeamPosterior:
    return btil.fit(
        btil.NumpyroModel(hmm), data, "svi", progress=False, max_iterations=800, num_samples=200
    )


# ---------------------------------------------------------------------- the same as tables


@pytest.mark.usefixtures("x64")
def test_written_out_tables_have_the_density_of_the_team_model(pair: Pair) -> None:
    values = pair.tables.sample(1, seed=1)
    point = {site: jnp.asarray(rows[0]) for site, rows in values.items()}
    model, written = team_dbn(same_tables(), team()), episode_data(team())
    own = jax.jit(lambda rows: log_density(tables, (written,), {}, rows)[0])
    expected = jax.jit(lambda rows: log_density(model, (), {}, rows)[0])
    np.testing.assert_allclose(own(point), expected(point), rtol=1e-12)


@pytest.mark.parametrize(
    "demos",
    [team(), team().without_labels(), random_demos(seed=7, lengths=(1, 5))],
    ids=["training", "unlabelled", "others"],
)
@pytest.mark.parametrize("num_draws", [None, 4])
@pytest.mark.parametrize("use_labels", [False, True])
def test_written_out_tables_have_the_beliefs_of_the_team_model(
    pair: Pair, demos: btil.Demonstrations, num_draws: int | None, use_labels: bool
) -> None:
    for question in ("smooth", "filter", "predict_actions"):
        answers = [getattr(one, question)(demos, use_labels, num_draws=num_draws) for one in pair]
        for agent in demos.agents:
            np.testing.assert_allclose(answers[0][agent], answers[1][agent], rtol=0, atol=1e-10)
    answers = [one.decode(demos, use_labels, num_draws=num_draws) for one in pair]
    np.testing.assert_array_equal(*answers)
    answers = [one.log_likelihood(demos, num_draws=num_draws) for one in pair]
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- fits


def test_nuts_agrees_with_exact_inference(exact: TeamPosterior, nuts: TeamPosterior) -> None:
    assert nuts.converged, nuts.reason
    sites = {"policy": "policy_agent_0", "transition": "transition_agent_0"}
    for site, table in sites.items():
        draws = nuts.result.parameters[site].draws
        error = draws.std((0, 1)) / np.sqrt(200)  # far fewer than the 1000 draws are worth
        truth = exact.result.rows[table].mean()[0]
        assert np.all(np.abs(draws.mean((0, 1)) - truth) < 4 * error)
    stay = nuts.result.parameters["stay"].draws
    transition = nuts.result.parameters["transition"].draws
    np.testing.assert_allclose(stay, np.diagonal(transition, axis1=-2, axis2=-1), rtol=1e-12)


def test_the_likelihood_of_each_draw_is_kept(
    data: btil.Demonstrations, nuts: TeamPosterior
) -> None:
    kept = nuts.result.log_likelihood
    assert kept is not None
    assert kept.shape == (2, 500, data.num_episodes)
    alone = nuts.result.parameters.items()
    first = {site: DrawnParameters(one.draws[1:, 7:8]) for site, one in alone}
    one = NumpyroPosterior(
        bound=nuts.bound,
        result=FitResult({}, True, "one draw", parameters=first),
        method="nuts",
        seed=0,
        dtype=nuts.dtype,
        wall_time=1.0,
    )
    np.testing.assert_allclose(one.log_likelihood(data), kept[1, 7], rtol=1e-10)


def test_the_bound_of_svi_is_below_the_evidence(exact: TeamPosterior, svi: TeamPosterior) -> None:
    assert exact.elbo is not None
    assert svi.elbo is not None
    assert exact.elbo - 1.0 < svi.elbo < exact.elbo + 4 * svi.elbo_se
    assert svi.elbo_trace is not None
    assert svi.draws_info is None


def test_draws_go_to_arviz_and_diagnostics_under_their_names(nuts: TeamPosterior) -> None:
    info = nuts.draws_info
    assert info is not None
    assert set(info.index) == {"policy", "transition", "stay"}
    tree = nuts.to_datatree()
    found = tree["posterior"]["transition"]
    assert found.dims == ("chain", "draw", "latent_agent_0", "next_latent_agent_0")
    assert found.coords["latent_agent_0"].values.tolist() == ["0", "1"]
    assert tree["posterior"]["policy"].dims[2:] == ("policy_dim_0", "policy_dim_1")
    assert tree["log_likelihood"]["episodes"].dims == ("chain", "draw", "episode")


def test_a_saved_posterior_answers_as_before(
    data: btil.Demonstrations, svi: TeamPosterior, tmp_path: Path
) -> None:
    path = tmp_path / "own.nc"
    svi.save(path)
    with pytest.raises(ValueError, match="pass the model"):
        btil.load_posterior(path)
    loaded = btil.load_posterior(path, model=btil.NumpyroModel(hmm))
    np.testing.assert_array_equal(loaded.log_likelihood(data), svi.log_likelihood(data))

    def another(data: Any) -> None:
        skill = numpyro.sample("policy", dist.Beta(1.0, 1.0))
        data.observe("agent_0", jnp.log(jnp.full(2, 0.5)), jnp.log(jnp.full((2, 2), 0.5)),
                     jnp.log(jnp.stack([skill, 1 - skill])))  # fmt: skip

    with pytest.raises(ValueError, match=r"policy has shape \(2, 2\), in the model it has \(\)"):
        btil.load_posterior(path, model=btil.NumpyroModel(another))


def test_without_parameters_there_is_nothing_to_learn(data: btil.Demonstrations) -> None:
    rows = jnp.log(jnp.array([[0.8, 0.2], [0.3, 0.7]]))

    def given(data: Any) -> None:
        data.observe("agent_0", rows[0], rows, rows)

    posterior = btil.fit(btil.NumpyroModel(given), data, "svi", progress=False)
    known = btil.TeamModel(*(btil.KnownCPT(np.exp(t)) for t in (rows, rows, rows[0])))
    expected = btil.fit(known, data, "svi", progress=False)
    np.testing.assert_allclose(posterior.elbo, expected.elbo, rtol=1e-6)
    beliefs = [one.smooth(data)["agent_0"] for one in (posterior, expected)]
    np.testing.assert_allclose(*beliefs, atol=1e-6)


# ---------------------------------------------------------------------- side by side


def test_own_models_and_tables_are_compared_and_reported(
    data: btil.Demonstrations,
    exact: TeamPosterior,
    nuts: TeamPosterior,
    svi: TeamPosterior,
    tmp_path: Path,
) -> None:
    found = compare_posteriors(
        {"svi": svi, "nuts": nuts, "tables": exact}, data, "nuts", num_draws=20
    )
    errors = found.table["viterbi_error_agent_0"]
    assert errors.between(0, 1).all()
    expected = [p.log_likelihood(data.without_labels()).sum() / 9 for p in (svi, nuts, exact)]
    np.testing.assert_allclose(found.table["log_likelihood_per_step"], expected)
    assert len(found.chains) == 2
    chain = only_chains(nuts, [1]).log_likelihood(data.without_labels()).sum() / 9
    np.testing.assert_allclose(found.chains["log_likelihood_per_step"].iloc[1], chain)
    assert not found.others
    assert any("svi and nuts: by a custom NumPyro model" in note for note in found.notes)
    page = found.report(tmp_path).read_text(encoding="utf-8")
    assert "Two latents that say what is done." in page
    assert "nuts': btil.NumpyroModel(hmm)" in html.unescape(page)
    again = btil.analysis.load_comparison(tmp_path, {"svi": svi.model, "nuts": nuts.model})
    pd.testing.assert_frame_equal(again.table, found.table, rtol=1e-6)
    assert "Dirichlet prior of concentration 1" in page
    assert (tmp_path / "figures" / "trace_nuts.png").is_file()
    assert not (tmp_path / "figures" / "sd_ratios.png").exists()


def test_chains_of_parameters_that_lie_apart_are_told_apart(nuts: TeamPosterior) -> None:
    assert [mode.chains for mode in find_modes(nuts, {})] == [(0, 1)]
    moved = {
        site: DrawnParameters(one.draws + np.array([0.0, 9.0]).reshape(2, 1, 1, 1))
        for site, one in nuts.result.parameters.items()
        if site != "stay"
    }
    apart = dataclasses.replace(nuts, result=nuts.result._replace(parameters=moved))
    assert sorted(mode.chains for mode in find_modes(apart, {})) == [(0,), (1,)]


def test_a_method_for_tables_is_refused_before_any_fit(data: btil.Demonstrations) -> None:
    with pytest.raises(ValueError, match="'gibbs' needs tables"):
        btil.compare(btil.NumpyroModel(never_one), data, ("nuts", "gibbs"))


def test_held_out_scores_of_written_out_tables_are_those_of_the_team_model(pair: Pair) -> None:
    others = random_demos(seed=7, lengths=(1, 5))
    found = btil.analysis.rank_models(pair._asdict(), others, "held_out", num_draws=100)
    np.testing.assert_allclose(found.episodes["own"], found.episodes["tables"], atol=1e-10)


# ---------------------------------------------------------------------- what is refused


def flat(data: Any) -> None:
    data.observe("agent_0", HALF[0], HALF, HALF)


def twice(data: Any) -> None:
    flat(data)
    flat(data)


def nobody(data: Any) -> None:
    numpyro.sample("skill", dist.Beta(1.0, 1.0))


def stranger(data: Any) -> None:
    data.observe("bob", HALF[0], HALF, HALF)


def three_latents(data: Any) -> None:
    data.observe("agent_0", jnp.log(jnp.full(3, 1 / 3)), HALF, HALF)


def normal(data: Any) -> None:
    numpyro.sample("action_agent_0", dist.Normal(), obs=data.actions["agent_0"])


def three_actions(data: Any) -> None:
    shape = (data.num_episodes, data.num_steps)
    chain = LatentChain(
        jnp.broadcast_to(HALF[0], (shape[0], 2)),
        jnp.broadcast_to(HALF, (shape[0], shape[1] - 1, 2, 2)),
        jnp.broadcast_to(jnp.log(jnp.full(3, 1 / 3)), (*shape, 2, 3)),
    )
    numpyro.sample("action_agent_0", chain, obs=data.actions["agent_0"])


def labels_forgotten(data: Any) -> None:
    shape = (data.num_episodes, data.num_steps)
    chain = LatentChain(
        jnp.broadcast_to(HALF[0], (shape[0], 2)),
        jnp.broadcast_to(HALF, (shape[0], shape[1] - 1, 2, 2)),
        jnp.broadcast_to(HALF, (*shape, 2, 2)),
        lengths=data.lengths,
    )
    numpyro.sample("action_agent_0", chain, obs=data.actions["agent_0"])


def lengths_forgotten(data: Any) -> None:
    shape = (data.num_episodes, data.num_steps)
    chain = LatentChain(
        jnp.broadcast_to(HALF[0], (shape[0], 2)),
        jnp.broadcast_to(HALF, (shape[0], shape[1] - 1, 2, 2)),
        jnp.broadcast_to(HALF, (*shape, 2, 2)),
        data.labels["agent_0"],
    )
    numpyro.sample("action_agent_0", chain, obs=1 - data.actions["agent_0"])


def discrete(data: Any) -> None:
    numpyro.sample("kind", dist.Categorical(jnp.full(2, 0.5)))
    flat(data)


def no_prior(data: Any) -> None:
    numpyro.param("skill", 0.5)
    flat(data)


def not_normalised(data: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal().expand((2, 2)).to_event(2))
    data.observe("agent_0", HALF[0], HALF, weights)


def never_one(data: Any) -> None:
    data.observe("agent_0", HALF[0], HALF, jnp.log(jnp.array([1.0, 0.0])))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (twice, "twice: .*action_agent_0"),
        (nobody, "nobody: agent_0 is not observed"),
        (stranger, "no agent 'bob'; there are agent_0"),
        (three_latents, r"log_initial of agent_0 has shape \(3,\)"),
        (normal, "must be observed by a LatentChain"),
        (three_actions, r"log_policy of agent_0 has shape \(3, 4, 2, 3\), expected \(3, 4, 2, 2\)"),
        (labels_forgotten, "labels of action_agent_0 are not those of the data"),
        (lengths_forgotten, "actions and lengths of action_agent_0 are not those of the data"),
        (discrete, "kind is discrete"),
        (no_prior, "skill has no prior"),
        (not_normalised, "log_policy of agent_0 is not the log of a probability vector at episode"),
        (never_one, "episode 0, agent agent_0, step 1: action 1 has probability 0"),
    ],
)
def test_what_a_function_may_not_do(data: btil.Demonstrations, function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        btil.fit(btil.NumpyroModel(function), data, "svi", progress=False)


@pytest.mark.parametrize(
    ("wrong", "at", "told"),
    [
        ("initial", (1,), "log_initial of agent_0 .* at episode b, step 0: "),
        ("policy", (1, 1, 0), "log_policy of agent_0 .* at episode b, step 1, latent 0: "),
        ("transition", (1, 0, 1), "log_transition of agent_0 .* at episode b, step 1, latent 1: "),
        ("transition", (0, 1, 0), "log_transition of agent_0 .* at episode a, step 2, latent 0: "),
    ],
)
def test_rows_that_are_none_are_told_where_they_are(wrong: str, at: Any, told: str) -> None:
    """A transition where it leads to."""

    def one_is_wrong(data: Any) -> None:
        logs = {
            "initial": jnp.broadcast_to(HALF[0], (2, 2)),
            "transition": jnp.broadcast_to(HALF, (2, 2, 2, 2)),
            "policy": jnp.broadcast_to(HALF, (2, 3, 2, 2)),
        }
        logs[wrong] = logs[wrong].at[at].set(0.0)
        data.observe("agent_0", *(logs[name] for name in ("initial", "transition", "policy")))

    demos = hmm_demos([0, 1, 0, 1, 1], episodes=["a", "a", "a", "b", "b"], num_actions=2)
    with pytest.raises(ValueError, match=told):
        rows_somewhere(bind_numpyro_model(btil.NumpyroModel(one_is_wrong), demos))


def test_what_a_model_may_not_be(data: btil.Demonstrations) -> None:
    with pytest.raises(ValueError, match="function must be callable"):
        btil.NumpyroModel("hmm")
    wrapped = numpyro.handlers.scale(partial(hmm), scale=1.0)
    assert repr(btil.NumpyroModel(wrapped)) == "NumpyroModel(hmm)"
    with pytest.raises(ValueError, match="axes of skill must be a tuple"):
        btil.NumpyroModel(flat, axes={"skill": "latent"})
    with pytest.raises(ValueError, match="axes of skill are latent, but there is no such site"):
        btil.fit(btil.NumpyroModel(flat, axes={"skill": ("latent",)}), data, "svi")
    model = btil.NumpyroModel(flat)
    with pytest.raises(ValueError, match=r"'mfvi' needs tables; .* is fitted by nuts or svi"):
        btil.fit(model, data)
    with pytest.raises(TypeError, match="no option 'num_restarts'"):
        btil.fit(model, data, "nuts", num_restarts=2)
    with pytest.raises(ValueError, match="'dirichlet' is for tables"):
        btil.fit(btil.NumpyroModel(hmm), data, "svi", guide="dirichlet")


def test_there_are_no_tables_to_ask_for(data: btil.Demonstrations, pair: Pair) -> None:
    own = pair.own
    for question in ("policy", "transition", "initial", "contexts", "drawn_tables", "refined"):
        assert not hasattr(own, question)
        for error in (ValueError, AttributeError):
            with pytest.raises(error, match="tables: a NumpyroModel has no tables by context"):
                getattr(own, question)
    with pytest.raises(AttributeError, match="'NumpyroPosterior' object has no attribute 'polcy'"):
        own.polcy  # noqa: B018
    with pytest.raises(ValueError, match="estimate 'mean' or num_draws, got 'map'"):
        own.decode(own.demos, estimate="map")
    with pytest.raises(ValueError, match="has no table of rows by context"):
        team_dbn(btil.NumpyroModel(hmm), data)
    table = own.bound.table("policy", "ann")
    assert not table.cpt.exchangeable_latents(table.contexts, 0, 1)


def test_a_posterior_says_what_it_is_of(pair: Pair) -> None:
    told = repr(pair.own)
    assert told.startswith("NumpyroPosterior(tables, nuts: policy_ann 2x2x3, transition_ann 3x2x2")
    assert told.endswith("; converged: made up)")
    result = pair.own.result._replace(converged=False)
    assert repr(dataclasses.replace(pair.own, result=result)).endswith("; not converged: made up)")


def test_of_many_draws_some_are_averaged_evenly(pair: Pair) -> None:
    many = {
        site: DrawnParameters(
            np.arange(1200.0).reshape(2, 600, *[1] * len(shape)) + np.zeros(shape)
        )
        for site, shape in pair.own.bound.parameters.items()
    }
    own = dataclasses.replace(pair.own, result=pair.own.result._replace(parameters=many))
    (draws,) = own.draws_of_parameters("mean", None, 0)
    for site, values in draws.items():
        taken = values.reshape(500, -1)[:, 0]
        assert (taken[0], taken[-1]) == (0, 1199)
        assert set(np.diff(taken)) == {2, 3}
        assert values.shape == (500, *own.bound.parameters[site])
    (few,) = pair.own.draws_of_parameters("mean", None, 0)
    for site, values in few.items():
        given = pair.own.result.parameters[site].draws
        np.testing.assert_array_equal(values, given.reshape(6, *given.shape[2:]))
    apart = list(pair.own.draws_of_parameters("mean", 4, 3))
    sampled = pair.own.sample(4, 3)
    assert len(apart) == 4
    for k, one in enumerate(apart):
        for site, values in one.items():
            np.testing.assert_array_equal(values, sampled[site][[k]])


def test_what_a_function_computes_is_all_that_it_does_with_the_data(
    data: btil.Demonstrations,
) -> None:
    def identity(rate: float = 2.0, scale: float = 1.0, told: float = 1.0, kept: Any = data) -> str:
        def function(data: Any) -> None:
            skill = numpyro.sample("skill", dist.Beta(rate, 1.0))
            numpyro.deterministic("told", told * skill)
            act = jnp.log(skill * jnp.eye(2) + (1 - skill) / 2)
            with numpyro.handlers.scale(scale=scale):
                data.observe("agent_0", HALF[0], HALF, act)

        return computes(bind_numpyro_model(btil.NumpyroModel(function), kept)).identity

    first = identity()
    assert identity() == first
    changes: list[dict[str, Any]] = [
        {"rate": 3.0}, {"scale": 0.5}, {"told": 2.0}, {"kept": data.select([0, 1])},
    ]  # fmt: skip
    assert len({first, *(identity(**change) for change in changes)}) == 5


def test_parameters_of_episodes_say_nothing_of_other_episodes(data: btil.Demonstrations) -> None:
    def moods(data: Any) -> None:
        with numpyro.plate("episode", data.num_episodes):
            mood = numpyro.sample("mood", dist.Normal())
        act = jax.nn.log_sigmoid(jnp.stack([mood, -mood], -1))
        data.observe("agent_0", HALF[0], HALF, act[:, None, None])

    bound = bind_numpyro_model(btil.NumpyroModel(moods), data)
    assert bound.on(data.without_labels()).parameters == {"mood": (3,)}
    # As many episodes, of the same lengths: shapes alone would not tell.
    others = data.replace(actions=1 - data.actions)
    with pytest.raises(ValueError, match=r"mood has shape \(3,\), with one more .* has \(4,\)"):
        bound.on(others)


def test_a_state_variable_with_more_values_is_refused(pair: Pair) -> None:
    more = random_demos(lengths=(2,), num_states=(3, 2))
    with pytest.raises(ValueError, match=r"policy_ann was learned with shape \(2, 2, 3\)"):
        pair.own.smooth(more)
