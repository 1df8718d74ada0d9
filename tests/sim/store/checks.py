"""The checks of a simulated store: there is one history, which all nodes and clients share.

The history consists of the applied entries: the first node that applies an index records the entry, and every later
node must apply the same. A separate replica and the `Model` perform the history command by command. After each turn of
a process its digest is compared with that replica's at the same zxid. The model also checks the answers to clients
(`clients`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from coord import errors as e
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG, LEVEL, NORMAL, Entry
from coord.raft.trace import Event, TraceModel, TraceViolation
from coord.server.config.addresses import config_text
from coord.server.peers import codec
from coord.tree.command import decode_batch, encode_batch
from coord.tree.levels import decode_level
from coord.tree.machine import StateMachine
from coord.wire import records as r
from simulation.engine.history import Violation
from tests.sim.store.builds import JUDGE
from tests.sim.store.model import Expected, Model

if TYPE_CHECKING:
    from tests.sim.store.world import Process, World


class NodeView:
    """The observed state of one process."""

    def __init__(self, process: Process) -> None:
        self.applied = process.node.applied_index
        self.expiry: object = None
        self.expiry_since_ms = 0
        self.proposed = 0
        self.resent = 0
        #: Session -> this machine's monotonic time when its leader last received a sign of it.
        self.heard_ms: dict[int, int] = {}
        #: Signs of sessions in the present turn: the turn may have decided before.
        self.hearing_ms: dict[int, int] = {}
        #: Sessions whose end is decided but not proposed (leadership is being transferred).
        self.decided: set[int] = set()


class Checks:
    """The checks of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = Model()
        self.replica = StateMachine(supported=JUDGE)
        #: By index - 1: checksum of the entry, and the zxid after it.
        self.entries: list[int] = []
        self.zxids: list[int] = []
        #: By zxid: the state's digest.
        self.digests: list[int] = [self.replica.digest()]
        self._views: dict[int, NodeView] = {}
        #: Highest zxid of any answer that reached a client.
        self.told = 0
        #: (session, owner) -> xids that were committed under it, in order.
        self.performed: dict[tuple[int, int], list[int]] = {}
        self.sessions_ended: dict[int, int] = {}
        #: Session -> the machines' clocks at the time when the newest of its answered requests was sent.
        self.answered_at: dict[int, dict[int, float]] = {}
        #: Session -> (leader, its clock, timeout) when its end was last proposed.
        self.ended_by: dict[int, tuple[int, int, int]] = {}
        #: Checks Raft's events against its rules.
        self.trace = TraceModel()
        self._candidates: dict[int, set[int]] = {}
        #: Committed configurations, each with the zxid at which /zookeeper/config shows it.
        self.configs: list[tuple[int, Configuration]] = []
        #: Log index of the newest committed configuration.
        self.config_index = 0
        #: (session, xids of the writes sent over one connection of it), of every connection that had a session.
        self.sent: list[tuple[int, list[int]]] = []

    # --- processes ----------------------------------------------------------------------------------------------------

    def on_start(self, process: Process) -> None:
        """Handle a process that has recovered from its disk."""
        self._views[process.host.id] = NodeView(process)
        self._compare(process)

    def on_wiped(self, node_id: int) -> None:
        """Handle a directory that the operator has emptied."""
        self._views.pop(node_id, None)
        self.trace.forget(node_id)

    # --- Raft ---------------------------------------------------------------------------------------------------------

    def traced(self, node_id: int, events: list[Event]) -> None:
        """Handle the Raft events of a process."""
        try:
            for event in events:
                self.trace.take(node_id, event)
        except TraceViolation as violation:
            raise Violation(str(violation)) from violation

    def stands(self, node_id: int, term: int) -> None:
        """Handle a process that stands for election."""
        rivals = self._candidates.setdefault(term, set())
        rivals.add(node_id)
        self.world.counts["competing_candidates"] += len(rivals) == 2

    # --- members ------------------------------------------------------------------------------------------------------

    def config(self) -> Configuration:
        """Return the newest committed configuration."""
        return self.configs[-1][1] if self.configs else Configuration(list(range(1, self.world.size + 1)))

    def members(self) -> list[int]:
        """Return its members."""
        return self.config().members()

    def has_moved(self) -> bool:
        """Return True if the members ever changed."""
        first = list(range(1, self.world.size + 1))
        return any(config.members() != first for _, config in self.configs)

    def after_turn(self, process: Process, *, is_whole: bool = True) -> None:
        """Check the effects of a process's turn, before any of them reaches another process."""
        node = process.node
        view = self._views[process.host.id]
        if node.proposals.resent != view.resent:
            self.world.counts["resent"] += node.proposals.resent - view.resent
            view.resent = node.proposals.resent
        if node.core.leadership is not None or view.expiry is not None:
            self._look_at_leader(process, view)
        if view.hearing_ms:
            view.heard_ms.update(view.hearing_ms)
            view.hearing_ms.clear()
        if is_whole and node.failure is None:
            self._check_flags(process)
        if node.applied_index == view.applied:
            return
        if node.applied_index < view.applied:
            raise Violation(f"{process.host.id} goes back from index {view.applied} to {node.applied_index}")
        log = node.core.log
        for index in range(view.applied + 1, node.applied_index + 1):
            position = index - log.offset - 1
            if 0 <= position < len(log.entries):
                self._applied(process, log.entries[position])
            elif index > len(self.entries):
                raise Violation(f"{process.host.id} is at {node.applied_index} by a state that nobody had")
        view.applied = node.applied_index
        self.world.builds.check(process)
        if is_whole:
            self._compare(process)

    def _check_flags(self, process: Process) -> None:
        """Check that the parts of a node that claim to have no work have none, because `Node.turn_end` skips them."""
        node = process.node
        core, submission, membership, transfers = node.core, node.submission, node.membership, node._transfers
        if core.has_ready():
            return  # the turn has ended early
        skipped = []
        if not submission.is_due:
            must_announce = core.leader in submission._fresh_links and len(node.proposals.sent) > 0
            if submission.batcher.commands if core.leadership is not None else must_announce:
                skipped.append("submission")
        if not membership.is_busy and (membership._requests or membership._leading.is_busy()):
            skipped.append("membership")
        if not transfers.is_busy and (transfers._offered or transfers._inbox.restoring or transfers._freeing.trees):
            skipped.append("transfers")
        if not process.links.has_queued and process.links._queue._dirty:
            skipped.append("links")
        if skipped:
            raise Violation(f"{process.host.id} has work that its turns skip: {', '.join(skipped)}")

    def _compare(self, process: Process) -> None:
        node = process.node
        if process.host.is_odd:
            return  # so that the node can find out by itself
        index = node.applied_index
        zxid = self.zxids[index - 1] if 0 < index <= len(self.zxids) else 0 if index == 0 else -1
        machine = node.machine
        if machine.last_zxid != zxid:
            raise Violation(f"{process.host.id} is at zxid {machine.last_zxid} behind index {index}, not at {zxid}")
        if machine.digest() != self.digests[zxid]:
            raise Violation(f"{process.host.id} has another state at zxid {zxid}:{self._difference(machine, zxid)}")

    def _difference(self, machine: StateMachine, zxid: int) -> str:
        parts = []
        for path in sorted({*machine.tree.nodes, *self.model._views}):
            node = machine.tree.nodes.get(path)
            view = self.model.at(path, zxid)
            if (node is None) != (view is None) or (node is not None and view is not None and node.data != view[0]):
                parts.append(f"\n    {path!r}: {node and node.data!r}, should be {view and view[0]!r}")
        return "".join(parts[:10]) or " (not in the data)"

    def _applied(self, process: Process, entry: Entry) -> None:
        mark = crc32(entry.data, entry.term * 4 + entry.kind)
        if entry.index <= len(self.entries):
            if self.entries[entry.index - 1] != mark:
                raise Violation(f"{process.host.id} applies another entry {entry.index} than somebody did")
            return
        self.entries.append(mark)
        if entry.kind == NORMAL:
            time_ms, commands = decode_batch(entry.data)
            for command in commands:
                outcome = self.replica.apply(command, time_ms)
                self.digests.append(self.replica.digest())
                self._performed(self.model.apply(command, time_ms), outcome)
        elif entry.kind == CONFIG:
            config = decode_configuration(entry.data)
            text = config_text(config)
            outcome = self.replica.apply_membership(text)
            self.digests.append(self.replica.digest())
            self._compare_events(self.model.apply_membership(text), outcome)
            self.configs.append((self.model.zxid, config))
            self.config_index = entry.index
            self.world.counts["configurations"] += 1
        elif entry.kind == LEVEL:
            level = decode_level(entry.data)
            self.world.builds.raised(entry.index, level, self.members())
            self.replica.raise_level(entry.data)
            self.digests.append(self.replica.digest())
            self.model.raise_level(level)
        self.zxids.append(self.model.zxid)

    def _performed(self, expected: Expected, outcome: Any) -> None:
        command = expected.command
        self.world.counts["commands"] += 1
        if outcome.err != expected.err:
            raise Violation(f"zxid {expected.zxid}: err {outcome.err}, the model says {expected.err}")
        self._compare_events(expected, outcome)
        if expected.err == e.SESSION_MOVED:
            self.world.counts["moved"] += 1
        opcode = command.opcode
        if opcode in (r.OP_CLOSE_SESSION, r.OP_EXPIRE) and expected.err == e.OK:
            self.sessions_ended[command.session_id] = expected.zxid
            if opcode == r.OP_CLOSE_SESSION:
                # The client closed the session itself: a leader's earlier proposal to end it had no effect.
                self.ended_by.pop(command.session_id, None)
            self.world.counts["expired" if opcode == r.OP_EXPIRE else "closed"] += 1
        if opcode == r.OP_DELETE_CONTAINER and expected.err == e.OK:
            self.world.counts["reaped"] += 1
        if command.session_id == 0 or opcode == r.OP_AUTH or (opcode < 0 and opcode != r.OP_CLOSE_SESSION):
            return
        done = self.performed.setdefault((command.session_id, command.owner), [])
        if done and command.cxid <= done[-1]:
            raise Violation(
                f"zxid {expected.zxid}: request {command.cxid} of session {command.session_id:#x} is performed after"
                f" {done[-1]} of the same connection"
            )
        done.append(command.cxid)

    def _compare_events(self, expected: Expected, outcome: Any) -> None:
        events = [
            (kind, path, tuple((line.perms, line.scheme, line.id) for line in acl.lines))
            for kind, path, acl in outcome.events
        ]
        if events != expected.events:
            raise Violation(f"zxid {expected.zxid}: events {events}, the model says {expected.events}")

    # --- sessions: never ended before the leader's own clock allows it ------------------------------------------------

    def on_peer_frame(self, process: Process, kind: int, block: bytes, at: int, end: int) -> None:
        """Handle a frame that a process receives from a peer."""
        if kind == codec.TOUCH:
            for session_id in codec.decode_touch(block, at, end):
                self.on_heard(process, session_id)

    def on_heard(self, process: Process, session_id: int) -> None:
        """Handle a sign of a session at a process."""
        view = self._views.get(process.host.id)
        if view is not None:
            view.hearing_ms[session_id] = process.host.clock.monotonic_ms()

    def _look_at_leader(self, process: Process, view: NodeView) -> None:
        node = process.node
        if node.liveness.expiry is not view.expiry:
            view.expiry = node.liveness.expiry
            view.expiry_since_ms = process.host.clock.monotonic_ms()
        core = node.core
        if core.leadership is None:
            return
        first = max(view.proposed, core.log.offset, node.applied_index - 1000) + 1
        for index in range(first, core.log.last + 1):
            entry = core.log.entries[index - core.log.offset - 1]
            if entry.kind == NORMAL and entry.term == core.term:
                for command in decode_batch(entry.data)[1]:
                    if command.opcode == r.OP_EXPIRE and command.session_id not in view.decided:
                        self._check_expiry(process, view, command.session_id)
        view.proposed = core.log.last
        decided, view.decided = view.decided, set()
        commands = node.submission.batcher.commands
        if commands and core.leadership is not None:
            for command in decode_batch(encode_batch(0, commands))[1]:
                if command.opcode == r.OP_EXPIRE:
                    if command.session_id not in decided:
                        self._check_expiry(process, view, command.session_id)
                    view.decided.add(command.session_id)

    def on_answered(self, session_id: int, sent_at: dict[int, float], who: str) -> None:
        """Handle the answer to a client's request that was sent when the machines' clocks showed `sent_at`."""
        self.answered_at[session_id] = sent_at
        ended = self.ended_by.get(session_id)
        if ended is not None and session_id not in self.model.sessions:
            self._check_promise(session_id, who, *ended)

    def _check_promise(self, session_id: int, who: str, leader: int, now_ms: int, timeout_ms: int) -> None:
        """Check that a session outlives its last answered request by its timeout, by the clock of the leader that ends
        it."""
        sent_at = self.answered_at.get(session_id, {}).get(leader)
        if sent_at is not None and now_ms + 1 - sent_at < timeout_ms:
            raise Violation(
                f"{leader} ends session {session_id:#x} of {who} {now_ms - sent_at:.0f} ms after a request that was"
                f" answered; its timeout is {timeout_ms} ms"
            )

    def _check_expiry(self, process: Process, view: NodeView, session_id: int) -> None:
        session = self.model.sessions.get(session_id)
        if session is None:
            return
        now_ms = process.host.clock.monotonic_ms()
        self.ended_by[session_id] = (process.host.id, now_ms, session.timeout_ms)
        self._check_promise(session_id, "some client", *self.ended_by[session_id])
        since = max(view.expiry_since_ms, view.heard_ms.get(session_id, 0))
        if now_ms - since < session.timeout_ms:
            raise Violation(
                f"{process.host.id} ends session {session_id:#x} {now_ms - since} ms after it was heard of or its"
                f" leader began; its timeout is {session.timeout_ms} ms"
            )

    # --- the end ------------------------------------------------------------------------------------------------------

    def at_rest(self) -> bool:
        """Return True if every member has applied the whole history."""
        last = len(self.entries)
        processes = [self.world.hosts[node].process for node in self.members()]
        return all(process is not None and process.node.applied_index == last for process in processes)

    def overdue(self, since_ms: int) -> list[bytes]:
        """Return the znodes that the store should have deleted itself by `since_ms` of its clock."""
        return [path for path, node in self.model.nodes.items() if node.is_reapable(since_ms)]

    def _check_gaps(self) -> None:
        """Check that the performed writes of each connection are a prefix of the sent ones."""
        places: dict[tuple[int, int], list[int]] = {}
        for session_id, writes in self.sent:
            for xid in writes:
                places[session_id, xid] = writes
        for (session_id, _), performed in self.performed.items():
            writes = places.get((session_id, performed[0]), performed)
            if performed != writes[: len(performed)]:
                raise Violation(f"session {session_id:#x} sent {writes}, of which {performed} were performed")

    def at_the_end(self) -> None:
        """Compare every replica with the model, znode by znode."""
        self._check_gaps()
        try:
            self.trace.finish()
        except TraceViolation as violation:
            raise Violation(str(violation)) from violation
        for process in self.world.running():
            self._compare(process)
            if process.host.id not in self.members():
                continue
            if process.node.core.configs.current != self.config():
                raise Violation(
                    f"{process.host.id} has {process.node.core.configs.current} in force, not {self.config()}"
                )
            nodes = process.node.machine.tree.nodes
            views = {path: node.view() for path, node in self.model.nodes.items()}
            for path in sorted({*nodes, *views}):
                node = nodes.get(path)
                if node is None or path not in views:
                    raise Violation(f"{process.host.id}: {path!r} is there or gone against all expectation")
                stat = r.decode_stat(node.stat(), 0, r.STAT_BYTES)
                acl = tuple((line.perms, line.scheme, line.id) for line in node.acl.lines)
                view = (node.data or b"", *_fields(stat), stat.aversion, acl)
                if view != views[path] and not path.startswith(b"/zookeeper") and path != b"/":
                    raise Violation(f"{process.host.id}: {path!r} is {view}, should be {views[path]}")
            if set(process.node.machine.sessions.sessions) != set(self.model.sessions):
                raise Violation(f"{process.host.id} has other sessions than the history")
            for path, znode in self.model.nodes.items():
                if znode.owner and znode.owner not in self.model.sessions:
                    raise Violation(f"{path!r} has outlived its session")


def _fields(stat: r.Stat) -> tuple[int, int, int, int, int, int, int]:
    return (
        stat.czxid,
        stat.mzxid,
        stat.version,
        stat.cversion,
        stat.ephemeral_owner,
        stat.num_children,
        stat.pzxid,
    )
