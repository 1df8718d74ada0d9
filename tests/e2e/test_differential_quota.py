"""Enforced quotas: the same requests to our store and to Apache ZooKeeper 3.9.5 with enforceQuota=true."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.e2e.test_store_cluster import Cluster
from tests.support.zookeeper import zookeeper

pytestmark = pytest.mark.e2e

BOOK = "/zookeeper/quota/q"
#: (operation, path, data): within a hard limit of 3 znodes and 20 bytes, then beyond it; a soft limit of 2 rejects
#: nothing.
STEPS = (
    ("create", "/q/a", b"12345"),
    ("create", "/q/b", b""),
    ("create", "/q/c", b""),
    ("set", "/q/a", bytes(20)),
    ("set", "/q/a", bytes(21)),
    ("set", "/q/b", b"1"),
    ("delete", "/q/b", b""),
    ("create", "/q/c", b"1"),
    ("create", "/q/c", b""),
    ("create", "/other", bytes(100)),
    ("set", "/q/a", b""),
    ("set", "/q/c", bytes(20)),
    ("get", f"{BOOK}/zookeeper_stats", b""),
)


def _answers(hosts: str) -> list[object]:
    client = KazooClient(hosts)
    client.start(60)
    try:
        client.create("/q", b"")
        client.create(BOOK)
        client.create(f"{BOOK}/zookeeper_limits", b"count=2,bytes=-1=;byteHardLimit=20;countHardLimit=3")
        client.create(f"{BOOK}/zookeeper_stats", b"count=0,bytes=0")
        return [_answer(client, *step) for step in STEPS]
    finally:
        client.stop()
        client.close()


def _answer(client: KazooClient, what: str, path: str, data: bytes) -> object:
    try:
        if what == "get":
            return client.get(path)[0]
        getattr(client, what)(path, *([data] if what != "delete" else []))
    except KazooException as error:
        return type(error).__name__
    return "ok"


def test_quotas_reject_the_same_requests_as_zookeeper(tmp_path: Path) -> None:
    """Limits of znodes and of bytes, soft limits, and the accounted usage at the end."""
    with zookeeper(tmp_path, options={"enforceQuota": "true"}) as theirs:
        wanted = _answers(theirs.hosts)
    ours = Cluster(tmp_path, 1, ("--enforce-quotas",))
    ours.start()
    try:
        ours.leader()
        assert _answers(ours.hosts()) == wanted
    finally:
        ours.kill()
    assert "QuotaExceededError" in wanted
