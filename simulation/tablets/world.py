"""Servers with tablets, the links between them, and the shells, which carry out the output of a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

from coord.raft.membership import Configuration
from coord.raft.messages import LEADER, Entry, RaftConfig
from coord.storage.shared.items import Floor
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.beats import BeatOutput
from regionserver.tablets.host.envelope import (
    Envelope,
    Item,
    Quiet,
    QuietWord,
    Refusal,
    TurnFrame,
    decode_frame,
    encode_beat,
    encode_turn,
)
from regionserver.tablets.host.group import ELECTION_TICKS, Group
from regionserver.tablets.host.output import TurnOutput
from regionserver.tablets.host.quiet import QUIET_TICKS
from regionserver.tablets.host.requests import TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.floors import target
from simulation.engine.chance import SeededRandom
from simulation.engine.history import SeededHistory, Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.checks import TabletChecker
from simulation.tablets.flaws import Flaws
from simulation.tablets.server import SimServer
from simulation.tablets.storage.log import SimLog
from simulation.tablets.storage.real_log import RealLog
from simulation.tablets.storage.rows import SimRows

CLUSTER: Final = "cluster"
TICK_US: Final = 50_000
#: Limit of a log write, beyond which the disk counts as unresponsive.
STALL_US: Final = SECOND


class Crashed(Exception):  # noqa: N818 - it is not an error
    """Unwinds the shell of a server that has just died."""


class Lives(Protocol):
    """The part that starts processes and opens replicas; see lives.py."""

    def start(self, server: SimServer) -> None:
        """Start the process from the contents of its disk."""
        ...

    def vivify(self, server: SimServer, frame: TurnFrame) -> None:
        """Make voters from nothing, where that bug is planted."""
        ...


class SimSplits(Protocol):
    """The part that splits tablets; see splits/."""

    #: The option of `rk simulate --tablets` for such a history.
    option: str

    def applied(self, rows: SimRows) -> None:
        """Handle a commit of rows."""
        ...

    def started(self, server: SimServer) -> None:
        """Handle the start of a process."""
        ...

    def is_held(self, tablet: str) -> bool:
        """Return True if the members of a tablet must not change, or the tablet was replaced."""
        ...

    def is_unmade(self, tablet: str, number: int) -> bool:
        """Return True if a member of a daughter cannot be made: its server has no replica of the parent."""
        ...

    def is_making(self, server: SimServer, tablet: str) -> bool:
        """Return True while a server makes the replica of a daughter."""
        ...

    def heirs_at(self, server: SimServer, tablet: str) -> list[str]:
        """Return the daughters whose member on a server is yet to be made from the tablet's replica there."""
        ...

    def parents_of(self, server: SimServer, tablet: str) -> Sequence[str]:
        """Return the tablets from whose replicas a member is yet to be made on a server; none if it is made."""
        ...


class SimChanges(Protocol):
    """The part that carries out a turn's output about members; see changes.py."""

    def carry_out(self, server: SimServer, out: TurnOutput) -> None:
        """Carry out a turn's output about members."""
        ...

    def answered(self, answer: TabletAnswer) -> None:
        """Handle the answer to a request that changes members."""
        ...


