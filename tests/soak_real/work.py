"""The work and the faults of a soak: DDL, moves, splits and merges, rows, kills. A seed determines the sequence."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from coord.errors import CoordError
from coord.rpc.server import RpcError
from regions import messages as ms
from regionserver.client import DataError, RegionClient
from tests.e2e.masters import Cluster
from tests.support.helpers import eventually
from tests.support.soaks import Worker, kill_for, wants_split

#: The table that stays.
TABLE: Final = "rows"
#: It has between so many regions.
REGIONS: Final = (4, 10)
#: Small tables that live at a time.
TABLES_MAX: Final = 5
#: Rows of the table, each written again and again.
ROWS: Final = 2_000
WAIT_MS: Final = 60_000
#: Longest time until a killed process is started again.
DOWN_S: Final = 10.0


class Rows(Worker):
    """A thread that writes and reads rows until it is stopped."""

    def __init__(self, client: RegionClient, seed: int) -> None:
        super().__init__()
        self._client = client
        self._random = random.Random(seed)

    def _run(self) -> None:
        while not self._is_over.is_set():
            key = f"{self._random.randrange(ROWS):04}"
            try:
                if self._random.random() < 0.5:
                    self._client.put(TABLE, key, key.encode() * 20)
                else:
                    self._client.get(TABLE, key)
                self.counts["rows"] += 1
            except DataError:
                self.counts["rows failed"] += 1


class Work:
    """Operations on one cluster."""

    def __init__(self, cluster: Cluster, client: RegionClient, seed: int) -> None:
        self._cluster = cluster
        self._client = client
        self._random = random.Random(seed)
        self._tables: list[str] = []
        self._made = 0
        #: How often each process was started again, by name.
        self.restarts: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Create the table that stays, and wait until it is open."""
        splits = [f"{number * ROWS // REGIONS[0]:04}" for number in range(1, REGIONS[0])]
        self._cluster.ask_active(ms.CreateTable(TABLE, splits, wait_ms=WAIT_MS), ms.Tables)

    def step(self) -> None:
        """Do one operation. A refusal is counted: masters and servers are being killed."""
        acts: list[Callable[[], str]] = [self._table, self._table, self._move, self._move, self._reshard]
        act = self._random.choice(acts)
        try:
            self.counts[act()] += 1
        except RpcError as error:
            self.counts[f"refused: {error.code}"] += 1
        except (CoordError, DataError, AssertionError) as error:
            self.counts[f"failed: {type(error).__name__}"] += 1

    def _table(self) -> str:
        if len(self._tables) >= TABLES_MAX:
            name = self._tables.pop(0)
            self._cluster.ask_active(ms.DeleteTable(name, wait_ms=WAIT_MS), ms.Tables)
            return "tables deleted"
        self._made += 1
        name = f"small{self._made}"
        self._cluster.ask_active(ms.CreateTable(name, ["m"], wait_ms=WAIT_MS), ms.Tables)
        self._tables.append(name)
        for key in ("a", "z"):
            self._client.put(name, key, b"value")
        return "tables made"

    def _move(self) -> str:
        region = self._random.choice(self._regions()).region
        self._cluster.ask_active(ms.MoveRegion(region.region_id, wait_ms=WAIT_MS), ms.Accepted)
        return "moves"

    def _reshard(self) -> str:
        regions = self._regions()
        at = self._random.randrange(len(regions) - 1)
        if wants_split(len(regions), REGIONS, self._random):
            largest = max(regions, key=lambda one: one.rows or 0).region
            self._cluster.ask_active(ms.SplitRegion(largest.region_id, wait_ms=WAIT_MS), ms.Resharded)
            return "splits"
        left, right = (one.region.region_id for one in regions[at : at + 2])
        self._cluster.ask_active(ms.MergeRegions(left, right, wait_ms=WAIT_MS), ms.Resharded)
        return "merges"

    def _regions(self) -> list[ms.RegionStatus]:
        return self._cluster.ask_active(ms.DescribeTable(TABLE), ms.Regions).regions

    def kill(self) -> None:
        """Kill a master or a server, but never the first of them, and start it again after a while."""
        masters = {f"master{number}": one for number, one in enumerate(self._cluster.masters) if number}
        servers = {f"server{number}": one for number, one in enumerate(self._cluster.servers) if number}
        name, process = self._random.choice([*masters.items(), *servers.items()])
        kill_for([process], self._random.uniform(0, DOWN_S))
        self.restarts[name] += 1
        self.counts["kills"] += 1
        with contextlib.suppress(AssertionError):
            self._cluster.wait_servers(len(self._cluster.servers))

    def end(self) -> None:
        """Wait until all regions are open after the last fault."""
        eventually(self._cluster.wait_settled, what="all regions open after the last fault")
