"""A ZooKeeper session for processes that run a Twisted reactor: connects, keeps the session alive, reconnects.

    client = ZkClient(reactor, "a:2181,b:2181,c:2181/regions", 3000, name="master")
    await client.connect()
    data, stat = await client.get("/epoch")

Works with our store and with Apache ZooKeeper 3.9. All requests are pipelined, and replies come in request order. The
client never resends a request: requests that were pending when a connection broke fail with ConnectionLoss and may or
may not have been performed. The client restores watches by itself.

    NEW --connect--> SUSPENDED <----------> CONNECTED        any --close--> CLOSED
                        |                       |
                        +--> EXPIRED            |        the server's connect response: no such session
                        +--> AUTH_FAILED <------+        the server rejected a credential

After EXPIRED and AUTH_FAILED, connect() begins a new session.

Events before replies: a watch callback runs before the reply to any request that could read a newer state. EVENT_GAP
informs a persistent watch that events may have been lost while the client was disconnected and that it must read again.
It is delivered after the server has restored the watch. One-shot watches need no EVENT_GAP: the server fires them for
changes in the meantime.
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
from coord.client.watches import Event, WatchBook
from coord.env import Clock, Rng
from coord.env_os import OsClock, OsEntropy, OsRng
from coord.errors import AuthFailed, ConnectionLoss, InvalidTransition, OperationError, SessionExpired
from coord.security import process, revocation
from coord.wire import records as r
from coord.wire.codec import decode_sasl, encode_sasl
from coord.wire.sasl import SaslClient, SaslError

log = Logger()

#: Event for persistent watches after a reconnect: events may have been lost. Not part of the protocol.
EVENT_GAP: Final = -100

#: Minimum time for one server to accept a connection and reply to the connect request, even for a short session.
CONNECT_MS_MIN: Final = 200
#: A connection that lived shorter than this counts as a failed attempt, so the pauses keep growing.
STABLE_MS: Final = 1000


class SessionState(enum.Enum):
    """State of a session; the argument of `on_state` callbacks."""

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
    """Return the error of a request in a session that is in `state`, which is not CONNECTED."""
    if state is _EXPIRED:
        return SessionExpired(path)
    if state is _AUTH_FAILED:
        return AuthFailed(path)
    return ConnectionLoss(path, f"the session is {state.value}")


def _ignore_failure(_: Failure) -> None:
    """Ignore a failure that auth_refused or connection_lost has already handled."""


class _OneAttempt(ClientFactory):
    """Creates the connection of one attempt."""

    noisy = False

    def __init__(self, connection: Protocol, failed: Callable[[str], None]) -> None:
        self._connection = connection
        self._failed = failed

    def buildProtocol(self, _addr: object) -> Protocol:
        """Twisted: TCP is connected."""
        return self._connection

    def clientConnectionFailed(self, _connector: IConnector, reason: Failure) -> None:
        """Twisted: the TCP connect failed."""
        self._failed(reason.getErrorMessage())


class ZkClient(Requests):
    """One session at a time. The requests are methods of `Requests`. All methods run in the reactor's thread.

    `hosts` is `host:port,host:port[/chroot]`, tried in a random order. `timeout_ms` is the requested session timeout;
    the attribute of that name is the granted one. `name` is used in log lines. `access` has TLS and credentials;
    unusable files in it raise ConfigError. `server_rights` returns the permissions of region servers on a path, if they
    have an identity of their own; without it they may read what this client creates.
    """

    def __init__(
        self,
        reactor: Any,
        hosts: str,
        timeout_ms: int,
        *,
        name: str = "client",
        access: StoreAccess = OPEN_ACCESS,
        server_rights: Callable[[str], int] | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        addresses, chroot = parse_hosts(hosts)
        has_own = server_rights is not None and bool(access.servers)
        super().__init__(chroot, acl=access.acl(), acl_of=self._acl_by_path if has_own else None)
        self._access = access
        self._server_rights = server_rights
        #: The access list for each set of permissions of region servers. Equal lists are one object.
        self._acls: dict[int, list[r.Acl]] = {}
        self.name = name
        self.state: SessionState = _NEW
        self.session_id: int = 0
        #: `host:port` of the server last tried.
        self.server: str = ""
        #: Why the last attempt to connect failed; "" after a success.
        self.trouble: str = ""
        #: Granted session timeout; before the first connection, the requested one.
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
        #: Credentials of `add_auth`; those of `access` are read again for every connection.
        self._auths: list[tuple[bytes, bytes]] = []
        self._digests = access.digests
        self._sasl = access.sasl
        access.tls_context()  # raises an error of its files here, not at an attempt
        self._tls = access.tls_context
        self._watches = WatchBook()
        if process.is_securing():
            revocation.watch(self)

    def revocations_changed(self) -> None:
        """Use closed access lists for new znodes once the cluster has been secured."""
        self.default_acl = self._access.acl()
        self._acls.clear()

    def _acl_by_path(self, path: str) -> list[r.Acl]:
        """Return the access list of a znode that is created at `path`."""
        assert self._server_rights is not None, "lists differ by path only if servers have rights by path"
        rights = self._server_rights(path)
        found = self._acls.get(rights)
        if found is None:
            found = self._acls[rights] = self._access.acl(rights)
        return found

    # --- what a caller sees -------------------------------------------------------------------------------------------

    @property
    def last_contact_s(self) -> float:
        """Monotonic time in seconds at which the newest *acknowledged* request or ping was sent.

        The send time counts, not the time of the reply: the server restarted its session timeout then or later. A lease
        may therefore run until last_contact_s + timeout_ms / 1000 and no longer.
        """
        connection = self._connection
        proven_ms = connection.proven_ms if connection is not None else 0
        return max(self._last_contact_ms, proven_ms) / 1000

    @property
    def left_s(self) -> float:
        """Seconds, at least 0, for which the session certainly lives if no further reply arrives; by this process's
        clock."""
        return max(0.0, self.last_contact_s + (self.timeout_ms - self._clock.monotonic_ms()) / 1000)

    @property
    def last_zxid(self) -> int:
        """Newest zxid of any reply."""
        connection = self._connection
        return max(self._last_zxid, connection.last_zxid if connection is not None else 0)

    def on_state(self, callback: Callable[[SessionState], object]) -> Callable[[], None]:
        """Call `callback(state)` on every change; return a function that unregisters it."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def connect(self) -> Deferred[None]:
        """Begin a session and try servers until one accepts it. Fires when connected.

        After EXPIRED, AUTH_FAILED or CLOSED this begins a new session without the previous watches; credentials passed
        to add_auth are kept. Fails only if the client is closed meanwhile or its credentials are rejected.
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
        """Wait until the session is connected. Fails if the session ends instead."""
        if self.state is _CONNECTED:
            return succeed(None)
        if self.state is not _SUSPENDED:
            return fail(_ended(self.state, ""))
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def close(self) -> Deferred[None]:
        """End the session on the server, which deletes its ephemerals at once, and disconnect. Never fails.

        The server answers earlier requests first. Without a connection the session is left to expire.
        """
        if self._closing is not None:
            return self._closing
        if self._connection is None:
            self._stop()
            return succeed(None)
        done = self._closing = Deferred()
        connection = self._connection
        answer = connection.ask(r.OP_CLOSE_SESSION, b"", None, "")
        timer = self._reactor.callLater(self.timeout_ms / 3000, connection.drop, "no reply to closeSession")

        def closed(_: object) -> None:
            if timer.active():
                timer.cancel()
            connection.drop("session closed")

        # After a reply, an error or a lost connection alike, nothing is left to do on this side.
        answer.addBoth(closed)
        return done

    def add_auth(self, scheme: str, credential: bytes) -> Deferred[None]:
        """Add an identity to the session, now and after every reconnect.

        Fails with AuthFailed when the server rejects the credential; the session is then unusable.
        """
        self._auths.append((scheme.encode(), credential))
        if self._connection is None:
            return self.when_connected() if self.state is _SUSPENDED else succeed(None)
        answer = self._connection.authenticate(scheme.encode(), credential)
        return answer.addErrback(self._forget_auth, (scheme.encode(), credential))

    def _forget_auth(self, reason: Failure, identity: tuple[bytes, bytes]) -> Failure:
        """Remove a rejected credential, so that the next session does not send it again."""
        if isinstance(reason.value, AuthFailed) and identity in self._auths:
            self._auths.remove(identity)
        return reason

    # --- for Requests -------------------------------------------------------------------------------------------------

    def _refusal(self, path: str) -> OperationError:
        """Return the error for a request without a connection."""
        return _ended(self.state, path)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _try_next(self) -> None:
        """Open a connection to the next server."""
        self._pause = None
        host, port = self._hosts.next_address()
        self.server = f"{host}:{port}"
        patience_ms = max(CONNECT_MS_MIN, self._wanted_ms // max(2, len(self._hosts)))
        hello = r.ConnectRequest(self._last_zxid, self._wanted_ms, self.session_id, self._passwd)
        connection = StoreConnection(self, self._reactor, self._clock, hello, patience_ms=patience_ms)
        self._trying = connection
        tls = self._tls()
        carrier = connection if tls is None else Secured(connection, tls, host)
        factory = _OneAttempt(carrier, partial(self._attempt_failed, connection))
        self._connector = self._reactor.connectTCP(host, port, factory, timeout=patience_ms / 1000)

    def _attempt_failed(self, connection: StoreConnection, reason: str) -> None:
        """Handle a failed TCP connect or a failed handshake."""
        if connection is self._trying:
            self._trying = None
            self._connector = None
            if reason != self.trouble and reason.startswith("TLS"):
                # A TLS error does not go away by itself, unlike a server that is down: the operator must see it.
                log.warn("{name}: {server}: {reason}", name=self.name, server=self.server, reason=reason)
            log.debug("{name}: cannot connect to {server}: {reason}", name=self.name, server=self.server, reason=reason)
            self.trouble = reason
            self._retry_later()

    def _retry_later(self) -> None:
        """Schedule the next attempt; at once after a stable connection."""
        if self.state is _SUSPENDED and self._pause is None and self._trying is None:
            self._pause = self._reactor.callLater(self._hosts.failed() / 1000, self._try_next)

    def connection_opened(self, connection: StoreConnection, response: r.ConnectResponse) -> None:
        """Handle a connect response: the server accepted the session, or the session has expired."""
        if self.state is not _SUSPENDED or connection is not self._trying:
            connection.drop("the session does not need this connection any more")
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
            authenticated = ensureDeferred(self._authenticate_by_sasl(connection))
            authenticated.addCallbacks(lambda _: self._use_connection(connection, resumed=resumed), _ignore_failure)
        else:
            self._use_connection(connection, resumed=resumed)

    async def _authenticate_by_sasl(self, connection: StoreConnection) -> None:
        """Run the SASL exchange before any other request. Raise the error of a rejection or of a lost connection."""
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

    def _use_connection(self, connection: StoreConnection, *, resumed: bool) -> None:
        """Make `connection` the session's connection and become CONNECTED."""
        if connection is not self._trying:
            return
        self._trying = None
        self._connector = None
        self._connection = connection
        self._opened_ms = self._clock.monotonic_ms()
        self.trouble = ""
        own = [(b"digest", credential.encode()) for credential in self._digests()]
        for scheme, credential in [*own, *self._auths]:
            connection.authenticate(scheme, credential).addErrback(_ignore_failure)
        if resumed:
            self._restore_watches(connection)
        self._become(_CONNECTED)
        for waiter in self._take_waiters():
            waiter.callback(None)

    def _restore_watches(self, connection: StoreConnection) -> None:
        """Set every watch again on the new server. Send EVENT_GAP to the persistent ones after the server's reply."""
        batches = self._watches.batches(connection.last_zxid)
        if not batches:
            return
        notified = self._watches.persistent()

        def notify(_: object) -> None:
            still = set(self._watches.persistent())
            for path, callback in filter(still.__contains__, notified):
                self._deliver(callback, [(EVENT_GAP, self._shown(path), connection.last_zxid)])

        requests = [
            connection.ask(r.OP_SET_WATCHES2, r.encode_set_watches(sets, second=True), None, "") for sets in batches
        ]
        done = gatherResults(requests, consumeErrors=True)
        done.addCallbacks(notify, lambda reason: connection.drop(f"watches not restored: {reason.getErrorMessage()}"))

    def connection_lost(self, connection: StoreConnection, reason: str) -> None:
        """Handle the end of a connection."""
        if connection is self._trying:
            self._attempt_failed(connection, reason)
            return
        if connection is not self._connection:
            return
        self._last_zxid = self.last_zxid
        self._last_contact_ms = max(self._last_contact_ms, connection.proven_ms)
        self._connection = None
        if self._clock.monotonic_ms() - self._opened_ms >= STABLE_MS:
            self._hosts.succeeded()
        if self._closing is not None:
            self._stop()
        elif self.state is _CONNECTED:
            log.info("{name}: connection lost: {reason}", name=self.name, reason=reason)
            self._become(_SUSPENDED)
            self._retry_later()

    def auth_refused(self, connection: StoreConnection) -> None:
        """End the session: the server rejected a credential, and without it the session would have another identity."""
        if connection in (self._connection, self._trying):
            self._trying = None
            self._connector = None
            self._finish(_AUTH_FAILED)
            connection.drop("authentication refused")

    # --- watches ------------------------------------------------------------------------------------------------------

    def watch_confirmed(self, order: WatchOrder, *, exists: bool) -> None:
        """Register the watch of a request that succeeded."""
        kind, path, callback = order
        self._watches.add(self._kind_for(kind, exists=exists), path, callback)

    def events_received(self, block: bytes, frames: list[tuple[int, int]], at: int) -> int:
        """Run the callbacks of fired watches. Return the index of the first frame that was not taken."""
        fired = self._watches.take(block, frames, at, self._chroot_length)
        for callback in fired.callbacks:
            self._deliver(callback, fired.events)
        return fired.end

    def _deliver(self, callback: Callable[..., object], events: list[Event]) -> None:
        """Give events to the callback of a watch: all at once, or one after the other."""
        if self._watches.is_receiver(callback):
            self._call(callback, events)
        else:
            for event in events:
                self._call(callback, *event)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run a watch callback; log an exception in it and go on with the other callbacks."""
        try:
            running = callback(*arguments)
        except Exception:  # any error is the callback's: log it and protect the other callbacks
            self._callback_failed(Failure())  # type: ignore[no-untyped-call]
            return
        if running is not None:
            maybeDeferred(lambda: running).addErrback(self._callback_failed)

    def _callback_failed(self, reason: Failure) -> None:
        log.failure("{name}: a watch callback failed", failure=reason, name=self.name)

    # --- state --------------------------------------------------------------------------------------------------------

    def _become(self, state: SessionState) -> None:
        """Change to `state` and run the `on_state` callbacks."""
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
        """End the session in `state`, drop its watches and fail the waiters."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._watches.clear()
        # A callback may begin a new session; later waiters belong to the new one.
        waiters = self._take_waiters()
        self._become(state)
        for waiter in waiters:
            waiter.errback(_ended(state, ""))

    def _stop(self) -> None:
        """Become CLOSED from any state and drop the connection attempt."""
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
        """Return the waiters for a connection and clear the list, so that each fires once."""
        waiters, self._waiters = self._waiters, []
        return waiters
