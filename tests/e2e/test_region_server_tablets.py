"""Three `rk server run` with tablets and the test as their master: rows survive the death of a server, of the store,
and of both.

Every table has one tablet with three replicas. The test writes the records that a master writes, and sends the orders.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions import messages
from regions.messages import (
    CloseOrder,
    ClosePurpose,
    CloseRegions,
    MemberEndpoint,
    OpenOrder,
    OpenRegions,
    OrderOutcome,
    OrderResult,
    OrderResults,
    ReplicaList,
    ServerStatus,
    ShowReplicas,
    TabletClosing,
    TabletOpening,
    TabletRole,
)
from regions.records import znodes
from regions.records.formats import KNOWN
from regions.records.members import Member
from regions.records.model import (
    ClusterRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TabletState,
    TransitionRecord,
)
from regionserver.tablets.commands import DONE, PutRow
from regionserver.tablets.messages import (
    LeaderElsewhere,
    TabletRead,
    TabletReply,
    TabletScan,
    TabletValues,
    TabletWrite,
    TabletWritten,
)
from tests.e2e.masters import SESSION_MS, UpToDate
from tests.support.helpers import Process, ask_server, daemon, eventually, rk
from tests.support.stores import OurStore, our_store

pytestmark = pytest.mark.e2e
PATHS = znodes.Layout()
CLUSTER = "c0ffee00-0000-4000-8000-000000000001"
EPOCH = 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OurStore]:
    with our_store(tmp_path / "store") as running:
        yield running


class Machine:
    """One server's machine: its directory, and the process that runs on it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.process: Process | None = None
        self.address = ("", 0)
        #: Start code of the latest registration, and of the last one of the former process.
        self.latest = self.former = 0
        self._running = ExitStack()

    @property
    def directory(self) -> Path:
        return self.cluster.folder / self.name

    def start(self, *options: str) -> None:
        command = rk(
            "server", "run", "--store", self.cluster.hosts,
            "--data-dir", str(self.directory), "--shared-dir", str(self.cluster.folder / "shared"),
            "--address", f"127.0.0.1:{self.address[1]}", "--admin-address", "127.0.0.1:0",
            "--session-timeout-ms", str(SESSION_MS), "--handover-s", "0", *options,
        )  # fmt: skip
        self._running = ExitStack()
        self.process = self._running.enter_context(daemon(command, log=self.log))

    @property
    def log(self) -> Path:
        return self.cluster.folder / f"{self.name}.log"

    def kill(self) -> None:
        """Send SIGKILL, and wait until the whole process group has ended."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._running.close()
        self.process, self.former = None, self.latest

    def registered(self) -> ServerRecord:
        """Wait for the registration of the running process."""

        def found() -> ServerRecord:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            uuid = json.loads((self.directory / "instance.json").read_text())["uuid"]
            record = znodes.decode_server(self.cluster.master.get(PATHS.server(uuid))[0])
            assert record.start_code > self.former, "that of the former process"
            return record

        record = eventually(found, what=f"{self.name} registered")
        self.latest, self.address = record.start_code, (record.host, record.port)
        return record

    def ask(self, message: Any, timeout_s: float = 30.0, replies: Any = None) -> Any:
        return call_blocking(self.address, message, timeout_s, replies=replies or (messages.ServerReply | TabletReply))

    def close(self) -> None:
        self._running.close()


class Cluster:
    """Three machines and the store, with the test as master."""

    def __init__(self, hosts: str, folder: Path, master: KazooClient) -> None:
        self.hosts = hosts
        self.folder = folder
        self.master = master
        self.machines = [Machine(self, f"s{number}") for number in (1, 2, 3)]
        self.numbers = itertools.count(1)

    def lose_store(self, store: OurStore) -> None:
        """Kill every node of the store."""
        self.master.stop()
        self.master.close()
        for node in range(len(store.processes)):
            store.kill(node)

    def running(self) -> list[Machine]:
        return [one for one in self.machines if one.process is not None]

    def orders(self, region_id: str, *, must_exist: bool = False) -> list[tuple[Machine, OpenOrder]]:
        """Write a tablet's record and the OFFLINE of each member; return the orders by machine."""
        records = [one.registered() for one in self.machines]
        members = tuple(Member(number, one.uuid) for number, one in enumerate(records, 1))
        ends = tuple(MemberEndpoint(number, one.uuid, one.host, one.peer_port) for number, one in enumerate(records, 1))
        region = RegionRecord("t", region_id, state=TabletState.CREATING, members=members, next_number=4)
        self.master.ensure_path(PATHS.table_regions("t"))
        self.master.create(PATHS.region("t", region_id), znodes.encode(region))
        found = []
        for machine, record, member in zip(self.machines, records, members, strict=True):
            offline = TransitionRecord(
                region_id, "t", member.number, RegionState.OFFLINE, destination=record.incarnation, begun=must_exist
            )
            self.master.create(PATHS.transition(region_id, member.number), znodes.encode(offline))
            found.append((machine, OpenOrder(offline, 0, region, 0, tablet=TabletOpening(ends, must_exist=must_exist))))
        return found

    def order(self, machine: Machine, kind: Any, order: Any, wait_ms: int = 20_000) -> OrderResult:
        record = machine.registered()
        command = kind(EPOCH, record.uuid, record.start_code, [order], wait_ms, CLUSTER)
        reply: OrderResults = ask_server(machine.address, command, 30.0, messages.ServerReply | TabletReply)
        return reply.results[0]

    def create(self, region_id: str = "r1") -> None:
        """Create a tablet, as a master does."""
        for machine, order in self.orders(region_id):
            result = self.order(machine, OpenRegions, order)
            assert result.outcome is OrderOutcome.DONE, result
            number = order.transition.replica
            assert self.transition(region_id, number).state is RegionState.OPENED
            self.master.delete(PATHS.transition(region_id, number))

    def transition(self, region_id: str, number: int) -> TransitionRecord:
        return znodes.decode_transition(self.master.get(PATHS.transition(region_id, number))[0])

    def eventually_answered(self, request: Any, machines: list[Machine] | None = None) -> Any:
        """Ask one server after the other until the leader has answered."""

        def answered() -> Any:
            why: list[object] = []
            for machine in machines or self.running():
                try:
                    found = machine.ask(request, 5.0)
                except (RpcError, OSError) as error:
                    why.append(error)
                    continue
                if not isinstance(found, LeaderElsewhere):
                    return found
                why.append(found)
            raise AssertionError(why)

        return eventually(answered, what=f"an answer to {request}")

    def put(self, region_id: str, **rows: str) -> TabletWritten:
        number = next(self.numbers)
        operations = [PutRow(key, value.encode()) for key, value in rows.items()]
        written = self.eventually_answered(TabletWrite(region_id, "test", number, number, _now_ms(), list(operations)))
        assert isinstance(written, TabletWritten)
        assert written.outcome.code == DONE
        return written

    def get(self, region_id: str, *keys: str) -> list[str | None]:
        found = self.eventually_answered(TabletRead(region_id, list(keys)))
        assert isinstance(found, TabletValues)
        return [None if value is None else value.decode() for value in found.values]

    def leader(self, region_id: str) -> Machine:
        """Wait until the servers report a leader that has committed an entry of its term."""

        def leads() -> Machine:
            for machine in self.running():
                shown: ReplicaList = machine.ask(ShowReplicas(tablets=[region_id]))
                if any(one.report.leads for one in shown.replicas):
                    return machine
            raise AssertionError("nobody leads")

        return eventually(leads, what="a leader")


