"""A cluster of `rk up --secure` and a stranger who knows every port and none of its files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, SessionClosedRequireSaslError

from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from coord.security import process
from coord.security.credentials import FOR_STORE, read_daemon, read_user
from coord.security.principal import SERVER, Principal
from regions import messages as ms
from regionserver.kv.messages import KvChange, KvRead, KvWrite
from regionserver.request_gate import Place
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually

_SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--regions", "2", "--plan-engine", "greedy")
_PLACE = Place("r1", "u", 1, 1)

#: The requests of masters and servers that a stranger was once served.
TO_MASTER = (
    ms.ListTables(),
    ms.DescribeTable("packages"),
    ms.CreateTable("stolen"),
    ms.DeleteTable("packages"),
    ms.SetRegionIntent("r1", assigned=False),
    ms.FenceServer("u"),
    ms.DrainServer("u"),
    ms.ShutdownCluster(),
    ms.GetMasterStatus(),
)
TO_SERVER = (
    ms.GetServerStatus(),
    KvRead(_PLACE, ["alice"]),
    KvWrite(_PLACE, [KvChange("alice", b"0 (stolen)")], "w", 1),
    ms.OpenRegions(2**62, "r", 1, [], 0, "c"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    folder = tmp_path_factory.mktemp("secured") / "data"
    with local_up(folder, "--secure", "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        yield up


@pytest.fixture
def _stranger() -> Iterator[None]:
    process.use(None)
    yield
    process.forget()


def address(up: LocalUp, kind: str) -> tuple[str, int]:
    """Return the RPC address of the first daemon of a kind."""
    daemons = json.loads((up.data_dir / "cluster.json").read_text())
    host, _, port = daemons[kind][0]["address"].rpartition(":")
    return host, int(port)


def refused(where: tuple[str, int], request: msgspec.Struct) -> str:
    """Send a request and return the sentence of its rejection."""
    with pytest.raises(RpcError) as caught:
        call_blocking(where, request, 10.0, expect=ms.Accepted)
    assert caught.value.code == Code.UNAUTHENTICATED
    return caught.value.message


@pytest.mark.usefixtures("_stranger")
@pytest.mark.parametrize("request_", [*TO_MASTER], ids=lambda one: type(one).__name__)
def test_a_stranger_gets_nothing_of_a_master(cluster: LocalUp, request_: msgspec.Struct) -> None:
    """Neither rows nor names nor the id of the cluster."""
    assert "accepts no caller without a proof" in refused(address(cluster, "masters"), request_)


@pytest.mark.usefixtures("_stranger")
@pytest.mark.parametrize("request_", TO_SERVER, ids=lambda one: type(one).__name__)
def test_a_stranger_gets_nothing_of_a_server(cluster: LocalUp, request_: msgspec.Struct) -> None:
    """A forged epoch included: no order of a stranger is read."""
    assert "accepts no caller without a proof" in refused(address(cluster, "servers"), request_)


def test_a_key_of_another_cluster_is_worth_nothing(cluster: LocalUp, tmp_path: Path) -> None:
    """The secrets differ, and so do the ids that the MACs cover."""
    assert run_rk("certs", "init", "--certs-dir", str(tmp_path / "other")).returncode == 0
    try:
        for kind in ("masters", "servers"):
            process.use(read_user(tmp_path / "other"))
            assert "those of another cluster" in refused(address(cluster, kind), ms.GetServerStatus())
    finally:
        process.forget()


def test_a_user_cannot_act_as_a_daemon(cluster: LocalUp, tmp_path: Path) -> None:
    """From a user's key no other key can be derived, and the secret of the cluster is not there."""
    home = cluster.data_dir / "certs"
    made = run_rk("certs", "issue", "--user", "bob", "--to", str(tmp_path / "bob"), "--certs-dir", str(home))
    assert made.returncode == 0, made.stderr
    with pytest.raises(Exception, match=r"cluster-secret\.json"):
        read_daemon(tmp_path / "bob", Principal(SERVER, "forged"))


def test_the_owner_and_the_owners_users_are_served(cluster: LocalUp, tmp_path: Path) -> None:
    """Commands find the credentials as they find addresses; others are given theirs."""
    data = ("--data-dir", str(cluster.data_dir))
    assert run_rk("put", "packages", "k", "v", *data).returncode == 0
    assert run_rk("get", "packages", "k", *data).stdout.strip() == "v"
    masters = "{}:{}".format(*address(cluster, "masters"))
    carol = tmp_path / "carol"
    assert run_rk("certs", "issue", "--user", "carol", "--to", str(carol), *data).returncode == 0
    assert run_rk("grant", "carol", "read", *data).returncode == 0
    listed = run_rk("table", "list", "--masters", masters, "--certs-dir", str(carol), "--data-dir", str(tmp_path))
    assert "packages" in listed.stdout
    stranger = run_rk("table", "list", "--masters", masters, "--data-dir", str(tmp_path))
    assert stranger.returncode != 0
    assert "give --certs-dir DIR (RK_CERTS_DIR)" in stranger.stderr


