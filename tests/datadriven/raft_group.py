"""A Raft group under manual control: it changes only by commands.

After each command the affected nodes carry out the effects of their cores: they write, sync at once (unless `slow`),
apply, and put messages on the wire, where they stay until delivered. Every core is validated after every step. Nodes
are ids, links are written 1->2. Commands:

    group voters=1,2,3 [spares=4,5] [learners=4] [inflight=n] [append_bytes=n] [promotion=careful]
                                 start over with these nodes
    campaign N                   the node's election timer fires
    elect N                      a whole election, only its result is printed
    quiet                        no node has received a leader's message lately
    tick N [count]               ticks pass on a node
    deliver [N | A->B] [count]   what is on the wire arrives, once
    run [N ...]                  deliver (to these nodes only) until nothing moves
    drop [N | A->B]              what is on the wire is lost
    cut A B / heal               a link, both ways, from now on / all links
    stash A->B NAME              take from the wire
    replay NAME                  deliver a copy of that now
    propose N data [data ...]    writes, in one turn
    change N voters=.. [pre_voters=..] [learners=..]
    ask N voters=.. [...]        the same, carefully: the refusal is printed with its reason
    committed N                  the newest committed configuration, with its id
    read N context [patient] / transfer N to
    down N peer [ticks]          the node sees its link to the peer break; after so many ticks it stands for election
    slow N / sync N [count]      its disk delays syncs / finishes some writes, or all and is fast again
    crash N / start N / wipe N [memory]     from what was synced / its disk is empty, and remembers as that
    snapshot N / compact N i     at the applied index / the log up to i
    sent N peer ok|failed        the transfer of a snapshot ended
    status [N] / log N / peers N
"""

from __future__ import annotations

from coord.errors import ConfigRefused, RetryableError
from coord.raft.core import RaftConfig, RaftCore
from coord.raft.membership import FIRST_MEMORY, Configuration
from coord.raft.messages import Entry, HardState, Message, RaftSnapshot, Ready, bootstrap
from tests.support import raft_describe as describe


