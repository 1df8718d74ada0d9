"""`rk certs`: make, issue and rotate the credentials that daemons and users prove (docs/security.md)."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import click
import msgspec

from cli.common import output
from cli.common.access import certs_dir_named, credentials_of, local_certs_dir
from cli.common.errors import CliError, UsageFaultError
from cli.common.local import FIRST_USER, read_cluster
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup
from cli.security import daemons
from cli.security.revoke import revoke, revoked
from coord.errors import ConfigError
from coord.security import making
from coord.security.certificate_facts import CertificateFacts, facts_of
from coord.security.certificates import making as certificates
from coord.security.certificates.authority import ends_at
from coord.security.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_SUFFIX,
    CLUSTER_FILE,
    EVERY_PORT_FILE,
    FOR_ADMIN,
    FOR_STORE,
    read_private,
)
from coord.security.keys import ClusterSecrets, decode_key, decode_secrets
from coord.security.principal import USER, Principal, parse_principal

_SUFFIX: Final = ".json"
#: Days before the end of a certificate from which `list` names it as a problem.
WARN_DAYS: Final = 30

T = TypeVar("T")


class ListedFile(NamedTuple):
    """One file of the directory."""

    file: str
    what: str
    of: str
    secrets: str
    problem: str


@click.group(cls=CommandGroup)
def certs() -> None:
    """Credentials of daemons and users: make, issue, rotate, show, revoke."""


certs.add_command(revoke)
certs.add_command(revoked)


@certs.command("init")
@click.option("--user", default=FIRST_USER, show_default=True, metavar="NAME", help="The first user.")
@click.option("--tls", is_flag=True, help="Also make an authority: certificates instead of keys, TLS both ways.")
@global_options
@click.pass_obj
def init(given: Globals, user: str, tls: bool) -> None:
    """Make the secret of a new cluster, and the key of its first user, in --certs-dir.

    Copy the directory to every daemon's machine, without the user's key. `rk up` needs none of this. With --tls a
    directory that has only keys gets an authority, too, and keeps its secret.
    """
    directory = _directory(given)
    is_added = tls and certificates.has_keys_alone(directory)
    if is_added and certs_dir_named(given) is None:
        raise UsageFaultError(
            f"{directory} is of a cluster that runs with keys", "`rk up --tls` changes it to certificates."
        )
    made = _checked(lambda: making.secrets_in(directory) if is_added else making.init(directory, _user(user)))
    if tls:
        _checked(lambda: certificates.init_authority(directory, _now()))
        _checked(lambda: certificates.issue(directory, _user(user), [], directory, _now()))
    if given.json:
        output.print_json({"directory": str(directory), "cluster": made.cluster, "user": user})
        return
    what = "an authority" if is_added else "credentials"
    click.echo(f"made {what} of cluster {made.cluster} in {directory}, and the {_kind(is_tls=tls)} of user:{user}")


@certs.command("issue")
@click.option("--user", metavar="NAME", help="The user who gets a key.")
@click.option("--daemon", metavar="KIND:NAME", help="With an authority: the node, master or server, as server:s1.")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A name or address of the daemon; repeatable.")
@click.option("--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Directory of the new files.")
@global_options
@click.pass_obj
def issue(given: Globals, user: str | None, daemon: str | None, hosts: tuple[str, ...], to: Path) -> None:
    """Write the key of one user or daemon into a directory that serves as its --certs-dir.

    If the source directory has a certificate authority, a certificate is issued, too.
    """
    directory = _directory(given)
    if (user is None) == (daemon is None):
        raise UsageFaultError("name either a user or a daemon", "Give --user NAME, or --daemon KIND:NAME.")
    principal = _checked(lambda: parse_principal(daemon) if daemon is not None else _user(user or ""))
    is_tls = certificates.has_authority(directory)
    if principal.is_daemon and not is_tls:
        raise UsageFaultError(
            f"{directory} has no authority, and without one a daemon needs no key of its own",
            f"Copy {CLUSTER_FILE} and {making.PEERS_FILE} to its directory, or make an authority: rk certs init --tls.",
        )
    if is_tls:
        _checked(lambda: certificates.issue(directory, principal, hosts, to, _now()))
    if not principal.is_daemon:
        _checked(lambda: making.issue_key(directory, principal, to))
    if given.json:
        output.print_json({"directory": str(to), "principal": str(principal), "certificate": is_tls})
        return
    click.echo(
        f"wrote the {_kind(is_tls=is_tls)} of {principal} to {to}; it is used by --certs-dir {to} (RK_CERTS_DIR)"
    )


def _kind(*, is_tls: bool) -> str:
    return "certificate" if is_tls else "key"


@certs.command("rotate")
@click.option("--finish", is_flag=True, help="Remove the old secrets: keys by them are worth nothing from now on.")
@global_options
@click.pass_obj
def rotate(given: Globals, finish: bool) -> None:
    """Add a new secret, and with an authority a new authority. The old ones stay valid until `--finish`.

    Copy the directory to every machine after each of the three steps: `rotate`, `rk certs renew`, `rotate --finish`.
    Daemons need no restart. The directories of daemons below --certs-dir are changed, too. Under `rk up` the first step
    includes the second, and nothing has to be copied.
    """
    directory = _directory(given)
    is_tls = certificates.has_authority(directory)
    _checked(lambda: making.check_begun_nowhere(directory))
    _checked(lambda: daemons.check_readable(directory))
    if is_tls:
        change = certificates.finish_authority if finish else _rotate_authority
        _checked(lambda: change(directory))
    removed = _checked(lambda: making.finish(directory)) if finish else []
    known = _checked(lambda: making.secrets_in(directory) if finish else making.rotate(directory))
    _checked(lambda: daemons.hand_out(directory))
    if certs_dir_named(given) is None and not finish:
        # The daemons of `rk up` read these files themselves: nothing has to be copied before.
        _, known = _renew(directory)
    if given.json:
        output.print_json({"current": known.current(), "accepted": sorted(known.secrets), "removed": removed})
        return
    click.echo(_in_use(known))
    if certs_dir_named(given) is not None:
        then = "" if finish else ", then run `rk certs renew`"
        click.echo(f"copy {directory}, and the directories below it, to every machine{then}")


@certs.command("renew")
@global_options
@click.pass_obj
def renew(given: Globals) -> None:
    """Issue all certificates and keys again that are in the directory and in those of daemons below it.

    Do so once a year, before they expire, and as the second step of a rotation (`rk certs rotate`): daemons prove the
    newest secret from then on, so first copy the result of the first step to every machine.
    """
    directory = _directory(given)
    daemon = next(directory.glob("*.*.key"), None)
    if daemon is not None and not certificates.has_authority(directory):
        raise UsageFaultError(
            f"{directory} has {daemon.with_suffix(CERTIFICATE_SUFFIX).name}, but no authority to issue it again",
            "Give --certs-dir with the directory in which the cluster's credentials were made (it has ca.key).",
        )
    found, known = _renew(directory)
    if given.json:
        output.print_json({"current": known.current(), "accepted": sorted(known.secrets), "renewed": found})
        return
    click.echo(_in_use(known))
    click.echo(f"renewed the credentials of {', '.join(found) or 'nobody'} in {directory}")
    if certs_dir_named(given) is not None:
        click.echo(f"copy {directory}, and the directories below it, to every machine")


def _renew(directory: Path) -> tuple[list[str], ClusterSecrets]:
    """Return the principals with new credentials, and the secrets. Raise CliError."""
    _checked(lambda: daemons.check_readable(directory))
    # `rotate --finish` is refused until the newest secret is in use. So this is the last step: all certificates are
    # there by then.
    found = _checked(lambda: daemons.issue_again(directory, _now()))
    known = _checked(lambda: making.use_newest(directory))
    _checked(lambda: daemons.hand_out(directory))
    return found, known


def _in_use(known: ClusterSecrets) -> str:
    accepted = ", ".join(str(number) for number in sorted(known.secrets))
    return f"secret {known.current()} is used; keys by {accepted} are accepted"


@certs.command("token")
@click.option(
    "--for",
    "port",
    type=click.Choice(["admin", "store", "jaas"]),
    default="admin",
    show_default=True,
    help="Ports that take it; jaas prints the one for the store as a file for Java programs.",
)
@global_options
@click.pass_obj
def token(given: Globals, port: str) -> None:
    """Print the token that admin ports take, for Prometheus (authorization: credentials) and curl.

    With `--for store` it is for ZooKeeper clients: zkCli `addauth digest TOKEN`, kazoo `add_auth("digest", TOKEN)`.
    With `--for jaas` it is the file that `-Djava.security.auth.login.config` names, for Java programs whose code cannot
    be changed; add `-Dzookeeper.fips-mode=false`.
    """
    credentials = credentials_of(given)
    if credentials is None:
        raise UsageFaultError("this command has no credentials", "Give --certs-dir DIR (RK_CERTS_DIR).")
    found = credentials.token(FOR_ADMIN if port == "admin" else FOR_STORE)
    if given.json:
        output.print_json({"principal": str(credentials.principal), "token": found})
        return
    click.echo(_jaas(found) if port == "jaas" else found)


def _jaas(token: str) -> str:
    """Return a JAAS file with which ZooKeeper's Java client proves a token by SASL."""
    user, _, password = token.rpartition(":")
    return (
        "Client {\n"
        "    org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'    username="{user}" password="{password}";\n'
        "};"
    )


