"""One running cluster and one reactor, for any number of drills in sequence."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import click

from cli.common.asking.store import not_running
from cli.common.connect import Cluster, MastersAlone, open_cluster
from cli.common.errors import UnreachableError, UsageFaultError
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
    if not hooks and not may_be_outside:
        _require_up(given)
    with interrupted_by_signals(), open_cluster(given) as cluster:
        if isinstance(cluster, MastersAlone):
            raise UsageFaultError("a drill follows the store, but only masters were named", "Give --store as well.")
        local, processes = _processes_of(given, cluster, hooks, may_be_outside=may_be_outside)
        with ReactorThread() as reactor:
            yield ClusterUnderTest(given, cluster, local, processes, reactor)


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
