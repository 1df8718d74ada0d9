"""`rk secure`: an open cluster becomes a secured one while it runs and serves clients without credentials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.common.local import CERTS_DIR
from coord import kill_points
from coord.errors import SESSION_CLOSED_REQUIRE_SASL_AUTH
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from coord.security import process
from coord.security.credentials import OPEN_TOO_FILE
from coord.wire import opcodes as op
from coord.wire import records as r
from regions import messages as ms
from regionserver.client.client import connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security.store_node import running_store
from tests.support.background import Background
from tests.support.helpers import eventually, rk
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.e2e

_SMALL = ("--masters", "1", "--servers", "1", "--regions", "2", "--table", "t")
_SHAPE = ("--store-nodes", "3", "--masters", "1", "--servers", "3", "--regions", "2", "--table", "t")
_CALL_S = 30.0


class Visitor(Background):
    """A client without credentials that puts and gets rows until it is stopped."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self.done = 0
        self.failed: list[str] = []
        self._store = store
        self.start()

    def _run(self) -> None:
        with connect(self._store, timeout_s=_CALL_S) as client:
            while not self._is_over.is_set():
                value = str(self.done).encode()
                try:
                    client.put("t", "alice", value)
                    assert client.get("t", "alice") == value
                except Exception as error:  # any failure is the finding
                    self.failed.append(repr(error))
                self.done += 1


def _json(up: LocalUp, *words: str) -> dict[str, object]:
    ran = run_rk(*words, "--json", "--data-dir", str(up.data_dir))
    assert ran.returncode == 0, (ran.stdout, ran.stderr, up.said())
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def _address(up: LocalUp) -> tuple[str, int]:
    host, _, port = json.loads((up.data_dir / "cluster.json").read_text())["masters"][0]["address"].rpartition(":")
    return host, int(port)


def test_an_open_cluster_becomes_a_secured_one_while_clients_use_it(tmp_path: Path) -> None:
    """Every daemon gets credentials by a restart of its own, and no request of a client without credentials fails.
    `--finish` then shuts such clients out."""
    with local_up(tmp_path / "up", *_SHAPE, "--insecure", "--base-port", str(free_base_port())) as up:
        up.event("up")
        marker = up.data_dir / CERTS_DIR / OPEN_TOO_FILE
        process.use(None)  # as a client that has no credentials
        planned = _json(up, "secure", "--dry-run")
        assert (len(planned["restarted"]), planned["changed"]) == (7, 0)  # type: ignore[arg-type]
        assert not marker.exists()
        store = json.loads((up.data_dir / "cluster.json").read_text())["store"]
        visitor = Visitor(store)
        eventually(lambda: visitor.done > 0 or visitor.failed, what="the first row")
        secured = _json(up, "secure")
        before = visitor.done
        eventually(lambda: visitor.done > before + 10 or visitor.failed, what="rows beside secured daemons")
        visitor.stop()
        assert not visitor.failed
        assert secured["restarted"] == planned["restarted"]
        assert (secured["masters"], secured["servers"], secured["failed"], secured["door"]) == (1, 3, [], "open")
        assert call_blocking(_address(up), ms.GetMasterStatus(), _CALL_S, expect=ms.MasterStatus).role == "active"
        finished = _json(up, "secure", "--finish")
        assert (finished["failed"], finished["door"], marker.exists()) == ([], "closed", False)
        with pytest.raises(RpcError) as refused:
            call_blocking(_address(up), ms.GetMasterStatus(), _CALL_S, expect=ms.MasterStatus)
        assert refused.value.code == Code.UNAUTHENTICATED
        stranger = RawClient(store.partition(",")[0])
        assert stranger.hello(r.ConnectRequest(0, 4000, 0, bytes(16))) is not None
        err, _ = stranger.ask(op.OP_EXISTS, r.encode_path_watch(b"/", False)) or (0, b"")
        assert err == SESSION_CLOSED_REQUIRE_SASL_AUTH
        stranger.close()
        got = run_rk("get", "t", "alice", "--data-dir", str(up.data_dir))
        assert got.returncode == 0, got.stderr
        assert run_rk("fsck", "--data-dir", str(up.data_dir)).returncode == 0
        assert _json(up, "secure")["changed"] == 0


