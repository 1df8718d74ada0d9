"""Computes bulk plans: by a job in another process (Spark, or the exact flow), or by the greedy engine in a thread.

The job reads the snapshot from one directory and writes the plan to another. It reports progress as JSON lines. If the
job fails, misses its deadline, or computes a plan that breaks a hard rule, another engine computes the plan. For Spark
this is the engine whose plans have the same bytes, if OR-tools is installed (N9); otherwise it is the greedy engine. A
log line and the plan's note give the reason. The verifier checks the plans of jobs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.errors import CoordError
from regions.balance.sizes import NOT_MEASURED, RegionSizes
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.plan import LastRow, Params, PlanError, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.artifact.digest import fingerprint
from regions.plan.artifact.files import COLUMNS, find_table, read_file, read_plan, write_snapshot
from regions.plan.choice import AT_ONCE_MAX, choose_engine, expected_s, fallbacks, job_command
from regions.plan.problem.model import BadInput, Blocks, ints, texts
from regions.plan.problem.numbered import clean_replicas
from regions.plan.spark.locate import with_blocks
from regions.plan.spark.target import late_words, missing, parse_target
from regions.records.kinds import pool
from regions.records.replica_key import replica_key

log = Logger()
T = TypeVar("T")

#: Lines of the job's standard error that are kept for the log.
ERROR_LINES_MAX: Final = 30
#: Work directories of former plans that are kept for inspection.
KEPT_PLANS: Final = 3
#: Seconds that greedy gets when jobs have used up the deadline.
GREEDY_MIN_S: Final = 10.0
_UNWANTED: Final = "canceled, this master is not active any more"
#: Temporary directory of a job, below its work directory.
SCRATCH: Final = "tmp"


class PlanFailed(CoordError):  # noqa: N818 - not an error of the master: it falls back
    """Raised when the job has not computed a usable plan."""


class FinishedPlan(msgspec.Struct):
    """A computed plan."""

    #: Server uuid by replica key.
    placements: dict[str, str]
    engine: str
    digest: str
    #: Why another engine than the configured one has computed the plan; "" if it was the configured one.
    note: str = ""
    #: Fingerprint of the input.
    fingerprint: str = ""


def snapshot_of(world: ClusterState, replicas: Iterable[Replica], sizes: RegionSizes = NOT_MEASURED) -> Snapshot:
    """Return the planner's input: regions whose replicas are all to be placed, live servers, and former servers."""
    wanted: dict[str, int] = {}
    pools = {table.record.table_id: pool(table.record.group, table.record.kind) for table in world.tables.values()}
    for replica in replicas:
        region_id = replica.region.record.region_id
        wanted[region_id] = wanted.get(region_id, 0) + 1
    regions: list[RegionRow] = []
    last: list[LastRow] = []
    for region_id, count in sorted(wanted.items()):
        region = world.regions[region_id]
        if count != len(region.replicas):
            continue  # some replicas are open: the assigner places the others one by one
        record = region.record
        size = sizes.of(region).size_bytes if sizes.has_measured else record.size_bytes
        regions.append(RegionRow(region_id, record.table_id, size, count, pools[record.table_id], record.start_key))
        last.extend(LastRow(region_id, one.number, one.last_uuid) for one in region.replicas if one.last_uuid)
    servers = [
        ServerRow(one.uuid, one.record.host, one.rack, one.weight, pool(one.group, one.kind), one.draining)
        for one in sorted(world.servers.values(), key=lambda one: one.uuid)
    ]
    return Snapshot.of(regions, servers, (), last)


