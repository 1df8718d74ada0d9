"""Why a table is not at rest: which of its replicas hold it up, who has to act on them, and since when (N6). Pure.

A table is ALTERING until every replica follows its latest schema (DD-07), and has just been made until every region has
been open (DD-03, DD-05); it may also be closing, opening, or deleted and not finished (DD-06). In each case single
replicas are in the way; those that wait for the same thing of the same server are told together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from regions.assign.catalog.schema_rollout import RolloutState, rollout_state
from regions.cluster.entities import Replica, Table
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.explain import explain
from regions.messages import Holdup, NextActor, TableExplanation
from regions.records.kinds import one_copy
from regions.records.model import TableIntent, TableRecord, TableState, TabletState

#: So many replicas are looked at one by one; the others are counted.
LOOKED_AT_MAX: Final = 1_000
#: Groups that a line about a table names.
_NAMED_MAX: Final = 3


class _Wait(NamedTuple):
    """What a replica waits for, and of whom: equal ones are told together."""

    actor: NextActor
    server: str
    text: str


def explain_table(table: Table, world: ClusterState, config: AssignerConfig, now_ms: int) -> TableExplanation:
    """Where the table stands, and what is in the way of its being at rest."""
    astray = list(_not_there(table))
    what = _standing_of(table, astray, world)
    late = [*_behind(table), *astray]
    holdups = _grouped(late[:LOOKED_AT_MAX], world, config, now_ms)
    return TableExplanation(
        table.record,
        what,
        _headline(table, what, len({one.key for one in late})),
        regions=len(table.regions),
        replicas=table.replicas,
        open=table.open_replicas,
        since_ms=_since_ms(table, astray),
        waiting=sorted(holdups, key=lambda one: (-one.replicas, one.text)),
        not_looked_at=max(0, len(late) - LOOKED_AT_MAX),
        way_out=_ways_out(table, holdups),
        notes=_notes(table.record),
    )


def _notes(record: TableRecord) -> list[str]:
    note = one_copy(record.kind, record.replication, record.storage)
    return [note] if note else []


def _standing_of(table: Table, astray: list[Replica], world: ClusterState) -> str:
    """A word for how the table is: its state, or what it is becoming. `astray` are those that are not there."""
    record = table.record
    if record.state is TableState.REMOVED:
        return "DELETED" if record.finished_ms else "BEING DELETED"
    if record.state is TableState.ALTERING:
        return record.state.value
    unborn = [one for one in astray if one.region.record.state is TabletState.PREPARING]
    if unborn and table.wants_open:
        begun = any(one.transition is not None and world.alive(one.transition.destination) for one in unborn)
        return TabletState.CREATING.value if begun else TabletState.PREPARING.value
    if record.intent is TableIntent.DISABLED:
        return "CLOSING" if astray else "DISABLED"
    return "OPENING" if astray else record.state.value


def late_tables(
    world: ClusterState, unplaceable: Iterable[Replica], config: AssignerConfig, now_ms: int
) -> Iterator[str]:
    """A line for each table that has been ALTERING, or being made, for longer than it should: who holds it up."""
    unborn: set[str] = set()
    for replica in (*world.active.values(), *unplaceable):
        region = replica.region
        table_id = region.table.record.table_id
        if table_id not in unborn and region.record.state is TabletState.PREPARING and region.wants_open:
            unborn.add(table_id)
    for table in world.tables.values():
        is_altering = table.record.state is TableState.ALTERING
        if not is_altering and table.record.table_id not in unborn:
            continue
        since_ms = _since_ms(table, _not_there(table))
        if since_ms and now_ms - since_ms >= config.table_late_ms:
            yield _line(explain_table(table, world, config, now_ms), now_ms)


def _line(said: TableExplanation, now_ms: int) -> str:
    named = "; ".join(f"{_count(one.replicas)} {one.text}" for one in said.waiting[:_NAMED_MAX])
    more = f"; and {len(said.waiting) - _NAMED_MAX} more reasons" if len(said.waiting) > _NAMED_MAX else ""
    age_s = (now_ms - said.since_ms) / 1000
    return f"table {said.table.name} has been {said.standing} for {age_s:.0f} s: {named or said.headline}{more}"


# --- which replicas ---------------------------------------------------------------------------------------------------


def _behind(table: Table) -> list[Replica]:
    """Replicas that are not known to follow the latest schema, while that is waited for."""
    if table.record.state is not TableState.ALTERING:
        return []
    return [one for one in table.behind.values() if rollout_state(one) is not RolloutState.CURRENT]


def _not_there(table: Table) -> Iterator[Replica]:
    """Replicas that are not open although they are to be, or the other way round, or on their way."""
    for region in table.regions.values():
        for replica in region.replicas:
            is_open = replica.open_on is not None
            if replica.transition is not None or is_open is not replica.wants_open:
                yield replica


def _since_ms(table: Table, astray: Iterable[Replica]) -> int:
    """Since when, as far as this master saw; 0: it did not."""
    if table.record.state is TableState.ALTERING:
        return table.altering_since_ms
    begun = [one.region.creating_since_ms or one.seen_ms for one in astray]
    return min((one for one in begun if one), default=table.record.created_ms if begun else 0)


# --- in words ---------------------------------------------------------------------------------------------------------


def _grouped(late: Iterable[Replica], world: ClusterState, config: AssignerConfig, now_ms: int) -> list[Holdup]:
    found: dict[_Wait, list[Replica]] = {}
    seen: set[str] = set()
    for replica in late:
        if replica.key not in seen:
            seen.add(replica.key)
            found.setdefault(_wait_of(replica, world, config, now_ms), []).append(replica)
    return [
        Holdup(len(replicas), wait.text, wait.actor, wait.server, replicas[0].region.record.region_id)
        for wait, replicas in found.items()
    ]


def _wait_of(replica: Replica, world: ClusterState, config: AssignerConfig, now_ms: int) -> _Wait:
    version = replica.region.table.record.schema_version
    server = replica.open_on
    if replica.transition is None and server is not None and replica.wants_open and not server.fencing:
        text = f"open on {server.uuid}, which has not said yet that it follows schema version {version}"
        return _Wait(NextActor.SERVER, server.uuid, text)
    said = explain(replica, world, config, now_ms)
    uuid = "" if said.server is None else said.server.uuid
    text = f"{said.standing}: {said.headline}"
    return _Wait(said.actor, uuid, f"{text}; last error: {said.last_error}" if said.last_error else text)


def _headline(table: Table, what: str, late: int) -> str:
    record = table.record
    if what == TableState.ALTERING.value:
        if not late:
            return f"every region follows schema version {record.schema_version}; a master is about to write that down"
        version = record.schema_version
        return f"{late} of {table.replicas} replicas {_are(late)} not known to follow schema version {version}"
    if not late:
        words = {
            "DELETED": "it has been deleted, and all of it is closed",
            "BEING DELETED": "all of it is closed; a master is about to write that down",
            "DISABLED": "it is disabled, and all of it is closed",
        }
        return words.get(what, "all of it is open")
    if what in (TabletState.CREATING.value, TabletState.PREPARING.value):
        has = "has" if late == 1 else "have"
        return f"{late} of {table.replicas} replicas {has} not been opened yet"
    goal = "open" if table.wants_open else "closed"
    return f"{late} of {table.replicas} replicas {_are(late)} not {goal} yet"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _ways_out(table: Table, holdups: list[Holdup]) -> list[str]:
    found = [f"rk why {one.region_id}: one of {_count(one.replicas)}" for one in holdups[:_NAMED_MAX]]
    silent = sorted({one.server for one in holdups if one.actor is NextActor.SERVER})
    if table.record.state is TableState.ALTERING and silent:
        found.append(
            f"rk server fence {silent[0]}: if it hangs, what it has is opened elsewhere, with the latest schema"
        )
    return found


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"
