"""The client of regions: requests that it repeats, requests that it does not, and how it follows a region."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from coord.rpc.wire import Code, RpcError
from regions.records import partitioning
from regions.records import znodes as layout
from regions.records.model import (
    RegionRecord,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
)
from regions.records.znodes import CorruptZnode, Layout
from regionserver.client import (
    Attempt,
    Change,
    NoSuchTable,
    OutcomeUnknown,
    RecordDamaged,
    Refused,
    RegionClient,
    RegionLocator,
    Staleness,
    TableDisabled,
    Unavailable,
    shared,
)
from regionserver.kv.messages import KEYS_MAX, KvRead, KvRow, KvRows, KvScan, KvValues, KvWrite, KvWritten

PATHS = Layout("/rk")
SPLITS = ["", "f", "m", "t", ""]


class Store:
    """The methods of kazoo that the client uses, over a dict."""

    def __init__(self) -> None:
        self.znodes: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.failures: list[Exception] = []
        self.znodes[PATHS.name("rows")] = b"t1"
        self.znodes[PATHS.table("t1")] = layout.encode(TableRecord("t1", "rows"))
        for number in range(4):
            self.open(number, "s1")
        for uuid in ("s1", "s2"):
            self.znodes[PATHS.server(uuid)] = layout.encode(ServerRecord(uuid, uuid, 1, 7))

    def open(self, number: int, uuid: str, since_ms: int = 1) -> None:
        """Mark the region as open there."""
        record = RegionRecord("t1", f"t1.{number}", SPLITS[number], SPLITS[number + 1],
                              replicas=(ReplicaLocation(0, uuid, 7, since_ms),))  # fmt: skip
        self.znodes[PATHS.region("t1", record.region_id)] = layout.encode(record)

    hosts: tuple[()] = ()
    connected = True

    def get(self, path: str) -> tuple[bytes, None]:
        if self.failures:
            raise self.failures.pop()
        self.reads.append(path)
        if path not in self.znodes:
            raise NoNodeError
        return self.znodes[path], None

    def get_children(self, path: str) -> list[str]:
        return [one.rpartition("/")[2] for one in self.znodes if one.startswith(f"{path}/")]

    def get_async(self, path: str) -> Answer:
        return Answer(lambda: self.get(path))

    def get_children_async(self, path: str) -> Answer:
        return Answer(lambda: self.get_children(path))


class Answer:
    """kazoo's result of a request in progress."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def get(self, timeout: float) -> Any:
        assert timeout > 0
        return self.answer()


