"""Mean field by batches of episodes: without bias, lazily exact, and where the full batch ends."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from teams import hmm_model, random_demos, rich_model

import btil
from btil.demonstrations import row_groups
from btil.inference import checkpoint, stochastic
from btil.inference.starting import labelled_counts, num_contexts, open_uses
from btil.inference.streaming import streamed
from btil.models.team import bind
from btil.numerics.precision import precision

LENGTHS = tuple(np.random.default_rng(3).integers(1, 30, 60).tolist())


def fit(model: btil.TeamModel, demos: Any, **options: Any) -> btil.TeamPosterior:
    return btil.fit(model, demos, **{"progress": False, **options})


def shared_model() -> btil.TeamModel:
    return btil.TeamModel(
        policy=btil.Shared(btil.DirichletCPT(0.7, parents=("state",))),
        transition=btil.Shared(btil.DirichletCPT(0.9, parents=("x", "own_action"))),
        initial=btil.UniformCPT(),
    )


def make_problem(
    model: btil.TeamModel, demos: btil.Demonstrations, batch_size: int, **options: Any
) -> stochastic.Problem:
    settings = {"delay": None, "forgetting_rate": None, "seed": 0, "dtype": np.dtype(np.float64)}
    data = stochastic.in_memory(bind(model, demos))
    return stochastic.make_problem(data, batch_size, **{**settings, **options})


def five_episodes() -> btil.Demonstrations:
    return random_demos(lengths=(3, 1, 4, 2, 7), num_states=(3, 2))


def many_episodes(**options: Any) -> btil.Demonstrations:
    return random_demos(lengths=LENGTHS, num_states=(4, 3), **options)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> btil.DemonstrationsFile:
    """The many episodes in row groups of seven steps, many of which cut an episode."""
    path = tmp_path_factory.mktemp("file") / "many.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 7)
        btil.write_demonstrations(many_episodes(), path)
    return btil.open_demonstrations(path)


@pytest.fixture(scope="module")
def whole() -> btil.TeamPosterior:
    """The many episodes, learned from at once."""
    return fit(rich_model(), many_episodes())


@pytest.fixture(scope="module")
def by_batches() -> btil.TeamPosterior:
    """The many episodes, learned from in batches."""
    return fit(rich_model(), many_episodes(), batch_size=7)


@pytest.fixture(scope="module")
def of_file(file) -> btil.TeamPosterior:
    """The same from a file, read some 50 steps at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "ROW_GROUP_STEPS", 50)
        return fit(rich_model(), file, batch_size=7)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read some 50 steps at a time."""
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 50)


def assert_same_rows(left: btil.TeamPosterior, right: btil.TeamPosterior) -> None:
    assert left.elbo == right.elbo
    np.testing.assert_array_equal(left.elbo_trace, right.elbo_trace)
    assert set(left.result.rows) == set(right.result.rows)
    for name, rows in left.result.rows.items():
        np.testing.assert_array_equal(rows.concentration, right.result.rows[name].concentration)


# ---------------------------------------------------------------------- one step


def test_scaled_counts_of_all_batches_average_to_those_of_everything() -> None:
    # Case 14: a batch of 2 of 5 episodes counts two and a half times.
    with precision(np.float64):
        problem = make_problem(rich_model(), five_episodes(), 2)
        assert problem.weight == 2.5
        state = stochastic.first_state(problem)
        everything, _ = stochastic.sweep(state, problem)
        pairs = list(combinations(range(5), 2))
        average = {name: np.zeros_like(counts) for name, counts in everything.counts.items()}
        for pair in pairs:
            batch = stochastic.batch_of(problem, np.array(pair))
            info = stochastic.look(state, batch, problem)
            for name, counts in info.counts.items():
                rows = batch.rows[name]
                average[name][rows] += problem.weight / len(pairs) * np.asarray(counts)[: len(rows)]
    for name, counts in everything.counts.items():
        assert counts.sum() > 0
        np.testing.assert_allclose(average[name], counts, rtol=1e-10, atol=1e-12)


def test_a_step_moves_by_the_rate_to_the_scaled_counts() -> None:
    with precision(np.float64):
        problem = make_problem(rich_model(), five_episodes(), 2, delay=3.0, forgetting_rate=0.75)
        state = stochastic.first_state(problem)
        before = stochastic.concentrations(state, problem)
        batch = stochastic.batch_of(problem, np.array([2, 4]))
        info = stochastic.look(state, batch, problem)
        after = stochastic.concentrations(
            stochastic.move(state, stochastic.tell(batch, info, problem), problem), problem
        )
    rate = 3.0**-0.75
    for name, u in problem.prior.items():
        target = np.array(u)
        rows = batch.rows[name]
        target[rows] += 2.5 * np.asarray(info.counts[name])[: len(rows)]
        np.testing.assert_allclose(after[name], (1 - rate) * before[name] + rate * target)


def test_an_epoch_has_whole_batches_and_leaves_every_episode_out_alike() -> None:
    problem = make_problem(hmm_model(), five_episodes(), 2)
    assert problem.batches == 2
    left_out = np.zeros(5)
    for epoch in range(500):
        order = stochastic.epoch_order(problem, epoch)
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
        left_out[order[4]] += 1
    # A chi-square of four degrees of freedom, exceeded once in a thousand times.
    assert np.sum((left_out - 100) ** 2 / 100) < 18.5
    assert not np.array_equal(
        stochastic.epoch_order(problem, 0), stochastic.epoch_order(problem, 1)
    )


def test_seeds_and_restarts_draw_batches_and_deal_out_steps_of_their_own() -> None:
    demos = random_demos(lengths=(3, 1, 4, 2, 7, 5, 2, 6), num_states=(3, 2), labelled=0)
    problem = make_problem(rich_model(), demos, 2, seed=4)
    own = [problem, *(problem._replace(seed=seed) for seed in ((4, 1), (5, 0)))]
    orders = {tuple(stochastic.epoch_order(one, epoch)) for one in own for epoch in range(3)}
    assert len(orders) == 9
    assert problem.seed == (4, 0)
    dealt = [stochastic.first_state(one).counts["policy_ann"] for one in own]
    for one, other in combinations(dealt, 2):
        assert not np.array_equal(one, other)
        assert one.sum() == pytest.approx(other.sum()) == pytest.approx(30)
    again = stochastic.first_state(make_problem(rich_model(), demos, 2, seed=4))
    np.testing.assert_array_equal(again.counts["policy_ann"], dealt[0])
    # The batches of an epoch are the parts of its order, one after the other.
    batches = list(stochastic._batches(problem, problem.batches - 1, 3))
    order, following = (stochastic.epoch_order(problem, epoch) for epoch in (0, 1))
    lengths = demos.episode_lengths
    expected = [order[-2:], following[:2], following[2:4]]
    assert [one.num_steps for one in batches if one] == [lengths[own].sum() for own in expected]


def test_the_bound_of_an_epoch_makes_up_for_the_episodes_that_it_leaves_out() -> None:
    # Five equal episodes, of which an epoch sees four, and steps so small that nothing moves.
    with precision(np.float64):
        equal = btil.concatenate([random_demos(lengths=(4,), num_states=(3, 2))] * 5)
        problem = make_problem(rich_model(), equal, 2, delay=1e12)
        state = stochastic.first_state(problem)
        _, exact = stochastic.sweep(state, problem)
        after = stochastic.advance(state, problem, problem.batches)
    assert len(after.trace) == 1
    assert after.trace[0] == pytest.approx(exact, rel=1e-5)


def test_lazy_decay_is_the_dense_update(monkeypatch) -> None:
    delay = 1.0  # the first step goes all the way
    monkeypatch.setattr(stochastic, "_SMALLEST_SCALE", 0.3)  # folded several times on the way
    with precision(np.float64):
        problem = make_problem(rich_model(), many_episodes(), 7, delay=delay)
        state = stochastic.first_state(problem)
        lazy = stochastic.advance(state, problem, 20)
        dense = stochastic.concentrations(state, problem)
        for iteration in range(20):
            epoch, place = divmod(iteration, problem.batches)
            order = stochastic.epoch_order(problem, epoch)
            batch = stochastic.batch_of(problem, np.sort(order[7 * place : 7 * (place + 1)]))
            now = state._replace(counts={n: dense[n] - u for n, u in problem.prior.items()})
            info = stochastic.look(now, batch, problem)
            rate = (iteration + delay) ** -0.6
            for name, u in problem.prior.items():
                target = np.array(u)
                rows = batch.rows[name]
                target[rows] += 60 / 7 * np.asarray(info.counts[name])[: len(rows)]
                dense[name] = (1 - rate) * dense[name] + rate * target
    assert lazy.iteration == 20
    assert len(lazy.trace) == 2
    assert state.iteration == 0
    found = stochastic.concentrations(lazy, problem)
    for name, expected in dense.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)


def test_blocks_of_any_size_lead_to_the_same_bits() -> None:
    # In single precision, as the fits below: the same program serves.
    problem = make_problem(rich_model(), many_episodes(), 7, dtype=np.dtype(np.float32))
    state = stochastic.first_state(problem)
    once = stochastic.advance(state, problem, 10)
    parts = stochastic.advance(stochastic.advance(state, problem, 3), problem, 7)
    assert once.scale == parts.scale
    for name, counts in once.counts.items():
        np.testing.assert_array_equal(counts, parts.counts[name])
    np.testing.assert_array_equal(once.trace, parts.trace)


def test_every_batch_fits_one_of_two_shapes_with_nothing_lost() -> None:
    lengths = (1, 1, 2, 1, 90, 3, 1, 1, 40, 2, 1, 5)
    problem = make_problem(rich_model(), random_demos(lengths=lengths, num_states=(5, 4)), 2)
    shapes = set()
    for chosen in combinations(range(len(lengths)), 2):
        batch = stochastic.batch_of(problem, np.array(chosen))
        steps = sum(lengths[episode] for episode in chosen)
        for index in batch.steps:
            assert int(np.asarray(index.real).sum()) == steps == batch.num_steps
            shapes.add(index.real.shape)
        for name, rows in batch.rows.items():
            assert len(rows) <= batch.shape.rows[name]
    assert len(shapes) <= 2


# ---------------------------------------------------------------------- whole fits


@pytest.mark.parametrize("batch_size", [5, 9])
def test_a_batch_of_everything_is_the_full_batch(batch_size, tmp_path) -> None:
    demos = five_episodes()
    path = tmp_path / "five.parquet"
    btil.write_demonstrations(demos, path)
    whole = fit(rich_model(), demos)
    assert_same_rows(fit(rich_model(), demos, batch_size=batch_size), whole)
    of_file = fit(rich_model(), btil.open_demonstrations(path), batch_size=batch_size)
    assert_same_rows(of_file, whole)
    assert of_file.demos == demos


@pytest.mark.parametrize("shared", [False, True])
def test_the_bound_is_that_of_the_full_batch(shared, whole, by_batches) -> None:
    model, demos, batches, batch_size = rich_model(), many_episodes(), by_batches, 7
    if shared:
        model, batch_size = shared_model(), 25
        demos = many_episodes(num_latents=(2, 2), num_actions=(3, 3))
        whole, batches = fit(model, demos), fit(model, demos, batch_size=25)
    assert whole.converged
    assert batches.converged, batches.reason
    assert abs(batches.elbo - whole.elbo) < 1e-3 * abs(whole.elbo)
    notes = batches.result.notes
    assert notes["iterations"] == notes["epochs"] * (60 // batch_size)
    assert len(batches.elbo_trace) == notes["epochs"] + notes["sweeps"]
    # The bound is exact: one sweep of the full batch from there tells the same.
    start = {name: rows.concentration for name, rows in batches.result.rows.items()}
    again = fit(model, demos, start=start, max_iterations=1, dtype="float64")
    np.testing.assert_allclose(batches.elbo, again.elbo, rtol=1e-6)


def test_without_labels_latents_are_told_apart() -> None:
    # Two kinds of episodes that act differently, and nobody says which is which.
    generator = np.random.default_rng(0)
    kinds = np.repeat(generator.integers(0, 2, 40), 12)
    demos = btil.Demonstrations(
        states=np.zeros(480, int),
        actions=np.where(generator.random(480) < 0.9, kinds, 1 - kinds),
        episodes=np.arange(480) // 12,
        num_latents=2,
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0), transition=btil.StaticCPT(), initial=btil.DirichletCPT(1.0)
    )
    rows = fit(model, demos, batch_size=8).policy("agent_0")[0]
    np.testing.assert_allclose(np.sort(rows[:, 0]), [0.1, 0.9], atol=0.05)


def test_start_and_cap_are_heeded(whole) -> None:
    demos = many_episodes()
    start = {name: rows.concentration for name, rows in whole.result.rows.items()}
    capped = fit(rich_model(), demos, batch_size=7, start=start, max_iterations=1)
    # One epoch of batches from there loses little.
    assert abs(capped.elbo - whole.elbo) < 1e-3 * abs(whole.elbo)
    assert not capped.converged or len(capped.elbo_trace) == 3
    assert capped.converged or capped.reason.startswith("the cap of 2 sweeps was reached")
    assert capped.result.notes["epochs"] == 1
    assert capped.result.notes["sweeps"] == 2
    with pytest.raises(ValueError, match="start names the sites"):
        fit(rich_model(), demos, batch_size=7, start={})


def test_a_second_fit_compiles_nothing(by_batches) -> None:
    programs = stochastic.local_step._cache_size()
    other = fit(rich_model(), many_episodes(), batch_size=7, seed=5)
    assert not np.array_equal(other.elbo_trace, by_batches.elbo_trace)
    # The shape that all batches fit may be new; the usual one is not.
    assert stochastic.local_step._cache_size() <= programs + 1


def test_what_is_settled() -> None:
    noise = np.random.default_rng(0).standard_normal(40)
    assert not stochastic.has_settled(-1000.0 + 0.01 * noise[:7])
    assert stochastic.has_settled(-1000.0 + 0.01 * noise)
    assert not stochastic.has_settled(-1000.0 + 100 * noise)
    assert not stochastic.has_settled(-1000.0 + 5.0 * np.arange(40))
    assert stochastic.has_settled(np.array([-10.0, np.nan]))
    # Bounds of densities may be near 0: they are measured against the number of steps then.
    assert not stochastic.has_settled(0.01 * noise)
    assert stochastic.has_settled(0.01 * noise, 100.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 2, "delay": 0.5}, "delay must be a finite number of at least 1"),
        ({"batch_size": 2, "forgetting_rate": 0.5}, "above 0.5 and at most 1, got 0.5"),
        ({"batch_size": 2, "forgetting_rate": 1.5}, "above 0.5 and at most 1, got 1.5"),
        ({"batch_size": 2, "devices": 9}, "devices must be at most 4"),
        ({"delay": 5.0}, "give batch_size too"),
    ],
)
def test_options_out_of_range_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(rich_model(), five_episodes(), **options)


def test_a_batch_of_half_an_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        fit(rich_model(), five_episodes(), batch_size=2.5)


PARAMETRIC = {
    "hierarchical": btil.TeamModel(
        policy=btil.HierarchicalDirichletCPT(parents=("x",)),
        transition=btil.DirichletCPT(0.9, parents=("y",)),
    ),
    "softmax": btil.TeamModel(
        policy=btil.SoftmaxCPT(parents=("x",)),
        transition=btil.DirichletCPT(0.9, parents=("y",)),
    ),
}


@pytest.mark.parametrize("family", PARAMETRIC)
def test_families_with_parameters_end_where_the_full_batch_does(family, file) -> None:
    model = PARAMETRIC[family]
    options = {"max_iterations": 400, "dtype": "float64"}
    whole = fit(model, many_episodes(), tolerance=1e-9, **options)
    batches = fit(model, file, batch_size=20, tolerance=1e-12, **options)
    assert batches.converged, batches.reason
    assert batches.elbo == pytest.approx(whole.elbo, abs=0.02)
    assert batches.elbo_se == pytest.approx(whole.elbo_se, rel=0.1)
    for site, normals in whole.result.parameters.items():
        found = batches.result.parameters[site]
        np.testing.assert_allclose(found.location, normals.location, atol=0.01)
        np.testing.assert_allclose(found.factor, normals.factor, atol=0.01)
    for role in ("policy", "transition"):
        for agent in ("ann", "bob"):
            query = {"states": {"x": [0, 3], "y": [1, 2]}}
            query |= {"actions": [[0, 0], [1, 1]]} if role == "transition" else {}
            rows = [getattr(one, role)(agent, **query) for one in (batches, whole)]
            np.testing.assert_allclose(rows[0], rows[1], atol=0.003)


# ---------------------------------------------------------------------- from a file


@pytest.mark.covers("files larger than memory", "batches")
def test_a_file_gives_the_bits_of_memory(file, of_file, by_batches) -> None:
    assert_same_rows(of_file, by_batches)
    # In other parts, too: contexts then appear in another order.
    assert_same_rows(fit(rich_model(), file, batch_size=7), by_batches)


@pytest.mark.parametrize("model", [rich_model(), hmm_model()], ids=["rich", "hmm"])
def test_the_pass_over_a_file_finds_what_memory_holds(model, file, small_parts) -> None:
    demos = many_episodes()
    bound = bind(model, demos)
    columns = stochastic.step_columns(bound, stochastic.summed_rows(bound))
    sizes = num_contexts(bound)
    with streamed(model, file, lambda part: 0.0) as (data, _, _):
        assert data.bound.excerpt
        for name, table in bound.tables.items():
            found = data.bound.tables[name].contexts
            np.testing.assert_array_equal(found.rows, table.contexts.rows)
            assert found._replace(rows=None) == table.contexts._replace(rows=None)
        np.testing.assert_array_equal(data.lengths, demos.episode_lengths)
        np.testing.assert_array_equal(data.read(np.arange(60)), columns)
        some = np.array([3, 4, 5, 17, 59])
        np.testing.assert_array_equal(data.read(some), stochastic.in_memory(bound).read(some))
        for name, counts in labelled_counts(bound, sizes).items():
            np.testing.assert_array_equal(data.labelled[name], counts)
        for agent, uses in open_uses(bound, sizes).items():
            for found, expected in zip(data.uses[agent], uses, strict=True):
                np.testing.assert_array_equal(found, expected)
        # The excerpt tells which latents are labelled anywhere.
        for found, labels in zip(data.bound.demos.latents.T, demos.latents.T, strict=True):
            assert set(np.unique(labels)) - {-1} == set(np.unique(found)) - {-1}


def test_annotations_of_late_episodes_tell_latents_apart(small_parts, tmp_path) -> None:
    """A fit begins by them wherever they are, in a file as in memory."""
    demos = random_demos(lengths=(3, 1, 4, 2, 7), labelled=0)
    weights = {"ann": np.ones((17, 2)), "bob": np.ones((17, 3))}
    weights["ann"][5], weights["bob"][9:] = (0.2, 0.7), (0.1, 0.5, 0.4)
    demos = demos.replace(latent_weights=weights)
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    file = btil.open_demonstrations(tmp_path / "team.parquet")
    in_memory = stochastic.in_memory(bind(rich_model(), demos))
    with streamed(rich_model(), file, lambda _: 0.0) as (data, *_):
        for one in (in_memory, data):
            problem = stochastic.make_problem(one, 2, None, None, 0, np.dtype(np.float64))
            assert not any(
                counts.any() for counts in stochastic.first_state(problem).counts.values()
            )


def test_unsure_labels_of_later_parts_stand_at_their_own_steps(small_parts, tmp_path) -> None:
    """The first part says nothing of weights, and the last ones nothing again."""
    path = tmp_path / "team.parquet"
    labels = np.array(["lift", "carry", "wait", ""] * 50, object)
    labels[[70, 71, 133]] = "lift|carry", "wait|lift", "carry|wait"
    table = pd.DataFrame(
        {"episode": np.repeat(np.arange(40), 5), "step": np.tile(np.arange(5), 40)}
    )
    table = table.assign(place=0, action_ann=0, latent_ann=labels)
    table.to_parquet(path, row_group_size=50, index=False)
    demos = btil.read_demonstrations(path)
    with np.errstate(divide="ignore"):
        expected = np.log(demos.latent_weights["ann"])
    assert np.flatnonzero(np.isneginf(expected).any(1)).tolist() == [70, 71, 133]
    with streamed(hmm_model(), btil.open_demonstrations(path), lambda part: 0.0) as (data, _, _):
        for chosen in (np.arange(40), np.array([0, 14, 26, 39])):
            rows = (5 * chosen[:, None] + np.arange(5)).ravel()
            np.testing.assert_array_equal(data.weights(chosen)["ann"], expected[rows])


def test_the_checksum_of_a_file_tells_contents_and_order_alone(file, small_parts, tmp_path) -> None:
    def checksum(demos: btil.Demonstrations, name: str) -> str:
        path = tmp_path / f"{name}.parquet"
        btil.write_demonstrations(demos, path)
        with streamed(hmm_model(), btil.open_demonstrations(path), lambda part: 0.0) as found:
            return found.checksum

    with streamed(hmm_model(), file, lambda part: 0.0) as found:
        own = found.checksum
    demos = many_episodes()
    assert checksum(demos, "same") == own
    actions = demos.actions.copy()
    actions[400, 1] = 1 - actions[400, 1]
    order = [1, 0, *range(2, 60)]
    pulse = np.zeros(demos.num_steps)
    raised = np.where(np.arange(demos.num_steps) == 400, 1.0, pulse)
    others = [
        demos.replace(actions=actions),
        demos.select(order),
        demos.select(range(59)),
        demos.replace(continuous={"pulse": pulse}),
        demos.replace(continuous={"pulse": raised}),
    ]
    assert len({own, *(checksum(one, str(k)) for k, one in enumerate(others))}) == 6


def test_episodes_of_one_step_and_tables_that_nothing_reads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 2)
    demos = random_demos(lengths=(1, 1, 1, 1, 1, 1))
    path = tmp_path / "ones.parquet"
    btil.write_demonstrations((demos.select([k]) for k in range(6)), path)
    in_memory = fit(rich_model(), demos, batch_size=2)
    of_file = fit(rich_model(), btil.open_demonstrations(path), batch_size=2)
    assert_same_rows(of_file, in_memory)
    assert set(of_file.result.rows) == {"policy_ann", "policy_bob", "initial_ann", "initial_bob"}


def test_a_posterior_of_a_file_answers_as_one_of_memory(of_file, by_batches, tmp_path) -> None:
    from btil.analysis.compare import compare_posteriors

    new, in_memory = random_demos(seed=9, num_states=(4, 3)), by_batches
    of_file.save(tmp_path / "p.nc")
    loaded = btil.load_posterior(tmp_path / "p.nc")
    for posterior in (of_file, loaded):
        assert posterior.bound.excerpt
        assert posterior.demos.num_episodes < 12
        assert posterior.contexts("bob", "transition").equals(
            in_memory.contexts("bob", "transition")
        )
        np.testing.assert_array_equal(
            posterior.transition("ann", {"x": [1], "y": [0]}, [[0, 1]], {"x": [0], "y": [2]}),
            in_memory.transition("ann", {"x": [1], "y": [0]}, [[0, 1]], {"x": [0], "y": [2]}),
        )
        np.testing.assert_array_equal(posterior.decode(new), in_memory.decode(new))
        for agent, beliefs in posterior.smooth(posterior.demos).items():
            expected = in_memory.smooth(posterior.demos)[agent]
            np.testing.assert_allclose(beliefs, expected, rtol=1e-5)
        assert set(posterior.to_datatree(num_draws=2).children) == {"posterior"}
        with pytest.raises(ValueError, match=r"a predictive check without demos=.* keeps"):
            btil.analysis.posterior_predictive_check(posterior)
        with pytest.raises(ValueError, match="a comparison needs the demonstrations"):
            compare_posteriors({"a": posterior})


def test_visits_are_what_mean_field_added(of_file, by_batches) -> None:
    from btil.analysis.plots.rows import expected_visits, read_counts

    visits = expected_visits(of_file)
    assert visits["policy_ann"].sum() == pytest.approx(sum(LENGTHS), rel=1e-5)
    assert visits["initial_bob"].sum() == pytest.approx(60, rel=1e-5)
    np.testing.assert_array_equal(read_counts(of_file, "policy", "ann"), visits["policy_ann"])
    # In memory they are read off beliefs under mean rows, which differ a little.
    for name, expected in expected_visits(by_batches).items():
        assert np.corrcoef(visits[name].ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("of_file", [False, True])
def test_a_stopped_run_goes_on_to_the_same_bits(
    of_file, file, small_parts, tmp_path, monkeypatch
) -> None:
    class Stopped(Exception):
        pass

    demos = file if of_file else many_episodes()
    options = {"batch_size": 12, "num_restarts": 1 if of_file else 2}
    whole = fit(hmm_model(), demos, **options)
    assert whole.elbo == max(trace[-1] for trace in whole.result.restart_traces)
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_TIMES_A_WRITE", 0.0)
    offer = checkpoint.Checkpoint.offer
    # In the batches of the first run, in its sweeps, and in the second run.
    first = whole.result.restart_traces[0]
    for stop in (4,) if of_file else (2, len(first) - 3, 4):
        left = [stop]

        def stopping(self, left=left, **progress):
            offer(self, **progress)
            left[0] -= 1
            if left[0] == 0:
                raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.Checkpoint, "offer", stopping)
            with pytest.raises(Stopped):
                fit(hmm_model(), demos, checkpoint=path, resume=True, **options)
    assert_same_rows(fit(hmm_model(), demos, checkpoint=path, resume=True, **options), whole)
    with pytest.raises(ValueError, match="batch_size: 12 there, 13 here"):
        fit(hmm_model(), demos, checkpoint=path, resume=True, **{**options, "batch_size": 13})
    with pytest.raises(FileExistsError):
        fit(hmm_model(), demos, checkpoint=path, **options)


def test_given_tables_are_checked_part_by_part(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 3)
    demos = btil.Demonstrations(
        states=np.zeros(9, int),
        actions=[0, 1, 0, 1, 0, 0, 0, 2, 1],
        episodes=[4, 4, 4, 5, 5, 5, 6, 6, 6],
        num_latents=2,
    )
    path = tmp_path / "nine.parquet"
    btil.write_demonstrations(demos, path)
    file = btil.open_demonstrations(path)
    policy = btil.KnownCPT([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    model = btil.TeamModel(policy=policy, transition=btil.DirichletCPT(1.0))
    with pytest.raises(ValueError, match="episode 6, agent agent_0, step 1: action 2"):
        fit(model, file, batch_size=2)
    given = btil.TeamModel(
        policy=btil.KnownCPT([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]]),
        transition=btil.KnownCPT(np.full((2, 2), 0.5)),
    )
    of_file, in_memory = fit(given, file, batch_size=2), fit(given, demos)
    assert of_file.result.rows == {}
    np.testing.assert_allclose(of_file.elbo, in_memory.elbo, rtol=1e-12)


@pytest.mark.refuses(
    "files larger than memory",
    "exact",
    "mfvi",
    "svi",
    "nuts",
    "gibbs",
    "refined",
    remedy="mfvi takes batch_size; read_demonstrations reads them whole",
)
def test_only_batches_learn_from_a_file(file) -> None:
    for options in ({}, *({"method": one} for one in ("exact", "svi", "nuts", "gibbs", "refined"))):
        with pytest.raises(ValueError, match=r"with batch_size=\.\.\.; read_demonstrations reads"):
            fit(rich_model(), file, **options)


def test_the_scratch_file_is_gone_afterwards(file, tmp_path, monkeypatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fit(hmm_model(), file, batch_size=30, max_iterations=1)
    with pytest.raises(ValueError, match="start names"):
        fit(hmm_model(), file, batch_size=30, start={})
    assert list(tmp_path.iterdir()) == []
