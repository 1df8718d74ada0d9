"""Private keys and certificates from PEM files or Java key stores (JKS), which ZooKeeper's configurations name.

Layout of a JKS file; numbers are big-endian, a text is length:u16 and bytes:

    magic FEEDFEED  version:u32  count:u32  entry*  SHA-1 of (password as UTF-16, "Mighty Aphrodite", all before it)
    entry       := 1 alias date:u64 key:bytes32 count:u32 certificate*      a private key and its chain
             | 2 alias date:u64 certificate                             a trusted certificate
    certificate := type:text bytes32

Parsing JKS takes few lines; a package for it would add a second cryptography library. PKCS #12, the other kind of Java
key store, uses encryption that the standard library lacks; `openssl pkcs12 -nodes` converts such a file to PEM.
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


class KeyStore:
    """Contents of a key store as PEM texts. For a PEM file, both texts are the whole file."""

    def __init__(self) -> None:
        #: Private key with its certificate chain, for our own identity.
        self.own = ""
        #: Trusted certificates.
        self.trusted = ""


def read_store(path: Path, password: str) -> KeyStore:
    """Read a key store of either kind. Raise ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return parse_store(data, password)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_store(data: bytes, password: str) -> KeyStore:
    """Parse a key store of either kind. Raise ValueError."""
    found = KeyStore()
    if b"-----BEGIN " in data:
        found.own = found.trusted = data.decode("latin-1")
        return found
    if not data.startswith(_MAGIC):
        raise ValueError("neither PEM nor JKS (convert PKCS #12 to PEM with `openssl pkcs12 -nodes`)")
    try:
        _read_jks(data, password, found)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return found


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
