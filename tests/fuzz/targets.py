"""The fuzzed functions. A target accepts any bytes and raises only if an invariant is broken.

    records    every record decoder of the client protocol, requests and replies
    client     a client's stream to a whole node: framing, handshake, requests, answers
    apply      commands to the state machine, committed and therefore applied whatever is in them
    peer       a node's stream to another node: hello, frames, every body
    node       the frames of a member of the cluster, taken by a whole node
    rpc        a stream of RegionKeeper's own RPC, and the messages in it
    state      the chunks of a snapshot, each with the checksum it needs
    log        the records of a log, each with the checksum it needs
    config     a membership as the log has it
    sasl, guard, der, keystore, jaas, zoocfg   authentication of clients and peers (tests/fuzz/security.py)
    server     input of the peer port of a region server (tests/fuzz/tablets.py)

The first byte of a stream says into which pieces it is cut on its way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from crc32c import crc32c

from coord.errors import CorruptRecord, RemoteProtocolError, StorageError
from coord.peers import framing
from coord.raft.bounds import INDEX_MAX, TERM_LEAP_MAX
from coord.raft.membership import decode_configuration
from coord.rpc import wire as rpc_wire
from coord.server.node import Node
from coord.server.peers import codec, hello_frames, raft_frames
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import MAGIC
from coord.tree.command import Command, decode_attach, decode_batch, decode_create_session, decode_identities
from coord.tree.machine import CommandOutcome, StateMachine
from coord.tree.watches import WatchTable
from coord.wire import records as r
from coord.wire.client_conn import MAX_FRAME_BYTES, PHASE_CLOSED, PHASE_OPEN, ClientConnection
from regions import messages
from regions.records.model import RegionRecord
from regionserver.kv import messages as kv
from tests.fuzz import security, tablets
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import Client, StoreNodes
from tests.unit.coord.tree.tree_store import Store

Target = Callable[[bytes], None]

#: A session of `filled_machine`, and its owner.
SESSION = 0x1001
TIME_MS = 1_700_000_000_000


# --- records ---------------------------------------------------------------------------------------------------------


def _decoders() -> list[Callable[[bytes, int, int], Any]]:
    """Return every decoder of a record, in a fixed order."""
    special = {"decode_create", "decode_set_watches"}
    plain = [getattr(r, name) for name in sorted(dir(r)) if name.startswith("decode_") and name not in special]
    creates = (r.OP_CREATE, r.OP_CREATE2, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL)
    more: list[Callable[[bytes, int, int], Any]] = [
        *(lambda d, a, e, op=op: r.decode_create(op, d, a, e) for op in creates),  # type: ignore[misc]
        lambda d, a, e: r.decode_set_watches(d, a, e, second=False),
        lambda d, a, e: r.decode_set_watches(d, a, e, second=True),
        decode_attach,
        decode_create_session,
        decode_identities,
        lambda d, a, e: decode_batch(d[a:e]),
    ]
    return [*plain, *more]


DECODERS = _decoders()


def fuzz_records(data: bytes) -> None:
    """The decoder chosen by the first byte decodes or rejects; it never reads beyond the end that it was given."""
    if not data:
        return
    decode = DECODERS[data[0] % len(DECODERS)]
    record = data[1:]
    alone = _attempt(decode, record, 0, len(record))
    within = _attempt(decode, b"\x00\x01\x02" + record + b"\xff" * 64, 3, 3 + len(record))
    assert (alone is None) == (within is None), "what lies around a record changes how it is read"


def _attempt(decode: Callable[[bytes, int, int], Any], data: bytes, at: int, end: int) -> object:
    try:
        return (decode(data, at, end),)
    except RemoteProtocolError:
        return None


# --- a client --------------------------------------------------------------------------------------------------------


def fuzz_client(data: bytes) -> None:
    """A client's stream costs at most its own connection; every whole frame that it receives can be decoded."""
    nodes = StoreNodes(1)
    node = nodes.leader()
    other = nodes.client(node)
    other.request(1, r.OP_CREATE, r.encode_create(r.CreateRequest(r.OP_CREATE, b"/a", b"x", r.OPEN_ACL, 0)))
    nodes.settle()
    client = Client(node, nodes.clock)
    wire = ClientConnection()
    for piece in pieces(data):
        frames = wire.receive_data(piece)
        assert wire.pending_bytes <= MAX_FRAME_BYTES + 4, wire.pending_bytes
        block = wire.take_block()
        request = wire.take_connect()
        if request is not None:
            node.pipeline.handshake.open_session(client.connection, request)
        if frames and client.is_open:
            node.pipeline.receive(client.connection, block, frames)
        if wire.phase == PHASE_CLOSED and client.is_open:
            node.clients.close(client.connection, flush=True)
        nodes.settle()
        if not client.is_open:
            break
    nodes.run(1)
    assert node.failure is None, node.failure
    if wire.phase == PHASE_OPEN:
        client.replies()
    other.request(2, r.OP_EXISTS, r.encode_path_watch(b"/", False))
    nodes.settle()
    assert other.xids()[-1] == 2, "another client is not served any more"


