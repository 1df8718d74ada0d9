"""Private keys and certificates from PEM files or Java key stores, which ZooKeeper's configurations name.

The package `cryptography` reads PKCS #12, which keytool writes by default. JKS is read here, because the only package
for the format, pyjks, has had no release since 2020.

Layout of a JKS file; numbers are big-endian, a text is length:u16 and bytes:

    magic FEEDFEED  version:u32  count:u32  entry*  SHA-1 of (password as UTF-16, "Mighty Aphrodite", all before it)
    entry       := 1 alias date:u64 key:bytes32 count:u32 certificate*      a private key and its chain
             | 2 alias date:u64 certificate                             a trusted certificate
    certificate := type:text bytes32
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from pathlib import Path
from typing import Final

from coord.errors import ConfigError
from coord.tls.der import protected_key

_MAGIC: Final = b"\xfe\xed\xfe\xed"
_WHITENER: Final = b"Mighty Aphrodite"
_HASH_BYTES: Final = 20
_VERSIONS: Final = (1, 2)
#: First byte of PKCS #12: an ASN.1 sequence.
_SEQUENCE: Final = b"\x30"


class KeyStore:
    """Contents of a key store as PEM texts. For a PEM file, both texts are the whole file."""

    def __init__(self) -> None:
        #: Private key with its certificate chain, for our own identity.
        self.own = ""
        #: Trusted certificates.
        self.trusted = ""


def read_store(path: Path, password: str) -> KeyStore:
    """Read a key store of any kind. Raise ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return parse_store(data, password)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_store(data: bytes, password: str) -> KeyStore:
    """Parse a key store of any kind. Raise ValueError."""
    found = KeyStore()
    if b"-----BEGIN " in data:
        found.own = found.trusted = data.decode("latin-1")
        return found
    if data.startswith(_SEQUENCE):
        _read_pkcs12(data, password, found)
        return found
    if not data.startswith(_MAGIC):
        raise ValueError("neither PEM nor PKCS #12 nor JKS")
    try:
        _read_jks(data, password, found)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return found


def _read_pkcs12(data: bytes, password: str, found: KeyStore) -> None:
    """Read a private key with its chain, and the certificates that belong to no chain, which are the trusted ones."""
    from cryptography import x509  # most nodes have PEM files
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    def pem(certificate: x509.Certificate) -> str:
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError as error:
        raise ValueError("wrong password, or damaged file") from error
    others = [one.certificate for one in store.additional_certs]
    if store.key is None or store.cert is None:
        found.trusted = "".join(map(pem, others if store.cert is None else [store.cert.certificate, *others]))
        return
    chain = [store.cert.certificate]
    # The file has the certificates in any order; TLS sends them from the own one upwards.
    while chain[-1].issuer != chain[-1].subject:
        above = next((one for one in others if one.subject == chain[-1].issuer and one not in chain), None)
        if above is None:
            break
        chain.append(above)
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    found.own = key.decode() + "".join(map(pem, chain))
    found.trusted = "".join(pem(one) for one in others if one not in chain)


def _read_jks(data: bytes, password: str, found: KeyStore) -> None:
    key = password.encode("utf-16-be")
    body, checksum = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if not hmac.compare_digest(hashlib.sha1(key + _WHITENER + body, usedforsecurity=False).digest(), checksum):
        raise ValueError("wrong password, or damaged file")
    version, count = struct.unpack_from(">II", body, 4)
    if version not in _VERSIONS:
        raise ValueError(f"JKS version {version} is not supported")
    reader = _EntryReader(body, 12, version)
    for _ in range(count):
        tag = reader.number(4)
        reader.piece(2)
        reader.number(8)
        if tag == 1:
            private = _recover(protected_key(reader.piece(4)), key)
            chain = [reader.certificate() for _ in range(reader.number(4))]
            if not found.own:
                found.own = _pem("PRIVATE KEY", private) + "".join(chain)
        elif tag == 2:
            found.trusted += reader.certificate()
        else:
            raise ValueError(f"unknown kind of entry {tag}")


class _EntryReader:
    def __init__(self, data: bytes, at: int, version: int) -> None:
        self._data = data
        self._at = at
        self._version = version

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def piece(self, size: int) -> bytes:
        """Return bytes preceded by their length, which takes `size` bytes."""
        return self._take(self.number(size))

    def certificate(self) -> str:
        if self._version > 1:
            self.piece(2)
        return _pem("CERTIFICATE", self.piece(4))

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise ValueError("truncated inside an entry")
        self._at += size
        return self._data[self._at - size : self._at]


def _recover(protected: bytes, password: bytes) -> bytes:
    """Decrypt a key under Sun's protection: XOR with a chain of hashes of password and salt."""
    salt, secret, check = protected[:_HASH_BYTES], protected[_HASH_BYTES:-_HASH_BYTES], protected[-_HASH_BYTES:]
    stream = b""
    link = salt
    while len(stream) < len(secret):
        link = hashlib.sha1(password + link, usedforsecurity=False).digest()
        stream += link
    plain = bytes(a ^ b for a, b in zip(secret, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(password + plain, usedforsecurity=False).digest(), check):
        raise ValueError("the password of the key differs from the password of the store")
    return plain


def _pem(kind: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"
