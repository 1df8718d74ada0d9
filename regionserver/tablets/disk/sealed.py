"""The envelope of the small files that a server replaces as a whole: superblocks and consensus metadata. Pure.

    file := magic:4  format:u16  length:u32  crc:u32  body        big-endian
    crc  := crc32c over magic, format, length and body

Every format has this envelope. A file with a valid checksum and a higher format was therefore written by a newer build,
and a file whose checksum is wrong is damaged, whatever its format field says.
"""

from __future__ import annotations

import struct
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from coord.errors import ConfigError, StorageError

_HEAD: Final = struct.Struct(">4sHII")
_CHECKED: Final = struct.Struct(">4sHI")
#: No file of this kind is longer: a superblock has about 600 bytes, a configuration of 1000 members about 100 kB.
FILE_BYTES_MAX: Final = 1024 * 1024


class DamagedFile(StorageError):  # noqa: N818 - a finding, not a fault
    """Raised for a damaged file. `path` has the place, `why` the fault."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path
        self.why = why


class NewerFormat(ConfigError):  # noqa: N818 - a finding, not a fault
    """Raised when a newer build has written a file. The server must neither start nor change anything."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, this build knows formats up to {known}: start a build that knows format"
            f" {found} (docs/compatibility.md); nothing was changed"
        )
        self.path = path
        self.found = found


def seal(magic: bytes, file_format: int, body: bytes) -> bytes:
    """Return the content of the file that holds `body`."""
    assert _HEAD.size + len(body) <= FILE_BYTES_MAX, f"{magic!r} of {len(body)} bytes"
    crc = crc32c(body, crc32c(_CHECKED.pack(magic, file_format, len(body))))
    return _HEAD.pack(magic, file_format, len(body), crc) + body


def unseal(content: bytes, magic: bytes, known: int, path: str) -> bytes:
    """Return the body of a file.

    Args:
        content: The whole file.
        magic: The expected first bytes.
        known: The highest format that the caller reads.
        path: The file, for messages.

    Raises:
        DamagedFile: The content is damaged.
        NewerFormat: The content is intact and has a higher format than `known`.
    """
    if len(content) < _HEAD.size:
        raise DamagedFile(path, f"it has {len(content)} bytes, its head alone has {_HEAD.size}")
    found_magic, file_format, length, crc = _HEAD.unpack_from(content)
    if found_magic != magic:
        raise DamagedFile(path, f"it begins with {found_magic!r} instead of {magic!r}")
    body = content[_HEAD.size :]
    if len(body) != length:
        raise DamagedFile(path, f"it has {len(body)} bytes after its head, {length} were written")
    computed = crc32c(body, crc32c(_CHECKED.pack(magic, file_format, length)))
    if computed != crc:
        raise DamagedFile(path, f"its checksum is {crc:08x}, its content has {computed:08x}")
    if file_format > known:
        raise NewerFormat(path, file_format, known)
    if file_format < 1:
        raise DamagedFile(path, "it has format 0, which no build writes")
    return body


class OfTablet(Protocol):
    """The content of a file that belongs to one tablet."""

    @property
    def tablet(self) -> str: ...


T = TypeVar("T", bound=OfTablet)


class SealedFile(Generic[T]):
    """One kind of file: the JSON of a record that names its tablet, in the envelope."""

    def __init__(self, magic: bytes, file_format: int, record: type[T]) -> None:
        self._magic = magic
        self._format = file_format
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(record)

    def encode(self, record: T) -> bytes:
        """Return the content of the file."""
        return seal(self._magic, self._format, self._encoder.encode(record))

    def decode(self, content: bytes, tablet: str, path: str) -> T:
        """Return the record of `tablet`.

        Raises:
            DamagedFile: The content is damaged, or belongs to another tablet.
            NewerFormat: A newer build has written the file.
        """
        body = unseal(content, self._magic, self._format, path)
        try:
            record = self._decoder.decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedFile(path, f"its checksum is right and its content is not ({error})") from error
        if record.tablet != tablet:
            raise DamagedFile(path, f"it is of tablet {record.tablet}")
        return record
