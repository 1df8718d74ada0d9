"""Peers that prove their identity, and strangers at the peer port: certificates, a shared secret, neither."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.peers import framing
from coord.server.peers import codec, hello_frames
from tests.e2e.test_store_cluster import Cluster
from tests.support.certificates import Authority
from tests.support.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Cluster]:
    """Yield three nodes with these options, two of them started."""
    cluster = Cluster(folder, options=options)
    try:
        cluster.start(1, 2)
        cluster.leader()
        yield cluster
    finally:
        cluster.kill()


def secret_file(folder: Path, secret: str) -> tuple[str, str]:
    """Return the option for a secret."""
    path = folder / secret[:8]
    path.write_text(secret + "\n")
    path.chmod(0o600)
    return "--peer-secret-file", str(path)


def certificate(authority: Authority, name: str, hosts: str = "") -> tuple[str, ...]:
    """Return the options for a certificate."""
    cert, key = authority.issue(name, hosts=hosts)
    return "--peer-tls-cert", str(cert), "--peer-tls-key", str(key), "--peer-tls-ca", str(authority.cert)


def said(cluster: Cluster, node: int) -> str:
    """Return the log of a node."""
    return (cluster.folder / f"{node}.log").read_text()


def stranger(cluster: Cluster, *frames: bytes) -> bytes:
    """Return the answer of node 1 at its peer port before it closes."""
    with socket.create_connection(("127.0.0.1", cluster.peer_ports[1]), 60) as sock:
        sock.settimeout(60)
        answer = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"".join(frames))
            while part := sock.recv(4096):
                answer += part
        return answer


def hello_of(cluster: Cluster) -> bytes:
    """Return a hello in the name of node 3, which any process that knows the cluster's id can make."""
    peers = ",".join(f"{i}=127.0.0.1:{port}" for i, port in sorted(cluster.peer_ports.items()))
    identity = hashlib.sha256(b"regionkeeper cluster " + peers.encode()).digest()[:16]
    return hello_frames.encode_hello(hello_frames.Hello(identity, 3, 1, 99, True))


def serves(cluster: Cluster, node: int) -> bool:
    """Return True if a node has a leader."""
    try:
        return bool(cluster.status(node)["serving"])
    except OSError:
        return False


def outsider(cluster: Cluster, *options: str, lines: tuple[str, ...] = ()) -> None:
    """Start node 3 with other options: it is not admitted, the others continue without it, and node 1 logs `lines`. On
    a machine that pauses the others may elect anew for another reason; three elections are its fault."""
    cluster.options = options
    terms = []
    for _ in range(3):
        cluster.leader()
        before, known = len(said(cluster, 3)), len(said(cluster, 1))
        terms.append({node: cluster.status(node)["term"] for node in (1, 2)})
        cluster.start(3)
        eventually(lambda at=before: "no link to node 1" in said(cluster, 3)[at:], what="node 3 is refused")
        eventually(lambda at=known: all(one in said(cluster, 1)[at:] for one in lines), what=f"node 1 says {lines}")
        assert not serves(cluster, 3)
        found = {node: cluster.status(node)["term"] for node in (1, 2)}
        cluster.kill(3)
        if found == terms[-1]:
            return
    raise AssertionError(f"the others elected anew each time: {terms}")


def test_secret_is_shared_or_nobody_gets_in(tmp_path: Path) -> None:
    """A node with the secret joins. A node with another secret, without one, or that skips the proof does not."""
    known = secret_file(tmp_path, "the peers' own secret")
    with running(tmp_path, *known) as cluster:
        cluster.start(3)
        eventually(lambda: serves(cluster, 3), what="node 3 serves")
        with cluster.client(3) as client:
            client.create("/a")
        cluster.kill(3)
        outsider(cluster, *secret_file(tmp_path, "another secret of 16"))
        assert "another secret" in said(cluster, 3)
        outsider(cluster)
        assert "does not prove that it has the peers' secret" in said(cluster, 3)
        raft = framing.frame(codec.RAFT, bytes(80))
        for frames in ((hello_of(cluster), raft), (raft,), (hello_frames.encode_who(),)):
            answer = stranger(cluster, *frames)
            assert answer[4:5] == bytes([framing.REFUSED])
            assert b"does not prove" in answer


def test_certificates_are_of_the_clusters_authority_or_nobody_gets_in(tmp_path: Path) -> None:
    """Mutual TLS: plain peers and foreign certificates are rejected before any byte of the protocol is read."""
    authority = Authority(tmp_path / "ca")
    with running(tmp_path, *certificate(authority, "node"), "--no-peer-tls-host-check") as cluster:
        cluster.start(3)
        eventually(lambda: serves(cluster, 3), what="node 3 serves")
        with cluster.client(3) as client:
            client.create("/a", b"x" * 900_000)
        cluster.assert_agreed()
        cluster.kill(3)
        outsider(cluster)
        outsider(cluster, *certificate(Authority(tmp_path / "other", "other"), "node"))
        answer = stranger(cluster, hello_of(cluster))
        assert answer[:1] in (b"", b"\x15"), "nothing, or an alert of TLS"
        eventually(lambda: "rejected a connection to the peer port: TLS" in said(cluster, 1), what="a line about it")


def test_certificates_are_for_the_nodes_hosts(tmp_path: Path) -> None:
    """A certificate of the cluster's authority for another host is rejected, by the listener as well as by the
    dialer; so is one that names another node of the same host.

    Fails if the host check is off by default, or if `certificate_mismatch` does not ask `misnamed`.
    """
    authority = Authority(tmp_path / "ca")
    with running(tmp_path, *certificate(authority, "node", "IP:127.0.0.1")) as cluster:
        cluster.start(3)
        eventually(lambda: serves(cluster, 3), what="node 3 serves")
        cluster.kill(3)
        elsewhere = certificate(authority, "elsewhere", "DNS:elsewhere.example,IP:127.0.0.2")
        outsider(cluster, *elsewhere, lines=("not for 127.0.0.1, host of node 3", "no link to node 3"))
        outsider(cluster, *certificate(authority, "nameless"))
        stolen = certificate(authority, "stolen", "URI:regionkeeper://c/node/1,IP:127.0.0.1")
        outsider(cluster, *stolen, lines=("shows the certificate of node:1, not that of node:3",))


def test_a_node_joins_with_secret_and_certificate(tmp_path: Path) -> None:
    """The question for the store's identity uses secret and certificate, too."""
    authority = Authority(tmp_path / "ca")
    options = (*certificate(authority, "node", "IP:127.0.0.1"), *secret_file(tmp_path, "the peers' own secret"))
    with running(tmp_path, *options) as cluster:
        client_port, peer_port = free_ports(2)
        words = [
            sys.executable, "-m", "cli", "coord", "run", "--id", "4", "--data-dir", str(tmp_path / "n4"),
            "--client-address", f"127.0.0.1:{client_port}", "--peer-address", f"127.0.0.1:{peer_port}",
            "--join", f"127.0.0.1:{cluster.peer_ports[1]}", *options,
        ]  # fmt: skip
        with (tmp_path / "4.log").open("wb") as log:
            cluster.processes[4] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(lambda: "waiting to be added" in said(cluster, 4), what="node 4 knows the store")
        eventually(lambda: "node 4 is not a member" in said(cluster, 1), what="node 4 has proved the secret")
