"""The families of tables that files know by name: saved posteriors, model files, help texts.

A family is a class (`cpt.py`, `parametric.py`); any works in a `TeamModel`. To have one written
down and read again, name it here: one line in `FAMILIES`, or from another package an entry point of
the group `btil.families` whose object is a `FamilyEntry`. Its arguments are read off its signature.
"""

from importlib import import_module
from typing import NamedTuple

from btil.models.cpt import CPT, ROLES
from btil.plugins import with_installed

ENTRY_POINTS = "btil.families"


class FamilyEntry(NamedTuple):
    """Where a family is, and how a model file speaks of it.

    Attributes:
        module: Where its class is.
        word: Its name in model files; None: these cannot hold it.
        roles: What it can be there: "policy", "transition", "initial".
    """

    module: str
    word: str | None = None
    roles: tuple[str, ...] = ROLES


# By the name of the class.
FAMILIES: dict[str, FamilyEntry] = {
    "DirichletCPT": FamilyEntry("btil.models.cpt", "dirichlet"),
    "UniformCPT": FamilyEntry("btil.models.cpt", "uniform"),
    "StaticCPT": FamilyEntry("btil.models.cpt", "static", ("transition",)),
    "StickyDirichletCPT": FamilyEntry("btil.models.cpt", "sticky", ("transition",)),
    "KnownCPT": FamilyEntry("btil.models.cpt"),
    "HierarchicalDirichletCPT": FamilyEntry("btil.models.hierarchical", "hierarchical"),
    "StickBreakingCPT": FamilyEntry(
        "btil.models.hierarchical", "stick-breaking", ("transition", "initial")
    ),
    "SoftmaxCPT": FamilyEntry("btil.models.softmax", "softmax"),
    "GoalConditionedCPT": FamilyEntry("btil.models.softmax"),
}


def families() -> dict[str, FamilyEntry]:
    """All families that files know, by the names of their classes."""
    return with_installed(FAMILIES, ENTRY_POINTS)


def family_named(name: str) -> type[CPT]:
    """The class of a family that files know."""
    return getattr(import_module(families()[name].module), name)


def is_known(cpt: CPT) -> bool:
    """Whether files know the family of a table."""
    name = type(cpt).__name__
    return name in families() and type(cpt) is family_named(name)


def words(role: str | None = None) -> dict[str, str]:
    """The names of families in model files, and their classes'; of those that fit a role."""
    return {
        entry.word: name
        for name, entry in families().items()
        if entry.word is not None and (role is None or role in entry.roles)
    }
