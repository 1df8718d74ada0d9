"""The first inputs of fuzzing: valid input of every kind, and earlier findings (`regressions/<target>-*.bin`)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from coord.peers import framing
from coord.raft.membership import Configuration
from coord.raft.messages import APPEND, SNAPSHOT, Entry, Message, RaftSnapshot
from coord.rpc import wire
from coord.server.peers import codec, hello_frames, raft_frames
from coord.storage.records import WriteBatch
from coord.tree.command import encode_attach, encode_batch, encode_command, encode_create_session, encode_identities
from coord.tree.machine import StateMachine
from coord.wire import records as r
from regions import messages
from regionserver.kv import messages as kv
from regionserver.request_gate import Place
from tests.fuzz import security, tablets
from tests.fuzz.targets import _MEMBER_KINDS, _OPCODES, _READS, DECODERS, SESSION, TARGETS, filled_machine

REGRESSIONS = Path(__file__).parent / "regressions"

_STAT = r.Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
_ACL = [r.Acl(31, b"world", b"anyone"), r.Acl(1, b"digest", b"me:hash")]
_PATHS = [b"/a", b"/a/b", b"/zookeeper/config"]

_SNAPSHOT = "0000000000000009-0000000000000002.snap"


def seeds(target: str) -> list[bytes]:
    """Return the corpus of one target, in a fixed order."""
    found = {
        "records": _records,
        "client": _client,
        "apply": _apply,
        "peer": _peer,
        "node": _node,
        "rpc": _rpc,
        "state": _state,
        "log": _log,
        **{name: lambda name=name: security.seeds(name) for name in security.TARGETS},  # type: ignore[misc]
        **{name: lambda name=name: tablets.seeds(name) for name in tablets.TARGETS},  # type: ignore[misc]
        "config": lambda: [Configuration([1, 2, 3], [4], [5], b"x=y").encode(), Configuration([1]).encode()],
    }[target]()
    known = sorted(REGRESSIONS.glob(f"{target}-*.bin")) if REGRESSIONS.is_dir() else []
    return [*found, *(path.read_bytes() for path in known)]


def _requests() -> list[tuple[int, bytes]]:
    """Return one or more of each request: (opcode, record)."""
    creates = [
        (op, r.encode_create(r.CreateRequest(op, path, b"data", _ACL[:1], flags, ttl)))
        for op, path, flags, ttl in (
            (r.OP_CREATE, b"/n", 0, 0),
            (r.OP_CREATE, b"/a/s-", 3, 0),
            (r.OP_CREATE2, b"/m", 1, 0),
            (r.OP_CREATE_CONTAINER, b"/k", 4, 0),
            (r.OP_CREATE_TTL, b"/l", 5, 1000),
        )
    ]
    ops = [
        r.MultiOp(r.OP_CHECK, b"/a", None, 0),
        r.MultiOp(r.OP_SET_DATA, b"/a", b"y", -1),
        r.MultiOp(r.OP_CREATE2, b"/q", b"", -1, r.CreateRequest(r.OP_CREATE2, b"/q", b"", _ACL, 2)),
        r.MultiOp(r.OP_DELETE, b"/q", None, -1),
    ]
    reads = [r.MultiOp(r.OP_GET_DATA, b"/a", None, -1), r.MultiOp(r.OP_GET_CHILDREN, b"/nope", None, -1)]
    watches = r.WatchSets(5, _PATHS, _PATHS[:1], _PATHS[1:], [b"/"], [b"/a"])
    plain = [
        (r.OP_SET_DATA, r.encode_set_data(b"/a", b"zz", -1)),
        (r.OP_SET_DATA, r.encode_set_data(b"/zookeeper/quota/a/zookeeper_limits", b"count=1,bytes=2", -1)),
        (r.OP_DELETE, r.encode_path_version(b"/a/b", 0)),
        (r.OP_SET_ACL, r.encode_set_acl(b"/a", _ACL, -1)),
        (r.OP_MULTI, r.encode_multi(ops)),
        (r.OP_MULTI, r.encode_multi([*ops[:2], r.MultiOp(r.OP_DELETE, b"/nope", None, -1)])),
        (r.OP_MULTI_READ, r.encode_multi(reads)),
        (r.OP_DELETE_CONTAINER, r.encode_path(b"/c")),
        *((op, r.encode_path_watch(b"/a", True)) for op in (r.OP_EXISTS, r.OP_GET_DATA, r.OP_GET_CHILDREN)),
        (r.OP_GET_CHILDREN2, r.encode_path_watch(b"/", False)),
        *((op, r.encode_path(b"/a")) for op in (r.OP_GET_ACL, r.OP_SYNC, r.OP_GET_EPHEMERALS)),
        (r.OP_GET_ALL_CHILDREN_NUMBER, r.encode_path(b"/")),
        (r.OP_ADD_WATCH, r.encode_path(b"/a") + struct.pack("!i", 1)),
        (r.OP_CHECK_WATCHES, r.encode_path(b"/a") + struct.pack("!i", 3)),
        (r.OP_REMOVE_WATCHES, r.encode_path(b"/a") + struct.pack("!i", 2)),
        (r.OP_SET_WATCHES, r.encode_set_watches(watches, second=False)),
        (r.OP_SET_WATCHES2, r.encode_set_watches(watches, second=True)),
        (r.OP_AUTH, r.encode_auth(b"digest", b"me:secret")),
        (r.OP_RECONFIG, r.encode_reconfig(b"server.4=h:1:2;3", b"1", b"", -1)),
        (r.OP_SASL, r.encode_sasl(b"token")),
        *((op, b"") for op in (r.OP_PING, r.OP_WHO_AM_I, r.OP_CLOSE_SESSION)),
    ]
    return creates + plain


def _records() -> list[bytes]:
    bodies = [body for _, body in _requests()]
    bodies += [
        r.encode_stat(_STAT),
        r.encode_create2_reply(b"/a", _STAT),
        r.encode_data_reply(b"d", _STAT),
        r.encode_children2_reply(_PATHS, _STAT),
        r.encode_acl_reply(_ACL, _STAT),
        r.encode_who_am_i_reply([(b"ip", b"1.2.3.4")]),
        r.encode_connect_request(r.ConnectRequest(1, 2, 3, bytes(16), True)),
        r.encode_connect_response(r.ConnectResponse(1, 2, bytes(16), True)),
        r.encode_multi_reply([r.MultiResult(r.OP_ERROR, -101), r.MultiResult(r.OP_GET_DATA, 0, b"", b"d", _STAT)]),
        r.encode_event_frame(1, 3, b"/a", 5)[20:],
        encode_create_session(1000, bytes(16), b"::1"),
        encode_attach(1000, bytes(16), b"::1"),
        encode_identities([(b"ip", b"x")]),
        encode_batch(5, [encode_command(1, 2, 3, 4, b"body")] * 2),
    ]
    return [bytes([number]) + body for number in range(len(DECODERS)) for body in bodies[number % 3 :: 3]] + [
        bytes([number]) + body for number, body in enumerate(bodies)
    ]


def _frame(payload: bytes) -> bytes:
    return struct.pack("!i", len(payload)) + payload


def _client() -> list[bytes]:
    hello = _frame(r.encode_connect_request(r.ConnectRequest(0, 4000, 0, bytes(16), False)))
    frames = [r.encode_request_frame(xid, op, body) for xid, (op, body) in enumerate(_requests(), 1)]
    found = [b"\0" + hello + b"".join(frames), b"\2" + hello + b"".join(frames[:6])]
    found += [b"\0" + hello + frame for frame in frames]
    return [*found, b"\1ruok", b"\0srvr", b"\1" + hello[:20], b"\0" + struct.pack("!i", 0x7FFFFFFF)]


def _apply() -> list[bytes]:
    known = [*_OPCODES, *_READS]
    internal = [
        (r.OP_CREATE_SESSION, encode_create_session(5000, bytes(16), b"::1")),
        (r.OP_ATTACH, encode_attach(5000, b"0123456789abcdef", b"10.0.0.2")),
        (r.OP_AUTH, encode_identities([(b"digest", b"x:y")])),
        (r.OP_EXPIRE, b""),
    ]
    every = [
        struct.pack(">BBH", known.index(op), who, len(body)) + body
        for op, body in [*_requests(), *internal]
        if op in known
        for who in (1, 4)
    ]
    raw = encode_batch(7, [encode_command(SESSION, 1, 2, op, body) for op, body in _requests()])
    return [b"".join(every[::2]), b"".join(every[1::2]), *every, b"\xff" + raw, b"\xff" + raw[:-5]]


def _peer() -> list[bytes]:
    hello = hello_frames.encode_hello(hello_frames.Hello(bytes(16), 1, 2, 3, True))
    snapshot = RaftSnapshot(9, 2, Configuration([1, 2, 3]), _SNAPSHOT)
    entries = [Entry(1, 5, 0, encode_batch(7, [encode_command(1, 2, 3, 4, b"b")])), Entry(1, 6, 1, b"")]
    frames = [
        raft_frames.encode_raft(Message(5, 1, 2, 3, 4, 1, 4, entries=entries)),
        raft_frames.encode_raft(Message(10, 1, 2, 3, snapshot=snapshot)),
        raft_frames.encode_raft(Message(7, 1, 2, 3, context=9)),
        raft_frames.encode_forward(1, 2, [encode_command(1, 2, 3, 4, b"body")] * 2),
        codec.encode_touch([1, 2, 3]),
        codec.encode_chunk(codec.Chunk(snapshot.handle, 100, 50, b"x" * 50)),
        codec.encode_received(snapshot.handle, True),
        framing.frame(framing.REFUSED, b"another cluster"),
        codec.encode_numbered(codec.ASK, 7, b'{"do": "facts"}'),
        codec.encode_numbered(codec.ANSWER, 7, b'{"code": 0}'),
        hello_frames.encode_cluster(bytes(16), 9, Configuration([1, 2, 3])),
        hello_frames.encode_removed(9),
    ]
    return [b"\0" + hello + b"".join(frames), *(b"\3" + hello + frame for frame in frames), b"\1" + hello]


def _node() -> list[bytes]:
    requests = [
        {"do": "facts"},
        {"do": "announce", "client": "1.2.3.4:5"},
        {"do": "add", "id": 4, "peer": "h:1", "role": "participant"},
        {"do": "remove", "id": 2},
        {"do": "transfer", "id": 2},
        {"do": "reconfig", "joining": "", "leaving": "3", "members": "", "version": -1, "session": SESSION},
    ]
    asks = [codec.encode_numbered(codec.ASK, 7, json.dumps(request).encode()) for request in requests]
    answers = [
        codec.encode_numbered(codec.ANSWER, 1, text) for text in (b'{"code": 0, "why": ""}', b'{"code": 0, "index": 1}')
    ]
    raft = [raft_frames.encode_raft(_raft(kind, term, 1)) for kind in range(15) for term in (1, 2)]
    raft += [raft_frames.encode_raft(_raft(kind, term, index)) for kind in range(1, 14) for term, index in _EXTREMES]
    chunk = codec.encode_chunk(codec.Chunk(_SNAPSHOT, 100, 0, b"x" * 50))
    others = [
        raft_frames.encode_forward(1, 1, [encode_command(1, 2, 3, 4, b"body")]),
        codec.encode_touch([1, 2]),
        chunk,
        codec.encode_received(_SNAPSHOT, False),
        codec.encode_digest(1, 0, 0, True),
        codec.encode_digest(1 << 61, 5, 5, False),
    ]
    found = [_part(_MEMBER_KINDS.index(frame[4]), frame[5:]) for frame in [*asks, *answers, *raft, *others]]
    return [bytes([who]) + part for part in found for who in (0, 200)] + [b"\0" + b"".join(found)]


#: (term, value of every index and commit) in forged messages.
_EXTREMES = [
    *((1, 1 << 40), (1, (1 << 62) - 1), (2, 1 << 32)),
    *((1 << 32, 1), ((1 << 32) + 2, 1), ((1 << 62) - 1, 1), ((1 << 63) - 2, 1)),
]


def _raft(kind: int, term: int, index: int) -> Message:
    """Return a message of the kind as a member could send it, with these numbers in all its fields of numbers."""
    entries = [Entry(term, index + 1, 1, b"")] if kind == APPEND else None
    meta = RaftSnapshot(index, 1, Configuration([1, 2, 3]), _SNAPSHOT) if kind == SNAPSHOT else None
    return Message(kind, 1, 2, term, index, 1, index, index, True, index, entries=entries, snapshot=meta)


def _rpc() -> list[bytes]:
    place = Place("r", "uuid", 7, 1000)
    requests = [
        messages.ListTables(),
        messages.GetMasterStatus(),
        messages.GetServerStatus(),
        kv.KvRead(place, ["c", "d"]),
        kv.KvWrite(place, [kv.KvChange("c", b"1"), kv.KvChange("d", None)], "writer", 1, 2),
        kv.KvScan(place, "c", "d", 10),
    ]
    payloads = [
        *(wire.Request(1, wire.encode_body(message)) for message in requests),
        wire.Reply(2, wire.encode_body(messages.Accepted("yes"))),
        wire.Reply(4, wire.encode_body(kv.KvRows([kv.KvRow("c", b"1")], "d"))),
        wire.Failed(3, "busy", "later", "elsewhere"),
    ]
    frames = [wire.encode_frame(payload) for payload in payloads]
    nested = b"\x93\x00\x01" + b"\x91" * 3000 + b"\xc0"
    return [
        b"\0" + wire.PREAMBLE + b"".join(frames),
        *(b"\2" + wire.PREAMBLE + frame for frame in frames),
        b"\0" + wire.PREAMBLE + struct.pack(">I", len(nested)) + nested,
    ]


def _part(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BH", kind, len(payload)) + payload


def _state() -> list[bytes]:
    found = []
    for machine in (filled_machine(), StateMachine()):
        chunks = [(chunk[0], chunk[9:]) for chunk in machine.snapshot_chunks()]
        found.append(b"".join(_part(kind, payload) for kind, payload in chunks))
    return found


def _log() -> list[bytes]:
    header = struct.pack(">BHQQQQQ", 4, 1, 1, 0, 0, 0, 0)
    batch = WriteBatch()
    batch.set_hard_state(3, 2)
    batch.add_entry(3, 1, 0, b"data")
    batch.add_entry(3, 2, 1, b"")
    base = WriteBatch()
    base.set_base(9, 3)
    body = _part(0, header) + _part(0, b"".join(batch.parts))
    return [body, body + _part(0, b"".join(base.parts)), _part(0, header)]


assert all(seeds(name) for name in TARGETS)
