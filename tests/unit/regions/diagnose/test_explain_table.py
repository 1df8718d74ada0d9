"""Why a table is not at rest, and who blocks it: ALTERING (DD-07), in creation (DD-03), closing, deleted (N6)."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain_table import EXAMINED_MAX, explain_table
from regions.diagnose.live.work_in_progress import look
from regions.diagnose.problems import problems as problems_of
from regions.messages import NextActor, TableExplanation
from regions.records.model import TableIntent, TableState, TabletState
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

A, B = server("a"), server("b")
CONFIG = AssignerConfig(bulk_min=1_000)


def said_of(cluster: ModelCluster) -> TableExplanation:
    assigner = cluster.assigner
    return explain_table(assigner.world.tables["t1"], assigner.world, assigner.config, cluster.now)


def waits(cluster: ModelCluster) -> list[tuple[int, NextActor, str]]:
    return [(one.replicas, one.actor, one.server) for one in said_of(cluster).waiting]


def problems(cluster: ModelCluster) -> list[str]:
    assigner = cluster.assigner
    work = look(assigner.world.active.values(), assigner.unplaceable())
    return problems_of(assigner.world, work, assigner.unplaceable(), assigner.config, cluster.now, 20)


def altering() -> ModelCluster:
    """Return two regions on a, two on b; b does not receive the alteration."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1", at("a")), region("r2", at("a")), region("r3", at("b")), region("r4", at("b")))
    cluster.deaf = {"b"}
    cluster.start(A, B)
    cluster.alter()
    return cluster


def creating(*servers: str) -> ModelCluster:
    """Return two regions that were never open; a accepts orders and does nothing."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(msgspec.structs.replace(region(name), state=TabletState.PREPARING) for name in ("r1", "r2")))
    cluster.silent = {"a"}
    cluster.start(*(server(one) for one in servers))
    return cluster


def test_the_server_that_has_not_said_that_it_follows_is_named_with_what_it_has() -> None:
    """DD-07: how many replicas, on which server, which version, since when; after a while it is a problem."""
    cluster = altering()
    assert problems(cluster) == [], "a moment of ALTERING is usual"
    cluster.pass_time(CONFIG.table_late_ms + 1_000)
    said = said_of(cluster)
    assert (said.standing, said.headline) == ("ALTERING", "2 of 4 replicas have not confirmed schema version 1")
    assert waits(cluster) == [(2, NextActor.SERVER, "b")]
    assert said.waiting[0].text == "open on b, which has not confirmed schema version 1 yet"
    assert any("rk server fence b" in way for way in said.way_out)
    [line] = problems(cluster)
    assert line.startswith("table orders has been ALTERING for 1")
    assert line.endswith(": 2 replicas open on b, which has not confirmed schema version 1 yet")
    cluster.deaf.clear()
    cluster.pass_time(31_000)
    assert (said_of(cluster).standing, problems(cluster)) == ("RUNNING", [])


def test_the_next_alteration_that_takes_long_counts_from_its_own_beginning() -> None:
    cluster = altering()
    cluster.deaf.clear()
    cluster.pass_time(60_000)
    cluster.deaf.add("b")
    cluster.alter()
    cluster.pass_time(1_000)
    assert (said_of(cluster).standing, problems(cluster)) == ("ALTERING", [])


def test_a_table_whose_server_does_not_begin_is_creating() -> None:
    """DD-03: the server that has the order and does nothing is named."""
    cluster = creating("a")
    cluster.pass_time(CONFIG.table_late_ms)
    assert said_of(cluster).standing == "CREATING"
    assert said_of(cluster).headline == "2 of 2 replicas have not been opened yet"
    assert waits(cluster) == [(2, NextActor.SERVER, "a")]
    [line] = problems(cluster)
    assert line == "table orders has been CREATING for 10 s: 2 replicas OFFLINE: server a was ordered to open it"


def test_a_table_without_a_server_is_preparing_and_an_operator_must_act() -> None:
    """HB-13: the request is not rejected for lack of servers; the explanation says what is missing."""
    cluster = creating("a")
    cluster.kill("a")
    cluster.pass_time(CONFIG.table_late_ms + 5_000)
    assert said_of(cluster).standing == "PREPARING"
    assert [(one.replicas, one.actor) for one in said_of(cluster).waiting] == [(2, NextActor.OPERATOR)]
    assert any(line.startswith("table orders has been PREPARING for") for line in problems(cluster))


@pytest.mark.parametrize(
    ("change", "word", "rest"),
    [
        ({"intent": TableIntent.DISABLED}, "CLOSING", "DISABLED"),
        ({"state": TableState.REMOVED}, "BEING DELETED", ""),
    ],
)
def test_a_table_that_closes(change: dict[str, object], word: str, rest: str) -> None:
    """FW-04, DD-06: the server that has not closed its region is named."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1", at("a")), region("r2", at("b")))
    cluster.silent = {"a"}
    cluster.start(A, B)
    cluster.change_table(**change)
    cluster.pass_time(2_000)
    assert said_of(cluster).standing == word
    assert said_of(cluster).headline == "1 of 2 replicas is not closed yet"
    assert waits(cluster) == [(1, NextActor.SERVER, "a")]
    cluster.kill("a")
    cluster.pass_time(1_000)
    if rest:
        assert (said_of(cluster).standing, waits(cluster)) == (rest, [])
    else:
        assert "t1" not in cluster.assigner.world.tables


def test_at_rest_nobody_waits() -> None:
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1", at("a")))
    cluster.start(A)
    said = said_of(cluster)
    assert (said.standing, said.waiting, said.way_out) == ("RUNNING", [], [])
    assert said.headline == "all replicas are open"


def test_a_huge_table_is_not_looked_at_whole() -> None:
    """An answer must be fast: the other replicas are only counted."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(region(f"r{number}") for number in range(EXAMINED_MAX + 5)))
    cluster.start()
    said = said_of(cluster)
    assert (sum(one.replicas for one in said.waiting), said.not_looked_at) == (EXAMINED_MAX, 5)


def test_a_table_that_keeps_fewer_copies_than_it_asks_for_is_told_of() -> None:
    """Such tables were created before the rejection existed: all of it is open, and one server's disk has the rows."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1", at("a")))
    cluster.start(A, B)
    assert said_of(cluster).notes == []
    cluster.change_table(replication=2)
    [note] = said_of(cluster).notes
    assert note == "replication is 2, and one copy of the rows is kept: kind kv/1 copies no rows to replicas"


def test_a_split_under_way_is_told_of_with_a_region_to_ask_about() -> None:
    """The parent is forgotten when its daughters have replaced it, so one of these is named."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1A", at("a")), region("r1B", at("a")), region("r2", at("a")))
    cluster.start(A)
    for name in ("r1A", "r1B"):
        cluster.assigner.world.regions[name].resharding = "r1"
    assert said_of(cluster).notes == ["a split or merge is under way, such as that of r1: rk why r1B"]
    cluster.assigner.world.regions["r2"].resharding = "r2"
    assert said_of(cluster).notes == ["2 splits and merges are under way, such as that of r1: rk why r1B"]
