"""What a file records beside its columns: sizes, names and the order of agents."""

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

from btil.demonstrations.coding import listed, normalised_keys
from btil.demonstrations.data import Demonstrations, sizes_and_names
from btil.demonstrations.quantities import MISSING_MEANS

_RECORD_VERSION = 1
# What a record does not mention.
UNSAID: dict[str, Any] = {"continuous": [], "missing": "refuse"}


def record_of(demos: Demonstrations) -> dict[str, Any]:
    """All that the columns of a table do not say."""
    return {
        "version": _RECORD_VERSION,
        "agents": list(demos.agents),
        "episode_ids": "number" if demos.episode_ids.dtype.kind == "i" else "text",
        **({"continuous": list(demos.continuous)} if demos.continuous else {}),
        **({"missing": demos.missing} if demos.missing != "refuse" else {}),
        **sizes_and_names(demos),
    }


def parsed_record(text: str) -> dict[str, Any]:
    """A record from its JSON."""
    kinds = {"version": int, "agents": list, "episode_ids": str}
    kinds |= {f"num_{kind}s": dict for kind in ("state", "action", "latent")}
    kinds |= {f"{kind}_names": dict for kind in ("state", "action", "latent")}
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the recorded sizes and names are damaged: {error}") from None
    if not isinstance(record, dict) or not all(
        isinstance(record.get(field), kind)
        # `from_columns` checks what is in them; names are also what codes are turned into.
        and (not field.endswith("_names") or all(map(_are_texts, record[field].values())))
        for field, kind in kinds.items()
    ):
        raise ValueError(f"the recorded sizes and names are damaged; fields: {listed(kinds)}")
    record = UNSAID | record
    if not _are_texts(record["continuous"]) or record["missing"] not in MISSING_MEANS:
        raise ValueError("the recorded sizes and names are damaged: continuous, missing")
    record = {
        field: _normalised(value) if isinstance(value, dict | list) else value
        for field, value in record.items()
    }
    if record["version"] != _RECORD_VERSION:
        raise ValueError(
            f"written in version {record['version']} of the table format; this version of btil "
            f"reads {_RECORD_VERSION}"
        )
    return record


def _normalised(recorded: Any) -> Any:
    """Recorded names, or what is recorded by names, with accents composed."""
    if isinstance(recorded, dict):
        return {
            key: _normalised(value) for key, value in normalised_keys("record", recorded).items()
        }
    if isinstance(recorded, list):
        return [unicodedata.normalize("NFC", x) if isinstance(x, str) else x for x in recorded]
    return recorded


def _are_texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def check_no_repeats(columns: Sequence[str]) -> None:
    """Refuse a table in which two columns have one name."""
    repeated = [name for k, name in enumerate(columns) if name in columns[:k]]
    if repeated:
        raise ValueError(f"column {repeated[0]!r} occurs more than once")
