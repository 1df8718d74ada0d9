"""The listening side of RPC between masters, region servers and tools: typed messages over one pipelined connection.

    server = RpcServer(dispatch, requests=messages.ServerRequest)    # dispatch(request) -> reply, or awaitable of it
    port = server.listen(reactor, "127.0.0.1", 21831)

`dispatch` rejects a request by raising RpcError(code, message, hint), which reaches the caller unchanged. Any other
exception is logged here and reaches the caller as Code.INTERNAL without details. Frames and codes: `coord.rpc.wire`.
Callers use `coord.rpc.client`, tools `coord.rpc.blocking`.

All frames queued in one turn of the reactor leave in one write. A server stops reading from a caller that does not read
its replies. Connections, unfinished frames and the time of a turn are bounded: `coord.rpc.budgets`.

With `credentials` every caller proves an identity before its first request is read (`coord.security`). `authorize` sees
the caller's identity and the decoded request, and raises RpcError if the caller lacks the permission; a handler may
read `caller_principal`. Without `credentials` every caller is NOBODY. While the cluster is being secured
(`coord.security.credentials`), callers without a proof are served as by an open server: NOBODY, and not authorized.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IListeningPort, IPushProducer, ITransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from coord.daemon import descriptors
from coord.metrics.spans import SpansByName
from coord.newcomers import pace
from coord.rpc.budgets import CONNECTIONS_MAX, RpcBudgets
from coord.rpc.connection import REQUESTS_MAX, Frames, RpcReactor, peer_name
from coord.rpc.wire import (
    FRAME_BYTES_MAX,
    Code,
    Failed,
    Payload,
    Reply,
    Request,
    RpcError,
    StreamError,
    decode_request,
    encode_body,
    encode_frame,
)
from coord.security import process
from coord.security.credentials import Credentials
from coord.security.principal import NOBODY, Principal
from coord.security.revocation import watch

__all__ = ["FRAME_BYTES_MAX", "Code", "RpcError", "RpcServer"]

log = Logger()

#: Connections that the kernel keeps until they are accepted. Beyond it, a newcomer retries after a second.
BACKLOG: Final = 1024

Dispatch = Callable[[Any], "msgspec.Struct | Awaitable[msgspec.Struct]"]
#: Raises RpcError if this identity may not make this request.
Authorize = Callable[[Principal, Any], None]

#: Seconds that a caller may take to prove its identity.
PROOF_WITHIN_S: Final = 10.0
#: Seconds that a rejected caller gets to read why.
REJECTED_S: Final = 2.0


@implementer(IPushProducer)
class _ServerConnection(Frames):
    """One caller. Requests are dispatched as they arrive and answered as they finish.

    The connection is the push producer of its replies: when the caller does not read them, the transport pauses it and
    it stops reading requests. It also stops reading while requests wait for the next turn (`coord.rpc.budgets`).
    """

    def __init__(self, server: RpcServer, reactor: RpcReactor, budgets: RpcBudgets, address: str) -> None:
        super().__init__(reactor, None if server.credentials is None else server.credentials.listener())
        self._server = server
        self._budgets = budgets
        self.address = address
        #: Time of each request that is not answered yet.
        self._in_progress: dict[int, float] = {}
        #: Received requests wait for a later turn.
        self._is_parked = False
        #: The caller does not read its replies.
        self._is_choked = False
        #: Callers without a whole request have sent enough in this second.
        self._is_held = False
        #: The time limit of the proof, then of a rejection.
        self._limit: IDelayedCall | None = None
        self._is_rejected = False

    def connectionMade(self) -> None:
        """Send the preamble and register for back-pressure."""
        if self._channel is not None:
            self._limit = self._reactor.callLater(PROOF_WITHIN_S, self.transport.abortConnection)
        super().connectionMade()
        self._server.connections[self] = None
        self._budgets.connected(self)
        self.transport.registerProducer(self, True)
        log.debug("{peer} has connected", peer=peer_name(self.transport))

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        """Unregister the connection. Requests in progress continue; their replies are dropped."""
        self.is_open = False
        self._end_limit()
        self._server.connections.pop(self, None)
        self._budgets.lost(self)
        log.debug("the connection with {peer} has ended", peer=peer_name(self.transport))

    def proved(self) -> None:
        """Handle the end of the handshake."""
        self._end_limit()
        who = "nobody, while the cluster is being secured" if self.is_unproven else str(self.peer)
        log.debug("{peer} is {who}", peer=peer_name(self.transport), who=who)

    def _end_limit(self) -> None:
        if self._limit is not None and self._limit.active():
            self._limit.cancel()
        self._limit = None

    def dataReceived(self, data: bytes) -> None:
        """Ignore further input of a rejected caller; otherwise as in the base class."""
        if not self._is_rejected:
            super().dataReceived(data)

    def complain(self, error: StreamError, more: str = "") -> None:
        """See the base. Anybody can cause such lines, so a flood is summed up."""
        summed = self._budgets.lines.more()
        if summed is not None:
            super().complain(error, more + summed)

    def drop(self, error: RpcError) -> None:
        """Close at once; a rejected caller gets time to read the sentence that was written to it."""
        if error.code != Code.UNAUTHENTICATED:
            super().drop(error)
            return
        # To close a socket with unread bytes would discard the sentence, too.
        self._is_rejected, self.is_open = True, False
        self._end_limit()
        self._limit = self._reactor.callLater(REJECTED_S, self.transport.abortConnection)
        self.transport.unregisterProducer()
        self.transport.loseWriteConnection()

    def end_if_revoked(self) -> None:
        """Close the connection, with a sentence, if its caller's credential is revoked."""
        why = self.revoked()
        if why and self.is_open and not self._is_rejected:
            log.info("connection with {peer} closed: {why}", peer=peer_name(self.transport), why=why)
            self.send(encode_frame(Failed(0, Code.UNAUTHENTICATED, why)))
            self._flush()
            self.drop(RpcError(Code.UNAUTHENTICATED, why))

    def pauseProducing(self) -> None:
        """Stop reading requests: unread replies pile up."""
        self._is_choked = True
        self._budgets.choked(self, is_choked=True)
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read requests again: the caller has read its replies."""
        self._is_choked = False
        self._budgets.choked(self, is_choked=False)
        if self._is_parked:
            self._budgets.park(self)
        else:
            self._read_again()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closing."""

    def bytes_received(self, data: bytes) -> None:
        """Handle the requests that `data` completes, for this connection's share of a turn; the rest waits."""
        payloads = self._reader.feed(data)
        if self._is_parked:
            return
        end = self._budgets.share_until()
        is_new = False
        for payload in payloads:
            is_new = True
            self.payload_received(payload)
            if self._reactor.seconds() >= end:
                self._park()
                break
        payloads.close()
        self._budgets.received(self, 0 if self._is_parked else self._reader.rest, is_new=is_new)

    def hold(self, *, is_held: bool) -> None:
        """Stop reading from a caller that has sent no whole request, or read again."""
        self._is_held = is_held
        if is_held:
            self.transport.pauseProducing()
        else:
            self._read_again()

    def _read_again(self) -> None:
        """Read from the caller, unless something else is in the way."""
        if not (self._is_parked or self._is_choked or self._is_held):
            self.transport.resumeProducing()

    def _park(self) -> None:
        """Stop reading and handle the rest of the received requests in a later turn."""
        self._is_parked = True
        self.transport.pauseProducing()
        self._budgets.park(self)

    def proceed(self) -> None:
        """Handle requests that wait, and read again if none is left."""
        if not self.is_open or not self._is_parked or self._is_choked:
            return
        self._is_parked = False
        self.dataReceived(b"")
        if self.is_open:
            self._read_again()

    def payload_received(self, payload: Payload) -> None:
        """Dispatch or reject one request."""
        if not isinstance(payload, Request):
            raise StreamError("the caller sent a reply; only requests are expected")
        request_id = payload.id
        if request_id in self._in_progress:
            raise StreamError(f"request id {request_id} is already in use")
        if len(self._in_progress) >= REQUESTS_MAX:
            self._fail(request_id, RpcError(Code.BUSY, f"{REQUESTS_MAX} requests of this connection are in progress"))
            return
        try:
            self._server.check(payload)
            self._budgets.asked(self)
            request = decode_request(payload, self._server.requests, self._server.receiver)
        except RpcError as error:
            self._fail(request_id, error)
            return
        self._in_progress[request_id] = self._reactor.seconds()
        try:
            self._server.calling, self._server.calling_principal = self.transport, self.peer
            if not self.is_unproven:
                self._server.authorize(self.peer, request)
            reply = self._server.dispatch(request)
        except Exception:  # boundary: send any error to the caller, and log it unless it is an RpcError
            self._failed(request_id, request, Failure())  # type: ignore[no-untyped-call]
            return
        if isinstance(reply, msgspec.Struct):
            self._reply(request_id, request, reply)
            return
        # A Deferred that is awaited costs a coroutine, and as much time as the rest of a small request.
        answer: Deferred[Any] = reply if isinstance(reply, Deferred) else ensureDeferred(_awaited(request, reply))
        answer.addCallback(self._answered, request_id, request)
        answer.addErrback(self._answer_failed, request_id, request)

    def _answered(self, reply: object, request_id: int, request: object) -> None:
        assert isinstance(reply, msgspec.Struct), f"dispatch of {type(request).__name__} returned {reply!r}"
        self._reply(request_id, request, reply)

    def _answer_failed(self, failure: Failure, request_id: int, request: object) -> None:
        self._failed(request_id, request, failure)

    def _ended(self, request_id: int, request: object) -> None:
        began = self._in_progress.pop(request_id)
        self._server.times.add(type(request).__name__, self._reactor.seconds() - began)

    def _reply(self, request_id: int, request: object, reply: msgspec.Struct) -> None:
        self._ended(request_id, request)
        try:
            self.send(encode_frame(Reply(request_id, encode_body(reply))))
        except RpcError as error:
            self._fail(request_id, error)

    def _failed(self, request_id: int, request: object, failure: Failure) -> None:
        self._ended(request_id, request)
        if isinstance(failure.value, RpcError):
            self._fail(request_id, failure.value)
            return
        log.failure("request {kind} failed", failure=failure, kind=type(request).__name__)
        self._fail(request_id, RpcError(Code.INTERNAL, f"{type(request).__name__} failed; the receiver's log says why"))

    def _fail(self, request_id: int, error: RpcError) -> None:
        self.send(encode_frame(Failed(request_id, error.code, error.message, error.hint)))


