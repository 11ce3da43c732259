"""Options and arguments that commands have in common, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

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
        metavar="MODEL.toml|auto",
        help="A model file with the sections [policy], [transition] and [initial], each with "
        "family, concentration, parents and shared; or auto, the one that `btil suggest` finds. It "
        "replaces the options below.",
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
