"""The leader's side of membership requests: check a request, carry it out step by step, answer.

    queued --> checked as ZooKeeper does --> steps (`steps.steps_to`), one committed configuration each --> answered
                     |                            |
                     +-- rejected                 +-- TRANSFER: the next leader starts over (ASK_NEXT_LEADER)

One request is carried out at a time. A participant joins as a PRE_VOTER. The Raft core makes it a voter when it has
caught up; RECONFIG waits for that, and removes the participant again if it makes no progress. A leader that is itself
to be removed transfers leadership first. If leadership ends in another way after the first step, it is unknown which
steps will be committed: OUTCOME_UNKNOWN.

The leader also writes the addresses of a new store into the first configuration, as its settings have them, and adds
the client addresses that nodes announce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from coord.errors import (
    BAD_ARGUMENTS,
    BAD_VERSION,
    NEW_CONFIG_NO_QUORUM,
    NO_AUTH,
    OK,
    RECONFIG_IN_PROGRESS,
    NotLeader,
    ProposalDropped,
    RemoteProtocolError,
)
from coord.raft.leadership import Leadership
from coord.raft.membership import Configuration
from coord.server.config.addresses import (
    PARTICIPANT,
    MemberAddress,
    decode_members,
    parse_config_text,
    parse_host_port,
    role_of,
    shown,
    with_members,
)
from coord.server.context import NodeContext
from coord.server.interfaces import PeerTransport
from coord.server.membership import steps as changes
from coord.server.membership.levels import Levels
from coord.server.membership.request import (
    ADD,
    LIST,
    OUTCOME_UNKNOWN,
    RECONFIG,
    TRANSFER,
    MembershipAnswer,
    MembershipRequest,
    RefusedError,
    ask_next_leader,
    done_at,
    refusal,
)
from coord.server.membership.steps import MembershipStep
from coord.server.peers import codec
from coord.tree.datatree import CONFIG
from coord.wire import opcodes as op

log = Logger(__name__)

#: Ticks for which a step is retried that was rejected for a temporary reason (no entry of this term yet).
STEP_TICKS_MAX: Final = 200
#: Ticks without progress after which RECONFIG removes a joining participant again.
STALL_TICKS_MAX: Final = 200
#: Limit of the leader's queue. Each client connection has at most one request in it.
REQUESTS_MAX: Final = 1000


class _Queued:
    """A request that the leader has not begun, with the node that forwarded it and that node's token."""

    def __init__(self, origin: int, token: int, request: MembershipRequest) -> None:
        self.origin = origin
        self.token = token
        self.request = request


class _Change:
    """The request that the leader carries out, and its remaining steps."""

    def __init__(self, queued: _Queued, steps: list[MembershipStep]) -> None:
        self.origin = queued.origin
        self.token = queued.token
        self.request = queued.request
        self.steps = steps
        #: Index of the last configuration appended for the request. The next step waits until it is applied.
        self.index = 0
        #: The participant whose promotion the change waits for, 0: none.
        self.joiner = 0
        #: Match index of the joiner at its last progress.
        self.match = -1
        #: Ticks since the last step, or since the joiner's last progress.
        self.ticks = 0
        self.is_handing_over = False
        #: Error of the answer after the remaining steps, None for success.
        self.refusal: RefusedError | None = None

    def waits_for_promotion(self) -> bool:
        """Return True if the answer waits until joining participants are voters."""
        return self.request.kind == RECONFIG


