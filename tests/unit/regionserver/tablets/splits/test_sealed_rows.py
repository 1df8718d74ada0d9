"""The rows of a sealed tablet: no write changes them, no client reads them, and daughters are made from them.

Edits that were tried, and that a test here notices: entries behind the seal are carried out; a sealed tablet is read;
the clock moves behind the seal; the horizon stays when the seal is taken away; a daughter begins without a horizon.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

from coord.raft.messages import NORMAL, Entry
from coord.rpc.wire import RpcError
from regionserver.errors import RegionError
from regionserver.kv.messages import WRONG_REGION
from regionserver.tablets.commands import (
    DONE,
    KEPT_MS,
    SEALED,
    SUPERSEDED,
    TOO_OLD,
    KvCommand,
    PutRow,
    SealCommand,
    WriteOutcome,
    decode,
    encode,
    encode_seal,
)
from regionserver.tablets.rows.environment import steady_path
from regionserver.tablets.rows.errors import RowsFailed, RowsFull
from regionserver.tablets.rows.sealed.sealing import outcome_now
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.splits.heirs import Daughter, SealedRows, make_heir, split_key
from regionserver.tablets.values.seals import Seal
from tests.support.power_cut import UnsyncedDisk
from tests.unit.regionserver.tablets.rows.rows_file import content, entry, opened

ALL = [("", "m"), ("m", "")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t1.1.mdb"


def sealing(index: int, name: str = "one", epoch: int = 1, *, is_wanted: bool = True, time_ms: int = 5000) -> Entry:
    return Entry(1, index, NORMAL, encode_seal(SealCommand(name, epoch, time_ms, is_wanted)))


def daughter(path: Path, name: str, start: str, end: str) -> Daughter:
    return Daughter(str(path.with_name(f"{name}.1.mdb")), Identity(name, 1), start, end)


def heir(path: Path, name: str) -> TabletRows:
    return TabletRows.open(
        str(path.with_name(f"{name}.1.mdb")), Identity(name, 1), "b", (3, 1), disk=UnsyncedDisk()
    )  # fmt: skip


def test_a_sealed_tablet_carries_out_no_write_and_answers_no_read(path: Path) -> None:
    rows = opened(path)
    # One round: the write behind the seal is in the same transaction as the one before it would be.
    outcomes = rows.apply([entry(1, PutRow("a", b"1")), sealing(2), entry(3, PutRow("a", b"2")), sealing(4)])
    assert outcomes == [
        WriteOutcome(DONE, 1, 1),
        WriteOutcome(DONE, 1, 2),
        WriteOutcome(SEALED, 1, 3),
        WriteOutcome(DONE, 1, 2),
    ]
    assert rows.seal == Seal("one", 1, 1, 2)
    assert (rows.state.rows, rows.applied) == (1, (4, 1))
    with rows.reading() as snapshot:
        for read in (lambda: snapshot.values([b"a"]), lambda: snapshot.page(b"", b"", 9), snapshot.hold):
            with pytest.raises(RpcError, match="was split") as refused:
                read()
            assert refused.value.code == WRONG_REGION
    rows.close()


def test_a_late_copy_of_an_earlier_write_gets_its_answer(path: Path) -> None:
    rows = opened(path)
    first = rows.apply([entry(1, PutRow("a", b"1"))])[0]
    rows.apply([sealing(2)])
    before = rows.state
    assert rows.apply([entry(3, PutRow("a", b"1"), number=1)]) == [first]
    assert rows.state == RowsState(3, 1, *(getattr(before, one) for one in RowsState.__struct_fields__[2:]))
    rows.close()


def test_a_late_copy_of_a_write_whose_result_is_gone_is_not_said_to_be_undone(path: Path) -> None:
    """The client would write again. Tried: with SEALED for every write without a kept result both fail."""
    rows = opened(path)
    gone = Entry(1, 1, NORMAL, encode(KvCommand("w", 1, 0, 1001, 1001, [PutRow("a", b"1")])))
    later = Entry(1, 2, NORMAL, encode(KvCommand("w", 2, 2, 3000, 2000 + KEPT_MS, [PutRow("a", b"2")])))
    rows.apply([gone, later, sealing(3)])
    superseded = entry(4, PutRow("a", b"1"), number=1)
    assert rows.apply([superseded])[0].code == SUPERSEDED
    too_old = entry(5, PutRow("a", b"1"), writer="another", number=1)
    assert rows.apply([too_old])[0].code == TOO_OLD
    rows.close()


def test_what_becomes_of_a_write_is_known_without_its_entry(path: Path) -> None:
    """The outcome of its entry, for copies of earlier writes and for new ones. Tried: SEALED for every write."""
    rows = opened(path)
    gone = Entry(1, 1, NORMAL, encode(KvCommand("w", 1, 0, 1001, 1001, [PutRow("a", b"1")])))
    kept = Entry(1, 2, NORMAL, encode(KvCommand("w", 2, 2, 3000, 2000 + KEPT_MS, [PutRow("a", b"2")])))
    asked = [kept, gone, entry(3, PutRow("a", b"1"), writer="old", number=1)]
    asked.append(Entry(1, 4, NORMAL, encode(KvCommand("w", 3, 2, 4000, 3000 + KEPT_MS, [PutRow("b", b"3")]))))
    rows.apply([gone, kept])
    assert outcome_now(rows, command_of(kept)) is None
    rows.apply([sealing(3)])
    found = [outcome_now(rows, command_of(one)) for one in asked]
    assert [one and one.code for one in found] == [DONE, SUPERSEDED, TOO_OLD, SEALED]
    assert [one and one.code for one in rows.apply([*asked[:3], asked[3]])] == [DONE, SUPERSEDED, TOO_OLD, SEALED]
    rows.apply([sealing(8, is_wanted=False)])
    assert outcome_now(rows, command_of(asked[3])) is None
    rows.close()


def command_of(one: Entry) -> KvCommand:
    found = decode(one.data)
    assert isinstance(found, KvCommand)
    return found


def test_the_seal_is_there_after_a_restart_and_after_a_power_cut(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), sealing(2)])
    rows.close()
    rows = opened(path, boot="another")
    assert rows.seal == Seal("one", 1, 1, 2)
    assert rows.apply([entry(3, PutRow("a", b"2"))])[0].code == SEALED
    rows.close()


class FailingOnce:
    """An LMDB environment whose next commit reaches the disk, but reports a failure. Later LMDB refuses the
    environment."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *, write: bool = False, **options: Any) -> Any:
        if write and self._has_failed:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC: Update of meta page failed")
        if not write:
            return self._env.begin(**options)
        self._has_failed = True
        return FailingCommit(self._env.begin(write=True, **options))


