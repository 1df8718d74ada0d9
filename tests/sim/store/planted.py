"""Bugs that stores like this one have had, planted on purpose: the simulation must find each of them.

Each bug is a set of patches of the real classes for the time of one run. `number` is its number in the list of famous
bugs in docs/simulation.md.
"""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

from coord.errors import OK
from coord.raft import core as core_module
from coord.raft.follower import FollowerRole
from coord.raft.membership import FIRST_MEMORY
from coord.raft.messages import LEADER, Entry
from coord.server import node
from coord.server.clients import handshake, pipeline, proposals, syncs
from coord.server.clients.table import ClientTable
from coord.server.membership import joining, leading, reconfig
from coord.server.recovery import repair
from coord.server.submission import Submission
from coord.storage.records import WriteBatch
from coord.tree import machine as machine_module
from coord.tree.datatree import DataTree
from coord.tree.machine import StateMachine
from coord.tree.node import DeleteDelta, parent_of
from coord.tree.plan import PlannedMulti
from coord.wire.records import encode_reply_frame
from tests.sim.store import world
from tests.sim.store.world import Bug
from tests.support.planted import Patch, instead

CRASHES = ("_power_cut", "_power_cut_leader", "_power_cut_all")
LEADERS = ("_power_cut_leader", "_isolate_leader", "_transfer", "_pause_leader")


class TermForgotten(Bug):
    """Term and vote are not made durable."""

    number = 2
    known = "PySyncObj #202"
    favours = ("_power_cut", "_power_cut_leader", "_one_way", "_kill")

    def patches(self) -> list[Patch]:
        def forget(batch: WriteBatch, term: int, vote: int) -> None:
            real(batch, 0, 0)

        real = WriteBatch.set_hard_state
        return [instead(WriteBatch, "set_hard_state", forget)]


class ClaimsBelieved(Bug):
    """A node does not validate the fields of a message."""

    number = 2
    known = "this store: one forged frame stopped the leader, another ruined every disk"

    def patches(self) -> list[Patch]:
        return [instead(core_module.RaftCore, "check", lambda *_: None)]


class ResentAtOnce(Bug):
    """Commands are resent after a change of leader before an entry of the new term proves them uncommitted."""

    number = 14
    known = "retries inside of the store; ZooKeeper has none for this reason"
    favours = LEADERS

    def patches(self) -> list[Patch]:
        def take(queue: proposals.Proposals, term: int) -> Any:
            if queue.term != term and queue.sent and term > queue.term:
                queue.entry_applied(term)
            return real(queue, term)

        real = proposals.Proposals.take
        return [instead(proposals.Proposals, "take", take)]


class ForwardedTwice(Bug):
    """The leader proposes a command again when it is resent over a new connection."""

    number = 16
    known = "data of an older connection behind that of a newer one"
    favours = ("_flap", "_reset")

    def patches(self) -> list[Patch]:
        def accept(*args: Any) -> Any:
            return args[-1]

        return [instead(proposals.Forwarded, "accept", accept)]


class AttachedLocally(Bug):
    """A server re-attaches a client to its session without a log entry."""

    number = 20
    known = "ZooKeeper's session moves"
    favours = ("_lose_client", "_reset", "_isolate_leader")

    def patches(self) -> list[Patch]:
        def open_session(self: handshake.SessionHandshake, connection: Any, request: Any) -> None:
            session = self.machine.sessions.find(request.session_id)
            if session is None or session.passwd != request.passwd:
                real(self, connection, request)
                return
            connection.session_id = session.session_id
            outcome = machine_module.CommandOutcome(session.owner, session.session_id, 0, 0, pipeline.op.OP_ATTACH)
            self.session_opened(connection, outcome)

        real = handshake.SessionHandshake.open_session
        return [instead(handshake.SessionHandshake, "open_session", open_session)]


class ExpiryNotRestarted(Bug):
    """A node that leads again continues with the session timers of its earlier term."""

    number = 20
    known = "sessions ended by a new leader too early"
    favours = ("_isolate_leader", "_transfer", "_pause_leader", "_heal")

    def patches(self) -> list[Patch]:
        def apply(self: Any, entries: list[Entry]) -> None:
            live = self.liveness
            before = live.expiry
            real(self, entries)
            if before is None and live.expiry is not None:
                live.expiry = live.__dict__.setdefault("first_expiry", live.expiry)
                live.expiry._table = self.machine.sessions

        real = node.Node._apply
        return [instead(node.Node, "_apply", apply)]


