"""Members of a tablet: the replicas of its Raft group, as the region's record and reports name them.

A member is named by a *number*, which is its id in the Raft group. The region's record holds the next free number
(`RegionRecord.next_number`) and raises it in the write that assigns a number, so no number is ever assigned twice, to
any server. A replica that lost its disk therefore cannot return under its old number: its server gets a new one.

A *config id* is the (term, index) of the log entry that holds a configuration. Of two committed configurations the one
with the higher id is later. NO_CONFIG is the id of the members chosen when the region was created; it is lower than the
id of every log entry.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final

import msgspec

#: Largest number of copies of a row. Each further copy makes writes slower, and seven copies survive three dead
#: servers.
REPLICAS_MAX: Final = 7


class Storage(enum.StrEnum):
    """Storage of the rows of a table's regions."""

    SHARED = "shared"  #: one copy, in a directory that all servers see; one server has the region open
    TABLET = "tablet"  #: a copy on the disk of each member; the members are a Raft group


class MemberRole(enum.StrEnum):
    """Role of a member in its Raft group."""

    VOTER = "VOTER"  #: votes and counts in the quorum
    PRE_VOTER = "PRE_VOTER"  #: receives the log and becomes a voter when it has caught up
    LEARNER = "LEARNER"  #: receives the log and never votes


class ConfigId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Term and index of the log entry that holds a configuration."""

    term: int
    index: int

    def __str__(self) -> str:
        return f"{self.term}.{self.index}"


#: The id of the members that were chosen at creation, before any entry of the log.
NO_CONFIG: Final = ConfigId(0, 0)


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member of a tablet: its number, and the server that holds its replica."""

    number: int
    uuid: str
    role: MemberRole = MemberRole.VOTER

    def __str__(self) -> str:
        return f"{self.number}@{self.uuid}{'' if self.role is MemberRole.VOTER else f' {self.role.value}'}"


def check_members(members: Collection[Member], next_number: int) -> None:
    """Raise ValueError with the reason if no configuration can have these members."""
    numbers = [member.number for member in members]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"two members have the same number: {', '.join(map(str, members))}")
    if numbers and min(numbers) < 1:
        raise ValueError(f"member numbers are positive, not {min(numbers)}")
    if numbers and max(numbers) >= next_number:
        raise ValueError(f"member {max(numbers)} has a number that was never assigned: the next one is {next_number}")
