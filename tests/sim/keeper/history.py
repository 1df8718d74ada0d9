"""The history that masters write of a cluster of tablets, compared with every step that the store has committed."""

from __future__ import annotations

from collections.abc import Callable

from regions.cluster.history import Segment, pack
from regions.records.model import TransitionRecord
from regions.records.znodes import encode
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor
from regions.transitions.steps import server_of
from simulation.checks.history import HistoryCheck


class RecordedSteps:
    """Checks that each step is in the history once, in order, with its cause, or kept by its znode until a master's
    next step."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self.check = HistoryCheck(violated)
        self._pages = 0

    def step(
        self,
        key: str,
        former: TransitionRecord | None,
        record: TransitionRecord | None,
        version: int,
        actor: Actor,
        epoch: int,
        entries: list[HistoryEntry],
    ) -> None:
        """Handle a committed step, with the history entries that its master wrote in the same multi."""
        server = None if actor is Actor.MASTER or record is None else server_of(record)
        self.check.committed(key, former, record, "" if server is None else server.uuid, epoch)
        if entries:
            self._pages += 1
            self.check.segments_changed([(Segment(epoch, self._pages, len(entries), 1).name, pack(entries))])
        self.check.check_kept(key, None if record is None else encode(record), version)

    def end(self) -> None:
        """Compare the whole history, as a reader sees it, with the committed steps."""
        assert self.check.steps, "a run without a step shows nothing"
        self.check.check_all()
