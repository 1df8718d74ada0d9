"""Snapshots on their way between nodes: one file in chunks over the peer link, checked before anybody uses it.

The sender keeps no more than `WINDOW_BYTES` in the link's queue, so heartbeats never wait behind a large state. Behind
the last chunk, on the same stream, comes the SNAPSHOT message itself: when it arrives the file is complete or it never
will be. The receiver reads the whole file back, makes it durable, answers RECEIVED and gives the message to its core.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.logger import Logger

from coord.errors import CoordError, RemoteProtocolError, StorageError
from coord.raft.core import RaftCore
from coord.raft.messages import Message
from coord.server import peer_codec as codec
from coord.storage.snapshot import SnapshotDraft, SnapshotReader, Snapshots

log = Logger()

#: Bytes of a snapshot in a link's queue at any time.
WINDOW_BYTES: Final = 1 << 20
#: A snapshot longer than this is refused by the receiver.
SNAPSHOT_BYTES_MAX: Final = 16 << 30


class Link(Protocol):
    """The part of the peers' door that a transfer needs."""

    def send(self, peer: int, frame: bytes) -> bool:
        """See `PeerDoor.send`."""
        ...

    def backlog(self, peer: int) -> int:
        """See `PeerDoor.backlog`."""
        ...


class _Sending:
    def __init__(self, message: Message, name: str, reader: SnapshotReader) -> None:
        self.message = message
        self.name = name
        self.reader = reader
        self.offset = 0
        self.total = reader.size()
        self.is_sent = False


class SnapshotOutbox:
    """Transfers this node is sending, at most one per peer."""

    def __init__(self, snapshots: Snapshots, links: Link) -> None:
        self._snapshots = snapshots
        self._links = links
        self._sending: dict[int, _Sending] = {}

    def begin(self, message: Message, core: RaftCore) -> None:
        """Send the snapshot that `message` offers, then the message."""
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
        self.pump()

    def pump(self) -> None:
        """Fill the links' windows."""
        for peer in sorted(self._sending):
            sending = self._sending[peer]
            while not sending.is_sent and self._links.backlog(peer) < WINDOW_BYTES:
                if not self._send_next(peer, sending):
                    break

    def _send_next(self, peer: int, sending: _Sending) -> bool:
        if sending.offset < sending.total:
            data = sending.reader.read_raw(sending.offset, codec.CHUNK_BYTES)
            chunk = codec.Chunk(sending.name, sending.total, sending.offset, data)
            if not self._links.send(peer, codec.encode_chunk(chunk)):
                return False
            sending.offset += len(data)
        else:
            if not self._links.send(peer, codec.encode_raft(sending.message)):
                return False
            sending.is_sent = True
        return True

    def ended(self, peer: int, name: str, ok: bool, core: RaftCore) -> None:
        """The peer says how the transfer went."""
        sending = self._sending.get(peer)
        if sending is not None and sending.name == name:
            self._drop(peer)
            core.snapshot_status(peer, ok)

    def peer_lost(self, peer: int, core: RaftCore) -> None:
        """The link broke: the core decides whether to begin again."""
        if peer in self._sending:
            self._drop(peer)
            core.snapshot_status(peer, False)

    def _drop(self, peer: int) -> None:
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.reader.close()


class SnapshotInbox:
    """Transfers this node is receiving, at most one per peer."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._drafts: dict[int, tuple[str, SnapshotDraft]] = {}

    def take(self, peer: int, chunk: codec.Chunk) -> None:
        """Add a chunk. Raises RemoteProtocolError for one that continues nothing, OSError from the disk."""
        if chunk.total > SNAPSHOT_BYTES_MAX or chunk.offset + len(chunk.data) > chunk.total:
            raise RemoteProtocolError(f"snapshot of {chunk.total} bytes, chunk at {chunk.offset}")
        if chunk.offset == 0:
            self.peer_lost(peer)
            try:
                self._drafts[peer] = (chunk.name, self._snapshots.receive(chunk.name))
            except StorageError as error:
                raise RemoteProtocolError(str(error)) from error
        name, draft = self._drafts.get(peer, ("", None))
        if draft is None or name != chunk.name or draft.size != chunk.offset:
            raise RemoteProtocolError(f"chunk of {chunk.name} at {chunk.offset} continues nothing")
        draft.append(chunk.data)

    def finish(self, peer: int, name: str, index: int) -> None:
        """The transfer is complete: check the file and make it durable. Raises StorageError, OSError."""
        received, draft = self._drafts.pop(peer, ("", None))
        if draft is None or received != name:
            raise StorageError(f"nothing was received of {name}")
        try:
            meta = draft.verify()
            if meta.index != index or meta.name() != name:
                raise StorageError(f"{name} holds the state at {meta.index}")
            draft.finish(name)
        finally:
            draft.close()

    def peer_lost(self, peer: int) -> None:
        """The link broke: what came so far is of no use."""
        _, draft = self._drafts.pop(peer, ("", None))
        if draft is not None:
            draft.close()
