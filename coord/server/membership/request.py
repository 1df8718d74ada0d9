"""Membership requests and their answers, as nodes send them to each other (JSON in ASK and ANSWER frames). Pure.

    request := {"do": "reconfig", "version": -1, "joining": [line…], "leaving": ["id"…], "members": [line…], brought…}
             | {"do": "add", "id": 4, "line": "host:port:port[:role][;host:port]", brought…}
             | {"do": "remove", "id": 4, brought…} | {"do": "transfer", "id": 2, brought…} | {"do": "list", brought…}
    brought := "session": id, "applied": index [, "checked": true]      added by the node that forwards the request
    announcement := {"do": "announce", "client": "host:port"}           a node's client address, with token 0
    answer  := {"code": 0, "text": "", "index": 17 [, "facts": {…}]}    `code` as in `coord.errors`, 0: done
             | {"code": 1, "checked": false}                            send the request to the next leader
             | {"code": 2}                                              the outcome is unknown

A client sends the same JSON without the fields of `brought` in its MEMBERSHIP request; ZooKeeper's RECONFIG becomes
the request "reconfig". Nodes of different builds exchange these texts: fields may be added, but no field may change or
be removed (docs/compatibility.md). All fields from a client or a peer are checked here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from coord.errors import BAD_ARGUMENTS, MARSHALLING_ERROR, OK, RemoteProtocolError
from coord.raft.membership import MEMBER_ID_MAX
from coord.server.config.addresses import MemberAddress, parse_member, parse_server
from coord.tree.node import I32_MAX
from coord.wire import opcodes as op
from coord.wire.records import decode_reconfig, decode_sasl

RECONFIG: Final = "reconfig"
ADD: Final = "add"
REMOVE: Final = "remove"
TRANSFER: Final = "transfer"
LIST: Final = "list"
_ANNOUNCE: Final = "announce"

#: Longest client address that a node may announce: a host name has at most 253 characters.
ADDRESS_CHARS_MAX: Final = 300

#: Codes of answers between nodes, never sent to a client. ZooKeeper's codes are 0 or negative.
ASK_NEXT_LEADER: Final = 1
OUTCOME_UNKNOWN: Final = 2


class RefusedError(Exception):
    """A rejected request: ZooKeeper's `code`, and one line for the operator."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        assert code < 0, f"{code} is not an error code"
        self.code = code
        self.text = text


@dataclass
class MembershipRequest:
    """A request for another set of members, another leader, or a list of the members."""

    #: RECONFIG, ADD, REMOVE, TRANSFER or LIST.
    kind: str
    #: The node of ADD, REMOVE and TRANSFER.
    node_id: int = 0
    #: The address of ADD, without `server.N=`.
    line: str = ""
    #: Server lines and ids of RECONFIG, as ZooKeeper writes them.
    joining: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    #: Version of the configuration that RECONFIG replaces, -1: any.
    version: int = -1
    #: The client's session, for its permissions.
    session: int = 0
    #: Index that the leader must have applied first: the client may have seen its state.
    applied: int = 0
    #: True if an earlier leader has accepted the request and transferred leadership for it.
    is_checked: bool = False

    def encode(self) -> bytes:
        """Return the body of an ASK frame."""
        assert self.kind in (RECONFIG, ADD, REMOVE, TRANSFER, LIST), f"a request of kind {self.kind!r}"
        fields: dict[str, Any] = {"do": self.kind}
        if self.kind == RECONFIG:
            fields |= {
                "version": self.version,
                "joining": self.joining,
                "leaving": self.leaving,
                "members": self.members,
            }
        elif self.kind != LIST:
            fields["id"] = self.node_id
        if self.kind == ADD:
            fields["line"] = self.line
        fields |= {"session": self.session, "applied": self.applied}
        if self.is_checked:
            fields["checked"] = True
        return json.dumps(fields).encode()

    def check(self) -> None:
        """Raise RefusedError for a malformed line or id. ZooKeeper checks these before the client's permissions."""
        try:
            if self.kind == RECONFIG:
                for line in [*self.joining, *self.members]:
                    parse_server(line)
                if not all(_is_id(node_id.strip()) for node_id in self.leaving):
                    raise RefusedError(MARSHALLING_ERROR, f"leaving: {','.join(self.leaving)!r} is not a list of ids")
                if self.members and (self.joining or self.leaving):
                    raise ValueError("give either joining and leaving, or all members")
            elif self.kind == ADD:
                parse_member(self.node_id, self.line)
        except ValueError as error:
            raise RefusedError(BAD_ARGUMENTS, str(error)) from error

    def joining_members(self) -> list[tuple[MemberAddress, str]]:
        """Return the members and roles of `joining`. The request must have been checked."""
        return [parse_server(line) for line in self.joining]

    def all_members(self) -> list[tuple[MemberAddress, str]]:
        """Return the members and roles of `members`. The request must have been checked."""
        return [parse_server(line) for line in self.members]

    def leaving_ids(self) -> list[int]:
        """Return the nodes of `leaving`. The request must have been checked."""
        return [int(text) for text in self.leaving]


