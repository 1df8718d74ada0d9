"""The time of a kill: the cluster may notice the death before the operator's command has returned."""

from __future__ import annotations

import contextlib
import errno
import io
import signal
from collections.abc import Callable
from typing import Any

from rich.console import Console

from cli.common.local import LocalCluster
from cli.common.options import Globals
from cli.diagnose.follow import Follower, MembershipChange
from cli.drill.run import Drill
from cli.drill.target.cluster import ClusterUnderTest
from cli.drill.target.processes import outside_cluster
from regions.records.model import MasterRecord, ServerRecord
from regions.records.znodes import Layout

MASTER = "10.0.0.9:6000"


class FakeCluster:
    """A cluster with one master, which nobody asks anything."""

    hosts = "store:2181"
    layout = Layout("/rk")
    client = None

    def masters(self) -> list[MasterRecord]:
        return [MasterRecord("m1", "10.0.0.9", 6000, 1)]

    def servers(self) -> list[ServerRecord]:
        return []


class FakeClock:
    """A clock that the test moves on."""

    at_ms = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


class SlowCommand:
    """An operator's command that returns 900 ms after the kill; the store notices the death 20 ms after it."""

    logs = "its log"

    def __init__(self, follower: Follower, clock: FakeClock) -> None:
        self._follower = follower
        self._clock = clock

    def send(self, name: str, number: signal.Signals) -> None:
        assert (name, number) == (MASTER, signal.SIGKILL)
        self._clock.at_ms += 20
        self._follower.memberships.append(MembershipChange(self._clock.at_ms, "no-active", "m1", MASTER))
        self._clock.at_ms += 880


class GoneTerminal(io.StringIO):
    """A terminal that has ended."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


class Recorder:
    """Processes that are started and continued."""

    logs = "their logs"

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.is_gone = False

    def watch(self, _ended: Callable[[], object]) -> contextlib.AbstractContextManager[Recorder]:
        return contextlib.nullcontext(self)

    def start(self, name: str) -> None:
        self.done.append(("start", name))

    def send(self, name: str, number: signal.Signals) -> None:
        self.done.append((number.name, name))


def drill_of(clock: FakeClock) -> Drill:
    """Return a drill on a cluster with one master, whose commands are slow."""
    cluster: Any = FakeCluster()
    local: LocalCluster = outside_cluster(cluster)
    given = Globals()
    given.json = True
    reactor: Any = None
    follower = Follower(reactor, "store:2181", "/rk")
    follower.clock = clock  # type: ignore[assignment]
    processes: Any = SlowCommand(follower, clock)
    return Drill(ClusterUnderTest(given, cluster, local, processes, reactor), follower, "master-failover", 1, 0.0)


def test_a_death_that_is_noticed_before_the_command_returns_counts() -> None:
    """A drill that took the time after the command would wait for an event that has happened already."""
    clock = FakeClock()
    began_ms = clock.at_ms
    drill = drill_of(clock)
    killed_ms = drill.kill(MASTER)
    assert killed_ms == began_ms
    assert drill.membership("no-active", killed_ms) == began_ms + 20
    assert drill.notes == [
        f"the command that killed {MASTER} took 0.90 s: times from the kill count from its start",
    ]


def test_a_drill_whose_terminal_has_ended_restores_everything() -> None:
    """Each line fails then. Fails without `output_may_fail` in `Drill.say`: the first daemon alone continues."""
    drill = drill_of(FakeClock())
    processes: Any = Recorder()
    drill._processes = processes
    drill._console = Console(file=GoneTerminal())
    drill._frozen, drill._dead = {"server-1", "server-2"}, {"master-1", "server-3"}
    drill.restore()
    assert processes.done == [
        ("SIGCONT", "server-1"), ("SIGCONT", "server-2"), ("start", "master-1"), ("start", "server-3"),
    ]  # fmt: skip
