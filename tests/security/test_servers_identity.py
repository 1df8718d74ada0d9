"""Region servers prove an identity of their own to the store: it writes what servers write by design, nothing else.

A cluster that an earlier build has secured, in which servers have the masters' credential, goes on, and `rk secure`
separates the two while it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoAuthError
from kazoo.security import ACL, Id

from cli.common.local import CERTS_DIR, read_cluster
from coord import kill_points
from coord.client.access_lists import letters
from coord.security.credentials import FOR_STORE, read_daemon
from coord.security.principal import SERVER, Principal
from regions.records.znode_table import server_rights
from regions.records.znodes import DEFAULT_ROOT, Layout
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security.store_node import running_store
from tests.support.helpers import eventually, rk

pytestmark = pytest.mark.e2e

_SHAPE: Final = ("--store-nodes", "1", "--masters", "2", "--servers", "3", "--regions", "2", "--plan-engine", "greedy")
_TINY: Final = ("--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")
_SHARED: Final = "the masters' credential for the store"
#: No znode has this version: a request with it changes nothing, but shows whether it would be allowed.
_NO_VERSION: Final = 1_000_000
_ROOT: Final = DEFAULT_ROOT


@contextmanager
def session(up: LocalUp, credential: str) -> Iterator[KazooClient]:
    """Yield a session with the cluster's store that has proved a credential."""
    local = read_cluster(up.data_dir)
    assert local is not None
    certs = up.data_dir / CERTS_DIR
    files = {"ca": "ca.crt", "certfile": "user.admin.crt", "keyfile": "user.admin.key"}
    tls = {"use_ssl": True, **{key: str(certs / name) for key, name in files.items()}} if local.tls else {}
    client = KazooClient(local.store, timeout=10, auth_data=[("digest", credential)], **tls)
    try:
        client.start(30)
        yield client
    finally:
        client.stop()
        client.close()


def servers_token(up: LocalUp) -> str:
    """Return all that a region server has for the store."""
    found = read_daemon(up.data_dir / CERTS_DIR, Principal(SERVER, "server-1"))
    return found.token(FOR_STORE)


def tree(client: KazooClient, top: str) -> list[str]:
    """Return all paths below `top`, and `top`."""
    return [top, *(path for name in client.get_children(top) for path in tree(client, f"{top}/{name}"))]


def may(client: KazooClient, owner: KazooClient, path: str) -> str:
    """Return what a session may do with a znode, by trying all that."""
    rights = ""
    attempts = (
        ("r", lambda: client.get(path)),
        ("w", lambda: client.set(path, b"", _NO_VERSION)),
        ("c", lambda: client.create(f"{path}/of-an-attacker", b"")),
        ("a", lambda: client.set_acls(path, [ACL(31, Id("world", "anyone"))], _NO_VERSION)),
    )
    for right, attempt in attempts:
        try:
            attempt()
        except NoAuthError:
            continue
        except BadVersionError:
            pass
        rights += right
        if right == "c":
            owner.delete(f"{path}/of-an-attacker")
    return rights


def says(up: LocalUp, *words: str, status: int = 0) -> str:
    """Run `rk` for the cluster and return its output."""
    ran = run_rk(*words, "--data-dir", str(up.data_dir))
    assert ran.returncode == status, (words, ran.stdout, ran.stderr)
    return ran.stdout


def credentials_of_servers(up: LocalUp) -> list[str]:
    """Return the variables by which the region servers that run prove themselves to the store."""
    local = read_cluster(up.data_dir)
    assert local is not None
    found = set()
    for one in local.servers:
        if one.pid:
            variables = Path(f"/proc/{one.pid}/environ").read_bytes().decode().split("\0")
            given = [text.partition("=") for text in variables if text.startswith(("RK_STORE_AUTH", "RK_STORE_MAS"))]
            found |= {name for name, _, value in given if value}
    return sorted(found)


