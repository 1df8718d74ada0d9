"""A minimal parser of ASN.1 DER: the subject name of a certificate, and the private key in a Java key store.

The TLS library has verified a certificate before its subject is read here.
"""

from __future__ import annotations

import re
from typing import Final

_OID: Final = 0x06
_OCTETS: Final = 0x04
_VERSION: Final = 0xA0
#: Attribute names of RFC 2253. Other attributes are printed as their number, as in Java.
_NAMES: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
#: UTF8String, PrintableString, TeletexString, IA5String, UniversalString, BMPString
_CHARSETS: Final = {
    0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be",
}  # fmt: skip
#: Sun's password protection of a key (JKS).
_SUN_PROTECTION: Final = "1.3.6.1.4.1.42.2.17.1.1"


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate in RFC 2253 form, last part first: `CN=alice,O=Example`.

    Raise ValueError if the bytes are not a certificate.
    """
    body = _children(_children(certificate)[0][1])[0][1]
    fields = _children(body)
    # version (optional), serial number, algorithm, issuer, validity, subject
    at = 5 if fields[0][0] == _VERSION else 4
    if len(fields) <= at:
        raise ValueError("the certificate has no subject")
    parts = [
        "+".join(_attribute(attribute) for _, attribute, _ in _children(relative))
        for _, relative, _ in _children(fields[at][1])
    ]
    return ",".join(reversed(parts))


def protected_key(data: bytes) -> bytes:
    """Return the protected form of a private key in a JKS file: salt, encrypted key, checksum. Raise ValueError."""
    parts = _children(_children(data)[0][1])
    algorithm = _children(parts[0][1])
    if len(parts) < 2 or algorithm[0][0] != _OID or oid(algorithm[0][1]) != _SUN_PROTECTION or parts[1][0] != _OCTETS:
        raise ValueError("the key is not protected by JKS's algorithm")
    return parts[1][1]


def oid(data: bytes) -> str:
    """Return an object identifier in dotted decimal form."""
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _attribute(data: bytes) -> str:
    parts = _children(data)
    if len(parts) != 2 or parts[0][0] != _OID:
        raise ValueError("malformed attribute in a name")
    number = oid(parts[0][1])
    tag, value, whole = parts[1]
    if number not in _NAMES or tag not in _CHARSETS:
        return f"{number}=#{whole.hex()}"
    return f"{_NAMES[number]}={_escaped(value.decode(_CHARSETS[tag]))}"


def _escaped(text: str) -> str:
    """Escape as RFC 2253 §2.4 and, as Java does, also `=` and every leading or trailing blank."""
    made = "".join("\\" + letter if letter in ',=+"\\<>;' else letter for letter in text).replace("\0", "\\00")
    if text.startswith("#"):
        made = "\\" + made
    return re.sub(r"^[ \r]+|[ \r]+\Z", lambda blanks: re.sub(".", r"\\\g<0>", blanks[0]), made)


def _children(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (tag, content, whole) of each element in `data`. Raise ValueError."""
    found: list[tuple[int, bytes, bytes]] = []
    at = 0
    while at < len(data):
        start = at
        if at + 2 > len(data):
            raise ValueError("truncated element")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                raise ValueError("element without a definite length")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("element longer than its container")
        found.append((tag, data[at : at + length], data[start : at + length]))
        at += length
    if not found:
        raise ValueError("an element is missing")
    return found
