"""Planted bugs of hosts of many Raft groups. A simulation is credible only if it finds them."""

from __future__ import annotations

from typing import Any

import msgspec

from coord.raft.leadership import Leadership
from coord.raft.messages import FOLLOWER, Entry, HardState, Message
from coord.storage.shared.items import SlotItems
from regions.messages.tablets import ChangeAnswer
from regions.replication import guards
from regionserver.tablets import writers
from regionserver.tablets.commands import CompareAndSet, DeleteRow, KvCommand, PutRow, WriteOutcome
from regionserver.tablets.copying import guards as copy_guards
from regionserver.tablets.copying import merge
from regionserver.tablets.copying.messages import CopyOutcome
from regionserver.tablets.disk import files, startup, steps, superblock
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.disk.steps import DropSlot
from regionserver.tablets.disk.superblock import Memory, Superblock
from regionserver.tablets.host import delivery
from regionserver.tablets.host import group as group_module
from regionserver.tablets.host.beats import BEAT_TICKS, Beats
from regionserver.tablets.host.envelope import Quiet
from regionserver.tablets.host.group import Group, ReplicaIdentity
from regionserver.tablets.host.quiet import QuietGroups
from regionserver.tablets.host.requests import UNPROVED, Fate, Reads
from regionserver.tablets.host.turn import Turn
from simulation.tablets import lives
from simulation.tablets.storage.rows import RowsImage
from simulation.tablets.world import World
from tests.sim.raft import planted as rafts
from tests.sim.tablets.bug import Bug
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


class AgeCountedFromReceipt(Bug):
    """A replica counts the age of its rows from the arrival of the leader's answer, not from its own question."""

    known = "an answer that waited in a socket looks fresh"
    favours = ("_freeze", "_freeze_leader", "_partition")
    favours_stale_reads = True

    def patches(self) -> list[Patch]:
        arrived_ms = 0

        def deliver(self: World, source: str, to: str, data: bytes) -> None:
            nonlocal arrived_ms
            arrived_ms = self.now // 1000
            _DELIVER(self, source, to, data)

        def confirm(self: Reads, context: int, index: int) -> None:
            if context in self.questions:
                self.questions[context] = (arrived_ms, self.questions[context][1])
            _CONFIRM(self, context, index)

        return [instead(World, "deliver", deliver), instead(Reads, "confirm", confirm)]


_DELIVER = World.deliver
_CONFIRM = Reads.confirm


class ProofBeforeApplied(Bug):
    """A replica counts its rows as new as the leader's answer before they hold the answer's index."""

    known = "a closed timestamp without its log position"
    favours = ("_freeze", "_kill", "_partition")
    favours_stale_reads = True

    def patches(self) -> list[Patch]:
        def confirm(self: Reads, context: int, index: int) -> None:
            asked_ms, _ = self.questions.get(context, (UNPROVED, 0))
            _CONFIRM(self, context, index)
            self.as_of_ms = max(self.as_of_ms, asked_ms)

        return [instead(Reads, "confirm", confirm)]


class OneTabletEndsAll(Bug):
    """An exception inside a group ends the process that hosts it."""

    known = "TiKV #15292, #11746; KUDU-1407"
    favours = ("_break_code",)

    def patches(self) -> list[Patch]:
        def park(self: Turn, group: Group, error: Exception) -> None:
            raise error

        return [instead(Turn, "_park_for", park)]


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


class ConfigTakenForNoted(Bug):
    """After a restart, a configuration that is in the log alone counts as written to the consensus metadata."""

    known = "found by this simulation"
    favours = ("_hand_over", "_kill_leader", "_quick_restart")
    sizes = (3,)

    def patches(self) -> list[Patch]:
        def reopen(*arguments: Any, **options: Any) -> Group:
            group = _REOPEN(*arguments, **options)
            group._noted_index = group._config_index = group.core.committed_config().index
            return group

        return [instead(lives, "reopen", reopen)]


_REOPEN = lives.reopen


class TombstoneVotesTwice(Bug):
    """A tombstone votes for every candidate of a term."""

    known = "votes of tombstones (FW-06)"
    favours = ("_delete_replica", "_bridge", "_isolate_leader", "_freeze_leader")
    sizes = (3,)

    def patches(self) -> list[Patch]:
        rules = tuple(rule for rule in delivery.VOTE_RULES if rule.name != "has voted for another")
        return [instead(delivery, "VOTE_RULES", rules)]


class TombstoneForgotten(Bug):
    """A tombstone's votes are lost at a restart: only the votes before its deletion remain."""

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


class TombstoneVoteNotKept(Bug):
    """A deletion keeps the tombstone's term and forgets its vote."""

    known = "KUDU: tombstones without consensus metadata"
    favours = ("_delete_replica", "_bridge", "_isolate_leader", "_kill_leader")

    def patches(self) -> list[Patch]:
        def deleted(block: Superblock, memory: Memory, reason: str, at_ms: int) -> Superblock:
            return _DELETED(block, msgspec.structs.replace(memory, vote=0), reason, at_ms)

        return [instead(steps, "deleted", deleted), instead(superblock, "deleted", deleted)]


_DELETED = superblock.deleted


# --- copies

_COPIES = ("_copy_replica", "_damage_rows", "_delete_replica", "_kill_leader")


class ResultsLostAtCopy(Bug):
    """A copy brings the rows without the results of writes."""

    known = "writer's results lost at a copy"
    favours = _COPIES
    loses_results = True


