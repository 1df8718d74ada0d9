"""Having bulk plans made: by a Spark job in a process of its own, or by the greedy engine beside the reactor.

The Spark job gets a directory with the snapshot and leaves one with the plan; its progress comes as JSON lines. A job
that fails, is late, or whose plan breaks a hard rule costs nothing but time: the greedy engine plans instead, and one
log line and the plan's note say why (BULKPLAN §7). Plans are checked by the verifier whoever made them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.errors import CoordError
from regions.plan import LastRow, Params, PlanError, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.files import read_plan, write_snapshot
from regions.plan.fingerprint import fingerprint
from regions.world import Replica, World

log = Logger()

#: Lines of the job's standard error that are kept for the log.
ERROR_LINES_MAX: Final = 30
#: Work directories of former plans that are kept for whoever wants to look.
KEPT_PLANS: Final = 3


class PlanFailed(CoordError):  # noqa: N818 - not an error of the master: it falls back
    """The Spark job brought no usable plan."""


class Made(msgspec.Struct):
    """A finished plan: region-replica key to server uuid."""

    placements: dict[str, str]
    engine: str
    digest: str
    #: Why another engine than the wanted one made it; empty if it is the wanted one.
    note: str = ""
    #: Of the input.
    fingerprint: str = ""


def snapshot_of(world: World, replicas: Iterable[Replica]) -> Snapshot:
    """The planner's input: regions all of whose replicas are wanted, live servers, former places."""
    wanted: dict[str, int] = {}
    for replica in replicas:
        region_id = replica.region.record.region_id
        wanted[region_id] = wanted.get(region_id, 0) + 1
    regions: list[RegionRow] = []
    last: list[LastRow] = []
    for region_id, count in sorted(wanted.items()):
        region = world.regions[region_id]
        if count != len(region.replicas):
            continue  # some of its replicas are at home: the others are placed one by one around them
        record, table = region.record, region.table.record
        row = RegionRow(region_id, record.table_id, record.size_bytes, count, table.group, record.start_key)
        regions.append(row)
        last.extend(LastRow(region_id, one.number, one.last_uuid) for one in region.replicas if one.last_uuid)
    servers = [
        ServerRow(one.uuid, one.record.host, one.rack, one.weight, one.group, one.draining)
        for one in sorted(world.servers.values(), key=lambda one: one.uuid)
    ]
    return Snapshot.of(regions, servers, (), last)


