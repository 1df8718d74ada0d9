"""Engines: from the numbered problem to placements.

run.py choose and run an engine, then verify its plan greedy.py best benefit first flow.py exact minimum-cost flow;
alike.py merges regions that are equal to the flow shards.py cut the problem into shards that are solved apart
leftover.py spread the replicas without a good place; maxflow.py is its solver repair.py chains of moves that cure
clashes
"""
