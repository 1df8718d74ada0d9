"""Engines: from the numbered problem to placements.

run.py       chooses and runs an engine, then verifies its plan
greedy.py    best benefit first
flow.py      exact minimum-cost flow
alike.py     merges regions that are equal to the flow
shards.py    cuts the problem into shards that are solved separately
leftover.py  spreads the replicas without a good place
maxflow.py   the solver of `leftover`
repair.py    resolves conflicts by chains of moves
"""
