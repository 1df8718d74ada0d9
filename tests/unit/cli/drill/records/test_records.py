"""Records of drills: what a journal writes, when it deletes, and how a record is found again."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from cli.common.errors import CliError, NotFoundError
from cli.drill.records import journal as module
from cli.drill.records.history import choose, decode_report
from cli.drill.records.journal import DrillJournal
from cli.drill.report import DrillReport, InvariantCheck, RegionOutage, Traffic, Unavailability
from regions.records.acts.drills import DrillRecord, DrillVerdict
from regions.records.znodes import Layout, decode_drill

LAYOUT = Layout("/rk")


class Answer:
    """An answer that is there already."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    def get(self, timeout: float) -> Any:
        assert timeout > 0
        if self.error is not None:
            raise self.error
        return self.value


class FakeClient:
    """The znodes below /drills, with kazoo's calls."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.error: Exception | None = None

    def ensure_path(self, path: str) -> None:
        assert path == LAYOUT.drills

    def create_async(self, path: str, value: bytes) -> Answer:
        self.nodes[path] = value
        return Answer(error=self.error)

    def set_async(self, path: str, value: bytes) -> Answer:
        if path not in self.nodes:
            return Answer(error=NoNodeError())
        self.nodes[path] = value
        return Answer(error=self.error)

    def get_children_async(self, path: str) -> Answer:
        return Answer([one.rpartition("/")[2] for one in self.nodes])

    def delete_async(self, path: str) -> Answer:
        return Answer(self.nodes.pop(path))

    def records(self) -> list[DrillRecord]:
        return [decode_drill(data, path) for path, data in sorted(self.nodes.items())]


def report(regions: int = 0) -> DrillReport:
    """Return a report whose traffic disturbed this many regions."""
    seen = Unavailability(
        regions,
        regions,
        0,
        0,
        0,
        0,
        0,
        0,
        [RegionOutage(f"t.{number}", 1, number, number) for number in range(regions)],
    )
    traffic = Traffic(1.0, {}, 0, 0, 0, 0.0, 0.0, seen)
    return DrillReport("server-crash", "server-1", [], [InvariantCheck("all", True, "")], 0, 0, traffic=traffic)


def test_a_record_begins_unfinished_and_ends_with_verdict_events_and_report() -> None:
    client: Any = FakeClient()
    journal = DrillJournal(client, LAYOUT)
    journal.note(0.5, "at rest")
    journal.begin("server-crash", 7, "server-1")
    (begun,) = client.records()
    assert (begun.drill, begun.seed, begun.victim) == ("server-crash", 7, "server-1")
    assert begun.verdict is DrillVerdict.UNFINISHED
    assert begun.by
    assert [event.text for event in begun.events] == ["at rest"]
    journal.note(1.5, "killed server-1")
    journal.end(DrillVerdict.HELD, report(2), victim="server-1", action="was killed")
    (ended,) = client.records()
    assert ended.drill_id == begun.drill_id == journal.drill_id
    assert (ended.verdict, ended.action) == (DrillVerdict.HELD, "was killed")
    assert ended.ended_ms >= ended.began_ms
    assert [event.text for event in ended.events] == ["at rest", "killed server-1"]
    assert decode_report(ended) == report(2)


def test_an_interrupted_drill_has_no_report_and_a_refused_one_no_record() -> None:
    client: Any = FakeClient()
    journal = DrillJournal(client, LAYOUT)
    journal.end(DrillVerdict.FAILED, None, victim="", action="")
    assert client.nodes == {}
    journal.begin("freeze", 1)
    journal.end(DrillVerdict.INTERRUPTED, None, victim="store-1", action="was frozen", error="")
    (found,) = client.records()
    assert (found.verdict, found.victim, found.report) == (DrillVerdict.INTERRUPTED, "store-1", None)
    assert decode_report(found) is None


def test_the_oldest_records_beyond_the_limit_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRILLS_MAX", 2)
    client: Any = FakeClient()
    client.nodes = {LAYOUT.drill(name): b"{}" for name in ("20250101T000000Z-a", "20250102T000000Z-b")}
    DrillJournal(client, LAYOUT).begin("freeze", 1)
    names = sorted(path.rpartition("/")[2] for path in client.nodes)
    assert len(names) == 2
    assert names[0] == "20250102T000000Z-b"


def test_events_beyond_the_limit_are_dropped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 4)
    client: Any = FakeClient()
    journal = DrillJournal(client, LAYOUT)
    for number in range(6):
        journal.note(number, str(number))
    journal.begin("freeze", 1)
    (found,) = client.records()
    assert [event.text for event in found.events] == ["0", "1", "4", "5"]
    assert found.events_dropped == 2


def test_a_record_keeps_the_worst_regions_and_fits_into_a_znode(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = FakeClient()
    journal = DrillJournal(client, LAYOUT)
    journal.begin("freeze", 1)
    journal.end(DrillVerdict.HELD, report(module.REGIONS_MAX + 5), victim="", action="")
    kept = decode_report(client.records()[0])
    assert kept is not None
    assert kept.traffic is not None
    assert len(kept.traffic.unavailability.per_region) == module.REGIONS_MAX
    assert kept.traffic.unavailability.per_region[0].longest_s == module.REGIONS_MAX + 4
    monkeypatch.setattr(module, "RECORD_BYTES_MAX", 300)
    journal.end(DrillVerdict.HELD, report(50), victim="", action="")
    assert client.records()[0].report is None
    assert client.records()[0].verdict is DrillVerdict.HELD


def test_a_store_that_does_not_answer_fails_no_drill() -> None:
    client: Any = FakeClient()
    client.error = ConnectionLoss("gone")
    journal = DrillJournal(client, LAYOUT)
    journal.begin("freeze", 1)
    journal.end(DrillVerdict.HELD, report(), victim="", action="")
    assert journal.trouble == "gone"


def test_a_record_is_found_by_a_part_of_its_id() -> None:
    records = [DrillRecord(name, "freeze", 0) for name in ("20260101T000000Z-aaaa", "20260101T000001Z-aaab")]
    assert choose(records, "aaab") is records[1]
    assert choose(records, records[0].drill_id) is records[0]
    with pytest.raises(NotFoundError):
        choose(records, "x")
    with pytest.raises(CliError, match="fits 2 drills"):
        choose(records, "aaa")


def test_a_report_of_another_build_is_not_decoded() -> None:
    record = DrillRecord("x", "freeze", 0, report={"drill": 7})
    assert decode_report(record) is None
