"""Orders to prepare the daughters of tablets on one server, and the fate of the prepared files (`prepared.py`).

    PREPARE -> copying -> current -> finished -> taken by the daughters' replicas
               any        -> given up

Files are current while keys that are written meanwhile are copied again, so that few are left at the seal. They are
finished as soon as all parents' replicas here have applied the seal, often before the order to open the daughters. They
are given up if the split or merge is canceled, if a parent's rows are closed, or if a seal has not come KEPT_S after
the last order.

Every method is called on the reactor's thread. The copies of all tablets share one thread, and the remaining work at a
seal has another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from coord.errors import CoordError
from coord.rpc.wire import RpcError
from regions.messages import BAD_REQUEST, BUSY, PrepareRows, RowsPrepared
from regions.records.model import RegionRecord
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.process.interfaces import ReplicaOpening
from regionserver.tablets.rows.errors import RowsFull
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.splits.heirs import Daughter, remove_rows
from regionserver.tablets.splits.prepared import LEFT_MAX, PreparedHeirs, remove_prepared
from regionserver.tablets.splits.refusals import HeldRefusals
from regionserver.tablets.upkeep.rests import AdaptedRests, ThreadRests
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.values.seals import Seal
from regionserver.workers import WorkerPool, Workers

log = Logger()

#: Interval at which prepared files are looked at: the seal is noticed so late.
LOOK_S: Final = 0.005
#: A split that is not sealed so long after it was prepared is canceled: longer than masters wait for the other members'
#: servers and then for the seal.
KEPT_S: Final = 600.0


class _Preparation:
    """The daughters of one split or merge."""

    def __init__(self, rows: Sequence[TabletRows], heirs: PreparedHeirs, request: PrepareRows, until_s: float) -> None:
        #: The parents by key, and their rows.
        self.parents: Sequence[str] = request.parents
        self.rows = rows
        self.heirs = heirs
        self.name = request.seal
        self.daughters: Sequence[RegionRecord] = request.daughters
        self.until_s = until_s
        self.is_copied = False
        self.is_over = False
        #: True while a thread works on files that are current.
        self.is_busy = False
        #: Why the files cannot be used.
        self.failure: Exception | None = None
        #: The finished files that no replica has taken; and True while a thread makes them.
        self.made: dict[str, Daughter] = {}
        self.is_finishing = False
        self.is_finished = False
        self._waiting: list[Deferred[None]] = []

    def changed(self) -> None:
        """Wake everybody who waits for a change."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def change(self) -> Deferred[None]:
        """Return a Deferred that fires at the next change."""
        found: Deferred[None] = Deferred()
        self._waiting.append(found)
        return found


