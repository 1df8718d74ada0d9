"""Honest clients beside each attack: their latencies, quiet and attacked in turns, and lapses of leases.

Three clients send at a fixed pace; a latency counts from the moment at which the request was due, so a daemon that
stands still is charged for everything that waited. The verdict is a ratio of one run: p99 beside the attack to p99 of
the quiet time before it or after it, whichever is less: what an attack leaves behind is not quiet.
"""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import DEADLINE_S, say
from benchmarks.security.attackers import ATTACKS, Target, prepare
from benchmarks.tablets.clients import keys_of, quantile
from benchmarks.tablets.cluster import TABLET, TabletLab, tablet_lab
from coord.wire import opcodes as op
from coord.wire import records as r
from regionserver.client.client import connect
from tests.support.background import Background
from tests.support.rawclient import RawClient

PER_S: Final = 50
#: Goal of each ratio of p99.
RATIO_MAX: Final = 5.0
#: A p99 below this is a pause of the machine's own scheduler, not of a daemon: ratios are to no less.
FLOOR_S: Final = 0.001
CLIENTS: Final = ("store", "rows", "probe")
REGIONS: Final = 6


class Beside(msgspec.Struct, frozen=True):
    """One attack: p99 in ms of each client, quiet and attacked; requests that failed; leases that lapsed."""

    number: int
    quiet_ms: dict[str, float]
    attacked_ms: dict[str, float]
    failed: int
    lapses: int

    def ratio(self, client: str) -> float:
        """Return the ratio of p99 beside the attack to p99 without it."""
        return self.attacked_ms[client] / max(self.quiet_ms[client], FLOOR_S * 1000)

    def misses(self) -> bool:
        """Return True if a goal is missed."""
        return self.failed > 0 or self.lapses > 0 or any(self.ratio(one) > RATIO_MAX for one in CLIENTS)


class Paced(Background):
    """A thread that makes PER_S calls a second. `take` returns the latencies since the last call."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.failed = 0
        self._call = call
        self._found: list[float] = []
        self.start()

    def take(self) -> list[float]:
        """Return the latencies since the last time, in seconds."""
        found, self._found = self._found, []
        return found

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_over.wait(max(0.0, due - time.monotonic())):
            try:
                self._call()
            except Exception:  # any failure of an honest request is the finding
                self.failed += 1
            self._found.append(time.monotonic() - due)
            due += 1 / PER_S


def target_of(cluster: TabletLab) -> Target:
    """Return the addresses that the attacks use."""
    node, server = cluster.store[0], cluster.servers[0]
    return Target(
        cluster.hosts.partition(",")[0],
        node.command[node.command.index("--peer-address") + 1],
        [one.address for one in (*cluster.masters, *cluster.servers)],
        [one.admin_port for one in cluster.records().values()],
        server.command,
        cluster.folder / server.name,
    )


@contextlib.contextmanager
def honest(cluster: TabletLab, target: Target) -> Iterator[dict[str, Paced]]:
    """Yield the honest clients, which are at work."""
    store = RawClient(target.store)
    store.hello(r.ConnectRequest(0, 30_000, 0, bytes(16)))
    store.ask(op.OP_CREATE, r.encode_create(r.CreateRequest(op.OP_CREATE, b"/honest", b"", r.OPEN_ACL, 0)))
    keys = [next(keys_of(region, 1)) for region in range(REGIONS)]
    turns = [0]

    def znodes() -> None:
        assert store.ask(op.OP_SET_DATA, r.encode_set_data(b"/honest", b"1", -1)) is not None
        assert store.ask(op.OP_GET_DATA, r.encode_path_watch(b"/honest", False)) is not None

    def probe() -> None:
        caller = http.client.HTTPConnection("127.0.0.1", target.admin[0], timeout=10)
        with contextlib.closing(caller):
            caller.request("GET", "/health")
            assert caller.getresponse().status == http.HTTPStatus.OK

    with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:

        def rows() -> None:
            turns[0] += 1
            key = keys[turns[0] % REGIONS]
            client.put(TABLET, key, b"1")
            assert client.get(TABLET, key) == b"1"

        rows()
        clients = {"store": Paced(znodes), "rows": Paced(rows), "probe": Paced(probe)}
        try:
            yield clients
        finally:
            for one in clients.values():
                one.stop()
            store.close()


def lapses(target: Target) -> int:
    """Return how often the leases of all servers have lapsed so far."""
    found = 0
    for port in target.admin:
        caller = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(caller):
            caller.request("GET", "/metrics")
            text = caller.getresponse().read().decode()
        found += int(float(re.findall(r"^\S*lease_lapses_total (\S+)$", text, re.MULTILINE)[0]))
    return found


def _span(clients: dict[str, Paced], seconds: float) -> tuple[dict[str, list[float]], int]:
    """Return the latencies of the next seconds, and how many requests failed in them."""
    for one in clients.values():
        one.take()
    before = sum(one.failed for one in clients.values())
    threading.Event().wait(seconds)
    found = {name: one.take() for name, one in clients.items()}
    return found, sum(one.failed for one in clients.values()) - before


def measure(folder: Path, numbers: list[int], seconds: float) -> list[Beside]:
    """Measure the honest clients beside each attack, on a cluster of its own for each one."""
    found = []
    for number in numbers:
        with tablet_lab(folder / str(number), server_options=("--admin-address", "127.0.0.1:0")) as cluster:
            cluster.create(TABLET, REGIONS, TABLET)
            target = target_of(cluster)
            prepare(target)
            with honest(cluster, target) as clients:
                found.append(_beside(number, target, clients, seconds))
        say(f"{number:>2} {ATTACKS[number][0]}: {', '.join(f'{one} {found[-1].ratio(one):.1f} x' for one in CLIENTS)}")
    return found


def _beside(number: int, target: Target, clients: dict[str, Paced], seconds: float) -> Beside:
    context = multiprocessing.get_context("fork")
    ended, before = context.Event(), lapses(target)
    _span(clients, 1.0)
    quiet, _ = _span(clients, seconds)
    attacker = context.Process(target=ATTACKS[number][1], args=(target, ended), daemon=True)
    attacker.start()
    try:
        attacked, failed = _span(clients, seconds)
        if not attacker.is_alive():
            raise SystemExit(f"attack {number} ended by itself (status {attacker.exitcode}): nothing was measured")
    finally:
        ended.set()
        attacker.join(10)
        attacker.kill()
    _span(clients, 1.0)
    after, _ = _span(clients, seconds)
    return Beside(
        number,
        {name: min(quantile(found[name], 0.99) for found in (quiet, after)) * 1000 for name in CLIENTS},
        {name: quantile(attacked[name], 0.99) * 1000 for name in CLIENTS},
        failed,
        lapses(target) - before,
    )
