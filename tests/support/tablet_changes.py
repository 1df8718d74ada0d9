"""Scripted servers that change members: leaders judge their members, and newcomers are copied at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, fail, succeed

from coord.rpc.wire import RpcError
from regions.messages import ChangeAnswer, ChangeConfig, ConfigChanged, TransferLeadership
from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport, ReplicaState, TabletReport
from regions.records.members import ConfigId, Member, MemberRole
from regions.records.model import RegionRecord, RegionState, ServerRecord
from regions.records.znodes import decode_transition
from regions.replication.config import majority, voters
from regions.replication.guards import ChangeFacts, ReplicaOnDisk, check_of_change, wanted_members
from tests.support.tablet_servers import ScriptedServer, ScriptedServers


class ChangingServers(ScriptedServers):
    """See the module docstring."""

    def __init__(self, store: Any, layout: Any, count: int = 4) -> None:
        super().__init__(store, layout, count)
        #: Committed members of each tablet, with the id of the configuration; and the leaders.
        self.groups: dict[str, tuple[ConfigId, tuple[Member, ...]]] = {}
        self.led_by: dict[str, int] = {}
        self.terms: Counter[str] = Counter()
        #: Number of answers to each change, and the messages to lose.
        self.answers: list[str] = []
        self.loses = 0

    def members_of(self, region: RegionRecord) -> tuple[Member, ...]:
        """Return the members of a tablet in its group."""
        return self.groups.setdefault(region.region_id, (region.config_id, region.members))[1]

    def leader_of(self, region: RegionRecord) -> int:
        electorate = voters(self.members_of(region))
        part = [one.number for one in electorate if self._takes_part(region.region_id, one.uuid, one.number)]
        if not part or len(part) < majority(len(electorate)):
            return 0
        leads = self.led_by.get(region.region_id, 0)
        if leads not in part:
            leads = self.led_by[region.region_id] = part[0]
            self.terms[region.region_id] += 1
        return leads

    def reports_of(self, server: ScriptedServer) -> dict[str, TabletReport]:
        found = super().reports_of(server)
        for region_id, report in found.items():
            if report.leads and region_id in self.groups:
                (config_id, members), term = self.groups[region_id], self.terms[region_id]
                leader = LeaderReport(members, tuple(self._judge(region_id, one) for one in members))
                found[region_id] = msgspec.structs.replace(report, config_id=config_id, leader=leader, term=term)
        return found

    def _judge(self, region_id: str, one: Member) -> MemberReport:
        if self._takes_part(region_id, one.uuid, one.number):
            return MemberReport(one.number, MemberHealth.HEALTHY)
        is_young = one.role is not MemberRole.VOTER and self.servers[one.uuid].lives
        health = MemberHealth.UNKNOWN if is_young else MemberHealth.FAILED
        return MemberReport(one.number, health, 0, "it is silent")

    # --- changes ---

    def answer(self, record: ServerRecord, message: Any) -> Deferred[Any]:
        if isinstance(message, TransferLeadership):
            self.led_by[message.region_id] = message.to
            self.terms[message.region_id] += 1
            self.answers.append(f"transfer to {message.to}")
            return succeed(ConfigChanged(ChangeAnswer.STARTED))
        if isinstance(message, ChangeConfig):
            if self.loses:
                self.loses -= 1
                return fail(RpcError("UNREACHABLE", "the message was lost"))
            return succeed(self._change(message))
        return super().answer(record, message)

    def _change(self, message: ChangeConfig) -> ConfigChanged:
        region = self.region(message.region_id.rpartition(".")[0], message.region_id)
        assert region is not None, message
        members = self.members_of(region)
        config_id = self.groups[region.region_id][0]
        leads = self.leader_of(region)
        uuid = next((one.uuid for one in members if one.number == leads), "")
        facts = ChangeFacts(message, uuid == message.recipient, leads, config_id, members)
        row = check_of_change(facts)
        self.answers.append(f"{message.change.value} {message.number}: {'DONE' if row.answer is None else row.answer}")
        if row.answer is not None:
            return ConfigChanged(row.answer, config_id, members)
        self._commit(region.region_id, wanted_members(facts))
        return ConfigChanged(ChangeAnswer.DONE, *self.groups[region.region_id])

    def _commit(self, region_id: str, members: tuple[Member, ...]) -> None:
        index = self.groups[region_id][0].index + 1
        self.groups[region_id] = (ConfigId(self.terms[region_id], index), members)

    def copy(self) -> None:
        """Have the newcomers copied, and promoted where the leader hears enough voters without them."""
        for region_id, (_, members) in list(self.groups.items()):
            electorate = voters(members)
            part = [one for one in electorate if self._takes_part(region_id, one.uuid, one.number)]
            may = len(part) == len(electorate) or len(part) >= majority(len(electorate) + 1)
            for one in members:
                self._copy_one(region_id, one)
                if one.role is MemberRole.PRE_VOTER and self._takes_part(region_id, one.uuid, one.number) and may:
                    promoted = Member(one.number, one.uuid)
                    self._commit(region_id, tuple(promoted if other == one else other for other in members))
                    self._end(region_id, one)

    def _copy_one(self, region_id: str, one: Member) -> None:
        found = self.store.nodes.get(self.layout.transition(region_id, one.number))
        server = self.servers[one.uuid]
        if found is None or not server.lives:
            return
        transition = decode_transition(found[0])
        if transition.joins is None or transition.destination != server.incarnation:
            return
        opening = msgspec.structs.replace(transition, state=RegionState.OPENING, took=(1,), reason="")
        if transition.state is RegionState.OFFLINE and self._set(opening, RegionState.OFFLINE, found[1]):
            server.disk[region_id] = ReplicaOnDisk(one.number, ReplicaState.RUNNING)
            self.counts["copied"] += 1

    def _end(self, region_id: str, one: Member) -> None:
        transition = decode_transition(self.store.nodes[self.layout.transition(region_id, one.number)][0])
        opened = msgspec.structs.replace(transition, state=RegionState.OPENED, took=(1, 2))
        self._set(opened, RegionState.OPENING, -1)