def spark_missing() -> str:
    """Why Spark cannot be used here; empty if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "java is not installed"
    return ""


class Planner:
    """Makes plans one at a time for one master."""

    def __init__(
        self,
        reactor: Any,
        plan_dir: Path,
        *,
        engine: str,
        deadline_s: float,
        spark_master: str,
        spark_min: int,
    ) -> None:
        self._reactor = reactor
        self._plan_dir = plan_dir
        self._engine = engine
        self._deadline_s = deadline_s
        self._spark_master = spark_master
        self._spark_min = spark_min
        self._job: SparkJob | None = None

    def engine_for(self, replicas: int) -> tuple[str, str]:
        """Engine for a plan of that size, and why it is not the wanted one, if so."""
        if self._engine == "greedy" or (self._engine == "auto" and replicas < self._spark_min):
            return "greedy", ""
        missing = spark_missing()
        return ("greedy", missing) if missing else ("spark", "")

    async def make(
        self, plan_id: str, epoch: int, snapshot: Snapshot, engine: str, progress: Callable[[str], None]
    ) -> Made:
        """A checked plan by `engine`, or by greedy if that fails. Raises PlanError when there is none at all."""
        params = Params(snapshot_id=plan_id, master_epoch=epoch)
        if engine == "spark":
            try:
                return await self._spark(plan_id, snapshot, params, progress)
            except (PlanFailed, PlanError, OSError) as error:
                log.warn("plan {plan_id}: greedy plans instead of spark: {error}", plan_id=plan_id, error=error)
                progress("greedy")
                made = await deferToThread(_greedy, snapshot, params, self._deadline_s)
                made.note = f"spark: {error}"
                return made
        progress("greedy")
        return await deferToThread(_greedy, snapshot, params, self._deadline_s)

    def cancel(self) -> None:
        """Stop a job under way: its plan is not wanted any more."""
        if self._job is not None:
            self._job.kill("not wanted any more")

    async def _spark(self, plan_id: str, snapshot: Snapshot, params: Params, progress: Callable[[str], None]) -> Made:
        work = self._plan_dir / plan_id
        await deferToThread(_prepare, work, snapshot, params)
        job = self._job = SparkJob(progress)
        arguments = ["--input", str(work / "in"), "--output", str(work / "out"), "--master", self._spark_master]
        arguments += ["--plan-id", plan_id, "--die-with-parent"]
        command = [sys.executable, "-m", "regions.plan.spark_job", *arguments]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._reactor.spawnProcess(job, sys.executable, command, env=env, path=str(work))
        timer = self._reactor.callLater(self._deadline_s, job.kill, f"no plan within {self._deadline_s:g} s")
        try:
            await job.ended
        finally:
            self._job = None
            if timer.active():
                timer.cancel()
        return await deferToThread(_read_checked, work / "out", snapshot, params)


class SparkJob(ProcessProtocol):
    """The planning process: relays its stages, keeps the last words, fires `ended` once."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._lines = b""
        self._errors: list[bytes] = []
        self._failure = ""
        self.ended: Deferred[None] = Deferred()

    def kill(self, reason: str) -> None:
        """End the process; its JVM ends by itself when it loses the pipe to it."""
        self._failure = reason
        transport = self.transport
        assert transport is not None, "a job is killed after it was spawned"
        with contextlib.suppress(ProcessExitedAlready):
            transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        """Progress lines."""
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            self._line(line)

    def errReceived(self, data: bytes) -> None:
        """Spark's own words, for the log if it fails."""
        self._errors = [*self._errors, *data.splitlines()][-ERROR_LINES_MAX:]

    def processEnded(self, reason: Failure) -> None:
        """Success, or PlanFailed with what is known."""
        if self._failure:
            self.ended.errback(PlanFailed(self._failure))
        elif isinstance(reason.value, ProcessDone):
            self.ended.callback(None)
        else:
            assert isinstance(reason.value, ProcessTerminated), reason
            for line in self._errors:
                log.info("spark: {line}", line=line.decode(errors="replace"))
            self.ended.errback(
                PlanFailed(f"the job ended with status {reason.value.exitCode}, signal {reason.value.signal}")
            )

    def _line(self, line: bytes) -> None:
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if not isinstance(fields, dict):
            return
        if fields.get("stage") == "failed":
            self._failure = f"{fields.get('error')}: {fields.get('message')}"
        else:
            self._progress(f"{fields.get('stage')} {fields.get('done')}/{fields.get('total')}")


def _prepare(work: Path, snapshot: Snapshot, params: Params) -> None:
    """Write the job's input into an empty directory, and remove those of plans long gone."""
    if work.parent.is_dir():
        former = sorted(work.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in former[:-KEPT_PLANS]:
            shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_snapshot(work / "in", snapshot, params, kind="parquet")


def _read_checked(output: Path, snapshot: Snapshot, params: Params) -> Made:
    """The job's plan, if it is complete, of this epoch and breaks no hard rule."""
    made, manifest = read_plan(output)
    if manifest.master_epoch != params.master_epoch or manifest.snapshot_id != params.snapshot_id:
        raise PlanFailed(f"the plan is of epoch {manifest.master_epoch}, snapshot {manifest.snapshot_id!r}")
    verdict = verify(snapshot, params, made.rows)
    if not verdict.ok:
        raise PlanFailed(f"the plan breaks {verdict.violations} rules: {'; '.join(verdict.notes[:3])}")
    placements = {f"{region_id}-{replica}": server_id for region_id, replica, server_id in made.rows}
    return Made(placements, "spark", made.digest, fingerprint=fingerprint(snapshot))


def _greedy(snapshot: Snapshot, params: Params, deadline_s: float) -> Made:
    """Plan in this process; runs in a thread."""
    until = time.monotonic() + deadline_s
    made = plan(snapshot, params, lambda: until - time.monotonic(), engine="greedy")
    placements = {f"{region_id}-{replica}": server_id for region_id, replica, server_id in made.rows}
    return Made(placements, "greedy", made.digest, fingerprint=fingerprint(snapshot))
