"""The mirror equals the state that an active master would load, for any legal order of messages (FW-01, MF-11,
MD-07)."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec
import pytest

from coord.errors import NoNode
from coord.wire.values import Stat
from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster.mirror import NAMES_AT_ONCE, StandbyMirror, Unread
from regions.cluster.state import ClusterState
from regions.records.model import (
    FenceRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.records.znodes import (
    Layout,
    decode_fence,
    decode_region,
    decode_server,
    decode_table,
    decode_transition,
    encode,
)

LAYOUT = Layout("/rk")


class Store:
    """Znodes, and one session's channel: events and answers, in the order of the states that they show."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.channel: deque[tuple[Any, ...]] = deque()

    def put(self, path: str, record: msgspec.Struct | None) -> None:
        version = self.nodes[path][1] + 1 if path in self.nodes else 0
        self.nodes[path] = (b"" if record is None else encode(record), version)
        self.channel.append(("changed", path))

    def delete(self, path: str) -> None:
        if self.nodes.pop(path, None) is not None:
            self.channel.append(("gone", path))

    def below(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        return [
            path[len(prefix) :] for path in self.nodes if path.startswith(prefix) and "/" not in path[len(prefix) :]
        ]

    def answer(self, batch: Any) -> None:
        """Read all of a batch from the present state."""
        results = [self.below(path[:-1]) if path.endswith("/") else self._node(path) for path in batch.paths]
        self.channel.append(("answer", batch, results))

    def _node(self, path: str) -> object:
        if path not in self.nodes:
            return NoNode(path)
        data, version = self.nodes[path]
        return data, Stat(version=version)


class Standby:
    """`master/standby/watcher.py` without a network, one message at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.begin()

    def begin(self) -> None:
        """Watch from now on, and read everything."""
        self.store.channel.clear()
        self.mirror = StandbyMirror(LAYOUT)
        self.unread = Unread()
        self.asked: deque[Any] = deque()
        self._ask(self.mirror.begin())

    def _ask(self, paths: list[str]) -> None:
        for path in paths:
            self.unread.put(path)

    def take(self, most: int) -> None:
        if self.unread.waiting < most:
            self._ask(self.mirror.next_paths())
        batch = self.unread.take(most)
        if batch is not None:
            self.asked.append(batch)

    def hear(self) -> None:
        """Handle one message."""
        kind, subject, *rest = self.store.channel.popleft()
        mirror = self.mirror
        if kind == "changed":
            if mirror.is_record(subject) or LAYOUT.parse_transition(subject):
                self.unread.put(subject)
        elif kind == "gone":
            self.unread.discard(subject)
            if LAYOUT.parse_transition(subject):
                mirror.ended([subject])
            else:
                mirror.gone(subject)
        else:
            self._ask(mirror.answered(subject.paths, rest[0], 5))
            self.unread.answered(subject)
        mirror.finish_batch()

    def read_up(self) -> None:
        """Handle messages until none is left, and everything is read."""
        while self.store.channel or self.asked or self.unread.waiting:
            self.take(100)
            while self.asked:
                self.store.answer(self.asked.popleft())
            while self.store.channel:
                self.hear()


def loaded(store: Store) -> ClusterState:
    """Return the state that an active master loads from the store."""
    return _load(store).world


def _load(store: Store) -> Assigner:
    nodes = store.nodes

    def all_of(directory: str, decode: Any) -> list[tuple[Any, int]]:
        prefix = f"{directory}/"
        return [
            (decode(data, path), version) for path, (data, version) in nodes.items() if path.startswith(prefix) and data
        ]

    assigner = Assigner(1)
    tables = [one for one in all_of(LAYOUT.tables, decode_table) if not one[0].finished_ms]
    known = {record.table_id for record, _ in tables}
    assigner.load(
        tables,
        [one for one in all_of(LAYOUT.regions, decode_region) if one[0].table_id in known],
        [record for record, _ in all_of(LAYOUT.servers, decode_server)],
        all_of(LAYOUT.unassigned, decode_transition),
        store.below(LAYOUT.draining),
        5,
        fences=[record for record, _ in all_of(LAYOUT.fenced, decode_fence)],
    )
    return assigner


def picture(world: ClusterState) -> dict[str, Any]:
    """Return everything of a cluster state that comes from the store, with its relations."""
    replicas = {
        one.key: (
            one.home,
            one.last_uuid,
            one.transition,
            one.version,
            one.open_on.incarnation if one.open_on else None,
            one.coming_to.incarnation if one.coming_to else None,
        )
        for one in world.replicas.values()
    }
    servers = {
        uuid: (one.record, one.marked, bool(one.fencing), sorted(one.open), sorted(one.incoming))
        for uuid, one in world.servers.items()
    }
    tables = {
        table_id: (one.record, one.version, sorted(one.regions), one.replicas, one.open_replicas, one.parked, one.rit)
        for table_id, one in world.tables.items()
    }
    regions = {region_id: (one.record, one.version) for region_id, one in world.regions.items()}
    names = {name: table.record.table_id for name, table in world.names.items()}
    return {
        "tables": tables,
        "names": names,
        "regions": regions,
        "replicas": replicas,
        "servers": servers,
        "active": sorted(world.active),
    }


class History:
    """Random changes by masters and servers, following the rules: region and OPENED together, tables last."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store()
        self.tables = 0
        self.deleted: list[RegionRecord] = []
        self.codes = {f"s{number}": 1 for number in range(3)}

    def server(self, uuid: str) -> Incarnation:
        return Incarnation(uuid, self.codes[uuid])

    def step(self) -> None:
        kinds = [self.register, self.leave, self.fence, self.drain, self.create, self.table, self.remove]
        kinds += [self.transition] * 12 + [self.region] * 2
        self.chance.choice(kinds)()

    def register(self) -> None:
        uuid = self.chance.choice(list(self.codes))
        if LAYOUT.server(uuid) in self.store.nodes:
            return
        self.codes[uuid] += 1
        self.store.put(LAYOUT.server(uuid), ServerRecord(uuid, "h", 1, self.codes[uuid]))
        self.store.delete(LAYOUT.fence_mark(uuid))

    def leave(self) -> None:
        uuid = self.chance.choice(list(self.codes))
        self.store.delete(LAYOUT.server(uuid))

    def fence(self) -> None:
        uuid = self.chance.choice(list(self.codes))
        path = LAYOUT.server(uuid)
        if path in self.store.nodes:
            record = decode_server(self.store.nodes[path][0])
            self.store.put(LAYOUT.fence_mark(uuid), FenceRecord(record, 9, "slow"))
            self.store.delete(path)

    def drain(self) -> None:
        path = LAYOUT.draining_mark(self.chance.choice(list(self.codes)))
        if path in self.store.nodes:
            self.store.delete(path)
        else:
            self.store.put(path, None)

    def create(self) -> None:
        self.tables += 1
        table_id, replication = f"t{self.tables}", self.chance.choice((1, 1, 2))
        self.store.put(LAYOUT.table_regions(table_id), None)
        count = self.chance.randrange(1, 4)
        for number in range(count):
            self.store.put(
                LAYOUT.region(table_id, f"{table_id}.{number}"), RegionRecord(table_id, f"{table_id}.{number}")
            )
        if self.chance.random() < 0.9:  # otherwise its master dies before it is made
            table = TableRecord(table_id, self.chance.choice("abc") + table_id, replication=replication)
            self.store.put(LAYOUT.table(table_id), table)

    def _some(self, directory: str) -> str | None:
        found = [path for path in self.store.nodes if path.startswith(f"{directory}/") and self.store.nodes[path][0]]
        return self.chance.choice(found) if found else None

    def table(self) -> None:
        path = self._some(LAYOUT.tables)
        if path is None:
            return
        record = decode_table(self.store.nodes[path][0])
        intent = self.chance.choice(list(TableIntent))
        name = self.chance.choice("abc") + record.table_id
        if record.state is not TableState.REMOVED:
            self.store.put(path, msgspec.structs.replace(record, intent=intent, name=name))

    def remove(self) -> None:
        path = self._some(LAYOUT.tables)
        if path is None:
            return
        record = decode_table(self.store.nodes[path][0])
        if record.state is TableState.REMOVED:
            self.store.put(path, msgspec.structs.replace(record, finished_ms=7))
        else:
            self.store.put(path, msgspec.structs.replace(record, state=TableState.REMOVED))

    def region(self) -> None:
        path = self._some(LAYOUT.regions)
        if path is None:
            return
        record = decode_region(self.store.nodes[path][0])
        state = TabletState.REPLACED if self.chance.random() < 0.1 else record.state
        if self.deleted and self.chance.random() < 0.3:
            again = self.deleted.pop()
            self.store.put(LAYOUT.region(again.table_id, again.region_id), again)
        elif self.chance.random() < 0.1:
            self.store.delete(path)
            self.deleted.append(record)
        else:
            self.store.put(path, msgspec.structs.replace(record, unassigned=not record.unassigned, state=state))

    def transition(self) -> None:
        """Take the next step of one replica, or its first."""
        path = self._some(LAYOUT.unassigned if self.chance.random() < 0.7 else LAYOUT.regions)
        if path is None:
            return
        if path.startswith(LAYOUT.regions):
            region = decode_region(self.store.nodes[path][0])
            number = self.chance.randrange(2)
            path = LAYOUT.transition(region.region_id, number)
            if path in self.store.nodes:
                return
            home = region.location(number).incarnation
            state = RegionState.OFFLINE if home is None else RegionState.CLOSING
            goal = self.server(self.chance.choice(list(self.codes)))
            self.store.put(path, TransitionRecord(region.region_id, region.table_id, number, state, home, goal))
            return
        record = decode_transition(self.store.nodes[path][0])
        states = list(RegionState)
        after = {RegionState.OFFLINE: 1, RegionState.OPENING: 2, RegionState.CLOSING: 4, RegionState.CLOSED: 0}
        if record.state is RegionState.OPENED:
            self.store.delete(path)
            return
        state = states[after[record.state]]
        if state is RegionState.OPENED:
            place = LAYOUT.region(record.table_id, record.region_id)
            if place not in self.store.nodes or record.destination is None:
                return
            home = record.destination
            location = ReplicaLocation(record.replica, home.uuid, home.start_code, 1)
            self.store.put(place, decode_region(self.store.nodes[place][0]).with_location(location))
        self.store.put(path, msgspec.structs.replace(record, state=state, parked=self.chance.random() < 0.1))


@pytest.mark.parametrize("seed", range(150))
def test_it_equals_what_an_active_master_would_load(seed: int) -> None:
    """MF-11, FW-01: creations, changes, deletions and gaps, received in any legal order, leave no difference."""
    history = History(seed)
    chance, store = history.chance, history.store
    for _ in range(chance.randrange(40)):
        history.step()
    standby = Standby(store)
    for _ in range(250):
        match chance.randrange(8):
            case 0:
                standby.take(chance.choice((1, 3, 100)))
            case 1 if standby.asked:
                store.answer(standby.asked.popleft())
            case 2 | 3 | 4:
                for _ in range(chance.randrange(4)):
                    if store.channel:
                        standby.hear()
            case 5 if chance.random() < 0.02:
                standby.begin()
            case _:
                history.step()
    standby.read_up()
    assert standby.mirror.is_complete
    assert picture(standby.mirror.world) == picture(loaded(store))


def wishes(assigner: Assigner) -> list[str]:
    """Return the actions of an assigner without their servers, which depend on the order of placement."""
    assigner.begin(9)
    found = []
    for effect in assigner.take(9):
        if isinstance(effect, fx.RequestPlan):
            found += [f"plan {key}" for key in effect.keys]
        elif isinstance(effect, fx.SendOpen | fx.SendClose):
            found += [f"{type(effect).__name__} {order.region_id}" for order in _orders(effect)]
        elif not isinstance(effect, fx.Note):
            subject = getattr(effect, "key", "") or getattr(effect, "uuid", "") or getattr(effect, "region_id", "")
            found.append(f"{type(effect).__name__} {subject}")
    return sorted(found)


def _orders(effect: fx.SendOpen | fx.SendClose) -> list[Any]:
    if isinstance(effect, fx.SendOpen):
        return [order.transition for order in effect.orders]
    return list(effect.orders)


@pytest.mark.parametrize("seed", range(100))
def test_a_master_that_adopts_a_mirror_decides_as_one_that_loads(seed: int) -> None:
    """MF-03 to MF-08: an active master does the same about every transition with a mirror and with a load; servers may
    have changed."""
    history = History(seed)
    for _ in range(150):
        history.step()
    standby = Standby(history.store)
    standby.read_up()
    history.register()
    history.leave()
    history.fence()
    nodes, below = history.store.nodes, history.store.below
    servers = [decode_server(nodes[LAYOUT.server(uuid)][0]) for uuid in below(LAYOUT.servers)]
    fences = [decode_fence(nodes[LAYOUT.fence_mark(uuid)][0]) for uuid in below(LAYOUT.fenced)]
    warm = Assigner(1)
    warm.adopt(standby.mirror.world, servers, below(LAYOUT.draining), 5, fences=fences)
    cold = _load(history.store)
    assert picture(warm.world) == picture(cold.world)
    assert wishes(warm) == wishes(cold)


def test_complete_is_only_what_has_been_read_to_the_end() -> None:
    """A takeover during the first read must load as if there were no mirror."""
    history = History(1)
    history.create()
    standby = Standby(history.store)
    standby.take(1_000)
    history.store.answer(standby.asked.popleft())
    standby.hear()
    assert not standby.mirror.is_complete, "the directories are listed, the table is not read"
    standby.read_up()
    assert standby.mirror.is_complete


# Fails if the paths of all regions of a table are queued when their names have been read.
def test_the_regions_of_a_large_table_are_queued_in_parts() -> None:
    history = History(1)
    history.create()
    for number in range(2 * NAMES_AT_ONCE):
        record = RegionRecord("t1", f"t1.{number + 100:06}")
        history.store.put(LAYOUT.region("t1", record.region_id), record)
    standby = Standby(history.store)
    most = 0
    while not standby.mirror.is_complete:
        standby.take(500)
        most = max(most, standby.unread.waiting)
        if standby.asked:
            history.store.answer(standby.asked.popleft())
        standby.hear()
    assert NAMES_AT_ONCE <= most + 500 <= NAMES_AT_ONCE + 1_000
    assert picture(standby.mirror.world) == picture(loaded(history.store))


def test_a_znode_that_cannot_be_understood_is_left_alone() -> None:
    """As in a load: the cluster still needs a master; once the znode is repaired, it counts."""
    history = History(2)
    history.create()
    path = LAYOUT.region("t1", "t1.0")
    good = history.store.nodes[path]
    history.store.nodes[path] = (b"{", 1)
    standby = Standby(history.store)
    standby.read_up()
    assert [one.path for one in standby.mirror.troubles] == [path]
    assert "t1.0" not in standby.mirror.world.regions
    history.store.put(path, decode_region(good[0]))
    standby.read_up()
    assert "t1.0" in standby.mirror.world.regions


# --- what is to be read ---


def test_a_change_while_it_is_read_is_read_again() -> None:
    """The answer in flight may be older than the change."""
    unread = Unread()
    unread.put("a")
    first = unread.take(10)
    assert first is not None
    unread.put("a")
    mark = unread.mark()
    unread.answered(first)
    assert not unread.is_past(mark)
    second = unread.take(10)
    assert second is not None
    assert second.paths == ["a"]
    assert not unread.is_past(mark), "asked for is not read"
    unread.answered(second)
    assert unread.is_past(mark)


def test_a_mark_does_not_wait_for_what_came_after_it() -> None:
    """On a busy store it would otherwise never be reached."""
    unread = Unread()
    unread.put("a")
    mark = unread.mark()
    unread.put("b")
    batch = unread.take(1)
    assert batch is not None
    assert not unread.is_past(mark)
    unread.answered(batch)
    assert unread.is_past(mark)
    assert len(unread) == 1


def test_what_is_gone_needs_no_reading() -> None:
    """A transition that ended quickly costs no request."""
    unread = Unread()
    unread.put("a")
    mark = unread.mark()
    unread.discard("a")
    assert unread.is_past(mark)
    assert unread.take(5) is None
