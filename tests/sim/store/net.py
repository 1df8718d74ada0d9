"""The network: byte streams between machines like TCP's, with all the faults that TCP does not hide.

Bytes of one direction arrive in order, in pieces, after delays with a heavy tail, or not at all because the connection
broke. A cut from A to B holds back A's data. If the cut lasts, A gives up the connection, and B may never notice. A
connection that one end has given up still delivers the data in flight, perhaps after its successor has begun.

`SimSocket` has the methods of a socket that `coord.peers.stream` uses, and raises the same errors.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coord.newcomers import TCP_INFO

if TYPE_CHECKING:
    from tests.sim.store.world import World

#: Limit of bytes in flight or unread in one direction; more are rejected, as by a full socket buffer.
WINDOW: Final = 96 << 10
FIN: Final = b""


class SimSocket:
    """One end of a connection."""

    def __init__(self, net: Network, machine: int) -> None:
        self.net = net
        #: The machine of this end; clients are negative.
        self.machine = machine
        self.peer: SimSocket | None = None
        self._fd = net.next_fd()
        self.inbox: deque[bytes] = deque()
        self.at_end = False
        self.error = 0
        self.is_closed = False
        #: Bytes that this end sent and the other end has not read.
        self.unread = 0
        #: Bytes that this end sent and the other end has read.
        self.taken = 0
        self.is_blocked = False
        #: Called when there is data to read, or room to write.
        self.on_ready: Callable[[SimSocket], None] = _nobody
        # Data of this end: the arrival time of the last byte, and the data that a cut holds back.
        self._free_at = 0
        self.held: deque[bytes] = deque()
        self.held_since = -1
        #: Called when the other end reads data of this end.
        self.on_read: Callable[[int], None] | None = None

    # --- what a socket can do

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        pass

    def getsockopt(self, *args: object) -> bytes:
        """Return TCP_INFO of a connection that stands and is young: a caller's end is found by reading."""
        return bytes([1]).ljust(TCP_INFO.size, b"\0")

    def setsockopt(self, *args: object) -> None:
        pass

    def connect_ex(self, address: tuple[str, int]) -> int:
        self.net.connect(self, address)
        return errno.EINPROGRESS

    def send(self, data: bytes | memoryview) -> int:
        if self.error:
            raise OSError(self.error, "connection broken")
        self.net.world.step_of(self.machine)
        room = WINDOW - self.unread
        if room <= 0:
            self.is_blocked = True
            raise BlockingIOError
        taken = bytes(data[:room])
        if len(taken) < len(data):
            self.is_blocked = True
        self.unread += len(taken)
        self.net.transmit(self, taken)
        return len(taken)

    def recv(self, size: int) -> bytes:
        if self.inbox:
            data = self.inbox.popleft()
            if len(data) > size:
                self.inbox.appendleft(data[size:])
                data = data[:size]
            self._credit(len(data))
            if self.peer is not None and self.peer.on_read is not None:
                self.peer.on_read(self.machine)
            return data
        if self.error:
            raise OSError(self.error, "connection broken")
        if self.at_end:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.net.closed(self)

    # --- the network's side

    def _credit(self, size: int) -> None:
        peer = self.peer
        if peer is not None:
            peer.unread -= size
            peer.taken += size
            if peer.is_blocked and not peer.is_closed:
                peer.is_blocked = False
                peer.on_ready(peer)

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.at_end or self.error != 0

    def is_writable(self) -> bool:
        return self.unread < WINDOW or self.error != 0

    def arrived(self, data: bytes) -> None:
        if data:
            self.inbox.append(data)
        else:
            self.at_end = True
        self.on_ready(self)

    def broken(self, code: int) -> None:
        """Let this end learn that the connection is gone."""
        if not self.is_closed and not self.error:
            self.error = code
            self.on_ready(self)


