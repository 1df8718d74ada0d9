"""Kinds of service: the servers that may open a table; every way of placing a region checks the kind."""

from __future__ import annotations

import msgspec
import pytest

from regions.balance.balancer import propose
from regions.balance.cluster_snapshot import census
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain import objections
from regions.messages import ServerLoad
from regions.records.kinds import (
    KIND_MAX,
    KV,
    TABLETS_ALONE,
    can_open,
    check_group,
    check_kind,
    kind_in_tablets,
    kind_name,
    one_copy,
    pool,
    pool_words,
    resolve,
    takes_tablets_alone,
)
from regions.records.members import Storage
from regions.records.model import Move, MoveBatch, ServerRecord, TableRecord
from tests.unit.regions.balance.test_balancer import WIDE, carry_out, cluster, counts, fill
from tests.unit.regions.model_cluster import ModelCluster, at, region, server


def of_kind(record: ServerRecord, kind: str) -> ServerRecord:
    return msgspec.structs.replace(record, kind=kind)


TOO_LONG = f"{'k' * (KIND_MAX - 1)}/1"

KV_1, KV_2 = of_kind(server("a"), KV), of_kind(server("b"), "kv/2")
COUNTERS = of_kind(server("c"), "counters/1")


@pytest.mark.parametrize(
    ("of_server", "of_table", "may"),
    [
        ("kv/1", "kv/1", True),
        ("kv/2", "kv/1", True),
        ("kv/1", "kv/2", False),
        ("kv/10", "kv/9", True),
        ("counters/1", "kv/1", False),
        ("kv/1", "counters/1", False),
        # Records of builds without kinds.
        ("", "", True),
        ("kv/1", "", True),
        ("", "kv/1", True),
        ("", "kv/2", False),
        ("counters/1", "", False),
        ("", "counters/1", False),
    ],
)
def test_names_are_equal_and_the_version_is_enough(of_server: str, of_table: str, may: bool) -> None:
    assert can_open(of_server, of_table) is may


@pytest.mark.parametrize("kind", ["kv/1", "a/999999", "my.service-2_x/7", f"{'k' * (KIND_MAX - 2)}/1"])
def test_a_kind_is_a_name_and_a_version(kind: str) -> None:
    check_kind(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "kv",
        "kv/",
        "/1",
        "kv/0",
        "kv/01",
        "kv/1000000",
        "KV/1",
        "1kv/1",
        "kv/1\n",
        "k v/1",
        "kv#/1",
        "kv/1/1",
        TOO_LONG,
    ],
)
def test_anything_else_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="is no kind of service"):
        check_kind(kind)


@pytest.mark.parametrize(
    ("wanted", "offered", "kind"),
    [
        ("", [], KV),
        ("", ["counters/1"], "counters/1"),
        ("", ["", "kv/1"], "kv/1"),
        ("", ["kv/2", "kv/3", "kv/2"], "kv/2"),
        ("counters", ["kv/1", "counters/3", "counters/2"], "counters/2"),
        ("counters/9", ["kv/1"], "counters/9"),
        ("kv/1", [], "kv/1"),
    ],
)
def test_a_new_table_takes_the_kind_that_is_meant(wanted: str, offered: list[str], kind: str) -> None:
    assert resolve(wanted, offered) == kind


def test_a_new_table_is_refused_when_nothing_says_which_kind_is_meant() -> None:
    with pytest.raises(ValueError, match=r"several kinds \(counters/1, kv/1\): choose the table's kind with --kind"):
        resolve("", ["kv/1", "counters/1", "kv/2"])
    with pytest.raises(ValueError, match="no live server offers the kind 'counters'"):
        resolve("counters", ["kv/1"])
    with pytest.raises(ValueError, match="is no kind"):
        resolve("Counters", ["kv/1"])


def test_a_server_without_a_shared_directory_takes_tablets_alone() -> None:
    """Its kind is one that no table has, so masters that do not know it assign nothing there."""
    assert takes_tablets_alone(TABLETS_ALONE)
    assert not any(takes_tablets_alone(kind) for kind in ("", KV, "counters/1", "none/1"))
    for table_kind in ("", KV, "kv/2", "counters/1"):
        assert not can_open(TABLETS_ALONE, table_kind)
    assert can_open(kind_in_tablets(TABLETS_ALONE), KV)
    assert [kind_in_tablets(kind) for kind in ("", "kv/2", "counters/1")] == ["", "kv/2", "counters/1"]
    for wanted in (TABLETS_ALONE, "tablets"):
        with pytest.raises(ValueError, match="is a kind of servers"):
            resolve(wanted, [TABLETS_ALONE])


def test_pools_have_names_of_their_own() -> None:
    names = [pool(group, kind) for group in ("", "g", "counters") for kind in ("", "kv/2", "counters/1", "x/1")]
    assert len(set(names)) == 9  # "" and "kv/2" have one name
    assert pool("g", "") == "g"
    assert [pool_words(pool("", "")), pool_words(pool("g", "kv/1"))] == ["(default)", "g"]
    assert pool_words(pool("", "counters/1")) == "(default) of kind counters"
    assert kind_name("") == "kv"
    with pytest.raises(ValueError, match="which is not allowed"):
        check_group(pool("g", "counters/1"))


