"""Every method's posterior is a DataTree that ArviZ takes (cases.md's kind 10)."""

import functools
from typing import Any

import arviz
import numpy as np
import pytest
from enumeration import all_rows
from teams import chain_truth, made_by_hand

import btil
from btil.inference.result import (
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureRows,
    NormalParameters,
)
from btil.models.team import bind
from btil.posterior.datatree import TreeNames, _context_labels, _what_draws_are

SHORT = {
    "mfvi": {},
    "exact": {},
    "gibbs": {"num_chains": 4, "num_warmup": 20, "num_samples": 30},
    "svi": {"max_iterations": 20},
    "nuts": {"num_chains": 4, "num_warmup": 10, "num_samples": 10, "max_tree_depth": 3},
}
# How many chains, and what that changes of the above.
CHAINS = [(1, {"num_chains": 1}), (4, {})]


def team() -> btil.Demonstrations:
    return btil.Demonstrations(
        states={"where": ["door", "hall", "hall", "door", "hall"]},
        actions={"ann": [0, 1, 1, 0, 1], "b/ob": [1, 1, 0, 0, 2]},
        latents={"ann": ["lift", "rest", None, "lift", None], "b/ob": [0, -1, 1, -1, 1]},
        episodes=["mon", "mon", "mon", "tue", "tue"],
        num_latents={"ann": 2, "b/ob": 3},
        num_actions={"ann": 2, "b/ob": 3},
    )


def model() -> btil.TeamModel:
    return btil.TeamModel(
        policy=btil.DirichletCPT(1.0, ("where",)), transition=btil.DirichletCPT(1.0)
    )


@functools.cache
def fitted(method: str, **changes: Any) -> btil.TeamPosterior:
    """A posterior that several tests look at."""
    return btil.fit(model(), team(), method, progress=False, **SHORT[method] | changes)


def check(tree, chains: int, draws: int) -> None:
    rows = tree["posterior"].to_dataset()
    assert rows["policy_ann"].dims == (
        "chain",
        "draw",
        "policy_context_ann",
        "latent_ann",
        "action_ann",
    )
    assert rows["transition_b_ob"].dims[2:] == (
        "transition_context_b_ob",
        "latent_b_ob",
        "next_latent_b_ob",
    )
    assert rows["policy_ann"].shape == (chains, draws, 2, 2, 2)
    assert rows["transition_b_ob"].shape == (chains, draws, 1, 3, 3)
    assert rows["policy_context_ann"].values.tolist() == ["where=door", "where=hall"]
    assert rows["latent_ann"].values.tolist() == ["lift", "rest"]
    for values in rows.data_vars.values():
        np.testing.assert_allclose(values.sum(values.dims[-1]), 1.0, atol=1e-5)
    likelihood = tree["log_likelihood"].to_dataset()
    assert list(likelihood.data_vars) == ["episodes"]
    assert likelihood["episodes"].dims == ("chain", "draw", "episode")
    assert likelihood["episode"].values.tolist() == ["mon", "tue"]
    observed = tree["observed_data"].to_dataset()
    assert observed["labels"].values[:, 0].tolist() == [0, 1, -1, 0, -1]
    assert tree["constant_data"]["states"].values[:, 0].tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("method", ["mfvi", "exact"])
def test_methods_without_chains_give_one(method):
    posterior = fitted(method)
    tree = posterior.to_datatree(num_draws=50)
    check(tree, 1, 50)
    assert "sample_stats" not in tree.children
    assert posterior.draws_info is None


@pytest.mark.parametrize(("chains", "changes"), CHAINS)
def test_chains_of_gibbs(chains, changes):
    posterior = fitted("gibbs", **changes)
    tree = posterior.to_datatree()
    check(tree, chains, 30)
    assert arviz.summary(tree, var_names=["policy_ann"]).shape[0] == 8
    info = posterior.draws_info
    assert info.loc["policy_ann", "rows"] == 4
    assert np.isnan(info.loc["policy_ann", "max_rhat"]) == (chains == 1)


def test_draws_of_svi():
    check(fitted("svi").to_datatree(num_draws=20), 1, 20)


