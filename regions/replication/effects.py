"""Effects of the keeper of tablets: those of the assigner, and two of its own. Carried out by the active master."""

from __future__ import annotations

from regions.cluster import effects as fx
from regions.records.model import RegionRecord, TransitionRecord


class BeginTablet(fx.Caused):
    """Write a new tablet's record as CREATING, with its members, and the OFFLINE of each, in one multi.

    The multi checks the table's record (id, version) and names the region's version. So CREATING without a transition
    of a member means that the member has been made. Answered by `Keeper.begun` or `Keeper.not_begun`.
    """

    record: RegionRecord
    version: int
    table_check: tuple[str, int]
    transitions: list[TransitionRecord]


class WriteRegion(fx.Caused):
    """Replace a region's record at `version`. Many of them may go into one multi, a hundred say.

    Answered by `Keeper.region_written` or `Keeper.region_refused`.
    """

    record: RegionRecord
    version: int


KeeperEffect = (
    BeginTablet
    | WriteRegion
    | fx.WriteOffline
    | fx.DeleteTransition
    | fx.ReplaceRegion
    | fx.SendOpen
    | fx.SendClose
    | fx.ReadTransition
    | fx.ReadRegion
    | fx.ReadTable
    | fx.Note
)

__all__ = ["BeginTablet", "KeeperEffect", "WriteRegion"]
