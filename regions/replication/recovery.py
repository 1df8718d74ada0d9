"""The next step of the transition of a tablet's member, given the live servers. Pure.

A shared region's transition is looked up in `regions/transitions/next_action.py`, where the death of a server moves a
region elsewhere. Here **nothing is ever moved**: a member belongs to one server, and its number is in the configuration
of the other members. While the server is away its transition waits; when the server has started again, OFFLINE names
the new start, and the order to open follows. No row chooses a destination, and no row depends on whether the cluster
has just started.

The goal of a member decides which of five tables applies:

    OPEN   the table is enabled
    JOIN   the same, and the member is new: its leader has it copied, so no order to open is sent
    REST   the table is disabled, or an operator has unassigned the region
    GONE   the table is removed
    LEFT   the configuration does not have the number any more, or the newcomer is given up

A first replica that no server has begun to make keeps its transition while the table is disabled: CREATING without a
transition means that the member has been made.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from regions.cluster.state import ClusterState
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.replication.tablet import MemberWork, Tablet
from regions.transitions.next_action import Action, NextStep, is_cluster_startup
from regions.transitions.states import Cause
from regions.transitions.steps import server_of


class ServerFate(enum.IntEnum):
    """The state of a member's server."""

    AWAY = 0  #: no start of it is alive
    RESTARTED = 1  #: another start of it is alive than the transition names
    ALIVE = 2  #: the start that the transition names is alive


class Goal(enum.Enum):
    """The goal for a member."""

    OPEN = "open"
    JOIN = "join"
    REST = "rest"
    GONE = "gone"
    LEFT = "left"


_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING
_OPENED: Final = RegionState.OPENED
_CLOSING: Final = RegionState.CLOSING
_CLOSED: Final = RegionState.CLOSED
_AWAY: Final = (ServerFate.AWAY,)
_AGAIN: Final = (ServerFate.RESTARTED,)
_ALIVE: Final = (ServerFate.ALIVE,)
_HERE: Final = (ServerFate.RESTARTED, ServerFate.ALIVE)
_DEAD: Final = (ServerFate.AWAY, ServerFate.RESTARTED)
_ANY: Final = tuple(ServerFate)


class RecoveryRow(NamedTuple):
    """One row: the next step in a state, for some fates of the server."""

    state: RegionState
    fates: tuple[ServerFate, ...]
    step: NextStep


def _wait(cause: Cause, rows: str) -> NextStep:
    return NextStep(Action.WAIT, cause, rows)


_AT_WORK: Final = _wait(Cause.PROGRESS, "the server is at work")
_COPIED: Final = _wait(Cause.PROGRESS, "its leader has it copied")
_CLOSES: Final = _wait(Cause.CLOSE_DONE, "the server is at work")
_COMES_BACK: Final = _wait(Cause.SERVER_DEATH, "its server may come back; nothing moves")
_SAME_SERVER: Final = NextStep(Action.KEEP_PLAN, Cause.SERVER_DEATH, "its server has started again")
_IS_MADE: Final = NextStep(Action.ACKNOWLEDGE, Cause.DONE, "it is made, whoever has died since")
_DOWN: Final = NextStep(Action.PUT_DOWN, Cause.SERVER_DEATH, "its server is dead")

