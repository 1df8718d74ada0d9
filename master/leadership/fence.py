"""Fenced writes: every write of an active master is a multi that begins with a check of its epoch.

The fencing epoch is the version of `/epoch`. A newer master has raised it before it does anything else, so a write of
a master that has been replaced without knowing it is refused as a whole, whenever it arrives (FW-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred

from coord.client.ops import Check, Create, Delete, SetData, WriteOp, WriteResult
from coord.client.session import ZkClient
from coord.errors import BadVersion, CoordError, MultiFailed, NoNode
from regions.records.znodes import Layout

#: Bounds of one multi: a request has to stay well below the store's frame limit of 1 MB.
OPS_MAX: Final = 500
BYTES_MAX: Final = 512 * 1024
#: What an operation costs besides its path and data.
OP_OVERHEAD_BYTES: Final = 48


class Deposed(CoordError):  # noqa: N818 - a state of affairs, not a fault
    """The epoch has moved on: another master is active. Nothing of the write was done."""


class Fence:
    """The right to write, and to give orders, under one epoch of one cluster."""

    def __init__(self, client: ZkClient, layout: Layout, epoch: int, cluster_id: str = "") -> None:
        """`cluster_id` goes with every order (FN-04)."""
        self.cluster_id = cluster_id
        self.client = client
        self.layout = layout
        self.epoch = epoch
        self._check = Check(layout.epoch, epoch)

    async def write(self, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Do all of `ops` or nothing; results without the check's.

        Raises:
            Deposed: the epoch is not ours any more.
            MultiFailed: an operation was refused; `index` counts within `ops`.
            ConnectionLoss, SessionExpired: the outcome is not known.
        """
        return await self.send(ops)

    def send(self, ops: Sequence[WriteOp]) -> Deferred[list[WriteResult]]:
        """`write` as a Deferred whose callbacks run in the order of the store's answers."""
        sent: Deferred[list[WriteResult]] = self.client.multi([self._check, *ops])
        sent.addCallbacks(_without_check, _translate)
        return sent

    async def stands(self) -> None:
        """Ask the store whether the epoch is still ours; raises Deposed."""
        await self.write([])


def _without_check(results: list[WriteResult]) -> list[WriteResult]:
    return results[1:]


def _translate(failure: Any) -> Any:
    """Name the two cases that matter: we are deposed, or one of our operations does not fit."""
    error = failure.value
    if isinstance(error, MultiFailed):
        if error.index == 0 and isinstance(error.error, BadVersion | NoNode):
            raise Deposed(str(error.error)) from error
        raise MultiFailed(error.index - 1, error.error, error.errors[1:]) from error
    return failure


def weight(op: WriteOp) -> int:
    """Bytes that an operation adds to a multi, roughly."""
    data = len(op.data) if isinstance(op, Create | SetData) else 0
    return len(op.path) + data + OP_OVERHEAD_BYTES


def in_batches(ops: Sequence[WriteOp]) -> list[list[WriteOp]]:
    """Cut `ops` into runs that fit into one multi each, in order."""
    batches: list[list[WriteOp]] = []
    room = 0
    for op in ops:
        size = weight(op)
        if not batches or len(batches[-1]) >= OPS_MAX or room < size:
            batches.append([])
            room = BYTES_MAX
        batches[-1].append(op)
        room -= size
    return batches


__all__ = ["BYTES_MAX", "OPS_MAX", "Create", "Delete", "Deposed", "Fence", "SetData", "in_batches", "weight"]
