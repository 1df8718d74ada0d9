"""Errors of a region on its server, with messages for the operator."""

from __future__ import annotations

from regions.records.model import Incarnation


class RegionError(Exception):
    """Raised if a region cannot be opened or closed; the message reaches the master and the operator."""


class OwnerHeld(RegionError):  # noqa: N818 - a finding, not a fault
    """Raised if another incarnation holds the region.

    The server then reads the holder's registration. If the holder is not registered, the server calls `open` again with
    the holder as `Opening.evict`.
    """

    def __init__(self, holder: Incarnation) -> None:
        super().__init__(f"server {holder} holds the region")
        self.holder = holder