def test_a_stolen_server_writes_what_servers_write_and_nothing_else(tmp_path: Path) -> None:
    """Every znode of a cluster with tablets and a shared table is tried. Meanwhile the servers do all their work: they
    register again, take regions over and report them, and no request of theirs is denied.

    Tried: `server_rights` allows writing everywhere; masters create znodes without `acl_of`.
    """
    with local_up(tmp_path / "up", *_SHAPE, "--base-port", str(free_base_port())) as up:
        up.event("up")
        assert credentials_of_servers(up) == ["RK_STORE_MASTERS"]
        says(up, "table", "create", "shared", "--replicas", "1")
        says(up, "grant", "alice", "read", "--table", "shared")
        says(up, "certs", "revoke", "--serial", "5e1f")
        says(up, "put", "shared", "alice", "100")
        os.kill(json.loads((up.data_dir / "cluster.json").read_text())["servers"][0]["pid"], signal.SIGKILL)
        eventually(lambda: says_open(up), what="all regions open after the death of a server")
        assert says(up, "get", "shared", "alice") == "100\n"
        with session(up, servers_token(up)) as thief, session(up, up.store_auth()) as owner:
            paths = tree(owner, _ROOT)
            held = [path for path in owner.get_children("/") if path.startswith("regionkeeper-revoked")]
            assert held
            for path in [*paths, *(f"/{one}" for one in held), "/zookeeper/config"]:
                is_ephemeral = bool(owner.exists(path) and owner.exists(path).ephemeralOwner)
                wanted = letters(server_rights(_ROOT, path)).replace("d", "")
                if is_ephemeral:
                    continue
                assert may(thief, owner, path) == wanted, path
            for path in (f"{_ROOT}/active", f"{_ROOT}/masters/{owner.get_children(f'{_ROOT}/masters')[0]}"):
                for attack in (lambda path=path: thief.set(path, b"{}"), lambda path=path: thief.delete(path)):
                    with pytest.raises(NoAuthError):
                        attack()
            for path in (f"{_ROOT}/epoch", f"{_ROOT}/grants", f"{_ROOT}/tables", f"{_ROOT}/plans"):
                with pytest.raises(NoAuthError):
                    thief.delete(path)
            owner.create("/of-another-program", b"", [ACL(31, Id("digest", "other:x"))])
            with pytest.raises(NoAuthError):
                thief.get("/of-another-program")
        eventually(lambda: is_right(up), what="a check that finds nothing")
        logs = "".join(file.read_text() for file in (up.data_dir / "logs").glob("server-*.log"))
        assert "denied" not in logs
        assert "NoAuth" not in logs


def health(up: LocalUp) -> str:
    """Return what `rk health` prints, also while tablets still look for their members."""
    return run_rk("health", "--data-dir", str(up.data_dir)).stdout


def is_right(up: LocalUp) -> bool:
    """Return True if `rk fsck` finds nothing."""
    return run_rk("fsck", "--data-dir", str(up.data_dir)).returncode == 0


def says_open(up: LocalUp) -> bool:
    """Return True if `rk health` finds nothing wrong."""
    return run_rk("health", "--data-dir", str(up.data_dir)).returncode == 0


def _strip(up: LocalUp, credential: str = "") -> int:
    """Give all znodes the lists of an earlier build, in which servers have no line; return their number."""
    with session(up, credential or up.store_auth()) as owner:
        paths = tree(owner, _ROOT)
        for path in paths:
            lines, _ = owner.get_acls(path)
            owner.set_acls(path, [one for one in lines if not one.id.id.startswith("server")])
    return len(paths)


def _killed(up: LocalUp, point: str) -> None:
    """Run `rk secure` until it dies at a point."""
    command = rk("secure", "--data-dir", str(up.data_dir))
    environment = os.environ | {kill_points.KILL_VARIABLE: point}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, (point, ran.stdout, ran.stderr)


