"""A team model as a small text: read from TOML (or a mapping), and written as TOML.

The text names, for each of the three roles, a family and what it needs:

.. code-block:: toml

    [policy]
    family = "dirichlet"        # or one of the others below
    concentration = 1.2         # per cell; or an array, as in DirichletCPT
    parents = ["state"]         # or {alice = ["alice_x"], bob = ["bob_x"]}
    shared = true               # one table for all agents

    [transition]
    concentration = 1.01
    parents = ["state", "actions"]

    [initial.agents.alice]      # or a section per agent
    family = "uniform"

    [initial.agents.bob]
    family = "dirichlet"

    [emissions.agents.alice]    # continuous columns, a section per agent
    family = "linear-normal"    # or "normal"
    columns = ["alice_vx", "alice_vy"]
    covariates = ["alice_x", "alice_y"]

A team whose members have no actions has `policy = "none"`. What is left out is as in `TeamModel()`,
or as the family's class has it. Families are "dirichlet",
"uniform", "static" and "sticky" (of a transition), "hierarchical", "stick-breaking" (not of a
policy) and "softmax"; their keys are the arguments of `DirichletCPT`, ..., `SoftmaxCPT`. Given
tables (`KnownCPT`), planners' values and own families are written in Python, not here.
"""

import inspect
import json
import numbers
import tomllib
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from btil.models.cpt import CPT, ROLES, Shared
from btil.models.emission import EMISSIONS, Emission
from btil.models.emission import WORDS as EMISSION_WORDS
from btil.models.families import families, family_named, is_known, words
from btil.models.team import Family, TeamModel

SECTIONS = (*ROLES, "emissions")
# Functions cannot be written down.
_NOT_WRITTEN = ("features",)
# Stands for a policy where there are no actions.
_NO_POLICY = "none"
_DEFAULT_FAMILY = {"policy": "dirichlet", "transition": "dirichlet", "initial": "uniform"}
_DEFAULT_PRIOR: dict[str, tuple[float, tuple[str, ...]]] = {
    "policy": (1.2, ("state",)),
    "transition": (1.01, ("state", "actions")),
    "initial": (1.0, ()),
}


def read_model(path: str | PathLike[str]) -> TeamModel:
    """Read a team model from a TOML file.

    Args:
        path: The file, in UTF-8, with a byte-order mark or without.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not TOML, has no section, or as `model_from_description`; the message
            begins with the path.

    Example:
        >>> model = read_model("model.toml")  # doctest: +SKIP
    """
    with open(path, "rb") as handle:
        try:
            description = tomllib.loads(handle.read().decode("utf-8-sig"))
            if not description:
                allowed = ", ".join(f"[{section}]" for section in SECTIONS)
                raise ValueError(f"there is no section; allowed are {allowed}")
            return model_from_description(description)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply") from None


def model_from_description(description: Mapping[str, Any]) -> TeamModel:
    """Make a team model from a mapping of the form above.

    Args:
        description: {"policy": {...}, "transition": {...}, "initial": {...}, "emissions": {...}};
            each section may be left out.

    Returns:
        The model. Sections with `shared = true` under `agents` stand for one and the same table.

    Raises:
        ValueError: Naming the section, the key or value that is wrong, and what is allowed.

    Example:
        >>> model = model_from_description({"transition": {"family": "static"}})
        >>> model.transition
        StaticCPT()
    """
    if not isinstance(description, Mapping):
        raise ValueError(
            f"the model: {description!r} is not a mapping of sections {_listed(ROLES)}"
        )
    _refuse_unknown("the model", "section", description, SECTIONS)
    families: dict[str, Any] = {
        role: _emissions(section) if role == "emissions" else _role(role, section)
        for role, section in description.items()
    }
    return TeamModel(**families)


