"""Rescue of a tablet that has lost its majority for good: an operator forces a configuration of the remaining members.

checks.py         a server's checks of the request, and the entry that it appends (pure)
messages.py       the request of an operator, and the reply
work.py           the replica is stopped, its log gets the entry, and the replica starts again
"""
