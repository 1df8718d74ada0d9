"""Snapshots between the nodes: this node's transfers to followers, and the state that it receives from a leader.

A received state becomes this node's in four steps, spread over turns:

    CHUNK frames      -> a draft on disk                                   `take_chunk`
    SNAPSHOT message  -> the draft is complete: read it, a piece per turn  `take_message`, `step`
    machine restored  -> the message goes to the core                      `_hand_to_core`
    the core installs -> the node takes the machine                        `take_installed`
"""

from __future__ import annotations

from twisted.logger import Logger

from coord.errors import InvalidMessage
from coord.raft.core import RaftCore
from coord.raft.messages import Message, RaftSnapshot
from coord.server.net.interfaces import PeerDoor
from coord.server.peers import codec
from coord.server.peers.snapshot_transfer import Arrival, Dismantling, SnapshotInbox, SnapshotOutbox
from coord.storage.snapshot import Snapshots
from coord.tree.machine import StateMachine

log = Logger(__name__)


class SnapshotTransfers:
    """Snapshots that one node sends and receives, and the replaced states that it frees."""

    def __init__(self, core: RaftCore, peers: PeerDoor, snapshots: Snapshots, supported: int) -> None:
        """`supported`: the highest feature level of this node's build."""
        self._core = core
        self._peers = peers
        self._inbox = SnapshotInbox(snapshots, supported)
        self._outbox = SnapshotOutbox(snapshots, peers)
        #: The state that the core has been told of and has not installed.
        self._offered: Arrival | None = None
        self._dismantling = Dismantling()

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send the snapshot that a SNAPSHOT message names, then the message."""
        self._outbox.begin(message, self._core)

    def tick(self) -> bool:
        """Fill the links' windows; return True if a peer could not use what was sent: the file may be damaged."""
        self._outbox.pump(self._core)
        return self._outbox.take_doubt()

    def ended(self, peer: int, name: str, ok: bool) -> None:
        """Note what `peer` reports of a transfer."""
        self._outbox.ended(peer, name, ok, self._core)

    # --- links --------------------------------------------------------------------------------------------------------

    def peer_introduced(self, peer: int) -> None:
        """End a transfer to a peer that says hello: its report may have been lost with the link before."""
        self._outbox.peer_lost(peer, self._core)

    def peer_lost(self, peer: int) -> None:
        """The link to or from `peer` broke: end the transfers over it."""
        self._outbox.peer_lost(peer, self._core)
        self._inbox.peer_lost(peer)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def take_chunk(self, peer: int, chunk: codec.Chunk, now_ms: int) -> None:
        """Write a chunk to its draft. Raises RemoteProtocolError if the chunk continues no transfer."""
        if not self._inbox.take(peer, chunk, now_ms):
            self._peers.send(peer, codec.encode_received(chunk.name, False))

    def take_message(self, peer: int, message: Message) -> None:
        """Handle a SNAPSHOT message, which follows the last chunk. Raises InvalidMessage."""
        self._core.check(message)
        refused = self._inbox.complete(peer, message)
        if refused is not None:
            self._hand_to_core(refused)

    def step(self, now_ms: int) -> bool:
        """Do a piece of the work on states; return True if there is more. Raises UnsupportedLevel."""
        has_more = self._dismantling.step()
        # One state at a time: the core may still have to install the one before.
        if self._offered is None and self._inbox.is_restoring():
            has_more = True
            arrival = self._inbox.step(now_ms)
            if arrival is not None:
                self._hand_to_core(arrival)
        return has_more

    def _hand_to_core(self, arrival: Arrival) -> None:
        """Report to the sender how its transfer ended; pass the message on to the core if there is a state."""
        assert arrival.message.snapshot is not None, "SNAPSHOT message without a snapshot"
        name = arrival.message.snapshot.handle
        self._peers.send(arrival.peer, codec.encode_received(name, arrival.machine is not None))
        if arrival.machine is None:
            log.error(
                "snapshot {name} from node {peer} is not usable: {error}",
                name=name,
                peer=arrival.peer,
                error=arrival.error,
            )
            return
        try:
            self._core.step(arrival.message)
        except InvalidMessage as error:
            # The message was valid when it came and is no longer.
            log.error("dropped snapshot {name} from node {peer}: {error}", name=name, peer=arrival.peer, error=error)
            self._dismantling.add(arrival.machine)
            return
        self._offered = arrival

    def take_installed(self, meta: RaftSnapshot) -> StateMachine:
        """Return the state that the core wants to be installed."""
        offered, self._offered = self._offered, None
        assert offered is not None, f"the core installs {meta.handle}, which no peer has sent"
        assert offered.machine is not None, meta.handle
        return offered.machine

    def drop_unwanted(self) -> None:
        """Drop the state that the core has not installed: its log holds something newer."""
        if self._offered is not None:
            if self._offered.machine is not None:
                self._dismantling.add(self._offered.machine)
            self._offered = None

    def dismantle(self, machine: StateMachine) -> None:
        """Free a replaced state, a piece per turn."""
        self._dismantling.add(machine)
