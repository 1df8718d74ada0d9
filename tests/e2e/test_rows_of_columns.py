"""Rows of columns on real processes: tables are altered while clients write, and servers die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from regions.records.model import TableState
from regions.records.rows import keys
from regions.records.schema import AddColumn, ColumnType, DropColumn, RenameColumn, SchemaStep, parse_column
from regionserver.client import DataError, RegionClient, WrongRow, connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, eventually

pytestmark = pytest.mark.e2e

TABLES = ("shared", "copies")
COLUMNS = [parse_column(one) for one in ("id:int64:key", "worker:string:required", "old:double")]
#: No call takes this long on a machine that is only busy.
CALL_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield three servers with a table in the shared directory and one of tablets, two regions each."""
    split = keys.encode([ColumnType.INT64], [1000])
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path / "cluster", masters=1) as running:
        running.wait_servers(3)
        for name, copies in zip(TABLES, (1, 3), strict=True):
            table = ms.CreateTable(name, [split], replication=copies, columns=COLUMNS, wait_ms=60_000)
            running.ask_active(table, ms.Tables)
        yield running


class Writer:
    """A thread that puts rows of both regions into one table, by the columns that it knows; a client of its own."""

    def __init__(self, hosts: str, table: str) -> None:
        self.table = table
        self.written: list[dict[str, Any]] = []
        self.refused: WrongRow | None = None
        self.error: DataError | None = None
        self._hosts = hosts
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer of {table}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(CALL_S + PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error

    def _run(self) -> None:
        with connect(self._hosts, connect_timeout_s=PATIENCE_S, timeout_s=CALL_S) as client:
            while not self._is_over.is_set():
                number = len(self.written)
                row: dict[str, Any] = {"id": 1000 * (number % 2) + number // 2, "worker": f"w{number}"}
                if self.refused is None:
                    row["old"] = float(number)
                try:
                    client.put_row(self.table, row)
                except WrongRow as error:
                    self.refused = error
                    continue
                except DataError as error:
                    self.error = error
                    return
                self.written.append(row)


def alter(cluster: Cluster, table: str, *steps: SchemaStep) -> None:
    made = cluster.ask_active(ms.AlterTable(table, steps=list(steps), wait_ms=60_000), ms.Tables).tables[0].table
    assert made.state is TableState.RUNNING


def rows_of(client: RegionClient, table: str) -> dict[int, dict[str, Any]]:
    return {int(str(row["id"])): row for row in client.scan_rows(table)}


def test_tables_are_altered_while_old_clients_write(cluster: Cluster) -> None:
    """Every acknowledged row is read under the latest schema, also after all servers were killed. A writer that knows
    the former columns goes on while they exist, and is refused in the words of the new schema afterwards."""
    writers = [Writer(cluster.hosts, table) for table in TABLES]
    for one in writers:
        one.start()
    eventually(lambda: all(len(one.written) > 20 for one in writers), what="rows of the first schema")
    for table in TABLES:
        alter(cluster, table, AddColumn(parse_column("added:int32:required:default=7")))
    counts = [len(one.written) for one in writers]
    eventually(
        lambda: all(len(one.written) > before + 20 for one, before in zip(writers, counts, strict=True)),
        what="rows after the first alteration",
    )
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=CALL_S) as client:
        for table in TABLES:
            alter(cluster, table, DropColumn("old"), AddColumn(parse_column("old:string:default=none")))
            client.put_row(table, {"id": 500, "worker": "me", "old": "text"})
            client.put_row(table, {"id": 5000, "worker": "me", "added": 8})
        eventually(lambda: all(one.refused is not None for one in writers), what="refused writes of the dropped column")
        counts = [len(one.written) for one in writers]
        eventually(
            lambda: all(len(one.written) > before + 20 for one, before in zip(writers, counts, strict=True)),
            what="rows after the second alteration",
        )
        for one in writers:
            one.stop()
            assert "column 'old'" in str(one.refused)
            assert "is no string" in str(one.refused)
        expected = [expected_rows(one) for one in writers]
        for table, rows in zip(TABLES, expected, strict=True):
            assert rows_of(client, table) == rows
        for server in cluster.servers:
            server.kill()
        for server in cluster.servers:
            server.start()
        cluster.wait_servers(3)
        for table, rows in zip(TABLES, expected, strict=True):
            alter(cluster, table, RenameColumn("worker", "writer"))
            renamed = {key: {{"worker": "writer"}.get(name, name): value for name, value in row.items()}
                       for key, row in rows.items()}  # fmt: skip
            eventually(lambda t=table: "writer" in (client.get_row(t, 500) or {}), what="the new name")
            assert rows_of(client, table) == renamed
            with pytest.raises(WrongRow, match="has columns: put rows of columns"):
                client.put(table, "a1", b"bytes")


def expected_rows(writer: Writer) -> dict[int, dict[str, Any]]:
    """Return what a table contains: the column that was dropped has no value, the one with its name its default."""
    rows = {row["id"]: {"id": row["id"], "worker": row["worker"], "added": 7, "old": "none"} for row in writer.written}
    rows[500] = {"id": 500, "worker": "me", "added": 7, "old": "text"}
    rows[5000] = {"id": 5000, "worker": "me", "added": 8, "old": "none"}
    return rows
