"""A tablet's rows: commands have the effect of a dictionary; rejected files, full disks, deaths."""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coord.raft.messages import CONFIG, LEVEL, NOOP, NORMAL, Entry
from coord.rpc.wire import RpcError
from regionserver.kv.held import SNAPSHOT_GONE
from regionserver.kv.packing import unpack_rows
from regionserver.kv.pages import check_tree
from regionserver.tablets.commands import (
    CONDITION_FAILED,
    DONE,
    NO_COMMAND,
    TABLET_FULL,
    CompareAndSet,
    DeleteRow,
    Operation,
    PutRow,
    WriteOutcome,
)
from regionserver.tablets.rows import steady, tablet_rows
from regionserver.tablets.rows.errors import RowsClosed, RowsFailed, RowsTooNew
from regionserver.tablets.rows.round import Round
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.steady import Unsteady
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.power_cut import UnsyncedDisk
from tests.support.tablet_model import Log, carried_out, random_operations
from tests.unit.regionserver.tablets.rows.rows_file import content, entry, opened, steady_file

ROOT: Final = Path(__file__).resolve().parents[5]

# --- commands ---------------------------------------------------------------------------------------------------------


def test_conditions_are_compared_before_anything_changes(path: Path) -> None:
    rows = opened(path)
    assert rows.apply([entry(1, PutRow("a", b"1"), PutRow("b", b"1"))]) == [WriteOutcome(DONE, 1, 1)]
    swapped = entry(2, PutRow("a", b"2"), CompareAndSet("a", b"3", b"1"), CompareAndSet("c", b"new", None))
    refused = entry(3, PutRow("b", b"no"), CompareAndSet("a", b"4", b"3"), CompareAndSet("c", b"no", None))
    removed = entry(4, CompareAndSet("a", None, b"3"), DeleteRow("nothing"))
    assert rows.apply([swapped, refused, removed]) == [
        WriteOutcome(DONE, 1, 2),
        WriteOutcome(CONDITION_FAILED, 1, 3, 2),
        WriteOutcome(DONE, 1, 4),
    ]
    assert content(rows) == {"b": b"1", "c": b"new"}
    rows.close()


def test_the_last_operation_on_a_key_counts(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1"), DeleteRow("a"), PutRow("b", b"1"), PutRow("b", b"2"))])
    assert content(rows) == {"b": b"2"}
    assert (rows.state.rows, rows.state.size) == (1, 2)
    rows.close()


def test_a_repetition_after_a_restart_changes_nothing(path: Path) -> None:
    """The result is stored with the rows, not in a leader's memory."""
    rows = opened(path)
    first = rows.apply([entry(1, PutRow("a", b"1")), entry(2, PutRow("a", b"2"))])[0]
    rows.close()
    rows = opened(path, boot="another")
    assert rows.apply([entry(3, PutRow("a", b"1"), number=1)]) == [first]
    assert content(rows) == {"a": b"2"}
    rows.close()


def test_a_file_is_made_for_the_first_command(path: Path) -> None:
    """The tablets of a new table have no rows for a while: no file, no descriptors, nothing to close."""
    rows = opened(path)
    leaders_first = [Entry(1, 1, NOOP, b"")]
    assert not rows.is_slow(leaders_first)
    rows.apply(leaders_first)
    assert rows.applied == (1, 1)
    rows.close()
    rows = opened(path)
    assert list(path.parent.iterdir()) == []
    rows.apply(leaders_first)
    assert rows.is_slow([entry(2, PutRow("a", b"1"))])
    rows.apply([entry(2, PutRow("a", b"1"))])
    assert path.exists()
    assert not rows.is_slow([entry(3, PutRow("a", b"2"))])
    rows.close()
    rows = opened(path, boot="another")
    assert content(rows) == {"a": b"1"}
    rows.close()


def test_a_read_and_a_steady_point_make_the_file(tmp_path: Path) -> None:
    read, pointed = tmp_path / "read.1.mdb", tmp_path / "pointed.1.mdb"
    rows = opened(read)
    assert content(rows) == {}
    assert read.exists()
    rows.close()
    rows = opened(pointed)
    rows.apply([Entry(1, 1, NOOP, b"")])
    assert rows.steady() == (1, 1)
    rows.close()
    assert opened(pointed, boot="another").applied == (1, 1)


def test_entries_without_a_command_cost_no_commit(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"1"))])
    rows.steady()
    before = path.read_bytes()
    assert rows.apply([Entry(2, 2, NOOP, b""), Entry(2, 3, CONFIG, b"c"), Entry(2, 4, LEVEL, b"")]) == [
        WriteOutcome(NO_COMMAND, 2, index) for index in (2, 3, 4)
    ]
    assert path.read_bytes() == before
    assert rows.applied == (4, 2)
    assert rows.steady() == (4, 2)  # the floor may pass them
    rows.abandon()
    rows = opened(path, boot="another", floor=(4, 2))
    assert rows.applied == (4, 2)
    rows.close()


