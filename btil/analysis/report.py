"""The report of a comparison: one page that holds all it shows, and the files beside it."""

import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from btil.analysis.calibration.ranks import INTERVALS
from btil.analysis.metrics import majority_class_error
from btil.analysis.output import (
    HtmlCell,
    PagePart,
    html,
    html_list,
    html_page,
    html_sections,
    html_table,
    staged_page,
    written_figure,
)
from btil.analysis.quantities import DECIDING
from btil.analysis.saved_comparison import save_comparison
from btil.analysis.words import listed, with_error
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import counted
from btil.files import make_folder
from btil.inference.chains import RHAT_LIMIT
from btil.inference.method import method_of
from btil.models.cpt import ROLES, DirichletCPT, StickyDirichletCPT
from btil.models.parametric import parametric_site
from btil.models.team import BoundModel, Table, TeamModel, make_contexts
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, NumpyroModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from btil.analysis.compare import Comparison

PAGE = "report.html"
# The files of the last report, so that the next one replaces those and nothing else.
_LIST = "files.txt"
_LIBRARIES = ("jax", "numpyro", "arviz", "numpy")

_DIAGNOSTICS = {
    "constant_cells": "cells that never vary",
    "max_rhat": "largest R-hat of a cell",
    "rows_above": f"rows with a cell ≥ {RHAT_LIMIT}",
    "min_ess_bulk": "least ESS of a cell, bulk",
    "min_ess_tail": "least ESS of a cell, tails",
}
_ROLES = {
    "policy": "policies",
    "transition": "transitions",
    "initial": "initial distributions",
    "all": "all",
}
_SCORES = {
    "log_score": "log score",
    "brier": "Brier score",
    "sureness": "sureness",
    "right": "right",
    "surer_than_right": "surer than right",
}


# Ratios nearer to 1 than this are not worth a word.
_ABOUT_EQUAL = 0.05
_DECODED = "Decoded mental states: sure, and right"


class Picture(NamedTuple):
    """A figure of the report.

    Attributes:
        name: Its file name without ending.
        section: The heading it stands under.
        figure: The drawing.
        caption: What it shows and how to read it, in plain words.
    """

    name: str
    section: str
    figure: "Figure"
    caption: str


def prepare_directory(path: Any) -> Path:
    """Make the folder of a report, or say at once why that cannot be.

    Call it before a long computation whose report goes there.

    Args:
        path: The folder; it and the folders above it are made where they are missing.

    Returns:
        The folder.

    Raises:
        NotADirectoryError: If the path, or something above it, is a file.
        PermissionError: If nothing can be written there.
    """
    directory = Path(path)
    try:
        make_folder(directory)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{directory}: not a folder; a report needs one") from None
    except OSError as error:
        raise PermissionError(f"{directory}: cannot make this folder: {error.strerror}") from error
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise PermissionError(f"{directory}: cannot write there: {error.strerror}") from error
    return directory


def write_report(
    comparison: "Comparison",
    directory: Any,
    command: str | None = None,
    suggestion: PagePart | None = None,
) -> Path:
    """Write `report.html`, `figures/`, its tables, and what its numbers come from to a folder.

    `btil.analysis.load_comparison` has the comparison again from there.

    Everything is first written to a folder of its own and moved when it is complete, the page
    last; files of an earlier report there are replaced, other files stay.

    Args:
        comparison: What to tell.
        directory: The folder; made if it is not there.
        command: The shell command that made the comparison, to be told in the page.
        suggestion: Where the model is from, if `suggest_model` found it.

    Returns:
        Path of the page.

    Raises:
        OSError: If the folder cannot be written to.
    """
    directory = prepare_directory(directory)
    with staged_page(directory, PAGE, _LIST) as staging:
        (staging / "figures").mkdir()
        shown: dict[str, Markup] = {}
        for pictures in PICTURES:
            for name, section, figure, caption in pictures(comparison):
                drawn = written_figure(figure, staging / "figures" / name, caption)
                shown[section] = shown.get(section, Markup()) + drawn
        comparison.table.to_csv(staging / "table.csv")
        for name in ("chains", "modes", "weights", "decoded", "coverage"):
            table = getattr(comparison, name)
            if len(table):
                table.to_csv(staging / f"{name}.csv")
        if comparison.reliabilities:
            comparison.reliability_table().to_csv(staging / "reliability.csv", index=False)
        save_comparison(comparison, staging)
        page = _page(comparison, shown, command, suggestion)
        (staging / PAGE).write_text(page, encoding="utf-8")
    return directory / PAGE


