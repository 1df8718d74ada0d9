"""Jute records: round trips, golden bytes from kazoo, and hostile input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo_wire
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from coord.errors import ERROR_CLASSES, NoNode, RemoteProtocolError, UnknownCode, error_for
from coord.wire import jute
from coord.wire import records as r

PATHS = st.binary(max_size=20)
DATA = st.none() | st.binary(max_size=40)
I32S = st.integers(-(2**31), 2**31 - 1)
I64S = st.integers(-(2**63), 2**63 - 1)
ACLS = st.lists(st.builds(r.Acl, I32S, PATHS, PATHS), max_size=3)
STATS = st.builds(r.Stat, I64S, I64S, I64S, I64S, I32S, I32S, I32S, I64S, I32S, I32S, I64S)
CREATE_OPS = st.sampled_from([r.OP_CREATE, r.OP_CREATE2, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL])


def plain(value: Any) -> Any:
    """Return a record as nested builtins, for comparisons."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__module__.startswith("coord."):
        # Not vars(): compiled classes have no __dict__.
        items = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
        return {name: plain(item) for name, item in items.items() if not callable(item)}
    return value


@st.composite
def creates(draw: st.DrawFn) -> r.CreateRequest:
    """Return a create of any kind."""
    opcode = draw(CREATE_OPS)
    ttl_ms = draw(I64S) if opcode == r.OP_CREATE_TTL else 0
    return r.CreateRequest(opcode, draw(PATHS), draw(DATA), draw(st.none() | ACLS), draw(I32S), ttl_ms)


@st.composite
def multi_ops(draw: st.DrawFn) -> r.MultiOp:
    """Return a part of a multi or multiRead."""
    opcode = draw(st.sampled_from([r.OP_SET_DATA, r.OP_CHECK, r.OP_DELETE, r.OP_GET_DATA, r.OP_GET_CHILDREN, 0]))
    if opcode == 0:
        create = draw(creates())
        return r.MultiOp(create.opcode, create.path, create.data, -1, create)
    path = draw(PATHS)
    if opcode == r.OP_SET_DATA:
        return r.MultiOp(opcode, path, draw(DATA), draw(I32S))
    if opcode in (r.OP_CHECK, r.OP_DELETE):
        return r.MultiOp(opcode, path, None, draw(I32S))
    return r.MultiOp(opcode, path, None, -1, None, draw(st.booleans()))


@st.composite
def multi_results(draw: st.DrawFn) -> r.MultiResult:
    """Return a part of the answer to a multi or multiRead."""
    opcode = draw(
        st.sampled_from(
            [r.OP_ERROR, r.OP_SET_DATA, r.OP_CREATE, r.OP_CREATE2, r.OP_GET_DATA, r.OP_GET_CHILDREN, r.OP_DELETE]
        )
    )
    if opcode == r.OP_ERROR:
        return r.MultiResult(opcode, draw(I32S))
    stat = draw(STATS) if opcode in (r.OP_SET_DATA, r.OP_CREATE2, r.OP_GET_DATA) else None
    path = draw(PATHS) if opcode in (r.OP_CREATE, r.OP_CREATE2) else b""
    data = draw(DATA) if opcode == r.OP_GET_DATA else None
    return r.MultiResult(
        opcode, 0, path, data, stat, draw(st.lists(PATHS, max_size=3)) if opcode == r.OP_GET_CHILDREN else None
    )


