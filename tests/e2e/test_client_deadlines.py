"""Every call of the row client ends by its deadline, whatever happens to the store's nodes (real processes)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regionserver.client import Change, RegionClient, Unavailable, connect
from regionserver.client import store as store_module
from regionserver.kv.messages import KvRead, KvValues
from tests.e2e.masters import Cluster, cluster_on
from tests.e2e.nodes import Nodes, store
from tests.support.helpers import Process

pytestmark = pytest.mark.e2e

#: Delay of a thread on a busy machine beyond a deadline. Without deadlines, calls hung forever.
SLACK_S = 15.0
TABLES = ["known", *(f"new{number}" for number in range(8))]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[Nodes, Cluster]]:
    """Return a cluster with open tables; "known" has a row."""
    with store(folder / "store") as nodes, cluster_on(nodes.hosts, folder, masters=1, servers=1) as cluster:
        for name in TABLES:
            cluster.ask_active(ms.CreateTable(name, wait_ms=60_000), ms.Tables)
        yield nodes, cluster


def node_of(client: RegionClient, nodes: Nodes) -> Process:
    """Return the node to which the client is connected."""
    connection = client.locator._store._client._connection
    return nodes.by_port[connection._socket.getpeername()[1]]


def timed(call: Callable[[], object], deadline_s: float) -> object:
    """Return the call's result or its DataError; the call must end by its deadline."""
    began = time.monotonic()
    try:
        result = call()
    except Unavailable as error:
        result = error
    took_s = time.monotonic() - began
    assert took_s < deadline_s + SLACK_S, f"{took_s:.1f} s for a call of {deadline_s} s: {result!r}"
    return result


def test_a_call_survives_a_frozen_store_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks another node for every kind of call; the frozen node may be the leader. The session is so long
    that kazoo itself would notice the silence only after the deadlines of the calls."""
    monkeypatch.setattr(store_module, "SESSION_TIMEOUT_S", 40.0)
    with running(tmp_path) as (nodes, _), connect(nodes.hosts) as client:
        client.put("known", "a", b"1")
        for name in TABLES[1:4]:
            frozen = node_of(client, nodes)
            os.killpg(frozen.pid, signal.SIGSTOP)
            try:
                assert timed(lambda table=name: client.put(table, "a", b"2", timeout_s=8), 8) is None  # type: ignore[misc]
                assert timed(lambda table=name: client.get(table, "a", timeout_s=8), 8) == b"2"  # type: ignore[misc]
                assert node_of(client, nodes) is not frozen
            finally:
                os.killpg(frozen.pid, signal.SIGCONT)


def test_calls_to_a_frozen_store_end_by_their_deadline(tmp_path: Path) -> None:
    """All nodes accept connections and answer nothing. Every kind of call, connecting and closing end in time."""
    with running(tmp_path) as (nodes, _), connect(nodes.hosts) as client:
        client.put("known", "a", b"1")
        nodes.all(signal.SIGSTOP)
        try:
            _every_call_ends(client)
            refused = timed(lambda: connect(nodes.hosts, connect_timeout_s=2).__enter__(), 2 + 2)
            assert isinstance(refused, Unavailable)
            assert "opened no session within 2 s" in str(refused)
            began = time.monotonic()
            client.locator._store.close()
            assert time.monotonic() - began < 2 + SLACK_S
        finally:
            nodes.all(signal.SIGCONT)


def test_calls_to_a_dead_store_end_by_their_deadline(tmp_path: Path) -> None:
    """The same with nodes that accept no connections. The client is closed at the end of the block."""
    with running(tmp_path) as (nodes, _):
        with connect(nodes.hosts) as client:
            client.put("known", "a", b"1")
            nodes.all(signal.SIGKILL)
            _every_call_ends(client)
            refused = timed(lambda: connect(nodes.hosts, connect_timeout_s=2).__enter__(), 2 + 2)
            assert isinstance(refused, Unavailable)
            began = time.monotonic()
        assert time.monotonic() - began < 2 + SLACK_S


def _every_call_ends(client: RegionClient) -> None:
    """Check calls that must read the region's place, and a call whose place is known: the server serves until its lease
    ends."""

    def ask(table: str) -> object:
        return client.call(table, "a", lambda place, _r, _n: KvRead(place, ["a"]), KvValues, timeout_s=2)

    known = timed(lambda: client.get("known", "a", timeout_s=2), 2)
    assert known == b"1" or isinstance(known, Unavailable)
    for call in (
        lambda: client.get("new0", "a", timeout_s=2),
        lambda: client.put("new1", "a", b"1", timeout_s=2),
        lambda: client.delete("new2", "a", timeout_s=2),
        lambda: client.write("new3", [Change("a", b"1"), Change("b", b"2")], timeout_s=2),
        lambda: list(client.scan("new4", timeout_s=2)),
        lambda: ask("new5"),
    ):
        result = timed(call, 2)
        assert isinstance(result, Unavailable), result
        assert "the store does not answer" in str(result)
        assert not result.may_have_been_done
