"""Find the process that uses a port. `rk up` checks all ports before it starts any daemon."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from cli.common.errors import UsageFaultError

_LISTEN: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


def is_free(host: str, port: int) -> bool:
    """Return whether a daemon could listen there. Ports in TIME_WAIT count as free, as they do for daemons.

    Raise UsageFaultError if this machine has no such address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise UsageFaultError(
                f"no daemon can listen on {host}:{port}: {error.strerror or error}",
                "--address is an IPv4 address or a name of this machine.",
            ) from error
    return True


def holder(port: int) -> tuple[int, str] | None:
    """Return pid and command line of the process that listens on `port`; None if unknown (for example another
    user's)."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_any(process, wanted):
            return int(process.name), _command(process)
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _has_any(process: Path, sockets: set[str]) -> bool:
    try:
        return any(os.readlink(link) in sockets for link in (process / "fd").iterdir())
    except OSError:
        return False  # the process has ended, or belongs to another user


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(words).strip()
