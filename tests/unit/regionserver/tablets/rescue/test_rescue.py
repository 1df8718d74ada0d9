"""A tablet whose majority is lost goes on with the members that are left: real files, real threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regionserver.tablets.host.requests import Fate
from regionserver.tablets.rescue.messages import ConfigurationForced, ForceConfiguration
from regionserver.tablets.rescue.work import RescueWork
from tests.support.hosts_in_process import Cluster, Machine
from tests.support.reactors import in_reactor, until


def rescue_of(machine: Machine) -> RescueWork:
    host = machine.running()
    return RescueWork(machine.uuid, host.turn, host.life.parts().replicas, host.life)


async def force(machine: Machine, keep: list[int], **changes: Any) -> ConfigurationForced:
    """Send the order that `rk tablet unsafe-change-config` would send."""
    core = machine.running().turn.groups["t"].core
    fields: dict[str, Any] = {
        "recipient": machine.uuid,
        "tablet": "t",
        "number": core.id,
        "last_term": core.log.last_term,
        "last_index": core.log.last,
        "keep": keep,
        "term": core.term + 1,
        **changes,
    }
    answer: ConfigurationForced = await rescue_of(machine).answer(ForceConfiguration(**fields))
    return answer


async def alone(cluster: Cluster, survivors: list[Machine]) -> None:
    """Stop all other servers, and wait until no survivor knows a leader."""
    for machine in cluster.machines:
        if machine not in survivors:
            await machine.stop()
    await until(
        cluster.reactor,
        lambda: all(one.running().turn.groups["t"].core.leader == 0 for one in survivors),
        "survivors without a leader",
    )


@pytest.mark.parametrize(("size", "left"), [(3, 1), (5, 2)])
def test_the_members_that_are_left_go_on_with_all_that_they_have(tmp_path: Path, size: int, left: int) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, size=size)
        cluster.start()
        await cluster.make(["t", "u"])
        written = await cluster.put("t", "a", b"1")
        await cluster.applied("t", written.index)
        survivors = cluster.machines[:left]
        await alone(cluster, survivors)
        refused = await survivors[0].running().propose("t", cluster.command_for("b", b"2"))
        assert refused.fate is Fate.NOT_LEADER
        longest = max(survivors, key=lambda one: one.running().turn.groups["t"].core.log.last)
        keep = list(range(1, left + 1))
        answer = await force(longest, keep)
        assert answer.why == ""
        assert await cluster.get("t", "a") == b"1"
        await cluster.put("t", "b", b"2")
        config = (await cluster.leader("t")).running().turn.groups["t"].core.committed_config()
        assert (config.config.voters, config.config.learners, config.config.pre_voters) == (keep, [], [])
        # The other tablet has lost its majority, too, and no operator has decided about it.
        assert all(one.running().leader_of("u")[1] == 0 for one in survivors)
        # It is durable, in the log and in the consensus metadata.
        for machine in survivors:
            await machine.stop()
        for machine in survivors:
            machine.start()
        assert await cluster.get("t", "b") == b"2"
        await cluster.put("t", "c", b"3")
        for machine in survivors:
            await machine.stop()
        for machine in cluster.machines:
            machine.instance.close()

    in_reactor(main)


def test_a_process_that_dies_behind_the_entry_goes_on_with_it(tmp_path: Path) -> None:
    """The entry is in the log, and the replica was not opened again."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        written = await cluster.put("t", "a", b"1")
        await cluster.applied("t", written.index)
        survivor = cluster.machines[0]
        await alone(cluster, [survivor])
        reopened: list[str] = []
        life: Any = survivor.running().life
        life.open = lambda replica, _done: reopened.append(replica.tablet)
        core = survivor.running().turn.groups["t"].core
        order = ForceConfiguration(
            survivor.uuid, "t", 1, core.log.last_term, core.log.last, [1], core.term + 1
        )  # fmt: skip
        rescue_of(survivor).answer(order)
        await until(reactor, lambda: reopened, "the entry in the log")
        await survivor.stop()
        survivor.start()
        assert await cluster.get("t", "a") == b"1"
        await cluster.put("t", "b", b"2")
        assert survivor.running().turn.groups["t"].core.committed_config().config.voters == [1]
        await survivor.stop()
        for machine in cluster.machines:
            machine.instance.close()

    in_reactor(main)


def test_a_configuration_is_not_forced_while_a_majority_lives(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        leading = await cluster.leader("t")
        for machine in cluster.machines:
            number = machine.running().turn.groups["t"].core.id
            answer = await force(machine, [number])
            assert "leads" in answer.why
        others = [one for one in cluster.machines if one is not leading]
        await others[0].stop()
        answer = await force(others[1], [others[1].running().turn.groups["t"].core.id])
        assert "leads" in answer.why or "a majority of the voters" in answer.why
        # Nothing has changed.
        await cluster.put("t", "b", b"2")
        assert (await cluster.leader("t")).running().turn.groups["t"].core.committed_config().config.voters == [1, 2, 3]
        await cluster.stop()

    in_reactor(main)


def test_an_order_that_has_seen_another_log_changes_nothing(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        await cluster.make(["t"])
        await cluster.put("t", "a", b"1")
        survivor = cluster.machines[0]
        await alone(cluster, [survivor])
        last = survivor.running().turn.groups["t"].core.log.last
        for changes in ({"last_index": last - 1}, {"term": 1}, {"recipient": "another"}, {"tablet": "none"}):
            assert (await force(survivor, [1], **changes)).why, changes
        assert survivor.running().turn.groups["t"].core.log.last == last
        assert survivor.running().turn.groups["t"].core.configs.current.voters == [1, 2, 3]
        await survivor.stop()
        for machine in cluster.machines:
            machine.instance.close()

    in_reactor(main)
