"""Daemons whose processes may use no more: files (`ulimit -f`), address space (`ulimit -v`), threads (`ulimit -u`).

A daemon treats such a limit as a full disk: it refuses what it cannot keep, says why, loses nothing that it has
acknowledged, and continues once the limit is raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from tests.e2e.clusters import free_base_port, local_up, run_rk
from tests.security.store_node import honest_client, running_store
from tests.support.helpers import PATIENCE_S, eventually, free_ports, rk

pytestmark = pytest.mark.e2e

_SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "1", "--no-table", "--plan-engine", "greedy")
_EFBIG = "File too large"
#: Less than the libraries of a region server need.
_ADDRESS_SPACE = 300 << 20
#: Runs a command in the name of `nobody`, whom the limit of processes binds, with root's rights on files.
_AS_NOBODY = ("setpriv", "--ruid=65534", "--bounding-set=-sys_admin,-sys_resource")


@contextlib.contextmanager
def limited(pid: int, kind: int, most: int) -> Iterator[None]:
    """Limit a running process for the block."""
    former = resource.prlimit(pid, kind, (most, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, former)


def test_a_store_whose_files_may_not_grow_rejects_writes_and_loses_none(tmp_path: Path) -> None:
    """What waits meanwhile is done when the limit is raised, in the same process; the log names the limit.

    Fails if `FULL_ERRORS` has no EFBIG: the node ends with the first write.
    """
    with running_store(tmp_path) as store, honest_client(store) as honest, honest_client(store) as reader:
        honest.is_served()
        [log] = (tmp_path / "data" / "wal").glob("*")
        with limited(store.process.pid, resource.RLIMIT_FSIZE, log.stat().st_size):
            waiting = [honest.client.create_async(f"/big{number}", bytes(400_000)) for number in range(6)]
            eventually(lambda: _EFBIG in store.log(), what="the limit to be noticed")
            assert "ulimit -f" in store.log()
            assert reader.client.get("/honest")[0] == b"1"
            assert not all(each.ready() for each in waiting)
        assert [each.get(timeout=PATIENCE_S) for each in waiting] == [f"/big{number}" for number in range(6)]
        honest.is_served()
    with running_store(tmp_path) as store, honest_client(store) as honest:
        assert all(len(honest.client.get(f"/big{number}")[0]) == 400_000 for number in range(6))


def test_a_region_server_whose_files_may_not_grow_refuses_rows_and_loses_none(tmp_path: Path) -> None:
    """Rows in the shared directory and in tablets: each put is acknowledged and kept, or refused with the reason.

    Fails if `environment._TRANSIENT` has no EFBIG, or `FULL_ERRORS`: the tablet is parked, or the server ends.
    """
    with local_up(tmp_path / "data", "--base-port", str(free_base_port()), *_SHAPE) as up:
        up.event("up")
        pids = up.pids()
        place = ("--data-dir", str(up.data_dir))
        [server] = json.loads((up.data_dir / "cluster.json").read_text())["servers"]
        for name, storage in (("files", "shared"), ("copies", "tablet")):
            made = run_rk("table", "create", name, "--regions", "1", "--replicas", "1", "--storage", storage, *place)
            assert made.returncode == 0, made.stderr
            assert run_rk("put", name, "before", "1", *place).returncode == 0
        kept, refused = [], []
        with limited(server["pid"], resource.RLIMIT_FSIZE, 4096):
            for name in ("files", "copies"):
                for number in range(2):
                    done = run_rk("put", name, f"k{number}", "x" * 50_000, "--timeout", "3s", *place)
                    (refused if done.returncode else kept).append((name, f"k{number}", done.stderr))
                assert run_rk("get", name, "before", *place).stdout.strip() == "1"
        assert len(refused) == 4, kept
        assert all(said.strip() and "internal error" not in said for _, _, said in refused), refused
        for name in ("files", "copies"):
            eventually(
                lambda name=name: run_rk("put", name, "after", "2", *place).returncode == 0,  # type: ignore[misc]
                PATIENCE_S,
                "puts are served again",
            )
            assert run_rk("get", name, "before", *place).stdout.strip() == "1"
        eventually(lambda: run_rk("health", *place).returncode == 0, PATIENCE_S, "a healthy cluster")
        assert up.pids() == pids, "no daemon has ended"
        assert "Traceback" not in (up.data_dir / "logs" / "server-1.log").read_text()


def test_a_daemon_that_gets_no_address_space_says_which_limit(tmp_path: Path) -> None:
    """One sentence, not a fault of rk. Fails if `_refused_by_limit` returns ""."""
    (port,) = free_ports(1)
    words = ("server", "run", "--store", "127.0.0.1:1", "--address", f"127.0.0.1:{port}", "--data-dir", "s")
    done = subprocess.run(
        rk(*words, "--shared-dir", "shared"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE)),
    )
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert "the system refuses" in done.stderr
    assert "ulimit" in done.stderr


def _of_one_process(words: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start `rk` as a user who may have one process, and no further thread."""
    if os.geteuid() != 0 or shutil.which(_AS_NOBODY[0]) is None:
        pytest.skip("only root can start a process of another user")
    return subprocess.Popen(
        [*_AS_NOBODY, *rk(*words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),  # noqa: PLW1509 (takes no lock)
    )


@pytest.mark.parametrize("kind", ["coord", "server"])
def test_a_daemon_that_gets_no_thread_says_which_limit(tmp_path: Path, kind: str) -> None:
    """One sentence, not a fault of rk. Fails if `_refused_by_limit` does not know Python's text about threads."""
    (port,) = free_ports(1)
    words = {
        "coord": ("coord", "run", "--id", "1", "--client-address", f"127.0.0.1:{port}", "--data-dir", "d"),
        "server": ("server", "run", "--store", "127.0.0.1:1", "--address", f"127.0.0.1:{port}", "--data-dir", "d",
                   "--shared-dir", "shared"),
    }  # fmt: skip
    with _of_one_process(words[kind], tmp_path) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitStatus.REFUSED, said
    assert "the system refuses a thread" in said
    assert "ulimit -u" in said


def test_a_master_starts_without_a_further_thread(tmp_path: Path) -> None:
    """It needs none before it plans. Fails if `main` lets the library below numpy start its threads: they end the
    process, as Ctrl-C does."""
    (port,) = free_ports(1)
    words = ("master", "run", "--store", "127.0.0.1:1", "--address", f"127.0.0.1:{port}", "--data-dir", "d")
    with _of_one_process(words, tmp_path) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "start code" in line:
                    break
            else:
                raise AssertionError(f"the master has ended: {process.wait()}")
        finally:
            process.kill()
