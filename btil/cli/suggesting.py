"""The command `suggest`: a model file for a recording."""

from pathlib import Path
from typing import Annotated

import typer

from btil.cli.app import app
from btil.cli.options import READING, Data, Seed, takes
from btil.cli.reading import Reading, read, roles_of
from btil.cli.telling import quoted
from btil.flags import Debug, Quiet


@app.command(short_help="Find a good model for a recording, and say why.")
@takes(READING)
def suggest(
    data: Data,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="MODEL.toml",
            help="Where the model goes. Without it, it is printed.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=ROLE",
            help="What a column is where its name does not say it: common, ignore, an agent, or "
            "the name that it should have. Can be given several times.",
        ),
    ] = None,
    reading: Reading,
    seed: Seed = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find a good model for a recording: what policies and transitions depend on, by its labels.

    Names of columns tell whose they are: ann_cell is Ann's own. Columns that tell which episodes
    are labelled, or that never change or repeat, are refused. `btil fit DATA --model auto` does
    the same and learns at once.

    \b
    Examples:
        btil suggest team.csv --out model.toml
        btil suggest team.csv --role x1=ann_x --role x2=bob_x --role note=ignore
    """  # noqa: D301  # click needs the character itself
    from btil.files import check_writable, replacing
    from btil.suggestion import suggest_model

    if out is not None:
        check_writable(out, (".toml",))
    demos = read(data, reading)
    suggestion = suggest_model(demos, seed=seed, progress=not quiet, roles=roles_of(role))
    for sentence in suggestion.warnings:
        typer.echo(f"warning: {sentence}", err=True)
    typer.echo(suggestion.words())
    if out is None:
        typer.echo(f"\n{suggestion.toml}", nl=False)
    else:
        with replacing(out) as temporary:
            temporary.write_text(suggestion.toml, encoding="utf-8")
        typer.echo(
            f"saved      {out}\n\n"
            f"next       btil fit {quoted(data)}{reading.words()} --model {quoted(out)} "
            "--out team.nc"
        )
