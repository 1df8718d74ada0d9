"""Keeps the history of steps in the store (`regions/history.py` has the form and the bounds).

    a multi of the master's own steps   carries a page with exactly these steps, and all steps of servers seen so far
    no multi for FLUSH_MS               what servers did is written by itself
    now and then                        small segments are merged, the oldest beyond the bounds are deleted

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
from master import catalog
from master.fence import OPS_MAX, Fence
from master.transitions import Write
from regions.history import (
    ENTRIES_MAX,
    EPOCH_BEGINS,
    FLUSH_MS,
    CorruptSegment,
    Entry,
    Segment,
    StepLog,
    entry_found,
    entry_of_write,
    mergeable,
    pack,
    parse_segment,
    surplus,
    unpack,
)
from regions.model import ServerRecord, TransitionRecord
from regions.states import Actor, Cause
from regions.world import World

log = Logger()

#: How often segments are looked after.
TIDY_MS: Final = 5_000


class ChroniclePage:
    """A segment on its way with somebody's multi."""

    def __init__(self, chronicle: Chronicle, segment: Segment, op: WriteOp, seen: list[Entry]) -> None:
        self._chronicle = chronicle
        self._segment = segment
        self._seen = seen
        self.op = op

    def written(self) -> None:
        """The multi has committed."""
        self._chronicle.add(self._segment)

    def refused(self) -> None:
        """Nothing of the multi was done: its own steps were not taken, what servers did is still to be written."""
        self._chronicle.log.put_back(self._seen)

    def lost(self) -> None:
        """Nobody knows whether the multi was done: that it stands in the store, or not, will tell."""
        self._chronicle.doubtful.append(self)

    def unwritable(self, error: OperationError) -> None:
        """The store refused the page itself: transitions are more important than what is told of them."""
        self._chronicle.give_up(error)


class Chronicle:
    """The history during one reign."""

    def __init__(
        self,
        fence: Fence,
        log_: StepLog,
        world: World,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
    ) -> None:
        """`failed` is told of a write whose fate is not known, or that found us deposed."""
        self._fence = fence
        self._layout = fence.layout
        self.log = log_
        self._world = world
        self._now_ms = now_ms
        self._failed = failed
        self._segments: list[Segment] = []
        #: Pages whose multi was not answered, while the reign was out of sight of the store.
        self.doubtful: list[ChroniclePage] = []
        self._number = 0
        self._flushed_ms = 0
        self._tidied_ms = 0
        self._tidying = False
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

    async def begin(self, uuid: str, address: str, found: Sequence[TransitionRecord]) -> None:
        """Take over what is there, and write down who reigns now and what was found in transition."""
        await self._load()
        epoch, now = self._fence.epoch, self._now_ms()
        self.note(Entry(now, "", Actor.MASTER.value, "", "", EPOCH_BEGINS, uuid, epoch, detail=address))
        self.log.unsaved.extend(entry_found(record, epoch, now) for record in found)

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
        self._segments = sorted(one for one in known if one is not None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Write this down with the next page."""
        self.log.unsaved.append(entry)

    def page(self, writes: Sequence[Write]) -> ChroniclePage | None:
        """A page for a multi with these steps; None when there is nothing to write down."""
        now, epoch = self._now_ms(), self._fence.epoch
        own: list[Entry] = []
        for write in writes:
            replica = self._world.replicas.get(write.key)
            entry = None if replica is None else entry_of_write(write, replica, epoch, now)
            if entry is not None:
                own.append(entry)
        return self._page(own)

    def membership(self, server: ServerRecord, cause: str) -> None:
        """A server has registered or is gone."""
        name = f"{server.host}:{server.port}"
        entry = Entry(self._now_ms(), "", Actor.SERVER.value, "", "", cause, server.uuid, self._fence.epoch)
        self.note(msgspec.structs.replace(entry, detail=name))

    def wipe(self, records: Sequence[TransitionRecord]) -> list[WriteOp]:
        """The operation for a multi that deletes these transitions at a cluster startup."""
        now, epoch = self._now_ms(), self._fence.epoch
        page = self._page([entry_found(record, epoch, now, Cause.STARTUP_WIPE.value) for record in records])
        if page is None:
            return []
        page.written()  # this multi is not sent again: if it fails, so does the reign
        return [page.op]

    def _page(self, own: list[Entry]) -> ChroniclePage | None:
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
        return ChroniclePage(self, segment, Create(self._layout.segment(segment.name), data), seen)

    def add(self, segment: Segment) -> None:
        """A segment is in the store."""
        self._segments.append(segment)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write what waits for no multi, and look after the segments; call it a few times a second."""
        if self._closed:
            return
        now = self._now_ms()
        if (self.log.unsaved or self.doubtful) and not self._flushing and now - self._flushed_ms >= FLUSH_MS:
            self._flushing = True
            ensureDeferred(self._flush()).addErrback(self._lost)
        if not self._tidying and now - self._tidied_ms >= TIDY_MS:
            self._tidying = True
            self._tidied_ms = now
            ensureDeferred(self._tidy()).addErrback(self._lost)

    def _lost(self, failure: Failure) -> None:
        if not self._closed:
            self._failed(failure)

    async def _flush(self) -> None:
        try:
            await self._write_seen()
        finally:
            self._flushing = False

    async def _write_seen(self) -> None:
        while self.doubtful:
            page = self.doubtful[0]
            if await self._fence.client.exists(page.op.path) is None:
                page.refused()
            else:
                page.written()
            self.doubtful.remove(page)
        flushed = self._page([])
        if flushed is None:
            return
        try:
            await self._fence.write([flushed.op])
        except RetryableError:
            flushed.lost()
            raise
        except MultiFailed as error:
            self.give_up(error.error)
        else:
            flushed.written()

    async def _tidy(self) -> None:
        try:
            segments = sorted(self._segments)
            gone = surplus(segments)[: OPS_MAX - 1]
            if gone:
                await self._replace(gone, None)
            elif run := mergeable(segments):
                await self._merge(run)
        finally:
            self._tidying = False

    async def _merge(self, run: list[Segment]) -> None:
        """Put small neighbours together: in one multi, so that a reader finds each step once."""
        entries: list[Entry] = []
        paths = [self._layout.segment(one.name) for one in run]
        for path, data, _ in await catalog.read_all(self._fence.client, paths):
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
        left = set(old)
        self._segments = [one for one in self._segments if one not in left]
        if new is not None:
            self._segments.append(new[0])
