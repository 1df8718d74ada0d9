"""N7: a real kazoo client and ours account for every version, across a killed node, an expired session and a restart of
the program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from coord.client.kazoo_watch import KazooWatch
from coord.client.versions import VersionEvent, VersionKind
from tests.support.helpers import PATIENCE_S, eventually
from tests.support.stores import OurStore, our_store

pytestmark = pytest.mark.e2e


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OurStore]:
    """Yield three nodes."""
    with our_store(tmp_path) as running:
        yield running


def client_of(hosts: str, timeout_s: float = 10) -> KazooClient:
    client = KazooClient(hosts, timeout=timeout_s, connection_retry={"max_tries": -1, "max_delay": 0.5})
    client.start(PATIENCE_S)
    return client


class Account:
    """Adds up what a watch reports of one znode."""

    def __init__(self) -> None:
        self.events: list[VersionEvent] = []
        self.total: dict[str, int] = {}
        self.latest: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __call__(self, event: VersionEvent) -> None:
        with self._lock:
            self.events.append(event)
            self.latest[event.path] = event.data
            one = event.missed if event.kind is VersionKind.GAP else event.kind is VersionKind.CHANGED
            assert one is not None, f"nothing here is deleted: {event}"
            self.total[event.path] = self.total.get(event.path, 0) + one


def check_versions(account: Account, path: str) -> None:
    """Each version is there at most once, in order."""
    versions = [one.version for one in account.events if one.path == path and one.kind is not VersionKind.GAP]
    assert versions == sorted(set(versions))


def test_kazoo_accounts_for_every_version_across_failures_and_a_restart(store: OurStore) -> None:
    writer, reader = client_of(store.hosts), client_of(store.hosts, timeout_s=2)
    states: list[str] = []
    reader.add_listener(states.append)
    try:
        writer.create("/s")
        writer.create("/s/a")
        account = Account()
        watch = KazooWatch(reader, "/s", account, children=True)
        watch.start()
        eventually(lambda: len(account.events) == 2, what="both znodes found")

        for number in range(20):
            writer.set("/s/a", b"%d" % number)
        eventually(lambda: account.latest["/s/a"] == b"19", what="the latest version")
        assert account.total["/s/a"] == 20

        # The node of the reader dies: kazoo drops the watches and connects to another node.
        port = reader._connection._socket.getpeername()[1]
        node = next(i for i, address in enumerate(store.addresses) if address.endswith(f":{port}"))
        store.kill(node)
        for number in range(20, 30):
            eventually(lambda number=number: writer.retry(writer.set, "/s/a", b"%d" % number), what="a write")
        eventually(lambda: account.latest["/s/a"] == b"29", what="the version after the node's death")
        written = writer.get("/s/a")[1].version
        assert account.total["/s/a"] == written
        store.start(node)
        store.wait_ready()

        # The session ends: another client takes it over and closes it, unless the reader is faster.
        gone = len(states)

        def ended() -> bool:
            thief = KazooClient(store.hosts, client_id=reader.client_id)
            thief.start(PATIENCE_S)
            thief.stop()
            thief.close()
            return KazooState.LOST in states[gone:]

        eventually(ended, what="the end of the session")
        writer.retry(writer.set, "/s/a", b"after")
        writer.retry(writer.create, "/s/b", b"new")
        eventually(lambda: account.latest.get("/s/b") == b"new", what="the new child")
        eventually(lambda: account.latest["/s/a"] == b"after", what="the version after the session's end")
        assert account.total["/s/a"] == writer.get("/s/a")[1].version
        check_versions(account, "/s/a")

        # The program stops, misses three changes and a child that is created and deleted, and continues from its token.
        watch.stop()
        assert watch.error is None
        token = watch.token
        for number in range(3):
            writer.set("/s/a", b"missed %d" % number)
        writer.create("/s/c")
        writer.delete("/s/c")
        resumed = Account()
        again = KazooWatch(reader, "/s", resumed, children=True, token=token)
        again.start()
        eventually(lambda: resumed.latest.get("/s/a") == b"missed 2", what="the changes since the token")
        eventually(lambda: resumed.total.get("/s") == 2, what="the gap of the list")
        assert [(one.kind, one.path, one.missed) for one in resumed.events] == [
            (VersionKind.GAP, "/s/a", 2),
            (VersionKind.CHANGED, "/s/a", 0),
            (VersionKind.GAP, "/s", 2),
        ]
        again.stop()
    finally:
        for client in (writer, reader):
            client.stop()
            client.close()
