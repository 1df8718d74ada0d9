"""The auditor's shell: the alarms that it stores, their limit, and the reads before it raises one."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from coord.client.session import SessionState
from coord.wire.records import EVENT_CREATED, EVENT_DELETED
from master.standby import auditor as module
from master.standby.auditor import Auditor, Sources
from regions.cluster.state import ClusterState
from regions.diagnose.invariants import STILL_MS, Rule
from regions.diagnose.live.check_log import AuditCheck
from regions.diagnose.live.doubts import SettledList
from regions.records.alarms import Alarm
from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TableRecord, TransitionRecord
from regions.records.znodes import Layout, decode_alarm, encode
from tests.unit.master.fake_store import FakeStore, WatchedStore

LAYOUT = Layout("/rk")


class Bench:
    """An auditor on a fake store that was never started: the test passes observations to it."""

    def __init__(self) -> None:
        self.store = FakeStore()
        for path in LAYOUT.parents():
            self.store.put(path)
        clock = Clock()
        client: Any = self.store
        self.auditor = Auditor(clock, client, LAYOUT, lambda: 1_000_000, "m1", Sources())

    def raise_alarm(self, number: int, rule: Rule = Rule.ILLEGAL_STEP) -> None:
        self.auditor._report([Alarm(f"{number:016x}", number, rule.value, "t.0001-0", "so it is")])
        self.store.answer()

    def stored(self) -> list[Alarm]:
        paths = sorted(path for path in self.store.nodes if path.startswith(f"{LAYOUT.alarms}/"))
        return [decode_alarm(self.store.nodes[path][0], path) for path in paths]


def test_an_alarm_is_stored_once_and_names_the_auditor() -> None:
    """N5: several auditors find the same fault; the first znode stays."""
    bench = Bench()
    bench.raise_alarm(1)
    bench.raise_alarm(1)
    assert [(one.alarm_id, one.raised_by) for one in bench.stored()] == [(f"{1:016x}", "m1")]
    assert bench.auditor.alarms == 2


def test_the_oldest_alarms_beyond_the_limit_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """ALARMS_MAX alarms stay."""
    monkeypatch.setattr(module, "ALARMS_MAX", 2)
    bench = Bench()
    for number in (1, 2):
        bench.raise_alarm(number)
    assert len(bench.stored()) == 2
    bench.raise_alarm(3)
    assert [one.at_ms for one in bench.stored()] == [2, 3]


@pytest.mark.parametrize(("unassigned", "expected"), [(False, 1), (True, 0), (None, 0)])
def test_an_unassigned_or_deleted_region_may_end_closed(unassigned: bool | None, expected: int) -> None:
    """A transition may end with a closed replica if an operator has unassigned or deleted the region."""
    bench = Bench()
    if unassigned is not None:
        bench.store.put(LAYOUT.table_regions("t"))
        bench.store.put(LAYOUT.region("t", "t.0001"), encode(RegionRecord("t", "t.0001", unassigned=unassigned)))
    bench.raise_alarm(1, Rule.VANISHED)
    assert len(bench.stored()) == expected


def test_a_transition_that_was_never_read_is_checked_by_its_events() -> None:
    """RT-30: created and deleted in one step is not a legal open; but in a cluster without known tables it may be
    legal."""
    bench = Bench()
    path = LAYOUT.transition("t.0001", 0)
    bench.auditor.transition_events([(EVENT_CREATED, path, 1), (EVENT_DELETED, path, 2)])
    bench.store.answer()
    assert bench.auditor.audit.steps == 2
    assert bench.stored() == []


def test_a_transition_that_may_have_moved_unseen_does_not_count_as_stuck() -> None:
    """N5: without the store, and until everything has been read again, the age of a transition is unknown."""
    store, clock = WatchedStore(), Clock()
    for path in LAYOUT.parents():
        store.put(path)
    store.put(LAYOUT.transition("t.0001", 0), encode(TransitionRecord("t.0001", "t", 0, RegionState.OPENING)))
    client: Any = store
    auditor = Auditor(clock, client, LAYOUT, lambda: int(clock.seconds() * 1000), "m1", Sources())
    auditor.start()
    store.answer()
    for state in (SessionState.SUSPENDED, SessionState.CONNECTED):
        store.become(state)
        clock.advance(STILL_MS / 1000)
        clock.advance(module.TICK_S)
        assert auditor.alarms == 0, state
    auditor.gap()
    store.answer()
    clock.advance(module.TICK_S)
    assert auditor.alarms == 1, "it has not moved: so it has stood all the time"
    auditor.stop()
    assert store.listeners == []


def test_a_registration_costs_one_read_however_many_servers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the auditor reads all servers after each event: a thousand servers start within a minute."""
    store, clock = WatchedStore(), Clock()
    for path in LAYOUT.parents():
        store.put(path)
    read: list[str] = []
    usual = store.multi_read
    monkeypatch.setattr(
        store, "multi_read", lambda parts: (read.extend(one.path for one in parts), usual(parts))[1], raising=True
    )
    client: Any = store
    auditor = Auditor(clock, client, LAYOUT, lambda: 1_000_000, "m1", Sources())
    auditor.start()
    store.answer()
    read.clear()
    servers = [ServerRecord(f"server-{number}", "127.0.0.1", 1, 7) for number in range(20)]
    for one in servers:
        store.change(LAYOUT.server(one.uuid), encode(one))
        store.answer()
    assert read == [LAYOUT.server(one.uuid) for one in servers]
    assert auditor.audit._alive == {one.uuid: 7 for one in servers}
    store.drop(LAYOUT.server("server-3"))
    store.answer()
    assert "server-3" not in auditor.audit._alive
    auditor.stop()


