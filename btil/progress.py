"""One progress line for every long run; silent when not wanted."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

# Ctrl-C came: an exception of it may have been swallowed by whoever was at work then.
_came = False
# A run whose progress goes to a file or a pipe tells of itself so often, in seconds.
_BETWEEN_LINES = 60.0


@contextlib.contextmanager
def progress_line(
    total: int, description: str, enabled: bool, done: int = 0, at_most: bool = False
) -> Iterator[Any]:
    """A line on standard error; with `enabled=False` nothing is written at all.

    In a terminal it moves. In a file or a pipe there is a whole line at the end, and one a minute
    before that. Of several processes that work together the first has the line.

    Args:
        total: How much there is to do.
        description: What is done.
        enabled: Whether to show it.
        done: What an earlier run has done of the total.
        at_most: Whether the total is only the most that there can be, as of sweeps until an
            optimum: the time that is left, and the share that is done, are not known then.

    Yields:
        An object with `update(n)` and `set_postfix_str(text)`.
    """
    jax = sys.modules.get("jax")  # what needs it has loaded it
    shown = enabled and (jax is None or jax.process_index() == 0)
    if shown and not _moves():
        plain = _PlainLine(None if at_most else total, description, done)
        try:
            yield _looking(plain)
        finally:
            plain.write(ended=True)
        raise_if_interrupted()
        return
    from tqdm import tqdm

    form = "{desc}: {n_fmt} [{elapsed}{postfix}]" if at_most else None
    with tqdm(
        total=total, desc=description, disable=not shown, leave=True, initial=done, bar_format=form
    ) as line:
        yield _looking(line)
    raise_if_interrupted()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block even where its exception is swallowed, as in JAX's collector callback.

    It raises `KeyboardInterrupt` as ever; and once more where a long run next tells how far it is.
    Outside the main thread nothing is changed.
    """
    global _came
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        global _came
        _came = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _came = False


def raise_if_interrupted() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C came in a block of `interruptible`."""
    global _came
    if _came:
        _came = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def failing_by_interruption() -> Iterator[None]:
    """What fails after Ctrl-C fails of it: a library may make an error of its own of it."""
    try:
        yield
    except Exception:
        raise_if_interrupted()
        raise


def _looking(line: Any) -> Any:
    """A line that looks at every update whether Ctrl-C came."""
    update = line.update

    def look(number: int = 1) -> None:
        raise_if_interrupted()
        update(number)

    line.update = look
    return line


def time_of(seconds: float) -> str:
    """A time for people: `90 s` are told as 2 minutes.

    Example:
        >>> time_of(5400.0)
        '1.5 hours'
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _moves() -> bool:
    """Whether standard error shows a line that is written over: a terminal, or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class _PlainLine:
    """What a tqdm line does, for what cannot be written over."""

    def __init__(self, total: int | None, description: str, done: int) -> None:
        self._knows_total = total is not None
        self.total, self.n, self._before = total, done, done
        self._description, self._postfix = description, ""
        self._begun = self._written = time.monotonic()

    def update(self, number: int = 1) -> None:
        """So much more is done."""
        self.n += number
        if time.monotonic() - self._written > _BETWEEN_LINES:
            self.write()

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """What is told at the end of the line."""
        self._postfix = f", {text}" if text else ""

    def refresh(self) -> None:
        """The total has changed."""

    def write(self, ended: bool = False) -> None:
        """Write the line; how long it still takes only until the run has ended."""
        self._written = time.monotonic()
        number = f"{self.n}/{self.total}" if self._knows_total else f"{self.n}"
        took = self._written - self._begun
        seconds = f"{took:.1f} s{'' if ended else self._left(took)}"
        print(f"{self._description}: {number}, {seconds}{self._postfix}", file=sys.stderr)

    def _left(self, took: float) -> str:
        if self.total is None or not self._before < self.n < self.total:
            return ""
        left = took * (self.total - self.n) / (self.n - self._before)
        return f", about {time_of(left)} left"
