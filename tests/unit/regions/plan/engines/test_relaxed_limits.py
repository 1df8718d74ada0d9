"""A table above its limit on a server is reduced by a move or a swap, if one fits."""

from __future__ import annotations

import numpy as np
import pytest

from regions.plan import Params, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.engines.repair import Repair
from regions.plan.problem.model import Ints
from regions.plan.problem.numbered import NumberedProblem, encode
from regions.plan.problem.room import Room
from regions.plan.problem.scenarios import scenario


def _placed(problem: NumberedProblem, places: str) -> tuple[Repair, Ints]:
    """Place region n on the server of the n-th digit."""
    region, server = np.arange(len(places)), np.array([int(digit) for digit in places])
    table, groups = problem.table[region], problem.fleet.group
    room = Room.after(problem.quotas, problem.tables.group, groups, table, server)
    return Repair(problem, region, server, room, None), server


def _problem(tables: str, servers: int) -> NumberedProblem:
    """Return a problem with the tables that the letters name, on equal servers in separate racks, without slack."""
    regions = [RegionRow(f"r{number}", table) for number, table in enumerate(tables)]
    fleet = [ServerRow(f"s{number}", f"h{number}", f"k{number}") for number in range(servers)]
    return encode(Snapshot.of(regions, fleet), Params(table_slack=0), {})


@pytest.mark.parametrize(
    ("tables", "places", "moves"),
    [
        ("aaaabbbb", "00010111", 2),  # both servers are full: two regions change places
        ("aaaabbb", "0001011", 1),  # the first server may have one less
        ("aaaa", "0011", 0),
    ],
)
def test_a_swap_or_a_move_cures_it(tables: str, places: str, moves: int) -> None:
    """Afterwards every server and every table is within its bounds."""
    problem = _problem(tables, 2)
    repair, _ = _placed(problem, places)
    repair.lower_tables()
    region, server = repair.pairs()
    assert region.tolist() == list(range(len(tables)))
    cells = np.zeros((len(problem.tables), 2), dtype=int)
    np.add.at(cells, (problem.table[region], server), 1)
    assert (cells <= 2).all()
    held = np.bincount(server, minlength=2)
    assert (held >= problem.quotas.floor).all()
    assert (held <= problem.quotas.ceil).all()
    assert repair.moves == moves


@pytest.mark.parametrize(
    ("tables", "places", "servers"),
    [
        ("aaabbbccccccdd", "10120022021121", 3),
        ("aaaaaabbbbbbcc", "21120010012221", 3),
        ("aaaabbbcccdddd", "32312103113020", 4),
        ("aaaaaabbbbbbccccccdd", "02210100102211221210", 3),
    ],
)
def test_a_chain_cures_what_no_swap_does(tables: str, places: str, servers: int) -> None:
    """Three servers have to take part, or a full one and one with room that a third one replaces."""
    problem = _problem(tables, servers)
    repair, _ = _placed(problem, places)
    repair.lower_tables()
    region, server = repair.pairs()
    assert region.tolist() == list(range(len(tables)))
    assert (repair.cell >= 0).all()
    held = np.bincount(server, minlength=servers)
    assert (held >= problem.quotas.floor).all()
    assert (held <= problem.quotas.ceil).all()
    assert (repair.budget >= 0).all()


def test_a_limit_that_can_hold_holds() -> None:
    """One rack must have every region of three replicas, another those of two: the last place needs two chains."""
    snapshot = scenario("mixed", regions=5000, servers=35, seed=6)
    assert verify(snapshot, Params(), plan(snapshot).rows).ok


def test_what_no_swap_cures_stays() -> None:
    """A single table that fills all servers against its limits: nothing moves, nothing is lost."""
    problem = _problem("aaaa", 2)
    repair, server = _placed(problem, "0001")
    repair.cell[0, 1] = 0
    repair.lower_tables()
    assert repair.pairs()[1].tolist() == server.tolist()
