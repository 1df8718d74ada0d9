"""The admin port of every daemon: health, readiness, status and metrics over plain HTTP, for probes and for curl.

    GET /metrics   Prometheus text of one registry
    GET /health    200 {"healthy": true, …} while the process does its work, else 503    (liveness: restart me?)
    GET /ready     200 {"ready": true, …} once it can take its part, else 503            (readiness: send me work?)
    GET /status    JSON, whatever the daemon wants to tell

A daemon may add actions of its own under other paths; who may use them is for the action to check. Nothing else is
served, of the pages only GET and HEAD are understood, and no answer ever carries a traceback: a fault while
answering is logged here and reaches the caller as a 500 with one sentence. The port has no authentication, so it
listens only on the address it is given; give it one that strangers do not reach.
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
#: Open connections; one more is closed at once. Probes and scrapers need a handful.
CONNECTIONS_MAX: Final = 64

#: (holds, facts to show). A check is asked on the reactor's thread and answers from memory.
Check = Callable[[], tuple[bool, Mapping[str, object]]]
#: Longest request body that is read.
BODY_BYTES_MAX: Final = 4096
Page = tuple[int, bytes, bytes]
#: Answers a twisted request itself, now or later, and checks who asks.
Action = Callable[[Any], None]

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"


class AdminHttp:
    """What a daemon shows of itself. `listen` serves it."""

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
        """`status` and further `pages`, by path, return what msgspec can encode. All are asked for every request."""
        self.actions = dict(actions or {})
        self._pages: dict[bytes, Callable[[], Page]] = {
            b"/metrics": lambda: (200, CONTENT_TYPE_LATEST.encode("ascii"), generate_latest(registry)),
            b"/health": lambda: _verdict("healthy", health()),
            b"/ready": lambda: _verdict("ready", ready()),
            b"/status": lambda: (200, _JSON, _json(status())),
            **{path: _json_page(build) for path, build in (pages or {}).items()},
        }

    def listen(self, reactor: ListeningReactor, host: str, port: int) -> IListeningPort:
        """Serve on `host`:`port` (0: any free port). Raises twisted's CannotListenError when it is taken."""
        return reactor.listenTCP(port, self.site(), interface=host)

    def site(self) -> WrappingFactory:
        """A Twisted factory of the four pages, for those who bring their own listening port."""
        site = Site(_Page(self), timeout=IDLE_S)  # type: ignore[no-untyped-call]
        site.noisy = False
        site.requestFactory = _Request
        site.displayTracebacks = False
        site.log = _no_access_log  # type: ignore[method-assign]
        return _Bounded(site)  # type: ignore[no-untyped-call]

    def page(self, path: bytes) -> Page:
        """(status, content type, body) of one page; never raises."""
        build = self._pages.get(path)
        if build is None:
            return 404, _TEXT, b"There is /metrics, /health, /ready and /status.\n"
        try:
            return build()
        except Exception:  # the boundary of this port: the cause belongs in the log and not before strangers
            log.failure("GET {path} failed", path=path.decode("ascii", "replace"))
            return 500, _TEXT, b"A fault while answering; the log of this process says why.\n"


def _verdict(word: str, answer: tuple[bool, Mapping[str, object]]) -> Page:
    holds, facts = answer
    return 200 if holds else 503, _JSON, _json({word: holds, **facts})


def _json_page(build: Callable[[], object]) -> Callable[[], Page]:
    return lambda: (200, _JSON, _json(build()))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _no_access_log(request: Any) -> None:
    """Probes come every second; a line for each helps nobody."""


class _Request(Request):
    """A request whose body costs nothing: no page and no action has use for one, so a long one ends the connection.

    Twisted itself would collect it, in a file of any size, before anybody is asked whether the caller may.
    """

    _body_bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: ARG002
        """The headers are in: never make a file of what follows."""
        super().gotLength(0)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:
        """Part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            transport: Any = self.channel.transport
            transport.abortConnection()
            return
        super().handleContentChunk(data)  # type: ignore[no-untyped-call]


class _Page(Resource):
    """Every path ends here, so that no page of twisted's own (listings, error pages) is ever reached."""

    isLeaf = True

    def __init__(self, admin: AdminHttp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._admin = admin

    def render(self, request: Any) -> bytes | int:
        """Answer GET and HEAD; everything else is refused."""
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
    """Closes connections beyond CONNECTIONS_MAX before they cost anything."""

    noisy = False

    def buildProtocol(self, addr: Any) -> Any:
        """A protocol for one more connection; None, and twisted closes it, beyond the bound."""
        if len(self.protocols) >= CONNECTIONS_MAX:
            return None
        return super().buildProtocol(addr)
