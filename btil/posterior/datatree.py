"""A posterior as an xarray DataTree, the form in which ArviZ takes it."""

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from btil.demonstrations import Demonstrations
from btil.inference.chains import moments_split_rhat
from btil.inference.method import method_names, method_of
from btil.inference.result import (
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
    MomentRows,
    NormalParameters,
)
from btil.models.contexts import data_column
from btil.models.emission import Channel, NormalEmission, channel_sites, step_log_density
from btil.models.parametric import parameter_axes, parametric_site
from btil.models.team import ROLE_AXES, Table, likelihood_name, make_contexts
from btil.numpyro_forms.numpyro_model import NumpyroModel

if TYPE_CHECKING:
    import xarray as xr

    from btil.posterior.beliefs import Posterior


Axes = tuple[tuple[str, ...], dict[str, Shaped[np.ndarray, " values"]]]


class TreeNames:
    """Names for a tree, in which "/" separates groups: "_" stands for it, and none is given twice.

    Of names that would be alike ("p/q" and "p_q") the one without a slash stays as it is, and the
    others get a number at the end. A variable and an axis cannot have one name either.

    Args:
        sites: Names of variables; they come first.
        axes: Names of axes.
    """

    def __init__(self, sites: Iterable[str], axes: Iterable[str]) -> None:
        self._given: dict[tuple[str, str], str] = {}
        for kind, names in (("site", sites), ("axis", axes)):
            for name in sorted(names, key=lambda name: "/" in name):
                self(name, kind)

    def __call__(self, name: str, kind: str) -> str:
        """The tree's name; the same each time for the same name of a site, axis or moment."""
        if (kind, name) not in self._given:
            # Sites and moments are in groups of their own, axes in both.
            apart = {"site": "moment", "moment": "site"}.get(kind)
            taken = {"chain", "draw"} | {n for (k, _), n in self._given.items() if k != apart}
            plain = name.replace("/", "_")
            numbered = itertools.chain([plain], (f"{plain}_{k}" for k in itertools.count(2)))
            self._given[kind, name] = next(one for one in numbered if one not in taken)
        return self._given[kind, name]


def tree_names(posterior: "Posterior") -> TreeNames:
    """The names of a posterior's sites and of the axes of its tables."""
    sites = [*posterior.result.rows, *posterior.result.parameters]
    tables = [posterior.bound.tables[name] for name in posterior.result.rows]
    return TreeNames(sites, itertools.chain.from_iterable(map(_table_axes, tables)))


def build_datatree(posterior: "Posterior", num_draws: int, seed: int) -> "xr.DataTree":
    """Build the groups posterior, sample_stats, log_likelihood, observed_data, constant_data.

    Args:
        posterior: The posterior.
        num_draws: Independent draws where the method has no chains (one chain).
        seed: Seeds them.
    """
    import xarray as xr

    result = posterior.result
    kept = {**result.rows, **result.parameters}
    chains: dict[str, Any] = {
        name: one.draws
        for name, one in kept.items()
        if isinstance(one, DrawnRows | MomentRows | DrawnParameters)
    }
    for channel in posterior.bound.channels.values():
        if isinstance(drawn := result.channels[channel.name], DrawnChannel):
            chains |= dict(zip(channel_sites(channel), _values(channel, drawn), strict=True))
    draws = chains
    of_channels = [site for one in posterior.bound.channels.values() for site in channel_sites(one)]
    if not chains or len(chains) < len(kept) + len(of_channels):
        draws = {name: values[None] for name, values in posterior.sample(num_draws, seed).items()}
    variables = {}
    names = tree_names(posterior)
    axes = _parameter_axes(posterior, names) | _channel_axes(posterior, names)
    for name, values in draws.items():
        if name in result.rows:
            dims, coords = _named_axes(posterior, posterior.bound.tables[name], names)
            if isinstance(moments := result.rows[name], MomentRows):
                coords = coords | {dims[0]: coords[dims[0]][moments.kept]}
        else:
            numbered = tuple(names(f"{name}_dim_{k}", "axis") for k in range(values.ndim - 2))
            dims, coords = axes.get(name, ((), {}))
            dims, coords = (dims, coords) if len(dims) == len(numbered) else (numbered, {})
        variables[names(name, "site")] = xr.DataArray(
            values, dims=("chain", "draw", *dims), coords=coords, attrs={"site": name}
        )
    groups = {"posterior": xr.Dataset(variables)}
    if of_every_row := _moments(posterior, names):
        groups["moments"] = xr.Dataset(of_every_row)
    if result.sample_stats:
        groups["sample_stats"] = xr.Dataset(
            {name: (("chain", "draw"), values) for name, values in result.sample_stats.items()}
        )
    if not posterior.bound.excerpt:
        groups |= _data_groups(posterior, draws)
    tree = xr.DataTree.from_dict(groups)
    told = _what_draws_are(posterior)
    tree.attrs |= {"method": posterior.method, "created_by": "btil", "seed": posterior.seed} | told
    tree["posterior"].attrs |= told
    if "log_likelihood" in groups:
        of_episodes = {"unit": "an episode under a draw, latents summed out, all agents"} | told
        tree["log_likelihood"].attrs |= of_episodes
        tree["log_likelihood"]["episodes"].attrs |= of_episodes
    for group in tree.children.values():
        group.attrs["inference_library"] = "btil"
        for name in ("chain", "draw"):
            if name in group.dims and name not in group.coords:
                group.coords[name] = np.arange(group.sizes[name])
    return tree


