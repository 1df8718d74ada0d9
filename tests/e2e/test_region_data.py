"""Rows of regions on real processes: moves, killed and frozen owners, a cut link, the command line, the example."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.drill.load import Load
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import PREAMBLE, Failed, Payload, Request, RpcError, RpcFrameReader, encode_body, encode_frame
from regions import messages as ms
from regions.records.model import ServerRecord
from regionserver.client import Change, RegionClient, connect
from regionserver.kv.messages import KvChange, KvRead, KvValues, KvWrite
from regionserver.request_gate import Place
from tests.e2e.masters import SESSION_MS, Cluster, Process, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, daemon, eventually, free_ports, rk

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
SPLITS = [f"k{number:02d}" for number in range(1, 12)]
TABLE = "rows"
PACKAGES = ROOT / "examples" / "debian-packages.csv.gz"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return one master, three servers and a table of 12 regions. Every test leaves all of them running."""
    folder = tmp_path_factory.mktemp("data")
    with own_store(folder / "store", 1) as hosts, cluster_on(hosts, folder / "cluster", masters=1) as running:
        active = running.wait_active()
        running.wait_servers(3)
        running.ask(active, ms.CreateTable(TABLE, SPLITS, wait_ms=60_000), ms.Tables)
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RegionClient]:
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as made:
        yield made


def place_of(client: RegionClient, key: str) -> Place:
    """Return the server that has the region of `key` open."""

    def found() -> Place | None:
        region = client.locator.region_of(TABLE, key)
        assert region is not None
        return Place.of(client.locator.refresh(TABLE, region.region_id) or region)

    return eventually(found, what="the region open")  # type: ignore[return-value]


def owner_of(cluster: Cluster, client: RegionClient, key: str) -> Process:
    def found() -> list[Process]:
        uuid = place_of(client, key).server
        return [one for one in cluster.servers if cluster.uuid_of(one) == uuid]

    [owner] = eventually(found, what="the server that has the region open")
    return owner


def whole(cluster: Cluster) -> None:
    """Wait until three servers run and every region is open."""
    cluster.wait_servers(3)
    cluster.wait_settled()


def test_rows_follow_their_regions(cluster: Cluster, client: RegionClient) -> None:
    """Put, get, delete, and scan over all regions. Each region moves with its rows, and the client finds it."""
    rows = {f"k{number:03d}": f"value {number}".encode() for number in range(120)}
    assert client.write(TABLE, [Change(key, value) for key, value in rows.items()]) == 120
    for region in sorted(cluster.owners()):
        cluster.ask_active(ms.MoveRegion(region, wait_ms=60_000), ms.Accepted)
    assert dict(client.scan(TABLE)) == rows
    client.put(TABLE, "k050", b"new")
    client.delete(TABLE, "k051")
    assert (client.get(TABLE, "k050"), client.get(TABLE, "k051")) == (b"new", None)
    assert [key for key, _ in client.scan(TABLE, "k049", "k06", rows_max=3)] == ["k049", "k050", "k052"]
    client.write(TABLE, [Change(key, None) for key in rows])
    assert list(client.scan(TABLE)) == []


def test_a_killed_owner_loses_no_acknowledged_write(cluster: Cluster, client: RegionClient) -> None:
    """RF-01 to RF-03 for rows: SIGKILL under load; another server opens the same files."""
    load = Load(client, TABLE, rate_per_s=150)
    load.start()
    victim = owner_of(cluster, client, "k05")
    former = place_of(client, "k05").server
    victim.kill()
    eventually(lambda: place_of(client, "k05").server != former, what="the region is open elsewhere")
    before = load.counts["write ok"]
    eventually(lambda: load.counts["write ok"] > before + 300 and not load.busy, what="writes everywhere again")
    report = load.stop()
    victim.start()
    assert report.is_sound, report.violations
    assert report.keys_checked == 4 * 12
    assert report.regions_disturbed > 0
    whole(cluster)


