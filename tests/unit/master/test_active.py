"""An active master that loses its store connection: it pauses, stops answering, continues, or ends its tenure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from coord.client.session import SessionState
from coord.errors import ConnectionLoss
from coord.rpc.server import RpcError
from master.api.resharding.automatic import TICK_S, AutomaticResharding
from master.assignment.server_events import SHUTDOWN_WAIT_S
from master.assignment.transitions import TransitionWriter
from master.causes import acting
from master.leadership.fence import Deposed
from master.service import MasterService
from regions import messages as ms
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.messages.heartbeat import ReplicaReport, Report
from regions.records.model import (
    Incarnation,
    Intent,
    PlanRecord,
    PlanState,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.znodes import decode_cluster, decode_plan, encode
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


DISABLE = ms.SetTableIntent("orders", TableIntent.DISABLED)


def test_a_tenure_survives_a_short_disconnection(bench: Bench) -> None:
    """Meanwhile no write is acknowledged, and reads are answered."""
    active_master = bench.active_master
    assert active_master is not None
    bench.store.cut()
    assert active_master.store_session.is_paused
    assert bench.ask(DISABLE) == ms.BUSY
    assert isinstance(bench.ask(ms.ListTables()), ms.Tables)
    bench.go_on(1.5)
    bench.store.mend()
    bench.go_on()
    assert (active_master.store_session.is_paused, active_master.store_session.may_be_over, bench.ended) == (
        False,
        False,
        [],
    )
    answer = bench.ask(DISABLE)
    assert answer.tables[0].table.intent is TableIntent.DISABLED


def test_the_cause_of_a_request_reaches_all_orders_that_follow(bench: Bench) -> None:
    """Two requests at a time: each coroutine acts for its own cause, whatever runs between its awaits."""
    active_master = bench.active_master
    assert active_master is not None
    answers: list[ms.Tables] = []
    bench.ask_into(DISABLE, answers)
    bench.ask_into(ms.CreateTable("other"), answers)
    assert acting() is None
    bench.go_on()
    assert [one.cause_id for one in answers] == ["e4-1", "e4-2"]
    world = active_master.assigner.world
    closing, opening = world.names["orders"].origin, world.names["other"]
    assert closing == WorkOrigin("e4-1", "request: SetTableIntent orders from 127.0.0.1:4711")
    [fresh] = [replica for region in opening.regions.values() for replica in region.replicas]
    assert fresh.origin == WorkOrigin("e4-2", "request: CreateTable other from 127.0.0.1:4711")
    assert bench.ask(ms.ListTables()).cause_id == "", "reading begins nothing"
    assert bench.ask(DISABLE).cause_id == "e4-3"


def test_a_master_whose_session_may_have_ended_does_not_answer_as_active(bench: Bench) -> None:
    """Another master may be active. If its session is alive after all, the tenure continues."""
    active_master = bench.active_master
    assert active_master is not None
    bench.store.cut()
    bench.go_on(2.1)
    assert active_master.store_session.may_be_over
    assert bench.ask(ms.ListTables()) == ms.BUSY
    bench.store.mend()
    bench.go_on()
    assert (active_master.store_session.may_be_over, bench.ended) == (False, [])
    assert isinstance(bench.ask(ms.ListTables()), ms.Tables)


def test_a_wait_that_begins_after_the_tenure_fails_at_once(bench: Bench) -> None:
    """Nothing would wake it. So the parts of a bulk plan end that waited for a reactor turn while the tenure ended.

    Edit that makes this fail: `when` does not ask for `is_over`.
    """
    active_master = bench.active_master
    assert active_master is not None
    ended: list[object] = []
    ensureDeferred(active_master.room_for_placements(lambda: True)).addBoth(ended.append)
    active_master.end("for this test")
    bench.go_on()
    [failure] = ended
    assert isinstance(failure, Failure)
    assert failure.check(Deposed)


def test_placements_wait_for_room_among_the_writes_and_until_they_are_wanted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits that make this fail: `room_for_placements` asks for one of the two alone."""
    active_master = bench.active_master
    assert active_master is not None
    has_room, are_wanted = False, True
    monkeypatch.setattr(TransitionWriter, "has_room", property(lambda _: has_room))
    done: list[None] = []
    ensureDeferred(active_master.room_for_placements(lambda: are_wanted)).addCallback(done.append)
    bench.go_on(1.0)
    assert not done
    has_room, are_wanted = True, False
    bench.go_on(1.0)
    assert not done
    are_wanted = True
    bench.go_on(1.0)
    assert done == [None]


