"""What all figures have in common: axes are taken, positions checked, nothing loaded early."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import make
from matplotlib.figure import Figure

from btil import analysis
from btil.arguments import check_index

# What is drawn, and on how many axes; a word behind the function's name tells several apart.
ON_AXES = {
    "plot_alignment": (
        lambda t, axes: analysis.plot_alignment(t.pair, t.pair.demos, 0, axes=axes), 2
    ),
    "plot_confusion": (
        lambda t, axes: analysis.plot_confusion(t.demos, t.decoded, "ann", ax=axes), 1
    ),
    "plot_elbo_traces": (lambda t, axes: analysis.plot_elbo_traces(t.fits, axes=axes), 2),
    "plot_method_against_method": (
        lambda t, axes: analysis.plot_method_against_method(t.chains, t.fits, axes=axes), 2
    ),
    "plot_policy_rows": (lambda t, axes: analysis.plot_policy_rows(t.mfvi, "ann", axes=axes), 6),
    "plot_policy_rows latent": (
        lambda t, axes: analysis.plot_policy_rows(t.mfvi, "ann", panels="latent", axes=axes), 3
    ),
    "plot_policy_rows context": (
        lambda t, axes: analysis.plot_policy_rows(t.mfvi, "ann", panels="context", axes=axes), 2
    ),
    "plot_restarts": (lambda t, axes: analysis.plot_restarts(t.runs, axes=axes), 2),
    "plot_row_diagnostics": (lambda t, ax: analysis.plot_row_diagnostics(t.chains, ax=ax), 1),
    "plot_sd_ratios": (lambda t, axes: analysis.plot_sd_ratios(t.chains, t.fits, ax=axes), 1),
    "plot_timeline": (lambda t, axes: analysis.plot_timeline(t.mfvi, t.demos, 0, ax=axes), 2),
    "plot_timeline bands": (
        lambda t, axes: analysis.plot_timeline(t.mfvi, t.demos, 0, "ann", axes, kind="bands"), 1
    ),
    "plot_transition_graph": (
        lambda t, axes: analysis.plot_transition_graph(t.mfvi, "ann", axes=axes), 1
    ),
}  # fmt: skip
# ArviZ lays its own figures out.
BY_ARVIZ = {"plot_ess", "plot_forest", "plot_prior_posterior", "plot_rank", "plot_trace"}
# Where their own tests are.
ELSEWHERE = {
    "plot_courses": "test_efficiency.py",
    "plot_ecdf_pit": "test_calibration.py",
    "plot_error_ratios": "test_calibration.py",
    "plot_latents": "test_calibration.py",
    "plot_motion": "test_errands.py",
    "plot_motion_strip": "test_errands.py",
    "plot_paths": "test_errands.py",
    "plot_predictive_check": "test_predictive.py",
    "plot_prior_predictive": "test_errands.py",
    "plot_reliability": "test_belief_scores.py",
}


@pytest.fixture(scope="module")
def team(demos, mfvi, chains, pair):
    traces = (np.linspace(-70.0, -55.25, 9), np.linspace(-80.0, -60.0, 7))
    runs = make(
        mfvi.bound, mfvi.result.rows, elbo=-55.25, elbo_trace=traces[0], restart_traces=traces
    )
    decoded = np.zeros((demos.num_steps, 2), int)
    fits = {"mean field": mfvi, "again": mfvi}
    return SimpleNamespace(
        demos=demos, mfvi=mfvi, chains=chains, pair=pair, runs=runs, decoded=decoded, fits=fits
    )


@pytest.mark.parametrize("name", ON_AXES)
def test_axes_of_the_caller_are_used(name, team):
    plot, number = ON_AXES[name]
    own = Figure(figsize=(12, 12))
    axes = own.subplots(number + 1, 1)
    assert plot(team, axes[:number]) is own
    own.draw_without_rendering()
    drawn = [bool(one.lines or one.patches or one.collections or one.images) for one in axes]
    assert drawn == [True] * number + [False]
    # Nothing is added to the figure but colour bars, and a legend stays with its axes.
    assert len([one for one in own.axes if one.get_label() != "<colorbar>"]) == number + 1
    assert not own.legends
    with pytest.raises(ValueError, match=f"axes: {number + 1} given, {number} are needed"):
        plot(team, axes)


def test_every_function_is_held_to_it():
    tested = {name.split()[0] for name in ON_AXES} | BY_ARVIZ | set(ELSEWHERE)
    public = {name for name in analysis.__all__ if name.startswith("plot_")}
    assert public - tested == set(), "add them to ON_AXES, or say why they take no axes"
    assert tested - public == set()


@pytest.mark.parametrize("value", [1.0, 1.5, True, "1", None, np.float32(1), np.array([1]), -1, 2])
def test_positions_are_whole_numbers(value):
    with pytest.raises(ValueError, match=r"episode: .*; allowed are whole numbers in 0\.\.1"):
        check_index("episode", value, 2)
    assert check_index("episode", np.int64(1), 2) == 1


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        *((one, "episodes: indices from 0 to 1") for one in (True, None, [0, 1], 1.0)),
        ("third", "there is no episode 'third'; the ids are "),
    ],
)
def test_episodes_that_are_none_are_refused(episode, message, team):
    # Also where no type checker has looked before.
    plot = analysis.plot_timeline
    with pytest.raises(ValueError, match=message):
        getattr(plot, "__wrapped__", plot)(team.mfvi, team.demos, episode, "ann")


def test_plots_are_imported_without_matplotlib():
    code = "import sys, btil.analysis.plots; print({'matplotlib', 'arviz'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
