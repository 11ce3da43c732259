"""`btil.compare`: several inference methods on the same demonstrations, side by side."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.alignment import (
    agents_with_common_latents,
    align,
    interchangeable_latents,
    latents_pinned,
    rename_latents,
    shared_contexts,
)
from btil.analysis.metrics import confusion_matrix, hamming_distance, most_probable
from btil.analysis.plots import expected_visits
from btil.arguments import check_options
from btil.demonstrations import Demonstrations
from btil.inference.chains import RHAT_LIMIT
from btil.inference.fit import METHODS, fit, method_options
from btil.inference.posterior import TeamPosterior, conform
from btil.inference.result import DrawnRows
from btil.models.team import TeamModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.table import Table

_DEFAULT_REFERENCES = ("exact", "nuts", "gibbs")
# Names become file names of the report.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Chains whose mean log likelihoods are further apart than this many standard deviations within
# a chain explore different modes rather than one.
_MODE_DISTANCE = 3.0
# A standard deviation below this is rounding, the cell is known.
_NO_SD = 1e-7


class Quantity(NamedTuple):
    """One column of the table: what it is called, what it says, how it is written.

    Attributes:
        column: Name in `Comparison.table`.
        label: Short text for a person.
        explanation: What the number means, in plain words.
        write: From a value that is there to its text.
    """

    column: str
    label: str
    explanation: str
    write: Callable[[Any], str]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several methods make of the same demonstrations.

    Attributes:
        posteriors: {name: posterior}, in the order asked for.
        table: One row per name; `quantities` explains the columns. Values that a method does not
            have (a bound, an R-hat) are missing.
        chains: Per method with several chains and per chain: mean log likelihood of the training
            data and, with test data, decoding errors. Empty where there are no chains.
        notes: Sentences on how the numbers came about and what to be careful with.
        reference: The name of the method that differences are taken from.
        test: Held-out demonstrations, or None.
        aligned: The posteriors with latents that nothing tells apart in the reference's order:
            differences are between these.
        named: The posteriors with such latents named after the labels of the test data where it
            has some: decoding errors are of these.
    """

    posteriors: dict[str, TeamPosterior]
    table: "pd.DataFrame"
    chains: "pd.DataFrame"
    notes: tuple[str, ...]
    reference: str
    test: Demonstrations | None
    aligned: dict[str, TeamPosterior]
    named: dict[str, TeamPosterior]

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.posteriors)}; reference {self.reference})"

    @property
    def demos(self) -> Demonstrations:
        """The demonstrations that the reference was learned from."""
        return self.posteriors[self.reference].demos

    @property
    def model(self) -> TeamModel:
        """The model."""
        return self.posteriors[self.reference].model

    # ------------------------------------------------------------------ tables

    def quantities(self) -> list[Quantity]:
        """The columns of the table that hold something, with their explanations."""
        return [q for q in _quantities(self.demos.agents) if q.column in self.table]

    def written(self, quantity: Quantity, name: str) -> str:
        """A value of the table as text; a dash where the method has none."""
        value = self.table.loc[name, quantity.column]
        missing = value is None or (isinstance(value, float) and np.isnan(value))
        return "–" if missing else quantity.write(value)

    def summary_table(self) -> "Table":
        """The table for a terminal of 100 columns: a line per quantity, a column per method."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=None, pad_edge=False)
        table.add_column("")
        for name in self.posteriors:
            table.add_column(Text(name), justify="right")
        for quantity in self.quantities():
            if quantity.column != "reason":
                written = (Text(self.written(quantity, name)) for name in self.posteriors)
                table.add_row(Text(quantity.label), *written)
        return table

    # ------------------------------------------------------------------ pictures

    def plot_method_against_method(self) -> "Figure":
        """Posterior means with intervals, every method against the reference."""
        from btil.analysis.plots import plot_method_against_method

        return plot_method_against_method(*self._reference_and_others())

    def plot_sd_ratios(self) -> "Figure":
        """Posterior standard deviations over those of the reference."""
        from btil.analysis.plots import plot_sd_ratios

        return plot_sd_ratios(*self._reference_and_others())

    def plot_elbo_traces(self) -> "Figure":
        """The bound over the sweeps of the methods that have one."""
        from btil.analysis.plots import plot_elbo_traces

        return plot_elbo_traces(self.posteriors)

    def plot_timeline(self, agent: str, name: str | None = None, episode: int = 0) -> "Figure":
        """What one method believes of an agent's latents over a held-out episode.

        Args:
            agent: The agent.
            name: The method; None: the first.
            episode: Position of the episode in the test data (without any, the training data).
        """
        from btil.analysis.plots import plot_timeline

        return plot_timeline(self._posterior(name), self._shown(), episode, agent)

    def plot_confusion(self, agent: str, name: str | None = None) -> "Figure":
        """Decoded against true latents of an agent on the test data; arguments as above."""
        from btil.analysis.plots import plot_confusion

        shown = self._shown()
        decoded = self._posterior(name).decode(shown.without_labels())
        return plot_confusion(shown, decoded, agent)

    def report(self, directory: Any, command: str | None = None) -> Path:
        """Write the report: one self-contained page, its figures, table and posteriors.

        Args:
            directory: A folder, made if it is not there. An earlier report in it is replaced.
            command: The shell command that made the comparison, to be told in the report.

        Returns:
            Path of the page.

        Raises:
            OSError: If the folder cannot be written to.
        """
        from btil.analysis.report import write_report

        return write_report(self, directory, command)

    def _reference_and_others(self) -> tuple[TeamPosterior, dict[str, TeamPosterior]]:
        others = {n: p for n, p in self.aligned.items() if n != self.reference}
        return self.aligned[self.reference], others

    def _posterior(self, name: str | None) -> TeamPosterior:
        chosen = next(iter(self.posteriors)) if name is None else name
        if chosen not in self.posteriors:
            raise ValueError(f"no method {chosen!r}; there are {', '.join(self.posteriors)}")
        return self.named[chosen]

    def _shown(self) -> Demonstrations:
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
) -> Comparison:
    """Fit the same model by several methods and set their answers side by side.

    Rows of tables are compared context by context, over the contexts that both methods have seen,
    after matching the latents where nothing pins their order.

    Args:
        model: What is believed before.
        demos: What was seen.
        methods: Names of methods, or {name: method} to fit one method several times.
        test: Held-out episodes. Their labels are dropped before anything is predicted, and only
            used to count errors.
        seed: The seed of every fit.
        progress: Whether to show progress lines.
        reference: The name that differences are taken from. None: "exact" (where latents are told
            apart), "nuts" or "gibbs", the first of them that sees all of `demos`, else the first
            name.
        options: {name: options of `btil.fit`}.
        demos_by_method: {name: demonstrations} for methods that are to see other episodes, say
            fewer because they are slow.

    Returns:
        The comparison.

    Raises:
        ValueError: If a name is unknown or unfit for a file name, or the data do not fit; before
            any fit begins.
        TypeError: If a method has no such option.

    Example:
        >>> comparison = btil.compare(model, demos, ("mfvi", "gibbs"), test)  # doctest: +SKIP
        >>> comparison.report("report")  # doctest: +SKIP
    """
    if isinstance(methods, str):
        raise ValueError(f"methods must be several names, such as ({methods!r},)")
    chosen = dict(methods) if isinstance(methods, Mapping) else {name: name for name in methods}
    options = {name: dict(given) for name, given in (options or {}).items()}
    others = dict(demos_by_method or {})
    _check(chosen, len(methods), options, others, reference)
    seen = {name: others.get(name, demos) for name in chosen}
    for training in others.values():
        conform(training, demos)
    if test is not None:
        test = conform(test, demos)
    if reference is None:
        whole = [name for name in chosen if seen[name] is demos]
        # Without labels the exact answer averages over all orders of the latents.
        told_apart = all(latents_pinned(model, demos).values())
        preferred = _DEFAULT_REFERENCES if told_apart else _DEFAULT_REFERENCES[1:]
        candidates = [n for method in preferred for n in whole if chosen[n] == method]
        reference = next(iter([*candidates, *chosen]))
    posteriors = {
        name: fit(model, seen[name], method, seed=seed, progress=progress, **options.get(name, {}))
        for name, method in chosen.items()
    }
    return compare_posteriors(posteriors, test, reference)


def _check(
    chosen: Mapping[str, str],
    num_asked: int,
    options: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, Any],
    reference: str | None,
) -> None:
    """Refuse what `compare` cannot do, before it does anything."""
    if not chosen:
        raise ValueError("methods: name at least one")
    if len(chosen) < num_asked:
        raise ValueError("methods: a method is named twice; give a mapping {name: method}")
    for name, method in chosen.items():
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"methods: {name!r} is no name for files; use letters, digits, '.', '_' and '-'"
            )
    for argument, given in (("options", options), ("demos_by_method", others)):
        unknown = sorted(set(given) - set(chosen))
        if unknown:
            raise ValueError(
                f"{argument}: no method {', '.join(unknown)}; compared are {', '.join(chosen)}"
            )
    if reference is not None and reference not in chosen:
        raise ValueError(f"reference: {reference!r} is not among {', '.join(chosen)}")
    for name, given in options.items():
        allowed = sorted({"dtype", *method_options(chosen[name])})
        check_options(f"options: {chosen[name]}", given, allowed)


def compare_posteriors(
    posteriors: Mapping[str, TeamPosterior],
    test: Demonstrations | None = None,
    reference: str | None = None,
) -> Comparison:
    """Set posteriors that are there already side by side, as `compare` does.

    Args:
        posteriors: {name: posterior} of the same team under the same model.
        test: Held-out episodes.
        reference: The name that differences are taken from; None: the first.

    Returns:
        The comparison.

    Raises:
        ValueError: If the test data do not fit, or a tables' shape differs between posteriors.
    """
    import pandas as pd

    posteriors = dict(posteriors)
    reference = next(iter(posteriors)) if reference is None else reference
    if reference not in posteriors:
        raise ValueError(f"reference: {reference!r} is not among {', '.join(posteriors)}")
    # Chains may differ in names: a reference's are put in the order of its first.
    anchor = align(posteriors[reference], _chain(posteriors[reference], 0))
    aligned = {
        name: anchor if name == reference else align(posterior, anchor)
        for name, posterior in posteriors.items()
    }
    named = {name: name_by_labels(posterior, test) for name, posterior in aligned.items()}
    records = {
        name: _fit_record(posterior, aligned[name])
        | _held_out(named[name], test)
        | compare_rows(aligned[name], anchor)._asdict()
        for name, posterior in posteriors.items()
    }
    table = pd.DataFrame.from_dict(records, orient="index").rename_axis("method")
    quantities = _quantities(anchor.demos.agents)
    table = table[[quantity.column for quantity in quantities if quantity.column in table]]
    chains, notes_on_modes = _compare_chains(aligned, test)
    return Comparison(
        posteriors=posteriors,
        table=table.dropna(axis="columns", how="all"),
        chains=chains,
        notes=(
            f"Differences are taken from {reference}.",
            *_notes_on_data(posteriors, reference),
            *_notes_on_names(posteriors, test),
            *_notes_on_convergence(table),
            *notes_on_modes,
        ),
        reference=reference,
        test=test,
        aligned=aligned,
        named=named,
    )


# ---------------------------------------------------------------------- one method


def _fit_record(posterior: TeamPosterior, aligned: TeamPosterior) -> dict[str, Any]:
    """What a fit says of itself, and how well its chains agree once their latents are matched."""
    record: dict[str, Any] = {
        "episodes": posterior.demos.num_episodes,
        "seconds": posterior.wall_time,
        "converged": posterior.converged,
        "reason": posterior.reason,
        "elbo": posterior.elbo,
        "elbo_se": posterior.elbo_se,
    }
    info = aligned.draws_info
    if info is not None:
        record["max_rhat"] = info["max_rhat"].max()
        record["rows"] = int(info["rows"].sum())
        record["rows_above"] = int(info["rows_above"].sum())
        record["min_ess_per_second"] = info["min_ess_bulk"].min() / posterior.wall_time
    return record


def _held_out(posterior: TeamPosterior, test: Demonstrations | None) -> dict[str, float]:
    """Predictions of episodes without their labels, and the errors of decoding them."""
    if test is None:
        return {}
    unlabelled = test.without_labels()
    log_likelihood = posterior.log_likelihood(unlabelled)
    record = {"log_likelihood_per_step": float(log_likelihood.sum()) / test.num_steps}
    decoded = {
        "viterbi": posterior.decode(unlabelled),
        "filtering": most_probable(unlabelled, posterior.filter(unlabelled)),
    }
    for kind, latents in decoded.items():
        errors = hamming_distance(test, latents)
        record |= {f"{kind}_error_{a}": float(e) for a, e in zip(test.agents, errors, strict=True)}
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
        mean_difference_in_use: The same over rows in use.
        sd_ratio: Median over cells of sd / reference's sd; cells that the reference knows exactly
            are left out.
        sd_ratio_in_use: The same over rows in use.
    """

    shared_rows: int
    mean_difference: float
    mean_difference_in_use: float
    sd_ratio: float
    sd_ratio_in_use: float


