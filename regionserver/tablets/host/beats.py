"""Liveness between servers: finds the live peer servers, for all tablets at once.

Each pair of servers exchanges one BEAT per BEAT_TICKS, however many tablets they share. A BEAT names the sender's
start code and states whether the sender's disk answers. A peer server counts as gone

- when its connection breaks,
- when no BEAT has come for SILENCE_TICKS,
- when another start code shows that its process was replaced: a quick restart counts as death, because the new process
  leads no tablet,
- when its disk does not answer, because then it cannot make any vote or acknowledgment durable.

A BEAT also states whether the sender's disk is full. Such a server still votes and follows, but must not lead: it hands
its leaderships over, and gets none.

Time is counted in this process's own ticks, not by a clock. A stopped process has no ticks, so it does not mistake its
own pause for silence of its peers.
"""

from __future__ import annotations

from typing import Final

from regionserver.tablets.host.envelope import Envelope

#: Duration of a tick. Timers of groups and of BEATs count ticks.
TICK_MS: Final = 50
#: A BEAT is sent to each peer server once per this many ticks: 100 ms.
BEAT_TICKS: Final = 2
#: A peer server counts as gone after this many ticks without a BEAT: 700 ms. Six BEATs in a row may be late.
SILENCE_TICKS: Final = 14


class PeerServer:
    """State of the process on another server, as known here."""

    def __init__(self, start_code: int, now: int) -> None:
        self.start_code = start_code
        #: Number of the newest BEAT of this process.
        self.beat = 0
        #: Tick of this server at which a frame of the peer last arrived.
        self.heard = now
        self.is_there = True
        self.disk_answers = True
        self.is_full = False


class BeatOutput:
    """A BEAT for one peer server."""

    def __init__(self, number: int, disk_answers: bool, is_full: bool, heartbeats: list[Envelope]) -> None:
        self.number: int = number
        self.disk_answers: bool = disk_answers
        self.is_full: bool = is_full
        self.heartbeats: list[Envelope] = heartbeats


class Beats:
    """The peer servers of one server.

    Invariant: each time that a server was alive, exactly one method call returns it as gone.
    """

    def __init__(self) -> None:
        #: Ticks since this process started.
        self.now = 0
        #: Number of the last BEAT that this server sent.
        self.sent = 0
        #: False while this server's own log write takes too long.
        self.disk_answers = True
        #: True while this server's disk has no room for writes.
        self.is_full = False
        self.peers: dict[str, PeerServer] = {}
        #: Server of a member that is not alive -> tick at which it was lost.
        self._gone_since: dict[str, int] = {}
        #: Servers that are alive again, or for the first time, since the last `take_returned`.
        self._returned: list[str] = []

    def expected(self, server: str) -> None:
        """A tablet has a member on `server`: from now on its absence counts."""
        if not self.is_there(server):
            self._gone_since.setdefault(server, self.now)

    def absences(self, ticks: float) -> frozenset[str]:
        """Return the servers of members that have not been alive for that many ticks."""
        return frozenset(server for server, since in self._gone_since.items() if self.now - since >= ticks)

    def take_returned(self) -> list[str]:
        """Return the servers that are alive again, or for the first time, since the last call."""
        returned, self._returned = self._returned, []
        return returned

    def _note_gone(self, server: str, peer: PeerServer) -> None:
        peer.is_there = False
        self._gone_since[server] = self.now

    def _note_back(self, server: str) -> None:
        self._gone_since.pop(server, None)
        self._returned.append(server)

    def introduced(self, server: str, start_code: int) -> bool | None:
        """Record a frame or hello of `server`. Return True if it shows that a former process of the server is gone.

        Return None for a start code below the known one: a late message of a former process, which must be dropped.
        """
        peer = self.peers.get(server)
        if peer is not None and start_code < peer.start_code:
            return None
        if peer is not None and start_code == peer.start_code:
            return False
        self.peers[server] = PeerServer(start_code, self.now)
        self._note_back(server)
        return peer is not None

    def beat(self, server: str, number: int, *, disk_answers: bool, is_full: bool = False) -> bool:
        """Record a BEAT of the known process on `server`. Return True if the server is gone because its disk failed."""
        peer = self.peers[server]
        if number <= peer.beat:
            return False
        peer.beat = number
        peer.heard = self.now
        was_there = peer.is_there
        had_disk = peer.disk_answers
        peer.disk_answers = peer.is_there = disk_answers
        peer.is_full = is_full
        if disk_answers and not was_there:
            self._note_back(server)
        elif was_there and not disk_answers:
            self._note_gone(server, peer)
        return was_there and had_disk and not disk_answers

    def lost(self, server: str, start_code: int) -> bool:
        """Record that the connection to that process broke. Return True if it was alive until now."""
        peer = self.peers.get(server)
        if peer is None or peer.start_code != start_code or not peer.is_there:
            return False
        self._note_gone(server, peer)
        return True

    def tick(self) -> list[str]:
        """Advance time by one tick. Return the servers that are gone because of silence."""
        self.now += 1
        gone = []
        for server, peer in self.peers.items():
            if peer.is_there and self.now - peer.heard >= SILENCE_TICKS:
                self._note_gone(server, peer)
                gone.append(server)
        return gone

    def is_due(self) -> bool:
        """Return True at the ticks at which BEATs are sent."""
        return self.now % BEAT_TICKS == 0

    def is_there(self, server: str) -> bool:
        """Return True if the process on `server` is alive, as far as known."""
        peer = self.peers.get(server)
        return peer is not None and peer.is_there

    def may_lead(self, server: str) -> bool:
        """Return True if the process on `server` is alive and its disk has room, as far as known."""
        peer = self.peers.get(server)
        return peer is not None and peer.is_there and not peer.is_full
