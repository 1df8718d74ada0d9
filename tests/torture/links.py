"""A proxy for every link between two nodes, called a door, which can be shut, slowed or broken.

One thread with one event loop runs all doors. A shut door keeps its connections and reads no bytes, like a network that
drops packets. A sender only sees that the kernel's buffers fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

CHUNK: Final = 1 << 16


class Door:
    """The proxy from one node to another, for connections that the first node opens. Both directions of each pass
    here."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        #: Whether bytes pass to the target, and back.
        self.is_open = [True, True]
        self.delay_s = 0.0
        self._opened = asyncio.Event()
        self._opened.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Take a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    def set(self, *, there: bool, back: bool, delay_s: float = 0.0) -> None:
        """Open or shut each direction."""
        self.is_open = [there, back]
        self.delay_s = delay_s
        self._opened.set()
        self._opened.clear()

    def reset(self) -> None:
        """Break all connections."""
        for writer in list(self._writers):
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open[0]:
            # Do not answer, as if the first packet were lost.
            await self._until_open(0)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pass(0, reader, far_writer), self._pass(1, far_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers -= both
            for each in both:
                with contextlib.suppress(Exception):
                    each.transport.abort()

    async def _until_open(self, direction: int) -> None:
        while not self.is_open[direction]:
            await self._opened.wait()
            await asyncio.sleep(0.01)

    async def _pass(self, direction: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if not self.is_open[direction]:
                await self._until_open(direction)
            writer.write(data)
            await writer.drain()
        # Close both sides: the nodes' links do not use half-closed connections.
        raise ConnectionResetError


class Links:
    """The doors between all pairs of nodes, by (from, to)."""

    def __init__(self, ports: dict[int, int]) -> None:
        self.doors = {(a, b): Door(("127.0.0.1", ports[b])) for a in ports for b in ports if a != b}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

        async def listen() -> None:
            for door in self.doors.values():
                await door.listen()

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def port(self, source: int, target: int) -> int:
        """Return the port at which `source` reaches `target`."""
        return self.doors[source, target].port

    def each(self, change: Callable[[int, int, Door], None]) -> None:
        """Call `change(from, to, door)` for every door, on the doors' thread."""

        def run() -> None:
            for (a, b), door in self.doors.items():
                change(a, b, door)

        self._loop.call_soon_threadsafe(run)

    def heal(self) -> None:
        """Open all doors, and slow none."""
        self.each(lambda a, b, door: door.set(there=True, back=True))

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
