"""Nodes that restart without their memory: whatever is missing on one disk, no acknowledged write is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coord.env import read_file
from coord.errors import OK, InvalidMessage, StorageError
from coord.raft.leadership import Leadership
from coord.raft.membership import FIRST_MEMORY, MEMORY_MAX, Configuration, decode_configuration, objection
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    HEARTBEAT_RESP,
    PRE_VOTE_RESP,
    VOTE_RESP,
    Message,
)
from coord.raft.progress import Progress
from coord.server.membership.joining import (
    FIRST_ELECTION_WAIT_MS,
    JOINING_FILE,
    MEMORY_FILE,
    Joining,
    read_memory,
    renew_memory,
)
from coord.server.peers import raft_frames
from coord.storage.extent import NAME as EXTENT
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.disks import MemoryDisk
from tests.support.interpreted import needs_interpreted
from tests.support.store_nodes import TICK_MS, Client, SeededRng, StoreNodes


def create(client: Client, xid: int, path: bytes) -> None:
    """Send a create request."""
    client.request(xid, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, path, b"v", OPEN_ACL, 0)))


def run_only(nodes: StoreNodes, awake: list[int], ticks: int) -> None:
    """Let time pass for these nodes; the others are paused."""
    for _ in range(ticks):
        nodes.clock.now_ms += TICK_MS
        for i in awake:
            if i in nodes.nodes:
                nodes.nodes[i].tick()
        nodes.settle()


def acknowledged(client: Client, xid: int) -> bool:
    """Return True if the client has received the acknowledgment of its write."""
    return any(reply[0] == xid and reply[2] == OK for reply in client.replies())


def run_schedule(seed: int) -> StoreNodes:
    """Bring a deposed leader and a wiped voter together, then the node with the acknowledged write."""
    nodes = StoreNodes(3, seed=seed)
    old = nodes.leader().settings.node_id
    its_client = nodes.client(nodes.nodes[old], timeout_ms=10_000)
    create(its_client, 1, b"/before")
    nodes.run(2)
    for other in nodes.ids():
        if other != old:
            nodes.cut(old, other)
    rest = [i for i in nodes.ids() if i != old]
    for _ in range(100):
        run_only(nodes, rest, 1)
        leading = [i for i in rest if nodes.nodes[i].core.leadership is not None]
        if leading:
            break
    right = leading[0]
    wiped = next(i for i in rest if i != right)
    client = nodes.client(nodes.nodes[right], timeout_ms=10_000)
    create(client, 1, b"/kept")
    run_only(nodes, rest, 2)
    assert acknowledged(client, 1)
    nodes.crash(right)
    nodes.crash(wiped)
    nodes.disks[wiped] = MemoryDisk()
    nodes.start(wiped)
    assert nodes.nodes[old].core.leadership is not None
    create(its_client, 2, b"/lost")
    nodes.run(8)
    assert not acknowledged(its_client, 2)
    nodes.start(right)
    nodes.run(120)
    return nodes


@pytest.mark.parametrize("seed", range(6))
def test_deposed_leader_does_not_commit_with_a_wiped_voter(seed: int) -> None:
    """L is paused and cut off; A is elected with X; a write is acknowledged; X is wiped; L continues with X; A's disk
    is whole."""
    nodes = run_schedule(seed)
    assert sorted(nodes.nodes) == [1, 2, 3]
    for node in nodes.nodes.values():
        assert b"/kept" in node.machine.tree.nodes
        assert not node.joining.is_joining
    assert len({node.machine.digest() for node in nodes.nodes.values()}) == 1


@needs_interpreted
def test_the_schedule_loses_the_write_where_such_acknowledgements_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule proves something: under the older rule the deposed leader commits."""

    def judge(self: Leadership, peer: Progress) -> None:
        peer.counts = True

    monkeypatch.setattr(Leadership, "_update_counts", judge)
    with pytest.raises((AssertionError, InvalidMessage)):
        run_schedule(1)