@pytest.mark.parametrize(("chains", "changes"), CHAINS)
def test_chains_of_nuts(chains, changes):
    check(fitted("nuts", **changes).to_datatree(), chains, 10)


def test_log_likelihood_of_draws_is_that_of_the_forward_pass():
    posterior = btil.fit(model(), team(), "mfvi", progress=False, dtype="float64")
    tree = posterior.to_datatree(num_draws=200, seed=3)
    averaged = np.logaddexp.reduce(tree["log_likelihood"]["episodes"].values[0], axis=0)
    again = posterior.log_likelihood(team(), num_draws=200, seed=3)
    np.testing.assert_allclose(averaged - np.log(200), again, atol=1e-10)


def test_constant_cells_have_no_rhat_and_are_counted():
    demos = btil.Demonstrations([0, 0, 0], [0, 0, 1], num_latents=1)
    plain = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
    posterior = btil.fit(plain, demos, "gibbs", progress=False, **SHORT["gibbs"])
    info = posterior.draws_info
    assert info.loc["transition_agent_0", "constant_cells"] == 1
    assert np.isnan(info.loc["transition_agent_0", "max_rhat"])
    assert info.loc["policy_agent_0", "constant_cells"] == 0
    assert np.isfinite(info.loc["policy_agent_0", "max_rhat"])


def test_axes_of_a_common_parameter_are_its_own() -> None:
    """Agents differ in sizes, and their parameters are common to other agents in other roles."""
    alike = btil.HierarchicalDirichletCPT(5.0, shared_base=True)
    own = btil.DirichletCPT(1.0)
    mixed = btil.TeamModel({"ann": own, "b/ob": alike}, {"ann": alike, "b/ob": own})
    posterior = btil.fit(
        mixed, team(), "gibbs", progress=False, num_chains=2, num_warmup=5, num_samples=5
    )
    rows = posterior.to_datatree()["posterior"].to_dataset()
    transition, policy = rows["transition_base"], rows["policy_base"]
    assert transition.dims[2:] == ("transition_base_latent", "transition_base_next_latent")
    assert (transition.shape, policy.shape) == ((2, 5, 2, 2), (2, 5, 3, 3))
    assert transition["transition_base_latent"].values.tolist() == ["lift", "rest"]
    assert not np.isnan(transition).any()


def test_the_tree_says_what_its_draws_are_of():
    """ArviZ leaves episodes out of any tree; of a mean field's that means nothing."""
    told = {}
    for method in SHORT:
        tree = fitted(method).to_datatree(num_draws=5)
        groups = (tree, tree["posterior"], tree["log_likelihood"], tree["log_likelihood/episodes"])
        assert len({(one.attrs["draws"], one.attrs.get("warning")) for one in groups}) == 1
        assert "latents summed out" in tree["log_likelihood"].attrs["unit"]
        told[method] = tree.attrs
    assert {method for method, attrs in told.items() if "warning" in attrs} == {"mfvi", "svi"}
    assert "mean-field approximation" in told["mfvi"]["draws"]
    assert "arviz.loo" in told["mfvi"]["warning"]
    assert told["exact"]["draws"] == "independent draws from the posterior"
    guide = fitted("svi", guide="AutoNormal").to_datatree(num_draws=5)
    assert "a guide that approximates" in guide.attrs["draws"]


def made_of_chains(**found: Any) -> btil.TeamPosterior:
    """Two chains of three draws that no sampler has drawn."""
    generator = np.random.default_rng(0)
    bound = bind(model(), team())
    rows = {
        site: DrawnRows(generator.dirichlet(np.ones(table.shape[-1]), (2, 3, *table.shape[:-1])))
        for site, table in bound.learned.items()
    }
    return made_by_hand(model(), team(), "gibbs", rows=rows, **found)


