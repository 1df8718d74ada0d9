"""One `rk server run` with the test as its master, on Apache ZooKeeper and on our store: steps, rejections,
sessions."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient

from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions import messages
from regions.messages import (
    CloseOrder,
    CloseRegions,
    ListOpen,
    OpenList,
    OpenOrder,
    OpenRegions,
    OrderOutcome,
    OrderResults,
)
from regions.records import znodes
from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TransitionRecord
from regionserver.workers import FOREGROUND_SLICE_S
from tests.e2e.masters import SESSION_MS, UpToDate
from tests.support.helpers import Process, ask_server, daemon, eventually, finished, free_ports, rk
from tests.support.slices import sets_slices, slice_s
from tests.support.stores import Store, open_store, our_store, store_kinds
from tests.support.zookeeper import zookeeper

pytestmark = pytest.mark.e2e
PATHS = znodes.Layout()
EPOCH = 0


@pytest.fixture(scope="module", params=store_kinds())
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def master(store: Store) -> Iterator[KazooClient]:
    """Return the store as a master finds it: its directories exist and are empty."""
    clear(store)
    client = UpToDate(store.hosts)
    client.start(60)
    for path in PATHS.parents():
        client.ensure_path(path)
    client.create(PATHS.epoch, b"{}")
    yield client
    client.stop()
    client.close()


def clear(store: Store) -> None:
    """Delete the znodes of the previous test. Sync once, and not before each of a thousand reads."""
    client = KazooClient(store.hosts, timeout=10)
    client.start(60)
    client.sync("/")
    if client.exists(znodes.DEFAULT_ROOT):
        client.delete(znodes.DEFAULT_ROOT, recursive=True)
    client.stop()
    client.close()


class Server:
    """A region server process, and a connection to it."""

    def __init__(self, process: Process, log: Path, master: KazooClient, admin_port: int) -> None:
        self.process = process
        self.log = log
        self.master = master
        self.admin_port = admin_port

    @property
    def record(self) -> ServerRecord:
        """Return the only registration, as soon as it exists."""

        def registered() -> ServerRecord:
            assert self.process.poll() is None, self.log.read_text()
            found = self.master.get_children(PATHS.servers)
            assert found, "nobody"
            [uuid] = found
            return znodes.decode_server(self.master.get(PATHS.server(uuid))[0])

        return eventually(registered, what="a registration")

    def call(self, message: Any, timeout_s: float = 90.0) -> Any:
        record = self.record
        return call_blocking((record.host, record.port), message, timeout_s, replies=messages.ServerReply)

    def order(self, kind: Any, orders: list[Any], *, epoch: int = EPOCH, wait_ms: int = 60_000) -> list[Any]:
        record = self.record
        command = kind(epoch, record.uuid, record.start_code, orders, wait_ms)
        reply: OrderResults = ask_server((record.host, record.port), command, 90.0, messages.ServerReply)
        return reply.results

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/ready", timeout=10) as reply:
                return bool(json.loads(reply.read())["ready"])
        except urllib.error.HTTPError:
            return False


def _command(hosts: str, folder: Path, port: int = 0, admin_port: int = 0, name: str = "data") -> list[str]:
    return rk(
        "server", "run", "--store", hosts,
        "--data-dir", str(folder / name), "--shared-dir", str(folder / "shared"),
        "--address", f"127.0.0.1:{port}", "--admin-address", f"127.0.0.1:{admin_port}",
        "--session-timeout-ms", str(SESSION_MS),
    )  # fmt: skip


@pytest.fixture
def server(store: Store, master: KazooClient, tmp_path: Path) -> Iterator[Server]:
    (admin_port,) = free_ports(1)
    with daemon(_command(store.hosts, tmp_path, admin_port=admin_port), log=tmp_path / "log") as process:
        running = Server(process, tmp_path / "log", master, admin_port)
        eventually(running.ready, what="the server ready")
        yield running


def test_a_server_of_this_machine_alone_interrupts_nobody_on_it(server: Server) -> None:
    """A server with a loopback address runs as SCHED_BATCH, with all its threads. Its reactor has short slices."""
    threads = [int(name) for name in os.listdir(f"/proc/{server.process.pid}/task")]
    assert len(threads) > 1
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
    if sets_slices():
        assert slice_s(server.process.pid) == FOREGROUND_SLICE_S


def raise_epoch(master: KazooClient, to: int) -> None:
    """Raise the epoch, as takeovers of masters do: the epoch is the version of its znode."""
    while master.set(PATHS.epoch, b"{}").version < to:
        pass


def offline(master: KazooClient, count: int, to: Incarnation, prefix: str = "r", **fields: Any) -> list[OpenOrder]:
    """Create regions with their OFFLINE transitions, as a master does."""
    orders = []
    master.ensure_path(PATHS.table_regions("t"))
    transaction = master.transaction()
    for number in range(count):
        region = RegionRecord("t", f"{prefix}{number:04}", start_key=f"{number:04}")
        record = TransitionRecord(region.region_id, "t", 0, RegionState.OFFLINE, destination=to, **fields)
        transaction.create(PATHS.region("t", region.region_id), znodes.encode(region))
        transaction.create(PATHS.transition(region.region_id, 0), znodes.encode(record))
        orders.append(OpenOrder(record, 0, region, 0))
    for result in transaction.commit():
        assert isinstance(result, str), result
    return orders


def transition(master: KazooClient, region_id: str) -> TransitionRecord:
    return znodes.decode_transition(master.get(PATHS.transition(region_id, 0))[0])


def owner(folder: Path) -> dict[str, Any]:
    """Return the content of the only mark in a region's directory."""
    (mark,) = folder.glob("owner-*")
    found: dict[str, Any] = json.loads(mark.read_text())
    return found