class ReadyBeforeSynced(Bug):
    """A copied replica is READY before its rows are synced."""

    known = "files renamed before they are synced"
    favours = ("_copy_replica", "_damage_rows", "_power_cut", "_quick_restart")
    rows_not_synced = True


class TermCheckedAfterDeletion(Bug):
    """The former replica is deleted first, and the order of the copy is checked afterwards."""

    known = "X13: S2's order of steps; Kudu's rogue leader"
    favours = ("_copy_replica", "_late_order", "_isolate_leader", "_damage_rows")
    deletes_before_checks = True


class MergeTakesRemoteVote(Bug):
    """The consensus metadata of a copy have the vote of the source."""

    known = "TC-14"
    favours = _COPIES

    def merged(self, meta: ConsensusMeta, source_vote: int) -> ConsensusMeta:
        return msgspec.structs.replace(meta, vote=source_vote)


class MergeForgetsVote(Bug):
    """The consensus metadata of a copy have no vote, although this server has voted in the term."""

    known = "TC-14"
    favours = _COPIES

    def merged(self, meta: ConsensusMeta, source_vote: int) -> ConsensusMeta:
        return msgspec.structs.replace(meta, vote=0)


class LogLeftBehind(Bug):
    """A copy ends with the rows: what the member had acknowledged behind them is gone."""

    known = "snapshots that go back behind acknowledged entries"
    favours = ("_copy_replica", "_damage_rows", "_kill_leader", "_power_cut_all")
    log_not_copied = True


class DropOfWrongGeneration(Bug):
    """A start drops the slot of the present generation with those of former ones."""

    known = "FW-10: a late DROP that reaches the successor"
    favours = ("_copy_replica", "_damage_rows", "_kill", "_power_cut")

    def patches(self) -> list[Patch]:
        def decide(found: startup.Found, server: str, at_ms: int) -> startup.Decision:
            decision = _DECIDE(found, server, at_ms)
            own = found.own_slot()
            if decision.run is RunState.ASLEEP and own is not None and own.generation > 1:
                decision.effects.append(DropSlot(own.slot, own.generation))
            return decision

        return [instead(files, "decide", decide)]


_DECIDE = startup.decide


class VoterCopiedFromNothing(Bug):
    """A voter without memory is copied under its number."""

    known = "S2's parallel universe, by a copy"
    favours = ("_lose_disk", "_kill_leader", "_damage_file")
    claims_nothing = True

    def patches(self) -> list[Patch]:
        checks = tuple(one for one in copy_guards.CHECKS if one.outcome is not CopyOutcome.AMNESIA)
        return [instead(copy_guards, "CHECKS", checks), instead(superblock, "copying", _copying_lost)]


def _copying_lost(block: Superblock, number: int, source: str, at_ms: int) -> Superblock:
    return _COPYING(msgspec.structs.replace(block, is_lost=False), number, source, at_ms)


_COPYING = superblock.copying


class NumberBegunTwice(Bug):
    """A new number is copied without its transition in the store: a disk that was lost begins the number again."""

    known = "Cockroach #2798, by a copy"
    favours = ("_change_members", "_late_order", "_lose_disk", "_kill_copying")
    sizes = (4, 5)
    claims_nothing = True


class SeenReplicaIgnored(Bug):
    """An order for a copy replaces a replica that is not as its leader saw it."""

    known = "orders that arrive late"
    favours = ("_damage_rows", "_late_order", "_kill_leader", "_delete_replica")

    def patches(self) -> list[Patch]:
        checks = tuple(
            one
            for one in copy_guards.CHECKS
            if one.outcome is not CopyOutcome.BAD_TERM and "as the sender saw" not in one.when
        )
        return [instead(copy_guards, "CHECKS", checks), instead(merge, "log_objection", lambda own, term, index: "")]


class BehindTheFloorForever(Bug):
    """A member that runs and lacks entries that its leader's log has dropped is never copied."""

    known = "found by this simulation"
    favours = ("_copy_replica", "_damage_rows", "_lose_disk", "_kill_leader")

    def patches(self) -> list[Patch]:
        return [instead(Turn, "lacks_log", lambda self, tablet, number, first: None)]


class ProbedWhereTheLogIsGone(Bug):
    """A leader probes a member that was copied at the entry that its log has dropped: it is copied again and again."""

    known = "found by this simulation"
    favours = ("_copy_replica", "_damage_rows", "_lose_disk", "_kill_leader")

    def patches(self) -> list[Patch]:
        return [instead(Leadership, "probe_end", lambda self, peer_id: None)]


# --- quiet tablets


class QuietBehindTheLeader(Bug):
    """A group becomes quiet although a follower lacks entries, and the follower agrees."""

    known = "Cockroach: quiescence with a follower that is behind"
    favours = ("_kill", "_partition", "_one_way")

    def patches(self) -> list[Patch]:
        def may_be_quiet(self: QuietGroups, group: Group) -> bool:
            return group.is_settled()

        def agrees(self: QuietGroups, group: Group, quiet: Quiet) -> bool:
            return group.core.role == FOLLOWER

        return [instead(QuietGroups, "_may_be_quiet", may_be_quiet), instead(QuietGroups, "_agrees", agrees)]


class QuietFollowerHearsLostLeader(Bug):
    """A quiet follower does not notice the loss of its leader's server."""

    known = "TiKV #16429, #18916"

    def patches(self) -> list[Patch]:
        return [instead(QuietGroups, "lost", lambda self, group, server: None)]
