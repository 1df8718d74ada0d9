"""A disaster: backup under writes while a server dies, everything killed and removed, restored into a new cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cli.backup.files import read_manifest, read_rows
from cli.rows.files import read_rows as rows_of_csv
from regionserver.client import RegionClient, connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import PATIENCE_S, eventually, rk

pytestmark = pytest.mark.e2e

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "debian-packages.csv.gz"
SHAPE: Final = ("--store-nodes", "1", "--masters", "1", "--servers", "3", "--plan-engine", "greedy")
#: A table of tablets, and one in the shared directory.
TABLES: Final = ("packages", "files")
#: Keys of the writers, in regions all over the table.
KEYS: Final = [f"{letter}-written-{number}" for letter in "agmpz" for number in range(2)]


class Write(NamedTuple):
    """One write of a number: the times of its begin and of its acknowledgment (0: never)."""

    number: int
    began_ms: int
    acked_ms: int


class Writer:
    """Puts 1, 2, 3, … at each of KEYS of a table."""

    def __init__(self, hosts: str, auth: str, table: str) -> None:
        self.table = table
        self.writes: dict[str, list[Write]] = {key: [] for key in KEYS}
        self._hosts = hosts
        self._auth = auth
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with connect(self._hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S, store_auth=self._auth) as client:
            number = 0
            while not self._stop.is_set():
                number += 1
                for key, writes in self.writes.items():
                    began_ms = now_ms()
                    writes.append(Write(number, began_ms, 0))
                    client.put(self.table, key, b"%d" % number)
                    writes[-1] = Write(number, began_ms, now_ms())

    def acked(self) -> int:
        """Return how many rounds over all keys are acknowledged."""
        return min(sum(one.acked_ms > 0 for one in writes) for writes in self.writes.values())

    def check(self, key: str, value: bytes | None, begun_ms: int, at_ms: int, ended_ms: int) -> None:
        """Check a row of the backup: acknowledged before the point, and begun before the end."""
        assert at_ms >= begun_ms
        number = int(value or b"0")
        known = self.writes[key]
        least = max((one.number for one in known if 0 < one.acked_ms < at_ms), default=0)
        most = max((one.number for one in known if one.began_ms <= ended_ms), default=0)
        assert least <= number <= most, f"{self.table} {key}: {number} is not in {least} to {most}"


def now_ms() -> int:
    return int(time.time() * 1000)


def run(data_dir: Path, *words: object, status: int = 0) -> str:
    """Return the output of an `rk` command, which must end with `status`."""
    done = run_rk(*map(str, words), "--data-dir", str(data_dir), timeout_s=PATIENCE_S * 3)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def checked(*words: object, status: int = 0) -> str:
    """As `run`, for a command that needs no cluster."""
    done = run_rk(*map(str, words))
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@contextmanager
def client_of(up: LocalUp) -> Iterator[RegionClient]:
    hosts = up.event("up")["cluster"]["store"]
    with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S, store_auth=up.store_auth()) as made:
        yield made


def back_up_under_writes(up: LocalUp, data_dir: Path, folder: Path) -> dict[str, Writer]:
    """Make a backup while clients write and a server is killed; return the writers, stopped."""
    hosts = up.event("up")["cluster"]["store"]
    victim = up.event("up")["cluster"]["servers"][1]["pid"]
    writers = {name: Writer(hosts, up.store_auth(), name) for name in TABLES}
    with writers["packages"], writers["files"]:
        eventually(lambda: all(one.acked() >= 3 for one in writers.values()), what="writes are acknowledged")
        # At this rate the backup takes some seconds.
        words = rk("backup", "create", str(folder), "--rate", "5", "--json", "--data-dir", str(data_dir))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        eventually(lambda: len(os.listdir(folder / "rows")) > 4, what="some regions are saved")
        os.kill(victim, signal.SIGKILL)
        assert "unfinished" in checked("backup", "verify", folder, status=1)
        out, errors = process.communicate(timeout=PATIENCE_S * 3)
        assert process.returncode == 0, out + errors
        after = {name: one.acked() for name, one in writers.items()}
        eventually(lambda: all(one.acked() > after[name] for name, one in writers.items()), what="writes go on")
    return writers


def check_points(folder: Path, writers: dict[str, Writer], loaded: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Check the backup against the acknowledged rows at the points of their regions; return its rows by table."""
    manifest = read_manifest(folder)
    assert manifest.store is not None
    found: dict[str, dict[str, bytes]] = {}
    for table, region in manifest.regions():
        name = table.record.name
        rows = {key.decode(): value for some, _ in read_rows(folder / region.file) for key, value in some}
        for key in KEYS:
            if key >= region.start_key and (not region.end_key or key < region.end_key):
                writers[name].check(key, rows.get(key), manifest.began_ms, region.at_ms, manifest.ended_ms)
        assert (region.term > 0 and region.index > 0) if table.record.is_tablet else region.transaction > 0
        found.setdefault(name, {}).update(rows)
    for name in TABLES:
        assert {key: value for key, value in found[name].items() if key not in KEYS} == loaded
    return found


