"""Orders about splits and merges of tablets on one server: split keys, seals, and replicas of daughters.

Every method is called on the reactor's thread. Rows of daughters are made on a separate thread, one daughter at a time,
because the threads that open files and make steady points must not wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord import kill_points
from coord.errors import CoordError
from coord.raft.core import RaftCore
from coord.rpc.wire import RpcError
from regions.messages import BAD_REQUEST, BUSY, ChangeAnswer, ConfigChanged, SealAnswer, SealTablet, TabletSealed
from regions.messages.codes import NOT_LEADER
from regions.messages.heartbeat import HAS_NO_FILES, MemberHealth, ReplicaState, TabletReport
from regions.records.members import MemberRole
from regions.records.resharding.parents import Parent
from regions.replication.policy.situation import CAUGHT_UP_ENTRIES
from regionserver.errors import RegionError
from regionserver.tablets.commands import SEALED, SUPERSEDED, SealCommand, WriteOutcome
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.steps import Beginning
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.members import answer_of
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.process.interfaces import ReplicaOpening
from regionserver.tablets.process.life_work import why_of
from regionserver.tablets.rows.errors import RowsError
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.service import answer_within, refusal
from regionserver.tablets.splits import heirs
from regionserver.tablets.splits.heirs import Daughter, SealedRows, position_of
from regionserver.tablets.splits.preparing import Preparations
from regionserver.tablets.splits.refusals import HeldRefusals
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.values.seals import Seal
from regionserver.workers import Workers, outcome_of

log = Logger()

#: Pauses between two looks at a parent whose replica here does not hold the seal yet.
LOOK_S: Final = 0.05
#: A read with this bound asks the leader, unless the leader has answered in this millisecond.
_NOW_MS: Final = 1
#: Answers for the outcomes of an entry about a seal.
_ANSWERS: Final = {SEALED: SealAnswer.OTHER, SUPERSEDED: SealAnswer.CANCELED}
#: Answers for requests that the group has not carried out.
_FATES: Final = {
    Fate.NOT_LEADER: SealAnswer.NOT_LEADER,
    Fate.UNKNOWN: SealAnswer.STARTED,
    Fate.BUSY: SealAnswer.NOT_READY,
    Fate.DISK_FULL: SealAnswer.NOT_READY,
}


class SplitWork:
    """See the module docstring."""

    def __init__(self, reactor: Any, host: TabletHost, directory: Path, space: DiskSpace | None = None) -> None:
        self._reactor = reactor
        self._host = host
        self._directory = directory
        self._pool = Workers(reactor, 1, lambda: None, lambda failure: log.failure("a daughter's rows", failure))
        self.refusals = HeldRefusals(reactor, host)
        self._preparations = Preparations(reactor, host, directory, space, self._pool, self.refusals)
        self.prepare = self._preparations.prepare
        self._is_stopping = False
        #: First replicas that are made together at the end of this turn.
        self._unmade: list[tuple[ReplicaOpening, Deferred[str]]] = []

    def stop(self) -> None:
        """Make no more replicas."""
        self._is_stopping = True
        self.refusals.stop()
        self._preparations.stop()
        self._pool.stop(0.0)

    # --- the parent ---------------------------------------------------------------------------------------------------

    async def split_key(self, tablet: str) -> str:
        """Return the key in the middle of the bytes of a tablet that this server leads. Raise RpcError."""
        group, rows = self._running(tablet)
        if group.core.leadership is None:
            raise RpcError(NOT_LEADER, f"another member leads tablet {tablet}")
        found = await outcome_of(self._pool.submit, lambda: heirs.split_key(rows))
        if isinstance(found, RegionError):
            raise RpcError(BAD_REQUEST, str(found))
        if isinstance(found, Exception):
            raise RpcError(BUSY, f"the rows of tablet {tablet} cannot be read: {found}")
        return str(found)

    def seal(self, request: SealTablet) -> Deferred[TabletSealed]:
        """Seal a tablet, or take its seal away. Raise RpcError if no replica runs here."""
        tablet = request.region_id
        group, rows = self._running(tablet)
        core = group.core
        if request.wanted and core.leadership is not None and not rows.seal.is_set:
            why = objection_to_seal(core, self._host.report(tablet))
            if why:
                return succeed(self._answer(tablet, SealAnswer.NOT_READY, why=why))
        command = SealCommand(request.resharding, request.epoch, 0, request.wanted)
        return answer_within(
            self._host.propose_seal(tablet, command).addCallback(self._answered),
            tablet,
            self._reactor,
            max(0, request.answer_within_ms) / 1000,
            lambda: self._answer(tablet, SealAnswer.STARTED, why="it is in the log and not applied yet"),
        )

    def objection_to_change(self, tablet: str) -> ConfigChanged | None:
        """Return the refusal of a change of a sealed tablet's members, None if the tablet is not sealed. Its members
        will become the members of the daughters."""
        group, rows = self._host.turn.groups.get(tablet), self._host.rows_of(tablet)
        if group is None or group.failure or rows is None or not rows.seal.is_set:
            return None
        return answer_of(
            group.core, group.servers, ChangeAnswer.PENDING, "the tablet is sealed, because it is split or merged"
        )

    def _answered(self, answer: TabletAnswer) -> TabletSealed | Fate:
        tablet = answer.tablet
        if answer.fate is Fate.DONE:
            outcome: WriteOutcome = answer.value
            kill_points.reached("seal applied")
            log.info("tablet {tablet}: seal of a split or merge: {what}", tablet=tablet,
                     what=_ANSWERS.get(outcome.code, SealAnswer.DONE).value)  # fmt: skip
            self._host.report_changed(tablet)
            return self._answer(tablet, _ANSWERS.get(outcome.code, SealAnswer.DONE), outcome.index)
        if answer.fate in _FATES:
            return self._answer(tablet, _FATES[answer.fate], why=f"the request is {answer.fate.name}")
        return answer.fate

    def _answer(self, tablet: str, answer: SealAnswer, index: int = 0, why: str = "") -> TabletSealed:
        group = self._host.turn.groups.get(tablet)
        if group is None or group.failure:
            return TabletSealed(answer, index, why=why)
        known = answer_of(group.core, group.servers, ChangeAnswer.DONE)
        return TabletSealed(
            answer, index, known.config_id, known.members, known.leader, known.leader_server, why
        )  # fmt: skip

    def _running(self, tablet: str) -> tuple[Group, TabletRows]:
        group, rows = self._host.turn.groups.get(tablet), self._host.rows_of(tablet)
        if group is None or rows is None or group.failure:
            is_here = self._host.key_range(tablet) is not None
            raise refusal(Fate.FAILED if is_here else Fate.DOES_NOT_EXIST, tablet)
        return group, rows

    # --- daughters ----------------------------------------------------------------------------------------------------

    def inherit(self, opening: ReplicaOpening, parents: Sequence[Parent]) -> Deferred[str]:
        """Make a daughter's replica from those of its parents, once these have applied the seals. Return "" or why this
        failed.

        `parents` are in the order of their keys; the token of each is the index of its seal.
        """
        return ensureDeferred(self._inherit(opening, parents))

    async def _inherit(self, opening: ReplicaOpening, parents: Sequence[Parent]) -> str:
        while True:
            if self._is_stopping:
                return "the server stops"
            sealed: list[SealedRows] = []
            waiting: list[Parent] = []
            for parent in parents:
                found = self._sealed(opening, parent)
                if isinstance(found, str):
                    return found
                if found is None:
                    waiting.append(parent)
                else:
                    sealed.append(found)
            if len(sealed) == len(parents):
                return await self._make(opening, [one.region_id for one in parents], sealed)
            for one in waiting:
                await self._ask_leader(one.region_id)
            if any(self._sealed(opening, one) is None for one in waiting):
                await deferLater(self._reactor, LOOK_S)

    def _ask_leader(self, parent: str) -> Deferred[Any]:
        """Apply the entries that the leader has committed. Without a waiting read, a follower would learn the commit
        index only with the next BEAT, and apply even later."""
        asked: Deferred[Any] = self._host.read(parent, lambda _: None, max_stale_ms=_NOW_MS)
        return asked.addErrback(lambda _: None)

    def _sealed(self, opening: ReplicaOpening, parent: Parent) -> SealedRows | str | None:
        """Return the rows of a parent with their seal. Return None until they have it, or the reason why they never
        will."""
        rows, tablet, index = self._host.rows_of(parent.region_id), parent.region_id, parent.token
        # Read before the seal: a thread may apply the seal and the entry behind it meanwhile.
        applied = 0 if rows is None else rows.applied[0]
        if rows is not None and may_inherit(rows.seal, index):
            return SealedRows(rows, rows.seal)
        report = self._host.report(tablet)
        state = None if report is None else report.state
        return objection_to_inherit(tablet, opening.tablet, state, applied, index) or None

    async def _make(self, opening: ReplicaOpening, parents: Sequence[str], sealed: Sequence[SealedRows]) -> str:
        life, tablet = self._host.life, opening.tablet
        if tablet in life.parts().replicas or tablet in life.making:
            return f"tablet {tablet} is on this server already, or is being made"
        life.making.add(tablet)
        try:
            # A tombstone has no slot, so the loss of its superblock leaves nothing but the quarantine.
            had_replica = await outcome_of(self._pool.submit, lambda: life.parts().files.had_replica(tablet))
            if had_replica:
                return objection_to_another(tablet, had_replica)
            name = sealed[0].seal.resharding
            made = await self._preparations.take(parents[0], opening, name) or await self._make_rows(opening, sealed)
        finally:
            life.making.discard(tablet)
        if isinstance(made, str):
            return made
        # The record of a merge's daughter names the server that led the first parent as the leader.
        group = self._host.turn.groups.get(parents[0])
        leads = group is not None and not group.failure and group.core.leadership is not None
        begun = replace(
            opening,
            generation=made.identity.generation,
            beginning=Beginning(*position_of(one.seal for one in sealed)),
            stands_first=leads,
        )
        why = await self._make_replica(begun)
        if why:
            await outcome_of(self._pool.submit, lambda: heirs.remove_rows(made.path))
        else:
            # The replica need not wait: the next start removes a mark that is left.
            self._pool.submit(lambda: heirs.unmark(made.path), lambda _: None)
        return why

    def _make_replica(self, opening: ReplicaOpening) -> Deferred[str]:
        """Make a replica together with the others of this turn: both daughters' files are often there at once."""
        if not self._unmade:
            self._reactor.callLater(0, self._make_replicas)
        made: Deferred[str] = Deferred()
        self._unmade.append((opening, made))
        return made

    def _make_replicas(self) -> None:
        jobs, self._unmade = self._unmade, []

        def made(reasons: list[str]) -> None:
            for (_, answer), why in zip(jobs, reasons, strict=True):
                answer.callback(why)

        def failed(failure: Failure) -> None:
            for _, answer in jobs:
                answer.callback(failure.getErrorMessage() or "internal error")

        maybeDeferred(self._host.make, [opening for opening, _ in jobs]).addCallbacks(made, failed)

    async def _make_rows(self, opening: ReplicaOpening, sealed: Sequence[SealedRows]) -> Daughter | str:
        """Make the file of a daughter's rows. Return the state of the rows, or why this failed."""
        parts, tablet = self._host.life.parts(), opening.tablet
        generation = await outcome_of(parts.files_pool.submit, lambda: parts.files.next_generation(tablet))
        if isinstance(generation, Exception):
            return why_of(generation)
        path = os.fspath(self._directory / rows_path(tablet, generation))
        daughter = Daughter(path, Identity(tablet, generation), opening.start_key, opening.end_key)
        failed = await outcome_of(self._pool.submit, lambda: heirs.make_heir(sealed, daughter, parts.boot))
        if isinstance(failed, (RowsError, CoordError, OSError)):
            return f"the rows of tablet {tablet} cannot be made: {failed}"
        if isinstance(failed, Exception):
            raise failed
        return daughter


