"""The study over HTTP: a page, its script and style, and one WebSocket per participant.

A participant is known by a cookie that holds an unguessable token. Requests that change anything
must come from the page itself (their origin is checked), and nothing is served but the files
named here.
"""

import contextlib
import json
import secrets
import socket
import sqlite3
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import uvicorn
from markdown_it import MarkdownIt
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from btil.study.episode import Refused
from btil.study.live import NOT_A_PARTICIPANT, LiveStudy, sole_server
from btil.study.settings import SETTINGS_FILE, TEAMMATES, read_settings, write_defaults
from btil.study.store import Store

LARGEST_MESSAGE = 128 * 1024  # bytes; a survey of fifty long answers fits
_COOKIE_SECONDS = 90 * 24 * 3600
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGE_FILES = ("index.html", "style.css", "board.js", "page.js")
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

Scope = MutableMapping[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


class Address(NamedTuple):
    """Where a study is reached.

    Attributes:
        hosts: Host names that requests may name.
        origins: Origins of its own pages.
        url: What is printed.
    """

    hosts: tuple[str, ...]
    origins: frozenset[str]
    url: str

    @property
    def secure(self) -> bool:
        """Whether participants come over HTTPS."""
        return self.url.startswith("https:")


def address_of(host: str, port: int, origin: str | None = None) -> Address:
    """How a server that listens on a host and port is addressed.

    Args:
        host: What it listens on.
        port: Its port.
        origin: What participants type, where it is another address (behind a proxy), such as
            "https://study.example.org".

    Raises:
        ValueError: If the origin is none, or is needed and missing.
    """
    if origin is not None:
        parts = urlsplit(origin)
        plain = f"{parts.scheme}://{parts.netloc}"
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or origin.rstrip("/") != plain:
            raise ValueError(
                f"--origin is {origin!r}; scheme and host are expected, such as "
                "https://study.example.org"
            )
        return Address((_bracketed(host),), frozenset([plain]), plain)
    if host in _ANY:
        raise ValueError(
            f"--host {host or repr(host)} listens on every address; --origin must say which one "
            "participants type, such as --origin http://192.168.1.5:8000"
        )
    hosts = tuple(map(_bracketed, _LOOPBACK if host in _LOOPBACK else (host,)))
    origins = frozenset(f"http://{name}:{port}" for name in hosts)
    return Address(hosts, origins, f"http://{_bracketed(host)}:{port}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# ---------------------------------------------------------------------- what all pages share


class SafeHeaders:
    """Adds the headers that keep a page to itself to every response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on."""

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        await self.app(scope, receive, with_headers)


def make_app(routes: list[Any], address: Address) -> Starlette:
    """An application of these routes, for requests to this address alone."""
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(SafeHeaders),
            # Refuses names that point here by another's doing (DNS rebinding).
            Middleware(TrustedHostMiddleware, allowed_hosts=list(address.hosts)),
        ],
    )


def static_route(path: str, file: str) -> Route:
    """A route to one file of the package."""
    text = (resources.files("btil.study") / "static" / file).read_text(encoding="utf-8")
    kind = _TYPES[Path(file).suffix]

    async def serve(_: Request) -> Response:
        return Response(text, media_type=kind)

    return Route(path, serve)


class Keyed:
    """Pages for those who know a key: it comes once in the address, then as a cookie.

    Args:
        name: Name of the cookie.
        address: Where the pages are reached.
        key: The key; None: drawn.
    """

    def __init__(self, name: str, address: Address, key: str | None = None) -> None:
        self.name, self.address = name, address
        self.key = secrets.token_urlsafe(24) if key is None else key

    def __call__(self, handler: Handler) -> Handler:
        """A handler behind the key."""

        async def guarded(request: Request) -> Response:
            given = request.query_params.get("key")
            if given is not None and self._is_key(given):
                # The key does not stay in the address bar, the history or a log.
                response: Response = RedirectResponse(request.url.path, status_code=303)
                response.set_cookie(
                    self.name,
                    self.key,
                    httponly=True,
                    # Not "strict": the page may be opened by a link in a message.
                    samesite="lax",
                    secure=self.address.secure,
                )
                return response
            if not self._is_key(request.cookies.get(self.name, "")):
                return Response("The key is missing or wrong.", status_code=403)
            return await handler(request)

        return guarded

    def _is_key(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.key.encode())

    def link(self, path: str) -> str:
        """The address of a page with the key."""
        return f"{self.address.url}{path}?key={self.key}"

    def file(self, path: str, file: str) -> Route:
        """A file behind the key."""
        return Route(path, self(static_route(path, file).endpoint))


# ---------------------------------------------------------------------- the participants' pages


