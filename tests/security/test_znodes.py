"""The znodes of a cluster: an open cluster is closed while it runs, and stays closed for strangers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from coord.wire.digests import digest_of
from tests.support.helpers import daemon, eventually, free_ports, rk

pytestmark = pytest.mark.e2e

CREDENTIAL = "cluster:wBz9-secret"
OPERATOR = "ops:other-secret"
READERS = f"digest:{digest_of(*OPERATOR.split(':'))}"


class Cluster:
    """One store node; master and server are started with or without the credential."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.master, self.server = (f"127.0.0.1:{port}" for port in free_ports(3))

    def command(self, *words: str, auth: str = CREDENTIAL, readers: str = READERS) -> subprocess.CompletedProcess[str]:
        """Return `rk WORDS` with a credential."""
        env = {"PATH": "/usr/bin:/bin", "RK_STORE": self.store, **self.secrets(auth, readers)}
        return subprocess.run(rk(*words), capture_output=True, text=True, timeout=60, check=False, env=env)

    def secrets(self, auth: str, readers: str = READERS) -> dict[str, str]:
        """Return a credential as environment of a process."""
        return {"RK_STORE_AUTH": auth, **({"RK_STORE_READERS": readers} if readers else {})} if auth else {}

    @contextmanager
    def daemons(self, auth: str) -> Iterator[None]:
        """Run master and server until both serve."""
        folder = self.folder
        master = ("master", "run", "--store", self.store, "--data-dir", str(folder / "m"), "--address", self.master)
        server = ("server", "run", "--store", self.store, "--data-dir", str(folder / "s"), "--address", self.server)
        server += ("--shared-dir", str(folder / "shared"))
        env = self.secrets(auth)
        name = auth.partition(":")[0] or "open"
        with ExitStack() as running:
            for words in (master, server):
                times = ("--session-timeout-ms", "3000")
                log = self.folder / f"{words[0]}-{name}.log"
                running.enter_context(daemon(rk(*words, *times), log=log, env=env))
            eventually(lambda: self.is_up(auth), what="master and server")
            yield

    def is_up(self, auth: str) -> bool:
        """Return True if `rk status` sees both."""
        shown = self.command("status", "--json", auth=auth, readers=READERS if auth else "")
        return '"role": "active"' in shown.stdout and '"state": "up"' in shown.stdout


@contextmanager
def kazoo(hosts: str, **options: Any) -> Iterator[KazooClient]:
    """Yield a connected kazoo client."""
    client = KazooClient(hosts, timeout=10, **options)
    try:
        client.start(30)
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a store that serves."""
    made = Cluster(tmp_path_factory.mktemp("znodes"))
    node = ("coord", "run", "--id", "1", "--data-dir", str(made.folder / "store"), "--client-address", made.store)
    with daemon(rk(*node), log=made.folder / "store.log"):
        eventually(lambda: made.command("coord", "ls", "/").returncode == 0, what="the store")
        yield made


def test_an_open_cluster_is_closed_while_it_runs(cluster: Cluster) -> None:
    """Finding 5. Daemons without the credential prevent it. With the credential the whole tree is closed; strangers get
    NoAuth, operators read, regions are served meanwhile, and the next `rk fsck` finds nothing. An interrupted run is
    repeated."""
    with cluster.daemons(""):
        made = cluster.command("table", "create", "t", auth="", readers="")
        assert made.returncode == 0, made.stderr
        refused = cluster.command("secure")
        assert refused.returncode == 1
        assert "2 daemons would be locked out" in refused.stderr
        assert "(no credential)" in refused.stderr
        with kazoo(cluster.store) as stranger:
            assert stranger.get_acls("/regionkeeper/epoch")[0] == OPEN_ACL_UNSAFE, "nothing was changed"
    with cluster.daemons(CREDENTIAL), kazoo(cluster.store) as stranger:
        assert cluster.command("fsck").returncode == 1, "an open cluster with a credential is a finding"
        with kazoo(cluster.store, auth_data=[("digest", CREDENTIAL)]) as owner:
            # As after a run that was interrupted: the first znodes are closed.
            owner.set_acls("/regionkeeper", [make_digest_acl(*CREDENTIAL.split(":"), all=True)])
        done = cluster.command("secure", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["masters"], report["servers"], report["failed"]) == (1, 1, [])
        for path in ("/regionkeeper/epoch", "/regionkeeper/active", "/regionkeeper/servers"):
            for attack in (stranger.get, stranger.get_children, stranger.delete, lambda path: stranger.set(path, b"")):
                with pytest.raises(NoAuthError):
                    attack(path)
        with pytest.raises(NoAuthError):
            stranger.create("/regionkeeper/servers/mine", b"")
        assert cluster.command("put", "t", "alice", "100").returncode == 0
        assert json.loads(cluster.command("secure", "--json").stdout)["changed"] == 0
        checked = cluster.command("fsck")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        shown = cluster.command("status", auth=OPERATOR, readers="")
        assert shown.returncode == 0, "operators read"
        with kazoo(cluster.store, auth_data=[("digest", OPERATOR)]) as operator, pytest.raises(NoAuthError):
            operator.set("/regionkeeper/epoch", b"")
        with kazoo(cluster.store, auth_data=[("digest", CREDENTIAL)]) as owner:
            owner.set_acls("/regionkeeper/epoch", OPEN_ACL_UNSAFE)
        found = cluster.command("fsck", "--fix", "--yes")
        assert "/regionkeeper/epoch: everyone may rwcda" in found.stdout
        with pytest.raises(NoAuthError):
            stranger.get("/regionkeeper/epoch")
        assert cluster.command("fsck").returncode == 0
