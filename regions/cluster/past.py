"""The cluster at an earlier point, and the servers that have held a region: folds over the history. Pure.

`picture_at` folds the entries up to a point into a `Picture`: where each replica was open, what was in transition,
which servers were registered, and which master was active. `owners_of` folds the steps of one region into intervals.

The history keeps the latest steps only. For a replica whose first kept step comes after the point, this step shows
where the replica was before. A replica without any step in the history has been at rest all the time, on the server
that the store has now. Otherwise the replica is unknown at the point, and so is everything before the first entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from regions.cluster.history import (
    DRAIN_BEGINS,
    DRAIN_ENDS,
    EPOCH_BEGINS,
    GAP,
    SERVER_DOWN,
    SERVER_FENCED,
    SERVER_UP,
    SERVERS,
    servers_found,
)
from regions.records.model import RegionState
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor, Cause

_SERVER: Final = Actor.SERVER.value
_OFFLINE: Final = RegionState.OFFLINE.value
_OPENED: Final = RegionState.OPENED.value
_CLOSING: Final = RegionState.CLOSING.value
_CLOSED: Final = RegionState.CLOSED.value
#: Causes of a replica's last step, after which its number or its region does not exist any more.
_REMOVED: Final = frozenset({Cause.NOT_A_MEMBER.value, Cause.ABANDONED.value, Cause.REPLACED.value})


class Point(msgspec.Struct, frozen=True):
    """A point of the history: a time in milliseconds since 1970, or a zxid. The other field is -1."""

    at_ms: int = -1
    zxid: int = -1


class ReplicaThen(msgspec.Struct):
    """One replica at a point."""

    key: str
    #: State of the transition, "" at rest.
    state: str = ""
    #: Server (uuid) on which the replica was open, "" if it was open nowhere.
    open_on: str = ""
    #: Server that the transition named.
    server: str = ""
    #: Time at which the state began; 0: before the history begins.
    since_ms: int = 0
    cause: str = ""
    cause_id: str = ""
    #: False if the history does not say where the replica was.
    is_known: bool = True


class Picture(msgspec.Struct):
    """The cluster at a point, as far as the history covers it."""

    #: Time and zxid of the latest entry up to the point; 0 if there is none, or if the zxid is unknown.
    at_ms: int = 0
    zxid: int = 0
    #: False if the point is before the first entry of the history.
    is_covered: bool = False
    #: When the history begins.
    begins_ms: int = 0
    epoch: int = 0
    #: uuid of the active master.
    master: str = ""
    #: Registered servers: uuid -> time of registration; 0: before the master took over, or before the history begins.
    servers: dict[str, int] = {}
    #: Servers that are known and were not registered: uuid -> since when.
    gone: dict[str, int] = {}
    draining: set[str] = set()
    replicas: dict[str, ReplicaThen] = {}
    #: Keys of replicas that had been given up.
    removed: set[str] = set()


def upto(entries: Sequence[HistoryEntry], point: Point) -> int | list[bool]:
    """Return the entries up to `point`: their number, or for a zxid one flag per entry.

    The zxids of most steps of servers are unknown. Such a step lies between the master's steps on the same replica; if
    these do not decide, its time does.
    """
    if point.zxid < 0:
        return next((at for at, one in enumerate(entries) if one.at_ms > point.at_ms), len(entries))
    known = [one for one in entries if one.zxid]
    time_ms = max((one.at_ms for one in known if one.zxid <= point.zxid), default=-1)
    flags = [False] * len(entries)
    precedes: set[str] = set()  # replicas with a later entry up to the point
    for at in range(len(entries) - 1, -1, -1):
        one = entries[at]
        flags[at] = one.zxid <= point.zxid if one.zxid else one.key in precedes or one.at_ms <= time_ms
        if one.zxid and one.key and flags[at]:
            precedes.add(one.key)
    after: set[str] = set()  # replicas with an earlier entry after the point
    for at, one in enumerate(entries):
        if one.key in after:
            flags[at] = False
        elif one.zxid > point.zxid and one.key:
            after.add(one.key)
    return flags


def split(entries: Sequence[HistoryEntry], point: Point) -> tuple[list[HistoryEntry], list[HistoryEntry]]:
    """Return the entries up to `point`, and those after it."""
    found = upto(entries, point)
    if isinstance(found, int):
        return list(entries[:found]), list(entries[found:])
    marked = list(zip(entries, found, strict=True))
    return [one for one, is_before in marked if is_before], [one for one, is_before in marked if not is_before]


def picture_at(
    entries: Sequence[HistoryEntry], point: Point, present: Mapping[str, tuple[str, int]] | None = None
) -> Picture:
    """Return the cluster at `point`. `entries` is the complete history, oldest first.

    `present`: for each replica of the store, the server on which it is open now ("" for none) and since when; used for
    replicas without an entry. None: the history alone.
    """
    before, later = split(entries, point)
    found = Picture(begins_ms=entries[0].at_ms if entries else 0, is_covered=bool(before))
    for one in before:
        take(found, one)
    _infer(found, later, present or {}, point.at_ms if point.zxid < 0 else found.at_ms)
    return found


# --- one entry --------------------------------------------------------------------------------------------------------


def take(picture: Picture, entry: HistoryEntry) -> None:
    """Apply one more entry to a picture."""
    picture.at_ms, picture.zxid = max(picture.at_ms, entry.at_ms), max(picture.zxid, entry.zxid)
    if entry.key and not entry.after and entry.cause in _REMOVED:
        picture.replicas.pop(entry.key, None)
        picture.removed.add(entry.key)
        return
    if entry.key:
        picture.removed.discard(entry.key)
        _take_step(picture.replicas.setdefault(entry.key, ReplicaThen(entry.key)), entry)
        return
    match entry.cause:
        case _ if entry.cause == EPOCH_BEGINS:
            picture.epoch, picture.master = entry.epoch, entry.server
        case _ if entry.cause == SERVERS:
            here = servers_found(entry)
            for uuid in [one for one in picture.servers if one not in here]:
                del picture.servers[uuid]
                picture.gone[uuid] = entry.at_ms
            for uuid in here:
                picture.servers.setdefault(uuid, 0)
                picture.gone.pop(uuid, None)
        case _ if entry.cause == SERVER_UP:
            picture.servers[entry.server] = entry.at_ms
            picture.gone.pop(entry.server, None)
        case _ if entry.cause in (SERVER_DOWN, SERVER_FENCED):
            picture.servers.pop(entry.server, None)
            picture.gone[entry.server] = entry.at_ms
        case _ if entry.cause == DRAIN_BEGINS:
            picture.draining.add(entry.server)
        case _ if entry.cause == DRAIN_ENDS:
            picture.draining.discard(entry.server)


def _take_step(then: ReplicaThen, entry: HistoryEntry) -> None:
    then.is_known = entry.cause != GAP
    then.state = entry.after
    then.server = entry.server
    then.since_ms, then.cause, then.cause_id = entry.at_ms, entry.cause, entry.cause_id
    then.open_on = _open_after(then.open_on, entry)


def _open_after(open_on: str, entry: HistoryEntry) -> str:
    """Return where a replica is open after a step. A closing replica is open until it is closed."""
    if entry.after in (_OPENED, _CLOSING):
        return entry.server
    if not entry.after and entry.cause == Cause.DONE.value:
        return open_on or entry.server
    return ""


def _infer(picture: Picture, later: Iterable[HistoryEntry], present: Mapping[str, tuple[str, int]], at_ms: int) -> None:
    """Add the replicas without a step up to the point, if their first later step shows where they were."""
    first: dict[str, HistoryEntry] = {}
    for one in later:
        if one.key and one.cause != GAP and one.key not in picture.replicas and one.key not in picture.removed:
            first.setdefault(one.key, one)
        elif one.cause in (SERVER_DOWN, SERVER_FENCED) and not picture.epoch:
            picture.servers.setdefault(one.server, 0)
    for key, one in first.items():
        picture.replicas[key] = _before(one, is_covered=picture.is_covered)
    for key, (uuid, since_ms) in present.items():
        if key not in picture.replicas and key not in picture.removed:
            is_known = picture.is_covered and since_ms <= at_ms
            picture.replicas[key] = ReplicaThen(key, open_on=uuid if is_known else "", is_known=is_known)


def _before(step: HistoryEntry, *, is_covered: bool) -> ReplicaThen:
    """Return a replica as it was before its first step in the history."""
    then = ReplicaThen(step.key, step.before, is_known=is_covered)
    if step.actor != _SERVER and step.after == _OFFLINE:
        # The step names the next destination, not the server that had the replica before.
        then.is_known = is_covered and step.cause != Cause.SERVER_DEATH.value and step.before not in (_OPENED, _CLOSING)
        return then
    then.server = step.server if step.before else ""
    if step.before in (_OPENED, _CLOSING) or (not step.before and step.after == _CLOSING):
        then.open_on = step.server
    return then


# --- owners -----------------------------------------------------------------------------------------------------------


class Interval(msgspec.Struct):
    """A time during which one server held a replica, or a time that the history does not cover (`server` "")."""

    key: str
    server: str
    #: 0: before the history begins.
    from_ms: int
    #: 0: it holds the replica still.
    to_ms: int = 0
    #: Cause of the last step.
    ended: str = ""
    is_gap: bool = False


def owners_of(entries: Iterable[HistoryEntry], region_id: str) -> list[Interval]:
    """Return who has held the replicas of a region, oldest first; times that the history does not cover are gaps."""
    found: list[Interval] = []
    held: dict[str, Interval] = {}
    seen: set[str] = set()
    down_ms: dict[str, int] = {}
    for one in entries:
        if one.cause in (SERVER_DOWN, SERVER_FENCED):
            down_ms[one.server] = one.at_ms
        if not one.key or one.region_id != region_id:
            continue
        if one.cause == GAP:
            _end(held.pop(one.key, None), one.at_ms, GAP)
            found.append(Interval(one.key, "", one.at_ms, one.at_ms, GAP, is_gap=True))
        elif one.key not in seen and one.after == _CLOSING:
            held[one.key] = Interval(one.key, one.server, 0)
            found.append(held[one.key])
        elif one.after == _OPENED:
            held[one.key] = Interval(one.key, one.server, one.at_ms)
            found.append(held[one.key])
        elif one.after in (_CLOSED, _OFFLINE) or (not one.after and one.cause != Cause.DONE.value):
            last = held.pop(one.key, None)
            died_ms = 0 if last is None else down_ms.get(last.server, 0)
            is_dead = one.cause == Cause.SERVER_DEATH.value and last is not None and died_ms >= last.from_ms
            _end(last, died_ms if is_dead else one.at_ms, one.cause)
        seen.add(one.key)
    return found


def _end(interval: Interval | None, at_ms: int, cause: str) -> None:
    if interval is not None:
        interval.to_ms, interval.ended = at_ms, cause
