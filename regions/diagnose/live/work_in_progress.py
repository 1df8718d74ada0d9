"""One pass over all replicas with work: finds problems, and regions that are not served. Pure.

There may be a million of them. So the pass is one loop without calls per replica, it keeps only the replicas that the
answers name, and the module is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from regions.cluster.entities import Replica
from regions.records.model import RegionState, TableIntent, TableState, TabletState

#: Replicas that a list names at most. The others are only counted.
NAMED_MAX: Final = 1_000


class LateTable:
    """A table with regions that have never been open, and what it waits for."""

    __slots__ = ("since_ms", "waiting")

    def __init__(self) -> None:
        #: Since when the table has waited, as far as this master has observed; 0 if unknown.
        self.since_ms = 0
        #: The first NAMED_MAX replicas that it waits for.
        self.waiting: list[Replica] = []


class WorkInProgress:
    """Findings of `look` among the given replicas."""

    __slots__ = ("closing", "creating", "named", "parked", "trying", "waiting")

    def __init__(self) -> None:
        #: Replicas that should be open and are not, and how many of them are parked.
        self.waiting = 0
        self.parked = 0
        #: The replica to name: it has a transition, is not parked, and has the most failed opens; of equal ones the
        #: oldest.
        self.trying: Replica | None = None
        #: The first NAMED_MAX parked replicas, and the first that are closing or ordered to close.
        self.named: list[Replica] = []
        self.closing: list[Replica] = []
        #: Tables with regions that have never been open, by id.
        self.creating: dict[str, LateTable] = {}


def look(active: Iterable[Replica], unplaceable: Iterable[Replica]) -> WorkInProgress:
    """Look at the replicas with a transition or an order, and at those without an eligible server."""
    found = WorkInProgress()
    _look_at_active(active, found)
    for replica in unplaceable:
        if replica.region.record.state is TabletState.PREPARING and replica.region.wants_open:
            _is_created(replica, found)
    return found


def _look_at_active(active: Iterable[Replica], found: WorkInProgress) -> None:
    trying: Replica | None = None
    attempts, since_ms = -1, 0
    for replica in active:
        transition = replica.transition
        if transition is None:
            order = replica.order
            if order is not None and order.first_sent_ms and len(found.closing) < NAMED_MAX:
                found.closing.append(replica)
            continue
        parked = transition.parked
        if parked:
            if len(found.named) < NAMED_MAX:
                found.named.append(replica)
        elif transition.state is RegionState.CLOSING and len(found.closing) < NAMED_MAX:
            found.closing.append(replica)
        region = replica.region
        record = region.table.record
        if record.intent != TableIntent.ENABLED or region.record.unassigned:
            continue
        if record.state is not TableState.RUNNING and record.state is not TableState.ALTERING:
            continue
        if replica.open_on is None:
            found.waiting += 1
            if parked:
                found.parked += 1
            else:
                began_ms = transition.since_ms or replica.seen_ms
                attempt = transition.attempt
                if attempt > attempts or (attempt == attempts and began_ms < since_ms):
                    trying, attempts, since_ms = replica, attempt, began_ms
        if region.record.state is TabletState.PREPARING:
            _is_created(replica, found)
    found.trying = trying


def _is_created(replica: Replica, found: WorkInProgress) -> None:
    region = replica.region
    table_id = region.record.table_id
    late = found.creating.get(table_id)
    if late is None:
        late = found.creating[table_id] = LateTable()
    began_ms = region.creating_since_ms or replica.seen_ms
    if began_ms and (began_ms < late.since_ms or not late.since_ms):
        late.since_ms = began_ms
    if len(late.waiting) < NAMED_MAX:
        late.waiting.append(replica)
