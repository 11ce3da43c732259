"""Learners that know the task they imitate: BTIL and the baselines of the paper's tables."""

from typing import TYPE_CHECKING, Any

from btil.loading import load

if TYPE_CHECKING:
    from btil.imitation.learning import METHODS, Learned, LearnedTeam, learn, method_options

# Loaded on first use: message passing needs JAX, which takes seconds to import.
_LAZY = {
    "METHODS": "btil.imitation.learning",
    "Learned": "btil.imitation.learning",
    "LearnedTeam": "btil.imitation.learning",
    "learn": "btil.imitation.learning",
    "method_options": "btil.imitation.learning",
}

__all__ = ["METHODS", "Learned", "LearnedTeam", "learn", "method_options"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(load(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'btil.imitation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
