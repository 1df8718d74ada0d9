"""The feed: what listeners see equals the cluster state, in bounded turns, and costs nothing while nobody listens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from twisted.internet.task import Clock

from master.page import feed as feed_module
from master.page import listeners as listeners_module
from master.page.feed import Feed
from master.page.listeners import LISTENERS_MAX
from regions.cluster import events as ev
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.page.model import PageModel
from regions.page.pace import WorkPace
from regions.page.rows import row_of
from regions.records.model import RegionState
from tests.unit.master.page.fake_master import Browser, FakeMaster, FakeRequest, cluster_of, feed_of, pass_time
from tests.unit.regions.model_cluster import ModelCluster, region, server, transition


def _truth(world: ClusterState) -> dict[str, tuple[int, str, int]]:
    return {key: row_of(one) for key, one in world.replicas.items()}


class Watched:
    """A cluster, its master's feed, and one browser."""

    def __init__(self, regions: int) -> None:
        self.clock = Clock()
        self.cluster = cluster_of(regions)
        self.master = FakeMaster(self.clock, self.cluster)
        self.feed = feed_of(self.clock, self.master)
        self.browser = Browser()
        self.request = FakeRequest()

    @property
    def world(self) -> ClusterState:
        return self.cluster.assigner.world

    def listen(self, last_id: str = "") -> None:
        self.request = FakeRequest()
        self.browser.reconnected()
        self.feed.attach(self.request, last_id)

    def settle(self, seconds: float = 0.5) -> dict[str, tuple[int, str, int]]:
        pass_time(self.clock, seconds)
        self.browser.read(self.request)
        return self.browser.shown()


