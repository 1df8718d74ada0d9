"""The states of a write and of an order: every cell of both tables; all changes use the setters."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

import regions
from regions.cluster.entities import next_order_state, next_write_state
from regions.cluster.work import ORDER_NEXT, WRITE_NEXT, OrderState, WriteState

#: Fields from which indexes and counts are derived; only `ClusterState` assigns them.
PRIMARY = {
    "home",
    "transition",
    "version",
    "order",
    "write_state",
    "write",
    "open_on",
    "coming_to",
    "standing",
    "counts",
}
ROOT = Path(regions.__file__).parent


@pytest.mark.parametrize(("before", "after"), list(product(WriteState, WriteState)))
def test_every_cell_of_the_writes(before: WriteState, after: WriteState) -> None:
    legal = {
        WriteState.IDLE: {WriteState.WRITING, WriteState.UNREAD},
        WriteState.WRITING: {WriteState.IDLE, WriteState.WRITING, WriteState.HELD, WriteState.UNREAD},
        WriteState.HELD: {WriteState.WRITING, WriteState.IDLE},
        WriteState.UNREAD: {WriteState.IDLE},
    }
    assert set(WRITE_NEXT) == set(WriteState)
    if after in legal[before]:
        assert next_write_state("r1-0", before, after) is after
    else:
        with pytest.raises(AssertionError, match=f"r1-0 cannot go from {before.name} to {after.name}"):
            next_write_state("r1-0", before, after)


@pytest.mark.parametrize(("before", "after"), list(product(OrderState, OrderState)))
def test_every_cell_of_the_orders(before: OrderState, after: OrderState) -> None:
    legal = {
        OrderState.PAUSED: {OrderState.QUEUED},
        OrderState.QUEUED: {OrderState.SENT},
        OrderState.SENT: {OrderState.PAUSED, OrderState.DONE},
        OrderState.DONE: set(),
    }
    assert set(ORDER_NEXT) == set(OrderState)
    if after in legal[before]:
        assert next_order_state("r1-0", before, after) is after
    else:
        with pytest.raises(AssertionError, match=f"order of r1-0 cannot go from {before.name} to {after.name}"):
            next_order_state("r1-0", before, after)


def test_nobody_but_the_cluster_state_assigns_what_indexes_are_derived_from() -> None:
    """Such an assignment would leave a count or an index outdated."""
    found = []
    for path in [*(ROOT / "assign").glob("*.py"), *(ROOT / "cluster").glob("*.py"), *(ROOT / "diagnose").glob("*.py")]:
        if path.name == "state.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]:
                is_replica = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                if not is_replica:
                    continue
                is_primary = target.value.id in ("replica", "peer", "one", "other") and target.attr in PRIMARY
                if is_primary or (target.value.id, target.attr) in (("order", "state"), ("table", "counts")):
                    found.append(f"{path.name}:{node.lineno} {target.value.id}.{target.attr}")
    assert not found
