"""Plots: what is drawn is what was computed, under the names in the data, and nothing leaks."""

import dataclasses
import io
import math
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from btil import Demonstrations, DirichletCPT, TeamModel, TeamPosterior
from btil.analysis import (
    RowChoice,
    choose_rows,
    confusion_matrix,
    expected_visits,
    misaligned_stretches,
    misalignment_probability,
    plot_alignment,
    plot_confusion,
    plot_elbo_traces,
    plot_ess,
    plot_forest,
    plot_method_against_method,
    plot_policy_rows,
    plot_prior_posterior,
    plot_rank,
    plot_restarts,
    plot_row_diagnostics,
    plot_sd_ratios,
    plot_timeline,
    plot_trace,
    plot_transition_graph,
    row_diagnostics,
)
from btil.analysis.plots.diagnostics import mean_ess
from btil.inference.result import DirichletRows, DrawnRows, FitResult, MixtureRows
from btil.models.team import bind

MOODS = ("wait $5", "help", "go/home")
ACTS = ("push", "pull")
SKY_BLUE, VERMILION = "#56B4E9", "#D55E00"
CHAIN_PLOTS = (plot_trace, plot_rank, plot_forest, plot_ess)


@pytest.fixture(scope="module")
def demos():
    rng = np.random.default_rng(0)
    labels = np.stack([np.repeat(rng.integers(0, k, 30), 3) for k in (3, 2)], axis=1)
    labels[80:, 0] = -1
    return Demonstrations(
        states={"room": rng.integers(0, 2, 90)},
        actions=rng.integers(0, 2, (90, 2)),
        latents=labels,
        episodes=np.repeat(["first", "second"], [50, 40]),
        agents=("ann", "bob"),
        num_latents=(3, 2),
        state_names={"room": ("hall", "yard")},
        action_names={"ann": ACTS, "bob": ("sing", "hum")},
        latent_names={"ann": MOODS},
    )


@pytest.fixture(scope="module")
def bound(demos):
    model = TeamModel(
        policy=DirichletCPT(1.0, parents=("room",)),
        transition=DirichletCPT(1.0),
        initial=DirichletCPT(1.0),
    )
    return bind(model, demos)


def make(bound, rows, method="mfvi", **result):
    return TeamPosterior(
        bound=bound,
        method=method,
        result=FitResult(rows=rows, converged=True, reason="made by hand", **result),
        seed=0,
        dtype=np.dtype(np.float64),
        wall_time=1.0,
    )


def concentrations(bound, seed=0):
    rng = np.random.default_rng(seed)
    return {site: rng.gamma(2.0, 4.0, table.shape) + 0.5 for site, table in bound.learned.items()}


@pytest.fixture(scope="module")
def mfvi(bound):
    rows = {site: DirichletRows(values) for site, values in concentrations(bound).items()}
    trace = -100 / np.arange(1.0, 21) - 50
    return make(bound, rows, elbo=-55.25, elbo_trace=trace, restart_traces=(trace, trace[:7] - 9.0))


@pytest.fixture(scope="module")
def chains(bound):
    rng = np.random.default_rng(1)
    rows = {}
    for site, values in concentrations(bound).items():
        flat = values.reshape(-1, values.shape[-1])
        draws = np.stack([rng.dirichlet(row, (2, 60)) for row in flat], axis=2)
        rows[site] = DrawnRows(draws.reshape(2, 60, *values.shape))
    # One row on which the chains do not agree at all.
    rows["policy_ann"].draws[0, :, 1, 2] = rng.dirichlet([2, 40], 60)
    rows["policy_ann"].draws[1, :, 1, 2] = rng.dirichlet([40, 2], 60)
    diverging = np.zeros((2, 60), bool)
    diverging[0, 5] = True
    return make(bound, rows, "nuts", sample_stats={"diverging": diverging})


@pytest.fixture(autouse=True)
def nothing_leaks():
    settings = dict(matplotlib.rcParams)
    yield
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings


def texts(figure):
    """Every visible text, from a figure that has really been drawn."""
    figure.savefig(io.BytesIO(), format="png")
    found = [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_visible()]
    return [text for text in found if text]


