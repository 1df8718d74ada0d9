"""The peers' secret: both ends prove it, or no other frame is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.guard import NONCE_BYTES, Handshake, PeerGuard
from coord.server.peers import codec

SECRET = b"0123456789abcdef"


def made(secret: bytes, letter: bytes) -> Handshake:
    """Return one end."""
    return Handshake(secret, letter * NONCE_BYTES)


def parts(frame: bytes) -> tuple[int, bytes]:
    """Return (kind, body)."""
    ((kind, block, at, end),) = framing.PeerFrames().feed(frame)
    return kind, block[at:end]


def test_both_ends_prove_it() -> None:
    """The proof takes three frames; each is short enough for a stranger."""
    dialler, listener = made(SECRET, b"d"), made(SECRET, b"l")
    counter = listener.counter(*parts(dialler.challenge()))
    assert not listener.is_done
    proof = dialler.prove(*parts(counter))
    assert dialler.is_done
    assert listener.counter(*parts(proof)) == b""
    assert listener.is_done
    assert all(SECRET not in frame for frame in (dialler.challenge(), counter, proof))


def test_another_secret_is_refused_by_either_end() -> None:
    """Neither end completes."""
    dialler, listener = made(SECRET, b"d"), made(b"another secret...", b"l")
    counter = listener.counter(*parts(dialler.challenge()))
    with pytest.raises(RemoteProtocolError, match="another secret"):
        dialler.prove(*parts(counter))
    with pytest.raises(RemoteProtocolError, match="another secret"):
        listener.counter(framing.PROOF, bytes(32))
    assert not dialler.is_done
    assert not listener.is_done


def test_proofs_of_another_connection_are_refused() -> None:
    """A recorded proof is invalid under new nonces, and a listener's proof is invalid from a dialer."""
    dialler, listener = made(SECRET, b"d"), made(SECRET, b"l")
    proof = dialler.prove(*parts(listener.counter(*parts(dialler.challenge()))))
    later = made(SECRET, b"m")
    counter = later.counter(framing.CHALLENGE, b"d" * NONCE_BYTES)
    with pytest.raises(RemoteProtocolError):
        later.counter(*parts(proof))
    mirrored = made(SECRET, b"m")
    mirrored.counter(framing.CHALLENGE, b"d" * NONCE_BYTES)
    with pytest.raises(RemoteProtocolError):
        mirrored.counter(framing.PROOF, parts(counter)[1][NONCE_BYTES:])
    assert not later.is_done
    assert not mirrored.is_done


@pytest.mark.parametrize("kind", [framing.HELLO, codec.WHO, codec.RAFT, framing.PROOF, framing.COUNTER])
def test_nothing_else_is_heard_before(kind: int) -> None:
    """Neither a hello nor a question nor a Raft message."""
    with pytest.raises(RemoteProtocolError):
        made(SECRET, b"l").counter(kind, bytes(32))


@given(st.integers(0, 255), st.binary(max_size=100))
def test_any_frame_is_a_proof_or_refused(kind: int, body: bytes) -> None:
    """Random bytes are never a valid proof."""
    listener = made(SECRET, b"l")
    listener.counter(framing.CHALLENGE, b"d" * NONCE_BYTES)
    with pytest.raises(RemoteProtocolError):
        listener.counter(kind, body)
    with pytest.raises(RemoteProtocolError):
        made(SECRET, b"d").prove(kind, body)


def test_guard_without_settings_is_open() -> None:
    """Then no proof is required, and the service logs a warning."""
    guard = PeerGuard(bytes)
    assert guard.is_open()
    assert guard.handshake() is None
    assert guard.engine(is_server=True) is None
    assert not PeerGuard(bytes, secret=SECRET).is_open()