def describe(model: TeamModel) -> str:
    """The text that `model_from_description` reads back.

    A given table, or a family of one's own, appears with its class name as the family; a text
    with one of these is for people, and is refused when it is read.

    Example:
        >>> print(describe(TeamModel(transition=btil.StaticCPT())), end="")
        [policy]
        family = "dirichlet"
        concentration = 1.2
        parents = ["state"]
        <BLANKLINE>
        [transition]
        family = "static"
        <BLANKLINE>
        [initial]
        family = "uniform"
    """
    sections = []
    if model.policy is None:
        sections.append(f"policy = {_text(_NO_POLICY)}\n")
    for role in ROLES:
        given = getattr(model, role)
        if isinstance(given, Mapping):
            idle = [f"{_text(agent)} = {_text(_NO_POLICY)}" for agent in given if not given[agent]]
            if idle:
                sections.append("\n".join([f"[{role}.agents]", *idle]) + "\n")
            sections += [
                _section_text(f"{role}.agents.{_text(agent)}", family)
                for agent, family in given.items()
                if family is not None
            ]
        elif given is not None:
            sections.append(_section_text(role, given))
    if isinstance(model.emissions, Mapping):
        sections += [
            _emission_text(f"emissions.agents.{_text(agent)}", family)
            for agent, family in model.emissions.items()
        ]
    elif model.emissions is not None:
        sections.append(_emission_text("emissions", model.emissions))
    return "\n".join(sections)


def _role(role: str, section: Any) -> Any:
    if role == "policy" and section == _NO_POLICY:
        return None
    _check_table(role, section)
    if "agents" not in section:
        return _family(role, role, section)
    _refuse_unknown(
        role, "key beside 'agents'", {k: v for k, v in section.items() if k != "agents"}, ()
    )
    agents = section["agents"]
    _check_table(f"{role}.agents", agents)
    families = {
        agent: None
        if role == "policy" and own == _NO_POLICY
        else _family(role, f"{role}.agents.{agent}", own)
        for agent, own in agents.items()
    }
    pooled = [agent for agent, family in families.items() if isinstance(family, Shared)]
    for agent in pooled[1:]:
        if agents[agent] != agents[pooled[0]]:
            raise ValueError(
                f"{role}.agents.{agent}: differs from {role}.agents.{pooled[0]}, but agents with "
                "shared = true have one table and so one description"
            )
        families[agent] = families[pooled[0]]
    return families


def _emissions(section: Any) -> Any:
    _check_table("emissions", section)
    if "agents" not in section:
        return _emission("emissions", section)
    rest = {k: v for k, v in section.items() if k != "agents"}
    _refuse_unknown("emissions", "key beside 'agents'", rest, ())
    _check_table("emissions.agents", section["agents"])
    return {
        agent: _emission(f"emissions.agents.{agent}", own)
        for agent, own in section["agents"].items()
    }


def _emission(where: str, section: Any) -> Emission:
    _check_table(where, section)
    name = section.get("family", "normal")
    if name not in EMISSION_WORDS:
        raise ValueError(f"{where}: unknown family {name!r}; allowed are {_listed(EMISSION_WORDS)}")
    family: Any = EMISSIONS[EMISSION_WORDS[name]]
    parameters = inspect.signature(family).parameters
    _refuse_unknown(where, f"key of a {name} channel", section, ("family", *parameters))
    required = [n for n, p in parameters.items() if p.default is p.empty and n not in section]
    if required:
        raise ValueError(f"{where}: {_listed(required)} is missing; it names continuous columns")
    try:
        return family(**{key: value for key, value in section.items() if key != "family"})
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix(f'{family.__name__}: ')}") from None


def _emission_text(title: str, family: Emission) -> str:
    word = next(word for word, name in EMISSION_WORDS.items() if name == type(family).__name__)
    arguments = family.arguments() or {}
    lines = [f"[{title}]", f"family = {_text(word)}"]
    lines += [f"{k} = {_value_text(k, v)}" for k, v in arguments.items() if v is not None]
    return "\n".join(lines) + "\n"


