"""Errors of the client of regions, and the meaning of the codes in replies.

nothing was done   find the region's current location and retry, for every call
outcome unknown    retry if the request is idempotent, else raise OutcomeUnknown
permanent          every other code (a key that is too long, a full region): raise Refused at once
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from kazoo.exceptions import KazooException, NoAuthError, SessionClosedRequireSaslError

from coord.rpc.wire import Code, RpcError
from regions.messages import FORBIDDEN, NO_LEASE, WRONG_SERVER
from regions.records.model import RegionRecord, TableRecord
from regions.records.znodes import CorruptZnode
from regionserver.client.locator import NoRegion
from regionserver.client.store import StoreSilentError
from regionserver.kv.messages import SCHEMA_CHANGED, SUPERSEDED, WRONG_REGION
from regionserver.request_gate import FENCED, NOT_SERVING

NOTHING_DONE: Final = frozenset({NOT_SERVING, WRONG_SERVER, NO_LEASE, WRONG_REGION, Code.UNREACHABLE, Code.BUSY})
#: Rejections of the request itself, before any of it is executed.
NEVER_BEGUN: Final = frozenset({Code.BAD_REQUEST, Code.UNSUPPORTED, SCHEMA_CHANGED, FORBIDDEN})
UNKNOWN: Final = frozenset({Code.TIMEOUT, Code.CONNECTION_LOST, FENCED, SUPERSEDED})


class DataError(Exception):
    """A call did not succeed; the message is one line for the user.

    `may_have_been_done` is True if the change may still have taken effect, or may take effect until the server's lease
    ends.
    """

    def __init__(self, message: str, *, may_have_been_done: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_done = may_have_been_done


class NoSuchTable(DataError):  # noqa: N818 - named after what it reports
    """Raised if no table has this name."""


class TableDisabled(DataError):  # noqa: N818
    """Raised if the table is disabled: none of its regions opens until an operator enables the table."""

    def __init__(self, table: str, *, may_have_been_done: bool = False) -> None:
        super().__init__(f"table {table!r} is disabled", may_have_been_done=may_have_been_done)
        self.table = table


class Unavailable(DataError):  # noqa: N818
    """Raised if no server answered for the region in time."""


class OutcomeUnknown(DataError):  # noqa: N818
    """Raised if the reply to a request that must not be repeated was lost: the server may have executed the request."""


class WrongArgument(DataError, TypeError):  # noqa: N818
    """Raised if a key or value has another type than the call takes; nothing was sent."""


class WrongRow(DataError, ValueError):  # noqa: N818
    """Raised if a row or key does not fit the table's columns, or if stored bytes are not a row of the table. Nothing
    was written."""


class RecordDamaged(DataError):  # noqa: N818
    """Raised if a record in the store that the call needs cannot be decoded; `rk fsck` names damaged records."""


class Refused(DataError):  # noqa: N818
    """Raised if the server rejects the request; `code` is the rejection's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, may_have_been_done=code not in (*NOTHING_DONE, *NEVER_BEGUN))
        self.code = code


class Forbidden(Refused):
    """Raised if this process's identity has no grant for the request; nothing was done."""


def refused(error: RpcError, table: str) -> Refused:
    """Return the error of a call that a server has rejected. A server knows the id of the table, not its name."""
    if error.code != FORBIDDEN:
        return Refused(error.code, error.message)
    return Forbidden(error.code, error.message.replace(error.hint, table) if error.hint else error.message)


class Attempt(NamedTuple):
    """One attempt of a call, for observers. `code` is "" after success."""

    region_id: str
    code: str


def require(table: str, region: RegionRecord | None) -> RegionRecord:
    """Return the region. Raise NoSuchTable for None."""
    if region is None:
        raise NoSuchTable(f"table {table!r} does not exist")
    return region


def require_table(name: str, table: TableRecord | None) -> TableRecord:
    """Return the table. Raise NoSuchTable for None."""
    if table is None:
        raise NoSuchTable(f"table {name!r} does not exist")
    return table


def words_of(error: KazooException) -> str:
    """Return an error of the store as text for a developer."""
    if isinstance(error, SessionClosedRequireSaslError):
        return "the store serves only clients that authenticate: RK_CERTS_DIR names the directory of your credentials"
    if isinstance(error, NoAuthError):
        return "the store's access lists deny this: connect with store_auth=, the cluster's credential, or RK_CERTS_DIR"
    return f"the store does not answer ({type(error).__name__})"


@contextlib.contextmanager
def store_errors(table: str, key: str) -> Iterator[None]:
    """Turn errors of the store into Unavailable."""
    try:
        yield
    except (StoreSilentError, NoRegion) as error:
        raise Unavailable(f"{table}: {key!r}: {error}") from error
    except KazooException as error:
        raise Unavailable(f"{table}: {key!r}: {words_of(error)}") from error
    except CorruptZnode as error:
        raise record_damaged(table, key, error) from error


def record_damaged(table: str, key: str, error: CorruptZnode, *, may_have_been_done: bool = False) -> RecordDamaged:
    """Return the error of a call that needs a damaged record."""
    return RecordDamaged(
        f"{table}: {key!r}: a record in the store is damaged: {error}; `rk fsck` names such records",
        may_have_been_done=may_have_been_done,
    )