def test_draws_of_chains_are_in_the_tree_as_they_are() -> None:
    likelihood = np.arange(12.0).reshape(2, 3, 2)
    diverging = np.array([[True, False, False], [False, True, True]])
    posterior = made_of_chains(
        log_likelihood=likelihood, sample_stats={"diverging": diverging, "moves_swaps": diverging}
    )
    tree = posterior.to_datatree(num_draws=50)
    check(tree, 2, 3)
    rows = tree["posterior"].to_dataset()
    for site, one in posterior.result.rows.items():
        found = rows[site.replace("/", "_")]
        assert found.attrs["site"] == site
        np.testing.assert_array_equal(found, one.draws)
    for group in (rows, tree["log_likelihood"], tree["sample_stats"]):
        assert set(group.coords) >= {"chain", "draw"}
        assert group.attrs["inference_library"] == "btil"
    for one in (tree["log_likelihood"], tree["log_likelihood/episodes"]):
        assert one.attrs["unit"] == "an episode under a draw, latents summed out, all agents"
        assert one.attrs["draws"] == rows.attrs["draws"] == tree.attrs["draws"]
    assert tree.attrs["created_by"] == "btil"
    assert rows["chain"].values.tolist() == [0, 1]
    assert rows["draw"].values.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(tree["log_likelihood/episodes"], likelihood)
    np.testing.assert_array_equal(tree["sample_stats/diverging"], diverging)
    assert tree.attrs["draws"] == "Markov chains (gibbs) that tend to the posterior"
    assert (tree.attrs["method"], tree.attrs["seed"]) == ("gibbs", 0)
    assert tree["constant_data/episode_of_step"].values.tolist() == ["mon"] * 3 + ["tue"] * 2
    assert tree["constant_data/state_variable"].values.tolist() == ["where"]
    assert tree["observed_data/actions"].values[:, 1].tolist() == [1, 1, 0, 0, 2]
    assert tree["observed_data/agent"].values.tolist() == ["ann", "b/ob"]
    info = posterior.draws_info
    assert info.index.name == "site"
    assert set(info.index) == set(posterior.result.rows)
    assert (info["divergences"] == 3).all()
    assert (info["moves_swaps"] == 3).all()
    assert "moves_jumps" not in info
    assert "max_split_rhat" not in info


def test_where_some_answers_alone_are_draws_all_are_drawn_together() -> None:
    """As many as were asked for: chains of some tables have no place for the others."""
    whole = made_of_chains(log_likelihood=np.zeros((1, 7, 2)))
    rows = dict(whole.result.rows)
    table = whole.bound.tables["policy_ann"]
    rows["policy_ann"] = DirichletRows(np.full(table.shape, 3.0))
    mixed = made_by_hand(model(), team(), "gibbs", rows=rows, log_likelihood=np.zeros((1, 7, 2)))
    found = mixed.to_datatree(num_draws=7, seed=2)["posterior"].to_dataset()
    for site, values in mixed.sample(7, 2).items():
        np.testing.assert_array_equal(found[site.replace("/", "_")], values[None])


def test_the_likelihood_of_a_draw_is_that_of_its_rows() -> None:
    """By enumeration; rows that are given count as they are, and labels are looked at."""
    given = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, ("where",)), transition=btil.StaticCPT(),
        initial={"ann": btil.KnownCPT([0.8, 0.2]), "b/ob": btil.UniformCPT()},
    )  # fmt: skip
    demos = team().without_labels([0])
    generator = np.random.default_rng(1)
    bound = bind(given, demos)
    rows = {
        site: DrawnRows(generator.dirichlet(np.ones(table.shape[-1]), (2, 2, *table.shape[:-1])))
        for site, table in bound.learned.items()
    }
    assert set(rows) == {"policy_ann", "policy_b/ob"}
    found = made_by_hand(given, demos, "gibbs", rows=rows).to_datatree()["log_likelihood/episodes"]
    for chain, draw in np.ndindex(2, 2):
        values = all_rows(bound, {site: one.draws[chain, draw] for site, one in rows.items()})
        expected = sum(chain_truth(bound, a, values).log_likelihood for a in demos.agents)
        np.testing.assert_allclose(found[chain, draw], expected, atol=1e-10)


