"""What the assigner does when records of tables and regions change: taken over, looked at anew, replaced, finished.
Pure.

Records change by writes that have committed. Nothing decides against them: the cluster state takes them
over, regions before their table, and then every replica that they may concern is settled (OC-07, OC-09).
"""

from __future__ import annotations

from collections.abc import Callable

from regions.assign.catalog.checks import TableChecks
from regions.assign.catalog.schema_rollout import AlterBook
from regions.assign.orders import OrderBook
from regions.assign.replacement import Replacements
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes
from regions.cluster.entities import Region, Replica, Table
from regions.cluster.state import ClusterState
from regions.records.model import ReplicaLocation, TransitionRecord


class Catalogue:
    """Tables and regions of one assigner. Nothing is finished before `has_begun` is set."""

    def __init__(
        self,
        world: ClusterState,
        causes: Causes,
        alters: AlterBook,
        replacements: Replacements,
        orders: OrderBook,
        emit: Callable[[fx.Effect], None],
        settle: Callable[[Replica, int], None],
        reread_ms: int,
    ) -> None:
        """`settle` decides about a replica."""
        self.checks = TableChecks(world, emit, settle, self.finish, reread_ms)
        self._world = world
        self._causes = causes
        self._alters = alters
        self._replacements = replacements
        self._orders = orders
        self._emit = emit
        self._settle = settle
        self.has_begun = False

    def validate(self) -> None:
        """Raise AssertionError if an invariant of what belongs to tables and regions does not hold."""
        self.checks.validate()
        self._alters.validate()
        self._replacements.validate()

    def table_seen(self, event: ev.TableSeen, now_ms: int) -> None:
        """A table is new or has another record. Only a change of what is wanted, or of its kind, concerns
        its replicas."""
        known = self._world.tables.get(event.record.table_id)
        former_version = -1 if known is None else known.record.schema_version
        was_wanted = None if known is None else known.wants_open
        former_kind = "" if known is None else known.record.kind
        table = self._world.put_table(event.record, event.version, event.regions)
        self._alters.table_seen(table, former_version)
        if table.wants_open != was_wanted or table.record.kind != former_kind:
            table.origin = self._causes.current()
            for region in table.regions.values():
                self._settle_all(region, now_ms)
        self.checks.table_seen(table, now_ms)
        self.finish(table)

    def finish(self, table: Table) -> None:
        """A removed table whose regions are all closed needs no master any more (DD-06)."""
        if not self.has_begun or not self._world.is_finished(table):
            return
        if table.record.finished_ms:
            self._world.forget_table(table)
        elif not table.is_finishing:
            table.is_finishing = True
            regions = [(one.record, one.version) for one in table.regions.values()]
            self._emit(fx.FinishTable(table.record, table.version, regions))

    def finish_answered(self, event: ev.FinishAnswered) -> None:
        """It is forgotten once that is written, and not before: a server that counted as dead may have begun to close a
        region, which then has to be brought to its end."""
        table = self._world.tables.get(event.table_id)
        if table is None:
            return
        table.is_finishing = False
        if event.is_done:
            self._world.forget_table(table)

    def region_seen(self, event: ev.RegionSeen, now_ms: int) -> None:
        """A region's record was read."""
        region = self._world.put_region(event.record, event.version)
        if region is not None:
            self._settle_all(region, now_ms)

    def opened(self, replica: Replica, record: TransitionRecord) -> None:
        """Take over the location that a server wrote in the multi with OPENED. That raised the region's version by one,
        unless the region was read after that."""
        home = record.destination
        if home is None:
            return
        replica.schema_version = -1
        region = replica.region
        # Must equal, field for field, what the server wrote: the server recognizes its own open by the location.
        location = ReplicaLocation(replica.number, home.uuid, home.start_code, record.since_ms, record.token)
        if region.record.location(replica.number) == location:
            return
        region.record = region.record.with_location(location)
        region.version += 1

    def region_replaced(self, event: ev.RegionReplaced, now_ms: int) -> None:
        """DD-03: the former region is forgotten, the new one begins its life; OC-07: now, and not before."""
        former = self._world.regions.get(event.region_id)
        if former is not None:
            for replica in former.replicas:
                self._orders.drop(replica)
            self._world.drop_region(former)
            self._emit(fx.Note(f"could not be created; {event.fresh.region_id} takes its place", event.region_id))
        fresh = self._world.put_region(event.fresh, event.version)
        if fresh is not None:
            self._settle_all(fresh, now_ms)

    def replace_failed(self, region_id: str) -> None:
        """DD-04: the region is tried on, from what is in the store by now."""
        region = self._world.regions.get(region_id)
        if region is None:
            return
        self._replacements.failed(region)
        self._emit(fx.ReadRegion(region.record.table_id, region_id))
        for replica in region.replicas:
            self._world.must_read(replica)
            self._emit(fx.ReadTransition(region_id, replica.number))

    def _settle_all(self, region: Region, now_ms: int) -> None:
        for replica in region.replicas:
            self._settle(replica, now_ms)
