"""What security costs: a cluster of `rk up` beside one of `rk up --insecure`, measured in turns."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import ssl
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.assign.lab import DEADLINE_S, cpu_s, say
from benchmarks.security import storeload
from benchmarks.tablets import clients
from benchmarks.tablets.cluster import TABLET, region_prefix
from coord.rpc.blocking import call_blocking
from coord.security import process
from coord.security.credentials import FOR_STORE, Credentials
from coord.tls.context import client_context
from regions import messages as ms
from regions.records.partitioning import RegionSpec
from regionserver.client.client import Change, RegionClient, connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up

#: A row of the secured cluster that is slower by more than this needs a reason.
LOSS_MAX: Final = 0.25
#: Both clusters, in the order of their turns.
OPEN: Final = "open"
SECURED: Final = "secured"
REGIONS: Final = 12
PUTTERS: Final = 16
ROWS: Final = 20_000
_SHAPE: Final = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--no-table", "--plan-engine", "greedy")


class Measured(msgspec.Struct, frozen=True):
    """One row of one round: requests per second, or seconds, and CPU of all daemons for each request."""

    row: str
    cluster: str
    value: float
    cpu_us: float


class Row(NamedTuple):
    """Medians of both clusters. `is_time`: less is better."""

    name: str
    is_time: bool
    open_value: float
    secured_value: float
    open_cpu_us: float
    secured_cpu_us: float

    @property
    def ratio(self) -> float:
        """Return the speed of the secured cluster in proportion to that of the open one."""
        pair = (self.open_value, self.secured_value) if self.is_time else (self.secured_value, self.open_value)
        return pair[0] / pair[1] if pair[1] else 0.0

    @property
    def loses(self) -> bool:
        """Return True if a reason is due."""
        return self.ratio < 1 - LOSS_MAX


class Cluster:
    """A running cluster, open or secured: its credentials and addresses."""

    def __init__(self, up: LocalUp, credentials: Credentials | None) -> None:
        self.up = up
        self.credentials = credentials
        self.token = "" if credentials is None else credentials.token(FOR_STORE)
        record = json.loads((up.data_dir / "cluster.json").read_text())
        self.store: str = record["store"]
        self.masters = [one["address"] for one in record["masters"]]
        self.pages = [one["admin"] for one in record["masters"]]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all daemons so far."""
        return sum(map(cpu_s, self.up.pids()))

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of connections to any port, None for a cluster without TLS on every port."""
        files = None if self.credentials is None else self.credentials.tls_files()
        return None if files is None else client_context(files)

    @contextlib.contextmanager
    def chosen(self) -> Iterator[RegionClient]:
        """Yield a client of this cluster; all connections of the block prove its credentials."""
        process.use(self.credentials)
        with connect(self.store, timeout_s=DEADLINE_S) as client:
            yield client

    def active(self) -> tuple[int, tuple[str, int]]:
        """Return number and address of the active master."""
        for number, address in enumerate(self.masters):
            host, _, port = address.rpartition(":")
            status = call_blocking((host, int(port)), ms.GetMasterStatus(), 60.0, expect=ms.MasterStatus)
            if status.role == "active":
                return number, (host, int(port))
        raise SystemExit("no master is active")

    def create(self, name: str, regions: int, *, replication: int, storage: str) -> float:
        """Create a table; return the seconds until all its regions are open."""
        ranges = ["", *map(region_prefix, range(1, regions)), ""]
        specs = [RegionSpec(start, end) for start, end in itertools.pairwise(ranges)]
        wait_ms = int(DEADLINE_S * 1000)
        request = ms.CreateTable(name, regions=specs, replication=replication, storage=storage, wait_ms=wait_ms)
        began = time.monotonic()
        call_blocking(self.active()[1], request, DEADLINE_S, expect=ms.Tables)
        return time.monotonic() - began


@contextlib.contextmanager
def both(folder: Path, options: Sequence[str]) -> Iterator[dict[str, Cluster]]:
    """Yield both clusters, each with a table of tablets with ROWS rows. `options` are for the secured one."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        found = {}
        for name, choice in ((OPEN, ("--insecure",)), (SECURED, ("--secure", *options))):
            say(f"starting the {name} cluster")
            words = (*_SHAPE, *choice, "--base-port", str(free_base_port()))
            up = stack.enter_context(local_up(folder / name, *words))
            up.event("up")
            cluster = found[name] = Cluster(up, up.credentials())
            with cluster.chosen() as client:
                cluster.create(TABLET, REGIONS, replication=3, storage=TABLET)
                for first in range(0, ROWS, 1000):
                    keys = (f"{region_prefix(number % REGIONS)}-s-{number:08}" for number in range(first, first + 1000))
                    client.write(TABLET, [Change(key, clients.VALUE) for key in keys])
            storeload.prepare(cluster.store.partition(",")[0], cluster.token, cluster.tls())
        yield found


