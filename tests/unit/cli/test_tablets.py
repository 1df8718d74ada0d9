"""`rk tablet`, and the output of fsck and why for tablets, over a real keeper with a master and servers."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from cli.common.asking.refusals import refusal
from cli.common.errors import UnreachableError
from cli.common.local import Daemon, LocalCluster
from cli.common.lookup import FoundRegion
from cli.common.names import Names
from cli.diagnose import status
from cli.main import rk
from cli.tablets import command, reading, why
from cli.tablets.matrix import show_tablets, tablets_found
from cli.tablets.why import TabletWhy
from coord.rpc.wire import RpcError
from master.api.tablets import list_tablets, show_tablet
from regions import messages as ms
from regions.cluster.history import SERVER_DOWN, Segment, pack
from regions.diagnose.fsck_tablets import check_all
from regions.messages import OwnReplica, ReplicaList
from regions.messages.heartbeat import ReplicaState, TabletReport
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.model import RegionRecord, ServerRecord, TableRecord
from regions.records.resharding.parents import Parent
from regions.records.znodes import Layout, encode
from regions.replication.effects import marked_replaced
from regions.transitions.entries import HistoryEntry
from tests.unit.master.api.test_tablets import world_of
from tests.unit.regions.diagnose.tablet_cluster import TabletCluster


class FakeCluster:
    """A cluster whose active master watches a `TabletCluster`."""

    layout = Layout()

    def __init__(self, tablets: TabletCluster) -> None:
        self.tablets = tablets
        self.asked: list[Any] = []
        #: Names of a local cluster's daemons by address.
        self.local: Any = None
        #: Segments of the history by name.
        self.history: dict[str, bytes] = {}
        #: Splits under way by path.
        self.works: dict[str, bytes] = {}

    def tables(self) -> list[TableRecord]:
        return [TableRecord("1a2b3c4d", "orders")]

    def children(self, path: str) -> list[str]:
        if path == self.layout.reshardings:
            return [one.rpartition("/")[2] for one in self.works]
        assert path == self.layout.history
        return list(self.history)

    def get_many(self, paths: dict[str, str]) -> dict[str, bytes]:
        known = {**self.history, **self.works}
        return {name: known[name] for name in paths if name in known}

    @staticmethod
    def understood(values: dict[str, bytes], decode: Callable[[bytes, str], Any]) -> dict[str, Any]:
        return {name: decode(data, name) for name, data in values.items()}

    def servers(self) -> list[ServerRecord]:
        return [one.record for one in self.tablets.world.machines.values() if one.lives]

    def ask_master(self, message: Any, expect: type, timeout_s: float = 0.0) -> Any:
        self.asked.append(message)
        answer = list_tablets if isinstance(message, ms.ListTablets) else show_tablet
        now = self.tablets.world.now
        try:
            found = answer(self.tablets.watch, world_of(self.tablets), message, now)  # type: ignore[arg-type]
        except RpcError as error:
            raise refusal(error, message) from error
        assert isinstance(found, expect)
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two tablets on three servers, one of which died 5 s ago."""
    tablets = TabletCluster()
    dead = next(uuid for uuid in tablets.world.machines if uuid != tablets.leader("t.0"))
    tablets.world.stop(tablets.machine(dead))
    tablets.pass_time(5_000)
    made = FakeCluster(tablets)

    @contextlib.contextmanager
    def opened(_given: object) -> Iterator[FakeCluster]:
        yield made

    monkeypatch.setattr(command, "open_cluster", opened)
    monkeypatch.setattr(command, "read_replicas", lambda _servers, _tablets: made.tablets.view().replicas)
    return made


def run(*words: str) -> Any:
    return CliRunner().invoke(rk, ["tablet", *words], standalone_mode=False)


def test_list_says_what_stands_against_each(cluster: FakeCluster) -> None:
    """Health, leader, members and the reason, in text and as JSON."""
    found = run("list")
    assert found.exception is None
    lines = found.output.splitlines()
    assert lines[0].split() == ["tablet", "table", "keys", "health", "leader", "members", "why"]
    assert lines[3] == "leaders: s0 0, s1:1 1, s2:1 1"
    assert "UNDER_REPLICATED" in lines[1]
    assert "2 of 3 voters are healthy" in lines[1]
    assert "its server is not registered" in lines[1]
    payload = json.loads(run("list", "--json").output)
    assert payload["counts"] == {"UNDER_REPLICATED": 2}
    assert [len(one["members"]) for one in payload["tablets"]] == [3, 3]


