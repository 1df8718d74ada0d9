"""No region waits or moves back and forth forever: slow closes, fences, poison, flapping, no eligible server; each is
reported."""

from __future__ import annotations

from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain import explain
from regions.diagnose.live.work_in_progress import look
from regions.diagnose.problems import problems as problems_of
from regions.messages import NextActor, OpenOrder, OrderOutcome, OrderResult
from regions.records.model import RegionState, ServerRecord, TableIntent, TableRecord
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

CONFIG = AssignerConfig(bulk_min=1000, close_timeout_ms=20_000, fence_after_ms=60_000)
A, B, C = server("a", session_ms=6_000), server("b"), server("c")


def hanging(*names: str) -> ModelCluster:
    """Return regions on a, which closes none of them; r1 is ordered to move to b."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(region(name, on=at("a")) for name in names))
    cluster.hanging = {"a"}
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "b"))
    assert cluster.state() is RegionState.CLOSING
    return cluster


def lines(cluster: ModelCluster) -> list[str]:
    assigner = cluster.assigner
    work = look(assigner.world.active.values(), assigner.unplaceable())
    return problems_of(assigner.world, work, assigner.unplaceable(), assigner.config, cluster.now, 20)


# --- X10 -------------------------------------------------------------------------------------------------------------


def test_a_hanging_close_is_asked_again_with_growing_pauses_and_then_the_server_is_fenced() -> None:
    """X10: the order is repeated with growing pauses; a problem is shown; the server is fenced; its regions move only
    after its lease must have ended."""
    cluster = hanging("r1", "r2")
    asked = 0
    while not cluster.fences:
        cluster.pass_time(500)
        if len(cluster.sent) > asked:
            asked = len(cluster.sent)
        assert cluster.now < 1_100_000
    assert 4 <= asked <= 9, "at 0, 3, 9, 21, 45 s and so on"
    assert cluster.now - 1_000_000 > CONFIG.fence_after_ms
    assert cluster.fences["a"].reason == "it did not finish closing r1-0 in 60 s: the disk hangs"
    # The lease of a may last for six seconds: no write, no order.
    writes, orders = len(cluster.writes), len(cluster.sent)
    cluster.pass_time(5_500)
    assert (len(cluster.writes), len(cluster.sent)) == (writes, orders)
    assert lines(cluster)[0].startswith("server a is fenced (it did not finish closing r1-0")
    cluster.stop_serving("a")
    cluster.pass_time(1_500)
    assert (cluster.where("r1"), cluster.where("r2") in ("b", "c")) == ("b", True)
    assert cluster.fences == {}
    assert lines(cluster) == []


def test_a_late_close_is_a_problem_that_says_when_the_server_is_fenced() -> None:
    cluster = hanging("r1")
    cluster.pass_time(19_000)
    assert lines(cluster) == []
    cluster.pass_time(2_000)
    [line] = lines(cluster)
    assert line.startswith("r1-0 is closing on server a@1, ")
    assert "late, last error: the disk hangs" in line
    assert "the server will be fenced in" in line


def test_without_a_limit_nobody_is_fenced() -> None:
    """The policy can be switched off: then the problem is shown, and an operator decides."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, fence_after_ms=0))
    cluster.put(region(on=at("a")))
    cluster.hanging = {"a"}
    cluster.start(A, B)
    cluster.accept(("r1", "a", "b"))
    cluster.pass_time(900_000, 5_000)
    assert cluster.fences == {}
    assert "late" in lines(cluster)[0]
    assert "fenced" not in lines(cluster)[0]
    world = cluster.assigner.world
    assert "fencing is off" in explain(world.replicas["r1-0"], world, cluster.config, cluster.now).at_deadline


