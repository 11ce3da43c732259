"""Commands that write pages: `report`, `demo`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from btil.cli.app import app
from btil.cli.options import METHOD, MODEL, READING, Data, Seed, takes
from btil.cli.reading import Reading, for_data, model_of, of_task, read, task_named
from btil.cli.telling import refuse_failure, warn_unless_converged
from btil.domains.registry import domain_names
from btil.flags import Debug, Quiet


@app.command(short_help="Write a debrief: a page for people who know teams.")
@takes(READING, MODEL, METHOD)
def report(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the debrief.")],
    posterior: Annotated[
        Path | None,
        typer.Option(
            metavar="P.nc",
            help="A posterior that `btil fit` saved. Without it, DATA are learned from first, and "
            "the posterior is saved as DIR/posterior.nc.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(domain_names("task")),
            help="DATA are of this grid world: minds are misaligned where the task says so.",
        ),
    ] = None,
    map: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Map of the task, as in `btil simulate`.")
    ] = "paper",
    max_episodes: Annotated[int, typer.Option(help="Most episodes shown step by step.")] = 4,
    use_labels: Annotated[
        bool,
        typer.Option(
            "--use-labels",
            help="Take labels in DATA for the truth of their steps. Without it the page reports "
            "what actions alone say, with the labels next to it.",
        ),
    ] = False,
    relearn: Annotated[
        bool,
        typer.Option(
            "--relearn/--no-relearn",
            help="Where all labels in DATA were learned from, learn once more without half of "
            "them, to measure how far the debrief can be trusted.",
        ),
    ] = True,
    method: Annotated[
        str | None, typer.Option(help="mfvi (if none is named), svi, nuts, gibbs or exact.")
    ] = None,
    *,
    reading: Reading,
    described: dict[str, Any],
    seed: Seed = 0,
    options: dict[str, Any],
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a debrief of a team, a page for people who know teams: no statistics needed.

    Who had what in mind when, where minds were misaligned and for how long, what each member tends
    to do, how minds change, and how sure all that is. The tables lie beside the page as CSV.
    Without model options the model is that of `btil fit`; with --task the recommended one.

    \b
    Examples:
        btil report team.csv --out debrief
        btil report new.csv --posterior team.nc --out debrief
        btil report movers.parquet --task movers --out debrief
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.debriefing import debrief
    from btil.analysis.report import prepare_directory
    from btil.arguments import check_values
    from btil.posterior.fit import fit as infer
    from btil.posterior.loading import load_posterior

    check_values({"max_episodes": max_episodes})
    world = None if task is None else task_named(task, map)
    directory = prepare_directory(out)
    suggestion = None
    if posterior is None:
        team = model_of(data, **described, task=world)
        demos = of_task(world, read(data, reading))
        team, suggestion = for_data(team, described, demos, quiet)
        fitted = infer(team, demos, method or "mfvi", seed=seed, progress=not quiet, **options)
        refuse_failure(fitted.method, fitted)
        fitted.save(directory / "posterior.nc")
    else:
        if (
            method is not None
            or options
            or any(option not in (None, False) for option in described.values())
        ):
            raise ValueError(
                "--posterior has been learned already; leave out --method, the model and the "
                "options of learning"
            )
        fitted = load_posterior(posterior)
        like = fitted.demos if world is None else None
        demos = of_task(world, read(data, reading, like))
    written = debrief(
        fitted,
        demos,
        directory,
        max_episodes=max_episodes,
        task=world,
        use_labels=use_labels,
        relearn=relearn,
        command=shlex.join(["btil", *sys.argv[1:]]),
        progress=not quiet,
        suggestion=suggestion,
    )
    for sentence in written.summary:
        typer.echo(f"- {sentence}")
    typer.echo(f"page       {written.page}")
    if not quiet:
        warn_unless_converged(fitted.method, fitted)


@app.command(short_help="The whole job on recordings of real people, in minutes.")
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the report.")
    ] = Path("btil-demo"),
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The main job on carried recordings of real people, in a few minutes.

    Two people cook soup in a small kitchen. A quarter of the recordings is labelled with what each
    of them was about to do; four methods learn from all of them and are tested on others. Prints
    what it does and the table, writes a report.

    \b
    Example:
        btil demo --out kitchen
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.demo import run_demo

    page = run_demo(out, progress=not quiet, say=typer.echo)
    typer.echo(f"report: {page}")
