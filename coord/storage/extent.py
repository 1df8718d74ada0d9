"""The least length of the log, stored outside of the log's folder, so that a missing or truncated log is detected.

The log itself proves that its records are whole. It cannot prove that no records followed: its last segment may have
been removed, or truncated after any record. The extent states the number of the last segment, the least size of its
file, and the least offset at which its records end:

    extent := slot zeros slot zeros                two slots of 512 bytes, written in turn: a torn write destroys one
    slot   := magic "RKWE" version:u16 generation:u64 segment:u64 size:u64 end:u64 crc:u32         crc32c of the rest

A longer file, or a newer segment, is consistent with the extent. Zeros are written ahead of the records, so one extent
holds for many records. A record beyond the stated size is reported as durable only after a new extent is durable. So
every acknowledged record is within the extent. A shorter file has lost records, or only zeros. The two cases cannot be
distinguished, so both count as damage.

Segment 0 demands nothing: the log was set aside. If the file is missing, an older build wrote the directory, and
nothing is checked. If that older build runs again, it truncates the zeros; so when a log is closed, its extent states
only the size of its records.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from coord.env import Disk, DiskFile, read_file, replace_file
from coord.errors import CorruptRecord

#: In the data directory, not in the folder of the log. Its name survives `rm -r wal*`.
NAME: Final = "log.extent"
MAGIC: Final = b"RKWE"
VERSION: Final = 1
#: One sector: a torn write destroys no other sector.
SLOT_BYTES: Final = 512

_SLOT: Final = struct.Struct(">4sHQQQQ")
_CRC: Final = struct.Struct(">I")


class Extent:
    """Segment `segment` has at least `size` bytes, and records up to `end`."""

    def __init__(self, segment: int, size: int, end: int, generation: int = 0) -> None:
        self.segment = segment
        self.size = size
        self.end = end
        self.generation = generation

    def encode(self) -> bytes:
        """Return the slot, without the zeros after it."""
        body = _SLOT.pack(MAGIC, VERSION, self.generation, self.segment, self.size, self.end)
        return body + _CRC.pack(crc32c(body))


def read_extent(disk: Disk) -> Extent | None:
    """Return the extent of the log, None if it is unknown. Raise OSError."""
    if NAME not in disk.names(""):
        return None
    data = read_file(disk, NAME)
    found = [slot for slot in (_decode(data, 0), _decode(data, SLOT_BYTES)) if slot is not None]
    return max(found, key=lambda slot: slot.generation, default=None)


def _decode(data: bytes, at: int) -> Extent | None:
    body = data[at : at + _SLOT.size]
    crc = data[at + _SLOT.size : at + _SLOT.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c(body):
        return None
    magic, version, generation, segment, size, end = _SLOT.unpack(body)
    if magic != MAGIC or version != VERSION:
        return None
    return Extent(segment, size, end, generation)


def check_files(disk: Disk, folder: str, names: list[str], extent: Extent | None) -> None:
    """Compare the log's files with the extent, before they are read. Raise CorruptRecord or OSError."""
    if extent is None or extent.segment == 0:
        return
    numbers = {number_of(name): name for name in names}
    wanted = f"segment {extent.segment} of at least {extent.size} bytes"
    if max(numbers, default=0) < extent.segment:
        raise CorruptRecord(disk.where(f"{folder}/{extent.segment:016x}.log"), 0, wanted, "no such file")
    name = numbers.get(extent.segment)
    if name is None:
        return  # an older build ran later, and pruned the segment
    file = disk.open(f"{folder}/{name}")
    try:
        size = file.size()
    finally:
        file.close()
    if size < extent.size:
        raise CorruptRecord(disk.where(f"{folder}/{name}"), size, wanted, f"{size} bytes")


def check_end(path: str, number: int, end: int, extent: Extent | None) -> None:
    """Compare the end of a segment's records with the extent. Raise CorruptRecord if they end before it."""
    if extent is not None and number == extent.segment and end < extent.end:
        raise CorruptRecord(path, end, f"records up to byte {extent.end}", "no record after it")


def number_of(name: str) -> int:
    """Return the number in a segment's name, 0 for another file."""
    digits = name.removesuffix(".log")
    try:
        return int(digits, 16)
    except ValueError:
        return 0


class ExtentFile:
    """The file, open for writing."""

    def __init__(self, disk: Disk) -> None:
        """Create the file if it is missing. Raise OSError."""
        self._disk = disk
        self.current = read_extent(disk)
        if self.current is None:
            self.current = Extent(0, 0, 0, 1)
            slot = self.current.encode()
            replace_file(disk, "", NAME, slot + bytes(2 * SLOT_BYTES - len(slot)))
        self._file: DiskFile | None = None

    def set(self, segment: int, size: int, end: int) -> None:
        """Make durable that `segment` is the last, of `size` bytes, with records up to `end`. Raise OSError."""
        assert 0 <= end <= size, f"records up to {end} in {size} bytes"
        current = self.current
        assert current is not None, "made in __init__"
        extent = Extent(segment, size, end, current.generation + 1)
        if self._file is None:
            self._file = self._disk.open(NAME)
        self._file.write_at(extent.generation % 2 * SLOT_BYTES, extent.encode())
        self._file.sync()
        self.current = extent

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def expect_nothing(disk: Disk) -> None:
    """Make durable that the log may be missing, before it is set aside. Raise OSError."""
    file = ExtentFile(disk)
    try:
        file.set(0, 0, 0)
    finally:
        file.close()