def test_a_tenure_ends_when_the_epoch_has_risen(bench: Bench) -> None:
    """FW-11: another master that was active meanwhile has raised it."""
    bench.store.cut()
    bench.store.put(LAYOUT.epoch, b"", 5)
    bench.store.mend()
    bench.go_on()
    assert bench.ended == ["another master is active"]


def test_a_tenure_ends_with_its_session(bench: Bench) -> None:
    bench.store.cut()
    bench.store.become(SessionState.EXPIRED)
    assert bench.ended == ["session expired"]


def test_a_second_disconnection_while_catching_up_is_survived(bench: Bench) -> None:
    active_master = bench.active_master
    assert active_master is not None
    for _ in range(3):
        bench.store.cut()
        bench.store.mend()
        bench.store.answer(2)
    assert active_master.store_session.is_paused
    bench.store.cut()
    bench.go_on(5.0)
    bench.store.mend()
    bench.go_on()
    assert (active_master.store_session.is_paused, bench.ended) == (False, [])


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not"])
def test_a_write_with_an_unknown_outcome_is_read_back(bench: Bench, done: bool) -> None:
    """The reply was lost: the caller is informed, and the state matches the store afterwards."""
    assert bench.ask(DISABLE, answered=False) is None
    bench.store.cut(done=done)
    bench.store.mend()
    bench.go_on()
    active_master = bench.active_master
    assert active_master is not None
    table = active_master.assigner.world.tables["t"]
    assert table.record.intent is (TableIntent.DISABLED if done else TableIntent.ENABLED)
    answer = bench.ask(DISABLE)
    assert answer.tables[0].table.intent is TableIntent.DISABLED


def test_a_table_created_by_a_lost_write_is_found(bench: Bench) -> None:
    """A table of its own create, whose result it never received; and the remains of an unfinished one."""
    bench.store.cut()
    bench.store.put(LAYOUT.table("u"), encode(TableRecord("u", "more")))
    bench.store.put(LAYOUT.name("more"), b"u")
    bench.store.put(LAYOUT.table_regions("u"))
    bench.store.put(LAYOUT.name("half"), b"v")
    bench.store.put(LAYOUT.table_regions("v"))
    bench.store.mend()
    for _ in range(3):
        bench.go_on()
    active_master = bench.active_master
    assert active_master is not None
    assert sorted(active_master.assigner.world.names) == ["more", "orders"]
    assert LAYOUT.name("half") not in bench.store.nodes
    assert LAYOUT.table_regions("v") not in bench.store.nodes


def test_a_rejected_read_ends_the_tenure_in_time(bench: Bench) -> None:
    """No gap will come, so the master must not wait for one."""
    active_master = bench.active_master
    assert active_master is not None
    active_master._failed(Failure(ConnectionLoss("")))
    assert active_master.store_session.is_paused
    bench.go_on(2.1)
    assert bench.ended == ["a write failed while the store was connected"]


def test_a_master_that_finds_a_shutdown_in_progress_replaces_no_server(tmp_path: Path) -> None:
    """X7: the mark and live servers mean that the former active master stopped first. After a minute it continues all
    the same."""
    bench = Bench(tmp_path, clean=True)
    active_master = bench.active_master
    assert active_master is not None
    assert active_master.path == "failover"
    assert active_master.assigner._suspended
    assert decode_cluster(bench.store.nodes[LAYOUT.cluster][0]).clean_shutdown
    bench.go_on(61.0)
    assert not active_master.assigner._suspended
    assert not decode_cluster(bench.store.nodes[LAYOUT.cluster][0]).clean_shutdown


