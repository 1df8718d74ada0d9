"""The byte stream between a client and the store: frames, four-letter words, the handshake. No sockets.

    stream  = word | connect frame*          word  = four lower-case letters, e.g. `ruok`; later bytes are ignored
    frame   = length:int payload             connect = a frame holding a ConnectRequest, and the first of its stream

The server passes received bytes to `ClientConnection.receive_data` and then checks three things:

    frames = conn.receive_data(data)         # [(at, end), ...]: payloads inside the block
    block = conn.take_block()
    request = conn.take_connect()            # the ConnectRequest, once
    if conn.phase != PHASE_OPEN: ...         # conn.word to answer, or conn.violation: serve the frames, then close

`FrameReader` finds frames without a handshake, for the client side and for tests.

Frames are byte ranges of one block, so no frame is copied; only a frame that arrives in pieces is joined, once. The
block is immutable and belongs to the caller after `take_block`. An idle connection keeps no block alive.
"""

from __future__ import annotations

from typing import Final

from coord.errors import RemoteProtocolError
from coord.wire.codec import REQUEST_HEADER_BYTES, decode_connect_request
from coord.wire.jute import I32, IS_COMPILED
from coord.wire.values import ConnectRequest

if IS_COMPILED:
    from librt.strings import read_i32_be

#: Longest payload accepted from a client. Equal to the default of jute.maxbuffer: a request that fits ZooKeeper fits
#: here. The limit is checked against the length prefix, before the payload arrives.
MAX_FRAME_BYTES: Final = 0xFFFFF

#: Longest payload that a client accepts from a server. Lists of children and multi-reads may be longer than a request.
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024

#: Four-letter words. Read as an int, each exceeds MAX_FRAME_BYTES, so no word can be mistaken for a frame length.
FOUR_LETTER_WORDS: Final[frozenset[bytes]] = frozenset(
    (
        b"conf",
        b"cons",
        b"crst",
        b"dirs",
        b"dump",
        b"envi",
        b"gtmk",
        b"isro",
        b"mntr",
        b"ruok",
        b"srst",
        b"srvr",
        b"stat",
        b"stmk",
        b"wchc",
        b"wchp",
        b"wchs",
    )
)

PHASE_START: Final = 0  #: Neither a four-letter word nor a connect request is complete.
PHASE_OPEN: Final = 1  #: the connect request has arrived; frames follow
PHASE_WORD: Final = 2  #: a four-letter word arrived: answer and close; further bytes are ignored
PHASE_CLOSED: Final = 3  #: the client violated the protocol (see `violation`); further bytes are ignored

_length_at: Final = I32.unpack_from


class FrameReader:
    """Splits a byte stream into frames.

    Invariant: `_partial` holds the bytes of one incomplete frame (or of its length prefix). `_need` is the number of
    bytes at which splitting is worth another attempt.
    """

    def __init__(self, max_bytes: int, min_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        #: Why the reader stopped reading; empty while the stream is valid.
        self.violation: str = ""
        self._block: bytes = b""
        self._partial: bytearray = bytearray()
        self._need: int = 4

    @property
    def pending_bytes(self) -> int:
        """Return the bytes kept of an incomplete frame: at most max_bytes + 4."""
        return len(self._partial)

    def take_block(self) -> bytes:
        """Return the block that the ranges of the last `feed` refer to, and release it: the caller owns it."""
        block = self._block
        self._block = b""
        return block

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Process received bytes and return the complete payloads as (at, end) ranges of the block.

        After an invalid length, return the frames in front of it, set `violation` and ignore all later bytes.
        """
        if self.violation:
            return []
        if self._partial:
            if len(self._partial) + len(data) < self._need:
                self._partial += data
                return []
            data = b"".join((self._partial, data))
            self._partial = bytearray()
        return self._split(data)

    def _split(self, data: bytes) -> list[tuple[int, int]]:
        """Split `data`, which begins at a frame boundary, into frames; keep the rest."""
        self._block = data
        frames: list[tuple[int, int]] = []
        max_bytes = self.max_bytes
        min_bytes = self.min_bytes
        end = len(data)
        at = 0
        while True:
            start = at + 4
            if start > end:
                self._keep(data, at, 4)
                return frames
            length: int = read_i32_be(data, at) if IS_COMPILED else _length_at(data, at)[0]
            if length < min_bytes or length > max_bytes:
                self.violation = f"frame of {length} bytes, allowed are {min_bytes} to {max_bytes}"
                return frames
            stop = start + length
            if stop > end:
                self._keep(data, at, length + 4)
                return frames
            frames.append((start, stop))
            at = stop

    def _keep(self, data: bytes, at: int, need: int) -> None:
        """Keep an incomplete frame until `need` bytes of it have arrived."""
        self._need = need
        if at < len(data):
            self._partial += data[at:]


class ClientConnection:
    """The server side of one client connection's byte stream: handshake, then frames."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.phase: int = PHASE_START
        #: The four-letter word, once phase is PHASE_WORD.
        self.word: bytes = b""
        self._reader = FrameReader(max_frame_bytes, REQUEST_HEADER_BYTES)
        self._head: bytes = b""
        self._connect: ConnectRequest | None = None
        self._violation: str = ""

    @property
    def violation(self) -> str:
        """Return how the client violated the protocol, for the log; "" if it did not."""
        return self._violation or self._reader.violation

    @property
    def pending_bytes(self) -> int:
        """Return the bytes kept of an incomplete frame: at most the frame limit + 4."""
        return self._reader.pending_bytes + len(self._head)

    def take_block(self) -> bytes:
        """Return the block that the ranges of the last `receive_data` refer to, and release it: the caller owns it."""
        return self._reader.take_block()

    def take_connect(self) -> ConnectRequest | None:
        """Return the connect request once, on the first call after it arrived; otherwise None."""
        request = self._connect
        self._connect = None
        return request

    def receive_data(self, data: bytes) -> list[tuple[int, int]]:
        """Process received bytes and return the complete requests as (at, end) ranges of the block, in order.

        Each range holds at least a request header. The result of the handshake is in `phase`, `word` and
        `take_connect()`; requests that follow the connect request in the same bytes are returned at once. When `phase`
        becomes PHASE_CLOSED, the returned requests precede the violation: serve them, then close.
        """
        if self.phase == PHASE_OPEN:
            frames = self._reader.feed(data)
            if self._reader.violation:
                self.phase = PHASE_CLOSED
            return frames
        if self.phase == PHASE_START:
            return self._receive_first(data)
        return []

    def _receive_first(self, data: bytes) -> list[tuple[int, int]]:
        """Parse a four-letter word or the connect request. The first four bytes may arrive one at a time."""
        reader = self._reader
        if not reader.pending_bytes:
            data = self._head + data
            if len(data) < 4:
                self._head = data
                return []
            self._head = b""
            word = data[:4]
            if word in FOUR_LETTER_WORDS:
                self.phase = PHASE_WORD
                self.word = word
                return []
        frames = reader.feed(data)
        if frames:
            at, end = frames.pop(0)
            try:
                self._connect = decode_connect_request(reader._block, at, end)
                self.phase = PHASE_OPEN
            except RemoteProtocolError as error:
                self._violation = str(error)
                frames.clear()
        if self.violation:
            self.phase = PHASE_CLOSED
        return frames
