"""Operators' requests in the history: the caller, the request, and the caller's address.

A request is recorded when it arrives, so its entry precedes the steps that follow from it. If a request is refused at
once, its entry is withdrawn; if the entry is in the store already, the refusal is recorded as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from coord.rpc.server import RpcError
from master.assignment.history_writer import HistoryWriter
from regions import messages as ms
from regions.assign.resharding.holes import Hole
from regions.cluster import effects as fx
from regions.records.model import TableIntent, WorkOrigin
from regions.transitions.entries import DETAIL_MAX, REFUSED, REQUEST


@contextmanager
def recorded(history_writer: HistoryWriter, request: ms.MasterRequest, origin: WorkOrigin) -> Iterator[None]:
    """Record a request that changes something, and its refusal if the block raises RpcError."""
    words = words_of(request)
    request_id = getattr(request, "request_id", "")
    if not words or (request_id and request_id in history_writer.recorded):
        yield
        return
    if request_id:  # a client that waits repeats its request
        history_writer.recorded.append(request_id)
    table, region_id, server = _subjects(request)
    where = {"server": server, "region_id": region_id, "subject": table, "origin": origin}
    entry = history_writer.event(REQUEST, words[:DETAIL_MAX], **where)  # type: ignore[arg-type]
    try:
        yield
    except RpcError as error:
        if error.code != ms.TIMED_OUT and not history_writer.withdraw(entry):  # a request that timed out goes on
            history_writer.event(REFUSED, f"{words}: {error.message}"[:DETAIL_MAX], **where)  # type: ignore[arg-type]
        raise


def words_of(request: msgspec.Struct) -> str:
    """Return a request in words, "" for a request that changes nothing or is recorded elsewhere."""
    if getattr(request, "dry_run", False):
        return ""
    match request:
        case ms.CreateTable() | ms.AlterTable() | ms.DeleteTable() | ms.UndeleteTable() | ms.SetTableIntent():
            return _words_of_ddl(request)
        case ms.MoveRegion():
            return f"move region {request.region_id} to {request.destination or 'another server'}"
        case ms.CloseHole():
            return f"close the hole in table {request.table}: {Hole(request.start_key, request.end_key).words}"
        case ms.SplitRegion():
            return f"split region {request.region_id}{f' at {request.at!r}' if request.at else ''}"
        case ms.MergeRegions():
            return f"merge regions {request.region_id} and {request.other}"
        case ms.RetryRegion():
            return f"retry parked region {request.region_id}"
        case ms.SetRegionIntent():
            return f"{'assign' if request.assigned else 'unassign'} region {request.region_id}"
        case ms.MoveTablet():
            source = f" from {request.source}" if request.source else ""
            return f"move a member of tablet {request.region_id}{source} to {request.target or 'another server'}"
        case ms.CancelTabletMove():
            return f"cancel the moves of tablet {request.region_id}"
        case ms.WantLearner():
            return f"{'add' if request.wanted else 'remove'} a learner of tablet {request.region_id} on {request.uuid}"
        case ms.RetireServer():
            return f"retire server {request.uuid}"
        case ms.DrainServer():
            return f"{'drain' if request.drain else 'undrain'} server {request.uuid}"
        case ms.FenceServer():
            until = {0: "", fx.BAR_FOR_EVER: " until it is unfenced"}.get(
                request.bar_ms, f" for {request.bar_ms / 1000:g} s"
            )
            return f"fence server {request.uuid}{until} ({request.reason})"
        case ms.UnstickRegion():
            whom = f" (fence server {request.server})" if request.server else ""
            return f"unstick region {request.region_id}: {request.action.value}{whom}"
        case ms.UndoUnstick():
            return f"undo {request.undo_id} of rk unstick"
        case ms.UnfenceServer():
            return f"unfence server {request.uuid}"
        case ms.Balance():
            switch = "" if request.switch is None else f"turn the balancer {'on' if request.switch else 'off'}"
            return " and ".join(filter(None, (switch, "balance now" if request.run else "")))
        case ms.BeginPlan():
            return f"apply plan {request.plan_id}"
        case ms.AbortPlan():
            return f"abort plan {request.plan_id}"
        case ms.ChangeGrant():
            verb, to = ("grant", "to") if request.granted else ("revoke", "of")
            where = f" on table {request.table}" if request.table else ""
            return f"{verb} {request.role.value}{where} {to} {request.user}"
        case ms.ShutdownCluster():
            return "announce a shutdown of the cluster"
        case _:
            return ""


def _words_of_ddl(
    request: ms.CreateTable | ms.AlterTable | ms.DeleteTable | ms.UndeleteTable | ms.SetTableIntent,
) -> str:
    match request:
        case ms.CreateTable():
            return f"create table {request.name}"
        case ms.AlterTable():
            return f"alter table {request.table}"
        case ms.DeleteTable():
            return f"delete table {request.table}"
        case ms.UndeleteTable():
            return f"undelete table {request.table}"
    verb = {TableIntent.ENABLED: "enable", TableIntent.DISABLED: "disable"}.get(request.intent, request.intent.value)
    return f"{verb} table {request.table}"


def _subjects(request: msgspec.Struct) -> tuple[str, str, str]:
    """Return table, region and server of a request, each "" if the request has none."""
    table = getattr(request, "table", "") or getattr(request, "name", "")
    server = next(
        (found for name in ("uuid", "destination", "target", "server") if (found := getattr(request, name, ""))), ""
    )
    return table, getattr(request, "region_id", ""), server
