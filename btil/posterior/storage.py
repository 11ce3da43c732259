"""Posteriors on disk: one netCDF file, no pickle, written whole or not at all.

`loading.py` reads them.
"""

import hashlib
import json
from collections.abc import Buffer, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.demonstrations import Demonstrations
from btil.files import check_writable, replacing
from btil.models.cpt import Shared
from btil.models.emission import EMISSIONS
from btil.models.families import is_known
from btil.models.team import TeamModel

if TYPE_CHECKING:
    from btil.posterior.beliefs import Posterior


FORMAT = "btil posterior"
VERSION = 1
SEAL = b"\nbtil posterior sha256 "


def save_posterior(posterior: "Posterior", path: Any) -> None:
    """Write a posterior; an existing file stays intact until the new one is complete.

    Args:
        posterior: The posterior.
        path: A file name that ends in .nc.

    Raises:
        ValueError: If it has another ending.
        OSError: If the file cannot be written.
    """
    import xarray as xr

    check_writable(path, (".nc",))
    arrays: dict[str, np.ndarray] = {}
    demos, result = posterior.demos, posterior.result
    record = {
        "format": FORMAT,
        "version": VERSION,
        "method": posterior.method,
        "seed": posterior.seed,
        "dtype": posterior.dtype.name,
        "wall_time": posterior.wall_time,
        "options": {k: v for k, v in posterior.options.items() if _is_plain(v)},
        "model": {
            role: _family_record(getattr(posterior.model, role))
            for role in ("policy", "transition", "initial")
        }
        | ({} if posterior.model.emissions is None else {"emissions": _emissions(posterior.model)}),
        "demonstrations": _demonstrations_record(demos),
        "contexts": _contexts_record(posterior),
        "result": result._asdict()
        | {
            "rows": _kinds(result.rows),
            "parameters": _kinds(result.parameters),
            "channels": _kinds(result.channels),
            "restart_traces": list(result.restart_traces),
        },
    }
    text = json.dumps(_without_arrays(record, arrays))
    variables: dict[str, Any] = {"record": ((), text)}
    for name, values in arrays.items():
        dims = tuple(f"{name}_axis_{i}" for i in range(values.ndim))
        variables[name] = (dims, values)
    # In memory first: on a full disk the library of HDF5 files takes the whole process down.
    with xr.Dataset(variables).to_netcdf(engine="h5netcdf") as view:
        contents = bytes(view)  # a view that outlives its buffer takes it down as well
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(contents)
        file.write(seal_of(contents))


def seal_of(contents: Buffer) -> bytes:
    """What ends a file: a SHA-256 of all before it, which readers of HDF5 pass over."""
    return SEAL + hashlib.sha256(contents).hexdigest().encode()


def _contexts_record(posterior: "Posterior") -> dict[str, Any]:
    """Contexts of every table where the demonstrations are an excerpt; else these tell them."""
    if not posterior.bound.excerpt:
        return {}
    found = {name: table.contexts.rows for name, table in posterior.bound.tables.items()}
    return found | {one.name: one.visited for one in posterior.bound.channels.values()}


def _kinds(posteriors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"kind": type(one).__name__} | one._asdict() for name, one in posteriors.items()}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, default=_number)
    except TypeError:
        return False
    return True


def _number(value: Any) -> Any:
    """A number of NumPy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def _demonstrations_record(demos: Demonstrations) -> dict[str, Any]:
    ids = demos.episodes
    return demos.arguments() | {"episodes": ids if ids.dtype.kind == "i" else ids.tolist()}


def _emissions(model: TeamModel) -> dict[str, Any]:
    """The families of an agent's continuous columns; those of a posterior are resolved."""
    assert isinstance(model.emissions, Mapping)
    return {
        agent: {
            "family": type(family).__name__,
            "arguments": family.arguments() if type(family) in EMISSIONS.values() else None,
        }
        for agent, family in model.emissions.items()
    }


def _family_record(given: Any) -> dict[str, Any]:
    if given is None:
        return {"family": None}
    if isinstance(given, Mapping):
        shared = [f for f in given.values() if isinstance(f, Shared)]
        return {
            "by_agent": {
                agent: {"reference": "shared"} if isinstance(f, Shared) else _family_record(f)
                for agent, f in given.items()
            },
            "shared": [_family_record(f) for f in shared[:1]],  # there is no other
        }
    if isinstance(given, Shared):
        return {"family": "Shared", "cpt": _family_record(given.cpt)}
    arguments = given.arguments() if is_known(given) else None
    return {"family": type(given).__name__, "arguments": arguments}


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
