"""Examples in docstrings run, and give what they show."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import btil

MODULES = [
    info.name
    for info in pkgutil.walk_packages(btil.__path__, "btil.")
    if not info.name.endswith("__main__")
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(name: str) -> list[doctest.DocTest]:
    """Those of a module that can be run as they stand."""
    module = importlib.import_module(name)
    names = {"btil": btil, "np": np, **vars(module)}
    found = doctest.DocTestFinder(exclude_empty=True).find(module, globs=names)
    return [
        test
        for test in found
        if any(not example.options.get(doctest.SKIP) for example in test.examples)
    ]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    told: list[str] = []
    for test in examples(name):
        done = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
        assert not done.failed, "".join(told)


def test_there_are_examples() -> None:
    assert sum(len(examples(name)) for name in MODULES) > 50
