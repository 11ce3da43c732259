"""What all tests share: where they run, what is checked while they do, and float64."""

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

# Read when the libraries are imported, so they come before everything else.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The same programs, compiled in two thirds of the time: compiling is most of what the tests do.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
# Programs are kept that took so many seconds; see below.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.01")
# What spreads its work over devices finds four; everything else uses the first.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ["MPLBACKEND"] = "Agg"
# Arrays of different ranks or types that meet by mistake are errors; `numpyro_as_it_is` lets be.
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")

# Plans are kept for one run, shared by its workers: an old one could hide a broken planner.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _plans = tempfile.TemporaryDirectory(prefix="btil-test-plans-")
    os.environ["BTIL_CACHE_DIR"] = _plans.name

import hypothesis
import pytest
from jaxtyping import install_import_hook

# Every shape and type annotation of btil is checked whenever a test calls the function.
install_import_hook("btil", "beartype.beartype")

# Compiling is most of what tests do: programs are kept for other workers, for processes that tests
# start, and for the next run. JAX knows them by all that they are made from.
import jax  # noqa: E402

from btil.cli.quick import keep_programs  # noqa: E402

keep_programs(Path(__file__).parent.parent / ".programs")
# By now JAX has read its variables.
jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))

# The same examples on every machine and in every order; nothing is kept between runs.
hypothesis.settings.register_profile("btil", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("btil")


# What takes long, as measured: `scripts/list_slow_tests.py`.
SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"
# Objects made before the garbage collector looks: tracing makes many that last as long as programs.
_BETWEEN_COLLECTIONS = (50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests; files that take longest first, so that a run ends with short ones."""
    listed = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    names = set(listed)
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if not names.isdisjoint((name, name.split("[")[0])):
            item.add_marker("slow")
    # The list begins with the file that takes longest.
    places = {name.split("::")[0]: place for place, name in reversed([*enumerate(listed)])}
    items.sort(
        key=lambda item: places.get(item.nodeid.split("::")[0].removeprefix("tests/"), len(listed))
    )


def pytest_collection_finish() -> None:
    """What is there by now stays: a million objects that need not be looked at time and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BETWEEN_COLLECTIONS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What runs for longer than it compiles is compiled as users have it."""
    flag = "jax_disable_most_optimizations"
    before = jax.config.read(flag)
    jax.config.update(flag, before and item.get_closest_marker("runs_long") is None)
    try:
        return (yield)
    finally:
        jax.config.update(flag, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it where nobody overlooks it when the study page was not tried in a browser."""
    from study_site import BROWSER

    if BROWSER is None:
        terminalreporter.write_sep("!", "NO BROWSER", red=True, bold=True)
        terminalreporter.write_line(
            "The study page was not tested in a browser: there is no Chromium. "
            "Debian: apt install chromium; or name one by BTIL_BROWSER."
        )


# Programs that are compiled map memory, of which Linux allows a process 65,530 pieces: XLA crashes
# past that.
_MOST_MAPPINGS = 20_000


@pytest.fixture(scope="module", autouse=True)
def programs_let_go() -> Iterator[None]:
    """After a file of tests, once there are many, compiled programs make room."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and len(mappings.read_bytes().splitlines()) > _MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more moves of whole paths in an iteration of gibbs than there is to do in tiny teams."""
    from little import FEW_MOVES

    from btil.inference import path_moves

    for name, value in FEW_MOVES.items():
        monkeypatch.setattr(path_moves, name, value)


@pytest.fixture
def numpyro_as_it_is() -> Iterator[None]:
    """For tests that call NumPyro themselves: its code lets ranks and types meet."""
    from btil.numerics.promotion import promotion_allowed

    with promotion_allowed():
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """JAX in float64 for the length of one test, without the global switch."""
    with jax.enable_x64(True):
        yield
