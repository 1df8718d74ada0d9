"""A data directory that `rk up` of an older build has made is started, and made larger, by this build."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.local import local_cluster_id, read_cluster
from tests.e2e.clusters import STOP_DEADLINE_S, UP_DEADLINE_S, free_base_port, local_up, processes_of, run_rk
from tests.support.helpers import eventually
from tests.upgrade.builds import rk_of

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "3", "--regions", "4", "--plan-engine", "greedy")
ROWS = {"a": "1", "k": "2", "python3": "3", "z": "4"}


def run_older(older: Path, *words: str) -> str:
    """Run one `rk` command of the older build to its end; return its output."""
    command, environment, cwd = rk_of(older, *words)
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def older_up(older: Path, data_dir: Path, *options: str) -> Iterator[None]:
    """Run `rk up` of the older build; stop it as an operator does."""
    command, environment, cwd = rk_of(older, "up", "--json", "--data-dir", str(data_dir), *options)
    output = data_dir.parent / "older.out"
    with output.open("w") as file:
        process = subprocess.Popen(command, env={**os.environ, **environment}, cwd=cwd, stdout=file, stderr=file)
    try:
        eventually(lambda: '"event":"up"' in output.read_text(), UP_DEADLINE_S, "the older cluster is up")
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_DEADLINE_S) == 0, output.read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
        eventually(lambda: not processes_of(data_dir), STOP_DEADLINE_S, "no process is left")


def test_a_directory_of_an_older_build_keeps_its_rows_and_grows(tmp_path: Path, older_tablets: Path) -> None:
    """Tablets and a shared table, twice started by this build, with a further server in between."""
    data = tmp_path / "rk-data"
    place = ("--data-dir", str(data))
    with older_up(older_tablets, data, "--base-port", str(free_base_port()), *SHAPE):
        run_older(older_tablets, "table", "create", "shared", "--replicas", "1", *place)
        for table in ("packages", "shared"):
            for key, value in ROWS.items():
                run_older(older_tablets, "put", table, key, value, *place)
        regions = len(json.loads(run_older(older_tablets, "region", "list", "--json", *place)))
    before = read_cluster(data)
    assert before is not None
    cluster_id = local_cluster_id(before)
    assert cluster_id
    for servers in (3, 4):
        with local_up(data) as up:
            cluster = up.event("up")["cluster"]
            assert len(cluster["servers"]) == servers
            assert cluster["secured"] == before.secured, "a start does not lock users out"
            for table in ("packages", "shared"):
                for key, value in ROWS.items():
                    got = run_rk("get", table, key, *place)
                    assert got.stdout.strip() == value, (table, key, got.stderr)
            listed = run_rk("region", "list", "--json", *place)
            assert len(json.loads(listed.stdout)) == regions, listed.stderr
            record = run_rk("coord", "get", "/regionkeeper/cluster", *place)
            assert json.loads(record.stdout)["cluster_id"] == cluster_id
            if servers == 3:
                added = run_rk("up", "add", "server", *place)
                assert added.returncode == 0, added.stderr
            assert up.stop() == 0, up.said()
