"""What operators have done to a cluster, or have asked for.

drills.py      drills
grants.py      roles of users
undo.py        steps of `rk unstick`
checks.py      the last `rk fsck`
resharding.py  splits and merges under way
"""
