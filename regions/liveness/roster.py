"""Which servers a master hears, and what they say of themselves; kept by every master, active or not (HB-08, MD-05).

Soft state: nothing of it is in the store, nothing is decided by it that must be right. Who lives is decided by the
store's sessions (a server's ephemeral, RF-01), which every master sees at once, a new one too: so a create right after
a failover knows all servers although none may have sent it a heartbeat yet (HB-11, KUDU-1358). The roster says what the
store cannot: whether a server reaches *this* master (HB-12), and how busy it is.

Heartbeats may come late, twice or out of order, over connections that were given up. One of an earlier start of its
server, or with a number that is not higher than the last, is not believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from regions.messages.heartbeat import Heartbeat, ServerFigures
from regions.records.model import Incarnation, ServerRecord

#: A server that was not heard for so long is called silent.
SILENT_MS: Final = 5_000
#: One that was not heard for so long is forgotten.
DROPPED_MS: Final = 3_600_000


class RosterEntry:
    """One start of one server, as this master hears it."""

    __slots__ = ("beats", "figures", "heard_ms", "incarnation", "record", "sequence")

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        #: Its registration, None until it has sent it (HB-05).
        self.record: ServerRecord | None = None
        self.sequence = 0
        self.heard_ms = 0
        self.figures = ServerFigures()
        #: Heartbeats that were believed.
        self.beats = 0


class Roster:
    """All servers that this master has heard of. Pure; times are the caller's."""

    def __init__(self) -> None:
        self._members: dict[str, RosterEntry] = {}
        #: Heartbeats that were believed, and that were not.
        self.beats = 0
        self.stale = 0

    def __len__(self) -> int:
        return len(self._members)

    def find(self, uuid: str) -> RosterEntry | None:
        """A server, if it was ever heard and not forgotten since."""
        return self._members.get(uuid)

    def members(self) -> list[RosterEntry]:
        """All of them, by uuid."""
        return [self._members[uuid] for uuid in sorted(self._members)]

    def accept(self, beat: Heartbeat, now_ms: int) -> RosterEntry | None:
        """Take a heartbeat; None if it is out of date, and nothing in it may be believed."""
        server = beat.server
        member = self._members.get(server.uuid)
        if member is None or member.incarnation != server:
            if member is not None and member.incarnation.start_code > server.start_code:
                self.stale += 1
                return None
            member = self._members[server.uuid] = RosterEntry(server)
        if beat.sequence <= member.sequence:
            self.stale += 1
            return None
        member.sequence = beat.sequence
        member.heard_ms = now_ms
        member.figures = beat.figures
        member.beats += 1
        self.beats += 1
        if beat.registration is not None:
            member.record = beat.registration
        return member

    def latest_sequence(self, beat: Heartbeat) -> int:
        """The number that a heartbeat which was not believed would have had to exceed."""
        member = self._members.get(beat.server.uuid)
        return member.sequence if member is not None and member.incarnation == beat.server else beat.sequence

    def is_recent(self, server: Incarnation, now_ms: int) -> bool:
        """Whether this very start of a server was heard of late."""
        member = self._members.get(server.uuid)
        return member is not None and member.incarnation == server and now_ms - member.heard_ms <= SILENT_MS

    def silent(self, servers: Iterable[tuple[Incarnation, int]], now_ms: int) -> list[tuple[Incarnation, int]]:
        """Of these, which the store says live, those that were not heard of late, and for how long in ms.

        With each goes the time from which on it can have been heard; silence from before then is nobody's fault.
        """
        found = []
        for server, since_ms in servers:
            member = self._members.get(server.uuid)
            heard_ms = member.heard_ms if member is not None and member.incarnation == server else since_ms
            if now_ms - heard_ms > SILENT_MS:
                found.append((server, now_ms - heard_ms))
        return found

    def forget(self, now_ms: int) -> None:
        """Drop servers that were not heard for very long."""
        for uuid in [one for one, member in self._members.items() if now_ms - member.heard_ms > DROPPED_MS]:
            del self._members[uuid]
