"""Held snapshots: the rows of one moment while rows change; their ends; the limits of their number and time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from coord.rpc.wire import Code, RpcError
from regionserver.kv import held as held_module
from regionserver.kv.files import Environments, RegionFile
from regionserver.kv.held import HELD_IDLE_S, SNAPSHOT_GONE, HeldRows, HeldSnapshots, read_page
from regionserver.kv.messages import RowsPoint
from regionserver.kv.packing import checksum, pack_row, unpack_rows
from regionserver.kv.snapshot import RowSnapshot
from tests.unit.regionserver.kv.test_files import closed, opened, put

KEYS: Final = [f"k{number:02d}" for number in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "region"


def hold(file: RegionFile) -> HeldRows:
    with file.reading() as snapshot:
        return snapshot.hold()


def pages(held: HeldRows, bytes_max: int) -> list[dict[str, bytes]]:
    """Return the rows of all pages."""
    found, start = [], b""
    while True:
        packed, start = held.page(start, bytes_max)
        found.append({key.decode(): value for key, value in unpack_rows(packed)})
        if not start:
            return found


def code_of(held: HeldRows) -> str:
    with pytest.raises(RpcError) as caught:
        held.page(b"", 100)
    return caught.value.code


@given(st.lists(st.tuples(st.binary(max_size=600), st.binary(max_size=50))))
def test_packed_rows_are_unpacked(rows: list[tuple[bytes, bytes]]) -> None:
    packed = b"".join(pack_row(key, value) for key, value in rows)
    assert list(unpack_rows(packed)) == rows
    assert checksum(packed) == checksum(bytes(packed))


def test_rows_that_are_cut_off_are_rejected() -> None:
    packed = pack_row(b"key", b"value")
    for length in range(1, len(packed)):
        with pytest.raises(ValueError, match="the rows end within"):
            list(unpack_rows(packed[:length]))


def test_all_pages_show_one_moment(folder: Path) -> None:
    file = opened(folder)
    put(file, **dict.fromkeys(KEYS, "old"))
    held = hold(file)
    first, start = held.page(b"", 60)
    put(file, **dict.fromkeys(KEYS, "new"), a="before", z="after")
    file.write([(b"k10", None)], lambda: None)
    rest, last = held.page(start, 1 << 20)
    assert dict(unpack_rows(first + rest)) == {key.encode(): b"old" for key in KEYS}
    assert (bool(start), last) == (True, b"")
    held.end()
    assert len(pages(hold(file), 60)) > 3
    file._end_held()
    closed(file)


def test_a_snapshot_has_every_row_of_an_acknowledged_write(folder: Path) -> None:
    file = opened(folder)
    for number, key in enumerate(KEYS):
        put(file, **{key: str(number)})
        held = hold(file)
        assert sorted(pages(held, 1 << 20)[0]) == KEYS[: number + 1]
        held.end()
    closed(file)


def test_a_region_without_a_file_has_no_rows(folder: Path) -> None:
    file = opened(folder)
    held = hold(file)
    assert (held.page(b"", 100), held.point) == ((b"", b""), RowsPoint())
    closed(file)


def test_closing_a_region_ends_its_snapshots_and_waits_for_none(folder: Path) -> None:
    file = opened(folder)
    put(file, a="1")
    held = hold(file)
    closed(file)
    assert code_of(held) == SNAPSHOT_GONE


def test_a_map_that_grows_ends_the_snapshots(folder: Path) -> None:
    """LMDB must have no transaction then."""
    file = opened(folder, map_bytes=64 * 1024)
    put(file, a="1")
    held = hold(file)
    for number in range(10):
        put(file, **{f"b{number}": "x" * 20_000})
    assert code_of(held) == SNAPSHOT_GONE
    closed(file)


def test_an_environment_with_a_snapshot_is_not_closed_for_others(folder: Path, tmp_path: Path) -> None:
    environments = Environments(1)
    file, other = opened(folder), opened(tmp_path / "other")
    file._environments = other._environments = environments
    put(file, a="1")
    held = hold(file)
    put(other, a="1")
    assert pages(held, 100) == [{"a": b"1"}]
    held.end()
    assert file.close_if_idle()
    closed(file)
    closed(other)


def test_a_damaged_row_is_no_page(folder: Path) -> None:
    file = opened(folder)
    put(file, a="1")
    with file.reading() as snapshot:
        held = snapshot.hold()
    env = file._env
    with env.begin(write=True) as transaction:
        transaction.put(b"b", b"12345")
    with pytest.raises(RpcError) as caught, file.reading() as snapshot:
        read_page(snapshot, None, b"", None)
    assert caught.value.code == "damaged"
    held.end()
    file._end_held()
    closed(file)


def test_a_region_that_has_not_changed_is_not_read(folder: Path) -> None:
    """The next transaction changes the point, even one that writes the same value. A file that is opened again has
    its former point."""
    file = opened(folder)
    put(file, a="1")
    with file.reading() as snapshot:
        first = read_page(snapshot, None, b"", None).page
    closed(file)
    file = opened(folder, 6)
    with file.reading() as snapshot:
        again = read_page(snapshot, None, b"", first.point).page
    assert (again.is_same, again.rows, again.point) == (True, b"", first.point)
    put(file, a="1")
    with file.reading() as snapshot:
        changed = read_page(snapshot, None, b"", first.point).page
    assert (changed.is_same, dict(unpack_rows(changed.rows))) == (False, {b"a": b"1"})
    assert file._held == set(), "a snapshot was not ended"
    closed(file)


def test_points_of_different_storage_are_never_the_same() -> None:
    tablet = RowsPoint("", 0, 1, 5, 0, 0, bytes(16))
    assert tablet.has_same_rows(RowsPoint("", 0, 2, 9, 0, 0, bytes(16)))
    assert not tablet.has_same_rows(RowsPoint("", 0, 1, 5, 1, 2, bytes(16)))
    assert not tablet.has_same_rows(RowsPoint())
    assert not RowsPoint().has_same_rows(tablet)
    assert not RowsPoint("rows-5.mdb", 3).has_same_rows(RowsPoint("rows-6.mdb", 3))


class Rows:
    """Rows that can be held."""

    def hold(self) -> HeldRows:
        return HeldRows(None, RowsPoint())


def test_rows_that_cannot_be_held_are_rejected() -> None:
    with pytest.raises(RpcError) as caught:
        RowSnapshot(None).hold()
    assert caught.value.code == Code.UNSUPPORTED


def kept(snapshots: HeldSnapshots) -> tuple[str, HeldRows]:
    held = HeldRows(None, RowsPoint())
    page = held_module.SnapshotPage(RowsPoint(), next_key=b"k")
    return snapshots.settle("", held_module.PageRead(held, page)).held, held


def test_a_server_keeps_a_limited_number_of_snapshots() -> None:
    snapshots = HeldSnapshots(Clock(), 2)
    names = [kept(snapshots)[0] for _ in range(2)]
    assert snapshots.find(names[0]) is not None
    with pytest.raises(RpcError) as caught:
        snapshots.find("")
    assert caught.value.code == Code.BUSY
    snapshots.end(names[0])
    assert snapshots.find("") is None
    snapshots.end_all()
    assert len(snapshots) == 0


def test_a_snapshot_that_nobody_reads_ends() -> None:
    clock = Clock()
    snapshots = HeldSnapshots(clock)
    name, held = kept(snapshots)
    clock.advance(HELD_IDLE_S - 1)
    assert snapshots.find(name) is held
    clock.advance(HELD_IDLE_S - 1)
    assert snapshots.find(name) is held
    clock.advance(HELD_IDLE_S)
    with pytest.raises(RpcError) as caught:
        snapshots.find(name)
    assert (caught.value.code, code_of(held)) == (SNAPSHOT_GONE, SNAPSHOT_GONE)
    assert clock.getDelayedCalls() == []


def test_the_last_page_ends_the_snapshot() -> None:
    clock = Clock()
    snapshots = HeldSnapshots(clock)
    name, held = kept(snapshots)
    page = snapshots.settle(name, read_page(Rows(), held, b"k", None))
    assert (page.held, page.next_key, len(snapshots), clock.getDelayedCalls()) == ("", b"", 0, [])
    assert code_of(held) == SNAPSHOT_GONE