class RpcServer:
    """Dispatches the requests of any number of callers.

    `requests` is the tagged union of Structs that the server accepts. `dispatch` runs on the reactor's thread and
    returns a Struct or an awaitable of one. `receiver` returns the name of this process for error messages. `check`
    sees each request before it is decoded and raises RpcError for a request that is addressed to another receiver.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        requests: Any,
        receiver: Callable[[], str] = lambda: "the receiver",
        check: Callable[[Request], None] = lambda _request: None,
        authorize: Authorize = lambda _identity, _request: None,
        credentials: Credentials | None = None,
    ) -> None:
        self.dispatch = dispatch
        self.requests = requests
        self.receiver = receiver
        self.check = check
        self.authorize = authorize
        #: Credentials that this server proves to callers, by default those of this process; None for an open server.
        self.credentials = credentials or process.own()
        #: Times from requests to their replies, by kind.
        self.times = SpansByName()
        #: In the order of their begin. A set would have another order in each process, and so would a simulation.
        self.connections: dict[_ServerConnection, None] = {}
        #: Connection of the request that is being dispatched, or was dispatched last.
        self.calling: ITransport | None = None
        self.calling_principal: Principal = NOBODY
        self._port: IListeningPort | None = None
        #: Budgets of the callers of the listening port.
        self.budgets: RpcBudgets | None = None
        watch(self)

    def revocations_changed(self) -> None:
        """See `RevocationWatcher`."""
        for connection in list(self.connections):
            connection.end_if_revoked()

    def caller(self) -> str:
        """Return "host:port" of the caller whose request is being dispatched.

        The value is valid until `dispatch` returns, and in a coroutine until its first await.
        """
        return "" if self.calling is None else peer_name(self.calling)

    def caller_principal(self) -> Principal:
        """Return the proved identity of the caller whose request is being dispatched, NOBODY on an open server.

        Valid as long as `caller`.
        """
        return self.calling_principal

    def factory(self, reactor: RpcReactor, connections_max: int = CONNECTIONS_MAX) -> Factory:
        """Return a Twisted factory, for callers with their own listening port (TLS, tests)."""
        server = self
        is_tls = self.credentials is not None and self.credentials.certificate is not None
        budgets = self.budgets = RpcBudgets(reactor, connections_max, is_tls=is_tls)

        class _ServerFactory(Factory):
            noisy = False

            def buildProtocol(self, addr: IAddress | None) -> _ServerConnection | None:
                """Return the protocol of a new connection, or None beyond the bound; twisted then closes it."""
                address = str(getattr(addr, "host", ""))
                return _ServerConnection(server, reactor, budgets, address) if budgets.has_room(address) else None

        return _ServerFactory()

    def listen(self, reactor: RpcReactor, host: str, port: int) -> IListeningPort:
        """Listen on `host`:`port` (0: any free port). Raise twisted's CannotListenError if the port is in use."""
        assert self._port is None, "this server listens already"
        factory = self.factory(reactor, min(CONNECTIONS_MAX, descriptors() // 2))
        self._port = reactor.listenTCP(port, factory, BACKLOG, interface=host)
        if self.budgets is not None:
            pace(self._port, self.budgets.newcomers)
        return self._port

    async def stop(self) -> None:
        """Stop listening and close every connection; pending calls fail with a broken connection."""
        for connection in list(self.connections):
            connection.transport.loseConnection()
        port, self._port = self._port, None
        if port is not None:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped


async def _awaited(request: object, answer: Awaitable[msgspec.Struct]) -> msgspec.Struct:
    """Await the reply. Raise the exception of `answer`."""
    assert inspect.isawaitable(answer), f"dispatch of {type(request).__name__} returned {answer!r}"
    return await answer
