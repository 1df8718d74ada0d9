"""Every version of a znode for programs that use kazoo: events, gaps, and a token to resume from (N7).

    watch = KazooWatch(client, "/settings", handle, children=True, token=saved)
    watch.start()

`handle(event)` gets the events of `coord/client/versions.py`, in the order of this watch's readings, in a thread of the
watch. kazoo drops all watches when a connection breaks. So after each reconnect, in the same session or a new one, the
watch synchronizes with the leader and reads everything again; the events that follow say what was missed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from coord.client.versions import VersionBook, VersionEvent, VersionFollower, VersionKind

if TYPE_CHECKING:
    from kazoo.client import KazooClient

log = Logger()

#: Pause before a round is repeated that failed while the client is connected.
RETRY_S: Final = 0.1


class KazooWatch(VersionFollower):
    """Follows one znode, and with `children` its children as well.

    `client` is a kazoo client, started or not. An exception of `handle` ends the watch, is logged, and is in `error`.
    """

    def __init__(
        self,
        client: KazooClient,
        path: str,
        handle: Callable[[VersionEvent], object],
        *,
        children: bool = False,
        token: bytes = b"",
        since: int = 0,
    ) -> None:
        """Continue from `token`, or without a token report the changes after zxid `since`. Raise BadToken, or
        ImportError without kazoo."""
        try:
            from kazoo import exceptions
        except ImportError as error:
            raise ImportError("KazooWatch needs the package kazoo: pip install kazoo") from error
        self._no_node = exceptions.NoNodeError
        super().__init__(path, handle, children=children, token=token, since=since)
        self._client = client
        self._changed = threading.Condition()
        #: Whether the list of children has changed.
        self._list_fired = False
        self._must_reread = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        #: Called in the watch's thread after `handle` has processed the events of a round: the time to store `token`.
        self.on_progress: Callable[[], object] = lambda: None
        #: Exception of `handle` that ended the watch.
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin to follow. The first events come when the client is connected."""
        self._client.add_listener(self._state_changed)
        self._thread.start()

    def stop(self) -> None:
        """End the watch, and wait until `handle` has returned."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._client.remove_listener(self._state_changed)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- in kazoo's threads: nothing may block ------------------------------------------------------------------------

    def _state_changed(self, _state: object) -> None:
        with self._changed:
            self._must_reread = True
            self._changed.notify()

    def _data_event(self, event: Any) -> None:
        with contextlib.suppress(ValueError), self._changed:  # ValueError: NONE, the connection has broken
            self._fired.setdefault(event.path, VersionKind(event.type))
            self._changed.notify()

    def _list_event(self, event: Any) -> None:
        if event.type == "CHILD":
            with self._changed:
                self._list_fired = True
                self._changed.notify()

    # --- in the watch's own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._stopping:
                    return
                reread, self._must_reread = self._must_reread, False
                fired, self._fired = self._fired, {}
                listing, self._list_fired = self._list_fired, False
            try:
                events = self._round(fired, reread=reread, listing=listing)
            except Exception as error:  # kazoo's errors of a broken connection have no common class
                if not _is_connection_error(error):
                    self._end(error)
                    return
                with self._changed:
                    self._must_reread = True
                    self._changed.wait_for(lambda: self._stopping, RETRY_S)
                continue
            try:
                for event in events:
                    self._handle(event)
                self._token = self._book.token()
                self.on_progress()
            except Exception as error:
                self._end(error)
                return

    def _has_work(self) -> bool:
        work = self._must_reread or self._fired or self._list_fired
        return self._stopping or bool(work and self._client.connected)

    def _end(self, error: Exception) -> None:
        log.failure("the watch of {path} has ended", path=self._path)
        self.error = error

    def _round(self, fired: dict[str, VersionKind | None], *, reread: bool, listing: bool) -> list[VersionEvent]:
        """Read what may have changed. Return the events.

        A round that fails is repeated as a whole. Events of its readings must not be lost, so the book is restored.
        """
        before = self._book.token()
        try:
            return self._read_all(fired, reread=reread, listing=listing)
        except Exception:
            self._book = VersionBook(before, since=self._since)
            raise

    def _read_all(self, fired: dict[str, VersionKind | None], *, reread: bool, listing: bool) -> list[VersionEvent]:
        book, events = self._book, list[VersionEvent]()
        if reread:
            self._client.sync(self._path)
            book.lost_watches()
            fired = {**dict.fromkeys([self._path, *book.paths()]), **fired}
        root = self._path in fired
        if root:
            events += self._read(self._path, fired.pop(self._path))
        listing = self._with_children and (listing or root)
        if listing:
            for child in self._list():
                events += self._read(child, fired.pop(child, None))
        for path, first in fired.items():
            events += self._read(path, first)
        return [*events, *(book.settled(self._path) if listing else [])]

    def _read(self, path: str, first: VersionKind | None) -> list[VersionEvent]:
        """Read a znode and set its watch."""
        while True:
            try:
                data, stat = self._client.get(path, watch=self._data_event)
            except self._no_node:
                if path == self._path and self._client.exists(path, watch=self._data_event) is not None:
                    continue  # it was created in between
                return self._book.read(path, None, b"", self._client.last_zxid, first)
            return self._book.read(path, stat, data, self._client.last_zxid, first)

    def _list(self) -> list[str]:
        """List the children and set the watch. Return the new ones."""
        try:
            names, stat = self._client.get_children(self._path, watch=self._list_event, include_data=True)
        except self._no_node:
            return []  # its own watch has fired, or will
        return self._book.listed(self._path, stat, names)


def _is_connection_error(error: Exception) -> bool:
    from kazoo import exceptions
    from kazoo.handlers.threading import KazooTimeoutError

    lost = (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.OperationTimeoutError)
    closed = (exceptions.ConnectionClosedError, exceptions.ConnectionDropped, exceptions.CancelledError)
    return isinstance(error, (*lost, *closed, KazooTimeoutError))
