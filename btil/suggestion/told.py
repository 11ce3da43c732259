"""What a suggestion says: in words, as a table, as Python, as TOML, as part of a page."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from btil.analysis.words import listed
from btil.models.cpt import ROLES
from btil.models.description import describe
from btil.models.team import TeamModel
from btil.suggestion.search import Found, Scored

if TYPE_CHECKING:
    import pandas as pd

_MOST_RUNNERS_UP = 3


class Table(NamedTuple):
    """A table that was found.

    Attributes:
        role: "policy" or "transition".
        agents: Who has it.
        found: Its parents and how they were found.
        contexts: Contexts that all steps visit.
        steps: Steps that read it.
    """

    role: str
    agents: tuple[str, ...]
    found: Found
    contexts: int
    steps: int

    @property
    def title(self) -> str:
        """What it is and whose."""
        return f"{self.role} of {listed(self.agents)}"

    @property
    def labelled(self) -> int:
        """Labelled reads."""
        return len(self.found.pool.reads.latent)

    def parents_text(self, scored: Scored) -> str:
        """Parents in words: for one agent its columns, for several what they are to each."""
        names = self.found.pool.names
        if not scored.parents:
            return "nothing"
        return ", ".join(self.name(form, names) for form in scored.parents)

    def name(self, form: str, names: Mapping[str, Mapping[str, str]]) -> str:
        """A parent in words."""
        if len(self.agents) == 1:
            return names[form][self.agents[0]]
        return form.replace("{own}", "own").replace("{", "").replace("}", "")


@dataclass(frozen=True, eq=False)
class Suggestion:
    """A team model that a recording speaks for, and what speaks for it.

    Attributes:
        model: The model, for `btil.fit` and all else.
        tables: What was found for each policy and transition.
        refused: Columns that no table reads, and why.
        sharing: Per role, why agents share a table or do not.
        labelled: Labelled steps of each agent.
        warnings: What speaks against trusting it, a sentence each.
    """

    model: TeamModel
    tables: tuple[Table, ...]
    refused: Mapping[str, str]
    sharing: Mapping[str, str]
    labelled: Mapping[str, int]
    warnings: tuple[str, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """What was tried: a row per set of parents, steps of the search and runners-up."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for one in self.tables:
            found = one.found
            best = found.best.score
            for scored, what in [
                *((tried.scored, tried.what) for tried in found.path),
                *((other, "beside") for other in found.runners_up),
            ]:
                rows.append(
                    {
                        "role": one.role,
                        "agents": ", ".join(one.agents),
                        "parents": one.parents_text(scored),
                        "step": what,
                        "nats": scored.score,
                        "below_best": best - scored.score,
                        "prior": str(scored.prior),
                        "contexts": scored.contexts,
                        "chosen": scored.parents == found.best.parents,
                    }
                )
        return pd.DataFrame(rows)

    @property
    def toml(self) -> str:
        """The model as a file for `--model` and `btil.models.description.read_model`."""
        return describe(self.model)

    @property
    def python(self) -> str:
        """The model as Python."""
        used = sorted(
            {name for name in _FAMILIES if any(name in repr(self._family(r)) for r in ROLES)}
        )
        lines = [f"from btil import {', '.join([*used, 'TeamModel'])}", "", "model = TeamModel("]
        lines += [f"    {role}={self._family(role)!r}," for role in ROLES]
        return "\n".join([*lines, ")"])

    def _family(self, role: str) -> Any:
        return getattr(self.model, role)

    def __str__(self) -> str:
        return "\n".join([self.words(), *(f"warning: {sentence}" for sentence in self.warnings)])

    def brief(self) -> str:
        """The parents, a line for each table."""
        return "\n".join(
            f"found      {one.title}: {one.parents_text(one.found.best)}" for one in self.tables
        )

    def words(self) -> str:
        """What was found and why, without the warnings."""
        lines = []
        for one in self.tables:
            found = one.found
            lines.append(f"{one.title}: {one.parents_text(found.best)}")
            for form, nats in sorted(found.brought.items(), key=lambda item: (-item[1], item[0])):
                lines.append(f"    {one.name(form, found.pool.names)} brings {nats:.1f} nats")
            lines.append(
                f"    {one.contexts:,} contexts, {one.labelled / max(found.best.contexts, 1):.1f} "
                f"labelled steps per context that labels visit; concentration {found.best.prior}"
            )
            for other in found.runners_up[:_MOST_RUNNERS_UP]:
                lines.append(
                    f"    next best: {one.parents_text(other)} "
                    f"({found.best.score - other.score:.1f} nats less)"
                )
        for role, reason in self.sharing.items():
            lines.append(f"sharing of the {role}: {reason}")
        for column, reason in self.refused.items():
            lines.append(f"refused {column}: {reason}")
        return "\n".join(lines)

    def html(self) -> str:
        """The same as part of a page."""
        return f"<pre>{escape(str(self))}</pre>\n<pre>{escape(self.toml)}</pre>\n"


_FAMILIES = ("DirichletCPT", "Shared", "StickyDirichletCPT", "UniformCPT")