#: name -> (strategy of values, encode, decode) of every record with both directions.
PATH_LISTS = st.lists(PATHS, max_size=3)
ROUND_TRIPS: dict[str, tuple[Any, Any, Any]] = {
    "create": (creates(), r.encode_create, None),
    "path_version": (st.tuples(PATHS, I32S), lambda v: r.encode_path_version(*v), r.decode_path_version),
    "set_data": (st.tuples(PATHS, DATA, I32S), lambda v: r.encode_set_data(*v), r.decode_set_data),
    "path_watch": (st.tuples(PATHS, st.booleans()), lambda v: r.encode_path_watch(*v), r.decode_path_watch),
    "path": (PATHS, r.encode_path, r.decode_path),
    "set_acl": (st.tuples(PATHS, st.none() | ACLS, I32S), lambda v: r.encode_set_acl(*v), r.decode_set_acl),
    "set_watches2": (
        st.builds(r.WatchSets, I64S, *[PATH_LISTS] * 5),
        lambda v: r.encode_set_watches(v, second=True),
        lambda *a: r.decode_set_watches(*a, second=True),
    ),
    "set_watches": (
        st.builds(r.WatchSets, I64S, *[PATH_LISTS] * 3, st.just([]), st.just([])),
        lambda v: r.encode_set_watches(v, second=False),
        lambda *a: r.decode_set_watches(*a, second=False),
    ),
    "auth": (st.tuples(st.just(0), PATHS, PATHS), lambda v: r.encode_auth(*v[1:]), r.decode_auth),
    "sasl": (DATA, r.encode_sasl, r.decode_sasl),
    "reconfig": (st.tuples(PATHS, PATHS, PATHS, I64S), lambda v: r.encode_reconfig(*v), r.decode_reconfig),
    "multi": (st.lists(multi_ops(), max_size=4), r.encode_multi, r.decode_multi),
    "multi_reply": (st.lists(multi_results(), max_size=4), r.encode_multi_reply, r.decode_multi_reply),
    "stat": (STATS, r.encode_stat, r.decode_stat),
    "create2_reply": (st.tuples(PATHS, STATS), lambda v: r.encode_create2_reply(*v), r.decode_create2_reply),
    "data_reply": (st.tuples(DATA, STATS), lambda v: r.encode_data_reply(*v), r.decode_data_reply),
    "strings_reply": (PATH_LISTS, r.encode_strings_reply, r.decode_strings_reply),
    "children2_reply": (
        st.tuples(PATH_LISTS, STATS),
        lambda v: r.encode_children2_reply(*v),
        r.decode_children2_reply,
    ),
    "acl_reply": (st.tuples(ACLS, STATS), lambda v: r.encode_acl_reply(*v), r.decode_acl_reply),
    "number_reply": (I32S, r.encode_number_reply, r.decode_number_reply),
    "who_am_i_reply": (
        st.lists(st.tuples(PATHS, PATHS), max_size=3),
        r.encode_who_am_i_reply,
        r.decode_who_am_i_reply,
    ),
    "connect_request": (
        st.builds(r.ConnectRequest, I64S, I32S, I64S, PATHS, st.booleans()),
        r.encode_connect_request,
        r.decode_connect_request,
    ),
    "connect_response": (
        st.builds(r.ConnectResponse, I32S, I64S, PATHS, st.booleans()),
        r.encode_connect_response,
        r.decode_connect_response,
    ),
}


