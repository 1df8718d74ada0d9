"""The `/unassigned` znodes: the only place where a master writes and reads transitions.

Writes are gathered into fenced multis, several on their way at a time. A multi that is refused because of one of its
operations is sent again without it, in halves, so one lost race never holds up five hundred regions. Watch events only
say which znode to look at; the znodes are read many at a time.

Writes whose legality depends on a table's record check the record's version: once per multi and table, however many
regions of the table the multi has. If a table's check is refused, all writes that named that version are reported.

Everything goes through one session, so answers come in the order in which the store worked: whatever is applied when
its answer arrives leaves the picture no older than it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Check, Create, Delete, GetData, ReadOp, SetData, WriteOp
from coord.client.session import ZkClient
from coord.errors import MultiFailed, NoNode, OperationError
from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED, Stat
from master.catalog import store
from master.leadership.fence import BYTES_MAX, OPS_MAX, Fence, weight
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.records.model import RegionState, TransitionRecord
from regions.records.znodes import CorruptZnode, Layout, decode_transition, encode
from regions.transitions.states import RESTS_ON_MEMBERS, Actor, IllegalStep, check

log = Logger()

#: Multis on their way at a time; a partly filled one is sent only while fewer than the second figure are.
IN_FLIGHT_MAX: Final = 8
EAGER_BELOW: Final = 2
#: A transition whose server has probably begun to open is read after so long, unless OPENED comes before.
OPENING_UNREAD_MS: Final = 1_500
#: Znodes in one multi-read.
READS_MAX: Final = 250
READS_IN_FLIGHT_MAX: Final = 4

Write = fx.WriteOffline | fx.DeleteTransition


class Page(Protocol):
    """Steps to be written down with a multi: the operation, and what is told of its fate if that is known."""

    op: WriteOp

    def written(self) -> None: ...

    def refused(self) -> None: ...

    def unwritable(self, error: OperationError) -> None: ...

    def lost(self) -> None: ...


class Journal(Protocol):
    """Whoever writes steps down (`master/assignment/history_writer.py`)."""

    def page(self, writes: Sequence[Write]) -> Page | None: ...


class _Item:
    """One effect and the operations that carry it out; the first is the transition's own.

    `check` (table id, version) is shared by the items of a multi that need the same.
    """

    __slots__ = ("bytes", "check", "effect", "ops")

    def __init__(self, effect: Write, ops: list[WriteOp]) -> None:
        self.effect = effect
        self.ops = ops
        self.check = effect.table_check
        self.bytes = sum(weight(op) for op in ops)


def _checks(batch: list[_Item]) -> list[tuple[str, int]]:
    """Return the checks that a multi of these items begins with, each once."""
    return list(dict.fromkeys(item.check for item in batch if item.check is not None))


def _check_members(effect: Write) -> None:
    """Raise InvalidTransition for a step that rests on a record which has the member, or names no record."""
    if effect.cause not in RESTS_ON_MEMBERS:
        return
    number = effect.record.replica if isinstance(effect, fx.WriteOffline) else effect.replica
    if effect.without_member is None or effect.without_member[0].member(number) is not None:
        after = RegionState.OFFLINE if isinstance(effect, fx.WriteOffline) else None
        raise IllegalStep(Actor.MASTER, effect.before, after, effect.cause, f"member {effect.key}")


class TransitionWriter:
    """Carries out WriteOffline and DeleteTransition.

    `done(effect, event)` is called for each with WriteDone or WriteFailed, and `batch_done()` after the last one of an
    answer; `failed(failure)` for a multi whose fate is not known or that found us deposed. Writes of unknown fate are
    kept until `fail_unknown`: they count as refused, which makes the assigner look what is there.
    """

    def __init__(
        self,
        fence: Fence,
        done: Callable[[Write, ev.WriteDone | ev.WriteFailed], None],
        batch_done: Callable[[], None],
        failed: Callable[[Failure], None],
        journal: Journal | None = None,
    ) -> None:
        """`journal` writes the steps down in the multi that takes them."""
        self._fence = fence
        self._journal = journal
        self._layout = fence.layout
        self._done = done
        self._batch_done = batch_done
        self._failed = failed
        self._waiting: deque[_Item] = deque()
        self._retries: deque[list[_Item]] = deque()
        self._unknown: list[_Item] = []
        self._in_flight = 0
        self._closed = False
        self.multis = 0
        self.refused = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing is on its way."""
        return not self._waiting and not self._retries and not self._unknown and self._in_flight == 0

    def put(self, effect: Write) -> None:
        """Queue a write. Raise InvalidTransition for a step that is not in the table."""
        after = effect.record.state if isinstance(effect, fx.WriteOffline) else None
        check(Actor.MASTER, effect.before, after, effect.cause, subject=effect.key)
        _check_members(effect)
        self._waiting.append(_Item(effect, self._ops(effect)))

    def flush(self) -> None:
        """Send what may be sent now."""
        while self._retries and self._in_flight < IN_FLIGHT_MAX:
            self._send(self._retries.popleft())
        while self._waiting and self._in_flight < IN_FLIGHT_MAX:
            batch = self._next_batch()
            if not batch:
                return
            self._send(batch)

    def fail_unknown(self) -> None:
        """The store is in sight again: report the writes whose answer was lost as refused, so that they are read."""
        unknown, self._unknown = self._unknown, []
        for item in unknown:
            self._done(item.effect, ev.WriteFailed(item.effect.key))

    def close(self) -> None:
        """Send and report nothing any more."""
        self._closed = True
        self._waiting.clear()
        self._retries.clear()
        self._unknown.clear()

    def _ops(self, effect: Write) -> list[WriteOp]:
        if isinstance(effect, fx.WriteOffline):
            record = effect.record
            path = self._layout.transition(record.region_id, record.replica)
            data = encode(record)
            if effect.before is None:
                return [Create(path, data)]
            return [SetData(path, data, effect.version), *self._without_member(effect)]
        ops: list[WriteOp] = [Delete(self._layout.transition(effect.region_id, effect.replica), effect.version)]
        if effect.region is not None:
            path = self._layout.region(effect.region.table_id, effect.region_id)
            ops.append(SetData(path, encode(effect.region), effect.region_version))
        return [*ops, *self._without_member(effect)]

    def _without_member(self, effect: Write) -> list[WriteOp]:
        """Return the check of the record that a step rests on, if its cause rests on one."""
        if effect.without_member is None:
            return []
        record, version = effect.without_member
        return [Check(self._layout.region(record.table_id, record.region_id), version)]

    def _next_batch(self) -> list[_Item]:
        """The next run of items; empty when a part of a batch had better wait for company."""
        if len(self._waiting) < OPS_MAX and self._in_flight >= EAGER_BELOW:
            return []
        batch: list[_Item] = []
        checks: set[tuple[str, int]] = set()
        ops = size = 0
        while self._waiting:
            item = self._waiting[0]
            item_ops, item_bytes = len(item.ops), item.bytes
            if item.check is not None and item.check not in checks:
                item_ops += 1
                item_bytes += weight(self._check(item.check))
            if batch and (ops + item_ops > OPS_MAX or size + item_bytes > BYTES_MAX):
                break
            batch.append(self._waiting.popleft())
            if item.check is not None:
                checks.add(item.check)
            ops += item_ops
            size += item_bytes
        return batch

    def _check(self, check: tuple[str, int]) -> Check:
        table_id, version = check
        return Check(self._layout.table(table_id), version)

    def _send(self, batch: list[_Item]) -> None:
        self._in_flight += 1
        self.multis += 1
        ops: list[WriteOp] = [self._check(one) for one in _checks(batch)]
        ops += [op for item in batch for op in item.ops]
        page = None if self._journal is None else self._journal.page([item.effect for item in batch])
        if page is not None:
            ops.append(page.op)
        self._fence.send(ops).addCallbacks(self._committed, self._not_committed, (batch, page), {}, (batch, page))

    def _committed(self, results: list[Any], batch: list[_Item], page: Page | None) -> None:
        self._in_flight -= 1
        if self._closed:
            return
        if page is not None:
            page.written()
        at = len(_checks(batch))
        for item in batch:
            first = results[at]
            at += len(item.ops)
            version = first.version if isinstance(first, Stat) else 0
            self._done(item.effect, ev.WriteDone(item.effect.key, version))
        self.flush()
        self._batch_done()

    def _not_committed(self, failure: Failure, batch: list[_Item], page: Page | None) -> None:
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
        self._retries.extend(part for part in (rest[:half], rest[half:]) if part)
        self.flush()
        self._batch_done()

    def _without_refused(self, batch: list[_Item], error: MultiFailed, page: Page | None) -> list[_Item]:
        """Report the items because of which a multi was refused; return the others, to be sent again."""
        checks = _checks(batch)
        if 0 <= error.index < len(checks):
            check = checks[error.index]
            for item in batch:
                if item.check == check:
                    self._done(item.effect, ev.WriteFailed(item.effect.key, check[1]))
            return [item for item in batch if item.check != check]
        at = len(checks)
        for number, item in enumerate(batch):
            at += len(item.ops)
            if error.index < at:
                self._done(item.effect, ev.WriteFailed(item.effect.key))
                return batch[:number] + batch[number + 1 :]
        assert page is not None, f"operation {error.index} of {at} failed"
        page.unwritable(error.error)
        return batch


