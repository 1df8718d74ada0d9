"""A process with many idle region servers that only send heartbeats. `benchmarks.assign.heartbeats` starts it.

    python -m benchmarks.assign.beating --store HOST:PORT,... --servers 1000 --regions 100000 --cluster-id ID

Each server has its own ephemeral below /servers (all in one session) and sends the heartbeats of a real server
(`regionserver.session.heartbeats`) over its own connections to every master. The regions are divided among the servers
as `heartbeats.fill` has written them into the store. The first heartbeats are spread over one period, as if the servers
had been started one by one.

The process prints `registered`, then `told` when the active master has received the full reports of all servers. A line
on standard input stops the heartbeats, and the process prints `stopped`. The servers stay registered until standard
input ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from twisted.internet import stdio
from twisted.internet.defer import DeferredList, ensureDeferred
from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall

from coord.client.session import ZkClient
from coord.daemon import allow_many_files
from regions.messages.heartbeat import HEARTBEAT_PERIOD_S, OPEN, ReplicaReport, ServerFigures
from regions.records.model import ServerRecord
from regions.records.znodes import Layout, encode
from regionserver.replica.effects import Key
from regionserver.session.heartbeats import HeartbeatSender
from regionserver.session.master_link import HeartbeatState

#: A table has at most this number of regions: a list of children has a bound.
TABLE_REGIONS: Final = 100_000
START_CODE: Final = 1
SESSION_MS: Final = 30_000
LOOK_S: Final = 0.05


def uuid_of(number: int) -> str:
    """Return the uuid of the server with that number."""
    return f"beating-{number:05}"


def table_of(number: int) -> str:
    """Return the name and id of the table that has the region with that number."""
    return f"beaten{number // TABLE_REGIONS}"


def region_of(number: int) -> str:
    """Return the id of the region with that number. Server `number % servers` has the region open."""
    return f"{table_of(number)}.{number:07}"


def tables_of(regions: int) -> list[tuple[str, range]]:
    """Return each table's name and the numbers of its regions, for that many regions in all."""
    firsts = range(0, regions, TABLE_REGIONS)
    return [(table_of(first), range(first, min(regions, first + TABLE_REGIONS))) for first in firsts]


class Quiet:
    """A server without any activity (`regionserver.session.heartbeats.Host`)."""

    def __init__(self, cluster_id: str, record: ServerRecord, keys: list[Key]) -> None:
        self.record = record
        self._keys = keys
        self._cluster_id = cluster_id
        self._epoch = -1

    def heartbeat_state(self) -> HeartbeatState:
        """Return this server: its state never changes."""
        figures = ServerFigures(len(self._keys))
        return HeartbeatState(self._cluster_id, self.record, self._epoch, figures, self._describe, lambda: self._keys)

    @staticmethod
    def _describe(key: Key) -> ReplicaReport:
        return ReplicaReport(key[0], key[0].partition(".")[0], key[1], OPEN)

    def take_changed(self) -> list[Key]:
        """Return no changed replicas."""
        return []

    def rates(self) -> Mapping[Key, float]:
        """Return no rates: no client sends requests."""
        return {}

    def learn_epoch(self, epoch: int) -> int:
        """Keep and return the highest epoch."""
        self._epoch = max(self._epoch, epoch)
        return self._epoch

    def heartbeat_ended(self, *, is_answered: bool) -> None:
        """Ignore the end of a heartbeat."""


class Load(Protocol):
    """All servers of this process. Standard input says when to stop."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self._reactor = reactor
        self._client = ZkClient(reactor, options.store, SESSION_MS, name="beating")
        self._layout = Layout()
        self._hosts = [
            Quiet(
                options.cluster_id,
                ServerRecord(uuid_of(number), "127.0.0.1", 1, START_CODE, session_ms=SESSION_MS),
                [(region_of(one), 0) for one in range(number, options.regions, options.servers)],
            )
            for number in range(options.servers)
        ]
        self._beating: list[HeartbeatSender] = []
        self._look = LoopingCall(self._are_told)

    async def run(self) -> None:
        """Register all servers and start their heartbeats."""
        await self._client.connect()
        await DeferredList(
            [
                self._client.create(self._layout.server(one.record.uuid), encode(one.record), ephemeral=True)
                for one in self._hosts
            ],
            fireOnOneErrback=True,
        )
        _say("registered")
        for number, host in enumerate(self._hosts):
            one = HeartbeatSender(self._reactor, self._client, self._layout, host, period_s=HEARTBEAT_PERIOD_S)
            self._beating.append(one)
            self._reactor.callLater(number / len(self._hosts) * HEARTBEAT_PERIOD_S, one.start)
        self._look.start(LOOK_S)

    def _are_told(self) -> None:
        if all(one.is_up_to_date for one in self._beating):
            self._look.stop()
            _say("told")

    def dataReceived(self, data: bytes) -> None:  # noqa: ARG002 - any line means the same
        """Stop the heartbeats."""
        for one in self._beating:
            one.stop()
        _say("stopped")

    def connectionLost(self, reason: Any = None) -> None:  # noqa: ARG002
        """End: the process that started this one has closed standard input."""
        self._reactor.stop()


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> None:
    """Send heartbeats until standard input ends."""
    from twisted.internet import reactor

    parser = argparse.ArgumentParser(prog="python -m benchmarks.assign.beating")
    parser.add_argument("--store", required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--regions", type=int, required=True)
    parser.add_argument("--cluster-id", required=True)
    options = parser.parse_args()
    allow_many_files()
    loop: Any = reactor
    loop.seconds = time.monotonic
    load = Load(loop, options)
    stdio.StandardIO(load)

    def failed(failure: Any) -> None:
        sys.stderr.write(f"{failure.getTraceback()}\n")
        loop.stop()

    ensureDeferred(load.run()).addErrback(failed)
    loop.run()


if __name__ == "__main__":
    main()
