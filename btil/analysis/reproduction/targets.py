"""What each table and figure of the paper ran, and the numbers that the paper prints."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from btil.analysis.reproduction.experiments import (
    HAMMING,
    JS,
    TEAM,
    Acting,
    DecodedMinds,
    Experiment,
    HumanDecoding,
    Imitation,
    Simulation,
)
from btil.analysis.reproduction.models import MODELS, PAPER_MODEL, RECOMMENDED
from btil.analysis.reproduction.workspace import Protocol
from btil.domains.gridworld import GRID_WORLDS
from btil.domains.overcooked import LAYOUTS

AGENTS = ("alice", "rob")
WITH, WITHOUT = "with T_x", "w/o T_x"

# The paper's amounts. Where it names none (the sizes and shares of its figure, whose picture alone
# shows them) these are ours. Kitchens: fits end at a change of the bound below 1 per sweep, as in
# docs/explanation/overcooked.md.
PAPER = Protocol(
    map="paper",
    num_train=200,
    num_test=100,
    num_labelled=20,
    max_steps=200,
    sizes=(20, 50, 100, 200),
    shares=(0.1, 0.2, 0.5, 1.0),
    domains=(*GRID_WORLDS, *LAYOUTS),
    num_trials=None,
    options={"mfvi": {"tolerance": 1.0}},
)
# Enough to see that everything runs and what the outputs look like; the numbers mean nothing.
QUICK = Protocol(
    map="tiny",
    num_train=12,
    num_test=4,
    num_labelled=4,
    max_steps=30,
    sizes=(12,),
    shares=(1 / 3, 1.0),
    domains=("movers", "cramped_room"),
    num_trials=2,
    options={
        "mfvi": {"max_iterations": 3},
        "btil": {"max_iterations": 5},
        "behavioral-cloning": {"num_iterations": 3, "hidden": (8,)},
        "magail": {
            "num_iterations": 2,
            "pretraining_iterations": 2,
            "first_iterations": 1,
            "first_discriminator_updates": 2,
            "num_runs": 2,
            "max_steps": 30,
            "hidden": (8,),
            "discriminator_hidden": (8,),
        },
        "ppo": {
            "num_iterations": 2,
            "pretraining_iterations": 2,
            "batch_size": 16,
            "num_runs": 2,
            "max_steps": 30,
            "hidden": (8,),
        },
    },
)


class Reported(NamedTuple):
    """A number of the paper, with its spread over trials where that is told."""

    mean: float
    sd: float | None = None


class Row(NamedTuple):
    """A row of a table, in one domain.

    Attributes:
        domain: What the row's columns, or the row, belong to.
        setting: The group of rows it stands in.
        algorithm: What the row is called.
        experiment: What is run; None for numbers that only the paper has.
        reported: The paper's numbers, by (agent, metric).
    """

    domain: str
    setting: str
    algorithm: str
    experiment: Experiment | None
    reported: dict[tuple[str, str], Reported]


class Layout(NamedTuple):
    """How a table of all numbers is laid out, in words of its columns.

    Attributes:
        tables: One table per value of this column; None: one table.
        rows: What a row is.
        columns: What a column is.
        panel: What a panel of the figure is.
        line: What a line of a panel is.
        color: What a colour of a panel is.
        agents: Whose numbers are shown; None: all.
    """

    tables: str | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    panel: tuple[str, ...]
    line: tuple[str, ...]
    color: str
    agents: tuple[str, ...] | None = None


class Target(NamedTuple):
    """A table or figure to be made again.

    Attributes:
        title: What it is.
        domains: Those it has.
        rows: Makes its rows, from the amounts and the domains.
        layout: How they are shown.
        source: Where the paper's numbers stand in the paper; empty if it has none.
        about: What a reader should know; amounts of the protocol are named in braces.
        comparable: Whether the paper's numbers are about the same data, so that differences mean
            something.
    """

    title: str
    domains: tuple[str, ...]
    rows: Callable[[Protocol, Sequence[str]], list[Row]]
    layout: Layout
    source: str
    about: str
    comparable: bool = True


def _reported(text: str, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Reported]:
    """Numbers written as in the paper, `0.15±0.02` or `0.15`, in the order of the keys.

    Example:
        >>> _reported("0.15±0.02", [("alice", "hamming")])
        {('alice', 'hamming'): Reported(mean=0.15, sd=0.02)}
    """
    numbers = [Reported(*map(float, re.split("±", word))) for word in text.split()]
    return dict(zip(keys, numbers, strict=True)) if numbers else {}


_ALL = [(agent, metric) for agent in AGENTS for metric in (HAMMING, JS)]

# Per row: Movers, then Cleanup; in each Alice's Hamming and JS, then Rob's.
_TABLE_1: dict[tuple[str, str], tuple[str, str]] = {
    (WITH, "Random"): (
        "0.29±0.00 0.14±0.00 0.29±0.00 0.14±0.00",
        "0.18±0.00 0.32±0.00 0.18±0.00 0.36±0.00",
    ),
    (WITH, "BC"): (
        "0.32±0.02 0.15±0.01 0.31±0.03 0.15±0.01",
        "0.06±0.01 0.22±0.03 0.03±0.02 0.17±0.03",
    ),
    (WITH, "MAGAIL"): (
        "0.30±0.03 0.21±0.02 0.31±0.03 0.24±0.01",
        "0.16±0.03 0.29±0.02 0.17±0.05 0.38±0.04",
    ),
    (WITH, "BTIL-Sup"): (
        "0.30±0.01 0.07±0.00 0.27±0.01 0.07±0.00",
        "0.09±0.02 0.20±0.01 0.04±0.01 0.19±0.00",
    ),
    (WITH, "BTIL-Semi"): (
        "0.15±0.02 0.05±0.00 0.16±0.02 0.05±0.00",
        "0.09±0.02 0.07±0.01 0.04±0.01 0.04±0.00",
    ),
    (WITHOUT, "Random"): (
        "0.72±0.00 0.14±0.00 0.77±0.00 0.14±0.00",
        "0.78±0.00 0.32±0.00 0.82±0.00 0.36±0.00",
    ),
    (WITHOUT, "BTIL-Sup"): (
        "0.31±0.01 0.07±0.00 0.35±0.01 0.07±0.00",
        "0.54±0.01 0.20±0.01 0.48±0.03 0.19±0.00",
    ),
    (WITHOUT, "BTIL-Semi"): (
        "0.30±0.01 0.04±0.00 0.33±0.01 0.04±0.00",
        "0.42±0.01 0.05±0.00 0.36±0.01 0.04±0.00",
    ),
}
_TABLE_A1: dict[str, tuple[str, str]] = {
    "BC": ("0.23 0.06 0.26 0.06", "0.01 0.04 0.00 0.03"),
    "MAGAIL": ("0.22 0.15 0.20 0.19", "0.12 0.22 0.07 0.31"),
    "BTIL": ("0.18 0.03 0.23 0.03", "0.03 0.04 0.00 0.03"),
}
_SUBOPTIMAL = {"movers": "0.49", "cleanup": "0.07"}
# Of the human who works with an AI: Movers, Cleanup.
_TABLE_2: dict[str, tuple[str, str]] = {
    "Random": ("0.72±0.00", "0.77±0.03"),
    "100% labelled": ("0.14±0.02", "0.30±0.02"),
    "50% labelled": ("0.16±0.02", "0.35±0.03"),
    "20% labelled": ("0.20±0.02", "0.42±0.02"),
}
_LEARNERS = {
    "Random": "random",
    "BC": "behavioral-cloning",
    "MAGAIL": "magail",
    "PPO, the task's reward": "ppo",
    "BTIL": "btil",
    "BTIL-Sup": "btil",
    "BTIL-Semi": "btil",
}


def _table_1(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    rows = []
    for domain in domains:
        for (setting, algorithm), texts in _TABLE_1.items():
            semi = algorithm == "BTIL-Semi"
            experiment = Imitation(
                domain,
                _LEARNERS[algorithm],
                setting == WITH,
                protocol.num_train if semi else protocol.num_labelled,
                protocol.num_labelled,
            )
            numbers = _reported(texts[GRID_WORLDS.index(domain)], _ALL)
            rows.append(Row(domain, setting, algorithm, experiment, numbers))
    return rows


def _table_a1(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    number = protocol.num_train
    return [
        Row(
            domain,
            WITH,
            algorithm,
            Imitation(domain, _LEARNERS[algorithm], True, number, number),
            _reported(texts[GRID_WORLDS.index(domain)], _ALL),
        )
        for domain in domains
        for algorithm, texts in _TABLE_A1.items()
    ]


def _supervision(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    # The tables of the paper tell some points of its figure.
    tables = _table_1(protocol, domains) + _table_a1(protocol, domains)
    known = {row.experiment: row.reported for row in tables}
    rows = []
    for domain in domains:
        for setting in (WITH, WITHOUT):
            for size in protocol.sizes:
                for share in protocol.shares:
                    labelled = round(share * size)
                    experiment = Imitation(domain, "btil", setting == WITH, size, labelled)
                    name = f"d = {size}, l = {labelled} ({share:.0%})"
                    rows.append(Row(domain, setting, name, experiment, known.get(experiment, {})))
    return rows


def _parents(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    known = {row.experiment: row.reported for row in _table_1(protocol, domains)}
    rows = []
    for domain in domains:
        for number in dict.fromkeys((max(protocol.sizes), min(protocol.sizes))):
            setting = f"d = {number}, l = {protocol.num_labelled}"
            for model, words in MODELS.items():
                experiment = Imitation(
                    domain, "btil", False, number, protocol.num_labelled, model=model
                )
                reported = known.get(experiment, {}) if model == PAPER_MODEL else {}
                rows.append(Row(domain, setting, words, experiment, reported))
    return rows


def _suboptimality(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    rows = []
    for domain in domains:
        reported = _reported(_SUBOPTIMAL[domain], [(TEAM, "suboptimal")])
        rows.append(Row(domain, "", "simulation", Simulation(domain), reported))
        for words, model in _MINDS.items():
            minds = DecodedMinds(domain, model, protocol.num_train, protocol.num_labelled)
            rows.append(Row(domain, "", words, minds, {}))
    return rows


_MINDS = {
    "test": None,
    "test, the paper's model": PAPER_MODEL,
    "test, recommended model": RECOMMENDED,
}


def _performance(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    few, all_of = protocol.num_labelled, protocol.num_train
    rows = []
    for domain in domains:

        def add(
            setting: str, words: str, learner: str, known: bool, number: int, **more: Any
        ) -> None:
            experiment = Acting(domain, learner, known, number, few, **more)  # noqa: B023
            rows.append(Row(domain, setting, words, experiment, {}))  # noqa: B023

        add("", "Demonstrators", "demonstrators", True, few)
        for learner in ("Random", "BC", "MAGAIL", "PPO, the task's reward"):
            add(WITH, learner, _LEARNERS[learner], True, few)
        recommended = {"model": RECOMMENDED}
        add(WITH, "recommended model, means", "btil", True, all_of, **recommended)
        for words, estimate in _ESTIMATES.items():
            add(WITHOUT, f"the paper's model, {words}", "btil", False, all_of, estimate=estimate)
        for words, estimate in _ESTIMATES.items():
            more = recommended | {"estimate": estimate}
            add(WITHOUT, f"recommended model, {words}", "btil", False, all_of, **more)
        more = recommended | {"beside": AGENTS[1]}
        add(WITHOUT, "recommended model, Alice with the true Rob", "btil", False, all_of, **more)
    return rows


_ESTIMATES = {"means": "mean", "modes": "map", "a draw per episode": "draw"}


def _overcooked(protocol: Protocol, domains: Sequence[str]) -> list[Row]:
    shares = dict(zip(_TABLE_2, (None, 1.0, 0.5, 0.2), strict=True))
    ours = [
        Row(layout, "people in Overcooked", algorithm, HumanDecoding(layout, share), {})
        for layout in domains
        for algorithm, share in shares.items()
    ]
    theirs = [
        Row(
            domain,
            "the paper's people with an AI",
            algorithm,
            None,
            _reported(texts[column], [(TEAM, HAMMING)]),
        )
        for column, domain in enumerate(GRID_WORLDS)
        for algorithm, texts in _TABLE_2.items()
    ]
    return ours + theirs


_BY_ALGORITHM = Layout(
    tables="domain",
    rows=("setting", "algorithm"),
    columns=("agent", "metric"),
    panel=("domain", "metric"),
    line=("setting", "algorithm"),
    color="agent",
)

_IMITATION = (
    "Per domain {num_train} training and {num_test} test episodes on the map {map!r}, simulated "
    "once: all trials share this draw, so that the spread is that of shuffles and learners alone. "
    "Of both Hamming distance (decoding) and JS divergence (policies) less is better."
)

TARGETS: dict[str, Target] = {
    "table1": Target(
        "Policies learned from simulated teamwork (Table 1)",
        GRID_WORLDS,
        _table_1,
        _BY_ALGORITHM,
        "Table 1",
        _IMITATION,
    ),
    "tableA1": Target(
        "Policies learned from 200 labelled demonstrations, T_x given (Table A-1)",
        GRID_WORLDS,
        _table_a1,
        _BY_ALGORITHM,
        "the table of its appendix on training set size",
        _IMITATION,
    ),
    "figure-supervision": Target(
        "Training set size and amount of supervision (Figure A-1)",
        GRID_WORLDS,
        _supervision,
        _BY_ALGORITHM,
        "its tables, which report a few points of its figure",
        _IMITATION + " The paper shows its training set sizes and shares in a picture only; these "
        "are ours.",
    ),
    "parents": Target(
        "What parents that matter and shared tables buy, T_x learned",
        GRID_WORLDS,
        _parents,
        _BY_ALGORITHM,
        "Table 1",
        _IMITATION + " Derived variables: who holds what, what lies about, what lies under an "
        "agent; docs/how-to/gridworlds.md names them.",
    ),
    "suboptimality": Target(
        "Share of suboptimal steps in the simulated data, as it is and as it is decoded",
        GRID_WORLDS,
        _suboptimality,
        Layout(
            None,
            ("domain", "algorithm"),
            ("metric",),
            ("metric",),
            ("domain", "algorithm"),
            "agent",
        ),
        '"Data of Multi-agent Teamwork"',
        "A trial is a draw of {num_train} episodes on the map {map!r}; the first is the training "
        "data of the other tables. The paper's share is that of its one draw, presumably the mean "
        "over episodes. Test: the {num_test} test episodes of the other tables, as their labels "
        "are, and as they are decoded by models that were learned, with T_x, from {num_train} of "
        "which {num_labelled} are labelled.",
    ),
    "performance": Target(
        "Learned teams at work",
        GRID_WORLDS,
        _performance,
        Layout(
            "domain",
            ("setting", "algorithm"),
            ("metric",),
            ("domain", "metric"),
            ("setting", "algorithm"),
            "agent",
            (TEAM,),
        ),
        "",
        "A trial draws {num_train} episodes of the true team on the map {map!r}, the first "
        "{num_labelled} of them with labels, and lets the team learned from them (Random, BC, "
        "MAGAIL and PPO: from the labelled ones) do the task {num_test} times, at most {max_steps} "
        "steps each. PPO learns from the task's rewards, which the others are not told. A team "
        "that acts in several ways is learned once: the seconds of the other rows are those of "
        "acting. Misaligned: steps at which the minds of demonstrators would be called "
        "suboptimal.",
        comparable=False,
    ),
    "table2-overcooked": Target(
        "Decoding what people had in mind (in place of Table 2)",
        LAYOUTS,
        _overcooked,
        Layout(
            None,
            ("setting", "domain"),
            ("algorithm",),
            ("metric",),
            ("setting", "domain"),
            "algorithm",
            (TEAM,),
        ),
        "Table 2, whose recordings of people with an AI teammate are not public",
        "Mean error of both players on the test trials, with the recommended model and mfvi; "
        "Random guesses every step uniformly. Ours and the paper's are about different people and "
        "tasks: they stand side by side, and no difference is marked.",
        comparable=False,
    ),
}


def target_named(name: str) -> Target:
    """A target by its name.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]