def overlapping(labels, figure):
    """Pairs of tick labels that lie over each other."""
    figure.draw_without_rendering()
    boxes = [(t.get_text(), t.get_window_extent()) for t in labels if t.get_text()]
    return [(a, b) for k, (a, one) in enumerate(boxes) for b, two in boxes[:k] if one.overlaps(two)]


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


# ------------------------------------------------------------------ method against method


def test_method_against_method_draws_means_of_both(bound, mfvi, chains):
    figure = plot_method_against_method(chains, {"mean field": mfvi, "itself": chains})
    assert isinstance(figure, Figure)
    first, second = panels(figure)
    assert first.get_xlabel() == "posterior mean, nuts"
    assert first.get_ylabel() == "posterior mean, mean field"
    assert "mean field" in first.get_title()
    points = np.concatenate([c.get_offsets() for c in first.collections if c.get_label() in
                             ("policy", "transition", "initial")])  # fmt: skip
    expected = np.concatenate(
        [
            np.stack([chains.result.rows[s].mean().ravel(), r.mean().ravel()], axis=1)
            for s, r in mfvi.result.rows.items()
        ]
    )
    in_order = [values[np.lexsort(values.T)] for values in (points, expected)]
    np.testing.assert_allclose(in_order[0], in_order[1])
    assert "mean difference 0.000" in second.get_title()
    assert {"policy", "transition", "initial"} <= set(texts(figure))


@pytest.mark.parametrize("family", ["dirichlet", "draws", "mixture"])
def test_intervals_hold_89_percent(bound, family):
    from btil.analysis.plots.rows import cell_intervals

    rng = np.random.default_rng(3)
    values = concentrations(bound)["policy_ann"]
    rows = {
        "dirichlet": DirichletRows(values),
        "mixture": MixtureRows(np.array([0.5, 0.5]), np.stack([values, values]), "policy_ann"),
        "draws": DrawnRows(
            np.stack([rng.dirichlet(row, 4000) for row in values.reshape(-1, 2)], axis=1).reshape(
                1, 4000, *values.shape
            )
        ),
    }[family]
    cells = np.array([0, 3, 5])
    low, high = cell_intervals(make(bound, {"policy_ann": rows}), "policy_ann", cells)
    draws = rng.beta(values.ravel()[cells], values[..., ::-1].ravel()[cells], (200_000, 3))
    assert np.mean((draws > low) & (draws < high), axis=0) == pytest.approx([0.89] * 3, abs=0.03)
    assert np.mean(draws < low, axis=0) == pytest.approx([0.055] * 3, abs=0.02)


def test_many_cells_are_thinned_and_the_count_is_told(mfvi, chains):
    figure = plot_method_against_method(chains, {"mean field": mfvi}, max_cells=10)
    (axes,) = panels(figure)
    # policies 2 x 3 x 2 and 2 x 2 x 2, transitions 9 and 4, initials 3 and 2.
    assert "10 of 38 cells" in axes.get_title()
    drawn = sum(len(c.get_offsets()) for c in axes.collections if c.get_label() in
                ("policy", "transition", "initial"))  # fmt: skip
    assert drawn == 10


def test_sd_ratios_draws_the_quantiles(bound, mfvi, chains):
    half = {s: DrawnRows(0.5 * r.draws) for s, r in chains.result.rows.items()}
    figure = plot_sd_ratios(chains, {"halved": make(bound, half, "gibbs"), "mean field": mfvi})
    (axes,) = panels(figure)
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "posterior standard deviation / that of nuts"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["halved", "mean field"]
    medians = [float(c.get_offsets()[0, 0]) for c in axes.collections]
    assert medians[:3] == pytest.approx([0.5] * 3)
    ratios = np.concatenate(
        [
            (mfvi.result.rows[s].sd() / chains.result.rows[s].sd()).ravel()
            for s in ("policy_ann", "policy_bob")
        ]
    )
    assert medians[3] == pytest.approx(np.median(ratios))
    assert any(text.startswith("0.50") for text in texts(figure))
    assert not overlapping(axes.get_xticklabels(), figure)


