"""Key-value requests from admission to answer: rejected requests, group commits, limits, late attempts."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.rpc.wire import RpcError
from regions.messages import BAD_REQUEST, NO_LEASE, WRONG_SERVER
from regions.messages.heartbeat import Measure
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation
from regions.records.partitioning import bucket_of
from regionserver.kv import files as files_module
from regionserver.kv import request_queue
from regionserver.kv import service as service_module
from regionserver.kv.messages import (
    KEY_BYTES_MAX,
    KEYS_MAX,
    PAGE_ROWS_MAX,
    SCHEMA_CHANGED,
    VALUE_BYTES_MAX,
    KvChange,
    KvRead,
    KvRows,
    KvScan,
    KvSnapshot,
    KvValues,
    KvWrite,
    KvWritten,
    SnapshotPage,
    check_request,
)
from regionserver.kv.packing import unpack_rows
from regionserver.kv.request_queue import RequestQueue
from regionserver.kv.service import KvRegions
from regionserver.opener import Opening
from regionserver.request_gate import RATE_SPAN_S, Place, Serving

ME = Incarnation("me", 7)
REGION = RegionRecord("t", "r1", start_key="b", end_key="y")
PLACE = Place("r1", "me", 7, 1000)


class HandWorkers:
    """A pool that runs its jobs when the test says so."""

    def __init__(self, *_arguments: object) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.pending = 0

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))

    def stop(self, timeout_s: float) -> bool:
        return True

    def run(self) -> int:
        """Run the queued jobs. Return their number."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            try:
                result = work()
            except Exception as error:
                result = error
            done(result)
        return len(jobs)


