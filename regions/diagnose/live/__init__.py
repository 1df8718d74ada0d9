"""What every master compares while it runs, besides the steps of transitions (`regions/diagnose/invariants.py`). Pure.

doubts.py       replicas whose owner is in doubt after an event
check_log.py    when each check was made last, and what it found
cache_check.py  a master's copy of the regions, a slice at a time
work_in_progress.py  all replicas with work, in one look: for problems and what is not served
"""
