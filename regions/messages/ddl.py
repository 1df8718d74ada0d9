"""What clients ask of the masters about tables: create, alter, delete, enable and disable (DD-01 to DD-07).

Each request may carry a `request_id`, made by the client, a new one for each thing that it wants. The result of an
operation is recorded in the same write as the operation, so that whoever asks again with the same id, the same master
or another, gets that result and causes nothing. An id that comes with other contents is refused. Without an id nothing
is recorded, and a repetition is a request of its own.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from regions.records.model import TableIntent
from regions.records.partitioning import RegionSpec
from regions.records.schema import ColumnSpec, SchemaStep

REQUEST_ID_MAX: Final = 64
_REQUEST_ID_MARKS: Final = frozenset("-_.")


class CreateTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Create a table, cut at `splits` or into exactly `regions` (not both; neither: one region).

    With `columns` it has a schema of its own, else `schema` is text that means something to its owner only. With
    `hash_buckets` every range of `splits` exists once in each bucket.

    With `wait_ms` > 0 the answer comes when every region is open, or TIMED_OUT after that time (DD-02).
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
    #: Kind of service that opens its regions, with or without a version; "": the only one that live servers offer.
    kind: str = ""
    #: Where its rows lie (`regions/records/members.py`); "": several replicas of kind kv are tablets, else shared.
    storage: str = ""
    #: Of tablets: in how many racks the replicas of each region must lie; and a majority of them is enough to begin.
    racks_min: int = 0
    allow_under_replicated: bool = False


class SetTableIntent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Enable or disable a table. The intent is durable when the answer comes; `wait_ms` as for CreateTable."""

    table: str  #: name or id
    intent: TableIntent
    wait_ms: int = 0
    request_id: str = ""


class DeleteTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Delete a table: its name is free when the answer comes; with `wait_ms` its regions are closed, too (DD-06)."""

    table: str  #: name or id
    wait_ms: int = 0
    request_id: str = ""


class UndeleteTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Bring a deleted table back with its rows, under its former name or under `name`; `wait_ms` as for CreateTable."""

    table: str  #: name or id
    name: str = ""
    wait_ms: int = 0
    request_id: str = ""


class AlterTable(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change a table's name, its schema, or both (DD-07): the schema version goes up by one, the table is ALTERING.

    `steps` change columns; `schema` replaces the text of a table without columns. Durable when the answer comes; with
    `wait_ms` all open regions have the new version, too. What is not given stays as it is.
    """

    table: str  #: name or id
    name: str = ""
    schema: str | None = None
    steps: list[SchemaStep] = []
    wait_ms: int = 0
    request_id: str = ""
    #: Kind of a table that an earlier build made without one; it changes no schema.
    kind: str = ""


DdlRequest = CreateTable | SetTableIntent | DeleteTable | UndeleteTable | AlterTable


def check_request_id(request_id: str) -> None:
    """Refuse an id that could not be a znode's name. Raises ValueError."""
    if len(request_id) > REQUEST_ID_MAX:
        raise ValueError(f"a request id has at most {REQUEST_ID_MAX} characters, this one {len(request_id)}")
    bad = [char for char in request_id if not (char.isascii() and char.isalnum()) and char not in _REQUEST_ID_MARKS]
    if bad or request_id in (".", ".."):
        raise ValueError(f"request id {request_id!r} is not made of letters, digits and {''.join(_REQUEST_ID_MARKS)}")


def contents_digest(request: DdlRequest) -> str:
    """What tells a repetition from another request under the same id: everything but the id and the patience."""
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
