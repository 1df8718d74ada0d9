"""Requests about tablets for operators, and their replies. All of them only read.

**To a server:** ShowReplicas. The server answers from its own replicas, without store and masters. `rk fsck` compares
these answers with each other and with the store.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regions.messages.heartbeat import TabletReport
from regions.records.members import NO_CONFIG, ConfigId, Member

#: Replicas in one reply of a server: about 300 B each.
REPLICAS_PAGE_MAX: Final = 5_000


class TabletHealth(enum.StrEnum):
    """How a tablet fares, the best first."""

    HEALTHY = "HEALTHY"
    RECOVERING = "RECOVERING"  #: a member is being added, or a copy is under way
    UNDER_REPLICATED = "UNDER_REPLICATED"  #: fewer healthy voters than wanted
    CONSENSUS_MISMATCH = "CONSENSUS_MISMATCH"  #: replicas contradict each other about leader or configuration
    UNAVAILABLE = "UNAVAILABLE"  #: no leader, or the leader does not reach a majority


class ShowReplicas(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the server's replicas of tablets as the server has them, by id, beginning after `after`.

    `recipient` "" means any server. Reply: ReplicaList.
    """

    recipient: str = ""
    #: Only these tablets; []: all.
    tablets: list[str] = []
    after: str = ""
    #: 0: REPLICAS_PAGE_MAX, which is also the greatest limit.
    limit: int = 0


class OwnReplica(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica's own view of itself and of its group.

    `report.config_id` is the latest committed configuration that the replica knows.
    """

    report: TabletReport
    #: The latest configuration in the replica's log, committed or not, and its members. None: the replica does not run,
    #: and its files were not read.
    members: tuple[Member, ...] | None = None
    config_id: ConfigId = NO_CONFIG
    #: Number that the replica follows as the leader of its term; 0: none.
    leader: int = 0
    #: Ends of its log: of what it has, and of what it knows to be committed.
    last_index: int = 0
    commit_index: int = 0

    @property
    def is_committed(self) -> bool:
        """Return True if the replica knows that its configuration is committed."""
        return self.config_id == self.report.config_id


class ReplicaList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ShowReplicas, sorted by region id."""

    uuid: str
    start_code: int
    replicas: list[OwnReplica]
    #: Id to continue after; "": this was the last page.
    next: str = ""
