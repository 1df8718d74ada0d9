"""Snapshots of a running node.

policy.py     when a snapshot is due, and which log segments and older snapshots may go
transfers.py  snapshots between the nodes, and the state that a leader sends
job.py        a forked child writes the snapshot while the node serves
"""
