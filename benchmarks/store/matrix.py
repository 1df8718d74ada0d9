"""The rows of the benchmark, and the goals of the store relative to ZooKeeper."""

from __future__ import annotations

from typing import Final

ZOOKEEPER: Final = "ZooKeeper"
OURS: Final = ("compiled", "interpreted")
#: Another checkout of this project, compiled in place.
BEFORE: Final = "before"

#: (name, arguments of the generator)
Row = tuple[str, list[str]]


def _load(mode: str, connections: int, window: int, *more: str) -> Row:
    arguments = ["-m", mode, "-c", str(connections), "-w", str(window), *more]
    return f"{mode} {connections}x{window}{' ' + ' '.join(more) if more else ''}", arguments


#: Connections x requests in flight on each, 100 bytes of data.
SHORT: Final[list[Row]] = [
    _load("get", 1, 1),
    _load("get", 10, 16),
    _load("get", 50, 1),
    _load("get", 50, 64),
    _load("exists", 10, 16),
    _load("get_children", 10, 16),
    _load("set", 1, 1),
    _load("set", 10, 1),
    _load("set", 10, 16),
    _load("set", 50, 64),
    _load("create", 1, 1),
    _load("create", 10, 1),
    _load("create", 10, 16),
    _load("create", 50, 64),
    _load("delete", 10, 1, "-n", "5000"),
    _load("delete", 10, 16, "-n", "20000"),
    _load("multi_set", 4, 2, "-k", "100"),
    ("watch_persistent 1000", ["-m", "watch_persistent", "-c", "1000"]),
    ("connect 50", ["-m", "connect", "-c", "50"]),
]
FULL: Final[list[Row]] = [
    *SHORT,
    _load("exists", 50, 64),
    _load("get_children", 50, 64),
    _load("set", 10, 16, "-z", "1024"),
    _load("create_seq", 10, 16),
    _load("create_ephemeral", 10, 16),
    _load("mixed", 10, 16),
    _load("mixed", 10, 16, "-r", "50"),
    _load("multi_set", 1, 1, "-k", "100"),
    _load("multi_create", 4, 2, "-k", "100"),
    _load("multi_set", 10, 4, "-k", "3"),
    ("cas on one znode 10", ["-m", "cas", "-c", "10", "-n", "1"]),
    ("watch 1000", ["-m", "watch", "-c", "1000"]),
    ("connect 1", ["-m", "connect", "-c", "1"]),
]

#: Rows for which equality is not enough: (nodes, 0 for any; first words of the row; the factor by which to beat
#: ZooKeeper).
_GOALS: Final[list[tuple[int, tuple[str, ...], float]]] = [
    (0, ("get 10x16", "get 50x64", "exists 10x16", "exists 50x64", "get_children 10x16", "get_children 50x64"), 6),
    (0, ("get 50x1",), 1.5),
    (3, tuple(f"{mode} {load}" for mode in ("set", "create", "delete") for load in ("10x16", "50x64")), 5),
    (3, ("set 10x1", "create 10x1", "delete 10x1"), 2),
    (3, ("set 1x1", "create 1x1"), 1.2),
    (1, ("set 10x16", "set 50x64"), 2),
    (0, ("multi_set 4x2", "multi_set 1x1", "multi_create 4x2"), 2),
    (0, ("watch_persistent 1000",), 3),
    (3, ("connect 50", "connect 1"), 3),
    (3, ("start to first write",), 4),
    (0, ("idle memory", "memory of ", "restart with "), 2),
]

#: Rows with an absolute bound, in their unit.
_BOUNDS: Final = {
    "1,000 sessions at once": 1000.0,
    "write outage, leader killed": 300.0,
    "write outage, leader frozen": 1500.0,
}

#: Units of results where less is better; the ratio is inverted.
LESS_IS_MORE: Final = ("ms", "s", "MB")


def goal(nodes: int, row: str) -> float:
    """Return the intended ratio to ZooKeeper's result; 1 (equality) by default."""
    for size, beginnings, times in _GOALS:
        if size in (0, nodes) and row.startswith(beginnings):
            return times
    return 1.0


def bound(row: str) -> float | None:
    """Return the result that must not be exceeded, whatever ZooKeeper's result; None without one."""
    return _BOUNDS.get(row)
