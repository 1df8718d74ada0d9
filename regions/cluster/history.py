"""Every step of every transition, for `rk history`: what is written down, in which form, and for how long it is kept.

The active master writes steps to the store as *segments*, znodes below `/history`, each the compressed list of some
hundred entries. A step of a master is in the history because the multi that takes the step writes the entry. A step
of a server is kept by the transition's znode (`regions/transitions/trail.py`) until the next step of a master, whose
multi writes
both. So segments and znodes together are the store's own log, step for step, whichever master died and when.

A segment's name says all that its keeping depends on, so nothing has to be read for that:

    0000000007-00000042-400-9120      epoch, number within the epoch, entries, bytes

Segments are never changed. Small neighbours are merged into one, and the oldest are deleted when there are more steps,
bytes or segments than the bounds below allow. All of that is fenced like any other write of a master.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from regions.cluster.effects import DeleteTransition, WriteOffline
from regions.records.model import RegionState, TransitionRecord, WorkOrigin
from regions.records.replica_key import parse_replica_key
from regions.transitions import trail
from regions.transitions.states import Actor, Cause

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
#: Entries that are no steps wait no longer than this for a multi to go with.
FLUSH_MS: Final = 500

_MAGIC: Final = b"RKH1"
_LEVEL: Final = 1

# Causes of entries that are no steps.
EPOCH_BEGINS: Final = "epoch begins"
#: Written by earlier builds only: a new master found the transition so. No step.
FOUND: Final = "found"
#: Only in answers: the steps between `before` and `after` were not written down, or not by this build.
GAP: Final = "gap"
SERVER_UP: Final = "server registered"
SERVER_DOWN: Final = "server gone"
OPERATOR: Final = "operator"


class SeenStep(msgspec.Struct, gc=False):
    """A step as one master saw or made it; `cause` None: of another master, which is not known here."""

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
    cause_id: str = ""
    origin: str = ""


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """One line of the history as it is stored: a step, or (`key` "") something about a master or server.

    `before` and `after` are states, "" for no znode. `cause` is a `states.Cause`, or one of the words above. `server`
    is a uuid: the server concerned, of EPOCH_BEGINS the master's own.
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
    #: Of no meaning since steps are not guessed any more; its place in a stored entry is kept.
    inferred: bool = False
    #: So many steps of the server before this one are counted, and their times are not known
    #: (`regions/transitions/trail.py`).
    missed: int = 0
    #: Id of the request, znode event, timer ... that began the work which the step is part of
    #: (`regions/cluster/causes.py`); "": written by a build that knew none.
    cause_id: str = ""
    #: What that was, in words: with the first step of each replica that is part of the work.
    origin: str = ""

    @property
    def region_id(self) -> str:
        """The region's id; "" if the entry is about something else."""
        return parse_replica_key(self.key)[0] if self.key else ""


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
_unpacker = msgspec.msgpack.Decoder(list[HistoryEntry])


def pack(entries: Sequence[HistoryEntry]) -> bytes:
    """The value of a segment's znode, at most `SEGMENT_BYTES_MAX`: if need be, errors and reasons are left out."""
    data = _MAGIC + zlib.compress(_packer.encode(entries), _LEVEL)
    if len(data) <= SEGMENT_BYTES_MAX:
        return data
    bare = [msgspec.structs.replace(one, reason="", detail="", origin="") for one in entries]
    return _MAGIC + zlib.compress(_packer.encode(bare), _LEVEL)


def unpack(data: bytes) -> list[HistoryEntry]:
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


_CAUSES: Final[dict[str, Cause]] = {one.value: one for one in Cause}
#: Looked up instead of asked: the value of an enumeration's member costs a call.
_WORDS: Final[dict[object, str]] = {
    None: "",
    **{one: one.value for kind in (RegionState, Cause, Actor) for one in kind},
}
_SERVER: Final = Actor.SERVER.value


class StepLog(deque[SeenStep]):
    """The latest steps in memory, and the entries that are no steps and wait in `unsaved` to be written down."""

    def __init__(self, maxlen: int) -> None:
        super().__init__(maxlen=maxlen)
        self.unsaved: deque[HistoryEntry] = deque(maxlen=maxlen)

    def take_unsaved(self, most: int = ENTRIES_MAX) -> list[HistoryEntry]:
        """Return the oldest entries that are not written down yet, at most `most`, and remove them."""
        return [self.unsaved.popleft() for _ in range(min(most, len(self.unsaved)))]

    def put_back(self, entries: Sequence[HistoryEntry]) -> None:
        """Put entries back whose write was refused."""
        self.unsaved.extendleft(reversed(entries))


def master_step(
    former: TransitionRecord | None,
    record: TransitionRecord | None,
    cause: Cause | None,
    epoch: int,
    now_ms: int,
    origin: WorkOrigin | None = None,
) -> SeenStep:
    """Return a master's step from `former` to `record`; None of the two: no znode. `origin` None: the record's."""
    about = record if record is not None else former
    assert about is not None, "a step that begins and ends without a znode"
    server = trail.server_of(about)
    known = None if former is None else former.origin
    origin = origin or about.origin
    cause_id = "" if origin is None else origin.cause_id
    is_new = origin is not None and (known is None or known.cause_id != cause_id)
    return SeenStep(
        now_ms,
        about.key,
        Actor.MASTER,
        None if former is None else former.state,
        None if record is None else record.state,
        cause,
        "" if server is None else server.uuid,
        epoch,
        about.plan_id,
        about.attempt,
        about.last_error,
        cause_id=cause_id,
        origin=origin.text if origin is not None and is_new else "",
    )


