"""Servers with tablets in a keeper, and what their leaders report; for tests of their balance."""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from regions.cluster.limits import AssignerConfig
from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport, TabletRole
from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import ConfigId, Member, Storage
from regions.records.model import RegionRecord, ServerRecord, TableRecord, TabletState
from regions.replication.config import voters
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import remaining, with_move

LIMITS = AssignerConfig(leader_rest_ms=0)


class Tablets:
    """See the module docstring. Moves and handovers come true at once."""

    def __init__(self, *servers: str, replicas: int = 3, limits: AssignerConfig = LIMITS) -> None:
        """`servers`: `a/rack`."""
        self.now = 100_000
        self.keeper = Keeper(1, limits)
        self.keeper.policy.has_reported = lambda one: one.uuid not in self.silent
        self.replicas = replicas
        #: Servers that have not reported to this master.
        self.silent: set[str] = set()
        self.health: dict[tuple[str, int], MemberReport] = {}
        for name in servers:
            self.server(name)
        self.keeper.begin(self.now)

    def server(self, name: str, **fields: object) -> None:
        """Register a server."""
        uuid, _, rack = name.partition("/")
        record = ServerRecord(uuid, uuid, 1, 1, rack or "r", kind="kv/1", tablets=True, peer_port=2)
        self.keeper.server_up(msgspec.structs.replace(record, **fields))

    def tablet(self, region_id: str, *uuids: str, table: str = "t", size: int = 1) -> None:
        """Add a tablet; the first server leads."""
        if table not in self.keeper.tables:
            record = TableRecord(table, f"name-{table}", replication=self.replicas, storage=Storage.TABLET)
            self.keeper.table_seen(record, 0)
        self.put(region_id, table, tuple(Member(n, uuid) for n, uuid in enumerate(uuids, 1)), 1, size, 1)

    def put(self, region_id: str, table: str, members: tuple[Member, ...], leader: int, size: int, term: int) -> None:
        """Record a configuration, let its leader report, and let the keeper look."""
        self._seen(region_id, table, members, leader, size, term)
        self.keeper.take(self.now)

    def _seen(self, region_id: str, table: str, members: tuple[Member, ...], leader: int, size: int, term: int) -> None:
        config = ConfigId(term, term)
        known = self.keeper.tablets.get(region_id)
        record = RegionRecord(
            table, region_id, state=TabletState.RUNNING, members=members, leader=leader, leader_term=term,
            config_term=config.term, config_index=config.index, next_number=max(one.number for one in members) + 1,
        )  # fmt: skip
        self.keeper.region_seen(record, 0 if known is None else known.version + 1)
        judged = tuple(
            self.health.get((region_id, one.number), MemberReport(one.number, MemberHealth.HEALTHY)) for one in members
        )
        for one in members:
            if one.uuid not in self.keeper.servers:
                continue
            role = TabletRole.LEADER if one.number == leader else TabletRole.FOLLOWER
            report = TabletReport(
                region_id, table, one.number, ReplicaState.RUNNING, term, role, config, size_bytes=size, rows=1,
                leader=LeaderReport(members, judged) if one.number == leader else None,
            )  # fmt: skip
            self.keeper.reported(self.keeper.servers[one.uuid].incarnation, [report], [])

    def again(self, region_id: str, members: tuple[Member, ...] = (), leader: int = 0) -> None:
        """Let a tablet's leader report again, or another one lead, or the members change."""
        tablet = self.keeper.tablets[region_id]
        term = tablet.record.config_term + 1
        number = leader or tablet.record.leader
        kept = members or tablet.record.members
        self.put(region_id, tablet.record.table_id, kept, number, tablet.size_bytes, term)

    def some(self, chance: random.Random, count: int, on: list[str], **fields: int) -> None:
        """Add tablets on some of the servers."""
        for number in range(count):
            self.tablet(f"x{number:03}", *chance.sample(on, self.replicas), **fields)  # type: ignore[arg-type]

    def move(self, region_id: str, move: TabletMove) -> None:
        """Accept a move as an intent. The policy does not look at it yet."""
        kept = self.keeper.policy.intents.get(region_id) or TabletIntents("t", region_id)
        self.keeper.intents_seen(region_id, with_move(kept, move))

    def come_true(self, *region_ids: str) -> None:
        """Carry out the moves of tablets. The keeper looks when all of them are done: it must not begin one itself,
        because nobody answers its requests."""
        for region_id in region_ids:
            self._come_true(region_id)
        self.keeper.take(self.now)

    def _come_true(self, region_id: str) -> None:
        kept, tablet = self.keeper.policy.intents[region_id], self.keeper.tablets[region_id]
        record, members = tablet.record, list(tablet.record.members)
        for move in kept.moves:
            gone = next(one for one in members if one.uuid == move.source)
            members.remove(gone)
            if gone.uuid in self.keeper.servers:
                server = self.keeper.servers[gone.uuid].incarnation
                self.keeper.reported(server, [], [f"{region_id}-{gone.number}"])
            number = max((one.number for one in members), default=0)
            members.append(Member(max(record.next_number, number + 1), move.target))
        leader = record.leader if any(one.number == record.leader for one in members) else members[0].number
        self.keeper.intents_seen(region_id, remaining(kept, members))
        term = record.config_term + 1
        self._seen(region_id, record.table_id, tuple(members), leader, tablet.size_bytes, term)

    def held(self) -> Counter[str]:
        """Return the voters of each server."""
        return Counter(one.uuid for each in self.keeper.tablets.values() for one in voters(each.record.members))

    def bytes(self) -> Counter[str]:
        """Return the bytes of each server."""
        found: Counter[str] = Counter()
        for each in self.keeper.tablets.values():
            for one in each.record.members:
                found[one.uuid] += each.size_bytes
        return found