# --- owners ---------------------------------------------------------------------------------------------------------

A, B = Incarnation("a", 1), Incarnation("b", 1)


class Owners:
    """An auditor that has begun, over a cluster with one region that the store gives to server a."""

    def __init__(self) -> None:
        store = WatchedStore()
        for path in LAYOUT.parents():
            store.put(path)
        self.clock = Clock()
        self.store = store
        self.at_rest: dict[str, Incarnation] | None = {"t.0001-0": A}
        self.held: dict[Incarnation, list[str]] = {A: ["t.0001-0"]}
        self.copy: ClusterState | None = None
        client: Any = store
        self.auditor = Auditor(
            self.clock,
            client,
            LAYOUT,
            lambda: 1_000_000 + int(self.clock.seconds() * 1000),
            "m1",
            Sources(
                self.resting,
                lambda: {server: list(keys) for server, keys in self.held.items()},
                lambda key: None if self.at_rest is None else self.at_rest.get(key),
                lambda: {server: SettledList(list(keys), self.heard_ms()) for server, keys in self.held.items()},
                lambda: self.copy,
            ),
        )
        self.auditor.start()
        store.answer()

    def resting(self, server: Incarnation) -> list[str] | None:
        return None if self.at_rest is None else [key for key, home in self.at_rest.items() if home == server]

    def heard_ms(self) -> int:
        """Return when the servers' last heartbeats came: at the last full second."""
        return 1_000_000 + int(self.clock.seconds()) * 1000

    def pass_time(self, seconds: float) -> None:
        """Let the auditor's timers fire, and the store answer."""
        for _ in range(int(seconds / module.DOUBTS_S)):
            self.clock.advance(module.DOUBTS_S)
            self.store.answer()

    def rules(self) -> list[str]:
        """Return the rules of the alarms in the store."""
        paths = sorted(path for path in self.store.nodes if path.startswith(f"{LAYOUT.alarms}/"))
        return [decode_alarm(self.store.nodes[path][0], path).rule for path in paths]


