"""Interfaces of the tablet host to the rest of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from regions.messages.server import MemberEndpoint
from regionserver.kv.snapshot import RowSnapshot
from regionserver.tablets.disk.steps import NOTHING, Beginning

#: Duration of a log write after which the disk counts as not answering. Then leaderships are handed over.
SLOW_WRITE_MS: Final = 1000
#: Threads that apply rounds and serve reads. Their work is mostly LMDB's, outside of the interpreter's lock.
THREADS: Final = 4
#: Limit for log entries in memory: as many bytes as requests may have in flight.
MEMORY_BYTES: Final = 256 << 20

#: Reads rows from a snapshot, on any thread. Its result is the answer's value.
RowsReader = Callable[[RowSnapshot], Any]


class HostLinks(Protocol):
    """Connections to the other servers."""

    def learn(self, server: str, address: tuple[str, int]) -> None:
        """Note where a server listens for peers."""
        ...

    def send(self, server: str, frame: bytes) -> bool:
        """Queue a frame. Return False if there is no link; the frame is lost then."""
        ...

    def knows_full(self, server: str) -> bool:
        """Return True if the build of a server can read BEATs that report a full disk."""
        ...

    def knows_quiet(self, server: str) -> bool:
        """Return True if the build of a server reads the words by which tablets become quiet."""
        ...

    def flush(self) -> None:
        """Send the queued frames: one write per peer."""
        ...


class ThreadedReactor(Protocol):
    """The parts of a reactor that the host uses. A `TurnReactor` also calls the host at the end of each turn."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> Any: ...
    def callFromThread(self, f: Callable[..., object], *args: object) -> None: ...
    def addReader(self, reader: Any) -> None: ...
    def removeReader(self, reader: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Limits of a host. The defaults are those of a server; tests have smaller ones."""

    threads: int = THREADS
    slow_write_ms: int = SLOW_WRITE_MS
    #: Time without a message from a member after which its leader judges it FAILED.
    dead_s: float = 300.0
    #: Size of a segment of the shared log; None: the log's own.
    segment_bytes: int | None = None
    #: Bytes of log entries in memory, of all groups. Beyond it, applied entries are on the disk alone.
    memory_bytes: int = MEMORY_BYTES
    #: Time limit for handing over leaderships, and for the disk, when a host stops.
    hand_over_s: float = 2.0


@dataclass(frozen=True, slots=True)
class ReplicaOpening:
    """The order to make the first replica of a tablet on this server: member `number` of `initial`."""

    tablet: str
    table: str
    number: int
    #: All members, all of them voters; the same on each of their servers.
    initial: tuple[MemberEndpoint, ...]
    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0
    #: For a replica that begins with rows: the generation of their file, and their last entry.
    generation: int = 0
    beginning: Beginning = NOTHING
    #: True for the member that stands for election at once; None: the tablet's name decides.
    stands_first: bool | None = None