def store_of(up: LocalUp) -> str:
    """Return the client addresses of the cluster's store."""
    found: str = json.loads((up.data_dir / "cluster.json").read_text())["store"]
    return found


@contextlib.contextmanager
def zookeeper(hosts: str, *digests: str) -> Iterator[KazooClient]:
    """Yield a ZooKeeper client of somebody's own that proves these digests."""
    client = KazooClient(hosts, timeout=10, auth_data=[("digest", one) for one in digests])
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    "request_",
    [
        lambda client: client.get("/"),
        lambda client: client.exists("/regionkeeper"),
        lambda client: client.get_children("/"),
        lambda client: client.create("/mine", b""),
        lambda client: client.delete("/regionkeeper"),
        lambda client: client.sync("/"),
    ],
)
@pytest.mark.parametrize("digest", [(), ("admin:guess",), ("user:admin:1:" + "0" * 64,)])
def test_a_stranger_gets_nothing_of_the_store(cluster: LocalUp, request_: Any, digest: tuple[str, ...]) -> None:
    """As on a ZooKeeper with enforce.auth.enabled: a session is opened, and its first request ends the connection.

    Fails without `--require-auth rk` in `cli.common.local.command_line`.
    """
    with zookeeper(store_of(cluster), *digest) as client, pytest.raises(SessionClosedRequireSaslError):
        request_(client)


def test_a_users_key_is_enough_for_the_store(cluster: LocalUp, tmp_path: Path) -> None:
    """A ZooKeeper client with the token of a key reads the cluster's znodes and changes none; `rk` finds the token by
    itself. The token of an admin port is worth nothing here.

    Fails without `READERS` in the daemons' environment: NoAuthError.
    """
    data, store = ("--data-dir", str(cluster.data_dir)), store_of(cluster)
    dave = ("--certs-dir", str(tmp_path / "dave"))
    assert run_rk("certs", "issue", "--user", "dave", "--to", str(tmp_path / "dave"), *data).returncode == 0
    token = run_rk("certs", "token", "--for", "store", *dave).stdout.strip()
    with zookeeper(store, token) as client:
        assert client.get("/regionkeeper/epoch")[0]
        for change in (lambda: client.delete("/regionkeeper/epoch"), lambda: client.set("/regionkeeper/epoch", b"9")):
            with pytest.raises(NoAuthError):
                change()
        client.create("/of-dave", b"1")
        assert client.get_children("/")
    assert run_rk("grant", "dave", "read", *data).returncode == 0
    shown = run_rk("status", "--store", store, "--data-dir", str(tmp_path), *dave)
    assert "packages" in shown.stdout, shown.stderr
    for_admin = run_rk("certs", "token", *dave).stdout.strip()
    with zookeeper(store, for_admin) as client, pytest.raises(SessionClosedRequireSaslError):
        client.get("/")


def test_a_command_without_credentials_says_what_is_missing(cluster: LocalUp, tmp_path: Path) -> None:
    """Not that the store is away."""
    shown = run_rk("table", "list", "--store", store_of(cluster), "--data-dir", str(tmp_path))
    assert shown.returncode != 0
    assert "serves only clients that authenticate" in shown.stderr
    assert "--certs-dir" in shown.stderr


