"""A store of one node whose log is damaged where a snapshot has everything that the log had."""

from __future__ import annotations

import contextlib
import shutil
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


def test_a_store_without_its_directory_acknowledges_nothing(tmp_path: Path) -> None:
    """Finding 19: the files of a deleted directory can be written for ever, and nobody ever reads them again. The node
    notices, says so, and ends; until then it may have acknowledged the writes of a moment."""
    with running_store(tmp_path) as store, honest_client(store) as honest:
        honest.is_served()
        _remove(tmp_path / "data")
        eventually(lambda: store.process.poll() is not None, what="the end of the node")
        assert store.process.returncode != 0
        assert "Traceback" not in store.log()
        assert str(tmp_path / "data") in store.log()


def _remove(directory: Path) -> None:
    """Delete a directory in which a node may be making files."""
    while directory.exists():
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
