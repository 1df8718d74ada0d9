"""Run the daemons of a local cluster as child processes; none of them outlives `rk up`.

One thread forks, reaps and answers the control socket, and it lives as long as the process. PR_SET_PDEATHSIG requires
this: the kernel sends the signal when the forking thread dies, so a `kill -9` of `rk up` also kills the daemons. Every
daemon leads its own process group. Ctrl-C at the terminal therefore reaches only `rk up`, which stops the daemons in
order, and a kill also reaches the child processes of a daemon (a Spark job).

After a call of `keep_running`, a daemon that dies is restarted: after one second, and after twice the last pause if it
dies again soon.

The public methods may be called from the main thread; they run on the supervisor's thread and wait for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from cli.common.errors import CliError
from cli.common.local import Daemon
from cli.up.control import REQUEST_BYTES_MAX, ControlAnswer, ControlRequest, DaemonState

T = TypeVar("T")

_PR_SET_PDEATHSIG: Final = 1
#: Time in which a client of the control socket must send its line.
_CONTROL_TIMEOUT_S: Final = 2.0
#: Bytes of a log's end that are searched for its last lines.
_TAIL_BYTES: Final = 8192

#: Pause before a dead daemon is restarted. The pause doubles up to RESTART_MAX_S while the daemon keeps dying.
RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
#: A daemon that ran this long gets the first pause again.
LASTED_S: Final = 60.0

#: Requests that start a daemon, at once or later.
_STARTS: Final = ("add", "restart", "start")

_libc = ctypes.CDLL(None, use_errno=True)


class _Child:
    """One started process."""

    def __init__(
        self, process: subprocess.Popen[bytes], pidfd: int, command: list[str], rights: dict[str, str]
    ) -> None:
        self.process = process
        self.command = command
        self.rights = rights
        self.pidfd = pidfd
        #: True once the end was requested.
        self.end_expected = False
        #: True once a restart was requested: the daemon is started again when this process has ended.
        self.is_replaced = False
        #: True after a SIGSTOP, until the SIGCONT.
        self.is_frozen = False
        self.began_s = time.monotonic()


class Ended:
    """Event: a daemon's process has ended. A negative `returncode` is the number of the signal that ended it.

    `again_in_s`: seconds until the restart; None if the daemon is not restarted.
    """

    def __init__(self, daemon: Daemon, returncode: int, expected: bool, again_in_s: float | None = None) -> None:
        self.daemon = daemon
        self.returncode = returncode
        self.expected = expected
        self.again_in_s = again_in_s

    @property
    def how(self) -> str:
        """Return how the process ended, such as `exit status 1` or `SIGKILL`."""
        return describe_end(self.returncode)


class Restarted:
    """Event: a daemon was restarted, on a drill's request or after it died."""

    def __init__(self, daemon: Daemon, pid: int, *, by_itself: bool = False) -> None:
        self.daemon = daemon
        self.pid = pid
        self.by_itself = by_itself


class NotStarted:
    """Event: the restart of a dead daemon failed; the next attempt is in `again_in_s`."""

    def __init__(self, daemon: Daemon, why: str, again_in_s: float) -> None:
        self.daemon = daemon
        self.why = why
        self.again_in_s = again_in_s


class Added:
    """Event: a daemon was added to the running cluster."""

    def __init__(self, daemon: Daemon, pid: int) -> None:
        self.daemon = daemon
        self.pid = pid


News = Ended | Restarted | NotStarted | Added
#: Records a further daemon and returns it with its command line. Raises CliError.
Grow = Callable[[ControlRequest], tuple[Daemon, list[str]]]
#: Additional environment of the daemons of each role, by which they authenticate to the store.
Rights = dict[str, dict[str, str]]
#: Returns command lines and rights of the daemons from their next start on. Raises CliError.
Secure = Callable[[ControlRequest], tuple[dict[str, list[str]], Rights]]


