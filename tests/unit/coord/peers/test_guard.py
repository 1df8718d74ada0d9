"""The peers' secret: both ends prove it, or no other frame is accepted."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.guard import NO_PROOF, NO_SECRET, NONCE_BYTES, Handshake, PeerGuard, PeerNames
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


NAMES = PeerNames("c", "1", "2")


def named(names: PeerNames, letter: bytes = b"d") -> Handshake:
    """Return one end that has names."""
    return Handshake(SECRET, letter * NONCE_BYTES, names)


def listening(name: str = "2", cluster: str = "c") -> Handshake:
    """Return the end of a peer with this name."""
    return named(PeerNames(cluster, "", name), b"l")


def test_the_proof_names_both_peers() -> None:
    """The listener knows who dials, and rejects the hello of anybody else."""
    dialer, listener = named(NAMES), listening()
    assert listener.counter(*parts(dialer.prove(*parts(listener.counter(*parts(dialer.challenge())))))) == b""
    assert listener.is_done
    assert listener.objection("1") == ""
    assert listener.objection("3") == "proved to be peer 1, not 3"


@pytest.mark.parametrize(
    ("listener", "why"),
    [(listening("3"), "looks for peer '2', this is '3'"), (listening(cluster="d"), "belongs to another cluster")],
    ids=["another peer", "another cluster"],
)
def test_a_challenge_cannot_be_passed_on(listener: Handshake, why: str) -> None:
    """Somebody listens at the address of a dead peer and relays to a live one: nothing is proved to either end."""
    dialer = named(NAMES)
    with pytest.raises(RemoteProtocolError, match=why):
        listener.counter(*parts(dialer.challenge()))
    assert not dialer.is_done


@pytest.mark.parametrize("names", [PeerNames("c", "3", "2"), PeerNames("d", "1", "2"), PeerNames(), None], ids=str)
def test_names_changed_on_the_way_are_noticed(names: PeerNames | None) -> None:
    """Names, or their absence, are covered by both MACs."""
    dialer, listener = named(NAMES), named(PeerNames("", "", "2"), b"l")
    sent = b"" if names is None else parts(named(names).challenge())[1][NONCE_BYTES:]
    dialer.challenge()
    counter = listener.counter(framing.CHALLENGE, b"d" * NONCE_BYTES + sent)
    with pytest.raises(RemoteProtocolError, match="another secret"):
        dialer.prove(*parts(counter))


def test_whoever_only_asks_cannot_say_hello() -> None:
    """A node that joins does not know the members' names. Its proof is good for a question."""
    dialer, listener = named(PeerNames()), listening()
    assert listener.counter(*parts(dialer.prove(*parts(listener.counter(*parts(dialer.challenge())))))) == b""
    assert listener.objection("1") == "proved to be peer (nobody), not 1"


def test_an_earlier_build_is_answered_as_before() -> None:
    """It sends no names and expects the MACs of its time; a relay of its frames is possible until it is upgraded."""
    listener, first = listening(), b"d" * NONCE_BYTES
    _, counter = parts(listener.counter(framing.CHALLENGE, first))
    nonces = first + b"l" * NONCE_BYTES
    assert counter[NONCE_BYTES:] == hmac.digest(SECRET, b"listener" + nonces, "sha256")
    assert listener.counter(framing.PROOF, hmac.digest(SECRET, b"dialler" + nonces, "sha256")) == b""
    assert listener.is_done
    assert listener.objection("1") == ""


@pytest.mark.parametrize("names", [b"\xc1", b"\x91\x01", b"\x80", b"names"])
def test_names_that_are_none_are_rejected(names: bytes) -> None:
    """A listener reads them before anything is proved."""
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        listening().counter(framing.CHALLENGE, bytes(NONCE_BYTES) + names)


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
    """Before the proof, the guard accepts neither a hello nor a question nor a Raft message."""
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
    assert guard.accepting() is None
    assert guard.dialing() is None
    assert guard.engine(is_server=True) is None
    assert not PeerGuard(bytes, secret=SECRET).is_open()


def test_a_link_without_a_proof_stands_while_the_cluster_is_being_secured() -> None:
    """A peer without the secret is dialed without a proof, once after each of its rejections."""
    is_securing = [True]
    guard = PeerGuard(bytes, secret=SECRET, is_securing=lambda: is_securing[0])
    assert guard.dialing(NAMES) is not None
    guard.refused(NAMES, "is cut off")
    assert guard.dialing(NAMES) is not None
    guard.refused(NAMES, NO_SECRET)
    assert guard.dialing(NAMES) is None
    assert guard.dialing(NAMES) is not None
    assert guard.unproven(None) == ""
    is_securing[0] = False
    guard.refused(NAMES, NO_SECRET)
    assert guard.dialing(NAMES) is not None
    assert guard.unproven(None) == NO_PROOF
    assert PeerGuard(bytes).unproven(None) == ""
