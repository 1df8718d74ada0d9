"""The merged reports of all servers about one tablet. Pure.

A leader's report is ordered by (config id, term) of its replica. A report that is earlier in that order does not change
the leader or the configuration: the report is late, or its sender was deposed without noticing. So the result does not
depend on the order in which the reports of several servers arrive.

A new leader that has committed nothing yet may know an older configuration than its predecessor reported. Its report
counts from its first commit on.

Everything here is lost with the master. Servers send a new active master full reports (HB-10).
"""

from __future__ import annotations

from typing import NamedTuple

from regions.messages.heartbeat import TAKES_PART, LeaderReport, TabletReport
from regions.records.members import ConfigId
from regions.records.model import Incarnation


class ReplicaView(NamedTuple):
    """The latest report of one server about its replica."""

    server: Incarnation
    report: TabletReport


class LeaderView(NamedTuple):
    """The latest leader's report, by (config id, term)."""

    server: Incarnation
    number: int
    config_id: ConfigId
    term: int
    report: LeaderReport

    @property
    def order(self) -> tuple[ConfigId, int]:
        """Return the sort key of the report among leaders' reports."""
        return (self.config_id, self.term)


def taken(reported: dict[tuple[str, str], ReplicaView], region_id: str) -> list[ReplicaView]:
    """Remove and return the reports of a tablet that arrived before its record was read."""
    keys = [key for key, view in reported.items() if view.report.region_id == region_id]
    return [reported.pop(key) for key in keys]


class TabletView:
    """One tablet, according to the reports of its servers to this master."""

    __slots__ = ("leader", "replicas", "revision", "rivals")

    def __init__(self) -> None:
        #: By the server's uuid: a server has at most one replica of a tablet.
        self.replicas: dict[str, ReplicaView] = {}
        self.leader: LeaderView | None = None
        #: Numbers that have claimed to lead in the leader's term. More than one is a bug, or a copied data directory.
        self.rivals: tuple[int, ...] = ()
        #: Increases with every change of the reports, and of the registrations of the members' servers.
        self.revision = 0

    def fold(self, server: Incarnation, report: TabletReport) -> bool:
        """Take in a report. Return True if the report changes the known leader or configuration.

        The caller passes on only current heartbeats (`regions/liveness/roster.py`).
        """
        known = self.replicas.get(server.uuid)
        if known is not None and known.server.start_code > server.start_code:
            return False  # an earlier start of the server
        self.replicas[server.uuid] = ReplicaView(server, report)
        self.revision += 1
        if not report.leads:
            return False
        assert report.leader is not None, report.key
        found = LeaderView(server, report.number, report.config_id, report.term, report.leader)
        former = self.leader
        if former is not None and found.order < former.order:
            return False
        if former is None or former.term != found.term:
            self.rivals = (found.number,)
        elif found.number not in self.rivals:
            self.rivals = (*self.rivals, found.number)
            return False  # the first one keeps its place; `health` names both
        self.leader = found
        return former is None or found != former

    def gone(self, uuid: str) -> None:
        """Forget a server's replica, because the server reports that it has no replica any more, or is dead."""
        if self.replicas.pop(uuid, None) is not None:
            self.revision += 1

    def leader_now(self) -> LeaderView | None:
        """Return the leader if the latest report of its server still shows it as the leader of that term."""
        if self.leader is None:
            return None
        view = self.replicas.get(self.leader.server.uuid)
        if view is None or view.server != self.leader.server or not view.report.leads:
            return None
        return self.leader if view.report.term == self.leader.term else None

    @property
    def takes_part(self) -> list[ReplicaView]:
        """Replicas that take part in the group, by number."""
        found = [view for view in self.replicas.values() if view.report.state in TAKES_PART]
        return sorted(found, key=lambda view: view.report.number)
