"""The study page's server: who may do what, and what survives its death."""

import asyncio
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import anyio
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from study_load import load
from study_site import ROOT, SETTINGS, Page, Process, write_study
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed

from btil.cli import app
from btil.domains.gridworld.grid import STAY
from btil.study import server as server_module
from btil.study.live import LONGEST_ID, NOT_A_PARTICIPANT, REPLACED, LiveStudy, Writer
from btil.study.server import (
    BEAT,
    LARGEST_MESSAGE,
    Keyed,
    address_of,
    make_app,
    overview_routes,
    participant_routes,
)
from btil.study.settings import read_settings
from btil.study.store import Store

ADDRESS = address_of("127.0.0.1", 8000)
ORIGIN = {"origin": "http://127.0.0.1:8000"}
LIVE = "ws://127.0.0.1:8000/live"


class Site:
    """A study served in this process, and its participants' browsers."""

    def __init__(self, folder: Path, teammate: str = "ai") -> None:
        self.folder = folder
        settings = read_settings(folder / "study.toml", teammate)
        self.study = LiveStudy(Store(folder, seed=1, create=True), settings, folder)
        self.key = Keyed("key", ADDRESS, "a key")
        routes = participant_routes(self.study, ADDRESS, folder)
        routes += overview_routes(self.study, self.key)
        self.app = make_app(routes, ADDRESS)
        # One event loop for all browsers, as a server has.
        self.loop = TestClient(self.app).__enter__()

    def browser(self, enters: bool = True) -> TestClient:
        client = TestClient(self.app, base_url="http://127.0.0.1:8000")
        client.portal = self.loop.portal
        if enters:
            assert client.post("/enter", headers=ORIGIN).status_code == 204
        return client

    def close(self) -> None:
        self.loop.__exit__()
        self.study.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(write_study(tmp_path))
    yield made
    made.close()


@contextmanager
def live(browser: TestClient, **headers: str) -> Iterator[Any]:
    """A participant's socket, on which nobody waits for ever."""
    with browser.websocket_connect(LIVE, headers=ORIGIN | headers) as socket:

        async def receive() -> Any:
            with anyio.fail_after(20):
                return await socket._send_rx.receive()

        socket.receive = lambda: socket.portal.call(receive)
        yield socket


# ---------------------------------------------------------------------- a participant


def test_a_session_over_the_socket_is_on_disk_step_by_step(site: Site) -> None:
    with live(site.browser()) as socket:
        page = Page(socket)
        page.through_tutorial()
        assert page.seen["kind"] == "session"
        page.say("start")
        reader = Store(site.folder, read_only=True)
        while page.seen["phase"] != "over":
            page.step()
            # what is shown can be read by another process
            assert len(reader.steps(1, 1)) == page.seen["steps"]
            assert reader.episodes()[1, 1].step == page.seen["steps"]
        reader.close()
        page.say("next")
        assert page.seen["progress"]["label"].startswith("Cleanup, session 2")


def test_another_server_takes_up_where_the_first_one_was(tmp_path: Path) -> None:
    folder = write_study(tmp_path)
    first = Site(folder)
    browser = first.browser()
    with live(browser) as socket:
        page = Page(socket)
        page.through_tutorial()
        page.say("start")
        for _ in range(4):
            page.step()
        last = page.seen
    first.close()
    second = Site(folder)
    again = second.browser(enters=False)
    again.cookies = browser.cookies
    with live(again) as socket:
        assert Page(socket).seen == last
    second.close()


# ---------------------------------------------------------------------- who may do what


def test_without_a_valid_token_there_is_nothing(site: Site) -> None:
    stranger = site.browser(enters=False)
    name = f"btil_{site.study.name}"
    for token in (None, "", "x" * 43, "é", "0" * 10_000):
        if token is not None:
            stranger.cookies = {}
        cookie = {} if token is None else {"cookie": f"{name}={token}".encode()}
        with live(stranger, **cookie) as socket, pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_json()
        assert caught.value.code == NOT_A_PARTICIPANT


