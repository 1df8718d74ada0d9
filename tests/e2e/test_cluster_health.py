"""`rk health` while parts of a real cluster are frozen or gone: each state has its verdict, reason and exit status."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.common.access import open_store
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.e2e.nodes import store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--no-table")
HEALTHY, DEGRADED, UNAVAILABLE = 0, 1, 2
#: The command ends within 2 s on a quiet machine. Far below the 10 s and more of a session with a store that is away.
LONGEST_S = 8.0


class Answer(NamedTuple):
    """Exit status and content of one `rk health --json`."""

    status: int
    report: dict[str, Any]

    @property
    def reasons(self) -> str:
        return "\n".join(self.report["reasons"])


def health(up: LocalUp) -> Answer:
    """Ask once. The command must end soon, whatever is down."""
    began_s = time.monotonic()
    done = run_rk("health", "--json", "--data-dir", str(up.data_dir))
    assert time.monotonic() - began_s < LONGEST_S
    assert done.returncode in (HEALTHY, DEGRADED, UNAVAILABLE), done.stderr
    return Answer(done.returncode, json.loads(done.stdout))


def becomes(up: LocalUp, status: int, reason: str = "", regions: int | None = None) -> Answer:
    """Wait for a verdict with a reason, and for that number of open regions if given; return the answer."""

    def found() -> Answer:
        answer = health(up)
        assert answer.status == status, answer
        assert reason in answer.reasons, answer
        assert regions is None or answer.report["figures"]["open"] == regions, answer
        return answer

    return eventually(found, 60.0, f"verdict {status} because of {reason!r}")


def pids(up: LocalUp, *names: str) -> list[int]:
    cluster = json.loads((up.data_dir / "cluster.json").read_text())
    return [one["pid"] for kind in ("coord", "masters", "servers") for one in cluster[kind] if one["name"] in names]


@contextlib.contextmanager
def frozen(up: LocalUp, *names: str) -> Iterator[None]:
    """Stop these daemons; they go on at the end."""
    stopped = pids(up, *names)
    assert len(stopped) == len(names)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def store_nodes(up: LocalUp, status: int) -> list[dict[str, Any]]:
    """Return what `rk coord status` says of each node; it must end with `status`."""
    done = run_rk("coord", "status", "--json", "--data-dir", str(up.data_dir))
    assert done.returncode == status, (done.stdout, done.stderr)
    found: list[dict[str, Any]] = json.loads(done.stdout)["nodes"]
    return found


def why(up: LocalUp, name: str) -> dict[str, Any]:
    """Return what `rk why` says of a process."""
    done = run_rk("why", name, "--json", "--data-dir", str(up.data_dir))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_znodes_can_be_looked_at(tmp_path: Path) -> None:
    """A store without region servers: lists, data, stats, and the mistakes of a newcomer."""
    with store(tmp_path / "store", 1) as running:
        at = ("--store", running.hosts)
        eventually(lambda: run_rk("coord", "stat", "/", *at).returncode == 0, what="the store serves")
        with open_store(running.hosts) as client:
            client.create("/a/b", b"text", makepath=True)
            client.create("/a/c", b"\xff\x00")
        assert run_rk("coord", "ls", "/a", *at).stdout.splitlines() == ["b", "c"]
        listed = json.loads(run_rk("coord", "ls", "/a", "--json", *at).stdout)["children"]
        assert [(one["name"], one["stat"]["dataLength"]) for one in listed] == [("b", 4), ("c", 2)]
        assert run_rk("coord", "get", "/a/b", *at).stdout == "text"
        assert json.loads(run_rk("coord", "get", "/a/c", "--json", *at).stdout)["base64"] == "/wA="
        assert "numChildren     2" in run_rk("coord", "stat", "/a", *at).stdout
        for words, exit_status, text in [
            (("get", "/a/d"), 4, "there is no znode /a/d"),
            (("stat", "/a/d"), 4, "there is no znode /a/d"),
            (("ls", "a"), 2, "'a' is no path of a znode"),
        ]:
            done = run_rk("coord", *words, *at)
            assert (done.returncode, text in done.stderr) == (exit_status, True), done
        [node] = json.loads(run_rk("coord", "status", "--json", *at).stdout)["nodes"]
        assert (node["role"], node["error"], node["behind"]) == ("standalone", "", 0)


def server_with_regions(up: LocalUp) -> dict[str, Any]:
    return next(one for one in health(up).report["servers"] if one["regions"])


def test_each_ruin_has_its_verdict(tmp_path: Path) -> None:
    """B2, B3, B7, B8: the command works without an active master, without a majority of the store, and without any
    process."""
    data_dir = tmp_path / "rk-data"
    at = ("--data-dir", str(data_dir))
    with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as up:
        up.event("up")
        made = run_rk("table", "create", "orders", "--replicas", "1", *(f"--split={key}" for key in "bcdef"), *at)
        assert made.returncode == 0, made.stderr
        well = becomes(up, HEALTHY)
        assert well.report["reasons"] == []
        assert [one["role"] for one in well.report["masters"]].count("active") == 1
        assert all(one["answers"] for kind in ("store", "masters", "servers") for one in well.report[kind])
        checked = run_rk("status", "--check", *at)
        assert (checked.returncode, "HEALTHY" in checked.stdout) == (HEALTHY, True)

        with frozen(up, "master-1", "master-2"):
            found = health(up)
            assert found.status == DEGRADED
            assert "no master is active" in found.reasons
            assert "master-2 accepts connections and does not answer" in found.reasons
            assert found.report["figures"] is None
        becomes(up, HEALTHY)

        assert why(up, "master-1")["kind"] == "master"
        assert why(up, "store-1")["state"] in ("leader", "follower")
        drained = run_rk("server", "drain", "server-1", *at)
        assert drained.returncode == 0, drained.stderr
        emptied = why(up, "server-1")
        assert (emptied["state"], emptied["help"]) == ("drained", ["rk server undrain server-1"])
        assert run_rk("server", "undrain", "server-1", *at).returncode == 0
        nodes = store_nodes(up, 0)
        assert sorted(one["role"] for one in nodes) == ["follower", "follower", "leader"]
        assert len({one["term"] for one in nodes}) == 1
        assert all(one["log_write_p99_ms"] > 0 and one["data_bytes"] > 0 for one in nodes)
        with frozen(up, "store-1", "store-2"):
            nodes = store_nodes(up, 1)
            assert [one["error"] for one in nodes[:2]] == ["accepts connections and does not answer"] * 2
            assert [one["term"] for one in nodes[:2]] == [None, None]
            assert nodes[2]["commit"] is not None
            assert why(up, "store-1")["state"] == "silent"
            assert why(up, "server-1")["state"] == "up"
            # On a busy machine the third node may need longer for an answer than the command waits.
            eventually(lambda: "the store has no leader" in health(up).reasons, what="the third node says so")
            found = health(up)
            assert found.status == UNAVAILABLE
            assert "store-2 accepts connections and does not answer" in found.reasons
        becomes(up, HEALTHY)

        # The session, and so the place in the store, lasts some seconds longer than the silence, so no other server
        # serves the regions.
        server = server_with_regions(up)
        with frozen(up, server["name"]):
            found = health(up)
            assert found.status == UNAVAILABLE
            assert f"region server {server['name']} accepts connections and does not answer" in found.reasons
            assert "regions are served by nobody" in found.reasons
            silent = why(up, server["name"])
            assert silent["state"] == "silent"
            assert "accepts connections and does not answer" in silent["facts"][0]
            assert any("server" in one and one.startswith("its log: ") for one in silent["help"])
            # Its regions open elsewhere, some moments after its session has ended; the server itself is still missing.
            moved = becomes(up, DEGRADED, server["name"], regions=6)
            assert "not open yet" not in moved.reasons
        becomes(up, HEALTHY)
        up.kill_everything()
        found = health(up)
        assert found.status == UNAVAILABLE
        assert "no node of the store answers" in found.reasons
        assert "no region server answers" in found.reasons
        assert "rk up --data-dir" in run_rk("health", *at).stdout
