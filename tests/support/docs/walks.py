"""Walks through the code: the modules that five operations pass through, in order, from recorded calls.

RK_PURE=1 python -m tests.support.docs.walks writes the walks into docs/architecture.md, between two marks

The store's walk is recorded on a real node with a socket, a log on disk and a writer thread. The other walks are
recorded on real masters and region servers in a simulated cluster; the store's client and the RPC plumbing (`coord`) do
not count there. A walk follows causes: it contains the events that a recorded event of the simulation schedules, and no
others. The auditor, which reads every transition beside the master's work, is omitted.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import simulation.cluster.cluster
from coord.peers.reactor import TurnReactor
from coord.server.config.settings import StoreSettings
from coord.server.service import Service
from coord.wire import records
from coord.wire.opcodes import OP_CREATE, OP_SET_DATA
from regions import messages as ms
from regions.assign.assigner import Assigner
from regions.cluster.events import PlanReady
from regions.cluster.limits import AssignerConfig
from regionserver.session.heartbeats import HeartbeatSender
from regionserver.session.master_link import MasterLink
from simulation.cluster.cluster import Options, SimulatedCluster
from simulation.engine.chance import SeededRandom
from simulation.engine.timeline import SECOND, Callback, ScheduledEvent, Timeline
from tests.support.docs.calls import Recorder, Walk, as_markdown
from tests.support.helpers import eventually
from tests.support.rawclient import RawClient
from tests.support.sources import ROOT

SEED: Final = 3
PLAN_ROWS: Final = 8
#: Duration of a walk that begins at a call: the next heartbeat is a separate walk.
FOLLOWED_S: Final = 0.5
#: Time for the store to finish the previous request, and the pause of the test for its reactor.
_REST_S: Final = 0.02
_DEADLINE_S: Final = 30.0
BEGIN: Final = "<!-- walks: written by tests.support.docs.walks -->\n"
END: Final = "<!-- end of walks -->\n"


class CausalTimeline(Timeline):
    """A timeline that knows which events follow from a recorded event."""

    def __init__(self, chance: SeededRandom) -> None:
        super().__init__(chance)
        self.recorder = Recorder(
            ("regions", "master", "regionserver"), lambda: "" if self.current is None else self.current.name
        )
        #: True while events that are scheduled during the recording are recorded as well.
        self.follows = True
        #: The recording ends when this returns True.
        self.is_over: Callable[[], bool] = bool

    def at(self, when: int, what: Callback, *arguments: Any) -> ScheduledEvent:
        """See `Timeline.at`."""
        if not (self.recorder.is_on and self.follows):
            return super().at(when, what, *arguments)

        def recorded(*arguments: Any) -> None:
            self.recorder.is_on = not self.is_over()
            try:
                what(*arguments)
            finally:
                self.recorder.is_on = False

        return super().at(when, recorded, *arguments)


class Cluster:
    """A simulated cluster of one master and two region servers, at rest, with `regions` regions."""

    def __init__(self, regions: int, **limits: Any) -> None:
        simulation.cluster.cluster.Timeline = CausalTimeline  # type: ignore[misc]
        try:
            self.simulated = SimulatedCluster(Options(SEED, masters=1, servers=2, store_nodes=1))
        finally:
            simulation.cluster.cluster.Timeline = Timeline  # type: ignore[misc]
        assert isinstance(self.simulated.timeline, CausalTimeline)
        self.timeline = self.simulated.timeline
        self.operator = self.simulated.operator
        self.simulated.setting.limits, self.simulated.setting.min_servers = AssignerConfig(**limits), 1
        self.operator.start()
        for machine in self.simulated.machines:
            machine.start()
        self.simulated.run_for(10)
        if regions:
            self.operator.create(regions)
            self.simulated.run_for(10)

    def begin(self, act: Callable[[], object]) -> None:
        """Record the effects of `act` as the walk."""
        recorder = self.timeline.recorder
        recorder.is_on = True
        act()
        recorder.is_on = False

    def begin_at(self, cls: type, name: str, wanted: Callable[..., bool], *, follows: bool = True) -> None:
        """Begin the walk at the next call of a method with matching arguments."""
        method = getattr(cls, name)
        timeline = self.timeline
        after = timeline.after

        def end_of_event() -> None:
            timeline.recorder.is_on = False
            timeline.after = after
            after()

        def first(*arguments: Any, **named: Any) -> Any:
            if cls.__dict__[name] is first and wanted(*arguments):
                setattr(cls, name, method)
                over = timeline.now + int(FOLLOWED_S * SECOND)
                timeline.is_over = lambda: timeline.now > over
                timeline.follows = follows
                timeline.after = end_of_event
                timeline.recorder.is_on = True
            return method(*arguments, **named)

        setattr(cls, name, first)

    def record(self, seconds: float) -> Recorder:
        """Let time pass, and return the recorder."""
        recorder = self.timeline.recorder
        recorder.start()
        try:
            self.simulated.run_for(seconds)
        finally:
            recorder.stop()
        assert recorder.calls, "nothing was recorded"
        return recorder


def opening() -> list[Walk]:
    """Return the walk of one region: from the assigner's decision to the deletion of its znode."""
    cluster = Cluster(regions=1)
    operator = cluster.operator
    (region,) = cluster.simulated.observer.shadow.regions.values()
    operator.do("unassign", lambda: operator.ask(ms.SetRegionIntent(region.region_id, assigned=False)))
    cluster.simulated.run_for(10)
    request = ms.SetRegionIntent(region.region_id, assigned=True)
    cluster.begin(lambda: operator.do("assign", lambda: operator.ask(request)))
    recorder = cluster.record(5)
    first = next(i for i, (_, name) in enumerate(recorder.calls) if name.startswith("regions.assign"))
    del recorder.calls[:first]
    return [
        Walk("One region opens: master", ("309, 26, 195", "299, 29, 193"), recorder.modules("m")),
        Walk("One region opens: region server", ("125, 11, 57", "104, 10, 52"), recorder.modules("s")),
    ]


