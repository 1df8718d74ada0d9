"""Reading one region: servers die, lose the region or the snapshot; the rows are all of one moment, or the read
fails."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cli.backup.format import RegionBackup
from cli.backup.restore import create_request
from cli.backup.source import RegionFailedError, RegionSource, StoppedError
from coord.rpc.wire import Code, RpcError
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, ReplicaLocation, ServerRecord, TableRecord
from regionserver.kv.held import SNAPSHOT_GONE
from regionserver.kv.messages import KvSnapshot, RowsPoint, SnapshotPage
from regionserver.kv.packing import checksum, pack_row, unpack_rows
from regionserver.request_gate import NOT_SERVING
from regionserver.tablets.messages import KnownLeader, LeaderElsewhere, TabletLeader, TabletSnapshot
from tests.unit.cli.backup.test_files import RowsTotals

SHARED = RegionRecord("t", "r", replicas=(ReplicaLocation(0, "s1", 7, 1),))
TABLET = RegionRecord(
    "t",
    "r",
    members=tuple(Member(number, f"s{number}", MemberRole.VOTER) for number in (1, 2, 3)),
    next_number=4,
    leader=1,
)
POINT = RowsPoint("rows-5.mdb", 9)


class Sink:
    def __init__(self) -> None:
        self.begun = 0
        self.rows: dict[bytes, bytes] = {}

    def begin(self) -> None:
        self.begun += 1
        self.rows = {}

    def add(self, packed: bytes) -> None:
        self.rows.update(unpack_rows(packed))


class Locator:
    """The store as the locator shows it: a record, which may change, and servers s1 to s3."""

    def __init__(self, region: RegionRecord | None) -> None:
        self.region = region
        self.refreshed: list[str] = []

    def refresh(self, _table: str, _region: str) -> RegionRecord | None:
        return self.region

    def server(self, uuid: str, start_code: int) -> ServerRecord:
        return ServerRecord(uuid, uuid, 1, start_code)

    def servers(self, uuids: Any) -> list[ServerRecord]:
        return [ServerRecord(uuid, uuid, 1, 7) for uuid in uuids]

    def refresh_server(self, uuid: str) -> None:
        self.refreshed.append(uuid)


def page(held: str = "", next_key: bytes = b"", **rows: str) -> SnapshotPage:
    packed = b"".join(pack_row(key.encode(), value.encode()) for key, value in rows.items())
    return SnapshotPage(POINT, held, packed, checksum(packed), next_key)


class Scripted:
    """Servers that answer by a script: each step is an answer, or an error."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.asked: list[tuple[str, Any]] = []

    def call(self, address: tuple[str, int], request: Any, _expect: Any, _timeout_s: float) -> Any:
        self.asked.append((address[0], request))
        step = self.steps.pop(0)
        if callable(step):
            step = step()
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        pass


def source_of(region: RegionRecord | None, *steps: Any, patience_s: float = 60.0) -> tuple[RegionSource, Scripted]:
    source = RegionSource(Locator(region), 0, patience_s)  # type: ignore[arg-type]
    script = Scripted(*steps)
    source._connections = script  # type: ignore[assignment]
    return source, script


def lost(code: str) -> RpcError:
    return RpcError(code, "lost")


@pytest.mark.parametrize("code", [SNAPSHOT_GONE, NOT_SERVING, Code.CONNECTION_LOST, Code.TIMEOUT, Code.BUSY])
def test_a_region_whose_snapshot_is_lost_is_read_from_its_beginning(code: str) -> None:
    """No row of the first attempt is left."""
    source, script = source_of(
        SHARED, page("h1", b"b", a="1", aa="deleted meanwhile"), lost(code), page("h2", b"b", a="2"), page(b="2")
    )
    sink = Sink()
    read = source.read(SHARED, None, sink)
    assert (sink.rows, sink.begun, read.point, read.is_same) == ({b"a": b"2", b"b": b"2"}, 2, POINT, False)
    assert [(one.held, one.start) for _, one in script.asked] == [("", b""), ("h1", b"b"), ("", b""), ("h2", b"b")]


def test_a_region_that_moves_is_read_from_its_new_server() -> None:
    locator = Locator(SHARED)
    source, script = source_of(SHARED)
    source._locator = locator  # type: ignore[assignment]

    def move() -> RpcError:
        locator.region = SHARED.with_location(ReplicaLocation(0, "s2", 7, 2))
        return lost(NOT_SERVING)

    script.steps = [page("h1", b"b", a="1"), move, page(a="2")]
    sink = Sink()
    assert source.read(SHARED, None, sink).server == "s2"
    assert [where for where, _ in script.asked] == ["s1", "s1", "s2"]
    assert sink.rows == {b"a": b"2"}


