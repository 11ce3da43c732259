"""What the tests of the study page share: a study, a server of its own, a page over a socket."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from btil.study.player import decide
from btil.study.settings import write_defaults

ROOT = Path(__file__).resolve().parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# The browser to test with: named by the environment, or found.
BROWSER = os.environ.get("BTIL_BROWSER") or next(filter(None, map(shutil.which, _BROWSERS)), None)
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
        self.seen = self.socket.receive_json()
        return self.seen

    def say(self, do: str, **fields: Any) -> dict[str, Any]:
        self.socket.send_json({"turn": self.seen["turn"], "do": do, **fields})
        return self.receive()

    def step(self) -> dict[str, Any]:
        """What a simulated participant would do now."""
        return self.say(**decide(self.seen, self.generator))

    def through_tutorial(self) -> None:
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
        found = re.search(r"http://127.0.0.1:(\d+)/$", "".join(lines), re.MULTILINE)
        assert found, lines
        self.port = int(found[1])
        self.origin = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
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
        from websockets.sync.client import connect

        address = f"ws://127.0.0.1:{self.port}/live"
        headers = {"cookie": cookie}
        with connect(address, origin=self.origin, additional_headers=headers) as socket:
            socket.send_json = lambda value: socket.send(json.dumps(value))
            socket.receive_json = lambda: json.loads(socket.recv(timeout=20))
            yield Page(socket)
