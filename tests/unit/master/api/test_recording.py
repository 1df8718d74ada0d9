"""Operators' requests, store outages, servers, fences and drains in the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from master.api.recording import words_of
from regions import messages as ms
from regions.cluster.history import (
    DRAIN_BEGINS,
    DRAIN_ENDS,
    EPOCH_BEGINS,
    SERVER_FENCED,
    SERVERS,
    STORE_OUTAGE,
    servers_found,
    unpack,
)
from regions.records.model import FenceRecord, TableIntent
from regions.transitions.entries import REFUSED, REQUEST, HistoryEntry
from tests.unit.master.active_fixture import LAYOUT, Bench


def events(bench: Bench) -> list[HistoryEntry]:
    """Return the entries in the store that are not steps, oldest first."""
    names = sorted(path for path in bench.store.nodes if path.startswith(f"{LAYOUT.history}/"))
    return [one for path in names for one in unpack(bench.store.nodes[path][0]) if not one.key]


def causes(bench: Bench) -> list[str]:
    bench.go_on(1.0)
    return [one.cause for one in events(bench)]


def changed(bench: Bench, *, draining: Sequence[str] = (), fences: Sequence[FenceRecord] = ()) -> None:
    """Let the registry report a change; all servers stay registered."""
    assert bench.active_master is not None
    servers = bench.active_master.registry.servers
    fenced = {one.server.uuid for one in fences}
    present = [one for one in servers if one.uuid not in fenced]
    bench.active_master.server_events.changed(present, list(draining), list(fences), [])


def test_a_request_is_recorded_with_its_caller_and_its_words(tmp_path: Path) -> None:
    """N2, B9: the user who drained the server, and the address."""
    bench = Bench(tmp_path, servers=2)
    bench.ask(ms.DrainServer("s2", True))
    bench.go_on(1.0)
    [entry] = [one for one in events(bench) if one.cause == REQUEST]
    assert (entry.detail, entry.server, entry.epoch) == ("drain server s2", "s2", 4)
    assert entry.origin == "request: DrainServer s2 from 127.0.0.1:4711"
    changed(bench, draining=["s2"])
    bench.go_on(1.0)
    [drain] = [one for one in events(bench) if one.cause == DRAIN_BEGINS]
    assert (drain.server, drain.cause_id) == ("s2", entry.cause_id)
    changed(bench, draining=["s2"])
    changed(bench)
    assert causes(bench)[-2:] == [DRAIN_BEGINS, DRAIN_ENDS]


def test_a_request_that_is_refused_at_once_is_not_recorded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    known = causes(bench)
    assert bench.ask(ms.DrainServer("nobody", True)) == ms.NOT_FOUND
    assert causes(bench) == known


def test_a_request_that_is_refused_after_its_entry_was_written_has_its_refusal(tmp_path: Path) -> None:
    bench = Bench(tmp_path, servers=2)
    active_master = bench.active_master
    assert active_master is not None
    writer = active_master.history_writer
    was = writer.withdraw
    writer.withdraw = lambda _: False  # type: ignore[method-assign]
    bench.ask(ms.DrainServer("nobody", True))
    writer.withdraw = was  # type: ignore[method-assign]
    assert causes(bench)[-2:] == [REQUEST, REFUSED]


def test_a_request_that_is_repeated_is_recorded_once(tmp_path: Path) -> None:
    """A client that waits for the end of its request repeats the request."""
    bench = Bench(tmp_path)
    for _ in range(3):
        bench.ask(ms.SetTableIntent("orders", TableIntent.DISABLED, request_id="r1"))
    assert causes(bench).count(REQUEST) == 1


def test_a_takeover_records_the_servers_that_it_finds(tmp_path: Path) -> None:
    """Without this entry the history would not show which servers were up before the first change."""
    bench = Bench(tmp_path, servers=2)
    bench.go_on(1.0)
    begin, found = events(bench)[:2]
    assert (begin.cause, found.cause) == (EPOCH_BEGINS, SERVERS)
    assert servers_found(found) == {"s1": "h:2", "s2": "h:3"}
    assert servers_found(begin) == {}


def test_a_fence_is_recorded_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, servers=2)
    assert bench.active_master is not None
    fence = FenceRecord(bench.active_master.world.servers["s2"].record, 3_000, "it hangs")
    changed(bench, fences=[fence])
    changed(bench, fences=[fence])
    assert causes(bench).count(SERVER_FENCED) == 1
    [found] = [one for one in events(bench) if one.cause == SERVER_FENCED]
    assert (found.server, found.detail) == ("s2", "h:3 it hangs")


def test_a_time_without_the_store_is_recorded(tmp_path: Path) -> None:
    """The master could neither write nor order anything meanwhile."""
    bench = Bench(tmp_path)
    bench.go_on(1.0)
    lost_ms = bench.now_ms()
    bench.store.cut()
    bench.clock.advance(3)
    bench.store.mend()
    bench.go_on()
    bench.go_on(1.0)
    [outage] = [one for one in events(bench) if one.cause == STORE_OUTAGE]
    assert (outage.at_ms, outage.detail) == (lost_ms, "3.0 s without a connection to the store; the session lived on")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ms.SetTableIntent("orders", TableIntent.DISABLED), "disable table orders"),
        (ms.DeleteTable("orders"), "delete table orders"),
        (ms.MoveRegion("t.0", destination="s2"), "move region t.0 to s2"),
        (ms.FenceServer("s2", "it hangs", bar_ms=-1), "fence server s2 until it is unfenced (it hangs)"),
        (ms.FenceServer("s2", "it hangs", bar_ms=5000), "fence server s2 for 5 s (it hangs)"),
        (ms.Balance(switch=False), "turn the balancer off"),
        (ms.Balance(run=True), "balance now"),
        (ms.Balance(run=True, dry_run=True), ""),
        (ms.Balance(), ""),
        (ms.RetireServer("s2", dry_run=True), ""),
        (ms.AbortPlan("p1"), "abort plan p1"),
        (ms.CloseHole("orders", "d", "f"), "close the hole in table orders: from 'd' to 'f'"),
        (ms.CloseHole("orders", "x", ""), "close the hole in table orders: from 'x' on"),
        (ms.CloseHole("orders", "", ""), "close the hole in table orders: all keys"),
        (ms.ListServers(), ""),
    ],
)
def test_requests_in_words(request_: ms.MasterRequest, words: str) -> None:
    """A request that changes nothing has no words, and no entry."""
    assert words_of(request_) == words
