"""Sessions end no earlier than their timeout after the last answered request, and not much later."""

from __future__ import annotations

import pytest

from coord.errors import RemoteProtocolError
from coord.server.node import Node
from coord.server.peers import codec
from coord.server.sessions.contact import REPORT_MARK, ContactLease
from coord.server.sessions.endings import Endings
from coord.tree.sessions import Session, SessionTable
from coord.wire import opcodes as op
from coord.wire import records
from tests.support.store_nodes import TICK_MS, Client, StoreNodes

TIMEOUT_MS = 2000


def ping(client: Client) -> None:
    """Send a ping, which every node answers by itself."""
    client.request(records.XID_PING, op.OP_PING)


def session_of(client: Client) -> int:
    """Return a client's session id."""
    return client.connection.session_id


def roles(nodes: StoreNodes) -> tuple[Node, Node, Node]:
    """Return leader and followers of three."""
    leader = nodes.leader()
    one, other = (node for node in nodes.nodes.values() if node is not leader)
    return leader, one, other


# --- the promise


@pytest.mark.parametrize("heals", [False, True])
def test_session_outlives_the_last_answer_of_a_node_that_its_leader_does_not_see(heals: bool) -> None:
    """The link between leader and follower is cut; the third node reaches both, so no other leader is elected."""
    nodes = StoreNodes(3, leader_absence_ms=600_000)
    leader, cut_off, _ = roles(nodes)
    client = nodes.client(cut_off, timeout_ms=TIMEOUT_MS)
    nodes.run(10)
    nodes.cut(leader.settings.node_id, cut_off.settings.node_id)
    cut_at = answered_at = nodes.clock.now_ms
    while session_of(client) in leader.machine.sessions.sessions:
        nodes.run(1)
        assert nodes.leader() is leader
        ping(client)
        cut_off.turn_end()
        if cut_off.liveness.may_answer():
            answered_at = nodes.clock.now_ms
        if heals and nodes.clock.now_ms - cut_at > 2 * TIMEOUT_MS:
            return
        if heals and nodes.clock.now_ms - cut_at > TIMEOUT_MS:
            nodes.join(leader.settings.node_id, cut_off.settings.node_id)
    assert not heals, "the client was there all the time"
    assert answered_at - cut_at <= cut_off.settings.contact_lease_ms, "and then answers wait"
    assert nodes.clock.now_ms - answered_at >= TIMEOUT_MS
    latest_ms = TIMEOUT_MS + leader.settings.contact_grace_ms + leader.settings.tick_ms
    assert nodes.clock.now_ms - cut_at <= latest_ms


