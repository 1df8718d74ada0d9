"""Effects of the loss of servers on tablets, and checks that their members were replaced correctly. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from cli.common import output
from cli.common.errors import CliError
from cli.drill.load import LoadOperation
from cli.drill.report import ForecastOutcome, InvariantCheck, check
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord

SERVED: Final = "the other servers serve tablets"
LOST: Final = "tablets are without a majority"


class Loss(NamedTuple):
    """Tablets by the effect of a loss of servers on them. `hit`: the tablets with a member there, served or lost."""

    served: frozenset[str]
    lost: frozenset[str]
    hit: frozenset[str]


def voters(record: RegionRecord) -> list[Member]:
    """Return the members that vote."""
    return [one for one in record.members if one.role is MemberRole.VOTER]


def loss_of(tablets: Mapping[str, RegionRecord], gone: Collection[str]) -> Loss:
    """Return which tablets keep a majority of their voters when the servers `gone` are gone."""
    served = {
        name
        for name, record in tablets.items()
        if 2 * sum(one.uuid not in gone for one in voters(record)) > len(voters(record))
    }
    hit = {name for name, record in tablets.items() if any(one.uuid in gone for one in record.members)}
    return Loss(frozenset(served), frozenset(tablets.keys() - served), frozenset(hit))


def single_copies(tablets: Mapping[str, RegionRecord]) -> list[str]:
    """Return the tablets that have one voter only: no other server has their rows."""
    return sorted(name for name, record in tablets.items() if len(voters(record)) < 2)


def servers_needed(tablets: Mapping[str, RegionRecord], away: int) -> int:
    """Return the number of servers needed so that every tablet keeps its number of voters without `away` servers."""
    return away + max((len(voters(record)) for record in tablets.values()), default=0)


def require_copies(tablets: Mapping[str, RegionRecord], servers: int, away: int) -> None:
    """Raise CliError if a tablet would lose its rows or could not keep its number of voters without `away` servers."""
    single = single_copies(tablets)
    if single:
        raise CliError(
            f"{output.count(len(single), 'tablet')} ({single[0]}) with one copy only: its server would be missed",
            "rk table alter NAME --replicas 3 makes more copies.",
        )
    needed = servers_needed(tablets, away)
    if servers < needed:
        raise CliError(
            f"this drill needs {needed} region servers: {needed - away} for each tablet's replicas, and {away} more",
            f"Start the cluster with --servers {needed} or more.",
        )


# --- members ----------------------------------------------------------------------------------------------------------


def unwhole(before: Mapping[str, RegionRecord], now: Mapping[str, RegionRecord], gone: Collection[str]) -> list[str]:
    """Return why tablets do not have as many voters as before, or have voters on servers in `gone`; "" if all is
    well."""
    found = []
    for name, record in before.items():
        current = now.get(name)
        if current is None:
            found.append(f"{name} is missing")
            continue
        there = [one for one in current.members if one.uuid in gone]
        if there:
            found.append(f"{name}: member {there[0].number} is still on {there[0].uuid[:8]}")
        elif len(voters(current)) != len(current.members) or len(voters(current)) != len(voters(record)):
            found.append(f"{name} has {len(voters(current))} voters of {len(current.members)} members")
    return found


def check_replaced(
    before: Mapping[str, RegionRecord], after: Mapping[str, RegionRecord], gone: Collection[str] = ()
) -> InvariantCheck:
    """Check the members after the drill: as many voters as before, none on `gone`, and newcomers have new numbers."""
    wrong = unwhole(before, after, gone)
    replaced = 0
    for name in before.keys() & after.keys():
        known = {(one.number, one.uuid) for one in before[name].members}
        for one in after[name].members:
            if (one.number, one.uuid) in known:
                continue
            replaced += 1
            if one.number < before[name].next_number:
                wrong.append(f"{name}: the new member on {one.uuid[:8]} has the former number {one.number}")
    what = "members were replaced under new numbers" if gone else "every tablet has its number of voters"
    return check(what, wrong, f"{output.count(replaced, 'new member')} in {len(before)} tablets")


def stray_rows(rows: Mapping[str, Collection[str]], tablets: Mapping[str, RegionRecord]) -> list[str]:
    """Return the rows on a server's disk of tablets that have no member there. `rows`: tablets' names by uuid."""
    members = {(name, one.uuid) for name, record in tablets.items() for one in record.members}
    return [
        f"rows of {name} are on {uuid[:8]}, which has no member of it"
        for uuid, names in sorted(rows.items())
        for name in sorted(set(names) & tablets.keys())
        if (name, uuid) not in members
    ]


# --- the forecast -----------------------------------------------------------------------------------------------------


def answered_within(operations: Iterable[LoadOperation], since_s: float, until_s: float) -> set[str]:
    """Return the tablets with an operation that began and was answered between these times."""
    return {
        one.region_id for one in operations if one.outcome == "ok" and one.began_s >= since_s and one.ended_s <= until_s
    }


def compare(loss: Loss, answered: Collection[str] | None, seconds: float) -> list[ForecastOutcome]:
    """Return the forecast of a loss, and the facts.

    Args:
        answered: Tablets whose clients got answers meanwhile. None without clients.
        seconds: Time for which the servers were gone.
    """
    silent = sorted(loss.served - set(answered or ()))
    served = sorted(loss.lost & set(answered or ()))
    is_seen = answered is not None
    found = []
    for event, tablets, wrong, said in (
        (SERVED, loss.served, silent, "were not answered"),
        (LOST, loss.lost, served, "were answered"),
    ):
        happened = f"{len(tablets) - len(wrong)} of {len(tablets)}" if tablets else "none"
        if wrong:
            happened += f"; {', '.join(wrong[:3])} {said}"
        found.append(
            ForecastOutcome(
                event=event,
                expected="yes" if tablets else "no",
                earliest_s=0.0,
                latest_s=round(seconds, 3),
                count=len(tablets),
                why="most of their voters are elsewhere" if event == SERVED else "most of their voters are gone",
                is_observed=is_seen,
                agrees=not is_seen or not wrong,
                outcome=happened if is_seen else "not observed: there were no clients",
            )
        )
    return found
