"""The byte stream between a client and the store: frames, four-letter words, the handshake. No sockets.

    stream  = word | connect frame*          word  = four lower-case letters, e.g. `ruok`; bytes behind it are ignored
    frame   = length:int payload             connect = a frame holding a ConnectRequest, and the first of its stream

A server gives what it received to `ClientConnection.receive_data` and looks at three things afterwards:

    frames = conn.receive_data(data)         # [(at, end), ...]: payloads inside the block
    block = conn.take_block()
    request = conn.take_connect()            # the ConnectRequest, once
    if conn.phase != PHASE_OPEN: ...         # conn.word to answer, or conn.violation: close after the frames above

`FrameReader` is the stream of frames alone, for the client's side and for tests.

Frames are handed out as byte ranges of one block, so a read is not copied to find its frames: only a frame that arrives
in pieces is joined, once. The block is immutable and the taker's to keep; an idle connection pins none of it.
"""

from __future__ import annotations

from typing import Final

from coord.errors import RemoteProtocolError
from coord.wire.codec import REQUEST_HEADER_BYTES, decode_connect_request
from coord.wire.jute import I32, IS_COMPILED
from coord.wire.values import ConnectRequest

if IS_COMPILED:
    from librt.strings import read_i32_be

#: The longest payload taken from a client: jute.maxbuffer's default, so a request that fits ZooKeeper fits here. It is
#: compared with the length prefix, before any of the payload is there.
MAX_FRAME_BYTES: Final = 0xFFFFF

#: The longest payload a client takes from a server. Children lists and multi-reads may be far longer than a request.
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024

#: Four-letter words. Each is, as an int, far more than MAX_FRAME_BYTES, so it cannot be a frame's length.
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

PHASE_START: Final = 0  #: neither a word nor a connect request is complete
PHASE_OPEN: Final = 1  #: the connect request is in; frames follow
PHASE_WORD: Final = 2  #: a four-letter word: answer and close; further bytes are ignored
PHASE_CLOSED: Final = 3  #: the client broke the protocol (`violation` says how); further bytes are ignored

_length_at: Final = I32.unpack_from


class FrameReader:
    """Finds the frames in a stream of bytes.

    Invariant: `_partial` holds the bytes of one incomplete frame (or of its length), and `_need` how many there must be
    before looking again is worth it.
    """

    def __init__(self, max_bytes: int, min_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        #: Why nothing more will be read from this stream; empty while it is in order.
        self.violation: str = ""
        self._block: bytes = b""
        self._partial: bytearray = bytearray()
        self._need: int = 4

    @property
    def pending_bytes(self) -> int:
        """How much of an incomplete frame is being kept: at most max_bytes + 4."""
        return len(self._partial)

    def take_block(self) -> bytes:
        """What the ranges returned by the last `feed` refer to; asked once, it is then the caller's alone."""
        block = self._block
        self._block = b""
        return block

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Take what was received; return the complete payloads as (at, end) ranges of the block.

        After a bad length the frames in front of it are still returned, `violation` is set and all later bytes are
        ignored.
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
        """Cut `data`, which begins at a frame's border, into frames; keep the rest."""
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
        """Remember an incomplete frame until `need` bytes of it are there."""
        self._need = need
        if at < len(data):
            self._partial += data[at:]


class ClientConnection:
    """The server's view of one client connection's bytes, from the first one on."""

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
        """How the client broke the protocol, for the log; empty while it did not."""
        return self._violation or self._reader.violation

    @property
    def pending_bytes(self) -> int:
        """Return how many bytes of an incomplete frame are being kept: bounded by the frame limit + 4."""
        return self._reader.pending_bytes + len(self._head)

    def take_block(self) -> bytes:
        """What the ranges returned by the last `receive_data` refer to; asked once, it is then the caller's alone."""
        return self._reader.take_block()

    def take_connect(self) -> ConnectRequest | None:
        """The connect request, the first time this is asked after it came; None otherwise."""
        request = self._connect
        self._connect = None
        return request

    def receive_data(self, data: bytes) -> list[tuple[int, int]]:
        """Take what was received; return the complete requests as (at, end) ranges of the block, in order.

        Each range holds at least a request header. The handshake shows in `phase`, `word` and `take_connect()`;
        requests behind the connect request in the same bytes are returned at once. When `phase` becomes PHASE_CLOSED
        the requests returned came before the fault: perform them, then close.
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
        """Look for a word or the connect request; its first four bytes may come one at a time."""
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