def compare_rows(posterior: TeamPosterior, reference: TeamPosterior) -> RowDifference:
    """Compare means and standard deviations over the contexts that both have visited."""
    num_rows = 0
    tables = [np.zeros((4, 0))]
    visits = expected_visits(reference)
    for site, rows in posterior.result.rows.items():
        if site not in reference.result.rows:
            continue
        ours, theirs = shared_contexts(posterior, reference, site)
        other = reference.result.rows[site]
        difference = np.abs(rows.mean()[ours] - other.mean()[theirs])
        read = np.broadcast_to(visits[site][theirs][..., None], difference.shape)
        cells = (difference, rows.sd()[ours], other.sd()[theirs], read)
        tables.append(np.stack([values.ravel() for values in cells]))
        num_rows += math.prod(difference.shape[:-1])
    difference, sd, reference_sd, read = np.concatenate(tables, axis=1)
    uncertain, in_use = reference_sd > _NO_SD, read >= 1
    ratio = np.divide(sd, reference_sd, where=uncertain, out=np.full_like(sd, np.nan))
    return RowDifference(
        num_rows,
        _average(np.mean, difference),
        _average(np.mean, difference[in_use]),
        _average(np.median, ratio[uncertain]),
        _average(np.median, ratio[in_use & uncertain]),
    )


