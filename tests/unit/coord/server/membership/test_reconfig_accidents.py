"""Accidents during membership changes: nodes and leaders that die, lose their disk or their majority."""

from __future__ import annotations

from typing import Any

import pytest

from coord.server.config.addresses import config_text
from coord.server.membership.leading import STALL_TICKS_MAX
from coord.server.peers import hello_frames
from coord.server.snapshots.policy import NEEDED_AGAIN_MS
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.members import add, agree, answer, done, line, member, reconfig, store, super_client, voters, write
from tests.support.store_nodes import TICK_MS


def test_addresses_survive_restart_and_travel_in_snapshots() -> None:
    """A node that receives the state by snapshot knows all addresses; so does one that starts from its own."""
    nodes = store(3, snapshot_entries=5, keep_entries=0)
    boss = super_client(nodes, nodes.leader())
    for k in range(12):
        write(nodes, nodes.leader(), b"/n%d" % k)
        nodes.run(1)
    add(nodes, boss, 4)
    assert nodes.nodes[4].snapshot_policy.index > 0
    for i in (1, 2, 3, 4):
        nodes.crash(i)
    for i in (1, 2, 3, 4):
        nodes.start(i)
    leader = nodes.leader()
    assert leader.core.configs.current.voters == [1, 2, 3, 4]
    assert line(4).encode() in config_text(leader.core.configs.current)
    agree(nodes)


def test_a_node_without_its_disk_comes_back_under_its_old_id() -> None:
    """It does not vote with its lost memory, catches up, and then votes again; removal and return work too."""
    nodes = store(3)
    write(nodes, nodes.leader(), b"/kept")
    lost = nodes.follower().settings.node_id
    nodes.crash(lost)
    again = nodes.start_empty(lost)
    assert again.joining.is_joining
    nodes.run(20)
    assert not again.joining.is_joining
    assert b"/kept" in again.machine.tree.nodes
    boss = super_client(nodes, nodes.leader())
    done(nodes, boss, do="remove", id=lost)
    nodes.crash(lost)
    add(nodes, boss, lost)
    assert voters(nodes) == [1, 2, 3]
    agree(nodes)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("what", ["add", "remove", "remove leader"])
def test_the_leader_dies_in_the_middle(what: str, turns: int) -> None:
    """After every possible turn: the change was made or not, all nodes agree, and a repeated request makes it."""
    nodes = store(3, seed=turns + 1)
    leader = nodes.leader().settings.node_id
    follower = nodes.follower()
    boss = super_client(nodes, follower)
    if what == "add":
        nodes.start_empty(4)
        reconfig(boss, joining=line(4))
    else:
        gone = leader if what == "remove leader" else next(i for i in (1, 2, 3) if nodes.nodes[i] is not follower)
        reconfig(boss, leaving=str(gone))
    for _ in range(turns):
        nodes.turn()
    nodes.crash(leader)
    nodes.run(30)
    nodes.start(leader)
    nodes.run(30)
    write(nodes, nodes.leader(), b"/after")
    config = nodes.leader().core.configs.current
    if what == "add":
        assert config.voters in ([1, 2, 3], [1, 2, 3, 4])
    else:
        assert config.voters in ([1, 2, 3], [i for i in (1, 2, 3) if i != gone])
    agree(nodes)
    boss = super_client(nodes, nodes.leader())
    if what == "add":
        reconfig(boss, joining=line(4))
        assert answer(nodes, boss)[0] == 0
        assert voters(nodes) == [1, 2, 3, 4]
        agree(nodes)
    elif nodes.leader().settings.node_id != gone:
        reconfig(boss, leaving=str(gone))
        assert answer(nodes, boss)[0] == 0
        assert gone not in nodes.leader().core.configs.current.members()


@pytest.mark.parametrize("turns", range(8))
def test_the_joiner_restarts_in_the_middle(turns: int) -> None:
    """Its data is on its disk; it continues from there."""
    nodes = store(3, seed=turns + 1)
    boss = super_client(nodes, nodes.leader())
    nodes.start_empty(4)
    done(nodes, boss, do="add", id=4, line=member(4).line().replace(";", ":participant;"))
    for _ in range(turns):
        nodes.turn()
    nodes.crash(4)
    write(nodes, nodes.leader(), b"/while-away")
    nodes.start(4)
    nodes.run(40)
    assert voters(nodes) == [1, 2, 3, 4]
    agree(nodes)


def test_a_leader_that_loses_its_majority_meanwhile_tells_nobody_a_lie() -> None:
    """The client's connection is closed, because the outcome is unknown. The other side continues with or without the
    change."""
    nodes = store(3)
    leader = nodes.leader().settings.node_id
    boss = super_client(nodes, nodes.nodes[leader])
    for i in (1, 2, 3):
        if i != leader:
            nodes.cut(leader, i)
    reconfig(boss, joining=line(9, "observer"))
    nodes.run(60)
    assert not boss.is_open
    for i in (1, 2, 3):
        if i != leader:
            nodes.join(leader, i)
    nodes.run(30)
    assert 9 not in nodes.leader().core.configs.current.members()
    agree(nodes)


