"""The cost of the master's policy of members, without I/O: one keeper, 10,000 tablets of 30 servers, a minute.

At rest, a tablet is not looked at. While a server's members are FAILED, each of its tablets is looked at once a second,
and its change is asked for again. Nothing carries out the changes here, so the work lasts the whole minute.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from regions.cluster.limits import AssignerConfig
from regions.messages.heartbeat import (
    LeaderReport,
    MemberHealth,
    MemberReport,
    ReplicaState,
    TabletReport,
    TabletRole,
)
from regions.records.members import ConfigId, Member
from regions.records.model import RegionRecord, ServerRecord, Storage, TableRecord, TabletState
from regions.replication.keeper import Keeper

TABLETS: Final = 10_000
SERVERS: Final = 30
REPLICAS: Final = 3
SECONDS: Final = 60
TICK_MS: Final = 200
_CONFIG: Final = ConfigId(1, 1)


class PolicyCost(msgspec.Struct, frozen=True):
    """Parts of a core that the keeper of `tablets` takes: at rest, and while `failed` of them have a dead member."""

    tablets: int
    failed: int
    at_rest: float
    healing: float
    #: Longest call, in ms: what one reactor turn of the master would wait.
    longest_ms: float


def cost(tablets: int = TABLETS) -> PolicyCost:
    """Measure a minute of each."""
    keeper = Keeper(1, AssignerConfig(changes_members=True))
    servers = [
        ServerRecord(
            f"s{number:02}", f"s{number:02}", 1, 1, f"rack-{number % 3}", kind="kv/1", tablets=True, peer_port=2,
            format=4, disk_free=1 << 40,
        )
        for number in range(SERVERS)
    ]  # fmt: skip
    keeper.table_seen(TableRecord("t", "orders", replication=REPLICAS, regions=tablets, storage=Storage.TABLET), 0)
    homes = {}
    for number in range(tablets):
        members = tuple(Member(at + 1, servers[(number + at * 7) % SERVERS].uuid) for at in range(REPLICAS))
        homes[f"{number:08}"] = members
        record = RegionRecord(
            "t", f"{number:08}", state=TabletState.RUNNING, members=members, next_number=REPLICAS + 1, config_term=1,
            config_index=1, leader=1, leader_term=1,
        )  # fmt: skip
        keeper.region_seen(record, 0)
    for server in servers:
        keeper.server_up(server)
    keeper.begin(0)
    _report(keeper, servers, homes, dead="")
    _spend(keeper, 0, 30)
    at_rest, longest = _spend(keeper, 30_000, SECONDS)
    dead = servers[0].uuid
    keeper.server_down(dead)
    failed = _report(keeper, servers, homes, dead=dead)
    healing, longest_healing = _spend(keeper, 100_000, SECONDS)
    return PolicyCost(tablets, failed, at_rest / SECONDS, healing / SECONDS, max(longest, longest_healing) * 1000)


def _report(keeper: Keeper, servers: list[ServerRecord], homes: dict[str, tuple[Member, ...]], *, dead: str) -> int:
    """Report the tablets as the leaders have them. Return how many have a member on the dead server."""
    failed = 0
    reports: dict[str, list[TabletReport]] = {server.uuid: [] for server in servers}
    for region_id, members in homes.items():
        living = [one for one in members if one.uuid != dead]
        if dead and len(living) == len(members):
            continue
        failed += len(living) < len(members)
        health = tuple(
            MemberReport(one.number, MemberHealth.HEALTHY if one in living else MemberHealth.FAILED) for one in members
        )
        term = 2 if dead else 1
        for one in living:
            report = TabletReport(
                region_id, "t", one.number, ReplicaState.RUNNING, term, config_id=_CONFIG, applied_index=9
            )
            if one is living[0]:
                leader = LeaderReport(members, health)
                report = msgspec.structs.replace(report, role=TabletRole.LEADER, leader=leader)
            reports[one.uuid].append(report)
    for server in servers:
        if reports[server.uuid]:
            keeper.reported(server.incarnation, reports[server.uuid], [])
    return failed


def _spend(keeper: Keeper, begin_ms: int, seconds: int) -> tuple[float, float]:
    """Let time pass. Return the CPU seconds of the keeper, and those of its longest call."""
    spent = longest = 0.0
    for now_ms in range(begin_ms, begin_ms + seconds * 1000, TICK_MS):
        while True:
            began = time.process_time()
            keeper.tick(now_ms)
            keeper.take(now_ms)
            took = time.process_time() - began
            spent, longest = spent + took, max(longest, took)
            if not keeper.is_looking:
                break
    return spent, longest