def _what_draws_are(posterior: "Posterior") -> dict[str, str]:
    """Attributes that tell what the draws are of; a warning where it is not the posterior."""
    result = posterior.result
    kept = (result.rows, result.parameters, result.channels)
    answers = [one for by_name in kept for one in by_name.values()]
    if not answers:
        return {"draws": "none: nothing was learned"}
    # It may come from a file, of a method of a package that is not here.
    known = posterior.method in method_names()
    if known and method_of(posterior.method).answer == "draws":
        return {"draws": f"independent draws ({posterior.method}), each of a chain of its own"}
    if result.sample_stats:
        return {"draws": f"Markov chains ({posterior.method}) that tend to the posterior"}
    if any(isinstance(one, MixtureRows | MixtureChannel | MixtureOfRegressions) for one in answers):
        return {"draws": "independent draws from the posterior"}
    factors = DirichletRows | NormalParameters | JointNormals | MatrixNormalChannel
    if any(isinstance(one, factors) for one in answers):
        kind = "independent draws from q, a mean-field approximation of the posterior"
    else:
        kind = "independent draws from q, a guide that approximates the posterior"
    return {
        "draws": kind,
        "warning": (
            "not draws from the posterior: intervals are those of q, and arviz.loo, which "
            "takes log_likelihood for that of posterior draws, estimates nothing from them. Score "
            "held-out episodes (btil.analysis.rank_models(..., 'held_out')), or leave episodes "
            "out with gibbs, nuts or exact"
        ),
    }


def _data_groups(posterior: "Posterior", draws: dict[str, Any]) -> dict[str, "xr.Dataset"]:
    """The groups that tell of the demonstrations learned from."""
    import xarray as xr

    demos = posterior.demos
    groups = {}
    log_likelihood = posterior.result.log_likelihood
    if log_likelihood is None and posterior.bound.learns:
        log_likelihood = _log_likelihood(posterior, draws)
    if log_likelihood is not None:
        groups["log_likelihood"] = xr.Dataset(
            {"episodes": (("chain", "draw", "episode"), log_likelihood)},
            coords={"episode": demos.episode_ids},
        )
    steps = {"agent": list(demos.agents)}
    groups["observed_data"] = xr.Dataset(
        {
            "actions": (("step", "agent"), demos.actions),
            "labels": (("step", "agent"), demos.latents),
        },
        coords=steps,
    )
    groups["constant_data"] = xr.Dataset(
        {
            "states": (
                ("step", "state_variable"),
                np.array(list(demos.state_variables.values()), int).reshape(-1, demos.num_steps).T,
            ),
            "episode_of_step": (("step",), demos.episodes),
        },
        coords={"state_variable": list(demos.state_variables)},
    )
    return groups


def _moments(posterior: "Posterior", names: TreeNames) -> dict[str, "xr.DataArray"]:
    """Mean and standard deviation of each chain, and split R-hat, where not all draws were kept."""
    import xarray as xr

    found = {}
    for name, rows in posterior.result.rows.items():
        if isinstance(rows, MomentRows):
            dims, coords = _named_axes(posterior, posterior.bound.tables[name], names)
            mean, sd = rows.chain_moments()
            for kind, values in (
                ("mean", mean),
                ("sd", sd),
                ("split_rhat", moments_split_rhat(rows)),
            ):
                own = dims if kind == "split_rhat" else ("chain", *dims)
                found[names(f"{names(name, 'site')}_{kind}", "moment")] = xr.DataArray(
                    values, dims=own, coords=coords, attrs={"site": name}
                )
    return found


def _log_likelihood(
    posterior: "Posterior", draws: dict[str, Any]
) -> Float[np.ndarray, "chain draw episode"]:
    """Per episode and draw, for methods that did not keep it."""
    from btil.messages.layout import lay_out

    layout = lay_out(posterior.bound)
    fixed = {
        name: table.prior_mean()
        for name, table in posterior.bound.tables.items()
        if not table.learned
    }
    rows = {name: draws[name] for name in posterior.result.rows}
    chains, num_draws = next(iter(draws.values())).shape[:2]
    values = []
    for at in np.ndindex(chains, num_draws):
        tables = fixed | {name: own[at] for name, own in rows.items()}
        for agent, channel in posterior.bound.channels.items():
            coefficients, covariance = (draws[site][at] for site in channel_sites(channel))
            tables[likelihood_name(agent)] = step_log_density(
                channel, coefficients.reshape(channel.shape), covariance
            )
        values.append(posterior.episode_log_likelihood(posterior.bound, layout, tables))
    return np.reshape(values, (chains, num_draws, -1))


