"""The domains: tasks that teams can be simulated on, and recordings that btil carries.

To add one, write a module in this folder and name it here: one line in `DOMAINS`, or from another
package an entry point of the group `btil.domains` whose object is a `Domain`. The shell and
`btil.domains` know it then.
"""

from functools import cache
from importlib import import_module, metadata
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

ENTRY_POINTS = "btil.domains"


class Domain(NamedTuple):
    """A domain.

    Attributes:
        module: Where it is.
        kind: "task": the module has a function of the domain's name, which takes a map and gives a
            task (`simulate`, `recommended_model`, `add_derived_variables`). "recordings": the
            module has `load(layout, split)` and `recommended_model(layout)`.
        words: What it is, in a line, for help texts.
    """

    module: str
    kind: Literal["task", "recordings"]
    words: str


DOMAINS: dict[str, Domain] = {
    "movers": Domain(
        "btil.domains.gridworld.movers", "task", "boxes that only two together can lift"
    ),
    "cleanup": Domain("btil.domains.gridworld.cleanup", "task", "bags that each carries alone"),
    "overcooked": Domain(
        "btil.domains.overcooked", "recordings", "pairs of people who cook together"
    ),
}


@cache
def _installed() -> MappingProxyType[str, Domain]:
    """Domains of other packages."""
    points = metadata.entry_points(group=ENTRY_POINTS)
    return MappingProxyType({point.name: point.load() for point in points})


def domain_names(kind: str | None = None) -> tuple[str, ...]:
    """All domains, or those of a kind."""
    known = {**_installed(), **DOMAINS}
    return tuple(name for name in (*DOMAINS, *_installed()) if kind in (None, known[name].kind))


def load_domain(name: str, kind: str | None = None) -> Any:
    """A domain's function (of a task), or its module (of recordings).

    Raises:
        ValueError: If there is no such domain, or none of that kind.
    """
    if name not in domain_names(kind):
        raise ValueError(f"unknown domain {name!r}; there are {', '.join(domain_names(kind))}")
    domain = DOMAINS[name] if name in DOMAINS else _installed()[name]
    module = import_module(domain.module)
    return getattr(module, name) if domain.kind == "task" else module