def test_a_disable_that_a_server_never_begins_fences_it_too() -> None:
    """A server with a session that accepts no orders must not keep a table open forever."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region(on=at("a")))
    cluster.silent = {"a"}
    cluster.start(A, B)
    cluster.set_intent(TableIntent.DISABLED)
    cluster.pass_time(61_000)
    assert "did not begin to close r1-0" in cluster.fences["a"].reason
    cluster.stop_serving("a")
    cluster.pass_time(7_000)
    assert (cluster.open, cluster.unassigned, cluster.fences) == ({}, {}, {})


def test_a_new_master_waits_for_the_lease_of_a_server_that_was_fenced() -> None:
    """X10 after a failover: the registration is gone, and the mark says that the server may still serve."""
    cluster = hanging("r1", "r2")
    cluster.pass_time(62_000)
    assert "a" in cluster.fences
    cluster.successor()
    assert cluster.writes == []
    cluster.pass_time(5_500)
    assert cluster.writes == []
    cluster.stop_serving("a")
    cluster.pass_time(1_000)
    assert (cluster.where("r1"), cluster.fences) == ("b", {})


def test_a_fenced_server_that_registers_again_has_closed_everything() -> None:
    cluster = hanging("r1", "r2")
    cluster.pass_time(62_000)
    cluster.stop_serving("a")
    cluster.hanging = set()
    cluster.join(server("a", 2))
    assert cluster.fences == {}
    assert {cluster.where("r1"), cluster.where("r2")} <= {"a", "b", "c"}
    assert cluster.unassigned == {}


def test_a_fence_that_the_store_refuses_is_forgotten() -> None:
    """The server died by itself at that moment, so the usual recovery applies."""
    cluster = hanging("r1")
    del cluster.servers["a"]
    cluster.open.clear()
    cluster.handle(ev.FenceRequested("a", "an operator"))
    assert cluster.fences == {}
    cluster.handle(ev.ServerDown("a"))
    assert cluster.where() == "b"


def test_an_operator_may_fence_at_once() -> None:
    cluster = hanging("r1")
    cluster.handle(ev.FenceRequested("a", "an operator"))
    assert cluster.fences["a"].lease_ms == 6_000
    world = cluster.assigner.world
    said = explain(world.replicas["r1-0"], world, cluster.config, cluster.now)
    assert (said.actor, said.deadline_ms) == (NextActor.MASTER, cluster.now + 6_000)


# --- opens that do not succeed ---------------------------------------------------------------------------------------


def test_a_poison_region_is_parked_and_its_neighbours_are_not() -> None:
    """X11: a region that no server can open is tried a bounded number of times, on different servers, then parked."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1"), region("r2"))
    tried: list[str] = []
    obey = cluster._open

    def poisoned(record: ServerRecord, order: OpenOrder) -> OrderResult:
        if order.transition.region_id != "r1":
            return obey(record, order)
        tried.append(record.uuid)
        cluster.failing = {record.uuid: "bad magic"}
        try:
            return obey(record, order)
        finally:
            cluster.failing = {}

    cluster._open = poisoned  # type: ignore[method-assign]
    cluster.start(A, B, C)
    cluster.pass_time(200_000)
    assert len(tried) == CONFIG.attempts_max
    assert set(tried) == {"a", "b", "c"}
    assert cluster.where("r2") is not None
    assert lines(cluster) == ["r1-0 is parked after 8 attempts: bad magic"]
    cluster.successor()
    cluster.pass_time(60_000)
    assert len(tried) == CONFIG.attempts_max, "no master tries again by itself"
    cluster._open = obey  # type: ignore[method-assign]
    cluster.handle(ev.RetryRequested("r1-0"))
    assert cluster.where("r1") is not None
    assert lines(cluster) == []


def test_a_server_that_refuses_everything_does_not_get_everything() -> None:
    """A rejection that the store does not explain counts as a failed attempt; the region goes elsewhere."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(region(f"r{n}") for n in range(4)))
    obey = cluster._open

    def refusing(record: ServerRecord, order: OpenOrder) -> OrderResult:
        if record.uuid == "a":
            return OrderResult(order.transition.region_id, 0, OrderOutcome.REFUSED, error="no")
        return obey(record, order)

    cluster._open = refusing  # type: ignore[method-assign]
    cluster.start(A, B)
    cluster.pass_time(60_000)
    assert set(cluster.open.values()) == {at("b")}
    assert cluster.unassigned == {}


def test_a_server_that_takes_orders_and_does_not_begin_is_given_up() -> None:
    """RT-11: "accepted, still running" is a sign of life, but no reason to wait forever."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region())
    cluster.silent = {"a"}
    cluster.start(server("a"), run=False)
    cluster.run()
    cluster.join(B)

    def answer_started() -> None:
        for sent in cluster.sent:
            if sent.server.uuid == "a":
                cluster.handle(ev.OrdersAnswered(sent.batch, [OrderResult("r1", 0, OrderOutcome.STARTED)]))

    for _ in range(30):
        answer_started()
        cluster.pass_time(3_000)
        if cluster.where() == "b":
            break
    assert cluster.where() == "b"
    assert cluster.now - 1_000_000 >= CONFIG.open_timeout_ms