def test_a_new_server_ends_the_shutdown(tmp_path: Path) -> None:
    """Old registrations may remain when the cluster starts again: the start must not wait a minute for that."""
    bench = Bench(tmp_path, clean=True)
    active_master = bench.active_master
    assert active_master is not None
    assert active_master.assigner._suspended
    bench.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 8)))
    for path, callback in list(bench.store.persistent):
        if path == LAYOUT.servers:
            callback(1, LAYOUT.server("s1"), 0)
    bench.go_on()
    assert not active_master.assigner._suspended


class CutAtPlanStore(LossyStore):
    """The connection breaks under the first write of a plan's record."""

    is_cut = False

    def multi(self, operations: list[Any]) -> Deferred[Any]:
        answer = super().multi(operations)
        if not self.is_cut and any(op.path.startswith(LAYOUT.plans) for op in operations):
            self.is_cut = True
            self.cut()
        return answer


def test_a_connection_lost_at_the_end_of_a_takeover_loses_no_work(bench: Bench, tmp_path: Path) -> None:
    """Plans of former masters stayed APPLYING, and the run had no record (simulation, random, seed 179537502555)."""
    store = CutAtPlanStore()
    store.nodes = bench.store.nodes
    store.put(LAYOUT.epoch, b"", 5)
    for plan_id in ("a", "b"):
        store.put(LAYOUT.plan(plan_id), encode(PlanRecord(plan_id, 4, state=PlanState.APPLYING)))
    later = Bench(tmp_path, store=store, epoch=5)
    assert store.is_cut
    store.mend()
    later.go_on()
    states = [decode_plan(store.nodes[LAYOUT.plan(plan_id)][0]).state for plan_id in ("a", "b")]
    assert states == [PlanState.DONE, PlanState.DONE]
    assert LAYOUT.run(5, 0) in store.nodes


# --- how a tenure begins --------------------------------------------------------------------------------------------


def _orders(bench: Bench) -> int:
    """Return the connections to servers that the master has opened for orders."""
    return len(bench.clock.tcpClients)


def test_a_startup_waits_for_min_servers(tmp_path: Path) -> None:
    """RT-03: with `--min-servers 3`, two servers are not enough, however long they run; the third is."""
    store = _before_a_startup()
    bench = Bench(tmp_path, store=store, min_servers=3, servers=0)
    active_master = bench.active_master
    assert active_master is not None
    for number in (1, 2):
        store.change(LAYOUT.server(f"n{number}"), encode(ServerRecord(f"n{number}", "h", number, 7)))
        bench.go_on(60.0)
        assert (active_master.path, active_master.is_open) == ("", False) or active_master.path == "startup"
        assert not active_master.is_open
        assert (len(active_master.registry.servers), _orders(bench)) == (number, 0)
    store.change(LAYOUT.server("n3"), encode(ServerRecord("n3", "h", 3, 7)))
    for _ in range(4):
        bench.go_on(1.0)
    assert active_master.is_open


def test_a_startup_deletes_old_transitions_before_it_waits_for_servers(tmp_path: Path) -> None:
    """RT-04: all servers are dead, so a transition means nothing in any state."""
    store = _before_a_startup()
    paths = [LAYOUT.transition("t.0", number) for number in range(len(RegionState))]
    for path, state in zip(paths, RegionState, strict=True):
        number = int(path.rpartition("-")[2])
        dead = Incarnation("s1", 7)
        store.put(path, encode(TransitionRecord("t.0", "t", number, state, dead, dead)), 2)
    bench = Bench(tmp_path, store=store, min_servers=1, servers=0)
    active_master = bench.active_master
    assert active_master is not None
    assert (active_master.path, active_master.is_open) == ("startup", False)
    assert [path for path in paths if path in store.nodes] == []


