"""Writes and reads of the `/unassigned` znodes. All transitions of a master go through this module.

Tablets' records are written here, too, because the multi that begins a tablet contains transitions.

Writes are batched into fenced multis, with several multis in flight. If the store rejects a multi because of one
operation, the others are resent in two halves, so one lost race does not delay 500 regions. A watch event only names
the znode that has changed. The changed znodes are read many at a time.

A write that depends on a table's record also checks the record's version, once per multi and table. If this check
fails, all writes that depend on that version are reported as failed.

All requests use one session, so replies arrive in the order of the store's operations: a reply never carries older
state than an earlier reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Delete, GetData, ReadOp, WriteOp
from coord.client.session import ZkClient
from coord.errors import MultiFailed, OperationError
from master.assignment.write_queue import Outcome, WaitingWrite, Write, WriteQueue, checks_of, outcomes
from master.catalog import store
from master.leadership.fence import OPS_MAX, Fence
from regions.cluster import events as ev
from regions.cluster.reads.answers import answers
from regions.cluster.reads.changed import ChangedTransitions
from regions.cluster.state import ClusterState
from regions.records.model import RegionState, TransitionRecord
from regions.records.znodes import Layout
from regions.transitions.states import Actor, check

log = Logger()

#: Limit of the multis in flight.
IN_FLIGHT_MAX: Final = 8
#: A partly filled multi is sent only while fewer multis than this are in flight.
EAGER_BELOW: Final = 2
#: Znodes in one multi-read.
READS_MAX: Final = 250
READS_IN_FLIGHT_MAX: Final = 4


class Page(Protocol):
    """A page of the history in a multi: its operation, and methods that are called with the outcome of the multi."""

    op: WriteOp

    def written(self) -> None: ...

    def refused(self) -> None: ...

    def unwritable(self, error: OperationError) -> None: ...

    def lost(self) -> None: ...


class Journal(Protocol):
    """The recorder of steps (`master/assignment/history_writer.py`)."""

    def page(self, writes: Sequence[Write]) -> Page | None: ...


class TransitionWriter:
    """Carries out WriteOffline and DeleteTransition, and for tablets BeginTablet and WriteRegion.

    `done(outcomes)` is called with the writes of a multi that has committed, or with writes that the store has refused,
    and `batch_done()` after each reply. `failed(failure)` is called for a multi whose outcome is unknown, or that found
    a higher epoch, and for an exception in one of these callbacks. Writes with an unknown outcome are kept until
    `fail_unknown` reports them as refused, so that the assigner reads the znodes.
    """

    def __init__(
        self,
        fence: Fence,
        done: Callable[[list[Outcome]], None],
        batch_done: Callable[[], None],
        failed: Callable[[Failure], None],
        journal: Journal | None = None,
    ) -> None:
        """`journal` records the steps in the same multi."""
        self._fence = fence
        self._journal = journal
        self._done = done
        self._batch_done = batch_done
        self._failed = failed
        #: Writes, and batches of refused multis, that wait to be sent.
        self.queue = WriteQueue(fence.layout, fence.acl_bytes)
        self.retries: deque[list[WaitingWrite]] = deque()
        self._unknown: list[WaitingWrite] = []
        self._in_flight = 0
        self._closed = False
        self.multis = 0
        self.refused = 0

    @property
    def is_idle(self) -> bool:
        """True if no write is queued, in flight, or of unknown outcome."""
        return not self.queue.waiting and not self.retries and not self._unknown and self._in_flight == 0

    @property
    def has_room(self) -> bool:
        """True while less than two full multis wait to be sent."""
        return len(self.queue.waiting) < 2 * OPS_MAX

    def put(self, effect: Write) -> None:
        """Queue a write. Raise InvalidTransition for a step that is not in the table of transitions."""
        self.queue.put(effect)

    def flush(self) -> None:
        """Send queued writes, up to IN_FLIGHT_MAX multis."""
        while self.retries and self._in_flight < IN_FLIGHT_MAX:
            self._send(self.retries.popleft())
        while self.queue.waiting and self._in_flight < IN_FLIGHT_MAX:
            if len(self.queue.waiting) < OPS_MAX and self._in_flight >= EAGER_BELOW:
                return  # a partly filled multi waits for more writes
            self._send(self.queue.take())

    def fail_unknown(self) -> None:
        """Report writes whose reply was lost as refused, so that their znodes are read. Called on reconnection."""
        unknown, self._unknown = self._unknown, []
        self._refused(unknown)

    def close(self) -> None:
        """Stop sending and reporting writes."""
        self._closed = True
        self.queue.clear()
        self.retries.clear()
        self._unknown.clear()

    def _send(self, batch: list[WaitingWrite]) -> None:
        self._in_flight += 1
        self.multis += 1
        ops = self.queue.operations(batch)
        page = None if self._journal is None else self._journal.page([item.effect for item in batch])
        if page is not None:
            ops.append(page.op)
        sent = self._fence.send(ops)
        sent.addCallbacks(self._committed, self._not_committed, (batch, page), {}, (batch, page))
        sent.addErrback(self._failed)

    def _committed(self, results: list[Any], batch: list[WaitingWrite], page: Page | None) -> None:
        self._in_flight -= 1
        if self._closed:
            return
        if page is not None:
            page.written()
        self._done(outcomes(batch, results))
        if self.queue.waiting or self.retries:
            self.flush()
        self._batch_done()

    def _not_committed(self, failure: Failure, batch: list[WaitingWrite], page: Page | None) -> None:
        self._in_flight -= 1
        if self._closed:
            return
        error = failure.value
        if not isinstance(error, MultiFailed):
            self._unknown.extend(batch)
            if page is not None:
                page.lost()
            self._failed(failure)
            return
        self.refused += 1
        if page is not None:
            page.refused()
        rest = self._without_refused(batch, error, page)
        half = (len(rest) + 1) // 2
        self.retries.extend(part for part in (rest[:half], rest[half:]) if part)
        self.flush()
        self._batch_done()

    def _without_refused(self, batch: list[WaitingWrite], error: MultiFailed, page: Page | None) -> list[WaitingWrite]:
        """Report the items that the store refused, and return the other items to be sent again."""
        checks = checks_of(batch)
        if 0 <= error.index < len(checks):
            check = checks[error.index]
            self._refused([item for item in batch if item.check == check], check[1])
            return [item for item in batch if item.check != check]
        at = len(checks)
        for number, item in enumerate(batch):
            at += len(item.ops)
            if error.index < at:
                self._refused([item])
                return batch[:number] + batch[number + 1 :]
        assert page is not None, f"operation {error.index} of {at} failed"
        page.unwritable(error.error)
        return batch

    def _refused(self, batch: list[WaitingWrite], table_version: int | None = None) -> None:
        """Report writes as refused, because of the version of their table's record if `table_version` is given."""
        if batch:
            self._done([(item.effect, ev.WriteFailed(item.effect.key, table_version)) for item in batch])


