"""`rk put`, `get`, `delete`, `scan`, `load` on a table with columns: words, output, files and their errors."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.lookup import key_text
from cli.rows import opening, show
from regions.records import schema as sc
from regions.records import znodes as layout
from regions.records.members import Storage
from regions.records.model import TableRecord
from tests.unit.cli.test_data import run, status
from tests.unit.regionserver.client.tablets.test_calls import PATHS
from tests.unit.regionserver.client.test_rows import SalesBench

ORDERS = (
    "region:string:key",
    "id:int32:key",
    "at:timestamp",
    "price:float",
    "ok:bool:required:default=true",
    "b:binary",
)
FULL = {"region": "e u", "id": -5, "at": "2026-01-31T12:00:00Z", "price": 0.1, "ok": False, "b": "AP8="}
PUT = ("region=e u", "id=-5", "at=2026-01-31T13:00:00+01:00", "price=0.1", "ok=false", "b=AP8=")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SalesBench]:
    """Yield servers with tables "sales" (key id) and "orders" (keys region and id); rk finds them."""
    made = SalesBench()
    made.add_table("orders", ["", "eu ", ""])
    path = PATHS.table("id-orders")
    schema = sc.create([sc.parse_column(one) for one in ORDERS])
    record = layout.decode_table(made.store.znodes[path], path)
    made.store.znodes[path] = layout.encode(msgspec.structs.replace(record, schema=schema))

    @contextlib.contextmanager
    def open_cluster(_given: object) -> Iterator[Any]:
        yield SimpleNamespace(client=made.store, layout=PATHS)

    monkeypatch.setattr(opening, "open_cluster", open_cluster)
    yield made
    made.client.close()
    made.servers.close()


def error_of(*words: str) -> CliError:
    """Return the error of a command that must fail."""
    result = run(*words)
    assert isinstance(result.exception, CliError), result.output
    return result.exception


@pytest.mark.usefixtures("bench")
def test_a_row_of_one_key_column() -> None:
    put = run("put", "sales", "5", "name=Ada", "amount=2.5")
    assert (status(put), put.stdout) == (0, "put 3 columns at a5\n")
    assert run("get", "sales", "5").stdout == "id      5\nname    Ada\namount  2.5\n"
    assert json.loads(run("get", "sales", "id=5", "--json").stdout) == {
        "table": "sales", "key": "a5", "row": {"id": 5, "name": "Ada", "amount": 2.5},
    }  # fmt: skip
    assert run("put", "sales", "id=6", "name=x", "--null", "amount").exit_code == 0
    assert run("get", "sales", "6").stdout.splitlines()[2] == "amount  NULL"
    assert status(run("put", "sales", "5", "name=y", "--if-absent")) == 1
    assert run("delete", "sales", "5").stdout == "deleted a5\n"
    missing = run("get", "sales", "5", "--json")
    assert (status(missing), json.loads(missing.stdout)["row"]) == (4, None)
    assert isinstance(error_of("get", "sales", "5"), NotFoundError)


@pytest.mark.usefixtures("bench")
def test_a_row_of_two_key_columns_and_every_type() -> None:
    assert run("put", "orders", *PUT).stdout == "put 6 columns at e!Pu Z4\n"
    assert json.loads(run("get", "orders", "id=-5", "region=e u", "--json").stdout)["row"] == FULL
    assert json.loads(run("scan", "orders", "--json").stdout) == FULL
    assert run("delete", "orders", "region=e u", "id=-5").exit_code == 0
    assert run("scan", "orders", "--count").stdout == "0\n"


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("put", "sales", "five", "name=x"), "table 'sales', column 'id': 'five' is no int64"),
        (("put", "sales", "5"), "table 'sales', row 'a5', column 'name': needs a value: it is required"),
        (("put", "sales", "5", "nam=x"), "table 'sales' has no column 'nam'; its columns: id, name, amount"),
        (("put", "orders", "eu", "5"), "'eu' names no column: write the key as region=… id=…"),
        (("put", "orders", "region=eu", "id=3000000000"), "column 'id': 3000000000 is no int32"),
        (("put", "orders", "region=eu", "id=1", "at=2026-01-31T12:00:00"), "has no time zone"),
        (("put", "sales", "5", "name=x", "--if-value", "y"), "--if-value compares bytes, and table 'sales' has col"),
        (("put", "rows", "k"), "table 'rows' has no columns: write KEY VALUE"),
        (("put", "rows", "k", "v", "w"), "table 'rows' has no columns: write KEY VALUE"),
        (("put", "rows", "k", "v", "--null", "x"), "--null: table 'rows' has no columns"),
        (("get", "rows", "k", "v"), "table 'rows' has no columns: name one KEY, not 2"),
        (("get", "orders", "region=eu"), "table 'orders': key column 'id' needs a value"),
        (("delete", "orders", "region=eu", "id=1", "ok=true"), "column 'ok' is no key column"),
        (("delete", "sales", "5", "--if-value", "x"), "--if-value compares bytes"),
        (("scan", "orders", "--from", "id=5"), "a bound needs the first key columns; key columns: region, id"),
        (("scan", "sales", "--prefix", "5"), "a prefix needs a key of several columns, or of a string"),
        (("scan", "sales", "--csv", "--json"), "--csv and --json or --count exclude each other"),
        (("load", "sales", "x.csv", "--key", "id"), "--key: the key columns of table 'sales' are id"),
        (("load", "rows", "x.csv", "--skip-unknown"), "--skip-unknown and --null are for tables with columns"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], message: str) -> None:
    error = error_of(*words)
    assert (error.exit_code, "\n" in error.message) == (2, False)
    assert message in error.message


def test_shared_storage_takes_rows_but_no_condition(bench: SalesBench) -> None:
    record = bench.record()
    assert isinstance(record.schema, sc.Schema)
    bench.set_schema(record.schema, 0, storage=Storage.SHARED)
    assert "which cannot compare and set" in error_of("put", "sales", "5", "name=x", "--if-absent").message


@pytest.mark.usefixtures("bench")
def test_scans() -> None:
    for region, number in (("de", 1), ("eu", 7), ("eu", 42), ("us", 3)):
        assert run("put", "orders", f"region={region}", f"id={number}").exit_code == 0
    assert run("scan", "orders", "--prefix", "region=eu").stdout.splitlines() == [
        "region  id  at    price  ok    b",
        "eu       7  NULL   NULL  true  NULL",
        "eu      42  NULL   NULL  true  NULL",
    ]
    lines = run("scan", "orders", "--from", "region=eu id=8", "--json").stdout.splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert ids == [42, 3]
    limited = run("scan", "orders", "--to", "region=us", "--limit", "2")
    assert (len(limited.stdout.splitlines()), limited.stderr) == (3, "… more than 2 rows: --limit 0 shows all\n")
    assert run("scan", "orders", "--count").stdout == "4\n"
    assert (
        run("scan", "orders", "--csv", "--limit", "1", "--null", "-").stdout
        == "region,id,at,price,ok,b\nde,1,-,-,true,-\n"
    )
    assert run("put", "rows", "k", "a\nb").exit_code == 0
    assert run("scan", "rows", "--csv").stdout == 'key,value\nk,"a\nb"\n'
    assert run("scan", "sales").stdout == ""


@pytest.mark.usefixtures("bench")
def test_rows_after_an_alteration(bench: SalesBench) -> None:
    run("put", "sales", "5", "name=Ada")
    bench.alter(
        sc.RenameColumn("name", "label"), sc.AddColumn(sc.parse_column("n:int8:default=9")), sc.DropColumn("amount")
    )
    assert run("get", "sales", "5").stdout == "id     5\nlabel  Ada\nn      9\n"
    assert "no column 'name'" in error_of("put", "sales", "5", "name=Ada").message
    assert run("scan", "sales", "--csv").stdout == "id,label,n\n5,Ada,9\n"


def test_a_terminal_gets_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table = show.TypedTable("t", sc.create([sc.parse_column("k:string:key"), sc.parse_column("v:string")]), 0)
    show.print_table(table, [{"k": "a\x1b[31m", "v": "zwei\nZeilen"}])
    assert capsys.readouterr().out == "k             v\na\\x1b[31m  zwei\\nZeilen\n".replace(
        "k             v", "k          v"
    )


def test_operators_name_regions_by_values() -> None:
    """`rk why TABLE:KEY` and others."""
    record = TableRecord("t", "orders", sc.create([sc.parse_column(one) for one in ORDERS]))
    assert key_text(record, "region=eu id=7") == "eu a7"
    assert key_text(TableRecord("t", "t"), "eu a7") == "eu a7"
    with pytest.raises(UsageFaultError, match="needs the first key columns"):
        key_text(record, "id=7")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bench")
def test_a_csv_file_is_loaded_by_the_names_of_its_header(tmp_path: Path) -> None:
    """In any order, compressed or not; a scan's CSV is read back."""
    source = tmp_path / "sales.csv.gz"
    source.write_bytes(gzip.compress(b'\xef\xbb\xbfname,id\r\nAda,500\r\n"two\nlines",-5\r\n'))
    loaded = run("load", "sales", str(source), "--json")
    assert (status(loaded), json.loads(loaded.stdout)["rows"]) == (0, 2)
    text = run("scan", "sales", "--csv").stdout
    assert list(csv.reader(io.StringIO(text))) == [
        ["id", "name", "amount"], ["-5", "two\nlines", "1.5"], ["500", "Ada", "1.5"],
    ]  # fmt: skip
    again = tmp_path / "again.csv"
    again.write_text(text)
    assert status(run("load", "sales", str(again))) == 0
    assert run("scan", "sales", "--csv").stdout == text


