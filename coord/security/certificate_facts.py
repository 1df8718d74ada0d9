"""The contents of a certificate, for people and for the watch of its expiry. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography import x509

from coord.errors import ConfigError
from coord.security.principal import NOBODY
from coord.security.tls_channel import principal_in

#: A certificate with fewer days left makes the daemon that shows it degraded.
EXPIRY_DAYS_MIN: Final = 14


class CertificateFacts(msgspec.Struct, frozen=True):
    """One certificate. `serial` is hexadecimal; `principal` is "" for an authority and for foreign certificates."""

    subject: str
    principal: str
    names: list[str]
    issuer: str
    serial: str
    issued: datetime.datetime
    expires: datetime.datetime
    is_authority: bool

    def days_left(self, now: datetime.datetime) -> int:
        """Return the whole days until the certificate expires, negative for an expired one."""
        return (self.expires - now).days


def facts_of(pem: bytes) -> list[CertificateFacts]:
    """Return the certificates in a PEM text. Raise ConfigError if there is none."""
    try:
        return [_facts(one) for one in x509.load_pem_x509_certificates(pem)]
    except ValueError as error:
        raise ConfigError("no certificate in PEM") from error


def expiring(found: Iterable[tuple[str, datetime.datetime]], now: datetime.datetime) -> list[str]:
    """Return a sentence for each certificate, given as words and end, that has fewer than EXPIRY_DAYS_MIN days."""
    limit = now + datetime.timedelta(days=EXPIRY_DAYS_MIN)
    return [_sentence(what, end, now) for what, end in found if end < limit]


def _sentence(what: str, end: datetime.datetime, now: datetime.datetime) -> str:
    days = (end - now).days
    when = f"expires in {days} days, on" if end > now else "has expired on"
    return f"{what} {when} {end:%Y-%m-%d}: `rk certs issue` or `rk certs rotate` makes a new one"


def _facts(found: x509.Certificate) -> CertificateFacts:
    names: list[str] = []
    uris: list[str] = []
    try:
        others = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        uris = others.get_values_for_type(x509.UniformResourceIdentifier)
        names = [*others.get_values_for_type(x509.DNSName), *map(str, others.get_values_for_type(x509.IPAddress))]
    principals = [one for uri in uris if (one := principal_in(uri)) is not NOBODY]
    try:
        is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    return CertificateFacts(
        found.subject.rfc4514_string(),
        str(principals[0]) if principals else "",
        names,
        found.issuer.rfc4514_string(),
        f"{found.serial_number:x}",
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        is_authority,
    )