# Every state and fate is covered exactly once (a test counts them).
# fmt: off
TABLES: Final[dict[Goal, tuple[RecoveryRow, ...]]] = {
    Goal.OPEN: (
        RecoveryRow(_OFFLINE, _ALIVE, NextStep(Action.ORDER_OPEN, Cause.OPEN_ORDER,     "its server is there")),
        RecoveryRow(_OFFLINE, _AGAIN, _SAME_SERVER),
        RecoveryRow(_OFFLINE, _AWAY,  _COMES_BACK),
        RecoveryRow(_OPENING, _ALIVE, _AT_WORK),
        RecoveryRow(_OPENING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_OPENING, _AWAY,  _COMES_BACK),
        RecoveryRow(_OPENED,  _ANY,   _IS_MADE),
        RecoveryRow(_CLOSING, _ALIVE, _CLOSES),
        RecoveryRow(_CLOSING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_CLOSING, _AWAY,  _COMES_BACK),
        RecoveryRow(_CLOSED,  _HERE,  NextStep(Action.KEEP_PLAN,  Cause.MOVE_CONTINUES, "enabled meanwhile")),
        RecoveryRow(_CLOSED,  _AWAY,  _COMES_BACK),
    ),
    Goal.JOIN: (
        RecoveryRow(_OFFLINE, _ALIVE, _COPIED),
        RecoveryRow(_OFFLINE, _AGAIN, _SAME_SERVER),
        RecoveryRow(_OFFLINE, _AWAY,  _COMES_BACK),
        RecoveryRow(_OPENING, _ALIVE, _COPIED),
        RecoveryRow(_OPENING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_OPENING, _AWAY,  _COMES_BACK),
        RecoveryRow(_OPENED,  _ANY,   _IS_MADE),
        RecoveryRow(_CLOSING, _ALIVE, _CLOSES),
        RecoveryRow(_CLOSING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_CLOSING, _AWAY,  _COMES_BACK),
        RecoveryRow(_CLOSED,  _HERE,  NextStep(Action.KEEP_PLAN,  Cause.MOVE_CONTINUES, "enabled meanwhile")),
        RecoveryRow(_CLOSED,  _AWAY,  _COMES_BACK),
    ),
    Goal.REST: (
        RecoveryRow(_OFFLINE, _ANY,   NextStep(Action.DELETE,     Cause.DO_NOT_REOPEN,  "it has its files, and rests")),
        RecoveryRow(_OPENING, _ALIVE, _AT_WORK),
        RecoveryRow(_OPENING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_OPENING, _AWAY,  _COMES_BACK),
        RecoveryRow(_OPENED,  _ANY,   _IS_MADE),
        RecoveryRow(_CLOSING, _ALIVE, _CLOSES),
        RecoveryRow(_CLOSING, _AGAIN, _SAME_SERVER),
        RecoveryRow(_CLOSING, _AWAY,  _COMES_BACK),
        RecoveryRow(_CLOSED,  _ANY,   NextStep(Action.DELETE,     Cause.DO_NOT_REOPEN,  "it rests")),
    ),
    Goal.GONE: (
        RecoveryRow(_OFFLINE, _ANY,   NextStep(Action.DELETE,     Cause.DO_NOT_REOPEN,  "nobody works on it")),
        RecoveryRow(_OPENING, _ALIVE, _AT_WORK),
        RecoveryRow(_OPENING, _DEAD,  _DOWN),
        RecoveryRow(_OPENED,  _ANY,   _IS_MADE),
        RecoveryRow(_CLOSING, _ALIVE, _CLOSES),
        RecoveryRow(_CLOSING, _DEAD,  _DOWN),
        RecoveryRow(_CLOSED,  _ANY,   NextStep(Action.DELETE,     Cause.DO_NOT_REOPEN,  "closed")),
    ),
    Goal.LEFT: (
        RecoveryRow(_OFFLINE, _ANY,   NextStep(Action.DELETE,     Cause.ABANDONED,      "nobody works on it")),
        RecoveryRow(_OPENING, _ANY,   NextStep(Action.PUT_DOWN,   Cause.ABANDONED,      "the newcomer is removed")),
        RecoveryRow(_OPENED,  _ANY,   _IS_MADE),
        RecoveryRow(_CLOSING, _ALIVE, _CLOSES),
        RecoveryRow(_CLOSING, _DEAD,  _DOWN),
        RecoveryRow(_CLOSED,  _ANY,   NextStep(Action.DELETE,     Cause.NOT_A_MEMBER,   "a removed replica is closed")),
    ),
}
# fmt: on

#: A first replica that no server has begun to make waits until its table is enabled.
_NOT_BEGUN: Final = _wait(Cause.ASSIGN, "made when the table is enabled")


def _expand(rows: tuple[RecoveryRow, ...]) -> dict[tuple[RegionState, ServerFate], NextStep]:
    table: dict[tuple[RegionState, ServerFate], NextStep] = {}
    for row in rows:
        for fate in row.fates:
            assert (row.state, fate) not in table, f"two rows decide {row.state} with a server {fate.name}"
            table[row.state, fate] = row.step
    return table


_INDEX: Final = {goal: _expand(rows) for goal, rows in TABLES.items()}


def next_step(state: RegionState, fate: ServerFate, goal: Goal, *, has_begun: bool) -> NextStep:
    """Return the transition's next step. `has_begun`: a server has begun to make the replica, or has made it."""
    if goal is Goal.REST and state is _OFFLINE and not has_begun:
        return _NOT_BEGUN
    return _INDEX[goal][state, fate]


def goal_of(
    region: RegionRecord, table: TableRecord, number: int, *, is_joining: bool = False, is_new: bool = False
) -> Goal:
    """Return the goal for a member.

    `is_joining`: it is to be added and is in no configuration yet. `is_new`: its replica is copied from others.
    """
    if table.state is TableState.REMOVED:
        return Goal.GONE
    if region.member(number) is None and not is_joining:
        return Goal.LEFT
    if table.intent is not TableIntent.ENABLED or region.unassigned:
        return Goal.REST
    return Goal.JOIN if is_new else Goal.OPEN


