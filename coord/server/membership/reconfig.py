"""Membership changes at run time: the requests of this node's clients, and the membership as the links use it.

    client --request--> its node --ASK--> leader (`leading`): one committed configuration after the other
    client <--reply---- its node <--ANSWER(index)-- leader          the node replies when it has applied that index

The node with the client's connection keeps the request until the leader answers. A request that the leader had not
begun, or for which it had transferred leadership, goes to the next leader. If the leader is lost after the first step,
the outcome is unknown. The node then closes the client's connection: ConnectionLoss, as for any write.
/zookeeper/config and `rk coord list` show the outcome of the request.

A node whose client address is not in the configuration announces the address to the leader.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from twisted.logger import Logger

from coord.errors import OK, RECONFIG_DISABLED
from coord.server.clients.connection import Connection, Pending
from coord.server.config.addresses import decode_members, shown
from coord.server.context import NodeContext
from coord.server.interfaces import PeerTransport
from coord.server.membership.leading import MembershipLeader
from coord.server.membership.levels import Levels
from coord.server.membership.request import (
    ASK_NEXT_LEADER,
    LIST,
    OUTCOME_UNKNOWN,
    Announcement,
    MembershipAnswer,
    MembershipRequest,
    RefusedError,
    decode_answer,
    decode_client_request,
    decode_request,
    refusal,
)
from coord.server.peers import codec, hello_frames
from coord.tree.datatree import CONFIG
from coord.wire import opcodes as op
from coord.wire.jute import buffer

log = Logger(__name__)

#: Ticks that a former leader has to answer the requests that it received.
FORMER_LEADER_TICKS: Final = 20
#: Interval in ticks between a node's announcements of its client address, until the configuration has it.
ANNOUNCE_TICKS: Final = 20


class _ClientRequest:
    """A client's request, at the node with the client's connection."""

    def __init__(self, connection: Connection, pending: Pending, request: MembershipRequest | None) -> None:
        """`request` is None for a request that cannot be decoded."""
        self.connection = connection
        self.pending = pending
        self.request = request
        #: The leader that received the request, 0: none yet.
        self.leader = 0
        #: Ticks since that leader stopped leading.
        self.former_leader_ticks = 0
        #: The answer; sent to the client when this node has applied the answer's index.
        self.answer: MembershipAnswer | None = None


class Reconfiguration:
    """One node's part in membership changes. Implements `MembersView` for the links."""

    def __init__(self, context: NodeContext, peers: PeerTransport, levels: Levels) -> None:
        self._context = context
        self._peers = peers
        self._leading = MembershipLeader(context, peers, levels, self._take_answer)
        #: Token -> request; tokens ascend, so requests are in order of arrival.
        self._requests: dict[int, _ClientRequest] = {}
        self._next_token = 1
        self._ticks = 0
        #: True if `turn` has work to do.
        self.is_busy = False
        #: 16 bytes that identify this store.
        self.cluster = bytes(16)
        #: Index of the configuration that removed this node; 0 for a member and for a node that was never a member.
        self.removed_at = 0

    # --- this node's clients ------------------------------------------------------------------------------------------

    def asked(self, connection: Connection, pending: Pending) -> None:
        """Handle a client's RECONFIG or MEMBERSHIP request."""
        try:
            request = decode_client_request(pending.opcode, pending.body)
            if request.kind != LIST and not self._context.settings.reconfig_enabled:
                raise RefusedError(
                    RECONFIG_DISABLED,
                    "membership changes are disabled on this node: see reconfigEnabled",
                )
            request.check()
        except RefusedError as error:
            self._keep(_ClientRequest(connection, pending, None)).answer = refusal(error)
            return
        request.session = connection.session_id
        self._keep(_ClientRequest(connection, pending, request))

    def _keep(self, mine: _ClientRequest) -> _ClientRequest:
        assert self._next_token not in self._requests, f"token {self._next_token} is in use"
        self._requests[self._next_token] = mine
        self._next_token += 1
        self.is_busy = True
        return mine

    def turn(self) -> None:
        """Send requests to the leader and answers to clients, as far as possible now; do the leader's work."""
        for token in list(self._requests):
            mine = self._requests[token]
            if mine.connection.is_closed:
                del self._requests[token]
            elif mine.connection.pending[0] is not mine.pending:
                continue  # Requests before this one have no reply yet.
            elif mine.answer is not None:
                if mine.answer.index <= self._context.applied_index:
                    del self._requests[token]
                    self._reply(mine, mine.answer)
            elif mine.leader == 0 and self._context.core.leader and mine.request is not None:
                self._send(token, mine, mine.request)
        self._leading.turn()
        self.is_busy = len(self._requests) > 0 or self._leading.is_busy()

    def _send(self, token: int, mine: _ClientRequest, request: MembershipRequest) -> None:
        """Send a request to the leader, which may be this node."""
        assert mine.leader == 0, f"request {token} was sent to node {mine.leader}"
        assert mine.answer is None, f"request {token} has an answer"
        core = self._context.core
        request = replace(request, applied=self._context.applied_index)
        if core.leadership is not None:
            mine.leader = core.id
            self._leading.take_own(token, request)
        elif self._peers.send(core.leader, codec.encode_numbered(codec.ASK, token, request.encode())):
            mine.leader = core.leader

    def _reply(self, mine: _ClientRequest, answer: MembershipAnswer) -> None:
        pipeline = self._context.pipeline
        if mine.pending.opcode == op.OP_MEMBERSHIP:
            facts = {"code": answer.code, "error": answer.text, **answer.facts}
            pipeline.answer_membership_request(mine.connection, mine.pending, OK, buffer(json.dumps(facts).encode()))
            return
        if answer.code:
            log.info("rejected reconfig: {why}", why=answer.text)
            pipeline.answer_membership_request(mine.connection, mine.pending, answer.code, b"")
            return
        znode = self._context.machine.tree.nodes[CONFIG]
        pipeline.answer_membership_request(mine.connection, mine.pending, OK, buffer(znode.data) + znode.stat())

    # --- frames -------------------------------------------------------------------------------------------------------

    def ask(self, peer: int, token: int, text: bytes) -> None:
        """Handle ASK: a client's request, or an announcement. Raise RemoteProtocolError."""
        request = decode_request(text)
        if isinstance(request, Announcement):
            self._leading.announced(peer, request.client)
        else:
            self._leading.take(peer, token, request)
            self.is_busy = True

    def answered(self, peer: int, token: int, text: bytes) -> None:
        """Handle ANSWER from a leader. Raise RemoteProtocolError."""
        self._take_answer(peer, token, decode_answer(text))

    def _take_answer(self, leader: int, token: int, answer: MembershipAnswer) -> None:
        mine = self._requests.get(token)
        if mine is None or mine.request is None or mine.leader != leader:
            return
        if answer.code == ASK_NEXT_LEADER:
            mine.leader = mine.former_leader_ticks = 0
            mine.request.is_checked = answer.is_checked
        elif answer.code == OUTCOME_UNKNOWN:
            self._close(token)
        else:
            mine.answer = answer

    # --- the end of leaderships and links -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance the timers: give up former leaders, write addresses, announce this node's address."""
        self._ticks += 1
        leader = self._context.core.leader
        for token in list(self._requests):
            mine = self._requests[token]
            if mine.leader and mine.answer is None and leader and mine.leader != leader:
                mine.former_leader_ticks += 1
                if mine.former_leader_ticks > FORMER_LEADER_TICKS:
                    self._close(token)
        self._leading.tick()
        if self._ticks % ANNOUNCE_TICKS == 1:
            self._announce()

    def peer_lost(self, peer: int) -> None:
        """Close the clients whose request went to `peer`: the link broke, and the answer may never arrive."""
        for token in [t for t, mine in self._requests.items() if mine.leader == peer and mine.answer is None]:
            self._close(token)

    def _close(self, token: int) -> None:
        """Close the connection of a client whose request has an unknown outcome."""
        self._context.clients.close(self._requests.pop(token).connection)

    def leadership_established(self) -> None:
        """Begin to lead: this node has applied every entry of earlier terms."""
        self._leading.write_addresses()

    def hand_over(self) -> bool:
        """See `MembershipLeader.hand_over`."""
        return self._leading.hand_over()

    def leadership_ended(self) -> None:
        """End all requests of the leadership that this node has lost."""
        self._leading.ended()

    def _announce(self) -> None:
        """Send this node's client address to the leader, if the configuration lacks it."""
        core = self._context.core
        own = decode_members(core.configs.current.attachment).get(core.id)
        client = self._context.settings.client
        if own is None or own.client is not None or client is None or not core.leader:
            return
        if core.leadership is not None:
            self._leading.announced(core.id, shown(client))
        else:
            announcement = Announcement(shown(client))
            self._peers.send(core.leader, codec.encode_numbered(codec.ASK, 0, announcement.encode()))

    # --- called by the links (MembersView) ----------------------------------------------------------------------------

    def config_index(self) -> int:
        """See `MembersView.config_index`."""
        return self._context.core.configs.newest_index()

    def own_address(self) -> str:
        """See `MembersView.own_address`."""
        own = decode_members(self._context.core.configs.current.attachment).get(self._context.core.id)
        return shown(own.peer) if own is not None else ""

    def may_return(self, peer: int) -> bool:
        """See `MembersView.may_return`.

        A leader that removes a node may be unable to commit the removal, and the other nodes may elect the removed
        node. If its hello were rejected here, it could not send its appends as the new leader.
        """
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
        """See `MembersView.removed`. Ignore a configuration older than the last one that had this node.

        Ignore the frame, too, while this node has a leader. A leader closes its link to a node that it has removed, and
        any process at the address of a dead node could send the frame. A removed node dials again and receives the
        frame again.
        """
        core = self._context.core
        if core.leader:
            return
        if not any(config.is_member(core.id) for config in core.configs.configs):
            return  # according to its log this node was never a member; it waits until it is added
        newest = core.configs.newest_index()
        is_member = core.configs.current.is_member(core.id)
        if index > newest or (index == newest and not is_member):
            log.warn(
                "node {peer} reports that this node was removed by the configuration at index {index}",
                peer=peer,
                index=index,
            )
            self.removed_at = index

    def describe(self) -> bytes:
        """See `MembersView.describe`."""
        configs = self._context.core.configs
        return hello_frames.encode_cluster(self.cluster, configs.newest_index(), configs.current)
