"""`btil.compare`: several inference methods on the same demonstrations, side by side."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from btil.analysis.alignment import (
    agents_pinned,
    align,
    posterior_means,
    refuse_unmatched,
    rename_latents,
    shared_contexts,
)
from btil.analysis.belief_scores import (
    DecodedScores,
    reliability_by_episode,
    score_beliefs,
    scored_agents,
)
from btil.analysis.calibration.ranks import Reliability, bins_of
from btil.analysis.efficiency import Course, Target, course, latent_ess, own_course
from btil.analysis.evidence import Evidence, check_estimable, estimate_bound
from btil.analysis.held_out import held_out
from btil.analysis.known_truth import check_truth, coverage_table
from btil.analysis.metrics import confusion_matrix
from btil.analysis.modes import (
    Mode,
    WeighedMode,
    find_modes,
    only_chains,
    only_draws,
    told_modes,
    total_log_likelihood,
    weigh_modes,
)
from btil.analysis.monte_carlo import (
    average_over,
    blocks_of_draws,
    jackknife_error,
    means_without_each_block,
    moments_without_each_block,
    stretches_of_chains,
    together,
)
from btil.analysis.output import text_table
from btil.analysis.performance import finished_episodes
from btil.analysis.plots import expected_visits
from btil.analysis.quantities import DECIDING, MEASURED, Quantity, quantities
from btil.analysis.reference import Convergence, choose_reference, convergence
from btil.analysis.verdict import Verdict, judge_comparison
from btil.analysis.words import listed
from btil.arguments import check_count, check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import counted
from btil.inference.chains import RHAT_LIMIT
from btil.inference.method import method_of
from btil.inference.result import DrawnRows, RowsPosterior, check_all_kept, check_keeps_all
from btil.models.draws import DrawnTables
from btil.models.symmetry import agents_with_common_latents, interchangeable_classes
from btil.models.team import TeamModel
from btil.numpyro_forms.numpyro_model import NumpyroModel
from btil.posterior.beliefs import Posterior, refuse_excerpt
from btil.posterior.conforming import conform
from btil.posterior.fit import check_given, check_model, fit_bound, method_function
from btil.posterior.numpyro_posterior import bind_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from btil.analysis.output import PagePart

# Names become file names of the report.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AVERAGED = "smoothed, averaged"
# With fewer draws an average says little, and its error nothing.
_FEWEST_DRAWS = 20
# A standard deviation below this is rounding, the cell is known.
_NO_SD = 1e-7
# Steps after which an episode of play is cut, unless demonstrations are longer.
_LONGEST_PLAY = 200

# Of a method some of its draws, by their number: the posterior by these alone, and what is said.
_Part = tuple[str, int, Posterior, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several methods make of the same demonstrations.

    Attributes:
        posteriors: {name: posterior}, in the order asked for.
        table: One row per name; `quantities` explains the columns. Values that a method does not
            have (a bound, an R-hat) are missing.
        chains: Per method with several chains and per chain: mean log likelihood of the training
            data and, with test data, decoding errors. Empty where there are no chains.
        modes: The same per group of chains that overlap, see `btil.analysis.modes`.
        weighed: {name: the modes that its draws are in, with their weights}, see
            `btil.analysis.weigh_modes`. Empty of methods without chains.
        weights: The same as `chains` per mode of the draws, with its weight. Of methods whose draws
            are in several modes.
        decoded: Scores of beliefs about held-out mental states, per method, agent and kind of
            belief, see `btil.analysis.belief_scores`. Empty without labelled test data.
        coverage: How often intervals cover the truth, per method and kind of table, see
            `btil.analysis.known_truth`. Empty where no truth is given.
        differences: {name: how its rows differ from the reference's}; empty where that has not
            converged.
        courses: How each method comes near the reference as time goes on.
        reliabilities: {agent: {name: how sure and how often right}} of held-out mental states.
        evidence: The log evidence of the reference's data, if it was asked for.
        accuracy: Error that is small enough where the time to reach it is reported.
        num_draws: Posterior draws that beliefs are averaged over, at most.
        num_played: Episodes that teams are let play where the data know their task.
        seed: Seeds these draws and what is played.
        notes: Sentences on how the numbers came about and what to be careful with.
        reference: The name of the method that differences are taken from.
        no_differences: Why none are taken from it: it has not converged. Differences, ratios of
            standard deviations and times to its accuracy are then missing. None where they are
            there.
        convergence: {name: whether it has converged, and why (not)}, of chains with their latents
            matched.
        test: Held-out demonstrations, or None.
        aligned: The posteriors with latents that nothing distinguishes in the reference's order.
        compared: Of these, where chains do not overlap, the group of the largest log likelihood
            alone: differences are between these.
        named: These with such latents named after the labels of the test data where it has some:
            decoding errors are of these.
        truth: The tables that the data were made from, or None.
    """

    posteriors: dict[str, Posterior]
    table: pd.DataFrame
    chains: pd.DataFrame
    modes: pd.DataFrame
    weighed: dict[str, list[WeighedMode]]
    weights: pd.DataFrame
    decoded: pd.DataFrame
    coverage: pd.DataFrame
    differences: "dict[str, RowDifference]"
    courses: dict[str, Course]
    reliabilities: dict[str, dict[str, Reliability]]
    evidence: Evidence | None
    accuracy: float
    num_draws: int
    num_played: int
    seed: int
    notes: tuple[str, ...]
    reference: str
    no_differences: str | None
    convergence: dict[str, Convergence]
    test: Demonstrations | None
    aligned: dict[str, Posterior]
    compared: dict[str, Posterior]
    named: dict[str, Posterior]
    truth: DrawnTables | None

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.posteriors)}; reference {self.reference})"

    @property
    def demos(self) -> Demonstrations:
        """The demonstrations that the reference was learned from."""
        return self.posteriors[self.reference].demos

    @property
    def others(self) -> dict[str, Posterior]:
        """Of `compared` those that can be held against the reference: with tables in common.

        None where the reference has not converged.
        """
        if self.no_differences is not None:
            return {}
        tables = self.compared[self.reference].result.rows.keys()
        return {
            name: posterior
            for name, posterior in self.compared.items()
            if name != self.reference and tables & posterior.result.rows.keys()
        }

    @property
    def model(self) -> TeamModel:
        """The model."""
        return self.posteriors[self.reference].model

    @property
    def verdict(self) -> Verdict:
        """What it comes to: whom to believe, where methods agree, what to use for what."""
        return judge_comparison(self)

    # ------------------------------------------------------------------ tables

    def quantities(self) -> list[Quantity]:
        """The columns of the table that hold something, with their explanations."""
        every = quantities(self.demos.agents, self.accuracy)
        return [quantity for quantity in every if quantity.column in self.table]

    def grouped(self) -> dict[str, list[Quantity]]:
        """The quantities that are shown, group by group, those that decide first."""
        found: dict[str, list[Quantity]] = {DECIDING: []}
        for quantity in self.quantities():
            if quantity.column != "reason":
                found.setdefault(quantity.group, []).append(quantity)
        return found

    def written(self, quantity: Quantity, name: str) -> str:
        """A value of the table as text; a dash where the method has none."""
        return quantity.text({str(c): value for c, value in self.table.loc[name].items()})

    def summary_table(self, every_row: bool = False) -> "Table":
        """The table for a terminal of 100 columns: a line per quantity, a column per method.

        Args:
            every_row: Whether to show all quantities, group by group, not only those that decide.
        """
        from rich.text import Text

        table = text_table(["", *self.posteriors], [])
        for group, own in self.grouped().items():
            if group != DECIDING and not every_row:
                continue
            for quantity in own:
                written = (Text(self.written(quantity, name)) for name in self.posteriors)
                table.add_row(Text(quantity.label), *written)
            table.add_section()
        return table

    def reliability_table(self) -> pd.DataFrame:
        """How sure and how often right, bin by bin: what `plot_reliability` draws.

        Columns: `agent`, `method`; the bin's edges `low` and `high`; `steps` in it, the mean
        probability `said` of their most probable state, the share `right` of these, and its 95%
        interval, `lower` to `upper`. Empty without labelled test data.
        """
        return pd.DataFrame(
            {"agent": agent, "method": name, **one._asdict()}
            for agent, own in self.reliabilities.items()
            for name, counted in own.items()
            for one in bins_of(counted)
        )

    # ------------------------------------------------------------------ pictures

    def plot_method_against_method(self) -> "Figure":
        """Posterior means with intervals, every method against the reference.

        Raises:
            ValueError: If the reference has not converged.
        """
        self._check_reference()
        from btil.analysis.plots import plot_method_against_method

        return plot_method_against_method(self.compared[self.reference], self.others)

    def plot_sd_ratios(self) -> "Figure":
        """Posterior standard deviations over those of the reference.

        Raises:
            ValueError: If the reference has not converged.
        """
        self._check_reference()
        from btil.analysis.plots import plot_sd_ratios

        return plot_sd_ratios(self.compared[self.reference], self.others)

    def plot_elbo_traces(self) -> "Figure":
        """The bound over the sweeps of the methods that have one."""
        from btil.analysis.plots import plot_elbo_traces

        return plot_elbo_traces(self.posteriors)

    def plot_courses(self) -> "Figure":
        """How each method comes near the reference as time goes on.

        Raises:
            ValueError: If the reference has not converged.
        """
        self._check_reference()
        from btil.analysis.plots import plot_courses

        shown = {
            f"{name} (its first half, to its second)" if name == self.reference else name: course
            for name, course in self.courses.items()
        }
        return plot_courses(shown, self.accuracy)

    def plot_reliability(self) -> "Figure":
        """How sure methods are of held-out mental states, and how often right.

        Raises:
            ValueError: If there are no labelled test data.
        """
        from btil.analysis.plots import plot_reliability

        return plot_reliability(self.reliabilities)

    def plot_timeline(self, agent: str, name: str | None = None, episode: int = 0) -> "Figure":
        """What one method believes of an agent's latents over a held-out episode.

        Args:
            agent: The agent.
            name: The method; None: the first.
            episode: Position of the episode in the test data (without any, the training data).
        """
        from btil.analysis.plots import plot_timeline

        return plot_timeline(self._posterior(name), self.shown, episode, agent)

    def plot_confusion(self, agent: str, name: str | None = None) -> "Figure":
        """Decoded against true latents of an agent on the test data; arguments as above."""
        from btil.analysis.plots import plot_confusion

        return plot_confusion(self.shown, self._posterior(name), agent)

    def report(
        self, directory: Any, command: str | None = None, suggestion: "PagePart | None" = None
    ) -> Path:
        """Write the report: one self-contained page, its figures, table and posteriors.

        Args:
            directory: A folder, made if it is not there. An earlier report in it is replaced.
            command: The shell command that made the comparison, to be told in the report.
            suggestion: Where the model is from, if `suggest_model` found it: a section tells why.

        Returns:
            Path of the page.

        Raises:
            OSError: If the folder cannot be written to.
        """
        from btil.analysis.report import write_report

        return write_report(self, directory, command, suggestion)

    def _check_reference(self) -> None:
        if self.no_differences is not None:
            raise ValueError(f"nothing can be measured against it: {self.no_differences}")

    def _posterior(self, name: str | None) -> Posterior:
        chosen = next(iter(self.posteriors)) if name is None else name
        if chosen not in self.posteriors:
            raise ValueError(f"no method {chosen!r}; there are {', '.join(self.posteriors)}")
        return self.named[chosen]

    @property
    def shown(self) -> Demonstrations:
        """The episodes that pictures show: the test data, or without any those learned from."""
        return self.demos if self.test is None else self.test


