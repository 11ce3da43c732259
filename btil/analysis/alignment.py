r"""Which latent of one posterior is which of another.

Where no label, no prior and no given table tells latents apart, renaming them changes nothing in
the model, and two fits may answer under different names. Before posteriors are compared, those
latents that could be renamed are matched.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.inference.collapsed import constrained
from btil.inference.result import (
    ChannelPosterior,
    ConditionalRows,
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FunctionalRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
    MomentRows,
    NormalParameters,
    ParameterPosterior,
    RowsPosterior,
    at_noise,
)
from btil.models.contexts import match_rows
from btil.models.cpt import ROLES, permuted_latents
from btil.models.parametric import parameter_axes, parametric_site, parametric_sites
from btil.models.symmetry import agents_with_common_latents, interchangeable_classes
from btil.models.team import BoundModel, TeamModel, bind
from btil.numpyro_forms.numpyro_model import NumpyroModel
from btil.posterior.beliefs import Posterior

# The arrays of rows that are not chains.
_PER_ROW: dict[type, tuple[str, ...]] = {
    DirichletRows: ("concentration",),
    MixtureRows: ("concentration",),
    FunctionalRows: FunctionalRows._fields,
    ConditionalRows: ConditionalRows._fields,
}
# Up to so many permutations are simply tried.
_MOST_TRIED = 5040
# Of a mean field that is none any more once its latents are renamed so many draws are taken.
_PARAMETER_DRAWS = 1000

Rows = Mapping[str, Float[np.ndarray, "..."]]
Permutations = Mapping[str, Sequence[int] | Int[np.ndarray, " latents"]]


class Use(NamedTuple):
    """That an agent reads a table, and how often it reads each context of it.

    Attributes:
        role: "policy", "transition" or "initial".
        site: Name of the table.
        visits: Number of reads of each context.
    """

    role: str
    site: str
    visits: Int[np.ndarray, " contexts"]


def interchangeable_latents(
    model: TeamModel, demos: Demonstrations
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Classes of latents that nothing distinguishes, per agent.

    Two latents of an agent are interchangeable if neither is ever labelled and swapping them
    leaves every prior and every given table as it is; this is an equivalence, and every
    permutation within its classes leaves the model as it is. Agents that share a table, or
    parameters of the latents' tables, have their latents in common: a label of one speaks for all
    of them. Symmetries that are not made of swaps, such as turning a given cyclic transition, are
    not looked for.

    Args:
        model: The model.
        demos: The demonstrations it is fitted to, with their labels.

    Returns:
        {agent: classes}; each latent is in exactly one class, mostly alone.

    Example:
        >>> demos = Demonstrations([0, 0], [0, 1], latents=[0, -1], num_latents=3)
        >>> interchangeable_latents(TeamModel(), demos)
        {'agent_0': ((0,), (1, 2))}
    """
    return interchangeable_classes(bind(model, demos))


def latents_pinned(model: TeamModel, demos: Demonstrations) -> dict[str, bool]:
    """Whether labels, priors and given tables leave an agent's latents only one order.

    Args:
        model: The model.
        demos: The demonstrations it is fitted to, with their labels.

    Returns:
        {agent: pinned}: true where no two latents are interchangeable, e.g. where all latents but
        at most one are labelled somewhere. Labels decide in principle, however few they are.
    """
    return agents_pinned(bind(model, demos))


def agents_pinned(bound: BoundModel) -> dict[str, bool]:
    """`latents_pinned` of a model that is on its demonstrations already."""
    return {
        agent: all(len(members) == 1 for members in classes)
        for agent, classes in interchangeable_classes(bound).items()
    }


