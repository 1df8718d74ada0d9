"""One node's part in the store's feature level: what peers support, when the leader raises the level, and which peers
are rejected.

    hello (supported, required) --> Levels: what each peer supports, while its link is up
    leader: all members of the committed configuration have links and support more than the level in the log
            --> a LEVEL entry, committed as every other; commands after that entry are planned by the new level
    any node: a LEVEL entry in its log, committed or not, makes the level *required*; peers below are rejected

A peer that announces no level supports level 0: it is a build without feature levels. A node stops at a LEVEL entry
above its own support (`UnsupportedLevel`). Nodes below the required level get neither entries nor snapshots, so such a
node never diverges; it waits until it is started with a newer build.

Compare etcd's cluster version (the lowest version of all members, decided by the leader, never lowered) and
CockroachDB's cluster version. Here the level is a log entry and so has one position in the order of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.errors import NotLeader, ProposalDropped
from coord.raft.messages import LEVEL, Entry
from coord.server.context import NodeContext
from coord.tree.levels import LEVELS, decode_level, encode_level

log = Logger(__name__)

#: Limit of nodes outside of the configuration whose levels are kept for `Levels.newcomer`. An operator adds fewer at a
#: time; the limit bounds the memory that such nodes can use.
NON_MEMBERS_MAX: Final = 64


class Levels:
    """The feature levels of this node, its log and its peers."""

    def __init__(self, context: NodeContext, supported: int) -> None:
        """`supported` is the highest level of this node's build."""
        self._context = context
        self.supported = supported
        #: Peers with a link -> the highest level that their builds support.
        self.announced: dict[int, int] = {}
        #: (index, level) of the LEVEL entries after the applied index, in order.
        self.in_log: list[tuple[int, int]] = []
        #: Peer -> why this node's build is too old for the store, according to the peer's hello.
        self._outdated: dict[int, str] = {}
        #: Nodes that are not members and dialed with an unsuitable build -> the reason.
        self._rejected_non_members: dict[int, str] = {}
        #: Called when a higher level is required: links to peers below must be closed.
        self.on_required: Callable[[], None] = _do_nothing
        self._take(context.core.log.entries)

    def in_force(self) -> int:
        """Return the level by which this node plans commands now."""
        return self._context.machine.level

    def required(self) -> int:
        """Return the lowest level that peers must support: the level in force, or the level of a LEVEL entry in the
        log."""
        return max([self.in_force(), *(level for _, level in self.in_log)])

    # --- the log ------------------------------------------------------------------------------------------------------

    def appended(self, entries: list[Entry]) -> None:
        """Record the entries that are about to be written to the log, from whose first index on the log is replaced."""
        before = self.required()
        if self.in_log:
            first = entries[0].index
            self.in_log = [(index, level) for index, level in self.in_log if index < first]
        self._take(entries)
        if self.required() > before:
            self.on_required()

    def _take(self, entries: list[Entry]) -> None:
        applied = self._context.applied_index
        for entry in entries:
            if entry.kind == LEVEL and entry.index > applied:
                self.in_log.append((entry.index, decode_level(entry.data)))

    def applied(self, index: int) -> None:
        """Drop the LEVEL entries up to `index`: they are in force, or replaced by a snapshot."""
        if self.in_log:
            self.in_log = [(place, level) for place, level in self.in_log if place > index]

    def installed(self, index: int, before: int) -> None:
        """Record a state from the leader at `index`; `before` is the level that was required until then."""
        self.applied(index)
        if self.required() > before:
            self.on_required()

    # --- peers --------------------------------------------------------------------------------------------------------

    def peer_announced(self, peer: int, supported: int, required: int) -> None:
        """Record the levels in the hello of `peer`."""
        self.announced[peer] = supported
        if required <= self.supported:
            self._outdated.pop(peer, None)

    def peer_lost(self, peer: int) -> None:
        """Drop the levels of `peer`: its next process may be another build."""
        self.announced.pop(peer, None)

    def newcomer(self, peer: int) -> str:
        """Return why `peer` cannot be added, according to its last hello, or "" if it can."""
        return self._rejected_non_members.get(peer, "")

    def objection(self, peer: int, supported: int, required: int) -> str:
        """Return why a peer that supports `supported` and requires `required` is rejected, or "" if it is accepted."""
        why = self._objection(peer, supported, required)
        if not self._context.core.configs.current.is_member(peer):
            self._rejected_non_members.pop(peer, None)
            if why and len(self._rejected_non_members) < NON_MEMBERS_MAX:
                self._rejected_non_members[peer] = why
        return why

    def _objection(self, peer: int, supported: int, required: int) -> str:
        if supported < self.required():
            return (
                f"the build of node {peer} supports feature levels up to {supported}, the store has level"
                f" {self.required()}: start node {peer} with a build that supports level {self.required()}"
                " (docs/compatibility.md)"
            )
        if required > self.supported:
            own = self._context.settings.node_id
            why = (
                f"the build of this node ({own}) supports feature levels up to {self.supported}, node {peer} reports"
                f" that the store has level {required}: start this node with a build that supports level {required}"
                " (docs/compatibility.md)"
            )
            if self._context.core.configs.current.is_member(peer):
                self._outdated[peer] = why
            return why
        return ""

    def trouble(self) -> str:
        """Return why this node's build is too old for the store, or "" if it is not."""
        return next(iter(self._outdated.values()), "")

    def supported_by(self, member: int) -> int | None:
        """Return the highest level that a member's build supports, or None without a link to the member."""
        return self.supported if member == self._context.core.id else self.announced.get(member)

    # --- raising ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """As the leader, raise the level if all members support a higher one."""
        # All entries of earlier terms are applied, so every earlier raise is known.
        if not self._context.is_ready_to_lead():
            return
        level = self.attainable()
        if level <= self.required():
            return
        assert level <= self.supported, f"level {level}, this build supports {self.supported}"
        try:
            index = self._context.core.propose(encode_level(level), LEVEL)
        except (NotLeader, ProposalDropped):
            return
        assert not self.in_log or self.in_log[-1][0] < index, f"LEVEL entry {index} after {self.in_log[-1]}"
        self.in_log.append((index, level))
        log.info("raising the feature level to {to}: {what}", to=level, what=describe(level))
        self.on_required()

    def attainable(self) -> int:
        """Return the highest level that all members support. Return the level required now if some member's level is
        unknown.

        A member without a link may run any build. A member whose removal is not committed counts, too, because it may
        return.
        """
        core = self._context.core
        if core.configs.newest_index() > core.log.commit:
            return self.required()
        others = [peer for peer in core.configs.current.members() if peer != core.id]
        if any(peer not in self.announced for peer in others):
            return self.required()
        return min([self.supported, *(self.announced[peer] for peer in others)])


def describe(level: int) -> str:
    """Return one line that describes the changes of a level."""
    return LEVELS[level] if level < len(LEVELS) else "not known to this build"


def _do_nothing() -> None:
    """Do nothing: the default of `Levels.on_required`."""