def test_rows_that_arrive_damaged_are_asked_for_again() -> None:
    broken = SnapshotPage(POINT, "", pack_row(b"a", b"1"), 5)
    source, _ = source_of(SHARED, broken, page(a="1"))
    sink = Sink()
    source.read(SHARED, None, sink)
    assert (sink.rows, sink.begun) == ({b"a": b"1"}, 2)


def test_an_unchanged_region_is_one_request() -> None:
    source, script = source_of(SHARED, SnapshotPage(POINT, is_same=True))
    assert source.read(SHARED, POINT, Sink()).is_same
    assert script.asked[0][1].known == POINT
    assert len(script.asked) == 1


@pytest.mark.parametrize("code", ["damaged", Code.BAD_REQUEST, Code.UNSUPPORTED])
def test_errors_that_another_attempt_would_find_again_end_the_backup(code: str) -> None:
    source, script = source_of(SHARED, lost(code), page(a="1"))
    with pytest.raises(RegionFailedError, match="region r: lost"):
        source.read(SHARED, None, Sink())
    assert len(script.asked) == 1


def test_a_region_that_stays_out_of_reach_is_named_with_the_reason() -> None:
    source, _ = source_of(SHARED, *[lost(NOT_SERVING)] * 50, patience_s=0.0)
    with pytest.raises(RegionFailedError, match="region r could not be read for 0 s: lost"):
        source.read(SHARED, None, Sink())


def test_a_deleted_table_ends_the_backup() -> None:
    source, _ = source_of(None)
    with pytest.raises(RegionFailedError, match="its table was deleted"):
        source.read(SHARED, None, Sink())


def test_a_tablet_is_read_from_the_leader_that_its_members_name() -> None:
    """The member that the record names leads no more; its answer names the leader. Later pages come from there."""
    elsewhere = LeaderElsewhere(KnownLeader("r", 5, TabletLeader(3, "s3", "s3", 1)), 0)
    source, script = source_of(TABLET, elsewhere, page("h", b"b", a="1"), page(b="2"))
    sink = Sink()
    assert source.read(TABLET, None, sink).server == "s3"
    assert [where for where, _ in script.asked] == ["s1", "s3", "s3"]
    assert sink.rows == {b"a": b"1", b"b": b"2"}
    assert all(isinstance(one, TabletSnapshot) for _, one in script.asked)


def test_a_tablet_whose_leader_is_dead_is_looked_for_at_all_members() -> None:
    source, script = source_of(TABLET, lost(Code.UNREACHABLE), LeaderElsewhere(KnownLeader("r", 5), 0), page(a="1"))
    source.read(TABLET, None, Sink())
    assert [where for where, _ in script.asked] == ["s1", "s2", "s3"]


def test_a_stopped_read_releases_its_snapshot() -> None:
    source, script = source_of(SHARED)

    def stop() -> SnapshotPage:
        source.stop()
        return page("h1", b"b", a="1")

    script.steps = [stop, SnapshotPage(RowsPoint())]
    with pytest.raises(StoppedError):
        source.read(SHARED, None, Sink())
    last = script.asked[-1][1]
    assert isinstance(last, KvSnapshot)
    assert (last.held, last.ends) == ("h1", True)


def region_of(start: str, end: str) -> RegionBackup:
    return RegionBackup("r", start, end, "", 0, 0, 0, RowsTotals().digest.hex(), 0)


def test_a_table_is_made_with_the_regions_of_the_backup() -> None:
    plain = create_request(TableRecord("t", "n"), [region_of("", "g"), region_of("g", "")], "new")
    assert ([(one.start_key, one.end_key) for one in plain.regions], plain.splits) == ([("", "g"), ("g", "")], [])
    bounds = ["", "0000:m", "0001:", "0001:m", ""]
    spread = [region_of(start, end) for start, end in itertools.pairwise(bounds)]
    hashed = create_request(TableRecord("t", "n", hash_buckets=2), spread, "new")
    assert (hashed.splits, hashed.regions, hashed.hash_buckets) == (["m"], [], 2)


@pytest.mark.parametrize("region", [SHARED, TABLET])
def test_a_range_begins_at_its_key_and_ends_the_snapshot_after_its_last_page(region: RegionRecord) -> None:
    """Fails when the snapshot is not ended: the server keeps few at once, and each until it has been idle for long."""
    source, script = source_of(region, page("h1", b"c", b="1"), page("h1", b"e", d="2"), SnapshotPage(POINT))
    sink = Sink()
    source.read(region, None, sink, (b"b", b"e"))
    assert sink.rows == {b"b": b"1", b"d": b"2"}
    begun, read_on, ended = (request for _, request in script.asked)
    assert (begun.held, begun.start) == ("", b"b")
    assert (read_on.held, read_on.start, read_on.ends) == ("h1", b"c", False)
    assert (ended.held, ended.ends) == ("h1", True)
