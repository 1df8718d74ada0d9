"""Explains why a table of tablets is not at rest: its tablets by health, each with an example and a remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from regions.diagnose.tablets import HealthSince, TabletWatch
from regions.messages import Holdup, NextActor, TableExplanation
from regions.messages.tablets import TabletHealth
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.model import TableIntent, TableRecord, TableState
from regions.replication.keeper import Keeper

#: The process that must act on a tablet of each health that is not at rest, the most urgent first.
_ACTORS: Final = {
    TabletHealth.UNAVAILABLE: NextActor.OPERATOR,
    TabletHealth.CONSENSUS_MISMATCH: NextActor.OPERATOR,
    TabletHealth.UNDER_REPLICATED: NextActor.OPERATOR,
    TabletHealth.UNKNOWN: NextActor.SERVER,
    TabletHealth.RECOVERING: NextActor.SERVER,
    TabletHealth.CREATING: NextActor.MASTER,
}


def explain_watched(record: TableRecord, watch: TabletWatch, now_ms: int) -> TableExplanation:
    """Return the explanation of a table that the active master watches."""
    watch.look(now_ms)
    mine = (one.region_id for one in watch.keeper.tablets.values() if one.record.table_id == record.table_id)
    standings = {region_id: watch.standing(region_id) for region_id in mine if region_id in watch.listed}
    return explain_tablets(record, standings, watch.keeper)


def explain_tablets(record: TableRecord, standings: Mapping[str, HealthSince], keeper: Keeper) -> TableExplanation:
    """Return how many tablets of a table are not HEALTHY, and why. `standings` are those of all its tablets."""
    by_health: dict[TabletHealth, list[str]] = {}
    for region_id in sorted(standings):
        by_health.setdefault(standings[region_id].judgment.health, []).append(region_id)
    bad = {health: by_health[health] for health in _ACTORS if health in by_health}
    # The replicas of a split tablet run until its daughters have replicas, but serve no client.
    tablets = [
        one for one in keeper.tablets.values() if one.record.table_id == record.table_id and not one.record.is_replaced
    ]
    return TableExplanation(
        record,
        _standing(record, bad),
        _headline(record, len(standings), bad),
        regions=len(standings),
        replicas=sum(len(one.record.members) for one in tablets),
        open=sum(len(one.view.takes_part) for one in tablets),
        since_ms=min((standings[one].since_ms for ids in bad.values() for one in ids), default=0),
        waiting=[_holdup(health, ids, standings) for health, ids in bad.items()],
        way_out=_ways_out(record, bad),
    )


def explain_split(work: ReshardingRecord) -> str:
    """Return what a split or merge under way waits for, and how the tablets and their daughters are served until
    then."""
    if work.state is ReshardingState.PREPARING:
        where = "on the same servers, " if work.is_merge else ""
        return f"the {work.words} is PREPARING: it waits until all members are {where}healthy, and none changes"
    if work.state is ReshardingState.CLOSING and work.is_merge:
        return f"the {work.words} is CLOSING: the leaders are asked to seal the tablets; until then each is served"
    if work.state is ReshardingState.CLOSING:
        return f"the {work.words} is CLOSING: the leader is asked to seal the tablet; until then it is served"
    daughters, parents = (" and ".join(ids) for ids in ([one.region_id for one in work.daughters], work.parents))
    are_led = "is led and all its" if work.is_merge else "are led and all their"
    can_be = "it cannot be split or merged" if work.is_merge else "neither can be split or merged"
    return (
        f"the {work.words} is CLEANING: the replicas of {parents} stay until {daughters} {are_led} members are made,"
        f" but for those on servers that are gone for 5 minutes, and for 30 s at least; until then {can_be} again"
    )


def _standing(record: TableRecord, bad: Mapping[TabletHealth, list[str]]) -> str:
    if record.state is TableState.REMOVED:
        return "DELETED" if record.finished_ms else "BEING DELETED"
    if record.intent is TableIntent.DISABLED:
        return "DISABLED"
    return next((health.value for health in bad), record.state.value)


def _headline(record: TableRecord, count: int, bad: Mapping[TabletHealth, list[str]]) -> str:
    if record.state is TableState.REMOVED:
        return "it has been deleted"
    if record.intent is TableIntent.DISABLED:
        return "it is disabled: its replicas rest with their files"
    found = sum(len(ids) for ids in bad.values())
    if not found:
        return f"all {count} tablets are HEALTHY" if count else "it has no tablets yet"
    return f"{found} of {count} tablets {'is' if found == 1 else 'are'} not HEALTHY"


def _holdup(health: TabletHealth, ids: list[str], standings: Mapping[str, HealthSince]) -> Holdup:
    example = f"{ids[0]}: " if len(ids) > 1 else ""
    text = f"{health.value}: {example}{standings[ids[0]].judgment.reason}"
    return Holdup(len(ids), text, _ACTORS[health], region_id=ids[0])


def _ways_out(record: TableRecord, bad: Mapping[TabletHealth, list[str]]) -> list[str]:
    found = [f"rk why {ids[0]}: one of {_count(ids)} {health.value}" for health, ids in bad.items()]
    if bad:
        found.append(f"rk tablet list --table {record.name}: all of them")
    return found


def _count(ids: Iterable[str]) -> str:
    number = len(list(ids))
    return "1 tablet" if number == 1 else f"{number} tablets"
