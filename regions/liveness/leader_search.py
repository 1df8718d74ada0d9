"""Search for the active master: the next address to try, and the meaning of each reply (MF-15, MF-16). Pure.

A caller knows some masters, and perhaps the one that answered last. It tries one after the other. A NOT_LEADER reply
may name the active master, which is tried next. After a round without an answer the caller pauses and begins again,
until its deadline. The search keeps the last error of each master for the message to the user.

A request whose outcome is unknown is sent again only if it is repeatable: a read, or an operation with a `request_id`,
by which a master recognizes the retry (`regions/messages/ddl.py`).
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
    ms.ListTablets,
    ms.ShowTablet,
    ms.ListIntents,
    ms.ShowRetirement,
    ms.ListGrants,
    ms.WhoAmI,
)
#: Changes that may be repeated, because they request a state.
_LEVELS = (ms.MoveTablet, ms.CancelTabletMove, ms.WantLearner, ms.RetireServer)


class Next(enum.Enum):
    """Next step after an error."""

    ASK = "try the next master"
    GIVE_UP = "the request itself is rejected"


def is_repeatable(message: msgspec.Struct) -> bool:
    """Return True if the request may be sent again although it may have been carried out."""
    return isinstance(message, (*_READS, *_LEVELS)) or bool(getattr(message, "request_id", ""))


class Search:
    """One caller's search. `masters` are the "host:port" of the known masters, in the order in which to try them."""

    def __init__(self, masters: Sequence[str] = ()) -> None:
        self._given = list(dict.fromkeys(masters))
        self._masters = self._given
        #: Addresses that have not been tried in this round, in order.
        self._left: list[str] = []
        self._asked: set[str] = set()
        self._leader = ""
        #: Last error of each master, by address.
        self.errors: dict[str, str] = {}

    @property
    def leader(self) -> str:
        """Address of the master that answered last, "" if none has."""
        return self._leader

    def know(self, masters: Sequence[str]) -> None:
        """Set the known masters, in addition to those given at the beginning."""
        self._masters = list(dict.fromkeys([*masters, *self._given]))

    def begin(self) -> None:
        """Begin a new round with the master that answered last."""
        first = [self._leader] if self._leader else []
        self._left = list(dict.fromkeys([*first, *self._masters]))
        self._asked.clear()

    def next(self) -> str | None:
        """Return the next address to try, or None at the end of the round."""
        if not self._left:
            return None
        address = self._left.pop(0)
        self._asked.add(address)
        return address

    def answered(self, address: str) -> None:
        """Record that this master has answered the request."""
        self._leader = address
        self.errors.clear()

    def refused(self, address: str, message: msgspec.Struct, error: RpcError) -> Next:
        """Record an error of this master, and return what to do next."""
        if self._leader == address:
            self._leader = ""
        unknown = error.is_outcome_unknown and error.code != Code.INTERNAL
        if error.code not in _ELSEWHERE and not (unknown and is_repeatable(message)):
            return Next.GIVE_UP
        self.errors[address] = _error_text(address, error)
        hint = error.hint if error.code in (ms.NOT_LEADER, ms.TOO_STALE) else ""
        if hint and hint not in self._asked:  # two masters that name each other are each tried once in a round
            self._left = [hint, *(one for one in self._left if one != hint)]
        return Next.ASK

    @property
    def addresses(self) -> list[str]:
        """Return the addresses that this round asks."""
        return list(self._masters)

    def story(self) -> str:
        """Return the masters that were tried, each with its last error."""
        if not self.errors:
            return "no master is known"
        return "; ".join(f"{address} {text}" for address, text in self.errors.items())


def _error_text(address: str, error: RpcError) -> str:
    if error.code == ms.NOT_LEADER:
        return f"is a standby and names {error.hint} as the active master" if error.hint else "is a standby"
    text = (error.message or error.code).removeprefix(f"{address} ")
    text = text.replace(f"cannot connect to {address}: ", "cannot be reached: ")
    if error.code in (ms.BUSY, ms.TOO_STALE):
        return f"is not ready: {text}"
    return text
