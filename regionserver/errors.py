"""What can go wrong with a region on its server, in words for the operator."""

from __future__ import annotations

from regions.records.model import Incarnation


class RegionError(Exception):
    """A region cannot be opened or closed; the message reaches the master and the operator."""


class OwnerHeld(RegionError):  # noqa: N818 - a finding, not a fault
    """Another incarnation holds the region.

    The server then asks the store: if that incarnation is not registered any more, `open` is called again with it as
    `Opening.evict`.
    """

    def __init__(self, holder: Incarnation) -> None:
        super().__init__(f"server {holder} holds it")
        self.holder = holder
