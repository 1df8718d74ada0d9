"""Sends the same raw requests to Apache ZooKeeper and to our store, and compares their answers and events.

    python -m tests.compat.frames [--first 1] [--seeds 1] [--requests 300]

Every received frame is compared: the order of answers and events on a connection, error codes, every field of every
record, the bytes after it. Times and the values of zxids and session ids are not compared. But two zxids that are equal
on one server must be equal on the other, and their order must be the same.

One session sends all requests of a step at once. After the answers, each other session sends a ping and collects its
events. So on both servers it is certain what each session must see, and in which order.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from coord.wire import records as r
from coord.wire.jute import i64
from tests.compat.ensembles import KINDS, ensemble
from tests.compat.requests import CUT, ROOT, SESSIONS, Request, Requests, Step
from tests.support.rawclient import RawClient

#: Requests of one run, which takes one or two seconds.
REQUESTS: Final = 300
TIMEOUT_MS: Final = 10_000
#: Number of shorter runs that are tried for a run that differs.
CUTS: Final = 200

_CLOSED: Final = ("closed",)
#: Operations that use a zxid, also when rejected. A check alone does not.
_WRITES: Final = r.WRITE_OPCODES - {r.OP_CHECK}


class Frame(NamedTuple):
    """A frame without the parts that may differ. Its zxids (of the header, and of the reported changes) are kept
    separately."""

    shown: tuple[Any, ...]
    zxid: int = 0
    changes: tuple[int, ...] = ()


class Known(NamedTuple):
    """An intended difference: its text in docs/store, and why no run fails because of it."""

    documented: str
    here: str


#: "Not asked": `requests.py` sends no such request. `compare` handles the other differences.
KNOWN: Final = (
    Known("writes sent before the answer against the old list", "not asked: a setACL is the last of its step"),
    Known("deleteContainer needs the right to delete", "asked only of what is not there or cannot go"),
    Known("createTTL with a bad TTL", "not asked: createTTL has flags of a TTL"),
    Known("No request of a client stops a node", "not asked: a null access list within a multi"),
    Known("ZooKeeper answers InvalidACL without a provider", "not asked: access lists name x509 nowhere"),
    Known("before it has answered the earlier requests", "an unknown operation is sent alone"),
    Known("at once, also before waiting requests", "pings are sent when nothing waits"),
    Known("setWatches reports each missed change once", "such events are looked at but once: `_told_once`"),
    Known(
        "receives events for its own deleted ephemerals only if", "what only theirs is told at its close is passed over"
    ),
    Known("The root is one znode (ZooKeeper counts it twice)", "not asked: how many are below the empty path"),
)


class Difference(Exception):  # noqa: N818 - it is what is looked for
    """A difference that a run found. `step` is the number of the step."""

    def __init__(self, step: int, story: str) -> None:
        super().__init__(story)
        self.step = step


class Session:
    """One session on one server, over one connection at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asked: list[Request] = []
        self._is_closing = False
        self.session_id = 0
        self._passwd = r.NO_PASSWD
        self._connect()

    def _connect(self) -> None:
        self.raw = RawClient(self._address)
        self._xid = 0
        answer = self.raw.hello(r.ConnectRequest(0, TIMEOUT_MS, self.session_id, self._passwd))
        assert answer is not None, f"{self._address} refuses"
        assert answer.session_id, f"{self._address} has forgotten session {self.session_id:#x}"
        self.session_id, self._passwd = answer.session_id, answer.passwd

    def begin_anew(self) -> None:
        """Begin another session; this one is closed."""
        self.session_id, self._passwd = 0, r.NO_PASSWD
        self.reconnect()

    def reconnect(self) -> None:
        """Lose the connection and reconnect. Watches are gone."""
        self.raw.close()
        self._connect()

    def send(self, requests: list[Request]) -> None:
        """Send the requests at once."""
        frames: list[bytes] = []
        self._asked = requests
        for request in requests:
            self._xid += 1
            xid = r.XID_AUTH if request.opcode == r.OP_AUTH else self._xid
            frames.append(r.encode_request_frame(xid, request.opcode, request.body))
        with contextlib.suppress(OSError):
            self.raw.sock.sendall(b"".join(frames))

    def collect(self, owners: dict[int, str]) -> list[Frame]:
        """Return everything received until all requests are answered, or the connection is closed."""
        got: list[Frame] = []
        waiting = list(self._asked)
        while waiting:
            frame = self.raw.frame()
            if frame is None:
                return [*got, Frame(_CLOSED)]
            xid, zxid, err = r.decode_reply_header(frame, 0, len(frame))
            if xid == r.XID_NOTIFICATION:
                event = r.decode_watcher_event(frame, r.REPLY_HEADER_BYTES, len(frame))
                told = ("event", err, event.event_type, event.state, event.path, zxid == r.ZXID_UNKNOWN)
                got.append(Frame(told, 0, () if zxid == r.ZXID_UNKNOWN else (zxid,)))
                continue
            opcode = waiting.pop(0).opcode
            shown, changes = _plain(opcode, frame[r.REPLY_HEADER_BYTES :], err, owners)
            if opcode in _WRITES:
                changes.append(zxid)
            got.append(Frame(("answer", xid, err, shown), zxid, tuple(changes)))
        if self._asked[-1].opcode == r.OP_CLOSE_SESSION or opcode not in r.OPCODE_NAMES:
            got.append(Frame(_CLOSED if self.raw.is_closed() else ("open",)))
        return got


