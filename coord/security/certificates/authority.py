"""The certificate authority of one cluster, and certificates that name a principal and its hosts.

A certificate has the principal as URI among its alternative names, `regionkeeper://CLUSTER/server/store-1`, and as
common name for people. Certificates of daemons also name hosts, which callers check, and serve both ends of a
connection; a user's certificate cannot be that of a daemon.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coord.errors import ConfigError
from coord.security.principal import Principal

#: Scheme of the URI that names a principal; see `principal_in`.
SCHEME: Final = "regionkeeper://"
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
#: A certificate is valid a little before its making: clocks differ.
_BEFORE: Final = datetime.timedelta(minutes=5)


class Pair(NamedTuple):
    """Certificate and key in PEM."""

    certificate: bytes
    key: bytes


def make_authority(cluster: str, now: datetime.datetime, days: int = AUTHORITY_DAYS) -> Pair:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"regionkeeper {cluster}")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def issue_certificate(
    authority: Pair,
    cluster: str,
    principal: Principal,
    hosts: Sequence[str],
    now: datetime.datetime,
    days: int = CERTIFICATE_DAYS,
) -> Pair:
    """Return a certificate of `principal`. Raise ConfigError for an unusable authority or host."""
    issuer, issuer_key = _loaded(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri_of(cluster, principal))]
    names += [_host_name(host) for host in hosts]
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if principal.is_daemon else [])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(principal))])
    made = (
        _builder(subject, issuer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(made, key)


def uri_of(cluster: str, principal: Principal) -> str:
    """Return the URI that names a principal in its certificate."""
    return f"{SCHEME}{cluster}/{principal.kind}/{principal.name}"


def ends_at(certificate: bytes) -> datetime.datetime:
    """Return when the first certificate in these PEM bytes expires. Raise ConfigError."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise ConfigError("no certificate in PEM") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _loaded(authority: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = serialization.load_pem_private_key(authority.key, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the authority cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the authority cannot be used: its key is no elliptic curve key")
    return certificate, key


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is no host name") from error
