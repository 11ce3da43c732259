"""Commands that learn: `info`, `fit`, `decode`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from btil import (
    Demonstrations,
    DemonstrationsFile,
    open_demonstrations,
)
from btil.cli.app import app
from btil.cli.options import METHOD, MODEL, READING, CheckpointFile, Data, Resume, Seed, takes
from btil.cli.reading import (
    Reading,
    for_data,
    model_of,
    read,
)
from btil.cli.telling import quoted, refuse_failure, summary, warn_unless_converged
from btil.demonstrations.coding import warn
from btil.flags import Debug, Quiet
from btil.inference.method import methods_help

SHOWN_NAMES = 12


@app.command()
@takes(READING)
def info(
    data: Data,
    *,
    reading: Reading,
    debug: Debug = False,
) -> None:
    """Show what is in the data, and what a model may use as parents.

    \b
    Examples:
        btil info team.csv
        btil info overcooked:cramped_room:test
    """  # noqa: D301  # click needs the character itself
    demos = read(data, reading)
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
        shown = [*names[:SHOWN_NAMES]]
        if len(names) > SHOWN_NAMES:
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

    for sentence in crowded(bind(model_of(data), demos)):
        warn([f"as btil fit does it without options, {sentence}"])


@app.command()
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
        btil fit team.csv --out team.nc --model auto
        btil fit team.csv --out team.nc --policy-parents x,y --transition-parents actions
        btil fit team.csv --out team.nc --method gibbs --num-samples 1000 --model model.toml
        btil fit team.csv --out team.nc --method nuts --checkpoint team.checkpoint --resume
        btil fit many.parquet --out team.nc --batch-size 500
    """  # noqa: D301  # click needs the character itself
    from btil.files import check_writable
    from btil.posterior.fit import fit as infer

    check_writable(out, (".nc",))
    if checkpoint is not None and checkpoint.absolute() == out.absolute():
        raise ValueError(f"{out}: --out and --checkpoint must be two files")
    if resume and checkpoint is None:
        raise ValueError("--resume needs the --checkpoint FILE to go on from")
    team = model_of(data, **described)
    demos: Demonstrations | DemonstrationsFile
    if "batch_size" in options and Path(data).suffix.lower() == ".parquet":
        demos = open_demonstrations(data, **reading.arguments())
    else:
        demos = read(data, reading)
    team = for_data(team, described["model"], demos, quiet)
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
    posterior.save(out)
    typer.echo(summary(posterior))
    typer.echo(f"saved      {out}\n\nnext       btil decode {quoted(out)} {quoted(data)}")
    if not quiet:
        warn_unless_converged(method, posterior)


@app.command()
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
    *,
    reading: Reading,
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
    from btil.analysis.alignment import agents_pinned
    from btil.analysis.decoding import TABLE_ENDINGS, decoded_table, write_table
    from btil.analysis.metrics import hamming_distance
    from btil.files import check_writable
    from btil.posterior.loading import load_posterior

    if out is not None:
        check_writable(out, TABLE_ENDINGS)
    fitted = load_posterior(posterior)
    demos = read(data, reading, like=fitted.demos)
    decoded = fitted.decode(demos, use_labels)
    table = decoded_table(demos, decoded, fitted.smooth(demos, use_labels) if smooth else None)
    if out is None:
        table.to_csv(sys.stdout, index=False, lineterminator="\n")
    else:
        write_table(table, out)
        typer.echo(f"saved {out} ({len(table):,} steps)")
    pinned = agents_pinned(fitted.bound)
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
