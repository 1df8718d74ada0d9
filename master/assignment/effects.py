"""Carries out the effects of the assigner: writes, orders, reads, plans, and background work on the catalog."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from master.assignment.dispatch import Dispatcher
from master.assignment.transitions import TransitionReader, TransitionWriter
from master.catalog import store
from master.context import EffectContext
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.model import FenceRecord

if TYPE_CHECKING:
    from twisted.python.failure import Failure

log = Logger()


class AssignerEffects:
    """The effects of one tenure. Writes and reads are queued; the caller flushes them after the last effect."""

    def __init__(
        self,
        active_master: EffectContext,
        writer: TransitionWriter,
        reader: TransitionReader,
        dispatcher: Dispatcher,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
    ) -> None:
        self._active_master = active_master
        self._writer = writer
        self._reader = reader
        self._dispatcher = dispatcher
        self._now_ms = now_ms
        self._failed = failed

    def carry_out(self, effects: list[fx.Effect]) -> None:
        """Carry out effects, or begin them in the background. Writes are queued first: they are most of the effects."""
        for effect in self._writer.queue.put_writes(effects):
            self._carry_out(effect)

    def _carry_out(self, effect: fx.Effect) -> None:
        active_master = self._active_master
        match effect:
            case fx.SendOpen() | fx.SendClose():
                self._dispatcher.send(effect)
            case fx.ReadTransition():
                self._reader.changed.put(effect.region_id, effect.replica)
            case fx.RequestPlan():
                ensureDeferred(active_master.bulk_plans.make(effect)).addErrback(self._failed)
            case fx.Note():
                log.warn("{region}: {text} (cause {cause})", region=effect.region_id or "cluster", text=effect.text,
                         cause=", ".join(fx.cause_ids(effect)))  # fmt: skip
            case fx.SendAlter():
                self._dispatcher.send_alter(effect)
            case fx.WriteFence():
                active_master.persist(partial(self._fence_server, effect))
            case fx.ForgetFence():
                path = active_master.fence.layout.fence_mark(effect.uuid)
                active_master.persist(partial(store.delete_if_there, active_master.fence, path))
            case fx.ForgetBar():
                active_master.persist(partial(store.end_bar, active_master.fence, effect.bar))
            case fx.FinishMoves():
                path = active_master.fence.layout.move_batch(effect.move_id)
                active_master.persist(partial(store.delete_if_there, active_master.fence, path))
            case _:
                self._change_catalog(effect)

    def _change_catalog(self, effect: fx.Effect) -> None:
        active_master = self._active_master
        match effect:
            case fx.ReadRegion():
                active_master.persist(partial(active_master.read_region, effect.table_id, effect.region_id))
            case fx.ReadTable():
                active_master.persist(partial(active_master.operations.refresh_table, effect.table_id))
            case fx.FinishTable() if effect.record.is_tablet:
                active_master.keeper.finish(effect)
            case fx.FinishTable():
                active_master.persist(partial(active_master.janitor.finish_table, effect))
            case fx.FinishAltering():
                active_master.persist(partial(active_master.operations.finish_altering, effect))
            case fx.ReplaceRegion():
                active_master.persist(partial(active_master.janitor.replace_region, effect))
            case _:
                active_master.resharding.carry_out(effect)

    async def _fence_server(self, effect: fx.WriteFence) -> None:
        active_master, server = self._active_master, effect.server
        epoch = active_master.fence.epoch
        mark = FenceRecord(server, effect.lease_ms, effect.reason, epoch, self._now_ms(), effect.origin)
        bar = active_master.bar_of(server, effect.reason, effect.bar_ms) if effect.bar_ms else None
        done = await store.fence_server(active_master.fence, mark, bar)
        active_master.handle_soon(ev.ServerFenced(mark) if done else ev.FenceFailed(server.uuid))
