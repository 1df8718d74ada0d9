"""The code that authenticates clients and peers, fed with any bytes: SASL, the peers' proof, certificates, key stores,
settings.

sasl       a client's tokens to the server's end, a server's to the client's end
guard      a stranger's frames to a listener that asks for a proof, and to a dialler
der        the subject of a certificate, and a protected key
keystore   a key store: damaged, and with the checksum that its content needs
jaas       a file of users
zoocfg     a ZooKeeper configuration file
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

from coord.errors import ConfigError, RemoteProtocolError
from coord.peers.framing import CHALLENGE, COUNTER, PROOF
from coord.peers.guard import NONCE_BYTES, Handshake
from coord.server.config.secrets import parse_jaas
from coord.server.config.zoo_cfg import parse_zoo_cfg
from coord.tls.der import protected_key, subject_of
from coord.tls.keystore import parse_store
from coord.wire.sasl import SaslClient, SaslError, SaslServer, parse_directives

#: A path that does not exist: files that a mutated setting names are not found.
_NOWHERE = Path("/nonexistent/zoo.cfg")
_PASSWORD = "changeit"
_NONCE = b"n" * NONCE_BYTES
_KINDS = (CHALLENGE, COUNTER, PROOF, 1)


def fuzz_sasl(data: bytes) -> None:
    """No client without the secret is accepted, and no exception but SaslError is raised."""
    server = SaslServer({"bob": "secret"}.get, b"nonce")
    server.evaluate(b"")
    _refused(lambda: server.evaluate(data))
    assert not server.is_complete, "let in without the secret"
    client = SaslClient("bob", "secret", b"cnonce")
    client.evaluate(None)
    _refused(lambda: client.evaluate(data))
    _refused(lambda: client.evaluate(data[::-1]))
    assert not client.is_complete, "took the server's word without a proof"
    _refused(lambda: parse_directives(data, 4096))


def _refused(step: Callable[[], object]) -> None:
    with contextlib.suppress(SaslError):
        step()


def fuzz_guard(data: bytes) -> None:
    """Frames of any kind prove nothing, to either end."""
    ends = (Handshake(b"secret of sixteen", _NONCE), Handshake(b"secret of sixteen", _NONCE[::-1]))
    at = 0
    while at + 2 <= len(data):
        kind, length = _KINDS[data[at] % len(_KINDS)], data[at + 1]
        body = data[at + 2 : at + 2 + length]
        at += 2 + length
        for step in (ends[0].counter, ends[1].prove):
            try:
                step(kind, body)
            except RemoteProtocolError:
                continue
    assert not ends[0].is_done, "a dialler without the secret is in"
    assert not ends[1].is_done, "a listener without the secret is trusted"


def fuzz_der(data: bytes) -> None:
    """The bytes are decoded, or rejected with ValueError."""
    for read in (subject_of, protected_key):
        try:
            read(data)
        except ValueError:
            continue


def fuzz_keystore(data: bytes) -> None:
    """The bytes are decoded, or rejected with ValueError, also with a valid checksum."""
    for content in (data, _sealed(data)):
        try:
            parse_store(content, _PASSWORD)
        except ValueError:
            continue


def _sealed(body: bytes) -> bytes:
    key = _PASSWORD.encode("utf-16-be")
    return body + hashlib.sha1(key + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()


def fuzz_jaas(data: bytes) -> None:
    """The file is read, or rejected with ConfigError."""
    try:
        users = parse_jaas(_NOWHERE, data.decode("utf-8", "replace"))
    except ConfigError:
        return
    assert all(isinstance(secret, str) for secret in users.values())


def fuzz_zoocfg(data: bytes) -> None:
    """The settings are consistent, or one line names the fault."""
    with contextlib.suppress(ConfigError):
        parse_zoo_cfg(_NOWHERE, data.decode("utf-8", "replace"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "sasl": fuzz_sasl,
    "guard": fuzz_guard,
    "der": fuzz_der,
    "keystore": fuzz_keystore,
    "jaas": fuzz_jaas,
    "zoocfg": fuzz_zoocfg,
}

_DIRECTIVES = (
    b'charset=utf-8,username="bob",realm="zk-sasl-md5",nonce="nonce",nc=00000001,cnonce="c",'
    b'digest-uri="zookeeper/zk-sasl-md5",qop=auth,response=0123456789abcdef0123456789abcdef'
)
_CHALLENGE = b'realm="zk-sasl-md5",nonce="x",charset=utf-8,algorithm=md5-sess,qop="auth"'
_JAAS = b"""// users
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_a="b\\"c" user_d=e; };
/* others */ Client { x.Y required; };
"""
_ZOO_CFG = b"""# sample
tickTime=2000
initLimit=10
syncLimit=5
dataDir=/nonexistent/data
clientPort=2181
maxClientCnxns=60
4lw.commands.whitelist=srvr,*
admin.serverPort=8080
znode.container.checkIntervalMs=1000
zookeeper.enforceQuota=true
secureClientPort=2182
ssl.keyStore.location=server.jks
ssl.trustStore.passwordPath=secret
sslQuorum=true
jaasConfig=jaas.conf
peerSecretFile=secret
minSessionTimeout=4000
jute.maxbuffer=4096
"""
_SERVERS = b"server.1=a:1:2:observer;[::1]:3\nserver.2=[::1]:2888:3888:participant;0.0.0.0:2182\n"


def seeds(name: str) -> list[bytes]:
    """Return valid input, or input as close to valid as possible without a secret."""
    name_part = bytes.fromhex("310c300a06035504030c03626f62")
    fields = bytes.fromhex("a003020102020101300030003000") + _der(0x30, name_part)
    certificate = _der(0x30, _der(0x30, fields))
    private = _der(0x30, _der(0x30, bytes.fromhex("060a2b060104012a02110101") + b"\5\0") + _der(4, bytes(60)))
    entry = struct.pack(">IH", 2, 1) + b"a" + bytes(8) + struct.pack(">H", 5) + b"X.509" + struct.pack(">I", 3) + b"abc"
    key = struct.pack(">IH", 1, 1) + b"k" + bytes(8) + struct.pack(">I", len(private)) + private + struct.pack(">I", 0)
    jks = b"\xfe\xed\xfe\xed" + struct.pack(">II", 2, 2) + entry + key
    frames = bytes([0, NONCE_BYTES]) + bytes(NONCE_BYTES) + bytes([2, 32]) + bytes(32)
    return {
        "sasl": [_DIRECTIVES, _CHALLENGE, b"rspauth=" + b"0" * 32],
        "guard": [frames, bytes([1, 64]) + bytes(64), frames * 2],
        "der": [certificate, private],
        "keystore": [jks, _sealed(jks), b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"],
        "jaas": [_JAAS],
        "zoocfg": [_ZOO_CFG, _ZOO_CFG + _SERVERS, b"dataDir=d\nclientPort=1\n" + _SERVERS],
    }[name]


def _der(tag: int, content: bytes) -> bytes:
    assert len(content) < 128, len(content)
    return bytes([tag, len(content)]) + content
