"""Kept intents of operators, planners and the balancer about the members of one tablet.

How many voters a tablet should have is in its table's record, and which servers are being emptied is in `/draining`.
The other intents are here. An active master carries them out step by step (`regions/replication/policy`), and the next
one continues, because each step follows from the intent and the tablet's configuration.
"""

from __future__ import annotations

import msgspec

from regions.records.model import WorkOrigin


class TabletMove(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of the server `source` is to be replaced by a member on the server `target`. Both are uuids."""

    source: str
    target: str
    #: When the move was accepted, by the master's clock.
    at_ms: int = 0
    reason: str = "move"
    origin: WorkOrigin | None = None
    #: The plan of which it is a part, "" for none.
    plan_id: str = ""


class TabletIntents(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/intents/<region_id>`: the moves of one tablet that have not ended, and its learners."""

    table_id: str
    region_id: str
    moves: tuple[TabletMove, ...] = ()
    #: Uuids of the servers that must get a learner, a copy that does not vote.
    learners: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is left to be kept: the znode can be deleted."""
        return not self.moves and not self.learners
