"""Time and accuracy: courses by hand, chains of mental states against one draw at a time."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure
from teams import hmm_demos, hmm_model, random_demos, rich_model

import btil
from btil.analysis import efficiency, plot_courses
from btil.analysis.efficiency import Course, Target, course, latent_ess, own_course
from btil.inference.chains import ess
from btil.inference.result import DirichletRows, DrawnRows, FitResult
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


def test_the_time_is_that_from_which_the_error_stays_small():
    one = Course(np.array([1.0, 2, 3, 4, 5]), np.array([0.5, 0.005, 0.02, 0.01, 0.001]))
    assert one.reached(0.01) == 4
    assert one.reached(0.6) == 1
    assert one.reached(0.0001) == np.inf
    unknown = Course(np.array([1.0]), np.array([np.nan]))
    assert unknown.reached(0.5) == np.inf


BOUND = bind(hmm_model(), hmm_demos([0, 1, 1, 0, 1, 0]))


def rows_at(first):
    """Rows that are even but for one cell of the policy."""
    rows = {site: np.full((*first.shape, *t.shape), 0.5) for site, t in BOUND.learned.items()}
    rows["policy_agent_0"][..., 0, 0, 0] = first
    rows["policy_agent_0"][..., 0, 0, 1] = 1 - first
    return rows


def chain_posterior(first, **options):
    rows = {site: DrawnRows(draws) for site, draws in rows_at(first).items()}
    stats = {"energy": np.zeros(first.shape)}
    result = FitResult(rows, True, "made up", sample_stats=stats)
    return TeamPosterior(BOUND, "gibbs", result, 0, np.dtype(float), 10.0, options)


def used_rows():
    used = {site: np.zeros(table.shape[:-1], bool) for site, table in BOUND.learned.items()}
    used["policy_agent_0"][0, 0] = True
    return used


def test_a_chain_comes_near_by_the_mean_of_its_draws_so_far():
    first = np.array([[0.9, 0.7, 0.5, 0.5], [0.7, 0.5, 0.5, 0.3]])
    chain = chain_posterior(first, num_warmup=4)
    target = Target(rows_at(np.array(0.5)), used_rows())
    found = course(chain, chain, target)
    np.testing.assert_allclose(found.seconds, [6.25, 7.5, 8.75, 10.0])
    means = first.mean(0).cumsum() / np.arange(1, 5)
    np.testing.assert_allclose(found.error, np.abs(means - 0.5))
    # Without an option the method's own warmup is meant.
    later = course(chain_posterior(first), chain, target)
    np.testing.assert_allclose(later.seconds[0], 10 * 501 / 504)


def test_a_reference_comes_near_its_own_second_half():
    first = np.array([[0.9, 0.7, 0.6, 0.4]])
    found = own_course(chain_posterior(first, num_warmup=0), used_rows())
    np.testing.assert_allclose(found.seconds, [2.5, 5.0])
    np.testing.assert_allclose(found.error, [0.4, 0.3])


def test_a_method_without_draws_has_only_its_end():
    rows = {site: DirichletRows(8 * values) for site, values in rows_at(np.array(0.75)).items()}
    plain = TeamPosterior(BOUND, "mfvi", FitResult(rows, True, "made up"), 0, np.dtype(float), 3.0)
    target = Target(rows_at(np.array(0.5)), used_rows())
    found = course(plain, plain, target)
    assert (found.seconds.tolist(), found.error.tolist()) == ([3.0], [0.25])
    assert own_course(plain, used_rows()) is None
    assert latent_ess(plain) is None


def test_errors_are_over_rows_in_use_of_contexts_that_both_have_seen():
    """The method has seen x = 2 and 0, the reference x = 0 and 1; one table is not looked at."""
    model = btil.TeamModel(btil.DirichletCPT(1.0, parents=("x",)), btil.DirichletCPT(1.0))

    def seen(states, policy):
        demos = btil.Demonstrations(
            {"x": states}, [0, 1], latents=[0, 1], num_actions=2, num_states={"x": 3}
        )
        bound = bind(model, demos)
        rows = {s: DirichletRows(np.ones(t.shape)) for s, t in bound.learned.items()}
        rows["policy_agent_0"] = DirichletRows(np.array(policy, float))
        result = FitResult(rows, True, "made up")
        return TeamPosterior(bound, "mfvi", result, 0, np.dtype(float), 3.0)

    # Contexts stand in ascending order.
    own = seen([2, 0], [[[1, 3], [1, 1]], [[9, 1], [9, 1]]])
    other = seen([0, 1], [[[1, 1], [1, 9]], [[1, 99], [1, 99]]])
    means = {"policy_agent_0": other.result.rows["policy_agent_0"].mean()}
    for used, expected in (
        ([[True, False], [True, True]], 0.25),
        ([[False, True], [True, True]], 0.4),
        ([[True, True], [False, False]], 0.325),
    ):
        target = Target(means, {"policy_agent_0": np.array(used)})
        assert course(own, other, target).error == pytest.approx([expected])
    nothing = Target(means, {"policy_agent_0": np.zeros((2, 2), bool)})
    assert np.isnan(course(own, other, nothing).error).all()


def test_courses_are_drawn_on_logarithmic_scales():
    courses = {
        "chains": Course(np.array([1.0, 2, 4]), np.array([0.2, 0.05, 0.02])),
        "exact": Course(np.array([0.5]), np.array([0.0])),
    }
    own = Figure()
    axes = own.subplots()
    assert plot_courses(courses, 0.01, ax=axes) is own
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("seconds", "mean difference, rows in use")
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in axes.lines}
    assert lines[1.0, 2.0, 4.0] == [0.2, 0.05, 0.02]
    # A difference of zero lies at the foot of the scale.
    assert lines[0.5,] == [1e-5]
    assert not own.legends
    assert "chains" in [text.get_text() for text in plot_courses(courses, 0.01).legends[0].texts]
    with pytest.raises(ValueError, match="no method to draw"):
        plot_courses({}, 0.01)
    with pytest.raises(ValueError, match="axes: 2 given, 1 are needed"):
        plot_courses(courses, 0.01, ax=Figure().subplots(2))


@pytest.fixture(scope="module")
def gibbs():
    demos = random_demos(lengths=(4, 3, 5), labelled=0.3)
    options = {"num_chains": 2, "num_warmup": 5, "num_samples": 30}
    return btil.fit(rich_model(), demos, "gibbs", progress=False, **options)


def test_chains_of_mental_states_are_those_of_one_draw_at_a_time(gibbs, monkeypatch):
    """Every unlabelled step under each draw, by `smooth` of a posterior of that draw alone."""
    found = latent_ess(gibbs)
    demos = gibbs.demos
    beliefs = {agent: [] for agent in demos.agents}
    for chain in range(2):
        for draw in range(30):
            rows = {
                site: DrawnRows(one.draws[chain : chain + 1, draw : draw + 1])
                for site, one in gibbs.result.rows.items()
            }
            alone = dataclasses.replace(gibbs, result=gibbs.result._replace(rows=rows))
            for agent, values in alone.smooth(demos, use_labels=True).items():
                beliefs[agent].append(values)

    def least(steps):
        worst = []
        for i, agent in enumerate(demos.agents):
            draws = np.array(beliefs[agent]).reshape(2, 30, demos.num_steps, -1)[:, :, :steps]
            draws = draws[:, :, demos.latents[:steps, i] < 0]
            worst.append(np.nanmin(ess(draws)))
        return min(worst)

    assert found == pytest.approx(least(12), rel=1e-2)
    # Of so many of the first episodes as have few enough steps, and of the first in any case.
    assert least(4) != least(7)
    for most, steps in ((6, 4), (3, 4)):
        monkeypatch.setattr(efficiency, "_MOST_STEPS", most)
        assert latent_ess(gibbs) == pytest.approx(least(steps), rel=1e-2)


def test_labels_everywhere_leave_no_mental_states(gibbs):
    demos = gibbs.demos.replace(latents=np.zeros_like(gibbs.demos.latents))
    labelled = dataclasses.replace(gibbs, bound=bind(gibbs.model, demos))
    assert latent_ess(labelled) is None


def test_steps_at_which_somebody_is_away_have_no_mental_state(gibbs):
    """All that has no label is a member who is not there."""
    demos = gibbs.demos
    there = np.ones((demos.num_steps, demos.num_agents), bool)
    there[[0, 5], 1] = False
    away = demos.replace(latents=np.where(there, 0, -1), present=there)
    assert latent_ess(dataclasses.replace(gibbs, bound=bind(gibbs.model, away))) is None
