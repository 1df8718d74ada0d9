"""Three tablet hosts in one test. Frames pass between them as bytes; disks and rows answer when told."""

from __future__ import annotations

from collections.abc import Iterable

from coord.raft.core import RaftCore
from coord.raft.messages import LEADER, NORMAL, Entry, RaftSnapshot
from coord.storage.shared.items import SlotItems
from regions.messages.server import MemberEndpoint
from regionserver.tablets.host.envelope import Envelope, Item, decode_frame, encode_beat, encode_turn
from regionserver.tablets.host.group import Group, ReplicaIdentity, raft_settings
from regionserver.tablets.host.members import first_configuration, servers_of
from regionserver.tablets.host.output import TurnOutput
from regionserver.tablets.host.requests import Fate, InFlight, ReadyRead, TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.host.wanted_copies import CopyWanted
from simulation.engine.chance import SeededRandom

CLUSTER = "cluster"


class TestServer:
    """A turn, and its output."""

    __test__ = False

    def __init__(self, name: str, in_flight: InFlight) -> None:
        self.turn = Turn(CLUSTER, name, 1, in_flight)
        self.name = name
        self.log: list[tuple[int, list[SlotItems]]] = []
        self.rounds: dict[str, list[Entry]] = {}
        self.rows: dict[str, list[bytes]] = {}
        self.answers: list[TabletAnswer] = []
        self.reads: list[ReadyRead] = []
        self.failed: list[tuple[str, str]] = []
        self.rejected: list[tuple[str, str, str]] = []
        self.needs_log: set[tuple[str, int]] = set()
        #: Committed configurations: (term, index), and whether the next ones become durable at once.
        self.configs: list[tuple[int, int]] = []
        self.notes_configs = True
        self.copies: list[CopyWanted] = []
        #: Everything that was sent: (recipient, item), with the heartbeats in BEATs.
        self.sent: list[tuple[str, Item]] = []
        self.beaten: list[tuple[str, Item]] = []