@dataclass(frozen=True)
class Announcement:
    """The client address of the sending node."""

    client: str

    def encode(self) -> bytes:
        """Return the body of an ASK frame."""
        return json.dumps({"do": _ANNOUNCE, "client": self.client}).encode()


@dataclass(frozen=True)
class MembershipAnswer:
    """The outcome of a request."""

    #: OK, ZooKeeper's error code, ASK_NEXT_LEADER or OUTCOME_UNKNOWN.
    code: int
    #: Why the request was rejected.
    text: str = ""
    #: Index that the client's node must have applied before it replies.
    index: int = 0
    #: The answer to LIST.
    facts: dict[str, Any] = field(default_factory=dict)
    #: With ASK_NEXT_LEADER: the new value of `MembershipRequest.is_checked`.
    is_checked: bool = False

    def encode(self) -> bytes:
        """Return the body of an ANSWER frame."""
        fields: dict[str, Any] = {"code": self.code}
        if self.code == ASK_NEXT_LEADER:
            fields["checked"] = self.is_checked
        elif self.code != OUTCOME_UNKNOWN:
            fields |= {"text": self.text, "index": self.index}
            if self.facts:
                fields["facts"] = self.facts
        return json.dumps(fields).encode()


def done_at(index: int) -> MembershipAnswer:
    """Return the answer to a request that is complete when `index` is applied."""
    assert index >= 0, f"a request is complete at index {index}"
    return MembershipAnswer(OK, index=index)


def refusal(error: RefusedError) -> MembershipAnswer:
    """Return the answer to a rejected request."""
    return MembershipAnswer(error.code, error.text)


def ask_next_leader(*, is_checked: bool) -> MembershipAnswer:
    """Return the answer that sends a request to the next leader."""
    return MembershipAnswer(ASK_NEXT_LEADER, is_checked=is_checked)


# --- decoding -------------------------------------------------------------------------------------------------------


def decode_client_request(opcode: int, body: bytes) -> MembershipRequest:
    """Return the request in a client's RECONFIG or MEMBERSHIP record. Raise RefusedError."""
    try:
        if opcode == op.OP_RECONFIG:
            joining, leaving, members, version = decode_reconfig(body, 0, len(body))
            return MembershipRequest(
                RECONFIG, joining=_parts(joining), leaving=_parts(leaving), members=_parts(members), version=version
            )
        fields = json.loads(decode_sasl(body, 0, len(body)) or b"")
        if not isinstance(fields, dict) or not isinstance(fields.get("do"), str):
            raise ValueError("not a membership request")
        if fields["do"] == RECONFIG:
            raise ValueError(f"{RECONFIG} must be sent as ZooKeeper's own request")
        return _read(fields)
    except RefusedError:
        raise
    except (RemoteProtocolError, ValueError, RecursionError) as error:
        raise RefusedError(BAD_ARGUMENTS, f"malformed request: {error}") from error


