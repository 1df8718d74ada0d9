"""Clients with checked histories, over rows in memory: sound rows pass, planted faults are found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cli.drill import histories
from cli.drill.histories import CLIENTS, HistoryClients
from cli.drill.report import InvariantCheck
from regions.records.model import RegionRecord
from regionserver.client import Attempt, Unavailable
from tests.support.helpers import eventually

TABLETS = [RegionRecord("t", f"t.{number}", f"k{number}", f"k{number + 1}", next_number=2) for number in range(3)]


class Rows:
    """Rows that all clients share. `fault` is the fault of an operation."""

    def __init__(self, fault: str = "") -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.fault = fault
        self.writes = 0


class FakeClient:
    """The calls of a RegionClient, on rows in memory."""

    def __init__(self, rows: Rows, on_attempt: Callable[[Attempt], object] = lambda _: None, **_: Any) -> None:
        self.rows = rows
        self.attempted = on_attempt

    def get(self, _table: str, key: str) -> bytes | None:
        self.attempted(Attempt("t.0", ""))
        with self.rows.lock:
            return self.rows.values.get(key)

    def put(self, _table: str, key: str, value: bytes) -> None:
        self._store(key, value)

    def delete(self, _table: str, key: str) -> None:
        self._store(key, None)

    def compare_and_set(self, _table: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        with self.rows.lock:
            if self.rows.values.get(key) != expected and self.rows.fault != "no comparison":
                return False
        self._store(key, value)
        return True

    def _store(self, key: str, value: bytes | None) -> None:
        self.attempted(Attempt("t.0", ""))
        with self.rows.lock:
            self.rows.writes += 1
            if self.rows.fault == "lost" and self.rows.writes % 10 == 0:
                return
            if self.rows.fault == "late" and self.rows.writes % 10 == 0:
                raise Unavailable("no answer", may_have_been_done=True)
            if value is None:
                self.rows.values.pop(key, None)
            else:
                self.rows.values[key] = value

    def close(self) -> None:
        """Do nothing: no connection is open."""


def conduct(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> tuple[HistoryClients, InvariantCheck]:
    """Let the clients work on `rows`, and return the check."""
    monkeypatch.setattr(histories, "RegionClient", FakeClient)
    locator: Any = rows
    clients = HistoryClients(locator, {"t": TABLETS}, 20_000.0, seed=1)
    clients.start()
    eventually(lambda: clients.answered_since(0.0) >= 60, what="every client has operations")
    return clients, clients.stop()


def test_sound_rows_have_linearizable_histories_and_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    # The comparison and the change of the fake are two steps, so one lock holds both.
    lock = threading.RLock()
    rows.lock = lock  # type: ignore[assignment]
    whole = FakeClient.compare_and_set

    def in_one_step(client: FakeClient, *words: Any) -> bool:
        with lock:
            return whole(client, *words)

    monkeypatch.setattr(FakeClient, "compare_and_set", in_one_step)
    clients, found = conduct(monkeypatch, rows)
    assert found.held, found.examples
    assert f"3 keys by {CLIENTS} clients" in found.detail
    assert clients.failures == []
    assert clients.tablets == 3
    assert rows.values == {}


@pytest.mark.parametrize("fault", ["lost", "no comparison"])
def test_a_lost_write_and_a_compare_and_set_that_does_not_compare_are_found(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    _, found = conduct(monkeypatch, Rows(fault))
    assert not found.held
    assert "not linearizable" in found.examples[0]


def test_operations_without_an_answer_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, _ = conduct(monkeypatch, Rows("late"))
    assert any("no answer" in one for one in clients.failures)
    assert any(one.outcome == "unknown" for one in clients.timings())
