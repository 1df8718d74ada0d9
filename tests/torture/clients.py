"""Clients of a tortured ensemble: unmodified kazoo, each client in a thread. All answers are recorded.

A request that ended with its connection or its session may have been performed or not. Its result is `None`, and no
check may assume either.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from kazoo import exceptions as x
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback, KazooState

from coord.wire import records as r
from tests.support.rawclient import RawClient

#: Errors after which it is unknown whether the request was performed.
UNKNOWN: Final = (
    *(x.ConnectionLoss, x.SessionExpiredError, x.OperationTimeoutError, x.ConnectionClosedError),
    *(x.SessionMovedError, KazooTimeoutError),
)
FOLDERS: Final = ("/seq", "/pair", "/eph", "/watch")
REGISTER: Final = "/register"


def kazoo(hosts: list[str], timeout_s: float) -> KazooClient:
    """Return a client that retries forever; not started."""
    retry = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": 0.3}
    return KazooClient(",".join(hosts), timeout=timeout_s, connection_retry=retry)


@contextlib.contextmanager
def session(hosts: list[str], timeout_s: float, *, wait_s: float = 60.0) -> Iterator[KazooClient]:
    """Yield a session. Close it afterwards, if possible."""
    client = kazoo(hosts, timeout_s)
    try:
        client.start(wait_s)
        yield client
    finally:
        with contextlib.suppress(*UNKNOWN, x.KazooException):
            client.stop()
        with contextlib.suppress(Exception):
            client.close()


class Worker(threading.Thread):
    """Works until it is stopped. `violations` are lines of text."""

    def __init__(self, hosts: list[str], seed: int, timeout_s: float) -> None:
        super().__init__(name=f"{type(self).__name__}-{seed}", daemon=True)
        self.hosts = list(hosts)
        self.rng = random.Random(seed)
        self.rng.shuffle(self.hosts)
        self.seed = seed
        self.timeout_s = timeout_s
        self.violations: list[str] = []
        #: Number of answered requests, and of requests with an unknown result.
        self.done = 0
        self.unknown = 0
        #: (time of the request, time of the answer) of acknowledged writes.
        self.writes: list[tuple[float, float]] = []
        self._end = threading.Event()

    def run(self) -> None:
        """Run until stopped. Record any error that ends the worker early."""
        try:
            self.begin()
            while not self._end.is_set():
                try:
                    self.step()
                except UNKNOWN:
                    self.unknown += 1
                    time.sleep(0.02)
        except Exception as error:  # A worker that died would check nothing any more.
            self.violations.append(f"{self.name}: {error!r}")
        finally:
            with contextlib.suppress(Exception):
                self.finish()

    def begin(self) -> None:
        """Connect."""
        self.client = kazoo(self.hosts, self.timeout_s)
        self.client.start(60)

    def step(self) -> None:
        """Do one step."""
        raise NotImplementedError

    def finish(self) -> None:
        """Disconnect."""
        self.client.stop()
        self.client.close()

    def tell(self) -> None:
        """Make the worker stop after the present step."""
        self._end.set()

    def pause(self, most_s: float) -> None:
        """Wait for a while, or until the end."""
        self._end.wait(self.rng.random() * most_s)


class Register(Worker):
    """Reads, writes and compares-and-sets one znode; `history` is for `checks.linearizable`."""

    def begin(self) -> None:
        """See Worker."""
        super().begin()
        #: (asked, answered, version, value, wrote) in monotonic time of this machine.
        self.history: list[tuple[float, float, int, bytes, bool]] = []
        #: Values whose write has an unknown result, with the time of the request.
        self.maybe: dict[bytes, float] = {}
        #: Values whose write was rejected.
        self.refused: list[bytes] = []
        self._count = 0

    def step(self) -> None:
        """See Worker."""
        kind = self.rng.choice(["read", "write", "write", "cas"])
        began = time.monotonic()
        if kind == "read":
            self.client.sync(REGISTER)
            value, stat = self.client.get(REGISTER)
            self.history.append((began, time.monotonic(), stat.version, value, False))
        else:
            self._write(kind == "cas")
        self.done += 1
        self.pause(0.01)

    def _write(self, is_cas: bool) -> None:
        version = self.client.get(REGISTER)[1].version if is_cas else -1
        self._count += 1
        value = b"%d:%d" % (self.seed, self._count)
        began = time.monotonic()
        try:
            stat = self.client.set(REGISTER, value, version)
        except x.BadVersionError:
            self.refused.append(value)
            return
        except UNKNOWN:
            self.maybe[value] = began
            raise
        now = time.monotonic()
        self.history.append((began, now, stat.version, value, True))
        self.writes.append((began, now))
        if is_cas and stat.version != version + 1:
            self.violations.append(f"compare-and-set on version {version} gave version {stat.version}")


class Sequencer(Worker):
    """Creates many sequential znodes at a time over one session."""

    def begin(self) -> None:
        """See Worker."""
        super().begin()
        #: Requested creates: data -> name, None for an unknown result.
        self.asked: dict[bytes, str | None] = {}
        self._count = 0

    def step(self) -> None:
        """See Worker."""
        burst = []
        for _ in range(self.rng.choice([1, 1, 3, 20])):
            self._count += 1
            owner = self.client.client_id[0] if self.client.client_id else 0
            data = b"%d %d %d " % (self.seed, owner, self._count) + b"x" * self.rng.choice([0, 10, 2000])
            self.asked[data] = None
            burst.append((data, self.client.create_async("/seq/n-", data, sequence=True)))
        began = time.monotonic()
        for data, waiting in burst:
            try:
                self.asked[data] = waiting.get(60)
                self.done += 1
            except UNKNOWN:
                self.unknown += 1
        if all(waiting.successful() for _, waiting in burst):
            self.writes.append((began, time.monotonic()))
        self.pause(0.05)


class Pairs(Worker):
    """Transactions that create two znodes or none, with their results."""

    def begin(self) -> None:
        """See Worker."""
        super().begin()
        #: Number -> whether the transaction was performed, None for an unknown result.
        self.asked: dict[str, bool | None] = {}

    def step(self) -> None:
        """See Worker."""
        name = f"{self.seed}-{len(self.asked)}"
        is_refused = self.rng.random() < 0.2
        self.asked[name] = None
        transaction = self.client.transaction()
        transaction.create(f"/pair/a-{name}", b"x" * self.rng.choice([1, 500]))
        transaction.create(f"/pair/b-{name}", b"")
        if is_refused:
            transaction.check("/pair", 10**6)
        results = transaction.commit()
        is_done = not any(isinstance(result, Exception) for result in results)
        if is_done == is_refused:
            self.violations.append(f"transaction {name}: {results}")
        self.asked[name] = is_done
        self.done += 1
        self.pause(0.03)


class Owner(Worker):
    """Sessions with ephemerals that are closed cleanly. The owner checks that the ephemerals exist."""

    def begin(self) -> None:
        """See Worker."""
        #: Paths whose session was closed, with an acknowledged close.
        self.closed: list[str] = []
        self._count = 0

    def step(self) -> None:
        """See Worker."""
        with session(self.hosts, self.timeout_s, wait_s=60) as client:
            owner = client.client_id
            paths = []
            for _ in range(self.rng.randint(1, 3)):
                self._count += 1
                path = f"/eph/{self.seed}-{self._count}"
                client.create(path, b"", ephemeral=True)
                paths.append(path)
            for _ in range(self.rng.randint(0, 20)):
                path = self.rng.choice(paths)
                found = client.exists(path)
                self.done += 1
                if found is None:
                    # Either the session is over, or the ephemeral is gone too early.
                    client.exists("/eph")
                    if client.client_id == owner and client.state == KazooState.CONNECTED:
                        self.violations.append(f"ephemeral {path} of the living session {owner[0]:#x} is gone")
                    return
                self.pause(0.1)
            client.stop()
        self.closed += paths

    def finish(self) -> None:
        """Check that no ephemeral is left."""


class Deserter(Worker):
    """Sessions that are abandoned without a close. A second client sees when their ephemerals disappear."""

    def begin(self) -> None:
        """See Worker."""
        super().begin()
        self.left: list[str] = []
        self._count = 0

    def step(self) -> None:
        """See Worker."""
        self._count += 1
        path = f"/eph/left-{self.seed}-{self._count}"
        try:
            raw = RawClient(self.rng.choice(self.hosts), timeout_s=5)
        except OSError:
            self.pause(0.2)
            return
        try:
            hello = raw.hello(r.ConnectRequest(timeout_ms=int(self.timeout_s * 1000)))
            if hello is None or hello.session_id == 0:
                return
            timeout_s = hello.timeout_ms / 1000
            began = time.monotonic()
            create = r.CreateRequest(r.OP_CREATE, path.encode(), b"", r.OPEN_ACL, r.CREATE_EPHEMERAL)
            answer = raw.ask(r.OP_CREATE, r.encode_create(create))
        except (OSError, struct.error):
            return
        finally:
            raw.close()
        if answer is None or answer[0]:
            return
        self.left.append(path)
        self.done += 1
        self.pause(timeout_s)
        self.client.sync(path)
        found = self.client.exists(path)
        # The server received the last message of the session after `began`.
        if found is None and time.monotonic() - began < timeout_s:
            self.violations.append(f"ephemeral {path} is gone {time.monotonic() - began:.2f} s into {timeout_s} s")


class Watcher(Worker):
    """Sets watches and continues to read: newer data must come after the event."""

    def begin(self) -> None:
        """See Worker."""
        super().begin()
        self.fired = 0
        self._lost = 0
        self.client.add_listener(self._note)

    def _note(self, state: Any) -> None:
        self._lost += state != KazooState.CONNECTED

    def step(self) -> None:
        """See Worker."""
        lost = self._lost
        path = f"/watch/{self.rng.randrange(3)}"
        events: list[Any] = []
        _, stat = self.client.get(path, events.append)
        for _ in range(self.rng.randint(1, 10)):
            if self.rng.random() < 0.3:
                self.client.set(path, b"%d" % self.rng.randrange(1000))
            newer = self.client.get(path)[1]
            self.done += 1
            if newer.version < stat.version and lost == self._lost:
                self.violations.append(f"{path} went from version {stat.version} to {newer.version} in one session")
            if newer.version > stat.version:
                self._flush()
                if not events and lost == self._lost:
                    self.violations.append(f"{path} at version {newer.version} was read before the event of its watch")
                self.fired += bool(events)
                return
            self.pause(0.03)

    def _flush(self) -> None:
        """Let kazoo run the callbacks of everything that it has received."""
        ran = threading.Event()
        self.client.handler.dispatch_callback(Callback("watch", ran.set, ()))
        if not ran.wait(30):
            self.violations.append("kazoo runs no callbacks")
