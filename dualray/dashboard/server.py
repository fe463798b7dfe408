"""The server of the live page: it reads, and changes nothing.

Who may ask. It listens at a loopback address unless told otherwise. Any user of this machine, and any page in the
user's browser, can send it requests; so every question about a run carries a token, which the link has behind its `#`:
browsers send that part to no server, and so no log has it. A request must name this server in `Host` (else a name that
an attacker's DNS points here would do), and, where a browser sends `Origin`, come from this server's own page. Only GET
and HEAD are answered. The page may load nothing from elsewhere.

What it costs. All pages are told of the same moments, which are SNAPSHOT_S apart at least: however many ask, what has
changed between two moments is worked out and encoded once, and all get the same bytes. An answer says when to ask
again: later if there are many pages, and later still while no CPU is free (pace.py). A page asks when it is ready for
an answer: one that is stopped asks nothing, and nothing is kept for it. A connection that takes in no more of its
answer is ended.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import socket
import struct
import threading
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dualray.dashboard.feeds import WATCHED_S, Feed, follow
from dualray.dashboard.pace import ASK_S, Machine, wait_s
from dualray.exceptions import DualrayError

__all__ = ["TOKEN_HEADER", "Dashboard", "new_token", "web_server"]

TOKEN_HEADER: Final = "x-dualray-token"
SNAPSHOT_S: Final = 0.4
"""Between two moments that pages are told of, if they ask every ASK_S; longer if they ask less often."""
REQUEST_WITHIN_S: Final = 10.0
ANSWERS_KEPT: Final = 8
"""By source: the last answers of a moment, for pages that know the same version."""

_NUMBER: Final = re.compile("[0-9]{1,18}")
_ASSETS: Final = Path(__file__).with_name("assets")
_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_Answer = Callable[[Request], Awaitable[Response]]


def new_token() -> str:
    """A token that nobody guesses."""
    return token_urlsafe(24)


CONNECTIONS_MAX: Final = 256
KEPT_S: Final = 20
"""A connection between two questions: longer than any page waits."""
NAME_MAX: Final = 40
"""Of a page."""
END_WITHIN_S: Final = 1
"""Requests that take longer are cancelled when the server ends."""


def web_server(page: Dashboard) -> uvicorn.Server:
    """The server of a page: it logs errors alone, and no requests that its own end has cancelled."""
    config = uvicorn.Config(
        page.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=_Connection,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=END_WITHIN_S,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    return uvicorn.Server(config)


class _Connection(H11Protocol):
    """A connection that is closed when it sends no whole request for `REQUEST_WITHIN_S`: others wait for its place. One
    that has taken in nothing of an answer for so long is ended, and what was left of the answer is dropped."""

    _check_due: asyncio.TimerHandle | None = None
    _last_seen: object = None
    _unsent = 0
    """Bytes of answers that had not left at the last check."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._check_due = self.loop.call_later(REQUEST_WITHIN_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_due is not None:
            self._check_due.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent and before and unsent >= before:
            drops_all = struct.pack("ii", 1, 0)  # else the kernel keeps what it has taken
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, drops_all)
            self.transport.abort()
            return
        request: RequestResponseCycle | None = self.cycle  # none before the first request
        if request is self._last_seen and (request is None or request.response_complete):
            self.transport.close()
            return
        self._last_seen = request
        self._check_due = self.loop.call_later(REQUEST_WITHIN_S, self._check)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], CancelledError):
        return False
    return "timeout graceful shutdown exceeded" not in record.msg


