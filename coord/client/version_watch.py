"""Every version of a znode for programs that use our client: events, gaps, and a token to resume from (N7).

Like `kazoo_watch.py`, in a reactor. The client's persistent watch survives reconnects; its EVENT_GAP makes this watch
read everything again. The watch ends with the session: call `start` again in the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import EVENT_GAP, ZkClient
from coord.client.versions import VersionBook, VersionEvent, VersionFollower, VersionKind
from coord.errors import NoNode, RetryableError
from coord.wire import records as r

log = Logger()

_KINDS = {
    r.EVENT_CREATED: VersionKind.CREATED,
    r.EVENT_DELETED: VersionKind.DELETED,
    r.EVENT_DATA_CHANGED: VersionKind.CHANGED,
}


class VersionWatch(VersionFollower):
    """Follows one znode, and with `children` its children as well. An exception of `handle` ends the watch."""

    def __init__(
        self,
        client: ZkClient,
        path: str,
        handle: Callable[[VersionEvent], object],
        *,
        children: bool = False,
        token: bytes = b"",
        since: int = 0,
    ) -> None:
        """Continue from `token`, or without a token report the changes after zxid `since`. Raise BadToken."""
        super().__init__(path, handle, children=children, token=token, since=since)
        self._client = client
        self._must_reread = False
        self._is_reading = False
        self._is_over = False

    async def start(self) -> None:
        """Set the watch in the client's present session, and read everything. Raise the errors of these requests."""
        await self._client.add_watch(self._path, self._event, recursive=True)
        self._must_reread = True
        self._go_on()

    def stop(self) -> None:
        """End the watch: `handle` is not called any more."""
        self._is_over = True
        self._client.remove_watch(self._path, self._event).addErrback(lambda _: None)

    def _event(self, event_type: int, path: str, _zxid: int) -> None:
        if event_type == EVENT_GAP:
            self._must_reread = True
        elif path == self._path or (self._with_children and path.rpartition("/")[0] == self._path.rstrip("/")):
            self._fired.setdefault(path, _KINDS.get(event_type))
        else:
            return
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_reading and not self._is_over:
            self._is_reading = True
            ensureDeferred(self._rounds()).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._is_over = True
        log.failure("the watch of {path} has ended", failure=failure, path=self._path)

    async def _rounds(self) -> None:
        while (self._must_reread or self._fired) and not self._is_over:
            reread, self._must_reread = self._must_reread, False
            fired, self._fired = self._fired, {}
            before = self._book.token()
            try:
                events = await self._read_all(fired, reread=reread)
            except RetryableError:  # EVENT_GAP or the next `start` repeats the round
                self._book = VersionBook(before, since=self._since)
                self._fired = {**fired, **self._fired}
                break
            for event in events:
                if not self._is_over:
                    self._handle(event)
            self._token = self._book.token()
        self._is_reading = False

    async def _read_all(self, fired: dict[str, VersionKind | None], *, reread: bool) -> list[VersionEvent]:
        book, events = self._book, list[VersionEvent]()
        if reread:
            await self._client.sync(self._path)
            book.lost_watches()
            fired = {**dict.fromkeys([self._path, *book.paths()]), **fired}
        listing = self._with_children and any(kind is not VersionKind.CHANGED for kind in fired.values())
        if self._path in fired:
            events += await self._read(self._path, fired.pop(self._path))
        if listing:
            for child in await self._list():
                events += await self._read(child, fired.pop(child, None))
        for path, first in fired.items():
            events += await self._read(path, first)
        return [*events, *(book.settled(self._path) if listing else [])]

    async def _read(self, path: str, first: VersionKind | None) -> list[VersionEvent]:
        try:
            data, stat = await self._client.get(path)
        except NoNode:
            return self._book.read(path, None, b"", self._client.last_zxid, first)
        return self._book.read(path, stat, data, self._client.last_zxid, first)

    async def _list(self) -> list[str]:
        try:
            names, stat = await self._client.children2(self._path)
        except NoNode:
            return []
        return self._book.listed(self._path, stat, names)
