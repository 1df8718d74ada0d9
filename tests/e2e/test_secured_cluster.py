"""A whole cluster on a store that accepts only TLS, with znodes for the cluster's credential alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from cli.common.local import digest_of
from cli.common.options import variable_of
from tests.support.certificates import Authority
from tests.support.helpers import daemon, eventually, free_ports, rk

pytestmark = pytest.mark.e2e

CREDENTIAL = "cluster:wBz9-secret"
SUPER = "super:other-secret"


@dataclass
class Secured:
    """One store node, one master, one region server."""

    store: str
    plain: str
    authority: Authority
    folder: Path

    def command(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Return `rk WORDS` with the cluster's settings in the environment. `settings` override them ("": omitted)."""
        known = {**self.settings(), **{name.replace("_", "-"): value for name, value in settings.items()}}
        env = {"PATH": "/usr/bin:/bin", "RK_STORE": known.pop("store", self.store)}
        env |= {variable_of(name): value for name, value in known.items() if value}
        return subprocess.run(rk(*words), capture_output=True, text=True, timeout=120, check=False, env=env)

    def settings(self) -> dict[str, str]:
        """Return the settings by option of `cli.common.access`; the credential is in a file."""
        folder = self.authority.folder
        return {
            "store-tls-ca": str(self.authority.cert),
            "store-tls-cert": str(folder / "client.pem"),
            "store-tls-key": str(folder / "client.key"),
            "store-auth": f"@{self.folder / 'credential'}",
        }


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """Yield all daemons running, with options on the master's command line and the environment for the server."""
    authority = Authority(folder / "certificates")
    authority.issue("server", hosts="DNS:localhost,IP:127.0.0.1")
    authority.issue("client", "/O=Example/CN=rk")
    (folder / "credential").write_text(f"{CREDENTIAL}\n")
    (folder / "credential").chmod(0o600)
    (folder / "users").write_text("ops:sasl-secret\n")
    (folder / "users").chmod(0o600)
    store, master, server, plain = (f"127.0.0.1:{port}" for port in free_ports(4))
    cluster = Secured(store, plain, authority, folder)
    node = ["coord", "run", "--id", "1", "--data-dir", str(folder / "store"), "--secure-client-address", store]
    node += ["--tls-cert", str(authority.folder / "server.pem"), "--tls-key", str(authority.folder / "server.key")]
    node += ["--tls-ca", str(authority.cert), "--super-digest", digest_of(SUPER)]
    node += ["--sasl-users", str(folder / "users"), "--client-address", plain, "--tick-ms", "500"]
    options = [word for name, value in cluster.settings().items() for word in (f"--{name}", value)]
    ruling = ["master", "run", "--store", store, "--data-dir", str(folder / "master"), "--address", master, *options]
    ruling += ["--session-timeout-ms", "6000"]
    serving = ["server", "run", "--data-dir", str(folder / "server"), "--shared-dir", str(folder / "shared")]
    serving += ["--session-timeout-ms", "6000"]
    env = {"RK_STORE": store, **{variable_of(name): value for name, value in cluster.settings().items()}}
    with ExitStack() as running:
        running.enter_context(daemon(rk(*node), log=folder / "store.log"))
        running.enter_context(daemon(rk(*ruling), log=folder / "master.log"))
        running.enter_context(daemon(rk(*serving, "--address", server), log=folder / "server.log", env=env))
        try:
            yield cluster
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}")  # noqa: T201
            raise


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Yield a secured cluster with a table of four regions."""
    with secured(tmp_path_factory.mktemp("secured")) as running:

        def is_up() -> bool:
            found = running.command("status", "--json")
            return found.returncode == 0 and '"role": "active"' in found.stdout and '"state": "up"' in found.stdout

        eventually(is_up, what="a cluster")
        made = running.command("table", "create", "t", "--splits", str(_splits(running.folder)))
        assert made.returncode == 0, made.stderr
        yield running


def _splits(folder: Path) -> Path:
    path = folder / "splits"
    path.write_text("b\nc\nd\n")
    return path


def test_whole_cluster_on_tls_and_a_credential(cluster: Secured) -> None:
    """With TLS and a credential, master, server and commands work: four regions are open, and status reaches the
    store."""

    def status() -> Any:
        return json.loads(cluster.command("status", "--json").stdout)

    def is_open() -> bool:
        return [(table["table"]["name"], table["open"]) for table in status()["tables"]] == [("t", 4)]

    eventually(is_open, what="four open regions")
    assert status()["store"][0]["role"] == "standalone"
    shown = cluster.command("watch", "--count", "1", "--json", "--table", "nothing", store_auth="")
    assert shown.returncode == 1, shown
    assert "access lists require another credential" in shown.stderr


def test_the_clusters_znodes_are_readable_only_with_its_credential(cluster: Secured) -> None:
    """A client without the credential reads and deletes nothing, also at the port without TLS."""
    client = KazooClient(cluster.plain)
    client.start(60)
    try:
        for refused in (lambda: client.get("/regionkeeper/epoch"), lambda: client.delete("/regionkeeper/epoch")):
            with pytest.raises(NoAuthError):
                refused()
        client.add_auth("digest", CREDENTIAL)
        assert client.get("/regionkeeper/epoch")[0]
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"store_tls_ca": "", "store_tls_cert": "", "store_tls_key": ""}, "speaks TLS, but this command does not"),
        ({"store_tls_ca": "FOREIGN"}, "was not issued by"),
        ({"store_tls_cert": "", "store_tls_key": ""}, "requires a client certificate"),
        ({"store": "PLAIN"}, "does not speak TLS"),
        ({"store_tls_ca": "/nowhere.pem"}, "file /nowhere.pem does not exist"),
        ({"store_auth": "cluster:wrong"}, "access lists require another credential"),
        ({"store_auth": "cluster"}, "is neither USER:PASSWORD"),
        ({"store_tls_ca": ""}, "needs TLS"),
        ({"store_tls_host_check": "perhaps"}, "is yes or no"),
    ],
)
def test_mistakes_are_reported_in_one_clear_line(
    cluster: Secured, settings: dict[str, str], says: str, tmp_path: Path
) -> None:
    """Each error is one clear line with a remedy."""
    if settings.get("store_tls_ca") == "FOREIGN":
        settings = {"store_tls_ca": str(Authority(tmp_path, "foreign").cert)}
    if settings.get("store") == "PLAIN":
        settings = {"store": cluster.plain}
    found = cluster.command("table", "list", **settings)
    assert found.returncode in (1, 2), found
    assert says in found.stderr, found
    assert "Traceback" not in found.stderr


def test_the_host_in_the_certificate_is_verified_unless_disabled(cluster: Secured) -> None:
    """A certificate for another host is rejected by name; `no` accepts any certificate of the authority."""
    other = cluster.store.replace("127.0.0.1", "127.0.0.2")
    node = ["coord", "list", "--store", other]
    authority = cluster.authority
    authority.issue("elsewhere", hosts="DNS:elsewhere.example")
    (port,) = free_ports(1)
    options = [
        "--tls-cert",
        str(authority.folder / "elsewhere.pem"),
        "--tls-key",
        str(authority.folder / "elsewhere.key"),
    ]
    command = rk("coord", "run", "--id", "1", "--data-dir", str(cluster.folder / "elsewhere"),
                 "--secure-client-address", f"127.0.0.1:{port}", *options)  # fmt: skip
    with daemon(command, log=cluster.folder / "elsewhere.log"):
        node = ["coord", "list", "--store", f"127.0.0.1:{port}"]
        eventually(lambda: "names another host" in cluster.command(*node).stderr, what="the refusal")
        found = cluster.command(*node, store_tls_host_check="no")
        assert found.returncode == 0, found


def test_membership_needs_super(cluster: Secured) -> None:
    """A wrong password gives another error than a missing one; super is allowed."""
    wish = ("coord", "transfer-leader", "1")
    assert "Give super's credential" in cluster.command(*wish, store_auth="").stderr
    assert "is not super's" in cluster.command(*wish, store_auth="super:wrong").stderr
    assert cluster.command(*wish, store_auth=SUPER).returncode == 0
    assert cluster.command(*wish, "--auth", SUPER, store_auth="").returncode == 0


def test_commands_by_sasl(cluster: Secured) -> None:
    """The right secret is accepted; a wrong one is reported at once."""
    assert cluster.command("coord", "list", store_auth="", store_sasl="ops:sasl-secret").returncode == 0
    refused = cluster.command("coord", "list", store_auth="", store_sasl="ops:wrong")
    assert (refused.returncode, "rejected the credential" in refused.stderr) == (1, True), refused


def test_refused_daemons_say_why(cluster: Secured, tmp_path: Path) -> None:
    """A master with a wrong password reports it and retries; one that SASL rejects ends; an unusable file gives one
    line."""
    (port,) = free_ports(1)
    common = ["master", "run", "--store", cluster.store, "--address", f"127.0.0.1:{port}"]
    settings = {**cluster.settings(), "store-auth": "cluster:wrong"}
    wrong = [word for name, value in settings.items() for word in (f"--{name}", value)]
    log = tmp_path / "log"
    with daemon(rk(*common, "--data-dir", str(tmp_path / "a"), *wrong), log=log):
        eventually(lambda: "check the credential of --store-auth" in log.read_text(), what="the complaint")
    by_sasl = {**cluster.settings(), "store-auth": "", "store-sasl": "ops:sasl-secret"}
    right = [word for name, value in by_sasl.items() if value for word in (f"--{name}", value)]
    log = tmp_path / "sasl.log"
    with daemon(rk(*common, "--data-dir", str(tmp_path / "s"), "--root", "/sasl", *right), log=log):
        eventually(lambda: "is active, epoch 1" in log.read_text(), what="a master that SASL let in")
    refused = [*common, "--data-dir", str(tmp_path / "b"), "--store-sasl", "ops:wrong"]
    ended = cluster.command(*refused)
    assert ended.returncode == 1
    assert "refuses the credential" in ended.stderr
    unusable = cluster.command(*common, "--data-dir", str(tmp_path / "c"), store_tls_ca=str(cluster.folder / "users"))
    assert unusable.returncode == 1
    assert "Traceback" not in unusable.stderr
    assert len(unusable.stderr.splitlines()) <= 2, unusable.stderr
