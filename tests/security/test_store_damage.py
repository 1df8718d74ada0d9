"""A store of one node whose log is damaged where a snapshot has everything that the log had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.store_node import honest_client, running_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

WRITES = 80


def test_a_flipped_bit_that_a_snapshot_covers_does_not_prevent_the_start(tmp_path: Path) -> None:
    """Finding 24: nothing is missing, so nobody has to restore a backup. The skipped records are named in the log."""
    options = ("--snapshot-entries", "40")
    with running_store(tmp_path, *options) as store, honest_client(store) as honest:
        for number in range(WRITES):
            honest.client.create(f"/n{number:03}", b"a value that is easy to find")
        eventually(lambda: "snapshot at" in store.log().partition("serves clients")[2], what="a snapshot")
    [log] = (tmp_path / "data" / "wal").glob("*")
    content = bytearray(log.read_bytes())
    at = content.index(b"/n003")
    content[at + 2] ^= 1
    log.write_bytes(content)
    (tmp_path / "store.log").unlink()
    with running_store(tmp_path, *options) as store, honest_client(store) as honest:
        found = [name for name in honest.client.get_children("/") if name.startswith("n")]
        assert sorted(found) == [f"n{number:03}" for number in range(WRITES)]
        assert "damaged" in store.log()