class FailingCommit:
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self) -> None:
        self._transaction.commit()
        raise lmdb.Error("mdb_txn_commit: No space left on device")


@pytest.mark.parametrize("before", [1, 3], ids=["set", "taken away"])
def test_a_seal_whose_commit_failed_is_applied_again(path: Path, before: int) -> None:
    """Tried: with the seal of the file instead, the clock or the horizon differs from that of the other replicas."""
    whole, failing = opened(path), opened(path.with_name("t1.2.mdb"))
    entries = [entry(1, PutRow("a", b"1")), sealing(2), entry(3, PutRow("a", b"2")), sealing(4, is_wanted=False)]
    last = entries[before : before + 1]
    whole.apply([*entries[:before], *last])
    failing.apply(entries[:before])
    failing._file.env = FailingOnce(failing._file.env)
    for _ in range(2):
        with pytest.raises(RowsFull):
            failing.apply(last)
    failing.apply(last)
    assert (failing.state, failing.seal) == (whole.state, whole.seal)
    whole.close()
    failing.close()


def test_nothing_moves_behind_the_seal(path: Path) -> None:
    """Otherwise two replicas of a daughter, made from parents that have applied more and less, would differ."""
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), sealing(2)])
    clock = rows.state.clock_ms, rows.state.horizon_ms
    rows.apply([sealing(3, time_ms=9000), sealing(4, "two", time_ms=9000), entry(5, PutRow("b", b"1"))])
    assert (rows.state.clock_ms, rows.state.horizon_ms) == clock
    rows.close()