def test_a_dead_server_keeps_its_name(cluster: FakeCluster) -> None:
    """The history in the store has its address; damaged and missing segments are skipped."""
    [dead] = [one for one in cluster.tablets.world.machines.values() if not one.lives]
    record = dead.record
    daemon = Daemon("server-2", "server", f"{record.host}:{record.port}", "", "", "")
    cluster.local = LocalCluster("", "", False, 1, [], [], [daemon])
    assert "server-2" not in run("list").output
    gone = HistoryEntry(7, "", "server", "", "", SERVER_DOWN, record.uuid, detail=f"{record.host}:{record.port}")
    step = HistoryEntry(8, "t.0-1", "server", "", "CLOSING", "drain", record.uuid, detail="an error")
    for number, data in enumerate((pack([gone, step]), b"damaged", *(pack([step]) for _ in range(40)))):
        cluster.history[Segment(3, number, 1, len(data)).name] = data
    for words in (["list"], ["show", "t.0"]):
        found = run(*words)
        assert found.exception is None
        assert "server-2" in found.output
        assert record.uuid not in found.output.split()
    run("list", "--server", "server-2")
    assert cluster.asked[-1].server == record.uuid


def test_filters_reach_the_master(cluster: FakeCluster) -> None:
    """A server by name or by a prefix of its uuid; a server that does not run by its whole uuid."""
    found = run("list", "--table", "orders", "--server", cluster.tablets.leader("t.0"), "--health", "healthy")
    assert "no tablet fits" in found.output
    [asked] = cluster.asked
    assert asked == ms.ListTablets("orders", cluster.tablets.leader("t.0"), [ms.TabletHealth.HEALTHY])
    assert run("list", "--server", "f" * 32).exception is None
    assert cluster.asked[-1].server == "f" * 32
    wrong = run("list", "--server", "server-9").exception
    assert str(wrong) == "no live server 'server-9'"
    assert "whole uuid" in wrong.hint


