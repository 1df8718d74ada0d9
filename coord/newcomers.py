"""Limits of callers that have not proved an identity yet: a small share of each port's time, and of the log.

A stranger without credentials can connect as fast as the machine allows. Each connection costs the daemon a few system
calls, with TLS a signature, and on a machine with few processors a flood of them takes the time that leases, heartbeats
and requests need. So each listening port has a NewcomerBudget: connections are accepted while the budget lasts, and
wait in the kernel otherwise, where they cost nothing. A caller that proves who it is gets its cost back, so a thousand
clients that reconnect after an outage are not slowed down. During a flood new connections wait, and established
connections are served as always. A waiting connection is closed unread, at a sixth of the cost or less, if its caller
has left, or is silent: callers of every port speak first, so a caller that has sent nothing for half a second, or only
a part of the first record of TLS, is not honest. So the queue of a flood is soon empty.

Sources: Apache Kafka KIP-612 (connections per second of a broker); ZooKeeper `connectionMaxTokens` (BlueThrottle).
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IListeningPort
from twisted.internet.tcp import Port

from coord.compiled import is_switched_on

__all__ = [
    "HANDSHAKE_S",
    "PLAIN_S",
    "REFUSAL_S",
    "RPC_S",
    "SESSION_S",
    "NewcomerBudget",
    "SummedLines",
    "accept",
    "pace",
]

#: Share of one processor's time that newcomers of one port get. A daemon has up to three ports. With half of it, an
#: honest newcomer behind a full queue of silent connections would wait for 40 s.
SHARE: Final = 0.01
#: Time that newcomers may take at once, after a quiet while: some 80 connections, or half a dozen with TLS. A flood
#: spends it at all ports of a machine at the same moment, so it must be short.
SAVED_S: Final = 0.01
#: Processor time that a connection costs until it has proved something or is closed, at ports of a store and for
#: administration. Measured, as all of these: 55 to 130 µs.
PLAIN_S: Final = 120e-6
#: The same for a caller of RPC, whose connection has a preamble, a challenge and a time limit.
RPC_S: Final = 200e-6
#: The same for a connection that is closed right after it was accepted.
REFUSAL_S: Final = 20e-6
#: The same for a connection with TLS, which needs a signature.
HANDSHAKE_S: Final = 1.5e-3
#: Processor time of a session that a client opens before it proves its identity: one entry of the log on every node.
SESSION_S: Final = 0.5e-3
#: Connections that a listening port accepts in one turn, roughly: two or three milliseconds.
ACCEPTS_PER_TURN: Final = 16
#: Time that a port which has stopped saves before it accepts again, or it would stop after one connection.
_GROUP_S: Final = 0.8e-3
#: Connections of callers that have left, or are silent, which one `accept` closes.
_SKIPPED_MAX: Final = 64
#: State of a connection whose other end has neither closed nor reset it (TCP_ESTABLISHED).
_STANDS: Final = 1
#: The part of `struct tcp_info` that ends with tcpi_last_data_recv: milliseconds since the last bytes arrived, or since
#: the connect.
TCP_INFO: Final = struct.Struct("=B51xI")
#: Time after which a connection that waits, and has sent no whole beginning, is closed. Honest callers send theirs as
#: soon as they are connected, and the kernel keeps it.
SILENT_MS_MAX: Final = 500
#: Type of a TLS record with a part of a handshake, and the bytes of a record before its content.
_HANDSHAKE_RECORD: Final = 22
_RECORD_HEAD: Final = 5

#: The switch in the environment that leaves newcomers unbounded: for tests whose frames must all be read.
UNBOUNDED_VARIABLE: Final = "RK_UNBOUNDED_NEWCOMERS"

#: Lines about refused callers in each interval, and the interval; further ones are counted.
LINES_MAX: Final = 8
INTERVAL_S: Final = 10.0


Accepted = tuple[socket.socket, Any]


class BudgetReactor(Protocol):
    """The part of a reactor that budgets use."""

    def callLater(self, delay: float, f: Callable[..., object], /, *args: object) -> object: ...
    def seconds(self) -> float: ...


class NewcomerBudget:
    """The time that the callers of one port may cost before they have proved anything.

    `set_accepting(False)` is called when the budget is used up, `set_accepting(True)` when connections may be accepted
    again. The owner sets it when the port listens.
    """

    def __init__(self, reactor: BudgetReactor, set_accepting: Callable[[bool], None] = lambda _: None) -> None:
        self.set_accepting = set_accepting
        self._reactor = reactor
        self._left_s = SAVED_S
        self._counted_at = reactor.seconds()
        self._is_waiting = False
        self._is_unbounded = is_switched_on(UNBOUNDED_VARIABLE)
        #: How often the port has stopped accepting, since the start.
        self.pauses = 0

    @property
    def is_used_up(self) -> bool:
        """True while no connection may be accepted."""
        return self._is_waiting

    @property
    def is_scarce(self) -> bool:
        """True if newcomers have used more than half of the saved budget."""
        return self._left_s < SAVED_S / 2 and not self._is_unbounded

    def charge(self, cost_s: float) -> None:
        """Count the cost of a newcomer. Stop accepting if the budget is used up."""
        self._count()
        self._left_s -= cost_s
        if self._left_s > 0 or self._is_unbounded:
            return
        self.set_accepting(False)
        if not self._is_waiting:
            self._is_waiting = True
            self.pauses += 1
            self._wait()

    def give_back(self, cost_s: float) -> None:
        """Take back a charge: the caller has proved who it is."""
        self._left_s = min(self._left_s + cost_s, SAVED_S)
        if self._is_waiting and self._left_s > 0:
            self._resume()

    def _count(self) -> None:
        now = self._reactor.seconds()
        self._left_s = min(self._left_s + (now - self._counted_at) * SHARE, SAVED_S)
        self._counted_at = now

    def _wait(self) -> None:
        self._reactor.callLater((_GROUP_S - self._left_s) / SHARE, self._check)

    def _check(self) -> None:
        if not self._is_waiting:
            return
        self._count()
        if self._left_s > 0:
            self._resume()
        else:
            self._wait()

    def _resume(self) -> None:
        self._is_waiting = False
        self.set_accepting(True)


def accept(take: Callable[[], Accepted], budget: NewcomerBudget) -> Accepted:
    """Accept a connection, and return its socket and the caller's address. Raise BlockingIOError if there is none, or
    if the budget is used up. `take` is `accept` of the listening socket.

    While the budget is scarce, close connections whose caller has closed its half, or is silent. Otherwise serve them:
    `echo ruok | nc` closes its half at once, and reads the answer.
    """
    for _ in range(_SKIPPED_MAX):
        if budget.is_used_up:
            break
        sock, address = take()
        if not budget.is_scarce or _is_worth(sock):
            return sock, address
        sock.close()
        budget.charge(REFUSAL_S)
    raise BlockingIOError(errno.EAGAIN, "no connection is accepted now")


def _is_worth(sock: socket.socket) -> bool:
    """Return True for a connection whose caller may be honest: it stands, and has begun, or is new."""
    state, silent_ms = TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size))
    return state == _STANDS and (silent_ms < SILENT_MS_MAX or _has_begun(sock))


def _has_begun(sock: socket.socket) -> bool:
    """Return True if bytes of the caller wait: with TLS a whole record."""
    try:
        head = sock.recv(_RECORD_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return False
    if not head or head[0] != _HANDSHAKE_RECORD:
        return bool(head)
    waiting = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, waiting)
    return waiting[0] >= _RECORD_HEAD + int.from_bytes(head[3:_RECORD_HEAD], "big")


class _PacedSocket(socket.socket):
    """The listening socket of a Twisted port."""

    budget: NewcomerBudget

    def accept(self) -> Accepted:
        """See the function."""
        return accept(super().accept, self.budget)


def pace(port: IListeningPort, budget: NewcomerBudget) -> None:
    """Let a Twisted port accept connections only while the budget lasts."""
    if not isinstance(port, Port):
        return  # a port of a test, without a socket
    listening: Any = port
    paced = _PacedSocket(fileno=listening.socket.detach())
    paced.setblocking(False)
    paced.budget = budget
    listening.socket, listening.fileno = paced, paced.fileno
    listening.numberAccepts = ACCEPTS_PER_TURN

    def set_accepting(is_accepting: bool) -> None:
        if not listening.connected or listening.disconnecting:
            return
        if is_accepting:
            listening.startReading()
        else:
            listening.stopReading()

    budget.set_accepting = set_accepting


class SummedLines:
    """A bound of log lines about refused callers: LINES_MAX in each interval. The next line counts the others."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._since = seconds()
        self._lines = 0
        self._unsaid = 0

    def more(self) -> str | None:
        """Return the end of the log line about one more refusal. None: count the refusal, and write no line."""
        now = self._seconds()
        if not 0 <= now - self._since < INTERVAL_S:
            self._since, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return None
        self._lines += 1
        unsaid, self._unsaid = self._unsaid, 0
        return f"; {unsaid} more connections since the last such line" if unsaid else ""
