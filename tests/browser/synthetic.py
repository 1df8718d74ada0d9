"""The real page of a made-up master, without a store: many regions, or hostile names. Prints its address.

    python -m tests.browser.synthetic --regions 100000 [--hostile] [--hide-keys]

Twenty times a second some regions move.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed

from coord.errors import NoNode
from coord.http import AdminHttp
from master.page.feed import Feed
from master.page.figures import FiguresMaker
from master.page.hiding import KeyHider
from master.page.site import PageSite
from master.page.views import Views
from regions.balance.round_log import RoundLog
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.live.check_log import AuditCheck, CheckLog
from regions.messages import BalanceMove, MasterStatus
from regions.messages.heartbeat import Heartbeat
from regions.records.acts.checks import FsckFinding, FsckRecord
from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TableRecord, TransitionRecord
from regions.records.znodes import Layout, encode
from tests.unit.master.page.fake_master import FakeMaster
from tests.unit.regions.model_cluster import server

HOSTILE = (
    '<img src=x onerror="window.hurt=1">',
    "\u202eevil",
    "'\"&amp;</script><script>window.hurt=1</script>",
    "k" * 511,
)
MOVED_AT_ONCE = 25


def world_of(regions: int, *, hostile: bool) -> ClusterState:
    """Return a cluster state with so many open regions on four servers."""
    world = ClusterState()
    world.set_servers({f"s{one}": server(f"s{one}") for one in range(4)}, ())
    for number, name in enumerate(HOSTILE[:3] if hostile else ("orders", "packages")):
        table = f"t{number}"
        world.put_table(TableRecord(table, name, regions=regions // 2), 0)
        for at in range(regions // 2):
            start = (f"{HOSTILE[at % 4]}{at:06}" if hostile else f"key-{at:06}") if at else ""
            places = (ReplicaLocation(0, f"s{at % 4}", 1, 1),)
            record = RegionRecord(table, f"{table}.{at:05x}", replicas=places, start_key=start)
            world.put_region(record, 0)
    return world


def status_of(master: Any, world: ClusterState) -> MasterStatus:
    """Return the status of a master that has nothing to complain about, or quotes hostile words."""
    open_ = sum(one.open_replicas for one in world.names.values())
    return MasterStatus(
        uuid=master.uuid,
        role="active",
        epoch=1,
        active="",
        path="startup",
        servers=4,
        masters=1,
        tables=len(world.names),
        regions=len(world.regions),
        replicas=len(world.replicas),
        open=open_,
        rit=len(world.active),
        parked=0,
        phases=[],
        plan=None,
        problems=list(HOSTILE[:3]) if "<" in next(iter(world.names)) else [],
        uptime_ms=0,
    )


class EmptyStore:
    """A session with a store that has a check with hostile texts, and no plan, run, drill or alarm."""

    async def children(self, path: str) -> list[str]:
        raise NoNode(path)

    def multi_read(self, reads: list[Any]) -> Deferred[list[Any]]:
        finding = FsckFinding("hole", f"no region has the keys from {HOSTILE[0]}", step=f"make it: {HOSTILE[1]}")
        record = FsckRecord(1_795_000_000_000, HOSTILE[2], 0.5, errors=1, findings=(finding,))
        return succeed(
            [
                (encode(record), SimpleNamespace(version=0)) if one.path.endswith("/fsck") else NoNode(one.path)
                for one in reads
            ]
        )


def add_records(master: Any) -> None:
    """Give a made-up master rounds of its balancer, and checks of its auditor, with texts as hostile as names."""
    rounds, checks, now_ms = RoundLog(), CheckLog(), master.now_ms()
    moves = [BalanceMove(f"t0.{one:05x}", "t0", "s0", "s1", f"count: 9 of 8 {HOSTILE[0]}") for one in range(3)]
    rounds.moved("regions", now_ms - 90_000, moves, more=True)
    rounds.none("regions", now_ms - 60_000, f"it waits for what is in transition: {HOSTILE[1]}")
    rounds.moved("regions", now_ms - 30_000, [])
    rounds.moved("regions", now_ms, [])
    for one in (AuditCheck.OWNERS, AuditCheck.KEYS):
        checks.note(one, now_ms, [])
    checks.note(AuditCheck.COPY, now_ms, [f"stale copy: {HOSTILE[2]}"])
    master.client, master.auditor = EmptyStore(), SimpleNamespace(checks=checks)
    master.active_master.bulk_plans = SimpleNamespace(latest=None)
    words = "The balancer is on, with a round every 30 s."
    master.active_master.balancing = SimpleNamespace(state_words=lambda: words, rounds=rounds)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--regions", type=int, default=1_000)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--hide-keys", action="store_true")
    given = parser.parse_args()
    world = world_of(given.regions, hostile=given.hostile)
    loop: Any = reactor
    assigner = SimpleNamespace(world=world, history=StepLog(1_000), config=AssignerConfig())
    cluster: Any = SimpleNamespace(now=1_795_000_000_000, config=AssignerConfig(), assigner=assigner)
    master: Any = FakeMaster(loop, cluster)
    master.active_since_ms = master.now_ms()
    master.api = SimpleNamespace(status=lambda _repeated_for: status_of(master, world))
    add_records(master)
    feed: Any = None
    maker = FiguresMaker(master, list, dict)
    hider = KeyHider(b"a secret") if given.hide_keys else None
    feed = Feed(loop, master, lambda one: maker.make(one.world(), one.curves), hider)
    admin = AdminHttp(
        registry=CollectorRegistry(),
        health=lambda: (True, {}),
        ready=lambda: (True, {}),
        status=dict,
        front=PageSite(feed, Views(loop, master, Layout("/rk"), feed, hider)),
        names=set(),
    )
    keys = itertools.cycle(list(world.replicas))

    def move() -> None:
        for key in itertools.islice(keys, MOVED_AT_ONCE):
            replica = world.replicas[key]
            if replica.transition is None:
                home = replica.home
                other = Incarnation(f"s{(int(home.uuid[1:]) + 1) % 4}" if home else "s0", 1)
                record = replica.region.record
                step = TransitionRecord(
                    record.region_id, record.table_id, 0, RegionState.OPENING, home, other, since_ms=master.now_ms()
                )
                world.set_transition(replica, step, 1, master.now_ms())
                loop.callLater(0.5, end, replica, other)
        loop.callLater(0.05, move)

    def end(replica: Any, other: Incarnation) -> None:
        world.set_transition(replica, None, -1, 0)
        world.set_home(replica, other)

    def beat(number: int) -> None:
        for one in range(4):
            uuid = f"s{one}"
            sent = Heartbeat("c", Incarnation(uuid, 1), number, registration=server(uuid))
            master.heartbeats.roster.accept(sent, master.now_ms())
        loop.callLater(1, beat, number + 1)

    feed.start()
    beat(1)
    move()
    port = admin.listen(loop, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{port.getHost().port}/\n")
    sys.stdout.flush()
    loop.run()


if __name__ == "__main__":
    main()
