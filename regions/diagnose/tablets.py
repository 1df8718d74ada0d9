"""The operators' view of tablets: health and since when, members, and faults. Pure.

`TabletWatch` follows the keeper for one tenure of an active master. `rk why` and `rk fsck` fill a keeper from the store
and from the servers' own answers when no master is active, and use the same functions.

`regions/replication/health.py` judges a tablet from the reports. This module adds three words to the five there: CLOSED
(the tablet must not be open), CREATING (the tablet waits for its first leader), and UNKNOWN. A tablet is UNKNOWN, not
UNAVAILABLE, while a new master waits for reports and a live server may still report that it leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from regions.messages.heartbeat import Measure, MemberHealth, MemberReport, ReplicaState
from regions.messages.tablets import OrphanReplica, TabletHealth, TabletMember, TabletStatus
from regions.records.members import ConfigId, Member
from regions.records.model import Incarnation, TableIntent, TableState, TabletState
from regions.replication.config import majority, voters
from regions.replication.health import Judgment, judge
from regions.replication.keeper import Keeper
from regions.replication.policy.next_change import words_of
from regions.replication.reports import ReplicaView
from regions.replication.tablet import Tablet

#: Healths that are judged again at every check, because they depend on more than the tablet's own state.
_UNSETTLED: Final = frozenset({TabletHealth.UNKNOWN, TabletHealth.UNAVAILABLE})
#: Healths that `rk status` names as problems, the most urgent first.
PROBLEMS: Final = (TabletHealth.UNAVAILABLE, TabletHealth.CONSENSUS_MISMATCH, TabletHealth.UNDER_REPLICATED)
#: Tablets that are judged in one tick of the active master: a millisecond, or some tens if all of them have changed.
LOOKS_MAX: Final = 500
#: Tablets that are named as examples of a problem.
_NAMED_MAX: Final = 3

_NO_ROWS: Final = Measure(0, 0)

#: Returns True if this start of a server has reported all its replicas.
HasReported = Callable[[Incarnation], bool]


class HealthSince(NamedTuple):
    """A tablet's health, and since when it has been so by the watcher's clock."""

    judgment: Judgment
    since_ms: int
    #: True if the tablet already had this health at the watcher's first check.
    at_least: bool


class _Seen(NamedTuple):
    """A judgment and the versions of its inputs."""

    #: Versions of the servers' reports, of the tablet's record, and of its table's record.
    revision: int
    version: int
    table_version: int
    is_settled: bool
    standing: HealthSince
    table_id: str
    members: tuple[Member, ...]
    #: Uuid of the leader's server, "" without a leader.
    leader: str
    #: Uuids of the servers whose replicas take part.
    open: tuple[str, ...]
    #: Sizes of these replicas, in the same order.
    sizes: tuple[Measure, ...]


class TabletWatch:
    """The health of every tablet, with counts. Tablets that have not changed are skipped.

    `has_reported` returns True if a server has sent its full report to this master.
    """

    def __init__(self, keeper: Keeper, has_reported: HasReported, now_ms: int) -> None:
        self.keeper = keeper
        self.has_reported = has_reported
        self._began_ms = now_ms
        self._seen: dict[str, _Seen] = {}
        #: Tablets by health, of all tables and by table id.
        self.counts: Counter[TabletHealth] = Counter()
        self.by_table: dict[str, Counter[TabletHealth]] = {}
        #: Members, leaders, and replicas that take part, by the uuid of their server.
        self.members: Counter[str] = Counter()
        self.leaders: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        #: Bytes and rows of the replicas that take part, as their servers report them.
        self.bytes: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        #: Tablets that `look_on` has yet to judge in this round.
        self._rest: list[str] = []

    def look_on(self, now_ms: int) -> None:
        """Judge the next LOOKS_MAX tablets that may have changed, in turn. Called at each tick."""
        if not self._rest:
            self._drop_gone()
            self._rest = list(self.keeper.tablets)
        part, self._rest = self._rest[-LOOKS_MAX:], self._rest[:-LOOKS_MAX]
        for region_id in part:
            tablet = self.keeper.tablets.get(region_id)
            if tablet is not None:
                self._look_at(region_id, tablet, now_ms)

    def look(self, now_ms: int) -> None:
        """Judge all tablets that may have changed."""
        for region_id, tablet in self.keeper.tablets.items():
            self._look_at(region_id, tablet, now_ms)
        self._drop_gone()

    def _look_at(self, region_id: str, tablet: Tablet, now_ms: int) -> None:
        seen = self._seen.get(region_id)
        if (
            seen is not None
            and seen.is_settled
            and seen.revision == tablet.view.revision
            and seen.version == tablet.version
            and seen.table_version == tablet.table.version
        ):
            return
        if is_listed(tablet):
            self._judge(tablet, seen, now_ms)
        elif seen is not None:
            self._count(self._seen.pop(region_id), -1)

    def _drop_gone(self) -> None:
        """Forget the tablets that the keeper has forgotten."""
        for region_id in [one for one in self._seen if one not in self.keeper.tablets]:
            self._count(self._seen.pop(region_id), -1)

    @property
    def listed(self) -> Collection[str]:
        """Return the ids of the tablets of the last check."""
        return self._seen.keys()

    def standing(self, region_id: str) -> HealthSince:
        """Return the result of the last check. Raise KeyError for a tablet that was not part of it."""
        standing, tablet = self._seen[region_id].standing, self.keeper.tablets.get(region_id)
        if standing.judgment.health is TabletHealth.CREATING and tablet is not None:
            reason = _creating(tablet, self.keeper)
            return standing._replace(judgment=standing.judgment._replace(reason=reason))
        decision = self.keeper.policy.decisions.get(region_id)
        is_said = decision is None or decision.why in standing.judgment.reason
        if decision is not None and not is_said and standing.judgment.health is not TabletHealth.HEALTHY:
            reason = f"{standing.judgment.reason}; {words_of(decision)}"
            return standing._replace(judgment=standing.judgment._replace(reason=reason))
        return standing

    def leaders_on(self, server: Incarnation) -> int | None:
        """Return how many tablets a server leads; None if the server has not sent its full report to this master
        yet."""
        return self.leaders[server.uuid] if self.has_reported(server) else None

    def _judge(self, tablet: Tablet, seen: _Seen | None, now_ms: int) -> None:
        # The reason why a tablet is CREATING changes all the time, so `standing` computes it for each caller.
        judgment = _CREATING if _is_creating(tablet) else diagnose(tablet, self.keeper, self.has_reported)
        if seen is None:
            standing = HealthSince(judgment, now_ms, now_ms <= self._began_ms or _is_old(tablet))
        elif seen.standing.judgment.health is judgment.health:
            standing = seen.standing._replace(judgment=judgment)
        else:
            # A fault in the first reports to a new master existed before.
            was_unknown = seen.standing.judgment.health is TabletHealth.UNKNOWN
            since_ms = seen.standing.since_ms if was_unknown else now_ms
            standing = HealthSince(judgment, since_ms, was_unknown and seen.standing.at_least)
        leader = tablet.view.leader_now()
        found = _Seen(
            tablet.view.revision,
            tablet.version,
            tablet.table.version,
            judgment.health not in _UNSETTLED,
            standing,
            tablet.record.table_id,
            tablet.record.members,
            "" if leader is None else leader.server.uuid,
            tuple(view.server.uuid for view in tablet.view.takes_part),
            tuple(view.report.measure or _NO_ROWS for view in tablet.view.takes_part),
        )
        if seen is not None:
            self._count(seen, -1)
        self._seen[tablet.region_id] = found
        self._count(found, 1)

    def _count(self, seen: _Seen, sign: int) -> None:
        health = seen.standing.judgment.health
        of_table = self.by_table.setdefault(seen.table_id, Counter())
        self.counts[health] += sign
        of_table[health] += sign
        if not of_table.total():
            del self.by_table[seen.table_id]
        for member in seen.members:
            self.members[member.uuid] += sign
        for uuid, size in zip(seen.open, seen.sizes, strict=True):
            self.open[uuid] += sign
            self.bytes[uuid] += sign * size.size_bytes
            self.rows[uuid] += sign * size.rows
        if seen.leader:
            self.leaders[seen.leader] += sign


def is_listed(tablet: Tablet) -> bool:
    """Return True unless the tablet's table is deleted, or another tablet has taken its place."""
    return tablet.table.record.state is not TableState.REMOVED and tablet.record.state is not TabletState.REPLACED


