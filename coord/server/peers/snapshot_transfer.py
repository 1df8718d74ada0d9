"""The transfer of a snapshot between nodes: one file in chunks over the peer link, checked before it is used.

    sender (SnapshotOutbox)                    receiver (SnapshotInbox)
    CHUNK*                   ---------------->  append to a draft
    SNAPSHOT (Raft message)  ---------------->  restore a state from the draft, a chunk per turn; make the file durable
                             <----------------  RECEIVED(ok)

The sender keeps at most `WINDOW_BYTES` in the link's queue, so heartbeats never wait behind a large state. The SNAPSHOT
message follows the last chunk on the same stream. So when the message arrives, the file is either complete or will
never be. The receiver passes the message to its Raft core after the state is durable.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.logger import Logger

from coord.errors import CoordError, RemoteProtocolError, StorageError
from coord.raft.core import RaftCore
from coord.raft.messages import Message
from coord.server.peers import codec, raft_frames
from coord.storage.snapshot import SnapshotDraft, SnapshotReader, Snapshots
from coord.tree.levels import SUPPORTED
from coord.tree.machine import StateMachine
from coord.tree.node import Znode as ZNode
from coord.tree.snapshot import SnapshotDecoder as StateReader

log = Logger(__name__)

#: Limit of a snapshot's bytes in a link's queue.
WINDOW_BYTES: Final = 1 << 20
#: Longest snapshot that a receiver accepts.
SNAPSHOT_BYTES_MAX: Final = 16 << 30
#: Bytes between two syncs at the receiver, so that no long sync delays the end of a transfer.
SYNC_BYTES: Final = 8 << 20
#: Znodes of a replaced state that are freed in one turn, which takes a few ms.
FREED_PER_STEP: Final = 20_000
#: Time for which the receiver accepts no snapshot after its disk has rejected one, usually for lack of space.
REFUSED_MS: Final = 5000


class TransferLinks(Protocol):
    """The links, as a transfer uses them."""

    def send(self, peer: int, frame: bytes) -> bool:
        """See `PeerTransport.send`."""
        ...

    def backlog(self, peer: int) -> int:
        """See `PeerTransport.backlog`."""
        ...


class _Sending:
    """A transfer to one peer: position in the file, and the message that follows it."""

    def __init__(self, message: Message, name: str, reader: SnapshotReader) -> None:
        self.message = message
        self.name = name
        self.reader = reader
        self.offset = 0
        self.total = reader.size()
        self.is_sent = False


class SnapshotOutbox:
    """The transfers that this node sends, at most one per peer."""

    def __init__(self, snapshots: Snapshots, links: TransferLinks) -> None:
        self._snapshots = snapshots
        self._links = links
        self._sending: dict[int, _Sending] = {}
        self._is_doubtful = False

    def begin(self, message: Message, core: RaftCore) -> None:
        """Send the snapshot that `message` offers, then the message. An earlier transfer to the peer ends."""
        assert message.snapshot is not None, "SNAPSHOT message without a snapshot"
        peer = message.dst
        self._drop(peer)
        try:
            reader = self._snapshots.open_named(message.snapshot.handle)
        except (CoordError, OSError) as error:
            log.error("cannot send snapshot {name}: {error}", name=message.snapshot.handle, error=error)
            core.snapshot_status(peer, False)
            return
        log.info("sending snapshot {name} to node {peer}", name=message.snapshot.handle, peer=peer)
        self._sending[peer] = _Sending(message, message.snapshot.handle, reader)
        self.pump(core)

    def pump(self, core: RaftCore) -> None:
        """Send chunks until each link's window is full."""
        for peer in sorted(self._sending):
            sending = self._sending[peer]
            while not sending.is_sent and self._links.backlog(peer) < WINDOW_BYTES:
                try:
                    if not self._send_next(peer, sending):
                        break
                except OSError as error:
                    log.error("cannot send snapshot {name}: {error}", name=sending.name, error=error.strerror)
                    self._is_doubtful = True
                    self.peer_lost(peer, core)
                    break

    def _send_next(self, peer: int, sending: _Sending) -> bool:
        """Send the next chunk, or the message after the last one. Return False without a link. Raise OSError."""
        if sending.offset < sending.total:
            data = sending.reader.read_raw(sending.offset, codec.CHUNK_BYTES)
            chunk = codec.Chunk(sending.name, sending.total, sending.offset, data)
            if not self._links.send(peer, codec.encode_chunk(chunk)):
                return False
            sending.offset += len(data)
        else:
            if not self._links.send(peer, raft_frames.encode_raft(sending.message)):
                return False
            sending.is_sent = True
        return True

    def ended(self, peer: int, name: str, ok: bool, core: RaftCore) -> None:
        """Handle RECEIVED: the peer has the snapshot (`ok`), or rejected it."""
        sending = self._sending.get(peer)
        if sending is not None and sending.name == name:
            self._drop(peer)
            self._is_doubtful = self._is_doubtful or not ok
            core.snapshot_status(peer, ok)

    def take_doubt(self) -> bool:
        """Return True, once, if a transfer has failed since the last call: this node's file may be damaged."""
        doubt, self._is_doubtful = self._is_doubtful, False
        return doubt

    def peer_lost(self, peer: int, core: RaftCore) -> None:
        """End the transfer to a peer whose link broke. The Raft core decides whether to start over."""
        if peer in self._sending:
            self._drop(peer)
            core.snapshot_status(peer, False)

    def _drop(self, peer: int) -> None:
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.reader.close()


