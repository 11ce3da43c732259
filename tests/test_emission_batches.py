"""Continuous channels learned from batch by batch, in memory and from files."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, gammaln
from side_by_side import all_at_once
from test_emissions import _demos, _model

import btil
from btil.demonstrations import row_groups
from btil.inference import stochastic, streaming
from btil.inference.channel_batches import (
    divergence_of,
    normals_of,
    nothing,
    packed,
    sources_in_memory,
    unpacked,
)
from btil.inference.channels import posterior_normals
from btil.inference.checkpoint import NOWHERE, Checkpoint, Saved
from btil.messages.channels import ChannelData, drawn_statistics
from btil.messages.lanes import pack_lanes
from btil.models.contexts import match_rows
from btil.models.emission import trend_of
from btil.models.team import bind
from btil.numerics.matrix_normal import Statistics
from btil.numerics.precision import precision

LENGTHS = (4, 3, 6, 1, 5, 2, 7, 3)
BLANK = (("ann_x", 1), ("ann_y", 3), ("bob_x", 2), ("ann_x", 9), ("ann_y", 9), ("ann_y", 20))


def team(labelled=12, blank=BLANK):
    """Blank cells, a member who leaves, an action that nobody saw, unsure labels."""
    demos = _demos(lengths=LENGTHS, labelled=labelled, blank=blank)
    there = np.ones((demos.num_steps, 2), bool)
    there[[8, 9], 1] = False
    actions = np.where(np.arange(demos.num_steps) == 5, -1, demos.actions[:, 0])
    weights = np.random.default_rng(3).uniform(0.1, 2.0, size=(demos.num_steps, 2))
    weights[:14] = 1.0
    return demos.replace(
        present=there,
        actions={"ann": actions},
        latents=np.where(there, demos.latents, -1),
        missing="allow",
        latent_weights={"ann": weights},
    )


def model():
    return _model(covariates=("bob_x", "previous_ann_x"))


def steps_of(demos, chosen):
    """The rows of some episodes, one episode after the other."""
    starts, lengths = demos.episode_starts[chosen], demos.episode_lengths[chosen]
    return np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])


def test_every_step_of_a_batch_has_its_cells_its_context_and_its_place():
    bound = bind(model(), team())
    problem = stochastic.make_problem(
        stochastic.in_memory(bound, 3), 3, None, None, 0, np.dtype(np.float32)
    )
    for chosen in list(combinations(range(len(LENGTHS)), 3))[::9]:
        batch = stochastic.batch_of(problem, np.array(chosen))
        rows = steps_of(bound.demos, np.array(chosen))
        lanes = pack_lanes(np.array(LENGTHS)[list(chosen)], batch.shape.length)
        places = np.full((batch.shape.length, batch.shape.lanes), -1)
        places[:, : lanes.shape[1]] = np.where(lanes >= 0, rows[lanes], -1)
        for agent, source in problem.data.channels.items():
            channel, data = source.channel, batch.channels[source.channel.name].data
            assert len(batch.channels[channel.name].prior.degrees) == 1  # it is that of all
            data = jax.tree.map(np.asarray, data)
            real = data.real.astype(bool)
            found = places.ravel()[data.source[real]]
            assert sorted(found) == sorted(set(rows) & set(channel.observed.rows)), agent
            inputs, values = channel.observed.inputs[found], channel.observed.values[found]
            known = np.isfinite(values)
            expected = source.units.steps(inputs, np.where(known, values, 0.0))
            expected[:, inputs.shape[1] :] *= known
            np.testing.assert_allclose(data.values[real], expected, rtol=1e-5, atol=1e-5)
            group = np.broadcast_to(data.group[:, None], real.shape)[real]
            np.testing.assert_array_equal(data.seen[group], known)
            context = batch.rows[channel.name][data.context[group]]
            np.testing.assert_array_equal(context, channel.row[found])
            back = np.full(real.size + 1, -1)
            back[np.flatnonzero(real)] = found
            says = np.isin(places, channel.observed.rows)
            np.testing.assert_array_equal(back[data.place], np.where(says, places, -1))


def test_a_batch_whose_channels_need_more_room_takes_the_large_shape():
    """Where the usual shape has room for one block alone, which is full at eight steps."""
    bound = bind(model(), team())
    problem = stochastic.make_problem(
        stochastic.in_memory(bound, 3), 3, None, None, 0, np.dtype(np.float32)
    )
    usual, roomy = problem.shapes
    for name in ("blocks", "groups"):
        tight = usual._replace(
            rooms={agent: room._replace(**{name: 1}) for agent, room in usual.rooms.items()}
        )
        batch = stochastic.batch_of(problem._replace(shapes=(tight, roomy)), np.array([2, 4, 6]))
        assert batch.shape == roomy
    assert stochastic.batch_of(problem, np.array([2, 4, 6])).shape == usual


def assert_same_source(found, expected, chosen):
    """The steps of some episodes, in whatever order groups are numbered."""
    one, other = found.read(chosen), expected.read(chosen)
    np.testing.assert_array_equal(one.values, other.values)
    says = other.group >= 0
    np.testing.assert_array_equal(one.group >= 0, says)
    np.testing.assert_array_equal(one.inputs[says], other.inputs[says])
    for of_groups in ("context", "seen"):
        mine, theirs = getattr(found, of_groups), getattr(expected, of_groups)
        np.testing.assert_array_equal(mine[one.group[says]], theirs[other.group[says]])


def assert_same_channels(data, expected):
    """Units, cells and contexts are those of all episodes."""
    assert set(data.channels) == set(expected.channels) == {"ann", "bob"}
    for agent, source in data.channels.items():
        other = expected.channels[agent]
        for part, theirs in zip(source.units, other.units, strict=True):
            np.testing.assert_allclose(part, theirs, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(source.cells, other.cells)
        np.testing.assert_array_equal(source.channel.contexts, other.channel.contexts)
        assert source.whole == other.whole
        assert source.log_jacobian == pytest.approx(other.log_jacobian)
        # What the prior left open is taken from all episodes.
        for part, theirs in zip(source.channel.prior(), other.channel.prior(), strict=True):
            np.testing.assert_allclose(part[:1], theirs[:1], rtol=1e-9)


@pytest.fixture
def parts_of_seven(tmp_path, monkeypatch):
    """The team in a file that is read by seven rows; regressions go through it by five steps."""
    path = tmp_path / "team.parquet"
    monkeypatch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 7)
    btil.write_demonstrations(team(), path)
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    monkeypatch.setattr(streaming, "_CHUNK", 5)
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 9)
    return btil.open_demonstrations(path, missing="allow")


def test_the_pass_over_a_file_finds_the_columns_that_memory_holds(parts_of_seven):
    expected = stochastic.in_memory(bind(model().resolved(team()), team()))
    assert not expected.channels["ann"].whole
    assert expected.channels["bob"].channel.visits
    with streaming.streamed(model(), parts_of_seven, lambda part: 0.0) as (data, *_):
        assert_same_channels(data, expected)
        for agent in ("ann", "bob"):
            for chosen in (np.arange(8), np.array([1]), np.array([0, 2, 3, 7])):
                assert_same_source(data.channels[agent], expected.channels[agent], chosen)


def test_processes_agree_on_what_memory_holds(parts_of_seven, monkeypatch):
    """Each reads its own episodes; what is known of all is known to all."""
    bound = bind(model().resolved(team()), team())
    expected = stochastic.in_memory(bound)
    columns = stochastic.step_columns(bound, stochastic.summed_rows(bound))

    def read(own):
        with streaming.streamed(model(), parts_of_seven, lambda part: 1.5, processes=own) as (
            data,
            log_evidence,
            checksum,
        ):
            assert_same_channels(data, expected)
            episodes = np.arange(*data.own)
            assert 0 < len(episodes) < 8
            for agent, source in data.channels.items():
                assert_same_source(source, expected.channels[agent], episodes)
            np.testing.assert_array_equal(data.lengths, LENGTHS)
            np.testing.assert_array_equal(data.read(episodes), columns[steps_of(team(), episodes)])
            for name, counts in expected.labelled.items():
                np.testing.assert_allclose(data.labelled[name], counts)
            return episodes.tolist(), log_evidence, checksum, data.sample.demos

    found = all_at_once(monkeypatch, 3, read)
    for one in found:
        if isinstance(one, Exception):
            raise one
    assert [episode for one in found for episode in one[0]] == list(range(8))
    with streaming.streamed(model(), parts_of_seven, lambda part: 0.0) as (data, _, checksum):
        assert {one[2] for one in found} == {checksum}
        sample = data.sample.demos
    assert 1 < sample.num_episodes < 8
    assert all(one[3] == sample for one in found)
    assert len({one[1] for one in found}) == 1


def test_an_episode_that_two_processes_have_found_is_refused(tmp_path, monkeypatch):
    demos = team()
    for name, chosen in (("a", [0, 1, 2, 3]), ("b", [2, 4, 5, 6])):
        btil.write_demonstrations(demos.select(chosen), tmp_path / f"{name}.parquet")
    file = btil.open_demonstrations(tmp_path, missing="allow")

    def read(own):
        with streaming.streamed(model(), file, lambda part: 0.0, processes=own):
            pass

    for one in all_at_once(monkeypatch, 2, read):
        assert isinstance(one, ValueError)
        assert "returns in" in str(one)
        assert "b.parquet" in str(one)


def test_sums_are_rows_of_numbers_and_back():
    generator = np.random.default_rng(0)
    sums = Statistics(generator.random((2, 3)), generator.random((2, 3, 4, 4)))
    rows = packed(sums)
    assert rows.shape == (2, 3, 17)
    for one, other in zip(unpacked(rows), sums, strict=True):
        np.testing.assert_array_equal(one, other)
    source = stochastic.in_memory(bind(model(), team())).channels["ann"]
    # The number, and squares of four inputs and two columns; two contexts, two latents.
    assert nothing(source).shape == (2, 2, 1 + 5**2)
    assert nothing(source, 1).shape == (1, 2, 1 + 5**2)
    assert not nothing(source).any()


def batches(size=3, demos=None, dtype=np.float64, **options):
    data = stochastic.in_memory(bind(model(), team() if demos is None else demos), size)
    return stochastic.make_problem(data, size, None, None, 0, np.dtype(dtype), **options)


def test_what_a_batch_says_of_columns_is_told_and_moved_to():
    """Made-up sums: those of contexts that were not read decay, and others move by the rate."""
    with precision(np.float64):
        problem = batches()
        state = stochastic._state(problem, problem.data.labelled, stochastic._no_sums(problem))
        generator = np.random.default_rng(0)
        for counts in state.counts.values():
            counts[...] = generator.random(counts.shape)
        before = {name: counts.copy() for name, counts in state.counts.items()}
        batch = stochastic.batch_of(problem, np.array([3, 4]))
        padded = {
            name: np.asarray(generator.random((batch.shape.rows[name], *counts.shape[1:])))
            for name, counts in state.counts.items()
        }
        info = stochastic.Info(jax.tree.map(jnp.asarray, padded), jnp.asarray(-7.25))
        (told,) = stochastic.tell(batch, info, problem)
        assert (told.log_evidence, told.steps) == (-7.25, LENGTHS[3] + LENGTHS[4])
        again = stochastic._from_bytes(stochastic._as_bytes(told), stochastic._no_counts(problem))
        after = stochastic.move(state, [again], problem)
        (nothing_told,) = stochastic.tell(None, None, problem)
    assert nothing_told.steps == 0
    assert set(nothing_told.counts) == set(before)
    rate = 10.0**-0.6
    for name, counts in before.items():
        target = np.zeros_like(counts)
        read = batch.rows[name]
        target[read] = problem.weight * padded[name][: len(read)]
        expected = (1 - rate) * counts + rate * target
        np.testing.assert_allclose(after.scale * after.counts[name], expected, rtol=1e-9)
    assert (after.iteration, after.steps) == (1, told.steps)


def test_a_fit_with_columns_ends_where_gains_say_that_little_is_to_come():
    problem = batches()
    state = stochastic._state(problem, problem.data.labelled, stochastic._no_sums(problem))

    def end(*bounds):
        return stochastic._end(state._replace(bounds=np.array(bounds)), problem)

    # Gains of 8, then 2: they fall by the square of the rate, and 2 / 4 + 2 / 16 + ... is to come.
    found = end(-50.0, -30.0, -22.0, -20.0)
    assert found.rate == pytest.approx(0.5)
    assert found.to_come == pytest.approx(2 / 3)
    assert np.isnan(end(-30.0, -20.0).rate)
    assert np.isnan(end(-30.0, -29.0, -20.0).rate)  # gains grow
    assert np.isnan(end(-30.0, np.nan, -20.0).rate)
    still = end(-30.0, -20.0, -20.25)
    assert (still.rate, still.to_come) == (0.0, 0.25)


def test_few_labels_let_a_fit_to_a_sample_say_where_batches_begin(monkeypatch):
    """Counts and sums of the sample, as if all episodes were like it, at their contexts."""
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 1)
    asked = []

    def outline(sample, dtype, generator, labelled):
        asked.append((sample.demos.num_steps, labelled))
        draw = np.random.default_rng(1).random
        counts = {name: draw(table.shape) for name, table in sample.learned.items()}
        sums = {
            one.name: Statistics(draw((4, *one.shape[1:2])), draw((4, one.shape[1], size, size)))
            for one in sample.channels.values()
            for size in (one.shape[2] + one.shape[3],)
        }
        return counts, sums

    few = batches(1, team(labelled=3, blank=()))
    many = batches(1, _demos(lengths=(10, 12, 20), labelled=42))
    stochastic.first_state(many, outline=outline)
    # Whoever says where to begin is heeded, too.
    start = {name: u + 0.5 for name, u in few.prior.items()}
    begun = stochastic.first_state(
        batches(1, team(labelled=3, blank=()), start=start), outline=outline
    )
    assert not asked
    for name in start:
        np.testing.assert_allclose(begun.counts[name], 0.5)
    state = stochastic.first_state(few, outline=outline)
    again = stochastic.first_state(few, again=True, outline=outline)
    (steps, first), (_, second) = asked
    assert (first, second) == (True, False)
    share = sum(LENGTHS) / steps
    sample = few.data.sample
    counts, sums = outline(sample, None, None, True)
    for own in (state, again):
        for name, found in counts.items():
            rows = match_rows(few.data.bound.tables[name].contexts.rows,
                              sample.tables[name].contexts.rows)  # fmt: skip
            np.testing.assert_allclose(own.counts[name][rows], share * found, rtol=1e-6)
        for name, (number, outer) in sums.items():
            agent = name.removeprefix("emission_")
            at = match_rows(few.data.channels[agent].channel.contexts,
                            sample.channels[agent].contexts)  # fmt: skip
            found = unpacked(own.counts[name][at])
            np.testing.assert_allclose(found.number, share * number[: len(at)])
            np.testing.assert_allclose(found.outer, share * outer[: len(at)])


def test_labelled_steps_are_summed_where_they_are_many():
    demos = team(labelled=31, blank=())
    problem = batches(3, demos)
    with precision(np.float64):
        state = stochastic.first_state(problem)
    for agent, source in problem.data.channels.items():
        channel, position = source.channel, demos.agents.index(agent)
        rows = channel.observed.rows
        a = source.units.steps(channel.observed.inputs[rows], channel.observed.values[rows])
        number = np.zeros(channel.shape[:2])
        outer = np.zeros((*channel.shape[:2], a.shape[1], a.shape[1]))
        for row, step in zip(rows, a, strict=True):
            at = channel.row[row], demos.latents[row, position]
            number[at] += 1
            outer[at] += np.outer(step, step)
        found = unpacked(state.counts[channel.name])
        np.testing.assert_allclose(found.number, number)
        np.testing.assert_allclose(found.outer, outer, rtol=1e-9, atol=1e-9)


def test_finished_runs_and_one_that_is_going_on_are_restored():
    problem = batches()
    state = stochastic._state(problem, problem.data.labelled, stochastic._no_sums(problem))
    generator = np.random.default_rng(0)
    runs = [
        state._replace(
            iteration=number,
            scale=0.25 * number,
            log_evidence=-3.5,
            steps=17,
            bounds=generator.random(number),
            counts={name: generator.random(m.shape) for name, m in state.counts.items()},
        )
        for number in (1, 2, 3)
    ]

    class Held(Checkpoint):
        saved = Saved(
            {
                f"{name}:{k}": np.asarray(leaf)
                for name, tree in (("runs", runs[:2]), ("state", runs[2]))
                for k, leaf in enumerate(jax.tree.leaves(tree))
            }
        )

        def __init__(self):
            pass

    finished, going_on = stochastic._restored(Held(), problem)
    for found, expected in zip([*finished, going_on], runs, strict=True):
        assert type(found.iteration) is type(found.steps) is int
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert stochastic._restored(NOWHERE, problem) == ([], None)


def test_sums_over_steps_are_the_posterior_in_the_units_of_the_data():
    """One column without covariates: the normal inverse-gamma update, and its divergence."""
    bound = bind(model(), team(blank=()))
    source = stochastic.in_memory(bound).channels["bob"]
    unit = source.units
    y = bound.demos.continuous["bob_x"][[0, 3, 4]]
    inside = unit.steps(np.ones((3, 1)), y[:, None])
    rows = nothing(source)
    rows[0, 1] = np.append(3.0, (inside.T @ inside).ravel())
    location, precision, scale, degrees = (part[0, 1] for part in normals_of(source, rows))
    first = source.channel.prior()
    mean, strength, spread, freedom = (float(part[0, 1].squeeze()) for part in first)
    assert precision.item() == pytest.approx(strength + 3)
    assert location.item() == pytest.approx((strength * mean + y.sum()) / (strength + 3))
    assert degrees == pytest.approx(freedom + 3)
    squares = ((y - y.mean()) ** 2).sum() + strength * 3 / (strength + 3) * (y.mean() - mean) ** 2
    assert scale.item() == pytest.approx(spread + squares)
    for one, other in zip(normals_of(source, nothing(source)), first, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    # Normal given the variance, and gamma of its inverse.
    (a, a_0), (b, b_0) = (degrees / 2, freedom / 2), (scale.item() / 2, spread / 2)
    of_gamma = (a - a_0) * digamma(a) - gammaln(a) + gammaln(a_0) + a_0 * np.log(b / b_0)
    of_gamma += a * (b_0 - b) / b
    ratio = strength / (strength + 3)
    of_normal = 0.5 * (ratio - 1 - np.log(ratio))
    of_normal += 0.5 * a / b * strength * (location.item() - mean) ** 2
    assert divergence_of(source, rows) == pytest.approx(of_gamma + of_normal)
    assert divergence_of(source, nothing(source)) == pytest.approx(0, abs=1e-9)


def test_blank_cells_are_drawn_given_what_was_seen(x64):
    """Draws at the corners of a cross average to conditional means, and to their covariance."""
    generator = np.random.default_rng(1)
    p, d = 2, 3
    seen = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    group = np.array([1, 0, 2, 1])
    real = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    values = generator.normal(size=(4, 2, p + d)) * real[..., None]
    values[..., p:] *= seen[group][:, None]
    context = np.array([1, 0, 1])
    source = np.array([[0, 1], [2, 0], [3, 4], [5, 0]])
    path = np.array([0, 1, 1, 0, 1, 1])
    data = ChannelData(
        values, real, group, context, seen, np.zeros((6, 1), int), np.where(real > 0, source, 0)
    )
    location = generator.normal(size=(2, 2, p, d))
    root = generator.normal(size=(2, 2, d, d))
    covariance = root @ np.swapaxes(root, -1, -2) + np.eye(d)
    arms = np.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    one_hot = (path[:, None, None] == np.arange(2)[None, :, None]).astype(float)
    given = jax.tree.map(jnp.asarray, (data, location, covariance))
    draw = jax.jit(jax.vmap(lambda noise: drawn_statistics(jnp.asarray(one_hot), noise, *given)))
    found = draw(jnp.asarray(np.broadcast_to(arms[:, None, None], (2 * d, 4, 2, d))))
    number, outer = np.zeros((2, 2)), np.zeros((2, 2, p + d, p + d))
    for block, place in zip(*np.nonzero(real), strict=True):
        at, k = context[group[block]], path[source[block, place]]
        a, o = values[block, place].copy(), seen[group[block]] > 0
        own, mean = covariance[at, k], a[:p] @ location[at, k]
        gain = own[np.ix_(~o, o)] @ np.linalg.inv(own[np.ix_(o, o)])
        a[p:][~o] = mean[~o] + gain @ (a[p:] - mean)[o]
        rest = np.zeros((p + d, p + d))
        free = np.append(np.zeros(p, bool), ~o)
        rest[np.ix_(free, free)] = own[np.ix_(~o, ~o)] - gain @ own[np.ix_(o, ~o)]
        number[at, k] += 1
        outer[at, k] += np.outer(a, a) + rest
    np.testing.assert_allclose(found.number, np.stack([number] * 2 * d))
    np.testing.assert_allclose(np.mean(found.outer, 0), outer, rtol=1e-9, atol=1e-9)
    # Every draw is one: what was seen stays as it was.
    whole = np.asarray(found.outer)[:, :, :, :p, :p]
    np.testing.assert_allclose(whole, np.broadcast_to(outer[:, :, :p, :p], whole.shape))
    assert np.ptp(found.outer, axis=0).max() > 0.1


@pytest.mark.covers("normal columns", "batches")
@pytest.mark.covers("regressions on covariates", "batches")
@pytest.mark.covers("blank cells of columns", "batches")
@pytest.mark.covers("members without actions", "batches")
@pytest.mark.covers("gaps beside columns", "batches")
def test_batches_add_up_to_a_sweep_over_everything():
    """Sums, counts and bounds of sweeps batch by batch are those of the full sweep."""
    from btil.inference.mfvi import Run

    bound = bind(model(), team())
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        state = run.begin(run.known)
        shift = sum(one.log_jacobian(one.units()).sum() for one in bound.channels.values())
        full = []
        for _ in range(3):
            step = run.sweep(state)
            full.append((float(step.elbo), step.upcoming))
            state = step.upcoming
        for size in (1, 3):
            data = stochastic.in_memory(bound, size)
            assert shift == pytest.approx(sum(s.log_jacobian for s in data.channels.values()))
            problem = stochastic.make_problem(data, size, None, None, 0, dtype)
            own = stochastic.first_state(problem)
            for expected, upcoming in full:
                own, found = stochastic.sweep(own, problem)
                assert found == pytest.approx(expected, abs=1e-9)
                counts = stochastic.concentrations(own, problem)
                for name, rows in run.rows(upcoming).items():
                    np.testing.assert_allclose(counts[name], rows.concentration, rtol=1e-9)
                for agent, source in data.channels.items():
                    name = source.channel.name
                    normals = normals_of(source, own.counts[name])
                    laid = run._channels[name]
                    for mine, theirs in zip(
                        normals, posterior_normals(laid, upcoming.channels[name]), strict=True
                    ):
                        np.testing.assert_allclose(mine, theirs, rtol=1e-7, err_msg=agent)


def test_densities_of_batches_are_of_the_cells_that_were_seen():
    """Of each the log of its column's standard deviation, if the step has its covariates."""
    demos = team()
    bound = bind(model(), demos)
    columns, before = demos.continuous, np.roll(demos.continuous["ann_x"], 1)
    before[demos.episode_starts] = np.nan
    has_covariates = {
        "ann": np.isfinite(columns["bob_x"]) & np.isfinite(before),
        "bob": demos.present[:, 1],
    }
    names = {"ann": ("ann_x", "ann_y"), "bob": ("bob_x",)}
    sources = sources_in_memory(bound, lambda chosen: np.arange(demos.num_steps))
    for agent, source in sources.items():
        seen = [np.isfinite(columns[c]) & has_covariates[agent] for c in names[agent]]
        spread = bound.channels[agent].units().spread
        expected = -sum(one.sum() * np.log(s) for one, s in zip(seen, spread, strict=True))
        assert source.log_jacobian == pytest.approx(expected)
        assert source.whole == np.array_equal(np.any(seen, axis=0), np.all(seen, axis=0))


