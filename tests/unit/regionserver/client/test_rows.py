"""Rows of columns: written and read under the table's schema, while other clients alter the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from coord.rpc.wire import Code, RpcError
from regions.records import schema as sc
from regions.records import znodes as layout
from regions.records.model import TableRecord, TableState
from regions.records.schema import AddColumn, DropColumn, RenameColumn
from regionserver.client import (
    Change,
    NoSuchTable,
    OutcomeUnknown,
    Refused,
    RegionClient,
    Unavailable,
    WrongArgument,
    WrongRow,
    rows,
)
from regionserver.kv.messages import KEY_BYTES_MAX, SCHEMA_CHANGED, VALUE_BYTES_MAX, KvValues, KvWritten
from tests.unit.regionserver.client.tablets.test_calls import PATHS, Bench
from tests.unit.regionserver.client.test_client import Cluster

COLUMNS = ("id:int64:key", "name:string:required", "amount:double:default=1.5")


class SalesBench(Bench):
    """A table "sales" of columns with two tablets, below and from id 100."""

    def __init__(self) -> None:
        super().__init__()
        self.add_table("sales", ["", "c100", ""])
        self.set_schema(sc.create([sc.parse_column(one) for one in COLUMNS]), 0)

    def set_schema(self, schema: sc.Schema, version: int, **fields: Any) -> None:
        path = PATHS.table("id-sales")
        record = layout.decode_table(self.store.znodes[path], path)
        record = msgspec.structs.replace(record, schema=schema, schema_version=version, **fields)
        self.store.znodes[path] = layout.encode(record)

    def record(self) -> TableRecord:
        path = PATHS.table("id-sales")
        return layout.decode_table(self.store.znodes[path], path)

    def alter(self, *steps: sc.SchemaStep) -> None:
        """Change the record as a master does."""
        record = self.record()
        assert isinstance(record.schema, sc.Schema)
        self.set_schema(sc.evolve(record.schema, steps), record.schema_version + 1)


@pytest.fixture
def bench() -> Iterator[SalesBench]:
    made = SalesBench()
    yield made
    made.client.close()
    made.servers.close()


def put(client: RegionClient, id_: int, **columns: Any) -> None:
    client.put_row("sales", {"id": id_, **columns})


def test_rows_are_put_read_scanned_and_deleted(bench: SalesBench) -> None:
    client = bench.client
    for number in (500, -5, 7):
        put(client, number, name=f"n{number}")
    assert client.get_row("sales", {"id": 7}) == {"id": 7, "name": "n7", "amount": 1.5}
    assert client.get_row("sales", -5) == {"id": -5, "name": "n-5", "amount": 1.5}
    assert client.get_row("sales", 8) is None
    assert [row["id"] for row in client.scan_rows("sales")] == [-5, 7, 500]
    assert [row["id"] for row in client.scan_rows("sales", {"id": -4}, {"id": 500})] == [7]
    assert [key for key, _ in client.scan_keyed_rows("sales", "a", "c500")] == ["a7"]
    assert [len(one.rows) for one in bench.servers.tablets.values() if one.record.table_id == "id-sales"] == [2, 1]
    assert not client.put_row_if_absent("sales", {"id": 7, "name": "other"})
    client.delete_row("sales", 7)
    assert client.put_row_if_absent("sales", {"id": 7, "name": "other"})
    assert client.write_rows("sales", [{"id": n, "name": ""} for n in range(10)]) == 10
    assert sum(1 for _ in client.scan_rows("sales", rows_max=11)) == 11


def test_bytes_are_refused_in_a_table_with_columns_and_rows_in_another(bench: SalesBench) -> None:
    """Such bytes could not be read as rows. Reading and deleting bytes still works; nothing was sent."""
    client = bench.client
    for write in (
        lambda: client.put("sales", "b42", b"x"),
        lambda: client.write("sales", [Change("b42", b"x")]),
        lambda: client.compare_and_set("sales", "b42", None, b"x"),
        lambda: client.put_if_absent("sales", "b42", b"x"),
    ):
        with pytest.raises(WrongRow, match=r"table 'sales' has columns: put rows of columns \(put_row\), not keys and"):
            write()
    assert not bench.attempts
    put(client, 42, name="x")
    assert client.get("sales", "b42", timeout_s=9) is not None
    client.write("sales", [Change("b42", None)])
    assert client.get_row("sales", 42) is None
    calls: list[Callable[[], Any]] = [
        lambda: client.put_row("rows", {"id": 1}),
        lambda: client.get_row("rows", 1),
        lambda: list(client.scan_rows("rows")),
    ]
    for call in calls:
        with pytest.raises(WrongRow, match="table 'rows' has no columns: put, get and scan keys and bytes"):
            call()
    with pytest.raises(NoSuchTable):
        client.put_row("nope", {"id": 1})


def test_mistakes_of_types_are_explained(bench: SalesBench) -> None:
    client: Any = bench.client
    cases: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: client.put("rows", b"k", b"v"),
            "table 'rows': a key is a str, this one is bytes b'k'; decode it first",
        ),
        (lambda: client.put("rows", "k", "v"), "the value of 'k' is to be bytes, but is str 'v'; encode it first"),
        (lambda: client.put("rows", "k", 5), "the value of 'k' is to be bytes, but is int 5"),
        (lambda: client.get("rows", 5), "a key is a str, this one is int 5"),
        (lambda: client.delete("rows", b"k"), "a key is a str"),
        (lambda: client.compare_and_set("rows", "k", "a", b"b"), "the value of 'k' is to be bytes, but is str 'a'"),
        (lambda: client.write("rows", [Change("k", "v")]), "the value of 'k' is to be bytes"),
        (
            lambda: client.write("rows", [("k", b"v")]),
            "a change is a Change(key, value), this one is tuple ('k', b'v')",
        ),
        (lambda: client.put_if_absent("rows", "k", "v"), "the value of 'k' is to be bytes"),
        (lambda: client.add("rows", "k", "v"), "the value of 'k' is to be bytes"),
        (lambda: client.call("rows", b"k", None, None), "a key is a str"),
        (lambda: list(client.scan("rows", b"k")), "a key is a str"),
        (lambda: list(client.scan("rows", end=b"k")), "a key is a str"),
        (lambda: client.put_row("sales", ["id", 1]), "a row is a dict of columns, this one is list ['id', 1]"),
    ]
    for call, message in cases:
        with pytest.raises(WrongArgument) as caught:
            call()
        assert message in str(caught.value)
    for call, message in [
        (lambda: put(client, 1, name=b"x"), "row 'a1', column 'name': b'x' is no string; decode the bytes first"),
        (lambda: put(client, 1), "row 'a1', column 'name': needs a value: it is required"),
        (lambda: client.get_row("sales", "1"), "column 'id': '1' is no int64"),
        (lambda: client.get_row("sales", {"id": 1, "name": "x"}), "'name' is no key column"),
        (lambda: client.get_row("sales", {"x": 1}), "'x' is no key column"),
    ]:
        with pytest.raises(WrongRow, match="table 'sales'") as refused:
            call()
        assert message in str(refused.value)
    assert not bench.attempts, "nothing was sent"


def test_rows_at_the_limits_of_a_region(bench: SalesBench) -> None:
    bench.add_table("names", ["", ""])
    schema = sc.create([sc.parse_column("name:string:key"), sc.parse_column("v:binary")])
    path = PATHS.table("id-names")
    bench.store.znodes[path] = layout.encode(
        msgspec.structs.replace(layout.decode_table(bench.store.znodes[path], path), schema=schema)
    )
    client, longest = bench.client, "ü" * ((KEY_BYTES_MAX - 5) // 2)
    overhead = 8
    client.put_row("names", {"name": longest, "v": bytes(VALUE_BYTES_MAX - overhead)})
    with pytest.raises(WrongRow, match=r"its key columns take 513 bytes; the limit is 511"):
        client.put_row("names", {"name": longest + "ü"})
    with pytest.raises(WrongRow, match=r"row 'a': its columns take \d+ bytes; the limit is 1048576"):
        client.put_row("names", {"name": "a", "v": bytes(VALUE_BYTES_MAX)})


# --- alterations ------------------------------------------------------------------------------------------------------


def test_rows_of_an_earlier_version_are_read_under_the_present_one(bench: SalesBench) -> None:
    put(bench.client, 1, name="x", amount=2.0)
    bench.alter(DropColumn("amount"), RenameColumn("name", "label"), AddColumn(sc.parse_column("n:int8:default=9")))
    other = bench.new_client()
    assert other.get_row("sales", 1) == {"id": 1, "label": "x", "n": 9}
    other.close()


def test_a_reader_with_an_old_schema_learns_the_new_one_from_a_row(bench: SalesBench) -> None:
    put(bench.client, 1, name="x")
    put(bench.client, 2, name="x")
    bench.alter(RenameColumn("name", "label"))
    other = bench.new_client()
    other.put_row("sales", {"id": 2, "label": "y"})
    assert [list(row) for row in bench.client.scan_rows("sales")] == [
        ["id", "name", "amount"],
        ["id", "label", "amount"],
    ]
    assert bench.client.get_row("sales", 1) == {"id": 1, "label": "x", "amount": 1.5}
    other.close()


def test_a_writer_with_an_old_schema_is_refused_reads_the_new_one_and_writes(bench: SalesBench) -> None:
    """So no value of a dropped column is lost silently once a server has seen the new version."""
    client = bench.client
    put(client, 1, name="x")
    bench.alter(AddColumn(sc.parse_column("n:int8:default=9")))
    other = bench.new_client()
    put(other, 2, name="x")
    put(client, 3, name="y")
    assert SCHEMA_CHANGED in bench.codes
    assert other.get_row("sales", 3) == {"id": 3, "name": "y", "amount": 1.5, "n": 9}
    bench.alter(DropColumn("amount"))
    put(other, 500, name="x")  # another tablet: refused below 100 only after a write there
    other.delete_row("sales", 500)
    bench.client.write_rows("sales", [])
    time_before = len(bench.attempts)
    other2 = bench.new_client()
    put(other2, 2, name="z")
    with pytest.raises(WrongRow, match="table 'sales' has no column 'amount'; its columns: id, name, n"):
        put(client, 3, name="y", amount=2.0)
    assert bench.codes[time_before:].count(SCHEMA_CHANGED) == 1
    other.close()
    other2.close()


def test_a_lost_reply_before_the_refusal_leaves_the_outcome_unknown(bench: SalesBench) -> None:
    """The first copy may have been carried out: another write in its place could come second."""
    client = bench.client
    put(client, 1, name="x")
    for server in bench.servers.servers.values():
        server.resets = 1

        def refuse(request: Any, server: Any = server) -> None:
            if hasattr(request, "operations") and not server.resets:
                raise RpcError(SCHEMA_CHANGED, "later")

        server.answer = refuse
    with pytest.raises(OutcomeUnknown, match="was refused: later"):
        client.put_row_if_absent("sales", {"id": 5, "name": "x"})
    assert any(key == "a5" for one in bench.servers.tablets.values() for key in one.rows)


def test_a_version_that_the_store_never_shows_ends_the_call_at_its_deadline(bench: SalesBench) -> None:
    put(bench.client, 1, name="x")
    for server in bench.servers.servers.values():
        server.schemas["id-sales.0"] = 7
    with pytest.raises(Unavailable, match=r"table 'sales': .*version 0.*the store shows version 0"):
        bench.client.put_row("sales", {"id": 1, "name": "x"}, timeout_s=1.0)


def test_the_schema_is_read_again_after_a_while_and_the_store_may_be_away(
    bench: SalesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client
    put(client, 1, name="x")
    bench.alter(AddColumn(sc.parse_column("n:int8:default=9")))
    assert client.get_row("sales", 1) == {"id": 1, "name": "x", "amount": 1.5}
    monkeypatch.setattr(rows, "SCHEMA_AGE_S", 0.0)
    assert client.get_row("sales", 1) == {"id": 1, "name": "x", "amount": 1.5, "n": 9}
    monkeypatch.setattr(rows, "REFRESH_S", 0.01)
    bench.lose_store()
    assert client.get_row("sales", 1) == {"id": 1, "name": "x", "amount": 1.5, "n": 9}


def test_a_table_that_was_made_anew_is_found(bench: SalesBench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench.client, 1, name="x")
    record = bench.record()
    assert isinstance(record.schema, sc.Schema)
    bench.set_schema(record.schema, 0, state=TableState.REMOVED)
    bench.add_table("fresh", ["", ""])
    fresh = PATHS.table("id-fresh")
    bench.store.znodes[fresh] = layout.encode(
        msgspec.structs.replace(
            layout.decode_table(bench.store.znodes[fresh], fresh), schema=sc.create([sc.parse_column("k:string:key")])
        )
    )
    bench.store.znodes[PATHS.name("sales")] = b"id-fresh"
    monkeypatch.setattr(rows, "SCHEMA_AGE_S", 0.0)
    bench.client.put_row("sales", {"k": "x"})
    assert bench.client.get_row("sales", "x") == {"k": "x"}


def test_columns_of_a_table(bench: SalesBench) -> None:
    found = bench.client.columns("sales")
    assert found is not None
    assert list(found.columns) == ["id", "name", "amount"]
    assert bench.client.columns("rows") is None
    with pytest.raises(NoSuchTable):
        bench.client.columns("nope")


# --- shared storage ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster whose table "rows" has columns and shared storage."""
    made = Cluster(monkeypatch)
    made.store.znodes[PATHS.table("t1")] = layout.encode(
        TableRecord("t1", "rows", sc.create([sc.parse_column("k:string:key"), sc.parse_column("v:string")]))
    )
    return made