class EventBehindData(Bug):
    """Replies of a batch are sent before its watch events."""

    number = 24
    known = "etcd #15271, #20221"

    def patches(self) -> list[Patch]:
        def applied(self: pipeline.Pipeline, outcomes: list[Any]) -> None:
            events = [outcome.events for outcome in outcomes]
            for outcome in outcomes:
                outcome.events = []
            real(self, outcomes)
            for outcome, each in zip(outcomes, events, strict=True):
                outcome.events = each
                self._send_events(outcome)

        real = pipeline.Pipeline.applied
        return [instead(pipeline.Pipeline, "applied", applied)]


class WatchesOutliveConnection(Bug):
    """A closed connection's watches remain, and fire for the session's next connection."""

    number = 24
    known = "watches fired twice on reconnect"

    def patches(self) -> list[Patch]:
        def lost(self: ClientTable, connection: Any) -> None:
            with mock.patch.object(self.watches, "drop"):
                real(self, connection)

        real = ClientTable.connection_lost
        return [instead(ClientTable, "connection_lost", lost)]


class WatchBeforeRead(Bug):
    """A watch is set when the request arrives, not when the read is answered."""

    number = 24
    known = "watches lost between read and registration"

    def patches(self) -> list[Patch]:
        def wait(self: pipeline.Pipeline, connection: Any, waiting: Any) -> None:
            if waiting.is_read and waiting.opcode == pipeline.op.OP_GET_DATA:
                self.machine.read(waiting.opcode, waiting.body, connection.session, self.watches)
            real(self, connection, waiting)

        real = pipeline.Pipeline._wait
        return [instead(pipeline.Pipeline, "_wait", wait)]


class ReadDoesNotWait(Bug):
    """A read overtakes the writes of its own session."""

    number = 24
    known = "ZooKeeper's CommitProcessor"

    def patches(self) -> list[Patch]:
        def wait(self: pipeline.Pipeline, connection: Any, waiting: Any) -> None:
            if waiting.is_read and waiting.opcode not in (pipeline.op.OP_SET_WATCHES, pipeline.op.OP_SET_WATCHES2):
                err, body = self.machine.read(waiting.opcode, waiting.body, connection.session, self.watches)
                zxid = self.machine.last_zxid
                waiting.is_read = False
                waiting.reply = encode_reply_frame(waiting.xid, zxid, err, body)
            real(self, connection, waiting)

        real = pipeline.Pipeline._wait
        return [instead(pipeline.Pipeline, "_wait", wait)]


class EphemeralsLeft(Bug):
    """A session ends, and its ephemerals remain."""

    number = 19
    known = "ZOOKEEPER-5010, -2184"

    def patches(self) -> list[Patch]:
        def end(self: StateMachine, outcome: Any, session: Any) -> None:
            self.sessions.remove(session)

        return [instead(StateMachine, "_end_session", end)]


class AppliedTwice(Bug):
    """After a restart the first entry after the snapshot is applied twice."""

    number = 3
    known = "etcd #13766, #14685"
    favours = (*CRASHES, "_kill")

    def patches(self) -> list[Patch]:
        def apply(self: Any, entries: list[Entry]) -> None:
            first = not self.__dict__.get("has_applied") and entries[0].index > 1
            self.__dict__["has_applied"] = True
            real(self, [entries[0], *entries] if first else entries)

        real = node.Node._apply
        return [instead(node.Node, "_apply", apply)]


class MultiNotRolledBack(Bug):
    """A rejected multi keeps the changes of its first operations."""

    number = 21
    known = "ZooKeeper's multi"

    def patches(self) -> list[Patch]:
        def multi(self: StateMachine, outcome: Any, session: Any, data: bytes, at: int, end: int) -> None:
            ops = machine_module.decode_multi(data, at, end)
            for count in range(len(ops), 0, -1):
                planned: PlannedMulti = machine_module.plan_multi(self.tree, session, ops[:count])
                if planned.err == OK:
                    if count < len(ops):
                        events: list[Any] = []
                        for position, delta in enumerate(planned.deltas):
                            self._perform_part(ops[position].opcode, delta, outcome.zxid, events, [])
                    break
            real(self, outcome, session, data, at, end)

        real = StateMachine._multi
        return [instead(StateMachine, "_multi", multi)]


