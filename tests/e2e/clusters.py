"""Whole clusters for end-to-end tests: a small `rk up` as a user runs it, on separate ports."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.common.local import CERTS_DIR, FIRST_USER, HOST, read_super
from cli.up.ports import is_free
from coord.security import process as process_credentials
from coord.security.credentials import Credentials, read_user
from tests.support.helpers import claim_ports, eventually, finished, rk

#: Longest time for one start, on a machine that does other things as well.
UP_DEADLINE_S = 180.0
STOP_DEADLINE_S = 90.0
#: Ports that a local cluster may use, counted from its base.
_SPAN = 91
#: Below the range from which the kernel gives ports to outgoing connections.
_BASES = range(20000, 32000, 100)


def free_base_port() -> int:
    """Return a base port whose whole range is free and is not given to another test."""
    for base in random.sample(_BASES, len(_BASES)):
        if claim_ports(base) and all(is_free(HOST, port) for port in range(base, base + _SPAN)):
            return base
    raise AssertionError("no free range of ports")


class LocalUp:
    """A running `rk up`."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.events: list[dict[str, Any]] = []
        self._lines = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._lines:
                self.events.append(json.loads(line))
                self._lines.notify_all()
        with self._lines:
            self._lines.notify_all()

    def event(self, name: str, timeout_s: float = UP_DEADLINE_S) -> dict[str, Any]:
        """Return the first event of that name. Fail with all output when the process ends or the time is over."""

        def found() -> bool:
            return any(one["event"] == name for one in self.events) or not self._reader.is_alive()

        with self._lines:
            self._lines.wait_for(found, timeout_s)
        for one in self.events:
            if one["event"] == name:
                return one
        raise AssertionError(f"no {name!r} from rk up: {self.said()}")

    def said(self) -> str:
        """Return all printed lines, for a failing test."""
        return "\n".join(json.dumps(one) for one in self.events)

    def store_auth(self) -> str:
        """Return super's credential of its store."""
        return read_super(self.data_dir)

    def credentials(self) -> Credentials | None:
        """Return the credentials of its user `admin`, None if it is open."""
        certs = self.data_dir / CERTS_DIR
        return read_user(certs, FIRST_USER) if certs.exists() else None

    def pids(self) -> list[int]:
        """Return the pids of its daemons, as `rk up` reports them."""
        cluster = json.loads((self.data_dir / "cluster.json").read_text())
        return [one["pid"] for kind in ("coord", "masters", "servers") for one in cluster[kind] if one["pid"]]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send Ctrl-C and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_S)

    def kill_everything(self) -> None:
        """Send SIGKILL to `rk up` and all daemons at once."""
        for pid in [*self.pids(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STOP_DEADLINE_S)


@contextlib.contextmanager
def local_up(data_dir: Path, *options: str) -> Iterator[LocalUp]:
    """Yield `rk up --json` with these options. All its processes end with the block.

    Meanwhile connections of the test to daemons prove the credentials of the cluster's user `admin`.
    """
    words = rk("up", "--json", "--data-dir", str(data_dir), *options)
    with (data_dir.parent / f"{data_dir.name}.err").open("a") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    found = LocalUp(process, data_dir)
    process_credentials.choose_by(found.credentials)
    try:
        yield found
    finally:
        process_credentials.forget()
        process.kill()
        process.wait()
        eventually(lambda: not processes_of(data_dir), STOP_DEADLINE_S, "no process is left")


def processes_of(data_dir: Path) -> list[str]:
    """Return the command lines of live processes that name a path below `data_dir`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                if str(data_dir) in words:
                    found.append(f"{process.name} {words}")
    return found


def run_rk(*words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run one `rk` command to its end."""
    return finished(rk(*words), timeout_s)