class Planner:
    """Computes plans for one master, one at a time."""

    def __init__(
        self,
        reactor: Any,
        plan_dir: Path,
        *,
        engine: str,
        deadline_s: float,
        spark_master: str,
        spark_min: int = 0,
        spark_conf: tuple[str, ...] = (),
        blocks: Path | None = None,
    ) -> None:
        """`blocks` is a directory with the table `blocks`, which is read for each plan (FW-05)."""
        self._reactor = reactor
        self._blocks = blocks
        self._plan_dir = plan_dir
        self._engine = engine
        self._deadline_s = deadline_s
        self._spark_master = spark_master
        self._spark_conf = spark_conf
        self._spark_min = spark_min
        self._job: PlanJob | None = None
        self._cancelled = 0

    def engine_for(self, replicas: int) -> tuple[str, str]:
        """Return the engine for a plan of this size. Return also why it is not the configured engine, or ""."""
        wanted = self._engine
        if wanted == "auto" and self._spark_min:
            is_large = replicas >= self._spark_min
            wanted = "spark" if is_large else fallbacks("spark", replicas, self._deadline_s)[0]
        elif wanted == "auto":
            target = parse_target(self._spark_master)
            wanted = "greedy" if replicas <= AT_ONCE_MAX else choose_engine(replicas, target, self._deadline_s)
        lack = missing(parse_target(self._spark_master)) if wanted == "spark" else ""
        return (fallbacks("spark", replicas, self._deadline_s)[0], lack) if lack else (wanted, "")

    async def make(
        self, plan_id: str, epoch: int, snapshot: Snapshot, engine: str, progress: Callable[[str], None]
    ) -> FinishedPlan:
        """Compute a plan with `engine`, or with its fallbacks. Raise PlanError if all of them fail.

        All jobs share one deadline. An engine that probably cannot finish in the remaining time is not started.
        """
        params = Params(snapshot_id=plan_id, master_epoch=epoch)
        replicas, cancelled = int(clean_replicas(snapshot.regions.replicas, {}).sum()), self._cancelled
        until = self._reactor.seconds() + self._deadline_s
        notes: list[str] = []
        snapshot = await self._located(plan_id, snapshot, notes)
        others = () if engine == "greedy" else fallbacks(engine, replicas, self._deadline_s)
        for one in dict.fromkeys((engine, *others)):
            if one == "greedy":
                break
            left_s = until - self._reactor.seconds()
            try:
                if cancelled != self._cancelled:
                    raise PlanFailed(_UNWANTED)
                if one != engine and expected_s("flow", replicas) > left_s:
                    raise PlanFailed(f"not started: {max(0, left_s):.0f} s of {self._deadline_s:.0f} s are left")
                made = await self._by_job(one, plan_id, snapshot, params, progress, until)
                made.note = "; ".join(notes)
                return made
            except (PlanFailed, PlanError, OSError) as error:
                words = "plan {plan_id}: engine {engine} failed, another one takes over: {error}"
                log.warn(words, plan_id=plan_id, engine=one, error=error)
                notes.append(f"{one}: {error}")
        progress("greedy")
        left_s = max(until - self._reactor.seconds(), GREEDY_MIN_S)
        made = await deferToThread(_greedy, snapshot, params, left_s)
        made.note = "; ".join(notes)
        return made

    async def _located(self, plan_id: str, snapshot: Snapshot, notes: list[str]) -> Snapshot:
        """Return the snapshot with the bytes per region and host, or unchanged if they cannot be read."""
        if self._blocks is None:
            return snapshot
        try:
            blocks = await deferToThread(_read_blocks, self._blocks)
        except PlanError as error:
            log.warn("plan {plan_id}: locality is ignored: {error}", plan_id=plan_id, error=error)
            notes.append(f"locality ignored: {error}")
            return snapshot
        return snapshot.with_blocks(blocks)

    def cancel(self) -> None:
        """Stop the running job, or one that is about to start."""
        self._cancelled += 1
        if self._job is not None:
            self._job.kill(_UNWANTED)

    async def _by_job(
        self,
        engine: str,
        plan_id: str,
        snapshot: Snapshot,
        params: Params,
        progress: Callable[[str], None],
        until: float,
    ) -> FinishedPlan:
        """Compute a plan with the job until the deadline, which includes writing its input and checking its plan."""
        cancelled = self._cancelled
        work = self._plan_dir / plan_id
        await self._before(until, "input", deferToThread(_prepare, work, snapshot, params))
        if cancelled != self._cancelled:
            raise PlanFailed(_UNWANTED)
        job = self._job = PlanJob(progress)
        command = job_command(engine, work / "in", work / "out", self._spark_master, self._spark_conf, plan_id=plan_id)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        env["TMPDIR"] = str(work / SCRATCH)
        self._reactor.spawnProcess(job, sys.executable, command, env=env, path=str(work))
        timer = self._reactor.callLater(max(0, until - self._reactor.seconds()), job.too_late, self._deadline_s)
        try:
            await job.ended
        finally:
            self._job = None
            if timer.active():
                timer.cancel()
        return await self._before(until, "check", deferToThread(_read_checked, work / "out", snapshot, params, engine))

    def _before(self, until: float, stage: str, waiting: Deferred[T]) -> Deferred[T]:
        """Return `waiting` with a timeout at the deadline, which fails it with PlanFailed."""

        def late(_: object, __: float) -> T:
            raise PlanFailed(late_words(self._deadline_s, stage))

        return waiting.addTimeout(max(0, until - self._reactor.seconds()), self._reactor, late)


