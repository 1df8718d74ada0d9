"""Operations on tables in one tenure: the contract (OC-01 to OC-09), request ids, visibility (DD-01 to DD-07)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coord.client.session import SessionState
from coord.errors import ConnectionLoss
from master.catalog import tables
from master.catalog.ddl import alter
from master.leadership.fence import Fence
from master.plans.bulk import PLANS_KEPT
from regions import messages as ms
from regions.messages.ddl import AlterTable, CreateTable, DdlRequest, contents_digest
from regions.records import schema as sc
from regions.records.model import (
    Incarnation,
    Intent,
    PlanRecord,
    PlanState,
    RegionRecord,
    RegionState,
    RequestRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.records.schema import AddColumn, RenameColumn, Schema
from regions.records.znodes import decode_region, decode_request, decode_table, encode
from tests.unit.master.active_fixture import LAYOUT, Bench

COLUMNS = [sc.parse_column("id:int64:key"), sc.parse_column("v:string")]
CREATE = CreateTable("new", ["g", "p"], columns=COLUMNS, request_id="c-1")
ALTER = ms.AlterTable("orders", schema="x int", request_id="a-1")
RENAME = ms.AlterTable("orders", name="sales", request_id="r-1")
DELETE = ms.DeleteTable("orders", request_id="d-1")
DISABLE = ms.SetTableIntent("orders", TableIntent.DISABLED, request_id="i-1")
ALL = {"create": CREATE, "alter": ALTER, "rename": RENAME, "delete": DELETE, "disable": DISABLE}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def stored(bench: Bench, name: str) -> TableRecord | None:
    """Return the table of that name from the store."""
    found = bench.store.nodes.get(LAYOUT.name(name))
    return None if found is None else decode_table(bench.store.nodes[LAYOUT.table(found[0].decode())][0])


def names(bench: Bench) -> list[str]:
    return [one.table.name for one in bench.ask(ms.ListTables()).tables]


def catalog(bench: Bench) -> dict[str, bytes]:
    """Return everything in the store that operations on tables write."""
    roots = (LAYOUT.names, LAYOUT.tables, LAYOUT.regions, LAYOUT.requests)
    return {path: node[0] for path, node in bench.store.nodes.items() if path.startswith(tuple(f"{r}/" for r in roots))}


# --- what is visible, and when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", list(ALL))
def test_a_change_is_invisible_until_its_write_has_committed(bench: Bench, what: str) -> None:
    """OC-04, OC-10: until then every read returns the former state, and no server gets an order."""
    before = bench.ask(ms.ListTables())
    described = bench.ask(ms.DescribeTable("orders"))
    writes, calls = len(bench.store.multis), len(bench.clock.tcpClients)
    answer = bench.ask(ALL[what], answered=False)
    for _ in range(5):
        if len(bench.store.multis) > writes or not bench.store.waiting:
            break
        assert answer is None
        assert bench.ask(ms.ListTables(), answered=False) == before
        assert bench.ask(ms.DescribeTable("orders"), answered=False) == described
        assert len(bench.clock.tcpClients) == calls, "no server hears of it before it is written"
        bench.store.answer(1)
    bench.go_on()
    assert bench.ask(ms.ListTables()) != before


@pytest.mark.parametrize("what", list(ALL))
def test_each_operation_is_one_fenced_multi(bench: Bench, what: str) -> None:
    """OC-01, OC-05: the check of the epoch, all records of the operation, and its result are one write."""
    before = catalog(bench)
    writes = len(bench.store.multis)
    answer = bench.ask(ALL[what])
    assert isinstance(answer, ms.Tables), answer
    made = [multi for multi in bench.store.multis[writes:] if any(LAYOUT.requests in op.path for op in multi)]
    assert len(made) == 1
    assert made[0][0].path == LAYOUT.epoch
    changed = {path for path in set(before) | set(catalog(bench)) if before.get(path) != catalog(bench).get(path)}
    later = {LAYOUT.table("t")} if what in ("alter", "rename", "delete") else set()
    assert changed - {op.path for op in made[0]} <= later, "what comes later is the end of ALTERING, or of a deletion"


def test_a_table_in_creation_is_invisible_and_holds_its_name(bench: Bench) -> None:
    """OC-10, DD-01: only its creator sees a PREPARING table."""
    assert bench.ask(CREATE, answered=False) is None
    bench.store.answer(1)  # the id of the request was looked up
    bench.store.answer(1)  # the id of the table, among the forgotten ones
    assert bench.active_master is not None
    assert [one.state for one in bench.active_master.operations.preparing.values()] == [TableState.PREPARING]
    assert bench.ask(ms.DescribeTable("new"), answered=False) == ms.NOT_FOUND
    assert bench.ask(replace(CREATE, request_id=""), answered=False) is None, "it waits for the name"
    bench.go_on()
    assert names(bench) == ["new", "orders"]
    assert bench.active_master.operations.preparing == {}
    assert len(bench.active_master.operations.locks) == 0


# --- requests with an id ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", list(ALL))
def test_a_repeated_request_gets_the_first_result_and_changes_nothing(bench: Bench, what: str) -> None:
    """A client that lost the reply asks again, perhaps with a longer wait."""
    first = bench.ask(ALL[what])
    bench.go_on(1.0)
    before = catalog(bench)
    again = bench.ask(ALL[what])
    assert again.tables[0].table.table_id == first.tables[0].table.table_id
    assert catalog(bench) == before
    record = decode_request(bench.store.nodes[LAYOUT.request(ALL[what].request_id)][0])
    assert (record.kind, record.epoch) == (type(ALL[what]).__name__, 4)


def test_a_repeated_request_does_not_undo_a_later_change(bench: Bench) -> None:
    """The result is that of the first request, not of a second attempt."""
    assert bench.ask(DISABLE).tables[0].table.intent is TableIntent.DISABLED
    bench.ask(ms.SetTableIntent("orders", TableIntent.ENABLED))
    told = bench.ask(DISABLE).tables[0].table
    assert told.intent is TableIntent.DISABLED
    table = stored(bench, "orders")
    assert table is not None
    assert table.intent is TableIntent.ENABLED


def test_a_repeated_request_does_not_wait_for_an_outdated_goal(bench: Bench) -> None:
    """The table is disabled by now: the client is informed at once, without a timeout."""
    bench.ask(CREATE)
    bench.ask(ms.SetTableIntent("new", TableIntent.DISABLED))
    assert bench.ask(replace(CREATE, wait_ms=60_000)).tables[0].table.name == "new"


def test_a_request_that_changes_nothing_is_recorded_too(bench: Bench) -> None:
    """Enabling an enabled table: if the reply is lost, the repetition must not undo a later request."""
    enable = ms.SetTableIntent("orders", TableIntent.ENABLED, request_id="e-1")
    bench.ask(enable)
    bench.ask(DISABLE)
    assert bench.ask(enable).tables[0].table.intent is TableIntent.ENABLED
    table = stored(bench, "orders")
    assert table is not None
    assert table.intent is TableIntent.DISABLED


def test_a_deposed_master_does_not_reply_that_nothing_has_to_change(bench: Bench) -> None:
    """OC-08: its successor has disabled the table, which the deposed master still knows as enabled."""
    data, version, owner = bench.store.nodes[LAYOUT.epoch]
    bench.store.put(LAYOUT.epoch, data, version + 1, owner)
    assert bench.ask(ms.SetTableIntent("orders", TableIntent.ENABLED)) == ms.NOT_LEADER


@pytest.mark.parametrize(
    "other",
    [
        replace(CREATE, name="other"),
        replace(CREATE, splits=["g"]),
        replace(CREATE, columns=COLUMNS[:1]),
        ms.DeleteTable("orders", request_id="c-1"),
    ],
)
def test_a_request_id_belongs_to_one_request(bench: Bench, other: DdlRequest) -> None:
    """Other contents under the same id are rejected, and change nothing."""
    bench.ask(CREATE)
    before = catalog(bench)
    assert bench.ask(other) == ms.BAD_REQUEST
    assert catalog(bench) == before


def test_the_wait_is_not_part_of_a_requests_identity() -> None:
    """The same request with another `wait_ms` is a repetition."""
    assert contents_digest(CREATE) == contents_digest(replace(CREATE, wait_ms=5, request_id="z"))
    assert contents_digest(DELETE) != contents_digest(replace(DELETE, table="other"))


@pytest.mark.parametrize("request_id", ["a/b", "..", "x" * 65, "ü", "a b"])
def test_a_request_id_must_be_a_valid_znode_name(bench: Bench, request_id: str) -> None:
    """It is a znode's name."""
    assert bench.ask(replace(CREATE, request_id=request_id)) == ms.BAD_REQUEST