def compare(
    model: TeamModel,
    demos: Demonstrations,
    methods: Sequence[str] | Mapping[str, str] = ("mfvi", "svi", "gibbs", "nuts"),
    test: Demonstrations | None = None,
    seed: int = 0,
    progress: bool = True,
    reference: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    demos_by_method: Mapping[str, Demonstrations] | None = None,
    truth: DrawnTables | None = None,
    evidence: bool = False,
    accuracy: float = 0.01,
    num_draws: int = 1000,
    num_played: int = 50,
) -> Comparison:
    """Fit the same model by several methods and set their answers side by side.

    Rows of tables are compared context by context, over the contexts that both methods have seen,
    after matching the latents where nothing pins their order. Chains that sit in different modes
    are told apart and not averaged. Against a reference that has not converged nothing is measured.
    `docs/tutorials/comparison.md` explains every number.

    Args:
        model: What is believed before.
        demos: What was seen.
        methods: Names of methods, or {name: method} to fit one method several times.
        test: Held-out episodes. Their labels are not looked at when anything is predicted, and
            only used to count errors.
        seed: The seed of every fit.
        progress: Whether to show progress lines.
        reference: The name that differences are taken from. None: "exact" (where latents are told
            apart), "nuts" or "gibbs", the first of them that sees as many steps as any other and
            has converged; if none has, the first of them, and without any of them the first name.
        options: {name: options of `btil.fit`}.
        demos_by_method: {name: demonstrations} for methods that are to see other episodes, say
            fewer because they are slow.
        truth: The tables that the data were made from, where they were made up: how often
            intervals cover them is told then. As from `btil.analysis.simulate_truth`.
        evidence: Whether to estimate the log evidence, for the gap of the bounds to it. It takes
            about as long as a run of gibbs.
        accuracy: Error that is small enough where the time to reach it is reported.
        num_draws: Posterior draws that beliefs about mental states are averaged over, of every
            method so many; of chains, no more than they have.
        num_played: Episodes that the team of each method is let play, by posterior means, where
            `demos` are of a grid world (`btil.domains.task_of`): how many steps it needs, and how
            often it is cut. 0: none.

    Returns:
        The comparison.

    Raises:
        ValueError: If a name is unknown or unfit for a file name, the data or the truth do not
            fit, or the evidence cannot be estimated; before any fit begins.
        TypeError: If a method has no such option.

    Example:
        >>> comparison = btil.compare(model, demos, ("mfvi", "gibbs"), test)  # doctest: +SKIP
        >>> comparison.report("report")  # doctest: +SKIP
    """
    if isinstance(methods, str):
        several = [name.strip() for name in methods.split(",")]
        raise ValueError(f"methods must be names in a tuple or list, such as {several}")
    chosen = dict(methods) if isinstance(methods, Mapping) else {name: name for name in methods}
    options = {name: dict(given) for name, given in (options or {}).items()}
    others = dict(demos_by_method or {})
    _check(model, chosen, len(methods), options, others, reference)
    if not isinstance(demos, Demonstrations):
        raise ValueError(f"demos must be Demonstrations, got {type(demos).__name__}")
    others = {name: conform(training, demos) for name, training in others.items()}
    seen = {name: others.get(name, demos) for name in chosen}
    if test is not None:
        test = conform(test, demos)
    numbers = {"accuracy": accuracy, "num_played": num_played, "seed": seed}
    check_values(numbers | {"progress": progress})
    num_draws = check_count("num_draws", num_draws, _FEWEST_DRAWS)
    bound = bind_model(model, demos)
    refuse_unmatched(bound)
    if truth is not None:
        check_truth(bound, truth)
    if evidence:
        check_estimable(bound)
    posteriors = {}
    for name, method in chosen.items():
        own = bound if seen[name] is demos else bind_model(model, seen[name])
        given = options.get(name, {})
        posteriors[name] = fit_bound(own, method, seed=seed, progress=progress, **given)
    return compare_posteriors(
        posteriors,
        test,
        reference,
        truth=truth,
        evidence=evidence,
        accuracy=accuracy,
        num_draws=num_draws,
        num_played=num_played,
        seed=seed,
        progress=progress,
    )


