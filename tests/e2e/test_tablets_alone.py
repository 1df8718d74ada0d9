"""Region servers without a shared directory: they host tables of tablets; shared tables go elsewhere or wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regionserver.client import connect
from tests.e2e.clusters import run_rk
from tests.e2e.masters import SESSION_MS, Process, cluster_on, own_store
from tests.support.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e


def test_a_cluster_of_tablets_needs_no_shared_directory(tmp_path: Path) -> None:
    with (
        own_store(tmp_path / "store", 1) as hosts,
        cluster_on(hosts, tmp_path / "c", masters=1, servers=3, has_shared=False) as cluster,
    ):
        store = ["--store", hosts]
        cluster.wait_active()
        cluster.wait_servers(3)
        refused = run_rk("table", "create", "shared", *store)
        assert refused.returncode == 1, refused
        assert "no live server of the default group has one: create the table with --replicas 3" in refused.stderr
        made = run_rk("table", "create", "orders", "--replicas", "3", "--split", "m", *store)
        assert made.returncode == 0, made
        with connect(hosts) as client:
            client.put("orders", "a", b"1")
            client.put("orders", "z", b"2")
            assert dict(client.scan("orders")) == {"a": b"1", "z": b"2"}
        listed = json.loads(run_rk("server", "list", "--json", *store).stdout)
        assert [one["server"]["kind"] for one in listed] == ["tablets/1"] * 3
        checked = run_rk("fsck", *store)
        assert checked.returncode == 0, checked

        # A fourth server has a directory: the regions of a shared table go there, and wait for that server while it is
        # gone.
        [port] = free_ports(1)
        words = ["server", "run", *store, "--data-dir", str(tmp_path / "s4"), "--shared-dir", str(tmp_path / "shared")]
        words += ["--address", f"127.0.0.1:{port}", "--session-timeout-ms", str(SESSION_MS)]
        fourth = Process(words, ("127.0.0.1", port), tmp_path / "s4.log")
        try:
            fourth.start()
            cluster.wait_servers(4)
            made = run_rk("table", "create", "shared", "--split", "m", *store)
            assert made.returncode == 0, made
            with connect(hosts) as client:
                client.put("shared", "a", b"1")
                assert client.get("shared", "a") == b"1"
        finally:
            fourth.kill()
        cluster.wait_servers(3)
        checked = eventually(lambda: run_rk("fsck", *store), what="the check ends")
        assert "have no --shared-dir: its regions wait for a server with one" in checked.stdout
        why = run_rk("why", "shared:a", *store)
        assert "it has no shared directory and takes tablets alone" in why.stdout, why


def test_a_server_without_a_directory_and_without_tablets_does_not_start(tmp_path: Path) -> None:
    words = ["server", "run", "--store", "127.0.0.1:1", "--data-dir", str(tmp_path / "s"), "--address", "127.0.0.1:0"]
    for more in (["--no-tablets"], ["--opener", "directories"]):
        ended = run_rk(*words, *more)
        assert ended.returncode == 1, ended
        assert "a server without --shared-dir takes tablets alone" in ended.stderr
        assert "Traceback" not in ended.stderr
