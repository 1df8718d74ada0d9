"""Drill: a region server that leads tablets is cut off from the other servers; the majority elects other leaders.

Clients, the store and masters still reach the isolated server, which continues until it notices that it has no
majority. Meanwhile it must answer no read, because it cannot confirm that it still leads. If only one direction is cut,
the isolated server still receives from the others, or they still receive from it.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

from cli.drill.report import DrillReport, Figure, InvariantCheck, check
from cli.drill.run import DEADLINE_S, Drill
from cli.drill.scenarios.cuts import action, cut, heal
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, LeaderVictim, await_new_leaders, prepare
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regionserver.tablets.messages import TabletPage, TabletReply, TabletScan

NAME: Final = "tablet-cut"

#: The cut lasts for a random time up to this after other servers lead the tablets. Some cuts outlast the
#: connections (`coord.peers.stream.GIVE_UP_MS`).
CUT_MORE_S: Final = 6.0
#: Time limit of one read at the isolated server, and threads that read there.
READ_S: Final = 0.5
READERS: Final = 4
#: Pause of a thread between two reads: the reads must not be the load.
PAUSE_S: Final = 0.05


def run(drill: Drill, server_name: str | None, direction: str, gap_max_s: float) -> DrillReport:
    """Cut a server that leads off (a random one unless named), wait for new leaders, heal the links, check."""
    victim, others = prepare(drill, server_name)
    drill.action = action(direction, "the other servers")
    daemon = next(one for one in drill.local.servers if one.name == victim.name)
    drill.strike("no leader")
    drill.at_end(lambda: heal(daemon))
    cut(daemon, direction, DEADLINE_S)
    cut_ms = drill.now_ms()
    drill.say(f"cut {victim.name} off from the other servers (direction: {direction}); its clients still reach it")
    readers = IsolatedReaders(victim)
    drill.at_end(readers.stop)
    readers.start()
    await_new_leaders(drill, victim, others, cut_ms)
    drill.phase("apart")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    until_ms = drill.now_ms() + int(1000 * CUT_MORE_S * drill.rng.random())
    drill.wait_until(until_ms)
    readers.stop()
    drill.phase("healed")
    heal(daemon)
    cut_s = (drill.now_ms() - cut_ms) / 1000
    drill.figures.append(Figure("cut off", round(cut_s, 3), "s", "until the links were healed"))
    drill.say(f"healed after {cut_s:.1f} s")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.await_rest()
    drill.checks.append(readers.check())
    return drill.finish(NAME, gap_max_s=gap_max_s)


class IsolatedReaders:
    """Threads that read the tablets of an isolated server there, again and again, until they are stopped."""

    def __init__(self, victim: LeaderVictim) -> None:
        self._victim = victim
        self._tablets = sorted(victim.led)
        self._numbers = itertools.count()
        #: Reads sent by each thread, and tablets that have answered a read.
        self._sent = [0] * READERS
        self._answered: list[str] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(number,), name=f"reader {number}", daemon=True)
            for number in range(READERS)
        ]

    def start(self) -> None:
        """Start to read. The server must be cut off already."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop reading; wait for the reads that are under way, because the links may be healed then."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> InvariantCheck:
        """Check that no read was answered."""
        wrong = [f"a read of {tablet} was answered" for tablet in self._answered]
        sent = sum(self._sent)
        tablets = min(sent, len(self._tablets))
        return check(
            f"{self._victim.name} answered no read while isolated", wrong, f"{sent} reads of {tablets} tablets"
        )

    def _read(self, number: int) -> None:
        """Read tablets in turn. Each thread counts its own reads: `+=` of several threads on one number loses some."""
        record = self._victim.record
        while not self._stopped.is_set():
            tablet = self._tablets[next(self._numbers) % len(self._tablets)]
            self._sent[number] += 1
            try:
                found = call_blocking(
                    (record.host, record.port), TabletScan(tablet, rows_max=1), READ_S, replies=TabletReply
                )
            except RpcError:
                continue
            if isinstance(found, TabletPage):
                self._answered.append(tablet)
            self._stopped.wait(PAUSE_S)
