"""Upkeep of a server's disk: room that stays free, and the quarantine of former replicas.

space.py          free bytes of the disk, and the reserve that stays free
quarantine.py     which folders of the quarantine are removed, and when (pure)
folders.py        the folders of the quarantine on the disk
messages.py       requests of operators, and replies
work.py           the work that is due once a second, and the answers to operators
"""
