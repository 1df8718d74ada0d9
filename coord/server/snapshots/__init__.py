"""Snapshots of a running node.

policy.py     when a snapshot is due; which log segments and older snapshots are removed
transfers.py  snapshots sent to followers and received from the leader
job.py        a forked child writes the snapshot while the node serves
"""
