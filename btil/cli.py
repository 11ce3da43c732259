"""The command `btil`: what the package does, from a shell.

Results go to standard output, progress, warnings and errors to standard error. Exit codes: 0 done,
1 a fit that failed, 2 bad usage or bad input, 130 interrupted. Everything heavy is imported inside
the commands, so that `btil --help` is quick.
"""

import contextlib
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from btil import (
    Demonstrations,
    DemonstrationsFile,
    __version__,
    open_demonstrations,
    read_demonstrations,
)
from btil.demonstrations import read_as_seen
from btil.demonstrations.coding import DataWarning, warn
from btil.flags import Debug, Quiet
from btil.study.cli import collect

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask
    from btil.models.team import TeamModel
    from btil.posterior.posterior import TeamPosterior

_CARRIED = "overcooked"
_SHOWN_NAMES = 12

# ---------------------------------------------------------------------- errors


class _Commands(TyperGroup):
    """Turns what goes wrong into one line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_in_one_line():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            typer.echo("; ".join(["interrupted", *_notes(error)]), err=True)
            raise typer.Exit(130) from None
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


def _refuse(ctx: Any, error: Exception, code: int) -> NoReturn:
    if ctx.meta.get("debug"):
        raise error
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    text = " ".join(text.split()) or type(error).__name__
    typer.echo("; ".join([f"error: {text}", *_notes(error)]), err=True)
    raise typer.Exit(code) from None


def _notes(error: BaseException) -> list[str]:
    """What is added to an error on its way: where the work so far is kept."""
    return getattr(error, "__notes__", [])


@contextlib.contextmanager
def _keeping(folder: Path) -> Iterator[None]:
    """Work that can be taken up again says so when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(
            f"what is complete is kept in {folder}; the same command goes on from there"
        )
        raise


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

# ---------------------------------------------------------------------- arguments

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table (.csv, .parquet or .npz), or carried data: overcooked:LAYOUT[:train|test], "
        "such as overcooked:cramped_room:test.",
        show_default=False,
    ),
]
NumLatents = Annotated[
    str | None,
    typer.Option(
        metavar="K[,K...]",
        help="Number of latents, one for all agents or one per agent. Needed where an agent has "
        "no label and the file does not record it.",
    ),
]
UnknownLabels = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT[,TEXT...]",
        help='Texts that mean an unknown label, beside an empty cell and -1; "" is none. Without '
        'it, texts such as "NA" and "None" are refused.',
    ),
]
DropLast = Annotated[
    bool,
    typer.Option(
        "--drop-last",
        help="Leave out an episode's last row where it has a state and no action of anybody.",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL.toml",
        help="A model file with the sections [policy], [transition] and [initial], each with "
        "family, concentration, parents and shared. It replaces the options below.",
    ),
]
PolicyParents = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="What a policy depends on; `btil info` lists what can."),
]
PolicyConcentration = Annotated[
    float | None, typer.Option(help="Dirichlet concentration of a policy's cells.")
]
TransitionParents = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help='What a latent\'s next value depends on; "" is nothing.'),
]
TransitionConcentration = Annotated[
    float | None, typer.Option(help="Dirichlet concentration of a transition's cells.")
]
Initial = Annotated[
    str | None,
    typer.Option(
        metavar="dirichlet|uniform", help="Whether the first latent's distribution is learned."
    ),
]
SharedTables = Annotated[
    bool, typer.Option("--shared", help="All agents have one table in common per role.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer, bit by bit.")]
