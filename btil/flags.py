"""Flags that commands have in common."""

from typing import Annotated, Any

import typer


def _remember_debug(ctx: Any, value: bool) -> bool:
    # `meta` is one dictionary for a command and those above it.
    ctx.meta["debug"] = ctx.meta.get("debug", False) or value
    return value


Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_remember_debug, help="Show the whole traceback of an error."),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Nothing on standard error unless it goes wrong, or the data are doubtful.",
    ),
]