def test_tokens_are_long_and_differ_and_cookies_are_closed(site: Site) -> None:
    answers = [site.browser(enters=False).post("/enter", headers=ORIGIN) for _ in range(20)]
    cookies = [answer.headers["set-cookie"] for answer in answers]
    tokens = {re.match(r"btil_\w+=([\w-]+);", cookie)[1] for cookie in cookies}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 43  # 256 bits
    assert all("HttpOnly" in cookie and "samesite=strict" in cookie.lower() for cookie in cookies)


def test_participants_see_and_change_their_own_session_alone(site: Site) -> None:
    ann, ben = site.browser(), site.browser()
    with live(ann) as first, live(ben) as second:
        anns, bens = Page(first), Page(second)
        anns.through_tutorial()
        anns.say("start")
        before = site.study.view(2)
        # ben's page sends what would be right in ann's
        second.send_json({"turn": anns.seen["turn"], "do": "choose", "value": 0})
        assert "not up to date" in bens.receive()["notice"]
        assert site.study.view(2) == before
        assert anns.seen["phase"] == "selecting"
        assert site.study.view(1)["turn"] == anns.seen["turn"]


def test_a_token_is_void_once_its_owner_has_left(site: Site) -> None:
    browser = site.browser()
    token = dict(browser.cookies)
    with live(browser) as socket:
        Page(socket)
        assert browser.post("/leave", headers=ORIGIN).status_code == 204
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_json()
        assert caught.value.code == NOT_A_PARTICIPANT
    old = site.browser(enters=False)
    old.cookies = token
    with live(old) as socket, pytest.raises(WebSocketDisconnect):
        socket.receive_json()
    # and opens no other session: entering gives a new one
    old.post("/enter", headers=ORIGIN)
    assert len(site.study.overview()) == 2


def test_replayed_and_out_of_order_messages_change_nothing(site: Site) -> None:
    with live(site.browser()) as socket:
        page = Page(socket)
        page.through_tutorial()
        page.say("start")
        page.say("choose", value=0)
        old = {"turn": page.seen["turn"], "do": "press", "value": STAY}
        socket.send_json(old)
        after = page.receive()
        assert after["steps"] == 1
        for message in (old, old, {**old, "turn": "1-0-7-0"}, {**old, "turn": "2-0-0-0"}):
            socket.send_json(message)
            again = page.receive()
            assert "not up to date" in again["notice"]
            assert {**again, "notice": ""} == after


def test_illegal_actions_and_actions_while_selecting_are_refused(site: Site) -> None:
    with live(site.browser()) as socket:
        page = Page(socket)
        page.through_tutorial()
        assert "Start" in page.say("press", value=0)["notice"]
        page.say("start")
        assert page.seen["phase"] == "selecting"
        assert "destination first" in page.say("press", value=0)["notice"]
        assert "circled" in page.say("choose", value=4)["notice"]
        page.say("choose", value=1)
        assert "no such action" in page.say("press", value=6)["notice"]
        assert "circled in red" in page.say("press", value=5)["notice"]
        assert "not possible" in page.say("next")["notice"]
        assert "not possible" in page.say("answer", answers={})["notice"]
        assert "not possible" in page.say("join", code="ABCDEF")["notice"]
        assert page.seen["steps"] == 0


@pytest.mark.parametrize(
    "text", ["", "no json", "[" * 50_000, '{"do": "press"}', "null", '{"turn": NaN}', '"\\ud800"']
)
def test_what_is_no_message_is_answered_and_forgotten(site: Site, text: str) -> None:
    with live(site.browser()) as socket:
        page = Page(socket)
        socket.send_text(text)
        assert page.receive()["notice"] == "This message was not understood."
        socket.send_bytes(b"\x00\x01")
        assert page.receive()["notice"] == "This message was not understood."
        assert page.say("press", value=3)["lesson"]["at"] == 2


def test_of_two_tabs_the_newer_one_plays(site: Site) -> None:
    browser = site.browser()
    with live(browser) as old:
        page = Page(old)
        with live(browser) as new:
            newer = Page(new)
            assert newer.seen == page.seen
            old.send_json({"turn": page.seen["turn"], "do": "press", "value": 3})
            with pytest.raises(WebSocketDisconnect) as caught:
                old.receive_json()
            assert caught.value.code == REPLACED
            assert newer.say("press", value=3)["lesson"]["at"] == 2