class KvTests(SynchronousTestCase):
    """One region, open since 1000 ms."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.regions = KvRegions(Path(folder.name))
        self.pool = HandWorkers()
        self.has_lease = True
        self.served: tuple[RegionRecord, ReplicaLocation] | None = (REGION, ReplicaLocation(0, "me", 7, 1000))
        self.clock = Clock()
        self.serving = Serving(
            self.clock,
            CollectorRegistry(),
            lambda: ME,
            lambda: self.has_lease,
            lambda key: self.served if key == ("r1", 0) else None,
            lambda *_: self.pool,
        )
        self.regions.attach(self.serving)
        opening = Opening(REGION, 0, ME, 1, None, lambda: None, 5)
        self.regions.prepare([opening])
        self.regions.open(opening)
        self.addCleanup(self.regions.close, REGION, 0)

    def test_requests_are_counted_for_the_balancer(self) -> None:
        """Admitted requests per second, over the latest interval; rejected ones are not load."""
        place = Place("r1", ME.uuid, ME.start_code, 1000)
        for _ in range(20):
            self.serving.admit(place)
        with pytest.raises(RpcError):
            self.serving.admit(Place("r2", ME.uuid, ME.start_code, 1000))
        assert self.serving.rates() == {}
        self.clock.advance(RATE_SPAN_S)
        assert self.serving.rates() == {("r1", 0): 20 / RATE_SPAN_S}
        self.clock.advance(RATE_SPAN_S / 2)
        assert self.serving.rates() == {("r1", 0): 20 / RATE_SPAN_S}
        self.clock.advance(RATE_SPAN_S / 2)
        assert self.serving.rates() == {}

    def test_the_server_learns_the_sizes(self) -> None:
        """A region has a size from its opening until its close."""
        assert self.serving.sizes.of(("r1", 0)) == Measure(0, 0)
        self.ask(self.write(1, c="1", d="2"))
        found = self.serving.sizes.of(("r1", 0))
        assert found is not None
        assert (found.rows, found.size_bytes > 0) == (2, True)
        self.regions.close(REGION, 0)
        assert self.serving.sizes.of(("r1", 0)) is None

    def refused(self, request: Any) -> str:
        with pytest.raises(RpcError) as caught:
            self.regions.answer(request)
        return caught.value.code

    def ask(self, request: Any) -> Any:
        answer = self.regions.answer(request)
        self.pool.run()
        return self.successResultOf(answer)

    def code_of(self, answer: Deferred[Any]) -> str:
        return self.failureResultOf(answer, RpcError).value.code

    def write(self, number: int, attempt: int = 0, **rows: str) -> KvWrite:
        return KvWrite(PLACE, [KvChange(key, value.encode()) for key, value in rows.items()], "w", number, attempt)

    def test_rows_are_written_read_scanned_and_deleted(self) -> None:
        """Write, read, scan, delete."""
        assert self.ask(self.write(1, c="1", d="2")) == KvWritten(2)
        assert self.ask(KvRead(PLACE, ["d", "c", "e"])) == KvValues([b"2", b"1", None])
        assert self.ask(KvWrite(PLACE, [KvChange("c", None)], "w", 2)) == KvWritten(1)
        rows: KvRows = self.ask(KvScan(PLACE))
        assert [(row.key, row.value) for row in rows.rows] == [("d", b"2")]

    def test_requests_for_another_opening_are_rejected(self) -> None:
        """FN-08: another server, another start, another open, another region, a region that is being opened."""
        for place, code in (
            (Place("r1", "other", 7, 1000), WRONG_SERVER),
            (Place("r1", "me", 6, 1000), WRONG_SERVER),
            (Place("r1", "me", 7, 999), "not_serving"),
            (Place("r2", "me", 7, 1000), "not_serving"),
            (Place("r1", "me", 7, 1000, replica=1), "not_serving"),
        ):
            assert self.refused(KvRead(place, ["c"])) == code
        self.served = None
        assert self.refused(KvRead(PLACE, ["c"])) == "not_serving"

    def test_requests_without_a_lease_are_rejected(self) -> None:
        """Requests that waited in the socket buffer while this process was frozen."""
        self.has_lease = False
        assert self.refused(KvRead(PLACE, ["c"])) == NO_LEASE
        assert self.refused(self.write(1, c="1")) == NO_LEASE

    def test_a_request_whose_lease_ends_meanwhile_is_not_acknowledged(self) -> None:
        """A read is rejected; a write that has not begun is not done; a completed one is not acknowledged."""
        read, write = self.regions.answer(KvRead(PLACE, ["c"])), self.regions.answer(self.write(1, c="1"))
        self.has_lease = False
        self.pool.run()
        assert (self.code_of(read), self.code_of(write)) == (NO_LEASE, NO_LEASE)
        self.has_lease = True
        assert self.ask(KvRead(PLACE, ["c"])) == KvValues([None])
        late = self.regions.answer(self.write(2, c="2"))
        (work, done) = self.pool.jobs.pop()
        result = work()
        self.has_lease = False
        done(result)
        assert self.code_of(late) == "fenced"

    def test_an_attempt_that_comes_after_a_later_one_is_refused(self) -> None:
        """The first copy of a write, delayed in some buffer, must not undo writes after the second copy."""
        assert self.ask(self.write(1, attempt=1, c="1")) == KvWritten(1)
        self.ask(self.write(2, c="2"))
        assert self.refused(self.write(1, attempt=0, c="1")) == "superseded"
        assert self.ask(self.write(1, attempt=1, c="1")) == KvWritten(1)
        assert self.refused(self.write(1, attempt=0, c="1")) == "superseded"

    def test_rows_of_an_earlier_schema_are_refused(self) -> None:
        """The server learns a version from a master or from a write; keys and bytes have none."""

        def put(version: int) -> KvWrite:
            return KvWrite(PLACE, [KvChange("c", b"1")], "w", 1, schema_version=version)

        assert self.ask(put(0)) == KvWritten(1)
        self.regions.schema_changed(REGION, 0, 2)
        self.regions.schema_changed(REGION, 0, 1)  # an order that arrives late
        assert self.refused(put(1)) == SCHEMA_CHANGED
        assert self.ask(put(2)) == KvWritten(1)
        assert self.ask(put(3)) == KvWritten(1)
        assert self.refused(put(2)) == SCHEMA_CHANGED
        assert self.ask(self.write(1, c="1")) == KvWritten(1)

    def test_a_region_is_opened_with_its_schema_version(self) -> None:
        self.regions.close(REGION, 0)
        self.regions.open(Opening(REGION, 0, ME, 1, None, lambda: None, 6, schema_version=4))
        assert self.refused(KvWrite(PLACE, [KvChange("c", b"1")], "w", 1, schema_version=3)) == SCHEMA_CHANGED

    def test_remembered_attempts_are_bounded(self) -> None:
        """ATTEMPTS_MAX: the oldest are forgotten first."""
        self.patch(service_module, "ATTEMPTS_MAX", 2)
        for number in (1, 2, 3):
            self.regions.answer(self.write(number, attempt=1, c="1"))
        assert self.refused(self.write(3, c="1")) == "superseded"
        assert self.refused(self.write(2, c="1")) == "superseded"
        self.regions.answer(self.write(1, c="1"))

    def test_limits_apply_exactly_at_their_bounds(self) -> None:
        """Keys, values, numbers of keys, pages; and a key of another region."""
        longest = "c" * KEY_BYTES_MAX
        assert self.ask(KvRead(PLACE, [longest])) == KvValues([None])
        assert self.ask(KvWrite(PLACE, [KvChange("c", bytes(VALUE_BYTES_MAX))], "w", 1)) == KvWritten(1)
        assert len(self.ask(KvRead(PLACE, ["d"] * KEYS_MAX)).values) == KEYS_MAX
        for request in (
            KvRead(PLACE, [longest + "c"]),
            KvRead(PLACE, []),
            KvRead(PLACE, ["d"] * (KEYS_MAX + 1)),
            KvRead(PLACE, ["c\ud800"]),
            KvWrite(PLACE, [KvChange("c", bytes(VALUE_BYTES_MAX + 1))], "w", 1),
            KvWrite(PLACE, [KvChange("c", bytes(VALUE_BYTES_MAX))] * 4 + [KvChange("c", b"")], "w", 1),
            KvScan(PLACE, rows_max=PAGE_ROWS_MAX + 1),
            KvScan(PLACE, rows_max=0),
        ):
            assert self.refused(request) == "bad_request"
        for key in ("a", "y", "z"):
            assert self.refused(KvRead(PLACE, [key])) == "wrong_region"

    def test_waiting_writes_share_one_commit(self) -> None:
        """Group commit: writes that arrive during a commit are in the next one."""
        answers = [self.regions.answer(self.write(number, c=str(number))) for number in range(10)]
        assert self.pool.run() == 1
        assert [answer.called for answer in answers] == [True] + [False] * 9
        assert self.pool.run() == 1
        assert [self.successResultOf(answer) for answer in answers] == [KvWritten(1)] * 10
        assert self.pool.jobs == []
        assert self.ask(KvRead(PLACE, ["c"])) == KvValues([b"9"])

    def test_reads_do_not_wait_for_writes(self) -> None:
        """Each region has two queues."""
        self.regions.answer(self.write(1, c="1"))
        self.regions.answer(KvRead(PLACE, ["c"]))
        assert len(self.pool.jobs) == 2

    def test_close_turns_away_what_still_waits(self) -> None:
        """No request is carried out for a closed region."""
        answer = self.regions.answer(self.write(1, c="1"))
        self.regions.close(REGION, 0)
        self.pool.run()
        assert self.code_of(answer) == "not_serving"

    def test_a_full_region_refuses_only_what_does_not_fit(self) -> None:
        """Of the writes of one commit, those that fit are done."""
        self.patch(files_module, "REGION_BYTES_MAX", 64 * 1024)
        self.regions._regions_open["r1", 0].file._map_bytes = 64 * 1024
        self.ask(self.write(1, c="1"))
        first = self.regions.answer(self.write(2, d="2"))
        huge = self.regions.answer(KvWrite(PLACE, [KvChange("e", bytes(100_000))], "w", 3))
        small = self.regions.answer(self.write(4, c="9"))
        while self.pool.run():
            pass
        assert self.successResultOf(first) == KvWritten(1)
        assert self.successResultOf(small) == KvWritten(1)
        assert self.code_of(huge) == "region_full"

    # --- snapshots of backups ---

    def snapshot_page(self, held: str = "", start: bytes = b"", *, ends: bool = False) -> SnapshotPage:
        answer = self.regions.answer(KvSnapshot(PLACE, held, start, ends=ends))
        self.pool.run()
        found: SnapshotPage = self.successResultOf(answer)
        return found

    def test_pages_of_one_moment_through_the_service(self) -> None:
        """Requests go on between two pages; the last page ends the snapshot."""
        value = "x" * 200_000
        self.ask(self.write(1, c=value, d=value, e=value))
        first = self.snapshot_page()
        self.ask(self.write(2, c="new", d="new", e="new", f="new"))
        second = self.snapshot_page(first.held, first.next_key)
        rows = [*unpack_rows(first.rows), *unpack_rows(second.rows)]
        assert rows == [(key, value.encode()) for key in (b"c", b"d", b"e")]
        assert (second.held, second.next_key, first.point) == ("", b"", second.point)
        with pytest.raises(RpcError) as caught:
            self.regions.answer(KvSnapshot(PLACE, first.held, b"c"))
        assert caught.value.code == "snapshot_gone"

    def test_a_snapshot_is_released(self) -> None:
        value = "x" * 300_000
        self.ask(self.write(1, c=value, d=value))
        first = self.snapshot_page()
        assert first.held
        self.snapshot_page(first.held, ends=True)
        with pytest.raises(RpcError):
            self.snapshot_page(first.held, first.next_key)
        assert self.clock.getDelayedCalls() == []

    def test_a_snapshot_that_ends_meanwhile_fails_alone(self) -> None:
        """A read of the same batch is answered."""
        value = "x" * 300_000
        self.ask(self.write(1, c=value, d=value))
        first = self.snapshot_page()
        held = self.regions._snapshots.find(first.held)  # type: ignore[union-attr]
        assert held is not None
        blocked = self.regions.answer(KvRead(PLACE, ["d"]))  # the queue is busy: the next two are one batch
        gone = self.regions.answer(KvSnapshot(PLACE, first.held, first.next_key))
        read = self.regions.answer(KvRead(PLACE, ["c"]))
        held.end()
        while self.pool.run():
            pass
        self.successResultOf(blocked)
        assert self.code_of(gone) == "snapshot_gone"
        assert self.successResultOf(read) == KvValues([value.encode()])
        self.snapshot_page(first.held, ends=True)

    def test_a_snapshot_needs_the_lease(self) -> None:
        self.ask(self.write(1, c="1"))
        answer = self.regions.answer(KvSnapshot(PLACE))
        self.has_lease = False
        self.pool.run()
        assert self.code_of(answer) == NO_LEASE


class LaneTests(SynchronousTestCase):
    """The bounds of one queue."""

    def setUp(self) -> None:
        self.pool = HandWorkers()
        self.batches: list[int] = []

        def work(requests: list[int]) -> list[Any]:
            self.batches.append(len(requests))
            return [KvWritten(one) for one in requests]

        self.lane: RequestQueue[int] = RequestQueue(self.pool.submit, work)

    def test_a_commit_is_bounded_in_requests_and_bytes(self) -> None:
        """Requests, and bytes."""
        for number in range(request_queue.BATCH_REQUESTS_MAX + 3):
            self.lane.add(number, 1)
        while self.pool.run():
            pass
        assert self.batches == [1, request_queue.BATCH_REQUESTS_MAX, 2]
        self.batches.clear()
        for number in range(4):
            self.lane.add(number, request_queue.BATCH_BYTES_MAX // 2)
        while self.pool.run():
            pass
        assert self.batches == [1, 2, 1]

    def test_waiting_requests_are_bounded_in_number(self) -> None:
        """Beyond the limit a client must retry later."""
        for number in range(request_queue.WAITING_MAX + 1):
            self.lane.add(number, 1)
        with pytest.raises(RpcError) as caught:
            self.lane.add(0, 1)
        assert caught.value.code == "busy"

    def test_waiting_requests_are_bounded_in_bytes(self) -> None:
        """For any number of requests."""
        self.lane.add(0, 1)
        self.lane.add(1, request_queue.WAITING_BYTES_MAX)
        with pytest.raises(RpcError):
            self.lane.add(2, 1)


def test_threads_are_not_needed_to_import() -> None:
    """A region opener that was never attached has no threads."""
    before = set(threading.enumerate())
    with tempfile.TemporaryDirectory() as folder:
        KvRegions(Path(folder))
    assert not set(threading.enumerate()) - before, "others may end meanwhile"


@pytest.mark.parametrize(("key", "code"), [("0000:n", None), ("0001:n", BAD_REQUEST), ("n", BAD_REQUEST)])
def test_a_key_outside_its_bucket_is_refused(key: str, code: str | None) -> None:
    """A client that does not know the table's buckets must not write rows where no other client searches for them."""
    assert bucket_of("n", 2) == 0
    region = RegionRecord("t", "r1", hash_buckets=2)
    for request in (KvRead(PLACE, [key]), KvWrite(PLACE, [KvChange(key, b"1")], "w", 1)):
        if code is None:
            check_request(request, region)
        else:
            with pytest.raises(RpcError) as caught:
                check_request(request, region)
            assert caught.value.code == code
