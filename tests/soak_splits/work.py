"""The splits and merges of a soak, and the kills. A seed determines the sequence, the machine the times."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Final, NamedTuple

from kazoo.exceptions import NoNodeError

from coord.rpc.server import RpcError
from coord.rpc.wire import Code
from regions import messages as ms
from regions.records.model import RegionRecord
from regions.records.znodes import decode_resharding
from tests.e2e.masters import Cluster, Process
from tests.soak_splits.clients import KEYS, TABLE, key_of
from tests.support.helpers import eventually
from tests.support.soaks import Worker, kill_for, wants_split

#: Least and greatest number of the table's regions; of a table of tablets, whose daughters rest for half a minute.
REGIONS: Final = (6, 40)
TABLETS: Final = (24, 72)
#: Splits and merges at a time.
AT_ONCE: Final = 2
#: Pause after a refusal, or while every region takes part in a split or merge.
BUSY_S: Final = 0.25
#: Codes of answers after which the same request is sent again.
_AGAIN: Final = (ms.NOT_LEADER, Code.UNREACHABLE, Code.CONNECTION_LOST)
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

    def __init__(self, cluster: Cluster, seed: str, bounds: tuple[int, int] = REGIONS) -> None:
        """`bounds`: least and greatest number of regions."""
        super().__init__()
        self._cluster = cluster
        self._random = random.Random(seed)
        self._bounds = bounds
        self.done: list[Done] = []

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._step()
            except RpcError as error:
                self.counts[f"refused: {error.code}"] += 1
                self._is_over.wait(BUSY_S)
            except AssertionError as error:
                # The request was repeated for longer than any recovery takes.
                self.faults.append(f"a split or merge found no end: {error}")

    def _step(self) -> None:
        regions = [one.region for one in self._cluster.ask_active(ms.DescribeTable(TABLE), ms.Regions).regions]
        regions.sort(key=lambda one: one.start_key)
        is_split = wants_split(len(regions), self._bounds, self._random)
        parents = self._parents(regions, 1 if is_split else 2)
        if not parents:
            self.counts["nothing free"] += 1
            self._is_over.wait(BUSY_S)
            return
        ids = [one.region_id for one in parents]
        request: ms.SplitRegion | ms.MergeRegions
        if is_split:
            first, last = int(parents[0].start_key or "0"), int(parents[0].end_key or f"{KEYS}")
            request = ms.SplitRegion(*ids, key_of(self._random.randrange(first + 1, last)), wait_ms=WAIT_MS)
        else:
            request = ms.MergeRegions(*ids, wait_ms=WAIT_MS)
        began_s = time.monotonic()
        self._note("split" if is_split else "merge", parents, began_s, self._ask(request))

    def _parents(self, regions: list[RegionRecord], count: int) -> list[RegionRecord]:
        """Return so many neighbors that take part in no split or merge, or []."""
        taken = self._taken()
        free = [
            regions[at : at + count]
            for at in range(len(regions) - count + 1)
            if not any(one.region_id in taken for one in regions[at : at + count])
        ]
        free = [one for one in free if count > 1 or int(one[0].end_key or f"{KEYS}") - int(one[0].start_key or "0") > 1]
        return self._random.choice(free) if free else []

    def _taken(self) -> set[str]:
        """Return the regions that take part in a split or merge."""
        zk, layout = self._cluster.zk, self._cluster.layout
        found: set[str] = set()
        for name in zk.get_children(layout.reshardings):
            with contextlib.suppress(NoNodeError):
                record = decode_resharding(zk.get(layout.resharding(name))[0])
                found |= {*record.parents, *(one.region_id for one in record.daughters)}
        return found

    def _ask(self, request: ms.SplitRegion | ms.MergeRegions) -> ms.Resharded:
        """Ask the active master, through changes of the active master. Raise RpcError if it refuses.

        Another thread may have taken the region meanwhile. Then choose another region instead of waiting.
        """

        def asked() -> ms.Resharded | RpcError | None:
            master = self._cluster.active()
            try:
                return None if master is None else self._cluster.ask(master, request, ms.Resharded)
            except RpcError as error:
                return None if error.code in _AGAIN else error

        answer = eventually(asked, 2 * WAIT_MS / 1000, what=type(request).__name__)
        if isinstance(answer, RpcError):
            raise answer
        assert answer is not None, "eventually returns what is true"
        return answer

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