def test_a_tablet_has_a_largest_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the same in all replicas, however full their files are. Requests that make the tablet smaller are
    accepted."""
    monkeypatch.setattr(tablet_rows, "Round", functools.partial(Round, bytes_max=100))
    rows = opened(path)
    outcomes = rows.apply(
        [
            entry(1, PutRow("k", bytes(99))),
            entry(2, PutRow("l", b"")),
            entry(3, PutRow("k", bytes(98))),
            entry(4, PutRow("l", b"")),
            entry(5, DeleteRow("k"), PutRow("m", bytes(98))),
        ]
    )
    assert [one.code for one in outcomes] == [DONE, TABLET_FULL, DONE, DONE, DONE]
    assert rows.state.size == 100
    rows.close()


def test_an_entry_that_cannot_be_read_fails_the_tablet(path: Path) -> None:
    """The entry is never skipped, because the other replicas may have carried it out."""
    rows = opened(path)
    with pytest.raises(RowsFailed, match="entry 2 cannot be applied: the payload has format 9"):
        rows.apply([entry(1, PutRow("a", b"1")), Entry(1, 2, NORMAL, b"\x09")])
    with pytest.raises(RowsFailed, match="entry 2"):
        content(rows)
    rows.close()


def test_a_commit_has_bounds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(index, *[PutRow(f"{index} {one}", b"v") for one in range(10)]) for index in range(1, 21)]
    sizes = []
    for name, most in (("ROUND_ENTRIES_MAX", 7), ("ROUND_OPERATIONS_MAX", 50), ("ROUND_BYTES_MAX", 300)):
        with monkeypatch.context() as bounds:
            bounds.setattr(tablet_rows, name, most)
            rows = opened(path.with_name(name))
            assert len(rows.apply(entries)) == 20
            sizes.append(rows._file.env.info()["last_txnid"] - 4)
            rows.close()
    assert sizes[:2] == [3, 4]
    assert sizes[2] > 4


GROUPED = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), groups=GROUPED, repeat=st.floats(0, 0.6))
def test_any_history_leaves_the_rows_of_a_dictionary(
    seed: int, groups: list[int], repeat: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also with repetitions of any earlier write. Replicas that group entries differently have equal digests."""
    folder = tmp_path_factory.mktemp("history")
    rng = random.Random(seed)
    model: dict[str, bytes] = {}
    sent: list[tuple[int, list[Operation], int]] = []
    first: dict[int, int] = {}
    entries, expected = [], []
    for index in range(1, 41):
        if sent and rng.random() < repeat:
            number, operations, code = rng.choice(sent)
        else:
            number, operations = index, random_operations(rng, model, 12)
            after = carried_out(model, operations)
            code = CONDITION_FAILED if after is None else DONE
            model = model if after is None else after
            sent.append((number, operations, code))
        entries.append(entry(index, *operations, number=number))
        expected.append((code, first.setdefault(number, index)))
    found = []
    for replica in range(2):
        rows = opened(folder / f"t1.{replica}.mdb")
        outcomes, sizes = [], iter(groups * 40 if replica else [40])
        while rows.applied[0] < 40:
            start = rows.applied[0]
            outcomes += rows.apply(entries[start : start + next(sizes)])
            if replica and rng.random() < 0.2:
                rows.close()
                rows = opened(folder / f"t1.{replica}.mdb", boot=f"b{start}")
        assert [(one.code, one.index) for one in outcomes] == expected
        assert content(rows) == model
        stored, counted = rows.recount()
        assert stored == counted == rows.state
        found.append(rows.state)
        rows.close()
    assert found[0] == found[1]


