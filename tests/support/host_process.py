"""A process with one tablet host, which tests kill: `python -m tests.support.host_process FOLDER`.

It has the reactor of a server. It writes rows without end, and prints the number of each row when its write is
answered.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred

from coord.peers.reactor import TurnReactor
from tests.support.hosts_in_process import Cluster


async def write_rows(reactor: Any, folder: Path) -> None:
    """Write `k0`, `k1`, ... into the tablets t and u, several at a time."""
    cluster = Cluster(reactor, folder, size=1)
    cluster.start()
    [machine] = cluster.machines
    if not machine.running().replicas():
        await cluster.make(["t", "u"])
    number = 0
    while True:
        for tablet in ("t", "u"):
            await cluster.leader(tablet)
        sent = [
            (number + each, machine.running().propose(tablet, cluster.command_for(f"k{number + each}", b"%d" % each)))
            for each in range(10)
            for tablet in ("t", "u")
        ]
        for each, answer in sent:
            await answer
            sys.stdout.write(f"{each}\n")
            sys.stdout.flush()
        number += 10


def main() -> None:
    """Run until killed."""
    reactor: Any = TurnReactor()

    def failed(failure: Any) -> None:
        failure.printTraceback(sys.stderr)
        reactor.stop()

    reactor.callWhenRunning(lambda: ensureDeferred(write_rows(reactor, Path(sys.argv[1]))).addErrback(failed))
    reactor.run(installSignalHandlers=False)


if __name__ == "__main__":
    main()
