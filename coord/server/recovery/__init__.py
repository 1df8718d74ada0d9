"""What a node does about its own state: start, repair, comparison with the other replicas.

startup.py     newest whole snapshot, the log behind it, and the core made of both
repair.py      damaged files in a store whose other members have everything
divergence.py  replicas compare digests while they run; a replica that differs from the majority stops
"""
