"""The study page over lines that stall, break and are slow, and behind proxies; and what else only
a browser shows: layouts, languages, breaks, shared computers, the researcher's pages.

Needs Chromium, as test_study_browser.py does.
"""

import contextlib
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_site import (
    BROWSER,
    LOW,
    PHONE,
    SETTINGS,
    WIDE,
    Person,
    Process,
    open_browser,
    write_study,
)

from btil.study.store import Store

if BROWSER is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser


class Line:
    """A proxy that passes bytes on: late, not at all for a while, or not any more.

    Args:
        port: Of the server.
        delay: Seconds by which everything is late, each way.
        listen: Its own port; 0: a free one.
        prefix: What it takes off the paths of requests, as a reverse proxy may.
    """

    def __init__(self, port: int, delay: float = 0.0, listen: int = 0, prefix: str = "") -> None:
        self.target, self.delay, self.prefix = port, delay, prefix.encode()
        self.flows = threading.Event()
        self.flows.set()
        self.ends: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self.listener = socket.create_server(("127.0.0.1", listen))
        self.port = self.listener.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def _start(self, work: Any, *arguments: Any) -> None:
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self.threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                self.ends.append(near)
                far = socket.create_connection(("127.0.0.1", self.target))
                self.ends.append(far)
                self._start(self._pass, near, far, True)
                self._start(self._pass, far, near, False)

    def _pass(self, one: socket.socket, other: socket.socket, asks: bool) -> None:
        late: queue.Queue[tuple[float, bytes]] = queue.Queue()
        if self.delay:
            self._start(self._later, late, other)
        with contextlib.suppress(OSError):
            while piece := one.recv(65536):
                if asks and self.prefix:
                    piece = re.sub(rb"^(GET|POST) " + re.escape(self.prefix), rb"\1 ", piece)
                if self.delay:
                    late.put((time.monotonic() + self.delay, piece))
                    continue
                self.flows.wait()
                other.sendall(piece)
        late.put((0.0, b""))
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def _later(self, late: "queue.Queue[tuple[float, bytes]]", other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (arrived := late.get())[1]:
                time.sleep(max(0.0, arrived[0] - time.monotonic()))
                other.sendall(arrived[1])

    def drop(self) -> None:
        """Break every connection."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing goes through any more, and nothing of it stays."""
        self.flows.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.drop()
        for thread in self.threads:
            thread.join(timeout=5)
        for end in self.ends:
            end.close()


def soon(tab: Any, holds: Any) -> None:
    """Wait until something is true of a page; its own scripts alone run there."""
    for _ in range(1000):
        if holds():
            return
        tab.wait_for_timeout(20)
    raise AssertionError(tab.inner_text("body"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Starts a study, reached by a line of its own where one is asked for."""
    ends: list[Any] = []

    def start(settings: str = SETTINGS, *options: str, line: float | None = None) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        if line is not None:
            # The page must be asked for by the line's address.
            made = Line(port, line)
            options = (*options, "--origin", made.origin)
        server = Process(write_study(tmp_path, settings), port, *options)
        server.folder = tmp_path
        ends.append(server.kill)
        if line is None:
            return server
        ends.append(made.close)
        return server, made

    yield start
    for end in reversed(ends):
        end()


def enter(person: Person) -> None:
    person.tab.locator(".agree").click()
    person.until(lambda seen: bool(seen))


def check_axe(person: Person, where: str) -> None:
    found = Axe().run(person.tab).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], where


# ---------------------------------------------------------------------- the line


def test_silence_is_told_keys_wait_and_the_page_goes_on(browser: Browser, serve: Any) -> None:
    _, line = serve(line=0.0)
    person = Person(browser, line.origin)
    enter(person)
    person.key("ArrowRight")
    shown = person.seen
    line.flows.clear()
    started = time.monotonic()
    person.tab.wait_for_selector("#connection:has-text('silent')", timeout=4000)
    assert time.monotonic() - started < 3.2
    check_axe(person, "silent")
    for _ in range(3):
        person.tab.keyboard.press("ArrowUp")
    assert person.seen is shown
    # for 20 seconds nothing comes through; then everything goes on by itself
    person.tab.wait_for_timeout(max(0.0, 20 - (time.monotonic() - started)) * 1000)
    line.flows.set()
    soon(person.tab, lambda: person.tab.inner_text("#connection") == "")
    person.until(lambda seen: True)
    assert person.seen["turn"] == shown["turn"]
    assert person.key("ArrowUp")["lesson"]["at"] == 3


def test_a_press_that_did_not_arrive_is_told(browser: Browser, serve: Any) -> None:
    _, line = serve(line=0.0)
    person = Person(browser, line.origin)
    enter(person)
    shown = person.seen
    line.flows.clear()
    person.tab.keyboard.press("ArrowRight")
    person.tab.wait_for_timeout(50)
    line.drop()
    line.flows.set()
    person.until(lambda seen: seen is not shown)
    if person.seen["turn"] == shown["turn"]:
        assert "did not arrive" in person.tab.inner_text(".side .notice")
    assert person.tab.inner_text("#connection") == ""


def test_a_line_that_drops_is_found_again(browser: Browser, serve: Any) -> None:
    _, line = serve(line=0.0)
    person = Person(browser, line.origin)
    enter(person)
    for key in ("ArrowRight", "ArrowUp", "ArrowDown"):
        shown = person.seen
        line.drop()
        person.until(lambda seen, shown=shown: seen is not shown)
        before = person.seen["lesson"]["at"]
        assert person.key(key)["lesson"]["at"] == before + 1


def test_presses_that_are_too_fast_are_told(browser: Browser, serve: Any) -> None:
    server, line = serve(SETTINGS.replace("cleanup", "movers"), line=0.2)
    person = Person(browser, line.origin)
    enter(person)
    person.play(lambda seen: seen["kind"] == "tutorial")
    person.click("Start")
    person.key("1")
    before, told = person.seen["steps"], 0
    # six presses a second: those that cannot be taken are told, the others are steps
    person.tab.evaluate("document.querySelector('.notice').textContent = ''")
    for _ in range(6):
        person.tab.keyboard.press(" ")
        told += "Too fast" in person.tab.inner_text(".side .notice")
        person.tab.wait_for_timeout(160)
    person.tab.wait_for_timeout(700)
    taken = person.seen["steps"] - before
    assert told > 0
    assert 0 < taken < 6
    store = Store(server.folder, read_only=True)
    assert len(store.steps(1, 1)) == before + taken
    store.close()


# ---------------------------------------------------------------------- proxies


@pytest.mark.parametrize("kept", [True, False], ids=["prefix kept", "prefix taken off"])
def test_a_path_prefix_works_throughout(browser: Browser, serve: Any, kept: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve(SETTINGS, "--origin", f"http://127.0.0.1:{port}/lab/team")
    proxy = Line(server.port, 0.0, port, "" if kept else "/lab/team")
    person = Person(browser, f"http://127.0.0.1:{port}/lab/team{'' if kept else '/'}")
    enter(person)
    assert person.tab.url.endswith("/lab/team/")
    person.key("ArrowRight")
    cookies = person.tab.context.cookies()
    assert {cookie["path"] for cookie in cookies} == {"/lab/team/"}
    key = (server.folder / "researcher.key").read_text().strip()
    tab = person.tab.context.new_page()
    tab.goto(f"http://127.0.0.1:{port}/lab/team/researcher#key={key}")
    tab.wait_for_selector("#people tr")
    assert person.errors == []
    proxy.close()


# ---------------------------------------------------------------------- what is seen


@pytest.mark.parametrize("size", [WIDE, PHONE, LOW], ids=["wide", "phone", "low"])
def test_keys_stay_where_they_are_and_are_seen(
    browser: Browser, serve: Any, size: dict[str, int]
) -> None:
    server = serve(SETTINGS.replace("tiny", "paper").replace("cleanup", "movers"))
    person = Person(browser, server.origin, size)
    enter(person)
    person.play(lambda seen: seen["kind"] == "tutorial")
    person.click("Start")
    places = lambda: [  # noqa: E731
        person.tab.locator(f".keys .{name}").bounding_box()
        for name in ("up", "stay", "hold", "ask")
    ]
    asking = places()
    check_axe(person, "selector")
    person.key("1")
    acting = places()
    assert asking == acting
    person.key("ArrowUp")
    person.key("ArrowRight")  # a wall: why nothing happened is told, and nothing moves
    assert person.tab.inner_text(".why") != ""
    assert places() == acting
    for box in acting:
        assert 0 <= box["y"] <= box["y"] + box["height"] <= size["height"]
    # the board is over the keys, whole
    board = person.tab.locator(".drawing svg").bounding_box()
    if size is not WIDE:
        assert board["y"] + board["height"] <= acting[0]["y"]
    # while one must decide the map is as clear as before, and the present destination is marked
    person.key("d")
    assert person.tab.locator(".overlay .now").count() == 1
    assert "now: box 1" in person.tab.locator(".overlay .now").inner_text()
    style = person.tab.locator(".overlay").evaluate("e => getComputedStyle(e).backgroundColor")
    assert style == "rgba(0, 0, 0, 0)"
    check_axe(person, "selector with a destination")
    assert person.fits()


def test_languages_breaks_and_the_end(browser: Browser, serve: Any) -> None:
    server = serve(
        "languages = ['en', 'de']\ncompletion = {code = 'ABC'}\n"
        + SETTINGS.replace("max_steps = 30", "max_steps = 2")
    )
    server.folder.joinpath("consent.de.md").write_text(
        "# Bevor Sie anfangen\n\n|a|b|\n|-|-|\n|c|d|\n"
    )
    server.kill()
    folder = server.folder
    server = Process(folder, server.port)
    person = Person(browser, f"{server.origin}/?language=en", PHONE)
    person.tab.wait_for_selector("h1")
    check_axe(person, "consent")
    person.tab.locator(".languages select").select_option("de")
    person.tab.wait_for_selector("text=Bevor Sie anfangen")
    assert person.tab.locator("table td").count() == 2
    assert person.tab.get_attribute("html", "lang") == "de"
    check_axe(person, "consent in German")
    # a double click makes one participant
    person.tab.locator(".agree").dblclick()
    person.until(lambda seen: bool(seen))
    assert person.tab.inner_text("h1") == "Einführung: 1 von 13"
    person.tab.get_by_role("button", name="Pause oder aufhören").click()
    check_axe(person, "options")
    person.then(person.tab.get_by_role("button", name="Pause machen").click)
    assert person.tab.inner_text("h1") == "Sie machen Pause"
    check_axe(person, "break")
    person.tab.reload()
    person.tab.wait_for_selector("text=Sie machen Pause")
    person.until(lambda seen: seen["paused"])
    person.then(person.tab.get_by_role("button", name="Weitermachen").click)
    person.tab.get_by_role("button", name="Pause oder aufhören").click()
    person.tab.get_by_role("button", name="Nicht mehr teilnehmen").click()
    check_axe(person, "withdrawal")
    person.then(person.tab.get_by_role("button", name=re.compile("^Aufhören; was ich")).click)
    assert "Sie nehmen nicht mehr teil" in person.tab.inner_text("main")
    assert "ABC" not in person.tab.inner_text("main")
    check_axe(person, "end")
    assert person.errors == []
    store = Store(folder, read_only=True)
    assert len(list(store.people())) == 1
    store.close()
    # and one who has everything deleted
    other = Person(browser, server.origin)
    enter(other)
    other.tab.get_by_role("button", name="Pause or stop").click()
    other.tab.get_by_role("button", name="Stop taking part").click()
    other.tab.get_by_role("button", name=re.compile("delete everything")).click()
    other.tab.wait_for_selector("text=Everything is deleted")
    check_axe(other, "deleted")
    server.kill()


def test_the_next_person_at_a_shared_computer_begins_anew(browser: Browser, serve: Any) -> None:
    server = serve("shared_computer = true\n" + SETTINGS)
    person = Person(browser, server.origin)
    enter(person)
    person.key("ArrowRight")
    assert all(cookie["expires"] == -1 for cookie in person.tab.context.cookies())
    person.tab.reload()
    person.tab.wait_for_selector("text=Has someone begun")
    check_axe(person, "returned")
    person.tab.get_by_role("button", name="That was me").click()
    assert person.tab.inner_text("h1") == "Tutorial: 2 of 13"
    person.tab.reload()
    person.tab.get_by_role("button", name="I am new").click()
    person.tab.wait_for_selector("text=I agree")


def test_values_of_the_address_are_taken_and_leave_it(browser: Browser, serve: Any) -> None:
    server = serve("ids = ['PROLIFIC_PID']\nid_required = true\n" + SETTINGS)
    person = Person(browser, server.origin)
    person.tab.locator(".agree").click()
    person.tab.wait_for_selector("text=your number is missing")
    person = Person(browser, f"{server.origin}/?PROLIFIC_PID=5f0a&x=1")
    enter(person)
    assert person.tab.url == f"{server.origin}/"
    store = Store(server.folder, read_only=True)
    assert store.identities() == [(1, "PROLIFIC_PID", "5f0a")]
    store.close()


def test_two_who_wait_are_brought_together_and_one_leaves(browser: Browser, serve: Any) -> None:
    server = serve(
        "teammate = 'human'\npairing = 'arrival'\nwithout_partner = 'ai'\n"
        "limits = {partner = 1}\n" + SETTINGS
    )
    first, second = (Person(browser, server.origin, size) for size in (WIDE, PHONE))
    for person in (first, second):
        enter(person)
        assert "the page moves Rob" in person.tab.inner_text(".lesson")
        person.play(lambda seen: seen["kind"] == "tutorial")
        if person is first:
            assert "Waiting for another participant" in person.tab.inner_text("h1")
            person.tab.wait_for_selector("text=/waited [12] seconds/")
            check_axe(person, "waiting")
    for person in (first, second):
        person.until(lambda seen: seen["kind"] == "session")
    assert "Alice is another participant" in second.tab.inner_text(".panel")
    # both are drawn as persons
    first.tab.close()
    second.until(lambda seen: seen["robots"] == [True, False])
    assert "has left" in second.tab.inner_text(".panel")
    assert "You are Rob" in second.tab.inner_text(".panel")
    check_axe(second, "left alone")


# ---------------------------------------------------------------------- the researcher


def test_the_researcher_signs_in_once_and_sees_everything(browser: Browser, serve: Any) -> None:
    server = serve(
        SETTINGS.replace("[[tasks]]", "[[arms]]\nname = '<b>arm'\n[[tasks]]").replace(
            "max_steps", "opening_survey = 'opening_survey.toml'\nmax_steps"
        )
    )
    person = Person(browser, server.origin)
    person.enter()
    person.play(lambda seen: seen["kind"] == "tutorial")
    person.play(lambda seen: seen.get("steps", 0) < 2)
    key = (server.folder / "researcher.key").read_text().strip()
    asked: list[str] = []
    context = browser.new_context(viewport=WIDE)
    tab = context.new_page()
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{server.origin}/researcher")
    tab.get_by_label("The researcher's key").fill("wrong")
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_selector("text=This is not the key")
    assert Axe().run(tab).response["violations"] == []
    tab.goto("about:blank")
    tab.goto(f"{server.origin}/researcher#key={key}")
    tab.wait_for_selector("#people tr")
    # the key is in no address that was asked for, nor in the address bar
    assert not any(key in address for address in [*asked, tab.url])
    row = tab.inner_text("#people tr")
    for told in ("cleanup, session 1", "<b>arm", "here", "replay"):
        assert told in row
    assert Axe().run(tab).response["violations"] == []
    tab.get_by_role("button", name=re.compile("^answers of")).click()
    tab.wait_for_selector("dialog:has-text('every week')")
    tab.get_by_role("button", name="Close").click()
    # it is live: what happens now is seen without a reload
    steps = person.key(" ")["steps"] if person.seen["phase"] == "acting" else None
    if steps is not None:
        soon(tab, lambda: tab.locator("#people td").nth(2).inner_text() == str(steps))
    tab.get_by_role("link", name=re.compile("^replay of")).click()
    tab.wait_for_selector("#lanes svg")
    assert "bag 1" in tab.inner_html("#lanes")
    tab.go_back()
    # after another start the same cookie is good
    server.kill()
    again = Process(server.folder, server.port)
    tab.reload()
    tab.wait_for_selector("#people tr")
    soon(tab, lambda: "here" in tab.inner_text("#people tr"))
    tab.get_by_role("button", name=re.compile("^erase")).click()
    tab.get_by_role("button", name="Erase for good").click()
    person.tab.wait_for_selector("text=Everything is deleted")
    soon(tab, lambda: tab.locator("#people tr").count() == 0)
    again.kill()


def test_a_replay_shows_that_it_loads(browser: Browser, serve: Any) -> None:
    server = serve()
    person = Person(browser, server.origin)
    enter(person)
    person.play(lambda seen: seen["kind"] != "thanks", most=400)
    key = (server.folder / "researcher.key").read_text().strip()
    tab = browser.new_context(viewport=WIDE).new_page()
    tab.goto(f"{server.origin}/replay#key={key}")
    tab.wait_for_selector("#lanes svg")
    held: list[Any] = []
    tab.route(re.compile(r"/sessions/."), lambda route: held.append(route))
    tab.select_option("#session", index=1)
    soon(tab, lambda: tab.inner_text("#where") == "Loading …")
    assert tab.inner_html("#drawing") == ""
    assert tab.locator("#lanes svg").count() == 0
    assert tab.get_by_role("button", name="Play").is_disabled()
    while not held:
        tab.wait_for_timeout(10)
    held[0].continue_()
    tab.wait_for_selector("#lanes svg")