def test_limit_and_pages(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is read in pages; --limit says whether there are more tablets."""
    monkeypatch.setattr(ms, "TABLETS_PAGE_MAX", 1)
    assert len(json.loads(run("list", "--json").output)["tablets"]) == 2
    assert [one.after for one in cluster.asked] == ["", "t.0"]
    assert "only the first 1 are shown" in run("list", "--limit", "1").output


def test_show_has_unknown_where_nobody_has_reported(cluster: FakeCluster) -> None:
    """The dead member's role, term and applied entry are `?`, never 0; the leader is marked."""
    found = run("show", "t.0")
    assert found.exception is None
    text = found.output
    assert "UNDER_REPLICATED for " in text
    dead = next(line for line in text.splitlines() if "(not registered)" in line)
    assert dead.count("?") == 5
    group = cluster.tablets.world.groups["t.0"]
    assert any(line.strip().startswith(f"{group.leader}*") for line in text.splitlines())
    shown = json.loads(run("show", "t.0", "--json").output)
    member = next(one for one in shown["members"] if not one["is_registered"])
    assert (member["state"], member["term"], member["applied_index"], member["health"]) == (None, None, None, "UNKNOWN")


def test_show_has_the_present_figures_of_the_servers(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are not those of the last report to the master, because a follower reports only when its state or
    role changes."""
    view, leader = cluster.tablets.view().replicas, cluster.tablets.leader("t.0")
    follower = next(one for one in view if view[one] and one != leader)
    number = next(one.report.number for one in view[follower] or [] if one.report.region_id == "t.0")

    def answer(_servers: object, tablets: list[str]) -> dict[str, list[OwnReplica] | None]:
        assert tablets == ["t.0"]
        own = {uuid: list(found or []) for uuid, found in view.items()}
        for uuid in (leader, follower):
            at = next(at for at, one in enumerate(own[uuid]) if one.report.region_id == "t.0")
            report = msgspec.structs.replace(own[uuid][at].report, applied_index=4711, size_bytes=812)
            if report.leader is not None:
                health = tuple(
                    msgspec.structs.replace(one, behind=17 if one.number == number else 0)
                    for one in report.leader.health
                )
                report = msgspec.structs.replace(report, leader=msgspec.structs.replace(report.leader, health=health))
            own[uuid][at] = OwnReplica(report)
        return {**own, follower: own[follower] if is_answering else None}

    is_answering = True
    monkeypatch.setattr(command, "read_replicas", answer)
    members = {one["number"]: one for one in json.loads(run("show", "t.0", "--json").output)["members"]}
    assert [members[number][name] for name in ("applied_index", "size_bytes", "behind")] == [4711, 812, 17]
    is_answering = False
    members = {one["number"]: one for one in json.loads(run("show", "t.0", "--json").output)["members"]}
    assert [members[number][name] for name in ("applied_index", "size_bytes", "behind")] == [None, None, 17]


def test_mistakes_of_newcomers(cluster: FakeCluster) -> None:
    """Unknown and ambiguous tablets, and regions of a shared table: one sentence with a remedy."""
    cases = [
        ("x", 4, "no tablet 'x'", "`rk tablet list` shows the tablets."),
        (
            "orders", 4, "no tablet 'orders'",
            "It is a table: name one of `rk tablet list --table orders`, or the tablet of a key, orders:KEY.",
        ),
        ("t", 1, "'t' begins the ids of 2 tablets: t.0, t.1", "Give more of the id."),
        (
            "u.0", 1, "u.0 is no tablet: the rows of table counters lie in the shared directory",
            "`rk why u.0` shows where the region is.",
        ),
    ]  # fmt: skip
    for name, code, text, hint in cases:
        error = run("show", name).exception
        assert (error.exit_code, error.message, error.hint) == (code, text, hint)
    error = run("list", "--table", "counters").exception
    assert error.hint == "`rk region list --table counters` shows its regions."


def test_orphans_are_named(cluster: FakeCluster) -> None:
    """An orphan is a replica that no table knows."""
    keeper = cluster.tablets.watch.keeper
    leader = cluster.tablets.machine(cluster.tablets.leader("t.0"))
    keeper.reported(leader.incarnation, [TabletReport("x.7", "x", 2, ReplicaState.RUNNING)], [])
    assert "has replica x.7-2 (RUNNING), which the store does not know" in run("list").output.replace("\n", " ")


def test_the_matrix(cluster: FakeCluster) -> None:
    """A row for the store and for each member; the leader is marked; unknown values are `?`."""
    view = cluster.tablets.view()
    stream = io.StringIO()
    names = Names(cluster.servers(), None)
    show_tablets(tablets_found(check_all(view)[1]), names, Console(file=stream, width=200))
    lines = stream.getvalue().splitlines()
    assert lines[0].split() == ["table", "tablets", "UNDER_REPLICATED"]
    assert lines[1].split() == ["orders", "2", "2"]
    assert lines[2].startswith("orders t.0 ")
    header = lines[3].split()
    assert header[:2] == ["view", "of"]
    store, *rows = lines[4:8]
    group = cluster.tablets.world.groups["t.0"]
    marks = ["V*" if number == group.leader else "V" for number in (1, 2, 3)]
    assert store.split()[:6] == ["the", "store", *marks, "RUNNING"]
    assert sum("no answer" in row for row in rows) == 1
    silent = next(row for row in rows if "no answer" in row)
    assert silent.split()[1:4] == ["?", "?", "?"]
    assert all(row.split()[3:6] == marks for row in rows if "no answer" not in row)


def test_servers_are_asked_in_pages_with_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for a server that is late, that rejects the request or that was restarted; complete lists from the
    others."""
    servers = [
        ServerRecord(uuid, "h", port, 1, tablets=uuid != "shared")
        for port, uuid in enumerate(("pages", "late", "old", "again", "shared"), 1)
    ]
    own = [OwnReplica(TabletReport(f"t.{at}", "t", 1, ReplicaState.RUNNING)) for at in range(2)]

    def answer(server: ServerRecord, message: ms.ShowReplicas, _expect: type, timeout_s: float) -> ReplicaList:
        assert 0 < timeout_s <= 5.0
        assert server.uuid == message.recipient != "shared"
        if server.uuid in ("late", "old"):
            raise RpcError("timeout" if server.uuid == "late" else ms.BAD_REQUEST, "")
        if server.uuid == "again":
            return ReplicaList("again", 2, own)
        return ReplicaList("pages", 1, own[1:] if message.after else own[:1], "" if message.after else "t.0")

    monkeypatch.setattr(reading, "ask_server", answer)
    assert reading.read_replicas(servers) == {"pages": own, "late": None, "old": None, "again": None}
    assert reading.read_replicas(servers, timeout_s=0) == {"pages": None, "late": None, "old": None, "again": None}


def why_of(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, master: bool) -> tuple[TabletWhy, str]:
    """Return the answer and the output of `rk why t.0`, with or without a master."""
    view = cluster.tablets.view()
    region = next(one for one in view.regions["t"] if one.region_id == "t.0")

    def ask_active(_cluster: object, message: Any, expect: type) -> Any:
        if not master:
            raise UnreachableError("no master is active")
        return cluster.ask_master(message, expect)

    monkeypatch.setattr(why, "view_of_tablet", lambda _cluster, _found: view)
    monkeypatch.setattr(why, "ask_active", ask_active)
    answer = why.tablet_answer(cluster, FoundRegion(region, view.tables[0]))  # type: ignore[arg-type]
    stream = io.StringIO()
    why.show_answer(answer, Names(cluster.servers(), None), Console(file=stream, width=200))
    return answer, stream.getvalue()


def test_why_judges_alike_with_and_without_a_master(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health and reason are the same; without a master the screen names the judge, and "since" is unknown."""
    with_master, text = why_of(cluster, monkeypatch, master=True)
    alone, text_alone = why_of(cluster, monkeypatch, master=False)
    assert (with_master.from_master, alone.from_master) == (True, False)
    assert (with_master.tablet.health, with_master.tablet.reason) == (alone.tablet.health, alone.tablet.reason)
    assert (with_master.tablet.at_least, alone.tablet.at_least) == (False, True)
    assert with_master.views == alone.views
    assert "judged from the store" not in text
    assert text_alone.startswith("judged from the store and the servers' own answers: no master is active")
    assert "try  start server " in text
    assert "each replica's own view of the configuration" in text


def test_why_names_the_split_in_which_a_tablet_takes_part(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tablet may be the parent, or a daughter, whose record names the parent."""
    daughters = (RegionRecord("t", "t.0A"), RegionRecord("t", "t.0B", start_key="f"))
    work = ReshardingRecord("t", ("t.0",), daughters, ReshardingState.CLOSING, seal="1.1")
    assert why_of(cluster, monkeypatch, master=True)[0].split == ""
    cluster.works[cluster.layout.resharding("t.0")] = encode(work)
    answer, text = why_of(cluster, monkeypatch, master=True)
    assert answer.split.startswith("the split of t.0 at 'f' is CLOSING: ")
    assert answer.split in text
    cluster.works.clear()
    cluster.tablets.alter_record("t.0", parents=(Parent("t.P", 7),))
    cleaning = msgspec.structs.replace(work, parents=("t.P",), state=ReshardingState.CLEANING)
    cluster.works[cluster.layout.resharding("t.P")] = encode(cleaning)
    assert "the replicas of t.P stay until t.0A and t.0B are led" in why_of(cluster, monkeypatch, master=False)[1]
    merge = ReshardingRecord("t", ("t.", "t.0"), (RegionRecord("t", "t.M"),), seal="1.2")
    cluster.works = {cluster.layout.resharding("t."): encode(merge)}
    assert "the merge of t. and t.0 is PREPARING" in why_of(cluster, monkeypatch, master=True)[1]


def test_why_needs_no_master_for_a_tablet_that_was_split(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters forget a split tablet, and its daughters' ids begin with its own."""
    record = marked_replaced(cluster.tablets.world.regions["t.0"][0])
    cluster.tablets.alter_record("t.0", state=record.state, members=record.members)
    answer, text = why_of(cluster, monkeypatch, master=True)
    assert (answer.from_master, answer.note, answer.tablet.reason) == (False, "", "it was split or merged")
    assert cluster.asked == []
    assert "CLOSED" in text


def test_status_counts_tablets_by_health() -> None:
    """Healths without tablets are omitted; unknown leaders are `?`."""
    lines = [
        status.ServerLine("server-1", "h:1", "up", tablets=3, leaders=None),
        status.ServerLine("server-2", "h:2", "up", tablets=2, leaders=0),
    ]
    found = status.Status([], servers=lines, tablets={"UNAVAILABLE": 2, "HEALTHY": 190})
    stream = io.StringIO()
    status.show(found, Names([], None), Console(file=stream, width=200))
    text = stream.getvalue()
    assert "tablets: 190 HEALTHY, 2 UNAVAILABLE" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("server-")]
    assert [row[-2:] for row in rows] == [["3", "?"], ["2", "0"]]
