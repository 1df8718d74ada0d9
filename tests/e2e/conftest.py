"""Which end-to-end tests run.

Masters and region servers run unchanged on Apache ZooKeeper. Their tests run on our store in `make test` and on both
stores in `make test-compat`, which sets RK_ON_ZOOKEEPER: twice the processes would take minutes of every `make test`.
`test_up.py` starts a whole cluster on ZooKeeper in either case, and what our store answers is always compared with what
ZooKeeper answers.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.support import forked
from tests.support.stores import ZOOKEEPER

forked.allow()

#: Tests of masters and region servers on both stores (ON_BOTH_STORES in the Makefile).
ON_BOTH_STORES: Final = frozenset(
    f"test_{name}.py"
    for name in ("balancer", "masters_bulk", "masters_failover", "masters_standby", "region_server_alone")
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of masters and region servers on Apache ZooKeeper."""
    if os.environ.get("RK_ON_ZOOKEEPER"):
        return
    left_out = [item for item in items if _is_on_zookeeper(item)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _is_on_zookeeper(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return item.path.name in ON_BOTH_STORES and callspec is not None and ZOOKEEPER in callspec.params.values()
