"""The keeper, step by step; its simulation is tests/sim/keeper."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from regions.cluster.effects import DeleteTransition, ReplaceRegion, RequestPlan, SendOpen, WriteOffline
from regions.cluster.limits import AssignerConfig
from regions.messages import OrderOutcome, OrderResult
from regions.messages.heartbeat import LeaderReport, ReplicaState, TabletReport, TabletRole
from regions.records.members import NO_CONFIG, Storage
from regions.records.model import (
    NO_ROOM,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TabletState,
)
from regions.replication import heartbeat_steps
from regions.replication.config import first_members
from regions.replication.effects import BeginTablet, KeeperEffect, WriteRegion, marked_replaced
from regions.replication.guards import OrderAnswer
from regions.replication.keeper import LOOK_EVERY_MS, LOOKS_MAX, Keeper
from regions.replication.tablet import GIVEN_UP_MAX
from regions.transitions.states import Cause

NOW = 5_000
TABLE = TableRecord("t", "orders", replication=3, storage=Storage.TABLET)


def server(uuid: str, start_code: int = 1) -> ServerRecord:
    """Return a server that takes tablets."""
    return ServerRecord(uuid, uuid, 1, start_code, kind="kv/1", tablets=True, peer_port=2)


@pytest.fixture
def keeper() -> Keeper:
    """Return three servers and one region that is PREPARING."""
    made = Keeper(4, AssignerConfig())
    made.table_seen(TABLE, 7)
    made.region_seen(RegionRecord("t", "r", state=TabletState.PREPARING, next_number=1), 0)
    for uuid in "abc":
        made.server_up(server(uuid))
    made.begin(NOW)
    return made


def taken(keeper: Keeper, now_ms: int = NOW) -> list[KeeperEffect]:
    """Return the effects since the last call."""
    return keeper.take(now_ms)


def begun(keeper: Keeper) -> BeginTablet:
    """Begin the region, and report that the multi has committed."""
    (effect,) = taken(keeper)
    assert isinstance(effect, BeginTablet)
    keeper.begun(effect, NOW)
    return effect


def test_all_members_begin_in_one_multi(keeper: Keeper) -> None:
    """The multi checks the table's version and writes the record as CREATING. Orders follow after its commit."""
    effect = begun(keeper)
    assert (effect.record.state, effect.record.next_number, effect.table_check) == (TabletState.CREATING, 4, ("t", 7))
    assert [(one.replica, one.state, one.begun) for one in effect.transitions] == [
        (number, RegionState.OFFLINE, False) for number in (1, 2, 3)
    ]
    orders = [order for sent in taken(keeper) for order in getattr(sent, "orders", [])]
    assert [(one.transition.replica, one.tablet.must_exist) for one in orders] == [(1, False), (2, False), (3, False)]
    assert all([end.number for end in one.tablet.initial] == [1, 2, 3] for one in orders)


def test_a_region_is_running_when_a_leader_has_reported(keeper: Keeper) -> None:
    """DD-05. The region is not RUNNING when its members are open, or when a follower reports."""
    effect = begun(keeper)
    for transition in effect.transitions:
        keeper.transition_seen("r", transition.replica, None, -1, NOW)
    follower = TabletReport("r", "t", 2, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER)
    keeper.reported(Incarnation("b", 1), [follower], [])
    assert not [one for one in taken(keeper) if isinstance(one, WriteRegion)]
    leader = LeaderReport(first_members("abc"))
    report = TabletReport("r", "t", 1, ReplicaState.RUNNING, 1, TabletRole.LEADER, NO_CONFIG, leader=leader)
    keeper.reported(Incarnation("a", 1), [report], [])
    (written,) = [one for one in taken(keeper) if isinstance(one, WriteRegion)]
    assert (written.record.state, written.record.leader, written.version) == (TabletState.RUNNING, 1, 1)


def test_a_restarted_server_opens_its_member_again(keeper: Keeper) -> None:
    """OFFLINE towards the new start; nothing while the server is away."""
    begun(keeper)
    taken(keeper)
    keeper.server_down("b")
    assert taken(keeper) == []
    keeper.server_up(server("b", 2))
    (write,) = [one for one in taken(keeper) if getattr(one, "cause", None) is Cause.SERVER_DEATH]
    assert (write.key, write.record.destination) == ("r-2", Incarnation("b", 2))  # type: ignore[union-attr]


