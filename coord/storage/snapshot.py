"""Snapshots: the whole state at one log position, in one file.

On disk, all numbers big-endian:

    file    := magic "RKSN"  version:u16  frame(header)  frame(chunk)*  end
    header  := index:u64 term:u64 zxid:u64 digest:u64 config          config: Raft's membership, opaque here
    frame   := length:u32 (1..CHUNK_BYTES_MAX)  crc:u32  bytes
    end     := length:u32 = 0  crc:u32

Every crc is crc32c continued over all earlier frames. So it detects missing, doubled and exchanged frames as well as
flipped bits. A file is written under another name (`.tmp`), synced, renamed, and the folder is synced: a file that ends
in `.snap` was whole once. A node starts from the newest whole file. An older one needs the log after it, so the log is
pruned only up to the oldest snapshot kept (`Snapshots.log_floor`).
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from coord.env import Disk, DiskFile
from coord.errors import CorruptRecord, StorageError

MAGIC: Final = b"RKSN"
VERSION: Final = 1
#: Longest frame; the writer splits longer chunks.
CHUNK_BYTES_MAX: Final = 4 << 20
#: Number of snapshots kept on disk.
KEEP: Final = 2
#: The writer collects this many bytes before it calls the disk.
WRITE_BYTES: Final = 1 << 20
#: The writer syncs after this many bytes, so that no write to the log waits for the whole file.
SYNC_BYTES: Final = 8 << 20

_FILE_HEADER: Final = struct.Struct(">4sH")
_FRAME: Final = struct.Struct(">II")
_META: Final = struct.Struct(">QQQQ")
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.snap")


class SnapshotMeta:
    """The position of a snapshot: the state after (term, index), and the membership in effect there."""

    def __init__(self, index: int, term: int, config: bytes, zxid: int = 0, digest: int = 0) -> None:
        self.index = index
        self.term = term
        self.config = config
        #: Zxid of the last command, and the digest of the state (0: not known), for tools and checks.
        self.zxid = zxid
        self.digest = digest

    def name(self) -> str:
        """Return the file name. Names sort by position."""
        return f"{self.index:016x}-{self.term:016x}.snap"

    def __repr__(self) -> str:
        return f"SnapshotMeta({self.term}/{self.index})"


def encode_snapshot(meta: SnapshotMeta, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the file."""
    yield _FILE_HEADER.pack(MAGIC, VERSION)
    header = _META.pack(meta.index, meta.term, meta.zxid, meta.digest) + meta.config
    crc = crc32c(header)
    yield _FRAME.pack(len(header), crc) + header
    for chunk in chunks:
        for start in range(0, len(chunk), CHUNK_BYTES_MAX):
            part = chunk[start : start + CHUNK_BYTES_MAX]
            crc = crc32c(part, crc)
            yield _FRAME.pack(len(part), crc)
            yield part
    yield _FRAME.pack(0, crc)