# ---------------------------------------------------------------------- figures


def _methods(comparison: "Comparison") -> Iterator[Picture]:
    """The methods side by side."""
    reference = comparison.reference
    if comparison.others:
        yield Picture(
            "method_against_method",
            "Methods side by side",
            comparison.plot_method_against_method(),
            "Every point is one probability of the rows in use: its posterior mean by a method "
            f"(upright) against its mean by {reference} (across), with 89% intervals. On the "
            "diagonal the two agree.",
        )
        yield Picture(
            "sd_ratios",
            "Methods side by side",
            comparison.plot_sd_ratios(),
            "How certain each method is: posterior standard deviations of the probabilities over "
            f"those by {reference}. Points are medians, bars the middle half, lines 90% of the "
            f"probabilities. Left of 1 a method is more certain than {reference}, right of it "
            f"less. {_certainty(comparison)}",
        )


def _optimisation(comparison: "Comparison") -> Iterator[Picture]:
    """The bounds of optimisation."""
    if any(p.elbo_trace is not None for p in comparison.posteriors.values()):
        yield Picture(
            "bounds",
            "Optimisation",
            comparison.plot_elbo_traces(),
            "The lower bound of the log evidence as optimisation goes on. It has converged where "
            f"the line is flat{_noisy(comparison)}.",
        )


def _times(comparison: "Comparison") -> Iterator[Picture]:
    """How near each method comes, and when."""
    if comparison.courses:
        yield Picture(
            "courses",
            "Time",
            comparison.plot_courses(),
            "How near each method is to the reference as time goes on: mean difference of the "
            "probabilities in use, against seconds since the start of its fit. Lower left is "
            "better; dashed is the accuracy asked for.",
        )


def _chains(comparison: "Comparison") -> Iterator[Picture]:
    """The chains of every method that has some."""
    from btil.analysis import plots

    kinds = {
        "trace": (
            plots.plot_trace,
            "density and draws, in order, of a few probabilities, a colour per chain: those whose "
            "chains agree least and those that matter most. Chains that agree look like one band "
            "of noise.",
        ),
        "rank": (
            plots.plot_rank,
            "ranks of each chain's draws among all. Chains that agree stay near zero, those that "
            "do not leave it in a wave.",
        ),
        "forest": (
            plots.plot_forest,
            "intervals of a few probabilities, one for each chain. Those of one row should "
            "overlap.",
        ),
        "ess": (
            plots.plot_ess,
            "effective sample size, how many independent draws the chains are worth, for each "
            "part of a probability's range.",
        ),
    }
    for name, posterior in comparison.aligned.items():
        info = posterior.draws_info
        sampled = method_of(posterior.method).answer == "chains"
        if sampled and info is not None and info["min_ess_bulk"].notna().any():
            rows = plots.choose_rows(posterior) or None
            likelihood = posterior.result.log_likelihood
            alone = likelihood is not None and len(likelihood) < 2
            for kind, (plot, caption) in kinds.items():
                if kind == "rank" and alone:  # there is none to rank it among
                    continue
                caption = f"{name}: {caption}"
                yield Picture(f"{kind}_{name}", "Chains", plot(posterior, rows), caption)


def _timelines(comparison: "Comparison") -> Iterator[Picture]:
    """One episode of each member."""
    shown, source = comparison.shown, _source(comparison)
    first = next(iter(comparison.posteriors))
    for position, agent in enumerate(comparison.demos.agents, 1):
        yield Picture(
            f"timeline_agent_{position}",
            "One episode, step by step",
            comparison.plot_timeline(agent),
            f"What {first} believes {agent} had in mind in {source} episode "
            f"{shown.episode_ids[0]}, without seeing labels: the brighter, the more probable. "
            "White bars are the true mental states where they are known, blue ones the most "
            "probable path, red ones where that is wrong.",
        )


def _reliability(comparison: "Comparison") -> Iterator[Picture]:
    """How sure, and how often right."""
    if comparison.reliabilities:
        yield Picture(
            "reliability",
            _DECODED,
            comparison.plot_reliability(),
            "Are steps said to be 80% sure right 80% of the time? Points on the line are; below "
            "it a method is too sure. Bars are 95% intervals that allow for steps of one episode "
            "being right or wrong together. Underneath, how many steps are how sure: the further "
            "to the right, the sharper.",
        )


