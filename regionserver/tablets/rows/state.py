"""The metadata in a tablet's file: its identity, and the state after the last applied entry.

The state is stored in the same commit as the rows that it describes. All its fields are equal in every replica at the
same index.

Replicas with equal digests (`rows.digest`) at one index have equal rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from regionserver.tablets.rows.digest import DIGEST_BYTES

#: Raised when the meaning of a file's databases or of their contents changes.
FORMAT: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The tablet and the generation that a file belongs to."""

    tablet: str
    generation: int
    format: int = FORMAT


class RowsState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """State after the entry at (`applied_term`, `applied_index`).

    `rows` and `size` count rows, and bytes of their keys and values. `clock_ms`, `horizon_ms`, `kept`: see
    `regionserver.tablets.writers.Totals`.
    """

    applied_index: int = 0
    applied_term: int = 0
    rows: int = 0
    size: int = 0
    clock_ms: int = 0
    horizon_ms: int = 0
    kept: int = 0
    digest: bytes = bytes(DIGEST_BYTES)

    @property
    def applied(self) -> tuple[int, int]:
        """Index and term of the last applied entry."""
        return self.applied_index, self.applied_term


class RowsCount(NamedTuple):
    """Number of rows, bytes of their keys and values, and their digest, as in a `RowsState`."""

    rows: int
    size: int
    digest: bytes


_IDENTITIES: Final = msgspec.msgpack.Decoder(Identity)
_STATES: Final = msgspec.msgpack.Decoder(RowsState)


def encode(value: Identity | RowsState) -> bytes:
    """Return `value` in its stored form."""
    return _ENCODER.encode(value)


def decode_identity(stored: bytes) -> Identity:
    """Return a stored identity. Raises msgspec.MsgspecError."""
    return _IDENTITIES.decode(stored)


def decode_state(stored: bytes) -> RowsState:
    """Return a stored state. Raises msgspec.MsgspecError."""
    return _STATES.decode(stored)
