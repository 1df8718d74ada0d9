"""Requests of clients to a tablet, and their answers.

The host does not interpret payloads and results. A request is a number that the shell chooses and does not use again
while the request waits.
"""

from __future__ import annotations

import enum
from typing import Any, Final

#: Limits of bytes that are proposed and not applied: of one tablet, so that a slow tablet leaves room for the others;
#: and of all tablets of a server, so that the process does not run out of memory.
TABLET_BYTES_MAX: Final = 16 << 20
SERVER_BYTES_MAX: Final = 256 << 20
#: Limit of one tablet's reads that wait for a confirmation or for entries to be applied.
TABLET_READS_MAX: Final = 10_000
#: Ticks that a read with `at_least` waits for its index: two election timeouts, as in the core's settings.
AT_LEAST_TICKS: Final = 40


class Fate(enum.Enum):
    """Outcome of a request."""

    DONE = enum.auto()  #: applied; `TabletAnswer.value` is what the rows returned
    NOT_LEADER = enum.auto()  #: nothing was done; ask the leader
    UNKNOWN = enum.auto()  #: leadership ended before the entry was applied: repeat the request under its number
    BUSY = enum.auto()  #: nothing was done; too many requests wait, retry later
    DISK_FULL = enum.auto()  #: nothing was done; the disk of this server is full
    TOO_LARGE = enum.auto()  #: nothing was done; the payload is too large for any log
    TOO_STALE = enum.auto()  #: the replica has not applied the index that the read names; ask the leader
    FAILED = enum.auto()  #: this replica does not run; try another one
    DOES_NOT_EXIST = enum.auto()  #: this server has no replica of the tablet
    REFUSED = enum.auto()  #: a change of members was rejected; `TabletAnswer.value` is the answer


class TabletAnswer:
    """The answer to one request."""

    def __init__(
        self,
        tablet: str,
        request: int,
        fate: Fate,
        value: Any = None,
        term: int = 0,
        index: int = 0,
        leader: int = 0,
        leader_server: str = "",
    ) -> None:
        self.tablet: str = tablet
        self.request: int = request
        self.fate: Fate = fate
        self.value: Any = value
        #: Position of the applied entry: a read with this `at_least` sees the write on any replica.
        self.term: int = term
        self.index: int = index
        #: The leading member and its server; 0 and "" if unknown.
        self.leader: int = leader
        self.leader_server: str = leader_server


class ReadyRead:
    """A read that the rows can answer now or later: they hold every entry up to `index`."""

    def __init__(self, tablet: str, request: int, index: int) -> None:
        self.tablet: str = tablet
        self.request: int = request
        self.index: int = index


class InFlight:
    """Bytes of waiting payloads on one server."""

    def __init__(self, limit: int = SERVER_BYTES_MAX) -> None:
        self.limit = limit
        self.bytes = 0
