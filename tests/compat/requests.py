"""Seeded runs of requests, as bytes: valid requests, and some that no valid client would send.

A run is a list of steps; a step is one or more requests of one session, sent at once. Names are few, so that requests
concern the same znodes; some paths, flags, versions, access lists and types are unusual. A run uses only znodes below
ROOT, and those that every store has. A player may replace ROOT's name by another of the same length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from kazoo.security import make_digest_acl_credential

from coord.wire import records as r
from coord.wire.jute import NULL

ROOT: Final = b"/d00000"
SESSIONS: Final = 3
#: A step without requests that loses the connection and reconnects with the same session.
CUT: Final = "cut"
#: Longer than any run: the two stores would expire a znode at different times.
TTL_MS: Final = 3_600_000

_WORLD: Final = r.Acl(r.PERM_ALL, b"world", b"anyone")
_BOB: Final = r.Acl(r.PERM_ALL, b"digest", make_digest_acl_credential("bob", "pw").encode())


def _all(scheme: bytes, identity: bytes) -> list[r.Acl]:
    """Return the access list that grants everything to one user."""
    return [r.Acl(r.PERM_ALL, scheme, identity)]


#: Access lists that both stores accept or reject.
ACLS: Final[dict[str, list[r.Acl] | None]] = {
    "open": [_WORLD],
    "read": [r.Acl(r.PERM_READ, b"world", b"anyone")],
    "no read": [r.Acl(r.PERM_ALL & ~r.PERM_READ, b"world", b"anyone")],
    "no delete": [r.Acl(r.PERM_ALL & ~r.PERM_DELETE, b"world", b"anyone")],
    "nothing": [r.Acl(0, b"world", b"anyone")],
    "all bits": [r.Acl(-1, b"world", b"anyone")],
    "auth": _all(b"auth", b""),
    "auth named": _all(b"auth", b"whoever"),
    "auth and world": [r.Acl(r.PERM_ADMIN, b"auth", b""), r.Acl(r.PERM_READ, b"world", b"anyone")],
    "bob": [_BOB],
    "bob and world": [_BOB, r.Acl(r.PERM_READ | r.PERM_CREATE, b"world", b"anyone")],
    "auth and bob": [r.Acl(r.PERM_ALL, b"auth", b""), _BOB],
    "sasl": _all(b"sasl", b"bob"),
    **{f"sasl {text}": _all(b"sasl", text.encode()) for text in ("", "@", "a/b/c", "a/b@c", "a@b@c")},
    "twice": [_WORLD, _WORLD],
    "empty": [],
    "null": None,
    "nobody": _all(b"world", b"nobody"),
    "World": _all(b"World", b"anyone"),
    "no scheme": _all(b"", b""),
    "super": _all(b"super", b"x"),
    "nonsense": _all(b"nonsense", b"x"),
    "digest bare": _all(b"digest", b"bob"),
    "digest no user": _all(b"digest", b":x"),
    "digest no hash": _all(b"digest", b"bob:"),
    "digest three": _all(b"digest", b"a:b:c"),
    "digest end": _all(b"digest", b"a:b:"),
    "digest ends": _all(b"digest", b"a:b::"),
    "digest colons": _all(b"digest", b"::"),
    "digest empty": _all(b"digest", b""),
    **{
        f"ip {text}": _all(b"ip", text.encode())
        for text in (
            *("127.0.0.1", "127.0.0.0/8", "127.0.0.1/32", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.1/33", "127.0.0.1/-1"),
            *("01.2.3.4", "127.0.0.01", "127.0.0.1/08", "127.0.0.1/", "/8", "127.0.0.1/8/8", "127.0.0.1/ 8", "1.2.3"),
            *("256.0.0.1", "1.2.3.4.5", "::1", "fe80::1", "::1/64", "::1/129", "localhost", "", "127.0.0.1 ", "1..2.3"),
            *("127.0.0.1/+8", "127.0.0.-1", "+127.0.0.1", "::ffff:127.0.0.1", "fe80::1%1", "127.0.0.1/255.0.0.0"),
            *("1.2.3.4.", ".1.2.3.4", "0x7f.0.0.1", "1", "::", ":::", "1:2:3:4:5:6:7:8"),
        )
    },
}


class Request(NamedTuple):
    """One request. `since`: for setWatches, the step whose zxid it names; -1 for the zxid in the body."""

    opcode: int
    body: bytes
    since: int = -1
    words: str = ""

    def __repr__(self) -> str:
        """Return the request in readable form."""
        return f"{r.OPCODE_NAMES.get(self.opcode, self.opcode)}{self.words}"


class Step(NamedTuple):
    """Requests that a session sends at once."""

    session: int
    requests: tuple[Request, ...]
    kind: str = ""

    def __repr__(self) -> str:
        """Return the step in readable form."""
        return f"session {self.session}: {self.kind or ', '.join(map(repr, self.requests))}"


_ODD_PATHS: Final = (
    *(b"", b"a", b"//", b"/", b"/zookeeper", b"/zookeeper/quota", b"/zookeeper/config", b"/nothing/x", b"/zookeeper/x"),
    *(
        ROOT + tail
        for tail in (b"", b"/", b"//a", b"/a/", b"/a//b", b"/.", b"/..", b"/./a", b"/a/../b", b"/.a", b"/a.")
    ),
    *(ROOT + tail for tail in (b"/\0", b"/a\0b", b"/\x01", b"/\x7f", b"/ ", b"/\xc2\x80", b"/\xc2\xa0", b"/\xc3\xa9")),
    *(ROOT + b"/" + char.encode() for char in ("\ue000", "\uf8ff", "\uf900", "\ufff0", "\ufffd", "\uffff")),
    ROOT[1:] + b"/a",
)


class Requests:
    """Makes the runs of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def run(self, requests: int) -> list[Step]:
        """Return steps with that many requests in all."""
        steps: list[Step] = []
        while requests > 0:
            steps.append(self._step(len(steps)))
            requests -= max(1, len(steps[-1].requests))
        return steps

    def _step(self, number: int) -> Step:
        rng = self.rng
        session = rng.randrange(SESSIONS)
        chance = rng.random()
        if chance < 0.01:
            return Step(session, (), CUT)
        if chance < 0.02:
            return Step(session, (self._auth(),))
        if chance < 0.03:
            return Step(session, (*self._burst(number, rng.choice((0, 0, 3))), Request(r.OP_CLOSE_SESSION, b"")))
        if chance < 0.035:
            # Alone in its step: ZooKeeper closes the connection before it has answered the earlier requests.
            opcode = rng.choice((r.OP_CHECK, 0, 10, 23, 999, r.OP_ERROR))
            return Step(session, (Request(opcode, r.encode_path_version(ROOT, -1)),))
        return Step(session, self._burst(number, rng.choice((1, 1, 1, 2, 4, 10))))

    def _burst(self, number: int, count: int) -> tuple[Request, ...]:
        """Return requests that are sent at once."""
        burst: list[Request] = []
        for _ in range(count):
            burst.append(self._request(number))
            if burst[-1].opcode == r.OP_SET_ACL:
                # Of requests sent before the answer, ZooKeeper checks the old access list and our store the new one.
                break
        return tuple(burst)

    def _request(self, number: int) -> Request:
        kinds: dict[Callable[[], Request], float] = {
            self._create: 26,
            self._delete: 12,
            self._set_data: 10,
            self._path_watch: 26,
            self._multi: 9,
            self._multi_read: 4,
            self._acl: 5,
            self._watch_type: 8,
            self._path_only: 5,
            lambda: self._set_watches(number): 2,
            self._container: 0.5,
        }
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    # --- arguments ----------------------------------------------------------------------------------------------------

    def path(self) -> bytes:
        """Return a path up to three levels below ROOT, sometimes an odd one."""
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice(_ODD_PATHS)
        return ROOT + b"".join(b"/" + rng.choice((b"a", b"b", b"c")) for _ in range(rng.choice((1, 1, 2, 2, 3))))

    def read_path(self) -> bytes:
        """Return a path with the same content on both servers: the configuration contains a zxid, whose length may
        differ."""
        path = self.path()
        return path if path != b"/zookeeper/config" else b"/zookeeper"

    def version(self) -> int:
        """Return a version, mostly -1 (any)."""
        return self.rng.choice((-1, -1, -1, -1, -1, 0, 1, 2, -2, 1 << 30, -(1 << 31)))

    def data(self) -> bytes | None:
        """Return data: short, empty or none."""
        return self.rng.choice((None, b"", b"x", b"some bytes", b"y" * 300))

    def acl(self) -> tuple[str, list[r.Acl] | None]:
        """Return an access list, mostly open."""
        name = "open" if self.rng.random() < 0.8 else self.rng.choice(sorted(ACLS))
        return name, ACLS[name]

    # --- requests -----------------------------------------------------------------------------------------------------

    def _created(self, opcodes: tuple[int, ...]) -> tuple[r.CreateRequest, str]:
        rng = self.rng
        opcode = rng.choice(opcodes)
        flags = rng.choice((0, 0, 0, 1, 1, 2, 2, 3, 4))
        ttl = 0
        if opcode == r.OP_CREATE_CONTAINER:
            flags = rng.choice((4, 4, 4, 0, 2))
        if opcode == r.OP_CREATE_TTL:
            flags = rng.choice((5, 6))
            ttl = rng.choice((TTL_MS, TTL_MS, TTL_MS, 0, -1, (1 << 40) - 1, 1 << 40))
        elif rng.random() < 0.03:
            flags = rng.choice((-1, 5, 6, 7, 8, 100))
        path = self.path()
        if flags in (2, 3, 6) and rng.random() < 0.3:
            path += b"/"
        name, acl = self.acl()
        data = self.data()
        words = f"({path!r}, {data and len(data)} bytes, {name}, flags {flags}{f', ttl {ttl}' if ttl else ''})"
        return r.CreateRequest(opcode, path, data, acl, flags, ttl), words

    def _create(self) -> Request:
        some = (r.OP_CREATE, r.OP_CREATE2)
        made, words = self._created((*some, *some, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL))
        return Request(made.opcode, r.encode_create(made), words=words)

    def _delete(self) -> Request:
        path, version = self.path(), self.version()
        return Request(r.OP_DELETE, r.encode_path_version(path, version), words=f"({path!r}, {version})")

    def _set_data(self) -> Request:
        path, data, version = self.path(), self.data(), self.version()
        words = f"({path!r}, {data and len(data)} bytes, {version})"
        return Request(r.OP_SET_DATA, r.encode_set_data(path, data, version), words=words)

    def _path_watch(self) -> Request:
        opcode = self.rng.choice((r.OP_EXISTS, r.OP_GET_DATA, r.OP_GET_CHILDREN, r.OP_GET_CHILDREN2))
        path, watch = self.read_path(), self.rng.random() < 0.6
        body = NULL + b"\0" if self.rng.random() < 0.01 else r.encode_path_watch(path, watch)
        return Request(opcode, body, words=f"({path!r}{', watch' if watch else ''})")

    def _path_only(self) -> Request:
        opcode = self.rng.choice((r.OP_SYNC, r.OP_GET_EPHEMERALS, r.OP_GET_ALL_CHILDREN_NUMBER, r.OP_WHO_AM_I))
        path = self.path()
        if opcode == r.OP_WHO_AM_I:
            return Request(opcode, b"")
        if opcode == r.OP_GET_ALL_CHILDREN_NUMBER:
            # With the empty path, ZooKeeper counts the root among its own descendants.
            path = path or b"/"
        return Request(opcode, r.encode_path(path), words=f"({path!r})")

    def _acl(self) -> Request:
        path = self.read_path()
        if self.rng.random() < 0.5:
            return Request(r.OP_GET_ACL, r.encode_path(path), words=f"({path!r})")
        name, acl = self.acl()
        version = self.version()
        if path in (b"/", b"", b"/zookeeper"):
            path = ROOT + b"/a"
        return Request(r.OP_SET_ACL, r.encode_set_acl(path, acl, version), words=f"({path!r}, {name}, {version})")

    def _watch_type(self) -> Request:
        opcode = self.rng.choice((r.OP_ADD_WATCH, r.OP_ADD_WATCH, r.OP_REMOVE_WATCHES, r.OP_CHECK_WATCHES))
        path = self.path()
        types = (0, 0, 1, 1, 1, 0, 2, -1) if opcode == r.OP_ADD_WATCH else (1, 2, 3, 4, 5, 0, 6)
        kind = self.rng.choice(types)
        return Request(opcode, r.encode_path_version(path, kind), words=f"({path!r}, {kind})")

    def _set_watches(self, number: int) -> Request:
        second = self.rng.random() < 0.5
        lists = [[self.path() for _ in range(self.rng.choice((0, 0, 1, 2)))] for _ in range(5)]
        if not second:
            lists[3:] = [[], []]
        since = max(0, number - self.rng.choice((1, 3, 20)))
        opcode = r.OP_SET_WATCHES2 if second else r.OP_SET_WATCHES
        body = r.encode_set_watches(r.WatchSets(0, *lists), second=second)
        return Request(opcode, body, since, f"(since step {since}, {lists})")

    def _container(self) -> Request:
        path = self.rng.choice((ROOT + b"/nothing", b"/nothing/x", b"/", b"/zookeeper", b"", b"x"))
        return Request(r.OP_DELETE_CONTAINER, r.encode_path(path), words=f"({path!r})")

    def _auth(self) -> Request:
        user = self.rng.choice((b"bob:pw", b"eve:pw", b"bare", b":", b"a:b:c"))
        scheme = self.rng.choice((b"digest", b"digest", b"digest", b"ip", b"world", b"nonsense"))
        return Request(r.OP_AUTH, r.encode_auth(scheme, user), words=f"({scheme!r}, {user!r})")

    def _multi(self) -> Request:
        parts: list[r.MultiOp] = []
        words: list[str] = []
        for _ in range(self.rng.choice((0, 1, 2, 2, 3, 4, 6))):
            opcode = self.rng.choice((r.OP_CREATE, r.OP_CREATE, r.OP_DELETE, r.OP_SET_DATA, r.OP_CHECK))
            if opcode == r.OP_CREATE:
                some = (r.OP_CREATE, r.OP_CREATE2)
                made, text = self._created((*some, *some, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL))
                if made.acl is None:
                    # A null list in a multi stops ZooKeeper for good.
                    made.acl = [_WORLD]
                if made.opcode == r.OP_CREATE_TTL and self.rng.random() < 0.4:
                    # Without a TTL: an ordinary create since feature level 1, rejected before. Alone it stops
                    # ZooKeeper.
                    made.flags = self.rng.choice((0, 0, 1, 2, 3, 4, -1, 7))
                    text += f" with flags {made.flags}"
                parts.append(r.MultiOp(made.opcode, made.path, create=made))
                words.append(f"{r.OPCODE_NAMES[made.opcode]}{text}")
                continue
            path, version = self.path(), self.version()
            parts.append(r.MultiOp(opcode, path, self.data() if opcode == r.OP_SET_DATA else None, version))
            words.append(f"{r.OPCODE_NAMES[opcode]}({path!r}, {version})")
        return Request(r.OP_MULTI, r.encode_multi(parts), words=f"({'; '.join(words)})")

    def _multi_read(self) -> Request:
        parts: list[r.MultiOp] = []
        for _ in range(self.rng.choice((0, 1, 2, 3))):
            opcode = self.rng.choice((r.OP_GET_DATA, r.OP_GET_CHILDREN))
            parts.append(r.MultiOp(opcode, self.read_path(), watch=self.rng.random() < 0.3))
        words = "; ".join(f"{r.OPCODE_NAMES[part.opcode]}({part.path!r})" for part in parts)
        return Request(r.OP_MULTI_READ, r.encode_multi(parts), words=f"({words})")