def test_two_concurrent_copies_of_a_request_are_one_operation(bench: Bench) -> None:
    """The second one waits for the first, and gets the same reply."""
    first = bench.ask(CREATE, answered=False)
    second = bench.ask(CREATE)
    assert first is None
    assert isinstance(second, ms.Tables)
    assert names(bench) == ["new", "orders"]


# --- KUDU-495: losing the store in the middle -------------------------------------------------------------------------


def cut_at(bench: Bench, request: DdlRequest, answers: int, *, done: bool) -> Any:
    """Send the request, and cut the connection after so many replies of the store. Return the client's reply, None
    without one."""
    results: list[Any] = []
    bench.ask_into(request, results)
    for _ in range(answers):
        bench.store.answer(1)
        bench.clock.advance(0)
    bench.store.cut(done=done)
    return results[0] if results else None


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("what", list(ALL))
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_lost_connection_at_any_moment_leaves_all_or_nothing(
    tmp_path: Path, what: str, answers: int, done: bool
) -> None:
    """KUDU-495, MF-14: the master survives, the client must ask again, and the same master then returns the one
    result."""
    bench = Bench(tmp_path)
    request = ALL[what]
    told = cut_at(bench, request, answers, done=done)
    assert told in (None, ms.BUSY) or isinstance(told, ms.Tables)
    assert bench.ended == []
    bench.store.mend()
    bench.go_on()
    bench.go_on(1.0)
    answer = bench.ask(request)
    assert isinstance(answer, ms.Tables), answer
    whole(bench, what)


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("what", list(ALL))
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_the_next_master_returns_the_one_result(tmp_path: Path, what: str, answers: int, done: bool) -> None:
    """KUDU-495: the session ends meanwhile; the next active master finds all or nothing, and the retry is definite."""
    bench = Bench(tmp_path)
    request = ALL[what]
    cut_at(bench, request, answers, done=done)
    bench.store.become(SessionState.EXPIRED)
    assert bench.ended != []
    following = bench.succeeded_by(tmp_path)
    answer = following.ask(request)
    assert isinstance(answer, ms.Tables), answer
    whole(following, what)


