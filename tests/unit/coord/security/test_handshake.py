"""The handshake by keys: who is accepted, and every way of cheating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from coord.security.handshake import (
    FRAME_MAX,
    GREETING,
    NONCE_BYTES,
    DialingEnd,
    HandshakeError,
    ListeningEnd,
    refusal,
    satisfies,
)
from coord.security.keys import ClusterSecrets
from coord.security.principal import NOBODY, Principal

ALICE, MALLORY = Principal("user", "alice"), Principal("user", "mallory")
SERVER, OTHER = Principal("server", "one"), Principal("server", "two")
SECRETS = ClusterSecrets("cluster-1", {1: "11" * 32})
ADDRESS = "127.0.0.1:21801"


def key(who: Principal, secrets: ClusterSecrets = SECRETS, number: int = 1) -> bytes:
    found = secrets.key_of(who, number)
    assert found is not None
    return found


def dialer(who: Principal = ALICE, **changes: Any) -> DialingEnd:
    values: dict[str, Any] = {"cluster": "cluster-1", "number": 1, "key": key(who), "address": ADDRESS, "wanted": ""}
    values |= changes
    first = values.pop("nonce", b"d" * NONCE_BYTES)
    return DialingEnd(who, values["cluster"], values["number"], values["key"], nonce=first, address=values["address"],
                  wanted=values["wanted"])  # fmt: skip


def listener(who: Principal = SERVER, secrets: ClusterSecrets = SECRETS, **changes: Any) -> ListeningEnd:
    return ListeningEnd(
        who,
        changes.get("cluster", secrets.cluster),
        secrets.key_of,
        nonce=changes.get("nonce", b"l" * NONCE_BYTES),
        address=changes.get("address", ADDRESS),
    )


def shake(one: DialingEnd, other: ListeningEnd) -> bytes:
    """Pass the frames on; return the bytes after the proof, which the dialer sends with it."""
    challenge, rest = other.receive(one.begin())
    assert rest == b""
    proof, _ = one.receive(challenge)
    assert not other.is_done
    _, rest = other.receive(proof + b"requests")
    return rest


@pytest.mark.parametrize("who", [ALICE, SERVER, Principal("master", "m-1"), Principal("node", "3")], ids=str)
@pytest.mark.parametrize("wanted", ["", "server:", "server:one"])
def test_both_ends_know_each_other(who: Principal, wanted: str) -> None:
    """After the handshake each end has the other's identity, and the bytes behind the proof are not lost."""
    one, other = dialer(who, wanted=wanted), listener()
    assert shake(one, other) == b"requests"
    assert (one.peer, other.peer) == (SERVER, who)


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
def test_any_cut_of_the_stream_will_do(piece: int) -> None:
    """Frames arrive in pieces of any size."""
    one, other = dialer(), listener()

    def feed(end: DialingEnd | ListeningEnd, data: bytes) -> bytes:
        return b"".join(end.receive(data[at : at + piece])[0] for at in range(0, len(data), piece))

    feed(other, feed(one, feed(other, one.begin())))
    assert one.is_done
    assert other.is_done


def test_nobody_is_known_before_the_proof() -> None:
    """A hello alone proves nothing."""
    one, other = dialer(), listener()
    other.receive(one.begin())
    assert not other.is_done
    assert other.peer is NOBODY