def _confusions(comparison: "Comparison") -> Iterator[Picture]:
    """What was decoded, beside what was true."""
    shown, source = comparison.shown, _source(comparison)
    first = next(iter(comparison.posteriors))
    for position, agent in enumerate(comparison.demos.agents, 1):
        if (shown.latents[:, position - 1] >= 0).any():
            yield Picture(
                f"confusion_agent_{position}",
                "Decoded against true",
                comparison.plot_confusion(agent),
                f"Where {first} errs about {agent} in the {source} episodes: steps of each true "
                "mental state (row) by the one decoded (column). All on the diagonal would be "
                "perfect.",
            )


# What a page shows, in order. A new figure is a function that gives its pictures, and a line here.
PICTURES: list[Callable[["Comparison"], Iterator[Picture]]] = [
    _methods,
    _optimisation,
    _times,
    _chains,
    _timelines,
    _reliability,
    _confusions,
]


def _source(comparison: "Comparison") -> str:
    """What kind of episodes are shown."""
    return "training" if comparison.test is None else "held-out"


def _certainty(comparison: "Comparison") -> str:
    """What standard deviations say about each method, in a sentence or two."""
    said = []
    for name in comparison.others:
        record: dict[Any, Any] = comparison.table.loc[name].to_dict()
        ratio = record.get("sd_ratio_in_use", np.nan)
        if np.isnan(ratio):
            continue
        error = np.nan_to_num(record.get("sd_ratio_in_use_se", np.nan))
        about = abs(ratio - 1) < max(_ABOUT_EQUAL, 2 * error)
        kind = "about as" if about else "more" if ratio < 1 else "less"
        said.append(f"{name} is {kind} certain{' as it' if about else ''} (median {ratio:.2f})")
    return f"Over the rows in use {listed(said)}." if said else ""


def _noisy(comparison: "Comparison") -> str:
    noisy = [n for n, p in comparison.posteriors.items() if method_of(p.method).noisy]
    return f"; the estimates of {listed(noisy)} are noisy" if noisy else ""


# ---------------------------------------------------------------------- the page


def _page(
    comparison: "Comparison",
    shown: Mapping[str, Markup],
    command: str | None,
    suggestion: PagePart | None = None,
) -> str:
    names = listed(list(comparison.posteriors))
    title = f"What {listed(comparison.demos.agents)} had in mind, by {names}"
    sections = {
        "Verdict": html_list(comparison.verdict.sentences),
        "Data": _data(comparison),
        "Model": _models(comparison),
        "How the model was found": Markup() if suggestion is None else suggestion.html(),
        "Results": _results(comparison),
        "Known truth": _known_truth(comparison),
        "Convergence": _convergence(comparison),
        "Time": _time(comparison),
        _DECODED: _decoded(comparison),
    }
    for heading, drawn in shown.items():
        sections[heading] = sections.get(heading, Markup()) + drawn
    sections = {heading: content for heading, content in sections.items() if content}
    sections["Run it again"] = _rerun(comparison, command)
    body, links = html_sections(sections)
    models = len(_by_model(comparison))
    lead = (
        f"{'One team model' if models == 1 else f'{models} models of a team'}, learned from "
        "demonstrations by different inference methods; "
    )
    if comparison.no_differences is None:
        lead += f"differences are taken from {comparison.reference}."
    else:
        lead += f"no differences are reported, as {comparison.reference} has not converged."
    return html_page(title, lead, body, links)


def _told(section: str, *given: Any) -> Markup:
    """A part of the report in words, from its template."""
    return html(section, *given, file="report.html")


