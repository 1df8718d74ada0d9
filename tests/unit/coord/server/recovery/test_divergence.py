"""Replicas compare digests while they run: one that differs stops, a majority never does, no node stops without
reason."""

from __future__ import annotations

from itertools import pairwise

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from coord.errors import OK, StateDamaged, StateDiverged
from coord.server.peers import codec
from coord.server.recovery.divergence import COMPARE_MS, PATIENCE_MS, REMEMBERED, ROUNDS_MAX, DivergenceCheck
from coord.tree.node import SetDataDelta
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import TICK_MS, StoreNodes


class Group:
    """`count` agreements that receive each other's messages at once, or when `deliver` is called."""

    def __init__(self, count: int, voters: list[int] | None = None) -> None:
        self.ids = list(range(1, count + 1))
        self.voters = voters or self.ids
        self.frames: list[tuple[int, int, bytes]] = []
        self.parts = {i: DivergenceCheck(i, lambda peer, frame, i=i: self.send(i, peer, frame)) for i in self.ids}
        self.stopped: dict[int, StateDiverged] = {}
        self.now_ms = 0

    def send(self, sender: int, peer: int, frame: bytes) -> bool:
        self.frames.append((sender, peer, frame))
        return True

    def deliver(self) -> None:
        """Deliver all messages, also those that follow."""
        while self.frames:
            sender, peer, frame = self.frames.pop(0)
            if peer in self.stopped:
                continue
            try:
                self.parts[peer].take_digest(sender, *codec.decode_digest(frame, 5, len(frame)), self.now_ms)
            except StateDiverged as error:
                self.stopped[peer] = error

    def tick(self, leader: int = 1) -> None:
        """Let a second pass."""
        self.now_ms += COMPARE_MS
        for i, part in self.parts.items():
            if i not in self.stopped:
                try:
                    part.tick(self.now_ms, leads=i == leader, voters=self.voters, members=self.ids)
                except StateDiverged as error:
                    self.stopped[i] = error
        self.deliver()


@pytest.fixture
def lines() -> list[str]:
    """Return the logged lines."""
    found: list[str] = []

    def keep(event: LogEvent) -> None:
        found.append((event.get("log_format") or "").format_map(event))

    globalLogPublisher.addObserver(keep)
    yield found
    globalLogPublisher.removeObserver(keep)


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("odd", [1, 3])
@pytest.mark.parametrize("leader", [1, 2])
def test_only_the_odd_one_stops(count: int, odd: int, leader: int, lines: list[str]) -> None:
    """Leader or follower; the line names index, both states and the nodes with the other one."""
    group = Group(count)
    for i, part in group.parts.items():
        part.applied(7, 9, 0xBAD if i == odd else 0x600D)
    group.tick(leader)
    group.tick(leader)
    assert list(group.stopped) == [odd]
    error = group.stopped[odd]
    assert (error.index, error.own, error.theirs) == (7, (9, 0xBAD), (9, 0x600D))
    assert odd not in error.nodes
    assert len(error.nodes) > count // 2
    assert "entry 7 it has zxid 0x9 digest 0000000000000bad" in str(error)
    named = [line for line in lines if f"node {odd} differs from the majority" in line]
    assert 1 <= len(named) <= count - 1


def test_another_zxid_behind_the_same_entry_is_another_state() -> None:
    """One replica did not count a command."""
    group = Group(3)
    for i, part in group.parts.items():
        part.applied(7, 9 if i != 2 else 8, 1)
    group.tick()
    assert list(group.stopped) == [2]