def _before_a_startup() -> LossyStore:
    """Return a store with one table, none of which is open, and no server."""
    store = LossyStore()
    lay_ground(store, servers=0)
    return store


def test_no_transition_is_missed_during_a_takeover(tmp_path: Path) -> None:
    """MF-03: the watch is in force before anything is read. A server takes a step at each moment of the takeover in
    turn, and the new active master then knows it without reading again."""
    answers = 0
    while True:
        answers += 1
        store = LossyStore()
        lay_ground(store, servers=2)
        path, s1 = LAYOUT.transition("t.0", 0), Incarnation("s1", 7)
        closing = TransitionRecord("t.0", "t", 0, RegionState.CLOSING, s1, Incarnation("s2", 7), Intent.OPEN, 3)
        store.put(path, encode(closing), 0)
        bench = Bench(tmp_path, store=store, servers=2, answers=answers)
        bench.hold_servers()
        active_master = bench.active_master
        assert active_master is not None
        if active_master.is_open:
            break
        store.change(path, encode(msgspec.structs.replace(closing, state=RegionState.CLOSED)))
        bench.go_on()
        assert active_master.is_open, answers
        replica = active_master.assigner.world.replicas["t.0-0"]
        assert replica.transition is not None
        assert replica.transition.state is not RegionState.CLOSING, f"changed after {answers} answers"
    assert answers > 8, "the beginning takes several rounds"


@pytest.mark.parametrize("part", ["keeper", "applying", "purging"])
def test_a_failure_in_a_timer_ends_the_tenure_and_is_logged_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caught: list[dict[str, Any]], part: str
) -> None:
    """The reactor only logged it, and the master went on half-dead: what came after it in the tick never happened."""

    def broken() -> None:
        raise AssertionError("an invariant is broken")

    assert bench.active_master is not None
    monkeypatch.setattr(getattr(bench.active_master, part), "tick", broken)
    bench.go_on(1.0)
    bench.go_on(2.0)
    assert bench.ended == ["internal error: an invariant is broken"]
    assert bench.active_master.has_failed
    assert [type(one["log_failure"].value) for one in caught] == [AssertionError]


