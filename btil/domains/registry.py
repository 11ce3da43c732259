"""The domains: tasks that teams can be simulated on, and recordings that btil carries.

To add one, write a module in this folder and name it here: one line in `DOMAINS`, or from another
package an entry point of the group `btil.domains` whose object is a `Domain`. The shell and
`btil.domains` know it then.
"""

from typing import Any, Literal, NamedTuple

from btil.loading import load
from btil.plugins import with_installed

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


def _known() -> dict[str, Domain]:
    return with_installed(DOMAINS, ENTRY_POINTS)


def domain_names(kind: str | None = None) -> tuple[str, ...]:
    """All domains, or those of a kind."""
    return tuple(name for name, domain in _known().items() if kind in (None, domain.kind))


def load_domain(name: str, kind: str | None = None) -> Any:
    """A domain's function (of a task), or its module (of recordings).

    Raises:
        ValueError: If there is no such domain, or none of that kind.
    """
    if name not in domain_names(kind):
        raise ValueError(f"unknown domain {name!r}; there are {', '.join(domain_names(kind))}")
    domain = _known()[name]
    module = load(domain.module)
    return getattr(module, name) if domain.kind == "task" else module
