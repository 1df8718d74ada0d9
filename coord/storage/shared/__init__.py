"""The shared log: one write-ahead log and one sync for all Raft groups of a region server.

items.py      what a group writes in a turn, and what a log holds when it is opened
"""
