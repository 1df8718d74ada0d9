"""A process full of region servers that do nothing but live: for `benchmarks.assign.heartbeats`, which starts it.

    python -m benchmarks.assign.beating --store HOST:PORT,... --servers 1000 --regions 100000 --cluster-id ID

Each has an ephemeral of its own below /servers (all in one session) and the heartbeats of a real server
(`regionserver.session.heartbeats`), with connections of their own to every master; the regions are shared out among
them, as
`heartbeats.fill` has written them into the store. The first heartbeats are spread over a period, as those of servers
that were started one by one would be.

Prints `registered`, then `told` once the leader has everything from everyone. A line on standard input stops the
heartbeats, and is answered by `stopped`; the servers stay registered until standard input ends.
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
from regions.messages.heartbeat import HEARTBEAT_PERIOD_S, OPEN, ReplicaReport, ServerFigures
from regions.records.model import ServerRecord
from regions.records.znodes import Layout, encode
from regionserver.replica.effects import Key
from regionserver.service import allow_many_files
from regionserver.session.heartbeats import HeartbeatSender
from regionserver.session.master_link import HeartbeatState

TABLE: Final = "beaten"
START_CODE: Final = 1
SESSION_MS: Final = 30_000
LOOK_S: Final = 0.05


def uuid_of(number: int) -> str:
    """Name of the server with that number."""
    return f"beating-{number:05}"


def region_of(number: int) -> str:
    """Id of the region with that number; server `number % servers` has it."""
    return f"{TABLE}.{number:06}"


class Quiet:
    """A server on which nothing ever happens (`regionserver.session.heartbeats.Host`)."""

    def __init__(self, cluster_id: str, record: ServerRecord, keys: list[Key]) -> None:
        self.record = record
        self._keys = keys
        self._cluster_id = cluster_id
        self._epoch = -1

    def heartbeat_state(self) -> HeartbeatState:
        """Itself."""
        figures = ServerFigures(len(self._keys))
        return HeartbeatState(self._cluster_id, self.record, self._epoch, figures, self._describe, lambda: self._keys)

    @staticmethod
    def _describe(key: Key) -> ReplicaReport:
        return ReplicaReport(key[0], TABLE, key[1], OPEN)

    def take_changed(self) -> list[Key]:
        """Nothing."""
        return []

    def rates(self) -> Mapping[Key, float]:
        """Nobody asks anything."""
        return {}

    def learn_epoch(self, epoch: int) -> int:
        """Remember the highest."""
        self._epoch = max(self._epoch, epoch)
        return self._epoch

    def heartbeat_ended(self, *, is_answered: bool) -> None:
        """Nobody counts."""


class Load(Protocol):
    """All servers; reads from standard input when to stop."""

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
        """Register all and let their hearts beat."""
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
        """Stop."""
        for one in self._beating:
            one.stop()
        _say("stopped")

    def connectionLost(self, reason: Any = None) -> None:  # noqa: ARG002
        """Whoever started us has gone."""
        self._reactor.stop()


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> None:
    """Beat until standard input ends."""
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