def _plain(opcode: int, body: bytes, err: int, owners: dict[int, str]) -> tuple[Any, list[int]]:
    """Return a record as values to compare, and the zxids in it."""
    changes: list[int] = []
    decode = _DECODERS.get(opcode)

    def plain(value: Any) -> Any:
        if isinstance(value, r.Stat):
            changes.extend((value.czxid, value.mzxid, value.pzxid))
            counted = (value.version, value.cversion, value.aversion, value.data_length, value.num_children)
            return ("stat", *counted, owners.get(value.ephemeral_owner, "?"))
        if isinstance(value, r.MultiResult):
            return (value.opcode, value.err, value.path, value.data, plain(value.stat), plain(value.children))
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        if isinstance(value, list):
            # Children, access lists and identities come from hash tables; the parts of a multi are in order.
            is_multi = any(isinstance(item, r.MultiResult) for item in value)
            return [plain(item) for item in value] if is_multi else sorted(map(plain, value), key=repr)
        return value

    if err or decode is None or not body:
        return (body,), changes
    return (len(body), plain(decode(body, 0, len(body)))), changes


_DECODERS: Final[dict[int, Callable[[bytes, int, int], Any]]] = {
    r.OP_CREATE: r.decode_path,
    r.OP_CREATE2: r.decode_create2_reply,
    r.OP_CREATE_CONTAINER: r.decode_create2_reply,
    r.OP_CREATE_TTL: r.decode_create2_reply,
    r.OP_EXISTS: r.decode_stat,
    r.OP_SET_DATA: r.decode_stat,
    r.OP_SET_ACL: r.decode_stat,
    r.OP_GET_DATA: r.decode_data_reply,
    r.OP_GET_ACL: r.decode_acl_reply,
    r.OP_GET_CHILDREN: r.decode_strings_reply,
    r.OP_GET_CHILDREN2: r.decode_children2_reply,
    r.OP_GET_EPHEMERALS: r.decode_strings_reply,
    r.OP_GET_ALL_CHILDREN_NUMBER: r.decode_number_reply,
    r.OP_MULTI: r.decode_multi_reply,
    r.OP_MULTI_READ: r.decode_multi_reply,
    r.OP_WHO_AM_I: r.decode_who_am_i_reply,
}

_PING: Final = Request(r.OP_PING, b"")
_OPEN: Final = r.CreateRequest(r.OP_CREATE, ROOT, b"", r.OPEN_ACL, 0)
_BOB: Final = Request(r.OP_AUTH, r.encode_auth(b"digest", b"bob:pw"))


