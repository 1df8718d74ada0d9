"""Making a plan directory: copy of the input, an engine's work, the verdict, parts and manifest.

Whatever goes wrong with the wanted engine (not installed, failed, late, a plan that is corrupt or breaks rules), greedy
takes over, and the manifest's note says why.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cli import output
from cli.display import Display, LiveDisplay, PlainDisplay
from regions.plan import Params, Plan, PlanError, Snapshot, Verdict, plan, verify
from regions.plan.files import INPUT, Manifest, Origin, keep_input, prepare_output, read_plan, write_plan
from regions.plan.fingerprint import fingerprint

ENGINES: Final = ("auto", "greedy", "flow", "spark")
#: Replicas up to which `auto` takes the exact flow in this process; beyond it takes Spark where that is installed.
FLOW_MAX: Final = 200_000
#: Spark's last words that are repeated when it fails.
_LAST_WORDS: Final = 3
_JOB: Final = ".job"


class Wish(NamedTuple):
    """How the plan is to be made; `deadline_s`: seconds for the engine, then greedy takes over."""

    engine: str
    spark_master: str = "local[*]"
    deadline_s: float = 600.0
    plan_id: str = ""


class _EngineFailed(PlanError):  # noqa: N818 - a reason, not a fault: greedy takes over
    """The engine brought no usable plan."""


def display_on_stderr() -> Display:
    """Bars at a terminal, else lines; standard output is left to the report."""
    console = output.console(stderr=True)
    return LiveDisplay(console) if sys.stderr.isatty() else PlainDisplay(console)


def choose_engine(replicas: int) -> str:
    """What `auto` means for so many replicas on this machine."""
    if replicas > FLOW_MAX and not spark_missing():
        return "spark"
    return "flow" if replicas <= FLOW_MAX and importlib.util.find_spec("ortools") else "greedy"


def spark_missing() -> str:
    """Why Spark cannot be used here; empty if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "Java is not installed"
    return ""


def make(
    snapshot: Snapshot, params: Params, directory: Path, wish: Wish, display: Display, origin: Origin
) -> tuple[Manifest, Verdict]:
    """Plan `snapshot` into `directory`, which must hold no plan yet. Raises PlanError; then there is no plan there."""
    prepare_output(directory)
    display.begin("input", "input is copied")
    inputs = keep_input(directory, snapshot, params)
    display.end(f"{output.count(len(snapshot.regions), 'region')}, {output.count(len(snapshot.servers), 'server')}")
    engine = wish.engine
    if engine == "auto":
        engine = choose_engine(int(snapshot.regions.replicas.clip(1).sum()))
    made, verdict, note = _planned(snapshot, params, directory, engine, wish, display)
    made.stats.violations = verdict.violations
    display.begin("write", "plan is written")
    seconds = {phase.name: phase.seconds for phase in display.phases}
    origin = msgspec.structs.replace(
        origin,
        fingerprint=fingerprint(snapshot),
        inputs=tuple(inputs),
        note=note,
        created_ms=time.time_ns() // 1_000_000,
    )
    plan_id = wish.plan_id or f"plan-{made.digest[:12]}"
    manifest = write_plan(directory, made, plan_id=plan_id, params=params, seconds=seconds, origin=origin)
    shutil.rmtree(directory / _JOB, ignore_errors=True)
    display.end(output.count(manifest.rows, "row"))
    return manifest, verdict


def _planned(
    snapshot: Snapshot, params: Params, directory: Path, engine: str, wish: Wish, display: Display
) -> tuple[Plan, Verdict, str]:
    """A plan, what the verifier says of it, and why it is not of the wanted engine, if so."""
    note = ""
    wanted: tuple[Plan, Verdict] | None = None
    if engine != "greedy":
        display.begin(engine, f"plan is made by {engine}")
        try:
            made = _by_spark(directory, wish, display) if engine == "spark" else plan(snapshot, params, engine=engine)
            display.end()
            verdict = _verified(snapshot, params, made, display)
            if verdict.ok:
                return made, verdict, ""
            wanted = made, verdict
            note = f"{engine}: its plan breaks {verdict.violations} rules: {'; '.join(verdict.notes[:2])}"
        except PlanError as error:
            note = f"{engine}: {error}"
            display.end("failed")
        display.say(f"greedy takes over: {note}")
    display.begin("greedy", "plan is made by greedy")
    until = time.monotonic() + wish.deadline_s
    made = plan(snapshot, params, lambda: until - time.monotonic(), engine="greedy")
    display.end()
    verdict = _verified(snapshot, params, made, display)
    if wanted is not None and verdict.violations >= wanted[1].violations:
        return *wanted, f"{note}; greedy can do no better"
    return made, verdict, note


def _verified(snapshot: Snapshot, params: Params, made: Plan, display: Display) -> Verdict:
    display.begin("verify", "every rule is checked")
    verdict = verify(snapshot, params, made.rows)
    display.end("all hold" if verdict.ok else f"{verdict.violations} are broken")
    return verdict


def _by_spark(directory: Path, wish: Wish, display: Display) -> Plan:
    """Have the Spark job plan the copy of the input; its lines move the bar. Raises PlanError."""
    missing = spark_missing()
    if missing:
        raise _EngineFailed(missing)
    job = directory / _JOB
    shutil.rmtree(job, ignore_errors=True)
    words = [sys.executable, "-m", "regions.plan.spark_job", "--input", str(directory / INPUT), "--output", str(job)]
    words += ["--master", wish.spark_master, "--die-with-parent"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    last: deque[str] = deque(maxlen=_LAST_WORDS)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=last.extend, args=(process.stderr,), daemon=True)
        listener.start()
        late = threading.Event()

        def too_late() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(wish.deadline_s, too_late)
        timer.start()
        said = ""
        try:
            for line in process.stdout:
                said = _progress(line, display) or said
            process.wait()
            listener.join()
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise _EngineFailed(f"no plan within {wish.deadline_s:g} s")
    if process.returncode != 0:
        raise _EngineFailed(said or f"the job ended with status {process.returncode}: {' '.join(last).strip()}")
    return read_plan(job)[0]


def _progress(line: str, display: Display) -> str:
    """Show one line of the job; what it says if it failed."""
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return ""
    if not isinstance(fields, dict):
        return ""
    if fields.get("stage") == "failed":
        return f"{fields.get('error')}: {fields.get('message')}"
    display.update(int(fields.get("done", 0)), int(fields.get("total", 0)), str(fields.get("stage")))
    return ""
