"""Planted bugs of hosts of many Raft groups. A simulation is credible only if it finds them."""

from __future__ import annotations

from typing import Any

import msgspec

from coord.errors import InvalidMessage
from coord.raft.messages import Entry, HardState, Message
from coord.storage.shared.items import SlotItems
from regions.messages.tablets import ChangeAnswer
from regions.replication import guards
from regionserver.tablets import writers
from regionserver.tablets.commands import CompareAndSet, DeleteRow, KvCommand, PutRow, WriteOutcome
from regionserver.tablets.host import delivery
from regionserver.tablets.host import group as group_module
from regionserver.tablets.host.beats import BEAT_TICKS, Beats
from regionserver.tablets.host.group import Group, ReplicaIdentity
from regionserver.tablets.host.reads import Reads
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.host.turn import Turn
from tests.sim.raft import planted as rafts
from tests.sim.tablets.rows import RowsImage
from tests.sim.tablets.world import Bug
from tests.support.planted import Patch, instead

# --- promises and the disk


class PromisesLeaveAtOnce(Bug):
    """Votes and acknowledgments leave in the turn that writes them, not when the write is durable."""

    known = "etcd #14370, dragonboat #201"

    def patches(self) -> list[Patch]:
        return [instead(Turn, "_hold", lambda self, group, promises, held: self._dispatch(group, promises))]


class PromiseWithoutWriteLeaves(Bug):
    """A promise without a write of its own does not wait for the earlier writes of its group."""

    known = "an append that arrives twice"

    def patches(self) -> list[Patch]:
        def hold(self: Turn, group: Group, promises: list[Message], held: Any) -> None:
            if group.write_number == held.number:
                held.promises.append((group, promises))
            else:
                self._dispatch(group, promises)

        return [instead(Turn, "_hold", hold)]


class TermWithoutEntries(Bug):
    """A turn that writes entries of a group does not write its term and vote with them."""

    known = "hard state and entries stored apart"

    def patches(self) -> list[Patch]:
        def merge(
            replica: ReplicaIdentity, before: SlotItems | None, hard_state: HardState | None, entries: list[Entry]
        ) -> SlotItems:
            return _MERGE(replica, before, None if entries else hard_state, entries)

        return [instead(group_module, "_merge", merge)]


_MERGE = group_module._merge


class RowsAheadOfLog(Bug):
    """Rows take what is committed before this server's own log has it."""

    known = "allowed by Raft; rows that survive a kill and a log that does not"
    favours = ("_power_cut", "_power_cut_all", "_quick_restart")

    def patches(self) -> list[Patch]:
        def can_begin(self: Group) -> bool:
            return not self._round and bool(self._committed)

        def begin(self: Group) -> None:
            self._round = list(self._committed)
            self._committed.clear()
            self._out.round = self._round

        return [instead(Group, "_can_begin_round", can_begin), instead(Group, "_begin_round", begin)]


class FloorBeforeSteady(Bug):
    """The floor of a slot moves before the steady point is durable."""

    known = "checkpoints: a log that is cut before its checkpoint is durable"
    favours = ("_power_cut", "_power_cut_all", "_quick_restart")
    floor_before_steady = True


class FloorBeyondMembers(Bug):
    """The log drops entries that a member which is away does not have."""

    known = "a follower that needs a snapshot, which tablets do not have yet"
    favours = ("_quick_restart", "_power_cut_all", "_partition", "_freeze")

    def patches(self) -> list[Patch]:
        return [instead(Group, "everywhere", lambda self: self.core.log.commit)]


class SteadyMixesStates(Bug):
    """A steady point has the rows of its beginning and the applied index of its end."""

    known = "fuzzy snapshots"
    favours = ("_power_cut", "_power_cut_all", "_quick_restart")
    steady_mixes_states = True


# --- numbers


