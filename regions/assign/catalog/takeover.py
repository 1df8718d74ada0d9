"""A new active master takes over: it loads the records from the store or from its mirror, then decides about every
replica. Pure.

Each part is an iterator, so that the caller can do a step in each turn: a million regions take seconds. Between two
steps the state is incomplete. Before the last step the caller handles no event and takes no effect. It handles the
changes of that time afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from regions.assign.catalog.schema_rollout import AlterBook
from regions.assign.catalog.updates import CatalogUpdates
from regions.assign.moves import MoveBook
from regions.assign.replacement import Replacements
from regions.assign.resharding.book import Reshardings
from regions.assign.servers import ServerTracker
from regions.cluster import events as ev
from regions.cluster.causes import Causes, replica_of
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord
from regions.records.model import (
    BarRecord,
    FenceRecord,
    MoveBatch,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)

#: Regions or transitions that are loaded in one step, each some 3 us of processor.
LOADED_AT_ONCE: Final = 1_000
#: Replicas that are looked at in one step. A decision takes as long as DECISION_COST looks.
LOOKED_AT_ONCE: Final = 10_000
DECISION_COST: Final = 50

T = TypeVar("T")


def in_steps(items: Iterable[T], act: Callable[[T], object], at_once: int = LOADED_AT_ONCE) -> Iterator[None]:
    """Call `act` for each item. A step ends after `at_once` items."""
    for count, item in enumerate(items, start=1):
        act(item)
        if not count % at_once:
            yield


class TakeOver:
    """The beginning of one tenure. `seen` receives transitions that were read, as the assigner observes them."""

    def __init__(
        self,
        epoch: int,
        world: ClusterState,
        causes: Causes,
        servers: ServerTracker,
        moves: MoveBook,
        alters: AlterBook,
        replacements: Replacements,
        reshardings: Reshardings,
        catalog: CatalogUpdates,
        decide: Callable[[Replica, int], None],
        seen: Callable[[Replica | None, ev.TransitionRead, int], None],
    ) -> None:
        self._epoch = epoch
        self._world = world
        self._causes = causes
        self._servers = servers
        self._moves = moves
        self._alters = alters
        self._replacements = replacements
        self._reshardings = reshardings
        self._catalog = catalog
        self._decide = decide
        self._seen = seen

    def loading(
        self,
        tables: Iterable[tuple[TableRecord, int]],
        regions: Iterable[tuple[RegionRecord, int]],
        servers: Iterable[ServerRecord],
        transitions: Iterable[tuple[TransitionRecord, int]],
        draining: Iterable[str],
        now_ms: int,
        *,
        fences: Iterable[FenceRecord] = (),
        bars: Iterable[BarRecord] = (),
        moves: Iterable[MoveBatch] = (),
        reshardings: Iterable[tuple[ReshardingRecord, int]] = (),
    ) -> Iterator[None]:
        """Load the records that the master has read from the store, without decisions yet (MF-02).

        The caller must have read transitions before regions.
        """
        assert not self._catalog.has_begun, "an assigner loads once"
        self._servers.load(servers, draining, fences, now_ms, bars)
        for table, version in tables:
            self._world.put_table(table, version)
        for count, (region, version) in enumerate(regions, start=1):
            self._world.put_region(region, version)
            if not count % LOADED_AT_ONCE:
                yield

        def read(transition: tuple[TransitionRecord, int]) -> None:
            record, version = transition
            event = ev.TransitionRead(record.key, record, version)
            self._seen(replica_of(event, self._world), event, now_ms)

        yield from in_steps(transitions, read)
        self._accept(moves, reshardings, now_ms)

    def adopting(
        self,
        world: ClusterState,
        servers: Iterable[ServerRecord],
        draining: Iterable[str],
        now_ms: int,
        *,
        fences: Iterable[FenceRecord] = (),
        bars: Iterable[BarRecord] = (),
        moves: Iterable[MoveBatch] = (),
        reshardings: Iterable[tuple[ReshardingRecord, int]] = (),
    ) -> Iterator[None]:
        """Take over a standby's cluster state instead of `loading` (FW-01, `regions/cluster/mirror.py`).

        Deadlines begin again, as after a load: the former master may have extended them.
        """
        assert not self._catalog.has_begun, "an assigner loads once"
        self._world.adopt(world)

        def begin_anew(replica: Replica) -> None:
            replica.seen_ms = now_ms
            replica.origin = None if replica.transition is None else replica.transition.origin
            if replica.transition is not None and replica.transition.destination is not None:
                self._replacements.server_chosen(replica.region, now_ms)

        yield from in_steps(self._world.active.values(), begin_anew)
        self._servers.adopt(servers, draining, fences, now_ms, bars)
        self._accept(moves, reshardings, now_ms)

    def _accept(
        self, moves: Iterable[MoveBatch], reshardings: Iterable[tuple[ReshardingRecord, int]], now_ms: int
    ) -> None:
        for record, version in reshardings:
            self._reshardings.load(record, version, now_ms)
        for batch in moves:
            self._moves.accept(batch, batch.origin or self._causes.current())
        for found in self._world.tables.values():
            self._alters.table_seen(found, -1)

    def beginning(self, now_ms: int, *, startup: bool = False) -> Iterator[None]:
        """Decide about everything that was loaded (MF-03 onwards).

        At a cluster startup no region is open, so one bulk plan places all regions (RT-06).
        """
        assert not self._catalog.has_begun, "an assigner begins once"
        self._catalog.has_begun = True
        self._causes.act_for(None, f"takeover: epoch {self._epoch} begins, {'startup' if startup else 'failover'}")

        def forget_place(replica: Replica) -> None:
            self._moves.drop_all((replica,))
            if replica.open_on is None:
                self._world.set_home(replica, None)

        if startup:
            yield from in_steps(self._world.in_order(), forget_place)
        looks = 0
        for replica in self._world.in_order():
            looks += 1
            if not replica.is_at_rest:
                self._decide(replica, now_ms)
                looks += DECISION_COST
            if looks >= LOOKED_AT_ONCE:
                looks = 0
                yield
        for table in list(self._world.tables.values()):
            self._catalog.finish(table)
        self._reshardings.tick(now_ms)
