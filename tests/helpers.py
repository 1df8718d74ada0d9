"""What several tests share: waiting for an event with a deadline, free ports, processes that always end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: The only pause between two looks at a condition that no event announces.
POLL_S = 0.02


def eventually(check: Callable[[], T], timeout_s: float = 20.0, what: str = "condition") -> T:
    """Return the first truthy answer of `check`; fail with the last answer or error once `timeout_s` has passed.

    OSError and AssertionError from `check` mean "not yet".
    """
    pause = threading.Event()
    last: object = None
    for _ in range(max(1, int(timeout_s / POLL_S))):
        try:
            answer = check()
            if answer:
                return answer
            last = answer
        except (OSError, AssertionError) as error:
            last = error
        pause.wait(POLL_S)
    raise AssertionError(f"{what} not met within {timeout_s} s; last: {last!r}")


def free_ports(n: int) -> list[int]:
    """Ask the kernel for `n` different unused loopback ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.contextmanager
def daemon(
    arguments: list[str], *, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of its own group, output to `log`; on leaving, the whole group is killed whatever happened."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            arguments,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rk(*arguments: str) -> list[str]:
    """The command line of `rk` in this interpreter."""
    return [sys.executable, "-m", "cli", *arguments]
