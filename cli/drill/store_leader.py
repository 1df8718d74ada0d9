"""Drill: the store's leader is killed under writes; no acknowledged write may be missing afterwards, on any node."""

from __future__ import annotations

import itertools
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater

from cli.bringup import store_role
from cli.connect import open_store
from cli.drill.report import Check, Figure, Report, check
from cli.drill.run import Drill
from cli.errors import CliError
from cli.follow import Stopwatch
from coord.client.access import StoreAccess
from coord.client.session import ZkClient
from coord.errors import ConnectionLoss, NodeExists

NAME: Final = "store-leader"

#: Writes that every writer must have had acknowledged before the kill, and again after it.
_WRITES_BEFORE: Final = 100
_WRITES_AFTER: Final = 100
#: Pause of a writer between an answer and its next write: the resolution of the longest gap.
_PAUSE_S: Final = 0.005
_SESSION_MS: Final = 6000
#: Children deleted in one go when cleaning up.
_DELETE_BATCH: Final = 500
_LEADER_ROLES: Final = ("leader", "standalone")


class Writer:
    """Creates numbered znodes, one after the other, and remembers which were acknowledged when. Reactor thread only."""

    def __init__(self, reactor: Any, name: str, hosts: str, parent: str, clock: Stopwatch, access: StoreAccess) -> None:
        self.name = name
        self.acked: list[int] = []
        #: Writes whose connection broke before the answer: they may or may not be there.
        self.unknown: set[int] = set()
        self.ack_times_ms: list[int] = []
        self.stopping = False
        self._reactor = reactor
        self._client = ZkClient(reactor, hosts, _SESSION_MS, name=f"rk-drill-{name}", access=access)
        self._parent = parent
        self._clock = clock
        self.done: Deferred[None] | None = None

    async def start(self) -> None:
        """Connect and begin to write; returns when connected."""
        await self._client.connect()
        self.done = ensureDeferred(self._write_all())

    async def stop(self) -> None:
        """Let the write under way finish, and end the session."""
        self.stopping = True
        if self.done is not None:
            await self.done
        await self._client.close()

    def path(self, number: int) -> str:
        """The znode of one write."""
        return f"{self._parent}/{self.name}-{number:08d}"

    async def _write_all(self) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            await self._write(number)
            await deferLater(self._reactor, _PAUSE_S)

    async def _write(self, number: int) -> None:
        """Write one number until it is acknowledged; what is already there was a write whose answer was lost."""
        while not self.stopping:
            try:
                await self._client.create(self.path(number))
            except ConnectionLoss:
                self.unknown.add(number)
                await self._client.when_connected()
                continue
            except NodeExists:
                assert number in self.unknown, f"{self.path(number)} existed before it was written"
            self.acked.append(number)
            self.ack_times_ms.append(self._clock.now_ms())
            return


def longest_gap_s(times_ms: list[int]) -> float:
    """Seconds of the longest pause between two acknowledgements."""
    return max((later - earlier for earlier, later in itertools.pairwise(times_ms)), default=0) / 1000


