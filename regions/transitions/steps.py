"""The steps of masters and servers, as master and history record them. Pure; compiled, as each step passes here.

A step of a master is known when its write has committed. The steps of a server are read from the transition's znode
(`regions/transitions/trail.py`).
"""

from __future__ import annotations

from typing import Final

import msgspec
from mypy_extensions import mypyc_attr

from regions.records.model import Incarnation, RegionState, TransitionRecord, WorkOrigin
from regions.transitions import trail
from regions.transitions.entries import DETAIL_MAX, HistoryEntry
from regions.transitions.states import Actor, Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_MASTER: Final = Actor.MASTER
_ACTOR_SERVER: Final = Actor.SERVER
_CLOSED: Final = RegionState.CLOSED
_CLOSING: Final = RegionState.CLOSING
_OFFLINE: Final = RegionState.OFFLINE

_CAUSES: Final[dict[str, Cause]] = {one.value: one for one in Cause}
#: Values of enum members. A dict lookup is faster than the `value` property.
_WORDS: Final[dict[object, str]] = {
    None: "",
    **{one: one.value for kind in (RegionState, Cause, Actor) for one in kind},
}
_MASTER_WORD: Final = Actor.MASTER.value
_SERVER: Final = Actor.SERVER.value


@mypyc_attr(acyclic=True)
class SeenStep:
    """A step that one master has observed or taken. `cause` is None for a step of another master."""

    __slots__ = (
        "actor",
        "after",
        "at_ms",
        "attempt",
        "before",
        "cause",
        "cause_id",
        "epoch",
        "error",
        "key",
        "origin",
        "plan_id",
        "reason",
        "server",
    )

    def __init__(
        self,
        at_ms: int,
        key: str,
        actor: Actor,
        before: RegionState | None,
        after: RegionState | None,
        cause: Cause | None,
        server: str,
        epoch: int,
        plan_id: str,
        attempt: int,
        error: str,
        reason: str = "",
        cause_id: str = "",
        origin: str = "",
    ) -> None:
        self.at_ms = at_ms
        self.key = key
        self.actor = actor
        self.before = before
        self.after = after
        self.cause = cause
        self.server = server
        self.epoch = epoch
        self.plan_id = plan_id
        self.attempt = attempt
        self.error = error
        self.reason = reason
        self.cause_id = cause_id
        self.origin = origin

    def words(self) -> tuple[str, str, str, str]:
        """Return actor, state before, state after and cause as texts, "" for none."""
        return _WORDS[self.actor], _WORDS[self.before], _WORDS[self.after], _WORDS[self.cause]

    def __repr__(self) -> str:
        actor, before, after, cause = self.words()
        return f"SeenStep({self.key}, {actor}: {before or '(none)'} -> {after or '(deleted)'}, {cause}, {self.at_ms})"


def master_step(
    former: TransitionRecord | None,
    record: TransitionRecord | None,
    cause: Cause | None,
    epoch: int,
    now_ms: int,
    origin: WorkOrigin | None = None,
    key: str = "",
) -> SeenStep:
    """Return a master's step from `former` to `record` (None: no znode).

    `origin` None: the record's origin. `key` is the key of the replica, if the caller has it, which saves time.
    """
    about = record if record is not None else former
    assert about is not None, "a step has a znode before or after it"
    server = server_of(about)
    cause_id, text = _origin_of(former, about, origin)
    return SeenStep(
        now_ms,
        key or about.key,
        _MASTER,
        None if former is None else former.state,
        None if record is None else record.state,
        cause,
        "" if server is None else server.uuid,
        epoch,
        about.plan_id,
        about.attempt,
        about.last_error,
        cause_id=cause_id,
        origin=text,
    )


def server_steps(record: TransitionRecord, version: int, key: str = "") -> list[SeenStep]:
    """Return the server's steps that a znode keeps at `version`, oldest first. For `key` see `master_step`."""
    server = server_of(record)
    uuid = "" if server is None else server.uuid
    key, epoch, attempt, plan_id = key or record.key, record.epoch, record.attempt, record.plan_id
    cause_id, origin = ("", "") if record.origin is None else (record.origin.cause_id, record.origin.text)
    return [
        SeenStep(
            at_ms,
            key,
            _ACTOR_SERVER,
            before,
            after,
            cause,
            uuid,
            epoch,
            plan_id,
            attempt,
            "",
            "",
            cause_id,
            origin if before is None else "",
        )
        for before, after, cause, at_ms, _ in trail.unrecorded_steps(record, version)
    ]


