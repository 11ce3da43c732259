"""Programs made of a user's function: traced anew whenever asked, compiled once.

JAX compiles a function once and for all: what the function read besides its arguments when it was
first traced, it is taken to read for ever. A user's function may close over a rate or read a global
table, and either may have changed. So it is traced anew for every fit, and what is kept are
compiled programs, found again by what the trace says (`Program`). Arrays that the function closed
over are arguments of the program: other numbers of the same shapes compile nothing.
"""

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend.core import Jaxpr

from btil.identity import checksum, functions_reached
from btil.numerics.promotion import promotion_allowed

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Program:
    """What a function computes: equal programs compute the same.

    Called with the constants of a trace and the function's arguments.

    Attributes:
        text: A checksum of the program as JAX writes it.
        results: The tree of what it returns.
        number: Tells programs apart that call the host: the text does not say what they call.
        jaxpr: The program; its first arguments are the constants.
    """

    text: str
    results: Any
    number: int
    jaxpr: Any = field(compare=False, repr=False)

    def __call__(self, constants: list[Any], *arguments: Any) -> Any:
        """Compute, under JAX's transformations too."""
        leaves = jax.core.eval_jaxpr(self.jaxpr, [], *constants, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.results, leaves)


class Trace(NamedTuple):
    """What a function did with arguments of some shapes.

    Attributes:
        program: What it computes.
        constants: The arrays that it reads besides its arguments.
    """

    program: Program
    constants: list[Any]

    def __call__(self, *arguments: Any) -> Any:
        """The function as it was traced."""
        return self.program(self.constants, *arguments)

    @property
    def identity(self) -> str:
        """A checksum of program and constants, the same in every process.

        What is called back on the host counts by its name alone.
        """
        results = re.sub(r" at 0x[0-9a-f]+", "", str(self.program.results))
        return checksum((self.program.text, results, self.constants))


@promotion_allowed()
def trace(function: Callable[..., Any], *arguments: Any, written: Any = None) -> Trace:
    """Trace a function anew, whatever JAX remembers of it.

    Args:
        function: A function of trees of arrays.
        arguments: Arrays, or their shapes.
        written: The user's function inside it, if it is another one.

    Returns:
        The trace.
    """
    with reading_anew(function if written is None else written):
        # A function of its own, as JAX knows its traces by the object.
        closed, results = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(
            *arguments
        )
    with np.printoptions(threshold=sys.maxsize):
        text = str(closed.jaxpr)
    traced = closed.jaxpr
    # As it comes it holds the constants. As long as JAX has a hold of them, too, it takes a NumPy
    # array of float64 for one of float64 everywhere, even where that is off.
    variables = [*traced.constvars, *traced.invars]
    free = Jaxpr([], variables, traced.outvars, traced.eqns, traced.effects, traced.debug_info)
    program = Program(
        text=checksum((text, list(_inner_constants(traced, set())))),
        results=jax.tree.structure(results),
        number=next(_numbers) if "callback" in text or traced.effects else 0,
        jaxpr=free,
    )
    return Trace(program, [_uncommitted(constant) for constant in closed.consts])


def traced_anew(
    function: Callable[..., Any], written: Any = None, static_argnames: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Like `jax.jit`, but nothing is remembered of earlier traces except compiled programs.

    What is returned traces the function at its first call, and again for other shapes.

    Args:
        function: A function of trees of arrays, by position.
        written: The user's function inside it.
        static_argnames: What is given by name, and is part of the program.
    """
    traces: dict[Any, Trace] = {}

    def run(*arguments: Any, **static: Any) -> Any:
        assert set(static) <= set(static_argnames)
        leaves, tree = jax.tree.flatten(arguments)
        key = (tree, tuple(map(jax.typeof, leaves)), tuple(sorted(static.items())))
        if key not in traces:
            traces[key] = trace(partial(function, **static), *arguments, written=written)
        found = traces[key]
        return _compiled(found.program)(found.constants, *arguments)

    return run


@lru_cache(maxsize=64)
def _compiled(program: Program) -> Callable[..., Any]:
    return jax.jit(lambda constants, *arguments: program(constants, *arguments))


def _inner_constants(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """Arrays that functions inside a program have closed over: its text does not tell them."""
    for equation in jaxpr.eqns:
        for part in jax.tree.leaves(list(equation.params.values())):
            if _is_jaxpr(part) and id(part) not in seen:
                seen.add(id(part))
                yield from getattr(part, "consts", ())
                yield from _inner_constants(getattr(part, "jaxpr", part), seen)


def _is_jaxpr(part: Any) -> bool:
    return hasattr(part, "eqns")


def _uncommitted(constant: Any) -> Any:
    """An array that goes to whatever device the program runs on, as a constant would."""
    key = jax.dtypes.issubdtype(constant.dtype, jax.dtypes.prng_key)
    return constant if key else np.asarray(constant)


# JAX remembers by their objects the functions that are handed to `jit`, `scan` and the like inside
# another one, though what they read may have changed. A context of JAX that counts such changes
# makes it forget their traces.
_changes_seen = jax.make_user_context(0)
_read: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_changes = 0


def reading_anew(written: Any) -> Any:
    """Trace in this, and what functions read that JAX remembers is read anew if it has changed.

    Args:
        written: The user's function that is going to be traced.
    """
    global _changes
    now = {function: checksum(function) for function in functions_reached(written)}
    if any(_read.get(function, found) != found for function, found in now.items()):
        _changes += 1
    _read.update(now)
    return _changes_seen(_changes)
