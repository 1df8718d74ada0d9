"""Budgets of clients: time of reads in one turn, bytes of a multiRead, sessions of an address, lines of audit."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from coord.errors import OK, THROTTLED_OP
from coord.server.clients.audit import LINES_PER_SECOND, LINES_PER_SESSION, AuditLog
from coord.server.clients.connection import Limits
from coord.server.clients.pipeline import POSTPONED_MAX, READS_MS_MAX, READS_PER_LOOK, RESTORED_PER_TURN
from coord.tree import reads
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest, MultiOp, WatchSets
from tests.support.store_nodes import Client, StoreNodes

#: Slow reads of one connection in a turn, if the clock advances 1 ms with every look.
READS_PER_TURN = READS_MS_MAX + 1
COUNT = (op.OP_GET_ALL_CHILDREN_NUMBER, records.encode_path(b"/"))
GET = (op.OP_GET_DATA, records.encode_path_watch(b"/", False))


class SlowClock:
    """A clock that advances with every look."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.step_ms = 1

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


def slow() -> tuple[StoreNodes, SlowClock]:
    """Return a store of one node whose clock advances by 1 ms with every look."""
    nodes = StoreNodes(1)
    nodes.leader()
    clock = SlowClock()
    nodes.nodes[1].pipeline.monotonic_ms = clock
    return nodes, clock


def send(client: Client, *requests: tuple[int, bytes], xid: int = 1) -> None:
    """Send requests in one piece."""
    block, frames = b"", []
    for number, (opcode, body) in enumerate(requests):
        frame = struct.pack("!ii", xid + number, opcode) + body
        frames.append((len(block), len(block) + len(frame)))
        block += frame
    client.node.pipeline.receive(client.connection, block, frames)


def test_slow_reads_of_one_client_end_after_their_time() -> None:
    """The rest waits for the next turn, in order, and the node reads no more from that client; other clients are
    served. A write among them waits its turn."""
    nodes, _ = slow()
    pipeline = nodes.nodes[1].pipeline
    attacker, honest = nodes.client(nodes.nodes[1]), nodes.client(nodes.nodes[1])
    write = (op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, b"/x", b"", OPEN_ACL, 0)))
    send(attacker, *[COUNT] * 20, write, *[COUNT] * 3)
    assert len(attacker.xids()) == READS_PER_TURN
    assert (attacker.is_reading, attacker.resumptions) == (False, 1)
    send(honest, GET)
    assert honest.xids() == [1]
    turns = 0
    while attacker.resumptions > turns:
        turns += 1
        nodes.settle()
        pipeline.resume(attacker.connection)
    nodes.settle()
    assert attacker.xids() == list(range(1, 25))
    assert turns == 19 // READS_PER_TURN
    assert attacker.is_reading
    assert nodes.nodes[1].machine.tree.find(b"/x") is not None


def test_quick_reads_look_at_the_clock_seldom() -> None:
    """A look costs more than a read. One request in a piece needs none."""
    nodes, clock = slow()
    client = nodes.client(nodes.nodes[1])
    send(client, *[GET] * (READS_PER_LOOK * 2))
    assert clock.now_ms == 1
    send(client, COUNT)
    assert clock.now_ms == 1
    assert len(client.xids()) == READS_PER_LOOK * 2 + 1


def test_many_slow_clients_share_a_turn() -> None:
    """After some have used their time, each of the others gets one slow read; the next turn begins anew."""
    nodes, _ = slow()
    clients = [nodes.client(nodes.nodes[1]) for _ in range(POSTPONED_MAX + 2)]
    for client in clients:
        send(client, *[COUNT] * 20)
    assert [len(client.xids()) for client in clients] == [READS_PER_TURN] * POSTPONED_MAX + [1, 1]
    nodes.nodes[1].turn_end()
    nodes.nodes[1].pipeline.resume(clients[0].connection)
    assert len(clients[0].xids()) == 2 * READS_PER_TURN


def test_a_closed_connection_is_not_resumed() -> None:
    """A connection may close while its requests wait for their turn."""
    nodes, _ = slow()
    client = nodes.client(nodes.nodes[1])
    send(client, *[COUNT] * 20)
    nodes.nodes[1].clients.close(client.connection)
    nodes.nodes[1].pipeline.resume(client.connection)
    assert len(client.xids()) == READS_PER_TURN


