"""Writes to a tablet that was split or merged, and whose replicas are deleted."""

from __future__ import annotations

import msgspec
import pytest

from coord.rpc.wire import RpcError
from regions.records.model import TabletState
from regionserver.client import OutcomeUnknown
from regionserver.tablets.messages import OUTCOME_UNKNOWN, KnownLeader, Leaders, TabletWrite, WhoLeads
from tests.unit.regionserver.client.tablets.test_calls import Bench


def test_a_write_whose_tablet_is_gone_is_unknown_at_once() -> None:
    """The tablet was merged long ago, and its replicas were deleted before they answered. Tried: without the look at
    the members the call lasts until its deadline, which is another error."""
    bench = Bench()
    bench.client.put("rows", "a", b"0")
    record = bench.servers.tablets["id-rows.0"].record

    def gone(request: object) -> object:
        if isinstance(request, TabletWrite):
            bench.put_region(msgspec.structs.replace(record, state=TabletState.REPLACED, members=()))
            raise RpcError(OUTCOME_UNKNOWN, "leadership ended")
        return Leaders([KnownLeader(one) for one in request.tablets], 1) if isinstance(request, WhoLeads) else None

    for server in bench.servers.servers.values():
        server.answer = gone
    with pytest.raises(OutcomeUnknown, match="no server knows the outcome") as raised:
        bench.client.put("rows", "a", b"1")
    assert raised.value.may_have_been_done
    bench.client.close()
    bench.servers.close()
