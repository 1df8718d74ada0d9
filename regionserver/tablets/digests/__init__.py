"""Finds replicas that differ, by a comparison of their digests at one entry.

judge.py          conclusions from the digests of a tablet's members (pure)
messages.py       requests between servers and of operators, and replies
work.py           a leader compares its tablets; every server answers
"""
