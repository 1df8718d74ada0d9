"""The rows of one tablet on one server: log entries applied, rows read, steady points made.

One thread at a time may call `apply`, and one `steady`; both may run at the same time, together with any number of
reads. A commit is not synced: an entry is applied only after the log has made the entry durable. After a power cut the
log still has the entries since the latest steady point. So the log's floor may move to `point` and no further.

Entries without a command change the applied index only in memory. The index is stored with the next command or the next
steady point; after a restart such entries are applied once more, which changes nothing.

A tablet whose rows are damaged rejects every further call with RowsFailed. An error in one tablet's rows neither ends
the process nor affects another tablet.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import lmdb
import msgspec

from coord.raft.messages import NORMAL, Entry
from coord.rpc.wire import RpcError
from regionserver.kv.held import HeldRows
from regionserver.kv.messages import RowsPoint
from regionserver.kv.rows import seal, unseal
from regionserver.kv.snapshot import DAMAGE, RowSnapshot
from regionserver.tablets.commands import NO_COMMAND, CommandError, SealCommand, WriteOutcome, decode
from regionserver.tablets.rows import environment, steady
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.environment import STATE_KEY, RowsDisk, RowsFile, translated, translation
from regionserver.tablets.rows.errors import RowsClosed, RowsError, RowsFailed, RowsFull
from regionserver.tablets.rows.marks import DigestMarks
from regionserver.tablets.rows.round import Round, StoredResults
from regionserver.tablets.rows.sealed import sealing
from regionserver.tablets.rows.sealed.notes import KeyNotes
from regionserver.tablets.rows.sealed.sealing import Command
from regionserver.tablets.rows.state import Identity, RowsState, encode
from regionserver.tablets.rows.steady import SteadyPoint, Unsteady
from regionserver.tablets.values.seals import Seal, seal_after

#: Limits of one commit: entries, operations and bytes of payload. LMDB keeps the pages of a commit in memory, and each
#: operation may touch a separate page.
ROUND_ENTRIES_MAX: Final = 512
ROUND_OPERATIONS_MAX: Final = 8192
ROUND_BYTES_MAX: Final = 8 * 1024 * 1024
#: From this many rows on, one call with a cursor puts all rows; it takes a third less time than a call each.
MANY_PUTS: Final = 8
#: Pages of each commit in addition to those of rows: state, free pages, roots and branches of the databases.
_COMMIT_PAGES: Final = 8
#: Time for which `close` waits for reads.
CLOSE_WITHIN_S: Final = 30.0


class TabletRows:
    """One tablet's rows. Use `TabletRows.open`."""

    def __init__(
        self,
        path: str,
        identity: Identity,
        boot: str,
        disk: RowsDisk,
        file: RowsFile,
        state: RowsState,
        point: SteadyPoint | None,
    ) -> None:
        self.path = path
        #: Why the rows cannot be used any more; "" while no damage has been found.
        self.damage = ""
        #: Digests at the entries at which replicas are compared.
        self.marks = DigestMarks()
        #: Keys that change while the tablet's daughters are prepared.
        self.notes = KeyNotes()
        self._identity = identity
        self._boot = boot
        self._disk = disk
        self._file = file
        #: After the last applied entry, and as the file has it.
        self._state = self._stored = state
        self._point = point
        self._pin: Any = None
        #: True if a steady point exists and is not pinned: a new point must be made before the next commit.
        self._must_point = False
        #: True if LMDB rejects the environment and it must be opened again.
        self._must_reopen = False
        self._unsteady = Unsteady()
        #: Before this time of the tablet's clock no writer expires: see `WriterResults`.
        self._next_expiry_ms = 0
        #: The seal after the last applied entry; and whether reads are refused, which begins before its commit.
        self._seal = sealing.stored_seal(file)
        self._is_sealed = self._seal.is_set
        self._is_closed = False
        self._users = 0
        #: Snapshots that a backup reads; the end of the file ends them.
        self._held: set[HeldRows] = set()
        self._changed = threading.Condition()
        self._committing = threading.Lock()
        self._steadying = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str,
        identity: Identity,
        boot: str,
        floor: tuple[int, int],
        *,
        disk: RowsDisk | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> TabletRows:
        """Open the file of a replica; reset it to its steady point if the machine has booted since.

        `boot` is the machine's boot id. `floor` is the position (index, term) after which the log has all entries.

        Raises:
            RowsFailed: the rows are damaged or lost, or end before the log begins.
            RowsFull: there is no room for the writes of an open.
            RowsTooNew: a later build wrote the file.
        """
        disk = disk or RowsDisk()
        point = environment.read_point(disk, path, identity)
        if point is None:
            if floor[0] > 0:
                raise RowsFailed(f"{path} has no steady point, and the log begins after entry {floor[0]}")
            file, state = environment.create(path, identity)
            return cls(path, identity, boot, disk, file, state, None)
        is_restored = point.boot != boot
        if is_restored:
            point = environment.restore(disk, path, point, boot)
        file, state = environment.open_existing(path, identity, progress)
        try:
            if is_restored and state.applied != point.applied:
                raise RowsFailed(
                    f"{path} was reset to its steady point at entry {point.applied_index}, and is at entry"
                    f" {state.applied_index}"
                )
            if state.applied_index < floor[0]:
                raise RowsFailed(
                    f"{path} ends at entry {state.applied_index}, and the log begins after entry {floor[0]}"
                )
            rows = cls(path, identity, boot, disk, file, state, point)
            with translated(path):
                rows._repin()
                if environment.is_suspect(path):
                    rows.recount()
                    environment.forget_use(path)
        except BaseException:
            file.close()
            raise
        return rows

    # --- figures ---

    @property
    def applied(self) -> tuple[int, int]:
        """Index and term of the last applied entry."""
        return self._state.applied

    @property
    def state(self) -> RowsState:
        """State after the last applied entry: digest, counts, the tablet's clock."""
        return self._state

    @property
    def seal(self) -> Seal:
        """The seal of a tablet that is split or merged."""
        return self._seal

    @property
    def point(self) -> tuple[int, int]:
        """Index and term of the last steady point: a power cut loses nothing up to it, so the log's floor may rise to
        it."""
        return self._point.applied if self._point is not None else (0, 0)

    @property
    def identity(self) -> Identity:
        """The tablet and generation that the file belongs to."""
        return self._identity

    @property
    def is_closed(self) -> bool:
        """True once the file is being closed: who still uses it should stop."""
        return self._is_closed

    @property
    def may_sync(self) -> bool:
        """True if the next `apply` must first make a steady point or open the file again, and so waits for the disk."""
        return self._must_point or self._must_reopen

    def is_slow(self, entries: Sequence[Entry]) -> bool:
        """Return True if `apply` of these entries would make a file or wait for the disk."""
        makes_file = not self._file.is_made and any(entry.kind == NORMAL for entry in entries)
        return makes_file or self.may_sync

    def is_due(self, now_s: float) -> bool:
        """Return True if `steady` should be called. `now_s` is any clock that does not go back."""
        return self._unsteady.is_due(now_s)

    # --- applying ---

    def apply(self, entries: Sequence[Entry]) -> list[WriteOutcome]:
        """Apply committed entries, which follow the last applied one; return an outcome for each.

        The list is shorter if the disk became full meanwhile. The remaining entries can be applied later.

        Raises:
            RowsFull: there is no room; nothing was changed.
            RowsFailed: the rows or an entry are damaged.
            RowsClosed: the rows were closed.
        """
        if self._must_reopen:
            self._reopen()
        if self._must_point:
            self.steady()
        outcomes: list[WriteOutcome] = []
        with self._committing:
            self._check_usable()
            while len(outcomes) < len(entries):
                # Not `_guarded`: a small round takes little more time than its two context managers.
                try:
                    outcomes += self._round(entries, len(outcomes))
                except Exception as error:
                    self.notes.lose()
                    found = self._noted(error)
                    if outcomes and isinstance(found, RowsError) and not isinstance(found, RowsFailed):
                        break
                    if found is error:
                        raise
                    raise found from error
        return outcomes

    def _round(self, entries: Sequence[Entry], start: int) -> list[WriteOutcome]:
        """Apply as many entries as fit in one commit, up to the next entry at which replicas are compared."""
        applied = self._state.applied_index
        stop = self.marks.stop_after(applied)
        outcomes = self._commit(self._decoded(entries, start, stop - applied))
        if self._state.applied_index == stop:
            self.marks.reached(stop, self._state.digest)
        return outcomes

    def _commit(self, commands: list[tuple[Entry, Command]]) -> list[WriteOutcome]:
        """Apply the entries of one commit."""
        first = commands[0]
        if isinstance(first[1], SealCommand):
            return [self._commit_seal(first[0], first[1])]
        if self._is_sealed:
            return self._pass_sealed(commands)
        if all([command is None for _, command in commands]):  # noqa: C419 (a generator takes longer)
            last = commands[-1][0]
            assert commands[0][0].index == self._state.applied_index + 1, f"entry {last.index} does not follow"
            self._state = msgspec.structs.replace(self._state, applied_index=last.index, applied_term=last.term)
            return [WriteOutcome(NO_COMMAND, entry.term, entry.index) for entry, _ in commands]
        file = self._file
        transaction = self._begin()
        try:
            results = StoredResults(transaction, file.writers)
            work = Round(self._state, transaction.get, results, next_expiry_ms=self._next_expiry_ms)
            outcomes = work.apply_all(commands)  # type: ignore[arg-type]  # none is about the seal
            changes = work.finish()
            for key in changes.deletes:
                transaction.delete(key)
            if len(changes.puts) >= MANY_PUTS:
                with transaction.cursor() as cursor:
                    cursor.putmulti(changes.puts)
            else:
                for key, sealed in changes.puts:
                    transaction.put(key, sealed)
            transaction.put(STATE_KEY, seal(STATE_KEY, encode(changes.state)), db=file.meta)
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        self.notes.add(changes)
        self._state = self._stored = changes.state
        self._next_expiry_ms = work.next_expiry_ms()
        # An upper bound: changed rows may share pages.
        pages = changes.count + 2 * changes.records + _COMMIT_PAGES
        self._unsteady.note(changes.size + file.page_bytes * pages)
        return outcomes

    def _commit_seal(self, entry: Entry, command: SealCommand) -> WriteOutcome:
        """Apply an entry about the seal."""
        after, code = seal_after(self._seal, command, entry.term, entry.index)
        state = sealing.state_after(self._state, self._seal, after, command, entry)
        # Before the commit: no read may see it, and be answered.
        self._is_sealed = self._is_sealed or after.is_set
        transaction = self._begin()
        try:
            sealing.store(transaction, self._file, state, after)
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        self._state = self._stored = state
        self._seal, self._is_sealed = after, after.is_set
        self._next_expiry_ms = 0
        self._unsteady.note(self._file.page_bytes * _COMMIT_PAGES)
        return sealing.outcome_of(code, after, entry)

    def _pass_sealed(self, commands: list[tuple[Entry, Command]]) -> list[WriteOutcome]:
        """Let entries behind the seal pass: they change nothing but the applied index, in memory."""
        with self._file.env.begin(db=self._file.writers) as transaction:
            results = StoredResults(transaction, self._file.writers)
            outcomes = [sealing.outcome_behind(results, self._state, entry, command) for entry, command in commands]
        last = commands[-1][0]
        self._state = msgspec.structs.replace(self._state, applied_index=last.index, applied_term=last.term)
        return outcomes

    def _decoded(self, entries: Sequence[Entry], start: int, limit: int) -> list[tuple[Entry, Command]]:
        """Return the entries of the next commit with their commands, at most `limit`. An entry about the seal is alone
        in its commit."""
        found: list[tuple[Entry, Command]] = []
        operations = size = 0
        for position in range(start, min(len(entries), start + min(limit, ROUND_ENTRIES_MAX))):
            entry = entries[position]
            command: Command = None
            if entry.kind == NORMAL:
                try:
                    command = decode(entry.data)
                except CommandError as error:
                    raise RowsFailed(f"{self.path}: entry {entry.index} cannot be applied: {error}") from error
                if isinstance(command, SealCommand):
                    return found or [(entry, command)]
                operations += len(command.operations)
                size += len(entry.data)
                if found and (operations > ROUND_OPERATIONS_MAX or size > ROUND_BYTES_MAX):
                    break
            found.append((entry, command))
        return found

    def _begin(self) -> Any:
        """Begin a commit. Raise RowsFull if LMDB refuses the environment because the disk has failed it once."""
        assert not self._must_point, "a commit could write over the pages of the steady point"
        try:
            return self._file.env.begin(write=True, db=self._file.rows)
        except lmdb.PanicError as error:
            self._must_reopen = True
            raise RowsFull(f"{self.path}: the disk has failed a commit; the next call opens the file anew") from error

    def _reopen(self) -> None:
        """Open the file again because LMDB rejects the environment; the pin ends."""
        with self._guarded(), self._steadying, self._committing, self._changed:
            self._check_usable()
            self._close_file()
            # `_state` and `_seal` remain those after the last applied entry, because a failed commit is repeated.
            self._file, self._stored = environment.open_existing(self.path, self._identity, lambda: None)
            self._must_reopen = False
            self._repin()

    def _close_file(self) -> None:
        """Wait for reads, then close the file. Raise RowsFailed if they take too long."""
        if not self._changed.wait_for(lambda: self._users == 0, CLOSE_WITHIN_S):
            raise RowsFailed(f"{self.path}: a read has been under way for {CLOSE_WITHIN_S:g} s")
        for held in list(self._held):
            held.end()
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        self._file.close()

    def _repin(self) -> None:
        """Pin the steady point if the file is still in its state; else require a new point before the next commit."""
        if self._point is None:
            return
        pin = self._begin_pin()
        if pin.id() == self._point.transaction:
            self._pin = pin
            self._must_point = False
        else:
            pin.abort()
            self._must_point = True

    # --- steady points ---

    def steady(self) -> tuple[int, int]:
        """Make a steady point of the present state; return its index and term.

        Commits and reads continue meanwhile.

        Raises:
            RowsFull: there is no room for the point; the former point remains.
            RowsFailed: the file cannot be made durable.
            RowsClosed: the rows were closed.
        """
        with self._steadying, self._guarded():
            if self._must_point:
                self._make_point()  # before storing the applied index, which is a commit, too
            self._make_point()
        return self.point

    def _make_point(self) -> None:
        with self._committing:
            self._check_usable()
            if not self._must_point:
                self._store_applied()
            pin = self._begin_pin()
            state, written, transaction = self._stored, self._unsteady.written, pin.id()
            page_bytes = self._file.page_bytes
            try:
                if self._point is not None and self._pin is not None and transaction == self._point.transaction:
                    pin.abort()
                    return
                metas = self._disk.read_metas(self.path, page_bytes)
            except BaseException:
                pin.abort()
                raise
        point = SteadyPoint(
            steady.FORMAT,
            self._identity.tablet,
            self._identity.generation,
            self._boot,
            state.applied_index,
            state.applied_term,
            transaction,
            page_bytes,
            metas,
        )
        try:
            assert steady.latest_transaction(metas, page_bytes, self.path) == transaction, "another commit's meta pages"
            self._sync()
            if self._point is None:
                self._disk.sync_name(self.path)  # a steady point without its file would look like lost rows
            self._disk.replace(environment.steady_path(self.path), steady.encode(point))
        except BaseException:
            # The new point may be in place already. The former pin protects its pages as well: none of them can have
            # been freed before the former point.
            pin.abort()
            raise
        with self._committing:
            former, self._pin = self._pin, pin
            self._point = point
            self._must_point = False
            self._unsteady.covered(written)
        if former is not None:
            former.abort()

    def _begin_pin(self) -> Any:
        """Begin the read transaction that keeps the pages of the latest commit."""
        return self._file.env.begin()

    def _sync(self) -> None:
        """Sync the file.

        After a failed sync the system forgets the unwritten pages, and the next sync would succeed without them. So the
        file must be reset to its former point, by this process or the next.
        """
        try:
            self._disk.sync(self._file.env)
        except (lmdb.Error, OSError) as error:
            if self._point is not None:
                unusable = msgspec.structs.replace(self._point, boot="")
                with contextlib.suppress(OSError):
                    self._disk.replace(environment.steady_path(self.path), steady.encode(unusable))
            raise RowsFailed(f"{self.path} cannot be synced: {error}") from error

    def _store_applied(self) -> None:
        """Store an applied index that is only in memory."""
        state = self._state
        if state.applied == self._stored.applied:
            return
        transaction = self._begin()
        try:
            transaction.put(STATE_KEY, seal(STATE_KEY, encode(state)), db=self._file.meta)
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        self._stored = state
        self._unsteady.note(self._file.page_bytes * _COMMIT_PAGES)

    # --- reading ---

    @contextlib.contextmanager
    def reading(self) -> Iterator[RowSnapshot]:
        """Yield the present rows: at `applied`, or later.

        Raises:
            RowsFailed: the rows are damaged.
            RowsClosed: the rows were closed.
        """
        with self.using_file() as file:
            with self._guarded():
                transaction = file.env.begin(db=file.rows)
            try:
                with transaction:
                    if self._is_sealed:
                        yield sealing.sealed_snapshot(self._identity.tablet)
                    else:
                        yield RowSnapshot(transaction, hold=lambda: self._hold(file))
            except (RpcError, *DAMAGE) as error:
                with self._guarded():  # errors that the caller raises for other reasons pass
                    raise error

    def _hold(self, file: RowsFile) -> HeldRows:
        """Begin a snapshot that stays until it ends or the file closes. Call this while the file is in use."""
        transaction = file.env.begin(db=file.rows)
        try:
            state = environment.stored_state(transaction, file.meta)
        except BaseException:
            transaction.abort()
            raise
        point = RowsPoint(
            term=state.applied_term,
            index=state.applied_index,
            rows=state.rows,
            size=state.size,
            digest=state.digest,
        )
        held = HeldRows(transaction, point, ended=self._held.discard)
        self._held.add(held)
        return held

    def recount(self) -> tuple[RowsState, RowsState]:
        """Read every row; return the stored state, and the state computed from the rows.

        Raises:
            RowsFailed: a row is damaged.
        """
        with self._guarded(), self.using_file() as file, file.env.begin(db=file.rows) as transaction:
            stored = environment.stored_state(transaction, file.meta)
            count = size = total = 0
            with transaction.cursor() as cursor:
                for key, sealed in cursor:
                    value = unseal(key, sealed)
                    count += 1
                    size += len(key) + len(value)
                    total += row_hash(key, value)
        empty = bytes(len(stored.digest))
        return stored, msgspec.structs.replace(stored, rows=count, size=size, digest=add_to_digest(empty, total))

    # --- ends ---

    def close(self) -> None:
        """Make a steady point, wait for reads, and close the file. Without room for a point, the log keeps the later
        entries.

        Raises:
            RowsFailed: the rows are damaged, or a read takes too long.
        """
        try:
            # The log has everything of a file that was never made.
            if not self.damage and not self._is_closed and self._file.is_made:
                with contextlib.suppress(RowsError):
                    self.steady()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without a steady point, as if the process had died. Raise RowsFailed."""
        with self._steadying, self._committing, self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._close_file()
            if not self.damage:
                with contextlib.suppress(OSError):  # at worst the next open reads the file page by page
                    environment.forget_use(self.path)

    def _check_usable(self) -> None:
        if self.damage:
            raise RowsFailed(self.damage)
        if self._is_closed:
            raise RowsClosed(f"{self.path} is closed")

    @contextlib.contextmanager
    def using_file(self) -> Iterator[RowsFile]:
        """Keep the file open during a `with` block. Raise RowsFailed, RowsClosed."""
        with self._changed:
            self._check_usable()
            self._users += 1
            file = self._file
        try:
            yield file
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Translate errors. Store the first RowsFailed, and raise it at every later call."""
        try:
            yield
        except Exception as error:
            found = self._noted(error)
            if found is error:
                raise
            raise found from error

    def _noted(self, error: Exception) -> Exception:
        """Translate an exception, and note RowsFailed."""
        found = translation(self.path, error)
        if isinstance(found, RowsFailed) and not self.damage:
            self.damage = str(found)
            environment.suspect(self.path)
        return found
