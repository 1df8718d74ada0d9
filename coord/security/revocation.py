"""Revoked credentials: the list in the store, and whether it contains a credential. Pure.

The list is the value of one znode, `/regionkeeper-revoked-CLUSTER`, where CLUSTER is the cluster's id in the
credentials. The znode is outside of the cluster's own znodes, so that store nodes find it under any root of the
cluster. A process learns the list when it changes (`coord.client.following.revocations`). Every check in the process
uses `known`.
"""

from __future__ import annotations

import datetime
import weakref
from typing import Final, NamedTuple, Protocol

import msgspec

from coord.security.principal import Principal

#: Limit of the list: the store takes 1 MB for one value.
REVOKED_MAX: Final = 2_000
_PREFIX: Final = "/regionkeeper-revoked-"
#: A certificate's validity begins this long before the certificate is made (`coord.security.certificates.authority`).
_BEFORE_S: Final = 300


class Revoked(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry: all credentials that a principal has had so far, or one certificate."""

    #: `user:alice`: its keys by the secrets up to `number`, and its certificates made until `at_s`. "" if the entry is
    #: one certificate.
    principal: str = ""
    number: int = 0
    #: Serial number of a certificate in hexadecimal.
    serial: str = ""
    at_s: int = 0
    by: str = ""


class ShownCredential(NamedTuple):
    """The credential by which the other end of a connection has proved who it is: a key, or with `serial` a
    certificate."""

    who: Principal
    #: Number of the secret that the key comes from.
    number: int = 0
    #: Serial number of the certificate in hexadecimal, and since when it is valid.
    serial: str = ""
    valid_from_s: float = 0.0


class RevocationList(msgspec.Struct, frozen=True):
    """Value of the znode."""

    revoked: tuple[Revoked, ...] = ()

    def objection(self, shown: ShownCredential) -> str:
        """Return why a credential is worth nothing, "" if it is valid."""
        if shown.serial:
            return self.certificate_objection(shown.who, shown.serial, shown.valid_from_s)
        return self.key_objection(shown.who, shown.number)

    def key_objection(self, who: Principal, number: int) -> str:
        """Return why the key of `who` by a secret is worth nothing, "" if it is valid."""
        found = next((one for one in self.revoked if one.principal == str(who) and number <= one.number), None)
        return "" if found is None else f"the key of {who} was revoked on {_day(found.at_s)}"

    def certificate_objection(self, who: Principal, serial: str, valid_from_s: float) -> str:
        """Return why a certificate of `who` is worth nothing, "" if it is valid. `serial` is in hexadecimal."""
        number = int(serial or "0", 16)
        for one in self.revoked:
            is_it = one.serial and int(one.serial, 16) == number
            is_of_principal = one.principal == str(who) and valid_from_s + _BEFORE_S <= one.at_s
            if is_it or is_of_principal:
                return f"the certificate {serial.lower()} of {who} was revoked on {_day(one.at_s)}"
        return ""


_decoder: Final = msgspec.json.Decoder(RevocationList)


def path_of(cluster: str) -> str:
    """Return the path of the list, by the credentials' id of the cluster."""
    return _PREFIX + cluster


def decode(data: bytes) -> RevocationList:
    """Return the list; an empty one for a missing znode. Raise ValueError."""
    return _decoder.decode(data) if data else RevocationList()


class RevocationWatcher(Protocol):
    """Something with connections that are proved by credentials."""

    def revocations_changed(self) -> None:
        """Close the connections that were proved by credentials which are revoked now."""
        ...


class _OwnRevocations:
    """The one value of the process."""

    data = b""
    found = RevocationList()
    watchers: Final[weakref.WeakSet[RevocationWatcher]] = weakref.WeakSet()


def learn(data: bytes) -> bool:
    """Use this value of the znode from now on, and return whether it differs from the former one. Raise ValueError for
    a damaged value; then the former one stays in force.

    Connections that were proved by a credential which is revoked now are closed before this function returns (`watch`).
    """
    if data == _OwnRevocations.data:
        return False
    _OwnRevocations.found = decode(data)
    _OwnRevocations.data = data
    recheck()
    return True


def recheck() -> None:
    """Close the connections that may not stand any more."""
    for watcher in list(_OwnRevocations.watchers):
        watcher.revocations_changed()


def watch(watcher: RevocationWatcher) -> None:
    """Call `watcher` after each change of the list, as long as it lives."""
    _OwnRevocations.watchers.add(watcher)


def known() -> RevocationList:
    """Return the list as this process knows it."""
    return _OwnRevocations.found


def _day(at_s: int) -> str:
    return f"{datetime.datetime.fromtimestamp(at_s, datetime.UTC):%Y-%m-%d}"
