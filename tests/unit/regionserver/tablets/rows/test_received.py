"""A rows file that arrives in chunks: its rows are counted and hashed page by page, and damage is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from coord.rpc.wire import RpcError
from regionserver.kv.pages import Damaged, Tree
from regionserver.tablets.commands import DeleteRow, Operation, PutRow
from regionserver.tablets.rows import environment
from regionserver.tablets.rows import received as received_module
from regionserver.tablets.rows.environment import ROWS
from regionserver.tablets.rows.errors import RowsFailed
from regionserver.tablets.rows.hot_copy import adopt
from regionserver.tablets.rows.leaf_sums import LeafSums
from regionserver.tablets.rows.received import ReceivedRows
from regionserver.tablets.rows.state import Identity, RowsCount, RowsState
from tests.unit.regionserver.tablets.rows.rows_file import entry, opened

#: Lengths of values: short ones, those that just fit in a page, and long ones with pages of their own.
LENGTHS = (0, 1, 10, 100, 1000, 1990, 2030, 5000, 60_000)


def filled(path: Path, seed: int, lengths: tuple[int, ...] = LENGTHS, entries: int = 60) -> RowsState:
    """Write rows, overwrite and delete some of them, and return the state; the file is closed."""
    chance = random.Random(seed)
    rows = opened(path)
    for index in range(1, entries + 1):
        operations: list[Operation] = []
        for _ in range(30):
            key = f"{'k' * chance.randrange(1, 200)}-{chance.randrange(1000)}"
            value = chance.randbytes(chance.choice(lengths))
            operations.append(PutRow(key, value) if chance.random() < 0.7 else DeleteRow(key))
        rows.apply([entry(index, *operations)])
        if index == entries // 2:
            rows.steady()
    stored, counted = rows.recount()
    assert stored == counted
    rows.close()
    return stored


def summed(path: Path, chunk_bytes: int = 1 << 20) -> RowsCount:
    content = path.read_bytes()
    sums = LeafSums(4096)
    for at in range(0, len(content), chunk_bytes):
        sums.add(content[at : at + chunk_bytes])
    with path.open("rb") as file:
        tree = Tree(file.fileno(), str(path), leaves_apart=ROWS)
        tree.check(lambda: None)
        return sums.total(tree)


def counted(state: RowsState) -> RowsCount:
    return RowsCount(state.rows, state.size, state.digest)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 4096, 10_000, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_sums_are_those_of_the_rows(tmp_path: Path, seed: int, chunk_bytes: int) -> None:
    """For any lengths of rows, free pages, and sizes of chunks."""
    path = tmp_path / "t1.1.mdb"
    state = filled(path, seed)
    assert summed(path, chunk_bytes) == counted(state)


def test_small_rows_alone_and_no_rows_at_all(tmp_path: Path) -> None:
    few = filled(tmp_path / "few.mdb", 1, lengths=(0, 5))
    assert few.rows > 500
    assert summed(tmp_path / "few.mdb") == counted(few)
    rows = opened(tmp_path / "none.mdb")
    rows.apply([entry(1, PutRow("k", b"v")), entry(2, DeleteRow("k"))])
    rows.close()
    assert summed(tmp_path / "none.mdb") == counted(rows.state)
    assert rows.state.rows == 0


@pytest.mark.parametrize("seed", range(2))
def test_each_flipped_byte_of_a_row_is_found(tmp_path: Path, seed: int) -> None:
    """A flipped byte either raises, or lies where no row is: then count, bytes and digest are the same. TC-13."""
    path = tmp_path / "t1.1.mdb"
    state = filled(path, seed, entries=12)
    content = path.read_bytes()
    chance = random.Random(seed)
    outcomes: dict[str, int] = {}
    for _ in range(400):
        at = chance.randrange(8192, len(content))
        changed = bytearray(content)
        changed[at] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            found = summed(path)
        except (Damaged, RpcError) as error:
            outcome = "found" if "damaged" in str(error) else str(error)
        else:
            assert found == counted(state) or found.digest != state.digest, at
            outcome = "outside" if found == counted(state) else "digest"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # Pages that the tree does not have, and free parts of pages, are less than half of such a file.
    assert outcomes["found"] > 100, outcomes
    assert set(outcomes) <= {"found", "digest", "outside"}, outcomes


def test_each_byte_of_a_small_row_counts(tmp_path: Path) -> None:
    """Length, key, value and checksum: a flip of any bit of them is found."""
    path = tmp_path / "t1.1.mdb"
    rows = opened(path)
    rows.apply([entry(1, PutRow("before", b"x"), PutRow("a key", b"the value"), PutRow("zz", b"y"))])
    rows.close()
    content = path.read_bytes()
    # The last commit rewrites the page once more, so the file has several copies of the row.
    places = [at for at in range(len(content)) if content.startswith(b"a keythe value", at)]
    for offset in range(-2, len(b"a keythe value") + 4):
        for bit in range(8):
            changed = bytearray(content)
            for at in places:
                changed[at + offset] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(Damaged):
                summed(path)


def test_the_error_names_the_page_and_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t1.1.mdb"
    rows = opened(path)
    rows.apply([entry(1, PutRow("lost", b"one"), PutRow("found", b"two"))])
    rows.close()
    path.write_bytes(path.read_bytes().replace(b"lostone", b"lostOne"))
    with pytest.raises(Damaged, match=r"t1\.1\.mdb is damaged: page \d+ has a row whose checksum.*'lost'"):
        summed(path)


@pytest.fixture(params=["one thread", "threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receive files as short ones, and as long ones are received."""
    if request.param == "threads":
        monkeypatch.setattr(received_module, "ALONE_BYTES", -1)


