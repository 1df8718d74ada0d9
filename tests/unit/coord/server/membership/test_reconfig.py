"""Changes of members under whole nodes in memory: grow, shrink, replace, remove the leader; the order of replies."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from coord import errors as e
from coord.server.config.addresses import parse_config_text
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.jute import buffer
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.members import (
    CONFIG,
    DIGEST,
    SUPER,
    add,
    agree,
    answer,
    ask,
    done,
    facts,
    line,
    member,
    reconfig,
    store,
    super_client,
    voters,
    write,
)
from tests.support.store_nodes import Client, StoreNodes


def test_first_leader_writes_the_addresses_down() -> None:
    """The addresses of all members, on all nodes under one zxid; watches of earlier clients fire."""
    nodes = StoreNodes(3, members={i: member(i) for i in (1, 2, 3)}, super_digest=DIGEST)
    watcher = Client(nodes.nodes[2], nodes.clock)
    nodes.leader()
    nodes.run(2)
    watcher = nodes.client(nodes.nodes[2])
    watcher.request(1, op.OP_GET_DATA, records.encode_path_watch(CONFIG, True))
    nodes.settle()
    data, stat = records.decode_data_reply(watcher.replies()[0][3], 0, len(watcher.replies()[0][3]))
    text = "".join(line(i) + "\n" for i in (1, 2, 3)) + f"version={stat.mzxid:x}"
    assert data == text.encode()
    assert stat.version == -1
    boss = super_client(nodes, nodes.nodes[1])
    reconfig(boss, joining=line(9, "observer"))
    err, body = answer(nodes, boss)
    assert err == 0
    assert watcher.xids()[-1] == -1
    data, stat = records.decode_data_reply(body, 0, len(body))
    assert line(9, "observer").encode() in (data or b"")
    agree(nodes)


def test_a_request_may_come_before_the_addresses_are_written() -> None:
    """The request arrives in the turn in which the first leader is elected."""
    nodes = StoreNodes(3, members={i: member(i) for i in (1, 2, 3)}, super_digest=DIGEST)
    early = Client(nodes.nodes[1], nodes.clock)
    early.connect()
    while early.connect_reply is None:
        nodes.clock.now_ms += 50
        for node in nodes.nodes.values():
            node.tick()
        for _ in range(10):
            nodes.turn()
            early.drain()
            if early.connect_reply is not None:
                break
    reconfig(early, joining=line(9, "observer"), version=0)
    assert answer(nodes, early)[0] in (e.NO_AUTH, e.BAD_VERSION)


def test_grow_from_one_to_five_and_back() -> None:
    """With writes between all steps; in the end every node has them all."""
    nodes = store(1)
    client = super_client(nodes, nodes.nodes[1])
    for i in (2, 3, 4, 5):
        add(nodes, client, i)
        write(nodes, nodes.nodes[i], b"/grown%d" % i)
        assert voters(nodes) == list(range(1, i + 1))
        agree(nodes)
    for i in (5, 4, 3, 2):
        reconfig(client, leaving=str(i))
        assert answer(nodes, client)[0] == 0
        nodes.crash(i)
        write(nodes, nodes.nodes[1], b"/shrunk%d" % i)
    assert voters(nodes) == [1]
    assert b"/grown5" in nodes.nodes[1].machine.tree.nodes


def test_a_lone_node_keeps_no_applied_entries_and_brings_newcomers_a_snapshot() -> None:
    """No other node needs them; a newcomer gets a new snapshot, and continues after it."""
    nodes = store(1)
    node = nodes.nodes[1]
    client = super_client(nodes, node)
    for i in range(20):
        write(nodes, node, b"/alone%d" % i)
    nodes.run(1)
    assert node.core.log.entries == []
    nodes.crash(1)
    node = nodes.start(1)
    nodes.run(30)
    assert node.core.log.entries == []
    assert node.snapshot_policy.index == 0
    client = super_client(nodes, node)
    add(nodes, client, 2)
    assert node.snapshot_policy.index > 20
    write(nodes, nodes.nodes[2], b"/both")
    agree(nodes)
    assert len(node.core.log.entries) > 0, "the other one may want these"


def test_a_lone_node_goes_on_while_its_snapshot_is_written() -> None:
    """When the snapshot is ready, the log has dropped its position."""
    nodes = store(1, snapshot_entries=10)
    node = nodes.nodes[1]
    client = super_client(nodes, node)
    begun: list[tuple[Any, list[bytes]]] = []
    node.snapshot_policy._job.begin = lambda meta, machine: begun.append((meta, list(machine.snapshot_chunks())))
    for i in range(30):
        write(nodes, node, b"/alone%d" % i)
    nodes.run(1)
    [(meta, chunks)] = begun
    assert meta.index < node.core.log.offset
    nodes.start_empty(2)
    reconfig(client, joining=line(2))
    nodes.run(2)
    assert not node.core.is_alone()
    node.snapshot_policy.snapshots.write(meta, chunks)
    del node.snapshot_policy._job.begin
    node.snapshot_policy.written(meta, "")
    assert node.core.log.snapshot.index == meta.index
    assert answer(nodes, client)[0] == 0
    agree(nodes)
    assert node.core.log.reaches_snapshot(), "the one that was under way is of no use to a newcomer"


def test_replace_a_dead_node() -> None:
    """Remove the dead node, add the new one; there was always a majority."""
    nodes = store(3)
    nodes.crash(3)
    leader = nodes.leader()
    client = super_client(nodes, leader)
    done(nodes, client, do="remove", id=3)
    add(nodes, client, 4)
    write(nodes, nodes.nodes[4], b"/four")
    assert voters(nodes) == [1, 2, 4]
    agree(nodes)


@pytest.mark.parametrize("by_leader", [True, False])
def test_remove_the_leader(by_leader: bool) -> None:
    """It hands over first; the client gets its answer although the leader has changed."""
    nodes = store(3)
    leader = nodes.leader()
    old = leader.settings.node_id
    client = super_client(nodes, nodes.follower())
    if by_leader:
        other = super_client(nodes, leader)
        ask(other, do="remove", id=old)
        nodes.run(20)
    else:
        done(nodes, client, do="remove", id=old)
    assert old not in nodes.leader().core.configs.current.members()
    assert nodes.leader().settings.node_id != old
    nodes.crash(old)
    write(nodes, nodes.leader(), b"/after")
    agree(nodes)


@pytest.mark.parametrize("is_conditional", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_both_are_answered_when_the_heir_is_at_another_change_already(seed: int, is_conditional: bool) -> None:
    """The leader hands over to be removed; a client of the next leader sends its request before the first node does."""
    nodes = store(5, seed=seed)
    leader = nodes.leader()
    old = leader.settings.node_id
    client = super_client(nodes, nodes.follower())
    rest = [i for i, node in nodes.nodes.items() if node not in (leader, client.node)]
    others = {i: super_client(nodes, nodes.nodes[i]) for i in rest}
    version = parse_config_text(leader.machine.tree.nodes[CONFIG].data or b"")[1]
    reconfig(client, leaving=str(old), version=version if is_conditional else -1)
    for _ in range(100):
        heirs = [i for i in others if nodes.nodes[i].core.leadership is not None]
        if heirs:
            break
        nodes.turn()
    heir = heirs[0]
    third = next(i for i in others if i != heir)
    ask(others[heir], do="remove", id=third)
    assert facts(nodes, others[heir])["code"] == 0
    err, _ = answer(nodes, client)
    # The version has changed when the other change is done.
    assert err == (e.BAD_VERSION if is_conditional else 0)
    left = {old} if not is_conditional else set()
    assert voters(nodes) == sorted({1, 2, 3, 4, 5} - {third} - left)


def test_leadership_is_transferred() -> None:
    """To any voter; for the leader itself nothing happens; for a non-member it is rejected."""
    nodes = store(3)
    heir = nodes.follower().settings.node_id
    client = super_client(nodes, nodes.nodes[1])
    done(nodes, client, do="transfer", id=heir)
    nodes.run(5)
    assert nodes.leader().settings.node_id == heir
    done(nodes, client, do="transfer", id=heir)
    ask(client, do="transfer", id=9)
    assert "is not a participant" in facts(nodes, client)["error"]


def test_observers_follow_and_never_vote() -> None:
    """This holds even when they have caught up, and after a change of their address."""
    nodes = store(3)
    client = super_client(nodes, nodes.leader())
    nodes.start_empty(4)
    reconfig(client, joining=line(4, "observer"))
    assert answer(nodes, client)[0] == 0
    nodes.run(40)
    write(nodes, nodes.nodes[4], b"/through-observer")
    assert voters(nodes) == [1, 2, 3]
    agree(nodes)
    reconfig(client, joining="server.4=10.9.9.9:1:2:observer;3")
    err, body = answer(nodes, client)
    assert err == 0
    assert b"server.4=10.9.9.9:1:2:observer;0.0.0.0:3" in body
    reconfig(client, joining=line(4))
    assert answer(nodes, client)[0] == 0
    assert voters(nodes) == [1, 2, 3, 4]
    reconfig(client, joining=line(4, "observer"))
    assert answer(nodes, client)[0] == 0
    assert voters(nodes) == [1, 2, 3]


def test_non_incremental_members() -> None:
    """The whole list at once: several steps, one answer."""
    nodes = store(3)
    client = super_client(nodes, nodes.nodes[1])
    for i in (4, 5):
        nodes.start_empty(i)
    reconfig(client, members=",".join(line(i) for i in (1, 4, 5)))
    assert answer(nodes, client, 200)[0] == 0
    assert voters(nodes) == [1, 4, 5]
    agree(nodes)


def test_a_membership_request_keeps_its_place_among_the_requests() -> None:
    """After the credential and the write before it, before the later read."""
    nodes = store(3)
    client = nodes.client(nodes.follower())
    client.request(op.XID_AUTH, op.OP_AUTH, struct.pack("!i", 0) + buffer(b"digest") + buffer(SUPER))
    client.request(1, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/a", b"", OPEN_ACL, 0)))
    reconfig(client, joining=line(9, "observer"))
    client.request(8, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/b", b"", OPEN_ACL, 0)))
    client.request(9, op.OP_GET_DATA, records.encode_path_watch(CONFIG, False))
    nodes.run(3)
    replies = client.replies()
    assert [r[0] for r in replies] == [-4, 1, 7, 8, 9]
    assert [r[2] for r in replies] == [0] * 5
    assert line(9, "observer").encode() in replies[2][3]
    assert line(9, "observer").encode() in replies[4][3]
    zxids = [r[1] for r in replies]
    assert zxids == sorted(zxids)
