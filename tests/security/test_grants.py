"""Permissions of users and daemons in a cluster of `rk up --secure`, with real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from cli.common.errors import ExitStatus
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from coord.security import process
from coord.security.credentials import Credentials, read_daemon, read_user
from coord.security.principal import MASTER, SERVER, Principal
from regions import messages as ms
from regions.access.refusals import LINES_MAX
from regions.messages.heartbeat import Heartbeat
from regions.records.model import Incarnation
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually

_SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--regions", "2", "--plan-engine", "greedy")
#: Name of daemons by keys. A server with such a name sends heartbeats of this uuid alone.
UUID = "55555555-5555-4555-8555-555555555555"


class Users:
    """A cluster with the tables packages and u, its first admin, and the user alice."""

    def __init__(self, up: LocalUp, folder: Path) -> None:
        self.up = up
        self._data = ("--data-dir", str(up.data_dir))
        self.alice_dir = folder / "alice"
        self.done("certs", "issue", "--user", "alice", "--to", str(self.alice_dir))

    def admin(self, *words: str) -> CompletedProcess[str]:
        """Run a command as the first admin."""
        return run_rk(*words, *self._data)

    def alice(self, *words: str) -> CompletedProcess[str]:
        """Run a command as alice."""
        return run_rk(*words, *self._data, "--certs-dir", str(self.alice_dir))

    def done(self, *words: str) -> str:
        """Run a command as the first admin, which must succeed; return its output."""
        found = self.admin(*words)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def address(self, kind: str) -> tuple[str, int]:
        """Return the RPC address of the first daemon of a kind."""
        daemons = json.loads((self.up.data_dir / "cluster.json").read_text())
        host, _, port = daemons[kind][0]["address"].rpartition(":")
        return host, int(port)

    def ask(self, credentials: Credentials | None, kind: str, request: msgspec.Struct, expect: Any) -> Any:
        """Send a request with these credentials; return the reply, or the code of the rejection."""
        process.use(credentials)
        try:
            return call_blocking(self.address(kind), request, 10.0, expect=expect)
        except RpcError as error:
            return error.code
        finally:
            process.forget()


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    folder = tmp_path_factory.mktemp("granted")
    with local_up(folder / "data", "--secure", "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        found = Users(up, folder)
        found.done("table", "create", "u")
        found.done("put", "packages", "k", "v")
        yield found


def test_alice_reads_one_table_writes_none_and_sees_no_other(users: Users) -> None:
    """A grant has effect within the bound, and so has its end; each refusal names the grant that is missing."""
    refused = users.alice("get", "packages", "k")
    assert refused.returncode == ExitStatus.FORBIDDEN
    assert "user:alice may not READ table packages" in refused.stderr
    assert "Ask an admin for `rk grant alice read --table packages`." in refused.stderr

    users.done("grant", "alice", "read", "--table", "packages")
    eventually(lambda: users.alice("get", "packages", "k").stdout.strip() == "v", timeout_s=15.0)
    put = users.alice("put", "packages", "k", "w")
    assert (put.returncode, "may not WRITE table packages" in put.stderr) == (ExitStatus.FORBIDDEN, True)
    other = users.alice("get", "u", "k")
    assert (other.returncode, "may not READ table u" in other.stderr) == (ExitStatus.FORBIDDEN, True)
    assert users.alice("table", "list").returncode == ExitStatus.FORBIDDEN
    assert users.alice("table", "delete", "packages", "--yes").returncode == ExitStatus.FORBIDDEN
    assert users.alice("grant", "alice", "admin").returncode == ExitStatus.FORBIDDEN

    users.done("revoke", "alice", "read", "--table", "packages")
    eventually(lambda: users.alice("get", "packages", "k").returncode == ExitStatus.FORBIDDEN, timeout_s=15.0)
    assert users.done("get", "packages", "k").strip() == "v"


def test_what_is_shown_of_grants(users: Users) -> None:
    listed = json.loads(users.done("acl", "list", "--user", "admin", "--json"))
    assert [(one["user"], one["role"], one["table"]) for one in listed["grants"]] == [("user:admin", "admin", "")]
    assert json.loads(users.alice("whoami", "--json").stdout)["identity"] == "user:alice"
    last = users.admin("revoke", "admin", "admin")
    assert last.returncode == ExitStatus.REFUSED
    assert "last admin of the cluster" in last.stderr


def test_a_daemon_does_its_work_alone(users: Users) -> None:
    """The credentials of a stolen server cannot drop a table or order another server; those of a master cannot read
    rows."""
    certs = users.up.data_dir / "certs"
    server, master = (read_daemon(certs, Principal(kind, UUID)) for kind in (SERVER, MASTER))
    for request in (ms.DeleteTable("packages"), ms.CreateTable("new"), ms.ShutdownCluster(), ms.FenceServer("s")):
        assert users.ask(server, "masters", request, ms.Accepted) == ms.FORBIDDEN
        assert users.ask(master, "masters", request, ms.Accepted) == ms.FORBIDDEN
    order = ms.CloseRegions(2**62, "s", 1, [], 0, "")
    assert users.ask(server, "servers", order, ms.OrderResults) == ms.FORBIDDEN
    assert users.ask(master, "servers", order, ms.OrderResults) == ms.WRONG_SERVER
    forged = Heartbeat("c", Incarnation("another", 1), 1)
    assert users.ask(server, "masters", forged, ms.HeartbeatReply) == ms.FORBIDDEN


def test_a_user_is_no_daemon_and_a_stranger_is_nobody(users: Users) -> None:
    admin = read_user(users.up.data_dir / "certs")
    order = ms.OpenRegions(2**62, "s", 1, [], 0, "")
    assert users.ask(admin, "servers", order, ms.OrderResults) == ms.FORBIDDEN
    alice = read_user(users.alice_dir)
    assert users.ask(alice, "servers", ms.GetServerStatus(), ms.ServerStatus) == ms.FORBIDDEN
    assert users.ask(alice, "masters", ms.ShutdownCluster(), ms.Accepted) == ms.FORBIDDEN
    for kind in ("masters", "servers"):
        assert users.ask(None, kind, ms.GetServerStatus(), ms.ServerStatus) == Code.UNAUTHENTICATED


def test_refusals_are_recorded(users: Users) -> None:
    """The history shows later which caller has tried which request, even if another caller is refused all the time."""

    def texts() -> str:
        found = json.loads(users.done("history", "--only", "requests", "--json", "--limit", "0"))
        return "\n".join(one["text"] for one in found["steps"])

    alice = read_user(users.alice_dir)
    assert users.ask(alice, "masters", ms.ListServers(), ms.Accepted) == ms.FORBIDDEN
    # Refusals of the cases before are in an earlier summary than those that follow.
    eventually(lambda: "user:alice" in texts())
    server = read_daemon(users.up.data_dir / "certs", Principal(SERVER, UUID))
    for number in range(LINES_MAX + 1):
        beat = Heartbeat("c", Incarnation(f"s{number}", 1), 1)
        assert users.ask(server, "masters", beat, ms.HeartbeatReply) == ms.FORBIDDEN
    assert users.ask(alice, "masters", ms.CreateTable("mine"), ms.Accepted) == ms.FORBIDDEN
    eventually(lambda: "CreateTable: user:alice may not ADMIN the cluster" in texts())
