"""Follows the value of one znode: reads the znode when it changes, and at least every `every_s`.

A watch alone does not bound the age of the value: its event may be lost with a connection, or the store node may lag.
So the znode is also read at intervals. A sync before each read makes the session's node catch up with its leader. The
owner gets the time at which each read began, and so knows how old the value can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import SessionState, ZkClient
from coord.errors import CoordError, NoAuth, NoNode

log = Logger()

#: Takes the value (b"" for a missing znode), its version (-1 if it is missing), and when the read began.
Seen = Callable[[bytes, int, float], object]


class FollowedZnode:
    """Follows one znode by one session at a time. `read` may be called at any time."""

    def __init__(self, reactor: Any, path: str, seen: Seen, now_s: Callable[[], float], every_s: float) -> None:
        """`seen` must not raise for a damaged value."""
        self._path = path
        self._seen = seen
        self._now_s = now_s
        self._every_s = every_s
        self._client: ZkClient | None = None
        self._reading: Deferred[None] | None = None
        #: The znode has changed since the read in progress began.
        self._is_behind = False
        #: The last read was denied.
        self._is_denied = False
        self._timer = LoopingCall(self.read)
        self._timer.clock = reactor

    def follow(self, client: ZkClient) -> None:
        """Read by this session from now on."""
        self._client = client
        if not self._timer.running:
            self._timer.start(self._every_s, now=False)
        self.read()

    def stop(self) -> None:
        """Read no more."""
        self._client = None
        if self._timer.running:
            self._timer.stop()

    def read(self) -> None:
        """Read now; once more afterwards if a read is in progress."""
        if self._reading is not None:
            self._is_behind = True
            return
        client = self._client
        if client is None or client.state is not SessionState.CONNECTED:
            return
        self._is_behind = False
        self._reading = ensureDeferred(self._read(client))
        self._reading.addErrback(self._failed)
        self._reading.addBoth(self._done)

    async def _read(self, client: ZkClient) -> None:
        began_s = self._now_s()
        await client.sync(self._path)
        try:
            data, stat = await client.get(self._path, self._changed)
            version = stat.version
        except NoNode:
            data, version = b"", -1
        self._is_denied = False
        if client is self._client:
            self._seen(data, version, began_s)

    def _changed(self, _event: int, _path: str, _zxid: int) -> None:
        self.read()

    def _done(self, _: object) -> None:
        self._reading = None
        if self._is_behind:
            self.read()

    def _failed(self, failure: Failure) -> None:
        if failure.check(NoAuth) is not None:  # type: ignore[no-untyped-call]
            if not self._is_denied:
                log.error(
                    "this process may not read {path} and does not follow its changes: `rk fsck` compares the access"
                    " list, `rk secure` repairs it",
                    path=self._path,
                )
            self._is_denied = True
        elif failure.check(CoordError) is None:  # type: ignore[no-untyped-call]
            log.failure("internal error while reading {path}", failure=failure, path=self._path)