def test_known_cells_have_no_ratio(bound, chains):
    rows = dict(chains.result.rows)
    rows["policy_ann"] = DrawnRows(np.full_like(rows["policy_ann"].draws, 0.5))
    figure = plot_sd_ratios(chains, {"some known": make(bound, rows, "gibbs")})
    assert any("(8 cells)" in text for text in texts(figure))


def test_nothing_to_compare_is_refused(mfvi):
    for plot in (plot_method_against_method, plot_sd_ratios):
        with pytest.raises(ValueError, match="at least one posterior"):
            plot(mfvi, {})


# ------------------------------------------------------------------ the bound


def test_elbo_traces_hold_the_traces(mfvi, chains):
    figure = plot_elbo_traces({"mean field": mfvi, "chains": chains})
    (axes,) = panels(figure)
    assert axes.get_xlabel() == "iteration"
    assert axes.get_title() == "mean field\nfinal -55.25 (dashed)"
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    assert tuple(mfvi.elbo_trace) in drawn
    assert tuple(mfvi.elbo_trace[:7] - 9.0) in drawn
    assert not overlapping(axes.get_yticklabels(), figure)
    with pytest.raises(ValueError, match="no posterior has a trace of its bound: chains"):
        plot_elbo_traces({"chains": chains})


# ------------------------------------------------------------------ one episode


def lane_steps(axes, color):
    """(lane, step) pairs that the bars of one colour cover."""
    wanted = matplotlib.colors.to_rgba(color)
    return {
        (round(bar.get_y() + bar.get_height() / 2), step)
        for bar in axes.patches
        if bar.get_facecolor() == wanted
        for step in range(math.ceil(bar.get_x()), math.floor(bar.get_x() + bar.get_width()) + 1)
    }


def test_timeline_shows_beliefs_labels_and_path(demos, mfvi):
    figure = plot_timeline(mfvi, demos, 1, "ann")
    (axes,) = panels(figure)
    hidden = demos.select([1]).without_labels()
    (image,) = axes.findobj(AxesImage)
    np.testing.assert_array_equal(image.get_array(), mfvi.smooth(hidden)["ann"].T)
    assert image.get_cmap().name == "cividis"
    assert [t.get_text() for t in axes.get_yticklabels()] == list(MOODS)
    assert axes.get_xlabel() == "step"
    labels = demos.select([1]).latents[:, 0]
    assert lane_steps(axes, "white") == {(k, t) for t, k in enumerate(labels) if k >= 0}
    path = mfvi.decode(hidden)[:, 0]
    right, wrong = lane_steps(axes, SKY_BLUE), lane_steps(axes, VERMILION)
    assert right | wrong == {(k, t) for t, k in enumerate(path)}
    assert wrong == {(k, t) for t, k in enumerate(path) if labels[t] not in (-1, k)}
    assert wrong
    known = labels >= 0
    error = np.mean(path[known] != labels[known])
    assert f"mfvi: {error:.1%} of labelled steps decoded wrongly" in axes.get_title(loc="left")
    assert "ann, episode second" in axes.get_title(loc="left")
    assert {"true label", "most probable path"} <= set(texts(figure))


def test_timeline_may_condition_on_labels(demos, mfvi):
    figure = plot_timeline(mfvi, demos, 0, "ann", condition_on_labels=True)
    (axes,) = panels(figure)
    assert lane_steps(axes, "white") == lane_steps(axes, SKY_BLUE)
    assert "0.0% of labelled steps decoded wrongly" in axes.get_title(loc="left")


def test_long_timelines_are_broken_into_lines(demos, mfvi, monkeypatch):
    monkeypatch.setattr("btil.analysis.plots.timeline._STEPS_A_LINE", 20)
    figure = plot_timeline(mfvi, demos, 1, "bob")
    assert len(panels(figure)) == 2
    assert [axes.get_xlim() for axes in panels(figure)] == [(-0.5, 19.5), (19.5, 39.5)]
    covered = [lane_steps(axes, SKY_BLUE) | lane_steps(axes, VERMILION) for axes in panels(figure)]
    assert sorted(step for lane in covered for _, step in lane) == list(range(40))


