"""The tablets of one server process: the start of the host, the effect of sessions, reports, and the port for
members."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from coord.env_os import OsClock
from coord.errors import ConfigError
from regions.messages import ReplicaState, ShowReplicas
from regions.messages.server import TabletFigures
from regions.records.model import Incarnation
from regionserver.config import ServerSettings, default_peer_address
from regionserver.figures import figures
from regionserver.metrics import Metrics
from regionserver.replica.states import Phase
from regionserver.tablets.peer_port import PORT_FILE, bind_peer_port
from regionserver.tablets.server_tablets import FIGURES_S, ServerTablets
from tests.unit.regionserver.tablets.fake_hosting import FakeHosting


class Opened:
    """A server's tablets, and the hosts that were opened."""

    def __init__(self, directory: Path) -> None:
        self.hosting = FakeHosting()
        self.opened: list[str] = []
        self.soon = 0
        self.faults: list[Any] = []
        settings = ServerSettings(
            store="127.0.0.1:1",
            data_dir=directory,
            shared_dir=directory / "shared",
            host="127.0.0.1",
            port=0,
            peer_address=("127.0.0.1", 0),
        )
        self.metrics = Metrics()
        self.clock = Clock()
        self.tablets = ServerTablets(
            self.clock, settings, OsClock(), self.metrics, self._open, self.faults.append, self._report_soon
        )

    def _open(self, cluster: str, listening: socket.socket, changed: Any) -> FakeHosting:
        self.opened.append(cluster)
        self.changed = changed
        listening.close()
        return self.hosting

    def _report_soon(self) -> None:
        self.soon += 1


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_the_host_starts_once_the_cluster_is_known(opened: Opened) -> None:
    """A server that belongs to a cluster starts it before the store answers; a new server when it has joined."""
    port = opened.tablets.listen()
    assert port > 0
    opened.tablets.open("")
    assert opened.opened == []
    assert opened.tablets.figures() is None
    opened.tablets.open("c")
    opened.tablets.open("c")
    assert opened.opened == ["c"]


def test_the_end_of_a_session_touches_no_replica(opened: Opened) -> None:
    opened.hosting.put("r1")
    opened.tablets.listen()
    opened.tablets.open("c")

    class Client:
        def add_watch(self, *_: Any, **__: Any) -> Any:
            from twisted.internet.defer import Deferred

            return Deferred()

    opened.tablets.begin(Incarnation("me", 1), Client())  # type: ignore[arg-type]
    opened.tablets.end()
    assert opened.tablets.keys() == [("r1", 1)]
    assert not opened.hosting.is_stopped


def test_changed_gone_and_renumbered_replicas_are_reported(opened: Opened) -> None:
    """A removed replica is reported under the number that the masters know."""
    opened.hosting.put("r1")
    opened.tablets.listen()
    opened.tablets.open("c")
    assert opened.tablets.take_changed() == []
    opened.hosting.put("r2", 3)
    opened.changed("r2")
    assert opened.tablets.take_changed() == [("r2", 3)]
    assert opened.soon == 1
    found = opened.tablets.describe(("r2", 3))
    assert found is not None
    assert (found.number, found.state) == (3, ReplicaState.RUNNING)
    opened.hosting.put("r2", 4)
    opened.changed("r2")
    assert opened.tablets.take_changed() == [("r2", 3), ("r2", 4)]
    assert opened.tablets.describe(("r2", 3)) is None
    del opened.hosting.there["r1"]
    opened.changed("r1")
    assert opened.tablets.take_changed() == [("r1", 1)]
    assert opened.tablets.keys() == [("r2", 4)]


def test_keys_need_no_reports(opened: Opened) -> None:
    """A full heartbeat needs thousands of keys, while a report reads rows, configuration and members' health."""
    opened.hosting.put("r1")
    opened.hosting.put("r2", 4)
    opened.tablets.listen()
    assert opened.tablets.keys() == []
    opened.tablets.open("c")
    opened.hosting.reports = lambda: pytest.fail("all reports were built")  # type: ignore[method-assign]
    assert opened.tablets.keys() == [("r1", 1), ("r2", 4)]


def test_own_replicas_come_in_pages(opened: Opened) -> None:
    for name in ("r3", "r1", "r2"):
        opened.hosting.put(name)
    assert opened.tablets.own_replicas(ShowReplicas()) == ([], "")
    opened.tablets.listen()
    opened.tablets.open("c")

    def page(request: ShowReplicas) -> tuple[list[str], str]:
        found, after = opened.tablets.own_replicas(request)
        return [one.report.region_id for one in found], after

    assert page(ShowReplicas()) == (["r1", "r2", "r3"], "")
    assert page(ShowReplicas(limit=2)) == (["r1", "r2"], "r2")
    assert page(ShowReplicas(limit=2, after="r2")) == (["r3"], "")
    assert page(ShowReplicas(tablets=["r2", "gone"])) == (["r2"], "")