@pytest.mark.usefixtures("bench")
def test_null_in_csv(tmp_path: Path) -> None:
    """An empty field is null where null is possible, and a text elsewhere; --null changes the text."""
    source = tmp_path / "x.csv"
    source.write_text("id,name,amount\n1,,\n")
    run("load", "sales", str(source))
    assert run("scan", "sales", "--json").stdout == '{"id":1,"name":"","amount":null}\n'
    source.write_text("id,name,amount\n1,\\N,\\N\n")
    run("load", "sales", str(source), "--null", "\\N")
    assert run("scan", "sales", "--json").stdout == '{"id":1,"name":"\\\\N","amount":null}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{0} is empty"),
        ("id,name\n1,x\n2,x\nfour,x\n", "{0} line 4: table 'sales', column 'id': 'four' is no int64"),
        ('id,name,amount\n1,"a\nb",2\n2,x,no\n', "{0} line 4: table 'sales', column 'amount': 'no' is no double"),
        ("id,name\n1\n", "{0} line 2: 1 fields, but the header has 2"),
        ("id,name\n1,x\n2,x\n1,y\n", "{0} line 4: the row has the same key as line 2: 'a1'"),
        ("id,name,more\n1,x,y\n", "{0}: table 'sales' has no column 'more'; its columns: id, name, amount"),
        ("id,amount\n1,2\n", "{0} has no column 'name', which is required in table 'sales'"),
        ("name\nx\n", "{0} has no column 'id', which is a key column in table 'sales'"),
        ("id,name,id\n1,x,2\n", "{0} has two columns 'id'"),
        ('id,name\n1,"x\n', "{0} line 2: unexpected end of data"),
        ("id,name\n1,\ufffe\n".encode("utf-16"), "{0} is neither CSV in UTF-8 nor a complete gzip file"),
        (gzip.compress(b"id,name\n1,x\n", mtime=0)[:-9], "{0} is neither CSV in UTF-8 nor a complete gzip file"),
        (b"PAR1 and nothing else", "{0} is not a whole Parquet file"),
    ],
)
def test_a_wrong_file_writes_nothing(bench: SalesBench, tmp_path: Path, text: str | bytes, message: str) -> None:
    source = tmp_path / "x.csv"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    error = error_of("load", "sales", str(source))
    assert error.message.startswith(message.format(source)), error.message
    assert (error.exit_code, "\n" in error.message) == (2, False)
    assert not bench.attempts


