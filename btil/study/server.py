"""The study over HTTP: a page, its script and style, and one WebSocket per participant.

A participant is known by a cookie that holds an unguessable token. Requests that change anything
must come from the page itself (their origin is checked), and nothing is served but the files
named here.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
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
from btil.study.live import LONGEST_ID, NOT_A_PARTICIPANT, Connection, LiveStudy, Recent
from btil.study.texts import say, texts_in

LARGEST_MESSAGE = 128 * 1024  # bytes; a survey of fifty long answers fits
BEAT = "beat"  # what a page sends every second, and what it is answered
_LARGEST_BODY = 16 * 1024
_LONGEST_ENTRY = 64
_TICK = 1.0  # seconds
_WRONG_KEYS = 10  # in a minute, from one address
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_log = logging.getLogger("uvicorn.error")
_COOKIE_SECONDS = 90 * 24 * 3600
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGE_FILES = ("index.html", "style.css", "board.js", "texts.js", "page.js")
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
        prefix: Of all paths, such as "/study"; "" for none.
    """

    hosts: tuple[str, ...]
    origins: frozenset[str]
    url: str
    prefix: str = ""

    @property
    def cookie_path(self) -> str:
        """Where cookies are sent to."""
        return f"{self.prefix}/"

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
            "https://study.example.org", or "https://example.org/study" where it shares a host.

    Raises:
        ValueError: If the origin is none, or is needed and missing.
    """
    if origin is not None:
        parts = urlsplit(origin)
        try:
            host, given = parts.hostname or "", parts.port
        except ValueError:  # what stands there is no port
            host, given = "", None
        written = _bracketed(host) + ("" if given is None else f":{given}")
        prefix = parts.path.rstrip("/")
        segments = prefix.split("/")[1:]
        good = all(segment and segment.replace("-", "").isalnum() for segment in segments)
        if (
            parts.scheme not in _DEFAULT_PORTS
            or not host
            or not good
            or parts.netloc.lower() != written
            or origin.rstrip("/") != f"{parts.scheme}://{parts.netloc}{prefix}"
        ):
            raise ValueError(
                f"--origin is {origin!r}; scheme and host are expected, and perhaps a port and a "
                "path of letters, digits and hyphens, such as https://study.example.org/team"
            )
        plain = _origin(parts.scheme, host, given)
        return Address((_bracketed(host),), frozenset([plain]), f"{plain}{prefix}", prefix)
    if host in _ANY:
        raise ValueError(
            f"--host {host or repr(host)} listens on every address; --origin must say which one "
            "participants type, such as --origin http://192.168.1.5:8000"
        )
    hosts = tuple(map(_bracketed, _LOOPBACK if host in _LOOPBACK else (host.lower(),)))
    origins = frozenset(_origin("http", name, port) for name in hosts)
    return Address(hosts, origins, _origin("http", host, port))


def _origin(scheme: str, host: str, port: int | None) -> str:
    """As browsers tell it: in small letters, and without a port that goes without saying."""
    told = "" if port in (None, _DEFAULT_PORTS[scheme]) else f":{port}"
    return f"{scheme}://{_bracketed(host.lower())}{told}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


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


class WithoutPrefix:
    """Takes the prefix off a path, where a proxy has not done so already."""

    def __init__(self, app: Any, prefix: str) -> None:
        self.app, self.prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on."""
        path = scope.get("path", "")
        if path == self.prefix and scope["type"] == "http":
            await RedirectResponse(f"{self.prefix}/", status_code=308)(scope, receive, send)
            return
        if path.startswith(f"{self.prefix}/"):
            scope = {**scope, "path": path[len(self.prefix) :]}
        await self.app(scope, receive, send)


def make_app(routes: list[Any], address: Address, lifespan: Any = None) -> Starlette:
    """An application of these routes, for requests to this address alone."""
    prefix = [Middleware(WithoutPrefix, prefix=address.prefix)] if address.prefix else []
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(SafeHeaders),
            # Refuses names that point here by another's doing (DNS rebinding).
            Middleware(TrustedHostMiddleware, allowed_hosts=list(address.hosts)),
            *prefix,
        ],
        lifespan=lifespan,
    )


def static_route(path: str, file: str, fill: dict[str, str] | None = None) -> Route:
    """A route to one file of the package.

    Args:
        path: Of the route.
        file: Its name.
        fill: What stands in the file in place of the keys.
    """
    text = (resources.files("btil.study") / "static" / file).read_text(encoding="utf-8")
    for mark, filling in (fill or {}).items():
        text = text.replace(mark, filling)
    kind = _TYPES[Path(file).suffix]

    async def serve(_: Request) -> Response:
        return Response(text, media_type=kind)

    return Route(path, serve)


