"""`rk certs revoke`, `rk certs revoked`: the list in the store of credentials that are worth nothing any more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import click
import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.security import ACL, Id

from cli.common import output
from cli.common.access import certs_dir_named, credentials_of, local_certs_dir
from cli.common.asking.store import open_named_store, rights_of
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.options import Globals, global_options
from coord.client.access import StoreAccess
from coord.errors import ConfigError
from coord.security import making
from coord.security.credentials import Credentials
from coord.security.principal import USER, parse_principal
from coord.security.revocation import REVOKED_MAX, RevocationList, Revoked, decode, path_of


class _Place(NamedTuple):
    """The znode of the list, and who asks."""

    client: KazooClient
    path: str
    access: StoreAccess


@click.command()
@click.option("--user", metavar="NAME", help="Every key and certificate of this user up to now.")
@click.option("--daemon", metavar="KIND:NAME", help="Every certificate of this daemon up to now, as server:s1.")
@click.option("--serial", metavar="HEX", help="The certificate with this serial number (`rk certs show`).")
@click.option("--undo", is_flag=True, help="Take the entry off the list: the credentials are valid again.")
@global_options
@click.pass_obj
def revoke(given: Globals, user: str | None, daemon: str | None, serial: str | None, undo: bool) -> None:
    """Revoke credentials before they expire, at every port.

    Masters, region servers and store nodes read the list when it changes, and at least every 2 s. Connections that
    were proved before are closed. A user gets a new certificate at once, and a new key after `rk certs rotate`.
    """
    credentials = _credentials(given)
    entry = _entry(given, user, daemon, serial, str(credentials.principal))
    with _opened(given, credentials) as place:
        before, version = _read(place)
        left = tuple(one for one in before.revoked if (one.principal, one.serial) != (entry.principal, entry.serial))
        what = entry.principal or f"certificate {entry.serial}"
        if undo and len(left) == len(before.revoked):
            raise NotFoundError(f"{what} is not revoked", "`rk certs revoked` shows the list.")
        if not undo and len(left) >= REVOKED_MAX:
            raise CliError(f"the list has {REVOKED_MAX} entries, which is the limit", "Rotate: `rk certs rotate`.")
        _write(place, RevocationList(left if undo else (*left, entry)), version)
    text = f"{what} is valid again" if undo else f"{what} is revoked: every daemon that reaches the store refuses it"
    output.report({"revoked": None if undo else entry, "undone": entry if undo else None}, text, as_json=given.json)


@click.command()
@global_options
@click.pass_obj
def revoked(given: Globals) -> None:
    """Show the list of revoked credentials."""
    with _opened(given, _credentials(given)) as place:
        found = _read(place)[0].revoked
    if given.json:
        output.print_json(found)
        return
    rows = [
        (one.principal or "-", str(one.number or "-"), one.serial or "-", _time(one.at_s), one.by or "-")
        for one in found
    ]
    columns = ["principal", "keys up to", "serial", "revoked", "by"]
    output.console().print(output.table("", columns, rows) if rows else "nothing is revoked")


def _entry(given: Globals, user: str | None, daemon: str | None, serial: str | None, by: str) -> Revoked:
    """Return the entry that the options describe. Raise UsageFaultError."""
    if sum(one is not None for one in (user, daemon, serial)) != 1:
        raise UsageFaultError("say what to revoke", "Give one of --user NAME, --daemon KIND:NAME, --serial HEX.")
    now_s = int(time.time())
    try:
        if serial is not None:
            return Revoked(serial=f"{int(serial.replace(':', ''), 16):x}", at_s=now_s, by=by)
        who = parse_principal(daemon if daemon is not None else f"{USER}:{user}")
    except ConfigError as error:
        raise UsageFaultError(str(error)) from error
    except ValueError as error:
        raise UsageFaultError(f"{serial!r} is no serial number", "`rk certs show` prints serial numbers.") from error
    return Revoked(str(who), 0 if who.is_daemon else _number(given), at_s=now_s, by=by)


def _number(given: Globals) -> int:
    """Return the number of the secret that keys come from now. Raise UsageFaultError."""
    directory = certs_dir_named(given) or local_certs_dir(given)
    try:
        return making.secrets_in(directory).newest()
    except ConfigError as error:
        raise UsageFaultError(
            f"the keys of a user are revoked where the secret of the cluster is: {error}",
            "Give the --certs-dir that issues keys, or --serial of a certificate.",
        ) from error


def _credentials(given: Globals) -> Credentials:
    found = credentials_of(given)
    if found is None or not found.cluster:
        raise UsageFaultError("this command has no credentials", "Give --certs-dir DIR (RK_CERTS_DIR).")
    return found


@contextlib.contextmanager
def _opened(given: Globals, credentials: Credentials) -> Iterator[_Place]:
    """Open the store with the cluster's credential."""
    access = rights_of(given)
    with open_named_store(given, access) as client:
        yield _Place(client, path_of(credentials.cluster), access)


def _read(place: _Place) -> tuple[RevocationList, int]:
    """Return the list, and the version of its znode, -1 without one."""
    try:
        data, stat = place.client.get(place.path)
    except NoNodeError:
        return RevocationList(), -1
    try:
        return decode(data), stat.version
    except ValueError as error:
        raise CliError(
            f"the list at {place.path} is damaged: {error}", "Delete the znode, and revoke again."
        ) from error


def _write(place: _Place, changed: RevocationList, version: int) -> None:
    """Replace the list by compare-and-set. Raise CliError."""
    if not place.access.has_credential():
        raise UsageFaultError(
            "without the store's credential everybody could change the list", "Give --store-auth (RK_STORE_AUTH)."
        )
    data = msgspec.json.encode(changed)
    acl = [ACL(line.perms, Id(line.scheme.decode(), line.id.decode())) for line in place.access.acl()]
    try:
        if version < 0:
            place.client.create(place.path, data, acl)
        else:
            place.client.set(place.path, data, version)
    except (BadVersionError, NodeExistsError) as error:
        raise CliError("somebody else has changed the list meanwhile", "Try again.") from error


def _time(at_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s)) + " UTC"
