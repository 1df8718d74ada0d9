"""What this server owes one master, and what it knows of it (HB-03 to HB-07, HB-09, HB-10). Pure: no clock, no socket.

Heartbeats go to every master, and each master has a `MasterLink` of its own. It is in one of three roles:

    UNKNOWN   nothing has been heard of this start of it
    STANDBY   it said that it does not lead, or its claim is older than an epoch that we know
    LEADER    it leads, under an epoch that we know no higher one than

Whoever becomes LEADER is owed a full report, unasked: what an earlier leader was told, and perhaps meant to act on,
is unknown to it (HB-10, KUDU-1374). Nobody else is owed any report. `_STEPS` is the whole table.

One heartbeat is on its way at a time. What it tells is owed again if it fails, at the next tick (HB-01), so a replica's
last state always arrives in the end, whatever was lost; what it was between two heartbeats, nobody learns. A master
that has heard a higher number from us (over a former connection, or under another of its addresses) says so: that
heartbeat has failed as well, and we go on from that number.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from regions.messages.heartbeat import REPORT_MAX, Heartbeat, HeartbeatReply, ReplicaReport, Report, ServerFigures
from regions.records.model import ServerRecord
from regions.records.replica_key import replica_key
from regionserver.replica.effects import Key


class Role(enum.StrEnum):
    """Role of a master, as its answers show it."""

    UNKNOWN = "unknown"
    STANDBY = "standby"
    LEADER = "leader"


class Full(enum.Enum):
    """Progress of the full report that an active master gets."""

    NONE = "none"  #: nothing is owed but changes
    DUE = "due"  #: it begins with the next heartbeat
    UNDER_WAY = "under way"  #: it has begun, and ends when nothing is owed any more


class Us(NamedTuple):
    """This server, as a heartbeat describes it. `describe` is None for a replica that is not here."""

    cluster_id: str
    record: ServerRecord
    epoch: int
    figures: ServerFigures
    describe: Callable[[Key], ReplicaReport | None]
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


#: (is it our leader already, does it say it leads, is its epoch as high as any we know) -> its role, and whether it is
#: owed a full report for that.
_STEPS: Final[dict[tuple[bool, bool, bool], tuple[Role, bool]]] = {
    (False, False, False): (Role.STANDBY, False),
    (False, False, True): (Role.STANDBY, False),
    (False, True, False): (Role.STANDBY, False),  # deposed, and does not know it: our next heartbeat says so
    (False, True, True): (Role.LEADER, True),
    (True, False, False): (Role.STANDBY, False),
    (True, False, True): (Role.STANDBY, False),
    (True, True, False): (Role.STANDBY, False),
    (True, True, True): (Role.LEADER, False),
}


class MasterLink:
    """This server and one master, for one start of this server; see the module docstring."""

    def __init__(self, address: tuple[str, int], report_max: int = REPORT_MAX, sent: int = 0) -> None:
        """`sent`: heartbeats that this start of the server has sent to that address before, over a former tie: the
        master believes none with a number that it has seen."""
        self.address = address
        self.role = Role.UNKNOWN
        #: The master's uuid as it gave it; "" until it has answered.
        self.uuid = ""
        #: Heartbeats sent, and of those answered.
        self.sent = sent
        self.answered_count = 0
        #: Why the latest one failed; "" after one that was answered.
        self.trouble = ""
        self._report_max = report_max
        self._leadership: _Leadership | None = None
        self._owes_registration = True
        self._full = Full.NONE
        #: Replicas whose state this leader does not know, in the order in which they changed.
        self._owed: dict[Key, None] = {}
        self._flight: _Flight | None = None
        self._is_urgent = False

    @property
    def is_waiting(self) -> bool:
        """A heartbeat is on its way."""
        return self._flight is not None

    @property
    def is_urgent(self) -> bool:
        """The next heartbeat is not to wait for its tick: the master lacks something, and has only just said so."""
        return self._is_urgent and self._flight is None

    @property
    def owed(self) -> int:
        """Return the number of replicas still to be reported to this master."""
        return len(self._owed) + (0 if self._flight is None else len(self._flight.keys))

    @property
    def is_told(self) -> bool:
        """Return whether the master is active and has acknowledged every change."""
        return self.role is Role.LEADER and self._full is Full.NONE and not self.owed

    # --- what happens ---------------------------------------------------------------------------------------------

    def changed(self, keys: Iterable[Key]) -> None:
        """Replicas have come, gone or changed: news for a leader (HB-03)."""
        if self.role is Role.LEADER and self._full is not Full.DUE:
            for key in keys:
                self._owed[key] = None

    def beat(self, us: Us) -> Heartbeat | None:
        """Return the next heartbeat; None while one is in flight. Call `answered` or `failed` afterwards."""
        if self._flight is not None:
            return None
        self._is_urgent = False
        report, keys = self._report(us)
        self.sent += 1
        has_registration = self._owes_registration
        begins = report is not None and report.begins
        ends = report is not None and report.ends
        self._flight = _Flight(self.sent, keys, has_registration, begins, ends)
        return Heartbeat(
            us.cluster_id,
            us.record.incarnation,
            self.sent,
            us.epoch,
            self.uuid,
            us.figures,
            us.record if has_registration else None,
            report,
        )

    def answered(self, reply: HeartbeatReply, epoch: int) -> None:
        """Take the answer; `epoch` is the highest known epoch, including the reply's."""
        flight = self._land()
        if flight is None:
            return
        self.answered_count += 1
        self.trouble = ""
        self.uuid = reply.uuid
        if reply.overtaken:
            self.sent = max(self.sent, reply.overtaken)
            self._owe_again(flight)
        else:
            self._owes_registration &= not flight.has_registration
            if flight.ends:
                self._full = Full.NONE
        if reply.wants_registration:
            self._owes_registration = True
            self._is_urgent = not flight.has_registration
        self._take_role(reply, epoch)
        if self.role is not Role.LEADER:
            return
        if reply.wants_full and self._full is not Full.DUE:
            self._full = Full.DUE
            self._is_urgent |= not flight.begins
        elif not reply.overtaken and (self._full is Full.UNDER_WAY or len(flight.keys) == self._report_max):
            self._is_urgent = True

    def failed(self, why: str, *, is_stranger: bool = False) -> None:
        """Take a heartbeat without an answer, or a refusal: report its content again at the next tick (HB-01).

        `is_stranger`: another master than before listens at this address.
        """
        flight = self._land()
        if flight is None:
            return
        self.trouble = why
        if is_stranger:
            self.uuid, self.role, self._leadership = "", Role.UNKNOWN, None
            self._owes_registration, self._full = True, Full.NONE
            self._owed.clear()
            return
        self._owe_again(flight)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _land(self) -> _Flight | None:
        flight, self._flight = self._flight, None
        return flight

    def _owe_again(self, flight: _Flight) -> None:
        """Queue the content of the heartbeat again: it was lost or rejected."""
        if flight.begins:
            self._full = Full.DUE
            self._owed.clear()
        elif self.role is Role.LEADER:
            self._owed = dict.fromkeys(flight.keys) | self._owed

    def _take_role(self, reply: HeartbeatReply, epoch: int) -> None:
        claimed = _Leadership(reply.uuid, reply.start_code, reply.epoch)
        is_ours = self.role is Role.LEADER and self._leadership == claimed
        role, owes_full = _STEPS[is_ours, reply.is_leader, reply.epoch >= epoch]
        self.role = role
        self._leadership = claimed if role is Role.LEADER else None
        if role is not Role.LEADER:
            self._full = Full.NONE
            self._owed.clear()
        elif owes_full:
            self._full = Full.DUE
            self._owed.clear()
            self._is_urgent = True

    def _report(self, us: Us) -> tuple[Report | None, tuple[Key, ...]]:
        """Return the queued reports in their present state, as many as fit, and their keys."""
        begins = self._full is Full.DUE
        if begins:
            self._owed = dict.fromkeys(us.keys())
            self._full = Full.UNDER_WAY
        elif not self._owed and self._full is Full.NONE:
            return None, ()
        keys = tuple(key for key, _ in zip(self._owed, range(self._report_max), strict=False))
        for key in keys:
            del self._owed[key]
        found = [(key, us.describe(key)) for key in keys]
        present = [one for _, one in found if one is not None]
        gone: list[str] = [replica_key(*key) for key, one in found if one is None]
        ends = self._full is Full.UNDER_WAY and not self._owed
        return Report(present, gone, begins, ends), keys
