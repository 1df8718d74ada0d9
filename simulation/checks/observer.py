"""The observer of a simulated cluster: the rules that must hold after every event.

The observer sees each command when the store commits it, with the session that sent it. It checks that the step was
legal, that the sender was entitled to it, and that the znodes around it agree. The rules are implemented here a second
time, from the documents and not from the code of masters and servers. Only the table of legal steps is shared
(`regions/transitions/states.py`).

Between commits it watches the servers: at most one server may serve a replica at a time, judged by the servers' own
clocks and leases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from coord.errors import OK
from coord.tree.machine import CommandOutcome, StateMachine
from coord.wire.opcodes import OP_CREATE_SESSION
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.model import (
    BarRecord,
    Incarnation,
    PlanRecord,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.records.partitioning import check_ranges
from regions.records.replica_key import replica_key
from regions.records.znodes import (
    Layout,
    decode_active,
    decode_bar,
    decode_plan,
    decode_region,
    decode_resharding,
    decode_server,
    decode_table,
    decode_transition,
)
from regions.transitions.next_action import is_cluster_startup
from regions.transitions.resharding import RESHARDING_STEPS
from regions.transitions.states import Actor, is_legal
from simulation.checks.history import HistoryCheck
from simulation.engine.history import Violation
from simulation.engine.timeline import Timeline

T = TypeVar("T", bound=msgspec.Struct)

MASTER: Final = "m"
SERVER: Final = "s"
OPERATOR: Final = "op"
#: Znodes that only the active master writes, and servers where the table of steps allows it.
FENCED: Final = frozenset(("unassigned", "regions", "tables", "names", "plans", "requests", "barred", "reshardings"))


class Shadow:
    """The store's content below the root, decoded, as of the last commit."""

    def __init__(self) -> None:
        self.transitions: dict[str, TransitionRecord] = {}
        self.regions: dict[str, RegionRecord] = {}
        self.tables: dict[str, TableRecord] = {}
        self.servers: dict[str, ServerRecord] = {}
        self.draining: set[str] = set()
        self.names: dict[str, str] = {}
        self.plans: dict[str, PlanRecord] = {}
        self.bars: dict[str, BarRecord] = {}
        self.reshardings: dict[str, ReshardingRecord] = {}
        self.epoch = -1
        self.active_session = 0
        #: Sessions that held /active when an operator deleted it.
        self.vacated_sessions: set[int] = set()

    def is_alive(self, incarnation: Incarnation | None) -> bool:
        """Return True if exactly this start of a server is registered."""
        if incarnation is None:
            return False
        record = self.servers.get(incarnation.uuid)
        return record is not None and record.incarnation == incarnation

    def wants_open(self, table_id: str) -> bool:
        """Return True if the table's regions should be open."""
        table = self.tables.get(table_id)
        return (
            table is not None
            and table.intent == TableIntent.ENABLED
            and table.state in (TableState.RUNNING, TableState.ALTERING)
        )

    def wants_region(self, region_id: str) -> bool:
        """Return True if the region should be open: its table should be, and the region is not unassigned by itself."""
        region = self.regions.get(region_id)
        if region is None or region.unassigned or region.is_replaced:
            return False
        return self.wants_open(region.table_id)

    def home(self, record: TransitionRecord) -> Incarnation | None:
        """Return the server on which the store records the transition's replica as open."""
        region = self.regions.get(record.region_id)
        return None if region is None else region.location(record.replica).incarnation


