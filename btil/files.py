"""Files that appear whole or not at all."""

import contextlib
import uuid
from collections.abc import Iterator
from os import PathLike
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A new file in the same folder that takes the place of `path` once the block has succeeded.

    An old file stays as it is until then, and for good if the block fails.

    Example:
        >>> with replacing("table.csv") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("a,b")
    """
    target = Path(path)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | PathLike[str], endings: tuple[str, ...] | None = None) -> None:
    """Refuse a file that could not be written, before the work that is to fill it.

    Args:
        path: The file.
        endings: The endings it may have, e.g. `(".csv", ".npz")`; None: any.

    Raises:
        ValueError: If the ending is another one.
        OSError: If its folder is not there or cannot be written to, or a folder has its name.
    """
    target = Path(path)
    if endings is not None and target.suffix.lower() not in endings:
        raise ValueError(f"{target}: the ending must be {' or '.join(endings)}")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent}")
    # Permission bits do not tell on every file system; making a file does.
    probe = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        probe.touch(exist_ok=False)
    finally:
        probe.unlink(missing_ok=True)
