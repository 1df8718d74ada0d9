"""The admin port of every daemon: health, readiness, status and metrics over HTTP, for probes and curl.

    GET /metrics   Prometheus text of one registry
    GET /health    200 {"healthy": true, …} while the process works, else 503            (liveness: restart me?)
    GET /ready     200 {"ready": true, …} while the process can serve, else 503          (readiness: route to me?)
                   /ready?role=active: 200 only while the page also says "role": "active"
    GET /status    JSON with the daemon's state

A daemon may add actions under other paths; each action checks its caller. It may also have a *front* that answers `/`
and everything below `/ui/`, with streams that stay open. Pages accept only GET and HEAD. A reply never contains a
traceback: an exception is logged and becomes a 500 with one sentence. A daemon with credentials demands a token
(`coord.security.admin`) for its front and all pages but /health and /ready. An open daemon serves everybody who reaches
the configured address. With TLS on every port (`coord.security.credentials`) the port is HTTPS, and a certificate of
the cluster replaces a token.

Callers that do not finish a request cannot close the port to probes. A request has a time limit, and when there are too
many connections the oldest one without a whole request is closed for a new one. An action with an endless reply (a
stream of events) calls `begin_stream`; its connection then counts as a stream.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from coord.daemon import ListeningReactor
from coord.newcomers import HANDSHAKE_S, PLAIN_S, REFUSAL_S, NewcomerBudget, pace
from coord.security import process
from coord.security.admin import OPEN_PATHS, is_certified, is_known_host, objection
from coord.security.revocation import watch
from coord.tls.context import WANT
from coord.tls.listening import TlsFactory
from coord.tls.reloading import TlsContexts

__all__ = ["AdminHttp", "Check"]

log = Logger()

#: Seconds that a connection may stay open without a request.
IDLE_S: Final = 60
#: Seconds from a connect, or from the first byte of a further request, to the last byte of the request.
REQUEST_S_MAX: Final = 5.0
#: Limit of connections of all callers, without streams. Probes and scrapers need a handful. The limit is generous,
#: because half requests cost little, and with a low limit a crowd of them would be closed and opened again all the
#: time.
CONNECTIONS_MAX: Final = 256
#: Connections from one address, without streams. Probes of a local cluster share an address.
CONNECTIONS_PER_ADDRESS_MAX: Final = 192
#: Connections that the kernel keeps until they are accepted. Beyond it, a newcomer tries again after a second.
BACKLOG: Final = 1024
#: Answers without end at the same time, such as streams of events to open pages.
STREAMS_MAX: Final = 32
#: Interval between searches for late requests, while a request is unfinished.
SWEEP_S: Final = 1.0

#: (holds, facts to show). A check runs on the reactor's thread and uses only memory.
Check = Callable[[], tuple[bool, Mapping[str, object]]]
#: Longest accepted request body.
BODY_BYTES_MAX: Final = 4096
Page = tuple[int, bytes, bytes]
#: Handles a twisted request, now or later, and checks the caller.
Action = Callable[[Any], None]

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_STRANGE_HOST: Final = b"This port does not answer to that host name: use its address, or name it with --admin-name.\n"
_UNAUTHORIZED: Final = 401
_SECURING: Final = "callers without a proof are served, too, until `rk secure --finish`"
#: Cookie in which a browser keeps the token of its user, after `/?token=…`.
_COOKIE: Final = b"rk_token"
_BEARER: Final = "Bearer "
_HEAD_END: Final = b"\r\n\r\n"
#: Bytes of a first request's head before twisted decides about it: twisted's own limit of one line.
_HEAD_BYTES_MAX: Final = 16_384
#: Page that a browser without a token gets instead of the front. Its form sends `/?token=…`.
_LOGIN: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>RegionKeeper</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<h1>RegionKeeper</h1><p>This daemon is secured. <code>rk certs token</code> prints your token.</p>
<form action="/"><label>Token <input type="password" name="token" autocomplete="off" autofocus></label>
<button>Open</button></form></html>
"""
_LOGIN_POLICY: Final = b"default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


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
        front: Action | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        """`status` and the further `pages` (by path) return values that msgspec can encode. They are called for every
        request.

        `front` answers `/` and the paths below `/ui/`. `names` are the host names that requests may use beside
        addresses and loopback names; None: any.
        """
        self.actions = dict(actions or {})
        self.front = front
        self._names = names
        self._ready = ready
        self._credentials = process.own()
        self._bounded: list[_Bounded] = []
        files = process.tls_files()
        #: Serve callers without a certificate, too: probes and browsers.
        self._tls = None if files is None else TlsContexts(dataclasses.replace(files, client_auth=WANT))
        watch(self)
        self._pages: dict[bytes, Callable[[], Page]] = {
            b"/metrics": lambda: (200, CONTENT_TYPE_LATEST.encode("ascii"), generate_latest(registry)),
            b"/health": lambda: _verdict("healthy", self._with_certificates(health())),
            b"/ready": lambda: _verdict("ready", ready()),
            b"/status": lambda: (200, _JSON, _json(status())),
            **{path: _json_page(build) for path, build in (pages or {}).items()},
        }

    def _with_certificates(self, answer: tuple[bool, Mapping[str, object]]) -> tuple[bool, Mapping[str, object]]:
        """Return the answer with two more degradations, because a restart would help against neither: certificates that
        soon expire, and callers that are still served without a proof."""
        if self._credentials is None:
            return answer
        found = self._credentials.expiring()
        if self._credentials.is_securing():
            found = [*found, _SECURING]
        if not found:
            return answer
        healthy, facts = answer
        known = facts.get("degraded", [])
        assert isinstance(known, list), known
        return healthy, {**facts, "degraded": [*known, *found]}

    def listen(self, reactor: ListeningReactor, host: str, port: int) -> IListeningPort:
        """Serve on `host`:`port` (0: any free port). Raise twisted's CannotListenError if the port is in use."""
        found = reactor.listenTCP(port, self.site(reactor), BACKLOG, interface=host)
        pace(found, self._bounded[-1].newcomers)
        return found

    def site(self, reactor: Any) -> WrappingFactory:
        """Return a Twisted factory of the pages, with TLS if the daemon has certificates."""
        site = Site(_Page(self), timeout=IDLE_S)  # type: ignore[no-untyped-call]
        site.noisy = False
        site.requestFactory = _Request
        site.displayTracebacks = False
        site.log = _no_access_log  # type: ignore[method-assign]
        bounded = _Bounded(reactor, site, PLAIN_S if self._tls is None else HANDSHAKE_S)
        self._bounded.append(bounded)
        return bounded if self._tls is None else TlsFactory(bounded, self._tls.server)

    def revocations_changed(self) -> None:
        """Close streams whose callers have lost the right to read them. Every other request is checked when it
        arrives."""
        for bounded in self._bounded:
            bounded.close_streams(lambda request: self.objection(request) is not None)

    @staticmethod
    def begin_stream(request: Any) -> bool:
        """Let an action answer this request without end. Return False if STREAMS_MAX others do: answer 503."""
        return _connection_of(request).begin_stream(request)

    def answers_to(self, host: bytes | None) -> bool:
        """Return True if requests may use this Host header (`coord/security/admin.py`)."""
        shown = None if host is None else host.decode("ascii", "replace")
        return self._names is None or is_known_host(shown, self._names)

    def objection(self, request: Any) -> tuple[int, str] | None:
        """Return status and sentence if this request may not be served. Actions check tokens of their own."""
        if request.path in self.actions:
            return None
        if self._tls is not None:
            sealed: Any = _connection_of(request).transport
            if is_certified(sealed.engine):
                return None
        sent, by_query = _token_of(request)
        found = objection(self._credentials, request.path.decode("ascii", "replace"), sent)
        if found is None and by_query and self._credentials is not None:
            is_tls = self._tls is not None
            request.addCookie(_COOKIE, sent.encode(), path=b"/", secure=is_tls, httpOnly=True, sameSite="strict")
        return found

    def proves(self, request: Any) -> bool:
        """Return True if a request that is served needed a proof, or if this port serves everybody."""
        is_open = request.path in self.actions or request.path.decode("ascii", "replace") in OPEN_PATHS
        return self._credentials is None or not is_open

    def page(self, path: bytes, role: str = "") -> Page:
        """Return (status, content type, body) of one page; never raises.

        `role`: the process is ready only in this role, for a load balancer that looks for the active master.
        """
        build = self._pages.get(path)
        if role and path == b"/ready":
            build = partial(_ready_in, role, self._ready)
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


