"""Limits of one client: raw sockets against a real node."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import QuotaExceededError

from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, ConnectRequest, CreateRequest
from tests.e2e.test_store_cluster import Cluster
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    """Yield one node with narrow bounds."""
    made = Cluster(tmp_path, 1, ("--max-connections-per-address", "5", "--max-outstanding", "20", "--words", "*"))
    made.start()
    try:
        made.leader()
        yield made
    finally:
        made.kill()


class Raw:
    """A client that can send anything."""

    def __init__(self, cluster: Cluster) -> None:
        self.sock = socket.create_connection(("127.0.0.1", cluster.client_ports[1]), timeout=60)

    def connect(self, timeout_ms: int = 10_000) -> Raw:
        """Open a session."""
        body = records.encode_connect_request(ConnectRequest(timeout_ms=timeout_ms))
        self.sock.sendall(struct.pack("!i", len(body)) + body)
        assert records.decode_connect_response(self.frame(), 0, 37).session_id != 0
        return self

    def send(self, xid: int, opcode: int, body: bytes = b"") -> None:
        """Send one request."""
        self.sock.sendall(records.encode_request_frame(xid, opcode, body))

    def exactly(self, size: int) -> bytes:
        """Return exactly that many bytes."""
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def frame(self) -> bytes:
        """Return the next frame."""
        return self.exactly(struct.unpack("!i", self.exactly(4))[0])

    def reply(self) -> tuple[int, int]:
        """Return (xid, err) of the next frame."""
        xid, _, err = records.decode_reply_header(self.frame(), 0, 16)
        return xid, err

    def is_closed(self) -> bool:
        """Return True if the server closes this connection without a further byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def create(path: bytes, data: bytes = b"") -> bytes:
    """Return the body of a create."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, data, OPEN_ACL, 0))


def test_connections_per_address_are_bounded(node: Cluster) -> None:
    """One connection too many is closed at once; when one ends there is room again.

    Fails if `_is_too_many` ignores the address.
    """
    with contextlib.ExitStack() as stack:
        open_ = [stack.enter_context(Raw(node).connect().sock) for _ in range(5)]
        crowded = Raw(node)
        # Without the bound this word is answered; a silent connection would be closed for its silence after a while.
        with contextlib.suppress(OSError):
            crowded.sock.sendall(b"ruok")
        assert crowded.is_closed()
        open_[0].close()

        def admitted() -> bool:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.client_ports[1]), timeout=30))
            sock.sendall(b"ruok")
            return sock.recv(10) == b"imok"

        eventually(admitted, what="room for one more")


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Cluster]:
    """Yield one node with the narrowest bounds."""
    options = (
        "--max-connections",
        "4",
        "--max-sessions",
        "3",
        "--max-sessions-per-address",
        "3",
        "--max-frame-bytes",
        "1000",
        "--words",
        "*",
    )
    options += ("--connect-timeout-ms", "5000", "--stall-timeout-ms", "1500", "--max-output-bytes", "100000")
    made = Cluster(tmp_path, 1, options)
    made.start()
    try:
        made.leader()
        yield made
    finally:
        made.kill()


def test_connections_in_total_are_bounded(narrow: Cluster) -> None:
    """The addresses do not matter; rejected connections are counted and have no other effect."""
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(Raw(narrow).connect().sock)
        fourth = stack.enter_context(Raw(narrow).sock)
        assert Raw(narrow).is_closed()
        fourth.sendall(b"ruok")
        assert fourth.recv(10) == b"imok"


def test_crowd_does_not_take_the_last_descriptor(tmp_path: Path) -> None:
    """Without a bound on connections, in a process with few descriptors: the node continues, also with snapshots."""
    made = Cluster(tmp_path, 1, ("--max-connections-per-address", "0", "--snapshot-entries", "20"))
    arguments = made.arguments
    made.arguments = lambda node: ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *arguments(node)]  # type: ignore[method-assign]
    made.start()
    try:
        made.leader()
        with made.client() as client, contextlib.ExitStack() as crowd:
            for _ in range(200):
                crowd.enter_context(socket.create_connection(("127.0.0.1", made.client_ports[1]), timeout=30))
            for number in range(60):
                client.create(f"/{number}", b"x")
            eventually(lambda: made.status(1)["snapshot_index"] >= 20, what="a snapshot")
        with made.client() as client:
            assert len(client.get_children("/")) == 61
    finally:
        made.kill()


def test_sessions_are_bounded(narrow: Cluster) -> None:
    """Sessions outlive their connections, so they have a separate bound; closing one makes room."""
    kept = [Raw(narrow).connect() for _ in range(3)]
    for raw in kept[1:]:
        raw.sock.close()
    with pytest.raises(EOFError):
        Raw(narrow).connect()
    kept[0].send(1, op.OP_CLOSE_SESSION, b"")
    assert kept[0].reply() == (1, 0)
    Raw(narrow).connect()


def test_half_open_connections_are_closed(narrow: Cluster) -> None:
    """Connections that send nothing, or that begin a connect request and do not end it."""
    silent, slow = Raw(narrow), Raw(narrow)
    slow.sock.sendall(struct.pack("!i", 44) + bytes(10))
    assert silent.is_closed()
    assert slow.is_closed()


def test_frame_bound_is_a_setting(narrow: Cluster) -> None:
    """1000 bytes are accepted, 1001 are not, whatever follows."""
    client = Raw(narrow).connect()
    client.send(1, op.OP_CREATE, create(b"/a", bytes(1000 - 8 - len(create(b"/a")))))
    assert client.reply() == (1, 0)
    client.sock.sendall(struct.pack("!i", 1001))
    assert client.is_closed()


def test_client_that_stops_reading_is_closed(narrow: Cluster) -> None:
    """After the configured time; its session lives until it expires."""
    client = Raw(narrow).connect()
    client.send(1, op.OP_CREATE, create(b"/a", bytes(900)))
    assert client.reply() == (1, 0)
    request = records.encode_request_frame(2, op.OP_GET_DATA, records.encode_path_watch(b"/a", False)) * 1000
    client.sock.settimeout(0.5)
    with contextlib.suppress(OSError):
        for _ in range(200):
            client.sock.sendall(request)
    eventually(lambda: "zk_num_alive_connections\t1\n" in narrow.word(1, b"mntr"), what="the stalled one is closed")
    assert "zk_global_sessions\t1\n" in narrow.word(1, b"mntr")


def test_watches_and_nodes_are_observable(narrow: Cluster) -> None:
    """Operators see how many watches and znodes clients create."""
    client = Raw(narrow).connect()
    client.send(1, op.OP_CREATE, create(b"/a"))
    client.send(2, op.OP_EXISTS, records.encode_path_watch(b"/a", True))
    assert [client.reply(), client.reply()] == [(1, 0), (2, 0)]
    found = dict(line.split("\t") for line in narrow.word(1, b"mntr").splitlines())
    assert found["zk_watch_count"] == "1"
    assert int(found["zk_znode_count"]) == 5
    assert int(found["zk_approximate_data_size"]) > 0


def test_longest_frame_is_taken_and_one_byte_more_is_not(node: Cluster) -> None:
    """jute.maxbuffer, checked at the length prefix."""
    client = Raw(node).connect()
    room = 0xFFFFF - 8 - len(create(b"/big"))
    client.send(1, op.OP_CREATE, create(b"/big", b"x" * room))
    assert client.reply() == (1, 0)
    client.sock.sendall(struct.pack("!i", 0x100000))
    assert client.is_closed()


@pytest.mark.parametrize(
    "data", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4abcd", b"STAT", b"abcd"]
)
def test_garbage_is_closed_without_an_answer(node: Cluster, data: bytes) -> None:
    """Garbage in place of a connect request."""
    client = Raw(node)
    client.sock.sendall(data)
    assert client.is_closed()
    assert node.word(1, b"ruok") == "imok"


def test_unknown_operations_are_answered_and_closed(node: Cluster) -> None:
    """As in ZooKeeper; also operations that only servers use."""
    for opcode in (0, 13, 77, -1, op.OP_EXPIRE, op.OP_CREATE_SESSION, op.OP_ATTACH):
        client = Raw(node).connect()
        client.send(1, opcode, b"\0" * 50)
        assert client.reply() == (1, -6), opcode
        assert client.is_closed()


def test_unreadable_records_are_refused_and_the_session_goes_on(node: Cluster) -> None:
    """A short or null field gives MarshallingError and nothing else."""
    client = Raw(node).connect()
    for xid, (opcode, body) in enumerate(
        [(op.OP_DELETE, b""), (op.OP_CREATE, b"\0\0\0\1/"), (op.OP_SET_DATA, b"\xff" * 8), (op.OP_GET_DATA, b"\0"),
         (op.OP_MULTI, b"\0\0"), (op.OP_CREATE_TTL, b""), (op.OP_DELETE_CONTAINER, b"")], 1
    ):  # fmt: skip
        client.send(xid, opcode, body)
        assert client.reply() == (xid, -5), opcode
    client.send(99, op.OP_CREATE, create(b"/fine"))
    assert client.reply() == (99, 0)


def test_requests_behind_the_connect_request_in_one_segment(node: Cluster) -> None:
    """The requests wait for the session, in order."""
    client = Raw(node)
    body = records.encode_connect_request(ConnectRequest(timeout_ms=5000))
    client.sock.sendall(
        struct.pack("!i", len(body)) + body + records.encode_request_frame(1, op.OP_CREATE, create(b"/a"))
        + records.encode_request_frame(2, op.OP_EXISTS, records.encode_path_watch(b"/a", False))
    )  # fmt: skip
    client.frame()
    assert [client.reply(), client.reply()] == [(1, 0), (2, 0)]


def test_word_byte_by_byte(node: Cluster) -> None:
    """The four letters may come one at a time."""
    client = Raw(node)
    client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for letter in b"ruok":
        client.sock.sendall(bytes([letter]))
    assert client.exactly(4) == b"imok"
    assert client.is_closed()


def test_client_that_does_not_read_costs_a_bounded_amount(node: Cluster) -> None:
    """When its answers pile up, its requests are not read any more; other clients are served meanwhile."""
    greedy = Raw(node).connect()
    greedy.send(1, op.OP_CREATE, create(b"/big", b"x" * 500_000))
    assert greedy.reply() == (1, 0)
    greedy.sock.settimeout(2)
    request = records.encode_request_frame(2, op.OP_GET_DATA, records.encode_path_watch(b"/big", False)) * 100
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 << 20:
            sent += greedy.sock.send(request)
    assert sent < 64 << 20, "everything was taken"
    other = Raw(node).connect()
    other.send(1, op.OP_EXISTS, records.encode_path_watch(b"/big", False))
    assert other.reply() == (1, 0)
    assert int((node.folder / "n1" / "lock").read_text()) == node.processes[1].pid
    with open(f"/proc/{node.processes[1].pid}/statm") as statm:
        assert int(statm.read().split()[1]) * 4096 < 400 << 20


def test_pipelined_writes_beyond_the_bound_are_all_answered(node: Cluster) -> None:
    """Back-pressure delays requests but loses none."""
    client = Raw(node).connect()
    requests = [records.encode_request_frame(n, op.OP_CREATE, create(b"/n%d" % n)) for n in range(1, 501)]
    client.sock.sendall(b"".join(requests))
    assert [client.reply() for _ in range(500)] == [(n, 0) for n in range(1, 501)]


def test_all_words_answer(node: Cluster) -> None:
    """Each allowed word answers in its format."""
    keep = Raw(node).connect()
    keep.send(1, op.OP_EXISTS, records.encode_path_watch(b"/w", True))
    keep.reply()
    for word, wanted in {
        b"ruok": "imok", b"srvr": "Node count: ", b"stat": "Clients:\n /127.0.0.1:", b"mntr": "zk_znode_count\t",
        b"conf": "clientPort=", b"cons": "lop=EXIS,est=1", b"envi": "zookeeper.version=3.9.5", b"isro": "rw",
        b"dump": "Global Sessions(1)", b"wchs": "1 connections watching 1 paths\nTotal watches:1", b"wchc": "\t/w",
        b"wchp": "/w\n\t0x", b"dirs": "datadir_size: ", b"crst": "Connection stats reset.",
        b"srst": "Server stats reset.",
    }.items():  # fmt: skip
        assert wanted in node.word(1, word), word


def test_watches_znodes_and_quotas_at_their_bounds(tmp_path: Path) -> None:
    """A session's watches, the store's znodes and hard quotas are bounded; requests that free memory are accepted."""
    roots = 4
    options = ("--max-watches", "2", "--max-znodes", str(roots + 6), "--enforce-quotas", "--reap-interval-ms", "100")
    made = Cluster(tmp_path, 1, options)
    made.start()
    try:
        made.leader()
        with made.client() as client:
            client.create("/q")
            client.create("/zookeeper/quota/q")
            client.create("/zookeeper/quota/q/zookeeper_limits", b"count=-1,bytes=-1=;countHardLimit=2")
            client.create("/zookeeper/quota/q/zookeeper_stats", b"")
            client.create("/q/a")
            for _ in range(2):
                with pytest.raises(QuotaExceededError):
                    client.create("/q/b")
            client.create("/last")
            with pytest.raises(QuotaExceededError):
                client.create("/one-too-many")
            client.delete("/last")
            client.create("/room")
            for path in ("/a", "/b"):
                client.exists(path, watch=print)
            with pytest.raises(QuotaExceededError):
                client.exists("/c", watch=print)
            assert client.exists("/q") is not None
    finally:
        made.kill()


def test_commands_of_the_admin_server(node: Cluster) -> None:
    """The AdminServer paths that monitors read, with ZooKeeper's field names and our figures; unknown paths are 404."""
    Raw(node).connect()

    def ask(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_ports[1]}/commands{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    commands = ask("")["commands"]
    assert {"monitor", "configuration", "server_stats", "leader", "ruok"} <= set(commands)
    for name in commands:
        found = ask(f"/{name}")
        assert (found["command"], found["error"]) == (name, None)
    assert (ask("/mntr")["znode_count"], ask("/monitor")["server_state"]) == (4, "standalone")
    assert ask("/conf")["client_port"] == node.client_ports[1]
    assert ask("/lead")["is_leader"] is True
    assert ask("/srvr")["server_stats"]["packets_received"] >= 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("/shutdown")
