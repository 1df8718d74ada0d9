"""Points at which a test ends or stops this process: kill -9 between two steps on files, or two writes to the store.

    RK_KILL_AT=<point>      the process kills itself at the first pass of this point
    RK_STOP_AT=<point>      the process stops there (SIGSTOP), and continues after SIGCONT
    RK_NOTE_POINTS=<file>   the process appends the name of each point that it passes to the file

`RK_KILL_AT=@<file>` and `RK_STOP_AT=@<file>` name a file with the point, which a test may write while the process runs.
The file is removed before the process dies or stops, so that only one of several processes does so. `<point> #3` in the
file is the third time that any process passes the point; the file counts down.

A region server's points are named after the effect that has just become durable (`point_of`), after a step of a copy,
after the state that it has written into the store, or after a configuration was appended or committed, with its numbers
of voters and newcomers: `config appended 3+1`, `config committed 4+0`. A master's points are named after the operation
that the store has just done: `Create unassigned`, `SetData regions` and so on. `rk secure` has the points `door
closed`, and `access list PATH` after a znode has its new list. Only tests set the variables.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from coord.raft.membership import Configuration

KILL_VARIABLE: Final = "RK_KILL_AT"
STOP_VARIABLE: Final = "RK_STOP_AT"
NOTE_VARIABLE: Final = "RK_NOTE_POINTS"


def reached(point: str) -> None:
    """End or stop the process if a test wants that at this point."""
    if NOTE_VARIABLE in os.environ:
        with Path(os.environ[NOTE_VARIABLE]).open("a") as notes:
            notes.write(point + "\n")
    if _is_wanted_here(point, os.environ.get(KILL_VARIABLE, "")):
        os.kill(os.getpid(), signal.SIGKILL)
    wanted = os.environ.get(STOP_VARIABLE, "")
    if _is_wanted_here(point, wanted):
        if not wanted.startswith("@"):
            del os.environ[STOP_VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_wanted_here(point: str, wanted: str) -> bool:
    """Return True if this process dies or stops at the point. If several processes come there at once, only the
    one that removes the file of the point does."""
    if not wanted.startswith("@"):
        return point == wanted
    file = Path(wanted[1:])
    try:
        name, _, times = file.read_text().partition(" #")
        if name != point:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    left = int(times or 1) - 1
    if left:
        file.write_text(f"{name} #{left}")
    return not left


def is_wanted() -> bool:
    """Return True if a test wants some point."""
    return KILL_VARIABLE in os.environ or STOP_VARIABLE in os.environ or NOTE_VARIABLE in os.environ


def config_reached(fate: str, configuration: Configuration) -> None:
    """Pass the point after a tablet's configuration was appended, committed or noted in the consensus metadata. Each of
    these is durable by then."""
    reached(f"config {fate} {len(configuration.voters)}+{len(configuration.pre_voters)}")


def point_of(effect: object) -> str:
    """Return the name of the point after an effect of `disk/steps.py`: the kind and the object of the effect."""
    kind = type(effect).__name__
    block = getattr(effect, "block", None)
    if block is not None:
        return f"{kind} {block.data_state.value}"
    path = str(getattr(effect, "target", "") or getattr(effect, "path", ""))
    return f"{kind} {os.path.basename(path)}" if kind in ("CopyFile", "MoveFile") else kind
