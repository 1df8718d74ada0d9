"""N11: what `rk unstick` has done is undone while nothing but its own consequences has happened since."""

from __future__ import annotations

import msgspec
import pytest

from regions.diagnose.remedy.undo import RegionNow, undo
from regions.records.acts.undo import Remedy, UndoRecord
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation, ServerRecord

ASSIGNED = UndoRecord("u1", Remedy.ASSIGN, "t", "t.1", 0, 1_000, region_version=5)
RETRIED = UndoRecord("u2", Remedy.RETRY, "t", "t.1", 0, 1_000, region_version=4)
FENCED = UndoRecord(
    "u3", Remedy.FENCE, "t", "t.1", 0, 1_000, server=Incarnation("s1", 7), replicas={"t.1-0": 4, "t.2-0": 9}
)


def region(name: str, *, on: str | None = "s2", unassigned: bool = False) -> RegionRecord:
    at = ReplicaLocation(0, on, None if on is None else 1)
    return RegionRecord("t", name, replicas=(at,), unassigned=unassigned)


def server(uuid: str, start_code: int) -> dict[str, ServerRecord]:
    return {uuid: ServerRecord(uuid, "h", 1, start_code)}


@pytest.mark.parametrize(
    ("version", "unassigned", "refusal"),
    [
        (5, False, ""),
        (6, False, ""),  # the open has written the location
        (7, False, "written 1 more time since: version 7, and 6 follows"),
        (9, False, "written 3 more times since"),
        (6, True, "has been unassigned since"),
    ],
)
def test_an_assignment_is_undone_at_the_versions_that_follow_from_it(
    version: int, unassigned: bool, refusal: str
) -> None:
    found = undo(ASSIGNED, {"t.1": RegionNow(region("t.1", unassigned=unassigned), version)}, {})
    assert refusal in found.refusal
    assert (found.region_version, bool(found.refusal)) == ((version, False) if not refusal else (0, True))


def test_what_cannot_be_undone_says_why_and_what_to_do_instead() -> None:
    assert undo(ASSIGNED, {}, {}).refusal == "region t.1 is gone"
    assert "a retry leaves nothing to undo" in undo(RETRIED, {}, {}).refusal
    assert undo(RETRIED, {}, {}).hint.startswith("rk region unassign t.1")
    assert undo(msgspec.structs.replace(ASSIGNED, undone_ms=1), {}, {}).refusal == "it has been undone already"


def test_the_regions_of_a_fenced_server_move_back_if_they_are_where_the_fence_has_brought_them() -> None:
    now = {"t.1-0": RegionNow(region("t.1"), 5), "t.2-0": RegionNow(region("t.2"), 10)}
    assert undo(FENCED, now, server("s1", 8)).replicas == ("t.1-0", "t.2-0")
    now["t.2-0"] = RegionNow(region("t.2"), 11)
    found = undo(FENCED, now, server("s1", 8))
    assert found.replicas == ("t.1-0",)
    assert found.left == {"t.2-0": "it has moved since: version 11 instead of 10"}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (RegionNow(region("t.1"), 5, in_transition=True), "it is in transition"),
        (RegionNow(region("t.1", on=None), 5), "it is closed"),
        (RegionNow(region("t.1", on="s1"), 5), "it is on the server again"),
        (None, "it is gone"),
    ],
)
def test_a_replica_that_is_elsewhere_by_now_stays(now: RegionNow | None, why: str) -> None:
    record = msgspec.structs.replace(FENCED, replicas={"t.1-0": 4})
    found = undo(record, {} if now is None else {"t.1-0": now}, server("s1", 8))
    assert (found.replicas, found.left) == ((), {"t.1-0": why})
    assert found.refusal == "none of the server's 1 replicas is where the fence has brought it"


def test_the_server_must_have_registered_again() -> None:
    now = {"t.1-0": RegionNow(region("t.1"), 5)}
    assert undo(FENCED, now, {}).refusal == "server s1 has not registered again"
    assert "it was not fenced" in undo(FENCED, now, server("s1", 7)).refusal
    many = msgspec.structs.replace(FENCED, replicas={}, replicas_dropped=401)
    assert "the server had 401 replicas" in undo(many, now, server("s1", 8)).refusal
