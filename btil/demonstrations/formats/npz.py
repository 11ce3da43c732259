"""NumPy archives."""

import json
import zipfile
from typing import Any, BinaryIO

import numpy as np

from btil.demonstrations.coding import counted
from btil.demonstrations.data import METADATA_KEY, Columns, Demonstrations, declared_names
from btil.demonstrations.formats.record import check_no_repeats, parsed_record, record_of


def write(demos: Demonstrations, handle: BinaryIO) -> None:
    """Write an array per column, and the record."""
    arrays = {
        "episode": demos.episodes,
        "step": demos.step_in_episode,
        **demos._indices(),
        **demos._numbers(),
        METADATA_KEY: np.array(json.dumps(record_of(demos))),
    }
    # As numpy.savez_compressed does, which cannot write a column called "file".
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    """The columns, those with names as texts, and the record."""
    import pandas as pd

    with zipfile.ZipFile(handle) as archive:
        check_no_repeats([name.removesuffix(".npy") for name in archive.namelist()])
        columns: Columns = {}
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            columns[name.removesuffix(".npy")] = array
    if METADATA_KEY not in columns:
        return columns, None
    record = parsed_record(str(columns.pop(METADATA_KEY)))
    # As texts, so that they can be read by the names of other demonstrations too.
    for kind, prefix in [("state", ""), ("action", "action_"), ("latent", "latent_")]:
        for key, names in record[f"{kind}_names"].items():
            indices = columns.get(prefix + key)
            if indices is None or indices.dtype.kind not in "iu" or indices.ndim != 1:
                continue
            outside = (indices < -1) | (indices >= len(names))
            if outside.any():
                row = int(np.argmax(outside))
                raise ValueError(
                    f"{prefix}{key}: row {row} (counted from 0): {indices[row]} is not allowed; "
                    f"it has {counted(len(names), 'name')}"
                )
            declared_names(f"{kind}_names", {key: names}, (key,), "")
            columns[prefix + key] = pd.Categorical.from_codes(indices, names)
    return columns, record
