"""Secrets, the authority and every certificate are rotated through a cluster of several machines under load: no request
fails meanwhile.

The machines are addresses of loopback, each with a directory of its own, and get files only as an operator copies them:
one machine after the other.
"""

from __future__ import annotations

import shutil
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from cli.common.access import kazoo_options
from coord.client.access import OPEN_ACCESS
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from coord.security import process
from coord.security.certificate_facts import facts_of
from coord.security.credentials import Credentials, read_user
from coord.security.making import write_private
from coord.tls.reloading import CallerContext
from regions import messages as ms
from regionserver.client import connect
from tests.e2e.clusters import free_base_port, run_rk
from tests.support.helpers import daemon, eventually, rk

pytestmark = pytest.mark.e2e

#: Requests of each kind that must succeed between two steps.
_BETWEEN = 5
#: Machines of the cluster, and the daemon on each. A table of tablets has one replica on each server.
_MACHINES = {
    "store-1": "127.0.4.1",
    "store-2": "127.0.4.2",
    "store-3": "127.0.4.3",
    "master-1": "127.0.4.4",
    "server-1": "127.0.4.6",
    "server-2": "127.0.4.7",
    "server-3": "127.0.4.8",
}
_TABLES = {"store": "store", "master": "masters", "server": "servers"}


class Machines:
    """The topology, the directory where credentials are issued ("office"), and the one of each machine."""

    def __init__(self, folder: Path, credentials: str) -> None:
        self.folder = folder
        self.is_tls = credentials == "certificates"
        self.office = folder / "office"
        self.user = folder / "user"
        port = free_base_port()
        self.ports = (port, port + 1, port + 2)
        lines = ["[cluster]", 'name = "far"', f'data-dir = "{folder}/data"', f'credentials = "{credentials}"']
        lines += [f'credentials-dir = "{folder}/certs"']
        for name, host in _MACHINES.items():
            kind = name.partition("-")[0]
            lines += [f"[[{_TABLES[kind]}.node]]", f'host = "{host}"', f"admin-port = {self.ports[2]}"]
            lines += [f"{'client-port' if kind == 'store' else 'port'} = {self.ports[0]}"]
            lines += [f"peer-port = {self.ports[1]}"] if kind != "master" else []
        self.file = folder / "far.toml"
        self.file.write_text("\n".join(lines))
        self.done("topology", "credentials", str(self.file), "--to", str(self.office))
        self.issue_user()
        self.copy()

    def done(self, *words: str) -> None:
        """Run a command that must succeed."""
        done = run_rk(*words)
        assert done.returncode == 0, done.stderr

    def certs(self, *words: str) -> None:
        """Run `rk certs` in the office."""
        self.done("certs", *words, "--certs-dir", str(self.office))

    def issue_user(self) -> None:
        """Give the user of this test new credentials, outside the office."""
        self.certs("issue", "--user", "admin", "--to", str(self.user))

    def copy(self, between: Callable[[], None] = lambda: None) -> None:
        """Copy what has changed to each machine, and call `between` after half of them."""
        directories = [name for name in _MACHINES if self.is_tls] or ["."]
        for number, name in enumerate(directories):
            target = self.folder / "certs" / name
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(one for one in (self.office / name).iterdir() if one.is_file()):
                content = path.read_bytes()
                if not (target / path.name).exists() or (target / path.name).read_bytes() != content:
                    write_private(target / path.name, content)
            if number == len(directories) // 2:
                between()
        if self.is_tls and self.user.exists():
            write_private(self.user / "ca.crt", (self.office / "ca.crt").read_bytes())

    def address(self, name: str, port: int = 0) -> tuple[str, int]:
        """Return where a daemon listens. `port`: 0 for requests, 2 for pages."""
        return _MACHINES[name], self.ports[port]

    @property
    def store(self) -> str:
        """The addresses of the store."""
        return ",".join(f"{host}:{self.ports[0]}" for name, host in _MACHINES.items() if name.startswith("store"))

    def serials(self) -> set[str]:
        """Return the serial numbers of all certificates in use."""
        used = [*(self.folder / "certs").glob("*/*.*.crt"), *self.user.glob("*.*.crt")]
        return {facts_of(one.read_bytes())[0].serial for one in used}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the daemons, and make a table. This process is the user."""
        with ExitStack() as stack:
            self._daemons = {name: stack.enter_context(ExitStack()) for name in _MACHINES}
            for name in _MACHINES:
                self.restart(name)
            where = ("--store", self.store, "--certs-dir", str(self.user))
            made = ("table", "create", "t", "--replicas", "3", "--regions", "1", "--storage", "tablet", *where)
            eventually(lambda: run_rk(*made).returncode == 0, what="a table")
            eventually(lambda: run_rk("put", "t", "k", "0", *where).returncode == 0, what="an open region")
            process.use(read_user(self.user))
            stack.callback(process.forget)
            yield

    def restart(self, name: str) -> None:
        """Kill the daemon of a machine, if it runs, and start it."""
        self._daemons[name].close()
        words = rk("topology", "run", str(self.file), "--daemon", name)
        self._daemons[name].enter_context(daemon(words, log=self.folder / f"{name}.log"))


class Load:
    """Threads that send requests without a pause: writes and reads of a tablet, and all others by new connections."""

    def __init__(self, cluster: Machines) -> None:
        self.failures: list[str] = []
        self._cluster = cluster
        self._ended = threading.Event()
        asking = {"store": self._ask_store, "master": self._ask_master, "server": self._ask_server}
        work: dict[str, Callable[[int], None]] = {"row": self._rows, "page": self._read_page, **asking}
        self.counts = dict.fromkeys(work, 0)
        self._threads = [threading.Thread(target=self._repeat, args=one) for one in work.items()]

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Send requests until the end of the block, with a client that was opened before."""
        with connect(self._cluster.store) as client:
            self._client = client
            for one in self._threads:
                one.start()
            try:
                yield
            finally:
                self._ended.set()
                for one in self._threads:
                    one.join()

    def more(self) -> None:
        """Wait until every kind of request has been answered some more times."""
        before = dict(self.counts)
        eventually(
            lambda: bool(self.failures) or all(self.counts[one] >= before[one] + _BETWEEN for one in before),
            what="requests",
        )
        assert self.failures == []

    def _repeat(self, name: str, work: Callable[[int], None]) -> None:
        while not self._ended.is_set() and not self.failures:
            try:
                work(self.counts[name])
            except Exception as error:  # any failure is the finding
                self.failures.append(f"{name}: {error!r}")
            self.counts[name] += 1

    def _rows(self, number: int) -> None:
        self._client.put("t", "k", b"%d" % number)
        assert self._client.get("t", "k") == b"%d" % number

    def _ask_master(self, _: int) -> None:
        call_blocking(self._cluster.address("master-1"), ms.WhoAmI(), 10.0, expect=ms.CallerIdentity)

    def _ask_server(self, number: int) -> None:
        where = self._cluster.address(f"server-{number % 3 + 1}")
        call_blocking(where, ms.GetServerStatus(), 10.0, expect=ms.ServerStatus)

    def _ask_store(self, number: int) -> None:
        """Open a session by a new connection."""
        host, port = self._cluster.address(f"store-{number % 3 + 1}")
        client = KazooClient(f"{host}:{port}", timeout=10, **kazoo_options(OPEN_ACCESS))
        client.start(30)
        try:
            assert client.exists("/regionkeeper") is not None
        finally:
            client.stop()
            client.close()

    def _read_page(self, number: int) -> None:
        """Read the metrics of a daemon, with a certificate or a token."""
        host, port = self._cluster.address(sorted(_MACHINES)[number % len(_MACHINES)], 2)
        own = process.own()
        assert own is not None
        scheme = "https" if self._cluster.is_tls else "http"
        request = urllib.request.Request(f"{scheme}://{host}:{port}/metrics")
        request.add_header("Authorization", f"Bearer {own.token()}")
        with urllib.request.urlopen(request, timeout=30, context=self._context(own)) as answer:
            assert answer.status == 200

    def _context(self, own: Credentials) -> ssl.SSLContext | None:
        if own.certificate is None:
            return None
        return CallerContext(
            own.directory / "ca.crt", own.certificate, own.certificate.with_suffix(".key"), verify_host=True
        ).now()


