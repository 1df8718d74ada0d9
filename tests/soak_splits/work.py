"""The splits and merges of a soak, and the kills. A seed decides what comes next, the machine when it happens."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Final, NamedTuple

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import RegionRecord
from tests.e2e.masters import Cluster, Process
from tests.soak_splits.clients import KEYS, TABLE, key_of
from tests.support.helpers import eventually
from tests.support.soaks import Worker, kill_for, wants_split

#: Least and greatest number of the table's regions.
REGIONS: Final = (6, 40)
#: Splits and merges at a time.
AT_ONCE: Final = 2
#: Time limit of a split or merge.
WAIT_MS: Final = 60_000
#: Shortest and longest time between the end of one disturbance and the next kill.
CALM_S: Final = (2.0, 15.0)
#: Regions in transition for the splits and merges under way: of each two parents or two daughters.
MOVING_MAX: Final = 2 * AT_ONCE
#: Longest time until a killed process is started again.
DOWN_S: Final = 8.0


class Done(NamedTuple):
    """A split or merge that was asked for and is done; times are those of the request."""

    what: str
    start: str
    end: str
    began_s: float
    ended_s: float
    daughters: tuple[str, ...]

    def has(self, key: str) -> bool:
        """Return True for a key of the regions that were split or merged."""
        return self.start <= key and (not self.end or key < self.end)


class Kill(NamedTuple):
    """The kill of a process. At `ended_s` the cluster had recovered."""

    name: str
    began_s: float
    ended_s: float


class Resharder(Worker):
    """A thread that splits and merges regions until it is stopped."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._random = random.Random(seed)
        self.done: list[Done] = []

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._step()
            except RpcError as error:
                self.counts[f"refused: {error.code}"] += 1
            except AssertionError as error:
                # The request was repeated for longer than any recovery takes.
                self.faults.append(f"a split or merge found no end: {error}")

    def _step(self) -> None:
        regions = [one.region for one in self._cluster.ask_active(ms.DescribeTable(TABLE), ms.Regions).regions]
        regions.sort(key=lambda one: one.start_key)
        key = key_of(self._random.randrange(1, KEYS))
        at = max(number for number, one in enumerate(regions) if one.start_key <= key)
        is_split = wants_split(len(regions), REGIONS, self._random)
        request: ms.SplitRegion | ms.MergeRegions
        if is_split:
            parents = regions[at : at + 1]
            request = ms.SplitRegion(parents[0].region_id, key, wait_ms=WAIT_MS)
        else:
            at = min(at, len(regions) - 2)
            parents = regions[at : at + 2]
            request = ms.MergeRegions(*(one.region_id for one in parents), wait_ms=WAIT_MS)
        began_s = time.monotonic()
        answer = self._cluster.ask_active(request, ms.Resharded)
        self._note("split" if is_split else "merge", parents, began_s, answer)

    def _note(self, what: str, parents: list[RegionRecord], began_s: float, answer: ms.Resharded) -> None:
        daughters = tuple(one.region_id for one in answer.daughters)
        bounds = parents[0].start_key, parents[-1].end_key
        self.done.append(Done(what, *bounds, began_s, time.monotonic(), daughters))
        self.counts[f"{what}s"] += 1


class Killer:
    """Kills masters and servers at random moments, one or two at a time, and starts them again."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.kills: list[Kill] = []

    def step(self, until_s: float) -> None:
        """Wait for a while, kill processes, start them again, and wait until the cluster has recovered."""
        time.sleep(max(0.0, min(self._random.uniform(*CALM_S), until_s - time.monotonic())))
        if time.monotonic() >= until_s:
            return
        victims = self._victims()
        began_s = time.monotonic()
        kill_for([process for _, process in victims], self._random.uniform(0, DOWN_S))
        with contextlib.suppress(AssertionError):
            self._cluster.wait_masters(len(self._cluster.masters))
            self._cluster.wait_servers(len(self._cluster.servers))
            eventually(self._is_recovered, what="the regions of dead servers are open")
        self.kills += [Kill(name, began_s, time.monotonic()) for name, _ in victims]

    def _is_recovered(self) -> bool:
        """Return True if no more regions are in transition than the splits and merges under way explain."""
        return self._cluster.status().rit <= MOVING_MAX

    def _victims(self) -> list[tuple[str, Process]]:
        """Return a server, a master, or one of each; in a third of all cases it is the active master."""
        servers = [(f"server{number}", one) for number, one in enumerate(self._cluster.servers)]
        masters = [(f"master{number}", one) for number, one in enumerate(self._cluster.masters)]
        active = self._cluster.active()
        master = next((one for one in masters if one[1] is active), self._random.choice(masters))
        if self._random.random() < 0.3:
            master = self._random.choice(masters)
        server = self._random.choice(servers)
        return self._random.choice([[server], [server], [master], [server, master]])