def test_axes_of_the_caller_are_used(demos, mfvi, chains):
    figure = Figure(figsize=(9, 9))
    axes = figure.subplots(2, 2).ravel()
    decoded = np.zeros((90, 2), int)
    assert plot_timeline(mfvi, demos, 0, "ann", ax=axes[0]) is figure
    assert plot_confusion(demos, decoded, "ann", ax=axes[1]) is figure
    assert plot_sd_ratios(chains, {"mean field": mfvi}, ax=axes[2]) is figure
    assert plot_elbo_traces({"mean field": mfvi}, axes=axes[3]) is figure
    assert axes[0].get_xlabel() == "step"
    assert axes[1].get_xlabel() == "decoded"
    with pytest.raises(ValueError, match="axes: 2 given, 1 are needed"):
        plot_method_against_method(chains, {"mean field": mfvi}, axes=axes[:2])


def test_timeline_refuses_unknown_agents_and_episodes(demos, mfvi):
    with pytest.raises(ValueError, match="unknown agent 'eve'"):
        plot_timeline(mfvi, demos, 0, "eve")
    with pytest.raises(ValueError, match="indices from 0 to 1"):
        plot_timeline(mfvi, demos, 2, "ann")


def test_confusion_writes_counts_and_colours_shares(demos):
    rng = np.random.default_rng(4)
    decoded = np.stack([rng.integers(0, 3, 90), rng.integers(0, 2, 90)], axis=1)
    figure = plot_confusion(demos, decoded, "ann")
    (axes,) = panels(figure)
    counts = confusion_matrix(demos, decoded, "ann")
    written = {t.get_position(): t.get_text() for t in axes.texts}
    assert written == {(c, r): str(counts[r, c]) for r in range(3) for c in range(3)}
    (image,) = axes.findobj(AxesImage)
    np.testing.assert_allclose(image.get_array(), counts / counts.sum(1, keepdims=True))
    assert [t.get_text() for t in axes.get_xticklabels()] == list(MOODS)
    assert [t.get_text() for t in axes.get_yticklabels()] == list(MOODS)
    assert axes.get_ylabel() == "true label"
    correct = np.trace(counts) / counts.sum()
    assert axes.get_title() == f"ann: 80 labelled steps, {correct:.1%} correct"
    assert MOODS[0] in texts(figure)


# ------------------------------------------------------------------ chains


def test_rows_are_chosen_by_disagreement_and_visits(demos, chains):
    chosen = choose_rows(chains, num_worst=1, num_visited=2)
    assert chosen[0] == RowChoice("policy_ann", 1, 2)
    # Expected visits, spelled out.
    beliefs = chains.smooth(chains.demos)
    best = max(
        (sum(beliefs[agent][t, k] for t in range(90) if demos.states[t] == room), site, room, k)
        for agent, site in (("ann", "policy_ann"), ("bob", "policy_bob"))
        for room in (0, 1)
        for k in range(beliefs[agent].shape[1])
    )
    found = [row for row in choose_rows(chains, 0, 6) if row.site == best[1]]
    assert found == [RowChoice(*best[1:])]
    assert len(set(choose_rows(chains, 40, 6))) == len(choose_rows(chains, 40, 6))


@pytest.mark.parametrize("plot", CHAIN_PLOTS)
def test_arviz_plots_name_the_rows_in_words(plot, chains):
    rows = [("policy_ann", 1, 2), ("transition_bob", 0, 1), ("initial_ann", 0)]
    figure = plot(chains, rows)
    written = " ".join(" ".join(texts(figure)).split())
    assert "go/home" in written or "go∕home" in written
    for words in ("room=yard", "policy of ann", "transition of bob", "initial of ann"):
        assert words in written
    assert "P(pu" in written
    if plot is not plot_ess:
        assert {"chain 0", "chain 1"} <= set(texts(figure))
    if plot is plot_forest:
        assert all(f"A P({act})" in written for act in ACTS)
        assert "C P(wait $5)" in written