def test_a_cluster_of_an_earlier_build_is_separated_while_it_runs(tmp_path: Path) -> None:
    """It starts, works and is healthy as it was: servers have the masters' credential. `rk secure`, twice killed on the
    way, changes the lists and restarts the servers; then, and after the next start, servers have only their own.

    Tried: `_has_separate_servers` is True for every secured cluster; `_separate_servers` before the lists are changed.
    """
    data = tmp_path / "up"
    with local_up(data, *_SHAPE, "--base-port", str(free_base_port())) as up:
        up.event("up")
        says(up, "table", "create", "shared", "--replicas", "1")
        says(up, "put", "shared", "alice", "100")
        _strip(up)
        assert up.stop() == 0
    file = data / "cluster.json"
    content = json.loads(file.read_text())
    del content["separate_servers"]
    file.write_text(json.dumps(content))
    with local_up(data) as up:
        up.event("up")
        assert credentials_of_servers(up) == ["RK_STORE_AUTH"]
        eventually(lambda: is_right(up), what="a check that finds nothing")
        assert "`rk secure` gives them an identity of their own" in health(up)
        says(up, "put", "shared", "bob", "200")
        _killed(up, f"access list {Layout(_ROOT).unassigned}/80")
        eventually(lambda: is_right(up), what="a check that takes both forms")
        says(up, "put", "shared", "alice", "101")
        _killed(up, "servers separated")
        secured = json.loads(says(up, "secure", "--json"))
        assert (secured["failed"], secured["restarted"]) == ([], ["server-1", "server-2", "server-3"])
        assert credentials_of_servers(up) == ["RK_STORE_MASTERS"]
        again = json.loads(says(up, "secure", "--json"))
        assert (again["changed"], again["restarted"]) == (0, [])
        assert "identity of their own" not in health(up)
        with session(up, servers_token(up)) as thief, session(up, up.store_auth()) as owner:
            for path in (f"{_ROOT}/epoch", f"{_ROOT}/grants", f"{_ROOT}/unassigned/80", f"{_ROOT}/servers"):
                assert may(thief, owner, path) == letters(server_rights(_ROOT, path)).replace("d", "")
            lines, _ = owner.get_acls(f"{_ROOT}/servers")
            owner.set_acls(f"{_ROOT}/servers", [one for one in lines if one.id.id != "server"])
        assert f"{_ROOT}/servers" in says(up, "fsck", status=1)
        run_rk("fsck", "--fix", "--yes", "--data-dir", str(data))
        eventually(lambda: is_right(up), what="a check that finds nothing")
        assert up.stop() == 0
    with local_up(data) as up:
        up.event("up")
        assert credentials_of_servers(up) == ["RK_STORE_MASTERS"]
        assert (says(up, "get", "shared", "alice"), says(up, "get", "shared", "bob")) == ("101\n", "200\n")
        eventually(lambda: is_right(up), what="a check that finds nothing")


@contextmanager
def older(up: LocalUp, owner: str, *options: str) -> Iterator[LocalUp]:
    """Stop a new cluster and start it as one of an earlier build: no list names the servers."""
    up.event("up")
    assert credentials_of_servers(up)[-1] == "RK_STORE_MASTERS", "a new cluster begins with separate servers"
    says(up, "table", "create", "shared", "--replicas", "1", *options)
    says(up, "put", "shared", "alice", "100", *options)
    _strip(up, owner)
    assert up.stop() == 0
    file = up.data_dir / "cluster.json"
    content = json.loads(file.read_text())
    del content["separate_servers"]
    file.write_text(json.dumps(content))
    with local_up(up.data_dir, *options) as again:
        again.event("up")
        yield again


@pytest.mark.parametrize("is_tls", [True, False])
def test_other_forms_of_an_older_cluster_are_separated_while_they_run(tmp_path: Path, is_tls: bool) -> None:
    """An older cluster has certificates on every port, or the operator's credential for a store outside `rk up`.

    Tried: `servers_identity` is the same for a store of others; `store_access` names no servers beside a credential.
    """
    data = tmp_path / "up"
    with ExitStack() as stack:
        shape = (*_TINY, "--base-port", str(free_base_port()))
        if is_tls:
            first, options = stack.enter_context(local_up(data, *shape, "--store-nodes", "1", "--tls")), ()
        else:
            (tmp_path / "own").write_text("ops:secret")
            (tmp_path / "own").chmod(0o600)
            (tmp_path / "own").chmod(0o600)
            options = ("--store-auth", f"@{tmp_path}/own")
            store = stack.enter_context(running_store(tmp_path))
            first = stack.enter_context(local_up(data, *shape, "--store", f"zk://{store.address}", *options))
        up = stack.enter_context(older(first, "" if is_tls else "ops:secret", *options))
        assert credentials_of_servers(up) == ["RK_STORE_AUTH"]
        log = data / "logs" / "server-1.log"
        before = len(log.read_text())
        assert _SHARED in run_rk("health", "--data-dir", str(data), *options).stdout
        assert _SHARED in run_rk("status", "--data-dir", str(data), *options).stdout
        secured = json.loads(says(up, "secure", "--json", *options))
        assert (secured["failed"], secured["restarted"]) == ([], ["server-1"])
        assert credentials_of_servers(up) == ([] if is_tls else ["RK_STORE_AUTH"]) + ["RK_STORE_MASTERS"]
        eventually(
            lambda: _SHARED not in run_rk("health", "--data-dir", str(data), *options).stdout, what="separate servers"
        )
        assert says(up, "get", "shared", "alice", *options) == "100\n"
        says(up, "put", "shared", "carol", "300", *options)
        eventually(lambda: run_rk("fsck", "--data-dir", str(data), *options).returncode == 0, what="right lists")
        assert "NoAuth" not in log.read_text()[before:]
