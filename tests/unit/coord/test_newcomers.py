"""coord.newcomers: how many callers may come before they have proved anything, with a clock of the test's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from coord import newcomers as module
from coord.newcomers import (
    HANDSHAKE_S,
    INTERVAL_S,
    LINES_MAX,
    PLAIN_S,
    REFUSAL_S,
    RPC_S,
    SAVED_S,
    SHARE,
    NewcomerBudget,
    SummedLines,
    accept,
)


class Gate:
    """A port, as its budget sees it."""

    def __init__(self) -> None:
        self.clock: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
        self.is_accepting = True
        self.budget = NewcomerBudget(self.clock, self._set)

    def _set(self, is_accepting: bool) -> None:
        self.is_accepting = is_accepting

    def flood(self, seconds: float, cost_s: float) -> int:
        """Return how many callers are accepted in this time if there is always one more."""
        accepted = 0
        for _ in range(round(seconds / 0.01)):
            while self.is_accepting:
                self.budget.charge(cost_s)
                accepted += 1
            self.clock.advance(0.01)
        return accepted


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.mark.parametrize("cost_s", [PLAIN_S, RPC_S, HANDSHAKE_S])
def test_a_flood_gets_its_share_of_the_time(gate: Gate, cost_s: float) -> None:
    """First the saved budget, later the share."""
    gate.flood(1.0, cost_s)
    assert gate.flood(100.0, cost_s) == pytest.approx(100.0 * SHARE / cost_s, rel=0.1)


def test_callers_that_prove_something_do_not_wait(gate: Gate) -> None:
    """Ten thousand clients connect again after an outage."""
    for _ in range(10_000):
        gate.budget.charge(PLAIN_S)
        gate.budget.give_back(PLAIN_S)
    assert gate.budget.pauses == 0


def test_a_proof_opens_a_port_that_waits(gate: Gate) -> None:
    """Handshakes that are under way may end sooner than the budget grows."""
    for _ in range(int(SAVED_S / HANDSHAKE_S) + 1):
        gate.budget.charge(HANDSHAKE_S)
    assert not gate.is_accepting
    gate.budget.give_back(HANDSHAKE_S)
    assert gate.is_accepting


def test_what_was_saved_is_bounded(gate: Gate) -> None:
    """A quiet day saves no more budget than a short quiet time, and no cost can be given back twice."""
    gate.clock.advance(86_400.0)
    gate.budget.give_back(1.0)
    gate.budget.charge(SAVED_S)
    assert not gate.is_accepting


def test_a_charge_stops_a_port_that_something_else_has_opened(gate: Gate) -> None:
    """A port that ran out of descriptors accepts again by a timer of its own."""
    gate.budget.charge(2 * SAVED_S)
    gate.is_accepting = True
    gate.budget.charge(REFUSAL_S)
    assert not gate.is_accepting


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def test_callers_that_have_left_are_closed_unread_while_time_is_scarce(gate: Gate) -> None:
    """The one that waits behind them is served, and in a quiet time those who have closed their half, too."""
    with _listening() as listening, contextlib.ExitStack() as stack:

        def connect(*, leaves: bool) -> socket.socket:
            caller = stack.enter_context(socket.create_connection(listening.getsockname()))
            if leaves:
                caller.shutdown(socket.SHUT_WR)
            return caller

        gone = connect(leaves=True)
        accepted, address = accept(listening.accept, gate.budget)
        stack.enter_context(accepted)
        assert address == gone.getsockname()

        gate.budget.charge(SAVED_S * 0.6)
        for _ in range(5):
            connect(leaves=True)
        waits = connect(leaves=False)
        accepted, address = accept(listening.accept, gate.budget)
        stack.enter_context(accepted)
        assert address == waits.getsockname()
        with pytest.raises(BlockingIOError):
            accept(listening.accept, gate.budget)


def test_callers_that_wait_in_silence_are_closed_unread_while_time_is_scarce(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that have sent a part of the first record of TLS. Young ones are served, and so is whoever has begun,
    however long ago.

    Tried: `_is_worth` without `_has_begun`; `_has_begun` that takes any bytes for a beginning.
    """
    record = bytes.fromhex("1603010004") + b"hell"
    with _listening() as listening, contextlib.ExitStack() as stack:

        def connect(sent: bytes) -> socket.socket:
            caller = stack.enter_context(socket.create_connection(listening.getsockname()))
            caller.sendall(sent)
            return caller

        gate.budget.charge(SAVED_S * 0.6)
        young = connect(b"")
        accepted, address = accept(listening.accept, gate.budget)
        stack.enter_context(accepted)
        assert address == young.getsockname()

        monkeypatch.setattr(module, "SILENT_MS_MAX", 0)
        callers = [connect(sent) for sent in (b"", record[:4], record[:-1], b"", record, b"", b"srvr")]
        for honest in (callers[4], callers[6]):
            accepted, address = accept(listening.accept, gate.budget)
            stack.enter_context(accepted)
            assert address == honest.getsockname()
        assert accepted.recv(9) == b"srvr"


def test_nobody_is_accepted_when_the_budget_is_used_up(gate: Gate) -> None:
    """The caller stays in the kernel's queue."""
    with _listening() as listening, socket.create_connection(listening.getsockname()) as caller:
        gate.budget.charge(SAVED_S)
        with pytest.raises(BlockingIOError):
            accept(listening.accept, gate.budget)
        gate.clock.pump([0.1] * 10)
        accepted, address = accept(listening.accept, gate.budget)
        accepted.close()
        assert address == caller.getsockname()


def test_lines_are_summed_up(gate: Gate) -> None:
    """Some in each interval; the first of the next one counts the others."""
    lines = SummedLines(gate.clock.seconds)
    found = [lines.more() for _ in range(100)]
    assert found == [""] * LINES_MAX + [None] * (100 - LINES_MAX)
    gate.clock.advance(INTERVAL_S)
    assert lines.more() == f"; {100 - LINES_MAX} more connections since the last such line"
    assert lines.more() == ""


def test_costs_are_in_order() -> None:
    """A refusal costs least, a signature most."""
    assert module.REFUSAL_S < module.PLAIN_S < module.RPC_S < module.SESSION_S < module.HANDSHAKE_S
