"""Backups of a running node: POST /backup on the admin port answers with the file (`coord.storage.backup`).

The state is whole and of one zxid: a snapshot that is at least as new as what this node had applied when it was asked,
written by the usual job if there is none yet. Clients and the node's own work go on meanwhile.

Who may have the whole tree, passwords of sessions included, is whoever can read `admin.json` in the data directory
(mode 0600 in a directory of 0700): it holds a token that the request must bring. Nothing in the request names a file.
"""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from twisted.logger import Logger

from coord.env import Clock, Disk, Entropy, read_file, replace_file
from coord.errors import StorageError
from coord.server.node import Node
from coord.storage.backup import BackupManifest, backup_pieces
from coord.storage.snapshot import SnapshotMeta, SnapshotReader

log = Logger()

ADMIN_FILE: Final = "admin.json"
PATH: Final = b"/backup"
TOKEN_BYTES: Final = 32
#: Backups that wait or are being sent at a time.
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
        #: (index the snapshot must reach, request), in the order of asking.
        self._waiting: list[tuple[int, Any]] = []
        self._sending = 0

    def admit(self, address: tuple[str, int]) -> None:
        """Write `admin.json` for those who may ask. An earlier token stays valid over restarts.

        Where it cannot be written, on a full disk, the node goes without: only backups need it.
        """
        token = ""
        there = b""
        if ADMIN_FILE in self._disk.names(""):
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                there = read_file(self._disk, ADMIN_FILE)
                token = str(json.loads(there)["token"])
        if len(token) != 2 * TOKEN_BYTES:
            token = self._entropy.token(TOKEN_BYTES).hex()
        self._token = token.encode()
        content = json.dumps({"admin": f"{address[0]}:{address[1]}", "token": token}).encode() + b"\n"
        if content == there:
            return
        try:
            replace_file(self._disk, "", ADMIN_FILE, content)
        except OSError as error:
            log.warn(
                "{path} cannot be written: {error}. Nobody can ask this node for a backup until it is started again",
                path=self._disk.where(ADMIN_FILE),
                error=error.strerror or str(error),
            )

    @property
    def token(self) -> bytes:
        """What a request must bring, once `admit` has run."""
        return self._token

    def snapshot_written(self, meta: SnapshotMeta, error: str) -> None:
        """The snapshot job has ended: the node first, then those who wait for it."""
        self._node.snapshot_policy.written(meta, error)
        waiting, self._waiting = self._waiting, []
        for index, request in waiting:
            if error:
                _refuse(request, 503, f"the snapshot failed: {error}")
            else:
                self._serve(index, request)

    def answer(self, request: Any) -> None:
        """A request has come in (`coord.http`)."""
        given = request.getHeader(b"authorization") or b""
        token = given[len(_BEARER) :] if given.startswith(_BEARER) else b""
        node = self._node
        if request.method != b"POST":
            _refuse(request, 405, "Only POST.")
        elif not self._token or not hmac.compare_digest(token, self._token):
            log.warn("backup refused: no valid token from {peer}", peer=str(request.getClientAddress()))
            _refuse(request, 401, f"The token in {ADMIN_FILE} of the data directory is needed.")
        elif len(self._waiting) + self._sending >= AT_A_TIME_MAX:
            _refuse(request, 429, "Other backups are under way.")
        elif not node.is_serving():
            _refuse(request, 503, "This node has no leader: its state may be old.")
        elif node.applied_index == 0:
            _refuse(request, 503, "This node holds nothing yet.")
        else:
            log.info("backup asked for by {peer}", peer=str(request.getClientAddress()))
            self._serve(node.applied_index, request)

    def _serve(self, index: int, request: Any) -> None:
        """Send a snapshot at or behind `index`; wait for one if there is none."""
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
    """A pull producer: the next piece when the last one has left."""

    def __init__(self, request: Any, pieces: Iterator[bytes], ended: Callable[[], None]) -> None:
        self._request = request
        self._pieces = pieces
        self._ended = ended
        self._is_over = False

    def start(self) -> None:
        """Send until the end, or until the other side goes away."""
        self._request.notifyFinish().addBoth(self._finish)
        self._request.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """The transport has room."""
        if self._is_over:
            return
        try:
            piece = next(self._pieces, None)
        except OSError as error:
            log.error("backup broken off: {error}", error=error.strerror)
            self._request.transport.abortConnection()
            return
        if piece is not None:
            self._request.write(piece)
            return
        self._request.unregisterProducer()
        self._request.finish()

    def stopProducing(self) -> None:
        """The connection is gone; `notifyFinish` tells it, too."""

    def _finish(self, _: object) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended()


def _refuse(request: Any, status: int, text: str) -> None:
    """A short answer. The connection may be gone already."""
    with contextlib.suppress(RuntimeError, AttributeError):
        request.setResponseCode(status)
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        request.write(text.encode() + b"\n")
        request.finish()
