"""Fencing requested by an operator: the fence in the store, and the reply with the regions' new servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from master.assignment.fencing import BAR_MS_MAX, bar_duration_text
from master.catalog import store
from regions import messages as ms
from regions.cluster import effects as fx
from regions.records.model import BarRecord, ServerRecord
from regions.records.znodes import decode_bar, encode
from tests.unit.master.active_fixture import LAYOUT, Bench

FENCE = ms.FenceServer("s1", "it hangs", 7, fx.BAR_FOR_EVER)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path, servers=2)
    found.hold_servers()
    return found


def deliver_events(bench: Bench, path: str) -> None:
    """Deliver the store's events to the master."""
    for watched, callback in list(bench.store.persistent):
        if path.startswith(f"{watched}/"):
            callback(1, path, 0)
    bench.go_on()


def test_the_fence_and_the_bar_are_one_write(bench: Bench) -> None:
    answer = bench.ask(FENCE)
    assert answer.detail.startswith("s1 is fenced until `rk server unfence`; its 1 replicas will open on other servers")
    [multi] = [ops for ops in bench.store.multis if any(op.path == LAYOUT.bar("s1") for op in ops)]
    assert {op.path for op in multi} >= {LAYOUT.server("s1"), LAYOUT.fence_mark("s1")}
    bar = decode_bar(bench.store.nodes[LAYOUT.bar("s1")][0])
    assert (bar.start_code, bar.reason, bar.until_ms, bar.epoch) == (7, "it hangs", 0, 4)


def test_a_fence_without_a_reason_has_one_in_the_store(bench: Bench) -> None:
    """`rk server fence --reason ""`: a server with the reason "" would not count as fenced."""
    assert bench.ask(ms.FenceServer("s1", "", 7, fx.BAR_FOR_EVER)).detail.startswith("s1 is fenced")
    assert decode_bar(bench.store.nodes[LAYOUT.bar("s1")][0]).reason == "no reason given"


def test_a_bars_time_counts_from_the_fencing(bench: Bench) -> None:
    bench.ask(ms.FenceServer("s1", bar_ms=600_000))
    bar = decode_bar(bench.store.nodes[LAYOUT.bar("s1")][0])
    assert bar.until_ms == bar.at_ms + 600_000


def test_a_fence_without_a_bar_lets_the_server_get_regions_at_once(bench: Bench) -> None:
    """`rk fsck --fix` and `rk unstick` fence like this: the server is to register again and get regions."""
    bench.ask(ms.FenceServer("s1"))
    assert LAYOUT.bar("s1") not in bench.store.nodes
    assert LAYOUT.fence_mark("s1") in bench.store.nodes


def test_a_request_for_another_start_code_is_rejected(bench: Bench) -> None:
    """A request repeated after a failover does not fence a server that has registered meanwhile."""
    assert bench.ask(ms.FenceServer("s1", start_code=6)) == ms.BAD_REQUEST
    assert bench.ask(ms.FenceServer("s1", bar_ms=-2)) == ms.BAD_REQUEST
    assert bench.ask(ms.FenceServer("s1", bar_ms=BAR_MS_MAX + 1)) == ms.BAD_REQUEST
    assert bench.ask(ms.FenceServer("s9")) == ms.NOT_FOUND
    assert LAYOUT.server("s1") in bench.store.nodes
    bench.ask(ms.FenceServer("s1", bar_ms=BAR_MS_MAX))
    assert LAYOUT.bar("s1") in bench.store.nodes


def test_the_reply_waits_and_says_where_the_regions_went(bench: Bench) -> None:
    answers: list[Any] = []
    bench.ask_into(ms.FenceServer("s1", bar_ms=fx.BAR_FOR_EVER, wait_ms=60_000), answers)
    bench.go_on()
    assert answers == []
    active_master = bench.active_master
    assert active_master is not None
    replica = active_master.world.replicas["t.0-0"]
    active_master.world.set_home(replica, active_master.world.servers["s2"].incarnation)
    bench.go_on(1.0)
    assert [one.places for one in answers] == [{"s2": 1}]
    assert answers[0].detail == "s1 is fenced until `rk server unfence`; of its 1 replicas, 1 on s2"


def test_a_wait_that_times_out_says_how_many_regions_are_left(bench: Bench) -> None:
    answers: list[Any] = []
    bench.ask_into(ms.FenceServer("s1", bar_ms=fx.BAR_FOR_EVER, wait_ms=1_000), answers)
    bench.go_on()
    bench.go_on(1.5)
    assert answers == [ms.TIMED_OUT]


def test_unfence_replies_when_the_master_itself_counts_the_server_again(bench: Bench) -> None:
    """A balance that an operator requests next must not find the server barred."""
    answers: list[Any] = []
    assert bench.ask(ms.UnfenceServer("s1")) == ms.NOT_FOUND
    bench.ask(FENCE)
    deliver_events(bench, LAYOUT.bar("s1"))
    listed = bench.ask(ms.ListServers())
    assert [one.bar is not None for one in listed.servers] == [True, False]
    bench.ask_into(ms.UnfenceServer("s1"), answers)
    bench.go_on()
    assert LAYOUT.bar("s1") not in bench.store.nodes
    assert answers == []
    deliver_events(bench, LAYOUT.bar("s1"))
    assert [one.detail for one in answers] == ["server s1 may get regions again"]
    assert bench.active_master is not None
    assert bench.active_master.world.bars == {}


def test_the_end_of_a_bar_does_not_remove_a_newer_one(bench: Bench) -> None:
    """An operator has fenced the server again while the end of the former bar was in flight."""
    assert bench.active_master is not None
    former, newer = BarRecord("s1", 7, "old", 1), BarRecord("s1", 7, "new", 0)
    bench.store.put(LAYOUT.bar("s1"), encode(newer))
    ensureDeferred(store.end_bar(bench.active_master.fence, former))
    bench.go_on()
    assert decode_bar(bench.store.nodes[LAYOUT.bar("s1")][0]) == newer
    ensureDeferred(store.end_bar(bench.active_master.fence, newer))
    bench.go_on()
    assert LAYOUT.bar("s1") not in bench.store.nodes


def test_the_next_master_loads_the_bar(bench: Bench, tmp_path: Path) -> None:
    """Also the bar of a server that has registered again under another start code."""
    bench.ask(FENCE)
    bench.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 8)))
    later = bench.succeeded_by(tmp_path / "later")
    assert later.active_master is not None
    assert [one.bar is not None for one in later.ask(ms.ListServers()).servers] == [True, False]
    assert any("s1 was fenced" in line for line in later.active_master.problems(20))


def test_a_server_that_is_not_running_is_listed(bench: Bench) -> None:
    bar = BarRecord("s9", 3, "gone")
    bench.store.put(LAYOUT.bar("s9"), encode(bar))
    deliver_events(bench, LAYOUT.bar("s9"))
    assert bench.ask(ms.ListServers()).barred == [bar]


def test_texts_of_bars() -> None:
    assert [bar_duration_text(ms) for ms in (0, -1, 90_000)] == ["", " until `rk server unfence`", " for 90 s"]
