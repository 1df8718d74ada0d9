"""Keeps the history of steps in the store (`regions/cluster/history.py` has the form and the bounds).

    a multi of the master's own steps   carries a page with exactly these steps, and the steps of servers before them
    no multi for FLUSH_MS               entries that are no steps are written by themselves
    now and then                        small segments are merged, the oldest beyond the bounds are deleted

A page is in the store exactly if the steps in it were taken, because both are one multi. So a step is never told twice
and never left out, also when the answer to its multi was lost. Such a page is *open* until the store has been asked.
Nothing behind an open page is merged: the merged segment would take a place before or behind it for good.

One page is one more znode per multi of some hundred, so an assignment of ten thousand regions costs a few dozen more
creates. Nothing here waits for an answer before the transitions go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Create, Delete, WriteOp
from coord.errors import MultiFailed, OperationError, RetryableError
from master.assignment.transitions import Write
from master.catalog import store
from master.leadership.fence import OPS_MAX, Fence
from regions.cluster.history import (
    ENTRIES_MAX,
    EPOCH_BEGINS,
    FLUSH_MS,
    CorruptSegment,
    HistoryEntry,
    Segment,
    StepLog,
    entries_of_end,
    entries_of_write,
    mergeable,
    pack,
    parse_segment,
    surplus,
    unpack,
)
from regions.records.model import ServerRecord, TransitionRecord, WorkOrigin
from regions.transitions.states import Actor, Cause

log = Logger()

#: How often segments are looked after.
COMPACT_MS: Final = 5_000


class HistoryPage:
    """A segment that is on its way with a multi. Its methods say what became of the multi."""

    def __init__(self, history_writer: HistoryWriter, segment: Segment, op: WriteOp, seen: list[HistoryEntry]) -> None:
        self._history_writer = history_writer
        self.segment = segment
        self._seen = seen
        self.op = op

    def written(self) -> None:
        """Count the segment: the multi has committed."""
        self._history_writer.finish_page(self, is_there=True)

    def refused(self) -> None:
        """Put back what was no step of the refused multi: nothing of the multi was done."""
        self._history_writer.finish_page(self, is_there=False)
        self._history_writer.log.put_back(self._seen)

    def lost(self) -> None:
        """Keep the page open: nobody knows whether the multi was done. Its znode, or none, will tell."""
        self._history_writer.unconfirmed.append(self)

    def unwritable(self, error: OperationError) -> None:
        """Go on without a history: the store refused the page itself, and transitions are more important."""
        self._history_writer.finish_page(self, is_there=False)
        self._history_writer.give_up(error)


class HistoryWriter:
    """The history during one reign."""

    def __init__(
        self,
        fence: Fence,
        log_: StepLog,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
    ) -> None:
        """`failed` is told of a write whose fate is not known, or that found us deposed."""
        self._fence = fence
        self._layout = fence.layout
        self.log = log_
        self._now_ms = now_ms
        self._failed = failed
        #: Segments that are known to be in the store.
        self._segments: set[Segment] = set()
        #: Pages without an answer.
        self._open: set[Segment] = set()
        #: Those of them whose answer was lost.
        self.unconfirmed: list[HistoryPage] = []
        self._number = 0
        self._flushed_ms = 0
        self._compacted_ms = 0
        self._compacting = False
        self._flushing = False
        self._closed = False

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> int:
        """Segments in the store."""
        return len(self._segments)

    @property
    def steps(self) -> int:
        """Entries in the store."""
        return sum(one.entries for one in self._segments)

    @property
    def size(self) -> int:
        """Their bytes in the store."""
        return sum(one.bytes for one in self._segments)

    # --- a reign begins and ends --------------------------------------------------------------------------------------

    async def begin(self, uuid: str, address: str) -> None:
        """Take over what is there, and write down who reigns now."""
        await self._load()
        epoch, now = self._fence.epoch, self._now_ms()
        self.note(HistoryEntry(now, "", Actor.MASTER.value, "", "", EPOCH_BEGINS, uuid, epoch, detail=address))

    def give_up(self, error: OperationError) -> None:
        """Write nothing down any more in this reign."""
        if not self._closed:
            log.error("no history is kept until the next master: {error}", error=error)
            self._closed = True

    def close(self) -> None:
        """The reign is over; what is not written yet stays in the log for this master's next reign."""
        self._closed = True

    async def _load(self) -> None:
        names = await self._fence.client.children(self._layout.history)
        known = [parse_segment(name) for name in names]
        self._segments = {one for one in known if one is not None}

    # --- writing ------------------------------------------------------------------------------------------------------

    def note(self, entry: HistoryEntry) -> None:
        """Write this down with the next page."""
        self.log.unsaved.append(entry)

    def page(self, writes: Sequence[Write]) -> HistoryPage | None:
        """Return a page for a multi with these steps; None when there is nothing to write down."""
        now, epoch = self._now_ms(), self._fence.epoch
        return self._page([entry for write in writes for entry in entries_of_write(write, epoch, now)])

    def page_of_ends(
        self, transitions: Sequence[tuple[TransitionRecord, int]], cause: Cause, origin: WorkOrigin | None = None
    ) -> HistoryPage | None:
        """Return a page for a multi that deletes these transitions at their versions, for the same cause.

        `origin` None: the deletions are part of the work that began the transitions.
        """
        now, epoch = self._now_ms(), self._fence.epoch
        return self._page([entry for one in transitions for entry in entries_of_end(*one, cause, epoch, now, origin)])

    def membership(self, server: ServerRecord, cause: str) -> None:
        """A server has registered or is gone."""
        name = f"{server.host}:{server.port}"
        entry = HistoryEntry(self._now_ms(), "", Actor.SERVER.value, "", "", cause, server.uuid, self._fence.epoch)
        self.note(msgspec.structs.replace(entry, detail=name))

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
        """Book the end of an open page."""
        self._open.discard(page.segment)
        if is_there:
            self._segments.add(page.segment)

    async def write(self, page: HistoryPage | None, ops: Sequence[WriteOp]) -> None:
        """Do `ops` and write the page, in one multi. Raises what `Fence.write` raises.

        Without history if the store refuses the page alone: then the error is handled here and `ops` are done.
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
        """Write what waits for no multi, and look after the segments; call it a few times a second."""
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
            # The node that answers now may be behind the one that took the write.
            await self._fence.client.sync(self._layout.history)
        while self.unconfirmed:
            page = self.unconfirmed[0]
            stat = await self._fence.client.exists(page.op.path)
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
        """Put small neighbours together: in one multi, so that a reader finds each step once."""
        entries: list[HistoryEntry] = []
        paths = [self._layout.segment(one.name) for one in run]
        for path, data, _ in await store.read_all(self._fence.client, paths):
            try:
                entries += unpack(data)
            except CorruptSegment as error:
                log.error("{path} is no part of the history any more: {error}", path=path, error=error)
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
            # Somebody deleted a segment by hand, say: what is there counts.
            log.warn("the history is not as it was written: {error}", error=error)
            await self._load()
            return
        self._segments.difference_update(old)
        if new is not None:
            self._segments.add(new[0])