# --- the state machine -----------------------------------------------------------------------------------------------


def filled_machine() -> StateMachine:
    """Return a small state with every kind of znode, a quota and access lists."""
    store = Store()
    client = store.client(SESSION)
    client.auth(b"digest", b"me:hash")
    client.create(b"/a", b"data")
    client.create(b"/a/b", None)
    client.create(b"/a/e", b"", r.CREATE_EPHEMERAL)
    client.create(b"/c", b"", r.CREATE_CONTAINER, opcode=r.OP_CREATE_CONTAINER)
    client.create(b"/c/d", b"")
    client.delete(b"/c/d")
    client.create(b"/t", b"", r.CREATE_TTL, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    client.create(b"/locked", b"", acl=[r.Acl(1, b"digest", b"other:hash")])
    client.create(b"/zookeeper/quota/a", b"")
    client.create(b"/zookeeper/quota/a/zookeeper_limits", b"count=5,bytes=1000=;byteHardLimit=1500;countHardLimit=6")
    client.create(b"/zookeeper/quota/a/zookeeper_stats", b"count=0,bytes=0")
    store.client(SESSION + 1)
    return store.machine


_FILLED = b"".join(filled_machine().snapshot_chunks())
_FILLED_DIGEST = filled_machine().digest()
_OPCODES = sorted(r.WRITE_OPCODES | {r.OP_AUTH, r.OP_CREATE_SESSION, r.OP_ATTACH, r.OP_EXPIRE, -7, 99})
_READS = (
    *(r.OP_EXISTS, r.OP_GET_DATA, r.OP_GET_ACL, r.OP_GET_CHILDREN, r.OP_GET_CHILDREN2, r.OP_MULTI_READ),
    *(r.OP_CHECK_WATCHES, r.OP_REMOVE_WATCHES, r.OP_GET_EPHEMERALS, r.OP_GET_ALL_CHILDREN_NUMBER),
    *(r.OP_ADD_WATCH, r.OP_WHO_AM_I, r.OP_SET_WATCHES, r.OP_SET_WATCHES2),
)


def fuzz_apply(data: bytes) -> None:
    """Every committed command is applied: each gets one zxid, a rejected one leaves no trace, and the state stays
    valid."""
    machine = StateMachine.restore([_FILLED])
    watches = WatchTable(len(data) % 3)
    if data[:1] == b"\xfe":
        machine.tree.enforces_quotas = True
        machine.tree.is_full = data[-1:] > b"\xf0"
    if data[:1] == b"\xff":
        machine.apply_batch(data[1:])
    else:
        for opcode, session_id, owner, body in commands(data, machine):
            if opcode in _READS:
                _read(machine, watches, opcode, session_id, body)
            else:
                _apply(machine, watches, Command(session_id, owner, 7, opcode, body))
    if machine.digest() == _FILLED_DIGEST:
        return
    again = StateMachine.restore(machine.snapshot_chunks())
    assert again.digest() == machine.digest(), "the digest is not that of the state"
    assert again.tree.data_bytes == machine.tree.data_bytes, "bytes are miscounted"
    assert again.tree.ephemeral_count == machine.tree.ephemeral_count, "ephemerals are miscounted"


def _apply(machine: StateMachine, watches: WatchTable, command: Command) -> None:
    zxid, digest = machine.last_zxid, machine.digest()
    outcome = machine.apply(command, TIME_MS)
    assert machine.last_zxid == outcome.zxid == zxid + 1, "a command takes one zxid"
    machine.notify(outcome, watches)
    if is_refused(outcome):
        assert machine.digest() == digest, "a refused command changed something"
        assert not outcome.events, "a refused command has events"


def is_refused(outcome: CommandOutcome) -> bool:
    """Return True if the command must change nothing; for a multi, its first part decides."""
    if outcome.err:
        return True
    return outcome.opcode == r.OP_MULTI and outcome.body[:4] == struct.pack("!i", r.OP_ERROR) and len(outcome.body) > 9


def _read(machine: StateMachine, watches: WatchTable, opcode: int, session_id: int, body: bytes) -> None:
    session = machine.sessions.find(session_id)
    if session is None:
        return
    digest = machine.digest()
    if opcode in (r.OP_SET_WATCHES, r.OP_SET_WATCHES2):
        _, restore = machine.begin_watches(opcode, body, session, watches)
        while restore is not None and restore.left:
            machine.restore_watches(restore, session, watches, 2)
    else:
        machine.read(opcode, body, session, watches)
    assert machine.digest() == digest, "a read changed something"


def commands(data: bytes, machine: StateMachine) -> Iterator[tuple[int, int, int, bytes]]:
    """Return (opcode, session, owner, body) of `opcode:u8 who:u8 length:u16 body`, as often as it fits."""
    known = [*_OPCODES, *_READS]
    at = 0
    while at + 4 <= len(data):
        opcode, who, length = struct.unpack_from(">BBH", data, at)
        body = data[at + 4 : at + 4 + length]
        at += 4 + length
        session_id = (0, SESSION, SESSION, SESSION + 1, SESSION + 2)[who % 5]
        session = machine.sessions.find(session_id)
        owner = session.owner if session is not None and who < 200 else who % 3
        yield known[opcode % len(known)], session_id, owner, body


# --- a peer ----------------------------------------------------------------------------------------------------------

_BODIES: dict[int, Callable[[bytes, int, int], Any]] = {
    codec.RAFT: raft_frames.decode_raft,
    codec.FORWARD: raft_frames.decode_forward,
    codec.TOUCH: codec.decode_touch,
    codec.CHUNK: codec.decode_chunk,
    codec.RECEIVED: codec.decode_received,
    codec.ASK: codec.decode_numbered,
    codec.ANSWER: codec.decode_numbered,
    codec.WHO: lambda data, at, end: hello_frames.is_who(data[at:end]),
    codec.CLUSTER: lambda data, at, end: hello_frames.decode_cluster(data[at:end]),
    codec.REMOVED: lambda data, at, end: hello_frames.decode_removed(data[at:end]),
    codec.DIGEST: codec.decode_digest,
}
#: Frames that a member of the cluster may send once it has said hello.
_MEMBER_KINDS = (
    *(codec.RAFT, codec.FORWARD, codec.TOUCH, codec.CHUNK, codec.RECEIVED, codec.ASK, codec.ANSWER),
    codec.DIGEST,
)


def fuzz_peer(data: bytes) -> None:
    """A peer's stream is decoded or rejected; before its hello it may use only a little memory."""
    frames = framing.PeerFrames()
    try:
        for piece in pieces(data):
            found = frames.feed(piece)
            while found:
                for kind, block, at, end in found:
                    _peer_body(frames, kind, block, at, end)
                found = frames.feed(b"")
    except RemoteProtocolError:
        pass


def _peer_body(frames: framing.PeerFrames, kind: int, block: bytes, at: int, end: int) -> None:
    if kind == framing.HELLO:
        hello_frames.decode_hello(block[at:end])
        frames.limit = codec.FRAME_BYTES_MAX
    elif kind in _BODIES:
        _BODIES[kind](block, at, end)


def fuzz_node(data: bytes) -> None:
    """After a peer's hello, the node either breaks the link or continues. No frame stops the node, and no frame takes
    term or log on the disk beyond the bounds of `coord.raft.bounds`."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    node = leader if data[:1] < b"\x80" else nodes.follower()
    peer = next(i for i in nodes.ids() if i != node.settings.node_id)
    for kind, body in _parts(data[1:]):
        frame_kind = _MEMBER_KINDS[kind % len(_MEMBER_KINDS)]
        if frame_kind == codec.RAFT and len(body) >= 18:
            body = body[:2] + struct.pack(">QQ", peer, node.settings.node_id) + body[18:]
        before = _promised(node)
        try:
            node.peer_frame(peer, 1, frame_kind, body, 0, len(body))
        except RemoteProtocolError:
            assert _promised(node) == before, "a refused frame changed something"
            return
        node.turn_end()
        if node.failure is not None:
            raise AssertionError("the node stopped") from node.failure
        assert node.core.term <= before[0] + TERM_LEAP_MAX + 1, "the term leaps"  # + 1: its own election
        assert node.core.log.last < INDEX_MAX
        node.tick()
        node.turn_end()
        if node.failure is not None:
            raise AssertionError("the node stopped") from node.failure


def _promised(node: Node) -> tuple[int, ...]:
    """Return the promises of a node: its durable state, and the messages that it has sent."""
    log = node.core.log
    return (node.core.term, node.core.vote, log.last, log.last_term, log.commit, log.stable)


# --- RPC -------------------------------------------------------------------------------------------------------------

_REQUESTS = (messages.MasterRequest, messages.ServerRequest, kv.KvRequest)
_REPLIES = (messages.MasterReply, messages.ServerReply, kv.KvReply)
_REGION = RegionRecord("t", "r", start_key="b", end_key="y")


def fuzz_rpc(data: bytes) -> None:
    """A stream of RPC is decoded or rejected, and so is every body in it."""
    reader = rpc_wire.RpcFrameReader()
    try:
        for piece in pieces(data):
            for payload in reader.feed(piece):
                _rpc_body(payload)
    except rpc_wire.StreamError:
        pass


def _rpc_body(payload: rpc_wire.Payload) -> None:
    if isinstance(payload, rpc_wire.Request):
        for union in _REQUESTS:
            try:
                request = rpc_wire.decode_request(payload, union)
                if isinstance(request, kv.KvRequest):
                    kv.check_request(request, _REGION)
            except rpc_wire.RpcError:
                continue
    for union in _REPLIES:
        try:
            rpc_wire.decode_reply(payload, union)
        except rpc_wire.RpcError:
            continue


# --- files -----------------------------------------------------------------------------------------------------------


def fuzz_state(data: bytes) -> None:
    """A snapshot with valid checksums and any contents becomes a whole state, or is rejected as damaged."""
    stream = b"".join(state_chunk(kind, payload) for kind, payload in _parts(data))
    try:
        machine = StateMachine.restore([stream])
    except CorruptRecord:
        return
    again = StateMachine.restore(machine.snapshot_chunks())
    assert again.digest() == machine.digest()


def state_chunk(kind: int, payload: bytes) -> bytes:
    """Return a chunk in the format of `coord.tree.snapshot`."""
    head = struct.pack("!BI", kind, len(payload))
    return head + struct.pack("!I", crc32c(payload, crc32c(head))) + payload


def fuzz_log(data: bytes) -> None:
    """A log with valid checksums and any contents is read, or rejected as damaged or as of another format."""
    disk = MemoryDisk()
    file = disk.open("wal/1.log", create=True)
    stream = b"".join(log_record(number, payload) for number, (_, payload) in enumerate(_parts(data), 1))
    file.write_at(0, stream + data[-30:])
    reader = SegmentReader(disk, "wal/1.log")
    log = Recovered()
    try:
        for record in reader.records(0, is_first=True, is_last=True):
            for item in record.items:
                log.take(item)
    except (StorageError, ValueError):
        return
    assert log.last_index() >= 0


def log_record(sequence: int, items: bytes) -> bytes:
    """Return a record in the format of `coord.storage.wal`."""
    covered = struct.pack(">IQ", 8 + len(items), sequence) + items
    return MAGIC + covered[:4] + struct.pack(">I", crc32c(covered)) + covered[4:]


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return (kind, payload) of `kind:u8 length:u16 payload`, as often as it fits."""
    at = 0
    while at + 3 <= len(data):
        kind, length = struct.unpack_from(">BH", data, at)
        yield kind, data[at + 3 : at + 3 + length]
        at += 3 + length


def fuzz_config(data: bytes) -> None:
    """A membership is decoded, or rejected with ValueError."""
    try:
        found = decode_configuration(data)
    except ValueError:
        return
    assert decode_configuration(found.encode()) == found


def pieces(data: bytes) -> Iterator[bytes]:
    """Return the stream after the first byte, cut as that byte says: whole, byte by byte, or in pieces of its size."""
    if not data:
        return
    step = (len(data), 1, 3, 7, 64, 1000)[data[0] % 6]
    if len(data) // step > 2000:
        step = len(data) // 2000
    for at in range(1, len(data), step):
        yield data[at : at + step]


TARGETS: dict[str, Target] = {
    "records": fuzz_records,
    "client": fuzz_client,
    "apply": fuzz_apply,
    "peer": fuzz_peer,
    "node": fuzz_node,
    "rpc": fuzz_rpc,
    "state": fuzz_state,
    "log": fuzz_log,
    "config": fuzz_config,
    **security.TARGETS,
    **tablets.TARGETS,
}

__all__ = ["DECODERS", "TARGETS", "Target"]
