"""Matching latents: random renamings are found again, and only where nothing forbids them."""

import dataclasses
import itertools

import numpy as np
import pytest

from btil import (
    Demonstrations,
    DirichletCPT,
    KnownCPT,
    NormalEmission,
    Shared,
    StaticCPT,
    TeamModel,
    TeamPosterior,
)
from btil.analysis import (
    align,
    context_visits,
    interchangeable_latents,
    latents_pinned,
    match_latents,
    posterior_means,
    relabel_rows,
    shared_contexts,
)
from btil.analysis.alignment import parameter_axes, refuse_unmatched, rename_latents
from btil.inference.result import (
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
    MomentRows,
    NormalParameters,
)
from btil.models.draws import prior_parameters
from btil.models.hierarchical import HierarchicalDirichletCPT, StickBreakingCPT
from btil.models.parametric import (
    all_priors,
    expected_rows,
    parametric_site,
    parametric_sites,
    unconstrained_shapes,
)
from btil.models.softmax import SoftmaxCPT
from btil.models.team import bind


def make_demos(latents=(3, 4), labels=None, seed=0, steps=60, agents=("ann", "bob")):
    rng = np.random.default_rng(seed)
    return Demonstrations(
        states=rng.integers(0, 3, steps),
        actions=rng.integers(0, 3, (steps, len(latents))),
        latents=labels,
        episodes=np.repeat(np.arange(3), steps // 3),
        num_states=3,
        num_actions=3,
        num_latents=latents,
        agents=agents,
    )


def make_model(shared=()):
    roles = {
        "policy": DirichletCPT(0.5, parents=("state",)),
        "transition": DirichletCPT(0.5, parents=("state",)),
        "initial": DirichletCPT(1.0),
    }
    return TeamModel(**{r: Shared(cpt) if r in shared else cpt for r, cpt in roles.items()})


def random_rows(bound, seed=0):
    rng = np.random.default_rng(seed)
    return {
        site: rng.dirichlet(np.full(table.shape[-1], 0.4), size=table.shape[:-1])
        for site, table in bound.learned.items()
    }


def random_permutations(bound, seed, together=()):
    rng = np.random.default_rng(seed)
    sizes = dict(zip(bound.demos.agents, bound.demos.num_latents, strict=True))
    permutations = {agent: rng.permutation(size) for agent, size in sizes.items()}
    return permutations | dict.fromkeys(together, permutations["ann"])


def posterior_of(bound, rows):
    """A posterior made of given rows, without a fit."""
    result = FitResult(rows=rows, converged=True, reason="made by hand")
    return TeamPosterior(bound, "mfvi", result, seed=0, dtype=np.dtype(np.float64), wall_time=0.0)


def flat_posterior(model, demos):
    bound = bind(model, demos)
    rows = {site: DirichletRows(np.ones(table.shape)) for site, table in bound.learned.items()}
    return posterior_of(bound, rows)


# ------------------------------------------------------------------ what may be renamed


def labels_of(rows, latents=(3, 4), steps=60):
    labels = np.full((steps, len(latents)), -1)
    for step, agent, value in rows:
        labels[step, agent] = value
    return labels


def test_labels_tell_latents_apart():
    labels = labels_of([(0, 0, 0), (5, 0, 2), (7, 1, 1)])
    model, demos = make_model(), make_demos(labels=labels)
    assert interchangeable_latents(model, demos) == {
        "ann": ((0,), (1,), (2,)),
        "bob": ((0, 2, 3), (1,)),
    }
    assert latents_pinned(model, demos) == {"ann": True, "bob": False}
    assert latents_pinned(model, demos.without_labels()) == {"ann": False, "bob": False}


@pytest.mark.parametrize("role", ["policy", "transition", "initial"])
def test_agents_that_share_a_table_share_their_labels(role):
    demos = make_demos((3, 3), labels_of([(0, 0, 0), (1, 1, 2)], (3, 3)))
    shared = interchangeable_latents(make_model((role,)), demos)
    assert shared == dict.fromkeys(("ann", "bob"), ((0,), (1,), (2,)))
    assert latents_pinned(make_model(), demos) == {"ann": False, "bob": False}


def test_annotations_that_weigh_latents_differently_tell_them_apart():
    demos = make_demos((3,), agents=("ann",))
    weights = np.ones((demos.num_steps, 3))
    same = demos.replace(latent_weights={"ann": weights})
    assert interchangeable_latents(TeamModel(), same) == {"ann": ((0, 1, 2),)}
    weights[4, 1] = 2.0
    unlike = demos.replace(latent_weights={"ann": weights})
    assert interchangeable_latents(TeamModel(), unlike) == {"ann": ((0, 2), (1,))}


def test_priors_and_given_tables_tell_latents_apart():
    demos = make_demos((3,), agents=("ann",))
    sticky = DirichletCPT(np.eye(3) + 0.5)
    lopsided = DirichletCPT(np.array([[1.0, 2, 2], [2, 1, 1], [2, 1, 1]]))
    policy = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    cases = [
        (TeamModel(transition=sticky), ((0, 1, 2),)),
        (TeamModel(transition=StaticCPT()), ((0, 1, 2),)),
        (TeamModel(transition=lopsided), ((0,), (1, 2))),
        (TeamModel(initial=DirichletCPT([1.0, 1.0, 2.0])), ((0, 1), (2,))),
        (TeamModel(initial=KnownCPT([0.5, 0.3, 0.2])), ((0,), (1,), (2,))),
        (TeamModel(policy=KnownCPT(policy)), ((0,), (1,), (2,))),
        # Turning a cycle is a symmetry, but not one made of swaps.
        (TeamModel(transition=KnownCPT(np.roll(np.eye(3), 1, axis=1))), ((0,), (1,), (2,))),
    ]
    for model, expected in cases:
        assert interchangeable_latents(model, demos) == {"ann": expected}


# ------------------------------------------------------------------ renaming


def test_relabelled_rows_by_hand():
    bound = bind(make_model(), make_demos())
    rows = random_rows(bound)
    permutations = {"ann": [2, 0, 1], "bob": [3, 1, 0, 2]}
    new = relabel_rows(bound, rows, permutations)
    for agent, permutation in permutations.items():
        for k, old in enumerate(permutation):
            policy, transition = rows[f"policy_{agent}"], rows[f"transition_{agent}"]
            np.testing.assert_array_equal(new[f"policy_{agent}"][:, k], policy[:, old])
            assert (new[f"initial_{agent}"][:, k] == rows[f"initial_{agent}"][:, old]).all()
            for following, old_following in enumerate(permutation):
                np.testing.assert_array_equal(
                    new[f"transition_{agent}"][:, k, following],
                    transition[:, old, old_following],
                )
    inverse = {agent: np.argsort(permutation) for agent, permutation in permutations.items()}
    back = relabel_rows(bound, new, inverse)
    for site, values in rows.items():
        np.testing.assert_array_equal(back[site], values)
        many = relabel_rows(bound, {site: np.stack([values, values])}, permutations)[site]
        np.testing.assert_array_equal(many[1], new[site])


def test_wrong_permutations_and_rows_are_refused():
    bound = bind(make_model(("policy",)), make_demos((3, 3)))
    rows = random_rows(bound)
    same = [0, 1, 2]
    with pytest.raises(ValueError, match=r"agent bob has \[0, 0, 1\], which is no order of 0\.\.2"):
        relabel_rows(bound, rows, {"ann": same, "bob": [0, 0, 1]})
    with pytest.raises(ValueError, match="agent bob is missing"):
        relabel_rows(bound, rows, {"ann": same})
    with pytest.raises(ValueError, match="bob and ann share the table policy"):
        relabel_rows(bound, rows, {"ann": same, "bob": [1, 0, 2]})
    with pytest.raises(ValueError, match="unknown site 'other'"):
        relabel_rows(bound, {"other": rows["policy"]}, {"ann": same, "bob": same})
    with pytest.raises(ValueError, match=r"policy has shape \(3, 2, 3\), which must be \(3, 3"):
        match_latents(bound, rows, {"policy": rows["policy"][:, :2]})


# ------------------------------------------------------------------ matching


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("sizes", "shared"),
    [((3, 4), ()), ((1, 9), ()), ((4, 4), ("policy",)), ((3, 3), ("transition", "initial"))],
)
def test_random_renamings_are_found_again(seed, sizes, shared):
    bound = bind(make_model(shared), make_demos(sizes))
    reference = random_rows(bound, seed)
    together = ("ann", "bob") if shared else ()
    permutations = random_permutations(bound, seed + 100, together)
    renamed = relabel_rows(bound, reference, permutations)
    rng = np.random.default_rng(seed)
    noisy = {
        site: 0.9 * r + 0.1 * rng.dirichlet(np.ones(r.shape[-1]), r.shape[:-1])
        for site, r in renamed.items()
    }
    found = match_latents(bound, reference, noisy)
    for agent, permutation in permutations.items():
        np.testing.assert_array_equal(found[agent], np.argsort(permutation))


