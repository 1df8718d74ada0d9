"""Members that change under whole nodes in memory: grow, shrink, replace, remove the leader, accidents meanwhile."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import Any

import pytest

from coord import errors as e
from coord.server.config.addresses import MemberAddress, config_text, parse_config_text
from coord.server.node import Node
from coord.server.peers import hello_frames
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.jute import buffer
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import Client, StoreNodes

SUPER = b"super:secret"
DIGEST = "super:" + base64.b64encode(hashlib.sha1(SUPER, usedforsecurity=False).digest()).decode()
CONFIG = b"/zookeeper/config"


def member(i: int) -> MemberAddress:
    """Where node `i` says it is."""
    return MemberAddress(i, (f"10.0.0.{i}", 2281), 3888, (f"10.0.0.{i}", 2181))


def line(i: int, role: str = "participant") -> str:
    """The same in ZooKeeper's words."""
    return member(i).zookeeper_line(role)


def store(count: int = 3, seed: int = 1, **options: Any) -> StoreNodes:
    """A store whose first leader has written the addresses down."""
    first = {i: member(i) for i in range(1, count + 1)}
    nodes = StoreNodes(count, seed, members=first, super_digest=DIGEST, **options)
    nodes.leader()
    nodes.run(3)
    return nodes


def super_client(nodes: StoreNodes, node: Node) -> Client:
    """A client that may do everything."""
    client = nodes.client(node)
    client.request(op.XID_AUTH, op.OP_AUTH, struct.pack("!i", 0) + buffer(b"digest") + buffer(SUPER))
    nodes.settle()
    assert client.replies()[-1][2] == 0
    client.frames.clear()
    return client


def reconfig(client: Client, joining: str = "", leaving: str = "", members: str = "", version: int = -1) -> None:
    """Send ZooKeeper's request as xid 7."""
    body = records.encode_reconfig(joining.encode(), leaving.encode(), members.encode(), version)
    client.request(7, op.OP_RECONFIG, body)


def wish(client: Client, **wanted: object) -> None:
    """Send our own request as xid 7."""
    client.request(7, op.OP_MEMBERSHIP, buffer(json.dumps(wanted).encode()))


def answer(nodes: StoreNodes, client: Client, ticks: int = 60) -> tuple[int, bytes]:
    """(error, body) of the reply to xid 7."""
    for _ in range(ticks):
        nodes.settle()
        found = [reply for reply in client.replies() if reply[0] == 7]
        if found:
            client.frames.clear()
            return found[0][2], found[0][3]
        assert client.is_open, "the connection was closed"
        nodes.run(1)
    raise AssertionError("no answer")


def facts(nodes: StoreNodes, client: Client) -> dict[str, Any]:
    """The answer to our own request."""
    err, body = answer(nodes, client)
    assert err == 0
    return dict(json.loads(body[4:]))


def done(nodes: StoreNodes, client: Client, **wanted: object) -> None:
    """A wish that is granted."""
    wish(client, **wanted)
    found = facts(nodes, client)
    assert found["code"] == 0, found


def voters(nodes: StoreNodes) -> list[int]:
    """Of the leader's configuration."""
    return nodes.leader().core.configs.current.voters


def write(nodes: StoreNodes, node: Node, path: bytes) -> None:
    """An acknowledged write."""
    client = nodes.client(node)
    client.request(3, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, path, b"", OPEN_ACL, 0)))
    for _ in range(40):
        if client.replies():
            break
        nodes.run(1)
    assert client.replies()[0][2] == 0


def agree(nodes: StoreNodes) -> None:
    """All members hold the same, /zookeeper/config included, and it says who is a member."""
    nodes.run(3)
    leader = nodes.leader()
    current = leader.core.configs.current
    states = {
        (n.machine.last_zxid, n.machine.digest(), n.machine.tree.nodes[CONFIG].data)
        for i, n in nodes.nodes.items()
        if current.is_member(i)
    }
    assert len(states) == 1, states
    data = leader.machine.tree.nodes[CONFIG].data or b""
    assert data.startswith(config_text(current))
    assert parse_config_text(data)[1] == leader.machine.tree.nodes[CONFIG].mzxid