def test_without_a_majority_nobody_stops_and_everybody_says_so(lines: list[str]) -> None:
    """Two voters that differ, and three that all differ."""
    for count in (2, 3):
        del lines[:]
        group = Group(count)
        for i, part in group.parts.items():
            part.applied(7, 9, i)
        for second in range(PATIENCE_MS // COMPARE_MS + 3):
            for i, part in group.parts.items():
                part.applied(8 + second, 10 + second, i)
            group.tick()
        assert not group.stopped
        assert sum("no majority decides which is right" in line for line in lines) == count


def test_observers_are_judged_and_judge_nobody() -> None:
    """Two observers with the same fault do not outvote a voter, and stop."""
    group = Group(5, voters=[1, 2, 3])
    for i, part in group.parts.items():
        part.applied(7, 9, 1 if i <= 3 else 2)
    group.tick()
    assert sorted(group.stopped) == [4, 5]


def test_node_behind_compares_when_it_gets_there() -> None:
    """It receives rounds long before it has applied their entries; the first rounds count."""
    group = Group(3)
    for second in range(ROUNDS_MAX + 4):
        for i in (1, 2):
            group.parts[i].applied(second + 1, second + 1, second)
        group.tick()
    assert not group.stopped
    late = group.parts[3]
    for index in range(1, ROUNDS_MAX + 1):
        late.applied(index, index, index - 1)
    group.tick()
    assert not group.stopped
    assert late.agreed_index >= ROUNDS_MAX
    for second in range(2):
        for i in (1, 2, 3):
            group.parts[i].applied(100 + second, 100, 0 if i < 3 else 1)
        group.tick()
    assert list(group.stopped) == [3]


def test_rounds_that_nobody_answers_are_given_up() -> None:
    """A node that is down costs the memory of a bounded number of rounds."""
    group = Group(3)
    for second in range(200):
        for i in (1, 2):
            group.parts[i].applied(second + 1, second + 1, 1)
        group.frames = [frame for frame in group.frames if frame[1] != 3]
        group.tick()
        for part in group.parts.values():
            assert len(part._rounds) <= ROUNDS_MAX
    assert group.parts[1].agreed_index > 100


def test_entry_that_is_not_remembered_any_more_is_not_judged() -> None:
    """The oldest remembered entry is compared, the one before it is not."""
    for back, judged in ((REMEMBERED - 1, True), (REMEMBERED, False)):
        group = Group(3)
        for index in range(1, REMEMBERED + 11):
            group.parts[1].applied(index, index, 1)
        index = REMEMBERED + 10 - back
        group.parts[1].tick(0, leads=False, voters=[1, 2, 3], members=[1, 2, 3])
        for peer in (2, 3):
            try:
                group.parts[1].take_digest(peer, index, index, 2, True, 0)
            except StateDiverged:
                group.stopped[1] = StateDiverged(0, (0, 0), (0, 0), [])
        assert bool(group.stopped) == judged


# --- whole nodes ------------------------------------------------------------------------------------------------------


def written(nodes: StoreNodes, count: int) -> None:
    """Create some znodes."""
    client = nodes.client(nodes.leader())
    for n in range(count):
        client.request(
            n + 1, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/n%d" % n, b"v", OPEN_ACL, 0))
        )
    nodes.settle()
    assert all(reply[2] == OK for reply in client.replies())


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_value_changed_behind_the_logs_back_stops_that_node_alone(count: int, who: str) -> None:
    """Like a bug in apply: one znode differs, with its digest. The other nodes continue with a leader."""
    nodes = StoreNodes(count)
    written(nodes, 5)
    nodes.run(3 * COMPARE_MS // TICK_MS)
    assert all(node.divergence.agreed_index > 0 for node in nodes.nodes.values())
    odd = nodes.leader() if who == "leader" else nodes.follower()
    odd.machine.tree.apply(SetDataDelta(b"/n3", b"changed", 1), odd.machine.last_zxid, 0, [])
    nodes.may_stop = StateDiverged
    written_later = nodes.client(next(node for node in nodes.nodes.values() if node is not odd))
    written_later.request(1, op.OP_SET_DATA, records.encode_set_data(b"/n1", b"w", -1))
    nodes.run(3 * COMPARE_MS // TICK_MS)
    assert list(nodes.stopped) == [odd.settings.node_id]
    assert nodes.leader() is not odd
    nodes.run(3 * COMPARE_MS // TICK_MS)
    assert len(nodes.nodes) == count - 1
    states = {(node.machine.last_zxid, node.machine.digest()) for node in nodes.nodes.values()}
    assert len(states) == 1


def test_idle_cluster_compares_what_it_has_last_applied() -> None:
    """A difference is found without another write, once the last one is compared."""
    nodes = StoreNodes(3)
    written(nodes, 2)
    nodes.run(2 * COMPARE_MS // TICK_MS)
    for node in nodes.nodes.values():
        assert node.divergence.agreed_index == node.applied_index


def test_node_that_comes_back_to_an_idle_store_with_another_state_stops() -> None:
    """No entry is applied any more, but the node still finds the difference."""
    nodes = StoreNodes(3)
    written(nodes, 4)
    nodes.run(12 * COMPARE_MS // TICK_MS)
    for node in nodes.nodes.values():
        node.take_snapshot()
    odd = nodes.follower().settings.node_id
    nodes.crash(odd)
    node = nodes.start(odd)
    node.machine.tree.apply(SetDataDelta(b"/n3", b"changed", 1), node.machine.last_zxid, 0, [])
    node.divergence.applied(node.applied_index, node.machine.last_zxid, node.machine.digest())
    nodes.may_stop = StateDiverged
    nodes.run(3 * COMPARE_MS // TICK_MS)
    assert list(nodes.stopped) == [odd]


def test_state_taken_over_by_snapshot_is_compared(lines: list[str]) -> None:
    """A follower that was away and received a snapshot agrees with the others afterwards."""
    nodes = StoreNodes(3, snapshot_entries=10, keep_entries=2)
    written(nodes, 3)
    away = nodes.follower().settings.node_id
    nodes.crash(away)
    for _ in range(3):
        client = nodes.client(nodes.leader())
        for n in range(12):
            client.request(n + 1, op.OP_SET_DATA, records.encode_set_data(b"/n1", b"%d" % n, -1))
            nodes.run(1)
    nodes.start(away)
    nodes.run(12 * COMPARE_MS // TICK_MS)
    assert any("installed the snapshot" in line for line in lines)
    assert nodes.nodes[away].divergence.agreed_index == nodes.nodes[away].applied_index
    assert all(one.machine.digest() == other.machine.digest() for one, other in pairwise(nodes.nodes.values()))


@pytest.mark.parametrize("what", ["data", "version", "digest"])
def test_value_that_flipped_in_memory_is_found_before_a_snapshot_holds_it(what: str) -> None:
    """The digest stored with each znode does not match the changed value: the node stops, and leaves no file of it."""
    nodes = StoreNodes(3)
    written(nodes, 5)
    node = nodes.follower()
    tree = node.machine.tree
    # Checksums of changed znodes are computed when the digest is read.
    node.machine.digest()
    if what == "data":
        tree.nodes[b"/n3"].data = b"w"
    elif what == "version":
        tree.nodes[b"/n3"].version ^= 8
    else:
        tree._digest_sum ^= 1 << 20
    nodes.may_stop = StateDamaged
    node.take_snapshot()
    nodes.run(1)
    number = node.settings.node_id
    assert list(nodes.stopped) == [number]
    assert ("/n3" in str(nodes.stopped[number])) == (what != "digest")
    assert nodes.disks[number].names("snap") == []
