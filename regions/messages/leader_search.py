"""Finding the active master by asking: whom next, and what each answer means (MF-15, MF-16). Pure.

A caller knows some masters, and perhaps which one led last. It asks one; NOT_LEADER may name the active one, which is
asked next. When all have been asked in vain it pauses and begins again, until its time is over. It keeps what each of
them said last, which is what it tells when nobody leads.

A request whose outcome is not known is sent again only if that does no harm: reads, and operations that carry a
`request_id`, which a master recognises (`regions/messages/ddl.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from coord.rpc.wire import Code, RpcError
from regions import messages as ms

_ELSEWHERE = frozenset((Code.UNREACHABLE, Code.PROTOCOL, ms.NOT_LEADER, ms.BUSY, ms.TOO_STALE))
_READS = (
    ms.Ping,
    ms.GetMasterStatus,
    ms.ListMasters,
    ms.ListContacts,
    ms.ListServers,
    ms.ListTables,
    ms.DescribeTable,
    ms.DescribeRegion,
    ms.ExplainRegion,
    ms.ExplainTable,
    ms.ListRit,
    ms.RecentTransitions,
)


class Next(enum.Enum):
    """What to do after an answer that is none."""

    ASK = "ask the next one"
    GIVE_UP = "the request itself is refused"


def is_repeatable(message: msgspec.Struct) -> bool:
    """Whether it may be sent again although the first one may have been carried out."""
    return isinstance(message, _READS) or bool(getattr(message, "request_id", ""))


class Search:
    """One caller's way to the active master. `masters`: "host:port" of each that is known, in the order to be asked."""

    def __init__(self, masters: Sequence[str] = ()) -> None:
        self._given = list(dict.fromkeys(masters))
        self._masters = self._given
        #: Who is asked in this round: front first.
        self._left: list[str] = []
        self._asked: set[str] = set()
        self._leader = ""
        #: What each master said last.
        self.said: dict[str, str] = {}

    @property
    def leader(self) -> str:
        """The one that answered last, "" if none did."""
        return self._leader

    def know(self, masters: Sequence[str]) -> None:
        """These are the masters from now on, besides those that were given at the beginning."""
        self._masters = list(dict.fromkeys([*masters, *self._given]))

    def begin(self) -> None:
        """A new round: the one that answered last comes first."""
        first = [self._leader] if self._leader else []
        self._left = list(dict.fromkeys([*first, *self._masters]))
        self._asked.clear()

    def next(self) -> str | None:
        """Whom to ask; None when the round is over."""
        if not self._left:
            return None
        address = self._left.pop(0)
        self._asked.add(address)
        return address

    def answered(self, address: str) -> None:
        """It has answered the request."""
        self._leader = address
        self.said.clear()

    def refused(self, address: str, message: msgspec.Struct, error: RpcError) -> Next:
        """It has not; where to turn."""
        if self._leader == address:
            self._leader = ""
        unknown = error.is_outcome_unknown and error.code != Code.INTERNAL
        if error.code not in _ELSEWHERE and not (unknown and is_repeatable(message)):
            return Next.GIVE_UP
        self.said[address] = _words(address, error)
        hint = error.hint if error.code in (ms.NOT_LEADER, ms.TOO_STALE) else ""
        if hint and hint not in self._asked:  # two that point at each other are each asked once in a round
            self._left = [hint, *(one for one in self._left if one != hint)]
        return Next.ASK

    def story(self) -> str:
        """Who was asked, and what each said."""
        if not self.said:
            return "none is known"
        return "; ".join(f"{address} {words}" for address, words in self.said.items())


def _words(address: str, error: RpcError) -> str:
    if error.code == ms.NOT_LEADER:
        return f"is a standby that takes {error.hint} for the active one" if error.hint else "is a standby"
    text = (error.message or error.code).removeprefix(f"{address} ")
    if error.code in (ms.BUSY, ms.TOO_STALE):
        return f"says that {text}"
    return text
