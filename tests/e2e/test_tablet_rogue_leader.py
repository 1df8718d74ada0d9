"""Kudu's rogue leader on real processes: a leader's server is stopped, its member moves to another server, and then the
process continues as if it still led. It must not quarantine or delete replicas of the others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from regions import messages as ms
from regionserver.client import connect
from tests.e2e.armed import CALL_S, SLOW_S, Writing, armed_on
from tests.e2e.masters import Process, any_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

TABLE = "rows"
#: A member that is silent for this long may be removed before its successor votes.
DEAD_S = "5"
FOLDERS = ("data", "quarantine", "tablet-meta", "consensus-meta")


def files_of(server: Process) -> list[str]:
    """Return the names of a server's files of tablets; that of rows has the generation of the copy."""
    root = server.log.with_suffix("")
    found = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    return sorted(str(path.relative_to(root)) for path in found if path.suffix != ".steady")


def test_a_leader_that_was_replaced_while_it_stood_still(tmp_path: Path) -> None:
    options = ("--replica-dead-s", DEAD_S)
    with (
        any_store("one", tmp_path / "store") as hosts,
        armed_on(hosts, tmp_path / "cluster", servers=4, server_options=options) as armed,
    ):
        cluster = armed.cluster
        cluster.ask_active(ms.CreateTable(TABLE, [], replication=3, wait_ms=60_000), ms.Tables)
        (tablet,) = cluster.regions()
        armed.wait_healthy(tablet.table_id, 3)
        rogue = eventually(lambda: armed.leader(tablet.region_id), SLOW_S, "a leader")
        assert rogue is not None
        source = cluster.uuid_of(rogue)
        uuids = {cluster.uuid_of(one) for one in cluster.servers}
        (target,) = uuids - {one.uuid for one in tablet.members}
        others = [one for one in cluster.servers if one is not rogue]
        with connect(cluster.hosts, timeout_s=CALL_S) as client, Writing(client, TABLE) as writing:
            writing.wait_for_more()
            rogue.signal(signal.SIGSTOP)
            try:
                writing.wait_for_more()
                cluster.ask_active(ms.MoveTablet(tablet.region_id, target, source), ms.MemberIntent)
                moved = armed.wait_healthy(tablet.table_id, 3)
                assert {one.uuid for one in moved.members} == uuids - {source}
                before = [files_of(one) for one in others]
            finally:
                rogue.signal(signal.SIGCONT)
            cluster.wait_servers(4)
            rows = rogue.log.with_suffix("") / "data"
            eventually(lambda: not list(rows.iterdir()), SLOW_S, "the former member is removed")
            writing.wait_for_more()
            assert [files_of(one) for one in others] == before
        writing.check()
        assert armed.wait_healthy(tablet.table_id, 3).members == moved.members
        armed.check_files()
