"""The hello between region servers: encoded hellos are decoded, and all other bytes are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import RemoteProtocolError
from regionserver.tablets.links.complaints import LOG_AGAIN_S, TEXTS_MAX, Complaints
from regionserver.tablets.links.hello import KNOWN, ServerHello, decode_hello, encode_hello

GOOD = ServerHello("c" * 32, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "b", 7, ("::1", 9310))


def test_what_is_written_is_read() -> None:
    assert decode_hello(encode_hello(GOOD)[5:]) == GOOD


def test_format_stays() -> None:
    """Servers of two builds must understand each other."""
    assert encode_hello(ServerHello("cc", "s", "d", 258, ("h", 9))).hex() == (
        "0000001a" "01" "524b5253" "0001" "0000000000000102" "026363" "0173" "0164" "03683a39"
    )  # fmt: skip


def test_features_are_a_field_that_other_builds_ignore() -> None:
    """Servers of earlier builds announce none, and are sent none."""
    hello = replace(GOOD, features=KNOWN)
    body = encode_hello(hello)[5:]
    assert body == encode_hello(GOOD)[5:] + b"\0\1\0\4\0\0\0\3"
    assert decode_hello(body) == hello
    assert decode_hello(encode_hello(GOOD)[5:]).features == 0
    assert decode_hello(encode_hello(GOOD)[5:] + b"\0\1\0\2xy").features == 0


def test_unknown_fields_are_ignored() -> None:
    body = encode_hello(GOOD)[5:]
    assert decode_hello(body + b"\0\7\0\2xy" + b"\0\x08\0\0") == GOOD
    for rest in (b"\0", b"\0\7\0", b"\0\7\0\2x"):
        with pytest.raises(RemoteProtocolError):
            decode_hello(body + rest)


@pytest.mark.parametrize(
    "hello",
    [
        ServerHello("", "a", "b", 1, ("h", 1)),
        ServerHello("c", "", "b", 1, ("h", 1)),
        ServerHello("c", "a", "b", 1 << 62, ("h", 1)),
        ServerHello("c", "a", "b", 1, ("h", 0)),
        ServerHello("c", "a", "b", 1, ("h;rm", 1)),
        ServerHello("c", "a\n", "b", 1, ("h", 1)),
    ],
)
def test_impossible_values_are_rejected(hello: ServerHello) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_hello(encode_hello(hello)[5:])


@pytest.mark.parametrize("size", [256, 250])
def test_names_that_no_listener_would_read_are_rejected_at_home(size: int) -> None:
    with pytest.raises(ValueError, match="too long for a hello"):
        encode_hello(ServerHello("c", "a" * size, "b" * size, 1, ("h" * 20, 1)))


@given(st.binary(max_size=520))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for body in (data, encode_hello(GOOD)[5:19] + data):
        try:
            decode_hello(body)
        except RemoteProtocolError:
            continue


def test_complaints_are_logged_once_and_again_much_later() -> None:
    now = [0.0]
    complaints = Complaints(lambda: now[0])
    assert [complaints.is_new("x") for _ in range(3)] == [True, False, False]
    assert sum(complaints.is_new(f"{number}") for number in range(1000)) == TEXTS_MAX - 1
    now[0] = LOG_AGAIN_S
    assert complaints.is_new("x")
