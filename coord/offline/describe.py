"""Commands and log entries formatted for display: as a line for people, as a dict for programs.

Secrets are never shown: the output says only that a session password or a digest is present.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from coord.errors import RemoteProtocolError
from coord.raft.membership import decode_configuration
from coord.raft.messages import CONFIG, LEVEL, NOOP, NORMAL
from coord.storage.records import LogItem
from coord.tree.command import Command, decode_attach, decode_batch, decode_create_session, decode_identities
from coord.tree.levels import decode_level
from coord.wire import opcodes as op
from coord.wire.records import (
    decode_create,
    decode_multi,
    decode_path,
    decode_path_version,
    decode_set_acl,
    decode_set_data,
)
from coord.wire.values import CreateRequest, MultiOp

KIND_NAMES: Final = {NORMAL: "batch", NOOP: "no-op", CONFIG: "members", LEVEL: "feature level"}
CREATE_NAMES: Final = {
    op.CREATE_PERSISTENT: "persistent",
    op.CREATE_EPHEMERAL: "ephemeral",
    op.CREATE_SEQUENTIAL: "sequential",
    op.CREATE_EPHEMERAL_SEQUENTIAL: "ephemeral sequential",
    op.CREATE_CONTAINER: "container",
    op.CREATE_TTL: "ttl",
    op.CREATE_SEQUENTIAL_TTL: "sequential ttl",
}

Fields = dict[str, Any]


def entry_fields(item: LogItem) -> Fields:
    """Return the fields of one entry. A batch that cannot be decoded has the reason in `unreadable`."""
    found: Fields = {
        "index": item.index,
        "term": item.term,
        "kind": KIND_NAMES.get(item.kind, f"kind {item.kind}"),
        "bytes": len(item.data),
    }
    try:
        if item.kind == NORMAL:
            found["time_ms"], commands = decode_batch(item.data)
            found["commands"] = [command_fields(command) for command in commands]
        elif item.kind == CONFIG:
            found["members"] = repr(decode_configuration(item.data))
        elif item.kind == LEVEL:
            found["level"] = decode_level(item.data)
    except (RemoteProtocolError, ValueError) as error:
        found["unreadable"] = str(error)
    return found


def command_fields(command: Command) -> Fields:
    """Return the fields of one command. A malformed body, which every node rejects, has the reason in `unreadable`."""
    found: Fields = {
        "session": f"{command.session_id:#x}",
        "owner": command.owner,
        "cxid": command.cxid,
        "opcode": op.OPCODE_NAMES.get(command.opcode, str(command.opcode)),
        "bytes": len(command.body),
    }
    try:
        found.update(_body(command.opcode, command.body))
    except RemoteProtocolError as error:
        found["unreadable"] = str(error)
    return found


def _body(opcode: int, body: bytes) -> Fields:
    end = len(body)
    if opcode in (op.OP_CREATE, op.OP_CREATE2, op.OP_CREATE_CONTAINER, op.OP_CREATE_TTL):
        return _create(decode_create(opcode, body, 0, end))
    if opcode == op.OP_SET_DATA:
        path, data, version = decode_set_data(body, 0, end)
        return {"path": text(path), "data_bytes": len(data or b""), "version": version}
    if opcode in (op.OP_DELETE, op.OP_CHECK):
        path, version = decode_path_version(body, 0, end)
        return {"path": text(path), "version": version}
    if opcode == op.OP_SET_ACL:
        path, lines, version = decode_set_acl(body, 0, end)
        return {"path": text(path), "acl_entries": len(lines or []), "version": version}
    if opcode == op.OP_DELETE_CONTAINER:
        return {"path": text(decode_path(body, 0, end))}
    if opcode == op.OP_MULTI:
        return {"parts": [_part(part) for part in decode_multi(body, 0, end)]}
    if opcode in (op.OP_CREATE_SESSION, op.OP_ATTACH):
        decode = decode_create_session if opcode == op.OP_CREATE_SESSION else decode_attach
        timeout_ms, _, address, proved = decode(body, 0, end)
        found: Fields = {"timeout_ms": timeout_ms, "address": text(address)}
        return {**found, **_identities(proved)} if proved else found
    if opcode == op.OP_AUTH:
        return _identities(decode_identities(body, 0, end))
    return {}


def _identities(proved: list[tuple[bytes, bytes]]) -> Fields:
    """Return scheme and user names only: the text after a user's name is the hash of a secret."""
    return {
        "scheme": ",".join(text(scheme) for scheme, _ in proved),
        "user": ",".join(text(name.partition(b":")[0]) for _, name in proved),
    }


def _create(create: CreateRequest) -> Fields:
    found: Fields = {
        "path": text(create.path),
        "data_bytes": len(create.data or b""),
        "create": CREATE_NAMES.get(create.flags, f"flags {create.flags}"),
    }
    if create.opcode == op.OP_CREATE_TTL:
        found["ttl_ms"] = create.ttl_ms
    return found


def _part(part: MultiOp) -> Fields:
    found: Fields = {"opcode": op.OPCODE_NAMES.get(part.opcode, str(part.opcode))}
    if part.create is not None:
        return {**found, **_create(part.create)}
    found["path"] = text(part.path)
    if part.opcode == op.OP_SET_DATA:
        found["data_bytes"] = len(part.data or b"")
    found["version"] = part.version
    return found


# --- lines -----------------------------------------------------------------------------------------------------------


def entry_line(fields: Fields) -> str:
    """Format an entry: `2/17 batch 2024-05-01T12:00:00.123Z 3 commands 210 B`."""
    line = f"{fields['term']}/{fields['index']} {fields['kind']}"
    if "time_ms" in fields:
        line += f" {instant(fields['time_ms'])} {len(fields['commands'])} commands"
    if "members" in fields:
        line += f" {fields['members']}"
    if "level" in fields:
        line += f" {fields['level']}"
    if fields["bytes"]:
        line += f" {fields['bytes']} B"
    return line + _unreadable(fields)


def command_line(fields: Fields) -> str:
    """Format a command: `session 0x1 cxid 5 create /a persistent 10 B`."""
    line = f"session {fields['session']} cxid {fields['cxid']} {_operation(fields)}"
    if "timeout_ms" in fields:
        line += f" timeout {fields['timeout_ms']} ms from {fields['address']}"
    if "scheme" in fields:
        line += f" {fields['scheme']}:{fields['user']}"
    for part in fields.get("parts", ()):
        line += f"\n{'':12}{_operation(part)}"
    return line + _unreadable(fields)


def _operation(fields: Fields) -> str:
    words = [fields["opcode"]]
    if "path" in fields:
        words.append(fields["path"])
    if "create" in fields:
        words.append(fields["create"])
    if "ttl_ms" in fields:
        words.append(f"{fields['ttl_ms']} ms")
    if fields.get("version", -1) != -1:
        words.append(f"version {fields['version']}")
    if "data_bytes" in fields:
        words.append(f"{fields['data_bytes']} B")
    if "acl_entries" in fields:
        words.append(f"{fields['acl_entries']} entries")
    return " ".join(words)


def _unreadable(fields: Fields) -> str:
    return f" unreadable: {fields['unreadable']}" if "unreadable" in fields else ""


def text(value: bytes) -> str:
    """Decode a path or name for a terminal; escape unprintable characters."""
    shown = value.decode(errors="backslashreplace")
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode()


def instant(time_ms: int) -> str:
    """Format a wall-clock time in UTC; return the bare number for a time outside of the calendar."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