@pytest.mark.parametrize("what", list(ALL))
def test_a_write_that_arrives_after_the_look_for_it_is_the_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """OC-06: the store refuses the repeated request, but because of its own earlier write; the client gets the result.

    Fails if `_perform_once` raises the refusal.
    """
    bench = Bench(tmp_path)
    request = ALL[what]
    assert isinstance(bench.ask(request), ms.Tables)
    look, missed = tables.find_request, [None]

    async def find(fence: Fence, request_id: str) -> RequestRecord | None:
        return missed.pop() if missed else await look(fence, request_id)

    monkeypatch.setattr(tables, "find_request", find)
    answer = bench.ask(request)
    assert isinstance(answer, ms.Tables), answer
    whole(bench, what)
    assert not missed


def whole(bench: Bench, what: str) -> None:
    """Assert that the store holds exactly the result of the operation, once."""
    bench.go_on(1.0)
    tables = {
        path.rpartition("/")[2]: decode_table(node[0])
        for path, node in bench.store.nodes.items()
        if path.startswith(f"{LAYOUT.tables}/")
    }
    held = {path.rpartition("/")[2]: node[0].decode() for path, node in bench.store.nodes.items()
            if path.startswith(f"{LAYOUT.names}/")}  # fmt: skip
    there = {one.name: key for key, one in tables.items() if one.state is not TableState.REMOVED}
    assert held == there
    want = {"create": ["new", "orders"], "rename": ["sales"], "delete": []}.get(what, ["orders"])
    assert sorted(there) == want
    assert len(tables) == (2 if what == "create" else 1)
    orders = tables["t"]
    assert orders.schema_version == (1 if what in ("alter", "rename") else 0), "altered once"
    for table_id, table in tables.items():
        regions = [path for path in bench.store.nodes if path.startswith(f"{LAYOUT.table_regions(table_id)}/")]
        assert len(regions) == (3 if table.name == "new" else 1)