NumChains = Annotated[int | None, typer.Option(help="nuts, gibbs: number of chains (4).")]
NumWarmup = Annotated[
    int | None, typer.Option(help="nuts, gibbs: draws thrown away per chain (500).")
]
KeepRows = Annotated[
    int | None,
    typer.Option(
        help="gibbs: keep the draws of so many contexts of each table, the most read, and moments "
        "of all; for models whose draws do not fit in memory."
    ),
]
NumSamples = Annotated[
    int | None, typer.Option(help="nuts, gibbs, svi: draws kept per chain (500; svi 1000).")
]
NumRestarts = Annotated[int | None, typer.Option(help="mfvi: runs, of which the best is kept (1).")]
Tolerance = Annotated[
    float | None,
    typer.Option(help="mfvi, svi: change of the bound per sweep that is small enough."),
]
MaxIterations = Annotated[int | None, typer.Option(help="mfvi, svi: most sweeps (1000; svi 5000).")]
Devices = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="mfvi, gibbs, nuts: devices over which episodes or chains are spread; cores of a CPU "
        "count as devices then.",
    ),
]
CheckpointFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the run's progress there as it goes."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the checkpoint, where there is one.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="mfvi: learn from so many episodes at a time; a Parquet file is then never in memory "
        "as a whole."
    ),
]


