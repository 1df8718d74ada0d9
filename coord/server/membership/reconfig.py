"""The members of the store while it runs: what clients and operators wish for, and the leader who does it.

    client ──wish──> its node ──ASK──> leader: allowed? possible? one step, committed; the next step; …
    client <─reply── its node <─ANSWER(index)──   the node replies once it has applied that index, too

One wish at a time. A participant joins as a PRE_VOTER: the core makes it a voter once it has caught up, and `reconfig`
waits for that. Whoever is removed while it leads hands over first; the answer "again" sends the wish to the heir. If
the leader ends otherwise nobody can say how much was done, and the client's connection is closed: ConnectionLoss, as
for any write. What was begun is no secret: /zookeeper/config and `rk coord list` tell it.

The addresses of a new store come from its settings: the first leader writes them into the configuration as soon as
it may. A node whose client address nobody has told announces it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from twisted.logger import Logger

from coord.errors import (
    BAD_ARGUMENTS,
    BAD_VERSION,
    NEW_CONFIG_NO_QUORUM,
    NO_AUTH,
    OK,
    RECONFIG_DISABLED,
    RECONFIG_IN_PROGRESS,
    NotLeader,
    ProposalDropped,
    RemoteProtocolError,
)
from coord.raft.leadership import Leadership
from coord.raft.membership import Configuration
from coord.server.clients.connection import Connection, Pending
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
from coord.server.membership import steps as changes
from coord.server.membership.levels import Levels
from coord.server.membership.steps import MembershipStep, RefusedError
from coord.server.net.interfaces import PeerDoor
from coord.server.peers import codec, hello_frames
from coord.tree.datatree import CONFIG
from coord.tree.node import I32_MAX
from coord.wire import opcodes as op
from coord.wire.jute import buffer
from coord.wire.records import decode_reconfig, decode_sasl

log = Logger()

#: A step that is refused for a reason that passes (no entry of this term yet) is tried again for so many ticks.
STEP_TICKS_MAX: Final = 200
#: A joining participant that makes no progress for so many ticks is not waited for any longer.
STALL_TICKS_MAX: Final = 200
#: A leader that is none any more has so many ticks to say what became of the wishes it had.
FAREWELL_TICKS: Final = 20
#: Wishes that nodes may bring before the leader has looked at them. Each client's connection has one at a time.
WISHES_MAX: Final = 1000
#: The longest client address that a node may announce: a host name has at most 253 characters.
ADDRESS_CHARS_MAX: Final = 300
#: How often a node announces its client address until it is known.
ANNOUNCE_TICKS: Final = 20
#: Answers that the client does not get: ask the next leader; nobody knows what became of it.
_AGAIN: Final = 1
_LOST: Final = 2


class _Wish:
    """A client's wish, at the node that has its connection."""

    def __init__(self, connection: Connection, pending: Pending, wish: dict[str, Any]) -> None:
        self.connection = connection
        self.pending = pending
        self.wish = wish
        #: Whom it was sent to, 0: nobody yet.
        self.leader = 0
        #: Ticks since that leader was seen to lead no more.
        self.orphaned = 0
        self.answer: dict[str, Any] | None = None


class _Work:
    """A wish that this node, as the leader, is fulfilling."""

    def __init__(self, origin: int, token: int, wish: dict[str, Any], steps: list[MembershipStep]) -> None:
        self.origin = origin
        self.token = token
        self.wish = wish
        self.steps = steps
        #: The last configuration that was appended for it; it goes on when that is applied.
        self.index = 0
        #: The participant whose promotion it waits for, how much of the log that had and when that grew.
        self.joiner = 0
        self.match = -1
        self.ticks = 0
        self.is_handing_over = False
        #: What to say in the end.
        self.refusal: RefusedError | None = None

    def waits(self) -> bool:
        """Whether the answer waits until joining participants vote."""
        return bool(self.wish["do"] == "reconfig")


