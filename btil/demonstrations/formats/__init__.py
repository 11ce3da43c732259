"""The kinds of files that hold tables of demonstrations, one module each.

To add one, write a module with two functions and name it in `FORMATS`:

    read(handle) -> the columns, and what the file records beside them (`record.py`) or None
    write(demos, handle)

Both are given a file that is open in binary mode.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

# Ending of the file's name -> the module. Loaded on first use: Arrow takes its time.
FORMATS = {
    ".csv": "btil.demonstrations.formats.csv",
    ".parquet": "btil.demonstrations.formats.parquet",
    ".npz": "btil.demonstrations.formats.npz",
}


def format_of(path: Path) -> Any:
    """The module that reads and writes files of this ending."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: the ending must be one of {', '.join(FORMATS)}")
    return import_module(FORMATS[path.suffix.lower()])
