"""The blocking client of the masters: one deadline, one request id, and its error when no master leads (MF-15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coord.rpc.wire import Code, RpcError
from master import client as module
from master.client import MasterClient, NoLeader
from regions import messages as ms
from regions.messages.staleness import AsOf


class Wire:
    """Stands for the network: answers by address; each call takes a second of the test's time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: dict[str, Iterator[Any]] = {}
        self.asked: list[tuple[str, Any, float]] = []
        self.meant: list[str] = []

    def call(self, address: tuple[str, int], message: Any, timeout_s: float, *, expect: type, cluster: str) -> Any:
        self.meant.append(cluster)
        name = f"{address[0]}:{address[1]}"
        self.asked.append((name, message, timeout_s))
        self.now += 1.0
        answer = next(self.answers[name])
        if isinstance(answer, RpcError):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    found = Wire()
    monkeypatch.setattr(module, "call_blocking", found.call)
    monkeypatch.setattr(module, "time", found)
    return found


def forever(answer: Any) -> Iterator[Any]:
    while True:
        yield answer


def test_an_operation_keeps_its_id_over_all_retries(wire: Wire) -> None:
    """OC-08: the first master's reply was lost; the second master must recognize the operation."""
    done = ms.Tables([], as_of=AsOf(0, 77))
    wire.answers = {
        "a:1": iter([RpcError(Code.CONNECTION_LOST, "closed"), RpcError(ms.NOT_LEADER, "standby", "b:1")]),
        "b:1": iter([RpcError(ms.NOT_LEADER, "standby"), done]),
    }
    client = MasterClient(["a:1", "b:1"])
    assert client.ask(ms.DeleteTable("t"), ms.Tables) is done
    assert [one[0] for one in wire.asked] == ["a:1", "b:1", "a:1", "b:1"]
    ids = {one[1].request_id for one in wire.asked}
    assert len(ids) == 1
    assert "" not in ids
    assert client.seen_zxid == 77


def test_each_operation_has_its_own_id(wire: Wire) -> None:
    """Two deletes are two operations."""
    wire.answers = {"a:1": forever(ms.Tables([]))}
    client = MasterClient(["a:1"])
    for _ in range(2):
        client.ask(ms.DeleteTable("t"), ms.Tables)
    assert wire.asked[0][1].request_id != wire.asked[1][1].request_id


def test_without_a_leader_the_error_names_every_master(wire: Wire) -> None:
    """MF-15: the error has each master's reply."""
    wire.answers = {
        "a:1": forever(RpcError(ms.NOT_LEADER, "x")),
        "b:1": forever(RpcError(Code.UNREACHABLE, "b:1 gone")),
    }
    with pytest.raises(NoLeader) as failed:
        MasterClient(["a:1", "b:1"]).ask(ms.ListTables(), ms.Tables, 5.0)
    assert str(failed.value) == "a:1 is a standby; b:1 gone"
    assert wire.now <= 6.0


def test_a_frozen_master_does_not_use_up_the_deadline(wire: Wire) -> None:
    """Each attempt waits for a part of the time, plus the requested wait."""
    wire.answers = {"a:1": forever(ms.Tables([]))}
    client = MasterClient(["a:1"])
    client.ask(ms.ListTables(), ms.Tables, 60.0)
    late = RpcError(ms.TIMED_OUT, "1 of 2 are open; it goes on")
    wire.answers = {"a:1": iter([late, late, ms.Tables([])])}
    client.ask(ms.CreateTable("t", wait_ms=20_000), ms.Tables, 60.0)
    part = module.WAIT_PART_S
    assert [one[2] for one in wire.asked] == [module.ATTEMPT_S] + 3 * [module.ATTEMPT_S + part]
    assert len({one[1].request_id for one in wire.asked[1:]}) == 1


def test_a_wait_that_times_out_is_reported(wire: Wire) -> None:
    """DD-02: TIMED_OUT after the given time, as if the request had been sent once."""
    wire.answers = {"a:1": forever(RpcError(ms.TIMED_OUT, "1 of 2 are open; it goes on"))}
    with pytest.raises(RpcError, match="it goes on"):
        MasterClient(["a:1"]).ask(ms.CreateTable("t", wait_ms=5_000), ms.Tables, 60.0)
    assert 3 <= wire.now <= 7


def test_masters_are_looked_up_in_each_round(wire: Wire) -> None:
    """The store names them: another master may have become active."""
    wire.answers = {"a:1": forever(RpcError(ms.NOT_LEADER, "x")), "b:1": forever(ms.Tables([]))}
    known = iter([["a:1"], ["b:1"]])
    assert MasterClient(discover=lambda: next(known)).ask(ms.ListTables(), ms.Tables) == ms.Tables([])


def test_a_rejection_is_passed_on(wire: Wire) -> None:
    """The rejection concerns the request, not the master."""
    wire.answers = {"a:1": forever(RpcError(ms.NOT_FOUND, "there is no table 't'"))}
    with pytest.raises(RpcError, match="there is no table"):
        MasterClient(["a:1"]).ask(ms.DeleteTable("t"), ms.Tables)


def test_a_master_of_another_cluster_ends_the_search(wire: Wire) -> None:
    """FN-08: it is not a standby, so the next one in the list is not tried."""
    wire.answers = {"a:1": iter([RpcError(ms.NOT_LEADER, "standby")]), "b:1": iter([RpcError(ms.WRONG_CLUSTER, "no")])}
    client = MasterClient(["a:1", "b:1", "c:1"], cluster=lambda: "mine")
    with pytest.raises(RpcError, match="wrong_cluster"):
        client.ask(ms.DeleteTable("t"), ms.Tables)
    assert wire.meant == ["mine", "mine"]
