"""Mutated frames for every kind of port, and the memory that a process may keep."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from coord.newcomers import UNBOUNDED_VARIABLE
from coord.peers import framing
from coord.peers.guard import NONCE_BYTES
from coord.rpc.wire import PREAMBLE, Request, encode_frame
from coord.security.handshake import GREETING, CallerHello, Proof
from coord.server.peers import codec, hello_frames
from coord.wire import opcodes as op
from coord.wire import records as r
from regions import messages as ms
from regionserver.tablets.links.hello import ServerHello, encode_hello
from tests.fuzz.corpus import seeds
from tests.fuzz.mutate import mutated

#: Frames for each port. The long form is `make mutated-frames`.
FRAMES: Final = int(os.environ.get("RK_FRAMES", "1000"))
#: Frames before the first look at the memory: they fill caches.
WARMING: Final = 200
#: Connections that are open at the same time, each with one mutated stream.
AT_ONCE: Final = 50
#: Memory that a process may keep after any number of frames: caches of its allocator, lines of its log.
KEPT_KB: Final = 48 << 10
#: Frames between two lines of progress of a long run.
_REPORTED: Final = 2_000
#: Requests that end a process or a server's work when they are valid: a mutation may leave them so.
_ORDERS: Final = ("Shutdown", "Fence", "Drain", "Retire", "Stop")
_PATHS: Final = ("/health", "/metrics", "/status", "/commands/monitor", "/ui/data/tablets", "/backup", "/nothing")
_HEADS: Final = ("", "content-length: 9\r\n", "transfer-encoding: chunked\r\n", "connection: keep-alive\r\n")

#: Kinds of ports.
MASTER: Final = "master"
SERVER: Final = "server"
ADMIN: Final = "admin"
STORE: Final = "store"
STORE_PEERS: Final = "peers of the store"
TABLET_PEERS: Final = "peers of tablets"


def _requests(union: Any) -> list[bytes]:
    """Return streams with one request of each type of the union, without its fields, and streams that begin a proof."""
    tags = [str(one.__struct_config__.tag) for one in typing.get_args(union)]
    bodies = [msgspec.msgpack.encode({"type": tag}) for tag in tags if not tag.startswith(_ORDERS)]
    open_ones = [PREAMBLE + encode_frame(Request(n, msgspec.Raw(body))) for n, body in enumerate(bodies)]
    proofs = []
    for kind in ("user", "server", "master"):
        hello = msgspec.msgpack.encode(CallerHello("c", kind, "admin", 1, bytes(32), "127.0.0.1:1", ""))
        proof = msgspec.msgpack.encode(Proof(bytes(32)))
        proofs.append(GREETING + b"".join(len(one).to_bytes(2, "big") + one for one in (hello, proof)))
    return [*open_ones, *proofs * (1 + len(open_ones) // 6)]


def _peers(hello: bytes) -> list[bytes]:
    challenge = framing.frame(framing.CHALLENGE, bytes(NONCE_BYTES))
    proof = framing.frame(framing.PROOF, bytes(32))
    kinds = [framing.frame(kind, bytes(size)) for kind in range(19) for size in (0, 1, 40, 300)]
    return [hello, challenge + proof + hello, hello_frames.encode_who(), *kinds]


def _clients() -> list[bytes]:
    """Return sessions with one request, before and after a wrong proof."""
    auth = r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"user:admin:1:" + b"0" * 64))
    streams = [one[1:] for one in seeds("client")]
    size = 4 + len(r.encode_connect_request(r.ConnectRequest(0, 4000, 0, bytes(16), False)))
    return [*streams, *(one[:size] + auth + one[size:] for one in streams if len(one) > size)]


def corpus(kind: str) -> list[bytes]:
    """Return valid streams, or streams as valid as somebody without a secret can make them, for a kind of port."""
    if kind == STORE:
        return _clients()
    if kind == STORE_PEERS:
        hello = hello_frames.encode_hello(hello_frames.Hello(bytes(16), 2, 1, 9, True))
        return [*_peers(hello), framing.frame(codec.RAFT, bytes(80)), *(one[1:] for one in seeds("peer"))]
    if kind == TABLET_PEERS:
        return _peers(encode_hello(ServerHello("c", "server-1", "server-2", 1, ("127.0.0.1", 1))))
    if kind == ADMIN:
        return [f"GET {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n0\r\n\r\n".encode() for path in _PATHS for head in _HEADS]
    return _requests(ms.MasterRequest if kind == MASTER else ms.ServerRequest)


@contextlib.contextmanager
def all_read() -> Iterator[None]:
    """Let daemons that start in this block read what every connection sends, however many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(UNBOUNDED_VARIABLE, "1")
        yield


def _send(port: int, streams: list[bytes]) -> None:
    """Send each stream by a connection of its own, and end them all."""
    with contextlib.ExitStack() as stack:
        for stream in streams:
            with contextlib.suppress(OSError):
                caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                caller.setblocking(False)
                caller.send(stream)


def attack(name: str, kind: str, port: int, frames: int, served: Callable[[], None] = lambda: None) -> None:
    """Send mutated streams to a port, always the same ones. `served` checks its daemon, now and then and at the end."""
    chance = random.Random(f"{kind} {frames}")
    cases = corpus(kind)
    for sent in range(0, frames, AT_ONCE):
        _send(port, [mutated(chance, cases) for _ in range(AT_ONCE)])
        if sent % _REPORTED == 0 and sent:
            served()
            sys.stderr.write(f"{name}: {sent} of {frames} frames\n")
    served()


def kilobytes(pid: int) -> int:
    """Return the resident memory of a process. Raise AssertionError if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise AssertionError(f"process {pid} has ended") from error
    found = [line for line in status.splitlines() if line.startswith("VmRSS")]
    assert found, f"process {pid} has ended"
    return int(found[0].split()[1])
