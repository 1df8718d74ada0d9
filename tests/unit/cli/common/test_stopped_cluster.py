"""What commands print about a local cluster that was stopped: one sentence, and how to start it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from cli.common.local import LOCK_FILE, design, write_cluster
from cli.common.options import Globals
from cli.main import run
from cli.up.shape import shape_of
from tests.support.helpers import free_ports


@pytest.mark.parametrize(
    "command",
    [
        "table list", "get t k", "why t:k", "fsck", "history", "watch", "coord list", "coord ls /", "up add server",
        "up add store", "drill server-crash",
    ],
)  # fmt: skip
def test_every_command_says_that_it_is_not_running(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tried: without start_again_hint in MemberRequests `coord list` asks whether the cluster is up; without the look
    at supervisor_pid `up add` names options of drills, and so does a drill."""
    local = design(shape_of(Globals(), None, 1, 1, 1, None, None, "greedy"), tmp_path)
    [port] = free_ports(1)
    local.coord[0].address = local.store = f"127.0.0.1:{port}"
    write_cluster(local, tmp_path)
    assert run([*shlex.split(command), "--data-dir", str(tmp_path)]) == ExitStatus.UNREACHABLE
    assert capsys.readouterr().err == (
        f"rk: the cluster in {tmp_path} is not running\n    Start it: rk up --data-dir {tmp_path}\n"
    )


@pytest.mark.parametrize("command", ["up add server", "table list", "plan create"])
@pytest.mark.parametrize("is_described", [False, True])
def test_a_cluster_in_the_first_moments_of_its_start_is_starting(
    tmp_path: Path, command: str, is_described: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state before and after `rk up` has written cluster.json. Tried: without the look at the lock `rk up add` says
    that the cluster is not running, and names `rk up`."""
    if is_described:
        local = design(shape_of(Globals(), None, 1, 1, 1, None, None, "greedy"), tmp_path)
        [port] = free_ports(1)
        local.coord[0].address = local.store = f"127.0.0.1:{port}"
        write_cluster(local, tmp_path)
    (tmp_path / LOCK_FILE).write_text(f"{os.getpid()}\n")
    assert run([*shlex.split(command), "--data-dir", str(tmp_path)]) == ExitStatus.UNREACHABLE
    assert capsys.readouterr().err == (
        f"rk: the cluster in {tmp_path} is starting or stopping\n    Try again when `rk up` has printed its summary.\n"
    )


def test_why_names_the_command_that_starts_a_stopped_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a supervisor that is gone, too. Tried: without the look at supervisor_pid it does."""
    local = design(shape_of(Globals(), None, 1, 1, 1, None, None, "greedy"), tmp_path)
    ports = free_ports(3)
    for one, port in zip(local.daemons(), ports, strict=True):
        one.address = f"127.0.0.1:{port}"
    local.store = local.coord[0].address
    write_cluster(local, tmp_path)
    run(["why", "server-1", "--data-dir", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[-1] == f"  what helps: rk up --data-dir {tmp_path}"
