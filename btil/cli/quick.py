"""What makes the console command quick to begin and to end; nothing of it holds for the library."""

import contextlib
import gc
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from btil.files import cache_folder

# Past so many bytes of compiled programs the oldest go, until half is left.
MOST_BYTES = 500_000_000
# Objects made before the garbage collector looks: importing makes hundreds of thousands that stay.
_BETWEEN_COLLECTIONS = 100_000


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and at the end, when all goes anyway, not at all."""
    gc.set_threshold(_BETWEEN_COLLECTIONS, 20, 20)
    try:
        yield
    finally:
        gc.freeze()


def keep_programs(within: Path | None = None) -> None:
    """Tell JAX to keep compiled programs on disk; before JAX is imported.

    A folder that was chosen by JAX's own variables stays. One that cannot be written is left alone.
    Programs are made for one kind of processor, so each has a folder of its own.

    Args:
        within: Where these folders are; None: in the user's cache folder.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = (within or cache_folder() / "programs") / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(folder)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    # JAX would keep what took a second or more; here most takes less.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")


def _processor() -> str:
    """A name for what the processor can do."""
    import platform

    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        lines = told.splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]


def _make_room(folder: Path) -> None:
    """Remove the oldest programs where there are too many."""
    files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    size = sum(about.st_size for _, about in files)
    if size <= MOST_BYTES:
        return
    for path, about in sorted(files, key=lambda file: file[1].st_mtime):
        path.unlink(missing_ok=True)
        size -= about.st_size
        if size <= MOST_BYTES / 2:
            return
