"""Clusters by topology files: two on one machine, one of them grown, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.common.local import SUPER_FILE
from cli.up.control import ControlRequest, ask
from coord.security.credentials import STORE_MASTERS_FILE
from tests.e2e.clusters import free_base_port, local_up, processes_of, run_rk
from tests.support.helpers import PATIENCE_S, daemon, eventually, rk

pytestmark = pytest.mark.e2e

FILE = """# a small one
[cluster]
name = "{name}"
base-port = {port}
[store]
count = 1
[masters]
count = 1
[servers]
count = 1
"""


def rk_json(*words: str) -> list[dict[str, Any]]:
    """Run a command that must succeed; return the lines of its JSON."""
    done = run_rk(*words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_cluster_grows_and_starts_again_as_it_was(tmp_path: Path) -> None:
    """A server, a master and two store nodes are added beside another cluster; rows, files and members agree. The first
    store node is left by a command that was killed."""
    file = tmp_path / "one.toml"
    file.write_text(FILE.format(name="one", port=free_base_port()))
    other = tmp_path / "two.toml"
    other.write_text(FILE.format(name="two", port=free_base_port()))
    data = tmp_path / "one-data"
    options = ("--plan-engine", "greedy")
    with local_up(tmp_path / "two-data", "--topology", str(other), "--no-table", *options) as second:
        second.event("up")
        with local_up(data, "--topology", str(file), "--regions", "4", *options) as up:
            up.event("up")
            assert run_rk("put", "packages", "k", "v", "--data-dir", str(data)).returncode == 0
            ask(data, ControlRequest("add", name="store"))  # as a command does that is killed before it adds the member
            for kind, count in (("server", 1), ("master", 1), ("store", 2)):
                said = rk_json("up", "add", kind, "--count", str(count), "--topology", str(file))
                assert [one["event"] for one in said].count("added") == count
            assert [said[0]["event"], said[0]["daemon"]] == ["continued", "store-2"]
            nodes = json.loads(run_rk("coord", "list", "--json", "--data-dir", str(data)).stdout)["nodes"]
            assert [(node["id"], node["role"]) for node in nodes] == [(n, "participant") for n in (1, 2, 3)]
            refused = run_rk("up", "add", "server", "--rack", "r9", "--data-dir", str(data))
            assert refused.returncode == 1
            assert "gives racks by their count" in refused.stderr
            assert up.stop() == 0, up.said()
        assert "joined = [2, 3]" in file.read_text()
        with local_up(data, "--topology", str(file), *options) as up:
            cluster = up.event("up")["cluster"]
            assert [len(cluster[kind]) for kind in ("coord", "masters", "servers")] == [3, 2, 2]
            got = run_rk("get", "packages", "k", "--data-dir", str(data))
            assert got.stdout.strip() == "v", got.stderr
            assert up.stop() == 0, up.said()
        assert run_rk("status", "--topology", str(other)).returncode == 0
        assert second.stop() == 0
    assert processes_of(tmp_path) == []


MACHINES = """
[cluster]
name = "far"
data-dir = "{folder}"
credentials = "{credentials}"
credentials-dir = "{folder}/certs"
[[store.node]]
host = "127.0.3.1"
client-port = {port}1
peer-port = {port}2
admin-port = {port}3
[[masters.node]]
host = "127.0.3.2"
port = {port}4
admin-port = {port}5
[[servers.node]]
host = "127.0.3.3"
port = {port}6
peer-port = {port}7
admin-port = {port}8
"""


def exec_start(file: Path, host: str) -> list[str]:
    """Return the words after `rk` in the unit of the only daemon of a machine."""
    found = json.loads(run_rk("systemd", str(file), "--host", host, "--program", "/opt/rk", "--json").stdout)
    (line,) = re.findall(r"^ExecStart=/opt/rk (.*)$", "\n".join(found["files"].values()), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("credentials", ["keys", "insecure"])
def test_daemons_of_machines_work_together(tmp_path: Path, credentials: str) -> None:
    """Each daemon has an address of its own, as on machines; the secrets are those that the topology demands.

    With keys the command lines are those of systemd's units. Commands know all of this from the file.
    `tests/security/test_rotation.py` has machines with certificates.
    """
    folder = tmp_path / "far"
    file = tmp_path / "far.toml"
    port = free_base_port() // 10
    file.write_text(MACHINES.format(folder=folder, port=port, credentials=credentials))
    folder.mkdir()
    if credentials != "insecure":
        made = run_rk("topology", "credentials", str(file), "--to", str(folder / "certs"))
        assert made.returncode == 0, made.stderr
    place = ("--topology", str(file))
    with contextlib.ExitStack() as stack:
        for name, host in (("store-1", "127.0.3.1"), ("master-1", "127.0.3.2"), ("server-1", "127.0.3.3")):
            chosen = ("--host", host) if name == "master-1" else ("--daemon", name)
            words = rk("topology", "run", str(file), *chosen)
            if credentials == "keys":
                words = rk(*exec_start(file, host))
            stack.enter_context(daemon(words, log=tmp_path / f"{name}.log"))

        eventually(lambda: run_rk("health", *place).returncode == 0, 2 * PATIENCE_S, what="the cluster is healthy")
        for words in (
            ("table", "create", "t", "--regions", "1", "--storage", "tablet"),
            ("put", "t", "k", "v"),
            ("get", "t", "k"),
        ):
            done = run_rk(*words, *place)
            assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "v"
        if credentials == "insecure":
            return
        place = (*place, "--store-auth", f"@{folder / 'certs'}")
        assert "the masters' credential" not in run_rk("health", *place).stdout
        assert run_rk("fsck", *place).returncode == 0
        assert (folder / "certs" / "servers" / STORE_MASTERS_FILE).exists()
        assert not (folder / "certs" / "servers" / SUPER_FILE).exists()
