"""The ids of deleted tables whose records have been removed (MD-06), and which records are removed after a time.

An id must never name a second table, and a replica of a deleted table must be recognized however late its server comes
back. An id and a time suffice for this. The ids are spread over 256 znodes by a checksum, like transitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

#: Limit of the ids in one znode, some 30 bytes each. The oldest are dropped beyond it: 5 million tables in all.
FORGOTTEN_MAX: Final = 20_000


class ForgottenTables(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/forgotten/<xx>`."""

    #: When the rows of each table were removed, by table id; a time of a master's clock.
    purged_ms: dict[str, int] = {}

    def with_table(self, table_id: str, purged_ms: int, limit: int = FORGOTTEN_MAX) -> ForgottenTables:
        """Return the record with one more id. Beyond `limit` ids, drop those that were purged first."""
        found = {**self.purged_ms, table_id: purged_ms}
        kept = sorted(found, key=lambda one: (found[one], one))[-limit:]
        return ForgottenTables({one: found[one] for one in sorted(kept)})


def overdue(aged: Iterable[tuple[int, str]], before_ms: int | None, kept_max: int) -> list[str]:
    """Return which records are removed, the oldest first: records of `before_ms` or earlier (None: no limit of age),
    and all but the newest `kept_max`. `aged` has the time and the name of each record."""
    found = sorted(aged)
    surplus = len(found) - kept_max
    return [
        name
        for number, (at_ms, name) in enumerate(found)
        if number < surplus or (before_ms is not None and at_ms <= before_ms)
    ]