def test_registration_says_who_and_where(server: Server) -> None:
    """The registration has uuid, address, start code and admin port; the server is ready and healthy over HTTP."""
    record = server.record
    assert (record.host, record.rack, record.admin_port) == ("127.0.0.1", "default", server.admin_port)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics", timeout=10) as reply:
        assert "regionkeeper_server_serving 1.0" in reply.read().decode()


def test_a_batch_goes_from_offline_to_opened_and_back_to_closed(server: Server, tmp_path: Path) -> None:
    """250 regions: all steps are in the store, locations are written, directories are marked; then all are closed
    again."""
    me = server.record.incarnation
    orders = offline(server.master, 250, me)
    results = server.order(OpenRegions, orders)
    assert {result.outcome for result in results} == {OrderOutcome.DONE}
    assert [result.region_id for result in results] == [order.region.region_id for order in orders]
    record = transition(server.master, "r0007")
    assert (record.state, record.destination) == (RegionState.OPENED, me)
    region = znodes.decode_region(server.master.get(PATHS.region("t", "r0007"))[0])
    assert region.location(0).incarnation == me
    folder = tmp_path / "shared" / "regions" / "t" / "r0007"
    assert json.loads((folder / "region.json").read_text())["start_key"] == "0007"
    assert owner(folder)["uuid"] == me.uuid

    for order in orders:
        server.master.delete(PATHS.transition(order.region.region_id, 0))
    closes = [CloseOrder(order.region.region_id, "t", 0, reason="test") for order in orders]
    raise_epoch(server.master, 3)
    results = server.order(CloseRegions, closes, epoch=3)
    assert {result.outcome for result in results} == {OrderOutcome.DONE}
    record = transition(server.master, "r0007")
    assert (record.state, record.source, record.epoch) == (RegionState.CLOSED, me, 3)


def test_one_bad_region_does_not_hold_the_others(server: Server) -> None:
    """A multi that is rejected because of one region is divided."""
    orders = offline(server.master, 20, server.record.incarnation)
    server.master.delete(PATHS.transition("r0003", 0))
    outcomes = [result.outcome for result in server.order(OpenRegions, orders)]
    assert outcomes.pop(3) is OrderOutcome.REFUSED
    assert set(outcomes) == {OrderOutcome.DONE}


def test_commands_of_the_past_and_for_others_are_refused(server: Server) -> None:
    """FN-01, FN-08, FW-11: lower epoch, another uuid, another start code."""
    raise_epoch(server.master, 7)
    server.order(OpenRegions, [], epoch=7)
    record = server.record
    for command, code in (
        (OpenRegions(6, record.uuid, record.start_code, []), messages.STALE_EPOCH),
        (OpenRegions(7, "somebody", record.start_code, []), messages.WRONG_SERVER),
        (CloseRegions(7, record.uuid, record.start_code - 1, []), messages.WRONG_SERVER),
    ):
        with pytest.raises(RpcError) as caught:
            server.call(command)
        assert caught.value.code == code


def test_an_epoch_counts_once_the_store_confirms_it(server: Server) -> None:
    """Any process that can connect could claim an epoch; then the server would execute no orders of the real master."""
    server.order(OpenRegions, offline(server.master, 2, server.record.incarnation), epoch=0)
    for epoch in (1, (1 << 31) - 1, 1 << 62):
        with pytest.raises(RpcError) as caught:
            server.order(OpenRegions, [], epoch=epoch)
        assert caught.value.code == messages.UNKNOWN_EPOCH
    server.order(OpenRegions, offline(server.master, 2, server.record.incarnation, "s"), epoch=0)
    raise_epoch(server.master, 1)
    server.order(OpenRegions, [], epoch=1)
    with pytest.raises(RpcError) as caught:
        server.order(OpenRegions, [], epoch=0)
    assert caught.value.code == messages.STALE_EPOCH


