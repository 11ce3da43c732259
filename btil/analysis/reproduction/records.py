"""Small JSON files that tell with which settings their contents were made.

They are read back only where the same settings are asked for.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from btil.files import replacing

_MADE_BY = "btil reproduce"
_SHOWN_DIFFERENCES = 3


def write_record(
    path: Path, kind: str, settings: Mapping[str, Any], contents: Mapping[str, Any]
) -> None:
    """Write a record, whole or not at all.

    Args:
        path: The file.
        kind: What it holds, in a word or two.
        settings: What its contents depend on: texts, numbers, lists and mappings.
        contents: What is to be kept, of the same kinds. Numbers come back exactly.

    Raises:
        ValueError: If a number is not finite.
        OSError: If the file cannot be written.
    """
    record = {
        "made_by": _MADE_BY,
        "kind": kind,
        "settings": settings,
        "fingerprint": fingerprint(settings),
        "contents": contents,
        "checksum": fingerprint(contents),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_record(path: Path, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a record that was made with the same settings.

    Args:
        path: The file.
        kind: What it must hold.
        settings: What it must have been made with.

    Returns:
        Its contents.

    Raises:
        ValueError: If the file is none of ours, is damaged, or was made with other settings; its
            name and, of the settings, those that differ are told.
        OSError: If the file cannot be read.
    """
    try:
        record = json.loads(path.read_bytes(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):  # no JSON, no text, numbers or nesting we never write
        raise ValueError(
            f"{path}: damaged, or not written by {_MADE_BY}; delete it or name another folder"
        ) from None
    if not isinstance(record, dict) or record.get("made_by") != _MADE_BY:
        raise ValueError(f"{path}: not written by {_MADE_BY}; name another folder")
    if record.get("kind") != kind:
        raise ValueError(f"{path}: holds a {record.get('kind')}, a {kind} was expected")
    for part, proof in (("settings", "fingerprint"), ("contents", "checksum")):
        value = record.get(part)
        if not isinstance(value, dict) or fingerprint(value) != record.get(proof):
            raise ValueError(
                f"{path}: damaged: its {part} do not agree with their {proof}; delete it and this "
                f"{kind} is made again"
            )
    different = list(_differences(record["settings"], json.loads(json.dumps(settings))))
    if different:
        shown = "; ".join(different[:_SHOWN_DIFFERENCES])
        raise ValueError(f"{path}: made with other settings ({shown}); name another folder")
    return record["contents"]


def fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256 of values as canonical JSON.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is never written")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _differences(theirs: Any, ours: Any, name: str = "") -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(theirs.get(key), ours.get(key), inner)
    elif theirs != ours:
        yield f"{name}: {theirs!r} there, {ours!r} asked for"