class Supervisor:
    """Forks and watches the daemons. Its thread calls `report` for every end and every restart."""

    def __init__(
        self,
        daemons: Sequence[Daemon],
        commands: dict[str, list[str]],
        environment: dict[str, str],
        listener: socket.socket | None,
        report: Callable[[News], None],
        grow: Grow | None = None,
        secure: Secure | None = None,
        rights: Rights | None = None,
    ) -> None:
        """`grow` handles requests for further daemons, `secure` those of `rk secure`; None refuses them."""
        self._grow = grow
        self._secure = secure
        self._daemons = {daemon.name: daemon for daemon in daemons}
        self._commands = commands
        self._environment = environment
        self._rights = rights or {}
        self._listener = listener
        self._report = report
        self._children: dict[str, _Child] = {}
        self._last_end: dict[str, str] = {}
        #: Whether dead daemons are restarted; the time of each restart, and the pause of each daemon.
        self._keeps_running = False
        self._due_s: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._calls: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._calls_lock = threading.Lock()
        self._ended = threading.Condition()
        self._closing = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)

    # --- for the main thread ---

    def open(self) -> None:
        """Start the thread, which then handles requests and reaps daemons."""
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wake)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def start(self, name: str) -> int:
        """Start the daemon `name` unless it runs; return its pid."""
        return self._call(lambda: self._start(name))

    def forget(self, name: str) -> None:
        """Stop a daemon that is no longer part of the cluster, and never start it again."""

        def forget() -> None:
            self._due_s.pop(name, None)
            if name in self._children:
                self._children[name].is_replaced = False
                self._signal(name, signal.SIGTERM)
            del self._daemons[name], self._commands[name]

        self._call(forget)

    def states(self) -> list[DaemonState]:
        """Return the state of every daemon, in start order."""
        return self._call(self._states)

    def keep_running(self, wanted: bool) -> None:
        """Restart daemons that die from now on, or (False) no longer restart them."""

        def change() -> None:
            self._keeps_running = wanted
            if not wanted:
                self._due_s.clear()

        self._call(change)

    def stop_starting(self) -> None:
        """Refuse requests for further starts: the cluster is being stopped."""

        def change() -> None:
            self._is_stopping = True
            for child in self._children.values():
                child.is_replaced = False

        self._call(change)

    def signal(self, names: Sequence[str], number: signal.Signals) -> None:
        """Send a signal to the running daemons among `names`; their end is then expected."""

        def send() -> None:
            for name in names:
                if name in self._children:
                    self._children[name].is_replaced = False
                    self._signal(name, number)

        self._call(send)

    def wait_ended(self, names: Sequence[str], timeout_s: float) -> list[str]:
        """Wait until none of `names` runs; return the names that still run after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._ended:
            while True:
                left = [name for name in names if name in self._children]
                remaining_s = deadline - time.monotonic()
                if not left or remaining_s <= 0:
                    return left
                self._ended.wait(remaining_s)

    def kill_all(self) -> None:
        """Send SIGKILL to the process group of every running daemon, and wait until they have ended."""
        self._call(self._kill_groups)
        self.wait_ended(list(self._children), timeout_s=5.0)

    def close(self) -> None:
        """End the thread; the caller has stopped the daemons (the kernel kills what still runs)."""
        self._closing = True
        os.write(self._wake_write, b"x")
        self._thread.join()

    def _call(self, function: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self._calls_lock:
            self._calls.append((function, future))
        os.write(self._wake_write, b"x")
        return future.result()

    # --- on the supervisor's thread ---

    def _loop(self) -> None:
        while not self._closing:
            due_s = min(self._due_s.values(), default=None)
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            for key, _ in self._selector.select(timeout_s):
                key.data()
            self._start_again()
            with self._calls_lock:
                calls, self._calls = self._calls, []
            for function, future in calls:
                try:
                    future.set_result(function())
                except Exception as error:  # handed to the caller, who waits for it
                    future.set_exception(error)

    def _drain_wake(self) -> None:
        os.read(self._wake_read, 4096)

    def _start(self, name: str) -> int:
        running = self._children.get(name)
        if running is not None:
            return running.process.pid
        daemon = self._daemons[name]
        rights = self._rights.get(daemon.role, {})
        Path(daemon.data_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open_log(daemon) as log:
            process = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, **rights},
                process_group=0,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - only makes two system calls, no locks, no allocation of note
            )
        child = _Child(process, os.pidfd_open(process.pid), self._commands[name], rights)
        self._due_s.pop(name, None)
        self._children[name] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._reap(daemon, child))
        return process.pid

    def _reap(self, daemon: Daemon, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        returncode = child.process.wait()
        # The child processes of the daemon must not outlive it either.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        self._last_end[daemon.name] = describe_end(returncode)
        with self._ended:
            del self._children[daemon.name]
            self._ended.notify_all()
        self._report(Ended(daemon, returncode, child.end_expected, self._pause(daemon.name, child)))
        if child.is_replaced:
            self._start_or_retry(daemon, by_itself=False)

    def _pause(self, name: str, child: _Child) -> float | None:
        """Return the pause before a dead daemon is restarted; None if it is not restarted."""
        if child.end_expected or not self._keeps_running:
            return None
        if time.monotonic() - child.began_s >= LASTED_S:
            self._pause_s.pop(name, None)
        return self._next_pause(name)

    def _next_pause(self, name: str) -> float:
        """Schedule the restart of a dead daemon; return the pause before it."""
        pause_s = self._pause_s.get(name, RESTART_S)
        self._pause_s[name] = min(2 * pause_s, RESTART_MAX_S)
        self._due_s[name] = time.monotonic() + pause_s
        return pause_s

    def _start_again(self) -> None:
        now_s = time.monotonic()
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[name]
            if name not in self._children:
                self._start_or_retry(self._daemons[name], by_itself=True)

    def _start_or_retry(self, daemon: Daemon, *, by_itself: bool) -> None:
        try:
            pid = self._start(daemon.name)
        except OSError as error:  # no memory, or no disk space for its directory; both are temporary
            pause_s = self._next_pause(daemon.name)
            self._report(NotStarted(daemon, f"{error.filename or 'fork'}: {error.strerror}", pause_s))
        else:
            self._report(Restarted(daemon, pid, by_itself=by_itself))

    def _signal(self, name: str, number: int) -> None:
        child = self._children[name]
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            child.end_expected = True
        child.process.send_signal(number)
        child.is_frozen = number == signal.SIGSTOP or (child.is_frozen and number != signal.SIGCONT)

    def _restart(self, daemon: Daemon) -> None:
        """Let a daemon end and start it again, at once if it does not run. The restart does not depend on the caller's
        connection."""
        child = self._children.get(daemon.name)
        if child is None:
            self._start_or_retry(daemon, by_itself=False)
        elif not child.is_replaced:
            child.is_replaced = True
            self._signal(daemon.name, signal.SIGTERM)

    def _kill_groups(self) -> None:
        for child in self._children.values():
            child.end_expected, child.is_replaced = True, False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)

    def _states(self) -> list[DaemonState]:
        return [self._state(daemon) for daemon in self._daemons.values()]

    def _state(self, daemon: Daemon) -> DaemonState:
        child = self._children.get(daemon.name)
        pid = child.process.pid if child is not None else 0
        status = "running" if child is not None else self._last_end.get(daemon.name, "not started")
        is_current = child is not None and not child.is_replaced and child.command == self._commands[daemon.name]
        is_current = is_current and child is not None and child.rights == self._rights.get(daemon.role, {})
        is_frozen = child is not None and child.is_frozen
        return DaemonState(
            daemon.name, daemon.role, daemon.address, daemon.admin, daemon.log, pid, status, is_current, is_frozen
        )

    # --- control socket ---

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:  # no descriptor left, or the client has gone: the client retries
            return
        # Handled on this thread: a request is one short line, and no operation takes longer than a fork.
        with connection:
            connection.settimeout(_CONTROL_TIMEOUT_S)
            with contextlib.suppress(OSError), connection.makefile("rb") as reader:
                line = reader.readline(REQUEST_BYTES_MAX)
                connection.sendall(msgspec.json.encode(self._answer(line)) + b"\n")

    def _answer(self, line: bytes) -> ControlAnswer:
        try:
            request = msgspec.json.decode(line, type=ControlRequest)
        except msgspec.DecodeError as error:
            return ControlAnswer(ok=False, error=f"unreadable request: {error}")
        if request.op == "list":
            return ControlAnswer(ok=True, daemons=self._states())
        if self._is_stopping and request.op in _STARTS:
            return ControlAnswer(ok=False, error="the cluster is being stopped", hint="Start it again: rk up.")
        if request.op == "add" and self._grow is not None:
            return self._add(request, self._grow)
        if request.op == "secure" and self._secure is not None:
            return self._change(request, self._secure)
        daemon = self._daemons.get(request.name)
        if daemon is None:
            return ControlAnswer(ok=False, error=f"there is no daemon {request.name!r}")
        if request.op == "start":
            child = self._children.get(request.name)
            if child is not None:
                # The daemon was killed and has not ended yet. It is started again at its end.
                child.is_replaced = child.is_replaced or child.end_expected
            else:
                try:
                    self._report(Restarted(daemon, self._start(request.name)))
                except OSError as error:
                    return ControlAnswer(ok=False, error=f"{error.filename or 'fork'}: {error.strerror}")
        elif request.op == "kill":
            if request.name not in self._children:
                return ControlAnswer(ok=False, error=f"{request.name} does not run")
            self._signal(request.name, request.signal or signal.SIGKILL)
        elif request.op == "restart":
            self._restart(daemon)
        else:
            return ControlAnswer(ok=False, error=f"unknown operation {request.op!r}")
        return ControlAnswer(ok=True, daemons=[self._state(daemon)])

    def _change(self, request: ControlRequest, secure: Secure) -> ControlAnswer:
        """Use other command lines and rights from the next start of each daemon on."""
        try:
            commands, rights = secure(request)
        except CliError as error:
            return ControlAnswer(ok=False, error=error.message, hint=error.hint)
        self._commands.update(commands)
        self._rights = rights
        return ControlAnswer(ok=True, daemons=self._states())

    def _add(self, request: ControlRequest, grow: Grow) -> ControlAnswer:
        try:
            daemon, command = grow(request)
            self._commands[daemon.name] = command
            self._daemons[daemon.name] = daemon
            self._report(Added(daemon, self._start(daemon.name)))
        except CliError as error:
            return ControlAnswer(ok=False, error=error.message, hint=error.hint)
        except OSError as error:
            return ControlAnswer(ok=False, error=f"{error.filename or 'fork'}: {error.strerror}")
        return ControlAnswer(ok=True, daemons=[self._state(daemon)])


def _open_log(daemon: Daemon) -> IO[bytes]:
    """Open the log of a daemon. If this is impossible, for instance on a full disk, the daemon runs without a log."""
    try:
        return Path(daemon.log).open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def die_with(parent: int) -> Callable[[], None]:
    """Return the function that a child calls before exec: request SIGKILL at the death of `parent`.

    The function exits at once if `parent` has died already.
    """

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def describe_end(returncode: int) -> str:
    """Return how a process ended, such as `exit status 1` or `SIGKILL`."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def last_lines(log: Path, count: int = 5) -> list[str]:
    """Return the last non-empty lines of a log, for the message about its daemon's end."""
    try:
        with log.open("rb") as reader:
            reader.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = reader.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