def test_an_interrupted_run_is_continued_on_a_store_of_others(tmp_path: Path) -> None:
    """`rk secure` is killed as soon as a daemon restarts: no daemon stays down, and the same command completes.

    The store is one that `rk up` does not run; its znodes are closed by a credential that `rk up` makes. `rk up` proves
    the new credentials, too, when it records the clean shutdown.

    Tried: `kill` and `start` in place of `restart`, no `prove` in `Securing`, no credential for an outside store.
    """
    up_to = ("--insecure", "--base-port", str(free_base_port()))
    with (
        running_store(tmp_path) as store,
        local_up(tmp_path / "up", *_SMALL, *up_to, "--store", f"zk://{store.address}") as up,
    ):
        up.event("up")
        words = rk("secure", "--data-dir", str(up.data_dir))
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as secure:
            assert secure.stderr is not None
            assert "restarting" in secure.stderr.readline()
            secure.send_signal(signal.SIGKILL)
        eventually(lambda: len(up.pids()) == 2, what="both daemons")
        finished = _json(up, "secure")
        assert (finished["failed"], finished["door"]) == ([], "open")
        health = run_rk("health", "--data-dir", str(up.data_dir))
        assert (health.returncode, "rk secure --finish" in health.stdout) == (1, True), health.stdout
        assert _json(up, "secure", "--finish")["failed"] == []
        assert run_rk("fsck", "--data-dir", str(up.data_dir)).returncode == 0
        assert up.stop() == 0
        assert "clean shutdown not recorded" not in up.said()


def test_a_command_that_is_killed_at_any_step_is_repeated(tmp_path: Path) -> None:
    """`rk secure` dies amid the znodes, `--finish` as soon as the door is closed, and once more amid the znodes:
    clients are served meanwhile, and the same command completes what is left.

    Tried: `_close_door` ends the command if the door is closed; `close_all` ends at a znode whose list is right.
    """
    with local_up(tmp_path / "up", *_SMALL, "--insecure", "--base-port", str(free_base_port())) as up:
        up.event("up")
        amid = "access list /regionkeeper/unassigned/80"
        assert run_rk("put", "t", "alice", "1", "--data-dir", str(up.data_dir)).returncode == 0
        _killed(up, amid)
        findings = run_rk("fsck", "--json", "--data-dir", str(up.data_dir)).stdout
        assert "/regionkeeper/unassigned/90" in findings
        assert "/regionkeeper/unassigned/70" not in findings
        assert call_blocking(_address(up), ms.GetMasterStatus(), _CALL_S, expect=ms.MasterStatus).role == "active"
        _killed(up, "door closed", "--finish")
        process.use(None)  # as a client that has no credentials
        eventually(lambda: _is_refused(up), what="the end of the service without a proof")
        _killed(up, amid, "--finish")
        assert run_rk("get", "t", "alice", "--data-dir", str(up.data_dir)).stdout == "1\n"
        finished = _json(up, "secure", "--finish")
        assert (finished["failed"], finished["door"]) == ([], "closed")
        fsck = run_rk("fsck", "--data-dir", str(up.data_dir))
        assert fsck.returncode == 0, fsck.stdout


def _killed(up: LocalUp, point: str, *words: str) -> None:
    """Run `rk secure` until it dies at a point."""
    command = rk("secure", *words, "--data-dir", str(up.data_dir))
    ran = subprocess.run(
        command, env=os.environ | {kill_points.KILL_VARIABLE: point}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, (point, ran.stdout, ran.stderr)


def _is_refused(up: LocalUp) -> bool:
    try:
        call_blocking(_address(up), ms.GetMasterStatus(), _CALL_S, expect=ms.MasterStatus)
    except RpcError as error:
        return error.code == Code.UNAUTHENTICATED
    return False