def test_the_digest_depends_on_rows_alone(path: Path) -> None:
    puts = [PutRow(f"k{number}", bytes([number])) for number in range(50)]
    digests = set()
    for seed in range(5):
        random.Random(seed).shuffle(puts)
        rows = opened(path.with_name(f"{seed}.mdb"))
        rows.apply([entry(1, PutRow("gone", b"x"), PutRow("k1", b"other"))])
        rows.apply([entry(number + 2, one) for number, one in enumerate(puts)])
        rows.apply([entry(60 - 8, DeleteRow("gone"))])
        digests.add(rows.state.digest)
        rows.close()
    assert len(digests) == 1


def test_reads_see_one_state_while_commits_go_on(path: Path, log: Log) -> None:
    rows = opened(path)
    rows.apply(log.entries[:30])
    with rows.reading() as snapshot:
        rows.apply(log.entries[30:])
        rows.steady()
        page, _ = snapshot.page(b"", b"", 1000)
        assert {row.key: row.value for row in page} == log.models[30]
    with pytest.raises(RpcError, match="nobody"), rows.reading():
        raise RpcError("mine", "nobody's damage")
    assert content(rows) == log.models[-1]
    rows.close()
    with pytest.raises(RowsClosed):
        content(rows)
    with pytest.raises(RowsClosed):
        rows.apply([])


# --- opening ----------------------------------------------------------------------------------------------------------


