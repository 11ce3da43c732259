"""What a debrief says, section by section, in words for people who know teams."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from btil.analysis.debriefing.findings import (
    EXPERIENCES,
    LABELLED,
    LEANING,
    SURE,
    WELL_KNOWN,
    Findings,
    moves_by,
)
from btil.analysis.output import (
    PagePart,
    html,
    html_list,
    html_paragraph,
    html_sections,
    html_table,
)
from btil.analysis.words import listed
from btil.demonstrations.coding import counted
from btil.inference.method import method_of
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import pandas as pd

    from btil.domains.gridworld.task import GridTask

# Lines of a table on the page; the files hold all.
_MOST_LINES = 15
# Fewer labelled steps than this say little about how reliable something is.
_FEW_LABELS = 20


class Told(NamedTuple):
    """What the sections tell of.

    Attributes:
        posterior: What was learned of the team.
        findings: What was found with it.
        task: The grid world, if it is one.
        learned_again: Whether the test of sureness is of a posterior with half of the labels.
    """

    posterior: Posterior
    findings: Findings
    task: "GridTask | None"
    learned_again: bool


def apart_word(task: "GridTask | None") -> str:
    """What minds are called that do not agree: in a task they fail to fit, else they differ."""
    return "different" if task is None else "misaligned"


def lines_of(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """The lines of a table by the names of its columns."""
    return [{str(name): value for name, value in line.items()} for line in table.to_dict("records")]


def summary(told: Told) -> list[str]:
    """The most important, a sentence each."""
    findings = told.findings
    demos = findings.demos
    sentences = []
    for agent in demos.agents:
        own = findings.habits[findings.habits["agent"] == agent]
        own = own.sort_values("share_of_steps", ascending=False, kind="stable")
        first = [f"{r['mind']} ({r['share_of_steps']:.0%})" for r in lines_of(own.head(3))]
        sentences.append(f"{agent} mostly had in mind: {', '.join(first)} of the steps.")
    if findings.incomparable is None:
        sentences.append(_on_misalignment(findings, told.task))
    sentences.append(_on_sureness(findings.certainty))
    labelled = float((demos.latents[demos.present] >= 0).mean())
    if labelled and not findings.used_labels:
        sentences.append(
            f"{_percent(labelled)} of the steps are labelled. The labels were left aside "
            "here: the results come from all else that was recorded."
        )
    tested = _outcome_of_test(findings.certainty)
    if tested is not None:
        sentences.append(tested)
    if not told.posterior.converged:
        sentences.append(
            "The learning behind this had not settled: take everything as preliminary."
        )
    return sentences


def _on_misalignment(findings: Findings, task: "GridTask | None") -> str:
    """How often minds do not agree, and where for longest."""
    demos = findings.demos
    apart = int(findings.episodes["misaligned_steps"].sum())
    what = (
        "Minds were at cross purposes"
        if task is not None
        else f"{listed(demos.agents)} had different things in mind"
    )
    text = f"{what} at {_percent(apart / demos.num_steps)} of the steps"
    if findings.by_chance is not None:
        text += f" ({_percent(findings.by_chance)} expected by chance)"
    if task is None and apart:
        text += ", which need not be bad: members may share the work"
    if findings.stretches:
        longest = max(findings.stretches, key=lambda one: one.num_steps)
        text += (
            f"; the longest stretch lasted {counted(longest.num_steps, 'step')} "
            f"(episode {demos.episode_ids[longest.episode]}, from step {longest.first})"
        )
    return f"{text}."


def _on_sureness(certainty: "pd.DataFrame") -> str:
    """How many of the steps are labelled, and how many of the others are sure."""
    steps = certainty.groupby("certainty")["steps"].sum().to_dict()
    labelled, total = steps[LABELLED], sum(steps.values())
    if labelled == total:
        return "What members had in mind was labelled, and taken for true, at every step."
    share = _percent(steps["sure"] / (total - labelled))
    sure = f"sure (a probability of {SURE:.0%} or more) at {share}"
    if not labelled:
        return f"What a member had in mind is {sure} of the steps."
    return (
        "What a member had in mind was labelled, and taken for true, at "
        f"{_percent(labelled / total)} of the steps; of the others it is {sure}."
    )


def _outcome_of_test(certainty: "pd.DataFrame") -> str | None:
    """How the test on labels that were not shown came out, the whole of it; None without one."""
    tested = certainty[certainty["tested_steps"] > 0]
    number = int(tested["tested_steps"].sum())
    if number < _FEW_LABELS:
        return None
    right = float((tested["share_right"] * tested["tested_steps"]).sum()) / number
    sure = tested[tested["certainty"] == "sure"]
    called = int(sure["tested_steps"].sum())
    text = (
        f"Tested on {counted(number, 'labelled step')} whose labels were not shown: the most "
        f"probable mental state was right at {_percent(right)} of them"
    )
    if not called:
        return f"{text}; none was called sure."
    of_sure = float((sure["share_right"] * sure["tested_steps"]).sum()) / called
    return (
        f"{text}; {_percent(called / number)} were called sure, of which {_percent(of_sure)} were "
        "right."
    )


# ---------------------------------------------------------------------- the page


def body_of(
    told: Told,
    pictures: Mapping[str, Markup],
    num_shown: int,
    command: str | None,
    suggestion: PagePart | None,
) -> tuple[Markup, Markup]:
    """The sections, and the links to them."""
    sections = {
        "In short": _warnings(told) + html_list(summary(told)),
        "Who had what in mind, and when": _episodes(told.findings, pictures["minds"], num_shown),
        f"Where minds were {apart_word(told.task)}": _misaligned(told, pictures["alignment"]),
        "What each member tends to do": _habits(told),
        "How minds change": _changes(told),
        "How sure is this": _certainty(told),
        "How the model was found": Markup() if suggestion is None else suggestion.html(),
        "For the technically minded": _technical(told, command),
    }
    return html_sections({heading: content for heading, content in sections.items() if content})


def _more(shown: int, number: int, file: str) -> Markup:
    """That a table goes on in a file."""
    if shown >= number:
        return html_paragraph(f"As a file: tables/{file}.csv.")
    return html_paragraph(f"{counted(number - shown, 'more line')} in tables/{file}.csv.")


def _warnings(told: Told) -> Markup:
    posterior, findings = told.posterior, told.findings
    found = []
    if not posterior.converged:
        # Statistics of draws are by chain; draws around a mean field are one.
        several = any(len(one) > 1 for one in posterior.result.sample_stats.values())
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
            f"{listed(findings.nameless)} is which. The differences below are real differences "
            "in behaviour; the names given to them are arbitrary. A few labels would settle that."
        )
    unknown = findings.experience
    unknown = unknown[unknown["experience"] == EXPERIENCES[2]]
    for row in lines_of(unknown):
        if row["share_of_steps"] > 0.2:
            found.append(
                f"{row['share_of_steps']:.0%} of {row['agent']}'s steps were in situations that "
                "were hardly ever met while learning. What is said of them rests on assumptions."
            )
    over = [
        line["agent"]
        for line in lines_of(findings.certainty)
        if line["certainty"] == "sure"
        and line["tested_steps"] >= _FEW_LABELS
        and line["share_right"] < SURE
    ]
    if over:
        found.append(
            f"Put to the test, fewer than {SURE:.0%} of the sure steps of {listed(over)} were "
            "right: what this page calls sure is less sure than that. More labels help most."
        )
    return html_list(found, "notes") if found else Markup()


def _episodes(findings: Findings, pictures: Markup, num_shown: int) -> Markup:
    demos, table = findings.demos, findings.episodes
    order = findings.worth_a_look()
    header = ["episode", "steps"]
    if findings.incomparable is None:
        header += ["steps at which minds disagree", "longest such stretch"]
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
    most = "with most disagreement" if findings.incomparable is None else "of most steps"
    kind = f"The episode {most}"
    intro = (
        f"{kind} is shown"
        + ("; click for others" if num_shown > 1 else "")
        + f". The table has all {demos.num_episodes:,}."
    )
    return (
        (html_paragraph(intro) if num_shown else Markup())
        + pictures
        + html_table(header, rows)
        + _more(len(rows), len(table), "episodes")
    )


def _misaligned(told: Told, pictures: Markup) -> Markup:
    findings = told.findings
    demos, table = findings.demos, findings.misalignments
    if findings.incomparable is not None:
        return html_paragraph(f"This cannot be said. {findings.incomparable}")
    if told.task is not None:
        body = html_paragraph(
            "Minds are called misaligned at steps at which what they had in mind did not fit "
            "together, so that the team lost time.",
        )
    else:
        body = html_paragraph(
            "Steps at which members had different things in mind. That need not be bad: people "
            "who divide work want different things at the same time. It is worth a look where "
            "they should have agreed.",
        )
    if not len(table):
        return body + html_paragraph("There is no such step.") + pictures
    steps, apart = table["steps"], int(table["steps"].sum())
    stretches = "1 such stretch" if len(table) == 1 else f"{len(table):,} such stretches"
    body += html_paragraph(
        f"{stretches}, of {steps.mean():,.1f} steps on average, {steps.max():,} at most; together "
        f"{apart:,} of {demos.num_steps:,} steps ({_percent(apart / demos.num_steps)})."
        + (
            f" By chance {_percent(findings.by_chance)} would be expected: if in each episode "
            "every member had the same things in mind as often, but at any time."
            if findings.by_chance is not None
            else ""
        ),
    )
    longest = table.sort_values("steps", ascending=False, kind="stable").head(_MOST_LINES)
    rows = [
        [
            str(line["episode"]),
            f"{line['from_step']:,}",
            f"{line['to_step']:,}",
            f"{line['steps']:,}",
            *(str(line[f"mind_{agent}"]) for agent in demos.agents),
            f"{line['certainty']} ({_percent(line['probability'])})",
        ]
        for line in lines_of(longest)
    ]
    header = ["episode", "from step", "to step", "steps", *demos.agents, "how sure"]
    return (
        body
        + pictures
        + html_paragraph("The longest, with what the most probable course of each mind was:")
        + html_table(header, rows, numbers=False)
        + _more(len(rows), len(table), "misalignments")
    )


def _percent(share: float) -> str:
    """A share that is never rounded to certainty."""
    if 0.995 <= share < 1:
        return "over 99%"
    if 0 < share <= 0.005:  # half a percent would be rounded to an even number, 0
        return "under 1%"
    return f"{share:.0%}"


def _habits(told: Told) -> Markup:
    findings = told.findings
    body = html_paragraph(
        "What members do with each thing in mind: how often each action follows, and in brackets "
        "the range that holds this share with a probability of 89%. The "
        "first table is averaged over the situations in which the member was in these recordings, "
        "the second is about the situations in which it most often had that in mind. Left out are "
        "situations from which no step was learned, and actions below 5%.",
    )
    if told.posterior.bound.channels:
        body += html_paragraph(
            "Of measured columns: their expected values with each thing in mind, averaged over "
            "the steps at which it was.",
        )
    for agent in findings.demos.agents:
        own = findings.habits[findings.habits["agent"] == agent]
        own = own.sort_values("share_of_steps", ascending=False, kind="stable")
        body += html("heading", agent)
        rows = [
            (
                r["mind"],
                f"{r['steps']:,.0f} ({_percent(r['share_of_steps'])})",
                r["does"] or "hardly ever held",
            )
            for r in lines_of(own)
        ]
        header = ["with this in mind", "steps", "mostly does"]
        body += html_table(header, rows, numbers=False)
        places = findings.situations[findings.situations["agent"] == agent]
        lines = [
            (r["mind"], r["situation"], f"{r['steps']:,.0f}", r["does"]) for r in lines_of(places)
        ]
        if lines:
            body += html_table(
                ["with this in mind", "in this situation", "steps", "mostly does"],
                lines[: 2 * _MOST_LINES],
                numbers=False,
            )
            body += _more(min(len(lines), 2 * _MOST_LINES), len(lines), "situations")
    return body


def _changes(told: Told) -> Markup:
    posterior, findings = told.posterior, told.findings
    body = html_paragraph(
        "How long something stays in mind, counted on the most probable course of each mind; what "
        "was still in mind when an episode ended, or the member left, does not count for the "
        "average. Then what follows on what, and which circumstances go with it (in brackets how "
        "often they hold when that change happens, and how often else). That something goes with a "
        "change does not mean that it causes it.",
    )
    for agent in findings.demos.agents:
        body += html("heading", agent)
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
        body += html_table(["in mind", "times", "steps on average", "longest"], rows)
        changes = findings.changes[findings.changes["agent"] == agent]
        depends = moves_by(posterior, agent)
        if depends == "never":
            body += html_paragraph("It is assumed that this never changes within an episode.")
        elif not len(changes):
            body += html_paragraph("It never changed within an episode.")
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
            body += html_table(header, lines, numbers=False)
            body += _more(len(lines), len(changes), "changes")
        if depends == "nothing" and len(changes):
            body += html_paragraph(
                "What goes with these changes was not looked for: the model lets them depend on "
                "nothing but what was in mind before.",
            )
    return body


def _certainty(told: Told) -> Markup:
    posterior, findings = told.posterior, told.findings
    table = findings.certainty
    body = html_paragraph(
        f"A step is called sure if what a member most probably had in mind has a probability of "
        f"{SURE:.0%} or more, leaning if it has {LEANING:.0%} or more, else unclear.",
    )
    tested = int(table["tested_steps"].sum())
    header = ["", "steps"]
    if tested:
        header += ["tested on", "said to be right", "right"]
    rows: list[list[str]] = []
    for line in lines_of(table):
        if line["certainty"] == LABELLED and not line["steps"]:
            continue
        cells = [f"{line['agent']}: {line['certainty']}"]
        cells.append(f"{line['steps']:,} ({_percent(line['share_of_steps'])})")
        if tested:
            cells.append(f"{line['tested_steps']:,}")
            shares = (line["mean_probability"], line["share_right"])
            cells += [_percent(share) if line["tested_steps"] else "–" for share in shares]
        rows.append(cells)
    body += html_table(header, rows) + _tested(told, tested)
    if len(findings.experience):
        body += html("heading", "How much was there to learn from?")
        body += html_paragraph(
            f"A step is well known if at least {WELL_KNOWN:g} steps in the same situation, with "
            "the same in mind, stood behind what was learned about it; met a few times, if at "
            "least one; else hardly ever met.",
        )
        known = {(r["agent"], r["experience"]): r for r in lines_of(findings.experience)}
        body += html_table(
            ["share of the steps", *EXPERIENCES],
            [
                (agent, *(_percent(known[agent, kind]["share_of_steps"]) for kind in EXPERIENCES))
                for agent in findings.demos.agents
                if (agent, EXPERIENCES[0]) in known
            ],
        )
    body += html("heading", "Had the learning settled?")
    settled = (
        "Yes: its answers had stopped changing."
        if posterior.converged
        else "No. See the warning at the top of the page."
    )
    return body + html_paragraph(settled)


def _tested(told: Told, tested: int) -> Markup:
    """How the claims of sureness were tested, or why they were not."""
    findings = told.findings
    how = (
        "how often the most probable was said to be right, and how often it was, at steps with "
        "labels that had been hidden."
    )
    if tested and told.learned_again:
        return html_paragraph(
            f"The columns at the right put that to the test: {how} For that everything was learned "
            "once more, without the labels of every second labelled episode. This page uses "
            "all labels, so it should be somewhat more reliable.",
        )
    if tested:
        return html_paragraph(
            f"The columns at the right put that to the test: {how} These labels were not used in "
            "learning.",
        )
    if (findings.demos.latents >= 0).any():
        return html_paragraph(
            "This could not be put to the test, as all labels in these recordings were learned "
            "from. Keep the labels of some episodes back, and make a debrief of those.",
        )
    return html_paragraph(
        "These recordings have no labels, so nothing here could be put to the test: the certainty "
        "is what the model claims.",
    )


def _technical(told: Told, command: str | None) -> Markup:
    from btil import __version__

    posterior, task = told.posterior, told.task
    training = posterior.demos
    meaning = (
        "the grid world's definition of suboptimal minds (the paper, Appendix C)"
        if task is not None
        else "unequal latents"
    )
    body = html_paragraph(
        f"The team is modelled as a dynamic Bayesian network with a latent mental state per member "
        f"(Seo and Unhelkar, IJCAI 2022), learned by {posterior.method} (seed {posterior.seed}) "
        f"from {counted(training.num_episodes, 'episode')}, {counted(training.num_steps, 'step')}, "
        f"of which {', '.join(f'{s:.0%}' for s in training.summary().share_labelled)} are labelled "
        f"({', '.join(training.agents)}). {'Converged' if posterior.converged else 'Not converged'}"
        f": {posterior.reason}. Probabilities are smoothed ones given the whole episode"
        + (", labels conditioned on," if told.findings.used_labels else ", without its labels,")
        + " under the posterior mean of the tables; the course of a mind is the Viterbi path; "
        f"misaligned means {meaning} on that path, its probability is the product form over "
        "members. Actions per mental state are posterior mean policy rows, weighted by smoothed "
        "visits, with central 89% intervals"
        + (
            " (of a mean field, too narrow where few steps are labelled; Gibbs sampling has better)"
            if method_of(posterior.method).answer == "approximation"
            else ""
        )
        + "; the amount of data is the expected number of reads of a row by the training "
        "data. R-hat, effective sample sizes and intervals: btil.analysis.plots, and "
        "posterior.draws_info.",
    )
    body += html_paragraph(
        "Beside this page: tables/ (CSV; steps.csv has every step with the probability of "
        "every mental state) and figures/ (SVG and PNG).",
    )
    if command is not None:
        body += html("code", "Made by:", command)
    return body + html_paragraph(f"btil {__version__}.")