def match_latents(bound: BoundModel, reference: Rows, rows: Rows) -> dict[str, np.ndarray]:
    r"""The renaming of latents under which rows come closest to reference rows.

    Over permutations within the interchangeable classes, minimises the total variation distance
    of the rows that the data read, each as often as they read it:

    .. math:: \sum_c n_c \Big[ \sum_k d(\pi_{ck}, \pi'_{c,\sigma k})
              + \sum_k d(T_{ck\cdot}, T'_{c,\sigma k,\sigma\cdot}) \Big]
              + \sum_c n_c\, d(b_{c\cdot}, b'_{c,\sigma\cdot})

    Up to 5,040 permutations (seven interchangeable latents) are all tried. Beyond, the policy's
    part is an assignment problem (Hungarian method); the transition's, in which :math:`\sigma`
    occurs twice, is made one by holding the inner :math:`\sigma` fixed; both are solved anew, and
    pairs swapped, until nothing improves.

    Args:
        bound: The model on its demonstrations.
        reference: {site: rows}, e.g. posterior means; a missing site is not compared, nor is a
            context with NaN in it.
        rows: {site: rows} of another posterior of the same model and demonstrations.

    Returns:
        {agent: permutation}, for `relabel_rows`: latent k of the reference is latent
        `permutation[k]` of `rows`. The identity where latents are pinned.

    Raises:
        ValueError: If the rows of a site differ in shape from its table.
    """
    for name, given in (("reference", reference), ("rows", rows)):
        _check_shapes(name, bound, given, leading=0)
    classes = interchangeable_classes(bound)
    permutations: dict[str, np.ndarray] = {}
    for agents in agents_with_common_latents(bound):
        own = classes[agents[0]]
        if all(len(members) == 1 for members in own):
            best = np.arange(sum(map(len, own)))
        else:
            uses = [use for agent in agents for use in _uses(bound, agent)]
            best = _match(own, uses, reference, rows)
        permutations |= {agent: best.copy() for agent in agents}
    return permutations


def symmetries(bound: BoundModel, most: int) -> list[dict[str, np.ndarray]] | None:
    """Every renaming of latents that leaves the model on its data as it is.

    Args:
        bound: The model on its demonstrations.
        most: More renamings than so many are not listed.

    Returns:
        Permutations for `relabel_rows`, the identity first: the products of all permutations
        within the interchangeable classes; None if there are more than `most`.
    """
    classes = interchangeable_classes(bound)
    teams = agents_with_common_latents(bound)
    sizes = (math.factorial(len(members)) for team in teams for members in classes[team[0]])
    if math.prod(sizes) > most:
        return None
    return [
        {agent: own.copy() for team, own in zip(teams, orders, strict=True) for agent in team}
        for orders in itertools.product(*(tuple(_orders(classes[team[0]])) for team in teams))
    ]


def relabel_rows(bound: BoundModel, rows: Rows, permutations: Permutations) -> dict[str, Any]:
    """Rename latents: the new latent k is the old latent `permutation[k]`.

    Policies are permuted on their latent axis, transitions on both, initials on their last.

    Args:
        bound: The model on its demonstrations.
        rows: {site: (..., contexts, latents, values)}; leading axes (draws) are welcome.
        permutations: {agent: permutation}; agents that share a table must have the same one.

    Raises:
        ValueError: If an agent lacks a permutation, it is none, or agents that share a table
            differ in theirs; if a shape does not end as the table's does.

    Example:
        >>> relabel_rows(bound, rows, {"ann": [1, 0], "bob": [0, 1]})  # doctest: +SKIP
    """
    _check_shapes("rows", bound, rows)
    checked = _checked_permutations(bound, permutations)
    relabelled = {}
    for site, values in rows.items():
        table = bound.tables[site]
        permutation = np.asarray(checked[table.agents[0]])
        relabelled[site] = permuted_latents(np.asarray(values), table.contexts.role, permutation)
    return relabelled