def _is_old(tablet: Tablet) -> bool:
    """Return True for a tablet that existed before this master first read it."""
    return tablet.record.state not in (TabletState.PREPARING, TabletState.CREATING)


def by_health(counts: Counter[TabletHealth]) -> dict[str, int]:
    """Return the counts in the order of the words, without zeros."""
    return {health.value: counts[health] for health in TabletHealth if counts[health]}


# --- health -----------------------------------------------------------------------------------------------------------


def diagnose(tablet: Tablet, keeper: Keeper, has_reported: HasReported) -> Judgment:
    """Return the health of a tablet, and its fault in one sentence."""
    closed = _closed(tablet)
    if closed:
        return Judgment(TabletHealth.CLOSED, closed)
    if _is_creating(tablet):
        return _CREATING._replace(reason=_creating(tablet, keeper))
    if tablet.view.leader_now() is None:
        return _without_leader(tablet, keeper, has_reported)
    if (why := keeper.policy.sealed_off.get(tablet.region_id)) is not None:
        return Judgment(TabletHealth.UNAVAILABLE, why)
    found = judge(tablet.view, tablet.table.record.replication)
    if found.health in (TabletHealth.UNAVAILABLE, TabletHealth.UNDER_REPLICATED):
        found = found._replace(reason="; ".join([found.reason, *_missing(tablet, keeper)]))
    return found


