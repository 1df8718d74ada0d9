"""`rk secure --begin`: the daemons of an open cluster that `rk up` does not run get credentials one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from cli.common.local import SUPER_FILE
from cli.security.separation import SERVERS_DIR
from cli.topology.load import load
from cli.topology.words import arguments
from coord.security.credentials import OPEN_TOO_FILE, STORE_MASTERS_FILE
from coord.security.making import PEERS_FILE
from tests.e2e.clusters import run_rk
from tests.support.helpers import PATIENCE_S, Process, daemon, eventually, free_ports, rk

pytestmark = pytest.mark.e2e

_SHARED = "the masters' credential for the store"
_FILE = """
[cluster]
name = "byhand"
credentials = "{credentials}"
credentials-dir = "{folder}/certs"
data-dir = "{folder}"
{store}[[masters.node]]
host = "127.0.0.1"
port = {0}
admin-port = {1}
[servers]
shared-dir = "{folder}/shared"
[[servers.node]]
host = "127.0.0.1"
port = {2}
peer-port = {3}
admin-port = {4}
"""
_NODE = """[[store.node]]
host = "127.0.0.1"
client-port = {0}
peer-port = {1}
admin-port = {2}
"""
_NODES = 3


def names(nodes: int = _NODES) -> tuple[str, ...]:
    """Return the daemons of a cluster with so many store nodes, in the order of their restarts."""
    return (*(f"store-{number}" for number in range(1, nodes + 1)), "master-1", "server-1")


class ByHand:
    """Daemons by the command lines that `rk systemd` writes into units."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, credentials: str = "insecure", nodes: int = _NODES
    ) -> None:
        self.folder = folder
        ports = free_ports(5 + 3 * nodes)
        self._ports = ports[:5]
        self._nodes = [ports[at : at + 3] for at in range(5, len(ports), 3)]
        #: Of the store's nodes.
        self.addresses = [f"127.0.0.1:{one[0]}" for one in self._nodes]
        self.store = ("--store", ",".join(self.addresses))
        admin = (*(one[2] for one in self._nodes), self._ports[1], self._ports[4])
        self._admin = dict(zip(names(nodes), admin, strict=True))
        self._stack = stack
        self._processes: dict[str, Process] = {}
        (folder / "shared").mkdir()
        self.write(credentials)

    def open(self, *older: str) -> None:
        """Start all daemons, with the words `older` in place of the masters' credential."""
        for name in self._admin:
            (self.folder / name).mkdir()
            self.start(name, *older)
        eventually(lambda: all(self.is_ready(name) for name in self._admin), PATIENCE_S, "a cluster")

    def write(self, credentials: str) -> None:
        """Write the topology file."""
        nodes = "".join(_NODE.format(*one) for one in self._nodes)
        text = _FILE.format(*self._ports, store=nodes, credentials=credentials, folder=self.folder)
        (self.folder / "cluster.toml").write_text(text)

    def start(self, name: str, *older: str) -> None:
        """Start a daemon. `older`: options of an earlier build, in place of `--store-auth @DIR`."""
        words = rk("topology", "run", str(self.folder / "cluster.toml"), "--daemon", name)
        if older:
            topology = load(self.folder / "cluster.toml")
            (placed,) = (one for one in topology.nodes() if one.name == name)
            words = rk(*arguments(placed, topology))
            if "--store-auth" in words:
                at = words.index("--store-auth")
                words[at : at + 2] = older
        self._processes[name] = self._stack.enter_context(daemon(words, log=self.folder / f"{name}.log"))

    def restart(self, name: str) -> None:
        """Restart a daemon and wait until it is ready."""
        os.kill(self._processes[name].pid, signal.SIGTERM)
        self._processes[name].wait(PATIENCE_S)
        self.start(name)
        eventually(lambda: self.is_ready(name), PATIENCE_S, f"{name} is ready")

    def is_ready(self, name: str) -> bool:
        """Return True if /ready of a daemon is 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._admin[name]}/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def rk(self, *words: str) -> tuple[int, str]:
        """Run a command for this cluster; return status and output."""
        ran = run_rk(*words, *self.store)
        return ran.returncode, ran.stdout + ran.stderr

    def names_open_nodes(self) -> bool:
        """Return True if `rk health` is degraded, and names each store node that serves callers without a proof."""
        status, said = self.rk("health")
        lines = [line for line in said.splitlines() if "callers without a proof" in line]
        return status == 1 and len(lines) == 1 and all(one in lines[0] for one in self.addresses)


def test_daemons_started_by_hand_are_secured_by_the_steps_that_the_command_prints(tmp_path: Path) -> None:
    """No credential has to be invented: `--begin` makes all that the options of the steps name. While three store nodes
    get theirs, one with credentials and one without them are peers. `rk health` names each node that serves everybody.

    Tried: no `make_super` in `_begin`: the file that the steps name is missing. `_srvr` names no open door.
    """
    certs = tmp_path / "certs"
    with contextlib.ExitStack() as stack:
        cluster = ByHand(tmp_path, stack)
        cluster.open()
        status, said = cluster.rk("secure")
        assert (status, "rk secure --begin" in said) == (ExitStatus.USAGE, True), said
        begun = run_rk("secure", "--begin", "--certs-dir", str(certs), "--json")
        assert begun.returncode == 0, begun.stderr
        steps = json.loads(begun.stdout)["steps"]
        for file in (OPEN_TOO_FILE, SUPER_FILE, PEERS_FILE):
            assert any(file in one for one in steps)
            assert (certs / file).stat().st_mode & 0o777 == 0o600
        cluster.write("keys")
        for name in names():
            cluster.restart(name)
        (words,) = (one.split()[1:] for one in steps if one.startswith("rk secure --certs-dir"))
        eventually(cluster.names_open_nodes, PATIENCE_S, "all nodes serve callers without a proof")
        status, said = cluster.rk(*words)
        assert status == 0, said
        (certs / OPEN_TOO_FILE).unlink()
        status, said = cluster.rk(*words, "--finish")
        assert status == 0, said
        # One answer that comes late, on a busy machine, makes a verdict of `rk health` degraded.
        eventually(lambda: cluster.rk("health", "--certs-dir", str(certs))[0] == 0, PATIENCE_S, "a healthy cluster")
        assert cluster.rk("fsck", *words[1:])[0] == 0
        assert _SHARED not in cluster.rk("health", "--certs-dir", str(certs))[1]
        eventually(
            lambda: "proved no identity" in cluster.rk("health")[1], PATIENCE_S, "callers without a proof refused"
        )


def test_servers_of_an_earlier_build_get_an_identity_of_their_own(tmp_path: Path) -> None:
    """A topology whose region server has the masters' credential runs on with this build, and `rk health` says so.
    `rk secure` changes the lists and makes the files; without `store-auth` the server then does all its work.

    Tried: `separate` before the lists are changed: the restarted server cannot register. `status` of the server
    reports no shared credential. `rk fsck` demands the lists of separate servers.
    """
    certs, file = tmp_path / "certs", tmp_path / "cluster.toml"
    with contextlib.ExitStack() as stack:
        cluster = ByHand(tmp_path, stack, "keys", nodes=1)
        made = run_rk("topology", "credentials", str(file), "--to", str(certs))
        assert made.returncode == 0, made.stderr
        (certs / STORE_MASTERS_FILE).unlink()  # an earlier build makes no such files
        shutil.rmtree(certs / SERVERS_DIR)
        cluster.open("--store-auth", f"@{certs}/{SUPER_FILE}", "--store-readers", "rk:user")
        place = ("--topology", str(file))
        for words in (("table", "create", "t", "--replicas", "1"), ("put", "t", "k", "v")):
            done = run_rk(*words, *place)
            assert done.returncode == 0, done.stderr
        assert "Restart `rk up` with this build; or masters" in run_rk("secure", *place).stderr
        for name in ("master-1", "server-1"):  # an upgrade: the options of this build, the same files
            cluster.restart(name)
        eventually(lambda: _SHARED in run_rk("health", *place).stdout, PATIENCE_S, "a note about the server")
        assert _SHARED in run_rk("status", *place).stdout
        assert run_rk("fsck", *place).returncode == 0, "its lists are right as long as servers have the credential"
        assert run_rk("secure", "--dry-run", *place).returncode == 0
        assert not (certs / STORE_MASTERS_FILE).exists()
        secured = run_rk("secure", *place)
        assert secured.returncode == 0, secured.stdout + secured.stderr
        assert str(certs / SERVERS_DIR) in secured.stdout
        own = tmp_path / "own"  # the server's machine: it gets the directory that the command names
        shutil.copytree(certs / SERVERS_DIR, own)
        file.write_text(file.read_text().replace(str(certs), str(own)))
        assert not (own / SUPER_FILE).exists()
        cluster.restart("server-1")
        file.write_text(file.read_text().replace(str(own), str(certs)))
        eventually(lambda: run_rk("health", *place).returncode == 0, PATIENCE_S, "a healthy cluster")
        assert _SHARED not in run_rk("health", *place).stdout + run_rk("status", *place).stdout
        assert run_rk("put", "t", "k", "w", *place).returncode == 0
        again = json.loads(run_rk("secure", "--json", *place).stdout)
        assert (again["failed"], again["separated"]) == ([], [])
        assert run_rk("fsck", *place).returncode == 0
        assert "NoAuth" not in (tmp_path / "server-1.log").read_text()
