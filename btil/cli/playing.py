"""The command `play`: a team that was learned at work in its task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from btil.cli.app import app
from btil.cli.options import Seed
from btil.cli.reading import listed, task_named
from btil.domains.registry import domain_names
from btil.flags import Debug, Quiet

_PICTURES = (".png", ".svg", ".pdf", ".gif")


@app.command(short_help="Let a learned team act in its task, and report how well.")
def play(
    domain: Annotated[
        str,
        typer.Argument(
            metavar="DOMAIN", help=" or ".join(domain_names("task")) + ".", show_default=False
        ),
    ],
    posterior: Annotated[
        Path,
        typer.Option(metavar="P.nc", help="The team: a posterior that `btil fit` saved."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="TABLE",
            help="Where the table of what it does goes: .csv, .parquet or .npz.",
        ),
    ],
    true: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Members who play as the task's own team does, with those who were learned.",
        ),
    ] = None,
    estimate: Annotated[
        str,
        typer.Option(
            metavar="mean|map|draw",
            help="By what tables it acts: means, modes, or in every episode a fresh draw.",
        ),
    ] = "mean",
    num_episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 100,
    map: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Map of the task, as in `btil simulate`.")
    ] = "paper",
    seed: Seed = 0,
    max_steps: Annotated[int, typer.Option(help="Steps after which an episode is cut.")] = 200,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw an episode too: a film strip (.png, .svg, .pdf), or a film (.gif).",
            show_default=False,
        ),
    ] = None,
    episode: Annotated[int, typer.Option(help="The episode that is drawn, from 0.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let a learned team act in its task; save what it does, and report how well.

    The state variables that its model reads are computed by the task. Every step is labelled with
    what each member had in mind.

    \b
    Examples:
        btil simulate movers --num-episodes 200 --out demos.parquet
        btil report demos.parquet --task movers --out team    # learns by the recommended model
        btil play movers --posterior team/posterior.nc --out played.parquet --picture played.gif
        btil play movers --posterior team/posterior.nc --true rob --estimate draw --out mixed.csv
    """  # noqa: D301  # click needs the character itself
    from btil import load_posterior
    from btil.analysis.performance import team_performance
    from btil.arguments import check_index
    from btil.demonstrations import write_demonstrations
    from btil.domains.playing import play as let_play
    from btil.files import check_writable

    task = task_named(domain, map)
    check_writable(out, (".csv", ".parquet", ".npz"))
    if picture is not None:
        check_writable(picture, _PICTURES)
        check_index("episode", episode, num_episodes)
    own = [] if true is None else listed(true, "--true")
    learned = load_posterior(posterior)
    team: Any = dict.fromkeys(task.agents, learned)
    if own:
        if not quiet:
            typer.echo(f"planning for {task.num_states:,} states", err=True)
        policies = task.policies()
        for agent in own:
            if agent not in policies:
                raise ValueError(f"--true: unknown agent {agent!r}; there are {', '.join(team)}")
            team[agent] = policies[agent]
    played = let_play(task, team, num_episodes, seed, max_steps, estimate=estimate)
    write_demonstrations(played, out)
    typer.echo(played.summary())
    typer.echo(f"\n{team_performance(task, played)}\n\nsaved {out}")
    if picture is not None:
        from btil.domains.gridworld import pictures

        if picture.suffix == ".gif":
            pictures.animate_episode(task, played, episode, picture)
        else:
            pictures.plot_episode(task, played, episode).savefig(picture)
        typer.echo(f"saved {picture}")