def add(nodes: StoreNodes, client: Client, i: int) -> None:
    """Start node `i` and let it in; returns when it votes."""
    nodes.start_empty(i)
    reconfig(client, joining=line(i))
    err, body = answer(nodes, client)
    assert err == 0
    assert line(i).encode() in body


# --- what it is for --------------------------------------------------------------------------------------------------


def test_first_leader_writes_the_addresses_down() -> None:
    """Of all members, on all nodes under one zxid; watches of earlier clients fire."""
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


def test_a_wish_may_come_before_the_addresses_are_written() -> None:
    """In the very turn in which the first leader finds that it leads."""
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
    """With writes between all steps; every node has them all in the end."""
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
    """Nobody else wants them; whoever comes gets a snapshot that is newer than the last one, and goes on behind it."""
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
    """When it is there, the log has forgotten the position that it was taken at."""
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
    """Remove what is dead, add the new one; a majority was there all the time."""
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
        wish(other, do="remove", id=old)
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
    """The leader hands over to be removed; a client of the heir is quicker with its wish than the node that asked."""
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
    wish(others[heir], do="remove", id=third)
    assert facts(nodes, others[heir])["code"] == 0
    err, _ = answer(nodes, client)
    # What the version stood for is no more when the other change is done.
    assert err == (e.BAD_VERSION if is_conditional else 0)
    left = {old} if not is_conditional else set()
    assert voters(nodes) == sorted({1, 2, 3, 4, 5} - {third} - left)


def test_leadership_is_transferred() -> None:
    """To whom one wants; to the leader itself nothing happens; to a stranger it is refused."""
    nodes = store(3)
    heir = nodes.follower().settings.node_id
    client = super_client(nodes, nodes.nodes[1])
    done(nodes, client, do="transfer", id=heir)
    nodes.run(5)
    assert nodes.leader().settings.node_id == heir
    done(nodes, client, do="transfer", id=heir)
    wish(client, do="transfer", id=9)
    assert "no participant" in facts(nodes, client)["error"]


def test_observers_follow_and_never_vote() -> None:
    """Also when they are quite up to date, and after a change of their address."""
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


# --- what is refused -------------------------------------------------------------------------------------------------


def test_refusals_in_the_order_of_zookeeper() -> None:
    """Unreadable, then the version, then the right to do it."""
    nodes = store(3)
    nobody = nodes.client(nodes.nodes[1])
    cases: list[tuple[dict[str, Any], int]] = [
        ({"joining": "some thing"}, e.BAD_ARGUMENTS),
        ({"joining": "server.4=a:1:2", "members": "server.4=a:1:2"}, e.BAD_ARGUMENTS),
        ({}, e.NO_AUTH),
        ({"leaving": "x"}, e.MARSHALLING_ERROR),
        ({"joining": line(4), "version": 12345}, e.BAD_VERSION),
        ({"joining": "server.999=0.0.0.0:1234:2345:observer;3456"}, e.NO_AUTH),
    ]
    for asked, wanted in cases:
        reconfig(nobody, **asked)
        assert answer(nodes, nobody)[0] == wanted, asked
    boss = super_client(nodes, nodes.nodes[2])
    more: list[tuple[dict[str, Any], int]] = [
        ({"leaving": "1,2,3"}, e.BAD_ARGUMENTS),
        ({"joining": "server.999=0.0.0.0:1234:2345:observer;3456"}, e.BAD_ARGUMENTS),
        ({"joining": "server.4=10.0.0.1:2281:9"}, e.BAD_ARGUMENTS),
        ({"members": f"{line(7)},{line(8)}"}, e.BAD_ARGUMENTS),
    ]
    for asked, wanted in more:
        reconfig(boss, **asked)
        assert answer(nodes, boss)[0] == wanted, asked
    version = parse_config_text(nodes.nodes[2].machine.tree.nodes[CONFIG].data or b"")[1]
    reconfig(boss, leaving="9", version=version)
    assert answer(nodes, boss)[0] == 0
    wish(boss, do="remove", id=9)
    assert "there is no node 9" in facts(nodes, boss)["error"]
    wish(nobody, do="add", id=4, line="10.0.0.4:1:1")
    assert facts(nodes, nobody)["code"] == e.NO_AUTH
    assert voters(nodes) == [1, 2, 3]


