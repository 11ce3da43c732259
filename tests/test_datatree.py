"""Every method's posterior is a DataTree that ArviZ takes (cases.md's kind 10)."""

import functools
from typing import Any

import arviz
import numpy as np
import pytest

import btil

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
