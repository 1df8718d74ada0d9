"""One running cluster and one reactor, for any number of drills in sequence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from cli.common.asking.store import not_running
from cli.common.connect import Cluster, MastersAlone, open_cluster
from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.common.local import LocalCluster, named_local
from cli.common.options import Globals
from cli.diagnose.follow import ReactorThread
from cli.drill.cleanup import has_ended, interrupted_by_signals
from cli.drill.target.processes import (
    NO_HOOKS,
    Hooks,
    OutsideProcesses,
    Processes,
    SupervisedProcesses,
    outside_cluster,
)
from cli.up.control import ControlRequest, ask

#: In the data directory: locked by the drill that breaks the cluster, and contains the drill's pid.
DRILL_LOCK_FILE: Final = "drill.lock"


class ClusterUnderTest:
    """A cluster that drills may break, with all objects that they need."""

    def __init__(
        self, given: Globals, cluster: Cluster, local: LocalCluster, processes: Processes, reactor: ReactorThread
    ) -> None:
        self.given = given
        self.cluster = cluster
        self.local = local
        self.processes = processes
        self.reactor = reactor


@contextlib.contextmanager
def open_cluster_under_test(
    given: Globals, hooks: Hooks = NO_HOOKS, *, may_be_outside: bool = False
) -> Iterator[ClusterUnderTest]:
    """Yield everything that drills need, checked before anything is killed. Raise CliError.

    The cluster must be one of `rk up`, with two exceptions: the operator gave hooks, or the drill breaks nothing
    (`may_be_outside`).
    """
    is_alone = not hooks and not may_be_outside
    with contextlib.ExitStack() as stack:
        if is_alone:
            stack.enter_context(only_drill(given.data_path))
            _require_up(given)
        stack.enter_context(interrupted_by_signals())
        cluster = stack.enter_context(open_cluster(given))
        if isinstance(cluster, MastersAlone):
            raise UsageFaultError("a drill follows the store, but only masters were named", "Give --store as well.")
        local, processes = _processes_of(given, cluster, hooks, may_be_outside=may_be_outside)
        reactor = stack.enter_context(ReactorThread())
        yield ClusterUnderTest(given, cluster, local, processes, reactor)


@contextlib.contextmanager
def only_drill(data_dir: Path) -> Iterator[None]:
    """Lock the cluster of `rk up` for one drill. Raise CliError that names the other drill if one runs.

    A second drill would continue the frozen victim of the first one, and neither verdict would be true. The kernel
    releases the lock at the end of the process. Without a directory there is no cluster, and nothing to lock.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.fdopen(os.open(data_dir / DRILL_LOCK_FILE, flags, 0o600), "r+")
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise CliError(
            f"cannot lock {data_dir / DRILL_LOCK_FILE}: {error.strerror}", "Run the drill as the user of `rk up`."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = lock.read().strip()
            raise CliError(
                f"another drill runs on the cluster in {data_dir}" + (f" (pid {pid})" if pid else ""),
                "Wait for its end, or end it with Ctrl-C; then try again.",
            ) from error
        # The pid is only for the error of the next drill, and the write fails on a full disk.
        with contextlib.suppress(OSError):
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        yield


def _require_up(given: Globals) -> None:
    """Raise UnreachableError unless `rk up` runs, which restarts the victims. Continue frozen daemons."""
    local = named_local(given)
    try:
        for one in ask(given.data_path, ControlRequest("list")):
            if one.is_frozen:
                ask(given.data_path, ControlRequest("kill", one.name, signal.SIGCONT))
                click.echo(f"rk: continued {one.name}, which a drill that was killed had left frozen", err=True)
    except UnreachableError as error:
        if local is not None and not local.supervisor_pid:
            raise not_running(given) from error
        if not isinstance(error.__cause__, TimeoutError):
            error.hint += " Any other cluster needs --kill-with and --start-with, or `rk drill observe`."
        raise


def _processes_of(
    given: Globals, cluster: Cluster, hooks: Hooks, *, may_be_outside: bool
) -> tuple[LocalCluster, Processes]:
    """Return the cluster's processes and how to reach them: by the operator's commands, or by `rk up`."""
    if hooks:
        local = outside_cluster(cluster)
        return local, OutsideProcesses(cluster, local, hooks)
    if cluster.local is not None and not (may_be_outside and has_ended(given.data_path)):
        return cluster.local, SupervisedProcesses(given.data_path)
    if may_be_outside:
        local = outside_cluster(cluster)
        return local, OutsideProcesses(cluster, local, hooks)
    raise UnreachableError(f"the store {cluster.hosts} does not belong to the cluster in {given.data_path}")
