"""A host of tablets whose requests the test answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed

from regions.messages import OpenOrder, OwnReplica, ReplicaState, TabletReport, TabletRole
from regions.messages.server import TabletFigures
from regions.records.model import RegionRecord
from regions.replication.guards import ReplicaOnDisk
from regionserver.tablets.commands import KvCommand, encode
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.order_plans import Stage

NOW_MS = 1_000_000


class FakeHosting:
    """Replicas by tablet; each request waits in `asked` until `answer` is called."""

    def __init__(self) -> None:
        self.there: dict[str, TabletReport] = {}
        self.ranges: dict[str, RegionRecord] = {}
        self.leaders: dict[str, tuple[int, int, str]] = {}
        self.asked: list[tuple[str, Any, Deferred[TabletAnswer]]] = []
        self.at_least: list[int] = []
        self.max_stale_ms: list[int] = []
        self.learned: dict[str, tuple[str, int]] = {}
        self.registered: list[str] = []
        self.is_stopped = False
        self.is_full = False
        self.links: Any = None
        #: Tablets whose refusals wait, with what each refusal waits for.
        self.sealed: dict[str, Deferred[None]] = {}

    def put(self, tablet: str, number: int = 1, state: ReplicaState = ReplicaState.RUNNING) -> None:
        self.there[tablet] = TabletReport(tablet, "t", number, state, 3, TabletRole.FOLLOWER)
        self.ranges[tablet] = RegionRecord("t", tablet, "b", "m")

    def claim_by(self, claims: Any) -> None:
        self.claims = claims

    def find_servers(self, address_of: Callable[[str], Any]) -> None:
        self.address_of = address_of

    def answer(self, fate: Fate, value: Any = None, **more: Any) -> None:
        """Answer the oldest request."""
        tablet, _, waiting = self.asked.pop(0)
        waiting.callback(TabletAnswer(tablet, 0, fate, value, **more))

    def local(self, tablet: str) -> ReplicaOnDisk | None:
        found = self.there.get(tablet)
        return None if found is None else ReplicaOnDisk(found.number, found.state)

    def make(self, orders: Sequence[OpenOrder]) -> Deferred[list[str]]:
        for order in orders:
            self.put(order.region.region_id, order.transition.replica, ReplicaState.ASLEEP)
        return succeed([""] * len(orders))

    def begin(self, tablet: str) -> Deferred[str]:
        self.put(tablet, self.there[tablet].number)
        return succeed("")

    def close(self, tablet: str, stage: Stage) -> Deferred[str]:
        assert stage is Stage.DELETE
        del self.there[tablet]
        return succeed("")

    def key_range(self, tablet: str) -> RegionRecord | None:
        return self.ranges.get(tablet)

    def propose(self, tablet: str, command: KvCommand) -> Deferred[TabletAnswer]:
        encode(command)
        self.asked.append((tablet, command, Deferred()))
        return self.asked[-1][2]

    def read(
        self, tablet: str, read: Callable[[Any], Any], *, at_least: int = 0, max_stale_ms: int = 0, keys: int = 0
    ) -> Deferred[TabletAnswer]:
        self.at_least.append(at_least)
        self.max_stale_ms.append(max_stale_ms)
        self.asked.append((tablet, read, Deferred()))
        return self.asked[-1][2]

    def age_ms(self, answer: TabletAnswer) -> int:
        return NOW_MS - answer.as_of_ms

    def leader_of(self, tablet: str) -> tuple[int, int, str]:
        return self.leaders.get(tablet, (0, 0, ""))

    def until_split(self, tablet: str) -> Deferred[None]:
        return self.sealed.get(tablet) or succeed(None)

    def time_ms(self, tablet: str) -> int:
        return NOW_MS

    def number(self, tablet: str) -> int | None:
        report = self.report(tablet)
        return None if report is None else report.number

    def report(self, tablet: str) -> TabletReport | None:
        return self.there.get(tablet)

    def reports(self) -> list[TabletReport]:
        return list(self.there.values())

    def keys(self) -> list[tuple[str, int]]:
        return [(one.region_id, one.number) for one in self.there.values()]

    def tablets(self) -> list[str]:
        return list(self.there)

    def own_replica(self, tablet: str) -> OwnReplica | None:
        found = self.there.get(tablet)
        return None if found is None else OwnReplica(found)

    def figures(self) -> TabletFigures:
        return TabletFigures(
            dict(Counter(one.state.value for one in self.there.values())),
            leaders=2,
            syncs=10,
            entries=40,
            log_bytes=4_000,
            is_full=self.is_full,
        )

    def listed(self, servers: Collection[str]) -> None:
        self.registered = sorted(servers)

    def learn(self, server: str, address: tuple[str, int]) -> None:
        self.learned[server] = address

    async def stop(self) -> None:
        self.is_stopped = True