def test_revoked_keys_are_worth_nothing_at_any_port(cluster: LocalUp, tmp_path: Path) -> None:
    """Masters, servers, admin ports and store nodes refuse the user, RPC with a sentence; `--undo` ends it.

    Fails if `_key_of` does not ask the list, or if masters, servers or nodes do not learn it.
    """
    data, mallory = ("--data-dir", str(cluster.data_dir)), tmp_path / "mallory"
    daemons = json.loads((cluster.data_dir / "cluster.json").read_text())
    assert run_rk("certs", "issue", "--user", "mallory", "--to", str(mallory), *data).returncode == 0
    credentials = read_user(mallory)
    done = run_rk("certs", "revoke", "--user", "mallory", *data)
    assert "user:mallory is revoked" in done.stdout, done.stderr
    process.use(credentials)
    try:
        for kind in ("masters", "servers"):
            where = address(cluster, kind)
            eventually(lambda where=where: "was revoked on" in refusal_of(where), what=f"{kind} know it")
    finally:
        process.forget()
    bearer = {"Authorization": f"Bearer {credentials.token()}"}
    for kind in ("coord", "masters", "servers"):
        at = daemons[kind][0]["admin"]
        eventually(lambda at=at: page(at, "/metrics", bearer)[0] == HTTPStatus.UNAUTHORIZED, what=f"{kind} know it")
    token = credentials.token(FOR_STORE)
    eventually(lambda: not is_served(store_of(cluster), token), what="the store knows it")
    assert "user:mallory" in run_rk("certs", "revoked", *data).stdout
    assert run_rk("certs", "revoke", "--user", "mallory", "--undo", *data).returncode == 0
    eventually(lambda: is_served(store_of(cluster), token), what="the store knows the end of it")


def is_served(hosts: str, token: str) -> bool:
    """Return True if a node of the store serves whoever proves `token`."""
    with zookeeper(hosts, token) as client:
        try:
            return bool(client.get_children("/"))
        except SessionClosedRequireSaslError:
            return False


def refusal_of(where: tuple[str, int]) -> str:
    """Return the sentence of a rejection, "" if the caller is served or lacks a grant only."""
    try:
        call_blocking(where, ms.GetServerStatus(), 10.0, expect=ms.Accepted)
    except RpcError as error:
        return error.message
    except Exception:  # another reply than Accepted: it is served
        return ""
    return ""


def test_a_login_needs_no_further_options(cluster: LocalUp, tmp_path: Path) -> None:
    """Who logs in is asked of a master; later commands find cluster and credentials, until the logout."""
    data, erin = ("--data-dir", str(cluster.data_dir)), str(tmp_path / "erin")
    (tmp_path / "config.toml").touch(0o600)
    file = ("--config-file", str(tmp_path / "config.toml"))
    assert run_rk("certs", "issue", "--user", "erin", "--to", erin, *data).returncode == 0
    assert run_rk("grant", "erin", "read", *data).returncode == 0
    found = run_rk(*file, "login", "here", "--store", store_of(cluster), "--certs-dir", erin)
    assert "logged in as user:erin" in found.stdout, found.stderr
    assert "packages" in run_rk(*file, "table", "list").stdout
    assert run_rk(*file, "logout").returncode == 0
    assert run_rk(*file, "whoami", "--store", store_of(cluster)).returncode != 0


def test_secrets_are_rotated_without_a_restart(cluster: LocalUp) -> None:
    """Reads go on at each step, with daemons that run since before."""
    data = ("--data-dir", str(cluster.data_dir))
    pids = cluster.pids()
    for step in (
        ["rotate"],
        ["issue", "--user", "admin", "--to", str(cluster.data_dir / "certs")],
        ["rotate", "--finish"],
    ):
        assert run_rk("certs", *step, *data).returncode == 0
        found = run_rk("get", "packages", "k", *data)
        assert found.stdout.strip() == "v", found.stderr
        assert run_rk("table", "list", *data).returncode == 0
    assert cluster.pids() == pids


def test_admin_ports_tell_a_stranger_nothing(cluster: LocalUp) -> None:
    """Probes are served; names and figures are for a token, which `rk certs token` prints."""
    daemons = json.loads((cluster.data_dir / "cluster.json").read_text())
    token = run_rk("certs", "token", "--data-dir", str(cluster.data_dir)).stdout.strip()
    for kind in ("coord", "masters", "servers"):
        at = daemons[kind][0]["admin"]
        assert page(at, "/health")[0] == HTTPStatus.OK
        for path in ("/metrics", "/status"):
            status, body = page(at, path)
            assert status == HTTPStatus.UNAUTHORIZED
            assert "regionkeeper_" not in body
            assert page(at, path, {"Authorization": f"Bearer {token}"})[0] == HTTPStatus.OK
            assert page(at, path, {"Cookie": f"rk_token={token}"})[0] == HTTPStatus.OK
            assert page(at, path, {"Authorization": f"Bearer {token}0"})[0] == HTTPStatus.UNAUTHORIZED
    live = daemons["masters"][0]["admin"]
    for path in ("/", "/ui/data/overview", "/ui/stream"):
        assert page(live, path)[0] == HTTPStatus.UNAUTHORIZED
    assert page(live, f"/?token={token}")[0] == HTTPStatus.OK


def page(address: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Return status and body of a page."""
    connection = HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