async def body_of(request: Request) -> dict[str, Any]:
    """A small JSON object that was sent; empty where there is none.

    Raises:
        ValueError: If it is something else, or not small.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_BODY:
            raise ValueError("too large")
    try:
        given = json.loads(body or b"{}")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(given, dict):
        raise ValueError("an object is expected")
    return given


class Keyed:
    """Pages for those who know a key: they sign in with it once, then a cookie is enough.

    The key is sent in the body of one request, never in an address, so that no log has it: in the
    link it stands behind the "#", which browsers keep to themselves. The cookie is made from it,
    and stays good when the server starts again.

    Args:
        name: Name of the cookie.
        address: Where the pages are reached.
        key: The key; None: drawn.
    """

    def __init__(self, name: str, address: Address, key: str | None = None) -> None:
        self.name, self.address = name, address
        self.key = secrets.token_urlsafe(24) if key is None else key
        self._cookie = hmac.new(self.key.encode(), name.encode(), hashlib.sha256).hexdigest()
        self._wrong = Recent()

    def __call__(self, handler: Handler) -> Handler:
        """A handler behind the key."""

        async def guarded(request: Request) -> Response:
            if not self.knows(request):
                return Response("Sign in first.", status_code=403)
            return await handler(request)

        return guarded

    def knows(self, request: Request) -> bool:
        """Whether a request comes from somebody who has signed in."""
        given = request.cookies.get(self.name, "")
        return secrets.compare_digest(given.encode(), self._cookie.encode())

    def link(self, path: str) -> str:
        """The address of a page with the key."""
        return f"{self.address.url}{path}#key={self.key}"

    def file(self, path: str, file: str, fill: dict[str, str] | None = None) -> Route:
        """A page behind the key, as `static_route`; who has not signed in is asked to."""
        page = static_route(path, file, fill).endpoint
        sign_in = static_route(path, "signin.html").endpoint

        async def shown(request: Request) -> Response:
            signed_in = self.knows(request)
            answer: Response = await (page if signed_in else sign_in)(request)
            if not signed_in:
                answer.status_code = 403
            return answer

        return Route(path, shown)

    def routes(self) -> list[Route]:
        """Where people sign in."""
        return [
            static_route("/signin.js", "signin.js"),
            Route("/signin", self._sign_in, methods=["POST"]),
        ]

    async def _sign_in(self, request: Request) -> Response:
        if request.headers.get("origin") not in self.address.origins:
            return Response(status_code=403)
        now, who = time.monotonic(), _address_of(request)
        if self._wrong.number(who, now) >= _WRONG_KEYS:
            return Response(status_code=429)
        try:
            given = str((await body_of(request)).get("key", ""))
        except ValueError:
            return Response(status_code=400)
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.key.encode()):
            self._wrong.add(who, now)
            return Response(status_code=403)
        response = Response(status_code=204)
        response.set_cookie(
            self.name,
            self._cookie,
            max_age=_COOKIE_SECONDS,
            path=self.address.cookie_path,
            httponly=True,
            # Not "strict": the page may be opened by a link in a message.
            samesite="lax",
            secure=self.address.secure,
        )
        return response


def _address_of(connection: HTTPConnection) -> str:
    """Where a request comes from: a proxy's word for it counts only where that was asked for."""
    return connection.client.host if connection.client is not None else ""


# ---------------------------------------------------------------------- the participants' pages


def participant_routes(study: LiveStudy, address: Address, folder: Path | None = None) -> list[Any]:
    """The page, what it is made of, and the socket it talks through.

    Args:
        study: The study.
        address: Where it is reached.
        folder: Of the study; images for its texts lie in `images`.
    """
    pages = _Participants(study, address)
    language = study.settings.language
    texts = filled_texts(language) | {"NO_SCRIPT": say(language, "page.no_script")}
    return [
        static_route("/", "index.html", texts),
        *(static_route(f"/{file}", file) for file in _PAGE_FILES[1:]),
        *_image_routes(folder),
        Route("/welcome", pages.welcome),
        Route("/texts/{language}", pages.texts),
        Route("/enter", pages.enter, methods=["POST"]),
        Route("/leave", pages.leave, methods=["POST"]),
        WebSocketRoute("/live", pages.live),
    ]