class Cluster:
    """A client whose requests the test answers; time passes only in its pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Store()
        self.attempts: list[Attempt] = []
        self.client = RegionClient(RegionLocator(self.store, PATHS), timeout_s=10, on_attempt=self.attempts.append)
        self.asked: list[tuple[str, Any, float]] = []
        self.answers: list[Any] = []
        self.now_s = 0.0
        monkeypatch.setattr(self.client._connections, "call", self._call)
        # Threads left over from another test must not advance this test's clock.
        self._thread = threading.get_ident()
        self._monotonic, self._real_sleep = time.monotonic, time.sleep
        monkeypatch.setattr(shared.time, "monotonic", self._now)
        monkeypatch.setattr(shared.time, "sleep", self._sleep)

    def _now(self) -> float:
        return self.now_s if threading.get_ident() == self._thread else self._monotonic()

    def _sleep(self, seconds: float) -> None:
        if threading.get_ident() == self._thread:
            self.now_s += seconds
        else:
            self._real_sleep(seconds)

    def _call(self, address: tuple[str, int], message: Any, expect: Any, timeout_s: float) -> Any:
        self.asked.append((address[0], message, timeout_s))
        answer = self.answers.pop(0) if self.answers else RpcError(Code.TIMEOUT, "silence")
        if isinstance(answer, Callable):  # type: ignore[arg-type]
            answer = answer()
        if isinstance(answer, RpcError):
            if answer.code == Code.TIMEOUT:
                self.now_s += timeout_s
            raise answer
        return answer


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_region_is_found_by_binary_search_and_then_cached(cluster: Cluster) -> None:
    """A dozen reads for thousands of regions, and none the second time."""
    cluster.answers = [KvValues([b"1"]), KvValues([b"2"])]
    assert cluster.client.get("rows", "n") == b"1"
    regions = [path for path in cluster.store.reads if path.startswith(PATHS.regions)]
    assert len(regions) <= 3
    count = len(cluster.store.reads)
    assert cluster.client.get("rows", "o") == b"2"
    assert len(cluster.store.reads) == count
    assert [message.place.region_id for _, message, _ in cluster.asked] == ["t1.2", "t1.2"]


def test_a_moved_region_is_followed_at_once(cluster: Cluster) -> None:
    """The rejection costs a read of the store, but no pause."""

    def moved() -> RpcError:
        cluster.store.open(2, "s2", since_ms=2)
        return RpcError("not_serving", "gone")

    cluster.answers = [moved, KvValues([b"1"])]
    assert cluster.client.get("rows", "n") == b"1"
    assert [host for host, _, _ in cluster.asked] == ["s1", "s2"]
    assert cluster.now_s == 0
    assert [one.code for one in cluster.attempts] == ["not_serving", ""]


@pytest.mark.parametrize("code", ["not_serving", "wrong_server", "no_lease", "unreachable", "busy", "wrong_region"])
def test_a_request_that_was_certainly_not_done_is_retried(cluster: Cluster, code: str) -> None:
    """Also by calls that may not be repeated."""
    cluster.answers = [RpcError(code, ""), RpcError(code, ""), KvWritten(1)]
    reply = cluster.client.call("rows", "n", lambda place, _r, _a: KvRead(place, ["n"]), KvWritten, is_repeatable=False)
    assert reply == KvWritten(1)


@pytest.mark.parametrize("code", ["timeout", "connection_lost", "fenced", "superseded"])
def test_a_request_with_an_unknown_outcome_is_repeated_only_if_idempotent(cluster: Cluster, code: str) -> None:
    """A put is idempotent, as another attempt of the same write; other calls raise an error with an unknown outcome."""
    cluster.answers = [RpcError(code, ""), KvWritten(1)]
    cluster.client.put("rows", "n", b"1")
    (_, first, _), (_, second, _) = cluster.asked
    assert isinstance(first, KvWrite)
    assert (first.writer, first.number) == (second.writer, second.number)
    assert (first.attempt, second.attempt) == (0, 1)
    cluster.answers = [RpcError(code, "")]
    with pytest.raises(OutcomeUnknown) as caught:
        cluster.client.call("rows", "n", lambda place, _r, _a: KvRead(place, ["n"]), KvWritten, is_repeatable=False)
    assert caught.value.may_have_been_done


def test_the_timeout_of_a_silent_server_grows(cluster: Cluster) -> None:
    """The server may be frozen or slow. The call ends at its deadline, with an error that names the deadline."""
    with pytest.raises(Unavailable, match=r"'n': no answer within 10 s; last: silence") as caught:
        cluster.client.put("rows", "n", b"1")
    assert [round(within_s) for _, _, within_s in cluster.asked] == [1, 2, 4, 3]
    assert cluster.now_s == pytest.approx(10)
    assert caught.value.may_have_been_done


def test_the_limit_of_a_call_is_shown_rounded(cluster: Cluster) -> None:
    """`rk` passes what is left of --timeout."""
    with pytest.raises(Unavailable, match=r"'n': no answer within 3 s; last: silence"):
        cluster.client.put("rows", "n", b"1", timeout_s=2.99176)


def test_staleness_of_shared_rows_is_the_time_of_the_call(cluster: Cluster) -> None:
    """A write may have been acknowledged while the answer was on its way."""

    def late(reply: KvValues | KvRows) -> Callable[[], KvValues | KvRows]:
        def answer() -> KvValues | KvRows:
            cluster.now_s += 0.5
            return reply

        return answer

    staleness = Staleness(bound_ms=1000)
    cluster.answers = [late(KvValues([b"1"]))]
    assert cluster.client.get("rows", "n", staleness=staleness) == b"1"
    assert 500 <= staleness.age_ms <= 501
    scanned = Staleness(bound_ms=1000)
    cluster.answers = [KvRows([]), late(KvRows([])), KvRows([]), KvRows([])]
    assert list(cluster.client.scan("rows", staleness=scanned)) == []
    assert 500 <= scanned.age_ms <= 501


def test_a_final_rejection_is_raised_at_once(cluster: Cluster) -> None:
    """So is an unknown table."""
    cluster.answers = [RpcError("region_full", "the region is full")]
    with pytest.raises(Refused, match="full"):
        cluster.client.put("rows", "n", b"1")
    with pytest.raises(NoSuchTable):
        cluster.client.get("nope", "n")
    assert cluster.now_s == 0


def test_a_closed_region_is_waited_for(cluster: Cluster) -> None:
    """Its server's registration is gone; pauses grow to their limit; nothing was sent, so nothing was done."""
    del cluster.store.znodes[PATHS.server("s1")]
    with pytest.raises(Unavailable, match="its server is not registered") as caught:
        cluster.client.put("rows", "n", b"1")
    assert cluster.asked == []
    assert not caught.value.may_have_been_done
    assert 10 / shared.PAUSE_MAX_S <= len(cluster.attempts) < 60


