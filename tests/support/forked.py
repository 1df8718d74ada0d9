"""Start `rk` processes by a fork of a process that has imported the product already.

End-to-end tests start hundreds of processes, and imports take most of the processor time of a short-lived one. A forked
process is otherwise like a process that `subprocess` starts: it has its own session, environment, output files, working
directory and exit status. Only its command line in /proc differs. The end-to-end tests call `allow`. `rk up`, when it
starts a cluster, still starts `python -m cli`; with RK_EXEC=1 all tests do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final

#: The first words of every command line of `rk`.
RK: Final = [sys.executable, "-m", "cli"]
_EXEC: Final = "RK_EXEC"
_PROGRAM: Final = str(Path(__file__).resolve().parents[2] / "cli" / "__main__.py")
#: Variables that take effect before or during imports: a process with other values needs a new interpreter.
_EARLY: Final = ("PYTHON", "RK_PURE", "LD_")
#: Pause between two checks of a process that is starting.
_POLL_S: Final = 0.001


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], process: ForkServerProcess) -> None:
        self.args = arguments
        self._process = process
        assert process.pid is not None
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; minus the signal's number if a signal ended the process; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status as soon as there is one. Raise subprocess.TimeoutExpired."""
        self._process.join(timeout)
        status = self.returncode
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def allow() -> None:
    """Let `can_start` return True in this process from now on."""
    _began_with()


def can_start(arguments: list[str]) -> bool:
    """Return True if this is a command line of `rk` that a fork can take over, in the present environment."""
    is_allowed = allow.cache_info().currsize > 0 and not os.environ.get(_EXEC)
    return is_allowed and arguments[: len(RK)] == RK and _early(os.environ) == _early(_began_with())


def start(arguments: list[str], output: Path, errors: Path) -> Forked:
    """Start a command line for which `can_start` is true; the output is appended to the files.

    The process leads a session when this returns, so that its group can be killed.
    """
    target_arguments = (arguments[len(RK) :], str(output), str(errors), os.getcwd(), dict(os.environ))
    process = _server().Process(target=_become, args=target_arguments, daemon=True)
    process.start()
    forked = Forked(arguments, process)
    pause = threading.Event()
    while forked.poll() is None and not _leads_session(forked.pid):
        pause.wait(_POLL_S)
    return forked


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _early(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_EARLY)}


@cache
def _began_with() -> dict[str, str]:
    """Return the environment with which the server of forks was or will be started."""
    return dict(os.environ)


@cache
def _server() -> ForkServerContext:
    """Return the server of forks of this test process."""
    _began_with()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    return context


def _become(words: list[str], output: str, errors: str, folder: str, environment: dict[str, str]) -> None:
    """Become that `rk` process. Called in the fork."""
    os.setsid()
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for path, flags, number in ((os.devnull, os.O_RDONLY, 0), (output, append, 1), (errors, append, 2)):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [_PROGRAM, *words]
    from cli.main import main

    main()