def _average(function: Callable[..., Any], values: Float[np.ndarray, " cells"]) -> float:
    """NaN, without a warning, where there is nothing to average."""
    return float(function(values)) if len(values) else np.nan


def name_by_labels(posterior: TeamPosterior, test: Demonstrations | None) -> TeamPosterior:
    """The posterior with latents that nothing told apart named as they are best decoded.

    Of all namings the one under which most labelled steps of the test data are decoded rightly.
    Latents that labels, priors or given tables tell apart keep their names.
    """
    classes = interchangeable_latents(posterior.model, posterior.demos)
    free = [agent for agent, own in classes.items() if any(len(members) > 1 for members in own)]
    if test is None or not free:
        return posterior
    decoded = posterior.decode(test.without_labels())
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


def _chain(posterior: TeamPosterior, chain: int) -> TeamPosterior:
    """The posterior by one of its chains alone; itself where it has none."""
    rows = {
        name: DrawnRows(one.draws[chain : chain + 1]) if isinstance(one, DrawnRows) else one
        for name, one in posterior.result.rows.items()
    }
    return dataclasses.replace(posterior, result=posterior.result._replace(rows=rows))


def _compare_chains(
    posteriors: Mapping[str, TeamPosterior], test: Demonstrations | None
) -> tuple["pd.DataFrame", list[str]]:
    """Log likelihood and decoding errors of each chain, and what they say of modes."""
    import pandas as pd

    records: dict[tuple[str, int], dict[str, float]] = {}
    notes = []
    for name, posterior in posteriors.items():
        log_likelihood = posterior.result.log_likelihood
        if posterior.draws_info is None or log_likelihood is None or len(log_likelihood) < 2:
            continue
        total = log_likelihood.sum(-1, dtype=np.float64)
        for chain, values in enumerate(total):
            record = {"mean_log_likelihood": float(values.mean()), "sd": float(values.std())}
            held_out = _held_out(name_by_labels(_chain(posterior, chain), test), test)
            records[name, chain] = record | held_out
        means, spread = total.mean(1), float(np.median(total.std(1)))
        apart = float(np.ptp(means))
        if apart > _MODE_DISTANCE * spread:
            notes.append(
                f"{name}: the chains sit in different modes. Their mean log likelihoods lie "
                f"{apart:,.1f} apart, while a chain moves by {spread:,.1f} (standard deviation); "
                "averages over chains mix these modes, see the table of chains."
            )
    index = pd.MultiIndex.from_tuples(list(records), names=["method", "chain"])
    return pd.DataFrame(list(records.values()), index=index), notes


