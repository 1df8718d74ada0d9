"""Every step of every transition, for `rk history`: what is written down, in which form, and for how long it is kept.

The active master writes steps to the store as *segments*, znodes below `/history`, each the compressed list of some
hundred entries. Its own steps are in the very multi that takes them, so no step of a master is ever done and not
written down, or written down and not done. Steps of servers are written with the next multi, or after `FLUSH_MS` if
none comes. If the master dies in between, its successor writes down what it *found*, and `filled` tells the steps
between two entries that only one legal way connects: a region goes from OFFLINE to OPENED through OPENING.

A segment's name says all that its keeping depends on, so nothing has to be read for that:

    0000000007-00000042-400-9120      epoch, number within the epoch, entries, bytes

Segments are never changed. Small neighbours are merged into one, and the oldest are deleted when there are more steps,
bytes or segments than the bounds below allow. All of that is fenced like any other write of a master.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from regions.effects import DeleteTransition, WriteOffline
from regions.model import RegionState, TransitionRecord
from regions.sights import NONE, actor_of, only_way
from regions.states import STEPS, Actor, Cause
from regions.world import Replica

#: Bounds of what is kept in the store.
STEPS_MAX: Final = 200_000
BYTES_MAX: Final = 8 << 20
SEGMENTS_MAX: Final = 1_000
#: Neighbours with fewer entries are small: so many in a row are merged, into segments of at most so many entries.
SMALL: Final = 500
MERGE_AT: Final = 32
MERGED_MAX: Final = 4_000
#: Entries and bytes of one segment: it travels with a multi of up to 512 kB, and the store's frames end at 1 MB.
ENTRIES_MAX: Final = 5_000
SEGMENT_BYTES_MAX: Final = 400_000
#: What a segment may unpack to, should somebody have written something else there.
RAW_BYTES_MAX: Final = 8 << 20
#: Errors longer than this are cut in the history; the transition itself has them in full.
DETAIL_MAX: Final = 200
#: Steps of servers wait no longer than this for a multi to go with.
FLUSH_MS: Final = 500

_MAGIC: Final = b"RKH1"
_LEVEL: Final = 1

# Causes of entries that are no steps.
EPOCH_BEGINS: Final = "epoch begins"
FOUND: Final = "found"
SERVER_UP: Final = "server registered"
SERVER_DOWN: Final = "server gone"
OPERATOR: Final = "operator"


class SeenStep(msgspec.Struct, gc=False):
    """A step as one master saw or made it; `cause` None: seen, not made."""

    at_ms: int
    key: str
    actor: Actor
    before: RegionState | None
    after: RegionState | None
    cause: Cause | None
    server: str
    epoch: int
    plan_id: str
    attempt: int
    error: str
    reason: str = ""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """One line of the history as it is stored: a step, or (`key` "") something about a master or server.

    `before` and `after` are states, "" for no znode. `cause` is a `states.Cause`, or one of the words above; `FOUND`:
    a new master found the transition so, whatever led there. `server` is a uuid: the server concerned, of EPOCH_BEGINS
    the master's own.
    """

    at_ms: int
    key: str
    actor: str
    before: str
    after: str
    cause: str
    server: str = ""
    epoch: int = 0
    attempt: int = 0
    plan_id: str = ""
    reason: str = ""
    detail: str = ""
    #: Only in answers: nobody saw this step, but there is no other legal way between its neighbours.
    inferred: bool = False

    @property
    def region_id(self) -> str:
        """The region's id; "" if the entry is about something else."""
        return self.key.rpartition("-")[0]


class Segment(NamedTuple):
    """What a segment's name says. Order is the order of time."""

    epoch: int
    number: int
    entries: int
    bytes: int

    @property
    def name(self) -> str:
        """Name of the znode."""
        return f"{self.epoch:010d}-{self.number:08d}-{self.entries}-{self.bytes}"


def parse_segment(name: str) -> Segment | None:
    """The segment of that name; None if it is something else's."""
    parts = name.split("-")
    if len(parts) != len(Segment._fields) or not all(part.isdigit() for part in parts):
        return None
    return Segment(*(int(part) for part in parts))


class CorruptSegment(Exception):  # noqa: N818 - named after what it reports
    """A segment that cannot be read; the others can."""