@pytest.mark.parametrize("plot", CHAIN_PLOTS)
def test_methods_without_chains_are_refused(plot, mfvi, chains):
    with pytest.raises(ValueError, match="mfvi has no chains to plot; use method"):
        plot(mfvi)
    guide = dataclasses.replace(chains, method="svi")
    with pytest.raises(ValueError, match="svi has no chains"):
        plot(guide)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("policy_eve", 0, 0), "no learned table 'policy_eve'; there are policy_ann"),
        (("policy_ann", 2, 0), r"context 2; allowed are 0\.\.1"),
        (("policy_ann", 0, 3), r"latent 3; allowed are 0\.\.2"),
        (("policy_ann", 0), r"latent None; allowed are 0\.\.2"),
    ],
)
def test_rows_that_do_not_exist_are_refused(row, message, chains):
    with pytest.raises(ValueError, match=message):
        plot_trace(chains, [row])


def test_plots_are_imported_without_matplotlib():
    code = "import sys, btil.analysis.plots; print({'matplotlib', 'arviz'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_that_the_data_hardly_read_are_left_out(bound, mfvi, chains):
    from btil.analysis.plots.methods import _common_cells

    visits = {site: np.array(values) for site, values in expected_visits(chains).items()}
    assert visits["initial_ann"].tolist() == [2.0]
    assert visits["policy_ann"].sum() == pytest.approx(90)
    assert visits["transition_bob"].sum() == pytest.approx(88)
    visits["policy_ann"][1, 2] = 0.9
    cells = {one.site: one for one in _common_cells(mfvi, chains, visits)}
    # Row (1, 2) of two contexts, three latents and two actions: its cells are 10 and 11.
    assert cells["policy_ann"].own.tolist() == list(range(10))
    assert cells["policy_ann"].reference.tolist() == list(range(10))
    assert cells["policy_bob"].own.tolist() == list(range(8))


# ------------------------------------------------------------------ several agents, bands


def test_timelines_of_several_agents_are_stacked(demos, mfvi):
    figure = plot_timeline(mfvi, demos, 0)
    first, second = panels(figure)
    assert first.get_title(loc="left").startswith("ann, episode first")
    assert second.get_title(loc="left").startswith("bob, episode first")
    assert [t.get_text() for t in second.get_yticklabels()] == ["0", "1"]
    with pytest.raises(ValueError, match="axes: 1 given, 2 are needed"):
        plot_timeline(mfvi, demos, 0, ax=first)
    with pytest.raises(ValueError, match="kind must be one of heatmap, bands, got 'ribbons'"):
        plot_timeline(mfvi, demos, 0, kind="ribbons")
    with pytest.raises(ValueError, match="agent: at least one"):
        plot_timeline(mfvi, demos, 0, [])


def test_bands_stack_probabilities_and_repeat_path_and_labels(demos, mfvi):
    figure = plot_timeline(mfvi, demos, 1, "ann", kind="bands", num_draws=5)
    (axes,) = panels(figure)
    hidden = demos.select([1]).without_labels()
    beliefs = mfvi.smooth(hidden, num_draws=5)["ann"]
    for latent, name in enumerate(MOODS):
        (area,) = [c for c in axes.collections if c.get_label() == name]
        vertices = area.get_paths()[0].vertices
        for step in (0, 17, 39):
            own = vertices[np.isclose(np.abs(vertices[:, 0] - step), 0.5)][:, 1]
            expected = beliefs[step, : latent + 1].sum()
            assert np.isclose(own, expected, atol=1e-6).any()
    # One bar for each run of the path, and of the labels.
    path, labels = mfvi.decode(hidden)[:, 0], demos.select([1]).latents[:, 0]
    runs = sum(1 + np.count_nonzero(np.diff(v)) - (v is labels) for v in (path, labels))
    assert labels[-1] == -1
    assert len(axes.patches) == runs
    assert set(MOODS) | {"decoded", "true label"} <= set(texts(figure))


# ------------------------------------------------------------------ alignment


