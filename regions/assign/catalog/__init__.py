"""Tables and regions in the assigner: how they are loaded, and changed. Pure.

takeover.py        loads what a new active master has read, and begins to decide, in steps
updates.py         applies committed records of tables and regions
checks.py          repeats writes that the store refused because a table's record had changed
schema_rollout.py  brings all replicas of an altered table to the latest schema
"""
