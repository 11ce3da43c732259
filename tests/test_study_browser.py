"""The study page in a real browser: tutorial, sessions played to their end, selector, two people.

Needs Chromium (Debian: apt install chromium). Without one, these tests are left out, and the end of
the run says so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from study_player import decide
from study_site import BROWSER, PHONE, WIDE, Person, Process, open_browser, write_study

from btil.study.store import Store

if BROWSER is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

SETTINGS = """
title = "Working as a team"
consent = "consent.md"
thanks = "thanks.md"
opening_survey = "opening_survey.toml"
max_steps = 60
[[tasks]]
domain = "movers"
map = "tiny"
sessions = 1
practice = 0
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 2
practice = 1
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = write_study(tmp_path_factory.mktemp("browser"), SETTINGS)
    started = Process(folder, 0, "--seed", "5")
    started.folder = folder
    yield started
    started.kill()


def assert_accessible(person: Person, where: str) -> None:
    found = Axe().run(person.tab)
    serious = [
        (one["id"], one["nodes"][0]["html"])
        for one in found.response["violations"]
        if one["impact"] in ("moderate", "serious", "critical")
    ]
    assert serious == [], where


def test_whole_study_by_keyboard_alone(browser: Browser, server: Process) -> None:
    person = Person(browser, server.origin)
    person.tab.wait_for_selector("h1")
    person.tab_to("I agree")
    person.tab.keyboard.press("Enter")
    person.until(lambda seen: seen["kind"] == "survey")
    # a new page is read out from its heading on
    assert person.tab.evaluate("document.activeElement.textContent") == "About you"
    person.tab_to("How old are you?")
    person.tab.keyboard.type("33")
    person.tab_to("never")
    person.tab.keyboard.press("Space")
    person.tab_to("Continue")
    person.key("Enter")
    assert person.seen["kind"] == "tutorial"
    person.play(lambda seen: seen["kind"] == "tutorial")
    lengths = {}
    for position in (2, 4, 5):
        # each task has a tutorial before its first session
        person.play(lambda seen: seen["kind"] == "tutorial")
        person.play(lambda seen: seen["phase"] != "over")
        assert person.seen["finished"], person.seen
        lengths[position] = person.seen["steps"]
        text = person.tab.inner_text("main")
        assert f"It took the two of you {person.seen['steps']} steps" in text
        assert f"your best: {person.seen['best']}" in text
        person.do({"do": "next"})
    assert person.seen["kind"] == "thanks"
    assert "Thank you" in person.tab.inner_text("main")
    assert person.errors == []

    store = Store(server.folder, read_only=True)
    participant = max(one.participant for one in store.people())
    assert {k: len(store.steps(participant, k)) for k in lengths} == lengths
    assert (participant, "opening", "age", "33") in store.answers()
    store.close()

    # on a shared computer the next participant begins at the beginning
    person.tab.get_by_role("button", name="next participant").click()
    person.tab.wait_for_selector("text=I agree")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_selector_rules_as_they_are_seen(
    browser: Browser, server: Process, size: dict[str, int]
) -> None:
    person = Person(browser, server.origin, size)
    person.enter()
    person.play(lambda seen: seen["kind"] == "tutorial", by_keys=False)
    tab = person.tab
    overlay, ring = tab.locator(".overlay"), tab.locator(".destination")
    keys = tab.locator(".keys button")
    assert not overlay.is_visible()
    person.click("Start")
    assert overlay.is_visible()
    assert all(not keys.nth(k).is_enabled() for k in range(keys.count()))
    assert ring.count() == 0
    # keys that play do nothing while it is open; arrows move among the circles
    before = person.seen
    for key in ("Enter", " ", "ArrowDown", "d"):
        tab.keyboard.press(key)
    tab.wait_for_timeout(150)
    assert person.seen is before
    assert tab.evaluate("document.activeElement.dataset.latent") == "0"
    person.key("Enter")
    assert not overlay.is_visible()
    assert ring.count() == 1
    box, drawing = ring.bounding_box(), tab.locator(".drawing svg").bounding_box()
    x, y = person.seen["destination"]["at"]
    centre = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert centre[0] == pytest.approx(drawing["x"] + (x + 0.5) / 3 * drawing["width"], abs=3)
    assert centre[1] == pytest.approx(drawing["y"] + (y + 0.5) / 3 * drawing["height"], abs=3)
    # picking up works there alone
    hold = tab.get_by_role("button", name="Pick up / put down")
    assert not hold.is_enabled()
    tab.keyboard.press("Enter")
    assert "circled in red" in tab.inner_text(".side .notice")
    # after five steps it is asked for again, and on request; a key held down is one press
    person.then(lambda: tab.keyboard.down(" "))
    for _ in range(3):
        tab.keyboard.down(" ")
    tab.keyboard.up(" ")
    tab.wait_for_timeout(150)
    for step in range(1, 5):
        assert person.seen["steps"] == step
        assert not overlay.is_visible()
        person.click("Stay")
    assert overlay.is_visible()
    name = f"{person.seen['options'][1]['label']} (key 2)"
    person.click(name)
    assert person.seen["destination"]["latent"] == 1
    person.click("Select destination")
    assert overlay.is_visible()
    assert person.errors == []

    # leaving in the middle and coming back
    shown = person.seen
    person.then(tab.reload)
    tab.wait_for_selector(".overlay", state="visible")
    assert person.seen == shown
    # a second tab takes over, and the first says so
    other = tab.context.new_page()
    other.goto(server.origin)
    other.wait_for_selector(".board")
    tab.wait_for_selector("text=open in another tab")
    tab.get_by_role("button", name="go on here").click()
    tab.wait_for_selector(".board")
    other.wait_for_selector("text=open in another tab")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_pages_are_accessible_and_fit(
    browser: Browser, server: Process, size: dict[str, int]
) -> None:
    person = Person(browser, server.origin, size)
    person.tab.wait_for_selector("h1")

    def check(where: str) -> None:
        assert_accessible(person, where)
        assert person.fits(), where

    check("consent")
    person.tab.get_by_role("button", name="I agree and want to take part").click()
    person.until(lambda seen: seen["kind"] == "survey")
    check("survey")
    person.tab.get_by_label("never").check()
    person.click("Continue")
    check("tutorial")
    person.play(lambda seen: seen["kind"] == "tutorial")
    check("start of a session")
    person.click("Start")
    check("selector")
    person.key("1")
    check("play")
    person.play(lambda seen: seen["phase"] != "over")
    check("end of a session")
    person.tab.wait_for_timeout(50)
    assert person.errors == []