def received(path: Path, content: bytes) -> ReceivedRows:
    rows = ReceivedRows(str(path))
    for at in range(0, len(content), 1 << 16):
        chunk = memoryview(content)[at : at + (1 << 16)]
        rows.write(chunk, crc32c(chunk))
    rows.sync()
    return rows


@pytest.mark.usefixtures("threads")
def test_a_received_file_is_written_as_it_was_sent(tmp_path: Path) -> None:
    state = filled(tmp_path / "source.mdb", 5)
    content = (tmp_path / "source.mdb").read_bytes()
    rows = received(tmp_path / "t1.2.mdb", content)
    try:
        assert rows.check(lambda: None) == counted(state)
        assert rows.size == len(content)
    finally:
        rows.close()
    assert (tmp_path / "t1.2.mdb").read_bytes() == content


@pytest.mark.usefixtures("threads")
def test_what_is_read_back_must_be_what_was_received(tmp_path: Path) -> None:
    """A disk that changes a byte, even one that no page of the tree has."""
    filled(tmp_path / "source.mdb", 6)
    content = (tmp_path / "source.mdb").read_bytes()
    path = tmp_path / "t1.2.mdb"
    rows = received(path, content)
    try:
        with path.open("r+b") as file:
            file.seek(70_000)
            file.write(bytes([content[70_000] ^ 1]))
        with pytest.raises(RowsFailed, match=r"t1\.2\.mdb is damaged: bytes 65536 to 131072 are not"):
            rows.check(lambda: None)
    finally:
        rows.close()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 100_000])
def test_what_is_no_file_of_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(RowsFailed, match=r"t1\.2\.mdb"):
        received(tmp_path / "t1.2.mdb", content).check(lambda: None)


@pytest.mark.usefixtures("threads")
def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "source.mdb", 7)
    content = (tmp_path / "source.mdb").read_bytes()
    rows = received(tmp_path / "t1.2.mdb", content[: len(content) // 2])
    try:
        with pytest.raises(RowsFailed, match=r"is truncated|is missing"):
            rows.check(lambda: None)
    finally:
        rows.close()


@pytest.mark.usefixtures("threads")
def test_a_check_of_long_rows_can_be_ended(tmp_path: Path) -> None:
    """Long values are hashed when the file is there, which takes a while; a canceled copy ends meanwhile."""
    filled(tmp_path / "source.mdb", 8, lengths=(5_000,))
    content = (tmp_path / "source.mdb").read_bytes()
    calls: list[int] = []

    def cancels() -> None:
        calls.append(1)
        if len(calls) > len(content) // (1 << 16) + 5:
            raise InterruptedError

    rows = received(tmp_path / "t1.2.mdb", content)
    try:
        with pytest.raises(RowsFailed):
            rows.check(cancels)
    finally:
        rows.close()


def test_rows_that_are_not_those_of_the_stored_digest_are_not_adopted(tmp_path: Path) -> None:
    """A source that has lost a row, or has an old one, with checksums that match."""
    state = filled(tmp_path / "t1.2.mdb", 9)
    found = counted(state)
    path, boot, identity = str(tmp_path / "t1.2.mdb"), "b", Identity("t1", 2)
    (tmp_path / "t1.2.mdb.steady").unlink()  # a file that arrives has none
    lost = found._replace(rows=found.rows - 1)
    with pytest.raises(RowsFailed, match=f"has {lost.rows} rows .* its source has stored {found.rows} rows"):
        adopt(path, identity, 1, boot, lost)
    assert not (tmp_path / "t1.2.mdb.steady").exists()
    filled(tmp_path / "t1.3.mdb", 9)
    assert adopt(str(tmp_path / "t1.3.mdb"), Identity("t1", 3), 1, boot, found) == state


def test_a_short_file_is_durable_before_its_steady_point_and_its_name_on_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sync of the rows, one of the point, one of the folder. Fails if `adopt` makes no point, or `RowsDisk.replace`
    does not sync the folder."""
    state = filled(tmp_path / "source.mdb", 9, lengths=(100, 5_000), entries=10)
    path = tmp_path / "t1.3.mdb"
    done: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done.append(name)
            return real(*arguments)

        return call

    monkeypatch.setattr(environment.RowsDisk, "sync", noted("rows", environment.RowsDisk.sync))
    monkeypatch.setattr(environment, "sync_folder", noted("folder", environment.sync_folder))
    monkeypatch.setattr(os, "fdatasync", noted("point", os.fdatasync))
    monkeypatch.setattr(os, "fsync", noted("file or folder", os.fsync))
    monkeypatch.setattr(os, "rename", noted("point in place", os.rename))
    rows = received(path, (tmp_path / "source.mdb").read_bytes())
    found = rows.check(lambda: None)
    rows.close()
    adopt(str(path), Identity("t1", 3), 1, "b", found)
    assert found == counted(state)
    assert [one for one in done if one != "file or folder"] == ["rows", "point", "point in place", "folder"]
    assert done.count("file or folder") <= 1
