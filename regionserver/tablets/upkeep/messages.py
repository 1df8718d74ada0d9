"""Requests of operators to a region server about the disk of its tablets, and replies."""

from __future__ import annotations

import msgspec


class PurgeQuarantine(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Remove former replicas from the server's quarantine. Reply: QuarantineList.

    Folders before the end of their time are kept, unless `force` is True.
    """

    recipient: str = ""
    #: Only folders of this tablet; "": of all tablets.
    tablet: str = ""
    #: Only folders of at least this age; -1: of any age.
    older_than_ms: int = -1
    force: bool = False
    #: Remove nothing, and show what would be removed.
    dry_run: bool = False


class QuarantinedReplica(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder of the quarantine that a request names."""

    name: str
    #: Tablet and generation of the former replica; "" and 0: the log of a slot that no tablet claims.
    tablet: str
    generation: int
    size_bytes: int
    age_ms: int
    #: True if the request removes the folder; False: its time is not over.
    goes: bool = False


class QuarantineList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to PurgeQuarantine: the folders that the request names, the oldest first."""

    uuid: str
    #: Time for which the server keeps a folder.
    keep_ms: int
    folders: list[QuarantinedReplica]