def test_of_one_pages_attempts_the_last_one_plays_in_whatever_order(site: Site) -> None:
    browser = site.browser()
    address = f"{LIVE}?page=p&attempt="
    with browser.websocket_connect(f"{address}3", headers=ORIGIN) as last:
        page = Page(last)
        with (
            browser.websocket_connect(f"{address}2", headers=ORIGIN) as late,
            pytest.raises(WebSocketDisconnect) as caught,
        ):
            late.receive_json()
        assert caught.value.code == REPLACED
        assert page.say("press", value=3)["lesson"]["at"] == 2
        with browser.websocket_connect(f"{address}x", headers=ORIGIN) as odd:
            assert odd.receive()["code"] == REPLACED
        # another page takes over all the same
        with live(browser) as new:
            assert Page(new).seen["lesson"]["at"] == 2
            with pytest.raises(WebSocketDisconnect):
                last.receive_json()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8001", None])
def test_other_origins_are_turned_away(site: Site, origin: str | None) -> None:
    browser = site.browser()
    headers = {} if origin is None else {"origin": origin}
    with (
        pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)),
        browser.websocket_connect(LIVE, headers=headers),
    ):
        pass
    for path in ("/enter", "/leave"):
        assert browser.post(path, headers=headers).status_code == 403
    assert len(site.study.overview()) == 1
    assert browser.post("/enter", headers=ORIGIN).status_code == 204  # still a participant
    assert len(site.study.overview()) == 1


def test_other_hosts_are_turned_away(site: Site) -> None:
    answer = site.browser(enters=False).get("/", headers={"host": "evil.example"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/study.sqlite",
        "/static/",
        "/../study.toml",
        "/%2e%2e/study.toml",
        "/server.py",
        "/replay.html",
    ],
)
def test_nothing_but_the_pages_own_files_is_served(site: Site, path: str) -> None:
    assert site.browser().get(path).status_code == 404


def test_pages_keep_to_themselves(site: Site) -> None:
    browser = site.browser()
    for path in ("/", "/style.css", "/page.js", "/board.js", "/welcome", "/nowhere"):
        headers = browser.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for file in (ROOT / "btil" / "study" / "static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|\bon\w+=", text), file


def test_consent_is_markdown_without_html(tmp_path: Path) -> None:
    write_study(tmp_path)
    (tmp_path / "consent.md").write_text(
        "# Yes?\n<script>alert(1)</script> [x](javascript:alert(1))"
    )
    site = Site(tmp_path)
    text = site.browser(enters=False).get("/welcome").json()["consent"]
    assert "<h1>Yes?</h1>" in text
    assert "<script>" not in text
    assert "href" not in text
    site.close()


@pytest.mark.parametrize(
    ("asked", "preferred", "spoken"),
    [
        ("", "", "en"),
        ("", "de", "de"),
        ("", "de-CH, de;q=0.9, en;q=0.8", "de"),
        ("", "de-AT, en;q=0.8", "de"),
        ("", "fr-FR, de ; q=0.5", "de"),
        ("", "fr, it", "en"),
        ("en", "de", "en"),
        ("fr", "de", "de"),
    ],
)
def test_the_page_speaks_as_it_is_asked_to_or_as_the_browser_prefers(
    tmp_path: Path, asked: str, preferred: str, spoken: str
) -> None:
    title = SETTINGS.replace('title = "Tiny"', 'title = {en = "Tiny", de = "Klein"}')
    site = Site(write_study(tmp_path, "languages = ['en', 'de']\n" + title))
    browser = site.browser(enters=False)
    headers = {"accept-language": preferred}
    seen = browser.get("/welcome", params={"language": asked}, headers=headers).json()
    assert (seen["language"], seen["study"]) == {"en": ("en", "Tiny"), "de": ("de", "Klein")}[
        spoken
    ]
    assert [one["name"] for one in seen["languages"]] == ["English", "Deutsch"]
    assert browser.get(f"/texts/{spoken}").json()["language_code"] == spoken
    assert browser.get("/texts/fr").status_code == 404
    site.close()