def _ready_in(role: str, ready: Check) -> Page:
    """Return the page of a process that is ready only in one role."""
    holds, facts = ready()
    return _verdict("ready", (holds and facts.get("role") == role, facts))


def _json_page(build: Callable[[], object]) -> Callable[[], Page]:
    return lambda: (200, _JSON, _json(build()))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _no_access_log(request: Any) -> None:
    """Log no requests: probes come every second."""


class _Request(Request):
    """A request whose body is never stored. No page or action uses a body, and a long body ends the connection.

    Twisted would write a body of any size to a file before the action could check its caller.
    """

    _body_bytes = 0

    def process(self) -> None:
        """Answer the request, which is complete."""
        _connection_of(self).request_complete()
        super().process()  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """End the answer."""
        connection = None if self.channel is None else _connection_of(self)
        super().finish()  # type: ignore[no-untyped-call]
        if connection is not None:
            connection.answered()

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
        if not self._admin.answers_to(request.getHeader(b"host")):
            return _reply(request, 403, _TEXT, _STRANGE_HOST)
        rejected = self._admin.objection(request)
        if rejected is not None:
            if rejected[0] == _UNAUTHORIZED:
                request.setHeader(b"www-authenticate", b"Bearer")
                if self._admin.front is not None and request.path == b"/":
                    request.setHeader(b"content-security-policy", _LOGIN_POLICY)
                    return _reply(request, rejected[0], b"text/html; charset=utf-8", _LOGIN)
            return _reply(request, rejected[0], _TEXT, rejected[1].encode() + b"\n")
        if self._admin.proves(request):
            _connection_of(request).proved()
        action = self._admin.actions.get(request.path)
        if action is None and (request.path == b"/" or request.path.startswith(b"/ui/")):
            action = self._admin.front
        if action is not None:
            action(request)
            return NOT_DONE_YET
        if request.method in (b"GET", b"HEAD"):
            role = request.args.get(b"role", [b""])[0].decode("ascii", "replace")
            status, kind, body = self._admin.page(request.path, role)
        else:
            status, kind, body = 405, _TEXT, b"Only GET and HEAD.\n"
            request.setHeader(b"allow", b"GET, HEAD")
        return _reply(request, status, kind, body)


