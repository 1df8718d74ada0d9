"""`validate` of the cluster state and of the assigner: each invariant is broken once, and the error names it."""

from __future__ import annotations

import re

import msgspec
import pytest

from regions.cluster.entities import CLOSE, OPEN, Order, PendingWrite, Server, Table
from regions.cluster.work import OrderState, Standing, WriteState
from regions.records.model import Move, MoveBatch, RegionState, TableState
from regions.transitions.states import Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition


def cluster_at_work() -> ModelCluster:
    """Return a cluster: r1 is at rest on a, r2 was sent to b to be opened, r3 closes on b and its order is repeated; b
    is silent."""
    cluster = ModelCluster()
    cluster.put(region("r1", at("a")), region("r2"), region("r3", at("b")))
    cluster.put_transition(transition(RegionState.OFFLINE, None, at("b"), "r2"))
    cluster.put_transition(transition(RegionState.CLOSING, at("b"), at("a"), "r3"))
    cluster.silent = {"b"}
    cluster.start(server("a"), server("b"))
    cluster.pass_time(4_000)
    cluster.assigner.validate()
    return cluster


def the(cluster: ModelCluster, name: str):  # type: ignore[no-untyped-def]
    return cluster.assigner.world.replicas[f"{name}-0"]


#: A statement that breaks an invariant, and the text of the error.
BROKEN = """
# names, tables, regions and replicas
world.names["other"] = table                                -> name 'other' leads to table 'orders'
table.record = replace(table.record, state=REMOVED)         -> name 'orders' leads to a removed table
world.tables.clear()                                        -> name 'orders' leads to a table that was dropped
world.tables["t2"] = table                                  -> table t1 is filed as t2
world.regions["old"] = r1.region                            -> tables have 3 regions, the index 4
world.replicas["old-0"] = r1                                -> regions have 3 replicas, the index 4
table.regions["rx"] = r1.region                             -> region r1 is filed as rx
r1.region.table = Table(table.record, 0)                    -> region r1 belongs to another table
del world.regions["r1"]                                     -> region r1 is not in the index
r1.region.is_replacing = True                               -> region r1 is replaced without being given up
r1.number = 1                                               -> r1-0 is replica 0 of r1
del world.replicas["r1-0"]                                  -> r1-0 is not in the index
# counts and sets
table.counts[OPEN] = 2                                      -> table orders counts 2, but 1 replicas are open
table.counts[PARKED] = 1                                    -> table orders counts 1, but 0 replicas are parked
r1.standing = PARKED                                        -> r1-0 is counted as parked
table.behind["zz-0"] = r1                                   -> zz-0 is behind in orders
del world.active["r2-0"]                                    -> r2-0: active should be True
world.active["r1-0"] = r1                                   -> r1-0: active should be False
world.active["zz-0"] = r1                                   -> zz-0 was dropped, and is still active
# the records of a replica
r1.write = write                                            -> r1-0 is IDLE, with the write
r1.write_state = WRITING                                    -> r1-0 is WRITING, with the write None
r1.version = 4                                              -> r1-0 has no transition, at version 4
r2.version = -1                                             -> r2-0 has a transition without a version
r2.transition = replace(r2.transition, region_id="r9")      -> r2-0 has the transition of r9-0
r3.transition = replace(r3.transition, parked=True)         -> r3-0 is parked in CLOSING
r2.home = at("a")                                           -> r2-0 is OFFLINE, and counts as open on a@1
r2.transition = replace(r2.transition, state=OPENED)        -> r2-0 was opened on b@1, and counts as open on None
# links to servers
r1.home = at("b")                                           -> r1-0 is linked to a@1, its records say b@1
r1.home = at("a", 2)                                        -> r1-0 is linked to a@1, its records say no server
r2.transition = replace(r2.transition, destination=at("a")) -> r2-0 is on its way to b@1, its records say a@1
a.open.pop("r1-0")                                          -> r1-0 is missing among the replicas of a@1
b.incoming.clear()                                          -> r2-0 is missing among those on their way to b@1
b.open["r1-0"] = r1                                         -> b@1 has r1-0, which is linked to a@1
a.incoming["r2-0"] = r2                                     -> a@1 gets r2-0, which goes to b@1
world.servers["x"] = a                                      -> server a is filed as x
a.fenced_until_ms = 5                                       -> a@1 was fenced for no reason
a.bar = "bar"                                               -> a@1 is barred by bar, not as the store says
# orders
r2.order.server = Server(server("b"), False)                -> r2-0 has an order for b@1, which is gone
r2.order.kind = CLOSE                                       -> r2-0 has an order of kind 2 in OFFLINE
r2.order.sends = 0                                          -> order of r2-0: sent 0 times
b.busy.clear()                                              -> order of r2-0: sent is True, holds a slot is False
b.busy["r1-0"] = r2.order                                   -> b@1 has a slot taken by an order of r1-0
r2.order.state = QUEUED                                     -> order of r2-0 is QUEUED, and in no queue
orders._batches.clear()                                     -> order of r2-0 is SENT, and in no batch
orders._busy_max = 1                                        -> b@1 works on 2 of 1
# the selection, moves, held writes, replacements, schema rollouts
selection.unplaced["zz-0"] = r1                            -> r1-0 waits unplaced as zz-0
selection._planning["r1-0"] = selection._unplaceable["r1-0"] = r1 -> r1-0 waits without a server and in a plan
moves._batch_of["r1-0"] = "m9"                              -> moves by batch
moves._batches["m9"] = {"r1-0"}                             -> a batch of moves has no plan
moves._batches["m9"], moves._plan_of["m9"] = set(), ""      -> batch m9 has no moves left
accept("m9"); r1.move = None                                -> the move of r1-0 is pending, and not requested
checks._held["t1"] = {}                                     -> writes of table t1 are held, and its record is not being
checks._asked_ms["t1"], checks._held["t1"] = 1, {"r1-0": r1} -> r1-0 is among the held writes, and is IDLE
r1.write_state, r1.write = HELD, write                      -> r1-0 is HELD, and nothing waits for its table's record
r1.region.is_given_up = True                                -> region r1 is given up, and will not be replaced
table.behind["r1-0"] = r1                                   -> table orders has 1 replicas behind, and is in no rollout
alters._awaited["a"] = 9                                    -> batch 9 is awaited from server a, and is unknown
# progress: nobody is forgotten
world.set_home(r1, None)                                    -> r1-0 is open nowhere, and waits for no destination
r1.move = "b"                                               -> r1-0 has to be closed on a@1, and has no order
r1.damage = (at("a"), "row")                                -> r1-0 has to be closed on a@1, and has no order
orders.drop(r2)                                             -> r2-0 is OFFLINE, and has no order for b@1
orders.drop(r3)                                             -> r3-0 is CLOSING, and has no order for b@1
r2.order.version = 2                                        -> r2-0 is OFFLINE at version 3, and its order is of another
orders.put(r1, CLOSE, a, -1, 9, 0)                          -> r1-0 is open where it should be, and has an order
give(r1, OFFLINE, None)                                     -> r1-0 is OFFLINE, needs a destination, and waits for none
give(r1, OPENED, at("a"))                                   -> r1-0 is OPENED, the next step is ACKNOWLEDGE, and nothing
a.fencing = "x"; a.fenced_until_ms = 5; orders.put(r1, CLOSE, a, -1, 9, 0) -> r1-0 is on a@1, which was fenced, and has
"""
ROWS = [line.split(" -> ") for line in BROKEN.splitlines() if " -> " in line]


