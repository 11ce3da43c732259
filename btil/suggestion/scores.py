r"""How well parents explain labelled steps: Dirichlet-multinomial evidence in closed form.

With every read of a table labelled its rows integrate out:

.. math:: \log p(v \mid c, x) = \sum_{rows} \Big[ \log\frac{\Gamma(S)}{\Gamma(S + n)}
          + \sum_j \log\frac{\Gamma(\alpha_j + n_j)}{\Gamma(\alpha_j)} \Big],

with n the counts of a row (a context c and a latent x), alpha its prior and S the prior's sum.
Priors have few different cells, so cells are counted by their class (which action it is; whether
the latent stays) and their count, and a whole grid of priors is scored at once. The score does not
depend on the order of steps or of parents, to the last bit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from btil.models.cpt import CPT, DirichletCPT, StickyDirichletCPT

STRENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CELLS = (0.01, 0.03, 0.1, 0.3, 1.0)
STAYS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)


class Prior(NamedTuple):
    """A prior of a table's rows.

    Attributes:
        kind: "flat", "rarity" (of a policy: in proportion to how often actions are taken),
            "sticky", or "keeps" (the latent stays while a variable keeps its value).
        strength: Of a policy the sum of a row, else of each cell.
        stay: What staying has on top.
        base: Of a policy, each action's share of the strength.
    """

    kind: str
    strength: float
    stay: float = 0.0
    base: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.words()

    def words(self, actions: Sequence[str] = ()) -> str:
        """The prior in words, with the names of actions where they are given."""
        text = f"{self.strength:g} a row" if self.base else f"{self.strength:g} a cell"
        if self.kind == "rarity":
            text += ", as often as actions are taken"
        if self.kind == "rare":
            rare = self.base.index(min(self.base))
            text += f", little of it for the action {actions[rare] if actions else rare}"
        if self.stay:
            text += f", stay {self.stay:g}"
        if self.kind == "keeps":
            text += " while it keeps"
        return text


class Grid(NamedTuple):
    """Priors to try.

    Attributes:
        priors: What they are.
        cells: Concentration of a cell by its class.
        sums: Concentration of a row by its group.
    """

    priors: tuple[Prior, ...]
    cells: Float[np.ndarray, "priors classes"]
    sums: Float[np.ndarray, "priors groups"]


class Reads(NamedTuple):
    """The labelled reads of a table.

    Attributes:
        latent: The latent of each.
        value: What came: the action, or the next latent.
        num_latents: K.
        num_values: V.
    """

    latent: Int[np.ndarray, " reads"]
    value: Int[np.ndarray, " reads"]
    num_latents: int
    num_values: int


def policy_grid(shares: Float[np.ndarray, " actions"]) -> Grid:
    """Flat priors, and priors in proportion to how often each action is taken."""
    number = len(shares)
    flat = tuple([1 / number] * number)
    bases = [("flat", flat)]
    if number > 1:
        bases.append(("rarity", tuple(np.round(shares, 4).tolist())))
    priors = tuple(Prior(kind, s, 0.0, base) for kind, base in bases for s in STRENGTHS)
    cells = np.array([[p.strength * share for share in p.base] for p in priors])
    return Grid(priors, cells, cells.sum(1, keepdims=True))


def transition_grid(num_latents: int) -> Grid:
    """A concentration for every cell and more for staying."""
    priors = tuple(Prior("sticky", u, stay) for u in CELLS for stay in STAYS)
    cells = np.array([[p.strength, p.strength + p.stay] for p in priors])
    sums = np.array([[p.strength * num_latents + p.stay] for p in priors])
    return Grid(priors, cells, sums)


def keeping_grid(num_latents: int) -> Grid:
    """The same, where staying has more only while a variable keeps its value."""
    priors = tuple(Prior("keeps", u, stay) for u in CELLS for stay in (*STAYS[1:], 1e3, 1e4))
    cells = np.array([[p.strength, p.strength + p.stay, p.strength, p.strength] for p in priors])
    sums = np.array([[p.strength * num_latents + p.stay, p.strength * num_latents] for p in priors])
    return Grid(priors, cells, sums)


def log_marginals(
    context: Int[np.ndarray, " reads"],
    reads: Reads,
    grid: Grid,
    kind: Int[np.ndarray, " reads"],
    group: Int[np.ndarray, " reads"],
) -> Float[np.ndarray, " priors"]:
    """The log evidence of labelled reads under every prior of a grid.

    Args:
        context: The context of each read, any code.
        reads: The reads.
        grid: The priors.
        kind: The class of the cell of each.
        group: The group of the row of each.
    """
    if not len(context):
        return np.zeros(len(grid.priors))
    cell = (context * reads.num_latents + reads.latent) * reads.num_values + reads.value
    cells, first, counts = np.unique(cell, return_index=True, return_counts=True)
    row = cells // reads.num_values
    starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
    totals = np.add.reduceat(counts, starts)
    most = len(context) + 1
    score = np.zeros(len(grid.priors))
    for classes, counted, prior, sign in (
        (kind[first], counts, grid.cells, 1),
        (group[first[starts]], totals, grid.sums, -1),
    ):
        # Equal classes with equal counts add equal terms.
        pairs, times = np.unique(classes * most + counted, return_counts=True)
        alpha = prior[:, pairs // most]
        score += sign * ((gammaln(alpha + pairs % most) - gammaln(alpha)) @ times)
    return score


def cpt_of(
    prior: Prior, parents: dict[str, tuple[str, ...]], kept: dict[str, str] | None = None
) -> CPT:
    """The table family that a prior is.

    Args:
        prior: The prior.
        parents: The parents of each agent.
        kept: Of a prior that keeps, the variable of each agent.
    """
    told = _common(parents)
    if prior.kind == "flat":
        return DirichletCPT(_plain(prior.strength / len(prior.base)), told)
    if prior.kind in ("rarity", "rare"):
        return DirichletCPT([_plain(prior.strength * share) for share in prior.base], told)
    if prior.stay == 0:
        return DirichletCPT(prior.strength, told)
    unless = None if kept is None else _common(kept)
    return StickyDirichletCPT(prior.strength, prior.stay, told, unless)


def _common(by_agent: dict[str, Any]) -> Any:
    """The one value of all agents, or the mapping."""
    values = list(by_agent.values())
    return values[0] if all(value == values[0] for value in values) else by_agent


def _plain(number: float) -> float:
    return float(f"{number:.4g}")