class NumberReused(Bug):
    """A server that lost its disk opens its replicas again under their numbers."""

    known = "Cockroach #2798, #64966"
    favours = ("_lose_disk", "_isolate_leader", "_kill_leader", "_partition")
    reopens_lost_numbers = True


class VoterVivified(Bug):
    """A message for a voter that a server does not have makes the voter from nothing."""

    known = "S2's parallel universe"
    favours = ("_lose_disk", "_isolate_leader", "_kill_leader", "_partition")
    makes_voters_from_nothing = True


class DamageIgnored(Bug):
    """A slot that has lost a part of its log goes on with the rest under its number."""

    known = "logs that are cut at the first unreadable record"
    favours = ("_damage_slot", "_isolate_leader", "_kill_leader", "_partition")
    ignores_damage = True


# --- requests


class AnsweredWhenAppended(Bug):
    """A write is acknowledged when it is in the leader's log."""

    known = "acknowledged before it is committed"

    def patches(self) -> list[Patch]:
        def propose(self: Group, request: int, payload: bytes) -> None:
            _PROPOSE(self, request, payload)
            if self._proposals and self._proposals[-1].request == request:
                index = self._proposals[-1].index
                self._answer(request, Fate.DONE, WriteOutcome(0, self.core.term, index), self.core.term, index)

        return [instead(Group, "propose", propose)]


_PROPOSE = Group.propose


class WrittenTwice(Bug):
    """Results of writes are not looked up: a repetition is carried out again."""

    known = "retries without deduplication"

    def patches(self) -> list[Patch]:
        def check(self: writers.WriterResults, command: KvCommand, term: int, index: int) -> WriteOutcome | None:
            return None

        return [instead(writers.WriterResults, "check", check)]


class ResultsNotSteady(Bug):
    """Results of writes are not a part of the steady point."""

    known = "writer's results lost at a copy"
    favours = ("_power_cut", "_power_cut_all", "_quick_restart")
    results_not_steady = True


class CompareIgnored(Bug):
    """A compare-and-set is carried out whatever the row's value is, on all replicas alike."""

    known = "conditions that are checked before the log and not behind it"

    def patches(self) -> list[Patch]:
        def execute(self: RowsImage, command: KvCommand, entry: Entry) -> WriteOutcome:
            one = command.operations[0]
            if isinstance(one, CompareAndSet):
                operation = DeleteRow(one.key) if one.value is None else PutRow(one.key, one.value)
                command = msgspec.structs.replace(command, operations=[operation])
            return _EXECUTE(self, command, entry)

        return [instead(RowsImage, "_execute", execute)]


_EXECUTE = RowsImage._execute


class ReadBeforeApplied(Bug):
    """A confirmed read is answered from the rows as they are, whether they hold its index or not."""

    known = "read index without waiting for the state machine"

    def patches(self) -> list[Patch]:
        def take_ready(self: Reads, applied: int) -> list[int]:
            return _TAKE_READY(self, 1 << 60)

        return [instead(Reads, "take_ready", take_ready)]


_TAKE_READY = Reads.take_ready


class ReadUnconfirmed(Bug):
    """A leader answers reads at its commit index without asking whether it still leads."""

    known = "TiKV #964, #4688, #8034, #9208"
    favours = ("_isolate_leader", "_freeze_leader", "_partition")

    def patches(self) -> list[Patch]:
        def read(self: Group, request: int) -> None:
            _READ(self, request)
            if self.reads.fresh:
                self.reads.confirm(self.reads.begin_round(), self.core.log.commit)

        return [instead(Group, "read", read)]


_READ = Group.read


class ReadBeforeOwnCommit(Bug):
    """A new leader answers reads before an entry of its own term is committed."""

    known = "read index before the term's first commit"
    favours = ("_hand_over", "_kill_leader", "_quick_restart")
    #: With a heartbeat in each BEAT: with fewer of them it takes more than 60 seeds.
    heartbeat_ticks = BEAT_TICKS
    core_class = rafts._EarlyReadCore