def test_the_researchers_page_needs_the_key(site: Site) -> None:
    browser = site.browser()
    for path in ("/researcher", "/researcher/data", "/researcher?key=a+key"):
        assert browser.get(path).status_code == 403
    for key, status in (("wrong", 403), ("", 403), ("é", 403), ("a key", 204)):
        answer = browser.post("/signin", json={"key": key}, headers=ORIGIN)
        assert answer.status_code == status
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite" in answer.headers["set-cookie"].lower()
    assert "a key" not in answer.headers["set-cookie"]
    assert browser.get("/researcher").status_code == 200
    (person,) = browser.get("/researcher/data").json()["people"]
    assert (person["stage"], person["at"], person["of"]) == ("tutorial", 1, 4)
    # a participant's token is no key
    other = site.browser()
    assert other.get("/researcher/data").status_code == 403


def test_a_full_study_takes_nobody_more(tmp_path: Path) -> None:
    site = Site(write_study(tmp_path, "most_participants = 1\n" + SETTINGS))
    site.browser()
    answer = site.browser(enters=False).post("/enter", headers=ORIGIN)
    assert (answer.status_code, list(answer.cookies)) == (409, [])
    site.close()


def test_every_step_of_every_participant_has_chances_of_its_own(site: Site) -> None:
    site.browser()
    site.browser()
    study = site.study
    first, second = study._people.values()
    later = first._replace(journey=first.journey._replace(position=first.journey.position + 1))
    chances = [study._chance(one, k) for one in (first, second, later) for k in range(3)]
    assert len(np.unique(chances)) == np.size(chances)
    # The same, whoever asks and however often.
    assert np.array_equal(study._chance(second, 2), chances[5])


def test_what_cannot_be_saved_is_not_shown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise sqlite3.OperationalError("disk full")

    with live(site.browser()) as socket:
        page = Page(socket)
        with monkeypatch.context() as patch:
            patch.setattr(site.study._store, "write", fail)
            seen = page.say("press", value=3)
            assert "could not be saved" in seen["notice"]
            assert seen["lesson"]["at"] == 1
        assert page.say("press", value=3)["lesson"]["at"] == 2


def test_one_that_cannot_be_written_does_not_harm_others(tmp_path: Path) -> None:

    store = Store(tmp_path, create=True)

    async def write() -> list[Any]:
        writer = Writer(store)
        good = ("INSERT INTO study VALUES (?, ?)", ("a", "1"))
        other = ("INSERT INTO study VALUES (?, ?)", ("b", "2"))
        clash = ("INSERT INTO study VALUES (?, ?)", ("seed", "3"))
        tasks = [writer.commit([one]) for one in (good, clash, other)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
        return results

    first, second, third = asyncio.run(write())
    assert (first, third) == (None, None)
    assert isinstance(second, sqlite3.IntegrityError)
    found = dict(store._connection.execute("SELECT name, value FROM study"))
    assert (found["a"], found["b"]) == ("1", "2")
    assert found["seed"] != "3"
    store.close()


@pytest.mark.parametrize("command", ["export", "replay"])
def test_help_of_the_commands_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["collect", command, "--help"])
    assert result.exit_code == 0
    assert f"      btil collect {command}" in result.stdout
    assert "--debug" in result.stdout
    assert "\b" not in result.stdout


def test_surveys_that_are_still_needed_are_missed_at_the_start(tmp_path: Path) -> None:
    with_survey = "opening_survey = 'opening_survey.toml'\n" + SETTINGS
    site = Site(write_study(tmp_path, with_survey))
    site.browser()
    site.close()
    again = Site(write_study(tmp_path))
    with pytest.raises(ValueError, match=r"no opening survey.*: 1"):
        again.study.prepare()
    again.close()