def decode_request(text: bytes) -> MembershipRequest | Announcement:
    """Return the request or announcement in an ASK frame; the sender has checked it. Raise RemoteProtocolError."""
    fields = _load(text)
    if fields.get("do") == _ANNOUNCE:
        client = fields.get("client")
        if not isinstance(client, str) or len(client) > ADDRESS_CHARS_MAX:
            raise RemoteProtocolError("an announcement has no client address, or one that is too long")
        return Announcement(client)
    try:
        request = _read(fields)
        request.session = _number(fields, "session")
        request.applied = _number(fields, "applied")
        request.is_checked = bool(fields.get("checked"))
        request.check()
    except RefusedError as error:
        raise RemoteProtocolError(f"malformed membership request: {error.text}") from error
    return request


def decode_answer(text: bytes) -> MembershipAnswer:
    """Return the answer in an ANSWER frame. Raise RemoteProtocolError."""
    found = _load(text)
    fields = {"text": "", "checked": False, "index": 0, "facts": {}, **found}
    code, index, is_checked = fields.get("code"), fields["index"], fields["checked"]
    if type(code) is not int or abs(code) > I32_MAX:
        raise RemoteProtocolError(f"the answer to a membership request has the code {code!r}"[:200])
    if code not in (ASK_NEXT_LEADER, OUTCOME_UNKNOWN) and "index" not in found:
        raise RemoteProtocolError("the answer to a membership request has no index")
    if type(index) is not int or index < 0 or type(is_checked) is not bool:
        raise RemoteProtocolError("the answer to a membership request has an invalid index or flag")
    if not isinstance(fields["text"], str) or not isinstance(fields["facts"], dict):
        raise RemoteProtocolError("the answer to a membership request has a malformed text or list")
    return MembershipAnswer(code, fields["text"], index, fields["facts"], is_checked)


def _load(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed membership request or answer: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError("a membership request or answer is not a JSON object")
    return value


def _read(fields: dict[str, Any]) -> MembershipRequest:
    """Return the request itself, without the fields that a node adds. Raise RefusedError."""
    kind = fields.get("do")
    if kind == LIST:
        return MembershipRequest(LIST)
    if kind == RECONFIG:
        joining, leaving, members = (_texts(fields, name) for name in ("joining", "leaving", "members"))
        version = _number(fields, "version")
        return MembershipRequest(RECONFIG, joining=joining, leaving=leaving, members=members, version=version)
    if kind in (ADD, REMOVE, TRANSFER):
        try:
            node_id = int(fields["id"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise RefusedError(BAD_ARGUMENTS, f"{kind} needs the id of a node: {error!r}") from error
        line = fields.get("line", "") if kind == ADD else ""
        if not isinstance(line, str):
            raise RefusedError(BAD_ARGUMENTS, f"{line!r} is not host:port:port[:role][;[host:]port]"[:200])
        return MembershipRequest(str(kind), node_id=node_id, line=line)
    raise RefusedError(BAD_ARGUMENTS, f"{kind!r} is not a membership request"[:200])


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int:
        raise RefusedError(BAD_ARGUMENTS, f"{name} is not a number")
    return value


def _texts(fields: dict[str, Any], name: str) -> list[str]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RefusedError(BAD_ARGUMENTS, f"{name} is not a list of texts")
    return values


def _parts(text: bytes) -> list[str]:
    return [part.strip() for part in text.decode().split(",") if part.strip()]


def _is_id(text: str) -> bool:
    """Return True if `text` has the form of a node id. Python rejects thousands of digits with ValueError."""
    return text.isdecimal() and len(text) <= len(str(MEMBER_ID_MAX))
