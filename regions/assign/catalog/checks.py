"""Repeats writes of transitions that the store refused because their table's record had changed. Pure.

A multi that sets a destination checks the version of the table's record. So no region is assigned after its table was
removed or disabled. The check also fails after any other change of the record, such as an alteration. Then:

    the cluster state has a newer record      repeat the write with its version, or decide again if the region must
                                              be closed now
    the cluster state has no newer record     read the table's record, and hold the write until then
"""

from __future__ import annotations

from collections.abc import Callable

from regions.cluster import effects as fx
from regions.cluster.entities import Replica, Table
from regions.cluster.state import ClusterState
from regions.cluster.work import WriteState


class TableChecks:
    """Refused writes that wait for their table's record. Their replicas are in HELD, which prevents other decisions."""

    def __init__(
        self,
        world: ClusterState,
        emit: Callable[[fx.Effect], None],
        decide: Callable[[Replica, int], None],
        closed: Callable[[Table], None],
        reread_ms: int,
    ) -> None:
        """`decide` decides about a replica. `closed` is called when a table may have no transition left.

        A read of a record is repeated after `reread_ms`.
        """
        self._world = world
        self._emit = emit
        self._decide = decide
        self._closed = closed
        self._reread_ms = reread_ms
        #: Held replicas, by table id and key.
        self._held: dict[str, dict[str, Replica]] = {}
        #: Time of the latest read of the table's record, by table id.
        self._asked_ms: dict[str, int] = {}

    def refused(self, replica: Replica, version: int, now_ms: int) -> None:
        """Handle a refused write that checked `version` of the table's record."""
        table = replica.region.table
        if table.version != version:
            self._repeat(replica, now_ms)
            self._closed(table)
            return
        table_id = table.record.table_id
        self._world.hold_write(replica)
        self._held.setdefault(table_id, {})[replica.key] = replica
        if table_id not in self._asked_ms:
            self._ask(table_id, now_ms)

    def table_seen(self, table: Table, now_ms: int) -> None:
        """Repeat the held writes of a table whose latest record is known."""
        self._asked_ms.pop(table.record.table_id, None)
        for replica in self._held.pop(table.record.table_id, {}).values():
            if self._world.replicas.get(replica.key) is replica:
                self._repeat(replica, now_ms)

    def tick(self, now_ms: int) -> None:
        """Repeat reads of records that have not succeeded."""
        for table_id, asked_ms in list(self._asked_ms.items()):
            if now_ms - asked_ms >= self._reread_ms:
                self._ask(table_id, now_ms)

    def validate(self) -> None:
        """Raise AssertionError if a HELD replica waits for no table, or if the table's record is not being read."""
        for table_id, replicas in self._held.items():
            assert table_id in self._asked_ms, f"writes of table {table_id} are held, and its record is not being read"
            for key, replica in replicas.items():
                is_held = replica.write_state is WriteState.HELD or self._world.replicas.get(key) is not replica
                assert is_held, f"{key} is among the held writes, and is {replica.write_state.name}"
        for key, replica in self._world.replicas.items():
            if replica.write_state is WriteState.HELD:
                is_known = self._held.get(replica.region.table.record.table_id, {}).get(key) is replica
                assert is_known, f"{key} is HELD, and nothing waits for its table's record"

    def _ask(self, table_id: str, now_ms: int) -> None:
        self._asked_ms[table_id] = now_ms
        self._emit(fx.ReadTable(table_id))

    def _repeat(self, replica: Replica, now_ms: int) -> None:
        """Repeat the write with the table's current version, or decide again if the region must stay closed."""
        write, table = replica.write, replica.region.table
        record = None if write is None else write.record
        if write is not None and record is not None and replica.wants_open:
            self._world.repeat_write(replica)
            former = replica.transition
            before = None if former is None else former.state
            check = (table.record.table_id, table.version)
            self._emit(
                fx.WriteOffline(
                    replica.key, record, before, replica.version, write.cause, check, former, origin=replica.origin
                )
            )
            return
        self._world.abandon_write(replica, WriteState.IDLE)
        self._decide(replica, now_ms)
