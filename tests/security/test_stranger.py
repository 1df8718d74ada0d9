"""A stranger at every port of a cluster of `rk up`: another user of the machine, with none of its files.

RK_FRAMES=20000 (`make mutated-frames`) for the long form of the last test.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from coord.errors import OK, SESSION_CLOSED_REQUIRE_SASL_AUTH
from coord.peers import framing
from coord.peers.guard import NONCE_BYTES
from coord.rpc.wire import PREAMBLE, Code, Request, encode_body, encode_frame
from coord.security.credentials import FOR_STORE
from coord.security.handshake import GREETING, CallerHello
from coord.server.config.settings import DEFAULT_WORDS
from coord.server.peers import codec, hello_frames
from coord.wire import opcodes as op
from coord.wire import records as r
from coord.wire.digests import digest_of
from regions import messages as ms
from regionserver.tablets.links.hello import ServerHello, encode_hello
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security import frames
from tests.security.stranger import Port, answers, as_stranger, listening, ports_of

pytestmark = pytest.mark.e2e

_SHAPE: Final = ("--store-nodes", "3", "--masters", "1", "--servers", "1", "--regions", "2", "--plan-engine", "greedy")
#: A row's value, which nobody may see.
VALUE: Final = "hunter2-in-a-row"
_TLS_ALERT: Final = b"\x15\x03"
#: A reply without a body: length, xid, zxid, error.
_REPLY: Final = struct.Struct("!iiqi")
#: Size of the answer that opens a session.
_SESSION_BYTES: Final = len(r.encode_connect_response(r.ConnectResponse(0, 0, bytes(16), False)))
_WORD_REFUSAL: Final = b"is not executed because it is not in the whitelist.\n"


class Target:
    """The cluster, its ports and its processes."""

    def __init__(self, up: LocalUp) -> None:
        self.up = up
        self.ports = ports_of(up.data_dir)
        self.pids = up.pids()

    def is_served(self) -> None:
        """Check that the same processes serve the owner."""
        assert self.up.pids() == self.pids, "a daemon has ended"
        found = run_rk("get", "packages", "k", "--data-dir", str(self.up.data_dir))
        assert found.stdout.strip() == VALUE, found.stderr

    def credentials(self) -> list[str]:
        """Return what proves an identity of the cluster: secrets, keys, tokens."""
        user = self.up.credentials()
        assert user is not None
        name, _, password = self.up.store_auth().partition(":")
        found = [password, digest_of(name, password), user.token(), user.token(FOR_STORE)]
        for file in (self.up.data_dir / "certs").iterdir():
            found += re.findall(r"[0-9a-zA-Z+/_=-]{20,}", file.read_text())
        return found

    def names(self) -> list[str]:
        """Return further names that a stranger must not learn: rows, tables, users, places of files, ids."""
        found = [VALUE, "packages", str(self.up.data_dir), "user:admin"]
        for file in self.up.data_dir.glob("server-*/*"):
            if file.is_file() and file.stat().st_size < 10_000:
                found += re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", file.read_text(errors="replace"))
        return list(set(found))


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """Yield a cluster in a directory whose name everybody may list, as /tmp."""
    with frames.all_read(), tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with local_up(Path(folder) / "data", "--base-port", str(free_base_port()), *_SHAPE) as up:
            up.event("up")
            assert run_rk("put", "packages", "k", VALUE, "--data-dir", str(up.data_dir)).returncode == 0
            yield Target(up)


def openings() -> dict[str, bytes]:
    """Return the beginning of every protocol that a daemon speaks, as a stranger can make it."""
    connect = r.encode_connect_request(r.ConnectRequest(0, 4000, 0, bytes(16), False))
    session = struct.pack("!i", len(connect)) + connect
    reads = r.encode_request_frame(1, op.OP_GET_CHILDREN2, r.encode_path_watch(b"/", False))
    proof = r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"user:admin:1:" + b"0" * 64))
    hello = msgspec.msgpack.encode(CallerHello("", "user", "admin", 1, bytes(32), "127.0.0.1:1", ""))
    asks = {
        type(one).__name__: PREAMBLE + encode_frame(Request(1, encode_body(one)))
        for one in (ms.GetMasterStatus(), ms.ListTables(), ms.GetServerStatus(), ms.ShutdownCluster())
    }
    pages = ("/", "/health", "/ready", "/metrics", "/status", "/commands/configuration", "/ui/data/tablets", "/backup")
    return {
        **asks,
        **{f"GET {path}": f"GET {path} HTTP/1.0\r\n\r\n".encode() for path in pages},
        **{f"POST {path}": f"POST {path} HTTP/1.0\r\n\r\n".encode() for path in ("/backup", "/cut", "/heal")},
        **{word.decode(): word for word in (b"ruok", b"srvr", b"mntr", b"conf", b"cons", b"dump", b"envi", b"wchp")},
        "proof of RPC": GREETING + len(hello).to_bytes(2, "big") + hello,
        "session": session + reads,
        "session with a wrong proof": session + proof + reads,
        "hello of a node": hello_frames.encode_hello(hello_frames.Hello(bytes(16), 2, 1, 9, True)),
        "hello of a server": encode_hello(ServerHello("c", "a", "b", 1, ("127.0.0.1", 1))),
        "question for the store": hello_frames.encode_who(),
        "message of Raft": framing.frame(codec.RAFT, bytes(80)),
        "challenge": framing.frame(framing.CHALLENGE, bytes(NONCE_BYTES)),
        "hello of TLS": bytes.fromhex("160301003f0100003b0303") + bytes(32) + bytes.fromhex("0000021301010000100000"),
    }


def kind_of(answer: bytes, kind: str, opening: str) -> str:
    """Return what an answer is; "" for one that serves."""
    if not answer or answer.startswith(_TLS_ALERT):
        return "nothing, or an alert of TLS"
    if answer.startswith(b"HTTP/1."):
        status = int(answer.split()[1])
        is_probe = kind == frames.ADMIN and opening in ("GET /health", "GET /ready")
        return "a status" if status >= 400 or is_probe else ""
    if kind in (frames.MASTER, frames.SERVER) and answer.startswith((PREAMBLE, GREETING)):
        return "a refusal" if Code.UNAUTHENTICATED.encode() in answer or answer.startswith(GREETING) else ""
    if kind in (frames.STORE_PEERS, frames.TABLET_PEERS):
        # A listener proves itself to a dialer first, by a MAC that is worth nothing on another connection.
        is_counter = opening == "challenge" and answer[4] == framing.COUNTER and len(answer) == framing.HEAD_BYTES + 64
        return "a refusal" if answer[4] == framing.REFUSED or is_counter else ""
    if kind == frames.STORE and opening in DEFAULT_WORDS:
        return "figures of the node"
    if kind == frames.STORE and answer.endswith(_WORD_REFUSAL):
        return "a refusal"
    return "a session without a request" if kind == frames.STORE and serves_no_request(answer) else ""


def serves_no_request(answer: bytes) -> bool:
    """Return True if a store node has opened a session at most, and served no request in it.

    A wrong token is taken for a password of somebody whom the store does not know: the next request is refused.
    """
    if struct.unpack_from("!i", answer)[0] != _SESSION_BYTES:
        return False
    for at in range(4 + _SESSION_BYTES, len(answer), _REPLY.size):
        size, xid, _, err = _REPLY.unpack_from(answer, at)
        is_refused = err == SESSION_CLOSED_REQUIRE_SASL_AUTH
        if size != r.REPLY_HEADER_BYTES or not (is_refused or (xid, err) == (op.XID_AUTH, OK)):
            return False
    return True


def test_every_port_is_known(target: Target) -> None:
    """The ports that the next tests attack are exactly those that the kernel reports as open."""
    assert {one.number for one in target.ports} == listening(target.pids)
    assert {one.kind for one in target.ports} == {
        frames.STORE, frames.STORE_PEERS, frames.MASTER, frames.SERVER, frames.TABLET_PEERS, frames.ADMIN,
    }  # fmt: skip
    assert not listening([target.up.process.pid])


def test_a_stranger_is_served_nothing(target: Target) -> None:
    """Every protocol at every port: silence, alerts of TLS, statuses of HTTP, refusals; figures without a name by the
    store's four-letter words. The daemon ends each connection.

    Fails without `--require-auth rk` or without `--peer-secret-file` in `cli.common.local.command_line`, and if
    `coord.security.admin.objection` returns None.
    """
    found = as_stranger(lambda: answers(target.ports, openings()))
    assert len(found) == len(target.ports) * len(openings())
    names, credentials = target.names(), target.credentials()
    assert (len(names), len(credentials)) > (4, 5), "and the uuid of the server"
    secrets = [one.encode() for one in (*names, *credentials)]
    for port, opening, answer, is_closed in found:
        assert kind_of(answer, port.kind, opening), (port.name, opening, answer[:300])
        assert is_closed, (port.name, opening)
        assert [one for one in secrets if one in answer] == [], (port.name, opening, answer)
    target.is_served()


def test_a_stranger_reads_no_file_and_no_process(target: Target) -> None:
    """The directory cannot be listed, no daemon be signaled, no environment read; command lines have no secret.

    Fails if `rk up` makes its directory with mode 0755.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    pids = [*target.pids, target.up.process.pid]

    def attempts() -> list[str]:
        tries: dict[str, Callable[[], object]] = {
            "list": lambda: os.listdir(target.up.data_dir),
            "read": (target.up.data_dir / "cluster.json").read_bytes,
            **{f"signal {pid}": lambda pid=pid: os.kill(pid, 0) for pid in pids},  # type: ignore[misc]
            **{f"environment of {pid}": Path(f"/proc/{pid}/environ").read_bytes for pid in pids},
        }
        served = []
        for name, attempt in tries.items():
            try:
                attempt()
            except PermissionError:
                continue
            served.append(name)
        return served

    def command_lines() -> str:
        return "\n".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)

    assert as_stranger(attempts) == []
    seen = as_stranger(command_lines)
    assert seen
    assert [one for one in target.credentials() if one in seen] == []


def test_mutated_frames_end_no_process_and_keep_no_memory(target: Target) -> None:
    """FRAMES to each port; the owner is served meanwhile by the same processes.

    Fails if a secured port keeps its closed connections in a list.
    """

    def run(port: Port, count: int) -> None:
        as_stranger(lambda: frames.attack(port.name, port.kind, port.number, count))
        target.is_served()

    for port in target.ports:
        run(port, frames.WARMING)
    before = {pid: frames.kilobytes(pid) for pid in [*target.pids, target.up.process.pid]}
    for port in target.ports:
        run(port, frames.FRAMES)
    for pid, kept in before.items():
        assert frames.kilobytes(pid) - kept < frames.KEPT_KB
    for log in (target.up.data_dir / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name
