"""Requests to tablets: valid encodings, and requests that a server rejects before any work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coord.rpc.wire import Code, Request, RpcError, decode_request, encode_body
from regions.records.model import RegionRecord
from regions.records.partitioning import place
from regionserver.kv.messages import KEYS_MAX, PAGE_ROWS_MAX
from regionserver.tablets.commands import (
    NUMBER_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    CompareAndSet,
    DeleteRow,
    PutRow,
    WriteOutcome,
    encode,
)
from regionserver.tablets.messages import (
    TABLET_BYTES_MAX,
    WHO_LEADS_MAX,
    WRONG_REGION,
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletPage,
    TabletRead,
    TabletReply,
    TabletRequest,
    TabletScan,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
    check_request,
    check_tablets,
)

RANGE = RegionRecord("t1", "t1.1", "d", "m")
BUCKETS = RegionRecord("t1", "t1.1", hash_buckets=4)
VIEW = KnownLeader("t1.1", 7, TabletLeader(2, "s2", "10.0.0.2", 7001))


def write(*operations: Any, **changes: Any) -> TabletWrite:
    return msgspec.structs.replace(TabletWrite("t1.1", "w", 5, 3, 1000, list(operations)), **changes)


@pytest.mark.parametrize(
    "request_",
    [
        TabletRead("t1.1", ["a", "b"], at_least=9),
        TabletScan("t1.1", "a", "b", 10),
        write(PutRow("a", b"1"), DeleteRow("b"), CompareAndSet("c", None, b"2")),
        WhoLeads(["t1.1", "t1.2"]),
    ],
)
def test_requests_come_back_as_they_were(request_: msgspec.Struct) -> None:
    assert decode_request(Request(1, encode_body(request_)), TabletRequest) == request_


@pytest.mark.parametrize(
    "reply",
    [
        TabletValues([b"1", None], 9, 1000),
        TabletPage([], "", 9, 1000),
        TabletWritten(WriteOutcome(0, 2, 9), 1000),
        LeaderElsewhere(VIEW, 1000),
        LeaderElsewhere(KnownLeader("t1.1"), 1000),
        Leaders([VIEW], 1000),
    ],
)
def test_replies_come_back_as_they_were(reply: msgspec.Struct) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=TabletReply) == reply


def test_the_leader_proposes_what_was_sent_with_its_own_time() -> None:
    request = write(PutRow("e", b"1"))
    command = request.command(2000)
    assert (command.writer, command.number, command.done_below, command.began_ms) == ("w", 5, 3, 1000)
    assert (command.time_ms, command.operations) == (2000, request.operations)
    assert encode(command)


@pytest.mark.parametrize(
    "request_",
    [
        TabletRead("t1.1", ["d"] * KEYS_MAX),
        TabletRead("t1.1", ["lzz"]),
        TabletScan("t1.1", "", "", PAGE_ROWS_MAX),
        write(*[PutRow("d", b"")] * OPERATIONS_MAX),
        write(PutRow("e", bytes(VALUE_BYTES_MAX))),
        write(*[PutRow("e", bytes(WRITE_BYTES_MAX // 4 - 1))] * 4),
        write(DeleteRow("e"), writer="w" * 64, number=NUMBER_MAX, done_below=NUMBER_MAX),
    ],
)
def test_a_request_at_its_limits_passes(request_: Any) -> None:
    check_request(request_, RANGE)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TabletRead("t1.1", []), Code.BAD_REQUEST),
        (TabletRead("t1.1", ["d"] * (KEYS_MAX + 1)), Code.BAD_REQUEST),
        (TabletRead("t1.1", ["d" * 512]), Code.BAD_REQUEST),
        (TabletRead("t1.1", ["d"], at_least=-1), Code.BAD_REQUEST),
        (TabletRead("t1.1", ["c"]), WRONG_REGION),
        (TabletRead("t1.1", ["m"]), WRONG_REGION),
        (TabletScan("t1.1", rows_max=0), Code.BAD_REQUEST),
        (TabletScan("t1.1", rows_max=PAGE_ROWS_MAX + 1), Code.BAD_REQUEST),
        (TabletScan("t1.1", start="\ud800"), Code.BAD_REQUEST),
        (TabletScan("t1.1", at_least=-1), Code.BAD_REQUEST),
        (write(), Code.BAD_REQUEST),
        (write(*[PutRow("d", b"")] * (OPERATIONS_MAX + 1)), Code.BAD_REQUEST),
        (write(PutRow("e", bytes(VALUE_BYTES_MAX + 1))), Code.BAD_REQUEST),
        (write(CompareAndSet("e", b"", bytes(VALUE_BYTES_MAX + 1))), Code.BAD_REQUEST),
        (write(*[PutRow("e", bytes(WRITE_BYTES_MAX // 4))] * 4), Code.BAD_REQUEST),
        (write(PutRow("z", b"")), WRONG_REGION),
        (write(PutRow("e", b""), writer=""), Code.BAD_REQUEST),
        (write(PutRow("e", b""), writer="w" * 65), Code.BAD_REQUEST),
        (write(PutRow("e", b""), number=-1, done_below=-1), Code.BAD_REQUEST),
        (write(PutRow("e", b""), done_below=6), Code.BAD_REQUEST),
        (write(PutRow("e", b""), began_ms=NUMBER_MAX + 1), Code.BAD_REQUEST),
    ],
)
def test_a_request_beyond_a_limit_is_rejected(request_: Any, code: str) -> None:
    with pytest.raises(RpcError) as raised:
        check_request(request_, RANGE)
    assert raised.value.code == code


def test_keys_begin_with_their_bucket() -> None:
    check_request(TabletRead("t1.1", [place("melon", 4)]), BUCKETS)
    with pytest.raises(RpcError) as raised:
        check_request(write(PutRow("melon", b"")), BUCKETS)
    assert raised.value.code == Code.BAD_REQUEST


def test_the_number_of_tablets_of_one_question_is_bounded() -> None:
    check_tablets(["t" * TABLET_BYTES_MAX] * WHO_LEADS_MAX)
    for tablets in ([], ["t"] * (WHO_LEADS_MAX + 1), [""], ["t" * (TABLET_BYTES_MAX + 1)]):
        with pytest.raises(RpcError):
            check_tablets(tablets)
