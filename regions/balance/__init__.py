"""Even load over the servers.

balancer.py          which replicas to move, and why each
cluster_snapshot.py  the running cluster as a planner's input
"""