def test_a_listener_sees_the_cluster_and_its_changes() -> None:
    """A snapshot, then deltas: open, a dead server, the reassignment, a new server."""
    watched = Watched(60)
    watched.listen()
    assert watched.settle() == _truth(watched.world)
    assert watched.browser.is_complete
    watched.cluster.kill("s1", run=False)
    pass_time(watched.clock, 0.5)
    watched.browser.read(watched.request)
    assert watched.browser.shown() == _truth(watched.world)
    assert any(state != 0 for state, _, _ in watched.browser.shown().values())
    watched.cluster.run()
    assert watched.settle() == _truth(watched.world)
    assert {place for _, place, _ in watched.browser.shown().values()} == {"s2"}
    assert watched.browser.begins == 1


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_ends_with_equal_pictures(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners that join, leave and resume at any time, with slices and parts of a few rows."""
    monkeypatch.setattr(feed_module, "SLICE", 3)
    rng = random.Random(seed)
    watched = Watched(40)
    monkeypatch.setattr(feed_module, "PageModel", lambda: PageModel(5))
    watched.listen()
    for number in range(60):
        match rng.randrange(6):
            case 0 if len(watched.cluster.servers) > 1:
                watched.cluster.kill(rng.choice(sorted(watched.cluster.servers)), run=rng.random() < 0.5)
            case 1:
                watched.cluster.join(server(f"n{number}"))
            case 2:
                watched.request.leave()
                watched.browser.read(watched.request)
                watched.listen(watched.browser.last_id)
            case 3:
                added = region(f"x{number}")
                watched.cluster.put(added)
                watched.cluster.handle(ev.RegionSeen(added, 0))
            case _:
                watched.cluster.run()
        pass_time(watched.clock, rng.choice([0.01, 0.05, 0.3]))
        watched.browser.read(watched.request)
    watched.cluster.run()
    assert watched.settle(3) == _truth(watched.world)


def test_a_listener_that_reconnects_resumes() -> None:
    """The listener gets the missed messages, and no snapshot."""
    watched = Watched(20)
    watched.listen()
    watched.settle()
    last_id = watched.browser.last_id
    watched.request.leave()
    watched.cluster.kill("s1")
    watched.listen(last_id)
    assert watched.settle() == _truth(watched.world)
    assert watched.browser.begins == 1


def test_a_listener_that_reconnects_in_the_middle_of_a_snapshot_gets_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deltas that came between the parts do not make it resume. Fails if `begin` or these deltas have an id."""
    watched = Watched(40)
    monkeypatch.setattr(feed_module, "PageModel", lambda: PageModel(2))
    other = FakeRequest()
    watched.feed.attach(other, "")
    pass_time(watched.clock, 0.5)
    watched.listen()
    watched.clock.advance(0)
    watched.cluster.kill("s1")
    for _ in range(5):
        watched.clock.advance(feed_module.DELTA_S)
    watched.browser.read(watched.request)
    assert [name for _, name, _ in watched.request.events()].count("delta")
    assert not watched.browser.is_complete
    watched.request.leave()
    watched.listen(watched.browser.last_id)
    assert watched.settle() == _truth(watched.world)
    assert watched.browser.is_complete


@pytest.mark.parametrize(("cost_s", "deltas"), [(0.0, range(60, 101)), (0.02, range(5, 20))])
def test_deltas_that_cost_much_come_seldom(cost_s: float, deltas: range) -> None:
    """The process uses a third of a core, and regions move all the time. Fails if `_at_pace` charges nothing."""
    watched = Watched(20)
    spent = [0.0]

    def cpu_s() -> float:
        spent[0] += cost_s / 2
        return spent[0] + watched.clock.seconds() / 3

    watched.feed = Feed(watched.clock, watched.master, lambda _feed: {}, cpu_s=cpu_s)  # type: ignore[arg-type]
    watched.listen()
    watched.settle()
    names = iter(range(1_000))
    for _ in range(100):
        added = region(f"x{next(names)}")
        watched.cluster.put(added)
        watched.cluster.handle(ev.RegionSeen(added, 0))
        pass_time(watched.clock, 0.1)
    assert [name for _, name, _ in watched.request.events()].count("delta") in deltas


def test_a_dear_look_is_spread_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All regions move, and each slice costs a second of CPU: one slice at the longest pause, and in the end all.

    Fails if the slices of a look follow each other whatever they cost, and if the longest pause is ignored.
    """
    monkeypatch.setattr(feed_module, "SLICE", 2)
    watched = Watched(20)
    spent = [0.0]

    def cpu_s() -> float:
        spent[0] += 0.5
        return spent[0]

    watched.listen()
    watched.settle()
    watched.feed._cpu_s = cpu_s
    watched.feed._paces["deltas"] = WorkPace(1e-9, *feed_module.PACES["deltas"][1:])
    watched.cluster.kill("s1")
    counts = []
    for _ in range(12):
        pass_time(watched.clock, feed_module.PACES["deltas"][2])
        counts.append([name for _, name, _ in watched.request.events()].count("delta"))
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(counts))
    assert counts[0] <= 3  # what was saved up
    assert counts[-1] >= 5
    watched.browser.read(watched.request)
    assert watched.browser.shown() == _truth(watched.world)


def test_writes_to_listeners_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reactor does them after the work, so they are estimated. Fails if `_send_delta` charges nothing."""
    monkeypatch.setattr(feed_module, "WRITE_S", 1.0)
    watched = Watched(20)
    watched.listen()
    watched.settle()
    assert watched.feed._paces["deltas"].left_s > 0
    watched.cluster.kill("s1")
    watched.clock.pump([0.01] * 15)
    assert watched.feed._paces["deltas"].left_s < 0


def test_an_unknown_id_gets_a_snapshot() -> None:
    """An id of another master or of an earlier generation."""
    watched = Watched(20)
    watched.listen("other-1.5")
    assert watched.settle() == _truth(watched.world)
    assert watched.browser.begins == 1


def test_a_new_cluster_state_begins_anew() -> None:
    """A failover, or a mirror that was loaded again: numbers have another meaning, so everybody gets a snapshot."""
    watched = Watched(20)
    watched.listen()
    watched.settle()
    former = watched.world
    other = cluster_of(7)
    watched.master.stand_by(other.assigner.world)
    assert watched.settle() == _truth(other.assigner.world)
    assert watched.browser.begins == 2
    assert former.changed is None
    watched.master.stand_by(None)
    assert watched.settle() == {}


def test_nobody_listens_and_nothing_is_observed() -> None:
    """The set of changes exists only while there is a listener, and a little longer."""
    watched = Watched(20)
    pass_time(watched.clock, 3)
    assert watched.world.changed is None
    assert watched.feed.following is None
    watched.listen()
    watched.settle()
    assert watched.world.changed is not None
    watched.request.leave()
    pass_time(watched.clock, feed_module.LINGER_S + 1)
    assert watched.world.changed is None
    assert watched.feed.following is None
    assert set(watched.feed._timers) - {"second"} == set() or not any(
        one.active() for name, one in watched.feed._timers.items() if name != "second"
    )


def test_a_delta_is_encoded_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten listeners cost one encoding."""
    watched = Watched(20)
    requests = [FakeRequest() for _ in range(10)]
    for one in requests:
        watched.feed.attach(one, "")
    watched.settle()
    encoded: list[str] = []
    plain = feed_module._encoder

    class Counting:
        def encode(self, value: object) -> bytes:
            encoded.append(type(value).__name__)
            return plain.encode(value)

    monkeypatch.setattr(feed_module, "_encoder", Counting())
    watched.cluster.kill("s1")
    watched.settle()
    assert encoded.count("PageDelta") >= 1
    deltas = [[data for _, name, data in one.events() if name == "delta"] for one in requests]
    assert all(one == deltas[0] for one in deltas)
    assert encoded.count("PageDelta") == len(deltas[0])


def test_deltas_come_at_most_ten_times_a_second() -> None:
    """Changes in between are coalesced."""
    watched = Watched(20)
    watched.listen()
    watched.settle()
    watched.request.raw = b""
    replica = next(iter(watched.world.replicas.values()))
    for number in range(200):
        record = transition(RegionState.OPENING, region_id=replica.region.record.region_id, since_ms=number + 1)
        watched.world.set_transition(replica, record, number, 0)
        watched.clock.pump([0.005])
    assert len([1 for _, name, _ in watched.request.events() if name == "delta"]) in range(5, 12)


def test_a_turn_looks_at_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and changes alike: no turn of the reactor handles more than SLICE rows."""
    monkeypatch.setattr(feed_module, "SLICE", 10)
    watched = Watched(100)
    most: list[int] = []
    look = PageModel.look

    def counting(self: PageModel, replicas: list[Replica]) -> None:
        most[-1] += len(replicas)
        look(self, replicas)

    monkeypatch.setattr(PageModel, "look", counting)
    watched.listen()
    for _ in range(300):
        most.append(0)
        watched.clock.advance(0.005)
        if len(most) == 150:
            watched.cluster.kill("s1", run=False)
    assert sum(most) >= 150
    assert max(most) == 10
    watched.browser.read(watched.request)
    assert watched.browser.shown() == _truth(watched.world)


def test_listeners_are_bounded() -> None:
    """LISTENERS_MAX of them; one that leaves makes room."""
    watched = Watched(1)
    requests = [FakeRequest() for _ in range(LISTENERS_MAX)]
    for one in requests:
        assert not watched.feed.is_full
        watched.feed.attach(one, "")
    assert watched.feed.is_full
    requests[0].leave()
    assert not watched.feed.is_full


def test_a_listener_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound of what it leaves unread, exactly; the others go on."""
    watched = Watched(20)
    watched.listen()
    slow = FakeRequest()
    watched.feed.attach(slow, "")
    watched.settle()
    slow.producer.pauseProducing()
    listener = slow.producer
    monkeypatch.setattr(listeners_module, "UNREAD_MAX", 100)
    listener.send(bytes(100))
    assert not slow.is_aborted
    listener.send(b"x")
    assert slow.is_aborted
    assert len(watched.feed.listeners) == 1
    watched.cluster.kill("s1")
    assert watched.settle() == _truth(watched.world)


def test_a_paused_listener_gets_everything_when_it_reads_again() -> None:
    """Messages wait in order; parts of the snapshot are not made before."""
    watched = Watched(20)
    watched.listen()
    watched.request.producer.pauseProducing()
    pass_time(watched.clock, 2)
    assert "begin" not in [name for _, name, _ in watched.request.events()]
    watched.request.producer.resumeProducing()
    watched.cluster.kill("s1")
    assert watched.settle() == _truth(watched.world)


def test_a_lost_connection_makes_room() -> None:
    """The transport stops its producer when the connection breaks."""
    watched = Watched(2)
    watched.listen()
    watched.request.producer.stopProducing()
    assert watched.feed.listeners == []
    watched.settle()
    assert not watched.request.is_finished


def test_a_comment_comes_when_nothing_else_does() -> None:
    """Connections stay open through middle boxes."""
    watched = Watched(1)
    watched.listen()
    pass_time(watched.clock, 2 * feed_module.COMMENT_S + 0.5)
    assert watched.request.raw.count(b": still here") == 2


def test_a_fault_of_the_page_does_not_reach_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation ends, the next one begins; the timers go on."""
    watched = Watched(20)
    watched.listen()
    watched.settle()
    broken = [True]
    plain = Feed._send_delta

    def once(self: Feed, following: Any) -> None:
        if broken.pop() if broken else False:
            raise RuntimeError("a fault")
        plain(self, following)

    monkeypatch.setattr(Feed, "_send_delta", once)
    watched.cluster.kill("s1")
    assert watched.settle(3) == _truth(watched.world)
    assert watched.browser.begins == 2


def test_curves_have_a_value_each_second_without_listeners() -> None:
    """Half an hour of the past is there when somebody opens the page."""
    watched = Watched(20)
    pass_time(watched.clock, 5.5)
    watched.cluster.kill("s1", run=False)
    pass_time(watched.clock, 1)
    first, series = watched.feed.curves.read()
    assert len(series[0]) == 6
    assert first == watched.cluster.now // 1000 + 1
    assert series[0][:5] == [20.0] * 5
    assert series[0][5] == 10.0


def test_stop_ends_all_streams() -> None:
    """An orderly end, and no timer is left."""
    watched = Watched(3)
    watched.listen()
    watched.settle()
    watched.feed.stop()
    assert watched.request.is_finished
    assert not [one for one in watched.clock.getDelayedCalls() if one.active()]
    assert watched.world.changed is None


def test_steps_are_told_once() -> None:
    """The steps in memory first, then those that follow."""
    watched = Watched(4)
    watched.listen()
    watched.settle()
    watched.request.raw = b""
    watched.browser.reconnected()
    watched.cluster.kill("s1")
    pass_time(watched.clock, 1)
    steps = [tuple(step) for _, name, data in watched.request.events() if name == "steps" for step in data]
    assert len(steps) == len(set(steps)) > 0
    assert isinstance(watched.cluster, ModelCluster)
