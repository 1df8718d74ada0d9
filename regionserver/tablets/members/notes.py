"""Notes of committed configurations: consensus metadata that are written together, with a least interval.

A replacement of a member commits three configurations within seconds, on every server that has the tablet. Each file
costs two syncs and a new inode. So the latest configurations of all tablets are written together, and a tablet whose
configuration has changed several times is written once. While a dead server's tablets get new members, these files are
nearly half of all files that the servers make.

Until a configuration is noted, the log keeps its entry. So a note may wait, or be dropped because the replica was
stopped: the next start finds the configuration in the log. A note whose write has failed is written again. Otherwise
the log would keep all later entries until the members change the next time, perhaps for weeks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from twisted.logger import Logger

from coord.raft.log import CommittedConfig
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.rows.steady import STEADY_AFTER_S
from regionserver.workers import Workers

log = Logger()

#: Shortest time between two writes of notes: the same as between two steady points of rows, for which the log waits,
#: too.
NOTES_EVERY_S: Final = STEADY_AFTER_S


class ConfigNote(NamedTuple):
    """The committed configuration of a replica, and the consensus metadata that say so."""

    replica: Any
    meta: ConsensusMeta
    config: CommittedConfig


class ConfigNotes:
    """Every method is called on the reactor's thread."""

    def __init__(
        self,
        write: Callable[[Sequence[ConsensusMeta]], list[str]],
        files_pool: Workers,
        later: Callable[[float, Callable[[], None]], object],
        *,
        is_wanted: Callable[[str, ConfigNote], bool],
        noted: Callable[[str, ConfigNote], None],
        every_s: float = NOTES_EVERY_S,
    ) -> None:
        """
        Args:
            write: Makes consensus metadata durable, on a thread of `files_pool`; returns "" or why not for each.
            files_pool: The thread of the files, which also closes replicas.
            later: Calls a function after that many seconds.
            is_wanted: Returns False for a note whose replica has stopped, or has other metadata by now.
            noted: Called when a note is durable.
            every_s: Shortest time between two writes.
        """
        self._write = write
        self._files_pool = files_pool
        self._later = later
        self._is_wanted = is_wanted
        self._noted = noted
        self._every_s = every_s
        self._waiting: dict[str, ConfigNote] = {}
        #: Tablets whose last note could not be written.
        self._failing: set[str] = set()
        #: True while notes are written, and until the next ones may be.
        self._is_busy = False

    def put(self, tablet: str, note: ConfigNote) -> None:
        """Queue a note. It replaces an earlier note of the same tablet."""
        self._waiting[tablet] = note
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """Write the waiting notes. The files of a replica that stops later are closed after this write, on the same
        thread."""
        waiting, self._waiting = self._waiting, {}
        notes = {tablet: note for tablet, note in waiting.items() if self._is_wanted(tablet, note)}
        self._failing.intersection_update(notes)
        self._is_busy = bool(notes)
        if not notes:
            return

        def written(result: list[str] | Exception) -> None:
            self._later(self._every_s, self._begin)
            whys = [str(result)] * len(notes) if isinstance(result, Exception) else result
            for (tablet, note), why in zip(notes.items(), whys, strict=True):
                if why:
                    self._refused(tablet, note, why)
                else:
                    self._failing.discard(tablet)
                    self._noted(tablet, note)

        self._files_pool.submit(lambda: self._write([note.meta for note in notes.values()]), written)

    def _refused(self, tablet: str, note: ConfigNote, why: str) -> None:
        """Keep a note that could not be written, unless a later one waits. Log the first failure of a series."""
        self._waiting.setdefault(tablet, note)
        if tablet not in self._failing:
            self._failing.add(tablet)
            log.error("consensus metadata of {tablet} cannot be written: {why}", tablet=tablet, why=why)