def test_what_draws_are_of_follows_from_what_was_found() -> None:
    """Of columns alone, too, where every table is given."""
    demos = btil.Demonstrations([0, 1], {"ann": [0, 1]}, num_latents=2, continuous={"v": [0.5, 2]})
    nothing = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT())
    columns = btil.TeamModel(
        btil.UniformCPT(), btil.StaticCPT(), emissions={"ann": btil.NormalEmission(("v",))}
    )
    prior = bind(columns, demos).channels["ann"].prior()
    mixture = MixtureChannel(np.ones(1), *(part[None] for part in prior), "ann")
    drawn = DrawnChannel(np.ones((1, 2, 1, 2, 1, 1)), np.ones((1, 2, 1, 2, 1, 1)))
    stats = {"sample_stats": {"energy": np.zeros((1, 2))}}
    normal = {"p": NormalParameters(np.zeros(2), np.ones(2))}
    joint = {"p": JointNormals(np.zeros(2), np.eye(2), "p")}
    draws = {"p": DrawnParameters(np.zeros((1, 2, 2)))}
    rows = {"p": MixtureRows(np.ones(1), np.ones((1, 1, 2, 2)), "p")}
    for team_model, method, found, told in (
        (nothing, "mfvi", {}, "none: nothing was learned"),
        (columns, "mfvi", {"emission_ann": MatrixNormalChannel(*prior)}, "a mean-field approx"),
        (columns, "exact", {"emission_ann": mixture}, "independent draws from the posterior"),
        (columns, "gibbs", {"emission_ann": drawn}, "Markov chains (gibbs) that tend"),
        (columns, "refined", {"emission_ann": drawn}, "each of a chain of its own"),
        (columns, "of a package", {"emission_ann": drawn}, "a guide that approximates"),
        (nothing, "exact", {"rows": rows}, "independent draws from the posterior"),
        (nothing, "mfvi", {"parameters": normal}, "a mean-field approximation"),
        (nothing, "mfvi", {"parameters": joint}, "a mean-field approximation"),
        (nothing, "svi", {"parameters": draws}, "a guide that approximates"),
        (nothing, "nuts", {"parameters": draws}, "Markov chains (nuts) that tend"),
    ):
        more: dict[str, Any] = {"channels": found} if team_model is columns else found
        more = {"rows": {}} | more | (stats if method in ("gibbs", "nuts", "refined") else {})
        attrs = _what_draws_are(made_by_hand(team_model, demos, method, **more))
        assert told in attrs["draws"]
        assert ("warning" in attrs) == ("from q" in attrs["draws"])


@pytest.mark.parametrize("intercept", [True, False])
def test_columns_have_their_contexts_latents_inputs_and_units(intercept: bool) -> None:
    demos = btil.Demonstrations(
        {"where": ["door", "hall", "hall", "door"], "held": [0, 2, 1, 0]},
        {"ann": [0, 1, 1, 1]},
        {"ann": ["lift", "rest", None, None]},
        continuous={"v": [0.5, 2, 1, 0], "w": [1.0, 2, 4, 3], "u": [3.0, 1, 2, 0]},
    )
    family: Any = btil.NormalEmission(("v", "w"), parents=("where",))
    inputs = ("input_ann",)
    if not intercept:
        family = btil.LinearNormalEmission(
            ("v", "w"), ("u", "previous_v"), parents=("where",), noise=1.0
        )
    own = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT(), emissions={"ann": family})
    contexts, latents, p, d = bind(own, demos).channels["ann"].shape
    generator = np.random.default_rng(0)
    drawn = DrawnChannel(
        generator.normal(size=(2, 3, contexts, latents, p, d)),
        np.broadcast_to(np.diag([1.0, 2.0]), (2, 3, contexts, latents, d, d)),
    )
    posterior = made_by_hand(
        own, demos, "gibbs", rows={}, channels={"emission_ann": drawn},
        log_likelihood=np.zeros((2, 3, 1)), sample_stats={"energy": np.zeros((2, 3))},
    )  # fmt: skip
    rows = posterior.to_datatree()["posterior"].to_dataset()
    covariance = rows["emission_covariance_ann"]
    assert covariance.dims[2:] == (
        "emission_context_ann", "latent_ann", "column_ann", "other_column_ann",
    )  # fmt: skip
    np.testing.assert_array_equal(covariance, drawn.covariance)
    assert rows["emission_context_ann"].values.tolist() == ["where=door", "where=hall"]
    assert rows["latent_ann"].values.tolist() == ["lift", "rest"]
    assert rows["column_ann"].values.tolist() == ["v", "w"]
    if intercept:
        means = rows["emission_mean_ann"]
        assert means.dims[2:] == ("emission_context_ann", "latent_ann", "column_ann")
        np.testing.assert_array_equal(means, drawn.coefficients[..., 0, :])
    else:
        coefficients = rows["emission_coefficients_ann"]
        assert coefficients.dims[2:] == (
            "emission_context_ann", "latent_ann", *inputs, "column_ann",
        )  # fmt: skip
        np.testing.assert_array_equal(coefficients, drawn.coefficients)
        assert rows["input_ann"].values.tolist() == ["intercept", "u", "previous_v"]
    assert posterior.draws_info.index.tolist() == [
        f"emission_{'mean' if intercept else 'coefficients'}_ann", "emission_covariance_ann",
    ]  # fmt: skip


