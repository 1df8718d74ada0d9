"""One running cluster and one reactor, for any number of drills in sequence."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from cli.common.connect import Cluster, open_cluster
from cli.common.errors import UnreachableError
from cli.common.local import LocalCluster
from cli.common.options import Globals
from cli.diagnose.follow import ReactorThread
from cli.up.control import ControlRequest, ask


class ClusterUnderTest:
    """A cluster that drills may break, with everything that they need."""

    def __init__(self, given: Globals, cluster: Cluster, local: LocalCluster, reactor: ReactorThread) -> None:
        self.given = given
        self.cluster = cluster
        self.local = local
        self.reactor = reactor


@contextlib.contextmanager
def open_cluster_under_test(given: Globals) -> Iterator[ClusterUnderTest]:
    """Yield everything that drills need, checked before anything is killed. Raise CliError."""
    ask(given.data_path, ControlRequest("list"))  # `rk up` must run: it restarts the victims
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with open_cluster(given) as cluster:
            if cluster.local is None:
                raise UnreachableError(f"the store {cluster.hosts} does not belong to the cluster in {given.data_path}")
            with ReactorThread() as reactor:
                yield ClusterUnderTest(given, cluster, cluster.local, reactor)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