# ---------------------------------------------------------------------- notes


def _notes_on_data(posteriors: Mapping[str, TeamPosterior], reference: str) -> list[str]:
    demos = posteriors[reference].demos
    return [
        f"{name} learned from {counted(posterior.demos.num_episodes, 'episode')}, {reference} "
        f"from {counted(demos.num_episodes, 'episode')}: their bounds are of different data, and "
        "their rows differ for that reason too. Rows are compared over contexts that both have "
        "seen."
        for name, posterior in posteriors.items()
        if posterior.demos != demos
    ]


def _notes_on_names(
    posteriors: Mapping[str, TeamPosterior], test: Demonstrations | None
) -> list[str]:
    """By which rule each agent's latents got their order."""
    pinned = {
        name: latents_pinned(posterior.model, posterior.demos)
        for name, posterior in posteriors.items()
    }
    notes = []
    agents = list(next(iter(pinned.values())))
    told_apart = [a for a in agents if all(of_agent[a] for of_agent in pinned.values())]
    if told_apart:
        notes.append(
            f"Mental states of {listed(told_apart)}: labels, priors or given tables tell them "
            "apart, so they are compared as they are."
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
            f"Mental states of {agent}: nothing tells at least two of them apart{of_methods}. "
            "Those are matched to the reference's by the distance of their rows, each chain on its "
            f"own; R-hats and differences in the table are of matched rows.{by_labels}"
        )
        averaging = [n for n in free if posteriors[n].method == "exact"]
        if averaging:
            notes.append(
                f"{listed(averaging)} averages over all orders of such mental states of {agent}; "
                "its rows are equal for all of them and no measure for other methods."
            )
    return notes


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _notes_on_convergence(table: "pd.DataFrame") -> list[str]:
    notes = []
    for name, record in table.iterrows():
        if record.get("rows_above", 0) > 0:
            notes.append(
                f"{name}: the chains disagree (R-hat of {RHAT_LIMIT} or more) about "
                f"{int(record['rows_above']):,} of {int(record['rows']):,} rows of the tables. "
                "Either they have not run long enough or they sit in different modes; the means "
                "and standard deviations of those rows are not to be relied on."
            )
        elif not record["converged"]:
            notes.append(f"{name} did not converge: {record['reason']}.")
    return notes


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 episode", "2 episodes"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------- columns