def test_a_removed_node_learns_of_it() -> None:
    """From any node that it dials. A node that waits to be added, or that receives old history, does not take that for
    its removal."""
    nodes = store(3)
    boss = super_client(nodes, nodes.leader())
    gone = nodes.follower().settings.node_id
    done(nodes, boss, do="remove", id=gone)
    rest = nodes.leader().membership
    index = rest.removed_since(gone)
    assert index == nodes.leader().core.configs.newest_index()
    assert rest.removed_since(nodes.leader().settings.node_id) == 0
    for i in nodes.ids():
        nodes.cut(gone, i)  # As the links of the others do by themselves.
    nodes.nodes[gone].membership.removed(1, index)
    assert nodes.nodes[gone].membership.removed_at == index
    waiting = nodes.start_empty(7)
    waiting.membership.removed(1, index)
    assert waiting.membership.removed_at == 0
    cluster, at, config = hello_frames.decode_cluster(rest.describe()[5:])
    assert (cluster, at) == (bytes(16), index)
    assert config == nodes.leader().core.configs.current


def test_a_joiner_is_waited_for_while_its_snapshot_is_written_again() -> None:
    """The disk of the leader was full for a moment: the next attempt came after 30 s, and reconfig gave up after 10."""
    nodes = store(1)
    node = nodes.nodes[1]
    client = super_client(nodes, node)
    for i in range(20):
        write(nodes, node, b"/alone%d" % i)
    nodes.run(1)
    failed: list[Any] = []

    def fail(meta: Any, machine: Any) -> None:
        failed.append(meta)
        del node.snapshot_policy._job.begin
        node.snapshot_policy.written(meta, "no space left on device")

    node.snapshot_policy._job.begin = fail
    nodes.start_empty(2)
    reconfig(client, joining=line(2))
    for _ in range(STALL_TICKS_MAX // 10):
        client.request(-2, op.OP_PING)
        nodes.run(10)
    assert failed
    assert 2 * NEEDED_AGAIN_MS < STALL_TICKS_MAX * TICK_MS
    assert answer(nodes, client)[0] == 0
    assert voters(nodes) == [1, 2]
    agree(nodes)


def test_linearizable_reads_are_confirmed_once_a_turn() -> None:
    """A hundred reads of two clients in one turn cost one round with the leader; the order is kept."""
    nodes = store(3, linearizable_reads=True)
    follower = nodes.follower()
    first, second = nodes.client(follower), nodes.client(follower)
    nodes.run(2)
    first_question = follower.syncs._next_context
    for xid in range(50):
        for client in (first, second):
            client.request(xid, op.OP_GET_DATA, records.encode_path_watch(b"/", False))
    assert not first.replies()
    first.request(50, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/own", b"", OPEN_ACL, 0)))
    first.request(51, op.OP_EXISTS, records.encode_path_watch(b"/own", False))
    nodes.turn()
    assert follower.syncs._next_context - first_question == 1
    nodes.settle()
    assert first.xids() == list(range(52))
    assert first.replies()[51][2] == 0
    assert second.xids() == list(range(50))


def test_linearizable_reads_of_a_node_that_is_cut_off_wait() -> None:
    """A deposed leader answers nothing; a plain read would be stale."""
    nodes = store(3, linearizable_reads=True)
    old = nodes.leader()
    client = nodes.client(old)
    for i in (1, 2, 3):
        if i != old.settings.node_id:
            nodes.cut(old.settings.node_id, i)
    client.request(1, op.OP_GET_DATA, records.encode_path_watch(b"/", False))
    nodes.run(10)
    assert client.replies() == []


def test_links_follow_a_removal_once_it_is_committed() -> None:
    """The members have restarted with a removal in their logs. A removed node that dialed them before the commit kept
    its links, and nobody told it of its removal."""
    nodes = store(3)
    leader = nodes.leader().settings.node_id
    gone, other = (i for i in nodes.ids() if i != leader)
    boss = super_client(nodes, nodes.leader())
    reconfig(boss, leaving=str(gone))
    while nodes.nodes[other].core.configs.current.is_member(gone):
        nodes.turn()
    nodes.run(1)
    for i in nodes.ids():
        nodes.crash(i)
    node = nodes.start(other)
    known: list[int] = []
    node.on_members_changed = lambda: known.append(node.membership.removed_since(gone))
    assert node.membership.removed_since(gone) == 0
    nodes.start(leader)
    nodes.run(60)
    assert known
    assert known[-1] == node.core.configs.newest_index()