class _Socket:
    """A connection with waiting requests: sent while their server is frozen."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.sendall(PREAMBLE)
        self.reader = RpcFrameReader()
        self.received: list[Payload] = []

    def send(self, number: int, message: object) -> None:
        self.socket.sendall(encode_frame(Request(number, encode_body(message))))  # type: ignore[arg-type]

    def answers(self, count: int) -> list[Payload]:
        while len(self.received) < count:
            data = self.socket.recv(65536)
            assert data, "the server closed the connection"
            self.received += self.reader.feed(data)
        return self.received


def test_a_frozen_owner_serves_nothing_of_its_old_lease(cluster: Cluster, client: RegionClient) -> None:
    """Freeze the server amid writes for longer than its lease, then continue it. It rejects the requests in its socket
    buffer, another server has its files, and no acknowledged write is lost. (The lock on the region, the lease and the
    Place of the files each prevent a late write; this test does not distinguish them.)"""
    load = Load(client, TABLE, rate_per_s=300)
    load.start()
    key = "k05x"
    client.put(TABLE, key, b"before")

    def connected() -> tuple[Process, Place, _Socket]:
        place = place_of(client, key)
        owner = owner_of(cluster, client, key)
        made = _Socket(owner.address)
        made.send(1, KvRead(place, [key]))
        assert not isinstance(made.answers(1)[0], Failed)
        return owner, place, made

    victim, place, waiting = eventually(connected, what="an owner that answers")
    victim.signal(signal.SIGSTOP)
    try:
        waiting.send(2, KvRead(place, [key]))
        waiting.send(3, KvWrite(place, [KvChange(key, b"from the grave")], "w", 1))
        eventually(lambda: place_of(client, key).server != place.server, what="the region is open elsewhere")
        client.put(TABLE, key, b"after")
    finally:
        victim.signal(signal.SIGCONT)
    answers = waiting.answers(3)[1:]
    assert [type(answer) for answer in answers] == [Failed, Failed]
    assert {answer.code for answer in answers if isinstance(answer, Failed)} <= {ms.NO_LEASE, ms.WRONG_SERVER}
    assert client.get(TABLE, key) == b"after"
    report = load.stop()
    assert report.is_sound, report.violations
    whole(cluster)
    assert client.get(TABLE, key) == b"after"


def test_a_request_for_an_earlier_opening_is_refused(cluster: Cluster, client: RegionClient) -> None:
    """A region moves away and back: a write that was sent to the former opening is not carried out in the next one."""
    key = "k07x"
    client.put(TABLE, key, b"1")
    before = place_of(client, key)
    home = owner_of(cluster, client, key)
    for destination in ("", before.server):
        region_id = place_of(client, key).region_id
        cluster.ask_active(ms.MoveRegion(region_id, destination=destination, wait_ms=60_000), ms.Accepted)
        cluster.wait_settled()
    assert place_of(client, key).server == before.server
    with pytest.raises(RpcError) as caught:
        call_blocking(home.address, KvWrite(before, [KvChange(key, b"late")], "w", 2), expect=KvValues)
    assert caught.value.code == "not_serving"
    assert client.get(TABLE, key) == b"1"


def test_a_server_cut_off_from_the_store_stops_before_its_regions_can_go(
    cluster: Cluster, client: RegionClient
) -> None:
    """Regions are opened elsewhere only after the store has dropped the registration. By then the server, which does
    not know this, serves none of them any more."""
    folder = cluster.folder / "cut"
    with _Link(cluster.hosts) as link:
        (port,) = free_ports(1)
        command = rk("server", "run", "--store", link.address, "--data-dir", str(folder),
                     "--shared-dir", str(cluster.folder / "shared"), "--address", f"127.0.0.1:{port}",
                     "--session-timeout-ms", str(SESSION_MS))  # fmt: skip
        with daemon(command, log=cluster.folder / "cut.log"):
            active = cluster.wait_active()

            def fourth() -> ServerRecord | None:
                servers = cluster.ask(active, ms.ListServers(), ms.Servers).servers
                return next((one.server for one in servers if one.server.port == port), None)

            mine = eventually(fourth, what="the fourth server")
            assert mine is not None
            key = "k09x"
            place = place_of(client, key)
            cluster.ask_active(ms.MoveRegion(place.region_id, destination=mine.uuid, wait_ms=60_000), ms.Accepted)
            cluster.wait_settled()
            place = place_of(client, key)
            assert place.server == mine.uuid
            address = ("127.0.0.1", port)
            assert call_blocking(address, KvRead(place, [key]), expect=KvValues).values == [None]
            link.cut()
            path = cluster.layout.server(mine.uuid)
            eventually(lambda: cluster.zk.exists(path) is None, what="the store has dropped it")
            with pytest.raises(RpcError) as caught:
                call_blocking(address, KvRead(place, [key]), expect=KvValues)
            assert caught.value.code == ms.NO_LEASE
            client.put(TABLE, key, b"elsewhere")
            assert place_of(client, key).server != mine.uuid
    cluster.wait_settled()


class _Link:
    """A link to the store that can be cut without either end noticing."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(",")[0].rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._is_cut = threading.Event()
        self._sockets: list[socket.socket] = [self._listening]

    def __enter__(self) -> _Link:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self) -> None:
        """Pass no bytes from now on."""
        self._is_cut.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if not self._is_cut.is_set():
                    other.sendall(data)


