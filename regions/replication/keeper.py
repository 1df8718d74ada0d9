"""The keeper: decides about all tablets for one tenure of an active master. No I/O, no clock.

The caller passes changes of the store, of servers and reports, calls `tick` a few times a second, and carries out the
effects that `take` returns. `take` decides once about each tablet that was touched since the last call. Decisions are
level-triggered: they depend on the present state, so the next master decides the same, and a repeated decision does no
harm. The deciding tables are `recovery.py` (a transition), `heartbeat_steps.py` (a report) and
`regions/transitions/states.py` (legal writes).

**Creation.** A region is PREPARING until all servers of its first configuration are live. One multi then makes it
CREATING and creates the OFFLINE of every member. Each transition proceeds to OPENED and is deleted. The region is
RUNNING once a leader has reported (DD-05). If no leader does within `create_timeout_ms`, no more orders are sent. When
no server is working on a member any more, another region with other numbers takes its place (DD-03). Clients use
RUNNING regions only, so a region that is replaced has acknowledged nothing.

**Death of a server.** Nothing is moved. A transition that names the server waits for its next start.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from regions.cluster import effects as fx
from regions.cluster.causes import ActingEvent, Causes
from regions.cluster.limits import AssignerConfig
from regions.messages import OrderOutcome, OrderResult
from regions.messages.heartbeat import TabletReport
from regions.records.intents import TabletIntents
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import replica_key
from regions.replication.creation import FirstMembers
from regions.replication.effects import BeginTablet, KeeperCauses, KeeperEffect, WriteRegion, marked_replaced
from regions.replication.guards import OrderAnswer
from regions.replication.heartbeat_steps import Facts, Judged, ReportAction, closing_order, judged, updated
from regions.replication.member_orders import MemberOrders, MemberWrites
from regions.replication.policy.members import MemberPolicy
from regions.replication.recovery import Goal, ServerFate, next_step, work_fate, work_goal
from regions.replication.reports import ReplicaView, taken
from regions.replication.siting import TabletSite, has_room, is_another_place, tablet_sites
from regions.replication.tablet import ConcernedTablets, MemberWork, Tablet, TabletTable, find_work
from regions.transitions.next_action import Action, NextStep
from regions.transitions.states import Cause

#: Interval between two checks of the tablets that wait. With many tablets the interval is LOOK_PART_MS times their
#: number, so that the checks take at most a tenth of a processor.
LOOK_EVERY_MS: Final = 1_000
LOOK_PART_MS: Final = 2
#: Tablets that are examined in one call: some tens of milliseconds of work during the creation of 1,000 tablets.
LOOKS_MAX: Final = 100
#: Delay of a write that contains only the name of a new leader. Clients find leaders without it.
LEADER_LATE_MS: Final = 10_000


class Keeper:
    """Decides about tablets. See the module docstring."""

    def __init__(self, epoch: int, config: AssignerConfig, causes: Causes | None = None) -> None:
        self._config = config
        self.tables: dict[str, TabletTable] = {}
        self.tablets: dict[str, Tablet] = {}
        self.concerned = ConcernedTablets()
        self.servers: dict[str, ServerRecord] = {}
        #: Replicas that servers report and the store does not know (FN-04).
        self.orphans: dict[tuple[str, str], ReplicaView] = {}
        #: Members by server, of all tablets.
        self.loads: Counter[str] = Counter()
        self._effects: list[KeeperEffect] = []
        self._causes = KeeperCauses(causes or Causes(epoch))
        self._orders = MemberOrders(config, self.servers, self._emit, self._causes)
        #: Tablets about which something may have to be done.
        self._open: dict[str, Tablet] = {}
        self._look_at_ms = 0
        #: Tablets that the look under way has not reached.
        self._unseen: deque[Tablet] = deque()
        self._writes = MemberWrites(epoch, config, self._emit, self._causes)
        self._first_members = FirstMembers(
            epoch, config, self.tablets, self.servers, self._sites, self._writes, self._emit, self._causes, self.loads
        )
        #: Changes of members.
        self.policy = MemberPolicy(epoch, config, self.servers, self.loads, self.orphans, self._emit, self._causes)
        #: Tablets that events have touched since the last call of `take`, and the first of these events.
        self._touched: dict[Tablet, ActingEvent] = {}
        self._is_deciding = False

    # --- what the store says ----------------------------------------------------------------------------------------

    def table_seen(self, record: TableRecord, version: int, origin: WorkOrigin | None = None) -> None:
        """A table's record was read, or was written for the request `origin`. Shared regions are not the keeper's."""
        if not record.is_tablet:
            return
        self._causes.event(f"znode: the record of table {record.name} has changed", origin)
        known = self.tables.get(record.table_id)
        if known is None:
            known = self.tables[record.table_id] = TabletTable(record, version)
            known.origin = origin
            return
        known.origin = origin or known.origin
        known.record, known.version = record, version
        self._look_at_ms = 0  # the wanted state may have changed
        self._open.update((one.region_id, one) for one in self.tablets.values() if one.table is known)

    def region_seen(self, record: RegionRecord, version: int, origin: WorkOrigin | None = None) -> None:
        """A region's record was read, or was written for `origin`. An answer that was overtaken changes nothing."""
        table = self.tables.get(record.table_id)
        if table is None:
            return
        self._causes.event(f"znode: the record of region {record.region_id} has changed", origin)
        tablet = self.tablets.get(record.region_id)
        if tablet is None:
            tablet = self.tablets[record.region_id] = Tablet(table, record, version)
            self.loads.update(one.uuid for one in record.members)
            for view in taken(self.orphans, record.region_id):
                tablet.view.fold(*view)
            self.concerned.add(tablet)
            tablet.recount()
            tablet.origin = origin
        elif version > tablet.version:
            self._put(tablet, record, version)
            tablet.origin = origin or tablet.origin
        self._touch(tablet)

    def forget_table(self, table_id: str) -> None:
        """Forget a deleted table whose rows are removed. A later report of a replica causes a read of the store."""
        for region_id in [one.region_id for one in self.tablets.values() if one.record.table_id == table_id]:
            self.forget_region(region_id)
        self.tables.pop(table_id, None)

    def forget_region(self, region_id: str) -> None:
        """Forget a region whose record is deleted, as `forget_table` does. Do nothing without such a region."""
        tablet = self.tablets.pop(region_id, None)
        if tablet is not None:
            tablet.table.states[tablet.record.state] -= 1
            self.concerned.forget(tablet)
            self._first_members.answered(tablet)
            self.policy.forget(region_id)
            self._open.pop(region_id, None)
            self.loads.subtract(one.uuid for one in tablet.record.members)

    def transition_seen(
        self, region_id: str, number: int, record: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        """Handle a transition that was read; None if it does not exist."""
        tablet = self.tablets.get(region_id)
        if tablet is None:
            return
        work = tablet.member(number)
        if work.is_writing:
            return  # our own write names a version: if this is newer, the write is refused and we read again
        self._causes.event(f"znode: the transition of {work.key} has changed")
        work.is_unread = False
        if (record, version) != (work.transition, work.version):
            self._become(tablet, work, record, version, now_ms)
        self._touch(tablet)

    def write_done(self, key: str, version: int, now_ms: int) -> None:
        """A write of a transition has committed."""
        tablet, work = find_work(self.tablets, key)
        if tablet is None or work is None or not work.is_writing:
            return
        record, work.write, work.cause = work.write, None, None
        self._become(tablet, work, record, -1 if record is None else version, now_ms)
        self._touch(tablet)

    def write_failed(self, key: str, table_version: int | None = None) -> None:
        """Handle a refused write of a transition: the transition or the table's record has changed since."""
        tablet, work = find_work(self.tablets, key)
        if tablet is None or work is None or not work.is_writing:
            return
        work.write, work.cause, work.is_unread = None, None, True
        self._emit(fx.ReadTransition(tablet.region_id, work.number))
        self._emit(fx.ReadRegion(tablet.record.table_id, tablet.region_id))
        if table_version is not None:
            self._emit(fx.ReadTable(tablet.record.table_id))

    def retry(self, key: str, now_ms: int, origin: WorkOrigin | None = None) -> bool:
        """Retry a parked member for an operator. Return False if the member is not parked, or its server is away."""
        tablet, work = find_work(self.tablets, key)
        if tablet is None or work is None or work.transition is None or not work.transition.parked:
            return False
        server = self.servers.get(tablet.home_of(work))
        if server is not None:
            self._causes.event(f"request: retry {key}", origin)
            self._writes.offline(tablet, work, server.incarnation, Cause.REPLAN, now_ms, attempt=0)
        return server is not None

    def begun(self, effect: BeginTablet, now_ms: int) -> None:
        """BeginTablet has committed."""
        tablet = self.tablets.get(effect.record.region_id)
        if tablet is None:
            return
        tablet.is_writing = False
        self._first_members.answered(tablet)
        self._put(tablet, effect.record, effect.version + 1)
        for transition in effect.transitions:
            self._become(tablet, tablet.member(transition.replica), transition, 0, now_ms)
        self._touch(tablet)

    def region_written(self, effect: WriteRegion) -> None:
        """WriteRegion has committed."""
        tablet = self.tablets.get(effect.record.region_id)
        if tablet is not None:
            tablet.is_writing = False
            self._put(tablet, effect.record, effect.version + 1)
            self._touch(tablet)

    def region_refused(self, region_id: str) -> None:
        """Read everything again: a write of the tablet's records was rejected, or its outcome is unknown."""
        tablet = self.tablets.get(region_id)
        if tablet is None:
            return
        self._first_members.answered(tablet)
        tablet.is_writing = tablet.is_given_up = False
        tablet.creating_since_ms = 0
        self._emit(fx.ReadTable(tablet.record.table_id))
        self._emit(fx.ReadRegion(tablet.record.table_id, region_id))
        # The next number may have been given to a newcomer.
        for number in [*(one.number for one in tablet.record.members), tablet.record.next_number]:
            self._writes.read(tablet, tablet.member(number))

    def read_transitions(self, table_id: str) -> None:
        """Read the transitions of all tablets of a table: a former master may have left some."""
        for tablet in self.tablets.values():
            for number in range(1, tablet.record.next_number) if tablet.record.table_id == table_id else ():
                self._writes.read(tablet, tablet.member(number))

    def plan_ready(self, plan_id: str, keys: Iterable[str], placements: Mapping[str, str]) -> None:
        """A bulk plan of first members has been made: servers by replica key, which may be missing, dead or wrong."""
        for tablet in self._first_members.plan_ready(plan_id, keys, placements):
            self._open[tablet.region_id] = tablet
            self._unseen.append(tablet)

    def replaced(self, region_id: str, fresh: RegionRecord, version: int) -> None:
        """Handle a committed ReplaceRegion. Replicas of the former region are deleted as servers report them."""
        former = self.tablets.get(region_id)
        if former is not None:
            former.is_writing = False
            former.work.clear()
            self._put(former, marked_replaced(former.record), former.version + 1)
        self.region_seen(fresh, version, None if former is None else former.origin)

    # --- what servers say -------------------------------------------------------------------------------------------

    def server_up(self, record: ServerRecord) -> None:
        """A server has registered, or its record has changed."""
        known = self.servers.get(record.uuid)
        self.servers[record.uuid] = record
        if known is None or is_another_place(known, record):
            self._servers_differ()
        if known is None or known.incarnation != record.incarnation:
            self._causes.event(f"znode: server {record.host}:{record.port} has registered")
            self._server_changed(record.uuid)

    def servers_closed(self, retiring: frozenset[str], closed: frozenset[str]) -> None:
        """Handle a change of the retiring servers, and of those that get no new members (`closed`: the former, too)."""
        if (retiring, closed) != (self.policy.retiring, self.policy.closed):
            self.policy.retiring, self.policy.closed = retiring, closed
            self._servers_differ()

    def intents_seen(self, region_id: str, intents: TabletIntents | None) -> None:
        """Handle the intents about a tablet's members that were read or written; None or empty if there are none."""
        self.policy.intents.pop(region_id, None)
        if intents is not None and not intents.is_empty:
            self.policy.intents[region_id] = intents
        tablet = self.tablets.get(region_id)
        if tablet is not None:
            self._touch(tablet)

    def _servers_differ(self) -> None:
        """Look at all tablets: members may have to move, and others may find a place."""
        if self._config.changes_members:
            self._open.update(self.tablets)

    def server_down(self, uuid: str) -> None:
        """Handle the end of a server's registration. No member moves."""
        if self.servers.pop(uuid, None) is not None:
            self._causes.event(f"znode: the registration of server {uuid} is gone")
            self._server_changed(uuid)

    def reported(self, server: Incarnation, reports: Iterable[TabletReport], gone: Iterable[str]) -> None:
        """Handle a heartbeat's report, which is not outdated (`regions/liveness/roster.py`)."""
        self._causes.event(f"heartbeat: report of server {server}")
        for report in reports:
            tablet = self.tablets.get(report.region_id)
            if tablet is None:
                self.orphans[server.uuid, report.key] = ReplicaView(server, report)
                continue
            tablet.view.fold(server, report)
            self.concerned.note_server(tablet, server.uuid)
            tablet.recount()
            self._touch(tablet)
        for key in gone:
            self.orphans.pop((server.uuid, key), None)
            tablet, work = find_work(self.tablets, key)
            view = None if tablet is None else tablet.view.replicas.get(server.uuid)
            if tablet is not None and view is not None and view.report.key == key:
                self.concerned.server_gone(tablet, server.uuid)
                if work is not None and work.transition is None:
                    work.order = None
                self._touch(tablet)

    def orders_answered(self, batch: int, results: Iterable[OrderResult], now_ms: int) -> None:
        """Process a server's answers: which tablets to look at, and why the server cannot carry out an order."""
        waiting: dict[str, MemberWork] = {work.key: work for work in self._orders.take(batch)}
        for result in results:
            key = replica_key(result.region_id, result.replica)
            tablet, work = find_work(self.tablets, key)
            if tablet is None or work is None or waiting.get(key) is not work or work.order is None:
                continue
            if work.order.batch != batch:
                continue
            self._answered(tablet, work, result, now_ms)
        self._orders.send_again(waiting.values(), batch, now_ms)

    def change_answered(self, ask: int) -> None:
        """A leader has answered a change of members, or no answer comes. Reports show the result."""
        self.policy.answered(ask)

    def orders_lost(self, batch: int, now_ms: int) -> None:
        """No answer came."""
        self._orders.send_again(self._orders.take(batch), batch, now_ms)

    # --- the shell's side -------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Start deciding about everything that was read. A cluster startup is handled in the same way."""
        self._causes.event("takeover: the active master takes over the tablets")
        self._is_deciding = True
        self._open.update(self.tablets)
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Process due deadlines and checks, at most LOOKS_MAX in one call."""
        if self._is_deciding and not self._unseen and now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + max(LOOK_EVERY_MS, len(self._open) * LOOK_PART_MS)
            self._unseen.extend(self._open.values())
        if self._unseen:
            self._causes.event("timer: tablets at which something is to be looked at")
            for _ in range(min(LOOKS_MAX, len(self._unseen))):
                self._touch(self._unseen.popleft())

    def has_work(self, now_ms: int) -> bool:
        """Return False if `tick` would do nothing, and `take` would decide and return nothing."""
        if self._touched or self._unseen or self._effects or self._open or self._first_members.unplanned:
            return True
        return self._is_deciding and now_ms >= self._look_at_ms

    @property
    def is_looking(self) -> bool:
        """Return True if the next call of `tick` has more to check, independent of the time."""
        return bool(self._unseen)

    def take(self, now_ms: int, *, more_comes: bool = False) -> list[KeeperEffect]:
        """Decide about everything that changed since the last call. Return the effects, with due orders.

        `more_comes`: more regions of a new table follow at once, so a plan of first members waits for them.
        """
        touched, self._touched = self._touched, {}
        if touched:
            self.policy.new_round()
        for tablet, acting in touched.items():
            self._causes.resume(acting)
            self._settle(tablet, now_ms)
        if self._first_members.unplanned and not more_comes and not self._unseen:
            self._first_members.request_plan(now_ms)
        if self._open and self._is_deciding:
            self._orders.dispatch(self._open.values(), now_ms)
        taken, self._effects = self._effects, []
        return taken

    def is_closed(self, table_id: str) -> bool:
        """Return True if no replica of the table takes part (by the reports), and no member is in transition."""
        table = self.tables.get(table_id)
        if table is None:
            return True
        at_work = (one for one in self._open.values() if one.table is table)
        return not table.serving and not any(one.work or one.is_writing for one in at_work)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _touch(self, tablet: Tablet) -> None:
        """Decide about a tablet at the next call of `take`: many events of one turn are about the same tablet."""
        self._open[tablet.region_id] = tablet
        if self._is_deciding:
            self._touched.setdefault(tablet, self._causes.acting)

    def _settle(self, tablet: Tablet, now_ms: int) -> None:
        """Take the tablet's next steps."""
        if self.tablets.get(tablet.region_id) is not tablet:
            self._open.pop(tablet.region_id, None)
            return
        if tablet.record.state is TabletState.PREPARING:
            self._first_members.settle_preparing(tablet, now_ms)
            return
        if tablet.record.state is TabletState.REPLACED and tablet.region_id in self.policy.held:
            return  # servers make the daughters' members from its replicas
        needs_look = self._settle_reports(tablet, now_ms)
        if tablet.is_creating and self._first_members.settle_creating(tablet, now_ms):
            return
        needs_look = self.policy.settle(tablet, now_ms) or needs_look
        for work in list(tablet.work.values()):
            self._settle_member(tablet, work, now_ms)
        tablet.drop_idle()
        if not tablet.work and not tablet.is_writing and not tablet.is_creating and not needs_look:
            self._open.pop(tablet.region_id, None)

    def _settle_member(self, tablet: Tablet, work: MemberWork, now_ms: int) -> None:
        """Take the next step of a member's transition (`recovery.py`)."""
        transition = work.transition
        if transition is None or work.is_writing or work.is_unread:
            return
        fate = work_fate(tablet, work, self.servers)
        is_joining, is_new = self.policy.is_joining(tablet, work), self.policy.is_new(tablet, work)
        goal = work_goal(tablet, work, fate, is_joining=is_joining, is_new=is_new)
        if transition.parked and tablet.wants_open and goal is not Goal.LEFT:
            return
        step = next_step(transition.state, fate, goal, has_begun=transition.begun)
        if step.action is Action.ORDER_OPEN:
            self._orders.open(work, transition.destination, max(now_ms, work.not_before_ms))
        elif step.action is Action.WAIT:
            self._wait_for(work, transition, fate, now_ms, is_ordered=goal is not Goal.JOIN)
        elif step.action is Action.KEEP_PLAN:
            server = self.servers[tablet.home_of(work)]
            self._writes.offline(tablet, work, server.incarnation, step.cause, now_ms)
        elif step.action is Action.PUT_DOWN:
            self._writes.offline(tablet, work, None, step.cause, now_ms)
        else:
            self._end(tablet, work, step, goal)

    def _wait_for(
        self, work: MemberWork, transition: TransitionRecord, fate: ServerFate, now_ms: int, *, is_ordered: bool
    ) -> None:
        """Wait for a server at work, and ask it for the result; or ask no server. The leader asks about a newcomer."""
        at_work = transition.state in (RegionState.OPENING, RegionState.CLOSING) and fate is ServerFate.ALIVE
        at_work = at_work and (is_ordered or transition.state is RegionState.CLOSING)
        if not at_work:
            work.order = None
        elif transition.state is RegionState.OPENING:
            # The copy of a newcomer that votes by now is complete: its server has only to write OPENED.
            pause_ms = self._config.resend_ms if transition.joins is None else 0
            self._orders.open(work, transition.destination, now_ms + pause_ms)
        elif work.order is None or work.order.closing is None:
            work.order = None  # the server closes by itself once it has begun; reports show the end

    def _end(self, tablet: Tablet, work: MemberWork, step: NextStep, goal: Goal) -> None:
        if goal is Goal.REST and tablet.wants_open:
            return  # the table's record has just changed; the write would be refused
        self._writes.delete(tablet, work, step.cause)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _settle_reports(self, tablet: Tablet, now_ms: int) -> bool:
        """Carry out the actions of the latest reports (HB-15). Return True if a check must be repeated."""
        record = tablet.record
        pending = False
        tablet.drop_outdated_closings()
        for uuid, view in list(tablet.view.replicas.items()):
            number = view.report.number
            work = tablet.work.get(number)
            in_transition = work is not None and (work.transition is not None or work.is_writing or work.is_unread)
            facts, actions = self._judged(tablet, uuid, view, in_transition=in_transition)
            order = closing_order(actions, tablet.record)
            if order is not None:
                self._orders.close(tablet, number, view.server, order, now_ms)
                pending = True
            elif work is not None and work.order is not None and work.order.closing is not None:
                work.order = None
            if ReportAction.READ in actions:
                pending = True
                self._ask_for(tablet, now_ms)
            if ReportAction.OPEN in actions:
                pending = True
                self._writes.offline(tablet, tablet.member(number), view.server, Cause.ASSIGN, now_ms, begun=True)
            written = updated(record, facts, actions)
            record = written if written is not record else record
            pending = self._leader_due(tablet, actions, now_ms) or pending
        if record is not tablet.record:
            self._write_region(tablet, record)
        elif pending and tablet.leader_due_ms and now_ms >= tablet.leader_due_ms:
            self._write_leader(tablet)
        return pending or tablet.is_writing

    def _judged(self, tablet: Tablet, uuid: str, view: ReplicaView, *, in_transition: bool) -> Judged:
        region, table = tablet.record, tablet.table.record
        found = tablet.judged.get(uuid)
        if found is None or not found.rests_on(view.report, region, table, in_transition=in_transition):
            found = tablet.judged[uuid] = judged(Facts(uuid, view.report, region, table, in_transition))
        return found

    def _leader_due(self, tablet: Tablet, actions: list[ReportAction], now_ms: int) -> bool:
        is_due = ReportAction.LEADER in actions
        if is_due and not tablet.leader_due_ms:
            tablet.leader_due_ms = now_ms + LEADER_LATE_MS
        return is_due

    def _write_leader(self, tablet: Tablet) -> None:
        leader = tablet.view.leader_now()
        if leader is not None and leader.term > tablet.record.leader_term:
            named = msgspec.structs.replace(tablet.record, leader=leader.number, leader_term=leader.term)
            self._write_region(tablet, named)
        else:
            tablet.leader_due_ms = 0

    def _write_region(self, tablet: Tablet, record: RegionRecord) -> None:
        if tablet.is_writing:
            return  # decided again when the answer comes
        tablet.is_writing = True
        self._emit(WriteRegion(record, tablet.version))

    def _ask_for(self, tablet: Tablet, now_ms: int) -> None:
        if now_ms >= tablet.asked_ms + self._config.resend_ms:
            tablet.asked_ms = now_ms
            self._emit(fx.ReadRegion(tablet.record.table_id, tablet.region_id))

    def _answered(self, tablet: Tablet, work: MemberWork, result: OrderResult, now_ms: int) -> None:
        is_open = work.order is not None and work.order.closing is None
        if result.outcome in (OrderOutcome.DONE, OrderOutcome.STARTED) or not is_open:
            if result.outcome is not OrderOutcome.STARTED:
                self._writes.read(tablet, work)
            if result.outcome is OrderOutcome.REFUSED:
                self._emit(fx.ReadRegion(tablet.record.table_id, tablet.region_id))
            return
        transition = work.transition
        if result.version > work.version or transition is None or work.is_writing:
            self._writes.read(tablet, work)  # the server had taken a step before it failed; the order is sent again
            return
        attempt = transition.attempt + 1
        pause_ms = min(self._config.retry_base_ms << min(attempt - 1, 10), self._config.retry_max_ms)
        work.not_before_ms = now_ms + pause_ms
        may_replace = tablet.is_creating and tablet.record.generation < self._config.replacements_max
        is_lost = result.error == OrderAnswer.AMNESIA.value  # however often its server is asked
        server = self.servers.get(tablet.home_of(work))
        is_full = server is not None and not has_room(server)  # for a while: its failures are not counted to the end
        used_up = (is_lost or (attempt >= self._config.attempts_max and not is_full)) and not may_replace
        if transition.state in (RegionState.OFFLINE, RegionState.OPENING):
            self._writes.offline(
                tablet, work, None if used_up else transition.destination, Cause.OPEN_FAILED, now_ms,
                attempt=attempt, error=result.error, parked=used_up,
            )  # fmt: skip

    # --- memory -----------------------------------------------------------------------------------------------------

    def _become(
        self, tablet: Tablet, work: MemberWork, record: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        former = work.transition
        if record is None or former is None or former.state is not record.state:
            work.order = None
        work.transition, work.version, work.seen_ms = record, version, now_ms
        self.concerned.note_server(tablet, tablet.home_of(work))

    def _put(self, tablet: Tablet, record: RegionRecord, version: int) -> None:
        self.loads.subtract(one.uuid for one in tablet.record.members)
        self.loads.update(one.uuid for one in record.members)
        former = tablet.record.members
        tablet.put(record, version)
        self.concerned.note(tablet, former)
        if record.leader_term:
            tablet.leader_due_ms = 0
        if record.state is not TabletState.CREATING:
            tablet.creating_since_ms, tablet.is_given_up = 0, False

    def _server_changed(self, uuid: str) -> None:
        """Decide again about the replicas of a server that has registered, left or restarted. No member moves."""
        server = self.servers.get(uuid)
        for name, orphan in list(self.orphans.items()):
            if name[0] == uuid and (server is None or server.incarnation != orphan.server):
                del self.orphans[name]
        for tablet in self.concerned.of(uuid):
            view = tablet.view.replicas.get(uuid)
            if view is not None and (server is None or server.incarnation != view.server):
                self.concerned.server_gone(tablet, uuid)
            if any(one.uuid == uuid for one in tablet.record.members):
                tablet.view.revision += 1  # the reason of its health names members whose server is not registered
            concerns = tablet.record.state is TabletState.PREPARING or any(
                tablet.home_of(work) == uuid for work in tablet.work.values()
            )
            if concerns:
                for work in tablet.work.values():
                    if work.order is not None and work.order.server.uuid == uuid:
                        work.order = None
                self._touch(tablet)

    def _sites(self, table: TableRecord) -> list[TabletSite]:
        """Return the servers for first members, without servers below their reserve."""
        return tablet_sites(filter(has_room, self.servers.values()), table, self.loads, self.policy.closed)

    def _emit(self, effect: KeeperEffect) -> None:
        self._effects.append(effect)
