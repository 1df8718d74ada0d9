"""`rk up` on a disk that fills: it reports the error and continues; its file is current again when there is room."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cli.common.local import CLUSTER_FILE
from tests.e2e.clusters import free_base_port, local_up, run_rk
from tests.support.helpers import eventually
from tests.support.small_disk import fill, small_disk

pytestmark = pytest.mark.e2e

DEADLINE_S = 90.0
SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")


def pid_of(data_dir: Path, kind: str) -> int:
    """Return the pid in cluster.json."""
    return int(json.loads((data_dir / CLUSTER_FILE).read_text())[kind][0]["pid"])


def test_a_full_disk_under_rk_up_stops_nothing(tmp_path: Path) -> None:
    """Once, the death of a daemon caused a write to the file, and the failed write ended the whole cluster."""
    with small_disk(tmp_path / "disk", 160) as disk:
        data_dir = disk / "rk-data"
        with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as up:
            up.event("up")
            before, store = pid_of(data_dir, "servers"), pid_of(data_dir, "coord")
            ballast = fill(disk)
            os.kill(before, signal.SIGKILL)

            def said(text: str) -> bool:
                assert up.process.poll() is None, up.said()
                return any(text in str(one.get("text", "")) for one in up.events)

            eventually(lambda: said("cannot write"), DEADLINE_S, "rk up says that it cannot write")
            eventually(lambda: said("server-1 was restarted"), DEADLINE_S, "the daemon is started again")
            assert pid_of(data_dir, "servers") == before
            assert Path(f"/proc/{store}").exists(), up.said()
            ballast.unlink()
            eventually(lambda: said("is written again"), DEADLINE_S, "rk up writes its file again")
            assert pid_of(data_dir, "servers") != before
            assert pid_of(data_dir, "coord") == store
            assert up.stop() == 0, up.said()
            assert pid_of(data_dir, "coord") == 0


def test_rk_up_on_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """No daemon has been started."""
    with small_disk(tmp_path / "disk", 1) as disk:
        fill(disk)
        done = run_rk("up", "--data-dir", str(disk / "rk-data"), "--base-port", str(free_base_port()), *SHAPE)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "fault" not in done.stderr
