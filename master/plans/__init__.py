"""Bulk plans on a running cluster.

planner.py   computes plans, in another process or in a thread
bulk.py      plans of a cluster start or a new table, until the last region is open
applying.py  operators' plans, carried out by moves
tablets.py   bulk plans of tablets' first members
"""