def run(drill: Drill) -> Report:
    """Write, kill, measure, bring the node back, read everything from every node, check."""
    nodes = drill.local.coord
    if len(nodes) < 3:
        raise CliError(
            "this drill needs a store of 3 nodes or more, run by `rk up`", "A store of one node has no failover."
        )
    before = drill.require_rest()
    victim = _leader(drill)
    others = ",".join(node.address for node in nodes if node.name != victim)
    parent = f"{drill.cluster.layout.root}/drill-{drill.now_ms()}"
    drill.cluster.client.create(parent)
    drill.say(f"at rest: {before.open} regions open; {victim} leads the store")
    reactor = drill.reactor.reactor
    writers = drill.on_reactor(lambda: _start_writers(reactor, drill, others, parent))
    try:
        _until_acked(drill, writers, _WRITES_BEFORE, "writers did not get going")
        counts = ", ".join(f"{writer.name} {len(writer.acked)}" for writer in writers)
        drill.say(f"writing ({counts} acknowledged)")
        killed_ms = drill.kill(victim)
        successor = drill.wait(lambda: _leader_but(drill, victim), "the store elected no other leader")
        drill.figure(
            "no leader seen", (drill.now_ms() - killed_ms) / 1000, "from the kill until another node says it leads"
        )
        drill.say(f"{successor} leads the store")
        _until_acked(drill, writers, _WRITES_AFTER, "writers did not go on", since_ms=killed_ms)
        for writer in writers:
            gap = longest_gap_s(writer.ack_times_ms)
            drill.figure(f"longest write gap, {writer.name}", gap, "between two acknowledged writes of one client")
        drill.restart(victim)
        node = drill.local.daemon(victim)
        drill.wait(lambda: store_role(node.address) in ("follower", *_LEADER_ROLES), f"{victim} did not come back")
        drill.say(f"{victim} is back as {store_role(node.address)}")
    finally:
        drill.on_reactor(lambda: _stop_writers(writers))
    lost = _check_writes(drill, writers, parent)
    drill.wait(drill.at_rest, "regions did not come to rest")
    drill.figures.append(
        Figure("acknowledged writes", sum(len(one.acked) for one in writers), "", "all looked for on every node")
    )
    moved = len({change.key for change in drill.follower.history.changes})
    drill.figures.append(Figure("regions that moved", moved, "", "0: no master or server lost its session"))
    checks = [lost, *drill.invariants()]
    if lost.held:
        _clean_up(drill, parent)
    else:
        drill.notes.append(f"the znodes that were written are kept below {parent}")
    return drill.report(NAME, victim, checks)


def _leader(drill: Drill) -> str:
    found = _leader_but(drill, "")
    if found is None:
        raise CliError("no store node says that it leads", "`rk status` shows the store's nodes.")
    return found


def _leader_but(drill: Drill, excluded: str) -> str | None:
    roles = ((node.name, store_role(node.address)) for node in drill.local.coord if node.name != excluded)
    return next((name for name, role in roles if role in _LEADER_ROLES), None)


async def _start_writers(reactor: Any, drill: Drill, others: str, parent: str) -> list[Writer]:
    clock = drill.follower.clock
    writers = [
        Writer(reactor, "any-node", drill.cluster.hosts, parent, clock, drill.cluster.access),
        Writer(reactor, "followers", others, parent, clock, drill.cluster.access),
    ]
    for writer in writers:
        await writer.start()
    return writers


async def _stop_writers(writers: list[Writer]) -> None:
    for writer in writers:
        await writer.stop()


def _until_acked(drill: Drill, writers: list[Writer], count: int, what: str, *, since_ms: int = 0) -> None:
    def enough() -> bool:
        return all(sum(1 for at_ms in list(one.ack_times_ms) if at_ms > since_ms) >= count for one in writers)

    drill.wait(enough, what)


def _check_writes(drill: Drill, writers: list[Writer], parent: str) -> Check:
    """Every acknowledged write must be on every node, the restarted one included."""
    wanted = {writer.path(number).rpartition("/")[2] for writer in writers for number in writer.acked}
    missing = []
    for node in drill.local.coord:
        with open_store(node.address, access=drill.cluster.access) as client:
            client.sync(parent)
            found = set(client.get_children(parent))
        missing += [f"{name} is not on {node.name}" for name in sorted(wanted - found)]
    return check("no acknowledged write lost", missing, f"{len(wanted)} writes on {len(drill.local.coord)} nodes")


def _clean_up(drill: Drill, parent: str) -> None:
    client = drill.cluster.client
    names = client.get_children(parent)
    for start in range(0, len(names), _DELETE_BATCH):
        for answer in [client.delete_async(f"{parent}/{name}") for name in names[start : start + _DELETE_BATCH]]:
            answer.get()
    client.delete(parent)
