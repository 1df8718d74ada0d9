"""One random run of operations on ZooKeeper and on our store side by side: every answer and every event must agree.

Two kazoo sessions per store, one with a digest identity; the same operation goes to both stores. Then all sessions are
brought up to date and their events are compared. Times and the values of zxids are not compared, but the order of the
zxids in a Stat is.

RK_SEED and RK_STEPS choose another run; a failure names its seed, the step and the steps before it.

A machine that is too busy for seconds interrupts a run: after 2 s without a leader a node closes its client
connections, which is correct. The pending requests have no comparable answers, so the run starts again, with new
stores. A connection that is lost without such a pause is a failure.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback, EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, make_digest_acl

from tests.support.stores import STORE, ZOOKEEPER, Store, open_store, store_is_built

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not store_is_built(), reason="this tree has no store service yet"),
]

SEED = int(os.environ.get("RK_SEED", "20240607"))
STEPS = int(os.environ.get("RK_STEPS", "2500"))
ROOT = "/diff"
#: Number of interrupted runs in a row before the test fails.
RUNS = 3
#: A working store keeps its connections for longer than this: ours for 2 s, kazoo for 3.3 s.
STANDSTILL_S = 1.8

ACLS: dict[str, list[ACL]] = {
    "open": OPEN_ACL_UNSAFE,
    "read": [ACL(1, Id("world", "anyone"))],
    "no-delete": [ACL(1 | 2 | 4 | 16, Id("world", "anyone"))],
    "bob": [make_digest_acl("bob", "pw", all=True)],
    "bob+read": [make_digest_acl("bob", "pw", all=True), ACL(1, Id("world", "anyone"))],
    "creator": [ACL(31, Id("auth", ""))],
    "empty": [],
    "bad": [ACL(31, Id("nonsense", "x"))],
    "ip": [ACL(31, Id("ip", "127.0.0.1"))],
}
Step = tuple[Any, ...]


class Interrupted(Exception):  # noqa: N818 - it is not an error of the stores
    """The machine paused for so long that a session lost its connection."""


class Side:
    """One store with two kazoo sessions; the second may be on another server of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: list[KazooClient] = []
        self.events: list[list[tuple[str, str]]] = [[], []]
        #: States of sessions that were lost without being closed.
        self.lost: list[str] = []
        self._is_closing = False
        for which in range(2):
            self.sessions.append(self._session(which))

    def _session(self, which: int) -> KazooClient:
        """Return a connected session."""
        client = KazooClient(self.store.addresses[which % len(self.store.addresses)], timeout=10, randomize_hosts=False)
        client.start(60)
        client.add_listener(self._note_state)
        if which == 0:
            client.add_auth("digest", "bob:pw")
        return client

    def _note_state(self, state: KazooState) -> None:
        """Note a state. Called on kazoo's thread."""
        if state != KazooState.CONNECTED and not self._is_closing:
            self.lost.append(str(state))

    def renew(self, which: int) -> None:
        """Close a session, with its ephemerals and watches, and begin another one."""
        self._is_closing = True
        self.sessions[which].stop()
        self.sessions[which].close()
        self._is_closing = False
        self.sessions[which] = self._session(which)

    def close(self) -> None:
        """Close both sessions."""
        self._is_closing = True
        for client in self.sessions:
            client.stop()
            client.close()

    def settle(self) -> None:
        """Wait until both sessions have received everything and kazoo has run every callback."""
        for client in self.sessions:
            client.sync(ROOT)
        for client in self.sessions:
            ran = threading.Event()
            client.handler.dispatch_callback(Callback("watch", ran.set, ()))
            assert ran.wait(60), "kazoo runs no callbacks"

    def take_events(self) -> list[list[tuple[str, str]]]:
        """Return the events of each session since the last call, in order."""
        taken, self.events = self.events, [[], []]
        return taken

    def watcher(self, which: int) -> Callable[[WatchedEvent], None]:
        """Return a new callback: kazoo would call a repeated callback only once.

        Events without a type are left out. No store sends them: kazoo makes one for each watch of a session that ends,
        and loses those that its threads have not delivered when they stop.
        """

        def note(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:
                self.events[which].append((event.type, event.path))

        return note

    def owner(self, session_id: int) -> str:
        """Return an ephemeral's owner as a letter."""
        for letter, client in zip("AB", self.sessions, strict=True):
            if client.client_id[0] == session_id:
                return letter
        return "none" if session_id == 0 else "gone"

    def plain(self, value: Any) -> Any:
        """Return an answer without the parts that may differ."""
        if isinstance(value, ZnodeStat):
            zxids = (value.czxid, value.mzxid, value.pzxid)
            order = tuple((a > b) - (a < b) for a in zxids for b in zxids)
            counted = (value.version, value.cversion, value.aversion, value.dataLength, value.numChildren)
            # ZooKeeper's times follow the machine's clock, which may be set back; ours never go back.
            assert self.store.kind == ZOOKEEPER or value.ctime <= value.mtime, value
            return ("stat", order, counted, self.owner(value.ephemeralOwner))
        if isinstance(value, Exception):
            return type(value).__name__
        if isinstance(value, list) and value and isinstance(value[0], ACL):
            return sorted(map(str, value))
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return sorted(value)
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value

    def run(self, step: Step) -> Any:
        """Do one step. An exception of kazoo is its answer."""
        which, name, *arguments = step
        try:
            return self.plain(getattr(self, f"_{name}")(which, *arguments))
        except KazooException as error:
            return type(error).__name__

    def _create(self, which: int, path: str, data: bytes, acl: str, flags: tuple[bool, bool], stat: bool) -> Any:
        ephemeral, sequence = flags
        client = self.sessions[which]
        return client.create(path, data, ACLS[acl], ephemeral=ephemeral, sequence=sequence, include_data=stat)

    def _delete(self, which: int, path: str, version: int) -> Any:
        return self.sessions[which].delete(path, version)

    def _set(self, which: int, path: str, data: bytes, version: int) -> Any:
        return self.sessions[which].set(path, data, version)

    def _get(self, which: int, path: str, watch: bool) -> Any:
        return self.sessions[which].get(path, self.watcher(which) if watch else None)

    def _exists(self, which: int, path: str, watch: bool) -> Any:
        return self.sessions[which].exists(path, self.watcher(which) if watch else None)

    def _children(self, which: int, path: str, watch: bool, stat: bool) -> Any:
        return self.sessions[which].get_children(path, self.watcher(which) if watch else None, include_data=stat)

    def _get_acls(self, which: int, path: str) -> Any:
        acls, stat = self.sessions[which].get_acls(path)
        return [self.plain(acls), self.plain(stat)]

    def _set_acls(self, which: int, path: str, acl: str, version: int) -> Any:
        return self.sessions[which].set_acls(path, ACLS[acl], version)

    def _multi(self, which: int, parts: list[Step]) -> Any:
        transaction: TransactionRequest = self.sessions[which].transaction()
        for kind, path, *rest in parts:
            if kind == "create":
                data, acl, (ephemeral, sequence) = rest
                transaction.create(path, data, ACLS[acl], ephemeral, sequence)
            elif kind == "delete":
                transaction.delete(path, rest[0])
            elif kind == "set":
                transaction.set_data(path, *rest)
            else:
                transaction.check(path, rest[0])
        return transaction.commit()

    def _renew(self, which: int) -> Any:
        return self.renew(which)


class Steps:
    """Makes the steps of a run. Names are few, so that operations meet; versions are near the present ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def path(self) -> str:
        """Return a znode up to three levels below the root; sometimes the root or a znode of ZooKeeper itself."""
        if self.rng.random() < 0.03:
            return self.rng.choice([ROOT, "/", "/zookeeper", "/zookeeper/quota", "/nothing"])
        return ROOT + "".join("/" + self.rng.choice("abc") for _ in range(self.rng.choice([1, 1, 2, 2, 3])))

    def version(self) -> int:
        """Return a version, mostly -1 (any)."""
        return self.rng.choice([-1, -1, -1, -1, 0, 1, 2])

    def data(self) -> bytes:
        """Return short data, sometimes empty."""
        return b"x" * self.rng.choice([0, 1, 5, 100])

    def create(self) -> Step:
        """Return the arguments of a create after the path."""
        flags = (self.rng.random() < 0.25, self.rng.random() < 0.2)
        acl = self.rng.choice(sorted(ACLS)) if self.rng.random() < 0.12 else "open"
        return (self.data(), acl, flags)

    def part(self) -> Step:
        """Return a part of a transaction."""
        kind = self.rng.choice(["create", "create", "delete", "set", "check"])
        path = self.path()
        if kind == "create":
            return (kind, path, *self.create())
        if kind == "set":
            return (kind, path, self.data(), self.version())
        return (kind, path, max(self.version(), 0) if kind == "check" else self.version())

    def step(self) -> Step:
        """Return (session, operation, arguments...)."""
        which = self.rng.randrange(2)
        watch = self.rng.random() < 0.8
        kind = self.rng.choices(
            ["create", "delete", "set", "get", "exists", "children", "get_acls", "set_acls", "multi", "renew"],
            [26, 16, 12, 12, 12, 12, 3, 2, 8, 0.6],
        )[0]
        path = self.path()
        if kind == "create":
            return (which, kind, path, *self.create(), self.rng.random() < 0.3)
        if kind in ("get", "exists"):
            return (which, kind, path, watch)
        if kind == "children":
            return (which, kind, path, watch, self.rng.random() < 0.5)
        if kind == "delete":
            return (which, kind, path, self.version())
        if kind == "set":
            return (which, kind, path, self.data(), self.version())
        if kind == "get_acls":
            return (which, kind, path)
        if kind == "set_acls":
            acl = "open" if self.rng.random() < 0.6 else self.rng.choice(sorted(ACLS))
            return (which, kind, path, acl, self.version())
        if kind == "multi":
            return (which, kind, [self.part() for _ in range(self.rng.randint(1, 5))])
        return (which, kind)


@contextlib.contextmanager
def two_sides(folder: Path) -> Iterator[list[Side]]:
    """Yield ZooKeeper and our store, both empty except ROOT."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        both = []
        for kind in (ZOOKEEPER, STORE):
            store = stack.enter_context(open_store(kind, folder / kind))
            side = Side(store)
            stack.callback(side.close)
            side.sessions[0].create(ROOT)
            both.append(side)
        yield both


@contextlib.contextmanager
def interruptible(sides: list[Side], step: str) -> Iterator[None]:
    """Raise Interrupted if the block lost a connection and took long enough to explain the loss."""
    began = time.monotonic()
    failure: Exception | None = None
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        failure = error
    took_s = time.monotonic() - began
    lost = {side.store.kind: side.lost for side in sides if side.lost}
    if not lost and failure is None:
        return
    story = f"{step} took {took_s:.1f} s; connections: {lost}; {failure!r}"
    assert took_s > STANDSTILL_S, f"a connection was lost for no reason: {story}"
    raise Interrupted(story) from failure


def test_random_run_gives_the_same_answers_and_events(tmp_path: Path) -> None:
    """See the module docstring."""
    interruptions: list[str] = []
    for number in range(RUNS):
        try:
            with two_sides(tmp_path / str(number)) as sides:
                compare(sides)
            break
        except Interrupted as interruption:
            interruptions.append(str(interruption))
            warnings.warn(f"run {number} was interrupted: {interruption}", stacklevel=1)
    assert len(interruptions) < RUNS, "\n".join(interruptions)


def compare(sides: list[Side]) -> None:
    """Compare one run. Raise Interrupted."""
    steps = Steps(SEED)
    done: list[str] = []
    answered = 0
    seen_events = 0
    for number in range(STEPS):
        step = steps.step()
        with interruptible(sides, f"step {number}: {step}"):
            theirs, ours = (side.run(step) for side in sides)
            for side in sides:
                side.settle()
        their_events, our_events = (side.take_events() for side in sides)
        if step[1] == "renew":
            # ZooKeeper deletes the ephemerals of a session in the order of a hash set.
            their_events, our_events = (list(map(sorted, events)) for events in (their_events, our_events))
        done.append(f"{number}: {step} -> {theirs}")
        story = f"RK_SEED={SEED}, step {number}; the steps before:\n" + "\n".join(done[-12:])
        assert ours == theirs, f"answer differs: {story}"
        assert our_events == their_events, f"events differ: {story}"
        answered += not isinstance(theirs, str) or theirs.startswith("/")
        seen_events += sum(map(len, their_events))
    # The run would prove little if nearly all requests were rejected or there were no watches.
    assert answered > STEPS // 4
    assert seen_events > STEPS // 20
    with interruptible(sides, "the end"):
        final = [sorted(_tree(side.sessions[0], ROOT)) for side in sides]
    assert final[0] == final[1]


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    """Yield every path below `path` that the session may read."""
    yield path
    with contextlib.suppress(KazooException):
        for name in client.get_children(path):
            yield from _tree(client, f"{path}/{name}")
