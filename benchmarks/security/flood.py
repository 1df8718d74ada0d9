"""A stranger's flood at every port of a secured cluster of `rk up`, beside honest clients with connections.

Each round has a quiet time, a flood, and a quiet time. The stranger's process has the lowest priority, so that it takes
the processors' time of nobody else: what honest clients lose is lost in the daemons, or in the kernel.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import say
from benchmarks.security.beside import FLOOR_S, RATIO_MAX, Paced
from benchmarks.security.cost import Cluster
from benchmarks.security.storeload import session
from benchmarks.tablets.clients import quantile
from benchmarks.tablets.cluster import TABLET, region_prefix
from coord.wire import opcodes as op
from coord.wire import records as r
from tests.e2e.clusters import free_base_port, local_up
from tests.security.flooding import flood, lapses
from tests.security.stranger import ports_of

REGIONS: Final = 6
#: Clients that have connections before the flood begins.
CLIENTS: Final = ("store", "rows")
#: The first seconds of a flood, in which ports spend what they have saved.
_BEGINNING_S: Final = 2.0
#: Quiet time before a round.
_REST_S: Final = 6.0
_SHAPE: Final = ("--store-nodes", "3", "--masters", "1", "--servers", "3", "--no-table", "--plan-engine", "greedy")


class Flooded(msgspec.Struct, frozen=True):
    """One round: p99 in ms of each client, and its longest request of the flood's first seconds; requests that failed;
    leases that lapsed. CPU is that of all daemons, in seconds of each second."""

    quiet_ms: dict[str, float]
    flooded_ms: dict[str, float]
    beginning_ms: dict[str, float]
    failed: int
    lapses: int
    connections_per_s: float
    quiet_cpu: float
    flooded_cpu: float

    def ratio(self, client: str) -> float:
        """Return the ratio of p99 during the flood to p99 without it."""
        return self.flooded_ms[client] / max(self.quiet_ms[client], FLOOR_S * 1000)

    def misses(self) -> bool:
        """Return True if a goal is missed."""
        return self.failed > 0 or self.lapses > 0 or any(self.ratio(one) > RATIO_MAX for one in CLIENTS)


@contextlib.contextmanager
def _honest(cluster: Cluster) -> Iterator[dict[str, Paced]]:
    """Yield the honest clients, which are at work."""
    store = session(cluster.store.partition(",")[0], cluster.token, cluster.tls())
    store.ask(op.OP_CREATE, r.encode_create(r.CreateRequest(op.OP_CREATE, b"/honest", b"", r.OPEN_ACL, 0)))
    keys = itertools.cycle([f"{region_prefix(number)}-h" for number in range(REGIONS)])

    def znodes() -> None:
        assert store.ask(op.OP_SET_DATA, r.encode_set_data(b"/honest", b"1", -1)) is not None
        assert store.ask(op.OP_GET_DATA, r.encode_path_watch(b"/honest", False)) is not None

    with cluster.chosen() as client:

        def rows() -> None:
            key = next(keys)
            client.put(TABLET, key, b"1")
            assert client.get(TABLET, key) == b"1"

        for _ in range(REGIONS):
            rows()
        clients = {"store": Paced(znodes), "rows": Paced(rows)}
        try:
            yield clients
        finally:
            for one in clients.values():
                one.stop()
            store.close()


class _Span:
    """Latencies of a time: of its beginning and of the rest."""

    def __init__(self, cluster: Cluster, clients: dict[str, Paced], seconds: float) -> None:
        for one in clients.values():
            one.take()
        failed, cpu = sum(one.failed for one in clients.values()), cluster.cpu_s()
        threading.Event().wait(_BEGINNING_S)
        self.first = {name: one.take() for name, one in clients.items()}
        threading.Event().wait(seconds)
        self.rest = {name: one.take() for name, one in clients.items()}
        self.cpu = (cluster.cpu_s() - cpu) / (seconds + _BEGINNING_S)
        self.failed = sum(one.failed for one in clients.values()) - failed

    def p99_ms(self, name: str) -> float:
        """Return the 99th percentile without the beginning."""
        return quantile(self.rest[name], 0.99) * 1000


def measure(folder: Path, rounds: int, seconds: float, options: Sequence[str]) -> list[Flooded]:
    """Measure the honest clients in each round. `options` are further ones of `rk up`."""
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    words = (*_SHAPE, "--secure", *options, "--base-port", str(free_base_port()))
    with local_up(folder / "flooded", *words) as up:
        up.event("up")
        cluster = Cluster(up, up.credentials())
        with cluster.chosen():
            cluster.create(TABLET, REGIONS, replication=3, storage=TABLET)
        with _honest(cluster) as clients:
            for _ in range(rounds):
                threading.Event().wait(_REST_S)
                found.append(_round(cluster, clients, seconds))
                say(f"flood: {', '.join(f'{one} {found[-1].ratio(one):.1f} x' for one in CLIENTS)}")
    return found


def _round(cluster: Cluster, clients: dict[str, Paced], seconds: float) -> Flooded:
    lapsed = sum(lapses(cluster.up).values())
    before = _Span(cluster, clients, seconds)
    with flood(ports_of(cluster.up.data_dir)) as count:
        during = _Span(cluster, clients, seconds)
        connections = count.value
    threading.Event().wait(1.0)
    after = _Span(cluster, clients, seconds)
    return Flooded(
        {name: min(before.p99_ms(name), after.p99_ms(name)) for name in CLIENTS},
        {name: during.p99_ms(name) for name in CLIENTS},
        {name: max(during.first[name], default=0.0) * 1000 for name in CLIENTS},
        during.failed,
        round(sum(lapses(cluster.up).values()) - lapsed),
        connections / (seconds + _BEGINNING_S),
        min(before.cpu, after.cpu),
        during.cpu,
    )


def shown(found: list[Flooded]) -> list[str]:
    """Return a table of all rounds."""
    heads = [f"{one}: p99 ms quiet → flooded" for one in CLIENTS]
    heads += [f"{one}: longest of the first {_BEGINNING_S:g} s" for one in CLIENTS]
    heads += ["failed", "lapsed leases", "connections/s", "CPU s/s of all daemons"]
    return [
        "| flood, round | " + " | ".join(heads) + " |",
        "| --- " * (len(heads) + 1) + "|",
        *map(_row, range(1, len(found) + 1), found),
    ]


def _row(number: int, one: Flooded) -> str:
    cells = []
    for name in CLIENTS:
        mark = " ✗" if one.ratio(name) > RATIO_MAX else ""
        cells.append(f"{one.quiet_ms[name]:.1f} → {one.flooded_ms[name]:.1f}, **{one.ratio(name):.1f}**{mark}")
    cells += [f"{one.beginning_ms[name]:.0f}" for name in CLIENTS]
    cells += [f"{count}{' ✗' if count else ''}" for count in (one.failed, one.lapses)]
    cells += [f"{one.connections_per_s:,.0f}", f"{one.quiet_cpu:.2f} → {one.flooded_cpu:.2f}"]
    return f"| {number} | {' | '.join(cells)} |"
