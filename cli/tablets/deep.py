"""`rk fsck --deep` of tablets: every replica's server reads all its rows, whose checksums it compares.

A replica whose rows are damaged becomes FAILED, as with every other read that finds damage. The other members continue.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from cli.common.asking.servers import ask_server
from coord.rpc.wire import RpcError
from regions.diagnose.fsck import ClusterView
from regions.records.model import RegionRecord, ServerRecord, TabletState
from regions.records.replica_key import replica_key
from regionserver.tablets.messages import REPLICA_FAILED, TabletPage, TabletScan

_TIMEOUT_S: Final = 30.0
#: A replica that has applied this entry may answer: the first leader's first entry.
_ANY_ENTRY: Final = 1


class ReplicaToRead(NamedTuple):
    """A replica of a tablet on a server that lives."""

    server: ServerRecord
    region: RegionRecord
    number: int

    @property
    def key(self) -> str:
        """Return the replica's key, as findings name it."""
        return replica_key(self.region.region_id, self.number)


class ReplicaRead(NamedTuple):
    """The result of reading a replica."""

    rows: int
    size_bytes: int
    #: The server's reason not to read on, or "".
    trouble: str
    #: True if the replica is FAILED, so its rows may be damaged.
    is_failed: bool


def replicas_of(view: ClusterView, region: RegionRecord) -> tuple[list[ReplicaToRead], list[str]]:
    """Return the readable replicas of a tablet, and a line for each other one."""
    if region.state in (TabletState.PREPARING, TabletState.CREATING):
        return [], [f"{region.region_id}: {region.state.value}"]
    servers = {one.uuid: one for one in view.servers}
    found = [ReplicaToRead(servers[one.uuid], region, one.number) for one in region.members if one.uuid in servers]
    away = [one for one in region.members if one.uuid not in servers]
    return found, [f"{replica_key(region.region_id, one.number)}: server {one.uuid} is not registered" for one in away]


def read_replica(replica: ReplicaToRead, rate_mb_s: float) -> ReplicaRead:
    """Let a server read every row of its replica, at most `rate_mb_s`; 0: without a limit."""
    rows = size = 0
    start = ""
    while True:
        began_s = time.monotonic()
        try:
            scan = TabletScan(replica.region.region_id, start, at_least=_ANY_ENTRY)
            page = ask_server(replica.server, scan, TabletPage, _TIMEOUT_S)
        except RpcError as error:
            return ReplicaRead(rows, size, error.message, error.code == REPLICA_FAILED)
        read = sum(len(one.key.encode()) + len(one.value) for one in page.rows)
        rows, size, start = rows + len(page.rows), size + read, page.next_key
        if not start:
            return ReplicaRead(rows, size, "", False)
        if rate_mb_s:
            time.sleep(max(0.0, read / (rate_mb_s * 1e6) - (time.monotonic() - began_s)))
