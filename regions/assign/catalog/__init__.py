"""Changes of tables and regions in the assigner. Pure.

updates.py         applies committed records of tables and regions
checks.py          repeats writes that the store refused because a table's record had changed
schema_rollout.py  brings all replicas of an altered table to the latest schema
"""