class Side:
    """One server with all sessions of a run."""

    def __init__(self, address: str, root: bytes) -> None:
        self._root = root
        self.sessions = [Session(address) for _ in range(SESSIONS)]
        #: The letters of the ephemerals' owners, also of closed sessions.
        self.owners = {0: ""}
        #: By step: the last zxid that its answers reported.
        self._zxids: list[int] = []
        self._name_owners()

    def _name_owners(self) -> None:
        for session in self.sessions:
            self.owners.setdefault(session.session_id, f"session {len(self.owners)}")

    def send(self, step: Step) -> None:
        """Send the requests of a step."""
        self.sessions[step.session].send([self._here(request) for request in step.requests])

    def _here(self, request: Request) -> Request:
        body = request.body.replace(ROOT[1:], self._root[1:])
        if request.since >= 0:
            body = i64(self._zxids[min(request.since, len(self._zxids) - 1)] if self._zxids else 0) + body[8:]
        return request._replace(body=body)

    def finish(self, step: Step) -> list[list[Frame]]:
        """Return the received frames by session. Afterwards all sessions are connected again."""
        acting = self.sessions[step.session]
        if step.kind == CUT:
            acting.reconnect()
        asked = acting.collect(self.owners) if step.requests else []
        self._zxids.append(max([*self._zxids[-1:], *(frame.zxid for frame in asked)], default=0))
        heard: list[list[Frame]] = []
        for session in self.sessions:
            if session is not acting:
                session.send([_PING])
            heard.append(asked if session is acting else session.collect(self.owners))
        if asked and asked[-1].shown == _CLOSED:
            if any(request.opcode == r.OP_CLOSE_SESSION for request in step.requests):
                acting.begin_anew()
            else:
                acting.reconnect()
            self._name_owners()
        return heard

    def close(self) -> None:
        """End all sessions, with their ephemerals."""
        for session in self.sessions:
            session.send([Request(r.OP_CLOSE_SESSION, b"")])
            session.raw.close()


class Zxids:
    """The correspondence between the zxids of the two servers."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}

    def agree(self, theirs: tuple[int, ...], ours: tuple[int, ...]) -> bool:
        """Return True if these zxids can stand for the same changes, given all earlier pairs."""
        if len(theirs) != len(ours):
            return False
        for their, our in zip(theirs, ours, strict=True):
            if self._ours.setdefault(their, our) != our or self._theirs.setdefault(our, their) != their:
                return False
        return True

    def is_behind(self, theirs: int, ours: int) -> bool:
        """Return True if our zxid is older than a change that the other server's zxid includes."""
        return self._ours.get(theirs, ours) > ours

    def in_order(self) -> bool:
        """Return True if the order of zxids is the same on both servers."""
        known = [self._ours[their] for their in sorted(self._ours)]
        return known == sorted(known)


class Players:
    """Plays runs on both servers. Each run has its own root and sessions."""

    def __init__(self, theirs: str, ours: str) -> None:
        self._addresses = (theirs, ours)
        self._roots = itertools.count(1)
        #: Requests sent to each server.
        self.asked = 0

    def play(self, steps: list[Step]) -> None:
        """Play a run. Raise Difference at the first step with different answers."""
        root = b"/d%05d" % next(self._roots)
        sides = [Side(address, root) for address in self._addresses]
        zxids = Zxids()
        try:
            for first in (Step(0, (Request(r.OP_CREATE, r.encode_create(_OPEN)),)), Step(1, (_BOB,))):
                for side in sides:
                    side.send(first)
                    side.finish(first)
            for number, step in enumerate(steps):
                self.asked += len(step.requests)
                for side in sides:
                    side.send(step)
                theirs, ours = (side.finish(step) for side in sides)
                story = compare(step, theirs, ours, zxids)
                if story:
                    raise Difference(number, story)
        finally:
            for side in sides:
                side.close()

    def shortest(self, steps: list[Step], found: Difference) -> tuple[list[Step], Difference]:
        """Return the run up to the difference, without the requests that are not needed for the difference."""
        steps = steps[: found.step + 1]
        size = _length(steps) // 2
        tries = at = 0
        while size and tries < CUTS:
            shorter = _without(steps, at, size)
            tries += 1
            try:
                self.play(shorter)
                at += size
            except Difference as difference:
                steps, found = shorter[: difference.step + 1], difference
            if at >= _length(steps):
                at, size = 0, size // 2
        return steps, found


def _length(steps: list[Step]) -> int:
    """Return the number of requests; a step without any counts as one."""
    return sum(max(1, len(step.requests)) for step in steps)


