"""Creation of a plan directory: copy of the input, the engine's plan, its check, parts and manifest.

If the requested engine fails (not installed, error, timeout, a corrupt plan or broken rules), another engine takes
over, and the manifest's note contains the reason. For Spark this is the engine whose plans have the same bytes, if
OR-tools is installed (N9); otherwise it is greedy.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cli.common import output
from cli.common.views.display import Display, LiveDisplay, PlainDisplay
from regions.plan import Params, Plan, PlanError, PlanVerdict, Snapshot, plan, verify
from regions.plan.artifact.digest import fingerprint
from regions.plan.artifact.files import COLUMNS as TABLES
from regions.plan.artifact.files import (
    INPUT,
    Origin,
    PlanManifest,
    find_table,
    keep_input,
    prepare_output,
    read_file,
    read_plan,
    usual_id,
    write_plan,
)
from regions.plan.choice import choose_engine, fallbacks, job_command
from regions.plan.problem.model import Blocks
from regions.plan.problem.numbered import clean_replicas
from regions.plan.spark.locate import COLUMNS, PATHS, with_blocks
from regions.plan.spark.target import DEFAULT, late_words, missing, parse_target

#: Replicas from which the exact flow runs in its own process, which can be killed at the deadline.
FLOW_ALONE: Final = 50_000
#: Last lines of a failed job that are repeated.
_LAST_LINES: Final = 3
_LAST_LINES_S: Final = 2.0
_JOB: Final = ".job"


class PlanRequest(NamedTuple):
    """Parameters of the planning. `deadline_s`: time limit of the engine, then greedy takes over."""

    engine: str
    spark_master: str = "local[*]"
    spark_conf: tuple[str, ...] = ()
    deadline_s: float = 600.0
    plan_id: str = ""


class _EngineFailed(PlanError):  # noqa: N818 - a reason, not a fault: greedy takes over
    """Raised if the engine produced no usable plan."""


def display_on_stderr() -> Display:
    """Return bars on a terminal, else lines; standard output is reserved for the report."""
    console = output.console(stderr=True)
    return LiveDisplay(console) if sys.stderr.isatty() else PlainDisplay(console)


def make(
    snapshot: Snapshot, params: Params, directory: Path, request: PlanRequest, display: Display, origin: Origin
) -> tuple[PlanManifest, PlanVerdict]:
    """Plan `snapshot` into `directory`, which must contain no plan. Raise PlanError; then no plan is written."""
    prepare_output(directory)
    display.begin("input", "copying input")
    inputs = keep_input(directory, snapshot, params)
    display.end(f"{output.count(len(snapshot.regions), 'region')}, {output.count(len(snapshot.servers), 'server')}")
    engine = request.engine
    if engine == "auto":
        engine = choose_engine(_replicas(snapshot), parse_target(request.spark_master), request.deadline_s)
    made, verdict, note = _planned(snapshot, params, directory, engine, request, display)
    made.stats.violations, made.stats.racks_shared = verdict.violations, verdict.racks_shared
    display.begin("write", "writing the plan")
    seconds = {phase.name: phase.seconds for phase in display.phases}
    origin = msgspec.structs.replace(
        origin,
        fingerprint=fingerprint(snapshot),
        inputs=tuple(inputs),
        note=note,
        created_ms=time.time_ns() // 1_000_000,
    )
    plan_id = request.plan_id or usual_id(made)
    manifest = write_plan(directory, made, plan_id=plan_id, params=params, seconds=seconds, origin=origin)
    shutil.rmtree(directory / _JOB, ignore_errors=True)
    display.end(output.count(manifest.rows, "row"))
    return manifest, verdict


def _planned(
    snapshot: Snapshot, params: Params, directory: Path, engine: str, request: PlanRequest, display: Display
) -> tuple[Plan, PlanVerdict, str]:
    """Return a plan, its check, and why it is not from the requested engine ("" if it is)."""
    notes: list[str] = []
    wanted: tuple[Plan, PlanVerdict] | None = None
    others = () if engine == "greedy" else fallbacks(engine, _replicas(snapshot), request.deadline_s)
    for one in dict.fromkeys((engine, *others)):
        if one == "greedy":
            break
        display.begin(one, f"planning with {one}")
        try:
            alone = one == "spark" or _replicas(snapshot) >= FLOW_ALONE
            made = _by_job(one, directory, request, display) if alone else plan(snapshot, params, engine=one)
            display.end()
            verdict = _verified(snapshot, params, made, display)
            if verdict.ok:
                return made, verdict, "; ".join(notes)
            wanted = wanted or (made, verdict)
            notes.append(f"{one}: its plan breaks {verdict.violations} rules: {'; '.join(verdict.notes[:2])}")
        except PlanError as error:
            notes.append(f"{one}: {error}")
            display.end("failed")
        display.say(f"another engine takes over: {notes[-1]}")
    note = "; ".join(notes)
    display.begin("greedy", "planning with greedy")
    until = time.monotonic() + request.deadline_s
    made = plan(snapshot, params, lambda: until - time.monotonic(), engine="greedy")
    display.end()
    verdict = _verified(snapshot, params, made, display)
    if wanted is not None and verdict.violations >= wanted[1].violations:
        return *wanted, f"{note}; greedy is no better"
    return made, verdict, note


def _replicas(snapshot: Snapshot) -> int:
    return int(clean_replicas(snapshot.regions.replicas, {}).sum())


def _verified(snapshot: Snapshot, params: Params, made: Plan, display: Display) -> PlanVerdict:
    display.begin("verify", "checking every rule")
    verdict = verify(snapshot, params, made.rows)
    display.end("all hold" if verdict.ok else f"{output.count(verdict.violations, 'rule')} broken")
    return verdict


def located(
    snapshot: Snapshot, paths: Sequence[tuple[str, str]], directory: Path, request: PlanRequest, display: Display
) -> Snapshot:
    """Return the snapshot with the blocks of the tables whose data is at `paths`, (table id, URI). Raise PlanError."""
    prepare_output(directory)
    display.begin("blocks", "locating blocks")
    shutil.rmtree(directory / _JOB, ignore_errors=True)
    where, found = directory / _JOB / "paths", directory / _JOB / "blocks"
    where.mkdir(parents=True)
    with (where / f"{PATHS}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([tuple(COLUMNS), *paths])
    command = job_command("spark", where, found, DEFAULT, request.spark_conf)
    try:
        _run_job([*command, "--locate"], directory, request.deadline_s, display)
        kind, files = find_table(found, "blocks")
        blocks = with_blocks(snapshot.blocks, Blocks(*read_file(files[0], kind, TABLES["blocks"])))
    finally:
        shutil.rmtree(directory / _JOB, ignore_errors=True)
    tables = {table for table, _ in paths}
    asked = [table in tables for table in snapshot.regions.table_id.tolist()]
    here = set(blocks.region_id.tolist())
    without = sum(1 for one in snapshot.regions.region_id[asked].tolist() if one not in here)
    lack = f", {output.count(without, 'region')} without any" if without else ""
    display.end(f"of {output.count(sum(asked) - without, 'region')}{lack}")
    return snapshot.with_blocks(blocks)


def _by_job(engine: str, directory: Path, request: PlanRequest, display: Display) -> Plan:
    """Let another process plan the copied input. Raise PlanError."""
    lack = missing(parse_target(request.spark_master)) if engine == "spark" else ""
    if lack:
        raise _EngineFailed(lack)
    shutil.rmtree(directory / _JOB, ignore_errors=True)
    made = directory / _JOB / "out"
    _run_job(
        job_command(engine, directory / INPUT, made, request.spark_master, request.spark_conf),
        directory,
        request.deadline_s,
        display,
    )
    return read_plan(made)[0]


def _run_job(command: list[str], directory: Path, deadline_s: float, display: Display) -> None:
    """Run a job to its end and show its progress. Raise PlanError with its error, or if it is late."""
    scratch = directory / _JOB / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    # Files of a killed job are removed with the directory.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(scratch)}
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=last.extend, args=(process.stderr,), daemon=True)
        listener.start()
        late = threading.Event()

        def too_late() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(deadline_s, too_late)
        timer.start()
        stage = error = ""
        try:
            for line in process.stdout:
                now, failure = _progress(line, display)
                stage, error = now or stage, failure or error
            process.wait()
            listener.join(_LAST_LINES_S)  # a JVM that outlives a killed job for a moment keeps the pipe open
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise _EngineFailed(late_words(deadline_s, stage))
    if process.returncode != 0:
        raise _EngineFailed(error or f"the job ended with status {process.returncode}: {' '.join(last).strip()}")


def _progress(line: str, display: Display) -> tuple[str, str]:
    """Show one line of the job; return the stage that it has reached, and its error message."""
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return "", ""
    if not isinstance(fields, dict):
        return "", ""
    if fields.get("stage") == "failed":
        return "", str(fields.get("message"))
    stage = str(fields.get("stage"))
    display.update(int(fields.get("done", 0)), int(fields.get("total", 0)), stage)
    return stage, ""
