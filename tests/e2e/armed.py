"""Clusters whose processes die or stop at named points (`coord/kill_points.py`), for the tests between two steps.

Each point is taken in up to three ways. The process at work dies there. Or it stops there, the tablet's leader or the
active master dies meanwhile, and the process continues: its work is outdated by then, or is requested again.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from coord.kill_points import KILL_VARIABLE, NOTE_VARIABLE, STOP_VARIABLE
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import RegionRecord, TabletState
from regions.records.znodes import decode_table
from regionserver.client import DataError, RegionClient
from tests.e2e.masters import Cluster, Process, cluster_on
from tests.support.helpers import eventually

#: Time limit of one step, and of one call of a client, on a busy machine.
SLOW_S: Final = 120.0
CALL_S: Final = 60.0
#: Time limit of the question who leads: a stopped process does not answer.
LOOK_S: Final = 2.0
#: Points of a server that deletes a replica, and of one that copies one, in their order (`coord/kill_points.py`).
DELETION: Final = (
    "MakeFolder",
    "CopyFile superblock",
    "WriteBlock DELETED",
    "CopyFile consensus-meta",
    "ExportSlot",
    "DropSlot",
    "MoveFile rows.mdb",
)
COPY: Final = (
    "WriteBlock COPYING",
    "WriteMeta",
    "rows received",
    "rows synced",
    "rows checked",
    "BeginSlot",
    "WriteBlock READY",
)


class Who(enum.StrEnum):
    """Who dies at a point."""

    #: The process that passes the point.
    ITSELF = "itself"
    #: The server that leads the tablet, while the process at work is stopped at the point.
    LEADER = "leader"
    #: The active master, while the process at work is stopped at the point.
    MASTER = "master"
    #: A server that a point of a master is about, while the master is stopped there.
    SERVER = "server"


class Case:
    """A point and who dies there. `POINT #N`: the Nth time that a process passes the point."""

    def __init__(self, point: str, who: Who) -> None:
        self.point = point
        self.who = who

    def __repr__(self) -> str:
        return f"{self.who} at {self.point}"


def all_ways(points: tuple[str, ...]) -> list[Case]:
    """Return every point in every way. At a point of a master it dies itself, or a server does."""
    found = []
    for point in points:
        others = (Who.LEADER, Who.SERVER) if is_masters(point) else (Who.LEADER, Who.MASTER)
        found += [Case(point, who) for who in (Who.ITSELF, *others)]
    return found


def is_masters(point: str) -> bool:
    """Return True if masters pass the point."""
    return point.split(" ")[0] in ("Create", "SetData", "Delete")


class Armed:
    """A cluster, and the files that name the points. One process dies, or stops, for each written file."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._kill = cluster.folder / "kill.point"
        self._stop = cluster.folder / "stop.point"
        self.notes = cluster.folder / "points"

    @property
    def processes(self) -> list[Process]:
        """All masters and servers."""
        return [*self.cluster.masters, *self.cluster.servers]

    def take(self, case: Case, region_id: Callable[[], str], begin: Callable[[], object]) -> None:
        """Begin something in the background, have a process die at a point of it, and start that process again.

        `region_id` returns the tablet that is changed.
        """
        file = self._kill if case.who is Who.ITSELF else self._stop
        file.write_text(case.point)
        failed: list[Exception] = []
        beginning = threading.Thread(target=_run, args=(begin, failed))
        beginning.start()
        try:
            if case.who is Who.ITSELF:
                dead = self._await(is_dead, f"a process dies: {case}")
            else:
                dead = self._kill_another(case, region_id)
            dead.kill()
            dead.start()
            eventually(lambda: self._answers(dead), SLOW_S, "the process answers again")
            self.check_processes(case)
        finally:
            file.unlink(missing_ok=True)
            beginning.join(3 * SLOW_S)
        assert not beginning.is_alive(), case
        assert not failed, (case, failed)

    def check_processes(self, case: Case | None = None) -> None:
        """Check that every process runs: a process that ends by itself would be found later, at another case."""
        ended = [
            f"{one.log.stem} ended with status {one.popen.poll()}:\n{one.log.read_text()[-3_000:]}"
            for one in self.processes
            if one.popen is not None and is_dead(one)
        ]
        assert not ended, f"{case}: " + "\n".join(ended)

    def _answers(self, process: Process) -> bool:
        if process in self.cluster.servers:
            return bool(self.cluster.uuid_of(process))
        return bool(self.cluster.ask(process, ms.GetMasterStatus(), ms.MasterStatus, LOOK_S).role)

    def _await(self, found: Callable[[Process], bool], what: str) -> Process:
        return eventually(lambda: next(filter(found, self.processes), None), SLOW_S, what)  # type: ignore[return-value]

    def _kill_another(self, case: Case, region_id: Callable[[], str]) -> Process:
        """Kill another process while the one at work is stopped at the point, and return that process."""
        stopped = self._await(is_stopped, f"a process stops: {case}")
        try:
            victim = self._victim(case, region_id, stopped)
            victim.signal(signal.SIGKILL)
        finally:
            with contextlib.suppress(ProcessLookupError):
                stopped.signal(signal.SIGCONT)
        return victim

    def _victim(self, case: Case, region_id: Callable[[], str], stopped: Process) -> Process:
        """Return the process to kill. Without a known leader this is the stopped server itself: it has just become the
        leader, or there is no leader yet."""
        servers = self.cluster.servers
        if case.who is Who.MASTER:
            return self.cluster.wait_active()
        if case.who is Who.SERVER:
            begun = {one.destination.uuid for one in self.cluster.transitions() if one.destination is not None}
            there = [one for one in servers if self.cluster.uuid_of(one) in begun]
            return (there or servers)[0]
        leader = self.leader(region_id(), stopped)
        if leader is not None:
            return leader
        return stopped if stopped in servers else servers[0]

    def leader(self, region_id: str, stopped: Process | None = None) -> Process | None:
        """Return the server that leads a tablet."""
        for server in self.cluster.servers:
            if server is stopped:
                continue
            with contextlib.suppress(RpcError, OSError):
                found = self.cluster.ask(server, ms.ShowReplicas(tablets=[region_id]), ms.ReplicaList, LOOK_S)
                if any(one.report.leads for one in found.replicas):
                    return server
        return None

    # --- afterwards ---

    def wait_healthy(self, table_id: str, voters: int) -> RegionRecord:
        """Wait until the tablet of a table has this number of members, HEALTHY, and nothing is under way."""

        def is_healthy() -> RegionRecord:
            # The region's record comes last: what was under way before may have changed it.
            cluster = self.cluster
            assert cluster.zk.get_children(cluster.layout.intents) == []
            listed = cluster.ask_active(ms.ListTablets(), ms.TabletList)
            unhealthy = [(one.health, one.reason) for one in listed.tablets if one.health != ms.TabletHealth.HEALTHY]
            assert not unhealthy, unhealthy
            assert cluster.transitions() == []
            found = [
                one for one in cluster.regions() if one.table_id == table_id and one.state is not TabletState.REPLACED
            ]
            assert [one.state for one in found] == [TabletState.RUNNING], found
            assert len(found[0].members) == voters, found
            return found[0]

        found = eventually(is_healthy, SLOW_S, f"{voters} healthy members")
        self.check_processes()
        return found

    def check_files(self) -> None:
        """Check that servers have files of their members and, of others, at most tombstones and quarantine."""
        eventually(self._no_stray_file, SLOW_S, "no stray file")

    def _no_stray_file(self) -> bool:
        regions = self.cluster.regions()
        purged = {one.region_id for one in regions if self._is_purged(one.table_id)}
        members = [(one.region_id, member.uuid) for one in regions for member in one.members]
        for server in self.cluster.servers:
            folder, uuid = server.log.with_suffix(""), self.cluster.uuid_of(server)
            wanted = {tablet for tablet, member in members if member == uuid} - purged
            names = [path.name for path in (folder / "data").iterdir()]
            rows = [_tablet_of(name) for name in names if name.endswith(".mdb")]
            assert sorted(rows) == sorted(wanted), (server.log.stem, names, wanted)
            assert {_tablet_of(name) for name in names} <= wanted, (server.log.stem, names)
            blocks, metas = ({path.name for path in (folder / kind).iterdir()} for kind in _METADATA)
            assert wanted <= blocks, (server.log.stem, blocks)
            assert metas <= blocks, (server.log.stem, metas - blocks)
            assert not blocks & purged, (server.log.stem, blocks & purged)
        return True

    def _is_purged(self, table_id: str) -> bool:
        """Return True if the rows of a deleted table are removed: not even tombstones stay."""
        return decode_table(self.cluster.zk.get(self.cluster.layout.table(table_id))[0]).purged_ms > 0


