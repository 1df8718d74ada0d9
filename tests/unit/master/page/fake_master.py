"""A master for tests of the page: a real assigner's cluster state, and the rest as far as the page reads it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from master.assignment.transition_times import TransitionTimes
from master.heartbeats import HeartbeatReceiver
from master.page.feed import Feed
from regions.cluster.state import ClusterState
from tests.unit.regions.model_cluster import ModelCluster, at, region, server


class FakeMaster:
    """An active master, or (`stand_by`) a standby with the same cluster state."""

    uuid = "11111111-0000"
    address = "127.0.0.1:1"
    start_code = 7
    cluster_id = "c"
    role = "active"
    election = None
    registered: list[Any] = []
    active_since_ms = 5

    def __init__(self, clock: Clock, cluster: ModelCluster) -> None:
        self._clock = clock
        self.cluster = cluster
        self.limits = cluster.config
        watch = SimpleNamespace(counts=_Zero(), listed=[], members=_Zero(), open=_Zero())
        keeper = SimpleNamespace(tablets={})
        keeping = SimpleNamespace(
            keeper=keeper, watch=watch, in_transition=list, counts=lambda _id: None, transition_of=lambda *_: None
        )
        self.active_master: Any = SimpleNamespace(
            is_open=True,
            assigner=cluster.assigner,
            world=cluster.assigner.world,
            keeper=keeping,
            reports=SimpleNamespace(sizes={}, loads={}),
        )
        self.transition_times = TransitionTimes()
        cluster.assigner.history.listener = self.transition_times.take
        self.watcher: Any = None
        self.heartbeats = HeartbeatReceiver(self, self.now_ms)  # type: ignore[arg-type]

    def now_ms(self) -> int:
        return self.cluster.now + int(self._clock.seconds() * 1000)

    def stand_by(self, world: ClusterState | None) -> None:
        self.role, self.active_master = "standby", None
        mirror = None if world is None else SimpleNamespace(world=world, is_complete=True)
        self.watcher = SimpleNamespace(mirror=mirror, as_of=lambda _now: SimpleNamespace(stale_ms=300))


class _Zero(dict[Any, int]):
    def __missing__(self, _key: Any) -> int:
        return 0

    def total(self) -> int:
        return 0


class FakeRequest:
    """A browser's request for the stream; what is written is read as events."""

    def __init__(self) -> None:
        self.channel: Any = SimpleNamespace(transport=SimpleNamespace(abortConnection=self.abort))
        self.raw = b""
        self.is_aborted = self.is_finished = False
        self.producer: Any = None
        self._finish: Deferred[None] = Deferred()

    def notifyFinish(self) -> Deferred[None]:
        return self._finish

    def registerProducer(self, producer: Any, _streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, data: bytes) -> None:
        self.raw += data

    def finish(self) -> None:
        self.is_finished = True

    def abort(self) -> None:
        self.is_aborted = True

    def leave(self) -> None:
        self._finish.errback(ConnectionError("gone"))

    def events(self) -> list[tuple[str | None, str, Any]]:
        """Return (id, name, data) of all events so far. The id is None if the event sets none."""
        found = []
        for block in self.raw.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in fields:
                found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
        return found


class Browser:
    """Applies events as `master/page/assets/model.js` does."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}
        self.servers: dict[int, str] = {}
        self.is_complete = False
        self.begins = 0
        #: What it names when it reconnects.
        self.last_id = ""
        self._read = 0

    def read(self, request: FakeRequest) -> None:
        """Apply the events that have come since the last call."""
        events = request.events()
        for message_id, name, data in events[self._read :]:
            self.last_id = self.last_id if message_id is None else message_id
            getattr(self, f"_{name}", lambda _data: None)(data)
        self._read = len(events)

    def reconnected(self) -> None:
        self._read = 0

    def _begin(self, _data: Any) -> None:
        self.rows, self.servers = {}, {}
        self.is_complete, self.begins = False, self.begins + 1

    def _part(self, data: Any) -> None:
        self.servers |= dict(data.get("servers", []))
        since = data.get("since") or [0] * len(data["key"])
        for at_, key in enumerate(data["key"]):
            self.rows[data["first"] + at_] = [key, data["state"][at_], data["server"][at_], since[at_]]

    def _end(self, _data: Any) -> None:
        self.is_complete = True

    def _delta(self, data: Any) -> None:
        self.servers |= dict(data.get("servers", []))
        if data.get("new"):
            self._part(data["new"])
        for at_, number in enumerate(data.get("n", [])):
            if number in self.rows:
                self.rows[number][1:] = [data["state"][at_], data["server"][at_], data["since"][at_]]

    def shown(self) -> dict[str, tuple[int, str, int]]:
        """Return the rows that are not gone, by key."""
        return {
            key: (state, self.servers.get(server_, ""), since)
            for key, state, server_, since in self.rows.values()
            if state != 11
        }


def cluster_of(regions: int) -> ModelCluster:
    """Return a started cluster with two servers and so many open regions."""
    cluster = ModelCluster()
    cluster.put(*(region(f"r{number:05}", on=at(f"s{number % 2 + 1}")) for number in range(regions)))
    cluster.start(server("s1"), server("s2"))
    return cluster


def feed_of(clock: Clock, master: FakeMaster) -> Feed:
    """Return a started feed whose figures are the role."""
    feed = Feed(clock, master, lambda _feed: {"role": master.role})  # type: ignore[arg-type]
    feed.start()
    return feed


def pass_time(clock: Clock, seconds: float) -> None:
    """Let time pass in the steps of the feed's pauses."""
    clock.pump([0.01] * round(seconds * 100))