def align[P: Posterior](posterior: P, reference: Posterior) -> P:
    """The posterior with its latents named as in the reference.

    Chains may differ in names among themselves: each is matched on its own. Only contexts that
    both have visited are compared. What may be renamed is what the posterior's own data leave
    open.

    Args:
        posterior: Any posterior.
        reference: Another one of the same model; its demonstrations may be other ones.

    Returns:
        The posterior itself where everything is pinned already (or there are no rows to match by,
        as of a `NumpyroModel`), else a renamed copy. Evidence and likelihoods are the same under
        both names.

    Raises:
        ValueError: If the two have other agents, parents or numbers of latents and actions, or
            number the same names in another way; if latents would be matched of an agent with
            continuous columns.

    Example:
        >>> btil.analysis.align(btil.fit(model, demos, "gibbs"), posterior)  # doctest: +SKIP
    """
    bound = posterior.bound
    if isinstance(posterior.model, NumpyroModel):
        return posterior
    _refuse_renumbered(posterior.demos, reference.demos)
    target = _in_order_of(posterior, reference)
    pinned = agents_pinned(bound)
    if all(pinned.values()):
        return posterior
    refuse_unmatched(bound)
    rows = posterior.result.rows
    chains = {
        site: one.chain_moments()[0]
        if isinstance(one, MomentRows)
        else one.draws.mean(1, dtype=np.float64)
        for site, one in rows.items()
        if isinstance(one, DrawnRows | MomentRows)
    }
    if len(chains) < len(rows):
        return rename_latents(posterior, match_latents(bound, target, posterior_means(posterior)))
    permutations = [
        match_latents(bound, target, {site: means[chain] for site, means in chains.items()})
        for chain in range(num_chains(posterior))
    ]
    return rename_latents(posterior, permutations)


def refuse_unmatched(bound: BoundModel) -> None:
    """Refuse a model with continuous columns whose latents nothing names.

    Raises:
        ValueError: Naming the agents, and what to do.
    """
    if not bound.channels:
        return
    pinned = agents_pinned(bound)
    open_ones = [agent for agent in bound.channels if not pinned[agent]]
    if open_ones:
        raise ValueError(
            "continuous columns are not looked at where latents are matched, and nothing else "
            f"names those of {', '.join(open_ones)}; label a step of every latent but one"
        )


def num_chains(posterior: Posterior) -> int:
    """Number of chains that the rows were drawn in; 1 of independent draws, 0 without draws."""
    rows = posterior.result.rows.values()
    return max((len(r.draws) for r in rows if isinstance(r, DrawnRows | MomentRows)), default=0)


def rename_latents[P: Posterior](
    posterior: P, permutations: Permutations | Sequence[Permutations]
) -> P:
    """The posterior with its latents renamed, rows and parameters of parametric families alike.

    Normals of a parameter that is a probability vector over latents (mean field) are none any more
    once those are renamed: such a parameter, and those that are normal together with it, are given
    as 1,000 draws.

    Args:
        posterior: Any posterior.
        permutations: {agent: permutation} as for `relabel_rows`, or one for each chain.

    Raises:
        ValueError: As `relabel_rows`, or if there are not as many permutations as chains.
    """
    by_chain = [permutations] if isinstance(permutations, Mapping) else list(permutations)
    if len(by_chain) not in (1, num_chains(posterior)):
        raise ValueError(
            f"permutations: {len(by_chain)} are given for {num_chains(posterior)} chains"
        )
    bound, result = posterior.bound, posterior.result
    rows: dict[str, RowsPosterior] = {}
    for site, one in result.rows.items():
        if isinstance(one, DrawnRows | MomentRows):
            rows[site] = _renamed_chains(bound, site, one, by_chain)
        else:
            values = {
                field: relabel_rows(bound, {site: getattr(one, field)}, by_chain[0])[site]
                for field in _PER_ROW[type(one)]
            }
            rows[site] = one._replace(**values)
    parameters = _renamed_parameters(posterior, by_chain)
    channels = {
        channel.name: _renamed_channel(bound, agent, result.channels[channel.name], by_chain)
        for agent, channel in bound.channels.items()
    }
    return dataclasses.replace(
        posterior, result=result._replace(rows=rows, parameters=parameters, channels=channels)
    )


def _renamed_channel(
    bound: BoundModel, agent: str, given: ChannelPosterior, by_chain: Sequence[Permutations]
) -> ChannelPosterior:
    """A continuous channel with its agent's latents renamed."""
    orders = [_checked_permutations(bound, own)[agent] for own in by_chain]
    if isinstance(given, DrawnChannel):
        chains = len(given.coefficients)
        orders = orders * chains if len(orders) == 1 else orders
        return DrawnChannel(
            *(
                np.stack([part[chain][:, :, own] for chain, own in enumerate(orders)])
                for part in given
            )
        )
    at = 1 if isinstance(given, MixtureChannel | MixtureOfRegressions) else 0
    parts: dict[str, Any] = {
        name: np.take(getattr(given, name), orders[0], axis=at + 1)
        for name in MatrixNormalChannel._fields
    }
    return given._replace(**parts)


