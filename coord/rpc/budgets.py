"""Budgets of the callers of an RPC server: connections, unfinished frames, and time of a turn.

No caller is known before its first request, so each budget must decide which connection is closed when there are too
many. A caller that has sent one whole request follows the protocol and keeps its connection. Of the others the oldest
is closed for the new one, because an honest caller sends its request at once.

    connections     per address and in all; beyond the bound the oldest connection without a whole request is closed,
                    and a newcomer is refused only if every other connection has sent one
    first request   a connection without a whole request is closed after a time
    frames          a frame must be complete after a time; the bytes of all unfinished frames have one bound, beyond
                    which the frame that began first costs its connection
    speed           connections without a whole request share a number of bytes in each second; beyond it the server
                    does not read from them until the next one
    newcomers       new connections get a share of the time; what a whole request proves is given back
                    (`coord.newcomers`)
    turns           a connection's requests are handled for a few milliseconds, then wait for the next turn; requests
                    that wait share a part of each turn, so that new arrivals are served between them

Sources: Apache Kudu `--rpc_negotiation_timeout_ms`; ZooKeeper `maxClientCnxns`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from coord.newcomers import HANDSHAKE_S, REFUSAL_S, RPC_S, NewcomerBudget, SummedLines
from coord.rpc.connection import RpcReactor
from coord.rpc.wire import Code, RpcError

log = Logger()

#: Connections of all callers of one server, and at most half of the files that the process may open: files of regions
#: and links of tablets need descriptors, too.
CONNECTIONS_MAX: Final = 2048
#: Connections from one address. All daemons and tools of a cluster on one machine share an address.
CONNECTIONS_PER_ADDRESS_MAX: Final = 1024
#: Seconds until the first whole request of a connection. Callers connect when they have one to send.
FIRST_REQUEST_S_MAX: Final = 10.0
#: Seconds from the first byte of a frame to the last: as long as a caller waits for its reply by default.
FRAME_S_MAX: Final = 10.0
#: Bytes of the unfinished frames of all connections: four of the longest frames.
UNFINISHED_BYTES_MAX: Final = 64 << 20
#: Bytes of unfinished frames that the server reads in a second from all connections without a whole request: two of the
#: longest frames.
SILENT_BYTES_PER_S_MAX: Final = 32 << 20
#: Milliseconds of one turn for the requests of one connection.
CONNECTION_TURN_MS_MAX: Final = 10
#: Milliseconds of one turn for requests that have waited since an earlier turn.
TURN_MS_MAX: Final = 10

#: Interval between searches for overdue connections, while there is one to watch. After each search the count of bytes
#: of silent connections begins again at 0.
_SWEEP_S: Final = 1.0


class Caller(Protocol):
    """A connection, as the budgets see it."""

    #: IP address of the other end, "" if unknown.
    address: str

    def drop(self, error: RpcError) -> None:
        """Close at once."""

    def proceed(self) -> None:
        """Handle requests that were received in an earlier turn."""

    def hold(self, *, is_held: bool) -> None:
        """Stop reading, or read again."""


class RpcBudgets:
    """The budgets of one server. Create one per listening port."""

    def __init__(self, reactor: RpcReactor, connections_max: int = CONNECTIONS_MAX, *, is_tls: bool = False) -> None:
        self._reactor = reactor
        self.newcomers = NewcomerBudget(reactor)
        self._cost_s = HANDSHAKE_S if is_tls else RPC_S
        #: Lines about closed, refused and rejected connections.
        self.lines = SummedLines(reactor.seconds)
        self._connections_max = connections_max
        self._per_address_max = min(CONNECTIONS_PER_ADDRESS_MAX, connections_max)
        #: Connections by address. The value is True after the first whole request. Oldest first.
        self._callers: dict[str, dict[Caller, bool]] = {}
        self._count = 0
        #: Connections without a whole request -> time of the connect. Oldest first.
        self._silent: dict[Caller, float] = {}
        #: Connections with an unfinished frame -> (time of its first byte, bytes so far). Oldest first.
        self._unfinished: dict[Caller, tuple[float, int]] = {}
        self._unfinished_bytes = 0
        #: Bytes that connections without a whole request have sent since the last sweep.
        self._silent_bytes = 0
        #: Connections without a whole request that the server does not read from until the next sweep.
        self._held: set[Caller] = set()
        #: Connections that the server does not read from, because they do not read their replies.
        self._choked: set[Caller] = set()
        self._sweeping: IDelayedCall | None = None
        self._sweep_due = 0.0
        self._parked: deque[Caller] = deque()
        self._turn: IDelayedCall | None = None
        self._is_in_turn = False
        #: Connections that were closed or refused since the start.
        self.closed = 0

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the unfinished frames of all connections."""
        return self._unfinished_bytes

    # --- connections --------------------------------------------------------------------------------------------------

    def has_room(self, address: str) -> bool:
        """Return True if a newcomer from `address` may connect. At a bound, close a connection to make room."""
        own = self._callers.get(address, {})
        if len(own) >= self._per_address_max:
            oldest = next((one for one, has_asked in own.items() if not has_asked), None)
            why = f"its address has {self._per_address_max} connections"
        elif self._count >= self._connections_max:
            oldest = next(iter(self._silent), None)
            why = f"this server has {self._connections_max} connections"
        else:
            return True
        if oldest is None:
            self.newcomers.charge(REFUSAL_S)
            self._notice(address, f"refused: {why}, and each has sent a request")
            return False
        self._close(oldest, f"{why}, and this is the oldest that has sent no request")
        return True

    def connected(self, caller: Caller) -> None:
        """Count a new connection and wait for its first request."""
        self._callers.setdefault(caller.address, {})[caller] = False
        self._count += 1
        self._silent[caller] = self._reactor.seconds()
        self.newcomers.charge(self._cost_s)
        self._watch()

    def lost(self, caller: Caller) -> None:
        """Forget a connection that has ended, or is about to. Further calls change nothing."""
        own = self._callers.get(caller.address, {})
        if own.pop(caller, None) is None:
            return
        self._count -= 1
        if not own:
            del self._callers[caller.address]
        self._silent.pop(caller, None)
        self._choked.discard(caller)
        self._held.discard(caller)
        self._finish(caller)

    def asked(self, caller: Caller) -> None:
        """Note the first whole request of a connection."""
        if self._silent.pop(caller, None) is not None:
            self._callers[caller.address][caller] = True
            self.newcomers.give_back(self._cost_s)

    def choked(self, caller: Caller, *, is_choked: bool) -> None:
        """Note that the server has stopped reading from a connection, or reads again. Meanwhile no frame is late."""
        if is_choked:
            self._choked.add(caller)
        else:
            self._choked.discard(caller)
            self._renew(caller)

    # --- unfinished frames --------------------------------------------------------------------------------------------

    def received(self, caller: Caller, unfinished: int, *, is_new: bool) -> None:
        """Note the bytes of a connection's unfinished frame. `is_new`: an earlier frame is complete."""
        since = self._reactor.seconds()
        known = self._unfinished.get(caller)
        if known is not None and not is_new and unfinished:
            # The place in the order stays: it is that of the first byte.
            self._unfinished[caller] = (known[0], unfinished)
            self._unfinished_bytes += unfinished - known[1]
            self._count_silent(caller, unfinished - known[1])
        else:
            self._finish(caller)
            if not unfinished or caller not in self._callers.get(caller.address, {}):
                return
            self._unfinished[caller] = (since, unfinished)
            self._unfinished_bytes += unfinished
            self._count_silent(caller, unfinished)
            self._watch()
        while self._unfinished_bytes > UNFINISHED_BYTES_MAX:
            oldest = next(iter(self._unfinished))
            self._close(oldest, f"all unfinished frames exceed {UNFINISHED_BYTES_MAX} bytes, and its frame is oldest")

    def _count_silent(self, caller: Caller, size: int) -> None:
        """Count received bytes of a connection without a whole request; hold the connection if all have sent enough."""
        if caller in self._silent:
            self._silent_bytes += size
            if self._silent_bytes > SILENT_BYTES_PER_S_MAX and caller not in self._held:
                self._held.add(caller)
                caller.hold(is_held=True)

    def _release(self) -> None:
        """Read from all held connections again."""
        held, self._held, self._silent_bytes = self._held, set(), 0
        for caller in held:
            caller.hold(is_held=False)

    def _finish(self, caller: Caller) -> None:
        known = self._unfinished.pop(caller, None)
        if known is not None:
            self._unfinished_bytes -= known[1]

    def _renew(self, caller: Caller) -> None:
        """Let the time of an unfinished frame begin again."""
        known = self._unfinished.pop(caller, None)
        if known is not None:
            self._unfinished[caller] = (self._reactor.seconds(), known[1])
            self._watch()

    # --- deadlines ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweep_due = self._reactor.seconds() + _SWEEP_S
            self._sweeping = self._reactor.callLater(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close connections that are overdue. Sweep again while there is anything to watch."""
        self._sweeping = None
        now = self._reactor.seconds()
        if now - self._sweep_due > _SWEEP_S:
            # This process was stopped (SIGSTOP). Requests that arrived meanwhile have not been read yet.
            self._release()
            self._watch()
            return
        for caller, since in list(self._silent.items()):
            if now - since < FIRST_REQUEST_S_MAX:
                break
            self._close(caller, f"it has sent no request within {FIRST_REQUEST_S_MAX:g} s")
        for caller, (since, size) in list(self._unfinished.items()):
            if now - since < FRAME_S_MAX:
                break
            if caller not in self._choked:
                self._close(caller, f"its frame is unfinished after {FRAME_S_MAX:g} s, with {size} bytes")
        self._release()
        if self._silent or len(self._unfinished) > len(self._choked):
            self._watch()

    def _close(self, caller: Caller, why: str) -> None:
        self._notice(caller.address, f"closed: {why}")
        self.lost(caller)
        caller.drop(RpcError(Code.PROTOCOL, why))

    def _notice(self, address: str, what: str) -> None:
        """Log a closed or refused connection. A flood of them gets a few lines per interval."""
        self.closed += 1
        more = self.lines.more()
        if more is not None:
            log.warn(
                "connection from {address} {what}{more}", address=address or "an unknown address", what=what, more=more
            )

    # --- turns --------------------------------------------------------------------------------------------------------

    def share_until(self) -> float:
        """Return the time until which one connection's requests are handled in this turn."""
        return self._reactor.seconds() + CONNECTION_TURN_MS_MAX / 1000

    def park(self, caller: Caller) -> None:
        """Let a connection proceed in the next turn, or later in this one if it is the turn of those that wait."""
        self._parked.append(caller)
        if self._turn is None and not self._is_in_turn:
            self._turn = self._reactor.callLater(0, self._proceed)

    def _proceed(self) -> None:
        """Let connections that wait proceed, one after the other, for their part of this turn."""
        self._turn = None
        self._is_in_turn = True
        end = self._reactor.seconds() + TURN_MS_MAX / 1000
        try:
            while self._parked:
                self._parked.popleft().proceed()
                if self._reactor.seconds() >= end:
                    break
        finally:
            self._is_in_turn = False
            if self._parked:
                self._turn = self._reactor.callLater(0, self._proceed)