def test_names_in_a_tree_are_no_groups_and_never_alike() -> None:
    names = TreeNames(["p/q", "p_q", "draw", "r"], ["a/b", "p_q", "a_b"])
    assert [names(one, "site") for one in ("p/q", "p_q", "draw", "r")] == [
        "p_q_2", "p_q", "draw_2", "r",
    ]  # fmt: skip
    assert [names(one, "axis") for one in ("a/b", "p_q", "a_b")] == ["a_b_2", "p_q_3", "a_b"]
    # Moments stand in a group without sites, beside the same axes.
    assert names("r", "moment") == "r"
    assert names("a_b", "moment") == "a_b_3"
    assert names("r", "axis") == "r_2"
    # Asked again, the answer is the same.
    assert (names("p/q", "site"), names("a_b", "moment")) == ("p_q_2", "a_b_3")


def test_contexts_are_told_in_words() -> None:
    demos = team()
    rows = np.array([[0, 1, 2], [1, 0, -3]])
    told = _context_labels(demos, ("where", "next_where", "previous_action_b/ob"), rows)
    assert told == [
        "where=door, next_where=hall, previous_action_b/ob=2",
        "where=hall, next_where=door, previous_action_b/ob=none before",
    ]
    assert _context_labels(demos, (), np.zeros((1, 0), int)) == ["all"]


def test_parameters_have_the_axes_of_their_family() -> None:
    """Labels of a common parameter are told only where the agents' agree."""
    alike = btil.HierarchicalDirichletCPT(5.0, shared_base=True)
    own = btil.HierarchicalDirichletCPT(5.0)
    demos = btil.Demonstrations(
        [0, 1], {"ann": ["go", "stay"], "bob": ["go", "stay"]}, {"ann": [0, 1], "bob": [1, 0]},
        latent_names={"ann": ["lift", "rest"], "bob": ["lift", "sit"]},
    )  # fmt: skip
    for cpt, dims, latents in (
        (alike, ("policy_base_latent", "policy_base_action"), None),
        (own, ("latent_ann", "action_ann"), ["lift", "rest"]),
    ):
        parametric = btil.TeamModel(cpt, btil.StaticCPT())
        site = "policy_base" if cpt is alike else "policy_ann_base"
        bound = bind(parametric, demos)
        rows = {n: DrawnRows(np.full((1, 2, *t.shape), 0.5)) for n, t in bound.learned.items()}
        sites = [site] if cpt is alike else [site, "policy_bob_base"]
        parameters = {one: DrawnParameters(np.full((1, 2, 2, 2), 0.5)) for one in sites}
        posterior = made_by_hand(
            parametric, demos, "gibbs", rows=rows, parameters=parameters,
            log_likelihood=np.zeros((1, 2, 1)),
        )  # fmt: skip
        base = posterior.to_datatree()["posterior"].to_dataset()[site]
        assert base.dims[2:] == dims
        assert base[dims[1]].values.tolist() == ["go", "stay"]
        assert (latents is None) == (dims[0] not in base.coords)
        if latents is not None:
            assert base[dims[0]].values.tolist() == latents