def _closed(tablet: Tablet) -> str:
    """Return why the tablet is not to be open, "" if it is."""
    record, table = tablet.record, tablet.table.record
    if table.state is TableState.REMOVED:
        return f"table {table.name} is deleted"
    if record.state is TabletState.REPLACED:
        was_led = record.leader_term or record.config_index
        if was_led:
            return "it was split or merged"
        return "it could not be created, and another tablet has taken its place"
    if table.intent is TableIntent.DISABLED:
        return f"table {table.name} is disabled"
    if record.unassigned:
        return "an operator has unassigned it"
    return ""


#: No reason here: `_creating` returns it.
_CREATING: Final = Judgment(TabletHealth.CREATING, "")


def _is_creating(tablet: Tablet) -> bool:
    """Return True if the first leader of a tablet that is to be open is awaited."""
    if tablet.record.state not in (TabletState.PREPARING, TabletState.CREATING) or _closed(tablet):
        return False
    return tablet.view.leader_now() is None


def _creating(tablet: Tablet, keeper: Keeper) -> str:
    record = tablet.record
    if record.state is TabletState.PREPARING:
        away = [one.uuid for one in record.members if one.uuid not in keeper.servers]
        if away:
            return f"its first members are not made yet: {_servers(away)} {_is(away)} not registered"
        if tablet.plan is not None and tablet.plan.until_ms:
            return "its first members are not made yet: a bulk plan of their servers is awaited"
        wanted = tablet.table.record.replication
        return f"its first members are not made yet: {wanted} servers that take tablets are needed"
    making = [
        f"{work.number} on {tablet.home_of(work)} is {work.transition.state.value}"
        + (f" ({work.transition.last_error})" if work.transition.last_error else "")
        for work in sorted(tablet.work.values(), key=lambda one: one.number)
        if work.transition is not None
    ]
    return f"its first members are being made: {', '.join(making)}" if making else "its first leader has not reported"


def _without_leader(tablet: Tablet, keeper: Keeper, has_reported: HasReported) -> Judgment:
    members = known_members(tablet)[0]
    gone = [one.uuid for one in voters(members) if one.uuid not in keeper.servers]
    there = [keeper.servers[one.uuid].incarnation for one in members if one.uuid in keeper.servers]
    silent = [one.uuid for one in there if not has_reported(one)]
    count = len(voters(members))
    if gone and count - len(gone) < majority(count):
        reason = f"no leader: {len(gone)} of {count} voters are on servers that are not registered, {_servers(gone)}"
        return Judgment(TabletHealth.UNAVAILABLE, reason)
    if silent:
        which = f"{_servers(silent)} {_has(silent)} not reported to this master yet"
        return Judgment(TabletHealth.UNKNOWN, f"no leader is known, and {which}")
    stopped = [
        f"{view.report.number} on {uuid} is {view.report.state.value}"
        + (f" ({view.report.reason})" if view.report.reason else "")
        for uuid, view in sorted(tablet.view.replicas.items(), key=lambda one: one[1].report.number)
        if view not in tablet.view.takes_part
    ]
    absent = [f"{one.number} on {one.uuid} is missing" for one in members if _lacks(tablet, keeper, one)]
    named = [*stopped, *absent, *([f"{_servers(gone)} {_is(gone)} not registered"] if gone else [])]
    reason = "no replica reports that it leads"
    return Judgment(TabletHealth.UNAVAILABLE, f"{reason}: {'; '.join(named)}" if named else reason)


