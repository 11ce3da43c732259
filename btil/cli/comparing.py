"""Commands that compare methods: `compare`, `calibrate`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from btil.cli.app import app
from btil.cli.options import METHOD, MODEL, READING, Data, Seed, takes
from btil.cli.reading import Reading, flag, for_data, listed, model_of, read
from btil.cli.telling import keeping, refuse_failure, warn_unless_converged
from btil.flags import Debug, Quiet
from btil.inference.method import method_names, methods_help


@app.command(short_help="Fit a model by several methods and compare the answers.")
@takes(READING, MODEL, METHOD.without("num_draws"))
def compare(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the report.")],
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help=f"Of {', '.join(method_names())}.")
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
            "prior does on its states: how often intervals cover the truth is reported.",
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
        float, typer.Option(help="Error of probabilities; the time to reach it is reported.")
    ] = 0.01,
    num_draws: Annotated[
        int, typer.Option(help="Posterior draws that beliefs about DATA2 are averaged over.")
    ] = 1000,
    num_played: Annotated[
        int,
        typer.Option(
            help="Episodes that each method's team is let play, where DATA are of a grid world on "
            "one of its maps; 0: none."
        ),
    ] = 50,
    every_row: Annotated[
        bool, typer.Option(help="Print all rows of the table, not only those that decide.")
    ] = False,
    *,
    reading: Reading,
    described: dict[str, Any],
    seed: Seed = 0,
    options: dict[str, Any],
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit the same model by several methods, print how the answers compare, write a report.

    An option such as --num-samples goes to every method that has it.
    docs/tutorials/comparison.md explains the numbers.

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

    chosen = listed(methods, "--methods")
    known = {name: {*method_options(name), "dtype"} for name in chosen}
    for option in options:
        if not any(option in has for has in known.values()):
            raise ValueError(f"none of {', '.join(chosen)} has the option {flag(option)}")
    team = model_of(data, **described)
    demos = read(data, reading)
    team, suggestion = for_data(team, described, demos, quiet)
    reading = reading._replace(num_latents=None)
    held_out = None if test is None else read(test, reading, like=demos)
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
        num_played=num_played,
    )
    for name, posterior in comparison.posteriors.items():
        refuse_failure(name, posterior)
    command = shlex.join(["btil", *sys.argv[1:]])
    page = comparison.report(out, command, suggestion)
    print_table(comparison, every_row)
    typer.echo(f"report     {page}")
    if not quiet:
        for name, posterior in comparison.posteriors.items():
            warn_unless_converged(name, posterior)


@app.command(short_help="Ask whether a method's intervals can be believed.")
@takes(READING, MODEL, METHOD.without("num_draws"))
def calibrate(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of the results.")],
    method: Annotated[str, typer.Option(help=methods_help())] = "mfvi",
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
    *,
    reading: Reading,
    described: dict[str, Any],
    seed: Seed = 0,
    options: dict[str, Any],
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

    team = model_of(data, **described)
    demos = read(data, reading)
    team, _ = for_data(team, described, demos, quiet)
    if num_episodes is not None:
        if not 1 <= num_episodes <= demos.num_episodes:
            raise ValueError(
                f"--num-episodes is {num_episodes}; allowed are 1 to {demos.num_episodes}"
            )
        demos = demos.select(range(num_episodes))
    with keeping(out):
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