@pytest.mark.parametrize(("statement", "sentence"), ROWS, ids=[statement.strip() for statement, _ in ROWS])
def test_a_broken_invariant_is_noticed(statement: str, sentence: str) -> None:
    cluster = cluster_at_work()
    assigner = cluster.assigner
    world = assigner.world
    move = Move("r1-0", at("a"), "b")
    names = {
        "world": world,
        "table": world.tables["t1"],
        "a": world.servers["a"],
        "b": world.servers["b"],
        **{name: world.replicas[f"{name}-0"] for name in ("r1", "r2", "r3")},
        "orders": assigner._orders,
        "selection": assigner._selection,
        "moves": assigner._moves,
        "checks": assigner._catalog.checks,
        "alters": assigner._alters,
        **{one.name: one for kind in (RegionState, Standing, OrderState, WriteState) for one in kind},
        "OPEN": Standing.OPEN,
        "CLOSE": CLOSE,
        "REMOVED": TableState.REMOVED,
        "at": at,
        "server": server,
        "Server": Server,
        "Table": Table,
        "replace": msgspec.structs.replace,
        "write": PendingWrite(Cause.DONE, None, None),
        "accept": lambda move_id: assigner._moves.accept(MoveBatch(move_id, (move,)), assigner.causes.current()),
        "give": lambda one, state, to: world.set_transition(one, transition(state, None, to, "r1"), 0, 0),
    }
    exec(statement, names)
    with pytest.raises(AssertionError, match=re.escape(sentence.strip())):
        assigner.validate()


def test_an_order_that_will_never_be_sent_is_noticed() -> None:
    cluster = cluster_at_work()
    one = the(cluster, "r1")
    order = Order(OPEN, cluster.assigner.world.servers["a"], 0, 0)
    cluster.assigner.world.set_transition(one, transition(RegionState.OFFLINE, None, at("a")), 0, 0)
    cluster.assigner.world.set_order(one, order)
    cluster.assigner._orders.enqueue(one, order)
    cluster.assigner.validate()
    cluster.assigner._orders.pending.clear()
    with pytest.raises(AssertionError, match="order of r1-0 is QUEUED, and a@1 is not pending"):
        cluster.assigner.validate()


def test_a_count_below_nothing_is_refused_at_once() -> None:
    table = cluster_at_work().assigner.world.tables["t1"]
    with pytest.raises(AssertionError, match="orders: the count of parked replicas is negative"):
        table.count(Standing.PARKED, Standing.OPEN)


def test_a_second_order_is_refused_at_once() -> None:
    cluster = cluster_at_work()
    one = the(cluster, "r2")
    with pytest.raises(AssertionError, match="r2-0 has an order already"):
        cluster.assigner.world.set_order(one, Order(OPEN, cluster.assigner.world.servers["b"], 0, 0))


def test_nothing_is_checked_of_progress_before_the_master_decides() -> None:
    cluster = ModelCluster()
    cluster.put(region("r1"))
    cluster.moves["m1"] = MoveBatch("m1", ())
    cluster.assigner.load(cluster.tables.values(), cluster.regions.values(), (), (), (), cluster.now)
    cluster.assigner.validate()
