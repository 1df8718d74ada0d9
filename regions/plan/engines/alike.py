"""Group the regions that are equal to an exact flow, so that one node stands for all of them.

Two regions of one replica are *alike* when they belong to the same table and have the same candidates with the same
benefits. Swapping their places changes neither a rule nor the value of the plan, so the flow only has to decide how
many of them go to each server. A class of alike regions becomes one node, and its arcs carry as many units as the
class has members. Afterwards the units are dealt to the members in the order of their numbers. The result is exact.
Regions that have no blocks and only want to stay form one class per table and server, however many they are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from regions.plan.problem.model import Bools, Ints

#: Odd constants that spread the bits of hashed values (2^64 over the golden ratio, and two constants like it).
_SPREAD: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class Alike:
    """Classes of alike regions. `region` (ascending), `server` and `benefit` are the columns of the candidates; `table`
    and `want` have one entry per region.

    `first[i]` is True if candidate i belongs to the first member of its class, which represents the class. `members`
    counts the members of the class for each of these candidates, in order.
    """

    def __init__(self, table: Ints, want: Ints, region: Ints, server: Ints, benefit: Ints) -> None:
        self._start = np.flatnonzero(np.diff(region, prepend=-1))
        self._length = np.diff(np.append(self._start, len(region)))
        regions = region[self._start]
        keys = _hashes(table[regions], self._start, server, benefit)
        single = want[regions] == 1
        leader = np.arange(len(regions))
        _, first, place = np.unique(keys[single], return_index=True, return_inverse=True)
        leader[single] = leader[single][first[place]]
        leader = np.where(self._same(leader, table[regions], server, benefit), leader, np.arange(len(regions)))
        #: Class of each region that has candidates, numbered in the order of their first members.
        leaders, self._class = np.unique(leader, return_inverse=True)
        sizes = np.bincount(self._class, minlength=len(leaders))
        leads = np.zeros(len(regions), dtype=np.bool_)
        leads[leaders] = True
        self.first: Bools = np.repeat(leads, self._length)
        self.members: Ints = np.repeat(sizes, self._length[leaders])
        self._leaders = leaders
        self._single = single[leaders]

    def _same(self, leader: Ints, table: Ints, server: Ints, benefit: Ints) -> Bools:
        """Return for each region whether it equals the leader of its class. Equal hashes do not prove that two regions
        are alike."""
        same: Bools = (self._length == self._length[leader]) & (table == table[leader])
        follows = np.flatnonzero(same & (leader != np.arange(len(leader))))
        length = self._length[follows]
        nth = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        mine = np.repeat(self._start[follows], length) + nth
        theirs = np.repeat(self._start[leader[follows]], length) + nth
        differs = (server[mine] != server[theirs]) | (benefit[mine] != benefit[theirs])
        same[np.repeat(follows, length)[differs]] = False
        return same

    def deal(self, units: Ints) -> Bools:
        """Return which candidates are taken when `units[i]` members take the i-th candidate marked in `first`."""
        taken = np.zeros(int(self._length.sum()), dtype=np.bool_)
        length = self._length[self._leaders]
        of_class = np.repeat(np.arange(len(length)), length)
        nth = np.arange(len(of_class)) - np.repeat(np.cumsum(length) - length, length)
        whole = ~self._single[of_class] & (units > 0)
        taken[self._start[self._leaders[of_class[whole]]] + nth[whole]] = True
        units = np.where(self._single[of_class], units, 0)
        class_of, place = np.repeat(of_class, units), np.repeat(nth, units)
        ordered = np.argsort(self._class, kind="stable")
        begin = np.searchsorted(self._class[ordered], np.arange(len(length)))
        turn = np.arange(len(class_of)) - np.searchsorted(class_of, class_of)
        member = ordered[begin[class_of] + turn]
        taken[self._start[member] + place] = True
        return taken


def _hashes(table: Ints, start: Ints, server: Ints, benefit: Ints) -> npt.NDArray[np.uint64]:
    """Return a hash per region: equal for alike regions, and rarely equal for others."""
    one, two, three = (np.uint64(n) for n in _SPREAD)
    mixed = (server.astype(np.uint64) + np.uint64(1)) * one ^ (benefit.astype(np.uint64) * two)
    mixed ^= mixed >> np.uint64(29)
    mixed *= three
    mixed ^= mixed >> np.uint64(32)
    sums: npt.NDArray[np.uint64] = np.add.reduceat(mixed, start) if len(start) else mixed
    return sums + table.astype(np.uint64) * two
