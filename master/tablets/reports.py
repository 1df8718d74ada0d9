"""Heartbeats' reports of tablets on their way to the keeper: in order, and a few per reactor turn."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from regions.messages.heartbeat import Report, TabletReport
from regions.records.model import Incarnation
from regions.replication.keeper import Keeper

#: Reports that the keeper is given in one reactor turn: some milliseconds of work.
REPORTS_PER_TURN: Final = 200


class ReportPart(NamedTuple):
    """A part of one heartbeat's report."""

    server: Incarnation
    tablets: list[TabletReport]
    gone: list[str]
    begins: bool
    ends: bool


class ReportQueue:
    """The parts of reports that the keeper has not received yet.

    A full report names every replica of its server. Replicas that the keeper knew, and that the report does not name,
    do not exist any more.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        #: Parts that the keeper will get in the next turns.
        self.parts: deque[ReportPart] = deque()
        #: Regions named so far by a full report that has begun, by the server's uuid.
        self._named: dict[str, tuple[Incarnation, set[str]]] = {}

    def put(self, server: Incarnation, report: Report) -> None:
        """Queue a report in parts."""
        tablets = report.tablets
        cuts = list(range(0, len(tablets), REPORTS_PER_TURN)) or [0]
        for at in cuts:
            is_first, is_last = at == 0, at == cuts[-1]
            self.parts.append(
                ReportPart(
                    server,
                    tablets[at : at + REPORTS_PER_TURN],
                    report.gone if is_last else [],
                    report.begins and is_first,
                    report.ends and is_last,
                )
            )

    def take_some(self) -> None:
        """Pass only as many reports to the keeper that the reactor's turn stays short."""
        given = 0
        while self.parts and given < REPORTS_PER_TURN:
            part = self.parts.popleft()
            given += max(1, len(part.tablets) + len(part.gone))
            self._take(part)

    def clear(self) -> None:
        """Drop everything at the end of the tenure."""
        self.parts.clear()

    def _take(self, part: ReportPart) -> None:
        server = part.server
        if part.begins:
            self._named[server.uuid] = (server, set())
        begun, named = self._named.get(server.uuid, (None, set()))
        if begun == server:
            named.update(one.region_id for one in part.tablets)
        self._keeper.reported(server, part.tablets, part.gone)
        if part.ends and begun == server:
            del self._named[server.uuid]
            self._keeper.reported(server, [], self._unnamed(server, named))

    def _unnamed(self, server: Incarnation, named: set[str]) -> list[str]:
        """Return the keys of the keeper's other replicas on this start of the server."""
        views = (
            tablet.view.replicas.get(server.uuid)
            for tablet in self._keeper.concerned.of(server.uuid)
            if tablet.region_id not in named
        )
        found = [one.report.key for one in views if one is not None and one.server == server]
        for (uuid, key), orphan in self._keeper.orphans.items():
            if uuid == server.uuid and orphan.report.region_id not in named:
                found.append(key)
        return found