def test_an_operation_that_waits_for_a_lock_is_rejected_when_the_tenure_ends(bench: Bench) -> None:
    """KUDU-495: every client gets a reply."""
    results: list[Any] = []
    bench.ask_into(DELETE, results)
    bench.ask_into(replace(ALTER, request_id=""), results)
    bench.store.cut()
    bench.store.become(SessionState.EXPIRED)
    assert len(results) == 2
    assert all(one in (ms.NOT_LEADER, ms.BUSY) for one in results)


# --- altering ---------------------------------------------------------------------------------------------------------


def test_altering_keeps_the_former_schema_until_all_regions_follow(bench: Bench) -> None:
    """DD-07: version + 1 and the next column id; the former schema is kept until all regions have reported the new
    one."""
    bench.ask(CREATE)
    first = stored(bench, "new")
    assert first is not None
    assert isinstance(first.schema, Schema)
    step = AddColumn(sc.parse_column("w:int8"))
    bench.hold_servers()
    bench.ask(ms.AlterTable("orders", schema="x int"))
    orders = stored(bench, "orders")
    assert orders is not None
    assert (orders.state, orders.schema_version, orders.fully_applied_schema) == (TableState.ALTERING, 1, "")
    bench.ask(ms.AlterTable("orders", schema="x int, y int"))
    orders = stored(bench, "orders")
    assert orders is not None
    assert (orders.schema_version, orders.fully_applied_schema, orders.fully_applied_version) == (2, "", 0)
    bench.ask(ms.AlterTable("new", steps=[step, RenameColumn("v", "value")]))
    altered = stored(bench, "new")
    assert altered is not None
    assert isinstance(altered.schema, Schema)
    assert [one.name for one in altered.schema.columns] == ["id", "value", "w"]
    assert altered.schema.next_column_id == 3


@pytest.mark.parametrize(
    "request_",
    [
        ms.AlterTable("new", schema="text"),
        ms.AlterTable("new", steps=[RenameColumn("nix", "x")]),
        ms.AlterTable("orders", steps=[RenameColumn("id", "x")]),
        ms.AlterTable("orders", name="a/b"),
        CreateTable("x", columns=COLUMNS, schema="text"),
        CreateTable("x", columns=COLUMNS[1:]),
        CreateTable("x", hash_buckets=1),
        CreateTable("x", ["b", "a"]),
        CreateTable("x", replication=9),
        CreateTable("x", replication=2),
        CreateTable("x", replication=3),
        CreateTable("x", replication=3, kind="kv/7"),
        CreateTable("x", replication=3, storage="shared"),
        CreateTable("x", storage="tape"),
        CreateTable("x", storage="tablet"),
        CreateTable("x", storage="tablet", kind="counters/1"),
        CreateTable("x", racks_min=2),
        CreateTable("x", allow_under_replicated=True),
    ],
)
def test_an_impossible_operation_is_rejected_before_anything_is_written(bench: Bench, request_: DdlRequest) -> None:
    """Before anything is written."""
    bench.ask(replace(CREATE, request_id=""))
    before = catalog(bench)
    assert bench.ask(request_) == ms.BAD_REQUEST
    assert catalog(bench) == before


def test_a_service_that_copies_its_rows_has_replicas(bench: Bench) -> None:
    """Only the key-value service is known to keep one copy."""
    made = bench.ask(CreateTable("x", replication=3, kind="counters/1"))
    assert made.tables[0].table.replication == 3


def test_names_are_unique_across_concurrent_operations(bench: Bench) -> None:
    """MD-03: a rename to a name in creation waits for the creation, and is rejected."""
    results: list[Any] = []
    bench.ask_into(replace(CREATE, name="sales"), results)
    bench.ask_into(RENAME, results)
    bench.go_on()
    assert isinstance(results[0], ms.Tables)
    assert results[1] == ms.ALREADY_EXISTS
    assert names(bench) == ["orders", "sales"]