def test_a_file_is_learned_from_as_what_is_in_memory(tmp_path, monkeypatch):
    demos = team()
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 9)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    options = {"batch_size": 3, "max_iterations": 12, "progress": False, "dtype": "float64"}
    one, other = (btil.fit(model(), given, **options) for given in (demos, file))
    assert one.elbo == other.elbo
    np.testing.assert_array_equal(one.elbo_trace, other.elbo_trace)
    assert one.model == other.model  # what the prior left open is taken from all episodes
    for mine, theirs in zip(one.emission("ann", 1), other.emission("ann", 1), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert other.bound.excerpt
    other.save(tmp_path / "team.nc")
    again = btil.load_posterior(tmp_path / "team.nc")
    for mine in (one, other):
        np.testing.assert_allclose(mine.log_likelihood(demos), again.log_likelihood(demos))
    np.testing.assert_array_equal(other.sample(3)["emission_covariance_bob"],
                                  again.sample(3)["emission_covariance_bob"])  # fmt: skip
    wrong = btil.TeamModel(emissions={"ann": btil.NormalEmission(("ann_z",))})
    with pytest.raises(ValueError, match="no continuous column 'ann_z'"):
        btil.fit(wrong, file, **options)


def test_contexts_that_the_excerpt_lacks_are_learned(tmp_path, monkeypatch):
    """A value of the channel's parent comes in the last episode alone."""
    demos = team(blank=())
    zone = np.where(np.arange(demos.num_steps) < demos.num_steps - 3, demos.states, 2)
    demos = demos.replace(states=zone, num_states=3)
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 1)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    posterior = btil.fit(_model(), file, batch_size=1, max_iterations=10, progress=False)
    posterior.save(tmp_path / "team.nc")
    loaded = btil.load_posterior(tmp_path / "team.nc")
    whole = btil.fit(_model(), demos, batch_size=1, max_iterations=10, progress=False)
    for own in (posterior, loaded):
        found, expected = own.emission("ann", [2]), whole.emission("ann", [2])
        np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-5)
        draws = own.drawn_channel("ann", np.array([[2]]), 50, 0).coefficients
        assert np.abs(draws.mean(0) - found.coefficients).max() < 60


