"""One browser that listens to the page's stream of server-sent events.

A listener that reads slowly gets no further parts of the snapshot. Other messages wait in memory; a listener that
leaves more than UNREAD_MAX bytes is dropped, and reconnects by itself when it reads again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

#: Listeners of one master.
LISTENERS_MAX: Final = 16
#: Bytes that a listener may leave unread, in addition to those in the socket.
UNREAD_MAX: Final = 1 << 20


def event(name: str, data: bytes) -> bytes:
    """Return one server-sent event. `data` is JSON, so it has no line breaks."""
    return f"event: {name}\ndata: ".encode() + data + b"\n\n"


def with_id(message_id: str, message: bytes) -> bytes:
    """Return an event with the id that the browser names when it reconnects; "" makes the browser forget its id."""
    return f"id: {message_id}\n".encode() + message


class PageListener:
    """A push producer of twisted: the transport pauses it while its buffer is full."""

    def __init__(self, request: Any, gone: Callable[[PageListener], None]) -> None:
        self._request = request
        self._gone = gone
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self.is_paused = False
        self.is_closed = False
        #: Rows of the snapshot that were sent, and whether all of them were; None: the snapshot has not begun.
        self.sent: int | None = None
        self.is_complete = False
        #: Tables and servers whose names were sent.
        self.named = (0, 0)

    def begin_anew(self) -> None:
        """Note that the rows have other numbers now: the snapshot must be sent."""
        self.sent, self.is_complete, self.named = None, False, (0, 0)

    def resume(self, rows: int) -> None:
        """Note that the browser has a snapshot of `rows` rows, and needs the missed messages alone."""
        self.sent, self.is_complete = rows, True

    def start(self) -> None:
        """Begin to send."""
        request = self._request
        request.notifyFinish().addBoth(self._finished)
        request.registerProducer(self, True)

    def send(self, message: bytes) -> None:
        """Send a message, or keep it while the listener does not read."""
        if self.is_closed:
            return
        if not self.is_paused:
            self._request.write(message)
            return
        self._unread.append(message)
        self._unread_bytes += len(message)
        if self._unread_bytes > UNREAD_MAX:
            self.drop()

    def drop(self) -> None:
        """End the connection at once, with everything that is unread."""
        if not self.is_closed:
            transport = getattr(self._request.channel, "transport", None)
            self._finished()
            if transport is not None:
                transport.abortConnection()

    def close(self) -> None:
        """End the stream in an orderly way."""
        if not self.is_closed:
            request = self._request
            self._finished()
            request.unregisterProducer()
            request.finish()

    def _finished(self, _reason: object = None) -> None:
        """Handle the end of the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._unread.clear()
            self._unread_bytes = 0
            self._gone(self)

    # --- twisted's IPushProducer --------------------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self.is_paused = True

    def resumeProducing(self) -> None:
        """Write the messages that were kept during the pause."""
        self.is_paused = False
        kept, self._unread = self._unread, []
        self._unread_bytes = 0
        for at, message in enumerate(kept):
            if self.is_closed:
                return
            if self.is_paused:
                self._unread = kept[at:]
                self._unread_bytes = sum(map(len, self._unread))
                return
            self._request.write(message)

    def stopProducing(self) -> None:
        """Handle the loss of the connection."""
        self._finished()