def test_the_epoch_of_the_store_is_known_from_the_start(store: Store, master: KazooClient, tmp_path: Path) -> None:
    """A server that has just started also rejects an old master."""
    for _ in range(3):
        master.set(PATHS.epoch, b"{}")
    (admin_port,) = free_ports(1)
    with daemon(_command(store.hosts, tmp_path, admin_port=admin_port), log=tmp_path / "log") as process:
        server = Server(process, tmp_path / "log", master, admin_port)
        eventually(server.ready, what="a lease: without one it refuses everybody")
        with pytest.raises(RpcError) as caught:
            server.order(OpenRegions, [], epoch=2)
        assert caught.value.code == messages.STALE_EPOCH


def test_a_failed_open_is_reported_and_remembered(server: Server, tmp_path: Path) -> None:
    """X11: the master receives the reason at once, and again when it repeats the order."""
    orders = offline(server.master, 1, server.record.incarnation)
    (tmp_path / "shared" / "regions" / "t").write_text("a file where a directory should be")
    for _ in range(2):
        (result,) = server.order(OpenRegions, orders)
        assert result.outcome is OrderOutcome.FAILED
        assert "directory" in result.error.lower()
    assert transition(server.master, "r0000").state is RegionState.OPENING
    reply: OpenList = server.call(ListOpen())
    assert [one.state for one in reply.replicas] == ["FAILED"]


def test_sigterm_closes_the_regions_and_unregisters_at_once(server: Server) -> None:
    """The masters see the server go before any timeout; its locks are released."""
    server.order(OpenRegions, offline(server.master, 5, server.record.incarnation))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert server.master.get_children(PATHS.servers) == []


def test_a_restart_takes_its_own_place_at_once_under_a_new_start_code(
    store: Store, master: KazooClient, tmp_path: Path
) -> None:
    """kill -9, then a start: the leftover registration is removed long before its session ends."""
    with daemon(_command(store.hosts, tmp_path), log=tmp_path / "log") as process:
        first = Server(process, tmp_path / "log", master, 0).record
    with daemon(_command(store.hosts, tmp_path), log=tmp_path / "log2") as process:
        server = Server(process, tmp_path / "log2", master, 0)
        eventually(lambda: server.record.start_code > first.start_code, what="the new start registered")
        assert server.record.uuid == first.uuid


def test_an_expired_session_closes_everything_and_rejoins_under_a_new_start_code(server: Server) -> None:
    """The server is frozen beyond its session: afterwards it serves nothing, closes all, and registers under a new
    start code."""
    before = server.record
    server.order(OpenRegions, offline(server.master, 5, before.incarnation))
    server.process.send_signal(signal.SIGSTOP)
    eventually(lambda: not server.master.get_children(PATHS.servers), what="the session expired")
    server.process.send_signal(signal.SIGCONT)
    eventually(lambda: server.record.start_code > before.start_code, what="rejoined")
    eventually(server.ready, what="ready again")
    reply: OpenList = server.call(ListOpen())
    assert reply.replicas == []


def test_a_frozen_servers_hold_is_broken_only_after_its_session(server: Server, store: Store, tmp_path: Path) -> None:
    """At most one owner: the lock holds while its holder is registered, and no longer."""
    first = server.record
    server.order(OpenRegions, offline(server.master, 1, first.incarnation))
    with daemon(_command(store.hosts, tmp_path, name="second"), log=tmp_path / "log2") as process:
        eventually(lambda: len(server.master.get_children(PATHS.servers)) == 2, what="two servers")
        (uuid,) = set(server.master.get_children(PATHS.servers)) - {first.uuid}
        second = znodes.decode_server(server.master.get(PATHS.server(uuid))[0])

        def open_at_second(version: int, attempt: int) -> Any:
            record = TransitionRecord("r0000", "t", 0, RegionState.OFFLINE, first.incarnation, second.incarnation,
                                      attempt=attempt)  # fmt: skip
            stat = server.master.set(PATHS.transition("r0000", 0), znodes.encode(record), version)
            data, region_stat = server.master.get(PATHS.region("t", "r0000"))
            order = OpenOrder(record, stat.version, znodes.decode_region(data), region_stat.version)
            command = OpenRegions(EPOCH, second.uuid, second.start_code, [order], 60_000)
            reply: OrderResults = ask_server((second.host, second.port), command, 90.0, OrderResults)
            return reply.results[0]

        result = open_at_second(2, 1)
        assert result.outcome is OrderOutcome.FAILED
        assert str(first.incarnation) in result.error

        server.process.send_signal(signal.SIGSTOP)
        eventually(lambda: server.master.get_children(PATHS.servers) == [second.uuid], what="the first one expired")
        assert open_at_second(4, 2).outcome is OrderOutcome.DONE
        server.process.send_signal(signal.SIGCONT)
        eventually(lambda: len(server.master.get_children(PATHS.servers)) == 2, what="the first one is back")
        assert owner(tmp_path / "shared" / "regions" / "t" / "r0000")["uuid"] == second.uuid
        assert process.poll() is None