def test_another_start_of_the_server_is_another_server(cluster: Cluster) -> None:
    """The location names the start; the registration of a later start is not used for it."""
    cluster.store.znodes[PATHS.server("s1")] = layout.encode(ServerRecord("s1", "s1", 1, 8))
    with pytest.raises(Unavailable, match="server is not registered"):
        cluster.client.get("rows", "n")
    assert cluster.asked == []


def test_a_store_that_does_not_answer_is_asked_again(cluster: Cluster) -> None:
    """The session comes back by itself."""
    cluster.store.failures = [ConnectionLoss(), ConnectionLoss()]
    cluster.answers = [KvValues([b"1"])]
    assert cluster.client.get("rows", "n") == b"1"


def test_many_changes_go_to_their_regions_in_bounded_writes(cluster: Cluster) -> None:
    """At most KEYS_MAX per request, one region per request."""
    changes = [Change(f"a{number:05}", b"") for number in range(KEYS_MAX + 1)] + [Change("z", b"")]
    cluster.answers = [KvWritten(1)] * 3
    assert cluster.client.write("rows", changes) == len(changes)
    sizes = [(message.place.region_id, len(message.changes)) for _, message, _ in cluster.asked]
    assert sizes == [("t1.0", KEYS_MAX), ("t1.0", 1), ("t1.3", 1)]


def test_a_scan_goes_from_page_to_page_and_region_to_region(cluster: Cluster) -> None:
    """The scan ends at the end of the range, or after the limit of rows."""
    cluster.answers = [
        KvRows([KvRow("a", b"1"), KvRow("b", b"2")], "c"),
        KvRows([KvRow("c", b"3")]),
        KvRows([]),
        KvRows([KvRow("n", b"4")]),
    ]
    assert [key for key, _ in cluster.client.scan("rows", end="p")] == ["a", "b", "c", "n"]
    asked = [(message.place.region_id, message.start) for _, message, _ in cluster.asked if isinstance(message, KvScan)]
    assert asked == [("t1.0", ""), ("t1.0", "c"), ("t1.1", "f"), ("t1.2", "m")]
    cluster.answers = [KvRows([KvRow("a", b"1"), KvRow("b", b"2")], "c")]
    assert len(list(cluster.client.scan("rows", rows_max=2))) == 2


def hash_rows(cluster: Cluster) -> None:
    """Make the table one of two buckets, each split at "m"."""
    znodes = cluster.store.znodes
    for path in [one for one in znodes if one.startswith(f"{PATHS.table_regions('t1')}/")]:
        del znodes[path]
    znodes[PATHS.table("t1")] = layout.encode(TableRecord("t1", "rows", hash_buckets=2))
    for number, spec in enumerate(partitioning.ranges(["m"], 2)):
        places = (ReplicaLocation(0, "s1", 7, 1),)
        record = RegionRecord("t1", f"t1.{number}", spec.start_key, spec.end_key, replicas=places, hash_buckets=2)
        znodes[PATHS.region("t1", record.region_id)] = layout.encode(record)


