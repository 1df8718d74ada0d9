"""Faults of servers with tablets, and the check that the servers recover afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord.raft.messages import FOLLOWER, Ready
from coord.raft.quorum import majority
from regions.records.members import MemberRole
from regionserver.tablets.copying.messages import CopySource, SeenReplica, StartTabletCopy
from regionserver.tablets.disk.layout import block_path, meta_path
from regionserver.tablets.disk.life import DataState, RunState
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.members import servers_of
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.changes import Changes
from simulation.tablets.clients import SimClient
from simulation.tablets.copies import PORT
from simulation.tablets.rest import check_rest
from simulation.tablets.server import SimServer
from simulation.tablets.world import TICK_US, World

#: Seconds of peace, with all servers up and reachable, after which every tablet must have a leader, new commits, and
#: equal replicas. This allows for two lost elections of at most 1.2 s each, for copies, which leaders request at most 5
#: s apart, and for the replacement of lost members one after the other.
RECOVERY_S: Final = 60
#: Seconds of peace in which clients must finish their operations.
FINISH_S: Final = 10
#: Limit for an election after a quick restart: ticks within which a member must stand for election in each tablet that
#: the server led. The new process sends its first BEAT after two ticks, and the election begins at most four ticks
#: later. An election that begins because the leader is silent takes at least ten.
QUICK_TICKS: Final = 8
#: Simulated seconds of faults in one history.
TROUBLE_S: Final = 4


class _Exploding:
    """A tracer, the one part of a group that is of this simulation in the compiled form as well."""

    def ready(self, group: Group, ready: Ready) -> None:
        del group, ready
        raise RuntimeError("injected")


class Story:
    """One simulated history: trouble for a while, then peace."""

    def __init__(self, world: World, changes: Changes, clients: list[SimClient], trouble_s: float) -> None:
        self.world = world
        self.changes = changes
        self.clients = clients
        self.trouble_us = int(trouble_s * SECOND)
        self.fault_gap_us = world.chance.pick([150_000, 400_000, 1_000_000])
        kinds = [
            self._kill,
            self._kill_leader,
            self._power_cut,
            self._power_cut_all,
            self._quick_restart,
            self._freeze,
            self._freeze_leader,
            self._isolate_leader,
            self._partition,
            self._one_way,
            self._bridge,
            self._flap,
            self._echo,
            self._hand_over,
            self._lose_disk,
            self._damage_slot,
            self._damage_rows,
            self._break_code,
            self._change_members,
            self._transfer,
            self._delete_replica,
            self._copy_replica,
            self._late_order,
            self._cancel_copy,
            self._kill_copying,
            self._damage_file,
            *self.more_kinds(),
        ]
        chosen = world.chance.some(kinds) or kinds
        if world.bug.favours:
            chosen = [kind for kind in kinds if kind.__name__ in world.bug.favours]
            self.fault_gap_us = 200_000
        self.faults: list[Callable[[], None]] = [*chosen, *world.chance.some(chosen), self._heal, self._heal]

    def more_kinds(self) -> list[Callable[[], None]]:
        """Return the faults of a history with splits."""
        return []

    def run(self) -> None:
        """Trouble, peace, and the checks that only make sense at the end.

        Raise Violation.
        """
        world = self.world
        with world.bug.planted():
            world.at(world.now + SECOND, self._next_fault)
            world.play_until(world.now + self.trouble_us)
            self._make_peace()
            before = {tablet: check.raft.commit for tablet, check in world.checks.items()}
            if not world.play_until(world.now + RECOVERY_S * SECOND, lambda: self.has_recovered(before)):
                raise world.failure(Violation(f"no recovery within {RECOVERY_S} s: {self._state()}"))
            self._see_quick_restart()
            for client in self.clients:
                client.stop()
            if not world.play_until(world.now + FINISH_S * SECOND, self._clients_done):
                raise world.failure(Violation(f"clients wait for answers after {FINISH_S} s of peace: {self._state()}"))
            try:
                for check in world.checks.values():
                    check.at_the_end()
            except Violation as violation:
                raise world.failure(violation) from violation
            check_rest(world)

    def _clients_done(self) -> bool:
        return all(client.is_done() for client in self.clients)

    def _state(self) -> str:
        lines = []
        for tablet, places in self.world.places.items():
            for number, name in places.items():
                turn = self.world.servers[name].turn
                group = turn.groups.get(tablet) if turn is not None else None
                if group is None:
                    one = self.world.servers[name].holdings.get(tablet)
                    lines.append(f"{tablet} {number}@{name}: {one.block if one is not None else None}")
                else:
                    core = group.core
                    lines.append(
                        f"{tablet} {number}@{name}: role {core.role} term {core.term} leader {core.leader} commit"
                        f" {core.log.commit} last {core.log.last} applied {group.applied_index} {group.failure}"
                    )
        lines += [f"{name}: {self.leftovers(server)}" for name, server in self.world.servers.items()]
        return "\n  ".join(["", *lines])

    # --- faults of processes and machines

    def _next_fault(self) -> None:
        world = self.world
        if world.is_faulty:
            world.at(world.now + 1 + world.chance.below(2 * self.fault_gap_us), self._next_fault)
            world.chance.pick(self.faults)()

    def _some_server(self) -> SimServer:
        return self.world.chance.pick(list(self.world.servers.values()))

    def _some_leader(self) -> SimServer:
        """Return a server that leads some tablet, or any."""
        world = self.world
        leaders = [server for tablet in world.places for server in world.leaders(tablet) if world.is_awake(server)]
        return world.chance.pick(leaders) if leaders else self._some_server()

    def _back(self, server: SimServer) -> None:
        world = self.world
        world.at(world.now + world.chance.pick([1, 100_000, SECOND, 3 * SECOND]), world.restart, server)

    def _kill(self) -> None:
        server = self._some_server()
        self.world.kill(server, power=False)
        self._back(server)

    def _kill_leader(self) -> None:
        server = self._some_leader()
        self.world.kill(server, power=False)
        self._back(server)

    def _power_cut(self) -> None:
        server = self._some_server()
        self.world.kill(server, power=True)
        self._back(server)

    def _power_cut_all(self) -> None:
        self.world.counts["power_cut_all"] += 1
        for server in self.world.servers.values():
            self.world.kill(server, power=True)
            self._back(server)

    def _quick_restart(self) -> None:
        """A process is replaced before anybody notices: no connection seems to break."""
        server = self._some_leader()
        if server.turn is not None:
            self.world.counts["quick_restart"] += 1
            self.world.kill(server, power=True)
            self.world.lives.start(server)

    def _sleep(self, server: SimServer) -> None:
        world = self.world
        if world.is_awake(server):
            server.paused_until = world.now + int(world.chance.between(0.05, 3) * SECOND)
            world.counts["freeze"] += 1
            world.note(f"{server.name} stands still until {server.paused_until / SECOND:.3f}")

    def _freeze(self) -> None:
        self._sleep(self._some_server())

    def _freeze_leader(self) -> None:
        self._sleep(self._some_leader())

    # --- faults of the network

    def _cut(self, sources: list[str], targets: list[str]) -> None:
        self.world.cut.update((source, target) for source in sources for target in targets if source != target)

    def _isolate_leader(self) -> None:
        world = self.world
        leader = [self._some_leader().name]
        everybody = list(world.servers)
        direction = world.chance.below(4)
        if direction != 1:
            self._cut(leader, everybody)
        if direction != 2:
            self._cut(everybody, leader)
        world.counts["isolation"] += 1
        world.note(f"cut off: {leader}")

    def _partition(self) -> None:
        world = self.world
        everybody = list(world.servers)
        one = world.chance.some(everybody)
        other = [name for name in everybody if name not in one]
        self._cut(one, other)
        self._cut(other, one)
        world.counts["partition"] += 1
        world.note(f"partition: {one} {other}")

    def _one_way(self) -> None:
        world = self.world
        source, target = self._some_server().name, self._some_server().name
        self._cut([source], [target])
        world.counts["one_way_cut"] += 1
        world.note(f"cut: {source} -> {target}")

    def _bridge(self) -> None:
        """Cut the links between two sides; one server remains connected to both."""
        world = self.world
        bridge = self._some_server().name
        one = [name for name in world.chance.some(list(world.servers)) if name != bridge]
        other = [name for name in world.servers if name not in one and name != bridge]
        self._cut(one, other)
        self._cut(other, one)
        world.counts["bridge"] += 1
        world.note(f"bridge: {one} {bridge} {other}")

    def _heal(self) -> None:
        """All links work again; connections are new, so servers learn that the old ones broke."""
        world = self.world
        cut = sorted(world.cut)
        world.cut.clear()
        for source, target in cut:
            if world.chance.happens(0.5):
                life = world.servers[source].life
                world.at(world.now + world.chance.below(20_000), world._link_broke, world.servers[target], source, life)
        world.note("healed")

    def _flap(self) -> None:
        world = self.world
        server, peer = self._some_server(), self._some_server()
        if server is not peer:
            world._link_broke(server, peer.name, peer.life)
            world.counts["flap"] += 1

    def _echo(self) -> None:
        """Deliver the messages of an old connection again."""
        world = self.world
        for frame in world.chance.some(list(world.wire)):
            world.at(world.now + world.chance.below(SECOND), world.deliver, *frame)
        world.counts["echo"] += 1

    def _hand_over(self) -> None:
        server = self._some_leader()
        if self.world.is_awake(server):
            self.world.counts["hand_over"] += len(server.turn_now().hand_over())
            self.world.pump(server)

    # --- damage: never more than a minority of a tablet's members

    def may_lose(self, server: SimServer, tablet: str) -> bool:
        world = self.world
        if all(server.name not in servers_of(config).values() for config in world.configs_in_force(tablet)):
            return True
        replica = server.holdings.get(tablet)
        if replica is None or replica.number == 0 or world.checks[tablet].members[replica.number].is_burned:
            return True  # number 0: the number of the damaged files is not known any more
        sound = {one.name for one in world.sound_members(tablet) if one is not server}
        for config in world.configs_in_force(tablet):
            places = servers_of(config)
            # A leader that has not yet noticed the loss of a newcomer may promote it: a majority needs one voter more.
            is_newcomer = any(places[member] == server.name for member in config.pre_voters)
            needed = majority(len(config.voters) + is_newcomer)
            if sum(places[voter] in sound for voter in config.voters) < needed:
                return False
        return True

    def _lose_disk(self) -> None:
        """A server comes back with an empty disk: its numbers are burned."""
        world = self.world
        server = self._some_server()
        if not server.holdings or not all(self.may_lose(server, tablet) for tablet in world.places):
            return
        world.kill(server, power=True)
        for tablet in server.holdings:
            self._burn(server, tablet)
        server.lose_disk()
        world.counts["disk_lost"] += 1
        world.note(f"{server.name} loses its disk")
        self._back(server)

    def _pick_replica(self) -> tuple[SimServer, str] | None:
        """Return a running replica that its tablet does not need for a majority."""
        world = self.world
        server = self._some_server()
        able = [
            tablet
            for tablet in server.holdings
            if server in world.sound_members(tablet) and self.may_lose(server, tablet)
        ]
        return (server, world.chance.pick(able)) if able else None

    def _damage_slot(self) -> None:
        """A stretch of the log is unreadable at the next start: the number of that tablet alone is burned."""
        found = self._pick_replica()
        if found is None:
            return
        server, tablet = found
        world = self.world
        world.kill(server, power=False)
        replica = server.holdings[tablet]
        if replica.block.slot is None:
            return
        self._burn(server, tablet)
        server.log.damage(replica.slot)
        world.counts["slot_damaged"] += 1
        self._back(server)

    def _damage_rows(self) -> None:
        """The rows of a tablet turn out to be damaged: it is parked."""
        found = self._pick_replica()
        if found is None or not self.world.is_awake(found[0]):
            return
        server, tablet = found
        server.rows_of(tablet).is_damaged = True
        server.turn_now().park(tablet, "RuntimeError: injected: rows are damaged")
        server.holdings[tablet].run = RunState.FAILED
        self.world.counts["rows_damaged"] += 1
        self.world.pump(server)

    def _break_code(self) -> None:
        """Something inside a group raises. A restart of the process repairs it."""
        found = self._pick_replica()
        if found is None or not self.world.is_awake(found[0]):
            return
        server, tablet = found
        server.turn_now().groups[tablet].tracer = _Exploding()
        server.broken.add(tablet)
        self.world.counts["code_broken"] += 1

    # --- members

    def _change_members(self) -> None:
        self.changes.change_members()

    def _transfer(self) -> None:
        self.changes.transfer()

    def _delete_replica(self) -> None:
        """Remove a voter's replica although the configuration has it, so that its tombstone votes."""
        found = self._pick_replica()
        if found is not None and self.world.is_awake(found[0]) and not found[0].broken:
            self.world.counts["voter_deleted"] += 1
            self.changes.lives.bury(*found, "an operator's order")

    # --- copies

    def _copy_replica(self) -> None:
        """Order a new copy of a running replica, as an operator does. The server checks the order like a leader's."""
        world = self.world
        found = self._pick_replica()
        if found is None or not world.is_awake(found[0]):
            return
        server, tablet = found
        leaders = [one for one in world.leaders(tablet) if one is not server]
        group = server.turn_now().groups.get(tablet)
        if not leaders or group is None or group.failure:
            return
        source, standing = leaders[0], group.standing()
        led, replica = source.holdings[tablet], server.holdings[tablet]
        role = MemberRole.VOTER if group.core.configs.current.is_voter(replica.number) else MemberRole.PRE_VOTER
        term = source.turn_now().groups[tablet].core.term
        seen = SeenReplica(replica.number, None, standing.last_term, standing.last_index)
        world.counts["copy_by_operator"] += 1
        order = StartTabletCopy(
            server.name, tablet, replica.number, role, term,
            CopySource(led.number, source.name, source.name, PORT), seen, "t",
        )  # fmt: skip
        world.at(world.now + world.chance.pick([100, 20_000]), self._arrive_if_able, server, order)

    def _arrive_if_able(self, server: SimServer, order: StartTabletCopy) -> None:
        if self.may_lose(server, order.tablet):
            self.changes.copies.arrive(order)

    def _late_order(self) -> None:
        """Deliver an old order again. Its leader may be deposed, its member removed, its copy finished."""
        world, sent = self.world, self.changes.copies.sent
        if sent:
            world.counts["copy_order_repeated"] += 1
            world.at(world.now + world.chance.below(SECOND), self.changes.copies.arrive, world.chance.pick(list(sent)))

    def _cancel_copy(self) -> None:
        runs = self.changes.copies.runs()
        if runs:
            self.world.counts["copy_canceled"] += 1
            self.world.chance.pick(runs).is_canceled = True

    def _kill_copying(self) -> None:
        """The source or the destination of a copy dies."""
        world = self.world
        runs = self.changes.copies.runs()
        if not runs:
            return
        run = world.chance.pick(runs)
        is_source = world.chance.happens(0.5)
        server = world.servers[run.order.source.uuid] if is_source else run.server
        world.counts["copy_source_killed" if is_source else "copy_destination_killed"] += 1
        world.kill(server, power=world.chance.happens(0.5))
        self._back(server)

    def _damage_file(self) -> None:
        """Damage or lose a superblock or consensus metadata while the server is down. The replica number is burned."""
        world = self.world
        found = self._pick_replica() if world.chance.happens(0.7) else self._pick_former()
        if found is None:
            return
        server, tablet = found
        world.kill(server, power=False)
        what = world.chance.pick([block_path, meta_path])(tablet)
        if what not in server.disk.files or tablet not in server.holdings:
            self._back(server)
            return
        block = server.holdings[tablet].block
        if what == meta_path(tablet) and block.memory is None and block.data_state is not DataState.READY:
            self._back(server)
            return
        slot = None if block.slot is None else server.log.slots[block.slot]
        is_lost = world.chance.happens(0.5)
        if is_lost and what == block_path(tablet) and slot is not None and not slot.has_promised():
            # A start takes it for a creation that was cut short, and the number may begin again.
            world.counts["unused_slot_spared"] += 1
            self._back(server)
            return
        self._burn(server, tablet)
        if slot is not None:  # the entries that it held until now were acknowledged correctly
            server.log.former[tablet, block.number] = slot
        if is_lost:
            server.disk.lose(what)
        else:
            server.disk.flip(what, world.chance.below(server.disk.files[what].size()), world.chance.below(8))
        server.reload()
        world.counts["file_damaged"] += 1
        self._back(server)

    def _pick_former(self) -> tuple[SimServer, str] | None:
        """Return a tombstone, or a copy that has not ended."""
        server = self._some_server()
        former = [tablet for tablet, one in server.holdings.items() if one.block.data_state is not DataState.READY]
        able = [tablet for tablet in former if self.may_lose(server, tablet)]
        return (server, self.world.chance.pick(able)) if able else None

    def _burn(self, server: SimServer, tablet: str) -> None:
        """Note that the number of a replica, and all lower ones of the server, have lost their memory."""
        number = server.holdings[tablet].block.highest_number
        for member in self.world.checks[tablet].members.values():
            if member.server is server and member.id <= number:
                member.is_burned = True

    # --- peace

    def _make_peace(self) -> None:
        world = self.world
        world.is_faulty = False
        world.cut.clear()
        world.note("peace")
        for server in world.servers.values():
            server.paused_until = min(server.paused_until, world.now)
            self._restart(server)

    def _restart(self, server: SimServer) -> None:
        try:
            self.world.restart(server)
        except Exception as error:  # counted as an event: a fault that a start rejects is a violation
            raise self.world.failure(error) from error

    def has_recovered(self, before: dict[str, int]) -> bool:
        """Return True if every tablet has one leader and new commits, all its members run and have caught up, and disks
        hold only members and tombstones."""
        world = self.world
        for tablet, check in world.checks.items():
            if not world.places[tablet]:
                continue  # it was split
            if len(world.leaders(tablet)) != 1 or check.raft.commit <= before.get(tablet, 0) + 2:
                return False
            for number, name in world.places[tablet].items():
                server = world.servers[name]
                if server.turn is None or tablet not in server.turn.groups or tablet in server.broken:
                    return False
                if server.holdings[tablet].number != number or server.turn.groups[tablet].failure:
                    return False
                if server.turn.groups[tablet].applied_index <= before.get(tablet, 0):
                    return False
        return not self.changes.copies.runs() and not any(self.leftovers(server) for server in world.servers.values())

    def leftovers(self, server: SimServer) -> list[str]:
        """Return the files on a disk that belong neither to members nor to tombstones."""
        world, disk = self.world, server.disk
        ready = {t: one for t, one in server.holdings.items() if one.block.data_state is DataState.READY}
        expected = {f"{tablet}.{one.block.generation}.mdb" for tablet, one in ready.items()}
        found = [name for name in disk.names("data") if name not in expected]
        found += [name for folder in ("tablet-meta", "consensus-meta") for name in disk.names(folder) if "." in name]
        found += [name for name in disk.names("tablet-meta") if name not in server.holdings]
        slots = {one.slot for one in ready.values()}
        found += [f"slot {slot}" for slot in server.log.slots if slot not in slots]
        for tablet, one in server.holdings.items():
            is_member = world.places[tablet].get(one.number) == server.name
            if one.run is RunState.COPYING or is_member != (one.run is RunState.RUNNING):
                found.append(f"{tablet} {one.number} {one.run}")
        return found

    def _terms(self, tablet: str) -> list[int]:
        sound = self.world.sound_members(tablet)
        return [server.turn_now().groups[tablet].core.term for server in sound]

    def _stands(self, tablet: str, term: int) -> bool:
        """Return True if a member stands for election now, or has stood for election since `term`.

        Two members may have split the vote, so that no leader was elected.
        """
        sound = self.world.sound_members(tablet)
        roles = [server.turn_now().groups[tablet].core.role for server in sound]
        return max(self._terms(tablet)) > term or any(role != FOLLOWER for role in roles)

    def _see_quick_restart(self) -> None:
        """In peace a leader's process is replaced at once: its tablets must not wait for an election timeout."""
        world = self.world
        server = self._some_leader()
        led = [tablet for tablet in world.places if world.leaders(tablet) == [server]]
        led = [tablet for tablet in led if len(world.sound_members(tablet)) > len(world.places[tablet]) // 2 + 1]
        if not led:
            return
        terms = {tablet: max(self._terms(tablet)) for tablet in led}
        world.kill(server, power=True)
        self._restart(server)
        world.counts["quick_restart_seen"] += 1
        deadline = world.now + int(QUICK_TICKS * 1.2 * TICK_US)
        while led and world.now < deadline:
            world.play_until(world.now + 10_000)
            led = [tablet for tablet in led if not self._stands(tablet, terms[tablet])]
        if led:
            raise world.failure(
                Violation(f"{server.name} restarted, and nobody stands for election in {led}: {self._state()}")
            )
        world.play_until(world.now + SECOND)
