"""Bugs that Raft implementations have had, planted on purpose: the simulation must find each of them.

The bugs come from well-known failures: LogCabin's figure 8, PySyncObj's forgotten votes, CCF's old acknowledgments,
Ongaro's membership bug of 2015, and similar ones.
"""

from __future__ import annotations

from coord.errors import ChangeRefusal, ConfigRefused
from coord.raft.core import RaftCore
from coord.raft.follower import FollowerRole
from coord.raft.leadership import Leadership
from coord.raft.messages import APPEND_RESP, PRE_VOTE_RESP, VOTE, VOTE_RESP, Entry, Message
from coord.raft.progress import Progress
from coord.raft.quorum import committed_index
from tests.sim.raft.group import Bug


class AckBeforeSync(Bug):
    """Votes and acknowledgments are sent before the state that they promise is durable."""

    number = 3
    known = "etcd #14370, dragonboat #201"
    ack_before_sync = True


class VoteForgotten(Bug):
    """The term is stored, the vote is not: after a restart the node votes again."""

    number = 2
    known = "PySyncObj #202"
    favours = ("_crash", "_crash_leader", "_one_way")
    forgets_vote = True


class _OldTermLeadership(Leadership):
    def next_commit(self) -> int:
        held = [self.log.stable if voter == self.id else self.by_id[voter].match for voter in self.config.voters]
        return max(self.log.commit, committed_index(held))


class _OldTermCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _OldTermLeadership(*_arguments(self))


class OldTermCounted(Bug):
    """Figure 8: an entry of an older term is committed by counting replicas."""

    number = 1
    known = "Raft figure 8, LogCabin #44"
    core_class = _OldTermCore


class _UnverifiedFollower(FollowerRole):
    def on_append(self, m: Message) -> Message:
        answer = super().on_append(m)
        self.log.commit_to(min(m.commit, self.log.last))
        return answer


class _UnverifiedCore(RaftCore):
    def _new_follower(self) -> FollowerRole:
        return _UnverifiedFollower(*_follower_arguments(self))


class UnverifiedCommitted(Bug):
    """A follower commits up to the leader's commit index, including entries that no append has verified."""

    number = 6
    known = "followers that commit their own stale entries"
    core_class = _UnverifiedCore


class _ShorterFollower(FollowerRole):
    def store(self, entries: list[Entry], term: int) -> None:
        log = self.log
        end = entries[-1].index
        if log.first_difference(entries) == len(entries) and max(end, log.commit) < log.last:
            self.truncate(max(end, log.commit) + 1, term)
        super().store(entries, term)


class _ShorterCore(RaftCore):
    def _new_follower(self) -> FollowerRole:
        return _ShorterFollower(*_follower_arguments(self))


class ShorterAppendTruncates(Bug):
    """A late, shorter append truncates the log after its last entry although nothing conflicts."""

    number = 5
    known = "delayed, shorter appends"
    core_class = _ShorterCore


class _OldAnswerCore(RaftCore):
    def _step_other_term(self, m: Message) -> bool:
        if m.kind == APPEND_RESP and m.term < self.term and m.granted:
            return self.leadership is not None and m.match_index <= self.log.last
        return super()._step_other_term(m)


class OldAnswerCounted(Bug):
    """An acknowledgment of an earlier term counts in the current term."""

    number = 7
    known = "CCF #5674"
    favours = ("_echo_acknowledgements", "_isolate_leader", "_bridge")
    sizes = (5,)  # With three nodes, one follower's acknowledgment makes a majority, which nothing undoes.
    core_class = _OldAnswerCore


class _EarlyChangeLeadership(Leadership):
    def change_refused(self) -> ConfigRefused | None:
        why = super().change_refused()
        return None if why is not None and why.refusal is ChangeRefusal.NOT_SETTLED else why


class _EarlyChangeCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _EarlyChangeLeadership(*_arguments(self))


class EarlyConfigChange(Bug):
    """A new leader changes the membership before an entry of its term is committed."""

    number = 9
    known = "Ongaro, raft-dev 2015"
    favours = ("_rival_changes",)
    sizes = (4,)  # Two majorities of a group with an odd number of voters overlap even then.
    core_class = _EarlyChangeCore