def _check(
    model: TeamModel,
    chosen: Mapping[str, str],
    num_asked: int,
    options: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, Any],
    reference: str | None,
) -> None:
    """Refuse what `compare` cannot do, before it does anything."""
    check_model(model)
    if not chosen:
        raise ValueError("methods: name at least one")
    if len(chosen) < num_asked:
        raise ValueError("methods: a method is named twice; give a mapping {name: method}")
    for name, method in chosen.items():
        method_function(method, model)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"methods: {name!r} is not a name for files; use letters, digits, '.', '_' and '-'"
            )
    for argument, given in (("options", options), ("demos_by_method", others)):
        unknown = sorted(set(given) - set(chosen))
        if unknown:
            raise ValueError(
                f"{argument}: no method {', '.join(unknown)}; compared are {', '.join(chosen)}"
            )
    _check_reference(reference, chosen)
    for name, given in options.items():
        check_given(chosen[name], given, model, owner=f"options: {chosen[name]}")
        check_keeps_all(f"options: {name}", given)


def compare_posteriors(
    posteriors: Mapping[str, Posterior],
    test: Demonstrations | None = None,
    reference: str | None = None,
    *,
    truth: DrawnTables | None = None,
    evidence: bool | Evidence = False,
    accuracy: float = 0.01,
    num_draws: int = 1000,
    num_played: int = 50,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Set posteriors that are there already side by side, as `compare` does.

    Args:
        posteriors: {name: posterior} of the same team under the same model.
        test: Held-out episodes.
        reference: As in `compare`.
        truth: As in `compare`.
        evidence: As in `compare`; or an estimate of the log evidence of the reference's data that
            is there already.
        accuracy: As in `compare`.
        num_draws: As in `compare`.
        num_played: As in `compare`.
        seed: Seeds the evidence, what is played, and the draws that beliefs and intervals are of.
        progress: Whether estimating the evidence shows a progress line.

    Returns:
        The comparison.

    Raises:
        ValueError: If the test data or the truth do not fit, a table's shape or the order of names
            differs between posteriors, the evidence cannot be estimated, or a posterior kept the
            draws of some rows only (gibbs with `keep_rows`).
    """
    posteriors = dict(posteriors)
    _check_posteriors(posteriors, reference)
    numbers = {"accuracy": accuracy, "num_played": num_played, "seed": seed}
    check_values(numbers | {"progress": progress})
    # Plain ones, as files and pages tell them.
    accuracy, num_played, seed = float(accuracy), int(num_played), int(seed)
    num_draws = check_count("num_draws", num_draws, _FEWEST_DRAWS)
    chosen = choose_reference(posteriors, reference)
    reference, anchor = chosen.name, chosen.posterior
    if test is not None:
        test = conform(test, anchor.demos)
    if truth is not None:
        check_truth(anchor.bound, truth)
    if evidence is True:
        check_estimable(anchor.bound)
    lined = _line_up(posteriors, reference, anchor)
    aligned = {name: one.aligned for name, one in lined.items()}
    compared = {name: one.compared for name, one in lined.items()}
    # The reference's first.
    modes = {name: lined[name].modes for name in dict.fromkeys([reference, *lined])}
    weighed = {name: one.weighed for name, one in lined.items()}
    verdicts = {name: convergence(posterior) for name, posterior in aligned.items()}
    named = {name: name_by_labels(posterior, test) for name, posterior in compared.items()}
    decoded, reliabilities = _score_decoded(named, test, num_draws, seed)
    coverage = _cover(compared, truth, seed)
    estimate = None if isinstance(evidence, bool) else evidence
    if evidence is True:
        estimate = _estimate_evidence(posteriors, reference, seed, progress)
    played, at_work = _play(compared, anchor.demos, num_played, seed)
    measured = chosen.fault is None
    courses, differences = _measure(compared, reference) if measured else ({}, {})
    records = {
        name: _fit_record(posterior, aligned[name], modes[name], verdicts[name])
        | _time_record(courses.get(name), accuracy)
        | _evidence_record(posterior, posteriors[reference], estimate)
        | _held_out(named[name], test)
        | _decoded_record(decoded, name)
        | _coverage_record(coverage, name)
        | played.get(name, {})
        | (differences[name]._asdict() if measured else {})
        for name, posterior in posteriors.items()
    }
    # Where nothing is measured the columns are there, and have nothing to say.
    unsaid = () if measured or not anchor.result.rows else MEASURED
    table = _table(records, quantities(anchor.demos.agents, accuracy), unsaid)
    return Comparison(
        posteriors=posteriors,
        table=table,
        chains=_compare_parts(_each_chain(aligned), test, "chain"),
        modes=_compare_parts(_each_group(aligned, modes), test, "group"),
        weighed=weighed,
        weights=_compare_parts(_each_mode(aligned, weighed), test, "mode"),
        decoded=_frame(decoded, "method", "agent", "belief"),
        coverage=coverage,
        differences=differences,
        courses=courses,
        reliabilities=reliabilities,
        evidence=estimate,
        accuracy=accuracy,
        num_draws=num_draws,
        num_played=num_played,
        seed=seed,
        notes=(
            *_notes_on_reference(reference, chosen.fault),
            *_notes_on_data(posteriors, reference, measured),
            *_notes_on_names(posteriors, test),
            *_notes_on_modes(modes),
            *_notes_on_weights(weighed, modes),
            *_notes_on_convergence(table, verdicts, modes),
            *_notes_on_evidence(estimate),
            *at_work,
            *_notes_on_truth(truth, posteriors),
        ),
        reference=reference,
        no_differences=chosen.fault,
        convergence=verdicts,
        test=test,
        aligned=aligned,
        compared=compared,
        named=named,
        truth=truth,
    )


def _check_posteriors(posteriors: Mapping[str, Posterior], reference: str | None) -> None:
    for name, posterior in posteriors.items():
        check_all_kept(posterior.result.rows, f"posteriors: {name}")
    if not posteriors:
        raise ValueError("posteriors: name at least one")
    _check_reference(reference, posteriors)
    for posterior in posteriors.values():
        refuse_excerpt(posterior, "a comparison")


def _check_reference(reference: str | None, among: Iterable[str]) -> None:
    if reference is not None and reference not in among:
        raise ValueError(f"reference: {reference!r} is not among {', '.join(among)}")


class _LinedUp(NamedTuple):
    """A posterior as it can be compared.

    Attributes:
        aligned: The posterior with latents in the reference's order.
        modes: Groups of its chains that overlap.
        weighed: Modes of its draws.
        compared: Of several groups the first alone.
    """

    aligned: Posterior
    modes: list[Mode]
    weighed: list[WeighedMode]
    compared: Posterior


def _line_up(
    posteriors: Mapping[str, Posterior], reference: str, anchor: Posterior
) -> dict[str, _LinedUp]:
    """Match latents and chains to the reference; `anchor` is it, its chains named alike."""
    first = _with_modes(anchor)
    found = {}
    for name, posterior in posteriors.items():
        # By a NumpyroModel, which has no rows, nothing can be matched but chains to one another.
        target = first.compared if first.compared.result.rows else only_chains(posterior, [0])
        found[name] = first if name == reference else _with_modes(align(posterior, target))
    return found


def _with_modes(aligned: Posterior) -> _LinedUp:
    """A posterior whose latents are matched, and its modes."""
    visits = None
    if method_of(aligned.method).answer == "chains":
        visits = expected_visits(aligned)
    modes = find_modes(aligned, visits)
    weighed = weigh_modes(aligned, visits, modes)
    return _LinedUp(aligned, modes, weighed, _leading(aligned, modes))


def _leading(posterior: Posterior, modes: Sequence[Mode]) -> Posterior:
    """The chains of the first mode alone, where there are several."""
    if len(modes) < 2:
        return posterior
    alone = only_chains(posterior, modes[0].chains)
    reason = f"{_chains(modes[0])} alone, as the chains do not overlap; of all: {posterior.reason}"
    return dataclasses.replace(alone, result=alone.result._replace(converged=False, reason=reason))


# ---------------------------------------------------------------------- one method


def _fit_record(
    posterior: Posterior, aligned: Posterior, modes: Sequence[Mode], verdict: Convergence
) -> dict[str, Any]:
    """What a fit says of itself, and how well its chains agree once their latents are matched."""
    record: dict[str, Any] = {
        "episodes": posterior.demos.num_episodes,
        "seconds": posterior.wall_time,
        "converged": verdict.converged,
        "reason": verdict.reason,
        "elbo": posterior.elbo,
        "elbo_se": posterior.elbo_se,
    }
    info = aligned.draws_info
    if info is not None:
        record["max_rhat"] = info["max_rhat"].max()
        record["rows"] = int(info["rows"].sum())
        record["rows_above"] = int(info["rows_above"].sum())
        record["min_ess_per_second"] = info["min_ess_bulk"].min() / posterior.wall_time
        size = latent_ess(aligned)
        if size is not None:
            record["min_ess_per_second_latents"] = size / posterior.wall_time
        if sum(len(mode.chains) for mode in modes) > 1:
            record["modes"] = len(modes)
    return record


def _held_out(posterior: Posterior, test: Demonstrations | None) -> dict[str, float]:
    """Predictions of episodes without their labels, and the errors of decoding them."""
    if test is None:
        return {}
    log_likelihood = posterior.log_likelihood(test.without_labels())  # of actions alone
    record = {"log_likelihood_per_step": float(log_likelihood.sum()) / test.num_steps}
    return record | held_out(test, posterior)


def _time_record(course: Course | None, accuracy: float) -> dict[str, float]:
    return {} if course is None else {"seconds_to_accuracy": course.reached(accuracy)}


def _measure(
    compared: Mapping[str, Posterior], reference: str
) -> tuple[dict[str, Course], dict[str, "RowDifference"]]:
    """How methods come near the reference as time goes on, and how their rows differ from its."""
    target = compared[reference]
    visits = expected_visits(target)
    differences = {name: compare_rows(one, target, visits) for name, one in compared.items()}
    if not target.result.rows:
        return {}, differences
    used = {site: read >= 1 for site, read in visits.items()}
    means = posterior_means(target)
    courses = {}
    for name, posterior in compared.items():
        one = None
        if name == reference:
            one = own_course(posterior, used)
        # Of other data it comes near something else.
        elif posterior.demos == target.demos and posterior.result.rows:
            one = course(posterior, target, Target(means, used))
        if one is not None:
            courses[name] = one
    return courses, differences


def _table(
    records: Mapping[str, Mapping[str, Any]], columns: Sequence[Quantity], unsaid: Sequence[str]
) -> pd.DataFrame:
    """The table of all methods: columns that one of them has, and some that say nothing."""
    every = [column for quantity in columns for column in quantity.columns]
    table = pd.DataFrame.from_dict(dict(records), orient="index").rename_axis("method")
    table = table[[column for column in every if column in table]].dropna(axis="columns", how="all")
    return table.assign(**dict.fromkeys(unsaid, np.nan))


def _estimate_evidence(
    posteriors: Mapping[str, Posterior], reference: str, seed: int, progress: bool
) -> Evidence:
    """The log evidence of the reference's data: exact where that is there, else estimated."""
    whole = posteriors[reference]
    same = [one for one in posteriors.values() if one.demos == whole.demos]
    for one in same:
        if method_of(one.method).answer == "exact" and one.elbo is not None:
            return Evidence(one.elbo, 0.0, "exact", True, None, ())
    mean_field = [one for one in same if one.method == "mfvi" and one.result.rows]
    options = {"posterior": mean_field[0]} if mean_field else {}
    return estimate_bound(whole.bound, "smc", seed, progress, **options)


def _evidence_record(
    posterior: Posterior, reference: Posterior, evidence: Evidence | None
) -> dict[str, float]:
    """How far a bound of the same data lies below the log evidence."""
    if evidence is None or posterior.elbo is None or posterior.demos != reference.demos:
        return {}
    error = float(np.hypot(evidence.se, posterior.elbo_se or 0.0))
    return {
        "evidence_gap": evidence.value - posterior.elbo,
        "evidence_gap_se": error if error > 0 else np.nan,
    }


def _cover(compared: Mapping[str, Posterior], truth: DrawnTables | None, seed: int) -> pd.DataFrame:
    """How often intervals cover the truth, by method and kind of table; empty without a truth."""
    if truth is None:
        return pd.DataFrame()
    tables = {n: coverage_table(p, truth, seed) for n, p in compared.items() if p.result.rows}
    return pd.concat(tables, names=["method"]) if tables else pd.DataFrame()


def _coverage_record(coverage: pd.DataFrame, name: str) -> dict[str, float]:
    found = coverage.to_dict("index").get((name, "all"), {})
    return {str(column): value for column, value in found.items() if column != "rows"}


def _play(
    compared: Mapping[str, Posterior], demos: Demonstrations, num_episodes: int, seed: int
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """How teams do the task that demonstrations are of, if they know it; notes on it.

    Returns:
        The table's values, by method, of those that can play; sentences.
    """
    from btil.domains import play, task_of

    found: dict[str, dict[str, float]] = {}
    task = task_of(demos) if num_episodes else None
    if task is None:
        return found, []
    longest = max(_LONGEST_PLAY, int(demos.episode_lengths.max()))
    notes = [
        f"As the data are of {task!r}, each method's team was let play "
        f"{counted(num_episodes, 'episode')} of at most {longest} steps, by posterior means. The "
        f"demonstrators took {demos.episode_lengths.mean():.1f} steps on average, and "
        f"{1 - finished_episodes(task, demos).mean():.0%} of their episodes were cut."
    ]
    for name, posterior in compared.items():
        try:
            done = play(task, posterior, num_episodes, seed=seed, max_steps=longest)
        except ValueError as error:
            notes.append(f"{name} was not let play: {error}")
            continue
        values = {
            "played_steps": done.episode_lengths,
            "played_cut": ~finished_episodes(task, done),
        }
        found[name] = {}
        for column, ones in values.items():
            deviation = float(np.std(ones, ddof=1)) if num_episodes > 1 else np.nan
            found[name] |= {
                column: float(np.mean(ones)),
                f"{column}_se": deviation / math.sqrt(num_episodes),
            }
    return found, notes


def _score_decoded(
    named: Mapping[str, Posterior], test: Demonstrations | None, num_draws: int, seed: int
) -> tuple[dict[tuple[str, str, str], dict[str, Any]], dict[str, dict[str, Reliability]]]:
    """Beliefs about held-out mental states: under the point estimate, averaged over draws, live.

    Errors are those over episodes and those of draws together.

    Returns:
        Scores by method, agent and kind of belief; how sure and how often right, by agent and
        method, of the averaged ones.
    """
    records: dict[tuple[str, str, str], dict[str, Any]] = {}
    reliabilities: dict[str, dict[str, Reliability]] = {}
    if test is None or not scored_agents(test):
        return records, reliabilities
    for name, posterior in named.items():
        blocks = blocks_of_draws(posterior, num_draws, seed)
        averaged = average_over(
            blocks,
            lambda block: _side_by_side(
                block.posterior.smooth(test, num_draws=block.num_draws, seed=block.seed)
            ),
        )
        beliefs = _by_agent(averaged.whole, test)
        scores = {
            "smoothed": _scored(test, posterior.smooth(test)),
            _AVERAGED: _scored(test, beliefs),
            "filtered": _scored(test, posterior.filter(test)),
        }
        without: dict[str, list[dict[str, DecodedScores]]] = {kind: [] for kind in scores}
        without[_AVERAGED] = [_scored(test, _by_agent(one, test)) for one in averaged.without]
        # Means of rows are as uncertain as draws are few.
        for one in means_without_each_block(posterior):
            without["smoothed"].append(_scored(test, one.smooth(test)))
            without["filtered"].append(_scored(test, one.filter(test)))
        for agent in scored_agents(test):
            for kind, own in scores.items():
                record = _scores_record(own[agent], [one[agent] for one in without[kind]])
                if kind == _AVERAGED:
                    record["draws"] = sum(block.num_draws for block in blocks)
                records[name, agent, kind] = record
            counted = reliability_by_episode(test, beliefs, agent)
            reliabilities.setdefault(agent, {})[name] = counted
    return records, reliabilities


def _scored(
    test: Demonstrations, beliefs: Mapping[str, Float[np.ndarray, "steps ..."]]
) -> dict[str, DecodedScores]:
    return {agent: score_beliefs(test, beliefs, agent) for agent in scored_agents(test)}


def _side_by_side(
    beliefs: Mapping[str, Float[np.ndarray, "steps ..."]],
) -> Float[np.ndarray, "steps latents"]:
    """Beliefs about all agents in one array."""
    return np.concatenate(list(beliefs.values()), axis=1)


def _by_agent(
    beliefs: Float[np.ndarray, "steps latents"], demos: Demonstrations
) -> dict[str, Float[np.ndarray, "steps ..."]]:
    """The reverse of it."""
    parts = np.split(beliefs, np.cumsum(demos.num_latents)[:-1], axis=1)
    return dict(zip(demos.agents, parts, strict=True))


def _scores_record(scores: DecodedScores, without: Sequence[DecodedScores]) -> dict[str, Any]:
    """Scores, their errors, and how much of these is Monte Carlo error.

    Args:
        scores: The scores.
        without: Those with each block of draws left out; none where draws play no part.
    """
    record: dict[str, Any] = {"steps": scores.steps}
    for score in scores._fields[1:]:
        value, error = getattr(scores, score)
        chance = float(jackknife_error([getattr(one, score).value for one in without]))
        record |= {
            score: value,
            f"{score}_se": float(together(error, chance)),
            f"{score}_monte_carlo": chance,
        }
    return record


def _decoded_record(
    decoded: Mapping[tuple[str, str, str], Mapping[str, Any]], name: str
) -> dict[str, float]:
    record = {}
    for (method, agent, kind), scores in decoded.items():
        if (method, kind) == (name, _AVERAGED):
            for score in ("log_score", "surer_than_right"):
                record[f"{score}_{agent}"] = scores[score]
                record[f"{score}_se_{agent}"] = scores[f"{score}_se"]
    return record


# ---------------------------------------------------------------------- method against method


class RowDifference(NamedTuple):
    """How the rows of a posterior differ from those of another.

    Most rows of large tables are hardly ever read and stay near their prior by any method, so
    everything is also told of the rows in use: those that the reference expects its data to have
    read at least once (the rows that plots show).

    Attributes:
        shared_rows: Rows (context and latent) of learned tables that both have.
        mean_difference: Mean over their cells of |posterior mean - reference's posterior mean|.
        mean_difference_se: By how much the Monte Carlo errors of the two may have changed it:
            the mean of their absolute values, as is expected. Two posteriors that are the same
            differ by about so much. NaN where neither has draws.
        mean_difference_in_use: The same over rows in use.
        mean_difference_in_use_se: Of that.
        sd_ratio: Median over cells of sd / reference's sd; cells that the reference knows exactly
            are left out.
        sd_ratio_se: Its Monte Carlo standard error.
        sd_ratio_in_use: The same over rows in use.
        sd_ratio_in_use_se: Of that.
        mean_difference_in_sds: Mean over the cells of rows in use of |posterior mean - reference's|
            over the reference's sd; cells that the reference knows exactly are left out.
        mean_sd_in_use: Mean of these sds.
    """

    shared_rows: int
    mean_difference: float
    mean_difference_se: float
    mean_difference_in_use: float
    mean_difference_in_use_se: float
    sd_ratio: float
    sd_ratio_se: float
    sd_ratio_in_use: float
    sd_ratio_in_use_se: float
    mean_difference_in_sds: float
    mean_sd_in_use: float


class _Cells(NamedTuple):
    """Cells that two posteriors have in common, as the one has them.

    Attributes:
        mean: Posterior means.
        sd: Posterior standard deviations.
        means: Means with each block of draws left out; no blocks where there are no draws.
        sds: Standard deviations likewise.
    """

    mean: Float[np.ndarray, " cells"]
    sd: Float[np.ndarray, " cells"]
    means: Float[np.ndarray, "blocks cells"]
    sds: Float[np.ndarray, "blocks cells"]


def _cells_of(
    rows: RowsPosterior, contexts: Int[np.ndarray, " contexts"], num_blocks: int
) -> _Cells:
    """The cells of some contexts; those without draws are the same whatever is left out."""
    mean, sd = rows.mean()[contexts].ravel(), rows.sd()[contexts].ravel()
    if isinstance(rows, DrawnRows):
        without = moments_without_each_block(rows.draws[:, :, contexts])
        return _Cells(mean, sd, *(values.reshape(num_blocks, -1) for values in without))
    each = (num_blocks, len(mean))
    return _Cells(mean, sd, np.broadcast_to(mean, each), np.broadcast_to(sd, each))


def _num_blocks(posterior: Posterior) -> int:
    """Number of blocks that draws of rows are left out by; 0 where there are none."""
    drawn = (one.draws for one in posterior.result.rows.values() if isinstance(one, DrawnRows))
    return max((len(list(stretches_of_chains(*draws.shape[:2]))) for draws in drawn), default=0)


def _pooled(tables: Sequence[_Cells], num_blocks: int) -> _Cells:
    """The cells of several tables."""
    nothing = _Cells(*(np.zeros((*lead, 0)) for lead in ((), (), (num_blocks,), (num_blocks,))))
    return _Cells(*(np.concatenate(parts, axis=-1) for parts in zip(nothing, *tables, strict=True)))


def compare_rows(
    posterior: Posterior,
    reference: Posterior,
    visits: Mapping[str, Float[np.ndarray, "contexts ..."]] | None = None,
) -> RowDifference:
    """Compare means and standard deviations over the contexts that both have visited.

    Args:
        posterior: The one.
        reference: The other.
        visits: `expected_visits(reference)`, if they are there already.
    """
    visits = expected_visits(reference) if visits is None else visits
    num_rows = 0
    blocks, other_blocks = _num_blocks(posterior), _num_blocks(reference)
    ours, theirs, read = [], [], [np.zeros(0)]
    for site, rows in posterior.result.rows.items():
        if site not in reference.result.rows:
            continue
        own, other = shared_contexts(posterior, reference, site)
        ours.append(_cells_of(rows, own, blocks))
        theirs.append(_cells_of(reference.result.rows[site], other, other_blocks))
        shape = (len(own), *rows.mean().shape[1:])
        read.append(np.broadcast_to(visits[site][other][..., None], shape).ravel())
        num_rows += math.prod(shape[:-1])
    one, base = _pooled(ours, blocks), _pooled(theirs, other_blocks)
    if posterior is reference:  # its errors are the same: nothing is left to chance
        base = base._replace(means=base.means[:0], sds=base.sds[:0])
        one = one._replace(means=one.means[:0], sds=one.sds[:0])
    every, in_use = np.ones(len(one.mean), bool), np.concatenate(read) >= 1
    return RowDifference(
        num_rows,
        *_difference(one, base, every),
        *_difference(one, base, in_use),
        *_sd_ratio(one, base, every),
        *_sd_ratio(one, base, in_use),
        *_in_sds(one, base, in_use),
    )


def _difference(
    one: _Cells, base: _Cells, chosen: Bool[np.ndarray, " cells"]
) -> tuple[float, float]:
    """Mean absolute difference of means, and what Monte Carlo errors have to do with it."""
    errors = [jackknife_error(cells.means[:, chosen]) for cells in (one, base)]
    found = float("nan")
    if not all(np.isnan(error).all() for error in errors):
        # The mean absolute value of a normal error.
        error = np.sqrt(sum(np.nan_to_num(error) ** 2 for error in errors) * 2 / np.pi)
        found = _average(error)
    return _average(np.abs(one.mean - base.mean)[chosen]), found


def _in_sds(one: _Cells, base: _Cells, chosen: Bool[np.ndarray, " cells"]) -> tuple[float, float]:
    """Mean difference of means in the reference's standard deviations, and the mean of these."""
    chosen = chosen & (base.sd > _NO_SD)
    sd = base.sd[chosen]
    return _average(np.abs(one.mean - base.mean)[chosen] / sd), _average(sd)


def _sd_ratio(one: _Cells, base: _Cells, chosen: Bool[np.ndarray, " cells"]) -> tuple[float, float]:
    """Median ratio of standard deviations, and its Monte Carlo error."""
    chosen = chosen & (base.sd > _NO_SD)
    sd, other = one.sd[chosen], base.sd[chosen]
    if not len(sd):
        return np.nan, np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        without = [
            np.median(one.sds[:, chosen] / other, axis=1),
            np.median(sd / base.sds[:, chosen], axis=1),
        ]
    errors = [float(jackknife_error(values)) for values in without]
    error = float(np.hypot(*np.nan_to_num(errors))) if not np.isnan(errors).all() else np.nan
    return float(np.median(sd / other)), error


def _average(values: Float[np.ndarray, " cells"]) -> float:
    """NaN, without a warning, where there is nothing to average."""
    return float(values.mean()) if len(values) else np.nan


def name_by_labels(posterior: Posterior, test: Demonstrations | None) -> Posterior:
    """The posterior with latents that nothing told apart named as they are best decoded.

    Of all namings the one under which most labelled steps of the test data are decoded rightly.
    Latents that labels, priors or given tables tell apart keep their names.
    """
    classes = interchangeable_classes(posterior.bound)
    free = [agent for agent, own in classes.items() if any(len(members) > 1 for members in own)]
    if test is None or not free:
        return posterior
    decoded = posterior.decode(test)
    permutations = {agent: np.arange(sum(map(len, own))) for agent, own in classes.items()}
    for agents in agents_with_common_latents(posterior.bound):
        own = classes[agents[0]]
        counts = np.sum([confusion_matrix(test, decoded, agent) for agent in agents], axis=0)
        permutations |= dict.fromkeys(agents, _best_names(own, counts))
    return rename_latents(posterior, permutations)


def _best_names(
    classes: tuple[tuple[int, ...], ...], counts: Int[np.ndarray, "labels decoded"]
) -> Int[np.ndarray, " latents"]:
    """For each label the decoded latent that is given its name, within classes."""
    from scipy.optimize import linear_sum_assignment

    best = np.arange(len(counts))
    for members in classes:
        rows, columns = linear_sum_assignment(counts[np.ix_(members, members)], maximize=True)
        best[np.array(members)[rows]] = np.array(members)[columns]
    return best


# ---------------------------------------------------------------------- chains


def _compare_parts(parts: Iterable[_Part], test: Demonstrations | None, noun: str) -> pd.DataFrame:
    """What parts of chains say, and their decoding errors."""
    records = {
        (name, number): record | _held_out(name_by_labels(alone, test), test)
        for name, number, alone, record in parts
    }
    return _frame(records, "method", noun)


def _each_chain(posteriors: Mapping[str, Posterior]) -> Iterator[_Part]:
    """The chains of methods that have several."""
    for name, posterior in posteriors.items():
        total = total_log_likelihood(posterior)
        for chain, values in enumerate(() if total is None or len(total) < 2 else total):
            record = {"mean_log_likelihood": float(values.mean()), "sd": float(values.std())}
            yield name, chain, only_chains(posterior, [chain]), record


def _each_group(
    posteriors: Mapping[str, Posterior], modes: Mapping[str, Sequence[Mode]]
) -> Iterator[_Part]:
    """The groups of chains of methods that have several."""
    for name, own in modes.items():
        for number, mode in enumerate(own if len(own) > 1 else (), 1):
            record = {
                "chains": ", ".join(map(str, mode.chains)),
                "mean_log_likelihood": mode.log_likelihood,
                "sd": mode.sd,
            }
            yield name, number, only_chains(posteriors[name], mode.chains), record


def _each_mode(
    posteriors: Mapping[str, Posterior], weighed: Mapping[str, Sequence[WeighedMode]]
) -> Iterator[_Part]:
    """The modes of the draws, with their weights, of methods that have several."""
    for name, own in weighed.items():
        for number, mode in enumerate(own if len(own) > 1 else (), 1):
            record = {
                "weight": mode.weight,
                "weight_se": mode.weight_se,
                "crossings": mode.crossings,
                "mean_log_likelihood": mode.log_likelihood,
                "sd": mode.sd,
            }
            yield name, number, only_draws(posteriors[name], mode.draws), record


def _frame(records: Mapping[Any, Mapping[str, Any]], *names: str) -> pd.DataFrame:
    """A table of records by several keys; one without columns where there are none."""
    index = pd.MultiIndex.from_tuples(list(records), names=names)
    return pd.DataFrame(list(records.values()), index=index)


# ---------------------------------------------------------------------- notes


def _notes_on_data(
    posteriors: Mapping[str, Posterior], reference: str, measured: bool
) -> list[str]:
    demos = posteriors[reference].demos
    rows = (
        ", and their rows differ for that reason too. Rows are compared over contexts that both "
        "have seen."
    )
    return [
        f"{name} learned from {counted(posterior.demos.num_episodes, 'episode')}, {reference} "
        f"from {counted(demos.num_episodes, 'episode')}: their bounds are of different data"
        f"{rows if measured else '.'}"
        for name, posterior in posteriors.items()
        if posterior.demos != demos
    ]


def _notes_on_names(posteriors: Mapping[str, Posterior], test: Demonstrations | None) -> list[str]:
    """By which rule each agent's latents got their order."""
    own = [name for name, one in posteriors.items() if isinstance(one.model, NumpyroModel)]
    pinned = {
        name: agents_pinned(posterior.bound)
        for name, posterior in posteriors.items()
        if name not in own
    }
    notes = []
    if own:
        notes.append(
            f"{listed(own)}: by a custom NumPyro model, of which only beliefs, likelihoods "
            "and times can be compared with tables; a bound is of the evidence of its own model. "
            "Labels or the function must distinguish its mental states: they are compared as they "
            "are."
        )
    telling = [name for name, one in posteriors.items() if one.bound.measured]
    if telling and len({one.bound.measured for one in posteriors.values()}) > 1:
        notes.append(
            f"{listed(telling)}: log likelihoods are also of what was measured besides actions and "
            "labels, so that they cannot be compared with the others'."
        )
    if not pinned:
        return notes
    agents = list(next(iter(pinned.values())))
    told_apart = [a for a in agents if all(of_agent[a] for of_agent in pinned.values())]
    if told_apart:
        notes.append(
            f"Mental states of {listed(told_apart)}: labels, priors or given tables "
            "distinguish them, so they are compared as they are."
        )
    for agent in (a for a in agents if a not in told_apart):
        free = [name for name, of_agent in pinned.items() if not of_agent[agent]]
        of_methods = "" if len(free) == len(pinned) else f" in {listed(free)}"
        by_labels = (
            " For decoding errors each method gets the names that agree best with the held-out "
            "labels, which makes its errors look a little small."
            if test is not None
            else ""
        )
        notes.append(
            f"Mental states of {agent}: nothing distinguishes at least two of them{of_methods}. "
            "Those are matched to the reference's by the distance of their rows, each chain on its "
            f"own; R-hats and differences in the table are of matched rows.{by_labels}"
        )
        averaging = [n for n in free if method_of(posteriors[n].method).answer == "exact"]
        if averaging:
            notes.append(
                f"{listed(averaging)} averages over all orders of such mental states of {agent}; "
                "its rows are equal for all of them and no measure for other methods."
            )
    return notes


def _notes_on_modes(modes: Mapping[str, Sequence[Mode]]) -> list[str]:
    notes = []
    for name, own in modes.items():
        if len(own) > 1:
            groups = "; ".join(
                f"{_chains(mode)} (mean log likelihood {mode.log_likelihood:,.1f})" for mode in own
            )
            notes.append(
                f"{name}: the chains sit in different modes, or have not run long enough to meet: "
                f"{groups}. They are not averaged: the table shows {_chains(own[0])} alone. How "
                "much each weighs in the posterior cannot be estimated from the chains."
            )
    return notes


def _notes_on_weights(
    weighed: Mapping[str, Sequence[WeighedMode]], modes: Mapping[str, Sequence[Mode]]
) -> list[str]:
    """On modes between which chains go over; others are told of by `_notes_on_modes`."""
    return [
        f"{name}: {told_modes(own)}. Its draws are averaged over these modes."
        for name, own in weighed.items()
        if len(own) > 1 and len(modes[name]) == 1
    ]


def _chains(mode: Mode) -> str:
    numbers = listed([str(chain) for chain in mode.chains])
    return f"chain{'s' if len(mode.chains) > 1 else ''} {numbers}"


def _notes_on_reference(reference: str, fault: str | None) -> list[str]:
    if fault is None:
        return [f"Differences are taken from {reference}."]
    return [
        f"No differences, ratios of standard deviations or times to an accuracy: they would be "
        f"taken from {reference}, and {fault}. Let it run longer, or name another reference."
    ]


def _notes_on_convergence(
    table: pd.DataFrame,
    verdicts: Mapping[str, Convergence],
    modes: Mapping[str, Sequence[Mode]],
) -> list[str]:
    notes = []
    for name, verdict in verdicts.items():
        record: dict[Any, Any] = table.loc[name].to_dict()
        if record.get("rows_above", 0) > 0:
            why = (
                ""
                if len(modes[name]) > 1
                else " Either they have not run long enough or they sit in different modes; the "
                "means and standard deviations of those rows are not to be relied on."
            )
            notes.append(
                f"{name}: the chains disagree (R-hat of {RHAT_LIMIT} or more in a cell) about "
                f"{int(record['rows_above']):,} of {int(record['rows']):,} rows of the tables.{why}"
            )
        elif not verdict.converged:
            notes.append(f"{name} did not converge: {verdict.reason}.")
    return notes


def _notes_on_evidence(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return []
    if evidence.method == "exact":
        return [f"Log evidence {evidence.value:,.2f}, exactly."]
    told = "" if evidence.reliable else " It is not to be relied on:"
    return [
        f"Log evidence {evidence.value:,.2f} ± {evidence.se:.2f}, by "
        f"{evidence.method}.{told} {' '.join(evidence.notes)}"
    ]


def _notes_on_truth(truth: DrawnTables | None, posteriors: Mapping[str, Posterior]) -> list[str]:
    if truth is None:
        return []
    notes = [
        "Coverage is of one made-up truth, with errors as if rows were independent; `btil "
        "calibrate` looks at many."
    ]
    free = [n for n, p in posteriors.items() if not all(agents_pinned(p.bound).values())]
    if free:
        notes.append(
            f"Mental states that nothing distinguishes in {listed(free)} are named as in the truth "
            "before coverage is counted, which flatters it a little."
        )
    return notes