def test_an_abandoned_creation_does_not_hold_its_name(bench: Bench) -> None:
    """DD-01: a former master died during a large creation; the client's retry need not wait."""
    bench.store.put(LAYOUT.name("new"), b"dead")
    bench.store.put(LAYOUT.table_regions("dead"))
    bench.store.put(LAYOUT.region("dead", "dead.0000"), encode(RegionRecord("dead", "dead.0000")))
    assert isinstance(bench.ask(CREATE), ms.Tables)
    assert LAYOUT.table_regions("dead") not in bench.store.nodes
    assert names(bench) == ["new", "orders"]


def test_results_of_requests_expire_by_age_and_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest results expire first."""
    monkeypatch.setattr("master.catalog.janitor.REQUESTS_KEPT_MAX", 3)
    monkeypatch.setattr("master.catalog.janitor.REQUESTS_KEPT_MS", 2_000_000)
    for number in range(5):
        bench.go_on(1.0)
        bench.ask(ms.SetTableIntent("orders", TableIntent.ENABLED, request_id=f"n-{number}"))
    kept = [path for path in catalog(bench) if path.startswith(LAYOUT.requests)]
    assert len(kept) == 5
    bench.go_on(700.0)
    bench.go_on(1.0)
    kept = [path.rpartition("/")[2] for path in catalog(bench) if path.startswith(LAYOUT.requests)]
    assert kept == ["n-2", "n-3", "n-4"]
    bench.go_on(3000.0)
    bench.go_on(1.0)
    assert not [path for path in catalog(bench) if path.startswith(LAYOUT.requests)]


def test_old_records_of_plans_are_deleted_while_a_master_is_active(bench: Bench) -> None:
    """Each created table leaves one. The newest stay, and those that have not ended.

    Tried: without `forget` in the active master's round all of them stay until the next master takes over.
    """
    for number in range(PLANS_KEPT + 5):
        plan = PlanRecord(f"p{number:02}", 1, state=PlanState.DONE, created_ms=1000 + number, finished_ms=5000)
        bench.store.put(LAYOUT.plan(plan.plan_id), encode(plan))
    bench.store.put(LAYOUT.plan("moves"), encode(PlanRecord("moves", 1, state=PlanState.APPLYING, by_moves=True)))
    bench.go_on(700.0)
    bench.go_on(1.0)
    kept = sorted(path.rpartition("/")[2] for path in bench.store.nodes if path.startswith(f"{LAYOUT.plans}/"))
    assert kept == ["moves", *(f"p{number:02}" for number in range(5, PLANS_KEPT + 5))]


def test_a_lost_reply_is_not_reported_as_a_failure(bench: Bench) -> None:
    """OC-05: the outcome is unknown, so the client is asked to retry."""
    results: list[Any] = []
    bench.ask_into(replace(DISABLE, request_id=""), results)
    assert bench.store.waiting
    deferred, act = bench.store.waiting.pop()
    act()
    deferred.errback(ConnectionLoss(""))
    assert results == [ms.BUSY]


@pytest.mark.parametrize(
    "request_",
    [
        ms.DeleteTable("made-since", request_id="x-1"),
        ms.AlterTable("made-since", schema="text", request_id="x-1"),
        CreateTable("orders", request_id="x-1"),
        ms.AlterTable("made-since", schema="text"),
    ],
)
def test_a_replaced_master_does_not_reject_from_its_old_state(bench: Bench, request_: DdlRequest) -> None:
    """OC-08, MF-13: another master has renamed `orders` since, so this master's state proves nothing."""
    data, version, owner = bench.store.nodes[LAYOUT.epoch]
    bench.store.put(LAYOUT.epoch, data, version + 1, owner)
    assert bench.ask(request_) == ms.NOT_LEADER
    assert bench.ended