def _without(steps: list[Step], at: int, size: int) -> list[Step]:
    """Return the steps without `size` requests from number `at` on, and without empty steps."""
    kept: list[Step] = []
    for step in steps:
        length = max(1, len(step.requests))
        start, stop = (min(max(0, edge), length) for edge in (at, at + size))
        requests = step.requests[:start] + step.requests[stop:]
        if requests or start == stop:
            kept.append(step._replace(requests=requests))
        at -= length
        if at < 0:
            size, at = max(0, size - (stop - start)), 0
    return kept


def compare(step: Step, theirs: list[list[Frame]], ours: list[list[Frame]], zxids: Zxids) -> str:
    """Return the differences between the frames of a step; empty if there are none."""
    closes = any(request.opcode == r.OP_CLOSE_SESSION for request in step.requests)
    for session, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if closes:
            # ZooKeeper deletes the ephemerals of a session in the order of a hash set.
            their, our = _events_sorted(their), _events_sorted(our)
            if session == step.session:
                told = [frame.shown for frame in our]
                their = [frame for frame in their if frame.shown[0] != "event" or frame.shown in told]
        if any(request.opcode in (r.OP_SET_WATCHES, r.OP_SET_WATCHES2) for request in step.requests):
            their = _told_once(their, our)
        pairs = itertools.zip_longest(their, our, fillvalue=Frame(("nothing",)))
        for number, (one, other) in enumerate(pairs):
            is_same = one.shown == other.shown and (closes or zxids.agree(one.changes, other.changes))
            if not is_same or zxids.is_behind(one.zxid, other.zxid):
                return f"session {session}, frame {number}:\n  ZooKeeper: {one}\n  ours:      {other}"
    return "" if zxids.in_order() else "changes came in another order"


def _told_once(theirs: list[Frame], ours: list[Frame]) -> list[Frame]:
    """Return the events without those that ZooKeeper repeats, or sends to clients that may not read the znode."""
    ours_told = [frame for frame in ours if frame.shown[0] == "event" and frame.shown[-1]]
    kept: list[Frame] = []
    seen: list[Frame] = []
    for frame in theirs:
        if frame.shown[0] == "answer":
            seen = []
        elif frame.shown[0] == "event" and frame.shown[-1]:
            if frame in seen or frame not in ours_told:
                continue
            seen.append(frame)
        kept.append(frame)
    return kept


def _events_sorted(frames: list[Frame]) -> list[Frame]:
    events = sorted(frame for frame in frames if frame.shown[0] == "event")
    return [frame for frame in frames if frame.shown[0] != "event"] + events


@contextlib.contextmanager
def both(folder: Path) -> Iterator[Players]:
    """Yield a server of each kind. Containers and TTL znodes are not reaped while they run."""
    with contextlib.ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(ensemble(kind, folder / kind, servers=1, reap_interval_ms=1_000_000_000))
            for kind in reversed(KINDS)
        )
        yield Players(theirs.hosts, ours.hosts)


def differing(players: Players, seed: int, requests: int) -> str:
    """Play the run of a seed. Return the difference, the command that repeats it and the requests that it needs; empty
    if there is none."""
    steps = Requests(seed).run(requests)
    try:
        players.play(steps)
        return ""
    except Difference as difference:
        found = difference
    shortest, last = players.shortest(steps, found)
    lines = [f"seed {seed} differs at step {found.step}: {steps[found.step]}\n{found}"]
    if shortest != steps[: found.step + 1]:
        lines.append(f"and so does the shorter run\n{''.join(f'  {step}{chr(10)}' for step in shortest)}{last}")
    lines.append(f"again: python -m tests.compat.frames --first {seed} --requests {requests}")
    return "\n".join(lines)


def main() -> int:
    """Play some seeds. Return 1 if any of them differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rk-compat-") as folder, both(Path(folder)) as players:
        began = time.monotonic()
        for seed in range(asked.first, asked.first + asked.seeds):
            story = differing(players, seed, asked.requests)
            failed += bool(story)
            if story:
                sys.stdout.write(f"{story}\n\n")
        took_s = time.monotonic() - began
        sys.stdout.write(f"{players.asked} requests in {took_s:.1f} s; {failed} of {asked.seeds} seeds differ\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