def _data(comparison: "Comparison") -> Markup:
    """What was learned from and what was held out."""
    parts = {"training": comparison.demos}
    if comparison.test is not None:
        parts["held out"] = comparison.test
    sizes = {kind: demos.summary() for kind, demos in parts.items()}
    rows = [
        (
            kind,
            f"{s.num_episodes:,}",
            f"{s.num_steps:,}",
            f"{s.min_length:,} to {s.max_length:,}, median {s.median_length:,g}",
            f"{s.num_visited_states:,}",
        )
        for kind, s in sizes.items()
    ]
    body = html_table(("", "episodes", "steps", "steps per episode", "different states seen"), rows)
    body += html("heading", "Agents")
    header = ["agent", "actions", "mental states"]
    header += [f"steps labelled, {kind}" for kind in sizes]
    guess = _majority_errors(comparison.demos, comparison.test)
    if guess is not None:
        header.append("error of always guessing the most frequent")
    rows_of_agents = []
    for i, agent in enumerate(comparison.demos.agents):
        latents = comparison.demos.latent_names.get(agent)
        number = f"{comparison.demos.num_latents[i]}"
        row = [
            agent,
            f"{comparison.demos.num_actions[i]}",
            f"{number}: {', '.join(latents)}" if latents else number,
        ]
        row += [f"{s.share_labelled[i]:.1%}" for s in sizes.values()]
        if guess is not None:
            row.append("–" if np.isnan(guess[i]) else f"{guess[i]:.3f}")
        rows_of_agents.append(row)
    return body + html_table(header, rows_of_agents, numbers=False)


def _majority_errors(train: Demonstrations, test: Demonstrations | None) -> Any:
    """Held-out error of guessing the commonest label of the training data; None without any."""
    if test is None or not ((train.latents >= 0).any(0) & (test.latents >= 0).any(0)).all():
        return None
    return majority_class_error(train, test)


def _models(comparison: "Comparison") -> Markup:
    """The tables, and each NumPyro model of the modeler's own."""
    models = [
        (listed(names), _model(comparison.posteriors[names[0]].bound))
        for names in _by_model(comparison)
    ]
    return _told("models", models)


def _by_model(comparison: "Comparison") -> list[list[str]]:
    """Names of the posteriors of each model, the reference's first; tables count as one."""
    names: dict[Any, list[str]] = {}
    for name in dict.fromkeys([comparison.reference, *comparison.posteriors]):
        model = comparison.posteriors[name].model
        kind = model.function if isinstance(model, NumpyroModel) else TeamModel
        names.setdefault(kind, []).append(name)
    return list(names.values())


def _model(bound: BoundModel) -> Markup:
    if isinstance(bound, BoundNumpyroModel):
        parameters = [
            f"{site} ({' x '.join(map(str, shape))})" if shape else site
            for site, shape in bound.parameters.items()
        ]
        told = listed(parameters) if parameters else "none"
        return _told("own_model", bound.own_model.name, told, bound.own_model.description)
    return html_list(
        _describe(bound, table)
        for role in ROLES
        for table in bound.tables.values()
        if table.contexts.role == role
    )


def _describe(bound: BoundModel, table: Table) -> str:
    """A table in words."""
    role = table.contexts.role
    whose = listed(table.agents)
    subject = {
        "policy": f"Policy of {whose}: the action, given the mental state",
        "transition": f"Transition of {whose}: the next mental state, given the present one",
        "initial": f"Initial distribution of {whose}: the mental state at the first step",
    }[role]
    every = (
        ", ".join(make_contexts(bound.model, role, agent, bound.demos).names)
        for agent in table.agents
    )
    told = list(dict.fromkeys(every))
    given = ""
    if told[0]:
        joined = " and " if role != "initial" else ", given "
        given = joined + " (or ".join(told) + ")" * (len(told) - 1)
        given += f"; {counted(len(table.contexts.rows), 'combination')} of their values seen"
    if len(table.agents) > 1:
        given += "; one table for all of them"
    return f"{subject}{given}; {_describe_family(table)}."


