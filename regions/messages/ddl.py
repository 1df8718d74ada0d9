"""Requests about tables: create, alter, delete, undelete, enable and disable (DD-01 to DD-07).

A client may give each request a `request_id`, a new one for each operation. The operation's write also records its
result. So a retry with the same id, to any master, returns that result and changes nothing. A known id with a different
request is rejected. Without an id no result is recorded, and a retry is a new request.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from regions.records.model import TableIntent
from regions.records.partitioning import RegionSpec
from regions.records.schema import ColumnSpec, Schema, SchemaStep

REQUEST_ID_MAX: Final = 64
_REQUEST_ID_MARKS: Final = frozenset("-_.")


class CreateTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Create a table, split at `splits` or into exactly `regions` (not both; neither: one region).

    With `columns` the table has a schema, otherwise `schema` is a text without meaning to RegionKeeper. With
    `hash_buckets` every range of `splits` exists once in each bucket.

    With `wait_ms` > 0 the master replies when every region is open, or with TIMED_OUT after that time (DD-02).
    """

    name: str
    splits: list[str] = []
    regions: list[RegionSpec] = []
    replication: int = 1
    schema: str = ""
    group: str = ""
    system: bool = False
    wait_ms: int = 0
    request_id: str = ""
    columns: list[ColumnSpec] = []
    hash_buckets: int = 0
    #: Kind of service that opens the regions, with or without a version; "": the only kind of the live servers.
    kind: str = ""
    #: Storage of the rows (`regions/records/members.py`); "": tablets for several replicas of kind kv, else shared.
    storage: str = ""
    #: For tablets: the number of racks over which the replicas of each region must be spread, and whether a majority of
    #: the replicas suffices for the creation.
    racks_min: int = 0
    allow_under_replicated: bool = False
    #: For a table restored from a backup: its schema with column ids, in place of `columns`, and the schema's version.
    #: Stored rows may contain both.
    restored_schema: Schema | None = None
    schema_version: int = 0
    #: Bytes above which a region is split, and bytes below which two neighbors are merged; 0: only on an operator's
    #: request.
    split_above: int = 0
    merge_below: int = 0


class SetTableIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Enable or disable a table. The reply means that the intent is durable. `wait_ms` is as for CreateTable."""

    table: str  #: name or id
    intent: TableIntent
    wait_ms: int = 0
    request_id: str = ""


class DeleteTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Delete a table (DD-06). The reply means that the name is free; with `wait_ms`, also that the regions are
    closed."""

    table: str  #: name or id
    wait_ms: int = 0
    request_id: str = ""


class UndeleteTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Restore a deleted table with its rows, under its former name or `name`. `wait_ms` is as for CreateTable."""

    table: str  #: name or id
    name: str = ""
    wait_ms: int = 0
    request_id: str = ""


class AlterTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change a table's name, its schema, or both (DD-07): the schema version goes up by one, the table is ALTERING.

    `steps` change columns; `schema` replaces the text of a table without columns. Fields that are not set leave their
    values unchanged. The reply means that the change is durable; with `wait_ms`, that all open regions have the new
    version, and all tablets the new number of voters.
    """

    table: str  #: name or id
    name: str = ""
    schema: str | None = None
    steps: list[SchemaStep] = []
    wait_ms: int = 0
    request_id: str = ""
    #: Kind for a table that an earlier build has created without one. The schema version does not change.
    kind: str = ""
    #: Required number of voters of each tablet (TC-20); 0: no change. The schema version does not change.
    replicas: int = 0
    #: As in CreateTable; None: no change. The schema version does not change.
    split_above: int | None = None
    merge_below: int | None = None
    #: Only check the request; the reply has the record that it would write.
    dry_run: bool = False


DdlRequest = CreateTable | SetTableIntent | DeleteTable | UndeleteTable | AlterTable


def check_request_id(request_id: str) -> None:
    """Raise ValueError for an id that cannot be the name of a znode."""
    if len(request_id) > REQUEST_ID_MAX:
        raise ValueError(f"a request id has at most {REQUEST_ID_MAX} characters, this one {len(request_id)}")
    bad = [char for char in request_id if not (char.isascii() and char.isalnum()) and char not in _REQUEST_ID_MARKS]
    if bad or request_id in (".", ".."):
        marks = "".join(sorted(_REQUEST_ID_MARKS))
        raise ValueError(f"request id {request_id!r} is invalid: use letters, digits and {marks}")


def contents_digest(request: DdlRequest) -> str:
    """Return a digest of the request without its id and `wait_ms`, which distinguishes a retry from another request."""
    bare = msgspec.structs.replace(request, request_id="", wait_ms=0)
    return hashlib.sha256(msgspec.msgpack.encode(bare)).hexdigest()[:32]


__all__ = [
    "AlterTable",
    "CreateTable",
    "DdlRequest",
    "DeleteTable",
    "SetTableIntent",
    "UndeleteTable",
    "check_request_id",
    "contents_digest",
]
