"""Fenced writes: every write of an active master is a multi that begins with a check of its epoch.

The fencing epoch is the version of `/epoch`. A new active master raises the epoch before it does anything else. So the
store refuses, as a whole, every later write of a master that has been replaced without noticing (FW-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred

from coord import kill_points
from coord.client.ops import Check, Create, Delete, SetData, WriteOp, WriteResult, weight
from coord.client.session import ZkClient
from coord.errors import BadVersion, CoordError, MultiFailed, NoNode
from regions.records.znodes import Layout

#: Limits of one multi: a request must stay well below the store's frame limit of 1 MB. The client refuses to send a
#: larger one (BadArguments), and a refused write ends the tenure.
OPS_MAX: Final = 500
BYTES_MAX: Final = 512 * 1024
#: Permissions, and the lengths of scheme and id.
_ACL_LINE_BYTES: Final = 12


class Deposed(CoordError):  # noqa: N818 - a state of affairs, not a fault
    """Raised when another master has raised the epoch. The write had no effect."""


class Fence:
    """Writes under one epoch of one cluster."""

    def __init__(self, client: ZkClient, layout: Layout, epoch: int, cluster_id: str = "") -> None:
        """Every order to a region server carries `cluster_id` (FN-04)."""
        self.cluster_id = cluster_id
        self.client = client
        self.layout = layout
        self.epoch = epoch
        self._check = Check(layout.epoch, epoch)

    @property
    def acl_bytes(self) -> int:
        """Bytes that the access list adds to each create of a multi."""
        return sum(_ACL_LINE_BYTES + len(one.scheme) + len(one.id) for one in self.client.default_acl)

    async def write(self, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Perform all of `ops` or none, and return their results.

        Raises:
            Deposed: another master has raised the epoch.
            MultiFailed: an operation was refused; `index` counts within `ops`.
            ConnectionLoss, SessionExpired: the outcome is unknown.
        """
        return await self.send(ops)

    def send(self, ops: Sequence[WriteOp]) -> Deferred[list[WriteResult]]:
        """Perform `write` and return a Deferred. Callbacks run in the order of the store's replies."""
        sent: Deferred[list[WriteResult]] = self.client.multi([self._check, *ops])
        sent.addCallbacks(_without_check, _translate)
        if kill_points.is_wanted():
            sent.addCallback(self._reached, ops)
        return sent

    def _reached(self, results: list[WriteResult], ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Pass the points after a write: one for each kind of operation, in order (`coord/kill_points.py`)."""
        below = len(self.layout.root) + 1
        for point in dict.fromkeys(f"{type(op).__name__} {op.path[below:].partition('/')[0]}" for op in ops):
            kill_points.reached(point)
        return results

    async def verify(self) -> None:
        """Check with the store that the epoch is still valid. Raise Deposed if it is not."""
        await self.write([])


def _without_check(results: list[WriteResult]) -> list[WriteResult]:
    return results[1:]


def _translate(failure: Any) -> Any:
    """Translate a failed multi: into Deposed if the epoch check failed, else with `index` counted within the ops."""
    error = failure.value
    if isinstance(error, MultiFailed):
        if error.index == 0 and isinstance(error.error, BadVersion | NoNode):
            raise Deposed(str(error.error)) from error
        raise MultiFailed(error.index - 1, error.error, error.errors[1:]) from error
    return failure


def total_weight(ops: Sequence[WriteOp], acl_bytes: int) -> int:
    """Return roughly the bytes that operations add to a multi, whose creates have access lists of `acl_bytes`."""
    return sum(weight(op, acl_bytes) for op in ops)


def in_batches(ops: Sequence[WriteOp], acl_bytes: int = 0) -> list[list[WriteOp]]:
    """Split `ops` into batches, in order, each of which fits into one multi. With creates `acl_bytes` is
    `Fence.acl_bytes`."""
    batches: list[list[WriteOp]] = []
    room = 0
    for op in ops:
        size = weight(op, acl_bytes)
        if not batches or len(batches[-1]) >= OPS_MAX or room < size:
            batches.append([])
            room = BYTES_MAX
        batches[-1].append(op)
        room -= size
    assert sum(map(len, batches)) == len(ops), "every operation is in one batch"
    return batches


__all__ = ["BYTES_MAX", "OPS_MAX", "Create", "Delete", "Deposed", "Fence", "SetData", "in_batches", "total_weight"]