def create_table() -> list[Walk]:
    """Return the walk of creating a table of one region, from the request to the reply."""
    cluster = Cluster(regions=0)
    cluster.timeline.is_over = lambda: cluster.operator.is_idle
    cluster.begin(lambda: cluster.operator.create(1))
    calls = cluster.record(5).modules("m")
    return [Walk("Create table, to the reply", ("184, 28, 102", "141, 32"), calls)]


def plan_row() -> list[Walk]:
    """Return the walk of the rows of a bulk plan, from the finished plan to the writes of OFFLINE."""
    cluster = Cluster(regions=0, bulk_min=PLAN_ROWS)
    cluster.begin_at(Assigner, "handle", lambda _, event, *__: isinstance(event, PlanReady), follows=False)
    cluster.operator.create(PLAN_ROWS)
    calls = cluster.record(10).modules("m")
    return [Walk(f"{PLAN_ROWS} plan rows, to the writes of OFFLINE", ("261, 15, 130", "197"), calls)]


def heartbeats() -> list[Walk]:
    """Return the walks of two heartbeats: without a report, and with the report of a region that was just opened."""
    cluster = Cluster(regions=1)
    cluster.begin_at(HeartbeatSender, "_tick", lambda *_: True)
    idle = cluster.record(5).modules()
    cluster = Cluster(regions=0)
    cluster.begin_at(MasterLink, "changed", lambda _, keys: bool(keys))
    cluster.operator.create(1)
    changed = cluster.record(5).modules()
    return [
        Walk("Heartbeat without a report", ("42, 12, 22", "24, 12"), idle),
        Walk("Heartbeat that reports a region", ("68, 21, 43", "54, 21"), changed),
    ]


def set_data(folder: Path) -> list[Walk]:
    """Return the walk of a write at a store of one node, from the bytes of the request to those of the reply."""
    recorder = Recorder(("coord",))
    address = ("127.0.0.1", _free_port())
    reactor = TurnReactor()
    service = Service(StoreSettings(1, folder / "node", address), reactor)
    shortest: list[tuple[str, str]] = []
    recorder.start()
    service.start()

    def connected() -> RawClient | None:
        raw = RawClient(f"{address[0]}:{address[1]}")
        return raw if raw.hello(records.ConnectRequest(0, 10_000, 0, bytes(16))) is not None else None

    def client() -> None:
        raw = eventually(connected, what="the node opens a session")
        create = records.CreateRequest(OP_CREATE, b"/walk", b"", records.OPEN_ACL, 0)
        raw.ask(OP_CREATE, records.encode_create(create))
        for _ in range(20):
            is_quiet = threading.Event()
            reactor.callFromThread(reactor.callLater, _REST_S, is_quiet.set)
            assert is_quiet.wait(_DEADLINE_S), "the reactor does not turn"
            recorder.calls.clear()
            recorder.is_on = True
            raw.ask(OP_SET_DATA, records.encode_set_data(b"/walk", b"new", -1))
            recorder.is_on = False
            if not shortest or len(recorder.calls) < len(shortest):
                shortest[:] = recorder.calls
        reactor.callFromThread(reactor.stop)

    thread = threading.Thread(target=client)
    threading.setprofile(None)
    thread.start()
    reactor.run()
    thread.join()
    recorder.stop()
    service.finish()
    return [Walk("setData, one node", ("158, 36, 121", "137, 36, 104"), [name for _, name in shortest])]


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    """Write the walks into the page."""
    with tempfile.TemporaryDirectory() as folder:
        walks = [*opening(), *create_table(), *plan_row(), *heartbeats(), *set_data(Path(folder))]
    text = as_markdown([walks[-1], *walks[:-1]])
    page = ROOT / "docs" / "architecture.md"
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
