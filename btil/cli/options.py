"""Options and arguments that commands have in common, each declared once."""

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from btil.cli.reading import Reading, given

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table (.csv, .parquet or .npz), a folder of .parquet files, or carried data: "
        "overcooked:LAYOUT[:train|test], such as overcooked:cramped_room:test.",
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
        help='Texts that mean an unknown label, besides an empty cell and -1; "" is none. Without '
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
Missing = Annotated[
    str,
    typer.Option(
        metavar="refuse|allow",
        help="allow: an empty action or state is one that nobody saw; refuse: it is an error.",
    ),
]
Continuous = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...", help="Columns that are measured quantities, such as metres or seconds."
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL.toml|auto",
        help="A model file with the sections [policy], [transition] and [initial], each with "
        "family, concentration, parents and shared; or auto, the one that `btil suggest` finds. It "
        "replaces the options about tables.",
    ),
]
Role = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=ROLE",
        help="What a column is where its name does not say it: common, ignore, an agent, or the "
        "name that it should have. With --model auto; can be given several times.",
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
        help="mfvi, svi, gibbs, nuts: devices over which episodes or chains are spread; cores of a "
        "CPU count as devices then.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|float64", help="Precision (float64 for nuts and exact, else float32)."
    ),
]
Delay = Annotated[
    float | None, typer.Option(help="mfvi by batches: tau of its steps (t + tau)^-kappa (10).")
]
ForgettingRate = Annotated[
    float | None, typer.Option(help="mfvi by batches: kappa, above 0.5 and at most 1 (0.6).")
]
Guide = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="svi: dirichlet, or an AutoGuide of NumPyro such as AutoNormal."
    ),
]
LearningRate = Annotated[float | None, typer.Option(help="svi: of its optimiser (0.02).")]
NumParticles = Annotated[
    int | None, typer.Option(help="svi: draws that a gradient is averaged over (4).")
]
TargetAcceptProb = Annotated[
    float | None, typer.Option(help="nuts: the acceptance probability that steps aim at (0.8).")
]
MaxTreeDepth = Annotated[
    int | None, typer.Option(help="nuts: at most two to this many steps a draw (10).")
]
ChainMethod = Annotated[
    str | None,
    typer.Option(
        metavar="sequential|vectorized", help="nuts: chains one after the other, or in lock-step."
    ),
]
NumRefined = Annotated[int | None, typer.Option(help="refined: number of draws (200).")]
NumSweeps = Annotated[
    int | None,
    typer.Option(help="refined: sweeps of each draw; without it, until they have settled."),
]
MaxSequences = Annotated[
    int | None, typer.Option(help="exact: most latent sequences that are summed over (1000000).")
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


class Group(NamedTuple):
    """Options that commands take together.

    Attributes:
        name: The parameter of a command that gets them.
        options: {name: (declaration, default)}, in the order of help texts.
        gather: What is made of their values.
    """

    name: str
    options: Mapping[str, tuple[Any, Any]]
    gather: Callable[..., Any]

    def without(self, *names: str) -> "Group":
        """The same but for some options."""
        kept = {name: one for name, one in self.options.items() if name not in names}
        return self._replace(options=kept)


def takes(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command groups of options, in place of its parameters of their names."""
    by_name = {group.name: group for group in groups}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[Parameter] = []
        for own in signature.parameters.values():
            if own.name not in by_name:
                parameters.append(own)
                continue
            parameters += [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=declared)
                for name, (declared, default) in by_name[own.name].options.items()
            ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            for group in groups:
                own = {name: values.pop(name) for name in group.options}
                values[group.name] = group.gather(**own)
            command(**values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _given_to_methods(devices: int | None = None, **options: Any) -> dict[str, Any]:
    if devices is not None:
        from btil.inference.devices import provide_devices

        provide_devices(devices)
    return given(devices=devices, **options)


READING = Group(
    "reading",
    {
        "num_latents": (NumLatents, None),
        "unknown_labels": (UnknownLabels, None),
        "drop_last": (DropLast, False),
        "missing": (Missing, "refuse"),
        "continuous": (Continuous, None),
    },
    Reading,
)
MODEL = Group(
    "described",
    {
        "model": (Model, None),
        "role": (Role, None),
        "policy_parents": (PolicyParents, None),
        "policy_concentration": (PolicyConcentration, None),
        "transition_parents": (TransitionParents, None),
        "transition_concentration": (TransitionConcentration, None),
        "initial": (Initial, None),
        "shared": (SharedTables, False),
    },
    dict,
)
METHOD = Group(
    "options",
    {
        name: (declared, None)
        for name, declared in {
            "num_chains": NumChains,
            "num_warmup": NumWarmup,
            "num_samples": NumSamples,
            "keep_rows": KeepRows,
            "num_restarts": NumRestarts,
            "tolerance": Tolerance,
            "max_iterations": MaxIterations,
            "batch_size": BatchSize,
            "delay": Delay,
            "forgetting_rate": ForgettingRate,
            "guide": Guide,
            "learning_rate": LearningRate,
            "num_particles": NumParticles,
            "target_accept_prob": TargetAcceptProb,
            "max_tree_depth": MaxTreeDepth,
            "chain_method": ChainMethod,
            "num_draws": NumRefined,
            "num_sweeps": NumSweeps,
            "max_sequences": MaxSequences,
            "devices": Devices,
            "dtype": Dtype,
        }.items()
    },
    _given_to_methods,
)
