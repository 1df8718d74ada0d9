"""coord.rpc.budgets: who gives way at each bound, with a clock of the test's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport

from coord.newcomers import LINES_MAX, RPC_S, SAVED_S
from coord.rpc import budgets as module
from coord.rpc.budgets import (
    FIRST_REQUEST_S_MAX,
    FRAME_S_MAX,
    SILENT_BYTES_PER_S_MAX,
    UNFINISHED_BYTES_MAX,
    RpcBudgets,
)
from coord.rpc.server import RpcServer
from coord.rpc.wire import PREAMBLE, Reply, Request, RpcError, RpcFrameReader, encode_body, encode_frame

#: Connections that a port accepts at once after a quiet while.
CALLERS_SAVED = round(SAVED_S / RPC_S)


class Caller:
    """A connection that notes what happens to it."""

    def __init__(self, budgets: RpcBudgets, address: str = "10.0.0.1") -> None:
        self.address = address
        self.why = ""
        self.is_held = False
        budgets.connected(self)

    def drop(self, error: RpcError) -> None:
        self.why = error.message

    def proceed(self) -> None:
        raise AssertionError("nothing waits")

    def hold(self, *, is_held: bool) -> None:
        self.is_held = is_held


class Ask(msgspec.Struct, tag=True):
    n: int


@pytest.fixture
def clock() -> Any:
    return MemoryReactorClock()  # type: ignore[no-untyped-call]


@pytest.fixture
def budgets(clock: Any) -> RpcBudgets:
    return RpcBudgets(clock)


def advance(clock: Any, seconds: float) -> None:
    """Let time pass as it does for a process that is not stopped."""
    clock.pump([0.5] * int(seconds / 0.5))


def turn(clock: Any) -> None:
    """Run the calls that are due now, and none that they schedule: one turn of a reactor."""
    for call in [one for one in clock.calls if one.getTime() <= clock.seconds()]:
        clock.calls.remove(call)
        call.called = 1
        call.func(*call.args, **call.kw)


class TestConnections:
    @pytest.fixture
    def budgets(self, clock: Any, monkeypatch: pytest.MonkeyPatch) -> RpcBudgets:
        monkeypatch.setattr(module, "CONNECTIONS_PER_ADDRESS_MAX", 3)
        return RpcBudgets(clock, connections_max=5)

    def test_the_oldest_silent_connection_of_the_address_gives_way(self, budgets: RpcBudgets) -> None:
        """A connection that has sent a request stays, however old it is."""
        callers = [Caller(budgets) for _ in range(3)]
        budgets.asked(callers[0])
        assert budgets.has_room("10.0.0.2")
        assert not any(one.why for one in callers)
        assert budgets.has_room("10.0.0.1")
        assert [bool(one.why) for one in callers] == [False, True, False]
        assert "its address has 3 connections" in callers[1].why

    def test_a_newcomer_is_refused_only_if_all_others_have_asked(self, budgets: RpcBudgets) -> None:
        """When one of them ends there is room again."""
        callers = [Caller(budgets) for _ in range(3)]
        for one in callers:
            budgets.asked(one)
        assert not budgets.has_room("10.0.0.1")
        budgets.lost(callers[0])
        assert budgets.has_room("10.0.0.1")

    def test_the_bound_in_all_holds_for_many_addresses(self, budgets: RpcBudgets) -> None:
        """The oldest silent connection of any address gives way."""
        callers = [Caller(budgets, f"10.0.0.{n}") for n in range(5)]
        budgets.asked(callers[0])
        assert budgets.has_room("10.0.1.1")
        assert [bool(one.why) for one in callers] == [False, True, False, False, False]

    def test_a_flood_gets_a_few_lines_per_interval(self, budgets: RpcBudgets, clock: Any) -> None:
        """The log must not grow with the number of connections; the count is kept."""
        with mock.patch.object(module, "log") as log:
            for _ in range(100):
                assert budgets.has_room("10.0.0.1")
                Caller(budgets)
            assert log.warn.call_count == LINES_MAX
            assert budgets.closed == 97
            advance(clock, 9)
            Caller(budgets)
            advance(clock, 2)
            assert budgets.has_room("10.0.0.1")
        assert f"{97 - LINES_MAX} more connections" in log.warn.call_args_list[LINES_MAX].kwargs["more"]

    def test_a_whole_request_gives_the_cost_back(self, budgets: RpcBudgets, clock: Any) -> None:
        """Callers that ask can connect without end; those that say nothing soon stop the port from accepting."""
        changes: list[bool] = []
        budgets.newcomers.set_accepting = changes.append
        for _ in range(3 * CALLERS_SAVED):
            caller = Caller(budgets)
            budgets.asked(caller)
            budgets.lost(caller)
        assert changes == []
        for _ in range(CALLERS_SAVED + 1):
            Caller(budgets)
        assert changes[0] is False
        assert True not in changes
        advance(clock, 1)
        assert changes[-1] is True


class TestDeadlines:
    def test_a_connection_without_a_request_is_closed(self, budgets: RpcBudgets, clock: Any) -> None:
        """One that has sent a request may be idle for any time."""
        silent, idle = Caller(budgets), Caller(budgets)
        budgets.asked(idle)
        advance(clock, FIRST_REQUEST_S_MAX - 1)
        assert not silent.why
        advance(clock, 2.5)
        assert "no request within 10 s" in silent.why
        assert not idle.why
        assert not clock.getDelayedCalls(), "nothing to watch, so no timer"

    def test_a_frame_must_be_complete_in_time(self, budgets: RpcBudgets, clock: Any) -> None:
        """More bytes of the same frame do not give it more time; a new frame gets its own."""
        slow, busy = Caller(budgets), Caller(budgets)
        for one in (slow, busy):
            budgets.asked(one)
        for n in range(int(FRAME_S_MAX) + 2):
            budgets.received(slow, n + 1, is_new=False)
            budgets.received(busy, n + 1, is_new=True)
            advance(clock, 1)
        assert "unfinished after 10 s" in slow.why
        assert not busy.why

    def test_no_frame_is_late_while_the_server_does_not_read(self, budgets: RpcBudgets, clock: Any) -> None:
        """The caller reads its replies slowly; afterwards the frame has its whole time."""
        caller = Caller(budgets)
        budgets.asked(caller)
        budgets.received(caller, 10, is_new=True)
        budgets.choked(caller, is_choked=True)
        advance(clock, 3 * FRAME_S_MAX)
        budgets.choked(caller, is_choked=False)
        advance(clock, FRAME_S_MAX - 1)
        assert not caller.why
        advance(clock, 2.5)
        assert caller.why

    def test_a_process_that_was_stopped_reads_first(self, budgets: RpcBudgets, clock: Any) -> None:
        """After a pause, requests may lie in the kernel's buffers."""
        caller = Caller(budgets)
        clock.advance(60)
        assert not caller.why
        budgets.asked(caller)
        advance(clock, 60)
        assert not caller.why

    def test_silent_connections_share_the_bytes_of_a_second(self, budgets: RpcBudgets, clock: Any) -> None:
        """Beyond them the server reads no more from these connections, and from others as before.

        Tried: `_count_silent` holds nobody; it counts every connection; `_sweep` releases nobody.
        """
        first, second, known = (Caller(budgets) for _ in range(3))
        budgets.asked(known)
        budgets.received(known, SILENT_BYTES_PER_S_MAX, is_new=True)
        budgets.received(first, SILENT_BYTES_PER_S_MAX - 1, is_new=True)
        budgets.received(second, 1, is_new=True)
        assert not any(one.is_held for one in (first, second, known))
        budgets.received(second, 2, is_new=False)
        budgets.received(known, SILENT_BYTES_PER_S_MAX + 1, is_new=False)
        assert [one.is_held for one in (first, second, known)] == [False, True, False]
        advance(clock, 1)
        budgets.received(second, 3, is_new=False)
        assert not second.is_held

    def test_the_sum_of_unfinished_bytes_is_bounded(self, budgets: RpcBudgets) -> None:
        """The frame that began first costs its connection; the bytes of ended connections do not count."""
        callers = [Caller(budgets) for _ in range(3)]
        half = UNFINISHED_BYTES_MAX // 2
        budgets.received(callers[0], half, is_new=True)
        budgets.received(callers[1], half, is_new=True)
        assert not any(one.why for one in callers)
        budgets.received(callers[0], half, is_new=False)
        budgets.received(callers[2], 1, is_new=True)
        assert "its frame is oldest" in callers[0].why
        assert [bool(one.why) for one in callers] == [True, False, False]
        assert budgets.unfinished_bytes == half + 1
        budgets.lost(callers[1])
        budgets.received(callers[2], 0, is_new=True)
        assert budgets.unfinished_bytes == 0