@pytest.fixture(scope="module")
def pair():
    """Two agents with the same latents, both of them labelled everywhere but at the end."""
    rng = np.random.default_rng(5)
    labels = np.stack(
        [np.repeat(rng.integers(0, 2, 8), 5), np.repeat(rng.integers(0, 2, 10), 4)], 1
    )
    hidden = labels.copy()
    hidden[36:] = -1
    demos = Demonstrations(
        states=np.zeros(40, int), actions=labels, latents=hidden, num_states=1, num_latents=2,
        episodes=np.repeat([0, 1], 20), agents=("ann", "bob"), latent_names=("rest", "lift"),
    )  # fmt: skip
    bound = bind(TeamModel(policy=DirichletCPT(1.0), transition=DirichletCPT(1.0)), demos)
    return make(bound, {s: DirichletRows(v) for s, v in concentrations(bound).items()})


def test_misalignment_is_what_enumeration_says(pair):
    demos = pair.demos
    beliefs = pair.smooth(demos.without_labels())
    expected = [
        sum(a[i] * b[j] for i in range(2) for j in range(2) if i != j)
        for a, b in zip(beliefs["ann"], beliefs["bob"], strict=True)
    ]
    np.testing.assert_allclose(misalignment_probability(demos, beliefs), expected, atol=1e-6)
    path = np.array([[0, 0], [0, 1], [1, 0]] + [[1, 1]] * 16 + [[0, 1]] * 3 + [[1, 1]] * 18)
    stretches = misaligned_stretches(demos, path, beliefs)
    # A stretch ends with its episode, at step 19.
    assert [one[:3] for one in stretches] == [(0, 1, 2), (0, 19, 19), (1, 0, 1)]
    assert [one.num_steps for one in stretches] == [2, 1, 2]
    assert stretches[0].probability == pytest.approx(np.mean(expected[1:3]))


def test_alignment_with_a_task_is_what_the_task_says():
    import btil

    task = btil.domains.movers("tiny")
    demos = task.simulate(2, seed=3)
    rng = np.random.default_rng(0)
    beliefs = {a: rng.dirichlet(np.ones(task.num_latents), demos.num_steps) for a in task.agents}
    found = misalignment_probability(demos, beliefs, task)
    # Many draws of both minds, judged by the task.
    shares = np.zeros(demos.num_steps)
    for _ in range(400):
        drawn = np.stack(
            [(rng.random((len(b), 1)) > b.cumsum(1)[:, :-1]).sum(1) for b in beliefs.values()], 1
        )
        shares += task.suboptimal(demos.states, drawn) / 400
    assert np.abs(shares - found).max() < 5 * 0.5 / np.sqrt(400)
    stretches = misaligned_stretches(demos, demos.latents, beliefs, task)
    total = sum(one.num_steps for one in stretches)
    assert total == task.suboptimal(demos.states, demos.latents).sum()


def test_alignment_draws_probability_and_shades_what_differs(pair):
    demos = pair.demos
    figure = plot_alignment(pair, demos, 1)
    above, below = panels(figure)
    hidden = demos.select([1]).without_labels()
    probability = 1 - misalignment_probability(hidden, pair.smooth(hidden))
    np.testing.assert_allclose(above.lines[0].get_ydata(), probability)
    path = pair.decode(hidden)
    shaded = {
        step
        for patch in above.patches
        for step in range(math.ceil(patch.get_x()), math.ceil(patch.get_x() + patch.get_width()))
    }
    assert shaded == set(np.flatnonzero(path[:, 0] != path[:, 1]).tolist())
    assert [t.get_text() for t in below.get_yticklabels()] == ["ann", "bob"]
    assert {"rest", "lift"} & set(texts(figure))
    aligned = np.mean(path[:, 0] == path[:, 1])
    assert f"minds aligned at {aligned:.0%} of 20 steps" in above.get_title(loc="left")


def test_minds_of_different_names_are_not_compared(demos, mfvi):
    with pytest.raises(ValueError, match=r"the latents of ann are .* they cannot be compared"):
        plot_alignment(mfvi, demos, 0)
    with pytest.raises(ValueError, match=r"latents: shape \(3, 2\), expected"):
        misaligned_stretches(demos, np.zeros((3, 2), int), {})