def check_incremental(data_dir: Path, tmp_path: Path) -> None:
    """Only regions that have changed are read; every backup is whole by itself."""
    second, third = tmp_path / "second", tmp_path / "third"
    run(data_dir, "backup", "create", second, "--base", tmp_path / "first")
    run(data_dir, "put", "files", "a-new-row", "1")
    run(data_dir, "put", "packages", "a-new-row", "1")
    made: dict[str, Any] = json.loads(run(data_dir, "backup", "create", third, "--base", second, "--json"))
    assert (made["regions"], made["reused"]) == (24, 22)
    shutil.rmtree(second)
    assert "whole" in checked("backup", "verify", third)
    listed = json.loads(checked("backup", "list", tmp_path, "--json"))
    assert [Path(one["directory"]).name for one in listed] == ["first", "third"]


def interrupt_restore(data_dir: Path, folder: Path) -> None:
    """Kill a restore once its table exists."""
    words = rk("backup", "restore", str(folder), "--table", "files", "--data-dir", str(data_dir))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: '"files"' in run(data_dir, "table", "list", "--json"), what="the restore has made the table")
    process.kill()
    process.wait()
    assert "table files exists already; nothing was restored" in run(data_dir, "backup", "restore", folder, status=1)


def test_everything_is_lost_and_restored(tmp_path: Path) -> None:
    """B13: every row that was acknowledged before its region's point exists, and no row that was never written."""
    first, lost, new = tmp_path / "first", tmp_path / "lost", tmp_path / "new"
    loaded = {one.key: one.value or b"" for one in rows_of_csv(EXAMPLE)}
    assert len(loaded) == 63_664
    with local_up(lost, "--base-port", str(free_base_port()), *SHAPE, "--regions", "16") as up:
        up.event("up")
        run(lost, "table", "create", "files", "--regions", 8, "--from", EXAMPLE)
        for name in TABLES:
            run(lost, "load", name, EXAMPLE, "--timeout", 60)
        writers = back_up_under_writes(up, lost, first)
        saved = check_points(first, writers, loaded)
        assert "whole" in checked("backup", "verify", first)
        check_incremental(lost, tmp_path)
        up.kill_everything()
    shutil.rmtree(lost)
    with local_up(new, "--base-port", str(free_base_port()), *SHAPE, "--no-table") as up:
        up.event("up")
        interrupt_restore(new, first)
        done = json.loads(run(new, "backup", "restore", first, "--continue", "--json"))
        assert done["equal"]
        assert [one["rows"] for one in done["tables"]] == [len(saved[name]) for name in sorted(TABLES)]
        with client_of(up) as client:
            for name in TABLES:
                assert dict(client.scan(name)) == saved[name]
            client.put("files", "not-in-the-backup", b"1")
        differs = run_rk("backup", "restore", str(first), "--table", "files", "--continue", "--data-dir", str(new))
        assert differs.returncode == 1
        assert "NOT equal to the backup" in differs.stdout
        assert up.stop() == 0, up.said()
