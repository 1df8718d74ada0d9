"""The cluster: a store of three nodes with fsync, masters, and one process with all region servers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.assign.filling import cluster_steps, table_steps, write
from benchmarks.assign.lab import Daemon, Lab, say
from regions.messages import MasterStatus
from regions.records.kinds import NOTHING
from regions.records.model import RegionRecord, TableRecord
from tests.support.helpers import eventually, free_ports

#: Regions are divided among this number of tables: a table is a tenth of all.
TABLES: Final = 10
#: Masters and servers: processes may wait for a processor, or write a snapshot, for seconds.
SESSION_MS: Final = 30_000
DONE_WITHIN_S: Final = 600.0
_PLAN_DEADLINE_S: Final = 600


def began(status: MasterStatus, phase: str) -> bool:
    """Return True if the master with that status has begun a phase of its activation."""
    return any(one.name == phase for one in status.phases)


def table_id(number: int) -> str:
    """Return the id of the table with that number, as long as a real one."""
    return f"{number:08x}"


class Simulated(Daemon):
    """The process of all region servers."""

    def __init__(self, store: str, log: Path) -> None:
        super().__init__("servers", "127.0.0.1:0", [], log)
        self.command = [sys.executable, "-m", "benchmarks.assign.million.servers", "--store", store]
        self._log_path = log
        self._asked: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Return the process id. The process must be running."""
        assert self._asked is not None
        return self._asked.pid

    @property
    def is_running(self) -> bool:
        """Return True if the process was started and not killed."""
        return self._asked is not None

    def start(self, *more: str) -> None:
        """Start the process. It runs no server yet."""
        with self._log_path.open("ab") as log:
            self._asked = subprocess.Popen(
                [*self.command, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        if self._asked is not None:
            self._asked.kill()
            self._asked.wait()
            self._asked = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._asked is not None
        self._asked.send_signal(number)

    def ask(self, *words: object) -> None:
        """Give a command. Return when it is done."""
        process, line = self._asked, " ".join(map(str, words))
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        timer = threading.Timer(DONE_WITHIN_S, process.kill)
        timer.start()
        try:
            said = process.stdout.readline().strip()
        finally:
            timer.cancel()
        if said != line:
            raise SystemExit(f"the servers were to do {line!r} within {DONE_WITHIN_S:.0f} s; log: {self._log_path}")


class MillionLab(Lab):
    """The cluster before anything but the store runs."""

    def __init__(self, folder: Path, servers: int) -> None:
        super().__init__(folder, masters=3, servers=0, opener="none", session_ms=SESSION_MS)
        for one, port in zip([*self.store, *self.masters], free_ports(6), strict=True):
            one.serve_admin(port)
        for one in self.store:
            one.command += ["--max-connections-per-address", "0"]
        for one in self.masters:
            one.command += ["--min-servers", str(servers), "--plan-engine", "flow"]
            one.command += ["--plan-deadline-s", str(_PLAN_DEADLINE_S)]
        self.simulated = Simulated(self.hosts, folder / "servers.log")
        self.servers = [self.simulated]

    def fill(self, regions: int) -> list[str]:
        """Write tables of that many regions, open on no server, directly to the store. Return the tables' names."""
        write(self.zk, cluster_steps(self.layout))
        names = [f"table{number}" for number in range(TABLES)]
        written = 0
        for number, name in enumerate(names):
            count = regions // TABLES + (number < regions % TABLES)
            table = TableRecord(table_id(number), name, regions=count, kind=NOTHING)
            write(self.zk, table_steps(self.layout, table, partial(_region, table.table_id)))
            written += count
            say(f"{written:,} of {regions:,} regions are written")
        return names

    def roles(self) -> dict[str, Sequence[Daemon]]:
        """Return the daemons by what they do now. A master is active from the time when it has taken `/active`."""
        taken = self.active_uuid()
        running = [one for one in self.masters if one.is_running]
        statuses = {one.name: self.status_of(one) for one in running}
        active = [one for one in running if (status := statuses[one.name]) is not None and status.uuid == taken]
        standby = [one for one in running if one not in active]
        return {"active": active, "standby": standby, "store": self.store, "servers": self.servers}

    def has_begun(self, master: Daemon, phase: str) -> bool:
        """Return True if a master has begun a phase of its activation."""
        status = self.status_of(master)
        return status is not None and began(status, phase)

    def is_warm(self, master: Daemon) -> bool:
        """Return True if a standby has read all changes that were announced to it."""
        status = self.status_of(master)
        mirror = None if status is None else status.mirror
        return mirror is not None and mirror.is_warm and mirror.behind == 0 and mirror.stale_ms >= 0

    def wait_registered(self, servers: int) -> None:
        """Wait until that many servers are registered."""
        servers_path = self.layout.servers

        def count() -> int:
            stat = self.zk.exists(servers_path)
            return 0 if stat is None else int(stat.numChildren)

        eventually(lambda: count() == servers, DONE_WITHIN_S, f"{servers} servers are registered")


def _region(table: str, number: int, start: str, end: str) -> RegionRecord:
    return RegionRecord(table, f"{table}.{number:06}", start, end)


@contextlib.contextmanager
def million_lab(folder: Path, servers: int) -> Iterator[MillionLab]:
    """Yield the cluster, of which only the store runs. All its processes end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = MillionLab(folder, servers)
    try:
        cluster.start_store()
        yield cluster
    finally:
        cluster.stop()
