"""The life of a replica on one server: two tables of states. Pure.

`DATA_LIFE` has the states of the files, which the superblock stores (S2, TC-06). `RUN_LIFE` has the states of the
replica in this process, which reports show. Each run state implies a data state (`DATA_OF`), so a move in `RUN_LIFE`
either keeps the data state or is a move in `DATA_LIFE`, which becomes durable before the run state changes.

    (absent) -> READY -> DELETED -> (absent)             created, removed, forgotten with its table
    (absent) or DELETED -> COPYING -> READY              copied from another replica
    COPYING -> DELETED                                   the copy was given up
    (absent), READY, COPYING or DELETED -> DELETED       burned: term and vote cannot be proved any more
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from coord.errors import InvalidTransition


class DataState(enum.StrEnum):
    """State of a replica's files, as stored in its superblock. A tablet without a superblock does not exist here."""

    DELETED = "DELETED"  #: a tombstone: no rows or log, but term, vote and the end of the log are kept
    COPYING = "COPYING"  #: files are being copied from another replica
    READY = "READY"  #: files are complete


class DataEvent(enum.StrEnum):
    """An event that changes the state of the files. Each one replaces the superblock once."""

    CREATE = "create"  #: first replica of a new tablet
    COPY = "copy"  #: begin a copy
    COPIED = "copied"  #: the copy is complete and durable
    GIVE_UP = "give up"  #: the copy failed, or the server stopped during it
    DELETE = "delete"  #: the replica is removed
    BURN = "burn"  #: term and vote of the number are lost
    FORGET = "forget"  #: the store has the whole tablet as DELETED or REPLACED


class DataRow(NamedTuple):
    """One change of the files' state. None as `before` or `after`: the tablet does not exist on this server."""

    before: DataState | None
    event: DataEvent
    after: DataState | None
    when: str


_D: Final = DataState.DELETED
_C: Final = DataState.COPYING
_R: Final = DataState.READY

# fmt: off
DATA_LIFE: Final[tuple[DataRow, ...]] = (
    DataRow(None, DataEvent.CREATE,  _R,   "OPEN with the initial configuration"),
    DataRow(None, DataEvent.COPY,    _C,   "a PRE_VOTER or learner without a former replica here"),
    DataRow(_D,   DataEvent.COPY,    _C,   "a former replica was here; its term and vote are kept until the end"),
    DataRow(_C,   DataEvent.COPIED,  _R,   "rows and log are durable"),
    DataRow(_C,   DataEvent.GIVE_UP, _D,   "back to the tombstone, with the kept memory"),
    DataRow(_R,   DataEvent.DELETE,  _D,   "point of no return of a deletion"),
    DataRow(None, DataEvent.BURN,    _D,   "no superblock, or an unreadable one"),
    DataRow(_R,   DataEvent.BURN,    _D,   "the log or the consensus metadata are damaged or incomplete"),
    DataRow(_C,   DataEvent.BURN,    _D,   "the consensus metadata of the tombstone are lost"),
    DataRow(_D,   DataEvent.BURN,    _D,   "the consensus metadata of the tombstone are lost"),
    DataRow(_D,   DataEvent.FORGET,  None, "no configuration can name the tablet any more"),
)
# fmt: on


class RunState(enum.StrEnum):
    """State of a replica in this process, as reports show it."""

    ASLEEP = "ASLEEP"  #: READY, without a core in memory. The first message or request wakes it.
    RUNNING = "RUNNING"  #: READY; takes part in its group
    STOPPING = "STOPPING"  #: READY. It finishes its work before it rests or is deleted.
    RESTING = "RESTING"  #: READY; its table is disabled
    #: READY. It does not run, but term and vote are intact: it is copied again under the same number.
    FAILED = "FAILED"
    COPYING = "COPYING"
    TOMBSTONE = "TOMBSTONE"  #: DELETED; may vote with the kept term and vote
    LOST = "LOST"  #: DELETED. Term and vote are lost and its number is burned: it never votes.


class RunEvent(enum.StrEnum):
    """An event for a replica in this process. Events with the name of a DataEvent follow that event."""

    CREATE = "create"
    COPY = "copy"
    COPIED = "copied"
    GIVE_UP = "give up"
    DELETE = "delete"
    BURN = "burn"
    FORGET = "forget"
    WAKE = "wake"  #: a message or a request arrived
    SLEEP = "sleep"  #: nothing to do: the core is removed from memory
    FAULT = "fault"  #: an exception inside the group, or damaged rows
    STOP = "stop"  #: an order to rest or to delete
    REST = "rest"  #: the superblock says RESTING
    ENABLE = "enable"  #: the superblock says RUN again


class RunRow(NamedTuple):
    """One change of a replica's run state. None as `before` or `after`: the tablet does not exist on this server."""

    before: RunState | None
    event: RunEvent
    after: RunState | None
    when: str


_S: Final = RunState
_E: Final = RunEvent

