"""Clients of other projects on the secured store of `rk up`, by the settings that docs/security.md names for each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.capture import CaptureManager
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, SessionClosedRequireSaslError
from kazoo.recipe.lock import Lock

from tests.compat import jvm
from tests.compat.java_suite import run_java
from tests.compat.spark_ha import SparkCluster
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e
NEEDS_JAVA: Final = pytest.mark.skipif(bool(jvm.missing()), reason=jvm.missing())

_SHAPE: Final = ("--store-nodes", "3", "--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")
#: Cases of our Java program that need no change of the store's settings and stop no node.
_GROUPS: Final = (
    "client", "multi", "watch", "session", "framework", "lock", "leader", "cache", "node", "counter", "queue",
)  # fmt: skip
#: Cases that end otherwise here, with the reason.
_DIFFERENT: Final = {"client.whoAmI": "a session has the identities of its token, too"}
#: Docs: what a Java program needs besides the file.
_JAAS_PROPERTIES: Final = {"zookeeper.fips-mode": "false", "zookeeper.sasl.client": "true"}


class Secured:
    """The store of a cluster of `rk up`, and the user alice, who has no grant."""

    def __init__(self, up: LocalUp, folder: Path) -> None:
        self.up = up
        self.addresses: list[str] = json.loads((up.data_dir / "cluster.json").read_text())["store"].split(",")
        data = ("--data-dir", str(up.data_dir))
        alice = str(folder / "alice")
        assert run_rk("certs", "issue", "--user", "alice", "--to", alice, *data).returncode == 0
        shown = {
            port: run_rk("certs", "token", "--for", port, "--certs-dir", alice).stdout.strip()
            for port in ("store", "jaas")
        }
        self.token = shown["store"]
        self.jaas = folder / "jaas.conf"
        self.jaas.write_text(shown["jaas"])

    @property
    def hosts(self) -> str:
        """Return the addresses of all nodes."""
        return ",".join(self.addresses)

    def forget_cases(self) -> None:
        """Delete what an earlier run of the Java program left."""
        client = KazooClient(self.hosts, auth_data=[("digest", self.token)])
        try:
            client.start(30)
            client.delete("/compat", recursive=True)
        except NoNodeError:
            pass  # this is the first run
        finally:
            client.stop()
            client.close()

    def start(self, number: int) -> None:
        """Fail: no case may stop or start a node."""
        raise AssertionError(f"node {number} belongs to rk up")

    stop = start

    def wait_ready(self, *numbers: int) -> None:
        """Do nothing: `rk up` has waited."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with local_up(folder / "data", "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        yield Secured(up, folder)


def test_kazoo(secured: Secured) -> None:
    """With `auth_data` everything works; without it the first request says why."""
    stranger = KazooClient(secured.hosts)
    client = KazooClient(secured.hosts, auth_data=[("digest", secured.token)])
    try:
        stranger.start(30)
        with pytest.raises(SessionClosedRequireSaslError):
            stranger.get_children("/")
        client.start(30)
        client.create("/kazoo", b"1")
        heard: list[str] = []
        client.get("/kazoo", watch=lambda event: heard.append(event.path))
        done = client.transaction()
        done.set_data("/kazoo", b"2")
        done.create("/kazoo/child", ephemeral=True)
        assert "/kazoo/child" in done.commit()
        eventually(lambda: heard == ["/kazoo"], what="the watch")
        with Lock(client, "/kazoo/lock"):
            assert client.get_children("/kazoo/lock")
    finally:
        for one in (stranger, client):
            one.stop()
            one.close()


def test_kazoo_by_sasl(secured: Secured) -> None:
    """The token is proved without being sent."""
    user, _, password = secured.token.rpartition(":")
    options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
    pytest.importorskip("puresasl", reason="pure-sasl is not installed")
    client = KazooClient(secured.hosts, sasl_options=options)
    try:
        client.start(30)
        client.create("/kazoo-sasl", b"1")
        assert client.get("/kazoo-sasl")[0] == b"1"
    finally:
        client.stop()
        client.close()


@NEEDS_JAVA
@pytest.mark.parametrize("proof", ["digest", "jaas"])
def test_java_client_and_curator(secured: Secured, tmp_path: Path, request: pytest.FixtureRequest, proof: str) -> None:
    """`addAuthInfo` and `authorization` in the program, or a JAAS file beside a program that knows nothing of it.

    Fails with an open door in `Authenticator.begin`: then the last assertion finds no refusal.
    """
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert isinstance(capture, CaptureManager)

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    secured.forget_cases()
    more = _JAAS_PROPERTIES if proof == "jaas" else {"rk.token": secured.token}
    cases = run_java(secured, list(_GROUPS), tmp_path / "java.log", show, more)
    assert {case.name.partition(".")[0] for case in cases} == set(_GROUPS)
    failed = [case for case in cases if not case.has_passed and case.name not in _DIFFERENT]
    assert not failed, "\n".join(line for case in failed for line in case.lines)
    without = run_java(secured, ["client.createModes"], tmp_path / "without.log", show)
    assert [case.has_passed for case in without] == [False]


@NEEDS_JAVA
def test_zkcli(secured: Secured, tmp_path: Path) -> None:
    """`addauth digest TOKEN` first; without it the command line is disconnected."""
    said = _command_line(secured, tmp_path, f"addauth digest {secured.token}", "create /zkcli one", "get /zkcli")
    assert "Created /zkcli" in said
    assert re.search(r"^one$", said, re.MULTILINE), said
    said = _command_line(secured, tmp_path, "get /zkcli")
    assert not re.search(r"^one$", said, re.MULTILINE), said


def _command_line(secured: Secured, folder: Path, *lines: str) -> str:
    """Return the output of ZooKeeper's command line for these lines."""
    settings = folder / "log.properties"
    settings.write_text("status = off\nrootLogger.level = off\n")
    main = "org.apache.zookeeper.ZooKeeperMain"
    options = [f"-Dlog4j2.configurationFile={settings}", "-Dzookeeper.sasl.client=false"]
    words = jvm.java(*options, "-cp", jvm.class_path(), main, "-waitforconnection", "-server", secured.hosts)
    text = "".join(f"{line}\n" for line in (*lines, "quit"))
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@NEEDS_JAVA
def test_spark_masters(secured: Secured, tmp_path: Path) -> None:
    """Spark's masters keep their state in the store; the properties go into SPARK_DAEMON_JAVA_OPTS. The standby takes
    over when the active one is killed."""
    more = {**_JAAS_PROPERTIES, "java.security.auth.login.config": str(secured.jaas)}
    spark = SparkCluster(tmp_path, secured.hosts, more)
    try:
        spark.start()
        active = spark.active()
        (standby,) = [master for master in spark.masters if master is not active]
        eventually(lambda: standby.status() == "STANDBY", what="the other master stands by")
        active.kill()
        assert spark.active(90) is standby
        with spark.job("squares", 1) as job:
            assert job.result() == 0
    finally:
        spark.close()