@pytest.fixture
def master(store: OurStore) -> Iterator[KazooClient]:
    client = UpToDate(store.hosts)
    client.start(60)
    for path in PATHS.parents():
        client.ensure_path(path)
    client.create(PATHS.epoch, b"{}")
    client.create(PATHS.cluster, znodes.encode(ClusterRecord(CLUSTER, KNOWN)))
    yield client
    client.stop()
    client.close()


@pytest.fixture
def cluster(store: OurStore, master: KazooClient, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(store.hosts, tmp_path, master)
    with ExitStack() as stack:
        for machine in found.machines:
            stack.callback(machine.close)
            machine.start()
        for machine in found.machines:
            machine.registered()
        yield found


def test_rows_survive_the_leaders_server(cluster: Cluster) -> None:
    """Ordered, written and read; then kill -9 of the leader's server; rows are read and written again."""
    cluster.create()
    cluster.put("r1", a="1", b="2")
    assert cluster.get("r1", "a", "b", "c") == ["1", "2", None]
    leader = cluster.leader("r1")
    leader.kill()
    assert cluster.get("r1", "a", "b") == ["1", "2"]
    cluster.put("r1", c="3")
    leader.start()
    leader.registered()
    # Read from the server that was away: its rows have the missed entry.
    written = cluster.put("r1", d="4")
    late = TabletRead("r1", ["a", "b", "c", "d"], written.outcome.index)
    found = cluster.eventually_answered(late, [leader])
    assert found.values == [b"1", b"2", b"3", b"4"]


def test_a_server_that_takes_tablets_announces_it(cluster: Cluster) -> None:
    """Its registration names the port for members; /status and /metrics have figures."""
    machine = cluster.machines[0]
    record = machine.registered()
    assert (record.tablets, record.disk_free > 0) == (True, True)
    socket.create_connection((record.host, record.peer_port), 10).close()
    cluster.create()
    cluster.put("r1", a="1")
    status: ServerStatus = eventually(lambda: _with_tablets(machine))
    assert status.tablets is not None
    assert status.tablets.replicas == {"RUNNING": 1}
    assert status.tablets.entries >= 1
    with urllib.request.urlopen(f"http://127.0.0.1:{record.admin_port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    assert 'regionkeeper_server_tablets{state="RUNNING"} 1.0' in text
    assert "regionkeeper_server_tablet_log_syncs" in text


def _with_tablets(machine: Machine) -> ServerStatus:
    status: ServerStatus = machine.ask(messages.GetServerStatus())
    assert status.tablets is not None
    return status


def test_all_servers_restart_while_the_store_is_away(cluster: Cluster, store: OurStore) -> None:
    """kill -9 of all processes; the servers come back without the store, find each other, elect leaders, and answer."""
    cluster.create()
    cluster.put("r1", a="1")
    for machine in cluster.machines:
        machine.kill()
    cluster.lose_store(store)
    for machine in cluster.machines:
        machine.start()
    assert cluster.get("r1", "a") == ["1"]
    cluster.put("r1", b="2")
    assert cluster.get("r1", "a", "b") == ["1", "2"]


def test_a_lost_session_touches_no_tablet(cluster: Cluster, store: OurStore) -> None:
    """The store dies under the servers. Shared regions would stop; tablets still answer, and /health stays 200."""
    cluster.create()
    cluster.put("r1", a="1")
    ports = [machine.registered().admin_port for machine in cluster.machines]
    cluster.lose_store(store)
    deadline = time.monotonic() + 3 * SESSION_MS / 1000
    number = 0
    while time.monotonic() < deadline:
        number += 1
        cluster.put("r1", a=str(number))
        assert cluster.get("r1", "a") == [str(number)]
    for port in ports:
        said = eventually(lambda at=port: degraded(at), what="the store is missed")  # type: ignore[misc]
        assert said["healthy"]
        assert "no session with the store" in said["degraded"][0]


def degraded(admin_port: int) -> dict[str, Any]:
    """Return the degradation that /health reports. Fail on 503 or without one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/health", timeout=30) as answer:
        said: dict[str, Any] = json.loads(answer.read())
    assert said["degraded"]
    return said


def test_a_replica_is_not_made_again_after_a_lost_disk(cluster: Cluster) -> None:
    """must_exist: a server without the superblock has lost it, and rejects the order."""
    (machine, order), *_ = cluster.orders("r1", must_exist=True)
    result = cluster.order(machine, OpenRegions, order)
    assert result.outcome is OrderOutcome.REFUSED
    assert "no memory" in result.error
    assert cluster.transition("r1", 1).state is RegionState.OFFLINE
    assert machine.ask(ShowReplicas()).replicas == []


def test_a_server_killed_between_opening_and_opened_makes_no_replica_twice(cluster: Cluster) -> None:
    """OPENING is in the store; the next start gets the order again, and finds the replica or rejects the order. The
    replica is never made twice."""
    found = cluster.orders("r1")
    machine, order = found[0]
    first = threading.Thread(target=lambda: _quietly(lambda: cluster.order(machine, OpenRegions, order)))
    first.start()
    eventually(lambda: _is(cluster.transition("r1", 1).state, RegionState.OPENING, RegionState.OPENED))
    machine.kill()
    first.join()
    for other, its in found[1:]:
        assert cluster.order(other, OpenRegions, its).outcome is OrderOutcome.DONE
    machine.start()
    record = machine.registered()
    data, stat = cluster.master.get(PATHS.transition("r1", 1))
    before = znodes.decode_transition(data)
    again = TransitionRecord("r1", "t", 1, RegionState.OFFLINE, destination=record.incarnation, begun=True, epoch=EPOCH)
    version = cluster.master.set(PATHS.transition("r1", 1), znodes.encode(again), stat.version).version
    assert order.tablet is not None
    repeated = OpenOrder(again, version, order.region, 0, tablet=TabletOpening(order.tablet.initial, must_exist=True))
    result = cluster.order(machine, OpenRegions, repeated)
    is_there = (machine.directory / "tablet-meta" / "r1").exists()
    assert result.outcome is (OrderOutcome.DONE if is_there else OrderOutcome.REFUSED), (before, result)
    cluster.put("r1", a="1")
    assert cluster.get("r1", "a") == ["1"]


def _quietly(what: Callable[[], object]) -> None:
    with suppress(RpcError, OSError):
        what()


def _is(found: object, *wanted: object) -> bool:
    assert found in wanted, found
    return True


def test_a_replica_rests_wakes_and_is_deleted(cluster: Cluster) -> None:
    """The replica of a disabled table rests with its files and runs again; after the deletion only the quarantine is
    left."""
    cluster.create()
    cluster.put("r1", a="1")
    machine = cluster.machines[0]
    rest = CloseOrder("r1", "t", 1, tablet=TabletClosing(ClosePurpose.REST))
    assert cluster.order(machine, CloseRegions, rest).outcome is OrderOutcome.DONE
    assert cluster.transition("r1", 1).state is RegionState.CLOSED
    (own,) = machine.ask(ShowReplicas()).replicas
    assert (own.report.state, own.report.role) == ("RESTING", TabletRole.NONE)
    assert cluster.get("r1", "a") == ["1"]

    cluster.master.delete(PATHS.transition("r1", 1))
    record = machine.registered()
    data, stat = cluster.master.get(PATHS.region("t", "r1"))
    region = znodes.decode_region(data)
    offline = TransitionRecord("r1", "t", 1, RegionState.OFFLINE, destination=record.incarnation, begun=True)
    cluster.master.create(PATHS.transition("r1", 1), znodes.encode(offline))
    ends = tuple(MemberEndpoint(one.number, one.uuid, "", 0) for one in region.members)
    wake = OpenOrder(offline, 0, region, stat.version, tablet=TabletOpening(ends, must_exist=True))
    assert cluster.order(machine, OpenRegions, wake).outcome is OrderOutcome.DONE
    cluster.master.delete(PATHS.transition("r1", 1))
    written = cluster.put("r1", a="2")
    found = cluster.eventually_answered(TabletRead("r1", ["a"], written.outcome.index), [machine])
    assert found.values == [b"2"]

    for number, one in enumerate(cluster.machines, 1):
        gone = CloseOrder("r1", "t", number, tablet=TabletClosing(ClosePurpose.DELETE))
        assert cluster.order(one, CloseRegions, gone).outcome is OrderOutcome.DONE
        assert one.ask(ShowReplicas()).replicas == []
        assert not (one.directory / "tablet-meta" / "r1").exists()
        assert list((one.directory / "quarantine").iterdir())


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 0xFFFFFFFF) + b"x" * 1000, bytes(range(256)) * 300],
    ids=["nothing", "zeros", "http", "huge", "bytes"],
)
def test_foreign_frames_cost_their_link_alone(cluster: Cluster, garbage: bytes) -> None:
    """The frames arrive on the port for members. The server and its tablets continue."""
    cluster.create()
    cluster.put("r1", a="1")
    for machine in cluster.machines:
        record = machine.registered()
        with socket.create_connection((record.host, record.peer_port), 10) as link:
            try:
                link.sendall(garbage)
                link.shutdown(socket.SHUT_WR)
                link.settimeout(30)
                while link.recv(4096):
                    pass
            except OSError:
                pass
    assert cluster.get("r1", "a") == ["1"]
    assert all(machine.process is not None and machine.process.poll() is None for machine in cluster.machines)


def test_requests_beyond_their_limits_are_rejected(cluster: Cluster) -> None:
    cluster.create()
    cluster.put("r1", a="1")
    leader = cluster.leader("r1")
    for request, code in (
        (TabletRead("elsewhere", ["a"]), "no_replica"),
        (TabletRead("r1", []), "bad_request"),
        (TabletScan("r1", rows_max=0), "bad_request"),
        (TabletWrite("r1", "w", 1, 1, 0, []), "bad_request"),
        (TabletWrite("r1", "w", 1, 1, _now_ms() + 3_600_000, [PutRow("a", b"")]), "bad_request"),
    ):
        with pytest.raises(RpcError) as caught:
            leader.ask(request)
        assert caught.value.code == code, request
    assert cluster.get("r1", "a") == ["1"]


def test_copied_and_incomplete_directories_are_rejected(cluster: Cluster) -> None:
    """A copy of a directory, and one without its log: one sentence, status 4, nothing changed. The other servers
    continue."""
    cluster.create()
    cluster.put("r1", a="1")
    machine = cluster.machines[2]
    machine.kill()
    original = machine.directory
    shutil.copytree(original, original.with_name("copy"))
    machine.name = "copy"
    assert "is a copy" in _refusal(machine)
    machine.name = "s3"
    logs = original / "wals"
    logs.rename(original / "elsewhere")
    before = _content(original)
    assert "this server has had tablets" in _refusal(machine)
    assert _content(original) == before
    (original / "elsewhere").rename(logs)
    machine.start()
    machine.registered()
    written = cluster.put("r1", b="2")
    found = cluster.eventually_answered(TabletRead("r1", ["a", "b"], written.outcome.index), [machine])
    assert found.values == [b"1", b"2"]


def _refusal(machine: Machine) -> str:
    """Return the last line of a server that does not start."""
    machine.start()
    process = machine.process
    assert process is not None
    assert process.wait(60) != 0
    machine.kill()
    text = machine.log.read_text()
    assert "Traceback" not in text
    return text.strip().splitlines()[-1]


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("folder", ["tablet-meta", "consensus-meta"])
def test_a_flipped_byte_burns_one_number(cluster: Cluster, folder: str) -> None:
    """The replica is LOST with a reason; its server and the tablet continue, and nothing is deleted."""
    cluster.create()
    cluster.put("r1", a="1")
    machine = cluster.machines[0]
    machine.kill()
    file = machine.directory / folder / "r1"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    machine.start()
    machine.registered()
    (own,) = machine.ask(ShowReplicas()).replicas
    assert (own.report.state, bool(own.report.reason)) == ("LOST", True)
    assert list((machine.directory / "quarantine").iterdir())
    assert cluster.get("r1", "a") == ["1"]
    cluster.put("r1", b="2")


def test_servers_link_only_with_the_same_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Servers that prove the same secret elect a leader; a server with another secret cannot link."""
    cluster.create()
    cluster.put("r1", a="1")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file, text in ((right, "a secret of all servers"), (wrong, "another secret than theirs")):
        file.write_text(text)
        file.chmod(0o600)
    for machine, file in zip(cluster.machines, (right, right, wrong), strict=True):
        machine.kill()
        machine.start("--peer-secret-file", str(file))
        machine.registered()
    assert cluster.get("r1", "a") == ["1"]
    cluster.put("r1", b="2")
    assert cluster.leader("r1") is not cluster.machines[2]
    (outside,) = cluster.machines[2].ask(ShowReplicas()).replicas
    assert outside.commit_index < cluster.put("r1", c="3").outcome.index


def test_sigterm_hands_leaderships_over(cluster: Cluster) -> None:
    """Another member leads before the process has ended."""
    cluster.create()
    cluster.put("r1", a="1")
    leader = cluster.leader("r1")
    process = leader.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    leader.kill()
    assert cluster.get("r1", "a") == ["1"]


def test_a_server_without_tablets_fails_orders_for_them(cluster: Cluster, tmp_path: Path) -> None:
    """With --no-tablets a server registers none, and fails an order for one."""
    machine = cluster.machines[0]
    found = cluster.orders("r1")
    machine.kill()
    machine.start("--no-tablets")
    record = machine.registered()
    assert not record.tablets
    order = found[0][1]
    to = Incarnation(record.uuid, record.start_code)
    offline = TransitionRecord("r1", "t", 1, RegionState.OFFLINE, destination=to)
    again = OpenOrder(offline, 0, order.region, 0, tablet=order.tablet)
    result = cluster.order(machine, OpenRegions, again)
    assert (result.outcome, "takes no tablets" in result.error) == (OrderOutcome.FAILED, True)


def _now_ms() -> int:
    return int(time.time() * 1000)
