"""What a terminal, a pipe and a file get to see: progress, programs that are kept, narrow help."""

import ast
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from btil import progress as showing
from btil.analysis.output import output_console
from btil.cli import app, quick
from btil.cli.app import FROM_CONSOLE
from btil.files import cache_folder
from btil.progress import failing_by_interruption, interruptible, progress_line


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_tables_are_as_wide_as_a_terminal_and_wide_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert output_console().width == 120
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert output_console().width == 77


def test_no_carriage_return_reaches_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line(3, "gibbs", True, done=1) as line:
        line.update(2)
        line.set_postfix_str("elbo 1.5")
        line.total = 4
        line.refresh()
    written = capsys.readouterr().err
    assert "\r" not in written
    assert written.startswith("gibbs: 3/4, ")
    assert written.endswith(" s, elbo 1.5\n")


def test_of_what_may_end_any_time_no_total_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line(1000, "mfvi", True, at_most=True) as line:
        line.update(4)
    assert capsys.readouterr().err.startswith("mfvi: 4, ")


def test_long_runs_tell_of_themselves_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "_BETWEEN_LINES", -1.0)
    with progress_line(2, "nuts", True) as line:
        line.update()
        line.update()
    assert [text.split(",")[0] for text in capsys.readouterr().err.splitlines()] == [
        "nuts: 1/2",
        "nuts: 2/2",
        "nuts: 2/2",
    ]


def test_a_file_is_told_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 600.0, 600.0, 1200.0, 1200.0, 1300.0])
    monkeypatch.setattr(showing.time, "monotonic", lambda: next(now))
    # Ten of an earlier run took no time in this one.
    with progress_line(4000, "nuts", True, done=10) as line:
        line.update(40)
        line.update(3930)
    assert capsys.readouterr().err.splitlines() == [
        "nuts: 50/4000, 600.0 s, about 16.5 hours left",
        "nuts: 3980/4000, 1200.0 s, about 6 s left",
        "nuts: 3980/4000, 1300.0 s",
    ]


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def swallowed() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        ctrl_c()


@pytest.mark.parametrize("shown", [True, False])
def test_an_interruption_that_is_swallowed_comes_again(shown: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        with progress_line(10, "nuts", shown) as line:
            line.update()
            swallowed()
            with pytest.raises(KeyboardInterrupt):
                line.update()
            line.update()
        # In the last block, of which nothing more is told.
        with pytest.raises(KeyboardInterrupt), progress_line(10, "nuts", shown):
            swallowed()
        # A library may make an error of its own of it.
        swallowed()
        with pytest.raises(KeyboardInterrupt), failing_by_interruption():
            raise ImportError
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before
    with progress_line(10, "nuts", shown) as line:
        line.update()


def test_beside_the_main_thread_no_handler_is_installed() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interruptible():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_terminal_is_told_no_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_line(1000, "mfvi", True, at_most=True) as line:
        line.update(4)
        line.set_postfix_str("elbo -3.2")
    last = screen.getvalue().rstrip("\n").split("\r")[-1]
    assert last.startswith("mfvi: 4 [")
    assert "elbo -3.2" in last
    assert "<" not in last  # tqdm writes what is left behind it
    assert "%" not in last


def test_the_console_keeps_programs_and_the_library_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("BTIL_CACHE_DIR", str(tmp_path))
    words = ["info", "overcooked:cramped_room:test"]
    CliRunner().invoke(app, words)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    CliRunner().invoke(app, ["--no-compilation-cache", *words], obj=FROM_CONSOLE)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    done = CliRunner().invoke(app, words, obj=FROM_CONSOLE)
    assert done.exit_code == 0, done.output
    assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "chosen")
    CliRunner().invoke(app, words, obj=FROM_CONSOLE)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "chosen"


def test_the_oldest_programs_make_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quick, "MOST_BYTES", 25)
    for age, name in enumerate("abc"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (age, age))
    quick._make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    quick._make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    # Whenever programs are going to be kept.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # so that it is as it was afterwards
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    quick.keep_programs(tmp_path / "kept")
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    for age, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(10))
        os.utime(folder / name, (age, age))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    quick.keep_programs(tmp_path / "kept")
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert folder.parent == tmp_path / "kept"


def test_summaries_of_commands_are_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:\n")[2]
    assert len(listed.splitlines()) > 10
    assert all(line.endswith(".") and "..." not in line for line in listed.splitlines())


def test_headings_of_tables_are_folded_not_cut() -> None:
    """Rich would end a heading that has no room with an ellipsis."""
    calls = [
        node
        for path in (Path(__file__).parents[1] / "btil").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_column")
    ]
    assert calls
    for call in calls:
        assert {word.arg for word in call.keywords} & {"overflow", "no_wrap"}, ast.unparse(call)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "1 s"), (1.6, "2 s"), (89.4, "89 s"), (90.0, "2 minutes"), (200.0, "3 minutes"),
        (5399.0, "90 minutes"), (5400.0, "1.5 hours"), (36000.0, "10.0 hours"),
    ],
)  # fmt: skip
def test_times_are_told_as_people_say_them(seconds: float, told: str) -> None:
    assert showing.time_of(seconds) == told


def test_what_can_be_worked_out_again_is_kept_where_the_user_keeps_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BTIL_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("BTIL_CACHE_DIR")
    assert cache_folder() == tmp_path / "xdg" / "btil"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / "home" / ".cache" / "btil"


def test_of_several_processes_the_first_alone_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (0, 1):
        monkeypatch.setattr("jax.process_index", lambda index=index: index)
        with progress_line(2, "nuts", True) as line:
            line.update(2)
        assert ("nuts: 2/2" in capsys.readouterr().err) == (index == 0)
    with progress_line(2, "nuts", False) as line:
        line.update(2)
    assert capsys.readouterr().err == ""


def test_the_console_command_collects_seldom_and_is_known_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, asked = gc.get_threshold(), []

    def command(**given: object) -> None:
        asked.append((given, gc.get_threshold(), signal.getsignal(signal.SIGINT)))

    module = sys.modules["btil.cli.app"]
    monkeypatch.setattr(module, "app", command)
    handler = signal.getsignal(signal.SIGINT)
    try:
        module.main()
    finally:
        gc.set_threshold(*before)
    ((given, threshold, during),) = asked
    assert given == {"prog_name": "btil", "obj": FROM_CONSOLE}
    assert threshold == (100_000, 20, 20)
    assert during is not handler
    assert signal.getsignal(signal.SIGINT) is handler
    assert gc.get_freeze_count() > 0


def test_demo_says_what_it_does_unless_it_is_to_be_quiet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run_demo(out: Path, progress: bool, say: Callable[[str], None]) -> Path:
        asked.append((out, progress))
        say("fitting")
        return out / "report.html"

    monkeypatch.setattr("btil.analysis.demo.run_demo", run_demo)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.stdout == f"fitting\nreport: {tmp_path / 'report.html'}\n"
    assert CliRunner().invoke(app, ["demo", "--quiet"]).exit_code == 0
    assert asked == [(tmp_path, True), (Path("btil-demo"), False)]