class SyncWithoutQuorum(Bug):
    """A server answers a sync from its own state, without the leader."""

    number = 12
    known = "ZOOKEEPER-1675, -2136, -3991"
    favours = ("_isolate_leader", "_partition", "_pause", "_one_way")

    def patches(self) -> list[Patch]:
        def add(self: syncs.Syncs, connection: Any, waiting: Any) -> None:
            self.confirmed.append((0, [(connection, waiting)]))

        return [instead(syncs.Syncs, "add", add)]


class WipedNodeVotes(Bug):
    """A node that lost its disk, or set a damaged log aside, votes as if it had made no promises."""

    number = 17
    known = "Raft users of every kind"
    favours = ("_flip", "_lose_memory", "_kill", "_power_cut", "_isolate_leader", "_partition")
    members_move = False

    def patches(self) -> list[Patch]:
        return [instead(module, "renew_memory", lambda *_: FIRST_MEMORY) for module in (joining, repair, world)]


class VoteForgotten(Bug):
    """The term is stored, the vote is not: after a restart the node votes again."""

    number = 2
    known = "PySyncObj #202"
    favours = ("_power_cut", "_power_cut_leader", "_one_way", "_kill")

    def patches(self) -> list[Patch]:
        def forget(batch: WriteBatch, term: int, vote: int) -> None:
            real(batch, term, 0)

        real = WriteBatch.set_hard_state
        return [instead(WriteBatch, "set_hard_state", forget)]


class TermLagsEntries(Bug):
    """Term and vote are written with the next batch: after a crash the log has entries of an unrecorded term."""

    number = 4
    known = "raft-rs users, hard state and entries in two writes"
    favours = CRASHES

    def patches(self) -> list[Patch]:
        def perform(self: Any, ready: Any) -> None:
            if ready.must_persist:
                late, self.__dict__["late_state"] = self.__dict__.get("late_state"), ready.hard_state
                ready.hard_state = late
                ready.must_persist = late is not None or ready.snapshot is not None or len(ready.entries) > 0
            real(self, ready)

        real = node.Node._perform
        return [instead(node.Node, "_perform", perform)]


class ForwardOfAnotherTerm(Bug):
    """A node keeps commands received while it did not lead, and proposes them when it leads in a later term."""

    number = 16
    known = "commands that outlive a connection or a leader"
    favours = ("_one_way", "_transfer", "_transfer", "_heal")

    def patches(self) -> list[Patch]:
        def take(self: Any, peer: int, incarnation: int, term: int, first: int, commands: list[bytes]) -> None:
            kept = self.__dict__.setdefault("kept_commands", [])
            if self._core.role != LEADER:
                kept.extend(commands)
                return
            if kept:
                self.propose(list(kept))
                kept.clear()
            real(self, peer, incarnation, term, first, commands)

        real = Submission.take_forward
        return [instead(Submission, "take_forward", take)]


class ProposalsOutliveState(Bug):
    """Commands whose outcome is unknown after an installed snapshot are kept and resent."""

    number = 14
    known = "retries without deduplication"
    favours = ("_isolate_leader", "_pause", "_partition", "_one_way")

    def patches(self) -> list[Patch]:
        return [instead(proposals.Proposals, "forget", lambda _: None)]


class UncommittedApplied(Bug):
    """A follower applies its entries, committed or not."""

    number = 18
    known = "ZOOKEEPER-1154, -2832, -3911"
    favours = LEADERS

    def patches(self) -> list[Patch]:
        def on_append(self: FollowerRole, m: Any) -> Any:
            answer = real(self, m)
            self.log.commit_to(self.log.last)
            return answer

        real = FollowerRole.on_append
        return [instead(FollowerRole, "on_append", on_append)]