def _renamed_chains(
    bound: BoundModel,
    site: str,
    rows: DrawnRows | MomentRows,
    by_chain: Sequence[Permutations],
) -> DrawnRows | MomentRows:
    """Rows of chains with their latents renamed, by one permutation or by one for each chain."""
    table = bound.tables[site]
    checked = [_checked_permutations(bound, own)[table.agents[0]] for own in by_chain]

    def renamed(values: Float[np.ndarray, "chain ..."]) -> Float[np.ndarray, "chain ..."]:
        chains = [values] if len(checked) == 1 else values[:, None]
        parts = [
            permuted_latents(chain, table.contexts.role, own)
            for chain, own in zip(chains, checked, strict=True)
        ]
        return np.concatenate(parts)

    if isinstance(rows, DrawnRows):
        return DrawnRows(renamed(rows.draws))
    return rows._replace(
        means=renamed(rows.means), squares=renamed(rows.squares), draws=renamed(rows.draws)
    )


class _Moved(NamedTuple):
    """How a parameter is renamed.

    Attributes:
        axes: Its axes of latents.
        orders: The new orders along them, one for all chains or one for each.
        normal: Whether normals of its unconstrained values stay such.
    """

    axes: tuple[int, ...]
    orders: list[Int[np.ndarray, " latents"]]
    normal: bool


def _renamed_parameters(
    posterior: Posterior, by_chain: Sequence[Permutations]
) -> dict[str, ParameterPosterior]:
    """All parameters with the axes of latents in new orders.

    What is normal together is drawn together, if one of it cannot stay normal.
    """
    moved: dict[str, _Moved] = {}
    for table in posterior.bound.learned.values():
        if not table.parametric:
            continue
        described = parametric_site(table)
        priors = described.cpt.priors(described.contexts)
        orders = [np.asarray(own[table.agents[0]]) for own in by_chain]
        for parameter, site in described.parameters:
            names = parameter_axes(described, parameter)
            axes = tuple(k for k, axis in enumerate(names) if axis in ("latent", "next_latent"))
            # Along these a value in unconstrained space stands for one in constrained space.
            prior = priors[parameter]
            free = len(prior.shape()) - prior.support.event_dim
            # Of parameters that agents have in common it is done once.
            moved.setdefault(site, _Moved(axes, orders, all(axis < free for axis in axes)))
    given = dict(posterior.result.parameters)
    drawn = {
        one.group if isinstance(one, JointNormals) else site
        for site, one in given.items()
        if not isinstance(one, DrawnParameters) and site in moved and not moved[site].normal
    }
    normals = {
        site: one
        for site, one in given.items()
        if (one.group if isinstance(one, JointNormals) else site) in drawn
    }
    generator = np.random.default_rng([posterior.seed, 3])
    free_draws = at_noise(normals, lambda size: generator.standard_normal((_PARAMETER_DRAWS, size)))
    draws = constrained(parametric_sites(posterior.bound), free_draws)
    given |= {site: DrawnParameters(values[None]) for site, values in draws.items()}
    return given | {
        site: _renamed_parameter(given[site], own) for site, own in moved.items() if site in given
    }


def _renamed_parameter(given: ParameterPosterior, moved: _Moved) -> ParameterPosterior:
    axes, orders, _ = moved
    if not axes:
        return given
    if isinstance(given, NormalParameters):
        return NormalParameters(*(_reordered(part, axes, orders[0]) for part in given))
    if isinstance(given, JointNormals):
        location = _reordered(given.location, axes, orders[0])
        return JointNormals(location, _reordered(given.factor, axes, orders[0]), given.group)
    chains = [given.draws] if len(orders) == 1 else given.draws[:, None]
    places = [k + 2 for k in axes]
    return DrawnParameters(
        np.concatenate([_reordered(p, places, o) for p, o in zip(chains, orders, strict=True)])
    )


def _reordered(
    values: Float[np.ndarray, "..."], axes: Sequence[int], order: Int[np.ndarray, " latents"]
) -> Float[np.ndarray, "..."]:
    for axis in axes:
        values = np.take(values, order, axis)
    return values