class SnapshotReader:
    """One snapshot file, checked as it is read."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Open the file and read its header. Raise CorruptRecord, StorageError or OSError."""
        self._where = disk.where(path)
        self._file = disk.open(path)
        try:
            magic, version = _FILE_HEADER.unpack(self._read(0, _FILE_HEADER.size))
            if magic != MAGIC:
                raise CorruptRecord(self._where, 0, MAGIC, magic)
            if version != VERSION:
                raise StorageError(f"{self._where}: written in format {version}, this program reads {VERSION}")
            self._offset = _FILE_HEADER.size
            self._crc = 0
            header = self._frame()
            if len(header) < _META.size:
                raise CorruptRecord(self._where, _FILE_HEADER.size, "a header", f"{len(header)} bytes")
            index, term, zxid, digest = _META.unpack_from(header)
            self.meta = SnapshotMeta(index, term, header[_META.size :], zxid, digest)
        except BaseException:
            self._file.close()
            raise

    def chunks(self) -> Iterator[bytes]:
        """Yield the state in chunks. Raise CorruptRecord at the first damaged frame."""
        while chunk := self._frame():
            yield chunk
        if self._offset != self._file.size():
            raise CorruptRecord(self._where, self._offset, "the end of the file", "more bytes")

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.size()

    def read_raw(self, offset: int, size: int) -> bytes:
        """Return bytes of the file without a check, to send the file to a peer."""
        return self._file.read_at(offset, size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _frame(self) -> bytes:
        start = self._offset
        length, crc = _FRAME.unpack(self._read(start, _FRAME.size))
        if length > CHUNK_BYTES_MAX:
            raise CorruptRecord(self._where, start, f"at most {CHUNK_BYTES_MAX} bytes", length)
        data = self._read(start + _FRAME.size, length)
        self._crc = crc32c(data, self._crc)
        if self._crc != crc:
            raise CorruptRecord(self._where, start, f"crc {crc:08x}", f"{self._crc:08x}")
        self._offset = start + _FRAME.size + length
        return data

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = self._file.read_at(offset, size)
        except OSError as error:
            raise StorageError(f"{self._where}: cannot be read at byte {offset}: {error.strerror or error}") from error
        if len(data) != size:
            raise CorruptRecord(self._where, offset, f"{size} bytes", f"{len(data)} bytes")
        return data


class Snapshots:
    """The snapshot files of one node."""

    def __init__(self, disk: Disk, folder: str, *, keep: int = KEEP) -> None:
        """Create the folder if absent, remove unfinished files, and sync the folder.

        An earlier process may have died after it renamed a snapshot, before it synced the folder.
        """
        assert keep > 0, "the newest snapshot must be kept: the log before it is gone"
        self._disk = disk
        self._folder = folder
        self._keep = keep
        disk.make_folder(folder)
        leftovers = [name for name in disk.names(folder) if name.endswith(".tmp")]
        for name in leftovers:
            disk.remove(f"{folder}/{name}")
        disk.sync_folder(folder)

    def names(self) -> list[str]:
        """Return the finished snapshots, newest first."""
        return [name for name in reversed(self._disk.names(self._folder)) if _NAME.fullmatch(name)]

    def log_floor(self) -> int:
        """Return the index up to which the log may be pruned: that of the oldest snapshot kept, 0 without one."""
        names = self.names()
        return int(names[-1][:16], 16) if names else 0

    def open_named(self, name: str) -> SnapshotReader:
        """Open one snapshot. Raise CorruptRecord, StorageError or OSError."""
        return SnapshotReader(self._disk, f"{self._folder}/{name}")

    def open_at(self, index: int) -> SnapshotReader | None:
        """Open the snapshot at exactly `index`, None if it is not kept."""
        for name in self.names():
            if int(name[:16], 16) == index:
                return self.open_named(name)
        return None

    def write(self, meta: SnapshotMeta, chunks: Iterable[bytes]) -> None:
        """Write a snapshot, durable on return. On an OSError, or an error of `chunks`, remove the file and reraise."""
        draft = SnapshotDraft(self._disk, self._folder, f"{meta.name()}.tmp")
        try:
            waiting: list[bytes] = []
            size = 0
            for piece in encode_snapshot(meta, chunks):
                waiting.append(piece)
                size += len(piece)
                if size >= WRITE_BYTES:
                    draft.append(b"".join(waiting))
                    waiting.clear()
                    if draft.size % SYNC_BYTES < size:
                        draft.sync()
                    size = 0
            draft.append(b"".join(waiting))
            draft.finish(meta.name())
        except Exception:
            draft.discard()
            raise

    def receive(self, name: str, peer: int) -> SnapshotDraft:
        """Return a new draft for a snapshot that a peer sends. Replace an unfinished draft of that peer and name.

        Raise StorageError if `name` is not a snapshot's name, or OSError.
        """
        if not _NAME.fullmatch(name):
            raise StorageError(f"{name!r} is not the name of a snapshot")
        return SnapshotDraft(self._disk, self._folder, f"{name}.{peer}.tmp")

    def set_aside(self, name: str) -> None:
        """Rename a snapshot that cannot be read to `….damaged`, so that it no longer counts. Raise OSError."""
        self._disk.rename(f"{self._folder}/{name}", f"{self._folder}/{name}.damaged")
        self._disk.sync_folder(self._folder)

    def retain(self) -> None:
        """Remove all snapshots but the newest `keep`. Raise OSError."""
        surplus = self.names()[self._keep :]
        for name in surplus:
            self._disk.remove(f"{self._folder}/{name}")
        if surplus:
            self._disk.sync_folder(self._folder)


class SnapshotDraft:
    """A snapshot file that is not finished."""

    def __init__(self, disk: Disk, folder: str, temporary: str) -> None:
        self._disk = disk
        self._folder = folder
        self._temporary = temporary
        if temporary in disk.names(folder):
            disk.remove(f"{folder}/{temporary}")
        self._file: DiskFile | None = disk.open(f"{folder}/{temporary}", create=True)
        #: Bytes so far.
        self.size = 0

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        assert self._file is not None, "draft is closed"
        self._file.write_at(self.size, data)
        self.size += len(data)

    def sync(self) -> None:
        """Sync what was appended so far, so that `finish` has less to sync. Raise OSError."""
        assert self._file is not None, "draft is closed"
        self._file.sync()

    def reader(self) -> SnapshotReader:
        """Read the draft back. Raise CorruptRecord, StorageError or OSError."""
        return SnapshotReader(self._disk, f"{self._folder}/{self._temporary}")

    def finish(self, name: str) -> None:
        """Make the draft durable under its final name. Raise OSError."""
        assert _NAME.fullmatch(name), f"{name!r} is not the name of a snapshot"
        assert self._file is not None, "draft is closed"
        self._file.sync()
        self.close()
        self._disk.rename(f"{self._folder}/{self._temporary}", f"{self._folder}/{name}")
        self._disk.sync_folder(self._folder)

    def discard(self) -> None:
        """Remove the draft: on a full disk the log needs the space. A file that cannot be removed now is removed at the
        next start."""
        self.close()
        with contextlib.suppress(OSError):
            self._disk.remove(f"{self._folder}/{self._temporary}")

    def close(self) -> None:
        """Close the file; an unfinished draft stays as a `.tmp` and is removed at the next start."""
        if self._file is not None:
            self._file.close()
            self._file = None
