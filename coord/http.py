"""The admin port of every daemon: health, readiness, status and metrics over plain HTTP, for probes and curl.

    GET /metrics   Prometheus text of one registry
    GET /health    200 {"healthy": true, …} while the process works, else 503            (liveness: restart me?)
    GET /ready     200 {"ready": true, …} while the process can serve, else 503          (readiness: route to me?)
    GET /status    JSON with the daemon's state

A daemon may add actions under other paths; each action checks its caller. Pages accept only GET and HEAD. A reply never
contains a traceback: an exception is logged and becomes a 500 with one sentence. The port has no authentication and
listens only on the configured address: choose an address that only trusted hosts reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from coord.daemon import ListeningReactor

__all__ = ["AdminHttp", "Check"]

log = Logger()

#: Seconds that a connection may stay open without a request.
IDLE_S: Final = 60
#: Bound of open connections; further ones are closed at once. Probes and scrapers need a handful.
CONNECTIONS_MAX: Final = 64

#: (holds, facts to show). A check runs on the reactor's thread and uses only memory.
Check = Callable[[], tuple[bool, Mapping[str, object]]]
#: Longest accepted request body.
BODY_BYTES_MAX: Final = 4096
Page = tuple[int, bytes, bytes]
#: Handles a twisted request, now or later, and checks the caller.
Action = Callable[[Any], None]

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"


class AdminHttp:
    """The admin pages of a daemon. `listen` serves them."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        health: Check,
        ready: Check,
        status: Callable[[], object],
        actions: Mapping[bytes, Action] | None = None,
        pages: Mapping[bytes, Callable[[], object]] | None = None,
    ) -> None:
        """`status` and the further `pages` (by path) return values that msgspec can encode. Called for every
        request."""
        self.actions = dict(actions or {})
        self._pages: dict[bytes, Callable[[], Page]] = {
            b"/metrics": lambda: (200, CONTENT_TYPE_LATEST.encode("ascii"), generate_latest(registry)),
            b"/health": lambda: _verdict("healthy", health()),
            b"/ready": lambda: _verdict("ready", ready()),
            b"/status": lambda: (200, _JSON, _json(status())),
            **{path: _json_page(build) for path, build in (pages or {}).items()},
        }

    def listen(self, reactor: ListeningReactor, host: str, port: int) -> IListeningPort:
        """Serve on `host`:`port` (0: any free port). Raise twisted's CannotListenError if the port is in use."""
        return reactor.listenTCP(port, self.site(), interface=host)

    def site(self) -> WrappingFactory:
        """Return a Twisted factory of the pages, for callers with their own listening port."""
        site = Site(_Page(self), timeout=IDLE_S)  # type: ignore[no-untyped-call]
        site.noisy = False
        site.requestFactory = _Request
        site.displayTracebacks = False
        site.log = _no_access_log  # type: ignore[method-assign]
        return _Bounded(site)  # type: ignore[no-untyped-call]

    def page(self, path: bytes) -> Page:
        """Return (status, content type, body) of one page; never raises."""
        build = self._pages.get(path)
        if build is None:
            return 404, _TEXT, b"Not found. Pages: /metrics, /health, /ready, /status.\n"
        try:
            return build()
        except Exception:  # boundary of the admin port: the cause belongs in the log, not in the reply
            log.failure("GET {path} failed", path=path.decode("ascii", "replace"))
            return 500, _TEXT, b"Internal error; see the log of this process.\n"


def _verdict(word: str, answer: tuple[bool, Mapping[str, object]]) -> Page:
    holds, facts = answer
    return 200 if holds else 503, _JSON, _json({word: holds, **facts})


def _json_page(build: Callable[[], object]) -> Callable[[], Page]:
    return lambda: (200, _JSON, _json(build()))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _no_access_log(request: Any) -> None:
    """Log no requests: probes come every second."""


class _Request(Request):
    """A request whose body is never stored: no page or action uses a body, and a long one ends the connection.

    Twisted would write a body of any size to a file before the action could check its caller.
    """

    _body_bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: ARG002
        """Handle the end of the headers: do not create a file for the body."""
        super().gotLength(0)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:
        """Handle a part of the body; abort the connection beyond the limit."""
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            transport: Any = self.channel.transport
            transport.abortConnection()
            return
        super().handleContentChunk(data)  # type: ignore[no-untyped-call]


class _Page(Resource):
    """Serves every path, so that no page of twisted (listings, error pages) is reached."""

    isLeaf = True

    def __init__(self, admin: AdminHttp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._admin = admin

    def render(self, request: Any) -> bytes | int:
        """Reply to GET and HEAD; reject other methods with 405."""
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"server", b"regionkeeper")
        action = self._admin.actions.get(request.path)
        if action is not None:
            action(request)
            return NOT_DONE_YET
        if request.method in (b"GET", b"HEAD"):
            status, kind, body = self._admin.page(request.path)
        else:
            status, kind, body = 405, _TEXT, b"Only GET and HEAD.\n"
            request.setHeader(b"allow", b"GET, HEAD")
        request.setResponseCode(status)
        request.setHeader(b"content-type", kind)
        request.setHeader(b"content-length", str(len(body)).encode("ascii"))
        return b"" if request.method == b"HEAD" else body


class _Bounded(WrappingFactory):
    """Rejects connections beyond CONNECTIONS_MAX."""

    noisy = False

    def buildProtocol(self, addr: Any) -> Any:
        """Return a protocol for a new connection, or None beyond the limit; twisted then closes it."""
        if len(self.protocols) >= CONNECTIONS_MAX:
            return None
        return super().buildProtocol(addr)
