"""Snapshots of a running node.

policy.py  when a snapshot is due, and which log segments and older snapshots may go
job.py     a forked child writes the snapshot while the node serves
"""
