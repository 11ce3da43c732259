"""Many participants at once on the study page, and a server that is killed under them.

`python benchmarks/study_load.py` serves a study on this machine's loopback address and lets 50
simulated participants play Movers on the paper's map for two minutes, each pressing 3 times a
second, then the same again with the server killed (SIGKILL) three times in between. It prints how
long a participant waited for what a press led to, and compares what each saw with what is on disk:
a lost step, a doubled one, or one with another action is an error.

The participants share the machine with the server; on one that is busy with other things the
waiting is longer.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from study_player import decide
from study_site import Process, write_study
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from btil.study.store import Store

_GONE = (ConnectionClosed, InvalidMessage, OSError, EOFError)
_RETRY = 0.2  # seconds
_PATIENCE = 60.0
SETTINGS = """
title = "Load"
consent = "consent.md"
thanks = "thanks.md"
max_steps = 200
[[tasks]]
domain = "movers"
map = "{map}"
sessions = 40
practice = 1
"""


class Load(NamedTuple):
    """How it went.

    Attributes:
        waits: Seconds from a press to the page that shows what it led to.
        presses: Messages that were answered.
        steps: Steps on disk.
        kills: How often the server was killed.
        wrong: What does not agree between pages and disk; empty is right.
    """

    waits: np.ndarray
    presses: int
    steps: int
    kills: int
    wrong: list[str]

    def __str__(self) -> str:
        half, most, worst = 1e3 * np.quantile(self.waits, [0.5, 0.95, 1.0])
        return (
            f"{self.presses} presses, {self.steps} steps on disk, {self.kills} kills; waiting: "
            f"median {half:.1f} ms, 95% below {most:.1f} ms, longest {worst:.1f} ms; "
            f"lost, doubled or changed: {len(self.wrong)}"
        )


class Participant:
    """One simulated participant over a socket, who notes what the page showed."""

    def __init__(self, server: Process, number: int) -> None:
        self.cookie = server.enter()
        self.server, self.generator = server, np.random.default_rng(number)
        self.socket: Any = None
        self.seen: dict[str, Any] = {}
        self.waits: list[float] = []
        # (session, step) -> action of every step that a page has shown
        self.steps: dict[tuple[int, int], int] = {}
        self.in_flight: dict[str, Any] | None = None

    async def join(self) -> None:
        """Connect, again and again until it works, and see where one is."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.socket = await connect(
                    f"ws://127.0.0.1:{self.server.port}/live",
                    origin=self.server.origin,
                    additional_headers={"cookie": self.cookie},
                ).__aenter__()
                self._see(json.loads(await self.socket.recv()))
                return
            except _GONE:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY)

    def _see(self, seen: dict[str, Any]) -> None:
        """Note the step, if what is seen now is what the press in flight led to."""
        before, message = self.seen, self.in_flight
        self.seen, self.in_flight = seen, None
        if message is None or seen["turn"] == message["turn"] or message["do"] != "press":
            return
        if before["kind"] == "session":
            self.steps[before["progress"]["at"] - 1, before["steps"]] = message["value"]

    async def act(self) -> None:
        """One press, and what comes of it."""
        act = decide(self.seen, self.generator)
        if not act:
            return
        message = {"turn": self.seen["turn"], **act}
        self.in_flight = message
        started = time.monotonic()
        try:
            await self.socket.send(json.dumps(message))
            seen = json.loads(await self.socket.recv())
            self.waits.append(time.monotonic() - started)
            self._see(seen)
        except _GONE:
            await self.join()

    async def play(self, seconds: float, rate: float, offset: float) -> None:
        """Press at a rate, each press at its time."""
        start = time.monotonic() + offset
        for press in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, start + press / rate - time.monotonic()))
            await self.act()

    async def prepare(self) -> None:
        """Up to the first session."""
        await self.join()
        while self.seen["kind"] != "session":
            await self.act()
        self.waits.clear()


async def _kill(server: Process, folder: Path, times: list[float]) -> None:
    start = time.monotonic()
    for at in times:
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))
        await asyncio.to_thread(server.kill)
        server.process = (await asyncio.to_thread(Process, folder, server.port)).process


async def load(
    folder: Path, participants: int, seconds: float, rate: float, kills: int, map: str = "paper"
) -> Load:
    """Let participants play.

    Args:
        folder: Where the study goes.
        participants: How many.
        seconds: For how long.
        rate: Presses per second of each.
        kills: How often the server is killed meanwhile.
        map: Of the task.
    """
    server = Process(write_study(folder, SETTINGS.format(map=map)))
    try:
        people = [Participant(server, number) for number in range(participants)]
        await asyncio.gather(*(person.prepare() for person in people))
        times = [seconds * (k + 1) / (kills + 1) for k in range(kills)]
        await asyncio.gather(
            _kill(server, folder, times),
            *(p.play(seconds, rate, k / participants / rate) for k, p in enumerate(people)),
        )
        for person in people:
            await person.socket.close()
    finally:
        server.kill()
    return _checked(folder, people, kills)


def _checked(folder: Path, people: list[Participant], kills: int) -> Load:
    """Compare every page with the disk."""
    store = Store(folder, read_only=True)
    steps, wrong = 0, []
    for number, person in enumerate(people, start=1):
        stored = {
            (position, row.step): row.actions[0]
            for (game, position) in store.episodes()
            if game == number
            for row in store.steps(game, position)
        }
        steps += len(stored)
        for key in sorted(stored.keys() | person.steps.keys()):
            if stored.get(key) != person.steps.get(key):
                shown, kept = person.steps.get(key), stored.get(key)
                wrong.append(f"participant {number}, {key}: shown {shown}, on disk {kept}")
        for position in {position for position, _ in stored}:
            found = sorted(step for at, step in stored if at == position)
            if found != list(range(len(found))):
                wrong.append(f"participant {number}, session {position}: steps {found}")
    store.close()
    waits = np.array([wait for person in people for wait in person.waits])
    return Load(waits, len(waits), steps, kills, wrong)


def main() -> None:
    """Without and with kills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--participants", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=float, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--map", default="paper")
    options = parser.parse_args()
    failed = False
    for kills in (0, options.kills):
        with tempfile.TemporaryDirectory(prefix="btil-study-load-") as folder:
            made = asyncio.run(
                load(
                    Path(folder), options.participants, options.seconds, options.rate, kills,
                    options.map,
                )
            )  # fmt: skip
        print(made)
        print(*made.wrong[:10], sep="\n", end="\n" if made.wrong else "")
        failed |= bool(made.wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
