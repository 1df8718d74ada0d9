"""The file of a backup: a manifest, one snapshot, and a checksum of both.

    file     := magic "RKBU"  version:u16  length:u32  manifest  snapshot  crc:u32        crc32c of all bytes before
    manifest := JSON object: cluster, node_id, index, term, zxid, digest (hex), snapshot_bytes, created_ms
    snapshot := a snapshot file as in `coord.storage.snapshot`

Numbers are big-endian. The manifest states what the snapshot must contain; a reader compares the two.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from crc32c import crc32c

from coord.errors import CorruptRecord, StorageError
from coord.storage.snapshot import SnapshotReader

MAGIC: Final = b"RKBU"
VERSION: Final = 1
HEAD: Final = struct.Struct(">4sHI")
CRC: Final = struct.Struct(">I")
MANIFEST_BYTES_MAX: Final = 1 << 16
#: Piece of the snapshot that is read and sent at a time.
PIECE_BYTES: Final = 256 << 10


class BackupManifest:
    """The contents of a backup. `cluster` is the id in hex, `created_ms` the wall clock of the node that wrote it."""

    def __init__(
        self,
        cluster: str,
        node_id: int,
        index: int,
        term: int,
        zxid: int,
        digest: int,
        snapshot_bytes: int,
        created_ms: int,
    ) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.index = index
        self.term = term
        self.zxid = zxid
        self.digest = digest
        self.snapshot_bytes = snapshot_bytes
        self.created_ms = created_ms

    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON object."""
        return {
            "cluster": self.cluster,
            "node_id": self.node_id,
            "index": self.index,
            "term": self.term,
            "zxid": self.zxid,
            "digest": f"{self.digest:016x}",
            "snapshot_bytes": self.snapshot_bytes,
            "created_ms": self.created_ms,
        }

    def encode(self) -> bytes:
        """Return the beginning of the file, up to the snapshot."""
        data = json.dumps(self.fields(), sort_keys=True).encode()
        return HEAD.pack(MAGIC, VERSION, len(data)) + data

    def file_bytes(self) -> int:
        """Return the size of the whole file in bytes."""
        return len(self.encode()) + self.snapshot_bytes + CRC.size


def decode_head(where: str, data: bytes) -> int:
    """Return the length of the manifest, given the first HEAD.size bytes. Raise CorruptRecord or StorageError."""
    if data[:4] != MAGIC:
        raise StorageError(f"{where} is not a backup of a store: it begins with {data[:4]!r}, not with {MAGIC!r}")
    if len(data) < HEAD.size:
        raise CorruptRecord(where, 0, f"{HEAD.size} bytes", f"{len(data)} bytes")
    _, version, length = HEAD.unpack_from(data)
    if version != VERSION:
        raise StorageError(f"{where}: written in format {version}, this program reads {VERSION}")
    if length > MANIFEST_BYTES_MAX:
        raise CorruptRecord(where, 6, f"at most {MANIFEST_BYTES_MAX} bytes", length)
    return int(length)


def decode_manifest(where: str, data: bytes) -> BackupManifest:
    """Return the manifest. Raise CorruptRecord for malformed data."""
    try:
        found = json.loads(data)
        numbers = [int(found[name]) for name in ("node_id", "index", "term", "zxid", "snapshot_bytes", "created_ms")]
        node_id, index, term, zxid, snapshot_bytes, created_ms = numbers
        digest = int(found["digest"], 16)
        return BackupManifest(str(found["cluster"]), node_id, index, term, zxid, digest, snapshot_bytes, created_ms)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(where, HEAD.size, "a manifest", repr(error)) from error


def backup_pieces(manifest: BackupManifest, snapshot: SnapshotReader) -> Iterator[bytes]:
    """Yield the bytes of the file."""
    head = manifest.encode()
    crc = crc32c(head)
    yield head
    for offset in range(0, manifest.snapshot_bytes, PIECE_BYTES):
        piece = snapshot.read_raw(offset, min(PIECE_BYTES, manifest.snapshot_bytes - offset))
        crc = crc32c(piece, crc)
        yield piece
    yield CRC.pack(crc)
