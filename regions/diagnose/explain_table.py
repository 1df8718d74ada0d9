"""Explains why a table is not at rest: which replicas it waits for, who must act on them, and since when (N6). Pure.

A table is ALTERING until every replica has the latest schema (DD-07), and new until every region has been open (DD-03,
DD-05). It may also be closing, opening, or deleted and not finished (DD-06). In each case it waits for some of its
replicas. Replicas that wait for the same step of the same server are grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from regions.assign.catalog.schema_rollout import RolloutState, rollout_state
from regions.assign.resharding.automatic import limits_words, pause_of
from regions.cluster.entities import Replica, Table
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.explain import explain
from regions.diagnose.live.work_in_progress import WorkInProgress
from regions.messages import Holdup, NextActor, TableExplanation
from regions.records.kinds import one_copy
from regions.records.model import TableIntent, TableState, TabletState

#: Replicas that are examined one by one. The others are only counted.
EXAMINED_MAX: Final = 1_000
#: Groups that a line about a table names.
_NAMED_MAX: Final = 3


class _Wait(NamedTuple):
    """The step and the server that a replica waits for. Replicas with equal waits are grouped."""

    actor: NextActor
    server: str
    text: str


def explain_table(
    table: Table,
    world: ClusterState,
    config: AssignerConfig,
    now_ms: int,
    unfinished: list[Replica] | None = None,
) -> TableExplanation:
    """Return the table's state and the replicas that it waits for. `unfinished` None: they are looked for."""
    if unfinished is None:
        unfinished = list(_unfinished(table))
    what = _state_of(table, unfinished, world)
    late = [*_behind(table), *unfinished]
    holdups = _grouped(late[:EXAMINED_MAX], world, config, now_ms)
    return TableExplanation(
        table.record,
        what,
        _headline(table, what, len({one.key for one in late})),
        regions=len(table.regions),
        replicas=table.replicas,
        open=table.open_replicas,
        since_ms=_since_ms(table, unfinished),
        waiting=sorted(holdups, key=lambda one: (-one.replicas, one.text)),
        not_looked_at=max(0, len(late) - EXAMINED_MAX),
        way_out=_ways_out(table, holdups),
        notes=notes_on(table, world),
    )


def notes_on(table: Table, world: ClusterState) -> list[str]:
    """Return further facts about a table: copies of its rows, limits of sizes, and splits under way."""
    record = table.record
    note = one_copy(record.kind, record.replication, record.storage)
    notes = [note] if note else []
    if record.split_above or record.merge_below:
        pause = pause_of(world)
        notes.append(f"{limits_words(record)}{f'; not now: {pause}' if pause else ''}")
    works = {region.resharding: region_id for region_id, region in table.regions.items() if region.resharding}
    if works:
        parent, region_id = min(works.items())
        count = "a split or merge is" if len(works) == 1 else f"{len(works)} splits and merges are"
        notes.append(f"{count} under way, such as that of {parent}: rk why {region_id}")
    return notes


def _state_of(table: Table, unfinished: list[Replica], world: ClusterState) -> str:
    """Return the table's state, or the state that it is changing to: `unfinished` replicas have not reached it."""
    record = table.record
    if record.state is TableState.REMOVED:
        return "DELETED" if record.finished_ms else "BEING DELETED"
    if record.state is TableState.ALTERING:
        return record.state.value
    creating = [one for one in unfinished if one.region.record.state is TabletState.PREPARING]
    if creating and table.wants_open:
        begun = any(one.transition is not None and world.alive(one.transition.destination) for one in creating)
        return TabletState.CREATING.value if begun else TabletState.PREPARING.value
    if record.intent is TableIntent.DISABLED:
        return "CLOSING" if unfinished else "DISABLED"
    return "OPENING" if unfinished else record.state.value


