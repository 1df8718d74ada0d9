"""State of the link to one master: reports to be sent, and the master's role (HB-03 to HB-07, HB-09, HB-10). Pure.

Every master gets heartbeats and has a `MasterLink`. A master has one of three roles:

    UNKNOWN   it has not replied yet
    STANDBY   it replied that it is not active, or with a lower epoch than this server knows
    LEADER    it is active, and its epoch is not lower than any epoch that this server knows

A master that becomes LEADER gets a full report, unasked: it does not know the reports to an earlier leader (HB-10,
KUDU-1374). No other master gets reports. `_STEPS` is the whole table.

One heartbeat is in flight at a time. If it fails, its content is queued again for the next tick (HB-01). So the last
state of a replica always arrives in the end; states between two heartbeats may be skipped. A master that has already
received a higher sequence number from this server (over a former connection, or at another of its addresses) replies
with that number: the heartbeat counts as failed, and numbering continues above it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from regions.messages.heartbeat import (
    REPORT_MAX,
    Heartbeat,
    HeartbeatReply,
    ReplicaReport,
    Report,
    ServerFigures,
    TabletReport,
)
from regions.records.model import ServerRecord
from regions.records.replica_key import replica_key
from regionserver.replica.effects import Key


class Role(enum.StrEnum):
    """Role of a master according to its replies."""

    UNKNOWN = "unknown"
    STANDBY = "standby"
    LEADER = "leader"


class Full(enum.Enum):
    """Progress of the full report to an active master."""

    NONE = "none"  #: only changes are reported
    DUE = "due"  #: the full report begins with the next heartbeat
    UNDER_WAY = "under way"  #: the full report has begun, and ends when every replica has been sent


class HeartbeatState(NamedTuple):
    """State of this server for a heartbeat. `describe` returns None for a replica that is not on this server."""

    cluster_id: str
    record: ServerRecord
    epoch: int
    figures: ServerFigures
    describe: Callable[[Key], ReplicaReport | TabletReport | None]
    keys: Callable[[], Iterable[Key]]


class _Flight(NamedTuple):
    """Content of the heartbeat that is in flight."""

    sequence: int
    keys: tuple[Key, ...]
    has_registration: bool
    begins: bool
    ends: bool


class _Leadership(NamedTuple):
    """One tenure of one start of one master."""

    uuid: str
    start_code: int
    epoch: int


#: (is it the known leader, does it reply that it leads, is its epoch at least the highest known one) -> its role, and
#: whether it gets a full report.
_STEPS: Final[dict[tuple[bool, bool, bool], tuple[Role, bool]]] = {
    (False, False, False): (Role.STANDBY, False),
    (False, False, True): (Role.STANDBY, False),
    (False, True, False): (Role.STANDBY, False),  # replaced without knowing it; the next heartbeat carries the epoch
    (False, True, True): (Role.LEADER, True),
    (True, False, False): (Role.STANDBY, False),
    (True, False, True): (Role.STANDBY, False),
    (True, True, False): (Role.STANDBY, False),
    (True, True, True): (Role.LEADER, False),
}


class MasterLink:
    """This server and one master, for one start of this server; see the module docstring."""

    def __init__(self, address: tuple[str, int], report_max: int = REPORT_MAX, sent: int = 0) -> None:
        """`sent`: last sequence number that this start of the server has used towards this address before. The master
        drops sequence numbers that it has already received."""
        self.address = address
        self.role = Role.UNKNOWN
        #: The master's uuid from its replies; "" before the first reply.
        self.uuid = ""
        #: Last sequence number, and the number of acknowledged heartbeats.
        self.sent = sent
        self.answered_count = 0
        #: Error of the latest heartbeat; "" if it was acknowledged.
        self.problem = ""
        self._report_max = report_max
        self._leadership: _Leadership | None = None
        self._registration_due = True
        self._full = Full.NONE
        #: Replicas whose state must be reported to this leader, in the order of their changes.
        self._queued: dict[Key, None] = {}
        self._flight: _Flight | None = None
        self._is_urgent = False

    @property
    def is_urgent(self) -> bool:
        """Return True if the next heartbeat must not wait for its tick, because the master has just asked for data."""
        return self._is_urgent and self._flight is None

    @property
    def unreported(self) -> int:
        """Return the number of replicas whose state this master has not acknowledged."""
        return len(self._queued) + (0 if self._flight is None else len(self._flight.keys))

    @property
    def is_up_to_date(self) -> bool:
        """Return True if the master is active and has acknowledged every change."""
        return self.role is Role.LEADER and self._full is Full.NONE and not self.unreported

    # --- events ---------------------------------------------------------------------------------------------------

    def changed(self, keys: Iterable[Key]) -> None:
        """Queue reports of replicas that are new, gone or changed, if the master is active (HB-03)."""
        if self.role is Role.LEADER and self._full is not Full.DUE:
            for key in keys:
                self._queued[key] = None

    def next_heartbeat(self, state: HeartbeatState) -> Heartbeat | None:
        """Return the next heartbeat; None while one is in flight. Call `answered` or `failed` afterwards."""
        if self._flight is not None:
            return None
        self._is_urgent = False
        report, keys = self._report(state)
        self.sent += 1
        has_registration = self._registration_due
        begins = report is not None and report.begins
        ends = report is not None and report.ends
        self._flight = _Flight(self.sent, keys, has_registration, begins, ends)
        return Heartbeat(
            state.cluster_id,
            state.record.incarnation,
            self.sent,
            state.epoch,
            self.uuid,
            state.figures,
            state.record if has_registration else None,
            report,
        )

    def answered(self, reply: HeartbeatReply, epoch: int) -> None:
        """Process a reply. `epoch` is the highest known epoch, including the reply's."""
        flight = self._take_flight()
        if flight is None:
            return
        self.answered_count += 1
        self.problem = ""
        self.uuid = reply.uuid
        if reply.overtaken:
            self.sent = max(self.sent, reply.overtaken)
            self._requeue(flight)
        else:
            self._registration_due &= not flight.has_registration
            if flight.ends:
                self._full = Full.NONE
        if reply.wants_registration:
            self._registration_due = True
            self._is_urgent = not flight.has_registration
        self._take_role(reply, epoch)
        if self.role is not Role.LEADER:
            return
        if reply.wants_full and self._full is not Full.DUE:
            self._full = Full.DUE
            self._is_urgent |= not flight.begins
        elif not reply.overtaken and (self._full is Full.UNDER_WAY or len(flight.keys) == self._report_max):
            self._is_urgent = True

    def failed(self, why: str, *, is_other_master: bool = False) -> None:
        """Process a lost or rejected heartbeat: send its content again at the next tick (HB-01).

        `is_other_master`: another master than before listens at this address.
        """
        flight = self._take_flight()
        if flight is None:
            return
        self.problem = why
        if is_other_master:
            self.uuid, self.role, self._leadership = "", Role.UNKNOWN, None
            self._registration_due, self._full = True, Full.NONE
            self._queued.clear()
            return
        self._requeue(flight)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take_flight(self) -> _Flight | None:
        flight, self._flight = self._flight, None
        return flight

    def _requeue(self, flight: _Flight) -> None:
        """Queue the content of a lost or rejected heartbeat again."""
        if flight.begins:
            self._full = Full.DUE
            self._queued.clear()
        elif self.role is Role.LEADER:
            self._queued = dict.fromkeys(flight.keys) | self._queued

    def _take_role(self, reply: HeartbeatReply, epoch: int) -> None:
        claimed = _Leadership(reply.uuid, reply.start_code, reply.epoch)
        is_ours = self.role is Role.LEADER and self._leadership == claimed
        role, needs_full = _STEPS[is_ours, reply.is_leader, reply.epoch >= epoch]
        self.role = role
        self._leadership = claimed if role is Role.LEADER else None
        if role is not Role.LEADER:
            self._full = Full.NONE
            self._queued.clear()
        elif needs_full:
            self._full = Full.DUE
            self._queued.clear()
            self._is_urgent = True

    def _report(self, state: HeartbeatState) -> tuple[Report | None, tuple[Key, ...]]:
        """Return the queued reports with the replicas' present states, as many as fit, and their keys."""
        begins = self._full is Full.DUE
        if begins:
            self._queued = dict.fromkeys(state.keys())
            self._full = Full.UNDER_WAY
        elif not self._queued and self._full is Full.NONE:
            return None, ()
        keys = tuple(key for key, _ in zip(self._queued, range(self._report_max), strict=False))
        for key in keys:
            del self._queued[key]
        shared: list[ReplicaReport] = []
        tablets: list[TabletReport] = []
        gone: list[str] = []
        for key in keys:
            one = state.describe(key)
            if isinstance(one, ReplicaReport):
                shared.append(one)
            elif isinstance(one, TabletReport):
                tablets.append(one)
            else:
                gone.append(replica_key(*key))
        ends = self._full is Full.UNDER_WAY and not self._queued
        return Report(shared, gone, begins, ends, tablets), keys