def test_switched_off() -> None:
    """reconfigEnabled=false; looking is allowed."""
    nodes = store(1, reconfig_enabled=False)
    boss = super_client(nodes, nodes.nodes[1])
    reconfig(boss, leaving="9")
    assert answer(nodes, boss)[0] == e.RECONFIG_DISABLED
    wish(boss, do="list")
    assert [node["id"] for node in facts(nodes, boss)["nodes"]] == [1]


def test_a_change_that_loses_the_majority_is_refused() -> None:
    """Of two left one is dead: the store could commit nothing more."""
    nodes = store(3)
    leader = nodes.leader().settings.node_id
    others = [i for i in (1, 2, 3) if i != leader]
    nodes.crash(others[0])
    nodes.run(30)
    boss = super_client(nodes, nodes.nodes[leader])
    wish(boss, do="remove", id=others[1])
    assert "lose its majority" in facts(nodes, boss)["error"]
    reconfig(boss, leaving=str(others[1]))
    assert answer(nodes, boss)[0] == e.NEW_CONFIG_NO_QUORUM
    done(nodes, boss, do="remove", id=others[0])
    done(nodes, boss, do="remove", id=others[1])
    assert voters(nodes) == [leader]


@pytest.mark.parametrize("seed", range(4))
def test_a_new_leader_hears_who_stays_before_it_takes_anybody_out(seed: int) -> None:
    """The heir of a leader that leaves took it out while the third voter, a late starter, counted for nothing: only
    that voter could have committed the change, so nobody led ever again (simulation, seed 5000011)."""
    nodes = store(3, seed, away=[3])
    leader = nodes.leader()
    boss = super_client(nodes, leader)
    nodes.start(3)
    heir = 3 - leader.settings.node_id
    # What node 3 sends to the heir is on its way for a while.
    del nodes.queues[(3, heir)]
    wish(boss, do="remove", id=leader.settings.node_id)
    nodes.settle()
    assert nodes.nodes[heir].core.leadership is not None
    nodes.cut(3, heir)
    nodes.join(3, heir)
    nodes.run(100)
    assert nodes.leader().core.configs.current.voters
    write(nodes, nodes.leader(), b"/after")
    agree(nodes)


def test_a_participant_that_does_not_come_is_taken_out_again() -> None:
    """reconfig waits for it, in vain; what else is wished meanwhile is refused; clients go on."""
    nodes = store(3)
    boss = super_client(nodes, nodes.leader())
    other = super_client(nodes, nodes.follower())
    reconfig(boss, joining=line(4))
    nodes.run(2)
    reconfig(other, leaving="3")
    assert answer(nodes, other)[0] == e.RECONFIG_IN_PROGRESS
    write(nodes, nodes.follower(), b"/meanwhile")
    assert nodes.leader().core.configs.current.pre_voters == [4]
    # Its client lives: without pings the session would end before.
    for _ in range(30):
        boss.request(-2, op.OP_PING)
        other.request(-2, op.OP_PING)
        nodes.run(10)
        boss.drain()
        if any(records.decode_reply_header(f, 0, len(f))[0] == 7 for f in boss.frames):
            break
    assert answer(nodes, boss)[0] == e.NEW_CONFIG_NO_QUORUM
    assert nodes.leader().core.configs.current.members() == [1, 2, 3]
    done(nodes, other, do="add", id=5, line=member(5).line().replace(";", ":participant;"))
    wish(other, do="add", id=6, line=member(6).line().replace(";", ":participant;"))
    assert "node 5 has not caught up" in facts(nodes, other)["error"]
    wish(other, do="list")
    [five] = [node for node in facts(nodes, other)["nodes"] if node["id"] == 5]
    assert (five["role"], five["is_up"]) == ("joining", False)
    done(nodes, other, do="remove", id=5)


