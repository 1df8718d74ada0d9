"""The process of `beating`, and the catalog that its servers belong to."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

from benchmarks.assign.beating import START_CODE, region_of, table_of, tables_of, uuid_of
from benchmarks.assign.filling import CLUSTER_ID, Step, cluster_steps, table_steps, write
from benchmarks.assign.lab import Lab
from regions.records.model import RegionRecord, ReplicaLocation, TableRecord

REGISTERED: Final = "registered"
TOLD: Final = "told"
STOPPED: Final = "stopped"
SAID_WITHIN_S: Final = 240.0


class BeatingServers:
    """Servers in a process of their own. They are registered, and send heartbeats to every master."""

    def __init__(self, store: str, servers: int, regions: int) -> None:
        command = [sys.executable, "-m", "benchmarks.assign.beating", "--store", store]
        command += ["--servers", str(servers), "--regions", str(regions), "--cluster-id", CLUSTER_ID]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect(REGISTERED)

    def expect(self, wanted: str) -> None:
        """Wait for a line of the process. Raise SystemExit if it prints another line or ends."""
        process = self._process
        assert process.stdout is not None
        timer = threading.Timer(SAID_WITHIN_S, process.kill)
        timer.start()
        try:
            said = process.stdout.readline().strip()
        finally:
            timer.cancel()
        if said != wanted:
            raise SystemExit(f"the servers were to say {wanted!r} within {SAID_WITHIN_S:.0f} s, and said {said!r}")

    def fall_silent(self) -> None:
        """Stop the heartbeats. The servers stay registered."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        self.expect(STOPPED)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


def fill(cluster: Lab, servers: int, regions: int) -> None:
    """Write a catalog directly to the store: tables whose regions are open on the servers of `beating`."""
    write(cluster.zk, itertools.chain(cluster_steps(cluster.layout), _tables(cluster, servers, regions)))


def _tables(cluster: Lab, servers: int, regions: int) -> Iterator[Step]:
    for name, numbers in tables_of(regions):

        def region(number: int, start: str, end: str, first: int = numbers.start) -> RegionRecord:
            one = first + number
            location = ReplicaLocation(0, uuid_of(one % servers), START_CODE, 1)
            return RegionRecord(table_of(one), region_of(one), start, end, replicas=(location,))

        yield from table_steps(cluster.layout, TableRecord(name, name, regions=len(numbers)), region)