class PlanJob(ProcessProtocol):
    """The planning process: relays its progress, keeps its last error lines, and fires `ended` once."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._stage = ""
        self._lines = b""
        self._errors: list[bytes] = []
        self._failure = ""
        self.ended: Deferred[None] = Deferred()

    def kill(self, reason: str) -> None:
        """Kill the process. Its JVM exits when the pipe to the process closes."""
        self._failure = reason
        transport = self.transport
        assert transport is not None, "a job is killed after it was spawned"
        with contextlib.suppress(ProcessExitedAlready):
            transport.signalProcess("KILL")

    def too_late(self, deadline_s: float) -> None:
        """Kill the process at the deadline."""
        self.kill(late_words(deadline_s, self._stage))

    def outReceived(self, data: bytes) -> None:
        """Receive lines of progress."""
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            self._line(line)

    def errReceived(self, data: bytes) -> None:
        """Keep the last lines of standard error for the log."""
        self._errors = [*self._errors, *data.splitlines()][-ERROR_LINES_MAX:]

    def processEnded(self, reason: Failure) -> None:
        """Fire `ended`, with PlanFailed if the job has failed."""
        if self._failure:
            self.ended.errback(PlanFailed(self._failure))
        elif isinstance(reason.value, ProcessDone):
            self.ended.callback(None)
        else:
            assert isinstance(reason.value, ProcessTerminated), reason
            for line in self._errors:
                log.info("plan job: {line}", line=line.decode(errors="replace"))
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
            self._failure = str(fields.get("message"))
        else:
            self._stage = str(fields.get("stage"))
            self._progress(f"{fields.get('stage')} {fields.get('done')}/{fields.get('total')}")


def _prepare(work: Path, snapshot: Snapshot, params: Params) -> None:
    """Write the job's input into an empty directory, and remove the directories of old plans."""
    if work.parent.is_dir():
        former = sorted(work.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in former[:-KEPT_PLANS]:
            shutil.rmtree(old, ignore_errors=True)
        for old in former[-KEPT_PLANS:]:
            shutil.rmtree(old / SCRATCH, ignore_errors=True)  # left by a job that was killed
    shutil.rmtree(work, ignore_errors=True)
    (work / SCRATCH).mkdir(parents=True)
    write_snapshot(work / "in", snapshot, params, kind="parquet")


def _read_checked(output: Path, snapshot: Snapshot, params: Params, engine: str) -> FinishedPlan:
    """Return the job's plan. Raise PlanFailed if the plan is of another epoch or snapshot, or breaks a hard rule."""
    made, manifest = read_plan(output)
    if manifest.master_epoch != params.master_epoch or manifest.snapshot_id != params.snapshot_id:
        raise PlanFailed(f"the job's plan is of epoch {manifest.master_epoch}, snapshot {manifest.snapshot_id!r}")
    verdict = verify(snapshot, params, made.rows)
    if not verdict.ok:
        raise PlanFailed(f"the plan breaks {verdict.violations} rules: {'; '.join(verdict.notes[:3])}")
    return FinishedPlan(_placements(made.rows), engine, made.digest, fingerprint=fingerprint(snapshot))


def _read_blocks(directory: Path) -> Blocks:
    """Return the table `blocks` of a directory. Runs in a thread. Raise BadInput, also if there is no such table."""
    kind, files = find_table(directory, "blocks")
    if not files:
        raise BadInput(f"{directory} has no table blocks: blocks.csv, blocks.parquet or a directory of that name")
    found = Blocks(texts(()), texts(()), ints(()))
    for file in files:
        found = with_blocks(found, Blocks(*read_file(file, kind, COLUMNS["blocks"])))
    return found


def _placements(rows: Iterable[tuple[str, int, str]]) -> dict[str, str]:
    """Return the server of every replica, by the replica's key."""
    return {replica_key(region_id, number): server_id for region_id, number, server_id in rows}


def _greedy(snapshot: Snapshot, params: Params, deadline_s: float) -> FinishedPlan:
    """Compute a plan with the greedy engine. Runs in a thread."""
    until = time.monotonic() + deadline_s
    made = plan(snapshot, params, lambda: until - time.monotonic(), engine="greedy")
    return FinishedPlan(_placements(made.rows), "greedy", made.digest, fingerprint=fingerprint(snapshot))
