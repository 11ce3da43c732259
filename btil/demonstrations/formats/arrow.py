"""Demonstrations and columns as Arrow holds them: what CSV and Parquet share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.demonstrations.data import Columns, Demonstrations

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_table(demos: Demonstrations) -> pa.Table:
    """The demonstrations as a table; named values are coded texts, unknown latents null."""
    import pyarrow as pa

    def coded(indices: np.ndarray, texts: Sequence[str]) -> pa.Array:
        known = pa.array(indices.astype(np.int32), mask=indices < 0)
        return pa.DictionaryArray.from_arrays(known, pa.array(texts, pa.string()))

    ids = demos.episode_ids
    if ids.dtype.kind == "i":
        columns = {"episode": pa.array(demos.episodes)}
    else:
        of_rows = np.repeat(np.arange(demos.num_episodes), demos.episode_lengths)
        columns = {"episode": coded(of_rows, ids.tolist())}
    columns["step"] = pa.array(demos.step_in_episode)
    for column, indices in demos._indices().items():
        names = demos._names.get(column)
        columns[column] = (
            pa.array(indices, mask=indices < 0) if names is None else coded(indices, names)
        )
    for column, numbers in demos._numbers().items():
        # Nobody saw it: no number, which an empty cell of a CSV says too.
        unseen = np.isnan(numbers) if numbers.dtype.kind == "f" else None
        columns[column] = pa.array(numbers, mask=unseen)
    return pa.table(columns)


def columns_from_arrow(table: pa.Table) -> Columns:
    """The columns of a table."""
    return {name: from_arrow(table.column(name)) for name in table.column_names}


def from_arrow(column: pa.ChunkedArray) -> Any:
    """A column as NumPy or pandas holds it, without turning whole numbers into floats."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.dictionary_encode().to_pandas()
    if pa.types.is_dictionary(kind):
        return column.to_pandas()
    if pa.types.is_integer(kind) and column.null_count:
        missing = column.is_null().to_numpy()
        return np.ma.MaskedArray(column.fill_null(0).to_numpy(), missing)
    return column.to_numpy()
