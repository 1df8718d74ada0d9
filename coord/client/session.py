"""A ZooKeeper session for processes that run a Twisted reactor: connects, keeps it alive, comes back.

    client = ZkClient(reactor, "a:2181,b:2181,c:2181/regions", 3000, name="master")
    await client.connect()
    data, stat = await client.get("/epoch")

Works on our store and on Apache ZooKeeper 3.9 alike. All requests are pipelined; answers come in the order of the
requests; nothing is sent twice: what was waiting when a connection broke fails with ConnectionLoss and may or may not
have been performed. Watches alone are set again by the client.

    NEW --connect--> SUSPENDED <----------> CONNECTED        any --close--> CLOSED
                        |                       |
                        +---- the server says: EXPIRED, AUTH_FAILED; connect() then begins a new session

Events before answers: a watch callback runs before the answer to any request that could see a newer state. A *gap*
(EVENT_GAP) tells a persistent watch that events may have been missed while the client was away: read again. It comes
after the watch is in force again. One-shot watches need none: the server fires them for what happened meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred, fail, gatherResults, maybeDeferred, succeed
from twisted.internet.interfaces import IConnector
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.client.connection import StoreConnection, WatchOrder
from coord.client.hosts import HostCycle, parse_hosts
from coord.client.requests import Requests
from coord.client.secured import Secured
from coord.client.watches import WatchBook, WatchCallback
from coord.env import Clock, Rng
from coord.env_os import OsClock, OsEntropy, OsRng
from coord.errors import AuthFailed, ConnectionLoss, InvalidTransition, OperationError, SessionExpired
from coord.wire import records as r
from coord.wire.codec import decode_sasl, encode_sasl
from coord.wire.sasl import SaslClient, SaslError

log = Logger()

#: To persistent watches, after a reconnect: events may have been missed. Not a type of the protocol.
EVENT_GAP: Final = -100

#: No server is given less time to accept and answer a connect request, however short the session.
CONNECT_MS_MIN: Final = 200
#: A connection that lived shorter than this counts as a failed attempt: the pauses keep growing.
SETTLED_MS: Final = 1000


class SessionState(enum.Enum):
    """Where a session stands; what `on_state` callbacks get."""

    NEW = "new"
    SUSPENDED = "suspended"
    CONNECTED = "connected"
    EXPIRED = "expired"
    AUTH_FAILED = "auth failed"
    CLOSED = "closed"


_NEW, _SUSPENDED, _CONNECTED, _EXPIRED, _AUTH_FAILED, _CLOSED = SessionState
_TRANSITIONS: Final[dict[SessionState, tuple[SessionState, ...]]] = {
    _NEW: (_SUSPENDED, _CLOSED),
    _SUSPENDED: (_CONNECTED, _EXPIRED, _AUTH_FAILED, _CLOSED),
    _CONNECTED: (_SUSPENDED, _AUTH_FAILED, _CLOSED),
    _EXPIRED: (_SUSPENDED, _CLOSED),
    _AUTH_FAILED: (_SUSPENDED, _CLOSED),
    _CLOSED: (_SUSPENDED,),
}


def _ended(state: SessionState, path: str) -> OperationError:
    """The error of a request in a session that is in `state`, which is not CONNECTED."""
    if state is _EXPIRED:
        return SessionExpired(path)
    if state is _AUTH_FAILED:
        return AuthFailed(path)
    return ConnectionLoss(path, f"the session is {state.value}")


def _told_elsewhere(_: Failure) -> None:
    """Refusals come through auth_refused, a lost connection through connection_lost."""


class _OneAttempt(ClientFactory):
    """Makes the one connection of one attempt."""

    noisy = False

    def __init__(self, connection: Protocol, failed: Callable[[str], None]) -> None:
        self._connection = connection
        self._failed = failed

    def buildProtocol(self, _addr: object) -> Protocol:
        """Twisted: TCP is connected."""
        return self._connection

    def clientConnectionFailed(self, _connector: IConnector, reason: Failure) -> None:
        """Twisted: there is no TCP connection."""
        self._failed(reason.getErrorMessage())


class ZkClient(Requests):
    """One session at a time. The requests are methods of `Requests`; all of this class runs in the reactor's thread.

    `hosts` is `host:port,host:port[/chroot]`, tried in an order of this client's own. `timeout_ms` is what is asked
    for; the attribute of that name is what the server granted. `name` stands in the log. `access` is how the store is
    got into; ConfigError is raised for files of it that cannot be used.
    """

    def __init__(
        self,
        reactor: Any,
        hosts: str,
        timeout_ms: int,
        *,
        name: str = "client",
        access: StoreAccess = OPEN_ACCESS,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        addresses, chroot = parse_hosts(hosts)
        super().__init__(chroot, acl=access.acl())
        self.name = name
        self.state: SessionState = _NEW
        self.session_id: int = 0
        #: `host:port` of the server last tried.
        self.server: str = ""
        #: Why the last attempt to connect failed; "" once one has not.
        self.trouble: str = ""
        #: Negotiated; before the first connection, what was asked for.
        self.timeout_ms: int = timeout_ms
        self._wanted_ms = timeout_ms
        self._passwd: bytes = r.NO_PASSWD
        self._last_zxid: int = 0
        self._last_contact_ms: int = 0
        self._reactor = reactor
        self._clock: Clock = clock or OsClock()
        self._hosts = HostCycle(addresses, rng or OsRng(), timeout_ms=timeout_ms)
        self._connection: StoreConnection | None = None
        self._trying: StoreConnection | None = None
        self._connector: Any = None
        self._pause: Any = None
        self._opened_ms: int = 0
        self._closing: Deferred[None] | None = None
        self._waiters: list[Deferred[None]] = []
        self._listeners: list[Callable[[SessionState], object]] = []
        self._auths: list[tuple[bytes, bytes]] = [(b"digest", access.auth.encode())] if access.auth else []
        self._sasl = access.sasl
        self._tls = access.tls_context()
        self._watches = WatchBook()

    # --- what a caller sees -------------------------------------------------------------------------------------------

    @property
    def last_contact_s(self) -> float:
        """The monotonic time before which the server certainly had not yet forgotten us.

        It is when the newest *answered* request or ping was sent, not when its answer came: the server began to count
        the session timeout then or later, so a lease may run until last_contact_s + timeout_ms / 1000 and no longer.
        """
        connection = self._connection
        proven_ms = connection.proven_ms if connection is not None else 0
        return max(self._last_contact_ms, proven_ms) / 1000

    @property
    def left_s(self) -> float:
        """Seconds for which the session surely lives on by this process's own clock, if no more answer comes; not
        below 0."""
        return max(0.0, self.last_contact_s + (self.timeout_ms - self._clock.monotonic_ms()) / 1000)

    @property
    def last_zxid(self) -> int:
        """The newest zxid that an answer carried."""
        connection = self._connection
        return max(self._last_zxid, connection.last_zxid if connection is not None else 0)

    def on_state(self, callback: Callable[[SessionState], object]) -> Callable[[], None]:
        """Call `callback(state)` on every change; returns the function that ends this."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def connect(self) -> Deferred[None]:
        """Begin a session and try until a server accepts it; fires when connected.

        After EXPIRED, AUTH_FAILED or CLOSED this begins a new session without the old one's watches; credentials given
        to add_auth are kept. Fails only when the client is closed meanwhile or its credentials are refused.
        """
        if self._closing is not None:
            return fail(ConnectionLoss("", "the client is closing"))
        if self.state in (_SUSPENDED, _CONNECTED):
            return self.when_connected()
        self.session_id = 0
        self._passwd = r.NO_PASSWD
        self._last_zxid = 0
        self._watches.clear()
        self._hosts.succeeded()
        self._become(_SUSPENDED)
        connected = self.when_connected()
        self._try_next()
        return connected

    def when_connected(self) -> Deferred[None]:
        """Fires once the session is connected, at once if it is; fails if it ends instead."""
        if self.state is _CONNECTED:
            return succeed(None)
        if self.state is not _SUSPENDED:
            return fail(_ended(self.state, ""))
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def close(self) -> Deferred[None]:
        """End the session on the server, so that its ephemerals go at once, and stop. Fires when that is done.

        Requests sent before are answered first. Without a connection the session is left to expire. Never fails.
        """
        if self._closing is not None:
            return self._closing
        if self._connection is None:
            self._stop()
            return succeed(None)
        done = self._closing = Deferred()
        connection = self._connection
        answer = connection.ask(r.OP_CLOSE_SESSION, b"", None, "")
        timer = self._reactor.callLater(self.timeout_ms / 3000, connection.drop, "the server does not answer the close")

        def closed(_: object) -> None:
            if timer.active():
                timer.cancel()
            connection.drop("session closed")

        # Answered, refused or cut off: in each case nothing more is to be done on this side.
        answer.addBoth(closed)
        return done

    def add_auth(self, scheme: str, credential: bytes) -> Deferred[None]:
        """Add an identity to the session, now and after every reconnect.

        Fails with AuthFailed when the server refuses; the session is then of no more use.
        """
        self._auths.append((scheme.encode(), credential))
        if self._connection is None:
            return self.when_connected() if self.state is _SUSPENDED else succeed(None)
        answer = self._connection.authenticate(scheme.encode(), credential)
        return answer.addErrback(self._forget_auth, (scheme.encode(), credential))

    def _forget_auth(self, reason: Failure, identity: tuple[bytes, bytes]) -> Failure:
        """A refused credential is not tried again in the next session."""
        if isinstance(reason.value, AuthFailed) and identity in self._auths:
            self._auths.remove(identity)
        return reason

    # --- for Requests -------------------------------------------------------------------------------------------------

    def _refusal(self, path: str) -> OperationError:
        """Why no request can be sent."""
        return _ended(self.state, path)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _try_next(self) -> None:
        """Try the next server."""
        self._pause = None
        host, port = self._hosts.next_address()
        self.server = f"{host}:{port}"
        patience_ms = max(CONNECT_MS_MIN, self._wanted_ms // max(2, len(self._hosts)))
        hello = r.ConnectRequest(self._last_zxid, self._wanted_ms, self.session_id, self._passwd)
        connection = StoreConnection(self, self._reactor, self._clock, hello, patience_ms=patience_ms)
        self._trying = connection
        carrier = connection if self._tls is None else Secured(connection, self._tls, host)
        factory = _OneAttempt(carrier, partial(self._attempt_failed, connection))
        self._connector = self._reactor.connectTCP(host, port, factory, timeout=patience_ms / 1000)

    def _attempt_failed(self, connection: StoreConnection, reason: str) -> None:
        """No TCP connection, or none that got through the handshake."""
        if connection is self._trying:
            self._trying = None
            self._connector = None
            if reason != self.trouble and reason.startswith("TLS"):
                # Unlike a server that is away, this does not mend itself: somebody has to be told.
                log.warn("{name}: {server}: {reason}", name=self.name, server=self.server, reason=reason)
            log.debug("{name}: no server: {reason}", name=self.name, reason=reason)
            self.trouble = reason
            self._retry_later()

    def _retry_later(self) -> None:
        """Wait as long as is due, then try the next server; at once after a connection that had served well."""
        if self.state is _SUSPENDED and self._pause is None and self._trying is None:
            self._pause = self._reactor.callLater(self._hosts.failed() / 1000, self._try_next)

    def connection_opened(self, connection: StoreConnection, response: r.ConnectResponse) -> None:
        """A server answered: it took the session, or says that it is gone."""
        if self.state is not _SUSPENDED or connection is not self._trying:
            connection.drop("not wanted any more")
            return
        if response.session_id == 0 or response.timeout_ms <= 0:
            if self.session_id != 0:
                self._finish(_EXPIRED)
            connection.drop("the server refused the session")
            return
        resumed = self.session_id != 0
        self.session_id = response.session_id
        self._passwd = response.passwd
        self.timeout_ms = response.timeout_ms
        if self._sasl:
            proved = ensureDeferred(self._prove_by_sasl(connection))
            proved.addCallbacks(lambda _: self._settle(connection, resumed=resumed), _told_elsewhere)
        else:
            self._settle(connection, resumed=resumed)

    async def _prove_by_sasl(self, connection: StoreConnection) -> None:
        """Prove who we are before anything is asked. Raises what a refusal or a lost connection raises."""
        user, _, secret = self._sasl.partition(":")
        exchange = SaslClient(user, secret, OsEntropy().token(16).hex().encode())
        answer: bytes | None = None
        try:
            while not exchange.is_complete:
                token = exchange.evaluate(answer)
                if exchange.is_complete:
                    return
                answer = await connection.ask(r.OP_SASL, encode_sasl(token), decode_sasl, "") or b""
        except (AuthFailed, SaslError) as error:
            log.warn("{name}: {server}: SASL: {error}", name=self.name, server=self.server, error=error)
            self.auth_refused(connection)
            raise

    def _settle(self, connection: StoreConnection, *, resumed: bool) -> None:
        """The session may be used on this connection."""
        if connection is not self._trying:
            return
        self._trying = None
        self._connector = None
        self._connection = connection
        self._opened_ms = self._clock.monotonic_ms()
        self.trouble = ""
        for scheme, credential in self._auths:
            connection.authenticate(scheme, credential).addErrback(_told_elsewhere)
        if resumed:
            self._restore_watches(connection)
        self._become(_CONNECTED)
        for waiter in self._take_waiters():
            waiter.callback(None)

    def _restore_watches(self, connection: StoreConnection) -> None:
        """Set every watch again on the new server; tell the persistent ones of the gap once they are in force."""
        batches = self._watches.batches(connection.last_zxid)
        if not batches:
            return
        told = self._watches.persistent()

        def tell(_: object) -> None:
            still = set(self._watches.persistent())
            for path, callback in filter(still.__contains__, told):
                self._call(callback, EVENT_GAP, path, connection.last_zxid)

        requests = [
            connection.ask(r.OP_SET_WATCHES2, r.encode_set_watches(sets, second=True), None, "") for sets in batches
        ]
        done = gatherResults(requests, consumeErrors=True)
        done.addCallbacks(tell, lambda reason: connection.drop(f"watches not restored: {reason.getErrorMessage()}"))

    def connection_lost(self, connection: StoreConnection, reason: str) -> None:
        """A connection is of no more use."""
        if connection is self._trying:
            self._attempt_failed(connection, reason)
            return
        if connection is not self._connection:
            return
        self._last_zxid = self.last_zxid
        self._last_contact_ms = max(self._last_contact_ms, connection.proven_ms)
        self._connection = None
        if self._clock.monotonic_ms() - self._opened_ms >= SETTLED_MS:
            self._hosts.succeeded()
        if self._closing is not None:
            self._stop()
        elif self.state is _CONNECTED:
            log.info("{name}: connection lost: {reason}", name=self.name, reason=reason)
            self._become(_SUSPENDED)
            self._retry_later()

    def auth_refused(self, connection: StoreConnection) -> None:
        """The server refused a credential; without it the session would be somebody else's."""
        if connection in (self._connection, self._trying):
            self._trying = None
            self._connector = None
            self._finish(_AUTH_FAILED)
            connection.drop("authentication refused")

    # --- watches ------------------------------------------------------------------------------------------------------

    def watch_confirmed(self, order: WatchOrder, *, exists: bool) -> None:
        """The request that leaves a watch was answered."""
        kind, path, callback = order
        self._watches.add(self._kind_for(kind, exists=exists), path, callback)

    def event_received(self, event: r.WatcherEvent, zxid: int) -> None:
        """A watch fired."""
        for callback in self._watches.fire(event.event_type, event.path):
            self._call(callback, event.event_type, event.path, zxid)

    def _call(self, callback: WatchCallback, event_type: int, path: bytes, zxid: int) -> None:
        """Run a watch callback; a fault in it is logged and harms nobody else."""
        try:
            running = callback(event_type, self._shown(path), zxid)
        except Exception:  # whatever it is: the callback's fault, told and kept from the others
            self._callback_failed(Failure())  # type: ignore[no-untyped-call]
            return
        if running is not None:
            maybeDeferred(lambda: running).addErrback(self._callback_failed)

    def _callback_failed(self, reason: Failure) -> None:
        log.failure("{name}: a watch callback failed", failure=reason, name=self.name)

    # --- state --------------------------------------------------------------------------------------------------------

    def _become(self, state: SessionState) -> None:
        """Go to `state` and tell whoever asked."""
        if state not in _TRANSITIONS[self.state]:
            raise InvalidTransition(self.name, self.state.value, state.value)
        self.state = state
        log.info(
            "{name}: session {session} {state} ({server})",
            name=self.name,
            session=f"{self.session_id:#x}",
            state=state.value,
            server=self.server,
        )
        for listener in list(self._listeners):
            done = maybeDeferred(listener, state)
            done.addErrback(
                lambda reason: log.failure("{name}: a state callback failed", failure=reason, name=self.name)
            )

    def _finish(self, state: SessionState) -> None:
        """The session has ended: nothing of it comes back."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._watches.clear()
        # A callback may begin a new session: whoever waits from here on waits for that one.
        waiters = self._take_waiters()
        self._become(state)
        for waiter in waiters:
            waiter.errback(_ended(state, ""))

    def _stop(self) -> None:
        """Become CLOSED, whatever is under way."""
        done, self._closing = self._closing, None
        trying, self._trying = self._trying, None
        connector, self._connector = self._connector, None
        if self.state is not _CLOSED:
            self._finish(_CLOSED)
        if connector is not None:
            connector.disconnect()
        if trying is not None:
            trying.drop("closed")
        if done is not None:
            done.callback(None)

    def _take_waiters(self) -> list[Deferred[None]]:
        """Those who wait for a connection; each is told once."""
        waiters, self._waiters = self._waiters, []
        return waiters
