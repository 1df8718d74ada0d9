"""Drill: a backup taken under writes is restored into an empty cluster, as after the loss of everything.

The running cluster loses nothing. The new cluster is an `rk up` of its own in a temporary directory: the new cluster
has no disk, no store and no key of the first one, so the drill shows whether the backup alone suffices. The new cluster
ends with the drill.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cli.backup.files import read_manifest
from cli.common import output
from cli.common.access import as_variables
from cli.common.errors import CliError
from cli.common.local import HOST, environment
from cli.drill.report import DrillReport, Figure, check
from cli.drill.restoring.write_log import WriteLog, violations
from cli.drill.run import Drill
from cli.up.ports import is_free
from cli.up.progress import open_words
from cli.up.shape import free_base
from cli.up.supervisor import die_with
from regionserver.client import RegionClient

NAME: Final = "restore"

#: Time limits: of one write of the write log, of a start of the new cluster, and of a backup or restore.
_WRITE_S: Final = 15.0
_START_S: Final = 180.0
_COPY_S: Final = 24 * 3600.0
_STOP_S: Final = 60.0


def run(drill: Drill, folder: Path | None) -> DrillReport:
    """Back up under writes, restore into a new cluster, compare with the acknowledged writes."""
    before = drill.require_rest(servers=1)
    drill.victim, drill.action = "the cluster", "was backed up under writes and restored into an empty cluster"
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers")
    drill.begin()
    write_log = _begin_writes(drill)
    with tempfile.TemporaryDirectory(prefix="rk-drill-restore-", dir=folder) as scratch:
        backup = Path(scratch) / "backup"
        _back_up(drill, write_log, backup)
        with _new_cluster(drill, Path(scratch) / "new", servers=before.servers) as data_dir:
            _restore(drill, backup, data_dir)
    write_log.close()
    drill.say("the new cluster and the backup are removed")
    return drill.finish(NAME)


def _begin_writes(drill: Drill) -> WriteLog:
    """Begin to write one row of each region. Raise CliError if no table has rows."""
    traffic = drill.traffic
    if traffic is None or not traffic.tables.count():
        raise CliError("no table stores rows: there is nothing to restore", "Create one: rk table create NAME")
    client = RegionClient(traffic.locator, timeout_s=_WRITE_S)
    drill.at_end(client.close)
    write_log = WriteLog(client, traffic.tables.regions)
    drill.at_end(write_log.close)
    write_log.start()
    drill.wait(lambda: write_log.rounds > 0, "writes are not acknowledged")
    return write_log


def _back_up(drill: Drill, write_log: WriteLog, backup: Path) -> None:
    """Run `rk backup create` and `verify`, and hold the backup against the acknowledged writes."""
    drill.strike("backup")
    began_ms = drill.now_ms()
    words = ["backup", "create", str(backup), "--data-dir", str(drill.given.data_path), "--json"]
    status, said, errors = _rk(drill, words, as_variables(drill.given.store_settings))
    if status:
        raise CliError(f"rk backup create failed: {errors.strip()}", "Nothing is left of the backup.")
    made = json.loads(said)
    drill.figure("backup", (drill.now_ms() - began_ms) / 1000, "rk backup create, while clients wrote")
    rounds = write_log.rounds
    drill.wait(lambda: write_log.rounds > rounds, "writes did not go on after the backup")
    write_log.stop()
    drill.figures += [
        Figure("rows", made["rows"], "", "in the backup"),
        Figure("bytes", made["bytes"], "B", "keys and values in the backup"),
    ]
    _, said, _ = _rk(drill, ["backup", "verify", str(backup), "--json"])
    damage = [f"{one['belongs_to']}: {one['what']}" for one in json.loads(said)["damage"]]
    drill.checks.append(check("the backup is whole", damage, f"{output.count(made['regions'], 'region')} read again"))
    wrong = violations(write_log, backup, read_manifest(backup))
    drill.checks.append(
        check(
            "what was acknowledged before a region's point is in the backup",
            wrong,
            f"{write_log.acknowledged()} acknowledged writes to {output.count(len(write_log.keys), 'region')}",
        )
    )


@contextlib.contextmanager
def _new_cluster(drill: Drill, data_dir: Path, servers: int) -> Iterator[Path]:
    """Yield the directory of an empty cluster that runs until the end of the block."""
    drill.phase("new cluster")
    began_ms = drill.now_ms()
    words = ["up", "--json", "--data-dir", str(data_dir), "--no-table", "--servers", str(servers)]
    words += ["--store-nodes", "1", "--masters", "1", "--base-port", str(_base_port())]
    said = data_dir.with_name("up.log")
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_surroundings(),
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - one system call
        )
    try:
        drill.wait(lambda: _is_up(process, said), "the new cluster did not start", _START_S)
        drill.figure("new cluster", (drill.now_ms() - began_ms) / 1000, "start of an empty cluster")
        yield data_dir
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its daemons end with it
            process.wait()


def _base_port() -> int:
    """Return a base port for the new cluster whose ports are all free. Raise CliError."""
    base = free_base(1, lambda port: is_free(HOST, port))
    if not base:
        raise CliError("no range of 100 ports is free for the new cluster", "End other clusters on this machine.")
    return base


def _is_up(process: subprocess.Popen[bytes], said: Path) -> bool:
    """Return True once `rk up` reports that everything runs. If it has ended, raise CliError with its output."""
    text = said.read_text(errors="replace")
    if process.poll() is not None:
        raise CliError(f"the new cluster did not start: {text.strip()[-1000:]}")
    lines = [one for one in text.splitlines(True) if one.startswith("{") and one.endswith("\n")]
    return any(json.loads(one).get("event") == "up" for one in lines)


def _restore(drill: Drill, backup: Path, data_dir: Path) -> None:
    """Run `rk backup restore` and take over its verdict: number and digest of the rows of each region."""
    drill.phase("restore")
    began_ms = drill.now_ms()
    status, said, errors = _rk(drill, ["backup", "restore", str(backup), "--data-dir", str(data_dir), "--json"])
    if not said.startswith("{"):
        raise CliError(f"rk backup restore failed with status {status}: {errors.strip()}")
    found: dict[str, Any] = json.loads(said)
    drill.figure("restore", (drill.now_ms() - began_ms) / 1000, "rk backup restore, until all rows were compared")
    differences = [
        f"{table['table']} {one['region']}: {one['rows']} rows, {one['expected_rows']} expected, or other values"
        for table in found["tables"]
        for one in table["differences"]
    ]
    rows = sum(one["rows"] for one in found["tables"])
    regions = sum(one["regions"] for one in found["tables"])
    drill.checks.append(
        check(
            "every row was restored",
            differences,
            f"{output.count(rows, 'row')} of {output.count(regions, 'region')}, by number and digest",
        )
    )


def _surroundings() -> dict[str, str]:
    """Return the environment without settings of `rk`, which name the first cluster."""
    return {name: value for name, value in environment().items() if not name.startswith("RK_")}


def _rk(drill: Drill, words: list[str], variables: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run an `rk` command to its end; return exit status, output and errors. `variables`: access to the store."""
    drill.say(f"running rk {' '.join(words[:2])}")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_surroundings(), **(variables or {})},
    )
    try:
        said, errors = process.communicate(timeout=_COPY_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said, errors
