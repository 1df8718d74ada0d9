"""A server that an operator has fenced gets no regions until the fence ends (X10)."""

from __future__ import annotations

import msgspec
import pytest

from regions.assign.placement import DATE_MS_MAX, bar_end_text
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.diagnose.live.work_in_progress import look
from regions.diagnose.problems import problems
from regions.records.model import BarRecord
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

A, B = server("a"), server("b")
AGAIN = server("a", 2)


def bar(until_ms: int = 0) -> BarRecord:
    return BarRecord("a", 1, "it hangs", until_ms)


def fenced(*names: str, until_ms: int = 0, others: bool = True) -> ModelCluster:
    """Return regions on a, which is fenced and has joined again."""
    cluster = ModelCluster()
    cluster.put(*(region(name, on=at("a")) for name in names))
    cluster.start(A, *([B] if others else []))
    cluster.handle(ev.FenceRequested("a", "it hangs", fx.BAR_FOR_EVER))
    cluster.bars = [bar(until_ms)]
    cluster.handle(ev.BarsSeen(cluster.bars))
    cluster.stop_serving("a")
    cluster.servers["a"] = AGAIN
    cluster.handle(ev.ServerUp(AGAIN))
    return cluster


def test_a_fenced_server_gets_nothing_back() -> None:
    cluster = fenced("r1", "r2", "r3")
    assert set(cluster.open.values()) == {at("b")}
    cluster.put(region("r4"))
    cluster.handle(ev.RegionSeen(*cluster.regions["r4"]))
    assert cluster.where("r4") == "b"


def test_the_bar_is_asked_for_with_the_fence() -> None:
    cluster = ModelCluster()
    cluster.put(region("r1", on=at("a")))
    cluster.start(A, B)
    cluster.assigner.handle(ev.FenceRequested("a", "it hangs", 600_000), cluster.now)
    asked = [one for one in cluster.assigner.take(cluster.now) if isinstance(one, fx.WriteFence)]
    assert [(one.server.uuid, one.bar_ms) for one in asked] == [("a", 600_000)]


def test_without_another_server_regions_stay_closed_and_that_is_said() -> None:
    """Even a draining server would be used in that case; a fenced one is not."""
    cluster = fenced("r1", others=False)
    assert cluster.open == {}
    [unplaceable, barred] = problems(
        cluster.assigner.world,
        look(cluster.assigner.world.active.values(), cluster.assigner.unplaceable()),
        cluster.assigner.unplaceable(),
        cluster.config,
        cluster.now,
        5,
    )[::-1]
    assert barred == "server a was fenced (it hangs) and gets no regions until `rk server unfence`"
    assert "r1-0 has no eligible server: it was fenced and gets no regions until `rk server unfence`" in unplaceable
    cluster.bars = []
    cluster.handle(ev.BarsSeen([]))
    assert cluster.where("r1") == "a"


def test_the_bar_ends_with_its_time() -> None:
    cluster = fenced("r1", others=False, until_ms=1_000_000 + 600_000)
    cluster.pass_time(590_000)
    assert cluster.open == {}
    cluster.pass_time(11_000)
    assert cluster.where("r1") == "a"
    assert cluster.bars == []


def test_the_next_master_heeds_the_bar() -> None:
    cluster = fenced("r1", others=False)
    cluster.successor()
    assert cluster.open == {}


def test_a_bar_over_a_live_server_empties_it() -> None:
    """For example, a second request sets another time after the server has joined and was unfenced."""
    cluster = ModelCluster()
    cluster.put(region("r1", on=at("a")))
    cluster.start(A, B)
    cluster.handle(ev.BarsSeen([msgspec.structs.replace(bar(), start_code=0)]))
    assert cluster.where("r1") == "b"


@pytest.mark.parametrize("until_ms", [DATE_MS_MAX, DATE_MS_MAX + 1, (1 << 63) - 1])
def test_a_bar_that_ends_after_all_dates_is_told_as_the_last_date(until_ms: int) -> None:
    """Masters of former builds took any time; an active master that cannot tell of it would end its tenure."""
    assert bar_end_text(bar(until_ms)) == "until 9999-12-31T23:59:59Z"


def test_a_bar_that_ends_before_all_dates_is_told_as_the_first_date() -> None:
    assert bar_end_text(bar(-(1 << 63))) == "until 1970-01-01T00:00:00Z"