# ------------------------------------------------------------------ tables


def test_policy_rows_hold_means_intervals_and_priors(mfvi):
    figure = plot_policy_rows(mfvi, "ann", contexts=[1, 0], latents=[2, 0])
    shown = panels(figure)
    rows = mfvi.result.rows["policy_ann"]
    visits = expected_visits(mfvi)["policy_ann"]
    for axes, (context, latent) in zip(shown, [(1, 2), (1, 0), (0, 2), (0, 0)], strict=True):
        prior, mean = axes.lines
        np.testing.assert_allclose(prior.get_xdata(), [0.5, 0.5])
        np.testing.assert_allclose(mean.get_xdata(), rows.mean()[context, latent])
        (intervals,) = axes.collections
        for action, line in enumerate(intervals.get_segments()):
            a = rows.concentration[context, latent]
            from scipy.stats import beta

            low, high = beta.interval(0.89, a[action], a.sum() - a[action])
            np.testing.assert_allclose(line[:, 0], [low, high])
        n = visits[context, latent]
        assert MOODS[latent] in axes.get_title(loc="left")
        assert f"n = {n:,.0f}" in axes.get_title(loc="left") or f"{n:,.1f}" in axes.get_title(
            loc="left"
        )
    assert "room=yard" in shown[0].get_title(loc="left")
    assert [t.get_text() for t in shown[0].get_yticklabels()] == list(ACTS)


@pytest.mark.parametrize(("kind", "number"), [("context", 2), ("latent", 3)])
def test_policy_rows_may_share_panels(chains, kind, number):
    figure = plot_policy_rows(chains, "ann", panels=kind)
    assert len(panels(figure)) == number
    assert "prior" in texts(figure)
    own = Figure()
    axes = own.subplots(1, number)
    assert plot_policy_rows(chains, "ann", panels=kind, axes=axes) is own


def test_wrong_contexts_latents_and_panels_are_refused(mfvi):
    with pytest.raises(ValueError, match=r"contexts: \[2\]; allowed are rows of .* 0\.\.1"):
        plot_policy_rows(mfvi, "ann", contexts=[2])
    with pytest.raises(ValueError, match=r"latents: \[3\]; allowed are 0\.\.2"):
        plot_policy_rows(mfvi, "ann", latents=[3])
    with pytest.raises(ValueError, match="panels must be one of row, latent, context"):
        plot_policy_rows(mfvi, "ann", panels="all")
    with pytest.raises(ValueError, match="unknown agent 'eve'"):
        plot_transition_graph(mfvi, "eve")


def test_transition_graph_writes_probabilities_and_draws_arrows(bound, mfvi):
    from matplotlib.patches import FancyArrowPatch, Wedge

    rows = dict(mfvi.result.rows)
    table = np.array([[[0.7, 0.29, 0.01], [0.0001, 0.9, 0.0999], [0.5, 0.2, 0.3]]])
    rows["transition_ann"] = DirichletRows(50 * table)
    figure = plot_transition_graph(make(bound, rows), "ann")
    (axes,) = panels(figure)
    wedges = [p for p in axes.patches if isinstance(p, Wedge)]
    np.testing.assert_allclose(
        [(w.theta2 - w.theta1) / 360 for w in wedges], [0.7, 0.9, 0.3], atol=1e-9
    )
    # Of six changes two are less probable than 0.03.
    assert len([p for p in axes.patches if isinstance(p, FancyArrowPatch)]) == 4
    assert {"0.70", "0.90", "0.30", "0.29", "0.50", "0.20"} <= set(texts(figure))
    assert set(MOODS) <= set(texts(figure))
    assert any("88 steps" in text for text in texts(figure))


# ------------------------------------------------------------------ prior and posterior


def test_prior_and_posterior_are_told_apart(mfvi):
    figure = plot_prior_posterior(mfvi, [("policy_ann", 1, 2), ("initial_bob", 0)], num_draws=200)
    written = " ".join(" ".join(texts(figure)).split())
    for words in ("prior", "posterior", "policy of ann", "initial of bob", "room=yard"):
        assert words in written
    assert len(plot_prior_posterior(mfvi, num_draws=50).axes) == len(mfvi.result.rows)
    with pytest.raises(ValueError, match="no learned table 'policy_eve'"):
        plot_prior_posterior(mfvi, [("policy_eve", 0, 0)])


