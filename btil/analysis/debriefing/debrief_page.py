"""The debrief as a page: findings in plain words, figures, and tables beside it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from btil.analysis.debriefing.findings import Findings, find, unseen_labels
from btil.analysis.debriefing.sections import Told, apart_word, body_of, summary
from btil.analysis.decoding import decoded_table
from btil.analysis.output import PagePart, html, html_page, staged_page, written_figure
from btil.analysis.report import prepare_directory
from btil.analysis.words import listed
from btil.arguments import check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import counted
from btil.posterior.beliefs import Posterior, refuse_excerpt
from btil.posterior.conforming import conform
from btil.posterior.fit import fit_again
from btil.progress import progress_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from btil.domains.gridworld.task import GridTask

PAGE = "debrief.html"
_LIST = "debrief-files.txt"
# Beyond so many kinds, colours are hard to tell apart and a heat map is clearer.
_MOST_COLORS = 8


@dataclass(frozen=True, eq=False)
class Debrief:
    """A debrief that has been written.

    Attributes:
        page: The page.
        method: The inference method by which the team was learned.
        findings: What it tells, as tables.
        summary: The most important of it, a sentence each.
    """

    page: Path
    method: str
    findings: Findings
    summary: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Debrief({self.findings.told}, learned by {self.method}: {self.page})"


def debrief(
    posterior: Posterior,
    demos: Demonstrations,
    directory: Any,
    max_episodes: int = 4,
    task: "GridTask | None" = None,
    use_labels: bool = False,
    relearn: bool = True,
    command: str | None = None,
    progress: bool = True,
    suggestion: PagePart | None = None,
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
        use_labels: Whether labels in the recordings are taken for the truth of their steps; else
            the page tells what actions alone say, and shows labels beside it.
        relearn: Whether, where all labels in the recordings were learned from, the same is learned
            once more without half of them, to test on that half how reliable it is; it takes as
            long as before.
        command: The shell command that asked for it, to be told in the page.
        progress: Whether to show a progress line.
        suggestion: Where the model is from, if `suggest_model` found it: a section tells why.

    Returns:
        Where the page is, and what it tells.

    Raises:
        ValueError: If the recordings are not of this team, or impossible under the posterior, or
            the posterior was learned from a file batch by batch.
        OSError: If the folder cannot be written to; before anything is computed.

    Example:
        >>> btil.analysis.debrief(posterior, demos, "debrief").summary  # doctest: +SKIP
    """
    check_values({"max_episodes": max_episodes, "progress": progress})
    refuse_excerpt(posterior, "a debrief")
    directory = prepare_directory(directory)
    judge = _learn_again(posterior, demos, progress) if relearn else None
    findings = find(posterior, demos, task, use_labels, judge)
    chosen = findings.worth_a_look()[:max_episodes]
    told = Told(posterior, findings, task, judge is not None)
    with staged_page(directory, PAGE, _LIST) as staging:
        for folder in ("tables", "figures"):
            (staging / folder).mkdir()
        pictures = {"minds": Markup(), "alignment": Markup()}
        names = _file_names([str(one) for one in findings.demos.episode_ids.tolist()])
        with progress_line(len(chosen), "debrief", progress) as line:
            for number, episode in enumerate(chosen):
                for picture in _pictures(posterior, findings, episode, task, use_labels):
                    name = f"episode_{names[episode]}_{picture.kind}"
                    stem = staging / "figures" / name
                    shown = written_figure(picture.figure, stem, picture.caption)
                    title = f"Episode {findings.demos.episode_ids[episode]}"
                    pictures[picture.kind] += shown if number == 0 else html("folded", title, shown)
                line.update()
        for name, table in _tables(findings).items():
            table.to_csv(staging / "tables" / f"{name}.csv", index=False, lineterminator="\n")
        body, links = body_of(told, pictures, len(chosen), command, suggestion)
        title = f"What {listed(demos.agents)} had in mind"
        source = "what they did and what was labelled" if findings.used_labels else "what they did"
        lead = (
            f"{counted(demos.num_episodes, 'episode')}, {counted(demos.num_steps, 'step')}. For "
            f"every step: what each member most probably had in mind, concluded from {source}."
        )
        page = html_page(title, lead, body, links)
        (staging / PAGE).write_text(page, encoding="utf-8")
    return Debrief(directory / PAGE, posterior.method, findings, tuple(summary(told)))


def _file_names(ids: list[str]) -> list[str]:
    """A name for the files of each episode: what it is called, made fit for a file.

    Where that is nothing, or that of another one, its position (from 1) is added.
    """
    plain = [re.sub(r"[^\w.-]+", "_", one).strip("._") for one in ids]
    names = [
        name if name and plain.count(name) == 1 else f"{name}_{number}".strip("_")
        for number, name in enumerate(plain, 1)
    ]
    if len(set(names)) < len(names):  # a name with a number may be what another one is called
        return [f"{name}_{number}".strip("_") for number, name in enumerate(plain, 1)]
    return names


def _learn_again(posterior: Posterior, demos: Demonstrations, progress: bool) -> Posterior | None:
    """The same, learned without the labels of half of the episodes; None where that is no use."""
    training = posterior.demos
    labelled = np.add.reduceat((training.latents >= 0).any(1), training.episode_starts, dtype=int)
    episodes = np.flatnonzero(labelled)
    own = conform(demos, training)
    if len(episodes) < 2 or not (own.latents >= 0).any() or unseen_labels(training, own).any():
        return None
    hidden = training.without_labels(episodes[1::2])
    return fit_again(posterior, hidden, seed=posterior.seed, progress=progress)


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


# ---------------------------------------------------------------------- pictures


class _Picture(NamedTuple):
    """A figure of an episode, of the kind "minds" or "alignment"."""

    kind: str
    figure: "Figure"
    caption: str


def _pictures(
    posterior: Posterior,
    findings: Findings,
    episode: int,
    task: "GridTask | None",
    use_labels: bool,
) -> Iterable[_Picture]:
    """The figures of an episode."""
    from btil.analysis.plots import plot_alignment, plot_timeline

    demos = findings.demos
    name = demos.episode_ids[episode]
    many = max(demos.num_latents) > _MOST_COLORS
    kind = "heatmap" if many else "bands"
    figure = plot_timeline(posterior, demos, episode, kind=kind, use_labels=use_labels)
    for axes, agent in zip(figure.axes, demos.agents, strict=False):
        axes.set_title(f"{agent}, episode {name}", loc="left")
    reading = (
        "the brighter a lane, the more probable; the bars are the most probable course"
        if many
        else "the more of the height a colour has, the more probable; below, the most probable "
        "course"
    )
    labelled = (demos.select([episode]).latents >= 0).any()
    done = "were taken for true" if use_labels else "were not looked at"
    known = f" Labels are drawn too; they {done}." if labelled else ""
    caption = f"Episode {name}, what each member had in mind at each step: {reading}.{known}"
    yield _Picture("minds", figure, caption)
    if findings.incomparable is None:
        figure = plot_alignment(posterior, demos, episode, task, use_labels=use_labels)
        figure.axes[0].set_title(f"episode {name}: do minds agree?", loc="left")
        if labelled:
            known = f" The thin bars under them, and the black line, are labels; they {done}."
        yield _Picture(
            "alignment",
            figure,
            f"Episode {name}. Above, how probable it is that minds were aligned; below, what each "
            f"member most probably had in mind. Grey: minds were {apart_word(task)}.{known}",
        )