@certs.command("list")
@global_options
@click.pass_obj
def list_(given: Globals) -> None:
    """Show the contents of the directory: the owners of credentials, their secrets, and faults of files."""
    directory = _directory(given)
    if not directory.is_dir():
        raise UsageFaultError(f"there is no directory {directory}", "`rk certs init` makes it.")
    found = _listed(directory)
    if given.json:
        output.print_json([one._asdict() for one in found])
        return
    columns = ["file", "what", "of", "secrets", "problem"]
    output.console().print(output.table("", columns, [tuple(one) for one in found]))


@certs.command("show")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE]...")
@global_options
@click.pass_obj
def show(given: Globals, files: tuple[Path, ...]) -> None:
    """Show the contents of certificates: principal, names, serial number, times. Without FILE: all of the directory.

    A certificate with fewer than 14 days left makes its daemon degraded (`rk health`).
    """
    directory = None if files else _directory(given)
    chosen = files if directory is None else sorted(directory.glob(f"*{CERTIFICATE_SUFFIX}"))
    if not chosen:
        raise UsageFaultError(f"{directory} has no certificates", "`rk certs init --tls` makes an authority for them.")
    found = [(path, one) for path in chosen for one in _checked(lambda path=path: _facts_in(path))]  # type: ignore[misc]
    now = _now()
    if given.json:
        rows = [{"file": str(path), **msgspec.to_builtins(one), "days_left": one.days_left(now)} for path, one in found]
        output.print_json(rows)
        return
    columns = ["file", "principal", "names", "serial", "issued", "expires", "days left"]
    cells = [
        (
            path.name,
            one.principal or ("authority" if one.is_authority else one.subject),
            ", ".join(one.names),
            one.serial,
            f"{one.issued:%Y-%m-%d}",
            f"{one.expires:%Y-%m-%d}",
            str(one.days_left(now)) if one.expires > now else "expired",
        )
        for path, one in found
    ]
    output.console().print(output.table("", columns, cells))


