"""Where fits start: counts of the labelled steps, and others dealt to the latents at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from btil.inference.messages import Layout, lay_out
from btil.models.parametric import central_concentration
from btil.models.team import BoundModel


def labelled_counts(bound: BoundModel, layout: Layout) -> dict[str, Float[np.ndarray, "..."]]:
    """Uses of each cell of the learned tables that the labels alone determine.

    A policy cell counts where the step is labelled, a transition where both its ends are, an
    initial latent where the first step is.
    """
    counts = {
        name: np.zeros((layout.num_rows[name], *table.shape[1:]))
        for name, table in bound.learned.items()
    }
    demos = bound.demos
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        label = demos.latents[:, position]
        policy, transition, initial = layout.sites[agent]
        if policy in counts:
            known = label >= 0
            np.add.at(
                counts[policy],
                (rows.policy[known], label[known], demos.actions[known, position]),
                1,
            )
        if transition in counts:
            before = np.roll(label, 1)
            known = (rows.transition >= 0) & (label >= 0) & (before >= 0)
            np.add.at(counts[transition], (rows.transition[known], before[known], label[known]), 1)
        if initial in counts:
            first = label[demos.episode_starts]
            known = first >= 0
            np.add.at(counts[initial], (rows.initial[known], first[known]), 1)
    return counts


def random_counts(
    bound: BoundModel, layout: Layout, generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """The unlabelled uses of each observed cell, dealt out to the latents at random.

    Every context's observed actions are kept, only which latent took them is random: a start as
    far from symmetric as one draw of responsibilities makes it, at the scale of the data.
    """
    counts = {
        name: np.zeros((layout.num_rows[name], *table.shape[1:]))
        for name, table in bound.learned.items()
    }
    demos = bound.demos
    for position, agent in enumerate(demos.agents):
        rows = bound.rows[agent]
        label = demos.latents[:, position]
        latents = demos.num_latents[position]
        policy, transition, initial = layout.sites[agent]
        unknown = label < 0
        if policy in counts:
            shape = (layout.num_rows[policy], demos.num_actions[position])
            by_action = np.zeros(shape)
            np.add.at(by_action, (rows.policy[unknown], demos.actions[unknown, position]), 1)
            shares = generator.dirichlet(np.ones(latents), size=shape)
            counts[policy] += np.swapaxes(by_action[..., None] * shares, 1, 2)
        if transition in counts:
            open_pair = (rows.transition >= 0) & (unknown | (np.roll(label, 1) < 0))
            uses = np.bincount(rows.transition[open_pair], minlength=layout.num_rows[transition])
            shares = generator.dirichlet(np.ones(latents**2), size=len(uses))
            counts[transition] += uses[:, None, None] * shares.reshape(-1, latents, latents)
        if initial in counts:
            open_start = unknown[demos.episode_starts]
            uses = np.bincount(rows.initial[open_start], minlength=layout.num_rows[initial])
            counts[initial] += uses[:, None] * generator.dirichlet(np.ones(latents), len(uses))
    return counts


def is_symmetric(bound: BoundModel, layout: Layout, start: Mapping[str, np.ndarray]) -> bool:
    """Whether some latents of an agent cannot be told apart by any of its tables.

    Coordinate ascent never leaves such a start: it is a saddle of the bound, not an answer.
    Latents are told apart by their policy rows and initial cells, then by their moves to and from
    latents already told apart, until nothing changes (colour refinement). So swaps of two latents
    are found as well as cycles of several.
    """
    for names in layout.sites.values():
        policy, transition, initial = (
            np.asarray(start[name] if name in start else bound.tables[name].prior_mean())
            for name in names
        )
        latents = range(initial.shape[-1])
        kinds = _numbered([(policy[:, x].tobytes(), initial[:, x].tobytes()) for x in latents])
        num_kinds = 0
        while num_kinds < len(set(kinds)) < len(latents):
            num_kinds = len(set(kinds))
            moves = [
                sorted(
                    (kinds[y], transition[:, x, y].tobytes(), transition[:, y, x].tobytes())
                    for y in latents
                    if y != x
                )
                for x in latents
            ]
            kinds = _numbered(
                [(kinds[x], transition[:, x, x].tobytes(), *moves[x]) for x in latents]
            )
        if len(set(kinds)) < len(latents):
            return True
    return False


def _numbered(keys: list[Any]) -> list[int]:
    """A number per key, the same for equal keys."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def starting_counts(
    bound: BoundModel, generator: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Counts of the labelled steps, and the other steps' counts dealt to the latents at random.

    Both without the padding that the message passing wants.
    """
    layout = lay_out(bound)
    known = labelled_counts(bound, layout)
    dealt = random_counts(bound, layout, generator)
    sizes = {name: len(table.contexts.rows) for name, table in bound.learned.items()}
    return (
        {name: counts[: sizes[name]] for name, counts in known.items()},
        {name: counts[: sizes[name]] for name, counts in dealt.items()},
    )


def starting_concentrations(
    bound: BoundModel, generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """Prior plus the counts of the labelled steps, of the tables with Dirichlet rows.

    Where that is symmetric in two latents, a saddle of the bound, the other steps are dealt to
    the latents at random and counted too. Of parametric families the prior is the one under the
    central parameters.
    """
    known, dealt = starting_counts(bound, generator)
    start = {
        name: central_concentration(table) + known[name]
        for name, table in bound.learned.items()
        if table.cpt.dirichlet_rows
    }
    if is_symmetric(bound, lay_out(bound), start):
        start = {name: values + dealt[name] for name, values in start.items()}
    return start