def target_rows(
    name: str,
    protocol: Protocol,
    domains: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
) -> list[Row]:
    """The rows of a target, or those of some domains and methods.

    Args:
        name: The target.
        protocol: How much of everything.
        domains: Some of its grid worlds or kitchens; None: those of the protocol.
        methods: Some of its learners; None: all.

    Raises:
        ValueError: If a target, domain or method is unknown; the known ones are told.

    Example:
        >>> rows = target_rows("table1", PAPER, ["movers"], ["random"])
        >>> [(row.setting, row.reported["rob", "hamming"].mean) for row in rows]
        [('with T_x', 0.29), ('w/o T_x', 0.77)]
    """
    target = target_named(name)
    if domains is None:
        domains = [domain for domain in target.domains if domain in protocol.domains]
    chosen = _chosen("domain", domains, target.domains, name)
    rows = target.rows(protocol, chosen)
    known = tuple(dict.fromkeys(row.experiment.method for row in rows if row.experiment))
    kept = _chosen("method", methods, known, name)
    return [row for row in rows if row.experiment is None or row.experiment.method in kept]


def _chosen(
    what: str, wanted: Sequence[str] | None, known: tuple[str, ...], target: str
) -> tuple[str, ...]:
    if wanted is None:
        return known
    for name in wanted:
        if name not in known:
            raise ValueError(f"{target} has no {what} {name!r}; it has {', '.join(known)}")
    return tuple(name for name in known if name in wanted)