class OwnClock(Bug):
    """A replica stamps znodes with its own clock."""

    number = 25
    known = "etcd #14571 and every store that asked a clock at apply"

    def patches(self) -> list[Patch]:
        def advance(self: StateMachine, time_ms: int) -> None:
            own = self.__dict__.setdefault("skew", next(skews))
            self.applied_time_ms = max(self.applied_time_ms, time_ms + own)

        skews = itertools.count()
        return [instead(StateMachine, "_advance_time", advance)]


class RightsNotReplicated(Bug):
    """A session's identities are known only on the node that authenticated it."""

    number = 25
    known = "etcd #14571 (rights checked differently at apply)"

    def patches(self) -> list[Patch]:
        def authenticate(self: StateMachine, session: Any, data: bytes, at: int, end: int) -> int:
            return 0 if next(calls) % 2 else int(real(self, session, data, at, end))

        calls = itertools.count()
        real = StateMachine._authenticate
        return [instead(StateMachine, "_authenticate", authenticate)]


class OldOwnerHeard(Bug):
    """Requests of a connection that its session has left are executed."""

    number = 20
    known = "ZooKeeper's SessionMoved"

    def patches(self) -> list[Patch]:
        def apply(self: StateMachine, session_id: int, owner: int, *rest: Any) -> Any:
            session = self.sessions.find(session_id)
            return real(self, session_id, owner if session is None else session.owner, *rest)

        real = StateMachine._apply
        return [instead(StateMachine, "_apply", apply)]


class MissedNotTold(Bug):
    """A client that reconnects with its watches gets no events for the changes that it missed."""

    number = 24
    known = "ZooKeeper's lost watches, etcd #17529"

    def patches(self) -> list[Patch]:
        def restore_watches(self: StateMachine, *args: Any, **named: Any) -> Any:
            real(self, *args, **named)
            return []

        real = StateMachine.restore_watches
        return [instead(StateMachine, "restore_watches", restore_watches)]


class WatchBlindToRights(Bug):
    """Watchers get events of znodes that they may not read."""

    number = 24
    known = "CVE-2024-23944"

    def patches(self) -> list[Patch]:
        return [instead(StateMachine, "_may_read", lambda *_: True)]


class RemoverDeaf(Bug):
    """A node rejects a peer that its newest configuration removes, even if that is uncommitted."""

    number = 10
    known = "this store, found by simulated operators"
    members_move = True
    favours = ("_isolate_at_removal", "_heal")

    def patches(self) -> list[Patch]:
        return [instead(reconfig.Reconfiguration, "may_return", lambda *_: False)]


class JoinerNotAwaited(Bug):
    """reconfig completes before the new participant votes."""

    number = 10
    known = "this store, found by simulated operators"
    members_move = True

    def patches(self) -> list[Patch]:
        return [instead(leading._Change, "waits_for_promotion", lambda _: False)]


class StaleNodeBuries(Bug):
    """A node without a leader reports a session that it does not know as expired."""

    number = 20
    known = "this store, found by the simulation"
    favours = ("_isolate_leader", "_partition", "_pause", "_power_cut")

    def patches(self) -> list[Patch]:
        def open_session(self: Any, connection: Any, request: Any, new_id: int) -> None:
            known = self.machine.sessions.find(request.session_id)
            if request.read_only and request.session_id and known is None:
                self.refuse_session(connection)
                return
            real(self, connection, request, new_id)

        real = handshake.SessionHandshake._open_read_only
        return [instead(handshake.SessionHandshake, "_open_read_only", open_session)]


class ReapedUnchecked(Bug):
    """A container is deleted although a child was created after the leader's check."""

    number = 22
    known = "deletes replayed on newer state"

    def patches(self) -> list[Patch]:
        def plan(view: Any, identities: Any, path: bytes, time_ms: int) -> Any:
            if identities is None and view.find(path) is not None and not view.find(path).num_children:
                return DeleteDelta(path, parent_of(path))
            return real(view, identities, path, time_ms)

        real = machine_module.plan_delete_container
        return [
            instead(machine_module, "plan_delete_container", plan),
            instead(DataTree, "reap_candidates", lambda tree, _: sorted([*tree.containers, *tree.ttls])),
        ]
