"""As test_differential.py, with our own client: operations that kazoo does not have.

Persistent and recursive watches, their removal and their return after a cut connection, containers and ttl znodes,
multi-reads, lists of ephemerals, counts of descendants, identities. Two sessions per store; the second store's sessions
are on different nodes. RK_SEED and RK_STEPS choose another run.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import gatherResults

from coord.client import EVENT_GAP, Check, Create, Delete, GetChildren, GetData, SetData, ZkClient
from coord.errors import CoordError, MultiFailed
from coord.wire import records as r
from tests.support.reactors import in_reactor, until
from tests.support.stores import STORE, ZOOKEEPER, Store, open_store, store_is_built

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not store_is_built(), reason="this tree has no store service yet"),
]

SEED = int(os.environ.get("RK_SEED", "7"))
STEPS = int(os.environ.get("RK_STEPS", "1500"))
ROOT = "/diff"
Step = tuple[Any, ...]


class Side:
    """One store, two sessions of our client, and the events of their callbacks."""

    def __init__(self, reactor: Any, store: Store) -> None:
        self.reactor = reactor
        self.store = store
        self.sessions: list[ZkClient] = []
        self.events: list[list[tuple[str, int, str]]] = [[], []]
        self._callbacks: dict[tuple[int, str], Any] = {}

    async def begin(self) -> None:
        """Connect both sessions."""
        for which in range(2):
            address = self.store.addresses[which % len(self.store.addresses)]
            client = ZkClient(self.reactor, address + ROOT, 10_000, name=f"{self.store.kind}-{which}")
            await client.connect()
            if which == 0:
                await client.add_auth("digest", b"bob:pw")
                root = ZkClient(self.reactor, address, 10_000, name="root")
                await root.connect()
                await root.create(ROOT)
                await root.close()
            self.sessions.append(client)

    async def settle(self) -> None:
        """Bring both sessions up to date; their events come before the answers to these reads."""
        await gatherResults([client.sync() for client in self.sessions])

    def take_events(self) -> list[list[tuple[str, int, str]]]:
        """Return the events of each session since the last call, in order."""
        taken, self.events = self.events, [[], []]
        return taken

    def callback(self, which: int, label: str) -> Any:
        """Return the callback of that name; always the same object, so that it can be removed."""

        def note(event_type: int, path: str, zxid: int) -> None:
            self.events[which].append((label, event_type, path))

        return self._callbacks.setdefault((which, label), note)

    async def cut(self, which: int) -> None:
        """Lose the connection and reconnect. Wait until the watches are in force again."""
        client = self.sessions[which]
        assert client._connection is not None
        gaps = len(client._watches.persistent())
        client._connection.drop("cut by the test")
        await client.when_connected()
        if gaps:
            heard = self.events[which]
            await until(self.reactor, lambda: any(event[1] == EVENT_GAP for event in heard), "gap told")

    def plain(self, value: Any) -> Any:
        """Return an answer without the parts that may differ."""
        if isinstance(value, r.Stat):
            zxids = (value.czxid, value.mzxid, value.pzxid)
            order = tuple((a > b) - (a < b) for a in zxids for b in zxids)
            owners = {client.session_id: letter for letter, client in zip("AB", self.sessions, strict=True)}
            counted = (value.version, value.cversion, value.aversion, value.data_length, value.num_children)
            return ("stat", order, counted, owners.get(value.ephemeral_owner, value.ephemeral_owner != 0))
        if isinstance(value, MultiFailed):
            return ("failed", value.index, [type(error).__name__ for error in value.errors])
        if isinstance(value, Exception):
            return type(value).__name__
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return sorted(value)
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value

    async def run(self, step: Step) -> Any:
        """Do one step. A rejection is its answer."""
        which, name, *arguments = step
        client = self.sessions[which]
        try:
            if name == "cut":
                return await self.cut(which)
            if name == "who_am_i":
                return sorted(scheme for scheme, _ in await client.who_am_i())
            if name in ("get", "exists", "children2"):
                path, label = arguments
                return self.plain(await getattr(client, name)(path, label and self.callback(which, label)))
            if name in ("add_watch", "remove_watch"):
                path, label, recursive = arguments
                return await getattr(client, name)(path, label and self.callback(which, label), recursive)
            if name in ("create", "create2"):
                path, kinds = arguments
                return self.plain(await getattr(client, name)(path, b"x", **kinds))
            return self.plain(await getattr(client, name)(*arguments))
        except CoordError as error:
            return self.plain(error)


class Steps:
    """Makes the steps of a run."""

    KINDS: tuple[dict[str, Any], ...] = (
        {},
        {},
        {},
        {"ephemeral": True},
        {"sequence": True},
        {"ephemeral": True, "sequence": True},
        {"container": True},
        {"ttl_ms": 3_600_000},
        {"ttl_ms": 3_600_000, "sequence": True},
        {"ttl_ms": 1 << 50},
    )

    WEIGHTS = {
        "create": 24,
        "create2": 6,
        "delete": 16,
        "set": 12,
        "get": 4,
        "exists": 6,
        "children2": 6,
        "add_watch": 5,
        "remove_watch": 2,
        "multi": 9,
        "multi_read": 4,
        "ephemerals": 3,
        "all_children_number": 3,
        "who_am_i": 0.5,
        "check_watches": 3,
        "cut": 1,
        "get_acl": 1,
    }

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def path(self) -> str:
        """Return a path of up to three levels with three names; sometimes the root."""
        if self.rng.random() < 0.04:
            return "/"
        return "".join("/" + self.rng.choice("abc") for _ in range(self.rng.choice([1, 1, 2, 2, 3])))

    def part(self) -> Any:
        """Return a part of a multi."""
        path = self.path()
        return self.rng.choice(
            [
                Create(path, b"y", **self.rng.choice(self.KINDS)),
                SetData(path, b"z"),
                Delete(path),
                Check(path, self.rng.choice([-1, 0, 1])),
            ]
        )

    def step(self) -> Step:
        """Return (session, operation, arguments...)."""
        rng = self.rng
        which, path = rng.randrange(2), self.path()
        label = rng.choice([None, "one", "two"])
        kind = rng.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        if kind in ("create", "create2"):
            return (which, kind, path, rng.choice(self.KINDS))
        if kind == "delete":
            return (which, kind, path, rng.choice([-1, -1, 0, 1]))
        if kind == "set":
            return (which, kind, path, b"s" * rng.randrange(4), rng.choice([-1, -1, 0, 1]))
        if kind in ("get", "exists", "children2"):
            return (which, kind, path, label)
        if kind == "add_watch":
            return (which, kind, path, rng.choice(["p", "q"]), rng.random() < 0.5)
        if kind == "remove_watch":
            return (which, kind, path, rng.choice(["p", "q", None]), rng.random() < 0.5)
        if kind == "multi":
            return (which, kind, [self.part() for _ in range(rng.randint(0, 5))])
        if kind == "multi_read":
            return (which, kind, [rng.choice([GetData, GetChildren])(self.path()) for _ in range(rng.randint(0, 4))])
        if kind == "check_watches":
            return (which, kind, path, rng.randint(1, 5))
        if kind in ("who_am_i", "cut"):
            return (which, kind)
        return (which, kind, path)


def test_random_run_gives_the_same_answers_and_events(tmp_path: Path) -> None:
    """See the module docstring."""

    async def main(reactor: Any) -> None:
        sides = [Side(reactor, store) for store in stores]
        for side in sides:
            await side.begin()
        steps = Steps(SEED)
        done: list[str] = []
        heard = 0
        for number in range(STEPS):
            step = steps.step()
            theirs, ours = [await side.run(step) for side in sides]
            for side in sides:
                await side.settle()
            their_events, our_events = (side.take_events() for side in sides)
            if step[1] == "cut":
                # ZooKeeper sends the events for the time of the disconnection in the order of a hash map.
                their_events, our_events = (list(map(sorted, events)) for events in (their_events, our_events))
            done.append(f"{number}: {step} -> {theirs} {their_events}")
            story = f"RK_SEED={SEED}, step {number}; the steps before:\n" + "\n".join(done[-12:])
            assert ours == theirs, f"answer differs: {story}"
            assert our_events == their_events, f"events differ: {story}"
            heard += sum(map(len, their_events))
        assert heard > STEPS // 4, "a run without events proves little"
        await gatherResults([client.close() for side in sides for client in side.sessions])

    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(open_store(kind, tmp_path / kind)) for kind in (ZOOKEEPER, STORE)]
        in_reactor(main, 120 + STEPS / 4)
