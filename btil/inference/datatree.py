"""A posterior as an xarray DataTree, the form in which ArviZ takes it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from btil.inference.chains import moments_split_rhat
from btil.inference.result import DrawnParameters, DrawnRows, MomentRows
from btil.models.numpyro_model import NumpyroModel
from btil.models.parametric import parameter_axes, parametric_site
from btil.models.team import ROLE_AXES, Table, make_contexts

if TYPE_CHECKING:
    import xarray as xr

    from btil.inference.posterior import TeamPosterior


Axes = tuple[tuple[str, ...], dict[str, Shaped[np.ndarray, " values"]]]


def build_datatree(posterior: "TeamPosterior", num_draws: int, seed: int) -> "xr.DataTree":
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
    draws = chains
    if not chains or len(chains) < len(kept):
        draws = {name: values[None] for name, values in posterior.sample(num_draws, seed).items()}
    variables = {}
    axes = _parameter_axes(posterior)
    # A slash would make paths of names in a tree.
    for name, values in draws.items():
        if name in result.rows:
            dims, coords = _named_axes(posterior, posterior.bound.tables[name])
            if isinstance(moments := result.rows[name], MomentRows):
                coords = coords | {dims[0]: coords[dims[0]][moments.kept]}
        else:
            numbered = tuple(f"{_tree_name(name)}_dim_{k}" for k in range(values.ndim - 2))
            dims, coords = axes.get(name, ((), {}))
            dims, coords = (dims, coords) if len(dims) == len(numbered) else (numbered, {})
        variables[_tree_name(name)] = xr.DataArray(
            values, dims=("chain", "draw", *dims), coords=coords
        )
    groups = {"posterior": xr.Dataset(variables)}
    if of_every_row := _moments(posterior):
        groups["moments"] = xr.Dataset(of_every_row)
    if result.sample_stats:
        groups["sample_stats"] = xr.Dataset(
            {name: (("chain", "draw"), values) for name, values in result.sample_stats.items()}
        )
    if not posterior.bound.excerpt:
        groups |= _data_groups(posterior, draws)
    tree = xr.DataTree.from_dict(groups)
    tree.attrs |= {"method": posterior.method, "created_by": "btil", "seed": posterior.seed}
    for group in tree.children.values():
        group.attrs["inference_library"] = "btil"
        for name in ("chain", "draw"):
            if name in group.dims and name not in group.coords:
                group.coords[name] = np.arange(group.sizes[name])
    return tree


def _data_groups(posterior: "TeamPosterior", draws: dict[str, Any]) -> dict[str, "xr.Dataset"]:
    """The groups that tell of the demonstrations learned from."""
    import xarray as xr

    demos = posterior.demos
    groups = {}
    log_likelihood = posterior.result.log_likelihood
    if log_likelihood is None and posterior.result.rows:
        rows = {name: draws[name] for name in posterior.result.rows}
        log_likelihood = _log_likelihood(posterior, rows)
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
                np.stack(list(demos.state_variables.values()), axis=1),
            ),
            "episode_of_step": (("step",), demos.episodes),
        },
        coords={"state_variable": list(demos.state_variables)},
    )
    return groups


def _moments(posterior: "TeamPosterior") -> dict[str, "xr.DataArray"]:
    """Mean and standard deviation of each chain, and split R-hat, where not all draws were kept."""
    import xarray as xr

    found = {}
    for name, rows in posterior.result.rows.items():
        if isinstance(rows, MomentRows):
            dims, coords = _named_axes(posterior, posterior.bound.tables[name])
            mean, sd = rows.chain_moments()
            for kind, values in (("mean", mean), ("sd", sd)):
                found[f"{_tree_name(name)}_{kind}"] = xr.DataArray(
                    values, dims=("chain", *dims), coords=coords
                )
            found[f"{_tree_name(name)}_split_rhat"] = xr.DataArray(
                moments_split_rhat(rows), dims=dims, coords=coords
            )
    return found


def _log_likelihood(
    posterior: "TeamPosterior", draws: dict[str, Any]
) -> Float[np.ndarray, "chain draw episode"]:
    """Per episode and draw, for methods that did not keep it."""
    from btil.inference.messages import lay_out

    layout = lay_out(posterior.bound)
    fixed = {
        name: table.prior_mean()
        for name, table in posterior.bound.tables.items()
        if not table.learned
    }
    chains, num_draws = next(iter(draws.values())).shape[:2]
    values = [
        posterior.episode_log_likelihood(
            posterior.bound, layout, fixed | {name: rows[c, d] for name, rows in draws.items()}
        )
        for c in range(chains)
        for d in range(num_draws)
    ]
    return np.reshape(values, (chains, num_draws, -1))


def _parameter_axes(posterior: "TeamPosterior") -> dict[str, Axes]:
    """Dimension names and labels of the parameters whose families, or own model, tell their axes.

    Axes that a table has too are called as the table's are; where agents have the parameter in
    common after the parameter, with labels if the agents' agree.
    """
    if isinstance(posterior.model, NumpyroModel):
        return {
            site: _own_axes(posterior, names, posterior.result.parameters[site])
            for site, names in posterior.model.axes.items()
        }
    known: dict[str, Axes] = {}
    for table in posterior.bound.tables.values():
        if not table.parametric:
            continue
        shared = parametric_site(table).cpt.shared_parameters
        role = table.contexts.role
        names, labels = _named_axes(posterior, table)
        of_table = dict(zip(ROLE_AXES[role], names, strict=True))
        for parameter, site in parametric_site(table).parameters:
            dims, coords = [], {}
            for axis in parameter_axes(table, parameter):
                same = of_table.get(axis)
                dims.append(_tree_name(f"{site}_{axis}" if shared or not same else same))
                if same:
                    coords[dims[-1]] = labels[same]
            before = known.setdefault(site, (tuple(dims), coords))
            agreed = {d: c for d, c in before[1].items() if np.array_equal(c, coords.get(d, []))}
            known[site] = (before[0], agreed)
    return known


def _own_axes(posterior: "TeamPosterior", names: tuple[str, ...], parameter: Any) -> Axes:
    """Axes as an own model names them; of columns of the data with the names of their values."""
    demos = posterior.demos
    columns = {*demos.num_states, *(f"{k}_{a}" for k in ("latent", "action") for a in demos.agents)}
    coords = {}
    for name, size in zip(names, parameter.draws.shape[2:], strict=True):
        column = name.removeprefix("next_")
        if column in columns and len(demos.value_names(column)) == size:
            coords[_tree_name(name)] = np.array(demos.value_names(column))
    return tuple(map(_tree_name, names)), coords


def _named_axes(posterior: "TeamPosterior", table: Table) -> Axes:
    """Dimension names of a table's axes, and the labels along them."""
    demos = posterior.demos
    role = table.contexts.role
    suffix = table.name.removeprefix(role)
    dims = tuple(_tree_name(f"{axis}{suffix}") for axis in ROLE_AXES[role])
    agent = table.agents[0]
    contexts = make_contexts(posterior.model, role, agent, demos)
    labels: dict[str, list[str]] = {
        "context": [
            ", ".join(
                f"{name}={demos.value_names(_column(name, demos.num_states))[value]}"
                for name, value in zip(contexts.names, row, strict=True)
            )
            or "all"
            for row in table.contexts.rows.tolist()
        ],
        "latent": list(demos.value_names(f"latent_{agent}")),
        "action": list(demos.value_names(f"action_{agent}")),
    }
    coords = {}
    for dim, axis in zip(dims, ROLE_AXES[role], strict=True):
        kind = axis.removeprefix("next_") if axis.startswith("next_") else axis.split("_")[-1]
        coords[dim] = np.array(labels[kind])
    return dims, coords


def _tree_name(name: str) -> str:
    """A name for a tree, in which "/" separates groups."""
    return name.replace("/", "_")


def _column(parent: str, variables: Any) -> str:
    """The data column whose names a parent's values have."""
    return parent if parent in variables else parent.removeprefix("next_")