# --- what a deleted table leaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["the same master", "the next master"])
def test_a_close_by_a_server_that_lost_its_registration_is_completed(tmp_path: Path, later: bool) -> None:
    """DD-06: the server begins to close when it stops counting as alive, and the master sees the close last. The table
    is finished only after that transition has ended."""
    bench = Bench(tmp_path, servers=2)
    bench.hold_servers()
    bench.ask(DELETE)
    closing = TransitionRecord("t.0", "t", 0, RegionState.CLOSING, Incarnation("s1", 7), intent=Intent.CLOSE, epoch=4)
    bench.store.put(LAYOUT.transition("t.0", 0), encode(closing))  # its event is still in flight
    bench.store.drop(LAYOUT.server("s1"))
    if later:
        bench.go_on()
        bench = bench.succeeded_by(tmp_path)
    for _ in range(6):
        bench.go_on(1.0)
    assert LAYOUT.transition("t.0", 0) not in bench.store.nodes
    assert decode_table(bench.store.nodes[LAYOUT.table("t")][0]).finished_ms > 0
    region = decode_region(bench.store.nodes[LAYOUT.region("t", "t.0")][0])
    assert (region.state, region.location(0).incarnation) == (TabletState.DELETED, None)
    assert bench.active_master is not None
    assert "t" not in bench.active_master.assigner.world.tables


@pytest.mark.parametrize("data", [b"\xff\xfe", b"", b"a/b"])
def test_a_corrupt_name_entry_does_not_stop_a_master(tmp_path: Path, data: bytes) -> None:
    """Masters continue, the table keeps its name, the entry is not changed, and no other table gets the name."""
    bench = Bench(tmp_path)
    bench.store.put(LAYOUT.name("orders"), data)
    bench = bench.succeeded_by(tmp_path)
    bench.go_on()
    assert names(bench) == ["orders"]
    assert bench.store.nodes[LAYOUT.name("orders")][0] == data
    assert bench.ask(CreateTable("orders")) == ms.ALREADY_EXISTS
    bench.store.put(LAYOUT.name("taken"), data)
    assert bench.ask(CreateTable("taken", request_id="x-1")) == ms.ALREADY_EXISTS


def test_a_kind_is_set_once_without_a_new_schema_version() -> None:
    """A table of an earlier build has no kind; a recorded kind stays, because the table's files have that kind."""
    former = TableRecord("t", "orders", schema_version=3)
    named = alter(former, AlterTable("orders", kind="counters/1"))
    assert named == replace(former, kind="counters/1")
    assert alter(named, AlterTable("orders", kind="counters/1")) == named
    assert alter(named, AlterTable("orders", name="hits")).kind == "counters/1"
    with pytest.raises(ValueError, match="its kind is counters/1, and the kind of a table cannot be changed"):
        alter(named, AlterTable("orders", kind="kv/1"))
    with pytest.raises(ValueError, match="is no kind of service"):
        alter(former, AlterTable("orders", kind="Counters"))


def test_a_restored_table_has_the_column_ids_and_the_version_of_its_backup(bench: Bench) -> None:
    """Stored rows may name both; a table made from the same columns would have other ids."""
    first = sc.create(COLUMNS)
    schema = sc.evolve(sc.evolve(first, [sc.DropColumn("v")]), [AddColumn(sc.parse_column("v:string"))])
    assert schema != sc.create(COLUMNS)
    bench.ask(CreateTable("back", restored_schema=schema, schema_version=2))
    made = stored(bench, "back")
    assert made is not None
    assert (made.schema, made.schema_version, made.state) == (schema, 2, TableState.RUNNING)


@pytest.mark.parametrize(
    "request_",
    [
        CreateTable("back", restored_schema=Schema((), 0)),
        CreateTable("back", restored_schema=Schema(sc.create(COLUMNS).columns, 1)),
        CreateTable("back", restored_schema=Schema(sc.create(COLUMNS).columns[::-1], 2)),
        CreateTable("back", restored_schema=Schema(sc.create(COLUMNS).columns[:1] * 2, 2)),
        CreateTable("back", restored_schema=sc.create(COLUMNS), columns=COLUMNS),
        CreateTable("back", schema_version=-1),
    ],
)
def test_an_impossible_schema_of_a_backup_is_rejected(bench: Bench, request_: CreateTable) -> None:
    before = catalog(bench)
    assert bench.ask(request_) == ms.BAD_REQUEST
    assert catalog(bench) == before
