"""The queue of a master's writes: turns each into operations of the store, and chooses those that share a multi.

Pure; compiled, because each step of a transition passes here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from coord.client.ops import Check, Create, Delete, SetData, WriteOp, weight
from coord.wire.values import Stat
from master.leadership.fence import BYTES_MAX, OPS_MAX
from regions.cluster.effects import Effect
from regions.records.model import RegionState
from regions.records.znodes import Layout, encode
from regions.replication.effects import BeginTablet, WriteRegion
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import LEGAL_BECAUSE, RESTS_ON_MEMBERS, Actor, Cause, IllegalStep, check
from regions.transitions.steps import entries_of_step
from regions.transitions.writes import DeleteTransition, WriteDone, WriteFailed, WriteOffline

Write = WriteOffline | DeleteTransition | BeginTablet | WriteRegion
#: A write that was sent, and its outcome.
Outcome = tuple[Write, WriteDone | WriteFailed]
_MASTER: Final = Actor.MASTER
_ASSIGN: Final = Cause.ASSIGN
_DONE: Final = Cause.DONE
_OFFLINE: Final = RegionState.OFFLINE


def _check_steps(effect: Write) -> None:
    """Raise InvalidTransition for a step that is not in the table of transitions."""
    # A look into the table saves the call of interpreted code, which only raises here.
    if isinstance(effect, WriteOffline):
        if (_MASTER, effect.before, effect.record.state, effect.cause) not in LEGAL_BECAUSE:
            check(_MASTER, effect.before, effect.record.state, effect.cause, subject=effect.key)
        _check_members(effect, effect.record.replica, _OFFLINE)
    elif isinstance(effect, DeleteTransition):
        if (_MASTER, effect.before, None, effect.cause) not in LEGAL_BECAUSE:
            check(_MASTER, effect.before, None, effect.cause, subject=effect.key)
        _check_members(effect, effect.replica, None)
    elif isinstance(effect, BeginTablet):
        for record in effect.transitions:
            check(_MASTER, None, record.state, _ASSIGN, subject=record.key)


def _check_members(effect: WriteOffline | DeleteTransition, number: int, after: RegionState | None) -> None:
    """Raise InvalidTransition for a step that rests on a record which has the member, or names no record."""
    if effect.cause not in RESTS_ON_MEMBERS:
        return
    if effect.without_member is None or effect.without_member[0].member(number) is not None:
        raise IllegalStep(_MASTER, effect.before, after, effect.cause, f"member {effect.key}")


@mypyc_attr(acyclic=True)
class WaitingWrite:
    """One effect and its operations. The caller gets the version of the first operation.

    Writes of a multi with the same `check` (table id, version) share one check operation.
    """

    def __init__(
        self, effect: Write, ops: list[WriteOp], table_check: tuple[str, int] | None, acl_bytes: int = 0
    ) -> None:
        """`acl_bytes`: size of the access list of each create."""
        self.effect = effect
        self.ops = ops
        self.check = table_check
        self.bytes = 0
        for op in ops:
            self.bytes += weight(op, acl_bytes)


class WriteQueue:
    """Writes that wait to be sent, in order."""

    def __init__(self, layout: Layout, acl_bytes: int = 0) -> None:
        """`acl_bytes`: size of the access list of each create in a multi."""
        self._layout = layout
        self._acl_bytes = acl_bytes
        #: Writes that `take` has not returned yet. The caller reads the length.
        self.waiting: deque[WaitingWrite] = deque()

    def put(self, effect: Write) -> None:
        """Queue a write. Raise InvalidTransition for a step that is not in the table of transitions."""
        _check_steps(effect)
        table_check = None if isinstance(effect, WriteRegion) else effect.table_check
        self.waiting.append(WaitingWrite(effect, self._ops(effect), table_check, self._acl_bytes))

    def put_writes(self, effects: list[Effect]) -> list[Effect]:
        """Queue the writes among the assigner's effects, and return the other effects. Raise as `put` does."""
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, WriteOffline | DeleteTransition):
                self.put(effect)
            else:
                others.append(effect)
        return others

    def clear(self) -> None:
        """Forget all writes."""
        self.waiting.clear()

    def take(self) -> list[WaitingWrite]:
        """Remove and return the next writes, as many as one multi can have."""
        batch: list[WaitingWrite] = []
        checks: set[tuple[str, int]] = set()
        ops = size = 0
        while self.waiting:
            item = self.waiting[0]
            item_ops, item_bytes = len(item.ops), item.bytes
            if item.check is not None and item.check not in checks:
                item_ops += 1
                item_bytes += weight(self._check(item.check))
            if batch and (ops + item_ops > OPS_MAX or size + item_bytes > BYTES_MAX):
                break
            batch.append(self.waiting.popleft())
            if item.check is not None:
                checks.add(item.check)
            ops += item_ops
            size += item_bytes
        return batch

    def operations(self, batch: list[WaitingWrite]) -> list[WriteOp]:
        """Return the operations of a multi with these writes: first `checks_of(batch)`, then those of each write."""
        ops: list[WriteOp] = [self._check(one) for one in checks_of(batch)]
        for item in batch:
            ops.extend(item.ops)
        return ops

    def _check(self, table_check: tuple[str, int]) -> Check:
        table_id, version = table_check
        return Check(self._layout.table(table_id), version)

    def _ops(self, effect: Write) -> list[WriteOp]:
        if isinstance(effect, WriteOffline):
            record = effect.record
            path = self._layout.transition_of(effect.key)
            data = encode(record)
            if effect.before is None:
                return [Create(path, data)]
            return [SetData(path, data, effect.version), *self._without_member(effect)]
        if isinstance(effect, DeleteTransition):
            ops: list[WriteOp] = [Delete(self._layout.transition_of(effect.key), effect.version)]
            if effect.region is not None:
                path = self._layout.region(effect.region.table_id, effect.region_id)
                ops.append(SetData(path, encode(effect.region), effect.region_version))
            ops.extend(self._without_member(effect))
            return ops
        path = self._layout.region(effect.record.table_id, effect.record.region_id)
        found: list[WriteOp] = [SetData(path, encode(effect.record), effect.version)]
        if isinstance(effect, BeginTablet):
            for one in effect.transitions:
                found.append(Create(self._layout.transition(one.region_id, one.replica), encode(one)))
        return found

    def _without_member(self, effect: WriteOffline | DeleteTransition) -> list[WriteOp]:
        """Return the check of the record that a step rests on, if its cause rests on one."""
        if effect.without_member is None:
            return []
        record, version = effect.without_member
        return [Check(self._layout.region(record.table_id, record.region_id), version)]


