"""Upkeep of a server: room that stays free on the disk, the quarantine of former replicas, processors for requests.

rests.py          pauses of threads that copy rows, so that requests find a processor
space.py          free bytes of the disk, and the reserve that stays free
quarantine.py     which folders of the quarantine are removed, and when (pure)
folders.py        the folders of the quarantine on the disk
messages.py       requests of operators, and replies
work.py           the work that is due once a second, and the answers to operators
"""
