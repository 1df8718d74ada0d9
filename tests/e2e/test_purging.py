"""Deleted tables with real processes: undelete brings the rows back, the purge removes their files (DD-06)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import TableRecord, TableState
from regions.records.znodes import decode_table
from regionserver.client import connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import eventually

PATIENCE_S = 60.0
SPLITS = ["g", "p"]


def table_of(cluster: Cluster, table_id: str) -> TableRecord:
    return decode_table(cluster.zk.get(cluster.layout.table(table_id))[0])


def delete(cluster: Cluster, name: str) -> str:
    """Delete the table, and wait until all of it is closed. Return its id."""
    made = cluster.ask_active(ms.DeleteTable(name, wait_ms=60_000), ms.Tables).tables[0].table
    eventually(lambda: table_of(cluster, made.table_id).finished_ms > 0, what="all of it is closed")
    return made.table_id


def test_rows_come_back_with_their_table(tmp_path: Path) -> None:
    """The table is deleted, another table takes its name, and the master changes: the rows are there under a new
    name."""
    with (
        own_store(tmp_path / "store", 1) as hosts,
        cluster_on(hosts, tmp_path / "cluster", servers=2) as cluster,
        connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client,
    ):
        active = cluster.wait_active()
        cluster.wait_servers(2)
        cluster.ask_active(ms.CreateTable("rows", SPLITS, wait_ms=60_000), ms.Tables)
        for key in ("a", "h", "z"):
            client.put("rows", key, key.encode())
        table_id = delete(cluster, "rows")
        cluster.ask_active(ms.CreateTable("rows", wait_ms=60_000), ms.Tables)
        active.kill()
        cluster.wait_active()
        with pytest.raises(RpcError, match="give another name with --as"):
            cluster.ask_active(ms.UndeleteTable(table_id), ms.Tables)
        cluster.ask_active(ms.UndeleteTable(table_id, "again", 60_000, "undelete-1"), ms.Tables)
        cluster.wait_settled()
        assert [client.get("again", key) for key in ("a", "h", "z")] == [b"a", b"h", b"z"]
        cluster.check_owners()


def test_rows_are_removed_after_their_time(tmp_path: Path) -> None:
    """B12: the rows of the other table stay; afterwards the deleted table cannot be restored."""
    options = ["--purge-after", "1s"]
    with (
        own_store(tmp_path / "store", 1) as hosts,
        cluster_on(hosts, tmp_path / "cluster", masters=1, servers=2, options=options) as cluster,
        connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client,
    ):
        cluster.wait_active()
        cluster.wait_servers(2)
        for name in ("rows", "kept"):
            cluster.ask_active(ms.CreateTable(name, SPLITS, wait_ms=60_000), ms.Tables)
            client.put(name, "a", b"value")
        table_id = delete(cluster, "rows")
        eventually(lambda: table_of(cluster, table_id).purged_ms > 0, what="its rows are removed")
        shared = tmp_path / "cluster" / "shared"
        assert not (shared / "regions" / table_id).exists()
        assert list((shared / "purged").iterdir()) == []
        with pytest.raises(RpcError, match="have been removed"):
            cluster.ask_active(ms.UndeleteTable(table_id), ms.Tables)
        assert table_of(cluster, table_id).state is TableState.REMOVED
        assert client.get("kept", "a") == b"value"