@app.callback()
def btil(
    debug: Debug = False,
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
        btil fit team.csv --out team.nc
        btil decode team.nc new.csv --out decoded.csv
        btil report team.csv --out debrief
        btil compare team.csv --methods mfvi,gibbs --out comparison
        btil calibrate team.csv --method gibbs --out calibration

    \b
    The paper's teams, simulated, and its tables made again:
        btil simulate movers --out demos.parquet
        btil reproduce table1 --quick --out glance

    \b
    Recordings of your own, with labels, from people in a browser:
        btil collect --out study

    Every command explains itself: btil fit --help.
    """  # noqa: D301  # click needs the character itself


# ---------------------------------------------------------------------- commands


@app.command()
def info(
    data: Data,
    num_latents: NumLatents = None,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    debug: Debug = False,
) -> None:
    """Show what is in the data, and what a model may use as parents.

    \b
    Examples:
        btil info team.csv
        btil info overcooked:cramped_room:test
    """  # noqa: D301  # click needs the character itself
    demos = _read(data, _Reading(num_latents, unknown_labels, drop_last))
    typer.echo(demos.summary())
    typer.echo("\nnames")
    for column in [
        *demos.state_names,
        *(f"action_{agent}" for agent in demos.action_names),
        *(f"latent_{agent}" for agent in demos.latent_names),
    ]:
        names = demos.value_names(column)
        # A name may hold a comma: "none, filling" is one.
        between = "; " if any("," in name for name in names) else ", "
        shown = [*names[:_SHOWN_NAMES]]
        if len(names) > _SHOWN_NAMES:
            shown.append(f"... ({len(names):,} in all)")
        typer.echo(f"  {column}: {between.join(shown)}")
    if not demos.state_names and not demos.action_names and not demos.latent_names:
        typer.echo("  none: values are numbers")
    actions = ", ".join(f"action_{agent}" for agent in demos.agents)
    typer.echo(
        "\nparents that a model may use\n"
        "  policy, initial  state (all state variables), or any of the states above\n"
        "  transition       these, and of the next step next_state (all) or next_<state>;\n"
        f"                   actions (all), own_action, other_actions, {actions}"
    )
    from btil.models.crowding import crowded
    from btil.models.team import bind

    for sentence in crowded(bind(_model(data), demos)):
        warn([f"as btil fit does it without options, {sentence}"])


@app.command()
def fit(
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="P.nc", help="Where the posterior is saved.")
    ],
    method: Annotated[str, typer.Option(help="mfvi, svi, nuts, gibbs or exact.")] = "mfvi",
    num_latents: NumLatents = None,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    model: Model = None,
    policy_parents: PolicyParents = None,
    policy_concentration: PolicyConcentration = None,
    transition_parents: TransitionParents = None,
    transition_concentration: TransitionConcentration = None,
    initial: Initial = None,
    shared: SharedTables = False,
    seed: Seed = 0,
    num_chains: NumChains = None,
    num_warmup: NumWarmup = None,
    num_samples: NumSamples = None,
    keep_rows: KeepRows = None,
    num_restarts: NumRestarts = None,
    tolerance: Tolerance = None,
    max_iterations: MaxIterations = None,
    devices: Devices = None,
    checkpoint: CheckpointFile = None,
    resume: Resume = False,
    batch_size: BatchSize = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn a team's policies and how its latents move; save the posterior.

    Labels in the data are conditioned on, unlabelled steps are inferred along. Without model
    options carried data get their recommended model, and a table the paper's: policies depend on
    the state, transitions on state and actions.

    \b
    Methods: mfvi (the paper's variational inference, quick), svi, gibbs and nuts (draws from the
    posterior; nuts is slow), exact (tiny data).

    \b
    Examples:
        btil fit overcooked:cramped_room --out kitchen.nc
        btil fit team.csv --out team.nc --policy-parents x,y --transition-parents actions
        btil fit team.csv --out team.nc --method gibbs --num-samples 1000 --model model.toml
        btil fit team.csv --out team.nc --method nuts --checkpoint team.checkpoint --resume
        btil fit many.parquet --out team.nc --batch-size 500
    """  # noqa: D301  # click needs the character itself
    from btil.files import check_writable
    from btil.inference.devices import provide_devices
    from btil.posterior.fit import fit as infer

    check_writable(out, (".nc",))
    if checkpoint is not None and checkpoint.absolute() == out.absolute():
        raise ValueError(f"{out}: --out and --checkpoint must be two files")
    if resume and checkpoint is None:
        raise ValueError("--resume needs the --checkpoint FILE to go on from")
    if devices is not None:
        provide_devices(devices)
    options = _given(
        devices=devices,
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        keep_rows=keep_rows,
        num_restarts=num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
        batch_size=batch_size,
    )
    team = _model(
        data,
        model,
        policy_parents,
        policy_concentration,
        transition_parents,
        transition_concentration,
        initial,
        shared,
    )
    reading = _Reading(num_latents, unknown_labels, drop_last)
    demos: Demonstrations | DemonstrationsFile
    if batch_size is not None and Path(data).suffix.lower() == ".parquet":
        demos = open_demonstrations(data, **reading.arguments())
    else:
        demos = _read(data, reading)
    posterior = infer(
        team,
        demos,
        method,
        seed=seed,
        progress=not quiet,
        checkpoint=checkpoint,
        resume=resume,
        **options,
    )
    _refuse_failure(method, posterior)
    posterior.save(out)
    typer.echo(_summary(posterior))
    typer.echo(f"saved      {out}\n\nnext       btil decode {_quoted(out)} {_quoted(data)}")
    if not quiet:
        _warn_unless_converged(method, posterior)


@app.command()
def decode(
    posterior: Annotated[
        Path,
        typer.Argument(
            metavar="P.nc", help="A posterior that `btil fit` saved.", show_default=False
        ),
    ],
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="TABLE",
            help="Where the table goes: .csv, .parquet or .npz. Without it, standard output.",
        ),
    ] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Add the probability of every latent at every step.")
    ] = False,
    use_labels: Annotated[
        bool,
        typer.Option(
            "--use-labels",
            help="Take labels in DATA for the truth, to complete what is partly labelled; no error "
            "is counted.",
        ),
    ] = False,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    debug: Debug = False,
) -> None:
    """Tell what each agent had in mind at every step: a table with a row per step.

    The most probable latents of each episode (Viterbi). Labels in the data are not looked at, but
    compared with afterwards: the error is the share of labelled steps decoded wrongly (mean over
    episodes). With --use-labels they count as observed, and the steps between them are decoded.

    \b
    Examples:
        btil decode kitchen.nc overcooked:cramped_room:test --out decoded.csv
        btil decode team.nc new.csv --smooth | head
        btil decode team.nc partly.csv --use-labels --out completed.csv
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.alignment import latents_pinned
    from btil.analysis.decoding import TABLE_ENDINGS, decoded_table, write_table
    from btil.analysis.metrics import hamming_distance
    from btil.files import check_writable
    from btil.posterior.loading import load_posterior

    if out is not None:
        check_writable(out, TABLE_ENDINGS)
    fitted = load_posterior(posterior)
    demos = _read(data, _Reading(None, unknown_labels, drop_last), like=fitted.demos)
    decoded = fitted.decode(demos, use_labels)
    table = decoded_table(demos, decoded, fitted.smooth(demos, use_labels) if smooth else None)
    if out is None:
        table.to_csv(sys.stdout, index=False, lineterminator="\n")
    else:
        write_table(table, out)
        typer.echo(f"saved {out} ({len(table):,} steps)")
    pinned = latents_pinned(fitted.model, fitted.demos)
    for agent in demos.agents:
        if not pinned[agent]:
            typer.echo(
                f"note: {posterior} was learned without labels of {agent}: which of its latents is "
                "which is arbitrary, whatever names they have in this table",
                err=True,
            )
    errors = hamming_distance(demos, decoded)
    shares = (demos.latents >= 0).mean(axis=0)
    for agent, error, share in zip(demos.agents, errors, shares, strict=True):
        told = None
        if use_labels:
            told = f"labels of {agent} used: {share:.1%} of the steps are labelled"
        elif share > 0 and pinned[agent]:
            told = f"error of {agent}: {error:.4f} ({share:.1%} of the steps are labelled)"
        if told is not None:
            # Without a file the table has standard output to itself.
            typer.echo(told, err=out is None)


@app.command()
def compare(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the report.")],
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Of mfvi, svi, gibbs, nuts and exact.")
    ] = "mfvi,svi,gibbs,nuts",
    test: Annotated[
        str | None,
        typer.Option(metavar="DATA2", help="Held-out episodes to be predicted and decoded."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="METHOD", help="What the others are measured against.")
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Estimate the log evidence too, for the gap of the bounds to it; takes a while.",
        ),
    ] = False,
    simulate_truth: Annotated[
        bool,
        typer.Option(
            "--simulate-truth",
            help="Do not learn from what happened in DATA, but from what a team drawn from the "
            "prior does on its states: how often intervals cover the truth is told.",
        ),
    ] = False,
    share_labelled: Annotated[
        float | None,
        typer.Option(
            help="With --simulate-truth, share of episodes labelled, 0 to 1. Without it, the "
            "steps labelled in DATA."
        ),
    ] = None,
    accuracy: Annotated[
        float, typer.Option(help="Error of probabilities; the time to it is told.")
    ] = 0.01,
    num_draws: Annotated[
        int, typer.Option(help="Posterior draws that beliefs about DATA2 are averaged over.")
    ] = 1000,
    num_latents: NumLatents = None,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    model: Model = None,
    policy_parents: PolicyParents = None,
    policy_concentration: PolicyConcentration = None,
    transition_parents: TransitionParents = None,
    transition_concentration: TransitionConcentration = None,
    initial: Initial = None,
    shared: SharedTables = False,
    seed: Seed = 0,
    num_chains: NumChains = None,
    num_warmup: NumWarmup = None,
    num_samples: NumSamples = None,
    num_restarts: NumRestarts = None,
    tolerance: Tolerance = None,
    max_iterations: MaxIterations = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit the same model by several methods, print how the answers compare, write a report.

    An option such as --num-samples goes to every method that has it. docs/comparison.md explains
    the numbers.

    \b
    Examples:
        btil compare team.csv --methods mfvi,gibbs --test new.csv --out report
        btil compare team.csv --simulate-truth --evidence --methods mfvi,gibbs --out truth
        btil compare overcooked:cramped_room --test overcooked:cramped_room:test \\
            --methods mfvi,svi,gibbs --out kitchen
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.compare import compare as compare_methods
    from btil.analysis.demo import print_table
    from btil.analysis.known_truth import simulate_truth as make_up
    from btil.analysis.report import prepare_directory
    from btil.posterior.fit import method_options

    chosen = _listed(methods, "--methods")
    options = _given(
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_restarts=num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    known = {name: method_options(name) for name in chosen}
    for option in options:
        if not any(option in has for has in known.values()):
            raise ValueError(f"none of {', '.join(chosen)} has the option {_flag(option)}")
    team = _model(
        data,
        model,
        policy_parents,
        policy_concentration,
        transition_parents,
        transition_concentration,
        initial,
        shared,
    )
    reading = _Reading(num_latents, unknown_labels, drop_last)
    demos = _read(data, reading)
    reading = reading._replace(num_latents=None)
    held_out = None if test is None else _read(test, reading, like=demos)
    truth = None
    if simulate_truth:
        made = make_up(team, demos, held_out, seed, share_labelled)
        demos, held_out, truth = made.demos, made.test, made.tables
    elif share_labelled is not None:
        raise ValueError("--share-labelled goes with --simulate-truth")
    prepare_directory(out)
    comparison = compare_methods(
        team,
        demos,
        methods=chosen,
        test=held_out,
        seed=seed,
        progress=not quiet,
        reference=reference,
        options={
            name: {option: value for option, value in options.items() if option in has}
            for name, has in known.items()
        },
        truth=truth,
        evidence=evidence,
        accuracy=accuracy,
        num_draws=num_draws,
    )
    for name, posterior in comparison.posteriors.items():
        _refuse_failure(name, posterior)
    page = comparison.report(out, command=shlex.join(["btil", *sys.argv[1:]]))
    print_table(comparison)
    typer.echo(f"report     {page}")
    if not quiet:
        for name, posterior in comparison.posteriors.items():
            _warn_unless_converged(name, posterior)


@app.command()
def calibrate(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the results.")],
    method: Annotated[str, typer.Option(help="mfvi, svi, nuts, gibbs or exact.")] = "mfvi",
    num_simulations: Annotated[int, typer.Option(help="Number of simulated data sets.")] = 100,
    share_labelled: Annotated[
        float | None,
        typer.Option(
            help="Share of episodes labelled in each, 0 to 1. Without it, the steps labelled in "
            "DATA."
        ),
    ] = None,
    num_episodes: Annotated[
        int | None, typer.Option(help="Take DATA's first episodes only.")
    ] = None,
    num_draws: Annotated[int, typer.Option(help="Posterior draws to rank truths among.")] = 100,
    num_latents: NumLatents = None,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    model: Model = None,
    policy_parents: PolicyParents = None,
    policy_concentration: PolicyConcentration = None,
    transition_parents: TransitionParents = None,
    transition_concentration: TransitionConcentration = None,
    initial: Initial = None,
    shared: SharedTables = False,
    seed: Seed = 0,
    num_chains: NumChains = None,
    num_warmup: NumWarmup = None,
    num_samples: NumSamples = None,
    num_restarts: NumRestarts = None,
    tolerance: Tolerance = None,
    max_iterations: MaxIterations = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Ask whether a method's posterior is right: simulation-based calibration.

    Tables are drawn from the prior, latents and actions from the tables (on the states in DATA),
    and the method is fitted to them, many times over. If its posterior is right, truths have
    uniform ranks among its draws; if it is too narrow, it says by how much, for each kind of table
    and for the latents. Every simulation is saved in DIR as it ends; the same command goes on
    from there, also with more simulations.

    \b
    Examples:
        btil calibrate team.csv --method gibbs --share-labelled 0.5 --out calibration
        btil calibrate team.csv --num-episodes 20 --num-simulations 200 --out narrow
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.calibration import calibrate as run
    from btil.analysis.output import output_console
    from btil.analysis.report import prepare_directory

    options = _given(
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_restarts=num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    team = _model(
        data,
        model,
        policy_parents,
        policy_concentration,
        transition_parents,
        transition_concentration,
        initial,
        shared,
    )
    demos = _read(data, _Reading(num_latents, unknown_labels, drop_last))
    if num_episodes is not None:
        if not 1 <= num_episodes <= demos.num_episodes:
            raise ValueError(
                f"--num-episodes is {num_episodes}; allowed are 1 to {demos.num_episodes}"
            )
        demos = demos.select(range(num_episodes))
    with _keeping(out):
        found = run(
            team,
            demos,
            method,
            num_simulations=num_simulations,
            num_draws=num_draws,
            share_labelled=share_labelled,
            seed=seed,
            progress=not quiet,
            directory=prepare_directory(out) / "simulations",
            **options,
        )
    page = found.report(out, command=shlex.join(["btil", *sys.argv[1:]]))
    output_console().print(found.summary_table())
    excess = found.overconfidence()
    if excess:
        value, error = excess["averaged"]
        typer.echo(f"latents: surer than right by {value:+.3f} ± {error:.3f}")
    for note in found.notes():
        typer.echo(f"- {note}")
    typer.echo(f"page       {page}")


@app.command()
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
            metavar="movers|cleanup",
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
            help="Take labels in DATA for the truth of their steps. Without it the page tells what "
            "actions alone say, and shows labels beside it.",
        ),
    ] = False,
    relearn: Annotated[
        bool,
        typer.Option(
            "--relearn/--no-relearn",
            help="Where all labels in DATA were learned from, learn once more without half of "
            "them, to tell how far the debrief is to be trusted.",
        ),
    ] = True,
    method: Annotated[
        str | None, typer.Option(help="mfvi (if none is named), svi, nuts, gibbs or exact.")
    ] = None,
    num_latents: NumLatents = None,
    unknown_labels: UnknownLabels = None,
    drop_last: DropLast = False,
    model: Model = None,
    policy_parents: PolicyParents = None,
    policy_concentration: PolicyConcentration = None,
    transition_parents: TransitionParents = None,
    transition_concentration: TransitionConcentration = None,
    initial: Initial = None,
    shared: SharedTables = False,
    seed: Seed = 0,
    num_chains: NumChains = None,
    num_warmup: NumWarmup = None,
    num_samples: NumSamples = None,
    num_restarts: NumRestarts = None,
    tolerance: Tolerance = None,
    max_iterations: MaxIterations = None,
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

    options = _given(
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_restarts=num_restarts,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    described = (
        model,
        policy_parents,
        policy_concentration,
        transition_parents,
        transition_concentration,
        initial,
        shared,
    )
    check_values({"max_episodes": max_episodes})
    world = None if task is None else _task(task, map)
    reading = _Reading(num_latents, unknown_labels, drop_last)
    directory = prepare_directory(out)
    if posterior is None:
        team = _model(data, *described, task=world)
        demos = _of_task(world, _read(data, reading))
        fitted = infer(team, demos, method or "mfvi", seed=seed, progress=not quiet, **options)
        _refuse_failure(fitted.method, fitted)
        fitted.save(directory / "posterior.nc")
    else:
        if (
            method is not None
            or options
            or any(option not in (None, False) for option in described)
        ):
            raise ValueError(
                "--posterior has been learned already; leave out --method, the model and the "
                "options of learning"
            )
        fitted = load_posterior(posterior)
        like = fitted.demos if world is None else None
        demos = _of_task(world, _read(data, reading, like))
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
    )
    for sentence in written.summary:
        typer.echo(f"- {sentence}")
    typer.echo(f"page       {written.page}")
    if not quiet:
        _warn_unless_converged(fitted.method, fitted)


@app.command()
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


@app.command()
def simulate(
    domain: Annotated[
        str, typer.Argument(metavar="DOMAIN", help="movers or cleanup.", show_default=False)
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
    episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 200,
    map: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="paper, lesson, tiny, or a text file with a drawing of your own.",
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
        btil simulate movers --episodes 200 --out demos.parquet
        btil simulate cleanup --map lesson --episodes 20 --seed 7 --out lesson.csv
        btil fit demos.parquet --out team.nc
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.metrics import suboptimal_share
    from btil.demonstrations import write_demonstrations
    from btil.files import check_writable

    task = _task(domain, map)
    check_writable(out, (".csv", ".parquet", ".npz"))
    if not quiet:
        typer.echo(f"planning for {task.num_states:,} states", err=True)
    demos = task.simulate(episodes, seed=seed, max_steps=max_steps)
    write_demonstrations(demos, out)
    share = suboptimal_share(task, demos).over_episodes
    typer.echo(demos.summary())
    typer.echo(
        f"at cross purposes: {share:.1%} of an episode's steps, on average\n"
        f"saved {out}\n\nnext       btil info {_quoted(out)}"
    )


@app.command()
def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="table1, tableA1, figure-supervision, suboptimality, table2-overcooked or "
            "parents.",
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
            help="Of random, behavioral-cloning, magail and btil; of table2-overcooked, random and "
            "mfvi. Without it, all.",
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

    with _keeping(out):
        made = make(
            target,
            out,
            trials=trials,
            domains=None if domain is None else _listed(domain, "--domain"),
            methods=None if methods is None else _listed(methods, "--methods"),
            quick=quick,
            seed=seed,
            progress=not quiet,
            command=shlex.join(["btil", *sys.argv[1:]]),
        )
    made.print()
    for file in made.files:
        typer.echo(f"saved {file}")


# ---------------------------------------------------------------------- input


def _task(name: str, map: str) -> "GridTask":
    """A grid world by its name, on a map as `_map` reads it."""
    from btil import domains
    from btil.domains.gridworld import GRID_WORLDS

    if name not in GRID_WORLDS:
        raise ValueError(f"unknown domain {name!r}; there are {', '.join(GRID_WORLDS)}")
    task: GridTask = getattr(domains, name)(_map(map))
    return task


def _of_task(task: "GridTask | None", demos: Demonstrations) -> Demonstrations:
    """Demonstrations of a grid world with the variables that its recommended model reads."""
    return demos if task is None else task.add_derived_variables(demos)


def _map(text: str) -> str:
    """A map's name, or the drawing in a file."""
    from btil.domains.gridworld.grid import MAPS

    path = Path(text)
    if text in MAPS or not path.is_file():
        return text
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file (UTF-8)") from None


