"""For the researcher: a session played back, beside what a fitted model makes of it."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from btil.demonstrations import Demonstrations
from btil.study.export import Group, Session, grouped, sessions
from btil.study.keeping import read_key
from btil.study.server import (
    Keyed,
    address_of,
    filled_texts,
    listen_on,
    make_app,
    serve,
    static_route,
)
from btil.study.store import Store
from btil.study.texts import ENGLISH
from btil.study.views import NAMES, board, destination_label
from btil.study.worlds import world_of

if TYPE_CHECKING:
    from btil.posterior.posterior import TeamPosterior


class Replay:
    """The sessions of one task, with a posterior's beliefs where one fits.

    Args:
        group: The sessions.
        posterior: Fitted on demonstrations of this task; None: labels alone are shown.
    """

    def __init__(self, group: Group, posterior: "TeamPosterior | None") -> None:
        self.group, self.posterior = group, posterior

    @cached_property
    def _demos(self) -> Demonstrations:
        demos = self.group.demonstrations()
        if self.posterior is None:
            return demos
        needed = set(self.posterior.demos.num_states) - set(demos.num_states)
        return self.group.task.add_derived_variables(demos) if needed else demos

    @cached_property
    def _beliefs(self) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
        """Of every step: P(latent | the episode's states and actions), and the likeliest path."""
        if self.posterior is None:
            return None
        return self.posterior.smooth(self._demos), self.posterior.decode(self._demos)

    def episode(self, index: int) -> dict[str, Any]:
        """One session as data for the page.

        Args:
            index: Its place in the group.
        """
        session, task = self.group.sessions[index], self.group.task
        start = int(self._demos.episode_starts[index])
        rows = slice(start, start + len(session.rows))
        states = [row.state for row in session.rows]
        labels = np.array([row.latents for row in session.rows])
        known = (labels >= 0).all(axis=1)
        apart = task.suboptimal(states, np.maximum(labels, 0)) & known
        found: dict[str, Any] = {
            **_heading(session),
            "thing": world_of(session.stage.domain).picture,
            "names": NAMES,
            "robots": [seat not in session.seats for seat in range(len(NAMES))],
            # As participants saw them: items are counted from 1.
            "latents": [
                destination_label(task, session.stage.domain, latent, ENGLISH)
                for latent in range(task.num_latents)
            ],
            "actions": list(task.action_names),
            "boards": [board(task, state) for state in [*states, session.episode.state]],
            "steps": [
                {
                    "actions": row.actions,
                    "labels": row.latents,
                    "answered": row.answered,
                    "seconds": row.seconds,
                }
                for row in session.rows
            ],
            "apart": apart.tolist(),
            "belief": None,
            "model_apart": None,
        }
        if self._beliefs is not None:
            belief, path = self._beliefs
            found["belief"] = [belief[agent][rows].round(4).tolist() for agent in task.agents]
            found["model_apart"] = task.suboptimal(states, path[rows]).tolist()
        return found


def fits(posterior: "TeamPosterior", group: Group) -> bool:
    """Whether a posterior is of this task, on a map with these cells."""
    task, known = group.task, posterior.demos.state_names
    return posterior.demos.num_latents == (task.num_latents,) * len(task.agents) and all(
        known.get(variable) == names for variable, names in task.state_names.items()
    )


def _heading(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "domain": session.stage.domain,
        "practice": session.stage.practice,
        "length": len(session.rows),
        "over": session.episode.over,
    }


def replay_routes(
    folder: Path, posteriors: "list[TeamPosterior]", keyed: Keyed, page: str = "/"
) -> list[Any]:
    """The page and its data, behind a key.

    What has been played since is read whenever the page is opened.

    Args:
        folder: The study.
        posteriors: For its tasks.
        keyed: The key.
        page: Path of the page.

    Raises:
        ValueError: If one of the posteriors fits no task of the study.
    """

    def read() -> list[tuple[Replay, int]]:
        store = Store(folder, read_only=True)
        try:
            with store.reading():
                groups = grouped(sessions(store))
        finally:
            store.close()
        replays = [
            Replay(group, next((one for one in posteriors if fits(one, group)), None))
            for group in groups
        ]
        unused = [one for one in posteriors if not any(each.posterior is one for each in replays)]
        if unused:
            raise ValueError(
                f"{len(unused)} of the posteriors fits no task of this study: the names of states "
                "and the number of latents must be those of its tasks and maps"
            )
        return [(each, k) for each in replays for k in range(len(each.group.sessions))]

    Store(folder, read_only=True).close()  # is there a study?
    index = read() if posteriors else []

    async def listing(_: Request) -> Response:
        nonlocal index
        index = await run_in_threadpool(read)
        headings = [_heading(replay.group.sessions[k]) for replay, k in index]
        return JSONResponse({"sessions": headings})

    async def episode(request: Request) -> Response:
        if not index:
            await listing(request)
        found = [
            one for one in index if one[0].group.sessions[one[1]].id == request.path_params["id"]
        ]
        if not found:
            return Response(status_code=404)
        replay, k = found[0]
        # Beside the loop: the first one of a task has its posterior's programs compiled.
        return JSONResponse(await run_in_threadpool(replay.episode, k))

    return [
        static_route("/style.css", "style.css"),
        static_route("/board.js", "board.js"),
        static_route("/replay.js", "replay.js"),
        static_route("/texts.js", "texts.js"),
        keyed.file(page, "replay.html", filled_texts(ENGLISH)),
        Route("/sessions", keyed(listing)),
        Route("/sessions/{id}", keyed(episode)),
    ]


def _key_of(folder: Path) -> str | None:
    """The study's key; None where the folder cannot be written, so that there is one for now."""
    try:
        return read_key(folder)
    except OSError:
        return None


def serve_replay(
    folder: Path, paths: list[Path], host: str, port: int, tell: Callable[[str], None]
) -> None:
    """Serve the page until interrupted; see `btil collect replay`."""
    posteriors = []
    if paths:
        from btil.posterior.loading import load_posterior

        posteriors = [load_posterior(path) for path in paths]
    with listen_on(host, port) as listener:
        address = address_of(host, listener.getsockname()[1])
        keyed = Keyed("btil_replay", address, _key_of(folder))
        app = make_app([*replay_routes(folder, posteriors, keyed), *keyed.routes()], address)
        tell(f"researcher     {keyed.link('/')}")
        serve(app, listener)