class _Participants:
    """Answers participants' pages.

    Args:
        study: The study.
        address: Where it is reached.
    """

    def __init__(self, study: LiveStudy, address: Address) -> None:
        self._study, self._settings, self._address = study, study.settings, address
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self._cookie: dict[str, Any] = {
            "key": f"btil_{study.name}",
            "path": address.cookie_path,
            "httponly": True,
            "samesite": "strict",
            "secure": address.secure,
        }

    def _who(self, connection: HTTPConnection) -> int | None:
        return self._study.participant_of(connection.cookies.get(self._cookie["key"]))

    def _from_own_page(self, connection: HTTPConnection) -> bool:
        return connection.headers.get("origin") in self._address.origins

    def _spoken(self, request: Request) -> str:
        """The language that is asked for, or that the browser prefers, among those there are."""
        asked = request.query_params.get("language", "")
        accepted = request.headers.get("accept-language", "").split(",")
        wanted = [asked, *(one.split(";")[0].strip().split("-")[0] for one in accepted[:20])]
        languages = self._settings.languages
        return next((one for one in wanted if one in languages), self._settings.language)

    async def welcome(self, request: Request) -> Response:
        language = self._spoken(request)
        here = self._settings.of(self._settings.arm, language)
        return JSONResponse(
            {
                "study": here.title,
                "consent": self._markdown.render(here.consent),
                "language": language,
                "languages": [
                    {"code": one, "name": say(one, "language.name")}
                    for one in self._settings.languages
                ],
                "ids": self._settings.ids,
            }
        )

    async def texts(self, request: Request) -> Response:
        language = request.path_params["language"]
        if language not in self._settings.languages:
            return Response(status_code=404)
        return JSONResponse(_page_texts(language))

    async def enter(self, request: Request) -> Response:
        if not self._from_own_page(request):
            return Response(status_code=403)
        try:
            given = await body_of(request)
        except ValueError:
            return Response(status_code=400)
        response = Response(status_code=204)
        if self._who(request) is not None:
            return response
        ids = given.get("ids")
        language = str(given.get("language", ""))
        told = language if language in self._settings.languages else self._settings.language
        try:
            token = await self._study.enter(
                language,
                {
                    str(name): _plain(value)
                    for name, value in (ids if isinstance(ids, dict) else {}).items()
                },
                str(given.get("entry", ""))[:_LONGEST_ENTRY],
                _address_of(request),
            )
        except Refused as refusal:
            status = 429 if refusal.key == "refused.too_many" else 409
            return JSONResponse({"notice": refusal.told(told)}, status_code=status)
        except sqlite3.Error:
            return JSONResponse({"notice": say(told, "refused.not_saved")}, status_code=503)
        # On a shared computer it goes with the browser.
        age = None if self._settings.shared_computer else _COOKIE_SECONDS
        response.set_cookie(**self._cookie, value=token, max_age=age)
        return response

    async def leave(self, request: Request) -> Response:
        if not self._from_own_page(request):
            return Response(status_code=403)
        participant = self._who(request)
        if participant is not None:
            await self._study.leave(participant)
        response = Response(status_code=204)
        response.delete_cookie(**self._cookie)
        return response

    async def live(self, websocket: WebSocket) -> None:
        if not self._from_own_page(websocket):
            await websocket.close(1008)
            return
        # Accepted first: a browser tells a page nothing of why a handshake was refused.
        await websocket.accept()
        participant = self._who(websocket)
        if participant is None:
            await websocket.close(NOT_A_PARTICIPANT)
            return
        asked = websocket.query_params
        attempt = asked.get("attempt", "")
        connection = self._study.connect(
            participant,
            asked.get("page", "")[:_LONGEST_ENTRY],
            int(attempt) if attempt.isdecimal() and len(attempt) < 10 else 0,
        )

        async def until_gone(task: Callable[..., Awaitable[None]]) -> None:
            # A page that goes away while something is sent to it is nothing to report.
            with contextlib.suppress(WebSocketDisconnect):
                await task(websocket, participant, connection)
            both.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as both:
                both.start_soon(until_gone, self._show)
                both.start_soon(until_gone, self._listen)
        finally:
            self._study.disconnect(participant, connection)
            await self._study.note(participant, "gone")

    async def _show(self, websocket: WebSocket, participant: int, connection: Connection) -> None:
        """Send what a participant is to see, whenever it changes."""
        while connection.closed is None:
            await connection.changed.wait()
            connection.changed.clear()
            if connection.closed is not None:
                break
            notice, connection.notice = connection.notice, ""
            seen = self._study.view(participant) | {"notice": notice}
            if seen["kind"] == "thanks":
                seen["html"] = self._markdown.render(seen.pop("thanks"))
            if self._settings.shared_computer:
                seen["shared"] = True
            await websocket.send_text(json.dumps(seen, separators=(",", ":")))
        await websocket.close(connection.closed)

    async def _listen(self, websocket: WebSocket, participant: int, connection: Connection) -> None:
        """Do what a participant does."""
        study = self._study
        await study.note(participant, "connected")
        while (arrived := await websocket.receive())["type"] != "websocket.disconnect":
            if not study.is_current(participant, connection):
                continue
            study.hear(connection)
            text = arrived.get("text")
            if text == BEAT:
                await websocket.send_text(BEAT)
                continue
            try:
                await study.handle(participant, _parsed(text))
            except Refused as refusal:
                connection.wake(refusal.told(study.language_of(participant)))
            except sqlite3.Error:
                connection.wake(say(study.language_of(participant), "refused.not_saved"))