def test_texts_of_surveys_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    folder = write_study(tmp_path, SETTINGS)
    evil = "<img src=x onerror=alert(1)><b>bold</b>"
    (folder / "opening_survey.toml").write_text(
        f"""
title = "{evil} title"
[[questions]]
name = "games"
text = "{evil} text"
kind = "choice"
options = ["{evil} one", "every week"]
[[questions]]
name = "word"
text = "word"
required = true
"""
    )
    server = Process(folder)
    person = Person(browser, server.origin)
    person.tab.get_by_role("button", name="I agree and want to take part").click()
    person.until(lambda seen: seen["kind"] == "survey")
    assert person.tab.inner_text("h1") == f"{evil} title"
    assert person.tab.locator("main img, main b").count() == 0
    person.answer({"games": "every week", "word": evil})
    assert person.seen["kind"] == "tutorial"
    assert person.errors == []
    server.kill()
    store = Store(folder, read_only=True)
    assert (1, "opening", "word", evil) in store.answers()
    store.close()


def test_a_lost_server_is_found_again(browser: Browser, tmp_path: Path) -> None:
    folder = write_study(tmp_path, SETTINGS)
    first = Process(folder)
    person = Person(browser, first.origin)
    person.enter()
    person.key("ArrowRight")
    person.key("ArrowUp")
    first.kill()
    person.tab.wait_for_selector("text=connection is lost")
    shown = person.seen
    second = Process(folder, first.port)
    person.until(lambda seen: seen is not shown)
    assert person.seen == shown
    assert person.key("ArrowDown")["lesson"]["at"] == 4
    person.tab.wait_for_selector("#connection", state="attached")
    assert person.tab.inner_text("#connection") == ""
    second.kill()


def test_two_people_play_each_other(browser: Browser, tmp_path: Path) -> None:
    one_session = SETTINGS.replace("sessions = 2", "sessions = 1")
    server = Process(write_study(tmp_path, one_session), 0, "--teammate", "human")
    alice, rob = (Person(browser, server.origin, size) for size in (WIDE, PHONE))
    for person in (alice, rob):
        person.enter()
        person.play(lambda seen: seen["kind"] == "tutorial")
        assert_accessible(person, "pairing")
    alice.click("Get a code")
    code = alice.tab.inner_text(".code")
    rob.tab.get_by_label("Your partner's code").fill(code.lower())
    rob.click("Join")
    alice.until(lambda seen: seen["kind"] == "session")
    assert (alice.seen["you"], rob.seen["you"]) == (0, 1)
    alice.click("Start")
    assert "Waiting for Rob to start" in alice.tab.inner_text(".state")
    rob.click("Start")
    alice.until(lambda seen: seen["phase"] == "selecting")

    def settled() -> bool:
        """Both pages show the same step."""
        alice.tab.wait_for_timeout(5)
        rob.tab.wait_for_timeout(5)
        return alice.seen["steps"] == rob.seen["steps"]

    for _ in range(200):
        while not settled():
            pass
        if alice.seen["phase"] == "over":
            break
        for person in (alice, rob):
            act = decide(person.seen, person.generator)
            if act:
                if act["do"] == "choose":
                    # they agree to carry the same one
                    act["value"] = person.seen["options"][-1]["latent"]
                person.do(act)
    assert alice.seen["phase"] == rob.seen["phase"] == "over"
    assert alice.seen["finished"]
    assert alice.seen["board"] == rob.seen["board"]
    rob.tab.close()
    alice.until(lambda seen: seen["partner_here"] is False)
    server.kill()
    store = Store(tmp_path)
    steps = store.steps(next(store.people()).game, 3)
    assert len(steps) == alice.seen["steps"]
    assert min(min(row.latents) for row in steps) >= 0
    store.close()
