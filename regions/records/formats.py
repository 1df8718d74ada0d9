"""Formats of the cluster: the fields and requests that its processes may rely on.

Masters and region servers announce in their registrations the highest format that their build knows. The active master
raises the format in `/cluster` only when all registered processes know a higher one. Until then older builds may take
part, and no process may rely on data that older builds would drop or misread. A build that does not know the cluster's
format exits with an explanation and writes nothing.

What every build promises:

- Unknown fields of records and messages are ignored. Masters keep unknown fields of the cluster's, a table's and a
  region's record when they rewrite it (`regions/records/znodes.py`). All other processes drop them, and so did the
  builds up to format 3. So a build must not rely on a new field before the format that has the field is in force.
- A record whose known fields cannot be decoded is reported and not changed (`regions.records.znodes.CorruptZnode`).
- A request of an unknown type is rejected as unsupported; the reply names the type (`coord.rpc.server`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Every format and what it added.
FORMATS: Final = {
    1: "the first layout",
    2: "schemas with columns, tables that are ALTERING, regions that were replaced, results of requests",
    3: "locations carry the token of their open, transitions the times of their steps, tables and servers a kind;"
    " builds of format 2 drop these fields when they rewrite a record",
    4: "tables whose regions are tablets: where a table's rows lie, members of a region, servers that take tablets;"
    " builds of format 3 take such a table for a shared one",
    5: "regions that are split or merged: a region names its parents, whose rows it takes over when it is opened first;"
    " builds of format 4 would open it without rows",
    6: "tablets that are split: their logs have an entry that seals the rows, and a daughter's replica is made from its"
    " parent's; builds of format 5 cannot apply the entry",
    7: "tablets that are merged: a replica is made from those of two parents; builds of format 6 would make it from the"
    " first one alone",
}
#: The highest format that this build knows.
KNOWN: Final = max(FORMATS)
#: No table of tablets is created below this format: an older master would assign its regions as shared ones.
TABLETS: Final = 4
#: No region is split or merged below this format.
RESHARDING: Final = 5
#: No tablet is split below this format.
TABLET_RESHARDING: Final = 6
#: No tablets are merged below this format.
TABLET_MERGES: Final = 7
#: The format of builds that announce none.
UNANNOUNCED: Final = 2


def known_by(announced: int) -> int:
    """Return the highest format that a process knows whose registration has `announced` (0: no announcement)."""
    return announced or UNANNOUNCED


def attainable(in_force: int, announced: Iterable[int]) -> int:
    """Return the highest format that all these processes and this build know, or `in_force` if that format is not
    higher."""
    return max(in_force, min([KNOWN, *map(known_by, announced)]))


def objection(in_force: int, where: str) -> str:
    """Return why this build must not take part in a cluster of format `in_force`, or "" if it may."""
    if in_force <= KNOWN:
        return ""
    return (
        f"{where} has format {in_force}; this program knows formats up to {KNOWN}: start a build that knows format"
        f" {in_force} (docs/compatibility.md)"
    )