# --- the command line ---


def _rk(cluster: Cluster, *arguments: str, status: int = 0, given: bytes | None = None) -> str:
    done = subprocess.run(
        rk(*arguments, "--store", cluster.hosts), input=given, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == status, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return (done.stdout if status == 0 else done.stderr).decode()


def test_rows_from_the_command_line(cluster: Cluster) -> None:
    """put, get, scan, delete, and common mistakes."""
    _rk(cluster, "put", TABLE, "cli-1", "one")
    _rk(cluster, "put", TABLE, "cli-2", "-", given=b"\xff\x00two")
    assert _rk(cluster, "get", TABLE, "cli-1") == "one\n"
    assert json.loads(_rk(cluster, "get", TABLE, "cli-2", "--json"))["value"].startswith("base64:")
    assert _rk(cluster, "scan", TABLE, "--prefix", "cli-").splitlines()[0] == "cli-1\tone"
    assert _rk(cluster, "scan", TABLE, "--prefix", "cli-", "--count") == "2\n"
    _rk(cluster, "delete", TABLE, "cli-1")
    assert "has no row 'cli-1'" in _rk(cluster, "get", TABLE, "cli-1", status=4)
    assert "table 'nope' does not exist" in _rk(cluster, "get", "nope", "k", status=4)
    assert "1 to 511" in _rk(cluster, "put", TABLE, "x" * 512, "v", status=1)


def test_the_whole_example_file_is_loaded(cluster: Cluster) -> None:
    """63,664 rows, loaded in parallel; loading them again changes nothing."""
    found = json.loads(_rk(cluster, "load", TABLE, str(PACKAGES), "--json"))
    assert found["rows"] == 63_664
    assert json.loads(_rk(cluster, "scan", TABLE, "--count", "--json", "--prefix", "python3.11"))["rows"] == 9
    assert json.loads(_rk(cluster, "get", TABLE, "zzuf"))["section"] == "devel"


# --- a service of one's own ---


def test_the_example_service_counts_through_the_death_of_a_server(tmp_path: Path) -> None:
    """examples/counters.py as its docstring describes: two servers, a table, additions, a kill, additions."""
    counters = [sys.executable, str(ROOT / "examples" / "counters.py")]

    def add(hosts: str, key: str, amount: int) -> int:
        done = subprocess.run(
            [*counters, "add", "--store", hosts, "hits", key, str(amount)],
            capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=_ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    with own_store(tmp_path / "store", 1) as hosts, contextlib.ExitStack() as running:
        cluster = running.enter_context(cluster_on(hosts, tmp_path / "cluster", masters=1, servers=0))
        ports = free_ports(2)
        processes = []
        for number, port in enumerate(ports):
            command = [*counters, "serve", "--store", hosts, "--data-dir", str(tmp_path / f"d{number}"),
                       "--shared-dir", str(tmp_path / "shared"), "--address", f"127.0.0.1:{port}",
                       "--session-timeout-ms", "2000"]  # fmt: skip
            log = tmp_path / f"counters{number}.log"
            processes.append(running.enter_context(daemon(command, log=log, cwd=ROOT, env=_ENVIRONMENT)))
        active = cluster.wait_active()
        cluster.wait_servers(2)
        cluster.ask(active, ms.CreateTable("hits", ["m"], wait_ms=60_000), ms.Tables)
        assert [add(hosts, "apple", 1), add(hosts, "apple", 2), add(hosts, "zebra", 5)] == [1, 3, 5]
        processes[0].kill()
        processes[0].wait()
        assert [add(hosts, "apple", 1), add(hosts, "zebra", 1)] == [4, 6]


_ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