def test_wiped_voter_is_taken_out_and_votes_again_with_its_new_memory() -> None:
    """This holds even if the voter restarts in between, and loses its disk a second time."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader, timeout_ms=10_000)
    victim = nodes.follower().settings.node_id
    memories = {FIRST_MEMORY}
    for xid in (1, 2):
        nodes.crash(victim)
        create(client, xid, b"/n%d" % xid)
        nodes.disks[victim] = MemoryDisk()
        nodes.start(victim)
        assert nodes.nodes[victim].joining.is_joining
        assert "its votes do not count" in nodes.nodes[victim].trouble()
        nodes.crash(victim)
        nodes.start(victim)
        assert nodes.nodes[victim].joining.is_joining
        nodes.run(40)
        assert not nodes.nodes[victim].joining.is_joining
        assert nodes.nodes[victim].trouble() == ""
        config = leader.core.configs.current
        memory = nodes.nodes[victim].core.memory
        assert config.voters == [1, 2, 3]
        assert config.counts(victim, memory)
        memories.add(memory)
        nodes.crash(victim)
        nodes.start(victim)
        assert nodes.nodes[victim].core.memory == memory
    assert len(memories) == 3


@pytest.mark.parametrize("seed", range(3))
def test_leader_that_is_wiped_comes_back_as_a_learner(seed: int) -> None:
    """The others elect another leader, which removes the node and adds it again."""
    nodes = StoreNodes(3, seed=seed)
    first = nodes.leader().settings.node_id
    client = nodes.client(nodes.leader(), timeout_ms=10_000)
    create(client, 1, b"/kept")
    nodes.run(2)
    nodes.crash(first)
    nodes.disks[first] = MemoryDisk()
    nodes.start(first)
    nodes.run(100)
    assert nodes.leader().settings.node_id != first
    assert nodes.leader().core.configs.current.counts(first, nodes.nodes[first].core.memory)
    assert b"/kept" in nodes.nodes[first].machine.tree.nodes


def test_two_of_five_are_replaced_one_after_the_other() -> None:
    """Each change removes or adds one voter."""
    nodes = StoreNodes(5)
    leader = nodes.leader()
    victims = [i for i in nodes.ids() if i != leader.settings.node_id][:2]
    for victim in victims:
        nodes.crash(victim)
        nodes.disks[victim] = MemoryDisk()
    for victim in victims:
        nodes.start(victim)
    nodes.run(80)
    config = nodes.leader().core.configs.current
    assert config.voters == [1, 2, 3, 4, 5]
    assert sorted(config.memories) == sorted(victims)


@pytest.mark.parametrize("is_let_in", [False, True])
@pytest.mark.parametrize("loses_leader", [False, True])
def test_a_late_starter_is_as_good_as_a_lost_disk_until_it_is_let_in(loses_leader: bool, is_let_in: bool) -> None:
    """A disk lost before that counts as a second one: no leader is elected until it is put back. One lost afterwards is
    repaired."""
    nodes = StoreNodes(3)
    nodes.crash(3)
    nodes.disks[3] = MemoryDisk()
    first = nodes.leader().settings.node_id
    client = nodes.client(nodes.leader(), timeout_ms=60_000)
    create(client, 1, b"/kept")
    nodes.run(2)
    assert acknowledged(client, 1)
    nodes.start(3)
    assert nodes.nodes[3].joining.is_joining
    nodes.run(40 if is_let_in else 0)
    lost, whole = (first, 3 - first) if loses_leader else (3 - first, first)
    nodes.crash(lost)
    old_disk, nodes.disks[lost] = nodes.disks[lost], MemoryDisk()
    if not is_let_in:
        # The leader has not removed node 3 yet.
        nodes.crash(whole)
        nodes.start(whole)
    nodes.start(lost)
    nodes.run(150)
    if not is_let_in:
        assert all(node.core.leadership is None for node in nodes.nodes.values())
        assert [nodes.nodes[i].joining.is_joining for i in (lost, whole, 3)] == [True, False, True]
        nodes.crash(lost)
        nodes.disks[lost] = old_disk
        nodes.start(lost)
        nodes.run(150)
    config = nodes.leader().core.configs.current
    for i, node in nodes.nodes.items():
        assert b"/kept" in node.machine.tree.nodes
        assert config.counts(i, node.core.memory)


def test_nodes_of_a_new_store_wait_for_each_other() -> None:
    """A node that starts a second after the others does not count as a lost disk: the first election waited for it."""
    nodes = StoreNodes(3, away=[3])
    nodes.run(FIRST_ELECTION_WAIT_MS // (2 * TICK_MS))
    assert all(node.core.term == 0 for node in nodes.nodes.values())
    nodes.start(3)
    config = nodes.leader().core.configs.current
    assert not nodes.nodes[3].joining.is_joining
    assert config.memories == {}


def test_a_new_store_does_not_wait_for_long() -> None:
    nodes = StoreNodes(3, away=[3])
    nodes.run(FIRST_ELECTION_WAIT_MS // TICK_MS - 1)
    assert all(node.core.term == 0 for node in nodes.nodes.values())
    nodes.run(30)
    assert nodes.leader().core.term > 0


def test_only_the_first_election_waits() -> None:
    """A store that has had a leader elects the next one as soon as a majority runs."""
    nodes = StoreNodes(3)
    nodes.leader()
    for i in nodes.ids():
        nodes.crash(i)
    for i in (1, 2):
        nodes.start(i)
    nodes.run(FIRST_ELECTION_WAIT_MS // TICK_MS - 1)
    assert any(node.core.leadership for node in nodes.nodes.values())


def test_two_voters_without_a_leader_say_what_to_do() -> None:
    """No node can be elected: the wiped node names the safe way and the other one."""
    nodes = StoreNodes(2)
    nodes.leader()
    nodes.crash(1)
    nodes.crash(2)
    nodes.disks[2] = MemoryDisk()
    nodes.start(1)
    nodes.start(2)
    nodes.run(60)
    assert all(node.core.leadership is None for node in nodes.nodes.values())
    text = nodes.nodes[2].trouble()
    assert "Restore the old data directory of node 2" in text
    assert "rk coord restore" in text


# --- what is missing on a disk ----------------------------------------------------------------------------------------


def without_log(disk: MemoryDisk) -> None:
    for name in [name for name in disk.files if name.startswith("wal/")]:
        del disk.files[name]


def without_last_segment(disk: MemoryDisk) -> None:
    del disk.files[max(name for name in disk.files if name.startswith("wal/"))]


def cut_to_half(disk: MemoryDisk) -> None:
    content = disk.files[max(name for name in disk.files if name.startswith("wal/"))].content
    del content[len(content) // 2 :]


def cut_by_40_bytes(disk: MemoryDisk) -> None:
    del disk.files[max(name for name in disk.files if name.startswith("wal/"))].content[-40:]


def cut_behind_the_header(disk: MemoryDisk) -> None:
    del disk.files[max(name for name in disk.files if name.startswith("wal/"))].content[10:]


def flipped_in_the_middle(disk: MemoryDisk) -> None:
    content = disk.files[max(name for name in disk.files if name.startswith("wal/"))].content
    content[content.find(b"RKW1", len(content) // 1000) + 30] ^= 4


def emptied(disk: MemoryDisk) -> None:
    disk.files.clear()


def log_and_extent_of_an_older_build_gone(disk: MemoryDisk) -> None:
    without_log(disk)
    del disk.files[EXTENT]


HARMS = [
    without_log,
    without_last_segment,
    cut_to_half,
    cut_by_40_bytes,
    cut_behind_the_header,
    flipped_in_the_middle,
    emptied,
    log_and_extent_of_an_older_build_gone,
]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_what_two_have_acknowledged_survives_any_harm_to_one_disk(
    harm: Callable[[MemoryDisk], None], restarts: bool
) -> None:
    """1 and 2 acknowledge while 3 is down; all stop, the disk of 2 is harmed; 2 and 3 wait for 1, which has
    everything."""
    nodes = StoreNodes(3, snapshot_entries=10, keep_entries=2)
    first = nodes.leader().settings.node_id
    harmed, away = (i for i in nodes.ids() if i != first)
    client = nodes.client(nodes.leader(), timeout_ms=60_000)
    create(client, 1, b"/common")
    nodes.run(2)
    nodes.crash(away)
    if restarts:
        nodes.crash(harmed)
        nodes.start(harmed)
        nodes.run(2)
    for xid in range(2, 40):
        create(client, xid, b"/n%d" % xid)
        nodes.run(1)
    assert all(acknowledged(client, xid) for xid in range(1, 40))
    nodes.crash(harmed)
    nodes.crash(first)
    after = nodes.disks[harmed].copy()
    harm(after)
    nodes.disks[harmed] = after.copy()
    nodes.start(harmed)
    nodes.start(away)
    nodes.run(200)
    assert all(node.core.leadership is None for node in nodes.nodes.values())
    assert nodes.nodes[harmed].joining.is_joining
    nodes.start(first)
    nodes.run(150)
    for node in nodes.nodes.values():
        assert all(b"/n%d" % xid in node.machine.tree.nodes for xid in range(2, 40))
        assert not node.joining.is_joining
    assert len({node.machine.digest() for node in nodes.nodes.values()}) == 1


def test_lone_node_without_its_log_does_not_start() -> None:
    """No other node has the log's entries; the error names the missing file."""
    nodes = StoreNodes(1, snapshot_entries=5)
    client = nodes.client(nodes.leader(), timeout_ms=60_000)
    for xid in range(1, 20):
        create(client, xid, b"/n%d" % xid)
        nodes.run(1)
    nodes.crash(1)
    without_log(nodes.disks[1])
    with pytest.raises(Exception, match=r"0000000000000001\.log.*no such file.*restore a backup"):
        nodes.start(1)