def test_rows_without_a_steady_point_are_begun_anew(path: Path, log: Log) -> None:
    rows = opened(path)
    rows.apply(log.entries)
    rows.abandon()
    rows = opened(path)
    assert rows.applied == (0, 0)
    rows.abandon()
    with pytest.raises(RowsFailed, match="no steady point, and the log begins after entry 3"):
        opened(path, floor=(3, 1))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def test_files_that_are_no_steady_state_are_refused(path: Path, log: Log) -> None:
    steady_file(path, log)
    rows_file, point = path.read_bytes(), Path(f"{path}.steady").read_bytes()
    decoded = steady.decode(point, "p")

    def refused(says: str, kind: type[Exception] = RowsFailed, **options: Any) -> None:
        with pytest.raises(kind, match=says):
            opened(path, **options)
        path.write_bytes(rows_file)
        Path(f"{path}.steady").write_bytes(point)

    path.unlink()
    refused("is missing")
    refused("ends at entry 60, and the log begins after entry 61", floor=(61, 1))
    Path(f"{path}.steady").write_bytes(flipped(point, 30))
    refused("checksum is wrong")
    Path(f"{path}.steady").write_bytes(point[:10])
    refused("checksum is wrong")
    Path(f"{path}.steady").write_bytes(b"another file")
    refused("is no steady point")
    newer = msgspec.structs.replace(decoded, format=2)
    Path(f"{path}.steady").write_bytes(steady.encode(newer))
    refused("has format 2, this build reads format 1", RowsTooNew)
    Path(f"{path}.steady").write_bytes(steady.encode(msgspec.structs.replace(decoded, tablet="t2")))
    refused("belongs to tablet t2 generation 1, not to tablet t1 generation 1")
    Path(f"{path}.steady").write_bytes(steady.encode(msgspec.structs.replace(decoded, applied_index=59)))
    refused("reset to its steady point at entry 59, and is at entry 60", boot="another")
    path.write_bytes(rows_file[: len(rows_file) // 2])
    refused("is truncated")
    path.write_bytes(b"")
    refused("is truncated")
    path.write_bytes(bytes(len(rows_file)))
    refused("is not a region's file")
    opened(path, boot="another").close()


def test_another_tablets_rows_are_refused(path: Path, log: Log) -> None:
    steady_file(path, log)
    other = Identity("t1", 2)
    point = steady.decode(Path(f"{path}.steady").read_bytes(), "p")
    Path(f"{path}.steady").write_bytes(steady.encode(msgspec.structs.replace(point, generation=2)))
    with pytest.raises(RowsFailed, match="holds tablet t1 generation 1, not tablet t1 generation 2"):
        TabletRows.open(str(path), other, "b", (0, 0), disk=UnsyncedDisk())


def test_flipped_bytes_of_the_steady_point_are_always_found(path: Path, log: Log) -> None:
    steady_file(path, log)
    point = Path(f"{path}.steady").read_bytes()
    rng = random.Random(1)
    for at in [*range(0, len(point), 97), len(point) - 1]:
        with pytest.raises(RowsFailed):
            steady.decode(flipped(point, at), "p")
        with pytest.raises(RowsFailed):
            steady.decode(point[: rng.randrange(len(point))], "p")


def test_a_damaged_row_fails_this_tablet_and_no_other(path: Path) -> None:
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"first value"), PutRow("b", b"second value"))])
    rows.close()
    path.write_bytes(path.read_bytes().replace(b"second value", b"second valuE"))
    rows, other = opened(path), opened(path.with_name("t1.2.mdb"))
    with rows.reading() as snapshot:
        assert snapshot.values([b"a"]) == [b"first value"]
    with pytest.raises(RowsFailed, match="row 'b' is damaged"):
        content(rows)
    with pytest.raises(RowsFailed, match="row 'b' is damaged"):
        rows.apply([entry(2, PutRow("c", b""))])
    other.apply([entry(1, PutRow("c", b""))])
    rows.close()
    other.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_restart_forgets_damage(path: Path, is_killed: bool) -> None:
    """After damage was found, each open reads every row, until all are sound."""
    rows = opened(path)
    rows.apply([entry(1, PutRow("a", b"first value"), PutRow("b", b"second value"))])
    rows.close()
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"second value", b"second valuE"))
    rows = opened(path)
    with pytest.raises(RowsFailed, match="row 'b' is damaged"):
        content(rows)
    if is_killed:
        rows._close_file()  # the process has no time for anything else
    else:
        rows.close()
    for _ in range(3):
        with pytest.raises(RowsFailed, match="row 'b' is damaged"):
            opened(path)
    path.write_bytes(sound)
    opened(path).close()
    assert not Path(f"{path}.used").exists()


def test_a_write_over_a_damaged_row_finds_the_damage(path: Path) -> None:
    """The digest needs the former value."""
    rows = opened(path)
    rows.apply([entry(1, PutRow("b", b"second value"))])
    rows.close()
    path.write_bytes(path.read_bytes().replace(b"second value", b"second valuE"))
    rows = opened(path)
    with pytest.raises(RowsFailed, match="row 'b' is damaged"):
        rows.apply([entry(2, DeleteRow("b"))])
    rows.close()


_SERVE = """
import os, signal, sys
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.round import Round
from regionserver.tablets.rows.tablet_rows import TabletRows
rows = TabletRows.open(sys.argv[1], Identity("t1", 1), "b", (0, 0))
with rows.reading() as snapshot:
    snapshot.page(b"", b"", 1000)
print("read", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def served(path: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode
    return done.stdout, done.stderr


def test_a_file_that_ends_its_process_is_checked_before_the_third_use(path: Path, log: Log) -> None:
    """Page by page, without a map; a clean close resets the count of deaths."""
    steady_file(path, log)
    for _ in range(2):
        assert served(path) == ("read\n", "")
    data = bytearray(path.read_bytes())
    meta = max((data[at + 16 : at + 168] for at in (0, 4096)), key=lambda one: int.from_bytes(one[128:136], "little"))
    root = int.from_bytes(meta[112:120], "little")
    assert 2 <= root < len(data) // 4096
    data[root * 4096 + 10] = 0x55
    path.write_bytes(data)
    with pytest.raises(RowsFailed, match=f"page {root} is not a page of the tree"):
        opened(path)


def test_kill_9_loses_nothing_that_was_applied(path: Path) -> None:
    """The process dies with commits after its steady point; the next one finds all of them, and the lock is free."""
    script = """