CHEATS: dict[str, tuple[Callable[[], DialingEnd], Callable[[], ListeningEnd], str]] = {
    "wrong secret": (
        lambda: dialer(key=key(ALICE, ClusterSecrets("cluster-1", {1: "22" * 32}))),
        listener,
        "it has another secret",
    ),
    "key of another user": (lambda: dialer(ALICE, key=key(MALLORY)), listener, "it has another secret"),
    "another cluster": (lambda: dialer(cluster="cluster-2"), listener, "those of another cluster"),
    "another cluster's listener, same secret": (
        dialer,
        lambda: listener(cluster="cluster-2"),
        "those of another cluster",
    ),
    "secret that was rotated away": (lambda: dialer(number=7), listener, "which the cluster does not have"),
    "hello passed on to another address": (
        dialer,
        lambda: listener(address="127.0.0.1:21802"),
        "the connection arrived at 127.0.0.1:21802",
    ),
    "another server than wanted": (lambda: dialer(wanted="server:two"), listener, "expects 'server:two'"),
    "another kind than wanted": (lambda: dialer(wanted="master:"), listener, "expects 'master:'"),
    "user that answers": (dialer, lambda: listener(ALICE), "which is no daemon"),
    "name that is none": (lambda: dialer(Principal("user", "../x"), key=b"k" * 32), listener, "names no identity"),
    "kind that is none": (lambda: dialer(Principal("root", "x"), key=b"k" * 32), listener, "names no identity"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats(cheat: str) -> None:
    """Neither end finishes, and one of them says why."""
    make_dialer, make_listener, why = CHEATS[cheat]
    one, other = make_dialer(), make_listener()
    with pytest.raises(HandshakeError, match=why.replace("(", "\\(")):
        shake(one, other)
    assert not other.is_done


def recorded() -> tuple[bytes, bytes, bytes]:
    """Return the frames of a good handshake."""
    one, other = dialer(), listener()
    hello = one.begin()
    challenge, _ = other.receive(hello)
    proof, _ = one.receive(challenge)
    return hello, challenge, proof


def test_a_recorded_proof_is_worth_nothing_on_another_connection() -> None:
    """Replay at the listener: its nonce is new."""
    hello, _, proof = recorded()
    other = listener(nonce=b"m" * NONCE_BYTES)
    other.receive(hello)
    with pytest.raises(HandshakeError, match="the key of user:alice is wrong"):
        other.receive(proof)
    assert not other.is_done


def test_a_recorded_challenge_is_worth_nothing_on_another_connection() -> None:
    """Replay at the dialer: its nonce is new."""
    _, challenge, _ = recorded()
    one = dialer(nonce=b"e" * NONCE_BYTES)
    one.begin()
    with pytest.raises(HandshakeError, match="another secret"):
        one.receive(challenge)
    assert not one.is_done


def test_a_challenge_is_no_proof() -> None:
    """Reflection: the MAC of one end does not serve the other, even with equal nonces and identities."""
    hello, challenge, _ = recorded()
    mac = msgspec.msgpack.decode(challenge[len(GREETING) + 2 :])[4]
    body = msgspec.msgpack.encode([2, mac])
    other = listener()
    other.receive(hello)
    with pytest.raises(HandshakeError, match="is wrong"):
        other.receive(len(body).to_bytes(2, "big") + body)


def test_a_relay_between_two_servers_is_noticed() -> None:
    """Somebody listens at the address of a dead server and passes all frames on to a live one.

    The dialer's hello names the address that it is connected to, and the live server is another one.
    """
    live = listener(address="127.0.0.1:21802")
    with pytest.raises(HandshakeError, match="connection arrived at"):
        live.receive(dialer(address="127.0.0.1:21801").begin())


@pytest.mark.parametrize("field", ["cluster", "kind", "name", "nonce", "number", "address", "wanted"])
def test_every_field_of_the_hello_is_covered(field: str) -> None:
    """A hello that was changed on its way leads to no proof, whatever the change.

    The listener of this test accepts every hello: only the MAC can tell.
    """
    secrets = ClusterSecrets("cluster-1", {1: "11" * 32, 2: "11" * 32})
    one = dialer()
    hello = msgspec.msgpack.decode(one.begin()[len(GREETING) + 2 :])
    changes: dict[str, Any] = {
        "cluster": "cluster-2",
        "kind": "server",
        "name": "bob",
        "nonce": b"x" * NONCE_BYTES,
        "number": 2,
        "address": "10.0.0.1:1",
        "wanted": "server:one",
    }
    index = ["kind_tag", "cluster", "kind", "name", "number", "nonce", "address", "wanted"].index(field)
    hello[index] = changes[field]
    body = msgspec.msgpack.encode(hello)
    other = ListeningEnd(
        SERVER,
        hello[1],
        lambda _who, _number: key(ALICE, secrets),
        nonce=b"l" * NONCE_BYTES,
        address=hello[6],
    )
    challenge, _ = other.receive(GREETING + len(body).to_bytes(2, "big") + body)
    with pytest.raises(HandshakeError, match="another secret"):
        one.receive(challenge)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        b"RKRS\0\2",
        GREETING + (FRAME_MAX + 1).to_bytes(2, "big"),
        GREETING + b"\0\1\xc1",
        GREETING + b"\0\2\x91\x09",
        GREETING + b"\0\4\x92\x02\xc4\x00",
    ],
    ids=["another protocol", "another version", "oversized", "undecodable", "unknown frame", "proof without a hello"],
)
@pytest.mark.parametrize("end", [dialer, listener], ids=["dialer", "listener"])
def test_foreign_bytes_are_rejected(data: bytes, end: Callable[[], DialingEnd | ListeningEnd]) -> None:
    """Bytes that belong to no handshake end the connection."""
    with pytest.raises(HandshakeError):
        end().receive(data)


@pytest.mark.parametrize("length", [0, 5, 6, 20, 60])
def test_a_truncated_handshake_is_not_done(length: int) -> None:
    """A handshake that has received a part of its frames proves no identity, and waits for the rest."""
    hello, challenge, proof = recorded()
    other = listener()
    assert other.receive(hello[:length]) == (b"", b"")
    assert not other.is_done
    other = listener()
    other.receive(hello)
    other.receive(proof[:-1])
    assert not other.is_done
    one = dialer()
    one.begin()
    one.receive(challenge[:-1])
    assert not one.is_done


def test_a_short_nonce_is_rejected() -> None:
    """A peer cannot choose a nonce without unpredictable bytes."""
    body = msgspec.msgpack.encode([0, "cluster-1", "user", "alice", 1, b"", ADDRESS, ""])
    with pytest.raises(HandshakeError, match="names no identity"):
        listener().receive(GREETING + len(body).to_bytes(2, "big") + body)


def test_a_refusal_is_a_sentence_without_control_characters() -> None:
    """The dialer shows the listener's words, which nobody has proved."""
    one = dialer()
    one.begin()
    with pytest.raises(HandshakeError, match=r"^no\?\[2J way$"):
        one.receive(refusal("no\x1b[2J way"))


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [("", True), ("server:", True), ("server:one", True), ("server:two", False), ("master:", False)],
)
def test_what_a_dialer_may_want(wanted: str, holds: bool) -> None:
    """Nothing, a kind, or one identity."""
    assert satisfies(SERVER, wanted) is holds