def participant_routes(study: LiveStudy, address: Address) -> list[Any]:
    """The page, what it is made of, and the socket it talks through."""
    cookie = f"btil_{study.name}"
    markdown = MarkdownIt("commonmark", {"html": False})
    consent = markdown.render(study.settings.consent)
    thanks = markdown.render(study.settings.thanks)

    def who(connection: HTTPConnection) -> int | None:
        return study.participant_of(connection.cookies.get(cookie))

    def from_own_page(connection: HTTPConnection) -> bool:
        return connection.headers.get("origin") in address.origins

    async def welcome(_: Request) -> Response:
        return JSONResponse({"study": study.settings.title, "consent": consent})

    async def enter(request: Request) -> Response:
        if not from_own_page(request):
            return Response(status_code=403)
        response = Response(status_code=204)
        if who(request) is None:
            try:
                token = await study.enter()
            except Refused as refusal:
                return JSONResponse({"notice": str(refusal)}, status_code=409)
            except sqlite3.Error:
                return JSONResponse({"notice": "Nothing can be saved now."}, status_code=503)
            response.set_cookie(
                cookie,
                token,
                max_age=_COOKIE_SECONDS,
                httponly=True,
                samesite="strict",
                secure=address.secure,
            )
        return response

    async def leave(request: Request) -> Response:
        if not from_own_page(request):
            return Response(status_code=403)
        participant = who(request)
        if participant is not None:
            await study.leave(participant)
        response = Response(status_code=204)
        response.delete_cookie(cookie, httponly=True, samesite="strict", secure=address.secure)
        return response

    async def live(websocket: WebSocket) -> None:
        if not from_own_page(websocket):
            await websocket.close(1008)
            return
        participant = who(websocket)
        # Accepted first: a browser tells a page nothing of why a handshake was refused.
        await websocket.accept()
        if participant is None:
            await websocket.close(NOT_A_PARTICIPANT)
            return
        connection = study.connect(participant)

        async def show() -> None:
            while connection.closed is None:
                await connection.changed.wait()
                connection.changed.clear()
                if connection.closed is not None:
                    break
                notice, connection.notice = connection.notice, ""
                seen = study.view(participant) | {"notice": notice}
                if seen["kind"] == "thanks":
                    seen["html"] = thanks
                await websocket.send_text(json.dumps(seen, separators=(",", ":")))
            await websocket.close(connection.closed)

        async def listen() -> None:
            while (arrived := await websocket.receive())["type"] != "websocket.disconnect":
                if not study.is_current(participant, connection):
                    continue
                try:
                    await study.handle(participant, _parsed(arrived.get("text")))
                except Refused as refusal:
                    connection.wake(str(refusal))
                except sqlite3.Error:
                    connection.wake("This could not be saved; please try again.")

        async def until_gone(task: Callable[[], Awaitable[None]]) -> None:
            # A page that goes away while something is sent to it is nothing to report.
            with contextlib.suppress(WebSocketDisconnect):
                await task()
            both.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as both:
                both.start_soon(until_gone, show)
                both.start_soon(until_gone, listen)
        finally:
            study.disconnect(participant, connection)

    return [
        static_route("/", "index.html"),
        *(static_route(f"/{file}", file) for file in _PAGE_FILES[1:]),
        Route("/welcome", welcome),
        Route("/enter", enter, methods=["POST"]),
        Route("/leave", leave, methods=["POST"]),
        WebSocketRoute("/live", live),
    ]


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        raise Refused("This message was not understood.") from None


def overview_routes(study: LiveStudy, keyed: Keyed) -> list[Route]:
    """The researcher's page: where everyone stands."""

    async def data(_: Request) -> Response:
        return JSONResponse({"study": study.settings.title, "people": study.overview()})

    return [
        keyed.file("/researcher", "overview.html"),
        static_route("/overview.js", "overview.js"),
        Route("/researcher/data", keyed(data)),
    ]


# ---------------------------------------------------------------------- serving


def listen_on(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        OSError: If it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise OSError(
            f"{host}:{port} cannot be listened on: {error.strerror}; see --port"
        ) from None
    return listener


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[listener])


def collect(
    folder: Path,
    host: str,
    port: int,
    teammate: str,
    origin: str | None,
    seed: int | None,
    tell: Callable[[str], None],
) -> None:
    """Serve a study until interrupted; see `btil collect`."""
    if teammate not in TEAMMATES:
        raise ValueError(f"--teammate is {teammate!r}; allowed are {' and '.join(TEAMMATES)}")
    for file in write_defaults(folder):
        tell(f"wrote {file}")
    settings = read_settings(folder / SETTINGS_FILE)
    with sole_server(folder), listen_on(host, port) as listener:
        address = address_of(host, listener.getsockname()[1], origin)
        study = LiveStudy(Store(folder, seed, create=True), settings, teammate)
        try:
            tell("planning for the tasks (some seconds the first time)")
            study.prepare()
            keyed = Keyed(f"btil_key_{study.name}", address)
            routes = participant_routes(study, address) + overview_routes(study, keyed)
            tell(f"participants   {address.url}/")
            tell(f"researcher     {keyed.link('/researcher')}")
            tell("stop with Ctrl-C; the same command takes the study up again")
            serve(make_app(routes, address), listener)
        finally:
            study.close()