def test_served_regions_are_compared_with_the_store_periodically() -> None:
    """N5: a region that no server serves raises an alarm at the second comparison, and none while it is served."""
    owners = Owners()
    owners.pass_time(4 * module.OWNERS_S)
    assert owners.rules() == []
    owners.held = {A: []}
    owners.pass_time(module.OWNERS_S)
    assert owners.rules() == [], "one comparison may be a heartbeat that is late"
    owners.pass_time(module.OWNERS_S)
    assert owners.rules() == [Rule.NO_OWNER.value]
    (check,) = (one for one in owners.auditor.checks.figures() if one.name == AuditCheck.OWNERS)
    assert (check.times, check.found, len(check.findings)) == (6, 1, 1), "the page shows when, and what was found"


def test_a_server_that_serves_another_servers_region_raises_an_alarm() -> None:
    """N5: two servers with one region."""
    owners = Owners()
    owners.held = {A: ["t.0001-0"], B: ["t.0001-0"]}
    owners.pass_time(3 * module.OWNERS_S)
    assert owners.rules() != []


def test_only_regions_at_rest_are_compared() -> None:
    """N5: neither a moving region nor a master that is not active raises an alarm."""
    owners = Owners()
    owners.held = {A: ["t.0001-0"], B: []}
    just_before = module.OWNERS_S - module.TICK_S
    for then in ({"t.0001-0": A}, None):
        for _ in range(3):
            owners.at_rest = {"t.0001-0": B}
            owners.pass_time(just_before)
            owners.at_rest = then
            owners.pass_time(module.TICK_S)
    assert owners.rules() == []


def test_a_standby_that_compares_nothing_has_made_no_check() -> None:
    """The page says "by the active master" then. Fails if `_look_at_doubts` notes every look."""
    owners = Owners()
    for is_active in (False, True):
        owners.at_rest = {"t.0001-0": A} if is_active else None
        owners.auditor.doubt(["t.0001-0"])
        owners.pass_time(3)
        (check,) = (one for one in owners.auditor.checks.figures() if one.name == AuditCheck.DOUBTS)
        assert bool(check.times) == is_active


def test_a_region_that_its_server_gives_up_rings_within_three_seconds() -> None:
    """N5: a server that drops a region on its own; the report of it puts the region in doubt."""
    owners = Owners()
    owners.pass_time(2.0)
    owners.held = {A: []}
    owners.auditor.doubt(["t.0001-0"])
    owners.pass_time(1.0)
    assert owners.rules() == [], "the next heartbeat may explain it"
    owners.pass_time(1.5)
    assert owners.rules() == [Rule.NO_OWNER.value]
    owners.pass_time(3 * module.OWNERS_S)
    assert owners.rules() == [Rule.NO_OWNER.value], "the comparison of all owners raises the same alarm"


def test_the_end_of_a_transition_puts_its_region_in_doubt() -> None:
    """N5: an illegal write that ends a transition, and no server that serves the region."""
    owners = Owners()
    path = LAYOUT.transition("t.0001", 0)
    owners.held = {A: []}
    owners.auditor.transition_events([(EVENT_CREATED, path, 1), (EVENT_DELETED, path, 2)])
    owners.pass_time(3.0)
    assert Rule.NO_OWNER.value in owners.rules()


def test_a_copy_that_differs_from_the_store_raises_an_alarm_when_it_lasts() -> None:
    """N5: an event was lost, and this master would decide by an old record."""
    owners = Owners()
    record = RegionRecord("t", "t.0001")
    owners.copy = world = ClusterState()
    world.put_table(TableRecord("t", "t", ()), 0)
    world.put_region(record, 0)
    owners.store.put(LAYOUT.table_regions("t"))
    owners.store.put(LAYOUT.region("t", "t.0001"), encode(record), 0)
    owners.pass_time(20.0)
    assert owners.rules() == []
    assert owners.auditor.cache.compared > 1
    owners.store.put(LAYOUT.region("t", "t.0001"), encode(record), 3)
    owners.pass_time(4.0)
    assert owners.rules() == [], "the copy is a little late by nature"
    owners.pass_time(6.0)
    assert owners.rules() == [Rule.STALE_COPY.value]