def test_keys_are_placed_in_their_buckets(cluster: Cluster) -> None:
    """The region is that of the placed key, and the request has the placed key."""
    hash_rows(cluster)
    cluster.answers = [KvValues([b"1"]), KvWritten(1)]
    cluster.client.get("rows", "apple")
    cluster.client.put("rows", "zebra", b"2")
    (_, read, _), (_, write, _) = cluster.asked
    assert read.keys == [partitioning.place("apple", 2)]
    assert write.changes == [Change(partitioning.place("zebra", 2), b"2")]
    for message, key in ((read, "apple"), (write, "zebra")):
        bucket = partitioning.bucket_of(key, 2)
        assert message.place.region_id == f"t1.{2 * bucket + (key > 'm')}"


def test_a_scan_of_buckets_is_in_the_order_of_keys(cluster: Cluster) -> None:
    """Each bucket has a part of the rows; the results are merged, without the buckets, and end where they should."""
    hash_rows(cluster)
    rows = {f"k{number}": str(number).encode() for number in range(8)}

    def page(_address: tuple[str, int], message: KvScan, _expect: Any, _timeout_s: float) -> KvRows:
        placed = sorted((partitioning.place(key, 2), value) for key, value in rows.items())
        region = partitioning.ranges(["m"], 2)[int(message.place.region_id.rpartition(".")[2])]
        low, high = max(region.start_key, message.start), min(region.end_key or "~", message.end or "~")
        found = [KvRow(key, value) for key, value in placed if low <= key < high]
        return KvRows(found[: message.rows_max])

    cluster.client._connections.call = page  # type: ignore[method-assign, assignment]
    assert list(cluster.client.scan("rows")) == sorted(rows.items())
    assert [key for key, _ in cluster.client.scan("rows", "k2", "k6")] == ["k2", "k3", "k4", "k5"]
    assert [key for key, _ in cluster.client.scan("rows", rows_max=3)] == ["k0", "k1", "k2"]


def test_a_replaced_region_is_not_used(cluster: Cluster) -> None:
    """DD-03: its record is kept and has the same range; the region in its place is asked."""
    former = RegionRecord("t1", "t1.2", "m", "t", state=TabletState.REPLACED)
    cluster.store.znodes[PATHS.region("t1", "t1.2")] = layout.encode(former)
    fresh = RegionRecord("t1", "t1.2r1", "m", "t", replicas=(ReplicaLocation(0, "s2", 7, 1),))
    cluster.store.znodes[PATHS.region("t1", "t1.2r1")] = layout.encode(fresh)
    cluster.answers = [KvValues([b"1"])]
    assert cluster.client.get("rows", "n") == b"1"
    assert cluster.asked[0][1].place.region_id == "t1.2r1"
    assert [one.region_id for one in cluster.client.locator.regions("rows") or []] == ["t1.0", "t1.1", "t1.2r1", "t1.3"]


def test_a_corrupt_region_record_hides_no_other_region(cluster: Cluster) -> None:
    """The record at which the binary search begins is overwritten: keys of other regions are found."""
    path = PATHS.region("t1", "t1.1")
    cluster.store.znodes[path] = b"rubbish"
    for key, number in (("a", 0), ("n", 2), ("z", 3)):
        found = RegionLocator(cluster.store, PATHS).region_of("rows", key)
        assert found is not None
        assert found.region_id == f"t1.{number}"
    with pytest.raises(CorruptZnode, match=path):
        RegionLocator(cluster.store, PATHS).region_of("rows", "g")
    with pytest.raises(CorruptZnode, match=path):
        RegionLocator(cluster.store, PATHS).regions("rows")
    cluster.store.znodes[PATHS.name("rows")] = b"\xff"
    with pytest.raises(CorruptZnode, match=PATHS.name("rows")):
        RegionLocator(cluster.store, PATHS).table("rows")


@pytest.mark.parametrize(
    "path",
    [PATHS.name("rows"), PATHS.table("t1"), PATHS.region("t1", "t1.1"), PATHS.server("s1")],
    ids=["name", "table", "region", "server"],
)
def test_a_damaged_record_is_an_error_of_the_call(cluster: Cluster, path: str) -> None:
    """Callers only catch DataError, for any content of the store."""
    cluster.store.znodes[path] = b"\xff"
    for call in (
        lambda: cluster.client.get("rows", "g"),
        lambda: cluster.client.put("rows", "g", b"1"),
        lambda: list(cluster.client.scan("rows", "g")),
        lambda: cluster.client.write("rows", [Change("g", b"1")]),
    ):
        with pytest.raises(RecordDamaged, match=path):
            call()
    assert cluster.asked == []


