"""Balance of load over the servers.

balancer.py          chooses the replicas to move, each with its reason
tablets.py           the same for members of tablets, on a model of them
leader_rounds.py     rounds that spread the leaders of tablets
round_log.py         the last rounds with their moves, or why there were none
cluster_snapshot.py  builds a planner's input from the running cluster
sizes.py             sizes of regions: measured, or estimated until the first report
metric.py            the sum of a value over the replicas of each server
steps.py             work in steps, done at once
"""
