"""The logs of the daemons that `rk up` runs: bounded by size, and their level.

The log is the standard error of a daemon, so `rk up` cannot rename it: it copies the file to NAME.log.1 and empties it.
The daemon appends, so it continues at the beginning. Lines that it writes between the end of the copy and the emptying
are lost. Daemons under systemd have the journal, which has bounds of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from cli.common import output
from cli.common.errors import CliError, NotFoundError
from cli.common.local import Daemon, read_cluster
from cli.common.options import Globals, global_options

#: Size from which a log is put aside.
LOG_BYTES_MAX: Final = 32 << 20
#: Former logs of a daemon that are kept: NAME.log.1 is the newest.
LOGS_KEPT: Final = 3
#: Pause between two looks at the sizes.
LOOK_S: Final = 10.0


def bound(logs: Iterable[Path], most: int = LOG_BYTES_MAX) -> None:
    """Put aside the logs that have reached `most` bytes. A log that cannot be copied (full disk) stays as it is."""
    for log in logs:
        with contextlib.suppress(OSError):
            if log.stat().st_size >= most:
                _put_aside(log)


def _put_aside(log: Path) -> None:
    former = [log.with_name(f"{log.name}.{number}") for number in range(1, LOGS_KEPT + 1)]
    copy = log.with_name(f"{log.name}.new")
    try:
        shutil.copyfile(log, copy)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    os.truncate(log, 0)
    for older, newer in zip(reversed(former), [*reversed(former[:-1]), copy], strict=True):
        if newer.exists():
            newer.replace(older)


@click.command("log-level")
@click.argument("daemon")
@click.argument("level", type=click.Choice(["debug", "usual"]))
@global_options
@click.pass_obj
def log_level(given: Globals, daemon: str, level: str) -> None:
    """Let a running DAEMON of this machine's cluster log everything (debug), or as its --log-level says (usual).

    DAEMON is a name such as server-2, or `all`. Elsewhere send the signals yourself: SIGUSR1 for debug, SIGUSR2 for
    usual.
    """
    local = read_cluster(given.data_path)
    if local is None:
        raise CliError(f"no cluster of `rk up` in {output.shown(given.data_path)}", "Give its --data-dir.")
    daemons = [one for one in local.daemons() if daemon in ("all", one.name)]
    if not daemons:
        names = ", ".join(one.name for one in local.daemons())
        raise NotFoundError(f"there is no daemon {daemon!r}", f"The daemons are: {names}.")
    reached = [one.name for one in daemons if _send(one, signal.SIGUSR1 if level == "debug" else signal.SIGUSR2)]
    if not reached:
        raise CliError(f"{daemon} does not run", "Start the cluster: rk up")
    output.report({"level": level, "daemons": reached}, f"{', '.join(reached)}: logging {level}", as_json=given.json)


def _send(daemon: Daemon, number: signal.Signals) -> bool:
    """Send a signal to a daemon; return False if its process does not run. Another process may have its former pid."""
    if not daemon.pid:
        return False
    try:
        words = Path(f"/proc/{daemon.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if daemon.data_dir not in words:
            return False
        os.kill(daemon.pid, number)
    except OSError:
        return False
    return True
