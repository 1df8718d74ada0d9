"""A dict for up to millions of keys, each of whose steps is short.

A dict that is full moves all its entries: 45 ms of processor for 700,000 of them, and the master answers nobody
meanwhile. So from SPLIT_AT entries on, the entries are in many small dicts. The hash of a key chooses the dict. Small
dicts of exactly the same size would all be full at the same time; by the hash their sizes differ enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

V = TypeVar("V")

#: With this many entries the one dict is split, in less than 10 ms.
SPLIT_AT: Final = 20_000
#: Number of dicts after the split, a power of two.
_PARTS: Final = 128
#: Bits of the hash that do not choose the dict. A dict finds its entries by the lowest bits, so they must differ in it.
_SHIFT: Final = 40


class Keyed(Generic[V]):
    """Values by text keys, with the methods of a dict that the cluster state uses.

    The order is that of insertion until there are SPLIT_AT entries. From then on there is no useful order, even if
    entries are removed.
    """

    __slots__ = ("_count", "_parts", "_whole")

    def __init__(self) -> None:
        self._whole: dict[str, V] = {}
        #: Empty before the split. Afterwards `_whole` is empty.
        self._parts: list[dict[str, V]] = []
        #: Number of entries in `_parts`.
        self._count = 0

    @property
    def is_split(self) -> bool:
        """True if the order of the entries is not that of insertion any more."""
        return bool(self._parts)

    def _part(self, key: str) -> dict[str, V]:
        if not self._parts:
            return self._whole
        return self._parts[(hash(key) >> _SHIFT) & (_PARTS - 1)]

    def _split(self) -> None:
        whole, self._whole = self._whole, {}
        self._parts = [{} for _ in range(_PARTS)]
        self._count = len(whole)
        for key, value in whole.items():
            self._part(key)[key] = value

    def get(self, key: str) -> V | None:
        """Return the value of `key`, or None."""
        return self._part(key).get(key)

    def pop(self, key: str) -> V | None:
        """Remove `key` and return its value; None if it is not there."""
        found = self._part(key).pop(key, None)
        if found is not None and self._parts:
            self._count -= 1
        return found

    def keys(self) -> Iterable[str]:
        """Return the keys."""
        return chain.from_iterable(self._parts) if self._parts else self._whole.keys()

    def values(self) -> Iterable[V]:
        """Return the values."""
        return chain.from_iterable([part.values() for part in self._parts]) if self._parts else self._whole.values()

    def items(self) -> Iterable[tuple[str, V]]:
        """Return the keys with their values."""
        return chain.from_iterable([part.items() for part in self._parts]) if self._parts else self._whole.items()

    def __getitem__(self, key: str) -> V:
        return self._part(key)[key]

    def __setitem__(self, key: str, value: V) -> None:
        part = self._part(key)
        if self._parts:
            former = len(part)
            part[key] = value
            self._count += len(part) - former
            return
        part[key] = value
        if len(part) >= SPLIT_AT:
            self._split()

    def __delitem__(self, key: str) -> None:
        del self._part(key)[key]
        if self._parts:
            self._count -= 1

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._part(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return self._count if self._parts else len(self._whole)
