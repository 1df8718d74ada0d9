"""Where a benchmark works, and what earlier runs of it wrote with --raw."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

EXIT_TERMINATED: Final = 143
EXIT_INTERRUPTED: Final = 130

R = TypeVar("R")


@contextlib.contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """Yield a new folder, and remove it afterwards. SIGTERM and Ctrl-C end the block, and with it what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    work = Path(tempfile.mkdtemp(prefix="rk-bench-", dir=parent or Path.cwd()))
    try:
        yield work
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing of it runs any more\n")
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def read_raw(paths: Sequence[Path], kind: type[R]) -> Iterator[R]:
    """Yield the reports in files that --raw has written."""
    for path in paths:
        for line in path.read_text().splitlines():
            yield msgspec.json.decode(line, type=kind)


def append_raw(path: Path | None, report: msgspec.Struct) -> None:
    """Append a report to the file of --raw, if there is one."""
    if path is not None:
        with path.open("ab") as raw:
            raw.write(msgspec.json.encode(report) + b"\n")