class _TwoChangesLeadership(Leadership):
    def change_refused(self) -> ConfigRefused | None:
        return None if self.has_committed_in_term() else super().change_refused()


class _TwoChangesCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _TwoChangesLeadership(*_arguments(self))


class TwoConfigChanges(Bug):
    """A configuration change begins while another one is uncommitted."""

    number = 9
    known = "Raft dissertation §4.1"
    favours = ("_change_members", "_isolate_leader", "_partition", "_crash_leader")
    core_class = _TwoChangesCore


class _UnconfirmedLeadership(Leadership):
    def confirm_reads(self) -> None:
        for peer in self.by_id.values():
            peer.read_round = self.reads.newest
        super().confirm_reads()


class _UnconfirmedCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _UnconfirmedLeadership(*_arguments(self))


class ReadWithoutQuorum(Bug):
    """A leader answers reads without confirming its leadership."""

    number = 12
    known = "leases and clocks; reads of a deposed leader"
    core_class = _UnconfirmedCore


class _EarlyReadLeadership(Leadership):
    def has_committed_in_term(self) -> bool:
        return True

    def change_refused(self) -> ConfigRefused | None:
        if self.log.commit < self.first_index:
            return ConfigRefused(ChangeRefusal.NOT_SETTLED, "no entry of this term is committed")
        return super().change_refused()


class _EarlyReadCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _EarlyReadLeadership(*_arguments(self))


class ReadBeforeOwnCommit(Bug):
    """A new leader answers reads before an entry of its term is committed."""

    number = 12
    known = "read index before the term's first commit"
    core_class = _EarlyReadCore


class _StaleLogCore(RaftCore):
    def _on_vote_request(self, m: Message) -> None:
        m.prev_index, m.prev_term = max(m.prev_index, self.log.last), max(m.prev_term, self.log.last_term)
        super()._on_vote_request(m)


class AnyLogElected(Bug):
    """Votes are granted without comparing the logs."""

    number = 1
    known = "votes without comparing logs"
    core_class = _StaleLogCore


class _SecondVoteCore(RaftCore):
    def _on_vote_request(self, m: Message) -> None:
        if m.kind == VOTE and m.term == self.term and self.vote != self.id:
            self.vote = 0
        super()._on_vote_request(m)


class SecondVote(Bug):
    """A node grants several votes in one term."""

    number = 2
    known = "two votes in one term"
    core_class = _SecondVoteCore


class _SelfAckCore(RaftCore):
    def propose(self, data: bytes, kind: int = 0) -> int:
        index = super().propose(data, kind)
        self.log.stable = index
        return index


class LeaderCountsUnsynced(Bug):
    """The leader counts its own copy before it is on disk."""

    number = 3
    known = "etcd #14370"
    core_class = _SelfAckCore


class _NoRevertFollower(FollowerRole):
    def truncate(self, index: int, term: int) -> None:
        current, indexes, configs = self.configs.current, self.configs.indexes, self.configs.configs
        kept = [(i, c) for i, c in zip(indexes, configs, strict=True) if i >= index]
        super().truncate(index, term)
        if kept:
            self.configs.current = current


class _NoRevertCore(RaftCore):
    def _new_follower(self) -> FollowerRole:
        return _NoRevertFollower(*_follower_arguments(self))


class ConfigNotReverted(Bug):
    """A configuration stays in effect although its entry was truncated."""

    number = 10
    known = "configurations that outlive their entry"
    core_class = _NoRevertCore


class _LearnerVotesCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _LearnerVotesLeadership(*_arguments(self))