def decoder(name: str, value: Any) -> Any:
    """Return the record's decoder; a create's decoder needs the kind of create."""
    if name == "create":
        return lambda *a: r.decode_create(value.opcode, *a)
    return ROUND_TRIPS[name][2]


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
@given(data=st.data(), before=st.binary(max_size=5), after=st.binary(max_size=5))
@settings(max_examples=60, deadline=None)
def test_record_in_the_middle_of_a_block_round_trips(
    name: str, data: st.DataObject, before: bytes, after: bytes
) -> None:
    """An encoded record is decoded again at any offset, and no byte after its end is read."""
    strategy, encode, _ = ROUND_TRIPS[name]
    value = data.draw(strategy)
    record = encode(value)
    assert type(record) is bytes
    back = decoder(name, value)(before + record + after, len(before), len(before) + len(record))
    assert plain(back) == plain(value)


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_record_cut_short_is_refused_not_read_past_its_end(name: str, data: st.DataObject) -> None:
    """Every prefix is rejected with RemoteProtocolError, although readable bytes follow in the block."""
    strategy, encode, _ = ROUND_TRIPS[name]
    value = data.draw(strategy)
    record = encode(value)
    decode = decoder(name, value)
    optional_tail = 1 if name.startswith("connect") else 0
    for end in range(len(record) - optional_tail):
        with pytest.raises(RemoteProtocolError):
            decode(record, 0, end)


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
@given(data=st.data(), noise=st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
@example(data=None, noise=b"\x7f\xff\xff\xff" * 10)
@example(data=None, noise=b"\x80\x00\x00\x00" * 10)
@example(data=None, noise=b"\x00\x00\x00\x00\x7f\xff\xff\xff" * 10)
def test_damaged_record_raises_only_remote_protocol_error(name: str, data: st.DataObject | None, noise: bytes) -> None:
    """Noise, and valid records with some bytes replaced, are either decoded or rejected with that error."""
    decode = decoder(name, r.CreateRequest(r.OP_CREATE_TTL, b"", b"", [], 0))
    tries = [noise]
    if data is not None:
        record = bytearray(ROUND_TRIPS[name][1](data.draw(ROUND_TRIPS[name][0])))
        at = data.draw(st.integers(0, len(record)))
        record[at : at + len(noise[:4])] = noise[:4]
        tries.append(bytes(record))
    for attempt in tries:
        try:
            decode(attempt, 0, len(attempt))
        except RemoteProtocolError as error:
            assert error.code == -5  # noqa: PT017


def test_count_that_cannot_fit_is_refused_before_the_loop() -> None:
    """A vector of two billion strings in eight bytes costs nothing."""
    block = jute.i32(2**31 - 1) + bytes(4)
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        r.decode_strings_reply(block, 0, len(block))
    with pytest.raises(RemoteProtocolError, match="negative count"):
        r.decode_strings_reply(jute.i32(-2), 0, 4)


def test_null_is_kept_where_it_means_something() -> None:
    """Null data and a null access list stay null; a null path is refused; a null string elsewhere is empty."""
    create = r.CreateRequest(r.OP_CREATE, b"/a", None, None, 0)
    record = r.encode_create(create)
    back = r.decode_create(r.OP_CREATE, record, 0, len(record))
    assert (back.data, back.acl) == (None, None)
    with pytest.raises(RemoteProtocolError, match="null"):
        r.decode_path_watch(jute.NULL + b"\0", 0, 5)
    assert r.decode_auth(bytes(4) + jute.NULL * 2, 0, 12) == (0, b"", b"")


def kazoo_requests() -> list[tuple[Any, Any]]:
    """Return (kazoo's request, our decoding of it)."""
    acl = OPEN_ACL_UNSAFE
    k = kazoo_wire
    whole = lambda decode: lambda b: decode(b, 0, len(b))  # noqa: E731
    return [
        (k.GetData("/a", True), (whole(r.decode_path_watch), (b"/a", True))),
        (k.Exists("/a/ü", None), (whole(r.decode_path_watch), ("/a/ü".encode(), False))),
        (k.GetChildren2("/", False), (whole(r.decode_path_watch), (b"/", False))),
        (k.SetData("/a", b"x", 3), (whole(r.decode_set_data), (b"/a", b"x", 3))),
        (k.SetData("/a", None, -1), (whole(r.decode_set_data), (b"/a", None, -1))),
        (k.Delete("/a", -1), (whole(r.decode_path_version), (b"/a", -1))),
        (k.Sync("/a"), (whole(r.decode_path), b"/a")),
        (k.SetACL("/a", acl, -1), (whole(r.decode_set_acl), (b"/a", r.OPEN_ACL, -1))),
        (k.Auth(0, "digest", "u:p"), (whole(r.decode_auth), (0, b"digest", b"u:p"))),
        (k.Auth(0, "ip", ""), (whole(r.decode_auth), (0, b"ip", b""))),
        (k.Reconfig("a", None, "", 7), (whole(r.decode_reconfig), (b"a", b"", b"", 7))),
        (k.SASL(b"tok"), (whole(r.decode_sasl), b"tok")),
        (
            k.Create("/a", b"", acl, 3),
            (
                lambda b: r.decode_create(r.OP_CREATE, b, 0, len(b)),
                r.CreateRequest(r.OP_CREATE, b"/a", b"", r.OPEN_ACL, 3),
            ),
        ),
        (
            k.Transaction([k.Create("/a", b"1", acl, 0), k.CheckVersion("/b", 2), k.Delete("/c", -1)]),
            (
                whole(r.decode_multi),
                [
                    r.MultiOp(r.OP_CREATE, b"/a", b"1", -1, r.CreateRequest(r.OP_CREATE, b"/a", b"1", r.OPEN_ACL, 0)),
                    r.MultiOp(r.OP_CHECK, b"/b", None, 2),
                    r.MultiOp(r.OP_DELETE, b"/c", None, -1),
                ],
            ),
        ),
    ]


@pytest.mark.parametrize(("request_", "expected"), kazoo_requests(), ids=lambda v: type(v).__name__)
def test_requests_as_kazoo_writes_them(request_: Any, expected: Any) -> None:
    """The bytes of an independent client are decoded to the same requests."""
    decode, value = expected
    assert plain(decode(bytes(request_.serialize()))) == plain(value)


def test_requests_as_we_write_them_are_kazoos_bytes() -> None:
    """For the same request both clients send the same bytes."""
    k = kazoo_wire
    acl = [r.Acl(a.perms, a.id.scheme.encode(), a.id.id.encode()) for a in [make_digest_acl("u", "p", all=True)]]
    digest = [make_digest_acl("u", "p", all=True)]
    pairs = [
        (r.encode_path_watch(b"/a", True), k.GetData("/a", True)),
        (r.encode_set_data(b"/a", b"x", -1), k.SetData("/a", b"x", -1)),
        (r.encode_path_version(b"/a", 4), k.Delete("/a", 4)),
        (r.encode_create(r.CreateRequest(r.OP_CREATE, b"/a", b"x", acl, 1)), k.Create("/a", b"x", digest, 1)),
        (r.encode_set_acl(b"/a", acl, 2), k.SetACL("/a", digest, 2)),
        (r.encode_auth(b"digest", b"u:p"), k.Auth(0, "digest", "u:p")),
        (r.encode_reconfig(b"", b"3", b"", -1), k.Reconfig("", "3", "", -1)),
        (r.encode_connect_request(r.ConnectRequest(5, 10000, 7, b"p" * 16)), k.Connect(0, 5, 10000, 7, b"p" * 16, 0)),
        (
            r.encode_multi([r.MultiOp(r.OP_SET_DATA, b"/a", b"x", -1), r.MultiOp(r.OP_CHECK, b"/b", None, 2)]),
            k.Transaction([k.SetData("/a", b"x", -1), k.CheckVersion("/b", 2)]),
        ),
    ]
    for ours, theirs in pairs:
        assert ours == bytes(theirs.serialize()), theirs


def test_replies_as_kazoo_reads_them() -> None:
    """kazoo's decoders return the values that we encoded."""
    k = kazoo_wire
    stat = r.Stat(*range(1, 12))
    assert tuple(k.Exists.deserialize(r.encode_stat(stat), 0)) == stat.as_tuple()
    assert k.GetData.deserialize(r.encode_data_reply(b"xy", stat), 0) == (b"xy", stat.as_tuple())
    assert k.GetData.deserialize(r.encode_data_reply(None, stat), 0)[0] is None
    assert k.GetChildren2.deserialize(r.encode_children2_reply([b"a", b"b"], stat), 0) == (["a", "b"], stat.as_tuple())
    assert k.Create2.deserialize(r.encode_create2_reply(b"/n", stat), 0) == ("/n", stat.as_tuple())
    acls, _ = k.GetACL.deserialize(r.encode_acl_reply(r.OPEN_ACL, stat), 0)
    assert acls == OPEN_ACL_UNSAFE
    frame = r.encode_reply_frame(7, 9, -101, b"")
    assert tuple(k.ReplyHeader.deserialize(frame, 4)[0]) == (7, 9, -101)
    event = r.encode_event_frame(r.EVENT_CREATED, r.STATE_CONNECTED, b"/a", 12)
    other = r.encode_event_frame(r.EVENT_DELETED, r.STATE_CONNECTED, b"/b/c", 12)
    assert r.encode_event_frames([r.EVENT_CREATED, r.EVENT_DELETED], [b"/a", b"/b/c"], 12) == event + other
    header, at = k.ReplyHeader.deserialize(event, 4)
    assert tuple(header) == (r.XID_NOTIFICATION, 12, 0)
    assert tuple(k.Watch.deserialize(event, at)[0]) == (r.EVENT_CREATED, r.STATE_CONNECTED, "/a")
    assert len(event) == 4 + int.from_bytes(event[:4], "big")
    connected = r.encode_connect_response(r.ConnectResponse(4000, 7, b"p" * 16))
    assert k.Connect.deserialize(connected, 0)[0][2:5] == (4000, 7, b"p" * 16)


def test_multi_replies_as_kazoo_reads_them() -> None:
    """Results are in order. In a failed multi the error is 0 before the operation that failed, and -2 after it."""
    k = kazoo_wire
    stat = r.Stat(*range(1, 12))
    done = r.encode_multi_reply(
        [
            r.MultiResult(r.OP_CREATE, path=b"/a"),
            r.MultiResult(r.OP_SET_DATA, stat=stat),
            r.MultiResult(r.OP_CHECK),
            r.MultiResult(r.OP_DELETE),
        ]
    )
    assert k.Transaction.deserialize(done, 0) == ["/a", stat.as_tuple(), True, True]
    failed = r.encode_multi_reply([r.MultiResult(r.OP_ERROR, code) for code in (0, -101, -2)])
    assert [type(error).__name__ for error in k.Transaction.deserialize(failed, 0)] == [
        "RolledBackError",
        "NoNodeError",
        "RuntimeInconsistency",
    ]


def test_error_codes_and_classes_are_one_to_one() -> None:
    """Each class is found by its code; an unknown code is still an error with its number."""
    for code, cls in ERROR_CLASSES.items():
        assert cls.code == code
        assert type(error_for(code, "/a")) is cls
    assert str(error_for(-101, "/a", "parent")) == "NoNode /a parent"
    assert isinstance(error_for(-101), NoNode)
    assert isinstance(error_for(-9999, "/a"), UnknownCode)
    assert "-9999" in str(error_for(-9999, "/a"))