def test_a_record_that_is_damaged_after_a_lost_reply_leaves_the_outcome_open(cluster: Cluster) -> None:
    def lost() -> RpcError:
        cluster.store.znodes[PATHS.server("s1")] = b"\xff"
        cluster.client.locator._servers.clear()
        return RpcError(Code.CONNECTION_LOST, "")

    cluster.answers = [lost]
    with pytest.raises(RecordDamaged) as error:
        cluster.client.put("rows", "g", b"1")
    assert error.value.may_have_been_done


def test_a_known_place_is_used_while_the_store_is_silent(cluster: Cluster) -> None:
    """A server that was unreachable for a moment is asked again, although the store cannot confirm that it still has
    the region."""
    cluster.answers = [KvValues([b"1"])]
    cluster.client.get("rows", "n")
    cluster.store.failures = [ConnectionLoss() for _ in range(10_000)]
    cluster.answers = [RpcError("unreachable", "refused"), KvValues([b"2"])]
    assert cluster.client.get("rows", "n") == b"2"
    assert cluster.now_s < shared.REFRESH_S + 1


def test_another_kind_of_service_is_named_and_nothing_was_done(cluster: Cluster) -> None:
    """The rejection is final: no server of that kind will ever answer."""
    cluster.answers = [RpcError(Code.UNSUPPORTED, "server s1 of kind counters/1 does not answer KvWrite requests")]
    with pytest.raises(Refused, match="server s1 of kind counters/1 does not answer KvWrite") as caught:
        cluster.client.put("rows", "n", b"1")
    assert not caught.value.may_have_been_done


def disable(store: Store) -> None:
    """Disable the table: its record says so, and no region is open."""
    store.znodes[PATHS.table("t1")] = layout.encode(TableRecord("t1", "rows", intent=TableIntent.DISABLED))
    for number in range(4):
        record = RegionRecord("t1", f"t1.{number}", SPLITS[number], SPLITS[number + 1])
        store.znodes[PATHS.region("t1", record.region_id)] = layout.encode(record)


def test_a_disabled_table_is_refused_at_once(cluster: Cluster) -> None:
    """B10: it is not an outage, and nobody waits for it. Regions that are still open serve."""
    cluster.answers = [KvValues([b"1"])]
    assert cluster.client.get("rows", "a") == b"1"
    disable(cluster.store)
    cluster.answers = [RpcError("not_serving", "closed")]
    with pytest.raises(TableDisabled, match="table 'rows' is disabled") as raised:
        cluster.client.put("rows", "a", b"2")
    assert not raised.value.may_have_been_done
    assert cluster.now_s == 0.0


def test_another_table_with_the_name_of_a_deleted_one_is_used(cluster: Cluster) -> None:
    """The records of the deleted table stay in the store, and are in the client's cache."""
    cluster.answers = [KvValues([b"1"])]
    assert cluster.client.get("rows", "a") == b"1"
    disable(cluster.store)
    cluster.store.znodes[PATHS.table("t1")] = layout.encode(TableRecord("t1", "rows", state=TableState.REMOVED))
    record = RegionRecord("t2", "t2.0", "", "", replicas=(ReplicaLocation(0, "s1", 7, 1),))
    cluster.store.znodes |= {
        PATHS.name("rows"): b"t2",
        PATHS.table("t2"): layout.encode(TableRecord("t2", "rows")),
        PATHS.region("t2", "t2.0"): layout.encode(record),
    }
    cluster.answers = [RpcError("not_serving", "closed"), KvValues([b"2"])]
    assert cluster.client.get("rows", "a") == b"2"
    assert cluster.asked[-1][1].place.region_id == "t2.0"


def test_a_write_without_an_answer_before_the_table_was_disabled_may_have_been_done(cluster: Cluster) -> None:
    def silence() -> RpcError:
        disable(cluster.store)
        return RpcError(Code.CONNECTION_LOST, "by the test")

    cluster.answers = [silence]
    with pytest.raises(TableDisabled) as raised:
        cluster.client.put("rows", "a", b"2")
    assert raised.value.may_have_been_done