def test_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, says: str) -> None:
        result = CliRunner().invoke(app, ["collect", *map(str, arguments)])
        assert result.exit_code == 2, result.output
        last = result.stderr.splitlines()[-1]
        assert last.startswith("error: ")
        assert says in last

    refused(says="--out STUDY is missing")
    refused("--out", tmp_path / "s", "--teammate", "cat", says="allowed are ai, human")
    refused("--out", tmp_path / "s", "--host", "0.0.0.0", "--port", 0, says="--origin must say")
    refused("export", tmp_path, "--out", tmp_path / "d.csv", says="no study")
    refused("export", tmp_path, "--out", tmp_path / "d.txt", says="ending")
    refused("replay", tmp_path / "none", "--port", 0, says="no study")
    (tmp_path / "s" / "study.toml").write_text("title = 'no tasks'")
    refused("--out", tmp_path / "s", says="tasks")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (["--out", tmp_path / "s"], ["replay", tmp_path]):
        refused(*command, says="pip install 'btil[study]'")


@pytest.mark.parametrize(
    ("host", "port", "origin", "hosts", "url"),
    [
        ("127.0.0.1", 82, None, ("127.0.0.1", "localhost", "[::1]"), "http://127.0.0.1:82"),
        # Browsers tell no port that goes without saying, and hosts in small letters.
        ("::1", 80, None, ("127.0.0.1", "localhost", "[::1]"), "http://[::1]"),
        ("Lab", 80, None, ("lab",), "http://lab"),
        ("0.0.0.0", 80, "https://A.org:443/t", ("a.org",), "https://a.org/t"),
        ("0.0.0.0", 80, "http://[::1]:443", ("[::1]",), "http://[::1]:443"),
        ("10.0.0.5", 81, None, ("10.0.0.5",), "http://10.0.0.5:81"),
        ("0.0.0.0", 80, "https://a.org/", ("a.org",), "https://a.org"),
    ],
)
def test_addresses(host, port, origin, hosts, url) -> None:
    address = address_of(host, port, origin)
    assert (address.hosts, address.url) == (hosts, url)
    assert address.url.removesuffix(address.prefix) in address.origins


def test_addresses_that_will_not_do() -> None:
    with pytest.raises(ValueError, match="--origin must say"):
        address_of("0.0.0.0", 80)
    for wrong in (
        "a.org", "ftp://a.org", "https://a.org/../x", "https://a.org/?x", "https://",
        "https://a.org:x", "https://a.org:99999", "https://me@a.org",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="--origin is"):
            address_of("0.0.0.0", 80, wrong)


# ---------------------------------------------------------------------- two people


def pair(site: Site, first: Any, second: Any) -> tuple[Page, Page]:
    ann, ben = Page(first), Page(second)
    for page in (ann, ben):
        page.through_tutorial()
    code = ann.say("host")["code"]
    assert re.fullmatch(r"[A-Z2-9]{6}", code)
    assert "no partner" in ben.say("join", code="AAAAAA")["notice"]
    assert "your own" in ann.say("join", code=code)["notice"]
    ben.say("join", code=f" {code.lower()} ")
    ann.receive()
    return ann, ben


def test_two_people_share_a_session_and_step_together(tmp_path: Path) -> None:
    site = Site(write_study(tmp_path), "human")
    with live(site.browser()) as first, live(site.browser()) as second:
        ann, ben = pair(site, first, second)
        assert (ann.seen["you"], ben.seen["you"]) == (0, 1)
        ann.say("start")
        assert ann.seen["phase"] == "waiting"
        ben.receive()
        ben.say("start")
        ann.receive()
        assert ann.seen["phase"] == ben.seen["phase"] == "selecting"
        ann.say("choose", value=0)
        ben.receive()
        ben.say("choose", value=1)
        ann.receive()
        assert ann.seen["destination"]["latent"] == 0
        assert ben.seen["destination"]["latent"] == 1
        ann.say("press", value=STAY)
        assert (ann.seen["phase"], ann.seen["steps"]) == ("acted", 0)
        assert "Wait" in ann.say("press", value=STAY)["notice"]
        ben.receive()
        ben.say("press", value=STAY)
        ann.receive()
        assert ann.seen["steps"] == ben.seen["steps"] == 1
        second.close()
        assert ann.receive()["partner_here"] is False
    site.close()
    store = Store(tmp_path)
    alice, rob = store.people()
    (row,) = store.steps(alice.game, 2)
    assert (row.actions, row.latents, row.answered) == ((4, 4), (0, 1), (True, True))
    assert (alice.game, alice.seat, rob.seat) == (rob.game, 0, 1)
    store.close()