def server_steps(record: TransitionRecord, version: int) -> list[SeenStep]:
    """Return the server's steps that a znode keeps at `version`, oldest first."""
    server = trail.server_of(record)
    uuid = "" if server is None else server.uuid
    return [
        SeenStep(
            one.at_ms,
            record.key,
            Actor.SERVER,
            one.before,
            one.after,
            one.cause,
            uuid,
            record.epoch,
            record.plan_id,
            record.attempt,
            "",
            cause_id="" if record.origin is None else record.origin.cause_id,
            origin=record.origin.text if record.origin is not None and one.before is None else "",
        )
        for one in trail.untold(record, version)
    ]


def steps_since(
    known: TransitionRecord | None, known_version: int, record: TransitionRecord, version: int, now_ms: int
) -> list[SeenStep]:
    """Return the steps that lead from what this master knew to what it reads now, as far as the znode tells them."""
    found = server_steps(record, version)
    if known is not None and record.base <= known_version < version:
        return found[-(version - known_version) :]
    if record.state in (RegionState.CLOSING, RegionState.CLOSED):
        return found
    # A step of this master, whose answer was lost: its cause is the record's reason.
    cause = _CAUSES.get(record.reason)
    before = None if record.base == 0 else known
    offline = msgspec.structs.replace(record, state=RegionState.OFFLINE)
    return [master_step(before, offline, cause, record.epoch, now_ms), *found]


def entry_of(step: SeenStep) -> HistoryEntry:
    """Return a step in the form in which it is kept."""
    return HistoryEntry(
        step.at_ms,
        step.key,
        _WORDS[step.actor],
        _WORDS[step.before],
        _WORDS[step.after],
        _WORDS[step.cause],
        step.server,
        step.epoch,
        step.attempt,
        step.plan_id,
        step.reason[:DETAIL_MAX],
        step.error[:DETAIL_MAX],
        False,
        0,
        step.cause_id,
        step.origin[:DETAIL_MAX],
    )


def entries_kept(record: TransitionRecord, version: int) -> list[HistoryEntry]:
    """Return the entries for the server's steps that a znode keeps at `version`, oldest first.

    A start of a hundred thousand regions makes twice as many of them: built directly, without steps in between.
    """
    server = trail.server_of(record)
    uuid = "" if server is None else server.uuid
    key, epoch, attempt, plan_id = record.key, record.epoch, record.attempt, record.plan_id
    cause_id, origin = ("", "") if record.origin is None else (record.origin.cause_id, record.origin.text[:DETAIL_MAX])
    return [
        HistoryEntry(
            at_ms,
            key,
            _SERVER,
            _WORDS[before],
            _WORDS[after],
            _WORDS[cause],
            uuid,
            epoch,
            attempt,
            plan_id,
            record.reason[:DETAIL_MAX] if after is RegionState.CLOSING else "",
            "",
            False,
            missed,
            cause_id,
            origin if before is None else "",
        )
        for before, after, cause, at_ms, missed in trail.untold(record, version)
    ]


def entries_of_write(write: WriteOffline | DeleteTransition, epoch: int, now_ms: int) -> list[HistoryEntry]:
    """Return what a master's write makes true once it has committed: the server's steps before it, and its own."""
    former = write.former
    entries = [] if former is None else entries_kept(former, write.version)
    if isinstance(write, WriteOffline):
        step = master_step(former, write.record, write.cause, epoch, now_ms, write.origin)
    elif former is not None:
        step = master_step(former, None, write.cause, epoch, now_ms, write.origin)
    else:
        return entries
    return [*entries, entry_of(step)]


def entries_of_end(
    record: TransitionRecord, version: int, cause: Cause, epoch: int, now_ms: int, origin: WorkOrigin | None = None
) -> list[HistoryEntry]:
    """Return the entries for a transition that a master of `epoch` deletes as it was read at `version`.

    `origin` None: the deletion is part of the work that began the transition.
    """
    return [*entries_kept(record, version), entry_of(master_step(record, None, cause, epoch, now_ms, origin))]


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


# --- what is told ---------------------------------------------------------------------------------------------------


def complete_history(segments: Iterable[HistoryEntry], kept: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Return the whole history: the entries of the segments in order, and the steps that znodes keep.

    The znodes must have been read before the segments: steps that a master has written down meanwhile are told once.
    Entries are sorted by time, the steps of one replica always in their order, whatever clocks they have. Where two
    steps of a replica do not join, a `GAP` says so; nothing is made up.
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


def concerns(
    entry: HistoryEntry, *, region_id: str = "", table_id: str = "", server: str = "", cause_id: str = ""
) -> bool:
    """Return whether an entry is about that region, table (by the ids of its regions), server (uuid) and cause.

    "" asks for all.
    """
    if cause_id and entry.cause_id != cause_id:
        return False
    if region_id and entry.region_id != region_id:
        return False
    if table_id and entry.region_id.rpartition(".")[0] != table_id:
        return False
    return not server or entry.server == server
