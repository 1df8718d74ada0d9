"""Tablets in the active master: the pure keeper (`regions/replication/keeper.py`) joined to store and servers.

keeping    feeds the keeper, and carries its effects out
intents    wanted moves and learners: read, written, ended
plan_moves moves of members for plans and the balancer
purging    orders the deletion of the replicas of deleted tables
loading    loads tables and regions of a new active master into the keeper, in steps
balancing  leaders spread over servers, and members over their disks
reports    heartbeats' reports of tablets, a few per reactor turn
"""
