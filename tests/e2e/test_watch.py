"""`rk watch` and `rk status` on a real Apache ZooKeeper, with transitions written by hand."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from kazoo.client import KazooClient

from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TableRecord, TransitionRecord
from regions.records.znodes import Layout, encode
from tests.support.helpers import finished, heed_ctrl_c, rk
from tests.support.zookeeper import zookeeper

pytestmark = pytest.mark.e2e

LAYOUT = Layout("/regionkeeper")
SERVER = ServerRecord("5e1f", "127.0.0.1", 4001, 77)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KazooClient]:
    """Yield a ZooKeeper with a cluster of one table with one region, and a client of it."""
    with zookeeper(tmp_path) as server:
        client = KazooClient(hosts=server.hosts)
        client.start(60)
        try:
            for path in LAYOUT.parents():
                client.ensure_path(path)
            client.create(LAYOUT.epoch, b"{}")
            client.create(LAYOUT.table("t1"), encode(TableRecord("t1", "packages")))
            client.create(LAYOUT.region("t1", "r1"), encode(RegionRecord("t1", "r1", "a", "m")), makepath=True)
            client.create(LAYOUT.server(SERVER.uuid), encode(SERVER))
            yield client
        finally:
            client.stop()
            client.close()


@contextlib.contextmanager
def watching(client: KazooClient, *options: str) -> Iterator[IO[str]]:
    """Yield the lines of a ready `rk watch --json`."""
    host, port = client.hosts[0]
    words = rk("watch", "--json", "--store", f"zk://{host}:{port}", *options)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "watching"
        yield process.stdout
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def transition(state: RegionState, **fields: Any) -> bytes:
    """Return the transition of the region to the server."""
    return encode(
        TransitionRecord("r1", "t1", 0, state, destination=Incarnation("5e1f", 77), reason="create table", **fields)
    )


def test_watch_prints_each_transition_with_who_and_why(store: KazooClient) -> None:
    """All states of a region, step by step, in the order in which they happened."""
    path = LAYOUT.transition("r1", 0)
    with watching(store, "--count", "4") as lines:
        found = []
        store.create(path, transition(RegionState.OFFLINE, epoch=3, attempt=1))
        found.append(json.loads(lines.readline()))
        store.set(path, transition(RegionState.OPENING, epoch=3, attempt=1), version=0)
        found.append(json.loads(lines.readline()))
        store.set(path, transition(RegionState.OPENED, epoch=3, attempt=1), version=1)
        found.append(json.loads(lines.readline()))
        store.delete(path, version=2)
        found.append(json.loads(lines.readline()))
    steps = [(line["before"], line["after"], line["actor"]) for line in found]
    assert steps == [
        ("", "OFFLINE", "master"),
        ("OFFLINE", "OPENING", "server"),
        ("OPENING", "OPENED", "server"),
        ("OPENED", "", "master"),
    ]
    assert {(line["table"], line["start_key"], line["end_key"], line["server"]) for line in found} == {
        ("packages", "a", "m", "127.0.0.1:4001")
    }
    assert found[0]["why"] == "create table"
    assert (found[0]["attempt"], found[0]["epoch"], found[0]["missed"]) == (1, 3, 0)


def test_watch_tells_of_servers_and_of_steps_it_did_not_see(store: KazooClient) -> None:
    """Two writes of one transaction cannot be observed separately; the first is reported as inferred."""
    path = LAYOUT.transition("r1", 0)
    with watching(store, "--count", "2") as lines:
        store.delete(LAYOUT.server(SERVER.uuid))
        gone = json.loads(lines.readline())
        assert (gone["event"], gone["address"]) == ("server-down", "127.0.0.1:4001")
        transaction = store.transaction()
        transaction.create(path, transition(RegionState.OFFLINE))
        transaction.set_data(path, transition(RegionState.OPENING))
        transaction.commit()
        found = [json.loads(lines.readline()) for _ in range(2)]
        assert [(line["before"], line["after"], line["inferred"]) for line in found] == [
            ("", "OFFLINE", True),
            ("OFFLINE", "OPENING", False),
        ]


def test_status_without_a_master_still_says_what_it_can(store: KazooClient) -> None:
    """The store and the servers are known; tables are not, and the output says why."""
    host, port = store.hosts[0]
    words = rk("status", "--json", "--store", f"{host}:{port}")
    done = finished(words, 120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["store"][0]["role"] == "standalone"
    assert [server["address"] for server in found["servers"]] == ["127.0.0.1:4001"]
    assert found["servers"][0]["open"] is None  # not 0: no process has reported it
    assert "no master is active" in found["note"]


def test_the_end_of_watching_is_no_lost_connection(store: KazooClient) -> None:
    """Ctrl-C closes the watch's own connection, whose loss is not reported."""
    host, port = store.hosts[0]
    words = rk("watch", "--json", "--store", f"zk://{host}:{port}")
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - sets one handler
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "watching"
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
