"""Bulk plans on a running cluster.

planner.py   have a plan computed, in another process or beside the reactor
bulk.py      the plan of a cluster start or of a new table, until its last region is open
applying.py  operators' plans, carried out by moves
"""
