"""Drills on a cluster that is named by its store alone (N1): observation, and the operator's commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.common.local import CERTS_DIR, SUPER_FILE
from cli.up.control import ControlRequest, ask
from tests.e2e.clusters import LocalUp, free_base_port, local_up, processes_of, run_rk
from tests.support.helpers import eventually, heed_ctrl_c, rk

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "1", "--masters", "2", "--servers", "3", "--regions", "8", "--plan-engine", "greedy")
#: Stands for the operator's tool: it kills and starts the processes of another machine.
HOOK = """
import sys
from pathlib import Path
from cli.up.control import ControlRequest, ask
data_dir, op, address = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
name = next(one.name for one in ask(data_dir, ControlRequest("list")) if one.address == address)
ask(data_dir, ControlRequest(op, name, 9))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """Yield a cluster; the drills here know only its store and its credentials."""
    data_dir = tmp_path_factory.mktemp("outside") / "rk-data"
    with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as found:
        found.event("up")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RK_CERTS_DIR", str(data_dir / CERTS_DIR))
            patch.setenv("RK_STORE_AUTH", f"@{data_dir / SUPER_FILE}")
            yield found


def store_of(up: LocalUp) -> str:
    """Return the address of the store."""
    return next(one.address for one in ask(up.data_dir, ControlRequest("list")) if one.role == "store")


@pytest.mark.parametrize(("name", "role"), [("server-crash", "server"), ("master-failover", "master")])
def test_a_drill_kills_and_starts_by_the_operators_commands(up: LocalUp, tmp_path: Path, name: str, role: str) -> None:
    """The victim is named by its address and started again, and the verdict is that of any drill."""
    script = tmp_path / "hook.py"
    script.write_text(HOOK)
    hook = f"{sys.executable} {script} {up.data_dir}"
    words = ("--kill-with", f"{hook} kill {{address}}", "--start-with", f"{hook} start {{address}}")
    before = {one.address: one.pid for one in ask(up.data_dir, ControlRequest("list"))}
    done = run_rk("drill", name, "--store", store_of(up), "--json", "--rate", "40", *words, timeout_s=300.0)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    after = {one.address: one for one in ask(up.data_dir, ControlRequest("list"))}
    victim = after[report["victim"]]
    assert victim.role == role
    assert victim.pid not in (0, before[victim.address])
    assert report["traffic"]["acknowledged_writes"] > 0
    assert "every daemon runs, none died by itself" in {one["name"] for one in report["checks"]}


def test_a_backup_is_restored_into_an_empty_cluster(up: LocalUp, tmp_path: Path) -> None:
    """Every acknowledged write is in the backup, every row in the new cluster, and neither is left behind."""
    told = run_rk("table", "create", "files", "--replicas", "1", "--split", "m", "--data-dir", str(up.data_dir))
    assert told.returncode == 0, told.stderr
    words = ("drill", "restore", "--json", "--rate", "40", "--in", str(tmp_path), "--data-dir", str(up.data_dir))
    done = run_rk(*words, timeout_s=300.0)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert {
        "the backup is whole",
        "what was acknowledged before a region's point is in the backup",
        "every row was restored",
    } <= {one["name"] for one in report["checks"] if one["held"]}
    found = {one["name"]: one["value"] for one in report["figures"]}
    assert found["rows"] > 0
    assert found["backup"] > 0
    assert found["restore"] > 0
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_an_observation_reports_what_others_broke(up: LocalUp) -> None:
    """Ctrl-C ends it with a verdict; the session that ended meanwhile is counted, and the record is in the cluster."""
    words = rk("drill", "observe", "--store", store_of(up), "--json", "--rate", "40")
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - sets one handler
    )
    try:
        assert process.stderr is not None
        said: list[str] = []

        def says(text: str) -> bool:
            assert process.stderr is not None
            while text not in (said or [""])[-1]:
                line = process.stderr.readline()
                assert line, said
                said.append(line)
            return True

        says("observing until Ctrl-C")
        ask(up.data_dir, ControlRequest("kill", "server-2", signal.SIGKILL))
        says("lost its session")
        ask(up.data_dir, ControlRequest("start", "server-2"))
        says("registered")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, f"{out}\n{err}\n{said}"
    report = json.loads(out)
    assert report["held"]
    assert {one["name"]: one["value"] for one in report["figures"]}["sessions lost"] == 1
    listed = run_rk("drill", "list", "--json", "--store", store_of(up))
    assert json.loads(listed.stdout)["drills"][-1]["verdict"] == "held"


def test_an_observation_of_a_broken_cluster_fails(up: LocalUp) -> None:
    """A server that stays away breaks the verdict."""
    ask(up.data_dir, ControlRequest("kill", "server-3", signal.SIGTERM))
    eventually(lambda: any(not one.pid for one in ask(up.data_dir, ControlRequest("list"))), what="it has stopped")
    done = run_rk("drill", "observe", "--store", store_of(up), "--for", "1s", "--no-load", timeout_s=200.0)
    ask(up.data_dir, ControlRequest("start", "server-3"))
    assert done.returncode == 1
    assert "not healthy before the drill" in done.stderr