def posterior_means(posterior: Posterior) -> dict[str, Float[np.ndarray, "..."]]:
    """Posterior mean rows of every learned site, {site: (contexts, latents, values)}."""
    return {site: rows.mean() for site, rows in posterior.result.rows.items()}


def shared_contexts(
    posterior: Posterior, reference: Posterior, site: str
) -> tuple[Int[np.ndarray, " shared"], Int[np.ndarray, " shared"]]:
    """The contexts of a table that two posteriors have both visited.

    Returns:
        Their row indices in the one, and in the other.

    Raises:
        ValueError: If the table has other parents or another shape in the two.
    """
    own, other = (one.bound.tables[site].contexts for one in (posterior, reference))
    if (own.names, own.row_shape) != (other.names, other.row_shape):
        raise ValueError(
            f"{site}: rows of shape {own.row_shape} with parents {own.names or 'none'} cannot be "
            f"compared with rows {other.row_shape} with parents {other.names or 'none'}"
        )
    found = match_rows(other.rows, own.rows)
    return np.flatnonzero(found >= 0), found[found >= 0]


def _refuse_renumbered(demos: Demonstrations, others: Demonstrations) -> None:
    """Refuse tables whose rows and values stand for other things under the same numbers."""
    for kind in ("state_names", "action_names", "latent_names"):
        ours, theirs = getattr(demos, kind), getattr(others, kind)
        for key in ours.keys() & theirs.keys():
            # Those of one may go on behind those of the other.
            if any(own != other for own, other in zip(ours[key], theirs[key], strict=False)):
                raise ValueError(
                    f"{kind} of {key} differ: {', '.join(ours[key])} and, of the reference, "
                    f"{', '.join(theirs[key])}, so that tables are numbered in different ways; "
                    "read the recordings of the one with like= those of the other, and fit again"
                )


def _in_order_of(posterior: Posterior, reference: Posterior) -> dict[str, np.ndarray]:
    """Mean rows of the reference in the posterior's contexts; NaN where it has none."""
    sites, others = set(posterior.bound.tables), set(reference.bound.tables)
    if sites != others:
        raise ValueError(
            f"the posteriors have different tables: {', '.join(sorted(sites))} and, of the "
            f"reference, {', '.join(sorted(others))}"
        )
    target = {}
    for site, rows in posterior_means(reference).items():
        ours, theirs = shared_contexts(posterior, reference, site)
        target[site] = np.full(posterior.bound.tables[site].shape, np.nan)
        target[site][ours] = rows[theirs]
    return target


def _uses(bound: BoundModel, agent: str) -> list[Use]:
    """The tables of an agent, each with the number of visits that this agent pays it."""
    found = []
    for role in ROLES:
        table = bound.table(role, agent)
        visits = np.bincount(bound.rows[agent].reads(role), minlength=len(table.contexts.rows))
        found.append(Use(role, table.name, visits))
    return found


def _match(
    classes: tuple[tuple[int, ...], ...], uses: list[Use], reference: Rows, rows: Rows
) -> Int[np.ndarray, " latents"]:
    size = sum(map(len, classes))
    new = np.arange(size)
    single, double = _costs(uses, reference, rows, size)

    def total(permutation: Int[np.ndarray, " latents"]) -> float:
        inner = double[new[:, None], permutation[:, None], new, permutation]
        return float(single[new, permutation].sum() + inner.sum())

    if math.prod(math.factorial(len(members)) for members in classes) <= _MOST_TRIED:
        return min(_orders(classes), key=total)
    return _search(classes, single, double, total)


def _orders(classes: tuple[tuple[int, ...], ...]) -> Iterator[Int[np.ndarray, " latents"]]:
    """Every permutation within the classes, the identity first."""
    positions = np.concatenate(classes)
    for orders in itertools.product(*map(itertools.permutations, classes)):
        permutation = np.empty_like(positions)
        permutation[positions] = np.concatenate(orders)
        yield permutation


