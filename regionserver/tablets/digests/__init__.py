"""Replicas that differ are found: their digests are compared at one entry.

judge.py          what follows from the digests of a tablet's members (pure)
messages.py       requests between servers and of operators, and replies
work.py           a leader compares its tablets; every server answers
"""
