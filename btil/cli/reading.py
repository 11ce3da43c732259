"""From words of a command line to data, models and options."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from btil import (
    Demonstrations,
    DemonstrationsFile,
    open_demonstrations,
    read_demonstrations,
)
from btil.cli.telling import quoted
from btil.demonstrations import read_as_seen
from btil.demonstrations.stream import open_as_seen
from btil.domains.registry import domain_names, load_domain

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask
    from btil.models.team import TeamModel
    from btil.suggestion import Suggestion

# As a model file: the one that `btil.suggest_model` finds for the data.
AUTO = Path("auto")


def task_named(name: str, map: str) -> "GridTask":
    """A grid world by its name, on a map as `map_text` reads it."""
    task: GridTask = load_domain(name, "task")(map_text(map))
    return task


def of_task(task: "GridTask | None", demos: Demonstrations) -> Demonstrations:
    """Demonstrations of a grid world with the variables that its recommended model reads."""
    return demos if task is None else task.add_derived_variables(demos)


def map_text(text: str) -> str:
    """A map's name, or the drawing in a file."""
    from btil.domains.gridworld.grid import MAPS

    path = Path(text)
    if text in MAPS or not path.is_file():
        return text
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file (UTF-8)") from None


class Reading(NamedTuple):
    """The options of reading a file."""

    num_latents: str | None = None
    unknown_labels: str | None = None
    drop_last: bool = False
    missing: str = "refuse"
    continuous: str | None = None

    def arguments(self) -> dict[str, Any]:
        """The same as arguments of the readers."""
        return {
            "num_latents": sizes(self.num_latents),
            "unknown_labels": None
            if self.unknown_labels is None
            else listed(self.unknown_labels, "--unknown-labels", may_be_none=True),
            "drop_last": self.drop_last,
            "missing": self.missing,
            "continuous": listed(self.continuous, "--continuous") if self.continuous else (),
        }

    def words(self) -> str:
        """The options that were given, as they are written in a shell, each behind a blank."""
        told = ""
        for option, default in type(self)()._asdict().items():
            value = getattr(self, option)
            if value != default:
                told += f" {flag(option)}" if value is True else f" {flag(option)} {quoted(value)}"
        return told


def read(data: str, reading: Reading, like: Demonstrations | None = None) -> Demonstrations:
    """Carried data or a file; with `like`, by the names and sizes of other demonstrations."""
    domain, *parts = data.split(":")
    if domain in domain_names("recordings") and parts:
        for option, default in Reading()._asdict().items():
            if getattr(reading, option) != default:
                raise ValueError(f"{flag(option)} is for files; carried data know what they hold")
        if len(parts) > 2:
            raise ValueError(f"{data}: carried data are written {domain}:LAYOUT[:train|test]")
        carried: Demonstrations = load_domain(domain).load(*parts)
        return carried
    arguments = reading.arguments()
    if Path(data).is_dir():
        return opened(data, reading, like).read()
    if like is None:
        return read_demonstrations(data, **arguments)
    del arguments["num_latents"], arguments["continuous"]  # as in those
    return read_as_seen(data, like, **arguments)


def is_large(data: str) -> bool:
    """Whether the data can be read part by part: a Parquet file, or a folder of such."""
    path = Path(data)
    return path.suffix.lower() == ".parquet" or path.is_dir()


def opened(data: str, reading: Reading, like: Demonstrations | None = None) -> DemonstrationsFile:
    """A file or folder that is read part by part; with `like` by the latents of others."""
    arguments = reading.arguments()
    if like is None:
        return open_demonstrations(data, **arguments)
    del arguments["num_latents"], arguments["continuous"]  # as in those
    return open_as_seen(data, like, **arguments)


def sizes(num_latents: str | None) -> int | list[int] | None:
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


def model_of(
    data: str,
    model: Path | None = None,
    role: list[str] | None = None,
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
        "policy": section_of("policy", policy_parents, policy_concentration),
        "transition": section_of("transition", transition_parents, transition_concentration),
        "initial": {} if initial is None else {"family": initial},
    }
    if role and model != AUTO:
        raise ValueError("--role goes with --model auto")
    if not any(description.values()) and not shared:
        if model == AUTO:
            return TeamModel()  # `for_data` has another one, once the data are read
        if model is not None:
            from btil.models.description import read_model

            return read_model(model)
        if task is not None:
            return task.recommended_model()
        domain, *parts = data.split(":")
        if domain in domain_names("recordings") and parts:
            recommended: TeamModel = load_domain(domain).recommended_model(parts[0])
            return recommended
        return TeamModel()
    from btil.models.description import model_from_description

    if model is not None:
        raise ValueError("--model describes the whole model; leave out the other model options")
    if shared:
        description = {role: {**section, "shared": True} for role, section in description.items()}
    return model_from_description(description)


def roles_of(role: list[str] | None) -> dict[str, str]:
    """What columns are, by the options --role."""
    roles = {}
    for text in role or []:
        column, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--role is {text!r}; COLUMN=ROLE is expected")
        roles[column] = value
    return roles


class Chosen(NamedTuple):
    """The model that data are learned with.

    Attributes:
        model: The model.
        suggestion: What it was found by, with `--model auto`.
    """

    model: "TeamModel"
    suggestion: "Suggestion | None"


def for_data(
    model: "TeamModel",
    described: Mapping[str, Any],
    demos: Demonstrations | DemonstrationsFile,
    quiet: bool,
) -> Chosen:
    """The model that options describe; with `--model auto` the one that the data speak for."""
    if described["model"] is None:
        return Chosen(model, None)
    if described["model"] != AUTO:
        from btil.models.team import check_suits

        try:
            check_suits(model, demos if isinstance(demos, Demonstrations) else demos.first)
        except ValueError as error:
            raise ValueError(f"{described['model']}: {error}") from error
        return Chosen(model, None)
    if not isinstance(demos, Demonstrations):
        raise ValueError("--model auto needs the data in memory; leave out --batch-size")
    import typer

    from btil.suggestion import suggest_model

    roles = roles_of(described["role"])
    suggestion = suggest_model(demos, progress=not quiet, roles=roles)
    for sentence in suggestion.warnings:
        typer.echo(f"warning: {sentence}", err=True)
    typer.echo(f"{suggestion.brief()}\n")
    return Chosen(suggestion.model, suggestion)


def section_of(role: str, parents: str | None, concentration: float | None) -> dict[str, Any]:
    """The options about one table as a section of a model file."""
    return given(
        parents=None if parents is None else listed(parents, f"--{role}-parents", may_be_none=True),
        concentration=concentration,
    )


def listed(text: str, option: str, may_be_none: bool = False) -> list[str]:
    """The names of a list with commas."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names or not (names or may_be_none):
        raise ValueError(f"{option} is {text!r}; names separated by commas are expected")
    return names


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def flag(option: str) -> str:
    """An option as it is written in a shell."""
    return f"--{option.replace('_', '-')}"