class _Order:
    """A random source without randomness: it spreads timers by node id."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id

    def below(self, n: int) -> int:
        """Return the node id modulo the limit."""
        return self.node_id % n


class _Node:
    def __init__(self, node_id: int, settings: RaftConfig, first: RaftSnapshot) -> None:
        self.id = node_id
        self.settings = settings
        self.snapshot = first
        self.hard_state = HardState(0, 0)
        self.log: list[Entry] = []
        self.unsynced: list[Ready] = []
        self.slow = False
        self.memory = FIRST_MEMORY
        self.core: RaftCore | None = None
        self.start()

    def start(self) -> None:
        self.unsynced = []
        self.core = RaftCore(
            self.id, self.settings, _Order(self.id), self.snapshot, self.hard_state, list(self.log), self.memory
        )

    def perform(self, r: Ready) -> None:
        if r.snapshot is not None:
            self.snapshot = r.snapshot
            self.log = []
        if r.hard_state is not None:
            self.hard_state = r.hard_state
        if r.entries:
            first = r.entries[0].index
            self.log = [entry for entry in self.log if entry.index < first] + r.entries


def _configuration(args: tuple[str, ...]) -> Configuration:
    roles = {k: [int(i) for i in v.split(",")] for k, v in (arg.split("=") for arg in args)}
    return Configuration(roles["voters"], roles.get("pre_voters"), roles.get("learners"))


class RaftGroup:
    """The interpreter of the commands above."""

    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}
        self.wire: list[Message] = []
        self.stashes: dict[str, list[Message]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.out: list[str] = []

    def run(self, command: str) -> list[str]:
        """Perform one command and return its output. A rejection is `error: ...`."""
        self.out = []
        name, *args = command.split()
        try:
            getattr(self, f"do_{name}")(*args)
        except RetryableError as error:
            self.out.append(f"error: {error}")
        for node in self.nodes.values():
            if node.core is not None:
                node.core.validate()
        return self.out or ["ok"]

    # --- the shell

    def _pump(self, node: _Node) -> None:
        core = node.core
        if core is not None:
            core.validate()
        while core is not None and core.has_ready():
            r = core.ready()
            core.validate()
            self.out += [f"{node.id} {line}" for line in describe.ready(r)]
            self._post(r.messages)
            node.unsynced.append(r)
            if not node.slow:
                self._sync(node)

    def _sync(self, node: _Node, count: int = 1 << 30) -> None:
        done, node.unsynced = node.unsynced[:count], node.unsynced[count:]
        for r in done:
            node.perform(r)
            assert node.core is not None
            node.core.persisted(r.number)
            node.core.validate()
            self._post(r.messages_after_persist)

    def _post(self, messages: list[Message]) -> None:
        self.wire += [m for m in messages if (m.src, m.dst) not in self.cuts]

    def _node(self, text: str) -> tuple[_Node, RaftCore]:
        node = self.nodes[int(text)]
        assert node.core is not None, f"{text} is down"
        return node, node.core

    def _take(self, what: str) -> list[Message]:
        """Remove from the wire the messages to a node, over a link, or all ("")."""
        if "->" in what:
            src, dst = map(int, what.split("->"))
            taken = [m for m in self.wire if m.src == src and m.dst == dst]
        elif what:
            taken = [m for m in self.wire if m.dst == int(what)]
        else:
            taken = list(self.wire)
        self.wire = [m for m in self.wire if m not in taken]
        return taken

    def _deliver(self, messages: list[Message]) -> None:
        for m in messages:
            node = self.nodes[m.dst]
            if node.core is not None:
                self.out.append(f"{m.dst} < {describe.message(m)}")
                node.core.step(m)
                self._pump(node)

    # --- commands

    def do_group(self, *args: str) -> None:
        options = dict(arg.split("=") for arg in args)

        def ids(name: str) -> list[int]:
            return [int(i) for i in options.get(name, "").split(",") if i]

        settings = RaftConfig(
            max_inflight=int(options.get("inflight", 64)),
            max_append_bytes=int(options.get("append_bytes", 1 << 20)),
            is_promotion_careful=options.get("promotion") == "careful",
        )
        first = bootstrap(ids("voters"), ids("learners"))
        everybody = sorted(ids("voters") + ids("learners") + ids("spares"))
        self.__init__()  # type: ignore[misc]
        self.nodes = {i: _Node(i, settings, first) for i in everybody}

    def do_campaign(self, node_id: str) -> None:
        node, core = self._node(node_id)
        core.elapsed = core.timeout - 1
        core.tick()
        self._pump(node)

    def do_quiet(self) -> None:
        for node in self.nodes.values():
            if node.core is not None:
                node.core.elapsed = max(node.core.elapsed, node.settings.election_ticks)

    def do_elect(self, node_id: str) -> None:
        self.do_quiet()
        self.do_campaign(node_id)
        self.do_run()
        self.out = []
        self.do_status(node_id)

    def do_tick(self, node_id: str, count: str = "1") -> None:
        node, core = self._node(node_id)
        for _ in range(int(count)):
            core.tick()
            self._pump(node)

    def do_deliver(self, what: str = "", count: str = "") -> None:
        taken = self._take(what)
        if count:
            self.wire = taken[int(count) :] + self.wire
            taken = taken[: int(count)]
        self._deliver(taken)

    def do_run(self, *only: str) -> None:
        for _ in range(200):
            taken = [m for m in self.wire if not only or str(m.dst) in only]
            if not taken:
                return
            self.wire = [m for m in self.wire if m not in taken]
            self._deliver(taken)
        raise AssertionError("the group does not come to rest")

    def do_drop(self, what: str = "") -> None:
        self.out += [f"lost {describe.message(m)}" for m in self._take(what)]

    def do_stash(self, what: str, name: str) -> None:
        self.stashes[name] = self._take(what)
        self.out += [f"kept {describe.message(m)}" for m in self.stashes[name]]

    def do_replay(self, name: str) -> None:
        self._deliver(self.stashes[name])

    def do_cut(self, a: str, b: str) -> None:
        self.cuts |= {(int(a), int(b)), (int(b), int(a))}
        self.wire = [m for m in self.wire if (m.src, m.dst) not in self.cuts]

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_propose(self, node_id: str, *data: str) -> None:
        node, core = self._node(node_id)
        for one in data:
            core.propose(one.encode())
        self._pump(node)

    def do_change(self, node_id: str, *args: str) -> None:
        node, core = self._node(node_id)
        core.propose_config(_configuration(args))
        self._pump(node)

    def do_ask(self, node_id: str, *args: str) -> None:
        node, core = self._node(node_id)
        try:
            core.propose_config(_configuration(args), True)
        except ConfigRefused as error:
            self.out.append(f"{error.refusal.name}: {error}")
        self._pump(node)

    def do_committed(self, node_id: str) -> None:
        found = self._node(node_id)[1].committed_config()
        self.out.append(f"{found.term}.{found.index} {found.config}")

    def do_read(self, node_id: str, context: str, how: str = "") -> None:
        node, core = self._node(node_id)
        core.read_index(int(context), how == "patient")
        self._pump(node)

    def do_transfer(self, node_id: str, to: str) -> None:
        node, core = self._node(node_id)
        core.transfer_leadership(int(to))
        self._pump(node)

    def do_down(self, node_id: str, peer: str, ticks: str = "0") -> None:
        node, core = self._node(node_id)
        core.peer_down(int(peer), int(ticks))
        self._pump(node)

    def do_slow(self, node_id: str) -> None:
        self.nodes[int(node_id)].slow = True

    def do_sync(self, node_id: str, count: str = "") -> None:
        node = self.nodes[int(node_id)]
        if count:
            self._sync(node, int(count))
        else:
            node.slow = False
            self._sync(node)
        self._pump(node)

    def do_crash(self, node_id: str) -> None:
        self.nodes[int(node_id)].core = None

    def do_start(self, node_id: str) -> None:
        node = self.nodes[int(node_id)]
        node.slow = False
        node.start()
        self._pump(node)
        self.do_status(node_id)

    def do_wipe(self, node_id: str, memory: str = "") -> None:
        node = self.nodes[int(node_id)]
        node.memory = int(memory, 16) if memory else node.memory
        node.hard_state = HardState(0, 0)
        node.snapshot = RaftSnapshot(0, 0, node.snapshot.config)
        node.log = []

    def do_snapshot(self, node_id: str) -> None:
        node, core = self._node(node_id)
        meta = core.snapshot_meta(core.log.applying)
        node.snapshot = meta
        core.snapshot_saved(meta)
        self.out.append(f"{node_id} saved {describe.snapshot(meta)}")

    def do_compact(self, node_id: str, index: str) -> None:
        node, core = self._node(node_id)
        core.compacted(int(index))
        node.log = [entry for entry in node.log if entry.index > int(index)]

    def do_sent(self, node_id: str, peer: str, how: str) -> None:
        node, core = self._node(node_id)
        core.snapshot_status(int(peer), how == "ok")
        self._pump(node)

    def do_status(self, *only: str) -> None:
        for node in self.nodes.values():
            if not only or str(node.id) in only:
                self.out.append(describe.core(node.core) if node.core is not None else f"{node.id} down")

    def do_log(self, node_id: str) -> None:
        _, core = self._node(node_id)
        self.out += [describe.entry(entry) for entry in core.log.entries]

    def do_peers(self, node_id: str) -> None:
        _, core = self._node(node_id)
        self.out += describe.leadership(core.leadership) if core.leadership is not None else ["no leader"]
