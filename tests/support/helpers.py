"""Helpers of several tests: waiting for an event with a deadline, free ports, processes that always end."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from coord.errors import CoordError
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions.messages import NO_LEASE
from tests.support import forked

T = TypeVar("T")

#: Pause between two checks of a condition that no event announces.
POLL_S = 0.02
#: Time limit for any step on a slow or busy machine. A passing test does not wait for it.
PATIENCE_S: Final = 60.0
#: Errors that mean "not yet": no answer, a rejection, a store or a master that is changing.
NOT_YET: Final = (AssertionError, OSError, CoordError, KazooException, KazooTimeoutError, http.client.HTTPException)

#: Ports for daemons, in blocks, below the ports that the kernel gives to outgoing connections.
_PORTS: Final = range(10_000, 20_000, 200)
_claims: list[socket.socket] = []


def eventually(check: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "condition") -> T:
    """Return the first truthy answer of `check`. Fail with the last answer or error after `timeout_s`.

    Errors of `check` in NOT_YET mean "not yet". `timeout_s` is raised to at least PATIENCE_S.
    """
    timeout_s = max(timeout_s, PATIENCE_S)
    pause = threading.Event()
    last: object = None
    # The limit counts checks, because a pause of this process also stops the awaited process; and time, for slow
    # checks.
    end = time.monotonic() + 3 * timeout_s
    for _ in itertools.takewhile(lambda _: time.monotonic() < end, range(int(timeout_s / POLL_S))):
        try:
            answer = check()
            if answer:
                return answer
            last = answer
        except NOT_YET as error:
            last = error
        pause.wait(POLL_S)
    raise AssertionError(f"{what} not met within {timeout_s} s; last: {last!r}")


def ask_server(address: tuple[str, int], message: Any, timeout_s: float, replies: Any) -> Any:
    """Return the reply of a region server. Ask again while the server holds no lease.

    A server that has just registered may not know it yet, and on a busy machine a lease may lapse for a moment. Masters
    ask again, too. Raise RpcError if the server refuses for another reason.
    """

    def asked() -> list[Any] | RpcError | None:
        try:
            return [call_blocking(address, message, timeout_s, replies=replies)]
        except RpcError as error:
            return None if error.code == NO_LEASE else error

    answer = eventually(asked, what="a lease of the server")
    if isinstance(answer, RpcError):
        raise answer
    assert answer is not None
    return answer[0]


def claim_ports(first: int) -> bool:
    """Claim the block of ports from `first` on, among all test processes of this machine. Return False if it is taken.

    The claim is a name that the kernel keeps while this process lives.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0regionkeeper-test-ports-{first}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


@functools.cache
def _own_ports() -> Iterator[int]:
    """Yield the ports of our own block, again and again."""
    first = next(first for first in random.sample(_PORTS, len(_PORTS)) if claim_ports(first))
    return itertools.cycle(range(first, first + _PORTS.step))


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_ports(n: int) -> list[int]:
    """Return `n` different unused loopback ports that neither another test process nor the kernel gives away
    meanwhile."""
    return list(itertools.islice(filter(_is_free, _own_ports()), n))


Process = subprocess.Popen[bytes] | forked.Forked


def launch(arguments: list[str], log: Path, *, env: dict[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Start a process in its own group, with its output in `log`."""
    if env is None and cwd is None and forked.can_start(arguments):
        return forked.start(arguments, log, log)
    with log.open("ab") as out:
        return subprocess.Popen(
            arguments,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )


@contextlib.contextmanager
def daemon(
    arguments: list[str], *, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Process]:
    """Run a process in its own group, with its output in `log`. Kill the whole group at the end of the block."""
    process = launch(arguments, log, env=env, cwd=cwd)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finished(arguments: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its output as text. After `timeout_s` kill it and raise
    subprocess.TimeoutExpired."""
    if not forked.can_start(arguments):
        return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "out"), Path(folder, "err")
        process = forked.start(arguments, output, errors)
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        texts = [path.read_text() if path.exists() else "" for path in (output, errors)]
    return subprocess.CompletedProcess(arguments, status, *texts)


def heed_ctrl_c() -> None:
    """Let this process handle SIGINT; the `preexec_fn` of a process that a test interrupts. A shell without job control
    makes its background jobs ignore SIGINT, and these tests may be such a job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def rk(*arguments: str) -> list[str]:
    """Return the command line of `rk` in this interpreter."""
    return [sys.executable, "-m", "cli", *arguments]
