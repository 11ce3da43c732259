"""Files that appear whole or not at all."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from os import PathLike
from pathlib import Path

# Folders that were made since a block of `tidying` began; without such a block nobody asks.
_MADE: ContextVar[list[Path] | None] = ContextVar("made", default=None)


def cache_folder() -> Path:
    """Where what can be worked out again is kept: `BTIL_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("BTIL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "btil"


@contextlib.contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A new file in the same folder that takes the place of `path` once the block has succeeded.

    An old file stays as it is until then, and for good if the block fails or is interrupted; a
    power cut leaves the old or the new one. No other file stays.

    Raises:
        OSError: As the block or the file system has it; an error of the new file names `path`.

    Example:
        >>> with replacing("table.csv") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("a,b")
    """
    target = Path(path)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with naming(target, instead_of=temporary):
            yield temporary
            flush(temporary)
            temporary.replace(target)
            _flush_folder(target.parent)
    finally:
        # The error that brought us here says more than one of the tidying up.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(target: Path, instead_of: Path) -> Iterator[None]:
    """Errors of the file system name a file that people know, not one beside it or none.

    Args:
        target: The file or folder as people know it.
        instead_of: What is written in its place; files in it, if it is a folder, count too.

    Raises:
        OSError: Of the same kind. One that is about another file is left as it is.
    """
    try:
        yield
    except OSError as error:
        # Libraries tell the file in their text, some of them with neither number nor name.
        named = [os.fspath(name) for name in (error.filename, error.filename2) if name is not None]
        if named and not any(str(name).startswith(str(instead_of)) for name in named):
            raise
        reason = (error.strerror or str(error)).replace(str(instead_of), str(target))
        if error.errno is None:
            raise OSError(f"{target}: {reason}") from error
        raise OSError(error.errno, reason, str(target)) from error


def flush(path: Path) -> None:
    """Have the contents of a file on the disk, before its name is."""
    with open(path, "rb+") as handle:
        os.fsync(handle.fileno())


def _flush_folder(path: Path) -> None:
    """Have the names in a folder on the disk, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with contextlib.suppress(OSError):  # some file systems cannot; the file itself is complete
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; they are gone again if `tidying` fails."""
    made = _MADE.get()
    if made is not None:
        made += [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def tidying() -> Iterator[None]:
    """If the block fails or is interrupted, folders that it made and left empty are removed."""
    made: list[Path] = []
    token = _MADE.set(made)
    try:
        yield
    except BaseException:
        for folder in sorted(made, reverse=True):  # those inside first
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
        raise
    finally:
        _MADE.reset(token)


def check_there(path: str | PathLike[str]) -> None:
    """Refuse a path at which there is nothing, before anything is said of its ending.

    Args:
        path: Of a file or a folder that is to be read.

    Raises:
        FileNotFoundError: If there is neither.
    """
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def check_writable(path: str | PathLike[str], endings: tuple[str, ...] | None = None) -> None:
    """Refuse a file that could not be written, before the work that is to fill it.

    Args:
        path: The file.
        endings: The endings it may have, e.g. `(".csv", ".npz")`; None: any.

    Raises:
        ValueError: If the ending is another one.
        OSError: If its folder is not there or cannot be written to, a folder has its name, or the
            name is longer than the file system allows.
    """
    target = Path(path)
    if endings is not None and target.suffix.lower() not in endings:
        raise ValueError(f"{target}: the ending must be {' or '.join(endings)}")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(target)  # a name that is too long is told here
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent}")
    # Permission bits do not tell on every file system; making a file does.
    probe = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with naming(target, instead_of=probe):
            probe.touch(exist_ok=False)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
