"""The entities of the keeper: tablets, and the work on each of their members.

They hold data and derive facts from it. Only `regions/replication/keeper.py` changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from regions.messages.heartbeat import Measure
from regions.messages.server import TabletClosing
from regions.records.members import Member
from regions.records.model import (
    Incarnation,
    RegionRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import parse_replica_key, replica_key
from regions.replication.heartbeat_steps import Judged
from regions.replication.reports import TabletView
from regions.transitions.states import Cause

#: Tablets that are given up and replaced at the same time. On a machine that is too slow for a large table, the other
#: tablets get their leaders meanwhile. To replace all of them at once would be more work than to wait.
GIVEN_UP_MAX: Final = 50


class TabletTable:
    """A table of tablets at its znode's version, with counts of its tablets."""

    __slots__ = ("led", "origin", "record", "serving", "states", "version")

    def __init__(self, record: TableRecord, version: int) -> None:
        self.record = record
        self.version = version
        #: The latest request about the table, None if this master has seen none.
        self.origin: WorkOrigin | None = None
        #: Tablets by the state of their records.
        self.states: Counter[TabletState] = Counter()
        #: RUNNING tablets whose leader reports to this master, and replicas that take part, by their servers' reports.
        self.led = 0
        self.serving = 0

    @property
    def tablets(self) -> int:
        """Number of tablets, without replaced ones."""
        return self.states.total() - self.states[TabletState.REPLACED]

    @property
    def running(self) -> int:
        """Number of tablets that clients may use, by their records."""
        return self.states[TabletState.RUNNING]

    @property
    def wants_open(self) -> bool:
        """True if the persisted intent wants the table's tablets to take part."""
        exists = self.record.state in (TableState.RUNNING, TableState.ALTERING)
        return exists and self.record.intent is TableIntent.ENABLED


class MemberOrder:
    """An OPEN or CLOSE that is sent again and again until the store, or a report, shows the outcome."""

    __slots__ = ("asks", "batch", "closing", "next_ms", "origin", "server")

    def __init__(
        self,
        server: Incarnation,
        next_ms: int,
        closing: TabletClosing | None = None,
        origin: WorkOrigin | None = None,
    ) -> None:
        self.server = server
        #: When to send (again).
        self.next_ms = next_ms
        #: Number of times that the order was sent. Number of the batch whose reply the order waits for; 0: none.
        self.asks = 0
        self.batch = 0
        #: The content of a CLOSE; None for an OPEN.
        self.closing = closing
        #: The cause of a CLOSE: the server's steps belong to it. An OPEN has its transition's.
        self.origin = origin


class MemberWork:
    """The transition of one member as a master knows it, and the master's work on it. Members at rest have no
    MemberWork."""

    __slots__ = (
        "cause",
        "is_unread",
        "key",
        "not_before_ms",
        "number",
        "order",
        "seen_ms",
        "transition",
        "version",
        "write",
    )

    def __init__(self, region_id: str, number: int) -> None:
        self.number = number
        self.key = replica_key(region_id, number)
        self.transition: TransitionRecord | None = None
        self.version = -1
        #: When the transition last changed, as far as this master saw.
        self.seen_ms = 0
        #: The cause of the write in flight, and the record that it writes; None for a deletion.
        self.cause: Cause | None = None
        self.write: TransitionRecord | None = None
        #: The transition may have changed, and is being read: no decision before the answer.
        self.is_unread = False
        self.order: MemberOrder | None = None
        self.not_before_ms = 0

    @property
    def is_writing(self) -> bool:
        """True while a write of the transition is in flight."""
        return self.cause is not None

    @property
    def is_put_down(self) -> bool:
        """Return True if no server has, or may take, any step of the transition."""
        if self.is_writing or self.is_unread:
            return False
        return self.transition is None or self.transition.destination is None

    @property
    def is_idle(self) -> bool:
        """True if nothing needs to be remembered of the number."""
        return self.transition is None and not self.is_writing and not self.is_unread and self.order is None


class FirstPlan(NamedTuple):
    """A bulk plan of a tablet's first members. The tablet waits for the plan until `until_ms`."""

    until_ms: int = 0
    plan_id: str = ""
    #: Servers by uuid, in the order of the numbers; "" for a replica that has no place in the plan.
    servers: tuple[str, ...] = ()


