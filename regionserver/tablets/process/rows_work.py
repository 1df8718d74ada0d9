"""Work on rows, on threads: opening, rounds of entries, reads, steady points.

Small rounds and reads are done on the reactor's thread (in_place.py). The threads that apply and read are separate from
those that open files and make steady points, because a steady point may wait for the disk for a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env_os import waited_s
from coord.errors import StorageError
from coord.raft.messages import Entry
from coord.rpc.wire import RpcError
from coord.storage.records import LogItem
from coord.storage.shared.items import Floor, Position
from coord.storage.shared.log import SEGMENTS_CHECKPOINT, SharedLog
from regionserver.kv.messages import DAMAGED
from regionserver.kv.snapshot import DAMAGE
from regionserver.tablets.commands import WriteOutcome
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.quiet import Looks
from regionserver.tablets.host.requests import Fate, ReadyRead, TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process import floors
from regionserver.tablets.process.in_place import InPlace
from regionserver.tablets.process.interfaces import RowsReader, ThreadedReactor
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.rows.errors import RowsClosed, RowsError, RowsFailed, RowsFull
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.workers import Workers

log = Logger()

T = TypeVar("T")

#: Pause before work that found no room on the disk is tried again.
FULL_RETRY_S: Final = 0.5
#: Bytes of entries that are read back at once for a member: as many as one append carries.
READ_BACK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class WaitingRequest:
    """A request that waits for its answer. Only reads have `reader`; `keys` is as in `TabletHost.read`."""

    tablet: str
    answer: Deferred[TabletAnswer]
    reader: RowsReader | None = None
    keys: int = 0


@dataclass(frozen=True, slots=True)
class ReadsDone:
    """The results of reads of one snapshot, and the position up to which the snapshot may reach."""

    values: list[Any]
    index: int
    term: int


class RowsWork:
    """The rows of all replicas. Every method is called on the reactor's thread."""

    def __init__(
        self,
        turn: Turn,
        replicas: dict[str, TabletReplica],
        waiting: dict[int, WaitingRequest],
        reactor: ThreadedReactor,
        pool: Workers,
        slow_pool: Workers,
        park: Callable[[str, str], None],
    ) -> None:
        self._in_place = InPlace(waited_s)
        self._turn = turn
        self._replicas = replicas
        self._waiting = waiting
        self._reactor = reactor
        self._pool = pool
        self._slow_pool = slow_pool
        self._park = park
        #: Tablets whose rows were found waiting for room: each write asks.
        self._full: set[str] = set()
        #: Chooses the tablets that a sweep examines; and the tablets whose points were due at the last sweep.
        self._looks = Looks()
        self._due: list[str] = []
        #: Floors for the next batch of the log.
        self.floors: list[Floor] = []
        #: (tablet, member) pairs for which entries are being read back; members that need dropped entries.
        self._loading: set[tuple[str, int]] = set()
        self._lacking: set[tuple[str, int]] = set()

    def is_full(self) -> bool:
        """Return True if some rows wait for room on the disk."""
        if self._full:
            self._full = {
                tablet for tablet in self._full if tablet in self._replicas and self._replicas[tablet].is_full
            }
        return bool(self._full)

    def begin_turn(self) -> None:
        """Begin a turn of the host."""
        self._in_place.begin_turn()

    # --- rounds -------------------------------------------------------------------------------------------------------

    def apply_all(self, rounds: Mapping[str, list[Entry]]) -> bool:
        """Apply the rounds of a turn. Report each round when the rows hold all of it. Return True if some were reported
        at once."""
        is_any = False
        for tablet, entries in rounds.items():
            replica = self._replicas[tablet]
            rows = replica.rows
            assert rows is not None, f"{tablet} has a round and no rows"
            is_here = not rows.is_slow(entries) and self._in_place.takes(entries)
            self._apply(replica, rows, self._turn.groups[tablet], entries, [], is_here=is_here)
            is_any |= is_here
        return is_any

    def _apply(
        self,
        replica: TabletReplica,
        rows: TabletRows,
        group: Group,
        entries: list[Entry],
        done: list[WriteOutcome],
        *,
        is_here: bool = False,
    ) -> None:
        def ended(result: list[WriteOutcome] | Exception) -> None:
            if self._turn.groups.get(replica.tablet) is not group:
                return
            if isinstance(result, list):
                done.extend(result)
            elif not isinstance(result, RowsFull):
                self._park(replica.tablet, _sentence(result))
                return
            if len(done) == len(entries):
                replica.is_full = False
                self._turn.applied(replica.tablet, entries[-1].index, done)
                return
            if not replica.is_full:
                replica.is_full = True
                self._full.add(replica.tablet)
                log.error("rows of tablet {tablet} wait for room on the disk", tablet=replica.tablet)
            self._reactor.callLater(FULL_RETRY_S, self._apply, replica, rows, group, entries, done)

        rest = entries[len(done) :] if done else entries
        if is_here:
            ended(self._here(lambda: rows.apply(rest)))
        else:
            self._pool.submit(lambda: rows.apply(rest), ended)

    def _here(self, work: Callable[[], T]) -> T | Exception:
        """Do small work on the reactor's thread."""
        try:
            return work()
        except Exception as error:  # as in the pool, the exception is the result
            return error
        finally:
            self._in_place.done()

    # --- reads --------------------------------------------------------------------------------------------------------

    def read(self, ready: Sequence[ReadyRead]) -> None:
        """Serve reads from their rows: those of one tablet from one snapshot."""
        by_tablet: dict[str, list[ReadyRead]] = {}
        for one in ready:
            if one.request in self._waiting:
                by_tablet.setdefault(one.tablet, []).append(one)
        for tablet, reads in by_tablet.items():
            replica = self._replicas.get(tablet)
            if replica is None or replica.rows is None:
                self._refuse([one.request for one in reads])
            else:
                self._read(replica, replica.rows, reads)

    def _read(self, replica: TabletReplica, rows: TabletRows, ready: list[ReadyRead]) -> None:
        waiting = [self._waiting[one.request] for one in ready]
        readers = [one.reader for one in waiting]

        def ended(result: ReadsDone | Exception) -> None:
            if not isinstance(result, ReadsDone):
                if isinstance(result, RowsFailed):
                    self._park(replica.tablet, _sentence(result))
                elif not isinstance(result, RowsClosed):
                    log.warn("reads of tablet {tablet} failed: {why}", tablet=replica.tablet, why=_sentence(result))
                self._refuse([one.request for one in ready])
                return
            for read, value in zip(ready, result.values, strict=True):
                one = self._waiting.pop(read.request, None)
                if one is None:
                    continue
                if isinstance(value, Failure):
                    one.answer.errback(value)
                else:
                    answer = TabletAnswer(replica.tablet, read.request, Fate.DONE, value, result.term, result.index)
                    answer.as_of_ms = read.as_of_ms
                    one.answer.callback(answer)

        if self._in_place.takes_reads([one.keys for one in waiting]):
            ended(self._here(lambda: _read_all(rows, readers)))
        else:
            self._pool.submit(lambda: _read_all(rows, readers), ended)

    def _refuse(self, requests: list[int]) -> None:
        for request in requests:
            waiting = self._waiting.pop(request, None)
            if waiting is not None:
                waiting.answer.callback(TabletAnswer(waiting.tablet, request, Fate.FAILED))

    # --- entries for members that are behind ---

    def read_back(self, shared: SharedLog, tablet: str, member: int, first: int) -> None:
        """Read entries from `first` on from the log, for a member that needs them."""
        replica = self._replicas.get(tablet)
        if replica is None or (tablet, member) in self._loading or replica.block.slot is None:
            return
        self._loading.add((tablet, member))

        def ended(result: tuple[Position | None, list[LogItem]] | Exception) -> None:
            self._loading.discard((tablet, member))
            if isinstance(result, Exception):
                log.warn("entries for member {number} of tablet {tablet} cannot be read: {why}",
                         number=member, tablet=tablet, why=_sentence(result))  # fmt: skip
                return
            before, items = result
            if before is not None:
                entries = [Entry(item.term, item.index, item.kind, item.data) for item in items]
                self._turn.loaded(tablet, member, before, entries)
                return
            self._turn.lacks_log(tablet, member, first)
            if (tablet, member) not in self._lacking:
                self._lacking.add((tablet, member))
                why = "it lacks entry {first}, which the log has dropped"
                log.warn("member {number} of tablet {tablet} needs a copy: " + why,
                         number=member, tablet=tablet, first=first)  # fmt: skip

        slot = replica.slot
        self._slow_pool.submit(lambda: shared.entries_from(slot, first, READ_BACK_BYTES), ended)

    # --- steady points and floors -------------------------------------------------------------------------------------

    def sweep(self, now_s: float, shared: SharedLog) -> None:
        """Make steady points that are due, and move floors. Called once a second.

        The entries that every member has do not change while a tablet is quiet, and there may be thousands of quiet
        tablets. So a quiet tablet is examined once in QUIET_LOOKS calls, unless the log waits for its floor.
        """
        segments = shared.segment_count()
        pinning = frozenset(shared.pinning()) if segments >= SEGMENTS_CHECKPOINT else frozenset()
        able: list[tuple[TabletReplica, TabletRows]] = []
        candidates: list[floors.PointCandidate] = []
        awake = self._turn.quiet.awake
        looked = list(self._replicas) if pinning else self._looks.next(self._replicas, awake, self._due)
        self._due.clear()
        for tablet in looked:
            replica = self._replicas[tablet]
            rows = replica.rows
            if rows is None or replica.is_steadying or rows.damage or not replica.is_serving():
                continue
            is_due = rows.is_due(now_s)
            if is_due:
                self._due.append(tablet)
            elif tablet not in awake and not pinning:
                continue
            able.append((replica, rows))
            is_pinning = replica.slot in pinning
            candidates.append(floors.PointCandidate(rows.point[0], rows.applied[0], is_pinning, is_due))
        wanted = floors.points_wanted(candidates, segments)
        for (replica, rows), candidate, is_wanted in zip(able, candidates, wanted, strict=True):
            if is_wanted:
                self._make_point(replica, rows, segments if candidate.is_pinning else 0)
            else:
                self.move_floor(replica, rows, segments if candidate.is_pinning else 0)

    def _make_point(self, replica: TabletReplica, rows: TabletRows, segments: int) -> None:
        replica.is_steadying = True

        def ended(result: tuple[int, int] | Exception) -> None:
            replica.is_steadying = False
            if isinstance(result, RowsFailed):
                self._park(replica.tablet, _sentence(result))
            elif isinstance(result, RowsFull):
                log.warn("no steady point of tablet {tablet}: {why}", tablet=replica.tablet, why=str(result))
            elif not isinstance(result, Exception) and replica.rows is rows:
                self.move_floor(replica, rows, segments)

        self._slow_pool.submit(rows.steady, ended)

    def move_floor(self, replica: TabletReplica, rows: TabletRows, segments: int) -> None:
        """Let the log drop the entries that the rows hold durably and every member has."""
        group = self._turn.groups.get(replica.tablet)
        if group is None or group.failure:
            return
        index = floors.target(rows.point[0], group.everywhere(), segments, replica.pin)
        if index <= replica.floor:
            return
        if index > group.everywhere():
            log.warn(
                "the log drops entries of tablet {tablet} up to {index}; members that are away may need a copy",
                tablet=replica.tablet,
                index=index,
            )
        floor = self._turn.steady(replica.tablet, index)
        if floor is not None:
            replica.floor = floor.index
            self.floors.append(floor)


def _read_all(rows: TabletRows, readers: Sequence[RowsReader | None]) -> ReadsDone:
    """Run the readers on one snapshot. An exception of a reader becomes its result, unless the rows are damaged."""
    values: list[Any] = []
    with rows.reading() as snapshot:
        for reader in readers:
            assert reader is not None, "a read without a reader"
            try:
                values.append(reader(snapshot))
            except DAMAGE:
                raise
            except Exception as error:
                if isinstance(error, RpcError) and error.code == DAMAGED:
                    raise
                values.append(Failure())  # type: ignore[no-untyped-call]
    # Read after the rows: the snapshot holds nothing later.
    index, term = rows.applied
    return ReadsDone(values, index, term)


def _sentence(error: Exception) -> str:
    """Return the error in one line."""
    if isinstance(error, (RowsError, StorageError)):
        return str(error)
    return f"{type(error).__name__}: {error}"
