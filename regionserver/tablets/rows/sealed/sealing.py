"""The seal in the file of a tablet's rows, and the answers of a sealed tablet.

The seal is one more value in the database "meta". It is stored in the commit of its entry, together with the applied
index. A file without the value was never sealed, so splits do not change the files of other tablets.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec

from coord.raft.messages import Entry
from coord.rpc.wire import RpcError
from regionserver.kv.held import HeldRows
from regionserver.kv.messages import WRONG_REGION
from regionserver.kv.rows import seal as with_checksum
from regionserver.kv.rows import unseal
from regionserver.kv.snapshot import RowSnapshot
from regionserver.tablets.commands import NO_COMMAND, KvCommand, SealCommand, WriteOutcome
from regionserver.tablets.rows import environment
from regionserver.tablets.rows.environment import STATE_KEY, RowsFile
from regionserver.tablets.rows.round import StoredResults
from regionserver.tablets.rows.state import RowsState, encode
from regionserver.tablets.values.seals import Seal
from regionserver.tablets.writers import sealed_outcome

#: Content of an entry of the log.
Command = KvCommand | SealCommand | None

SEAL_KEY: Final = b"seal"
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Seal)


def stored_seal(file: RowsFile) -> Seal:
    """Return the seal in a file, that of a new tablet if the file is not made yet. Raise RpcError, MsgspecError."""
    if not file.is_made:
        return Seal()
    with file.env.begin(db=file.meta) as transaction:
        return seal_in(transaction, file)


def seal_in(transaction: Any, file: RowsFile) -> Seal:
    """Return the seal that a transaction sees. Raise RpcError, MsgspecError."""
    stored = transaction.get(SEAL_KEY, db=file.meta)
    return Seal() if stored is None else _DECODER.decode(unseal(SEAL_KEY, stored))


def store(transaction: Any, file: RowsFile, state: RowsState, seal: Seal) -> None:
    """Put the seal and the state after its entry into a commit."""
    transaction.put(SEAL_KEY, with_checksum(SEAL_KEY, _ENCODER.encode(seal)), db=file.meta)
    put_state(transaction, file, state)


def put_state(transaction: Any, file: RowsFile, state: RowsState) -> None:
    """Put the state of the rows into a commit."""
    transaction.put(STATE_KEY, with_checksum(STATE_KEY, encode(state)), db=file.meta)


def state_after(state: RowsState, before: Seal, after: Seal, command: SealCommand, entry: Entry) -> RowsState:
    """Return the state of the rows after an entry about the seal.

    While the tablet is sealed nothing moves but the applied index: a daughter may have been made already from another
    replica, and all replicas of a daughter begin alike.

    When a seal is taken away, every write that began until then is too old. Its client may have written again under
    another number, because a sealed tablet had refused the write: a late copy of the first one must not be carried out.
    """
    horizon_ms, clock_ms = state.horizon_ms, state.clock_ms
    if before.is_set is not after.is_set:
        clock_ms = max(clock_ms, command.time_ms)
    if before.is_set and not after.is_set:
        horizon_ms, clock_ms = clock_ms, clock_ms + 1
    return msgspec.structs.replace(
        state, applied_index=entry.index, applied_term=entry.term, clock_ms=clock_ms, horizon_ms=horizon_ms
    )


def outcome_of(code: int, seal: Seal, entry: Entry) -> WriteOutcome:
    """Return the outcome of an entry about the seal: with the position of the entry that sealed the tablet, if one
    did."""
    if seal.is_set:
        return WriteOutcome(code, seal.term, seal.index)
    return WriteOutcome(code, entry.term, entry.index)


def outcome_behind(results: StoredResults, state: RowsState, entry: Entry, command: Command) -> WriteOutcome:
    """Return the outcome of an entry behind the seal."""
    if isinstance(command, KvCommand):
        return sealed_outcome(results, command, state.horizon_ms, entry.term, entry.index)
    return WriteOutcome(NO_COMMAND, entry.term, entry.index)


def outcome_now(rows: SealableRows, command: KvCommand) -> WriteOutcome | None:
    """Return the outcome of a write that has no entry yet, by the rows of a sealed tablet; None if they are not sealed.

    No later entry changes the outcome: the results of all earlier writes are in the rows. Raise RowsError.
    """
    with environment.translated(rows.path), rows.using_file() as file, file.env.begin(db=file.writers) as transaction:
        seal = seal_in(transaction, file)
        if not seal.is_set:
            return None
        state = environment.stored_state(transaction, file.meta)
        results = StoredResults(transaction, file.writers)
        return sealed_outcome(results, command, state.horizon_ms, seal.term, seal.index)


def was_split(tablet: str) -> RpcError:
    """Return the error for a request to a sealed tablet."""
    return RpcError(WRONG_REGION, f"tablet {tablet} was split or merged: read the table's regions again")


class SealableRows(Protocol):
    """The rows of a tablet on disk."""

    path: str

    def using_file(self) -> AbstractContextManager[RowsFile]:
        """Keep the file open meanwhile. Raise RowsError."""
        ...


class _NoRows:
    """In place of a transaction: every read is refused."""

    def __init__(self, tablet: str) -> None:
        self._tablet = tablet

    def get(self, _key: bytes) -> bytes | None:
        raise was_split(self._tablet)

    def cursor(self) -> Any:
        raise was_split(self._tablet)

    def hold(self) -> HeldRows:
        raise was_split(self._tablet)


def sealed_snapshot(tablet: str) -> RowSnapshot:
    """Return the snapshot of a sealed tablet, which refuses every read: its daughters may have been written already."""
    rows = _NoRows(tablet)
    return RowSnapshot(rows, hold=rows.hold)
