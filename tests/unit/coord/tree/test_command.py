"""Groups and commands: the grammar; applying any group succeeds."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.errors import RemoteProtocolError
from coord.tree import command
from coord.tree.command import decode_create, decode_path_watch, decode_set_data
from coord.tree.machine import StateMachine
from coord.wire import records as r
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.unit.coord.tree.tree_store import PASSWD

CREATE_SESSION = command.encode_command(
    1, 42, 0, r.OP_CREATE_SESSION, command.encode_create_session(10_000, PASSWD, b"::1")
)
CREATE = command.encode_command(
    1, 1, 3, r.OP_CREATE, r.encode_create(CreateRequest(r.OP_CREATE, b"/a", b"data", OPEN_ACL, 0))
)
GROUP = command.encode_batch(1234, [CREATE_SESSION, CREATE])


def test_group_round_trip() -> None:
    time_ms, commands = command.decode_batch(GROUP)
    assert time_ms == 1234
    assert [(c.session_id, c.owner, c.cxid, c.opcode) for c in commands] == [(1, 42, 0, -10), (1, 1, 3, 1)]
    again = [command.encode_command(c.session_id, c.owner, c.cxid, c.opcode, c.body) for c in commands]
    assert command.encode_batch(time_ms, again) == GROUP


def test_internal_bodies_round_trip() -> None:
    created = command.encode_create_session(5, PASSWD, b"1.2.3.4")
    assert command.decode_create_session(created, 0, len(created)) == (5, PASSWD, b"1.2.3.4", [])
    attach = command.encode_attach(5, b"short", b"1.2.3.4")
    assert command.decode_attach(attach, 0, len(attach)) == (5, b"short", b"1.2.3.4", [])
    proved = [(b"digest", b"bob:h"), (b"super", b"")]
    identities = command.encode_identities(proved)
    assert command.decode_identities(identities, 0, len(identities)) == proved
    created = command.encode_create_session(5, PASSWD, b"1.2.3.4", identities)
    assert command.decode_create_session(created, 0, len(created))[3] == proved
    attach = command.encode_attach(5, b"short", b"1.2.3.4", identities)
    assert command.decode_attach(attach, 0, len(attach))[3] == proved


def test_password_of_a_new_session_has_its_length() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        command.encode_create_session(5, b"short", b"")


def test_group_is_applied_in_order_under_its_time() -> None:
    machine = StateMachine()
    outcomes = machine.apply_batch(GROUP)
    assert [(o.zxid, o.err, o.opcode, o.owner, o.cxid) for o in outcomes] == [(1, 0, -10, 42, 0), (2, 0, 1, 1, 3)]
    assert machine.tree.nodes[b"/a"].ctime == 1234
    assert (machine.last_zxid, machine.applied_time_ms) == (2, 1234)


def test_group_cut_at_every_byte_is_refused_from_there_on() -> None:
    for cut in range(len(GROUP)):
        machine = StateMachine()
        outcomes = machine.apply_batch(GROUP[:cut])
        assert outcomes[-1].err == e.MARSHALLING_ERROR
        assert machine.last_zxid == len(outcomes)
        assert b"/a" not in machine.tree.nodes
        with pytest.raises(RemoteProtocolError):
            command.decode_batch(GROUP[:cut])


@pytest.mark.parametrize("length", [0, 23, 0xFFFFFFFF])
def test_command_with_an_impossible_length_is_refused(length: int) -> None:
    spoiled = length.to_bytes(4, "big") + CREATE_SESSION[4:]
    machine = StateMachine()
    assert [o.err for o in machine.apply_batch(command.encode_batch(1, [spoiled, CREATE]))] == [e.MARSHALLING_ERROR]
    with pytest.raises(RemoteProtocolError):
        command.decode_batch(command.encode_batch(1, [spoiled]))


def test_bytes_behind_the_last_command_are_no_group() -> None:
    with pytest.raises(RemoteProtocolError):
        command.decode_batch(GROUP + b"x")


# --- the direct decoders ---------------------------------------------------------------------------------------------


def outcome(decode: object, *arguments: object) -> object:
    """Return a decoder's result in a comparable form: its value as plain data, or the rejection."""
    try:
        value = decode(*arguments)  # type: ignore[operator]
    except RemoteProtocolError:
        return "refused"
    if isinstance(value, CreateRequest):
        return (value.opcode, value.path, value.data, value.acl or [], value.flags, value.ttl_ms)
    return value


@pytest.mark.parametrize(
    ("fast", "general", "record"),
    [
        (decode_path_watch, r.decode_path_watch, r.encode_path_watch(b"/a/b", True)),
        (decode_set_data, r.decode_set_data, r.encode_set_data(b"/a", b"data", 7)),
        (decode_set_data, r.decode_set_data, r.encode_set_data(b"/a", None, 7)),
    ],
)
def test_direct_decoders_agree_with_the_general_ones(fast: object, general: object, record: bytes) -> None:
    """At every cut, and with every byte of the record changed."""
    block = b"##" + record + b"##"
    for end in range(2, len(block) + 1):
        assert outcome(fast, block, 2, end) == outcome(general, block, 2, end)
    for at in range(len(record)):
        for value in (0, 1, 0x7F, 0xFF):
            spoiled = record[:at] + bytes([value]) + record[at + 1 :]
            assert outcome(fast, spoiled, 0, len(spoiled)) == outcome(general, spoiled, 0, len(spoiled))


@pytest.mark.parametrize("opcode", [r.OP_CREATE, r.OP_CREATE_TTL])
@pytest.mark.parametrize("acl", [OPEN_ACL, [], None, [*OPEN_ACL, *OPEN_ACL], [r.Acl(1, b"ip", b"1.2.3.4")]])
def test_direct_decoder_of_create_agrees_with_the_general_one(opcode: int, acl: list[r.Acl] | None) -> None:
    record = r.encode_create(CreateRequest(opcode, b"/a", b"data", acl, 5, 1000))
    for end in range(len(record) + 1):
        assert outcome(decode_create, opcode, record, 0, end) == outcome(r.decode_create, opcode, record, 0, end)
    for at in range(len(record)):
        spoiled = record[:at] + b"\xff" + record[at + 1 :]
        arguments = (opcode, spoiled, 0, len(spoiled))
        assert outcome(decode_create, *arguments) == outcome(r.decode_create, *arguments)