class TransitionReader:
    """Reads transitions that may have changed, many at a time.

    `seen(events)` is called with the transitions of each reply, in the order of the replies; then `batch_done()`;
    `failed(failure)` when a read has failed, or after an exception in one of the others.
    """

    def __init__(
        self,
        fence: Fence,
        seen: Callable[[list[ev.TransitionRead]], None],
        batch_done: Callable[[], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._client = fence.client
        self._layout = fence.layout
        self._seen = seen
        self._batch_done = batch_done
        self._failed = failed
        #: Queue of transitions to read. The caller adds to it, then calls `flush`.
        self.changed = ChangedTransitions()
        self._in_flight = 0
        self._closed = False
        self.reads = 0

    def flush(self) -> None:
        """Send queued reads. A partly filled read waits while another read is in flight."""
        changed = self.changed
        while changed.queued and self._in_flight < READS_IN_FLIGHT_MAX:
            if self._in_flight and len(changed.queued) < READS_MAX:
                return
            keys = changed.take(READS_MAX)
            self._in_flight += 1
            self.reads += 1
            paths = [self._layout.transition_of(key) for key in keys]
            reads: list[ReadOp] = [GetData(path) for path in paths]
            answer = self._client.multi_read(reads)
            answer.addCallbacks(self._answered, self._not_answered, (keys, paths), {}, (keys,))
            answer.addErrback(self._failed)

    def close(self) -> None:
        """Stop reading and reporting."""
        self._closed = True
        self.changed.clear()

    def _answered(self, results: list[Any], keys: list[str], paths: list[str]) -> None:
        self._in_flight -= 1
        if self._closed:
            return
        events, troubles = answers(keys, paths, results)
        for trouble in troubles:
            log.error("a transition cannot be read: {trouble}", trouble=trouble)
        self._seen(events)
        if self.changed.queued:
            self.flush()
        self._batch_done()

    def _not_answered(self, failure: Failure, keys: list[str]) -> None:
        self._in_flight -= 1
        if not self._closed:
            for key in keys:
                self.changed.put_key(key)
            self._failed(failure)


def wipe_ops(layout: Layout, transitions: list[tuple[TransitionRecord, int]]) -> list[WriteOp]:
    """Return the deletes of all transitions at a cluster startup (RT-04), at their versions (X8)."""
    ops: list[WriteOp] = []
    for record, version in transitions:
        check(Actor.MASTER, RegionState(record.state), None, subject=record.key)
        ops.append(Delete(layout.transition(record.region_id, record.replica), version))
    return ops


async def read_missed_changes(client: ZkClient, layout: Layout, world: ClusterState) -> list[ev.Event]:
    """Read transitions, tables and moves again after missed events, and return them as events.

    These reads also show the outcome of this master's writes whose replies were lost. The registry reads servers,
    drains, fences and bars again itself. Region records need no read: servers write them together with OPENED, and a
    request whose reply was lost reads its record again.
    """
    transitions = await store.load_transitions(client, layout)
    tables = await store.load_tables(client, layout)
    fresh = [one for one, _ in tables if one.table_id not in world.tables and not one.finished_ms]
    regions = {one.table_id: await store.load_regions(client, layout, one.table_id) for one in fresh}
    moves = await store.load_moves(client, layout)
    events: list[ev.Event] = []
    for table, version in tables:
        known = world.tables.get(table.table_id)
        if known is None and table.table_id in regions:
            events.append(ev.TableSeen(table, version, regions[table.table_id]))
        elif known is not None and known.version != version:
            events.append(ev.TableSeen(table, version))
    for record, version in transitions:
        events.append(ev.TransitionRead(record.key, record, version))
    present = {record.key for record, _ in transitions}
    for replica in world.rit():
        if replica.key not in present:
            events.append(ev.TransitionRead(replica.key, None, -1))
    events.extend(ev.MovesAccepted(batch) for batch in moves)
    for found, version in await store.load_reshardings(client, layout):
        events.append(ev.ReshardingSeen(found, version))
    return events