def _facts_in(path: Path) -> list[CertificateFacts]:
    """Return the certificates in a file. Raise ConfigError."""
    try:
        return facts_of(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _rotate_authority(directory: Path) -> None:
    certificates.rotate_authority(directory, _now())


def _listed(directory: Path) -> list[ListedFile]:
    """Return the files of a directory, and those of the daemons' directories below it."""
    found = []
    for path in sorted(one for one in directory.iterdir() if not one.name.startswith(".")):
        if path.is_dir() and not path.is_symlink():
            found += [one._replace(file=f"{path.name}/{one.file}") for one in _listed(path)]
        else:
            found.append(_look(path))
    return found


def _look(path: Path) -> ListedFile:
    """Return the content of a file."""
    try:
        if path.name == EVERY_PORT_FILE:
            return ListedFile(path.name, "TLS on every port", "", "", "")
        if path.name == CLUSTER_FILE:
            secrets = decode_secrets(read_private(path), str(path))
            numbers = ", ".join(str(one) for one in sorted(secrets.secrets))
            return ListedFile(path.name, "secret of the cluster", secrets.cluster, numbers, "")
        if path.suffix == CERTIFICATE_SUFFIX:
            return _look_at_certificate(path)
        if path.suffix == ".key":
            read_private(path)
            return ListedFile(path.name, "key of a certificate", "", "", "")
        if path.name == making.PEERS_FILE:
            read_private(path)
            return ListedFile(path.name, "secret of peers", "", "", "")
        if path.name.startswith(f"{USER}.") and path.name.endswith(_SUFFIX):
            key = decode_key(read_private(path), str(path))
            return ListedFile(path.name, "key", str(key.principal), str(key.number), "")
    except ConfigError as error:
        return ListedFile(path.name, "", "", "", str(error))
    return ListedFile(path.name, "unknown", "", "", "" if stat.S_ISREG(path.lstat().st_mode) else "no regular file")


def _look_at_certificate(path: Path) -> ListedFile:
    """Return whose certificate a file holds, and whether it is about to expire. Raise ConfigError."""
    end = ends_at(path.read_bytes())
    what = "authority" if path.name == AUTHORITY_FILE else "certificate"
    days = (end - _now()).days
    problem = "expired" if days < 0 else f"expires in {days} days" if days < WARN_DAYS else ""
    return ListedFile(path.name, what, f"until {end:%Y-%m-%d}", "", problem)


def _directory(given: Globals) -> Path:
    """Return --certs-dir, or that of the local cluster. Raise UsageFaultError."""
    named = certs_dir_named(given)
    if named is not None:
        return named
    local = read_cluster(given.data_path)
    if local is None:
        raise UsageFaultError("no directory of credentials is named", "Give --certs-dir DIR (RK_CERTS_DIR).")
    if not local.has_credentials:
        raise UsageFaultError(
            f"the cluster in {given.data_path} is open and has no credentials",
            "`rk secure` makes them; --certs-dir DIR (RK_CERTS_DIR) names those of another cluster.",
        )
    return local_certs_dir(given)


def _user(name: str) -> Principal:
    return parse_principal(f"{USER}:{name}")


def _checked(work: Callable[[], T]) -> T:
    """Return the result of `work`. Raise CliError for its ConfigError."""
    try:
        return work()
    except ConfigError as error:
        raise CliError(str(error)) from error
