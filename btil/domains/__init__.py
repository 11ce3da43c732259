"""Where demonstrations come from: recorded teams and simulated ones.

Every domain is loaded on first use, so that ``import btil`` stays quick. They are listed in
`registry.py`.
"""

from typing import TYPE_CHECKING, Any

from btil.loading import load

if TYPE_CHECKING:
    from btil.domains import overcooked
    from btil.domains.gridworld.cleanup import cleanup
    from btil.domains.gridworld.movers import movers
    from btil.domains.plane import errands
    from btil.domains.playing import play
    from btil.domains.recognition import task_of
    from btil.domains.recording import record

__all__ = ["cleanup", "errands", "movers", "overcooked", "play", "record", "task_of"]

# What is no domain of the registry: a task on a plane has no maps, and no states to plan on.
_FUNCTIONS = {
    "errands": "btil.domains.plane",
    "play": "btil.domains.playing",
    "record": "btil.domains.recording",
    "task_of": "btil.domains.recognition",
}


def __getattr__(name: str) -> Any:
    from btil.domains.registry import domain_names, load_domain

    if name in _FUNCTIONS:
        return getattr(load(_FUNCTIONS[name]), name)
    if name in domain_names():
        return load_domain(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from btil.domains.registry import domain_names

    return sorted({*__all__, *domain_names()})
