"""`rk fsck`: tablets by health, and the consensus matrix of each tablet that is not HEALTHY.

A row is one view of the tablet: the store's record, or a replica's own. Its columns are the members: V a voter, P a
PRE_VOTER, L a learner, `*` the leader that this view knows, `-` no member, `?` unknown.
"""

from __future__ import annotations

from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.common import output
from cli.common.names import Names
from cli.tablets.display import UNKNOWN, health_word
from regions.diagnose.fsck_tablets import MatrixRow, TabletCheck, TabletMatrix
from regions.messages import TabletHealth
from regions.records.members import MemberRole
from regions.records.partitioning import describe_range

#: Matrices that are printed; `--json` has all.
SHOWN_MAX: Final = 20

_CELLS: Final = {MemberRole.VOTER: "V", MemberRole.PRE_VOTER: "P", MemberRole.LEARNER: "L"}


class TabletsFound(msgspec.Struct):
    """The tablets in `rk fsck --json`: counts by table and health, and the matrices of unhealthy tablets."""

    counts: dict[str, dict[str, int]] = {}
    unhealthy: list[TabletMatrix] = []


def tablets_found(check: TabletCheck) -> TabletsFound:
    """Return counts and matrices."""
    return TabletsFound(check.counts(), [check.matrix(region_id) for region_id in check.unhealthy()])


def show_tablets(found: TabletsFound, names: Names, console: Console) -> None:
    """Print the tablets by health, and the matrices of the worst."""
    if found.counts:
        console.print(counts_table(found.counts))
    for one in found.unhealthy[:SHOWN_MAX]:
        show_matrix(one, names, console)
    if len(found.unhealthy) > SHOWN_MAX:
        console.print(f"and {len(found.unhealthy) - SHOWN_MAX} more tablets that are not HEALTHY: --json has them all")


def counts_table(counts: dict[str, dict[str, int]]) -> Table:
    """Return the printed counts: a row for each table, a column for each health that occurs."""
    healths = [one for one in TabletHealth if any(one.value in of_table for of_table in counts.values())]
    rows = [
        (name, sum(of_table.values()), *(of_table.get(one.value, 0) or "" for one in healths))
        for name, of_table in sorted(counts.items())
    ]
    return output.table("", ["table", "#tablets", *(f"#{one.value}" for one in healths)], rows)


def show_matrix(one: TabletMatrix, names: Names, console: Console) -> None:
    """Print one tablet with all views of its configuration."""
    keys = describe_range(one.start_key, one.end_key, one.hash_buckets) or output.key_range(one.start_key, one.end_key)
    title = Text.assemble((f"{one.table} {one.region_id} ", "bold"), keys, " ", health_word(one.health))
    console.print(title.append(f": {names.in_sentence(one.reason)}" if one.reason else ""), soft_wrap=True)
    console.print(matrix_table(one.rows, names))


def matrix_table(rows: list[MatrixRow], names: Names) -> Table:
    """Return the printed rows; each member's column is named by number and server."""
    homes: dict[int, str] = {}
    for row in rows:
        homes |= {member.number: member.uuid for member in row.members or ()}
        if row.server and row.number is not None:
            homes.setdefault(row.number, row.server)
    numbers = sorted(homes)
    printed = [
        (
            "the store" if not row.server else _replica(row, names),
            *(_cell(row, number) for number in numbers),
            row.state,
            UNKNOWN if row.term is None else row.term,
            UNKNOWN if row.config_id is None else row.config_id,
            _committed(row),
            "" if not row.server else UNKNOWN if row.applied_index is None else row.applied_index,
            names.in_sentence(row.reason),
        )
        for row in rows
    ]
    members = [f"{number} {names.of_uuid(homes[number])}" for number in numbers]
    columns = ["  view of", *members, "state", "#term", "#config", "committed", "#applied", ""]
    return output.table("", columns, [(f"  {first}", *others) for first, *others in printed])


def _replica(row: MatrixRow, names: Names) -> str:
    name = names.of_uuid(row.server)
    return name if row.number is None else f"{row.number} on {name}"


def _cell(row: MatrixRow, number: int) -> str:
    if row.members is None:
        return UNKNOWN
    member = next((one for one in row.members if one.number == number), None)
    if member is None:
        return "-"
    return _CELLS[member.role] + ("*" if row.leader == number else "")


def _committed(row: MatrixRow) -> str:
    if not row.server:
        return ""
    return UNKNOWN if row.is_committed is None else "yes" if row.is_committed else "no"
