"""The built-in region opener: key-value regions, served by the region server's RPC.

Every request passes the gate (`Serving.admit`) and waits in one of its region's two queues. Workers execute each
queue in batches. Afterwards the lease is checked once more. A write that completes after the lease has ended is
`FENCED`: it may be in the file, but this server can no longer guarantee it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.rpc.wire import RpcError
from regions.messages.heartbeat import Measure
from regions.records.kinds import KV
from regions.records.model import RegionRecord
from regionserver.kv.files import Environments, RegionFile
from regionserver.kv.heirs import Heirs, middle_of
from regionserver.kv.held import HeldRows, HeldSnapshots, PageRead, read_page
from regionserver.kv.messages import (
    DAMAGED,
    REGION_FULL,
    SUPERSEDED,
    VERIFY_ROWS_MAX,
    KvRead,
    KvRequest,
    KvRows,
    KvScan,
    KvSnapshot,
    KvValues,
    KvVerified,
    KvVerify,
    KvWrite,
    KvWritten,
    RowsPoint,
    SnapshotPage,
    check_request,
    check_schema,
)
from regionserver.kv.metrics import KvMetrics
from regionserver.kv.request_queue import Answer, RequestQueue
from regionserver.kv.snapshot import RowSnapshot
from regionserver.opener import Opening
from regionserver.request_gate import FENCED, NOT_SERVING, Serving
from regionserver.storage.directory import DirectoryOpener
from regionserver.workers import WorkerPool

log = Logger()

#: Threads that read and write regions; they mostly wait for the disk.
THREADS: Final = 8
#: Retried writes whose latest attempt is remembered. Older entries are dropped: no earlier attempt arrives that late.
ATTEMPTS_MAX: Final = 100_000


class HeldReading(msgspec.Struct):
    """A page of a held snapshot that is to be read; `held` None: of a new one."""

    held: Any
    request: KvSnapshot


#: Requests of the read queue.
Reading = KvRead | KvScan | KvVerify | HeldReading


class KvRegions(DirectoryOpener):
    """Key-value regions below the shared directory."""

    kind = KV
    requests = (KvRead, KvWrite, KvScan, KvVerify, KvSnapshot)

    def __init__(self, shared_dir: Path) -> None:
        """Raise ConfigError if regions could not be created in the directory."""
        super().__init__(shared_dir)
        self._environments = Environments()
        self._regions_open: dict[tuple[str, int], _OpenRegion] = {}
        self._attempts: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._serving: Serving | None = None
        self._workers: WorkerPool | None = None
        self._snapshots: HeldSnapshots | None = None

    # --- called by the region server ----------------------------------------------------------------------------------

    def attach(self, serving: Serving) -> None:
        """Start the threads for requests and register the metrics."""
        self._serving = serving
        self._workers = serving.workers(serving.reactor, THREADS, lambda: None, _log_fault)
        self._snapshots = HeldSnapshots(serving.reactor)
        self._metrics = KvMetrics(serving.registry)

    def open(self, opening: Opening) -> None:
        """Lock the directory and check the region's file. Raise OwnerHeld, RegionError or OSError."""
        lock = self.acquire(opening)
        try:
            serving, key = self._serving, (opening.region.region_id, opening.replica)

            def damaged(why: str) -> None:
                if serving is not None:
                    serving.report_damage(*key, why)

            def measured(size: Measure) -> None:
                if serving is not None:
                    serving.report_size(*key, size.rows, size.size_bytes)

            file = RegionFile(lock, self._environments, damaged=damaged, measured=measured)
            if opening.region.parents and not opening.region.location(opening.replica).was_opened:
                file.take_over(opening.region, self.fence_parents(opening), opening.progress)
            file.recover(opening.progress)
        except BaseException:
            super().close(opening.region, opening.replica)
            raise
        self._regions_open[opening.region.region_id, opening.replica] = _OpenRegion(self, file, opening.schema_version)

    def close(self, region: RegionRecord, replica: int) -> None:
        """Reject new requests, wait for those in progress, release the region. Raise RegionError if they take too
        long."""
        found = self._regions_open.get((region.region_id, replica))
        if found is not None:
            found.file.close()
            self._regions_open.pop((region.region_id, replica), None)
            if self._serving is not None:
                self._serving.sizes.forget((region.region_id, replica))
        super().close(region, replica)

    def split_key(self, region: RegionRecord) -> str:
        """Return the key in the middle of a region's bytes. Raise RegionError, RpcError."""
        return middle_of(self._file(region))

    def prepare_daughters(self, parents: Sequence[RegionRecord], daughters: Sequence[RegionRecord]) -> None:
        """Copy the parents' rows into files of the daughters. Raise RegionError, RpcError, OSError."""
        files = [self._file(one) for one in parents]
        heirs = Heirs(files[0].lock.folder, files, [one.region_id for one in parents], daughters)
        for file in files:
            file.set_heirs(heirs)
        try:
            heirs.copy()
        except BaseException:
            heirs.discard("the rows could not be copied")
            raise

    def _file(self, region: RegionRecord) -> RegionFile:
        found = self._regions_open.get((region.region_id, 0))
        if found is None:
            raise RpcError(NOT_SERVING, f"region {region.region_id} is not open here")
        return found.file

    def schema_changed(self, region: RegionRecord, replica: int, schema_version: int) -> None:
        """Refuse rows of earlier schema versions from now on."""
        found = self._regions_open.get((region.region_id, replica))
        if found is not None:
            found.schema_version = max(found.schema_version, schema_version)

    def answer(self, request: msgspec.Struct) -> Deferred[msgspec.Struct]:
        """Answer one of `requests`. Raise RpcError."""
        assert isinstance(request, self.requests), f"unexpected request {request!r}"
        self._metrics.requests.labels(type(request).__name__).inc()
        try:
            answer = self._accept(request)
        except RpcError as error:
            self._metrics.refused.labels(error.code).inc()
            raise
        return answer.addErrback(self._count_rejection)

    def stop(self) -> None:
        """End the snapshots of backups, and stop the threads."""
        if self._snapshots is not None:
            self._snapshots.end_all()
        if self._workers is not None:
            self._workers.stop(1.0)

    # --- inside ---

    def _accept(self, request: KvRequest) -> Deferred[msgspec.Struct]:
        serving = self._serving
        assert serving is not None, "requests before attach"
        place = request.place
        region = serving.admit(place)
        found = self._regions_open.get((place.region_id, place.replica))
        if found is None:
            raise RpcError(NOT_SERVING, f"region {place.region_id} is not open here")
        size = check_request(request, region)
        if isinstance(request, KvSnapshot):
            return self._read_held(request, found)
        if not isinstance(request, KvWrite):
            return found.reads.add(request, size).addCallback(self._still_current)
        found.schema_version = check_schema(request.schema_version, found.schema_version)
        self._check_attempt(request)
        return found.writes.add(request, size).addCallback(self._still_ours)

    def _read_held(self, request: KvSnapshot, region: _OpenRegion) -> Deferred[msgspec.Struct]:
        """Read one page of a held snapshot, or end the snapshot. Raise RpcError."""
        snapshots = self._snapshots
        assert snapshots is not None, "requests before attach"
        if request.ends:
            snapshots.end(request.held)
            return succeed(SnapshotPage(RowsPoint()))

        def settle(read: msgspec.Struct) -> msgspec.Struct:
            assert isinstance(read, PageRead), f"unexpected {read!r}"
            return snapshots.settle(request.held, read)

        reading = HeldReading(snapshots.find(request.held), request)
        return region.reads.add(reading, 0).addCallback(settle).addCallback(self._still_current)

    def _check_attempt(self, request: KvWrite) -> None:
        """Reject an attempt that arrives after a later attempt (see `messages`)."""
        write = (request.writer, request.number)
        latest = self._attempts.get(write, 0)
        if request.attempt < latest:
            raise RpcError(SUPERSEDED, f"attempt {latest} of this write arrived before attempt {request.attempt}")
        if request.attempt:
            self._attempts[write] = request.attempt
            if len(self._attempts) > ATTEMPTS_MAX:
                self._attempts.popitem(last=False)

    def _still_current(self, answer: msgspec.Struct) -> msgspec.Struct:
        """Return the rows if the lease still holds. Then they were the latest rows when they were read."""
        assert self._serving is not None
        self._serving.check_lease()
        return answer

    def _still_ours(self, answer: msgspec.Struct) -> msgspec.Struct:
        assert self._serving is not None
        if not self._serving.holds():
            raise RpcError(FENCED, "the lease ended during the write")
        return answer

    def _count_rejection(self, failure: Failure) -> Failure:
        if isinstance(failure.value, RpcError):
            self._metrics.refused.labels(failure.value.code).inc()
        return failure

    # --- on the workers ---

    def submit(self, work: Any, done: Any) -> None:
        """Run `work` on a worker and call `done` with its result or exception."""
        assert self._workers is not None, "work before attach"
        self._workers.submit(work, done)

    def read_batch(self, file: RegionFile, requests: list[Reading]) -> Sequence[Answer]:
        """Answer reads from one snapshot. Raise RpcError if all of them fail."""
        with file.reading() as snapshot:
            return [_read(snapshot, request) for request in requests]

    def write_batch(self, file: RegionFile, requests: list[KvWrite]) -> Sequence[Answer]:
        """Make all changes in one commit. Raise RpcError if all of them fail."""
        assert self._serving is not None
        began_s = time.perf_counter()
        changes = [(one.key.encode(), one.value) for request in requests for one in request.changes]
        try:
            file.write(changes, self._serving.check_lease)
        except RpcError as error:
            if error.code != REGION_FULL or len(requests) == 1:
                raise
            return [self._write_alone(file, request) for request in requests]
        self._metrics.commits.observe(time.perf_counter() - began_s)
        self._metrics.changes.inc(len(changes))
        return [KvWritten(len(request.changes)) for request in requests]

    def _write_alone(self, file: RegionFile, request: KvWrite) -> Answer:
        """Write one request by itself: in a full region, a request that deletes rows may still succeed."""
        try:
            return self.write_batch(file, [request])[0]
        except RpcError as error:
            return error