def _missing(tablet: Tablet, keeper: Keeper) -> list[str]:
    """Return a phrase for each voter that its leader does not report as healthy, and for missing voters."""
    leader = tablet.view.leader_now()
    assert leader is not None, tablet.region_id
    judged = {one.number: one for one in leader.report.health}
    found = []
    for member in voters(leader.report.members):
        said = judged.get(member.number)
        if member.number == leader.number or (said is not None and said.health is MemberHealth.HEALTHY):
            continue
        word = "not judged by its leader yet" if said is None else said.health.value
        details = [one for one in (_reason_of(said), _registration(member, keeper)) if one]
        found.append(f"{member.number} on {member.uuid} is {word}" + (f" ({', '.join(details)})" if details else ""))
    count, wanted = len(voters(leader.report.members)), tablet.table.record.replication
    if count < wanted:
        found.append(f"its configuration has {count} voters, {wanted} are wanted")
    return found


def _reason_of(said: MemberReport | None) -> str:
    return "" if said is None else said.reason


def _registration(member: Member, keeper: Keeper) -> str:
    return "" if member.uuid in keeper.servers else "its server is not registered"


def _lacks(tablet: Tablet, keeper: Keeper, member: Member) -> bool:
    """Return True if a member's server is alive and does not report the replica."""
    view = tablet.view.replicas.get(member.uuid)
    return member.uuid in keeper.servers and (view is None or view.report.number != member.number)


def _servers(uuids: list[str]) -> str:
    return f"{'server' if len(uuids) == 1 else 'servers'} {' and '.join(uuids)}"


def _is(uuids: list[str]) -> str:
    return "is" if len(uuids) == 1 else "are"


def _has(uuids: list[str]) -> str:
    return "has" if len(uuids) == 1 else "have"


# --- descriptions -----------------------------------------------------------------------------------------------------


def known_members(tablet: Tablet) -> tuple[tuple[Member, ...], ConfigId | None]:
    """Return the members of the latest known configuration. Return its id, too, if a leader has reported it.

    The last report of a former leader still shows a committed configuration, unless the tablet was split since.
    """
    leader = tablet.view.leader
    if leader is not None and not tablet.record.is_replaced and leader.config_id >= tablet.record.config_id:
        return leader.report.members, leader.config_id
    return tablet.record.members, None


def describe(tablet: Tablet, keeper: Keeper, standing: HealthSince, now_ms: int) -> TabletStatus:
    """Return the status of a tablet for operators."""
    record = tablet.record
    leader = tablet.view.leader_now()
    kept = keeper.policy.intents.get(record.region_id)
    decision = keeper.policy.decisions.get(record.region_id)
    return TabletStatus(
        record.region_id,
        record.table_id,
        tablet.table.record.name,
        standing.judgment.health,
        standing.judgment.reason,
        max(0, now_ms - standing.since_ms),
        standing.at_least,
        record.state,
        tablet.table.record.replication,
        _members(tablet, keeper),
        None if leader is None else leader.number,
        None if leader is None else leader.term,
        known_members(tablet)[1],
        record.config_id,
        record.leader,
        record.leader_term,
        record.start_key,
        record.end_key,
        record.hash_buckets,
        () if kept is None else kept.moves,
        () if kept is None else kept.learners,
        "" if decision is None else words_of(decision),
    )


def _members(tablet: Tablet, keeper: Keeper) -> list[TabletMember]:
    """Return the members of the latest known configuration, then the replicas that are not members, by number."""
    members, _ = known_members(tablet)
    leader = tablet.view.leader_now()
    judged = {} if leader is None else {one.number: one for one in leader.report.health}
    if leader is not None:
        judged[leader.number] = MemberReport(leader.number, MemberHealth.HEALTHY)
    views = {(uuid, view.report.number): view for uuid, view in tablet.view.replicas.items()}
    found = [
        _member(tablet, keeper, one, views.pop((one.uuid, one.number), None), judged.get(one.number)) for one in members
    ]
    for (uuid, number), view in sorted(views.items(), key=lambda one: one[0][1]):
        found.append(_member(tablet, keeper, Member(number, uuid), view, None, is_member=False))
    return found