def many_tablets(count: int) -> Keeper:
    """Return three servers, and regions whose members are being made."""
    made = Keeper(4, AssignerConfig(tablets_bulk_min=10_000))
    made.table_seen(TABLE, 7)
    for uuid in "abc":
        made.server_up(server(uuid))
    made.begin(NOW)
    for number in range(count):
        made.region_seen(RegionRecord("t", f"r{number}", state=TabletState.PREPARING, next_number=1), 0)
    for effect in taken(made):
        assert isinstance(effect, BeginTablet)
        made.begun(effect, NOW)
    taken(made)
    return made


def test_so_many_tablets_are_given_up_at_once() -> None:
    """DD-03. The others may get a leader meanwhile; the next ones follow when these are replaced."""
    keeper = many_tablets(GIVEN_UP_MAX + 10)
    late = NOW + AssignerConfig().create_timeout_ms

    def look(now_ms: int) -> list[ReplaceRegion]:
        keeper.tick(now_ms)
        for one in taken(keeper, now_ms):  # orders are taken back first
            if isinstance(one, WriteOffline):
                keeper.write_done(one.key, 1, now_ms)
        return [one for one in taken(keeper, now_ms) if isinstance(one, ReplaceRegion)]

    first = look(late)
    assert len(first) == GIVEN_UP_MAX
    assert look(late + LOOK_EVERY_MS) == []
    for effect in first[:3]:
        keeper.replaced(effect.record.region_id, effect.fresh, 0)
    keeper.region_refused(first[3].record.region_id)
    assert len(look(late + 2 * LOOK_EVERY_MS)) == 4


def test_one_call_looks_at_so_many_tablets() -> None:
    keeper = many_tablets(LOOKS_MAX + 1)
    late = NOW + AssignerConfig().create_timeout_ms
    keeper.tick(late)
    assert keeper.is_looking
    keeper.tick(late)
    assert not keeper.is_looking


def test_too_few_servers_are_waited_for() -> None:
    """A region that is PREPARING has promised nothing."""
    made = Keeper(4, AssignerConfig())
    made.table_seen(TABLE, 7)
    made.region_seen(RegionRecord("t", "r", state=TabletState.PREPARING, next_number=1), 0)
    made.begin(NOW)
    for uuid in "ab":
        made.server_up(server(uuid))
        assert taken(made) == []
    made.server_up(server("c"))
    assert isinstance(taken(made)[0], BeginTablet)


def test_rubbish_in_a_report_changes_nothing(keeper: Keeper) -> None:
    """Invalid keys, and unknown replicas: the latter are orphans (FN-04)."""
    keeper.reported(Incarnation("a", 1), [], ["", "r", "r-", "r-x", "x-1", "r-9"])
    keeper.reported(Incarnation("a", 1), [TabletReport("q", "t", 1, ReplicaState.RUNNING)], [])
    assert list(keeper.orphans) == [("a", "q-1")]
    keeper.reported(Incarnation("a", 1), [], ["q-1"])
    assert not keeper.orphans


