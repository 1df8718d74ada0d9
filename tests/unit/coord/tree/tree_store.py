"""A state machine with a session or two, driven by operations instead of bytes."""

from __future__ import annotations

from coord.tree.command import Command, encode_attach, encode_create_session, encode_identities
from coord.tree.machine import CommandOutcome, StateMachine
from coord.tree.watches import WatchTable
from coord.wire import records as r
from coord.wire.values import OPEN_ACL, Acl, CreateRequest, MultiOp, MultiResult, Stat

PASSWD = b"0123456789abcdef"
START_MS = 1_700_000_000_000


class Client:
    """One session of a Store. Writes return their Outcome, reads (err, body)."""

    def __init__(self, store: Store, session_id: int, address: bytes = b"10.0.0.1") -> None:
        self.store = store
        self.id = session_id
        body = encode_create_session(10_000, PASSWD, address)
        self.created = store.apply(Command(session_id, 99, 0, r.OP_CREATE_SESSION, body))
        self.owner = self.created.zxid

    def write(self, opcode: int, body: bytes) -> CommandOutcome:
        return self.store.apply(Command(self.id, self.owner, 5, opcode, body))

    def create(
        self,
        path: bytes,
        data: bytes | None = b"",
        flags: int = r.CREATE_PERSISTENT,
        acl: list[Acl] | None = OPEN_ACL,
        opcode: int = r.OP_CREATE,
        ttl_ms: int = 0,
    ) -> CommandOutcome:
        return self.write(opcode, r.encode_create(CreateRequest(opcode, path, data, acl, flags, ttl_ms)))

    def set(self, path: bytes, data: bytes | None, version: int = -1) -> CommandOutcome:
        return self.write(r.OP_SET_DATA, r.encode_set_data(path, data, version))

    def delete(self, path: bytes, version: int = -1) -> CommandOutcome:
        return self.write(r.OP_DELETE, r.encode_path_version(path, version))

    def set_acl(self, path: bytes, acl: list[Acl] | None, version: int = -1) -> CommandOutcome:
        return self.write(r.OP_SET_ACL, r.encode_set_acl(path, acl, version))

    def auth(self, scheme: bytes, identity: bytes) -> CommandOutcome:
        return self.write(r.OP_AUTH, encode_identities([(scheme, identity)]))

    def attach(self, passwd: bytes = PASSWD, timeout_ms: int = 10_000, address: bytes = b"10.0.0.1") -> CommandOutcome:
        body = encode_attach(timeout_ms, passwd, address)
        outcome = self.store.apply(Command(self.id, 77, 0, r.OP_ATTACH, body))
        if not outcome.err:
            self.owner = outcome.zxid
        return outcome

    def close(self) -> CommandOutcome:
        return self.write(r.OP_CLOSE_SESSION, b"")

    def multi(self, *ops: MultiOp) -> list[MultiResult]:
        outcome = self.write(r.OP_MULTI, r.encode_multi(list(ops)))
        assert outcome.err == 0, outcome.err
        return r.decode_multi_reply(outcome.body, 0, len(outcome.body))

    def read(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        session = self.store.machine.sessions.find(self.id)
        assert session is not None
        return self.store.machine.read(opcode, body, session, self.store.watches)

    def get(self, path: bytes, watch: bool = False) -> tuple[int, bytes | None]:
        err, body = self.read(r.OP_GET_DATA, r.encode_path_watch(path, watch))
        return err, (None if err else r.decode_data_reply(body, 0, len(body))[0])

    def exists(self, path: bytes, watch: bool = False) -> int:
        return self.read(r.OP_EXISTS, r.encode_path_watch(path, watch))[0]

    def stat(self, path: bytes) -> Stat:
        err, body = self.read(r.OP_EXISTS, r.encode_path_watch(path, False))
        assert err == 0, (path, err)
        return r.decode_stat(body, 0, len(body))

    def children(self, path: bytes, watch: bool = False) -> list[bytes]:
        err, body = self.read(r.OP_GET_CHILDREN, r.encode_path_watch(path, watch))
        assert err == 0, (path, err)
        return r.decode_strings_reply(body, 0, len(body))


class Store:
    """A state machine, validated after each command. `fired` has the events as (session id, type, path)."""

    def __init__(self, machine: StateMachine | None = None) -> None:
        self.machine = machine or StateMachine()
        self.watches = WatchTable()
        self.now_ms = START_MS
        self.fired: list[tuple[int, int, bytes]] = []

    def client(self, session_id: int, address: bytes = b"10.0.0.1") -> Client:
        return Client(self, session_id, address)

    def apply(self, command: Command) -> CommandOutcome:
        outcome = self.machine.apply(command, self.now_ms)
        for fired in self.machine.notify(outcome, self.watches):
            for event_type, path in zip(fired.types, fired.paths, strict=True):
                self.fired += [(session_id, event_type, path) for session_id in fired.sessions]
        self.machine.validate()
        self.watches.validate()
        return outcome

    def events(self) -> list[tuple[int, int, bytes]]:
        fired, self.fired = self.fired, []
        return fired

    def internal(self, opcode: int, body: bytes) -> CommandOutcome:
        return self.apply(Command(0, 0, 0, opcode, body))


def path_of(outcome: CommandOutcome) -> bytes:
    assert outcome.err == 0, outcome.err
    return r.decode_path(outcome.body, 0, len(outcome.body))


def create_op(path: bytes, data: bytes | None = b"", flags: int = 0, opcode: int = r.OP_CREATE) -> MultiOp:
    return MultiOp(opcode, path, data, -1, CreateRequest(opcode, path, data, OPEN_ACL, flags))


def set_op(path: bytes, data: bytes, version: int = -1) -> MultiOp:
    return MultiOp(r.OP_SET_DATA, path, data, version)


def delete_op(path: bytes, version: int = -1) -> MultiOp:
    return MultiOp(r.OP_DELETE, path, None, version)


def check_op(path: bytes, version: int = -1) -> MultiOp:
    return MultiOp(r.OP_CHECK, path, None, version)