class Dashboard:
    """The application, and the threads that follow its feeds.

    Args:
        feeds: what the page shows, one beside the other.
        token: what a question must carry.
        hosts: the values of `Host` that name this server, such as "127.0.0.1:8265".
    """

    def __init__(self, feeds: Sequence[Feed], *, token: str, hosts: Sequence[str]) -> None:
        self.feeds = list(feeds)
        self._token = token
        self._hosts = frozenset(host.lower() for host in hosts)
        self._over = threading.Event()
        self._answers: list[dict[int, bytes]] = [{} for _ in feeds]
        """By source: of the moment that pages are told of, by the version that they know."""
        self._told_s = [-SNAPSHOT_S for _ in feeds]
        """By source: when that moment was."""
        self._machine = Machine()
        self._wait_s = ASK_S
        """For how long a page waits until it asks again."""
        self._pages: dict[str, float] = {}
        """When each page has asked last, by the name that it has given itself."""
        self._threads = [
            threading.Thread(target=follow, args=(feed, self._over), name="dualray-feed", daemon=True) for feed in feeds
        ]
        routes = [Route(path, self._guard(_file(*file), is_public=True)) for path, file in _FILES.items()]
        routes += [
            Route("/api/sources", self._guard(self._sources)),
            Route("/api/{source}/changes", self._guard(self._changes)),
            Route("/api/{source}/story", self._guard(self._story)),
            Route("/api/{source}/answer", self._guard(self._answer)),
            Route("/api/{source}/logs", self._guard(self._logs)),
            Route("/api/{source}/log", self._guard(self._log)),
        ]
        self.app = Starlette(routes=routes)

    def start(self) -> None:
        """Begin to follow the feeds."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Follow them no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(5)
        for feed in self.feeds:
            feed.close()

    # ---- Who may ask -----------------------------------------------------------------------------------------

    def _guard(self, answer: _Answer, *, is_public: bool = False) -> _Answer:
        """The same, for those who may ask."""

        async def guarded(request: Request) -> Response:
            why = self._why_not(request, is_public=is_public)
            response = await answer(request) if why is None else JSONResponse({"error": why}, status_code=403)
            response.headers.update(_HEADERS)
            return response

        return guarded

    def _why_not(self, request: Request, *, is_public: bool) -> str | None:
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return "this server only answers requests for the host name in its link"
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return "the request came from another web page"
        if is_public:
            return None
        given = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "the token is missing or wrong: open the link that `dualray dashboard` printed"
        return None

    # ---- Answers ---------------------------------------------------------------------------------------------

    async def _sources(self, request: Request) -> Response:
        return JSONResponse([{"name": feed.name} for feed in self.feeds])

    def _feed(self, request: Request) -> tuple[int, Feed] | None:
        number = {str(one): one for one in range(len(self.feeds))}.get(request.path_params["source"])
        return None if number is None else (number, self.feeds[number])

    async def _changes(self, request: Request) -> Response:
        found = self._feed(request)
        after = request.query_params.get("after", "0")
        if found is None or not _NUMBER.fullmatch(after):
            return _unknown()
        number, feed = found
        now_s = feed.asked_s = time.monotonic()
        self._pages[request.query_params.get("page", "")[:NAME_MAX]] = now_s
        feed.pages = len(self._pages)
        data = None if self._is_due(number, now_s) else self._answers[number].get(int(after))
        if data is None:
            data = await run_in_threadpool(self._changes_since, number, feed, int(after))
        return Response(data, media_type="application/json")

    def _changes_since(self, number: int, feed: Feed, after: int) -> bytes:
        now_s = feed.asked_s = time.monotonic()
        with feed.tables.lock:
            answers = self._answers[number]
            if self._is_due(number, now_s):
                self._told_s[number] = now_s
                self._pace(now_s)
                feed.tables.publish()
                answers = self._answers[number] = {}
            data = answers.get(after)
            if data is None:
                found = feed.tables.since(after) | {"wait_s": self._wait_s}
                data = answers[after] = json.dumps(found, separators=(",", ":")).encode()
                while len(answers) > ANSWERS_KEPT:
                    del answers[next(iter(answers))]
            return data

    def _is_due(self, number: int, now_s: float) -> bool:
        """Whether pages are to be told of another moment."""
        return now_s - self._told_s[number] >= SNAPSHOT_S / ASK_S * self._wait_s

    def _pace(self, now_s: float) -> None:
        """Count the pages, and say when they are to ask again."""
        self._pages = {page: asked_s for page, asked_s in list(self._pages.items()) if now_s - asked_s <= WATCHED_S}
        self._wait_s = wait_s(len(self._pages), is_busy=self._machine.is_busy())

    async def _story(self, request: Request) -> Response:
        wanted = request.query_params.get("id", "")
        return await self._asked(request, lambda feed: feed.story(wanted))

    async def _answer(self, request: Request) -> Response:
        return await self._asked(request, lambda feed: {"text": feed.answer()})

    async def _logs(self, request: Request) -> Response:
        return await self._asked(request, lambda feed: {"files": feed.logs()})

    async def _log(self, request: Request) -> Response:
        name, node = request.query_params.get("name", ""), request.query_params.get("node", "")
        return await self._asked(request, lambda feed: {"text": feed.log(name, node)})

    async def _asked(self, request: Request, ask: Callable[[Feed], Any]) -> Response:
        found = self._feed(request)
        if found is None:
            return _unknown()
        try:
            return JSONResponse(await run_in_threadpool(ask, found[1]))
        except (DualrayError, ValueError, OSError) as error:
            return JSONResponse({"error": str(error)}, status_code=404)


def _unknown() -> Response:
    return JSONResponse({"error": "this server has no such page"}, status_code=404)


def _file(name: str, media_type: str) -> _Answer:
    async def answer(request: Request) -> Response:
        return Response((_ASSETS / name).read_bytes(), media_type=media_type)

    return answer