def test_a_refused_row_is_encoded_anew_and_sent_again(shared: Cluster) -> None:
    def altered() -> RpcError:
        path = PATHS.table("t1")
        record = layout.decode_table(shared.store.znodes[path], path)
        assert isinstance(record.schema, sc.Schema)
        schema = sc.evolve(record.schema, [AddColumn(sc.parse_column("n:int8:default=9"))])
        shared.store.znodes[path] = layout.encode(msgspec.structs.replace(record, schema=schema, schema_version=1))
        return RpcError(SCHEMA_CHANGED, "version 1")

    shared.answers = [altered, KvWritten(1)]
    shared.client.put_row("rows", {"k": "n", "v": "x"})
    first, second = (message for _, message, _ in shared.asked)
    assert (first.schema_version, second.schema_version) == (0, 1)
    assert first.changes[0].value == b"\xc1\x92\x00\xa1x"
    assert second.changes[0].value == b"\xc1\x93\x01\xa1x\x09"
    shared.answers = [KvValues([first.changes[0].value])]
    assert shared.client.get_row("rows", "n") == {"k": "n", "v": "x", "n": 9}


def test_other_refusals_are_raised(shared: Cluster) -> None:
    shared.answers = [RpcError(Code.BAD_REQUEST, "no")]
    with pytest.raises(Refused, match="no"):
        shared.client.put_row("rows", {"k": "n"})
    shared.answers = [KvValues([b"hello"])]
    with pytest.raises(WrongRow, match="table 'rows', row 'n': its 5 bytes were not written as columns"):
        shared.client.get_row("rows", "n")
    assert time.monotonic() < 1, "no pause"
