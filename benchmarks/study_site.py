"""What tests and benchmarks of the study page share: its server, and participants who use it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from study_player import decide

from btil.study.server import BEAT
from btil.study.settings import write_defaults

ROOT = Path(__file__).resolve().parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# The browser to test with: named by the environment, or found.
BROWSER = os.environ.get("BTIL_BROWSER") or next(filter(None, map(shutil.which, _BROWSERS)), None)
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LOW = {"width": 390, "height": 664}  # a phone with the bars of its browser
KEYS = ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", " ", "Enter")
BUTTONS = ("Up", "Down", "Left", "Right", "Stay", "Pick up / put down")
SETTINGS = """
title = "Tiny"
consent = "consent.md"
thanks = "thanks.md"
max_steps = 30
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 2
practice = 0
"""


def write_study(folder: Path, settings: str = SETTINGS) -> Path:
    """A study's folder, with these settings and the default texts and surveys."""
    write_defaults(folder)
    (folder / "study.toml").write_text(settings)
    return folder


class Page:
    """What a participant's page does, over a socket."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.generator = np.random.default_rng(0)
        self.seen = self.receive()

    def receive(self) -> dict[str, Any]:
        """What the page is to show next."""
        self.seen = self.socket.receive_json()
        return self.seen

    def say(self, do: str, **fields: Any) -> dict[str, Any]:
        """Ask for something; what the page shows then."""
        self.socket.send_json({"turn": self.seen["turn"], "do": do, **fields})
        return self.receive()

    def step(self) -> dict[str, Any]:
        """What a simulated participant would do now."""
        return self.say(**decide(self.seen, self.generator))

    def through_tutorial(self) -> None:
        """Do every lesson."""
        while self.seen["kind"] == "tutorial":
            self.step()


class Process:
    """`btil collect` as a process of its own."""

    def __init__(self, folder: Path, port: int = 0, *options: str) -> None:
        command = ["-m", "btil", "collect", "--out", folder, "--port", port, *options]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if line.startswith("stop with"):
                break
        found = re.search(r"https?://[\w.]+:(\d+)\S*/$", "".join(lines), re.MULTILINE)
        assert found, lines
        # Behind a proxy, what it tells is the proxy's port.
        self.port = port or int(found[1])
        self.origin = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()

    def enter(self) -> str:
        """A new participant's cookie."""
        import httpx2

        answer = httpx2.post(f"{self.origin}/enter", headers={"origin": self.origin})
        return "; ".join(f"{name}={value}" for name, value in answer.cookies.items())

    @contextmanager
    def page(self, cookie: str) -> Iterator[Page]:
        """A participant's page."""
        from websockets.sync.client import connect

        address = f"ws://127.0.0.1:{self.port}/live"
        headers = {"cookie": cookie}
        with connect(address, origin=self.origin, additional_headers=headers) as socket:
            socket.send_json = lambda value: socket.send(json.dumps(value))
            socket.receive_json = lambda: json.loads(socket.recv(timeout=20))
            yield Page(socket)


@contextmanager
def open_browser() -> Iterator[Any]:
    """The browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container there is no user whom the sandbox could protect.
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


class Person:
    """Somebody at a browser, who sees what the page shows and uses keys or buttons.

    What the server said last is read along the way, so that a simulated participant can decide;
    everything is done with keys or the mouse.
    """

    def __init__(self, browser: Any, origin: str, size: dict[str, int] = WIDE) -> None:
        self.tab = browser.new_context(viewport=size).new_page()
        self.errors: list[str] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._note_console)
        self.tab.on("websocket", self._note_socket)
        self.seen: dict[str, Any] = {}
        self.socket: Any = None
        self.received = 0  # messages, over the present socket
        self.generator = np.random.default_rng(1)
        self.tab.goto(origin)

    def _note_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _note_socket(self, socket: Any) -> None:
        self.received, self.socket = 0, socket
        socket.on("framereceived", lambda frame: self._note(socket, frame))

    def _note(self, socket: Any, frame: str) -> None:
        # What an older socket still brings is not shown.
        if frame == BEAT or socket is not self.socket:
            return
        self.seen = json.loads(frame)
        self.received += 1

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the page shows something of which `holds` is true."""
        for _ in range(2000):
            if self.seen and holds(self.seen):
                # It has arrived; now it must have been drawn as well.
                shown = self.tab.get_attribute("#main", "data-shown")
                if shown == str(self.received):
                    return self.seen
            self.tab.wait_for_timeout(10)
        raise AssertionError(self.seen)

    def then(self, act: Callable[[], Any]) -> dict[str, Any]:
        """Do something and wait for the server's answer."""
        before = self.seen
        act()
        return self.until(lambda seen: seen is not before)

    def key(self, key: str) -> dict[str, Any]:
        """Press a key; what is seen then."""
        return self.then(lambda: self.tab.keyboard.press(key))

    def click(self, name: str) -> dict[str, Any]:
        """Click a button; what is seen then."""
        return self.then(lambda: self.tab.get_by_role("button", name=name, exact=True).click())

    def tab_to(self, name: str) -> None:
        """Move the focus with the tab key until it is on a control of this name."""
        for _ in range(40):
            self.tab.keyboard.press("Tab")
            focused = "document.activeElement.labels?.[0] ?? document.activeElement"
            if name in self.tab.evaluate(f"({focused}).textContent").strip():
                return
        raise AssertionError(f"{name} cannot be reached by the tab key")

    def enter(self) -> None:
        """Consent and the opening survey."""
        self.tab.get_by_role("button", name="I agree and want to take part").click()
        self.until(lambda seen: seen["kind"] == "survey")
        self.tab.get_by_label("every week").check()
        self.click("Continue")

    def do(self, act: dict[str, Any], by_keys: bool = True) -> dict[str, Any]:
        """What a simulated participant decided."""
        what, value = act["do"], act.get("value", 0)
        if what == "answer":
            return self.answer(act["answers"])
        if what in ("start", "next"):
            name = "Start" if what == "start" else "Continue"
            if not by_keys:
                return self.click(name)
            self.tab_to(name)
            return self.key("Enter")
        if what == "ask":
            return self.key("d") if by_keys else self.click("Select destination")
        if what == "press":
            return self.key(KEYS[value]) if by_keys else self.click(BUTTONS[value])
        option = next(one for one in self.seen["options"] if one["latent"] == value)
        if by_keys:
            return self.key(option["key"])
        return self.click(f"{option['label']} (key {option['key']})")

    def answer(self, answers: dict[str, str]) -> dict[str, Any]:
        """Fill in a survey and send it."""
        for name, answer in answers.items():
            field = self.tab.locator(f'[name="{name}"]')
            if field.first.get_attribute("type") == "radio":
                self.tab.locator(f'[name="{name}"][value="{answer}"]').check()
            else:
                field.fill(answer)
        return self.click("Continue")

    def play(
        self, while_: Callable[[dict[str, Any]], bool], by_keys: bool = True, most: int = 300
    ) -> None:
        """Do what a simulated participant would, as long as something is true of the page."""
        for _ in range(most):
            if not while_(self.seen):
                return
            self.do(decide(self.seen, self.generator), by_keys)
        raise AssertionError(self.seen)

    def fits(self) -> bool:
        """Whether nothing sticks out to the side."""
        return self.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