def test_codes_cannot_be_guessed_without_end(tmp_path: Path) -> None:
    site = Site(write_study(tmp_path), "human")
    with live(site.browser()) as socket:
        page = Page(socket)
        page.through_tutorial()
        for _ in range(30):
            page.say("join", code="AAAAAA")
        assert "Too many" in page.say("join", code="AAAAAB")["notice"]
    site.close()


# ---------------------------------------------------------------------- death


@pytest.fixture
def process() -> Iterator[Any]:
    """Starts servers, and ends them."""
    started: list[Process] = []

    def start(folder: Path, port: int = 0) -> Process:
        started.append(Process(folder, port))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_a_killed_server_loses_at_most_the_press_in_flight(tmp_path: Path, process: Any) -> None:
    # Rob alone gets nowhere in this task: the session does not end by itself.
    longer = SETTINGS.replace("max_steps = 30", "max_steps = 1000").replace("cleanup", "movers")
    folder = write_study(tmp_path, longer)
    server = process(folder)
    cookie = server.enter()
    with server.page(cookie) as page:
        page.through_tutorial()
        page.say("start")

    def waits(seen: dict[str, Any]) -> dict[str, Any]:
        if seen["phase"] == "selecting":
            return {"do": "choose", "value": seen["options"][0]["latent"]}
        return {"do": "press", "value": STAY}

    for _ in range(2):
        with server.page(cookie) as page:
            for _ in range(20):
                page.say(**waits(page.seen))
            before = page.seen
            message = waits(before)
            page.socket.send_json({"turn": before["turn"], **message})
            server.kill()
        server = process(folder, server.port)
        with server.page(cookie) as page:
            after = page.seen
        # the message in flight came through or not, and nothing else happened
        through = after["turn"] != before["turn"]
        assert after["steps"] - before["steps"] == (through and message["do"] == "press")
        reader = Store(folder, read_only=True)
        assert [row.step for row in reader.steps(1, 1)] == list(range(after["steps"]))
        reader.close()
    # two servers of one study would not know of each other
    other = CliRunner().invoke(app, ["collect", "--out", str(folder), "--port", "0"])
    assert other.exit_code == 2
    assert "being served already" in other.stderr


def test_many_at_once_and_a_kill_lose_and_double_nothing(tmp_path: Path) -> None:
    # benchmarks/study_load.py does the same with fifty for two minutes
    made = asyncio.run(load(tmp_path, participants=5, seconds=4, rate=3, kills=1, map="tiny"))
    assert made.wrong == []
    assert made.kills == 1
    # steps that were taken before the kill and after it
    assert made.steps > 5 * 4 * 3 / 2