def _run(begin: Callable[[], object], failed: list[Exception]) -> None:
    """Begin something, and keep its error."""
    try:
        begin()
    except Exception as error:  # boundary: the test's own thread shows it
        failed.append(error)


_METADATA: Final = ("tablet-meta", "consensus-meta")


def _tablet_of(name: str) -> str:
    """Return the tablet to which a file of rows belongs: `<tablet>.<generation>.mdb`, with or without a suffix."""
    return name.partition(".mdb")[0].rpartition(".")[0]


def is_dead(process: Process) -> bool:
    """Return True if the process has ended."""
    return process.popen is not None and process.popen.poll() is not None


def is_stopped(process: Process) -> bool:
    """Return True if the process has stopped itself."""
    if process.popen is None or process.popen.poll() is not None:
        return False
    status = Path(f"/proc/{process.popen.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


@contextlib.contextmanager
def armed_on(hosts: str, folder: Path, **options: Any) -> Iterator[Armed]:
    """Yield a cluster with tablets alone whose processes know the files with the points."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {KILL_VARIABLE: f"@{folder / 'kill.point'}", STOP_VARIABLE: f"@{folder / 'stop.point'}"}
    if "RK_KEEP_POINTS" in os.environ:
        environ[NOTE_VARIABLE] = os.environ["RK_KEEP_POINTS"]
    with cluster_on(hosts, folder, has_shared=False, environ=environ, **options) as cluster:
        cluster.wait_active()
        cluster.wait_servers(len(cluster.servers))
        yield Armed(cluster)


class Writing:
    """A thread that overwrites a few rows of a table. `acknowledged` has the latest acknowledged value of each."""

    def __init__(self, client: RegionClient, table: str) -> None:
        self._client = client
        self._table = table
        self.acknowledged: dict[str, bytes] = {}
        self.count = 0
        self.errors: list[Exception] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            key, value = f"row{number % 97:02}", b"%d" % number
            try:
                self._client.put(self._table, key, value, timeout_s=CALL_S)
            except DataError as error:
                self.errors.append(error)
                return
            self.acknowledged[key] = value
            self.count += 1

    def wait_for_more(self) -> None:
        """Wait until rows are written again."""
        before = self.count
        eventually(lambda: self.errors or self.count > before + 5, SLOW_S, "more rows")
        assert not self.errors, self.errors

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(2 * CALL_S)

    def check(self) -> None:
        """Check that the table has all acknowledged rows."""
        assert not self.errors, self.errors
        there = dict(self._client.scan(self._table))
        assert there == self.acknowledged
