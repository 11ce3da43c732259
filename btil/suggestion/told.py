"""What a suggestion says: in words, as a table, as Python, as TOML, as part of a page."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from btil.analysis.output import html, html_list, html_paragraph, html_table
from btil.analysis.words import listed
from btil.demonstrations.coding import counted
from btil.demonstrations.naming import form_of, have_forms, spoken
from btil.models.cpt import ROLES
from btil.models.description import describe
from btil.models.team import TeamModel
from btil.suggestion.columns import ACTION_OF, NEXT
from btil.suggestion.held_out import Refined
from btil.suggestion.preferring import Option
from btil.suggestion.search import Found, Parents, Scored

if TYPE_CHECKING:
    import pandas as pd

_MOST_RUNNERS_UP = 3
_NATS = (
    "The model was found by the labels: what policies and transitions depend on is what tells the "
    "labelled steps best. Nats measure how much: one or two are little, ten are strong evidence."
)
_WITHOUT_LABELS = (
    "There were no labels to find a model by: policies depend on what tells the actions best, and "
    "the names of mental states are arbitrary."
)
UNREAD = "those of a member have its name in theirs; `btil.bin` makes one a state variable"
# Families in the text of a model.
_CALLED = re.compile(r"[A-Z]\w+(?=\()")


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
        fitted: What was compared by fits, the chosen one first; empty where nothing was.
    """

    role: str
    agents: tuple[str, ...]
    found: Found
    refined: Refined | None
    contexts: int
    steps: int
    actions: tuple[str, ...] = ()
    fitted: tuple[Option, ...] = ()

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
        told, plainly = [], have_forms(agents)
        for form in self.best.parents:
            plain = form.removeprefix(NEXT)
            if (plainly and form.startswith(ACTION_OF)) or plain == spoken(plain):
                continue
            columns = dict(names[form])
            if plainly:
                columns = {agent: name.removeprefix("next_") for agent, name in columns.items()}
            if not plainly or any(
                form_of(name, agent, agents) != plain for agent, name in columns.items()
            ):
                each = listed([f"{columns[agent]} of {agent}" for agent in agents])
                told.append(f"{self.name(form, names)} is {each}")
        return told

    @property
    def of_what(self) -> str:
        """What nats are of: of labels held out, or of all that is labelled."""
        return "" if self.refined is None else " of held-out labels"

    def gains(self) -> list[tuple[str, float]]:
        """The parents, each with the nats that it brings, the most first."""
        brought = self.found.brought if self.refined is None else self.refined.brought
        names = self.found.pool.names
        ordered = sorted(brought.items(), key=lambda item: (-item[1], item[0]))
        return [(self.name(form, names), nats) for form, nats in ordered]

    def about_parts(self) -> list[str]:
        """Sizes and the prior."""
        labelled = self.labelled / max(self.best.contexts, 1)
        fits = []
        if len(self.fitted) > 1:
            others = counted(len(self.fitted) - 1, "other")
            fits = [
                f"compared with {others} by fits that learn from unlabelled steps too: mean "
                f"decoding error {self.fitted[0].error:.3f} where labels are held out"
            ]
        return [
            f"{counted(self.contexts, 'context')} in {counted(self.steps, 'step')}; labels visit "
            f"{self.best.contexts:,} of them, {labelled:.1f} labelled steps each",
            f"concentration {self.best.prior.words(self.actions)}",
            *fits,
        ]

    def about(self) -> str:
        """A paragraph: its parents, what they are, sizes and the prior."""
        reads = f"Depends on {self.parents_text(self.best.parents)}."
        parts = [*self.explanations(), *self.about_parts()]
        return " ".join([reads, *(f"{part[0].upper()}{part[1:]}." for part in parts)])

    def next_best(self) -> list[tuple[str, str]]:
        """Other parents, and how they compare."""
        if self.refined is None:
            best = self.found.best.score
            others = [(o.parents, best - o.score) for o in self.found.runners_up]
        else:
            best = self.refined.log_conditional
            others = [(names, best - value) for value, names, _ in self.refined.others]
        others = [(names, nats) for names, nats in others if names != self.best.parents]
        return [
            (self.parents_text(names), self._difference(names, nats))
            for names, nats in others[:_MOST_RUNNERS_UP]
        ]

    def _difference(self, parents: Parents, nats: float) -> str:
        text = f"{abs(nats):.1f} nats {'more' if nats < 0 else 'less'}"
        errors = [one.error for one in self.fitted if one.scored.parents == parents]
        if errors:
            return f"{text}, decoding error {errors[0]:.3f}"
        return f"{text}, too few for its size" if nats < 0 else text

    def parents_text(self, parents: Parents) -> str:
        """Parents in words: for one agent its columns, for several what they are to each."""
        names = self.found.pool.names
        return ", ".join(self.name(form, names) for form in parents) or "nothing"

    def name(self, form: str, names: Mapping[str, Mapping[str, str]]) -> str:
        """A parent in words."""
        if len(self.agents) == 1:
            return names[form][self.agents[0]]
        if not have_forms(self.agents):
            # Whose column "own_cell" is cannot be said: somebody is called "own".
            return "/".join(dict.fromkeys(names[form][agent] for agent in self.agents))
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
            others, with emissions by fits that learn from unlabelled steps too; without agents
            who have labels in fewer than two episodes, empty where a model with emissions was not
            fitted.
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
        """What was tried: a row per set of parents, steps of the search and runners-up.

        `error` is the decoding error of a fit with these parents, where one was made.
        """
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
            listed_ones = {parents for kind, parents, *_ in kinds if kind == by}
            kinds += [
                (by, o.parents, "fitted", o.score, o.prior)
                for o in (option.scored for option in one.fitted)
                if o.parents not in listed_ones
            ]
            errors = {option.scored.parents: option.error for option in one.fitted}
            rows += [
                {
                    "role": one.role,
                    "agents": ", ".join(one.agents),
                    "parents": one.parents_text(parents),
                    "by": kind,
                    "step": what,
                    "nats": nats,
                    "prior": str(prior),
                    "error": errors.get(parents, float("nan")) if kind == by else float("nan"),
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
        parts = {role: repr(getattr(self.model, role)) for role in ROLES}
        if self.model.emissions:
            parts["emissions"] = repr(self.model.emissions)
        used = sorted({name for text in parts.values() for name in _CALLED.findall(text)})
        lines = [f"from btil import {', '.join([*used, 'TeamModel'])}", "", "model = TeamModel("]
        lines += [f"    {role}={text}," for role, text in parts.items()]
        return "\n".join([*lines, ")"])

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
            lines.append(f"{one.title}: {one.parents_text(one.best.parents)}")
            lines += [f"    {sentence}" for sentence in one.explanations()]
            for name, nats in one.gains():
                lines.append(f"    {name} brings {nats:.1f} nats{one.of_what}")
            lines += [f"    {part}" for part in one.about_parts()]
            for names, text in one.next_best():
                lines.append(f"    next best: {names} ({text})")
        for agent, errors in self.errors.items():
            lines.append(
                f"decoding error of {agent} on labelled episodes held out: {errors['found']:.3f} "
                f"(default model {errors['default']:.3f}, majority {errors['majority']:.3f})"
            )
        lines += self._about_the_rest()
        return "\n".join(lines)

    def html(self) -> Markup:
        """The same as part of a page: a table of what each policy and transition reads, and why."""
        body = html_paragraph(_NATS if self.tables else _WITHOUT_LABELS)
        body += html_list(self.warnings, "notes") if self.warnings else Markup()
        for one in self.tables:
            body += html("heading", one.title[0].upper() + one.title[1:])
            body += html_paragraph(one.about())
            rows = [(name, f"{nats:.1f}") for name, nats in one.gains()]
            if rows:
                body += html_table(("depends on", f"nats{one.of_what}"), rows)
            others = one.next_best()
            if others:
                body += html_table(("next best", "explains"), others)
        if self.errors:
            head = ("share of wrong steps, labels held out", "this model", "default", "majority")
            kinds = ("found", "default", "majority")
            shares = [
                (agent, *(f"{errors[kind]:.3f}" for kind in kinds))
                for agent, errors in self.errors.items()
            ]
            body += html_table(head, shares)
        body += html_list(self._about_the_rest())
        toml = html("code", "The model as a file for --model:", self.toml)
        return body + html("folded", "The model as a file", toml)

    def _about_the_rest(self) -> list[str]:
        """Columns that emissions explain, why tables are shared, and columns left out."""
        lines = []
        emissions = self.model.emissions
        for agent, family in emissions.items() if isinstance(emissions, Mapping) else ():
            inputs = family.covariates_of(agent)
            by = listed(inputs) if inputs else "its intent alone"
            lines.append(f"columns of {agent}: {listed(family.columns_of(agent))}, by {by}")
        if self.unread:
            lines.append(f"measured columns that nothing reads: {listed(self.unread)}; {UNREAD}")
        lines += [f"sharing of the {role}: {reason}" for role, reason in self.sharing.items()]
        return lines + [f"refused {column}: {reason}" for column, reason in self.refused.items()]
