"""A cluster for tables of tablets and tables of shared regions: store of three nodes, two masters, three servers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.assign.lab import DEADLINE_S, Daemon, Lab, cpu_s
from coord.rpc.blocking import call_blocking
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.messages.server import GetServerStatus, ServerStatus, TabletFigures
from regions.messages.tablets import OwnReplica, ReplicaList, ShowReplicas
from regions.records.partitioning import RegionSpec
from tests.support.helpers import eventually

SERVERS: Final = 3
REPLICAS: Final = 3
#: Storage of a table, and the name of the table in the measurements.
TABLET: Final = "tablet"
SHARED: Final = "shared"
CALL_S: Final = 60.0


class Use(NamedTuple):
    """Resources used so far: CPU seconds of the processes, and bytes written by the servers' shared logs."""

    servers: float
    masters: float
    store: float
    syncs: int = 0
    entries: int = 0
    log_bytes: int = 0

    def since(self, before: Use) -> Use:
        """Return the resources used since `before`."""
        return Use(*(now - then for now, then in zip(self, before, strict=True)))


class TabletLab(Lab):
    """The cluster. Use `tablet_lab`."""

    def create(self, name: str, regions: int, storage: str) -> float:
        """Create a table and return the seconds until all its regions are open: tablets with a leader each."""
        ranges = ["", *(region_prefix(number) for number in range(1, regions)), ""]
        specs = [RegionSpec(start, end) for start, end in itertools.pairwise(ranges)]
        request = ms.CreateTable(
            name,
            regions=specs,
            replication=REPLICAS if storage == TABLET else 1,
            storage=storage,
            wait_ms=int(DEADLINE_S * 1000),
        )
        began = time.monotonic()
        call_blocking(self.active().address, request, DEADLINE_S, expect=ms.Tables)
        return time.monotonic() - began

    def drop(self, name: str) -> None:
        """Delete a table."""
        call_blocking(self.active().address, ms.DeleteTable(name), DEADLINE_S, expect=ms.Tables)

    def figures(self, server: Daemon) -> TabletFigures | None:
        """Return a server's figures of its tablets; None if the server does not answer or hosts no tablets."""
        try:
            return call_blocking(server.address, GetServerStatus(), CALL_S, expect=ServerStatus).tablets
        except (RpcError, OSError):
            return None

    def replicas(self, server: Daemon) -> dict[str, OwnReplica]:
        """Return a server's replicas by tablet; empty if the server does not answer."""
        found: dict[str, OwnReplica] = {}
        after = ""
        try:
            while True:
                page = call_blocking(server.address, ShowReplicas(after=after), CALL_S, expect=ReplicaList)
                found.update((one.report.region_id, one) for one in page.replicas)
                after = page.next
                if not after:
                    return found
        except (RpcError, OSError):
            return {}

    def led(self) -> dict[Daemon, int]:
        """Return how many tablets each server leads."""
        found = {server: self.figures(server) for server in self.servers if server.is_running}
        return {server: one.leaders for server, one in found.items() if one is not None}

    def use(self) -> Use:
        """Return the resources used so far."""
        kinds = (self.servers, self.masters, self.store)
        cpu = [sum(cpu_s(one.pid) for one in kind if one.is_running) for kind in kinds]
        figures = [one for server in self.servers if (one := self.figures(server)) is not None]
        counts = [(one.syncs, one.entries, one.log_bytes) for one in figures]
        return Use(*cpu, *map(sum, zip(*counts, strict=True)))

    def wait_led(self, tablets: int) -> None:
        """Wait until that many tablets have a leader."""
        eventually(lambda: sum(self.led().values()) >= tablets, DEADLINE_S, f"{tablets} tablets have leaders")


def region_prefix(number: int) -> str:
    """Return the prefix of the keys of region `number`."""
    return f"{number:08}"


@contextlib.contextmanager
def tablet_lab(folder: Path, *, servers: int = SERVERS, server_options: Sequence[str] = ()) -> Iterator[TabletLab]:
    """Yield a running cluster on an empty folder. All its processes end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    cluster = TabletLab(folder, masters=2, servers=servers, opener="kv", session_ms=3000, server_options=server_options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
