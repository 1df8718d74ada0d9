"""Answers for operators: what is wrong, why, and what would help.

fsck.py           the store against every server's own list
invariants.py     what must hold in a running cluster; violations become alarms
explain.py        why a replica is where it is; explain_table.py why a table is not at rest
problems.py       problems in one line each, the most urgent first
unstick.py        the one legal step for a stuck replica
"""
