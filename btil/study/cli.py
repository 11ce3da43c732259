"""The command `btil collect`: serve the study page, export what was collected, play it back."""

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from btil.flags import Debug, Quiet

if TYPE_CHECKING:
    from typer import Context
else:
    # What Typer really passes.
    Context = typer.Context.__base__

_NEEDED = ("starlette", "uvicorn", "websockets", "markdown_it")

collect = typer.Typer(
    name="collect",
    short_help="Collect labelled teamwork from people, in a browser.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Folder = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="Folder of the study.", show_default=False),
]
Host = Annotated[
    str, typer.Option(help="Address to listen on. The default is reached from this machine alone.")
]


def _need_server() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"this needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed: pip install 'btil[study]'"
        )


@collect.callback(invoke_without_command=True)
def serve(
    ctx: Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="STUDY",
            help="Folder of the study; made, with settings that can be run, where it is missing.",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    origin: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="What participants type, where it is not the address that is listened on: "
            "https://study.example.org.",
        ),
    ] = None,
    forwarded: Annotated[
        str | None,
        typer.Option(
            "--forwarded",
            metavar="ADDRESS",
            help="Address of a proxy in front, such as 127.0.0.1: its word counts for where "
            "participants come from. Without it no such word is believed.",
            show_default=False,
        ),
    ] = None,
    teammate: Annotated[
        str | None,
        typer.Option(
            metavar="ai|human|P.nc",
            help="Who plays Rob for those who come now, instead of what study.toml says: an AI, "
            "a person, or a learned one, a posterior in STUDY.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of a new study: decides what chance does in it.", show_default=False
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Collect teamwork with labels of what people had in mind, in a browser.

    Serves a page on which people play Movers and Cleanup with an AI teammate, or with each other,
    and say where they are heading. Edit study.toml, the texts and the surveys in STUDY before
    participants come. Every step is saved at once; stopped and started again, all go on where
    they were.

    \b
    Examples:
        btil collect --out study
        btil collect --out pairs --teammate human --port 8080
        btil collect export study --out demos.parquet --tables tables
        btil collect key study
        btil collect backup study --out copy
        btil collect erase study 314159
        btil collect replay study --posterior team.nc
    """  # noqa: D301  # click needs the character itself
    if ctx.invoked_subcommand is not None:
        return
    if out is None:
        raise ValueError("--out STUDY is missing: the folder of the study")
    _need_server()
    from btil.study.serving import collect as serve_study

    serve_study(out, host, port, teammate, origin, forwarded, seed, _teller(quiet))


def _teller(quiet: bool) -> Any:
    return (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True))


@collect.command()
def export(
    study: Folder,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="TABLE", help="Where it goes: .csv, .parquet or .npz."),
    ],
    domain: Annotated[
        str | None,
        typer.Option(metavar="movers|cleanup", help="One task alone.", show_default=False),
    ] = None,
    practice: Annotated[
        bool,
        typer.Option("--practice", help="With practice sessions, where Alice has no labels."),
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="With sessions that have not come to their end.")
    ] = False,
    derived: Annotated[
        bool,
        typer.Option("--derived", help="With the derived variables that make good parents."),
    ] = False,
    surveys: Annotated[
        Path | None, typer.Option(metavar="TABLE.csv", help="Where the answers to surveys go.")
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE.csv", help="Where times and answered selectors go, a row per step."
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for all tables: participants, sessions, steps, selector, answers, notes.",
        ),
    ] = None,
    identities: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE.csv",
            help="Where values of the address and completion codes go. They identify people: "
            "keep them apart from the data.",
        ),
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option(metavar="DIGITS", help="One participant alone.", show_default=False),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write what was collected as demonstrations, every step labelled.

    The test sessions, each step with the destination that the person chose last and with the AI
    teammate's mental state. Participants have random numbers. Where the study has several tasks,
    each gets a file with its name: demos-movers.parquet, demos-cleanup.parquet. The study may be
    running meanwhile.

    \b
    Examples:
        btil collect export study --out demos.parquet --surveys answers.csv
        btil collect export study --out movers.csv --domain movers --practice
        btil collect export study --out all.csv --tables tables --identities paid.csv
        btil collect export study --out one.csv --participant 314159 --tables one
    """  # noqa: D301  # click needs the character itself
    from btil.files import check_writable
    from btil.study.export import export_study

    check_writable(out, (".csv", ".parquet", ".npz"))
    for table in (surveys, steps, identities):
        if table is not None:
            check_writable(table, (".csv",))
    for path, summary in export_study(
        study, out, domain, practice, unfinished, derived, surveys, steps, tables, identities,
        participant,
    ):  # fmt: skip
        if summary is not None:
            typer.echo(summary)
        typer.echo(f"saved {shlex.quote(str(path))}\n")


@collect.command()
def erase(
    study: Folder,
    participant: Annotated[
        str, typer.Argument(metavar="PARTICIPANT", help="The six digits.", show_default=False)
    ],
    debug: Debug = False,
) -> None:
    """Delete all that there is of a participant; the rest of the study stays whole.

    Answers, steps, times, values of the address and the completion code. Sessions that were played
    with another participant go as well. Backups are yours to look after. While the study is being
    served, erase on the researcher's page.

    \b
    Examples:
        btil collect erase study 314159
    """  # noqa: D301  # click needs the character itself
    from btil.study.keeping import erase as erase_from

    sessions = erase_from(study, participant)
    typer.echo(f"erased participant {participant}, with sessions: {sessions}")


@collect.command()
def backup(
    study: Folder,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Where it goes; made, and empty before."
        ),
    ],
    identities: Annotated[
        bool,
        typer.Option(
            "--identities/--no-identities",
            help="With what identifies people: values of the address, completion codes.",
        ),
    ] = True,
    debug: Debug = False,
) -> None:
    """Copy a study into another folder, as it is at one moment; it may be running meanwhile.

    The copy is a study: it can be exported, played back and served.

    \b
    Examples:
        btil collect backup study --out backup-monday
    """  # noqa: D301  # click needs the character itself
    from btil.study.keeping import back_up

    back_up(study, out, identities)
    typer.echo(f"saved {shlex.quote(str(out))}")


@collect.command()
def key(study: Folder, debug: Debug = False) -> None:
    """Show the key to the researcher's pages.

    It is kept in STUDY/researcher.key, which its owner alone can read. Delete that file for a new
    key; it counts when the study is served again.

    \b
    Examples:
        btil collect key study
    """  # noqa: D301  # click needs the character itself
    from btil.study.keeping import key_of

    typer.echo(key_of(study))


@collect.command()
def replay(
    study: Folder,
    posterior: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="P.nc",
            help="A posterior that `btil fit` saved; once for every task.",
            show_default=False,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8001,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Serve a page that plays back what was collected, beside what a fitted model makes of it.

    \b
    Examples:
        btil collect replay study
        btil collect replay study --posterior movers.nc --posterior cleanup.nc
    """  # noqa: D301  # click needs the character itself
    _need_server()
    from btil.study.replay import serve_replay

    serve_replay(study, posterior or [], host, port, _teller(quiet))
