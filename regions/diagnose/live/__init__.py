"""Comparisons of a running master, in addition to the steps of transitions (`regions/diagnose/invariants.py`). Pure.

doubts.py       replicas whose owner is in doubt after an event
owner_round.py  all replicas that servers report, a few servers at a time
check_log.py    time and result of the last run of each check
cache_check.py  a master's copy of the regions, a slice at a time
key_space.py    holes and overlaps in the tables of a master's copy, a slice at a time
shortfall.py    servers that serve fewer regions than the store places on them
work_in_progress.py  all replicas with work in one pass: for problems, and for regions that are not served
"""
