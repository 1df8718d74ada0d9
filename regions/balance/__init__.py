"""Balance of load over the servers.

balancer.py          chooses the replicas to move, each with its reason
cluster_snapshot.py  builds a planner's input from the running cluster
"""