def _quantities(agents: Sequence[str]) -> list[Quantity]:
    """Every column that a table can have, in order."""

    def number(digits: int) -> Callable[[Any], str]:
        return lambda value: f"{value:,.{digits}f}"

    def count(value: Any) -> str:
        return f"{int(value):,}"

    errors = [
        Quantity(
            f"{kind}_error_{agent}",
            f"{title} error, {agent}",
            "As above." if position else explanation,
            number(3),
        )
        for kind, title, explanation in (
            (
                "viterbi",
                "Viterbi",
                "Share of held-out steps whose mental state is decoded wrongly, knowing the whole "
                "episode but no labels (mean over episodes). Smaller is better.",
            ),
            (
                "filtering",
                "filtering",
                "The same, knowing at each step only the episode so far: what a live assistant "
                "could do. Smaller is better.",
            ),
        )
        for position, agent in enumerate(agents)
    ]
    return [
        Quantity("episodes", "episodes", "Episodes that the method learned from.", count),
        Quantity(
            "seconds", "seconds", "Wall-clock time of the fit, compilation included.", number(1)
        ),
        Quantity(
            "converged",
            "converged",
            "Whether the method met its own criterion: the bound stopped rising, or the chains "
            "agree.",
            lambda value: "yes" if value else "NO",
        ),
        Quantity("reason", "reason", "Why the method stopped.", str),
        Quantity(
            "max_rhat",
            "largest R-hat",
            f"How far chains disagree at worst: 1 is perfect, {RHAT_LIMIT} and above means that "
            "they do not agree.",
            number(3),
        ),
        Quantity(
            "rows_above",
            f"rows with R-hat ≥ {RHAT_LIMIT}",
            "Rows of probability tables about which the chains do not agree.",
            count,
        ),
        Quantity("rows", "rows", "Rows of probability tables that were sampled.", count),
        Quantity(
            "min_ess_per_second",
            "min ESS per second",
            "Independent draws that the chains are worth each second, of the cell where it is "
            "least. Larger is better.",
            number(2),
        ),
        Quantity(
            "elbo",
            "bound of log evidence",
            "Lower bound of the log probability of the training data under the model (exact: that "
            "probability). On the same data larger is closer.",
            number(2),
        ),
        Quantity(
            "elbo_se",
            "its standard error",
            "Monte Carlo error of the bound where it is an estimate.",
            number(2),
        ),
        Quantity(
            "log_likelihood_per_step",
            "held-out log likelihood",
            "Log probability, per step, of the actions in the held-out episodes given the states, "
            "all agents together. Larger is better.",
            number(4),
        ),
        *errors,
        Quantity(
            "mean_difference",
            "mean difference",
            "Mean absolute difference of the posterior mean probabilities from the reference "
            "method's.",
            number(4),
        ),
        Quantity(
            "mean_difference_in_use",
            "… of rows in use",
            "The same over the rows that the reference expects its data to have read at least "
            "once. All others stay near their prior by any method.",
            number(4),
        ),
        Quantity(
            "sd_ratio",
            "sd ratio",
            "Posterior standard deviation over the reference's, median over all probabilities. "
            "Below 1: more certain than the reference.",
            number(2),
        ),
        Quantity(
            "sd_ratio_in_use",
            "… of rows in use",
            "The same over the rows in use.",
            number(2),
        ),
        Quantity(
            "shared_rows",
            "rows compared",
            "Rows of probability tables that both the method and the reference have learned.",
            count,
        ),
    ]
