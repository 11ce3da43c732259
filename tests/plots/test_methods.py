"""Methods against each other, and bounds: what is drawn is what was computed."""

import numpy as np
import pytest
from drawn import concentrations, make, overlapping, panels, texts
from matplotlib.figure import Figure

from btil.analysis import (
    expected_visits,
    plot_elbo_traces,
    plot_method_against_method,
    plot_restarts,
    plot_sd_ratios,
)
from btil.inference.result import DirichletRows, DrawnRows, MixtureRows

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
    # Lines span 90% of the cells, bars the middle half; a line to a group, methods set apart.
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2][:-1]
    ends = [(*line.get_xdata(), line.get_ydata()[0]) for line in lines[6:8]]
    quantiles = np.quantile(ratios, [0.05, 0.95, 0.25, 0.75])
    np.testing.assert_allclose(ends, [(*quantiles[:2], 3.7), (*quantiles[2:], 3.7)])
    assert [line.get_ydata()[0] for line in lines[:6:2]] == [0.0, 1.0, 2.0]
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
    assert axes.get_title() == "mean field: -55.25"
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    assert tuple(mfvi.elbo_trace + 55.25) in drawn
    assert tuple(mfvi.elbo_trace[:7] - 9.0 + 55.25) in drawn
    assert not overlapping(axes.get_yticklabels(), figure)
    with pytest.raises(ValueError, match="no posterior has a trace of its bound: chains"):
        plot_elbo_traces({"chains": chains})


def test_bounds_are_told_by_their_final_value_and_its_error(bound, mfvi):
    trace = np.array([-60.0, -57.0, -56.5])
    for result, title, final in (
        ({"elbo": -55.0, "elbo_standard_error": 0.126}, "one: -55.00 ± 0.13", -55.0),
        ({}, "one: -56.50", -56.5),
    ):
        own = make(bound, mfvi.result.rows, elbo_trace=trace, **result)
        (axes,) = panels(plot_elbo_traces({"one": own}))
        assert axes.get_title() == title
        kept, foot = axes.lines
        assert kept.get_xdata().tolist() == [1, 2, 3]
        np.testing.assert_allclose(kept.get_ydata(), trace - final)
        assert foot.get_ydata() == [0, 0]
        assert [text.get_text() for text in axes.get_legend().texts] == ["bound", "final value"]
    # Runs that were not kept are grey, and named once.
    others = (trace, trace - 3, trace - 4)
    several = make(bound, mfvi.result.rows, elbo=-56.5, elbo_trace=trace, restart_traces=others)
    (axes,) = panels(plot_elbo_traces({"several": several}))
    labels = [text.get_text() for text in axes.get_legend().texts]
    assert labels == ["other starting points", "the run that is kept", "final value"]
    grey = [line.get_ydata().tolist() for line in axes.lines if line.get_color() == "0.7"]
    assert grey == [(trace - 3 + 56.5).tolist(), (trace - 4 + 56.5).tolist()]


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
    with pytest.raises(ValueError, match="within must be a positive number"):
        plot_restarts(best, within=0.0)


def test_a_figure_of_the_bound_shows_every_sweep(bound, mfvi):
    trace = -1e5 / np.arange(1.0, 60) ** 4 - 50
    steep = make(bound, mfvi.result.rows, elbo=-50.0, elbo_trace=trace)
    figure = plot_elbo_traces({"steep": steep})
    (axes,) = panels(figure)
    assert axes.get_yscale() == "symlog"
    low, high = axes.get_ylim()
    assert low < -1e5 < 0 < high
    assert {"0", "-1"} <= {text.get_text() for text in axes.get_yticklabels()}
    assert not overlapping(axes.get_yticklabels(), figure)
    single = make(bound, mfvi.result.rows, elbo=-50.0, elbo_trace=np.array([-50.0]))
    assert len(panels(plot_elbo_traces({"at once": single}))) == 1
