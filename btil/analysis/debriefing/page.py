"""The debrief as a page: findings in plain words, figures, and tables beside it."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.compare import counted, listed
from btil.analysis.debriefing.findings import (
    EXPERIENCES,
    LEANING,
    SURE,
    WELL_KNOWN,
    Findings,
    find,
    moves_by,
)
from btil.analysis.decoding import decoded_table
from btil.analysis.output import (
    html_figure,
    html_list,
    html_page,
    html_table,
    publish,
    save_figure,
)
from btil.analysis.report import prepare_directory
from btil.demonstrations import Demonstrations
from btil.inference.posterior import TeamPosterior
from btil.inference.progress import progress_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from btil.domains.gridworld.task import GridTask

PAGE = "debrief.html"
_LIST = "debrief-files.txt"
# Lines of a table on the page; the files hold all.
_MOST_LINES = 15
# Beyond so many kinds, colours are hard to tell apart and a heat map is clearer.
_MOST_COLORS = 8
# Fewer labelled steps than this say little about how reliable something is.
_FEW_LABELS = 20


@dataclass(frozen=True, eq=False)
class Debrief:
    """A debrief that has been written.

    Attributes:
        page: The page.
        findings: What it tells, as tables.
        summary: The most important of it, a sentence each.
    """

    page: Path
    findings: Findings
    summary: tuple[str, ...]


def debrief(
    posterior: TeamPosterior,
    demos: Demonstrations,
    directory: Any,
    max_episodes: int = 4,
    task: "GridTask | None" = None,
    use_labels: bool = True,
    command: str | None = None,
    progress: bool = True,
) -> Debrief:
    """Write a debrief of a team: one page in plain words, with its tables and figures beside it.

    Who had what in mind when, where minds were misaligned and for how long, what each member
    tends to do in each mental state, how minds change, and how sure all that is. The page,
    `debrief.html`, needs no other file; `tables/` holds all numbers as CSV, `figures/` the
    pictures as SVG and PNG. Everything is written whole or not at all; files of an earlier debrief
    there are replaced, others stay.

    Args:
        posterior: What was learned of the team.
        demos: The recordings to tell of, the ones learned from or others.
        directory: The folder; made if it is not there.
        max_episodes: Number of episodes that are shown step by step: those with most steps at
            which minds were misaligned, or else the longest.
        task: The grid world, where misaligned minds are those that the task calls suboptimal;
            None: minds are misaligned where members have different things in mind.
        use_labels: Whether labels in the recordings are taken for the truth.
        command: The shell command that asked for it, to be told in the page.
        progress: Whether to show a progress line.

    Returns:
        Where the page is, and what it tells.

    Raises:
        ValueError: If the recordings are not of this team, or impossible under the posterior.
        OSError: If the folder cannot be written to; before anything is computed.

    Example:
        >>> btil.analysis.debrief(posterior, demos, "debrief").summary  # doctest: +SKIP
    """
    if max_episodes < 0:
        raise ValueError(f"max_episodes must not be negative, got {max_episodes}")
    directory = prepare_directory(directory)
    findings = find(posterior, demos, task, use_labels)
    chosen = _chosen_episodes(findings)[:max_episodes]
    summary = _summary(posterior, findings, task)
    with tempfile.TemporaryDirectory(prefix=".debrief-", dir=directory) as temporary:
        staging = Path(temporary)
        for folder in ("tables", "figures"):
            (staging / folder).mkdir()
        pictures = ""
        with progress_line(len(chosen), "debrief", progress) as line:
            for episode in chosen:
                for name, figure, caption in _pictures(
                    posterior, findings, episode, task, use_labels
                ):
                    drawn = save_figure(figure, staging / "figures" / name)
                    pictures += html_figure(drawn, name, caption)
                line.update()
        for name, table in _tables(findings).items():
            table.to_csv(staging / "tables" / f"{name}.csv", index=False, lineterminator="\n")
        body, links = _body(posterior, findings, summary, pictures, len(chosen), task, command)
        title = f"What {listed(demos.agents)} had in mind"
        lead = (
            f"{counted(demos.num_episodes, 'episode')}, {counted(demos.num_steps, 'step')}. For "
            "every step: what each member most probably had in mind, concluded from what they did."
        )
        page = html_page(title, lead, body, links)
        (staging / PAGE).write_text(page, encoding="utf-8")
        publish(staging, directory, PAGE, _LIST)
    return Debrief(directory / PAGE, findings, tuple(summary))


def _tables(findings: Findings) -> dict[str, "pd.DataFrame"]:
    return {
        "episodes": findings.episodes,
        "misalignments": findings.misalignments,
        "habits": findings.habits,
        "situations": findings.situations,
        "dwells": findings.dwells,
        "changes": findings.changes,
        "certainty": findings.certainty,
        "experience": findings.experience,
        "steps": decoded_table(findings.demos, findings.decoded, findings.beliefs),
    }


def lines_of(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """The lines of a table by the names of its columns."""
    return [{str(name): value for name, value in line.items()} for line in table.to_dict("records")]


# ---------------------------------------------------------------------- pictures


def _chosen_episodes(findings: Findings) -> list[int]:
    """Episodes in the order in which they are worth looking at."""
    table = findings.episodes
    lengths = table["steps"].to_numpy()
    if findings.incomparable is None:
        return np.lexsort((-lengths, -table["misaligned_steps"].to_numpy())).tolist()
    return np.argsort(-lengths, kind="stable").tolist()


def _pictures(
    posterior: TeamPosterior,
    findings: Findings,
    episode: int,
    task: "GridTask | None",
    use_labels: bool,
) -> Iterable[tuple[str, "Figure", str]]:
    """Name, drawing and caption of the figures of an episode."""
    from btil.analysis.plots import plot_alignment, plot_timeline

    demos = findings.demos
    name = demos.episode_ids[episode]
    many = max(demos.num_latents) > _MOST_COLORS
    labelled = (demos.select([episode]).latents >= 0).any()
    if findings.incomparable is None and not many:
        figure = plot_alignment(posterior, demos, episode, task, condition_on_labels=use_labels)
        figure.axes[0].set_title(f"episode {name}: do minds agree?", loc="left")
        known = " The thin bars under them, and the black line, are what was labelled."
        yield (
            f"episode_{episode + 1}_alignment",
            figure,
            f"Episode {name}. Above, how probable it is that minds were aligned; below, what each "
            "member most probably had in mind. Grey: minds were misaligned."
            + (known if labelled else ""),
        )
    kind = "heatmap" if many else "bands"
    figure = plot_timeline(posterior, demos, episode, kind=kind, condition_on_labels=use_labels)
    for axes, agent in zip(figure.axes, demos.agents, strict=False):
        axes.set_title(f"{agent}, episode {name}", loc="left")
    reading = (
        "the brighter a lane, the more probable; the bars are the most probable course"
        if many
        else "the higher a colour at a step, the more probable; in between where it is not sure"
    )
    yield (
        f"episode_{episode + 1}_minds",
        figure,
        f"Episode {name}, how sure it is what each member had in mind: {reading}.",
    )


# ---------------------------------------------------------------------- the short of it


def _summary(posterior: TeamPosterior, findings: Findings, task: "GridTask | None") -> list[str]:
    demos = findings.demos
    told = []
    for agent in demos.agents:
        own = findings.habits[findings.habits["agent"] == agent]
        own = own.sort_values("share_of_steps", ascending=False, kind="stable")
        first = [f"{r['mind']} ({r['share_of_steps']:.0%})" for r in lines_of(own.head(3))]
        told.append(f"{agent} mostly had in mind: {', '.join(first)} of the steps.")
    if findings.incomparable is None:
        apart = int(findings.episodes["misaligned_steps"].sum())
        what = (
            "Minds were at cross purposes"
            if task is not None
            else (f"{listed(demos.agents)} had different things in mind")
        )
        text = f"{what} at {apart / demos.num_steps:.0%} of the steps"
        if findings.stretches:
            longest = max(findings.stretches, key=lambda one: one.num_steps)
            text += (
                f"; the longest stretch lasted {counted(longest.num_steps, 'step')} "
                f"(episode {demos.episode_ids[longest.episode]}, from step {longest.first})"
            )
        told.append(text + ".")
    sure = findings.certainty
    weights = sure.groupby("certainty")["steps"].sum()
    share = weights.get("sure", 0) / max(1, weights.sum())
    text = f"What a member had in mind is sure (a probability of {SURE:.0%} or more) at {share:.0%}"
    tested = sure[(sure["certainty"] == "sure") & (sure["labelled_steps"] > 0)]
    number = int(tested["labelled_steps"].sum())
    text += " of all steps"
    if number >= _FEW_LABELS:
        right = (tested["share_right"] * tested["labelled_steps"]).sum() / number
        text += (
            f"; put to the test on {counted(number, 'labelled step')} with the labels hidden, "
            f"such a step was right {right:.0%} of the time"
        )
    told.append(text + ".")
    if not posterior.converged:
        told.append("The learning behind this had not settled: take everything as preliminary.")
    return told


# ---------------------------------------------------------------------- the page


def _body(
    posterior: TeamPosterior,
    findings: Findings,
    summary: Sequence[str],
    pictures: str,
    num_shown: int,
    task: "GridTask | None",
    command: str | None,
) -> tuple[str, str]:
    """The sections, and the links to them."""
    sections = {
        "In short": _warnings(posterior, findings) + html_list(summary),
        "Who had what in mind, and when": _episodes(findings, pictures, num_shown),
        "Where minds were misaligned": _misaligned(findings, task),
        "What each member tends to do": _habits(findings),
        "How minds change": _changes(posterior, findings),
        "How sure is this": _certainty(posterior, findings),
        "For the technically minded": _technical(posterior, findings, task, command),
    }
    body = "".join(
        f'<section>\n<h2 id="{_anchor(heading)}">{escape(heading)}</h2>\n{content}</section>\n'
        for heading, content in sections.items()
    )
    links = "".join(f'<a href="#{_anchor(h)}">{escape(h)}</a>' for h in sections)
    return body, links


def _anchor(heading: str) -> str:
    return heading.lower().replace(",", "").replace(" ", "-")


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>\n"


def _heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>\n"


def _more(shown: int, number: int, file: str) -> str:
    """That a table goes on in a file."""
    if shown >= number:
        return _paragraph(f"The same as a table of its own: tables/{file}.csv.")
    return _paragraph(f"{number - shown:,} more are in tables/{file}.csv.")


def _warnings(posterior: TeamPosterior, findings: Findings) -> str:
    found = []
    if not posterior.converged:
        several = posterior.draws_info is not None
        found.append(
            "The learning behind this page had not settled. "
            + (
                "It was repeated from several starting points, and the repetitions do not agree. "
                if several
                else "It stopped while its answers were still changing. "
            )
            + "Take everything below as preliminary, and learn longer or by another method before "
            "you rely on it."
        )
    if findings.nameless:
        found.append(
            f"Nothing in the recordings that were learned from says which mental state of "
            f"{listed(findings.nameless)} is which. What is told apart below are real differences "
            "in behaviour; the names given to them are arbitrary. A few labels would mend that."
        )
    unknown = findings.experience
    unknown = unknown[unknown["experience"] == EXPERIENCES[2]]
    for row in lines_of(unknown):
        if row["share_of_steps"] > 0.2:
            found.append(
                f"{row['share_of_steps']:.0%} of {row['agent']}'s steps were in situations that "
                "were hardly ever met while learning. What is said of them rests on assumptions."
            )
    return html_list(found, ' class="notes"') if found else ""


def _episodes(findings: Findings, pictures: str, num_shown: int) -> str:
    demos, table = findings.demos, findings.episodes
    order = _chosen_episodes(findings)
    header = ["episode", "steps"]
    if findings.incomparable is None:
        header += ["steps with misaligned minds", "longest such stretch"]
    for agent in demos.agents:
        header += [f"changes of mind, {agent}", f"share of steps that are sure, {agent}"]
    rows = []
    for line in lines_of(table.iloc[order[:_MOST_LINES]]):
        cells = [str(line["episode"]), f"{line['steps']:,}"]
        if findings.incomparable is None:
            misaligned = int(line["misaligned_steps"])
            cells += [
                f"{misaligned:,} ({misaligned / line['steps']:.0%})",
                f"{line['longest_stretch']:,}",
            ]
        for agent in demos.agents:
            cells += [f"{line[f'changes_of_mind_{agent}']:,}", f"{line[f'share_sure_{agent}']:.0%}"]
        rows.append(cells)
    by = "most misaligned" if findings.incomparable is None else "longest"
    return (
        (
            _paragraph(
                f"Below, step by step, {counted(num_shown, 'episode')} of {demos.num_episodes:,}, "
                f"the {by} first; then all in a table."
            )
            if num_shown
            else ""
        )
        + pictures
        + html_table(header, rows)
        + _more(len(rows), len(table), "episodes")
    )


def _misaligned(findings: Findings, task: "GridTask | None") -> str:
    demos, table = findings.demos, findings.misalignments
    if findings.incomparable is not None:
        return _paragraph(f"This cannot be told. {findings.incomparable}")
    what = (
        "what they had in mind did not fit together, so that the team lost time"
        if task is not None
        else "they had different things in mind. That need not be bad: people who divide work want "
        "different things at the same time. It is worth a look where they should have agreed"
    )
    html = _paragraph(f"Minds are called misaligned at steps at which {what}.")
    if not len(table):
        return html + _paragraph("Minds were never misaligned.")
    lengths = table["steps"]
    html += _paragraph(
        f"{counted(len(table), 'such stretch').replace('stretchs', 'stretches')}, of {lengths.mean():,.1f} steps on average, {lengths.max():,} at most; together "
        f"{lengths.sum():,} of {demos.num_steps:,} steps ({lengths.sum() / demos.num_steps:.0%}). "
        "The longest, with what the most probable course of each mind was:"
    )
    longest = table.sort_values("steps", ascending=False, kind="stable").head(_MOST_LINES)
    rows = [
        [
            str(line["episode"]),
            f"{line['from_step']:,}",
            f"{line['to_step']:,}",
            f"{line['steps']:,}",
            *(str(line[agent]) for agent in demos.agents),
            f"{line['certainty']} ({_percent(line['probability'])})",
        ]
        for line in lines_of(longest)
    ]
    header = ["episode", "from step", "to step", "steps", *demos.agents, "how sure"]
    return (
        html
        + html_table(header, rows, numbers=False)
        + _more(len(rows), len(table), "misalignments")
    )


def _percent(share: float) -> str:
    """A share that is never rounded to certainty."""
    if 0.995 <= share < 1:
        return "over 99%"
    if 0 < share < 0.005:
        return "under 1%"
    return f"{share:.0%}"


def _habits(findings: Findings) -> str:
    html = _paragraph(
        "What each member does while it has something in mind, averaged over the situations in "
        "which it was in these recordings; behind each action, how often it comes to that. Actions "
        "below 5% are left out. The lines below differ by situation: what it does in those in "
        "which it most often had that in mind."
    )
    for agent in findings.demos.agents:
        own = findings.habits[findings.habits["agent"] == agent]
        own = own.sort_values("share_of_steps", ascending=False, kind="stable")
        html += _heading(agent)
        rows = [
            (
                r["mind"],
                f"{r['steps']:,.0f} ({_percent(r['share_of_steps'])})",
                r["does"] or "hardly ever held",
            )
            for r in lines_of(own)
        ]
        header = ["with this in mind", "steps", "it mostly does"]
        html += html_table(header, rows, numbers=False)
        places = findings.situations[findings.situations["agent"] == agent]
        lines = [
            (r["mind"], r["situation"], f"{r['steps']:,.0f}", r["does"]) for r in lines_of(places)
        ]
        if lines:
            html += html_table(
                ["with this in mind", "in this situation", "steps", "it mostly does"],
                lines[: 2 * _MOST_LINES],
                numbers=False,
            )
            html += _more(min(len(lines), 2 * _MOST_LINES), len(lines), "situations")
    return html


def _changes(posterior: TeamPosterior, findings: Findings) -> str:
    html = _paragraph(
        "How long something stays in mind, counted on the most probable course of each mind; what "
        "was still in mind when an episode ended does not count for the average. Then what follows "
        "on what, and which circumstances go with it (in brackets how often they hold when that "
        "change happens, and how often else). That something goes with a change does not mean "
        "that it causes it."
    )
    for agent in findings.demos.agents:
        html += _heading(agent)
        own = findings.dwells[findings.dwells["agent"] == agent]
        rows = [
            (
                r["mind"],
                f"{r['times']:,}",
                f"{r['mean_steps']:,.1f}" if r["given_up"] else "–",
                f"{r['longest']:,}" if r["given_up"] else "–",
            )
            for r in lines_of(own)
            if r["times"]
        ]
        html += html_table(["in mind", "times", "steps on average", "longest"], rows)
        changes = findings.changes[findings.changes["agent"] == agent]
        depends = moves_by(posterior, agent)
        if depends == "never":
            html += _paragraph("It is assumed that this never changes within an episode.")
        elif not len(changes):
            html += _paragraph("It never changed within an episode.")
        else:
            lines = [
                (
                    r["from_mind"],
                    r["to_mind"],
                    f"{r['times']:,}",
                    f"{r['share_of_changes']:.0%}",
                    r["goes_with"] or "–",
                )
                for r in lines_of(changes.head(_MOST_LINES))
            ]
            header = ["from", "to", "times", "of the changes from it", "goes with"]
            html += html_table(header, lines, numbers=False)
            html += _more(len(lines), len(changes), "changes")
        if depends == "nothing" and len(changes):
            html += _paragraph(
                "What goes with these changes was not looked for: the model lets them depend on "
                "nothing but what was in mind before."
            )
    return html


def _certainty(posterior: TeamPosterior, findings: Findings) -> str:
    table = findings.certainty
    html = _paragraph(
        f"A step is called sure if what a member most probably had in mind has a probability of "
        f"{SURE:.0%} or more, leaning if it has {LEANING:.0%} or more, else unclear."
    )
    rows = []
    for line in lines_of(table):
        rows.append(
            (
                f"{line['agent']}: {line['certainty']}",
                f"{line['steps']:,} ({_percent(line['share_of_steps'])})",
                f"{line['labelled_steps']:,}",
                f"{line['share_right']:.0%}" if line["labelled_steps"] else "–",
            )
        )
    tested = int(table["labelled_steps"].sum())
    header = ["", "steps", "of those with labels hidden: tested", "right"]
    html += html_table(header, rows)
    if not tested:
        html += _paragraph(
            "These recordings have no labels, so nothing here could be put to the test: the "
            "certainty is what the model claims."
        )
    else:
        html += _paragraph(
            "The two columns at the right put that to the test: the labels were hidden, each step "
            "was sorted anew, and what was most probable compared with the label. Sure steps "
            f"should be right at least {SURE:.0%} of the time."
        )
        over = [
            line["agent"]
            for line in lines_of(table)
            if line["certainty"] == "sure"
            and line["labelled_steps"] >= _FEW_LABELS
            and line["share_right"] < SURE
        ]
        if over:
            html += html_list(
                [
                    f"For {agent} that was not so: it claims to be surer than it is."
                    for agent in over
                ],
                ' class="notes"',
            )
        if findings.seen_before > 0:
            html += _paragraph(
                f"{findings.seen_before:.0%} of these episodes were learned from, where their "
                "labels may have been seen; on new recordings expect less."
            )
    if len(findings.experience):
        html += _heading("How much was there to learn from?")
        html += _paragraph(
            f"A step is well known if at least {WELL_KNOWN:g} steps in the same situation, with "
            "the same in mind, stood behind what was learned about it; met a few times, if at "
            "least one; else hardly ever met."
        )
        shares = findings.experience.pivot(
            index="agent", columns="experience", values="share_of_steps"
        )
        html += html_table(
            ["share of the steps", *EXPERIENCES],
            [
                (agent, *(_percent(shares.loc[agent].to_dict()[kind]) for kind in EXPERIENCES))
                for agent in findings.demos.agents
                if agent in shares.index
            ],
        )
    html += _heading("Had the learning settled?")
    settled = (
        "Yes: going on would have changed nothing that matters here."
        if posterior.converged
        else "No. See the warning at the top of the page."
    )
    return html + _paragraph(settled)


def _technical(
    posterior: TeamPosterior,
    findings: Findings,
    task: "GridTask | None",
    command: str | None,
) -> str:
    from btil import __version__

    demos = findings.demos
    training = posterior.demos
    meaning = (
        "the grid world's definition of suboptimal minds (the paper, Appendix C)"
        if task is not None
        else "unequal latents"
    )
    html = _paragraph(
        f"The team is modelled as a dynamic Bayesian network with a latent mental state per member "
        f"(Seo and Unhelkar, IJCAI 2022), learned by {posterior.method} (seed {posterior.seed}) "
        f"from {counted(training.num_episodes, 'episode')}, {counted(training.num_steps, 'step')}, "
        f"of which {', '.join(f'{s:.0%}' for s in training.summary().share_labelled)} are labelled "
        f"({', '.join(training.agents)}). {'Converged' if posterior.converged else 'Not converged'}"
        f": {posterior.reason}. Probabilities are smoothed ones given the whole episode"
        + (", labels conditioned on," if (demos.latents >= 0).any() else "")
        + " under the posterior mean of the tables; the course of a mind is the Viterbi path; "
        f"misaligned means {meaning} on that path, its probability is the product form over "
        "members. Actions per mental state are posterior mean policy rows, weighted by smoothed "
        "visits; the amount of data is the expected number of reads of a row by the training "
        "data. R-hat, effective sample sizes and intervals: btil.analysis.plots, and "
        "posterior.draws_info."
    )
    html += _paragraph(
        "Beside this page: tables/ (CSV; steps.csv has every step with the probability of "
        "every mental state) and figures/ (SVG and PNG)."
    )
    if command is not None:
        html += f"<p>Made by:</p>\n<pre>{escape(command)}</pre>\n"
    return html + _paragraph(f"btil {__version__}.")
