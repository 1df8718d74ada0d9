"""Recovery and integrity of a node's own state.

startup.py     recovery at the start: newest valid snapshot, the log after it, and the core
meta.py        the file that says whose directory this is
repair.py      repair of damaged files in a store whose other members have the whole state
divergence.py  comparison of digests between running replicas; a replica that differs from the majority stops
"""