class MembershipLeader:
    """The requests at one node while it leads."""

    def __init__(
        self,
        context: NodeContext,
        peers: PeerTransport,
        levels: Levels,
        answered: Callable[[int, int, MembershipAnswer], None],
    ) -> None:
        """`answered(node, token, answer)` receives the answers to this node's own requests."""
        self._context = context
        self._peers = peers
        self._levels = levels
        self._answered = answered
        self._queue: list[_Queued] = []
        #: Node -> its client address, as announced and not yet in the configuration.
        self._announced: dict[int, str] = {}
        self._change: _Change | None = None

    def is_busy(self) -> bool:
        """Return True if `turn` has work to do."""
        return self._change is not None or bool(self._queue)

    def take(self, peer: int, token: int, request: MembershipRequest) -> None:
        """Queue a request that another node forwards. Raise RemoteProtocolError if the queue is full."""
        if self._context.core.leadership is None:
            self._answer(peer, token, ask_next_leader(is_checked=request.is_checked))
        elif len(self._queue) >= REQUESTS_MAX:
            raise RemoteProtocolError(f"{REQUESTS_MAX} membership requests are queued already")
        else:
            self._queue.append(_Queued(peer, token, request))

    def take_own(self, token: int, request: MembershipRequest) -> None:
        """Queue a request of a client of this node, which leads. The number of connections limits these requests."""
        assert self._context.core.leadership is not None, "a request was queued at a node that does not lead"
        self._queue.append(_Queued(self._context.core.id, token, request))

    def announced(self, node_id: int, client: str) -> None:
        """Record the client address of a node, for the next configuration."""
        self._announced[node_id] = client

    def tick(self) -> None:
        """Advance the timers, and write addresses that the configuration lacks."""
        if self._change is not None:
            self._change.ticks += 1
        self.write_addresses()

    def ended(self) -> None:
        """End all requests when this leadership ends. Requests that have not begun go to the next leader."""
        queue, self._queue = self._queue, []
        for queued in queue:
            self._answer(queued.origin, queued.token, ask_next_leader(is_checked=False))
        change, self._change = self._change, None
        self._announced.clear()
        if change is None:
            return
        if change.is_handing_over:
            is_done = change.request.kind == TRANSFER
            self._answer(change.origin, change.token, done_at(0) if is_done else ask_next_leader(is_checked=True))
        elif change.index == 0:
            self._answer(change.origin, change.token, ask_next_leader(is_checked=False))
        else:
            self._answer(change.origin, change.token, MembershipAnswer(OUTCOME_UNKNOWN))

    def _answer(self, origin: int, token: int, answer: MembershipAnswer) -> None:
        if origin == self._context.core.id:
            self._answered(origin, token, answer)
        else:
            self._peers.send(origin, codec.encode_numbered(codec.ANSWER, token, answer.encode()))

    # --- one request at a time ----------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Begin queued requests that can be checked now, and carry out the next step of the one in progress."""
        core = self._context.core
        if core.leadership is None:
            return
        # The addresses of a new store must be in the configuration before the first change of it.
        config = core.configs.current
        has_addresses = bool(config.attachment) or not any(
            i in self._context.settings.members for i in config.members()
        )
        for queued in self._queue[:]:
            if queued.request.applied > self._context.applied_index or not has_addresses:
                continue
            if queued.request.is_checked and self._change is not None:
                # The former leader transferred leadership for this request. Another request has begun here meanwhile
                # and is finished first.
                continue
            self._queue.remove(queued)
            try:
                self._begin(queued)
            except RefusedError as error:
                self._answer(queued.origin, queued.token, refusal(error))
        while self._change is not None and self._advance(self._change):
            pass

    def _begin(self, queued: _Queued) -> None:
        """Check a request in ZooKeeper's order and make it the one in progress. Raise RefusedError."""
        config = self._context.core.configs.current
        request = queued.request
        if request.kind == LIST:
            self._check_rights(request, op.PERM_READ)
            self._answer(queued.origin, queued.token, MembershipAnswer(OK, facts=self._facts()))
            return
        busy = self._in_progress(request, config)
        if busy and not request.is_checked:
            raise RefusedError(RECONFIG_IN_PROGRESS, busy)
        assert self._change is None, "two changes at a time"
        version = self._version()
        if request.kind == RECONFIG and request.version not in (-1, version):
            raise RefusedError(BAD_VERSION, f"the configuration has version {version:x}")
        self._check_rights(request, op.PERM_WRITE)
        steps = (
            self._transfer_steps(request.node_id, config)
            if request.kind == TRANSFER
            else self._member_steps(request, config)
        )
        for step in steps:
            self._is_majority_unknown(step)
        self._change = _Change(queued, steps)
        log.info("changing the members: {steps}", steps=", ".join(map(repr, steps)) or "nothing to do")

    def _member_steps(self, request: MembershipRequest, config: Configuration) -> list[MembershipStep]:
        """Return the steps from `config` to the requested members. Raise RefusedError."""
        if not config.attachment:
            raise RefusedError(BAD_ARGUMENTS, "this store has no peer addresses: start its node with one")
        target = changes.target_for(request, config)
        is_reconfig = request.kind == RECONFIG
        awaited = changes.requested_ids(request) if is_reconfig else []
        steps = changes.steps_to(target, config, self._context.core.id, renews=is_reconfig, awaited=awaited)
        for node_id in target:
            why = "" if config.is_member(node_id) else self._levels.newcomer(node_id)
            if why:
                raise RefusedError(NEW_CONFIG_NO_QUORUM, why)
        if steps and steps[0].kind == changes.TRANSFER:
            steps[0].node_id = self._next_leader(target, config)
        return steps

    def _in_progress(self, request: MembershipRequest, config: Configuration) -> str:
        """Return why this request may not begin now, or "" if it may."""
        if self._change is not None:
            steps = ", ".join(map(repr, self._change.steps)) or f"node {self._change.joiner} catches up"
            return f"another change is in progress: {steps}"
        if request.kind == ADD and config.pre_voters:
            return f"node {config.pre_voters[0]} has not caught up yet: wait for it, or remove it"
        return ""

    def _check_rights(self, request: MembershipRequest, permission: int) -> None:
        """Raise RefusedError if the client's session lacks `permission` on /zookeeper/config."""
        machine = self._context.machine
        session = machine.sessions.find(request.session)
        if session is None or not machine.tree.nodes[CONFIG].acl.allows(permission, session.identities):
            raise RefusedError(NO_AUTH, "this needs write permission on /zookeeper/config, which super has")

    def _next_leader(self, target: changes.Target, config: Configuration) -> int:
        """Return the remaining voter with the highest match index. Raise RefusedError if none is alive."""
        lead = self._context.core.leadership
        assert lead is not None, "only a leader chooses the next one"
        alive = self._counting()
        candidates = [
            (lead.by_id[i].match, i)
            for i, (_, role) in target.items()
            if role == PARTICIPANT and config.is_voter(i) and i in alive and i in lead.by_id
        ]
        if not candidates:
            raise RefusedError(NEW_CONFIG_NO_QUORUM, "none of the remaining participants answers: none could lead")
        return max(candidates)[1]

    def hand_over(self) -> bool:
        """Transfer leadership to the connected voter that has most of the log, without a request.

        Return False if this node does not lead or no voter can take over.
        """
        core = self._context.core
        lead = core.leadership
        if lead is None:
            return False
        voters = core.configs.current.voters
        candidates = [p for p in lead.peers if p.peer in voters and p.counts and self._peers.is_connected(p.peer)]
        if not candidates:
            return False
        best = max(candidates, key=lambda p: (p.match, p.peer))
        try:
            core.transfer_leadership(best.peer)
        except (ProposalDropped, NotLeader):
            return False
        return True

    def _transfer_steps(self, next_leader: int, config: Configuration) -> list[MembershipStep]:
        if next_leader == self._context.core.id:
            return []
        if not config.is_voter(next_leader):
            raise RefusedError(BAD_ARGUMENTS, f"node {next_leader} is not a participant; these are: {config.voters}")
        if next_leader not in self._counting():
            raise RefusedError(NEW_CONFIG_NO_QUORUM, f"node {next_leader} does not answer")
        return [MembershipStep(changes.TRANSFER, next_leader)]

    def _advance(self, change: _Change) -> bool:
        """Carry out one step. Return False if the change must wait or is finished."""
        core = self._context.core
        if change.index > self._context.applied_index:
            return False
        if change.is_handing_over:
            lead = core.leadership
            if lead is not None and lead.transferee == 0:
                why = "the transfer of leadership timed out; nothing has changed"
                self._finish(change, RefusedError(NEW_CONFIG_NO_QUORUM, why))
            return False
        if change.joiner:
            return self._await_promotion(change)
        if not change.steps:
            self._finish(change, change.refusal)
            return False
        step = change.steps[0]
        try:
            if step.kind == changes.TRANSFER:
                assert step.node_id, "a transfer of leadership without a target"
                core.transfer_leadership(step.node_id)
                change.is_handing_over = True
                return False
            if self._is_majority_unknown(step):
                return False
            change.index = core.propose_config(step.apply(core.configs.current))
        except RefusedError as error:
            self._finish(change, error)
            return False
        except (ProposalDropped, NotLeader) as error:
            if change.ticks > STEP_TICKS_MAX:
                self._finish(change, RefusedError(RECONFIG_IN_PROGRESS, str(error)))
            return False
        assert change.index > self._context.applied_index, "a step was applied before it was committed"
        change.steps.pop(0)
        change.ticks = 0
        if step.kind == changes.ADD and step.role == PARTICIPANT and change.waits_for_promotion():
            change.joiner = step.node_id
            change.match = -1
        return False

    def _await_promotion(self, change: _Change) -> bool:
        """Wait until the joiner is a voter; remove the joiner if it makes no progress. Return True if a step
        remains."""
        core = self._context.core
        config = core.configs.current
        joiner = change.joiner
        assert joiner, "no node is joining"
        if config.is_voter(joiner):
            change.index = core.configs.newest_index()
            change.joiner = 0
            return True
        lead = core.leadership
        progress = lead.by_id.get(joiner) if lead is not None else None
        if progress is not None and (progress.match > change.match or progress.snapshot_index):
            change.match = progress.match
            change.ticks = 0
        if change.ticks > STALL_TICKS_MAX or not config.is_member(joiner):
            change.joiner = 0
            change.steps = [MembershipStep(changes.REMOVE, joiner)] if config.is_member(joiner) else []
            change.refusal = RefusedError(NEW_CONFIG_NO_QUORUM, f"node {joiner} does not catch up: is it running?")
            return True
        return False

    def _finish(self, change: _Change, error: RefusedError | None) -> None:
        assert self._change is change, "a change ended that is not in progress"
        self._change = None
        if error is None:
            self._answer(change.origin, change.token, done_at(change.index))
        else:
            log.warn("rejected membership change: {why}", why=error.text)
            self._answer(change.origin, change.token, refusal(error))

    def _alive(self) -> list[int]:
        """Return the members that sent a message within an election timeout, this node included."""
        core = self._context.core
        lead = core.leadership
        if lead is None:
            return []
        oldest = lead.now - lead.settings.election_ticks
        return [core.id, *(p.peer for p in lead.peers if p.last_received > oldest and self._peers.is_connected(p.peer))]

    def _counting(self) -> list[int]:
        """Return the nodes of `_alive` whose votes count."""
        lead = self._context.core.leadership
        return [i for i in self._alive() if lead is None or i not in lead.by_id or lead.by_id[i].counts]

    def _is_majority_unknown(self, step: MembershipStep) -> bool:
        """Return True if it is too early to decide whether the remaining voters have an answering majority.

        A voter that has never replied to this leader may have lost its disk. A change that only such a voter could
        commit would leave the store without a leader for good. An election timeout is enough time for a reply. Raise
        RefusedError if the remaining voters have no answering majority.
        """
        core = self._context.core
        lead = core.leadership
        if lead is None:
            return True
        counting = [i for i in self._counting() if i not in lead.by_id or lead.by_id[i].memory >= 0]
        try:
            changes.check_majority(step, core.configs.current, counting)
        except RefusedError:
            if lead.now > lead.settings.election_ticks:
                raise
            return True
        return False

    # --- addresses ----------------------------------------------------------------------------------------------------

    def write_addresses(self) -> None:
        """Propose a configuration with the addresses in the settings, if it has none, and the announced ones."""
        core = self._context.core
        settings = self._context.settings
        if core.leadership is None or self._change is not None or not (self._announced or settings.members):
            return
        config = core.configs.current
        if config.attachment and not self._announced:
            return
        members = decode_members(config.attachment)
        if not config.attachment:
            members = {i: settings.members[i] for i in config.members() if i in settings.members}
        for peer, text in self._announced.items():
            member = members.get(peer)
            if member is not None and member.client is None:
                try:
                    members[peer] = MemberAddress(peer, member.peer, member.election_port, parse_host_port(text))
                except ValueError:
                    log.warn("ignored the client address {text!r} announced by node {peer}", peer=peer, text=text)
        wanted = with_members(config, members)
        if wanted == config:
            self._announced.clear()
            return
        try:
            core.propose_config(wanted)
        except ProposalDropped:
            return  # another configuration is not committed yet; the next tick tries again
        self._announced.clear()

    # --- views --------------------------------------------------------------------------------------------------------

    def _version(self) -> int:
        data = self._context.machine.tree.nodes[CONFIG].data
        return parse_config_text(data)[1] if data else 0

    def _facts(self) -> dict[str, Any]:
        """Return the fields of `rk coord list`, as the leader sees them."""
        core = self._context.core
        config = core.configs.current
        lead = core.leadership
        known = decode_members(config.attachment)
        alive = self._alive()
        nodes = []
        for i in config.members():
            member = known.get(i)
            progress = lead.by_id.get(i) if lead is not None else None
            is_leader = i == core.id
            nodes.append(
                {
                    "id": i,
                    "role": "joining" if i in config.pre_voters or _has_forgotten(lead, i) else role_of(config, i),
                    "is_leader": is_leader,
                    "is_up": i in alive,
                    "supported_level": self._levels.supported_by(i),
                    "behind": 0 if is_leader else core.log.last - progress.match if progress is not None else None,
                    "peer": shown(member.peer) if member is not None else "",
                    "client": shown(member.client) if member is not None and member.client is not None else "",
                }
            )
        settled = core.configs.newest_index() <= core.log.commit
        facts = {"nodes": nodes, "version": self._version(), "term": core.term, "is_settled": settled}
        return {**facts, "level": self._levels.in_force()}


def _has_forgotten(lead: Leadership | None, node_id: int) -> bool:
    """Return True for a voter that restarted without its memory and has not been removed yet."""
    progress = lead.by_id.get(node_id) if lead is not None else None
    return progress is not None and not progress.counts and lead is not None and lead.config.is_voter(node_id)
