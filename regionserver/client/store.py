"""Reads from the store that end in time: a kazoo session that turns to another node when its node falls silent.

kazoo waits for an answer for as long as the connection stands, and a frozen node (a paused virtual machine, a stopped
process) keeps connections for ever. A reader gives every read a time by which it ends, and measures how long the node
has not answered at all. After `SILENCE_S` the reader drops the connection, so that kazoo goes on to the next node
with the same session; each time nobody has answered in between, the next node gets twice as long, for a busy store may
be slow altogether.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

#: A node that has not answered for so long is left; the second and later ones get up to the second figure.
SILENCE_S: Final = 1.0
SILENCE_MAX_S: Final = 8.0
#: How long a read may take of which nobody said how long.
READ_TIMEOUT_S: Final = 10.0
#: Pause before a read that failed with its connection is asked again: kazoo is looking for another node.
PAUSE_S: Final = 0.02
#: How long the end of a session may keep its owner waiting; the store ends what is left by itself.
CLOSE_S: Final = 1.0
SESSION_TIMEOUT_S: Final = 10.0
#: How kazoo comes back to a store that was away: its own pauses double up to a minute.
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5, "max_jitter": 0.1}

_PASSING: Final = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)


class StoreSilentError(Exception):
    """The store did not answer in time; the message is one line for people."""


class StoreReader:
    """Reads through one kazoo client. Any thread. Methods raise StoreSilentError, NoNodeError and other KazooException.

    `until_s` is a time of `time.monotonic`.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        #: Since when the store has been asked and has not answered anything; None: it has answered, or was not asked.
        self._silent_since_s: float | None = None
        self._patience_s = SILENCE_S
        _fix_order(client)

    @classmethod
    def open(cls, hosts: str, timeout_s: float) -> StoreReader:
        """Begin a session of the reader's own. Raises StoreSilentError when no node gives one within `timeout_s`."""
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # its retries are not news; what matters is raised
        until_s = time.monotonic() + timeout_s
        client = KazooClient(hosts, timeout=SESSION_TIMEOUT_S, connection_retry=RECONNECT)
        reader = cls(client)
        is_connected = client.start_async()
        while not is_connected.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                reader.close()
                raise StoreSilentError(f"the store at {hosts} gives no session within {timeout_s:g} s")
            if not is_connected.wait(min(left_s, reader._left_of_patience_s())):
                reader._unanswered()
        reader._answered()
        return reader

    def get(self, path: str, until_s: float) -> bytes:
        """Return a znode's value."""
        data: bytes = self._ask(lambda: self._client.get_async(path), until_s)[0]
        return data

    def children(self, path: str, until_s: float) -> list[str]:
        """Return the names below a znode."""
        names: list[str] = self._ask(lambda: self._client.get_children_async(path), until_s)
        return names

    def get_many(self, paths: Iterable[str], until_s: float) -> dict[str, bytes]:
        """Return the values of those of `paths` that exist, by path. The first attempts are pipelined."""
        waiting = [(path, self._client.get_async(path)) for path in paths]
        found: dict[str, bytes] = {}
        for path, sent in waiting:
            first = [sent]

            def ask(path: str = path, first: list[Any] = first) -> Any:
                return first.pop() if first else self._client.get_async(path)

            with contextlib.suppress(NoNodeError):
                found[path] = self._ask(ask, until_s)[0]
        return found

    def close(self) -> None:
        """End the session; return within about twice CLOSE_S even if the node does not answer."""
        ending = threading.Thread(target=self._end, name="end of a store session", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            self._drop_connection()
            ending.join(CLOSE_S)

    # --- inside ---

    def _ask(self, send: Callable[[], Any], until_s: float) -> Any:
        """Return the answer to what `send` sends, sending it again while the connection is lost, until `until_s`."""
        problem = "it is silent"
        while (left_s := until_s - time.monotonic()) > 0:
            patience_s = self._left_of_patience_s()
            if not self._client.connected:
                # kazoo would keep the request, and every repetition of it, until a node is back.
                problem = "no connection"
                self._unanswered()
                time.sleep(min(PAUSE_S, left_s))
                continue
            try:
                answer = send().get(timeout=min(left_s, patience_s))
            except KazooTimeoutError:
                problem = "it is silent"
                self._unanswered()
            except _PASSING as error:
                problem = type(error).__name__
                self._unanswered()
                time.sleep(min(PAUSE_S, max(0.0, until_s - time.monotonic())))
            except NoNodeError:
                self._answered()
                raise
            else:
                self._answered()
                return answer
        raise StoreSilentError(f"the store does not answer ({problem})")

    def _left_of_patience_s(self) -> float:
        """Return for how long the node may go on being silent. Begin to count if this is the first question."""
        with self._lock:
            now_s = time.monotonic()
            if self._silent_since_s is None:
                self._silent_since_s = now_s
            return max(0.001, self._silent_since_s + self._patience_s - now_s)

    def _answered(self) -> None:
        with self._lock:
            self._silent_since_s = None
            self._patience_s = SILENCE_S

    def _unanswered(self) -> None:
        """Turn to the next node if this one has been silent for too long."""
        with self._lock:
            since_s = self._silent_since_s
            if since_s is None or time.monotonic() < since_s + self._patience_s:
                return
            self._silent_since_s = None
            self._patience_s = min(2 * self._patience_s, SILENCE_MAX_S)
        if len(self._client.hosts) > 1:
            self._drop_connection()

    def _drop_connection(self) -> None:
        """Break the connection, or the attempt at one: kazoo has no call for that, and goes on to its next host."""
        with contextlib.suppress(OSError, AttributeError):
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        with contextlib.suppress(Exception):  # whatever kazoo says about the end of a session, the session ends
            self._client.stop()
            self._client.close()


def _fix_order(client: KazooClient) -> None:
    """Have kazoo go round its hosts in one order, so that the next one is always another one."""
    hosts = [f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}" for host, port in client.hosts]
    random.shuffle(hosts)
    if hosts:
        client.set_hosts(",".join(hosts) + client.chroot, randomize_hosts=False)


__all__ = ["READ_TIMEOUT_S", "KazooException", "NoNodeError", "StoreReader", "StoreSilentError"]