class Preparations:
    """See the module docstring."""

    def __init__(
        self,
        reactor: Any,
        host: TabletHost,
        directory: Path,
        space: DiskSpace | None,
        making: WorkerPool,
        refusals: HeldRefusals,
    ) -> None:
        """`making` is the pool whose one thread makes daughters without preparation, under the same file names.

        `refusals` gets the daughters' names.
        """
        self._refusals = refusals
        self._making = making
        self._reactor = reactor
        self._host = host
        self._directory = directory
        self._space = space
        self._works: dict[str, _Preparation] = {}
        self._is_looking = False
        self._copying = Workers(
            reactor, 1, lambda: None, lambda failure: log.failure("prepared rows", failure), is_background=True
        )
        self._rests = AdaptedRests(reactor, lambda: host.handled, lambda: self._copying.pending > 0)
        self._finishing = Workers(reactor, 1, lambda: None, lambda failure: log.failure("prepared rows", failure))
        self._copying.submit(lambda: remove_prepared(directory), lambda _: None)

    def stop(self) -> None:
        """Prepare nothing any more."""
        for tablet in list(self._works):
            self._give_up(tablet, "the server stops")
        self._finishing.stop(1.0)
        self._copying.stop(0.0)

    # --- orders -------------------------------------------------------------------------------------------------------

    async def prepare(self, request: PrepareRows) -> RowsPrepared:
        """Copy the rows of tablets for their daughters; without daughters: give the prepared files up. Raise
        RpcError."""
        tablet = request.parents[0]
        work = self._works.get(tablet)
        if not request.daughters:
            if work is not None and work.name == request.seal:
                self._give_up(tablet, "it is canceled")
            return RowsPrepared()
        if work is None or work.name != request.seal:
            for first in self._works_of(request.parents):
                self._give_up(first, "another split or merge has begun")
            if busy := self._works_of(request.parents):
                raise RpcError(BUSY, f"an earlier split or merge of {', '.join(busy)} is being given up")
            work = self._begin(request)
        work.until_s = self._reactor.seconds() + KEPT_S
        while not work.is_copied and not work.is_over:
            await work.change()
        if not work.is_over or work.is_finished:
            return RowsPrepared()
        code = BAD_REQUEST if isinstance(work.failure, RowsFull) else BUSY
        raise RpcError(code, f"the rows of {' and '.join(request.parents)} cannot be prepared: {work.failure}")

    def _works_of(self, parents: Sequence[str]) -> list[str]:
        """Return the first parents of the work that uses the rows of one of these tablets."""
        return [first for first, work in self._works.items() if not set(work.parents).isdisjoint(parents)]

    def _begin(self, request: PrepareRows) -> _Preparation:
        tablet = request.parents[0]
        rows: list[TabletRows] = []
        for parent in request.parents:
            found = self._host.rows_of(parent)
            if found is None or found.seal.is_set:
                raise RpcError(BUSY, f"tablet {parent} {'does not run here' if found is None else 'is sealed'}")
            rows.append(found)
        if here := self._here(request.daughters):
            raise RpcError(BUSY, here)
        heirs = PreparedHeirs(rows, self._directory, request.daughters, self._space)
        for parent in request.parents:
            self._refusals.expect(parent, [one.region_id for one in request.daughters])
        work = self._works[tablet] = _Preparation(rows, heirs, request, 0.0)
        rests = ThreadRests(self._rests.factor)

        def copy() -> None:
            rests.begin()
            heirs.copy(rests.rest)

        def copied(failed: Exception | None) -> None:
            if failed is not None:
                self._failed(tablet, work, failed)
                return
            work.is_copied = True
            work.until_s = self._reactor.seconds() + KEPT_S
            log.info("tablet {tablet}: the rows of its daughters are prepared", tablet=tablet)
            work.changed()

        self._copying.submit(copy, copied)
        self._rests.begin()
        self._look_soon()
        return work

    def _here(self, daughters: Sequence[RegionRecord]) -> str:
        """Return which daughter is on this server already, "" for none. Its rows must not be replaced by prepared ones.

        An order may be late, and a parent that has restarted may not have applied its seal again yet.
        """
        here = [one.region_id for one in daughters if self._host.report(one.region_id) is not None]
        return f"tablet {here[0]}, which is to be prepared, is on this server already" if here else ""

    # --- while they are kept ------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._reactor.callLater(LOOK_S, self._look_at_all)

    def _look_at_all(self) -> None:
        self._is_looking = False
        for tablet, work in list(self._works.items()):
            if not work.is_over:
                self._look(tablet, work)
        if self._works:
            self._look_soon()

    def _look(self, tablet: str, work: _Preparation) -> None:
        rows, seals = work.rows, [one.seal for one in work.rows]
        is_there = all(self._host.rows_of(one) is own for one, own in zip(work.parents, rows, strict=True))
        if not is_there or any(one.is_closed for one in rows):
            self._give_up(tablet, "a tablet was closed")
        elif any(one.canceled == work.name or (one.is_set and one.resharding != work.name) for one in seals):
            self._give_up(tablet, "it is canceled")
        elif work.is_copied and all(one.is_set for one in seals):
            if work.is_finishing or work.is_finished:
                return
            if here := self._here(work.daughters):
                self._give_up(tablet, here)
            else:
                self._finish(tablet, work, seals)
        elif work.is_copied and self._reactor.seconds() > work.until_s:
            self._give_up(tablet, "it was not sealed")
        elif work.is_copied and not work.is_busy and work.heirs.behind() > LEFT_MAX:
            self._catch_up(tablet, work)

    def _catch_up(self, tablet: str, work: _Preparation) -> None:
        work.is_busy = True

        def done(result: int | Exception) -> None:
            work.is_busy = False
            if isinstance(result, Exception):
                self._failed(tablet, work, result)

        self._finishing.submit(work.heirs.catch_up, done)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, tablet: str, work: _Preparation, seals: Sequence[Seal]) -> None:
        """Make the files those of the daughters: the replicas here hold the seals."""
        work.is_finishing = True
        parts = self._host.life.parts()

        def finish() -> list[Daughter]:
            daughters = []
            for one in work.daughters:
                identity = Identity(one.region_id, parts.files.next_generation(one.region_id))
                path = os.fspath(self._directory / rows_path(identity.tablet, identity.generation))
                daughters.append(Daughter(path, identity, one.start_key, one.end_key))
            work.heirs.finish(seals, daughters, parts.boot)
            return daughters

        def finished(result: list[Daughter] | Exception) -> None:
            work.is_finishing = False
            if isinstance(result, Exception):
                self._failed(tablet, work, result)
                return
            work.made = {one.identity.tablet: one for one in result}
            work.is_finished = True
            if work.is_over:
                del self._works[tablet]
                self._remove(work)
            work.changed()

        self._finishing.submit(finish, finished)

    async def take(self, parent: str, opening: ReplicaOpening, name: str) -> Daughter | None:
        """Return the finished file of a daughter, which the caller owns from now on; None if there is none.

        `parent` is the first parent, and `name` the name of the seal.
        """
        work = self._works.get(parent)
        if work is None or work.name != name:
            return None
        if not work.is_over:
            self._look(parent, work)
        if not work.is_copied:
            self._give_up(parent, "the seal has come before the end of the copy", work)
        while self._works.get(parent) is work and not work.is_finished:
            await work.change()
        made = work.made.pop(opening.tablet, None)
        if not work.made and self._works.get(parent) is work:
            del self._works[parent]
        if made is None or (made.start_key, made.end_key) == (opening.start_key, opening.end_key):
            return made
        self._making.submit(lambda: remove_rows(made.path), lambda _: None)
        return None

    def _failed(self, tablet: str, work: _Preparation, failure: Exception) -> None:
        work.failure = work.failure or failure
        if not isinstance(failure, (CoordError, OSError)):
            log.error("the rows of the daughters of {tablet} cannot be prepared: {error}", tablet=tablet,
                      error=f"{type(failure).__name__}: {failure}")  # fmt: skip
        self._give_up(tablet, str(failure), work)

    def _give_up(self, tablet: str, why: str, work: _Preparation | None = None) -> None:
        """Remove the files of a tablet's daughters, unless they are replicas' already."""
        work = work or self._works[tablet]
        was_over, work.is_over = work.is_over, True
        if work.is_finishing:
            return  # a thread is making the daughters' files; they are removed when it has ended
        if self._works.get(tablet) is work:
            del self._works[tablet]
        if was_over:
            work.changed()
            return
        log.info("tablet {tablet}: prepared rows of daughters are given up: {why}", tablet=tablet, why=why)
        if work.failure is None:
            work.failure = CoordError(why)
        if work.is_finished:
            self._remove(work)
        else:
            self._finishing.submit(work.heirs.discard, lambda _: None)
        work.changed()

    def _remove(self, work: _Preparation) -> None:
        """Remove finished files that no replica has taken.

        A daughter's replica may be a copy from another server: its rows have the same name, and its superblock is
        older than they are.
        """
        daughters, files = list(work.made.values()), self._host.life.parts().files
        work.made.clear()

        def remove() -> None:
            for one in daughters:
                if not files.has_block(one.identity.tablet):
                    remove_rows(one.path)

        self._making.submit(remove, lambda _: None)
