"""Members change on real disks: configurations and votes of tombstones survive restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coord.raft.messages import VOTE, Message
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose
from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChange, ConfigChanged
from regions.records.members import ConfigId
from regionserver.tablets.disk.consensus_meta import ConsensusMeta, decode_meta
from regionserver.tablets.disk.layout import meta_path
from regionserver.tablets.host.envelope import Envelope, Header, TurnFrame
from tests.support.hosts_in_process import CLUSTER, START_MS, Cluster, Machine
from tests.support.reactors import in_reactor, until


def meta_of(machine: Machine) -> ConsensusMeta:
    path = machine.directory / meta_path("t")
    return decode_meta(path.read_bytes(), "t", str(path))


async def remove(leader: Machine, number: int, uuid: str) -> ConfigChanged:
    """Remove a member, on the present configuration."""
    host = leader.running()
    report = host.report("t")
    assert report is not None
    change = ChangeConfig(1, leader.uuid, 1, "t", report.config_id, ConfigChange.REMOVE, number, uuid)
    answer = await host.members.change(change)
    assert isinstance(answer, ConfigChanged)
    return answer


def test_a_committed_configuration_survives_a_restart(tmp_path: Path) -> None:
    """It is in the consensus metadata of every member, with its id; after a restart reports have it again."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")
        gone = next(machine for machine in cluster.machines if machine is not leader)
        others = [machine for machine in cluster.machines if machine is not gone]
        number = cluster.machines.index(gone) + 1
        answer = await remove(leader, number, gone.uuid)
        assert answer.answer is ChangeAnswer.DONE
        assert number not in {one.number for one in answer.members}
        config_id = answer.config_id
        assert config_id > ConfigId(0, 0)

        def are_noted() -> bool:
            metas = [meta_of(machine) for machine in others]
            return all((meta.config_term, meta.config_index) == (config_id.term, config_id.index) for meta in metas)

        await until(reactor, are_noted, "the metadata have the configuration")
        assert all(number not in meta_of(machine).members().voters for machine in others)
        assert [machine.running().members.is_member("t") for machine in others] == [True, True]
        await gone.stop()
        for machine in others:
            await machine.stop()
        for machine in others:
            machine.start()
        leader = await cluster.leader("t")
        report = leader.running().report("t")
        assert report is not None
        assert report.leader is not None
        assert report.config_id == config_id
        assert report.leader.members == answer.members
        again = await remove(leader, number, gone.uuid)
        assert again.answer is ChangeAnswer.DONE
        await cluster.stop()

    in_reactor(main)


def test_a_tombstone_remembers_its_vote(tmp_path: Path) -> None:
    """The vote is durable before it is sent: after a restart another candidate of the term is rejected (FW-06)."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        leader = await cluster.leader("t")
        machine = next(one for one in cluster.machines if one is not leader)
        asking = next(one for one in cluster.machines if one not in (leader, machine))
        own, candidate = (cluster.machines.index(one) + 1 for one in (machine, asking))
        assert await machine.running().close("t", ClosePurpose.TOMBSTONE) == ""
        report = machine.running().report("t")
        assert report is not None
        assert report.state is ReplicaState.TOMBSTONE
        standing = machine.running().turn.resting["t"]
        assert standing.may_vote
        term = standing.term + 5
        await leader.stop()
        await asking.stop()

        def ask(number: int) -> None:
            request = Message(VOTE, number, own, term, standing.last_index, standing.last_term)
            header = Header(CLUSTER, asking.uuid, START_MS + 9, machine.uuid)
            machine.running().peer_frame(asking.uuid, TurnFrame(header, [Envelope("t", request)]))

        ask(candidate)
        await until(reactor, lambda: meta_of(machine).vote == candidate, "the vote is in the metadata")
        assert meta_of(machine).term == term
        await machine.stop()
        machine.start()
        standing = machine.running().turn.resting["t"]
        assert (standing.may_vote, standing.term, standing.vote) == (True, term, candidate)
        await cluster.stop()

    in_reactor(main)
