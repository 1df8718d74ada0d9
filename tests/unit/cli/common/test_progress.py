"""Figures of a cluster with shared regions and tablets."""

from __future__ import annotations

import msgspec

from cli.common.progress import with_tablets
from regions.messages import MasterStatus, TableSummary
from regions.records.members import Storage
from regions.records.model import TableIntent, TableRecord

STATUS = msgspec.convert(
    {
        "cluster": "c", "uuid": "m", "role": "active", "epoch": 1, "active": "", "path": "", "servers": 3, "masters": 1,
        "tables": 1, "regions": 4, "replicas": 4, "open": 4, "rit": 0, "parked": 0,
        "phases": [], "plan": None, "problems": [], "uptime_ms": 1,
    },
    MasterStatus,
)  # fmt: skip
SHARED = TableSummary(TableRecord("s", "shared", regions=4), 4, 4, 4, 0, 0)
TABLETS = TableSummary(
    TableRecord("t", "orders", regions=2, replication=3, storage=Storage.TABLET), 2, 6, 6, 0, 0, running=2
)


def test_tablets_at_rest_count_with_their_replicas() -> None:
    found = with_tablets(STATUS, [SHARED, TABLETS])
    assert (found.replicas, found.open, found.rit) == (10, 10, 0)
    assert with_tablets(STATUS, [SHARED]) == STATUS


def test_tablets_that_are_being_created_are_in_transition() -> None:
    """Also before the master knows any of them: a table that was just created is not at rest."""
    unknown = msgspec.structs.replace(TABLETS, regions=0, replicas=0, open=0, running=0)
    assert with_tablets(STATUS, [unknown]).rit == 2
    assert with_tablets(STATUS, [msgspec.structs.replace(TABLETS, running=1)]).rit == 1


def test_a_disabled_table_need_not_be_open() -> None:
    record = msgspec.structs.replace(TABLETS.table, intent=TableIntent.DISABLED)
    assert with_tablets(STATUS, [msgspec.structs.replace(TABLETS, table=record, open=0)]) == STATUS
