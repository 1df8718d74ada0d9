"""Clients that write to the store during a drill, and the check that their acknowledged writes exist.

Each write creates a *sequential* znode whose name contains the write's own number, so a write that was executed twice
leaves two znodes. Writers never retry: after a broken connection a write may exist once or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater

from cli.common.access import open_store
from cli.diagnose.follow import Stopwatch
from cli.drill.report import Figure, InvariantCheck, check
from cli.drill.run import Drill
from coord.client.access import StoreAccess
from coord.client.session import ZkClient
from coord.errors import CoordError

#: Pause of a writer between a reply and its next write; the resolution of the longest gap.
PAUSE_S: Final = 0.01
_SESSION_MS: Final = 6000
#: Pause before a failed attempt at a session is repeated.
_RETRY_S: Final = 0.2
#: Children deleted in one batch of the cleanup.
_DELETE_BATCH: Final = 500


class Writer:
    """Creates numbered znodes, one after the other, and records which were acknowledged. Reactor thread only."""

    def __init__(self, reactor: Any, name: str, hosts: str, parent: str, clock: Stopwatch, access: StoreAccess) -> None:
        self.name = name
        #: Names of the acknowledged znodes, by number.
        self.acked: dict[int, str] = {}
        #: Writes whose connection broke before the reply: they may exist.
        self.unknown: set[int] = set()
        #: When each acknowledged write was sent and acknowledged.
        self.times_ms: list[tuple[int, int]] = []
        self._stopping = False
        self._reactor = reactor
        self._hosts = hosts
        self._access = access
        self._client = self._new_client()
        self._parent = parent
        self._clock = clock
        self._done: Deferred[None] | None = None

    def _new_client(self) -> ZkClient:
        return ZkClient(self._reactor, self._hosts, _SESSION_MS, name=f"rk-drill-{self.name}", access=self._access)

    async def start(self) -> None:
        """Connect and begin to write; return when connected."""
        await self._client.connect()
        self._done = ensureDeferred(self._write_all())

    async def stop(self) -> None:
        """Let the write in progress finish, and close the session."""
        self._stopping = True
        if self._done is not None:
            await self._done
        await self._client.close()

    async def _write_all(self) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            asked_ms = self._clock.now_ms()
            try:
                path = await self._client.create(f"{self._parent}/{self.name}-{number:07d}-", sequence=True)
            except CoordError:
                self.unknown.add(number)
                await self._reconnect()
            else:
                self.acked[number] = path.rpartition("/")[2]
                self.times_ms.append((asked_ms, self._clock.now_ms()))
                await deferLater(self._reactor, PAUSE_S)

    async def _reconnect(self) -> None:
        """Wait until the client has reconnected its session or has opened a new one."""
        while not self._stopping:
            try:
                await self._client.when_connected()
            except CoordError:
                self._client = self._new_client()
                try:
                    await self._client.connect()
                except CoordError:
                    await deferLater(self._reactor, _RETRY_S)
                    continue
            return


class Writers:
    """The writers of one drill."""

    def __init__(self, drill: Drill, hosts: dict[str, str]) -> None:
        """`hosts`: the nodes to which each writer connects, by its name."""
        self._drill = drill
        self.parent = f"{drill.cluster.layout.root}/drill-{drill.now_ms()}"
        drill.cluster.client.create(self.parent)
        clock, access = drill.follower.clock, drill.cluster.access
        reactor = drill.reactor.reactor
        self.each = {name: Writer(reactor, name, where, self.parent, clock, access) for name, where in hosts.items()}
        self._is_running = False
        self._is_checked = False
        drill.at_end(self._give_up)

    def start(self) -> None:
        """Connect all writers and begin."""

        async def begin() -> None:
            for writer in self.each.values():
                await writer.start()

        self._is_running = True
        self._drill.on_reactor(begin)

    def stop(self) -> None:
        """Let all writers finish their writes in progress. A second call does nothing."""
        if not self._is_running:
            return
        self._is_running = False

        async def end() -> None:
            for writer in self.each.values():
                await writer.stop()

        self._drill.on_reactor(end)

    def _give_up(self) -> None:
        """End the writers; delete their znodes unless the writes have been checked."""
        self.stop()
        if not self._is_checked:
            self._clean_up()

    def until_acked(self, count: int, what: str, *, since_ms: int = 0, names: Iterable[str] = ()) -> None:
        """Wait until each writer (all unless named) has `count` writes acknowledged that were sent after `since_ms`."""
        wanted = [self.each[name] for name in names] or list(self.each.values())

        def enough() -> bool:
            return all(sum(asked > since_ms for asked, _ in list(one.times_ms)) >= count for one in wanted)

        self._drill.wait(enough, what)

    def acknowledged(self) -> int:
        """Return the number of acknowledged writes of all writers."""
        return sum(len(one.acked) for one in self.each.values())

    def add_gap_figures(self) -> None:
        """Add the longest gap of each writer to the figures."""
        for name, writer in self.each.items():
            gap = longest_gap_s([answered for _, answered in writer.times_ms])
            self._drill.figure(f"longest write gap, {name}", gap, "between two acknowledged writes of one store client")

    def check(self) -> list[InvariantCheck]:
        """Stop, and check that every acknowledged write exists on every node once; delete the znodes if all is well."""
        self.stop()
        drill = self._drill
        drill.say(f"checking {self.acknowledged()} acknowledged writes on every store node")
        lost: list[str] = []
        doubled: list[str] = []
        for node in drill.local.coord:
            with open_store(node.address, access=drill.cluster.access) as client:
                client.sync(self.parent)
                missing, twice = compare(list(self.each.values()), client.get_children(self.parent))
            lost += [f"{name} is missing on {node.name}" for name in missing]
            doubled += [f"{name} exists {count} times on {node.name}" for name, count in twice]
        nodes = len(drill.local.coord)
        drill.figures.append(Figure("acknowledged store writes", self.acknowledged(), "", "checked on every node"))
        found = [
            check("no store write lost", lost, f"{self.acknowledged()} writes on {nodes} nodes"),
            check("no store write executed twice", doubled, f"{self._unknown()} with unknown outcome"),
        ]
        self._is_checked = True
        if all(one.held for one in found):
            self._clean_up()
        else:
            drill.notes.append(f"the written znodes are kept below {self.parent}")
        return found

    def _unknown(self) -> int:
        return sum(len(one.unknown) for one in self.each.values())

    def _clean_up(self) -> None:
        client = self._drill.cluster.client
        names = client.get_children(self.parent)
        for start in range(0, len(names), _DELETE_BATCH):
            for answer in [
                client.delete_async(f"{self.parent}/{name}") for name in names[start : start + _DELETE_BATCH]
            ]:
                answer.get()
        client.delete(self.parent)


def compare(writers: Sequence[Writer], children: Iterable[str]) -> tuple[list[str], list[tuple[str, int]]]:
    """Return acknowledged znodes that are not among `children`, and writes that occur more than once. Pure."""
    present = set(children)
    lost = [name for writer in writers for name in writer.acked.values() if name not in present]
    counts: dict[str, int] = {}
    for name in present:
        write = name.rpartition("-")[0]
        counts[write] = counts.get(write, 0) + 1
    return sorted(lost), sorted((write, count) for write, count in counts.items() if count > 1)


def longest_gap_s(times_ms: list[int]) -> float:
    """Return the longest pause between two acknowledgments in seconds."""
    return max((later - earlier for earlier, later in itertools.pairwise(times_ms)), default=0) / 1000
