"""The journal of one drill: collects its events and keeps its record in the cluster up to date.

The record is created when the faults begin and replaced at the end. Only the drill itself writes the record, so a plain
create and a plain set are enough. A drill does not fail if its record cannot be written, because the store may deny the
write.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from cli.common import output
from cli.common.names import who_runs
from cli.drill.report import DrillReport, as_json
from regions.records.acts.drills import DrillEvent, DrillRecord, DrillVerdict
from regions.records.znodes import Layout, encode

#: Drills whose records stay in the store. The oldest are deleted.
DRILLS_MAX: Final = 50
#: Events of one record, the first and the last ones: some drills print hundreds.
EVENTS_MAX: Final = 300
#: Regions of a report that a record keeps, those with the longest outages.
REGIONS_MAX: Final = 100
#: Limit of a record: below a store's limit of one megabyte.
RECORD_BYTES_MAX: Final = 512 * 1024
_TIMEOUT_S: Final = 5.0
_AWAY: Final = (KazooException, KazooTimeoutError, OSError)


class DrillJournal:
    """The journal of one drill. Every method is for the drill's thread, and none raises an error of the store."""

    def __init__(self, client: KazooClient, layout: Layout) -> None:
        self._client = client
        self._layout = layout
        self._events: list[DrillEvent] = []
        self._dropped = 0
        self._record: DrillRecord | None = None
        #: Why the record could not be written; "" if it was.
        self.trouble = ""

    @property
    def drill_id(self) -> str:
        """Return the id of the record, "" before `begin`."""
        return "" if self._record is None else self._record.drill_id

    @property
    def events(self) -> tuple[DrillEvent, ...]:
        """Return the events so far, without those that were dropped."""
        return tuple(self._events)

    def note(self, at_s: float, text: str) -> None:
        """Add an event."""
        self._events.append(DrillEvent(round(at_s, 3), text))
        if len(self._events) > EVENTS_MAX:
            del self._events[EVENTS_MAX // 2]
            self._dropped += 1

    def begin(self, drill: str, seed: int, victim: str = "") -> None:
        """Create the record, and delete the oldest ones beyond DRILLS_MAX."""
        now_s = time.time()
        drill_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{secrets.token_hex(2)}"
        self._record = DrillRecord(drill_id, drill, int(now_s * 1000), seed, victim=victim, by=who_runs())
        try:
            self._client.ensure_path(self._layout.drills)
            self._client.create_async(self._layout.drill(drill_id), encode(self._whole())).get(timeout=_TIMEOUT_S)
            names = sorted(self._client.get_children_async(self._layout.drills).get(timeout=_TIMEOUT_S))
            for name in names[:-DRILLS_MAX]:
                self._delete(name)
        except _AWAY as error:
            self.trouble = str(error) or type(error).__name__

    def end(
        self, verdict: DrillVerdict, report: DrillReport | None, *, victim: str, action: str, error: str = ""
    ) -> None:
        """Write the verdict, the events and the report. Does nothing before `begin`."""
        if self._record is None:
            return
        self._record = msgspec.structs.replace(
            self._record,
            ended_ms=int(time.time() * 1000),
            verdict=verdict,
            victim=victim,
            action=action,
            error=error,
            report=None if report is None else output.whole(as_json(_short(report))),
        )
        try:
            path = self._layout.drill(self._record.drill_id)
            self._client.set_async(path, encode(self._whole())).get(timeout=_TIMEOUT_S)
        except _AWAY as trouble:
            self.trouble = str(trouble) or type(trouble).__name__

    def _whole(self) -> DrillRecord:
        """Return the record with its events; without its report if the record would be too large for a znode."""
        assert self._record is not None, "the journal has begun"
        record = msgspec.structs.replace(self._record, events=tuple(self._events), events_dropped=self._dropped)
        return record if len(encode(record)) <= RECORD_BYTES_MAX else msgspec.structs.replace(record, report=None)

    def _delete(self, name: str) -> None:
        try:
            self._client.delete_async(self._layout.drill(name)).get(timeout=_TIMEOUT_S)
        except NoNodeError:
            return  # another drill has deleted the record


def _short(report: DrillReport) -> DrillReport:
    """Return a report with the regions that had the longest outages."""
    traffic = report.traffic
    if traffic is None or len(traffic.unavailability.per_region) <= REGIONS_MAX:
        return report
    worst = sorted(traffic.unavailability.per_region, key=lambda one: -one.longest_s)[:REGIONS_MAX]
    seen = msgspec.structs.replace(traffic.unavailability, per_region=worst)
    return msgspec.structs.replace(report, traffic=msgspec.structs.replace(traffic, unavailability=seen))
