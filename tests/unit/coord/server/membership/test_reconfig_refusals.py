"""Changes of members that are rejected, or reverted when the new member does not come."""

from __future__ import annotations

from typing import Any

import pytest

from coord import errors as e
from coord.server.config.addresses import parse_config_text
from coord.wire import opcodes as op
from coord.wire import records
from tests.support.members import (
    CONFIG,
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


def test_refusals_in_the_order_of_zookeeper() -> None:
    """An unreadable request is rejected first, then a wrong version, then a client without permission."""
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
    ask(boss, do="remove", id=9)
    assert "there is no node 9" in facts(nodes, boss)["error"]
    ask(nobody, do="add", id=4, line="10.0.0.4:1:1")
    assert facts(nodes, nobody)["code"] == e.NO_AUTH
    assert voters(nodes) == [1, 2, 3]


def test_switched_off() -> None:
    """reconfigEnabled=false; reading the configuration is allowed."""
    nodes = store(1, reconfig_enabled=False)
    boss = super_client(nodes, nodes.nodes[1])
    reconfig(boss, leaving="9")
    assert answer(nodes, boss)[0] == e.RECONFIG_DISABLED
    ask(boss, do="list")
    assert [node["id"] for node in facts(nodes, boss)["nodes"]] == [1]


def test_a_change_that_loses_the_majority_is_refused() -> None:
    """Of the remaining two one is dead: the store could commit nothing more."""
    nodes = store(3)
    leader = nodes.leader().settings.node_id
    others = [i for i in (1, 2, 3) if i != leader]
    nodes.crash(others[0])
    nodes.run(30)
    boss = super_client(nodes, nodes.nodes[leader])
    ask(boss, do="remove", id=others[1])
    assert "lose its majority" in facts(nodes, boss)["error"]
    reconfig(boss, leaving=str(others[1]))
    assert answer(nodes, boss)[0] == e.NEW_CONFIG_NO_QUORUM
    done(nodes, boss, do="remove", id=others[0])
    done(nodes, boss, do="remove", id=others[1])
    assert voters(nodes) == [leader]


@pytest.mark.parametrize("seed", range(4))
def test_a_new_leader_hears_who_stays_before_it_takes_anybody_out(seed: int) -> None:
    """The successor of a leaving leader removed it while the third voter, a late starter, did not count. Only that
    voter could have committed the change, so no leader was ever elected again (simulation, seed 5000011)."""
    nodes = store(3, seed, away=[3])
    leader = nodes.leader()
    boss = super_client(nodes, leader)
    nodes.start(3)
    successor = 3 - leader.settings.node_id
    # The messages of node 3 to the successor are delayed.
    del nodes.queues[(3, successor)]
    ask(boss, do="remove", id=leader.settings.node_id)
    nodes.settle()
    assert nodes.nodes[successor].core.leadership is not None
    nodes.cut(3, successor)
    nodes.join(3, successor)
    nodes.run(100)
    assert nodes.leader().core.configs.current.voters
    write(nodes, nodes.leader(), b"/after")
    agree(nodes)


def test_a_participant_that_does_not_come_is_taken_out_again() -> None:
    """reconfig waits for it in vain; other requests are rejected meanwhile; clients continue."""
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
    ask(other, do="add", id=6, line=member(6).line().replace(";", ":participant;"))
    assert "node 5 has not caught up" in facts(nodes, other)["error"]
    ask(other, do="list")
    [five] = [node for node in facts(nodes, other)["nodes"] if node["id"] == 5]
    assert (five["role"], five["is_up"]) == ("joining", False)
    done(nodes, other, do="remove", id=5)


def test_reconfig_waits_for_a_participant_that_is_on_its_way_already() -> None:
    """`rk coord add` has added it and did not wait; `reconfig` succeeds only when it votes, or removes it."""
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
    """A leader that is cut off removes a node; the others elect that node, and this one must accept its messages."""
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
