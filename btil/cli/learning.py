"""Commands that learn: `info`, `fit`, `decode`."""

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from btil import (
    Demonstrations,
    DemonstrationsFile,
)
from btil.cli.app import app
from btil.cli.options import METHOD, MODEL, READING, CheckpointFile, Data, Resume, Seed, takes
from btil.cli.reading import (
    Reading,
    for_data,
    is_large,
    model_of,
    opened,
    read,
)
from btil.cli.telling import quoted, refuse_failure, summary, warn_unless_converged
from btil.cli.together import Distributed, join
from btil.demonstrations.coding import warn
from btil.demonstrations.formats.parquet import ROW_GROUP_STEPS
from btil.demonstrations.naming import agents_in, form_of, spoken
from btil.flags import Debug, Quiet
from btil.inference.method import methods_help

# Without --all: as much as a terminal shows at once.
SHOWN_NAMES, SHOWN_LINES, SHOWN_COLUMNS, SHOWN_OF_STATES = 12, 24, 80, 3


@app.command(short_help="Show what is in the data, and what a model may use.")
@takes(READING)
def info(
    data: Data,
    everything: Annotated[
        bool, typer.Option("--all", help="All columns and names, however many lines that takes.")
    ] = False,
    *,
    reading: Reading,
    debug: Debug = False,
) -> None:
    """Show what is in the data, and what a model may use as parents.

    One screen; with --all everything.

    \b
    Examples:
        btil info team.csv
        btil info overcooked:cramped_room:test --all
    """  # noqa: D301  # click needs the character itself
    demos = read(data, reading)
    sizes = str(demos.summary()).splitlines()
    parents = parents_told(demos)
    names = names_told(demos)
    if everything:
        told = ["\nnames", *(names or ["  none: values are numbers"])]
    else:
        sizes = first_states(sizes)
        room = max(SHOWN_LINES - len(sizes) - len(parents) - 4, len(demos.agents))
        told = on_one_screen(names, room)
    typer.echo("\n".join([*sizes, *told, *parents]))
    from btil.models.crowding import crowded
    from btil.models.team import bind

    for sentence in crowded(bind(model_of(data), demos)):
        warn([f"without model options to btil fit, {sentence}"])


def names_told(demos: Demonstrations) -> list[str]:
    """A line of names for each column that has some, those of mental states first."""
    lines = []
    for column in [
        *(f"latent_{agent}" for agent in demos.latent_names),
        *(f"action_{agent}" for agent in demos.action_names),
        *demos.state_names,
    ]:
        names = demos.value_names(column)
        # A name may hold a comma: "none, filling" is one.
        between = "; " if any("," in name for name in names) else ", "
        shown = [*names[:SHOWN_NAMES]]
        if len(names) > SHOWN_NAMES:
            shown.append(f"... ({len(names):,} in all)")
        lines.append(f"  {column}: {between.join(shown)}")
    return lines


def parents_told(demos: Demonstrations) -> list[str]:
    """What tables may read."""
    actions = ", ".join(f"action_{agent}" for agent in demos.agents)
    seen = [
        spoken(form_of(name, agent, demos.agents))
        for name in demos.state_variables
        for agent in sorted(agents_in(name, demos.agents))[:1]
    ]
    shared = [f"  all of them      also as each member sees it, such as {seen[0]}"] if seen else []
    return [
        "\nparents that a model may use",
        "  policy, initial  state (all state variables), or any of the states above",
        "  transition       these, and of the next step next_state (all) or next_<state>;",
        *textwrap.wrap(
            f"actions (all), own_action, other_actions, {actions}",
            SHOWN_COLUMNS,
            initial_indent=19 * " ",
            subsequent_indent=19 * " ",
        ),
        *shared,
    ]


def first_states(lines: list[str]) -> list[str]:
    """A summary whose state variables take a few lines."""
    indent = 16 * " "
    rest = [i for i, line in enumerate(lines) if line.startswith(indent)]
    if len(rest) < SHOWN_OF_STATES:
        return lines
    left_out = rest[SHOWN_OF_STATES - 1 :]
    kept = [line for i, line in enumerate(lines) if i not in left_out[1:]]
    kept[left_out[0]] = f"{indent}... (--all shows all)"
    return kept


def on_one_screen(names: list[str], room: int) -> list[str]:
    """Names in so many lines, each no wider than a terminal."""
    if not names:
        return ["\nnames", "  none: values are numbers"]
    shown = [
        line if len(line) <= SHOWN_COLUMNS else f"{line[: SHOWN_COLUMNS - 4]} ..."
        for line in names[:room]
    ]
    more = "" if shown == names else " (--all shows all)"
    return [f"\nnames{more}", *shown]


