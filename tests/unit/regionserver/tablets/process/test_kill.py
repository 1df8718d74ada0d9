"""kill -9 of a process with tablets: every answered write exists afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.hosts_in_process import Cluster
from tests.support.reactors import in_reactor

ROOT = Path(__file__).resolve().parents[5]


def test_no_answered_write_is_missing_after_kill_9(tmp_path: Path) -> None:
    answered = 0
    for rows in (100, 200):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host_process", str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answered = max(answered, int(line))
                if int(line) >= rows:
                    break
        finally:
            process.kill()
            process.communicate()
        assert answered >= rows, "the process ended by itself"

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path, size=1)
        cluster.start()
        for tablet in ("t", "u"):
            for number in range(answered):
                assert await cluster.get(tablet, f"k{number}") == b"%d" % (number % 10), (tablet, number)
        await cluster.stop()

    in_reactor(main)