def test_messages_have_a_largest_size_and_an_interrupt_ends_the_server(
    tmp_path: Path, process: Any
) -> None:
    server = process(write_study(tmp_path))
    with server.page(server.enter()) as page:
        page.socket.send(" " * (LARGEST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as caught:
            page.receive()
        assert caught.value.rcvd.code == 1009
    with server.page(server.enter()):
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=20) in (0, 130, -signal.SIGINT)


# ---------------------------------------------------------------------- addresses and keys


def test_a_prefix_is_taken_off_where_a_proxy_has_left_it(tmp_path: Path) -> None:
    address = address_of("127.0.0.1", 8000, "https://lab.example.org/lab/team/")
    assert (address.prefix, address.cookie_path) == ("/lab/team", "/lab/team/")
    site = Site(write_study(tmp_path))
    app = make_app(participant_routes(site.study, address), address)
    client = TestClient(app, base_url="https://lab.example.org")
    for path in ("/lab/team/", "/lab/team/page.js", "/", "/page.js"):
        assert client.get(path).status_code == 200
    for path in ("/lab/teams/", "/lab/team/lab/team/", "/lab/team//page.js"):
        assert client.get(path).status_code == 404
    answer = client.get("/lab/team", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, "/lab/team/")
    entered = client.post("/lab/team/enter", headers={"origin": "https://lab.example.org"})
    cookie = entered.headers["set-cookie"].lower()
    assert "path=/lab/team/;" in cookie
    assert "secure" in cookie
    site.close()


def test_wrong_keys_are_limited(site: Site) -> None:
    browser = site.browser(enters=False)
    for _ in range(10):
        assert browser.post("/signin", json={"key": "x"}, headers=ORIGIN).status_code == 403
    assert browser.post("/signin", json={"key": "a key"}, headers=ORIGIN).status_code == 429
    assert browser.get("/researcher").status_code == 403


def test_keys_come_from_the_page_and_are_small(site: Site) -> None:
    browser = site.browser(enters=False)
    assert browser.post("/signin", json={"key": "a key"}).status_code == 403
    for body in (b"{" + b" " * 20_000, b"[1]", b"[" * 9000, b"\xff"):
        answer = browser.post("/signin", content=body, headers=ORIGIN)
        assert (answer.status_code, "set-cookie" in answer.headers) == (400, False)
    for path in ("/enter", "/enter/"):
        answer = browser.post(path, content=b"[" * 9000, headers=ORIGIN, follow_redirects=False)
        assert answer.status_code in (400, 307)
    assert len(site.study.overview()) == 0


def test_pictures_are_served_by_their_names_alone(tmp_path: Path) -> None:
    write_study(tmp_path)
    images = tmp_path / "images"
    images.mkdir()
    (images / "a b.png").write_bytes(b"picture")
    (images / "page.html").write_text("<script>alert(1)</script>")
    (images / "drawing.svg").write_text("<svg/>")
    (tmp_path / "consent.md").write_text("![room](images/a%20b.png)\n\n|a|\n|-|\n|<b>|\n")
    site = Site(tmp_path)
    browser = site.browser(enters=False)
    answer = browser.get("/images/a%20b.png")
    assert (answer.content, answer.headers["content-type"]) == (b"picture", "image/png")
    for path in ("page.html", "drawing.svg", "../study.toml", "..%2fstudy.toml", "%2e%2e/x", ""):
        assert browser.get(f"/images/{path}").status_code == 404
    consent = browser.get("/welcome").json()["consent"]
    assert '<img src="images/a%20b.png" alt="room"' in consent
    assert "<td>&lt;b&gt;</td>" in consent
    site.close()


def test_erasing_needs_the_key_and_the_page(site: Site) -> None:
    browser = site.browser()
    number = site.study.overview()[0]["number"]
    other = site.browser(enters=False)
    assert other.post("/researcher/erase", json={"number": number}).status_code == 403
    assert other.get("/researcher/answers/1").status_code == 403
    assert browser.post("/signin", json={"key": "a key"}, headers=ORIGIN).status_code == 204
    assert browser.post("/researcher/erase", json={"number": number}).status_code == 403
    for wrong in ({}, {"number": 7}, {"number": None}):
        answer = browser.post("/researcher/erase", json=wrong, headers=ORIGIN)
        assert answer.status_code == 400
    answer = browser.post("/researcher/erase", json={"number": number}, headers=ORIGIN)
    assert answer.status_code == 204
    assert site.study.overview() == []


def test_a_beat_is_answered_and_changes_nothing(site: Site) -> None:
    with live(site.browser()) as socket:
        page = Page(socket)
        socket.send_text(BEAT)
        assert socket.receive()["text"] == BEAT
        assert page.say("press", value=3)["lesson"]["at"] == 2


def test_what_a_proxy_says_is_believed_only_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: configured.append(self.config))
    for forwarded in (None, "127.0.0.1"):
        folder = tmp_path / str(forwarded)
        options = [] if forwarded is None else ["--forwarded", forwarded]
        write_study(folder)
        result = CliRunner().invoke(
            app, ["collect", "--out", str(folder), "--port", "0", "--quiet", *options]
        )
        assert result.exit_code == 0, result.output
        assert result.output == ""
    assert [one.proxy_headers for one in configured] == [False, True]
    assert configured[1].forwarded_allow_ips == "127.0.0.1"
    # and the key that --quiet did not tell can be asked for
    shown = CliRunner().invoke(app, ["collect", "key", str(tmp_path / "None")])
    assert len(shown.stdout.strip()) == 32


