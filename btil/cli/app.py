"""The command `btil`: what goes wrong in one line, exit codes, and the group of commands.

Results go to standard output, progress, warnings and errors to standard error. Exit codes: 0 done,
1 a fit that failed, 2 bad usage or bad input, 130 interrupted. Everything heavy is imported inside
the commands, so that `btil --help` is quick.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from btil import (
    __version__,
)
from btil.cli.quick import fewer_collections, keep_programs
from btil.demonstrations.coding import DataWarning
from btil.files import tidying
from btil.flags import Debug
from btil.progress import failing_by_interruption, interruptible
from btil.study.cli import collect

FROM_CONSOLE = "console"
# What is wrong with the words of a command; typer shows one kind of it only.
_UsageError: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """Turns what goes wrong into one line on standard error and an exit code."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        if not args:  # the help is shown
            return super().make_context(info_name, args, *more, **extra)
        try:
            return super().make_context(info_name, args, *more, **extra)
        except _UsageError as error:
            _refuse_usage(error, str(info_name))
        except KeyboardInterrupt as error:
            _end_interrupted(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_in_one_line(), tidying(), failing_by_interruption():
                return super().invoke(ctx)
        except _UsageError as error:
            _refuse_usage(error, f"{ctx.command_path} {ctx.invoked_subcommand}")
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            _end_interrupted(error)
        except (ValueError, TypeError, OSError) as error:
            _refuse(ctx, error, 2)
        except (ArithmeticError, RuntimeError, MemoryError) as error:
            _refuse(ctx, error, 1)


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Python's warnings as a line each, without the line of code that led to them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        warnings.showwarning = show
        yield


def _end_interrupted(error: KeyboardInterrupt) -> NoReturn:
    typer.echo("; ".join(["interrupted", *notes_of(error)]), err=True)
    raise typer.Exit(130) from None


def _refuse(ctx: Any, error: Exception, code: int) -> NoReturn:
    if ctx.meta.get("debug"):
        raise error
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    text = " ".join(text.split()) or type(error).__name__
    typer.echo("; ".join([f"error: {text}", *notes_of(error)]), err=True)
    raise typer.Exit(code) from None


def _refuse_usage(error: Any, command: str) -> NoReturn:
    """Options and arguments that a command does not have, or that are none."""
    text = " ".join(error.format_message().split()).removesuffix(".")
    # Of an option without its value it is not said whose it is.
    command = command if error.ctx is None else error.ctx.command_path
    typer.echo(f"error: {text}; see {command} --help", err=True)
    raise typer.Exit(error.exit_code) from None


def notes_of(error: BaseException) -> list[str]:
    """What is added to an error on its way: where the work so far is kept."""
    return getattr(error, "__notes__", [])


def _keep_programs(ctx: Any, value: bool) -> bool:
    # Whoever calls the commands from Python decides about JAX without us.
    if value and ctx.obj == FROM_CONSOLE:
        keep_programs()
    return value


def _print_version(value: bool) -> bool:
    if value:
        typer.echo(f"btil {__version__}")
        raise typer.Exit
    return value


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: it reads the same in a terminal, a pager and a log.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(collect)


@app.callback()
def btil(
    debug: Debug = False,
    compilation_cache: Annotated[
        bool,
        typer.Option(
            "--compilation-cache/--no-compilation-cache",
            callback=_keep_programs,
            help="Keep compiled programs in the user's cache folder, so that the same command is "
            "quicker the next time.",
        ),
    ] = True,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Learn what the members of a team had in mind, from recordings of which few are labelled.

    \b
    The main job on recordings of real people, with a report at the end:
        btil demo

    \b
    Your own data, one row per step (episode, step, states, action_<agent>, latent_<agent>):
        btil info team.csv
        btil suggest team.csv --out model.toml
        btil fit team.csv --model model.toml --out team.nc
        btil decode team.nc new.csv --out decoded.csv
        btil report team.csv --out debrief
        btil compare team.csv --methods mfvi,gibbs --out comparison
        btil calibrate team.csv --method gibbs --out calibration

    \b
    The paper's teams, simulated; a learned team at work; the paper's tables made again:
        btil simulate movers --out demos.parquet
        btil play movers --posterior team.nc --out played.parquet
        btil reproduce table1 --quick --out glance

    \b
    Recordings of your own, with labels, from people in a browser:
        btil collect --out study

    Every command explains itself: btil fit --help.
    """  # noqa: D301  # click needs the character itself


def main() -> None:
    """The console command."""
    with interruptible(), fewer_collections():
        app(prog_name="btil", obj=FROM_CONSOLE)
