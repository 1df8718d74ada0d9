"""Conclusions from the digests of a tablet's members at one entry. Pure.

Replicas that have applied the same entries have the same rows, and so the same digest. A difference means that a disk,
the memory or a program has changed rows of one of them. A majority of the voters decides which rows are right. With a
majority there are enough good replicas for the tablet. Without one nothing is changed, because the good replica might
be the one that is removed.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from regionserver.tablets.digests.messages import QuarantineReplica


class Verdict(enum.StrEnum):
    """The result of a comparison."""

    EQUAL = "equal"  #: all digests that are known
    DIFFERS = "differs"  #: some members differ from a majority of the voters
    UNDECIDED = "undecided"  #: members differ, and no majority of the voters agrees


class DigestJudgment(NamedTuple):
    """The verdict about a tablet."""

    verdict: Verdict
    #: With DIFFERS: the digest of the majority, the members with this digest, and the members with another one.
    digest: bytes = b""
    agreeing: tuple[int, ...] = ()
    differing: tuple[int, ...] = ()


def judge(found: Mapping[int, bytes], voters: Collection[int]) -> DigestJudgment:
    """Return the verdict about the digests of members at one entry. Members without a known digest are missing."""
    if len(set(found.values())) <= 1:
        return DigestJudgment(Verdict.EQUAL)
    counts = Counter(found[number] for number in voters if number in found)
    for digest, count in counts.most_common(1):
        if count > len(voters) // 2:
            return DigestJudgment(
                Verdict.DIFFERS,
                digest,
                tuple(sorted(number for number, one in found.items() if one == digest)),
                tuple(sorted(number for number, one in found.items() if one != digest)),
            )
    return DigestJudgment(Verdict.UNDECIDED)


class ReplicaFacts(NamedTuple):
    """The replica that a QuarantineReplica names, on the server that received it."""

    #: Uuid of this server.
    server: str
    #: Member number and term of the replica that runs here; 0 without one.
    number: int
    term: int
    #: Digest of the replica after the named entry; None: unknown.
    digest: bytes | None


def objection(order: QuarantineReplica, facts: ReplicaFacts) -> str:
    """Return why a replica stays in service, "" if it is to be quarantined. All checks come before any change."""
    if order.recipient != facts.server:
        return f"this server is {facts.server}"
    if facts.number != order.number:
        return f"member {order.number} does not run here"
    if order.term < facts.term:
        return f"term {order.term} has ended, term {facts.term} is current"
    if facts.digest is None:
        return f"the digest after entry {order.index} is not known any more"
    if facts.digest == order.digest:
        return f"its rows after entry {order.index} are those of the majority"
    return ""


def reason(index: int, agreeing: Collection[int]) -> str:
    """Return the reason for the quarantine in words."""
    named = ", ".join(str(number) for number in agreeing)
    return f"its rows after entry {index} differ from those of members {named}"
