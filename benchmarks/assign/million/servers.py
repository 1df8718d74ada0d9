"""A process of many region servers. `benchmarks.assign.million` starts it.

    python -m benchmarks.assign.million.servers --store HOST:PORT,...

Each is the region server of `rk server run --opener none`, with a session, a lease, heartbeats and a port of its own,
and writes its steps itself. Two things are left out that a process of its own would have: threads (nothing is opened
that could block) and files (the identity is kept in memory).

Commands on standard input, one per line; the process repeats each line when it is done:

    start FIRST LAST   start these servers, and wait until they are registered
    end NUMBER         end a server without moving its regions; its session is closed, so the masters notice at once
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from twisted.internet import stdio
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from coord import logs
from coord.daemon import allow_many_files, collect_rarely
from coord.peers.reactor import install
from regionserver.config import ServerSettings
from regionserver.opener import NothingOpener
from regionserver.server import RegionServer
from regionserver.session.instance import FORMAT, Instance, InstanceRecord

T = TypeVar("T")
log = Logger()

#: A server whose process is stopped for a while must not lose its session.
SESSION_MS: Final = 30_000
LOOK_S: Final = 0.02
#: Servers that are started at once: each waits for several replies of the store.
STARTED_AT_ONCE: Final = 50
_NOWHERE: Final = Path("/nowhere")


def uuid_of(number: int) -> str:
    """Return the uuid of the server with that number."""
    return f"simulated-{number:05}"


class Inline:
    """Runs work at once, and delivers the results of a turn together, as `regionserver.workers.Workers` does."""

    def __init__(
        self, reactor: Any, _threads: int, delivered: Callable[[], None], fatal: Callable[[Failure], object]
    ) -> None:
        self._reactor = reactor
        self._delivered = delivered
        self._fatal = fatal
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.pending = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work`; call `done` with its result in the next turn."""
        self.pending += 1
        try:
            result: Any = work()
        except Exception as error:  # the submitter gets the exception as the result
            result = error
        if not self._results:
            self._reactor.callLater(0, self._deliver)
        self._results.append((done, result))

    def stop(self, timeout_s: float) -> bool:  # noqa: ARG002 - no work can be blocked
        """Return True: no work is left."""
        return True

    def _deliver(self) -> None:
        results, self._results = self._results, deque()
        try:
            for done, result in results:
                self.pending -= 1
                done(result)
            self._delivered()
        except Exception:  # the reactor would log the exception and continue
            self._fatal(Failure())  # type: ignore[no-untyped-call]


class MemoryInstance(Instance):
    """An identity without a directory."""

    def __init__(self, uuid: str) -> None:
        super().__init__(_NOWHERE, -1, InstanceRecord(FORMAT, uuid, 0))

    def _write(self) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Close nothing: no file is open."""


class Servers:
    """The servers of this process."""

    def __init__(self, reactor: Any, store: str) -> None:
        self._reactor = reactor
        self._store = store
        self._running: dict[int, RegionServer] = {}

    async def start(self, numbers: range) -> None:
        """Start servers, some at once. Return when all are registered and serve."""
        waiting = deque(numbers)
        while waiting:
            some = [waiting.popleft() for _ in range(min(STARTED_AT_ONCE, len(waiting)))]
            for number in some:
                self._running[number] = self._started(number)
            while not all(self._running[number].heartbeat_state().record.start_code for number in some):
                await deferLater(self._reactor, LOOK_S)

    def _started(self, number: int) -> RegionServer:
        settings = ServerSettings(
            store=self._store,
            data_dir=_NOWHERE,
            shared_dir=None,
            host="127.0.0.1",
            port=0,
            rack=f"rack-{number % 10}",
            session_timeout_ms=SESSION_MS,
            threads=1,
            handover_s=0,
            opener="none",
        )
        instance = MemoryInstance(uuid_of(number))
        server = RegionServer(self._reactor, settings, instance, NothingOpener(), died=self._died, workers=Inline)
        server.start()
        return server

    async def end(self, number: int) -> None:
        """End a server."""
        await self._running.pop(number).stop()

    def _died(self, reason: str) -> None:
        log.critical("a server has ended: {reason}", reason=reason)
        self._reactor.callWhenRunning(self._reactor.stop)


class Commands(LineOnlyReceiver):
    """Standard input."""

    delimiter = b"\n"

    def __init__(self, reactor: Any, servers: Servers) -> None:
        self._reactor = reactor
        self._servers = servers

    def lineReceived(self, line: bytes) -> None:
        """Carry out one command."""
        word, *numbers = line.decode().split()
        if word == "start":
            first, last = map(int, numbers)
            done: Deferred[None] = ensureDeferred(self._servers.start(range(first, last + 1)))
        else:
            assert word == "end", line
            done = ensureDeferred(self._servers.end(int(numbers[0])))
        done.addCallbacks(lambda _: self.sendLine(line), self._failed)

    def connectionLost(self, reason: Any = None) -> None:  # noqa: ARG002
        """End: the process that started this one has ended."""
        self._stop()

    def _failed(self, failure: Failure) -> None:
        sys.stderr.write(failure.getTraceback())
        self._stop()

    def _stop(self) -> None:
        if self._reactor.running:
            self._reactor.stop()


def main() -> None:
    """Run servers until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assign.million.servers")
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    allow_many_files()
    collect_rarely()
    reactor: Any = install()
    logs.begin(reactor)
    stdio.StandardIO(Commands(reactor, Servers(reactor, options.store)))
    reactor.run()


if __name__ == "__main__":
    main()