class _Reading(NamedTuple):
    """The options of reading a file."""

    num_latents: str | None
    unknown_labels: str | None
    drop_last: bool

    def arguments(self) -> dict[str, Any]:
        """The same as arguments of the readers."""
        return {
            "num_latents": _sizes(self.num_latents),
            "unknown_labels": None
            if self.unknown_labels is None
            else _listed(self.unknown_labels, "--unknown-labels", may_be_none=True),
            "drop_last": self.drop_last,
        }


def _read(data: str, reading: _Reading, like: Demonstrations | None = None) -> Demonstrations:
    """Carried data or a file; with `like`, by the names and sizes of other demonstrations."""
    family, *parts = data.split(":")
    if family == _CARRIED and parts:
        for option in ("num_latents", "unknown_labels", "drop_last"):
            if getattr(reading, option) not in (None, False):
                raise ValueError(f"{_flag(option)} is for files; carried data know what they hold")
        if len(parts) > 2:
            raise ValueError(f"{data}: carried data are written overcooked:LAYOUT[:train|test]")
        from btil.domains.overcooked import load

        return load(*parts)
    arguments = reading.arguments()
    if like is None:
        return read_demonstrations(data, **arguments)
    del arguments["num_latents"]
    return read_as_seen(data, like, **arguments)