@app.command(short_help="Learn policies and how mental states change; save the posterior.")
@takes(READING, MODEL, METHOD)
def fit(
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="P.nc", help="Where the posterior is saved.")
    ],
    method: Annotated[str, typer.Option(help=methods_help())] = "mfvi",
    *,
    reading: Reading,
    described: dict[str, Any],
    seed: Seed = 0,
    options: dict[str, Any],
    checkpoint: CheckpointFile = None,
    resume: Resume = False,
    distributed: Distributed = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn a team's policies and how its mental states change; save the posterior.

    Labels in the data are conditioned on, unlabelled steps are inferred along. Without model
    options carried data get their recommended model, and a table the paper's: policies depend on
    the state, transitions on state and actions.

    \b
    Methods: mfvi (the paper's variational inference, quick), refined (draws around it), svi,
    gibbs and nuts (draws from the posterior; nuts is slow), exact (tiny data).

    \b
    Examples:
        btil fit overcooked:cramped_room --out kitchen.nc
        btil fit team.csv --out team.nc --model auto
        btil fit team.csv --out team.nc --policy-parents x,y --transition-parents actions
        btil fit team.csv --out team.nc --method gibbs --num-samples 1000 --model model.toml
        btil fit team.csv --out team.nc --method nuts --checkpoint team.checkpoint --resume
        btil fit folder/ --out team.nc --batch-size 500
        srun btil fit folder/ --out team.nc --batch-size 500 --distributed auto
    """  # noqa: D301  # click needs the character itself
    from btil.files import check_writable
    from btil.posterior.fit import fit as infer

    check_writable(out, (".nc",))
    if checkpoint is not None and checkpoint.absolute() == out.absolute():
        raise ValueError(f"{out}: --out and --checkpoint must be two files")
    if resume and checkpoint is None:
        raise ValueError("--resume needs the --checkpoint FILE to go on from")
    first = join(distributed)
    if distributed is not None:
        import jax

        options["devices"] = jax.device_count()
    team = model_of(data, **described)
    demos: Demonstrations | DemonstrationsFile
    if "batch_size" in options and is_large(data):
        demos = opened(data, reading)
    else:
        demos = read(data, reading)
    team, _ = for_data(team, described, demos, quiet)
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
    refuse_failure(method, posterior)
    if not first:
        return
    posterior.save(out)
    typer.echo(summary(posterior))
    typer.echo(f"saved      {out}\n\nnext       btil decode {quoted(out)} {quoted(data)}")
    if not quiet:
        warn_unless_converged(method, posterior)


@app.command(short_help="Tell what each member had in mind at every step: a table.")
@takes(READING.without("num_latents"))
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
    distributed: Distributed = None,
    *,
    reading: Reading,
    debug: Debug = False,
) -> None:
    """Tell what each member had in mind at every step: a table with a row per step.

    The most probable latents of each episode (Viterbi). Labels in the data are not looked at, but
    compared with afterwards: the error is the share of labelled steps decoded wrongly (mean over
    episodes). With --use-labels they count as observed, and the steps between them are decoded.
    From .parquet, or a folder of such, to .parquet it goes part by part, in little memory. With
    --distributed each process writes its part into the folder that --out names.

    \b
    Examples:
        btil decode kitchen.nc overcooked:cramped_room:test --out decoded.csv
        btil decode team.nc new.csv --smooth | head
        btil decode team.nc partly.csv --use-labels --out completed.csv
        btil decode team.nc folder/ --out decoded.parquet
    """  # noqa: D301  # click needs the character itself
    from btil.analysis.alignment import agents_pinned
    from btil.analysis.by_parts import decode_file
    from btil.analysis.decoding import TABLE_ENDINGS, decoded_table, write_table
    from btil.analysis.metrics import hamming_distance
    from btil.files import check_writable
    from btil.posterior.loading import load_posterior

    if distributed is not None and (out is None or out.suffix or not is_large(data)):
        raise ValueError(
            "--distributed: DATA must be .parquet or a folder of such, and --out a folder"
        )
    if out is not None and distributed is None:
        check_writable(out, TABLE_ENDINGS)
    first = join(distributed)
    fitted = load_posterior(posterior)
    if out is not None and out.suffix.lower() in ("", ".parquet") and is_large(data):
        file = opened(data, reading, fitted.demos)
        large = file.source.num_rows > ROW_GROUP_STEPS
        scores = decode_file(
            fitted,
            file,
            out,
            smooth=smooth,
            use_labels=use_labels,
            distributed=distributed is not None,
            progress=large,
        )
        errors, shares, steps = (
            scores.metrics["viterbi_error"], scores.share_labelled, scores.num_steps
        )  # fmt: skip
    else:
        demos = read(data, reading, like=fitted.demos)
        decoded = fitted.decode(demos, use_labels)
        table = decoded_table(demos, decoded, fitted.smooth(demos, use_labels) if smooth else None)
        steps = len(table)
        if out is None:
            table.to_csv(sys.stdout, index=False, lineterminator="\n")
        else:
            write_table(table, out)
        errors = hamming_distance(demos, decoded)
        shares = (demos.latents >= 0).mean(axis=0)
    if not first:
        return
    if out is not None:
        typer.echo(f"saved {out} ({steps:,} steps)")
    pinned = agents_pinned(fitted.bound)
    for agent in fitted.demos.agents:
        if not pinned[agent]:
            typer.echo(
                f"note: {posterior} was learned without labels of {agent}: which of its latents is "
                "which is arbitrary, whatever names they have in this table",
                err=True,
            )
    for agent, error, share in zip(fitted.demos.agents, errors, shares, strict=True):
        told = None
        if use_labels:
            told = f"labels of {agent} used: {share:.1%} of the steps are labelled"
        elif share > 0 and pinned[agent]:
            told = f"error of {agent}: {error:.4f} ({share:.1%} of the steps are labelled)"
        if told is not None:
            # Without a file the table has standard output to itself.
            typer.echo(told, err=out is None)
