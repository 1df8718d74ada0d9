"""Invariants of the replicas on this server, recomputed from first principles.

Every function yields descriptions of violations. `Replicas.validate` calls all of them: after every step of the unit
tests, and after every event of the cluster simulation. They only read, and are too slow for production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from regions.records.model import Incarnation, RegionState
from regions.records.replica_key import replica_key
from regionserver.replica.effects import Effect, Key, OrderFinished
from regionserver.replica.finished_orders import FINISHED_MAX, FinishedOrder
from regionserver.replica.local_replica import LocalReplica
from regionserver.replica.states import HELD, ORDERED, SERVED, STEP_OF, Phase


class Contents(NamedTuple):
    """Everything that `Replicas` holds."""

    me: Incarnation
    replicas: Mapping[Key, LocalReplica]
    finished: Mapping[Key, FinishedOrder]
    counts: Mapping[Phase, int]
    last_number: int
    drops_max: int
    effects: Iterable[Effect]


Invariant = Callable[[Contents], Iterator[str]]

#: The state of the transition as last committed, in the phases where it is certain.
_RECORD_STATE: Final = {
    Phase.OPENING: RegionState.OPENING,
    Phase.ANNOUNCING: RegionState.OPENING,
    Phase.OPEN: RegionState.OPENED,
    Phase.MARKING: RegionState.OPENED,
    Phase.CLOSING: RegionState.CLOSING,
    Phase.STUCK: RegionState.CLOSING,
    Phase.RELEASING: RegionState.CLOSING,
}
#: Phases in which the opener works on the replica, or in which its result is expected. OPENING has a rule of its own.
_WORKED_ON: Final = (Phase.CLOSING, Phase.DROPPING)


def keys(contents: Contents) -> Iterator[str]:
    """Each replica is stored under its own key and has its own region's record."""
    for key, one in contents.replicas.items():
        if one.key != key or one.region.region_id != key[0]:
            yield f"{one} of region {one.region.region_id} is stored under {key[0]}-{key[1]}"


def phases(contents: Contents) -> Iterator[str]:
    """Every replica has a phase, and the counts equal the numbers of replicas in each phase."""
    found = Counter(one.phase for one in contents.replicas.values())
    if None in found:
        yield f"{found[None]} replicas have no phase"
    for phase in Phase:
        if found[phase] != contents.counts[phase]:
            yield f"{found[phase]} replicas are {phase}, but {contents.counts[phase]} are counted"


def holds(contents: Contents) -> Iterator[str]:
    """The opener holds a replica exactly in the phases that require it."""
    for one in contents.replicas.values():
        held = one.is_held()
        if one.phase is not None and HELD.get(one.phase, held) != held:
            yield f"{one} is {one.phase} and {'held' if held else 'not held'} by the opener"


def jobs(contents: Contents) -> Iterator[str]:
    """The opener works exactly in the phases that wait for it."""
    for one in contents.replicas.values():
        is_working = one.job_number != 0
        if one.phase is Phase.OPENING:
            if not one.is_held() and (one.step_number == 0 or one.step is not None):
                yield f"{one} is opening, but neither the opener nor a read of its owner is in progress"
        elif one.phase is Phase.DROPPING and one.drops >= contents.drops_max:
            pass  # the process is stopping
        elif is_working != (one.phase in _WORKED_ON):
            yield f"{one} is {one.phase} with{'' if is_working else 'out'} work of the opener"


def steps(contents: Contents) -> Iterator[str]:
    """The step in progress belongs to the phase, and its result is expected."""
    for one in contents.replicas.values():
        wanted = None if one.phase is None else STEP_OF.get(one.phase)
        if one.step is None:
            if wanted is not None and one.phase is not Phase.OPENING:
                yield f"{one} is {one.phase} without the step {wanted}"
            if one.step_number != 0 and one.phase is not Phase.OPENING:
                yield f"{one} is {one.phase} and expects a result, but no step is in progress"
        elif one.step.cause is not wanted or one.step.key != one.key:
            yield f"{one} is {one.phase} while {one.step.cause} of {one.step.record.key} is in progress"
        elif one.step_number == 0:
            yield f"{one} is {one.phase} with step {wanted} in progress but expects no result"