def steps_since(
    known: TransitionRecord | None,
    known_version: int,
    record: TransitionRecord,
    version: int,
    now_ms: int,
    key: str = "",
) -> list[SeenStep]:
    """Return the steps between the known transition and the one read now, as far as the znode has them.

    For `key` see `master_step`.
    """
    found = server_steps(record, version, key)
    if known is not None and record.base <= known_version < version:
        return found[-(version - known_version) :]
    if record.state in (_CLOSING, _CLOSED):
        return found
    # A step of this master whose reply was lost. Its cause is the record's reason.
    cause = _CAUSES.get(record.reason)
    before = None if record.base == 0 else known
    offline = msgspec.structs.replace(record, state=_OFFLINE)
    return [master_step(before, offline, cause, record.epoch, now_ms, key=key), *found]


def entry_of(step: SeenStep) -> HistoryEntry:
    """Return the stored form of a step."""
    return HistoryEntry(
        step.at_ms,
        step.key,
        _WORDS[step.actor],
        _WORDS[step.before],
        _WORDS[step.after],
        _WORDS[step.cause],
        step.server,
        step.epoch,
        step.attempt,
        step.plan_id,
        step.reason[:DETAIL_MAX],
        step.error[:DETAIL_MAX],
        False,
        0,
        step.cause_id,
        step.origin[:DETAIL_MAX],
    )


def entries_kept(record: TransitionRecord, version: int, key: str = "") -> list[HistoryEntry]:
    """Return the entries for the server's steps that a znode keeps at `version`, oldest first. For `key` see
    `master_step`.

    The entries are built directly, without SeenSteps, because a start of 100,000 regions makes 200,000 of them.
    """
    server = server_of(record)
    uuid = "" if server is None else server.uuid
    key, epoch, attempt, plan_id = key or record.key, record.epoch, record.attempt, record.plan_id
    cause_id, origin = ("", "") if record.origin is None else (record.origin.cause_id, record.origin.text[:DETAIL_MAX])
    return [
        HistoryEntry(
            at_ms,
            key,
            _SERVER,
            _WORDS[before],
            _WORDS[after],
            _WORDS[cause],
            uuid,
            epoch,
            attempt,
            plan_id,
            record.reason[:DETAIL_MAX] if after is _CLOSING else "",
            "",
            False,
            missed,
            cause_id,
            origin if before is None else "",
        )
        for before, after, cause, at_ms, missed in trail.unrecorded_steps(record, version)
    ]


def entries_of_step(
    former: TransitionRecord | None,
    version: int,
    record: TransitionRecord | None,
    cause: Cause,
    epoch: int,
    now_ms: int,
    origin: WorkOrigin | None,
    key: str = "",
) -> list[HistoryEntry]:
    """Return the entries that a master's step from `former` to `record` writes: the steps of the server that `former`
    keeps at `version`, then the step itself. For `key` see `master_step`."""
    found = [] if former is None else entries_kept(former, version, key)
    found.append(_entry_of_master(former, record, cause, epoch, now_ms, origin, key))
    return found


def _entry_of_master(
    former: TransitionRecord | None,
    record: TransitionRecord | None,
    cause: Cause,
    epoch: int,
    now_ms: int,
    origin: WorkOrigin | None,
    key: str,
) -> HistoryEntry:
    """Return `entry_of(master_step(...))`, built directly as in `entries_kept`."""
    about = record if record is not None else former
    assert about is not None, "a step has a znode before or after it"
    server = server_of(about)
    cause_id, text = _origin_of(former, about, origin)
    return HistoryEntry(
        now_ms,
        key or about.key,
        _MASTER_WORD,
        "" if former is None else _WORDS[former.state],
        "" if record is None else _WORDS[record.state],
        _WORDS[cause],
        "" if server is None else server.uuid,
        epoch,
        about.attempt,
        about.plan_id,
        "",
        about.last_error[:DETAIL_MAX],
        False,
        0,
        cause_id,
        text[:DETAIL_MAX],
    )


def server_of(record: TransitionRecord) -> Incarnation | None:
    """Return the server that takes the steps of this state."""
    return record.source if record.state in (_CLOSING, _CLOSED) else record.destination


def _origin_of(former: TransitionRecord | None, about: TransitionRecord, origin: WorkOrigin | None) -> tuple[str, str]:
    """Return the cause id of a master's step, and the origin's text if the step is the first one of this cause."""
    origin = origin or about.origin
    if origin is None:
        return "", ""
    known = None if former is None else former.origin
    return origin.cause_id, origin.text if known is None or known.cause_id != origin.cause_id else ""


def entries_of_end(
    record: TransitionRecord, version: int, cause: Cause, epoch: int, now_ms: int, origin: WorkOrigin | None = None
) -> list[HistoryEntry]:
    """Return the entries for a transition that a master of `epoch` deletes as it was read at `version`.

    `origin` None: the deletion belongs to the cause that began the transition.
    """
    return entries_of_step(record, version, None, cause, epoch, now_ms, origin)
