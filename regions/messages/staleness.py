"""How old an answer may be, and how old it is (FW-01, KUDU-500): what callers and masters tell each other about it.

Only the active master may answer without a bound. A caller who can do with less says how much less, and then any
master may answer that can prove it: by age, by what the caller has seen already, or by both.

*Proof.* A master asks the store to `sync`. Once the answer is here, so is word of every change that was committed when
the question left; and once the master has read what it had word of, its picture is no older than that moment, by its
own monotonic clock alone. The zxid of the answer is what the picture holds at least.
"""

from __future__ import annotations

import msgspec


class Bound(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a caller allows. At least one of the two is given; an empty bound is no bound."""

    #: The answer may lack what was committed during the last so many milliseconds; -1: any age.
    max_ms: int = -1
    #: The answer must hold everything up to this zxid: the caller has seen that much.
    min_zxid: int = 0

    @property
    def is_none(self) -> bool:
        """Nothing is allowed: only the active master may answer."""
        return self.max_ms < 0 and self.min_zxid <= 0

    def allows(self, as_of: AsOf) -> bool:
        """Whether an answer of that age will do."""
        return (self.max_ms < 0 or as_of.stale_ms <= self.max_ms) and as_of.zxid >= self.min_zxid

    def __str__(self) -> str:
        age = f"at most {self.max_ms} ms old" if self.max_ms >= 0 else ""
        seen = f"not older than zxid {self.min_zxid:#x}" if self.min_zxid > 0 else ""
        return " and ".join(one for one in (age, seen) if one) or "current"


class AsOf(msgspec.Struct, frozen=True):
    """How old an answer is at most, who gave it, and what it holds at least."""

    stale_ms: int
    zxid: int
    #: "active" or "standby".
    role: str = "active"
    #: "host:port" of the master that answered.
    master: str = ""
