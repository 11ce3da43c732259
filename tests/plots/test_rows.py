"""Chains, tables and their rows: names and numbers in the figures are those of the posterior."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pytest
from drawn import ACTS, MOODS, concentrations, make, panels, texts
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpyro import distributions as dist
from scipy.stats import beta

from btil import (
    Demonstrations,
    DirichletCPT,
    HierarchicalDirichletCPT,
    NormalEmission,
    NumpyroModel,
    Shared,
    TeamModel,
)
from btil.analysis import (
    RowChoice,
    choose_rows,
    expected_visits,
    plot_ess,
    plot_forest,
    plot_policy_rows,
    plot_prior_posterior,
    plot_rank,
    plot_row_diagnostics,
    plot_trace,
    plot_transition_graph,
    row_diagnostics,
)
from btil.analysis.plots import chains as chain_plots
from btil.analysis.plots import learned_tables
from btil.analysis.plots.layout import look
from btil.analysis.plots.rows import (
    cell_intervals,
    most_read,
    prior_draws,
    read_counts,
    row_draws,
)
from btil.figures import BLUE
from btil.inference.chains import RHAT_LIMIT
from btil.inference.result import (
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    MixtureRows,
    MomentRows,
)
from btil.models.team import bind
from btil.numpyro_forms.numpyro_model import bind_numpyro_model

CHAIN_PLOTS = (plot_trace, plot_rank, plot_forest, plot_ess)

# ------------------------------------------------------------------ chains


def test_rows_are_chosen_by_disagreement_and_visits(demos, chains):
    chosen = choose_rows(chains, num_worst=1, num_visited=2)
    assert chosen[0] == RowChoice("policy_ann", 1, 2)
    # Expected visits, spelled out.
    beliefs = chains.smooth(chains.demos, use_labels=True)
    best = max(
        (sum(beliefs[agent][t, k] for t in range(90) if demos.states[t] == room), site, room, k)
        for agent, site in (("ann", "policy_ann"), ("bob", "policy_bob"))
        for room in (0, 1)
        for k in range(beliefs[agent].shape[1])
    )
    found = [row for row in choose_rows(chains, 0, 6) if row.site == best[1]]
    assert found == [RowChoice(*best[1:])]
    assert len(set(choose_rows(chains, 40, 6))) == len(choose_rows(chains, 40, 6))


def test_rows_are_counted_for_the_latent_that_reads_them(demos):
    """With every step labelled there is one way to count."""
    labels = np.maximum(demos.latents, 0)
    model = TeamModel(
        policy=DirichletCPT(1.0, parents=("room",)),
        transition=DirichletCPT(1.0, parents=("room",)),
        initial=DirichletCPT(1.0, parents=("room",)),
    )
    bound = bind(model, demos.replace(latents=labels))
    posterior = make(bound, {s: DirichletRows(w) for s, w in concentrations(bound).items()})
    # A row of an initial table for each room in which episodes begin: one.
    (begun,) = set(demos.states[demos.episode_starts].tolist())
    expected = {site: np.zeros(table.shape[:-1]) for site, table in bound.learned.items()}
    for i, agent in enumerate(demos.agents):
        for t, room in enumerate(demos.states):
            expected[f"policy_{agent}"][room, labels[t, i]] += 1
            if t in demos.episode_starts:
                expected[f"initial_{agent}"][room - begun] += 1
            else:
                expected[f"transition_{agent}"][demos.states[t - 1], labels[t - 1, i]] += 1
    visits = expected_visits(posterior)
    for site, counts in expected.items():
        np.testing.assert_allclose(visits[site], counts, atol=1e-5)
    # The fullest row of each table, the fullest table first.
    best = [(n.max(), site, *np.unravel_index(n.argmax(), n.shape)) for site, n in expected.items()]
    best.sort(key=lambda one: -one[0])
    assert most_read(posterior) == tuple(RowChoice(*one[1:]) for one in best)


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
    if plot is plot_trace:
        # A density and a trace of each, which say what is drawn.
        labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
        assert [one[0] for one in labels] == ["probability", "draw"] * 3
        assert [one[1] for one in labels[1::2]] == ["probability"] * 3
        titles = [axes.get_title(loc="left") for axes in figure.axes[::2]]
        assert [" ".join(title.split(", ", 1)[1].split()) for title in titles] == [
            "policy of ann given go∕home, room=yard", "transition of bob given 1",
            "initial of ann",
        ]  # fmt: skip
    if plot is plot_ess:
        assert not figure.legends
    if plot is plot_rank:
        ends = {axes.get_ylim() for axes in figure.axes}
        assert len(ends) == 1
        assert [axes.get_ylabel() for axes in figure.axes] == ["ECDF minus uniform", "", ""]
    if plot is plot_forest:
        assert all(f"A P({act})" in written for act in ACTS)
        assert "C P(wait $5)" in written


def test_the_cell_that_agrees_least_stands_for_its_row_and_all_cells_have_its_letter(
    parametric, monkeypatch
):
    wanted = [("policy_ann", 0, 1), "transition_ann_base", "transition_ann_strength"]
    draws = parametric.result.rows["policy_ann"].draws
    base = parametric.result.parameters["transition_ann_base"].draws
    strength = parametric.result.parameters["transition_ann_strength"].draws
    cells = chain_plots._chosen_cells(parametric, wanted)
    assert [one.title for one in cells] == ["policy of ann given help", *wanted[1:]]
    assert [one.quantity for one in cells] == ["probability", "value", "value"]
    np.testing.assert_array_equal(cells[0].draws, draws[:, :, 0, 1])
    np.testing.assert_array_equal(cells[1].draws, base.reshape(2, 40, 9))
    np.testing.assert_array_equal(cells[2].draws[..., 0], strength)
    worst = chain_plots._worst_cells(parametric, cells, 200)["posterior"]
    assert list(worst.data_vars) == [
        "P(push), policy of ann given help", "transition_ann_base [help, go∕home]",
        "transition_ann_strength",
    ]  # fmt: skip
    np.testing.assert_array_equal(worst["transition_ann_base [help, go∕home]"], base[:, :, 1, 2])
    every = chain_plots._all_cells(parametric, cells)["posterior"]
    names = [f"B  [{before}, {after}]" for before in MOODS for after in MOODS]
    named = [name.replace("/", "∕") for name in names]
    assert list(every.data_vars) == [*(f"A  P({act})" for act in ACTS), *named, "C"]
    np.testing.assert_array_equal(every["A  P(pull)"], draws[:, :, 0, 1, 1])
    np.testing.assert_array_equal(every["B  [help, wait $5]"], base[:, :, 1, 0])
    # Without a choice: rows worth a look, and all parameters.
    look = (RowChoice("policy_bob", 0, 1),)
    monkeypatch.setattr(chain_plots, "choose_rows", lambda posterior: look)
    chosen = chain_plots._chosen_cells(parametric, None)
    assert [one.title for one in chosen] == ["policy of bob given 1", *wanted[:0:-1]]
    with pytest.raises(ValueError, match="rows: there is no row to plot"):
        chain_plots._chosen_cells(parametric, [])
    with pytest.raises(ValueError, match="no parameter 'strength'; there are transition_ann_st"):
        chain_plots._chosen_cells(parametric, ["strength"])


def test_names_that_look_alike_are_told_apart_by_numbers():
    assert chain_plots._arviz_name("a/b", {}) == "a∕b"
    assert chain_plots._arviz_name("a/b", {"a∕b": 0, "a∕b (2)": 0}) == "a∕b (3)"


def test_draws_of_a_row_are_those_of_the_row(chains, mfvi):
    """By chains as they are, in another order by another seed; of mean field by its Dirichlets."""
    site, index = "policy_ann", (np.array([1, 0]), 2)
    own = chains.result.rows[site].draws
    every = own[:, :, index[0], 2].reshape(120, 2, 2)
    drawn = row_draws(chains, site, index, 500)
    order = np.lexsort(every[:, 0].T), np.lexsort(drawn[:, 0].T)
    np.testing.assert_array_equal(drawn[order[1]], every[order[0]])
    some = row_draws(chains, site, index, 50)
    np.testing.assert_array_equal(some, drawn[:50])
    assert (row_draws(chains, site, index, 50, seed=1) != some).any()
    # Of which the draws of some contexts were kept: the same, by where they lie.
    flat = own.astype(np.float64)
    kept = MomentRows(
        np.array([60]),
        flat.mean(1)[:, None],
        60 * flat.var(1)[:, None],
        np.array([1]),
        own[:, :, 1:],
    )
    few = make(chains.bound, {**chains.result.rows, site: kept}, "gibbs")
    np.testing.assert_array_equal(
        row_draws(few, site, (np.array([1]), 2), 50),
        row_draws(chains, site, (np.array([1]), 2), 50),
    )
    cells = np.arange(6, 12)
    np.testing.assert_array_equal(
        cell_intervals(few, site, cells), cell_intervals(chains, site, cells)
    )
    with pytest.raises(ValueError, match="policy_ann"):
        row_draws(few, site, index, 50)
    rows = mfvi.result.rows[site].concentration[index]
    drawn = row_draws(mfvi, site, index, 4000)
    assert drawn.shape == (4000, 2, 2)
    total = rows.sum(-1, keepdims=True)
    mean = rows / total
    error = np.sqrt(mean * (1 - mean) / (total + 1))
    assert (np.abs(drawn.mean(0) - mean) < 4 * error / np.sqrt(4000)).all()
    np.testing.assert_allclose(drawn.std(0), error, rtol=0.06)
    mixed = MixtureRows(np.array([1.0]), mfvi.result.rows[site].concentration[None], site)
    blend = make(mfvi.bound, {**mfvi.result.rows, site: mixed})
    drawn = row_draws(blend, site, index, 1000)
    assert (np.abs(drawn.mean(0) - mean) < 4 * error / np.sqrt(1000)).all()


def test_draws_of_the_prior_are_of_the_row_asked_for(demos):
    concentration = np.array([[2.0, 6.0], [9.0, 1.0], [1.0, 1.0]])
    prior = {agent: DirichletCPT(concentration[: 3 - i]) for i, agent in enumerate(("ann", "bob"))}
    bound = bind(TeamModel(policy=prior, transition=HierarchicalDirichletCPT(None)), demos)
    posterior = make(bound, {})
    for latent, (a, b) in enumerate(concentration):
        drawn = prior_draws(
            posterior, RowChoice("policy_ann", 0, latent), 3000, np.random.default_rng(1)
        )
        assert drawn.shape == (3000, 2)
        sd = np.sqrt(a * b / (a + b + 1)) / (a + b)
        assert abs(drawn[:, 0].mean() - a / (a + b)) < 4 * sd / np.sqrt(3000)
    # With parameters: all of them are drawn anew for each draw; rows keep what was in mind.
    drawn = prior_draws(posterior, RowChoice("transition_ann", 0, 2), 6, np.random.default_rng(2))
    assert len(np.unique(drawn, axis=0)) == 6
    np.testing.assert_allclose(drawn.sum(-1), 1.0)


def test_reads_of_an_excerpt_are_what_was_added_to_the_prior(demos, bound):
    counts = {site: 10 * values for site, values in concentrations(bound, 4).items()}
    rows = {s: DirichletRows(1.0 + n) for s, n in counts.items()}
    posterior = make(dataclasses.replace(bound, excerpt=True), rows)
    visits = expected_visits(posterior)
    assert set(visits) == set(counts)
    for site, values in counts.items():
        np.testing.assert_allclose(visits[site], values.sum(-1))
    np.testing.assert_allclose(
        read_counts(posterior, "policy", "bob"), counts["policy_bob"].sum(-1)
    )
    shared = bind(TeamModel(policy=Shared(DirichletCPT(1.0)), transition=DirichletCPT(1.0)),
                  demos.replace(latents=np.minimum(demos.latents, 1), num_latents=2,
                                latent_names=None, action_names=None))  # fmt: skip
    both = make(dataclasses.replace(shared, excerpt=True), {})
    with pytest.raises(ValueError, match="how often bob reads rows that are given or shared"):
        read_counts(both, "policy", "bob")


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
        (
            ("policy_ann", 2, 0),
            r"rows: context of RowChoice.*: 2; allowed are .* 0\.\.1",
        ),
        (("policy_ann", 0, 3), r"rows: latent of .*: 3; allowed are whole numbers in 0\.\.2"),
        (("policy_ann", 0), r"rows: latent of .*: None; allowed are"),
        (("policy_ann", 0, True), r"rows: latent of .*: True; allowed are"),
        (("policy_ann", 0, 1.5), r"rows: latent of .*: 1\.5; allowed are"),
    ],
)
def test_rows_that_do_not_exist_are_refused(row, message, chains):
    with pytest.raises(ValueError, match=message):
        plot_trace(chains, [row])


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
    with pytest.raises(ValueError, match=r"contexts, rows of .*: 2; allowed are .* 0\.\.1"):
        plot_policy_rows(mfvi, "ann", contexts=[2])
    with pytest.raises(ValueError, match=r"latents: 3; allowed are whole numbers in 0\.\.2"):
        plot_policy_rows(mfvi, "ann", latents=[3])
    with pytest.raises(ValueError, match="panels must be one of row, latent, context"):
        plot_policy_rows(mfvi, "ann", panels="all")
    with pytest.raises(ValueError, match="unknown agent 'eve'"):
        plot_transition_graph(mfvi, "eve")
    idle = Demonstrations([0, 1], None, [0, 1], agents=("ann",), num_latents=2,
                          continuous={"x": [0.0, 1.0]})  # fmt: skip
    still = bind(TeamModel(policy=None, emissions=NormalEmission(("x",))).resolved(idle), idle)
    with pytest.raises(ValueError, match=r"plot_policy_rows.* no actions of ann"):
        plot_policy_rows(make(still, {}), "ann")


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


def counted(bound, **counts):
    """A posterior whose rows were read as often as is said: they are Dirichlets around 1."""
    rows = {
        site: DirichletRows(1.0 + np.asarray(counts.get(site, np.zeros(table.shape)), float))
        for site, table in bound.learned.items()
    }
    return make(dataclasses.replace(bound, excerpt=True), rows)


def test_contexts_are_chosen_by_reads_or_by_changes(demos):
    model = TeamModel(policy=DirichletCPT(1.0), transition=DirichletCPT(1.0, parents=("room",)))
    # In the hall bob is more often, in the yard he changes his mind.
    stays = [[60, 2], [3, 40]], [[2, 9], [1, 4]]
    posterior = counted(bind(model, demos), transition_bob=stays)
    for by_changes, asked, most, expected in (
        (False, None, 1, [0]), (True, None, 1, [1]), (True, None, 2, [1, 0]), (False, [1], 1, [1]),
        (False, [1, 0], 1, [1, 0]),
    ):  # fmt: skip
        table, chosen, rows = learned_tables._read_rows(
            posterior, "transition", "bob", asked, most, by_changes
        )
        assert (table.name, chosen) == ("transition_bob", expected)
        counts = np.array(stays, float)[expected]
        np.testing.assert_allclose(rows.visits, counts.sum(-1))
        shares = (1 + counts) / (2 + counts.sum(-1, keepdims=True))
        np.testing.assert_allclose(rows.mean, shares)
        np.testing.assert_allclose(rows.prior, 0.5)
        ends = beta.interval(0.89, 1 + counts, 1 + counts[..., ::-1])
        np.testing.assert_allclose([rows.low, rows.high], ends)
    with pytest.raises(ValueError, match="contexts: none are given"):
        learned_tables._read_rows(posterior, "transition", "bob", [], 1)


def test_panels_have_the_rows_of_a_context_or_a_latent():
    groups = learned_tables._groups
    assert groups("row", 2, [2, 0]) == [[(0, 2)], [(0, 0)], [(1, 2)], [(1, 0)]]
    assert groups("context", 2, [2, 0]) == [[(0, 2), (0, 0)], [(1, 2), (1, 0)]]
    assert groups("latent", 2, [2, 0]) == [[(0, 2), (1, 2)], [(0, 0), (1, 0)]]


@pytest.mark.parametrize(
    ("visits", "asked", "shown"),
    [
        ([[0.5, 1.0, 0.0], [0.9, 0.2, 3.0]], None, [1, 2]),
        ([[0.5, 0.9, 0.0], [0.0, 0.2, 0.1]], None, [0, 1, 2]),
        ([[0.5, 1.0, 0.0], [0.9, 0.2, 3.0]], [2, 0], [2, 0]),
    ],
)
def test_latents_are_shown_that_were_held_or_asked_for(visits, asked, shown):
    nothing = np.zeros((2, 3, 2))
    rows = learned_tables._Rows(nothing, nothing, nothing, nothing, np.array(visits))
    assert learned_tables._shown_latents(rows, asked) == shown


def test_rows_that_were_hardly_read_are_grey_or_left_out(bound):
    counts = np.zeros((2, 3, 2))
    counts[0] = [[12, 3], [0.3, 0.2], [0.5, 0.5]]
    counts[1] = [[2, 7], [0.1, 0], [40, 10]]
    posterior = counted(bound, policy_ann=counts)

    def drawn(axes):
        """(probabilities, colour, marker) of the rows in a panel."""
        return [
            (tuple(np.round(line.get_xdata(), 6)), line.get_color(), line.get_marker())
            for line in axes.lines
            if line.get_marker() != "|"
        ]

    def row(context, latent):
        values = 1 + counts[context, latent]
        return tuple(np.round(values / values.sum(), 6))

    blue = look(0).color
    alone = plot_policy_rows(posterior, "ann", [0], [0, 1, 2])
    assert [drawn(axes) for axes in panels(alone)] == [
        [(row(0, 0), blue, "o")], [(row(0, 1), "0.6", "o")], [(row(0, 2), blue, "o")],
    ]  # fmt: skip
    assert "read less than once" in texts(alone)
    titles = [axes.get_title(loc="left") for axes in panels(alone)]
    assert titles == ["room=hall\nwait $5, n = 15", "\nhelp, n = 0.5", "\ngo/home, n = 1.0"]
    together = plot_policy_rows(posterior, "ann", [0, 1], [0, 1, 2], panels="context")
    assert [drawn(axes) for axes in panels(together)] == [
        [(row(c, k), look(k).color, look(k).marker) for k in (0, 2)] for c in (0, 1)
    ]
    assert "read less than once" not in texts(together)
    by_latent = plot_policy_rows(posterior, "ann", [1, 0], [2, 1], panels="latent")
    assert [axes.get_title(loc="left") for axes in panels(by_latent)] == ["go/home", "help"]
    assert [drawn(axes) for axes in panels(by_latent)] == [
        [(row(c, 2), look(i).color, look(i).marker) for i, c in enumerate((1, 0))],
        # Where there is no other, rows are shown that were hardly read.
        [(row(c, 1), "0.6", look(i).marker) for i, c in enumerate((1, 0))],
    ]
    assert {"room=hall", "room=yard"} <= set(texts(by_latent))
    # Those that are most read come first, if none are asked for.
    first = panels(plot_policy_rows(posterior, "ann", panels="context", max_contexts=1))
    assert [axes.get_title(loc="left") for axes in first] == ["room=yard"]


def test_changes_that_are_unsure_are_pale_and_those_hardly_seen_are_not_drawn(bound):
    from matplotlib.patches import FancyArrowPatch, Wedge

    counts = np.array([[[70, 28, 2], [0.2, 0.5, 0.1], [6, 1, 7]]], float)
    posterior = counted(bound, transition_ann=counts)
    (axes,) = panels(plot_transition_graph(posterior, "ann"))
    rows = 1 + counts[0]
    shares = rows / rows.sum(-1, keepdims=True)
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    np.testing.assert_allclose([(w.theta2 - w.theta1) / 360 for w in wedges], np.diag(shares))
    colors = [BLUE, "0.75", BLUE]
    assert [w.get_facecolor() for w in wedges] == [to_rgba(color) for color in colors]
    # The first changes to the second alone, by 0.03 and more; the last to both.
    low, high = beta.interval(0.89, rows, rows.sum(-1, keepdims=True) - rows)
    changes = [(0, 1), (2, 0), (2, 1)]
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    for arrow, (origin, target) in zip(arrows, changes, strict=True):
        begin, end = arrow._posA_posB
        towards = np.array(wedges[target].center) - wedges[origin].center
        assert np.linalg.norm(np.array(begin) - wedges[origin].center) < 0.3
        assert (np.array(end) - begin) @ towards > 0.9 * np.linalg.norm(towards) * np.linalg.norm(
            np.array(end) - begin
        )
        assert arrow.get_linewidth() == pytest.approx(0.4 + 5 * shares[origin, target])
        spread = (high - low)[origin, target]
        assert arrow.get_alpha() == pytest.approx(max(0.12, (1 - spread) ** 2))
    # Only what is known within 0.3 is written beside its arrow.
    written = [text.get_text() for text in axes.texts]
    assert (high - low)[2, 0] > 0.3 > (high - low)[2, 1]
    expected = [f"{shares[k, k]:.2f}" for k in range(3)]
    expected += [f"{shares[0, 1]:.2f}", f"{shares[2, 1]:.2f}"]
    assert sorted(text for text in written if text[:2] == "0.") == sorted(expected)
    assert [text for text in written if text in MOODS] == list(MOODS)
    assert written[-1] == "ann, always\nn = 115 steps"
    # Latents that were hardly held are grey.
    grey = {text.get_text() for text in axes.texts if text.get_color() == "0.6"}
    assert grey == {MOODS[1], f"{shares[1, 1]:.2f}"}
    most = plot_transition_graph(posterior, "ann", smallest=0.28)
    assert len([p for p in panels(most)[0].patches if isinstance(p, FancyArrowPatch)]) == 2


# ------------------------------------------------------------------ prior and posterior


def test_prior_and_posterior_are_told_apart(mfvi):
    # Of the second row the cell is shown that has moved most: ann seldom goes home then.
    mean = mfvi.result.rows["transition_ann"].mean()[0, 1]
    moved = MOODS[np.abs(mean - 1 / 3).argmax()].replace("/", "∕")
    rows = [("policy_ann", 1, 2), ("transition_ann", 0, 1), ("initial_bob", 0)]
    figure = plot_prior_posterior(mfvi, rows, num_draws=200)
    written = " ".join(" ".join(texts(figure)).split())
    assert f"P({moved}), transition of ann" in written
    for words in ("prior", "posterior", "policy of ann", "initial of bob", "room=yard"):
        assert words in written
    assert len(plot_prior_posterior(mfvi, num_draws=50).axes) == len(mfvi.result.rows)
    with pytest.raises(ValueError, match="no learned table 'policy_eve'"):
        plot_prior_posterior(mfvi, [("policy_eve", 0, 0)])


@pytest.mark.parametrize(
    ("before", "after", "decades"),
    [
        ([0.001, 200.0], [5.0], True),  # may well be a hundred times what else it may be
        ([1.0, 90.0], [5.0], False),
        ([0.001, 0.9], [0.5], False),  # of shares the values themselves are shown
        ([0.0, 200.0], [5.0], False), ([0.001, 200.0], [-5.0], False),
    ],
)  # fmt: skip
def test_parameters_over_decades_are_shown_by_their_logarithms(before, after, decades):
    values = np.repeat(before, 50)
    assert chain_plots._spans_decades(values, np.array(after)) == decades


# ------------------------------------------------------------------ many rows, many runs


def test_row_diagnostics_know_the_worst_row(chains):
    table = row_diagnostics(chains)
    assert len(table) == sum(math.prod(t.shape[:-1]) for t in chains.bound.learned.values())
    worst = table.loc[table["rhat"].idxmax()]
    assert (worst["site"], worst["context"], worst["latent"]) == ("policy_ann", 1, 2)
    assert worst["ess"] < 20
    assert worst["visits"] == pytest.approx(expected_visits(chains)["policy_ann"][1, 2])
    assert table[table["site"] == "initial_ann"]["latent"].tolist() == [-1]
    # The numbers are those of the tables as a whole.
    info = chains.draws_info
    for site, own in table.groupby("site"):
        assert own["rhat"].max() == info.loc[site, "max_rhat"]
        assert own["ess"].min() == info.loc[site, "min_ess_bulk"]
    for statistic in ("rhat", "ess"):
        figure = plot_row_diagnostics(chains, statistic)
        points = [p for c in panels(figure)[0].collections for p in c.get_offsets().tolist()]
        np.testing.assert_allclose(sorted(p[1] for p in points), sorted(table[statistic]))
        named = " ".join(texts(figure))
        assert "A: " in named
        assert "policy of ann given go/home, room=yard" in named
    with pytest.raises(ValueError, match="statistic must be one of rhat, ess, got 'mcse'"):
        plot_row_diagnostics(chains, "mcse")


@pytest.mark.parametrize(
    ("statistic", "values", "worst", "title", "said"),
    [
        # The second worst row is read most, of those that are as bad.
        (
            "rhat", [1.2, 1.005, 1.2, np.nan, RHAT_LIMIT], [2, 0],
            f"nuts: 3 of 4 rows have R-hat of {RHAT_LIMIT} or more; 1 that never vary are left out",
            "R-hat 1.20",
        ),
        (
            "ess", [30.0, 900.0, 30.0, np.nan, 200.0], [2, 0],
            "nuts: 2 of 4 rows have fewer than 200 independent draws; 1 that never vary are left "
            "out",
            "30 draws",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_worst_are_named(statistic, values, worst, title, said, chains, monkeypatch):
    rows = [("policy_ann", 0, 1), ("transition_bob", 0, 1), ("policy_bob", 1, 0),
            ("policy_bob", 0, 0), ("initial_ann", 0, -1)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["site", "context", "latent"]).assign(
        visits=[3.0, 40.0, 1234.5, 9.0, 0.001], rhat=np.nan, ess=np.nan
    )
    table[statistic] = values
    asked = []

    def made(posterior, with_ess):
        asked.append(with_ess)
        return table

    monkeypatch.setattr("btil.analysis.plots.diagnostics.row_diagnostics", made)
    names = {0: "policy of ann given help, room=hall", 2: "policy of bob given 0, room=yard"}
    lines = [
        f"{'AB'[i]}: {said}, n = {table['visits'][row]:,.1f}, {names[row]}"
        for i, row in enumerate(worst)
    ]
    figure = plot_row_diagnostics(chains, statistic, num_worst=2)
    own = Figure(figsize=(8, 8)).subplots()
    plot_row_diagnostics(chains, statistic, own, num_worst=2)
    assert asked == [statistic == "ess"] * 2
    assert figure.get_supxlabel() == "\n".join(lines)
    assert [text.get_text() for text in own.texts] == ["A", "B", "\n".join(lines)]
    for axes in (panels(figure)[0], own):
        assert axes.get_title(loc="left") == title
        # A point for each row that varies; what is never read at the left edge.
        points = {one.get_label(): one.get_offsets().tolist() for one in axes.collections}
        assert points == {
            "policy": [[3.0, values[0]], [1234.5, values[2]]],
            "transition": [[40.0, values[1]]],
            "initial": [[0.01, values[4]]],
        }
        limit = RHAT_LIMIT if statistic == "rhat" else 200
        assert axes.lines[0].get_ydata() == [limit, limit]
        letters = [text.xy for text in axes.texts if text.get_text() in "AB"]
        np.testing.assert_allclose(letters, [[table["visits"][r], values[r]] for r in worst])
        assert axes.get_xscale() == "log"
        assert axes.get_yscale() == ("log" if statistic == "ess" else "linear")
    assert not own.figure.get_supxlabel()
    # An initial table has no latents.
    figure = plot_row_diagnostics(chains, statistic, num_worst=4)
    assert "initial of ann\n" in f"{figure.get_supxlabel()}\n"


# ------------------------------------------------------------------ parameters of families


@pytest.fixture(scope="module")
def parametric(demos):
    model = TeamModel(
        policy=DirichletCPT(1.0),
        transition=HierarchicalDirichletCPT(None),
        initial=DirichletCPT(1.0),
    )
    rng = np.random.default_rng(3)
    bound = bind(model, demos)
    draws = {s: rng.dirichlet(np.ones(t.shape[-1]), (2, 40, *t.shape[:-1]))
             for s, t in bound.learned.items()}  # fmt: skip
    strength = np.exp(rng.normal(2, 0.3, (2, 40)))
    base = rng.dirichlet(np.ones(3), (2, 40, 3))
    base[0, :, 1, 2] += 5.0  # on this cell the chains do not agree at all
    parameters = {
        "transition_ann_strength": DrawnParameters(strength),
        "transition_ann_base": DrawnParameters(base),
    }
    return make(
        bound, {s: DrawnRows(d) for s, d in draws.items()}, "nuts", parameters=parameters,
        log_likelihood=np.zeros((2, 40, 2)),
    )  # fmt: skip


def test_parameters_are_drawn_by_their_names(parametric):
    wanted = ["transition_ann_strength", ("policy_ann", 0, 1), "transition_ann_base"]
    written = texts(plot_trace(parametric, wanted))
    assert "transition_ann_strength" in written
    assert "transition_ann_base [help, go∕home]" in written  # the cell that agrees least
    assert {"value", "probability"} <= set(written)
    figure = plot_forest(parametric, wanted)
    written = texts(figure)
    assert {"A", "B  P(push)", "C  [help, go∕home]"} <= set(written)
    assert figure.axes[1].get_xlabel() == "value or probability"
    assert "C: transition_ann_base" in " ".join(written)
    assert "transition_ann_strength" in texts(plot_trace(parametric))
    for plot in (plot_rank, plot_ess):
        assert any("transition_ann_base" in text for text in texts(plot(parametric, wanted)))
    message = "no parameter 'strength'; there are transition_ann_strength, transition_ann_base"
    for plot in (plot_trace, plot_prior_posterior):
        with pytest.raises(ValueError, match=message):
            plot(parametric, ["strength"])


def test_prior_of_a_parameter_is_its_prior(parametric):
    from btil.analysis.plots.rows import prior_parameter_draws

    drawn = prior_parameter_draws(
        parametric, "transition_ann_strength", 4000, np.random.default_rng(0)
    )
    # log strength ~ N(2, 1.5): what HierarchicalDirichletCPT says.
    assert np.log(drawn).mean() == pytest.approx(2.0, abs=4 * 1.5 / np.sqrt(4000))
    assert np.log(drawn).std() == pytest.approx(1.5, rel=0.05)
    figure = plot_prior_posterior(parametric, ["transition_ann_strength", "transition_ann_base"])
    assert [axes.get_xlabel() for axes in figure.axes] == ["log10 of the value", "value"]
    assert any(text.startswith("transition_ann_base [") for text in texts(figure))


def test_parameters_of_an_own_model(demos):
    def skill(data):
        share = numpyro.sample("skill", dist.Beta(8.0, 2.0))
        for agent, size in (("ann", 3), ("bob", 2)):
            stay = share * jnp.eye(size) + (1 - share) / size
            data.observe(agent, -jnp.log(size) * jnp.ones(size), jnp.log(stay),
                         jnp.log(jnp.full((size, 2), 0.5)))  # fmt: skip

    bound = bind_numpyro_model(NumpyroModel(skill), demos)
    draws = np.random.default_rng(0).beta(80, 20, (2, 40))
    own = make(
        bound, {}, "nuts", parameters={"skill": DrawnParameters(draws)},
        log_likelihood=np.zeros((2, 40, 2)),
    )  # fmt: skip
    for plot in (plot_trace, plot_forest, plot_rank, plot_ess, plot_prior_posterior):
        assert any("skill" in text for text in texts(plot(own)))
    from btil.analysis.plots.rows import prior_parameter_draws

    prior = prior_parameter_draws(own, "skill", 2000, np.random.default_rng(0))
    assert prior.mean() == pytest.approx(0.8, abs=4 * 0.121 / np.sqrt(2000))
    with pytest.raises(ValueError, match="the model has no tables with rows"):
        plot_row_diagnostics(own)
    with pytest.raises(ValueError, match="has no table of rows by context"):
        plot_policy_rows(own, "ann")