def test_the_regression_of_all_steps_is_the_same_part_by_part():
    generator = np.random.default_rng(0)
    u = np.concatenate([np.ones((90, 1)), 1e6 + generator.normal(size=(90, 2))], axis=1)
    y = 1e5 + u[:, 1:] @ [[2.0, 0.3], [-1.0, 5.0]] + generator.normal(size=(90, 2))
    y[generator.random(y.shape) < 0.2] = np.nan
    parts = [(u[:10], y[:10]), (u[10:11], y[10:11]), (u[11:], y[11:])]
    one = trend_of(lambda: iter([(u, y)]), (3, 2), True)
    several = trend_of(lambda: iter(parts), (3, 2), True)
    for j in range(2):  # by NumPy, from the means
        known = np.isfinite(y[:, j])
        centred = u - np.append(0, u[:, 1:].mean(0))
        slopes, left = np.linalg.lstsq(centred[known], y[known, j])[:2]
        np.testing.assert_allclose(one.units.trend[1:, j], slopes[1:], rtol=1e-6)
        np.testing.assert_allclose(one.units.spread[j], np.sqrt(left[0] / known.sum()), rtol=1e-8)
    np.testing.assert_allclose(one.units.spread, several.units.spread, rtol=1e-8)
    np.testing.assert_allclose(u @ one.units.trend, u @ several.units.trend, rtol=1e-12)
    assert one.num_steps == several.num_steps == 90