def _parameter_axes(posterior: "Posterior", tree: TreeNames) -> dict[str, Axes]:
    """Dimension names and labels of the parameters whose families, or own model, tell their axes.

    Axes that a table has too are called as the table's are; where agents have the parameter in
    common after the parameter, with labels if the agents' agree.
    """
    if isinstance(posterior.model, NumpyroModel):
        return {
            site: _own_axes(posterior, names, posterior.result.parameters[site], tree)
            for site, names in posterior.model.axes.items()
        }
    known: dict[str, Axes] = {}
    for table in posterior.bound.tables.values():
        if not table.parametric:
            continue
        shared = parametric_site(table).cpt.shared_parameters
        role = table.contexts.role
        names, labels = _named_axes(posterior, table, tree)
        of_table = dict(zip(ROLE_AXES[role], names, strict=True))
        for parameter, site in parametric_site(table).parameters:
            dims, coords = [], {}
            for axis in parameter_axes(table, parameter):
                same = of_table.get(axis)
                dims.append(tree(f"{site}_{axis}", "axis") if shared or not same else same)
                if same:
                    coords[dims[-1]] = labels[same]
            before = known.setdefault(site, (tuple(dims), coords))
            agreed = {d: c for d, c in before[1].items() if np.array_equal(c, coords.get(d, []))}
            known[site] = (before[0], agreed)
    return known


def _own_axes(
    posterior: "Posterior", names: tuple[str, ...], parameter: Any, tree: TreeNames
) -> Axes:
    """Axes as an own model names them; of columns of the data with the names of their values."""
    demos = posterior.demos
    columns = {*demos.num_states, *(f"{k}_{a}" for k in ("latent", "action") for a in demos.agents)}
    coords = {}
    for name, size in zip(names, parameter.draws.shape[2:], strict=True):
        column = name.removeprefix("next_")
        if column in columns and len(demos.value_names(column)) == size:
            coords[tree(name, "axis")] = np.array(demos.value_names(column))
    return tuple(tree(name, "axis") for name in names), coords


def _values(channel: Channel, drawn: DrawnChannel) -> tuple[np.ndarray, np.ndarray]:
    """Draws of a channel as its sites have them: of a normal one the means."""
    coefficients = drawn.coefficients
    if isinstance(channel.family, NormalEmission):
        coefficients = coefficients[..., 0, :]
    return coefficients, drawn.covariance


def _channel_axes(posterior: "Posterior", tree: TreeNames) -> dict[str, Axes]:
    """Dimension names and labels of the continuous channels."""
    demos, found = posterior.demos, {}
    for agent, channel in posterior.bound.channels.items():
        columns = np.array(channel.family.columns_of(agent))
        labels = {
            "emission_context": np.array(_context_labels(demos, channel.names, channel.contexts)),
            "latent": np.array(demos.value_names(f"latent_{agent}")),
            "input": np.array(channel.family.input_names(agent)),
            "column": columns,
            "other_column": columns,
        }
        own = {axis: tree(f"{axis}_{agent}", "axis") for axis in labels}
        coefficients, covariance = channel_sites(channel)
        inputs = () if isinstance(channel.family, NormalEmission) else ("input",)
        for site, axes in (
            (coefficients, ("emission_context", "latent", *inputs, "column")),
            (covariance, ("emission_context", "latent", "column", "other_column")),
        ):
            found[site] = tuple(own[a] for a in axes), {own[a]: labels[a] for a in axes}
    return found


def _context_labels(
    demos: Demonstrations, names: Sequence[str], contexts: Int[np.ndarray, "contexts parents"]
) -> list[str]:
    """Contexts in words: "parent=value" each, "all" without parents."""
    columns = [data_column(name, demos.num_states) for name in names]
    return [
        ", ".join(
            f"{name}={demos.value_text(column, value)}"
            for name, column, value in zip(names, columns, row, strict=True)
        )
        or "all"
        for row in contexts.tolist()
    ]


def _table_axes(table: Table) -> tuple[str, ...]:
    """Names of a table's axes, per agent where the table is."""
    role = table.contexts.role
    return tuple(f"{axis}{table.name.removeprefix(role)}" for axis in ROLE_AXES[role])


def _named_axes(posterior: "Posterior", table: Table, tree: TreeNames) -> Axes:
    """Dimension names of a table's axes, and the labels along them."""
    demos = posterior.demos
    role = table.contexts.role
    dims = tuple(tree(name, "axis") for name in _table_axes(table))
    agent = table.agents[0]
    contexts = make_contexts(posterior.model, role, agent, demos)
    labels: dict[str, list[str]] = {
        "context": _context_labels(demos, contexts.names, table.contexts.rows),
        "latent": list(demos.value_names(f"latent_{agent}")),
    }
    if role == "policy":
        labels["action"] = list(demos.value_names(f"action_{agent}"))
    coords = {}
    for dim, axis in zip(dims, ROLE_AXES[role], strict=True):
        kind = axis.removeprefix("next_") if axis.startswith("next_") else axis.split("_")[-1]
        coords[dim] = np.array(labels[kind])
    return dims, coords
