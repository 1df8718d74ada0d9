"""Records of the actions of `rk unstick`, used by `rk unstick --undo`. Value of `/undo/<undo_id>`.

The active master writes the record in the multi that checks the versions shown to the operator. So a record exists
exactly if the action was taken on the state that was shown.
"""

from __future__ import annotations

import enum

import msgspec

from regions.records.model import Incarnation

#: Replicas of a fenced server in one record. The undo of a fence checks one version for each, in one multi.
UNDO_REPLICAS_MAX = 400
#: Records that are kept.
UNDO_RECORDS_MAX = 50


class Remedy(enum.StrEnum):
    """An action of `rk unstick`."""

    NOTHING = "nothing"
    RETRY = "retry"
    ASSIGN = "assign"
    FENCE = "fence"


class UndoRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action of `rk unstick`, and the versions by which an undo detects later changes.

    Times are by the active master's clock.
    """

    undo_id: str
    action: Remedy
    table_id: str
    region_id: str
    replica: int
    at_ms: int
    #: User and host of the operator.
    by: str = ""
    why: str = ""
    #: Version of the region's record after the action.
    region_version: int = 0
    #: The fenced server.
    server: Incarnation | None = None
    #: The replicas that were open on the fenced server: key -> version of the region's record at that time. Empty if
    #: there were more than UNDO_REPLICAS_MAX, and then `replicas_dropped` is their number.
    replicas: dict[str, int] = {}
    replicas_dropped: int = 0
    #: Time of the undo; 0 before.
    undone_ms: int = 0
