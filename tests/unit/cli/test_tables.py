"""`rk table`: the requests to the master, common errors, and the output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cli import tables
from cli.common.errors import CliError
from cli.main import rk
from regions import messages as ms
from regions.records import schema as sc
from regions.records.members import Storage
from regions.records.model import TableRecord, TableState
from regions.records.schema import AddColumn, DropColumn, RenameColumn


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of requests; each is answered."""
    sent: list[Any] = []

    def ask(_given: object, wish: Any, wait_ms: int) -> ms.TableSummary:
        assert wait_ms == getattr(wish, "wait_ms", wait_ms)
        sent.append(wish)
        return ms.TableSummary(TableRecord("1a2b3c4d", "orders"), 1, 1, 1, 0, 0)

    monkeypatch.setattr(tables, "ask", ask)
    return sent


def run(*words: str) -> Any:
    """Return the error of the command, None for success."""
    return CliRunner().invoke(rk, ["table", *words], standalone_mode=False).exception


def test_a_table_with_columns_in_buckets(asked: list[Any]) -> None:
    """Every request has an id of its own."""
    words = [
        "create",
        "orders",
        "--column",
        "id:int64:key",
        "--column",
        "v:string",
        "--hash-buckets",
        "4",
        "--split",
        "42",
    ]
    assert run(*words) is None
    assert run(*words, "--no-wait", "--request-id", "mine") is None
    first, second = asked
    assert (first.columns, first.hash_buckets, first.splits) == (
        [sc.parse_column("id:int64:key"), sc.parse_column("v:string")],
        4,
        ["b42"],
    )
    assert (first.wait_ms, second.wait_ms) == (60_000, 0)
    assert len(first.request_id) == 36
    assert second.request_id == "mine"


@pytest.mark.parametrize("option", ["--replicas", "--replication"])
def test_copies_of_a_table(asked: list[Any], option: str) -> None:
    """The former name of the option is accepted; the master chooses the storage unless it is given."""
    assert run("create", "orders", option, "3") is None
    assert (
        run("create", "orders", option, "5", "--storage", "tablet", "--racks-min", "2", "--allow-under-replicated")
        is None
    )
    first, second = asked
    assert (first.replication, first.storage, first.racks_min, first.allow_under_replicated) == (3, "", 0, False)
    assert (second.replication, second.storage, second.racks_min, second.allow_under_replicated) == (
        5,
        "tablet",
        2,
        True,
    )
    assert run("create", "orders", "--storage", "tape") is not None


def test_where_the_rows_lie_is_said() -> None:
    """After the creation, and in `rk table show`, which warns of a single copy only if there is one."""
    tablet = TableRecord("1a2b3c4d", "orders", replication=3, storage=Storage.TABLET)
    assert tables.storage_words(tablet) == "tablets, 3 replicas each"
    assert tables.storage_words(TableRecord("1a2b3c4d", "orders")) == "rows in the shared directory"
    assert "tablets, 3 replicas each" in tables.table_lines(tablet, None)[0]
    assert not [line for line in tables.table_lines(tablet, None) if line.startswith("copies:")]


