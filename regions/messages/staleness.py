"""Staleness of replies: the bound that a caller allows, and the age of a reply (FW-01, KUDU-500).

Only the active master answers a read without a bound. A caller that accepts older state gives a bound: an age, a zxid
that the caller has seen, or both. Then any master may answer that can prove that its state is within the bound.

*Proof.* A master sends a `sync` to the store. When the reply has arrived, all events of changes committed before the
`sync` was sent have arrived, too. When the master has read the changed znodes, its state includes every change up to
the sending of the `sync`, by its own monotonic clock. The state includes all changes up to the zxid of the reply.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Bound(msgspec.Struct, frozen=True, omit_defaults=True):
    """The staleness that a caller allows. A bound without either field allows no staleness."""

    #: The reply may lack changes committed in the last `max_ms` milliseconds; -1: any age.
    max_ms: int = -1
    #: The reply must include all changes up to this zxid.
    min_zxid: int = 0

    @property
    def is_none(self) -> bool:
        """True if only the active master may answer."""
        return self.max_ms < 0 and self.min_zxid <= 0

    def allows(self, as_of: AsOf) -> bool:
        """Return True if a reply of this age is within the bound."""
        return (self.max_ms < 0 or as_of.stale_ms <= self.max_ms) and as_of.zxid >= self.min_zxid

    def __str__(self) -> str:
        age = f"at most {self.max_ms} ms old" if self.max_ms >= 0 else ""
        seen = f"not older than zxid {self.min_zxid:#x}" if self.min_zxid > 0 else ""
        return " and ".join(one for one in (age, seen) if one) or "current"


class AsOf(msgspec.Struct, frozen=True):
    """The greatest possible age of a reply, the zxid up to which it is complete, and the master that sent it."""

    stale_ms: int
    zxid: int
    #: "active" or "standby".
    role: str = "active"
    #: "host:port" of the master that answered.
    master: str = ""


#: The bound of a caller that allows no staleness: only the active master may answer.
NO_BOUND: Final = Bound()