class Observer:
    """Checks every commit; see the module docstring."""

    def __init__(self, timeline: Timeline, layout: Layout) -> None:
        self._timeline = timeline
        self._layout = layout
        self.shadow = Shadow()
        self.violations: list[str] = []
        #: Count of each kind of event; shows that a run was not idle.
        self.counts: dict[str, int] = {}
        #: True once a region was split or merged.
        self.has_resharded = False
        #: Host of every session that was ever created.
        self.hosts: dict[int, str] = {}
        #: The session that raised the epoch last: the only session that may write as a master.
        self.epoch_session = 0
        #: uuid of the server on each host.
        self.uuids: dict[str, str] = {}
        self._root = layout.root.encode()
        #: Compares the committed steps with the history that the masters write.
        self.history = HistoryCheck(self.violated)
        #: Called with the path after every change of `shadow`.
        self.changed: Callable[[str], None] = lambda _: None

    def violated(self, what: str) -> None:
        """Record a violation and raise it, which ends the run."""
        self.violations.append(f"at {self._timeline.now / 1e6:.6f} s: {what}")
        self._timeline.note(f"VIOLATION {what}")
        raise Violation(what)

    def count(self, what: str) -> None:
        """Increment the counter `what`."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- commits ------------------------------------------------------------------------------------------------------

    def committed(self, machine: StateMachine, outcome: CommandOutcome) -> None:
        """Check a command that the store has applied (`simulation.cluster.store.Witness`)."""
        if outcome.opcode == OP_CREATE_SESSION and outcome.err == OK:
            session = machine.sessions.find(outcome.session_id)
            assert session is not None, "a created session exists"
            self.hosts[outcome.session_id] = session.identities[0][1].decode()
            self._timeline.note(f"commit {outcome.zxid} session {self.hosts[outcome.session_id]}")
            return
        if not outcome.events:
            return
        touched = dict.fromkeys(path for _, path, _ in outcome.events if path.startswith(self._root + b"/"))
        before = self.shadow
        changes: list[tuple[str, str, bytes | None]] = []
        for path in touched:
            node = machine.tree.nodes.get(path)
            name = path[len(self._root) + 1 :].decode()
            kind, _, rest = name.partition("/")
            if rest or kind in ("epoch", "active"):
                changes.append((kind, rest, None if node is None else node.data or b""))
        host = self.hosts.get(outcome.session_id, "?")
        changes = [one for one in changes if self._is_relevant(one)]
        if changes:
            self._timeline.note(f"commit {outcome.zxid} by {host}: {' '.join(f'{k}/{r}' for k, r, _ in changes)}")
        for kind, rest, data in changes:
            self._check(before, kind, rest, data, changes, outcome, host, machine)
        self._check_history(machine, changes, host)
        for kind, rest, data in changes:
            self._remember(kind, rest, data, outcome)
            self.changed(f"{kind}/{rest}")
        self._check_key_space({rest.partition("/")[0] for kind, rest, _ in changes if kind == "regions"})

    def _check_key_space(self, table_ids: set[str]) -> None:
        """Check that the regions of these tables have each key exactly once, at this zxid (X11)."""
        for table_id in sorted(table_ids):
            table = self.shadow.tables.get(table_id)
            if table is not None and table.state is not TableState.REMOVED:
                self._check_cover(table, [one for one in self.shadow.regions.values() if one.table_id == table_id])

    def _check_history(self, machine: StateMachine, changes: list[tuple[str, str, bytes | None]], host: str) -> None:
        """Check that the history equals the log (see `simulation/checks/history.py`)."""
        server = self.uuids.get(host, "") if host.startswith(SERVER) else ""
        steps = [(rest, data) for kind, rest, data in changes if kind == "unassigned"]
        for rest, data in steps:
            key = rest.partition("/")[2]
            new = None if data is None else decode_transition(data, key)
            self.history.committed(key, self.shadow.transitions.get(key), new, server, self.shadow.epoch)
        self.history.segments_changed([(rest, data) for kind, rest, data in changes if kind == "history"])
        for rest, data in steps:
            node = machine.tree.nodes.get(f"{self._layout.unassigned}/{rest}".encode())
            self.history.check_kept(rest.partition("/")[2], data, -1 if node is None else node.version)

    def _is_relevant(self, change: tuple[str, str, bytes | None]) -> bool:
        """Return False for changes of child lists, which carry no record."""
        kind, rest, data = change
        if kind == "unassigned":
            return "/" in rest
        if kind == "regions":
            return "/" in rest
        return data is not None or kind != "masters"

    def _check(
        self,
        before: Shadow,
        kind: str,
        rest: str,
        data: bytes | None,
        changes: list[tuple[str, str, bytes | None]],
        outcome: CommandOutcome,
        host: str,
        machine: StateMachine,
    ) -> None:
        session = outcome.session_id
        if kind == "epoch":
            self._check_epoch(machine, session, data)
            return
        if kind not in FENCED:
            return
        actor = Actor.SERVER if host.startswith(SERVER) else Actor.MASTER
        if actor is Actor.MASTER and session != self.epoch_session:
            self.violated(
                f"FN-01: {host} wrote {kind}/{rest} after its epoch ended; the current epoch is {self.shadow.epoch}"
            )
        if kind == "unassigned":
            key = rest.partition("/")[2]
            old = before.transitions.get(key)
            new = None if data is None else decode_transition(data, key)
            self._check_step(actor, host, key, old, new, changes)
        elif kind == "regions":
            self._check_region(actor, rest, data, changes)
        elif actor is Actor.SERVER:
            self.violated(f"{host} wrote {kind}/{rest}, which only masters may write")
        elif kind == "tables":
            self._check_table(rest, data, changes)

    def _check_epoch(self, machine: StateMachine, session: int, data: bytes | None) -> None:
        node = machine.tree.nodes.get(self._layout.epoch.encode())
        if data is None or node is None:
            self.violated("FW-11: the epoch was deleted")
            return
        if node.version <= self.shadow.epoch:
            self.violated(f"FW-11: the epoch went from {self.shadow.epoch} to {node.version}")
        if node.version > 0:
            if session != self.shadow.active_session and session not in self.shadow.vacated_sessions:
                self.violated(f"the epoch was raised by {self.hosts.get(session)}, which does not hold /active")
            self.count("tenures")
            self.epoch_session = session
        self.shadow.epoch = node.version

    # --- transitions --------------------------------------------------------------------------------------------------

    def _check_step(
        self,
        actor: Actor,
        host: str,
        key: str,
        old: TransitionRecord | None,
        new: TransitionRecord | None,
        changes: list[tuple[str, str, bytes | None]],
    ) -> None:
        """Check a step against the table of legal steps and its rules (RT-21 to RT-30, X1, X3, X5)."""
        before = None if old is None else old.state
        after = None if new is None else new.state
        step = f"{before.value if before else '(none)'} -> {after.value if after else '(deleted)'}"
        self.count(f"{actor.value}: {step}")
        self._timeline.note(f"  {key} {step} by {host}")
        if not is_legal(actor, before, after):
            self.violated(f"RT-21: {key} {step} by {host} is not a legal step")
        if actor is Actor.SERVER:
            assert new is not None, "no row of the table allows a server to delete a transition"
            self._check_server_step(host, key, old, new, changes)
        elif new is not None:
            self._check_offline(key, old, new)
        elif old is not None:
            self._check_delete(key, old, changes)

    def _check_server_step(
        self,
        host: str,
        key: str,
        old: TransitionRecord | None,
        new: TransitionRecord,
        changes: list[tuple[str, str, bytes | None]],
    ) -> None:
        uuid = self.uuids.get(host, "")
        closing = new.state in (RegionState.CLOSING, RegionState.CLOSED)
        own = new.source if closing else new.destination
        if own is None or own.uuid != uuid:
            self.violated(f"RT-28: {host} wrote {key} {new.state} on behalf of {own}")
        if old is not None and (old.source if closing else old.destination) != own:
            self.violated(f"RT-30: {host} took over {key} from {old.source if closing else old.destination}")
        if old is None and self.shadow.home(new) != own:
            self.violated(f"RT-26: {own} closes {key}, which is open on {self.shadow.home(new)}")
        if new.state is RegionState.OPENED:
            region = self._region_in(changes, new)
            if region is None or region.location(new.replica).incarnation != own:
                self.violated(f"RT-29: {key} OPENED without its location in the same write")

    @staticmethod
    def _region_in(changes: list[tuple[str, str, bytes | None]], record: TransitionRecord) -> RegionRecord | None:
        name = f"{record.table_id}/{record.region_id}"
        for kind, rest, data in changes:
            if kind == "regions" and rest == name and data is not None:
                return decode_region(data, name)
        return None

    def _check_offline(self, key: str, old: TransitionRecord | None, new: TransitionRecord) -> None:
        shadow = self.shadow
        if new.epoch != shadow.epoch:
            self.violated(f"FW-11: {key} OFFLINE with epoch {new.epoch}; the current epoch is {shadow.epoch}")
        if (old is None or new.destination is not None) and not shadow.wants_open(new.table_id):
            self.violated(f"DD-06: {key} is assigned to {new.destination}, but its table is removed or disabled")
        bar = None if new.destination is None else shadow.bars.get(new.destination.uuid)
        if bar is not None and new.destination is not None and new.destination.start_code != bar.start_code:
            self.violated(f"X10: {key} is assigned to {new.destination}, which is fenced and must get no regions")
        if old is None and shadow.is_alive(shadow.home(new)):
            self.violated(f"RF-03: {key} OFFLINE while the replica is open on {shadow.home(new)}, which is alive")
        if old is not None and old.state is RegionState.CLOSING and shadow.is_alive(old.source):
            self.violated(f"X1: {key} forced from CLOSING to OFFLINE while its source {old.source} is alive")
        if old is not None and old.state is RegionState.OPENED and shadow.is_alive(old.destination):
            self.violated(f"X5: {key} forced from OPENED to OFFLINE while {old.destination} is alive")

    def _check_delete(self, key: str, old: TransitionRecord, changes: list[tuple[str, str, bytes | None]]) -> None:
        shadow = self.shadow
        region = self._region_in(changes, old)
        if region is not None and region.is_replaced and old.state in (RegionState.OFFLINE, RegionState.CLOSED):
            return  # DD-03, X11; the check of the region's own change requires the successors in the same write
        if old.state is RegionState.OPENED and shadow.home(old) == old.destination:
            return
        is_gone = old.region_id not in shadow.regions
        if old.state in (RegionState.OFFLINE, RegionState.CLOSED) and (
            is_gone or not shadow.wants_region(old.region_id)
        ):
            return
        alive = [record.incarnation for record in shadow.servers.values()]
        holders = {place.incarnation for one in shadow.regions.values() for place in one.replicas if place.incarnation}
        if not is_cluster_startup(holders, shadow.transitions.values(), alive):
            reason = "X3" if old.state in (RegionState.OFFLINE, RegionState.CLOSED) else "RT-24, RT-25"
            self.violated(f"{reason}: {key} {old.state} deleted outside a cluster startup")

    # --- the catalog --------------------------------------------------------------------------------------------------

    def _check_region(
        self, actor: Actor, rest: str, data: bytes | None, changes: list[tuple[str, str, bytes | None]]
    ) -> None:
        table_id, _, region_id = rest.partition("/")
        old = self.shadow.regions.get(region_id)
        if data is None:
            table = self.shadow.tables.get(table_id)
            if table is not None and table.state is not TableState.REMOVED:
                self.violated(f"region {region_id} of table {table.name} was deleted")
            return
        if old is None:
            if actor is Actor.SERVER:
                self.violated(f"a server created region {region_id}")
            return
        new = decode_region(data, rest)
        if new.state is not old.state:
            self._check_life(actor, old, new, changes)
        if (new.start_key, new.end_key) != (old.start_key, old.end_key):
            self.violated(f"the range of region {region_id} changed")
        steps = {one.partition("/")[2]: value for kind, one, value in changes if kind == "unassigned"}
        for number in {one.replica for one in (*old.replicas, *new.replicas)}:
            was, now = old.location(number).incarnation, new.location(number).incarnation
            key = replica_key(region_id, number)
            # DD-06: the records of a removed table may still name servers that have died.
            table = self.shadow.tables.get(table_id)
            is_removed = table is not None and table.state is TableState.REMOVED
            is_left = (is_removed or new.is_replaced) and now is None and not self.shadow.is_alive(was)
            if was != now and key not in steps and not is_left:
                self.violated(
                    f"RT-29: {key} moved from {was} to {now} in the catalog without a write of its transition"
                )
            if was != now and now is None and self.shadow.is_alive(was):
                transition = self.shadow.transitions.get(key)
                if transition is None or transition.state not in (RegionState.OFFLINE, RegionState.CLOSED):
                    self.violated(f"{key} is no longer recorded on {was}, which has not closed it")

    def _check_life(
        self, actor: Actor, old: RegionRecord, new: RegionRecord, changes: list[tuple[str, str, bytes | None]]
    ) -> None:
        """Check a region's step (DD-01 to DD-06): REPLACED requires a successor of the same range in the same write."""
        steps = {
            (TabletState.PREPARING, TabletState.RUNNING): Actor.SERVER,
            (TabletState.PREPARING, TabletState.REPLACED): Actor.MASTER,
            (TabletState.RUNNING, TabletState.REPLACED): Actor.MASTER,
            (TabletState.PREPARING, TabletState.DELETED): Actor.MASTER,
            (TabletState.RUNNING, TabletState.DELETED): Actor.MASTER,
            (TabletState.DELETED, TabletState.RUNNING): Actor.MASTER,
            (TabletState.DELETED, TabletState.PREPARING): Actor.MASTER,
        }
        step = f"{old.region_id} {old.state} -> {new.state}"
        if steps.get((old.state, new.state)) is not actor:
            self.violated(f"DD-05: {step} by a {actor.value}")
        self.count(f"region {old.state} -> {new.state}")
        if new.state is TabletState.REPLACED and old.state is TabletState.RUNNING:
            self._check_resharding(old, changes)
        elif new.state is TabletState.REPLACED:
            written = [decode_region(value, one) for kind, one, value in changes if kind == "regions" and value]
            successors = [one for one in written if one.replaces == old.region_id]
            if [(one.start_key, one.end_key) for one in successors] != [(old.start_key, old.end_key)]:
                self.violated(f"DD-03: {step}, replaced by {[one.region_id for one in successors]}")
            if any(one.start_code is not None for one in old.replicas):
                self.violated(f"DD-03: {step}, but the region was open on {old.replicas}")
        table = self.shadow.tables.get(old.table_id)
        if new.state is TabletState.DELETED and (table is None or table.state is not TableState.REMOVED):
            self.violated(f"DD-06: {step}, but its table is not deleted")

    def _check_resharding(self, old: RegionRecord, changes: list[tuple[str, str, bytes | None]]) -> None:
        """Check that no server has a region that is split or merged, and that its daughters name it (X11)."""
        written = [decode_region(value, one) for kind, one, value in changes if kind == "regions" and value]
        daughters = [one for one in written if old.region_id in [parent.region_id for parent in one.parents]]
        if not daughters:
            self.violated(f"X11: {old.region_id} was replaced, and no region names it as its parent")
        location = old.location(0)
        for one in daughters:
            token = next(parent.token for parent in one.parents if parent.region_id == old.region_id)
            if token != location.token:
                self.violated(f"X11: {one.region_id} takes over {old.region_id} as of {token}, not {location.token}")
        transition = self.shadow.transitions.get(replica_key(old.region_id, 0))
        is_free = transition is None or transition.state in (RegionState.OFFLINE, RegionState.CLOSED)
        if not is_free or (transition is None and self.shadow.is_alive(location.incarnation)):
            self.violated(f"X11: {old.region_id} was replaced while it was open on {location.incarnation}")
        self.count("regions split" if len(daughters) > 1 else "regions merged")

    def regions_removed(self, region_ids: Sequence[str]) -> None:
        """Check that a server removes only files of regions that are replaced by regions which have been open."""
        for region_id in region_ids:
            region = self.shadow.regions.get(region_id)
            if region is not None and not region.is_replaced:
                self.violated(f"X11: the files of {region_id} are removed, which is {region.state.value}")
            for one in self.shadow.regions.values():
                is_heir = region_id in [parent.region_id for parent in one.parents]
                if is_heir and not one.is_replaced and not one.location(0).was_opened:
                    self.violated(f"X11: the files of {region_id} are removed before {one.region_id} was open")
        self.count("parents removed")

    def _check_step_of_resharding(self, old: ReshardingRecord | None, data: bytes | None, region_id: str) -> None:
        """Check a step of a split or merge against the table of steps (X11)."""
        before = None if old is None else old.state
        after = None if data is None else decode_resharding(data, region_id).state
        if (before, after) not in {(one.before, one.after) for one in RESHARDING_STEPS}:
            self.violated(f"X11: the resharding of {region_id} went from {before} to {after}")
        self.has_resharded = True
        if before is ReshardingState.CLOSING and after is ReshardingState.CLEANING and old is not None:
            self.count("merges" if old.is_merge else "splits")

    def _check_table(self, table_id: str, data: bytes | None, changes: list[tuple[str, str, bytes | None]]) -> None:
        """Check that a table is written together with all its regions and that they cover the key space (OC-01,
        OC-08)."""
        if data is None:
            return
        new = decode_table(data, table_id)
        known_table = self.shadow.tables.get(table_id)
        if known_table is not None:
            self._check_table_step(known_table, new)
            return
        written = [
            decode_region(value, one)
            for kind, one, value in changes
            if kind == "regions" and value is not None and one.startswith(f"{table_id}/")
        ]
        known = [one for one in self.shadow.regions.values() if one.table_id == table_id]
        self._check_cover(new, known + written)

    def _check_table_step(self, old: TableRecord, new: TableRecord) -> None:
        """Check the changes of one write to a table (DD-06, DD-07)."""
        if old.state is TableState.REMOVED and new.state is not TableState.REMOVED:
            if not old.finished_ms or old.purging_ms or old.purged_ms:
                self.violated(f"DD-06: table {old.name} was restored although it is not closed or its purge has begun")
            self.count("tables restored")
        if old.purging_ms and not new.purging_ms:
            self.violated(f"DD-06: the purge of table {old.name} was canceled")
        if new.purging_ms and not old.purging_ms and not (old.finished_ms and old.purge_at_ms):
            self.violated(f"DD-06: the purge of table {old.name} began before the table was closed and a time was set")
        if new.purged_ms and not old.purged_ms:
            self.count("tables purged")
        if new.schema_version not in (old.schema_version, old.schema_version + 1):
            self.violated(f"DD-07: schema version of {old.name} from {old.schema_version} to {new.schema_version}")
        if new.schema_version > old.schema_version and new.state is not TableState.ALTERING:
            self.violated(f"DD-07: the schema of {old.name} changed while the table is {new.state}")
        if old.state is TableState.ALTERING and new.state is TableState.RUNNING:
            self.count("alterations finished")

    def _check_cover(self, table: TableRecord, regions: list[RegionRecord]) -> None:
        regions = [one for one in regions if not one.is_replaced]
        regions.sort(key=lambda one: one.start_key)
        if len(regions) != table.regions:
            self.violated(f"table {table.name} has {len(regions)} of its {table.regions} regions")
        try:
            check_ranges(regions)
        except ValueError as error:
            self.violated(f"table {table.name} does not cover the key space: {error}")

    # --- the copy of the store ----------------------------------------------------------------------------------------

    def _remember(self, kind: str, rest: str, data: bytes | None, outcome: CommandOutcome) -> None:
        shadow = self.shadow
        if kind == "unassigned":
            _put(shadow.transitions, rest.partition("/")[2], data, lambda raw: decode_transition(raw, rest))
        elif kind == "regions":
            _put(shadow.regions, rest.partition("/")[2], data, lambda raw: decode_region(raw, rest))
        elif kind == "tables":
            _put(shadow.tables, rest, data, lambda raw: decode_table(raw, rest))
        elif kind == "servers":
            _put(shadow.servers, rest, data, lambda raw: decode_server(raw, rest))
            if data is not None:
                record = shadow.servers[rest]
                self.uuids[record.host] = record.uuid
                self.count("registrations")
        elif kind == "plans":
            _put(shadow.plans, rest, data, lambda raw: decode_plan(raw, rest))
        elif kind == "barred":
            _put(shadow.bars, rest, data, lambda raw: decode_bar(raw, rest))
        elif kind == "reshardings":
            self._check_step_of_resharding(shadow.reshardings.get(rest), data, rest)
            _put(shadow.reshardings, rest, data, lambda raw: decode_resharding(raw, rest))
        elif kind == "draining":
            (shadow.draining.discard if data is None else shadow.draining.add)(rest)
        elif kind == "names":
            if data is None:
                shadow.names.pop(rest, None)
            else:
                shadow.names[rest] = data.decode()
        elif kind == "active":
            if data is None:
                # A master that lost /active to an operator, and not by its session's end, may have sent the epoch
                # already.
                if self.hosts.get(outcome.session_id) == OPERATOR:
                    shadow.vacated_sessions.add(shadow.active_session)
                shadow.active_session = 0
            elif decode_active(data).epoch == 0:
                shadow.active_session = outcome.session_id

    def rows_removed(self, table_id: str) -> None:
        """Check that a server removes only the rows of a table that is being purged."""
        table = self.shadow.tables.get(table_id)
        if table is None or table.state is not TableState.REMOVED:
            self.violated(f"DD-06: rows of table {table_id} are removed, but the table is not deleted")
        elif not table.purging_ms:
            self.violated(f"DD-06: rows of table {table.name} are removed, but the table may still be restored")
        self.count("rows removed")

    def check_all(self) -> None:
        """Check at the end that no region is lost, every table is complete, and the history equals the log."""
        self.history.check_all()
        self.counts["steps recorded"] = self.history.steps
        for table_id, table in self.shadow.tables.items():
            if table.state is not TableState.REMOVED:
                self._check_cover(table, [one for one in self.shadow.regions.values() if one.table_id == table_id])


def _put(into: dict[str, T], key: str, data: bytes | None, decode: Callable[[bytes], T]) -> None:
    if data is None:
        into.pop(key, None)
    else:
        into[key] = decode(data)