# --- files and bytes --------------------------------------------------------------------------------------------------


def test_a_node_that_met_all_others_without_a_log_is_new() -> None:
    """An election may be quicker than the second link to a peer, whose hello then announces a log."""
    joining = Joining(MemoryDisk(), SeededRng(1))
    for peer in (1, 2):
        joining.peer_introduced(peer, [1, 2], peer_has_log=False, has_log=False)
    joining.peer_introduced(1, [1, 2], peer_has_log=True, has_log=False)
    assert (joining.memory, joining.is_joining) == (FIRST_MEMORY, False)


def test_memory_is_drawn_once_and_kept() -> None:
    disk = MemoryDisk()
    rng = SeededRng(1)
    joining = Joining(disk, rng)
    joining.peer_introduced(2, [2, 3], peer_has_log=False, has_log=False)
    assert joining.memory == FIRST_MEMORY
    joining.peer_introduced(2, [2, 3], peer_has_log=True, has_log=False)
    memory = joining.memory
    assert FIRST_MEMORY < memory <= MEMORY_MAX
    joining.peer_introduced(2, [2, 3], peer_has_log=True, has_log=False)
    again = Joining(disk, rng)
    assert (again.memory, again.is_joining) == (memory, True)
    again.applied(3, Configuration([1, 2], [3]))
    assert again.is_joining
    again.applied(3, Configuration([1, 2, 3], memories={3: memory + 1}))
    assert again.is_joining
    again.applied(3, Configuration([1, 2, 3], memories={3: memory}))
    assert not again.is_joining
    assert Joining(disk, rng).memory == memory
    assert renew_memory(disk, rng) != memory


