"""Selection and order of the end-to-end tests.

Masters and region servers run unchanged on Apache ZooKeeper. Their tests run on our store in `make test` and on both
stores in `make test-compat`, which sets RK_ON_ZOOKEEPER: twice the processes would take minutes of every `make test`.
One test (ALWAYS) starts a cluster on ZooKeeper in either case. The comparisons of our store's answers with ZooKeeper's
always run, too.
"""

from __future__ import annotations

from typing import Final

import pytest

from coord.compiled import is_switched_on
from tests.support import forked
from tests.support.stores import ZOOKEEPER

forked.allow()

#: Tests of masters and region servers on both stores (ON_BOTH_STORES in the Makefile).
ON_BOTH_STORES: Final = frozenset(
    f"test_{name}.py"
    for name in ("balancer", "masters_bulk", "masters_failover", "masters_standby", "region_server_alone")
)
#: Tests on ZooKeeper alone, in other files.
ON_ZOOKEEPER_ALONE: Final = frozenset({"test_masters_and_servers_run_unchanged_on_apache_zookeeper"})
#: The test on ZooKeeper that `make test` keeps: masters and servers start there, and regions open.
ALWAYS: Final = "test_regions_are_spread_and_owned_once[zookeeper]"

#: The slowest files, the slowest first: `--dist loadfile --no-loadscope-reorder` distributes them in this order, so
#: that no worker has a slow file at the end.
LONGEST: Final = (
    *("test_drills.py", "test_region_server_tablets.py", "test_drills_members.py", "test_up.py", "test_incidents.py"),
    *("test_splits_tablets.py", "test_merges_tablets.py", "test_tablet_deletion_points.py"),
    *("test_stranger.py", "test_region_server_alone.py", "test_masters_failover.py", "test_balancer.py"),
    *("test_masters_tablets.py", "test_drills_outside.py", "test_region_data.py", "test_secured_cluster.py"),
    *("test_splits_by_settings.py", "test_splits.py", "test_plan_spark.py", "test_backup.py", "test_differential.py"),
    *("test_masters_bulk.py", "test_store_membership.py", "test_topology.py", "test_tablet_intents.py"),
    *("test_tablets_seen.py", "test_tablets_balanced.py", "test_plan_cli.py", "test_client_deadlines.py"),
    *("test_wheel.py", "test_operators.py", "test_region_kill_points.py", "test_masters_troubles.py"),
    *("test_kinds.py", "test_mutated_frames.py", "test_cluster_health.py", "test_deployment.py"),
    *("test_masters_spark.py", "test_securing.py", "test_testing.py", "test_rotation.py"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first. Remove the tests of masters and region servers on Apache ZooKeeper."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if is_switched_on("RK_ON_ZOOKEEPER"):
        return
    left_out = [item for item in items if _is_on_zookeeper(item)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _is_on_zookeeper(item: pytest.Item) -> bool:
    if item.name in ON_ZOOKEEPER_ALONE:
        return True
    if item.path.name not in ON_BOTH_STORES or item.name == ALWAYS:
        return False
    callspec = getattr(item, "callspec", None)
    return callspec is not None and ZOOKEEPER in callspec.params.values()
