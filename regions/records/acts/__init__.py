"""Records of operators' acts and requests.

drills.py      drills
grants.py      roles of users
undo.py        steps of `rk unstick`
checks.py      the last `rk fsck`
resharding.py  splits and merges under way
"""
