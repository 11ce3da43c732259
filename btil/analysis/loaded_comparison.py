"""A comparison read again from the files beside its page."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from btil.analysis.compare import Comparison, compare_posteriors
from btil.analysis.evidence import Evidence
from btil.analysis.known_truth import read_truth
from btil.analysis.saved_comparison import (
    ALL_CHAINS,
    FORMAT,
    POSTERIORS,
    RECORD,
    TEST,
    TRUTH,
    VERSION,
)
from btil.demonstrations import read_demonstrations
from btil.models.team import TeamModel
from btil.posterior.loading import load_posterior


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
            folder / (ALL_CHAINS if name in record["groups"] else POSTERIORS) / f"{name}.nc",
            models.get(name),
        )
        for name in record["names"]
    }
    reference = posteriors[record["reference"]]
    return compare_posteriors(
        posteriors,
        read_demonstrations(folder / TEST) if record["test"] else None,
        record["reference"],
        truth=read_truth(folder / TRUTH, reference.model, reference.demos)
        if record["truth"]
        else None,
        evidence=False if record["evidence"] is None else _evidence(record["evidence"]),
        accuracy=record["accuracy"],
        num_draws=record["num_draws"],
        num_played=record["num_played"],
        seed=record["seed"],
        progress=False,
    )


def _read_record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no comparison there: {path}")
    kinds: dict[str, Any] = {
        "names": list, "reference": str, "groups": dict, "accuracy": float, "num_draws": int,
        "num_played": int, "seed": int, "test": bool, "truth": bool, "evidence": dict | None,
    }  # fmt: skip
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = record["format"] == FORMAT and record["version"] == VERSION
        fits = known and all(isinstance(record[field], kind) for field, kind in kinds.items())
        fits = fits and record["reference"] in record["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError(f"{path}: this is not a comparison written by this btil, or it is damaged")
    return record


def _evidence(record: Mapping[str, Any]) -> Evidence:
    known = {n: math.nan if record[n] is None else record[n] for n in ("value", "se")}
    return Evidence(**{**record, **known, "notes": tuple(record["notes"])})