class Listening:
    """A listening socket."""

    def __init__(self, net: Network, machine: int, what: str) -> None:
        self.machine = machine
        self.what = what
        self._fd = net.next_fd()
        self.waiting: deque[SimSocket] = deque()
        self.is_closed = False
        self.on_ready: Callable[[Any], None] = _nobody

    def fileno(self) -> int:
        return self._fd

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        sock = self.waiting.popleft()
        assert sock.peer is not None
        return sock, (f"10.0.1.{abs(sock.peer.machine)}", 40_000 + sock.peer.fileno())

    def is_readable(self) -> bool:
        return bool(self.waiting)

    def is_writable(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


class Network:
    """All connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        chance = world.chance
        #: One-way cuts: (from machine, to machine).
        self.cut: set[tuple[int, int]] = set()
        #: Cuts that outlast `heal` -> their end.
        self.lasting: dict[tuple[int, int], int] = {}
        self.heavy = chance.pick([0.0, 0.003, 0.02])
        self.give_up_us = int(chance.pick([600_000, 1_500_000, 5_000_000]))
        self.pieces = chance.pick([0.0, 0.0, 0.1])
        self.listening: dict[tuple[int, str], Listening] = {}
        #: Open ends, by descriptor.
        self.ends: dict[int, SimSocket] = {}
        self._fd = 100

    def next_fd(self) -> int:
        self._fd += 1
        return self._fd

    # --- connecting

    def connect(self, sock: SimSocket, address: tuple[str, int]) -> None:
        """Connect to `10.0.0.<node>`, port 1 for peers and 2 for clients."""
        machine = int(address[0].rpartition(".")[2])
        what = "peer" if address[1] == 1 else "client"
        other = SimSocket(self, machine)
        sock.peer, other.peer = other, sock
        self.ends[sock.fileno()] = sock
        self.ends[other.fileno()] = other
        self._syn(sock, what)

    def _syn(self, sock: SimSocket, what: str) -> None:
        other = sock.peer
        assert other is not None
        world = self.world
        if sock.is_closed:
            return
        if {(sock.machine, other.machine), (other.machine, sock.machine)} & self.cut:
            world.at(world.now + 200_000 + world.chance.below(800_000), self._syn, sock, what)
            return
        world.at(world.now + self._delay(), self._reaches, sock, what)

    def _reaches(self, sock: SimSocket, what: str) -> None:
        other = sock.peer
        assert other is not None
        if sock.is_closed or other.is_closed:
            return
        listening = self.listening.get((other.machine, what))
        if listening is None or listening.is_closed:
            if self.world.is_on(other.machine):
                self.world.at(self.world.now + self._delay(), self._break_end, sock, errno.ECONNREFUSED)
            else:
                self.world.at(self.world.now + self.give_up_us, self._break_end, sock, errno.ETIMEDOUT)
            return
        listening.waiting.append(other)
        listening.on_ready(listening)

    def _break_end(self, sock: SimSocket, code: int) -> None:
        sock.broken(code)

    # --- bytes

    def _delay(self) -> int:
        chance = self.world.chance
        delay = 100 + int(900 * chance.unit())
        if self.world.faulty and self.heavy and chance.unit() < self.heavy:
            self.world.counts["late_bytes"] += 1
            delay = int(delay * 20 / (0.03 + chance.unit()))
        return delay

    def transmit(self, sock: SimSocket, data: bytes) -> None:
        """Send `data` (or FIN) from `sock`."""
        other = sock.peer
        assert other is not None
        world = self.world
        if sock.held or (self.cut and (sock.machine, other.machine) in self.cut):
            if not sock.held:
                sock.held_since = world.now
                world.at(world.now + self.give_up_us, self._give_up, sock, sock.held_since)
            sock.held.append(data)
            return
        if self.pieces and len(data) > 1 and world.chance.happens(self.pieces):
            middle = 1 + world.chance.below(len(data) - 1)
            self._put(sock, data[:middle])
            data = data[middle:]
        self._put(sock, data)

    def _put(self, sock: SimSocket, data: bytes) -> None:
        arrival = max(self.world.now + self._delay(), sock._free_at)
        sock._free_at = arrival
        self.world.at(arrival, self._arrive, sock, data)

    def _arrive(self, sock: SimSocket, data: bytes) -> None:
        other = sock.peer
        assert other is not None
        if other.is_closed or other.error:
            if self.world.is_on(other.machine) and not sock.is_closed:
                self.world.at(self.world.now + self._delay(), self._break_end, sock, errno.ECONNRESET)
            return
        other.arrived(data)

    def _give_up(self, sock: SimSocket, since: int) -> None:
        if sock.held and sock.held_since == since:
            sock.held.clear()
            self.world.counts["given_up"] += 1
            sock.broken(errno.ETIMEDOUT)

    def heal(self, *, for_good: bool = False) -> None:
        """End all cuts except lasting ones, or with `for_good` also those. Data that they held back is sent."""
        if for_good:
            self.lasting.clear()
        self.cut = {pair for pair, until in self.lasting.items() if until > self.world.now}
        for fd in sorted(self.ends):
            sock = self.ends[fd]
            if sock.peer is not None and (sock.machine, sock.peer.machine) in self.cut:
                continue
            held, sock.held = sock.held, deque()
            for data in held:
                self._put(sock, data)

    # --- ends

    def closed(self, sock: SimSocket) -> None:
        """Handle a close by the owner of `sock`: the other end reads all data sent before."""
        self.ends.pop(sock.fileno(), None)
        if sock.peer is not None and not sock.peer.is_closed and not sock.error:
            self.transmit(sock, FIN)

    def break_connection(self, sock: SimSocket) -> None:
        """Break the connection of `sock`: one end notices at once, the other when all data has arrived."""
        self.world.counts["reset"] += 1
        other = sock.peer
        sock.held.clear()
        sock.broken(errno.ECONNRESET)
        if other is not None:
            late = self.world.chance.pick([0, 2000, 500_000, 2_000_000])
            self.world.at(max(self.world.now + late, sock._free_at), self._break_end, other, errno.ECONNRESET)

    def machine_gone(self, machine: int, *, silent: bool) -> None:
        """Handle the end of a process, which its system reports to the others, or of its machine, which they have to
        notice."""
        for (where, what), listening in list(self.listening.items()):
            if where == machine:
                listening.is_closed = True
                for sock in listening.waiting:
                    sock.close()
                del self.listening[(where, what)]
        chance = self.world.chance
        for fd in sorted(self.ends):
            sock = self.ends.get(fd)
            if sock is None or sock.machine != machine:
                continue
            sock.on_ready = _nobody
            del self.ends[fd]
            sock.is_closed = True
            other = sock.peer
            if other is None or other.is_closed:
                continue
            if silent:
                late = self.world.now + chance.pick([1000, 300_000, 2_000_000, 5_000_000])
                self.world.at(max(late, sock._free_at), self._break_end, other, errno.ETIMEDOUT)
            else:
                self.transmit(sock, FIN)


def _nobody(sock: Any) -> None:
    """Do nothing: the default of `on_ready`."""
