"""What a suggestion says: in words, as a table, as Python, as TOML, as part of a page."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from btil.analysis.words import listed
from btil.demonstrations.coding import counted
from btil.demonstrations.naming import form_of, spoken
from btil.models.cpt import ROLES
from btil.models.description import describe
from btil.models.team import TeamModel
from btil.suggestion.columns import ACTION_OF, NEXT
from btil.suggestion.held_out import Refined
from btil.suggestion.search import Found, Parents, Scored

if TYPE_CHECKING:
    import pandas as pd

_MOST_RUNNERS_UP = 3
UNREAD = "those of a member have its name in theirs; `btil.bin` makes one a state variable"


class Table(NamedTuple):
    """A table that was found.

    Attributes:
        role: "policy" or "transition".
        agents: Who has it.
        found: What the search by evidence ended with.
        refined: Of a policy, what the search by held-out labels ended with.
        contexts: Contexts that all steps visit.
        steps: Steps that read it.
        actions: Of a policy, the names of its actions.
    """

    role: str
    agents: tuple[str, ...]
    found: Found
    refined: Refined | None
    contexts: int
    steps: int
    actions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is and whose."""
        return f"{self.role} of {listed(self.agents)}"

    @property
    def best(self) -> Scored:
        """The parents and the prior."""
        return self.found.best if self.refined is None else self.refined.best

    @property
    def labelled(self) -> int:
        """Labelled reads."""
        return len(self.found.pool.reads.latent)

    def explanations(self) -> list[str]:
        """Of names as members see them, whose columns are called otherwise: what they are."""
        names, agents = self.found.pool.names, tuple(self.agents)
        if len(agents) == 1:
            return []
        told = []
        for form in self.best.parents:
            plain = form.removeprefix(NEXT)
            if form.startswith(ACTION_OF) or plain == spoken(plain):
                continue
            columns = {agent: names[form][agent].removeprefix("next_") for agent in agents}
            if any(form_of(name, agent, agents) != plain for agent, name in columns.items()):
                each = listed([f"{name} of {agent}" for agent, name in columns.items()])
                told.append(f"{self.name(form, names)} is {each}")
        return told

    def parents_text(self, parents: Parents) -> str:
        """Parents in words: for one agent its columns, for several what they are to each."""
        names = self.found.pool.names
        return ", ".join(self.name(form, names) for form in parents) or "nothing"

    def name(self, form: str, names: Mapping[str, Mapping[str, str]]) -> str:
        """A parent in words."""
        if len(self.agents) == 1:
            return names[form][self.agents[0]]
        if form.startswith(ACTION_OF):
            return spoken(form.removeprefix(ACTION_OF)) + "_action"
        if form.startswith(NEXT):
            return "next_" + spoken(form.removeprefix(NEXT))
        return spoken(form)


@dataclass(frozen=True, eq=False)
class Suggestion:
    """A team model that a recording speaks for, and what speaks for it.

    Attributes:
        model: The model, for `btil.fit` and all else.
        tables: What was found for each policy and transition.
        errors: Per agent the decoding errors of what was "found", the "default" model and the
            "majority" on labelled episodes held out, tables learned from the labelled steps of the
            others; empty where fewer than two episodes have labels.
        refused: Columns that no table reads, and why.
        unread: Continuous columns that the model neither explains nor reads.
        sharing: Per role, why agents share a table or do not.
        labelled: Labelled steps of each agent.
        warnings: What speaks against trusting it, a sentence each.
    """

    model: TeamModel
    tables: tuple[Table, ...]
    errors: Mapping[str, Mapping[str, float]]
    refused: Mapping[str, str]
    unread: tuple[str, ...]
    sharing: Mapping[str, str]
    labelled: Mapping[str, int]
    warnings: tuple[str, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """What was tried: a row per set of parents, steps of the search and runners-up."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for one in self.tables:
            found, refined = one.found, one.refined
            tried = [
                *((t.scored.parents, t.what, t.scored.score, t.scored.prior) for t in found.path),
                *((o.parents, "beside", o.score, o.prior) for o in found.runners_up),
            ]
            by = "evidence"
            kinds = [(by, *entry) for entry in tried]
            if refined is not None:
                by = "held-out labels"
                best = refined.best
                kinds.append((by, best.parents, "end", refined.log_conditional, best.prior))
                kinds += [(by, names, "beside", value, p) for value, names, p in refined.others]
            rows += [
                {
                    "role": one.role,
                    "agents": ", ".join(one.agents),
                    "parents": one.parents_text(parents),
                    "by": kind,
                    "step": what,
                    "nats": nats,
                    "prior": str(prior),
                    "chosen": kind == by and parents == one.best.parents,
                }
                for kind, parents, what, nats, prior in kinds
            ]
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
            f"found      {one.title}: {one.parents_text(one.best.parents)}" for one in self.tables
        )

    def words(self) -> str:
        """What was found and why, without the warnings."""
        lines = []
        for one in self.tables:
            found, refined = one.found, one.refined
            names = found.pool.names
            lines.append(f"{one.title}: {one.parents_text(one.best.parents)}")
            lines += [f"    {sentence}" for sentence in one.explanations()]
            brought = found.brought if refined is None else refined.brought
            what = "" if refined is None else " of held-out labels"
            for form, nats in sorted(brought.items(), key=lambda item: (-item[1], item[0])):
                lines.append(f"    {one.name(form, names)} brings {nats:.1f} nats{what}")
            labelled = one.labelled / max(one.best.contexts, 1)
            lines.append(
                f"    {counted(one.contexts, 'context')} in {counted(one.steps, 'step')}; "
                "labels visit "
                f"{one.best.contexts:,} of them, {labelled:.1f} labelled steps each"
            )
            lines.append(f"    concentration {one.best.prior.words(one.actions)}")
            others = (
                [(found.best.score - other.score, other.parents) for other in found.runners_up]
                if refined is None
                else [(refined.log_conditional - v, names) for v, names, _ in refined.others]
            )
            for nats, parents in others[:_MOST_RUNNERS_UP]:
                less = (
                    f"{nats:.1f} nats less"
                    if nats >= 0
                    else (f"{-nats:.1f} nats more, too few for its size")
                )
                lines.append(f"    next best: {one.parents_text(parents)} ({less})")
        for agent, errors in self.errors.items():
            lines.append(
                f"decoding error of {agent} on labelled episodes held out: {errors['found']:.3f} "
                f"(default model {errors['default']:.3f}, majority {errors['majority']:.3f})"
            )
        emissions = self.model.emissions
        for agent, family in emissions.items() if isinstance(emissions, Mapping) else ():
            inputs = family.covariates_of(agent)
            by = listed(inputs) if inputs else "its intent alone"
            lines.append(f"columns of {agent}: {listed(family.columns_of(agent))}, by {by}")
        if self.unread:
            lines.append(f"measured columns that nothing reads: {listed(self.unread)}; {UNREAD}")
        for role, reason in self.sharing.items():
            lines.append(f"sharing of the {role}: {reason}")
        for column, reason in self.refused.items():
            lines.append(f"refused {column}: {reason}")
        return "\n".join(lines)

    def html(self) -> str:
        """The same as part of a page."""
        texts = (escape(text) for text in (str(self), self.toml))
        return "".join(f'<pre tabindex="0">{text}</pre>\n' for text in texts)


_FAMILIES = ("DirichletCPT", "Shared", "StickyDirichletCPT", "UniformCPT")