# ---------------------------------------------------------------------- small parts


def test_values_of_the_address_are_kept_short_and_printable() -> None:
    assert server_module._plain("ab\x00\n\u202ec é") == "abc é"
    assert server_module._plain(3) == server_module._plain(None) == ""
    assert len(server_module._plain("x" * 10_000)) == LONGEST_ID


def test_a_moment_that_fails_does_not_stop_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_TICK", 0.001)
    moments: list[int] = []

    def tick() -> None:
        moments.append(len(moments))
        if len(moments) == 2:
            raise RuntimeError("of this moment")

    study = create_autospec(LiveStudy, instance=True)
    study.tick.side_effect = tick

    async def live() -> None:
        lifespan = server_module.ticking(study)
        async with lifespan(create_autospec(Starlette)):
            while len(moments) < 4:
                await asyncio.sleep(0.001)
        number = len(moments)
        await asyncio.sleep(0.01)
        assert len(moments) == number  # it ends with the server

    asyncio.run(asyncio.wait_for(live(), 10))
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("function", "words", "given"),
    [
        (
            "btil.study.export.export_study",
            "export S --out d.csv",
            ("S", "d.csv", None, False, False, False, None, None, None, None, None),
        ),
        (
            "btil.study.export.export_study",
            "export S -o d.npz --domain cleanup --practice --unfinished --derived --surveys a.csv "
            "--steps b.csv --tables t --identities c.csv --participant 012345",
            ("S", "d.npz", "cleanup", True, True, True, "a.csv", "b.csv", "t", "c.csv", "012345"),
        ),
        ("btil.study.keeping.erase", "erase S 000012", ("S", "000012")),
        ("btil.study.keeping.back_up", "backup S --out c", ("S", "c", True)),
        ("btil.study.keeping.back_up", "backup S -o c --no-identities", ("S", "c", False)),
        ("btil.study.keeping.key_of", "key S", ("S",)),
        (
            "btil.study.replay.serve_replay",
            "replay S --posterior a.nc --posterior b.nc --host 0.0.0.0 --port 9",
            ("S", ["a.nc", "b.nc"], "0.0.0.0", 9),
        ),
        ("btil.study.replay.serve_replay", "replay S", ("S", [], "127.0.0.1", 8001)),
        (
            "btil.study.serving.collect",
            "--out S",
            ("S", "127.0.0.1", 8000, None, None, None, None),
        ),
        (
            "btil.study.serving.collect",
            "-o S --host ::1 --port 7 --teammate human --origin https://a.b --forwarded 10.0.0.1 "
            "--seed 3",
            ("S", "::1", 7, "human", "https://a.b", "10.0.0.1", 3),
        ),
    ],
)
def test_options_of_the_commands_go_where_they_belong(
    function: str, words: str, given: tuple[Any, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[Any, ...]] = []
    answers = {"export_study": [(Path("d.csv"), "a summary"), (Path("a b.csv"), None)], "erase": 4}

    def called(*arguments: Any) -> Any:
        asked.append(arguments)
        return answers.get(function.rpartition(".")[2], "told")

    monkeypatch.setattr(function, called)
    result = CliRunner().invoke(app, ["collect", *words.split()])
    assert result.exit_code == 0, result.output
    (arguments,) = asked
    # Those that serve are given a way to speak, too.
    plain = [arguments[k] for k in range(len(given))]
    assert tuple(
        [str(one) for one in value] if isinstance(value, list)
        else str(value) if isinstance(value, Path) else value
        for value in plain
    ) == given  # fmt: skip
    if function.endswith("export_study"):
        assert result.stdout == "a summary\nsaved d.csv\n\nsaved 'a b.csv'\n\n"
    elif function.endswith(".erase"):
        assert result.stdout == "erased participant 000012, with sessions: 4\n"
    elif function.endswith("key_of"):
        assert result.stdout == "told\n"
    elif function.endswith("back_up"):
        assert result.stdout == "saved c\n"
    else:
        arguments[-1]("spoken")
        assert len(arguments) == len(given) + 1
