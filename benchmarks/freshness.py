"""Measure how often a first read at another node misses an acknowledged write: our store beside Apache ZooKeeper.

    python -m benchmarks.freshness [--writes 80] [--rounds 6] [--pause-ms 2] [--bench DIR] [--work DIR] [--json]

Three nodes of each store run side by side. In a trial one session sets a znode at one node, waits for the answer, and
another session, connected before, reads the znode at another node at once. The trial is a miss if the read returns an
older value. No guarantee is broken by a miss: reads are local, and `sync` confirms. A round makes `--writes` trials for
every pair of nodes. For each pair the two stores follow one another, so that both run under the same conditions.

The program prints the share of misses for each direction: leader to follower, follower to leader, follower to another
follower.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.arguments import made_folder
from benchmarks.store.clusters import Fleet, build_tools, jars
from benchmarks.store.matrix import ZOOKEEPER
from coord.compiled import form
from coord.wire import records as r

NODES: Final = 3
OURS: Final = "compiled"
PATH: Final = b"/freshness"
#: Longer than any pause between two trials of one session.
_SESSION_MS: Final = 30_000
_ANSWER_S: Final = 60
Address = tuple[str, int]


class Session:
    """A client with one request at a time."""

    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection(address, _ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._xid = 0
        record = r.encode_connect_request(r.ConnectRequest(timeout_ms=_SESSION_MS))
        self._send(record)
        answer = self._frame()
        if r.decode_connect_response(answer, 0, len(answer)).session_id == 0:
            raise ConnectionError(f"{address} opens no session")

    def ask(self, opcode: int, body: bytes) -> bytes:
        """Return the body of the answer. Raise ConnectionError."""
        self._xid += 1
        self._send(struct.pack("!ii", self._xid, opcode) + body)
        frame = self._frame()
        _, _, err = r.decode_reply_header(frame, 0, len(frame))
        if err:
            raise ConnectionError(f"request {opcode} ends with error {err}")
        return frame[r.REPLY_HEADER_BYTES :]

    def value(self) -> int:
        """Return the number in the znode."""
        body = self.ask(r.OP_GET_DATA, r.encode_path_watch(PATH, False))
        (length,) = struct.unpack_from("!i", body)
        return int(body[4 : 4 + length])

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _send(self, record: bytes) -> None:
        self._sock.sendall(struct.pack("!i", len(record)) + record)

    def _frame(self) -> bytes:
        (length,) = struct.unpack("!i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._sock.recv(size - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data


class Target:
    """A running store, with two sessions at each node."""

    def __init__(self, name: str, hosts: str) -> None:
        self.name = name
        found = [host.rpartition(":") for host in hosts.split(",")]
        self.addresses: list[Address] = [(host, int(port)) for host, _, port in found]
        self.leader = _leader(self.addresses)
        self.writers = [Session(address) for address in self.addresses]
        self.readers = [Session(address) for address in self.addresses]
        create = r.CreateRequest(r.OP_CREATE, PATH, b"0", r.OPEN_ACL, 0)
        self.writers[0].ask(r.OP_CREATE, r.encode_create(create))
        self._written = 0
        self.trials: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    def direction(self, writer: int, reader: int) -> str:
        """Return the direction in which a write has to travel."""
        roles = ["leader" if node == self.leader else "follower" for node in (writer, reader)]
        return " to ".join(roles)

    def try_pair(self, writer: int, reader: int, writes: int, pause_s: float) -> None:
        """Make `writes` trials between two nodes."""
        what = self.direction(writer, reader)
        for _ in range(writes):
            self._written += 1
            body = r.encode_set_data(PATH, b"%d" % self._written, -1)
            self.writers[writer].ask(r.OP_SET_DATA, body)
            self.misses[what] += self.readers[reader].value() != self._written
            self.trials[what] += 1
            time.sleep(pause_s)

    def close(self) -> None:
        """Close all sessions."""
        for session in [*self.writers, *self.readers]:
            session.close()


def _leader(addresses: list[Address]) -> int:
    """Return the index of the leader. Raise ConnectionError."""
    for number, address in enumerate(addresses):
        with socket.create_connection(address, _ANSWER_S) as sock:
            sock.sendall(b"srvr")
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
        if b"Mode: leader" in answer:
            return number
    raise ConnectionError("no node leads")


def _pairs(target: Target) -> list[tuple[int, int]]:
    """Return all pairs of nodes in the same order for every target: the leader counts as the first node."""
    order = [target.leader, *(node for node in range(NODES) if node != target.leader)]
    return [(order[one], order[other]) for one in range(NODES) for other in range(NODES) if one != other]


def measure(targets: list[Target], *, rounds: int, writes: int, pause_s: float) -> None:
    """Make all trials, pair by pair and target by target."""
    for number in range(rounds):
        for position in range(NODES * (NODES - 1)):
            for target in targets if number % 2 == 0 else targets[::-1]:
                target.try_pair(*_pairs(target)[position], writes, pause_s)


def report(targets: list[Target]) -> list[dict[str, object]]:
    """Return one row for each direction and target."""
    return [
        {
            "direction": what,
            "target": target.name,
            "trials": target.trials[what],
            "misses": target.misses[what],
            "percent": round(100 * target.misses[what] / target.trials[what], 2),
        }
        for what in ("leader to follower", "follower to leader", "follower to follower")
        for target in targets
    ]


def main() -> int:
    """Run the measurement; exit status 1 if a read at our store is staler than at ZooKeeper in some direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=int, default=80, help="trials for each pair of nodes in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between two trials, so that stores are at rest")
    parser.add_argument("--bench", type=Path, default=Path("../shared/bench"), help="folder of servers.py")
    parser.add_argument("--work", type=made_folder, help="where data lies; a real disk  [default: a temporary folder]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rk-freshness-", dir=given.work) as work:
        rows = _run(given, Path(work))
    if given.json:
        print(json.dumps({"form": form(), "rows": rows}))
    else:
        print(f"first read at another node misses an acknowledged write (our store: {form()})")
        for row in rows:
            print("{direction:22} {target:10} {misses:5} of {trials:5}  {percent:6.2f} %".format(**row))
    shares = {(row["direction"], row["target"]): float(str(row["percent"])) for row in rows}
    return int(any(shares[what, OURS] > shares[what, ZOOKEEPER] for what, target in shares if target == OURS))


def _run(given: argparse.Namespace, work: Path) -> list[dict[str, object]]:
    os.environ.setdefault("ZK_JARS", str(jars()))
    fleet = Fleet(build_tools(given.bench, work), work, NODES)
    with fleet.running([OURS, ZOOKEEPER]) as clusters:
        targets = [Target(name, cluster.target()["hosts"]) for name, cluster in clusters.items()]
        try:
            measure(targets, rounds=given.rounds, writes=given.writes, pause_s=given.pause_ms / 1000)
            return report(targets)
        finally:
            for target in targets:
                target.close()


if __name__ == "__main__":
    sys.exit(main())
