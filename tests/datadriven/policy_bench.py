"""A tablet and its servers in words, for transcripts of the policy of members.

    servers a/r1 b/r2 c            register servers, with racks
    members 1*@a 2@b 3@c 4p@d 5l@e the committed configuration: * leads, p is a PRE_VOTER, l a learner
    table 3                        number of voters wanted
    health 3 FAILED why            the leader's judgment; `behind 4 5000` its entries to go
    gone c | back c                a server's registration
    drain c | bar c | leaves c     it is emptied; gets nothing new; is about to stop
    move c d | learner d           intents
    do                             carry out the last answer as leader and store do; `lost` if nothing of it arrives
    promote 4 | elect 2            steps of the group
    asking | answered              whether a change is on its way
    group c x | load a 9 | incoming d 64 | large-incoming d 8 | free d 5 | size 5 | making 3 | unmade 3 | burned 3 |
    absent 4 | wait 600 | no-leader | closed | no-transition 4 | begun 4

Each command prints the next change.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from regions.messages.heartbeat import LeaderReport, MemberHealth, MemberReport
from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import ConfigId, Member, MemberRole, Storage
from regions.records.model import Incarnation, RegionRecord, ServerRecord, TableRecord, TabletState
from regions.replication.policy.intents import remaining
from regions.replication.policy.next_change import Decision, Do, MemberChange, Wait, next_change
from regions.replication.policy.situation import ClusterFacts, Newcomer, TabletFacts, outage_of
from regions.replication.reports import LeaderView

_ROLES = {"": MemberRole.VOTER, "p": MemberRole.PRE_VOTER, "l": MemberRole.LEARNER}
ADD_TIMEOUT_MS = 600_000


class PolicyBench:
    """See the module docstring."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.servers: dict[str, ServerRecord] = {}
        self.away: dict[str, ServerRecord] = {}
        self.draining: set[str] = set()
        self.barred: set[str] = set()
        self.loads: Counter[str] = Counter()
        self.incoming: Counter[str] = Counter()
        self.large_incoming: Counter[str] = Counter()
        self.wanted = 3
        self.members: tuple[Member, ...] = ()
        self.leader = 0
        self.config = ConfigId(1, 0)
        self.next_number = 1
        self.judged: dict[int, MemberReport] = {}
        self.newcomers: dict[int, Newcomer] = {}
        self.intents = TabletIntents("t", "r")
        self.size_bytes = 0
        self.is_asking = False
        self.is_running = True
        self.being_made: set[int] = set()
        self.gone_numbers: set[int] = set()
        self.unmade: set[int] = set()
        self.absent: set[int] = set()
        self.answer: Decision | None = None

    def run(self, command: str) -> list[str]:
        """Carry out a command. Return its output."""
        name, *words = command.split()
        getattr(self, f"_{name.replace('-', '_')}")(*words)
        if not self.members:
            return ["ok"]
        self.intents = remaining(self.intents, self.members)
        self.answer = self._next()
        return [words_of(self.answer)]

    def _next(self) -> Decision:
        region = RegionRecord(
            "t", "r", state=TabletState.RUNNING, members=self.members, config_term=self.config.term,
            config_index=self.config.index, next_number=self.next_number,
        )  # fmt: skip
        home = next((one.uuid for one in self.members if one.number == self.leader), None)
        leader = None
        if home is not None:
            report = LeaderReport(self.members, tuple(self.judged[one.number] for one in self.members))
            leader = LeaderView(Incarnation(home, 1), self.leader, self.config, self.config.term, report)
        table = TableRecord("t", "orders", replication=self.wanted, storage=Storage.TABLET)
        newcomers = tuple(self.newcomers.values())
        tablet = TabletFacts(
            region, table, self.is_running, leader, self.size_bytes, newcomers, frozenset(self.being_made),
            frozenset(self.gone_numbers), frozenset(self.unmade), self.is_asking, self.intents, frozenset(self.absent),
        )  # fmt: skip
        loads = self.loads + Counter(one.uuid for one in self.members)
        retiring = frozenset(self.draining)
        outage = outage_of(loads, self.servers, retiring)
        closed = retiring | self.barred
        cluster = ClusterFacts(
            self.servers, retiring, closed, loads, self.incoming, self.large_incoming, outage, ADD_TIMEOUT_MS
        )
        return next_change(tablet, cluster, self.now_ms)

    def _commit(self, members: tuple[Member, ...]) -> None:
        self.config = ConfigId(self.config.term, self.config.index + 1)
        self.members = members
        for one in members:
            self.judged.setdefault(one.number, MemberReport(one.number, MemberHealth.HEALTHY))
        self.next_number = max([self.next_number, *(one.number + 1 for one in members)])

    # --- commands ---

    def _servers(self, *names: str) -> None:
        for name in names:
            uuid, _, rack = name.partition("/")
            self.servers[uuid] = ServerRecord(
                uuid, uuid, 1, 1, rack or "default", kind="kv/1", tablets=True, peer_port=2
            )

    def _members(self, *names: str) -> None:
        self.judged, self.newcomers = {}, {}
        found = []
        for name in names:
            number, _, uuid = name.partition("@")
            if number.endswith("*"):
                self.leader = int(number[:-1])
            digits = number.rstrip("*pl")
            found.append(Member(int(digits), uuid, _ROLES[number[len(digits) :].rstrip("*")]))
        self._commit(tuple(found))
        for one in found:
            if one.role is MemberRole.PRE_VOTER:
                self.newcomers[one.number] = Newcomer(one.number, one.uuid, one.role, self.now_ms)

    def _table(self, wanted: str) -> None:
        self.wanted = int(wanted)

    def _health(self, number: str, word: str, *why: str) -> None:
        former = self.judged[int(number)]
        self.judged[int(number)] = MemberReport(int(number), MemberHealth(word), former.behind, " ".join(why))

    def _behind(self, number: str, entries: str) -> None:
        former = self.judged[int(number)]
        self.judged[int(number)] = msgspec.structs.replace(former, behind=int(entries))

    def _gone(self, *names: str) -> None:
        for uuid in names:
            self.away[uuid] = self.servers.pop(uuid)

    def _back(self, *names: str) -> None:
        for uuid in names:
            self.servers[uuid] = self.away.pop(uuid)

    def _drain(self, uuid: str) -> None:
        self.draining ^= {uuid}

    def _bar(self, uuid: str) -> None:
        self.barred ^= {uuid}

    def _leaves(self, uuid: str) -> None:
        self.servers[uuid] = msgspec.structs.replace(self.servers[uuid], leaving=True)

    def _group(self, uuid: str, group: str) -> None:
        self.servers[uuid] = msgspec.structs.replace(self.servers[uuid], group=group)

    def _free(self, uuid: str, gigabytes: str) -> None:
        self.servers[uuid] = msgspec.structs.replace(self.servers[uuid], disk_free=int(gigabytes) << 30)

    def _size(self, gigabytes: str) -> None:
        self.size_bytes = int(gigabytes) << 30

    def _load(self, uuid: str, members: str) -> None:
        self.loads[uuid] = int(members)

    def _incoming(self, uuid: str, count: str) -> None:
        self.incoming[uuid] = int(count)

    def _large_incoming(self, uuid: str, count: str) -> None:
        self.large_incoming[uuid] = int(count)

    def _move(self, source: str, target: str) -> None:
        moves = (*self.intents.moves, TabletMove(source, target))
        self.intents = msgspec.structs.replace(self.intents, moves=moves)

    def _learner(self, uuid: str) -> None:
        wanted = set(self.intents.learners) ^ {uuid}
        self.intents = msgspec.structs.replace(self.intents, learners=tuple(sorted(wanted)))

    def _making(self, *numbers: str) -> None:
        self.being_made = set(map(int, numbers))

    def _unmade(self, *numbers: str) -> None:
        self.unmade = set(map(int, numbers))

    def _burned(self, *numbers: str) -> None:
        self.gone_numbers = set(map(int, numbers))

    def _absent(self, *numbers: str) -> None:
        self.absent = set(map(int, numbers))

    def _wait(self, seconds: str) -> None:
        self.now_ms += int(seconds) * 1000

    def _asking(self) -> None:
        self.is_asking = True

    def _answered(self) -> None:
        self.is_asking = False

    def _closed(self) -> None:
        self.is_running = False

    def _no_leader(self) -> None:
        self.leader = 0

    def _elect(self, number: str) -> None:
        self.leader = int(number)
        self.config = ConfigId(self.config.term + 1, self.config.index)

    def _promote(self, number: str) -> None:
        self.newcomers.pop(int(number), None)
        (one,) = [one for one in self.members if one.number == int(number)]
        rest = [other for other in self.members if other is not one]
        self._commit((*rest, Member(one.number, one.uuid)))

    def _do(self) -> None:
        assert isinstance(self.answer, Do), self.answer
        member = self.answer.member
        if self.answer.change is MemberChange.NUMBER:
            self.next_number = member.number + 1
            self.newcomers[member.number] = Newcomer(member.number, member.uuid, member.role, self.now_ms)
        elif self.answer.change is MemberChange.ADD:
            self.judged[member.number] = MemberReport(member.number, MemberHealth.UNKNOWN, 5_000, "a copy is made")
            self._commit((*self.members, member))
        elif self.answer.change is MemberChange.REMOVE:
            self.newcomers.pop(member.number, None)
            self._commit(tuple(one for one in self.members if one.number != member.number))
        else:
            self._elect(str(member.number))

    def _lost(self) -> None:
        """Nothing has changed."""
        assert isinstance(self.answer, Do), self.answer

    def _no_transition(self, number: str) -> None:
        del self.newcomers[int(number)]

    def _begun(self, number: str) -> None:
        """The newcomer's server has claimed the number, which happens after its leader has added it."""
        former = self.newcomers[int(number)]
        self.newcomers[int(number)] = former._replace(since_ms=self.now_ms, is_fresh=False)

    def _ready(self, number: str) -> None:
        self.judged[int(number)] = MemberReport(int(number), MemberHealth.HEALTHY)


def words_of(answer: Decision) -> str:
    """Return an answer in one line."""
    if isinstance(answer, Do):
        what = f"{answer.change.value} {answer.member.number} on {answer.member.uuid}"
        role = f" {answer.member.role.value}" if answer.change in (MemberChange.NUMBER, MemberChange.ADD) else ""
        return f"{what}{role}, expect {answer.expect}: {answer.why}"
    if isinstance(answer, Wait):
        return f"wait: {answer.why}"
    return f"nothing{': ' if answer.why else ''}{answer.why}"