def test_a_failure_in_the_check_of_orders_ends_the_tenure(bench: Bench, caught: list[dict[str, Any]]) -> None:
    active_master = bench.active_master
    assert active_master is not None
    broken = SimpleNamespace(has_unchecked=True, check_orders=lambda _: 1 // 0)
    active_master.assigner = broken  # type: ignore[assignment]
    active_master._go_on()
    bench.go_on(2.0)
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


def test_a_round_of_the_balancer_goes_on_between_two_ticks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else that a tick does was done a hundred times a second then."""
    active_master = bench.active_master
    assert active_master is not None
    ticks: list[None] = []
    parts: list[object] = []
    monkeypatch.setattr(active_master.keeper, "tick", lambda: ticks.append(None))
    active_master.balancing = SimpleNamespace(is_counting=True, act=parts.append)  # type: ignore[assignment]
    for _ in range(60):
        bench.clock.advance(0.01)
    assert 1 <= len(ticks) <= 2
    assert len(parts) > 30


def test_a_failure_in_an_event_of_the_watch_ends_the_tenure(bench: Bench, caught: list[dict[str, Any]]) -> None:
    assert bench.active_master is not None
    broken = SimpleNamespace(see=lambda *_: 1 // 0, clear=lambda: None)
    bench.active_master._reader.changed = broken  # type: ignore[assignment]
    bench.active_master._unassigned_events([(1, LAYOUT.transition("t.0", 0), 1)])
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


def test_a_failure_at_the_end_of_a_shutdown_wait_ends_the_tenure(tmp_path: Path, caught: list[dict[str, Any]]) -> None:
    """No region was assigned any more: the reactor logged the exception, and the wait was over."""
    bench = Bench(tmp_path, clean=True)
    assert bench.active_master is not None
    bench.active_master.server_events._assigner = SimpleNamespace(unsuspend=lambda _: 1 // 0)  # type: ignore[assignment]
    bench.go_on(SHUTDOWN_WAIT_S)
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


def test_a_failure_in_splits_by_settings_ends_the_tenure(bench: Bench, caught: list[dict[str, Any]]) -> None:
    """The reactor only logged it, each second again, and no table was split by its settings any more."""
    assert bench.active_master is not None
    timer = AutomaticResharding(bench.clock, bench.active_master, lambda: 5_000)
    timer._decision = SimpleNamespace(step=lambda *_: 1 // 0)  # type: ignore[assignment]
    timer.start()
    bench.go_on(TICK_S)
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


@pytest.mark.parametrize("source", ["heartbeat", "request"])
def test_a_failure_in_an_event_from_outside_ends_the_tenure(
    bench: Bench, caught: list[dict[str, Any]], source: str
) -> None:
    """The caller got INTERNAL, and the master went on with a cluster state that was changed in part."""
    active_master = bench.active_master
    assert active_master is not None
    broken = SimpleNamespace(handle=lambda *_: 1 // 0, world=active_master.world)
    active_master.assigner = broken  # type: ignore[assignment]
    server = Incarnation("s1", 7)
    if source == "heartbeat":
        active_master.reported(server, Report([ReplicaReport("t.0", "t", 0, "OPEN")]))
    else:
        with pytest.raises(Deposed):
            active_master.observe(ev.RetryRequested("t.0-0"))
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


def test_a_condition_that_raises_fails_its_own_request_only(bench: Bench) -> None:
    """The requests behind it waited until the end of the tenure."""
    assert bench.active_master is not None
    broken = bench.active_master.when(lambda: bool(1 // 0))
    later = bench.active_master.when(lambda: True)
    bench.go_on()
    assert later.called
    errors: list[Failure] = []
    broken.addErrback(errors.append)
    assert [type(one.value) for one in errors] == [ZeroDivisionError]
    assert bench.ended == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_failure_in_a_reply_to_orders_ends_the_tenure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caught: list[dict[str, Any]], is_lost: bool
) -> None:
    active_master = bench.active_master
    assert active_master is not None
    reply: Deferred[Any] = Deferred()
    server = SimpleNamespace(call=lambda *_, **__: reply)
    monkeypatch.setattr(active_master.dispatcher, "_client", lambda _: server)
    active_master.assigner = SimpleNamespace(handle=lambda *_: 1 // 0)  # type: ignore[assignment]
    active_master.dispatcher.send(fx.SendClose(1, ServerRecord("s1", "h", 2, 7), []))
    if is_lost:
        reply.errback(RpcError(ms.TIMED_OUT, "no reply"))
    else:
        reply.callback(ms.OrderResults([]))
    assert bench.ended == ["internal error: integer division or modulo by zero"]
    assert len(caught) == 1


@pytest.mark.parametrize("has_failed", [True, False])
def test_another_master_takes_over_after_a_failure(has_failed: bool) -> None:
    """The master that has failed owns `/active`, so it would become active again, and fail again."""
    left: list[bool] = []
    failed = SimpleNamespace(
        has_failed=has_failed, fence=SimpleNamespace(epoch=4), assigner=SimpleNamespace(history=None)
    )
    service = SimpleNamespace(
        active_master=failed,
        election=SimpleNamespace(active="me", leave=lambda: left.append(True)),
        now_ms=lambda: 1,
        _active_since_ms=0,
        _stopping=False,
        _retry_election=lambda: None,
    )
    MasterService._active_master_ended(service, "internal error")  # type: ignore[arg-type]
    assert service.active_master is None
    assert left == ([True] if has_failed else [])


@pytest.fixture
def caught() -> Iterator[list[dict[str, Any]]]:
    """Return the failures that are logged."""
    found: list[dict[str, Any]] = []

    def observe(event: dict[str, Any]) -> None:
        if "log_failure" in event:
            found.append(event)

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)
