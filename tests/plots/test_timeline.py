"""Timelines, alignment and confusion: every step is where it belongs."""

import math

import numpy as np
import pytest
from drawn import MOODS, lane_steps, panels, texts
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage

from btil.analysis import (
    confusion_matrix,
    misalignment_probability,
    plot_alignment,
    plot_confusion,
    plot_timeline,
)
from btil.analysis.plots.layout import look
from btil.analysis.plots.timeline import _misaligned_by_labels

SKY_BLUE, VERMILION = "#56B4E9", "#D55E00"


def bars(axes, patches):
    """(lane, first step, number of steps, colour) of bars."""
    return {
        (
            round(bar.get_y() + bar.get_height() / 2, 2),
            round(bar.get_x() + 0.5),
            round(bar.get_width()),
            bar.get_facecolor(),
        )
        for bar in patches
    }


def runs_of(path, lane):
    """The bars of a path, one step after the other."""
    found = []
    for step, value in enumerate(path):
        if value < 0:
            found.append(None)
        elif found and found[-1] is not None and path[step - 1] == value:
            lane_, first, number, color = found[-1]
            found[-1] = (lane_, first, number + 1, color)
        else:
            found.append((round(lane, 2), step, 1, to_rgba(look(int(value)).color)))
    return {one for one in found if one is not None}


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


def test_timeline_says_that_labels_were_used(demos, mfvi, pair):
    figure = plot_timeline(mfvi, demos, 0, "ann", use_labels=True)
    (axes,) = panels(figure)
    assert lane_steps(axes, "white") == lane_steps(axes, SKY_BLUE)
    # No error is told of a path that went through the answers.
    assert axes.get_title(loc="left") == "ann, episode first, mfvi: labels used at 100% of steps"
    title = panels(plot_alignment(pair, pair.demos, 0, use_labels=True))[0].get_title(loc="left")
    assert "labels used" in title
    title = panels(plot_alignment(pair, pair.demos, 0))[0].get_title(loc="left")
    assert "labels used" not in title


def test_long_timelines_are_broken_into_lines(demos, mfvi, monkeypatch):
    monkeypatch.setattr("btil.analysis.plots.timeline._STEPS_A_LINE", 20)
    figure = plot_timeline(mfvi, demos, 1, "bob")
    assert len(panels(figure)) == 2
    assert [axes.get_xlim() for axes in panels(figure)] == [(-0.5, 19.5), (19.5, 39.5)]
    covered = [lane_steps(axes, SKY_BLUE) | lane_steps(axes, VERMILION) for axes in panels(figure)]
    assert sorted(step for lane in covered for _, step in lane) == list(range(40))
    assert panels(figure)[1].get_title(loc="left") == ""
    # Of several agents each line has a panel of each, and tells once how they were decoded.
    both = panels(plot_timeline(mfvi, demos, 1))
    titles = [axes.get_title(loc="left") for axes in both]
    assert [title.split(",")[0] for title in titles] == ["ann", "bob", "ann", "bob"]
    assert ["decoded wrongly" in title for title in titles] == [True, True, False, False]
    assert titles[2:] == ["ann", "bob"]
    assert [axes.get_xlim()[0] for axes in both] == [-0.5, -0.5, 19.5, 19.5]
    beliefs = mfvi.smooth(demos.select([1]).without_labels())
    for axes, (agent, part) in zip(
        both, [(a, slice(k, k + 20)) for k in (0, 20) for a in demos.agents], strict=True
    ):
        (image,) = axes.findobj(AxesImage)
        np.testing.assert_array_equal(image.get_array(), beliefs[agent][part].T)
        assert image.get_extent()[:2] == [part.start - 0.5, part.stop - 0.5]
    assert [axes.get_xlabel() for axes in both] == ["", "", "", "step"]


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
    assert bars(axes, axes.patches) == runs_of(path, -0.17) | runs_of(labels, 1.17)
    assert set(MOODS) | {"decoded", "true label"} <= set(texts(figure))


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
    # Of each agent what was decoded, and under it the labels.
    labels = demos.select([1]).latents
    lanes = [runs_of(path[:, i], i) | runs_of(labels[:, i], i + 0.36) for i in (0, 1)]
    drawn = [patch for patch in below.patches if round(patch.get_height(), 2) in (0.5, 0.13)]
    assert bars(below, drawn) == lanes[0] | lanes[1]
    # A line where the labels of both differ; of the last four steps there are none.
    by_labels = (labels[:, 0] != labels[:, 1]) & (labels >= 0).all(1)
    lines = [line.get_xdata() for line in above.lines if set(line.get_ydata()) == {1.06}]
    covered = {step for first, last in lines for step in range(math.ceil(first), math.ceil(last))}
    assert covered == set(np.flatnonzero(by_labels).tolist())
    assert covered
    assert len(lines) == np.count_nonzero(np.diff(by_labels.astype(int), prepend=0) == 1)
    said = {text.get_text() for text in figure.legends[0].texts}
    assert said == {"rest", "lift", "misaligned, as decoded", "by the labels"}
    aligned = np.mean(path[:, 0] == path[:, 1])
    assert f"minds aligned at {aligned:.0%} of 20 steps" in above.get_title(loc="left")


def test_minds_of_different_names_are_not_compared(demos, mfvi):
    with pytest.raises(ValueError, match=r"the latents of ann are .* they cannot be compared"):
        plot_alignment(mfvi, demos, 0)


def test_long_alignments_are_broken_into_lines(pair, monkeypatch):
    whole = plot_alignment(pair, pair.demos, 0)
    monkeypatch.setattr("btil.analysis.plots.timeline._STEPS_A_LINE", 8)
    figure = plot_alignment(pair, pair.demos, 0)
    above = panels(figure)[::2]
    assert [axes.get_xlim() for axes in above] == [(-0.5, 9.5), (9.5, 19.5)]
    pieces = np.concatenate([axes.lines[0].get_ydata() for axes in above])
    np.testing.assert_array_equal(pieces, panels(whole)[0].lines[0].get_ydata())


def test_by_labels_minds_are_misaligned_where_all_have_one(pair):
    labels = np.zeros((40, 2), int)
    labels[3:6, 1] = 1
    labels[4, 0] = -1
    labels[20, 0] = 1
    demos = pair.demos.replace(latents=labels)
    assert np.flatnonzero(_misaligned_by_labels(demos, None)).tolist() == [3, 5, 20]
    nobody = demos.replace(latents=np.where(np.arange(2) == 0, -1, labels))
    assert not _misaligned_by_labels(nobody, None).any()
