"""Membership requests and answers as bytes: those of builds before typed requests are read and sent unchanged."""

from __future__ import annotations

import json

import pytest

from coord import errors as e
from coord.errors import RemoteProtocolError
from coord.server.membership.request import (
    ADD,
    ADDRESS_CHARS_MAX,
    ASK_NEXT_LEADER,
    LIST,
    OUTCOME_UNKNOWN,
    RECONFIG,
    REMOVE,
    TRANSFER,
    Announcement,
    MembershipAnswer,
    MembershipRequest,
    RefusedError,
    ask_next_leader,
    decode_answer,
    decode_client_request,
    decode_request,
    done_at,
    refusal,
)
from coord.wire import opcodes as op
from coord.wire.jute import buffer
from coord.wire.records import encode_reconfig

LINE = "h4:1:2:participant;h4:3"

#: Bodies of ASK frames as written by the build before this module.
REQUESTS = [
    (
        b'{"do": "reconfig", "version": -1, "joining": ["server.4=h4:1:2"], "leaving": ["3"], "members": [],'
        b' "session": 72057594037927937, "applied": 17}',
        MembershipRequest(RECONFIG, joining=["server.4=h4:1:2"], leaving=["3"], session=72057594037927937, applied=17),
    ),
    (
        b'{"do": "reconfig", "version": 4294967299, "joining": [], "leaving": [], "members": ["server.1=h1:1:2"],'
        b' "session": 5, "applied": 17, "checked": true}',
        MembershipRequest(
            RECONFIG, members=["server.1=h1:1:2"], version=4294967299, session=5, applied=17, is_checked=True
        ),
    ),
    (
        b'{"do": "add", "id": 4, "line": "h4:1:2:participant;h4:3", "session": 5, "applied": 17}',
        MembershipRequest(ADD, node_id=4, line=LINE, session=5, applied=17),
    ),
    (b'{"do": "remove", "id": 4, "session": 5, "applied": 0}', MembershipRequest(REMOVE, node_id=4, session=5)),
    (b'{"do": "transfer", "id": 2, "session": 5, "applied": 0}', MembershipRequest(TRANSFER, node_id=2, session=5)),
    (b'{"do": "list", "session": 5, "applied": 17}', MembershipRequest(LIST, session=5, applied=17)),
    (b'{"do": "announce", "client": "10.0.0.1:2181"}', Announcement("10.0.0.1:2181")),
]
#: Bodies of ANSWER frames of the same build.
ANSWERS = [
    (b'{"code": 0, "text": "", "index": 17}', done_at(17)),
    (b'{"code": 0, "text": "", "index": 0, "facts": {"nodes": []}}', MembershipAnswer(0, facts={"nodes": []})),
    (b'{"code": -8, "text": "there is no node 9", "index": 0}', refusal(RefusedError(-8, "there is no node 9"))),
    (b'{"code": 1, "checked": false}', ask_next_leader(is_checked=False)),
    (b'{"code": 1, "checked": true}', ask_next_leader(is_checked=True)),
    (b'{"code": 2}', MembershipAnswer(OUTCOME_UNKNOWN)),
]


@pytest.mark.parametrize(("text", "request_"), REQUESTS)
def test_requests_keep_their_bytes(text: bytes, request_: MembershipRequest | Announcement) -> None:
    """Nodes of both builds are in one store during an upgrade."""
    assert decode_request(text) == request_
    assert request_.encode() == text


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_answers_keep_their_bytes(text: bytes, answer: MembershipAnswer) -> None:
    """The node with the client and the leader may be of different builds."""
    assert decode_answer(text) == answer
    assert answer.encode() == text


def test_a_retried_request_of_an_older_build_is_read() -> None:
    """It has the mark also when false, and an id as the operator's client wrote it."""
    text = b'{"do": "remove", "id": "4", "session": 5, "applied": 1, "checked": false, "later": [1]}'
    assert decode_request(text) == MembershipRequest(REMOVE, node_id=4, session=5, applied=1)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"do": "reconfig", "joining": [], "leaving": [], "members": [], "session": 1, "applied": 1}',
        b'{"do": "reconfig", "version": 1, "joining": "x", "leaving": [], "members": [], "session": 1, "applied": 1}',
        b'{"do": "reconfig", "version": 1, "joining": [], "leaving": [3], "members": [], "session": 1, "applied": 1}',
        b'{"do": "remove", "id": 1, "session": true, "applied": 1}',
        b'{"do": "remove", "id": 1, "session": 1}',
        b'{"do": "remove", "session": 1, "applied": 1}',
        b'{"do": "add", "id": 1, "line": 5, "session": 1, "applied": 1}',
        b'{"do": "dance", "session": 1, "applied": 1}',
        b'{"do": "announce"}',
        json.dumps({"do": "announce", "client": "x" * (ADDRESS_CHARS_MAX + 1)}).encode(),
    ],
)
def test_a_request_that_no_node_forwards_is_refused(text: bytes) -> None:
    """Each would raise KeyError or a worse error in the leader."""
    with pytest.raises(RemoteProtocolError):
        decode_request(text)


def test_clients_requests() -> None:
    """ZooKeeper's record and our own JSON; fields that only a node may add are not accepted from a client."""
    record = encode_reconfig(b"server.4=h4:1:2, server.5=h5:1:2", b" 3 ,", b"", -1)
    found = decode_client_request(op.OP_RECONFIG, record)
    assert found == MembershipRequest(RECONFIG, joining=["server.4=h4:1:2", "server.5=h5:1:2"], leaving=["3"])
    own = b'{"do": "remove", "id": 4, "session": 9, "applied": 99, "checked": true}'
    assert decode_client_request(op.OP_MEMBERSHIP, buffer(own)) == MembershipRequest(REMOVE, node_id=4)
    for wrong in (
        b"",
        b"[]",
        b"{}",
        b'{"do": 5}',
        b'{"do": "reconfig"}',
        b'{"do": "add", "id": 1e400}',
        b"[" * 100_000,
    ):
        with pytest.raises(RefusedError) as refused:
            decode_client_request(op.OP_MEMBERSHIP, buffer(wrong))
        assert refused.value.code == e.BAD_ARGUMENTS
    assert ASK_NEXT_LEADER > 0, "ZooKeeper's codes are not positive"
