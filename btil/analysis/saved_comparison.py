"""A comparison on disk: what its page says can be had again from the files beside it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from btil.analysis.evidence import Evidence
from btil.analysis.known_truth import write_truth
from btil.demonstrations import write_demonstrations

if TYPE_CHECKING:
    from btil.analysis.compare import Comparison


RECORD = "comparison.json"
FORMAT = "btil comparison"
VERSION = 2
POSTERIORS, ALL_CHAINS = "posteriors", "all_chains"
TEST, TRUTH = "test.npz", "truth.npz"


def save_comparison(comparison: "Comparison", folder: Path) -> None:
    """Write everything that the numbers of a comparison come from.

    `posteriors/NAME.nc` is what the table tells of: where chains do not overlap one group of them,
    latents that nothing distinguishes under the names that they are compared by. Of such chains all
    are in `all_chains/NAME.nc`. Beside them `test.npz`, `truth.npz` and `comparison.json`.

    Args:
        comparison: The comparison.
        folder: A folder that is there.
    """
    (folder / POSTERIORS).mkdir()
    for name, posterior in comparison.named.items():
        posterior.save(folder / POSTERIORS / f"{name}.nc")
    grouped = _grouped(comparison)
    if grouped:
        (folder / ALL_CHAINS).mkdir()
    for name in grouped:
        comparison.aligned[name].save(folder / ALL_CHAINS / f"{name}.nc")
    if comparison.test is not None:
        write_demonstrations(comparison.test, folder / TEST)
    if comparison.truth is not None:
        write_truth(comparison.truth, folder / TRUTH)
    text = json.dumps(_record(comparison, grouped), indent=2, allow_nan=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _grouped(comparison: "Comparison") -> dict[str, list[str]]:
    """Of methods whose chains do not overlap the chains of each group, that of the table first."""
    groups: dict[str, list[str]] = {}
    if len(comparison.modes):
        names = comparison.modes.index.get_level_values("method").tolist()
        for name, chains in zip(names, comparison.modes["chains"].tolist(), strict=True):
            groups.setdefault(name, []).append(chains)
    return groups


def _record(comparison: "Comparison", grouped: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "names": list(comparison.posteriors),
        "reference": comparison.reference,
        "no_differences": comparison.no_differences,
        "convergence": {n: one._asdict() for n, one in comparison.convergence.items()},
        "groups": dict(grouped),
        "accuracy": comparison.accuracy,
        "num_draws": comparison.num_draws,
        "num_played": comparison.num_played,
        "seed": comparison.seed,
        "test": comparison.test is not None,
        "truth": comparison.truth is not None,
        "evidence": None if comparison.evidence is None else _plain(comparison.evidence),
        "notes": list(comparison.notes),
    }


def _plain(evidence: Evidence) -> dict[str, Any]:
    """For JSON, which has no numbers that are none."""
    return {
        name: None if isinstance(one, float) and not math.isfinite(one) else one
        for name, one in evidence._asdict().items()
    }
