"""Diagnosis for operators: problems, their reasons, and the steps that help.

fsck.py           compares the store with every server's own list of replicas
invariants.py     invariants of a running cluster; violations become alarms
explain.py        explains a replica's state
explain_table.py  explains why a table is not at rest
problems.py       problems in one line each, the most urgent first
remedy/           one legal step for a stuck replica, and its undo
explain_server.py why a server gets no regions, or loses its own
explain_tablets.py why a table of tablets is not at rest
tablets.py        tablets as operators see them
fsck_tablets.py   compares the servers' replicas of tablets
member_intents.py intents about members that cannot be carried out
health.py         the verdict about the whole cluster
live/             what a master compares while it runs
"""