def fate_of(transition: TransitionRecord, uuid: str, alive: Iterable[Incarnation]) -> ServerFate:
    """Return how the server of a member fares; `uuid` is the member's, `alive` are the starts that live."""
    start = next((one for one in alive if one.uuid == uuid), None)
    if start is None:
        return ServerFate.AWAY
    return ServerFate.ALIVE if server_of(transition) == start else ServerFate.RESTARTED


def work_fate(tablet: Tablet, work: MemberWork, servers: Mapping[str, ServerRecord]) -> ServerFate:
    """Return how the server of a member in transition fares; `servers` are the registered ones."""
    assert work.transition is not None, work.key
    uuid = tablet.home_of(work)
    server = servers.get(uuid)
    return fate_of(work.transition, uuid, [] if server is None else [server.incarnation])


def work_goal(tablet: Tablet, work: MemberWork, fate: ServerFate, *, is_joining: bool, is_new: bool) -> Goal:
    """Return the goal for a member in transition; `fate` is the fate of its server.

    A server makes the members of daughters from its replica of the split tablet, which is then deleted. So the
    daughters' members are made even while the table is disabled. They are made for a removed table, too, if the server
    is live, because the table can be restored until its purge begins.
    """
    table = tablet.table.record
    if table.state is TableState.REMOVED and table.purging_ms:
        return Goal.GONE
    if _is_unmade_heir(tablet.record, work) and (fate is not ServerFate.AWAY or table.state is not TableState.REMOVED):
        return Goal.OPEN
    return goal_of(tablet.record, table, work.number, is_joining=is_joining, is_new=is_new)


def _is_unmade_heir(region: RegionRecord, work: MemberWork) -> bool:
    """Return True for a first member of a split tablet's daughter that may not be made yet, and is not given up."""
    transition = work.transition
    if transition is None or not region.parents or region.member(work.number) is None:
        return False
    return transition.state in (_OFFLINE, _OPENING) and transition.joins is None and not transition.parked


class NamedStarts:
    """The starts of servers that shared regions name.

    The regions are added one by one, in several turns if many, or all together from a standby's mirror.
    """

    def __init__(self, transitions: Iterable[TransitionRecord]) -> None:
        """`transitions` are all transitions, those of tablets' members too."""
        self._transitions = list(transitions)
        self._moving = {one.region_id for one in self._transitions}
        #: Uuids and start codes that have been added, without an object for each location.
        self._added: set[tuple[str | None, int | None]] = set()
        #: Starts that a shared region names as holders.
        self.holders: set[Incarnation] = set()
        #: Ids of the tablets whose members have transitions.
        self.tablets: set[str] = set()
        self.has_tablets = False
        self.has_shared = False

    def add(self, region: RegionRecord) -> None:
        """Add a region."""
        if region.is_tablet:
            self.has_tablets = True
            if region.region_id in self._moving:
                self.tablets.add(region.region_id)
            return
        self.has_shared = True
        for location in region.replicas:
            added = location.uuid, location.start_code
            if added not in self._added:
                self._added.add(added)
                start = location.incarnation
                if start is not None:
                    self.holders.add(start)

    def add_all_of(self, world: ClusterState) -> None:
        """Add all regions of a standby's mirror from its indexes, without a visit to each.

        Then `holders` lacks the starts that are dead in the mirror. Only live starts matter.
        """
        self.has_tablets = any(table.record.is_tablet and table.regions for table in world.tables.values())
        self.has_shared = bool(world.replicas)
        self.tablets = {one for one in self._moving if one in world.regions and world.regions[one].record.is_tablet}
        self.holders = {server.incarnation for server in world.servers.values() if server.open}
        for replica in world.active.values():  # a transition takes precedence over the region's record
            start = replica.region.record.location(replica.number).incarnation
            if start is not None:
                self.holders.add(start)

    def transitions(self) -> list[TransitionRecord]:
        """Return the transitions of shared regions."""
        return [one for one in self._transitions if one.region_id not in self.tablets]


def is_startup(named: NamedStarts, alive: Iterable[Incarnation]) -> bool:
    """Return True for a cluster startup, False for a failover, from the store alone (X7, RT-02).

    Shared regions decide. A tablet's record names no start of a server, so in a cluster of tablets alone every failover
    of the masters would look like a startup. In such a cluster a startup has nothing to wipe or to plan.
    """
    if named.has_tablets and not named.has_shared:
        return False
    return is_cluster_startup(named.holders, named.transitions(), alive)


def to_wipe(
    named: NamedStarts, transitions: Iterable[tuple[TransitionRecord, int]]
) -> list[tuple[TransitionRecord, int]]:
    """Return the transitions that a cluster startup deletes: those of shared regions.

    A tablet's transition shows whether a replica has been made. Without the transition a voter could be made twice.
    """
    return [one for one in transitions if one[0].region_id not in named.tablets]