_packer = msgspec.msgpack.Encoder()
_unpacker = msgspec.msgpack.Decoder(list[Entry])


def pack(entries: Sequence[Entry]) -> bytes:
    """The value of a segment's znode, at most `SEGMENT_BYTES_MAX`: if need be, errors and reasons are left out."""
    data = _MAGIC + zlib.compress(_packer.encode(entries), _LEVEL)
    if len(data) <= SEGMENT_BYTES_MAX:
        return data
    bare = [msgspec.structs.replace(one, reason="", detail="") for one in entries]
    return _MAGIC + zlib.compress(_packer.encode(bare), _LEVEL)


def unpack(data: bytes) -> list[Entry]:
    """The entries of a segment. Raises CorruptSegment."""
    if not data.startswith(_MAGIC):
        raise CorruptSegment("it does not begin as a segment does")
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(data[len(_MAGIC) :], RAW_BYTES_MAX)
        return _unpacker.decode(raw)
    except (zlib.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptSegment(str(error)) from error


# --- what is written down -------------------------------------------------------------------------------------------


class StepLog(deque[SeenStep]):
    """The latest steps in memory; those that were seen and not made wait in `unsaved` to be written down."""

    def __init__(self, maxlen: int) -> None:
        super().__init__(maxlen=maxlen)
        self.unsaved: deque[Entry] = deque(maxlen=maxlen)

    def append(self, step: SeenStep) -> None:
        """Add a step; one of ours is written down by the multi that takes it."""
        super().append(step)
        if step.cause is None:
            self.unsaved.append(entry_of(step))

    def append_apart(self, step: SeenStep) -> None:
        """Add a step of ours whose multi did not write it down."""
        super().append(step)
        self.unsaved.append(entry_of(step))

    def take_unsaved(self, most: int = ENTRIES_MAX) -> list[Entry]:
        """The oldest entries that are not written down yet, `most` at most."""
        return [self.unsaved.popleft() for _ in range(min(most, len(self.unsaved)))]

    def put_back(self, entries: Sequence[Entry]) -> None:
        """What was taken has not been written after all."""
        self.unsaved.extendleft(reversed(entries))


def step_of(
    replica: Replica, record: TransitionRecord, actor: Actor, cause: Cause | None, now_ms: int, *, deleted: bool = False
) -> SeenStep:
    """The step from the replica's known transition to `record`, or to none if `deleted`."""
    former = replica.transition
    closing = record.state in (RegionState.CLOSING, RegionState.CLOSED)
    server = record.source if closing else record.destination
    return SeenStep(
        now_ms,
        replica.key,
        actor,
        None if former is None else former.state,
        None if deleted else record.state,
        cause,
        "" if server is None else server.uuid,
        record.epoch,
        record.plan_id,
        record.attempt,
        record.last_error,
        record.reason,
    )


def entry_of(step: SeenStep) -> Entry:
    """A step in the form in which it is kept."""
    before, after = _word(step.before), _word(step.after)
    cause = step.cause.value if step.cause is not None else cause_of(step.actor, before, after)
    reason = step.reason[:DETAIL_MAX] if step.after is RegionState.CLOSING else ""
    return Entry(
        step.at_ms,
        step.key,
        step.actor.value,
        before,
        after,
        cause,
        step.server,
        step.epoch,
        step.attempt,
        step.plan_id,
        reason,
        step.error[:DETAIL_MAX],
    )


def entry_of_write(write: WriteOffline | DeleteTransition, replica: Replica, epoch: int, now_ms: int) -> Entry | None:
    """The step that a master's write will be, once it has committed; None if there is nothing to delete."""
    if isinstance(write, WriteOffline):
        return entry_of(step_of(replica, write.record, Actor.MASTER, write.cause, now_ms))
    if replica.transition is None:
        return None
    gone = msgspec.structs.replace(replica.transition, epoch=epoch)
    return entry_of(step_of(replica, gone, Actor.MASTER, write.cause, now_ms, deleted=True))


def entry_found(record: TransitionRecord, epoch: int, now_ms: int, cause: str = FOUND) -> Entry:
    """A transition as a new master of `epoch` found it; with STARTUP_WIPE as cause, as it deleted it."""
    closing = record.state in (RegionState.CLOSING, RegionState.CLOSED)
    server = record.source if closing else record.destination
    state = record.state.value
    found = cause == FOUND
    return Entry(
        now_ms,
        record.key,
        Actor.MASTER.value,
        state,
        state if found else NONE,
        cause,
        "" if server is None else server.uuid,
        epoch,
        record.attempt,
        record.plan_id,
        record.reason,
        record.last_error[:DETAIL_MAX],
    )


@functools.cache  # of actors and states: a few dozen answers
def cause_of(actor: Actor, before: str, after: str) -> str:
    """The cause of a step of which only the states are known; "" when the table leaves it open."""
    causes = {s.cause for s in STEPS if s.actor is actor and _word(s.after) == after and _word(s.before) == before}
    if not causes:  # steps between were not seen: what leads there from anywhere
        causes = {s.cause for s in STEPS if s.actor is actor and _word(s.after) == after and s.before != s.after}
    return causes.pop().value if len(causes) == 1 else ""


def _word(state: RegionState | None) -> str:
    return NONE if state is None else state.value


# --- what is kept ---------------------------------------------------------------------------------------------------


def surplus(segments: Sequence[Segment]) -> list[Segment]:
    """The oldest segments that must go for the rest to keep the bounds. `segments` in order."""
    steps, size, count = sum(one.entries for one in segments), sum(one.bytes for one in segments), len(segments)
    found: list[Segment] = []
    for one in segments:
        if steps <= STEPS_MAX and size <= BYTES_MAX and count <= SEGMENTS_MAX:
            break
        found.append(one)
        steps, size, count = steps - one.entries, size - one.bytes, count - 1
    return found


def mergeable(segments: Sequence[Segment]) -> list[Segment]:
    """The first run of at least `MERGE_AT` small neighbours, as far as one merged segment takes them."""
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


#: States in which the server that is named is the one that takes the next step.
_AT_WORK: Final = frozenset(state.value for state in (RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSING))
_STEPS: Final = frozenset((_word(one.before), _word(one.after)) for one in STEPS)

# --- what is told ---------------------------------------------------------------------------------------------------


def filled(entries: Iterable[Entry]) -> list[Entry]:
    """The entries in order, with the steps between two of one replica that nobody saw but only one legal way has.

    What a new master found just as it was before is left out: it adds nothing but the epoch.
    """
    state: dict[str, str] = {}
    server: dict[str, str] = {}
    told: list[Entry] = []
    for one in entries:
        if not one.key:
            told.append(one)
            continue
        known = state.get(one.key)
        if known is not None and known != one.before:
            at_work = server.get(one.key, "") if known in _AT_WORK else ""
            told.extend(_between(known, one.before, msgspec.structs.replace(one, server=at_work or one.server)))
        if one.cause != FOUND and (one.before, one.after) not in _STEPS:
            way = only_way(one.before, one.after)
            if len(way) > 1:  # its writer saw only what it led to
                told.extend(_between(one.before, way[-2], one))
                told.append(msgspec.structs.replace(one, before=way[-2]))
                state[one.key], server[one.key] = one.after, one.server
                continue
        if one.cause != FOUND or known is None:
            told.append(one)
        state[one.key], server[one.key] = one.after, one.server
    return told


def _between(start: str, end: str, later: Entry) -> list[Entry]:
    """The unseen steps from `start` to `end`, told of with what `later` says of server, epoch and attempt."""
    way = only_way(start, end)
    found: list[Entry] = []
    for before, after in itertools.pairwise(way):
        actor = actor_of(before, after)
        cause = "" if actor is None else cause_of(actor, before, after)
        found.append(
            msgspec.structs.replace(
                later,
                actor="" if actor is None else actor.value,
                before=before,
                after=after,
                cause=cause,
                reason="",
                detail="",
                inferred=True,
            )
        )
    return found


def concerns(entry: Entry, *, region_id: str = "", table_id: str = "", server: str = "") -> bool:
    """Whether an entry is about that region, table (by the ids of its regions) or server (uuid); "" asks for all."""
    if region_id and entry.region_id != region_id:
        return False
    if table_id and entry.region_id.rpartition(".")[0] != table_id:
        return False
    return not server or entry.server == server
