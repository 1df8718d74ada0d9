"""Multis of a master stay below the store's frame limit, whatever its access list."""

from __future__ import annotations

import pytest

from coord.client.ops import WriteOp, multi_body
from coord.wire.client_conn import MAX_FRAME_BYTES
from coord.wire.codec import REQUEST_HEADER_BYTES
from coord.wire.opcodes import PERM_READ
from coord.wire.values import OPEN_ACL, Acl
from master.assignment.write_queue import WriteQueue
from master.catalog.tables import create_batches
from master.leadership.fence import OPS_MAX, Check, Fence
from regions.cluster import effects as fx
from regions.records.model import RegionRecord, RegionState, TableRecord, TransitionRecord
from regions.records.znodes import Layout
from regions.transitions.states import Cause
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/regionkeeper")
REGIONS = 2_000


def fence(readers: int) -> Fence:
    """Return a fence whose znodes so many users may read."""
    store = FakeStore()
    store.default_acl = [
        *OPEN_ACL,
        *(Acl(PERM_READ, b"sasl", b"user-%d@EXAMPLE.ORG" % number) for number in range(readers)),
    ]
    return Fence(store, LAYOUT, 4)  # type: ignore[arg-type]


def frame_bytes(fence: Fence, ops: list[WriteOp]) -> int:
    """Return the size of the request that `Fence.send` makes."""
    _, body = multi_body([Check(LAYOUT.epoch, 4), *ops], b"", fence.client.default_acl)
    return REQUEST_HEADER_BYTES + len(body)


@pytest.mark.parametrize("readers", [0, 20, 200])
def test_a_table_of_many_regions_is_created_in_frames_that_the_store_takes(readers: int) -> None:
    """Fails if `total_weight` leaves the access lists out: with 20 readers the creation of a table of 2,000 regions has
    1.6 MB, which the client refuses, and the refusal ends the tenure of one master after the other."""
    one = fence(readers)
    regions = [RegionRecord(f"{number:032x}", "t", f"k{number:08}", "") for number in range(REGIONS)]
    batches = create_batches(one, TableRecord("t" * 32, "packages"), regions, [])
    sizes = [frame_bytes(one, batch) for batch in batches]
    assert max(sizes) <= MAX_FRAME_BYTES
    assert sum(map(len, batches)) >= REGIONS


@pytest.mark.parametrize("readers", [0, 20, 200])
def test_steps_of_many_regions_share_frames_that_the_store_takes(readers: int) -> None:
    """Fails if `WaitingWrite` does not count access lists: 500 creates with 200 readers have 3.6 MB."""
    one = fence(readers)
    queue = WriteQueue(LAYOUT, one.acl_bytes)
    for number in range(OPS_MAX):
        record = TransitionRecord(f"{number:032x}", "t", 0, RegionState.OFFLINE)
        queue.put(fx.WriteOffline(record.key, record, None, -1, Cause.ASSIGN))
    while queue.waiting:
        assert frame_bytes(one, queue.operations(queue.take())) <= MAX_FRAME_BYTES
