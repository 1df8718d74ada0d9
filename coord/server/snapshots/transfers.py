"""Snapshots between the nodes: transfers from this node to followers, and the state that a leader sends to this node.

A received state is installed in four steps, spread over turns:

    CHUNK frames      -> a draft on disk                                     `take_chunk`
    SNAPSHOT message  -> the draft is complete: restore it, a part per turn  `take_message`, `step`
    machine restored  -> the message goes to the core                        `_hand_to_core`
    the core installs -> the node takes the machine                          `take_installed`
"""

from __future__ import annotations

from twisted.logger import Logger

from coord.errors import InvalidMessage
from coord.raft.core import RaftCore
from coord.raft.messages import Message, RaftSnapshot
from coord.server.interfaces import PeerTransport
from coord.server.peers import codec
from coord.server.peers.snapshot_transfer import Arrival, GradualFree, SnapshotInbox, SnapshotOutbox
from coord.storage.snapshot import Snapshots
from coord.tree.machine import StateMachine

log = Logger(__name__)


class SnapshotTransfers:
    """Snapshots that one node sends and receives, and the replaced states that it frees."""

    def __init__(self, core: RaftCore, peers: PeerTransport, snapshots: Snapshots, supported: int) -> None:
        """`supported` is the highest feature level of this node's build."""
        self._core = core
        self._peers = peers
        self._inbox = SnapshotInbox(snapshots, supported)
        self._outbox = SnapshotOutbox(snapshots, peers)
        #: The received state that the core has been offered and has not installed.
        self._offered: Arrival | None = None
        self._freeing = GradualFree()
        #: True while a received state is restored or offered to the core, or a replaced one is freed: `step` and
        #: `drop_unwanted` have work.
        self.is_busy = False

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send the snapshot that a SNAPSHOT message names, then the message."""
        self._outbox.begin(message, self._core)

    def tick(self) -> bool:
        """Fill the links' windows. Return True if a peer rejected a transfer: the file may be damaged."""
        self._outbox.pump(self._core)
        return self._outbox.take_doubt()

    def ended(self, peer: int, name: str, ok: bool) -> None:
        """Handle RECEIVED, the report of `peer` about a transfer."""
        self._outbox.ended(peer, name, ok, self._core)

    # --- links --------------------------------------------------------------------------------------------------------

    def peer_introduced(self, peer: int) -> None:
        """End a transfer to a peer that sends a hello: its report may have been lost with the previous link."""
        self._outbox.peer_lost(peer, self._core)

    def peer_lost(self, peer: int) -> None:
        """Handle the end of the link to or from `peer`: end the transfers over it."""
        self._outbox.peer_lost(peer, self._core)
        self._inbox.peer_lost(peer)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def take_chunk(self, peer: int, chunk: codec.Chunk, now_ms: int) -> None:
        """Write a chunk to its draft. Raise RemoteProtocolError if the chunk continues no transfer."""
        if not self._inbox.take(peer, chunk, now_ms):
            self._peers.send(peer, codec.encode_received(chunk.name, False))

    def take_message(self, peer: int, message: Message) -> None:
        """Handle a SNAPSHOT message, which follows the last chunk. Raise InvalidMessage."""
        self._core.check(message)
        self.is_busy = True
        refused = self._inbox.complete(peer, message)
        if refused is not None:
            self._hand_to_core(refused)

    def step(self, now_ms: int) -> bool:
        """Restore a part of a received state, and free a part of former ones. Return True if more is left.

        Raise UnsupportedLevel.
        """
        has_more = bool(self._freeing.trees) and self._freeing.step()
        # Restore one state at a time: the core may not have installed the previous one yet.
        if self._offered is None and self._inbox.restoring is not None:
            has_more = True
            arrival = self._inbox.step(now_ms)
            if arrival is not None:
                self._hand_to_core(arrival)
        self.is_busy = has_more or self._offered is not None
        return has_more

    def _hand_to_core(self, arrival: Arrival) -> None:
        """Report the end of the transfer to its sender; pass the message to the core if the state is valid."""
        assert arrival.message.snapshot is not None, "SNAPSHOT message without a snapshot"
        name = arrival.message.snapshot.handle
        self._peers.send(arrival.peer, codec.encode_received(name, arrival.machine is not None))
        if arrival.machine is None:
            log.error(
                "rejected snapshot {name} from node {peer}: {error}",
                name=name,
                peer=arrival.peer,
                error=arrival.error,
            )
            return
        try:
            self._core.step(arrival.message)
        except InvalidMessage as error:
            # The message was valid when it arrived and is not any more.
            log.error("dropped snapshot {name} from node {peer}: {error}", name=name, peer=arrival.peer, error=error)
            self._freeing.add(arrival.machine)
            return
        self._offered = arrival

    def take_installed(self, meta: RaftSnapshot) -> StateMachine:
        """Return the state of the snapshot that the core installs."""
        offered, self._offered = self._offered, None
        assert offered is not None, f"the core installs {meta.handle}, which no peer has sent"
        assert offered.machine is not None, meta.handle
        return offered.machine

    def drop_unwanted(self) -> None:
        """Drop a state that the core did not install, because its log has newer entries."""
        if self._offered is not None:
            if self._offered.machine is not None:
                self._freeing.add(self._offered.machine)
            self._offered = None

    def free(self, machine: StateMachine) -> None:
        """Free a replaced state, a part per turn."""
        self.is_busy = True
        self._freeing.add(machine)