class _OpenRegion:
    """One open region: its file, its two queues, and the latest schema version of its table that is known here."""

    def __init__(self, regions: KvRegions, file: RegionFile, schema_version: int) -> None:
        self.file = file
        self.schema_version = schema_version
        self.reads: RequestQueue[Reading] = RequestQueue(regions.submit, lambda some: regions.read_batch(file, some))
        self.writes: RequestQueue[KvWrite] = RequestQueue(regions.submit, lambda some: regions.write_batch(file, some))


def _read(snapshot: RowSnapshot, request: Reading) -> Answer:
    if isinstance(request, HeldReading):
        held: HeldRows | None = request.held
        try:
            return read_page(snapshot, held, request.request.start, request.request.known)
        except RpcError as error:
            if error.code == DAMAGED:
                raise
            return error  # the other requests of the batch go on
    if isinstance(request, KvRead):
        return KvValues(snapshot.values(key.encode() for key in request.keys))
    if isinstance(request, KvVerify):
        found = snapshot.verify(request.start, VERIFY_ROWS_MAX)
        return KvVerified(found.rows, found.size, found.is_checked, found.damaged, found.next_key, found.trouble)
    return KvRows(*snapshot.page(request.start.encode(), request.end.encode(), request.rows_max))


def _log_fault(failure: Failure) -> None:
    log.failure("internal error while answering requests", failure=failure)