def test_many_watches_are_restored_in_parts() -> None:
    """Clients take turns, so that one with few watches waits for no other's thousands. What changes meanwhile is told
    or fires; later requests of the connection wait for the reply; a connection that has closed is left alone.

    Tried: `_restorable` is a million; `turn_end` does not call `_restore_waiting`, which goes on with one
    connection until it is done, or does not look at `is_closed`.
    """
    nodes = StoreNodes(1)
    nodes.leader()
    node = nodes.nodes[1]
    first, second, gone, other, late = (nodes.client(node) for _ in range(5))
    paths = [b"/w%d" % number for number in range(4 * RESTORED_PER_TURN)]
    for client in (first, second, gone):
        send(client, (op.OP_SET_WATCHES, exist_watches(paths)), GET)
    assert node.clients.watches.watch_count() == RESTORED_PER_TURN
    node.clients.close(gone.connection)
    for path in (paths[0], paths[-1]):
        create = records.encode_create(CreateRequest(op.OP_CREATE, path, b"", OPEN_ACL, 0))
        send(other, (op.OP_CREATE, create))
    nodes.settle()
    assert first.xids() == [op.XID_NOTIFICATION]  # the watch of the first path
    send(late, (op.OP_SET_WATCHES, exist_watches([b"/l0", b"/l1"])), GET)
    for _ in range(3):
        assert node.turn_end(), "watches are left"
    assert late.xids() == [1, 2]
    assert first.xids() == [op.XID_NOTIFICATION]
    for _ in range(2 * len(paths) // RESTORED_PER_TURN):
        node.turn_end()
    assert not node.turn_end()
    assert first.xids() == [op.XID_NOTIFICATION, op.XID_NOTIFICATION, 1, 2]
    assert second.xids() == [op.XID_NOTIFICATION, op.XID_NOTIFICATION, 1, 2]
    assert not gone.xids()
    assert node.clients.watches.watch_count() == 2 * (len(paths) - 2) + 2
    assert node.clients.waiting_reads == 0


def exist_watches(paths: list[bytes]) -> bytes:
    """Return the body of a setWatches for znodes that did not exist."""
    return records.encode_set_watches(WatchSets(0, [], paths, [], [], []), second=False)


def test_a_multi_read_answers_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part behind the bound has the error ThrottledOp, in its place; the first part is always read."""
    nodes = StoreNodes(1)
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    body = records.encode_create(CreateRequest(op.OP_CREATE, b"/big", b"x" * 900_000, OPEN_ACL, 0))
    send(client, (op.OP_CREATE, body))
    nodes.settle()
    ask = records.encode_multi([MultiOp(op.OP_GET_DATA, b"/big")] * 20)
    send(client, (op.OP_MULTI_READ, ask), xid=2)
    _, _, err, reply = client.replies()[-1]
    results = records.decode_multi_reply(reply, 0, len(reply))
    assert (err, len(results)) == (OK, 20)
    assert [one.err for one in results] == [OK] + [THROTTLED_OP] * 19
    assert len(reply) < reads.MULTI_READ_BYTES_MAX


def test_one_address_takes_half_of_what_the_others_leave() -> None:
    """So there is room for the sessions of another address, however many the first one asks for."""
    nodes = StoreNodes(1, limits=Limits(sessions_max=16))
    nodes.leader()

    def opened(address: str) -> int:
        count = 0
        for _ in range(20):
            client = Client(nodes.nodes[1], nodes.clock)
            client.connection.address = address
            client.connect()
            nodes.settle()
            count += client.connection.session is not None
        return count

    assert [opened(address) for address in ("10.0.0.66", "10.0.0.67", "10.0.0.1")] == [8, 4, 2]
    nodes.nodes[1].machine.validate()


def test_the_share_of_an_address_can_be_set() -> None:
    """A session that moves to another address counts there."""
    nodes = StoreNodes(1, limits=Limits(sessions_max=16, sessions_per_address_max=2))
    nodes.leader()
    clients = [Client(nodes.nodes[1], nodes.clock) for _ in range(3)]
    for client in clients:
        client.connect()
        nodes.settle()
    assert [client.connection.session is not None for client in clients] == [True, True, False]
    moved = Client(nodes.nodes[1], nodes.clock)
    moved.connection.address = "10.0.0.9"
    moved.connect(session_id=clients[0].connection.session_id, passwd=clients[0].connection.passwd)
    nodes.settle()
    again = Client(nodes.nodes[1], nodes.clock)
    again.connect()
    nodes.settle()
    assert again.connection.session is not None
    assert nodes.nodes[1].machine.sessions.count_at(b"10.0.0.9") == 1
    nodes.nodes[1].machine.validate()


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Yield the audit lines that are written during the test."""
    found: list[str] = []

    def observe(event: LogEvent) -> None:
        if event.get("log_namespace") == "audit":
            found.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    yield found
    globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]


def note(log: AuditLog, session: int, **fields: Any) -> None:
    """Write a line."""
    log.note(session, "10.0.0.1", "did session={session:#x} address={address}", **{"is_refused": True, **fields})


def test_audit_lines_of_one_session_are_summed_up(lines: list[str]) -> None:
    """Other sessions keep theirs; a proof of the superuser is always written; the next second begins anew."""
    now = [5000]
    log = AuditLog(lambda: now[0])
    for number in range(1000):
        note(log, 7, is_refused=number % 2 == 0)
    note(log, 8)
    note(log, 7, is_kept=True)
    assert lines == ["did session=0x7 address=10.0.0.1"] * LINES_PER_SESSION + [
        "did session=0x8 address=10.0.0.1",
        "did session=0x7 address=10.0.0.1",
    ]
    lines.clear()
    now[0] = 6000
    log.tick()
    left_out = 1000 - LINES_PER_SESSION
    assert lines == [f"summary session=0x7 address=10.0.0.1 lines={left_out} refused={left_out // 2} within a second"]
    note(log, 7)
    assert len(lines) == 2


def test_audit_lines_of_many_sessions_have_a_bound(lines: list[str]) -> None:
    """Sessions cost an attacker little, so their lines count together."""
    now = [5000]
    log = AuditLog(lambda: now[0])
    for session in range(1, 1001):
        note(log, session)
    assert len(lines) == LINES_PER_SECOND
    now[0] = 6000
    log.tick()
    more = 1000 - LINES_PER_SECOND
    assert lines[LINES_PER_SECOND:] == [f"summary of many sessions lines={more} refused={more} within a second"]