def numbers(contents: Contents) -> Iterator[str]:
    """Each expected result and each order has a number of its own."""
    awaited: Counter[int] = Counter()
    for one in contents.replicas.values():
        waiting = 0 if one.waiting is None else one.waiting.ticket
        awaited.update(n for n in (one.step_number, one.job_number, one.review_number, one.ticket, waiting) if n)
    for number, count in awaited.items():
        if count > 1:
            yield f"{count} results are expected under number {number}"
        if not 0 < number <= contents.last_number:
            yield f"a result is expected under number {number}, but the last number is {contents.last_number}"
    for effect in contents.effects:
        if isinstance(effect, OrderFinished) and effect.ticket in awaited:
            yield f"the order with ticket {effect.ticket} is finished and still in progress"


def orders(contents: Contents) -> Iterator[str]:
    """An order is in progress exactly in the phases of orders, and no order waits for an open replica."""
    for one in contents.replicas.values():
        if (one.ticket != 0) != (one.phase in ORDERED):
            yield f"{one} is {one.phase} with{'' if one.ticket else 'out'} an order in progress"
        if one.waiting is not None and one.phase is Phase.OPEN:
            yield f"{one} is open, but an order waits"


def transitions(contents: Contents) -> Iterator[str]:
    """The transition as last committed has the phase's state and belongs to the replica."""
    for one in contents.replicas.values():
        wanted = None if one.phase is None else _RECORD_STATE.get(one.phase)
        record = one.record
        if record is not None and (record.region_id, record.replica) != one.key:
            yield f"{one} has the transition of {record.key}"
        if wanted is not None and (record is None or record.state is not wanted):
            yield f"{one} is {one.phase}, but its transition is {'missing' if record is None else record.state}"


def locations(contents: Contents) -> Iterator[str]:
    """A replica that is served or being announced has a location on this server."""
    for one in contents.replicas.values():
        if one.phase not in (*SERVED, Phase.ANNOUNCING):
            continue
        location = one.location
        if location is None or location.incarnation != contents.me or location.replica != one.key[1]:
            yield f"{one} is {one.phase} at {location}, but this server is {contents.me}"


def schemas(contents: Contents) -> Iterator[str]:
    """The opener of an open replica has received the schema version that the server knows."""
    for one in contents.replicas.values():
        if one.schema_passed > one.schema_version or (one.is_open and one.schema_passed < one.schema_version):
            yield f"{one} has schema version {one.schema_version}, but its opener received {one.schema_passed}"


def finished(contents: Contents) -> Iterator[str]:
    """Results of finished orders are limited, belong to replicas that are gone, and are stored under their own key."""
    if len(contents.finished) > FINISHED_MAX:
        yield f"{len(contents.finished)} results are kept; the limit is {FINISHED_MAX}"
    for key, past in contents.finished.items():
        name = replica_key(*key)
        if key in contents.replicas:
            yield f"{name} is on this server, but the result of an earlier order is kept"
        if (past.result.region_id, past.result.replica) != key:
            yield f"the result of an order for {past.result.region_id}-{past.result.replica} is stored under {name}"
        if (past.order_id is None) != (past.hosted is None):
            yield f"the finished order of {name} is neither an open nor a close"


INVARIANTS: Final[tuple[Invariant, ...]] = (
    keys,
    phases,
    holds,
    jobs,
    steps,
    numbers,
    orders,
    transitions,
    locations,
    schemas,
    finished,
)


def violations(contents: Contents) -> list[str]:
    """Return all violations, each with the name of its invariant."""
    return [f"{check.__name__}: {wrong}" for check in INVARIANTS for wrong in check(contents)]