def _store(what: str, connections: int, window: int) -> Callable[[Cluster, float], tuple[float, int]]:
    def measure(cluster: Cluster, seconds: float) -> tuple[float, int]:
        nodes = cluster.store.split(",")
        per_s = storeload.load(nodes, cluster.token, cluster.tls(), what, connections, window, seconds)
        return per_s, int(per_s * seconds)

    return measure


def _put(cluster: Cluster, seconds: float) -> tuple[float, int]:
    with cluster.chosen() as client:
        took = clients.put(client, TABLET, REGIONS, PUTTERS, seconds)
    return len(took) / seconds, len(took)


def _scan(cluster: Cluster, seconds: float) -> tuple[float, int]:
    rows, began = 0, time.monotonic()
    with cluster.chosen() as client:
        while (spent := time.monotonic() - began) < seconds:
            rows += sum(1 for _ in client.scan(TABLET))
    return rows / spent, rows


def _page(cluster: Cluster, seconds: float) -> tuple[float, int]:
    with cluster.chosen():
        at = cluster.pages[cluster.active()[0]]
    headers = {} if cluster.credentials is None else {"Authorization": f"Bearer {cluster.credentials.token()}"}
    tls = cluster.tls()
    pages, began = 0, time.monotonic()
    while (spent := time.monotonic() - began) < seconds:
        opened = (
            http.client.HTTPConnection(at, timeout=60)
            if tls is None
            else http.client.HTTPSConnection(at, timeout=60, context=tls)
        )
        with contextlib.closing(opened) as caller:
            caller.request("GET", "/ui/data/tablets", headers=headers)
            answer = caller.getresponse()
            answer.read()
            assert answer.status == HTTPStatus.OK, answer.status
        pages += 1
    return pages / spent, pages


def _assign(regions: int) -> Callable[[Cluster, float], tuple[float, int]]:
    def measure(cluster: Cluster, _: float) -> tuple[float, int]:
        with cluster.chosen():
            took = cluster.create("many", regions, replication=1, storage="shared")
            call_blocking(cluster.active()[1], ms.DeleteTable("many"), DEADLINE_S, expect=ms.Tables)
        return took, regions

    return measure


#: Rows by the names of --only: text, whether the figure is a time, measurement.
ROWS_OF: Final[dict[str, tuple[str, bool, Callable[[int], Callable[[Cluster, float], tuple[float, int]]]]]] = {
    "get": ("get 50x64, requests/s", False, lambda _: _store("get", 50, 64)),
    "set": ("set 10x16, requests/s", False, lambda _: _store("set", 10, 16)),
    "put": (f"put by {PUTTERS} clients, rows/s", False, lambda _: _put),
    "scan": ("scan, rows/s", False, lambda _: _scan),
    "assign": ("assignment of {regions:,} regions, s", True, _assign),
    "page": ("page of the cluster, 1/s", False, lambda _: _page),
}


def measure(
    folder: Path, only: list[str], rounds: int, seconds: float, regions: int, options: Sequence[str]
) -> list[Measured]:
    """Measure the rows, in each round first on one cluster, then on the other, and in the next round the reverse."""
    found = []
    with both(folder, options) as pair:
        for number, name in itertools.product(range(rounds), only):
            text, is_time, make = ROWS_OF[name]
            work = make(regions)
            for which in (OPEN, SECURED) if number % 2 == 0 else (SECURED, OPEN):
                cluster = pair[which]
                if not is_time:
                    work(cluster, min(1.0, seconds))
                before = cluster.cpu_s()
                value, count = work(cluster, seconds)
                cpu_us = (cluster.cpu_s() - before) / max(1, count) * 1e6
                found.append(Measured(text.format(regions=regions), which, value, cpu_us))
                say(f"round {number + 1}: {found[-1].row}, {which}: {value:,.1f}, {cpu_us:,.2f} µs of CPU each")
    process.forget()
    return found


def rows(found: list[Measured]) -> list[Row]:
    """Return the medians of all rounds."""
    made = []
    for name in dict.fromkeys(one.row for one in found):
        of_row = {
            which: [one for one in found if one.row == name and one.cluster == which] for which in (OPEN, SECURED)
        }
        if not all(of_row.values()):
            continue
        values = [statistics.median(one.value for one in of_row[which]) for which in (OPEN, SECURED)]
        cpu = [statistics.median(one.cpu_us for one in of_row[which]) for which in (OPEN, SECURED)]
        made.append(Row(name, name.endswith(", s"), values[0], values[1], cpu[0], cpu[1]))
    return made
