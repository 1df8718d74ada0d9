"""Backup under writes, restore into a new ensemble, and the tools on the files of stopped nodes."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.helpers import finished, rk
from tests.support.stores import OurStore, our_store

pytestmark = pytest.mark.e2e

ZNODES = 10_000
PER_MULTI = 250


def run_rk(*arguments: object, status: int = 0) -> str:
    """Return the output of one `rk` command, which must end with `status`."""
    done = finished(rk(*map(str, arguments)), 300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr + done.stdout


def load(client: KazooClient) -> None:
    """Create ZNODES znodes below /load: persistent ones with data of various lengths."""
    client.create("/load", b"")
    for group in range(ZNODES // PER_MULTI):
        transaction = client.transaction()
        for number in range(PER_MULTI):
            transaction.create(f"/load/{group:03}-{number:03}", b"%d" % number * (number % 50))
        assert not any(isinstance(result, Exception) for result in transaction.commit())


class Writing:
    """A client that increments /count, one write after the other, until it is stopped."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0
        client.create("/count", b"0")
        client.create("/mark", b"", ephemeral=True)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.count += 1
            self._client.set("/count", b"%d" % self.count)


def tree_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return every znode of a snapshot or backup, with its data and Stat."""
    lines = run_rk("coord", "dump-snapshot", "--path", "/", "--json", path).splitlines()[1:]
    return {found.pop("path"): found for found in map(json.loads, lines)}


def without_ephemerals(tree: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the znodes that a restored ensemble keeps. The root lost children, which its Stat shows."""
    kept = {path: fields for path, fields in tree.items() if fields["kind"] != "ephemeral"}
    kept["/"] = {}
    return kept


def http_backup(address: str, **headers: str) -> int:
    """Return the status of POST /backup."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", "/backup", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def new_ensemble(folder: Path, backup: Path) -> OurStore:
    """Return a store that is not started, with directories made from a backup."""
    store = OurStore(folder, tick_ms=500)
    peers = ",".join(f"{node}={address}" for node, address in enumerate(store.peer_addresses, 1))
    made = folder / "made"
    run_rk("coord", "restore", backup, "--data-dir", made, "--peers", peers)
    for node in (1, 2, 3):
        (made / str(node)).rename(folder / f"node{node}")
    return store


def test_ten_thousand_znodes_backed_up_under_writes_and_restored(tmp_path: Path) -> None:
    """The new ensemble has every znode of the backup and none of the old sessions, and accepts the old clients."""
    backup = tmp_path / "backup"
    with our_store(tmp_path / "old") as old:
        client = KazooClient(old.hosts, timeout=10)
        client.start(60)
        load(client)
        with Writing(client) as writing:
            client.set("/count", b"0")
            before = writing.count
            run_rk("coord", "backup", "--data-dir", tmp_path / "old" / "node2", backup)
            after = writing.count + 1
        seen_by_node = client.last_zxid
        address = json.loads((tmp_path / "old" / "node1" / "admin.json").read_text())["admin"]
        assert http_backup(address) == 401
        assert http_backup(address, Authorization="Bearer " + "0" * 64) == 401
        assert (tmp_path / "old" / "node1" / "admin.json").stat().st_mode & 0o777 == 0o600
        for node in range(3):
            old.kill(node)
        client.stop()
        client.close()
    assert after > before, "nothing was written meanwhile"
    backed_up = tree_of(backup)
    assert len([path for path in backed_up if path.startswith("/load/")]) == ZNODES
    assert before <= int(bytes.fromhex(backed_up["/count"]["data"])) <= after
    assert backed_up["/mark"]["kind"] == "ephemeral"

    new = new_ensemble(tmp_path / "new", backup)
    try:
        for node in range(3):
            new.start(node)
        new.wait_ready()
        again = KazooClient(new.hosts, timeout=10)
        again.last_zxid = seen_by_node  # the value that a client of the old ensemble has
        again.start(60)
        assert len(again.get_children("/load")) == ZNODES
        assert again.get("/load/007-049")[0] == b"49" * 49
        assert again.exists("/mark") is None
        again.set("/count", b"again")
        again.create("/new", b"", ephemeral=True)
        again.stop()
        again.close()
        restored = tmp_path / "restored"
        run_rk("coord", "backup", "--data-dir", tmp_path / "new" / "node3", restored)
    finally:
        new.close()
    changed = ("/count", "/", "/zookeeper/config")
    expected = without_ephemerals(backed_up)
    found = without_ephemerals(tree_of(restored))
    assert {p: f for p, f in found.items() if p not in changed} == {
        p: f for p, f in expected.items() if p not in changed
    }
    verified = run_rk("coord", "verify", *(tmp_path / "new" / f"node{node}" for node in (1, 2, 3)))
    assert verified.count("agree") == 2


def test_verify_refuses_a_running_node_and_compares_killed_ones(tmp_path: Path) -> None:
    """Exit status 2 while the node runs, 0 without a fault, 1 with file and offset of damage."""
    folder = tmp_path / "store"
    with our_store(folder) as store:
        client = KazooClient(store.hosts, timeout=10)
        client.start(60)
        for number in range(50):
            client.create(f"/n{number}", b"x" * 100)
        assert "in use by a running node" in run_rk("coord", "verify", folder / "node1", status=1)
        client.stop()
        client.close()
    directories = [folder / f"node{node}" for node in (1, 2, 3)]
    assert run_rk("coord", "verify", *directories).count("sound") == 3
    log = run_rk("coord", "dump-log", directories[0])
    assert "create /n7 persistent 100 B" in log
    segment = directories[1] / "wal" / "0000000000000001.log"
    content = bytearray(segment.read_bytes())
    content[2000] ^= 0x40
    segment.write_bytes(content)
    told = run_rk("coord", "verify", *directories, status=1)
    assert f"{segment}: record at byte" in told
    assert "DAMAGE" in told