def test_many_events_of_one_turn_are_decided_once(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cause of the first of them, and a report that has not changed is judged once."""
    effect = begun(keeper)
    taken(keeper)
    settled, judged = [], []
    settle, steps = Keeper._settle, heartbeat_steps.steps_for
    monkeypatch.setattr(Keeper, "_settle", lambda one, tablet, now: settled.append(tablet) or settle(one, tablet, now))
    monkeypatch.setattr(heartbeat_steps, "steps_for", lambda facts: judged.append(facts) or steps(facts))
    for transition in effect.transitions:
        opened = msgspec.structs.replace(transition, state=RegionState.OPENED)
        keeper.transition_seen("r", transition.replica, opened, 2, NOW)
    for number, uuid in enumerate("abc", 1):
        report = TabletReport("r", "t", number, ReplicaState.RUNNING, 1, TabletRole.FOLLOWER)
        keeper.reported(Incarnation(uuid, 1), [report], [])
    deletes = [one for one in taken(keeper) if isinstance(one, DeleteTransition)]
    assert (len(deletes), len(settled), len(judged)) == (3, 1, 3)
    for one in deletes:
        keeper.write_done(one.key, 3, NOW)
    taken(keeper)
    assert (len(settled), len(judged)) == (2, 6), "the members are in transition no more"
    keeper.tick(NOW + LOOK_EVERY_MS)
    taken(keeper, NOW + LOOK_EVERY_MS)
    assert (len(settled), len(judged)) == (3, 6)


def new_table(count: int, servers: str = "abcde") -> Keeper:
    """Servers, and the regions of a table whose members are left to a plan from six replicas on."""
    made = Keeper(4, AssignerConfig(tablets_bulk_min=6))
    made.table_seen(TABLE, 7)
    for uuid in servers:
        made.server_up(server(uuid))
    made.begin(NOW)
    for number in range(count):
        made.region_seen(RegionRecord("t", f"r{number}", state=TabletState.PREPARING, next_number=1), 0)
    return made


def members_begun(effects: list[KeeperEffect]) -> dict[str, str]:
    """The servers of each tablet that is begun, in one word."""
    begun = [one for one in effects if isinstance(one, BeginTablet)]
    return {one.record.region_id: "".join(member.uuid for member in one.record.members) for one in begun}


def test_many_tablets_get_their_members_from_one_plan() -> None:
    """Asked for when all regions have come; a tablet whose part of the plan does not fit gets members all the same."""
    keeper = new_table(4)
    assert keeper.take(NOW, more_comes=True) == []
    (request,) = taken(keeper)
    assert isinstance(request, RequestPlan)
    assert request.keys == [f"r{region}-{replica}" for region in range(4) for replica in range(3)]
    keeper.tick(NOW + LOOK_EVERY_MS)
    assert taken(keeper, NOW + LOOK_EVERY_MS) == []
    plan = {"r0": "edc", "r1": "ed", "r2": "eec", "r3": "edz"}
    placements = {f"{region}-{at}": uuid for region, uuids in plan.items() for at, uuid in enumerate(uuids)}
    keeper.plan_ready("p", request.keys, placements)
    keeper.tick(NOW)
    effects = taken(keeper)
    assert {one.plan_id for begun in effects for one in begun.transitions} == {"p"}  # type: ignore[union-attr]
    begun = members_begun(effects)
    assert begun.pop("r0") == "edc"
    assert len(begun) == 3
    assert all(len(set(uuids)) == 3 for uuids in begun.values())


def test_without_a_plan_members_are_chosen_after_a_while() -> None:
    """A late plan changes nothing that has begun."""
    keeper = new_table(2)
    (request,) = taken(keeper)
    late = NOW + AssignerConfig().plan_wait_ms
    keeper.tick(late - 1)
    assert taken(keeper, late - 1) == []
    keeper.tick(late + LOOK_EVERY_MS)
    effects = taken(keeper, late + LOOK_EVERY_MS)
    assert sorted(members_begun(effects)) == ["r0", "r1"]
    for effect in effects:
        keeper.begun(effect, late)  # type: ignore[arg-type]
    taken(keeper, late)
    keeper.plan_ready("p", request.keys, dict.fromkeys(request.keys, "e"))  # type: ignore[union-attr]
    keeper.tick(late)
    assert members_begun(taken(keeper, late)) == {}


def test_few_tablets_get_their_members_at_once_and_evenly() -> None:
    """Members that are begun in one turn count as load in the same turn."""
    first = members_begun(taken(new_table(1)))
    assert first == {"r0": "abc"}
    keeper = new_table(10)
    (request,) = taken(keeper)
    keeper.plan_ready("", request.keys, {})  # type: ignore[union-attr]
    keeper.tick(NOW)
    effects = taken(keeper)
    given = Counter("".join(members_begun(effects).values()))
    assert set(given.values()) == {6}
    keeper.region_refused("r0")
    assert sum(keeper.loads.values()) == 27


def test_no_plan_is_asked_for_without_servers_enough() -> None:
    keeper = new_table(4, "ab")
    assert taken(keeper) == []
    keeper.server_up(server("c"))
    assert isinstance(taken(keeper)[0], RequestPlan)


def test_a_parked_number_that_left_the_configuration_is_abandoned(keeper: Keeper) -> None:
    """A first replica whose server lost its disk is parked. Its transition ends when the policy has replaced it."""
    effect = begun(keeper)
    taken(keeper)
    one = msgspec.structs.replace(effect.transitions[0], parked=True, destination=None, begun=True)
    keeper.transition_seen("r", one.replica, one, 9, NOW)
    assert not [each for each in taken(keeper) if isinstance(each, DeleteTransition)]
    left = msgspec.structs.replace(effect.record, members=effect.record.members[1:], state=TabletState.RUNNING)
    keeper.region_seen(left, 5)
    ended = [each for each in taken(keeper) if isinstance(each, DeleteTransition)]
    assert [(each.key, each.cause) for each in ended] == [("r-1", Cause.ABANDONED)]


@pytest.mark.parametrize(("answer", "is_parked"), [(OrderAnswer.AMNESIA, True), (OrderAnswer.ILLEGAL_STATE, False)])
def test_a_server_without_memory_is_asked_once(keeper: Keeper, answer: OrderAnswer, is_parked: bool) -> None:
    """It began to make the replica, died, and never makes it. While it was asked again, the policy could not replace
    the member."""
    effect = begun(keeper)
    home = effect.record.members[1].uuid
    (sent,) = (each for each in taken(keeper) if isinstance(each, SendOpen) and each.server.uuid == home)
    keeper.region_seen(msgspec.structs.replace(effect.record, state=TabletState.RUNNING), 5)
    keeper.orders_answered(sent.batch, [OrderResult("r", 2, OrderOutcome.REFUSED, -1, answer.value)], NOW)
    (written,) = (each for each in taken(keeper) if isinstance(each, WriteOffline))
    assert (written.key, written.record.parked, written.record.last_error) == ("r-2", is_parked, answer.value)


@pytest.mark.parametrize(("disk_free", "is_parked"), [(NO_ROOM, False), (1 << 30, True)])
def test_a_server_without_room_is_asked_until_it_has_room(keeper: Keeper, disk_free: int, is_parked: bool) -> None:
    """A daughter's member was parked after as many failures as on a disk that never works, and stayed parked when the
    disk had room again."""
    effect = begun(keeper)
    home = effect.record.members[1].uuid
    (sent,) = (each for each in taken(keeper) if isinstance(each, SendOpen) and each.server.uuid == home)
    keeper.region_seen(msgspec.structs.replace(effect.record, state=TabletState.RUNNING), 5)
    keeper.server_up(msgspec.structs.replace(server(home), disk_free=disk_free))
    keeper.tablets["r"].work[2].transition = msgspec.structs.replace(
        effect.transitions[1], attempt=AssignerConfig().attempts_max - 1
    )
    keeper.orders_answered(sent.batch, [OrderResult("r", 2, OrderOutcome.REFUSED, -1, "no room")], NOW)
    (written,) = (each for each in taken(keeper) if isinstance(each, WriteOffline))
    assert (written.key, written.record.parked) == ("r-2", is_parked)


def test_first_members_are_not_made_on_disks_below_their_reserve(keeper: Keeper) -> None:
    """A region waits for servers with room, as it waits for servers."""
    keeper.server_up(msgspec.structs.replace(server("b"), disk_free=NO_ROOM))
    assert taken(keeper) == []
    keeper.server_up(msgspec.structs.replace(server("d"), disk_free=1 << 30))
    keeper.tick(NOW + LOOK_EVERY_MS)
    (effect,) = taken(keeper, NOW + LOOK_EVERY_MS)
    assert isinstance(effect, BeginTablet)
    assert [one.uuid for one in effect.record.members] == ["a", "c", "d"]


def test_an_order_to_close_a_number_that_is_gone_ends(keeper: Keeper) -> None:
    """A newcomer was removed; its server got another number before it had closed the replica. The order to close the
    former one was sent again and again."""
    effect = begun(keeper)
    taken(keeper)
    for transition in effect.transitions:
        keeper.transition_seen("r", transition.replica, None, -1, NOW)
    running = msgspec.structs.replace(
        effect.record, state=TabletState.RUNNING, config_term=1, config_index=5, next_number=9
    )
    keeper.region_seen(running, 5)
    keeper.server_up(server("d"))
    keeper.reported(Incarnation("d", 1), [TabletReport("r", "t", 7, ReplicaState.RUNNING, 1)], [])
    taken(keeper)
    assert keeper.tablets["r"].work[7].order is not None
    keeper.reported(Incarnation("d", 1), [TabletReport("r", "t", 8, ReplicaState.TOMBSTONE, 1)], [])
    taken(keeper)
    assert 7 not in keeper.tablets["r"].work


def test_a_region_whose_record_is_deleted_is_forgotten(keeper: Keeper) -> None:
    """The counts of its table, too: replaced regions would fill the memory of a long tenure."""
    record = keeper.tablets["r"].record
    keeper.region_seen(marked_replaced(record), 1)
    keeper.take(NOW)
    keeper.forget_region("r")
    keeper.forget_region("r")
    assert keeper.tablets == {}
    assert keeper.tables["t"].states.total() == 0
    assert keeper.take(NOW + LOOK_EVERY_MS) == []