# ------------------------------------------------------------------ many rows, many runs


@pytest.mark.parametrize("num_draws", [8, 9, 50, 101])
def test_effective_sample_sizes_are_those_of_arviz(num_draws):
    from arviz_stats.base import array_stats

    rng = np.random.default_rng(num_draws)
    draws = rng.normal(size=(4, num_draws, 3, 10))
    draws[..., 1, :] = draws[..., 1, :].cumsum(1)
    draws[:, 1:, 2] -= 0.9 * draws[:, :-1, 2]
    expected = array_stats.ess(draws, chain_axis=0, draw_axis=1, method="mean")
    np.testing.assert_allclose(mean_ess(draws), expected, rtol=1e-9)
    assert np.isnan(mean_ess(np.ones((4, 50)))).all()
    assert np.isnan(mean_ess(draws[:, :7])).all()


def test_row_diagnostics_know_the_worst_row(chains):
    table = row_diagnostics(chains)
    assert len(table) == sum(math.prod(t.shape[:-1]) for t in chains.bound.learned.values())
    worst = table.loc[table["rhat"].idxmax()]
    assert (worst["site"], worst["context"], worst["latent"]) == ("policy_ann", 1, 2)
    assert worst["ess"] < 20
    assert worst["visits"] == pytest.approx(expected_visits(chains)["policy_ann"][1, 2])
    assert table[table["site"] == "initial_ann"]["latent"].tolist() == [-1]
    for statistic in ("rhat", "ess"):
        figure = plot_row_diagnostics(chains, statistic)
        points = [p for c in panels(figure)[0].collections for p in c.get_offsets().tolist()]
        np.testing.assert_allclose(sorted(p[1] for p in points), sorted(table[statistic]))
        named = " ".join(texts(figure))
        assert "A: " in named
        assert "policy of ann given go/home, room=yard" in named
    with pytest.raises(ValueError, match="statistic must be one of rhat, ess, got 'mcse'"):
        plot_row_diagnostics(chains, "mcse")


def test_restarts_are_ordered_by_where_they_end(bound, mfvi):
    ends = (-55.25, -60.0, -55.26, -70.0)
    traces = tuple(end - 30 / np.arange(1.0, 9) ** 4 + 30 / 8**4 for end in ends)
    best = make(bound, mfvi.result.rows, elbo=ends[0], elbo_trace=traces[0], restart_traces=traces)
    figure = plot_restarts(best)
    left, right = panels(figure)
    assert left.get_title() == "best bound -55.25"
    assert right.get_title() == "2 of 4 runs end within 0.1 nats of it"
    found, others = (c.get_offsets().tolist() for c in right.collections)
    np.testing.assert_allclose(found, [[1, 0.01], [2, 0.01]], atol=1e-9)
    np.testing.assert_allclose(others, [[3, 4.75], [4, 14.75]])
    assert left.get_yscale() == right.get_yscale() == "log"
    with pytest.raises(ValueError, match="nuts has no runs from several starting points"):
        plot_restarts(make(bound, mfvi.result.rows, "nuts"))
    with pytest.raises(ValueError, match="within must be positive"):
        plot_restarts(best, within=0.0)


def test_the_steep_beginning_of_a_bound_is_seen_in_an_inset(bound, mfvi):
    trace = -1e5 / np.arange(1.0, 60) ** 4 - 50
    steep = make(bound, mfvi.result.rows, elbo=-50.0, elbo_trace=trace)
    (axes,) = panels(plot_elbo_traces({"steep": steep}))
    (inset,) = axes.child_axes
    assert inset.get_ylim()[0] < -1e5 < axes.get_ylim()[0]
    flat = make(bound, mfvi.result.rows, elbo=-50.0, elbo_trace=np.linspace(-60, -50, 40))
    (axes,) = panels(plot_elbo_traces({"flat": flat}))
    assert not axes.child_axes
