"""What decides an answer, as a checksum: data, options, functions with all that they read."""

import builtins
import dis
import functools
import hashlib
import inspect
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np


def checksum(value: Any) -> str:
    """A checksum that equal values have in every process.

    Objects count by their attributes, and functions by their source, what they close over, their
    defaults and the global names that they read (`globals_read`); what comes from an installed
    library counts by its name. What is not in Python's sight counts not: attributes of objects
    written in C, files, what a name that is made up at run time stands for.

    Example:
        >>> checksum({"a": 1, "b": [2, 3]}) == checksum({"b": [2, 3], "a": 1})
        True
    """
    found = hashlib.sha256()
    inside: set[int] = set()

    def add(kind: str, *parts: Any) -> None:
        found.update(f"{kind} {len(parts)};".encode())
        for part in parts:
            look_at(part)

    def look_at(part: Any) -> None:
        if isinstance(part, np.generic):
            part = part.item()
        if isinstance(part, str | bytes | int | float | complex | bool | None):
            text = repr(part)
            found.update(f"{type(part).__name__} {len(text)}:{text}".encode())
        elif id(part) in inside:
            add("again")
        else:
            inside.add(id(part))
            look_inside(part)
            inside.discard(id(part))

    def look_inside(part: Any) -> None:
        if isinstance(part, Mapping):
            add("mapping", *(x for key in sorted(part, key=repr) for x in (key, part[key])))
        elif isinstance(part, np.ndarray | jax.Array):
            array = np.ascontiguousarray(_numbers(part))
            if array.dtype.hasobject:
                add("objects", array.shape, *array.ravel().tolist())
            else:
                found.update(f"array {array.dtype} {array.shape}:".encode())
                found.update(array.tobytes())
        elif isinstance(part, list | tuple | set | frozenset):
            ordered = sorted(part, key=repr) if isinstance(part, set | frozenset) else part
            add("sequence", *ordered)
        elif isinstance(part, types.ModuleType):
            add("module", part.__name__)
        elif isinstance(part, type):
            add("class", part.__module__, part.__qualname__, *_methods(part))
        elif isinstance(part, functools.partial):
            add("partial", part.func, part.args, part.keywords)
        elif isinstance(part, types.MethodType):
            add("method", part.__func__, part.__self__)
        elif isinstance(function := _function_of(part), types.FunctionType):
            if _in_library(function):
                add("library", function.__module__, function.__qualname__)
                return
            closed = [_content(cell) for cell in function.__closure__ or ()]
            defaults = (function.__defaults__, function.__kwdefaults__)
            read = globals_read(function)
            add("function", function.__qualname__, _source(function), closed, defaults, read)
        elif not jax.tree_util.all_leaves([part]):  # distributions, data classes of JAX
            add("tree", type(part), *jax.tree.leaves(part))
        elif hasattr(part, "__array__"):  # data frames
            add("numbers", type(part), np.asarray(part))
        else:
            add("object", type(part), getattr(part, "__dict__", {}))

    look_at(value)
    return found.hexdigest()[:16]


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """The global names that a function reads itself, with what they stand for now.

    An attribute of a module of the user's own (`settings.rate`) is such a name.
    """
    read = {}
    for code in _codes(function.__code__):
        steps = list(dis.get_instructions(code))
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            name = step.argval
            if name not in function.__globals__:
                continue  # a builtin, or not there yet
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType) and not _in_library(value):
                attribute = getattr(following, "argval", None)
                if isinstance(attribute, str) and hasattr(value, attribute):
                    name, value = f"{name}.{attribute}", getattr(value, attribute)
            read[name] = value
    return read


def functions_reached(value: Any) -> Iterator[types.FunctionType]:
    """The user's functions that a function, or an object, may come to call, as far as is seen."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, str | bytes | int | float | np.ndarray | None):
            continue
        seen.add(id(part))
        function = _function_of(part)
        if isinstance(function, types.FunctionType):
            if not _in_library(function):
                yield function
                waiting += [_content(cell) for cell in function.__closure__ or ()]
                waiting += [function.__defaults__, function.__kwdefaults__]
                waiting += globals_read(function).values()
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += part
        elif isinstance(part, types.MethodType):
            waiting += [part.__func__, part.__self__]
        elif isinstance(part, functools.partial):
            waiting += [part.func, part.args, part.keywords]
        elif isinstance(part, type):
            waiting += _methods(part)
        elif not isinstance(part, types.ModuleType):
            waiting += [type(part), getattr(part, "__dict__", None)]


def _function_of(part: Any) -> Any:
    """What JAX's own wrappers (`jax.jit`) were made of; else the thing itself."""
    return part if isinstance(part, types.FunctionType | type) else inspect.unwrap(part)


def _methods(kind: type) -> list[Any]:
    """What a class of the user's own defines and descends from; of a library's nothing."""
    if _in_library(kind):
        return []
    found: list[Any] = [base for base in kind.__bases__ if base is not object]
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, staticmethod | classmethod):
            found.append(value.__func__)
        elif isinstance(value, property):
            found.append(value.fget)
        elif isinstance(value, types.FunctionType) or not name.startswith("__"):
            found.append(value)
    return found


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is given its value later
        return None


def _numbers(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _source(function: types.FunctionType) -> Any:
    try:
        return inspect.getsource(function.__code__)
    except (OSError, TypeError):  # typed in
        return function.__code__.co_code, repr(function.__code__.co_consts)


def _in_library(thing: types.FunctionType | types.ModuleType | type) -> bool:
    """Whether something is built in or installed, and not of the user's own making."""
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    else:
        module = thing.__module__ if isinstance(thing, type) else thing.__name__
        if module == "builtins":  # so are classes called that are made by `exec`
            return isinstance(thing, types.ModuleType) or hasattr(builtins, thing.__name__)
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if not file:
            return module in sys.builtin_module_names
    return file.startswith("<frozen") or _in_library_folder(file)


@functools.lru_cache(maxsize=4096)
def _in_library_folder(file: str) -> bool:
    named = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in named]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parent)]
    path = Path(file).resolve()
    return any(path.is_relative_to(Path(folder).resolve()) for folder in folders)
