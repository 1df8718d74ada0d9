"""Telling regions of a new schema, until every one of them follows it (DD-07, HB-15). Pure.

A table that is ALTERING has a set of replicas that are not known to follow its latest schema: all of them at first,
also for a master that has just taken over, which knows nothing. Servers are told in batches, one batch to a server at
a time, and again after each lost answer; what they answer, and what they report by themselves, takes replicas out of
the set. A replica that is nowhere open leaves it as well, for the order to open it carries the version. When the set
is empty the table is RUNNING again. Nothing of this is written down: telling a server twice does no harm (OC-11).
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

#: Servers are gone over so often, for those whose answers were lost and replicas that could not be told.
SCAN_MS: Final = 500


class RolloutState(enum.Enum):
    """How a replica of an ALTERING table fares."""

    FOLLOWS = "follows the latest schema, or will when it is opened"
    TO_BE_TOLD = "open, and has not said that it does"
    UNCERTAIN = "being opened under an order that may name an earlier version"


class AlterBook:
    """All tables that are ALTERING, and the orders on their way."""

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
        self._tables: dict[str, Table] = {}
        #: Schema versions of which it was said that all follow them, by table.
        self._finished: dict[str, int] = {}
        self._batches: dict[int, tuple[Server, list[AlterOrder]]] = {}
        self._next_batch = 1
        #: Servers that are being told, or are to be left alone until that time, by uuid; and failures in a row.
        self._told: dict[str, int] = {}
        self._quiet_until: dict[str, tuple[int, int]] = {}
        self._scan_at_ms = 0

    def table_seen(self, table: Table, former_version: int) -> None:
        """A table's record is another; `former_version` of its schema, -1 for a table that is new here."""
        record = table.record
        if record.state is not TableState.ALTERING:
            table.behind.clear()
            table.altering_since_ms = 0
            self._tables.pop(record.table_id, None)
            self._finished.pop(record.table_id, None)
            return
        if record.table_id in self._tables and former_version == record.schema_version:
            return
        self._tables[record.table_id] = table
        table.origin = self._causes.current()
        table.behind = {one.key: one for region in table.regions.values() for one in region.replicas}
        self._scan_at_ms = 0

    def said(self, replica: Replica, server: Server, version: int) -> None:
        """A server has told which version a replica follows that it has open."""
        if replica.open_on is not server:
            return
        replica.schema_version = max(replica.schema_version, version)
        table = replica.region.table
        if replica.key in table.behind and standing(replica) is RolloutState.FOLLOWS:
            del table.behind[replica.key]
            if not table.behind:
                self._scan_at_ms = 0

    def reported(self, server: Incarnation, reports: Iterable[ReplicaReport]) -> None:
        """A server has reported replicas by itself: those that follow the latest schema are settled (HB-15).

        One that does not is told, whatever state its table is in: this is where a miss would come to light.
        """
        known = self._world.alive(server)
        if known is None:
            return
        for report in reports:
            replica = self._world.replicas.get(report.key)
            if replica is None or report.state != OPEN or replica.open_on is not known:
                continue
            table = replica.region.table
            if table.behind:
                self.said(replica, known, report.schema_version)
            if report.schema_version < table.record.schema_version and table.record.state in VISIBLE:
                replica.schema_version = max(replica.schema_version, report.schema_version)
                if standing(replica) is RolloutState.TO_BE_TOLD:
                    table.behind[replica.key] = replica
                    self._tables[table.record.table_id] = table
                    table.origin = table.origin or self._causes.current()

    def answered(self, event: ev.AltersAnswered, now_ms: int) -> None:
        """A batch was answered; what the server did not have open settles itself by its transition."""
        server, _ = self._batches.pop(event.batch, (None, []))
        if server is None:
            return
        self._told.pop(server.uuid, None)
        missed = False
        for result in event.results:
            replica = self._world.replicas.get(replica_key(result.region_id, result.replica))
            missed = missed or result.schema_version < 0
            if replica is not None and result.schema_version >= 0:
                self.said(replica, server, result.schema_version)
        if missed:
            self._quiet_until[server.uuid] = (now_ms + SCAN_MS, 0)
        else:
            self._quiet_until.pop(server.uuid, None)
        self._scan_at_ms = 0

    def lost(self, batch: int, now_ms: int) -> None:
        """No answer: again, after a pause that grows."""
        server, _ = self._batches.pop(batch, (None, []))
        if server is None:
            return
        self._told.pop(server.uuid, None)
        _, failures = self._quiet_until.get(server.uuid, (0, 0))
        pause_ms = min(SCAN_MS << min(failures, 10), self._pause_max_ms)
        self._quiet_until[server.uuid] = (now_ms + pause_ms, failures + 1)

    def dispatch(self, effects: list[fx.Effect], now_ms: int) -> None:
        """Append the orders that may go out now, and the tables of which all replicas follow."""
        if not self._tables or now_ms < self._scan_at_ms:
            return
        self._scan_at_ms = now_ms + SCAN_MS
        to_tell: dict[str, list[AlterOrder]] = {}
        for table_id, table in list(self._tables.items()):
            if self._world.tables.get(table_id) is not table:
                del self._tables[table_id]
                continue
            if table.record.state is TableState.ALTERING and not table.altering_since_ms:
                table.altering_since_ms = max(1, now_ms)
            self._look_over(table, to_tell)
            version = table.record.schema_version
            if not table.behind and table.record.state is not TableState.ALTERING:
                del self._tables[table_id]
            elif not table.behind and self._finished.get(table_id) != version:
                self._finished[table_id] = version
                effects.append(fx.FinishAltering(table_id, version, origin=table.origin))
        for uuid, orders in to_tell.items():
            server = self._world.servers[uuid]
            if uuid in self._told or self._quiet_until.get(uuid, (0, 0))[0] > now_ms:
                continue
            batch = self._next_batch
            self._next_batch += 1
            self._batches[batch] = (server, orders)
            self._told[uuid] = batch
            effects.append(fx.SendAlter(batch, server.record, orders))

    def not_finished(self, table_id: str) -> None:
        """It was not written that all follow: say so again."""
        self._finished.pop(table_id, None)
        self._scan_at_ms = 0

    def server_gone(self, uuid: str) -> None:
        """Whatever it was being told does not matter any more."""
        batch = self._told.pop(uuid, None)
        if batch is not None:
            self._batches.pop(batch, None)
        self._quiet_until.pop(uuid, None)

    def validate(self) -> None:
        """Raise AssertionError if a table's rollout will not go on, or a server awaits an answer that is not coming."""
        for table_id, table in self._world.tables.items():
            is_due = table.record.state is TableState.ALTERING or bool(table.behind)
            is_known = not is_due or self._tables.get(table_id) is table
            assert is_known, f"table {table.record.name} has {len(table.behind)} replicas behind, and nothing goes on"
        for uuid, batch in self._told.items():
            server, _ = self._batches.get(batch, (None, []))
            is_awaited = server is not None and server.uuid == uuid
            assert is_awaited, f"server {uuid} awaits batch {batch}, which is unknown"

    def _look_over(self, table: Table, to_tell: dict[str, list[AlterOrder]]) -> None:
        version = table.record.schema_version
        cause_id = "" if table.origin is None else table.origin.cause_id
        for key, replica in list(table.behind.items()):
            found = standing(replica)
            if found is RolloutState.FOLLOWS:
                del table.behind[key]
            elif found is RolloutState.TO_BE_TOLD:
                assert replica.open_on is not None, f"{key} is to be told and open nowhere"
                orders = to_tell.setdefault(replica.open_on.uuid, [])
                if len(orders) < self._batch_max:
                    orders.append(AlterOrder(replica.region.record.region_id, replica.number, version, cause_id))


def standing(replica: Replica) -> RolloutState:
    """How a replica stands to the latest schema of its table.

    Only what a server has, or may have been, told to open under an earlier version can be behind: an order that has not
    gone out yet will carry the latest, and what is being closed is opened by another order.
    """
    version = replica.region.table.record.schema_version
    transition = replica.transition
    if transition is None:
        server = replica.open_on
        if server is None or replica.schema_version >= version:
            return RolloutState.FOLLOWS
        return RolloutState.UNCERTAIN if server.fencing else RolloutState.TO_BE_TOLD
    if transition.state in (RegionState.CLOSING, RegionState.CLOSED):
        return RolloutState.FOLLOWS
    order = replica.order
    if transition.state is RegionState.OFFLINE and (order is None or not order.first_sent_ms):
        return RolloutState.FOLLOWS
    if transition.state is RegionState.OFFLINE and order is not None and order.schema_version >= version:
        return RolloutState.FOLLOWS
    return RolloutState.UNCERTAIN
