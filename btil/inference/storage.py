"""Posteriors on disk: one netCDF file, no pickle, written whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from btil.demonstrations import Demonstrations
from btil.files import replacing
from btil.inference.numpyro_model import bind_model
from btil.inference.posterior import TeamPosterior
from btil.inference.result import (
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    FitResult,
    MixtureRows,
    NormalParameters,
)
from btil.models.cpt import FAMILIES, Shared, family_named
from btil.models.numpyro_model import BoundNumpyroModel
from btil.models.parametric import all_priors, parametric_sites, unconstrained_shapes
from btil.models.team import TeamModel

_FORMAT = "btil posterior"
_VERSION = 1
_ROWS = {kind.__name__: kind for kind in (DirichletRows, MixtureRows, DrawnRows)}
_PARAMETERS = {kind.__name__: kind for kind in (NormalParameters, DrawnParameters)}


def save_posterior(posterior: TeamPosterior, path: Any) -> None:
    """Write a posterior; an existing file stays intact until the new one is complete.

    Args:
        posterior: The posterior.
        path: A file name, usually ending in .nc.
    """
    import xarray as xr

    arrays: dict[str, np.ndarray] = {}
    demos, result = posterior.demos, posterior.result
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "method": posterior.method,
        "seed": posterior.seed,
        "dtype": posterior.dtype.name,
        "wall_time": posterior.wall_time,
        "options": {k: v for k, v in posterior.options.items() if _is_plain(v)},
        "model": {
            role: _family_record(getattr(posterior.model, role))
            for role in ("policy", "transition", "initial")
        },
        "demonstrations": _demonstrations_record(demos),
        "result": result._asdict()
        | {
            "rows": _kinds(result.rows),
            "parameters": _kinds(result.parameters),
            "restart_traces": list(result.restart_traces),
        },
    }
    text = json.dumps(_without_arrays(record, arrays))
    variables: dict[str, Any] = {"record": ((), text)}
    for name, values in arrays.items():
        dims = tuple(f"{name}_axis_{i}" for i in range(values.ndim))
        variables[name] = (dims, values)
    target = Path(path)
    with replacing(target) as temporary:
        xr.Dataset(variables).to_netcdf(temporary, engine="h5netcdf")


def load_posterior(path: Any, model: TeamModel | None = None) -> TeamPosterior:
    """Read a posterior written by `TeamPosterior.save`.

    Args:
        path: The file.
        model: The model it was fitted with; needed only where it is a `NumpyroModel`, or a table
            is given by a function or by a class of the modeler's own: a file cannot hold those.

    Raises:
        ValueError: If the file is no posterior of btil, is damaged, or needs `model`.

    Example:
        >>> posterior = btil.load_posterior("team.nc")  # doctest: +SKIP
    """
    import xarray as xr

    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    try:
        with xr.open_dataset(source, engine="h5netcdf") as dataset:
            dataset.load()
        record = json.loads(str(dataset["record"].item()))
        if record.get("format") != _FORMAT:
            raise KeyError("format")
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{source} is not a posterior saved by btil, or is damaged") from error
    if record["version"] != _VERSION:
        raise ValueError(
            f"{source} has format version {record['version']}, this btil reads {_VERSION}"
        )
    record = _with_arrays(record, dataset)
    demos = Demonstrations(**record["demonstrations"])
    if model is None:
        model = TeamModel(
            **{role: _family(given, role, source) for role, given in record["model"].items()}
        )
    kind, bound = bind_model(model, demos)
    fields = record["result"]
    rows = _of_kinds(fields.pop("rows"), _ROWS)
    parameters = _of_kinds(fields.pop("parameters", {}), _PARAMETERS)
    if set(rows) != set(bound.learned):
        raise ValueError(
            f"{source} holds the tables {', '.join(sorted(rows)) or 'none'}, the model learns "
            f"{', '.join(sorted(bound.learned)) or 'none'}"
        )
    expected = {name: table.shape for name, table in bound.learned.items()}
    kept = {name: posterior.mean().shape for name, posterior in rows.items()}
    if isinstance(bound, BoundNumpyroModel):
        expected |= bound.parameters
    else:
        priors = all_priors(parametric_sites(bound))
        free = unconstrained_shapes(priors)
        for site, prior in priors.items():
            normal = isinstance(parameters.get(site), NormalParameters)
            expected[site] = free[site] if normal else tuple(prior.shape())
    for site, parameter in parameters.items():
        normal = isinstance(parameter, NormalParameters)
        kept[site] = parameter.location.shape if normal else parameter.draws.shape[2:]
    # An own model's deterministic sites are kept as well.
    for site in expected if isinstance(bound, BoundNumpyroModel) else {**expected, **kept}:
        held, wanted = (shapes.get(site, "none") for shapes in (kept, expected))
        if held != wanted:
            raise ValueError(f"{source}: {site} has shape {held}, in the model it has {wanted}")
    fields["restart_traces"] = tuple(fields["restart_traces"])
    result = FitResult(rows=rows, parameters=parameters, **fields)
    return kind(
        bound=bound,
        method=record["method"],
        result=result,
        seed=record["seed"],
        dtype=np.dtype(record["dtype"]),
        wall_time=record["wall_time"],
        options=record["options"],
    )


def _kinds(posteriors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"kind": type(one).__name__} | one._asdict() for name, one in posteriors.items()}


def _of_kinds(stored: dict[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kinds[one.pop("kind")](**one) for name, one in stored.items()}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _demonstrations_record(demos: Demonstrations) -> dict[str, Any]:
    ids = demos.episodes
    return {
        "states": dict(demos.state_variables),
        "actions": demos.actions,
        "latents": demos.latents,
        "episodes": ids if ids.dtype.kind == "i" else ids.tolist(),
        "agents": list(demos.agents),
        "num_states": dict(demos.num_states),
        "num_actions": list(demos.num_actions),
        "num_latents": list(demos.num_latents),
        "state_names": {k: list(v) for k, v in demos.state_names.items()},
        "action_names": {k: list(v) for k, v in demos.action_names.items()},
        "latent_names": {k: list(v) for k, v in demos.latent_names.items()},
    }


def _family_record(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        shared = {id(f): f for f in given.values() if isinstance(f, Shared)}
        return {
            "by_agent": {
                agent: {"reference": "shared"} if isinstance(f, Shared) else _family_record(f)
                for agent, f in given.items()
            },
            "shared": [_family_record(f) for f in shared.values()],
        }
    if isinstance(given, Shared):
        return {"family": "Shared", "cpt": _family_record(given.cpt)}
    arguments = given.arguments() if type(given).__name__ in FAMILIES else None
    return {"family": type(given).__name__, "arguments": arguments}


def _family(record: dict[str, Any], role: str, source: Path) -> Any:
    if "by_agent" in record:
        shared = [_family(one, role, source) for one in record["shared"]]
        return {
            agent: shared[0] if "reference" in one else _family(one, role, source)
            for agent, one in record["by_agent"].items()
        }
    if record["family"] == "Shared":
        return Shared(_family(record["cpt"], role, source))
    if record["arguments"] is None:
        raise ValueError(
            f"{source}: the {role} table is a {record['family']} that a file cannot hold (given "
            "by a function, or of a class outside btil); pass the model: "
            "load_posterior(path, model=...)"
        )
    arguments = dict(record["arguments"])
    parents = arguments.get("parents")
    if isinstance(parents, dict):
        arguments["parents"] = {agent: tuple(names) for agent, names in parents.items()}
    return family_named(record["family"])(**arguments)


def _without_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value for JSON; its arrays are moved to `arrays` and referred to by name."""
    if isinstance(value, np.ndarray):
        if value.size == 0:
            return {"__empty__": list(value.shape), "dtype": value.dtype.name}
        name = f"array_{len(arrays)}"
        arrays[name] = value.astype(np.int8) if value.dtype == bool else value
        return {"__array__": name, "dtype": value.dtype.name}
    if isinstance(value, Mapping):
        return {str(k): _without_arrays(v, arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(v, arrays) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _with_arrays(value: Any, dataset: Any) -> Any:
    if isinstance(value, dict):
        if "__array__" in value:
            return dataset[value["__array__"]].values.astype(value["dtype"])
        if "__empty__" in value:
            return np.zeros(value["__empty__"], value["dtype"])
        return {k: _with_arrays(v, dataset) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_arrays(v, dataset) for v in value]
    return value