@pytest.mark.usefixtures("bench")
def test_columns_that_the_table_does_not_have_can_be_left_out(tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text("more,id,name\ny,1,x\n")
    assert status(run("load", "sales", str(source), "--skip-unknown")) == 0
    assert run("get", "sales", "1").exit_code == 0


@pytest.mark.usefixtures("bench")
def test_a_table_that_is_altered_during_a_load(bench: SalesBench, tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text("id,name\n1,x\n")
    for server in bench.servers.servers.values():
        server.schemas["id-sales.0"] = 7
    error = error_of("load", "sales", str(source))
    assert error.message.startswith("table 'sales' was altered during the load: ")
    assert error.hint == "Repeat the load: rows that were written are replaced."


@pytest.mark.usefixtures("bench")
def test_a_parquet_file_is_loaded_by_its_column_names(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "orders.parquet"
    at = pa.array([1_769_860_800_000_000, None], pa.timestamp("us", tz="UTC"))
    price, number = pa.array([0.1, 2], pa.float32()), pa.array([-5, 6], pa.int64())
    columns = {
        "id": number,
        "region": ["e u", "x"],
        "at": at,
        "price": price,
        "ok": [False, True],
        "b": [b"\0\xff", b""],
    }
    pq.write_table(pa.table(columns), source)
    assert status(run("load", "orders", str(source))) == 0
    first, second = (json.loads(line) for line in run("scan", "orders", "--json").stdout.splitlines())
    assert first == FULL
    assert second == {"region": "x", "id": 6, "at": None, "price": 2.0, "ok": True, "b": ""}
    pq.write_table(pa.table({"id": [1, 2**40], "region": ["a", "b"]}), source)
    error = error_of("load", "orders", str(source))
    assert error.message == (
        f"{source} row 2: table 'orders', column 'id': 1099511627776 is no int32: allowed are -2147483648 to 2147483647"
    )
    assert "is a Parquet file, and the table has no columns" in error_of("load", "rows", str(source)).message


@pytest.mark.usefixtures("bench")
def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = tmp_path / "x.parquet"
    source.write_bytes(b"PAR1")
    error = error_of("load", "sales", str(source))
    assert (error.message, error.hint) == (
        f"{source} is a Parquet file, and pyarrow is not installed",
        "pip install 'regionkeeper[spark]'",
    )