# --- placement --------------------------------------------------------------------------------------------------------


def test_a_service_of_its_own_leaves_key_value_regions_alone() -> None:
    """A server of another kind that registers beside a server with all regions gets none of these regions, not even
    after a death."""
    cluster = ModelCluster()
    cluster.put(*(region(f"r{n}") for n in range(6)))
    cluster.start(KV_1, COUNTERS)
    assert set(cluster.open.values()) == {at("a")}
    cluster.kill("a")
    problem = cluster.problems()[0]
    assert "its kind is counters/1, and the table needs kv/1" in problem
    cluster.join(KV_2)
    assert {cluster.where(f"r{n}") for n in range(6)} == {"b"}


def test_its_tables_go_to_its_servers_alone() -> None:
    cluster = ModelCluster()
    cluster.tables["c1"] = (TableRecord("c1", "hits", kind="counters/1"), 0)
    cluster.put(region("r1"), region("s1", table_id="c1"))
    cluster.start(KV_1, COUNTERS)
    assert (cluster.where("r1"), cluster.where("s1")) == ("a", "c")
    replica = cluster.assigner.world.replicas["s1-0"]
    assert objections(replica, cluster.assigner.world) == {"a": "its kind is kv/1, and the table needs counters/1"}


def test_a_plan_that_gives_a_region_to_another_kind_is_not_followed() -> None:
    """Its snapshot is older than the servers; and it has no versions of kinds."""
    cluster = ModelCluster(AssignerConfig(bulk_min=2))
    cluster.tables["t1"] = (TableRecord("t1", "orders", kind="kv/2"), 0)
    cluster.put(region("r1"), region("r2"), region("r3"))
    cluster.start(KV_1, KV_2, COUNTERS)
    cluster.handle(ev.PlanReady("p", cluster.plans[0].keys, {"r1-0": "c", "r2-0": "a", "r3-0": "b"}))
    assert [cluster.where(f"r{n}") for n in (1, 2, 3)] == ["b", "b", "b"]


def test_an_accepted_move_to_a_server_that_returned_as_another_kind_is_not_made() -> None:
    cluster = ModelCluster()
    cluster.put(region())
    cluster.start(KV_1)
    cluster.join(KV_2)
    cluster.join(COUNTERS)
    batch = MoveBatch("m1", (Move("r1-0", at("a"), "c"),))
    cluster.moves["m1"] = batch
    cluster.handle(ev.MovesAccepted(batch))
    assert cluster.where() == "a"  # on its former server instead of another one


def test_a_refused_order_is_given_to_a_server_of_the_right_kind() -> None:
    """An earlier build began the transition: its destination rejects the order and names the reason."""
    cluster = ModelCluster()
    cluster.put(region())
    cluster.failing["a"] = "the server is of kind counters/1, the table of kind kv/1"
    cluster.start(of_kind(server("a"), ""), KV_2)
    cluster.pass_time(5_000)
    assert cluster.where() == "b"


def test_the_balancer_keeps_kinds_apart_and_brings_strays_home() -> None:
    world = cluster(
        *(of_kind(server(name), KV) for name in "ab"), *(of_kind(server(name), "counters/1") for name in "xy")
    )
    fill(world, "t", {"a": 8, "x": 4})
    proposal = propose(world, WIDE)
    carry_out(world, proposal)
    assert counts(world) == {"a": 6, "b": 6, "x": 0, "y": 0}
    strays = [move.reason for move in proposal.moves if move.source == "x"]
    assert len(strays) == 4
    assert set(strays) == {"its table and its server differ: the table needs kind kv/1, the server is counters/1"}


def test_the_balancer_heeds_the_version() -> None:
    world = cluster(of_kind(server("a"), "kv/2"), of_kind(server("b"), "kv/1"))
    world.put_table(TableRecord("t", "new", kind="kv/2"), 0)
    fill(world, "t", {"a": 6})
    assert propose(world, WIDE).moves == []


@pytest.mark.parametrize("kind", ["", KV, "kv/2"])
def test_the_key_value_service_keeps_one_copy(kind: str) -> None:
    assert one_copy(kind, 1, Storage.SHARED) == ""
    assert "replication is 2, and one copy of the rows is kept" in one_copy(kind, 2, Storage.SHARED)
    assert one_copy("counters/1", 3, Storage.SHARED) == ""
    assert one_copy(kind, 3, Storage.TABLET) == ""


def test_planners_see_a_group_and_a_kind_as_one_pool() -> None:
    servers = [ServerLoad(one, 0, 0, 0, 0) for one in (KV_1, COUNTERS)]
    assert census(servers, []).servers.grp.tolist() == ["", "#counters"]


def test_a_table_of_an_earlier_build_waits_until_its_kind_is_named() -> None:
    """It counts as a key-value table, which no server of its real kind may open."""
    cluster = ModelCluster()
    cluster.put(region())
    cluster.start(COUNTERS)
    assert cluster.where() is None
    cluster.change_table(kind="counters/1")
    assert cluster.where() == "c"
