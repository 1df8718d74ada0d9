"""`rk load --spark`: runs the job in a separate process, with progress and errors like those of `rk load`.

The job (`pyspark_regionkeeper.load_job`) finds the cluster in RK_… variables: command lines show no credentials.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cli.common import output
from cli.common.access import as_variables
from cli.common.asking.store import root_of, store_hosts
from cli.common.errors import CliError, ExitStatus, ForbiddenError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.options import CONTEXT_VARIABLE, Globals
from cli.common.views.display import Display, LiveDisplay, PlainDisplay
from regions.plan.spark.target import SUBMITTED, TargetKind, missing, parse_target

_JOB: Final = "pyspark_regionkeeper.load_job"
_ERRORS: Final = {
    one.exit_code: one for one in (CliError, ForbiddenError, NotFoundError, UnreachableError, UsageFaultError)
}
#: Last lines of a failed job that are repeated.
_LAST_LINES: Final = 3


class SparkLoad(NamedTuple):
    """A load, and the Spark that does it. `timeout_s` None: that of the data source."""

    table: str
    source: str
    key: str
    null: str
    skip_unknown: bool
    threads: int
    timeout_s: float | None
    master: str
    conf: tuple[str, ...]


def load_by_spark(given: Globals, asked: SparkLoad) -> dict[str, Any]:
    """Run the job to its end; return the fields of its last line. Raise CliError."""
    target = parse_target(asked.master)
    if target.kind is TargetKind.CONNECT:
        raise UsageFaultError("--spark-master sc://…: rk load needs a session of its own", "Name another Spark.")
    lack = missing(target)
    if lack:
        raise CliError(f"rk load --spark cannot run here: {lack}", "pip install 'regionkeeper[spark]', and Java 17.")
    if target.kind is TargetKind.LOCAL and "://" not in asked.source and not Path(asked.source).exists():
        raise UsageFaultError(f"cannot read {asked.source}: No such file or directory", "Name a file or directory.")
    console = output.console(stderr=True)
    display = LiveDisplay(console) if console.is_terminal and not given.json else PlainDisplay(console)
    try:
        return follow(command_of(asked), _environment(given), display)
    finally:
        display.close()


def command_of(asked: SparkLoad) -> list[str]:
    """Return the command line of the job."""
    words = [sys.executable, "-m", _JOB, "--key", asked.key, "--null", asked.null, "--master", asked.master]
    words += ["--threads", str(asked.threads)]
    if asked.timeout_s is not None:
        words += ["--timeout", f"{asked.timeout_s:g}"]
    if asked.skip_unknown:
        words.append("--skip-unknown")
    for setting in asked.conf:
        words += ["--conf", setting]
    return [*words, "--", asked.table, asked.source]


def _environment(given: Globals) -> dict[str, str]:
    """Return the job's environment: the cluster as this command has found it."""
    cluster = {"store": store_hosts(given), "root": root_of(given), "data-dir": str(given.data_path)}
    found = {**os.environ, **as_variables(cluster | given.settings())}
    if named := given.cluster_named():
        found["RK_CLUSTER_ID"] = named
    for variable in (CONTEXT_VARIABLE, SUBMITTED):
        found.pop(variable, None)
    # The job and processes on this machine find our modules in their present place.
    return found | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def follow(command: list[str], environment: Mapping[str, str], display: Display) -> dict[str, Any]:
    """Run the job and show its stages; return the fields of its last line. Raise CliError."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    shown, fields = "", dict[str, Any]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=last.extend, args=(process.stderr,), daemon=True)
        listener.start()
        try:
            for line in process.stdout:
                fields = decoded(line) or fields
                stage = str(fields.get("stage", ""))
                if stage in ("finished", "failed"):
                    continue
                if stage != shown:
                    if shown:
                        display.end()
                    display.begin(stage, stage)
                    shown = stage
                display.update(int(fields.get("done", 0)), int(fields.get("total", 0)), "tasks")
            process.wait()
        finally:
            process.kill()
    if fields.get("stage") == "finished":
        if shown:
            display.end()
        return fields
    raise error_of(fields, process.returncode, " ".join(one.strip() for one in last))


def decoded(line: str) -> dict[str, Any] | None:
    """Return one line of the job; None for a line of another program."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and "stage" in found else None


def error_of(fields: Mapping[str, Any], status: int, last: str) -> CliError:
    """Return the error of a job that has failed."""
    if fields.get("stage") != "failed":
        return CliError(f"the Spark job ended with status {status}: {last}", "Repeat it: rows are replaced.")
    kind = _ERRORS.get(ExitStatus(int(fields.get("status", 1))), CliError)
    return kind(str(fields.get("message")), str(fields.get("hint", "")))