class World(SeededHistory):
    """Servers s1 .. sN and a few tablets, one seed."""

    #: No fault inside a tablet or its link may escape from the host as an exception.
    FAILURES: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    LOOK_US = SECOND // 2

    #: Set by `make_world`.
    lives: Lives
    members: SimChanges
    #: None in a history without splits.
    splits: SimSplits | None = None

    def __init__(self, seed: int, size: int, flaws: Flaws, trace: bool = False) -> None:
        super().__init__(seed, size, trace=trace)
        self.bug = flaws
        #: Seconds of faults, if they are not the usual ones.
        self.trouble_s = 0.0
        chance = self.chance
        self.settings = RaftConfig(
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=flaws.heartbeat_ticks,
            max_inflight=chance.pick([2, 64]),
            max_append_bytes=chance.pick([60, 1 << 20]),
            max_apply_entries=chance.pick([1, 3, 256]),
            is_promotion_careful=not flaws.promotes_carelessly,
        )
        self.loss = chance.pick([0.0, 0.0, 0.01])
        self.repeat = chance.pick([0.0, 0.01])
        self.heavy = chance.pick([0.0, 0.01, 0.03])
        self.lazy = chance.pick([0.0, 0.3, 0.9])
        self.crash_in_step = chance.pick([0.0, 0.0, 0.001])
        #: Ticks without work after which a group becomes quiet: soon in most histories, because clients are busy.
        self.quiet_ticks = SeededRandom(f"{seed}-{size} quiet").pick([1, 4, QUIET_TICKS])
        self.is_faulty = True
        #: Recent frames on the wire, for connections that deliver old data again.
        self.wire: deque[tuple[str, str, bytes]] = deque(maxlen=200)
        self.cut: set[tuple[str, str]] = set()
        self._link_free: dict[tuple[str, str], int] = {}
        self._requests = 0
        names = [f"s{n}" for n in range(1, size + 1)]
        self.servers = {name: self._make_server(name) for name in names}
        #: The servers of the members of each tablet's newest committed configuration, and that configuration.
        self.places: dict[str, dict[int, str]] = {}
        self.configs: dict[str, Configuration] = {}
        self.firsts: dict[str, dict[int, str]] = {}
        self.checks: dict[str, TabletChecker] = {}
        #: Copies that use a replica of a server: (server, tablet) -> the index behind which each needs entries.
        self.pins: dict[tuple[str, str], list[int]] = {}
        for server in self.servers.values():
            server.tick_us = int(TICK_US * chance.between(0.85, 1.2))
            server.sync_us = chance.pick([200.0, 1000.0, 1000.0, 10_000.0])
            server.apply_us = chance.pick([100.0, 1000.0, 20_000.0])

    def _make_server(self, name: str) -> SimServer:
        chance = SeededRandom(f"{self.seed}-{self.size}-{name} files")
        return SimServer(name, self._make_log(name), chance, lambda: self.now)

    def replay(self) -> str:
        """See SeededHistory."""
        duration = f" --duration {self.trouble_s:g}" if self.trouble_s else ""
        split = "" if self.splits is None else f" {self.splits.option}"
        return f"rk simulate --tablets{split} --seed {self.seed} --servers {self.size}{duration} --trace"

    def _make_log(self, name: str) -> SimLog:
        """Return the log: every fourth seed uses the shared log itself, on a disk that loses sectors, the others a
        model."""
        if self.seed % 4:
            return SimLog()
        return RealLog(f"{self.seed}-{name}", lambda: self.now)

    # --- processes ----------------------------------------------------------------------------------------------------

    def kill(self, server: SimServer, *, power: bool) -> None:
        """End the process, or cut the power of its machine. Connections of a killed process break at once."""
        if server.turn is None:
            return
        server.turn = None
        server.disk.step = _no_step
        if power:
            server.log.power_cut(self.chance, self.counts)
            server.power_cut()
        else:
            server.log.kill(self.chance)
            server.disk.killed()
        server.reload()
        self.counts["power_cut" if power else "kill"] += 1
        self.note(f"{server.name} dies")
        if not power:
            self.break_links(server)
        requests, server.requests = server.requests, {}
        for request in requests.values():
            if not power:
                self.later(1000, request.reset)

    def break_links(self, server: SimServer) -> None:
        """Break the connections to and from a server. The other ends notice, some a little later."""
        for other in self.servers.values():
            if other is not server:
                self.at(self.now + 100 + self.chance.below(3000), self._link_broke, other, server.name, server.life)

    def _link_broke(self, server: SimServer, peer: str, start_code: int) -> None:
        if server.turn is None:
            return
        if server.paused_until > self.now:
            self.at(server.paused_until, self._link_broke, server, peer, start_code)
            return
        server.turn.peer_gone(peer, start_code)
        self.pump(server)

    def tick(self, server: SimServer, life: int) -> None:
        if server.life != life or server.turn is None:
            return
        if server.paused_until > self.now:
            self.at(min(server.paused_until, self.now + server.tick_us), self.tick, server, life)
            return
        self.at(self.now + server.tick_us, self.tick, server, life)
        server.turn.tick()
        self.pump(server)

    # --- the shell of one server --------------------------------------------------------------------------------------

    def soon(self, server: SimServer) -> None:
        """End the turn now, or accept further inputs first."""
        if server.is_pump_planned:
            return
        if self.lazy and self.chance.unit() < self.lazy:
            server.is_pump_planned = True
            self.at(self.now + 500, self._planned_pump, server, server.life)
        else:
            self.pump(server)

    def _planned_pump(self, server: SimServer, life: int) -> None:
        if server.life == life and server.turn is not None:
            server.is_pump_planned = False
            self.pump(server)

    def pump(self, server: SimServer) -> None:
        """End a turn and carry its output out."""
        out = server.turn_now().take()
        with suppress(Crashed):
            self._carry_out(server, out)

    def step(self, server: SimServer) -> None:
        """Perhaps kill the process between two effects of its shell."""
        if self.is_faulty and self.crash_in_step and self.chance.happens(self.crash_in_step):
            self.counts["crash_in_step"] += 1
            self.kill(server, power=self.chance.happens(0.5))
            self.at(self.now + self.chance.below(2 * SECOND), self.restart, server)
            raise Crashed

    def restart(self, server: SimServer) -> None:
        """Start a server that is down."""
        if server.turn is None:
            self.lives.start(server)

    def _carry_out(self, server: SimServer, out: TurnOutput) -> None:
        for tablet, why in out.failed:
            if not why.startswith("RuntimeError: injected"):
                raise Violation(f"{tablet} was parked on {server.name}: {why}")
            server.holdings[tablet].run = RunState.FAILED
        for tablet, sender, why in out.rejected:
            raise Violation(f"{tablet} on {server.name} rejected a message of {sender}: {why}")
        for _, event in out.events:
            self.counts[event.name] += 1
        if out.events or out.configs or out.copies or out.votes:
            self.members.carry_out(server, out)
        for tablet, number, first in out.needs_log:
            self.counts["needs_log"] += 1
            self.later(self.chance.below(5000), self._read_back, server, server.life, tablet, number, first)
        self.step(server)
        for to, items in out.frames.items():
            self._send_items(server, to, items)
        for to, beat in out.beats.items():
            self._send_beat(server, to, beat)
        self.step(server)
        if out.log:
            self.counts["writes"] += 1
            self.counts["slots_in_writes"] += len(out.log)
            server.log.write(out.log_number, out.log)
            self._begin_sync(server)
        self.step(server)
        for tablet, entries in out.rounds.items():
            span = server.apply_us * (0.5 + self.chance.unit())
            group = server.turn_now().groups[tablet]
            self.at(self.now + 1 + int(span), self._apply, server, server.life, group, entries)
        for ready in out.reads:
            self._serve_read(server, ready.tablet, ready.request, ready.index)
        for answer in out.answers:
            request = server.requests.pop(answer.request, None)
            self.members.answered(answer)
            self.counts[answer.fate.name.lower()] += 1
            if request is not None:
                request.answered(server, answer)
        for tablet, why in out.failed:
            waiting = [number for number, each in server.requests.items() if each.tablet == tablet]
            if waiting or server.turn_now().in_flight.bytes < 0:
                raise Violation(f"{tablet} was parked on {server.name} ({why}), requests {waiting} wait for it")

    def _begin_sync(self, server: SimServer) -> None:
        if server.is_syncing:
            return
        server.is_syncing = True
        span = server.sync_us * (0.5 + self.chance.unit())
        if self.is_faulty and self.chance.happens(0.003):
            span = self.chance.between(0.2, 2.5) * SECOND
            self.counts["slow_sync"] += 1
        if span > STALL_US:
            self.counts["stalled_disk"] += 1
            self.at(self.now + STALL_US, self._disk_stalls, server, server.life)
        span = server.log.begin(int(span))
        self.at(self.now + 1 + int(span), self._synced, server, server.life, len(server.log.queue))

    def _disk_stalls(self, server: SimServer, life: int) -> None:
        if server.life == life and server.turn is not None and server.is_syncing:
            server.turn.disk(answers=False)
            self.soon(server)

    def _synced(self, server: SimServer, life: int, count: int) -> None:
        if server.life != life or server.turn is None:
            return
        if server.paused_until > self.now:
            self.at(server.paused_until, self._synced, server, life, count)
            return
        server.is_syncing = False
        number = server.log.sync(count)
        server.turn.disk(answers=True)
        if number:
            server.turn.persisted(number)
        if server.log.queue:
            self._begin_sync(server)
        self.pump(server)

    def _apply(self, server: SimServer, life: int, group: Group, entries: list[Entry]) -> None:
        if server.life != life or server.turn is None:
            return
        if server.paused_until > self.now:
            self.at(server.paused_until, self._apply, server, life, group, entries)
            return
        tablet = group.replica.tablet
        if server.turn.groups.get(tablet) is not group or group.failure:
            return
        held = server.rows_of(tablet)
        rows = held.now
        outcomes = rows.apply(entries)
        held.note_writes()
        if self.splits is not None:
            self.splits.applied(held)
        self.checks[tablet].on_round(group.replica.number, entries, outcomes, rows)
        try:
            self.step(server)
        except Crashed:
            return
        server.turn.applied(tablet, entries[-1].index, outcomes)
        self.soon(server)

    def _read_back(self, server: SimServer, life: int, tablet: str, number: int, first: int) -> None:
        """Read entries that a member needs from the log on the disk."""
        if server.life != life or server.turn is None or tablet not in server.turn.groups:
            return
        slot = server.log.slots[server.holdings[tablet].slot]
        before, entries = slot.entries_from(first, self.chance.pick([1, 3, 1000]))
        if before is None:
            self.counts["needs_copy"] += 1
            server.turn.lacks_log(tablet, number, first)
            self.soon(server)
            return
        server.turn.loaded(tablet, number, before, entries)
        self.soon(server)

    def next_steady(self, server: SimServer, life: int) -> None:
        """Make a steady point of some tablet, and move its floor."""
        if server.life != life or server.turn is None:
            return
        self.at(self.now + int(self.chance.between(0.1, 1) * SECOND), self.next_steady, server, life)
        able = [group for group in server.turn.groups.values() if not group.failure]
        if self.chance.happens(0.5):
            server.turn.bound_memory(0, self.chance.pick([0, 0, 3]))
        if able:
            group = self.chance.pick(able)
            rows = server.rows_of(group.replica.tablet)
            image = rows.now.copy()
            if self.bug.results_not_steady:
                image.results = dict(rows.steady.results)
            if self.bug.floor_before_steady:
                self._move_floor(server, group, image.index)
            delay = self.chance.pick([1000, 50_000, 400_000])
            self.at(self.now + delay, self._steady, server, group, image)

    def _steady(self, server: SimServer, group: Group, image: Any) -> None:
        tablet = group.replica.tablet
        if server.turn is None or server.turn.groups.get(tablet) is not group or group.failure:
            return
        rows = server.rows_of(tablet)
        if self.bug.steady_mixes_states and rows.now.index > image.index:
            image.index, image.term = rows.now.index, rows.now.term
        if image.index > rows.steady.index:
            rows.steady = image
            self.counts["steady"] += 1
            self._move_floor(server, group, image.index)

    def _move_floor(self, server: SimServer, group: Group, index: int) -> None:
        """Let the log drop the entries that are durable in the rows, that every member has, and that no copy needs."""
        tablet = group.replica.tablet
        everywhere = 0 if group.failure else group.everywhere()
        floor = server.turn_now().steady(
            tablet, target(index, everywhere, 1, min(self.pins.get((server.name, tablet), ()), default=None))
        )
        if isinstance(floor, Floor):
            self.counts["floor_moved"] += 1
            server.log.write(0, [floor])
            self._begin_sync(server)

    # --- network ------------------------------------------------------------------------------------------------------

    def _send_items(self, server: SimServer, to: str, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Envelope):
                self.counts["messages"] += 1
                self.checks[item.tablet].on_sent(item.message)
            else:
                kind = "refused" if isinstance(item, Refusal) else "said"
                self.counts[f"{kind}_{item.word.name.lower()}"] += 1
            if self.lines is not None:
                self.note(f"{server.name} -> {to}: {describe(item)}")
        for data in encode_turn(server.turn_now().header(to), items):
            self._transmit(server.name, to, data)

    def _send_beat(self, server: SimServer, to: str, beat: BeatOutput) -> None:
        self.counts["beats"] += 1
        self.counts["heartbeats_in_beats"] += len(beat.heartbeats)
        header = server.turn_now().header(to)
        frames = encode_beat(
            header, beat.number, disk_answers=beat.disk_answers, heartbeats=beat.heartbeats, is_full=beat.is_full
        )
        for data in frames:
            self._transmit(server.name, to, data)

    def _transmit(self, source: str, to: str, data: bytes) -> None:
        link = (source, to)
        chance = self.chance
        self.wire.append((source, to, data))
        if self.cut and link in self.cut:
            return
        unit = chance.unit
        delay = 100 + int(1000 * unit())
        if self.is_faulty:
            if self.loss and unit() < self.loss:
                self.counts["lost"] += 1
                return
            if self.heavy and unit() < self.heavy:
                delay = int(delay * 10 / (0.03 + unit()))
            if self.repeat and unit() < self.repeat:
                self.counts["repeated"] += 1
                self.at(self.now + delay + int(unit() * 500_000), self.deliver, source, to, data)
        arrival = max(self.now + delay, self._link_free.get(link, 0))
        self._link_free[link] = arrival
        self.at(arrival, self.deliver, source, to, data)

    def deliver(self, source: str, to: str, data: bytes) -> None:
        """Deliver a frame."""
        server = self.servers[to]
        if server.turn is None:
            return
        if server.paused_until > self.now:
            self.at(server.paused_until, self.deliver, source, to, data)
            return
        frame = decode_frame(data)
        if self.bug.makes_voters_from_nothing and isinstance(frame, TurnFrame):
            self.lives.vivify(server, frame)
        peer = server.turn.beats.peers.get(source)
        if peer is not None and frame.header.start_code != peer.start_code:
            self.counts["replaced_process" if frame.header.start_code > peer.start_code else "former_process"] += 1
        server.turn.frame(source, frame)
        if isinstance(frame, TurnFrame):
            self._check_quiet(server, server.turn, frame)
        self.soon(server)

    @staticmethod
    def _check_quiet(server: SimServer, turn: Turn, frame: TurnFrame) -> None:
        """Raise Violation if a follower has become quiet and lacks entries of its leader, or if the figures count other
        quiet tablets."""
        asleep = {name: one for name, one in turn.groups.items() if not one.failure and name not in turn.quiet.awake}
        led = {name for name, one in asleep.items() if one.core.leadership is not None}
        if (set(turn.quiet.quiet), set(turn.quiet.led)) != (set(asleep), led):
            counted = f"{list(turn.quiet.quiet)}, of which it leads {list(turn.quiet.led)}"
            raise Violation(f"{server.name} counts the quiet tablets {counted}; they are {list(asleep)}, led {led}")
        for item in frame.items:
            if isinstance(item, Quiet) and item.word is QuietWord.QUIET and item.tablet not in turn.quiet.awake:
                group = turn.groups.get(item.tablet)
                if group is None or group.failure or (group.core.leader, group.core.term) != (item.src, item.term):
                    continue  # a late word of a former leader
                log = group.core.log
                if (log.last, log.commit) != (item.commit, item.commit):
                    what = f"up to {log.last}, committed {log.commit}, its leader up to {item.commit}"
                    raise Violation(f"{item.tablet} is quiet on {server.name} and has the log {what}")

    # --- clients ------------------------------------------------------------------------------------------------------

    def next_request(self) -> int:
        """Return an unused number for a request."""
        self._requests += 1
        return self._requests

    def _serve_read(self, server: SimServer, tablet: str, number: int, index: int) -> None:
        request = server.requests.pop(number, None)
        if request is None:
            return
        rows = server.rows_of(tablet).now
        if rows.is_sealed and not self.bug.reads_behind_seal:
            request.sealed()
            return
        self.checks[tablet].on_read_served(server.holdings[tablet].number, rows.index, max(index, request.floor))
        request.read(rows.rows.get(request.key.encode()))

    # --- views --------------------------------------------------------------------------------------------------------

    def leaders(self, tablet: str) -> list[SimServer]:
        """Return the servers whose replica of a tablet considers itself the leader."""
        return [
            server
            for server in self.servers.values()
            if server.turn is not None
            and tablet in server.turn.groups
            and not server.turn.groups[tablet].failure
            and server.turn.groups[tablet].core.role == LEADER
        ]

    def is_awake(self, server: SimServer) -> bool:
        """Return True if the server is up and not frozen."""
        return server.turn is not None and server.paused_until <= self.now

    def configs_in_force(self, tablet: str) -> list[Configuration]:
        """Return the newest committed configuration, and the configurations that replicas may use now."""
        found = [self.configs[tablet]]
        for server in self.servers.values():
            group = server.turn.groups.get(tablet) if server.turn is not None else None
            config: Configuration | None = None
            if group is not None:
                config = None if group.failure else group.core.configs.current
            elif (replica := server.running(tablet)) is not None:
                config = server.log.slots[replica.slot].newest_config()
            if config is not None and config not in found:
                found.append(config)
        return found

    def sound_members(self, tablet: str) -> list[SimServer]:
        """Return the servers whose replica of a tablet runs, or will run when its server is started."""
        sound = []
        for name in self.places[tablet].values():
            server = self.servers[name]
            # A member that is yet to be made needs the replicas of its parents.
            sources = () if self.splits is None else self.splits.parents_of(server, tablet)
            if all(self._is_sound(server, one) for one in sources or (tablet,)):
                sound.append(server)
        return sound

    def _is_sound(self, server: SimServer, tablet: str) -> bool:
        found = server.running(tablet)
        if found is None or self.checks[tablet].members[found.number].is_burned:
            return False
        return server.turn is None or tablet not in server.broken


def describe(item: Item) -> str:
    """Return an item as a line of the trace."""
    if isinstance(item, Envelope):
        m = item.message
        entries = f" entries {m.entries[0].index}..{m.entries[-1].index}" if m.entries else ""
        return (
            f"{item.tablet} kind {m.kind} {m.src}->{m.dst} term {m.term} prev {m.prev_term}/{m.prev_index} commit"
            f" {m.commit} match {m.match_index} granted {m.granted} context {m.context}{entries}"
        )
    if isinstance(item, Quiet):
        return f"{item.tablet} {item.word.name} {item.src}->{item.dst} term {item.term} commit {item.commit}"
    return f"{item.tablet} refused: {item.word.name} by {item.src} to {item.dst}"


def _no_step() -> None:
    """Let a disk work without a crash."""
