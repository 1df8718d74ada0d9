"""Requests to a running `rk up`: list its daemons, kill and start one (drills), add one (`rk up add`), give all of
them credentials for their next start and restart them (`rk secure`).

A Unix socket in the data directory; one connection carries one request and one answer, each a line of JSON. The
socket's permission bits (owner only) are its access control.

    {"op": "list"}                                        -> {"ok": true, "daemons": [...]}
    {"op": "kill", "name": "master-1", "signal": 9}       -> {"ok": true, "daemons": [that one]}
    {"op": "start", "name": "master-1"}                   -> {"ok": true, "daemons": [that one]}
    {"op": "restart", "name": "master-1"}                 -> {"ok": true, "daemons": [that one]}
    {"op": "add", "name": "server", "rack": ""}           -> {"ok": true, "daemons": [the new one]}
    {"op": "secure", "name": "begin"}                     -> {"ok": true, "daemons": [...]}
    {"op": "secure", "name": "done"}                      -> {"ok": true, "daemons": [...]}
    {"op": "secure", "name": "separate"}                  -> {"ok": true, "daemons": [...]}
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.common.errors import CliError, UnreachableError
from cli.common.local import CONTROL_FILE, holder

REQUEST_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 1 << 20
#: States of a suspended process in /proc.
_STOPPED: Final = ("T", "t")


class ControlRequest(msgspec.Struct):
    """One request; only some operations use `name` and `signal`."""

    op: str
    name: str = ""
    signal: int = 0
    rack: str = ""


class DaemonState(msgspec.Struct):
    """The state of a daemon. If the daemon does not run, `pid` is 0 and `status` is how its process ended."""

    name: str
    role: str
    address: str
    admin: str
    log: str
    pid: int
    status: str
    #: Whether the process runs with the command line and the rights that a start would use now.
    is_current: bool = True
    #: True from a SIGSTOP that was requested here to the SIGCONT.
    is_frozen: bool = False


class ControlAnswer(msgspec.Struct):
    """Answer to any request; `error` is empty when `ok`."""

    ok: bool
    error: str = ""
    hint: str = ""
    daemons: list[DaemonState] = []


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits into a socket address (108 bytes), however long `path` is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen(data_dir: Path) -> socket.socket:
    """Return the listening socket. Replace the file of an earlier supervisor (the caller holds the lock)."""
    path = data_dir / CONTROL_FILE
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(path) as name:
        listener.bind(name)
    path.chmod(0o600)
    listener.listen(8)
    return listener


def ask(data_dir: Path, request: ControlRequest, timeout_s: float = 10.0) -> list[DaemonState]:
    """Send one request to the `rk up` of `data_dir`.

    Raise UnreachableError if none runs there, CliError if it rejects the request.
    """
    answer = msgspec.json.decode(
        _exchange(data_dir, msgspec.json.encode(request) + b"\n", timeout_s), type=ControlAnswer
    )
    if not answer.ok:
        raise CliError(f"rk up rejected {request.op} {request.name}: {answer.error}", answer.hint)
    return answer.daemons


def _exchange(data_dir: Path, line: bytes, timeout_s: float) -> bytes:
    try:
        with (
            short_path(data_dir / CONTROL_FILE) as name,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(timeout_s)
            connection.connect(name)
            connection.sendall(line)
            if _holder(data_dir)[1] in _STOPPED:
                raise TimeoutError
            with connection.makefile("rb") as reader:
                answer = reader.readline(ANSWER_BYTES_MAX)
    except TimeoutError as error:
        raise UnreachableError(*_stuck(data_dir, timeout_s)) from error
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
        raise UnreachableError(
            f"no `rk up` runs in {data_dir}" + ("" if is_absent else f" ({error.strerror or error})"),
            "Start one with `rk up`, or name its directory with --data-dir.",
        ) from error
    if not answer:
        raise UnreachableError(f"the `rk up` of {data_dir} ended before it answered")
    return answer


def _holder(data_dir: Path) -> tuple[int, str]:
    """Return the pid of the `rk up` of this directory, and the state of the process; 0 and "" if unknown."""
    pid = holder(data_dir)
    try:
        # The name of the program, in parentheses, may contain blanks.
        return pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return 0, ""


def _stuck(data_dir: Path, timeout_s: float) -> tuple[str, str]:
    """Return the facts about an `rk up` that accepts requests and does not answer, and what to do."""
    pid, state = _holder(data_dir)
    who = f"the `rk up` of {data_dir}" + (f" (pid {pid})" if pid else "")
    if state in _STOPPED:
        return f"{who} runs, but is suspended (Ctrl-Z or SIGSTOP)", f"Continue it: kill -CONT {pid}"
    return f"{who} runs, but did not answer within {timeout_s:g} s", "Try again when the machine is less busy."
