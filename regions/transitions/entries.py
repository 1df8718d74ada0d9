"""The entries of the history, as data (`regions/cluster/history.py` has the format)."""

from __future__ import annotations

from typing import Final

import msgspec

from regions.records.replica_key import parse_replica_key

#: Longer errors are truncated in the history. The transition has the full error.
DETAIL_MAX: Final = 200

# Causes of entries that are not steps but concern a region, whose id is in `reason`.
#: An operator's request: `detail` in words, `origin` with the caller's address, `reason` the id of a region.
REQUEST: Final = "request"
#: The end of a request that had been recorded and was refused.
REFUSED: Final = "request refused"
#: An operator has forced a configuration of a tablet whose majority was lost. `reason` is the tablet's id.
FORCED: Final = "forced configuration"


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """One stored entry of the history: a step, or (`key` "") an event of a master or server.

    `before` and `after` are states, "" for no znode. `cause` is a `states.Cause`, or a constant of `history.py`.
    `server` is the server's uuid, and the master's uuid for EPOCH_BEGINS.
    """

    at_ms: int
    key: str
    actor: str
    before: str
    after: str
    cause: str
    server: str = ""
    epoch: int = 0
    attempt: int = 0
    plan_id: str = ""
    reason: str = ""
    detail: str = ""
    #: Unused. Kept because entries are stored as arrays.
    inferred: bool = False
    #: Number of the server's steps before this one that have no entries (`regions/transitions/trail.py`).
    missed: int = 0
    #: Cause id of the step (`regions/cluster/causes.py`), "" in entries of builds without cause ids.
    cause_id: str = ""
    #: Text of the cause's origin, in the first step of each replica.
    origin: str = ""
    #: Of a request: name or id of the table.
    subject: str = ""
    #: Zxid of the write that recorded the entry; for a master's step this is the write of the step itself. The zxid of
    #: a segment is the same, so the field is 0 until segments are merged.
    zxid: int = 0

    @property
    def region_id(self) -> str:
        """The region's id, "" for an entry that is about no region."""
        if self.cause in (FORCED, REQUEST, REFUSED):
            return self.reason
        return parse_replica_key(self.key)[0] if self.key else ""
