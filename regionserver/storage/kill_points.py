"""Points at which a test ends or stops this process: kill -9 between two steps on a tablet's files.

    RK_KILL_AT=<point>     the process kills itself there, the first time that it comes there
    RK_STOP_AT=<point>     the process stops there (SIGSTOP), and goes on with SIGCONT

A point is named after the effect that has just become durable (`point_of`), or after a step of a copy. Only tests set
the variables.
"""

from __future__ import annotations

import os
import signal
from typing import Final

KILL_VARIABLE: Final = "RK_KILL_AT"
STOP_VARIABLE: Final = "RK_STOP_AT"


def reached(point: str) -> None:
    """End or stop the process if a test wants that at this point."""
    if point == os.environ.get(KILL_VARIABLE):
        os.kill(os.getpid(), signal.SIGKILL)
    if point == os.environ.get(STOP_VARIABLE):
        del os.environ[STOP_VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)


def is_wanted() -> bool:
    """Return True if a test wants some point."""
    return KILL_VARIABLE in os.environ or STOP_VARIABLE in os.environ


def point_of(effect: object) -> str:
    """Return the point after an effect of `disk/steps.py`: its kind, and what it is about."""
    kind = type(effect).__name__
    block = getattr(effect, "block", None)
    if block is not None:
        return f"{kind} {block.data_state.value}"
    path = str(getattr(effect, "target", "") or getattr(effect, "path", ""))
    return f"{kind} {os.path.basename(path)}" if kind in ("CopyFile", "MoveFile") else kind