class Hosts:
    """Servers s1 .. sN with replicas 1 .. N of each tablet."""

    def __init__(
        self, size: int = 3, tablets: Iterable[str] = ("t",), server_bytes: int = 256 << 20, first: int = 0
    ) -> None:
        """`first`: number of servers with a member of the first configuration; 0: all."""
        self.chance = SeededRandom("hosts")
        self.servers = {f"s{n}": TestServer(f"s{n}", InFlight(server_bytes)) for n in range(1, size + 1)}
        self.places = {n: f"s{n}" for n in range(1, size + 1)}
        #: Servers whose frames and BEATs do not leave, and servers whose disk or rows do not answer.
        self.mute: set[str] = set()
        self.slow_disk: set[str] = set()
        self.slow_rows: set[str] = set()
        self.first = set(range(1, (first or size) + 1))
        for slot, tablet in enumerate(tablets, 1):
            for number in self.first:
                self.add(tablet, number, slot)

    def add(self, tablet: str, number: int, slot: int = 1) -> Group:
        """Open a new replica, of the first configuration or of a new member."""
        config = first_configuration(
            tuple(endpoint(each, name) for each, name in self.places.items() if each in self.first)
        )
        core = RaftCore(number, raft_settings(), self.chance, RaftSnapshot(0, 0, config))
        server = self.servers[self.places[number]]
        group = Group(
            ReplicaIdentity(tablet, slot, 1, number), core, servers_of(config), in_flight=server.turn.in_flight
        )
        server.turn.add(group)
        return group

    def turn(self, name: str) -> TurnOutput:
        """Take the output of a server, and let frames arrive, disks sync and rows apply at once."""
        server = self.servers[name]
        out = server.turn.take()
        server.answers += out.answers
        server.reads += out.reads
        server.failed += out.failed
        server.rejected += out.rejected
        server.needs_log.update((tablet, member) for tablet, member, _ in out.needs_log)
        server.copies += out.copies
        for vote in out.votes:
            server.turn.voted(vote)
        for tablet, config in out.configs:
            server.configs.append((config.term, config.index))
            if server.notes_configs:
                server.turn.noted(tablet, config.index)
        if out.log:
            server.log.append((out.log_number, out.log))
        for tablet, entries in out.rounds.items():
            server.rounds[tablet] = entries
        for to, items in out.frames.items():
            server.sent += [(to, item) for item in items]
            if name not in self.mute and to not in self.mute:
                for data in encode_turn(server.turn.header(to), items):
                    self.servers[to].turn.frame(name, decode_frame(data))
        for to, beat in out.beats.items():
            server.beaten += [(to, row) for row in beat.heartbeats]
            if name not in self.mute and to not in self.mute:
                frames = encode_beat(
                    server.turn.header(to),
                    beat.number,
                    disk_answers=beat.disk_answers,
                    heartbeats=beat.heartbeats,
                    is_full=beat.is_full,
                )
                for data in frames:
                    self.servers[to].turn.frame(name, decode_frame(data))
        return out

    def settle(self) -> None:
        """Run until no more events follow without the passage of time."""
        for _ in range(200):
            busy = False
            for name in self.servers:
                out = self.turn(name)
                busy = busy or bool(out.frames or out.log or out.rounds or out.answers or out.reads)
                busy = self.sync(name) or busy
                busy = self.apply(name) or busy
            if not busy:
                return
        raise AssertionError("the hosts do not come to rest")

    def sync(self, name: str, *, even_if_slow: bool = False) -> bool:
        """Make the writes of a server durable."""
        server = self.servers[name]
        if not server.log or (name in self.slow_disk and not even_if_slow):
            return False
        number = server.log[-1][0]
        server.log.clear()
        server.turn.persisted(number)
        return True

    def apply(self, name: str, *, even_if_slow: bool = False) -> bool:
        """Apply the rounds of a server. The value of an entry is its payload in capital letters."""
        server = self.servers[name]
        if not server.rounds or (name in self.slow_rows and not even_if_slow):
            return False
        rounds, server.rounds = server.rounds, {}
        for tablet, entries in rounds.items():
            server.rows.setdefault(tablet, []).extend(
                entry.data for entry in entries if entry.data and entry.kind == NORMAL
            )
            server.turn.applied(tablet, entries[-1].index, [entry.data.upper() for entry in entries])
        return True

    def ticks(self, count: int) -> None:
        """Let time pass on all servers that are not mute."""
        for _ in range(count):
            for server in self.servers.values():
                server.turn.tick()
                self.settle()

    def leader(self, tablet: str = "t") -> str:
        """Return the only server that leads and whose frames arrive, "" without one."""
        leaders = [
            name
            for name, server in self.servers.items()
            if name not in self.mute
            and tablet in server.turn.groups
            and not server.turn.groups[tablet].failure
            and self.core(name, tablet).role == LEADER
        ]
        return leaders[0] if len(leaders) == 1 else ""

    def core(self, name: str, tablet: str = "t") -> RaftCore:
        """Return a replica's core."""
        return self.servers[name].turn.groups[tablet].core

    def elect(self, tablet: str = "t", ticks: int = 60) -> str:
        """Let time pass until a leader has committed its first entry; return its server."""
        for _ in range(ticks):
            self.ticks(1)
            name = self.leader(tablet)
            if name and self.core(name, tablet).log.applying == self.core(name, tablet).log.last:
                return name
        raise AssertionError(f"no leader of {tablet} within {ticks} ticks")


def endpoint(number: int, server: str) -> MemberEndpoint:
    """Return where a member listens."""
    return MemberEndpoint(number, server, server, 7000)


def fates(hosts: Hosts, name: str) -> dict[int, Fate]:
    """Return the results of the requests that a server has answered."""
    return {answer.request: answer.fate for answer in hosts.servers[name].answers}


def kinds(items: list[tuple[str, Item]]) -> list[int]:
    """Return the kinds of the Raft messages among items."""
    return [item.message.kind for _, item in items if isinstance(item, Envelope)]
