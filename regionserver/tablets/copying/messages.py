"""Requests to a region server about copies of tablets' replicas, and its replies.

The destination of the copy receives StartTabletCopy, from the tablet's leader or from an operator. It answers at once,
and the copy becomes a job of this server (S2, TC-02, TC-03). While the job runs, a repeated request is answered with
its progress, so the sender may repeat it at any time.
"""

from __future__ import annotations

import enum

import msgspec

from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole


class SeenReplica(msgspec.Struct, frozen=True, array_like=True):
    """The replica on the receiver of a StartTabletCopy, as last known to the sender: number, state, and the end of its
    log. State None: the sender knows that the server has a replica of this number, but not its state."""

    number: int
    state: ReplicaState | None
    last_term: int
    last_index: int


class CopySource(msgspec.Struct, frozen=True, array_like=True):
    """The member whose rows and log are copied, and where its server listens for other members."""

    number: int
    uuid: str
    host: str
    peer_port: int


class StartTabletCopy(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Copy a replica of the tablet from `source` to the receiver of this request. Reply: TabletCopyAnswer.

    The server removes its present replica (the files go to quarantine, the promises stay) and copies it again under
    `number`. All checks come first: a rejected request changes nothing.
    """

    #: Uuid of the server that receives the request; another one rejects it.
    recipient: str
    tablet: str
    #: Member number of the copy, its role in the sender's configuration, and the sender's term.
    number: int
    role: MemberRole
    term: int
    source: CopySource
    #: None if the server has no files of the tablet, as far as the sender knows.
    seen: SeenReplica | None = None
    #: Table and range, for a server that has nothing of the tablet.
    table: str = ""
    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0


class CopyOutcome(enum.StrEnum):
    """Reaction of a server to a StartTabletCopy."""

    STARTED = "STARTED"  #: the job runs, or is queued
    INVALID_NAME = "INVALID_NAME"  #: for another server, or the source is the server itself
    ILLEGAL_STATE = "ILLEGAL_STATE"  #: The replica differs from the sender's knowledge, or must not be replaced.
    ALREADY_INPROGRESS = "ALREADY_INPROGRESS"  #: a copy of the tablet runs
    BAD_TERM = "BAD_TERM"  #: the sender's term is over
    AMNESIA = "AMNESIA"  #: a voter whose memory is not here: it needs a new number
    THROTTLED = "THROTTLED"  #: too many copies run and are queued; ask again later
    NO_SPACE = "NO_SPACE"  #: the disk has no room


class TabletCopyAnswer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to StartTabletCopy."""

    outcome: CopyOutcome
    #: Why the request was rejected; "" if it was not.
    reason: str = ""
    #: The running job, and the bytes that it has received.
    job: int = 0
    received: int = 0
    #: The term that the server knows. The sender of an older one is no leader any more.
    term: int = 0
    #: With THROTTLED: when to ask again.
    retry_after_ms: int = 0


class CopyState(enum.StrEnum):
    """State of a copy job on the server that receives the copy."""

    QUEUED = "QUEUED"  #: for a place among the copies that this server receives at once
    WAITING = "WAITING"  #: for the source, which has as many copies as it may serve
    REMOVING = "REMOVING"  #: the former replica goes to quarantine
    ROWS = "ROWS"  #: rows are received
    CHECKING = "CHECKING"  #: the rows are synced, read back and compared with their checksums and digest
    LOG = "LOG"  #: the log behind the rows is received
    DONE = "DONE"  #: the replica was started
    FAILED = "FAILED"  #: the files of the copy are removed; the leader asks again
    CANCELED = "CANCELED"  #: by an operator; otherwise as FAILED


class CopyJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running copy, or one that has ended."""

    job: int
    tablet: str
    number: int
    state: CopyState
    #: Uuid of the source's server.
    source: str
    #: Bytes of rows and log received, and bytes that are expected; the log grows meanwhile.
    received: int = 0
    expected: int = 0
    #: Bytes per second, averaged over the time in which rows and log were received.
    rate: int = 0
    #: Begin and end by the wall clock of the server; end 0: the job runs.
    began_ms: int = 0
    ended_ms: int = 0
    #: Why the job waits or has failed.
    reason: str = ""


class ListCopyJobs(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """List the server's copy jobs: the running ones and the last finished ones. Reply: CopyJobList."""

    recipient: str = ""


class CopyJobList(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ListCopyJobs and CancelCopy: the newest first."""

    uuid: str
    jobs: list[CopyJob]
    #: Copies that this server is a source of.
    served: int = 0


class CancelCopy(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Cancel a job of this server. Reply: CopyJobList with that job; RpcError if no such job runs."""

    job: int
    recipient: str = ""


CopyRequest = StartTabletCopy | ListCopyJobs | CancelCopy