def _member(
    tablet: Tablet,
    keeper: Keeper,
    member: Member,
    view: ReplicaView | None,
    said: MemberReport | None,
    *,
    is_member: bool = True,
) -> TabletMember:
    report = None if view is None else view.report
    work = tablet.work.get(member.number)
    transition = None if work is None else work.transition
    return TabletMember(
        member.number,
        member.uuid,
        member.uuid in keeper.servers,
        role=member.role if is_member else None,
        state=None if report is None else report.state,
        raft_role=None if report is None else report.role,
        term=None if report is None else report.term,
        config_id=None if report is None else report.config_id,
        applied_index=None if report is None else report.applied_index,
        size_bytes=None if report is None else report.size_bytes,
        health=None if said is None else said.health,
        behind=None if said is None else said.behind,
        reason=(report.reason if report is not None else "") or _reason_of(said),
        transition="" if transition is None else transition.state.value,
        is_parked=transition is not None and transition.parked,
        last_error="" if transition is None else transition.last_error,
    )


def orphans(keeper: Keeper, server: str = "") -> list[OrphanReplica]:
    """Return the replicas that the store does not know, of one server or of all."""
    found = [OrphanReplica(uuid, view.report) for (uuid, _), view in keeper.orphans.items() if server in ("", uuid)]
    return sorted(found, key=lambda one: (one.server, one.report.key))


def problem_lines(watch: TabletWatch, now_ms: int) -> list[str]:
    """Return a line for each kind of unhealthy tablets, with examples."""
    watch.look(now_ms)
    return [_problem(watch, health, now_ms) for health in PROBLEMS if watch.counts[health]]


def _problem(watch: TabletWatch, health: TabletHealth, now_ms: int) -> str:
    count = watch.counts[health]
    named: list[tuple[str, HealthSince]] = []
    for region_id in watch.listed:
        standing = watch.standing(region_id)
        if standing.judgment.health is health:
            named.append((region_id, standing))
            if len(named) == _NAMED_MAX:
                break
    first, standing = named[0]
    age = f"for {'at least ' if standing.at_least else ''}{max(0, now_ms - standing.since_ms) // 1000} s"
    if count == 1:
        return f"tablet {first} is {health.value} {age}: {standing.judgment.reason}"
    ids = ", ".join(region_id for region_id, _ in named) + (", …" if count > len(named) else "")
    return f"{count} tablets are {health.value}: {ids}; {first} {age}: {standing.judgment.reason}"


def fits(tablet: Tablet, health: TabletHealth, *, table_id: str, server: str, wanted: Iterable[TabletHealth]) -> bool:
    """Return True if a tablet passes the filters of ListTablets. Empty filters accept every tablet."""
    if (table_id and tablet.record.table_id != table_id) or (wanted and health not in wanted):
        return False
    if not server:
        return True
    return server in tablet.view.replicas or any(one.uuid == server for one in known_members(tablet)[0])


def ways_out(status: TabletStatus) -> list[str]:
    """Return the remedies for a tablet, commands first."""
    found: list[str] = []
    if status.health is TabletHealth.CLOSED and status.state is not TabletState.REPLACED:
        found.append(f"rk table enable {status.table}: if it is to be open again")
    if status.health is TabletHealth.UNKNOWN:
        found.append("rk status: which server does not reach the active master; reports come within seconds of a start")
    found += [
        f"rk region retry {status.region_id} --replica {one.number}: its server has given up making the replica"
        for one in status.members
        if one.is_parked
    ]
    found += [
        f"start server {one.server} again, with its own data directory: it holds member {one.number}"
        for one in status.members
        if one.role is not None and not one.is_registered
    ]
    found += [
        f"the log of server {one.server}, and rk debug tablet verify {status.region_id} once it is stopped"
        for one in status.members
        if one.state in (ReplicaState.FAILED, ReplicaState.LOST)
    ]
    return found
