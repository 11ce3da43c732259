"""Parquet files, which can be written and read part by part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

from btil.demonstrations.coding import listed
from btil.demonstrations.data import METADATA_KEY, Columns, Demonstrations
from btil.demonstrations.formats.arrow import arrow_table, columns_from_arrow
from btil.demonstrations.formats.record import UNSAID, check_no_repeats, parsed_record, record_of

if TYPE_CHECKING:
    import pyarrow as pa

# Steps of a Parquet file's row groups: a unit to read at a time, some 10 MB of columns.
ROW_GROUP_STEPS = 2**17


def write(demos: Demonstrations | Iterable[Demonstrations], handle: BinaryIO | BytesIO) -> None:
    """Write demonstrations, or parts of some that have the same sizes and names."""
    from pyarrow import parquet

    parts = iter([demos] if isinstance(demos, Demonstrations) else demos)
    first = next(parts, None)
    if first is None:
        raise ValueError("there is no part to write; at least one is needed")
    record = record_of(first)
    metadata = {METADATA_KEY: json.dumps(record)}
    table = arrow_table(first).replace_schema_metadata(metadata)
    names, seen = {*table.column_names}, set(first.episode_ids.tolist())
    with parquet.ParquetWriter(handle, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table, ROW_GROUP_STEPS)
        for number, part in enumerate(parts, start=1):
            other = UNSAID | record_of(part)
            for field, expected in (UNSAID | record).items():
                if other[field] != expected:
                    raise ValueError(
                        f"part {number}: {field} is {other[field]}, in part 0 {expected}; declare "
                        "the same sizes and names for all parts"
                    )
            ids = part.episode_ids.tolist()
            if not seen.isdisjoint(ids):
                again = next(one for one in ids if one in seen)
                raise ValueError(
                    f"part {number}: episode {again!r} is in an earlier part too; give its "
                    "episodes other ids: part.replace(episodes=...)"
                )
            seen.update(ids)
            table = arrow_table(part).replace_schema_metadata(metadata)
            apart = names ^ {*table.column_names}
            if apart:
                raise ValueError(
                    f"part {number}: {listed(sorted(apart))} are in it or in part 0, not in both; "
                    "give all parts presence, rewards and weights of latents, or none"
                )
            writer.write_table(table, ROW_GROUP_STEPS)


def read(handle: BinaryIO | BytesIO) -> tuple[Columns, dict[str, Any] | None]:
    """The columns of a table, and its record."""
    from pyarrow import parquet

    table = parquet.ParquetFile(handle, page_checksum_verification=True).read()
    check_no_repeats(table.column_names)
    return columns_from_arrow(table), record_of_schema(table.schema)


def record_of_schema(schema: pa.Schema) -> dict[str, Any] | None:
    """What `write_demonstrations` recorded in a Parquet file, None where another tool wrote it."""
    text = (schema.metadata or {}).get(METADATA_KEY.encode())
    return None if text is None else parsed_record(text.decode("utf-8"))
