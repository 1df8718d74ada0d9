"""The regions whose rows a region took over."""

from __future__ import annotations

import msgspec


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """A region that was split or merged.

    `token` is the token of its latest open (`ReplicaLocation`): its files must not be older. 0: the parent was never
    open and has no rows.
    """

    region_id: str
    token: int = 0
