"""Where demonstrations come from: recorded teams and simulated ones.

Every domain is loaded on first use, so that ``import btil`` stays quick. To add one, write its
module in this folder and name it in ``_MODULE_OF``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from btil.domains import overcooked
    from btil.domains.gridworld.cleanup import cleanup
    from btil.domains.gridworld.movers import movers
    from btil.domains.recording import record

__all__ = ["cleanup", "movers", "overcooked", "record"]

# Public name -> module that holds it. A name equal to its module's is the module itself.
_MODULE_OF = {
    "cleanup": "gridworld.cleanup",
    "movers": "gridworld.movers",
    "overcooked": "overcooked",
    "record": "recording",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    return module if name == _MODULE_OF[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
