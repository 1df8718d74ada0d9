"""The history of every step of every transition, for `rk history`: contents, format and retention.

The active master writes steps to the store as *segments*: znodes below `/history`, each with a compressed list of some
hundred entries. The multi that takes a master's step also writes its entry. The transition's znode keeps the steps of a
server (`regions/transitions/trail.py`) until the next step of a master, whose multi writes entries for both. So
segments and znodes together have every step, even if masters die at any time.

The name of a segment has all figures that retention needs, so no segment need be read:

    0000000007-00000042-400-9120      epoch, number within the epoch, entries, bytes

Segments are never changed. Small adjacent segments are merged into one. The oldest segments are deleted when there are
more steps, bytes or segments than the limits below. All of these writes are fenced.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor
from regions.transitions.steps import SeenStep

#: Steps of the history in the store.
STEPS_MAX: Final = 200_000
#: Bytes of the history in the store.
BYTES_MAX: Final = 8 << 20
#: Segments of the history in the store.
SEGMENTS_MAX: Final = 1_000
#: A segment with fewer entries is small.
SMALL: Final = 500
#: This number of adjacent small segments are merged.
MERGE_AT: Final = 32
#: Entries of a merged segment.
MERGED_MAX: Final = 4_000
#: Entries of one segment.
ENTRIES_MAX: Final = 5_000
#: Bytes of one segment. The segment is part of a multi of up to 512 kB, and a frame of the store has at most 1 MB.
SEGMENT_BYTES_MAX: Final = 400_000
#: Uncompressed bytes of one segment, in case the znode was overwritten with other data.
RAW_BYTES_MAX: Final = 8 << 20
#: Entries that are not steps wait at most this long for a multi.
FLUSH_MS: Final = 500

_MAGIC: Final = b"RKH1"
_LEVEL: Final = 1

# Causes of entries that are not steps.
EPOCH_BEGINS: Final = "epoch begins"
#: A transition that a new master has found. Written only by earlier builds.
FOUND: Final = "found"
#: The history lacks the steps between `before` and `after`. Such an entry is not stored, only returned in replies.
GAP: Final = "gap"
SERVER_UP: Final = "server registered"
SERVER_DOWN: Final = "server gone"
#: A master deleted the registration of a server, at a request or because the server was late.
SERVER_FENCED: Final = "server fenced"
#: The servers that are registered when a master takes over: `detail` has "uuid=host:port", separated by spaces.
SERVERS: Final = "servers found"
DRAIN_BEGINS: Final = "drain begins"
DRAIN_ENDS: Final = "drain ends"
#: The active master had no connection to the store; the entry's time is that of the loss.
STORE_OUTAGE: Final = "store outage"
#: A round of the balancer that moved something.
BALANCED: Final = "balancer round"
#: Regions were split or merged, or a split or merge was canceled.
RESHARDED: Final = "split or merge"


class Segment(NamedTuple):
    """The fields of a segment's name. Segments sort by time."""

    epoch: int
    number: int
    entries: int
    bytes: int

    @property
    def name(self) -> str:
        """Name of the znode."""
        return f"{self.epoch:010d}-{self.number:08d}-{self.entries}-{self.bytes}"


def parse_segment(name: str) -> Segment | None:
    """Return the segment of that name, or None if the name is not a segment's."""
    parts = name.split("-")
    if len(parts) != len(Segment._fields) or not all(part.isdigit() for part in parts):
        return None
    return Segment(*(int(part) for part in parts))


class CorruptSegment(Exception):  # noqa: N818 - named after what it reports
    """Raised for a damaged segment."""


_packer = msgspec.msgpack.Encoder()
_unpacker = msgspec.msgpack.Decoder(list[HistoryEntry])


def pack(entries: Sequence[HistoryEntry]) -> bytes:
    """Return the value of a segment's znode. Omit errors and reasons if it would exceed SEGMENT_BYTES_MAX."""
    data = _MAGIC + zlib.compress(_packer.encode(entries), _LEVEL)
    if len(data) <= SEGMENT_BYTES_MAX:
        return data
    bare = [msgspec.structs.replace(one, reason="", detail="", origin="") for one in entries]
    return _MAGIC + zlib.compress(_packer.encode(bare), _LEVEL)