@pytest.mark.parametrize("credentials", ["keys", "certificates"])
def test_everything_is_rotated_under_load(tmp_path: Path, credentials: str) -> None:
    """Each request is answered, also while one half of the machines has the files of a step and the other half those of
    the step before. Then every certificate is another one, the former credentials are worth nothing, and daemons that
    are restarted find each other.

    Fails if `Credentials` or the ports of store and peers (`TlsContexts`) do not read changed files again, or accept
    the newest authority only before the end.
    """
    cluster = Machines(tmp_path, credentials)
    load = Load(cluster)
    former = tmp_path / "former"
    shutil.copytree(cluster.user, former)
    before = cluster.serials()
    assert len(before) == (8 if cluster.is_tls else 0)
    with cluster.running():
        with load.going_on():
            load.more()
            for step in (("rotate",), ("renew",), ("rotate", "--finish")):
                cluster.certs(*step)
                cluster.copy(load.more)
                if step == ("renew",):
                    cluster.issue_user()
                load.more()
        assert not before & cluster.serials()
        where = ("--store", cluster.store, "--certs-dir", str(cluster.user))
        for name in ("store-2", "server-2", "master-1"):
            cluster.restart(name)
        eventually(lambda: run_rk("health", *where).returncode == 0, what="a healthy cluster")
        assert run_rk("put", "t", "k", "last", *where).returncode == 0
        assert run_rk("fsck", *where, "--store-auth", f"@{cluster.office}").returncode == 0
        process.use(read_user(former))
        refused = run_rk("get", "t", "k", "--store", cluster.store, "--certs-dir", str(former))
        assert refused.returncode != 0
        if cluster.is_tls:
            assert "certificate" in refused.stderr
        for name in ("master-1", "server-1"):
            with pytest.raises(RpcError) as denied:
                call_blocking(cluster.address(name), ms.WhoAmI(), 10.0, expect=ms.CallerIdentity)
            assert denied.value.code == Code.UNAUTHENTICATED