@pytest.mark.parametrize("labelled", [8, 0])
def test_batches_end_where_the_whole_does(labelled):
    """Also without labels: a fit to some episodes tells the intents apart first."""
    task = btil.domains.errands(num_steps=15)
    demos = task.simulate(60, seed=0).without_labels(np.arange(labelled, 60))
    near = {agent: (f"{agent}_near",) for agent in task.agents}
    columns = {agent: task.columns(agent) for agent in task.agents}
    walks = btil.LinearNormalEmission(
        {agent: own[2:] for agent, own in columns.items()},
        {agent: own[:2] for agent, own in columns.items()},
    )
    motion = btil.TeamModel(
        policy=None, transition=btil.DirichletCPT(1.0, parents=near), emissions=walks
    )
    whole = btil.fit(motion, demos, progress=False)
    parts = btil.fit(motion, demos, batch_size=20, tolerance=1e-6, progress=False)
    assert parts.converged
    assert parts.elbo == pytest.approx(whole.elbo, abs=0.5)
    assert parts.model == whole.model


def test_a_run_by_batches_goes_on_from_its_checkpoint(tmp_path):
    demos, options = team(labelled=0), {"batch_size": 2, "progress": False}
    path = tmp_path / "run"
    whole = btil.fit(model(), demos, max_iterations=4, **options)
    btil.fit(model(), demos, max_iterations=4, checkpoint=path, **options)
    again = btil.fit(model(), demos, max_iterations=4, checkpoint=path, resume=True, **options)
    assert whole.elbo == again.elbo
    for mine, theirs in zip(whole.emission("bob", 0), again.emission("bob", 0), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.covers("several devices", "batches")
def test_batches_of_columns_on_several_devices():
    options = {"batch_size": 3, "max_iterations": 4, "progress": False, "dtype": "float64"}
    one, two = (btil.fit(model(), team(), devices=number, **options) for number in (1, 2))
    np.testing.assert_allclose(two.elbo_trace, one.elbo_trace, rtol=1e-9)
    for mine, theirs in zip(two.emission("ann", 1), one.emission("ann", 1), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7)


@pytest.mark.covers("tables with parameters beside columns", "batches")
def test_tables_with_parameters_are_learned_in_batches_beside_columns():
    """Sweeps by batches are those over everything, and so is the bound of what is learned."""
    from btil.inference.mfvi import Run

    given = btil.TeamModel(
        policy={"ann": btil.SoftmaxCPT(parents=("state",)), "bob": None},
        emissions={"ann": btil.NormalEmission(("ann_x",))},
    )
    bound = bind(given, team())
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        state = run.begin(run.known)
        problem = stochastic.make_problem(stochastic.in_memory(bound, 3), 3, None, None, 0, dtype)
        own = stochastic.first_state(problem)
        for _ in range(2):
            step = run.proceed(state, run._nowhere, np.asarray(1, np.int32), False)
            own, found = stochastic.sweep(own, problem)
            assert found == pytest.approx(float(step.elbo), abs=1e-9)
            state = step.upcoming
            counts = np.asarray(state.counts["policy_ann"])[: len(own.counts["policy_ann"])]
            np.testing.assert_allclose(own.counts["policy_ann"], counts, rtol=1e-6)
    demos = team(labelled=sum(LENGTHS), blank=())
    options = {"progress": False, "dtype": "float64", "max_iterations": 60}
    whole = btil.fit(given, demos, tolerance=1e-9, **options)
    parts = btil.fit(given, demos, batch_size=4, tolerance=1e-12, **options)
    assert parts.elbo == pytest.approx(whole.elbo, abs=1e-3)
    for site, normals in whole.result.parameters.items():
        np.testing.assert_allclose(parts.result.parameters[site].location, normals.location,
                                   atol=1e-3)  # fmt: skip