def test_the_former_server_is_not_chosen_again_after_it_has_failed() -> None:
    """RT-11: the next attempt goes to a *different* server, although the region's own server has the fewest regions
    and comes first otherwise."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region(), *(region(name, on=at("b")) for name in ("r2", "r3")))
    cluster.regions["r1"] = (region(on=at("a", 0)), 0)  # a has been restarted since
    cluster.failing = {"a": "no disk"}
    cluster.start(server("a"), B)
    cluster.pass_time(60_000)
    assert cluster.where() == "b"
    places = [
        one.record.destination.uuid
        for one in cluster.writes
        if getattr(one, "key", "") == "r1-0" and hasattr(one, "record")
    ]
    assert places == ["a", "b"]


# --- servers that come and go ----------------------------------------------------------------------------------------


def test_a_flapping_server_gets_nothing_until_it_stays() -> None:
    """The regions of a server that registers again every second must not return to it each time."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(region(f"r{n}", on=at("a")) for n in range(3)))
    cluster.start(A, B)
    for start_code in range(2, 2 + CONFIG.flaps_max + 2):
        cluster.open = {key: owner for key, owner in cluster.open.items() if owner.uuid != "a"}
        cluster.join(server("a", start_code))
        cluster.pass_time(1_000)
    assert {cluster.where(f"r{n}") for n in range(3)} == {"b"}
    [line] = lines(cluster)
    assert "server a has registered more than 5 times within 60 s" in line
    cluster.pass_time(CONFIG.flap_rest_ms + 1_000)
    assert lines(cluster) == []
    cluster.kill("b")
    assert {cluster.where(f"r{n}") for n in range(3)} == {"a"}


def test_when_all_servers_flap_the_regions_are_served_all_the_same() -> None:
    """After an outage of the store all servers register again: the regions must not stay without a server."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region())
    cluster.start(A)
    for start_code in range(2, 12):
        cluster.open.clear()
        cluster.join(server("a", start_code))
        cluster.pass_time(1_000)
    assert cluster.where() == "a"


def test_several_servers_die_at_once_and_the_last_one_gets_all() -> None:
    """RF-01 to RF-03, several at a time."""
    cluster = ModelCluster(CONFIG)
    cluster.put(*(region(f"r{n}", on=at("abc"[n % 3])) for n in range(9)))
    cluster.start(A, B, C)
    cluster.kill("a", run=False)
    cluster.kill("c", run=False)
    cluster.run()
    assert {cluster.where(f"r{n}") for n in range(9)} == {"b"}


def test_servers_that_die_while_regions_come_to_them() -> None:
    """A destination dies during the recovery of another server, and the next one, too."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region(on=at("a")))
    cluster.silent = {"b", "c"}
    cluster.start(A, B, C)
    cluster.kill("a")
    first = cluster.unassigned["r1-0"][0].destination
    assert first is not None
    cluster.kill(first.uuid)
    second = cluster.unassigned["r1-0"][0].destination
    assert second is not None
    assert second.uuid != first.uuid
    cluster.silent = set()
    cluster.kill(second.uuid)
    assert cluster.unassigned["r1-0"][0].attempt == 0, "deaths are no failed attempts"
    cluster.join(server("d"))
    assert cluster.where() == "d"


# --- nowhere to go ---------------------------------------------------------------------------------------------------


def test_no_eligible_server_is_one_line_per_reason() -> None:
    cluster = ModelCluster(CONFIG)
    cluster.tables["g"] = (TableRecord("g", "gold", group="gold"), 0)
    cluster.put(*(region(f"r{n}", table_id="g") for n in range(3)))
    cluster.start(A, server("z", weight=0.0, group="gold"))
    assert lines(cluster) == [
        "r0-0 and 2 more have no eligible server: it belongs to the default group, and the table to group 'gold'; "
        "its weight is zero"
    ]
    cluster.join(server("g1", group="gold"))
    assert lines(cluster) == []
    assert cluster.where("r0") == "g1"


def test_zero_servers_is_said_and_waited_for() -> None:
    cluster = ModelCluster(CONFIG)
    cluster.put(region())
    cluster.start()
    cluster.pass_time(10_000)
    assert lines(cluster) == ["r1-0 has no eligible server: there is no live server"]
    cluster.join(A)
    assert cluster.where() == "a"