class TransitionReader:
    """Reads transitions that may have changed, many at a time, and reports what it finds.

    `seen(event)` is called for each, in the order of the store's answers, `batch_done()` after each answer,
    `failed(failure)` when an answer did not come.
    """

    def __init__(
        self,
        fence: Fence,
        seen: Callable[[ev.TransitionRead], None],
        batch_done: Callable[[], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._client = fence.client
        self._layout = fence.layout
        self._seen = seen
        self._batch_done = batch_done
        self._failed = failed
        self._dirty: dict[tuple[str, int], None] = {}
        #: Read only if nothing else is heard of them: key -> when, in insertion order, which is the order of time.
        self._later: dict[tuple[str, int], int] = {}
        self._in_flight = 0
        self._closed = False
        self.reads = 0

    def put(self, region_id: str, replica: int) -> None:
        """Queue a transition to be read."""
        key = (region_id, replica)
        self._later.pop(key, None)
        self._dirty[key] = None

    def put_later(self, region_id: str, replica: int, when_ms: int) -> bool:
        """Queue a transition to be read at `when_ms` unless it is read before; False if it waits already."""
        key = (region_id, replica)
        if key in self._later or key in self._dirty:
            return False
        self._later[key] = when_ms
        return True

    def due(self, now_ms: int) -> None:
        """Queue those whose time has come."""
        for key, when_ms in list(self._later.items()):
            if when_ms > now_ms:
                return
            self.put(*key)

    def flush(self) -> None:
        """Send what may be sent now; a partly filled read waits while another is on its way."""
        while self._dirty and self._in_flight < READS_IN_FLIGHT_MAX:
            if self._in_flight and len(self._dirty) < READS_MAX:
                return
            keys = list(self._dirty)[:READS_MAX]
            for key in keys:
                del self._dirty[key]
            self._in_flight += 1
            self.reads += 1
            reads: list[ReadOp] = [GetData(self._layout.transition(*key)) for key in keys]
            self._client.multi_read(reads).addCallbacks(self._answered, self._not_answered, (keys,), {}, (keys,))

    def close(self) -> None:
        """Read and report nothing any more."""
        self._closed = True
        self._dirty.clear()
        self._later.clear()

    def _answered(self, results: list[Any], keys: list[tuple[str, int]]) -> None:
        self._in_flight -= 1
        if self._closed:
            return
        for (region_id, replica), result in zip(keys, results, strict=True):
            if isinstance(result, NoNode):
                self._seen(ev.TransitionRead(region_id, replica, None, -1))
            elif isinstance(result, OperationError):
                log.error("transition {path} cannot be read: {error}", path=result.path, error=result)
            else:
                self._report(region_id, replica, result[0], result[1])
        self.flush()
        self._batch_done()

    def _report(self, region_id: str, replica: int, data: bytes, stat: Stat) -> None:
        try:
            record = decode_transition(data, self._layout.transition(region_id, replica))
        except CorruptZnode as error:
            log.error("transition left alone: {error}", error=error)
            return
        self._seen(ev.TransitionRead(region_id, replica, record, stat.version))

    def _not_answered(self, failure: Failure, keys: list[tuple[str, int]]) -> None:
        self._in_flight -= 1
        if not self._closed:
            self._dirty.update(dict.fromkeys(keys))
            self._failed(failure)


def is_own_write(replica: Replica, event_type: int) -> bool:
    """Return whether a watch event of the transition reports the write that is on its way for `replica`."""
    if replica.write is None:
        return False
    if replica.transition is None:
        return event_type == EVENT_CREATED
    return event_type == (EVENT_DELETED if replica.write.record is None else EVENT_DATA_CHANGED)


def is_only_begun(replica: Replica) -> bool:
    """Return whether a change of the transition's data can only be the server's first step, OFFLINE to OPENING."""
    transition = replica.transition
    if transition is None or transition.state is not RegionState.OFFLINE or replica.is_writing:
        return False
    if replica.failure is not None:  # the next step waits for what the znode says
        return False
    return replica.order is not None and replica.order.first_sent_ms > 0


def wipe_ops(layout: Layout, transitions: list[tuple[TransitionRecord, int]]) -> list[WriteOp]:
    """Deletes for a cluster startup's wipe (RT-04, X8): by version, legal for every state, repeatable."""
    ops: list[WriteOp] = []
    for record, version in transitions:
        check(Actor.MASTER, RegionState(record.state), None, subject=record.key)
        ops.append(Delete(layout.transition(record.region_id, record.replica), version))
    return ops


async def read_missed_changes(client: ZkClient, layout: Layout, world: ClusterState) -> list[ev.Event]:
    """Read what others write, and what the outcome of our own writes may be: transitions, tables, moves.

    Servers and marks have watches of their own that look again by themselves. Regions' records need no look: servers
    write them together with OPENED, and whoever lost an answer of ours reads the record again.
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
        events.append(ev.TransitionRead(record.region_id, record.replica, record, version))
    present = {record.key for record, _ in transitions}
    for replica in world.rit():
        if replica.key not in present:
            events.append(ev.TransitionRead(replica.region.record.region_id, replica.number, None, -1))
    events.extend(ev.MovesAccepted(batch) for batch in moves)
    return events
