"""Carries the policy's decisions out for the keeper, tablet by tablet. Pure.

A decision is sent to the tablet's leader, and repeated until a report shows the result: one request at a time for each
tablet, with pauses that double (TC-16). A new master needs no state of its predecessor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from regions.cluster.limits import AssignerConfig
from regions.messages.heartbeat import HAS_NO_FILES, TAKES_PART, ReplicaState, TabletReport
from regions.records.acts.resharding import epoch_of_seal
from regions.records.intents import TabletIntents
from regions.records.members import Member, MemberRole
from regions.records.model import (
    Incarnation,
    RegionState,
    ServerRecord,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.resharding.names import left_of_merged, merged_id, split_ids
from regions.replication.effects import BeginTablet, ChangeMembers, HandOver, KeeperCauses, Unseal
from regions.replication.policy.next_change import Decision, Do, MemberChange, Nothing, Wait, next_change
from regions.replication.policy.requests import Places
from regions.replication.policy.situation import ClusterFacts, Newcomer, TabletFacts, outage_of
from regions.replication.recovery import ServerFate, work_fate
from regions.replication.reports import ReplicaView
from regions.replication.tablet import MemberWork, Tablet
from regions.transitions.states import Cause

#: Pause before a change is sent again. It doubles up to RESEND_MAX_MS.
RESEND_MS: Final = 1_000
RESEND_MAX_MS: Final = 5_000
#: States of a newcomer's transition.
_JOINS: Final = (RegionState.OFFLINE, RegionState.OPENING)

PolicyEffect = BeginTablet | ChangeMembers | HandOver | Unseal


class Ask:
    """A change that was sent to a leader until a report shows its result."""

    __slots__ = ("asks", "do", "is_in_flight", "next_ms", "number", "origin")

    def __init__(self, do: Do, origin: WorkOrigin) -> None:
        self.do = do
        self.origin = origin
        #: The latest message, and whether its answer is awaited.
        self.number = 0
        self.is_in_flight = False
        self.asks = 0
        self.next_ms = 0


class MemberPolicy:
    """See the module docstring. `decisions` has the reason why a tablet is not in its wanted state."""

    def __init__(
        self,
        epoch: int,
        config: AssignerConfig,
        servers: Mapping[str, ServerRecord],
        loads: Mapping[str, int],
        orphans: Mapping[tuple[str, str], ReplicaView],
        emit: Callable[[PolicyEffect], None],
        causes: KeeperCauses,
    ) -> None:
        """`servers` are the registered ones, `loads` their members; `orphans` are replicas that the store does not
        know, by server and key."""
        self._epoch = epoch
        self._config = config
        self._servers = servers
        self._loads = loads
        self._orphans = orphans
        self._emit = emit
        self._causes = causes
        #: Servers that must be emptied, and servers that get no new members.
        self.retiring: frozenset[str] = frozenset()
        self.closed: frozenset[str] = frozenset()
        #: Whether a server has reported all its replicas to this master.
        self.has_reported: Callable[[Incarnation], bool] = lambda _: False
        #: Whether all servers have done so.
        self.have_all_reported: Callable[[], bool] = lambda: True
        #: All tablets, by region id.
        self.tablets: Mapping[str, Tablet] = {}
        #: Sealed tablets that are not unsealed, because the store is older than their split or merge: region id -> why.
        self.sealed_off: dict[str, str] = {}
        self.intents: dict[str, TabletIntents] = {}
        #: Tablets that are being split or merged: their members stay as they are, and their replicas when they are
        #: replaced.
        self.held: set[str] = set()
        #: The latest decision about each tablet that is not as wanted.
        self.decisions: dict[str, Decision] = {}
        self._asks: dict[str, Ask] = {}
        self._by_number: dict[int, str] = {}
        self._next_number = 1
        #: Newcomers under way: their servers by tablet; their number by server, for all tablets and for large ones.
        self._joining: dict[str, tuple[bool, tuple[str, ...]]] = {}
        self._incoming: Counter[str] = Counter()
        self._large_incoming: Counter[str] = Counter()
        self._cluster: ClusterFacts | None = None

    @property
    def is_on(self) -> bool:
        """True if this master changes members."""
        return self._config.changes_members

    @property
    def places(self) -> Places:
        """The servers, for the check of a request."""
        return Places(self._servers, self.closed, self._loads)

    def new_round(self) -> None:
        """Look at the servers anew at the next decision."""
        self._cluster = None

    def forget(self, region_id: str) -> None:
        """Forget a tablet that has gone."""
        self._rest(region_id)
        self.intents.pop(region_id, None)
        self.sealed_off.pop(region_id, None)

    def is_joining(self, tablet: Tablet, work: MemberWork) -> bool:
        """Return True for a newcomer, in no configuration yet, that is not given up.

        Only a decision based on a leader's report gives a newcomer up, because a new master has less information than
        its predecessor.
        """
        transition = work.transition
        if transition is None or transition.joins is None:
            return False
        found = self.decisions.get(tablet.region_id)
        if tablet.view.leader_now() is None or (isinstance(found, Wait) and found.is_blind):
            return True
        return isinstance(found, Do) and found.change is MemberChange.ADD and found.member.number == work.number

    def is_new(self, tablet: Tablet, work: MemberWork) -> bool:
        """Return True for a newcomer whose replica may not exist yet, because its leader is having it copied.

        A voter's copy is complete. If its server restarts before the transition has ended, an order to open ends the
        transition.
        """
        transition = work.transition
        if transition is None or transition.joins is None:
            return False
        member = tablet.record.member(work.number)
        if member is None or member.role is MemberRole.PRE_VOTER:
            return True
        view = tablet.view.replicas.get(member.uuid)
        is_there = view is not None and view.report.number == member.number and view.report.state in TAKES_PART
        return member.role is MemberRole.LEARNER and not is_there

    @property
    def outage(self) -> str:
        """Why members on dead servers are not replaced now, "" if they are."""
        return outage_of(self._loads, self._servers, self.retiring)

    def is_at_rest(self, tablet: Tablet) -> bool:
        """Return True if the tablet is as wanted, all its voters are healthy, and nothing is under way."""
        region_id = tablet.region_id
        kept, ask = self.intents.get(region_id), self._asks.get(region_id)
        is_busy = tablet.is_writing or bool(tablet.work) or (ask is not None and ask.is_in_flight)
        is_wanted = tablet.record.state is TabletState.RUNNING and tablet.wants_open
        has_moves = kept is not None and bool(kept.moves)
        is_free = not has_moves and region_id not in self.decisions and region_id not in self.held
        return is_wanted and is_free and not is_busy and not self._canceled_seal(tablet)

    def transfers_under_way(self, now_ms: int) -> int:
        """Return how many leaders have been asked to hand over of late."""
        return sum(
            one.do.change is MemberChange.TRANSFER and (one.is_in_flight or now_ms < one.next_ms)
            for one in self._asks.values()
        )

    def hand_over(self, tablet: Tablet, heir: Member, why: str, now_ms: int) -> None:
        """Ask the leader of a tablet that is at rest to hand over to another voter."""
        leader = tablet.view.leader_now()
        if leader is not None:
            self._carry_out(tablet, Do(MemberChange.TRANSFER, heir, leader.config_id, why), now_ms)

    def held_up(self) -> str:
        """Return why dead members are not replaced until an operator decides, with the number of tablets; "" if they
        are, or if there are none."""
        why = self.outage
        count = sum(isinstance(one, Wait) and one.why == why for one in self.decisions.values()) if why else 0
        return f"{count} tablet{'s' if count > 1 else ''} with dead members: {why}" if count else ""

    # --- decisions --------------------------------------------------------------------------------------------------

    def settle(self, tablet: Tablet, now_ms: int) -> bool:
        """Decide about a tablet, and carry the decision out. Return True if it is not as wanted."""
        if not self._config.changes_members:
            return False
        if tablet.region_id in self.held:
            self._rest(tablet.region_id)
            return False
        facts = self._facts(tablet)
        found = next_change(facts, self._facts_of_cluster(), now_ms)
        self._count(tablet.region_id, facts, found)
        if isinstance(found, Nothing):
            self._rest(tablet.region_id)
            return False
        self.decisions[tablet.region_id] = found
        if isinstance(found, Do):
            self._carry_out(tablet, found, now_ms)
        # Without a leader there is nothing to examine; a new leader reports by itself.
        return facts.leader is not None

    def _rest(self, region_id: str) -> None:
        self.decisions.pop(region_id, None)
        ask = self._asks.pop(region_id, None)
        if ask is not None:
            self._by_number.pop(ask.number, None)
        self._set_joining(region_id, is_large=False, uuids=())

    def _count(self, region_id: str, facts: TabletFacts, found: Decision) -> None:
        now = [one.uuid for one in facts.newcomers]
        if isinstance(found, Do) and found.change is MemberChange.NUMBER:
            now.append(found.member.uuid)
        self._set_joining(region_id, is_large=facts.is_large, uuids=tuple(now))

    def _set_joining(self, region_id: str, *, is_large: bool, uuids: tuple[str, ...]) -> None:
        """Set the servers of a tablet's newcomers. A tablet is counted as large as it was at the last change."""
        was_large, former = self._joining.pop(region_id, (False, ()))
        if uuids:
            self._joining[region_id] = (was_large if uuids == former else is_large, uuids)
        if uuids == former:
            return
        self._incoming.subtract(former)
        self._incoming.update(uuids)
        if was_large:
            self._large_incoming.subtract(former)
        if is_large:
            self._large_incoming.update(uuids)

    def _facts_of_cluster(self) -> ClusterFacts:
        if self._cluster is None:
            outage = self.outage
            self._cluster = ClusterFacts(
                self._servers, self.retiring, self.closed, self._loads, self._incoming,
                self._large_incoming, outage, self._config.add_timeout_ms,
            )  # fmt: skip
        return self._cluster

    def _facts(self, tablet: Tablet) -> TabletFacts:
        ask = self._asks.get(tablet.region_id)
        is_asking = tablet.is_writing or (ask is not None and ask.is_in_flight)
        newcomers: list[Newcomer] = []
        being_made: list[int] = []
        parked: list[int] = []
        for work in tablet.work.values():
            is_asking = is_asking or work.is_unread or work.is_writing
            transition = work.transition
            if transition is None or transition.state not in _JOINS:
                continue
            if transition.joins is not None:
                is_fresh = transition.state is RegionState.OFFLINE and not transition.begun
                found = Newcomer(work.number, tablet.home_of(work), transition.joins, work.seen_ms, is_fresh)
                newcomers.append(found)
            elif transition.parked:
                parked.append(work.number)
            elif work_fate(tablet, work, self._servers) is ServerFate.ALIVE:
                being_made.append(work.number)
        lost = frozenset(self._lost(tablet))
        return TabletFacts(
            tablet.record, tablet.table.record, tablet.record.state is TabletState.RUNNING and tablet.wants_open,
            tablet.view.leader_now(), tablet.size_bytes, tuple(newcomers), frozenset(being_made),
            lost, lost.intersection(parked), is_asking, self.intents.get(tablet.region_id), self._absent(tablet),
            self._canceled_seal(tablet), self._objection_to_unseal(tablet),
        )  # fmt: skip

    def _canceled_seal(self, tablet: Tablet) -> str:
        """Return the seal that the leader reports, "" without one. It belongs to no split or merge under way, because
        the members of such a tablet are held."""
        leader = tablet.view.leader_now()
        return "" if leader is None else tablet.view.replicas[leader.server.uuid].report.sealed

    def _objection_to_unseal(self, tablet: Tablet) -> str:
        """Return why a seal must not be removed, "" without a reason: its split or merge may not have been canceled.

        Daughters that the store does not know may have been written since the seal. A later master's work is unknown to
        this one.
        """
        seal, region_id = self._canceled_seal(tablet), tablet.region_id
        # A parent that its daughters have replaced stays sealed. The daughters may be unknown while a new master loads
        # them.
        is_parent = tablet.record.state is TabletState.REPLACED
        why = "" if not seal or is_parent else self._why_older(tablet, seal)
        if why != self.sealed_off.get(region_id, ""):
            tablet.view.revision += 1  # its health is another one
        self.sealed_off.pop(region_id, None)
        if why:
            self.sealed_off[region_id] = why
        if seal and not why and not self.have_all_reported():
            return "it is sealed for a split or merge, and a server has not reported yet whether it has daughters"
        return why

    def _why_older(self, tablet: Tablet, seal: str) -> str:
        for uuid, report in self._unknown_daughters(tablet.region_id, tablet):
            if report.state not in HAS_NO_FILES:
                return (
                    f"it is sealed, and server {uuid} has replica {report.key} of a daughter that the store does not"
                    " know: the store was restored from a copy that is older than the split or merge. Rows may have"
                    " been written to the daughters, so the tablet stays sealed (docs/splits.md, an older store)"
                )
        if epoch_of_seal(seal) > self._epoch:
            return (
                f"it is sealed for split or merge {seal} of a later master than this one of epoch {self._epoch}:"
                " another master is active, or the store was restored from an older copy (docs/splits.md, an older"
                " store)"
            )
        return ""

    def _unknown_daughters(self, region_id: str, right: Tablet | None = None) -> Iterator[tuple[str, TabletReport]]:
        """Yield the replicas of daughters of a tablet that the store does not know, with their servers.

        The daughter of a merge has the name of the left parent; `right` yields that of a right parent, too.
        """
        daughters = (*split_ids(region_id), merged_id(region_id))
        for (uuid, _), view in self._orphans.items():
            left = left_of_merged(view.report.region_id) if right is not None else ""
            is_of_right = right is not None and left and self._may_be_left(left, view.report.table_id, right)
            if view.report.region_id in daughters or is_of_right:
                yield uuid, view.report

    def _may_be_left(self, region_id: str, table_id: str, right: Tablet) -> bool:
        """Return True if a region is the left neighbor of a tablet, or may have been: the store does not know it."""
        if table_id != right.record.table_id:
            return False
        known = self.tablets.get(region_id)
        if known is None:
            return region_id < right.region_id
        return known.record.end_key == right.record.start_key != ""

    def objection_to_daughters(self, region_id: str) -> str:
        """Return why a tablet cannot have daughters, "" if it can. A server that has, or had, a daughter of the same
        name cannot make another replica of that name."""
        for uuid, report in self._unknown_daughters(region_id):
            return (
                f"server {uuid} has replica {report.key} ({report.state.value}), of a daughter of tablet {region_id}"
                " that the store does not know (docs/splits.md, an older store)"
            )
        return ""

    def _lost(self, tablet: Tablet) -> list[int]:
        """Return the numbers of members whose live servers do not have the replica any more."""
        found = []
        for member in tablet.record.members:
            server = self._servers.get(member.uuid)
            if server is None:
                continue
            view = tablet.view.replicas.get(member.uuid)
            if view is None:
                is_lost = self.has_reported(server.incarnation)
            else:
                is_lost = view.report.number > member.number or view.report.state in HAS_NO_FILES
            if is_lost:
                found.append(member.number)
        return found

    def _absent(self, tablet: Tablet) -> frozenset[int]:
        """Return the numbers of newcomers that their live servers do not have, not even as a copy, or have lost.

        A copy that was cut short is a tombstone with its number, and begins again.
        """
        found = []
        for member in tablet.record.members:
            server = self._servers.get(member.uuid)
            if member.role is not MemberRole.PRE_VOTER or server is None:
                continue
            view = tablet.view.replicas.get(member.uuid)
            if view is None:
                is_absent = self.has_reported(server.incarnation)
            else:
                is_absent = view.report.number != member.number or view.report.state is ReplicaState.LOST
            if is_absent:
                found.append(member.number)
        return frozenset(found)

    # --- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, tablet: Tablet, do: Do, now_ms: int) -> None:
        if do.change is MemberChange.NUMBER:
            self._give_number(tablet, do, now_ms)
            return
        ask = self._asks.get(tablet.region_id)
        if ask is None or ask.do[:3] != do[:3]:
            if ask is not None:
                self._by_number.pop(ask.number, None)
            ask = self._asks[tablet.region_id] = Ask(do, self._causes.of_policy(tablet, do.why))
        if ask.is_in_flight or now_ms < ask.next_ms:
            return
        leader = tablet.view.leader_now()
        assert leader is not None, tablet.region_id
        server = self._servers.get(leader.server.uuid)
        if server is None or server.incarnation != leader.server:
            return  # another report follows
        self._send(tablet, ask, server, now_ms)

    def _send(self, tablet: Tablet, ask: Ask, server: ServerRecord, now_ms: int) -> None:
        self._by_number.pop(ask.number, None)
        ask.number, self._next_number = self._next_number, self._next_number + 1
        self._by_number[ask.number] = tablet.region_id
        ask.is_in_flight = True
        ask.next_ms = now_ms + min(RESEND_MS << min(ask.asks, 10), RESEND_MAX_MS)
        ask.asks += 1
        do = ask.do
        if do.change is MemberChange.UNSEAL:
            seal = self._canceled_seal(tablet)
            self._emit(Unseal(ask.number, server, tablet.region_id, seal, do.why, origin=ask.origin))
            return
        if do.change is MemberChange.TRANSFER:
            self._emit(HandOver(ask.number, server, tablet.region_id, do.member.number, do.why, origin=ask.origin))
            return
        home = self._servers.get(do.member.uuid)
        host, port = ("", 0) if home is None else (home.host, home.peer_port)
        self._emit(
            ChangeMembers(
                ask.number, server, tablet.region_id, do.expect, do.change is MemberChange.ADD, do.member, host, port,
                do.why, origin=ask.origin,
            )
        )  # fmt: skip

    def answered(self, number: int) -> None:
        """An answer has come, or none will: the next decision may be sent, when its pause is over."""
        ask = self._asks.get(self._by_number.pop(number, ""))
        if ask is not None and ask.number == number:
            ask.is_in_flight = False

    def _give_number(self, tablet: Tablet, do: Do, now_ms: int) -> None:
        """Raise the next number of the record, and create the newcomer's transition, in one multi."""
        member, server = do.member, self._servers[do.member.uuid]
        record = msgspec.structs.replace(tablet.record, next_number=member.number + 1)
        transition = TransitionRecord(
            record.region_id, record.table_id, member.number, RegionState.OFFLINE, destination=server.incarnation,
            epoch=self._epoch, reason=Cause.ASSIGN.value, since_ms=now_ms,
            deadline_ms=now_ms + self._config.add_timeout_ms, joins=member.role,
        )  # fmt: skip
        tablet.is_writing = True
        effect = BeginTablet(
            record, tablet.version, (record.table_id, tablet.table.version), [transition],
            origin=self._causes.of_policy(tablet, do.why),
        )  # fmt: skip
        self._emit(self._causes.with_ids(effect))
