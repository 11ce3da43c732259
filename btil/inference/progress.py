"""One progress line for every long run; silent when not wanted."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def progress_line(total: int, description: str, enabled: bool, done: int = 0) -> Iterator[Any]:
    """A tqdm line on standard error; with `enabled=False` nothing is written at all.

    Of several processes that work together the first has the line. `done` is what an earlier run
    has done of the total.

    Yields:
        An object with `update(n)` and `set_postfix_str(text)`.
    """
    import jax
    from tqdm import tqdm

    shown = enabled and jax.process_index() == 0
    with tqdm(total=total, desc=description, disable=not shown, leave=True, initial=done) as line:
        yield line