def test_directory_that_an_older_build_has_marked_gets_a_memory() -> None:
    disk = MemoryDisk()
    disk.open(JOINING_FILE, create=True)
    assert Joining(disk, SeededRng(1)).memory == read_memory(disk) != FIRST_MEMORY


@pytest.mark.parametrize("text", [b"", b"1\n", b"no number", b"%x" % (MEMORY_MAX + 1)])
def test_unreadable_memory_is_refused(text: bytes) -> None:
    disk = MemoryDisk()
    disk.open(MEMORY_FILE, create=True).write_at(0, text)
    with pytest.raises(StorageError, match=f"{MEMORY_FILE} is damaged: .* Remove this file alone"):
        read_memory(disk)
    assert read_file(disk, MEMORY_FILE) == text


@pytest.mark.parametrize("memory", [2, MEMORY_MAX])
def test_configuration_with_memories_is_read_back(memory: int) -> None:
    config = Configuration([1, 2, 3], [4], [5], b"rest", {2: memory})
    assert config.encode()[0] == 2
    again = decode_configuration(config.encode())
    assert again == config
    assert again.memory_of(2) == memory
    assert again.counts(2, memory)
    assert not again.counts(2, FIRST_MEMORY)
    assert again.counts(1, FIRST_MEMORY)
    assert not again.counts(4, FIRST_MEMORY)
    for change in (again.with_attachment(b""), again.with_learner(3), again.without(1), again.with_voter(4)):
        assert change.memory_of(2) == memory
    assert again.with_pre_voter(2).memories == {}


