"""Three hosts on the links of region servers: real sockets, real disks, real threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coord.peers.reactor import TurnReactor
from regionserver.tablets.host.requests import Fate
from tests.support.hosts_in_process import Cluster
from tests.support.linked_hosts import LinkedMachine, SharedReactor
from tests.support.reactors import in_reactor


def test_elect_write_lose_a_leader_and_take_it_back(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(SharedReactor(reactor), tmp_path, machine=LinkedMachine)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        await cluster.put("u", "a", bytes(1_000_000))
        former = await cluster.leader("t")
        await former.stop()
        assert await cluster.get("t", "a") == b"1"
        answer = await cluster.put("t", "a", b"2")
        # On another port: it dials its peers, and announces its address.
        former.start()
        found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        while found.fate is not Fate.DONE:
            found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        assert found.value == b"2"
        await cluster.stop()

    in_reactor(main, make=TurnReactor)
