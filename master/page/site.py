"""Requests of the live page: `/`, its files below `/ui/`, its data, and the stream.

    GET /                    the page
    GET /ui/<file>           scripts, styles, icon
    GET /ui/stream           server-sent events (`feed.py`)
    GET /ui/data/<view>      JSON of one view (`views.py`)

A secured daemon serves the page for a token (`coord/security/admin.py`), an open one to browsers on this machine alone.
Everything is read-only: other methods than GET and HEAD get 405. The policy headers let the browser load and request
only from this master, and forbid other pages to show this one in a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.errors import CoordError
from coord.hosts import is_loopback
from coord.http import AdminHttp
from coord.security import process
from master.page.feed import Feed
from master.page.views import NotFound, Views

log = Logger()

#: Headers of every reply.
HEADERS: Final = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        b" base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json"
_FOR_THIS_MACHINE: Final = b"An open daemon serves the live page to its own machine alone: use a tunnel (ssh -L).\n"

#: Decides whether a request may be served.
Gate = Callable[[Any], bool]


def may_serve(request: Any) -> bool:
    """Return True for a caller of a secured daemon, whose token the port has checked, or a browser on this machine."""
    return process.own() is not None or is_local(request)


def is_local(request: Any) -> bool:
    """Return True for a browser on this machine."""
    host = str(getattr(request.getClientAddress(), "host", "")).partition("%")[0]
    return is_loopback(host)


def load_assets() -> dict[bytes, tuple[bytes, bytes]]:
    """Return (content type, content) of each file of the page by its path. They stay in memory."""
    found: dict[bytes, tuple[bytes, bytes]] = {}
    for one in files("master.page").joinpath("assets").iterdir():
        suffix = one.name[one.name.rfind(".") :]
        if suffix in _TYPES:
            found[b"/ui/" + one.name.encode()] = (_TYPES[suffix], one.read_bytes())
    found[b"/"] = found[b"/ui/index.html"]
    return found


class PageSite:
    """The front of an admin port (`coord/http.py`)."""

    def __init__(self, feed: Feed, views: Views, gate: Gate = may_serve) -> None:
        self._feed = feed
        self._views = views
        self._gate = gate
        self._assets: Mapping[bytes, tuple[bytes, bytes]] = load_assets()

    def __call__(self, request: Any) -> None:
        """Answer one request, now or later."""
        for name, value in HEADERS.items():
            request.setHeader(name, value)
        path: bytes = request.path
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            _finish(request, 405, _TEXT, b"Only GET and HEAD: this page changes nothing.\n")
        elif not self._gate(request):
            _finish(request, 403, _TEXT, _FOR_THIS_MACHINE)
        elif path in self._assets:
            _finish(request, 200, *self._assets[path])
        elif path == b"/ui/stream":
            self._stream(request)
        elif path.startswith(b"/ui/data/"):
            self._data(request, path.removeprefix(b"/ui/data/").decode("ascii", "replace"))
        else:
            _finish(request, 404, _TEXT, b"Not found.\n")

    def _stream(self, request: Any) -> None:
        if self._feed.is_full or (request.method == b"GET" and not AdminHttp.begin_stream(request)):
            request.setHeader(b"retry-after", b"10")
            _finish(request, 503, _TEXT, b"Too many browsers listen to this master already: close one.\n")
            return
        request.setResponseCode(200)
        request.setHeader(b"content-type", b"text/event-stream")
        request.setHeader(b"x-accel-buffering", b"no")
        if request.method == b"HEAD":
            request.finish()
            return
        last_id = request.getHeader(b"last-event-id") or b""
        request.write(b"retry: 1000\n\n")
        self._feed.attach(request, last_id.decode("ascii", "replace")[:100])

    def _data(self, request: Any, view: str) -> None:
        given = {
            name.decode("utf-8", "replace"): values[0].decode("utf-8", "replace")
            for name, values in request.args.items()
        }
        found = ensureDeferred(self._views.read(view, given))
        found.addCallbacks(lambda value: _answered(request, value), lambda failure: _failed(request, failure))


def _answered(request: Any, value: object) -> None:
    _finish(request, 200, _JSON, msgspec.json.encode(value))


def _failed(request: Any, failure: Failure) -> None:
    """Reply with one sentence. The cause of an internal error belongs in the log."""
    error = failure.value
    if isinstance(error, NotFound):
        _finish(request, 404, _TEXT, f"{error}\n".encode())
    elif isinstance(error, CoordError):
        _finish(request, 503, _TEXT, f"{error}\n".encode())
    else:
        log.failure("GET {path} failed", failure=failure, path=request.path.decode("ascii", "replace"))
        _finish(request, 500, _TEXT, b"Internal error; see the log of this master.\n")


def _finish(request: Any, status: int, kind: bytes, body: bytes) -> None:
    """Send a complete reply, unless the browser has gone."""
    if request.channel is None or request._disconnected:
        return
    request.setResponseCode(status)
    request.setHeader(b"content-type", kind)
    request.setHeader(b"content-length", str(len(body)).encode("ascii"))
    if request.method != b"HEAD":
        request.write(body)
    request.finish()
