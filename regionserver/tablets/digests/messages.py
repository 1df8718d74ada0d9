"""Requests to a region server about the digests of its replicas, and replies.

A tablet's leader sends them to the servers of the members, and `rk tablet verify` to all of them.
"""

from __future__ import annotations

import msgspec


class AskedDigest(msgspec.Struct, frozen=True, array_like=True):
    """The request for the digest of a tablet's rows after the entry at `index`; 0: after any entry."""

    tablet: str
    index: int = 0


class ShowDigests(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Show the digests of replicas. Reply: DigestList.

    The server waits for a replica that has not applied the entry yet, for 2 s at most.
    """

    recipient: str
    asked: list[AskedDigest]


class ReplicaDigest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests that a running replica knows."""

    tablet: str
    number: int
    term: int
    #: Index of the last entry of its log, and of the last entry in its rows.
    last: int
    applied: int
    #: Digests by the index of an entry, ascending; the last one is that of the rows as they are.
    digests: list[tuple[int, bytes]]


class DigestList(msgspec.Struct, frozen=True, tag=True):
    """Reply to ShowDigests. Tablets without a running replica on the server are missing."""

    uuid: str
    digests: list[ReplicaDigest]


class QuarantineReplica(msgspec.Struct, frozen=True, tag=True):
    """Take out of service a replica whose rows differ from those of a majority. Reply: ReplicaQuarantined.

    Its files go to the quarantine, its promises stay, and its leader requests a new copy.
    """

    recipient: str
    tablet: str
    number: int
    #: The leader's term.
    term: int
    #: The entry after which the rows differ, the digest of the majority, and the members that have it.
    index: int
    digest: bytes
    agreeing: list[int]


class ReplicaQuarantined(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to QuarantineReplica: "" or why nothing was changed."""

    why: str = ""


DigestRequest = ShowDigests | QuarantineReplica
