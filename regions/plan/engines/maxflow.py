"""Largest flow in a small network, by Dinic's method (E. A. Dinic, 1970).

The network may be filled in steps: raise capacities and augment again; existing flow is kept or rerouted. Arcs are
visited in the order in which they were added, so the same network always gets the same flow.
"""

from __future__ import annotations


class FlowNet:
    """Nodes 0..n-1. Arc 2k is the k-th added arc, arc 2k+1 its reverse; `room[a]` is the residual capacity of arc a."""

    def __init__(self, nodes: int) -> None:
        self.head: list[int] = []
        self.room: list[int] = []
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]

    def node(self) -> int:
        """Add a node and return its number."""
        self.arcs.append([])
        return len(self.arcs) - 1

    def add(self, tail: int, head: int, capacity: int) -> int:
        """Add an arc and return its number."""
        arc = len(self.head)
        self.head += [head, tail]
        self.room += [capacity, 0]
        self.arcs[tail].append(arc)
        self.arcs[head].append(arc + 1)
        return arc

    def flow(self, arc: int) -> int:
        """Return the units on an arc."""
        return self.room[arc + 1]

    def raise_capacity(self, arc: int, capacity: int) -> None:
        """Raise the arc's capacity to at least `capacity`."""
        self.room[arc] = max(self.room[arc], capacity - self.room[arc + 1])

    def augment(self, source: int, sink: int) -> int:
        """Send as many units as still fit from `source` to `sink`. Return the units added."""
        added = 0
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return added
            nth = [0] * len(self.arcs)
            while pushed := self._push(source, sink, level, nth):
                added += pushed

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return each node's distance from the source over arcs with room; -1 if unreachable or beyond the sink."""
        level = [-1] * len(self.arcs)
        level[source] = 0
        front = [source]
        while front and level[sink] < 0:
            behind: list[int] = []
            for node in front:
                for arc in self.arcs[node]:
                    head = self.head[arc]
                    if self.room[arc] > 0 and level[head] < 0:
                        level[head] = level[node] + 1
                        behind.append(head)
            front = behind
        return level

    def _push(self, source: int, sink: int, level: list[int], nth: list[int]) -> int:
        """Push one augmenting path through the levels. `nth[v]` remembers which arcs of v are exhausted."""
        path: list[int] = []
        node = source
        while node != sink:
            arcs = self.arcs[node]
            while nth[node] < len(arcs):
                arc = arcs[nth[node]]
                if self.room[arc] > 0 and level[self.head[arc]] == level[node] + 1:
                    break
                nth[node] += 1
            if nth[node] < len(arcs):
                path.append(arcs[nth[node]])
                node = self.head[path[-1]]
                continue
            if not path:
                return 0
            level[node] = -1
            node = self.head[path.pop() ^ 1]
        units = min(self.room[arc] for arc in path)
        for arc in path:
            self.room[arc] -= units
            self.room[arc ^ 1] += units
        return units