class TestTurns:
    """A real server connection whose requests take time."""

    COST_MS = 4

    @pytest.fixture
    def server(self, clock: Any) -> Any:
        self.served: list[int] = []

        def dispatch(request: Ask) -> Ask:
            self.served.append(request.n)
            clock.rightNow += self.COST_MS / 1000
            return request

        return RpcServer(dispatch, requests=Ask).factory(clock)

    def connect(self, clock: Any, factory: Any) -> tuple[Any, StringTransport]:
        connection = factory.buildProtocol(IPv4Address("TCP", "10.0.0.1", 1))
        transport = StringTransport()
        connection.makeConnection(transport)
        connection.dataReceived(PREAMBLE)
        turn(clock)
        return connection, transport

    def requests(self, *numbers: int) -> bytes:
        return b"".join(encode_frame(Request(n, encode_body(Ask(n)))) for n in numbers)

    def replies(self, transport: StringTransport) -> list[int]:
        return [one.id for one in RpcFrameReader().feed(transport.value()) if isinstance(one, Reply)]

    def test_pipelined_requests_give_way_to_a_newcomer(self, clock: Any, server: Any) -> None:
        """The first connection gets its share, then waits and is not read from; the other is served at once."""
        greedy, output = self.connect(clock, server)
        honest, other = self.connect(clock, server)
        greedy.dataReceived(self.requests(*range(100)))
        assert len(self.served) == 3, "one share of 10 ms"
        assert output.producerState == "paused"
        honest.dataReceived(self.requests(1000))
        assert self.replies(other) == [1000]
        turn(clock)
        assert 5 <= len(self.served) <= 8, "one turn of 10 ms"
        for _ in range(40):
            turn(clock)
        assert self.replies(output) == list(range(100)), "in order, and none is lost"
        assert output.producerState == "producing"

    def test_a_held_caller_is_read_again_when_nothing_else_is_in_the_way(self, clock: Any, server: Any) -> None:
        """A caller whose requests are refused counts as silent. Refusals that it does not read must not pile up.

        Edit that makes this fail: `hold` or `resumeProducing` does not ask `_read_again`.
        """
        caller, output = self.connect(clock, server)
        caller.hold(is_held=True)
        caller.pauseProducing()
        caller.hold(is_held=False)
        assert output.producerState == "paused"
        caller.hold(is_held=True)
        caller.resumeProducing()
        assert output.producerState == "paused"
        caller.hold(is_held=False)
        assert output.producerState == "producing"

    def test_bytes_that_arrive_meanwhile_wait_behind_the_others(self, clock: Any, server: Any) -> None:
        """A transport such as TLS may hand on bytes that it has decrypted already."""
        greedy, output = self.connect(clock, server)
        greedy.dataReceived(self.requests(*range(10)))
        greedy.dataReceived(self.requests(10, 11)[:-1])
        greedy.dataReceived(self.requests(11)[-1:])
        for _ in range(20):
            turn(clock)
        assert self.replies(output) == list(range(12))

    def test_a_caller_that_reads_no_replies_is_not_served_from_the_queue(self, clock: Any, server: Any) -> None:
        """Its requests wait until it reads; a connection that ends meanwhile is left out."""
        greedy, output = self.connect(clock, server)
        greedy.dataReceived(self.requests(*range(20)))
        greedy.pauseProducing()
        for _ in range(10):
            turn(clock)
        assert len(self.served) == 3
        greedy.resumeProducing()
        for _ in range(10):
            turn(clock)
        assert self.replies(output) == list(range(20))
        greedy.dataReceived(self.requests(*range(20, 40)))
        greedy.connectionLost()
        served = len(self.served)
        turn(clock)
        assert len(self.served) == served