class _LearnerVotesLeadership(Leadership):
    def next_commit(self) -> int:
        held = sorted(
            [self.log.stable if member == self.id else self.by_id[member].match for member in self.config.members()],
            reverse=True,
        )
        index = held[len(self.config.voters) // 2]
        return index if index > self.log.commit and self.log.term_at(index) == self.term else self.log.commit


class LearnerCounted(Bug):
    """Learners count like voters when an entry is committed."""

    number = 10
    known = "a learner counted as a voter"
    core_class = _LearnerVotesCore


class _ForgottenCountsCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _ForgottenCountsLeadership(*_arguments(self))


class _ForgottenCountsLeadership(Leadership):
    def _update_counts(self, peer: Progress) -> None:
        peer.counts = True


class ForgottenCounted(Bug):
    """A voter that lost its disk withholds its votes, but its acknowledgments still count."""

    number = 17
    known = "this store, found by a scripted schedule"
    favours = ("_lose_disk", "_deafen_leader", "_isolate_leader", "_crash", "_partition")
    core_class = _ForgottenCountsCore


class _ToldCommitFollower(FollowerRole):
    def on_commit(self, commit: int, commit_term: int, term: int) -> None:
        super().on_commit(commit, 0, term)


class _ToldCommitCore(RaftCore):
    def _new_follower(self) -> FollowerRole:
        return _ToldCommitFollower(*_follower_arguments(self))

    def _new_leadership(self) -> Leadership:
        return _HeartbeatCommitLeadership(*_arguments(self))


class _HeartbeatCommitLeadership(Leadership):
    def heartbeat(self) -> None:
        before = len(self.output.messages)
        super().heartbeat()
        for m in self.output.messages[before:]:
            m.commit = self.log.commit


class CommitTakenAsTold(Bug):
    """Heartbeats carry the leader's whole commit index, and a follower commits entries that were never verified."""

    number = 6
    known = "commit index of a heartbeat taken as it is"
    core_class = _ToldCommitCore


class _BlindSnapshotFollower(FollowerRole):
    def on_snapshot(self, m: Message) -> Message:
        assert m.snapshot is not None
        config = self.configs.current
        answer = super().on_snapshot(m)
        if self.snapshot is not None:
            self.configs.restart(m.snapshot.index, config)
        return answer


class _BlindSnapshotCore(RaftCore):
    def _new_follower(self) -> FollowerRole:
        return _BlindSnapshotFollower(*_follower_arguments(self))


class SnapshotWithoutConfig(Bug):
    """Installing a snapshot replaces the log, but not the membership."""

    number = 10
    known = "snapshots that forget the configuration"
    core_class = _BlindSnapshotCore


class _DeafCore(RaftCore):
    def _step_other_term(self, m: Message) -> bool:
        if m.term < self.term and m.kind not in (PRE_VOTE_RESP, VOTE_RESP):
            return False
        return super()._step_other_term(m)


class StaleLeaderIgnored(Bug):
    """Messages of older terms are dropped in silence: with pre-vote and quorum check a group may stay without a
    leader."""

    number = 11
    known = "etcd raft #8501, Cloudflare 2020"
    favours = ("_transfer_to_mute",)
    core_class = _DeafCore


class _BelowSnapshotCore(RaftCore):
    def _new_leadership(self) -> Leadership:
        return _BelowSnapshotLeadership(*_arguments(self))


class _BelowSnapshotLeadership(Leadership):
    def _offer_snapshot(self, peer: Progress) -> None:
        peer.become_probe(self.log.offset + 1)
        peer.waiting = True


class NextBelowSnapshot(Bug):
    """A peer that needs a snapshot is sent the entries after the snapshot, again and again."""

    number = 8
    known = "next index below the snapshot: loops and panics in many"
    core_class = _BelowSnapshotCore


class _RestlessCore(RaftCore):
    def _has_active_leader(self) -> bool:
        return False

    def _pre_campaign(self) -> None:
        self._campaign(False)


class RemovedDisturb(Bug):
    """No pre-vote, and followers of a live leader vote: a removed or partitioned node deposes healthy leaders."""

    number = 10
    known = "Raft dissertation §4.2.3"
    favours = ("_change_members", "_partition", "_crash")
    core_class = _RestlessCore


class _HeldTimerCore(RaftCore):
    def step(self, m: Message) -> None:
        super().step(m)
        self.elapsed = 0


class TimerHeldByAnything(Bug):
    """Every message resets the election timer, whatever its sender."""

    number = 15
    known = "timers reset on any call"
    core_class = _HeldTimerCore


def _arguments(core: RaftCore) -> tuple[object, ...]:
    return (
        core.id,
        core.memory,
        core.term,
        core.settings,
        core.log,
        core.configs,
        core._output,
    )


def _follower_arguments(core: RaftCore) -> tuple[object, ...]:
    return core.id, core.log, core.configs, core._writes, core._output