# --- servers and tablets


class OneTabletEndsAll(Bug):
    """An exception inside a group ends the process that hosts it."""

    known = "TiKV #15292, #11746; KUDU-1407"
    favours = ("_break_code",)

    def patches(self) -> list[Patch]:
        def run(self: Turn, group: Group, what: Any, *arguments: Any) -> None:
            self._touch(group)
            what(*arguments)

        def step(self: Turn, group: Group, server: str, m: Message) -> None:
            try:
                group.step(m)
            except InvalidMessage as error:
                self._out.rejected.append((group.replica.tablet, server, str(error)))
            self._touch(group)

        def tick(self: Turn, group: Group, now: int) -> None:
            group.tick(now)
            self._touch(group)

        return [instead(Turn, "_run", run), instead(Turn, "_step", step), instead(Turn, "_tick", tick)]


class ParkedTabletForgetsClients(Bug):
    """A tablet that is parked leaves its requests without an answer, and its bytes in flight."""

    known = "requests that wait for a tablet that failed"
    favours = ("_damage_rows", "_break_code")

    def patches(self) -> list[Patch]:
        def fail(self: Group, why: str) -> None:
            self.failure = why

        return [instead(Group, "fail", fail)]


class RestartNotSeen(Bug):
    """A process that is replaced quickly counts as the one before: its tablets wait for an election timeout."""

    known = "leases and sessions that outlive the process that held them"

    def patches(self) -> list[Patch]:
        def introduced(self: Beats, server: str, start_code: int) -> bool | None:
            is_new = _INTRODUCED(self, server, start_code)
            return False if is_new else is_new

        return [instead(Beats, "introduced", introduced)]


_INTRODUCED = Beats.introduced


class GoneLeaderKept(Bug):
    """A server that is gone goes on leading in the eyes of its followers until an election timeout."""

    known = "TiKV #16429, #18916"

    def patches(self) -> list[Patch]:
        return [instead(Group, "peer_gone", lambda self, server: None)]


# --- members


class PromotionNeedsNewcomer(Bug):
    """A PRE_VOTER that has caught up is promoted although the group then needs it for every commit."""

    known = "Kudu's order of replacement"
    favours = ("_change_members", "_delete_replica", "_kill", "_freeze")
    promotes_carelessly = True
    sizes = (4, 5)


class ChangeWithoutCompare(Bug):
    """A change of members is made on whatever configuration is committed when it arrives."""

    known = "S2: REMOVE without compare-and-set"
    favours = ("_change_members", "_hand_over")
    sizes = (5,)

    def patches(self) -> list[Patch]:
        checks = tuple(one for one in guards.CHANGE_CHECKS if one.answer is not ChangeAnswer.STALE_CONFIG)
        return [instead(guards, "CHANGE_CHECKS", checks)]


class TombstoneVotesTwice(Bug):
    """A tombstone votes for every candidate of a term."""

    known = "votes of tombstones (FW-06)"
    favours = ("_delete_replica", "_bridge", "_isolate_leader")
    sizes = (3,)

    def patches(self) -> list[Patch]:
        rules = tuple(rule for rule in delivery.VOTE_RULES if rule.name != "has voted for another")
        return [instead(delivery, "VOTE_RULES", rules)]


class TombstoneForgotten(Bug):
    """A tombstone's votes are lost at a restart: it knows those before its deletion only."""

    known = "PySyncObj #202, with a tombstone"
    favours = ("_delete_replica", "_bridge", "_kill", "_power_cut")
    sizes = (3,)
    forgets_tombstones = True


class TombstoneRemembersCommitted(Bug):
    """A tombstone remembers the last entry that was committed, not the last one that it had appended."""

    known = "KUDU-1796"
    favours = ("_delete_replica", "_isolate_leader", "_kill_leader", "_power_cut_all")
    sizes = (3, 5)
    remembers_committed = True
