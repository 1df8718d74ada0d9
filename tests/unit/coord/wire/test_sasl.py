"""DIGEST-MD5: the examples of RFC 2831, both ends against each other, and invalid exchanges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.wire.sasl import SaslClient, SaslError, SaslServer, parse_directives

HOST = b"elwood.innosoft.com"
#: RFC 2831 §4: service, nonce, cnonce, response, proof of the server. User chris, password secret.
EXAMPLES = [
    (b"imap", b"OA6MG9tEQGm2hh", b"OA6MHXh6VqTrRk",
     b"d388dad90d4bbd760a152321f2143af7", b"ea40f60335c427b5527b84dbabcdfffd"),
    (b"acap", b"OA9BSXrbuRhWay", b"OA9BSuZWMSpW8m",
     b"6084c6db3fede7352c551284490fd0fc", b"2f0b3d7c3c2e486600ef710726aa2eae"),
]  # fmt: skip


@pytest.mark.parametrize(("service", "nonce", "cnonce", "response", "proof"), EXAMPLES)
def test_examples_of_the_rfc(service: bytes, nonce: bytes, cnonce: bytes, response: bytes, proof: bytes) -> None:
    """The server accepts the response printed there and returns the printed proof; so does the client."""
    server = SaslServer({"chris": "secret"}.get, nonce, service=service, realm=HOST)
    challenge = server.evaluate(b"")
    assert parse_directives(challenge, 2048) == {
        "realm": HOST, "nonce": nonce, "qop": b"auth", "algorithm": b"md5-sess", "charset": b"utf-8",
    }  # fmt: skip
    printed = (
        b'charset=utf-8,username="chris",realm="%s",nonce="%s",nc=00000001,cnonce="%s",digest-uri="%s/%s",response=%s,'
        b"qop=auth" % (HOST, nonce, cnonce, service, HOST, response)
    )
    assert server.evaluate(printed) == b"rspauth=" + proof
    assert (server.is_complete, server.user) == (True, "chris")
    client = SaslClient("chris", "secret", cnonce, service=service, host=HOST)
    assert client.evaluate(None) == b""
    ours = parse_directives(client.evaluate(challenge), 4096)
    assert ours == parse_directives(printed, 4096)
    assert client.evaluate(b"rspauth=" + proof) == b""
    assert client.is_complete


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(NAMES, NAMES)
def test_both_ends_agree_whatever_the_name_and_secret(user: str, secret: str) -> None:
    """Quotes, backslashes, commas, letters inside and outside of ISO 8859-1."""
    server, client = SaslServer({user: secret}.get, b"n"), SaslClient(user, secret, b"c")
    client.evaluate(server.evaluate(client.evaluate(server.evaluate(client.evaluate(None)))))
    assert client.is_complete
    assert server.is_complete
    assert server.user == user


GOOD = {
    "charset": b"utf-8", "username": b'"bob"', "realm": b'"zk-sasl-md5"', "nonce": b'"N"', "nc": b"00000001",
    "cnonce": b'"C"', "digest-uri": b'"zookeeper/zk-sasl-md5"', "qop": b"auth",
}  # fmt: skip


def answer(changes: dict[str, bytes | None], user: str = "bob", secret: str = "s") -> bytes:
    """Return a right response to nonce N, with changes."""
    client = SaslClient(user, secret, b"C")
    client.evaluate(None)
    right = client.evaluate(b'realm="zk-sasl-md5",nonce="N",charset=utf-8,algorithm=md5-sess')
    response = parse_directives(right, 4096)["response"]
    parts = {**GOOD, "username": b'"%s"' % user.encode(), "response": response, **changes}
    return b",".join(name.encode() + b"=" + value for name, value in parts.items() if value is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {"response": b"0" * 32}, {"response": None}, {"response": b""}, {"nonce": b'"M"'}, {"nonce": None},
        {"nc": b"00000002"}, {"nc": None}, {"cnonce": b'""'}, {"cnonce": None}, {"realm": b'"other"'}, {"realm": None},
        {"digest-uri": b'"imap/zk-sasl-md5"'}, {"digest-uri": None}, {"qop": b"auth-int"}, {"qop": b"auth-conf"},
        {"username": None}, {"username": b'""'}, {"username": b'"\xff"'}, {"charset": b"utf-7"},
        {"authzid": b'"alice"'},
    ],
)  # fmt: skip
def test_wrong_responses_are_refused(changes: dict[str, bytes | None]) -> None:
    """Each is rejected by itself, and the exchange is not complete."""
    server = SaslServer({"bob": "s", "alice": "t"}.get, b"N")
    server.evaluate(b"")
    with pytest.raises(SaslError):
        server.evaluate(answer(changes))
    assert not server.is_complete


def test_right_response_is_taken() -> None:
    """The unchanged response is right, so each of the others was rejected for its change. The name may stand for
    itself."""
    for changes in ({}, {"qop": None}):
        server = SaslServer({"bob": "s"}.get, b"N")
        server.evaluate(b"")
        assert server.evaluate(answer(dict(changes))).startswith(b"rspauth=")


def test_unknown_users_and_empty_secrets_are_refused() -> None:
    """An unknown user is not a user with an empty secret."""
    server = SaslServer({"alice": "t"}.get, b"N")
    server.evaluate(b"")
    with pytest.raises(SaslError, match="unknown user or wrong password for 'bob'"):
        server.evaluate(answer({}, "bob", ""))


def test_order_of_tokens() -> None:
    """A response before the challenge, or after the end, is rejected."""
    with pytest.raises(SaslError):
        SaslServer({"bob": "s"}.get, b"N").evaluate(answer({}))
    server = SaslServer({"bob": "s"}.get, b"N")
    server.evaluate(b"")
    server.evaluate(answer({}))
    with pytest.raises(SaslError):
        server.evaluate(answer({}))


@pytest.mark.parametrize(
    "challenge",
    [b"", b'nonce="x"', b"algorithm=md5-sess", b'nonce="x",algorithm=md5-sess,qop="auth-conf"', b'nonce="x",nonce="y"'],
)
def test_client_refuses_a_challenge_it_cannot_answer(challenge: bytes) -> None:
    """In this case the client does not send its name."""
    client = SaslClient("bob", "s", b"C")
    client.evaluate(None)
    with pytest.raises(SaslError):
        client.evaluate(challenge)


def test_client_refuses_a_server_without_the_secret() -> None:
    """The proof is compared, and must exist."""
    for proof in (b"rspauth=" + b"0" * 32, b"", b"rspauth="):
        client = SaslClient("bob", "s", b"C")
        client.evaluate(None)
        client.evaluate(b'realm="r",nonce="N",charset=utf-8,algorithm=md5-sess')
        with pytest.raises(SaslError):
            client.evaluate(proof)
        assert not client.is_complete


def test_secret_is_in_no_message() -> None:
    """Neither in sent messages nor in errors."""
    server = SaslServer({"bob": "hunter2"}.get, b"N")
    server.evaluate(b"")
    with pytest.raises(SaslError) as caught:
        server.evaluate(answer({}, secret="hunter3"))
    assert "hunter" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_directives_or_refused(data: bytes) -> None:
    """For any bytes of a client."""
    server = SaslServer({"bob": "s"}.get, b"N")
    server.evaluate(b"")
    with pytest.raises(SaslError):
        server.evaluate(data)


def test_directives() -> None:
    """Quoting, space, empty elements, and the bound on the size."""
    assert parse_directives(b' a = 1 ,, B="x\\"y\\\\" ', 100) == {"a": b"1", "b": b'x"y\\'}
    for bad in (b"a", b"=1", b'a="x', b"a=1 b=2", b"a=1,a=2", b'a="x"y', b'a="x\\'):
        with pytest.raises(SaslError):
            parse_directives(bad, 100)
    with pytest.raises(SaslError, match="11 bytes"):
        parse_directives(b"a=1,,,,,,,,", 10)