import os, signal, sys
from regionserver.tablets.commands import PutRow
from tests.unit.regionserver.tablets.rows.rows_file import entry
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.round import Round
from regionserver.tablets.rows.tablet_rows import TabletRows
rows = TabletRows.open(sys.argv[1], Identity("t1", 1), "b", (0, 0))
rows.apply([entry(1, PutRow("a", b"1"))])
rows.steady()
for index in range(2, 50):
    rows.apply([entry(index, PutRow(f"k{index % 7}", b"%d" % index))])
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "ready\n"), done.stderr
    rows = opened(path)
    assert rows.applied == (49, 1)
    assert rows.point == (1, 1)
    rows.apply([entry(50, PutRow("z", b"z"))])
    assert rows.point == (49, 1), "a point comes before the first commit after a death"
    assert rows._file.env.info()["num_readers"] <= 3, "pins of the dead process are gone"
    rows.close()
    check_tree(str(path))


# --- when a point is due ----------------------------------------------------------------------------------------------


def test_a_point_is_due_after_so_many_bytes_or_seconds() -> None:
    unsteady = Unsteady()
    assert not unsteady.is_due(0.0)
    assert not unsteady.is_due(1000.0)
    unsteady.note(1)
    assert not unsteady.is_due(1000.0)
    assert not unsteady.is_due(1000.0 + steady.STEADY_AFTER_S - 0.1)
    assert unsteady.is_due(1000.0 + steady.STEADY_AFTER_S)
    unsteady.covered(1)
    assert not unsteady.is_due(2000.0)
    unsteady.note(steady.STEADY_BYTES - 1)
    assert not unsteady.is_due(2000.0)
    unsteady.note(1)
    assert unsteady.is_due(2000.0)


def test_writes_during_a_point_count_for_the_next(path: Path, log: Log) -> None:
    class Disk(UnsyncedDisk):
        def sync(self, env: Any) -> None:
            rows.apply(log.entries[30:])

    rows = opened(path, disk=Disk())
    rows.apply(log.entries[:30])
    assert rows.is_due(0.0) is False
    assert rows.is_due(steady.STEADY_AFTER_S) is True
    assert rows.steady()[0] == 30
    assert rows.applied[0] == 60
    assert not rows.is_due(100.0)
    assert rows.is_due(100.0 + steady.STEADY_AFTER_S)
    rows.abandon()


def test_an_orderly_close_leaves_nothing_to_do(path: Path, log: Log) -> None:
    steady_file(path, log)
    for boot in ("b", "another"):
        rows = opened(path, boot=boot, floor=(60, 2))
        before = path.read_bytes()
        assert not rows._must_point
        rows.close()
        assert path.read_bytes() == before


# --- snapshots of backups ---------------------------------------------------------------------------------------------


def test_a_held_snapshot_is_of_one_entry_and_knows_its_digest(path: Path, log: Log) -> None:
    """Entries, steady points and the end of reads change neither its rows nor its point."""
    rows = opened(path)
    rows.apply(log.entries[:30])
    with rows.reading() as snapshot:
        held = snapshot.hold()
    before, (_, counted) = content(rows), rows.recount()
    rows.steady()
    rows.apply(log.entries[30:])
    rows.steady()
    packed, next_key = held.page(b"", 1 << 20)
    found = dict(unpack_rows(packed))
    assert ({key.decode(): value for key, value in found.items()}, next_key) == (before, b"")
    assert before != content(rows)
    point = held.point
    assert (point.term, point.index) == (log.entries[29].term, 30)
    assert (point.rows, point.size, point.digest) == (counted.rows, counted.size, counted.digest)
    held.end()
    assert rows._held == set()
    rows.close()


def test_the_end_of_the_rows_ends_held_snapshots(path: Path, log: Log) -> None:
    rows = opened(path)
    rows.apply(log.entries[:30])
    with rows.reading() as snapshot:
        held = snapshot.hold()
    rows.close()
    with pytest.raises(RpcError) as caught:
        held.page(b"", 100)
    assert caught.value.code == SNAPSHOT_GONE