def _plain(value: Any) -> str:
    """A value of the address, as text that can be stored and read anywhere."""
    text = value if isinstance(value, str) else ""
    return "".join(sign for sign in text[:LONGEST_ID] if sign.isprintable())


def _page_texts(language: str) -> dict[str, str]:
    """What the page itself says, without the name of its section."""
    section = "page."
    found = texts_in(language).items()
    shown = {key[len(section) :]: text for key, text in found if key.startswith(section)}
    numbered = {key: text for key, text in found if key.endswith(".numbered")}
    return {"language_code": language, **shown, **numbered}


def filled_texts(language: str) -> dict[str, str]:
    """What fills in a page's texts and its language."""
    # In a script element nothing but its end is special.
    texts = json.dumps(_page_texts(language)).replace("<", "\\u003c")
    return {"LANGUAGE": language, "TEXTS": texts}


def _image_routes(folder: Path | None) -> list[Route]:
    """The pictures for the researcher's texts: those in `images` when the study starts."""
    images = None if folder is None else folder / "images"
    if images is None or not images.is_dir():
        return []
    found = [file for file in sorted(images.iterdir()) if file.suffix.lower() in _IMAGES]
    return [_image_route(file) for file in found if file.is_file()]


def _image_route(file: Path) -> Route:
    content = file.read_bytes()

    async def serve(_: Request) -> Response:
        return Response(content, media_type=_IMAGES[file.suffix.lower()])

    return Route(f"/images/{file.name}", serve)


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        raise Refused("refused.not_understood") from None


def overview_routes(study: LiveStudy, keyed: Keyed) -> list[Route]:
    """The researcher's page: where everyone stands."""

    async def data(_: Request) -> Response:
        return JSONResponse(
            {
                "study": study.settings.title,
                "now": study.now,
                "people": study.overview(),
            }
        )

    async def answers(request: Request) -> Response:
        return JSONResponse({"answers": await study.answers_of(request.path_params["number"])})

    async def erase(request: Request) -> Response:
        if request.headers.get("origin") not in keyed.address.origins:
            return Response(status_code=403)
        try:
            await study.erase(int((await body_of(request))["number"]))
        except (KeyError, TypeError, ValueError):
            return Response(status_code=400)
        return Response(status_code=204)

    return [
        keyed.file("/researcher", "overview.html"),
        static_route("/overview.js", "overview.js"),
        Route("/researcher/data", keyed(data)),
        Route("/researcher/answers/{number:int}", keyed(answers)),
        Route("/researcher/erase", keyed(erase), methods=["POST"]),
        *keyed.routes(),
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


def ticking(study: LiveStudy) -> Callable[[Starlette], Any]:
    """Has a study do, every second, what time alone brings about, while it is served."""

    async def tick_for_ever() -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                await study.tick()
            except Exception:  # of one moment: the next one must come all the same
                _log.exception("what time brings about could not be done")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(tick_for_ever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return lifespan


def serve(app: Starlette, listener: socket.socket, forwarded: str | None = None) -> None:
    """Serve until interrupted.

    Args:
        app: What is served.
        listener: Where.
        forwarded: Addresses of proxies whose word counts for where a request came from.
    """
    config = uvicorn.Config(
        app,
        # Uvicorn's own would close what other libraries log to.
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
        proxy_headers=forwarded is not None,
        forwarded_allow_ips=forwarded,
    )
    uvicorn.Server(config).run(sockets=[listener])
