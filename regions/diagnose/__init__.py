"""Diagnosis for operators: problems, their reasons, and the steps that help.

fsck.py           compares the store with every server's own list of replicas
invariants.py     invariants of a running cluster; violations become alarms
explain.py        explains a replica's state
explain_table.py  explains why a table is not at rest
problems.py       problems in one line each, the most urgent first
remedy/           one legal step for a stuck replica, and its undo
"""