def may_inherit(seal: Seal, index: int) -> bool:
    """Return True if daughters that begin after entry `index` are made from rows with this seal."""
    return seal.is_set and seal.index == index


def objection_to_inherit(parent: str, daughter: str, state: ReplicaState | None, applied: int, index: int) -> str:
    """Return why a daughter cannot be made here from its parent, which has no seal at `index`; "" if it may still come.

    `state` is the state of the parent's replica here, `applied` the last index of its rows before the seal was read.
    """
    if state is None or state in HAS_NO_FILES:
        return f"this server has no replica of tablet {parent}, whose rows {daughter} takes over"
    if applied > index:
        return f"tablet {parent} was not sealed by entry {index}, and is at entry {applied}"
    return ""


def objection_to_another(tablet: str, found: bool | Exception) -> str:
    """Return why a daughter cannot be made a second time. `found`: an earlier replica was here, or the quarantine could
    not be read."""
    if isinstance(found, Exception):
        return why_of(found)
    return (
        f"this server had a replica of tablet {tablet} (see its quarantine), and its superblock is lost: the replica's"
        " votes are unknown, so the number is replaced"
    )


def objection_to_seal(core: RaftCore, report: TabletReport | None) -> str:
    """Return why a leader's tablet must not be sealed now, "" if it may be. Its members become the members of the
    daughters, and each member makes the daughters' replicas from its own rows."""
    lead = core.leadership
    if lead is None or report is None or report.leader is None or not lead.has_committed_in_term():
        return "its leader is new"
    if core.configs.newest_index() > core.log.commit:
        return "a change of its members is under way"
    if lead.transferee:
        return "its leadership is being handed over"
    for member in report.leader.members:
        if member.role is not MemberRole.VOTER:
            return f"member {member.number} is no voter"
    for one in report.leader.health:
        if one.health is not MemberHealth.HEALTHY:
            return f"member {one.number} is {one.health.value}{one.reason and ': '}{one.reason}"
        if one.behind > CAUGHT_UP_ENTRIES:
            return f"member {one.number} is {one.behind} entries behind"
    return ""
