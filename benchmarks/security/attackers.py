"""Attacks on time, memory and connections of an open cluster. Each is repeated until its `Event` is set.

Every attack runs in its own process, so it slows the honest clients only through the daemons and the machine. The
numbers are those of the findings in `docs/attacks.md`.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, NamedTuple

from coord.rpc.wire import FRAME_BYTES_MAX
from coord.rpc.wire import PREAMBLE as RPC_PREAMBLE
from coord.server.peers import hello_frames
from coord.wire import opcodes as op
from coord.wire import records as r
from tests.support.rawclient import RawClient

#: Children of the znode that the attack lists.
ZNODES: Final = 100_000
BIG: Final = 900_000
#: The attacker's source address in attacks against limits for each address.
ELSEWHERE: Final = "127.0.0.66"
_PIPELINED: Final = 900
_HALVES: Final = 60
_PROBES: Final = 70
_PAUSE_S: Final = 0.05
#: Time between two starts of a server with a copied identity, as by a supervisor.
_RESTART_S: Final = 3.0


class Target(NamedTuple):
    """Addresses of a cluster, and the command and directory of one of its servers."""

    store: str
    store_peer: str
    rpc: list[tuple[str, int]]
    admin: list[int]
    server_command: list[str]
    server_folder: Path


def prepare(target: Target) -> None:
    """Make the znodes that the attacks read."""
    with contextlib.closing(_session(target)) as client:
        _create(client, b"/many", b"")
        for first in range(0, ZNODES, 2000):
            creates = [
                r.CreateRequest(op.OP_CREATE, b"/many/%d" % number, b"", r.OPEN_ACL, 0)
                for number in range(first, first + 2000)
            ]
            client.ask(op.OP_MULTI, r.encode_multi([r.MultiOp(op.OP_CREATE, one.path, create=one) for one in creates]))
        _create(client, b"/big", b"x" * BIG)


def _session(target: Target, source: str = "", timeout_ms: int = 30_000) -> RawClient:
    client = RawClient(target.store, source=source)
    answer = client.hello(r.ConnectRequest(0, timeout_ms, 0, bytes(16)))
    if answer is None or not answer.session_id:
        client.close()
        raise ConnectionError("no session")
    return client


def _create(client: RawClient, path: bytes, data: bytes) -> None:
    client.ask(op.OP_CREATE, r.encode_create(r.CreateRequest(op.OP_CREATE, path, data, r.OPEN_ACL, 0)))


def _counting_reads(target: Target, ended: Event) -> None:
    """Pipeline reads that once walked a tree."""
    body = r.encode_path(b"/many")
    ask = b"".join(r.encode_request_frame(i, op.OP_GET_ALL_CHILDREN_NUMBER, body) for i in range(_PIPELINED))
    with contextlib.closing(_session(target)) as client:
        while not ended.is_set():
            client.sock.sendall(ask)
            for _ in range(_PIPELINED):
                client.answer()


def _large_answers(target: Target, ended: Event) -> None:
    """Ask for a gigabyte by one frame of some kilobytes."""
    body = r.encode_multi([r.MultiOp(op.OP_GET_DATA, b"/big")] * 1200)
    with contextlib.closing(_session(target)) as client:
        while not ended.is_set():
            client.ask(op.OP_MULTI_READ, body)


def _half_frames(target: Target, ended: Event) -> None:
    """Send nearly all of the longest frame, by many connections to each master and server."""
    half = RPC_PREAMBLE + struct.pack(">I", FRAME_BYTES_MAX) + b"\x93" + bytes(FRAME_BYTES_MAX - 2)
    while not ended.is_set():
        with contextlib.ExitStack() as stack:
            for address in target.rpc:
                for _ in range(_HALVES):
                    if ended.is_set():
                        return
                    with contextlib.suppress(OSError):
                        stack.enter_context(socket.create_connection(address, 5)).sendall(half)


def _half_requests(target: Target, ended: Event) -> None:
    """Hold more connections to each admin port than it takes, each with half a request; open each closed one anew."""
    held: dict[socket.socket, int] = {}
    for port in target.admin:
        for _ in range(_PROBES):
            held[_half_request(port)] = port
    while not ended.is_set():
        closed, _, _ = select.select(list(held), [], [], _PAUSE_S)
        for one in closed:
            port = held.pop(one)
            one.close()
            held[_half_request(port)] = port


def _half_request(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 5)
    made.sendall(b"GET /health HTTP/1.1\r\n")
    return made


def _unknown_peers(target: Target, ended: Event) -> None:
    """Say hello as nodes that nobody knows, at an address that accepts what dials it."""
    host, _, port = target.store_peer.rpartition(":")
    with socket.create_server(("127.0.0.1", 0), backlog=500) as own:
        address = f"127.0.0.1:{own.getsockname()[1]}"
        with socket.create_connection((host, int(port)), 5) as asked:
            asked.sendall(hello_frames.encode_who())
            cluster, _, _ = hello_frames.decode_cluster(asked.recv(65536)[5:])
        number = 10
        while not ended.is_set():
            number += 1
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as dialed:
                hello = hello_frames.Hello(cluster, number, 1, 1, True, config=1 << 61, address=address)
                dialed.sendall(hello_frames.encode_hello(hello))
                dialed.recv(4096)


def _copied_identity(target: Target, ended: Event) -> None:
    """Start a server on a copy of another one's directory, again and again."""
    folder = target.server_folder.with_name("copied")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copytree(target.server_folder, folder, dirs_exist_ok=True)
    words = [str(folder) if one == str(target.server_folder) else one for one in target.server_command]
    words[words.index("--address") + 1] = f"127.0.0.1:{port}"
    while not ended.is_set():
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as copy:
            while copy.poll() is None and not ended.is_set():
                ended.wait(_PAUSE_S)
            copy.kill()
        ended.wait(_RESTART_S)


def _sessions(target: Target, ended: Event) -> None:
    """Open sessions and leave them, without an end."""
    while not ended.is_set():
        with contextlib.suppress(OSError):
            _session(target, ELSEWHERE, 40_000).close()


def _proofs(target: Target, ended: Event) -> None:
    """Pipeline proofs, each of which is a line of audit."""
    ask = [r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"eve:%d" % i)) for i in range(50)]
    with contextlib.closing(_session(target)) as client:
        while not ended.is_set():
            client.sock.sendall(b"".join(ask))
            for _ in ask:
                client.frame()


def _watches(target: Target, ended: Event) -> None:
    """Set watches until the bound ends the connection, and begin anew."""
    number = 0
    while not ended.is_set():
        with contextlib.suppress(OSError), contextlib.closing(_session(target)) as client:
            answer: object = True
            while answer is not None and not ended.is_set():
                number += 1
                paths = [b"/w/%d/%d" % (number, one) for one in range(10_000)]
                sets = r.WatchSets(1 << 60, [], paths, [], [], [])
                answer = client.ask(op.OP_SET_WATCHES, r.encode_set_watches(sets, second=False))


#: Number of the finding, what it is, and the attack.
ATTACKS: Final[dict[int, tuple[str, Callable[[Target, Event], None]]]] = {
    10: ("reads that count 100,000 znodes", _counting_reads),
    11: ("multiRead of a gigabyte", _large_answers),
    12: ("half frames at RPC ports", _half_frames),
    14: ("half requests at admin ports", _half_requests),
    15: ("hellos of unknown nodes", _unknown_peers),
    16: ("a server with a copied identity", _copied_identity),
    17: ("sessions without an end", _sessions),
    18: ("proofs for the audit log", _proofs),
    20: ("watches without an end", _watches),
}
