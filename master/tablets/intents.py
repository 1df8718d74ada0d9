"""Intents about members of tablets during one tenure: read, written by compare-and-set, and deleted when they end.

Only the active master writes `/intents`, so it keeps what it has read and written. Each tick compares the intents of a
few tablets with their records, and removes those that have been fulfilled or cannot be any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from twisted.logger import Logger

from coord.client.ops import Create, Delete, SetData, WriteOp
from coord.errors import BadVersion, MultiFailed, NodeExists, NoNode, RetryableError
from master.catalog import store
from master.context import EffectContext
from master.leadership.fence import in_batches
from regions.diagnose.tablets import is_listed
from regions.records.intents import TabletIntents
from regions.records.znodes import CorruptZnode, decode_intents, encode
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import remaining

log = Logger()

#: Attempts of a write whose znode another write changes at the same time.
TRIES_MAX: Final = 5
#: Intents that are looked at in one tick: a millisecond of work.
LOOKS_MAX: Final = 500
#: Tablets with intents. Each costs a look a second, and a znode; plans of more moves begin the others later.
INTENTS_MAX: Final = 20_000

#: Returns the intents of a tablet after a change, from those before.
Change = Callable[[TabletIntents], TabletIntents]


class IntentBook:
    """See the module docstring."""

    def __init__(self, active_master: EffectContext, keeper: Keeper) -> None:
        self._active_master = active_master
        self._keeper = keeper
        #: Tablets that the look under way has not reached.
        self._unseen: deque[str] = deque()
        self._is_ending = False

    @property
    def kept(self) -> Mapping[str, TabletIntents]:
        """The intents by region id, without regions that have none."""
        return self._keeper.policy.intents

    def of(self, table_id: str, region_id: str) -> TabletIntents:
        """Return the intents of a tablet; without any, empty ones."""
        return self.kept.get(region_id) or TabletIntents(table_id, region_id)

    def has_room(self, tablets: int) -> bool:
        """Return True if so many more tablets can have intents now."""
        return len(self.kept) + tablets <= INTENTS_MAX

    def load(self, found: Iterable[TabletIntents]) -> None:
        """Take the intents over that former masters have accepted."""
        for one in found:
            self._keeper.intents_seen(one.region_id, one)

    # --- changes ----------------------------------------------------------------------------------------------------

    async def change(self, changes: Mapping[str, Change], table_ids: Mapping[str, str]) -> None:
        """Change the intents of tablets, by region id, and let the policy act on them. They are durable on return.

        `table_ids`: the table of each region. Raise as a fenced write.
        """
        try:
            for tries in range(1, TRIES_MAX + 1):
                try:
                    await self._write(changes, table_ids)
                    return
                except MultiFailed as error:
                    if tries == TRIES_MAX or not isinstance(error.error, BadVersion | NodeExists | NoNode):
                        raise
        except RetryableError:
            self._active_master.persist(partial(self.read, list(changes)))  # it may have been done
            raise

    async def _write(self, changes: Mapping[str, Change], table_ids: Mapping[str, str]) -> None:
        fence = self._active_master.fence
        paths = {fence.layout.tablet_intents(region_id): region_id for region_id in changes}
        found = {paths[path]: (data, stat) for path, data, stat in await store.read_all(fence.client, list(paths))}
        written: dict[str, TabletIntents] = {}
        ops: list[WriteOp] = []
        for path, region_id in paths.items():
            empty = TabletIntents(table_ids[region_id], region_id)
            former = self._decoded(path, found[region_id][0], empty) if region_id in found else empty
            after = changes[region_id](former)
            written[region_id] = after
            if region_id in found:
                version = found[region_id][1].version
                if after.is_empty:
                    ops.append(Delete(path, version))
                elif after != former:
                    ops.append(SetData(path, encode(after), version))
            elif not after.is_empty:
                ops.append(Create(path, encode(after)))
        for batch in in_batches(ops, fence.acl_bytes):
            await fence.write(batch)
        for region_id, after in written.items():
            self._keeper.intents_seen(region_id, after)
        self._active_master.schedule()

    def _decoded(self, path: str, data: bytes, empty: TabletIntents) -> TabletIntents:
        try:
            return decode_intents(data, path)
        except CorruptZnode as error:
            log.error("the intents of a tablet are damaged, and are replaced: {error}", error=error)
            return self.kept.get(empty.region_id, empty)

    async def read(self, region_ids: Iterable[str]) -> None:
        """Read the intents of tablets again."""
        fence = self._active_master.fence
        wanted = list(region_ids)
        paths = [fence.layout.tablet_intents(one) for one in wanted]
        answer = await store.read_all(fence.client, paths)
        found = {one.region_id: one for one, _ in store.decoded(answer, decode_intents)}
        for region_id in wanted:
            self._keeper.intents_seen(region_id, found.get(region_id))
        self._active_master.schedule()

    # --- the end of intents -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Examine the next tablets, and remove their ended intents."""
        if not self._unseen:
            self._unseen.extend(self.kept)
        ended: dict[str, Change] = {}
        for _ in range(min(LOOKS_MAX, len(self._unseen))):
            region_id = self._unseen.popleft()
            known = self.kept.get(region_id)
            if known is not None and self._left(known) is not known:
                ended[region_id] = self._left
        if ended and not self._is_ending:
            self._is_ending = True
            self._active_master.persist(partial(self._end, ended))

    def _left(self, known: TabletIntents) -> TabletIntents:
        """Return the unfinished intents of a tablet; none if the tablet does not exist any more."""
        tablet = self._keeper.tablets.get(known.region_id)
        if tablet is None or not is_listed(tablet):
            return TabletIntents(known.table_id, known.region_id)
        return remaining(known, tablet.record.members)

    async def _end(self, ended: Mapping[str, Change]) -> None:
        """Write the unfinished intents. Examine the keeper's tablets again, because intents may have been added."""
        tables = {region_id: self.kept[region_id].table_id for region_id in ended if region_id in self.kept}
        try:
            await self.change({one: ended[one] for one in tables}, tables)
        finally:
            self._is_ending = False
