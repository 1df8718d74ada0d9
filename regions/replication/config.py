"""Configurations of a tablet: the number of members, the first configuration, and the changes that a later one may
make. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from regions.records.members import REPLICAS_MAX, Member, MemberRole
from regions.records.model import RegionRecord


def objection_to_count(replicas: int) -> str:
    """Return why a tablet cannot have this number of copies, "" if it can. An even number survives as many dead servers
    as the odd number below it, but each write waits for one more copy."""
    if not 1 <= replicas <= REPLICAS_MAX:
        return f"a tablet has 1 to {REPLICAS_MAX} replicas, not {replicas}"
    if replicas % 2 == 0:
        return f"a tablet has an odd number of replicas: {replicas} survive no more dead servers than {replicas - 1}"
    return ""


def majority(voters: int) -> int:
    """Return the size of a majority of that many voters."""
    return voters // 2 + 1


def objection_to_servers(replicas: int, found: int, *, allow_under_replicated: bool) -> str:
    """Return why a tablet with that many replicas cannot be made on `found` servers, "" if it can."""
    if found >= replicas:
        return ""
    has = f"{replicas} replicas need {replicas} servers that take tablets, and {found} can be used"
    if not allow_under_replicated:
        return f"{has}: start more servers, or say --allow-under-replicated"
    if found < majority(replicas):
        return f"{has}: a majority of {majority(replicas)} must exist"
    return ""


def first_members(uuids: Iterable[str]) -> tuple[Member, ...]:
    """Return the first configuration: numbers from 1 in the order of the servers, all voters."""
    return tuple(Member(number, uuid) for number, uuid in enumerate(uuids, 1))


def voters(members: Collection[Member]) -> list[Member]:
    """Return the voters among the members."""
    return [member for member in members if member.role is MemberRole.VOTER]


def objection_to_report(region: RegionRecord, members: Collection[Member]) -> str:
    """Return why no leader can have committed these members, "" if one can.

    The numbers come from the region's record, so a number that was never assigned belongs to another cluster's
    tablet, to a record that is older than the report, or to a bug. In each case the record stays as it is.
    """
    if not voters(members):
        return "it has no voter"
    numbers = [member.number for member in members]
    if len(set(numbers)) < len(numbers):
        return "two members have the same number"
    strange = [number for number in numbers if not 0 < number < region.next_number]
    if strange:
        return f"number {strange[0]} was never assigned: the next one is {region.next_number}"
    known = {member.number: member.uuid for member in region.members}
    for member in members:
        if known.get(member.number, member.uuid) != member.uuid:
            return f"number {member.number} was given to {known[member.number]}, not to {member.uuid}"
    return ""


def objection_to_change(former: Collection[Member], later: Collection[Member]) -> str:
    """Return why a leader must not change one configuration into the other, "" if it may: one voter at a time."""
    if not voters(later):
        return "it has no voter"
    before = {member.number for member in voters(former)}
    after = {member.number for member in voters(later)}
    if len(before ^ after) > 1:
        return f"it changes the voters {sorted(before ^ after)} at once"
    return ""
