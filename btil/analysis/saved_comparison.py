"""A comparison on disk: what its page says can be had again from the files beside it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from btil.analysis.compare import Comparison, compare_posteriors
from btil.analysis.evidence import Evidence
from btil.analysis.known_truth import read_truth, write_truth
from btil.demonstrations import read_demonstrations, write_demonstrations
from btil.inference.storage import load_posterior
from btil.models.team import TeamModel

RECORD = "comparison.json"
_FORMAT = "btil comparison"
_VERSION = 1
_POSTERIORS, _ALL_CHAINS = "posteriors", "all_chains"
_TEST, _TRUTH = "test.npz", "truth.npz"


def save_comparison(comparison: Comparison, folder: Path) -> None:
    """Write everything that the numbers of a comparison come from.

    `posteriors/NAME.nc` is what the table tells of: where chains do not overlap one group of them,
    latents that nothing tells apart under the names that they are compared by. Of such chains all
    are in `all_chains/NAME.nc`. Beside them `test.npz`, `truth.npz` and `comparison.json`.

    Args:
        comparison: The comparison.
        folder: A folder that is there.
    """
    (folder / _POSTERIORS).mkdir()
    for name, posterior in comparison.named.items():
        posterior.save(folder / _POSTERIORS / f"{name}.nc")
    grouped = _grouped(comparison)
    if grouped:
        (folder / _ALL_CHAINS).mkdir()
    for name in grouped:
        comparison.aligned[name].save(folder / _ALL_CHAINS / f"{name}.nc")
    if comparison.test is not None:
        write_demonstrations(comparison.test, folder / _TEST)
    if comparison.truth is not None:
        write_truth(comparison.truth, folder / _TRUTH)
    text = json.dumps(_record(comparison, grouped), indent=2, allow_nan=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def load_comparison(
    directory: Any, model: TeamModel | Mapping[str, TeamModel] | None = None
) -> Comparison:
    """A comparison again from the folder of its report: the same numbers, nothing fitted.

    Args:
        directory: The folder that `Comparison.report` or `btil compare --out` has written.
        model: The model, or {name: model}; needed only where `load_posterior` needs it.

    Returns:
        The comparison. An estimate of the evidence is the one that was made then.

    Raises:
        FileNotFoundError: If there is no such comparison.
        ValueError: If a file of it is damaged. The message begins with its path.

    Example:
        >>> btil.analysis.load_comparison("report").table  # doctest: +SKIP
    """
    folder = Path(directory)
    record = _read_record(folder / RECORD)
    models = model if isinstance(model, Mapping) else dict.fromkeys(record["names"], model)
    posteriors = {
        name: load_posterior(
            folder / (_ALL_CHAINS if name in record["groups"] else _POSTERIORS) / f"{name}.nc",
            models.get(name),
        )
        for name in record["names"]
    }
    reference = posteriors[record["reference"]]
    return compare_posteriors(
        posteriors,
        read_demonstrations(folder / _TEST) if record["test"] else None,
        record["reference"],
        truth=read_truth(folder / _TRUTH, reference.model, reference.demos)
        if record["truth"]
        else None,
        evidence=False if record["evidence"] is None else _evidence(record["evidence"]),
        accuracy=record["accuracy"],
        num_draws=record["num_draws"],
        seed=record["seed"],
        progress=False,
    )


def _grouped(comparison: Comparison) -> dict[str, list[str]]:
    """Of methods whose chains do not overlap the chains of each group, that of the table first."""
    groups: dict[str, list[str]] = {}
    if len(comparison.modes):
        names = comparison.modes.index.get_level_values("method").tolist()
        for name, chains in zip(names, comparison.modes["chains"].tolist(), strict=True):
            groups.setdefault(name, []).append(chains)
    return groups


def _record(comparison: Comparison, grouped: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "names": list(comparison.posteriors),
        "reference": comparison.reference,
        "no_differences": comparison.no_differences,
        "convergence": {n: one._asdict() for n, one in comparison.convergence.items()},
        "groups": dict(grouped),
        "accuracy": float(comparison.accuracy),
        "num_draws": comparison.num_draws,
        "seed": comparison.seed,
        "test": comparison.test is not None,
        "truth": comparison.truth is not None,
        "evidence": None if comparison.evidence is None else _plain(comparison.evidence),
        "notes": list(comparison.notes),
    }


def _read_record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no comparison there: {path}")
    kinds: dict[str, Any] = {
        "names": list, "reference": str, "groups": dict, "accuracy": float, "num_draws": int,
        "seed": int, "test": bool, "truth": bool, "evidence": dict | None,
    }  # fmt: skip
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = record["format"] == _FORMAT and record["version"] == _VERSION
        fits = known and all(isinstance(record[field], kind) for field, kind in kinds.items())
        fits = fits and record["reference"] in record["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError(f"{path}: this is no comparison written by this btil, or it is damaged")
    return record


def _plain(evidence: Evidence) -> dict[str, Any]:
    """For JSON, which has no numbers that are none."""
    return {
        name: None if isinstance(one, float) and not math.isfinite(one) else one
        for name, one in evidence._asdict().items()
    }


def _evidence(record: Mapping[str, Any]) -> Evidence:
    known = {n: math.nan if record[n] is None else record[n] for n in ("value", "standard_error")}
    return Evidence(**{**record, **known, "notes": tuple(record["notes"])})