def _describe_family(table: Table) -> str:
    """What is believed of the rows of a table before any data, in words."""
    cpt = table.cpt
    family = type(cpt).__name__
    if isinstance(cpt, DirichletCPT):
        prior = np.asarray(cpt.concentration(table.contexts))
        low, high = prior.min(initial=np.inf), prior.max(initial=-np.inf)
        amount = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        more = f", {cpt.stay:g} of it for staying" if isinstance(cpt, StickyDirichletCPT) else ""
        return f"learned, with a Dirichlet prior of concentration {amount} per cell{more}"
    if table.parametric:
        described = parametric_site(table)
        shapes = {name: described.priors()[site].shape() for name, site in described.parameters}
        parameters = [
            f"{name} ({' x '.join(map(str, shape))})" if shape else name
            for name, shape in shapes.items()
        ]
        settings = [
            f"{name} {value:g}"
            for name, value in (cpt.arguments() or {}).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        given = f" ({', '.join(settings)})" if settings else ""
        shared = ", which all agents have in common" if described.cpt.shared_parameters else ""
        rows = "Dirichlet around" if cpt.dirichlet_rows else "a function of"
        return (
            f"learned, a {family}{given}: rows are {rows} the parameters "
            f"{listed(parameters)}{shared}"
        )
    return {
        "UniformCPT": "uniform, not learned",
        "StaticCPT": "it never changes, not learned",
        "KnownCPT": "given, not learned",
    }.get(family, f"{family}, {'learned' if cpt.learned else 'not learned'}")


def _results(comparison: "Comparison") -> Markup:
    names = list(comparison.posteriors)
    head = [
        HtmlCell(""),
        *(
            HtmlCell(f"{n} (reference)" if n == comparison.reference else n, "number")
            for n in names
        ),
    ]
    body = Markup()
    for group, own in comparison.grouped().items():
        rows = []
        for quantity in own:
            row = [HtmlCell(quantity.label, labels=True, below=quantity.explanation)]
            for name in names:
                text = comparison.written(quantity, name)
                doubtful = text == "NO" or (quantity.column == "rows_above" and text not in "–0")
                row.append(HtmlCell(text, "number warn" if doubtful else "number"))
            rows.append(row)
        table = html("table", head, rows, "results")
        body += table if group == DECIDING else html("folded", f"More of {group}", table)
    return body + html_list(comparison.notes, "notes")


def _convergence(comparison: "Comparison") -> Markup:
    """Why each method stopped, and what chains say table by table and one by one."""
    body = html_table(
        ("method", "converged", "why it stopped"),
        [
            (name, "yes" if one.converged else "NO", one.reason)
            for name, one in comparison.convergence.items()
        ],
        numbers=False,
    )
    for name, posterior in comparison.aligned.items():
        info = posterior.draws_info
        if info is None:
            continue
        info = info.dropna(axis="columns", how="all")
        body += html("heading", f"Chains of {name}, table by table")
        body += html_table(
            ["table", *(_DIAGNOSTICS.get(column, column) for column in info.columns)],
            [
                [str(site), *map(_brief, values)]
                for site, values in zip(info.index, info.to_numpy(), strict=True)
            ],
        )
    if len(comparison.modes):
        body += _told("groups")
        body += _side_by_side(comparison, comparison.modes, "group")
    if len(comparison.weights):
        body += _told("weights")
        body += _side_by_side(comparison, comparison.weights, "mode")
    if len(comparison.chains):
        body += _told("chains")
        body += _side_by_side(comparison, comparison.chains, "chain")
    return body


def _side_by_side(comparison: "Comparison", table: "pd.DataFrame", noun: str) -> Markup:
    """Chains or groups of them, a column each."""
    labels = {q.column: q.label for q in comparison.quantities()} | {
        "mean_log_likelihood": "mean log likelihood",
        "sd": "its standard deviation",
        "weight": "share of the draws",
        "weight_se": "its standard error",
        "crossings": "times that chains went over",
    }
    return html_table(
        ["", *(f"{name}, {noun} {number}" for name, number in table.index)],
        [
            [
                labels.get(str(column), str(column)),
                *(value if isinstance(value, str) else _brief(value) for value in values),
            ]
            for column, values in table.items()
        ],
    )


def _known_truth(comparison: "Comparison") -> Markup:
    """How often intervals cover the truth that the data were made from."""
    if not len(comparison.coverage):
        return Markup()
    return _told("known_truth") + html_table(
        ("method, tables", "rows", *(f"in {one:.0%} intervals" for one in INTERVALS.values())),
        [
            (
                f"{name}, {_ROLES[role]}",
                f"{row['rows']:,.0f}",
                *(with_error(row[column], row[f"{column}_se"], 2) for column in INTERVALS),
            )
            for (name, role), row in _records(comparison.coverage)
        ],
    )


def _time(comparison: "Comparison") -> Markup:
    """How the time to an accuracy is found."""
    if comparison.no_differences is not None:
        return _told("no_times", comparison.reference, comparison.no_differences)
    if not comparison.courses:
        return Markup()
    reached = {n: c.reached(comparison.accuracy) for n, c in comparison.courses.items()}
    intro = _told("times", f"{comparison.accuracy:g}", comparison.reference)
    return intro + html_table(
        ("method", "seconds", "mean difference at the end"),
        [
            (
                name,
                "not yet" if np.isinf(reached[name]) else f"{reached[name]:,.1f}",
                f"{course.error[-1]:.4f}",
            )
            for name, course in comparison.courses.items()
        ],
    )


def _decoded(comparison: "Comparison") -> Markup:
    """Scores of beliefs about held-out mental states."""
    if not len(comparison.decoded):
        return Markup()
    agents = comparison.demos.agents

    return _told("decoded", _draws(comparison)) + html_table(
        ("agent, method, belief", *_SCORES.values()),
        [
            (
                f"{agent}, {name}, {kind}",
                *(with_error(row[score], row[f"{score}_se"], 3) for score in _SCORES),
            )
            for (name, agent, kind), row in sorted(
                _records(comparison.decoded), key=lambda record: agents.index(record[0][1])
            )
        ],
    )


def _draws(comparison: "Comparison") -> str:
    """Over how many draws beliefs are averaged."""
    draws = comparison.decoded["draws"].dropna().groupby(level="method", sort=False).max()
    if draws.nunique() == 1:
        return f"{draws.iloc[0]:,.0f} draws of each method"
    told = [f"{number:,.0f} of {name}" for name, number in draws.items()]
    return f"so many draws: {listed(told)}"


def _records(table: "pd.DataFrame") -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Rows of a table with several keys."""
    rows: list[Any] = table.to_dict("records")
    return list(zip(table.index.to_list(), rows, strict=True))


def _brief(value: Any) -> str:
    """A number in a table of diagnostics."""
    if value is None or np.isnan(value):
        return "–"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.3f}"


def _rerun(comparison: "Comparison", command: str | None) -> Markup:
    from btil import __version__

    seeds = sorted({p.seed for p in comparison.posteriors.values()})
    libraries = [f"{library} {version(library)}" for library in _LIBRARIES]
    return _told(
        "again",
        command,
        _python_again(comparison),
        "" if _own_models(comparison) else _python(comparison),
        ", ".join(map(str, seeds)),
        platform.python_version(),
        ", ".join([f"btil {__version__}", *libraries]),
    )


def _own_models(comparison: "Comparison") -> dict[str, str]:
    """Names of the NumPyro models of the modeler's own, by those of their posteriors."""
    return {
        name: p.model.name
        for name, p in comparison.posteriors.items()
        if isinstance(p.model, NumpyroModel)
    }


def _python_again(comparison: "Comparison") -> str:
    """Python lines that read the comparison back."""
    own = [f"{n!r}: btil.NumpyroModel({f})" for n, f in _own_models(comparison).items()]
    models = f", model={{{', '.join(own)}}}" if own else ""
    return (
        f'import btil\n\ncomparison = btil.analysis.load_comparison("."{models})\ncomparison.table'
    )


def _python(comparison: "Comparison") -> str:
    """Python lines that fit and compare once more."""
    reference = comparison.posteriors[comparison.reference]
    methods = {name: p.method for name, p in comparison.posteriors.items()}
    options = {name: dict(p.options) for name, p in comparison.posteriors.items() if p.options}
    others = [n for n, p in comparison.posteriors.items() if p.demos != reference.demos]
    lines = ["import btil", "", "saved = {"]
    lines += [f'    {n!r}: btil.load_posterior("posteriors/{n}.nc"),' for n in methods]
    lines += ["}", f"whole = saved[{comparison.reference!r}]", "comparison = btil.compare("]
    lines += ["    whole.model,", "    whole.demos,", f"    methods={methods!r},"]
    if comparison.test is not None:
        lines.append('    test=btil.read_demonstrations("test.npz"),')
    lines += [f"    seed={reference.seed},", f"    accuracy={comparison.accuracy!r},"]
    lines += [f"    num_draws={comparison.num_draws},", f"    num_played={comparison.num_played},"]
    lines += [f"    reference={comparison.reference!r},"]
    if options:
        lines.append(f"    options={options!r},")
    if comparison.evidence is not None:
        lines.append("    evidence=True,")
    if comparison.truth is not None:
        read = 'btil.analysis.read_truth("truth.npz", whole.model, whole.demos)'
        lines.append(f"    truth={read},")
    if others:
        lines.append("    demos_by_method={")
        lines += [f"        {n!r}: saved[{n!r}].demos," for n in others]
        lines.append("    },")
    return "\n".join([*lines, ")", 'comparison.report("again")'])
