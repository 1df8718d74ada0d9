"""Has the replicas of deleted tables deleted on all servers, once their grace period is over (DD-06).

The regions of a deleted table are not in memory when a master takes over, and neither are their transitions: the
former master may have died before it deleted the last ones. So both are read for the purge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from coord.client.session import ZkClient
from master.catalog import store
from regions.records.model import RegionRecord
from regions.records.znodes import Layout, decode_table
from regions.replication.keeper import Keeper


class TabletPurges:
    """The purges of one tenure."""

    def __init__(
        self, client: ZkClient, layout: Layout, keeper: Keeper, regions: deque[tuple[RegionRecord, int]]
    ) -> None:
        """`regions` are passed to the keeper in the next turns."""
        self._client = client
        self._layout = layout
        self._keeper = keeper
        self._regions = regions
        #: Tables whose regions have all been read, with a note whether their transitions are read as well.
        self._read: dict[str, bool] = {}

    async def purge(self, table_id: str, schedule: Callable[[], None], have_all_reported: Callable[[], bool]) -> int:
        """Have the replicas of a table deleted whose purge has begun. Return how much is left: replicas that live
        servers report, and transitions that have not ended. A replica may be gone before its server writes CLOSED.

        A server that is away deletes its replicas when it reports them, and no transition waits for such a server.
        """
        path = self._layout.table(table_id)
        for table, version in store.decoded(await store.read_all(self._client, [path]), decode_table):
            self._keeper.table_seen(table, version)
        if table_id not in self._read:  # some may be known because a server has reported a replica
            self._regions.extend(await store.load_regions(self._client, self._layout, table_id))
            self._read[table_id] = False
        elif not self._regions and not self._read[table_id]:
            self._keeper.read_transitions(table_id)
            self._read[table_id] = True
        schedule()
        tablets = [one for one in self._keeper.tablets.values() if one.record.table_id == table_id]
        left = sum(len(one.view.replicas) + one.is_at_work for one in tablets)
        is_read = self._read[table_id] and not self._regions
        return left if is_read and have_all_reported() else max(left, 1)

    def purged(self, table_id: str) -> None:
        """Forget a table whose rows are removed."""
        self._read.pop(table_id, None)
        self._keeper.forget_table(table_id)