def test_an_alteration_is_one_request(asked: list[Any]) -> None:
    """Drop, rename, add, in this order for any order of the options."""
    assert run("alter", "orders", "--add-column", "v:int8", "--rename-column", "a:b", "--drop-column", "v") is None
    [wish] = asked
    assert wish.steps == [DropColumn("v"), RenameColumn("a", "b"), AddColumn(sc.parse_column("v:int8"))]
    assert wish.schema is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["create", "orders", "--column", "id"], "no type"),
        (["create", "orders", "--column", "id:int64:primary"], "none of key"),
        (["create", "a/b"], "must not have"),
        (["create", "orders", "--split", "b", "--split", "a"], "increase strictly"),
        (["create", "orders", "--split", "b", "--splits", "nix"], "exclude each other"),
        (["create", "orders", "--regions", "3"], "needs --from"),
        (["alter", "orders"], "nothing to alter"),
        (["alter", "orders", "--rename-column", "a"], "not OLD:NEW"),
        (["alter", "orders", "--add-column", "a:text"], "no type"),
        (["rename", "orders", ".."], "is not a table name"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(asked: list[Any], words: list[str], why: str) -> None:
    """One line names the error."""
    error = run(*words)
    assert isinstance(error, CliError), error
    assert why in str(error)
    assert asked == []


def test_buckets_and_a_file_of_sizes_exclude_each_other(asked: list[Any], tmp_path: Path) -> None:
    """The sizes belong to ranges of keys, which buckets do not have."""
    source = tmp_path / "keys.csv"
    source.write_text("key,size_bytes\na,1\nb,1\n")
    error = run("create", "orders", "--from", str(source), "--regions", "2", "--hash-buckets", "2")
    assert "exclude each other" in str(error)
    assert asked == []


@pytest.mark.parametrize(
    ("record", "altered", "lines"),
    [
        (
            TableRecord("t", "orders", sc.create([sc.parse_column("id:int64:key")]), 2, regions=8, hash_buckets=4),
            3,
            ["keys: 4 hash buckets, 2 ranges in each", "column 0: id:int64:key"],
        ),
        (
            TableRecord("t", "orders", "b", 5, TableState.ALTERING, fully_applied_schema="a", fully_applied_version=3),
            1,
            ["altering: 1 of 3 replicas follow version 5; all follow version 3", "schema: b"],
        ),
        (
            TableRecord("t", "orders", "", 5, TableState.ALTERING, fully_applied_schema="", fully_applied_version=4),
            -1,
            ["altering: all follow version 4"],
        ),
        (
            TableRecord("t", "orders", replication=3),
            -1,
            ["copies: replication is 3, and one copy of the rows is kept: kind kv/1 copies no rows to replicas"],
        ),
    ],
)
def test_a_table_as_people_read_it(record: TableRecord, altered: int, lines: list[str]) -> None:
    """Schema, partitions, and the progress of an alteration, which a standby does not know."""
    counts = ms.TableSummary(record, 1, 3, 3, 0, 0, altered)
    shown = tables.table_lines(record, counts)
    assert shown[1:] == lines
    assert f"schema version {record.schema_version}" in shown[0]


@pytest.mark.parametrize(
    ("left_s", "words"), [(3_599, "60 min"), (7_200, "2 h"), (90, "90 s"), (150, "2 min"), (604_799, "7 d")]
)
def test_how_long_the_rows_of_a_deleted_table_are_kept(left_s: int, words: str) -> None:
    """The time is shown as a person would write it. Tried: seconds fail all cases but one."""
    record = TableRecord("t", "gone", state=TableState.REMOVED, finished_ms=1, purge_at_ms=left_s * 1000 + 5)
    assert tables.fate(record, 5) == f"kept for {words} more"


def test_a_system_table_is_made_and_named(asked: list[Any]) -> None:
    """RT-05: its regions are assigned before all others."""
    assert run("create", "catalog", "--system") is None
    assert run("create", "orders") is None
    assert [one.system for one in asked] == [True, False]
    [line, *_] = tables.table_lines(TableRecord("1", "catalog", system=True), None)
    assert "system table" in line
    [line, *_] = tables.table_lines(TableRecord("1", "orders"), None)
    assert "system" not in line


def test_a_table_that_does_not_exist_is_not_asked_about(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The user confirmed, and then read that there was nothing to delete."""

    @contextlib.contextmanager
    def open_cluster(_given: object) -> Iterator[Any]:
        yield SimpleNamespace(tables=lambda: [TableRecord("1a2b3c4d", "orders")])

    monkeypatch.setattr(tables, "open_cluster", open_cluster)
    monkeypatch.setattr(tables, "of_cluster", lambda _: "")
    error = run("delete", "nosuch")
    assert (str(error), error.hint) == ("no table 'nosuch'", "Tables: orders. More: rk table list.")
    assert "the answer was not yes" in str(run("delete", "orders"))
    assert "the answer was not yes" in str(run("delete", "nosuch", "--request-id", "again")), "it may be gone by then"
    monkeypatch.setattr(tables, "knows_masters_alone", lambda _: True)
    assert "the answer was not yes" in str(run("delete", "nosuch")), "there is no store to look into"
    assert asked == []
