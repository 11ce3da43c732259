"""Saved posteriors read, every field checked before it is used."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np

from btil.demonstrations import Demonstrations
from btil.inference.result import (
    ConditionalRows,
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    FunctionalRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureOfRegressions,
    MixtureRows,
    MomentRows,
    NormalParameters,
    RowsPosterior,
)
from btil.models.contexts import match_rows
from btil.models.cpt import Shared
from btil.models.emission import EMISSIONS, Emission
from btil.models.families import family_named
from btil.models.parametric import all_priors, parametric_sites, unconstrained_shapes
from btil.models.team import BoundModel, TeamModel, with_contexts
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, NumpyroModel
from btil.posterior.beliefs import Posterior
from btil.posterior.numpyro_posterior import NumpyroPosterior, bind_model, posterior_class
from btil.posterior.posterior import TeamPosterior
from btil.posterior.storage import FORMAT, SEAL, VERSION, seal_of

_ARRAY = re.compile(r"array_\d+")

_ROWS = {
    kind.__name__: kind
    for kind in (
        DirichletRows, MixtureRows, DrawnRows, MomentRows, FunctionalRows, ConditionalRows,
    )
}  # fmt: skip

_PARAMETERS = {kind.__name__: kind for kind in (NormalParameters, JointNormals, DrawnParameters)}

_CHANNELS = {
    kind.__name__: kind
    for kind in (MatrixNormalChannel, MixtureChannel, MixtureOfRegressions, DrawnChannel)
}

_NUMBER = int | float

# What a record holds, and what its "result"; arrays are checked against the model's tables.
_FIELDS: dict[str, Any] = {
    "method": str, "seed": int, "dtype": str, "wall_time": _NUMBER, "options": dict,
    "model": dict, "demonstrations": dict, "result": dict,
}  # fmt: skip

_RESULT_FIELDS: dict[str, Any] = {
    "rows": dict, "converged": bool, "reason": str, "elbo": _NUMBER | None,
    "elbo_standard_error": _NUMBER | None, "elbo_trace": np.ndarray | None, "restart_traces": list,
    "sample_stats": dict, "log_likelihood": np.ndarray | None, "notes": dict, "parameters": dict,
    "contraction_rate": _NUMBER | None, "channels": dict,
}  # fmt: skip


@overload
def load_posterior(path: Any, model: NumpyroModel) -> NumpyroPosterior: ...


@overload
def load_posterior(path: Any, model: TeamModel | None = None) -> TeamPosterior: ...


def load_posterior(path: Any, model: TeamModel | None = None) -> Posterior:
    """Read a posterior written by `TeamPosterior.save`.

    Args:
        path: The file.
        model: The model it was fitted with; needed only where it is a `NumpyroModel`, or a table
            is given by a function or by a class of the modeler's own: a file cannot hold those.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no posterior of btil, is damaged (its numbers, too, are held
            against a SHA-256 at the end of the file), or needs `model`. The message begins
            with the path.

    Example:
        >>> posterior = btil.load_posterior("team.nc")  # doctest: +SKIP
    """
    source = Path(path)
    if source.is_dir():
        raise IsADirectoryError(f"{source} is a folder")
    if not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    _check_seal(source)
    try:
        text, arrays = _read(source)
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise KeyError("format")
        version = record["version"]
    # The libraries raise whatever comes on a file that is damaged or of another kind.
    except Exception as error:
        raise ValueError(f"{source} is not a posterior saved by btil, or is damaged") from error
    if version != VERSION:
        raise ValueError(f"{source} has format version {version!r}, this btil reads {VERSION}")
    try:
        record = _with_arrays(record, arrays)
        _check_fields(record, _FIELDS)
        _check_fields(record["result"], _RESULT_FIELDS)
        demos = Demonstrations(**record["demonstrations"])
        dtype, wall_time = np.dtype(record["dtype"]), float(record["wall_time"])
        rows = _of_kinds(record["result"]["rows"], _ROWS)
        parameters = _of_kinds(record["result"].get("parameters", {}), _PARAMETERS)
        channels = _of_kinds(record["result"].get("channels", {}), _CHANNELS)
        fields = record["result"] | {"rows": rows, "parameters": parameters, "channels": channels}
        fields["restart_traces"] = tuple(fields["restart_traces"])
        result = FitResult(**fields)
        given = _model(record["model"]) if model is None else model
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{source} is damaged: its record cannot be read ({error!r})") from error
    try:
        bound = _with_contexts(bind_model(given, demos), record.get("contexts", {}))
        check_answer(bound, result)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return posterior_class(bound)(
        bound=bound,
        method=record["method"],
        result=result,
        seed=record["seed"],
        dtype=dtype,
        wall_time=wall_time,
        options=record["options"],
    )


def check_answer(bound: BoundModel, result: FitResult) -> None:
    """Refuse an answer that is none of this model's, or does not fit itself.

    Args:
        bound: The model on its demonstrations.
        result: The answer.

    Raises:
        ValueError: Saying what does not fit.
    """
    _check_arrays(result)
    _check_shapes(bound, result.rows, result.parameters)
    _check_channels(bound, result.channels)


def _check_arrays(result: FitResult) -> None:
    """Refuse traces, statistics and likelihoods that are none."""
    traces = [t for t in (result.elbo_trace, *result.restart_traces) if t is not None]
    kept = [("a trace of bounds", 1, traces)]
    kept.append(("a statistic of draws", 2, [*result.sample_stats.values()]))
    if result.log_likelihood is not None:
        kept.append(("the log likelihood", 3, [result.log_likelihood]))
    for what, num_axes, arrays in kept:
        for values in arrays:
            kinds = "biuf" if num_axes == 2 else "f"
            numbers = isinstance(values, np.ndarray) and values.dtype.kind in kinds
            if not numbers or values.ndim != num_axes:
                raise ValueError(f"is damaged: {what} is {values!r}")


def _check_seal(source: Path) -> None:
    """Refuse a file that is not as it was written, before the library of HDF5 files sees it.

    That one loops without end on some damaged files. Files of btil's first days have no seal.
    """
    contents = source.read_bytes()
    at = len(contents) - len(seal_of(b""))
    if contents[at:].startswith(SEAL) and contents[at:] != seal_of(memoryview(contents)[:at]):
        raise ValueError(f"{source} is damaged: its contents do not agree with their checksum")


def _read(source: Path) -> tuple[str, dict[str, np.ndarray]]:
    """The record of a file, and its arrays."""
    import h5py

    with h5py.File(source, "r") as file:
        text = file["record"].asstr()[()]
        return text, {n: np.asarray(file[n][()]) for n in file if _ARRAY.fullmatch(n)}


def _check_shapes(
    bound: BoundModel, rows: Mapping[str, RowsPosterior], parameters: Mapping[str, Any]
) -> None:
    """Refuse what is kept of other tables or parameters than those that the model learns."""
    if set(rows) != set(bound.learned):
        raise ValueError(
            f"it holds the tables {', '.join(sorted(rows)) or 'none'}, the model learns "
            f"{', '.join(sorted(bound.learned)) or 'none'}"
        )
    for name, one in rows.items():
        if isinstance(one, MomentRows):
            _check_moments(name, one)
        if isinstance(one, ConditionalRows | FunctionalRows) and len({v.shape for v in one}) > 1:
            raise ValueError(f"is damaged: the arrays of {name} do not fit each other")
    _check_normals(parameters)
    expected = {name: table.shape for name, table in bound.learned.items()}
    with np.errstate(all="ignore"):
        kept = {name: posterior.mean().shape for name, posterior in rows.items()}
    if isinstance(bound, BoundNumpyroModel):
        expected |= bound.parameters
    else:
        priors = all_priors(parametric_sites(bound))
        free = unconstrained_shapes(priors)
        for site, prior in priors.items():
            drawn = isinstance(parameters.get(site), DrawnParameters)
            expected[site] = tuple(prior.shape()) if drawn else free[site]
    for site, parameter in parameters.items():
        drawn = isinstance(parameter, DrawnParameters)
        kept[site] = parameter.draws.shape[2:] if drawn else parameter.location.shape
    # An own model's deterministic sites are kept as well.
    for site in expected if isinstance(bound, BoundNumpyroModel) else {**expected, **kept}:
        held, wanted = (shapes.get(site, "none") for shapes in (kept, expected))
        if held != wanted:
            raise ValueError(f"{site} has shape {held}, in the model it has {wanted}")


def _check_channels(bound: BoundModel, channels: Mapping[str, Any]) -> None:
    """Refuse what is kept of other channels than those of the model, or in other shapes."""
    expected = {channel.name: channel.shape for channel in bound.channels.values()}
    if set(channels) != set(expected):
        raise ValueError(
            f"it holds the channels {', '.join(sorted(channels)) or 'none'}, the model has "
            f"{', '.join(sorted(expected)) or 'none'}"
        )
    for name, one in channels.items():
        *rows, p, d = expected[name]
        if isinstance(one, DrawnChannel):
            held = [part.shape for part in one]
            lead = held[0][:2]
            wanted = [(*lead, *rows, p, d), (*lead, *rows, d, d)]
        elif isinstance(one, MixtureOfRegressions):
            held = [part.shape for part in (one.order, *one[2:6])]
            lead, q = (len(one.weights),), p + d - 1
            ends = ((d, q), (d, q, q), (d,), (d,))
            wanted = [(rows[0], d), *((*lead, *rows, *end) for end in ends)]
            if (np.sort(one.order, axis=-1) != np.arange(d)).any():
                raise ValueError(f"is damaged: the order of the columns of {name} is none")
        else:
            parts = (one.location, one.precision, one.scale, one.degrees)
            held = [part.shape for part in parts]
            lead = (len(one.weights),) if isinstance(one, MixtureChannel) else ()
            wanted = [(*lead, *rows, *end) for end in ((p, d), (p, p), (d, d), ())]
        if held != wanted:
            raise ValueError(f"{name} has shape {held[0]}, in the model it has {wanted[0]}")


def _check_normals(parameters: Mapping[str, Any]) -> None:
    """Refuse normals whose arrays do not fit each other, or of groups that are not whole."""
    sizes: dict[str, int] = {}
    for one in parameters.values():
        if isinstance(one, JointNormals):
            sizes[one.group] = sizes.get(one.group, 0) + one.location.size
    for name, one in parameters.items():
        if isinstance(one, JointNormals):
            fits = one.factor.shape == (*one.location.shape, sizes[one.group])
        else:
            fits = not isinstance(one, NormalParameters) or one.scale.shape == one.location.shape
        if not fits:
            raise ValueError(f"is damaged: the normals of {name} do not fit each other")


def _check_moments(name: str, rows: MomentRows) -> None:
    """Refuse moments and draws that do not fit each other."""
    counts, means, squares, kept, draws = rows
    whole = all(one.ndim == 1 and one.dtype.kind == "i" for one in (counts, kept))
    fits = (
        whole
        and means.ndim > 2
        and squares.shape == means.shape
        and len(counts) == means.shape[1]
        and bool((counts > 0).all() and (np.diff(kept, prepend=-1) > 0).all())
        and bool((kept < means.shape[2]).all())
        and draws.shape == (len(means), counts.sum(), len(kept), *means.shape[3:])
    )
    if not fits:
        raise ValueError(f"is damaged: the moments and draws of {name} do not fit each other")


def _check_fields(record: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for field, kind in kinds.items():
        if field not in record and field in ("parameters", "channels"):  # later than the format
            continue
        if not isinstance(record[field], kind):
            raise ValueError(f"is damaged: {field} is {record[field]!r}")


def _with_contexts(bound: BoundModel, contexts: Any) -> BoundModel:
    """The model with the contexts that were stored, of which the demonstrations visit a few."""
    if isinstance(contexts, dict) and not contexts:
        return bound
    if not isinstance(contexts, dict):
        raise ValueError(f"is damaged: contexts is {contexts!r:.80}")
    visited = {name: table.contexts.rows for name, table in bound.tables.items()}
    visited |= {channel.name: channel.visited for channel in bound.channels.values()}
    rows = {name: np.asarray(contexts.get(name, 0)) for name in visited}
    for name, own in visited.items():
        if (
            rows[name].dtype.kind != "i"
            or rows[name].shape[1:] != own.shape[1:]
            or (match_rows(rows[name], own) < 0).any()
        ):
            raise ValueError(f"is damaged: the contexts of {name} are not its own")
    return with_contexts(bound, rows)


def _of_kinds(stored: dict[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    read = {}
    for name, one in stored.items():
        values = {field: value for field, value in one.items() if field != "kind"}
        # The shapes that the kinds state are checked against the model's.
        for field, value in values.items():
            if not isinstance(value, str if field == "group" else np.ndarray):
                raise ValueError(f"is damaged: {field} of {name} is {value!r}")
        read[name] = kinds[one["kind"]](**values)
    return read


def _model(record: dict[str, Any]) -> TeamModel:
    read: dict[str, Any] = {
        role: _emissions(given) if role == "emissions" else _family(given, role)
        for role, given in record.items()
    }
    return TeamModel(**read)


def _emissions(record: dict[str, Any]) -> dict[str, Emission]:
    for agent, one in record.items():
        if one["arguments"] is None:
            raise ValueError(
                f"the emission of {agent} is a {one['family']} that a file cannot hold; pass the "
                "model: load_posterior(path, model=...)"
            )
    return {agent: EMISSIONS[one["family"]](**one["arguments"]) for agent, one in record.items()}


def _family(record: dict[str, Any], role: str) -> Any:
    if "family" in record and record["family"] is None:
        return None
    if "by_agent" in record:
        shared = [_family(one, role) for one in record["shared"]]
        return {
            agent: shared[0] if "reference" in one else _family(one, role)
            for agent, one in record["by_agent"].items()
        }
    if record["family"] == "Shared":
        return Shared(_family(record["cpt"], role))
    if record["arguments"] is None:
        raise ValueError(
            f"the {role} table is a {record['family']} that a file cannot hold (given "
            "by a function, or of a class outside btil); pass the model: "
            "load_posterior(path, model=...)"
        )
    arguments = dict(record["arguments"])
    parents = arguments.get("parents")
    if isinstance(parents, dict):
        arguments["parents"] = {agent: tuple(names) for agent, names in parents.items()}
    return family_named(record["family"])(**arguments)


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if "__array__" in value:
            return arrays[value["__array__"]].astype(value["dtype"])
        if "__empty__" in value:
            shape = tuple(value["__empty__"])
            if 0 not in shape:  # else one number of the record would ask for all memory
                raise ValueError(f"is damaged: an array without numbers has shape {shape}")
            return np.zeros(shape, value["dtype"])
        return {k: _with_arrays(v, arrays) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_arrays(v, arrays) for v in value]
    return value
