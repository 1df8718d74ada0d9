"""Carries out the assigner's effects about splits and merges (`regions/assign/resharding/book.py`).

Every write is a compare-and-set of the work's znode. If the store rejects a write, or a reply is lost, the znode and
the records that it depends on are read again. This shows the outcome of lost writes, and repeating a write is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Create, Delete, SetData, WriteOp
from coord.errors import MultiFailed
from coord.rpc.server import RpcError
from master.catalog import store
from master.context import ReshardingContext
from regions import messages as ms
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.history import RESHARDED
from regions.records.acts.resharding import ReshardingRecord
from regions.records.intents import TabletIntents
from regions.records.model import RegionRecord, TabletState
from regions.records.replica_key import replica_key
from regions.records.znodes import decode_region, decode_resharding, decode_transition, encode
from regions.replication.effects import marked_replaced
from regions.replication.policy.intents import with_move
from regions.transitions.states import Actor, Cause, check

log = Logger()

#: Rejections of a server that will not change: the work is canceled.
_FINAL: Final = (ms.BAD_REQUEST,)


class ReshardingWork:
    """See the module docstring. One per tenure."""

    def __init__(self, active_master: ReshardingContext, failed: Callable[[Failure], None]) -> None:
        """`failed` is called with an unexpected failure of an order."""
        self._active_master = active_master
        self._failed = failed

    def carry_out(self, effect: fx.Effect) -> None:
        """Begin to carry out an effect."""
        match effect:
            case fx.PrepareDaughters():
                ensureDeferred(self._prepare(effect)).addErrback(self._failed)
            case fx.GiveUpDaughters():
                ensureDeferred(self._give_up(effect)).addErrback(self._failed)
            case fx.SealParent():
                ensureDeferred(self._seal(effect)).addErrback(self._failed)
            case fx.AlignParents():
                self._active_master.persist(partial(self._align, effect))
            case fx.RemoveParents():
                ensureDeferred(self._remove(effect)).addErrback(self._failed)
            case fx.WriteResharding():
                self._active_master.persist(partial(self._write, effect))
            case fx.EndResharding():
                self._active_master.persist(partial(self._end, effect))
            case fx.ReplaceParents():
                self._active_master.persist(partial(self._replace, effect))

    # --- orders -------------------------------------------------------------------------------------------------------

    async def _prepare(self, effect: fx.PrepareDaughters) -> None:
        region_id, server = effect.record.region_id, effect.server
        answer = ev.DaughtersPrepared(region_id, server.incarnation)
        try:
            await self._active_master.dispatcher.prepare_rows(effect)
        except RpcError as error:
            log.info("server {server} did not prepare the {what}: {error}", server=server.uuid,
                     what=effect.record.words, error=error)  # fmt: skip
            answer = ev.DaughtersPrepared(region_id, server.incarnation, error.message, error.code in _FINAL)
        self._active_master.handle_soon(answer)

    async def _give_up(self, effect: fx.GiveUpDaughters) -> None:
        try:
            await self._active_master.dispatcher.prepare_rows(effect)
        except RpcError as error:
            log.info("server {server} was not reached to give up the {what}: {error}", server=effect.server.uuid,
                     what=effect.record.words, error=error)  # fmt: skip

    async def _seal(self, effect: fx.SealParent) -> None:
        tablet, server = effect.parent, effect.server
        answer = ev.ParentSealed(effect.record.region_id, tablet, server.incarnation)
        try:
            reply = await self._active_master.dispatcher.seal_tablet(effect)
        except RpcError as error:
            answer = msgspec.structs.replace(answer, error=error.message, is_final=False)
        else:
            answer = _answer_of(reply, answer)
        if answer.error:
            log.info("tablet {tablet} is not sealed: {error}", tablet=tablet, error=answer.error)
        self._active_master.handle_soon(answer)

    async def _align(self, effect: fx.AlignParents) -> None:
        """Have a member of a parent moved, as an operator would. If that fails, the assigner asks again."""
        record, parent, move = effect.record, effect.parent, effect.move
        if self._active_master.assigner.reshardings.find(record.region_id) != record:
            return  # canceled while the connection to the store was lost
        log.info("{what}: the member of {tablet} on {source} moves to {target}", what=record.words, tablet=parent,
                 source=move.source, target=move.target)  # fmt: skip

        def with_one_move(kept: TabletIntents) -> TabletIntents:
            """Return the intents with the move, unless a former write of one has taken long."""
            return kept if kept.moves else with_move(kept, move)

        try:
            await self._active_master.keeper.intents.change({parent: with_one_move}, {parent: record.table_id})
        except MultiFailed as error:
            log.info("{what}: the move is not written yet: {error}", what=record.words, error=error)

    async def _remove(self, effect: fx.RemoveParents) -> None:
        region_id = effect.record.region_id
        answer = ev.ParentsRemoved(region_id)
        try:
            await self._active_master.dispatcher.remove_regions(effect)
        except RpcError as error:
            log.warn("could not remove the files of {regions} on server {server}, trying again: {error}",
                     regions=", ".join(effect.record.parents), server=effect.server.uuid, error=error)  # fmt: skip
            answer = ev.ParentsRemoved(region_id, error.message)
        self._active_master.handle_soon(answer)

    # --- writes -------------------------------------------------------------------------------------------------------

    def _path(self, record: ReshardingRecord) -> str:
        return self._active_master.fence.layout.resharding(record.region_id)

    async def _write(self, effect: fx.WriteResharding) -> None:
        op = SetData(self._path(effect.record), encode(effect.record), effect.version)
        try:
            await self._active_master.fence.write([op])
        except MultiFailed as error:
            await self._read_again(effect.record, error)
            return
        self._active_master.handle_soon(ev.ReshardingSeen(effect.record, effect.version + 1))

    async def _end(self, effect: fx.EndResharding) -> None:
        record = effect.record
        try:
            await self._active_master.fence.write([Delete(self._path(record), effect.version)])
        except MultiFailed as error:
            await self._read_again(record, error)
            return
        self._note(record, effect.outcome)
        self._active_master.handle_soon(ev.ReshardingEnded(record.region_id))

    async def _replace(self, effect: fx.ReplaceParents) -> None:
        record, writer = effect.record, self._active_master.history_writer
        begun = [fx.WriteOffline(one.key, one, None, -1, Cause.ASSIGN, origin=record.origin) for one in effect.begun]
        # A page of either kind also takes the waiting entries, so only one of the two may be asked for.
        assert not (begun and effect.transitions), f"the split of {record.region_id} ends and begins transitions"
        page = writer.page(begun) if begun else writer.page_of_ends(effect.transitions, Cause.REPLACED, record.origin)
        try:
            await writer.write(page, self._ops(effect))
        except MultiFailed as error:
            await self._read_again(record, error)
            return
        self._note(record, f"replaced by {', '.join(one.region_id for one in record.daughters)}")
        event = ev.ParentsReplaced(record, effect.version + 1, effect.table, effect.table_version + 1, effect.begun)
        self._active_master.handle_soon(event)

    def _ops(self, effect: fx.ReplaceParents) -> list[WriteOp]:
        """Return the operations of the one multi in which the key space changes hands."""
        layout, record = self._active_master.fence.layout, effect.record
        ops: list[WriteOp] = []
        for transition, version in effect.transitions:
            check(Actor.MASTER, transition.state, None, Cause.REPLACED, subject=transition.key)
            ops.append(Delete(layout.transition(transition.region_id, transition.replica), version))
        for parent, version in effect.parents:
            ops.append(SetData(layout.region(parent.table_id, parent.region_id), encode(_replaced(parent)), version))
        for daughter in record.daughters:
            ops.append(Create(layout.region(daughter.table_id, daughter.region_id), encode(daughter)))
        for transition in effect.begun:
            check(Actor.MASTER, None, transition.state, Cause.ASSIGN, subject=transition.key)
            ops.append(Create(layout.transition(transition.region_id, transition.replica), encode(transition)))
        ops.append(SetData(layout.table(record.table_id), encode(effect.table), effect.table_version))
        return [*ops, SetData(self._path(record), encode(record), effect.version)]

    def _note(self, record: ReshardingRecord, outcome: str) -> None:
        """Write an entry about the work into the history."""
        text = f"{record.words}: {outcome}"
        self._active_master.history_writer.event(RESHARDED, text, region_id=record.region_id, origin=record.origin)
        log.info("{text}", text=text)

    # --- after a refusal ----------------------------------------------------------------------------------------------

    async def read(self, record: ReshardingRecord) -> None:
        """Read the work and the records that it depends on again."""
        active_master, layout = self._active_master, self._active_master.fence.layout
        client = active_master.fence.client
        await active_master.operations.refresh_table(record.table_id)
        regions = [*record.parents, *(one.region_id for one in record.daughters)]
        paths = [layout.region(record.table_id, one) for one in regions]
        found = store.decoded(await store.read_all(client, paths), decode_region)
        # Pass the record on at once. After another read it could be older than the records that this master has seen
        # meanwhile, and would bring back a replaced region.
        for region, version in found:
            active_master.handle_soon(ev.RegionSeen(region, version))
        for region_id in () if record.seal else record.parents:
            path = layout.transition(region_id, 0)
            moving = store.decoded(await store.read_all(client, [path]), decode_transition)
            transition, version = moving[0] if moving else (None, -1)
            active_master.handle_soon(ev.TransitionRead(replica_key(region_id, 0), transition, version))
        work = store.decoded(await store.read_all(client, [self._path(record)]), decode_resharding)
        if work:
            active_master.handle_soon(ev.ReshardingSeen(*work[0]))
        else:
            active_master.handle_soon(ev.ReshardingEnded(record.region_id))

    async def _read_again(self, record: ReshardingRecord, error: MultiFailed) -> None:
        log.info("{what}: a record has changed, reading it again: {error}", what=record.words, error=error)
        await self.read(record)


def _answer_of(reply: ms.TabletSealed, answer: ev.ParentSealed) -> ev.ParentSealed:
    """Return a leader's reply as the event, which is `answer` with the reply's fields."""
    if reply.answer is ms.SealAnswer.DONE and not reply.members:
        return msgspec.structs.replace(answer, error="its leader has failed since it was sealed", is_final=False)
    if reply.answer is ms.SealAnswer.DONE:
        return msgspec.structs.replace(answer, index=reply.index, members=reply.members, leader=reply.leader)
    is_final = reply.answer is ms.SealAnswer.CANCELED
    why = f"{reply.answer.value}{': ' if reply.why else ''}{reply.why}"
    return msgspec.structs.replace(answer, error=why, is_final=is_final)


def _replaced(parent: RegionRecord) -> RegionRecord:
    """Return the record of a parent that is split or merged. It names no server."""
    if parent.is_tablet:
        return marked_replaced(parent)
    closed = tuple(msgspec.structs.replace(one, start_code=None) for one in parent.replicas)
    return msgspec.structs.replace(parent, state=TabletState.REPLACED, replicas=closed)
