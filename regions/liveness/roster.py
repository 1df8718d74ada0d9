"""The servers whose heartbeats reach this master, with their figures, on active and standby masters (HB-08, MD-05).

The roster is soft state: it is not in the store, and no decision that must be correct depends on it. The store's
sessions decide which servers live (a server's ephemeral, RF-01). So a new active master knows all servers before it has
received a heartbeat (HB-11, KUDU-1358). The roster has what the store does not: whether a server can reach *this*
master (HB-12), and its load.

A sender of heartbeats can invent servers, so the roster is bounded. A server counts as known after KNOWN_BEATS
heartbeats. If the roster is full, servers that are not known are dropped first, then silent servers. A known server
that still sends heartbeats is never dropped.

A server's heartbeats are bound to the identity that proved the first one: certificates of other servers are rejected
for them. A new start may prove another identity once the former start is silent.

Heartbeats may arrive late, twice or out of order. The roster ignores a heartbeat of an earlier start of the server, or
with a sequence number that is not above the last one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from coord.security.principal import NOBODY, Principal
from regions.messages.heartbeat import Heartbeat, ServerFigures
from regions.records.model import Incarnation, ServerRecord

#: A server without a heartbeat for this long is silent.
SILENT_MS: Final = 5_000
#: A server without a heartbeat for this long is dropped from the roster.
DROPPED_MS: Final = 3_600_000
#: A server is known after this number of heartbeats.
KNOWN_BEATS: Final = 10
#: A server that is not known is dropped from the roster after this time without a heartbeat.
UNKNOWN_DROPPED_MS: Final = 60_000
#: Servers in the roster of one master.
MEMBERS_MAX: Final = 10_000


class RosterEntry:
    """One start of one server that has sent heartbeats to this master."""

    __slots__ = ("beats", "figures", "incarnation", "received_ms", "record", "sender", "sequence")

    def __init__(self, incarnation: Incarnation, sender: Principal) -> None:
        self.incarnation = incarnation
        #: Proved identity of the first heartbeat's sender, NOBODY on an open cluster.
        self.sender = sender
        #: The server's registration, None until the server has sent it (HB-05).
        self.record: ServerRecord | None = None
        self.sequence = 0
        self.received_ms = 0
        self.figures = ServerFigures()
        #: Number of accepted heartbeats.
        self.beats = 0


class Roster:
    """All servers that have sent heartbeats to this master. Pure; times are the caller's."""

    def __init__(self) -> None:
        self._members: dict[str, RosterEntry] = {}
        #: Number of accepted heartbeats.
        self.beats = 0
        #: Number of ignored heartbeats.
        self.stale = 0
        #: Number of servers that gave way to others, or were not taken in, because the roster was full.
        self.crowded = 0

    def __len__(self) -> int:
        return len(self._members)

    def find(self, uuid: str) -> RosterEntry | None:
        """Return the entry of a server, or None if it is not in the roster."""
        return self._members.get(uuid)

    def members(self) -> list[RosterEntry]:
        """Return all entries, sorted by uuid."""
        return [self._members[uuid] for uuid in sorted(self._members)]

    def objection(self, server: Incarnation, sender: Principal, now_ms: int) -> str:
        """Return why this sender may not send heartbeats of `server`, "" if it may."""
        member = self._members.get(server.uuid)
        if member is None or member.sender == sender:
            return ""
        if member.incarnation != server and now_ms - member.received_ms > SILENT_MS:
            return ""
        return f"{member.sender} sends the heartbeats of server {server.uuid}, and {sender} may not"

    def accept(self, beat: Heartbeat, now_ms: int, sender: Principal = NOBODY) -> RosterEntry | None:
        """Accept a heartbeat and return the server's entry.

        Return None for a heartbeat that must be ignored, because it is stale, or from a new server while the roster is
        full.
        """
        server = beat.server
        member = self._members.get(server.uuid)
        if member is None or member.incarnation != server:
            if member is not None and member.incarnation.start_code > server.start_code:
                self.stale += 1
                return None
            if member is None and len(self._members) >= MEMBERS_MAX and not self._make_room(now_ms):
                self.crowded += 1
                return None
            member = self._members[server.uuid] = RosterEntry(server, sender)
        if beat.sequence <= member.sequence:
            self.stale += 1
            return None
        member.sequence = beat.sequence
        member.received_ms = now_ms
        member.figures = beat.figures
        member.beats += 1
        self.beats += 1
        if beat.registration is not None:
            member.record = beat.registration
        return member

    def latest_sequence(self, beat: Heartbeat) -> int:
        """Return the highest sequence number accepted so far from this start of the server.

        The reply to a stale heartbeat carries it, so that the sender can continue above it. For another start of the
        server: the heartbeat's own number.
        """
        member = self._members.get(beat.server.uuid)
        return member.sequence if member is not None and member.incarnation == beat.server else beat.sequence

    def is_recent(self, server: Incarnation, now_ms: int) -> bool:
        """Return True if this start of a server has sent a heartbeat within SILENT_MS."""
        member = self._members.get(server.uuid)
        return member is not None and member.incarnation == server and now_ms - member.received_ms <= SILENT_MS

    def silent(self, servers: Iterable[tuple[Incarnation, int]], now_ms: int) -> list[tuple[Incarnation, int]]:
        """Return the live servers without a recent heartbeat, each with the milliseconds since its last heartbeat.

        `servers`: live servers, each with the time from which on this master could have received its heartbeats.
        """
        found = []
        for server, since_ms in servers:
            member = self._members.get(server.uuid)
            received_ms = member.received_ms if member is not None and member.incarnation == server else since_ms
            if now_ms - received_ms > SILENT_MS:
                found.append((server, now_ms - received_ms))
        return found

    def forget(self, now_ms: int) -> None:
        """Drop servers without a heartbeat for DROPPED_MS, and servers that are not known after UNKNOWN_DROPPED_MS."""
        for uuid, member in list(self._members.items()):
            limit_ms = DROPPED_MS if member.beats >= KNOWN_BEATS else UNKNOWN_DROPPED_MS
            if now_ms - member.received_ms > limit_ms:
                del self._members[uuid]

    def _make_room(self, now_ms: int) -> bool:
        """Drop a tenth of the servers that may give way. Return False if there is none.

        A tenth at once, because finding them costs a pass over the roster.
        """
        found = [
            (member.beats >= KNOWN_BEATS, member.received_ms, uuid)
            for uuid, member in self._members.items()
            if member.beats < KNOWN_BEATS or now_ms - member.received_ms > SILENT_MS
        ]
        dropped = heapq.nsmallest(max(1, MEMBERS_MAX // 10), found)
        for _, _, uuid in dropped:
            del self._members[uuid]
        self.crowded += len(dropped)
        return bool(dropped)
