"""Brings all replicas of an ALTERING table to the latest schema (DD-07, HB-15). Pure.

An ALTERING table has a set of replicas that are not known to have its latest schema. At first that are all replicas,
also for a new active master. The assigner sends AlterOrders in batches, one batch per server at a time, and repeats
them after a lost reply. Replies and reports of servers remove replicas from the set. A replica that is not open leaves
the set, too, because its OPEN order will carry the version. When the set is empty, the table becomes RUNNING.

The set is not persisted, because sending an AlterOrder twice is harmless (OC-11).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes
from regions.cluster.entities import Replica, Server, Table
from regions.cluster.state import ClusterState
from regions.messages import AlterOrder
from regions.messages.heartbeat import OPEN, ReplicaReport
from regions.records.model import Incarnation, RegionState, TableState
from regions.records.replica_key import replica_key
from regions.transitions.table_states import VISIBLE

#: Period of sending AlterOrders again, after lost replies and to replicas that could not take them.
SCAN_MS: Final = 500


class RolloutState(enum.Enum):
    """State of a replica with regard to the latest schema of its table."""

    CURRENT = "has the latest schema, or will have it when it is opened"
    BEHIND = "open, and has not reported the latest schema"
    UNCERTAIN = "being opened by an order that may name an earlier schema"


class AlterBook:
    """All ALTERING tables, and the AlterOrders in flight."""

    def __init__(
        self,
        world: ClusterState,
        causes: Causes,
        emit: Callable[[fx.Effect], None],
        *,
        batch_max: int,
        pause_max_ms: int,
    ) -> None:
        self._causes = causes
        self._world = world
        self._emit = emit
        self._batch_max = batch_max
        self._pause_max_ms = pause_max_ms
        self.tables: dict[str, Table] = {}
        #: Latest schema version for which FinishAltering was emitted, by table id.
        self._finished: dict[str, int] = {}
        self._batches: dict[int, tuple[Server, list[AlterOrder]]] = {}
        self._next_batch = 1
        #: Batch that a server has not answered yet, by the server's uuid.
        self._awaited: dict[str, int] = {}
        #: Time of the next batch to a server, and its failures in a row, by uuid.
        self._quiet_until: dict[str, tuple[int, int]] = {}
        self._scan_at_ms = 0

    def table_seen(self, table: Table, former_version: int) -> None:
        """Handle a changed table record. `former_version` is its former schema version, -1 for a new table."""
        record = table.record
        if record.state is not TableState.ALTERING:
            table.behind.clear()
            table.altering_since_ms = 0
            self.tables.pop(record.table_id, None)
            self._finished.pop(record.table_id, None)
            return
        if record.table_id in self.tables and former_version == record.schema_version:
            # The record has another version, so a FinishAltering in flight is refused: emit another one.
            self._finished.pop(record.table_id, None)
            self._scan_at_ms = 0
            return
        self.tables[record.table_id] = table
        table.origin = self._causes.current()
        table.behind = {one.key: one for region in table.regions.values() for one in region.replicas}
        self._scan_at_ms = 0

    def version_reported(self, replica: Replica, server: Server, version: int) -> None:
        """Record the schema version that a server has reported for a replica that it has open."""
        if replica.open_on is not server:
            return
        replica.schema_version = max(replica.schema_version, version)
        table = replica.region.table
        if replica.key in table.behind and rollout_state(replica) is RolloutState.CURRENT:
            del table.behind[replica.key]
            if not table.behind:
                self._scan_at_ms = 0

    def reported(self, server: Incarnation, reports: Iterable[ReplicaReport]) -> None:
        """Process reported schema versions (HB-15).

        A replica with an earlier version gets an AlterOrder in any state of its table, because an earlier order may
        have been lost.
        """
        known = self._world.alive(server)
        if known is None:
            return
        for report in reports:
            table = self._world.tables.get(report.table_id)
            if table is None or report.state != OPEN:
                continue
            is_late = report.schema_version < table.record.schema_version and table.record.state in VISIBLE
            if not table.behind and not is_late:
                continue
            replica = self._world.replicas.get(replica_key(report.region_id, report.replica))
            if replica is None or replica.open_on is not known:
                continue
            if table.behind:
                self.version_reported(replica, known, report.schema_version)
            if is_late:
                replica.schema_version = max(replica.schema_version, report.schema_version)
                if rollout_state(replica) is RolloutState.BEHIND:
                    table.behind[replica.key] = replica
                    self.tables[table.record.table_id] = table
                    table.origin = table.origin or self._causes.current()

    def answered(self, event: ev.AltersAnswered, now_ms: int) -> None:
        """Process the reply to a batch. Replicas that the server did not have open follow by their transitions."""
        server, _ = self._batches.pop(event.batch, (None, []))
        if server is None:
            return
        awaited = self._awaited.pop(server.uuid, None)
        assert awaited == event.batch, (
            f"batch {event.batch} is answered, {awaited} is awaited from {server.incarnation}"
        )
        missed = False
        for result in event.results:
            replica = self._world.replicas.get(replica_key(result.region_id, result.replica))
            missed = missed or result.schema_version < 0
            if replica is not None and result.schema_version >= 0:
                self.version_reported(replica, server, result.schema_version)
        if missed:
            self._quiet_until[server.uuid] = (now_ms + SCAN_MS, 0)
        else:
            self._quiet_until.pop(server.uuid, None)
        self._scan_at_ms = 0

    def lost(self, batch: int, now_ms: int) -> None:
        """Schedule the server's next batch after a lost reply, with a growing pause."""
        server, _ = self._batches.pop(batch, (None, []))
        if server is None:
            return
        awaited = self._awaited.pop(server.uuid, None)
        assert awaited == batch, f"batch {batch} is lost, {awaited} is awaited from {server.incarnation}"
        _, failures = self._quiet_until.get(server.uuid, (0, 0))
        pause_ms = min(SCAN_MS << min(failures, 10), self._pause_max_ms)
        self._quiet_until[server.uuid] = (now_ms + pause_ms, failures + 1)

    def dispatch(self, effects: list[fx.Effect], now_ms: int) -> None:
        """Append the orders that can be sent now, and FinishAltering for tables whose replicas are all current."""
        if not self.tables or now_ms < self._scan_at_ms:
            return
        self._scan_at_ms = now_ms + SCAN_MS
        to_send: dict[str, list[AlterOrder]] = {}
        for table_id, table in list(self.tables.items()):
            if self._world.tables.get(table_id) is not table:
                del self.tables[table_id]
                continue
            if table.record.state is TableState.ALTERING and not table.altering_since_ms:
                table.altering_since_ms = max(1, now_ms)
            self._scan(table, to_send)
            version = table.record.schema_version
            if not table.behind and table.record.state is not TableState.ALTERING:
                del self.tables[table_id]
            elif not table.behind and self._finished.get(table_id) != version:
                self._finished[table_id] = version
                effects.append(fx.FinishAltering(table_id, version, origin=table.origin))
        for uuid, orders in to_send.items():
            server = self._world.servers[uuid]
            if uuid in self._awaited or self._quiet_until.get(uuid, (0, 0))[0] > now_ms:
                continue
            batch = self._next_batch
            self._next_batch += 1
            self._batches[batch] = (server, orders)
            self._awaited[uuid] = batch
            effects.append(fx.SendAlter(batch, server.record, orders))

    def server_gone(self, uuid: str) -> None:
        """Drop the batch of a server that is gone."""
        batch = self._awaited.pop(uuid, None)
        if batch is not None:
            self._batches.pop(batch, None)
        self._quiet_until.pop(uuid, None)

    def validate(self) -> None:
        """Raise AssertionError if a table's rollout is stuck, or if the awaited batch of a server is unknown."""
        for table_id, table in self._world.tables.items():
            is_due = table.record.state is TableState.ALTERING or bool(table.behind)
            is_known = not is_due or self.tables.get(table_id) is table
            assert is_known, f"table {table.record.name} has {len(table.behind)} replicas behind, and is in no rollout"
        for uuid, batch in self._awaited.items():
            server, _ = self._batches.get(batch, (None, []))
            is_awaited = server is not None and server.uuid == uuid
            assert is_awaited, f"batch {batch} is awaited from server {uuid}, and is unknown"

    def _scan(self, table: Table, to_send: dict[str, list[AlterOrder]]) -> None:
        version = table.record.schema_version
        cause_id = "" if table.origin is None else table.origin.cause_id
        for key, replica in list(table.behind.items()):
            found = rollout_state(replica)
            if found is RolloutState.CURRENT:
                del table.behind[key]
            elif found is RolloutState.BEHIND:
                assert replica.open_on is not None, f"{key} is behind and not open"
                orders = to_send.setdefault(replica.open_on.uuid, [])
                if len(orders) < self._batch_max:
                    orders.append(AlterOrder(replica.region.record.region_id, replica.number, version, cause_id))


def rollout_state(replica: Replica) -> RolloutState:
    """Return how a replica relates to the latest schema of its table.

    Only a replica whose OPEN order was sent with an earlier version can be behind. An order that has not been sent yet
    will carry the latest version, and a replica that is being closed will be opened by a later order.
    """
    version = replica.region.table.record.schema_version
    transition = replica.transition
    if transition is None:
        server = replica.open_on
        if server is None or replica.schema_version >= version:
            return RolloutState.CURRENT
        return RolloutState.UNCERTAIN if server.fencing else RolloutState.BEHIND
    if transition.state in (RegionState.CLOSING, RegionState.CLOSED):
        return RolloutState.CURRENT
    order = replica.order
    if transition.state is RegionState.OFFLINE and (order is None or not order.first_sent_ms):
        return RolloutState.CURRENT
    if transition.state is RegionState.OFFLINE and order is not None and order.schema_version >= version:
        return RolloutState.CURRENT
    return RolloutState.UNCERTAIN
