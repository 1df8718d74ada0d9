"""Requests of clients to a server's tablets: the checks, the requests that reach the group, and every answer."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.rpc.wire import Code, RpcError
from regionserver.kv.held import HELD_IDLE_S, SNAPSHOT_GONE, HeldRows, PageRead
from regionserver.kv.messages import SCHEMA_CHANGED, RowsPoint, SnapshotPage
from regionserver.request_gate import RATE_SPAN_S
from regionserver.tablets.commands import DONE, KEY_BYTES_MAX, SEALED, CommandError, DeleteRow, PutRow, WriteOutcome
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.messages import (
    NO_REPLICA,
    STALE_MS_MAX,
    WHO_LEADS_MAX,
    WRONG_REGION,
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletPage,
    TabletRead,
    TabletScan,
    TabletSnapshot,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
)
from regionserver.tablets.service import REFUSALS, TabletService
from tests.unit.regionserver.tablets.fake_hosting import NOW_MS, FakeHosting

LEADER = TabletLeader(2, "you", "h2", 7002)


def write(*operations: Any, tablet: str = "r1", began_ms: int = 5) -> TabletWrite:
    return TabletWrite(tablet, "w", 1, 1, began_ms, list(operations) or [PutRow("c", b"1")])


class Rows:
    def values(self, keys: Any) -> list[bytes | None]:
        return [key if key != b"d" else None for key in keys]

    def page(self, start: bytes, end: bytes, rows_max: int) -> tuple[list[Any], str]:
        return [(start.decode(), end)][:rows_max], "next"


class TabletServiceTest(SynchronousTestCase):
    """A server with a replica of r1, whose range is [b, m)."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.host: FakeHosting | None = FakeHosting()
        self.hosting = self.host
        self.host.put("r1")
        addresses = {"you": ("h2", 7002)}
        self.service = TabletService(
            self.clock.seconds, lambda: self.host, addresses.get, self.hosting.report, CollectorRegistry(), self.clock
        )

    def ask(self, request: Any) -> Deferred[Any]:
        return maybeDeferred(self.service.answer, request)

    def refused(self, request: Any) -> str:
        error: Any = self.failureResultOf(self.ask(request), RpcError).value
        assert error.message
        return str(error.code)

    def test_a_write_is_proposed_and_answered(self) -> None:
        answer = self.ask(write())
        tablet, command, _ = self.hosting.asked[0]
        assert (tablet, command.writer, command.number, command.operations) == ("r1", "w", 1, [PutRow("c", b"1")])
        outcome = WriteOutcome(DONE, 3, 17)
        self.hosting.answer(Fate.DONE, outcome)
        assert self.successResultOf(answer) == TabletWritten(outcome, NOW_MS)

    def test_rows_of_an_earlier_schema_than_another_write_are_refused(self) -> None:
        """The refused write reaches no group; keys and bytes have no version; each tablet has its own."""
        self.host.put("r2")  # type: ignore[union-attr]
        self.ask(msgspec.structs.replace(write(), schema_version=2))
        assert self.refused(msgspec.structs.replace(write(), schema_version=1)) == SCHEMA_CHANGED
        assert len(self.hosting.asked) == 1
        self.ask(write())
        self.ask(msgspec.structs.replace(write(), schema_version=2))
        self.ask(msgspec.structs.replace(write(tablet="r2"), schema_version=0))
        assert len(self.hosting.asked) == 4

    def test_a_read_returns_the_values_with_their_index(self) -> None:
        """The host reads the rows, on a thread; the answer has the entry up to which they reach."""
        answer = self.ask(TabletRead("r1", ["c", "d"], at_least=9))
        value = self.hosting.asked[0][1](Rows())
        self.hosting.answer(Fate.DONE, value, index=11)
        assert self.successResultOf(answer) == TabletValues([b"c", None], 11, NOW_MS)
        assert self.hosting.at_least == [9]

    def test_a_scan_returns_a_page(self) -> None:
        answer = self.ask(TabletScan("r1", "c", "k", 10))
        value = self.hosting.asked[0][1](Rows())
        self.hosting.answer(Fate.DONE, value, index=11)
        assert self.successResultOf(answer) == TabletPage([("c", b"k")], "next", 11, NOW_MS)  # type: ignore[list-item]

    def test_a_stale_read_is_answered_with_its_age(self) -> None:
        answer = self.ask(TabletRead("r1", ["c"], max_stale_ms=500))
        tablet, read, asked = self.hosting.asked[0]
        done = TabletAnswer(tablet, 1, Fate.DONE, read(Rows()), 3, 11)
        done.as_of_ms = NOW_MS - 480
        asked.callback(done)
        assert self.successResultOf(answer) == TabletValues([b"c"], 11, NOW_MS, 480)
        assert self.hosting.max_stale_ms == [500]

    def test_a_member_that_cannot_prove_its_age_names_the_leader(self) -> None:
        self.hosting.leaders["r1"] = (3, 2, "you")
        answer = self.ask(TabletScan("r1", max_stale_ms=500))
        self.hosting.answer(Fate.TOO_STALE)
        view = KnownLeader("r1", 3, TabletLeader(2, "you", "h2", 7002))
        assert self.successResultOf(answer) == LeaderElsewhere(view, NOW_MS)

    def test_bounds_that_make_no_sense_are_refused(self) -> None:
        for bad in (
            TabletRead("r1", ["c"], max_stale_ms=-1),
            TabletRead("r1", ["c"], max_stale_ms=STALE_MS_MAX + 1),
            TabletRead("r1", ["c"], at_least=1, max_stale_ms=1),
            TabletScan("r1", at_least=1, max_stale_ms=1),
        ):
            assert self.refused(bad) == Code.BAD_REQUEST

    def test_a_snapshot_begins_at_the_leader_and_is_read_on_at_any_member(self) -> None:
        """The first page waits until a majority has confirmed the leader; the later ones are of the same moment."""
        held = HeldRows(None, RowsPoint(term=1, index=5))
        answer = self.ask(TabletSnapshot("r1"))
        assert self.hosting.at_least == [0]
        self.hosting.answer(Fate.DONE, PageRead(held, SnapshotPage(held.point, next_key=b"c")), index=11)
        name = self.successResultOf(answer).held
        answer = self.ask(TabletSnapshot("r1", name, b"c"))
        assert self.hosting.at_least == [0, 1]
        value = self.hosting.asked[0][1](Rows())
        self.hosting.answer(Fate.DONE, value, index=11)
        page = self.successResultOf(answer)
        assert (page.point, page.held, page.next_key) == (held.point, "", b"")
        assert self.refused(TabletSnapshot("r1", name, b"c")) == SNAPSHOT_GONE

    def test_a_snapshot_is_released_and_expires(self) -> None:
        for wait_s, ends in ((0, True), (HELD_IDLE_S, False)):
            held = HeldRows(None, RowsPoint())
            answer = self.ask(TabletSnapshot("r1"))
            self.hosting.answer(Fate.DONE, PageRead(held, SnapshotPage(held.point, next_key=b"c")), index=11)
            name = self.successResultOf(answer).held
            self.clock.advance(wait_s)
            if ends:
                self.successResultOf(self.ask(TabletSnapshot("r1", name, ends=True)))
            assert self.refused(TabletSnapshot("r1", name, b"c")) == SNAPSHOT_GONE

    def test_another_leader_is_named_with_its_address(self) -> None:
        self.hosting.leaders["r1"] = (4, 2, "you")
        for request in (write(), TabletRead("r1", ["c"]), TabletScan("r1"), TabletSnapshot("r1")):
            answer = self.ask(request)
            self.hosting.answer(Fate.NOT_LEADER)
            assert self.successResultOf(answer) == LeaderElsewhere(KnownLeader("r1", 4, LEADER), NOW_MS)

    def test_a_leader_without_a_known_address_and_no_leader(self) -> None:
        self.hosting.leaders["r1"] = (4, 3, "her")
        answer = self.ask(write())
        self.hosting.answer(Fate.NOT_LEADER)
        assert self.successResultOf(answer).view.leader == TabletLeader(3, "her")
        self.hosting.leaders["r1"] = (5, 0, "")
        answer = self.ask(write())
        self.hosting.answer(Fate.NOT_LEADER)
        assert self.successResultOf(answer).view == KnownLeader("r1", 5, None)

    def test_who_leads_is_answered_at_once(self) -> None:
        """The answer needs no round of the group. For tablets that are not here it is empty."""
        self.hosting.leaders["r1"] = (4, 2, "you")
        found = self.successResultOf(self.ask(WhoLeads(["r1", "elsewhere"])))
        assert found == Leaders([KnownLeader("r1", 4, LEADER), KnownLeader("elsewhere")], NOW_MS)
        assert self.refused(WhoLeads([])) == Code.BAD_REQUEST
        assert self.refused(WhoLeads(["r1"] * (WHO_LEADS_MAX + 1))) == Code.BAD_REQUEST

    def test_every_fate_has_an_answer(self) -> None:
        """No answer of a group becomes an internal error."""
        for fate in Fate:
            if fate in (Fate.DONE, Fate.NOT_LEADER, Fate.REFUSED):  # REFUSED answers changes of members alone
                continue
            answer = self.ask(write())
            self.hosting.answer(fate)
            error: Any = self.failureResultOf(answer, RpcError).value
            assert error.code == REFUSALS[fate][0]
            assert "r1" in error.message

    def test_a_sealed_tablet_sends_clients_to_its_daughters(self) -> None:
        """An acknowledged write would be in the parent alone, which nobody reads any more."""
        answer = self.ask(write())
        self.hosting.answer(Fate.DONE, WriteOutcome(SEALED, 3, 17))
        error: Any = self.failureResultOf(answer, RpcError).value
        assert (error.code, "r1 was split" in error.message) == (WRONG_REGION, True)

    def test_refusals_of_a_sealed_tablet_wait_for_its_daughters(self) -> None:
        """Refusals of a write and of a read wait; other failures do not."""
        daughters: Deferred[None] = Deferred()
        self.hosting.sealed["r1"] = daughters
        written, read, failed = self.ask(write()), self.ask(TabletRead("r1", ["c"])), self.ask(write())
        self.hosting.answer(Fate.DONE, WriteOutcome(SEALED, 3, 17))
        self.hosting.asked.pop(0)[2].errback(RpcError(WRONG_REGION, "split"))
        self.hosting.answer(Fate.BUSY)
        assert self.failureResultOf(failed, RpcError).value.code == Code.BUSY
        for waiting in (written, read):
            self.assertNoResult(waiting)
        daughters.callback(None)
        for waiting in (written, read):
            assert self.failureResultOf(waiting, RpcError).value.code == WRONG_REGION

    def test_limits_and_range_are_checked_before_the_group(self) -> None:
        assert self.refused(write(tablet="elsewhere")) == NO_REPLICA
        assert self.refused(write(tablet="")) == Code.BAD_REQUEST
        assert self.refused(write(PutRow("a", b""))) == WRONG_REGION
        assert self.refused(write(DeleteRow("m"))) == WRONG_REGION
        assert self.refused(write(PutRow("c" * (KEY_BYTES_MAX + 1), b""))) == Code.BAD_REQUEST
        assert self.refused(TabletRead("r1", ["z"])) == WRONG_REGION
        assert self.refused(TabletRead("r1", [])) == Code.BAD_REQUEST
        assert self.refused(TabletScan("r1", rows_max=0)) == Code.BAD_REQUEST
        assert self.hosting.asked == []

    def test_what_depends_on_the_leaders_time_is_refused_as_well(self) -> None:
        """The fake host has time 0: a write that began an hour later is ahead of it.

        A write that waits for a daughter's leader reaches the log later. Tried: without `_broken_limit`, the client
        gets an internal error.
        """
        assert self.refused(write(began_ms=3_600_000)) == Code.BAD_REQUEST
        waited = self.ask(write())
        self.hosting.asked.pop()[2].errback(CommandError("ahead of the leader's time"))
        assert self.failureResultOf(waited, RpcError).value.code == Code.BAD_REQUEST

    def test_requests_before_the_start_of_the_host_are_rejected(self) -> None:
        self.host = None
        assert self.refused(write()) == NO_REPLICA
        assert self.refused(WhoLeads(["r1"])) == NO_REPLICA

    def test_requests_are_counted_by_replica(self) -> None:
        for _ in range(20):
            self.ask(write())
        assert self.service.rates() == {}
        self.clock.advance(RATE_SPAN_S)
        assert self.service.rates() == {("r1", 1): 2.0}
        self.clock.advance(RATE_SPAN_S)
        assert self.service.rates() == {}
