"""What several tests share: waiting for an event with a deadline, free ports, processes that always end."""

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
from typing import Final, TypeVar

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from coord.errors import CoordError
from tests.support import forked

T = TypeVar("T")

#: The only pause between two looks at a condition that no event announces.
POLL_S = 0.02
#: What a slow or busy machine may take for anything at all. A test that passes does not wait for it.
PATIENCE_S: Final = 60.0
#: What says "not yet": no answer, a refusal, a store or a master that is changing hands.
NOT_YET: Final = (AssertionError, OSError, CoordError, KazooException, KazooTimeoutError, http.client.HTTPException)

#: Ports that tests give to daemons: below those that the kernel gives to outgoing connections, in blocks.
_PORTS: Final = range(10_000, 20_000, 200)
_claims: list[socket.socket] = []


def eventually(check: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "condition") -> T:
    """Return the first truthy answer of `check`; fail with the last answer or error once `timeout_s` has passed.

    What is in NOT_YET, raised by `check`, means "not yet". Whatever `timeout_s` says, PATIENCE_S is the least.
    """
    timeout_s = max(timeout_s, PATIENCE_S)
    pause = threading.Event()
    last: object = None
    # Counted in looks, for whatever stops this process stops what it waits for; in time where each look takes long.
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


def claim_ports(first: int) -> bool:
    """Whether the block of ports that begins there is ours from now on, among all test processes of this machine.

    The claim is a name that the kernel keeps for as long as this process lives.
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
    """The ports of a block of our own, round and round."""
    first = next(first for first in random.sample(_PORTS, len(_PORTS)) if claim_ports(first))
    return itertools.cycle(range(first, first + _PORTS.step))


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_ports(n: int) -> list[int]:
    """`n` different unused loopback ports that neither another test process nor the kernel gives away meanwhile."""
    return list(itertools.islice(filter(_is_free, _own_ports()), n))


Process = subprocess.Popen[bytes] | forked.Forked


def launch(arguments: list[str], log: Path, *, env: dict[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Start a process of its own group, output to `log`."""
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
    """Run a process of its own group, output to `log`; on leaving, the whole group is killed whatever happened."""
    process = launch(arguments, log, env=env, cwd=cwd)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finished(arguments: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output as text. After `timeout_s` kill it and raise subprocess.TimeoutExpired."""
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
    """`preexec_fn` of a process that is to be interrupted: a shell without job control has its background jobs ignore
    that, these tests among them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def rk(*arguments: str) -> list[str]:
    """The command line of `rk` in this interpreter."""
    return [sys.executable, "-m", "cli", *arguments]