# fmt: off
RUN_LIFE: Final[tuple[RunRow, ...]] = (
    RunRow(None,         _E.CREATE,  _S.ASLEEP,    ""),
    RunRow(None,         _E.COPY,    _S.COPYING,   ""),
    RunRow(None,         _E.BURN,    _S.LOST,      "its superblock is missing or unreadable"),
    RunRow(_S.ASLEEP,    _E.WAKE,    _S.RUNNING,   ""),
    RunRow(_S.RUNNING,   _E.SLEEP,   _S.ASLEEP,    ""),
    RunRow(_S.ASLEEP,    _E.FAULT,   _S.FAILED,    "its rows cannot be opened"),
    RunRow(_S.RUNNING,   _E.FAULT,   _S.FAILED,    "one bad tablet ends neither the host nor another tablet"),
    RunRow(_S.STOPPING,  _E.FAULT,   _S.FAILED,    "ordered again, it stops from FAILED"),
    RunRow(_S.ASLEEP,    _E.STOP,    _S.STOPPING,  ""),
    RunRow(_S.RUNNING,   _E.STOP,    _S.STOPPING,  ""),
    RunRow(_S.FAILED,    _E.STOP,    _S.STOPPING,  "nothing runs; what is open is closed"),
    RunRow(_S.RESTING,   _E.STOP,    _S.STOPPING,  "a disabled table is deleted"),
    RunRow(_S.STOPPING,  _E.REST,    _S.RESTING,   ""),
    RunRow(_S.STOPPING,  _E.DELETE,  _S.TOMBSTONE, ""),
    RunRow(_S.RESTING,   _E.ENABLE,  _S.ASLEEP,    ""),
    RunRow(_S.ASLEEP,    _E.BURN,    _S.LOST,      "the log ends in front of what the rows hold"),
    RunRow(_S.RUNNING,   _E.BURN,    _S.LOST,      "the same, found late"),
    RunRow(_S.RESTING,   _E.BURN,    _S.LOST,      "the same, when its table is enabled"),
    RunRow(_S.FAILED,    _E.BURN,    _S.LOST,      "the same, found later"),
    RunRow(_S.TOMBSTONE, _E.BURN,    _S.LOST,      "its consensus metadata are lost"),
    RunRow(_S.COPYING,   _E.BURN,    _S.LOST,      "its consensus metadata are lost"),
    RunRow(_S.TOMBSTONE, _E.COPY,    _S.COPYING,   "under its number or a new one"),
    RunRow(_S.LOST,      _E.COPY,    _S.COPYING,   "under a new number"),
    RunRow(_S.COPYING,   _E.COPIED,  _S.ASLEEP,    ""),
    RunRow(_S.COPYING,   _E.GIVE_UP, _S.TOMBSTONE, ""),
    RunRow(_S.TOMBSTONE, _E.FORGET,  None,         "the whole tablet is gone"),
    RunRow(_S.LOST,      _E.FORGET,  None,         "the whole tablet is gone"),
)
# fmt: on

#: The data state of each run state.
DATA_OF: Final = {
    RunState.ASLEEP: _R,
    RunState.RUNNING: _R,
    RunState.STOPPING: _R,
    RunState.RESTING: _R,
    RunState.FAILED: _R,
    RunState.COPYING: _C,
    RunState.TOMBSTONE: _D,
    RunState.LOST: _D,
}

#: The states in which a replica takes part in its group, or wakes up for a message.
SERVING: Final = (RunState.ASLEEP, RunState.RUNNING)


def _data_index(rows: Iterable[DataRow]) -> dict[tuple[DataState | None, DataEvent], DataRow]:
    found: dict[tuple[DataState | None, DataEvent], DataRow] = {}
    for row in rows:
        assert (row.before, row.event) not in found, f"two rows decide {row.event} in {row.before}"
        found[row.before, row.event] = row
    return found


def _run_index(rows: Iterable[RunRow]) -> dict[tuple[RunState | None, RunEvent], RunRow]:
    found: dict[tuple[RunState | None, RunEvent], RunRow] = {}
    for row in rows:
        assert (row.before, row.event) not in found, f"two rows decide {row.event} in {row.before}"
        found[row.before, row.event] = row
    return found


_DATA_MOVES: Final = _data_index(DATA_LIFE)
_RUN_MOVES: Final = _run_index(RUN_LIFE)


def data_after(tablet: str, before: DataState | None, event: DataEvent) -> DataState | None:
    """Return the data state after `event`, None for absent. Raise InvalidTransition for a move that no row has."""
    row = _DATA_MOVES.get((before, event))
    if row is None:
        raise InvalidTransition(f"files of tablet {tablet}", before or "absent", event)
    return row.after


def run_after(tablet: str, before: RunState | None, event: RunEvent) -> RunState | None:
    """Return the run state after `event`, None for absent. Raise InvalidTransition for a move that no row has."""
    row = _RUN_MOVES.get((before, event))
    if row is None:
        raise InvalidTransition(f"replica of tablet {tablet}", before or "absent", event)
    return row.after