def late_tables(world: ClusterState, work: WorkInProgress, config: AssignerConfig, now_ms: int) -> Iterator[str]:
    """Yield a line for each table that has been ALTERING or new for too long, with what it waits for."""
    for table in world.tables.values():
        if table.record.state is TableState.ALTERING:
            waiting: list[Replica] = []
            since_ms = table.altering_since_ms
        else:
            late = work.creating.get(table.record.table_id)
            # A young table waits for nothing that is late.
            if late is None or now_ms - table.record.created_ms < config.table_late_ms:
                continue
            waiting = late.waiting
            since_ms = late.since_ms or table.record.created_ms
        if since_ms and now_ms - since_ms >= config.table_late_ms:
            yield _line(explain_table(table, world, config, now_ms, waiting), now_ms - since_ms)


def _line(found: TableExplanation, age_ms: int) -> str:
    named = "; ".join(f"{_count(one.replicas)} {one.text}" for one in found.waiting[:_NAMED_MAX])
    more = f"; and {len(found.waiting) - _NAMED_MAX} more reasons" if len(found.waiting) > _NAMED_MAX else ""
    return (
        f"table {found.table.name} has been {found.standing} for {age_ms / 1000:.0f} s: {named or found.headline}{more}"
    )


# --- which replicas ---------------------------------------------------------------------------------------------------


def _behind(table: Table) -> list[Replica]:
    """Return the replicas of an ALTERING table that are not known to have the latest schema."""
    if table.record.state is not TableState.ALTERING:
        return []
    return [one for one in table.behind.values() if rollout_state(one) is not RolloutState.CURRENT]


def _unfinished(table: Table) -> Iterator[Replica]:
    """Yield the replicas that are in transition, closed although they should be open, or the reverse."""
    for region in table.regions.values():
        for replica in region.replicas:
            is_open = replica.open_on is not None
            if replica.transition is not None or is_open is not replica.wants_open:
                yield replica


def _since_ms(table: Table, unfinished: Iterable[Replica]) -> int:
    """Return since when the table has waited, as far as this master has observed; 0 if unknown."""
    if table.record.state is TableState.ALTERING:
        return table.altering_since_ms
    begun = [one.region.creating_since_ms or one.seen_ms for one in unfinished]
    return min((one for one in begun if one), default=table.record.created_ms if begun else 0)


# --- texts ------------------------------------------------------------------------------------------------------------


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
        text = f"open on {server.uuid}, which has not confirmed schema version {version} yet"
        return _Wait(NextActor.SERVER, server.uuid, text)
    found = explain(replica, world, config, now_ms)
    uuid = "" if found.server is None else found.server.uuid
    text = f"{found.standing}: {found.headline}"
    return _Wait(found.actor, uuid, f"{text}; last error: {found.last_error}" if found.last_error else text)


def _headline(table: Table, what: str, late: int) -> str:
    record = table.record
    if what == TableState.ALTERING.value:
        if not late:
            return f"all replicas have schema version {record.schema_version}; the active master will record that"
        version = record.schema_version
        return f"{late} of {table.replicas} replicas {_have(late)} not confirmed schema version {version}"
    if not late:
        words = {
            "DELETED": "it has been deleted, and all replicas are closed",
            "BEING DELETED": "all replicas are closed; the active master will record that",
            "DISABLED": "it is disabled, and all replicas are closed",
        }
        return words.get(what, "all replicas are open")
    if what in (TabletState.CREATING.value, TabletState.PREPARING.value):
        return f"{late} of {table.replicas} replicas {_have(late)} not been opened yet"
    goal = "open" if table.wants_open else "closed"
    return f"{late} of {table.replicas} replicas {_are(late)} not {goal} yet"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _ways_out(table: Table, holdups: list[Holdup]) -> list[str]:
    found = [f"rk why {one.region_id}: one of {_count(one.replicas)}" for one in holdups[:_NAMED_MAX]]
    silent = sorted({one.server for one in holdups if one.actor is NextActor.SERVER})
    if table.record.state is TableState.ALTERING and silent:
        found.append(
            f"rk server fence {silent[0]}: if it hangs; its regions open on other servers, with the latest schema"
        )
    return found


def _count(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"