class Tablet:
    """One tablet: its record, its members' work, and the reports of its servers."""

    __slots__ = (
        "asked_ms",
        "begun_on",
        "creating_since_ms",
        "is_given_up",
        "is_led",
        "is_writing",
        "judged",
        "leader_due_ms",
        "origin",
        "plan",
        "record",
        "serial",
        "serving",
        "table",
        "version",
        "view",
        "work",
    )

    def __init__(self, table: TabletTable, record: RegionRecord, version: int) -> None:
        self.table = table
        self.record = record
        self.version = version
        #: The latest request about this tablet alone, or the end of its creation (DD-03); None: the request of its
        #: table counts.
        self.origin: WorkOrigin | None = None
        #: Its number in the order in which the keeper has got its tablets (`ConcernedTablets`).
        self.serial = 0
        self.work: dict[int, MemberWork] = {}
        self.view = TabletView()
        #: The actions after each server's latest report when it was last examined, by the server's uuid.
        self.judged: dict[str, Judged] = {}
        #: Since when the tablet has been CREATING, as far as this master has observed; 0 if it is not (DD-03).
        self.creating_since_ms = 0
        #: No leader has reported in time. Another region must take its place.
        self.is_given_up = False
        #: The plan of its first members. None if no plan was requested; a record with members needs none.
        self.plan: FirstPlan | None = None
        #: Servers of the first members that are being written, which are counted as loads already.
        self.begun_on: tuple[str, ...] = ()
        #: A write of the region's record is on its way.
        self.is_writing = False
        #: When the leader's name is written at the earliest, and when the record was last asked for.
        self.leader_due_ms = 0
        self.asked_ms = 0
        #: Its state as counted in its table.
        self.is_led = False
        self.serving = 0
        table.states[record.state] += 1

    def put(self, record: RegionRecord, version: int) -> None:
        """Replace the record, and count the tablet in its new state."""
        self.table.states[self.record.state] -= 1
        self.table.states[record.state] += 1
        self.record, self.version = record, version
        self.recount()

    def recount(self) -> None:
        """Update the table's counts after a change of the record or of the reports."""
        # The replicas of a split tablet run until its daughters have replicas, but serve no client.
        serving = 0 if self.record.state is TabletState.REPLACED else len(self.view.takes_part)
        is_led = self.record.state is TabletState.RUNNING and self.view.leader_now() is not None
        self.table.serving += serving - self.serving
        self.table.led += is_led - self.is_led
        self.serving, self.is_led = serving, is_led

    def server_gone(self, uuid: str) -> None:
        """Forget a server's reports: it has no replica any more, or is dead."""
        self.view.gone(uuid)
        self.judged.pop(uuid, None)
        self.recount()

    @property
    def region_id(self) -> str:
        """The tablet's id."""
        return self.record.region_id

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows according to its leader, 0 if unknown."""
        leader = self.view.leader_now()
        return 0 if leader is None else self.view.replicas[leader.server.uuid].report.size_bytes

    @property
    def measure(self) -> Measure | None:
        """Rows and bytes according to its leader, or to another member that takes part; None without a report."""
        leader = self.view.leader_now()
        if leader is not None:
            return self.view.replicas[leader.server.uuid].report.measure
        found = [one.report.measure for one in self.view.takes_part]
        return max((one for one in found if one is not None), default=None)

    @property
    def wants_open(self) -> bool:
        """True if the persisted intents of table and tablet want its members to take part."""
        return self.table.wants_open and not self.record.unassigned

    @property
    def is_creating(self) -> bool:
        """True while its first members are being made and its record names no leader."""
        return self.record.state is TabletState.CREATING

    @property
    def is_at_work(self) -> bool:
        """True if a transition exists, or is being read or written."""
        return any(one.is_unread or one.is_writing or one.transition is not None for one in self.work.values())

    def member(self, number: int) -> MemberWork:
        """Return the work of a number, made if there is none."""
        found = self.work.get(number)
        if found is None:
            found = self.work[number] = MemberWork(self.region_id, number)
        return found

    def drop_outdated_closings(self) -> None:
        """Drop the orders to close replicas that their servers do not report any more. Reports renew the others."""
        for work in self.work.values():
            if work.order is not None and work.order.closing is not None:
                view = self.view.replicas.get(work.order.server.uuid)
                if view is None or view.report.number != work.number:
                    work.order = None

    def drop_idle(self) -> None:
        """Forget the numbers that need no entry any more."""
        for number in [number for number, work in self.work.items() if work.is_idle]:
            del self.work[number]

    def home_of(self, work: MemberWork) -> str:
        """Return the uuid of the server with this number, "" if unknown."""
        member = self.record.member(work.number)
        if member is not None:
            return member.uuid
        transition = work.transition
        named = None if transition is None else transition.destination or transition.source
        return "" if named is None else named.uuid


def find_work(tablets: Mapping[str, Tablet], key: str) -> tuple[Tablet | None, MemberWork | None]:
    """Return the tablet and the work that a replica's key names; a server's report may hold any text."""
    try:
        region_id, number = parse_replica_key(key)
    except ValueError:
        return None, None
    tablet = tablets.get(region_id)
    return tablet, None if tablet is None else tablet.work.get(number)


class GivenUp:
    """The tablets that were given up. Some of them have been replaced, or got a leader, since the last look."""

    def __init__(self, tablets: Mapping[str, Tablet]) -> None:
        """`tablets`: all tablets by region id, as they are at any time."""
        self._tablets = tablets
        self._given_up: list[Tablet] = []

    def add(self, tablet: Tablet) -> None:
        """Give a tablet up. While GIVEN_UP_MAX others are given up, it waits for its turn."""
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up = [one for one in self._given_up if self._is_given_up(one)]
        if len(self._given_up) < GIVEN_UP_MAX:
            tablet.is_given_up = True
            self._given_up.append(tablet)

    def _is_given_up(self, tablet: Tablet) -> bool:
        return tablet.is_given_up and self._tablets.get(tablet.region_id) is tablet


class ConcernedTablets:
    """The tablets that a server's start or end concerns, found without a walk over all tablets.

    A server concerns a tablet if it has, or reports, a member of it, or if a member's transition names it. Every server
    concerns a tablet in PREPARING, whose first members wait for servers.

    `note` is called after each change of a tablet, and adds the tablet to the sets of these servers. Former members
    and servers whose reports are gone leave the sets, or a tenure would keep a set for every server that ever was. `of`
    drops what else does not concern the server any more. So a set has at least the tablets concerned.
    """

    def __init__(self) -> None:
        self._near: dict[str, set[Tablet]] = {}
        self._preparing: set[Tablet] = set()
        self._added = 0
        #: Tablets that `of` has looked at so far.
        self.looks = 0

    def add(self, tablet: Tablet) -> None:
        """Add a new tablet."""
        self._added += 1
        tablet.serial = self._added
        self.note(tablet)

    def note(self, tablet: Tablet, former: Iterable[Member] = ()) -> None:
        """Note the servers that a changed tablet names now. `former` are its members before the change."""
        if tablet.record.state is TabletState.PREPARING:
            self._preparing.add(tablet)
        named = _named(tablet)
        for uuid in named:
            self.note_server(tablet, uuid)
        self._leave(tablet, {one.uuid for one in former} - named)

    def note_server(self, tablet: Tablet, uuid: str) -> None:
        """Note that a server reports a replica of the tablet, or that a transition names the server, "" for none."""
        if not uuid:
            return
        near = self._near.get(uuid)
        if near is None:
            near = self._near[uuid] = set()
        near.add(tablet)

    def server_gone(self, tablet: Tablet, uuid: str) -> None:
        """Forget a server's reports of a tablet."""
        tablet.server_gone(uuid)
        self._leave(tablet, {uuid} - _named(tablet))

    def forget(self, tablet: Tablet) -> None:
        """Forget a tablet that the keeper has forgotten."""
        self._preparing.discard(tablet)
        self._leave(tablet, _named(tablet))
        tablet.serial = 0

    def _leave(self, tablet: Tablet, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            near = self._near.get(uuid)
            if near is not None:
                near.discard(tablet)
                if not near:
                    del self._near[uuid]

    def of(self, uuid: str) -> list[Tablet]:
        """Return the tablets that a server concerns, in the order in which they were added."""
        near = self._near.pop(uuid, set())
        self.looks += len(near) + len(self._preparing)
        kept = {one for one in near if one.serial and uuid in _named(one)}
        if kept:
            self._near[uuid] = kept
        self._preparing = {one for one in self._preparing if one.record.state is TabletState.PREPARING}
        # The order of a set differs from process to process.
        return sorted(kept | self._preparing, key=attrgetter("serial"))


def _named(tablet: Tablet) -> set[str]:
    """Return the servers of a tablet's members, reports and transitions."""
    found = {one.uuid for one in tablet.record.members}
    found.update(tablet.view.replicas)
    found.update(map(tablet.home_of, tablet.work.values()))
    return found