def test_hosted_replicas_and_failures(opened: Opened) -> None:
    """The answers of ListOpen and the server's status about tablets."""
    opened.hosting.put("r2", 3, ReplicaState.FAILED)
    opened.hosting.put("r1")
    opened.tablets.listen()
    assert (opened.tablets.hosted(), opened.tablets.failed()) == ([], 0)
    opened.tablets.open("c")
    found = [(one.region_id, one.replica, one.state, one.role) for one in opened.tablets.hosted()]
    assert found == [("r1", 1, "RUNNING", "FOLLOWER"), ("r2", 3, "FAILED", "FOLLOWER")]
    assert len(opened.tablets.hosted(1)) == 1
    assert opened.tablets.failed() == 1
    counts = figures(dict.fromkeys(Phase, 0) | {Phase.OPEN: 5}, {}, opened.tablets.figures())
    assert (counts.open, counts.opening, counts.closing) == (6, 0, 0)
    assert figures(dict.fromkeys(Phase, 0), {}).open == 0


def test_figures_and_metrics(opened: Opened) -> None:
    opened.hosting.put("r1")
    opened.tablets.listen()
    opened.tablets.open("c")
    figures = opened.tablets.figures()
    assert figures is not None
    assert (figures.leaders, figures.entries) == (2, 40)
    value = opened.metrics.registry.get_sample_value
    assert value("regionkeeper_server_tablet_leaders") == 2
    assert value("regionkeeper_server_tablets", {"state": "RUNNING"}) == 1
    assert value("regionkeeper_server_tablets", {"state": "FAILED"}) == 0
    assert value("regionkeeper_server_tablet_log_entries") == 40


def test_port_0_is_the_same_port_at_each_start(tmp_path: Path) -> None:
    """Members find each other without the store after all of them were restarted."""
    first = bind_peer_port(tmp_path, ("127.0.0.1", 0))
    port = first.getsockname()[1]
    other = bind_peer_port(tmp_path, ("127.0.0.1", 0))
    try:
        assert other.getsockname()[1] != port, "the former port is in use"
    finally:
        first.close()
        other.close()
    chosen = int((tmp_path / PORT_FILE).read_text())
    again = bind_peer_port(tmp_path, ("127.0.0.1", 0))
    again.close()
    assert again.fileno() == -1
    assert int((tmp_path / PORT_FILE).read_text()) == chosen


@pytest.mark.parametrize("content", [b"", b"70000", b"-1", b"\xff\xfe", b"port"])
def test_a_damaged_port_file_is_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PORT_FILE).write_bytes(content)
    found = bind_peer_port(tmp_path, ("127.0.0.1", 0))
    port = found.getsockname()[1]
    found.close()
    assert int((tmp_path / PORT_FILE).read_text()) == port


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    taken = bind_peer_port(tmp_path, ("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with taken, pytest.raises(ConfigError, match=f"cannot listen on peer address 127.0.0.1:{port}"):
        bind_peer_port(tmp_path, ("127.0.0.1", port))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"opener": "none"}, "tablets have key-value rows"),
        ({"peer_address": ("other", 1)}, "has another host than --address"),
        ({"peer_address": ("h", 7000)}, "cannot both use port 7000"),
    ],
)
def test_contradicting_settings_are_rejected(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "store": "127.0.0.1:1", "data_dir": tmp_path, "shared_dir": tmp_path / "s", "host": "h", "port": 7000,
        "peer_address": ("h", 0),
    }  # fmt: skip
    ServerSettings(**good)
    with pytest.raises(ConfigError, match=words):
        ServerSettings(**{**good, **change})


def test_only_addresses_of_this_machine_have_a_peer_port_by_default() -> None:
    """A port that accepts every process would be a door to the tablets."""
    assert default_peer_address("127.0.0.1", "kv") == ("127.0.0.1", 0)
    assert default_peer_address("localhost", "kv") == ("localhost", 0)
    assert default_peer_address("10.0.0.7", "kv") is None
    assert default_peer_address("127.0.0.1", "directories") is None


def test_links_can_be_cut_with_the_option_alone(opened: Opened) -> None:
    assert opened.tablets.admin_actions(("127.0.0.1", 4711)) == {}


def test_heartbeats_count_replicas_twice_a_second_at_most(opened: Opened) -> None:
    """Many heartbeats are sent while replicas are made; status always counts."""
    opened.tablets.listen()
    assert opened.tablets.recent_figures() is None
    opened.tablets.open("c")
    first = opened.tablets.recent_figures()
    assert first is not None
    opened.hosting.put("r1")
    assert opened.tablets.recent_figures() is first
    assert opened.tablets.figures().replicas == {"RUNNING": 1}
    opened.clock.advance(FIGURES_S)
    assert opened.tablets.recent_figures().replicas == {"RUNNING": 1}


def test_a_full_disk_is_a_problem_until_there_is_room(opened: Opened) -> None:
    assert opened.tablets.problem() == ""
    opened.tablets.listen()
    opened.tablets.open("c")
    opened.hosting.is_full = True
    assert opened.tablets.problem().startswith("a disk of the tablets is full")
    opened.hosting.is_full = False
    assert opened.tablets.problem() == ""


def test_alarms_of_the_tablets_reach_the_masters() -> None:
    """From there `rk status` shows them as problems."""
    phases = dict.fromkeys(Phase, 0)
    assert figures(phases, {}).alarms == []
    assert figures(phases, {}, TabletFigures(alarms=["replicas of tablet t differ"])).alarms == [
        "replicas of tablet t differ"
    ]
