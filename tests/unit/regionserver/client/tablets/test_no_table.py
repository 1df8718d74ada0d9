"""Calls to tablets of tables that are disabled, or were deleted: no replica runs, and the store says why."""

from __future__ import annotations

import pytest

from coord.rpc.wire import RpcError
from regions.records import znodes as layout
from regions.records.model import Storage, TableIntent, TableRecord, TableState
from regionserver.client import NoSuchTable, TableDisabled
from regionserver.tablets.messages import NO_REPLICA, KnownLeader, Leaders, WhoLeads
from tests.unit.regionserver.client.tablets.test_calls import PATHS, Bench, bench

__all__ = ["bench"]


def closed_everywhere(request: object) -> object:
    """Answer as a server whose replicas rest."""
    if isinstance(request, WhoLeads):
        return Leaders([KnownLeader(tablet) for tablet in request.tablets])
    raise RpcError(NO_REPLICA, "by the test")


def test_a_deleted_table_is_unknown_at_once(bench: Bench) -> None:
    """Its records stay in the store after the deletion, and the client has them in its cache."""
    bench.client.put("rows", "a", b"1")
    removed = TableRecord("id-rows", "rows", state=TableState.REMOVED, storage=Storage.TABLET)
    bench.store.znodes[PATHS.table(removed.table_id)] = layout.encode(removed)
    del bench.store.znodes[PATHS.name("rows")]
    for server in bench.servers.servers.values():
        server.answer = closed_everywhere
    with pytest.raises(NoSuchTable):
        bench.client.put("rows", "a", b"2")


def test_a_disabled_table_is_refused_at_once(bench: Bench) -> None:
    """B10: members without a running replica make the client read the table's record; it does not wait for a leader."""
    bench.client.put("rows", "a", b"1")
    table = TableRecord("id-rows", "rows", storage=Storage.TABLET, intent=TableIntent.DISABLED)
    bench.store.znodes[PATHS.table(table.table_id)] = layout.encode(table)
    for server in bench.servers.servers.values():
        server.answer = closed_everywhere
    for client in (bench.client, bench.new_client()):
        with pytest.raises(TableDisabled, match="table 'rows' is disabled") as raised:
            client.put("rows", "a", b"2")
        assert not raised.value.may_have_been_done