def outcomes(batch: list[WaitingWrite], results: list[object]) -> list[Outcome]:
    """Return the writes of a multi that has committed, each with its event. `results` are the results of its
    operations."""
    at = len(checks_of(batch))
    found: list[Outcome] = []
    for item in batch:
        first = results[at]
        at += len(item.ops)
        effect = item.effect
        found.append((effect, WriteDone(effect.key, first.version if isinstance(first, Stat) else 0)))
    return found


def steps_of_plans(outcomes: list[Outcome]) -> dict[str, tuple[int, int]]:
    """Return by plan how many of its replicas these writes have begun to assign, and how many they have ended."""
    found: dict[str, tuple[int, int]] = {}
    for effect, event in outcomes:
        if not isinstance(event, WriteDone):
            continue
        if isinstance(effect, WriteOffline):
            if effect.before is None:
                begun, ended = found.get(effect.record.plan_id, (0, 0))
                found[effect.record.plan_id] = (begun + 1, ended)
        elif isinstance(effect, DeleteTransition) and effect.cause is _DONE and effect.former is not None:
            begun, ended = found.get(effect.former.plan_id, (0, 0))
            found[effect.former.plan_id] = (begun, ended + 1)
    return found


def entries_of(writes: list[Write], epoch: int, now_ms: int) -> list[HistoryEntry]:
    """Return the entries of the history for these writes: for each step of the master, the server's steps before this
    step, then the step itself."""
    found: list[HistoryEntry] = []
    for write in writes:
        if isinstance(write, WriteOffline):
            found.extend(
                entries_of_step(
                    write.former, write.version, write.record, write.cause, epoch, now_ms, write.origin, write.key
                )
            )
        elif isinstance(write, DeleteTransition):
            if write.former is not None:
                found.extend(
                    entries_of_step(
                        write.former, write.version, None, write.cause, epoch, now_ms, write.origin, write.key
                    )
                )
        elif isinstance(write, BeginTablet):
            for one in write.transitions:
                found.extend(entries_of_step(None, -1, one, _ASSIGN, epoch, now_ms, write.origin))
    return found


def checks_of(batch: list[WaitingWrite]) -> list[tuple[str, int]]:
    """Return the table checks at the head of a multi of these writes, each once."""
    found: dict[tuple[str, int], None] = {}
    for item in batch:
        if item.check is not None:
            found[item.check] = None
    return list(found)