def _sizes(num_latents: str | None) -> int | list[int] | None:
    """One number for all agents, or one per agent."""
    if num_latents is None:
        return None
    try:
        sizes = [int(size) for size in num_latents.split(",")]
    except ValueError:
        raise ValueError(
            f"--num-latents is {num_latents!r}; allowed are a whole number, or one per agent "
            "separated by commas"
        ) from None
    return sizes[0] if len(sizes) == 1 else sizes


def _model(
    data: str,
    path: Path | None = None,
    policy_parents: str | None = None,
    policy_concentration: float | None = None,
    transition_parents: str | None = None,
    transition_concentration: float | None = None,
    initial: str | None = None,
    shared: bool = False,
    task: "GridTask | None" = None,
) -> "TeamModel":
    """The model that a file or options describe; without either the one that suits the data."""
    from btil.models.team import TeamModel

    description: dict[str, dict[str, Any]] = {
        "policy": _section("policy", policy_parents, policy_concentration),
        "transition": _section("transition", transition_parents, transition_concentration),
        "initial": {} if initial is None else {"family": initial},
    }
    if not any(description.values()) and not shared:
        if path is not None:
            from btil.models.description import read_model

            return read_model(path)
        if task is not None:
            return task.recommended_model()
        if data.startswith(f"{_CARRIED}:"):
            from btil.domains.overcooked import recommended_model

            return recommended_model(data.split(":")[1])
        return TeamModel()
    from btil.models.description import model_from_description

    if path is not None:
        raise ValueError("--model describes the whole model; leave out the other model options")
    if shared:
        description = {role: {**section, "shared": True} for role, section in description.items()}
    return model_from_description(description)


