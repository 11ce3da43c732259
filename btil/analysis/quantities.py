"""The columns of a comparison: what each is called, what it says, how it is written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from btil.analysis.held_out import METRICS
from btil.inference.chains import RHAT_LIMIT

# Of the errors of decoding the one that is shown first.
_FIRST_METRIC = next(iter(METRICS))
# What is measured against the reference, and means nothing unless that has converged.
MEASURED = (
    "seconds_to_accuracy",
    "mean_difference",
    "mean_difference_in_use",
    "sd_ratio",
    "sd_ratio_in_use",
    "shared_rows",
)


DECIDING = "what decides"
RUN, HELD_OUT, TABLES, EVIDENCE = "the run", "held-out data", "tables", "evidence"
"""Groups of the rows of a table: those that are shown first, and those that unfold."""


class Quantity(NamedTuple):
    """One column of the table: what it is called, what it says, how it is written.

    Attributes:
        column: Name in `Comparison.table`.
        label: Short text for a person.
        explanation: What the number means, in plain words.
        write: From a value that is there to its text.
        error: Column of its standard error, which is written behind it.
        group: Where it stands in a table.
    """

    column: str
    label: str
    explanation: str
    write: Callable[[Any], str]
    error: str | None = None
    group: str = RUN

    @property
    def columns(self) -> tuple[str, ...]:
        """Its column, and that of its standard error if it has one."""
        return (self.column,) if self.error is None else (self.column, self.error)

    def text(self, record: Mapping[str, Any]) -> str:
        """The value in a row of the table, with its error; a dash where there is none."""
        value = record[self.column]
        if value is None or (isinstance(value, float) and np.isnan(value)):
            return "–"
        if isinstance(value, float) and np.isinf(value):
            return "not yet"
        error = np.nan if self.error is None else record.get(self.error, np.nan)
        return self.write(value) + ("" if np.isnan(error) else f" ± {self.write(error)}")


def _number(digits: int) -> Callable[[Any], str]:
    return lambda value: f"{value:,.{digits}f}"


def _count(value: Any) -> str:
    return f"{int(value):,}"


_OF_FITS = (
    Quantity("episodes", "episodes", "Episodes that the method learned from.", _count),
    Quantity(
        "converged",
        "converged",
        "Whether the method met its own criterion: the bound stopped rising, or the chains "
        "agree, their mental states matched where nothing distinguishes them.",
        lambda value: "yes" if value else "NO",
        group=DECIDING,
    ),
    Quantity(
        "seconds",
        "seconds",
        "Wall-clock time of the fit; compilation included, unless done before.",
        _number(1),
        group=DECIDING,
    ),
    Quantity("reason", "reason", "Why the method stopped.", str),
    Quantity(
        "max_rhat",
        "largest R-hat of a cell",
        "How far chains disagree at worst, over the cells of all tables, the single "
        f"probabilities: 1 is perfect, {RHAT_LIMIT} and above means that they do not agree.",
        _number(3),
        group=DECIDING,
    ),
    Quantity(
        "rows_above",
        f"rows with a cell ≥ {RHAT_LIMIT}",
        "Rows of probability tables with a cell, at least one, about which the chains do not "
        "agree.",
        _count,
    ),
    Quantity("rows", "rows", "Rows of probability tables that were sampled.", _count),
    Quantity(
        "min_ess_per_second",
        "ESS/s, tables",
        "Effective sample size per second: how many independent draws the chains are worth, of "
        "the cell where it is least. Larger is better.",
        _number(2),
    ),
    Quantity(
        "min_ess_per_second_latents",
        "ESS/s, mental states",
        "The same of the probability of a mental state at a step, where it is least.",
        _number(2),
    ),
    Quantity(
        "modes",
        "groups of chains",
        "Chains that do not overlap are in different groups: they sit in different modes, or "
        "have not run long enough to meet. Where there are several they are not averaged, and "
        "what follows is of the group with the largest log likelihood.",
        _count,
    ),
)
_OF_BOUNDS = (
    Quantity(
        "elbo",
        "bound of log evidence",
        "Lower bound of the log probability of the training data under the model (exact: that "
        "probability). On the same data larger is closer.",
        _number(2),
        group=EVIDENCE,
    ),
    Quantity(
        "elbo_se",
        "its standard error",
        "Monte Carlo error of the bound where it is an estimate.",
        _number(2),
        group=EVIDENCE,
    ),
    Quantity(
        "evidence_gap",
        "gap to the log evidence",
        "The log evidence, estimated by a route of its own, minus the bound: what the bound "
        "gives away, which is how far the method's posterior is from the true one (their "
        "Kullback-Leibler divergence).",
        _number(2),
        error="evidence_gap_se",
        group=EVIDENCE,
    ),
)
_OF_PREDICTIONS = (
    Quantity(
        "log_likelihood_per_step",
        "held-out log likelihood",
        "Log probability, per step, of the actions in the held-out episodes given the states, "
        "all agents together. Larger is better.",
        _number(4),
        group=DECIDING,
    ),
)
_OF_PLAY = (
    Quantity(
        "played_steps",
        "steps when it plays",
        "Mean number of steps that the team needs for an episode of the task, acting by what "
        "the method has learned. One that is cut counts with the steps it had. Behind ± its "
        "standard error.",
        _number(1),
        error="played_steps_se",
        group=DECIDING,
    ),
    Quantity(
        "played_cut",
        "share cut when it plays",
        "Share of these episodes that were cut before the task was done. Standard error as above.",
        _number(2),
        error="played_cut_se",
        group=DECIDING,
    ),
)
_OF_DIFFERENCES = (
    Quantity(
        "mean_difference",
        "mean difference",
        "Mean absolute difference of the posterior mean probabilities from the reference "
        "method's, over all rows: most of them stay near their prior by any method.",
        _number(4),
        error="mean_difference_se",
        group=TABLES,
    ),
    Quantity(
        "mean_difference_in_use",
        "mean difference in use",
        "Mean absolute difference of the posterior mean probabilities from the reference "
        "method's, over the rows that it expects its data to have read at least once. Behind "
        "±, about how large it would be by Monte Carlo error alone.",
        _number(4),
        error="mean_difference_in_use_se",
        group=DECIDING,
    ),
    Quantity(
        "sd_ratio",
        "sd ratio",
        "The same as in use, over all rows.",
        _number(2),
        error="sd_ratio_se",
        group=TABLES,
    ),
    Quantity(
        "sd_ratio_in_use",
        "sd ratio in use",
        "Posterior standard deviation over the reference's, median over the probabilities of "
        "rows in use. Below 1: more certain than the reference. Behind ± its Monte Carlo "
        "standard error.",
        _number(2),
        error="sd_ratio_in_use_se",
        group=DECIDING,
    ),
    Quantity(
        "shared_rows",
        "rows compared",
        "Rows of probability tables that both the method and the reference have learned.",
        _count,
        group=TABLES,
    ),
)


def quantities(agents: Sequence[str], accuracy: float) -> list[Quantity]:
    """Every column that a table can have, in order.

    Args:
        agents: The agents.
        accuracy: Error that is small enough where the time to reach it is reported.
    """
    return [
        *_OF_FITS,
        _of_time(accuracy),
        *_OF_BOUNDS,
        *_OF_PREDICTIONS,
        *_of_metrics(agents),
        *_of_beliefs(agents),
        *_OF_PLAY,
        *map(_of_intervals, (50, 89)),
        *_OF_DIFFERENCES,
    ]


def _of_time(accuracy: float) -> Quantity:
    return Quantity(
        "seconds_to_accuracy",
        f"seconds to within {accuracy:g}",
        "Seconds from the start, compilation included, until the probabilities in use differ "
        f"by {accuracy:g} or less from the reference's on average, and keep to it. Chains by "
        "the mean of their draws so far; the reference by its first half of draws, measured "
        "against its second; others by where they end.",
        _number(1),
    )


def _of_metrics(agents: Sequence[str]) -> list[Quantity]:
    return [
        Quantity(
            f"{name}_{agent}",
            f"{metric.title}, {agent}",
            "As above." if position else metric.explanation,
            _number(metric.digits),
            group=DECIDING if name == _FIRST_METRIC else HELD_OUT,
        )
        for name, metric in METRICS.items()
        for position, agent in enumerate(agents)
    ]


_BELIEFS = (
    (
        "log_score",
        "log score",
        "Mean log probability of the true mental state at held-out labelled steps, knowing "
        "the whole episode, averaged over draws. Nearer to 0 is better. The standard error "
        "is that over episodes and that of the draws together.",
    ),
    (
        "surer_than_right",
        "surer than right",
        "How probable the most probable mental state is said to be, minus how often it is "
        "the true one. Above 0 is too sure. Standard error as above.",
    ),
)


def _of_beliefs(agents: Sequence[str]) -> list[Quantity]:
    return [
        Quantity(
            f"{kind}_{agent}",
            f"{title}, {agent}",
            "As above." if position else explanation,
            _number(3),
            error=f"{kind}_se_{agent}",
            group=HELD_OUT,
        )
        for kind, title, explanation in _BELIEFS
        for position, agent in enumerate(agents)
    ]


def _of_intervals(percent: int) -> Quantity:
    return Quantity(
        f"coverage_{percent}",
        f"truth in {percent}% intervals",
        f"Share of true probabilities, of rows in use, inside central {percent}% "
        f"intervals. It should be {percent / 100:g}: below it, intervals are too narrow.",
        _number(2),
        error=f"coverage_{percent}_se",
        group=TABLES,
    )
