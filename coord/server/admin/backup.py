"""Backups of a running node: POST /backup on the admin port returns the file (`coord.storage.backup`).

A backup is a whole state at one zxid: a snapshot at least as new as the state that this node had applied when the
request arrived. If there is none yet, the usual job writes one. The node serves clients meanwhile.

A backup contains the whole tree and the passwords of sessions. So a request must carry the token in `admin.json` of the
data directory (mode 0600 in a directory of 0700). A request cannot name a file.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any, Final

from twisted.logger import Logger

from coord.admin_token import ADMIN_FILE, admin_json, token_or_new
from coord.env import Clock, Disk, Entropy, read_file, replace_file
from coord.errors import StorageError
from coord.newcomers import SummedLines
from coord.server.node import Node
from coord.storage.backup import BackupManifest, backup_pieces
from coord.storage.snapshot import SnapshotMeta, SnapshotReader

log = Logger()

PATH: Final = b"/backup"
#: Limit of backups that are waiting or being sent.
AT_A_TIME_MAX: Final = 2
_BEARER: Final = b"Bearer "


class Backups:
    """Answers POST /backup. One per node."""

    def __init__(self, node: Node, disk: Disk, cluster: str, clock: Clock, entropy: Entropy) -> None:
        self._node = node
        self._disk = disk
        self._cluster = cluster
        self._clock = clock
        self._entropy = entropy
        self._token = b""
        #: (index that the snapshot must reach, request), oldest first.
        self._waiting: list[tuple[int, Any]] = []
        self._sending = 0
        #: Lines about requests without a valid token, which anybody may send.
        self._lines = SummedLines(lambda: clock.monotonic_ms() / 1000)

    def admit(self, address: tuple[str, int]) -> None:
        """Write `admin.json` with the token. A token stays valid over restarts.

        If the file cannot be written, as on a full disk, the node starts nevertheless: only backups need the token.
        """
        there = b""
        if ADMIN_FILE in self._disk.names(""):
            with contextlib.suppress(OSError):
                there = read_file(self._disk, ADMIN_FILE)
        token = token_or_new(there, self._entropy)
        self._token = token.encode()
        content = admin_json(address, token)
        if content == there:
            return
        try:
            replace_file(self._disk, "", ADMIN_FILE, content)
        except OSError as error:
            log.warn(
                "cannot write {path}: {error}. This node rejects backup requests until it is restarted",
                path=self._disk.where(ADMIN_FILE),
                error=error.strerror or str(error),
            )

    @property
    def token(self) -> bytes:
        """Return the token that a request must carry, b"" before `admit`."""
        return self._token

    def snapshot_written(self, meta: SnapshotMeta, error: str) -> None:
        """Handle the end of the snapshot job: update the node's policy first, then serve the waiting requests."""
        self._node.snapshot_policy.written(meta, error)
        waiting, self._waiting = self._waiting, []
        for index, request in waiting:
            if error:
                _refuse(request, 503, f"the snapshot failed: {error}")
            else:
                self._serve(index, request)

    def answer(self, request: Any) -> None:
        """Handle a request of the admin port (`coord.http`)."""
        given = request.getHeader(b"authorization") or b""
        token = given[len(_BEARER) :] if given.startswith(_BEARER) else b""
        node = self._node
        if request.method != b"POST":
            _refuse(request, 405, "Only POST.")
        elif not self._token or not hmac.compare_digest(token, self._token):
            more = self._lines.more()
            if more is not None:
                peer = str(request.getClientAddress())
                log.warn("rejected a backup without a valid token from {peer}{more}", peer=peer, more=more)
            _refuse(request, 401, f"The request must carry the token in {ADMIN_FILE} of the data directory.")
        elif len(self._waiting) + self._sending >= AT_A_TIME_MAX:
            _refuse(request, 429, "Other backups are under way.")
        elif not node.is_serving():
            _refuse(request, 503, "This node has no leader: its state may be stale.")
        elif node.applied_index == 0:
            _refuse(request, 503, "This node has applied no entry yet.")
        else:
            log.info("backup requested by {peer}", peer=str(request.getClientAddress()))
            self._serve(node.applied_index, request)

    def _serve(self, index: int, request: Any) -> None:
        """Send a snapshot at or after `index`; wait for one if there is none."""
        node = self._node
        reader = self._open(index)
        if reader is not None:
            self._send(reader, request)
            return
        if node.is_full:
            _refuse(request, 503, "The disk is full.")
            return
        self._waiting.append((index, request))
        if not node.snapshot_policy.is_snapshotting:
            node.take_snapshot()

    def _open(self, index: int) -> SnapshotReader | None:
        if self._node.snapshot_policy.index < index:
            return None
        try:
            return self._node.snapshot_policy.snapshots.open_at(self._node.snapshot_policy.index)
        except (StorageError, OSError) as error:
            log.error("{error}", error=str(error))
            return None

    def _send(self, reader: SnapshotReader, request: Any) -> None:
        meta = reader.meta
        size = reader.size()
        now_ms = self._clock.wall_ms()
        node_id = self._node.settings.node_id
        manifest = BackupManifest(self._cluster, node_id, meta.index, meta.term, meta.zxid, meta.digest, size, now_ms)
        request.setHeader(b"content-type", b"application/octet-stream")
        request.setHeader(b"content-length", str(manifest.file_bytes()).encode())
        self._sending += 1
        _Stream(request, backup_pieces(manifest, reader), lambda: self._ended(reader)).start()

    def _ended(self, reader: SnapshotReader) -> None:
        self._sending -= 1
        reader.close()


class _Stream:
    """A pull producer: writes the next piece after the previous one has been sent."""

    def __init__(self, request: Any, pieces: Iterator[bytes], ended: Callable[[], None]) -> None:
        self._request = request
        self._pieces = pieces
        self._ended = ended
        self._is_over = False

    def start(self) -> None:
        """Send until the end, or until the client disconnects."""
        self._request.notifyFinish().addBoth(self._finish)
        self._request.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the next piece: the transport has room."""
        if self._is_over:
            return
        try:
            piece = next(self._pieces, None)
        except OSError as error:
            log.error("backup aborted: {error}", error=error.strerror)
            self._request.transport.abortConnection()
            return
        if piece is not None:
            self._request.write(piece)
            return
        self._request.unregisterProducer()
        self._request.finish()

    def stopProducing(self) -> None:
        """Do nothing: `notifyFinish` reports the end of the connection, too."""

    def _finish(self, _: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended()


def _refuse(request: Any, status: int, text: str) -> None:
    """Send an error status with one line of text. The connection may be closed already."""
    with contextlib.suppress(RuntimeError, AttributeError):
        request.setResponseCode(status)
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        request.write(text.encode() + b"\n")
        request.finish()
