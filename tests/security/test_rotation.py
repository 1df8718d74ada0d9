"""Secrets, the authority and every certificate are rotated through a running cluster: no request fails meanwhile."""

from __future__ import annotations

import shutil
import threading
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
from coord.security.credentials import AUTHORITY_FILE, read_user
from coord.security.making import write_private
from regions import messages as ms
from regionserver.client import connect
from tests.e2e.clusters import run_rk
from tests.support.helpers import daemon, eventually, free_ports, rk

#: Requests of each kind that must succeed between two steps.
_BETWEEN = 20


class Rotated:
    """A store node, a master and a server, and the directories of their credentials and of the user's. With
    certificates every port speaks TLS."""

    def __init__(self, folder: Path, *, tls: bool) -> None:
        self.folder = folder
        self.tls = tls
        self.ca = folder / "ca"
        self.user = folder / "user"
        self.daemons = {kind: folder / kind if tls else self.ca for kind in ("node", "master", "server")}
        self.store, self.master, self.server = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.certs("init", *(["--tls"] if tls else []))
        self.issue()

    def certs(self, *words: str) -> None:
        """Run `rk certs` in the directory of the authority."""
        done = run_rk("certs", *words, "--certs-dir", str(self.ca))
        assert done.returncode == 0, done.stderr

    def issue(self) -> None:
        """Give every daemon and the user new credentials."""
        if self.tls:
            for kind, directory in self.daemons.items():
                if kind == "node":
                    self.certs("issue", "--daemon", "node:1", "--host", "127.0.0.1", "--to", str(directory))
                    continue
                self.certs("issue", "--daemon", f"{kind}:one", "--host", "127.0.0.1", "--to", str(directory))
        self.certs("issue", "--user", "admin", "--to", str(self.user))

    def hand_out_authorities(self) -> None:
        """Copy the file of accepted authorities to everybody."""
        if self.tls:
            for directory in (*self.daemons.values(), self.user):
                write_private(directory / AUTHORITY_FILE, (self.ca / AUTHORITY_FILE).read_bytes())

    def serials(self) -> list[str]:
        """Return the serial numbers of all certificates in use."""
        used = [one for directory in (*self.daemons.values(), self.user) for one in sorted(directory.glob("*.*.crt"))]
        return [facts_of(one.read_bytes())[0].serial for one in used]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the daemons, and make a table. This process is the user."""
        node = ("coord", "run", "--id", "1", "--data-dir", str(self.folder / "n1"), "--client-address", self.store)
        common = ("--store", self.store)
        commands = {
            "store": (*node, "--certs-dir", str(self.daemons["node"]), "--require-auth", "rk"),
            "master": ("master", "run", *common, "--address", self.master),
            "server": ("server", "run", *common, "--address", self.server, "--shared-dir", str(self.folder / "shared")),
        }
        with ExitStack() as stack:
            for name, words in commands.items():
                if name != "store":
                    words = (*words, "--data-dir", str(self.folder / f"{name}-data"))
                    words = (*words, "--certs-dir", str(self.daemons[name]))
                stack.enter_context(daemon(rk(*words), log=self.folder / f"{name}.log"))
            where = ("--store", self.store, "--certs-dir", str(self.user))
            made = ("table", "create", "t", "--replicas", "1", "--regions", "1", *where)
            eventually(lambda: run_rk(*made).returncode == 0, what="a table")
            eventually(lambda: run_rk("put", "t", "k", "0", *where).returncode == 0, what="an open region")
            process.use(read_user(self.user))
            stack.callback(process.forget)
            yield


class Load:
    """Threads that send requests without a pause: writes and reads, and questions by new connections."""

    def __init__(self, cluster: Rotated) -> None:
        self.failures: list[str] = []
        self.counts = dict.fromkeys(("row", "master", "server", "store"), 0)
        self._cluster = cluster
        self._ended = threading.Event()
        work = {"row": self._rows, "master": self._ask_master, "server": self._ask_server, "store": self._ask_store}
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
        call_blocking(_address(self._cluster.master), ms.WhoAmI(), 10.0, expect=ms.CallerIdentity)

    def _ask_server(self, _: int) -> None:
        call_blocking(_address(self._cluster.server), ms.GetServerStatus(), 10.0, expect=ms.ServerStatus)

    def _ask_store(self, _: int) -> None:
        """Open a session by a new connection."""
        options = kazoo_options(OPEN_ACCESS)
        client = KazooClient(self._cluster.store, timeout=10, **options)
        client.start(30)
        try:
            assert client.exists("/zookeeper") is not None
        finally:
            client.stop()
            client.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("tls", [False, True], ids=["keys", "certificates"])
def test_everything_is_rotated_under_load(tmp_path: Path, tls: bool) -> None:
    """Each request of each step is answered, every certificate is another one, and the former credentials are worth
    nothing in the end.

    Fails if `Credentials` or the store's ports (`TlsContexts`) do not read changed files again, or accepts the
    newest authority only before the end.
    """
    cluster = Rotated(tmp_path, tls=tls)
    load = Load(cluster)
    former = tmp_path / "former"
    shutil.copytree(cluster.user, former)
    before = cluster.serials()
    assert len(before) == (4 if tls else 0)
    with cluster.running():
        with load.going_on():
            load.more()
            cluster.certs("rotate")
            cluster.hand_out_authorities()
            load.more()
            cluster.issue()
            load.more()
            cluster.certs("rotate", "--finish")
            cluster.hand_out_authorities()
            load.more()
        assert not set(before) & set(cluster.serials())
        process.use(read_user(former))
        if tls:
            assert "certificate" in run_rk("get", "t", "k", "--store", cluster.store, "--certs-dir", str(former)).stderr
        for place in (cluster.master, cluster.server):
            with pytest.raises(RpcError) as refused:
                call_blocking(_address(place), ms.WhoAmI(), 10.0, expect=ms.CallerIdentity)
            assert refused.value.code == Code.UNAUTHENTICATED