class Reconfiguration:
    """One node's part in it: its clients' wishes, and as the leader everybody's."""

    def __init__(self, context: NodeContext, peers: PeerDoor, levels: Levels) -> None:
        self._context = context
        self._peers = peers
        self._levels = levels
        self._wishes: dict[int, _Wish] = {}
        self._next_token = 1
        #: As the leader: (origin, token, wish) not looked at yet, and client addresses that nodes have announced.
        self._queue: list[tuple[int, int, dict[str, Any]]] = []
        self._announced: dict[int, str] = {}
        self._work: _Work | None = None
        self._ticks = 0
        #: 16 bytes that this store has and no other.
        self.cluster = bytes(16)
        #: The configuration at the applied index that says this node is no member any more; 0: it is, or never was.
        self.removed_at = 0

    # --- this node's clients ------------------------------------------------------------------------------------------

    def asked(self, connection: Connection, pending: Pending) -> None:
        """A client's RECONFIG or MEMBERSHIP request has come in."""
        try:
            wish = _read_wish(pending.opcode, pending.body)
            if wish["do"] != "list" and not self._context.settings.reconfig_enabled:
                raise RefusedError(
                    RECONFIG_DISABLED,
                    "changes of the members are switched off on this node: see reconfigEnabled",
                )
            changes.check_lines(wish)
        except RefusedError as error:
            self._keep(_Wish(connection, pending, {})).answer = _refusal(error)
            return
        wish["session"] = connection.session_id
        self._keep(_Wish(connection, pending, wish))

    def _keep(self, wish: _Wish) -> _Wish:
        self._wishes[self._next_token] = wish
        self._next_token += 1
        return wish

    def is_busy(self) -> bool:
        """Whether `turn` has anything to look at."""
        return bool(self._wishes) or self._work is not None or bool(self._queue)

    def turn(self) -> None:
        """Do what can be done now: send wishes, answer them, take the next step of the one that is worked on."""
        core = self._context.core
        for token in list(self._wishes):
            wish = self._wishes[token]
            if wish.connection.is_closed:
                del self._wishes[token]
            elif wish.connection.pending[0] is not wish.pending:
                continue
            elif wish.answer is not None:
                if wish.answer["index"] <= self._context.applied_index:
                    del self._wishes[token]
                    self._reply(wish, wish.answer)
            elif wish.leader == 0 and core.leader:
                wish.wish["applied"] = self._context.applied_index
                if core.leadership is not None:
                    wish.leader = core.id
                    self._queue.append((core.id, token, wish.wish))
                elif self._peers.send(
                    core.leader, codec.encode_numbered(codec.ASK, token, json.dumps(wish.wish).encode())
                ):
                    wish.leader = core.leader
        self._lead()

    def _reply(self, wish: _Wish, answer: dict[str, Any]) -> None:
        pipeline = self._context.pipeline
        if wish.pending.opcode == op.OP_MEMBERSHIP:
            facts = {"code": answer["code"], "error": answer["text"], **answer.get("facts", {})}
            pipeline.answer_membership_request(wish.connection, wish.pending, OK, buffer(json.dumps(facts).encode()))
            return
        if answer["code"]:
            log.info("reconfig refused: {why}", why=answer["text"])
            pipeline.answer_membership_request(wish.connection, wish.pending, answer["code"], b"")
            return
        znode = self._context.machine.tree.nodes[CONFIG]
        pipeline.answer_membership_request(wish.connection, wish.pending, OK, buffer(znode.data) + znode.stat())

    def answered(self, peer: int, token: int, text: bytes) -> None:
        """The leader's ANSWER. Raises RemoteProtocolError."""
        answer = {"text": "", "checked": False, **_load(text)}
        code = answer.get("code")
        if type(code) is not int or abs(code) > I32_MAX or not isinstance(answer.get("facts", {}), dict):
            raise RemoteProtocolError("unreadable answer to a wish")
        if not isinstance(answer["text"], str) or type(answer["checked"]) is not bool:
            raise RemoteProtocolError("unreadable answer to a wish")
        if code not in (_AGAIN, _LOST) and (type(answer.get("index")) is not int or answer["index"] < 0):
            raise RemoteProtocolError("an answer to a wish without an index")
        self._take_answer(peer, token, answer)

    def _take_answer(self, leader: int, token: int, answer: dict[str, Any]) -> None:
        wish = self._wishes.get(token)
        if wish is None or wish.leader != leader:
            return
        if answer["code"] == _AGAIN:
            wish.leader = wish.orphaned = 0
            wish.wish["checked"] = answer["checked"]
        elif answer["code"] == _LOST:
            self._lost(token)
        else:
            wish.answer = answer

    # --- the end of leaderships and links -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Time passes."""
        self._ticks += 1
        core = self._context.core
        for token in list(self._wishes):
            wish = self._wishes[token]
            if wish.leader and wish.answer is None and core.leader and wish.leader != core.leader:
                wish.orphaned += 1
                if wish.orphaned > FAREWELL_TICKS:
                    self._lost(token)
        if self._work is not None:
            self._work.ticks += 1
        self._write_addresses()
        if self._ticks % ANNOUNCE_TICKS == 1:
            self._announce()

    def peer_lost(self, peer: int) -> None:
        """The link to or from `peer` broke: what it was asked may never be answered."""
        for token in [t for t, wish in self._wishes.items() if wish.leader == peer and wish.answer is None]:
            self._lost(token)

    def _lost(self, token: int) -> None:
        self._context.clients.close(self._wishes.pop(token).connection)

    def leadership_settled(self) -> None:
        """This node leads, and has applied everything of earlier terms."""
        self._write_addresses()

    def leadership_ended(self) -> None:
        """This node leads no more: wishes not begun go to the next leader, of others nobody knows."""
        queue, self._queue = self._queue, []
        for origin, token, _ in queue:
            self._answer(origin, token, {"code": _AGAIN, "checked": False})
        work, self._work = self._work, None
        self._announced.clear()
        if work is None:
            return
        if work.is_handing_over:
            done = work.wish["do"] == changes.TRANSFER
            self._answer(work.origin, work.token, _done(0) if done else {"code": _AGAIN, "checked": True})
        elif work.index == 0:
            self._answer(work.origin, work.token, {"code": _AGAIN, "checked": False})
        else:
            self._answer(work.origin, work.token, {"code": _LOST})

    # --- leading ------------------------------------------------------------------------------------------------------

    def ask(self, peer: int, token: int, text: bytes) -> None:
        """A node brings a client's wish, or its own address. Raises RemoteProtocolError."""
        wish = _load(text)
        if wish.get("do") == "announce":
            client = wish.get("client")
            if not isinstance(client, str) or len(client) > ADDRESS_CHARS_MAX:
                raise RemoteProtocolError("an unreadable client address")
            self._announced[peer] = client
            return
        _check_brought(wish)
        if self._context.core.leadership is None:
            self._answer(peer, token, {"code": _AGAIN, "checked": bool(wish.get("checked"))})
        elif len(self._queue) >= WISHES_MAX:
            raise RemoteProtocolError(f"{WISHES_MAX} wishes wait already")
        else:
            self._queue.append((peer, token, wish))

    def _answer(self, origin: int, token: int, answer: dict[str, Any]) -> None:
        if origin == self._context.core.id:
            self._take_answer(origin, token, answer)
        else:
            self._peers.send(origin, codec.encode_numbered(codec.ANSWER, token, json.dumps(answer).encode()))

    def _lead(self) -> None:
        core = self._context.core
        if core.leadership is None:
            return
        # The addresses of a new store come first: whatever is wished for is a change of them.
        config = core.configs.current
        has_begun = bool(config.attachment) or not any(i in self._context.settings.members for i in config.members())
        for origin, token, wish in self._queue[:]:
            if wish["applied"] > self._context.applied_index or not has_begun:
                continue
            if wish.get("checked") and self._work is not None:
                # Its leader handed over for it. Meanwhile another wish has begun here, and is done first.
                continue
            self._queue.remove((origin, token, wish))
            try:
                self._begin(origin, token, wish)
            except RefusedError as error:
                self._answer(origin, token, _refusal(error))
        while self._work is not None and self._advance(self._work):
            pass

    def _begin(self, origin: int, token: int, wish: dict[str, Any]) -> None:
        """Check a wish as ZooKeeper does, in its order, and make it the one that is worked on."""
        config = self._context.core.configs.current
        do = wish["do"]
        if do == "list":
            self._check_rights(wish, op.PERM_READ)
            self._answer(origin, token, {**_done(0), "facts": self._facts()})
            return
        busy = self._in_progress(do, config)
        if busy and not wish.get("checked"):
            raise RefusedError(RECONFIG_IN_PROGRESS, busy)
        version = self._version()
        if do == "reconfig" and wish["version"] not in (-1, version):
            raise RefusedError(BAD_VERSION, f"the configuration has version {version:x}")
        self._check_rights(wish, op.PERM_WRITE)
        if do == changes.TRANSFER:
            steps = self._transfer_steps(int(wish["id"]), config)
        else:
            if not config.attachment:
                raise RefusedError(BAD_ARGUMENTS, "this store knows no peer addresses: start its node with one")
            target = changes.target_for(wish, config)
            awaited = changes.named(wish) if do == "reconfig" else []
            steps = changes.steps_to(target, config, self._context.core.id, renews=do == "reconfig", awaited=awaited)
            for node_id in target:
                if not config.is_member(node_id) and self._levels.newcomer(node_id):
                    raise RefusedError(NEW_CONFIG_NO_QUORUM, self._levels.newcomer(node_id))
            if steps and steps[0].kind == changes.TRANSFER:
                steps[0].node_id = self._heir(target, config)
        for step in steps:
            self._loses_majority(step)
        self._work = _Work(origin, token, wish, steps)
        log.info("members are to change: {steps}", steps=", ".join(map(repr, steps)) or "nothing")

    def _in_progress(self, do: str, config: Configuration) -> str:
        """Why nothing else may begin; "" when it may."""
        if self._work is not None:
            steps = ", ".join(map(repr, self._work.steps)) or f"node {self._work.joiner} catches up"
            return f"another change is in progress: {steps}"
        if do == changes.ADD and config.pre_voters:
            return f"node {config.pre_voters[0]} has not caught up yet: wait for it, or remove it"
        return ""

    def _check_rights(self, wish: dict[str, Any], permission: int) -> None:
        machine = self._context.machine
        session = machine.sessions.find(wish["session"])
        if session is None or not machine.tree.nodes[CONFIG].acl.allows(permission, session.identities):
            raise RefusedError(NO_AUTH, "this needs write permission on /zookeeper/config: super has it")

    def _heir(self, target: changes.Target, config: Configuration) -> int:
        """Of those who stay and vote already, the one that holds most of the log. Raises RefusedError."""
        lead = self._context.core.leadership
        assert lead is not None
        alive = self._counting()
        heirs = [
            (lead.by_id[i].match, i)
            for i, (_, role) in target.items()
            if role == PARTICIPANT and config.is_voter(i) and i in alive and i in lead.by_id
        ]
        if not heirs:
            raise RefusedError(NEW_CONFIG_NO_QUORUM, "of the participants that stay none answers: nobody could lead")
        return max(heirs)[1]

    def _transfer_steps(self, heir: int, config: Configuration) -> list[MembershipStep]:
        if heir == self._context.core.id:
            return []
        if not config.is_voter(heir):
            raise RefusedError(BAD_ARGUMENTS, f"node {heir} is no participant; they are {config.voters}")
        if heir not in self._counting():
            raise RefusedError(NEW_CONFIG_NO_QUORUM, f"node {heir} does not answer")
        return [MembershipStep(changes.TRANSFER, heir)]

    def _advance(self, work: _Work) -> bool:
        """One step further; False when there is something to wait for, or the work is done."""
        core = self._context.core
        if work.index > self._context.applied_index:
            return False
        if work.is_handing_over:
            lead = core.leadership
            if lead is not None and lead.transferee == 0:
                self._finish(work, RefusedError(NEW_CONFIG_NO_QUORUM, "the hand-over took too long; nothing changed"))
            return False
        if work.joiner:
            return self._await_promotion(work)
        if not work.steps:
            self._finish(work, work.refusal)
            return False
        step = work.steps[0]
        try:
            if step.kind == changes.TRANSFER:
                core.transfer_leadership(step.node_id)
                work.is_handing_over = True
                return False
            if self._loses_majority(step):
                return False
            work.index = core.propose_config(step.apply(core.configs.current))
        except RefusedError as error:
            self._finish(work, error)
            return False
        except (ProposalDropped, NotLeader) as error:
            if work.ticks > STEP_TICKS_MAX:
                self._finish(work, RefusedError(RECONFIG_IN_PROGRESS, str(error)))
            return False
        work.steps.pop(0)
        work.ticks = 0
        if step.kind == changes.ADD and step.role == PARTICIPANT and work.waits():
            work.joiner = step.node_id
            work.match = -1
        return False

    def _await_promotion(self, work: _Work) -> bool:
        """Until the joiner votes, or stands still for too long: then it is taken out again."""
        core = self._context.core
        config = core.configs.current
        joiner = work.joiner
        if config.is_voter(joiner):
            work.index = core.configs.newest_index()
            work.joiner = 0
            return True
        lead = core.leadership
        progress = lead.by_id.get(joiner) if lead is not None else None
        if progress is not None and (progress.match > work.match or progress.snapshot_index):
            work.match = progress.match
            work.ticks = 0
        if work.ticks > STALL_TICKS_MAX or not config.is_member(joiner):
            work.joiner = 0
            work.steps = [MembershipStep(changes.REMOVE, joiner)] if config.is_member(joiner) else []
            work.refusal = RefusedError(NEW_CONFIG_NO_QUORUM, f"node {joiner} does not catch up: is it running?")
            return True
        return False

    def _finish(self, work: _Work, refusal: RefusedError | None) -> None:
        self._work = None
        if refusal is None:
            self._answer(work.origin, work.token, _done(work.index))
        else:
            log.warn("members stay as they are: {why}", why=refusal.text)
            self._answer(work.origin, work.token, _refusal(refusal))

    def _alive(self) -> list[int]:
        """Members heard from within an election timeout, this node included."""
        core = self._context.core
        lead = core.leadership
        if lead is None:
            return []
        oldest = lead.now - lead.settings.election_ticks
        return [core.id, *(p.peer for p in lead.peers if p.last_heard > oldest and self._peers.is_connected(p.peer))]

    def _counting(self) -> list[int]:
        """Return those of `_alive` that count, should they vote."""
        lead = self._context.core.leadership
        return [i for i in self._alive() if lead is None or i not in lead.by_id or lead.by_id[i].counts]

    def _loses_majority(self, step: MembershipStep) -> bool:
        """Return True if it is too early to say whether the voters that stay are a majority; that they answer.

        A voter that has never answered this leader may have nothing, not even a disk that remembers: a change that only
        it could commit would leave the store without a leader for good. An election timeout is time enough to answer.
        Raises RefusedError.
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

    def _announce(self) -> None:
        """Tell the leader where clients find this node, if the configuration does not."""
        core = self._context.core
        own = decode_members(core.configs.current.attachment).get(core.id)
        client = self._context.settings.client
        if own is None or own.client is not None or client is None or not core.leader:
            return
        if core.leadership is not None:
            self._announced[core.id] = shown(client)
        else:
            wish = json.dumps({"do": "announce", "client": shown(client)}).encode()
            self._peers.send(core.leader, codec.encode_numbered(codec.ASK, 0, wish))

    def _write_addresses(self) -> None:
        """As the leader of a store that does not know its own addresses: write them down; add what was announced."""
        core = self._context.core
        settings = self._context.settings
        if core.leadership is None or self._work is not None or not (self._announced or settings.members):
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
                    log.warn("node {peer} announces the client address {text!r}", peer=peer, text=text)
        wanted = with_members(config, members)
        if wanted == config:
            self._announced.clear()
            return
        try:
            core.propose_config(wanted)
        except ProposalDropped:
            return  # Something else is on its way; the next tick tries again.
        self._announced.clear()

    # --- views --------------------------------------------------------------------------------------------------------

    def _version(self) -> int:
        data = self._context.machine.tree.nodes[CONFIG].data
        return parse_config_text(data)[1] if data else 0

    def _facts(self) -> dict[str, Any]:
        """What `rk coord list` shows, as the leader sees it."""
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

    # --- what the links want to know (MembersView) --------------------------------------------------------------------

    def config_index(self) -> int:
        """See `MembersView.config_index`."""
        return self._context.core.configs.newest_index()

    def own_address(self) -> str:
        """See `MembersView.own_address`."""
        own = decode_members(self._context.core.configs.current.attachment).get(self._context.core.id)
        return shown(own.peer) if own is not None else ""

    def may_return(self, peer: int) -> bool:
        """See `MembersView.may_return`. Whoever removes a node need not be able to commit that, and the others may
        elect the removed one: refused here, it could never say so."""
        core = self._context.core
        configs = core.configs
        return any(
            config.is_member(peer)
            for position, config in enumerate(configs.configs[:-1])
            if configs.indexes[position + 1] > core.log.commit
        )

    def removed_since(self, peer: int) -> int:
        """See `MembersView.removed_since`."""
        core = self._context.core
        configs = core.configs
        index = configs.newest_index()
        return index if index <= core.log.commit and not configs.current.is_member(peer) else 0

    def removed(self, peer: int, index: int) -> None:
        """See `MembersView.removed`. Believed of a configuration newer than the last that had this node.

        While a leader is heard, nothing of this is believed: a leader closes its link to a node that it has removed,
        and whoever listens at the address of a dead node could say it. A removed node dials again, and is told again.
        """
        core = self._context.core
        if core.leader:
            return
        if not any(config.is_member(core.id) for config in core.configs.configs):
            return  # Never was one, as far as this log tells: it waits to be added.
        newest = core.configs.newest_index()
        is_member = core.configs.current.is_member(core.id)
        if index > newest or (index == newest and not is_member):
            log.warn("node {peer} says: no member since the configuration at {index}", peer=peer, index=index)
            self.removed_at = index

    def describe(self) -> bytes:
        """See `MembersView.describe`."""
        configs = self._context.core.configs
        return hello_frames.encode_cluster(self.cluster, configs.newest_index(), configs.current)


def _read_wish(opcode: int, body: bytes) -> dict[str, Any]:
    """The wish in a request record. Raises RefusedError."""
    try:
        if opcode == op.OP_RECONFIG:
            joining, leaving, members, version = decode_reconfig(body, 0, len(body))
            wish: dict[str, Any] = {"do": "reconfig", "version": version}
            for name, text in (("joining", joining), ("leaving", leaving), ("members", members)):
                wish[name] = [part.strip() for part in text.decode().split(",") if part.strip()]
            return wish
        wish = json.loads(decode_sasl(body, 0, len(body)) or b"")
        if not isinstance(wish, dict) or not isinstance(wish.get("do"), str):
            raise ValueError("not a wish")
        return {name: wish[name] for name in ("do", "id", "line") if name in wish}
    except (RemoteProtocolError, ValueError, RecursionError) as error:
        raise RefusedError(BAD_ARGUMENTS, f"cannot be read: {error}") from error


def _has_forgotten(lead: Leadership | None, node_id: int) -> bool:
    """Return True for a voter that came back without its memory and is not taken out yet."""
    progress = lead.by_id.get(node_id) if lead is not None else None
    return progress is not None and not progress.counts and lead is not None and lead.config.is_voter(node_id)


def _load(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"unreadable wish: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError("unreadable wish")
    return value


def _check_brought(wish: dict[str, Any]) -> None:
    """A wish that a node brings was checked there; if it cannot be read here, that is no node of ours."""
    numbers = ("applied", "session", "version") if wish.get("do") == "reconfig" else ("applied", "session")
    if any(type(wish.get(name)) is not int for name in numbers):
        raise RemoteProtocolError("a wish without numbers")
    try:
        changes.check_lines(wish)
    except RefusedError as error:
        raise RemoteProtocolError(f"unreadable wish: {error.text}") from error


def _done(index: int) -> dict[str, Any]:
    return {"code": OK, "text": "", "index": index}


def _refusal(error: RefusedError) -> dict[str, Any]:
    return {"code": error.code, "text": error.text, "index": 0}
