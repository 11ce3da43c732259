"""Commands that make data and tables: `simulate`, `reproduce`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from btil.cli.app import app
from btil.cli.options import Seed
from btil.cli.reading import listed, task_named
from btil.cli.telling import keeping, quoted
from btil.domains.registry import domain_names
from btil.flags import Debug, Quiet


@app.command(short_help="Simulate a team of the paper; every step is labelled.")
def simulate(
    domain: Annotated[
        str,
        typer.Argument(
            metavar="DOMAIN", help=" or ".join(domain_names("task")) + ".", show_default=False
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="TABLE",
            help="Where the table goes: .csv, .parquet or .npz.",
        ),
    ],
    num_episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 200,
    map: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="paper, lesson, tiny, rooms, or a text file with a drawing of your own.",
        ),
    ] = "paper",
    seed: Seed = 0,
    max_steps: Annotated[int, typer.Option(help="Steps after which an episode is cut.")] = 200,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Simulate a team of the paper at work; save what it did, with every mental state labelled.

    In movers Alice and Rob carry boxes that only both together can lift, in cleanup each carries
    bags alone. What each wants next is theirs, and may not be what the other expects.

    \b
    A drawing has a line per row and tokens with blanks between them: # wall, . free cell,
    A and R where Alice and Rob start, G goal, 0, 1, ... items:
        A 0 .
        R # G

    \b
    Examples:
        btil simulate movers --num-episodes 200 --out demos.parquet
        btil simulate cleanup --map lesson --num-episodes 20 --seed 7 --out lesson.csv
        btil fit demos.parquet --out team.nc
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.metrics import suboptimal_share
    from btil.demonstrations import write_demonstrations
    from btil.files import check_writable

    task = task_named(domain, map)
    check_writable(out, (".csv", ".parquet", ".npz"))
    if not quiet:
        typer.echo(f"planning for {task.num_states:,} states", err=True)
    demos = task.simulate(num_episodes, seed=seed, max_steps=max_steps)
    write_demonstrations(demos, out)
    share = suboptimal_share(task, demos).over_episodes
    typer.echo(demos.summary())
    typer.echo(
        f"at cross purposes: {share:.1%} of an episode's steps, on average\n"
        f"saved {out}\n\nnext       btil info {quoted(out)}"
    )


@app.command(short_help="Make a table or figure of the paper again.")
def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="table1, tableA1, figure-supervision, suboptimality, table2-overcooked, parents "
            "or performance.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder of the results; all targets may share it."
        ),
    ],
    trials: Annotated[
        int | None, typer.Option(help="Trials per row: 5, or 1 with --quick.", show_default=False)
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Of movers and cleanup; of table2-overcooked, kitchens. Without it, all, or "
            "one with --quick.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Of random, behavioral-cloning, magail and btil (of performance also "
            "demonstrators and ppo); of table2-overcooked, random and mfvi. Without it, all.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A glance on tiny data; its numbers mean nothing."),
    ] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a table or figure of the paper again, the paper's numbers beside ours.

    \b
    table1              learners on simulated teamwork, with T_x given and without
    tableA1             the same from 200 labelled demonstrations
    figure-supervision  BTIL by number of demonstrations and share of labels
    parents             BTIL with parents that matter and shared tables (not in the paper)
    performance         learned teams do the task: steps, episodes cut (not in the paper)
    suboptimality       how often the simulated teams are at cross purposes
    table2-overcooked   decoding what people had in mind (on recordings of Overcooked; those of
                        the paper are not public)

    Every trial is saved in DIR as it ends. If the work is interrupted, the same command takes it
    up where it was; other targets use the same data and trials. The table is printed and written
    as TARGET.csv, .md and .html, the figure as .svg and .png. Where ours differs from the paper's
    by more than the spread over trials it is marked by an arrow. Cloning and magail are networks
    and take minutes; the rest is done first.

    \b
    Examples:
        btil reproduce table1 --quick --out glance
        btil reproduce table1 --methods random,btil --out results
        btil reproduce table2-overcooked --domain cramped_room --out results
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.reproduction import reproduce as make

    with keeping(out):
        made = make(
            target,
            out,
            trials=trials,
            domains=None if domain is None else listed(domain, "--domain"),
            methods=None if methods is None else listed(methods, "--methods"),
            quick=quick,
            seed=seed,
            progress=not quiet,
            command=shlex.join(["btil", *sys.argv[1:]]),
        )
    made.print()
    for file in made.files:
        typer.echo(f"saved {file}")
