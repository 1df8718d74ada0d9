"""Writes the history of steps to the store (`regions/cluster/history.py` has the format and the limits).

    a multi of the master's own steps   carries a page with exactly these steps, after the earlier steps of servers
    no multi for FLUSH_MS               a page with the entries that no multi has carried
    every COMPACT_MS                    small segments are merged, and the oldest beyond the limits are deleted

A page and the steps in it are one multi, so the page is in the store if and only if the steps were taken. No step is
recorded twice or missing, even after a lost reply. A page is *open* until its multi's outcome is known. Segments after
an open page are not merged, because the merge would fix their order relative to the open page.

A page is one more znode in a multi of some hundred operations, so an assignment of 10,000 regions costs a few dozen
more creates. Transitions never wait for the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Create, Delete, WriteOp
from coord.errors import MultiFailed, OperationError, RetryableError
from master.assignment.write_queue import Write, entries_of
from master.catalog import store
from master.leadership.fence import OPS_MAX, Fence
from regions.cluster.history import (
    ENTRIES_MAX,
    EPOCH_BEGINS,
    FLUSH_MS,
    STORE_OUTAGE,
    CorruptSegment,
    Segment,
    StepLog,
    mergeable,
    pack,
    parse_segment,
    stamped,
    surplus,
    unpack,
)
from regions.records.model import ServerRecord, TransitionRecord, WorkOrigin
from regions.transitions.entries import DETAIL_MAX, HistoryEntry
from regions.transitions.states import Actor, Cause
from regions.transitions.steps import entries_of_end

log = Logger()

#: Period of merging and deleting segments.
COMPACT_MS: Final = 5_000
#: Ids of the latest requests, so that a repeated request is recorded only once.
REQUESTS_KNOWN: Final = 200


class HistoryPage:
    """A segment that a multi carries. Its methods are called with the outcome of the multi.

    If the store has refused the page itself, `unwritable` is called after `refused`.
    """

    def __init__(self, history_writer: HistoryWriter, segment: Segment, op: WriteOp, seen: list[HistoryEntry]) -> None:
        self._history_writer = history_writer
        self.segment = segment
        self._seen = seen
        self.op = op

    def written(self) -> None:
        """Count the segment: the multi has committed."""
        self._history_writer.finish_page(self, is_there=True)

    def refused(self) -> None:
        """Put the entries back that were not steps of the multi: the store has refused the whole multi."""
        self._history_writer.finish_page(self, is_there=False)
        self._history_writer.log.put_back(self._seen)

    def lost(self) -> None:
        """Keep the page open, because the reply was lost. A read of its znode will show the outcome."""
        self._history_writer.unconfirmed.append(self)

    def unwritable(self, error: OperationError) -> None:
        """Stop writing the history: the store has refused the page itself, and transitions must not wait."""
        self._history_writer.finish_page(self, is_there=False)
        self._history_writer.give_up(error)


class HistoryWriter:
    """Writer of the history during one tenure."""

    def __init__(
        self,
        fence: Fence,
        log_: StepLog,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
    ) -> None:
        """`failed` is called with the failure of a write whose outcome is unknown, or that found a higher epoch."""
        self._fence = fence
        self._layout = fence.layout
        self.log = log_
        self._now_ms = now_ms
        self._failed = failed
        #: Segments that are in the store.
        self._segments: set[Segment] = set()
        #: Segments of the open pages.
        self._open: set[Segment] = set()
        #: Open pages whose multi's reply was lost.
        self.unconfirmed: list[HistoryPage] = []
        #: Ids of requests that are recorded, the latest ones.
        self.recorded: deque[str] = deque(maxlen=REQUESTS_KNOWN)
        self._number = 0
        self._flushed_ms = 0
        self._compacted_ms = 0
        self._compacting = False
        self._flushing = False
        self._closed = False

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> int:
        """Number of segments in the store."""
        return len(self._segments)

    @property
    def steps(self) -> int:
        """Number of entries in the store."""
        return sum(one.entries for one in self._segments)

    @property
    def size(self) -> int:
        """Bytes of all segments in the store."""
        return sum(one.bytes for one in self._segments)

    # --- begin and end of a tenure ------------------------------------------------------------------------------------

    async def begin(self, uuid: str, address: str) -> None:
        """Load the list of segments and record the begin of this tenure."""
        await self._load()
        epoch, now = self._fence.epoch, self._now_ms()
        self.note(HistoryEntry(now, "", Actor.MASTER.value, "", "", EPOCH_BEGINS, uuid, epoch, detail=address))

    def give_up(self, error: OperationError) -> None:
        """Write no more history in this tenure."""
        if not self._closed:
            log.error("no history is written until the next failover, the store has refused a page: {error}",
                      error=error)  # fmt: skip
            self._closed = True

    def close(self) -> None:
        """Stop at the end of the tenure. Unwritten entries stay in the log for this process's next tenure."""
        self._closed = True

    async def _load(self) -> None:
        names = await self._fence.client.children(self._layout.history)
        known = [parse_segment(name) for name in names]
        self._segments = {one for one in known if one is not None}

    # --- writing ------------------------------------------------------------------------------------------------------

    def note(self, entry: HistoryEntry) -> None:
        """Add an entry to the next page."""
        self.log.unsaved.append(entry)

    def page(self, writes: Sequence[Write]) -> HistoryPage | None:
        """Return a page for a multi with these steps, or None if there are no entries to write."""
        now, epoch = self._now_ms(), self._fence.epoch
        return self._page(entries_of(list(writes), epoch, now))

    def page_of_ends(
        self, transitions: Sequence[tuple[TransitionRecord, int]], cause: Cause, origin: WorkOrigin | None = None
    ) -> HistoryPage | None:
        """Return a page for a multi that deletes these transitions at their versions, all for the same cause.

        `origin` None: the deletions belong to the cause that began each transition.
        """
        now, epoch = self._now_ms(), self._fence.epoch
        return self._page([entry for one in transitions for entry in entries_of_end(*one, cause, epoch, now, origin)])

    def membership(self, server: ServerRecord, cause: str) -> None:
        """Record that a server has registered or that its registration has ended."""
        name = f"{server.host}:{server.port}"
        entry = HistoryEntry(self._now_ms(), "", Actor.SERVER.value, "", "", cause, server.uuid, self._fence.epoch)
        self.note(msgspec.structs.replace(entry, detail=name))

    def event(
        self,
        cause: str,
        detail: str,
        *,
        server: str = "",
        region_id: str = "",
        subject: str = "",
        origin: WorkOrigin | None = None,
        at_ms: int | None = None,
    ) -> HistoryEntry:
        """Record an event of the master, such as a request, and return the entry. `at_ms` None: now."""
        entry = HistoryEntry(
            self._now_ms() if at_ms is None else at_ms, "", Actor.MASTER.value, "", "", cause, server,
            self._fence.epoch, reason=region_id, detail=detail, subject=subject,
            cause_id="" if origin is None else origin.cause_id, origin="" if origin is None else origin.text,
        )  # fmt: skip
        self.note(entry)
        return entry

    def outage(self, seconds: float, end: str) -> None:
        """Record that the master had no connection to the store for so long until now, and how this ended."""
        at_ms = self._now_ms() - int(seconds * 1000)
        self.event(STORE_OUTAGE, f"{seconds:.1f} s without a connection to the store; {end}"[:DETAIL_MAX], at_ms=at_ms)

    def withdraw(self, entry: HistoryEntry) -> bool:
        """Remove an entry that no multi has taken yet. Return False if it is too late."""
        try:
            self.log.unsaved.remove(entry)
        except ValueError:
            return False
        return True

    def _page(self, own: list[HistoryEntry]) -> HistoryPage | None:
        if self._closed:
            return None
        seen = self.log.take_unsaved(max(0, ENTRIES_MAX - len(own)))
        if not own and not seen:
            return None
        self._flushed_ms = self._now_ms()
        entries = seen + own
        data = pack(entries)
        segment = Segment(self._fence.epoch, self._number, len(entries), len(data))
        self._number += 1
        self._open.add(segment)
        return HistoryPage(self, segment, Create(self._layout.segment(segment.name), data), seen)

    def finish_page(self, page: HistoryPage, *, is_there: bool) -> None:
        """Close an open page; `is_there` says whether its segment is in the store."""
        self._open.discard(page.segment)
        if is_there:
            self._segments.add(page.segment)

    async def write(self, page: HistoryPage | None, ops: Sequence[WriteOp]) -> None:
        """Perform `ops` and write the page, in one multi. Raise what `Fence.write` raises.

        If the store refuses the page alone, stop writing history and perform `ops` without the page.
        """
        if page is None:
            await self._fence.write(ops)
            return
        try:
            await self._fence.write([*ops, page.op])
        except MultiFailed as error:
            if error.index == len(ops):
                page.unwritable(error.error)
                if ops:
                    await self._fence.write(ops)
                return
            page.refused()
            raise
        except RetryableError:
            page.lost()
            raise
        page.written()

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write entries that no multi has carried, and compact the segments. Called a few times a second."""
        if self._closed:
            return
        now = self._now_ms()
        if (self.log.unsaved or self.unconfirmed) and not self._flushing and now - self._flushed_ms >= FLUSH_MS:
            self._flushing = True
            ensureDeferred(self._flush()).addErrback(self._lost)
        if not self._compacting and now - self._compacted_ms >= COMPACT_MS:
            self._compacting = True
            self._compacted_ms = now
            ensureDeferred(self._compact()).addErrback(self._lost)

    def _lost(self, failure: Failure) -> None:
        if not self._closed:
            self._failed(failure)

    async def _flush(self) -> None:
        try:
            await self._write_seen()
        finally:
            self._flushing = False

    async def _write_seen(self) -> None:
        if self.unconfirmed:
            # The node that this client is connected to now may lag behind the node that received the write.
            await self._fence.client.sync(self._layout.history)
        while self.unconfirmed:
            page = self.unconfirmed[0]
            stat = await self._fence.client.exists(page.op.path)
            if stat is None:
                # Reads are not fenced. A successor may have merged the segment into another one: the entries are there.
                await self._fence.verify()
            self.unconfirmed.remove(page)
            if stat is None:
                page.refused()
            else:
                page.written()
        if self.log.unsaved:
            await self.write(self._page([]), [])

    async def _compact(self) -> None:
        try:
            segments = self._in_order()
            gone = surplus(segments)[: OPS_MAX - 1]
            if gone:
                await self._replace(gone, None)
            elif run := mergeable(segments):
                await self._merge(run)
        finally:
            self._compacting = False

    def _in_order(self) -> list[Segment]:
        """Return the segments before the first open page, in order."""
        first = min(self._open, default=None)
        return sorted(one for one in self._segments if first is None or one < first)

    async def _merge(self, run: list[Segment]) -> None:
        """Merge small adjacent segments in one multi, so that a reader finds each step once."""
        entries: list[HistoryEntry] = []
        paths = [self._layout.segment(one.name) for one in run]
        for path, data, stat in await store.read_all(self._fence.client, paths):
            try:
                entries += stamped(unpack(data), stat.czxid)
            except CorruptSegment as error:
                log.error("dropping history segment {path}, which is damaged: {error}", path=path, error=error)
        data = pack(entries)
        merged = Segment(run[0].epoch, run[0].number, len(entries), len(data))
        await self._replace(run, (merged, data))

    async def _replace(self, old: list[Segment], new: tuple[Segment, bytes] | None) -> None:
        ops: list[WriteOp] = [Delete(self._layout.segment(one.name)) for one in old]
        if new is not None:
            ops.append(Create(self._layout.segment(new[0].name), new[1]))
        try:
            await self._fence.write(ops)
        except MultiFailed as error:
            # For example, an operator has deleted a segment. Load the list of segments again.
            log.warn("could not compact the history, its segments were changed: {error}", error=error)
            await self._load()
            return
        self._segments.difference_update(old)
        if new is not None:
            self._segments.add(new[0])
