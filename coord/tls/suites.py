"""Allowed versions and cipher suites, by the names that Java and zoo.cfg use.

Python's `ssl` module chooses among the suites of TLS 1.2 by OpenSSL's names, and cannot leave out single suites of
TLS 1.3. A choice that the module cannot keep raises ConfigError, because the operator would rely on it.
"""

from __future__ import annotations

import ssl
from typing import Final

from coord.errors import ConfigError

#: Java's names of the versions that are supported.
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: Versions that are never used here. Allowing them has no effect.
_OLD_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
#: Suites of TLS 1.3 that OpenSSL offers.
_SUITES_OF_1_3: Final = frozenset(("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"))

#: Suites of TLS 1.2 with forward secrecy and authenticated encryption: standard name -> OpenSSL's name.
_SUITES_OF_1_2: Final = {
    f"TLS_{exchange}_WITH_{standard}": f"{exchange.replace('_', '-')}-{cipher}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for standard, cipher in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}


def parse_versions(text: str) -> tuple[str, ...]:
    """Parse `TLSv1.2,TLSv1.3` into the supported versions among them, ascending. Raise ConfigError."""
    named = _names(text)
    for name in named:
        if name not in VERSIONS and name not in _OLD_VERSIONS:
            raise ConfigError(f"{name!r} is not a version of TLS; use {' or '.join(VERSIONS)}")
    found = tuple(version for version in VERSIONS if version in named)
    if not found:
        raise ConfigError(f"allows none of the versions that are supported: {' and '.join(VERSIONS)}")
    return found


def parse_suites(text: str) -> tuple[str, ...]:
    """Parse a list of cipher suites by their standard names, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256. Raise
    ConfigError if OpenSSL lacks one of them."""
    named = _names(text)
    for name in named:
        if name not in _SUITES_OF_1_3 and name not in _SUITES_OF_1_2:
            raise ConfigError(f"{name!r} is not a cipher suite that OpenSSL offers here")
    if not named:
        raise ConfigError("names no cipher suite")
    return named


def restrict(context: ssl.SSLContext, versions: tuple[str, ...], suites: tuple[str, ...]) -> None:
    """Allow only these versions and suites in a context; () leaves the defaults. Raise ConfigError."""
    allowed = list(versions or VERSIONS)
    if suites:
        newer = _SUITES_OF_1_3.intersection(suites)
        older = [_SUITES_OF_1_2[name] for name in suites if name not in _SUITES_OF_1_3]
        if not newer and "TLSv1.3" in allowed:
            allowed.remove("TLSv1.3")
        if not older and "TLSv1.2" in allowed:
            allowed.remove("TLSv1.2")
        if not allowed:
            raise ConfigError("no allowed cipher suite belongs to an allowed version of TLS")
        if "TLSv1.3" in allowed and newer != _SUITES_OF_1_3:
            left_out = ", ".join(sorted(_SUITES_OF_1_3 - newer))
            raise ConfigError(
                f"{left_out} cannot be left out of TLS 1.3: name all three of its cipher suites, or allow TLSv1.2 alone"
            )
        if older:
            context.set_ciphers(":".join(older))
    context.minimum_version, context.maximum_version = VERSIONS[allowed[0]], VERSIONS[allowed[-1]]


def _names(text: str) -> tuple[str, ...]:
    # ZooKeeper separates by commas; its own examples of Java properties by colons.
    return tuple(dict.fromkeys(part.strip() for part in text.replace(":", ",").split(",") if part.strip()))
