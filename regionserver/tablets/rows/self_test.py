"""A check at the start of a server: whether this LMDB keeps the pages of a pinned state, and can return to that state.

Steady points depend on how LMDB writes: two meta pages at the beginning of the file, written in turn; pages copied on
write; no page of a pinned state written again. Another version or build may differ. So the server makes a steady point
of a small file, writes more, removes pages written since, and checks that the rows of the steady point return. A server
whose LMDB fails the test must not open tablets.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Final

import lmdb

from coord.raft.messages import NORMAL, Entry
from regionserver.tablets.commands import KvCommand, PutRow, encode
from regionserver.tablets.rows.environment import RowsDisk, steady_path
from regionserver.tablets.rows.errors import RowsError
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows

#: Entries before and after the point. All write the same keys, so pages are freed and used again.
_ENTRIES: Final = 24
_KEYS: Final = 40
#: One in this many of the pages written since the point is lost; the test makes as many attempts.
_LOST_EVERY: Final = 3
_FIRST_BOOT: Final = "first boot"
_SECOND_BOOT: Final = "second boot"


class SelfTestFailed(RowsError):  # noqa: N818 - says what has happened
    """This LMDB does not keep a pinned state. The message describes the difference."""


class _UnsyncedDisk(RowsDisk):
    """A disk that syncs nothing: the test simulates power cuts by restoring old pages itself."""

    def replace(self, path: str, data: bytes) -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(data)

    def sync_name(self, path: str) -> None:
        pass

    def sync(self, env: Any) -> None:
        pass


def self_test(folder: str) -> None:
    """Check the installed LMDB with files in a temporary folder below `folder`. Takes about ten milliseconds.

    Raises:
        SelfTestFailed: steady points do not work with this LMDB.
        OSError: the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="self-test-") as place:
        try:
            _run(place)
        except (RowsError, lmdb.Error, AssertionError) as error:
            version = ".".join(map(str, lmdb.version()))
            raise SelfTestFailed(f"LMDB {version} does not keep steady points: {error}") from error


def _run(place: str) -> None:
    identity, disk = Identity("self-test", 1), _UnsyncedDisk()
    path = f"{place}/self-test.1.mdb"
    rows = TabletRows.open(path, identity, _FIRST_BOOT, (0, 0), disk=disk)
    try:
        for index in range(1, _ENTRIES):
            rows.apply([_entry(index)])
            if index == _ENTRIES // 2:
                rows.steady()  # pages kept by a former point become free after the next one
        rows.steady()
        at_point, expected = _content(path), rows.state
        with open(steady_path(path), "rb") as file:
            steady = file.read()
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        for index in range(_ENTRIES, 2 * _ENTRIES):
            rows.apply([_entry(index)])
        written = _content(path)
    finally:
        rows.abandon()
    if written == at_point:
        raise SelfTestFailed("commits do not reach the file")
    for attempt in range(_LOST_EVERY):
        lost = f"{place}/lost-{attempt}.mdb"
        with open(lost, "wb") as file:
            file.write(_with_lost_pages(at_point, written, page_bytes, attempt))
        with open(steady_path(lost), "wb") as file:
            file.write(steady)
        back = TabletRows.open(lost, identity, _SECOND_BOOT, rows.point, disk=disk)
        try:
            stored, counted = back.recount()
            if not stored == counted == expected:
                raise SelfTestFailed(f"the rows returned at entry {stored.applied_index}, not in the pinned state")
            for index in range(_ENTRIES, 2 * _ENTRIES):
                back.apply([_entry(index)])
            stored, counted = back.recount()
            if not stored == counted == rows.state:
                raise SelfTestFailed("the rows differ after the same entries")
        finally:
            back.abandon()


def _entry(index: int) -> Entry:
    operations = [
        PutRow(f"key {(index * step) % _KEYS}", bytes([index % 256]) * size)
        for step, size in ((1, 100), (3, 1500), (7, 5000))
    ]
    return Entry(1, index, NORMAL, encode(KvCommand("self-test", index, index, index, index, [*operations])))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _with_lost_pages(before: bytes, after: bytes, page_bytes: int, attempt: int) -> bytes:
    """Return `after` with the content of `before` in a third of the pages."""
    image = bytearray(after)
    for number in range(len(after) // page_bytes):
        if number % _LOST_EVERY == attempt:
            at = number * page_bytes
            image[at : at + page_bytes] = before[at : at + page_bytes].ljust(page_bytes, b"\0")
    return bytes(image)
