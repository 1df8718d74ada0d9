"""Free places while a plan is made: counts that keep the plan within its quotas."""

from __future__ import annotations

import numpy as np

from regions.plan.problem.model import Ints
from regions.plan.problem.quota import Quotas


class Room:
    """Free places of servers, groups and (table, server) cells.

    `below[s]` places are free up to the server's floor, `above[s]` beyond it. All servers of a group together may use
    `budget[g]` of the places beyond their floors. `cell[table * servers + s]` limits one table.
    """

    def __init__(self, below: Ints, above: Ints, budget: Ints, cell: Ints) -> None:
        self.below = below
        self.above = above
        self.budget = budget
        self.cell = cell

    @classmethod
    def whole(cls, quotas: Quotas, table_group: Ints, server_group: Ints) -> Room:
        """Return the room of an empty cluster."""
        servers = len(quotas.floor)
        cell = np.zeros((len(table_group), servers), dtype=np.int64)
        for group in np.unique(table_group[table_group >= 0]).tolist():
            members = np.flatnonzero(server_group == group)
            tables = np.flatnonzero(table_group == group)
            cell[np.ix_(tables, members)] = quotas.rows(tables, members, level=2)
        return cls(quotas.floor.copy(), quotas.ceil - quotas.floor, quotas.budget.copy(), cell.reshape(-1))

    @classmethod
    def after(cls, quotas: Quotas, table_group: Ints, server_group: Ints, table: Ints, server: Ints) -> Room:
        """Return the room left by placed replicas, given as the table and server of each; none may exceed its
        bounds."""
        return cls.beside(
            quotas,
            table_group,
            server_group,
            np.bincount(table * len(quotas.floor) + server, minlength=len(table_group) * len(quotas.floor)),
        )

    @classmethod
    def beside(cls, quotas: Quotas, table_group: Ints, server_group: Ints, cells: Ints) -> Room:
        """Return the room left beside `cells[table * servers + server]` placed replicas."""
        room = cls.whole(quotas, table_group, server_group)
        held = cells.reshape(len(table_group), len(quotas.floor)).sum(axis=0)
        beyond = np.maximum(held - quotas.floor, 0)
        room.below = np.maximum(quotas.floor - held, 0)
        room.above = room.above - beyond
        room.budget = room.budget - np.bincount(server_group, weights=beyond, minlength=len(room.budget)).astype(
            np.int64
        )
        room.cell = room.cell - cells
        return room
