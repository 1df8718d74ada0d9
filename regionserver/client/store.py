"""Reads from the store with deadlines, through a kazoo session that changes to another node when its node is silent.

kazoo waits for a reply as long as the connection exists, and a frozen node (a paused virtual machine, a stopped
process)
keeps its connections. A reader gives every read a deadline and measures how long the node has not replied at all. After
`SILENCE_S` the reader drops the connection; kazoo then connects to the next node with the same session. While no node
replies, each next node gets twice as long, because a busy store may be slow as a whole.
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

from coord.client.access import StoreAccess
from coord.security import process

_log: Final = logging.getLogger(__name__)

#: A node that has not replied for this long is left; later nodes get up to the second value.
SILENCE_S: Final = 1.0
SILENCE_MAX_S: Final = 8.0
#: Default time limit of a read.
READ_TIMEOUT_S: Final = 10.0
#: Pause before a read is repeated after a lost connection. Meanwhile kazoo looks for another node.
PAUSE_S: Final = 0.02
#: Time limit for closing a session; the store expires what remains.
CLOSE_S: Final = 1.0
SESSION_TIMEOUT_S: Final = 10.0
#: Time without a session after which this is logged.
FIRST_WORD_S: Final = 1.0
#: kazoo's reconnection to a store that was down; by default its pauses double up to a minute.
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5, "max_jitter": 0.1}

_PASSING: Final = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)


def _proof(auth: str) -> dict[str, Any]:
    """Return the arguments by which a client proves the digest credential `auth`, and this process's identity."""
    access = StoreAccess(auth=auth)
    return {**access.kazoo_tls(), "auth_data": [("digest", credential) for credential in access.digests()]}


def _renew(client: KazooClient, auth: str) -> None:
    """Let the next connection prove the present token: the one of the last connection may have been rotated away."""
    client.auth_data = set(_proof(auth)["auth_data"])


def _advice() -> str:
    """Return advice for a store that serves only TLS if this process has no certificate, "" if it has one."""
    if process.tls_files() is not None:
        return ""
    return "; does it serve TLS alone? RK_CERTS_DIR names the directory with your certificate"


class StoreSilentError(Exception):
    """Raised if the store did not reply in time; the message is one line for the user."""


class StoreReader:
    """Reads through one kazoo client, for any thread. Methods raise StoreSilentError, NoNodeError, KazooException.

    `until_s` is a deadline by `time.monotonic`.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        #: Time of the first request without a reply; None: the store has replied, or nothing was requested.
        self._silent_since_s: float | None = None
        self._silence_limit_s = SILENCE_S
        _fix_order(client)

    @classmethod
    def open(cls, hosts: str, timeout_s: float, auth: str = "") -> StoreReader:
        """Open a session of the reader's own, with the digest credential `auth`, USER:PASSWORD.

        Raise StoreSilentError if no node opens one within `timeout_s`.
        """
        # kazoo logs each retry; this class raises the errors that matter.
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        began_s = time.monotonic()
        until_s, is_said = began_s + timeout_s, False
        client = KazooClient(hosts, timeout=SESSION_TIMEOUT_S, connection_retry=RECONNECT, **_proof(auth))
        client.add_listener(lambda _: _renew(client, auth))
        reader = cls(client)
        is_connected = client.start_async()
        while not is_connected.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                reader.close()
                raise StoreSilentError(f"the store at {hosts} opened no session within {timeout_s:g} s{_advice()}")
            if not is_connected.wait(min(left_s, reader._silence_left_s(), FIRST_WORD_S)):
                reader._unanswered()
            if not is_said and time.monotonic() >= began_s + FIRST_WORD_S and not is_connected.is_set():
                _log.warning("the store at %s has opened no session yet; trying for %.3g s", hosts, timeout_s)
                is_said = True
        reader._answered()
        return reader

    def get(self, path: str, until_s: float) -> bytes:
        """Return a znode's data."""
        data: bytes = self._ask(lambda: self._client.get_async(path), until_s)[0]
        return data

    def children(self, path: str, until_s: float) -> list[str]:
        """Return the names of a znode's children."""
        names: list[str] = self._ask(lambda: self._client.get_children_async(path), until_s)
        return names

    def get_many(self, paths: Iterable[str], until_s: float) -> dict[str, bytes]:
        """Return the data of the existing znodes among `paths`, by path. The first attempts are pipelined."""
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
        """Close the session; return within about twice CLOSE_S even if the node does not reply."""
        ending = threading.Thread(target=self._end, name="end of a store session", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            self._drop_connection()
            ending.join(CLOSE_S)

    # --- inside ---

    def _ask(self, send: Callable[[], Any], until_s: float) -> Any:
        """Return the reply to `send()`. Send again while the connection is lost, until `until_s`."""
        problem = "no reply"
        while (left_s := until_s - time.monotonic()) > 0:
            silence_left_s = self._silence_left_s()
            if not self._client.connected:
                # kazoo would queue the request, and every repetition, until a node is reachable.
                problem = "no connection"
                self._unanswered()
                time.sleep(min(PAUSE_S, left_s))
                continue
            try:
                answer = send().get(timeout=min(left_s, silence_left_s))
            except KazooTimeoutError:
                problem = "no reply"
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

    def _silence_left_s(self) -> float:
        """Return how long the node may stay silent. Start the measurement at the first request."""
        with self._lock:
            now_s = time.monotonic()
            if self._silent_since_s is None:
                self._silent_since_s = now_s
            return max(0.001, self._silent_since_s + self._silence_limit_s - now_s)

    def _answered(self) -> None:
        with self._lock:
            self._silent_since_s = None
            self._silence_limit_s = SILENCE_S

    def _unanswered(self) -> None:
        """Change to the next node if this node has been silent for too long."""
        with self._lock:
            since_s = self._silent_since_s
            if since_s is None or time.monotonic() < since_s + self._silence_limit_s:
                return
            self._silent_since_s = None
            self._silence_limit_s = min(2 * self._silence_limit_s, SILENCE_MAX_S)
        if len(self._client.hosts) > 1:
            self._drop_connection()

    def _drop_connection(self) -> None:
        """Break the connection, or the attempt at one. kazoo has no call for this; it continues with its next host."""
        with contextlib.suppress(OSError, AttributeError):
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        with contextlib.suppress(Exception):  # whatever kazoo raises, the session ends
            self._client.stop()
            self._client.close()


def _fix_order(client: KazooClient) -> None:
    """Make kazoo use its hosts in a fixed circular order, so that the next host is always another one."""
    hosts = [f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}" for host, port in client.hosts]
    random.shuffle(hosts)
    if hosts:
        client.set_hosts(",".join(hosts) + client.chroot, randomize_hosts=False)


__all__ = ["READ_TIMEOUT_S", "KazooException", "NoNodeError", "StoreReader", "StoreSilentError"]