def unpack(data: bytes) -> list[HistoryEntry]:
    """Return the entries of a segment. Raise CorruptSegment."""
    if not data.startswith(_MAGIC):
        raise CorruptSegment(f"the value does not begin with {_MAGIC.decode()}")
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(data[len(_MAGIC) :], RAW_BYTES_MAX)
        return _unpacker.decode(raw)
    except (zlib.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptSegment(str(error)) from error


# --- entries --------------------------------------------------------------------------------------------------------


class StepLog(deque[SeenStep]):
    """The latest steps in memory, and in `unsaved` the entries that are not steps and have not been written yet."""

    def __init__(self, maxlen: int) -> None:
        super().__init__(maxlen=maxlen)
        self.unsaved: deque[HistoryEntry] = deque(maxlen=maxlen)
        #: Steps of the events that are being handled; `add_noted` adds them together.
        self.noted: list[SeenStep] = []
        #: Called with the steps that were added.
        self.listener: Callable[[list[SeenStep]], None] | None = None

    def append(self, step: SeenStep, /) -> None:
        """Add a step."""
        self.extend([step])

    def extend(self, steps: Iterable[SeenStep], /) -> None:
        """Add steps."""
        added = list(steps)
        super().extend(added)
        if self.listener is not None:
            self.listener(added)

    def add_noted(self) -> None:
        """Add the noted steps."""
        if self.noted:
            steps, self.noted = self.noted, []
            self.extend(steps)

    def take_unsaved(self, most: int = ENTRIES_MAX) -> list[HistoryEntry]:
        """Remove and return up to `most` of the oldest unsaved entries."""
        return [self.unsaved.popleft() for _ in range(min(most, len(self.unsaved)))]

    def put_back(self, entries: Sequence[HistoryEntry]) -> None:
        """Put back entries whose write was refused."""
        self.unsaved.extendleft(reversed(entries))


# --- retention ------------------------------------------------------------------------------------------------------


def surplus(segments: Sequence[Segment]) -> list[Segment]:
    """Return the oldest segments to delete so that the others are within the limits. `segments` must be sorted."""
    steps, size, count = sum(one.entries for one in segments), sum(one.bytes for one in segments), len(segments)
    found: list[Segment] = []
    for one in segments:
        if steps <= STEPS_MAX and size <= BYTES_MAX and count <= SEGMENTS_MAX:
            break
        found.append(one)
        steps, size, count = steps - one.entries, size - one.bytes, count - 1
    return found


def mergeable(segments: Sequence[Segment]) -> list[Segment]:
    """Return the first run of at least MERGE_AT adjacent small segments, up to the size of a merged segment; or []."""
    run: list[Segment] = []
    entries = 0
    for one in segments:
        if one.entries >= SMALL:
            run, entries = [], 0
            continue
        if entries + one.entries > MERGED_MAX:
            return run
        run.append(one)
        entries += one.entries
    return run if len(run) >= MERGE_AT else []


# --- reading --------------------------------------------------------------------------------------------------------


def complete_history(segments: Iterable[HistoryEntry], kept: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Return the whole history: the entries of the segments in order, and the steps kept in znodes.

    The caller must have read the znodes before the segments. Steps that a master has written between these two reads
    are returned only once. Entries are sorted by time, and the steps of one replica are in order, even if clocks
    differ. A `GAP` entry marks two steps of a replica that do not join.
    """
    entries = [one for one in segments if one.cause != FOUND]
    known = {(one.key, one.at_ms, one.after, one.server) for one in entries if one.actor == Actor.SERVER.value}
    entries += [one for one in kept if (one.key, one.at_ms, one.after, one.server) not in known]
    latest: dict[str, HistoryEntry] = {}
    time_of: dict[str, int] = {}
    timed: list[tuple[int, HistoryEntry]] = []
    for one in entries:
        if not one.key:
            timed.append((one.at_ms, one))
            continue
        at_ms = time_of[one.key] = max(one.at_ms, time_of.get(one.key, 0))
        former = latest.get(one.key)
        if former is not None and former.after != one.before:
            timed.append((at_ms, HistoryEntry(at_ms, one.key, "", former.after, one.before, GAP)))
        timed.append((at_ms, one))
        latest[one.key] = one
    timed.sort(key=lambda pair: pair[0])
    return [one for _, one in timed]


def stamped(entries: Iterable[HistoryEntry], zxid: int) -> list[HistoryEntry]:
    """Return the entries of a segment with the zxid of the segment's write.

    The steps of servers were committed by earlier writes, whose zxids are not known.
    """
    return [
        one if one.zxid or (one.actor == Actor.SERVER.value and one.key) else msgspec.structs.replace(one, zxid=zxid)
        for one in entries
    ]


def servers_found(entry: HistoryEntry) -> dict[str, str]:
    """Return address by uuid of the servers that a new active master has found; {} for another entry."""
    if entry.cause != SERVERS:
        return {}
    return dict(part for one in entry.detail.split() if len(part := tuple(one.split("=", 1))) == 2)  # type: ignore[misc]


def concerns(
    entry: HistoryEntry,
    *,
    region_id: str = "",
    table_id: str = "",
    table: str = "",
    server: str = "",
    cause_id: str = "",
) -> bool:
    """Return True if an entry is about this region, table (id and name), server (uuid) and cause.

    "" matches everything.
    """
    if cause_id and entry.cause_id != cause_id:
        return False
    about = entry.region_id or entry.reason  # an event that is not a step of a replica names its region there
    if region_id and about != region_id:
        return False
    if table_id and about.rpartition(".")[0] != table_id:
        return bool(entry.subject) and entry.subject in (table, table_id)
    return not server or entry.server == server
