"""Applies committed records of tables and regions to the cluster state. Pure.

The records are in the store already, so they are always applied: regions before their table. Then the assigner decides
about every replica that the change may affect (OC-07, OC-09).
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
from regions.cluster.state import ClusterState, location_in
from regions.records.model import ReplicaLocation, TransitionRecord


class CatalogUpdates:
    """Changes of tables and regions. No table is finished before `has_begun` is set."""

    def __init__(
        self,
        world: ClusterState,
        causes: Causes,
        alters: AlterBook,
        replacements: Replacements,
        orders: OrderBook,
        emit: Callable[[fx.Effect], None],
        decide: Callable[[Replica, int], None],
        reread_ms: int,
    ) -> None:
        """`decide` takes a replica and the time, and decides the next action for the replica."""
        self.checks = TableChecks(world, emit, decide, self.finish, reread_ms)
        self._world = world
        self._causes = causes
        self._alters = alters
        self._replacements = replacements
        self._orders = orders
        self._emit = emit
        self._decide = decide
        self.has_begun = False

    def validate(self) -> None:
        """Raise AssertionError if an invariant of table checks, rollouts or replacements does not hold."""
        self.checks.validate()
        self._alters.validate()
        self._replacements.validate()

    def table_seen(self, event: ev.TableSeen, now_ms: int) -> None:
        """Apply a table's record. Only a change of the intent or the kind affects the table's replicas."""
        known = self._world.tables.get(event.record.table_id)
        former_version = -1 if known is None else known.record.schema_version
        was_wanted = None if known is None else known.wants_open
        former_kind = "" if known is None else known.record.kind
        table = self._world.put_table(event.record, event.version, event.regions)
        self._alters.table_seen(table, former_version)
        if table.wants_open != was_wanted or table.record.kind != former_kind:
            table.origin = self._causes.current()
            for region in table.regions.values():
                self._decide_all(region, now_ms)
        self.checks.table_seen(table, now_ms)
        self.finish(table)

    def finish(self, table: Table) -> None:
        """Finish a removed table whose regions are all closed (DD-06)."""
        if not self.has_begun or not self._world.is_finished(table):
            return
        if table.record.finished_ms:
            self._world.forget_table(table)
        elif not table.is_finishing:
            table.is_finishing = True
            regions = [(one.record, one.version) for one in table.regions.values()]
            self._emit(fx.FinishTable(table.record, table.version, regions))

    def finish_answered(self, event: ev.FinishAnswered) -> None:
        """Drop a table whose end is in the store.

        If the write was rejected, keep the table. A server that counted as dead may have begun to close a region, and
        that transition must be completed.
        """
        table = self._world.tables.get(event.table_id)
        if table is None:
            return
        table.is_finishing = False
        if event.is_done:
            self._world.forget_table(table)

    def region_seen(self, event: ev.RegionSeen, now_ms: int) -> None:
        """Apply a region's record that was read."""
        known = self._world.regions.get(event.record.region_id)
        if known is not None and event.record.is_replaced:
            for replica in known.replicas:
                self._orders.drop(replica)
        region = self._world.put_region(event.record, event.version)
        if region is not None:
            self._decide_all(region, now_ms)

    def opened(self, replica: Replica, record: TransitionRecord) -> None:
        """Apply the location that a server has written in the multi with OPENED.

        The multi raised the version of the region's record by one, unless the record was read after the multi.
        """
        home = record.destination
        if home is None:
            return
        assert record.replica == replica.number, f"a transition of replica {record.replica} for {replica.key}"
        replica.schema_version = -1
        region = replica.region
        home = self._world.shared(home)
        # Must equal, field for field, the location that the server wrote. After a lost reply the server recognizes its
        # own open by comparing locations.
        location = ReplicaLocation(replica.number, home.uuid, home.start_code, record.since_ms, record.token)
        if location_in(region.record, replica.number) == location:
            return
        region.record = region.record.with_location(location)
        assert location_in(region.record, replica.number) == location, f"the location of {replica.key} is another"
        region.version += 1

    def region_replaced(self, event: ev.RegionReplaced, now_ms: int) -> None:
        """Drop a replaced region and add the new one, after the write has committed (DD-03, OC-07)."""
        former = self._world.regions.get(event.region_id)
        if former is not None:
            for replica in former.replicas:
                self._orders.drop(replica)
            self._world.drop_region(former)
            assert event.region_id not in self._world.regions, f"region {event.region_id} was replaced, and stays"
            self._emit(fx.Note(f"could not be created, replaced by region {event.fresh.region_id}", event.region_id))
        fresh = self._world.put_region(event.fresh, event.version)
        if fresh is not None:
            self._decide_all(fresh, now_ms)

    def parents_replaced(self, event: ev.ParentsReplaced, now_ms: int) -> None:
        """Drop the parents of a split or merge and add the daughters, after the write has committed (X11, OC-07).

        The daughters are opened on the server that had the first parent, if it is eligible.
        """
        last_uuid: str | None = None
        for region_id in event.record.parents:
            former = self._world.regions.get(region_id)
            if former is None:
                continue
            for replica in former.replicas:
                last_uuid = last_uuid or replica.last_uuid
                self._orders.drop(replica)
            self._world.drop_region(former)
            assert region_id not in self._world.regions, f"parent {region_id} was replaced, and stays"
        for daughter in event.record.daughters:
            region = self._world.put_region(daughter, 0)
            for replica in () if region is None else region.replicas:
                replica.last_uuid = replica.last_uuid or last_uuid
        self.table_seen(ev.TableSeen(event.table, event.table_version), now_ms)
        for daughter in event.record.daughters:
            region = self._world.regions.get(daughter.region_id)
            if region is not None:
                self._decide_all(region, now_ms)

    def replace_failed(self, region_id: str) -> None:
        """Keep the region after a refused replacement, and read its record and transitions again (DD-04)."""
        region = self._world.regions.get(region_id)
        if region is None:
            return
        self._replacements.failed(region)
        self._emit(fx.ReadRegion(region.record.table_id, region_id))
        for replica in region.replicas:
            self._world.must_read(replica)
            self._emit(fx.ReadTransition(region_id, replica.number))

    def _decide_all(self, region: Region, now_ms: int) -> None:
        for replica in region.replicas:
            self._decide(replica, now_ms)