@pytest.mark.parametrize("seed", range(5))
def test_transitions_alone_can_tell(seed):
    # The policy is given and the same for all latents: only T and b say which latent is which.
    given = KnownCPT(np.full((4, 3), 1 / 3))
    model = TeamModel(policy=given, transition=DirichletCPT(0.5), initial=DirichletCPT(1.0))
    bound = bind(model, make_demos((4,), agents=("ann",)))
    reference = random_rows(bound, seed)
    permutations = random_permutations(bound, seed)
    found = match_latents(bound, reference, relabel_rows(bound, reference, permutations))
    np.testing.assert_array_equal(found["ann"], np.argsort(permutations["ann"]))


@pytest.mark.parametrize("seed", range(20))
def test_the_match_is_the_best_of_all_permutations(seed):
    # Of episodes so short the first latents count, too.
    demos = make_demos((4,), agents=("ann",)).replace(episodes=np.arange(60) // 2)
    bound = bind(make_model(), demos)
    reference, rows = random_rows(bound, seed), random_rows(bound, seed + 50)

    def distance(permutation):
        renamed = relabel_rows(bound, rows, {"ann": np.array(permutation)})
        total = 0.0
        for site, values in renamed.items():
            visits = context_visits(bound, site)
            total += visits @ np.abs(values - reference[site]).reshape(len(visits), -1).sum(1) / 2
        return total

    best = min(distance(permutation) for permutation in itertools.permutations(range(4)))
    found = match_latents(bound, reference, rows)["ann"]
    assert distance(found) == pytest.approx(best)


def test_the_tables_of_every_member_tell_latents_that_they_have_in_common():
    # They share the initial latents, which are all alike; so is all that ann does by herself.
    bound = bind(make_model(("initial",)), make_demos((3, 3)))
    reference = random_rows(bound)
    for site in ("policy_ann", "transition_ann", "initial"):
        reference[site] = np.full_like(reference[site], 1 / 3)
    turned = np.array([1, 2, 0])
    renamed = relabel_rows(bound, reference, {"ann": turned, "bob": turned})
    found = match_latents(bound, reference, renamed)
    for agent in ("ann", "bob"):
        np.testing.assert_array_equal(found[agent], [2, 0, 1])


def test_labelled_latents_keep_their_names():
    demos = make_demos((4,), labels_of([(0, 0, 1)], (4,)), agents=("ann",))
    bound = bind(make_model(), demos)
    reference = random_rows(bound)
    renamed = relabel_rows(bound, reference, {"ann": np.array([0, 2, 1, 3])})
    found = match_latents(bound, reference, renamed)["ann"]
    assert found[1] == 1
    assert sorted(found.tolist()) == [0, 1, 2, 3]


def test_visits_count_the_reads_of_every_agent():
    bound = bind(make_model(("policy",)), make_demos((3, 3)))
    states = bound.demos.states
    counts = np.bincount(states, minlength=3)
    np.testing.assert_array_equal(context_visits(bound, "policy"), 2 * counts)
    last = np.append(bound.demos.episode_starts[1:] - 1, bound.demos.num_steps - 1)
    np.testing.assert_array_equal(
        context_visits(bound, "transition_bob"), np.bincount(np.delete(states, last), minlength=3)
    )
    with pytest.raises(ValueError, match="unknown site 'policy_ann'"):
        context_visits(bound, "policy_ann")


# ------------------------------------------------------------------ posteriors


@pytest.mark.parametrize("family", [DirichletRows, MixtureRows])
def test_a_renamed_posterior_is_aligned(family):
    bound = bind(make_model(), make_demos())
    rows = random_rows(bound)

    def make(values):
        if family is DirichletRows:
            made = {site: DirichletRows(20 * v + 0.1) for site, v in values.items()}
        else:
            weights = np.array([0.3, 0.7])
            made = {
                site: MixtureRows(weights, np.stack([20 * v + 0.1, 30 * v + 0.2]), site)
                for site, v in values.items()
            }
        return posterior_of(bound, made)

    reference = make(rows)
    renamed = make(relabel_rows(bound, rows, random_permutations(bound, 3)))
    aligned = align(renamed, reference)
    for site, mean in posterior_means(reference).items():
        np.testing.assert_allclose(posterior_means(aligned)[site], mean)


def test_every_chain_is_aligned_on_its_own():
    bound = bind(make_model(), make_demos())
    rows = random_rows(bound)
    reference = posterior_of(bound, {site: DirichletRows(50 * v + 0.1) for site, v in rows.items()})
    chains = [relabel_rows(bound, rows, random_permutations(bound, seed)) for seed in range(3)]
    drawn = {}
    for site, one in random_rows(bound, 7).items():
        # A first draw that says nothing: the mean of a chain decides.
        draws = np.repeat(np.stack([chain[site] for chain in chains])[:, None], 5, axis=1)
        draws[:, 0] = one
        drawn[site] = DrawnRows(draws)
    aligned = align(posterior_of(bound, drawn), reference)
    for site, values in rows.items():
        found = aligned.result.rows[site].draws[:, 1:]
        np.testing.assert_array_equal(found, np.broadcast_to(values, found.shape))


def test_chains_of_which_moments_were_kept_are_aligned_with_all_that_was_kept():
    """Three chains, each with names of its own; of every table the draws of two rows are there."""
    bound = bind(make_model(), make_demos())
    rows = random_rows(bound)
    reference = posterior_of(bound, {site: DirichletRows(50 * v + 0.1) for site, v in rows.items()})
    own = [random_permutations(bound, seed) for seed in range(3)]
    counts = np.array([1, 2])

    def in_chains(values, seed):
        """Of two parts of a chain, which differ, under the names of each chain."""
        noise = 1 + np.random.default_rng(seed).uniform(-0.01, 0.01, 2)
        parts = {site: np.stack([one * by for by in noise]) for site, one in values.items()}
        named = [relabel_rows(bound, parts, permutations) for permutations in own]
        return parts, {site: np.stack([one[site] for one in named]) for site in values}

    squares = random_rows(bound, 5)
    mean, means = in_chains(rows, 1)
    square, named_squares = in_chains(squares, 2)
    kept = {site: np.arange(len(one))[-2:] for site, one in rows.items()}
    moments = {
        site: MomentRows(
            counts, means[site], named_squares[site], kept[site], means[site][:, :, kept[site]]
        )
        for site in rows
    }
    aligned = align(posterior_of(bound, moments), reference)
    for site in rows:
        found = aligned.result.rows[site]
        assert isinstance(found, MomentRows)
        for chain in range(3):
            np.testing.assert_allclose(found.means[chain], mean[site])
            np.testing.assert_allclose(found.squares[chain], square[site])
            np.testing.assert_allclose(found.draws[chain], mean[site][:, kept[site]])
        np.testing.assert_array_equal(found.counts, counts)
        np.testing.assert_array_equal(found.kept, kept[site])


def test_a_pinned_posterior_is_left_alone():
    labels = np.arange(120).reshape(60, 2) % 3
    demos = make_demos((3, 3), labels)
    posterior = flat_posterior(make_model(), demos)
    assert align(posterior, flat_posterior(make_model(), demos)) is posterior


def test_posteriors_of_different_episodes_are_aligned_by_what_both_have_seen():
    demos = make_demos((3,), agents=("ann",))
    states = np.where(demos.episodes == 2, 2, demos.states % 2)
    demos = demos.replace(states={"state": states})
    whole, part = bind(make_model(), demos), bind(make_model(), demos.select([0, 1]))
    rows = random_rows(whole)
    permutation = {"ann": np.array([1, 2, 0])}
    renamed = relabel_rows(whole, rows, permutation)
    reference = posterior_of(
        part, {s: DirichletRows(50 * rows[s][: t.shape[0]] + 0.1) for s, t in part.learned.items()}
    )
    aligned = align(
        posterior_of(whole, {site: DirichletRows(50 * v + 0.1) for site, v in renamed.items()}),
        reference,
    )
    for site, values in rows.items():
        np.testing.assert_allclose(aligned.result.rows[site].concentration, 50 * values + 0.1)
    ours, theirs = shared_contexts(aligned, reference, "policy_ann")
    assert (ours.tolist(), theirs.tolist()) == ([0, 1], [0, 1])


def test_posteriors_of_other_models_are_refused():
    demos = make_demos((3,), agents=("ann",))
    one = flat_posterior(make_model(), demos)
    plain = TeamModel(transition=DirichletCPT(1.0), initial=DirichletCPT(1.0))
    with pytest.raises(ValueError, match=r"transition_ann: rows .* with parents \('state',\)"):
        align(one, flat_posterior(plain, demos))
    with pytest.raises(ValueError, match="different tables"):
        align(one, flat_posterior(make_model(("policy",)), demos))


@pytest.mark.parametrize(
    ("kind", "key"),
    [("state_names", "state"), ("action_names", "ann"), ("latent_names", "ann")],
)
def test_posteriors_that_number_names_differently_are_refused(kind, key):
    demos = make_demos((3,), np.arange(60) % 3, agents=("ann",))
    one, same, other = (
        flat_posterior(make_model(), demos.replace(**{kind: {key: names}}))
        for names in (("a", "b", "c"), ("a", "b", "c"), ("a", "c", "b"))
    )
    assert align(one, same) is one
    assert align(one, flat_posterior(make_model(), demos)) is one
    with pytest.raises(ValueError, match=rf"{kind} of {key} differ: a, b, c and, .* a, c, b"):
        align(one, other)


# ------------------------------------------------------------------ continuous columns


def with_columns(labels=None):
    """A model that explains a column of ann, who has three latents, and nothing more of bob."""
    demos = make_demos(labels=labels).replace(continuous={"pulse": np.linspace(60, 80, 60)})
    model = dataclasses.replace(
        make_model(), emissions={"ann": NormalEmission(("pulse",))}
    ).resolved(demos)
    return bind(model, demos)


def test_latents_of_columns_must_have_names():
    told = "continuous columns are not looked at where latents are matched, .* those of ann; label"
    with pytest.raises(ValueError, match=told):
        refuse_unmatched(with_columns())
    # Nobody has to name those of bob.
    refuse_unmatched(with_columns(labels_of([(0, 0, 0), (1, 0, 1)])))
    refuse_unmatched(bind(make_model(), make_demos()))


@pytest.mark.parametrize("kind", [MatrixNormalChannel, MixtureChannel, MixtureOfRegressions])
def test_densities_of_columns_are_renamed_on_their_axis_of_latents(kind):
    bound = with_columns()
    lead = (2, 1) if kind is MatrixNormalChannel else (4, 2, 1)  # components, contexts
    parts = {
        name: np.arange(np.prod(lead) * 3 * 5.0).reshape(*lead[:-1], 3, 5)
        for name in MatrixNormalChannel._fields
    }
    others = {name: name for name in kind._fields if name not in parts}
    rows = {site: DirichletRows(np.ones(table.shape)) for site, table in bound.learned.items()}
    posterior = posterior_of(bound, rows)
    result = posterior.result._replace(channels={"emission_ann": kind(**parts, **others)})
    order = {"ann": [2, 0, 1], "bob": [0, 1, 2, 3]}
    renamed = rename_latents(dataclasses.replace(posterior, result=result), order)
    (channel,) = renamed.result.channels.values()
    for name, values in parts.items():
        for new, old in enumerate([2, 0, 1]):
            found, given = getattr(channel, name), values
            np.testing.assert_array_equal(found[..., new, :], given[..., old, :])
    for name in others:
        assert getattr(channel, name) == name


@pytest.mark.parametrize("one_for_all", [True, False])
def test_draws_of_columns_are_renamed_chain_by_chain(one_for_all):
    bound = with_columns()
    draws = np.arange(2 * 5 * 3.0).reshape(2, 5, 1, 3, 1, 1)
    rows = {
        site: DrawnRows(np.full((2, 5, *table.shape), 0.5)) for site, table in bound.learned.items()
    }
    posterior = posterior_of(bound, rows)
    channel = DrawnChannel(draws, draws + 100)
    result = posterior.result._replace(channels={"emission_ann": channel})
    posterior = dataclasses.replace(posterior, result=result)
    orders = [{"ann": own, "bob": [0, 1, 2, 3]} for own in ([1, 2, 0], [0, 2, 1])]
    renamed = rename_latents(posterior, orders[0] if one_for_all else orders)
    (found,) = renamed.result.channels.values()
    for chain in range(2):
        own = orders[0 if one_for_all else chain]["ann"]
        np.testing.assert_array_equal(found.coefficients[chain], draws[chain][:, :, own])
        np.testing.assert_array_equal(found.covariance[chain], draws[chain][:, :, own] + 100)


def test_normals_that_go_together_are_renamed_in_location_and_factor():
    generator = np.random.default_rng(0)
    bound = bind(parametric_model(), make_demos())
    shapes = unconstrained_shapes(all_priors(parametric_sites(bound)))
    site = "transition_ann_weights"
    location, factor = (generator.normal(size=(*shapes[site], *more)) for more in ((), (7,)))
    posterior = flat_posterior(bound.model, bound.demos)
    together = {site: JointNormals(location, factor, "all")}
    posterior = dataclasses.replace(
        posterior, result=posterior.result._replace(parameters=together)
    )
    order = [1, 2, 0]
    found = rename_latents(posterior, {"ann": order, "bob": range(4)}).result.parameters[site]
    # Of latents by features by next latents.
    np.testing.assert_array_equal(found.location, location[order][:, :, order])
    np.testing.assert_array_equal(found.factor, factor[order][:, :, order])
    assert found.group == "all"


# ------------------------------------------------------------------ parameters of families


def parametric_model(shared_base=False):
    return TeamModel(
        policy=HierarchicalDirichletCPT(parents=("state",), shared_base=shared_base),
        transition=SoftmaxCPT(parents=("state",)),
        initial=HierarchicalDirichletCPT(3.0),
    )


def rows_of(bound, parameters):
    """The mean rows that values of the parameters make."""
    rows = {}
    parameters = {site: np.asarray(values)[None] for site, values in parameters.items()}
    for site, table in bound.learned.items():
        described = parametric_site(table)
        rows[site] = expected_rows(described, parameters, table.contexts)
    return rows


def test_parameters_are_renamed_with_the_rows_they_make():
    """Renamed parameters make the renamed rows: in every role, chain by chain."""
    bound = bind(parametric_model(), make_demos())
    generator = np.random.default_rng(4)
    chains = [prior_parameters(bound.tables, generator) for _ in range(2)]
    rows = [rows_of(bound, chain) for chain in chains]
    posterior = posterior_of(
        bound,
        {site: DrawnRows(np.stack([r[site][None] for r in rows])) for site in rows[0]},
    )
    drawn = {s: DrawnParameters(np.stack([c[s][None] for c in chains])) for s in chains[0]}
    posterior = dataclasses.replace(posterior, result=posterior.result._replace(parameters=drawn))
    permutations = [random_permutations(bound, seed) for seed in (1, 2)]
    renamed = rename_latents(posterior, permutations)
    for chain, own in enumerate(permutations):
        expected = relabel_rows(bound, rows[chain], own)
        values = {s: one.draws[chain, 0] for s, one in renamed.result.parameters.items()}
        made = rows_of(bound, values)
        for site in expected:
            np.testing.assert_array_equal(renamed.result.rows[site].draws[chain, 0], expected[site])
            np.testing.assert_allclose(made[site], expected[site], atol=1e-6)
    again = rename_latents(
        renamed, [{a: np.argsort(p) for a, p in o.items()} for o in permutations]
    )
    for site, one in drawn.items():
        np.testing.assert_array_equal(again.result.parameters[site].draws, one.draws)
    with pytest.raises(ValueError, match="3 are given for 2 chains"):
        rename_latents(posterior, [*permutations, permutations[0]])


def test_normals_are_renamed_where_they_stay_normals():
    bound = bind(parametric_model(), make_demos())
    generator = np.random.default_rng(5)
    shapes = unconstrained_shapes(all_priors(parametric_sites(bound)))
    normals = {
        site: NormalParameters(generator.normal(size=shape), np.full(shape, 0.01))
        for site, shape in shapes.items()
    }
    posterior = flat_posterior(bound.model, bound.demos)
    posterior = dataclasses.replace(posterior, result=posterior.result._replace(parameters=normals))
    order = np.array([1, 2, 0])
    found = rename_latents(posterior, {"ann": order, "bob": np.arange(4)}).result.parameters
    np.testing.assert_array_equal(
        found["policy_ann_base"].location, normals["policy_ann_base"].location[order]
    )
    assert found["policy_ann_strength"] is normals["policy_ann_strength"]
    np.testing.assert_array_equal(
        found["transition_ann_weights"].location,
        normals["transition_ann_weights"].location[order][:, :, order],
    )
    # A vector of probabilities of latents: its renamed draws, next to the centre of the normals.
    before = posterior.sample(1, 0)["initial_ann_base"][0]
    draws = found["initial_ann_base"].draws
    assert draws.shape == (1, 1000, 3)
    np.testing.assert_allclose(draws.mean((0, 1)), before[order], atol=0.02)
    orders = {"ann": order, "bob": np.arange(4)}
    for seed, same in ((0, True), (1, False)):
        seeded = rename_latents(dataclasses.replace(posterior, seed=seed), orders)
        again = seeded.result.parameters["initial_ann_base"].draws
        assert np.array_equal(again, draws) == same


def test_axes_of_parameters_depend_on_the_role():
    bound = bind(parametric_model(), make_demos())
    for site, name, expected in (
        ("policy_ann", "base", ("latent", "action")),
        ("policy_ann", "strength", ()),
        ("transition_bob", "weights", ("latent", "feature", "next_latent")),
        ("initial_ann", "base", ("latent",)),
    ):
        assert parameter_axes(bound.tables[site], name) == expected


def test_agents_with_base_rows_in_common_share_their_latents():
    labels = labels_of([(0, 0, 0), (1, 1, 2)], (3, 3))
    demos = make_demos((3, 3), labels)
    apart = interchangeable_latents(parametric_model(), demos)
    assert apart == {"ann": ((0,), (1, 2)), "bob": ((0, 1), (2,))}
    shared = interchangeable_latents(parametric_model(shared_base=True), demos)
    assert shared == dict.fromkeys(("ann", "bob"), ((0,), (1,), (2,)))


def test_latents_in_order_of_size_have_names():
    model = TeamModel(transition=StickBreakingCPT())
    assert interchangeable_latents(model, make_demos((3,), agents=("ann",))) == {
        "ann": ((0,), (1,), (2,))
    }