def test_configuration_without_memories_is_written_as_before() -> None:
    assert Configuration([1, 2], memories={2: FIRST_MEMORY}).encode()[0] == 1


@pytest.mark.parametrize("memory", [0, FIRST_MEMORY, MEMORY_MAX + 1])
def test_impossible_memories_are_refused(memory: int) -> None:
    data = bytearray(Configuration([1, 2], memories={2: 7}).encode())
    at = data.rindex((7).to_bytes(8, "big"))
    data[at : at + 8] = memory.to_bytes(8, "big")
    with pytest.raises(ValueError, match="memory"):
        decode_configuration(bytes(data))


def test_a_voter_never_swaps_its_memory_in_one_step() -> None:
    old = Configuration([1, 2, 3])
    assert "another memory" in objection(old, old.with_voter(3, 7))
    assert objection(old, old.with_pre_voter(3)) == ""
    assert objection(old.with_pre_voter(3), old.with_voter(3, 7)) == ""


@pytest.mark.parametrize("kind", [PRE_VOTE_RESP, VOTE_RESP, APPEND_RESP, HEARTBEAT_RESP])
def test_answers_carry_the_memory_where_older_builds_look_at_nothing(kind: int) -> None:
    frame = raft_frames.encode_raft(Message(kind, 1, 2, 3, match_index=4, memory=MEMORY_MAX))
    found = raft_frames.decode_raft(frame, 5, len(frame))
    assert (found.memory, found.commit, found.match_index) == (MEMORY_MAX, 0, 4)
    frame = raft_frames.encode_raft(Message(APPEND, 1, 2, 3, commit=9))
    assert raft_frames.decode_raft(frame, 5, len(frame)).commit == 9


def test_an_older_member_keeps_the_others_from_writing_memories() -> None:
    """Its answers carry no memory, because it could not read the configuration; so the wiped node waits."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    lead = leader.core.leadership
    assert lead is not None
    old, wiped = (p for p in lead.peers)
    for peer, memory in ((old, 0), (wiped, 99)):
        lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, peer.peer, lead.id, lead.term, memory=memory))
    assert (old.is_old, old.counts) == (True, True)
    assert not wiped.counts
    assert lead.to_demote() == 0
    lead.on_heartbeat_resp(Message(HEARTBEAT_RESP, old.peer, lead.id, lead.term))
    assert lead.to_demote() == wiped.peer