def test_a_seal_is_taken_away(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), sealing(2)])
    assert rows.apply([entry(3, PutRow("a", b"2"))])[0].code == SEALED
    assert rows.apply([sealing(4, is_wanted=False)])[0].code == DONE
    assert content(rows) == {"a": b"1"}
    # The client may have written again, under another number: a late copy of the refused write must not count.
    assert rows.apply([entry(5, PutRow("a", b"2"), number=3)])[0].code == TOO_OLD
    assert rows.apply([entry(6, PutRow("a", b"3"), number=9000)])[0].code == DONE
    assert rows.apply([sealing(7)])[0].code == SUPERSEDED
    assert content(rows) == {"a": b"3"}
    rows.close()


def test_daughters_have_the_rows_of_their_parent(path: Path) -> None:
    rows = opened(path)
    rows.apply(
        [
            entry(1, *(PutRow(f"{letter}{n}", b"%d" % n) for letter in "alz" for n in range(9))),
            entry(2, PutRow("a1", b"1")),
        ]
    )
    rows.apply([sealing(3)])
    for name, (start, end) in zip(("A", "B"), ALL, strict=True):
        make_heir([SealedRows(rows, rows.seal)], daughter(path, name, start, end), "b")
    first, second = heir(path, "A"), heir(path, "B")
    assert {**content(first), **content(second)} == {f"{letter}{n}": b"%d" % n for letter in "alz" for n in range(9)}
    assert set(content(second)) == {f"z{n}" for n in range(9)}
    for one in (first, second):
        assert one.applied == one.point == (3, 1)
        assert not one.seal.is_set
        stored, counted = one.recount()
        assert stored == counted
        assert (one.state.horizon_ms, one.state.clock_ms, one.state.kept) == (5000, 5001, 0)
    assert first.state.rows + second.state.rows == rows.state.rows
    # A write that began before the split: the parent may have carried it out.
    assert first.apply([entry(4, PutRow("a1", b"late"), number=1)])[0].code == TOO_OLD
    assert first.apply([entry(5, PutRow("a1", b"new"), number=9000)])[0].code == DONE
    for one in (first, second, rows):
        one.close()


def test_a_daughter_is_made_again(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), entry(2, PutRow("b", b"1")), sealing(3)])
    made = daughter(path, "A", "", "")
    Path(made.path).write_bytes(b"unfinished")
    Path(steady_path(made.path)).write_bytes(b"unfinished")
    for _ in range(2):
        make_heir([SealedRows(rows, rows.seal)], made, "b")
    one = heir(path, "A")
    assert content(one) == {"a": b"1", "b": b"1"}
    one.close()
    rows.close()


def test_a_daughter_without_rows(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), entry(2, PutRow("a", b"1")), sealing(3)])
    make_heir([SealedRows(rows, rows.seal)], daughter(path, "B", "m", ""), "b")
    one = heir(path, "B")
    assert (content(one), one.applied) == ({}, (3, 1))
    one.close()
    rows.close()


def test_a_damaged_row_makes_no_daughter(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1")), entry(2, PutRow("a", b"1")), sealing(3)])
    with rows.using_file() as file, file.env.begin(write=True, db=file.rows) as transaction:
        transaction.put(b"a", b"\0\0\0\0wrong")
    made = daughter(path, "A", "", "")
    with pytest.raises(RowsFailed, match="damaged"):
        make_heir([SealedRows(rows, rows.seal)], made, "b")
    assert not list(path.parent.glob("A.*"))
    rows.close()


def test_the_key_in_the_middle(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1"))])
    with pytest.raises(RegionError, match="the region has 1 row: a split needs two"):
        split_key(rows)
    rows.apply([entry(2, *(PutRow(f"b{n}", b"x") for n in range(5)))])
    assert split_key(rows) == "b2"
    rows.close()