def test_answers_of_a_leader_that_stands_alone_wait() -> None:
    """It does not know whether the others have elected another leader by now."""
    nodes = StoreNodes(3, leader_absence_ms=600_000)
    leader, one, other = roles(nodes)
    nodes.run(10)
    assert leader.liveness.may_answer()
    for node in (one, other):
        nodes.cut(leader.settings.node_id, node.settings.node_id)
    nodes.run(leader.settings.contact_lease_ms // TICK_MS + 2)
    assert not leader.liveness.may_answer()


@pytest.mark.parametrize("count", [1, 3])
def test_in_contact_no_answer_waits(count: int) -> None:
    """This holds on the leader and on followers, with clients and without."""
    nodes = StoreNodes(count)
    nodes.leader()
    nodes.run(10)
    client = nodes.client(nodes.nodes[1])
    for _ in range(100):
        nodes.run(1)
        ping(client)
        assert all(node.liveness.may_answer() for node in nodes.nodes.values())


def test_dead_client_s_session_ends_after_its_timeout_although_another_node_is_down() -> None:
    """The leader asks the node that served it; other nodes out of contact do not matter."""
    nodes = StoreNodes(3)
    leader, serving, other = roles(nodes)
    client = nodes.client(serving, timeout_ms=TIMEOUT_MS)
    nodes.run(TIMEOUT_MS // TICK_MS // 2)
    nodes.crash(other.settings.node_id)
    nodes.run(TIMEOUT_MS // TICK_MS // 2 + leader.settings.tick_ms // TICK_MS + 4)
    assert session_of(client) not in leader.machine.sessions.sessions
    assert not client.is_open


def test_a_request_between_two_reports_keeps_the_session() -> None:
    """The leader does not know of it when the session is due, but the node that serves the session does."""
    nodes = StoreNodes(3)
    leader, serving, _ = roles(nodes)
    client = nodes.client(serving, timeout_ms=TIMEOUT_MS)
    nodes.run(TIMEOUT_MS // TICK_MS - 2)
    for _ in range(10):
        nodes.clock.now_ms += TICK_MS
        leader.tick()
        leader.turn_end()
        queue = nodes.queues[leader.settings.node_id, serving.settings.node_id]
        if codec.DUE in [frame[4] for frame in queue]:
            break
    else:
        pytest.fail("the session never became due")
    ping(client)
    nodes.settle()
    nodes.run(4)
    assert session_of(client) in leader.machine.sessions.sessions
    assert client.is_open


def test_a_silent_session_is_answered_no_more_once_its_node_has_agreed() -> None:
    """So a late answer cannot make the client believe that its session lives."""
    nodes = StoreNodes(3)
    leader, serving, _ = roles(nodes)
    nodes.run(2 * TIMEOUT_MS // TICK_MS)
    client = nodes.client(serving, timeout_ms=TIMEOUT_MS)
    for number, expected in ((7, True), (8, False)):
        term = leader.core.term - expected
        frame = codec.encode_silent(codec.DUE, term, number, [session_of(client)])
        serving.clients.take_active()
        serving.peer_frame(leader.settings.node_id, 1, codec.DUE, frame, 5, len(frame))
        assert client.is_open is expected, "a leader of another term decides nothing"
    sent = [f for f in nodes.queues[serving.settings.node_id, leader.settings.node_id] if f[4] == codec.AGREED]
    assert [codec.decode_silent(f, 5, len(f)) for f in sent] == [(leader.core.term, 8, [session_of(client)])]


def test_a_node_that_was_restarted_does_not_vouch_for_the_time_before() -> None:
    """Its earlier process may have answered and died before its next report."""
    nodes = StoreNodes(3)
    leader, serving, _ = roles(nodes)
    client = nodes.client(serving, timeout_ms=TIMEOUT_MS)
    nodes.run(TIMEOUT_MS // TICK_MS // 2)
    ping(client)
    answered_at = nodes.clock.now_ms
    nodes.crash(serving.settings.node_id)
    nodes.run(2)
    nodes.start(serving.settings.node_id)
    while session_of(client) in leader.machine.sessions.sessions:
        nodes.run(1)
        assert nodes.clock.now_ms - answered_at < 10 * TIMEOUT_MS, "and it does end"
    assert nodes.clock.now_ms - answered_at >= TIMEOUT_MS


# --- the lease


def test_lease_runs_from_the_sending_of_a_confirmed_report() -> None:
    """Not from its confirmation, which may be late."""
    contact = ContactLease(100, lease_ms=1000)
    assert not contact.holds(0)
    context, report = contact.report([7, 3], now_ms=50)
    assert report == [REPORT_MARK, 3, 7]
    assert not contact.confirmed(context + 1)
    assert contact.confirmed(context)
    assert contact.holds(1050)
    assert not contact.holds(1051)


def test_what_a_lost_report_told_is_told_again() -> None:
    """Until a report with the same data is confirmed."""
    contact = ContactLease(0, lease_ms=1000)
    lost, _ = contact.report([1], now_ms=0)
    contact.keep([2])
    second, report = contact.report([3], now_ms=100)
    assert report == [REPORT_MARK, 1, 2, 3]
    third, report = contact.report([4], now_ms=200)
    assert report == [REPORT_MARK, 1, 2, 3, 4]
    assert contact.confirmed(second)
    assert contact.is_unconfirmed(1), "the third report told of it as well, and that may be lost"
    assert contact.confirmed(third)
    assert not any(contact.is_unconfirmed(session) for session in (1, 2, 3, 4))
    assert not contact.confirmed(lost), "an older confirmation is no news"


def test_reports_that_wait_for_their_confirmation_are_bounded() -> None:
    """While no leader confirms any."""
    contact = ContactLease(0, lease_ms=1000)
    contexts = [contact.report([], now_ms)[0] for now_ms in range(65)]
    assert not contact.confirmed(contexts[0])
    assert contact.confirmed(contexts[1])


# --- the end of sessions


def endings(*members: int, now_ms: int = 0) -> Endings:
    """Return the state of node 1, which leads these members; session 5 (timeout 2 s) exists."""
    table = SessionTable()
    table.add(Session(5, bytes(16), TIMEOUT_MS, 50, []))
    return Endings(table, 1, [1, *members], 1250, now_ms)


def test_every_node_is_asked_about_a_session_that_was_opened_under_another_leader() -> None:
    """Any node may serve the session. Nodes of older builds, which do not answer, are treated like dead ones."""
    made = endings(2, 3)
    made.reported(2, 9000)
    made.reported(3, 9000)
    made.due(5, 50, is_served_here=False)
    questions = made.questions()
    assert [*questions] == [2, 3]
    assert questions[2] == questions[3]
    number, sessions = questions[2]
    assert sessions == [5]
    made.agreed(2, number, [5])
    assert made.take(9100) == []
    made.agreed(3, number - 1, [5])
    assert made.take(9100) == [], "an answer to an earlier question"
    made.agreed(3, number, [5])
    assert made.take(9100) == [(5, 50)]
    assert made.take(9100) == []


def test_a_node_out_of_contact_is_waited_for() -> None:
    """For the session's timeout after the grace period after its last report."""
    made = endings(2, 3)
    made.reported(2, 700)
    made.opened(5, 2)
    made.due(5, 50, is_served_here=False)
    assert list(made.questions()) == [2]
    assert made.take(700 + 1250 + TIMEOUT_MS - 1) == []
    assert made.take(700 + 1250 + TIMEOUT_MS) == [(5, 50)]


def test_a_session_that_moves_or_is_active_is_not_due_any_more() -> None:
    """A node's earlier consent does not count any more."""
    made = endings(2)
    for event in (lambda: made.touched(5), lambda: made.opened(5, 2)):
        made.reported(2, 100)
        made.due(5, 50, is_served_here=False)
        ((number, _),) = made.questions().values()
        event()
        made.agreed(2, number, [5])
        assert made.take(200) == []
    made.due(5, 50, is_served_here=False)
    made.agreed(2, number, [5])
    assert made.take(200) == [], "agreed to an earlier silence"
    made.due(5, 50, is_served_here=True)
    assert made.take(50_000) == [(5, 50)]


def test_a_session_served_by_the_leader_needs_nobody_else() -> None:
    """The leader closes the connection itself."""
    made = endings(2, 3)
    made.due(5, 50, is_served_here=True)
    assert made.questions() == {}
    assert made.take(0) == [(5, 50)]


def test_questions_without_a_number_are_no_frames() -> None:
    """Such frames break the link."""
    frame = codec.encode_silent(codec.DUE, 3, 4, [5, 6])
    assert codec.decode_silent(frame, 5, len(frame)) == (3, 4, [5, 6])
    for cut in (6, 20, len(frame) - 1):
        with pytest.raises(RemoteProtocolError):
            codec.decode_silent(frame, 5, cut)
