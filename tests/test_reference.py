"""What others are measured against: chosen in one place, and only if it has converged."""

import dataclasses

import numpy as np
import pytest
from teams import hmm_demos, hmm_model
from test_emissions import _demos, _model

from btil.analysis.compare import compare_posteriors
from btil.analysis.reference import choose_reference, convergence
from btil.inference.result import DirichletRows, DrawnChannel, DrawnRows, FitResult
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior

LABELLED = hmm_demos([0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, -1])


def made_up(method, converged=True, demos=LABELLED, shift=0.0):
    """Rows that no method has fitted; chains that agree, or lie `shift` apart."""
    bound = bind(hmm_model(), demos)
    rows = {site: DirichletRows(np.full(table.shape, 5.0)) for site, table in bound.learned.items()}
    result = FitResult(rows, converged, "made up")
    if method in ("gibbs", "nuts"):
        generator = np.random.default_rng(0)
        drawn = {}
        for site, one in rows.items():
            draws = one.sample(800, generator).reshape(4, 200, *one.concentration.shape)
            draws[0, ..., 0] += 0 if converged else shift or 0.5
            drawn[site] = DrawnRows(draws)
        log_likelihood = generator.normal(size=(4, 200, 1))
        stats = {"log_likelihood_total": log_likelihood.sum(-1)}
        result = result._replace(rows=drawn, log_likelihood=log_likelihood, sample_stats=stats)
    return TeamPosterior(bound, method, result, 0, np.dtype(float), 1.0)


def chosen(posteriors, asked=None):
    found = choose_reference(posteriors, asked)
    return found.name, found.convergence.converged


def test_the_surest_method_that_has_converged_is_taken():
    every = {method: made_up(method) for method in ("mfvi", "gibbs", "nuts", "exact")}
    assert chosen(every) == ("exact", True)
    assert chosen({n: p for n, p in every.items() if n != "exact"}) == ("nuts", True)
    assert chosen(every | {"exact": made_up("exact", False)}) == ("nuts", True)
    few = {"mfvi": made_up("mfvi"), "nuts": made_up("nuts", False), "gibbs": made_up("gibbs")}
    assert chosen(few) == ("gibbs", True)
    # None of them has: the first is named, and measures nothing. mfvi takes no sampler's place.
    nothing = few | {"gibbs": made_up("gibbs", False)}
    assert chosen(nothing) == ("nuts", False)
    assert chosen({"svi": made_up("svi"), "mfvi": made_up("mfvi")}) == ("svi", True)
    assert chosen(few, "nuts") == ("nuts", False)
    assert chosen(few, "mfvi") == ("mfvi", True)


def test_it_has_seen_as_much_as_any_other():
    few = hmm_demos([0, 1], [0, 1])
    posteriors = {"mfvi": made_up("mfvi"), "nuts": made_up("nuts", demos=few)}
    assert chosen(posteriors) == ("mfvi", True)
    assert chosen(posteriors | {"gibbs": made_up("gibbs")}) == ("gibbs", True)


def test_exact_is_none_where_it_averages_over_names():
    unlabelled = LABELLED.without_labels()
    posteriors = {method: made_up(method, demos=unlabelled) for method in ("exact", "gibbs")}
    assert chosen(posteriors) == ("gibbs", True)


def test_convergence_is_that_of_the_chains_as_they_stand():
    """Whatever the fit said: its latents may have been matched since."""
    good, bad = made_up("gibbs"), made_up("gibbs", False)
    claimed = dataclasses.replace(bad, result=bad.result._replace(converged=True))
    assert convergence(good).converged
    assert not convergence(claimed).converged
    largest = bad.draws_info["max_rhat"].max()
    assert f"largest R-hat {largest:.3f}" in convergence(bad).reason
    # Steps that diverged are told.
    stats = good.result.sample_stats | {"diverging": np.arange(800).reshape(4, 200) < 3}
    diverged = dataclasses.replace(good, result=good.result._replace(sample_stats=stats))
    assert convergence(diverged).reason.endswith("; 3 divergent transitions")
    stopped = made_up("mfvi", False)
    assert convergence(stopped) == (False, "made up")


@pytest.mark.parametrize("part", ["coefficients", "covariance", ""])
def test_chains_that_disagree_about_continuous_columns_have_not_converged(part):
    bound = bind(_model(), _demos())
    generator = np.random.default_rng(0)
    rows = {
        site: DrawnRows(
            DirichletRows(np.full(table.shape, 5.0))
            .sample(800, generator)
            .reshape(4, 200, *table.shape)
        )
        for site, table in bound.learned.items()
    }
    channels = {}
    for one in bound.channels.values():
        contexts, latents, p, d = one.shape
        drawn = {
            "coefficients": generator.normal(size=(4, 200, contexts, latents, p, d)),
            "covariance": generator.uniform(1, 2, size=(4, 200, contexts, latents, d, d)),
        }
        if part:
            drawn[part][0] += 10
        channels[one.name] = DrawnChannel(**drawn)
    stats = {"log_likelihood_total": generator.normal(size=(4, 200))}
    result = FitResult(rows, True, "made up", sample_stats=stats, channels=channels)
    posterior = TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)
    found = convergence(posterior)
    assert found.converged == (not part)
    assert f"largest R-hat {posterior.draws_info['max_rhat'].max():.3f}" in found.reason


def test_what_is_measured_is_missing_where_the_reference_has_not_converged():
    posteriors = {"mfvi": made_up("mfvi"), "gibbs": made_up("gibbs", False)}
    found = compare_posteriors(posteriors)
    assert found.reference == "gibbs"
    measured = [
        "seconds_to_accuracy",
        *("mean_difference", "mean_difference_in_use", "sd_ratio", "sd_ratio_in_use"),
        "shared_rows",
    ]
    assert found.table[measured].isna().all().all()
    assert found.no_differences.startswith("gibbs has not converged: 4 chains: largest R-hat")
    assert found.notes[0].startswith("No differences, ratios of standard deviations or times")
    assert found.no_differences in found.notes[0]
    assert not found.courses
    assert not found.others
    for plot in ("plot_method_against_method", "plot_sd_ratios", "plot_courses"):
        with pytest.raises(ValueError, match="nothing can be measured against it: gibbs has not"):
            getattr(found, plot)()
    again = compare_posteriors(posteriors, reference="mfvi")
    assert again.no_differences is None
    assert again.table.loc["gibbs", measured].notna().all()


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(ValueError, match="posteriors: name at least one"):
        compare_posteriors({})
    with pytest.raises(ValueError, match="reference: 'nuts' is not among mfvi"):
        compare_posteriors({"mfvi": made_up("mfvi")}, reference="nuts")