def _family(role: str, where: str, section: Any) -> Family:
    _check_table(where, section)
    name = section.get("family", _DEFAULT_FAMILY[role])
    allowed = list(words(role))
    if name not in allowed:
        raise ValueError(
            f"{where}: unknown family {name!r}; allowed are {_listed(allowed)}"
            + ("; given tables are written in Python" if name == "KnownCPT" else "")
        )
    _refuse_unknown(
        where, f"key of a {name} table", section, ("family", *_arguments(name), "shared")
    )
    shared = _boolean(where, "shared", section.get("shared", False))
    cpt = _cpt(name, role, where, section)
    return Shared(cpt) if shared else cpt


def _arguments(name: str) -> dict[str, Any]:
    """The arguments of a family that can be written, with their defaults."""
    parameters = inspect.signature(family_named(words()[name])).parameters
    return {n: p.default for n, p in parameters.items() if n not in _NOT_WRITTEN}


def _cpt(name: str, role: str, where: str, section: Mapping[str, Any]) -> CPT:
    concentration, parents = _DEFAULT_PRIOR[role]
    defaults = _arguments(name)
    given: dict[str, Any] = {}
    for key, default in defaults.items():
        if key == "parents":
            given[key] = _parents(where, section.get(key, parents))
        elif key == "concentration" and name in ("dirichlet", "sticky"):
            given[key] = _concentration(where, section.get(key, concentration))
        elif key == "unless" and key in section:
            given[key] = section[key]
        elif key in section and isinstance(default, bool):
            given[key] = _boolean(where, key, section[key])
        elif key in section:
            given[key] = _number(where, key, section[key])
    family = family_named(words()[name])
    try:
        return family(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix(f'{family.__name__}: ')}") from None


def _number(where: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{where}: {key} is {value!r}; allowed are numbers")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where}: {key} is a number too large to compute with") from None


def _boolean(where: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {key} is {value!r}; allowed are true and false")
    return value


def _concentration(where: str, value: Any) -> Any:
    """A number or nested lists of numbers; a text or true would be cast silently."""

    def numeric(part: Any) -> bool:
        if isinstance(part, list | tuple):
            return all(map(numeric, part))
        return isinstance(part, numbers.Real) and not isinstance(part, bool)

    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not numeric(value):
        raise ValueError(
            f"{where}: concentration is {value!r}; allowed are a positive number, or an array of "
            "them"
        )
    return value


def _parents(where: str, value: Any) -> Any:
    tables = value.values() if isinstance(value, Mapping) else [value]
    for names in tables:
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ValueError(
                f"{where}: parents are {value!r}; allowed are a list of names, such as "
                '["state"], or a table {agent = [names]}'
            )
    return value


def _check_table(where: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: {value!r} is not a table; write a section [{where}]")


def _refuse_unknown(
    where: str, what: str, given: Mapping[Any, Any], allowed: tuple[str, ...]
) -> None:
    for key in given:
        if key not in allowed:
            raise ValueError(
                f"{where}: unknown {what}: {key!r}; allowed are {_listed(allowed) or 'none'}"
            )


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


def _section_text(title: str, family: Family) -> str:
    cpt = family.cpt if isinstance(family, Shared) else family
    kind = type(cpt).__name__
    word = families()[kind].word if is_known(cpt) else None
    arguments = None if word is None else cpt.arguments()
    name = kind if arguments is None else word
    lines = [f"[{title}]", f"family = {_text(name)}"]
    lines += [
        f"{key} = {_value_text(key, value)}"
        for key, value in (arguments or {}).items()
        if value is not None
    ]
    if isinstance(family, Shared):
        lines.append("shared = true")
    return "\n".join(lines) + "\n"


def _value_text(key: str, value: Any) -> str:
    # JSON texts, numbers, booleans and arrays are TOML's too; its objects are not.
    if isinstance(value, Mapping):
        plain = {k: v if isinstance(v, str) else list(v) for k, v in value.items()}
        entries = ", ".join(f"{_text(k)} = {_text(v)}" for k, v in plain.items())
        return f"{{{entries}}}"
    return _text(np.asarray(value).tolist() if key == "concentration" else value)


def _text(value: Any) -> str:
    """JSON that is TOML too: characters beyond 16 bits stand for themselves."""
    return json.dumps(value, ensure_ascii=False)