def _section(role: str, parents: str | None, concentration: float | None) -> dict[str, Any]:
    return _given(
        parents=None
        if parents is None
        else _listed(parents, f"--{role}-parents", may_be_none=True),
        concentration=concentration,
    )


def _listed(text: str, option: str, may_be_none: bool = False) -> list[str]:
    """The names of a list with commas."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names or not (names or may_be_none):
        raise ValueError(f"{option} is {text!r}; names separated by commas are expected")
    return names


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


# ---------------------------------------------------------------------- output


def _refuse_failure(name: str, posterior: "TeamPosterior") -> None:
    """Raise `ArithmeticError` if a fit did not give numbers."""
    import numpy as np

    means = [rows.mean() for rows in posterior.result.rows.values()]
    if posterior.elbo is not None:
        means.append(np.asarray(posterior.elbo))
    if not all(np.isfinite(values).all() for values in means):
        raise ArithmeticError(f"the {name} fit failed: {posterior.reason}")


def _warn_unless_converged(name: str, posterior: "TeamPosterior") -> None:
    if not posterior.converged:
        typer.echo(f"warning: {name} did not converge: {posterior.reason}", err=True)


def _summary(posterior: "TeamPosterior") -> str:
    learned = posterior.bound.learned
    lines = [
        f"method     {posterior.method}, seed {posterior.seed}, {posterior.dtype.name}, "
        f"{posterior.wall_time:.1f} s",
        f"converged  {'yes' if posterior.converged else 'NO'}: {posterior.reason}",
    ]
    if posterior.elbo is not None:
        error = "" if not posterior.elbo_se else f" (standard error {posterior.elbo_se:.2g})"
        lines.append(f"bound      {posterior.elbo:.4f}{error}")
    chains = posterior.draws_info
    for name, table in learned.items():
        text = f"learned    {name}: {' x '.join(map(str, table.shape))} cells"
        if chains is not None:
            one = chains.loc[name]
            text += (
                f"; largest R-hat of a cell {one['max_rhat']:.3f}, {one['rows_above']:,} of "
                f"{one['rows']:,} rows with a cell at 1.05 or more, least ESS "
                f"{one['min_ess_bulk']:.0f}"
            )
            if "max_split_rhat" in chains:
                text += f", largest split R-hat of rows without draws {one['max_split_rhat']:.3f}"
        lines.append(text)
    if not learned:
        lines.append("learned    nothing: every table is given")
    return "\n".join(lines)


def _quoted(word: Any) -> str:
    return shlex.quote(str(word))


def main() -> None:
    """The console command."""
    app(prog_name="btil")