def test_a_deleted_registration_fences_the_server(server: Server) -> None:
    """Deleting the registration gives the regions away: the server closes all of them and registers anew."""
    before = server.record
    server.order(OpenRegions, offline(server.master, 3, before.incarnation))
    server.master.delete(PATHS.server(before.uuid))
    eventually(lambda: server.record.start_code > before.start_code, what="rejoined")
    reply: OpenList = server.call(ListOpen())
    assert reply.replicas == []


def test_without_the_store_the_lease_ends_and_comes_back(tmp_path: Path) -> None:
    """The store is away for longer than the lease but not than the session: the server stops serving, then
    continues."""
    with zookeeper(tmp_path, options={"maxSessionTimeout": "60000"}) as store:
        client = UpToDate(store.hosts)
        client.start(60)
        (admin_port,) = free_ports(1)
        with daemon(_command(store.hosts, tmp_path, admin_port=admin_port), log=tmp_path / "log") as process:
            server = Server(process, tmp_path / "log", client, admin_port)
            eventually(server.ready, what="ready")
            store.stop()
            eventually(lambda: not server.ready(), what="not serving")
            assert process.poll() is None
            store.start()
            eventually(server.ready, what="serving again")
        client.stop()
        client.close()


def test_opens_survive_the_death_of_the_stores_leader(tmp_path: Path) -> None:
    """Pending orders are finished after the leader dies; the server keeps its session and its start code."""
    with our_store(tmp_path / "store") as store:
        client = UpToDate(store.hosts)
        client.start(60)
        for path in PATHS.parents():
            client.ensure_path(path)
        client.create(PATHS.epoch, b"{}")
        (admin_port,) = free_ports(1)
        command = _command(store.hosts, tmp_path, admin_port=admin_port)
        with daemon(command, log=tmp_path / "log") as process:
            server = Server(process, tmp_path / "log", client, admin_port)
            eventually(server.ready, what="ready")
            before = server.record
            orders = offline(client, 400, before.incarnation)
            started = server.order(OpenRegions, orders, wait_ms=1)
            assert any(result.outcome is OrderOutcome.STARTED for result in started)
            store.kill(store.wait_leader())

            def all_open() -> bool:
                results = server.order(OpenRegions, orders)
                assert {result.outcome for result in results} <= {OrderOutcome.DONE, OrderOutcome.STARTED}
                return {result.outcome for result in results} == {OrderOutcome.DONE}

            eventually(all_open, what="all opened")
            assert server.record == before
        client.stop()
        client.close()


class TestRefusesToStart:
    """A refused start prints one clear line, never a traceback."""

    def line(self, command: list[str]) -> str:
        done = finished(command, 120)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def test_port_taken(self, store: Store, tmp_path: Path) -> None:
        """Another process listens on the port."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            assert f"cannot listen on address 127.0.0.1:{port}" in self.line(_command(store.hosts, tmp_path, port=port))

    def test_data_directory_in_use(self, server: Server, store: Store, tmp_path: Path) -> None:
        """Another server uses the same directory."""
        assert server.record
        assert f"in use by another region server, process {server.process.pid}" in self.line(
            _command(store.hosts, tmp_path)
        )

    def test_shared_directory_not_writable(self, store: Store, tmp_path: Path) -> None:
        """A file is in place of the directory: missing permissions would not stop root."""
        (tmp_path / "shared").write_text("")
        assert "shared directory" in self.line(_command(store.hosts, tmp_path))

    def test_address_that_tells_nobody(self, store: Store, tmp_path: Path) -> None:
        """0.0.0.0 is an address to listen on, not to connect to."""
        command = [part.replace("127.0.0.1:0", "0.0.0.0:0") for part in _command(store.hosts, tmp_path)]
        command.append("--insecure")
        assert "no other process can connect" in self.line(command)

    def test_unreachable_store_is_not_the_end(self, tmp_path: Path) -> None:
        """The server keeps trying and logs it."""
        (port,) = free_ports(1)
        command = rk("server", "run", "--store", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"),
                     "--shared-dir", str(tmp_path / "shared"), "--address", "127.0.0.1:0")  # fmt: skip
        log = tmp_path / "log"
        with daemon(command, log=log) as process:
            eventually(lambda: "; retrying" in log.read_text(), what="the complaint")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_records_are_json_that_any_tool_can_read(server: Server) -> None:
    """The registration is plain JSON."""
    data = server.master.get(PATHS.server(server.record.uuid))[0]
    assert msgspec.json.decode(data)["uuid"] == server.record.uuid