class Arrival:
    """The end of a transfer to this node: `machine` has the state, or `error` the reason why there is none."""

    def __init__(self, peer: int, message: Message, machine: StateMachine | None, error: str = "") -> None:
        self.peer = peer
        #: The SNAPSHOT message, which the Raft core gets if there is a machine.
        self.message = message
        self.machine = machine
        self.error = error


class _Restoring:
    """A complete file from which a state is restored, a chunk per turn."""

    def __init__(self, peer: int, message: Message, name: str, draft: SnapshotDraft, supported: int) -> None:
        """Open the draft. Raise StorageError, OSError."""
        self.peer = peer
        self.message = message
        self.name = name
        self.draft = draft
        self.file = draft.reader()
        self.chunks = self.file.chunks()
        self.state = StateReader(name, supported)

    def step(self) -> StateMachine | None:
        """Restore one chunk. Return the complete state when its file is durable. Raise StorageError, OSError."""
        chunk = next(self.chunks, None)
        if chunk is not None:
            self.state.feed(chunk)
            return None
        machine = StateMachine.of_snapshot(self.state)
        self.file.close()
        self.draft.finish(self.name)
        return machine

    def discard(self) -> None:
        """Remove the file."""
        self.file.close()
        self.draft.discard()


class SnapshotInbox:
    """The transfers to this node, at most one per peer. One complete file at a time is restored into a state."""

    def __init__(self, snapshots: Snapshots, supported: int = SUPPORTED) -> None:
        self._snapshots = snapshots
        self._supported = supported
        self._drafts: dict[int, tuple[str, SnapshotDraft]] = {}
        self.restoring: _Restoring | None = None
        #: Peer -> transfer whose further chunks are ignored, because this node's disk rejected one.
        self._refused: dict[int, str] = {}
        self._not_before_ms = 0

    def take(self, peer: int, chunk: codec.Chunk, now_ms: int) -> bool:
        """Append a chunk to its draft. Return False if the disk rejects the transfer: the caller sends RECEIVED.

        Raise RemoteProtocolError for a chunk that does not continue its draft.
        """
        if chunk.total > SNAPSHOT_BYTES_MAX or chunk.offset + len(chunk.data) > chunk.total:
            raise RemoteProtocolError(f"a chunk at {chunk.offset} exceeds its snapshot of {chunk.total} bytes")
        if chunk.offset == 0:
            self.peer_lost(peer)
            if now_ms < self._not_before_ms:
                self._refused[peer] = chunk.name
                return False
            try:
                self._drafts[peer] = (chunk.name, self._snapshots.receive(chunk.name, peer))
            except StorageError as error:
                raise RemoteProtocolError(str(error)) from error
            except OSError as error:
                self._refuse(peer, chunk.name, error, now_ms)
                return False
        if self._refused.get(peer) == chunk.name:
            return True
        name, draft = self._drafts.get(peer, ("", None))
        if draft is None or name != chunk.name or draft.size != chunk.offset:
            raise RemoteProtocolError(f"chunk of {chunk.name} at {chunk.offset} does not continue its draft")
        try:
            draft.append(chunk.data)
            if draft.size % SYNC_BYTES < len(chunk.data):
                draft.sync()
        except OSError as error:
            self._refuse(peer, chunk.name, error, now_ms)
            return False
        return True

    def _refuse(self, peer: int, name: str, error: OSError, now_ms: int) -> None:
        log.error(
            "cannot write snapshot {name} from node {peer}: {error}; rejecting snapshots for {seconds} s. Free disk"
            " space, or check the disk",
            name=name,
            peer=peer,
            error=error.strerror or str(error),
            seconds=REFUSED_MS // 1000,
        )
        self.peer_lost(peer)
        self._refused[peer] = name
        self._not_before_ms = now_ms + REFUSED_MS

    def complete(self, peer: int, message: Message) -> Arrival | None:
        """Begin to restore the file of a SNAPSHOT message; `step` continues. Return the end if there is no such file.

        Return None, too, for a transfer whose rejection the sender knows.
        """
        assert message.snapshot is not None, "SNAPSHOT message without a snapshot"
        name = message.snapshot.handle
        received, draft = self._drafts.pop(peer, ("", None))
        if draft is None or received != name:
            if self._refused.pop(peer, "") == name:
                return None  # `take` has rejected it
            return Arrival(peer, message, None, f"the message arrived without the file {name}")
        before = self.restoring
        if before is not None:
            # The snapshot came from an earlier leader. The snapshot of the present leader replaces it.
            before.discard()
            self.restoring = None
        try:
            found = _Restoring(peer, message, name, draft, self._supported)
        except (StorageError, OSError) as error:
            draft.discard()
            return Arrival(peer, message, None, str(error))
        self.restoring = found
        meta = found.file.meta
        if meta.index != message.snapshot.index or meta.name() != name:
            return self._give_up(found, f"{name} has the state at index {meta.index}")
        return None

    def step(self, now_ms: int) -> Arrival | None:
        """Restore one chunk, so that a large state does not delay heartbeats and clients. Return the end, None before.

        Raise UnsupportedLevel if the store has a higher feature level than this build: the node must stop.
        """
        found = self.restoring
        if found is None:
            return None
        try:
            machine = found.step()
        except (StorageError, OSError) as error:
            self._not_before_ms = now_ms + REFUSED_MS
            return self._give_up(found, str(error))
        if machine is None:
            return None
        self.restoring = None
        return Arrival(found.peer, found.message, machine)

    def _give_up(self, found: _Restoring, why: str) -> Arrival:
        found.discard()
        self.restoring = None
        return Arrival(found.peer, found.message, None, why)

    def peer_lost(self, peer: int) -> None:
        """Discard the unfinished transfer of a peer whose link broke."""
        self._refused.pop(peer, None)
        _, draft = self._drafts.pop(peer, ("", None))
        if draft is not None:
            draft.discard()
        if self.restoring is not None and self.restoring.peer == peer:
            self.restoring.discard()
            self.restoring = None


class GradualFree:
    """Replaced states that are freed piece by piece: freeing a million znodes at once takes a second."""

    def __init__(self) -> None:
        self.trees: list[dict[bytes, ZNode]] = []

    def add(self, machine: StateMachine) -> None:
        """Queue the znodes of a state that is no longer in use."""
        self.trees.append(machine.tree.nodes)

    def step(self) -> bool:
        """Free some znodes. Return True if more are left."""
        if not self.trees:
            return False
        nodes = self.trees[-1]
        for _ in range(min(len(nodes), FREED_PER_STEP)):
            nodes.popitem()
        if not nodes:
            self.trees.pop()
        return bool(self.trees)
