"""The credentials that `rk up` makes: a directory for each daemon below that of the cluster, which issues them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cli.common.errors import CliError
from cli.common.local import FIRST_USER, MASTER, SERVER, STORE, Daemon, LocalCluster
from cli.security.separation import SERVERS_DIR
from coord.errors import ConfigError
from coord.security import making
from coord.security.certificate_facts import CertificateFacts, facts_of
from coord.security.certificates import making as certificates
from coord.security.credentials import AUTHORITY_FILE, CERTIFICATE_SUFFIX, CLUSTER_FILE, EVERY_PORT_FILE, read_private
from coord.security.principal import MASTER as MASTER_KIND
from coord.security.principal import NODE, USER, Principal, parse_principal
from coord.security.principal import SERVER as SERVER_KIND

#: The kind of principal that each role proves.
_KINDS: Final = {STORE: NODE, MASTER: MASTER_KIND, SERVER: SERVER_KIND}
#: Days before the expiry of a certificate from which on the next start renews it.
RENEW_DAYS: Final = 30
#: Names of this machine in every certificate, beside the address of the cluster.
_LOOPBACK: Final = ("127.0.0.1", "localhost")


def make(cluster: LocalCluster, data_dir: Path, now: datetime.datetime) -> None:
    """Make the credentials that a secured cluster lacks. Raise CliError."""
    directory = cluster.certs(data_dir)
    admin = Principal(USER, FIRST_USER)
    try:
        if not (directory / CLUSTER_FILE).exists():
            if cluster.certs_dir:
                _check_complete(cluster, directory)
                return
            making.init(directory, admin)
        if not cluster.tls:
            _check_no_certificates(directory)
            return
        if not certificates.has_authority(directory) and not _has_all(cluster, directory):
            certificates.init_authority(directory, now)
        if certificates.has_authority(directory):
            if _is_due(directory / f"{USER}.{FIRST_USER}{CERTIFICATE_SUFFIX}", (), now):
                certificates.issue(directory, admin, [], directory, now)
            issue_missing(cluster, cluster.daemons(), directory, now)
    except ConfigError as error:
        raise CliError(str(error), "Give a --data-dir and a --certs-dir that you may write.") from error


def issue_missing(cluster: LocalCluster, daemons: Iterable[Daemon], directory: Path, now: datetime.datetime) -> None:
    """Issue certificates for daemons that have none, or whose certificate soon expires or is for another address. Raise
    ConfigError."""
    hosts = tuple(dict.fromkeys((*_LOOPBACK, cluster.host)))
    for daemon in daemons:
        kind = _KINDS[daemon.role]
        who = Principal(kind, daemon.number if kind == NODE else daemon.name)
        target = directory / daemon.name
        if _is_due(target / f"{who.kind}.{who.name}{CERTIFICATE_SUFFIX}", hosts, now):
            certificates.issue(directory, who, hosts, target, now)


def hand_out(directory: Path) -> None:
    """Copy authorities to the directories below that were made here, and secrets to those of daemons. Raise
    ConfigError."""
    servers = directory / SERVERS_DIR / CLUSTER_FILE
    if servers.exists():
        making.write_private(servers, read_private(directory / CLUSTER_FILE))
    for path, facts in list(_issued(directory)):
        names = (AUTHORITY_FILE, CLUSTER_FILE) if parse_principal(facts.principal).is_daemon else (AUTHORITY_FILE,)
        for name in names if path.parent != directory else ():
            making.write_private(path.parent / name, read_private(directory / name))


def check_readable(directory: Path) -> None:
    """Raise ConfigError for a certificate that a rotation would stumble over half-way."""
    list(_issued(directory))


def issue_again(directory: Path, now: datetime.datetime) -> list[str]:
    """Issue all certificates and keys anew that are here and in the directories below; return their principals.

    Raise ConfigError.
    """
    found = []
    for path in sorted([*directory.glob(f"{USER}.*.json"), *directory.glob(f"*/{USER}.*.json")]):
        found.append(parse_principal(path.stem.replace(".", ":", 1)))
        making.issue_key(directory, found[-1], path.parent)
    if certificates.has_authority(directory):
        for path, facts in list(_issued(directory)):
            found.append(parse_principal(facts.principal))
            certificates.issue(directory, found[-1], facts.names, path.parent, now)
    return sorted({str(one) for one in found})


def _issued(directory: Path) -> Iterator[tuple[Path, CertificateFacts]]:
    """Yield the certificates of principals here and in the directories below."""
    for path in sorted([*directory.glob(f"*{CERTIFICATE_SUFFIX}"), *directory.glob(f"*/*{CERTIFICATE_SUFFIX}")]):
        try:
            facts = facts_of(path.read_bytes())[0]
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}; remove the file, or issue it again") from error
        if facts.principal:
            yield path, facts


def _check_complete(cluster: LocalCluster, directory: Path) -> None:
    """Raise CliError for a named directory that issues nothing and lacks the credentials of a daemon."""
    if not _has_all(cluster, directory):
        names = ", ".join(one.name for one in cluster.daemons())
        raise CliError(
            f"{directory} has no {CLUSTER_FILE}, so `rk up` cannot issue credentials to {names}",
            f"`rk certs init --tls --certs-dir {directory}` makes it; or leave out --certs-dir.",
        )


def _check_no_certificates(directory: Path) -> None:
    """Raise CliError for a start without TLS whose commands and clients would find certificates."""
    if (directory / EVERY_PORT_FILE).exists():
        raise CliError(
            f"the topology wants no certificates, but {directory / EVERY_PORT_FILE} says that every port speaks TLS",
            'Give credentials = "certificates" in the topology file.',
        )


def _has_all(cluster: LocalCluster, directory: Path) -> bool:
    return all(list((directory / one.name).glob(f"*.*{CERTIFICATE_SUFFIX}")) for one in cluster.daemons())


def _is_due(path: Path, hosts: Iterable[str], now: datetime.datetime) -> bool:
    """Return whether a certificate is missing, is not for all hosts, or soon expires."""
    if not path.exists():
        return True
    found = facts_of(path.read_bytes())[0]
    return found.days_left(now) < RENEW_DAYS or not set(hosts).issubset(found.names)
