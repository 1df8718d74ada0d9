"""The processes that a drill breaks: those of an `rk up`, or those of any other cluster.

`rk up` kills, freezes and restarts its daemons itself. For any other cluster the operator gives two commands, which
kill a process and start it again: by ssh, systemctl, kubectl or a script. A command is a program with arguments, run
without a shell unless `--hook-shell` is given. The placeholders {name}, {address}, {host}, {port} and {role} in its
arguments are replaced; the same values are in the environment (RK_PROCESS_NAME and so on).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cli.common.connect import Cluster
from cli.common.errors import CliError, UsageFaultError
from cli.common.local import MASTER, SERVER, Daemon, LocalCluster
from cli.drill.cleanup import ClusterWatch
from cli.up.control import ControlRequest, DaemonState, ask

#: Time limit of one run of a hook.
HOOK_TIMEOUT_S: Final = 60.0
#: Bytes of a failed hook's output that the error quotes.
_QUOTED: Final = 300


class Hooks(msgspec.Struct, frozen=True):
    """The operator's commands; "" for a command that was not given. `in_shell`: run them by `sh -c`."""

    kill_with: str = ""
    start_with: str = ""
    in_shell: bool = False

    def __bool__(self) -> bool:
        return bool(self.kill_with or self.start_with)


NO_HOOKS: Final = Hooks()


class Watched(Protocol):
    """Knows whether a cluster has ended while it is cleaned up."""

    is_gone: bool


class Processes(Protocol):
    """Access to the processes of the cluster under test. Every method raises CliError."""

    #: Place of the processes' logs, for error messages.
    logs: str

    def daemons(self) -> dict[str, DaemonState]: ...

    def send(self, name: str, number: signal.Signals) -> None: ...

    def start(self, name: str) -> None: ...

    def watch(self, ended: Callable[[], object]) -> contextlib.AbstractContextManager[Watched]: ...


class SupervisedProcesses:
    """The processes of an `rk up`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.logs = f"{data_dir}/logs"

    def daemons(self) -> dict[str, DaemonState]:
        """Return the daemons by name."""
        return {one.name: one for one in ask(self._data_dir, ControlRequest("list"))}

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon."""
        ask(self._data_dir, ControlRequest("kill", name, number))

    def start(self, name: str) -> None:
        """Let `rk up` start a daemon again."""
        ask(self._data_dir, ControlRequest("start", name))

    def watch(self, ended: Callable[[], object]) -> ClusterWatch:
        """Return a context that calls `ended` when `rk up` has ended."""
        return ClusterWatch(self._data_dir, ended)


class _NeverGone:
    """A cluster whose end is not reported."""

    is_gone = False


class OutsideProcesses:
    """The masters and region servers of a cluster that somebody else runs, known by their registrations."""

    logs = "the processes' logs"

    def __init__(self, cluster: Cluster, local: LocalCluster, hooks: Hooks) -> None:
        self._cluster = cluster
        self._local = local
        self._hooks = hooks

    def daemons(self) -> dict[str, DaemonState]:
        """Return the processes by name. `pid` is the start code, 0 for a process that is not registered."""
        codes: dict[str, int] = {f"{one.host}:{one.port}": one.start_code for one in self._cluster.masters()}
        codes |= {f"{one.host}:{one.port}": one.start_code for one in self._cluster.servers()}
        return {
            one.name: DaemonState(
                one.name, one.role, one.address, "", "its log", codes.get(one.address, 0), "not registered"
            )
            for one in self._local.daemons()
        }

    def send(self, name: str, number: signal.Signals) -> None:
        """Run the command that kills a process. Raise CliError for any other signal."""
        if number != signal.SIGKILL:
            raise CliError(
                f"this drill sends {number.name} to {name}, which needs a cluster of `rk up`",
                "Freeze the process by other means, and run `rk drill observe` beside that.",
            )
        if not self._hooks.kill_with:
            raise CliError(f"no command kills {name}", "Give --kill-with and --start-with.")
        self._run("--kill-with", self._hooks.kill_with, name)

    def start(self, name: str) -> None:
        """Run the command that starts a process."""
        if not self._hooks.start_with:
            raise CliError(f"no command starts {name} again", "Give --start-with, or start it now by other means.")
        self._run("--start-with", self._hooks.start_with, name)

    @contextlib.contextmanager
    def watch(self, ended: Callable[[], object]) -> Iterator[Watched]:  # noqa: ARG002 - nobody reports its end
        """Return a context of a cluster that is never known to have ended."""
        yield _NeverGone()

    def _run(self, option: str, command: str, name: str) -> None:
        daemon = self._local.daemon(name)
        words = ["sh", "-c", command] if self._hooks.in_shell else filled(command, daemon)
        environment = {**os.environ, **{f"RK_PROCESS_{key.upper()}": value for key, value in facts(daemon).items()}}
        try:
            done = subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HOOK_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError) as error:
            raise CliError(f"{option} cannot be run for {name}: {error}", f"The command was: {command}") from error
        except subprocess.TimeoutExpired as error:
            raise CliError(
                f"{option} did not end within {HOOK_TIMEOUT_S:.0f} s for {name}",
                "A command that starts a process must leave it in the background.",
            ) from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip())[-_QUOTED:]
            raise CliError(f"{option} ended with status {done.returncode} for {name}: {said or 'no output'}")


def facts(daemon: Daemon) -> dict[str, str]:
    """Return the values of the placeholders for a process. Pure."""
    host, _, port = daemon.address.rpartition(":")
    return {"name": daemon.name, "address": daemon.address, "host": host, "port": port, "role": daemon.role}


def filled(command: str, daemon: Daemon) -> list[str]:
    """Return the words of a command with its placeholders replaced. Pure. Raise UsageFaultError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageFaultError(f"cannot split the command {command!r}: {error}", "Check its quotation marks.") from error
    if not words:
        raise UsageFaultError("a hook's command is empty", "Give a program with arguments, such as ssh {host} …")
    values = facts(daemon)
    for key, value in values.items():
        words = [word.replace(f"{{{key}}}", value) for word in words]
    return words


def outside_cluster(cluster: Cluster) -> LocalCluster:
    """Return the registered masters and region servers in the form of a local cluster, named by their addresses."""

    def daemon(role: str, host: str, port: int) -> Daemon:
        address = f"{host}:{port}"
        return Daemon(address, role, address, admin="", data_dir="", log="")

    return LocalCluster(
        store=cluster.hosts,
        root=cluster.layout.root or "/",
        outside=True,
        base_port=0,
        coord=[],
        masters=[daemon(MASTER, one.host, one.port) for one in cluster.masters()],
        servers=[daemon(SERVER, one.host, one.port) for one in cluster.servers()],
    )
