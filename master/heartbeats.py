"""Receives the heartbeats of all region servers, on active and standby masters (HB-06, HB-08, HB-14).

Every master keeps a roster of the servers that send heartbeats: address, load, time of the last heartbeat. Only the
active master processes reports of replicas. A standby's reply has its role, and names the active master. A reply never
waits for the store, because a thousand servers may send a heartbeat each second.

Each heartbeat carries the highest epoch that the server knows. If that is above this master's epoch, the master reads
the epoch from the store, which decides whether this master has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord.rpc.wire import RpcError
from master.active import ActiveMaster
from master.process import MasterProcess
from regions.diagnose.live.doubts import doubtful
from regions.liveness.roster import SILENT_MS, Roster
from regions.messages import BUSY, FORBIDDEN, WRONG_CLUSTER, WRONG_MASTER, Contact, Contacts
from regions.messages.heartbeat import Heartbeat, HeartbeatReply, Report
from regions.records.model import Incarnation

#: Period of removing servers from the roster that have been silent for very long.
FORGET_EVERY_MS: Final = 60_000
#: Silent servers named in the problems of `rk status`.
SHOWN_MAX: Final = 5


class HeartbeatReceiver:
    """Receiver of heartbeats, one per process. The roster outlives sessions and tenures of the active master."""

    def __init__(self, master: MasterProcess, now_ms: Callable[[], int]) -> None:
        self._master = master
        self._now_ms = now_ms
        self.roster = Roster()
        #: Heartbeats rejected because they were of another cluster, for another master, or by another identity.
        self.refused = 0
        #: Receives the replicas whose owner is in doubt after a report.
        self.doubted: Callable[[list[str]], None] = lambda _: None
        self._since_ms = now_ms()
        self._forget_ms = now_ms() + FORGET_EVERY_MS

    def answer(self, beat: Heartbeat) -> HeartbeatReply:
        """Accept a heartbeat and return the reply.

        Raise RpcError: WRONG_CLUSTER, WRONG_MASTER, FORBIDDEN for the server of another identity, or BUSY until this
        master has read the cluster id from the store.
        """
        master = self._master
        if not master.cluster_id:
            raise RpcError(BUSY, "this master has not connected to the store yet")
        if beat.cluster_id != master.cluster_id:
            self.refused += 1
            raise RpcError(
                WRONG_CLUSTER,
                f"this master belongs to cluster {master.cluster_id}, server {beat.server.uuid} to {beat.cluster_id!r}",
            )
        uuid = master.uuid
        if beat.recipient not in ("", uuid):
            self.refused += 1
            raise RpcError(WRONG_MASTER, f"this is master {uuid}")
        now_ms, sender, start_code = self._now_ms(), master.caller_principal(), master.start_code
        leads = master.active_master if master.role == "active" else None
        objection = self.roster.objection(beat.server, sender, now_ms)
        if objection:
            self.refused += 1
            raise RpcError(FORBIDDEN, objection)
        crowded = self.roster.crowded
        member = self.roster.accept(beat, now_ms, sender)
        if now_ms >= self._forget_ms or crowded != self.roster.crowded:
            self._forget(now_ms)
        wants_full = False
        if leads is not None:
            if beat.epoch > leads.fence.epoch:
                leads.check_epoch(f"server {beat.server} knows epoch {beat.epoch}")
            if member is not None:
                leads.keeper.disk_seen(beat.server, beat.figures.disk_free)
                if beat.report is not None:
                    leads.reported(beat.server, beat.report)
                    self._doubt(leads, beat.server, beat.report)
                wants_full = leads.reports.wants_full(beat.server)
        return HeartbeatReply(
            master.cluster_id,
            uuid,
            start_code,
            leads is not None,
            self._epoch_seen() if leads is None else leads.fence.epoch,
            member is not None and member.record is None,
            wants_full,
            "" if leads is not None else self._hint(),
            0 if member is not None else self.roster.latest_sequence(beat),
        )

    def _forget(self, now_ms: int) -> None:
        """Drop servers that have been silent for too long, and the reports of servers that are not known any more."""
        self._forget_ms = now_ms + FORGET_EVERY_MS
        self.roster.forget(now_ms)
        leads = self._master.active_master
        if leads is not None:
            servers = leads.world.servers
            leads.reports.keep(lambda uuid: uuid in servers or self.roster.find(uuid) is not None)

    def _doubt(self, leads: ActiveMaster, server: Incarnation, report: Report) -> None:
        """Pass on the replicas that a report puts in doubt."""
        known, holding = leads.assigner.world.servers.get(server.uuid), leads.reports.holding(server)
        if known is not None and holding is not None:
            found = doubtful(report, known.open, holding.versions)
            if found:
                self.doubted(found)

    def has_heard(self, server: Incarnation) -> bool:
        """Return True if this start of a server has sent a heartbeat within SILENT_MS."""
        return self.roster.is_recent(server, self._now_ms())

    def contacts(self) -> Contacts:
        """Return the servers that send heartbeats to this master, with the age of the last one (HB-12)."""
        now_ms = self._now_ms()
        found = [
            Contact(one.incarnation, one.record, now_ms - one.received_ms, one.beats, one.figures)
            for one in self.roster.members()
        ]
        return Contacts(self._master.uuid, found)

    def problems(self) -> list[str]:
        """Return the servers whose heartbeats do not reach this active master although their sessions live."""
        active_master = self._master.active_master
        if active_master is None:
            return []
        began_ms = max(self._since_ms, active_master.began_ms)
        servers = [one.incarnation for one in active_master.registry.servers]
        known = [(one, active_master.server_events.arrivals_ms.get(one, began_ms)) for one in servers]
        silent = self.roster.silent(known, self._now_ms())
        lines = [
            f"server {server.uuid} is registered, but the active master has received no heartbeat for"
            f" {ms / 1000:.0f} s; check the network between them"
            for server, ms in silent[:SHOWN_MAX]
        ]
        lines += [f"and {len(silent) - SHOWN_MAX} more silent servers"] if len(silent) > SHOWN_MAX else []
        return [*self._alarms(), *lines]

    def _alarms(self) -> list[str]:
        """Return the servers' notes for the operator."""
        return [
            f"server {one.incarnation.uuid}: {text}" for one in self.roster.members() for text in one.figures.alarms
        ]

    def silent_count(self) -> int:
        """Return the number of servers in the roster without a recent heartbeat."""
        now_ms = self._now_ms()
        return sum(1 for one in self.roster.members() if now_ms - one.received_ms > SILENT_MS)

    def _epoch_seen(self) -> int:
        """Return the epoch of the active master that this standby has seen; -1 without one."""
        election = self._master.election
        return -1 if election is None or election.active is None else election.active.epoch

    def _hint(self) -> str:
        election = self._master.election
        if election is None or election.active is None or election.active.uuid == self._master.uuid:
            return ""
        return f"{election.active.host}:{election.active.port}"