def _search(
    classes: tuple[tuple[int, ...], ...],
    single: Float[np.ndarray, "k l"],
    double: Float[np.ndarray, "k l next_k next_l"],
    total: Callable[[Int[np.ndarray, " latents"]], float],
) -> Int[np.ndarray, " latents"]:
    """A permutation of low cost: assignments with the inner one held fixed, then swaps."""
    from scipy.optimize import linear_sum_assignment

    new = np.arange(len(single))
    allowed = np.zeros(single.shape, bool)
    for members in classes:
        allowed[np.ix_(members, members)] = True

    def assignment(cost: Float[np.ndarray, "k l"]) -> Int[np.ndarray, " latents"]:
        # Larger than any sum of allowed costs, so that no forbidden pair is ever chosen.
        forbidden = 1.0 + len(new) * float(cost.max())
        return linear_sum_assignment(np.where(allowed, cost, forbidden))[1]

    # To begin with, of the transitions only how readily a latent stays.
    best = assignment(single + double[new[:, None], new, new[:, None], new])
    lowest = total(best)
    improved = True
    while improved:
        tried = [assignment(single + double[:, :, new, best].sum(-1))]
        for i, j in itertools.combinations(new, 2):
            if allowed[i, j]:
                tried.append(best.copy())
                tried[-1][[i, j]] = best[[j, i]]
        candidate = min(tried, key=total)
        improved = total(candidate) < lowest - 1e-12 * lowest
        if improved:
            best, lowest = candidate, total(candidate)
    return best


def _costs(
    uses: list[Use], reference: Rows, rows: Rows, size: int
) -> tuple[Float[np.ndarray, "k l"], Float[np.ndarray, "k l next_k next_l"]]:
    """What it costs to call latent l of `rows` k, and to call l' k' at the same time.

    Policies and initial distributions cost by single latents, transitions by pairs of them.
    """
    single = np.zeros((size, size))
    double = np.zeros((size, size, size, size))
    for role, site, visits in uses:
        if site not in reference or site not in rows:
            continue
        ours, theirs = np.asarray(reference[site]), np.asarray(rows[site])
        compared = ~np.isnan(ours.reshape(len(ours), -1)).any(-1)
        ours, theirs, visits = ours[compared], theirs[compared], visits[compared]
        for k in range(size):
            for l in range(size):  # noqa: E741  # k and l are latents of one and the other
                if role == "policy":
                    difference = np.abs(ours[:, k] - theirs[:, l]).sum(-1) / 2
                    single[k, l] += visits @ difference
                elif role == "initial":
                    single[k, l] += visits @ np.abs(ours[:, k] - theirs[:, l]) / 2
                else:
                    cells = np.abs(ours[:, k, :, None] - theirs[:, l, None, :]) / 2
                    double[k, l] += np.tensordot(visits, cells, 1)
    return single, double


def _check_shapes(name: str, bound: BoundModel, rows: Rows, leading: int | None = None) -> None:
    """Refuse rows of unknown sites or of other shapes; `leading` None: any leading axes go."""
    for site, values in rows.items():
        if site not in bound.tables:
            raise ValueError(
                f"{name}: unknown site {site!r}; the sites are {', '.join(bound.tables)}"
            )
        shape = bound.tables[site].shape
        given = np.shape(values)
        if given[-len(shape) :] != shape or leading not in (None, len(given) - len(shape)):
            must = "must end in" if leading is None else "must be"
            raise ValueError(f"{name}: {site} has shape {given}, which {must} {shape}")


def _checked_permutations(
    bound: BoundModel, permutations: Permutations
) -> dict[str, Int[np.ndarray, " latents"]]:
    checked = {}
    sizes = dict(zip(bound.demos.agents, bound.demos.num_latents, strict=True))
    for table in bound.tables.values():
        for agent in table.agents:
            if agent not in permutations:
                raise ValueError(f"permutations: agent {agent} is missing")
            permutation = np.asarray(permutations[agent])
            if not np.array_equal(np.sort(permutation), np.arange(sizes[agent])):
                raise ValueError(
                    f"permutations: agent {agent} has {permutation.tolist()}, which is no order of "
                    f"0..{sizes[agent] - 1}"
                )
            checked[agent] = permutation
        first = table.agents[0]
        for agent in table.agents[1:]:
            if not np.array_equal(checked[agent], checked[first]):
                raise ValueError(
                    f"permutations: {agent} and {first} share the table {table.name}, so they "
                    "must have the same one"
                )
    return checked
