"""The first election of a new tablet: one member stands at once, the others after their usual timeout.

Without this, all members of a new table wait for an election timeout of 0.5 to 1 s, several of them stand for election
in the same tablet, and the server that opens its replicas first leads most of the table. The member that stands first
is chosen by the tablet's name, so all members know it without a message, and leaders are spread over the servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

from regionserver.tablets.host.group import Group
from regionserver.tablets.host.turn import Turn

#: Interval at which the chosen member asks for votes again: the others may not have opened their replicas yet.
ASK_AGAIN_S: Final = 0.2
#: The same for a daughter of a split.
ASK_DAUGHTER_AGAIN_S: Final = 0.05
#: Maximum number of attempts. Meanwhile the timeouts of the others have passed.
ASKS_MAX: Final = 20
#: The member stands for election with the next tick.
_NEXT_TICK: Final = 1


def stands_first(tablet: str, number: int, voters: Iterable[int]) -> bool:
    """Return True if the member is the one that starts the first election of its tablet at once."""
    ordered = sorted(voters)
    return bool(ordered) and ordered[crc32(tablet.encode()) % len(ordered)] == number


def is_new(group: Group) -> bool:
    """Return True if the replica knows no term and no leader."""
    core = group.core
    return core.term == 0 and core.log.last == 0 and core.leader == 0


class _Asking:
    """A group for whose leadership this server stands, in its state at the opening."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.term = group.core.term
        self.last = group.core.log.last
        self.asks = 1

    def goes_on(self) -> bool:
        """Return True if nothing has happened in the group since, so that another attempt makes sense."""
        core = self.group.core
        is_untouched = (core.term, core.log.last, core.leader) == (self.term, self.last, 0)
        return is_untouched and not self.group.failure and self.asks < ASKS_MAX


class FirstElections:
    """The new tablets for whose leadership this server stands. Call every method on the reactor's thread."""

    def __init__(self, turn: Turn, reactor: Any) -> None:
        self._turn = turn
        self._reactor = reactor
        #: Groups without a leader so far, by the interval of their attempts and by tablet. Each interval has one timer.
        self._asking: dict[float, dict[str, _Asking]] = {}

    def opened(self, group: Group, is_first: bool | None = None) -> None:
        """Let the group of a new replica stand for election if it is the first to do so.

        `is_first` None: the tablet's name decides, if the group is new. True for a daughter of a split: clients wait
        for it, so it does not wait for the next tick. The caller passes the group to the turn after this call.
        """
        replica = group.replica
        is_daughter = is_first is not None
        if is_first is None:
            voters = group.core.configs.current.voters
            is_first = is_new(group) and stands_first(replica.tablet, replica.number, voters)
        if not is_first:
            return
        group.core.hasten(_NEXT_TICK)
        if is_daughter:
            group.core.tick()
        again_s = ASK_DAUGHTER_AGAIN_S if is_daughter else ASK_AGAIN_S
        if again_s not in self._asking:
            self._asking[again_s] = {}
            self._reactor.callLater(again_s, self._ask_again, again_s)
        self._asking[again_s][replica.tablet] = _Asking(group)

    def _ask_again(self, again_s: float) -> None:
        asking = {}
        for tablet, one in self._asking.pop(again_s).items():
            if self._turn.groups.get(tablet) is one.group and one.goes_on():
                asking[tablet] = one
                one.asks += 1
                one.group.core.hasten(_NEXT_TICK)
        if asking:
            self._asking[again_s] = asking
            self._reactor.callLater(again_s, self._ask_again, again_s)
