"""Print tablets. A value that nobody has reported is shown as `?`, never as 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.common import output
from cli.common.names import Names
from regions import messages
from regions.messages import MemberHealth, TabletHealth, TabletMember, TabletRole, TabletStatus
from regions.records.members import MemberRole
from regions.records.model import TabletState
from regions.records.partitioning import describe_range

#: Shown instead of a value that nobody has reported.
UNKNOWN: Final = "?"

_STYLES: Final = {
    TabletHealth.HEALTHY: "green",
    TabletHealth.RECOVERING: "yellow",
    TabletHealth.CREATING: "yellow",
    TabletHealth.UNKNOWN: "yellow",
    TabletHealth.CLOSED: "dim",
}


def health_word(health: TabletHealth) -> Text:
    """Return the word in its color."""
    return Text(health.value, style=_STYLES.get(health, "red"))


def tablets_table(found: Sequence[TabletStatus], names: Names) -> Table:
    """Return the printed list, by table and key."""
    ordered = sorted(found, key=lambda one: (one.table, one.start_key, one.region_id))
    rows = [
        (
            one.region_id,
            one.table,
            keys_of(one),
            health_word(one.health),
            _leader(one, names),
            ", ".join(names.of_uuid(member.server) for member in one.members if member.role is not None) or UNKNOWN,
            names.in_sentence(one.reason or one.policy),
        )
        for one in ordered
    ]
    return output.table("", ["tablet", "table", "keys", "health", "leader", "members", "why"], rows)


def keys_of(one: TabletStatus) -> str:
    """Return a tablet's range of keys."""
    return describe_range(one.start_key, one.end_key, one.hash_buckets) or output.key_range(one.start_key, one.end_key)


def _leader(one: TabletStatus, names: Names) -> str:
    if one.leader is None:
        return "-" if one.health is TabletHealth.CLOSED else UNKNOWN
    return next((names.of_uuid(member.server) for member in one.members if member.number == one.leader), UNKNOWN)


def leaders_line(found: Sequence[TabletStatus], names: Names) -> str:
    """Return how many of the tablets each server leads, also the members' servers that lead none."""
    counts = {member.server: 0 for one in found for member in one.members if member.role is MemberRole.VOTER}
    for one in found:
        for member in one.members:
            if one.leader is not None and member.number == one.leader:
                counts[member.server] = counts.get(member.server, 0) + 1
    return "leaders: " + ", ".join(sorted(f"{names.of_uuid(uuid)} {count}" for uuid, count in counts.items()))


def orphan_lines(orphans: Sequence[messages.OrphanReplica], names: Names) -> list[str]:
    """Return a line for each replica that the store does not know."""
    return [
        f"orphan: {names.of_uuid(one.server)} has replica {one.report.key} ({one.report.state.value}), which the store"
        " does not know; nobody touches it"
        for one in orphans
    ]


def duration(ms: int) -> str:
    """Return a time span in words."""
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def since(one: TabletStatus) -> str:
    """Return for how long the tablet has had its health."""
    if one.at_least:
        return f"for at least {duration(one.for_ms)}, since before this master became active"
    return f"for {duration(one.for_ms)}"


def show_tablet(one: TabletStatus, names: Names, console: Console) -> None:
    """Print one tablet."""
    title = Text(f"{one.table} {one.region_id} ", style="bold").append(keys_of(one), style="")
    console.print(title, soft_wrap=True)
    line = health_word(one.health).append(f" {since(one)}", style="")
    console.print(line.append(f": {names.in_sentence(one.reason)}" if one.reason else "", style=""), soft_wrap=True)
    config = UNKNOWN if one.config_id is None else str(one.config_id)
    term = UNKNOWN if one.term is None else str(one.term)
    facts = [
        ("leader", _leader(one, names) + (f", number {one.leader}" if one.leader is not None else "")),
        ("term, config", f"{term}, {config}"),
        ("replicas wanted", str(one.wanted)),
        ("in the store", _record(one)),
    ]
    for label, text in facts:
        console.print(Text(f"  {label:<16}", style="dim").append(text, style=""), soft_wrap=True)
    for text in _wanted_lines(one, names):
        console.print(Text(f"  {'members':<16}", style="dim").append(text, style=""), soft_wrap=True)
    console.print(members_table(one, names))
    if not one.members and one.state is not TabletState.REPLACED:
        console.print("  no member has been chosen yet")


def _wanted_lines(one: TabletStatus, names: Names) -> list[str]:
    """Return the intents about the members, and the masters' next steps."""
    lines = [f"{names.of_uuid(move.source)} -> {names.of_uuid(move.target)} is wanted" for move in one.moves]
    lines += [f"a learner on {names.of_uuid(uuid)} is wanted" for uuid in one.learners]
    return lines + ([names.in_sentence(one.policy)] if one.policy and one.policy not in one.reason else [])


def _record(one: TabletStatus) -> str:
    leader = f"leader {one.record_leader} of term {one.record_term}" if one.record_leader else "no leader written yet"
    return f"{one.state.value}, config {one.record_config_id}, {leader}"


def members_table(one: TabletStatus, names: Names) -> Table:
    """Return the printed members, then replicas that are none."""
    rows = [
        (
            f"{member.number}{'*' if member.number == one.leader else ''}",
            names.of_uuid(member.server) + ("" if member.is_registered else " (not registered)"),
            _role(member),
            UNKNOWN if member.state is None else member.state.value,
            _number(member.term),
            UNKNOWN if member.config_id is None else member.config_id,
            _number(member.applied_index),
            _number(member.behind),
            UNKNOWN if member.size_bytes is None else output.size(member.size_bytes),
            _health(member),
            names.in_sentence(_note(member)),
        )
        for member in one.members
    ]
    columns = [
        *("#number", "server", "role", "state", "#term", "#config", "#applied", "#behind", "#size", "health", "note"),
    ]
    return output.table("", columns, rows)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _role(member: TabletMember) -> str:
    if member.role is None:
        return "no member"
    if member.role is not MemberRole.VOTER:
        return member.role.value
    return "LEADER" if member.raft_role is TabletRole.LEADER else member.role.value


def _health(member: TabletMember) -> Text:
    if member.health is None:
        return Text(UNKNOWN)
    style = {MemberHealth.HEALTHY: "green", MemberHealth.FAILED: "red"}.get(member.health, "yellow")
    return Text(member.health.value, style=style)


def _note(member: TabletMember) -> str:
    transition = f"in transition: {member.transition}" if member.transition else ""
    error = f"last error: {member.last_error}" if member.last_error else ""
    return "; ".join(part for part in (member.reason, transition, error) if part)
