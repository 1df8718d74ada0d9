"""Tables of tablets in a master: created with their members, rejected with the count, ignored by the assigner."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.defer import ensureDeferred

from coord.rpc.server import RpcError
from master.catalog import ddl
from master.catalog.servers_for import missing_group
from regions import messages as ms
from regions.cluster.entities import Server
from regions.cluster.state import ClusterState
from regions.messages.ddl import CreateTable
from regions.records.formats import TABLETS
from regions.records.kinds import KV, TABLETS_ALONE
from regions.records.members import Member, Storage
from regions.records.model import (
    NO_ROOM,
    ClusterRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
)
from regions.records.znodes import decode_region, decode_table, decode_transition, encode
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground


def bench_of(folder: Path, *, tablets: int, in_force: int = TABLETS, servers: int = 4, alone: int = 0) -> Bench:
    """Return a master, and servers s1 and so on, of which the first `tablets` take tablets and the first `alone` only
    tablets."""
    store = LossyStore()
    lay_ground(store, servers=servers)
    store.put(LAYOUT.cluster, encode(ClusterRecord("c", in_force)))
    for number in range(1, servers + 1):
        record = ServerRecord(
            f"s{number}", "h", number + 1, 7, f"r{number % 2}", tablets=number <= tablets, peer_port=9,
            kind=TABLETS_ALONE if number <= alone else KV,
        )  # fmt: skip
        store.put(LAYOUT.server(record.uuid), encode(record))
    return Bench(folder, store=store, servers=servers)


def regions_of(bench: Bench, name: str) -> list[RegionRecord]:
    """Return the regions of a table in the store."""
    table_id = bench.store.nodes[LAYOUT.name(name)][0].decode()
    prefix = f"{LAYOUT.table_regions(table_id)}/"
    return [decode_region(node[0]) for path, node in bench.store.nodes.items() if path.startswith(prefix)]


def transitions(bench: Bench) -> list[str]:
    """Return the paths of all transitions."""
    return [path for path in bench.store.nodes if LAYOUT.parse_transition(path) is not None]


def test_members_are_chosen_with_the_table(tmp_path: Path) -> None:
    """Evenly over the servers that take tablets, in both racks; no shared region is opened for it."""
    bench = bench_of(tmp_path, tablets=4)
    made = bench.ask(CreateTable("x", ["g", "p", "t"], replication=3))
    assert made.tables[0].table.storage is Storage.TABLET
    found = regions_of(bench, "x")
    assert {tuple(one.number for one in region.members) for region in found} == {(1, 2, 3)}
    assert {(region.next_number, region.state) for region in found} == {(4, TabletState.CREATING)}
    assert all({int(one.uuid[1]) % 2 for one in region.members} == {0, 1} for region in found)
    counts = [sum(one.uuid == uuid for region in found for one in region.members) for uuid in ("s1", "s2", "s3", "s4")]
    assert counts == [3, 3, 3, 3]


def test_the_assigner_of_shared_regions_ignores_members(tmp_path: Path) -> None:
    """The assigner numbers replicas from 0 and opens them on any server; the members of tablets are numbered from 1."""
    bench = bench_of(tmp_path, tablets=4)
    bench.ask(CreateTable("x", replication=3))
    for _ in range(5):
        bench.go_on(1.0)
    assert {path[-1] for path in transitions(bench)} == {"1", "2", "3"}
    bench.ask(CreateTable("y"))
    assert {path[-1] for path in transitions(bench)} == {"0", "1", "2", "3"}


def test_a_repeated_request_gets_the_first_members(tmp_path: Path) -> None:
    """The choice is in the store before the reply is sent."""
    bench = bench_of(tmp_path, tablets=4)
    request = CreateTable("x", replication=3, request_id="r-1")
    bench.ask(request)
    first = regions_of(bench, "x")
    assert bench.ask(request).tables[0].table.name == "x"
    assert regions_of(bench, "x") == first


def test_servers_without_a_shared_directory_get_tablets_alone(tmp_path: Path) -> None:
    """They count for tables of tablets, and the regions of a shared table go to the one server that has a directory."""
    bench = bench_of(tmp_path, tablets=4, alone=3)
    made = bench.ask(CreateTable("x", ["g", "p", "t"], replication=3))
    assert (made.tables[0].table.kind, made.tables[0].table.storage) == (KV, Storage.TABLET)
    assert {one.uuid for region in regions_of(bench, "x") for one in region.members} == {"s1", "s2", "s3", "s4"}
    shared = bench.ask(CreateTable("y", ["g", "p", "t"]))
    assert (shared.tables[0].table.kind, shared.tables[0].table.storage) == (KV, Storage.SHARED)
    for _ in range(5):
        bench.go_on(1.0)
    paths = [path for path in transitions(bench) if path.endswith("0")]
    assert {decode_transition(bench.store.nodes[path][0]).destination.uuid for path in paths} == {"s4"}  # type: ignore[union-attr]


def test_a_shared_table_is_refused_where_no_server_has_a_directory(tmp_path: Path) -> None:
    """A tablet instead would be a silent change: the death of its server would be an outage."""
    bench = bench_of(tmp_path, tablets=4, alone=4)
    assert bench.ask(CreateTable("x")) == ms.BAD_REQUEST
    assert bench.ask(CreateTable("x", storage="shared")) == ms.BAD_REQUEST
    assert LAYOUT.name("x") not in bench.store.nodes
    assert bench.ask(CreateTable("x", storage="tablet")).tables[0].table.storage is Storage.TABLET
    assert bench.ask(CreateTable("y", replication=3)).tables[0].table.kind == KV


@pytest.mark.parametrize(
    ("tablets", "in_force", "request_"),
    [
        (0, TABLETS, CreateTable("x", replication=3)),
        (2, TABLETS, CreateTable("x", replication=3)),
        (1, TABLETS, CreateTable("x", replication=3, allow_under_replicated=True)),
        (4, TABLETS, CreateTable("x", replication=5)),
        (4, TABLETS, CreateTable("x", replication=3, racks_min=3)),
        (4, TABLETS - 1, CreateTable("x", replication=3)),
        (4, TABLETS, CreateTable("x", replication=3, group="other")),
    ],
)
def test_a_table_without_enough_servers_is_rejected(
    tmp_path: Path, tablets: int, in_force: int, request_: CreateTable
) -> None:
    """Nothing is written."""
    bench = bench_of(tmp_path, tablets=tablets, in_force=in_force)
    assert bench.ask(request_) == ms.BAD_REQUEST
    assert LAYOUT.name("x") not in bench.store.nodes


@pytest.mark.parametrize(
    ("groups", "group", "expected"),
    [
        (("", "ssd"), "g9", "no server of group 'g9' is there; the servers that are there belong to the default group,"
                            " group 'ssd': create the table in one of these groups, or start servers of group 'g9'"),
        (("ssd",), "", "no server of the default group is there; the servers that are there belong to group 'ssd':"
                       " create the table in one of these groups, or start servers of the default group"),
        ((), "g9", "no region server is there: start region servers, then create the table"),
        (("", "ssd"), "ssd", ""),
    ],
)  # fmt: skip
def test_a_group_without_servers_is_named_with_the_groups_that_have_some(
    groups: tuple[str, ...], group: str, expected: str
) -> None:
    """With one copy in a shared directory the table would wait for the group just the same."""
    world = ClusterState()
    for number, name in enumerate(groups, 1):
        world.servers[f"s{number}"] = Server(ServerRecord(f"s{number}", "h", number, 7, group=name), draining=False)
    assert missing_group(group, world) == expected


def test_the_refusal_names_the_groups(tmp_path: Path) -> None:
    """The group is examined first: a table of one copy would wait in vain as well."""
    bench = bench_of(tmp_path, tablets=0)
    results: list[str] = []
    failed = ensureDeferred(bench.api.dispatch(CreateTable("x", replication=3, group="g9")))
    failed.addErrback(lambda failure: results.append(str(failure.value)))
    bench.go_on()
    assert "no server of group 'g9' is there" in results[0]
    assert "--replicas 1" not in results[0]


def test_a_majority_of_servers_suffices_if_the_operator_allows_it(tmp_path: Path) -> None:
    """Two of three."""
    bench = bench_of(tmp_path, tablets=2)
    bench.ask(CreateTable("x", replication=3, allow_under_replicated=True))
    (region,) = regions_of(bench, "x")
    assert ([one.number for one in region.members], region.next_number) == ([1, 2], 3)
    table_id = bench.store.nodes[LAYOUT.name("x")][0].decode()
    assert decode_table(bench.store.nodes[LAYOUT.table(table_id)][0]).replication == 3


def test_servers_below_their_reserve_get_no_first_replicas(tmp_path: Path) -> None:
    """Heartbeats have the free bytes of now; the registration has those of the start."""
    bench = bench_of(tmp_path, tablets=4)
    keeper = bench.active_master.keeper  # type: ignore[union-attr]
    keeper.disk_seen(Incarnation("s2", 7), NO_ROOM)
    keeper.disk_seen(Incarnation("s3", 6), NO_ROOM)
    bench.ask(CreateTable("x", replication=3))
    (region,) = regions_of(bench, "x")
    assert sorted(one.uuid for one in region.members) == ["s1", "s3", "s4"]
    keeper.disk_seen(Incarnation("s3", 7), NO_ROOM)
    results: list[str] = []
    refused = ensureDeferred(bench.api.dispatch(CreateTable("y", replication=3)))
    refused.addErrback(lambda failure: results.append(str(failure.value)))
    bench.go_on()
    assert "the disk of s2, s3 has less free space than its reserve" in results[0]
    keeper.disk_seen(Incarnation("s3", 7), 1 << 30)
    bench.ask(CreateTable("y", replication=3))


def test_a_startup_does_not_wipe_transitions_of_tablets(tmp_path: Path) -> None:
    """A member's server opens the replica that it had begun to make. Shared regions are assigned as usual."""
    store = LossyStore()
    lay_ground(store, servers=1)
    tablet = RegionRecord("u", "u.0", state=TabletState.CREATING, members=(Member(1, "s1"),), next_number=2)
    store.put(LAYOUT.table("u"), encode(TableRecord("u", "copies", replication=1, storage=Storage.TABLET)))
    store.put(LAYOUT.name("copies"), b"u")
    store.put(LAYOUT.table_regions("u"))
    store.put(LAYOUT.region("u", "u.0"), encode(tablet))
    kept, dead = LAYOUT.transition("u.0", 1), Incarnation("s1", 6)
    shared = LAYOUT.transition("t.0", 0)
    store.put(kept, encode(TransitionRecord("u.0", "u", 1, RegionState.OPENING, destination=dead)), 2)
    store.put(shared, encode(TransitionRecord("t.0", "t", 0, RegionState.OPENING, destination=dead)), 2)
    store.put(LAYOUT.region("t", "t.0"), encode(RegionRecord("t", "t.0")))
    before = dict(store.nodes)
    bench = Bench(tmp_path, store=store)
    active_master = bench.active_master
    assert active_master is not None
    assert active_master.path == "startup"
    waiting = decode_transition(store.nodes[kept][0])
    assert (waiting.state, waiting.begun) == (RegionState.OFFLINE, True)
    assert waiting.destination == Incarnation("s1", 7)
    assert store.nodes[LAYOUT.region("u", "u.0")] == before[LAYOUT.region("u", "u.0")]
    assert store.nodes.get(shared) != before[shared]


def test_tablets_are_split_and_merged_by_size() -> None:
    """Tried: without the look at the storage a shared table with several replicas gets a limit in vain."""
    ddl.plan_create(CreateTable("a", replication=3, split_above=100, merge_below=25))
    ddl.plan_create(CreateTable("a", storage="tablet", merge_below=25))
    with pytest.raises(RpcError, match="more than a quarter"):
        ddl.plan_create(CreateTable("a", replication=3, split_above=100, merge_below=26))
    with pytest.raises(RpcError, match="shared storage with one replica"):
        ddl.plan_create(CreateTable("a", replication=3, storage="shared", split_above=100))
