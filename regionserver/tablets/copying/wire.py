"""Frames on a connection for a copy. Pure. The connection begins with a hello, as a link does (`links/hello.py`).

    destination                                  source
    ASK BeginCopy            ----------------->
                             <-----------------  ANSWER CopyBegun | CopyRefused
    ASK FetchRows            ----------------->
                             <-----------------  CHUNK*, ANSWER RowsSent
    ASK FetchLog             ----------------->
                             <-----------------  ANSWER LogBegins | CopyRefused, CHUNK*, ANSWER LogSent
    ASK EndCopy              ----------------->  (both close)

    ask, answer := msgpack of the structs below
    chunk       := crc32c:u32 of the data, data          rows: bytes of the LMDB file; log: msgpack of entries

All numbers are big-endian. A connection carries one copy. The session ends with the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from coord.errors import RemoteProtocolError
from coord.raft.messages import Entry
from coord.storage.shared.items import EntryView

#: Kinds of frames after the hello.
ASK: Final = 20
ANSWER: Final = 21
CHUNK: Final = 22

#: Bytes of rows in one chunk.
CHUNK_BYTES: Final = 1 << 20
#: Bytes of entries in one chunk, unless one entry is larger.
LOG_CHUNK_BYTES: Final = 1 << 20
_CRC: Final = struct.Struct(">I")


class BeginCopy(msgspec.Struct, frozen=True, tag=True):
    """Begin a session: copy `tablet` from the source's member `source` to member `number`."""

    tablet: str
    source: int
    number: int


class FetchRows(msgspec.Struct, frozen=True, tag=True):
    """Send the rows at one moment."""


class FetchLog(msgspec.Struct, frozen=True, tag=True):
    """Send the log behind the rows, which hold every entry up to (`index`, `term`)."""

    index: int
    term: int


class EndCopy(msgspec.Struct, frozen=True, tag=True):
    """The copy is complete."""


class CopyBegun(msgspec.Struct, frozen=True, tag=True):
    """The session has begun: the source's term, its configuration with the id, and the size of its rows."""

    term: int
    config_term: int
    config_index: int
    configuration: bytes
    rows_bytes: int
    table: str
    start_key: str
    end_key: str
    hash_buckets: int


class CopyRefused(msgspec.Struct, frozen=True, tag=True):
    """The source does not serve the request. `may_wait`: it would later."""

    reason: str
    may_wait: bool = False


class RowsSent(msgspec.Struct, frozen=True, tag=True):
    """All rows were sent: bytes, and the file's identity, which is the source's."""

    size: int
    generation: int


class LogBegins(msgspec.Struct, frozen=True, tag=True):
    """The log has the entry where the rows end: the source's term, and the configuration in force there."""

    term: int
    config_term: int
    config_index: int
    configuration: bytes


class LogSent(msgspec.Struct, frozen=True, tag=True):
    """The source has sent all its durable entries. The last one follows; without any, it is the entry of the rows."""

    last_index: int
    last_term: int


Ask = BeginCopy | FetchRows | FetchLog | EndCopy
Answer = CopyBegun | CopyRefused | RowsSent | LogBegins | LogSent

_ENCODER: Final = msgspec.msgpack.Encoder()
_ASKS: Final = msgspec.msgpack.Decoder(Ask)
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
_ENTRIES: Final = msgspec.msgpack.Decoder(list[tuple[int, int, int, bytes]])


def encode(message: Ask | Answer) -> bytes:
    """Return the body of an ASK or ANSWER."""
    return _ENCODER.encode(message)


def decode_ask(body: bytes | memoryview) -> Ask:
    """Decode the body of an ASK. Raise RemoteProtocolError."""
    try:
        asked: Ask = _ASKS.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"an ASK that cannot be decoded: {error}") from error
    return asked


def decode_answer(body: bytes | memoryview) -> Answer:
    """Decode the body of an ANSWER. Raise RemoteProtocolError."""
    try:
        answer: Answer = _ANSWERS.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"an ANSWER that cannot be decoded: {error}") from error
    return answer


def seal_of(data: bytes | memoryview) -> bytes:
    """Return the bytes before `data` in a CHUNK."""
    return _CRC.pack(crc32c(data))


class SentChunk(NamedTuple):
    """The content of a CHUNK: data, and their CRC-32C."""

    data: memoryview
    crc: int


def open_chunk(body: memoryview) -> SentChunk:
    """Return the content of a CHUNK. Raise RemoteProtocolError if the content was changed on the way."""
    data = body[_CRC.size :]
    crc = crc32c(data)
    if len(body) < _CRC.size or _CRC.unpack_from(body)[0] != crc:
        raise RemoteProtocolError(f"a chunk of {len(data)} bytes has another checksum than when it was sent")
    return SentChunk(data, crc)


def encode_entries(entries: Sequence[EntryView]) -> bytes:
    """Return the data of a CHUNK with entries."""
    return _ENCODER.encode([(one.term, one.index, one.kind, one.data) for one in entries])


def decode_entries(data: memoryview, after: int) -> list[Entry]:
    """Return the entries of a CHUNK, which follow index `after`. Raise RemoteProtocolError."""
    try:
        found = [Entry(*one) for one in _ENTRIES.decode(data)]
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"entries that cannot be decoded: {error}") from error
    if not found or [one.index for one in found] != list(range(after + 1, after + 1 + len(found))):
        raise RemoteProtocolError(f"entries that do not follow entry {after}")
    return found
