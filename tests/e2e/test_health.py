"""Daemons that cannot work report it: at the start they end, later /health says so (real processes)."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clusters import run_rk
from tests.e2e.masters import Process, cluster_on
from tests.e2e.nodes import store
from tests.support.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("taken", ["address", "admin address"])
@pytest.mark.parametrize("role", ["master", "server"])
def test_a_daemon_whose_port_is_taken_exits_with_one_sentence(role: str, taken: str, tmp_path: Path) -> None:
    """No process stays behind that a supervisor could take for a daemon. The check needs no store."""
    free, nowhere = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        address, admin = (port, free) if taken == "address" else (free, port)
        words = [role, "run", "--store", f"127.0.0.1:{nowhere}", "--data-dir", str(tmp_path / "data")]
        words += ["--address", f"127.0.0.1:{address}", "--admin-address", f"127.0.0.1:{admin}"]
        if role == "server":
            words += ["--shared-dir", str(tmp_path / "shared")]
        ended = run_rk(*words)
    assert ended.returncode == 1, ended
    assert f"cannot listen on {taken} 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def _health(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def _is_ill(port: int, why: str) -> bool:
    status, said = _health(port)
    return status == 503 and said["healthy"] is False and any(why in reason for reason in said["reasons"])


def test_health_reports_each_fault_with_its_reason(tmp_path: Path) -> None:
    """A shared directory that is gone, a cluster record that cannot be decoded, a store that is dead."""
    of_master, of_server, of_second, second_port = free_ports(4)
    with store(tmp_path / "store", 1) as nodes:
        hosts = nodes.hosts
        admin = ["--admin-address", f"127.0.0.1:{of_master}"]
        with cluster_on(hosts, tmp_path / "c", masters=1, servers=0, options=admin) as cluster:
            shared = tmp_path / "shared"
            words = ["server", "run", "--store", hosts, "--data-dir", str(tmp_path / "s"), "--shared-dir", str(shared)]
            [port] = free_ports(1)
            words += ["--address", f"127.0.0.1:{port}", "--admin-address", f"127.0.0.1:{of_server}"]
            server = Process(words, ("127.0.0.1", port), tmp_path / "server.log")
            words = ["master", "run", "--store", hosts, "--data-dir", str(tmp_path / "m2")]
            words += ["--address", f"127.0.0.1:{second_port}", "--admin-address", f"127.0.0.1:{of_second}"]
            second = Process(words, ("127.0.0.1", second_port), tmp_path / "m2.log")
            try:
                server.start()
                cluster.wait_servers(1)
                for admin_port in (of_master, of_server):
                    assert eventually(lambda at=admin_port: _health(at)[0] == 200, what="health")  # type: ignore[misc]

                shared.rename(tmp_path / "elsewhere")
                eventually(lambda: _is_ill(of_server, "shared directory"), what="the directory is missed")
                (tmp_path / "elsewhere").rename(shared)
                eventually(lambda: _health(of_server) == (200, _health(of_server)[1]), what="it is back")

                path = cluster.layout.cluster
                before = cluster.zk.get(path)[0]
                cluster.zk.set(path, b"rubbish")
                second.start()
                eventually(lambda: _is_ill(of_second, "cannot enter the election"), what="the second master says so")
                cluster.zk.set(path, before)
                eventually(lambda: _health(of_second)[0] == 200, what="the second master stands")
            except BaseException:
                for process in (server, second):
                    if process.log.exists():
                        print(process.log.read_text()[-4000:])  # noqa: T201
                server.kill()
                second.kill()
                raise
            try:
                nodes.all(signal.SIGKILL)
                eventually(lambda: _is_ill(of_master, "no session with the store"), what="the master misses the store")
                eventually(lambda: _is_ill(of_server, "not serving for"), what="the server misses the store")
            finally:
                server.kill()
                second.kill()