def _reply(request: Any, status: int, kind: bytes, body: bytes) -> bytes:
    """Set the headers of a reply and return its body."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", kind)
    request.setHeader(b"content-length", str(len(body)).encode("ascii"))
    return b"" if request.method == b"HEAD" else body


def _token_of(request: Any) -> tuple[str, bool]:
    """Return the token of a request, "" for none, and whether the query has it: `/?token=…` in a browser."""
    header = (request.getHeader(b"authorization") or b"").decode("ascii", "replace")
    if header.startswith(_BEARER):
        return header[len(_BEARER) :].strip(), False
    query = request.args.get(b"token", [b""])[0].decode("ascii", "replace")
    cookie = (request.getCookie(_COOKIE) or b"").decode("ascii", "replace")
    return query or cookie, bool(query)


def _connection_of(request: Any) -> _AdminConnection:
    connection: _AdminConnection = request.channel.transport
    return connection


class _AdminPhase(enum.Enum):
    """State of a connection of the admin port."""

    #: The state before a whole request has arrived: after the connect, or after the first byte of a further request.
    UNFINISHED = "unfinished"
    #: The last request is answered; the caller may send another one.
    IDLE = "idle"
    #: A request is being answered.
    ANSWERING = "answering"
    #: A request is being answered without end. Twisted's time limit is off during an answer.
    STREAMING = "streaming"


class _Crowd:
    """The connections in each phase, in the order in which they entered the phase."""

    def __init__(self) -> None:
        self._phases: dict[_AdminPhase, dict[_AdminConnection, None]] = {phase: {} for phase in _AdminPhase}

    def move(self, connection: _AdminConnection, before: _AdminPhase | None, after: _AdminPhase | None) -> None:
        """Record that a connection goes from one phase to another. None: the connection is new, or it has ended."""
        if before is not None:
            self._phases[before].pop(connection, None)
        if after is not None:
            self._phases[after][connection] = None

    def among(self, phase: _AdminPhase) -> Collection[_AdminConnection]:
        """Return the connections in a phase, oldest first."""
        return self._phases[phase].keys()

    def count(self) -> int:
        """Return the number of connections that are not streams."""
        return sum(len(found) for phase, found in self._phases.items() if phase is not _AdminPhase.STREAMING)

    def oldest_waiting(self) -> _AdminConnection | None:
        """Return the connection that gives way first, None if all are being answered."""
        for phase in (_AdminPhase.UNFINISHED, _AdminPhase.IDLE):
            for one in self._phases[phase]:
                return one
        return None


class _AdminConnection(ProtocolWrapper):
    """A connection, between the socket and twisted's HTTP.

    Twisted's protocol is made when the head of the first request is complete. Until then a connection costs little more
    than its socket, so a crowd of half requests costs little time and memory.
    """

    def __init__(self, factory: _Bounded, address: str, peer: Any) -> None:
        super().__init__(factory, None)  # type: ignore[arg-type]
        self._bounds = factory
        self._peer = peer
        self._head = b""
        self.address = address
        self.phase: _AdminPhase | None = None
        #: The request that is answered without end.
        self.stream: Any = None
        #: Time of the connect, or of the first byte of an unfinished request.
        self.since = 0.0
        self._is_proved = False
        self._enter(_AdminPhase.UNFINISHED)

    def _enter(self, phase: _AdminPhase) -> None:
        if phase is _AdminPhase.UNFINISHED:
            self.since = self._bounds.reactor.seconds()
        before, self.phase = self.phase, phase
        self._bounds.moved(self, before, phase)

    def logPrefix(self) -> str:
        """Return the name of this kind of connection."""
        return "admin"

    def makeConnection(self, transport: Any) -> None:
        """Wait for the first request."""
        Protocol.makeConnection(self, transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Note the beginning of a further request. Pass complete heads of requests on to Twisted."""
        if self.wrappedProtocol is None:
            self._head += data
            # Twisted answers heads that are too long.
            if _HEAD_END not in self._head and len(self._head) < _HEAD_BYTES_MAX:
                return
            data, self._head = self._head, b""
            self.wrappedProtocol = self._bounds.wrappedFactory.buildProtocol(self._peer)
            super().makeConnection(self.transport)
        elif self.phase is _AdminPhase.IDLE:
            self._enter(_AdminPhase.UNFINISHED)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def request_complete(self) -> None:
        """Note that the whole request has arrived."""
        self._enter(_AdminPhase.ANSWERING)

    def proved(self) -> None:
        """Note that the caller may read pages."""
        if not self._is_proved:
            self._is_proved = True
            self._bounds.proved()

    def answered(self) -> None:
        """Note the end of the answer."""
        self._enter(_AdminPhase.IDLE)

    def begin_stream(self, request: Any) -> bool:
        """Count this connection among the streams, if there is room."""
        if self._bounds.streams() >= STREAMS_MAX:
            return False
        self.stream = request
        self._enter(_AdminPhase.STREAMING)
        return True

    def give_way(self) -> None:
        """Close at once."""
        self._forget()
        transport: Any = self.transport
        transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Forget this connection."""
        self._forget()
        if self.wrappedProtocol is not None:
            super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _forget(self) -> None:
        before, self.phase = self.phase, None
        self._bounds.moved(self, before, None)


class _Bounded(WrappingFactory):
    """Bounds the connections and the time of unfinished requests."""

    noisy = False

    def __init__(self, reactor: Any, site: Site, cost_s: float) -> None:
        """`cost_s`: the budget that a connection uses until its caller may read pages."""
        super().__init__(site)  # type: ignore[no-untyped-call]
        self.reactor = reactor
        self.newcomers = NewcomerBudget(reactor)
        self._cost_s = cost_s
        self._all = _Crowd()
        self._by_address: defaultdict[str, _Crowd] = defaultdict(_Crowd)
        self._sweep_due: float | None = None

    def buildProtocol(self, addr: Any) -> Any:
        """Return a protocol for a new connection, or None if all others are being answered; twisted then closes it."""
        address = str(getattr(addr, "host", ""))
        own = self._by_address.get(address)
        for most, crowd in ((CONNECTIONS_PER_ADDRESS_MAX, own), (CONNECTIONS_MAX, self._all)):
            if crowd is not None and crowd.count() >= most:
                oldest = crowd.oldest_waiting()
                if oldest is None:
                    self.newcomers.charge(REFUSAL_S)
                    return None
                oldest.give_way()
                break
        self.newcomers.charge(self._cost_s)
        return _AdminConnection(self, address, addr)

    def proved(self) -> None:
        """Take back the charge for a connection whose caller may read pages."""
        self.newcomers.give_back(self._cost_s)

    def moved(self, connection: _AdminConnection, before: _AdminPhase | None, after: _AdminPhase | None) -> None:
        """Record the new phase of a connection; None: the connection is closed."""
        if before is after:
            return
        own = self._by_address[connection.address]
        self._all.move(connection, before, after)
        own.move(connection, before, after)
        if after is _AdminPhase.UNFINISHED:
            self._watch()
        elif after is None and not own.count() and not own.among(_AdminPhase.STREAMING):
            del self._by_address[connection.address]

    def streams(self) -> int:
        """Return the number of streams."""
        return len(self._all.among(_AdminPhase.STREAMING))

    def close_streams(self, is_rejected: Callable[[Any], bool]) -> None:
        """Close the streams whose requests are rejected now."""
        for one in list(self._all.among(_AdminPhase.STREAMING)):
            if is_rejected(one.stream):
                one.give_way()

    def _watch(self) -> None:
        """Search for late requests after a while."""
        if self._sweep_due is None:
            self._sweep_due = self.reactor.seconds() + SWEEP_S
            self.reactor.callLater(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now = self.reactor.seconds()
        # After a pause of this process, requests may wait in the kernel.
        was_stopped = self._sweep_due is None or now - self._sweep_due > SWEEP_S
        self._sweep_due = None
        unfinished = self._all.among(_AdminPhase.UNFINISHED)
        for one in list(unfinished):
            if was_stopped or now - one.since < REQUEST_S_MAX:
                break
            one.give_way()
        if unfinished:
            self._watch()
