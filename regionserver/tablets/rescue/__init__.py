"""Rescue of a tablet whose majority is lost for ever: an operator forces a configuration of the members that are left.

checks.py         in which order a server checks the order, and the entry that it appends (pure)
messages.py       the request of an operator, and the reply
work.py           the replica is stopped, its log gets the entry, and the replica starts again
"""