def test_reconfig_waits_for_a_participant_that_is_on_its_way_already() -> None:
    """`rk coord add` has let it in and did not wait; `reconfig` says "done" only when it votes, or takes it out."""
    nodes = store(3)
    boss = super_client(nodes, nodes.leader())
    done(nodes, boss, do="add", id=4, line=member(4).line().replace(";", ":participant;"))
    assert nodes.leader().core.configs.current.pre_voters == [4]
    reconfig(boss, joining=line(4))
    nodes.run(5)
    assert not boss.replies()
    nodes.start_empty(4)
    err, body = answer(nodes, boss)
    assert err == 0
    assert line(4).encode() in body
    assert voters(nodes) == [1, 2, 3, 4]


def test_whoever_is_removed_by_what_is_not_committed_may_return() -> None:
    """A leader that is cut off removes a node; the others elect that node, and this one must listen to it."""
    nodes = store(3)
    leader = nodes.leader()
    lead = leader.settings.node_id
    gone = nodes.follower().settings.node_id
    for i in nodes.ids():
        if i != lead:
            nodes.cut(lead, i)
    leader.core.propose_config(leader.core.configs.current.without(gone))
    leader.turn_end()
    assert not leader.core.configs.current.is_member(gone)
    assert leader.membership.may_return(gone)
    assert leader.membership.removed_since(gone) == 0
    assert not leader.membership.may_return(9)
    nodes.join(lead, ({*nodes.ids()} - {lead, gone}).pop())
    nodes.run(5)
    assert not nodes.nodes[lead].membership.may_return(gone)


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_wish_keeps_its_place_among_the_requests() -> None:
    """Behind the credential and the write before it, in front of the read behind it."""
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


# --- accidents -------------------------------------------------------------------------------------------------------


def test_addresses_survive_restart_and_travel_in_snapshots() -> None:
    """A node that gets the state by snapshot knows everybody; so does one that starts from its own."""
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
    """It does not vote with the memory it lost, catches up, and then votes again; removal and return work too."""
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
    """After every possible turn: either it was done or it was not, all agree on which, and asking again does it."""
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
    """What it held is on its disk; it goes on from there."""
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
    """The client's connection is closed: nobody can say. The other side goes on without that change or with it."""
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
    """From whoever it dials; a node that waits to be added, or is fed old history, does not take it for removal."""
    nodes = store(3)
    boss = super_client(nodes, nodes.leader())
    gone = nodes.follower().settings.node_id
    done(nodes, boss, do="remove", id=gone)
    rest = nodes.leader().membership
    index = rest.removed_since(gone)
    assert index == nodes.leader().core.configs.newest_index()
    assert rest.removed_since(nodes.leader().settings.node_id) == 0
    for i in nodes.ids():
        nodes.cut(gone, i)  # as the others' links do by themselves
    nodes.nodes[gone].membership.removed(1, index)
    assert nodes.nodes[gone].membership.removed_at == index
    waiting = nodes.start_empty(7)
    waiting.membership.removed(1, index)
    assert waiting.membership.removed_at == 0
    cluster, at, config = hello_frames.decode_cluster(rest.describe()[5:])
    assert (cluster, at) == (bytes(16), index)
    assert config == nodes.leader().core.configs.current


# --- linearizable reads ----------------------------------------------------------------------------------------------


def test_linearizable_reads_are_confirmed_once_a_turn() -> None:
    """A hundred reads of two clients in one turn cost one question to the leader; order is kept."""
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
    """A deposed leader answers nothing, where a plain read would be stale."""
    nodes = store(3, linearizable_reads=True)
    old = nodes.leader()
    client = nodes.client(old)
    for i in (1, 2, 3):
        if i != old.settings.node_id:
            nodes.cut(old.settings.node_id, i)
    client.request(1, op.OP_GET_DATA, records.encode_path_watch(b"/", False))
    nodes.run(10)
    assert client.replies() == []
