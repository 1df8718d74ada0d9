"""Simulated clients: they speak the real wire protocol and check every answer.

A client keeps its session over connections to any node, pipelines requests, pings, gives up a silent server,
authenticates, and restores its watches with setWatches2. Sometimes it disappears without a close, or uses two
connections at once. Every answer is checked at once (`answers`): a write against the history at its zxid, a read
against the state at the zxid of its answer, events against the watches and the changes since.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from coord.wire import records as r
from coord.wire.client_conn import FrameReader
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation
from tests.sim.store import answers
from tests.sim.store.net import SimSocket
from tests.sim.store.watching import Watching

if TYPE_CHECKING:
    from tests.sim.store.world import World

SECOND: Final = 1_000_000
#: Performed once, in order and without gaps over all connections of a session.
WRITES: Final = (
    *(r.OP_CREATE, r.OP_CREATE2, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL, r.OP_SET_DATA, r.OP_SET_ACL, r.OP_DELETE),
    *(r.OP_MULTI, r.OP_CLOSE_SESSION),
)
#: Possible identities of a client.
USERS: Final = (b"ann", b"bob")


def digest_of(user: bytes, password: bytes) -> bytes:
    """Return the id of that user in access lists."""
    return user + b":" + base64.b64encode(hashlib.sha1(user + b":" + password, usedforsecurity=False).digest())


#: Access lists of znodes: open; for the creator only; readable by all and changed by one user; an invalid list.
ACCESS_LISTS: Final = (
    r.OPEN_ACL,
    [r.Acl(r.PERM_ALL, b"auth", b"")],
    [r.Acl(r.PERM_READ, b"world", b"anyone"), r.Acl(r.PERM_ALL, b"digest", digest_of(b"ann", b"pw"))],
    [r.Acl(r.PERM_ALL, b"digest", digest_of(b"bob", b"pw"))],
    [],
)


class Request:
    """One request that waits for its answer."""

    def __init__(self, xid: int, opcode: int, path: bytes, body: bytes, *, watch: bool = False) -> None:
        self.xid = xid
        self.opcode = opcode
        self.path = path
        self.body = body
        self.watch = watch
        #: Of a sync: the highest zxid that any client had received when it was sent.
        self.floor = 0
        #: Of addWatch.
        self.mode = 0
        #: Of setWatches2.
        self.sets: r.WatchSets | None = None
        #: Clocks of the machines when the request was sent.
        self.sent_at: dict[int, float] = {}


class Link:
    """One connection of a client."""

    def __init__(self, client: Client, sock: SimSocket) -> None:
        self.client = client
        self.sock = sock
        self.reader = FrameReader(1 << 24, 4)
        self.pending: deque[Request] = deque()
        self.is_open = False
        #: True if the node serves only reads, without the log.
        self.is_read_only = False
        #: Identities that this connection has proved if the log does not have them (read-only).
        self.identities: list[tuple[bytes, bytes]] = []
        #: None until the handshake is answered.
        self.watching: Watching | None = None
        self.heard_at = client.world.now
        self.sent_at = client.world.now
        self.output = b""
        #: Number of bytes sent up to the end of each frame that the server has not read completely, as far as known.
        self._ends: deque[int] = deque()
        self._sent = 0
        self.zxid = 0
        #: The session for which the connection was opened, 0 for a new one.
        self.session_id = client.session_id
        #: Clocks of the machines at each unanswered ping, oldest first.
        self.pings: deque[dict[int, float]] = deque()
        #: Xids of the writes sent over the connection, in order.
        self.writes: list[int] = []

    def send(self, data: bytes) -> None:
        """Send one frame."""
        self._sent += len(data)
        self._ends.append(self._sent)
        self.output += data
        self.sent_at = self.client.world.now
        self.flush()

    def flush(self) -> None:
        while self.output:
            try:
                sent = self.sock.send(self.output)
            except BlockingIOError:
                return
            except OSError:
                return
            self.output = self.output[sent:]

    def is_heard(self) -> bool:
        """Return True if the server has read whole frames since the last call. A part of one does not count."""
        before = len(self._ends)
        while self._ends and self._ends[0] <= self.sock.taken:
            self._ends.popleft()
        return len(self._ends) < before


class Client:
    """One client, which may have several sessions one after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = b"c%d" % number
        # A separate random source: the client's actions depend on no other client and on no fault.
        chance = self.chance = SeededRandom(world.seed * 1_000_003 + number)
        #: Its identity, b"" for none.
        self.user = chance.pick([b"", b"", *USERS])
        self.password = b"pw"
        self.takes_read_only = chance.happens(0.5)
        self.rate = chance.between(0.8, 1.25)
        self.wanted_ms = chance.pick([600, 1000, 2000])
        self.think_us = chance.pick([15_000, 60_000, 200_000])
        self.depth = chance.pick([1, 3, 9])
        self.watches = chance.pick([0.0, 0.3, 0.8])
        self.session_id = 0
        self.passwd = bytes(16)
        self.timeout_ms = self.wanted_ms
        self.seen = 0
        self.xid = 0
        self.link: Link | None = None
        #: Connections that it has abandoned without closing them.
        self.left: list[Link] = []
        self.kept = Watching(0)
        self.is_gone = False
        self.answered = 0
        self.synced = 0
        self.done_writes = 0
        self._owes_sync = False
        self._begins_us = chance.below(SECOND)

    # --- life ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start at some time in the first second."""
        self.world.at(self.world.now + self._begins_us, self._act)

    def _act(self) -> None:
        if self.is_gone:
            return
        world = self.world
        world.at(world.now + 1 + self.chance.below(2 * self.think_us), self._act)
        link = self.link
        if link is None:
            self.connect(self._some_node())
            return
        timeout_us = int(self.timeout_ms * 1000 / self.rate)
        if world.now - link.heard_at > timeout_us * 2 // 3:
            self.drop(link)
            return
        link.flush()
        if link.is_open and not link.output:
            if world.faulty and self.chance.happens(0.01):
                self._strange(link)
            elif len(link.pending) < 3 * self.depth:
                self._ask(link)
            elif world.now - link.sent_at > timeout_us // 3:
                link.pings.append(world.clocks())
                link.send(r.encode_request_frame(r.XID_PING, r.OP_PING, b""))

    def _some_node(self) -> int:
        """Return a node, mostly one that serves."""
        hosts = self.world.hosts
        members = [node for node in self.world.check.members() if node in hosts]
        return self.chance.pick(members if members and self.chance.happens(0.9) else list(hosts))

    def connect(self, node: int) -> None:
        """Open a connection, for the session if there is one."""
        world = self.world
        sock = SimSocket(world.net, -self.number)
        link = self.link = Link(self, sock)
        sock.on_ready = lambda _: self._ready(link)
        sock.connect_ex((f"10.0.0.{node}", 2))
        request = r.ConnectRequest(self.seen, self.wanted_ms, self.session_id, self.passwd, self.takes_read_only)
        record = r.encode_connect_request(request)
        world.note(f"client {self.number} dials {node}, session {self.session_id:#x}, has seen {self.seen}")
        link.send(len(record).to_bytes(4, "big") + record)
        if self.chance.happens(0.15):
            # Requests right after the handshake, as an impatient client sends them.
            self._introduce(link)
            self._ask(link)

    def drop(self, link: Link, *, quietly: bool = False) -> None:
        """Drop a connection; `quietly`: the server does not notice."""
        self.world.counts["connection_loss"] += len(link.pending)
        self._owes_sync |= not self.world.faulty
        if quietly:
            self.left.append(link)
        else:
            link.sock.close()
        if self.link is link:
            self.link = None

    def calm(self) -> None:
        """Handle the end of the faults: work steadily, and begin with a sync."""
        self.think_us = 40_000
        self.depth = min(self.depth, 3)
        self._owes_sync = True

    def vanish(self) -> None:
        """Lose the client's machine for good."""
        self.is_gone = True
        self.world.counts["client_vanished"] += 1
        for link in [*self.left, *([self.link] if self.link else [])]:
            link.sock.close()
        self.link = None

    def _strange(self, link: Link) -> None:
        """Do one of the unusual actions of clients."""
        chance = self.chance
        what = chance.below(4)
        if what == 0:
            self.drop(link)
        elif what == 1:
            # Another connection takes the session while requests of this one are in flight.
            self._ask(link)
            self.drop(link, quietly=True)
            self.world.counts["two_connections"] += 1
            self.connect(self._some_node())
        elif what == 2:
            self.request(link, Request(self._next(), r.OP_CLOSE_SESSION, b"", b""))
        else:
            self._ask(link)
            self.drop(link)

    def _forget_session(self) -> None:
        self.session_id = 0
        self.passwd = bytes(16)
        self.xid = 0
        self.kept = Watching(0)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.xid += 1
        return self.xid

    def request(self, link: Link, request: Request) -> None:
        """Send one request."""
        if request.opcode == r.OP_SYNC:
            request.floor = self.world.check.told
        link.pending.append(request)
        request.sent_at = self.world.clocks()
        if request.opcode in WRITES:
            link.writes.append(request.xid)
        self.world.counts[r.OPCODE_NAMES[request.opcode]] += 1
        link.send(r.encode_request_frame(request.xid, request.opcode, request.body))

    def _introduce(self, link: Link) -> None:
        """Authenticate, and restore the watches."""
        if self.user:
            body = r.encode_auth(b"digest", self.user + b":" + self.password)
            self.request(link, Request(r.XID_AUTH, r.OP_AUTH, b"", body))
        self._restore_watches(link)

    def _restore_watches(self, link: Link) -> None:
        if self.kept.is_empty() or not self.session_id:
            return
        sets = self.kept.as_sets(self.seen)
        request = Request(r.XID_SET_WATCHES, r.OP_SET_WATCHES2, b"", r.encode_set_watches(sets, second=True))
        request.sets = sets
        self.kept = Watching(0)
        self.request(link, request)

    def _ask(self, link: Link) -> None:
        chance = self.chance
        for _ in range(1 + chance.below(self.depth)):
            kind = chance.below(20)
            path = chance.pick([b"/s/a", b"/s/b", b"/s/c", b"/s/" + self.name, b"/s", b"/s/x", b"/s/y", b"/s/y/t"])
            if self._owes_sync:
                kind, self._owes_sync = 6, False
            if kind < 6:
                self._read(link, path)
            elif kind < 7:
                self.request(link, Request(self._next(), r.OP_SYNC, b"/s", r.encode_path(b"/s")))
                self._read(link, path)
            elif kind < 8 and self.watches:
                request = Request(self._next(), r.OP_ADD_WATCH, path, b"")
                request.mode = chance.below(2)
                request.body = r.encode_path_version(path, request.mode)
                self.request(link, request)
            else:
                self._write(link, path)

    def _read(self, link: Link, path: bytes) -> None:
        chance = self.chance
        opcode = chance.pick([r.OP_GET_DATA, r.OP_GET_DATA, r.OP_EXISTS, r.OP_GET_CHILDREN2, r.OP_GET_ACL])
        if opcode == r.OP_GET_ACL:
            self.request(link, Request(self._next(), opcode, path, r.encode_path(path)))
            return
        watch = chance.happens(self.watches)
        self.request(link, Request(self._next(), opcode, path, r.encode_path_watch(path, watch), watch=watch))

    def _write(self, link: Link, path: bytes) -> None:
        chance = self.chance
        kind = chance.below(12)
        xid = self._next()
        if kind == 10:
            path = chance.pick([b"/s/x", b"/s/a", b"/s/" + self.name])
            lines = chance.pick(ACCESS_LISTS)
            version = -1 if chance.happens(0.7) else self._guess(path, 8)
            self.request(link, Request(xid, r.OP_SET_ACL, path, r.encode_set_acl(path, lines, version)))
        elif kind == 11:
            self._create_special(link, xid)
        elif kind < 4:
            version = -1 if chance.happens(0.5) else self._guess(path)
            body = r.encode_set_data(path, b"%s-%d" % (self.name, xid), version)
            self.request(link, Request(xid, r.OP_SET_DATA, path, body))
        elif kind < 7:
            self._create(link, xid, path)
        elif kind < 8:
            self.request(link, Request(xid, r.OP_DELETE, path, r.encode_path_version(path, -1)))
        else:
            ops = [self._part() for _ in range(1 + chance.below(4))]
            self.request(link, Request(xid, r.OP_MULTI, b"", r.encode_multi(ops)))

    def _create(self, link: Link, xid: int, path: bytes) -> None:
        chance = self.chance
        flags = chance.below(4)
        if flags & r.CREATE_SEQUENTIAL:
            path = chance.pick([b"/s/n-", b"/s/a/n-"])
        elif flags & r.CREATE_EPHEMERAL:
            path = b"/s/e-" + self.name
        create = r.CreateRequest(chance.pick([r.OP_CREATE, r.OP_CREATE2]), path, b"%d" % xid, r.OPEN_ACL, flags)
        self.request(link, Request(xid, create.opcode, path, r.encode_create(create)))

    def _create_special(self, link: Link, xid: int) -> None:
        """Create containers with children that come and go, znodes with a TTL, and znodes with restricted access."""
        chance = self.chance
        kind = chance.below(4)
        lines = chance.pick(ACCESS_LISTS)
        if kind == 0:
            create = r.CreateRequest(r.OP_CREATE_CONTAINER, b"/s/y", b"%d" % xid, r.OPEN_ACL, 4)
        elif kind == 1:
            ttl_ms = chance.pick([200, 1500])
            path, flags = (b"/s/y/t", 5) if chance.happens(0.5) else (b"/s/t-", 6)
            create = r.CreateRequest(r.OP_CREATE_TTL, path, b"%d" % xid, r.OPEN_ACL, flags, ttl_ms)
        elif kind == 2:
            create = r.CreateRequest(r.OP_CREATE, b"/s/y/" + self.name, b"%d" % xid, r.OPEN_ACL, 1)
        else:
            create = r.CreateRequest(r.OP_CREATE2, b"/s/x", b"%d" % xid, lines, 0)
        self.request(link, Request(xid, create.opcode, create.path, r.encode_create(create)))

    def _part(self) -> r.MultiOp:
        chance = self.chance
        path = chance.pick([b"/s/a", b"/s/b", b"/s/c", b"/s/" + self.name, b"/s/x"])
        kind = chance.below(5)
        if kind == 0:
            flags = chance.below(4)
            name = b"/s/m-" if flags & r.CREATE_SEQUENTIAL else b"/s/m" + self.name
            # The meaning of a createTTL without a TTL depends on the feature level.
            opcode, ttl_ms = (r.OP_CREATE_TTL, 1500) if chance.happens(0.2) else (r.OP_CREATE, 0)
            create = r.CreateRequest(opcode, name, b"m", r.OPEN_ACL, flags, ttl_ms)
            return r.MultiOp(opcode, name, b"m", -1, create)
        if kind == 1:
            return r.MultiOp(r.OP_DELETE, path, None, -1)
        if kind == 2:
            return r.MultiOp(r.OP_CHECK, path, None, self._guess(path))
        return r.MultiOp(r.OP_SET_DATA, path, b"multi", -1 if chance.happens(0.7) else self._guess(path))

    def _guess(self, path: bytes, field: int = 3) -> int:
        """Return a version that may be right."""
        view = self.world.check.model.at(path, self.seen)
        return (int(view[field]) if view is not None else 0) + (1 if self.chance.happens(0.2) else 0)

    # --- what comes back ----------------------------------------------------------------------------------------------

    def _ready(self, link: Link) -> None:
        if link.sock.is_closed:
            return
        while link.sock.is_readable():
            try:
                data = link.sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                link.sock.close()
                if self.link is link:
                    self.drop(link)
                return
            link.heard_at = self.world.now
            frames = link.reader.feed(data)
            block = link.reader.take_block()
            for at, end in frames:
                self._frame(link, block, at, end)
                if link.sock.is_closed:
                    return
        link.flush()

    def _frame(self, link: Link, block: bytes, at: int, end: int) -> None:
        if link.watching is None:
            self._handshake(link, r.decode_connect_response(block, at, end))
            return
        xid, zxid, err = r.decode_reply_header(block, at, end)
        at += r.REPLY_HEADER_BYTES
        if self.world.lines is not None:
            self.world.note(f"client {self.number} gets xid {xid} zxid {zxid} err {err} {bytes(block[at:end])[:40]!r}")
        watching = link.watching
        if xid == r.XID_NOTIFICATION:
            event = r.decode_watcher_event(block, at, end)
            self.world.counts["events"] += 1
            watching.event(self._model(), zxid, event.event_type, event.path, self._who(link))
            if zxid != r.ZXID_UNKNOWN:
                self._saw(link, zxid)
            return
        if xid == r.XID_PING:
            self._confirmed(link, link.pings.popleft())
            return
        if not link.pending:
            raise Violation(f"{self._who(link)} gets an answer to {xid}, which it never asked")
        request = link.pending.popleft()
        if request.xid != xid:
            raise Violation(f"{self._who(link)} gets an answer to {xid} before that to {request.xid}")
        if zxid < link.zxid:
            raise Violation(f"{self._who(link)} goes back from zxid {link.zxid} to {zxid} at request {xid}")
        if zxid > self._model().zxid:
            raise Violation(f"{self._who(link)} is told of zxid {zxid}, which nobody has applied")
        self._saw(link, zxid)
        if err not in answers.SESSION_ENDED:
            self._confirmed(link, request.sent_at)
        self.answered += 1
        body = bytes(block[at:end])
        watching.up_to(self._model(), zxid, self._who(link))
        if link.is_read_only:
            self._judge_alone(link, request, zxid, err, body)
        else:
            self._judge(link, request, zxid, err, body)
        if self.link is link:
            self.kept = watching

    def _confirmed(self, link: Link, sent_at: dict[int, float]) -> None:
        """Handle an answered request: its session lives for its timeout from the time when the request was sent."""
        if not link.is_read_only:
            self.world.check.on_answered(link.session_id, sent_at, self._who(link))

    def _model(self) -> Any:
        return self.world.check.model

    def _who(self, link: Link) -> str:
        return f"client {self.number} (session {link.session_id:#x})"

    def _saw(self, link: Link, zxid: int) -> None:
        link.zxid = max(link.zxid, zxid)
        self.world.check.told = max(self.world.check.told, zxid)
        if self.link is link:
            self.seen = max(self.seen, zxid)

    def _handshake(self, link: Link, response: r.ConnectResponse) -> None:
        world = self.world
        if response.session_id == 0:
            if response.timeout_ms or link.session_id in self._model().sessions:
                raise Violation(f"{self._who(link)} is told that its living session has expired")
            world.counts["session_expired"] += 1
            if self.session_id == link.session_id:
                self._forget_session()
            self.drop(link)
            return
        if link.session_id and response.session_id != link.session_id:
            raise Violation(f"{self._who(link)} gets session {response.session_id:#x}")
        if response.read_only:
            self._begin_alone(link, response)
            return
        if link.session_id == 0 and self.session_id == 0:
            self.seen = 0 if not self.chance.happens(0.5) else self.seen
        world.counts["attached" if link.session_id else "opened"] += 1
        link.session_id = response.session_id
        link.watching = Watching(response.session_id)
        link.zxid = self.seen
        world.check.sent.append((link.session_id, link.writes))
        if self.link is not link:
            return
        self.session_id, self.passwd = response.session_id, response.passwd
        self.timeout_ms = response.timeout_ms
        link.is_open = True
        link.is_heard()
        link.sock.on_read = lambda machine: self._heard(link, machine)
        self._introduce(link)

    def _begin_alone(self, link: Link, response: r.ConnectResponse) -> None:
        """Handle a session of a node without a leader, which serves reads; no other node knows this session."""
        if not self.takes_read_only:
            raise Violation(f"{self._who(link)} is served read-only and did not say that it can do with that")
        self.world.counts["read_only"] += 1
        link.is_read_only = link.is_open = True
        link.session_id = response.session_id
        link.watching = Watching(response.session_id)
        link.zxid = self.seen
        link.identities = [(b"ip", b"10.0.1.%d" % self.number)]
        if self.link is link and self.session_id:
            self._introduce(link)

    def _heard(self, link: Link, machine: int) -> None:
        process = self.world.hosts[machine].process
        if process is not None and link.is_heard():
            self.world.check.on_heard(process, link.session_id)

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, link: Link, request: Request, zxid: int, err: int, body: bytes) -> None:
        opcode = request.opcode
        if opcode in WRITES:
            self._judge_write(link, request, zxid, err, body)
        elif opcode == r.OP_AUTH:
            answers.check_auth(self._model(), self._who(link), link.session_id, zxid, err)
        elif opcode == r.OP_SYNC:
            self.synced += 1
            if zxid < request.floor:
                raise Violation(f"{self._who(link)} syncs at {zxid}; {request.floor} had been told before it asked")
        else:
            identities = self._model().identities_at(link.session_id, zxid)
            if identities is None:
                raise Violation(f"{self._who(link)} reads at {zxid}, where its session does not exist")
            self._judge_read(link, request, zxid, err, body, identities)

    def _judge_alone(self, link: Link, request: Request, zxid: int, err: int, body: bytes) -> None:
        """Check an answer of a node that serves only reads."""
        opcode = request.opcode
        if opcode == r.OP_AUTH:
            answers.check_ok(self._who(link), "auth", err)
            link.identities.append((b"digest", digest_of(self.user, self.password)))
        elif opcode == r.OP_CLOSE_SESSION:
            answers.check_ok(self._who(link), "closeSession", err)
            if self.session_id == link.session_id:
                self._forget_session()
            self.drop(link)
        elif opcode in WRITES or opcode in (r.OP_SYNC, r.OP_RECONFIG, r.OP_MEMBERSHIP):
            answers.check_refused_read_only(self._who(link), request.xid, err)
            self._owes_sync |= opcode == r.OP_SYNC
        else:
            self._judge_read(link, request, zxid, err, body, link.identities)

    def _judge_read(
        self, link: Link, request: Request, zxid: int, err: int, body: bytes, identities: list[tuple[bytes, bytes]]
    ) -> None:
        """Check an answer from the tree of one node, for a client with `identities`."""
        model = self._model()
        who = self._who(link)
        opcode = request.opcode
        watching = link.watching
        assert watching is not None
        if opcode == r.OP_ADD_WATCH:
            watching.add(request.path, request.mode)
        elif opcode == r.OP_SET_WATCHES2:
            assert request.sets is not None
            watching.restored(model, request.sets, zxid, who, identities)
        else:
            answers.check_read(model, who, opcode, request.path, zxid, err, body, identities)
            if request.watch:
                watching.leave(opcode, request.path, err)

    def _judge_write(self, link: Link, request: Request, zxid: int, err: int, body: bytes) -> None:
        expected = answers.expected_at(self._model(), self._who(link), link.session_id, request, zxid, err)
        self.done_writes += 1
        if err in answers.SESSION_ENDED:
            return
        if request.opcode == r.OP_CLOSE_SESSION and self.session_id == link.session_id:
            self._forget_session()
            self.drop(link)
            return
        answers.check_write(self._who(link), request, expected, err, body)
