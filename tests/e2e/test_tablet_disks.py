"""Disks of real `rk server run` processes: a lost log, a full disk, a lost majority, a comparison, a quarantine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from coord.rpc.wire import RpcError
from regionserver.tablets.commands import PutRow
from regionserver.tablets.messages import TabletWrite
from tests.e2e.clusters import run_rk
from tests.e2e.test_region_server_tablets import Cluster, Machine, _now_ms, cluster, master, store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e
__all__ = ["cluster", "master", "store"]

TABLET = "r1"


def uuid_of(machine: Machine) -> str:
    found = json.loads((machine.directory / "instance.json").read_text())["uuid"]
    assert isinstance(found, str)
    return found


def stop(machine: Machine) -> None:
    """Stop a process cleanly, so that the rows are in their files."""
    assert machine.process is not None
    machine.process.terminate()
    machine.process.wait(60)
    machine.kill()


def test_a_server_without_its_log_gets_a_new_identity_by_command(cluster: Cluster) -> None:
    cluster.create()
    cluster.put(TABLET, a="1")
    victim = cluster.machines[2]
    former = uuid_of(victim)
    stop(victim)
    shutil.rmtree(victim.directory / "wals")
    victim.start()
    assert victim.process is not None
    assert victim.process.wait(60) != 0
    told = f"run `rk server new-identity --data-dir {victim.directory}`"
    assert told in victim.log.read_text()
    assert "Traceback" not in victim.log.read_text()
    victim.kill()
    done = run_rk("server", "new-identity", "--data-dir", str(victim.directory), "--yes")
    assert done.returncode == 0, done
    victim.start()
    assert victim.registered().uuid == uuid_of(victim) != former
    assert (victim.directory / f"former-{former[:8]}" / "tablet-meta" / TABLET).exists()
    assert cluster.get(TABLET, "a") == ["1"]
    cluster.put(TABLET, a="2")


def test_a_disk_below_its_reserve_refuses_writes_and_serves_reads(cluster: Cluster) -> None:
    cluster.create()
    cluster.put(TABLET, a="1")
    for machine in cluster.machines:
        machine.kill()
        machine.start("--reserve", str(1 << 30))
        machine.registered()

    def refused() -> bool:
        request = TabletWrite(TABLET, "full", 1, 1, _now_ms(), [PutRow("b", b"2")])
        for machine in cluster.machines:
            try:
                machine.ask(request, 5.0)
            except RpcError as error:
                if "is full" in error.message:
                    return True
        return False

    eventually(refused, what="a write that is refused")
    assert cluster.get(TABLET, "a", "b") == ["1", None]
    for machine in cluster.machines:
        machine.kill()
        machine.start()
        machine.registered()
    cluster.put(TABLET, b="2")


def test_commands_of_an_operator(cluster: Cluster, master: KazooClient, tmp_path: Path) -> None:
    """Members are compared; a lost majority is given up; its replicas' quarantine is purged."""
    cluster.create()
    cluster.put(TABLET, a="1", b="2")
    words = ["--store", cluster.hosts]

    def verified() -> Any:
        found = run_rk("tablet", "verify", TABLET, "--json", *words)
        assert found.returncode == 0, found
        return json.loads(found.stdout)

    shown = eventually(verified, what="equal members")
    assert (shown["verdict"], len(shown["digests"]), len(set(shown["digests"].values()))) == ("equal", 3, 1)
    survivor, *others = cluster.machines
    keep = ["--keep", uuid_of(survivor)]
    refused = run_rk("tablet", "unsafe-change-config", TABLET, *keep, "--yes", *words)
    assert refused.returncode == 1
    assert "refused" in refused.stderr
    for machine in others:
        machine.kill()

    def forced() -> Any:
        found = run_rk("tablet", "unsafe-change-config", TABLET, *keep, "--yes", *words)
        assert found.returncode == 0, found
        return found

    found = eventually(forced, what="a configuration of one member")
    assert "ACKNOWLEDGED WRITES AFTER THAT ENTRY ARE LOST" in found.stderr
    assert cluster.get(TABLET, "a", "b") == ["1", "2"]
    cluster.put(TABLET, a="3")
    compared = run_rk("tablet", "verify", TABLET, *words)
    assert compared.returncode == 0, compared
    assert "all 1 members" in compared.stdout
    folder = survivor.directory / "quarantine" / "old.1"
    folder.mkdir()
    (folder / "rows.mdb").write_bytes(b"x" * 10_000)
    kept = run_rk("tablet", "purge", "old", "--server", uuid_of(survivor), *words)
    assert kept.returncode == 1, kept
    assert folder.exists()
    purged = run_rk("tablet", "purge", "old", "--server", uuid_of(survivor), "--force", "--yes", *words)
    assert purged.returncode == 0, purged
    assert not folder.exists()
